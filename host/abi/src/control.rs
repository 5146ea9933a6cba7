// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The agent's end (side 0) of a control region; docs/protocol.md, section 6.
#![allow(unsafe_code)]

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use crate::mapping::Mapping;
use crate::memory;
use crate::message::AgentMessage;
use crate::ring::{Grain, Rx, Tx, max_record};
use crate::shm::{self, Header, Lane, Side};

/// Longest payload in bytes that any message of a guest has.
const MESSAGE_MAX: usize = size_of::<shm::Advertise>();

/// What a guest did to its control region that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The guest's side speaks another major version.
    #[error("the guest speaks protocol version {0}, this agent version {major}", major = shm::VMLOOP_SHM_MAJOR)]
    Version(u16),
    /// The guest's description of itself is out of range.
    #[error("the guest's side of its control region is not as it must be: {0}")]
    Side(&'static str),
    /// A position or a record that cannot be true.
    #[error("the guest wrote an impossible position or record into its control ring")]
    Ring,
}

/// Where the guest is, as of [`ControlRegion::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestSide {
    /// Not there yet, or gone again (module unloaded).
    Away,
    /// There since an earlier poll.
    Connected,
    /// There anew; ring the doorbell, and expect HELLO.
    Began,
}

/// A control region with the agent's rings.
pub struct ControlRegion {
    map: Mapping,
    header: Header,
    incarnation: u64,
    rings: Option<(Tx, Rx)>,
}

impl ControlRegion {
    /// Makes a region whose agent side is READY; also its memory, to be given
    /// to the guest's QEMU.
    ///
    /// # Errors
    /// Those of [`memory::create`] and mmap(2).
    pub fn create(name: &str) -> io::Result<(Self, OwnedFd)> {
        let header = memory::control_header();
        let fd = memory::create(name, &header)?;
        let map = Mapping::new(fd.as_fd(), header.size as usize)?;
        let region = Self { map, header, incarnation: 0, rings: None };
        region.describe_ourselves();
        Ok((region, fd))
    }

    /// Maps the guest's end of a region, for tests that play the guest.
    ///
    /// # Errors
    /// Those of mmap(2).
    #[doc(hidden)]
    pub fn fake_guest(fd: &OwnedFd) -> io::Result<FakeGuest> {
        let header = memory::control_header();
        Ok(FakeGuest {
            map: Mapping::new(fd.as_fd(), header.size as usize)?,
            header,
            rings: None,
            awaited: false,
        })
    }

    fn describe_ourselves(&self) {
        let side = self.header.side_offset[0];
        let lane = side + offset_of!(Side, lane) as u64;
        let put32 = |at: u64, value: u32| self.map.u32_at(at).store(value, Ordering::Relaxed);
        put32(
            side + offset_of!(Side, major) as u64,
            u32::from(shm::VMLOOP_SHM_MAJOR) | u32::from(shm::VMLOOP_SHM_MINOR) << 16,
        );
        put32(side + offset_of!(Side, max_record) as u64, max_record(memory::CONTROL_RINGS[0]));
        put32(side + offset_of!(Side, lanes) as u64, 1);
        put32(lane + offset_of!(Lane, ring_size) as u64, memory::CONTROL_RINGS[0]);
        put32(lane + offset_of!(Lane, kind) as u64, shm::VMLOOP_LANE_CONTROL);
        self.map
            .u32_at(side + offset_of!(Side, state) as u64)
            .store(shm::VMLOOP_SIDE_READY, Ordering::Release);
    }

