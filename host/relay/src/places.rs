// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which place of the ring that is read (near) is which of the ring that is written (far).
//!
//! What is copied lies in both rings in one piece, but for padding, which either ring has
//! before its end, and where the other has none. So a few runs say all of it, whatever the
//! number of records: in what is on its way both rings begin anew once at most.

use std::collections::VecDeque;

/// So many bytes from `near` on are those from `far` on.
#[derive(Clone, Copy, Debug)]
struct Run {
    near: u32,
    far: u32,
    bytes: u32,
}

/// What has been copied and not yet been read by the far guest.
#[derive(Debug)]
pub(crate) struct Places(VecDeque<Run>);

/// More than what is on its way can have: where each ring begins anew a run ends.
const RUNS_MAX: usize = 8;

impl Places {
    /// Nothing has been copied; the first byte will come from `near` and go to `far`.
    pub(crate) fn new(near: u32, far: u32) -> Self {
        Self(VecDeque::from([Run { near, far, bytes: 0 }]))
    }

    /// So many bytes were copied.
    pub(crate) fn add(&mut self, near: u32, far: u32, bytes: u32) {
        let last = self.0.back_mut().expect("there is one always");
        if last.near.wrapping_add(last.bytes) == near && last.far.wrapping_add(last.bytes) == far {
            last.bytes += bytes;
        } else {
            self.0.push_back(Run { near, far, bytes });
        }
        debug_assert!(self.0.len() <= RUNS_MAX);
    }

    /// The far guest has read up to `far`: up to where the near ring has been read. Padding
    /// counts as read with the record behind it.
    pub(crate) fn near_of(&mut self, far: u32) -> u32 {
        while let Some(next) = self.0.get(1)
            && far.wrapping_sub(next.far).wrapping_sub(1) < 1 << 31
        {
            self.0.pop_front();
        }
        let run = self.0.front_mut().expect("there is one always");
        let done = far.wrapping_sub(run.far).min(run.bytes);
        run.near = run.near.wrapping_add(done);
        run.far = run.far.wrapping_add(done);
        run.bytes -= done;
        run.near
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_of_either_ring() {
        let begin = 0xffff_ffc0;
        let mut places = Places::new(begin, 16);
        places.add(begin, 16, 32);
        places.add(begin.wrapping_add(32), 48, 16);
        // 16 bytes of padding in the far ring, then 32 in the near one.
        places.add(begin.wrapping_add(48), 80, 16);
        places.add(begin.wrapping_add(96), 96, 64);
        assert_eq!(places.0.len(), 3);
        let rows = [(16, 0), (32, 16), (48, 32), (64, 48), (72, 48), (80, 48), (96, 64)];
        for (far, near) in rows {
            assert_eq!(places.near_of(far), begin.wrapping_add(near), "{far}");
        }
        assert_eq!(places.near_of(160), begin.wrapping_add(160));
        assert_eq!(places.0.len(), 1);
    }

    #[test]
    fn bytes_without_end() {
        let mut places = Places::new(5, 32);
        let (mut near, mut far) = (5u32, 32u32);
        for _ in 0..20 {
            places.add(near, far, 1 << 29);
            near = near.wrapping_add(1 << 29);
            far = far.wrapping_add(1 << 29);
            assert_eq!(places.near_of(far.wrapping_sub(7)), near.wrapping_sub(7));
        }
        assert_eq!(places.0.len(), 1);
    }
}
