// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The ring of `kernel/core/ring.c`, behind safe calls.
//!
//! A [`Tx`] or [`Rx`] points into a mapping; whoever holds one keeps the
//! mapping alive longer (see `control::ControlRegion` and `table::Table`).
#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::shm::{self, Lane};

const EAGAIN: i32 = -11;

/// `enum vmloop_ring_grain`: what a ring carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Bytes, which wrap anywhere.
    Bytes = 1,
    /// Records, of which none wraps.
    Records = shm::VMLOOP_RECORD_ALIGN as isize,
}

/// Smallest ring there is: `VMLOOP_RING_MIN`.
pub const RING_MIN: u32 = 4096;

/// `struct vmloop_ring_tx`
#[repr(C)]
struct RawTx {
    data: *mut u8,
    size: u32,
    /// `enum vmloop_ring_grain`
    grain: u32,
    head: u32,
    reserved: u32,
    published: u32,
    tail: u32,
    moves: u32,
    moved_at: u32,
    old: *const u8,
    old_size: u32,
    straddles: bool,
    ours: *mut Lane,
    theirs: *const Lane,
    /// `enum vmloop_ring_fault`
    broken: u32,
}

/// `struct vmloop_ring_rx`
#[repr(C)]
struct RawRx {
    data: *const u8,
    size: u32,
    /// `enum vmloop_ring_grain`
    grain: u32,
    tail: u32,
    taken: u32,
    published: u32,
    head: u32,
    area: *const u8,
    area_size: u64,
    most: u32,
    /// `enum vmloop_ring_move`
    moving: u32,
    moves: u32,
    moved_at: u32,
    next: *const u8,
    next_size: u32,
    ours: *mut Lane,
    theirs: *const Lane,
    /// `enum vmloop_ring_fault`
    broken: u32,
}

/// `struct vmloop_shm_record`
#[repr(C)]
#[derive(Default)]
struct RawRecord {
    size: u32,
    kind: u16,
    info: u16,
}

unsafe extern "C" {
    fn vmloop_ring_tx_init(
        tx: *mut RawTx,
        grain: u32,
        data: *mut c_void,
        size: u32,
        start: u32,
        ours: *mut Lane,
        theirs: *const Lane,
    ) -> i32;
    fn vmloop_ring_rx_init(
        rx: *mut RawRx,
        grain: u32,
        data: *const c_void,
        size: u32,
        start: u32,
        ours: *mut Lane,
        theirs: *const Lane,
    ) -> i32;
    fn vmloop_ring_max_record(size: u32) -> u32;
    fn vmloop_ring_reserve(
        tx: *mut RawTx,
        size: u32,
        kind: u16,
        info: u16,
        payload: *mut *mut c_void,
    ) -> i32;
    fn vmloop_ring_commit(tx: *mut RawTx);
    fn vmloop_ring_publish(tx: *mut RawTx) -> bool;
    fn vmloop_ring_wait_room(tx: *mut RawTx, size: u32) -> bool;
    fn vmloop_ring_peek(rx: *mut RawRx, record: *mut RawRecord, payload: *mut *const c_void)
    -> i32;
    fn vmloop_ring_release(rx: *mut RawRx);
    fn vmloop_ring_consume_publish(rx: *mut RawRx) -> bool;
    fn vmloop_ring_sleep(rx: *mut RawRx) -> bool;
    fn vmloop_ring_space(tx: *mut RawTx, want: u32, at: *mut *mut c_void) -> u32;
    fn vmloop_ring_add(tx: *mut RawTx, bytes: u32);
    fn vmloop_ring_wait_space(tx: *mut RawTx, want: u32) -> bool;
    fn vmloop_ring_wait_read(tx: *mut RawTx, position: u32) -> bool;
    fn vmloop_ring_account(tx: *mut RawTx) -> u32;
    fn vmloop_ring_bytes(rx: *mut RawRx, skip: u32, want: u32, at: *mut *const c_void) -> u32;
    fn vmloop_ring_take(rx: *mut RawRx, bytes: u32);
}

