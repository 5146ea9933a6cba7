// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The agent, but for its sockets, on a host whose bridge has the taps of
//! guests 1 to 9; and guests that meet there.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use vmloop_abi::shm;
use vmloop_api::{Listing, Problem, Request};
use vmloop_policy::in_force::Source;
use vmloopd::broker::{Broker, Config};
use vmloopd::config::Vfio;
use vmloopd::counters::Counters;
use vmloopd::event::Event;
use vmloopd::network::links::{Link, Links};
use vmloopd::qemu::Qemu as Backend;
use vmloopd::qemu::nics::Taps;
use vmloopd::server;

use super::{Modules, Qemu, wait};

/// How long a guest that is prepared waits for its migration here.
pub const PREPARED: Duration = Duration::from_secs(2);

/// What an agent is made of.
pub struct Setup {
    pub policy: Source,
    pub taps: fn(u32) -> Taps,
    pub route: fn(IpAddr) -> Option<u32>,
    pub vfio: Vfio,
}

pub struct Agent {
    runtime: Runtime,
    events: mpsc::Sender<Event>,
}

/// A bridge with the taps of guests 1 to 9.
fn network() -> Links {
    network_of(1500)
}

/// The same, where packets may be so large.
pub fn network_of(mtu: u32) -> Links {
    let bridge = Link { name: "br0".into(), up: true, bridge: true, ..Link::default() };
    let taps = (1..10).map(|number| (number, Link { mtu, ..tap(number) }));
    Links::new(taps.chain([(100, bridge)]))
}

/// The tap of a guest.
pub fn tap(number: u32) -> Link {
    Link {
        name: format!("tap{number}"),
        mtu: 1500,
        up: true,
        master: 100,
        forwarding: true,
        ..Link::default()
    }
}

impl Agent {
    /// On a host that routes nothing.
    pub fn start(directory: &Path) -> Self {
        Self::routing(directory, |_| None)
    }

    /// On a host that sends to addresses by the interfaces that `route` names.
    pub fn routing(directory: &Path, route: fn(IpAddr) -> Option<u32>) -> Self {
        Self::with(directory, |config| config.route = route)
    }

    /// With another configuration.
    pub fn with(directory: &Path, change: impl FnOnce(&mut Setup)) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let mut setup = Setup {
            policy: Source::default_path(directory.join("policy.toml")),
            taps: |_| Ok((1..10).map(|number| (number, format!("tap{number}"))).collect()),
            route: |_| None,
            vfio: Vfio::default(),
        };
        change(&mut setup);
        let backend = Backend {
            patterns: Vec::new(),
            guests: Vec::new(),
            taps: setup.taps,
            prepared: PREPARED,
            vfio: setup.vfio,
        };
        let config = Config {
            policy: setup.policy,
            state: directory.join("guests.json"),
            route: setup.route,
            backend: Box::new(backend),
        };
        let (broker, events, inbox) =
            Broker::new(config, Arc::new(Counters::default())).expect("a broker");
        runtime.spawn(broker.run(inbox));
        let agent = Self { runtime, events };
        agent.send(Event::Links(network()));
        agent
    }

    pub fn send(&self, event: Event) {
        assert!(self.events.blocking_send(event).is_ok(), "the broker has ended");
    }

    /// Where its events go, for who does not wait.
    #[allow(dead_code)]
    pub fn events(&self) -> mpsc::Sender<Event> {
        self.events.clone()
    }

    pub fn ask(&self, request: Request) -> Result<Value, Problem> {
        let answer = self.runtime.block_on(server::ask(&self.events, request))?;
        Ok(serde_json::to_value(answer).expect("JSON"))
    }

    pub fn attach(&self, qemu: &Qemu) {
        self.ask(Request::Attach { qmp: qemu.path.clone(), name: None }).expect("attached");
    }

    /// Has it go by another policy.
    #[allow(dead_code)]
    pub fn policy(&self, directory: &Path, text: &str) {
        std::fs::write(directory.join("policy.toml"), text).expect("a policy");
        self.ask(Request::PolicyReload).expect("a good one");
    }

    #[allow(dead_code)]
    pub fn list(&self, request: Request) -> Listing {
        serde_json::from_value(self.ask(request).expect("a listing")).expect("a listing")
    }

    #[allow(dead_code)]
    pub fn channels(&self) -> usize {
        self.list(Request::List).channels.len()
    }

    /// As SIGKILL does: nothing is put in order.
    #[allow(dead_code)]
    pub fn kill(self) {
        self.runtime.shutdown_background();
    }
}

/// Guests 1 and 2, not attached yet, and an agent.
pub fn two_guests() -> (tempfile::TempDir, Qemu, Qemu, Agent) {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (Qemu::start(directory.path(), 1), Qemu::start(directory.path(), 2));
    let agent = Agent::start(directory.path());
    (directory, one, two, agent)
}

/// Two guests that know of each other.
#[allow(dead_code)]
pub fn meet<'a>(agent: &Agent, one: &'a Qemu, two: &'a Qemu) -> (Modules<'a>, Modules<'a>) {
    agent.attach(one);
    agent.attach(two);
    let mut a = Modules::load(one, 11, [10, 0, 0, 1]);
    let mut b = Modules::load(two, 22, [10, 0, 0, 2]);
    wait("a directory with the other's address", || {
        a.hear();
        b.hear();
        [&a, &b].iter().all(|m| m.directory.len() == 1 && m.directory[0].ip_count == 1)
    });
    (a, b)
}

/// A channel between them, up on both sides.
pub fn link(a: &mut Modules<'_>, b: &mut Modules<'_>, one: &Qemu, two: &Qemu) -> u32 {
    let peer = a.directory[0];
    a.want(&peer);
    wait("a tag", || {
        a.hear();
        b.hear();
        a.directory[0].tag != 0 && a.directory[0].tag == b.directory[0].tag
    });
    let tag = a.directory[0].tag;
    let device = format!("vmloop-ch-{tag}");
    wait("channel devices", || one.has(&device) && two.has(&device));
    a.state(tag, shm::VMLOOP_STATE_UP);
    b.state(tag, shm::VMLOOP_STATE_UP);
    tag
}
