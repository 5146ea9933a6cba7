// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Connections that `vmloop_tcp` has taken over: `vmloop streams`, the stream path's `ss`.
//! docs/netlink/vmloop_tcp.yaml is the specification of what the module says, and the
//! numbers here follow it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use netlink_packet_core::NLM_F_DUMP;

use super::genl::{Connection, Message, hex, ip, kind, name, number, value};
use super::netlink::Peer;
use crate::table::{Table, bytes, dash, short};

const STREAM_GET: u8 = 1;

/// Names of what carries a connection, by number.
const STATES: [&str; 5] = ["tcp", "opening", "going-over", "lane", "going-back"];
/// Names of why TCP does, by number.
const WHY: [&str; 12] = [
    "young", "asked", "stays", "channel", "room", "peer", "busy", "option", "unread", "policy",
    "rule", "quota",
];

/// The same in words, in the same order.
const WORDS: [&str; 12] = [
    "too little traffic yet",
    "a lane is being asked for",
    "for good: it ends, or has made a call that lanes do not carry",
    "no channel to the peer is up",
    "the channel has no lane or no memory free",
    "the peer did not want it",
    "was in use, or not accepted yet",
    "a socket option that lanes do not carry",
    "what has come is to be read first",
    "the host's policy has no streams for the two",
    "a rule has it stay there (vmloop stream rules)",
    "its user, or its cgroup, has its share of the channel's memory",
];

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Stream {
    /// address and port of our end
    pub local: SocketAddr,
    /// of the other end
    pub remote: SocketAddr,
    /// identity of the guest at the other end; empty in a container
    pub id: String,
    /// its name on the host; empty if it is not in the directory any more
    pub peer: String,
    /// what carries its bytes
    pub state: String,
    /// why TCP does; empty if it does not
    pub why: String,
    /// this end connected, and asks for lanes
    pub active: bool,
    /// number of its lane
    pub lane: Option<u64>,
    /// of the ring that this end sends by, in bytes; 0 without a lane
    pub ring_size: u64,
    /// bytes that went by all lanes that it has had
    pub bytes_sent: u64,
    /// bytes that came by them
    pub bytes_received: u64,
    /// bytes in the ring that the peer has not taken
    pub tx_queue: u64,
    /// bytes in the peer's ring that the program has not read
    pub rx_queue: u64,
    /// how many lanes it has had
    pub lanes: u64,
    /// of its socket; 0 if no program has it
    pub inode: u64,
    /// name and number of each program that has it, as far as the caller may know
    pub programs: Vec<Program>,
}

/// A program that has a socket.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Program {
    /// as in /proc/PID/comm
    pub name: String,
    /// its number
    pub pid: u32,
}

impl Stream {
    /// None if it has no addresses.
    fn from(message: &Message) -> Option<Self> {
        let mut numbers = [0; 17];
        let mut addresses: [Option<IpAddr>; 2] = [None; 2];
        let mut lane = None;
        for attribute in &message.attributes {
            match kind(attribute) {
                1 => addresses[0] = ip(&value(attribute)).parse().ok(),
                3 => addresses[1] = ip(&value(attribute)).parse().ok(),
                10 => lane = Some(number(attribute)),
                index => {
                    if let Some(place) = numbers.get_mut(usize::from(index)) {
                        *place = number(attribute);
                    }
                }
            }
        }
        let port = |number| u16::try_from(number).ok();
        let state = name(&STATES, numbers[6]);
        Some(Self {
            local: SocketAddr::new(addresses[0]?, port(numbers[2])?),
            remote: SocketAddr::new(addresses[1]?, port(numbers[4])?),
            id: if numbers[5] == 0 { String::new() } else { hex(numbers[5]) },
            peer: String::new(),
            why: if state == "tcp" { name(&WHY, numbers[7]) } else { String::new() },
            state,
            inode: numbers[8],
            active: numbers[9] != 0,
            lane,
            ring_size: numbers[11],
            bytes_sent: numbers[12],
            bytes_received: numbers[13],
            tx_queue: numbers[14],
            rx_queue: numbers[15],
            lanes: numbers[16],
            programs: Vec::new(),
        })
    }