/// The other side wrote what cannot be true, or a size is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a position, a record or a size that cannot be")]
pub struct Broken;

/// What was copied from one ring to another, by [`copy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// So many bytes of the rings, from these positions on.
    Some {
        /// in the ring that was read
        from: u32,
        /// in the ring that was written
        to: u32,
        /// a record's header and padding included
        bytes: u32,
    },
    /// There is nothing to copy.
    Empty,
    /// There is no room.
    Full,
}

/// Whose end of a copy is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The ring that is read.
    Rx,
    /// The ring that is written.
    Tx,
}

/// The producer's end.
pub(crate) struct Tx(RawTx);
/// The consumer's end.
pub(crate) struct Rx(RawRx);

// SAFETY: the ends hold pointers to shared memory that belongs to no thread,
// and are used through &mut self only.
unsafe impl Send for Tx {}
// SAFETY: as above.
unsafe impl Send for Rx {}
// SAFETY: there is nothing that &self could be used for.
unsafe impl Sync for Tx {}
// SAFETY: as above.
unsafe impl Sync for Rx {}

/// Largest payload in bytes that a ring of `size` bytes carries.
pub(crate) fn max_record(size: u32) -> u32 {
    // SAFETY: pure arithmetic.
    unsafe { vmloop_ring_max_record(size) }
}

impl Tx {
    /// Begins to produce into an empty ring, at position `start`.
    ///
    /// # Safety
    /// `data` must point to `size` mapped bytes, `ours` and
    /// `theirs` to mapped lanes, all of which outlive the result; nobody else
    /// on this side may use them.
    pub(crate) unsafe fn new(
        grain: Grain,
        data: *mut u8,
        size: u32,
        start: u32,
        ours: *mut Lane,
        theirs: *const Lane,
    ) -> Result<Self, Broken> {
        let mut raw = RawTx {
            data: std::ptr::null_mut(),
            size: 0,
            grain: 0,
            head: 0,
            reserved: 0,
            published: 0,
            tail: 0,
            moves: 0,
            moved_at: 0,
            old: std::ptr::null(),
            old_size: 0,
            straddles: false,
            ours: std::ptr::null_mut(),
            theirs: std::ptr::null(),
            broken: 0,
        };
        // SAFETY: the caller's promise is what the function asks for.
        let err = unsafe {
            vmloop_ring_tx_init(&mut raw, grain as u32, data.cast(), size, start, ours, theirs)
        };
        match err {
            0 => Ok(Self(raw)),
            _ => Err(Broken),
        }
    }

    /// Writes a record; false while there is no room.
    pub(crate) fn push(&mut self, kind: u16, info: u16, payload: &[u8]) -> Result<bool, Broken> {
        let size = u32::try_from(payload.len()).map_err(|_| Broken)?;
        let mut to = std::ptr::null_mut();
        // SAFETY: self.0 was initialised by new().
        match unsafe { vmloop_ring_reserve(&mut self.0, size, kind, info, &mut to) } {
            0 => {}
            EAGAIN => return Ok(false),
            _ => return Err(Broken),
        }
        // SAFETY: the ring reserved `size` bytes at `to`.
        unsafe { copy_shared(to.cast(), payload.as_ptr(), payload.len()) };
        // SAFETY: self.0 was initialised by new() and has a reservation.
        unsafe { vmloop_ring_commit(&mut self.0) };
        Ok(true)
    }

