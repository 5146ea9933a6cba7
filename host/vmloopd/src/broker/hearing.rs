// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What guests say, and when they fall silent.

use tokio::time::{Duration, Instant};
use vmloop_abi::address::Address;
use vmloop_abi::memory::Layout;
use vmloop_abi::message::{AgentMessage, GuestMessage, WindowName, WindowState};
use vmloop_abi::shm;
use vmloop_api::EventKind;

use super::Broker;
use super::channels::{ChannelSide, Stage, Window};
use super::due::Timed;
use super::guests::{Hello, Later, Phase};
use crate::channel;
use crate::end::{Medium, WindowId};
use crate::handle::Command;
use crate::limits::WINDOWS_OF_GUEST;
use crate::machine::Key;

/// How long a guest that was told to shut down or to suspend gets no new
/// channels; if it is still there then, it did not obey.
const LEAVING: Duration = Duration::from_secs(10);

impl Broker {
    /// A guest said something.
    pub(super) fn hear(&mut self, key: Key, message: GuestMessage) {
        match message {
            GuestMessage::Hello { version, kernel, major, cpus, features, .. } => {
                if major == shm::VMLOOP_SHM_MAJOR {
                    self.hello(key, Hello { version, kernel, cpus, features });
                }
            }
            GuestMessage::Advertise(list) => self.advertise(key, list),
            GuestMessage::Want { peer, epoch, .. } => self.want(key, peer, epoch),
            GuestMessage::State { tag, state } => self.state(key, tag, state),
            GuestMessage::Window(name, state) => self.window(key, name, state),
            GuestMessage::Stats { cookie, tag: 0, .. } => {
                if let Some(collecting) = &mut self.collecting
                    && collecting.cookie == cookie
                {
                    collecting.waiting.remove(&key);
                }
            }
            GuestMessage::Stats { cookie, tag, counters } => {
                let channel = self.channels.by_tag(key, tag);
                let Some(channel) = channel.and_then(|key| self.channels.get_mut(key)) else {
                    return;
                };
                if let Some(side) = channel.side_of(key) {
                    channel.sides[side].stats = Some(Box::new((cookie, counters)));
                }
            }
        }
    }

    /// Closes channels whose memory a guest does not know: they were made before it
    /// could say so.
    fn close_unknown(&mut self, guest: Key) {
        for key in self.channels.of(guest) {
            if self.channels.get(key).is_some_and(|one| one.layout == Some(Layout::Table)) {
                self.part(key, shm::VMLOOP_CLOSE_PEER_GONE);
            }
        }
    }

    fn hello(&mut self, key: Key, hello: Hello) {
        let Some(guest) = self.guests.get_untold(key) else { return };
        if let Err(when) = guest.hellos.take(Instant::now()) {
            guest.later.hello = Some(hello);
            if let Some(when) = guest.postpone(when) {
                self.deadlines.at(when, Timed::Guest(key));
            }
            self.post.counters.throttled.add(1);
            return;
        }
        guest.later.hello = None;
        if guest.hello.as_ref() == Some(&hello) {
            // It has missed the answer: nothing is new to others.
            return self.welcome(key);
        }
        let Some(guest) = self.guests.get_mut(key) else { return };
        let kernel = hello.kernel.clone();
        let again = guest.hello.replace(hello);
        // The same modules that understand something else now do not say that the guest stays.
        if again.is_none() {
            guest.leaving = None;
        }
        let name = guest.name.clone();
        guest.arrived = None;
        if guest.knows_lanes() == Some(false) {
            self.close_unknown(key);
        }
        // Before the directory goes out with it, it must be right.
        self.welcome(key);
        self.meet_all(key);
        if again.is_none() {
            self.note(EventKind::GuestReady, &name, "", 0, &kernel);
        }
        self.due.all();
        // Others hear of it with its addresses; what goes out with the answer is right now.
        self.due.gather(Instant::now());
        self.due.some([key]);
    }

    /// A guest says all of its addresses.
    fn advertise(&mut self, key: Key, list: Vec<Address>) {
        let Some(guest) = self.guests.get_untold(key) else { return };
        // QEMU does not tell when a network interface is plugged.
        let is_unknown =
            |address: &Address| guest.machine.nics.iter().all(|nic| nic.mac != address.mac);
        if list.iter().any(is_unknown) && guest.rescans.take(Instant::now()).is_ok() {
            guest.tell(Command::Rescan);
        }
        let old = guest.addresses.iter().map(|(address, _)| address);
        if guest.advertised && guest.later.addresses.is_none() && old.eq(&list) {
            return;
        }
        if let Err(when) = guest.claims.take(Instant::now()) {
            guest.later.addresses = Some(list);
            if let Some(when) = guest.postpone(when) {
                self.deadlines.at(when, Timed::Guest(key));
            }
            self.post.counters.throttled.add(1);
            return;
        }
        guest.later.addresses = None;
        let claim = self.next_claim;
        self.next_claim += 1;
        let mut addresses: Vec<(Address, u64)> = Vec::with_capacity(list.len());
        for address in list {
            if addresses.iter().any(|(one, _)| *one == address) {
                continue;
            }
            let before = guest
                .addresses
                .iter()
                .find(|(one, _)| one.ip == address.ip && one.mac == address.mac);
            addresses.push((address, before.map_or(claim, |(_, first)| *first)));
        }
        if guest.addresses != addresses || !guest.advertised {
            guest.addresses = addresses;
            guest.advertised = true;
            // Directories depend on it after all.
            self.due.all();
        }
    }

