// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What each guest is told about the others: pure functions from who is there
//! to the entries of every directory.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use vmloop_abi::address::Address;
use vmloop_abi::directory::{DirectoryEntry, PeerInterface};
use vmloop_abi::lanes::VMLOOP_LANE_STREAM;
use vmloop_abi::message::TAG_MAX;
use vmloop_abi::shm::VMLOOP_PEER_IPS;
use vmloop_api::Filter;
use vmloop_policy::{Policy, Who};

use crate::network::judge::{Judge, Seat};
use crate::network::links::Port;

/// A guest, as far as directories are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// identity
    pub id: u64,
    /// epoch
    pub epoch: u64,
    /// name on this host
    pub name: Arc<str>,
    /// in lower case; empty if none
    pub uuid: String,
    /// runs the modules, so that others may know of it
    pub ready: bool,
    /// interfaces, and where they are in the network
    pub nics: Vec<([u8; 6], Option<Port>)>,
    /// what it advertised, each with the number of the first time it did
    pub addresses: Vec<(Address, u64)>,
    /// of those, what the host's own routing sends to where the interface is
    pub routed: Vec<Address>,
    /// its modules can be reached by way of the host, or may be able to
    pub routes: bool,
    /// it has not said its addresses to this agent yet, but to an earlier one
    pub keep: bool,
}

impl Member {
    fn who(&self) -> Who<'_> {
        Who { name: &self.name, uuid: &self.uuid }
    }
}

/// A pair of interfaces over which two members reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// index into the `nics` of the one
    pub ours: usize,
    /// index into the `nics` of the other
    pub theirs: usize,
    /// by way of the host, which routes between them
    pub routed: bool,
}

/// Why two interfaces do not reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Apart {
    /// One of them is nowhere.
    Nowhere,
    /// They are in different networks, and the policy says of no router.
    Networks,
    /// Both are isolated ports.
    Isolated,
    /// Another guest had the address of one of them before.
    Address,
    /// Something on the host looks at frames between them.
    Filter(Arc<Filter>),
}

/// Where interfaces meet each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Network {
    /// A VLAN of a bridge.
    Bridge(u32, u16),
    /// By way of the host, by the policy's number.
    Routed(usize),
}

/// An interface, as others are told of it.
#[derive(Clone, Debug)]
struct Told {
    /// with the addresses that its neighbours reach it by
    bridged: Arc<PeerInterface>,
    /// and with those by way of the host
    routed: Arc<PeerInterface>,
}

/// What follows from all members.
#[derive(Debug, Default)]
pub struct Index {
    /// what the judge knows of each interface; empty without one
    seats: Vec<Vec<Option<Arc<Seat>>>>,
    /// who came first with an address, by network
    macs: HashMap<(u32, u16, [u8; 6]), usize>,
    ips: HashMap<(u32, u16, IpAddr), (u64, usize)>,
    /// the same among those that the host routes between, by the policy's number
    routed: HashMap<(usize, IpAddr), (u64, usize)>,
    /// who is where, in order, some perhaps several times
    near: HashMap<Network, Vec<usize>>,
    /// each interface
    told: Vec<Vec<Told>>,
}

/// Members in the order in which they came, with what follows from all of them.
pub struct View<'a> {
    members: &'a [Member],
    policy: &'a Policy,
    /// None if filters on the way are ignored
    judge: Option<&'a Judge>,
    index: Arc<Index>,
}

/// Notes a claim to an address, unless there is an older one.
fn claim<K: std::hash::Hash + Eq>(
    claims: &mut HashMap<K, (u64, usize)>,
    key: K,
    first: u64,
    index: usize,
) {
    let claim = claims.entry(key).or_insert((first, index));
    if first < claim.0 {
        *claim = (first, index);
    }
}

/// The policy's number for guests between which the host routes, if this
/// interface is of them.
pub fn routed_number(policy: &Policy, who: Who<'_>, port: &Port) -> Option<usize> {
    let gateway = port.gateway.as_ref()?;
    policy.routed(who, &[&port.bridge_name, &gateway.name])
}

/// Addresses that mean something in one network only.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Addresses that no other host would believe to be one guest's.
fn is_usable(ip: IpAddr) -> bool {
    !(ip.is_unspecified()
        || ip.is_multicast()
        || ip.is_loopback()
        || matches!(ip, IpAddr::V4(ip) if ip.is_broadcast()))
}

