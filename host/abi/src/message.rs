// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Control messages: what a guest says, checked, and what the agent answers.
//!
//! [`GuestMessage::parse`] is the only door for what a guest writes. It works
//! on a private copy and accepts nothing that is out of range.

use zerocopy::{FromBytes, IntoBytes};

use crate::address::Address;
use crate::directory::{DirectoryEntry, EntryKey};
use crate::lanes::VMLOOP_WINDOW_SIZE_MAX;
use crate::shm;

/// Tags are from 1 to this.
pub const TAG_MAX: u32 = 16383;

/// Bytes of a window at most.
pub const WINDOW_SIZE_MAX: u64 = VMLOOP_WINDOW_SIZE_MAX as u64;
/// Bytes of its pages.
const WINDOW_PAGE: u64 = 4096;

/// Why a message of a guest was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A type that this version does not know.
    #[error("unknown type {0}")]
    Type(u16),
    /// Fewer bytes than its type needs.
    #[error("type {0} with {1} bytes is too short")]
    Short(u16, usize),
    /// A value out of range.
    #[error("type {0}: {1} is out of range")]
    Range(u16, &'static str),
}

/// How a guest stands to a channel; `VMLOOP_STATE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelState {
    /// In use.
    Up,
    /// No traffic for long.
    Idle,
    /// Done with it.
    Closed,
    /// The peer broke the protocol.
    Broken,
}

/// A window of a channel, as one of its guests names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowName {
    /// 1 to [`TAG_MAX`]
    pub tag: u32,
    /// no other one's of its owner in this channel
    pub number: u32,
    /// The guest owns it; else its peer does.
    pub ours: bool,
}

/// How a guest stands to a window; `VMLOOP_WINDOW_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowState {
    /// It is to be made, with so many bytes: whole pages, 1 to [`WINDOW_SIZE_MAX`].
    Wanted(u64),
    /// Its device is there.
    Here,
    /// Done with it; the device may go.
    Gone,
}

/// Counters of one channel, as one guest reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// frames given to the channel
    pub tx_frames: u64,
    /// their bytes
    pub tx_bytes: u64,
    /// frames received from it
    pub rx_frames: u64,
    /// their bytes
    pub rx_bytes: u64,
    /// doorbells rung
    pub tx_doorbells: u64,
    /// doorbells heard
    pub rx_doorbells: u64,
    /// times that the ring was full
    pub tx_full: u64,
    /// frames dropped
    pub rx_dropped: u64,
}

/// What a guest says to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestMessage {
    /// I am here.
    Hello {
        /// major version of its protocol
        major: u16,
        /// minor version of its protocol
        minor: u16,
        /// its CPUs that are online; 0 if it does not say so
        cpus: u32,
        /// `VMLOOP_F_*`
        features: u64,
        /// version of its modules, printable ASCII
        version: String,
        /// its kernel release, printable ASCII
        kernel: String,
    },
    /// These are all of my addresses; at most `VMLOOP_ADVERTISE_MAX`.
    Advertise(Vec<Address>),
    /// Make a channel.
    Want {
        /// identity of the peer
        peer: u64,
        /// epoch of the peer
        epoch: u64,
        /// 1 to 3
        attempt: u32,
    },
    /// How I stand to a channel.
    State {
        /// 1 to [`TAG_MAX`]
        tag: u32,
        /// how
        state: ChannelState,
    },
    /// Counters of one channel; tag 0 ends the answer.
    Stats {
        /// as in STATS_GET
        cookie: u32,
        /// 0 to [`TAG_MAX`]
        tag: u32,
        /// the counters
        counters: Counters,
    },
    /// How I stand to a window of a channel.
    Window(WindowName, WindowState),
}

/// Text from a fixed field: up to the first zero, other than printable ASCII
/// replaced, so that a guest cannot write escape sequences into a log.
fn text(field: &[u8]) -> String {
    field
        .iter()
        .take_while(|byte| **byte != 0)
        .map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '?' })
        .collect()
}

/// `value` for a fixed field of `N` bytes: cut at a character's boundary so
/// that a zero remains at the end.
fn field<const N: usize>(value: &str) -> [u8; N] {
    let mut out = [0; N];
    let mut end = value.len().min(N - 1);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    out[..end].copy_from_slice(&value.as_bytes()[..end]);
    out
}