    /// Writes bytes to a ring of bytes: how many there was room for.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<u32, Broken> {
        let mut done = 0;
        while done < bytes.len() {
            let left = &bytes[done..];
            let mut to = std::ptr::null_mut();
            let want = u32::try_from(left.len()).unwrap_or(u32::MAX);
            // SAFETY: self.0 was initialised by new().
            let room = unsafe { vmloop_ring_space(&mut self.0, want, &mut to) }.min(want);
            if room == 0 {
                break;
            }
            // SAFETY: the ring says that there is so much room at `to`.
            unsafe {
                copy_shared(to.cast(), left.as_ptr(), room as usize);
                vmloop_ring_add(&mut self.0, room);
            }
            done += room as usize;
        }
        if self.0.broken == 0 { Ok(done as u32) } else { Err(Broken) }
    }

    /// Shows what was written; true if the other side wants a doorbell.
    pub(crate) fn publish(&mut self) -> bool {
        // SAFETY: self.0 was initialised by new().
        unsafe { vmloop_ring_publish(&mut self.0) }
    }

    /// Where the next byte goes.
    pub(crate) fn head(&self) -> u32 {
        self.0.head
    }

    /// Up to where the other side has published that it has read.
    pub(crate) fn tail(&mut self) -> Result<u32, Broken> {
        self.account();
        if self.0.broken == 0 { Ok(self.0.tail) } else { Err(Broken) }
    }

    /// How many bytes the other side has not published as read.
    pub(crate) fn account(&mut self) -> u32 {
        // SAFETY: self.0 was initialised by new().
        unsafe { vmloop_ring_account(&mut self.0) }
    }

    /// Asks for a doorbell when the other side has read up to `position`; false if it
    /// has already, or if the ring is broken.
    pub(crate) fn wait_read(&mut self, position: u32) -> bool {
        // SAFETY: self.0 was initialised by new().
        unsafe { vmloop_ring_wait_read(&mut self.0, position) }
    }

    /// Asks for a doorbell when there is room in a ring of bytes; false if there is.
    pub(crate) fn wait_space(&mut self) -> bool {
        // SAFETY: self.0 was initialised by new().
        unsafe { vmloop_ring_wait_space(&mut self.0, 1) }
    }

    /// Asks for a doorbell when `size` bytes of payload fit; false if they do
    /// already.
    pub(crate) fn wait_room(&mut self, size: u32) -> bool {
        // SAFETY: self.0 was initialised by new().
        unsafe { vmloop_ring_wait_room(&mut self.0, size) }
    }
}

impl Rx {
    /// Begins to consume from an empty ring, at position `start`.
    ///
    /// # Safety
    /// As for [`Tx::new`]; the other side may write to `data` and `theirs`.
    pub(crate) unsafe fn new(
        grain: Grain,
        data: *const u8,
        size: u32,
        start: u32,
        ours: *mut Lane,
        theirs: *const Lane,
    ) -> Result<Self, Broken> {
        let mut raw = RawRx {
            data: std::ptr::null(),
            size: 0,
            grain: 0,
            tail: 0,
            taken: 0,
            published: 0,
            head: 0,
            area: std::ptr::null(),
            area_size: 0,
            most: 0,
            moving: 0,
            moves: 0,
            moved_at: 0,
            next: std::ptr::null(),
            next_size: 0,
            ours: std::ptr::null_mut(),
            theirs: std::ptr::null(),
            broken: 0,
        };
        // SAFETY: the caller's promise is what the function asks for.
        let err = unsafe {
            vmloop_ring_rx_init(&mut raw, grain as u32, data.cast(), size, start, ours, theirs)
        };
        match err {
            0 => Ok(Self(raw)),
            _ => Err(Broken),
        }
    }

    /// Takes the next record: its type and more about it, with its payload copied to
    /// `into`, cut after `limit` bytes. None if the ring is empty.
    pub(crate) fn pop(
        &mut self,
        into: &mut Vec<u8>,
        limit: usize,
    ) -> Result<Option<(u16, u16)>, Broken> {
        let mut record = RawRecord::default();
        let mut from = std::ptr::null();
        // SAFETY: self.0 was initialised by new().
        match unsafe { vmloop_ring_peek(&mut self.0, &mut record, &mut from) } {
            0 => return Ok(None),
            1 => {}
            _ => return Err(Broken),
        }
        into.clear();
        into.resize((record.size as usize).min(limit), 0);
        // SAFETY: the ring checked that `record.size` bytes at `from` lie within it.
        unsafe { copy_shared(into.as_mut_ptr(), from.cast(), into.len()) };
        // SAFETY: self.0 was initialised by new() and was peeked at.
        unsafe { vmloop_ring_release(&mut self.0) };
        Ok(Some((record.kind, record.info)))
    }

