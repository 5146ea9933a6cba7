// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is to be done when all events of a burst were heard, or later: whose
//! directories may be other ones now, and what has a deadline.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::event::ChannelKey;
use crate::machine::Key;

/// All directories are made anew for at most one part in so many of the time: on a
/// host with many guests that come and go, those who come next wait a little.
const SHARE: u32 = 4;
/// How long the rest of what a guest says at its beginning is waited for: modules say
/// their addresses right after HELLO.
const GATHER: Duration = Duration::from_millis(3);
/// How long they wait at most.
const LONGEST: Duration = Duration::from_millis(100);

/// Whose directories may be other ones than they were told.
#[derive(Default)]
pub(super) struct Due {
    /// What they are made of may have changed.
    is_old: bool,
    all: bool,
    some: HashSet<Key>,
    not_before: Option<Instant>,
    /// With guests that gather: how long everybody waits for them at most.
    gathered: Option<Instant>,
}

impl Due {
    /// Everybody's, and what they are made of.
    pub(super) fn all(&mut self) {
        self.is_old = true;
        self.all = true;
    }

    /// Those of some guests, because of their channels.
    pub(super) fn some(&mut self, guests: impl IntoIterator<Item = Key>) {
        self.some.extend(guests);
    }

    /// Whether what they are made of may have changed since this was asked before.
    pub(super) fn take_old(&mut self) -> bool {
        std::mem::take(&mut self.is_old)
    }

    /// Whether everybody's are to be made now.
    pub(super) fn take_all(&mut self, now: Instant) -> bool {
        let take = self.all && self.not_before.is_none_or(|when| when <= now);
        self.all &= !take;
        take
    }

    /// Guests whose directories are to be made now.
    pub(super) fn take_some(&mut self) -> HashSet<Key> {
        std::mem::take(&mut self.some)
    }

    /// More is about to be said that belongs to it. Where guests begin one after the
    /// other, the first of them does not wait for the last.
    pub(super) fn gather(&mut self, now: Instant) {
        let then = (now + GATHER).min(*self.gathered.get_or_insert(now + LONGEST));
        self.not_before = Some(self.not_before.map_or(then, |when| when.max(then)));
    }

    /// Everybody's were made, which took so long.
    pub(super) fn made(&mut self, now: Instant, took: Duration) {
        self.gathered = None;
        self.not_before = Some(now + (took * SHARE).min(LONGEST));
    }

    /// When to look again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match (self.all, self.some.is_empty()) {
            (_, false) => Some(Instant::now()),
            (true, true) => Some(self.not_before.unwrap_or_else(Instant::now)),
            (false, true) => None,
        }
    }
}

/// Something that has a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timed {
    /// A guest: it was to leave, has arrived, or said something too soon.
    Guest(Key),
    /// A channel: a side has not spoken yet, or it is up after breaks.
    Channel(ChannelKey),
}

/// When to look at guests and channels again. A deadline that does not hold any more
/// stays in it until then: who looks finds that nothing is due.
#[derive(Default)]
pub(super) struct Deadlines(BTreeSet<(Instant, Timed)>);

impl Deadlines {
    /// Looks at it then.
    pub(super) fn at(&mut self, when: Instant, what: Timed) {
        self.0.insert((when, what));
    }

    /// When the first of them is due.
    pub(super) fn first(&self) -> Option<Instant> {
        self.0.first().map(|(when, _)| *when)
    }

    /// The next that is due.
    pub(super) fn take(&mut self, now: Instant) -> Option<Timed> {
        let first = self.0.first().filter(|(when, _)| *when <= now).copied()?;
        self.0.remove(&first);
        Some(first.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybodys_directories_take_a_part_of_the_time() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let mut due = Due::default();
        assert!(!due.take_all(now) && !due.take_old() && due.deadline().is_none());
        due.all();
        due.some([1]);
        assert!(due.take_old() && !due.take_old());
        assert!(due.take_all(now) && !due.take_all(now));
        assert_eq!(due.take_some(), HashSet::from([1]));
        due.made(now, ms(5));
        due.all();
        assert!(!due.take_all(now + ms(19)));
        assert_eq!(due.deadline(), Some(now + ms(20)));
        // Those of single guests do not wait for that.
        due.some([1, 2, 1]);
        assert_eq!(due.take_some(), HashSet::from([1, 2]));
        assert!(due.take_all(now + ms(20)));
        due.made(now, ms(5000));
        due.all();
        assert!(due.take_all(now + LONGEST));
        due.all();
        due.gather(now + LONGEST);
        assert!(!due.take_all(now + LONGEST + ms(2)) && due.take_all(now + LONGEST + ms(3)));
    }

    #[test]
    fn guests_that_begin_one_after_the_other_hold_nobody_up() {
        let now = Instant::now();
        let mut due = Due::default();
        due.all();
        for ms in 0..1000 {
            due.gather(now + Duration::from_millis(ms));
        }
        assert!(!due.take_all(now + LONGEST - GATHER) && due.take_all(now + LONGEST));
        due.made(now + LONGEST, Duration::ZERO);
        due.all();
        due.gather(now + LONGEST);
        assert_eq!(due.deadline(), Some(now + LONGEST + GATHER));
    }

    #[test]
    fn deadlines_in_order() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let mut deadlines = Deadlines::default();
        deadlines.at(at(20), Timed::Channel(1));
        deadlines.at(at(10), Timed::Guest(1));
        deadlines.at(at(10), Timed::Guest(1));
        assert_eq!(deadlines.first(), Some(at(10)));
        assert_eq!(deadlines.take(at(9)), None);
        assert_eq!(deadlines.take(at(20)), Some(Timed::Guest(1)));
        assert_eq!(deadlines.take(at(20)), Some(Timed::Channel(1)));
        assert_eq!((deadlines.take(at(99)), deadlines.first()), (None, None));
    }
}
