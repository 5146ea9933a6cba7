// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Channels: those that are there, from the first step to the last.

use std::collections::HashMap;

use tokio::time::Instant;
use vmloop_abi::lanes::VMLOOP_WINDOWS_MAX;
use vmloop_abi::memory::{Layout, channel_size};
use vmloop_abi::message::{self, ChannelState, WindowName, WindowState};
use vmloop_abi::shm;
use vmloop_api as api;

use crate::channel::Command;
use crate::end::WindowId;
use crate::event::ChannelKey;
use crate::machine::Key;
use crate::mailbox;

/// How far a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Plugging,
    Open,
    /// CLOSE was sent; the tag is still in the directories.
    Closing,
    Unplugging,
}

/// One side of a channel.
pub(super) struct ChannelSide {
    pub(super) guest: Key,
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) state: Option<ChannelState>,
    pub(super) gone: bool,
    pub(super) stats: Option<Box<(u32, message::Counters)>>,
}

/// A window of a channel, made, in the making, or on its way out.
pub(super) struct Window {
    pub(super) id: WindowId,
    /// Bytes that it takes.
    pub(super) size: u64,
    /// Whether the guests have an end of it, or are to have one.
    pub(super) ends: [bool; 2],
}

/// A channel.
pub(super) struct Channel {
    pub(super) tag: u32,
    pub(super) sides: [ChannelSide; 2],
    pub(super) stage: Stage,
    pub(super) stuck: bool,
    pub(super) reason: Option<u32>,
    pub(super) failure: Option<(u32, String)>,
    pub(super) wanted_by: Vec<Key>,
    pub(super) ring_size: u32,
    /// Doorbells of each side; 0 of one of an earlier agent, or that guests make.
    pub(super) bells: u32,
    /// What is in its memory; None of one of an earlier agent.
    pub(super) layout: Option<Layout>,
    pub(super) since: Instant,
    pub(super) adopted: bool,
    /// When both sides used it first.
    pub(super) up_since: Option<Instant>,
    /// When it was told to end: a guest that keeps its device is not up by that.
    pub(super) up_until: Option<Instant>,
    /// Side that said that the other broke the protocol.
    pub(super) broken_by: Option<usize>,
    /// A guest goes, or went and may be back already: if it lived short, that
    /// is no failure.
    pub(super) parted: bool,
    /// A side has just arrived: until when it may say HELLO.
    pub(super) hello_by: Option<Instant>,
    pub(super) windows: Vec<Window>,
    /// Windows that guests have asked for before the channel is open.
    pub(super) early: Vec<(Key, WindowName, u64)>,
    pub(super) commands: mailbox::Sender<Command>,
}

impl Channel {
    /// Bytes that it may take. What ring an earlier agent gave it is not known:
    /// `otherwise` then.
    fn memory(&self, otherwise: u32) -> u64 {
        channel_size(if self.ring_size == 0 { otherwise } else { self.ring_size })
            + self.windows.iter().map(|window| window.size).sum::<u64>()
    }

    /// What a guest says of a window before the channel is open. False: it wants more than a side
    /// may have, or the same twice.
    pub(super) fn early(&mut self, guest: Key, name: WindowName, state: WindowState) -> bool {
        let is_it = |one: &(Key, WindowName, u64)| (one.0, one.1) == (guest, name);
        match state {
            WindowState::Wanted(size) => {
                let count = self.early.iter().filter(|one| one.0 == guest).count();
                if count >= VMLOOP_WINDOWS_MAX as usize || self.early.iter().any(is_it) {
                    return false;
                }
                self.early.push((guest, name, size));
            }
            WindowState::Gone => self.early.retain(|one| !is_it(one)),
            WindowState::Here => {}
        }
        true
    }

    /// A guest has asked for it.
    pub(super) fn is_wanted_by(&mut self, guest: Key) {
        if !self.wanted_by.contains(&guest) {
            self.wanted_by.push(guest);
        }
    }

    pub(super) fn side_of(&self, guest: Key) -> Option<usize> {
        self.sides.iter().position(|side| side.guest == guest)
    }

