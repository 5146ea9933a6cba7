// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The agent with QEMUs and guests that only pretend: everything between the
//! API and the memory of the devices.

mod fake;

use std::fs::File;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU32, Ordering};

use fake::agent::{Agent, link, meet, two_guests};
use fake::{Modules, Qemu, wait};
use vmloop_abi::shm;
use vmloop_api::{ChannelState, Disputed, GuestState, PolicyState, Request, Status};
use vmloop_policy::in_force::Source;
use vmloopd::event::Event;
use vmloopd::machine::NoTaps;
use vmloopd::network::links::{Link, Links};

/// Address of the host on a bridge.
fn gateway(bridge: u32) -> [u8; 6] {
    [2, 0, 0, 0, 0, bridge as u8]
}

/// Three networks that this host routes between: guests 1 and 2 are on br1, 3
/// and 4 on br2, and 5 has nobody but the host.
fn routed_network() -> Links {
    let bridge = |index| {
        let bridge = Link { name: format!("br{index}"), up: true, bridge: true, ..Link::default() };
        (index + 100, Link { mac: gateway(index), mtu: 1500, ..bridge })
    };
    let tap = |number: u32, master| {
        let tap = Link { name: format!("tap{number}"), mtu: 1500, up: true, ..Link::default() };
        (number, Link { master, forwarding: true, mac: gateway(number), ..tap })
    };
    Links::new([
        bridge(1),
        bridge(2),
        tap(1, 101),
        tap(2, 101),
        tap(3, 102),
        tap(4, 102),
        tap(5, 0),
    ])
}

/// Network to which the host of one test sends 10.7.0.0/16.
static NETWORK_7: AtomicU32 = AtomicU32::new(1);

