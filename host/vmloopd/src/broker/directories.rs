// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Directories: what each guest is told of the others, and which channels may
//! not be any more.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;
use tracing::warn;
use vmloop_abi::address::Address;
use vmloop_abi::message::AgentMessage;
use vmloop_abi::shm;
use vmloop_api::Filter;
use vmloop_policy::Who;

use super::Broker;
use super::channels::Channels;
use super::guests::{Arrival, Guest, Guests};
use super::scene::{Scene, heeded};
use crate::directory::{Member, View, routed_number};
use crate::event::ChannelKey;
use crate::handle::Command;
use crate::machine::{Key, Machine};
use crate::network::links::Port;

/// Why an interface or a pair gets no channel, for people.
pub(super) fn got_around(filter: &Filter) -> String {
    format!(
        "{}, which a channel would get around; filters = \"ignore\" in the policy allows that",
        filter.text
    )
}

impl Broker {
    /// Where an interface of a guest is; one that is in no bridge is somewhere
    /// only if the policy says that the host routes for it. One whose frames
    /// something on the host looks at is nowhere, unless the policy ignores that.
    pub(super) fn place(&self, who: Who<'_>, tap: &str) -> Result<Port, String> {
        if let Some(filter) = self.filter_of(tap) {
            return Err(got_around(&filter));
        }
        self.links.port(tap).or_else(|why| {
            let alone = self.links.alone(tap).filter(|_| self.policy.routed(who, &[tap]).is_some());
            alone.ok_or(why)
        })
    }

    /// What looks at all frames of an interface of a guest; None also if that is ignored.
    pub(super) fn filter_of(&self, tap: &str) -> Option<Filter> {
        heeded(&self.policy, &self.judge)?;
        self.links.filters.unknown().or_else(|| self.links.filter(tap))
    }

    /// Asks the host's routing for the addresses of guests that it routes for.
    /// It keeps what is no guest's from being believed to be one's: the host
    /// would send it elsewhere, or keep it.
    fn ask_routes(&mut self) {
        let mut all = HashSet::new();
        for (_, guest) in self.guests.iter().filter(|_| self.policy.routes()) {
            let who = guest.who();
            for nic in &guest.machine.nics {
                let Ok(port) = self.place(who, &nic.tap) else { continue };
                let Some(number) = routed_number(&self.policy, who, &port) else { continue };
                let allowed = guest.addresses.iter().map(|(address, _)| address).filter(|one| {
                    one.mac == nic.mac && self.policy.allows_routed_ip(who, number, one.ip)
                });
                all.extend(allowed.map(|address| address.ip));
            }
        }
        self.routes.retain(|ip, _| all.contains(ip));
        for ip in all {
            self.routes.entry(ip).or_insert_with(|| (self.route)(ip));
        }
    }

    /// What directories are made of, as of now.
    pub(super) fn scene(&mut self) -> Arc<Scene> {
        let changed = self.due.take_old() | self.guests.take_touched();
        if let Some(scene) = self.scene.clone().filter(|_| !changed) {
            return scene;
        }
        self.ask_routes();
        let guests = self.guests.in_order().map(|(key, guest)| (self.member(guest), key));
        let arriving = self.guests.arriving.iter().filter_map(|(key, arrival)| {
            let Arrival { machine, name, .. } = arrival;
            // It may not be what it seems.
            let here = self.guests.with_id(machine.id).is_some();
            (!here).then(|| (self.arriver(machine, name), *key))
        });
        let (members, keys) = guests.chain(arriving).unzip();
        let judge = heeded(&self.policy, &self.judge);
        let scene = Scene::new(members, keys, &self.policy, judge, self.scene.as_deref());
        self.scene.insert(Arc::new(scene)).clone()
    }

    /// A guest, as directories see it.
    fn member(&self, guest: &Guest) -> Member {
        if guest.is_coming() {
            return self.arriver(&guest.machine, guest.who().name);
        }
        let nics: Vec<_> = guest
            .machine
            .nics
            .iter()
            .map(|nic| (nic.mac, self.place(guest.who(), &nic.tap).ok()))
            .collect();
        let routed = |address: &Address| {
            let to = self.routes.get(&address.ip).copied().flatten();
            to.is_some()
                && nics.iter().any(|(mac, port)| {
                    let gateway = port.as_ref().and_then(|port| port.gateway.as_ref());
                    *mac == address.mac && gateway.map(|gateway| gateway.index) == to
                })
        };
        let addresses = guest.addresses.iter().map(|(address, _)| *address);
        Member {
            id: guest.machine.id,
            epoch: guest.machine.epoch,
            name: guest.name.as_str().into(),
            uuid: guest.who().uuid.to_owned(),
            ready: guest.is_ready(),
            addresses: guest.addresses.clone(),
            routed: addresses.filter(routed).collect(),
            // One that has not spoken is here for a channel that it has.
            routes: guest
                .hello
                .as_ref()
                .is_none_or(|hello| hello.features & shm::VMLOOP_F_ROUTED != 0),
            keep: !guest.advertised && self.return_by.is_some(),
            nics,
        }
    }

