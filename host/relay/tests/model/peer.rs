// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One guest, as the core of the modules is one: `kernel/core/lane.c` and `channel.c`.

use std::collections::HashMap;
use std::time::Duration;

use vmloop_abi::lanes::*;
use vmloop_abi::life::{Area, Life, start, step};
use vmloop_abi::ring::Grain;
use vmloop_abi::shm::*;
use vmloop_abi::table::{Description, LaneRx, LaneTx, Table};
use vmloop_relay::Kinds;

use super::what::{self, Key, Sent};

const DRAIN_TIME: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Free,
    Opening,
    Up,
    Closing,
    Closed,
}

pub struct PeerLane {
    pub number: u32,
    pub life: Life,
    pub phase: Phase,
    pub grain: Option<Grain>,
    tx_end: u32,
    rx_end: u32,
    block: Option<u32>,
    pub tx: Option<LaneTx>,
    pub rx: Option<LaneRx>,
    /// Bytes of our ring, and of the other one.
    pub sizes: [u32; 2],
    pub sent: Sent,
    /// Bytes or records that were read.
    pub got: u64,
    deadline: Duration,
    reason: u32,
}

impl PeerLane {
    pub fn key(&self) -> Key {
        (self.number, self.life.ours() >> VMLOOP_LIFE_BITS)
    }
}

/// What a path is told when its lane has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    pub key: Key,
    pub reason: u32,
    pub account: u32,
    pub sent: Sent,
    /// The other side has said that it reads no more.
    pub is_final: bool,
}

pub struct Peer {
    pub table: Table,
    pub area: Area,
    pub pages: u32,
    guest: usize,
    pub lanes: Vec<PeerLane>,
    pub state: u32,
    pub met: bool,
    /// Has been rung; rings.
    pub rung: bool,
    pub ring: bool,
    /// Doorbells that it has looked for.
    pub heard: u64,
    /// What the other side did that cannot be.
    pub broken: Option<String>,
    pub ended: Vec<Ended>,
    /// What has been published as read, of each lane that there was.
    published: HashMap<Key, u64>,
    deadline: Duration,
    /// What comes is compared with what must come.
    pub verify: bool,
    /// What is left in a ring is read when the lane is closed.
    pub keeps: bool,
    /// Lanes of the other side are not answered for the time being.
    pub mute: bool,
}

impl Peer {
    pub fn new(table: Table, guest: usize) -> Self {
        let pages = table.pages();
        let lanes = (0..table.room()).map(|number| PeerLane {
            number,
            life: Life::new(number as usize % 2 == table.side()),
            phase: Phase::Free,
            grain: None,
            tx_end: 0,
            rx_end: 0,
            block: None,
            tx: None,
            rx: None,
            sizes: [0; 2],
            sent: Sent::default(),
            got: 0,
            deadline: Duration::ZERO,
            reason: 0,
        });
        Self {
            lanes: lanes.collect(),
            area: Area::new(pages, pages - pages / 8).expect("an area"),
            pages,
            guest,
            state: VMLOOP_SIDE_ABSENT,
            met: false,
            rung: false,
            ring: false,
            heard: 0,
            broken: None,
            ended: Vec::new(),
            published: HashMap::new(),
            deadline: Duration::MAX,
            verify: true,
            keeps: true,
            mute: false,
            table,
        }
    }

    pub fn begin(&mut self) {
        self.table.describe(0xb0 + self.guest as u64, self.table.room());
        self.say_state(VMLOOP_SIDE_READY);
    }

    fn say_state(&mut self, state: u32) {
        self.state = state;
        self.table.say_state(state);
        self.ring = true;
    }

    fn breaks(&mut self, what: &str, number: u32) {
        let lane = &self.lanes[number as usize];
        self.broken
            .get_or_insert_with(|| format!("{what}, lane {:?}, {:?}", lane.key(), lane.life));
    }

    fn go(&mut self, number: u32, step: u32, reason: u32) {
        if step != VMLOOP_LIFE_FREE {
            self.table.say_reason(number, reason);
        }
        let word = self.lanes[number as usize].life.go(step);
        self.table.say_life(number, word);
        self.ring |= self.table.tell(number);
    }