/// What that host sends where: 10.N.0.0/16 and fd00:N::/32 to network N, but its
/// own address there, and all else to its uplink.
fn route(ip: IpAddr) -> Option<u32> {
    let (network, own) = match ip {
        IpAddr::V4(ip) => {
            let [first, second, _, last] = ip.octets();
            (u32::from(second) * u32::from(first == 10), last == 1)
        }
        IpAddr::V6(ip) => (ip.segments()[1].into(), ip == Ipv6Addr::LOCALHOST),
    };
    match network {
        _ if own => None,
        7 => Some(100 + NETWORK_7.load(Ordering::Relaxed)),
        1 | 2 => Some(100 + network),
        5 => Some(5),
        _ => Some(999),
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Addresses of an entry of a directory.
fn ips(peer: &shm::Peer) -> Vec<String> {
    peer.ip[..peer.ip_count.into()]
        .iter()
        .map(|address| match address.family {
            shm::VMLOOP_ADDR_IPV4 => {
                IpAddr::from([address.ip[0], address.ip[1], address.ip[2], address.ip[3]])
            }
            _ => IpAddr::from(address.ip),
        })
        .map(|ip| ip.to_string())
        .collect()
}

const ROUTED: &str = "idle_ms = 0\n[[routed]]\nname = 'all'\nmembers = ['g*']\n\
    interfaces = ['br?', 'tap*']\nallow_ips = ['10.0.0.0/8', 'fd00::/16']\n";

#[test]
fn from_hello_to_a_channel_and_back() {
    let (_directory, one, two, agent) = two_guests();
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
        // Guests that do not say how many CPUs they have get one each.
        assert_eq!(own.len(), 1);
        assert_eq!(rustix::io::read(&own[0], &mut count), Ok(8));
    }

    wait("a channel that is up", || {
        agent.list(Request::List).channels.iter().all(|channel| channel.state == ChannelState::Up)
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

/// As many doorbells as the guest with fewer CPUs has CPUs, and one.
#[test]
fn guests_of_several_cpus() {
    let (directory, one, two, agent) = two_guests();
    agent.policy(directory.path(), "idle_ms = 0\ndoorbells = 9\n");
    let (mut a, mut b) = meet(&agent, &one, &two);
    a.hello_of(shm::VMLOOP_F_LANES, 4);
    b.hello_of(shm::VMLOOP_F_LANES, 2);
    wait("answers", || {
        a.hear();
        b.hear();
        (a.welcomes, b.welcomes) == (2, 2)
    });
    link(&mut a, &mut b, &one, &two);
    let (s1, s2) = (one.state(), two.state());
    let (d1, d2) = (&s1.devices["vmloop-ch-1"], &s2.devices["vmloop-ch-1"]);
    for (from, to) in [(d1, d2), (d2, d1)] {
        assert_eq!(from.vectors, 3);
        let (rings, hears) = (&from.doorbells[&to.id], &to.doorbells[&to.id]);
        let mut count = [0; 8];
        for (ring, bell) in rings.iter().zip(hears) {
            rustix::io::write(ring, &1u64.to_ne_bytes()).expect("a doorbell rings");
            assert_eq!(rustix::io::read(bell, &mut count), Ok(8));
            let all = to.doorbells.values().flatten();
            let heard = all.filter(|one| rustix::io::read(one, &mut count).is_ok());
            assert_eq!(heard.count(), 0, "no other one rang");
        }
    }
    drop((s1, s2));
    assert_eq!(agent.list(Request::List).channels[0].bells, 3);
}

#[test]
fn a_guest_that_ends() {
    let (_directory, one, two, agent) = two_guests();
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
    let (_directory, one, two, agent) = two_guests();
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

/// A guest that understands it is told what is new; one of before, and one that asks again,
/// gets a whole directory.
#[test]
fn what_is_new_in_a_directory() {
    const BEGIN: u16 = shm::VMLOOP_MSG_DIR_BEGIN;
    const PEER: u16 = shm::VMLOOP_MSG_DIR_PEER;
    const END: u16 = shm::VMLOOP_MSG_DIR_END;
    const CHANGE: u16 = shm::VMLOOP_MSG_DIR_CHANGE;
    const GONE: u16 = shm::VMLOOP_MSG_DIR_GONE;
    fn know<'a>(a: &mut Modules<'a>, b: &mut Modules<'a>, count: usize) {
        wait("them to know each other", || {
            a.hear();
            b.hear();
            a.directory.len() == count && b.directory.len() == count
        });
    }
    let directory = tempfile::tempdir().expect("a directory");
    let all: Vec<_> = (1..=3).map(|number| Qemu::start(directory.path(), number)).collect();
    let agent = Agent::start(directory.path());
    all.iter().for_each(|one| agent.attach(one));
    let features = shm::VMLOOP_F_LANES | shm::VMLOOP_F_CHANGES;
    let mut a = Modules::begin(&all[0], 31, features);
    let mut b = Modules::begin(&all[1], 32, shm::VMLOOP_F_LANES);
    know(&mut a, &mut b, 1);
    a.told.clear();
    b.told.clear();

    let c = Modules::begin(&all[2], 33, features);
    know(&mut a, &mut b, 2);
    assert_eq!(a.told, [CHANGE, PEER, END]);
    assert_eq!(b.told, [BEGIN, PEER, PEER, END]);
    a.told.clear();
    b.told.clear();
    drop(c);
    all[2].kill();
    know(&mut a, &mut b, 1);
    assert_eq!(a.told, [CHANGE, GONE, END]);
    assert_eq!(b.told, [BEGIN, PEER, END]);

    a.told.clear();
    a.hello(features);
    wait("another directory", || {
        a.hear();
        a.told.last() == Some(&END)
    });
    assert_eq!(a.told, [BEGIN, PEER, END]);
}

/// Only messages that had to wait are counted as that, and each of them.
#[test]
fn a_guest_that_rings_for_nothing_and_one_that_says_too_much() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, _b) = meet(&agent, &one, &two);
    for _ in 0..1500 {
        a.ring();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let throttled = || {
        let status = agent.ask(Request::Status).expect("a status");
        serde_json::from_value::<Status>(status).expect("a status").counters.throttled
    };
    assert_eq!(throttled(), 0);
    // 400 at once, the others at 200 a second.
    for _ in 0..600 {
        a.state(1, shm::VMLOOP_STATE_UP);
    }
    wait("many to be heard late", || throttled() > 50);
    assert!(throttled() <= 200);
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
    let (_directory, one, two, agent) = two_guests();
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
fn a_machine_that_boots_is_let_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let qemu = Qemu::start(directory.path(), 1);
    let agent = Agent::start(directory.path());
    qemu.state().booting = true;
    agent.attach(&qemu);
    // It stays attached, and is asked again.
    let asked = || qemu.state().heard.iter().filter(|word| *word == "query-pci").count();
    wait("more questions", || asked() > 3);
    assert!(qemu.devices().is_empty());
    let guests = agent.list(Request::List).guests;
    assert!(guests.len() == 1 && guests[0].state == GuestState::Attached);
    agent.ask(Request::Detach { guest: "g1".into() }).expect("not kept by its firmware");

    agent.attach(&qemu);
    qemu.state().booting = false;
    wait("a control device", || qemu.has("vmloop-ctl"));
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
    let (_directory, one, two, agent) = two_guests();
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
    let (_directory, one, two, agent) = two_guests();
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
    let (_directory, one, two, agent) = two_guests();
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
fn a_host_that_does_not_let_the_agent_look() {
    let directory = tempfile::tempdir().expect("a directory");
    let qemu = Qemu::start(directory.path(), 1);
    let forbidden = |_| Err(NoTaps::Forbidden("/proc/7/ns/net".into(), "Permission denied".into()));
    let agent = Agent::with(directory.path(), |config| config.taps = forbidden);
    agent.attach(&qemu);
    let nic = agent.list(Request::List).guests[0].nics[0].clone();
    assert!(nic.tap.is_empty());
    assert!(nic.blocked.contains("/proc/7/ns/net: Permission denied"), "{}", nic.blocked);
    let [problem] = &status(&agent).problems[..] else { panic!("one problem") };
    assert!(problem.starts_with("g1 gets no channels: ") && problem.contains("CAP_SYS_PTRACE"));

    // How a guest is set up is no problem of the agent's.
    agent.ask(Request::Detach { guest: "g1".into() }).expect("detached");
    let agent = Agent::with(directory.path(), |config| config.taps = |_| Err(NoTaps::Elsewhere(7)));
    agent.attach(&qemu);
    let nic = agent.list(Request::List).guests[0].nics[0].clone();
    assert!(nic.blocked.contains("another network namespace"), "{}", nic.blocked);
    assert!(status(&agent).problems.is_empty());
}

/// What the agent says of itself.
fn status(agent: &Agent) -> vmloop_api::Status {
    serde_json::from_value(agent.ask(Request::Status).expect("an answer")).expect("its status")
}

#[test]
fn a_policy_that_cannot_be_read_opens_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    // Somebody named it, and it is not there.
    let policy = directory.path().join("named.toml");
    let agent = Agent::with(directory.path(), |config| config.policy = Source::named(&policy));
    agent.attach(&one);
    agent.attach(&two);
    let mut a = Modules::load(&one, 11, [10, 0, 0, 1]);
    let mut b = Modules::load(&two, 22, [10, 0, 0, 2]);
    wait("both", || {
        agent.list(Request::List).guests.iter().all(|guest| guest.state == GuestState::Ready)
    });
    wait("directories", || {
        a.hear();
        b.hear();
        a.generation > 0 && b.generation > 0
    });
    assert!(a.directory.is_empty() && b.directory.is_empty());
    let said = status(&agent);
    assert_eq!((said.policy_state, &said.policy), (PolicyState::Denied, &policy));
    assert!(said.policy_error.contains("named.toml: No such file"), "{}", said.policy_error);
    let problem = agent.ask(Request::PolicyReload).expect_err("still not there");
    assert!(problem.hint.contains("nobody may talk"), "{}", problem.hint);

    std::fs::write(&policy, "[[group]]\nname = 'g'\nmembers = ['g?']\n").expect("a policy");
    agent.ask(Request::PolicyReload).expect("a good one");
    wait("peers", || {
        a.hear();
        b.hear();
        a.directory.len() == 1 && b.directory.len() == 1
    });
    link(&mut a, &mut b, &one, &two);
    assert_eq!(
        (status(&agent).policy_state, &*status(&agent).policy_error),
        (PolicyState::File, "")
    );

    // Cut in the middle, empty, gone: what was in force stays so, and says why.
    let since = status(&agent).policy_since;
    for text in [
        Some("[[group]]\nname = 'g'\nmem"),
        Some("[[group]]\nname = 'g'\nmembers = ['x']"),
        Some(""),
        None,
    ] {
        match text {
            Some(text) => std::fs::write(&policy, text).expect("written"),
            None => std::fs::remove_file(&policy).expect("removed"),
        }
        let problem = agent.ask(Request::PolicyReload).expect_err("no good one");
        assert!(problem.hint.contains("last good policy stays"), "{}", problem.hint);
        let said = status(&agent);
        assert_eq!(
            (said.policy_state, said.policy_since),
            (PolicyState::LastGood, since),
            "{text:?}"
        );
        assert!(said.policy_error.contains("named.toml"), "{}", said.policy_error);
    }
    assert_eq!(agent.channels(), 1);
    a.hear();
    assert!(a.closes.is_empty());

    // The next agent denies: what it could read, it does not know.
    agent.kill();
    let agent = Agent::with(directory.path(), |config| config.policy = Source::named(&policy));
    for qemu in [&one, &two] {
        wait("another control device", || qemu.state().plugged["vmloop-ctl"] == 2);
    }
    let mut a = Modules::load(&one, 111, [10, 0, 0, 1]);
    let mut b = Modules::load(&two, 222, [10, 0, 0, 2]);
    wait("an end", || {
        a.hear();
        b.hear();
        agent.channels() == 0 && one.devices() == ["vmloop-ctl"]
    });
    assert_eq!(status(&agent).policy_state, PolicyState::Denied);
}

#[test]
fn without_a_policy_status_says_so() {
    let (directory, one, two, agent) = two_guests();
    meet(&agent, &one, &two);
    assert_eq!(
        (status(&agent).policy_state, &*status(&agent).policy_error),
        (PolicyState::None, "")
    );
    agent.policy(directory.path(), "default = 'same-bridge'\n");
    assert_eq!(status(&agent).policy_state, PolicyState::File);
}

#[test]
fn policy_and_network_close_channels() {
    let (directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);

    let policy = directory.path().join("policy.toml");
    std::fs::write(&policy, "default = 'den'\n").expect("a policy");
    let problem = agent.ask(Request::PolicyReload).expect_err("an error in it");
    assert!(problem.message.contains("policy.toml:1:"), "{}", problem.message);
    assert_eq!(agent.channels(), 1);

    // Another policy for streams is one more word in the directory, and closes nothing.
    agent.policy(directory.path(), "streams = 'deny'\n");
    let without = 1 << (shm::VMLOOP_PEER_WITHOUT_SHIFT + 2);
    wait("the word", || {
        a.hear();
        b.hear();
        [&a, &b].iter().all(|one| one.directory[0].flags == shm::VMLOOP_PEER_TAGGED | without)
    });
    assert_eq!((agent.channels(), a.closes.len()), (1, 0));
    agent.policy(directory.path(), "streams = 'allow'\n");
    wait("no word", || {
        a.hear();
        b.hear();
        [&a, &b].iter().all(|one| one.directory[0].flags == shm::VMLOOP_PEER_TAGGED)
    });

    std::fs::write(&policy, "default = 'deny'\n").expect("a policy");
    agent.ask(Request::PolicyReload).expect("a good one");
    wait("an end", || {
        a.hear();
        b.hear();
        a.directory.is_empty() && !one.has("vmloop-ch-1") && agent.channels() == 0
    });
    assert_eq!(a.closes, [shm::VMLOOP_CLOSE_POLICY]);

    agent.policy(directory.path(), "default = 'same-bridge'\n");
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

/// Has the channel with this tag up, and ended by what one side says of it.
fn up_and_ended(agent: &Agent, a: &mut Modules<'_>, b: &mut Modules<'_>, tag: u32, state: u32) {
    a.state(tag, shm::VMLOOP_STATE_UP);
    b.state(tag, shm::VMLOOP_STATE_UP);
    wait("both to have it", || agent.list(Request::List).channels[0].state == ChannelState::Up);
    a.state(tag, state);
    wait("its end", || {
        a.hear();
        b.hear();
        agent.channels() == 0 && a.directory[0].tag == 0
    });
}

/// Breaks the channel with this tag, says nothing more until it is gone, and
/// wants another. Returns the refusal: reason and milliseconds.
fn break_and_want(agent: &Agent, a: &mut Modules<'_>, b: &mut Modules<'_>, tag: u32) -> (u32, u32) {
    up_and_ended(agent, a, b, tag, shm::VMLOOP_STATE_BROKEN);
    a.refused.clear();
    let peer = a.directory[0];
    a.want(&peer);
    wait("a refusal", || {
        a.hear();
        !a.refused.is_empty()
    });
    (a.refused[0], a.retry_ms)
}

#[test]
fn a_channel_that_breaks_is_tried_again() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    let tag = link(&mut a, &mut b, &one, &two);
    let broken = || agent.list(Request::List).broken;
    assert!(broken().is_empty());

    let (reason, retry_ms) = break_and_want(&agent, &mut a, &mut b, tag);
    assert_eq!(reason, shm::VMLOOP_REFUSED_BROKEN);
    assert!((1..=1000).contains(&retry_ms), "{retry_ms} ms");
    let one_break = broken().remove(0);
    assert_eq!((&*one_break.reason, one_break.breaks), ("reported by g1", 1));
    assert!(one_break.next_ms <= 1000 && !one_break.operator);

    // The peer is told the same, and gets the channel when the time is over.
    let peer = b.directory[0];
    b.want(&peer);
    wait("a refusal", || {
        b.hear();
        !b.refused.is_empty()
    });
    assert_eq!(b.refused[0], shm::VMLOOP_REFUSED_BROKEN);
    std::thread::sleep(std::time::Duration::from_millis(u64::from(b.retry_ms) + 5));
    let tag = link(&mut a, &mut b, &one, &two);
    assert_eq!(b.refused.len(), 1);

    // Twice as long the second time.
    let (reason, retry_ms) = break_and_want(&agent, &mut a, &mut b, tag);
    assert_eq!(reason, shm::VMLOOP_REFUSED_BROKEN);
    assert!((1001..=2000).contains(&retry_ms), "{retry_ms} ms");
    assert_eq!(broken()[0].breaks, 2);

    // An operator need not wait; both guests hear that they may ask again.
    let heard = [a.generation, b.generation];
    agent.ask(Request::Reset { a: "g2".into(), b: "g1".into() }).expect("reset");
    wait("directories", || {
        a.hear();
        b.hear();
        a.generation > heard[0] && b.generation > heard[1]
    });
    assert!(broken().is_empty());
    let tag = link(&mut a, &mut b, &one, &two);
    let (_, retry_ms) = break_and_want(&agent, &mut a, &mut b, tag);
    assert!((1..=1000).contains(&retry_ms), "{retry_ms} ms");

    // Neither need who reloads the policy.
    let heard = [a.generation, b.generation];
    agent.ask(Request::PolicyReload).expect("reloaded");
    wait("directories", || {
        a.hear();
        b.hear();
        a.generation > heard[0] && b.generation > heard[1]
    });
    assert!(broken().is_empty());
    link(&mut a, &mut b, &one, &two);
    for (a, b) in [("g1", "g1"), ("g1", "g3")] {
        let request = Request::Reset { a: a.into(), b: b.into() };
        assert_eq!(agent.ask(request).expect_err("no pair").code, "no-such-guest");
    }
}

#[test]
fn a_guest_that_is_turned_off_and_on() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    for _ in 0..4 {
        let mut tag = 0;
        wait("a channel", || {
            a.hear();
            b.hear();
            let peer = a.directory[0];
            tag = peer.tag;
            let device = format!("vmloop-ch-{tag}");
            if tag == 0 {
                a.want(&peer);
                std::thread::sleep(std::time::Duration::from_millis(600));
            }
            tag != 0 && one.has(&device) && two.has(&device)
        });
        up_and_ended(&agent, &mut a, &mut b, tag, shm::VMLOOP_STATE_CLOSED);
    }
    a.refused.clear();
    let peer = a.directory[0];
    a.want(&peer);
    wait("an answer", || {
        a.hear();
        !a.refused.is_empty()
    });
    // A channel that worked is no reason to wait for long.
    assert!(a.retry_ms <= 4000, "{} ms", a.retry_ms);
}

#[test]
fn a_guest_that_does_not_answer_close() {
    let (_directory, one, two, agent) = two_guests();
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
    // The two sides do not wait for each other.
    wait("the end of the other side", || one.devices() == ["vmloop-ctl"]);
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

/// What a guest was told of a peer, by its identity.
fn told<'a>(modules: &'a Modules<'_>, id: u64) -> Option<&'a shm::Peer> {
    modules.directory.iter().find(|peer| peer.id == id)
}

/// Identity of a guest, in numbers.
fn id(agent: &Agent, name: &str) -> u64 {
    let guests = agent.list(Request::List).guests;
    let guest = guests.iter().find(|guest| guest.name == name).expect("a guest");
    u64::from_str_radix(&guest.id, 16).expect("hexadecimal digits")
}

#[test]
fn guests_that_the_host_routes_between() {
    let directory = tempfile::tempdir().expect("a directory");
    let all: Vec<_> = (1..=3).map(|number| Qemu::start(directory.path(), number)).collect();
    let agent = Agent::routing(directory.path(), route);
    agent.send(Event::Links(routed_network()));
    all.iter().for_each(|qemu| agent.attach(qemu));
    let mut a = Modules::begin(&all[0], 11, shm::VMLOOP_F_ROUTED);
    let mut b = Modules::begin(&all[1], 22, shm::VMLOOP_F_ROUTED);
    let mut c = Modules::begin(&all[2], 33, shm::VMLOOP_F_ROUTED);
    a.advertise(&[ip("10.1.0.11"), ip("fd00:1::11")]);
    b.advertise(&[ip("10.1.0.12")]);
    c.advertise(&[ip("10.2.0.13"), ip("10.2.0.99")]);
    let (id_a, id_b, id_c) = (id(&agent, "g1"), id(&agent, "g2"), id(&agent, "g3"));

    // The network alone does not bring them together.
    wait("the neighbour", || {
        a.hear();
        told(&a, id_b).is_some_and(|peer| peer.ip_count == 1)
    });
    assert!(told(&a, id_c).is_none() && told(&a, id_a).is_none());

    agent.policy(directory.path(), ROUTED);
    wait("the routed peer", || {
        a.hear();
        c.hear();
        told(&a, id_c).is_some() && told(&c, id_a).is_some()
    });
    let peer = *told(&a, id_c).expect("a peer");
    assert_eq!((peer.flags, peer.gateway), (shm::VMLOOP_PEER_ROUTED, gateway(1)));
    assert_eq!((peer.local_mac[5], peer.mac[5], peer.mtu), (1, 3, 1500));
    assert_eq!(ips(&peer), ["10.2.0.13", "10.2.0.99"]);
    assert_eq!(told(&c, id_a).map(|peer| peer.gateway), Some(gateway(2)));
    assert_eq!(told(&a, id_a).map(ips), Some(vec!["10.1.0.11".into(), "fd00:1::11".into()]));
    let neighbour = told(&a, id_b).expect("a neighbour");
    assert_eq!((neighbour.flags, neighbour.gateway), (shm::VMLOOP_PEER_TAGGED, [0; 6]));
    let guest = agent.list(Request::List).guests.remove(0);
    assert_eq!((&*guest.nics[0].bridge, &*guest.nics[0].gateway), ("br1", "02:00:00:00:00:01"));
    assert_eq!(guest.routed_ips, ["10.1.0.11", "fd00:1::11"]);

    // One channel, whatever the addresses.
    a.want(&peer);
    wait("a channel", || {
        a.hear();
        c.hear();
        all[0].has("vmloop-ch-1") && all[2].has("vmloop-ch-1")
    });
    a.state(1, shm::VMLOOP_STATE_UP);
    c.state(1, shm::VMLOOP_STATE_UP);
    for list in [
        &["10.2.0.13", "10.2.0.99", "fd00:2::13"][..],
        &["10.2.0.99", "fd00:2::13"],
        &[],
        &["10.2.0.13"],
    ] {
        c.advertise(&list.iter().map(|text| ip(text)).collect::<Vec<_>>());
        wait("its addresses", || {
            a.hear();
            c.hear();
            told(&a, id_c).is_some_and(|peer| ips(peer) == list)
                && told(&c, id_c).is_some_and(|own| ips(own) == list)
        });
        assert_eq!((agent.channels(), told(&a, id_c).map(|peer| peer.tag)), (1, Some(1)));
    }
    // Of the wrong network, of nobody's, the host's own, of the link.
    let wrong = ["10.1.0.77", "172.16.0.1", "10.9.0.1", "10.2.0.1", "fe80::1", "10.2.0.14"];
    c.advertise(&wrong.map(ip));
    wait("the one that is good", || {
        a.hear();
        told(&a, id_c).is_some_and(|peer| ips(peer) == ["10.2.0.14"])
    });

    // The policy changes while the channel is up.
    agent.policy(directory.path(), &ROUTED.replace("10.0.0.0/8", "10.1.0.0/16"));
    wait("no address", || {
        a.hear();
        told(&a, id_c).is_some_and(|peer| peer.ip_count == 0)
    });
    assert_eq!(agent.channels(), 1);
    agent.policy(directory.path(), "default = 'same-bridge'\n");
    wait("an end", || {
        a.hear();
        c.hear();
        told(&a, id_c).is_none() && told(&a, id_a).is_none() && agent.channels() == 0
    });
    assert_eq!(a.closes, [shm::VMLOOP_CLOSE_POLICY]);
    assert!(told(&a, id_b).is_some());
}

#[test]
fn routed_addresses_of_two_guests() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("policy.toml"), ROUTED).expect("a policy");
    let all: Vec<_> = [1, 3, 4, 5].map(|number| Qemu::start(directory.path(), number)).into();
    let agent = Agent::routing(directory.path(), route);
    agent.send(Event::Links(routed_network()));
    all.iter().for_each(|qemu| agent.attach(qemu));
    let mut a = Modules::begin(&all[0], 11, shm::VMLOOP_F_ROUTED);
    let mut c = Modules::begin(&all[1], 33, shm::VMLOOP_F_ROUTED);
    c.advertise(&[ip("10.2.0.13")]);
    let (id_c, id_d, id_e) = (id(&agent, "g3"), id(&agent, "g4"), id(&agent, "g5"));
    let of = |modules: &mut Modules<'_>, id: u64, list: &[&str]| {
        modules.hear();
        told(modules, id).is_some_and(|peer| ips(peer) == list)
    };
    wait("an address", || of(&mut a, id_c, &["10.2.0.13"]));

    // A second claims it as well, on the same bridge; a third behind no bridge.
    let mut d = Modules::begin(&all[2], 44, shm::VMLOOP_F_ROUTED);
    d.advertise(&[ip("10.2.0.13"), ip("10.2.0.14")]);
    let mut e = Modules::begin(&all[3], 55, shm::VMLOOP_F_ROUTED);
    e.advertise(&[ip("10.5.0.2"), ip("10.2.0.13")]);
    wait("what is the second's own", || of(&mut a, id_d, &["10.2.0.14"]));
    wait("what is the third's own", || of(&mut a, id_e, &["10.5.0.2"]));
    assert!(of(&mut a, id_c, &["10.2.0.13"]));
    let guests = agent.list(Request::List).guests;
    let shown = |name: &str| {
        let guest = guests.iter().find(|guest| guest.name == name).expect("a guest");
        (guest.ips.join(" "), guest.disputed_ips.clone())
    };
    let disputed = || vec![Disputed { ip: "10.2.0.13".into(), owner: "g3".into() }];
    assert_eq!(shown("g3"), ("10.2.0.13/24".into(), Vec::new()));
    assert_eq!(shown("g4"), ("10.2.0.14/24".into(), disputed()));
    assert_eq!(shown("g5"), ("10.5.0.2/24".into(), disputed()));
    assert_eq!(told(&a, id_e).map(|peer| peer.gateway), Some(gateway(1)));
    wait("the first at the third", || of(&mut e, id_c, &["10.2.0.13"]));
    assert_eq!(told(&e, id_c).map(|peer| peer.gateway), Some(gateway(5)));

    // It is free when the first gives it up.
    c.advertise(&[]);
    wait("another owner", || of(&mut a, id_d, &["10.2.0.13", "10.2.0.14"]));
    assert!(of(&mut a, id_c, &[]));

    // The host's routes change.
    c.advertise(&[ip("10.7.0.3")]);
    d.advertise(&[ip("10.2.0.14")]);
    wait("none", || of(&mut a, id_d, &["10.2.0.14"]) && of(&mut a, id_c, &[]));
    NETWORK_7.store(2, Ordering::Relaxed);
    agent.send(Event::Links(routed_network()));
    wait("an address", || of(&mut a, id_c, &["10.7.0.3"]));

    // Modules of an earlier version are not told, and nobody is told of them.
    let mut e = Modules::begin(&all[3], 56, 0);
    e.advertise(&[ip("10.5.0.2")]);
    wait("it to be known", || {
        e.hear();
        let guests = agent.list(Request::List).guests;
        let known = guests.iter().find(|guest| guest.name == "g5");
        e.generation > 0 && known.is_some_and(|guest| guest.ips == ["10.5.0.2/24"])
    });
    // What comes after it has been heard by all.
    c.advertise(&[ip("10.2.0.15")]);
    wait("news", || of(&mut a, id_c, &["10.2.0.15"]));
    e.hear();
    assert!(told(&a, id_e).is_none() && e.directory.is_empty());
}

