// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A guest that writes what cannot be. It loses its channel; the other guest sees nothing
//! but lanes that are closed, as the protocol has it, and then its own channel's end.

mod model;

use std::time::Duration;

use model::{Random, World};
use vmloop_abi::lanes::*;
use vmloop_abi::shm::*;
use vmloop_relay::{Break, Outcome, Turn};

const BYTES: u32 = VMLOOP_LANE_TOY_BYTES;
const RECORDS: u32 = VMLOOP_LANE_TOY_RECORDS;

/// Fields of an entry, from its start.
const KIND: u64 = 0;
const RING_SIZE: u64 = 4;
const RING_OFFSET: u64 = 8;
const TX_HEAD: u64 = 64;
const RX_TAIL: u64 = 128;
const LIFE: u64 = 192;

/// The relay looks, whatever it has been told.
fn look(world: &mut World) {
    for _ in 0..8 {
        world.now += Duration::from_millis(1100);
        if world.relay.turn(world.now, &mut world.rung) == Turn::Over {
            world.over = true;
        }
    }
}

/// What guest `bad` did was seen, and the other guest's lanes have ended as they must.
fn check_broken(world: &mut World, bad: usize, what: Break) {
    let good = 1 - bad;
    world.peers[good].keeps = true;
    world.again = true;
    world.turn();
    let outcome = world.relay.outcome();
    assert_eq!(outcome[bad], Outcome::Broken(what));
    // Its channel has ended at once, the other one has still to be told.
    let ours = world.header.side_offset[good];
    assert_eq!(world.peek(bad, ours), VMLOOP_SIDE_CLOSED);
    for _ in 0..20 {
        world.look(good);
        world.turn();
        if world.over {
            break;
        }
        world.now += Duration::from_millis(50);
        world.peers[good].look_at_waiting(world.now);
    }
    assert!(world.over);
    world.look(good);
    let peer = &world.peers[good];
    assert_eq!(peer.broken, None);
    assert_eq!(peer.state, VMLOOP_SIDE_CLOSED);
    assert_eq!(world.relay.outcome()[good], Outcome::Closed);
}

/// A world with a lane of each kind, opened by each guest, and something under way.
fn busy() -> (World, [u32; 4]) {
    let mut world = World::new(64 << 10);
    let lanes = [(0, BYTES), (0, RECORDS), (1, BYTES), (1, RECORDS)];
    let lanes = lanes.map(|(opener, kind)| world.open(opener, kind, 4096));
    for number in lanes {
        for guest in 0..2 {
            world.send(guest, number, 3);
            world.receive(1 - guest, number, 1);
        }
    }
    (world, lanes)
}

#[test]
fn positions_that_cannot_be() {
    for bad in 0..2 {
        for index in 0..4 {
            let records = index % 2 == 1;
            for (field, add) in [
                (TX_HEAD, 0u32.wrapping_sub(16)),
                (TX_HEAD, 8192),
                (TX_HEAD, 1 << 31),
                (TX_HEAD, 8),
                (RX_TAIL, 0u32.wrapping_sub(16)),
                (RX_TAIL, 8192),
                (RX_TAIL, 1 << 31),
                (RX_TAIL, 8),
            ] {
                // Bytes may end anywhere.
                if add == 8 && !records {
                    continue;
                }
                let (mut world, lanes) = busy();
                let number = lanes[index];
                let at = world.entry(bad, number, field);
                world.poke(bad, at, world.peek(bad, at).wrapping_add(add));
                world.now += Duration::from_millis(1100);
                check_broken(&mut world, bad, Break::Ring(number));
                // What it had opened it was told the end of, each with the account.
                let ended = &world.peers[1 - bad].ended;
                assert_eq!(ended.len(), 4);
                for end in ended {
                    assert!(end.is_final, "{end:?}");
                    assert_eq!(end.reason, VMLOOP_REASON_NONE);
                }
            }
        }
    }
}

#[test]
fn records_that_cannot_be() {
    for bad in 0..2 {
        for (header, near_end) in [
            // Larger than any; beyond what was produced; padding that ends early.
            (2048u64, false),
            (u64::from(u32::MAX), false),
            (500, false),
            (8, false),
            (900, true),
        ] {
            let mut world = World::new(64 << 10);
            for peer in &mut world.peers {
                peer.verify = false;
            }
            let number = world.open(bad, RECORDS, 4096);
            let data = world.header.data_offset[bad];
            let ring = u64::from(world.peek(bad, world.entry(bad, number, RING_OFFSET)));
            let head = if near_end { 4096 - 256 } else { 0 };
            if near_end {
                // Up to there with good ones.
                for position in (0..head).step_by(256) {
                    let at = data + ring + u64::from(position);
                    world.poke(bad, at, 248);
                    world.poke(bad, at + 4, 1);
                }
                world.poke(bad, world.entry(bad, number, TX_HEAD), head);
                look(&mut world);
                assert_eq!(world.relay.outcome(), [Outcome::Closed; 2]);
            }
            let at = data + ring + u64::from(head);
            let kind = u32::from(header != 8);
            world.poke(bad, at, header as u32);
            world.poke(bad, at + 4, kind);
            world.poke(bad, world.entry(bad, number, TX_HEAD), head + 256);
            world.now += Duration::from_millis(1100);
            check_broken(&mut world, bad, Break::Ring(number));
        }
    }
}

