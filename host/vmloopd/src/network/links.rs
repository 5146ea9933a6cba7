// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The host's virtual network: which interfaces are ports of which bridge, in
//! which VLAN, what the host itself is there, and what it has on an interface.

use std::collections::HashMap;

use rtnetlink::packet_route::link::{
    AfSpecBridge, BridgePortState, BridgeStpState, BridgeVlanInfoFlags, InfoBridge, InfoBridgePort,
    InfoData, InfoKind, InfoPortData, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
    LinkXdp, XdpAttached,
};
use rtnetlink::packet_route::tc::TcMessage;

use vmloop_api::{Filter, FilterKind};

use super::filters::{Filters, Switches};
use super::qdisc::{self, Purpose};

/// One interface of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// its name
    pub name: String,
    /// its hardware address; zeros if it has none
    pub mac: [u8; 6],
    /// largest packet in bytes
    pub mtu: u32,
    /// index of the interface that it stands on, as a VLAN does; 0 for none
    pub below: u32,
    /// VLAN: its number
    pub vlan: u16,
    /// administratively up
    pub up: bool,
    /// index of the interface that it is a port of; 0 for none
    pub master: u32,
    /// whether it is a Linux bridge
    pub bridge: bool,
    /// bridge: whether it filters VLANs
    pub vlan_filtering: bool,
    /// bridge: whether a spanning tree protocol decides which ports forward
    pub spanning_tree: bool,
    /// port: whether it may only talk to ports that are not isolated
    pub isolated: bool,
    /// port: whether it forwards
    pub forwarding: bool,
    /// whether somebody is at its other end, and the kernel has taken note
    pub running: bool,
    /// port, or bridge for itself: VLAN that untagged frames enter; 0 for none
    pub pvid: u16,
    /// port: whether frames of that VLAN leave untagged
    pub untagged: bool,
    /// port: whether it takes frames of addresses only that it was told of
    pub locked: bool,
    /// whether an XDP program looks at what comes in by it
    pub xdp: bool,
    /// whether classifiers of tc may look at what passes it: it has a qdisc for them
    pub classified: bool,
    /// kind of a qdisc that may shape what leaves by it; empty if it has none
    pub shaper: String,
    /// bridge: what br_netfilter shows to the chains of IP, beside what it shows of
    /// all bridges
    pub calls: Switches,
}

/// All interfaces, by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    links: HashMap<u32, Link>,
    /// index by name
    names: HashMap<String, u32>,
    /// index of what is above an interface for a VLAN
    above: HashMap<(u32, u16), u32>,
    /// how often the host's routes have changed
    pub(super) routes: u64,
    /// what is no matter of single interfaces
    pub filters: Filters,
}

/// The host itself, as the router of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// index of its interface there
    pub index: u32,
    /// name of that
    pub name: String,
    /// its hardware address
    pub mac: [u8; 6],
    /// largest packet in bytes
    pub mtu: u32,
}

/// Where in the virtual network an interface of a guest is. Two that have the
/// same `bridge` and `vlan`, not both isolated, reach each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// name of the interface
    pub name: String,
    /// index of the bridge, or of the interface itself if it is in none
    pub bridge: u32,
    /// its name
    pub bridge_name: String,
    /// whether it is in no bridge: nobody but the host is there
    pub alone: bool,
    /// the host there; None if it has no interface
    pub gateway: Option<Gateway>,
    /// VLAN of untagged frames; 0 if the bridge does not filter VLANs
    pub vlan: u16,
    /// whether tagged frames pass between all ports
    pub tagged: bool,
    /// whether it may only talk to ports that are not isolated
    pub isolated: bool,
    /// largest packet in bytes
    pub mtu: u32,
    /// which chains of IP see what the bridge passes
    pub calls: Switches,
    /// what looks at frames between it and the host's own network, as routed ones are
    pub before_host: Option<Filter>,
}

impl Links {
    /// From interfaces by index.
    pub fn new(links: impl IntoIterator<Item = (u32, Link)>) -> Self {
        let mut all = Self::default();
        for (index, link) in links {
            all.insert(index, link);
        }
        all
    }

    /// Adds an interface; of what a list has twice the lowest index is found.
    fn insert(&mut self, index: u32, link: Link) {
        let lowest = |found: &mut u32| *found = index.min(*found);
        self.names.entry(link.name.clone()).and_modify(lowest).or_insert(index);
        if link.below != 0 && link.vlan != 0 {
            self.above.entry((link.below, link.vlan)).and_modify(lowest).or_insert(index);
        }
        self.links.insert(index, link);
    }

