// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Generic netlink: a connection to a family of the kernel's, and what its messages have.

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

/// A message: its command and its attributes.
#[derive(Clone, Debug)]
pub struct Message {
    /// a number of the family's
    pub command: u8,
    /// in the order in which they came
    pub attributes: Vec<DefaultNla>,
}

impl GenlFamily for Message {
    /// Of no use here: a request has the number of its family ([`Connection::ask`]).
    fn family_name() -> &'static str {
        ""
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
pub fn kind(attribute: &DefaultNla) -> u16 {
    attribute.kind() & 0x3fff
}

/// The attributes in a buffer, or in one that has others.
///
/// # Errors
/// If they do not fit in.
pub fn attributes(buffer: &[u8]) -> Result<Vec<DefaultNla>, DecodeError> {
    NlasIterator::new(buffer).map(|nla| DefaultNla::parse(&nla?)).collect()
}

/// Value of an attribute.
pub fn value(attribute: &DefaultNla) -> Vec<u8> {
    let mut bytes = vec![0; attribute.value_len()];
    attribute.emit_value(&mut bytes);
    bytes
}

/// A number of one to eight bytes.
pub fn number(attribute: &DefaultNla) -> u64 {
    value(attribute).iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Text up to its end or the first zero.
pub fn text(attribute: &DefaultNla) -> String {
    let bytes = value(attribute);
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// An identity, as people see it.
pub fn hex(id: u64) -> String {
    format!("{id:016x}")
}

/// The name of a number; the number itself if it is newer than we are.
pub fn name(names: &[&str], number: u64) -> String {
    usize::try_from(number)
        .ok()
        .and_then(|index| names.get(index))
        .map_or_else(|| number.to_string(), |name| (*name).to_owned())
}

/// A hardware address.
pub fn mac(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// An address of IPv4 or IPv6; empty if it is neither.
pub fn ip(bytes: &[u8]) -> String {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return std::net::Ipv4Addr::from(bytes).to_string();
    }
    <[u8; 16]>::try_from(bytes)
        .map(|bytes| std::net::Ipv6Addr::from(bytes).to_string())
        .unwrap_or_default()
}

/// A connection to a family of the kernel's.
pub struct Connection {
    socket: Socket,
    family: u16,
    events: u32,
    sequence: u32,
}

/// A reply that makes no sense.
pub fn nonsense(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl Connection {
    /// Finds a family; None if the kernel has none of that name.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn open(family: &str) -> io::Result<Option<Self>> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let mut connection = Self { socket, family: 0, events: 0, sequence: 0 };
        let request = GenlMessage::from_payload(GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(family.into())],
        });
        let replies = match connection.call::<GenlCtrl>(request, 0) {
            Ok(replies) => replies,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        for attribute in replies.into_iter().flat_map(|reply| reply.nlas) {
            match attribute {
                GenlCtrlAttrs::FamilyId(id) => connection.family = id,
                GenlCtrlAttrs::McastGroups(groups) => {
                    for attribute in groups.into_iter().flatten() {
                        // No family of ours has more than one group.
                        if let McastGrpAttrs::Id(id) = attribute {
                            connection.events = id;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok((connection.family != 0).then_some(connection))
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
                    NetlinkPayload::Done(done) if done.code == 0 => return Ok(replies),
                    NetlinkPayload::Done(done) => {
                        return Err(io::Error::from_raw_os_error(-done.code));
                    }
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

    /// Asks, and collects the answers: with `NLM_F_DUMP` all that there are.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn ask(
        &mut self,
        command: u8,
        attributes: Vec<DefaultNla>,
        flags: u16,
    ) -> io::Result<Vec<Message>> {
        let mut request = GenlMessage::from_payload(Message { command, attributes });
        request.set_resolved_family_id(self.family);
        self.call(request, flags)
    }

    /// Takes part in the family's group, and gives each message to `each` for ever.
    ///
    /// # Errors
    /// Those of netlink and of `each`.
    pub fn listen(
        &mut self,
        each: &mut dyn FnMut(&Message) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.socket.add_membership(self.events)?;
        loop {
            let (datagram, _) = match self.socket.recv_from_full() {
                // We were too slow and missed some.
                Err(error) if error.raw_os_error() == Some(105) => continue,
                other => other?,
            };
            for message in messages::<Message>(&datagram)? {
                if let NetlinkPayload::InnerMessage(message) = message.payload {
                    each(&message.payload)?;
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

    #[test]
    fn a_family_is_found_or_not() {
        // Whatever is loaded, the question has an answer.
        assert!(Connection::open("vmloop_none").expect("generic netlink").is_none());
        assert!(Connection::open("nlctrl").expect("generic netlink").is_some());
    }

    #[test]
    fn addresses() {
        assert_eq!(ip(&[10, 0, 0, 1]), "10.0.0.1");
        assert_eq!(ip(&[0; 16]), "::");
        assert_eq!(ip(&[0; 3]), "");
    }
}