    /// Hears what a guest said too soon, if its time has come.
    pub(super) fn hear_later(&mut self, key: Key, now: Instant) {
        let Some(guest) = self.guests.get_untold(key) else { return };
        if guest.later.at.is_none_or(|at| at > now) {
            return;
        }
        let later = std::mem::take(&mut guest.later);
        if let Some(hello) = later.hello {
            self.hello(key, hello);
        }
        if let Some(addresses) = later.addresses {
            self.advertise(key, addresses);
        }
    }

    /// Passes on what a guest says about a channel.
    pub(super) fn relay(
        &self,
        key: Key,
        tag: u32,
        command: impl FnOnce(usize) -> channel::Command,
    ) {
        let channel = self.channels.by_tag(key, tag).and_then(|key| self.channels.get(key));
        let Some(channel) = channel else { return };
        if let Some(side) = channel.side_of(key) {
            channel.tell(command(side));
        }
    }

    /// A guest says how it stands to a window of one of its channels.
    pub(super) fn window(&mut self, key: Key, name: WindowName, state: WindowState) {
        if let Some(channel) = self.channels.by_tag(key, name.tag)
            && let Some(channel) = self.channels.get_mut(channel)
            && channel.stage == Stage::Plugging
        {
            if !channel.early(key, name, state) {
                self.refuse_window(key, name);
            }
            return;
        }
        if let WindowState::Wanted(size) = state
            && !self.grant_window(key, name, size.next_power_of_two())
        {
            return self.refuse_window(key, name);
        }
        self.relay(key, name.tag, |side| channel::Command::Window(side, name, state));
    }

    fn refuse_window(&self, key: Key, name: WindowName) {
        if let Some(guest) = self.guests.get(key) {
            guest.send(AgentMessage::WindowAt { name, place: None, size: 0 });
        }
    }

    /// Whether a channel may have one more window, of so many bytes; then it counts.
    fn grant_window(&mut self, key: Key, name: WindowName, size: u64) -> bool {
        let Some(guest) = self.guests.get_untold(key) else { return false };
        if guest.windows.take(Instant::now()).is_err() {
            self.post.counters.throttled.add(1);
            return false;
        }
        let Some(found) = self.channels.by_tag(key, name.tag) else { return false };
        let Some(channel) = self.channels.get(found) else { return false };
        let may_have = |side: &ChannelSide| {
            self.guests.get(side.guest).is_some_and(|guest| {
                guest.handle.place.medium() == Medium::Host
                    && guest.knows_windows()
                    && self.channels.windows_of(side.guest) + guest.windows_left.len()
                        < WINDOWS_OF_GUEST
            })
        };
        if channel.stage != Stage::Open
            || channel.reason.is_some()
            || !channel.sides.iter().all(may_have)
        {
            return false;
        }
        let Some(owner) = channel.side_of(key) else { return false };
        let id = WindowId { tag: name.tag, owner, number: name.number };
        let left = channel.sides.iter().filter_map(|side| self.guests.get(side.guest));
        let mut left = left.flat_map(|guest| &guest.windows_left);
        if channel.windows.iter().any(|one| one.id.has_place_of(id))
            || left.any(|one| one.tag == name.tag && one.has_place_of(id))
        {
            return false;
        }
        let reader = channel.sides[1 - owner].guest;
        let has_room = self.memory_max().is_none_or(|most| {
            let charge = |guest| self.channels.window_charge(guest);
            self.memory() + size <= most
                && self.channels.window_memory() + size <= most / 4
                && charge(key) + size <= most / 16
                // One that keeps what others have let go of gets no more of it.
                && charge(reader) <= most / 16
        });
        if !has_room {
            self.post.counters.out_of_memory.add(1);
            return false;
        }
        if let Some(channel) = self.channels.get_mut(found) {
            channel.windows.push(Window { id, size, ends: [true; 2] });
        }
        true
    }

    /// A guest's modules are not there any more.
    pub(super) fn away(&mut self, key: Key) {
        if !self.guests.speaks(key) {
            return;
        }
        let Some(guest) = self.guests.get_mut(key) else { return };
        guest.hello = None;
        guest.addresses.clear();
        guest.advertised = false;
        guest.later = Later::default();
        // Each channel costs its peer a device: one that goes again and again waits
        // as one that closes them.
        let excused = guest.departures.take(Instant::now()).is_ok();
        if guest.phase == Phase::Attached {
            let name = guest.name.clone();
            self.note(EventKind::GuestAway, &name, "", 0, "its modules do not answer any more");
        }
        if excused {
            self.part_all(key, shm::VMLOOP_CLOSE_PEER_GONE);
        } else {
            self.close_all(key, shm::VMLOOP_CLOSE_PEER_GONE);
        }
        self.all_closed(key);
        self.due.all();
    }

    /// A guest will end, or be saved: its channels are closed while it can
    /// still drain them.
    pub(super) fn leaving(&mut self, key: Key, why: &str) {
        let Some(guest) = self.guests.get_mut(key) else { return };
        let until = Instant::now() + LEAVING;
        guest.leaving = Some(until);
        self.deadlines.at(until, Timed::Guest(key));
        let name = guest.name.clone();
        self.note(EventKind::GuestLeaving, &name, "", 0, why);
        self.part_all(key, shm::VMLOOP_CLOSE_MIGRATION);
        self.due.all();
    }
}
