// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The ring of `kernel/core/ring.c`, behind safe calls.
//!
//! A [`Tx`] or [`Rx`] points into a mapping; whoever holds one keeps the
//! mapping alive longer (see `control::ControlRegion`).
#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::shm::{self, Lane};

const EAGAIN: i32 = -11;

/// `VMLOOP_RING_RECORDS`
const RECORDS: u32 = shm::VMLOOP_RECORD_ALIGN;

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
}

/// The other side wrote what cannot be true, or a size is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

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
    /// Begins to produce into an empty ring.
    ///
    /// # Safety
    /// `data` must point to `size` mapped bytes, 16-byte aligned, `ours` and
    /// `theirs` to mapped lanes, all of which outlive the result; nobody else
    /// on this side may use them.
    pub(crate) unsafe fn new(
        data: *mut u8,
        size: u32,
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
            ours: std::ptr::null_mut(),
            theirs: std::ptr::null(),
            broken: 0,
        };
        // SAFETY: the caller's promise is what the function asks for.
        match unsafe { vmloop_ring_tx_init(&mut raw, RECORDS, data.cast(), size, 0, ours, theirs) }
        {
            0 => Ok(Self(raw)),
            _ => Err(Broken),
        }
    }

    /// Writes a record; false while there is no room.
    pub(crate) fn push(&mut self, kind: u16, payload: &[u8]) -> Result<bool, Broken> {
        let size = u32::try_from(payload.len()).map_err(|_| Broken)?;
        let mut to = std::ptr::null_mut();
        // SAFETY: self.0 was initialised by new().
        match unsafe { vmloop_ring_reserve(&mut self.0, size, kind, 0, &mut to) } {
            0 => {}
            EAGAIN => return Ok(false),
            _ => return Err(Broken),
        }
        for (index, byte) in payload.iter().enumerate() {
            // SAFETY: the ring reserved `size` bytes at `to`; volatile, as the
            // other side may look at any time.
            unsafe { to.cast::<u8>().add(index).write_volatile(*byte) };
        }
        // SAFETY: self.0 was initialised by new() and has a reservation.
        unsafe { vmloop_ring_commit(&mut self.0) };
        Ok(true)
    }

    /// Shows what was written; true if the other side wants a doorbell.
    pub(crate) fn publish(&mut self) -> bool {
        // SAFETY: self.0 was initialised by new().
        unsafe { vmloop_ring_publish(&mut self.0) }
    }

    /// Asks for a doorbell when `size` bytes of payload fit; false if they do
    /// already.
    pub(crate) fn wait_room(&mut self, size: u32) -> bool {
        // SAFETY: self.0 was initialised by new().
        unsafe { vmloop_ring_wait_room(&mut self.0, size) }
    }
}

impl Rx {
    /// Begins to consume from the start of a ring.
    ///
    /// # Safety
    /// As for [`Tx::new`]; the other side may write to `data` and `theirs`.
    pub(crate) unsafe fn new(
        data: *const u8,
        size: u32,
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
            ours: std::ptr::null_mut(),
            theirs: std::ptr::null(),
            broken: 0,
        };
        // SAFETY: the caller's promise is what the function asks for.
        match unsafe { vmloop_ring_rx_init(&mut raw, RECORDS, data.cast(), size, 0, ours, theirs) }
        {
            0 => Ok(Self(raw)),
            _ => Err(Broken),
        }
    }

    /// Takes the next record: its type, with its payload copied to `into`,
    /// cut after `limit` bytes. None if the ring is empty.
    pub(crate) fn pop(&mut self, into: &mut Vec<u8>, limit: usize) -> Result<Option<u16>, Broken> {
        let mut record = RawRecord::default();
        let mut from = std::ptr::null();
        // SAFETY: self.0 was initialised by new().
        match unsafe { vmloop_ring_peek(&mut self.0, &mut record, &mut from) } {
            0 => return Ok(None),
            1 => {}
            _ => return Err(Broken),
        }
        into.clear();
        for index in 0..(record.size as usize).min(limit) {
            // SAFETY: the ring checked that `record.size` bytes at `from` lie
            // within it; volatile, as the other side may write them still.
            into.push(unsafe { from.cast::<u8>().add(index).read_volatile() });
        }
        // SAFETY: self.0 was initialised by new() and was peeked at.
        unsafe { vmloop_ring_release(&mut self.0) };
        Ok(Some(record.kind))
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
        assert_eq!(unsafe { vmloop_shim_records() }, RECORDS);
    }
}