    /// Takes bytes of a ring of bytes, `most` at most, and appends them to `into`.
    pub(crate) fn read(&mut self, into: &mut Vec<u8>, most: u32) -> Result<u32, Broken> {
        let mut done = 0;
        while done < most {
            let mut from = std::ptr::null();
            // SAFETY: self.0 was initialised by new().
            let bytes = unsafe { vmloop_ring_bytes(&mut self.0, 0, most - done, &mut from) };
            let bytes = bytes.min(most - done);
            if bytes == 0 {
                break;
            }
            let end = into.len();
            into.resize(end + bytes as usize, 0);
            // SAFETY: the ring says that there are so many bytes at `from`.
            unsafe {
                copy_shared(into.as_mut_ptr().add(end), from.cast(), bytes as usize);
                vmloop_ring_take(&mut self.0, bytes);
            }
            done += bytes;
        }
        if self.0.broken == 0 { Ok(done) } else { Err(Broken) }
    }

    /// Where the next record or byte is.
    pub(crate) fn tail(&self) -> u32 {
        self.0.tail
    }

    /// Up to where the other side was told that we have read.
    pub(crate) fn published(&self) -> u32 {
        self.0.published
    }

    /// Gives back what was taken, up to `position` only, which lies between what was
    /// published and what was taken; true if the other side wants a doorbell.
    pub(crate) fn publish_to(&mut self, position: u32) -> bool {
        let taken = self.0.tail;
        let most = taken.wrapping_sub(self.0.published);
        debug_assert!(position.wrapping_sub(self.0.published) <= most);
        // What is behind `position` is taken, and not given back: the ring only compares
        // the two where it publishes.
        self.0.tail = position;
        let wanted = self.publish();
        self.0.tail = taken;
        wanted
    }

    /// Gives back what was taken; true if the other side wants a doorbell.
    pub(crate) fn publish(&mut self) -> bool {
        // SAFETY: self.0 was initialised by new().
        unsafe { vmloop_ring_consume_publish(&mut self.0) }
    }

    /// Asks for a doorbell at the next record; false if there is one already,
    /// or if the ring is broken.
    pub(crate) fn sleep(&mut self) -> bool {
        // SAFETY: self.0 was initialised by new().
        unsafe { vmloop_ring_sleep(&mut self.0) }
    }
}

/// Copies between shared memory and other, or more of it.
///
/// # Safety
/// `from` and `to` must be valid for `bytes` bytes, and not overlap; a peer may write to
/// either at the same time.
unsafe fn copy_shared(mut to: *mut u8, mut from: *const u8, mut bytes: usize) {
    // Volatile: the other side may write, or look, at any time.
    while bytes > 0 {
        let aligned = (to.addr() | from.addr()).is_multiple_of(8);
        let step = if aligned && bytes >= 8 { 8 } else { 1 };
        // SAFETY: within what the caller has promised, and aligned where it is a word.
        unsafe {
            if step == 8 {
                to.cast::<u64>().write_volatile(from.cast::<u64>().read_volatile());
            } else {
                to.write_volatile(from.read_volatile());
            }
            to = to.add(step);
            from = from.add(step);
        }
        bytes -= step;
    }
}

/// Copies the next record, or `most` bytes at most of a ring of bytes, as it is. Nothing
/// is published.
///
/// # Errors
/// The end whose other side is broken.
pub(crate) fn copy(rx: &mut Rx, tx: &mut Tx, most: u32) -> Result<Copied, End> {
    if rx.0.grain == Grain::Records as u32 { copy_record(rx, tx) } else { copy_bytes(rx, tx, most) }
}

