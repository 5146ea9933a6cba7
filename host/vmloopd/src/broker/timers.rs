// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What happens because nothing else did in time.

use tokio::time::Instant;
use vmloop_abi::shm;
use vmloop_api::Problem;

use super::waiters::PATIENCE;
use super::{Broker, Recovering};
use crate::machine::Key;

impl Broker {
    /// When to look next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [
            self.collecting.as_ref().map(|collecting| collecting.deadline),
            self.recovering.as_ref().map(Recovering::deadline),
            self.return_by,
            self.waiters.deadline(),
            self.guests.iter().filter_map(|(_, guest)| guest.leaving).min(),
            self.guests.iter().filter_map(|(_, guest)| guest.arrived).min(),
            self.guests.iter().filter_map(|(_, guest)| guest.later.at).min(),
            self.channels.iter().filter_map(|(_, channel)| channel.hello_by).min(),
            self.channels.iter().filter_map(|(_, channel)| self.row_ends(channel)).min(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what is due.
    pub(super) fn deadlines(&mut self, now: Instant) {
        self.try_recovered(now);
        for key in self.waiters.late(now) {
            self.give_up(key);
        }
        self.hear_later(now);
        self.silent_arrivals(now);
        self.end_return(now);
        self.end_rows(now);
        self.silent_channels(now);
        self.try_collected(now);
    }

    /// Clients have waited for a guest for too long.
    fn give_up(&mut self, key: Key) {
        let secs = PATIENCE.as_secs();
        self.call_off(key, &format!("not done after {secs} s"));
        let text = format!("not done after {secs} s; the agent goes on");
        let hint =
            "a guest that is stopped, or has not booted yet, keeps its devices; see vmloop ls";
        self.waiters.too_late(key, &Problem::new("slow", text).hint(hint));
    }

    /// Guests that were to leave and stayed; guests that arrived and say nothing.
    fn silent_arrivals(&mut self, now: Instant) {
        let mut mute = Vec::new();
        for (key, guest) in self.guests.iter_mut() {
            if guest.leaving.take_if(|until| *until <= now).is_some() {
                self.dirty = true;
            }
            if guest.arrived.take_if(|until| *until <= now).is_some() {
                mute.push(key);
                self.dirty = true;
            }
        }
        // What was begun for them while they were on their way.
        for key in mute {
            self.part_all(key, shm::VMLOOP_CLOSE_PEER_GONE);
        }
    }

    /// Channels that were up for long enough to end their pair's row of breaks.
    fn end_rows(&mut self, now: Instant) {
        let steady: Vec<_> = self
            .channels
            .iter()
            .filter(|(_, channel)| self.row_ends(channel).is_some_and(|at| at <= now))
            .map(|(_, channel)| (channel.sides[0].id, channel.sides[1].id))
            .collect();
        for pair in steady {
            self.breaks.forget(pair);
        }
    }

    /// Channels that were begun for a guest that has just arrived, and that does
    /// not speak.
    fn silent_channels(&mut self, now: Instant) {
        let mut silent = Vec::new();
        for (key, channel) in self.channels.iter_mut() {
            if channel.sides.iter().all(|side| self.guests.speaks(side.guest)) {
                channel.hello_by = None;
            } else if channel.hello_by.take_if(|by| *by <= now).is_some() {
                silent.push(key);
            }
        }
        for key in silent {
            self.part(key, shm::VMLOOP_CLOSE_PEER_GONE);
        }
    }
}