    /// A machine that is being migrated to here, as directories see it. Nothing
    /// is known of it but its interfaces.
    fn arriver(&self, machine: &Machine, name: &str) -> Member {
        let uuid = machine.uuid.clone().unwrap_or_default();
        let who = Who { name, uuid: &uuid };
        let nics =
            machine.nics.iter().map(|nic| (nic.mac, self.place(who, &nic.tap).ok())).collect();
        Member {
            id: machine.id,
            epoch: machine.epoch,
            name: name.into(),
            nics,
            uuid,
            ready: true,
            addresses: Vec::new(),
            routed: Vec::new(),
            routes: false,
            keep: false,
        }
    }

    /// Answers a guest's HELLO, or tells it what has changed of that.
    pub(super) fn welcome(&self, key: Key) {
        let Some(guest) = self.guests.get(key) else { return };
        let message = AgentMessage::Welcome {
            id: guest.machine.id,
            epoch: guest.machine.epoch,
            agent: self.post.agent,
            idle_ms: self.policy.idle_ms,
            name: guest.name.clone(),
        };
        let hello = guest.hello.as_ref();
        let changes = hello.is_some_and(|hello| hello.features & shm::VMLOOP_F_CHANGES != 0);
        guest.tell(Command::Welcome { message, ring_size: self.policy.ring_size, changes });
    }

    /// Whether the host has none of a guest's interfaces any more. Those of a
    /// domain go before itself.
    fn lacks_interfaces(&self, key: Key) -> bool {
        self.guests
            .get(key)
            .is_some_and(|guest| guest.machine.nics.iter().all(|nic| !self.links.has(&nic.tap)))
    }

    /// Tells guests what may have changed for them, and closes channels that may not be
    /// any more.
    pub(super) fn tell_due(&mut self) {
        let began = Instant::now();
        if self.due.take_all(began) {
            for (key, why) in self.tell_all() {
                self.close(key, why);
            }
            let now = Instant::now();
            self.due.made(now, now - began);
        }
        self.tell_some();
    }

    /// Whether it is known what guests may know.
    fn may_tell(&self) -> bool {
        self.recovering.is_none() && self.have_links
    }

    /// Tells those guests whose channels are others.
    pub(super) fn tell_some(&mut self) {
        let keys = self.due.take_some();
        if keys.is_empty() || !self.may_tell() {
            return;
        }
        let scene = self.scene();
        let view = scene.view(&self.policy, &self.judge);
        for key in keys {
            if let Some(at) = scene.at(key) {
                tell(&mut self.guests, &self.channels, &scene, &view, at);
            }
        }
    }

    /// Tells every guest what changed for it. Returns the channels that may not
    /// be any more, and why.
    fn tell_all(&mut self) -> Vec<(ChannelKey, u32)> {
        if !self.may_tell() {
            return Vec::new();
        }
        let scene = self.scene();
        let affected = scene.affected(self.told.as_deref(), &self.policy);
        self.told = Some(scene.clone());
        let view = scene.view(&self.policy, &self.judge);
        let mut forbidden = Vec::new();
        for (one, guest) in scene.keys.iter().enumerate().filter(|(at, _)| affected[*at]) {
            for key in self.channels.of(*guest) {
                let Some(channel) = self.channels.get(key) else { continue };
                let peer = channel.sides.iter().find(|side| side.guest != *guest);
                let Some(other) = peer.and_then(|side| scene.at(side.guest)) else { continue };
                // Where both are, it is looked at once.
                if (affected[other] && other < one) || !view.links(one, other).is_empty() {
                    continue;
                }
                let gone = channel.sides.iter().any(|side| self.lacks_interfaces(side.guest));
                let why = if gone { shm::VMLOOP_CLOSE_PEER_GONE } else { shm::VMLOOP_CLOSE_POLICY };
                forbidden.push((key, why));
            }
        }
        for (at, key) in scene.keys.iter().enumerate() {
            // One that came again may look as before, and was told nothing yet.
            let is_new =
                self.guests.get(*key).is_some_and(|guest| guest.told.is_none() || guest.again);
            if !affected[at] && !is_new {
                continue;
            }
            tell(&mut self.guests, &self.channels, &scene, &view, at);
        }
        forbidden
    }
}

/// Tells a guest what changed for it.
fn tell(guests: &mut Guests, channels: &Channels, scene: &Scene, view: &View<'_>, at: usize) {
    let members = &scene.members;
    let Some(guest) = guests.get_untold(scene.keys[at]) else { return };
    let entries = view.directory(at, &channels.tags(scene.keys[at], |key| scene.at(key)));
    let disputes = view.disputed(at);
    for (ip, owner) in &disputes {
        if !guest.disputes.contains_key(ip) && guest.complaints.take(Instant::now()).is_ok() {
            let owner = &*members[*owner].name;
            warn!(guest = guest.name, %ip, owner, "address is somebody else's already");
        }
    }
    guest.disputes =
        disputes.into_iter().map(|(ip, owner)| (ip, members[owner].name.to_string())).collect();
    let own = entries.iter().filter(|entry| entry.id == guest.machine.id);
    guest.routed = own.flat_map(|entry| entry.ips.iter().copied()).collect();
    let again = std::mem::take(&mut guest.again);
    if again || guest.told.as_deref().is_none_or(|told| **told != *entries) {
        let entries = Arc::new(entries);
        let old = guest.told.replace(entries.clone());
        guest.handle.directory.tell(old.as_deref().map_or(&[], |old| &old[..]), entries);
    }
}