    /// Looks at the guest's side, and starts over with it if it began anew.
    ///
    /// # Errors
    /// [`Broken`] if its side is not as it must be; the region is then of no
    /// use any more.
    pub fn poll(&mut self) -> Result<GuestSide, Broken> {
        let side = self.header.side_offset[1];
        let get32 = |at: u64| self.map.u32_at(side + at).load(Ordering::Relaxed);
        let state = self.map.u32_at(side + offset_of!(Side, state) as u64).load(Ordering::Acquire);
        if state != shm::VMLOOP_SIDE_READY {
            self.rings = None;
            return Ok(GuestSide::Away);
        }
        let incarnation =
            self.map.u64_at(side + offset_of!(Side, incarnation) as u64).load(Ordering::Acquire);
        if incarnation == 0 {
            return Ok(GuestSide::Away);
        }
        if incarnation == self.incarnation {
            // A guest that left and says that it never did.
            return if self.rings.is_some() {
                Ok(GuestSide::Connected)
            } else {
                Err(Broken::Side("incarnation used twice"))
            };
        }

        let major = get32(offset_of!(Side, major) as u64) as u16;
        if major != shm::VMLOOP_SHM_MAJOR {
            return Err(Broken::Version(major));
        }
        // Version 1.0 knows no gateways, and is told of none.
        if get32(offset_of!(Side, max_record) as u64) < offset_of!(shm::Peer, gateway) as u32 {
            return Err(Broken::Side("max_record"));
        }
        let lanes = get32(offset_of!(Side, lanes) as u64);
        if lanes == 0 || lanes > shm::VMLOOP_SHM_LANES as u32 {
            return Err(Broken::Side("lanes"));
        }
        let lane = offset_of!(Side, lane) as u64;
        if get32(lane + offset_of!(Lane, kind) as u64) != shm::VMLOOP_LANE_CONTROL {
            return Err(Broken::Side("lane 0: kind"));
        }
        let size = get32(lane + offset_of!(Lane, ring_size) as u64);
        let offset = self
            .map
            .u64_at(side + lane + offset_of!(Lane, ring_offset) as u64)
            .load(Ordering::Relaxed);
        let end = offset.checked_add(u64::from(size));
        if end.is_none_or(|end| end > self.header.data_size[1])
            || !offset.is_multiple_of(u64::from(shm::VMLOOP_RECORD_ALIGN))
        {
            return Err(Broken::Side("lane 0: ring_offset"));
        }

        let (tx, rx) = rings(&self.map, &self.header, 0, offset, size)
            .ok_or(Broken::Side("lane 0: ring_size"))?;
        self.rings = Some((tx, rx));
        self.incarnation = incarnation;
        self.map
            .u64_at(self.header.side_offset[0] + offset_of!(Side, incarnation) as u64)
            .store(incarnation, Ordering::Release);
        Ok(GuestSide::Began)
    }

    /// Takes one message: its type; the payload is copied to `into`. None if
    /// there is none, or no guest.
    ///
    /// # Errors
    /// [`Broken::Ring`] from then on, once the guest wrote nonsense.
    pub fn receive(&mut self, into: &mut Vec<u8>) -> Result<Option<u16>, Broken> {
        match &mut self.rings {
            Some((_, rx)) => rx
                .pop(into, MESSAGE_MAX)
                .map(|record| record.map(|(kind, _)| kind))
                .map_err(|_| Broken::Ring),
            None => Ok(None),
        }
    }

    /// Gives the room of the received messages back; true if the guest wants
    /// a doorbell for that.
    pub fn received(&mut self) -> bool {
        self.rings.as_mut().is_some_and(|(_, rx)| rx.publish())
    }

    /// Asks for a doorbell at the guest's next message; false if there is one
    /// already, or something is wrong, and the caller must look again.
    pub fn may_sleep(&mut self) -> bool {
        self.rings.as_mut().is_none_or(|(_, rx)| rx.sleep())
    }

    /// Writes one message; false while there is no room. Without a guest the
    /// message is forgotten.
    ///
    /// # Errors
    /// [`Broken::Ring`] from then on, once the guest wrote nonsense.
    pub fn send(&mut self, message: &AgentMessage) -> Result<bool, Broken> {
        let Some((tx, _)) = &mut self.rings else { return Ok(true) };
        let (kind, payload) = message.encode();
        tx.push(kind, 0, &payload).map_err(|_| Broken::Ring)
    }

    /// Shows what was sent; true if the guest wants a doorbell.
    pub fn sent(&mut self) -> bool {
        self.rings.as_mut().is_some_and(|(tx, _)| tx.publish())
    }

    /// Asks for a doorbell when there is room for a message; false if there is
    /// already.
    pub fn wait_room(&mut self) -> bool {
        self.rings.as_mut().is_none_or(|(tx, _)| tx.wait_room(size_of::<shm::Peer>() as u32))
    }

