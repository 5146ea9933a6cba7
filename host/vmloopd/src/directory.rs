// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What each guest is told about the others: pure functions from who is there
//! to the entries of every directory.

use std::collections::HashMap;
use std::net::IpAddr;

use vmloop_abi::message::{Address, DirectoryEntry, TAG_MAX};

use crate::links::Port;
use crate::policy::{Policy, Who};

/// A guest, as far as directories are concerned.
#[derive(Clone, Debug)]
pub struct Member {
    /// identity
    pub id: u64,
    /// epoch
    pub epoch: u64,
    /// name on this host
    pub name: String,
    /// in lower case; empty if none
    pub uuid: String,
    /// runs the modules, so that others may know of it
    pub ready: bool,
    /// interfaces, and where they are in the network
    pub nics: Vec<([u8; 6], Option<Port>)>,
    /// what it advertised, each with the number of the first time it did
    pub addresses: Vec<(Address, u64)>,
}

impl Member {
    fn who(&self) -> Who<'_> {
        Who { name: &self.name, uuid: &self.uuid }
    }
}

/// Members in the order in which they came, with what follows from all of them.
pub struct View<'a> {
    members: &'a [Member],
    policy: &'a Policy,
    /// who came first with an address, by network
    macs: HashMap<(u32, u16, [u8; 6]), usize>,
    ips: HashMap<(u32, u16, IpAddr), (u64, usize)>,
}

/// Addresses that no other host would believe to be one guest's.
fn is_usable(ip: IpAddr) -> bool {
    !(ip.is_unspecified()
        || ip.is_multicast()
        || ip.is_loopback()
        || matches!(ip, IpAddr::V4(ip) if ip.is_broadcast()))
}

impl<'a> View<'a> {
    /// Looks at all members, in the order in which they came.
    pub fn new(members: &'a [Member], policy: &'a Policy) -> Self {
        let mut macs = HashMap::new();
        let mut ips: HashMap<_, (u64, usize)> = HashMap::new();
        for (index, member) in members.iter().enumerate() {
            for (mac, port) in &member.nics {
                let Some(port) = port else { continue };
                macs.entry((port.bridge, port.vlan, *mac)).or_insert(index);
                for (address, first) in &member.addresses {
                    if address.mac != *mac
                        || !is_usable(address.ip)
                        || !policy.allows_ip(member.who(), address.ip)
                    {
                        continue;
                    }
                    let claim =
                        ips.entry((port.bridge, port.vlan, address.ip)).or_insert((*first, index));
                    if *first < claim.0 {
                        *claim = (*first, index);
                    }
                }
            }
        }
        Self { members, policy, macs, ips }
    }

    /// Pairs of interfaces over which two members reach each other: indices
    /// into their `nics`. Empty if the policy keeps them apart.
    pub fn links(&self, a: usize, b: usize) -> Vec<(usize, usize)> {
        let (one, two) = (&self.members[a], &self.members[b]);
        if a == b || !self.policy.allows(one.who(), two.who()) {
            return Vec::new();
        }
        let mut links = Vec::new();
        for (i, (mac_a, port_a)) in one.nics.iter().enumerate() {
            for (j, (mac_b, port_b)) in two.nics.iter().enumerate() {
                let (Some(port_a), Some(port_b)) = (port_a, port_b) else { continue };
                let same = port_a.bridge == port_b.bridge && port_a.vlan == port_b.vlan;
                let first = |index, port: &Port, mac: &[u8; 6]| {
                    self.macs.get(&(port.bridge, port.vlan, *mac)) == Some(&index)
                };
                if same
                    && !(port_a.isolated && port_b.isolated)
                    && first(a, port_a, mac_a)
                    && first(b, port_b, mac_b)
                {
                    links.push((i, j));
                }
            }
        }
        links
    }