/// Networks that interfaces of a member are in.
fn networks(member: &Member, policy: &Policy) -> Vec<Network> {
    let mut networks = Vec::with_capacity(member.nics.len());
    for port in member.nics.iter().filter_map(|(_, port)| port.as_ref()) {
        networks.push(Network::Bridge(port.bridge, port.vlan));
        networks.extend(routed_number(policy, member.who(), port).map(Network::Routed));
    }
    networks
}

/// Whose directories may be others, as other members are there than `before`: those
/// that share a network with one that came, went, or changed.
pub fn affected(members: &[Member], before: &[Member], policy: &Policy) -> Vec<bool> {
    let old: HashMap<u64, &Member> = before.iter().map(|member| (member.id, member)).collect();
    let new: HashMap<u64, &Member> = members.iter().map(|member| (member.id, member)).collect();
    let changed = |one: &&Member| old.get(&one.id) != new.get(&one.id);
    let mut where_changed = HashSet::new();
    for member in members.iter().filter(changed).chain(before.iter().filter(changed)) {
        where_changed.extend(networks(member, policy));
    }
    let is_near =
        |member| networks(member, policy).iter().any(|network| where_changed.contains(network));
    members.iter().map(|member| changed(&member) || is_near(member)).collect()
}

/// What was told before, if it is the same: then all directories share it.
fn shared(new: PeerInterface, before: Option<&Arc<PeerInterface>>) -> Arc<PeerInterface> {
    before.filter(|old| ***old == new).cloned().unwrap_or_else(|| Arc::new(new))
}

impl Index {
    /// Looks at all members, in the order in which they came. What is the same as
    /// `before` is shared with that.
    pub fn new(
        members: &[Member],
        policy: &Policy,
        judge: Option<&Judge>,
        before: Option<(&[Member], &Self)>,
    ) -> Self {
        let mut index = Self::default();
        for (at, member) in members.iter().enumerate() {
            index.claim_all(at, member, policy);
            for network in networks(member, policy) {
                index.near.entry(network).or_default().push(at);
            }
        }
        if let Some(judge) = judge {
            let seat = |(_, port): &(_, Option<Port>)| Some(judge.seat(port.as_ref()?));
            index.seats =
                members.iter().map(|member| member.nics.iter().map(seat).collect()).collect();
        }
        let old: HashMap<u64, (usize, &Self)> = before
            .into_iter()
            .flat_map(|(old, was)| old.iter().zip(0..).map(move |(one, at)| (one.id, (at, was))))
            .collect();
        for (at, member) in members.iter().enumerate() {
            let old = old.get(&member.id);
            let told = (0..member.nics.len()).map(|nic| {
                let old = old.and_then(|(at, was)| was.told[*at].get(nic));
                let with = |ips: Vec<Address>| PeerInterface {
                    id: member.id,
                    epoch: member.epoch,
                    mac: member.nics[nic].0,
                    name: member.name.clone(),
                    ips: ips.into(),
                };
                let (bridged, routed) =
                    (index.bridged(at, member, nic), index.routed(at, member, nic, policy));
                Told {
                    bridged: shared(with(bridged), old.map(|old| &old.bridged)),
                    routed: shared(with(routed), old.map(|old| &old.routed)),
                }
            });
            let told = told.collect();
            index.told.push(told);
        }
        index
    }

    /// Notes what a member claims.
    fn claim_all(&mut self, at: usize, member: &Member, policy: &Policy) {
        for (mac, port) in &member.nics {
            let Some(port) = port else { continue };
            self.macs.entry((port.bridge, port.vlan, *mac)).or_insert(at);
            let number = routed_number(policy, member.who(), port);
            for (address, first) in &member.addresses {
                if address.mac != *mac
                    || !is_usable(address.ip)
                    || !policy.allows_ip(member.who(), address.ip)
                {
                    continue;
                }
                claim(&mut self.ips, (port.bridge, port.vlan, address.ip), *first, at);
                if let Some(number) = number
                    && !is_link_local(address.ip)
                    && policy.allows_routed_ip(member.who(), number, address.ip)
                    && member.routed.contains(address)
                {
                    claim(&mut self.routed, (number, address.ip), *first, at);
                }
            }
        }
    }

    /// Addresses of an interface that its neighbours are told of.
    fn bridged(&self, at: usize, member: &Member, nic: usize) -> Vec<Address> {
        let (mac, Some(port)) = &member.nics[nic] else { return Vec::new() };
        let mine = |address: &Address| {
            let claim = self.ips.get(&(port.bridge, port.vlan, address.ip));
            address.mac == *mac && claim.is_some_and(|claim| claim.1 == at)
        };
        member.addresses.iter().map(|(address, _)| *address).filter(mine).collect()
    }

