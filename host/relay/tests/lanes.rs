// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What goes through a relay, step by step: lanes that are opened, refused, withdrawn and
//! closed in every order, what they carry, and the account at the end.

mod model;

use std::time::Duration;

use model::World;
use model::peer::Phase;
use vmloop_abi::lanes::*;
use vmloop_abi::shm::*;
use vmloop_relay::{Kinds, NotTwo, Outcome, Relay};

const BYTES: u32 = VMLOOP_LANE_TOY_BYTES;
const RECORDS: u32 = VMLOOP_LANE_PACKET;

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// Refuses with a reason.
fn refusal(reason: u32) -> [u8; 8] {
    let mut say = [1, 0, 0, 0, 0, 0, 0, 0];
    say[4..].copy_from_slice(&reason.to_le_bytes());
    say
}

#[test]
fn a_guest_meets_the_other_one() {
    let mut world = World::quiet(64 << 10);
    world.peers[0].begin();
    world.settle();
    // Nobody is there before both are.
    assert!(!world.peers[0].met && !world.relay.is_up());
    world.peers[1].begin();
    world.settle();
    assert!(world.peers[0].met && world.peers[1].met && world.relay.is_up());
}

#[test]
fn a_lane_that_was_opened_before() {
    let mut world = World::quiet(64 << 10);
    world.peers[0].open(RECORDS, 8192, [0; 8]).expect("a lane");
    world.peers[0].begin();
    world.settle();
    world.peers[1].begin();
    world.settle();
    assert_eq!(world.steps(0), [1, 1]);
}

/// Many times around, with rings of one page and wherever records and padding fall.
#[test]
fn everything_comes_through() {
    for kind in [BYTES, RECORDS] {
        for opener in 0..2 {
            let mut world = World::new(64 << 10);
            let number = world.open(opener, kind, 4096);
            for _ in 0..4000 {
                for guest in 0..2 {
                    world.peers[guest].write(number, 97);
                    world.peers[guest].publish(number);
                    world.settle();
                    world.peers[1 - guest].read(number, 89);
                    world.peers[1 - guest].publish_read(number);
                    world.settle();
                }
            }
            world.drain();
            assert!(world.peers[0].lanes[number as usize].got > 4000);
            world.shut_all();
            world.check_nothing_left();
        }
    }
}

#[test]
fn reasons_are_passed_on() {
    let mut world = World::new(64 << 10);
    for opener in 0..2 {
        world.peers[opener].open(BYTES, 4096, refusal(777)).expect("a lane");
        world.settle();
        assert_eq!(world.last(opener).reason, 777);
        assert_eq!(world.last(opener).account, 0);

        let number = world.open(opener, BYTES, 4096);
        world.peers[opener].shut(number, 300 + opener as u32, world.now);
        world.turn();
        // With CLOSING as well; the relay is the opener's side at the other guest.
        let reason = world.peek(1 - opener, world.entry(opener, number, 196));
        assert_eq!(reason, 300 + opener as u32);
        world.settle();
        assert_eq!(world.last(1 - opener).reason, 300 + opener as u32);
        // The other one has closed it because it was closed.
        assert_eq!(world.last(opener).reason, VMLOOP_REASON_NONE);
    }
    world.check_nothing_left();
}

#[test]
fn kinds_that_nobody_can_copy_are_refused() {
    let mut world = World::new(64 << 10);
    // A control lane's number is a stream's; 3 to 5 are the paths' whose records are
    // references, which have none yet.
    for kind in [0, 3, 4, 5, 8, VMLOOP_LANE_WINDOW, u32::MAX] {
        let number = world.peers[0].open(kind, 4096, [0; 8]).expect("a lane");
        world.settle();
        assert_eq!(world.last(0).reason, VMLOOP_REASON_KIND, "{kind}");
        // The other guest, where the relay is side 0, has seen nothing of it but a
        // generation that went by.
        assert_eq!(world.peek(1, world.entry(0, number, 0)), VMLOOP_LANE_NONE);
        assert_eq!(
            world.peers[1].lanes[number as usize].key(),
            world.peers[0].lanes[number as usize].key()
        );
        world.check_nothing_left();
    }
}

#[test]
fn no_room_for_a_ring() {
    let mut world = World::new(64 << 10);
    let pages = world.peers[0].pages;
    // Guest 1's own ring is what there is no room for at guest 0.
    let mut opened = Vec::new();
    while world.relay.pages_left()[0] >= 8 {
        let say = [0, 3, 0, 0, 0, 0, 0, 0];
        let number = world.peers[0].open(BYTES, 4096, say).expect("a lane");
        world.settle();
        assert_eq!(world.steps(number), [1, 1]);
        opened.push(number);
    }
    // The far guest's area is as ours is: it refuses first, and its reason is passed on.
    world.peers[0].open(BYTES, 4096, [0, 3, 0, 0, 0, 0, 0, 0]).expect("a lane");
    world.settle();
    assert_eq!(world.last(0).reason, VMLOOP_REASON_ROOM);
    assert!(opened.len() as u32 * 8 <= pages);
    world.shut_all();
    world.check_nothing_left();
}

