// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Two guests and the relay, each a thread that sleeps until its doorbell rings. No clock
//! helps: who is not rung sleeps until the test has failed.

mod model;

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use model::peer::Peer;
use vmloop_abi::lanes::*;
use vmloop_abi::memory::{Layout, channel_header, create};
use vmloop_abi::shm::{VMLOOP_LANE_PACKET, VMLOOP_SIDE_CLOSED, VMLOOP_SIDE_READY};
use vmloop_abi::table::Table;
use vmloop_relay::{Doorbells, Kinds, Outcome, Relay};

/// Longer than anything here takes.
const FOREVER: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().expect("no panic") = true;
        self.heard.notify_one();
    }

    fn wait(&self, at_most: Duration) -> bool {
        let rung = self.rung.lock().expect("no panic");
        let mut rung = self.heard.wait_timeout_while(rung, at_most, |rung| !*rung).expect("none").0;
        std::mem::take(&mut *rung)
    }
}

struct Bells {
    relay: Arc<Bell>,
    guests: [Arc<Bell>; 2],
}

impl Doorbells for Bells {
    fn ring(&mut self, guest: usize) {
        self.guests[guest].ring();
    }

    fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        // Its own clock would hide a doorbell that was not rung.
        let _ = at_most;
        if self.relay.wait(FOREVER) { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

const COUNT: [u64; 2] = [1 << 20, 5000];

/// A guest that sends and reads by two lanes, of bytes and of records, until both have all.
fn guest(mut peer: Peer, opens: bool, bell: &Bell, relay: &Bell) {
    let ring = |peer: &mut Peer| {
        if std::mem::take(&mut peer.ring) {
            relay.ring();
        }
    };
    peer.begin();
    ring(&mut peer);
    while !peer.met {
        assert!(bell.wait(FOREVER), "never met");
        peer.look(Duration::ZERO);
    }
    if opens {
        for kind in [VMLOOP_LANE_STREAM, VMLOOP_LANE_PACKET] {
            peer.open(kind, 16384, [0, 2, 0, 0, 0, 0, 0, 0]).expect("a lane");
        }
    }
    let numbers = [0, 2];
    let done = |peer: &Peer| {
        numbers.iter().zip(COUNT).all(|(number, count)| {
            let lane = &peer.lanes[*number as usize];
            lane.sent.published >= count && lane.got >= count
        })
    };
    while !done(&peer) {
        let mut moved = 0;
        for (number, count) in numbers.into_iter().zip(COUNT) {
            let left = count - peer.lanes[number as usize].sent.count.min(count);
            moved += peer.write(number, left.min(3000));
            peer.publish(number);
            moved += peer.read(number, 5000);
            peer.publish_read(number);
        }
        let mut sleeps = true;
        for (number, count) in numbers.into_iter().zip(COUNT) {
            sleeps &= peer.sleep(number);
            if peer.lanes[number as usize].sent.count < count {
                sleeps &= peer.wait_for_room(number);
            }
        }
        ring(&mut peer);
        if moved == 0 && sleeps {
            assert!(bell.wait(FOREVER), "never rung");
        }
        peer.look(Duration::ZERO);
        ring(&mut peer);
    }
    // All that this one has sent is read before it closes; the other may close before.
    for number in numbers {
        while peer.state == VMLOOP_SIDE_READY {
            let lane = &mut peer.lanes[number as usize];
            let head = lane.sent.head;
            let tx = lane.tx.as_mut().expect("up");
            if tx.account() == 0 {
                break;
            }
            if tx.wait_read(head) {
                assert!(bell.wait(FOREVER), "not rung when all was read");
                peer.look(Duration::ZERO);
                ring(&mut peer);
            }
        }
    }
    if peer.state == VMLOOP_SIDE_READY {
        peer.shut_channel(Duration::ZERO);
    }
    ring(&mut peer);
    for time in 0.. {
        if peer.state == VMLOOP_SIDE_CLOSED {
            break;
        }
        thread::sleep(Duration::from_millis(4));
        peer.look(Duration::from_millis(4 * time));
        ring(&mut peer);
    }
    assert_eq!(peer.broken, None);
    for end in &peer.ended {
        assert_eq!(end.account, 0);
    }
}

#[test]
fn nobody_sleeps_for_ever() {
    let header = channel_header(64 << 10, Layout::Table);
    let fds = ["near", "far"].map(|name| create(name, &header).expect("memory"));
    let table = |region: usize, side| Table::map(&fds[region], side).expect("a region");
    let mut relay = Relay::new([table(0, 1), table(1, 0)], Kinds::default()).expect("a relay");
    let rung = Arc::new(Bell::default());
    let guests = [Arc::new(Bell::default()), Arc::new(Bell::default())];
    let mut bells = Bells { relay: Arc::clone(&rung), guests: guests.each_ref().map(Arc::clone) };
    let peers = [Peer::new(table(0, 0), 0), Peer::new(table(1, 1), 1)];
    thread::scope(|scope| {
        for ((number, peer), bell) in peers.into_iter().enumerate().zip(&guests) {
            let rung = &rung;
            scope.spawn(move || guest(peer, number == 0, bell, rung));
        }
        let outcome = relay.run(&mut bells).expect("it is rung");
        assert_eq!(outcome, [Outcome::Closed; 2]);
    });
}