    /// The host's interface of an index, as a router.
    fn gateway(&self, index: u32) -> Option<Gateway> {
        let link = self.links.get(&index)?;
        // What is no unicast address is no next hop.
        let usable = link.up && link.mac != [0; 6] && link.mac[0] & 1 == 0;
        usable.then(|| Gateway { index, name: link.name.clone(), mac: link.mac, mtu: link.mtu })
    }

    /// The host in a VLAN of a bridge: an interface above the bridge, or the
    /// bridge itself.
    fn gateway_in(&self, bridge: u32, vlan: u16) -> Option<Gateway> {
        let itself = self.links.get(&bridge)?;
        if !itself.vlan_filtering {
            return self.gateway(bridge);
        }
        match self.above.get(&(bridge, vlan)) {
            Some(index) => self.gateway(*index),
            None if itself.pvid == vlan => self.gateway(bridge),
            None => None,
        }
    }

    fn named(&self, name: &str) -> Option<(&u32, &Link)> {
        self.links.get_key_value(self.names.get(name)?)
    }

    /// Whether the host has an interface of that name.
    pub fn has(&self, name: &str) -> bool {
        self.named(name).is_some()
    }

    /// What looks at the frames that pass an interface of a guest, and would not see
    /// those that a channel carries; None if nothing is known that does.
    pub fn filter(&self, name: &str) -> Option<Filter> {
        let (_, link) = self.named(name)?;
        let (kind, text) = if link.xdp {
            (FilterKind::Xdp, format!("an XDP program is attached to {name}"))
        } else if link.classified {
            (
                FilterKind::Classifier,
                format!("{name} has a qdisc for classifiers (tc qdisc show dev {name})"),
            )
        } else if !link.shaper.is_empty() {
            let shaper = &link.shaper;
            let text =
                format!("{name} has a qdisc that may shape, {shaper} (tc qdisc show dev {name})");
            (FilterKind::Qdisc, text)
        } else if link.locked {
            (FilterKind::Locked, format!("{name} is a locked port (bridge -d link show {name})"))
        } else {
            return None;
        };
        Some(Filter { kind, interface: name.into(), text, ..Filter::default() })
    }

    /// The same of the host's own interfaces behind a bridge.
    fn before_host(&self, bridge: &str, gateway: Option<&Gateway>) -> Option<Filter> {
        self.filter(bridge).or_else(|| self.filter(&gateway?.name))
    }

    /// Where an interface of a guest is that is in no bridge: with nobody but
    /// the host.
    pub fn alone(&self, name: &str) -> Option<Port> {
        let (index, link) = self.named(name)?;
        (link.up && link.master == 0).then(|| Port {
            name: link.name.clone(),
            bridge: *index,
            bridge_name: link.name.clone(),
            alone: true,
            gateway: self.gateway(*index),
            vlan: 0,
            tagged: false,
            isolated: false,
            mtu: link.mtu,
            calls: Switches::default(),
            before_host: None,
        })
    }

    /// Whether others are there than in `before`, or under other names.
    pub fn renamed(&self, before: &Self) -> bool {
        self.links.len() != before.links.len()
            || self.links.iter().any(|(index, link)| {
                before.links.get(index).is_none_or(|old| old.name != link.name)
            })
    }

    /// Where an interface is, or why nowhere.
    ///
    /// # Errors
    /// A text for people.
    pub fn port(&self, name: &str) -> Result<Port, String> {
        if name.is_empty() {
            return Err("not a tap interface of this host".into());
        }
        let (_, link) = self.named(name).ok_or_else(|| format!("no interface {name}"))?;
        let bridge = self
            .links
            .get(&link.master)
            .filter(|bridge| bridge.bridge)
            .ok_or_else(|| format!("{name} is not a port of a Linux bridge"))?;
        if !link.up || !bridge.up {
            return Err(format!("{} is down", if link.up { &bridge.name } else { name }));
        }
        if !(link.forwarding || link.forwards_at_once(bridge)) {
            return Err(format!("{name} does not forward (spanning tree)"));
        }
        if bridge.vlan_filtering && (link.pvid == 0 || !link.untagged) {
            return Err(format!("{name} has no untagged VLAN on {}", bridge.name));
        }
        let vlan = if bridge.vlan_filtering { link.pvid } else { 0 };
        let gateway = self.gateway_in(link.master, vlan);
        Ok(Port {
            name: link.name.clone(),
            bridge: link.master,
            bridge_name: bridge.name.clone(),
            alone: false,
            vlan,
            tagged: !bridge.vlan_filtering,
            isolated: link.isolated,
            mtu: link.mtu,
            calls: self.filters.calls(bridge.calls),
            before_host: self.before_host(&bridge.name, gateway.as_ref()),
            gateway,
        })
    }