/// One lane is full and not read: others are not held up.
#[test]
fn a_stalled_lane_stalls_no_other() {
    let mut world = World::new(64 << 10);
    let stalled = world.open(0, BYTES, 4096);
    let records = world.open(0, RECORDS, 4096);
    let bytes = world.open(1, BYTES, 4096);
    world.send(0, stalled, 4096);
    assert_eq!(world.peers[0].write(stalled, 1), 0);
    for _ in 0..300 {
        world.peers[0].write(records, 3);
        world.peers[0].publish(records);
        world.peers[1].write(bytes, 3000);
        world.peers[1].publish(bytes);
        world.settle();
        for (guest, number) in [(1, records), (0, bytes)] {
            assert!(world.peers[guest].read(number, u64::MAX) > 0);
            world.peers[guest].publish_read(number);
        }
        world.settle();
        assert_eq!(world.peers[0].unread(stalled as usize), Some(4096));
    }
    world.receive(1, stalled, 1000);
    assert_eq!(world.peers[0].unread(stalled as usize), Some(3096));
}

/// Room is given back for what was read, not for what was copied.
#[test]
fn room_is_what_the_far_guest_has_read() {
    for kind in [BYTES, RECORDS] {
        let mut world = World::new(64 << 10);
        let number = world.open(0, kind, 4096);
        world.peers[0].write(number, u64::MAX >> 1);
        world.peers[0].publish(number);
        world.settle();
        let unread = world.peers[0].unread(number as usize).expect("open");
        assert_eq!(world.peers[0].write(number, 1), 0);
        // Read, and not given back.
        assert!(world.peers[1].read(number, 3) == 3);
        world.settle();
        assert_eq!(world.peers[0].unread(number as usize), Some(unread));
        world.peers[1].publish_read(number);
        world.settle();
        let exact = world.peers[0].unread_if(number as usize, 3);
        assert!(exact < unread);
        assert_eq!(world.peers[0].unread(number as usize), Some(exact));
    }
}

#[test]
fn doorbells_are_rung_on_request() {
    for kind in [BYTES, RECORDS] {
        let mut world = World::new(64 << 10);
        let number = world.open(0, kind, 4096);
        assert!(world.peers[1].sleep(number));
        let heard = world.peers[1].heard;
        world.send(0, number, 1);
        assert_eq!(world.peers[1].heard, heard + 1);
        // Not asked for again.
        world.send(0, number, 1);
        assert_eq!(world.peers[1].heard, heard + 1);
        // The writer waits for room.
        while world.peers[0].write(number, 1) > 0 {}
        world.peers[0].publish(number);
        world.settle();
        assert!(world.peers[0].wait_for_room(number));
        let heard = world.peers[0].heard;
        world.peers[1].read(number, u64::MAX);
        world.peers[1].publish_read(number);
        world.settle();
        assert_eq!(world.peers[0].heard, heard + 1);
        assert!(world.peers[0].write(number, 1) == 1);
    }
}

/// How a guest ends a lane.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// It stays OPEN until the other one ends it.
    Open,
    /// CLOSING, and CLOSED when all was read or the time is over.
    Closing,
    /// CLOSED at once, what has come unread.
    Closed,
    /// CLOSED at once, and what has come is kept.
    Kept,
    /// CLOSING, and then CLOSED before the other one is.
    Both,
}

const ENDS: [End; 5] = [End::Open, End::Closing, End::Closed, End::Kept, End::Both];

fn end(world: &mut World, guest: usize, number: u32, how: End) {
    let now = world.now;
    let peer = &mut world.peers[guest];
    if peer.lanes[number as usize].phase != Phase::Up {
        return;
    }
    peer.keeps = how == End::Kept;
    match how {
        End::Open => {}
        End::Closing => peer.shut(number, 301, now),
        End::Closed | End::Kept => peer.close(number, 302),
        End::Both => {
            peer.shut(number, 303, now);
            peer.close(number, 303);
        }
    }
}