#[test]
fn lives_that_cannot_be() {
    let honest =
        |world: &World, number, guest: usize| world.peers[guest].lanes[number as usize].life.ours();
    for bad in 0..2 {
        for jump in [1u32, 4, 5, 6, 7, 8, 9, 16, 1 << 31, u32::MAX] {
            let (mut world, lanes) = busy();
            for number in lanes {
                // Of a lane that is open, FREE, OPEN or REFUSED again, or far away.
                let word = honest(&world, number, bad);
                let next = word.wrapping_add(jump);
                let step = next & 7;
                if jump < 8 && (step == VMLOOP_LIFE_CLOSING || step == VMLOOP_LIFE_CLOSED) {
                    continue;
                }
                let at = world.entry(bad, number, LIFE);
                world.poke(bad, at, next);
                world.now += Duration::from_millis(1100);
                check_broken(&mut world, bad, Break::Lane(number));
                break;
            }
        }
    }
}

#[test]
fn lanes_that_cannot_be_are_refused() {
    for (field, value) in [
        (RING_SIZE, 0u32),
        (RING_SIZE, 2048),
        (RING_SIZE, 5000),
        (RING_SIZE, 1 << 31),
        (RING_SIZE, 1 << 17),
        (RING_OFFSET, 64),
        (RING_OFFSET, 1 << 20),
        (RING_OFFSET + 4, 1),
        (TX_HEAD, 8),
    ] {
        let mut world = World::new(64 << 10);
        let number = world.peers[0].open(RECORDS, 4096, [0; 8]).expect("a lane");
        world.poke(0, world.entry(0, number, field), value);
        world.settle();
        assert_eq!(world.last(0).reason, VMLOOP_REASON_RING, "{field} {value}");
        assert_eq!(world.relay.outcome(), [Outcome::Closed; 2]);
        world.open(0, BYTES, 4096);
    }
}

#[test]
fn acceptances_that_cannot_be() {
    for (field, value) in [
        (KIND, 3u32),
        (RING_SIZE, 0),
        (RING_SIZE, 5000),
        (RING_SIZE, 1 << 30),
        (RING_OFFSET, 16),
        (RING_OFFSET + 4, 7),
    ] {
        for bad in 0..2 {
            let mut world = World::new(64 << 10);
            let number = world.peers[1 - bad].open(RECORDS, 4096, [0; 8]).expect("a lane");
            world.turn();
            world.look(bad);
            world.poke(bad, world.entry(bad, number, field), value);
            check_broken(&mut world, bad, Break::Lane(number));
        }
    }
}

#[test]
fn sides_that_cannot_be() {
    for (offset, value, what) in
        [(4, 1u32, Break::Version), (16, 0, Break::Lanes), (16, 7, Break::Lanes)]
    {
        for bad in 0..2 {
            let mut world = World::quiet(64 << 10);
            for peer in &mut world.peers {
                peer.begin();
            }
            world.poke(bad, world.header.side_offset[bad] + offset, value);
            world.settle();
            assert!(world.over);
            assert_eq!(world.relay.outcome()[bad], Outcome::Broken(what));
        }
    }
    for state in [0, 4, 77, u32::MAX] {
        for bad in 0..2 {
            let (mut world, _) = busy();
            world.poke(bad, world.header.side_offset[bad], state);
            check_broken(&mut world, bad, Break::State);
        }
    }
    // More lanes than there is room for are as many as there are.
    let mut world = World::quiet(64 << 10);
    for peer in &mut world.peers {
        peer.begin();
    }
    world.poke(0, world.header.side_offset[0] + 16, 1 << 30);
    world.settle();
    assert!(world.relay.is_up());
}

