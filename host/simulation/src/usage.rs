// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a process uses, by /proc, and figures of many times.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

/// Memory of a process in MB (10^6 bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    /// all that is resident
    pub rss_mb: f64,
    /// of that: heap and stacks
    pub anonymous_mb: f64,
    /// of that: memory shared with guests
    pub shared_mb: f64,
    /// of that: the program
    pub file_mb: f64,
}

/// Memory of a process.
///
/// # Errors
/// Those of /proc.
pub fn memory(pid: u32) -> anyhow::Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the agent's status")?;
    let field = |name: &str| -> anyhow::Result<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|rest| rest.split_whitespace().next()).context("a field")?;
        Ok(kib.parse::<f64>()? * 1024.0 / 1e6)
    };
    Ok(Memory {
        rss_mb: field("VmRSS")?,
        anonymous_mb: field("RssAnon")?,
        shared_mb: field("RssShmem")?,
        file_mb: field("RssFile")?,
    })
}

/// Time of CPUs that a process has used, of all of its threads that are there yet.
///
/// # Errors
/// Those of /proc.
pub fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let mut all = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let nanoseconds = text.split_whitespace().next().context("schedstat")?;
        all += nanoseconds.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(all))
}

/// Descriptors that a process has.
///
/// # Errors
/// Those of /proc.
pub fn descriptors(pid: u32) -> anyhow::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// What part `percent` of the times does not exceed, in milliseconds; 0 without any.
pub fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let times: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        for (percent, expected) in [(50, 100.0), (99, 198.0), (100, 200.0)] {
            assert!((percentile(&times, percent) - expected).abs() < 1e-9, "{percent}");
        }
        assert!(percentile(&[], 99).abs() < 1e-9);
    }

    #[test]
    fn this_process() {
        let pid = std::process::id();
        let memory = memory(pid).expect("its memory");
        let parts = memory.anonymous_mb + memory.shared_mb + memory.file_mb;
        assert!((memory.rss_mb - parts).abs() < 0.1 && parts > 0.5, "{memory:?}");
        let before = cpu(pid).expect("its time");
        // The other test's thread may end, and what it used is then not counted any more.
        while cpu(pid).expect("its time") < before + Duration::from_millis(5) {}
        assert!(descriptors(pid).is_ok_and(|count| count > 3));
    }
}
