// SPDX-License-Identifier: GPL-2.0 OR MIT
//! getsockopt(2) as the kernel's old tables of rules want it, for which there is no
//! safe wrapper. All `unsafe` of this crate is here.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Which option: level and number.
#[derive(Clone, Copy, Debug)]
pub struct Which {
    /// level
    pub level: i32,
    /// number at that level
    pub number: i32,
}

/// The same of an option whose question holds, at `address`, where the kernel is to
/// write a part of the answer: that is at `behind` in the buffer, and to its end.
///
/// # Errors
/// Those of getsockopt(2).
pub fn get_behind(
    socket: BorrowedFd<'_>,
    which: Which,
    buffer: &mut [u8],
    address: usize,
    behind: usize,
) -> io::Result<usize> {
    let start = buffer.as_mut_ptr().wrapping_add(behind).expose_provenance();
    let place = buffer.get_mut(address..address + size_of::<usize>());
    place.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(&start.to_ne_bytes());
    get(socket, which, buffer)
}

/// Reads an option into `buffer`, which holds the question before; returns how many
/// bytes of it are the answer.
///
/// # Errors
/// Those of getsockopt(2).
pub fn get(socket: BorrowedFd<'_>, which: Which, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(buffer.len())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the descriptor is open; buffer and length are ours alone for the call, and
    // the kernel writes no more than that length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            which.level,
            which.number,
            buffer.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(length as usize) }
}
