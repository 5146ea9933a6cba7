// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What guests send: it follows from who sends it, by which lane, and how much came before.

use vmloop_abi::ring::Grain;
use vmloop_abi::shm::VMLOOP_F_MOVES;

/// A lane's number and generation.
pub type Key = (u32, u32);

pub fn mix(seed: u64) -> u64 {
    let mut z = seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn hash(guest: usize, key: Key, index: u64) -> u64 {
    mix(mix((guest as u64) << 32 | u64::from(key.0)) ^ mix(u64::from(key.1)) ^ index)
}

pub fn byte(guest: usize, key: Key, index: u64) -> u8 {
    (hash(guest, key, index / 8) >> (8 * (index % 8))) as u8
}

pub struct Record {
    pub kind: u16,
    pub info: u16,
    pub payload: Vec<u8>,
}

/// The record of an index; `most` is the largest payload of the ring.
pub fn record(guest: usize, key: Key, index: u64, most: u32) -> Record {
    let dice = hash(guest, key, index);
    let size = match dice % 8 {
        0 => 0,
        1 => most,
        2 => (dice >> 8) as u32 % 16,
        3 => most - (dice >> 8) as u32 % 32,
        _ => (dice >> 8) as u32 % (most / 4),
    };
    let seed = mix(dice);
    let payload = (0..size).map(|at| (seed >> (at % 57)) as u8 ^ at as u8).collect();
    Record { kind: 1 + (dice >> 40) as u16 % 7, info: (dice >> 48) as u16, payload }
}

/// The path's bytes of a guest, from the ninth on; and its features.
pub fn path(guest: usize, key: Key) -> ([u8; 64], u64) {
    let mut path = [0; 64];
    for (index, byte) in path.iter_mut().enumerate().skip(8) {
        *byte = hash(guest, key, 1 << 60 | index as u64) as u8;
    }
    (path, hash(guest, key, 1 << 61))
}

/// Of those, what the other guest sees: a relay does not pass all of them on.
pub fn seen(features: u64) -> u64 {
    features & !VMLOOP_F_MOVES
}

/// What a guest has sent by a lane.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    pub records: bool,
    /// Bytes, or records, in the ring, and shown.
    pub count: u64,
    pub published: u64,
    /// Where the ring began, where it is now, and where each record ended.
    pub start: u32,
    pub head: u32,
    pub ends: Vec<u32>,
}

impl Sent {
    pub fn new(grain: Grain, start: u32) -> Self {
        Self { records: grain == Grain::Records, start, head: start, ..Self::default() }
    }

    /// Bytes of the ring that are unread, if so many bytes or records were read.
    pub fn unread(&self, read: u64) -> u32 {
        let at = match (self.records, read) {
            (false, _) => self.start.wrapping_add(read as u32),
            (true, 0) => self.start,
            (true, read) => self.ends[read as usize - 1],
        };
        self.head.wrapping_sub(at)
    }
}
