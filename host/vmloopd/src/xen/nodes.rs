// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What stands in XenStore (docs/protocol.md, section 8): reading what guests
//! wrote, which may be anything, and the lines that they read.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use vmloop_abi::address::Address;
use vmloop_abi::directory::DirectoryEntry;
use vmloop_abi::lanes;
use vmloop_abi::memory::Layout;
use vmloop_abi::message::{ChannelState, Counters, TAG_MAX};
use vmloop_abi::shm;

use crate::end::{Offer, Ports};
use crate::mac::{format_mac, parse_mac};

/// What a guest is told, line by line: the first word, which says about what,
/// and the others. They are written in this order.
pub type Lines = BTreeMap<String, String>;

/// Longest value of a guest's that is looked at.
pub const VALUE_MAX: usize = 1024;
/// Addresses in one value of a guest's.
pub const ADDRESSES: usize = 16;
/// Longest word of text that is kept.
const WORD_MAX: usize = 63;

/// Words of a guest's value: printable ASCII, one blank between two.
pub fn words(value: &[u8]) -> Option<Vec<&str>> {
    if value.len() > VALUE_MAX || value.iter().any(|byte| !(0x20..0x7f).contains(byte)) {
        return None;
    }
    let text = std::str::from_utf8(value).ok()?;
    Some(text.split(' ').filter(|word| !word.is_empty()).collect())
}

/// Reads decimal digits, and nothing else.
pub fn number<T: std::str::FromStr>(word: &str) -> Option<T> {
    if word.is_empty() || word.len() > 20 || !word.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    word.parse().ok()
}

/// Reads up to 16 hexadecimal digits.
pub fn random(word: &str) -> Option<u64> {
    if word.is_empty() || word.len() > 16 || !word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(word, 16).ok()
}

/// One word that stands for a name.
pub fn word(name: &str) -> String {
    let word: String =
        name.chars().take(WORD_MAX).map(|c| if c.is_ascii_graphic() { c } else { '_' }).collect();
    if word.is_empty() { "?".into() } else { word }
}

/// `hello` of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// major version of its protocol
    pub major: u16,
    /// minor version of its protocol
    pub minor: u16,
    /// differs for every start of its modules; never 0
    pub incarnation: u64,
    /// `VMLOOP_F_*`
    pub features: u64,
    /// version of its modules
    pub version: String,
    /// its kernel release
    pub kernel: String,
}

impl Hello {
    /// Reads it.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let words = words(value)?;
        let [major, minor, incarnation, features, version, kernel, ..] = words[..] else {
            return None;
        };
        Some(Self {
            major: number(major)?,
            minor: number(minor)?,
            incarnation: random(incarnation).filter(|number| *number != 0)?,
            features: number(features)?,
            version: word(version),
            kernel: word(kernel),
        })
    }
}

/// `channel/TAG` of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// The region is there.
    Offer(Offer),
    /// How it stands.
    State(ChannelState),
    /// It could not make the region, or map it: an error's number.
    Fail(u32),
}

/// A grant, and one port at least. Words behind them are a newer guest's.
fn offer(gref: &str, ports: &[&str]) -> Option<Offer> {
    let ports: Vec<u32> = ports.iter().map_while(|port| number(port)).collect();
    (!ports.is_empty()).then_some(Offer { gref: number(gref)?, ports: Ports::new(&ports) })
}

impl Said {
    /// Reads it.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let words = words(value)?;
        match words[..] {
            ["offer", gref, ref ports @ ..] => Some(Self::Offer(offer(gref, ports)?)),
            ["up", ..] => Some(Self::State(ChannelState::Up)),
            ["idle", ..] => Some(Self::State(ChannelState::Idle)),
            ["broken", ..] => Some(Self::State(ChannelState::Broken)),
            ["closed", ..] => Some(Self::State(ChannelState::Closed)),
            ["fail", errno, ..] => Some(Self::Fail(number(errno)?)),
            _ => None,
        }
    }
}

