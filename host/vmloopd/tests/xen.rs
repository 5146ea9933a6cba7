// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The agent in a dom0 that is none: a xenstored and guests that only pretend,
//! and everything between the API and XenStore's nodes.

mod xenstore;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use vmloop_abi::shm;
use vmloop_api::{ChannelState, EndState, Hypervisor, Listing, Problem, Request, Status};
use vmloop_policy::in_force::Source;
use vmloop_xenstore::Store;
use vmloopd::broker::{Broker, Config};
use vmloopd::counters::Counters;
use vmloopd::event::Event;
use vmloopd::network::links::{Link, Links};
use vmloopd::server;
use vmloopd::xen;
use xenstore::{Modules, Xenstored, mac, ports, wait};

struct Agent {
    runtime: Runtime,
    events: mpsc::Sender<Event>,
    store: Store,
}

/// Two bridges; the first interface of domains 1 to 9 is on the first one.
fn network() -> Links {
    let bridge = |name: &str| Link { name: name.into(), up: true, bridge: true, ..Link::default() };
    let vif = |name: String, master| Link {
        name,
        mtu: 1500,
        up: true,
        master,
        forwarding: true,
        ..Link::default()
    };
    let first = (1..10).map(|domain| (domain, vif(format!("vif{domain}.0"), 100)));
    let second = (1..10).map(|domain| (domain + 10, vif(format!("vif{domain}.1"), 101)));
    Links::new(first.chain(second).chain([(100, bridge("xenbr0")), (101, bridge("xenbr1"))]))
}

/// Index of the interface by which this dom0 sends: interface M of domain N has
/// 10.1M.0.N, and there is no bridge on the way.
fn route(ip: IpAddr) -> Option<u32> {
    match ip {
        IpAddr::V4(ip) if ip.octets()[..3] == [10, 10, 0] => Some(ip.octets()[3].into()),
        _ => None,
    }
}

impl Agent {
    fn start(directory: &Path, xenstored: &Xenstored) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let store = {
            let _inside = runtime.enter();
            Store::connect_to(&xenstored.path).expect("XenStore")
        };
        let config = Config {
            policy: Source::default_path(directory.join("policy.toml")),
            state: directory.join("guests.json"),
            route,
            backend: Box::new(xen::Xen::new(store.clone())),
        };
        let (broker, events, inbox) =
            Broker::new(config, Arc::new(Counters::default())).expect("a broker");
        runtime.spawn(broker.run(inbox));
        runtime.spawn(xen::find(store.clone(), events.clone()));
        let agent = Self { runtime, events, store };
        agent.send(Event::Links(network()));
        agent
    }

    fn send(&self, event: Event) {
        assert!(self.events.blocking_send(event).is_ok(), "the broker has ended");
    }

    fn ask(&self, request: Request) -> Result<Value, Problem> {
        let answer = self.runtime.block_on(server::ask(&self.events, request))?;
        Ok(serde_json::to_value(answer).expect("JSON"))
    }

    fn list(&self) -> Listing {
        serde_json::from_value(self.ask(Request::List).expect("a listing")).expect("a listing")
    }

    fn status(&self) -> Status {
        serde_json::from_value(self.ask(Request::Status).expect("a status")).expect("a status")
    }

    fn channels(&self) -> usize {
        self.list().channels.len()
    }

    /// State of a guest; empty if there is none of that name.
    fn state(&self, name: &str) -> String {
        let guests = self.list().guests;
        guests
            .into_iter()
            .find(|guest| guest.name == name)
            .map(|guest| guest.state.to_string())
            .unwrap_or_default()
    }

    fn policy(&self, directory: &Path, text: &str) {
        std::fs::write(directory.join("policy.toml"), text).expect("a policy");
        self.ask(Request::PolicyReload).expect("a good one");
    }

    /// As SIGKILL does: nothing is put in order.
    fn kill(self, xenstored: &Xenstored) {
        self.runtime.shutdown_background();
        drop(self.store);
        wait("an end of its connection", || xenstored.is_real() || xenstored.watches() == 0);
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

/// A store with domains 1 to `count`, called g1, g2 and so on.
fn domains(count: u32) -> (tempfile::TempDir, Xenstored) {
    let directory = directory();
    let store = Xenstored::start(directory.path());
    for domain in 1..=count {
        store.create(domain, &format!("g{domain}"));
    }
    (directory, store)
}

/// The same with an agent that knows of them.
fn begin(count: u32) -> (tempfile::TempDir, Xenstored, Agent) {
    let (directory, store) = domains(count);
    let agent = Agent::start(directory.path(), &store);
    (directory, store, agent)
}

/// Domains 1 and 2, whose modules know of each other.
fn meet(store: &Xenstored) -> (Modules<'_>, Modules<'_>) {
    let (a, b) = (Modules::load(store, 1, 0x11), Modules::load(store, 2, 0x22));
    wait("a directory with the other's address", || {
        let address = |modules: &Modules<'_>, peer| {
            modules.agent().is_some()
                && modules
                    .told(&format!("peer/{peer}/interface/0"))
                    .is_some_and(|text| text.ends_with(&format!(" 10.0.0.{peer}/24")))
        };
        address(&a, 2) && address(&b, 1)
    });
    (a, b)
}

/// A guest whose modules were answered.
fn ready(store: &Xenstored, domain: u32) -> Modules<'_> {
    let modules = Modules::load(store, domain, 0x11);
    wait("a welcome", || modules.agent().is_some());
    modules
}

/// Both do as they are told until side 1 has mapped the region.
fn up(a: &mut Modules<'_>, b: &mut Modules<'_>) {
    wait("a channel on side 1", || {
        a.work();
        b.work();
        b.channels.values().any(|said| said == "up")
    });
}

/// A channel between them, up on both sides.
fn link(agent: &Agent, a: &mut Modules<'_>, b: &mut Modules<'_>) -> u32 {
    a.want(b.domain);
    up(a, b);
    let tag = *b.were_up.last().expect("it was up");
    a.up(tag);
    wait("a channel that is up", || {
        agent.list().channels.iter().any(|channel| channel.state == ChannelState::Up)
    });
    tag
}

