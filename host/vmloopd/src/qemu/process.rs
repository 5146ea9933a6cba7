// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A QEMU's process: when it ends, and how many more files it may open.

use std::fs;
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

/// Doorbells that a QEMU has room for: it keeps two descriptors for each of a device's, of
/// both sides, and more than its limit ends it. Half of what is left is for others.
///
/// # Errors
/// Those of /proc.
pub fn bells(pid: u32) -> io::Result<u32> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let most = parse_open_files(&limits).ok_or(io::ErrorKind::InvalidData)?;
    let open = fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64;
    Ok(u32::try_from(most.saturating_sub(open) / 4).unwrap_or(u32::MAX))
}

/// The soft limit of a line as `Max open files            1024                 524288
/// files`.
fn parse_open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_ascii_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_a_process_may_open() {
        let text = |soft: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max processes             unlimited            unlimited            processes \n\
                 Max open files            {soft:<20} 524288               files     \n"
            )
        };
        assert_eq!(parse_open_files(&text("1024")), Some(1024));
        assert_eq!(parse_open_files(&text("unlimited")), Some(u64::MAX));
        assert_eq!([parse_open_files(&text("x")), parse_open_files("")], [None, None]);
        assert!(bells(std::process::id()).is_ok_and(|bells| bells > 0));
        assert!(bells(0).is_err());
    }
}
