// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pairs of guests whose channel broke, and when each may have another.
//!
//! A channel is broken when one guest says that the other broke the protocol.
//! The pair gets another after a second, then after twice as long for each
//! further break. A pair that broke [`MOST`] times in a row is left to the
//! operator. Breaks are in a row until channels of the pair have been up for
//! [`STEADY`] in all since the last of them.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use vmloop_api as api;

/// Identities of two guests, the lower one first.
pub type Pair = (u64, u64);

/// Wait after the first break.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait; also how often a pair that is left to the operator may ask.
pub const LONGEST: Duration = Duration::from_secs(300);
/// A pair that broke so often in a row is left to the operator.
pub const MOST: u32 = 8;
/// Channels that were up for so long since the last break end the row.
pub const STEADY: Duration = Duration::from_secs(600);

struct Broken {
    names: [String; 2],
    why: String,
    in_a_row: u32,
    /// When the pair may ask again; None: when the operator lets it.
    next: Option<Instant>,
    /// For how long channels of the pair were up since the last break.
    up: Duration,
}

/// All pairs with breaks in a row.
#[derive(Default)]
pub struct Breaks(HashMap<Pair, Broken>);

/// How long a pair waits after so many breaks in a row; None: for the operator.
fn wait(in_a_row: u32) -> Option<Duration> {
    (in_a_row < MOST).then(|| FIRST.saturating_mul(1 << in_a_row.saturating_sub(1)).min(LONGEST))
}

impl Breaks {
    /// A channel of a pair broke. Says how often in a row that was, and how
    /// long the pair waits now; None: for the operator.
    pub fn add(
        &mut self,
        pair: Pair,
        names: [String; 2],
        why: String,
        now: Instant,
    ) -> (u32, Option<Duration>) {
        let in_a_row = self.0.get(&pair).map_or(0, |one| one.in_a_row) + 1;
        let wait = wait(in_a_row);
        let next = wait.map(|wait| now + wait);
        self.0.insert(pair, Broken { names, why, in_a_row, next, up: Duration::ZERO });
        (in_a_row, wait)
    }

    /// How long a pair must wait yet; None if it may have a channel.
    pub fn left(&self, pair: Pair, now: Instant) -> Option<Duration> {
        match self.0.get(&pair)?.next {
            None => Some(LONGEST),
            Some(next) => next.checked_duration_since(now).filter(|left| !left.is_zero()),
        }
    }

    /// When a channel that is up since then will have ended the row.
    pub fn ends(&self, pair: Pair, up_since: Instant) -> Option<Instant> {
        self.0.get(&pair).map(|one| up_since + STEADY.saturating_sub(one.up))
    }

    /// A channel of the pair was up for so long.
    pub fn was_up(&mut self, pair: Pair, time: Duration) {
        if let Some(one) = self.0.get_mut(&pair) {
            one.up = one.up.saturating_add(time);
            if one.up >= STEADY {
                self.0.remove(&pair);
            }
        }
    }

    /// Forgets the breaks of a pair; false if there were none.
    pub fn forget(&mut self, pair: Pair) -> bool {
        self.0.remove(&pair).is_some()
    }

    /// A guest is gone.
    pub fn forget_guest(&mut self, id: u64) {
        self.0.retain(|pair, _| pair.0 != id && pair.1 != id);
    }

    /// Forgets all of them. Returns the pairs.
    pub fn forget_all(&mut self) -> Vec<Pair> {
        self.0.drain().map(|(pair, _)| pair).collect()
    }

    /// For `vmloop ls`, by name.
    pub fn list(&self, now: Instant) -> Vec<api::Broken> {
        let mut list: Vec<_> = self
            .0
            .values()
            .map(|one| api::Broken {
                a: one.names[0].clone(),
                b: one.names[1].clone(),
                breaks: one.in_a_row,
                reason: one.why.clone(),
                operator: one.next.is_none(),
                next_ms: one.next.map_or(0, |next| {
                    next.saturating_duration_since(now).as_millis().try_into().unwrap_or(u64::MAX)
                }),
            })
            .collect();
        list.sort_by(|a, b| (&a.a, &a.b).cmp(&(&b.a, &b.b)));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: Pair = (1, 2);

    fn add(breaks: &mut Breaks, now: Instant) -> (u32, Option<u64>) {
        let names = ["g1".to_owned(), "g2".to_owned()];
        let (count, wait) = breaks.add(PAIR, names, "reported by g1".into(), now);
        (count, wait.map(|wait| wait.as_secs()))
    }

    #[test]
    fn waits_double_and_then_the_operator_decides() {
        let (mut breaks, now) = (Breaks::default(), Instant::now());
        assert_eq!(breaks.left(PAIR, now), None);
        for (count, secs) in (1..).zip([1, 2, 4, 8, 16, 32, 64]) {
            assert_eq!(add(&mut breaks, now), (count, Some(secs)));
            let wait = Duration::from_secs(secs);
            assert_eq!(breaks.left(PAIR, now), Some(wait));
            assert_eq!(breaks.left(PAIR, now + wait), None);
        }
        assert_eq!(add(&mut breaks, now), (MOST, None));
        assert_eq!(breaks.left(PAIR, now + STEADY), Some(LONGEST));
        assert!(breaks.list(now)[0].operator);
        assert!(breaks.forget(PAIR) && !breaks.forget(PAIR));
        assert_eq!(breaks.left(PAIR, now), None);
        assert!((1..MOST).all(|count| wait(count).is_some_and(|wait| wait <= LONGEST)));
    }

    #[test]
    fn channels_that_stay_up_end_the_row() {
        let (mut breaks, now) = (Breaks::default(), Instant::now());
        add(&mut breaks, now);
        add(&mut breaks, now);
        // In pieces, as channels are closed when they are idle.
        breaks.was_up(PAIR, STEADY / 2);
        assert_eq!(breaks.ends(PAIR, now), Some(now + STEADY / 2));
        // A break in between begins anew.
        assert_eq!(add(&mut breaks, now), (3, Some(4)));
        breaks.was_up(PAIR, STEADY / 2);
        assert_eq!(breaks.list(now).len(), 1);
        breaks.was_up(PAIR, STEADY / 2);
        assert_eq!((breaks.list(now).len(), breaks.ends(PAIR, now)), (0, None));
        assert_eq!(add(&mut breaks, now), (1, Some(1)));
    }

    #[test]
    fn a_guest_that_is_gone() {
        let (mut breaks, now) = (Breaks::default(), Instant::now());
        add(&mut breaks, now);
        breaks.forget_guest(3);
        assert_eq!(breaks.list(now).len(), 1);
        breaks.forget_guest(2);
        assert_eq!(breaks.list(now).len(), 0);
    }
}
