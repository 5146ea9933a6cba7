// SPDX-License-Identifier: GPL-2.0 OR MIT
//! File descriptors that a task can wait for.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches a descriptor that can be polled, such as an eventfd or a pidfd, for
/// something to read.
///
/// # Errors
/// Those of epoll_ctl(2).
pub fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    watch(fd, Interest::READABLE)
}

/// As [`readable`], and for room to write, such as a socket's.
///
/// # Errors
/// Those of epoll_ctl(2).
pub fn readable_and_writable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    watch(fd, Interest::READABLE | Interest::WRITABLE)
}

fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd names the same open descriptor for as long as it
    // lives, and AsyncFd owns it.
    let watched = unsafe { AsyncFd::register_with_interest(fd, interest) };
    watched.map_err(io::Error::from)
}
