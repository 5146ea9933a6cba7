// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Windows of a channel: memory that the agent makes for both guests, one of which can only
//! read it.

mod fake;

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use fake::agent::{Agent, link, two_guests};
use fake::{Modules, Qemu, wait};
use vmloop_abi::shm;
use vmloop_api::{ChannelState, Request};
use zerocopy::IntoBytes;

const FEATURES: u64 = shm::VMLOOP_F_LANES | shm::VMLOOP_F_CHANGES | shm::VMLOOP_F_WINDOWS;
const SIZE: u64 = 3 << 12;
const NOWHERE: u32 = shm::VMLOOP_WINDOW_NOWHERE;

fn say(modules: &mut Modules<'_>, window: (u32, u32), ours: bool, state: u32) {
    let size = if state == shm::VMLOOP_WINDOW_WANTED { SIZE } else { 0 };
    let (tag, number) = window;
    let message = shm::Window { tag, number, ours: ours.into(), state, size };
    modules.send(shm::VMLOOP_MSG_WINDOW, message.as_bytes());
}

/// What a guest is told next of windows. It forgets one that is taken back.
fn told(what: &str, modules: &mut Modules<'_>) -> shm::WindowAt {
    wait(what, || {
        modules.hear();
        !modules.windows.is_empty()
    });
    let at = modules.windows.remove(0);
    if at.place == NOWHERE {
        say(modules, (at.tag, at.number), at.ours == 1, shm::VMLOOP_WINDOW_GONE);
    }
    at
}

/// The same with all that it has been told.
fn forget(modules: &mut Modules<'_>) {
    modules.hear();
    while let Some(at) = modules.windows.pop() {
        assert_eq!(at.place, NOWHERE);
        say(modules, (at.tag, at.number), at.ours == 1, shm::VMLOOP_WINDOW_GONE);
    }
}

fn is_empty(qemu: &Qemu) -> bool {
    qemu.state().plain.is_empty()
}

/// Two guests that know of each other, and windows, or of which the second knows what `features`
/// say.
fn met<'a>(
    agent: &Agent,
    one: &'a Qemu,
    two: &'a Qemu,
    features: u64,
) -> (Modules<'a>, Modules<'a>) {
    agent.attach(one);
    agent.attach(two);
    let mut a = Modules::begin(one, 11, FEATURES);
    a.advertise(&[[10, 0, 0, 1].into()]);
    let mut b = Modules::begin(two, 22, features);
    b.advertise(&[[10, 0, 0, 2].into()]);
    wait("a directory", || {
        a.hear();
        b.hear();
        [&a, &b].iter().all(|m| m.directory.len() == 1 && m.directory[0].ip_count == 1)
    });
    (a, b)
}

/// The same with a channel.
fn linked<'a>(
    agent: &Agent,
    one: &'a Qemu,
    two: &'a Qemu,
    features: u64,
) -> (Modules<'a>, Modules<'a>, u32) {
    let (mut a, mut b) = met(agent, one, two, features);
    let tag = link(&mut a, &mut b, one, two);
    (a, b, tag)
}

/// A window of the first guest's that both have.
fn window(a: &mut Modules<'_>, b: &mut Modules<'_>, window: (u32, u32)) {
    say(a, window, true, shm::VMLOOP_WINDOW_WANTED);
    let at = told("the reader's device", b);
    assert_eq!((at.tag, at.number, at.ours, at.size), (window.0, window.1, 0, SIZE));
    assert!(at.place < 0x100, "{:x}", at.place);
    say(b, window, false, shm::VMLOOP_WINDOW_HERE);
    let at = told("the owner's device", a);
    assert_eq!((at.tag, at.number, at.ours, at.size), (window.0, window.1, 1, SIZE));
    assert!(at.place < 0x100, "{:x}", at.place);
}

