// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Two honest guests that do what comes to their minds, with the relay between them; every
//! byte, every record and every account is checked (by [`model`]).

mod model;

use std::collections::BTreeSet;
use std::time::Duration;

use model::{Random, World};
use vmloop_abi::lanes::*;
use vmloop_abi::shm::VMLOOP_LANE_PACKET;

const KINDS: [u32; 6] = [
    VMLOOP_LANE_PACKET,
    VMLOOP_LANE_STREAM,
    VMLOOP_LANE_TOY_BYTES,
    VMLOOP_LANE_TOY_RECORDS,
    VMLOOP_LANE_TOY_BYTES,
    // One that nobody knows.
    9,
];

/// A guest does something.
fn act(world: &mut World, random: &mut Random) {
    let guest = random.below(2) as usize;
    let now = world.now;
    let peer = &mut world.peers[guest];
    let number = random.below(peer.lanes.len() as u64) as u32;
    match random.below(20) {
        0 | 1 => {
            let kind = KINDS[random.below(KINDS.len() as u64) as usize];
            let mut say = [0; 8];
            say[0] = u8::from(random.one_in(6));
            say[1] = random.next() as u8;
            say[4..].copy_from_slice(&(256 + random.below(5) as u32).to_le_bytes());
            peer.open(kind, 4096 << random.below(3), say);
        }
        2..=6 => {
            let most = 1 + random.below(6000);
            peer.write(number, most);
        }
        7..=9 => {
            peer.write(number, 1 << random.below(12));
            peer.publish(number);
        }
        10..=12 => {
            let most = 1 + random.below(6000);
            peer.read(number, most);
        }
        13 | 14 => {
            peer.read(number, u64::MAX);
            peer.publish_read(number);
        }
        15 => peer.publish_read(number),
        16 if random.one_in(2) => peer.shut(number, 256 + random.below(9) as u32, now),
        17 if random.one_in(4) && peer.lanes[number as usize].phase == model::peer::Phase::Up => {
            peer.close(number, 300);
        }
        18 => {
            peer.keeps = random.one_in(2);
            peer.mute = random.one_in(3);
            peer.look_at_waiting(now);
        }
        _ => {}
    }
}

fn run(seed: u64, steps: &mut BTreeSet<[u32; 2]>) -> (u64, usize) {
    let mut random = Random(seed);
    let mut world = World::new(64 << 10);
    for _ in 0..3000 {
        act(&mut world, &mut random);
        for number in 0..12 {
            steps.insert(world.steps(number));
        }
        match random.below(40) {
            0..=14 => drop(world.turn()),
            15..=20 => drop(world.look(0)),
            21..=26 => drop(world.look(1)),
            27 => world.settle(),
            28 => {
                world.settle();
                world.check_copied();
            }
            29 if random.one_in(4) => {
                let time = random.below(250);
                world.pass(Duration::from_millis(time));
            }
            _ => {}
        }
        for peer in &world.peers {
            assert_eq!(peer.broken, None, "seed {seed}");
        }
    }
    for peer in &mut world.peers {
        (peer.mute, peer.keeps) = (false, true);
        for number in 0..12 {
            peer.publish(number);
        }
    }
    world.pass(Duration::from_millis(20));
    world.drain();
    world.shut_all();
    world.check_nothing_left();
    let generations = world.peers[0].lanes.iter().map(|lane| lane.key().1 as usize).sum();
    (world.accounts, generations)
}

#[test]
fn honest_guests() {
    let mut steps = BTreeSet::new();
    let (mut accounts, mut generations) = (0, 0);
    for seed in 0..30 {
        let (more, also) = run(seed, &mut steps);
        accounts += more;
        generations += also;
    }
    println!("{accounts} accounts, {generations} generations, steps of both: {steps:?}");
    assert!(accounts > 1000 && generations > 1000);
}