impl GuestMessage {
    /// Reads a message from a private copy of a record's payload.
    ///
    /// # Errors
    /// [`Malformed`] for everything that docs/protocol.md, section 6, says to
    /// ignore and count.
    pub fn parse(kind: u16, payload: &[u8]) -> Result<Self, Malformed> {
        fn head<T: FromBytes>(kind: u16, payload: &[u8]) -> Result<T, Malformed> {
            T::read_from_prefix(payload)
                .map(|(value, _)| value)
                .map_err(|_| Malformed::Short(kind, payload.len()))
        }

        match kind {
            shm::VMLOOP_MSG_HELLO => {
                let wire: shm::Hello = head(kind, payload)?;
                Ok(Self::Hello {
                    major: wire.major,
                    minor: wire.minor,
                    cpus: wire.cpus,
                    features: wire.features,
                    version: text(&wire.version),
                    kernel: text(&wire.kernel),
                })
            }
            shm::VMLOOP_MSG_ADVERTISE => {
                let (count, _reserved): (u32, u32) =
                    head::<[u32; 2]>(kind, payload).map(|[a, b]| (a, b))?;
                let count = count as usize;
                if count > shm::VMLOOP_ADVERTISE_MAX {
                    return Err(Malformed::Range(kind, "count"));
                }
                let rest = &payload[8..];
                let size = size_of::<shm::Address>();
                if rest.len() < count * size {
                    return Err(Malformed::Short(kind, payload.len()));
                }
                rest.chunks_exact(size)
                    .take(count)
                    .map(|chunk| {
                        let wire: shm::Address = head(kind, chunk)?;
                        Address::parse(&wire).ok_or(Malformed::Range(kind, "address"))
                    })
                    .collect::<Result<Vec<_>, _>>()
                    .map(Self::Advertise)
            }
            shm::VMLOOP_MSG_WANT => {
                let wire: shm::Want = head(kind, payload)?;
                if !(1..=3).contains(&wire.attempt) {
                    return Err(Malformed::Range(kind, "attempt"));
                }
                if wire.peer == 0 {
                    return Err(Malformed::Range(kind, "peer"));
                }
                Ok(Self::Want { peer: wire.peer, epoch: wire.epoch, attempt: wire.attempt })
            }
            shm::VMLOOP_MSG_STATE => {
                let wire: shm::State = head(kind, payload)?;
                if !(1..=TAG_MAX).contains(&wire.tag) {
                    return Err(Malformed::Range(kind, "tag"));
                }
                let state = match wire.state {
                    shm::VMLOOP_STATE_UP => ChannelState::Up,
                    shm::VMLOOP_STATE_IDLE => ChannelState::Idle,
                    shm::VMLOOP_STATE_CLOSED => ChannelState::Closed,
                    shm::VMLOOP_STATE_BROKEN => ChannelState::Broken,
                    _ => return Err(Malformed::Range(kind, "state")),
                };
                Ok(Self::State { tag: wire.tag, state })
            }
            shm::VMLOOP_MSG_STATS => {
                let wire: shm::Stats = head(kind, payload)?;
                if wire.tag > TAG_MAX {
                    return Err(Malformed::Range(kind, "tag"));
                }
                Ok(Self::Stats {
                    cookie: wire.cookie,
                    tag: wire.tag,
                    counters: Counters {
                        tx_frames: wire.tx_frames,
                        tx_bytes: wire.tx_bytes,
                        rx_frames: wire.rx_frames,
                        rx_bytes: wire.rx_bytes,
                        tx_doorbells: wire.tx_doorbells,
                        rx_doorbells: wire.rx_doorbells,
                        tx_full: wire.tx_full,
                        rx_dropped: wire.rx_dropped,
                    },
                })
            }
            shm::VMLOOP_MSG_WINDOW => {
                let wire: shm::Window = head(kind, payload)?;
                if !(1..=TAG_MAX).contains(&wire.tag) {
                    return Err(Malformed::Range(kind, "tag"));
                }
                let ours = match wire.ours {
                    0 => false,
                    1 => true,
                    _ => return Err(Malformed::Range(kind, "ours")),
                };
                let is_size = (1..=WINDOW_SIZE_MAX).contains(&wire.size);
                let state = match wire.state {
                    shm::VMLOOP_WINDOW_WANTED if !ours => {
                        return Err(Malformed::Range(kind, "ours"));
                    }
                    shm::VMLOOP_WINDOW_WANTED
                        if !is_size || !wire.size.is_multiple_of(WINDOW_PAGE) =>
                    {
                        return Err(Malformed::Range(kind, "size"));
                    }
                    shm::VMLOOP_WINDOW_WANTED => WindowState::Wanted(wire.size),
                    shm::VMLOOP_WINDOW_HERE => WindowState::Here,
                    shm::VMLOOP_WINDOW_GONE => WindowState::Gone,
                    _ => return Err(Malformed::Range(kind, "state")),
                };
                Ok(Self::Window(WindowName { tag: wire.tag, number: wire.number, ours }, state))
            }
            other => Err(Malformed::Type(other)),
        }
    }
}