    /// What carries it, and why, for people.
    fn standing(&self) -> String {
        let words = WHY.iter().position(|why| *why == self.why).map(|index| WORDS[index]);
        match (words, self.active) {
            (None, _) => self.state.clone(),
            (Some(_), false) if self.why == "young" => "tcp: the other end asks for lanes".into(),
            (Some(words), _) => format!("{}: {words}", self.state),
        }
    }
}

/// How many connections were taken over in a network namespace, and how many of them have lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Count {
    /// that were taken over
    pub connections: u64,
    /// those of them that a lane carries
    pub lanes: u64,
}

impl Count {
    /// Of a list.
    pub fn of(streams: &[Stream]) -> Self {
        let lanes = streams.iter().filter(|one| one.state == "lane").count();
        Self { connections: streams.len() as u64, lanes: lanes as u64 }
    }
}

/// All connections that were taken over here, by address, without the names of peers and programs;
/// None if `vmloop_tcp` is not loaded.
///
/// # Errors
/// Those of netlink.
pub fn ask() -> io::Result<Option<Vec<Stream>>> {
    let Some(mut module) = Connection::open("vmloop_tcp")? else {
        return Ok(None);
    };
    let replies = match module.ask(STREAM_GET, Vec::new(), NLM_F_DUMP) {
        // It is unloaded at this moment.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        replies => replies?,
    };
    let mut streams: Vec<Stream> = replies.iter().filter_map(Stream::from).collect();
    // Where its table grew meanwhile, the module says some of them twice.
    streams.sort_by_key(|one| (one.local, one.remote));
    streams.dedup_by_key(|one| (one.local, one.remote));
    Ok(Some(streams))
}

/// The same with the names.
///
/// # Errors
/// Those of netlink.
pub fn list(peers: &[Peer]) -> io::Result<Option<Vec<Stream>>> {
    let Some(mut streams) = ask()? else {
        return Ok(None);
    };
    let mut programs = programs(Path::new("/proc"), &streams.iter().map(|one| one.inode).collect());
    for one in &mut streams {
        one.peer = peers
            .iter()
            .find(|peer| peer.id == one.id)
            .map_or(String::new(), |peer| peer.name.clone());
        one.programs = programs.remove(&one.inode).unwrap_or_default();
    }
    Ok(Some(streams))
}

/// Which programs have the sockets with these inodes; of programs of other users only root
/// is told.
fn programs(proc: &Path, inodes: &BTreeSet<u64>) -> BTreeMap<u64, Vec<Program>> {
    let mut found: BTreeMap<u64, Vec<Program>> = BTreeMap::new();
    if inodes.is_empty() {
        return found;
    }
    for process in proc.read_dir().into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // It ends meanwhile, or is another user's: then it is not known.
        let its: BTreeSet<u64> = process
            .path()
            .join("fd")
            .read_dir()
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|descriptor| inode(&descriptor.path().read_link().ok()?))
            .filter(|inode| inodes.contains(inode))
            .collect();
        if its.is_empty() {
            continue;
        }
        let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        for inode in its {
            let program = Program { name: printable(name.trim_end()), pid };
            found.entry(inode).or_default().push(program);
        }
    }
    found
}

/// A program names itself as it likes: nothing in that may steer a terminal.
fn printable(name: &str) -> String {
    name.replace(char::is_control, "?")
}