/// A guest that never lets go of a number keeps that number, and no more.
#[test]
fn a_guest_that_does_not_let_go() {
    let mut world = World::new(64 << 10);
    let number = world.open(0, BYTES, 4096);
    let now = world.now;
    world.peers[0].shut(number, 0, now);
    for _ in 0..30 {
        // Guest 1 does nothing at all.
        world.now += Duration::from_millis(50);
        world.again = true;
        world.turn();
        world.peers[0].rung = false;
        world.peers[0].look(world.now);
        world.peers[0].look_at_waiting(world.now);
    }
    assert_eq!(world.steps(number), [VMLOOP_LIFE_CLOSED, VMLOOP_LIFE_OPEN]);
    assert!(!world.relay.outcome().contains(&Outcome::Broken(Break::State)));
    let other = world.open(0, BYTES, 4096);
    assert_ne!(number, other);
    world.send(0, other, 100);
    world.receive(1, other, 100);
}

/// The same of one that closes a lane, and never says that it is free.
#[test]
fn a_guest_that_never_frees() {
    let mut world = World::new(64 << 10);
    let number = world.open(0, BYTES, 4096);
    world.peers[1].close(number, 0);
    for _ in 0..30 {
        world.now += Duration::from_millis(50);
        world.again = true;
        world.turn();
        world.peers[0].look(world.now);
        world.peers[0].look_at_waiting(world.now);
    }
    // Guest 0 is done with it, and may not open it again before guest 1 is.
    assert_eq!(world.steps(number), [VMLOOP_LIFE_FREE, VMLOOP_LIFE_CLOSED]);
    assert_ne!(world.open(0, BYTES, 4096), number);
}

/// Writes anywhere in a guest's region, honest lanes beside it, from a fixed seed.
fn scribble(seed: u64) -> bool {
    let mut random = Random(seed);
    let (mut world, _) = busy();
    let bad = random.below(2) as usize;
    let good = 1 - bad;
    world.peers[good].verify = false;
    world.peers[bad].verify = false;
    let table = world.header.side_offset[bad];
    // What can be written there without breaking anything.
    let only_news = random.one_in(4);
    for _ in 0..400 {
        let number = random.below(12) as u32;
        let field = [KIND, RING_SIZE, RING_OFFSET, TX_HEAD, RX_TAIL, LIFE, 16, 20];
        let field = field[random.below(8) as usize];
        let at = match random.below(8) {
            _ if only_news => table + 64 + random.below(1152 / 4) * 4,
            0 => random.below(world.header.size / 4) * 4,
            1 => table + random.below(1216 / 4) * 4,
            2 => world.header.data_offset[bad] + random.below(world.header.data_size[bad] / 4) * 4,
            _ => world.entry(bad, number, field),
        };
        let old = world.peek(bad, at);
        let value = match random.below(6) {
            0 => random.next() as u32,
            1 => old ^ 1 << random.below(32),
            2 => old.wrapping_add(16),
            3 => old.wrapping_add(1),
            4 => old.wrapping_add(random.below(4096) as u32),
            _ => old.wrapping_sub(8),
        };
        // Some are bits of news, and some are none: the relay looks at all in its time.
        if random.one_in(3) {
            world.poke(bad, at, value);
        }
        world.now += Duration::from_millis(random.below(300));
        world.again = true;
        for _ in 0..3 {
            if world.relay.turn(world.now, &mut world.rung) == Turn::Over {
                world.over = true;
            }
        }
        let now = world.now;
        let peer = &mut world.peers[good];
        let kind = if random.one_in(2) { BYTES } else { RECORDS };
        match random.below(8) {
            0 => drop(peer.open(kind, 4096, [0; 8])),
            1 => drop(peer.write(number, 50)),
            2 => peer.publish(number),
            3 | 4 => drop(peer.read(number, u64::MAX)),
            5 => peer.publish_read(number),
            6 if random.one_in(4) => peer.shut(number, 0, now),
            _ => {}
        }
        peer.look(now);
        peer.look_at_waiting(now);
        assert_eq!(peer.broken, None, "seed {seed}");
        assert_eq!(world.relay.outcome()[good], Outcome::Closed, "seed {seed}");
        if world.over {
            break;
        }
    }
    let outcome = world.relay.outcome()[bad];
    if let Outcome::Broken(_) = outcome {
        // The other guest learns that, in its time.
        for _ in 0..20 {
            world.now += Duration::from_millis(50);
            world.relay.turn(world.now, &mut world.rung);
            world.peers[good].look(world.now);
            world.peers[good].look_at_waiting(world.now);
        }
        assert_eq!(world.peers[good].state, VMLOOP_SIDE_CLOSED, "seed {seed}");
    }
    outcome != Outcome::Closed
}

#[test]
fn a_guest_that_scribbles() {
    let broken = (0..1500).filter(|seed| scribble(*seed)).count();
    println!("{broken} of 1500 channels broke");
    assert!(broken > 300);
}
