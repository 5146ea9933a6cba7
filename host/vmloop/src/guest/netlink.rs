// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Generic netlink family "vmloop"; docs/netlink/vmloop.yaml is its
//! specification, and the numbers here follow it.

use std::io;

use netlink_packet_core::{DecodeError, DefaultNla, NLM_F_DUMP};

use super::genl::{
    Connection, Message, attributes, hex, ip, kind, mac, name, nonsense, number, text, value,
};

const STATUS_GET: u8 = 1;
const STATUS_SET: u8 = 2;
const PEER_GET: u8 = 3;
const PEER_RESET: u8 = 4;
const PEER_NTF: u8 = 5;

const STATUS_ENABLED: u16 = 8;
const PEER_ID: u16 = 1;

/// Names of channel states, by number.
const STATES: [&str; 9] =
    ["none", "requested", "opening", "up", "stalled", "closing", "refused", "failed", "broken"];
/// Names of reasons, by number.
const REASONS: [&str; 7] = ["", "policy", "gone", "slots", "failed", "busy", "broken"];
/// What a peer that broke the protocol wrote, by number.
const BREAKS: [&str; 9] = [
    "",
    "impossible tail",
    "impossible head",
    "record too large",
    "record beyond the ring",
    "padding short of the ring's end",
    "another version",
    "impossible lane",
    "impossible move",
];
/// Breaks in a row after which only `vmloop reset` helps.
pub const BREAKS_MAX: u64 = 8;
/// Names of counters; their numbers begin at 1.
pub const COUNTERS: [&str; 34] = [
    "tx-frames",
    "tx-bytes",
    "rx-frames",
    "rx-bytes",
    "tx-doorbells",
    "rx-doorbells",
    "tx-full",
    "tx-queued",
    "tx-standard",
    "stalls",
    "drop-source",
    "drop-destination",
    "drop-vlan",
    "drop-malformed",
    "drop-memory",
    "drop-interface",
    "standard-no-channel",
    "standard-closing",
    "standard-stalled",
    "standard-full",
    "standard-flushed",
    "standard-shaped",
    "standard-classified",
    "standard-hook",
    "standard-receiver",
    "standard-source",
    "standard-interface",
    "standard-vlan",
    "standard-feature",
    "standard-segmentation",
    "standard-checksum",
    "standard-encrypted",
    "standard-unreadable",
    "standard-too-large",
];

/// This guest.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Status {
    /// of the modules
    pub version: String,
    /// of the protocol
    pub protocol: String,
    /// own identity; all zeros before the agent's welcome
    pub id: String,
    /// own epoch
    pub epoch: String,
    /// this guest's name on the host
    pub name: String,
    /// number of the agent's start; all zeros without an agent
    pub agent: String,
    /// whether channels are used
    pub enabled: bool,
    /// peers in the directory
    pub peers: u64,
    /// channels that carry traffic
    pub channels_up: u64,
    /// loaded transports
    pub transports: Vec<String>,
    /// own addresses by which peers reach it through the host
    pub routed_ips: Vec<String>,
}

/// A peer.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Peer {
    /// identity
    pub id: String,
    /// epoch
    pub epoch: String,
    /// name on the host
    pub name: String,
    /// of its channel; 0 for none
    pub tag: u64,
    /// of its channel
    pub state: String,
    /// why the agent refused; empty otherwise
    pub reason: String,
    /// name
    pub transport: String,
    /// of the rings of all packet lanes, each way, in bytes
    pub ring_size: u64,
    /// how it broke the protocol last; empty if it has not
    pub broke: String,
    /// how often in a row it has
    pub breaks: u64,
    /// refused or broken: it is tried again in so many milliseconds; 0: not by itself
    pub retry_ms: u64,
    /// of packets; 0 where there is no channel, and from modules that do not say
    pub lanes: u64,
    /// its interfaces
    pub interfaces: Vec<Interface>,
    /// by name
    pub stats: std::collections::BTreeMap<&'static str, u64>,
}

/// An interface of a peer, seen from one of ours.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Interface {
    /// our interface
    pub local_mac: String,
    /// the peer's
    pub mac: String,
    /// whether VLAN-tagged frames pass
    pub tagged: bool,
    /// the host's address here, if it routes between the two; else empty
    pub gateway: String,
    /// in bytes
    pub mtu: u64,
    /// the peer's addresses
    pub ips: Vec<String>,
}

impl Status {
    fn from(message: &Message) -> Self {
        let mut status = Self::default();
        let (mut major, mut minor) = (0, 0);
        for attribute in &message.attributes {
            match kind(attribute) {
                1 => status.version = text(attribute),
                2 => major = number(attribute),
                3 => minor = number(attribute),
                4 => status.id = hex(number(attribute)),
                5 => status.epoch = hex(number(attribute)),
                6 => status.name = text(attribute),
                7 => status.agent = hex(number(attribute)),
                STATUS_ENABLED => status.enabled = number(attribute) != 0,
                9 => status.peers = number(attribute),
                10 => status.channels_up = number(attribute),
                11 => status.transports.push(text(attribute)),
                12 => status.routed_ips.push(ip(&value(attribute))),
                _ => {}
            }
        }
        status.protocol = format!("{major}.{minor}");
        status
    }
}

