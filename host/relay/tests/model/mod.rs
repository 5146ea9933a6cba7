// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Two regions, a relay between them, and at each far end a guest that drives the pure C
//! files as the kernel's core does (`lane.c`, `channel.c`).
#![allow(dead_code)] // Each test uses a part of it.

pub mod peer;
pub mod what;

use std::os::fd::OwnedFd;
use std::time::Duration;

use vmloop_abi::lanes::VMLOOP_LIFE_FREE;
use vmloop_abi::life::step;
use vmloop_abi::memory::{Layout, channel_header, create};
use vmloop_abi::shm::Header;
use vmloop_abi::table::Table;
use vmloop_relay::{Doorbells, Kinds, Relay, Turn};

use peer::{Peer, Phase};

/// Numbers that look random, the same in each run.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        what::mix(self.0)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// Doorbells that somebody has rung and nobody has heard.
#[derive(Default)]
pub struct Rung([bool; 2]);

impl Doorbells for Rung {
    fn ring(&mut self, guest: usize) {
        self.0[guest] = true;
    }

    fn wait(&mut self, _at_most: Duration) -> std::io::Result<()> {
        unreachable!("turns are taken one by one")
    }
}

pub struct World {
    pub fds: [OwnedFd; 2],
    pub header: Header,
    pub relay: Relay,
    pub peers: [Peer; 2],
    pub now: Duration,
    pub rung: Rung,
    /// The relay has been rung, or has more to do.
    pub again: bool,
    pub until: Duration,
    pub over: bool,
    /// Ends of lanes whose account was compared.
    pub accounts: u64,
    /// The last lane's end that was looked at, of each guest.
    seen: [usize; 2],
}

impl World {
    /// Both guests and the relay are there; nobody has said anything.
    pub fn quiet(ring_size: u32) -> Self {
        let header = channel_header(ring_size, Layout::Table);
        let fds = ["near", "far"].map(|name| create(name, &header).expect("memory"));
        // Guest 0 is side 0 of its region, guest 1 side 1: as if there were one.
        let table = |region: usize, side| Table::map(&fds[region], side).expect("a region");
        let relay = Relay::new([table(0, 1), table(1, 0)], Kinds::default()).expect("a relay");
        let peers = [Peer::new(table(0, 0), 0), Peer::new(table(1, 1), 1)];
        Self {
            fds,
            header,
            relay,
            peers,
            now: Duration::ZERO,
            rung: Rung::default(),
            again: true,
            until: Duration::ZERO,
            over: false,
            accounts: 0,
            seen: [0; 2],
        }
    }

    /// The same, and they have met.
    pub fn new(ring_size: u32) -> Self {
        let mut world = Self::quiet(ring_size);
        for peer in &mut world.peers {
            peer.begin();
        }
        world.settle();
        assert!(world.peers.iter().all(|peer| peer.met));
        world
    }

    /// What guests have rung for.
    fn hear(&mut self) {
        for peer in &mut self.peers {
            self.again |= std::mem::take(&mut peer.ring);
        }
        for (peer, rung) in self.peers.iter_mut().zip(&mut self.rung.0) {
            peer.rung |= std::mem::take(rung);
        }
    }

    /// A turn of the relay, if it has reason for one.
    pub fn turn(&mut self) -> bool {
        self.hear();
        if self.over || !(self.again || self.now >= self.until) {
            return false;
        }
        match self.relay.turn(self.now, &mut self.rung) {
            Turn::Again => self.again = true,
            Turn::Wait(until) => {
                assert!(until > self.now, "a turn that asks for the next one at once");
                (self.again, self.until) = (false, until);
            }
            Turn::Over => self.over = true,
        }
        self.hear();
        self.check_promises();
        true
    }

    /// A guest looks, if it was rung.
    pub fn look(&mut self, guest: usize) -> bool {
        self.hear();
        let rung = std::mem::take(&mut self.peers[guest].rung);
        if rung {
            self.peers[guest].look(self.now);
            self.hear();
            self.check_ends();
        }
        rung
    }

