// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The agent when a QEMU stands still, and when a guest does what it should not:
//! the others must not feel it.

mod fake;

use std::thread;
use std::time::{Duration, Instant};

use fake::agent::{Agent, link, meet, two_guests};
use fake::{Modules, Qemu, wait};
use vmloop_abi::shm;
use vmloop_api::{ChannelState, Request, Status};
use vmloopd::config::Vfio;
use zerocopy::IntoBytes;

/// Guests 1 to 3, all of which know of each other.
fn three<'a>(agent: &Agent, all: &'a [Qemu]) -> [Modules<'a>; 3] {
    all.iter().for_each(|qemu| agent.attach(qemu));
    let mut guests = [1, 2, 3].map(|number: u8| {
        Modules::load(&all[usize::from(number) - 1], u64::from(number) * 11, [10, 0, 0, number])
    });
    wait("directories", || {
        guests.iter_mut().all(|guest| {
            guest.hear();
            guest.directory.len() == 2 && guest.directory.iter().all(|peer| peer.ip_count == 1)
        })
    });
    guests
}

fn qemus(directory: &tempfile::TempDir) -> Vec<Qemu> {
    (1..=3).map(|number| Qemu::start(directory.path(), number)).collect()
}

/// What a guest was told of the one with this number.
fn peer(modules: &Modules<'_>, number: u8) -> shm::Peer {
    *modules.directory.iter().find(|peer| peer.mac[5] == number).expect("a peer")
}

/// Has a channel between two of several guests plugged; its tag.
fn plug(a: &mut Modules<'_>, number: u8, one: &Qemu, two: &Qemu) -> u32 {
    let wanted = peer(a, number);
    a.want(&wanted);
    let mut tag = 0;
    wait("a channel", || {
        a.hear();
        tag = peer(a, number).tag;
        let device = format!("vmloop-ch-{tag}");
        tag != 0 && one.has(&device) && two.has(&device)
    });
    tag
}

#[test]
fn one_that_stands_still_does_not_hold_up_the_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let all = qemus(&directory);
    let agent = Agent::start(directory.path());
    let [mut a, _b, _c] = three(&agent, &all);
    let tag = plug(&mut a, 2, &all[0], &all[1]);
    let to_third = plug(&mut a, 3, &all[0], &all[2]);

    // While there is no agent, the policy changes, and a QEMU falls silent.
    agent.kill();
    std::fs::write(directory.path().join("policy.toml"), "default = 'deny'\n").expect("a policy");
    all[2].state().hangs_at = Some("greeting");
    let agent = Agent::start(directory.path());
    let began = Instant::now();
    for qemu in &all[..2] {
        wait("another control device", || qemu.state().plugged["vmloop-ctl"] == 2);
    }
    let mut a = Modules::load(&all[0], 111, [10, 0, 0, 1]);
    let mut b = Modules::load(&all[1], 222, [10, 0, 0, 2]);
    let device = format!("vmloop-ch-{tag}");
    wait("an end of what is forbidden", || {
        a.hear();
        b.hear();
        !all[0].has(&device) && !all[1].has(&device)
    });
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());

    // It is attached when it speaks, and has nothing left of what its peer lost.
    all[2].state().hangs_at = None;
    let third = format!("vmloop-ch-{to_third}");
    wait("the third", || {
        a.hear();
        all[2].state().plugged["vmloop-ctl"] == 2 && !all[2].has(&third) && !all[0].has(&third)
    });
    assert_eq!(agent.list(Request::List).guests.len(), 3);
}

#[test]
fn one_that_stands_still_is_not_forgotten() {
    let directory = tempfile::tempdir().expect("a directory");
    let all = qemus(&directory);
    let agent = Agent::start(directory.path());
    three(&agent, &all);
    agent.kill();
    all[2].state().hangs_at = Some("greeting");
    let agent = Agent::start(directory.path());
    wait("the others", || agent.list(Request::List).guests.len() == 2);
    wait("a decision", || all[0].state().plugged["vmloop-ctl"] == 2);
    // Another agent finds it in the soft state, whatever was written meanwhile.
    agent.ask(Request::Detach { guest: "g2".into() }).expect("detached");
    agent.kill();
    all[2].state().hangs_at = None;
    let agent = Agent::start(directory.path());
    wait("the third", || agent.list(Request::List).guests.iter().any(|one| one.name == "g3"));
}

