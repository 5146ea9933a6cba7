// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What an earlier agent left: its guests are attached again, and then it is
//! decided which of their channels stay.

use std::collections::HashSet;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{debug, info, warn};
use vmloop_abi::shm;

use super::guests::{Guest, Phase};
use super::{Broker, Recovering};
use crate::machine::Key;
use crate::state::{self, Saved};

/// How long the agent waits for the guests of an earlier one to be attached
/// before it decides which channels to keep.
const RECOVERY: Duration = Duration::from_secs(30);
/// How long one may say nothing at all: a QEMU that stands still must not keep the
/// others from their peers, and from the policy. Its channels are lost.
const MUTE: Duration = Duration::from_secs(5);
/// How long one that does not answer is tried.
const TRY: Duration = Duration::from_secs(3600);
/// How long guests may take to say HELLO after that before their channels are
/// closed.
const RETURN: Duration = Duration::from_secs(30);
/// Stands for the first look at all machines among the guests of an earlier
/// agent that are waited for. No attachment has this number.
pub(super) const ALL_MACHINES: Key = 0;

impl Broker {
    /// Begins to attach to the guests of an earlier agent.
    pub(super) fn recover(&mut self) {
        let until = Instant::now() + RECOVERY;
        if self.capabilities.finds_all {
            self.recovering = Some(Recovering {
                waiting: HashSet::from([ALL_MACHINES]),
                mute: HashSet::new(),
                until,
                mute_until: until,
            });
            return;
        }
        let saved = match state::read(&self.state) {
            Ok(saved) => saved,
            Err(error) => {
                warn!(file = %self.state.display(), %error, "soft state");
                Vec::new()
            }
        };
        let mut waiting = HashSet::new();
        for guest in saved {
            let (reply, _) = oneshot::channel();
            let Saved { qmp, name } = guest.clone();
            if let Some(key) = self.attach(qmp, name, reply, Some(Instant::now() + TRY)) {
                waiting.insert(key);
                self.awaited.insert(key, guest);
            }
        }
        if !waiting.is_empty() {
            info!(guests = waiting.len(), "attaching to the guests of an earlier agent");
            let (mute, mute_until) = (waiting.clone(), Instant::now() + MUTE);
            self.recovering = Some(Recovering { waiting, mute, until, mute_until });
        }
    }

    /// A machine has answered.
    pub(super) fn answers(&mut self, key: Key) {
        if let Some(recovering) = &mut self.recovering {
            recovering.mute.remove(&key);
        }
    }

    /// The first look at all machines has found these.
    pub(super) fn recover_found(&mut self, attached: Vec<Key>) {
        if let Some(recovering) = &mut self.recovering
            && recovering.waiting.remove(&ALL_MACHINES)
        {
            recovering.waiting.extend(attached);
        }
    }

    /// Decides which channels stay, if all guests of an earlier agent are here,
    /// or will not come.
    pub(super) fn try_recovered(&mut self, now: Instant) {
        let is_over = |one: &Recovering| one.waiting.is_empty() || one.deadline() <= now;
        if self.recovering.as_ref().is_some_and(is_over) && self.have_links {
            self.recovered();
        }
    }

    fn recovered(&mut self) {
        for key in self.recovering.take().into_iter().flat_map(|one| one.waiting) {
            if let Some(guest) = self.awaited.get(&key) {
                warn!(socket = %guest.qmp.display(), "it does not answer: its channels are lost");
            }
        }
        let seen: Vec<state::Seen<'_>> = self
            .guests
            .in_order()
            .map(|(key, guest)| state::Seen {
                key,
                id: guest.machine.id,
                epoch: guest.machine.epoch,
                found: &guest.found,
            })
            .collect();
        let (kept, orphans) = state::match_channels(&seen);
        for (tag, a, b) in &kept {
            let key = self.make_channel(*tag, *a, *b, true);
            debug!(tag, channel = key, "kept");
        }
        for (key, found) in orphans {
            if let Some(guest) = self.guests.get_mut(key) {
                guest.orphans.insert(found.tag);
            }
            if let Some(guest) = self.guests.get(key) {
                self.remove_orphan(key, guest, &found);
            }
        }
        for (_, guest) in self.guests.iter_mut() {
            guest.found.clear();
            guest.go(Ok(()));
        }
        // Those that were to be detached meanwhile.
        let detaching =
            |(key, guest): (Key, &Guest)| (guest.phase == Phase::Detaching).then_some(key);
        for key in self.guests.in_order().filter_map(detaching).collect::<Vec<_>>() {
            self.close_all(key, shm::VMLOOP_CLOSE_DETACH);
            self.finish_detach(key);
        }
        info!(guests = self.guests.len(), channels = kept.len(), "recovered");
        self.return_by = Some(Instant::now() + RETURN);
        self.due.all();
    }

    /// Closes channels of guests that have not said HELLO to this agent in time.
    pub(super) fn end_return(&mut self, now: Instant) {
        if self.return_by.is_none_or(|by| by > now) {
            return;
        }
        self.return_by = None;
        // What addresses were kept of an earlier agent are not any more.
        self.due.all();
        let silent = self.guests.iter().filter(|(_, guest)| guest.hello.is_none());
        let silent: Vec<Key> = silent.map(|(key, _)| key).collect();
        for key in silent {
            self.part_all(key, shm::VMLOOP_CLOSE_PEER_GONE);
        }
    }
}
