// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Clients of the API that wait for something to become of a guest.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use vmloop_api::Problem;

use crate::answer::{Answer, Reply, answer};
use crate::machine::Key;

/// How long a client waits for a guest to be attached or detached.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Who waits for a guest to be prepared.
pub(super) struct Waiter {
    /// where to migrate it then; None if somebody else does
    pub(super) uri: Option<String>,
    pub(super) reply: Reply,
}

/// All who wait.
#[derive(Default)]
pub(super) struct Waiters {
    attaching: HashMap<Key, Reply>,
    detaching: HashMap<Key, Vec<Reply>>,
    preparing: HashMap<Key, Vec<Waiter>>,
    resuming: HashMap<Key, Vec<Reply>>,
    /// Until when.
    patience: HashMap<Key, Instant>,
}

impl Waiters {
    fn waits(&mut self, key: Key) {
        self.patience.insert(key, Instant::now() + PATIENCE);
    }

    /// For a guest to be attached.
    pub(super) fn attach(&mut self, key: Key, reply: Reply) {
        self.attaching.insert(key, reply);
        self.waits(key);
    }

    /// For a guest to be detached.
    pub(super) fn detach(&mut self, key: Key, reply: Reply) {
        self.detaching.entry(key).or_default().push(reply);
        self.waits(key);
    }

    /// For a guest to be prepared.
    pub(super) fn prepare(&mut self, key: Key, waiter: Waiter) {
        self.preparing.entry(key).or_default().push(waiter);
        self.waits(key);
    }

    /// For a guest to take part again.
    pub(super) fn resume(&mut self, key: Key, reply: Reply) {
        self.resuming.entry(key).or_default().push(reply);
        self.waits(key);
    }

    /// What they wait for has come: nobody is told that it takes long.
    pub(super) fn settle(&mut self, key: Key) {
        self.patience.remove(&key);
    }

    /// When the first of them has waited for too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.patience.values().min().copied()
    }

    /// Guests that were waited for too long.
    pub(super) fn late(&mut self, now: Instant) -> Vec<Key> {
        let late = self.patience.iter().filter(|(_, until)| **until <= now);
        let late: Vec<Key> = late.map(|(key, _)| *key).collect();
        self.patience.retain(|key, _| !late.contains(key));
        late
    }

    /// Whoever waits for a guest to be attached.
    pub(super) fn take_attaching(&mut self, key: Key) -> Option<Reply> {
        self.attaching.remove(&key)
    }

    /// Whoever waits for a guest to be prepared.
    pub(super) fn take_preparing(&mut self, key: Key) -> Vec<Waiter> {
        self.preparing.remove(&key).unwrap_or_default()
    }

    /// A guest is here, and takes part.
    pub(super) fn here(&mut self, key: Key, guest: &Answer) {
        self.settle(key);
        let resuming = self.resuming.remove(&key).unwrap_or_default();
        for reply in resuming.into_iter().chain(self.attaching.remove(&key)) {
            answer(reply, Ok(guest.clone()));
        }
    }

    /// A guest is detached, or gone.
    pub(super) fn detached(&mut self, key: Key) {
        for reply in self.detaching.remove(&key).unwrap_or_default() {
            answer(reply, Ok(Answer::Nothing));
        }
    }

    /// A guest is not prepared after all.
    pub(super) fn not_prepared(&mut self, key: Key, problem: &Problem) {
        for waiter in self.take_preparing(key) {
            answer(waiter.reply, Err(problem.clone()));
        }
    }

    /// A guest does not take part again.
    pub(super) fn not_resumed(&mut self, key: Key, problem: &Problem) {
        for reply in self.resuming.remove(&key).unwrap_or_default() {
            answer(reply, Err(problem.clone()));
        }
    }

    /// It takes too long, whatever it is.
    pub(super) fn too_late(&mut self, key: Key, problem: &Problem) {
        let mut replies = self.detaching.remove(&key).unwrap_or_default();
        replies.extend(self.resuming.remove(&key).unwrap_or_default());
        replies.extend(self.attaching.remove(&key));
        for reply in replies {
            answer(reply, Err(problem.clone()));
        }
    }
}