    /// Whether a guest has an end of it, and not only had one.
    fn has_end(&self, guest: Key) -> bool {
        self.side_of(guest).is_some_and(|side| !self.sides[side].gone)
    }

    /// Two guests keep what they must not have any more.
    pub(super) fn is_revoked(&self) -> bool {
        self.stuck
            && self.reason == Some(shm::VMLOOP_CLOSE_POLICY)
            && self.sides.iter().all(|side| !side.gone)
    }

    pub(super) fn state(&self) -> api::ChannelState {
        match self.stage {
            _ if self.is_revoked() => api::ChannelState::Revoked,
            Stage::Plugging => api::ChannelState::Plugging,
            Stage::Open
                if self.sides.iter().all(|side| {
                    matches!(side.state, Some(ChannelState::Up | ChannelState::Idle))
                }) =>
            {
                api::ChannelState::Up
            }
            Stage::Open => api::ChannelState::Open,
            _ if self.stuck => api::ChannelState::Stuck,
            Stage::Closing | Stage::Unplugging => api::ChannelState::Closing,
        }
    }

    /// Tells its task.
    pub(super) fn tell(&self, command: Command) {
        self.commands.send(command);
    }

    /// Names of its guests, and its tag.
    pub(super) fn label(&self) -> (String, String, u32) {
        (self.sides[0].name.clone(), self.sides[1].name.clone(), self.tag)
    }
}

/// All channels.
#[derive(Default)]
pub(super) struct Channels {
    all: HashMap<ChannelKey, Box<Channel>>,
    /// of each guest
    of: HashMap<Key, Vec<ChannelKey>>,
}

