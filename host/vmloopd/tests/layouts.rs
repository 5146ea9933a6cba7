// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is in a channel's memory: what both guests know.

mod fake;

use fake::agent::{link, two_guests};
use fake::{Modules, wait};
use serde_json::Value;
use vmloop_abi::{lanes, shm};

/// The versions of a channel's memory, as each of two guests would find it, by what
/// the second one says that it knows.
fn majors(features: u64) -> [u16; 2] {
    let (_directory, one, two, agent) = two_guests();
    agent.attach(&one);
    agent.attach(&two);
    let mut a = Modules::load(&one, 11, [10, 0, 0, 1]);
    let mut b = Modules::begin(&two, 22, features);
    b.advertise(&[[10, 0, 0, 2].into()]);
    wait("a directory", || {
        a.hear();
        b.hear();
        a.directory.len() == 1 && b.directory.len() == 1
    });
    let device = format!("vmloop-ch-{}", link(&mut a, &mut b, &one, &two));
    [&one, &two].map(|qemu| qemu.major(&device))
}

#[test]
fn both_know_tables() {
    assert_eq!(majors(shm::VMLOOP_F_LANES), [lanes::VMLOOP_TABLE_MAJOR; 2]);
}

#[test]
fn one_knows_one_lane_only() {
    assert_eq!(majors(0), [shm::VMLOOP_SHM_MAJOR; 2]);
}

/// A channel is made before a guest that arrives has said what it knows.
#[test]
fn one_that_arrives_knows_one_lane_only() {
    let (_directory, one, two, agent) = two_guests();
    one.migration("", "inmigrate");
    agent.attach(&one);
    agent.attach(&two);
    let mut b = Modules::load(&two, 22, [10, 0, 0, 2]);
    wait("it to be announced", || {
        b.hear();
        b.directory.len() == 1
    });
    let peer = b.directory[0];
    b.want(&peer);
    wait("an answer", || {
        b.hear();
        !b.refused.is_empty()
    });
    one.migration("completed", "running");
    one.event("RESUME", &Value::Null);
    wait("a channel", || one.has("vmloop-ch-1") && two.has("vmloop-ch-1"));
    assert_eq!(one.major("vmloop-ch-1"), lanes::VMLOOP_TABLE_MAJOR);

    let mut a = Modules::begin(&one, 11, 0);
    wait("the end of a channel that it does not know", || {
        a.hear();
        b.hear();
        !one.has("vmloop-ch-1") && !two.has("vmloop-ch-1")
    });
    wait("two that know of each other", || {
        a.hear();
        b.hear();
        let none =
            |modules: &Modules<'_>| modules.directory.len() == 1 && modules.directory[0].tag == 0;
        agent.channels() == 0 && none(&a) && none(&b)
    });
    let device = format!("vmloop-ch-{}", link(&mut a, &mut b, &one, &two));
    assert_eq!([&one, &two].map(|qemu| qemu.major(&device)), [shm::VMLOOP_SHM_MAJOR; 2]);
}