#[test]
fn from_hello_to_a_channel_and_back() {
    let directory = directory();
    let store = Xenstored::start(directory.path());
    store.create(1, "web");
    let agent = Agent::start(directory.path(), &store);
    // One was there before the agent, one comes later.
    wait("a guest", || agent.state("web") == "attached");
    store.create(2, "db 2");
    let (mut a, mut b) = meet(&store);
    let words = a.agent().expect("an agent");
    assert_eq!((&*words[0], &*words[3], &*words[6..].join(" ")), ("1", "1", "60000 4194304 web"));
    assert_eq!(a.told("peer/2").map(|text| text[16..].to_owned()), Some(" 0 db_2".into()));
    let interface = a.told("peer/2/interface/0").expect("an interface");
    assert_eq!(interface, format!("{} {} 1 1500 10.0.0.2/24", mac(1, 0), mac(2, 0)));
    assert_eq!(agent.status().hypervisor, Hypervisor::Xen);

    // A guest reads its own directory only, and writes none.
    for node in store.below("/local/domain/1/vmloop") {
        assert_eq!(store.permissions(&node), "n0 r1", "{node}");
    }
    let foreign = store.read(2, "/local/domain/1/vmloop/page/0");
    assert!(store.is_real() || foreign == Err("EACCES"));
    for path in ["page", "page/0", "page/1", "new"].into_iter().filter(|_| !store.is_real()) {
        let path = format!("/local/domain/1/vmloop/{path}");
        assert_eq!(store.write(1, &path, b"x"), Err("EACCES"), "{path}");
    }

    let tag = link(&agent, &mut a, &mut b);
    assert_eq!(a.told(&format!("channel/{tag}")), Some("2 0 make".into()));
    let map = format!("1 1 map {} {}", 1000 + tag, ports(tag).join(" "));
    assert_eq!(b.told(&format!("channel/{tag}")), Some(map));
    assert_eq!(
        (a.peer(2).map(|peer| peer.1), b.peer(1).map(|peer| peer.1)),
        (Some(tag), Some(tag))
    );

    // Counters come from the guests.
    let stats = std::thread::scope(|scope| {
        let asking = scope.spawn(|| agent.ask(Request::Stats).expect("an answer"));
        wait("an answer", || {
            a.work();
            b.work();
            asking.is_finished()
        });
        serde_json::from_value::<Listing>(asking.join().expect("an answer")).expect("a listing")
    });
    assert_eq!(stats.channels[0].a.stats.map(|stats| stats.tx_bytes), Some(42));
    assert_eq!(stats.channels[0].b.stats.map(|stats| stats.rx_dropped), Some(6));

    agent.ask(Request::Close { a: "web".into(), b: "2".into() }).expect("closed");
    wait("an end", || {
        a.work();
        b.work();
        a.list("channel").is_empty() && b.list("channel").is_empty() && agent.channels() == 0
    });
    wait("no tag", || a.peer(2).is_some_and(|peer| peer.1 == 0));
    // The next one has another tag, whatever still stands there.
    wait("another channel", || {
        a.want(2);
        std::thread::sleep(std::time::Duration::from_millis(100));
        a.work();
        b.work();
        b.channels.values().any(|said| said == "up")
    });
    assert!(!b.channels.contains_key(&tag));
}

#[test]
fn an_agent_that_is_killed() {
    let (directory, store, agent) = begin(3);
    let (mut a, mut b) = meet(&store);
    let mut c = Modules::load(&store, 3, 0x33);
    wait("three guests", || c.peers().len() == 2 && a.peers().len() == 2);
    let tag = link(&agent, &mut a, &mut b);
    a.want(3);
    wait("a second channel", || {
        a.work();
        c.work();
        !c.were_up.is_empty()
    });
    let lost = c.were_up[0];
    let before = |modules: &Modules<'_>| {
        (
            modules.told("epoch"),
            modules.told(&format!("channel/{tag}")),
            modules.peer(1),
            modules.peer(2),
        )
    };
    let (of_a, of_b) = (before(&a), before(&b));
    let old = a.agent().expect("an agent")[2].clone();

    agent.kill(&store);
    store.state().written.clear();
    // Meanwhile guest 3 ends.
    store.destroy(3);
    a.say("want/77", "0000000000000001 1");
    let agent = Agent::start(directory.path(), &store);
    let is_another = |modules: &Modules<'_>| modules.agent().is_some_and(|words| words[2] != old);
    wait("another agent", || is_another(&a) && is_another(&b));
    assert_eq!((before(&a), before(&b)), (of_a, of_b));
    // Nor was it anything else in between.
    let written = store.state().written.clone();
    for (domain, peer) in [(1, 2), (2, 1)] {
        let page = format!("/local/domain/{domain}/vmloop/page/0");
        let pages: Vec<_> = written.iter().filter(|(path, _)| *path == page).collect();
        assert!(store.is_real() || !pages.is_empty());
        for word in ["agent".into(), format!("peer/{peer}"), format!("channel/{tag}")] {
            let line = format!("\n{word} ");
            assert!(pages.iter().all(|(_, text)| text.contains(&line)), "{word}: {pages:?}");
        }
    }
    // What was asked meanwhile is answered.
    wait("an answer", || a.refused(77).is_some());
    wait("an orphan that is closed", || {
        a.work();
        !a.list("channel").contains(&lost.to_string())
    });
    wait("a channel that is up", || {
        agent.list().channels.iter().any(|channel| channel.state == ChannelState::Up)
    });
    assert_eq!(agent.channels(), 1);
    b.work();
    assert_eq!((a.channels.len(), b.channels.len()), (1, 1));
    assert!(!store.below("/local/domain").iter().any(|path| path.starts_with("/local/domain/3")));

    // And it can be closed by the agent that did not make it.
    agent.ask(Request::Close { a: "g1".into(), b: "g2".into() }).expect("closed");
    wait("an end", || {
        a.work();
        b.work();
        a.list("channel").is_empty() && b.list("channel").is_empty() && agent.channels() == 0
    });
}

