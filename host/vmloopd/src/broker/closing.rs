// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The end of channels, and what it means for the next one of the pair.

use std::time::Duration;

use tokio::time::Instant;
use vmloop_abi::message::{AgentMessage, ChannelState};
use vmloop_abi::shm;
use vmloop_api::{self as api, EventKind};

use super::Broker;
use super::back_off::Ending;
use super::channels::{Channel, Stage};
use super::due::Timed;
use crate::breaks::Pair;
use crate::channel::Command;
use crate::end::Medium;
use crate::event::ChannelKey;
use crate::machine::Key;

/// A pair whose channel lived shorter than this has to wait for the next.
const SHORT_LIFE: Duration = Duration::from_secs(5);
/// Wait after a lack of slots.
pub(super) const SLOTS_RETRY: Duration = Duration::from_secs(30);

/// Why a channel is closed, for people and programs.
pub(super) fn close_reason(reason: u32) -> &'static str {
    match reason {
        shm::VMLOOP_CLOSE_IDLE => "idle",
        shm::VMLOOP_CLOSE_POLICY => "policy",
        shm::VMLOOP_CLOSE_PEER_GONE => "peer gone",
        shm::VMLOOP_CLOSE_MIGRATION => "migration",
        shm::VMLOOP_CLOSE_DETACH => "detach",
        _ => "?",
    }
}