    /// Addresses of an interface by which others reach it through the host; no
    /// more than an entry has room for, as all must know the same.
    fn routed(&self, at: usize, member: &Member, nic: usize, policy: &Policy) -> Vec<Address> {
        let (mac, port) = &member.nics[nic];
        let number = port.as_ref().and_then(|port| routed_number(policy, member.who(), port));
        let Some(number) = number else { return Vec::new() };
        let mine = |address: &Address| {
            address.mac == *mac
                && self.routed.get(&(number, address.ip)).is_some_and(|claim| claim.1 == at)
        };
        let all = member.addresses.iter().map(|(address, _)| *address);
        all.filter(mine).take(VMLOOP_PEER_IPS).collect()
    }
}

impl<'a> View<'a> {
    /// Looks at all members, in the order in which they came; ignores filters.
    #[cfg(test)]
    pub fn new(members: &'a [Member], policy: &'a Policy) -> Self {
        Self::of(members, policy, None, Arc::new(Index::new(members, policy, None, None)))
    }

    /// Looks at members whose index was made before. Heeds what the host has on the way
    /// between two, if there is a judge.
    pub fn of(
        members: &'a [Member],
        policy: &'a Policy,
        judge: Option<&'a Judge>,
        index: Arc<Index>,
    ) -> Self {
        Self { members, policy, judge, index }
    }

    /// Members that share a network with one, in their order.
    fn near(&self, of: usize) -> Vec<usize> {
        let member = &self.members[of];
        let mut near = Vec::new();
        for network in networks(member, self.policy) {
            near.extend(self.index.near.get(&network).into_iter().flatten().copied());
        }
        near.sort_unstable();
        near.dedup();
        near
    }

    /// What the host does to frames between two interfaces, each of a member; None if
    /// nothing, or if that is ignored.
    fn filter(&self, a: (usize, usize), b: (usize, usize), routed: bool) -> Option<Arc<Filter>> {
        let judge = self.judge?;
        let seated = |(member, nic): (usize, usize)| {
            let port = self.members[member].nics[nic].1.as_ref()?;
            Some((port, &**self.index.seats.get(member)?[nic].as_ref()?))
        };
        judge.between(seated(a)?, seated(b)?, routed)
    }

    /// Pairs of interfaces over which two members reach each other. Empty if
    /// the policy keeps them apart.
    pub fn links(&self, a: usize, b: usize) -> Vec<Pair> {
        let (one, two) = (&self.members[a], &self.members[b]);
        if a == b || !self.policy.allows(one.who(), two.who()) {
            return Vec::new();
        }
        let mut links = Vec::new();
        for ours in 0..one.nics.len() {
            for theirs in 0..two.nics.len() {
                if let Ok(routed) = self.meets((a, ours), (b, theirs)) {
                    links.push(Pair { ours, theirs, routed });
                }
            }
        }
        links
    }

    /// Whether two interfaces, each of a member, reach each other by way of the host's
    /// routing, or on one bridge.
    ///
    /// # Errors
    /// Why they do not reach each other.
    pub fn meets(&self, a: (usize, usize), b: (usize, usize)) -> Result<bool, Apart> {
        let (one, two) = (&self.members[a.0], &self.members[b.0]);
        let ((mac_a, port_a), (mac_b, port_b)) = (&one.nics[a.1], &two.nics[b.1]);
        let (Some(port_a), Some(port_b)) = (port_a, port_b) else { return Err(Apart::Nowhere) };
        let same = port_a.bridge == port_b.bridge && port_a.vlan == port_b.vlan;
        let routed = !same && self.is_routed((one, port_a), (two, port_b));
        if !routed && (!same || port_a.alone || port_b.alone) {
            return Err(Apart::Networks);
        }
        if same && port_a.isolated && port_b.isolated {
            return Err(Apart::Isolated);
        }
        let first = |index, port: &Port, mac: &[u8; 6]| {
            self.index.macs.get(&(port.bridge, port.vlan, *mac)) == Some(&index)
        };
        if !first(a.0, port_a, mac_a) || !first(b.0, port_b, mac_b) {
            return Err(Apart::Address);
        }
        self.filter(a, b, routed).map_or(Ok(routed), |filter| Err(Apart::Filter(filter)))
    }

    /// Whether the policy says that the host routes between two interfaces, and
    /// the modules of both guests know what that means.
    fn is_routed(&self, a: (&Member, &Port), b: (&Member, &Port)) -> bool {
        let number =
            |(member, port): (&Member, &Port)| routed_number(self.policy, member.who(), port);
        a.0.routes && b.0.routes && number(a).is_some() && number(a) == number(b)
    }