/// What QEMU did after nobody waited for it any more is undone.
fn reconciled(command: &'static str) {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    two.state().hangs_at = Some(command);
    let wanted = a.directory[0];
    a.want(&wanted);
    // An answer is waited for for ten seconds.
    thread::sleep(Duration::from_secs(11));
    two.state().hangs_at = None;
    wait("a refusal", || {
        a.hear();
        !a.refused.is_empty()
    });
    assert_eq!(a.refused, [shm::VMLOOP_REFUSED_FAILED]);
    wait("nothing that is left", || {
        [&one, &two].iter().all(|qemu| {
            let state = qemu.state();
            state.devices.keys().eq(["vmloop-ctl"]) && state.chardevs.keys().eq(["vmloop-ctl"])
        })
    });
    assert_eq!(agent.channels(), 0);
    thread::sleep(Duration::from_millis(u64::from(a.retry_ms) + 5));
    link(&mut a, &mut b, &one, &two);
}

#[test]
fn a_device_that_comes_after_nobody_waits() {
    reconciled("device_add");
}

#[test]
fn a_character_device_that_comes_after_nobody_waits() {
    reconciled("chardev-add");
}

#[test]
fn a_guest_that_repeats_itself() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    let (own, other) = ([10, 0, 0, 1].into(), [10, 0, 0, 77].into());
    let (before, began) = (b.generation, Instant::now());
    while began.elapsed() < Duration::from_secs(3) {
        a.advertise(&[own]);
        a.advertise(&[own, other]);
        thread::sleep(Duration::from_millis(10));
        a.hear();
        b.hear();
    }
    let told = b.generation - before;
    assert!(told <= 50, "{told} directories");
    // What it said last is what counts in the end.
    a.advertise(&[other]);
    wait("the last word", || {
        b.hear();
        b.directory.first().is_some_and(|peer| peer.ip_count == 1 && peer.ip[0].ip[3] == 77)
    });

    let (before, own) = (b.generation, (a.welcomes, a.generation));
    for _ in 0..300 {
        a.send(shm::VMLOOP_MSG_HELLO, hello().as_bytes());
        thread::sleep(Duration::from_millis(5));
        a.hear();
        b.hear();
    }
    assert!(b.generation - before <= 2, "{} directories", b.generation - before);
    let welcomes = a.welcomes - own.0;
    assert!((1..=20).contains(&welcomes), "{welcomes} answers");
    assert!(a.generation - own.1 <= 20, "{} directories", a.generation - own.1);
}

fn hello() -> shm::Hello {
    shm::Hello { major: 1, ..Default::default() }
}

#[test]
fn a_guest_that_begins_again_and_again() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    let mut waits = Vec::new();
    for incarnation in 0..14 {
        let wanted = a.directory[0];
        a.want(&wanted);
        wait("an answer", || {
            a.hear();
            b.hear();
            a.directory[0].tag != 0 || !a.refused.is_empty()
        });
        if !a.refused.is_empty() {
            assert_eq!(a.refused, [shm::VMLOOP_REFUSED_BUSY]);
            waits.push(a.retry_ms);
            break;
        }
        // Its peer had to plug a device for that.
        let device = format!("vmloop-ch-{}", a.directory[0].tag);
        wait("devices", || one.has(&device) && two.has(&device));
        a = Modules::load(&one, 100 + incarnation, [10, 0, 0, 1]);
        wait("the end of the channel, and a directory", || {
            a.hear();
            b.hear();
            agent.channels() == 0 && a.directory.first().is_some_and(|peer| peer.tag == 0)
        });
    }
    assert_eq!(waits.len(), 1, "it never had to wait");
}

