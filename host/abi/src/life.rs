// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The life of a lane, of `kernel/core/life.c`, and where its rings lie, of
//! `kernel/core/area.c`, behind safe calls.
#![allow(unsafe_code)]

use crate::lanes;
use crate::shm::VMLOOP_RECORD_ALIGN;

/// `struct vmloop_life`: how one lane stands, by the words of both sides.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Life {
    opens: bool,
    ours: u32,
    theirs: u32,
}

/// `struct vmloop_area`
#[repr(C)]
struct RawArea {
    node: *mut u8,
    order: u32,
    left: u32,
    aside: u32,
    aside_most: u32,
}

unsafe extern "C" {
    fn vmloop_life_see(life: *mut Life, word: u32) -> i32;
    fn vmloop_life_may(life: *const Life, step: u32) -> bool;
    fn vmloop_life_go(life: *mut Life, step: u32) -> u32;
    fn vmloop_life_may_produce(life: *const Life) -> bool;
    fn vmloop_life_may_consume(life: *const Life) -> bool;
    fn vmloop_life_is_final(life: *const Life) -> bool;

    fn vmloop_area_nodes(pages: u32) -> u32;
    fn vmloop_area_init(area: *mut RawArea, node: *mut u8, pages: u32, aside_most: u32) -> i32;
    fn vmloop_area_take(area: *mut RawArea, size: u32, offset: *mut u32) -> i32;
    fn vmloop_area_set_aside(area: *mut RawArea, offset: u32) -> i32;
    fn vmloop_area_give(area: *mut RawArea, offset: u32) -> i32;
}

/// The other side said what it cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a lane's life that the other side cannot have come to")]
pub struct Impossible;

/// The step that a word says: `VMLOOP_LIFE_*`, or a number that means nothing.
pub fn step(word: u32) -> u32 {
    word & ((1 << lanes::VMLOOP_LIFE_BITS) - 1)
}

/// Where a generation begins, if the one before ended at `end`.
pub fn start(end: u32) -> u32 {
    let mask = VMLOOP_RECORD_ALIGN - 1;
    end.wrapping_add(mask) & !mask
}

impl Life {
    /// A lane of a new region, which this side `opens` or accepts.
    pub fn new(opens: bool) -> Self {
        Self { opens, ours: 0, theirs: 0 }
    }

    /// Whether this side opens the lane.
    pub fn opens(&self) -> bool {
        self.opens
    }

    /// Our word, as last stored.
    pub fn ours(&self) -> u32 {
        self.ours
    }

    /// The other side's word, as last seen and believed.
    pub fn theirs(&self) -> u32 {
        self.theirs
    }

    /// Takes the other side's word; whether it has moved.
    ///
    /// # Errors
    /// [`Impossible`] for what it cannot say.
    pub fn see(&mut self, word: u32) -> Result<bool, Impossible> {
        // SAFETY: works on *self alone.
        match unsafe { vmloop_life_see(self, word) } {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Impossible),
        }
    }

    /// Whether a step is ours to take.
    pub fn may(&self, step: u32) -> bool {
        // SAFETY: works on *self alone.
        unsafe { vmloop_life_may(self, step) }
    }

    /// Takes a step: the word to store when all that belongs to it is there.
    ///
    /// # Panics
    /// If it is not ours to take.
    pub fn go(&mut self, step: u32) -> u32 {
        assert!(self.may(step), "step {step} of {self:?}");
        // SAFETY: works on *self alone.
        unsafe { vmloop_life_go(self, step) }
    }

    /// Whether the other side will read what we write.
    pub fn may_produce(&self) -> bool {
        // SAFETY: works on *self alone.
        unsafe { vmloop_life_may_produce(self) }
    }

    /// Whether there is, or may come, something to read.
    pub fn may_consume(&self) -> bool {
        // SAFETY: works on *self alone.
        unsafe { vmloop_life_may_consume(self) }
    }

    /// Whether the other side's positions are final.
    pub fn is_final(&self) -> bool {
        // SAFETY: works on *self alone.
        unsafe { vmloop_life_is_final(self) }
    }
}

/// A side's own data: memory for rings.
pub struct Area {
    raw: RawArea,
    /// What `raw.node` points to.
    _nodes: Vec<u8>,
}

// SAFETY: the pointer is to memory of its own, and used through &mut self only.
unsafe impl Send for Area {}

impl Area {
    /// More pages no area has: `VMLOOP_AREA_MAX`.
    pub const PAGES_MAX: u32 = 1 << 18;

    /// All of `pages` is free; nothing is given out while more than `aside_most` are
    /// set aside. None for no page, or too many.
    pub fn new(pages: u32, aside_most: u32) -> Option<Self> {
        if pages > Self::PAGES_MAX {
            return None;
        }
        // SAFETY: pure arithmetic.
        let size = unsafe { vmloop_area_nodes(pages) };
        let mut nodes = vec![0; size as usize];
        let mut raw =
            RawArea { node: std::ptr::null_mut(), order: 0, left: 0, aside: 0, aside_most: 0 };
        // SAFETY: as many nodes as it says that it needs, which live as long as `raw`.
        let err = unsafe { vmloop_area_init(&mut raw, nodes.as_mut_ptr(), pages, aside_most) };
        (err == 0).then_some(Self { raw, _nodes: nodes })
    }

    /// Memory for a ring: where it begins. None while there is none.
    pub fn take(&mut self, size: u32) -> Option<u32> {
        let mut offset = 0;
        // SAFETY: self.raw was initialised by new().
        let err = unsafe { vmloop_area_take(&mut self.raw, size, &mut offset) };
        (err == 0).then_some(offset)
    }

    /// A block is not used, and may not be used again yet.
    pub fn set_aside(&mut self, offset: u32) {
        // SAFETY: self.raw was initialised by new().
        let err = unsafe { vmloop_area_set_aside(&mut self.raw, offset) };
        debug_assert_eq!(err, 0);
    }

    /// A block is free, whether it was set aside or not.
    pub fn give(&mut self, offset: u32) {
        // SAFETY: self.raw was initialised by new().
        let err = unsafe { vmloop_area_give(&mut self.raw, offset) };
        debug_assert_eq!(err, 0);
    }

    /// Pages that are free.
    pub fn left(&self) -> u32 {
        self.raw.left
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    unsafe extern "C" {
        fn vmloop_shim_life_size() -> usize;
        fn vmloop_shim_life_theirs() -> usize;
        fn vmloop_shim_area_size() -> usize;
        fn vmloop_shim_area_aside_most() -> usize;
    }

    #[test]
    fn the_mirror_is_as_large_as_the_original() {
        // SAFETY: functions without arguments that return constants.
        let c = unsafe {
            [
                vmloop_shim_life_size(),
                vmloop_shim_life_theirs(),
                vmloop_shim_area_size(),
                vmloop_shim_area_aside_most(),
            ]
        };
        let rust = [
            size_of::<Life>(),
            offset_of!(Life, theirs),
            size_of::<RawArea>(),
            offset_of!(RawArea, aside_most),
        ];
        assert_eq!(c, rust);
    }

    #[test]
    fn a_generation_begins_at_a_multiple_of_sixteen() {
        for (end, begin) in [(0, 0), (1, 16), (16, 16), (17, 32), (0xffff_fff1, 0)] {
            assert_eq!(start(end), begin);
        }
    }
}
