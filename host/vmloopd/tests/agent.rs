// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The agent with QEMUs and guests that only pretend: everything between the
//! API and the memory of the devices.

mod fake;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use fake::agent::{Agent, link, meet};
use fake::{Modules, Qemu, wait};
use vmloop_abi::shm;
use vmloop_api::Request;
use vmloopd::broker::Event;
use vmloopd::links::Links;

#[test]
fn from_hello_to_a_channel_and_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let agent = Agent::start(directory.path());
    let (mut a, mut b) = meet(&agent, &one, &two);
    assert_eq!((a.directory[0].mac[5], a.directory[0].mtu, a.welcomes), (2, 1500, 1));
    assert_eq!(a.directory[0].ip[0].ip[..4], [10, 0, 0, 2]);
    let tag = link(&mut a, &mut b, &one, &two);

    // Both have the same memory, and each other's doorbell.
    {
        let (s1, s2) = (one.state(), two.state());
        let (d1, d2) = (&s1.devices["vmloop-ch-1"], &s2.devices["vmloop-ch-1"]);
        assert_eq!((tag, d1.id.min(d2.id), d1.id.max(d2.id)), (1, 2, 3));
        // Side 0 is the guest with the lower identity.
        assert_eq!(d1.id < d2.id, b.directory[0].id < a.directory[0].id);
        let inode = |fd: &std::os::fd::OwnedFd| {
            let file = File::from(fd.try_clone().expect("a descriptor"));
            let mut magic = [0; 8];
            file.read_exact_at(&mut magic, 0).expect("a header");
            assert_eq!(u64::from_le_bytes(magic), shm::VMLOOP_SHM_MAGIC);
            file.metadata().expect("its inode").ino()
        };
        assert_eq!(inode(&d1.memory), inode(&d2.memory));
        d1.ring();
        let mut count = [0; 8];
        let own = &d2.doorbells[&d2.id];
        assert_eq!(rustix::io::read(own, &mut count), Ok(8));
    }

    wait("a channel that is up", || {
        agent.list(Request::List).channels.iter().all(|channel| channel.state == "up")
    });
    let stats = std::thread::scope(|scope| {
        let asking = scope.spawn(|| agent.list(Request::Stats));
        wait("an answer", || {
            a.hear();
            b.hear();
            asking.is_finished()
        });
        asking.join().expect("an answer")
    });
    assert_eq!(stats.channels[0].a.stats.expect("counters").tx_bytes, 42);

    // One idle side is not enough.
    a.state(tag, shm::VMLOOP_STATE_IDLE);
    b.state(tag, shm::VMLOOP_STATE_IDLE);
    wait("an end", || {
        a.hear();
        b.hear();
        !one.has("vmloop-ch-1") && !two.has("vmloop-ch-1") && agent.channels() == 0
    });
    assert_eq!((a.closes, b.closes), (vec![1], vec![1]));
    for qemu in [&one, &two] {
        assert_eq!(qemu.state().chardevs.keys().collect::<Vec<_>>(), ["vmloop-ctl"]);
    }
}

#[test]
fn a_guest_that_ends() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let agent = Agent::start(directory.path());
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    two.kill();
    wait("an end", || {
        a.hear();
        a.directory.is_empty() && !one.has("vmloop-ch-1") && agent.channels() == 0
    });
    assert_eq!(a.closes, [shm::VMLOOP_CLOSE_PEER_GONE]);
    assert_eq!(agent.list(Request::List).guests.len(), 1);
}

#[test]
fn a_guest_that_is_reset_or_shut_down() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let agent = Agent::start(directory.path());
    let (mut a, mut b) = meet(&agent, &one, &two);
    for (event, incarnation) in [("RESET", 91), ("SHUTDOWN", 92)] {
        let tag = link(&mut a, &mut b, &one, &two);
        two.event(event, &serde_json::json!({"guest": true, "reason": "guest-shutdown"}));
        let closes = a.closes.len();
        wait("an end of the channel", || {
            a.hear();
            a.directory.is_empty() && !one.has(&format!("vmloop-ch-{tag}")) && agent.channels() == 0
        });
        assert_eq!(a.closes[closes..], [shm::VMLOOP_CLOSE_PEER_GONE], "{event}");
        // Its QEMU is there yet, and starts it again.
        b = Modules::load(&two, incarnation, [10, 0, 0, 2]);
        wait("it to be back", || {
            a.hear();
            b.hear();
            [&a, &b].iter().all(|m| m.directory.len() == 1 && m.directory[0].ip_count == 1)
        });
    }
}