    /// Opens a lane; its number. `say` begins the path's bytes.
    pub fn open(&mut self, kind: u32, ring_size: u32, say: [u8; 8]) -> Option<u32> {
        let number = self.lanes.iter().position(|lane| {
            lane.life.opens() && lane.phase == Phase::Free && lane.life.may(VMLOOP_LIFE_OPEN)
        })? as u32;
        if !self.describe(number, kind, ring_size, say) {
            return None;
        }
        let lane = &mut self.lanes[number as usize];
        lane.phase = Phase::Opening;
        self.table.begin_reading(number, start(lane.rx_end));
        self.go(number, VMLOOP_LIFE_OPEN, VMLOOP_REASON_NONE);
        Some(number)
    }

    fn describe(&mut self, number: u32, kind: u32, ring_size: u32, say: [u8; 8]) -> bool {
        let Some(block) = self.area.take(ring_size) else { return false };
        let lane = &mut self.lanes[number as usize];
        let grain = Kinds::default().grain(kind).unwrap_or(Grain::Records);
        let begin = start(lane.tx_end);
        let tx = self.table.tx(number, grain, u64::from(block), ring_size, begin).expect("a ring");
        let (mut path, features) = what::path(self.guest, lane.key());
        path[..8].copy_from_slice(&say);
        lane.block = Some(block);
        lane.grain = Some(grain);
        lane.tx = Some(tx);
        lane.rx = None;
        lane.sent = Sent::new(grain, begin);
        lane.got = 0;
        lane.sizes[0] = ring_size;
        self.table.describe_lane(
            number,
            &Description { kind, ring_size, ring_offset: u64::from(block), features, path },
        );
        true
    }

    /// What the path of the other guest has said is here unchanged.
    fn check_said(&self, number: u32, said: &Description) {
        let (path, features) = what::path(1 - self.guest, self.lanes[number as usize].key());
        if self.verify {
            assert_eq!(said.path[8..], path[8..], "lane {number}");
            assert_eq!(said.features, what::seen(features), "lane {number}");
        }
    }

    fn read_ring(&mut self, number: u32, said: &Description, begin: u32) -> bool {
        let lane = &mut self.lanes[number as usize];
        let rx = self.table.rx(number, lane.grain.expect("described"), said, begin);
        lane.sizes[1] = said.ring_size;
        lane.rx = rx.ok();
        lane.rx.is_some()
    }

    /// The other guest has opened a lane. The first eight bytes say what is to be done:
    /// 1, then the reason to refuse it with; or the order of our ring.
    fn accept(&mut self, number: u32) -> Result<(), u32> {
        let said = self.table.described_lane(number);
        let begin = self.table.their_head(number);
        self.check_said(number, &said);
        // Positions never restart.
        let end = self.lanes[number as usize].rx_end;
        assert!(!self.verify || begin == start(end), "lane {number}: {begin} behind {end}");
        let grain = Kinds::default().grain(said.kind).ok_or(VMLOOP_REASON_KIND)?;
        if said.path[0] == 1 {
            return Err(u32::from_le_bytes(said.path[4..8].try_into().expect("four")));
        }
        self.lanes[number as usize].grain = Some(grain);
        let order = 12 + u32::from(said.path[1] % 4);
        if !self.describe(number, said.kind, 1 << order, [9; 8]) {
            return Err(VMLOOP_REASON_ROOM);
        }
        if !self.read_ring(number, &said, begin) {
            let block = self.lanes[number as usize].block.take().expect("described");
            self.area.give(block);
            return Err(VMLOOP_REASON_RING);
        }
        self.lanes[number as usize].phase = Phase::Up;
        self.go(number, VMLOOP_LIFE_OPEN, VMLOOP_REASON_NONE);
        Ok(())
    }

    fn look_free(&mut self, number: u32) {
        if self.lanes[number as usize].life.may(VMLOOP_LIFE_FREE) {
            self.go(number, VMLOOP_LIFE_FREE, VMLOOP_REASON_NONE);
        }
        let life = self.lanes[number as usize].life;
        if life.opens() || !life.may(VMLOOP_LIFE_OPEN) || self.mute {
            return;
        }
        if let Err(reason) = self.accept(number) {
            self.go(number, VMLOOP_LIFE_REFUSED, reason);
        }
    }