#[test]
fn an_agent_that_is_killed_before_the_offer() {
    let (directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    a.want(2);
    wait("a task", || a.list("channel").len() == 1 && b.list("channel").len() == 1);
    agent.kill(&store);
    a.work();
    let agent = Agent::start(directory.path(), &store);
    wait("a channel on side 1", || {
        b.work();
        !b.were_up.is_empty()
    });
    a.up(b.were_up[0]);
    wait("a channel that is up", || {
        agent.list().channels.iter().any(|channel| channel.state == ChannelState::Up)
    });
}

#[test]
fn modules_that_were_loaded_again_meanwhile() {
    let (directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    let tag = link(&agent, &mut a, &mut b);
    agent.kill(&store);
    a.unload();
    let a = Modules::load(&store, 1, 0x111);
    let agent = Agent::start(directory.path(), &store);
    wait("an end on the other side", || {
        b.work();
        a.agent().is_some() && b.list("channel").is_empty() && b.channels.is_empty()
    });
    assert!(a.list("channel").is_empty());
    wait("no channel", || agent.channels() == 0);

    // The same under an agent that lives; the other side takes its time.
    let mut a = a;
    let next = link(&agent, &mut a, &mut b);
    assert_ne!(next, tag);
    a.unload();
    let a = Modules::load(&store, 1, 0x1111);
    wait("a directory", || a.agent().is_some() && a.peer(2).is_some());
    assert_eq!((a.peer(2).map(|peer| peer.1), b.peer(1).map(|peer| peer.1)), (Some(0), Some(next)));
    wait("an end", || {
        b.work();
        a.agent().is_some() && a.list("channel").is_empty() && agent.channels() == 0
    });
    assert!(b.channels.is_empty() || b.told(&format!("channel/{next}")).is_none());
}

#[test]
fn a_guest_that_is_destroyed() {
    let (_directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    link(&agent, &mut a, &mut b);
    let watches = store.watches();
    store.destroy(2);
    wait("an end", || {
        a.work();
        a.peers().is_empty() && a.list("channel").is_empty() && agent.channels() == 0
    });
    assert_eq!(agent.list().guests.len(), 1);
    wait("fewer watches", || store.is_real() || store.watches() < watches);
    assert_eq!(store.below("/local/domain/2"), Vec::<String>::new());
    assert_eq!(store.below("/local/domain/0/backend/vif/2"), Vec::<String>::new());

    // Another dies, and its nodes stay for a while.
    store.create(3, "g3");
    let c = Modules::load(&store, 3, 0x33);
    wait("the third", || c.agent().is_some() && a.peers() == ["3"]);
    store.die(3);
    wait("an end", || a.peers().is_empty() && agent.list().guests.len() == 1);
    // The same number again, as another domain.
    store.remove(0, "/local/domain/3").expect("its nodes");
    store.create(3, "g4");
    wait("another guest", || agent.state("g4") == "attached");
}

#[test]
fn a_guest_that_is_destroyed_before_it_answers() {
    let (_directory, store, agent) = begin(2);
    let (mut a, b) = meet(&store);
    b.want(1);
    wait("a task", || a.list("channel").len() == 1);
    a.work();
    store.destroy(1);
    wait("an end", || b.peers().is_empty() && agent.list().guests.len() == 1);
    let mut b = b;
    wait("no channel", || {
        b.work();
        b.list("channel").is_empty() && agent.channels() == 0
    });
    assert_eq!(store.below("/local/domain/1"), Vec::<String>::new());
}

#[test]
fn a_guest_whose_nodes_go_before_the_agent_hears_of_it() {
    let directory = directory();
    let store = Xenstored::start(directory.path());
    if store.is_real() {
        return;
    }
    store.create(1, "g1");
    store.create(2, "g2");
    let agent = Agent::start(directory.path(), &store);
    let (a, _b) = meet(&store);
    store.state().mute = true;
    store.remove(0, "/local/domain/2").expect("its nodes");
    store.state().mute = false;
    // This changes the directory of the one that is gone.
    a.advertise(&[&format!("{} 10.0.0.11/24", mac(1, 0))]);
    wait("an end", || a.peers().is_empty() && agent.list().guests.len() == 1);
    assert_eq!(store.below("/local/domain/2"), Vec::<String>::new());
}

#[test]
fn a_guest_that_writes_nonsense() {
    let (_directory, store, agent) = begin(3);
    let (mut a, mut b) = meet(&store);
    let tag = link(&agent, &mut a, &mut b);
    let c = Modules::load(&store, 3, 0x33);
    wait("the third", || c.peers().len() == 2);

    let long = "9".repeat(1900);
    for value in ["", "x", "\u{1b}[2J", "-1 -1", "18446744073709551616", &long] {
        for path in [
            "want/1",
            "want/0",
            "want/x",
            "want/99999999999999999999",
            "channel/0",
            "channel/1",
            "channel/x",
            "address",
            "address/0",
            "stats",
            "stats/1/1",
            "what",
            "what/ever",
        ] {
            c.say(path, value);
        }
        // Channels of others.
        c.say(&format!("channel/{tag}"), "closed");
    }
    // Somebody else's address, itself, peers that do not exist, another epoch.
    c.advertise(&[&format!("{} 10.0.0.1/24", mac(3, 0)), &format!("{} 10.0.0.77/24", mac(1, 0))]);
    let epoch = c.peer(1).expect("a peer").0;
    c.say("want/3", &format!("{epoch:016x} 1"));
    c.say("want/77", &format!("{epoch:016x} 1"));
    c.say("want/1", "0000000000000001 1");
    wait("refusals", || [3, 77, 1].iter().all(|peer| c.refused(*peer).is_some()));
    for peer in [3, 77, 1] {
        assert_eq!(c.refused(peer).map(|(reason, _)| reason), Some(shm::VMLOOP_REFUSED_GONE));
    }
    assert!(agent.status().counters.malformed > 0);
    assert_eq!(agent.channels(), 1);
    a.work();
    b.work();
    assert_eq!((a.channels.len(), b.channels.len()), (1, 1));
    let shown = a.told("peer/3/interface/0").expect("an interface");
    assert!(!shown.contains("10.0.0.1/") && !shown.contains("10.0.0.77"), "{shown}");
    let shown = b.told("peer/1/interface/0").expect("an interface");
    assert!(shown.ends_with("10.0.0.1/24"), "{shown}");

    // Too long a hello is none.
    c.say("hello", &long);
    wait("it to be away", || agent.state("g3") == "attached" && a.peers() == ["2"]);
}

/// Ends a flood, however its test ends.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_guest_that_floods() {
    let (_directory, store, agent) = begin(3);
    let (mut a, mut b) = meet(&store);
    let c = Modules::load(&store, 3, 0x33);
    wait("the third", || c.peers().len() == 2);
    let reads = store.state().reads;
    let begun = std::time::Instant::now();
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let number = written.fetch_add(2, Ordering::Relaxed);
                c.say(&format!("want/{}", 1000 + number % 1400), "0000000000000001 1");
                c.say("what", "x");
                // A real one is asked over one connection: in turn.
                if store.is_real() {
                    std::thread::sleep(std::time::Duration::from_micros(20));
                }
            }
        });
        let _end = End(&stop);
        // Others are served meanwhile.
        link(&agent, &mut a, &mut b);
        wait("it to be slowed down", || {
            agent.status().counters.throttled > 0 && written.load(Ordering::Relaxed) > 4000
        });
    });
    let reads = store.state().reads.saturating_sub(reads);
    let seconds = begun.elapsed().as_secs_f64();
    // 20 looks at once and 10 a second, of 32 nodes and one look's more; 40
    // answers at once and 20 a second; and what the others have read.
    let most = 22.0 * 32.0 + 100.0 + 40.0 + seconds * (10.0 * 32.0 + 20.0) + 300.0;
    assert!(store.is_real() || (reads as f64) < most, "{reads} of {most}");
    // When it is quiet again it is heard again.
    store.remove(3, "/local/domain/3/data/vmloop/want").expect("its own");
    wait("an answer", || {
        c.say("want/77", "0000000000000001 1");
        std::thread::sleep(std::time::Duration::from_millis(300));
        c.refused(77).is_some()
    });
    // What it is told has a limit.
    for peer in 2000..2100 {
        c.say(&format!("want/{peer}"), "0000000000000001 1");
    }
    wait("all to be answered", || c.refused(2099).is_some() && c.refused(2036).is_some());
    assert_eq!(c.list("refused").len(), 64);
}