#[test]
fn routed_addresses_and_an_agent_that_is_killed() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("policy.toml"), ROUTED).expect("a policy");
    let all: Vec<_> = [1, 3].map(|number| Qemu::start(directory.path(), number)).into();
    let agent = Agent::routing(directory.path(), route);
    agent.send(Event::Links(routed_network()));
    all.iter().for_each(|qemu| agent.attach(qemu));
    let mut a = Modules::begin(&all[0], 11, shm::VMLOOP_F_ROUTED);
    let mut c = Modules::begin(&all[1], 33, shm::VMLOOP_F_ROUTED);
    a.advertise(&[ip("10.1.0.11")]);
    c.advertise(&[ip("10.2.0.13")]);
    let (id_a, id_c) = (id(&agent, "g1"), id(&agent, "g3"));
    wait("the peer", || {
        a.hear();
        told(&a, id_c).is_some_and(|peer| peer.ip_count == 1)
    });
    let peer = *told(&a, id_c).expect("a peer");
    a.want(&peer);
    wait("a channel", || all[0].has("vmloop-ch-1") && all[1].has("vmloop-ch-1"));

    agent.kill();
    let agent = Agent::routing(directory.path(), route);
    agent.send(Event::Links(routed_network()));
    for qemu in &all {
        wait("another control device", || qemu.state().plugged["vmloop-ctl"] == 2);
    }
    // Neither has said its addresses: both are to go on with what they know.
    let mut a = Modules::begin(&all[0], 111, shm::VMLOOP_F_ROUTED);
    let keep = shm::VMLOOP_PEER_ROUTED | shm::VMLOOP_PEER_KEEP;
    wait("a directory", || {
        a.hear();
        told(&a, id_c).is_some_and(|peer| (peer.tag, peer.flags) == (1, keep))
            && told(&a, id_a).is_some_and(|own| own.flags == keep)
    });
    assert_eq!(a.generation, 1);
    let mut c = Modules::begin(&all[1], 333, shm::VMLOOP_F_ROUTED);
    c.advertise(&[ip("10.2.0.13")]);
    wait("its addresses", || {
        a.hear();
        told(&a, id_c)
            .is_some_and(|peer| peer.flags == shm::VMLOOP_PEER_ROUTED && ips(peer) == ["10.2.0.13"])
    });
    assert_eq!(told(&a, id_a).map(|own| own.flags), Some(keep));
    assert_eq!(agent.channels(), 1);
}