    /// Produces nothing more, and drains.
    pub fn shut(&mut self, number: u32, reason: u32, now: Duration) {
        let lane = &mut self.lanes[number as usize];
        lane.deadline = now + DRAIN_TIME;
        match lane.phase {
            Phase::Up => {
                lane.reason = reason;
                lane.phase = Phase::Closing;
                self.publish(number);
                self.go(number, VMLOOP_LIFE_CLOSING, reason);
            }
            Phase::Opening => {
                lane.phase = Phase::Closed;
                self.area.set_aside(lane.block.expect("opened"));
                self.go(number, VMLOOP_LIFE_CLOSED, reason);
            }
            _ => {}
        }
    }

    /// Closes a lane at once.
    pub fn close(&mut self, number: u32, reason: u32) {
        self.close_rings(number);
        self.go(number, VMLOOP_LIFE_CLOSED, reason);
    }

    fn close_rings(&mut self, number: u32) {
        self.publish(number);
        if self.keeps && self.lanes[number as usize].rx.is_some() {
            self.read(number, u64::MAX);
            self.publish_read(number);
        }
        let lane = &mut self.lanes[number as usize];
        if lane.phase != Phase::Closed {
            self.area.set_aside(lane.block.expect("opened"));
        }
        lane.phase = Phase::Closed;
    }

    fn end(&mut self, number: u32, reason: u32) {
        let lane = &mut self.lanes[number as usize];
        let (key, is_final) = (lane.key(), lane.life.is_final());
        let account = lane.tx.as_mut().expect("opened").account();
        self.ended.push(Ended { key, reason, account, sent: lane.sent.clone(), is_final });
    }

    fn finish(&mut self, number: u32) {
        self.end(number, self.table.reason(number));
        let lane = &mut self.lanes[number as usize];
        lane.tx_end = lane.tx.as_ref().expect("opened").head();
        lane.rx_end = self.table.their_head(number);
        lane.phase = Phase::Free;
        self.area.give(lane.block.take().expect("opened"));
        self.go(number, VMLOOP_LIFE_FREE, VMLOOP_REASON_NONE);
    }

    fn both_have_read(&mut self, number: u32) -> bool {
        let lane = &mut self.lanes[number as usize];
        let (Some(tx), Some(rx)) = (&mut lane.tx, &lane.rx) else { return true };
        tx.account() == 0 && self.table.their_head(number) == rx.published()
    }

    fn is_drained(&mut self, number: u32, now: Duration) -> bool {
        let lane = &self.lanes[number as usize];
        let closing = step(lane.life.theirs()) == VMLOOP_LIFE_CLOSING;
        lane.life.is_final() || now >= lane.deadline || closing && self.both_have_read(number)
    }

    fn look_lane(&mut self, number: u32, now: Duration) {
        let word = self.table.life(number);
        if self.lanes[number as usize].life.see(word).is_err() {
            return self.breaks(&format!("life {word}"), number);
        }
        let phase = self.lanes[number as usize].phase;
        let life = self.lanes[number as usize].life;
        if phase == Phase::Free {
            return self.look_free(number);
        }
        if phase == Phase::Opening {
            if life.may_consume() {
                let said = self.table.described_lane(number);
                let begin = start(self.lanes[number as usize].rx_end);
                self.check_said(number, &said);
                if !self.read_ring(number, &said, begin) {
                    return self.breaks("a ring", number);
                }
                self.lanes[number as usize].phase = Phase::Up;
            } else if life.is_final() {
                self.close_rings(number);
                return self.finish(number);
            }
        }
        let other = step(life.theirs()) != VMLOOP_LIFE_OPEN;
        if self.lanes[number as usize].phase == Phase::Up && life.may(VMLOOP_LIFE_CLOSING) && other
        {
            self.shut(number, VMLOOP_REASON_NONE, now);
        }
        if self.lanes[number as usize].phase == Phase::Closing && self.is_drained(number, now) {
            self.close(number, self.lanes[number as usize].reason);
        }
        let life = self.lanes[number as usize].life;
        if self.lanes[number as usize].phase == Phase::Closed && life.is_final() {
            self.finish(number);
        }
    }

