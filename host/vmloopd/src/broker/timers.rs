// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What happens because nothing else did in time.

use tokio::time::Instant;
use vmloop_abi::shm;
use vmloop_api::Problem;

use super::due::Timed;
use super::waiters::PATIENCE;
use super::{Broker, Recovering};
use crate::event::ChannelKey;
use crate::machine::Key;

impl Broker {
    /// When to look next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [
            self.collecting.as_ref().map(|collecting| collecting.deadline),
            self.recovering.as_ref().map(Recovering::deadline),
            self.return_by,
            self.waiters.deadline(),
            self.deadlines.first(),
            self.due.deadline(),
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
        self.end_return(now);
        while let Some(what) = self.deadlines.take(now) {
            match what {
                Timed::Guest(key) => {
                    self.hear_later(key, now);
                    self.silent_arrival(key, now);
                }
                Timed::Channel(key) => {
                    self.end_row(key, now);
                    self.silent_channel(key, now);
                }
            }
        }
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

    /// A guest that was to leave and stayed; or that arrived and says nothing.
    fn silent_arrival(&mut self, key: Key, now: Instant) {
        let Some(guest) = self.guests.get_mut(key) else { return };
        if guest.leaving.take_if(|until| *until <= now).is_some() {
            self.due.all();
        }
        if guest.arrived.take_if(|until| *until <= now).is_some() {
            self.due.all();
            // What was begun for it while it was on its way.
            self.part_all(key, shm::VMLOOP_CLOSE_PEER_GONE);
        }
    }

    /// A channel that was up for long enough to end its pair's row of breaks.
    fn end_row(&mut self, key: ChannelKey, now: Instant) {
        let Some(channel) = self.channels.get(key) else { return };
        if self.row_ends(channel).is_some_and(|at| at <= now) {
            self.breaks.forget((channel.sides[0].id, channel.sides[1].id));
        }
    }

    /// A channel that was begun for a guest that has just arrived, and that does not
    /// speak.
    fn silent_channel(&mut self, key: ChannelKey, now: Instant) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        if channel.sides.iter().all(|side| self.guests.speaks(side.guest)) {
            channel.hello_by = None;
        } else if channel.hello_by.take_if(|by| *by <= now).is_some() {
            self.part(key, shm::VMLOOP_CLOSE_PEER_GONE);
        }
    }
}