#[test]
fn a_peer_that_gives_nothing_back_does_not_hold_a_guest() {
    let directory = tempfile::tempdir().expect("a directory");
    let all = qemus(&directory);
    let agent = Agent::start(directory.path());
    let [mut a, mut b, mut c] = three(&agent, &all);
    let kept = plug(&mut c, 2, &all[2], &all[1]);
    all[1].state().keeps = Some("vmloop-ch".into());
    agent.ask(Request::Close { a: "g2".into(), b: "g3".into() }).expect("closed");
    wait("its own end", || {
        b.hear();
        c.hear();
        !all[2].has(&format!("vmloop-ch-{kept}"))
    });

    // Its machine is busy with what it keeps: nothing can be plugged there now.
    let wanted = peer(&a, 2);
    a.want(&wanted);
    wait("one end of a channel", || all[0].devices().len() == 2);
    let began = Instant::now();
    let prepared = thread::scope(|scope| {
        let asking = scope.spawn(|| agent.ask(Request::Prepare { guest: "g1".into() }));
        wait("an answer", || {
            a.hear();
            asking.is_finished()
        });
        asking.join().expect("an answer")
    });
    assert_eq!(prepared.expect("prepared")["state"], "prepared");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(all[0].devices().is_empty());
}

#[test]
fn channels_that_wait_for_others_of_the_guest_can_be_closed() {
    let directory = tempfile::tempdir().expect("a directory");
    let all: Vec<Qemu> = (1..=6).map(|number| Qemu::start(directory.path(), number)).collect();
    let agent = Agent::start(directory.path());
    all.iter().for_each(|qemu| agent.attach(qemu));
    let mut guests: Vec<Modules<'_>> = all
        .iter()
        .zip(1..)
        .map(|(qemu, number)| Modules::load(qemu, number.into(), [10, 0, 0, number]))
        .collect();
    wait("all to know each other", || {
        guests.iter_mut().for_each(Modules::hear);
        guests.iter().all(|one| one.directory.len() == 5)
    });
    all[5].state().hangs_at = Some("query-pci");
    for one in &mut guests[..5] {
        let wanted = peer(one, 6);
        one.want(&wanted);
    }
    wait("five channels, of which four may be made", || agent.channels() == 5);
    let waits = |one: &Qemu| one.devices() == ["vmloop-ctl"];
    wait("four ends", || all[..5].iter().filter(|one| !waits(one)).count() == 4);
    let last = all[..5].iter().position(waits).expect("one that waits");
    let name = format!("g{}", last + 1);
    agent.ask(Request::Close { a: name, b: "g6".into() }).expect("closed");
    let began = Instant::now();
    wait("its end", || {
        guests.iter_mut().for_each(Modules::hear);
        agent.channels() == 4
    });
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(waits(&all[last]));
    all[5].state().hangs_at = None;
    wait("the others", || all[5].devices().len() == 5);
}

