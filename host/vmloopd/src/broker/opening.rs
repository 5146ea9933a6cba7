// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The beginning of channels: who gets one, and who is told to ask later.

use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;
use vmloop_abi::memory::{Layout, channel_size};
use vmloop_abi::message::AgentMessage;
use vmloop_abi::shm;

use super::Broker;
use super::channels::{Channel, ChannelSide, Stage};
use super::closing::SLOTS_RETRY;
use super::due::Timed;
use super::guests::{Guest, hex};
use crate::channel;
use crate::directory::free_tag;
use crate::event::ChannelKey;
use crate::limits::{self, Use};
use crate::machine::Key;
use crate::mailbox;

/// Why a guest gets no channel, and when it may ask again.
type Refusal = (u32, Duration);

/// What a guest is told that is to ask again soon.
const BUSY: Refusal = (shm::VMLOOP_REFUSED_BUSY, Duration::from_secs(1));
/// What a guest is told whose peer is not there.
const GONE: Refusal = (shm::VMLOOP_REFUSED_GONE, Duration::ZERO);
/// Who wanted a channel to a machine that is not here yet wants it for so long;
/// they ask again with each frame, but no more than every second, and TCP tries
/// less and less often.
const FRESH: Duration = Duration::from_secs(10);
/// How long the HELLO of a guest that has just arrived is waited for.
pub(super) const HELLO: Duration = Duration::from_secs(15);

impl Broker {
    /// A guest wants a channel.
    pub(super) fn want(&mut self, key: Key, peer: u64, epoch: u64) {
        self.post.counters.wants.add(1);
        let Err((reason, retry)) = self.grant(key, peer, epoch) else { return };
        self.post.counters.refused.add(1);
        let Some(guest) = self.guests.get(key) else { return };
        debug!(guest = guest.name, peer = hex(peer), reason, ?retry, "refused");
        guest.send(AgentMessage::Refused {
            peer,
            reason,
            retry_ms: u32::try_from(retry.as_millis()).unwrap_or(u32::MAX),
        });
    }

    /// Begins a channel, or says why not, and when to ask again.
    fn grant(&mut self, key: Key, peer: u64, epoch: u64) -> Result<(), Refusal> {
        let now = Instant::now();
        let Some(guest) = self.guests.get_untold(key) else { return Ok(()) };
        if let Err(when) = guest.wants.take(now) {
            self.post.counters.throttled.add(1);
            return Err((shm::VMLOOP_REFUSED_BUSY, (when - now).max(BUSY.1)));
        }
        if !guest.is_ready() || self.recovering.is_some() {
            return Err(BUSY);
        }
        let id = guest.machine.id;
        let Some((other_key, other)) = self.guests.with_id(peer) else {
            let arrival = self
                .guests
                .arriving
                .values_mut()
                .find(|arrival| (arrival.machine.id, arrival.machine.epoch) == (peer, epoch));
            let Some(arrival) = arrival else { return Err(GONE) };
            arrival.wanted.insert(key, now);
            return Err(BUSY);
        };
        if other_key != key && other.machine.epoch == epoch && other.is_coming() {
            // Side 0 makes the region, and needs nobody for that.
            if id < peer {
                return self.begin(key, other_key).map(drop);
            }
            if let Some(other) = self.guests.get_untold(other_key) {
                other.awaited_by.insert(key, now);
            }
            return Err(BUSY);
        }
        // It was here before the agent, and has not spoken yet.
        if other_key != key && other.hello.is_none() && self.return_by.is_some() {
            return Err(BUSY);
        }
        if other_key == key || other.machine.epoch != epoch || !other.is_ready() {
            return Err(GONE);
        }
        self.begin(key, other_key).map(drop)
    }

    /// Begins channels to a guest that has just arrived for all that had frames
    /// for it until now.
    pub(super) fn meet_all(&mut self, arrived: Key) {
        let Some(guest) = self.guests.get_untold(arrived) else { return };
        for (other, at) in std::mem::take(&mut guest.awaited_by) {
            if at.elapsed() < FRESH {
                self.meet(arrived, other);
            }
        }
    }

    /// Begins a channel to a guest that has just arrived for one that waits for
    /// it. In a QEMU it has not spoken yet: its device comes along with the
    /// control device, as each takes the guest long.
    fn meet(&mut self, arrived: Key, other: Key) {
        if !self.guests.get(other).is_some_and(Guest::is_ready) {
            return;
        }
        match self.begin(other, arrived) {
            Ok(key) => {
                if let Some(channel) = self.channels.get_mut(key) {
                    let until = Instant::now() + HELLO;
                    channel.hello_by = Some(until);
                    self.deadlines.at(until, Timed::Channel(key));
                }
            }
            // It asks again.
            Err((reason, retry)) => debug!(arrived, other, reason, ?retry, "no channel yet"),
        }
    }

