// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How long two guests wait for another channel after one that failed, or that
//! was closed soon.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::breaks::Pair;

/// Longest time that a pair must wait after failures.
const LONGEST: Duration = Duration::from_secs(60);

/// How a channel ended, for the next one of its pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// After a while, or because a guest went.
    Well,
    /// It worked, and was closed soon: somebody turns vmloop off and on, loads
    /// the modules again, changes a policy.
    Short,
    /// It never worked.
    Failed,
}

#[derive(Clone, Copy)]
struct BackOff {
    failures: u32,
    until: Instant,
}

/// All pairs that wait, or waited and are not forgotten.
#[derive(Default)]
pub(super) struct BackOffs(HashMap<Pair, BackOff>);

/// What counts as failures of a pair in a row. Those of channels that worked make
/// it wait as long as a channel may be short-lived, no longer: nobody waits a
/// minute for having been quick, and a guest that closes each channel at once
/// troubles its peer no more often than one that keeps each until it counts as
/// well.
fn count(before: u32, ending: Ending) -> u32 {
    match ending {
        Ending::Well => 0,
        Ending::Short => (before + 1).min(3),
        Ending::Failed => before + 1,
    }
}

/// How long a pair with so many failures waits.
fn wait(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.saturating_sub(1).min(6)).min(LONGEST)
}

impl BackOffs {
    /// How long a pair must wait yet; None if it may have a channel.
    pub(super) fn left(&self, pair: Pair, now: Instant) -> Option<Duration> {
        let until = self.0.get(&pair)?.until;
        until.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// A channel of a pair is over. Says how long the pair waits, `least` at
    /// least, if it does.
    pub(super) fn ended(
        &mut self,
        pair: Pair,
        ending: Ending,
        least: Duration,
        now: Instant,
    ) -> Option<Duration> {
        let failures = count(self.0.get(&pair).map_or(0, |one| one.failures), ending);
        if failures == 0 {
            self.0.remove(&pair);
            return None;
        }
        let wait = wait(failures).max(least);
        self.0.insert(pair, BackOff { failures, until: now + wait });
        Some(wait)
    }

    /// A pair need not wait.
    pub(super) fn forget(&mut self, pair: Pair) {
        self.0.remove(&pair);
    }

    /// A guest is gone.
    pub(super) fn forget_guest(&mut self, id: u64) {
        self.0.retain(|pair, _| pair.0 != id && pair.1 != id);
    }

    /// Nobody need wait.
    pub(super) fn forget_all(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(ending: Ending) -> Vec<u64> {
        let mut failures = 0;
        let mut next = || {
            failures = count(failures, ending);
            wait(failures).as_secs()
        };
        (0..8).map(|_| next()).collect()
    }

    #[test]
    fn pairs_wait_as_long_as_their_channels_deserve() {
        assert_eq!(waits(Ending::Failed), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(waits(Ending::Short), [1, 2, 4, 4, 4, 4, 4, 4]);
        // One that works is not held responsible for those that did not.
        assert_eq!(count(7, Ending::Short), 3);
        assert_eq!(count(7, Ending::Well), 0);
    }
}
