// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Lines of directories: what the agent tells a guest of its peers' interfaces.

use std::ops::Deref;
use std::sync::Arc;

use crate::address::Address;
use crate::shm;

/// An interface of a peer: what is the same in all directories that have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInterface {
    /// the peer's identity
    pub id: u64,
    /// its epoch
    pub epoch: u64,
    /// the interface's hardware address
    pub mac: [u8; 6],
    /// the peer's name on the host; cut after 31 bytes
    pub name: Arc<str>,
    /// the interface's addresses; those after `VMLOOP_PEER_IPS` are left out
    pub ips: Box<[Address]>,
}

/// One line of a directory: an interface of a peer, seen from one of ours. There may be
/// a hundred thousand on a host, so they share what is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// the peer's interface
    pub peer: Arc<PeerInterface>,
    /// channel that leads to it; 0 while there is none
    pub tag: u32,
    /// whether VLAN-tagged frames pass between the two
    pub tagged: bool,
    /// whether its addresses are those said before, as they are not known yet
    pub keep: bool,
    /// kinds of lanes that the policy does not have for the two, a bit of each
    pub without: u16,
    /// if the host routes between the two: its address where `local_mac` is
    pub gateway: Option<[u8; 6]>,
    /// the interface of ours that it is reached by
    pub local_mac: [u8; 6],
    /// largest MTU in bytes that the network between the two carries
    pub mtu: u16,
}

/// An entry has all that its peer's interface has: who reads it need not know what is shared.
impl Deref for DirectoryEntry {
    type Target = PeerInterface;

    fn deref(&self) -> &PeerInterface {
        &self.peer
    }
}

impl DirectoryEntry {
    /// What tells it from others.
    pub fn key(&self) -> EntryKey {
        EntryKey { id: self.id, local_mac: self.local_mac, mac: self.mac }
    }

    /// `VMLOOP_PEER_*`
    pub fn flags(&self) -> u32 {
        let mut flags = u32::from(self.without) << shm::VMLOOP_PEER_WITHOUT_SHIFT;
        if self.tagged {
            flags |= shm::VMLOOP_PEER_TAGGED;
        }
        if self.keep {
            flags |= shm::VMLOOP_PEER_KEEP;
        }
        if self.gateway.is_some() {
            flags |= shm::VMLOOP_PEER_ROUTED;
        }
        flags
    }
}

/// What tells an entry of a directory from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryKey {
    /// the peer's identity
    pub id: u64,
    /// the interface of ours that it is reached by
    pub local_mac: [u8; 6],
    /// the peer's interface
    pub mac: [u8; 6],
}
