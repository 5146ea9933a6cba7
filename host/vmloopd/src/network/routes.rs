// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the host's own routing sends a packet. Asked for single addresses, as
//! a host may have very many routes.

use std::io;
use std::net::IpAddr;

use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr};

/// The tables that the kernel's own rules lead to: local, main, default.
const USUAL_TABLES: [u32; 3] = [255, 254, 253];

fn question(ip: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    let (family, bits, address) = match ip {
        IpAddr::V4(ip) => (AddressFamily::Inet, 32, RouteAddress::Inet(ip)),
        IpAddr::V6(ip) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(ip)),
    };
    message.header = RouteHeader {
        address_family: family,
        destination_prefix_length: bits,
        ..RouteHeader::default()
    };
    message.attributes.push(RouteAttribute::Destination(address));
    message
}

fn answer(message: &RouteMessage) -> Option<u32> {
    // What is the host's own, or refused, goes nowhere.
    if message.header.kind != RouteType::Unicast {
        return None;
    }
    message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })
}

fn ask(ip: IpAddr) -> io::Result<Option<u32>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetRoute(question(ip)));
    request.header.flags = NLM_F_REQUEST;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    // The kernel answers before send() returns.
    let (datagram, _) = socket.recv_from_full()?;
    let reply = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&datagram)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    Ok(match reply.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(message)) => answer(&message),
        // There is no route.
        _ => None,
    })
}

/// A rule of routing that the kernel does not have by itself, for people; it may send
/// packets elsewhere than their destination says, or refuse them.
pub fn unusual(rule: &RuleMessage) -> Option<String> {
    let header = &rule.header;
    let mut table = u32::from(header.table);
    let mut is_plain = header.action == RuleAction::ToTable
        && (header.src_len, header.dst_len, header.tos) == (0, 0, 0)
        && !header.flags.contains(RuleFlags::Invert);
    let mut priority = 0;
    for attribute in &rule.attributes {
        match attribute {
            RuleAttribute::Priority(number) => priority = *number,
            RuleAttribute::Table(number) => table = *number,
            RuleAttribute::Protocol(_)
            // Of none.
            | RuleAttribute::SuppressPrefixLen(u32::MAX)
            | RuleAttribute::SuppressIfGroup(u32::MAX) => {}
            _ => is_plain = false,
        }
    }
    let is_usual = is_plain && USUAL_TABLES.contains(&table);
    let program = if header.family == AddressFamily::Inet6 { "ip -6" } else { "ip" };
    (!is_usual).then(|| format!("{program} rule show priority {priority}"))
}

/// Index of the interface by which the host sends to an address; None if it
/// sends nowhere, or if the address is its own.
pub fn interface_to(ip: IpAddr) -> Option<u32> {
    ask(ip).inspect_err(|error| tracing::error!(%ip, %error, "route")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_routing() {
        let rule = |table: u32, more: Option<RuleAttribute>| {
            let mut rule = RuleMessage::default();
            rule.header.action = RuleAction::ToTable;
            rule.attributes = vec![
                RuleAttribute::Priority(7),
                RuleAttribute::Table(table),
                RuleAttribute::SuppressPrefixLen(u32::MAX),
            ];
            rule.attributes.extend(more);
            rule
        };
        assert_eq!(unusual(&rule(254, None)), None);
        assert_eq!(unusual(&rule(255, None)), None);
        let other = unusual(&rule(100, None)).expect("another table");
        assert!(other.contains("priority 7"), "{other}");
        assert!(unusual(&rule(254, Some(RuleAttribute::FwMark(1)))).is_some());
        let mut refuses = rule(254, None);
        refuses.header.action = RuleAction::Blackhole;
        assert!(unusual(&refuses).is_some());
        let mut from = rule(254, None);
        from.header.src_len = 24;
        assert!(unusual(&from).is_some());
    }

    #[test]
    fn this_machine() {
        let ask = |ip: &str| ask(ip.parse().expect("an address")).expect("an answer");
        // Its own, and none at all.
        assert_eq!(ask("127.0.0.1"), None);
        assert_eq!(ask("255.255.255.255"), None);
        let routes = std::fs::read_to_string("/proc/net/route").expect("routes");
        let Some(words) = routes
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|words| words[1] == "00000000")
        else {
            return;
        };
        let index = std::fs::read_to_string(format!("/sys/class/net/{}/ifindex", words[0]));
        let index = index.expect("an interface").trim().parse().ok();
        assert_eq!(ask("192.0.2.1"), index, "the default route");
    }
}