impl Channels {
    pub(super) fn get(&self, key: ChannelKey) -> Option<&Channel> {
        self.all.get(&key).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, key: ChannelKey) -> Option<&mut Channel> {
        self.all.get_mut(&key).map(Box::as_mut)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Bytes that the rings of all may take; `otherwise` for a ring that is not known.
    pub(super) fn memory(&self, otherwise: u32) -> u64 {
        self.all.values().map(|channel| channel.memory(otherwise)).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ChannelKey, &Channel)> {
        self.all.iter().map(|(key, channel)| (*key, &**channel))
    }

    pub(super) fn insert(&mut self, key: ChannelKey, channel: Channel) {
        for side in &channel.sides {
            self.of.entry(side.guest).or_default().push(key);
        }
        self.all.insert(key, Box::new(channel));
    }

    pub(super) fn remove(&mut self, key: ChannelKey) -> Option<Box<Channel>> {
        let channel = self.all.remove(&key)?;
        for side in &channel.sides {
            if let Some(list) = self.of.get_mut(&side.guest) {
                list.retain(|other| *other != key);
                if list.is_empty() {
                    self.of.remove(&side.guest);
                }
            }
        }
        Some(channel)
    }

    /// Those of a guest.
    pub(super) fn of(&self, guest: Key) -> Vec<ChannelKey> {
        self.of.get(&guest).cloned().unwrap_or_default()
    }

    /// Doorbells that a guest's ends of channels have.
    pub(super) fn bells_of(&self, guest: Key) -> u32 {
        let channels = self.of.get(&guest).into_iter().flatten().filter_map(|key| self.get(*key));
        channels.filter(|channel| channel.has_end(guest)).map(|channel| channel.bells).sum()
    }

    /// Windows of which a guest has an end, or is to have one.
    pub(super) fn windows_of(&self, guest: Key) -> usize {
        let channels = self.of.get(&guest).into_iter().flatten().filter_map(|key| self.get(*key));
        let has = |channel: &Channel| {
            let side = channel.side_of(guest);
            channel.windows.iter().filter(|one| side.is_some_and(|side| one.ends[side])).count()
        };
        channels.map(has).sum()
    }

    /// Bytes of all windows.
    pub(super) fn window_memory(&self) -> u64 {
        self.all.values().flat_map(|channel| &channel.windows).map(|window| window.size).sum()
    }

    /// Bytes that a guest is charged for: of windows that it owns, and has an end of, and of those
    /// that it alone keeps, as their owner has let go.
    pub(super) fn window_charge(&self, guest: Key) -> u64 {
        let channels = self.of.get(&guest).into_iter().flatten().filter_map(|key| self.get(*key));
        let charged = channels.flat_map(|channel| {
            let side = channel.side_of(guest);
            let is_charged = move |window: &&Window| {
                let owner = window.id.owner;
                side.is_some_and(|side| window.ends[side] && (side == owner || !window.ends[owner]))
            };
            channel.windows.iter().filter(is_charged)
        });
        charged.map(|window| window.size).sum()
    }

    /// The one between two guests.
    pub(super) fn between(&self, a: Key, b: Key) -> Option<ChannelKey> {
        self.find(a, |channel| channel.side_of(b).is_some())
    }

    /// The one that a guest calls by this tag now.
    pub(super) fn by_tag(&self, guest: Key, tag: u32) -> Option<ChannelKey> {
        self.find(guest, |channel| channel.tag == tag && channel.has_end(guest))
    }

    /// Tags of a guest's channels that peers may know, by where `place` finds each peer.
    pub(super) fn tags(
        &self,
        guest: Key,
        place: impl Fn(Key) -> Option<usize>,
    ) -> HashMap<usize, u32> {
        let mut tags = HashMap::new();
        for channel in self.of.get(&guest).into_iter().flatten().filter_map(|key| self.get(*key)) {
            let peer = channel.sides.iter().find(|side| side.guest != guest);
            if channel.stage != Stage::Unplugging
                && let Some(at) = peer.and_then(|side| place(side.guest))
            {
                tags.insert(at, channel.tag);
            }
        }
        tags
    }

    /// Whether a guest has an end of a channel.
    pub(super) fn has_ends(&self, guest: Key) -> bool {
        self.find(guest, |channel| channel.has_end(guest)).is_some()
    }

    /// Whether a guest keeps memory that it shares with one from whom it was parted.
    pub(super) fn keeps_revoked(&self, guest: Key) -> bool {
        self.find(guest, Channel::is_revoked).is_some()
    }

    fn find(&self, guest: Key, is_it: impl Fn(&Channel) -> bool) -> Option<ChannelKey> {
        let of_guest = self.of.get(&guest)?;
        of_guest.iter().copied().find(|key| self.all.get(key).is_some_and(|channel| is_it(channel)))
    }

    /// A guest has another name now.
    pub(super) fn rename(&mut self, guest: Key, name: &str) {
        for key in self.of(guest) {
            let Some(channel) = self.all.get_mut(&key) else { continue };
            if let Some(side) = channel.side_of(guest) {
                name.clone_into(&mut channel.sides[side].name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(guests: [Key; 2], bells: u32) -> Channel {
        let side = |guest| ChannelSide {
            guest,
            id: guest,
            name: String::new(),
            state: None,
            gone: false,
            stats: None,
        };
        Channel {
            tag: 1,
            sides: guests.map(side),
            stage: Stage::Open,
            stuck: false,
            reason: None,
            failure: None,
            wanted_by: Vec::new(),
            ring_size: 0,
            bells,
            layout: None,
            since: Instant::now(),
            adopted: false,
            up_since: None,
            up_until: None,
            broken_by: None,
            parted: false,
            hello_by: None,
            windows: Vec::new(),
            early: Vec::new(),
            commands: crate::mailbox::mailbox().0,
        }
    }

    #[test]
    fn doorbells_of_ends_that_are_there() {
        let mut channels = Channels::default();
        channels.insert(1, channel([7, 8], 3));
        channels.insert(2, channel([7, 9], 5));
        let of = |channels: &Channels| [7, 8, 9, 10].map(|guest| channels.bells_of(guest));
        assert_eq!(of(&channels), [8, 3, 5, 0]);
        // A guest that keeps its device is no reason for the other to go without.
        channels.get_mut(2).expect("one").sides[0].gone = true;
        assert_eq!(of(&channels), [3, 3, 5, 0]);
        channels.remove(1);
        assert_eq!(of(&channels), [0, 0, 5, 0]);
    }
}
