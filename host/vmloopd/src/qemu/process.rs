// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The end of a QEMU's process.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;
use tracing::warn;
use vmloop_abi::readiness::readable;

/// Readable when the process ends.
pub fn pidfd(pid: u32) -> Option<AsyncFd<OwnedFd>> {
    let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let opened = pidfd_open(raw, PidfdFlags::NONBLOCK).map_err(io::Error::from);
    opened
        .and_then(readable)
        .inspect_err(|error| warn!(pid, %error, "only QMP will tell when this QEMU ends"))
        .ok()
}

/// Returns when the process has ended; never without a pidfd.
pub async fn ended(pidfd: Option<&AsyncFd<OwnedFd>>) {
    match pidfd {
        // An error is no news about the process.
        Some(fd) if fd.readable().await.is_ok() => {}
        _ => std::future::pending().await,
    }
}
