// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The one task that decides: who is here, who may talk, which channels there
//! are. Everything that waits for a guest or for a hypervisor happens in other
//! tasks, which send [`Event`]s here.
//!
//! [`Broker`] holds the state: `guests`, `channels`, and who of the API's clients
//! waits for what (`waiters`). The other files decide, each above those before
//! it: `directories`, `closing`, `opening`, `describe`, `explain`, `migration`, `attaching`,
//! `hearing`, `recovery`, `api`, `timers`, and `run`, which hears all events.

mod api;
mod attaching;
mod back_off;
mod channels;
mod closing;
mod describe;
mod directories;
mod due;
mod explain;
mod guests;
mod hearing;
mod migration;
mod opening;
mod recovery;
mod run;
mod scene;
mod timers;
mod waiters;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::{broadcast, mpsc};
use tokio::time::Instant;
use tracing::{error, info};
use vmloop_abi::message::TAG_MAX;
use vmloop_api::{self as api_types, EventKind};
use vmloop_policy::in_force::{InForce, Source, State};

use crate::answer::Reply;
use crate::backend::{Backend, Capabilities};
use crate::breaks::{Breaks, Pair};
use crate::counters::Counters;
use crate::event::{Event, Post};
use crate::machine::Key;
use crate::network::judge::Judge;
use crate::network::links::Links;
use crate::state::{self, Saved};
use back_off::BackOffs;
use channels::Channels;
use due::{Deadlines, Due};
use guests::{Guests, Phase};
use scene::Scene;
use waiters::Waiters;

/// What the broker is made of.
pub struct Config {
    /// where the policy is
    pub policy: Source,
    /// file of the soft state
    pub state: PathBuf,
    /// index of the interface by which the host sends to an address
    pub route: fn(IpAddr) -> Option<u32>,
    /// the hypervisor
    pub backend: Box<dyn Backend>,
}

/// Counters that were asked for, and have not all come.
struct Collecting {
    cookie: u32,
    waiting: HashSet<Key>,
    deadline: Instant,
    replies: Vec<Reply>,
}

/// The guests of an earlier agent that are waited for.
struct Recovering {
    waiting: HashSet<Key>,
    /// Those that have not said anything.
    mute: HashSet<Key>,
    /// Until when those are waited for that have.
    until: Instant,
    /// Until when those are waited for that have not.
    mute_until: Instant,
}

impl Recovering {
    /// One need not be waited for any more.
    fn settled(&mut self, key: Key) {
        self.waiting.remove(&key);
        self.mute.remove(&key);
    }

    /// When to decide without those that are not here.
    fn deadline(&self) -> Instant {
        if self.waiting.is_subset(&self.mute) {
            self.mute_until.min(self.until)
        } else {
            self.until
        }
    }
}