fn copy_record(rx: &mut Rx, tx: &mut Tx) -> Result<Copied, End> {
    let mut record = RawRecord::default();
    let mut from = std::ptr::null();
    let mut to = std::ptr::null_mut();
    // SAFETY: rx.0 was initialised by new().
    match unsafe { vmloop_ring_peek(&mut rx.0, &mut record, &mut from) } {
        0 => return Ok(Copied::Empty),
        1 => {}
        _ => return Err(End::Rx),
    }
    let (size, kind, info) = (record.size, record.kind, record.info);
    // SAFETY: tx.0 was initialised by new().
    match unsafe { vmloop_ring_reserve(&mut tx.0, size, kind, info, &mut to) } {
        0 => {}
        EAGAIN => return Ok(Copied::Full),
        _ => return Err(End::Tx),
    }
    // Padding before it is no part of it, in either ring.
    let bytes = rx.0.taken;
    let copied = Copied::Some {
        from: rx.0.tail,
        to: tx.0.head.wrapping_add(tx.0.reserved).wrapping_sub(bytes),
        bytes,
    };
    // SAFETY: both rings have checked that there are `record.size` bytes.
    unsafe {
        copy_shared(to.cast(), from.cast(), record.size as usize);
        vmloop_ring_commit(&mut tx.0);
        vmloop_ring_release(&mut rx.0);
    }
    Ok(copied)
}

fn copy_bytes(rx: &mut Rx, tx: &mut Tx, most: u32) -> Result<Copied, End> {
    let mut from = std::ptr::null();
    let mut to = std::ptr::null_mut();
    // SAFETY: rx.0 was initialised by new().
    let bytes = unsafe { vmloop_ring_bytes(&mut rx.0, 0, most, &mut from) }.min(most);
    if rx.0.broken != 0 {
        return Err(End::Rx);
    }
    if bytes == 0 {
        return Ok(Copied::Empty);
    }
    // SAFETY: tx.0 was initialised by new().
    let bytes = unsafe { vmloop_ring_space(&mut tx.0, bytes, &mut to) }.min(bytes);
    if tx.0.broken != 0 {
        return Err(End::Tx);
    }
    if bytes == 0 {
        return Ok(Copied::Full);
    }
    let copied = Copied::Some { from: rx.0.tail, to: tx.0.head, bytes };
    // SAFETY: both rings have said that there are so many bytes.
    unsafe {
        copy_shared(to.cast(), from.cast(), bytes as usize);
        vmloop_ring_add(&mut tx.0, bytes);
        vmloop_ring_take(&mut rx.0, bytes);
    }
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    unsafe extern "C" {
        fn vmloop_shim_tx_size() -> usize;
        fn vmloop_shim_rx_size() -> usize;
        fn vmloop_shim_tx_head() -> usize;
        fn vmloop_shim_rx_tail() -> usize;
        fn vmloop_shim_tx_broken() -> usize;
        fn vmloop_shim_rx_broken() -> usize;
        fn vmloop_shim_records() -> u32;
    }

    #[test]
    fn the_mirror_is_as_large_as_the_original() {
        // SAFETY: functions without arguments that return constants.
        let c = unsafe {
            [
                vmloop_shim_tx_size(),
                vmloop_shim_rx_size(),
                vmloop_shim_tx_head(),
                vmloop_shim_rx_tail(),
                vmloop_shim_tx_broken(),
                vmloop_shim_rx_broken(),
            ]
        };
        let rust = [
            size_of::<RawTx>(),
            size_of::<RawRx>(),
            offset_of!(RawTx, head),
            offset_of!(RawRx, tail),
            offset_of!(RawTx, broken),
            offset_of!(RawRx, broken),
        ];
        assert_eq!(c, rust);
        // SAFETY: as above.
        assert_eq!(unsafe { vmloop_shim_records() }, Grain::Records as u32);
    }
}
