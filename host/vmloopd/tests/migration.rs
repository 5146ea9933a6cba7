// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Guests that leave, and come back, with QEMUs and guests that only pretend.
//! The pretended QEMU refuses what the real one does: to migrate while it has
//! a device of ours, and to plug or unplug one while it migrates.

mod fake;

use std::thread;
use std::time::{Duration, Instant};

use fake::agent::{Agent, PREPARED, link, meet, two_guests};
use fake::{Modules, Qemu, wait};
use serde_json::{Value, json};
use vmloop_abi::shm;
use vmloop_api::{ChannelState, Problem, Request};

/// Asks in the background while the guests go on, until there is an answer.
fn ask_while(
    agent: &Agent,
    request: Request,
    mut meanwhile: impl FnMut(),
) -> Result<Value, Problem> {
    thread::scope(|scope| {
        let asking = scope.spawn(|| agent.ask(request));
        wait("an answer", || {
            meanwhile();
            asking.is_finished()
        });
        asking.join().expect("no panic")
    })
}

fn prepare(agent: &Agent, guest: &str, a: &mut Modules<'_>, b: &mut Modules<'_>) {
    let answer = ask_while(agent, Request::Prepare { guest: guest.into() }, || {
        a.hear();
        b.hear();
    });
    // What was said before the answer.
    a.hear();
    b.hear();
    let guest = answer.expect("prepared");
    assert_eq!(guest["state"], "prepared");
}

fn state(agent: &Agent, name: &str) -> String {
    let guests = agent.list(Request::List).guests;
    guests
        .into_iter()
        .find(|guest| guest.name == name)
        .map(|guest| guest.state.to_string())
        .unwrap_or_default()
}

fn wait_state(agent: &Agent, name: &str, wanted: &str) {
    wait(&format!("{name} that is {wanted}"), || state(agent, name) == wanted);
}

/// What a guest that came back has: its modules begin anew, and a channel.
fn work_again<'a>(
    agent: &Agent,
    one: &'a Qemu,
    two: &Qemu,
    a: &mut Modules<'a>,
    b: &mut Modules<'_>,
) {
    wait_state(agent, "g1", "attached");
    *a = Modules::load(one, 77, [10, 0, 0, 1]);
    find(agent, one, two, a, b);
}

/// Guests whose modules were just loaded get a channel.
fn find(agent: &Agent, one: &Qemu, two: &Qemu, a: &mut Modules<'_>, b: &mut Modules<'_>) {
    wait("a directory with the other", || {
        a.hear();
        b.hear();
        [&*a, &*b].iter().all(|m| m.directory.len() == 1 && m.directory[0].ip_count == 1)
    });
    link(a, b, one, two);
    wait("a channel that is up", || {
        agent.list(Request::List).channels.iter().any(|channel| channel.state == ChannelState::Up)
    });
}

/// Nothing of ours is in a QEMU.
fn is_clean(qemu: &Qemu) -> bool {
    qemu.devices().is_empty() && qemu.state().chardevs.is_empty()
}

/// No device of ours is in a QEMU, but all that a control device needs.
fn is_ready(qemu: &Qemu) -> bool {
    qemu.devices().is_empty() && qemu.state().chardevs.keys().eq(["vmloop-ctl"])
}

#[test]
fn a_migration() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    let uri = "tcp:host2:49152".to_owned();
    let request = Request::Migrate { guest: "g1".into(), uri: uri.clone() };
    let mut over = false;
    let done = ask_while(&agent, request, || {
        a.hear();
        b.hear();
        if !over && one.state().uri.is_some() && state(&agent, "g1") == "migrating" {
            // Both had been told before it began, and said that they are done.
            assert_eq!((&a.closes, &b.closes), (&vec![4], &vec![4]));
            assert!(b.directory.is_empty() && is_clean(&one) && two.devices() == ["vmloop-ctl"]);
            one.migration("completed", "postmigrate");
            over = true;
        }
    })
    .expect("migrated");
    assert_eq!((&done["to"], &done["downtime_ms"]), (&json!(uri), &json!(30)));
    assert_eq!(a.closes, [shm::VMLOOP_CLOSE_MIGRATION]);
    wait_state(&agent, "g1", "departed");
    // What stands still there is not to be touched.
    let problem = agent.ask(Request::Resume { guest: "g1".into() }).expect_err("it has left");
    assert_eq!(problem.code, "migrating");
    thread::sleep(PREPARED + Duration::from_millis(200));
    assert!(is_clean(&one));
    one.kill();
    wait("an end", || agent.list(Request::List).guests.len() == 1);
    assert_eq!(agent.channels(), 0);
}