    pub(super) fn take(&mut self, message: LinkMessage) {
        let mut link = Link {
            up: message.header.flags.contains(LinkFlags::Up),
            running: message.header.flags.contains(LinkFlags::Running),
            ..Link::default()
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Address(bytes) => link.mac = bytes.try_into().unwrap_or_default(),
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::Link(index) => link.below = index,
                LinkAttribute::Controller(master) => link.master = master,
                LinkAttribute::LinkInfo(infos) => link.take_info(infos),
                LinkAttribute::Xdp(all) => link.xdp = all.iter().any(is_program),
                _ => {}
            }
        }
        self.insert(message.header.index, link);
    }

    pub(super) fn take_qdisc(&mut self, message: &TcMessage) {
        let index = u32::try_from(message.header.index).unwrap_or(0);
        let Some(link) = self.links.get_mut(&index) else { return };
        match qdisc::purpose(&message.attributes) {
            Purpose::Queues => {}
            Purpose::Classifies => link.classified = true,
            Purpose::Shapes(kind) => link.shaper = kind,
        }
    }

    /// VLANs come in a dump of their own.
    pub(super) fn take_vlans(&mut self, message: &LinkMessage) {
        let Some(link) = self.links.get_mut(&message.header.index) else { return };
        for attribute in &message.attributes {
            let LinkAttribute::AfSpecBridge(specs) = attribute else { continue };
            for spec in specs {
                let AfSpecBridge::VlanInfo(vlan) = spec else { continue };
                if vlan.flags.contains(BridgeVlanInfoFlags::Pvid) {
                    link.pvid = vlan.vid;
                    link.untagged = vlan.flags.contains(BridgeVlanInfoFlags::Untagged);
                }
            }
        }
    }
}

/// Whether this says that there is an XDP program.
fn is_program(said: &LinkXdp) -> bool {
    matches!(said, LinkXdp::Attached(how) if *how != XdpAttached::None)
}

impl Link {
    /// Whether a port only waits for its carrier, as that of a guest which Xen
    /// has just restored does: it forwards the moment that its guest has found
    /// its backend again, if nobody else decides. The kernel changes both under
    /// one lock, so a port is never seen between them
    /// (`br_port_carrier_check()` in Linux' net/bridge/br_if.c, for which a
    /// carrier is what makes an interface `IFF_RUNNING`).
    fn forwards_at_once(&self, bridge: &Link) -> bool {
        !self.running && !bridge.spanning_tree
    }