#[test]
fn a_control_device_that_is_kept_gets_no_second_one_beside_it() {
    let (directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    one.state().keeps = Some("vmloop-ctl".into());
    agent.kill();
    one.state().heard.clear();
    let agent = Agent::start(directory.path());
    wait("the old device to be asked for", || one.state().heard.iter().any(|c| c == "device_del"));
    wait("another one in the other guest", || two.state().plugged["vmloop-ctl"] == 2);
    assert!(!one.state().heard.iter().any(|command| command == "chardev-add"));
    assert_eq!(one.state().plugged["vmloop-ctl"], 1);
    // It is asked for again until it comes; then there is a new one at once.
    one.state().keeps = None;
    wait("a new one", || one.state().plugged["vmloop-ctl"] == 2);
    assert_eq!(agent.channels(), 1);
}

#[test]
fn two_that_keep_what_was_revoked() {
    let directory = tempfile::tempdir().expect("a directory");
    let all = qemus(&directory);
    let agent = Agent::start(directory.path());
    let [mut a, mut b, mut c] = three(&agent, &all);
    let tag = plug(&mut a, 2, &all[0], &all[1]);
    for qemu in &all[..2] {
        qemu.state().keeps = Some(format!("vmloop-ch-{tag}"));
    }
    let apart = "[[group]]\nname = 'x'\nmembers = ['g1', 'g3']\n\
                 [[group]]\nname = 'y'\nmembers = ['g2', 'g3']\n";
    agent.policy(directory.path(), apart);
    let status = || -> vmloop_api::Status {
        serde_json::from_value(agent.ask(Request::Status).expect("an answer")).expect("a status")
    };
    wait("it to be shown", || {
        a.hear();
        b.hear();
        let channels = agent.list(Request::List).channels;
        channels.iter().any(|channel| channel.state == ChannelState::Revoked)
    });
    let [problem] = &status().problems[..] else { panic!("one problem") };
    assert!(problem.contains("g1") && problem.contains("g2"), "{problem}");

    // Neither gets another channel, with whomever.
    for modules in [&mut a, &mut b] {
        let wanted = peer(modules, 3);
        modules.want(&wanted);
        wait("a refusal", || {
            modules.hear();
            !modules.refused.is_empty()
        });
        assert_eq!(modules.refused, [shm::VMLOOP_REFUSED_POLICY]);
    }
    c.hear();
    assert!(c.directory.iter().all(|peer| peer.tag == 0));

    // They have let go of it.
    for qemu in &all[..2] {
        qemu.state().keeps = None;
    }
    wait("an end", || agent.channels() == 0);
    assert!(status().problems.is_empty());
    plug(&mut a, 3, &all[0], &all[2]);
}

#[test]
fn all_channels_together_take_no_more_memory_than_the_policy_says() {
    let directory = tempfile::tempdir().expect("a directory");
    let all = qemus(&directory);
    let agent = Agent::start(directory.path());
    let [mut a, _b, mut c] = three(&agent, &all);
    let status = || {
        let status = agent.ask(Request::Status).expect("a status");
        serde_json::from_value::<Status>(status).expect("a status")
    };
    let most = status().memory_max.expect("a bound, also if the policy says none");
    assert!(most > 64 << 20, "{most}");

    // Each takes 16 MiB, of which two rings of 4 MiB are for packets: one, and not another.
    agent.policy(directory.path(), "default = 'same-bridge'\nmax_memory = '31M'\n");
    plug(&mut a, 2, &all[0], &all[1]);
    let said = status();
    assert_eq!((said.memory, said.memory_max), (16 << 20, Some(31 << 20)));
    assert!(said.problems.iter().any(|one| one.contains("max_memory")), "{:?}", said.problems);
    let wanted = peer(&c, 1);
    c.want(&wanted);
    wait("a refusal", || {
        c.hear();
        !c.refused.is_empty()
    });
    assert_eq!(c.refused, [shm::VMLOOP_REFUSED_SLOTS]);
    assert_eq!((agent.channels(), status().counters.out_of_memory), (1, 1));

    agent.policy(directory.path(), "default = 'same-bridge'\nmax_memory = '32M'\n");
    assert!(status().problems.is_empty());
    plug(&mut c, 1, &all[2], &all[0]);
    assert_eq!(status().memory, 32 << 20);
}

#[test]
fn a_machine_with_a_device_of_the_hosts_own_gets_no_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let all = qemus(&directory);
    let agent = Agent::start(directory.path());
    let [mut a, ..] = three(&agent, &all);
    let late = Qemu::start(directory.path(), 4);
    late.state().vfio = Some("gpu0");
    let attach =
        |agent: &Agent| agent.ask(Request::Attach { qmp: late.path.clone(), name: None }).map(drop);
    let problem = attach(&agent).expect_err("it has one");
    assert_eq!(problem.code, "vfio");
    assert!(problem.message.contains("gpu0") && problem.hint.contains("vfio = \"allow\""));

    // One that gets it later has what it has, and nothing more.
    plug(&mut a, 2, &all[0], &all[1]);
    all[2].state().vfio = Some("gpu0");
    let wanted = peer(&a, 3);
    a.want(&wanted);
    wait("a refusal", || {
        a.hear();
        !a.refused.is_empty()
    });
    assert_eq!(a.refused, [shm::VMLOOP_REFUSED_FAILED]);
    assert!(!all[2].state().plugged.keys().any(|id| id.starts_with("vmloop-ch")));

    agent.kill();
    let agent = Agent::with(directory.path(), |setup| setup.vfio = Vfio::Allow);
    assert!(attach(&agent).is_ok());
}