#[test]
fn the_owner_writes_and_the_reader_reads() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b, tag) = linked(&agent, &one, &two, FEATURES);
    say(&mut a, (tag, 5), true, shm::VMLOOP_WINDOW_WANTED);
    wait("the reader's device", || {
        a.hear();
        b.hear();
        let told = a.windows.first().map(|at| at.place);
        assert_eq!(told, None, "the owner is told when the reader has its device, unless refused");
        !b.windows.is_empty()
    });
    b.windows.remove(0);
    say(&mut b, (tag, 5), false, shm::VMLOOP_WINDOW_HERE);
    told("the owner's device", &mut a);

    // Identities are hashes: either guest may be side 0.
    let id = [0, 1].map(|side| format!("vmloop-win-{tag}-{side}-5"));
    let find =
        |qemu: &Qemu| id.iter().find(|id| qemu.state().plain.memory.contains_key(*id)).cloned();
    let id = find(&one).expect("a window");
    assert_eq!(find(&two), Some(id.clone()));
    {
        let (ours, theirs) = (one.state(), two.state());
        let (writer, reader) = (&ours.plain.memory[&id], &theirs.plain.memory[&id]);
        assert_eq!([writer.readonly, reader.readonly], [false, true]);
        assert_eq!([writer.size, reader.size], [16 << 10; 2]);
        assert!(reader.file.write_all_at(b"x", 0).is_err(), "it was opened for reading");
        assert!(writer.file.write_all_at(b"x", 0).is_err(), "only what is mapped can be written");
        let mut bytes = Vec::new();
        (&reader.file).take(4096).read_to_end(&mut bytes).expect("its bytes");
        assert_eq!(bytes, [0; 4096]);
    }

    let listed = || {
        let channel = &agent.list(Request::List).channels[0];
        (channel.windows, channel.window_bytes)
    };
    assert_eq!(listed(), (1, 16 << 10));
    say(&mut b, (tag, 5), false, shm::VMLOOP_WINDOW_GONE);
    wait("the reader's end to go", || is_empty(&two));
    assert!(!is_empty(&one), "the owner has it yet");
    say(&mut a, (tag, 5), true, shm::VMLOOP_WINDOW_GONE);
    wait("the owner's end to go", || is_empty(&one));
    // The device goes before the agent has heard of it, and the place with that.
    wait("nothing that counts", || listed() == (0, 0));
    window(&mut a, &mut b, (tag, 9));
    say(&mut a, (tag, 9), true, shm::VMLOOP_WINDOW_GONE);
    wait("the owner's end to go", || is_empty(&one));
    // The reader may yet take what is plugged there next for this window.
    let at = told("that it is taken back", &mut b);
    assert_eq!((at.number, at.ours, at.place), (9, 0, NOWHERE));
    wait("the reader's end to go", || is_empty(&two));
    wait("nothing that counts", || listed() == (0, 0));
    assert_eq!(agent.channels(), 1);
}

#[test]
fn windows_that_cannot_be() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b, tag) = linked(&agent, &one, &two, FEATURES);
    window(&mut a, &mut b, (tag, 0));
    for (wrong, what) in [((tag, 4), "a place that is taken"), ((tag + 1, 1), "no channel")] {
        say(&mut a, wrong, true, shm::VMLOOP_WINDOW_WANTED);
        let at = told(what, &mut a);
        assert_eq!((at.tag, at.number, at.place), (wrong.0, wrong.1, NOWHERE), "{what}");
    }
    // What nobody has asked for.
    say(&mut b, (tag, 1), false, shm::VMLOOP_WINDOW_HERE);
    say(&mut b, (tag, 1), true, shm::VMLOOP_WINDOW_GONE);
    two.state().fail_device_add = Some("vmloop-win-".into());
    say(&mut a, (tag, 1), true, shm::VMLOOP_WINDOW_WANTED);
    assert_eq!(told("no place in the reader", &mut a).place, NOWHERE);
    two.state().fail_device_add = None;
    // It does not want what it is told of.
    say(&mut a, (tag, 2), true, shm::VMLOOP_WINDOW_WANTED);
    told("the reader's device", &mut b);
    say(&mut b, (tag, 2), false, shm::VMLOOP_WINDOW_GONE);
    assert_eq!(told("a reader that wants none", &mut a).place, NOWHERE);
    say(&mut a, (tag, 0), true, shm::VMLOOP_WINDOW_GONE);
    wait("nothing to be left", || {
        forget(&mut a);
        forget(&mut b);
        is_empty(&one) && is_empty(&two)
    });
}

#[test]
fn one_that_does_not_know_windows_gets_none() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b, tag) = linked(&agent, &one, &two, FEATURES & !shm::VMLOOP_F_WINDOWS);
    say(&mut a, (tag, 0), true, shm::VMLOOP_WINDOW_WANTED);
    assert_eq!(told("an answer", &mut a).place, NOWHERE);
    b.hear();
    assert!(b.windows.is_empty() && is_empty(&two));
}