    /// Kinds of lanes that the policy does not have for two members, a bit of each.
    fn without(&self, a: usize, b: usize) -> u16 {
        let (one, two) = (self.members[a].who(), self.members[b].who());
        if self.policy.allows_streams(one, two) { 0 } else { 1 << VMLOOP_LANE_STREAM }
    }

    /// What a member is told of its own interfaces that the host routes for.
    fn own(&self, of: usize) -> Vec<DirectoryEntry> {
        let member = &self.members[of];
        let mut entries = Vec::new();
        for (nic, (mac, port)) in member.nics.iter().enumerate() {
            let Some(port) = port else { continue };
            if !member.routes || routed_number(self.policy, member.who(), port).is_none() {
                continue;
            }
            entries.push(DirectoryEntry {
                peer: self.index.told[of][nic].routed.clone(),
                tag: 0,
                tagged: false,
                keep: member.keep,
                without: 0,
                gateway: port.gateway.as_ref().map(|gateway| gateway.mac),
                local_mac: *mac,
                mtu: u16::try_from(port.mtu).unwrap_or(u16::MAX),
            });
        }
        entries
    }

    /// The directory of member `of`. `tags` says which channels lead from it to other
    /// members. Members that are not ready are left out,
    /// unless a channel leads to them; and to one that is not ready itself, as
    /// it may wake up on another host, all are, its own interfaces too.
    pub fn directory(&self, of: usize, tags: &HashMap<usize, u32>) -> Vec<DirectoryEntry> {
        let near = self.near(of);
        let mut entries = Vec::with_capacity(near.len());
        for index in near {
            let peer = &self.members[index];
            let tag = tags.get(&index).copied().filter(|_| index != of).unwrap_or(0);
            if !(peer.ready && self.members[of].ready) && tag == 0 {
                continue;
            }
            let links = self.links(of, index);
            let without = if links.is_empty() { 0 } else { self.without(of, index) };
            for Pair { ours, theirs, routed } in links {
                let (local_mac, local) = &self.members[of].nics[ours];
                let port = &peer.nics[theirs].1;
                let (Some(local), Some(port)) = (local, port) else { continue };
                let gateway = local.gateway.as_ref().filter(|_| routed);
                let mut mtu = local.mtu.min(port.mtu);
                if routed {
                    let hops = [&local.gateway, &port.gateway];
                    mtu = hops.into_iter().flatten().fold(mtu, |mtu, hop| mtu.min(hop.mtu));
                }
                let told = &self.index.told[index][theirs];
                entries.push(DirectoryEntry {
                    peer: if routed { &told.routed } else { &told.bridged }.clone(),
                    tag,
                    tagged: local.tagged && port.tagged && !routed,
                    keep: routed && peer.keep,
                    without,
                    gateway: gateway.map(|gateway| gateway.mac),
                    local_mac: *local_mac,
                    mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
                });
            }
        }
        if self.members[of].ready {
            entries.extend(self.own(of));
        }
        entries.shrink_to_fit();
        entries
    }

    /// Addresses that a member advertised and that others hold already.
    pub fn disputed(&self, of: usize) -> Vec<(IpAddr, usize)> {
        let member = &self.members[of];
        let mut disputed = Vec::new();
        for (mac, port) in &member.nics {
            let Some(port) = port else { continue };
            let number = routed_number(self.policy, member.who(), port);
            for (address, _) in member.addresses.iter().filter(|(one, _)| one.mac == *mac) {
                let here = self.index.ips.get(&(port.bridge, port.vlan, address.ip));
                let routed = number.and_then(|number| self.index.routed.get(&(number, address.ip)));
                let other = [here, routed].into_iter().flatten().find(|(_, owner)| *owner != of);
                if let Some((_, owner)) = other {
                    disputed.push((address.ip, *owner));
                }
            }
        }
        disputed
    }
}

/// The next tag behind `last` that neither of two guests uses, of those up to `in_turn`; one
/// above if they use all of these. Going round keeps what is still said of a former channel
/// apart from its successor.
pub fn free_tag(last: u32, in_turn: u32, used: impl Fn(u32) -> bool) -> Option<u32> {
    let round = (last + 1..=in_turn).chain(1..=last.min(in_turn));
    round.chain(in_turn + 1..=TAG_MAX).find(|tag| !used(*tag))
}

#[cfg(test)]
mod tests;