/// Each way in which two guests can end a lane, with so much of it read, who of them is
/// first, and how much of that the relay sees at once.
#[test]
fn the_account_is_exact_however_a_lane_ends() {
    let mut count = 0;
    for kind in [BYTES, RECORDS] {
        for opener in 0..2 {
            for first in ENDS {
                for second in ENDS {
                    for turns in 0..3 {
                        for read in [0, 2, 5] {
                            ends(kind, opener, [first, second], turns, read);
                            count += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(count, 2 * 2 * 5 * 5 * 3 * 3);
}

fn ends(kind: u32, opener: usize, how: [End; 2], turns: usize, read: u64) {
    let mut world = World::new(64 << 10);
    // Not from where both rings begin alike.
    for _ in 0..2 {
        let number = world.open(opener, kind, 4096);
        world.send(0, number, 3);
        world.peers[0].keeps = false;
        world.shut_all();
    }
    let number = world.open(opener, kind, 4096);
    for guest in 0..2 {
        world.send(guest, number, 5);
        world.receive(1 - guest, number, read);
        // Some that the relay has not seen.
        world.peers[guest].write(number, 2);
        world.peers[guest].publish(number);
    }
    let before = world.peers.each_ref().map(|peer| peer.ended.len());
    for (guest, how) in how.into_iter().enumerate() {
        end(&mut world, guest, number, how);
        match turns {
            0 => {}
            1 => drop(world.turn()),
            _ => world.settle(),
        }
    }
    world.settle();
    if how == [End::Open; 2] {
        world.peers[0].shut(number, 304, world.now);
    }
    world.pass(ms(600));
    for (guest, before) in before.into_iter().enumerate() {
        assert_eq!(world.peers[guest].ended.len(), before + 1, "{how:?} {turns}");
        assert!(world.last(guest).is_final, "{how:?}");
        let read = world.peers[1 - guest].published(world.last(guest).key);
        assert_eq!(world.last(guest).account, world.last(guest).sent.unread(read), "{how:?}");
    }
    world.check_nothing_left();
}

/// More than the relay copies at once.
#[test]
fn what_was_produced_comes_before_the_end() {
    for how in [0, 1, 2] {
        for opener in 0..2 {
            let mut world = World::new(1 << 20);
            let say = [0; 8];
            let number = world.peers[opener].open(BYTES, 512 << 10, say).expect("a lane");
            world.settle();
            let peer = &mut world.peers[opener];
            assert_eq!(peer.write(number, 400_000), 400_000);
            peer.publish(number);
            match how {
                0 => peer.shut(number, 0, world.now),
                1 => peer.close(number, 0),
                // The whole channel.
                _ => peer.shut_channel(world.now),
            }
            world.settle();
            if how == 2 {
                world.receive(1 - opener, number, 400_000);
            }
            world.pass(ms(300));
            assert_eq!(world.peers[1 - opener].published((number, 0)), 400_000);
            assert_eq!(world.last(opener).account, 0);
            if how < 2 {
                world.check_nothing_left();
            }
        }
    }
}

/// A lane of records that the near guest has filled, and of which the far ring, where
/// padding is in another place, holds less. None if it holds all.
fn filled(shift: u64) -> Option<(World, u32)> {
    let mut world = World::new(64 << 10);
    let number = world.open(0, RECORDS, 4096);
    // What is never copied makes the near ring begin elsewhere than the far one.
    world.peers[0].write(number, 1 + shift % 8);
    world.peers[0].publish(number);
    world.settle();
    world.peers[0].write(number, 1 + shift / 8);
    world.peers[0].publish(number);
    world.peers[1].close(number, 0);
    world.settle();
    world.pass(ms(300));
    world.check_nothing_left();
    assert_eq!(world.open(0, RECORDS, 4096), number);
    while world.peers[0].write(number, 1) == 1 {}
    world.peers[0].publish(number);
    world.settle();
    let here = world.peers[1].peek_all(number as usize);
    (here < world.peers[0].lanes[number as usize].sent.published).then_some((world, number))
}

#[test]
fn records_that_there_is_no_room_for() {
    let mut count = 0;
    for shift in 0..80 {
        for at_once in [false, true] {
            for reads in [false, true] {
                let Some((mut world, number)) = filled(shift) else { continue };
                count += 1;
                let sent = world.peers[0].lanes[number as usize].sent.published;
                let now = world.now;
                world.peers[1].keeps = reads;
                if at_once {
                    world.peers[0].close(number, 0);
                } else {
                    world.peers[0].shut(number, 0, now);
                }
                world.settle();
                // The far guest does not know that yet.
                assert_eq!(world.steps(number)[1], VMLOOP_LIFE_OPEN);
                if reads {
                    world.peers[1].publish_read(number);
                    world.settle();
                    world.peers[1].read(number, u64::MAX);
                    world.peers[1].publish_read(number);
                    world.settle();
                    world.pass(ms(50));
                } else {
                    world.pass(ms(500));
                }
                assert_eq!(world.last(0).account == 0, reads);
                assert_eq!(world.peers[1].published(world.last(0).key) == sent, reads);
                world.check_nothing_left();
            }
        }
    }
    println!("{count} lanes were full");
    assert!(count >= 8);
}

/// Lanes that never came up: withdrawn before and after the other guest has answered.
#[test]
fn lanes_that_are_withdrawn() {
    for opener in 0..2 {
        for (mute, refuses, looks) in [
            (true, false, 0),
            (true, false, 1),
            (false, false, 1),
            (false, true, 1),
            (false, false, 2),
        ] {
            let mut world = World::new(64 << 10);
            world.peers[1 - opener].mute = mute;
            let say = if refuses { refusal(500) } else { [0; 8] };
            let number = world.peers[opener].open(RECORDS, 4096, say).expect("a lane");
            if looks > 0 {
                world.turn();
            }
            if looks > 1 {
                world.look(1 - opener);
                world.peers[1 - opener].write(number, 3);
                world.peers[1 - opener].publish(number);
            }
            if looks == 1 && !mute {
                world.look(1 - opener);
            }
            world.peers[opener].shut(number, 333, world.now);
            world.settle();
            world.pass(ms(500));
            // Of one that it has accepted the other guest learns the end, and the reason.
            let ended = world.peers[1 - opener].ended.last();
            assert_eq!(ended.map(|end| end.reason), (!mute && !refuses).then_some(333));
            world.peers[1 - opener].mute = false;
            world.check_nothing_left();
        }
    }
}

/// A guest closes its channel: the other one reads what there is, and closes its own.
#[test]
fn a_channel_closes() {
    for kind in [BYTES, RECORDS] {
        for guest in 0..2 {
            let mut world = World::new(64 << 10);
            let number = world.open(0, kind, 8192);
            for from in 0..2 {
                world.send(from, number, 4);
                world.peers[from].keeps = true;
            }
            let now = world.now;
            world.peers[guest].shut_channel(now);
            world.settle();
            for reader in 0..2 {
                world.receive(reader, number, 4);
            }
            // A guest that drains looks at the clock.
            world.pass(ms(20));
            assert!(world.over, "{kind} {guest}");
            assert_eq!(world.relay.outcome(), [Outcome::Closed; 2]);
            for peer in &world.peers {
                assert_eq!(peer.state, VMLOOP_SIDE_CLOSED);
                assert_eq!(peer.ended.last().expect("an end").account, 0);
            }
        }
    }
}

/// Nobody reads, and a guest closes or is gone: all ends in its time.
#[test]
fn a_channel_closes_that_nobody_reads() {
    for gone in [false, true] {
        let mut world = World::new(64 << 10);
        let number = world.open(0, BYTES, 8192);
        for from in 0..2 {
            world.send(from, number, 4000);
            world.peers[from].keeps = false;
        }
        if gone {
            world.relay.gone(0);
            world.again = true;
        } else {
            world.peers[0].shut_channel(world.now);
        }
        world.pass(ms(700));
        assert!(world.over);
        assert_eq!(world.peers[1].state, VMLOOP_SIDE_CLOSED);
        assert_eq!(world.last(1).account, 4000);
    }
}

#[test]
fn the_relay_closes_both() {
    let mut world = World::new(64 << 10);
    let number = world.open(0, BYTES, 8192);
    world.send(0, number, 4000);
    world.relay.close();
    world.again = true;
    world.settle();
    world.receive(1, number, 4000);
    world.pass(ms(20));
    assert!(world.over);
    assert_eq!(world.last(0).account, 0);
    assert_eq!(world.relay.outcome(), [Outcome::Closed; 2]);
}

#[test]
fn the_relay_closes_both_and_nobody_answers() {
    let mut world = World::new(64 << 10);
    let number = world.open(0, BYTES, 8192);
    world.send(0, number, 4000);
    world.relay.close();
    for time in [0, 100, 200, 300, 399] {
        world.now = ms(time);
        world.again = true;
        world.turn();
        assert!(!world.over, "{time}");
    }
    world.now = ms(400);
    world.turn();
    assert!(world.over);
    for guest in 0..2 {
        let said = world.peek(guest, world.header.side_offset[1 - guest]);
        assert_eq!(said, VMLOOP_SIDE_CLOSING, "the other guest has not said its last word");
    }
}

#[test]
fn regions_that_it_cannot_stand_between() {
    use vmloop_abi::memory::{Layout, channel_header, create};
    use vmloop_abi::table::Table;

    let table = |ring_size, side| {
        let memory = create("test", &channel_header(ring_size, Layout::Table)).expect("memory");
        Table::map(memory, side).expect("a region")
    };
    let relay = |one, other| Relay::new([one, other], Kinds::default()).map(drop);
    assert_eq!(relay(table(65536, 1), table(65536, 0)), Ok(()));
    assert_eq!(relay(table(65536, 1), table(65536, 1)), Err(NotTwo));
    assert_eq!(relay(table(65536, 1), table(131_072, 0)), Err(NotTwo));
    let used = table(65536, 1);
    used.say_state(VMLOOP_SIDE_CLOSED);
    assert_eq!(relay(used, table(65536, 0)), Err(NotTwo));
}