#[test]
fn a_machine_that_arrives() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    one.migration("", "inmigrate");
    let agent = Agent::start(directory.path());
    // The answer does not wait for it.
    agent.attach(&one);
    assert_eq!(state(&agent, "g1"), "arriving");
    agent.attach(&two);
    let mut b = Modules::load(&two, 22, [10, 0, 0, 2]);
    wait("it to be announced", || {
        b.hear();
        b.directory.len() == 1
    });
    // As libvirt has it: it arrives standing still.
    one.migration("completed", "paused");
    one.event("STOP", &Value::Null);
    thread::sleep(Duration::from_millis(100));
    assert!(is_ready(&one) && state(&agent, "g1") == "arriving");
    let began = Instant::now();
    one.migration("completed", "running");
    one.event("RESUME", &Value::Null);
    wait("a control device", || one.has("vmloop-ctl"));
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    let mut a = Modules::load(&one, 11, [10, 0, 0, 1]);
    wait("two that know of each other", || {
        a.hear();
        b.hear();
        a.directory.len() == 1 && b.directory.len() == 1
    });
    link(&mut a, &mut b, &one, &two);
}

/// By postcopy it runs before its memory is all here, whether QEMU tells of it
/// or, as its migration was under way before the agent came, does not.
#[test]
fn a_machine_that_arrives_before_its_memory() {
    for (status, tells) in [("", true), ("active", false)] {
        let directory = tempfile::tempdir().expect("a directory");
        let one = Qemu::start(directory.path(), 1);
        one.migration(status, "inmigrate");
        let agent = Agent::start(directory.path());
        agent.attach(&one);
        let asked = || one.state().heard.iter().filter(|word| *word == "query-migrate").count();
        wait("questions", || asked() > 1);
        if tells {
            one.migration("postcopy-active", "running");
        } else {
            let mut state = one.state();
            (state.migration, state.run) = ("postcopy-active".into(), "running".into());
        }
        one.event("RESUME", &Value::Null);
        let before = asked();
        wait("it to be asked again", || asked() > before + 1);
        assert!(is_ready(&one) && state(&agent, "g1") == "arriving");
        one.migration("completed", "running");
        wait("a control device", || one.has("vmloop-ctl"));
    }
}

/// `one` is on its way to here, and the guest of `two` waits for it; its modules.
fn await_arrival<'a>(agent: &Agent, one: &Qemu, two: &'a Qemu) -> Modules<'a> {
    one.migration("", "inmigrate");
    agent.attach(one);
    agent.attach(two);
    let mut b = Modules::load(two, 22, [10, 0, 0, 2]);
    wait("it to be announced", || {
        b.hear();
        b.directory.len() == 1
    });
    let peer = b.directory[0];
    assert_eq!((peer.tag, &peer.mac), (0, &[0x52, 0x54, 0, 0, 0, 1]));
    b.want(&peer);
    wait("an answer", || {
        b.hear();
        b.refused == [shm::VMLOOP_REFUSED_BUSY]
    });
    b
}

/// Who waits for a machine has its channel plugged together with the control device.
#[test]
fn a_machine_that_is_awaited() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let agent = Agent::start(directory.path());
    agent.policy(directory.path(), "doorbells = 9\n");
    let mut b = await_arrival(&agent, &one, &two);
    assert!(two.devices() == ["vmloop-ctl"]);
    b.hello_of(shm::VMLOOP_F_LANES | shm::VMLOOP_F_CHANGES, 4);
    wait("what its control device needs", || {
        b.hear();
        is_ready(&one) && b.welcomes == 2
    });

    one.migration("completed", "running");
    one.event("RESUME", &Value::Null);
    // Its modules have not said anything.
    let both = ["vmloop-ch-1", "vmloop-ctl"];
    wait("a channel", || one.devices() == both && two.devices() == both);
    // It may have as many CPUs as the other.
    assert_eq!(one.state().devices["vmloop-ch-1"].vectors, 5);
    let mut a = Modules::load(&one, 11, [10, 0, 0, 1]);
    wait("two that know of each other", || {
        a.hear();
        b.hear();
        let tag = |modules: &Modules<'_>| modules.directory.first().map(|peer| peer.tag);
        tag(&a) == Some(1) && tag(&b) == Some(1)
    });
    a.state(1, shm::VMLOOP_STATE_UP);
    b.state(1, shm::VMLOOP_STATE_UP);
    wait("a channel that is up", || {
        agent.list(Request::List).channels[0].state == ChannelState::Up
    });
    assert_eq!(agent.channels(), 1);
}