impl Broker {
    pub(super) fn close(&mut self, key: ChannelKey, reason: u32) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        if channel.reason.is_some() {
            return;
        }
        channel.reason = Some(reason);
        channel.up_until = Some(Instant::now());
        // While it is being plugged its task hears of this afterwards.
        if channel.stage == Stage::Open {
            channel.stage = Stage::Closing;
        }
        channel.tell(Command::Close);
        for (index, side) in channel.sides.iter().enumerate() {
            match self.guests.get(side.guest) {
                Some(guest) if guest.hello.is_some() => {
                    guest.send(AgentMessage::Close { tag: channel.tag, reason });
                }
                // Nobody to wait for.
                _ => channel.tell(Command::Closed(index)),
            }
        }
        let (a, b, tag) = channel.label();
        self.note(EventKind::ChannelClosing, &a, &b, tag, close_reason(reason));
    }

    /// Closes all channels of a guest that is alone responsible for that.
    pub(super) fn close_all(&mut self, guest: Key, reason: u32) {
        for key in self.channels.of(guest) {
            self.close(key, reason);
        }
    }

    /// The same, of a guest that goes, or went and may be back already: if they
    /// lived short, that is no failure.
    pub(super) fn part_all(&mut self, guest: Key, reason: u32) {
        for key in self.channels.of(guest) {
            self.part(key, reason);
        }
    }

    /// The same with one channel.
    pub(super) fn part(&mut self, key: ChannelKey, reason: u32) {
        if let Some(channel) = self.channels.get_mut(key) {
            channel.parted = true;
        }
        self.close(key, reason);
    }

    /// A guest has let go of a channel.
    pub(super) fn side_closed(&self, key: ChannelKey, guest: Key) {
        let Some(channel) = self.channels.get(key) else { return };
        if let Some(side) = channel.side_of(guest) {
            channel.tell(Command::Closed(side));
        }
    }

    /// Nobody is left in a guest who could let go of its channels.
    pub(super) fn all_closed(&self, guest: Key) {
        for key in self.channels.of(guest) {
            self.side_closed(key, guest);
            let Some(channel) = self.channels.get(key) else { continue };
            if let Some(side) = channel.side_of(guest) {
                channel.tell(Command::Away(side));
            }
        }
    }

    /// A channel without its device would never come up, and nobody else would
    /// say so: a guest that had not found the device yet knows of no channel.
    pub(super) fn unplugged(&mut self, guest: Key, tag: u32) {
        let Some(key) = self.channels.by_tag(guest, tag) else { return };
        if self.channels.get(key).is_some_and(|one| one.stage != Stage::Unplugging) {
            self.close(key, shm::VMLOOP_CLOSE_PEER_GONE);
            self.side_closed(key, guest);
        }
    }

    /// A guest says how a channel stands.
    pub(super) fn state(&mut self, key: Key, tag: u32, state: ChannelState) {
        let Some(channel_key) = self.channels.by_tag(key, tag) else { return };
        let Some(channel) = self.channels.get_mut(channel_key) else { return };
        let Some(side) = channel.side_of(key) else { return };
        let was = channel.state();
        channel.sides[side].state = Some(state);
        let (one, two) = (channel.sides[side].name.clone(), channel.sides[1 - side].name.clone());
        let both_idle = channel.sides.iter().all(|side| side.state == Some(ChannelState::Idle));
        let is_up = was != api::ChannelState::Up && channel.state() == api::ChannelState::Up;
        if is_up {
            channel.up_since.get_or_insert_with(Instant::now);
        }
        if let Some(when) = self.channels.get(channel_key).and_then(|one| self.row_ends(one)) {
            self.deadlines.at(when, Timed::Channel(channel_key));
        }
        let Some(channel) = self.channels.get_mut(channel_key) else { return };
        match state {
            ChannelState::Up if is_up => self.note(EventKind::ChannelUp, &one, &two, tag, ""),
            ChannelState::Up => {}
            ChannelState::Idle => {
                if both_idle {
                    self.close(channel_key, shm::VMLOOP_CLOSE_IDLE);
                }
            }
            ChannelState::Closed => {
                self.close(channel_key, shm::VMLOOP_CLOSE_PEER_GONE);
                self.side_closed(channel_key, key);
            }
            ChannelState::Broken => {
                channel.broken_by.get_or_insert(side);
                self.note(EventKind::ChannelBroken, &one, &two, tag, "the peer broke the protocol");
                self.close(channel_key, shm::VMLOOP_CLOSE_PEER_GONE);
                // Memory of a guest's is its own, or mapped: it says CLOSED yet.
                let guest = self.guests.get(key);
                if guest.is_some_and(|guest| guest.handle.place.medium() != Medium::Guest) {
                    self.side_closed(channel_key, key);
                }
            }
        }
    }

    /// A channel is gone.
    pub(super) fn gone(&mut self, channel: &Channel) {
        let [a, b] = &channel.sides;
        let why = channel.reason.map_or("failed", close_reason);
        self.note(EventKind::ChannelClosed, &a.name, &b.name, channel.tag, why);
        if channel.failure.is_none() {
            self.post.counters.channels_closed.add(1);
        }
        let pair = (a.id, b.id);
        let now = Instant::now();
        if let Some(since) = channel.up_since {
            let until = channel.up_until.unwrap_or(now);
            self.breaks.was_up(pair, until.saturating_duration_since(since));
        }
        // Of a guest that is gone nobody would forget it.
        let known = channel.sides.iter().all(|side| self.guests.get(side.guest).is_some());
        if let Some(side) = channel.broken_by.filter(|_| known) {
            self.broke(pair, channel, side);
        }
        let ending = self.ending(channel);
        let least = match channel.failure {
            Some((shm::VMLOOP_REFUSED_SLOTS, _)) => SLOTS_RETRY,
            _ => Duration::ZERO,
        };
        if let Some(wait) = self.back_off.ended(pair, ending, least, now)
            && let Some((reason, _)) = channel.failure
        {
            self.refuse_wanting(channel, reason, wait);
        }
        self.due.some(channel.sides.each_ref().map(|side| side.guest));
    }

    /// How a channel ended that is gone.
    fn ending(&self, channel: &Channel) -> Ending {
        // A guest that goes and comes back is welcome at once.
        let is_there = |guest| self.guests.get(guest).is_some();
        let both_there = channel.sides.iter().all(|side| is_there(side.guest));
        let both_speak = channel.sides.iter().all(|side| self.guests.speaks(side.guest));
        if channel.failure.is_some() {
            Ending::Failed
        } else if channel.parted
            || !both_there
            || channel.adopted
            || channel.since.elapsed() >= SHORT_LIFE
            || channel.broken_by.is_some()
        {
            Ending::Well
        } else if channel.up_since.is_some() || !both_speak {
            Ending::Short
        } else {
            Ending::Failed
        }
    }

    /// Those who wanted a channel that failed hear when to ask again.
    fn refuse_wanting(&self, channel: &Channel, reason: u32, wait: Duration) {
        for key in &channel.wanted_by {
            let Some(guest) = self.guests.get(*key) else { continue };
            let peer = channel.sides.iter().find(|side| side.guest != *key);
            guest.send(AgentMessage::Refused {
                peer: peer.map_or(0, |side| side.id),
                reason,
                retry_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
            });
            self.post.counters.refused.add(1);
        }
    }

    /// A channel of a pair broke: the pair waits, or is left to the operator.
    fn broke(&mut self, pair: Pair, channel: &Channel, side: usize) {
        let [a, b] = channel.sides.each_ref().map(|side| side.name.clone());
        let why = format!("reported by {}", channel.sides[side].name);
        let names = [a.clone(), b.clone()];
        let (count, wait) = self.breaks.add(pair, names, why.clone(), Instant::now());
        self.post.counters.channels_broken.add(1);
        let next = match wait {
            Some(wait) => format!("another channel after {} s", wait.as_secs()),
            None => format!("left to the operator: vmloop reset {a} {b}"),
        };
        self.note(EventKind::PairBroken, &a, &b, 0, &format!("{why}, {count} in a row; {next}"));
    }

    /// When a channel will have been up for long enough to end its pair's row
    /// of breaks.
    pub(super) fn row_ends(&self, channel: &Channel) -> Option<Instant> {
        let [a, b] = &channel.sides;
        self.breaks.ends(
            (a.id, b.id),
            channel.up_since.filter(|_| channel.state() == api::ChannelState::Up)?,
        )
    }
}