/// How long guests come and go beside one that floods; VMLOOP_FLOOD_SECONDS says otherwise.
fn flood_seconds() -> u64 {
    let said = std::env::var("VMLOOP_FLOOD_SECONDS").ok();
    said.map_or(8, |text| text.parse().expect("seconds in VMLOOP_FLOOD_SECONDS"))
}

/// A domain that writes all that can be said, right and wrong, until it is to stop. What
/// it has at once is less than a domain's quota of nodes.
fn flood(enemy: &Modules<'_>, stop: &AtomicBool) -> u64 {
    let (own, other) = (mac(enemy.domain, 0), mac(1, 0));
    let long = "9".repeat(1900);
    let mut written = 0;
    while !stop.load(Ordering::Relaxed) {
        written += 1;
        let (round, number) = (written / 12, written / 12 % 500);
        match written % 12 {
            // Modules that begin again and again, and such that do not.
            0 => enemy.say("hello", &format!("1 1 {:016x} 5 0.1.0 6.12", 0x1000 + round / 2000)),
            1 if round % 2000 == 1000 => enemy.say("hello", &long),
            // Addresses of others.
            2 => enemy.say("address", &format!("2 {own} 10.0.0.1/24 {own} 10.0.0.{number}/24")),
            3 => enemy.say("address", &format!("1 {other} 10.0.0.77/24")),
            4 => enemy.say("address", &long),
            5 => enemy.say(&format!("want/{}", 1 + round % 12), "0000000000000001 1"),
            6 => enemy.say(&format!("want/{}", 1000 + number), "0000000000000001 1"),
            7 => enemy.say("want/1", "\u{1b}[2J"),
            8 => enemy.say(&format!("channel/{}", round % 50), "offer 1 2"),
            9 => enemy.say("what/ever", "x"),
            10 => enemy.say("stats", &format!("{number}")),
            // All of it is looked at then.
            _ if round % 500 == 0 => {
                // Absent where it has just begun.
                let path = format!("/local/domain/{}/data/vmloop/want", enemy.domain);
                let _ = enemy.store.remove(enemy.domain, &path);
            }
            _ => enemy.say("stats/1/1", "-1"),
        }
        // A real one is asked over a ring, and answers before the next.
        std::thread::sleep(Duration::from_micros(50));
    }
    written
}

/// Loads the modules of a guest; returns when all of `near` know its address, and how
/// long that took. Then it goes again.
fn arrival(store: &Xenstored, domain: u32, incarnation: u64, near: &[Modules<'_>]) -> Duration {
    let word = format!("peer/{domain}/interface/0");
    let address = format!(" 10.0.0.{domain}/24");
    let knows = |one: &Modules<'_>| one.told(&word).is_some_and(|text| text.ends_with(&address));
    let begun = Instant::now();
    let modules = Modules::load(store, domain, incarnation);
    wait("all to know that it came", || near.iter().all(knows));
    let took = begun.elapsed();
    modules.unload();
    wait("all to know that it went", || !near.iter().any(knows));
    took
}

/// Memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[test]
fn guests_that_come_and_go_beside_one_that_floods() {
    const TRAVELLERS: std::ops::RangeInclusive<u32> = 4..=8;
    let (_directory, store, agent) = begin(9);
    let near = [1, 2, 3].map(|domain| Modules::load(&store, domain, domain.into()));
    wait("all to know each other", || near.iter().all(|one| one.peers().len() == 2));
    let mut incarnation = 100;
    let mut all_come = |seconds: u64| {
        let began = Instant::now();
        let mut times = Vec::new();
        while began.elapsed() < Duration::from_secs(seconds) {
            let round = Instant::now();
            for domain in TRAVELLERS {
                incarnation += 1;
                times.push(arrival(&store, domain, incarnation, &near));
            }
            // What the test itself keeps.
            store.state().written.clear();
            // One HELLO a second of a guest is answered at once.
            std::thread::sleep(Duration::from_millis(1050).saturating_sub(round.elapsed()));
        }
        times.sort_unstable();
        times
    };
    let percent = |times: &[Duration], part: usize| times[(times.len() * part).div_ceil(100) - 1];

    let quiet = all_come(3);
    let mut enemy = Modules::load(&store, 9, 0x99);
    enemy.say("want/77", "0000000000000001 1");
    let refusal = |enemy: &Modules<'_>| {
        let all = enemy.list("refused").into_iter();
        let said = all.filter_map(|peer| enemy.told(&format!("refused/{peer}")));
        said.filter_map(|text| text.split(' ').nth(2)?.parse::<u64>().ok()).max()
    };
    wait("a refusal", || refusal(&enemy).is_some());
    let first = refusal(&enemy).expect("a number");
    let before = agent.status().counters;
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let (warm, times) = std::thread::scope(|scope| {
        scope.spawn(|| written.store(flood(&enemy, &stop), Ordering::Relaxed));
        let _end = End(&stop);
        let seconds = flood_seconds();
        // What it can fill has been filled once.
        let mut times = all_come(seconds / 3);
        let warm = resident();
        times.extend(all_come(seconds - seconds / 3));
        times.sort_unstable();
        (warm, times)
    });
    let grown = resident().saturating_sub(warm);
    let now = agent.status().counters;
    let (is, was) = (percent(&times, 50), percent(&quiet, 50));
    println!(
        "{} arrivals: {is:?}, 99 % {:?}, the last {:?}; {} without flood: {was:?}, 99 % {:?}; {} written; \
         {grown} bytes more than {warm}; counted {before:?} {now:?}",
        times.len(),
        percent(&times, 99),
        percent(&times, 100),
        quiet.len(),
        percent(&quiet, 99),
        written.load(Ordering::Relaxed),
    );
    // A busy machine's CPUs serve store, guests and agent in turn.
    assert!(is <= 2 * was.max(Duration::from_millis(25)), "{is:?}, without flood {was:?}");
    assert!(grown < 2 << 20, "{grown} bytes more");
    assert!(now.throttled > before.throttled && now.malformed > before.malformed, "{now:?}");
    // It is heard again when it is quiet.
    enemy.incarnation = 0xffff;
    enemy.say("hello", "1 1 000000000000ffff 5 0.1.0 6.12");
    wait("it to be answered", || enemy.peers().len() == 3);
    enemy.say("want/78", "0000000000000001 1");
    wait("a refusal", || enemy.refused(78).is_some());
    // Each refusal has a number, and is counted.
    let (last, now) = (refusal(&enemy).expect("a number"), agent.status().counters);
    assert_eq!(last - first, now.refused - before.refused);
    assert!(last - first > flood_seconds(), "{first} to {last}");
}