    /// The directory of member `of`. `tag` says which channel leads from one
    /// member to another; 0 for none. Members that are not ready are left out,
    /// unless a channel leads to them; and to one that is not ready itself, as
    /// it may wake up on another host, all are.
    pub fn directory(&self, of: usize, tag: &dyn Fn(usize, usize) -> u32) -> Vec<DirectoryEntry> {
        let mut entries = Vec::new();
        for (index, peer) in self.members.iter().enumerate() {
            let tag = if index == of { 0 } else { tag(of, index) };
            if !(peer.ready && self.members[of].ready) && tag == 0 {
                continue;
            }
            for (ours, theirs) in self.links(of, index) {
                let (local_mac, local) = &self.members[of].nics[ours];
                let (mac, port) = &peer.nics[theirs];
                let (Some(local), Some(port)) = (local, port) else { continue };
                let ips = peer
                    .addresses
                    .iter()
                    .filter(|(address, _)| {
                        address.mac == *mac
                            && self
                                .ips
                                .get(&(port.bridge, port.vlan, address.ip))
                                .is_some_and(|claim| claim.1 == index)
                    })
                    .map(|(address, _)| *address)
                    .collect();
                entries.push(DirectoryEntry {
                    id: peer.id,
                    epoch: peer.epoch,
                    tag,
                    tagged: local.tagged && port.tagged,
                    local_mac: *local_mac,
                    mac: *mac,
                    mtu: u16::try_from(local.mtu.min(port.mtu)).unwrap_or(u16::MAX),
                    name: peer.name.clone(),
                    ips,
                });
            }
        }
        entries
    }

    /// Addresses that a member advertised and that others hold already.
    pub fn disputed(&self, of: usize) -> Vec<(IpAddr, usize)> {
        let member = &self.members[of];
        let mut disputed = Vec::new();
        for (mac, port) in &member.nics {
            let Some(port) = port else { continue };
            for (address, _) in member.addresses.iter().filter(|(one, _)| one.mac == *mac) {
                match self.ips.get(&(port.bridge, port.vlan, address.ip)) {
                    Some((_, owner)) if *owner != of => disputed.push((address.ip, *owner)),
                    _ => {}
                }
            }
        }
        disputed
    }
}