/// Of a link such as `socket:[1234]`.
fn inode(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Writes a table.
///
/// # Errors
/// Those of writing.
pub fn show(out: &mut dyn Write, streams: &[Stream]) -> io::Result<()> {
    let mut table = Table::new(&[
        "LOCAL", "REMOTE", "PEER", "BY", "RING", "SENT", "RECEIVED", "OUT-Q", "IN-Q", "PROGRAM",
    ]);
    for one in streams {
        let programs: Vec<_> = one
            .programs
            .iter()
            .map(|program| format!("{}/{}", program.name, program.pid))
            .collect();
        let lane = |text: String| if one.lane.is_some() { text } else { "-".into() };
        table.row([
            one.local.to_string(),
            one.remote.to_string(),
            dash(&one.peer),
            one.standing(),
            lane(bytes(one.ring_size)),
            short(one.bytes_sent as f64),
            short(one.bytes_received as f64),
            lane(one.tx_queue.to_string()),
            lane(one.rx_queue.to_string()),
            dash(&programs.join(",")),
        ]);
    }
    if table.is_empty() {
        return writeln!(
            out,
            "no connection of this network namespace can have a lane. If there is one that should:\n  its server was started before vmloop_tcp was loaded: restart the server\n  vmloop ls does not show the peer, or did not when the connection began: connect again\n  a rule has it stay on TCP: vmloop stream rules"
        );
    }
    table.write(out)
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::DefaultNla;

    use super::*;

    fn message() -> Message {
        let attribute = |kind, value: &[u8]| DefaultNla::new(kind, value.to_vec());
        let attributes = vec![
            attribute(1, &[10, 0, 0, 1]),
            attribute(2, &4000u16.to_ne_bytes()),
            attribute(3, &[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]),
            attribute(4, &80u16.to_ne_bytes()),
            attribute(5, &0xabcu64.to_ne_bytes()),
            attribute(6, &3u32.to_ne_bytes()),
            attribute(8, &77u64.to_ne_bytes()),
            attribute(9, &[1]),
            attribute(10, &0u32.to_ne_bytes()),
            attribute(11, &(256u32 << 10).to_ne_bytes()),
            attribute(12, &123_456_789u64.to_ne_bytes()),
            attribute(14, &5u32.to_ne_bytes()),
            attribute(16, &2u32.to_ne_bytes()),
            attribute(99, &[0]),
        ];
        Message { command: STREAM_GET, attributes }
    }

    #[test]
    fn a_stream() {
        let one = Stream::from(&message()).expect("a stream");
        assert_eq!(one.local.to_string(), "10.0.0.1:4000");
        assert_eq!(one.remote.to_string(), "[fd00::2]:80");
        assert_eq!((one.id.as_str(), one.state.as_str()), ("0000000000000abc", "lane"));
        assert_eq!((one.lane, one.ring_size, one.inode), (Some(0), 256 << 10, 77));
        assert_eq!((one.bytes_sent, one.bytes_received), (123_456_789, 0));
        assert_eq!((one.tx_queue, one.rx_queue, one.lanes), (5, 0, 2));
        assert!(one.active && one.why.is_empty());
        let mut out = Vec::new();
        show(&mut out, &[one]).expect("written");
        let text = String::from_utf8_lossy(&out);
        assert!(text.contains("lane  256 KiB  123M"), "{text}");
    }

    #[test]
    fn a_count() {
        let lane = Stream::from(&message()).expect("a stream");
        let tcp = Stream { state: "going-back".into(), ..lane.clone() };
        assert_eq!(Count::of(&[lane, tcp]), Count { connections: 2, lanes: 1 });
    }

    #[test]
    fn why() {
        let mut one = Stream::from(&message()).expect("a stream");
        one.state = "tcp".into();
        for (why, words) in WHY.iter().zip(WORDS) {
            one.why = (*why).into();
            assert_eq!(one.standing(), format!("tcp: {words}"));
        }
        one.active = false;
        one.why = "young".into();
        assert_eq!(one.standing(), "tcp: the other end asks for lanes");
        one.why = "12".into();
        assert_eq!(one.standing(), "tcp", "newer modules");
    }

    #[test]
    fn without_addresses() {
        assert_eq!(Stream::from(&Message { command: STREAM_GET, attributes: Vec::new() }), None);
    }

    #[test]
    fn names() {
        assert_eq!(printable("a b\u{1b}[2J\nc"), "a b?[2J?c");
    }

    #[test]
    fn whose() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
        let link = std::fs::read_link(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&listener)
        ))
        .expect("a link");
        let inode = inode(&link).expect("an inode");
        let found = programs(Path::new("/proc"), &BTreeSet::from([inode]));
        assert_eq!(found[&inode].len(), 1);
        assert_eq!(found[&inode][0].pid, std::process::id());
    }
}