/// See the module.
pub struct Broker {
    state: PathBuf,
    route: fn(IpAddr) -> Option<u32>,
    backend: Box<dyn Backend>,
    capabilities: Capabilities,
    post: Post,
    log: broadcast::Sender<api_types::Event>,
    started: Instant,
    /// tag that was given last
    last_tag: u32,
    policy: InForce,
    links: Links,
    have_links: bool,
    /// Goes by the filters in `links`.
    judge: Judge,
    /// What the host's routing said, until it changes.
    routes: HashMap<IpAddr, Option<u32>>,
    guests: Guests,
    channels: Channels,
    back_off: BackOffs,
    breaks: Breaks,
    waiters: Waiters,
    collecting: Option<Collecting>,
    /// None once it is decided which channels of an earlier agent stay.
    recovering: Option<Recovering>,
    /// Guests of an earlier agent that are neither attached nor known to be gone:
    /// the soft state keeps them.
    awaited: HashMap<Key, Saved>,
    /// When guests that have not said HELLO lose the channels they had.
    return_by: Option<Instant>,
    next_key: u64,
    next_claim: u64,
    next_cookie: u32,
    due: Due,
    deadlines: Deadlines,
    /// What directories are made of, as of the last time that they were.
    scene: Option<Arc<Scene>>,
    /// By what all were told last; None if policy or network are others since.
    told: Option<Arc<Scene>>,
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Says in the log which policy is in force.
fn say_policy(policy: &InForce) {
    let file = policy.source().path.display();
    match policy.state() {
        State::File => info!(%file, "policy: {}", policy.summary()),
        State::None => info!(%file, "policy: there is none; {}", policy.summary()),
        State::LastGood => {
            error!(error = policy.error(), "policy: the last good one stays in force");
        }
        State::Denied => {
            error!(error = policy.error(), "policy: nobody may talk before a good one is there");
        }
    }
}

impl Broker {
    /// A broker, and where to send events.
    ///
    /// # Errors
    /// Those of getrandom(2).
    pub fn new(
        config: Config,
        counters: Arc<Counters>,
    ) -> anyhow::Result<(Self, mpsc::Sender<Event>, mpsc::Receiver<Event>)> {
        let policy = InForce::start(config.policy);
        say_policy(&policy);
        let (events, inbox) = mpsc::channel(1024);
        let mut number = [0; 8];
        rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
        let agent = u64::from_le_bytes(number).max(1);
        let capabilities = config.backend.capabilities();
        // What guests wrote of an earlier agent's channels may still stand there.
        let last_tag = if capabilities.finds_all { (agent % u64::from(TAG_MAX)) as u32 } else { 0 };
        let broker = Self {
            state: config.state,
            route: config.route,
            backend: config.backend,
            capabilities,
            post: Post { events: events.clone(), counters, agent },
            log: broadcast::channel(256).0,
            started: Instant::now(),
            last_tag,
            policy,
            links: Links::default(),
            have_links: false,
            judge: Judge::default(),
            routes: HashMap::new(),
            guests: Guests::default(),
            channels: Channels::default(),
            back_off: BackOffs::default(),
            breaks: Breaks::default(),
            waiters: Waiters::default(),
            collecting: None,
            recovering: None,
            awaited: HashMap::new(),
            return_by: None,
            next_key: 1,
            next_claim: 1,
            // Others than those of an earlier agent, which guests may remember.
            next_cookie: (agent >> 32) as u32,
            due: Due::default(),
            deadlines: Deadlines::default(),
            scene: None,
            told: None,
        };
        Ok((broker, events, inbox))
    }

    /// Where changes are told.
    pub fn log(&self) -> broadcast::Sender<api_types::Event> {
        self.log.clone()
    }

    /// The hypervisor.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// A key that was never used.
    fn new_key(&mut self) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        key
    }

    fn note(&self, event: EventKind, guest: &str, peer: &str, tag: u32, detail: &str) {
        info!(event = <&str>::from(event), guest, peer, tag, detail);
        // Fails only if nobody listens.
        let _ = self.log.send(api_types::Event {
            time: seconds(SystemTime::now()),
            event,
            guest: guest.into(),
            peer: peer.into(),
            tag,
            detail: detail.into(),
        });
    }

    /// Identities of two guests, the lower one first.
    fn pair(&self, a: Key, b: Key) -> Option<Pair> {
        let (a, b) = (self.guests.get(a)?.machine.id, self.guests.get(b)?.machine.id);
        Some((a.min(b), a.max(b)))
    }

    /// Writes the soft state, where there is any.
    fn save(&self) {
        if self.recovering.is_some() || self.capabilities.finds_all {
            return;
        }
        let guests: Vec<Saved> = self
            .guests
            .in_order()
            .filter(|(_, guest)| guest.phase != Phase::Detaching)
            .map(|(_, guest)| (&guest.path, &guest.name))
            .chain(self.guests.arriving.values().map(|arrival| (&arrival.path, &arrival.name)))
            .map(|(qmp, name)| Saved { qmp: qmp.clone(), name: Some(name.clone()) })
            .chain(self.awaited.values().cloned())
            .collect();
        if let Err(error) = state::write(&self.state, &guests) {
            error!(file = %self.state.display(), %error, "soft state");
        }
    }

    /// Sends guests their directories again: they ask again for what was refused.
    fn tell_again(&mut self, whom: impl Fn(u64) -> bool) {
        for (key, guest) in self.guests.iter_untold().filter(|(_, one)| whom(one.machine.id)) {
            guest.again = true;
            self.due.some([key]);
        }
    }
}