/// Reads `address` of a guest: how many there are, and the first of them.
pub fn addresses(value: &[u8]) -> Option<(usize, Vec<Address>)> {
    let words = words(value)?;
    let (count, rest) = words.split_first()?;
    Some((number(count)?, pairs(rest)?))
}

/// Reads `address/N` of a guest.
pub fn more_addresses(value: &[u8]) -> Option<Vec<Address>> {
    pairs(&words(value)?)
}

fn pairs(words: &[&str]) -> Option<Vec<Address>> {
    words.chunks(2).take(ADDRESSES).map(address).collect()
}

fn address(words: &[&str]) -> Option<Address> {
    let [mac, address] = words else { return None };
    let (ip, prefix) = address.split_once('/')?;
    let ip: IpAddr = ip.parse().ok()?;
    let prefix: u8 = number(prefix)?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    (prefix <= most).then_some(Address { mac: parse_mac(mac)?, ip, prefix })
}

/// Reads `want/PEER` of a guest: epoch of the peer, and which attempt it is.
pub fn want(value: &[u8]) -> Option<(u64, u32)> {
    let words = words(value)?;
    let [epoch, attempt, ..] = words[..] else { return None };
    Some((random(epoch)?, number(attempt)?))
}

/// Reads `stats/COOKIE/TAG` of a guest.
pub fn counters(value: &[u8]) -> Option<Counters> {
    let words = words(value)?;
    let mut numbers = [0; 8];
    for (slot, at) in numbers.iter_mut().zip(0..) {
        *slot = number(words.get(at)?)?;
    }
    let [tx_frames, tx_bytes, rx_frames, rx_bytes, tx_doorbells, rx_doorbells, tx_full, rx_dropped] =
        numbers;
    Some(Counters {
        tx_frames,
        tx_bytes,
        rx_frames,
        rx_bytes,
        tx_doorbells,
        rx_doorbells,
        tx_full,
        rx_dropped,
    })
}

/// What a guest is to do about a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// side 0: make the region, with that in it, and so many doorbells at most
    Make(Layout, u32),
    /// side 1: nothing is offered yet
    Wait,
    /// side 1: map the peer's descriptor, bind the peer's ports
    Map(Offer),
    /// let go of it
    Close,
}

/// `channel/TAG` of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// the other guest's domain
    pub peer: u64,
    /// which side the guest is
    pub side: usize,
    /// what it is to do
    pub task: Task,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.peer, self.side)?;
        match self.task {
            Task::Make(Layout::Lane, _) => f.write_str("make"),
            Task::Make(Layout::Table, 1) => write!(f, "make {}", lanes::VMLOOP_TABLE_MAJOR),
            Task::Make(Layout::Table, bells) => {
                write!(f, "make {} {bells}", lanes::VMLOOP_TABLE_MAJOR)
            }
            Task::Wait => f.write_str("wait"),
            Task::Map(offer) => {
                write!(f, "map {}", offer.gref)?;
                offer.ports.as_slice().iter().try_for_each(|port| write!(f, " {port}"))
            }
            Task::Close => f.write_str("close"),
        }
    }
}

impl Link {
    /// Reads what an earlier agent wrote.
    pub fn parse(value: &str) -> Option<Self> {
        let words = words(value.as_bytes())?;
        let [peer, side, ref task @ ..] = words[..] else { return None };
        let task = match task {
            ["make"] => Task::Make(Layout::Lane, 1),
            ["make", _] => Task::Make(Layout::Table, 1),
            ["make", _, bells] => Task::Make(Layout::Table, number(bells)?),
            ["wait"] => Task::Wait,
            ["map", gref, ports @ ..] => Task::Map(offer(gref, ports)?),
            ["close"] => Task::Close,
            _ => return None,
        };
        let side = number(side).filter(|side| *side < 2)?;
        Some(Self { peer: number(peer)?, side, task })
    }
}

/// Reads a tag.
pub fn tag(word: &str) -> Option<u32> {
    number(word).filter(|tag| (1..=TAG_MAX).contains(tag))
}