    /// Everybody does what there is to do, without the help of a clock.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            let mut moved = self.turn();
            for guest in 0..2 {
                moved |= self.look(guest);
            }
            if !moved {
                return;
            }
        }
        panic!("they never come to rest");
    }

    /// Time passes; who waits for it looks.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + Duration::from_millis(50)).min(end);
            for peer in &mut self.peers {
                peer.look_at_waiting(self.now);
            }
            self.check_ends();
            self.settle();
        }
    }

    /// What a guest has been given back the other one has read, whatever they do.
    fn check_promises(&mut self) {
        if self.peers.iter().any(|peer| !peer.verify) {
            return;
        }
        for guest in 0..2 {
            for number in 0..self.peers[guest].lanes.len() {
                let key = self.peers[guest].lanes[number].key();
                let Some(unread) = self.peers[guest].unread(number) else { continue };
                let read = self.peers[1 - guest].published(key);
                let exact = self.peers[guest].unread_if(number, read);
                assert!(unread >= exact, "guest {guest}, lane {key:?}: {unread} < {exact}");
            }
        }
    }

    /// The account of each lane that has ended is exact.
    fn check_ends(&mut self) {
        for guest in 0..2 {
            for index in self.seen[guest]..self.peers[guest].ended.len() {
                let end = self.peers[guest].ended[index].clone();
                self.seen[guest] = index + 1;
                if !end.is_final || self.peers.iter().any(|peer| !peer.verify) {
                    continue;
                }
                let read = self.peers[1 - guest].published(end.key);
                let exact = end.sent.unread(read);
                assert_eq!(end.account, exact, "guest {guest}, lane {:?}", end.key);
                self.accounts += 1;
            }
        }
    }

    /// After [`World::settle`]: all that a guest has published is in the other one's ring.
    pub fn check_copied(&mut self) {
        for guest in 0..2 {
            for number in 0..self.peers[guest].lanes.len() {
                let other = 1 - guest;
                let open = [guest, other].map(|one| {
                    let lane = &self.peers[one].lanes[number];
                    lane.phase == Phase::Up || lane.phase == Phase::Closing
                });
                if open != [true; 2] {
                    continue;
                }
                let key = self.peers[guest].lanes[number].key();
                assert_eq!(key, self.peers[other].lanes[number].key());
                let read = self.peers[other].published(key);
                let exact = self.peers[guest].unread_if(number, read);
                // Room is given back as far as it was read.
                assert_eq!(self.peers[guest].unread(number), Some(exact), "lane {key:?}");
                // And no more is to come than what there is no room for: padding of a ring
                // of records may be in another place than here.
                let sent = self.peers[guest].lanes[number].sent.published;
                let here = self.peers[other].peek_all(number);
                let lane = &self.peers[guest].lanes[number];
                let full = lane.sent.records && exact > lane.sizes[0] / 2;
                assert!(here == sent || full && here < sent, "lane {key:?}: {here} of {sent}");
            }
        }
    }

    /// Both guests read all that there is, without the help of a clock.
    pub fn drain(&mut self) {
        for _ in 0..10_000 {
            self.settle();
            let mut read = 0;
            for peer in &mut self.peers {
                for number in 0..peer.lanes.len() as u32 {
                    let before = peer.published(peer.lanes[number as usize].key());
                    peer.read(number, u64::MAX);
                    peer.publish_read(number);
                    read += peer.published(peer.lanes[number as usize].key()) - before;
                }
            }
            if read == 0 {
                return self.check_drained();
            }
        }
        panic!("there is always more");
    }

    fn check_drained(&mut self) {
        for guest in 0..2 {
            for number in 0..self.peers[guest].lanes.len() {
                let [one, other] = [guest, 1 - guest].map(|one| &self.peers[one].lanes[number]);
                let open = |lane: &peer::PeerLane| matches!(lane.phase, Phase::Up | Phase::Closing);
                if open(one) && open(other) {
                    assert_eq!(one.sent.published, other.got, "lane {:?}", one.key());
                }
            }
        }
    }

    /// All lanes have ended, and nothing is left of them.
    pub fn check_nothing_left(&self) {
        let pages = self.peers[0].pages;
        assert_eq!(self.relay.pages_left(), [pages; 2]);
        for (guest, peer) in self.peers.iter().enumerate() {
            assert_eq!(peer.area.left(), pages, "guest {guest}");
            for lane in &peer.lanes {
                assert_eq!(step(lane.life.ours()), VMLOOP_LIFE_FREE);
                assert_eq!(lane.life.ours(), lane.life.theirs(), "lane {:?}", lane.key());
            }
        }
        for (one, other) in self.peers[0].lanes.iter().zip(&self.peers[1].lanes) {
            assert_eq!(one.key(), other.key());
        }
    }

    /// Ends a lane from a guest's side, and whatever that takes.
    pub fn shut_all(&mut self) {
        for guest in 0..2 {
            for number in 0..self.peers[guest].lanes.len() {
                self.peers[guest].shut(number as u32, 0, self.now);
            }
        }
        self.settle();
        self.pass(Duration::from_millis(500));
        self.settle();
    }

    /// Both have a lane of a kind, which guest `opener` has opened; its number.
    pub fn open(&mut self, opener: usize, kind: u32, size: u32) -> u32 {
        let number = self.peers[opener].open(kind, size, [0; 8]).expect("a lane");
        self.settle();
        assert_eq!(self.steps(number), [1, 1]);
        number
    }

    /// Writes and shows so much, which must have room.
    pub fn send(&mut self, guest: usize, number: u32, count: u64) {
        assert_eq!(self.peers[guest].write(number, count), count);
        self.peers[guest].publish(number);
        self.settle();
    }

    /// Reads so much, which must be there, and gives it back.
    pub fn receive(&mut self, guest: usize, number: u32, count: u64) {
        assert_eq!(self.peers[guest].read(number, count), count);
        self.peers[guest].publish_read(number);
        self.settle();
    }

    /// The last lane's end that a guest was told of.
    pub fn last(&self, guest: usize) -> &peer::Ended {
        self.peers[guest].ended.last().expect("an end")
    }

    /// A guest writes a word of its region, past all rules.
    pub fn poke(&self, guest: usize, at: u64, value: u32) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::from(self.fds[guest].try_clone().expect("a descriptor"));
        file.write_all_at(&value.to_le_bytes(), at).expect("memory");
    }

    pub fn peek(&self, guest: usize, at: u64) -> u32 {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::from(self.fds[guest].try_clone().expect("a descriptor"));
        let mut word = [0; 4];
        file.read_exact_at(&mut word, at).expect("memory");
        u32::from_le_bytes(word)
    }

    /// Where a guest's entry of a lane has a field.
    pub fn entry(&self, guest: usize, number: u32, field: u64) -> u64 {
        self.header.side_offset[guest] + 4096 + 320 * u64::from(number) + field
    }

    pub fn steps(&self, number: u32) -> [u32; 2] {
        [0, 1].map(|guest| step(self.peers[guest].lanes[number as usize].life.ours()))
    }
}