    fn take_info(&mut self, infos: Vec<LinkInfo>) {
        for info in infos {
            match info {
                LinkInfo::Kind(InfoKind::Bridge) => self.bridge = true,
                LinkInfo::Data(InfoData::Bridge(data)) => {
                    for value in data {
                        match value {
                            InfoBridge::VlanFiltering(on) => self.vlan_filtering = on,
                            InfoBridge::NfCallIpTables(on) => self.calls.ip = on,
                            InfoBridge::NfCallIp6Tables(on) => self.calls.ip6 = on,
                            InfoBridge::NfCallArpTables(on) => self.calls.arp = on,
                            InfoBridge::StpState(state) => {
                                self.spanning_tree = state != BridgeStpState::Disabled;
                            }
                            _ => {}
                        }
                    }
                }
                LinkInfo::Data(InfoData::Vlan(data)) => {
                    for value in data {
                        if let InfoVlan::Id(id) = value {
                            self.vlan = id;
                        }
                    }
                }
                LinkInfo::PortData(InfoPortData::BridgePort(data)) => {
                    for value in data {
                        match value {
                            InfoBridgePort::Isolated(on) => self.isolated = on,
                            InfoBridgePort::Locked(on) => self.locked = on,
                            InfoBridgePort::State(state) => {
                                self.forwarding = state == BridgePortState::Forwarding;
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bridge(filtering: bool) -> Link {
        Link {
            name: "br0".into(),
            up: true,
            bridge: true,
            vlan_filtering: filtering,
            ..Link::default()
        }
    }

    fn tap(pvid: u16) -> Link {
        Link {
            name: "tap0".into(),
            mtu: 1500,
            up: true,
            master: 1,
            forwarding: true,
            running: true,
            pvid,
            untagged: true,
            ..Link::default()
        }
    }

    fn port(bridge: Link, tap: Link) -> Result<Port, String> {
        Links::new([(1, bridge), (2, tap)]).port("tap0")
    }

    #[test]
    fn ports() {
        let plain = port(bridge(false), tap(1)).expect("a port");
        assert_eq!((plain.bridge, plain.vlan, plain.tagged), (1, 0, true));
        let filtered = port(bridge(true), tap(10)).expect("a port");
        assert_eq!((filtered.vlan, filtered.tagged), (10, false));

        assert!(port(bridge(true), tap(0)).is_err(), "no VLAN");
        assert!(port(bridge(true), Link { untagged: false, ..tap(10) }).is_err(), "tagged");
        assert!(port(bridge(false), Link { up: false, ..tap(1) }).is_err(), "down");
        assert!(port(Link { up: false, ..bridge(false) }, tap(1)).is_err(), "bridge down");
        let off = Link { running: false, forwarding: false, ..tap(1) };
        assert!(port(bridge(false), off.clone()).is_ok(), "no carrier yet");
        let tree = Link { spanning_tree: true, ..bridge(false) };
        assert!(port(tree, off).is_err(), "no carrier, and nobody knows");
        assert!(port(bridge(false), Link { forwarding: false, ..tap(1) }).is_err(), "blocked");
        assert!(port(bridge(false), Link { master: 0, ..tap(1) }).is_err(), "no bridge");
        assert!(port(Link { bridge: false, ..bridge(false) }, tap(1)).is_err(), "Open vSwitch");
        assert!(Links::default().port("tap0").is_err());
        assert!(Links::default().port("").is_err());
    }

    #[test]
    fn filters() {
        let filter = |tap| Links::new([(1, bridge(false)), (2, tap)]).filter("tap0");
        assert_eq!(filter(tap(1)), None);
        for (changed, word) in [
            (Link { xdp: true, ..tap(1) }, "XDP"),
            (Link { classified: true, ..tap(1) }, "tc qdisc show dev tap0"),
            (Link { shaper: "tbf".into(), ..tap(1) }, "may shape, tbf"),
            (Link { locked: true, ..tap(1) }, "locked"),
        ] {
            let why = filter(changed).expect("a filter").text;
            assert!(why.contains("tap0") && why.contains(word), "{why}");
        }
        assert!(!is_program(&LinkXdp::Attached(XdpAttached::None)));
        assert!(is_program(&LinkXdp::Attached(XdpAttached::SocketBuffer)));
        assert!(is_program(&LinkXdp::Attached(XdpAttached::Other(4))), "several");
    }

    #[test]
    fn gateways() {
        let mac = [2, 0, 0, 0, 1, 0];
        let host = |bridge: Link| Link { mac, mtu: 9000, ..bridge };
        let found = port(host(bridge(false)), tap(1)).expect("a port").gateway.expect("the host");
        assert_eq!((found.index, &*found.name, found.mac, found.mtu), (1, "br0", mac, 9000));
        assert_eq!(port(bridge(false), tap(1)).expect("a port").gateway, None, "no address");

        // Where VLANs are filtered the host needs to be in the guest's.
        let itself = |pvid| port(Link { pvid, ..host(bridge(true)) }, tap(10)).expect("a port");
        assert_eq!(itself(10).gateway.map(|found| found.index), Some(1));
        assert_eq!(itself(1).gateway, None);
        let above = Link { name: "br0.10".into(), up: true, below: 1, vlan: 10, ..Link::default() };
        let links = [(1, host(bridge(true))), (2, tap(10)), (3, Link { mac, ..above })];
        let found = Links::new(links).port("tap0").expect("a port").gateway;
        assert_eq!(found.map(|found| (found.index, found.name)), Some((3, "br0.10".into())));

        // Without a bridge nobody but the host is there.
        let vif = Link { mac, master: 0, forwarding: false, ..tap(0) };
        let links = Links::new([(2, vif.clone())]);
        let alone = links.alone("tap0").expect("a place");
        assert_eq!((alone.bridge, alone.alone, alone.tagged), (2, true, false));
        assert_eq!(alone.gateway.map(|found| found.index), Some(2));
        assert!(links.port("tap0").is_err());
        assert!(Links::new([(2, Link { up: false, ..vif })]).alone("tap0").is_none(), "down");
        assert!(Links::new([(2, tap(1))]).alone("tap0").is_none(), "in a bridge");
    }
}