impl Peer {
    fn from(message: &Message) -> Result<Self, DecodeError> {
        let mut peer = Self::default();
        for attribute in &message.attributes {
            match kind(attribute) {
                PEER_ID => peer.id = hex(number(attribute)),
                2 => peer.epoch = hex(number(attribute)),
                3 => peer.name = text(attribute),
                4 => peer.tag = number(attribute),
                5 => peer.state = name(&STATES, number(attribute)),
                6 => peer.reason = name(&REASONS, number(attribute)),
                7 => peer.transport = text(attribute),
                8 => peer.ring_size = number(attribute),
                9 => peer.interfaces.push(Interface::from(&attributes(&value(attribute))?)),
                10 => {
                    for counter in attributes(&value(attribute))? {
                        let index = usize::from(kind(&counter)).wrapping_sub(1);
                        if let Some(name) = COUNTERS.get(index) {
                            peer.stats.insert(name, number(&counter));
                        }
                    }
                }
                11 => peer.broke = name(&BREAKS, number(attribute)),
                12 => peer.breaks = number(attribute),
                13 => peer.retry_ms = number(attribute),
                14 => peer.lanes = number(attribute),
                _ => {}
            }
        }
        Ok(peer)
    }
}

impl Interface {
    fn from(attributes: &[DefaultNla]) -> Self {
        let mut interface = Self::default();
        for attribute in attributes {
            match kind(attribute) {
                1 => interface.local_mac = mac(&value(attribute)),
                2 => interface.mac = mac(&value(attribute)),
                3 => interface.tagged = number(attribute) & 1 != 0,
                4 => interface.mtu = number(attribute),
                5 => interface.ips.push(ip(&value(attribute))),
                6 => interface.gateway = mac(&value(attribute)),
                _ => {}
            }
        }
        interface
    }
}

/// A connection to the kernel modules of this guest.
pub struct Modules(Connection);

impl Modules {
    /// Finds the family; None if the modules are not loaded.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn open() -> io::Result<Option<Self>> {
        Ok(Connection::open("vmloop")?.map(Self))
    }

    /// This guest.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn status(&mut self) -> io::Result<Status> {
        let replies = self.0.ask(STATUS_GET, Vec::new(), 0)?;
        replies.first().map(Status::from).ok_or_else(|| nonsense("no status"))
    }

    /// All peers.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn peers(&mut self) -> io::Result<Vec<Peer>> {
        let replies = self.0.ask(PEER_GET, Vec::new(), NLM_F_DUMP)?;
        replies.iter().map(|reply| Peer::from(reply).map_err(nonsense)).collect()
    }

    /// Uses channels, or does not.
    ///
    /// # Errors
    /// Those of netlink; `PermissionDenied` unless root.
    pub fn enable(&mut self, on: bool) -> io::Result<()> {
        self.0.ask(STATUS_SET, vec![DefaultNla::new(STATUS_ENABLED, vec![u8::from(on)])], 0)?;
        Ok(())
    }

    /// Lets a peer be asked for again.
    ///
    /// # Errors
    /// Those of netlink; `NotFound` for no such peer.
    pub fn reset(&mut self, id: u64) -> io::Result<()> {
        let id = DefaultNla::new(PEER_ID, id.to_ne_bytes().to_vec());
        self.0.ask(PEER_RESET, vec![id], 0)?;
        Ok(())
    }

    /// Waits for changes for ever, and gives each to `each`.
    ///
    /// # Errors
    /// Those of netlink and of `each`.
    pub fn events(
        &mut self,
        each: &mut dyn FnMut(&Peer) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.0.listen(&mut |message| {
            if message.command == PEER_NTF {
                each(&Peer::from(message).map_err(nonsense)?)?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::Emitable;

    use super::*;

    fn nested(kind: u16, attributes: &[DefaultNla]) -> DefaultNla {
        let mut bytes = vec![0; attributes.buffer_len()];
        attributes.emit(&mut bytes);
        // As nla_nest_start() marks it.
        DefaultNla::new(kind | 0x8000, bytes)
    }

    #[test]
    fn a_peer() {
        let number = |kind, value: u32| DefaultNla::new(kind, value.to_ne_bytes().to_vec());
        let message = Message {
            command: PEER_GET,
            attributes: vec![
                DefaultNla::new(1, 0xabcu64.to_ne_bytes().to_vec()),
                DefaultNla::new(3, b"web1\0".to_vec()),
                number(4, 7),
                number(5, 3),
                number(6, 99),
                nested(
                    9,
                    &[
                        DefaultNla::new(2, vec![0x52, 0x54, 0, 1, 2, 3]),
                        number(3, 1),
                        DefaultNla::new(5, vec![10, 0, 0, 1]),
                        DefaultNla::new(5, vec![0; 16]),
                    ],
                ),
                number(11, 4),
                number(12, 2),
                number(13, 1500),
                number(14, 2),
                nested(10, &[DefaultNla::new(2, 5u64.to_ne_bytes().to_vec()), number(77, 1)]),
            ],
        };
        let peer = Peer::from(&message).expect("a peer");
        assert_eq!((peer.id.as_str(), peer.name.as_str()), ("0000000000000abc", "web1"));
        assert_eq!((peer.tag, peer.state.as_str(), peer.reason.as_str()), (7, "up", "99"));
        assert_eq!(
            (peer.broke.as_str(), peer.breaks, peer.retry_ms),
            ("record beyond the ring", 2, 1500)
        );
        assert_eq!(peer.lanes, 2);
        assert_eq!(peer.interfaces[0].ips, ["10.0.0.1", "::"]);
        assert!(peer.interfaces[0].tagged);
        assert_eq!(peer.stats.get("tx-bytes"), Some(&5));
    }
}