#[test]
fn a_routed_guest_that_is_prepared_for_a_migration() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("policy.toml"), ROUTED).expect("a policy");
    let all: Vec<_> = [1, 3].map(|number| Qemu::start(directory.path(), number)).into();
    let agent = Agent::routing(directory.path(), route);
    agent.send(Event::Links(routed_network()));
    all.iter().for_each(|qemu| agent.attach(qemu));
    let mut a = Modules::begin(&all[0], 11, shm::VMLOOP_F_ROUTED);
    let mut c = Modules::begin(&all[1], 33, shm::VMLOOP_F_ROUTED);
    a.advertise(&[ip("10.1.0.11")]);
    c.advertise(&[ip("10.2.0.13")]);
    let (id_a, id_c) = (id(&agent, "g1"), id(&agent, "g3"));
    let meet = |a: &mut Modules<'_>, c: &mut Modules<'_>| {
        wait("each other", || {
            a.hear();
            c.hear();
            let known = |modules: &Modules<'_>, id, list: &[&str]| {
                told(modules, id).is_some_and(|peer| ips(peer) == list)
            };
            known(a, id_a, &["10.1.0.11"])
                && known(a, id_c, &["10.2.0.13"])
                && known(c, id_a, &["10.1.0.11"])
        });
    };
    meet(&mut a, &mut c);
    let peer = *told(&a, id_c).expect("a peer");
    a.want(&peer);
    wait("a channel", || all[0].has("vmloop-ch-1") && all[1].has("vmloop-ch-1"));

    // What it knew would be wrong elsewhere: it takes nothing along, not even
    // by which of its own addresses others reached it here.
    let prepared = std::thread::scope(|scope| {
        let asking = scope.spawn(|| agent.ask(Request::Prepare { guest: "g1".into() }));
        wait("an answer", || {
            a.hear();
            c.hear();
            asking.is_finished()
        });
        asking.join().expect("an answer")
    });
    assert_eq!(prepared.expect("prepared")["state"], "prepared");
    a.hear();
    assert_eq!((a.directory.len(), all[0].devices()), (0, Vec::<String>::new()));
    wait("it to be gone", || {
        c.hear();
        told(&c, id_a).is_none() && told(&c, id_c).is_some() && agent.channels() == 0
    });

    agent.ask(Request::Resume { guest: "g1".into() }).expect("back");
    let mut a = Modules::begin(&all[0], 12, shm::VMLOOP_F_ROUTED);
    a.advertise(&[ip("10.1.0.11")]);
    meet(&mut a, &mut c);
}