/// What the agent says to a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentMessage {
    /// Who you are.
    Welcome {
        /// the guest's own identity
        id: u64,
        /// the guest's own epoch
        epoch: u64,
        /// differs for every start of the agent
        agent: u64,
        /// report idle channels after so many milliseconds; 0: never
        idle_ms: u32,
        /// the guest's name on the host; cut after 63 bytes
        name: String,
    },
    /// A directory of this generation begins.
    DirBegin(u64),
    /// One entry.
    DirPeer(Box<DirectoryEntry>),
    /// The directory of this generation is complete.
    DirEnd(u64),
    /// What is new in a directory begins.
    DirChange {
        /// of the directory
        generation: u64,
        /// of the one that the guest has
        before: u64,
    },
    /// An entry is not there any more.
    DirGone(EntryKey),
    /// No channel for now.
    Refused {
        /// identity of the peer
        peer: u64,
        /// `VMLOOP_REFUSED_*`
        reason: u32,
        /// not again for so many milliseconds; 0: not before the directory changes
        retry_ms: u32,
    },
    /// Let go of a channel.
    Close {
        /// the channel
        tag: u32,
        /// `VMLOOP_CLOSE_*`
        reason: u32,
    },
    /// Send your counters.
    StatsGet {
        /// to be repeated in the answers
        cookie: u32,
    },
    /// Which device is a window.
    WindowAt {
        /// the window
        name: WindowName,
        /// PCI bus << 8 | device << 3 | function; None: it cannot be made
        place: Option<u16>,
        /// its bytes
        size: u64,
    },
}