/// A QEMU that has just begun to run a machine takes long for each question. The agent
/// waits for it four times until the machine has a channel: all questions come in one
/// go, and with them what a device is made of.
#[test]
fn a_machine_that_arrives_is_asked_in_one_go() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let agent = Agent::start(directory.path());
    let _b = await_arrival(&agent, &one, &two);
    wait("what its control device needs", || is_ready(&one));
    {
        let mut state = one.state();
        state.together = [3, 1, 5, 1].into();
        state.heard.clear();
    }
    let began = Instant::now();
    one.migration("completed", "running");
    one.event("RESUME", &Value::Null);
    wait("a channel", || one.has("vmloop-ch-1"));
    // No answer comes in so long if the agent waits for one before it asks more.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let heard: Vec<String> = one
        .state()
        .heard
        .iter()
        .filter(|one| !matches!(one.as_str(), "query-migrate" | "query-status"))
        .cloned()
        .collect();
    let place = ["qom-list", "qom-list", "query-pci"];
    assert_eq!(heard[..3], place);
    assert_eq!(heard[3], "device_add");
    let mut last = heard[4..9].to_vec();
    last.sort();
    assert_eq!(last, [&["chardev-add", "getfd"][..], &place].concat());
    assert_eq!(heard[9..], ["device_add"]);
}

/// What was not there when the agent looked first, and is when the machine runs.
#[test]
fn a_machine_that_is_given_a_device_before_it_arrives() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = Qemu::start(directory.path(), 1);
    one.migration("", "inmigrate");
    let agent = Agent::start(directory.path());
    agent.attach(&one);
    wait("what its control device needs", || is_ready(&one));
    one.state().vfio = Some("gpu0");
    one.migration("completed", "running");
    one.event("RESUME", &Value::Null);
    wait("it to be left alone", || is_clean(&one) && state(&agent, "g1").is_empty());
    assert!(!one.state().heard.iter().any(|one| one == "device_add"));
}

/// One without modules keeps no channel.
#[test]
fn a_machine_that_is_awaited_in_vain() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let agent = Agent::start(directory.path());
    let mut b = await_arrival(&agent, &one, &two);
    one.migration("completed", "running");
    one.event("RESUME", &Value::Null);
    wait("a channel", || one.has("vmloop-ch-1") && two.has("vmloop-ch-1"));
    let began = Instant::now();
    while one.has("vmloop-ch-1") || two.has("vmloop-ch-1") {
        assert!(began.elapsed() < Duration::from_secs(25), "nobody says HELLO");
        b.hear();
        thread::sleep(Duration::from_millis(20));
    }
    assert!(began.elapsed() > Duration::from_secs(10));
    assert_eq!(b.closes, [shm::VMLOOP_CLOSE_PEER_GONE]);
    wait("it to be no peer", || {
        b.hear();
        b.directory.is_empty()
    });
}

#[test]
fn a_machine_that_never_arrives() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = Qemu::start(directory.path(), 1);
    one.migration("active", "inmigrate");
    let agent = Agent::start(directory.path());
    agent.attach(&one);
    // A new agent waits for it as well.
    agent.kill();
    let agent = Agent::start(directory.path());
    wait_state(&agent, "g1", "arriving");
    agent.ask(Request::Detach { guest: "g1".into() }).expect("detached");
    wait("nothing", || agent.list(Request::List).guests.is_empty());
    wait("nothing in its QEMU", || is_clean(&one));
    wait("another attachment", || {
        agent.ask(Request::Attach { qmp: one.path.clone(), name: None }).is_ok()
    });
    wait("what it will need", || is_ready(&one));
    one.kill();
    wait("nothing", || agent.list(Request::List).guests.is_empty());
    // A QEMU that has ended gives nothing back; a device was never plugged.
    assert!(is_ready(&one));
}

#[test]
fn an_identity_that_is_taken_at_the_destination() {
    let (directory, other) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let (here, comes) = (Qemu::start(directory.path(), 1), Qemu::start(other.path(), 1));
    let agent = Agent::start(directory.path());
    agent.attach(&here);
    comes.migration("", "inmigrate");
    let attach = Request::Attach { qmp: comes.path.clone(), name: Some("other".into()) };
    agent.ask(attach).expect("awaited");
    comes.migration("completed", "running");
    comes.event("RESUME", &Value::Null);
    wait("it to be left alone", || state(&agent, "other").is_empty());
    wait("nothing in its QEMU", || is_clean(&comes));
    assert!(here.has("vmloop-ctl") && state(&agent, "g1") == "attached");
}