#[test]
fn an_agent_that_is_killed() {
    let directory = tempfile::tempdir().expect("a directory");
    let all: Vec<_> = (1..=3).map(|number| Qemu::start(directory.path(), number)).collect();
    let agent = Agent::start(directory.path());
    let (mut a, mut b) = meet(&agent, &all[0], &all[1]);
    let tag = link(&mut a, &mut b, &all[0], &all[1]);
    agent.attach(&all[2]);
    let mut c = Modules::load(&all[2], 33, [10, 0, 0, 3]);
    wait("three guests", || {
        a.hear();
        c.hear();
        c.directory.len() == 2 && a.directory.len() == 2
    });
    let to_c = *a.directory.iter().find(|peer| peer.tag == 0).expect("guest 3");
    a.want(&to_c);
    wait("a second channel", || all[2].has("vmloop-ch-2") && all[0].has("vmloop-ch-2"));

    agent.kill();
    // Meanwhile guest 3 ends.
    all[2].kill();
    let agent = Agent::start(directory.path());
    for qemu in &all[..2] {
        wait("another control device", || qemu.state().plugged["vmloop-ctl"] == 2);
    }
    let mut a = Modules::load(&all[0], 111, [10, 0, 0, 1]);
    wait("a directory", || {
        a.hear();
        a.directory.len() == 1
    });
    // The other has not said HELLO yet, and yet the channel is there.
    assert_eq!((a.generation, a.directory[0].tag), (1, tag));
    let mut b = Modules::load(&all[1], 222, [10, 0, 0, 2]);
    wait("a directory", || {
        b.hear();
        b.directory.len() == 1
    });
    assert_eq!(b.directory[0].tag, tag);
    wait("no orphan", || !all[0].has("vmloop-ch-2"));
    assert!(a.closes.is_empty() && b.closes.is_empty());
    assert_eq!(all[0].state().plugged["vmloop-ch-1"], 1);
    assert_eq!(all[1].state().plugged["vmloop-ch-1"], 1);
    assert_eq!(agent.channels(), 1);

    // And it can be closed by the agent that did not make it.
    agent.ask(Request::Close { a: "g1".into(), b: "g2".into() }).expect("closed");
    wait("an end", || {
        a.hear();
        b.hear();
        all[..2].iter().all(|qemu| qemu.devices() == ["vmloop-ctl"])
    });
}

#[test]
fn a_device_that_cannot_be_plugged() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let agent = Agent::start(directory.path());
    let (mut a, _b) = meet(&agent, &one, &two);
    two.state().fail_device_add = Some("vmloop-ch".into());
    let peer = a.directory[0];
    a.want(&peer);
    wait("a refusal", || {
        a.hear();
        !a.refused.is_empty()
    });
    assert_eq!(a.refused, [shm::VMLOOP_REFUSED_SLOTS]);
    for qemu in [&one, &two] {
        assert_eq!(qemu.devices(), ["vmloop-ctl"]);
        assert_eq!(qemu.state().chardevs.len(), 1);
    }
    // Asking again at once is too early.
    a.want(&peer);
    wait("another refusal", || {
        a.hear();
        a.refused.len() == 2
    });
    assert_eq!(a.refused[1], shm::VMLOOP_REFUSED_BUSY);

    two.state().fail_device_add = Some("vmloop-ctl".into());
    agent.ask(Request::Detach { guest: "g2".into() }).expect("detached");
    let problem = agent
        .ask(Request::Attach { qmp: two.path.clone(), name: None })
        .expect_err("no slot for the control device");
    assert_eq!(problem.code, "no-slot");
    assert!(two.state().chardevs.is_empty());
    assert_eq!(agent.list(Request::List).guests.len(), 1);
}

#[test]
fn a_guest_that_misbehaves() {
    let directory = tempfile::tempdir().expect("a directory");
    let all: Vec<_> = (1..=3).map(|number| Qemu::start(directory.path(), number)).collect();
    let agent = Agent::start(directory.path());
    let (mut a, mut b) = meet(&agent, &all[0], &all[1]);
    let tag = link(&mut a, &mut b, &all[0], &all[1]);
    agent.attach(&all[2]);
    let mut c = Modules::load(&all[2], 33, [10, 0, 0, 3]);
    for kind in 0..64 {
        c.send(kind, &[0xff; 200]);
    }
    c.misbehave();
    wait("its control device to be replaced", || all[2].state().plugged["vmloop-ctl"] == 2);
    let mut c = Modules::load(&all[2], 34, [10, 0, 0, 3]);
    wait("it to be back", || {
        c.hear();
        c.directory.len() == 2
    });
    a.hear();
    assert!(a.closes.is_empty() && a.directory.iter().any(|peer| peer.tag == tag));
    assert_eq!(all[0].state().plugged["vmloop-ctl"], 1);
}

#[test]
fn a_control_device_that_is_lost() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let agent = Agent::start(directory.path());
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    one.lose("vmloop-ctl");
    // Nobody can be told anything: the channel goes.
    wait("an end of the channel", || {
        b.hear();
        b.closes == [shm::VMLOOP_CLOSE_PEER_GONE] && agent.channels() == 0
    });
    wait("another control device", || one.state().plugged["vmloop-ctl"] == 2);
    let mut a = Modules::load(&one, 35, [10, 0, 0, 1]);
    wait("it to be back", || {
        a.hear();
        b.hear();
        a.directory.len() == 1 && b.directory.len() == 1
    });
}