/// The next tag behind `last` that neither of two guests uses. Going round keeps
/// what is still said of a former channel apart from its successor.
pub fn free_tag(last: u32, used: impl Fn(u32) -> bool) -> Option<u32> {
    (last + 1..=TAG_MAX).chain(1..=last.min(TAG_MAX)).find(|tag| !used(*tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(bridge: u32, vlan: u16) -> Port {
        Port {
            bridge,
            bridge_name: format!("br{bridge}"),
            vlan,
            tagged: vlan == 0,
            isolated: false,
            mtu: 1500,
        }
    }

    fn member(number: u8, port: Option<Port>) -> Member {
        let mac = [2, 0, 0, 0, 0, number];
        Member {
            id: number.into(),
            epoch: 1,
            name: format!("g{number}"),
            uuid: String::new(),
            ready: true,
            nics: vec![(mac, port)],
            addresses: vec![(address(mac, number), number.into())],
        }
    }

    fn address(mac: [u8; 6], last: u8) -> Address {
        Address { mac, ip: IpAddr::from([10, 0, 0, last]), prefix: 24 }
    }

    fn no_tag(_: usize, _: usize) -> u32 {
        0
    }

    /// Names of the peers in the directory of the first member.
    fn peers(members: &[Member]) -> Vec<String> {
        let policy = Policy::default();
        let view = View::new(members, &policy);
        view.directory(0, &no_tag).into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn the_network_decides() {
        let one = |port| vec![member(1, Some(self::port(1, 0))), member(2, port)];
        assert_eq!(peers(&one(Some(port(1, 0)))), ["g2"]);
        assert!(peers(&one(Some(port(2, 0)))).is_empty(), "another bridge");
        assert!(peers(&one(None)).is_empty(), "no bridge");
        let vlans = |a, b| vec![member(1, Some(port(1, a))), member(2, Some(port(1, b)))];
        assert_eq!(peers(&vlans(10, 10)), ["g2"]);
        assert!(peers(&vlans(10, 20)).is_empty(), "another VLAN");

        let isolated = Port { isolated: true, ..port(1, 0) };
        let both = vec![member(1, Some(isolated.clone())), member(2, Some(isolated.clone()))];
        assert!(peers(&both).is_empty(), "both isolated");
        assert_eq!(peers(&one(Some(isolated))), ["g2"]);
    }

    #[test]
    fn only_those_that_run_the_modules_or_have_a_channel() {
        let mut members = vec![member(1, Some(port(1, 0))), member(2, Some(port(1, 0)))];
        members[1].ready = false;
        assert!(peers(&members).is_empty());
        let policy = Policy::default();
        let view = View::new(&members, &policy);
        let entries = view.directory(0, &|_, _| 9);
        assert_eq!((entries.len(), entries[0].tag), (1, 9));
    }

    #[test]
    fn tags_and_vlan_frames() {
        let policy = Policy::default();
        let mut members = vec![member(1, Some(port(1, 0))), member(2, Some(port(1, 0)))];
        members[1].nics[0].1.as_mut().expect("a port").mtu = 9000;
        let entry = View::new(&members, &policy).directory(0, &|_, _| 3).remove(0);
        assert_eq!((entry.tag, entry.tagged, entry.mtu), (3, true, 1500));
        let members = vec![member(1, Some(port(1, 5))), member(2, Some(port(1, 5)))];
        assert!(!View::new(&members, &policy).directory(0, &no_tag)[0].tagged);
    }

    #[test]
    fn an_address_belongs_to_the_first_that_claims_it() {
        let policy = Policy::default();
        let mut members: Vec<_> = (1..=3).map(|n| member(n, Some(port(1, 0)))).collect();
        let stolen = address(members[2].nics[0].0, 2);
        members[2].addresses.push((stolen, 99));
        let view = View::new(&members, &policy);
        let of = |name: &str| {
            let entries = view.directory(0, &no_tag);
            let entry = entries.into_iter().find(|entry| entry.name == name).expect("a peer");
            entry.ips.iter().map(|address| address.ip.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of("g2"), ["10.0.0.2"]);
        assert_eq!(of("g3"), ["10.0.0.3"]);
        assert_eq!(view.disputed(2), [(stolen.ip, 1)]);
        assert!(view.disputed(1).is_empty());

        // On another bridge it is nobody's business.
        members[1].nics[0].1 = Some(port(2, 0));
        let view = View::new(&members, &policy);
        assert_eq!(view.directory(0, &no_tag)[0].ips.len(), 2);
    }

    #[test]
    fn addresses_that_cannot_be_and_that_policy_forbids() {
        let policy =
            Policy::parse("[[guest]]\nmatch='g2'\nallow_ips=['10.0.0.0/30']", "p").expect("policy");
        let mut members: Vec<_> = (1..=2).map(|n| member(n, Some(port(1, 0)))).collect();
        let mac = members[1].nics[0].0;
        members[1].addresses.push((address(mac, 200), 5));
        let view = View::new(&members, &policy);
        assert_eq!(view.directory(0, &no_tag)[0].ips, [address(mac, 2)]);
        for ip in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1"] {
            assert!(!is_usable(ip.parse().expect("an address")), "{ip}");
        }
    }

    #[test]
    fn a_hardware_address_belongs_to_the_first() {
        let mut members: Vec<_> = (1..=3).map(|n| member(n, Some(port(1, 0)))).collect();
        members[2].nics[0].0 = members[1].nics[0].0;
        assert_eq!(peers(&members), ["g2"]);
    }

    #[test]
    fn one_entry_for_each_pair_of_interfaces() {
        let mut members: Vec<_> = (1..=2).map(|n| member(n, Some(port(1, 0)))).collect();
        members[0].nics.push(([2, 0, 0, 0, 1, 1], Some(port(2, 0))));
        members[1].nics.push(([2, 0, 0, 0, 1, 2], Some(port(2, 0))));
        assert_eq!(peers(&members).len(), 2);
        members[1].nics[1].1 = Some(port(1, 0));
        assert_eq!(peers(&members).len(), 2);
    }

    #[test]
    fn tags() {
        assert_eq!(free_tag(0, |_| false), Some(1));
        assert_eq!(free_tag(1, |tag| [1, 2, 4].contains(&tag)), Some(3));
        assert_eq!(free_tag(3, |tag| [1, 2, 4].contains(&tag)), Some(5));
        assert_eq!(free_tag(TAG_MAX, |tag| tag == 1), Some(2));
        assert_eq!(free_tag(7, |tag| tag != 7), Some(7));
        assert_eq!(free_tag(7, |_| true), None);
    }
}