    /// What a doorbell is for: state, and lanes that there is news of.
    pub fn look(&mut self, now: Duration) {
        self.heard += 1;
        let theirs = self.table.state();
        if self.state == VMLOOP_SIDE_CLOSED || self.state == VMLOOP_SIDE_ABSENT {
            return;
        }
        if theirs == VMLOOP_SIDE_READY && !self.met {
            let (major, features, lanes) = self.table.described();
            assert_eq!(major, VMLOOP_TABLE_MAJOR);
            assert_eq!(features, what::seen(0xb0 + (1 - self.guest) as u64));
            assert_eq!(lanes, self.table.room());
            self.met = true;
        }
        if self.met && self.state == VMLOOP_SIDE_READY {
            let mut news = Vec::new();
            self.table.take(|lane| news.push(lane));
            for number in news {
                self.look_lane(number, now);
            }
        }
        if self.met && theirs > VMLOOP_SIDE_READY && self.state == VMLOOP_SIDE_READY {
            self.shut_channel(now);
        }
        self.look_channel(now);
    }

    /// What has a deadline.
    pub fn look_at_waiting(&mut self, now: Duration) {
        if self.state == VMLOOP_SIDE_READY && self.met {
            for number in 0..self.lanes.len() {
                if !matches!(self.lanes[number].phase, Phase::Free | Phase::Up) {
                    self.look_lane(number as u32, now);
                }
            }
        }
        self.look_channel(now);
    }

    pub fn shut_channel(&mut self, now: Duration) {
        for number in 0..self.lanes.len() as u32 {
            self.publish(number);
        }
        self.deadline = now + DRAIN_TIME;
        self.say_state(VMLOOP_SIDE_CLOSING);
    }

    fn look_channel(&mut self, now: Duration) {
        if self.state != VMLOOP_SIDE_CLOSING {
            return;
        }
        let theirs = self.table.state();
        let mut drained = theirs == VMLOOP_SIDE_CLOSED || now >= self.deadline;
        if !drained && theirs == VMLOOP_SIDE_CLOSING {
            drained = (0..self.lanes.len() as u32).all(|number| {
                let open = matches!(self.lanes[number as usize].phase, Phase::Up | Phase::Closing);
                !open || self.both_have_read(number)
            });
        }
        if !drained {
            return;
        }
        for number in 0..self.lanes.len() as u32 {
            match self.lanes[number as usize].phase {
                Phase::Free => continue,
                Phase::Closed => {}
                _ => self.close_rings(number),
            }
            self.end(number, VMLOOP_REASON_NONE);
        }
        self.say_state(VMLOOP_SIDE_CLOSED);
    }

    fn produces(&self, number: u32) -> bool {
        let lane = &self.lanes[number as usize];
        self.state == VMLOOP_SIDE_READY && lane.phase == Phase::Up && lane.life.may_produce()
    }

    fn consumes(&self, number: u32) -> bool {
        let open = matches!(self.state, VMLOOP_SIDE_READY | VMLOOP_SIDE_CLOSING);
        let lane = &self.lanes[number as usize];
        open && matches!(lane.phase, Phase::Up | Phase::Closing) && lane.rx.is_some()
    }

    /// Writes bytes, or records, while there is room: how many.
    pub fn write(&mut self, number: u32, most: u64) -> u64 {
        if !self.produces(number) {
            return 0;
        }
        let guest = self.guest;
        let lane = &mut self.lanes[number as usize];
        let (key, largest) = (lane.key(), lane.sizes[0] / 4 - 8);
        let tx = lane.tx.as_mut().expect("up");
        let begin = lane.sent.count;
        while lane.sent.count - begin < most {
            if lane.grain == Some(Grain::Records) {
                let next = what::record(guest, key, lane.sent.count, largest);
                match tx.push(next.kind, next.info, &next.payload) {
                    Ok(true) => lane.sent.count += 1,
                    Ok(false) => break,
                    Err(_) => {
                        self.breaks("room", number);
                        return 0;
                    }
                }
                lane.sent.ends.push(tx.head());
            } else {
                let left = (most - (lane.sent.count - begin)).min(1000);
                let at = lane.sent.count;
                let bytes: Vec<u8> =
                    (at..at + left).map(|index| what::byte(guest, key, index)).collect();
                match tx.write(&bytes) {
                    Ok(0) => break,
                    Ok(done) => lane.sent.count += u64::from(done),
                    Err(_) => {
                        self.breaks("room", number);
                        return 0;
                    }
                }
            }
            lane.sent.head = tx.head();
        }
        lane.sent.count - begin
    }