#[test]
fn a_channel_device_that_is_lost() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let agent = Agent::start(directory.path());
    let (mut a, mut b) = meet(&agent, &one, &two);
    let tag = link(&mut a, &mut b, &one, &two);
    // The guest itself does not say a word: it may never have seen the device.
    a.polite = false;
    one.lose(&format!("vmloop-ch-{tag}"));
    wait("an end of the channel", || {
        b.hear();
        b.closes == [shm::VMLOOP_CLOSE_PEER_GONE] && agent.channels() == 0
    });
    assert!(one.devices() == ["vmloop-ctl"] && two.devices() == ["vmloop-ctl"]);
    assert_eq!(one.state().chardevs.len(), 1);
}

#[test]
fn a_guest_that_claims_what_is_not_its_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let agent = Agent::start(directory.path());
    let (mut a, mut b) = meet(&agent, &one, &two);
    let tag = link(&mut a, &mut b, &one, &two);
    // Channels of others, peers that do not exist, itself, another epoch.
    a.state(tag + 1, shm::VMLOOP_STATE_CLOSED);
    let own = b.directory[0];
    for peer in
        [shm::Peer { id: 12345, ..a.directory[0] }, own, shm::Peer { epoch: 1, ..a.directory[0] }]
    {
        a.want(&peer);
    }
    wait("refusals", || {
        a.hear();
        a.refused.len() == 3
    });
    assert_eq!(a.refused, [shm::VMLOOP_REFUSED_GONE; 3]);
    assert_eq!(agent.channels(), 1);
    assert!(one.has("vmloop-ch-1"));

    // Many requests are slowed down, not carried out.
    for _ in 0..100 {
        a.want(&shm::Peer { id: 12345, ..own });
    }
    wait("too many", || {
        a.hear();
        a.refused.contains(&shm::VMLOOP_REFUSED_BUSY)
    });
}

#[test]
fn policy_and_network_close_channels() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let agent = Agent::start(directory.path());
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);

    let policy = directory.path().join("policy.toml");
    std::fs::write(&policy, "default = 'den'\n").expect("a policy");
    let problem = agent.ask(Request::PolicyReload).expect_err("an error in it");
    assert!(problem.message.contains("policy.toml:1:"), "{}", problem.message);
    assert_eq!(agent.channels(), 1);

    std::fs::write(&policy, "default = 'deny'\n").expect("a policy");
    agent.ask(Request::PolicyReload).expect("a good one");
    wait("an end", || {
        a.hear();
        b.hear();
        a.directory.is_empty() && !one.has("vmloop-ch-1") && agent.channels() == 0
    });
    assert_eq!(a.closes, [shm::VMLOOP_CLOSE_POLICY]);

    std::fs::remove_file(&policy).expect("removed");
    agent.ask(Request::PolicyReload).expect("the default");
    wait("the peer", || {
        a.hear();
        b.hear();
        a.directory.len() == 1 && b.directory.len() == 1
    });
    // It lived for a short time, so the pair must wait.
    wait("a channel", || {
        let peer = a.directory[0];
        a.want(&peer);
        std::thread::sleep(std::time::Duration::from_millis(300));
        a.hear();
        b.hear();
        one.has("vmloop-ch-2") && two.has("vmloop-ch-2")
    });
    agent.send(Event::Links(Links::default()));
    wait("an end", || {
        a.hear();
        b.hear();
        a.directory.is_empty() && !one.has("vmloop-ch-2") && !two.has("vmloop-ch-2")
    });
}

#[test]
fn a_guest_that_does_not_answer_close() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let agent = Agent::start(directory.path());
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    b.polite = false;
    std::thread::scope(|scope| {
        let detaching = scope.spawn(|| agent.ask(Request::Detach { guest: "g2".into() }));
        wait("an end", || {
            a.hear();
            b.hear();
            detaching.is_finished()
        });
        detaching.join().expect("an answer").expect("detached");
    });
    assert!(two.devices().is_empty());
    assert_eq!(one.devices(), ["vmloop-ctl"]);
    assert_eq!(a.closes, [shm::VMLOOP_CLOSE_DETACH]);
}

#[test]
fn clones_and_names() {
    let directory = tempfile::tempdir().expect("a directory");
    let other = tempfile::tempdir().expect("a directory");
    let (one, clone) = (Qemu::start(directory.path(), 1), Qemu::start(other.path(), 1));
    let two = Qemu::start(directory.path(), 2);
    let agent = Agent::start(directory.path());
    agent.attach(&one);
    let attach = |qemu: &Qemu, name: Option<&str>| {
        let request = Request::Attach { qmp: qemu.path.clone(), name: name.map(str::to_owned) };
        agent.ask(request).map_err(|problem| problem.code)
    };
    assert_eq!(attach(&one, None), Err("attached-already".into()));
    assert_eq!(attach(&clone, Some("other")), Err("identity-taken".into()));
    assert_eq!(attach(&two, Some("g1")), Err("name-taken".into()));
    assert_eq!(attach(&two, Some("a\nb")), Err("bad-name".into()));
    assert!(clone.devices().is_empty() && two.devices().is_empty());
    assert!(attach(&two, Some("another")).is_ok());
}