#[test]
fn a_migration_that_is_refused() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    one.state().refuse_migrate = Some("State blocked by non-migratable device".into());
    let request = Request::Migrate { guest: "g1".into(), uri: "tcp:host2:1".into() };
    let problem = ask_while(&agent, request, || {
        a.hear();
        b.hear();
    })
    .expect_err("a refusal");
    assert_eq!(problem.code, "migration-refused");
    assert!(problem.message.contains("non-migratable"), "{problem}");
    work_again(&agent, &one, &two, &mut a, &mut b);
}

#[test]
fn a_migration_that_fails() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    let request = Request::Migrate { guest: "g1".into(), uri: "tcp:host2:1".into() };
    let mut over = false;
    let problem = ask_while(&agent, request, || {
        a.hear();
        b.hear();
        if !over && state(&agent, "g1") == "migrating" {
            one.migration("failed", "running");
            over = true;
        }
    })
    .expect_err("a failure");
    assert_eq!(problem.code, "migration-failed");
    assert!(problem.message.contains("Connection reset"), "{problem}");
    work_again(&agent, &one, &two, &mut a, &mut b);
}

#[test]
fn a_migration_that_is_cancelled() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    let request = Request::Migrate { guest: "g1".into(), uri: "tcp:host2:1".into() };
    thread::scope(|scope| {
        let migrating = scope.spawn(|| agent.ask(request.clone()));
        wait("a migration", || {
            a.hear();
            b.hear();
            state(&agent, "g1") == "migrating"
        });
        let again = agent.ask(request.clone()).expect_err("one at a time");
        assert_eq!(again.code, "migrating");
        let resumed = agent.ask(Request::Resume { guest: "g1".into() });
        if resumed.is_err() {
            // Or who migrates would wait for ever.
            one.kill();
        }
        resumed.expect("resumed");
        let problem = migrating.join().expect("no panic").expect_err("cancelled");
        assert_eq!(problem.code, "migration-cancelled");
    });
    assert!(one.state().heard.iter().any(|command| command == "migrate_cancel"));
    work_again(&agent, &one, &two, &mut a, &mut b);
}

/// By QMP, libvirt, or whatever it may be: prepared by us, begun by somebody.
#[test]
fn a_migration_of_somebody_else() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    assert!(!one.migrate(), "our devices block it");
    prepare(&agent, "g1", &mut a, &mut b);
    assert!(is_clean(&one) && b.directory.is_empty());
    // It may wake up where nobody tells it that its peers are not there.
    assert!(a.directory.is_empty());
    assert!(one.migrate());
    wait_state(&agent, "g1", "migrating");
    let problem = agent.ask(Request::Resume { guest: "g1".into() }).expect_err("it is not ours");
    assert_eq!(problem.code, "migrating");
    // However long it takes.
    thread::sleep(PREPARED + Duration::from_millis(200));
    assert!(is_clean(&one) && state(&agent, "g1") == "migrating");
    one.migration("cancelled", "running");
    work_again(&agent, &one, &two, &mut a, &mut b);
    assert!(!one.state().heard.iter().any(|command| command == "migrate_cancel"));

    // One that is over before anybody has looked.
    prepare(&agent, "g1", &mut a, &mut b);
    let began = Instant::now();
    one.migration("failed", "running");
    work_again(&agent, &one, &two, &mut a, &mut b);
    assert!(began.elapsed() < PREPARED, "by the event, not by the limit");

    // A machine that was saved, and goes on here.
    prepare(&agent, "g1", &mut a, &mut b);
    one.migration("completed", "postmigrate");
    wait_state(&agent, "g1", "departed");
    one.migration("completed", "running");
    one.event("RESUME", &Value::Null);
    work_again(&agent, &one, &two, &mut a, &mut b);
}

/// Nobody has to ask us, while there is nothing of ours in the machine.
#[test]
fn a_migration_that_begins_while_the_device_is_plugged() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    one.state().migrate_at = Some("getfd".into());
    let agent = Agent::start(directory.path());
    agent.attach(&one);
    assert_eq!(state(&agent, "g1"), "migrating");
    assert!(is_clean(&one));
    agent.attach(&two);
    let mut b = Modules::load(&two, 22, [10, 0, 0, 2]);
    one.migration("failed", "running");
    wait_state(&agent, "g1", "attached");
    let mut a = Modules::load(&one, 11, [10, 0, 0, 1]);
    find(&agent, &one, &two, &mut a, &mut b);
}