    /// Shows what was written.
    pub fn publish(&mut self, number: u32) {
        if let Some(tx) = &mut self.lanes[number as usize].tx {
            let wanted = tx.publish();
            let sent = &mut self.lanes[number as usize].sent;
            sent.published = sent.count;
            if wanted {
                self.ring |= self.table.tell(number);
            }
        }
    }

    /// Reads bytes, or records, and compares them: how many.
    pub fn read(&mut self, number: u32, most: u64) -> u64 {
        if !self.consumes(number) {
            return 0;
        }
        let (guest, verify) = (1 - self.guest, self.verify);
        let lane = &mut self.lanes[number as usize];
        let (key, largest) = (lane.key(), lane.sizes[1] / 4 - 8);
        let rx = lane.rx.as_mut().expect("up");
        let begin = lane.got;
        let mut bytes = Vec::new();
        while lane.got - begin < most {
            let read = if lane.grain == Some(Grain::Records) {
                rx.pop(&mut bytes).map(|record| {
                    if let Some((kind, info)) = record.filter(|_| verify) {
                        let must = what::record(guest, key, lane.got, largest);
                        assert_eq!((kind, info), (must.kind, must.info), "lane {key:?}");
                        assert_eq!(bytes, must.payload, "lane {key:?}, record {}", lane.got);
                    }
                    u64::from(record.is_some())
                })
            } else {
                bytes.clear();
                rx.read(&mut bytes, (most - (lane.got - begin)).min(1000) as u32).map(u64::from)
            };
            match read {
                Ok(0) => break,
                Ok(done) => {
                    if verify && lane.grain == Some(Grain::Bytes) {
                        for (at, byte) in (lane.got..).zip(&bytes) {
                            assert_eq!(*byte, what::byte(guest, key, at), "lane {key:?} at {at}");
                        }
                    }
                    lane.got += done;
                }
                Err(_) => {
                    self.breaks("a ring", number);
                    return 0;
                }
            }
        }
        lane.got - begin
    }

    /// Gives back what was read.
    pub fn publish_read(&mut self, number: u32) {
        if !self.consumes(number) {
            return;
        }
        let lane = &mut self.lanes[number as usize];
        self.published.insert(lane.key(), lane.got);
        if lane.rx.as_mut().expect("up").publish() {
            self.ring |= self.table.tell(number);
        }
    }

    /// Asks for a doorbell at what comes next; false if there is something already.
    pub fn sleep(&mut self, number: u32) -> bool {
        !self.consumes(number) || self.lanes[number as usize].rx.as_mut().expect("up").sleep()
    }

    /// Asks for a doorbell when there is room; false if there is.
    pub fn wait_for_room(&mut self, number: u32) -> bool {
        if !self.produces(number) {
            return true;
        }
        let guest = self.guest;
        let lane = &mut self.lanes[number as usize];
        let (key, largest) = (lane.key(), lane.sizes[0] / 4 - 8);
        let tx = lane.tx.as_mut().expect("up");
        if lane.grain == Some(Grain::Bytes) {
            return tx.wait_space();
        }
        let next = what::record(guest, key, lane.sent.count, largest);
        tx.wait_room(next.payload.len() as u32)
    }

    /// Up to where we have published that we have read.
    pub fn published(&self, key: Key) -> u64 {
        self.published.get(&key).copied().unwrap_or(0)
    }

    /// Bytes of an open lane that the other guest has not published as read, as it is told.
    pub fn unread(&mut self, number: usize) -> Option<u32> {
        let lane = &mut self.lanes[number];
        let open = matches!(lane.phase, Phase::Up | Phase::Closing);
        open.then(|| lane.tx.as_mut().expect("up").account())
    }

    /// And as it would have to be.
    pub fn unread_if(&self, number: usize, read: u64) -> u32 {
        self.lanes[number].sent.unread(read)
    }

    /// Bytes or records that have come, read or not.
    pub fn peek_all(&mut self, number: usize) -> u64 {
        // Reading is peeking as long as nothing is published.
        self.read(number as u32, u64::MAX);
        self.lanes[number].got
    }
}