/// What a guest wants before the channel is open at both sides it has when it is; what it
/// otherwise says by then takes nothing from anybody.
#[test]
fn a_guest_that_is_quicker_than_the_agent() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = met(&agent, &one, &two, FEATURES);
    two.state().hangs_at = Some("device_add");
    let peer = a.directory[0];
    a.want(&peer);
    wait("the end of one side, and its name", || {
        a.hear();
        !one.devices().is_empty() && a.directory[0].tag != 0
    });
    let tag = a.directory[0].tag;
    for number in 0..20 {
        say(&mut a, (tag, number), false, shm::VMLOOP_WINDOW_HERE);
        say(&mut a, (tag, number), true, shm::VMLOOP_WINDOW_GONE);
    }
    say(&mut a, (tag, 1), true, shm::VMLOOP_WINDOW_WANTED);
    say(&mut a, (tag, 1), true, shm::VMLOOP_WINDOW_GONE);
    say(&mut a, (tag, 2), true, shm::VMLOOP_WINDOW_WANTED);
    // All before this has been heard when this has its answer.
    say(&mut a, (tag + 1, 3), true, shm::VMLOOP_WINDOW_WANTED);
    let at = told("an answer", &mut a);
    assert_eq!((at.tag, at.number, at.place), (tag + 1, 3, NOWHERE));
    two.state().hangs_at = None;
    let at = told("the reader's device", &mut b);
    assert_eq!((at.tag, at.number), (tag, 2));
    wait("nothing else that counts", || agent.list(Request::List).channels[0].windows == 1);
}

#[test]
fn a_guest_asks_for_no_more_than_it_may() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b, tag) = linked(&agent, &one, &two, FEATURES);
    let (mut made, began) = (0, Instant::now());
    for number in 0..20 {
        say(&mut a, (tag, number), true, shm::VMLOOP_WINDOW_WANTED);
        wait("an answer", || {
            a.hear();
            b.hear();
            !(a.windows.is_empty() && b.windows.is_empty())
        });
        if b.windows.pop().is_some() {
            made += 1;
            say(&mut b, (tag, number), false, shm::VMLOOP_WINDOW_GONE);
            assert_eq!(told("a window that the reader does not want", &mut a).place, NOWHERE);
            wait("its end", || is_empty(&one) && is_empty(&two));
        } else {
            assert_eq!(told("an answer", &mut a).place, NOWHERE);
        }
    }
    // Eight at once, and one a second.
    assert!((8..=9 + began.elapsed().as_secs()).contains(&made), "{made}");
}

/// A reader that keeps its device does not keep the owner's, nor the owner from another one,
/// but in its place.
#[test]
fn a_window_that_is_kept_has_its_place() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b, tag) = linked(&agent, &one, &two, FEATURES);
    window(&mut a, &mut b, (tag, 0));
    two.state().keeps = Some("vmloop-win-".into());
    say(&mut a, (tag, 0), true, shm::VMLOOP_WINDOW_GONE);
    assert_eq!(told("that it is taken back", &mut b).place, NOWHERE);
    wait("the owner's end to go", || is_empty(&one));
    say(&mut a, (tag, 4), true, shm::VMLOOP_WINDOW_WANTED);
    assert_eq!(told("an answer", &mut a).place, NOWHERE);
    agent.ask(Request::Prepare { guest: "g1".into() }).expect("it may go");
    assert!(one.devices().is_empty() && is_empty(&one));
}

#[test]
fn windows_go_with_their_channel() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b, tag) = linked(&agent, &one, &two, FEATURES);
    window(&mut a, &mut b, (tag, 0));
    window(&mut b, &mut a, (tag, 0));
    // A guest that keeps its window keeps its own end of the channel, not the other's.
    two.state().keeps = Some("vmloop-win-".into());
    let device = format!("vmloop-ch-{tag}");
    a.state(tag, shm::VMLOOP_STATE_CLOSED);
    wait("the end of one side", || {
        forget(&mut a);
        forget(&mut b);
        !one.has(&device) && is_empty(&one)
    });
    assert!(!is_empty(&two));
    // What both share yet is known.
    wait("an event", || agent.list(Request::List).channels[0].state != ChannelState::Closing);
    two.state().keeps = None;
    wait("the end of the other", || {
        forget(&mut a);
        forget(&mut b);
        is_empty(&two) && agent.channels() == 0
    });
}

/// Its modules begin anew: nobody says what became of the windows of those before.
#[test]
fn windows_of_a_guest_that_begins_anew() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b, tag) = linked(&agent, &one, &two, FEATURES);
    window(&mut a, &mut b, (tag, 0));
    window(&mut b, &mut a, (tag, 0));
    let _b = Modules::begin(&two, 33, FEATURES);
    wait("all windows to go", || {
        forget(&mut a);
        is_empty(&one) && is_empty(&two)
    });
}

#[test]
fn the_next_agent_removes_what_is_left() {
    let (directory, one, two, agent) = two_guests();
    let (mut a, mut b, tag) = linked(&agent, &one, &two, FEATURES);
    window(&mut a, &mut b, (tag, 0));
    agent.kill();
    let _agent = Agent::start(directory.path());
    wait("the windows of the first agent to go", || is_empty(&one) && is_empty(&two));
}