impl AgentMessage {
    /// The record's type and payload.
    pub fn encode(&self) -> (u16, Vec<u8>) {
        match self {
            Self::Welcome { id, epoch, agent, idle_ms, name } => (
                shm::VMLOOP_MSG_WELCOME,
                shm::Welcome {
                    id: *id,
                    epoch: *epoch,
                    agent: *agent,
                    major: shm::VMLOOP_SHM_MAJOR,
                    minor: shm::VMLOOP_SHM_MINOR,
                    idle_ms: *idle_ms,
                    name: field(name),
                }
                .as_bytes()
                .to_vec(),
            ),
            Self::DirBegin(generation) => (
                shm::VMLOOP_MSG_DIR_BEGIN,
                shm::Dir { generation: *generation }.as_bytes().to_vec(),
            ),
            Self::DirPeer(entry) => {
                let mut ip = [shm::Address::default(); shm::VMLOOP_PEER_IPS];
                let mut count = 0;
                for (slot, address) in ip.iter_mut().zip(entry.ips.iter()) {
                    *slot = address.wire();
                    count += 1;
                }
                let wire = shm::Peer {
                    id: entry.id,
                    epoch: entry.epoch,
                    tag: entry.tag,
                    flags: entry.flags(),
                    local_mac: entry.local_mac,
                    mac: entry.mac,
                    ip_count: count,
                    mtu: entry.mtu,
                    name: field(&entry.name),
                    ip,
                    gateway: entry.gateway.unwrap_or_default(),
                    reserved: 0,
                };
                let mut bytes = wire.as_bytes().to_vec();
                if entry.gateway.is_none() {
                    // All that guests of version 1.0 have room for.
                    bytes.truncate(std::mem::offset_of!(shm::Peer, gateway));
                }
                (shm::VMLOOP_MSG_DIR_PEER, bytes)
            }
            Self::DirEnd(generation) => {
                (shm::VMLOOP_MSG_DIR_END, shm::Dir { generation: *generation }.as_bytes().to_vec())
            }
            Self::DirChange { generation, before } => (
                shm::VMLOOP_MSG_DIR_CHANGE,
                shm::DirChange { generation: *generation, before: *before }.as_bytes().to_vec(),
            ),
            Self::DirGone(EntryKey { id, local_mac, mac }) => (
                shm::VMLOOP_MSG_DIR_GONE,
                shm::DirGone { id: *id, local_mac: *local_mac, mac: *mac, reserved: 0 }
                    .as_bytes()
                    .to_vec(),
            ),
            Self::Refused { peer, reason, retry_ms } => (
                shm::VMLOOP_MSG_REFUSED,
                shm::Refused { peer: *peer, reason: *reason, retry_ms: *retry_ms }
                    .as_bytes()
                    .to_vec(),
            ),
            Self::Close { tag, reason } => (
                shm::VMLOOP_MSG_CLOSE,
                shm::Close { tag: *tag, reason: *reason }.as_bytes().to_vec(),
            ),
            Self::StatsGet { cookie } => (
                shm::VMLOOP_MSG_STATS_GET,
                shm::StatsGet { cookie: *cookie, reserved: 0 }.as_bytes().to_vec(),
            ),
            Self::WindowAt { name, place, size } => (
                shm::VMLOOP_MSG_WINDOW_AT,
                shm::WindowAt {
                    tag: name.tag,
                    number: name.number,
                    ours: name.ours.into(),
                    place: place.map_or(shm::VMLOOP_WINDOW_NOWHERE, u32::from),
                    size: *size,
                }
                .as_bytes()
                .to_vec(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::directory::PeerInterface;

    fn address(family: u8, prefix: u8) -> shm::Address {
        shm::Address { family, prefix, mac: [2, 0, 0, 0, 0, 1], ip: [10; 16] }
    }

    fn advertise(count: u32, list: &[shm::Address]) -> Vec<u8> {
        let mut out = [count, 0].as_bytes().to_vec();
        for entry in list {
            out.extend_from_slice(entry.as_bytes());
        }
        out
    }

    #[test]
    fn advertise_counts_and_ranges() {
        let kind = shm::VMLOOP_MSG_ADVERTISE;
        let parse = |payload: &[u8]| GuestMessage::parse(kind, payload);
        assert_eq!(parse(&advertise(0, &[])), Ok(GuestMessage::Advertise(vec![])));
        let Ok(GuestMessage::Advertise(list)) =
            parse(&advertise(2, &[address(4, 24), address(6, 128)]))
        else {
            panic!("two good addresses were refused");
        };
        assert_eq!(list[0].ip, "10.10.10.10".parse::<std::net::IpAddr>().expect("an address"));
        assert_eq!(list.len(), 2);
        assert_eq!(parse(&advertise(2, &[address(4, 24)])), Err(Malformed::Short(kind, 32)));
        assert_eq!(parse(&advertise(65, &[])), Err(Malformed::Range(kind, "count")));
        assert_eq!(parse(&advertise(u32::MAX, &[])), Err(Malformed::Range(kind, "count")));
        assert_eq!(parse(&advertise(1, &[address(4, 33)])), Err(Malformed::Range(kind, "address")));
        assert_eq!(parse(&advertise(1, &[address(5, 1)])), Err(Malformed::Range(kind, "address")));
    }

    #[test]
    fn longer_messages_are_read_up_to_what_is_known() {
        let mut payload = shm::State { tag: 3, state: 1 }.as_bytes().to_vec();
        payload.extend_from_slice(&[0xff; 9]);
        assert_eq!(
            GuestMessage::parse(shm::VMLOOP_MSG_STATE, &payload),
            Ok(GuestMessage::State { tag: 3, state: ChannelState::Up })
        );
    }

    #[test]
    fn windows_have_sizes_and_owners() {
        let wire = shm::Window { tag: 7, number: 5, ours: 1, state: 1, size: 8192 };
        let parse =
            |wire: shm::Window| GuestMessage::parse(shm::VMLOOP_MSG_WINDOW, wire.as_bytes());
        let name = WindowName { tag: 7, number: 5, ours: true };
        assert_eq!(parse(wire), Ok(GuestMessage::Window(name, WindowState::Wanted(8192))));
        let theirs = WindowName { ours: false, ..name };
        let here = shm::Window { ours: 0, state: 2, size: 0, ..wire };
        assert_eq!(parse(here), Ok(GuestMessage::Window(theirs, WindowState::Here)));
        let gone = shm::Window { state: 3, size: 0, ..wire };
        assert_eq!(parse(gone), Ok(GuestMessage::Window(name, WindowState::Gone)));
        let largest = shm::Window { size: WINDOW_SIZE_MAX, ..wire };
        assert!(parse(largest).is_ok());
        for (wrong, what) in [
            (shm::Window { tag: 0, ..wire }, "tag"),
            (shm::Window { tag: TAG_MAX + 1, ..wire }, "tag"),
            (shm::Window { ours: 0, ..wire }, "ours"),
            (shm::Window { ours: 2, ..wire }, "ours"),
            (shm::Window { state: 0, ..wire }, "state"),
            (shm::Window { state: 4, ..wire }, "state"),
            (shm::Window { size: 0, ..wire }, "size"),
            (shm::Window { size: 4097, ..wire }, "size"),
            (shm::Window { size: WINDOW_SIZE_MAX + 4096, ..wire }, "size"),
        ] {
            assert_eq!(parse(wrong), Err(Malformed::Range(shm::VMLOOP_MSG_WINDOW, what)));
        }
    }

    #[test]
    fn text_cannot_carry_escapes() {
        let mut hello = shm::Hello::default();
        hello.version[..4].copy_from_slice(b"\x1b[2J");
        let Ok(GuestMessage::Hello { version, .. }) =
            GuestMessage::parse(shm::VMLOOP_MSG_HELLO, hello.as_bytes())
        else {
            panic!("a good hello was refused");
        };
        assert_eq!(version, "?[2J");
    }

    #[test]
    fn names_are_cut_at_a_character() {
        assert_eq!(field::<4>("aéé"), [b'a', 0xc3, 0xa9, 0]);
        assert_eq!(field::<4>("éé"), [0xc3, 0xa9, 0, 0]);
    }

    #[test]
    fn a_directory_entry_takes_eight_addresses() {
        let ip = Address { mac: [1; 6], ip: "fe80::1".parse().expect("an address"), prefix: 64 };
        let entry = DirectoryEntry {
            peer: Arc::new(PeerInterface {
                id: 1,
                epoch: 2,
                mac: [2; 6],
                name: "x".repeat(100).into(),
                ips: vec![ip; 20].into(),
            }),
            tag: 3,
            tagged: true,
            keep: false,
            without: 0,
            gateway: None,
            local_mac: [1; 6],
            mtu: 1500,
        };
        let (kind, mut payload) = AgentMessage::DirPeer(Box::new(entry.clone())).encode();
        assert_eq!(kind, shm::VMLOOP_MSG_DIR_PEER);
        // No longer than what guests of version 1.0 read.
        assert_eq!(payload.len(), 264);
        payload.resize(size_of::<shm::Peer>(), 0);
        let wire = shm::Peer::read_from_bytes(&payload).expect("its size");
        assert_eq!((wire.ip_count, wire.flags, wire.name[31]), (8, 1, 0));

        let routed = DirectoryEntry { keep: true, without: 5, gateway: Some([4; 6]), ..entry };
        let (_, payload) = AgentMessage::DirPeer(Box::new(routed)).encode();
        let wire = shm::Peer::read_from_bytes(&payload).expect("its size");
        assert_eq!((wire.flags, wire.gateway), (7 | 5 << 16, [4; 6]));
    }

    proptest! {
        #[test]
        fn no_bytes_upset_the_parser(kind in 0u16..48, payload in prop::collection::vec(any::<u8>(), 0..2048)) {
            if let Ok(message) = GuestMessage::parse(kind, &payload) {
                match message {
                    GuestMessage::Advertise(list) => prop_assert!(list.len() <= shm::VMLOOP_ADVERTISE_MAX),
                    GuestMessage::State { tag, .. } => prop_assert!((1..=TAG_MAX).contains(&tag)),
                    GuestMessage::Want { attempt, peer, .. } => prop_assert!(attempt <= 3 && peer != 0),
                    GuestMessage::Hello { version, kernel, .. } => {
                        prop_assert!(version.is_ascii() && kernel.is_ascii());
                    }
                    GuestMessage::Stats { tag, .. } => prop_assert!(tag <= TAG_MAX),
                    GuestMessage::Window(name, state) => {
                        prop_assert!((1..=TAG_MAX).contains(&name.tag));
                        if let WindowState::Wanted(size) = state {
                            prop_assert!(name.ours && size <= WINDOW_SIZE_MAX && size % 4096 == 0);
                        }
                    }
                }
            }
        }

        #[test]
        fn advertise_with_any_count(count in any::<u32>(), families in prop::collection::vec((0u8..8, any::<u8>()), 0..70)) {
            let list: Vec<_> = families.iter().map(|(f, p)| address(*f, *p)).collect();
            let _ = GuestMessage::parse(shm::VMLOOP_MSG_ADVERTISE, &advertise(count, &list));
        }
    }
}
