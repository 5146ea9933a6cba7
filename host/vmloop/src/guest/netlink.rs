// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Generic netlink family "vmloop"; docs/netlink/vmloop.yaml is its
//! specification, and the numbers here follow it.

use std::io;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload, Nla, NlasIterator, Parseable, ParseableParametrized,
};
use netlink_packet_generic::ctrl::nlas::{GenlCtrlAttrs, McastGrpAttrs};
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

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
const BREAKS: [&str; 8] = [
    "",
    "impossible tail",
    "impossible head",
    "record too large",
    "record beyond the ring",
    "padding short of the ring's end",
    "another version",
    "impossible lane",
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

/// A message of the family: its command and its attributes.
#[derive(Clone, Debug)]
struct Message {
    command: u8,
    attributes: Vec<DefaultNla>,
}

impl GenlFamily for Message {
    fn family_name() -> &'static str {
        "vmloop"
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Emitable for Message {
    fn buffer_len(&self) -> usize {
        self.attributes.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.attributes.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Message {
    fn parse_with_param(buffer: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        Ok(Self { command: header.cmd, attributes: attributes(buffer)? })
    }
}

/// Which attribute it is, without the flags "nested" and "network order".
fn kind(attribute: &DefaultNla) -> u16 {
    attribute.kind() & 0x3fff
}

fn attributes(buffer: &[u8]) -> Result<Vec<DefaultNla>, DecodeError> {
    NlasIterator::new(buffer).map(|nla| DefaultNla::parse(&nla?)).collect()
}

/// Value of an attribute.
fn value(attribute: &DefaultNla) -> Vec<u8> {
    let mut bytes = vec![0; attribute.value_len()];
    attribute.emit_value(&mut bytes);
    bytes
}

/// A number of one to eight bytes.
fn number(attribute: &DefaultNla) -> u64 {
    value(attribute).iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn text(attribute: &DefaultNla) -> String {
    let bytes = value(attribute);
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn hex(id: u64) -> String {
    format!("{id:016x}")
}

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

fn name(names: &[&str], number: u64) -> String {
    usize::try_from(number)
        .ok()
        .and_then(|index| names.get(index))
        .map_or_else(|| number.to_string(), |name| (*name).to_owned())
}

fn mac(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

fn ip(bytes: &[u8]) -> String {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return std::net::Ipv4Addr::from(bytes).to_string();
    }
    <[u8; 16]>::try_from(bytes)
        .map(|bytes| std::net::Ipv6Addr::from(bytes).to_string())
        .unwrap_or_default()
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
pub struct Modules {
    socket: Socket,
    family: u16,
    events: u32,
    sequence: u32,
}

/// A reply that makes no sense.
fn nonsense(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl Modules {
    /// Finds the family; None if the modules are not loaded.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn open() -> io::Result<Option<Self>> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let mut modules = Self { socket, family: 0, events: 0, sequence: 0 };
        let request = GenlMessage::from_payload(GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(Message::family_name().into())],
        });
        let replies = match modules.call::<GenlCtrl>(request, 0) {
            Ok(replies) => replies,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        for attribute in replies.into_iter().flat_map(|reply| reply.nlas) {
            match attribute {
                GenlCtrlAttrs::FamilyId(id) => modules.family = id,
                GenlCtrlAttrs::McastGroups(groups) => {
                    for attribute in groups.into_iter().flatten() {
                        // The family has one group.
                        if let McastGrpAttrs::Id(id) = attribute {
                            modules.events = id;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok((modules.family != 0).then_some(modules))
    }

    /// Sends a request, and collects the replies up to the end.
    fn call<T>(&mut self, request: GenlMessage<T>, flags: u16) -> io::Result<Vec<T>>
    where
        T: GenlFamily
            + Emitable
            + Clone
            + std::fmt::Debug
            + ParseableParametrized<[u8], GenlHeader>,
    {
        self.sequence += 1;
        let mut message = NetlinkMessage::from(request);
        // A dump ends by itself; everything else ends with an acknowledgement.
        message.header.flags = NLM_F_REQUEST | if flags == NLM_F_DUMP { flags } else { NLM_F_ACK };
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;

        let mut replies = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            for message in messages::<T>(&datagram)? {
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(replies),
                    NetlinkPayload::Error(error) => {
                        return match error.code {
                            None => Ok(replies),
                            Some(_) => Err(error.to_io()),
                        };
                    }
                    NetlinkPayload::InnerMessage(message) => replies.push(message.payload),
                    _ => {}
                }
            }
        }
    }

    fn ask(
        &mut self,
        command: u8,
        attributes: Vec<DefaultNla>,
        flags: u16,
    ) -> io::Result<Vec<Message>> {
        let mut request = GenlMessage::from_payload(Message { command, attributes });
        request.set_resolved_family_id(self.family);
        self.call(request, flags)
    }

    /// This guest.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn status(&mut self) -> io::Result<Status> {
        let replies = self.ask(STATUS_GET, Vec::new(), 0)?;
        replies.first().map(Status::from).ok_or_else(|| nonsense("no status"))
    }

    /// All peers.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn peers(&mut self) -> io::Result<Vec<Peer>> {
        let replies = self.ask(PEER_GET, Vec::new(), NLM_F_DUMP)?;
        replies.iter().map(|reply| Peer::from(reply).map_err(nonsense)).collect()
    }

    /// Uses channels, or does not.
    ///
    /// # Errors
    /// Those of netlink; `PermissionDenied` unless root.
    pub fn enable(&mut self, on: bool) -> io::Result<()> {
        self.ask(STATUS_SET, vec![DefaultNla::new(STATUS_ENABLED, vec![u8::from(on)])], 0)?;
        Ok(())
    }

    /// Lets a peer be asked for again.
    ///
    /// # Errors
    /// Those of netlink; `NotFound` for no such peer.
    pub fn reset(&mut self, id: u64) -> io::Result<()> {
        let id = DefaultNla::new(PEER_ID, id.to_ne_bytes().to_vec());
        self.ask(PEER_RESET, vec![id], 0)?;
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
        self.socket.add_membership(self.events)?;
        loop {
            let (datagram, _) = match self.socket.recv_from_full() {
                // We were too slow and missed some.
                Err(error) if error.raw_os_error() == Some(105) => continue,
                other => other?,
            };
            for message in messages::<Message>(&datagram)? {
                if let NetlinkPayload::InnerMessage(message) = message.payload
                    && message.payload.command == PEER_NTF
                {
                    each(&Peer::from(&message.payload).map_err(nonsense)?)?;
                }
            }
        }
    }
}

/// The messages of a datagram.
fn messages<T>(mut datagram: &[u8]) -> io::Result<Vec<NetlinkMessage<GenlMessage<T>>>>
where
    T: GenlFamily + Clone + std::fmt::Debug + ParseableParametrized<[u8], GenlHeader>,
{
    let mut messages = Vec::new();
    while datagram.len() >= 16 {
        let message = NetlinkMessage::<GenlMessage<T>>::deserialize(datagram).map_err(nonsense)?;
        let length = (message.header.length as usize).next_multiple_of(4);
        messages.push(message);
        if length < 16 {
            break;
        }
        datagram = datagram.get(length..).unwrap_or_default();
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn the_family_is_found_or_not() {
        // Whether or not the modules are loaded, the question has an answer.
        Modules::open().expect("generic netlink");
    }
}
