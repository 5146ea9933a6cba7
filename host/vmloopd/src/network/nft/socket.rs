// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Asks the kernel for the rules of nftables, and hears that they have changed. Both
//! take CAP_NET_ADMIN.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use rtnetlink::packet_core::{NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer};
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, Socket, SocketAddr, TokioSocket};
use rustix::io::Errno;

use super::message::{Message, NEW_CHAIN, NEW_RULE, NEW_TABLE, Reading};
use crate::network::ruleset::Chain;

/// nfnetlink's number of nftables (`NFNL_SUBSYS_NFTABLES`).
const NFTABLES: u16 = 10 << 8;
/// Group of its events (`NFNLGRP_NFTABLES`).
const EVENTS: u32 = 7;
/// Tables, chains and rules have the first numbers of messages, this one the last of
/// them (`NFT_MSG_DELRULE`).
const LAST_OF_RULES: u8 = 8;
/// Messages of netlink itself.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Bytes of the two headers.
const HEADER: usize = 16;
const HEADERS: usize = HEADER + 4;
/// Bytes that are read at once; the kernel gives no more than half of it.
const ROOM: usize = 64 << 10;
/// How often the rules are read again that change meanwhile.
const TRIES: u32 = 20;

fn bad(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// How a dump went.
enum Dump {
    Whole,
    /// The rules have changed meanwhile.
    Torn,
}

/// One dump of tables, chains or rules of all families; the generation of the rules
/// that it is of must be that of the other dumps.
fn dump(
    socket: &Socket,
    request: u8,
    generation: &mut Option<[u8; 2]>,
    reading: &mut Reading,
) -> io::Result<Dump> {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut words = vec![0; HEADERS];
    words[0..4].copy_from_slice(&(HEADERS as u32).to_ne_bytes());
    words[4..6].copy_from_slice(&(NFTABLES | u16::from(request)).to_ne_bytes());
    words[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    words[8..12].copy_from_slice(&number.to_ne_bytes());
    socket.send(&words, 0)?;
    let mut torn = false;
    let mut bytes = Vec::with_capacity(ROOM);
    loop {
        bytes.clear();
        socket.recv(&mut bytes, 0)?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let one = next(&mut rest)?;
            let (kind, payload) = (one.message_type(), one.payload());
            torn |= one.flags() & NLM_F_DUMP_INTR != 0;
            match kind {
                _ if one.sequence_number() != number => {}
                DONE | ERROR => {
                    let code = payload.get(..4).and_then(|code| code.try_into().ok());
                    let code = -i32::from_ne_bytes(code.ok_or_else(|| bad("too short"))?);
                    return match code {
                        0 if torn => Ok(Dump::Torn),
                        0 => Ok(Dump::Whole),
                        code => Err(io::Error::from_raw_os_error(code)),
                    };
                }
                kind if kind & 0xff00 == NFTABLES => {
                    let [family, _, old @ ..] =
                        *payload.first_chunk::<4>().ok_or_else(|| bad("too short"))?;
                    torn |= *generation.get_or_insert(old) != old;
                    let kind = (kind & 0xff) as u8;
                    reading.take(&Message { kind, family, body: &payload[4..] });
                }
                _ => {}
            }
        }
    }
}

/// All chains that the kernel has for nftables, with their rules; none if it knows
/// nothing of nftables. Blocks for as long as the kernel takes.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_ADMIN; others of netlink.
pub fn read() -> io::Result<Vec<Chain>> {
    let mut socket = match Socket::new(NETLINK_NETFILTER) {
        Err(error) if is(&error, &NO_NFNETLINK) => return Ok(Vec::new()),
        other => other?,
    };
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    'again: for _ in 0..TRIES {
        let mut reading = Reading::default();
        let mut generation = None;
        for request in [NEW_TABLE, NEW_CHAIN, NEW_RULE] {
            // What asks for one has the next number.
            match dump(&socket, request + 1, &mut generation, &mut reading) {
                Ok(Dump::Whole) => {}
                Ok(Dump::Torn) => continue 'again,
                // As which the kernel reports rules that changed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue 'again,
                Err(error) if request == NEW_TABLE && is(&error, &[Errno::INVAL]) => {
                    return Ok(Vec::new());
                }
                Err(error) => return Err(error),
            }
        }
        return Ok(reading.finish());
    }
    Err(bad("they change all the time"))
}

/// Whether an error is one of some.
fn is(error: &io::Error, some: &[Errno]) -> bool {
    some.iter().any(|one| error.raw_os_error() == Some(one.raw_os_error()))
}

/// What a kernel without nfnetlink says.
const NO_NFNETLINK: [Errno; 2] = [Errno::PROTONOSUPPORT, Errno::AFNOSUPPORT];

/// Hears of changes.
pub struct Events(TokioSocket);

impl Events {
    /// From now on; None if this kernel has no nfnetlink.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_ADMIN.
    pub fn new() -> io::Result<Option<Self>> {
        let mut socket = match TokioSocket::new(NETLINK_NETFILTER) {
            Err(error) if is(&error, &NO_NFNETLINK) => return Ok(None),
            other => other?,
        };
        socket.socket_mut().bind_auto()?;
        socket.socket_mut().add_membership(EVENTS)?;
        Ok(Some(Self(socket)))
    }

    /// Waits until a table, a chain or a rule has come or gone; that some news were lost
    /// counts as well. Sets change often on some hosts, and are not looked at.
    ///
    /// # Errors
    /// Those of the socket, but for that.
    pub async fn next(&mut self) -> io::Result<()> {
        loop {
            let bytes = match self.0.recv_from_full().await {
                Ok((bytes, _)) => bytes,
                Err(error) if is(&error, &[Errno::NOBUFS]) => return Ok(()),
                Err(error) => return Err(error),
            };
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let one = next(&mut rest)?;
                let kind = one.message_type();
                if kind & 0xff00 != NFTABLES || (kind & 0xff) as u8 <= LAST_OF_RULES {
                    return Ok(());
                }
            }
        }
    }
}

/// Takes the first message off some bytes.
fn next<'a>(rest: &mut &'a [u8]) -> io::Result<NetlinkBuffer<&'a [u8]>> {
    let one = NetlinkBuffer::new_checked(*rest).map_err(|error| bad(&error.to_string()))?;
    let length = (one.length() as usize).next_multiple_of(4).min(rest.len());
    *rest = &rest[length..];
    Ok(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine() {
        // Whether it may be read is the machine's business.
        if let Err(error) = read() {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        }
    }
}