    /// Says that the agent touches the region no more.
    pub fn close(&mut self) {
        self.rings = None;
        self.map
            .u32_at(self.header.side_offset[0] + offset_of!(Side, state) as u64)
            .store(shm::VMLOOP_SIDE_CLOSED, Ordering::Release);
    }
}

/// Both rings of `side`; the other side's ring is `size` bytes at `offset` of
/// its data, checked by the caller to lie within it.
fn rings(map: &Mapping, header: &Header, side: usize, offset: u64, size: u32) -> Option<(Tx, Rx)> {
    let lane = |side: usize| -> *mut Lane {
        map.at(header.side_offset[side] + offset_of!(Side, lane) as u64, size_of::<Lane>() as u64)
            .cast()
    };
    let other = 1 - side;
    let (ours, theirs) = (lane(side), lane(other));
    let out = map.at(header.data_offset[side], u64::from(memory::CONTROL_RINGS[side]));
    let into = map.at(header.data_offset[other] + offset, u64::from(size));
    // SAFETY: all four lie within the mapping, as at() checked, and are
    // aligned, as the header's offsets are pages and the caller checked
    // `offset`. The mapping outlives the rings: both are fields of the
    // same struct, and the rings do nothing when dropped. The rings that
    // used the lanes before are replaced by these.
    unsafe {
        Some((
            Tx::new(Grain::Records, out, memory::CONTROL_RINGS[side], 0, ours, theirs).ok()?,
            Rx::new(Grain::Records, into, size, 0, ours, theirs).ok()?,
        ))
    }
}

/// The other end of a control region, for tests.
#[doc(hidden)]
pub struct FakeGuest {
    map: Mapping,
    header: Header,
    rings: Option<(Tx, Rx)>,
    /// The agent waits for room.
    awaited: bool,
}

#[doc(hidden)]
#[allow(missing_docs)]
impl FakeGuest {
    pub fn begin(&mut self, incarnation: u64) {
        let side = self.header.side_offset[1];
        let lane = side + offset_of!(Side, lane) as u64;
        self.poke32(side + offset_of!(Side, major) as u64, u32::from(shm::VMLOOP_SHM_MAJOR));
        self.poke32(
            side + offset_of!(Side, max_record) as u64,
            max_record(memory::CONTROL_RINGS[1]),
        );
        self.poke32(side + offset_of!(Side, lanes) as u64, 1);
        self.poke32(lane + offset_of!(Lane, ring_size) as u64, memory::CONTROL_RINGS[1]);
        self.poke32(lane + offset_of!(Lane, kind) as u64, shm::VMLOOP_LANE_CONTROL);
        self.rings = rings(&self.map, &self.header, 1, 0, memory::CONTROL_RINGS[0]);
        self.map
            .u64_at(side + offset_of!(Side, incarnation) as u64)
            .store(incarnation, Ordering::Relaxed);
        self.poke32(side + offset_of!(Side, state) as u64, shm::VMLOOP_SIDE_READY);
    }

    pub fn poke32(&self, at: u64, value: u32) {
        self.map.u32_at(at).store(value, Ordering::Release);
    }

    /// Offset of a field of the guest's side, or of its first lane.
    pub fn side_field(&self, offset: usize) -> u64 {
        self.header.side_offset[1] + offset as u64
    }

    pub fn echo(&self) -> u64 {
        self.map
            .u64_at(self.header.side_offset[0] + offset_of!(Side, incarnation) as u64)
            .load(Ordering::Acquire)
    }

    pub fn send(&mut self, kind: u16, payload: &[u8]) -> bool {
        let (tx, _) = self.rings.as_mut().expect("begun");
        let fits = tx.push(kind, 0, payload).expect("an honest agent");
        tx.publish();
        fits
    }

    /// Asks for a doorbell at the next message; false if there is one already.
    pub fn sleep(&mut self) -> bool {
        let (_, rx) = self.rings.as_mut().expect("begun");
        rx.sleep()
    }

    pub fn receive(&mut self) -> Option<(u16, Vec<u8>)> {
        let (_, rx) = self.rings.as_mut().expect("begun");
        let mut payload = Vec::new();
        let (kind, _) = rx.pop(&mut payload, usize::MAX).expect("an honest agent")?;
        self.awaited |= rx.publish();
        Some((kind, payload))
    }