    /// Begins a channel for a guest that wants one, or finds that there is one.
    fn begin(&mut self, key: Key, other_key: Key) -> Result<ChannelKey, Refusal> {
        let now = Instant::now();
        let scene = self.scene();
        let (Some(a), Some(b)) = (scene.at(key), scene.at(other_key)) else {
            return Err(GONE);
        };
        if scene.view(&self.policy, &self.judge).links(a, b).is_empty() {
            return Err((shm::VMLOOP_REFUSED_POLICY, Duration::ZERO));
        }

        if let Some(found) = self.channels.between(key, other_key)
            && let Some(channel) = self.channels.get_mut(found)
        {
            if matches!(channel.stage, Stage::Closing | Stage::Unplugging) {
                return Err(BUSY);
            }
            // Both asked, or the answer was lost: the directory has the tag.
            channel.is_wanted_by(key);
            if let Some(guest) = self.guests.get_untold(key) {
                guest.again = true;
                self.due.some([key]);
            }
            return Ok(found);
        }
        if [key, other_key].iter().any(|guest| self.channels.keeps_revoked(*guest)) {
            return Err((shm::VMLOOP_REFUSED_POLICY, Duration::ZERO));
        }
        let pair = self.pair(key, other_key);
        if let Some(left) = pair.and_then(|pair| self.breaks.left(pair, now)) {
            return Err((shm::VMLOOP_REFUSED_BROKEN, left));
        }
        if let Some(left) = pair.and_then(|pair| self.back_off.left(pair, now)) {
            return Err((shm::VMLOOP_REFUSED_BUSY, left));
        }
        for one in [key, other_key] {
            if self.channels.of(one).len() >= self.policy.max_channels as usize {
                return Err((shm::VMLOOP_REFUSED_SLOTS, SLOTS_RETRY));
            }
        }
        if !self.have_memory() {
            self.post.counters.out_of_memory.add(1);
            return Err((shm::VMLOOP_REFUSED_SLOTS, SLOTS_RETRY));
        }
        let used = |tag| self.tag_used(key, tag) || self.tag_used(other_key, tag);
        let Some(tag) = free_tag(self.last_tag, self.capabilities.tags_in_turn, used) else {
            return Err((shm::VMLOOP_REFUSED_SLOTS, SLOTS_RETRY));
        };
        self.last_tag = tag;
        let made = self.make_channel(tag, key, other_key, false).ok_or(GONE)?;
        if let Some(channel) = self.channels.get_mut(made) {
            channel.is_wanted_by(key);
        }
        Ok(made)
    }

    /// Bytes that all channels may take.
    pub(super) fn memory(&self) -> u64 {
        self.channels.memory(self.policy.ring_size)
    }

    /// Bytes that they may take at most: what the policy says, or, if they are the
    /// host's own memory, a quarter of that.
    pub(super) fn memory_max(&self) -> Option<u64> {
        let host = || {
            let host = rustix::system::sysinfo();
            u64::from(host.mem_unit) * host.totalram / 4
        };
        self.policy.max_memory.or_else(|| self.capabilities.gives_memory.then(host))
    }

    /// Whether there may be one more channel.
    pub(super) fn have_memory(&self) -> bool {
        let one = channel_size(self.policy.ring_size);
        self.memory_max().is_none_or(|most| self.memory() + one <= most)
    }

    fn tag_used(&self, guest: Key, tag: u32) -> bool {
        self.channels.by_tag(guest, tag).is_some()
            || self.guests.get(guest).is_some_and(|guest| {
                guest.orphans.contains(&tag) || guest.windows_left.iter().any(|one| one.tag == tag)
            })
    }

    /// Makes a channel, or takes over one of an earlier agent (`adopted`). None
    /// if one of its guests is not there.
    pub(super) fn make_channel(
        &mut self,
        tag: u32,
        a: Key,
        b: Key,
        adopted: bool,
    ) -> Option<ChannelKey> {
        let mut guests = [(a, self.guests.get(a)?), (b, self.guests.get(b)?)];
        guests.sort_unstable_by_key(|(_, guest)| guest.machine.id);
        let sides = guests.map(|(key, guest)| ChannelSide {
            guest: key,
            id: guest.machine.id,
            name: guest.name.clone(),
            state: None,
            gone: false,
            stats: None,
        });
        // One that has not said yet what it knows is taken to be as new as we are; if
        // it is not, the channel goes when it says so.
        let tables = guests.iter().all(|(_, guest)| guest.knows_lanes().unwrap_or(true));
        let layout = if tables { Layout::Table } else { Layout::Lane };
        let use_of = guests.map(|(key, guest)| Use {
            cpus: guest.hello.as_ref().map(|hello| hello.cpus),
            bells: self.channels.bells_of(key),
            room: guest.machine.bells,
        });
        let most = if tables { self.policy.doorbells } else { 1 };
        // Where guests make them, they know best how many are of use.
        let bells = match self.capabilities.gives_memory {
            true => limits::bells(use_of, most),
            false => most,
        };
        let guests = guests.map(|(_, guest)| channel::Guest {
            id: guest.machine.id,
            epoch: guest.machine.epoch,
            place: guest.handle.place.clone(),
        });
        let key = self.new_key();
        let (commands, inbox) = mailbox::mailbox();
        let ring_size = self.policy.ring_size;
        let post = self.post.clone();
        let task =
            channel::Task { key, tag, ring_size, bells, layout, guests, post, commands: inbox };
        self.channels.insert(
            key,
            Channel {
                tag,
                sides,
                stage: if adopted { Stage::Open } else { Stage::Plugging },
                stuck: false,
                reason: None,
                failure: None,
                wanted_by: Vec::new(),
                ring_size: if adopted { 0 } else { ring_size },
                // Machines have counted what they had before.
                bells: if adopted || !self.capabilities.gives_memory { 0 } else { bells },
                layout: (!adopted).then_some(layout),
                since: Instant::now(),
                adopted,
                up_since: None,
                up_until: None,
                broken_by: None,
                parted: false,
                hello_by: None,
                windows: Vec::new(),
                early: Vec::new(),
                commands,
            },
        );
        if !adopted {
            // The directories first, though guests must not rely on it.
            self.due.some([a, b]);
            self.tell_some();
        }
        tokio::spawn(task.run(adopted));
        Some(key)
    }
}