/// `agent`, which says that there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// differs for every start of the agent
    pub agent: u64,
    /// the guest's domain
    pub id: u64,
    /// the guest's epoch
    pub epoch: u64,
    /// incarnation of the hello that is answered; 0 if none
    pub echo: u64,
    /// report idle channels after so many milliseconds; 0: never
    pub idle_ms: u32,
    /// bytes of each ring of new channels
    pub ring_size: u32,
    /// the guest's name
    pub name: String,
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agent, id, epoch, echo, idle_ms, ring_size, name } = self;
        let (major, minor, name) = (shm::VMLOOP_SHM_MAJOR, shm::VMLOOP_SHM_MINOR, word(name));
        write!(
            f,
            "{major} {minor} {agent:016x} {id} {epoch:016x} {echo:016x} {idle_ms} {ring_size} {name}"
        )
    }
}

/// The lines of a directory.
pub fn directory(entries: &[DirectoryEntry], lines: &mut Lines) {
    let mut interfaces: BTreeMap<u64, usize> = BTreeMap::new();
    for entry in entries {
        let peer = format!("peer/{}", entry.id);
        let at = interfaces.entry(entry.id).or_default();
        let mut text = format!(
            "{} {} {} {}",
            format_mac(&entry.local_mac),
            format_mac(&entry.mac),
            entry.flags(),
            entry.mtu
        );
        if let Some(gateway) = &entry.gateway {
            text.push_str(&format!(" {}", format_mac(gateway)));
        }
        for address in entry.ips.iter().take(shm::VMLOOP_PEER_IPS) {
            text.push_str(&format!(" {}/{}", address.ip, address.prefix));
        }
        lines.insert(format!("{peer}/interface/{at}"), text);
        *at += 1;
        lines.insert(peer, format!("{:016x} {} {}", entry.epoch, entry.tag, word(&entry.name)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use vmloop_abi::directory::PeerInterface;

    use super::*;

    #[test]
    fn what_guests_write() {
        let hello = Hello::parse(b"1 0 00000000000000ff 1 0.1.0 6.12.57-amd64 more").expect("one");
        assert_eq!((hello.major, hello.incarnation, hello.features), (1, 255, 1));
        assert_eq!(hello.kernel, "6.12.57-amd64");
        for bad in ["", "1 0 0 1 a b", "1 0 +1 1 a b", "1 0 1 1 a", "x 0 1 1 a b", "1 0 1 1 a \x1b"]
        {
            assert_eq!(Hello::parse(bad.as_bytes()), None, "{bad}");
        }
        let offer = |ports: &[u32]| Some(Said::Offer(Offer { gref: 8, ports: Ports::new(ports) }));
        assert_eq!(Said::parse(b"offer 8 17"), offer(&[17]));
        assert_eq!(Said::parse(b"offer 8 17 3 4"), offer(&[17, 3, 4]));
        assert_eq!(Said::parse(b"offer 8 17 x 4"), offer(&[17]));
        // More than a channel can use.
        assert_eq!(
            Said::parse(b"offer 8 1 2 3 4 5 6 7 8 9 10"),
            offer(&[1, 2, 3, 4, 5, 6, 7, 8, 9])
        );
        assert_eq!(Said::parse(b"closed"), Some(Said::State(ChannelState::Closed)));
        assert_eq!(Said::parse(b"fail 12"), Some(Said::Fail(12)));
        for bad in ["offer 8", "offer 8 x", "offer -1 2", "offer 4294967296 1", "maybe", ""] {
            assert_eq!(Said::parse(bad.as_bytes()), None, "{bad}");
        }
        let (mac, both) = ("00:16:3e:00:00:01", "10.0.0.1/24 00:16:3e:00:00:01 fd00::1/64");
        let (count, all) = addresses(format!("17 {mac} {both}").as_bytes()).expect("some");
        assert_eq!((count, all.len(), all[0].mac[1], all[1].prefix), (17, 2, 0x16, 64));
        assert_eq!(more_addresses(format!("{mac} {both}").as_bytes()), Some(all));
        assert_eq!(addresses(b"0"), Some((0, Vec::new())));
        for bad in ["00:16:3e:00:00:01 10.0.0.1/33", "00:16:3e:00:00:01 10.0.0.1", "x 10.0.0.1/24"]
        {
            assert_eq!(more_addresses(bad.as_bytes()), None, "{bad}");
            assert_eq!(addresses(format!("1 {bad}").as_bytes()), None, "{bad}");
        }
        for bad in ["", "x", "-1", "1 00:16:3e:00:00:01"] {
            assert_eq!(addresses(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(want(b"00000000000000ff 2"), Some((255, 2)));
        assert_eq!(counters(b"1 2 3 4 5 6 7"), None);
        assert_eq!(counters(b"1 2 3 4 5 6 7 8").map(|all| (all.tx_frames, all.rx_dropped)), {
            Some((1, 8))
        });
        assert_eq!((tag("0"), tag("16384"), tag("16383")), (None, None, Some(16383)));
    }

    #[test]
    fn what_is_written_can_be_read() {
        for task in [
            Task::Make(Layout::Lane, 1),
            Task::Make(Layout::Table, 1),
            Task::Make(Layout::Table, 9),
            Task::Wait,
            Task::Map(Offer { gref: 8, ports: Ports::new(&[17]) }),
            Task::Map(Offer { gref: 8, ports: Ports::new(&[17, 18, 4]) }),
            Task::Close,
        ] {
            let link = Link { peer: 7, side: 1, task };
            assert_eq!(Link::parse(&link.to_string()), Some(link));
        }
        for bad in ["7 2 make", "7 1 map 8", "7 1", "", "x 1 make"] {
            assert_eq!(Link::parse(bad), None, "{bad}");
        }
        assert_eq!(word("my vm\n"), "my_vm_");
        assert_eq!(word(""), "?");
    }

    #[test]
    fn a_directory_as_lines() {
        let entry = |id, last| DirectoryEntry {
            peer: Arc::new(PeerInterface {
                id,
                epoch: 1,
                mac: [2, 0, 0, 0, 0, last],
                name: "g 2".into(),
                ips: [Address { mac: [0; 6], ip: IpAddr::from([10, 0, 0, last]), prefix: 24 }]
                    .into(),
            }),
            tag: 3,
            tagged: true,
            keep: false,
            without: 0,
            gateway: None,
            local_mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
        };
        let mut all = Lines::new();
        directory(&[entry(5, 2), entry(5, 3), entry(6, 4)], &mut all);
        assert_eq!(all["peer/5"], "0000000000000001 3 g_2");
        assert_eq!(
            all["peer/5/interface/1"],
            "02:00:00:00:00:01 02:00:00:00:00:03 1 1500 10.0.0.3/24"
        );
        assert_eq!(all.len(), 5);

        let gateway = Some([0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]);
        let routed = DirectoryEntry { tagged: false, keep: true, gateway, ..entry(7, 5) };
        directory(&[routed, DirectoryEntry { without: 4, ..entry(8, 6) }], &mut all);
        let flags = all["peer/8/interface/0"].split(' ').nth(2).map(str::to_owned);
        assert_eq!(flags, Some((1 | 4 << 16).to_string()));
        assert_eq!(
            all["peer/7/interface/0"],
            "02:00:00:00:00:01 02:00:00:00:00:05 6 1500 fe:ff:ff:ff:ff:ff 10.0.0.5/24"
        );
    }

    proptest! {
        #[test]
        fn no_value_does_harm(value in proptest::collection::vec(any::<u8>(), 0..1100)) {
            let _ = (Hello::parse(&value), Said::parse(&value), addresses(&value));
            let _ = (want(&value), counters(&value));
        }

        #[test]
        fn no_words_do_harm(value in "[0-9a-f/:. +-]{0,60}") {
            let value = value.as_bytes();
            let _ = (Hello::parse(value), addresses(value), want(value), counters(value));
        }
    }
}