    /// Whether the agent is to be rung at, as it waits for the room that was made.
    pub fn is_awaited(&mut self) -> bool {
        std::mem::take(&mut self.awaited)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair() -> (ControlRegion, FakeGuest) {
        let (region, fd) = ControlRegion::create("test").expect("a region");
        let guest = ControlRegion::fake_guest(&fd).expect("its other end");
        (region, guest)
    }

    #[test]
    fn a_conversation() {
        let (mut agent, mut guest) = pair();
        let mut payload = Vec::new();
        assert_eq!(agent.poll(), Ok(GuestSide::Away));
        guest.begin(7);
        assert_eq!(agent.poll(), Ok(GuestSide::Began));
        assert_eq!(agent.poll(), Ok(GuestSide::Connected));
        assert_eq!(guest.echo(), 7);
        assert!(agent.may_sleep());
        assert!(guest.send(4, &[1; 8]));
        assert!(!agent.may_sleep());
        assert_eq!(agent.receive(&mut payload), Ok(Some(4)));
        assert_eq!(payload, [1; 8]);
        assert_eq!(agent.receive(&mut payload), Ok(None));
        agent.received();
        assert_eq!(agent.send(&AgentMessage::DirBegin(9)), Ok(true));
        agent.sent();
        assert_eq!(guest.receive(), Some((shm::VMLOOP_MSG_DIR_BEGIN, 9u64.to_le_bytes().to_vec())));
    }

    #[test]
    fn a_guest_that_begins_again() {
        let (mut agent, mut guest) = pair();
        guest.begin(7);
        assert_eq!(agent.poll(), Ok(GuestSide::Began));
        for _ in 0..100 {
            assert_eq!(agent.send(&AgentMessage::DirBegin(1)), Ok(true));
        }
        agent.sent();
        guest.begin(8);
        assert_eq!(agent.poll(), Ok(GuestSide::Began));
        assert_eq!(guest.echo(), 8);
        assert_eq!(guest.receive(), None);
        guest.poke32(guest.side_field(0), shm::VMLOOP_SIDE_CLOSED);
        assert_eq!(agent.poll(), Ok(GuestSide::Away));
        assert_eq!(agent.send(&AgentMessage::DirBegin(1)), Ok(true));
    }

    #[test]
    fn a_full_ring_is_not_broken() {
        let (mut agent, mut guest) = pair();
        guest.begin(7);
        agent.poll().expect("a good guest");
        let mut sent = 0;
        while agent.send(&AgentMessage::DirBegin(sent)).expect("not broken") {
            sent += 1;
        }
        agent.sent();
        assert!(agent.wait_room());
        for index in 0..sent {
            let (_, payload) = guest.receive().expect("what was sent");
            assert_eq!(payload, index.to_le_bytes());
        }
        assert_eq!(agent.send(&AgentMessage::DirBegin(0)), Ok(true));
    }

    proptest! {
        /// Whatever words stand in the guest's side and data, the agent
        /// answers with a verdict and stays within the region.
        #[test]
        fn hostile_words(words in prop::collection::vec((0usize..80, prop_oneof![any::<u32>(), 0u32..64, Just(262144u32), Just(16u32)]), 0..40),
                         data in prop::collection::vec(any::<u32>(), 0..64)) {
            let (mut agent, mut guest) = pair();
            guest.begin(7);
            for (at, value) in words {
                guest.poke32(guest.side_field(at * 4), value);
            }
            for (index, value) in data.iter().enumerate() {
                guest.poke32((256 << 10) + 4 * index as u64, *value);
            }
            let mut payload = Vec::new();
            if agent.poll().is_ok() {
                for _ in 0..100 {
                    if !matches!(agent.receive(&mut payload), Ok(Some(_))) {
                        break;
                    }
                    prop_assert!(payload.len() <= MESSAGE_MAX);
                }
                agent.received();
                agent.may_sleep();
                let _ = agent.send(&AgentMessage::DirBegin(1));
                agent.sent();
                agent.wait_room();
            }
        }
    }
}