#[test]
fn a_migration_that_never_comes() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    prepare(&agent, "g1", &mut a, &mut b);
    let began = Instant::now();
    wait("a control device", || one.has("vmloop-ctl"));
    let passed = began.elapsed();
    assert!(passed > PREPARED / 2 && passed < PREPARED + Duration::from_secs(2), "{passed:?}");
    work_again(&agent, &one, &two, &mut a, &mut b);

    // Or is not wanted any more.
    prepare(&agent, "g1", &mut a, &mut b);
    let began = Instant::now();
    agent.ask(Request::Resume { guest: "g1".into() }).expect("resumed");
    assert!(one.has("vmloop-ctl") && began.elapsed() < PREPARED / 2);
    work_again(&agent, &one, &two, &mut a, &mut b);

    // Asked again, it waits anew.
    prepare(&agent, "g1", &mut a, &mut b);
    thread::sleep(PREPARED * 2 / 3);
    prepare(&agent, "g1", &mut a, &mut b);
    thread::sleep(PREPARED * 2 / 3);
    assert!(is_clean(&one));
}

#[test]
fn an_agent_that_is_killed_while_it_prepares() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let mut agent = Agent::start(directory.path());
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    // The guest does not answer, keeps the channel's device, keeps the control
    // device; all is done.
    for step in 0..4 {
        a.polite = step > 0;
        one.state().keeps =
            [None, Some("vmloop-ch"), Some("vmloop-ctl"), None][step].map(Into::into);
        let closes = a.closes.len();
        one.state().heard.clear();
        let events = agent.events();
        thread::spawn(move || {
            // Nobody is left to answer when the agent is killed.
            let (reply, _) = tokio::sync::oneshot::channel();
            let request = Request::Prepare { guest: "g1".into() };
            let _ = events.blocking_send(vmloopd::event::Event::Api(request, reply));
        });
        wait("the step", || {
            b.hear();
            a.hear();
            match step {
                0 => a.closes.len() > closes,
                1 | 2 => {
                    let dels = one.state().heard.iter().filter(|one| *one == "device_del").count();
                    dels >= step
                }
                _ => is_clean(&one),
            }
        });
        agent.kill();
        one.state().keeps = None;
        agent = Agent::start(directory.path());
        wait("control devices", || {
            [&one, &two].iter().all(|qemu| qemu.has("vmloop-ctl"))
                && state(&agent, "g1") == "attached"
        });
        b = Modules::load(&two, 500 + step as u64, [10, 0, 0, 2]);
        a = Modules::load(&one, 600 + step as u64, [10, 0, 0, 1]);
        wait("a directory with the other", || {
            a.hear();
            b.hear();
            [&a, &b].iter().all(|m| m.directory.len() == 1 && m.directory[0].ip_count == 1)
        });
        let kept = agent.channels() == 1 && a.directory[0].tag != 0;
        if kept {
            let tag = a.directory[0].tag;
            a.state(tag, shm::VMLOOP_STATE_UP);
            b.state(tag, shm::VMLOOP_STATE_UP);
        } else {
            link(&mut a, &mut b, &one, &two);
        }
        wait("a channel that is up", || {
            a.hear();
            b.hear();
            agent
                .list(Request::List)
                .channels
                .iter()
                .any(|channel| channel.state == ChannelState::Up)
        });
        for qemu in [&one, &two] {
            wait("no device too many", || {
                qemu.devices().len() == 2 && qemu.state().chardevs.len() == 2
            });
        }
    }
}