#[test]
fn refused_by_policy_and_network() {
    let (directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    link(&agent, &mut a, &mut b);
    let epoch = a.peer(2).expect("a peer").0;
    agent.policy(directory.path(), "default = 'deny'\n");
    wait("an end", || {
        a.work();
        b.work();
        a.peers().is_empty() && a.list("channel").is_empty() && agent.channels() == 0
    });
    a.say("want/2", &format!("{epoch:016x} 1"));
    wait("a refusal", || a.refused(2).is_some());
    assert_eq!(a.refused(2).map(|(reason, _)| reason), Some(shm::VMLOOP_REFUSED_POLICY));
    let first = a.refused(2);
    // The same value again is asked again.
    a.say("want/2", &format!("{epoch:016x} 1"));
    wait("another refusal", || a.refused(2).is_some_and(|again| Some(again) != first));

    agent.policy(
        directory.path(),
        "ring_size = '64K'\nidle_ms = 5\n[[guest]]\nmatch = 'g2'\nallow_ips = ['10.9.0.0/16']\n",
    );
    wait("the peer, without an address", || {
        a.peers() == ["2"]
            && a.told("peer/2/interface/0").is_some_and(|text| text.ends_with(" 1500"))
            && a.agent().is_some_and(|words| words[6..8] == ["5", "65536"])
    });
    agent.send(Event::Links(Links::default()));
    wait("nobody", || a.peers().is_empty() && b.peers().is_empty());
    agent.send(Event::Links(network()));
    wait("the peer", || a.peers() == ["2"]);

    // By name, and names change.
    agent.policy(
        directory.path(),
        "[[group]]\nname = 'web'\nmembers = ['web*', 'uuid:00000000-0000-4000-8000-000000000002']\n",
    );
    wait("nobody", || a.peers().is_empty());
    store.dom0("/local/domain/1/name", "web1");
    wait("the peer", || {
        a.peers() == ["2"] && b.told("peer/1").is_some_and(|text| text.ends_with(" web1"))
    });
    assert_eq!(a.agent().map(|words| words[8].clone()), Some("web1".into()));
}

#[test]
fn interfaces_that_come_and_go() {
    let (_directory, store, agent) = begin(2);
    let (a, _b) = meet(&store);
    store.plug(1, 1);
    store.plug(2, 1);
    wait("a second interface", || a.told("peer/2/interface/1").is_some());
    let text = a.told("peer/2/interface/1").expect("it is there");
    assert!(text.starts_with(&format!("{} {}", mac(1, 1), mac(2, 1))), "{text}");
    store.remove(0, "/local/domain/0/backend/vif/2/1").expect("unplugged");
    wait("one interface", || a.told("peer/2/interface/1").is_none());
    // What the guest says its address is counts for nothing.
    store.dom0("/local/domain/0/backend/vif/2/0/mac", "00:16:3e:77:77:77");
    wait("another address", || {
        a.told("peer/2/interface/0").is_some_and(|text| text.contains("00:16:3e:77:77:77"))
    });
    // An interface with another name on the host.
    store.dom0("/local/domain/0/backend/vif/2/0/vifname", "elsewhere");
    wait("nobody", || a.peers().is_empty());
    let guests = agent.list().guests;
    assert!(guests[1].nics[0].blocked.contains("elsewhere"), "{:?}", guests[1].nics);
}

#[test]
fn a_guest_whose_interfaces_go_before_it() {
    let (_directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    link(&agent, &mut a, &mut b);
    agent.send(Event::Links(Links::default()));
    wait("close", || agent.list().channels[0].reason == "peer gone");
}

#[test]
fn a_channel_that_is_forbidden() {
    let (directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    link(&agent, &mut a, &mut b);
    agent.policy(directory.path(), "default = 'deny'\n");
    wait("close", || agent.list().channels[0].reason == "policy");
}

#[test]
fn idle_channels() {
    let (_directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    let tag = link(&agent, &mut a, &mut b);
    a.say(&format!("channel/{tag}"), "idle");
    wait("one side", || agent.list().channels[0].a.state == EndState::Idle);
    assert_eq!(agent.list().channels[0].state, ChannelState::Up);
    b.say(&format!("channel/{tag}"), "idle");
    wait("close", || a.told(&format!("channel/{tag}")) == Some("2 0 close".into()));
    assert_eq!(agent.list().channels[0].reason, "idle");
    // It stays until both have let go.
    a.work();
    wait("one side", || agent.list().channels[0].a.state == EndState::Closed);
    assert!(b.told(&format!("channel/{tag}")).is_some_and(|text| text.ends_with("close")));
    b.work();
    wait("an end", || agent.channels() == 0 && a.list("channel").is_empty());
}

#[test]
fn a_peer_that_breaks_the_protocol() {
    let (_directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    let tag = link(&agent, &mut a, &mut b);
    a.say(&format!("channel/{tag}"), "broken");
    wait("close", || a.told(&format!("channel/{tag}")) == Some("2 0 close".into()));
    // It may be told later than the other.
    wait("one side", || {
        b.work();
        agent.list().channels[0].b.state == EndState::Closed
    });
    // The one that says so still has the memory.
    assert_eq!(agent.list().channels[0].a.state, EndState::Broken);
    a.work();
    wait("an end", || agent.channels() == 0 && a.list("channel").is_empty());
    let first = a.refused(2);
    a.want(2);
    wait("a refusal", || a.refused(2) != first);
    assert_eq!(a.refused(2).map(|(reason, _)| reason), Some(shm::VMLOOP_REFUSED_BROKEN));
    let told = a.told("refused/2").expect("a refusal");
    let retry_ms: u32 = told.split(' ').nth(1).and_then(|ms| ms.parse().ok()).expect("a number");
    assert!((1..=1000).contains(&retry_ms), "{retry_ms} ms");
    assert_eq!(agent.list().broken[0].breaks, 1);
    std::thread::sleep(std::time::Duration::from_millis(u64::from(retry_ms) + 5));
    link(&agent, &mut a, &mut b);
}

#[test]
fn memory_that_cannot_be_made_or_mapped() {
    let (_directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    a.fail = Some(28);
    b.want(1);
    wait("a refusal", || {
        a.work();
        b.work();
        b.refused(1).is_some()
    });
    assert_eq!(b.refused(1).map(|(reason, _)| reason), Some(shm::VMLOOP_REFUSED_SLOTS));
    assert_eq!(agent.channels(), 0);
    assert!(a.list("channel").is_empty() && b.list("channel").is_empty());
    // Asking again at once is too early.
    let first = b.refused(1);
    b.want(1);
    wait("another refusal", || b.refused(1) != first);
    assert_eq!(b.refused(1).map(|(reason, _)| reason), Some(shm::VMLOOP_REFUSED_BUSY));

    // Another pair is not held up by it; here the other side fails.
    store.create(3, "g3");
    let mut c = Modules::load(&store, 3, 0x33);
    c.fail = Some(22);
    wait("the third", || b.peers().len() == 2 && c.peers().len() == 2);
    b.want(3);
    wait("a refusal", || {
        b.work();
        c.work();
        b.refused(3).is_some()
    });
    assert_eq!(b.refused(3).map(|(reason, _)| reason), Some(shm::VMLOOP_REFUSED_FAILED));
    wait("no channel", || {
        b.work();
        b.list("channel").is_empty() && c.list("channel").is_empty()
    });
}

#[test]
fn a_guest_that_does_not_make_the_memory() {
    let (_directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    a.polite = false;
    b.want(1);
    wait("a task", || a.list("channel").len() == 1);
    // After ten seconds; it answers `close`, though.
    wait("close", || {
        a.told(&format!("channel/{}", a.list("channel")[0])) == Some("2 0 close".into())
    });
    a.polite = true;
    wait("a refusal", || {
        a.work();
        b.work();
        b.refused(1).is_some()
    });
    assert_eq!(b.refused(1).map(|(reason, _)| reason), Some(shm::VMLOOP_REFUSED_FAILED));
    assert_eq!(agent.channels(), 0);
}

#[test]
fn a_guest_that_does_not_answer_close() {
    let (_directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    link(&agent, &mut a, &mut b);
    b.polite = false;
    agent.ask(Request::Close { a: "g1".into(), b: "g2".into() }).expect("closing");
    wait("an end", || {
        a.work();
        b.work();
        agent.channels() == 0 && a.list("channel").is_empty() && b.list("channel").is_empty()
    });
}

#[test]
fn guests_that_are_told_to_end() {
    let (_directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    link(&agent, &mut a, &mut b);
    store.dom0("/local/domain/2/control/shutdown", "suspend");
    wait("an end", || {
        a.work();
        b.work();
        a.peers().is_empty() && agent.channels() == 0 && agent.state("g2") == "leaving"
    });
    // It takes note, lets its modules go, is saved, and lives on.
    store.write(2, "/local/domain/2/control/shutdown", b"").expect("its own");
    b.unload();
    wait("it to be away", || agent.list().guests[1].kernel.is_empty());
    let b = Modules::load(&store, 2, 0x222);
    wait("it to be back", || a.peers() == ["2"] && b.peers() == ["1"]);
}

#[test]
fn detached_and_attached_again() {
    let (directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    link(&agent, &mut a, &mut b);
    std::thread::scope(|scope| {
        let detaching = scope.spawn(|| agent.ask(Request::Detach { guest: "g2".into() }));
        wait("an end", || {
            a.work();
            b.work();
            detaching.is_finished()
        });
        detaching.join().expect("an answer").expect("detached");
    });
    assert_eq!(b.agent(), None);
    assert!(b.lines().keys().eq(["detached", "epoch"]), "{:?}", b.lines());
    wait("nobody", || a.peers().is_empty());
    assert_eq!(agent.state("g2"), "detached");

    // The next agent knows.
    agent.kill(&store);
    let agent = Agent::start(directory.path(), &store);
    wait("both", || agent.state("g2") == "detached" && agent.state("g1") == "ready");
    assert!(b.agent().is_none() && a.peers().is_empty());
    let include = |guest: &str| {
        agent.ask(Request::Include { guest: guest.into() }).map_err(|problem| problem.code)
    };
    assert_eq!(include("g1"), Err("attached-already".into()));
    assert_eq!(include("nobody"), Err("no-such-guest".into()));
    let qmp = agent.ask(Request::Attach { qmp: "/run/x".into(), name: None });
    assert_eq!(qmp.map_err(|problem| problem.code), Err("not-qemu".into()));
    assert_eq!(include("g2").map(|guest| guest["name"].clone()), Ok("g2".into()));
    wait("the peer", || a.peers() == ["2"] && b.peers() == ["1"]);
}

#[test]
fn names_that_are_not_unique() {
    let directory = directory();
    let store = Xenstored::start(directory.path());
    store.create(4, "twin");
    store.create(5, "twin");
    let agent = Agent::start(directory.path(), &store);
    wait("both", || agent.list().guests.len() == 2);
    let names: Vec<String> = agent.list().guests.into_iter().map(|guest| guest.name).collect();
    assert!(names == ["twin", "twin.5"] || names == ["twin", "twin.4"], "{names:?}");
    // The name goes to the other one when its owner is gone.
    store.destroy(if names[1] == "twin.5" { 4 } else { 5 });
    wait("its name", || agent.list().guests.len() == 1 && agent.state("twin") == "attached");
}

#[test]
fn a_guest_that_is_saved_and_restored() {
    let (_directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    let tag = link(&agent, &mut a, &mut b);
    let epoch = a.peer(2).expect("a peer").0;
    // The kernels end the channel between them before the guest stops.
    store.suspend(2);
    a.let_go(tag);
    b.unload();
    store.suspended();
    wait("an end", || {
        a.work();
        a.peers().is_empty() && a.list("channel").is_empty() && agent.channels() == 0
    });
    assert!(a.channels.is_empty());
    store.destroy(2);
    wait("it to be gone", || agent.list().guests.len() == 1);

    // All but its number is as it was.
    store.restore(3, "g2", 2);
    wait("it to be found", || agent.state("g2") == "attached");
    assert!(a.peers().is_empty());
    let mut b = Modules::load(&store, 3, 0x222);
    b.advertise(&[&format!("{} 10.0.0.2/24", mac(2, 0))]);
    let shown = format!("{} {} 1 1500 10.0.0.2/24", mac(1, 0), mac(2, 0));
    wait("it, by its old address", || a.told("peer/3/interface/0").as_ref() == Some(&shown));
    wait("its peer", || b.peers() == ["1"]);
    assert_eq!(a.peers(), ["3"]);
    assert_ne!(a.peer(3).expect("a peer").0, epoch);
    assert_ne!(link(&agent, &mut a, &mut b), tag);
}

#[test]
fn a_guest_that_is_checkpointed() {
    let (_directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    let tag = link(&agent, &mut a, &mut b);
    let epoch = a.peer(2).expect("a peer").0;
    store.suspend(2);
    b.unload();
    store.suspended();
    // It goes on before its peer, or the agent, has done anything about it.
    let begun = std::time::Instant::now();
    let mut b = Modules::load(&store, 2, 0x222);
    wait("a welcome", || b.agent().is_some() && b.peer(1).is_some_and(|peer| peer.1 == 0));
    wait("an end", || {
        a.work();
        agent.channels() == 0 && a.peer(2) == Some((epoch, 0)) && a.channels.is_empty()
    });
    // The channel lived short, which is nobody's fault: no waiting.
    assert_ne!(link(&agent, &mut a, &mut b), tag);
    let took = begun.elapsed();
    assert!(took < std::time::Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_guest_that_is_migrated_within_the_host() {
    let (_directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    let tag = link(&agent, &mut a, &mut b);
    store.restore(3, "g2--incoming", 2);
    wait("it", || agent.state("g2--incoming") == "arriving");
    store.suspend(2);
    a.let_go(tag);
    b.unload();
    store.suspended();
    // The agent may hear of the second name before the first.
    store.dom0("/local/domain/3/name", "g2");
    wait("a name", || agent.state("g2.3") == "arriving");
    store.dom0("/local/domain/2/name", "g2--migratedaway");
    wait("its own name", || {
        agent.state("g2--migratedaway") == "attached" && agent.state("g2") == "arriving"
    });
    let mut c = Modules::load(&store, 3, 0x333);
    wait("a welcome", || c.agent().is_some());
    store.destroy(2);
    wait("each other", || {
        a.work();
        a.peers() == ["3"] && c.peers() == ["1"] && agent.channels() == 0
    });
    link(&agent, &mut a, &mut c);
}

/// Domain 3 is being received and will be g2; a guest hears of it by that name.
fn receive(store: &Xenstored, agent: &Agent, of: &Modules<'_>) {
    store.restore(3, "g2--incoming", 2);
    let shown = format!("{} {} 1 1500", mac(of.domain, 0), mac(2, 0));
    wait("it", || of.told("peer/3").is_some_and(|text| text.ends_with(" 0 g2")));
    assert_eq!(of.told("peer/3/interface/0"), Some(shown));
    assert_eq!(agent.state("g2--incoming"), "arriving");
}

/// It runs: its modules speak, and what their first welcome was.
fn arrive<'a>(store: &'a Xenstored, agent: &Agent, neighbour: u32) -> (Modules<'a>, String) {
    store.state().written.clear();
    store.dom0("/local/domain/3/name", "g2");
    wait("a name", || agent.state("g2") == "arriving");
    let modules = Modules::load(store, 3, 0x333);
    wait("a welcome", || modules.agent().is_some());
    let state = store.state();
    let pages = |domain| {
        let path = format!("/local/domain/{domain}/vmloop/page/0");
        state.written.iter().filter(move |(at, _)| *at == path).map(|(_, page)| page)
    };
    let told = |page: &&String| page.contains("0000000000000333");
    let first = pages(3).find(told).cloned().unwrap_or_default();
    assert!(pages(neighbour).all(|page| page.contains("\npeer/3 ")), "it was gone in between");
    (modules, first)
}

/// The region for a guest that is on its way is made.
fn offer(store: &Xenstored, agent: &Agent, a: &mut Modules<'_>) -> u32 {
    let opened = agent.status().counters.channels_opened;
    a.want(3);
    wait("an offer", || {
        a.work();
        agent.status().counters.channels_opened > opened
    });
    let tag = a.peer(3).expect("a peer").1;
    assert_eq!(a.told(&format!("channel/{tag}")), Some("3 0 make".into()));
    // Who has not spoken is told nothing.
    for page in store.below("/local/domain/3/vmloop/page") {
        let text = store.read(0, &page).expect("a page");
        assert!(!text.contains("\nchannel/"), "{text}");
    }
    tag
}

#[test]
fn a_guest_that_is_on_its_way() {
    let (_directory, store, agent) = begin(1);
    let mut a = ready(&store, 1);
    receive(&store, &agent, &a);
    // Its neighbours may make the region already: the first answer leads to it.
    let tag = offer(&store, &agent, &mut a);
    let (mut b, first) = arrive(&store, &agent, 1);
    let map = format!("\nchannel/{tag} 1 1 map {} {}\n", 1000 + tag, ports(tag).join(" "));
    assert!(store.is_real() || first.contains(&map), "{first}");
    up(&mut a, &mut b);
    assert_eq!((b.were_up.clone(), agent.channels()), (vec![tag], 1));
}

#[test]
fn a_guest_that_is_long_on_its_way() {
    let (_directory, store, agent) = begin(1);
    let mut a = ready(&store, 1);
    receive(&store, &agent, &a);
    let tag = offer(&store, &agent, &mut a);
    // Longer than an arrived one may be silent.
    std::thread::sleep(std::time::Duration::from_secs(17));
    let (mut b, _) = arrive(&store, &agent, 1);
    up(&mut a, &mut b);
    assert_eq!(b.were_up, [tag]);
}

#[test]
fn a_guest_on_its_way_that_will_make_the_region() {
    let (_directory, store, agent) = begin(0);
    // Numbers have been through all there are.
    store.create(5, "g5");
    let mut a = ready(&store, 5);
    receive(&store, &agent, &a);
    a.want(3);
    let reason = |a: &Modules<'_>| a.refused(3).map(|(reason, _)| reason);
    wait("later", || reason(&a) == Some(shm::VMLOOP_REFUSED_BUSY));
    // With the first answer comes the channel, and nobody had to ask again.
    let (mut b, first) = arrive(&store, &agent, 5);
    assert!(store.is_real() || first.contains(" 5 0 make\n"), "{first}");
    up(&mut b, &mut a);
}

#[test]
fn a_guest_that_never_arrives() {
    let (directory, store, agent) = begin(1);
    let mut a = ready(&store, 1);
    receive(&store, &agent, &a);
    offer(&store, &agent, &mut a);
    store.destroy(3);
    wait("an end", || {
        a.work();
        a.channels.is_empty() && a.peers().is_empty() && agent.channels() == 0
    });

    // Nor is what another agent has begun waited for; its question still stands.
    receive(&store, &agent, &a);
    let lost = offer(&store, &agent, &mut a);
    agent.kill(&store);
    let agent = Agent::start(directory.path(), &store);
    wait("an end, and another", || {
        a.work();
        !a.channels.contains_key(&lost) && a.channels.len() == 1 && agent.channels() == 1
    });
    let (mut b, _) = arrive(&store, &agent, 1);
    up(&mut a, &mut b);
    assert_eq!(b.were_up, a.channels.keys().copied().collect::<Vec<_>>());
}

#[test]
fn a_guest_that_arrives_without_modules() {
    let (directory, store, agent) = begin(1);
    let mut a = ready(&store, 1);
    // The policy is about its own name.
    agent.policy(directory.path(), "[[group]]\nname = 'both'\nmembers = ['g1', 'g2']\n");
    store.restore(3, "g2--incoming", 2);
    wait("it", || a.peers() == ["3"]);
    assert_eq!(agent.state("g2--incoming"), "arriving");
    offer(&store, &agent, &mut a);
    store.dom0("/local/domain/3/name", "g2");
    wait("a name", || agent.state("g2") == "arriving");
    assert_eq!(a.peers(), ["3"]);
    // Neighbours do not wait for ever.
    wait("nobody", || {
        a.work();
        a.peers().is_empty() && agent.state("g2") == "attached"
    });
    wait("an end", || {
        a.work();
        a.channels.is_empty() && agent.channels() == 0
    });
}

#[test]
fn a_guest_with_nodes_of_an_earlier_life() {
    let (directory, store) = domains(1);
    // What was number 2 elsewhere is 4 here, where 2 is somebody else.
    store.create(2, "other");
    store.restore(4, "g2", 3);
    let stale = Modules::load(&store, 4, 0x22);
    for peer in [1, 2] {
        stale.say(&format!("want/{peer}"), "00000000000000aa 1");
    }
    for tag in [1, 2, 3] {
        stale.say(&format!("channel/{tag}"), "offer 8 17");
    }
    let agent = Agent::start(directory.path(), &store);
    let (mut a, mut c) = meet(&store);
    // Asked before the others have spoken to this agent, it asks again.
    for peer in [1, 2] {
        let reason = || stale.refused(peer).map(|(reason, _)| reason);
        wait("a refusal", || reason().is_some());
        if reason() == Some(shm::VMLOOP_REFUSED_BUSY) {
            stale.say(&format!("want/{peer}"), "00000000000000aa 1");
            wait("another", || reason() != Some(shm::VMLOOP_REFUSED_BUSY));
        }
        assert_eq!(reason(), Some(shm::VMLOOP_REFUSED_GONE));
    }
    assert_eq!(agent.channels(), 0);
    // Who believes in it gets a channel that leads nowhere.
    wait("what it seems to be", || a.peer(4).is_some());
    a.want(4);
    wait("a task", || a.list("channel").len() == 1);
    a.work();

    let mut b = Modules::load(&store, 4, 0x222);
    b.advertise(&[&format!("{} 10.0.0.3/24", mac(3, 0))]);
    wait("an end of it", || {
        a.work();
        b.agent().is_some() && agent.channels() == 0 && a.channels.is_empty()
    });
    assert!(b.list("channel").is_empty());
    link(&agent, &mut a, &mut b);
    // The one that has its old number is reached as itself.
    c.want(1);
    wait("a second channel", || {
        a.work();
        c.work();
        agent.channels() == 2 && c.channels.values().any(|said| said == "up")
    });
}

#[test]
fn a_store_that_is_busy_or_full() {
    let directory = directory();
    let store = Xenstored::start(directory.path());
    if store.is_real() {
        return;
    }
    // More domains than one answer holds.
    store.state().wide = Some(20);
    for domain in 1..=9 {
        store.create(domain, &format!("g{domain}"));
    }
    store.state().conflicts = 5;
    let agent = Agent::start(directory.path(), &store);
    wait("all", || agent.list().guests.len() == 9);
    let (mut a, mut b) = meet(&store);
    assert_eq!(store.state().conflicts, 0);
    link(&agent, &mut a, &mut b);

    store.state().full = Some("ENOSPC");
    let c = Modules::load(&store, 3, 0x33);
    wait("it", || agent.state("g3") == "ready");
    assert!(c.agent().is_none());
    store.state().full = None;
    wait("room", || c.agent().is_some() && c.peers().len() == 2);
    // Only what is more than one node needs a transaction.
    let commits = store.state().commits;
    store.dom0("/local/domain/3/name", "other");
    wait("its name", || c.agent().is_some_and(|words| words[8] == "other"));
    assert_eq!(store.state().commits, commits);
    store.state().conflicts = u32::MAX;
    store.create(10, "g10");
    wait("many tries", || store.state().conflicts < u32::MAX - 8);
    store.state().conflicts = 0;
    let d = Modules::load(&store, 10, 0x1010);
    wait("a welcome", || d.agent().is_some());
}

#[test]
fn an_agent_that_ends() {
    let (directory, store, agent) = begin(2);
    let (mut a, mut b) = meet(&store);
    let tag = link(&agent, &mut a, &mut b);
    let generation = a.generation();
    agent.runtime.block_on(xen::goodbye(&agent.store));
    agent.kill(&store);
    assert!(a.told("agent").is_none() && b.told("agent").is_none());
    assert_ne!(a.generation(), generation);
    let generation = a.generation();
    let agent = Agent::start(directory.path(), &store);
    wait("a channel that is up", || {
        a.agent().is_some()
            && agent.list().channels.iter().any(|channel| channel.state == ChannelState::Up)
    });
    assert_ne!(a.generation(), generation);
    a.work();
    b.work();
    assert_eq!(a.peer(2).map(|peer| peer.1), Some(tag));
    assert_eq!((a.channels.len(), b.channels.len()), (1, 1));
}

#[test]
fn domains_that_dom0_routes_between() {
    let (directory, store, agent) = begin(2);
    // As vif-route leaves them: in no bridge, each with the address of all.
    let vif = |domain: u32| {
        let mac = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff];
        let vif = Link { name: format!("vif{domain}.0"), mtu: 1500, up: true, ..Link::default() };
        (domain, Link { mac, ..vif })
    };
    agent.send(Event::Links(Links::new((1..10).map(vif))));
    let (mut a, mut b) = (Modules::load(&store, 1, 0x11), Modules::load(&store, 2, 0x22));
    for modules in [&a, &b] {
        let domain = modules.domain;
        let good = format!("{} 10.10.0.{domain}/32", mac(domain, 0));
        let other = format!("{} 10.10.0.9/32", mac(domain, 0));
        modules.advertise(&[&good, &other]);
    }
    wait("an agent", || a.agent().is_some() && b.agent().is_some());
    assert!(a.peers().is_empty() && b.peers().is_empty());

    let policy = "[[routed]]\nname = 'x'\nmembers = ['g*']\nallow_ips = ['10.10.0.0/24']\n";
    agent.policy(directory.path(), policy);
    let told = |modules: &Modules<'_>, peer: u32| modules.told(&format!("peer/{peer}/interface/0"));
    let entry = |of: u32, peer: u32, ips: &str| {
        Some(format!("{} {} 2 1500 fe:ff:ff:ff:ff:ff{ips}", mac(of, 0), mac(peer, 0)))
    };
    wait("the peer, and its own", || {
        told(&a, 2) == entry(1, 2, " 10.10.0.2/32") && told(&a, 1) == entry(1, 1, " 10.10.0.1/32")
    });
    let tag = link(&agent, &mut a, &mut b);

    // An address that is taken away leaves the channel as it is.
    b.advertise(&[]);
    wait("no address", || told(&a, 2) == entry(1, 2, "") && told(&b, 2) == entry(2, 2, ""));
    assert_eq!(a.peer(2).map(|peer| peer.1), Some(tag));
    b.advertise(&[&format!("{} 10.10.0.2/32", mac(2, 0))]);
    wait("an address", || told(&a, 2) == entry(1, 2, " 10.10.0.2/32"));

    agent.policy(directory.path(), "default = 'same-bridge'\n");
    wait("an end", || {
        a.work();
        b.work();
        a.peers().is_empty() && b.peers().is_empty() && agent.channels() == 0
    });
}