#[test]
fn an_agent_that_is_killed_during_the_migration() {
    let (directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    prepare(&agent, "g1", &mut a, &mut b);
    assert!(one.migrate());
    wait_state(&agent, "g1", "migrating");
    agent.kill();
    let agent = Agent::start(directory.path());
    wait_state(&agent, "g1", "migrating");
    assert!(is_clean(&one));
    one.migration("cancelled", "running");
    wait("a control device", || one.has("vmloop-ctl") && two.has("vmloop-ctl"));
    b = Modules::load(&two, 222, [10, 0, 0, 2]);
    work_again(&agent, &one, &two, &mut a, &mut b);

    // And one that ends while there is no agent.
    prepare(&agent, "g1", &mut a, &mut b);
    assert!(one.migrate());
    wait_state(&agent, "g1", "migrating");
    agent.kill();
    one.migration("completed", "postmigrate");
    let agent = Agent::start(directory.path());
    wait_state(&agent, "g1", "departed");
    wait_state(&agent, "g2", "attached");
    assert!(is_clean(&one));
}

#[test]
fn a_peer_that_vanishes_meanwhile() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    b.polite = false;
    let mut killed = false;
    let answer = ask_while(&agent, Request::Prepare { guest: "g1".into() }, || {
        a.hear();
        b.hear();
        if !killed && !b.closes.is_empty() {
            two.kill();
            killed = true;
        }
    });
    answer.expect("prepared");
    assert!(killed && is_clean(&one));
    assert_eq!((agent.channels(), agent.list(Request::List).guests.len()), (0, 1));
    // The guest itself vanishes once it is prepared.
    one.kill();
    wait("an end", || agent.list(Request::List).guests.is_empty());
}

#[test]
fn a_guest_that_vanishes_while_it_is_prepared() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    one.state().keeps = Some("vmloop-ctl".into());
    let mut killed = false;
    let problem = ask_while(&agent, Request::Prepare { guest: "g1".into() }, || {
        a.hear();
        b.hear();
        if !killed && one.devices() == ["vmloop-ctl"] {
            one.kill();
            killed = true;
        }
    })
    .expect_err("it has ended");
    assert_eq!(problem.code, "gone");
    wait("an end", || two.devices() == ["vmloop-ctl"] && agent.channels() == 0);
}

#[test]
fn two_at_once() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    thread::scope(|scope| {
        let asking = ["g1", "g2"].map(|guest| {
            let agent = &agent;
            scope.spawn(move || agent.ask(Request::Prepare { guest: guest.into() }))
        });
        wait("two answers", || {
            a.hear();
            b.hear();
            asking.iter().all(thread::ScopedJoinHandle::is_finished)
        });
        for one in asking {
            one.join().expect("no panic").expect("prepared");
        }
    });
    assert!(is_clean(&one) && is_clean(&two) && agent.channels() == 0);
    assert!(one.migrate() && two.migrate());
    wait_state(&agent, "g1", "migrating");
    wait_state(&agent, "g2", "migrating");
    one.migration("failed", "running");
    two.migration("cancelled", "running");
    wait("control devices", || one.has("vmloop-ctl") && two.has("vmloop-ctl"));
    b = Modules::load(&two, 222, [10, 0, 0, 2]);
    work_again(&agent, &one, &two, &mut a, &mut b);
}

/// From one QEMU to another of the same host: the same guest, in a new life.
#[test]
fn within_the_host() {
    let (directory, other) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let agent = Agent::start(directory.path());
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    let next = Qemu::start(other.path(), 1);
    next.migration("", "inmigrate");
    agent.attach(&next);
    prepare(&agent, "g1", &mut a, &mut b);
    assert!(one.migrate());
    wait_state(&agent, "g1", "migrating");
    // It runs there before its old QEMU has said that it is done.
    next.migration("completed", "running");
    next.event("RESUME", &Value::Null);
    work_again(&agent, &next, &two, &mut a, &mut b);
    assert!(is_clean(&one));
    assert_eq!(agent.list(Request::List).guests.len(), 2);
}

#[test]
fn a_guest_that_keeps_its_device() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = meet(&agent, &one, &two);
    link(&mut a, &mut b, &one, &two);
    one.state().keeps = Some("vmloop-ctl".into());
    thread::scope(|scope| {
        let asking = scope.spawn(|| agent.ask(Request::Prepare { guest: "g1".into() }));
        wait("the channel to go", || {
            a.hear();
            b.hear();
            one.state().heard.iter().filter(|command| *command == "device_del").count() == 2
        });
        assert_eq!(state(&agent, "g1"), "preparing");
        // Called off, it gives the device back after all.
        let resuming = scope.spawn(|| agent.ask(Request::Resume { guest: "g1".into() }));
        let problem = asking.join().expect("no panic").expect_err("called off");
        assert_eq!(problem.code, "called-off");
        one.state().keeps = None;
        resuming.join().expect("no panic").expect("resumed");
    });
    assert_eq!(one.state().plugged["vmloop-ctl"], 2);
    work_again(&agent, &one, &two, &mut a, &mut b);
}
