// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The one task that decides: who is here, who may talk, which channels there
//! are. Everything that waits for a guest or for a hypervisor happens in other
//! tasks, which send [`Event`]s here.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error, info, warn};
use vmloop_abi::message::{self, Address, AgentMessage, ChannelState, GuestMessage, TAG_MAX};
use vmloop_abi::shm;
use vmloop_api::{self as api, Problem, Request};
use vmloop_policy::Who;
use vmloop_policy::in_force::{InForce, Source, State};

use crate::breaks::Breaks;
use crate::channel::{self, ChannelKey, Failure, News};
use crate::counters::Counters;
use crate::directory::{Member, View, free_tag, routed_number};
use crate::guest;
use crate::hypervisor::{Bucket, Command, Connected, Directory, Found, Handle, Key, Machine, Nic};
use crate::links::{Links, Port};
use crate::machine::{Moving, Taps, format_mac};
use crate::state::{self, Saved};
use crate::xen::{self, Domain};

/// How long the agent waits for the guests of an earlier one to be attached
/// before it decides which channels to keep.
const RECOVERY: Duration = Duration::from_secs(30);
/// How long guests may take to say HELLO after that before their channels are
/// closed.
const RETURN: Duration = Duration::from_secs(30);
/// How long guests may take to send their counters.
const STATS: Duration = Duration::from_millis(300);
/// The same on Xen, where each of them is a request to XenStore.
const STATS_XEN: Duration = Duration::from_secs(1);
/// A pair whose channel lived shorter than this has to wait for the next.
const SHORT_LIFE: Duration = Duration::from_secs(5);
/// Longest time that a pair must wait after failures.
const BACK_OFF_MAX: Duration = Duration::from_secs(60);
/// How long a client waits for a guest to be attached or detached.
const PATIENCE: Duration = Duration::from_secs(20);
/// Wait after a lack of slots.
const SLOTS_RETRY: Duration = Duration::from_secs(30);
/// What a guest is told that is to ask again soon.
const BUSY: (u32, Duration) = (shm::VMLOOP_REFUSED_BUSY, Duration::from_secs(1));
/// Who wanted a channel to a machine that is not here yet wants it for so long;
/// they ask again with each frame, but no more than every second, and TCP tries
/// less and less often.
const FRESH: Duration = Duration::from_secs(10);
/// How long the HELLO of a guest that has just arrived is waited for.
const HELLO: Duration = Duration::from_secs(15);
/// How long a guest that was told to shut down or to suspend gets no new
/// channels; if it is still there then, it did not obey.
const LEAVING: Duration = Duration::from_secs(10);
/// Stands for the first look at all domains among the guests of an earlier
/// agent that are waited for. No attachment has this number.
const ALL_DOMAINS: Key = 0;

/// Everything that the broker hears.
pub enum Event {
    /// A client of the API asks.
    Api(Request, oneshot::Sender<Result<Value, Problem>>),
    /// Attach to a QMP socket, unless that was done already; from the watch.
    Appeared {
        /// the socket
        path: PathBuf,
        /// name from the configuration
        name: Option<String>,
        /// how it went
        reply: oneshot::Sender<Result<Value, Problem>>,
    },
    /// Domains have come or gone; from Xen. The first of these names all.
    Domains {
        /// domains that are new
        come: Vec<Domain>,
        /// domains that are not there any more
        gone: Vec<Domain>,
    },
    /// An operator has detached this domain some time ago; its task ends.
    Excluded {
        /// the guest
        key: Key,
        /// what it is
        machine: Box<Machine>,
    },
    /// A guest's task has connected.
    Connected(Box<Connected>),
    /// A guest can be told who is here, or as soon as it has booted.
    Attached {
        /// the guest
        key: Key,
    },
    /// A guest's modules are not there any more.
    Away {
        /// the guest
        key: Key,
    },
    /// A guest said something.
    Guest {
        /// the guest
        key: Key,
        /// what
        message: GuestMessage,
    },
    /// A channel's device is gone, by our doing or somebody else's.
    Unplugged {
        /// the guest
        key: Key,
        /// tag of the channel
        tag: u32,
    },
    /// A guest's interfaces.
    Nics {
        /// the guest
        key: Key,
        /// all of them
        nics: Vec<Nic>,
    },
    /// A guest's name, which may be another one now.
    Renamed {
        /// the guest
        key: Key,
        /// the name
        name: String,
    },
    /// A guest was told to end, or to let itself be saved.
    Leaving {
        /// the guest
        key: Key,
        /// what it was told
        why: &'static str,
    },
    /// A guest has made a channel's region; Xen only.
    Offer {
        /// the guest
        key: Key,
        /// tag of the channel
        tag: u32,
        /// grant of the region's descriptor
        gref: u32,
        /// event channel
        port: u32,
    },
    /// A guest could not make a channel's region, or map it; Xen only.
    Fail {
        /// the guest
        key: Key,
        /// tag of the channel
        tag: u32,
        /// an error's number
        errno: u32,
    },
    /// A machine is being migrated to here; it is attached when it runs.
    Arriving {
        /// the attachment
        key: Key,
        /// the name that it will have
        name: String,
        /// what it will be
        machine: Box<Machine>,
        /// to be dropped if it is not wanted
        stop: oneshot::Sender<()>,
    },
    /// A guest has no control device any more, and may be migrated, or is.
    Standby {
        /// the guest
        key: Key,
        /// what QEMU does with it
        moving: Moving,
    },
    /// A guest that stood by stays: its control device comes back.
    Returning {
        /// the guest
        key: Key,
    },
    /// A guest's task has ended.
    Left {
        /// the guest
        key: Key,
        /// why it could not be attached; None if it was
        problem: Option<Problem>,
    },
    /// News of a channel.
    Channel {
        /// the channel
        key: ChannelKey,
        /// what
        news: News,
    },
    /// A device of an earlier agent is gone.
    OrphanGone {
        /// the guest
        key: Key,
        /// tag of the channel
        tag: u32,
    },
    /// The host's network changed.
    Links(Links),
    /// SIGHUP
    Reload,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Connected; the control device is not plugged yet.
    Attaching,
    Attached,
    /// Channels are being closed, for a migration.
    Preparing,
    /// The control device is being unplugged, for a migration.
    Parting,
    /// Nothing of ours is in the machine.
    Standby,
    /// The control device is being plugged again.
    Returning,
    /// Channels are being closed, then the control device goes.
    Detaching,
}

/// Who waits for a guest to be prepared.
struct Waiter {
    /// where to migrate it then; None if somebody else does
    uri: Option<String>,
    reply: oneshot::Sender<Result<Value, Problem>>,
}

/// A machine that is being migrated to here. Its neighbours know of it already:
/// who has frames for it asks for a channel, which is made as soon as it is here.
struct Arrival {
    machine: Machine,
    name: String,
    path: PathBuf,
    /// Guests that want a channel to it, and when they last said so.
    wanted: HashMap<Key, Instant>,
    /// Its task ends when this is dropped.
    _stop: oneshot::Sender<()>,
}

struct Hello {
    version: String,
    kernel: String,
    features: u64,
}

struct Guest {
    machine: Machine,
    name: String,
    path: PathBuf,
    phase: Phase,
    handle: Handle,
    hello: Option<Hello>,
    addresses: Vec<(Address, u64)>,
    /// It has said its addresses to this agent.
    advertised: bool,
    /// Addresses by which others reach it through the host.
    routed: Vec<Address>,
    /// Tags of an earlier agent's channels, until they are adopted or gone.
    found: Vec<Found>,
    orphans: HashSet<u32>,
    go: Option<oneshot::Sender<Result<(), Problem>>>,
    /// Guests that wanted a channel to it before it was here, and when.
    awaited_by: HashMap<Key, Instant>,
    /// When it has arrived, and has not spoken yet: until when neighbours are
    /// told of it all the same. Xen only; elsewhere it is no guest before.
    arrived: Option<Instant>,
    wants: Bucket,
    rescans: Bucket,
    told: Directory,
    disputes: HashSet<IpAddr>,
    /// Until when it is believed that it will end, or be saved.
    leaving: Option<Instant>,
    /// When its preparation began.
    preparing: Instant,
    /// What QEMU does with it, while it stands by.
    moving: Moving,
    /// Whether [`Command::Migrate`] began what it does.
    ours: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Plugging,
    Open,
    /// CLOSE was sent; the tag is still in the directories.
    Closing,
    Unplugging,
}

struct ChannelSide {
    guest: Key,
    id: u64,
    name: String,
    state: Option<ChannelState>,
    gone: bool,
    stats: Option<(u32, message::Counters)>,
}

struct Channel {
    tag: u32,
    sides: [ChannelSide; 2],
    stage: Stage,
    stuck: bool,
    reason: Option<u32>,
    failure: Option<(u32, String)>,
    wanted_by: HashSet<Key>,
    ring_size: u32,
    since: Instant,
    adopted: bool,
    /// When both sides used it first.
    up_since: Option<Instant>,
    /// When it was told to end: a guest that keeps its device is not up by that.
    up_until: Option<Instant>,
    /// Side that said that the other broke the protocol.
    broken_by: Option<usize>,
    /// A guest goes, or went and may be back already: if it lived short, that
    /// is no failure.
    parted: bool,
    /// A side has just arrived: until when it may say HELLO.
    hello_by: Option<Instant>,
    commands: mpsc::UnboundedSender<channel::Command>,
}

/// How a channel ended, for the next one of its pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// After a while, or because a guest went.
    Well,
    /// It worked, and was closed soon: somebody turns vmloop off and on, loads
    /// the modules again, changes a policy.
    Short,
    /// It never worked.
    Failed,
}

#[derive(Clone, Copy)]
struct BackOff {
    failures: u32,
    until: Instant,
}

impl BackOff {
    /// What counts as failures of a pair in a row. Those of channels that
    /// worked make it wait as long as a channel may be short-lived, no longer:
    /// nobody waits a minute for having been quick, and a guest that closes
    /// each channel at once troubles its peer no more often than one that
    /// keeps each until it counts as well.
    fn count(before: u32, ending: Ending) -> u32 {
        match ending {
            Ending::Well => 0,
            Ending::Short => (before + 1).min(3),
            Ending::Failed => before + 1,
        }
    }

    /// How long a pair with so many failures waits.
    fn wait(failures: u32) -> Duration {
        Duration::from_secs(1 << failures.saturating_sub(1).min(6)).min(BACK_OFF_MAX)
    }
}

struct Collecting {
    cookie: u32,
    waiting: HashSet<Key>,
    deadline: Instant,
    replies: Vec<oneshot::Sender<Result<Value, Problem>>>,
}

/// What the broker is made of.
pub struct Config {
    /// where the policy is
    pub policy: Source,
    /// file of the soft state
    pub state: PathBuf,
    /// how to find the taps of a process
    pub taps: fn(u32) -> Taps,
    /// index of the interface by which the host sends to an address
    pub route: fn(IpAddr) -> Option<u32>,
    /// XenStore, on a Xen host; otherwise guests are QEMUs
    pub xen: Option<vmloop_xenstore::Store>,
    /// how long a guest that was prepared waits for its migration
    pub prepared: Duration,
}

/// A domain that is there.
struct DomainEntry {
    /// its guest, if it is attached
    key: Option<Key>,
    /// tells its task when it is gone
    gone: watch::Sender<bool>,
    /// what it is, if an operator has detached it
    excluded: Option<Machine>,
}

/// See the module.
pub struct Broker {
    config: Config,
    events: mpsc::Sender<Event>,
    counters: Arc<Counters>,
    log: broadcast::Sender<api::Event>,
    started: Instant,
    agent: u64,
    /// tag that was given last
    last_tag: u32,
    policy: InForce,
    links: Links,
    have_links: bool,
    /// What the host's routing said, until it changes.
    routes: HashMap<IpAddr, Option<u32>>,
    guests: HashMap<Key, Guest>,
    /// In the order in which they came.
    order: Vec<Key>,
    /// Sockets of guests that are attached or about to be.
    paths: HashMap<Key, PathBuf>,
    /// Domains, on Xen.
    domains: HashMap<Domain, DomainEntry>,
    channels: HashMap<ChannelKey, Channel>,
    back_off: HashMap<(u64, u64), BackOff>,
    breaks: Breaks,
    attaching: HashMap<Key, oneshot::Sender<Result<Value, Problem>>>,
    detaching: HashMap<Key, Vec<oneshot::Sender<Result<Value, Problem>>>>,
    preparing: HashMap<Key, Vec<Waiter>>,
    resuming: HashMap<Key, Vec<oneshot::Sender<Result<Value, Problem>>>>,
    /// Machines that are not guests yet.
    arriving: HashMap<Key, Arrival>,
    /// Until when clients wait for a guest that is attached or detached.
    patience: HashMap<Key, Instant>,
    collecting: Option<Collecting>,
    /// Guests of an earlier agent that are not attached yet, and until when to
    /// wait for them. None once it is decided which channels stay.
    recovering: Option<(HashSet<Key>, Instant)>,
    /// When guests that have not said HELLO lose the channels they had.
    return_by: Option<Instant>,
    next_key: u64,
    next_claim: u64,
    next_cookie: u32,
    dirty: bool,
}

fn hex(id: u64) -> String {
    format!("{id:016x}")
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

/// Says in the log why it is not known which interfaces of the host a guest has.
fn say_unknown(name: &str, machine: &Machine) {
    let mut whys: Vec<_> = machine.nics.iter().filter_map(|nic| nic.unknown.as_ref()).collect();
    whys.dedup();
    for why in whys {
        error!(guest = name, "no channels: {why}");
    }
}

fn close_reason(reason: u32) -> &'static str {
    match reason {
        shm::VMLOOP_CLOSE_IDLE => "idle",
        shm::VMLOOP_CLOSE_POLICY => "policy",
        shm::VMLOOP_CLOSE_PEER_GONE => "peer gone",
        shm::VMLOOP_CLOSE_MIGRATION => "migration",
        shm::VMLOOP_CLOSE_DETACH => "detach",
        _ => "?",
    }
}

fn state_name(state: Option<ChannelState>) -> &'static str {
    match state {
        None => "none",
        Some(ChannelState::Up) => "up",
        Some(ChannelState::Idle) => "idle",
        Some(ChannelState::Closed) => "closed",
        Some(ChannelState::Broken) => "broken",
    }
}

fn describe_arrival(arrival: &Arrival) -> api::Guest {
    api::Guest {
        name: arrival.name.clone(),
        id: hex(arrival.machine.id),
        epoch: hex(arrival.machine.epoch),
        uuid: arrival.machine.uuid.clone().unwrap_or_default(),
        qmp: arrival.path.clone(),
        pid: arrival.machine.pid,
        machine: arrival.machine.kind_name.clone(),
        state: "arriving".into(),
        ..api::Guest::default()
    }
}

impl Channel {
    fn side_of(&self, guest: Key) -> Option<usize> {
        self.sides.iter().position(|side| side.guest == guest)
    }

    fn is_between(&self, a: Key, b: Key) -> bool {
        self.side_of(a).is_some() && self.side_of(b).is_some()
    }

    fn state(&self) -> &'static str {
        match self.stage {
            Stage::Plugging => "plugging",
            Stage::Open
                if self.sides.iter().all(|side| {
                    matches!(side.state, Some(ChannelState::Up | ChannelState::Idle))
                }) =>
            {
                "up"
            }
            Stage::Open => "open",
            _ if self.stuck => "stuck",
            Stage::Closing | Stage::Unplugging => "closing",
        }
    }
}

impl Guest {
    /// Runs the modules, and stays: it may have channels.
    fn is_ready(&self) -> bool {
        self.hello.is_some() && self.phase == Phase::Attached && self.leaving.is_none()
    }

    /// Its name here; while a domain is on its way, the one that it will have.
    fn who(&self) -> Who<'_> {
        let name = self.incoming().unwrap_or(&self.name);
        Who { name, uuid: self.machine.uuid.as_deref().unwrap_or_default() }
    }

    /// The name that it will have, if it is a domain on its way to here.
    fn incoming(&self) -> Option<&str> {
        if self.hello.is_some() { None } else { xen::guest::incoming(&self.machine, &self.name) }
    }

    /// A domain that is on its way, or has just arrived: neighbours may ask for
    /// channels. They are begun at once where the neighbour makes the region, or
    /// when it speaks.
    fn is_coming(&self) -> bool {
        self.phase == Phase::Attached
            && self.hello.is_none()
            && (self.arrived.is_some() || self.incoming().is_some())
    }

    fn send(&self, message: AgentMessage) {
        // Fails only if its task has ended, and then there is nobody to tell.
        let _ = self.handle.commands.send(Command::Send(message));
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
        let policy = InForce::start(config.policy.clone());
        say_policy(&policy);
        let (events, inbox) = mpsc::channel(1024);
        let mut number = [0; 8];
        rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
        let agent = u64::from_le_bytes(number).max(1);
        // What guests of Xen wrote of an earlier agent's channels still stands there.
        let last_tag = if config.xen.is_some() { (agent % u64::from(TAG_MAX)) as u32 } else { 0 };
        let broker = Self {
            config,
            events: events.clone(),
            counters,
            log: broadcast::channel(256).0,
            started: Instant::now(),
            agent,
            last_tag,
            policy,
            links: Links::default(),
            have_links: false,
            routes: HashMap::new(),
            guests: HashMap::new(),
            order: Vec::new(),
            paths: HashMap::new(),
            domains: HashMap::new(),
            channels: HashMap::new(),
            back_off: HashMap::new(),
            breaks: Breaks::default(),
            attaching: HashMap::new(),
            detaching: HashMap::new(),
            preparing: HashMap::new(),
            resuming: HashMap::new(),
            arriving: HashMap::new(),
            patience: HashMap::new(),
            collecting: None,
            recovering: None,
            return_by: None,
            next_key: 1,
            next_claim: 1,
            // Others than those of an earlier agent, which guests may remember.
            next_cookie: (agent >> 32) as u32,
            dirty: false,
        };
        Ok((broker, events, inbox))
    }

    /// Where changes are told.
    pub fn log(&self) -> broadcast::Sender<api::Event> {
        self.log.clone()
    }

    /// Runs until nobody can send events any more.
    pub async fn run(mut self, mut inbox: mpsc::Receiver<Event>) {
        self.recover();
        loop {
            let deadline = [
                self.collecting.as_ref().map(|collecting| collecting.deadline),
                self.recovering.as_ref().map(|(_, until)| *until),
                self.return_by,
                self.patience.values().min().copied(),
                self.guests.values().filter_map(|guest| guest.leaving).min(),
                self.guests.values().filter_map(|guest| guest.arrived).min(),
                self.channels.values().filter_map(|channel| channel.hello_by).min(),
                self.channels.values().filter_map(|channel| self.row_ends(channel)).min(),
            ]
            .into_iter()
            .flatten()
            .min();
            tokio::select! {
                event = inbox.recv() => match event {
                    Some(event) => self.handle(event),
                    None => return,
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {}
            }
            // What came in a burst is looked at once.
            for _ in 0..256 {
                let Ok(event) = inbox.try_recv() else { break };
                self.handle(event);
            }
            self.deadlines(Instant::now());
            if self.dirty {
                self.dirty = false;
                self.refresh();
            }
        }
    }

    fn note(&self, event: &str, guest: &str, peer: &str, tag: u32, detail: &str) {
        info!(event, guest, peer, tag, detail);
        // Fails only if nobody listens.
        let _ = self.log.send(api::Event {
            time: seconds(SystemTime::now()),
            event: event.into(),
            guest: guest.into(),
            peer: peer.into(),
            tag,
            detail: detail.into(),
        });
    }

    // ---- attaching and detaching

    fn recover(&mut self) {
        let until = Instant::now() + RECOVERY;
        if self.config.xen.is_some() {
            // XenStore knows all.
            self.recovering = Some((HashSet::from([ALL_DOMAINS]), until));
            return;
        }
        let saved = match state::read(&self.config.state) {
            Ok(saved) => saved,
            Err(error) => {
                warn!(file = %self.config.state.display(), %error, "soft state");
                Vec::new()
            }
        };
        let mut waiting = HashSet::new();
        for Saved { qmp, name } in saved {
            let (reply, _) = oneshot::channel();
            if let Some(key) = self.attach(qmp, name, reply, Some(until)) {
                waiting.insert(key);
            }
        }
        if !waiting.is_empty() {
            info!(guests = waiting.len(), "attaching to the guests of an earlier agent");
            self.recovering = Some((waiting, until));
        }
    }

    fn attach(
        &mut self,
        path: PathBuf,
        name: Option<String>,
        reply: oneshot::Sender<Result<Value, Problem>>,
        retry_until: Option<Instant>,
    ) -> Option<Key> {
        let refuse = |reply: oneshot::Sender<_>, problem| {
            // Fails only if the client hung up.
            let _ = reply.send(Err(problem));
            None
        };
        if self.config.xen.is_some() {
            let problem = Problem::new("not-qemu", "this agent serves Xen domains, not QEMUs")
                .hint("domains are found by themselves; vmloop attach DOMAIN undoes vmloop detach");
            return refuse(reply, problem);
        }
        let path = path.canonicalize().unwrap_or(path);
        if self.paths.values().any(|other| *other == path) {
            let text = format!("{} is attached already", path.display());
            return refuse(reply, Problem::new("attached-already", text));
        }
        if let Some(name) = &name
            && let Some(problem) = self.name_problem(name)
        {
            return refuse(reply, problem);
        }
        let key = self.next_key;
        self.next_key += 1;
        self.paths.insert(key, path.clone());
        self.attaching.insert(key, reply);
        self.patience.insert(key, Instant::now() + PATIENCE);
        let task = guest::Task {
            key,
            path,
            name,
            events: self.events.clone(),
            counters: self.counters.clone(),
            taps: self.config.taps,
            retry_until,
            prepared: self.config.prepared,
        };
        tokio::spawn(task.run());
        Some(key)
    }

    /// Attaches a domain; `include` even if an operator has detached it.
    fn attach_domain(
        &mut self,
        domain: Domain,
        include: bool,
        reply: Option<oneshot::Sender<Result<Value, Problem>>>,
    ) -> Option<Key> {
        let store = self.config.xen.clone()?;
        let entry = self.domains.get_mut(&domain)?;
        let key = self.next_key;
        self.next_key += 1;
        entry.key = Some(key);
        entry.excluded = None;
        if let Some(reply) = reply {
            self.attaching.insert(key, reply);
            self.patience.insert(key, Instant::now() + PATIENCE);
        }
        let task = xen::guest::Task {
            key,
            domain,
            agent: self.agent,
            include,
            store,
            gone: entry.gone.subscribe(),
            events: self.events.clone(),
            counters: self.counters.clone(),
        };
        tokio::spawn(task.run());
        Some(key)
    }

    fn domains(&mut self, come: Vec<Domain>, gone: Vec<Domain>) {
        for domain in gone {
            if let Some(entry) = self.domains.remove(&domain) {
                entry.gone.send_replace(true);
            }
        }
        let mut attached = Vec::new();
        for domain in come {
            let entry = DomainEntry { key: None, gone: watch::channel(false).0, excluded: None };
            self.domains.insert(domain, entry);
            attached.extend(self.attach_domain(domain, false, None));
        }
        if let Some((waiting, _)) = &mut self.recovering
            && waiting.remove(&ALL_DOMAINS)
        {
            waiting.extend(attached);
        }
    }

    /// Attaches a domain again that was detached.
    fn include(&mut self, text: &str, reply: oneshot::Sender<Result<Value, Problem>>) {
        let problem = if self.config.xen.is_none() {
            Problem::new("not-xen", "this agent serves QEMUs, not Xen domains")
                .hint("attach to a machine with: vmloop attach --qmp SOCKET")
        } else if let Ok(key) = self.find(text) {
            let name = self.guests.get(&key).map(|guest| guest.name.clone()).unwrap_or_default();
            Problem::new("attached-already", format!("{name} is attached already"))
        } else {
            let wanted = text.to_ascii_lowercase();
            let found = self.domains.iter().find(|(domain, entry)| {
                entry.key.is_none()
                    && (domain.to_string() == text
                        || entry.excluded.as_ref().is_some_and(|machine| {
                            machine.name == text
                                || machine.uuid.as_deref() == Some(&*wanted)
                                || hex(machine.id) == wanted
                        }))
            });
            match found.map(|(domain, _)| *domain) {
                Some(domain) => {
                    self.attach_domain(domain, true, Some(reply));
                    return;
                }
                None => Problem::new("no-such-guest", format!("there is no domain {text:?}"))
                    .hint("see vmloop ls and xl list"),
            }
        };
        // Fails only if the client hung up.
        let _ = reply.send(Err(problem));
    }

    /// A name that no other guest has. While a domain is migrated within the
    /// host there are two of the same.
    fn domain_name(&self, machine: &Machine, name: &str) -> String {
        let name: String = name.chars().filter(|c| !c.is_control()).take(50).collect();
        let taken =
            self.guests.values().any(|guest| guest.name == name && guest.machine.id != machine.id);
        if taken || name.is_empty() { format!("{name}.{}", machine.id) } else { name }
    }

    fn renamed(&mut self, key: Key, name: &str) {
        let Some(guest) = self.guests.get(&key) else { return };
        let name = self.domain_name(&guest.machine, name);
        if guest.name == name {
            return;
        }
        let before = guest.name.clone();
        self.note("guest-renamed", &name, "", 0, &format!("it was {before}"));
        for side in self.channels.values_mut().flat_map(|channel| &mut channel.sides) {
            if side.guest == key {
                side.name.clone_from(&name);
            }
        }
        if let Some(guest) = self.guests.get_mut(&key) {
            if guest.incoming().is_some() {
                guest.arrived = Some(Instant::now() + HELLO);
            }
            guest.machine.name.clone_from(&name);
            guest.name = name;
            if guest.hello.is_some() {
                self.welcome(key);
            }
        }
        self.name_freed(&before);
        // The policy may say something else about it now.
        self.dirty = true;
    }

    /// Nobody has this name any more: the domain that wanted it can have it.
    fn name_freed(&self, name: &str) {
        if self.config.xen.is_none() {
            return;
        }
        let wanting = |guest: &&Guest| guest.name == format!("{name}.{}", guest.machine.id);
        if let Some(guest) = self.guests.values().find(wanting) {
            // Fails only if its task has ended.
            let _ = guest.handle.commands.send(Command::Rescan);
        }
    }

    /// A guest will end, or be saved: its channels are closed while it can
    /// still drain them.
    fn leaving(&mut self, key: Key, why: &str) {
        let Some(guest) = self.guests.get_mut(&key) else { return };
        guest.leaving = Some(Instant::now() + LEAVING);
        let name = guest.name.clone();
        self.note("guest-leaving", &name, "", 0, why);
        for channel in self.channels_of(key) {
            self.part(channel);
            self.close(channel, shm::VMLOOP_CLOSE_MIGRATION);
        }
        self.dirty = true;
    }

    fn part(&mut self, channel: ChannelKey) {
        if let Some(channel) = self.channels.get_mut(&channel) {
            channel.parted = true;
        }
    }

    fn name_problem(&self, name: &str) -> Option<Problem> {
        if name.is_empty() || name.len() > 63 || name.chars().any(char::is_control) {
            return Some(
                Problem::new("bad-name", format!("{name:?} cannot be the name of a guest"))
                    .hint("use 1 to 63 bytes without control characters"),
            );
        }
        self.guests.values().any(|guest| guest.name == name).then(|| {
            Problem::new("name-taken", format!("there is a guest {name:?} already"))
                .hint("give another name with --name")
        })
    }

    fn connected(&mut self, connected: Connected) {
        let Connected { key, machine, mut name, found, handle, go } = connected;
        let arrival = self.arriving.remove(&key);
        let arrived = arrival.is_some();
        self.dirty |= arrived;
        self.supersede(&machine);
        if self.config.xen.is_some() {
            name = self.domain_name(&machine, &name);
        }
        let problem = if let Some(other) =
            self.guests.values().find(|guest| guest.machine.id == machine.id)
        {
            Some(
                Problem::new(
                    "identity-taken",
                    format!(
                        "{} has the UUID of {}, which is attached",
                        self.paths
                            .get(&key)
                            .map(|path| path.display().to_string())
                            .unwrap_or_default(),
                        other.name
                    ),
                )
                .hint(
                    "each machine needs its own -uuid; a clone must not keep that of its original",
                ),
            )
        } else {
            self.name_problem(&name)
        };
        if let Some(problem) = problem {
            if arrived {
                warn!(guest = name, %problem, "it has arrived, and uses the standard network only");
            }
            // Its task may have ended.
            let _ = go.send(Err(problem));
            return;
        }
        let path = self.paths.get(&key).cloned().unwrap_or_default();
        let mut guest = Guest {
            machine,
            name,
            path,
            phase: Phase::Attaching,
            handle,
            hello: None,
            addresses: Vec::new(),
            advertised: false,
            routed: Vec::new(),
            found,
            orphans: HashSet::new(),
            go: Some(go),
            awaited_by: arrival.map(|arrival| arrival.wanted).unwrap_or_default(),
            arrived: None,
            wants: Bucket::new(2.0, 20.0),
            rescans: Bucket::new(0.2, 3.0),
            told: None,
            disputes: HashSet::new(),
            leaving: None,
            preparing: Instant::now(),
            moving: Moving::No,
            ours: false,
        };
        if let Some((waiting, _)) = &mut self.recovering {
            // The control device follows when it is clear which channels stay.
            waiting.remove(&key);
        } else {
            if let Some(go) = guest.go.take() {
                // Its task may have ended.
                let _ = go.send(Ok(()));
            }
            for found in std::mem::take(&mut guest.found) {
                guest.orphans.insert(found.tag);
                self.remove_orphan(key, &guest, &found);
            }
        }
        say_unknown(&guest.name, &guest.machine);
        self.guests.insert(key, guest);
        self.order.push(key);
    }

    fn remove_orphan(&self, key: Key, guest: &Guest, found: &Found) {
        info!(
            guest = guest.name,
            tag = found.tag,
            peer = hex(found.peer),
            "removing a channel without a peer"
        );
        let place = guest.handle.place.clone();
        let (events, found, name) = (self.events.clone(), found.clone(), guest.name.clone());
        tokio::spawn(async move {
            let tag = found.tag;
            place
                .remove(&found, move || {
                    warn!(guest = name, tag, "the guest keeps the device of an old channel");
                })
                .await;
            // Fails only when the agent ends.
            let _ = events.send(Event::OrphanGone { key, tag }).await;
        });
    }

    /// All guests of an earlier agent are here, or will not come: decides which
    /// of their channels stay.
    fn recovered(&mut self) {
        self.recovering = None;
        let seen: Vec<state::Seen<'_>> = self
            .order
            .iter()
            .filter_map(|key| {
                let guest = self.guests.get(key)?;
                Some(state::Seen {
                    key: *key,
                    id: guest.machine.id,
                    epoch: guest.machine.epoch,
                    found: &guest.found,
                })
            })
            .collect();
        let (kept, orphans) = state::match_channels(&seen);
        for (tag, a, b) in &kept {
            let key = self.make_channel(*tag, *a, *b, true);
            debug!(tag, channel = key, "kept");
        }
        for (key, found) in orphans {
            if let Some(guest) = self.guests.get_mut(&key) {
                guest.orphans.insert(found.tag);
            }
            if let Some(guest) = self.guests.get(&key) {
                self.remove_orphan(key, guest, &found);
            }
        }
        for guest in self.guests.values_mut() {
            guest.found.clear();
            if let Some(go) = guest.go.take() {
                // Its task may have ended.
                let _ = go.send(Ok(()));
            }
        }
        info!(guests = self.guests.len(), channels = kept.len(), "recovered");
        self.return_by = Some(Instant::now() + RETURN);
        self.dirty = true;
    }

    fn attached(&mut self, key: Key) {
        let Some(guest) = self.guests.get_mut(&key) else { return };
        // It may be about to go again, or for good.
        let known = match guest.phase {
            Phase::Attaching => false,
            Phase::Attached | Phase::Standby | Phase::Returning => true,
            Phase::Preparing | Phase::Parting | Phase::Detaching => return,
        };
        let was = std::mem::replace(&mut guest.phase, Phase::Attached);
        (guest.moving, guest.ours) = (Moving::No, false);
        let (name, machine) = (guest.name.clone(), guest.machine.kind_name.clone());
        if !known {
            self.note("guest-attached", &name, "", 0, &machine);
            self.save();
        } else if was != Phase::Attached {
            self.note("guest-returned", &name, "", 0, "");
        }
        self.patience.remove(&key);
        self.answer_attached(key);
        self.meet_all(key);
        self.dirty = true;
    }

    /// Tells who waits for a guest to be there that it is.
    fn answer_attached(&mut self, key: Key) {
        let value = self.guests.get(&key).map(|guest| self.describe(guest));
        let mut replies = self.resuming.remove(&key).unwrap_or_default();
        replies.extend(self.attaching.remove(&key));
        for reply in replies {
            // Fails only if the client hung up.
            let _ = reply.send(Ok(json!(value)));
        }
    }

    // ---- migrations

    /// The machine runs here in another QEMU now: the one that it has left is
    /// no guest any more.
    fn supersede(&mut self, machine: &Machine) {
        let left = self.guests.iter().find(|(_, guest)| {
            guest.machine.id == machine.id
                && guest.phase == Phase::Standby
                && guest.moving != Moving::No
        });
        let Some((key, guest)) = left else { return };
        // Fails only if its task has ended.
        let _ = guest.handle.commands.send(Command::Detach);
        self.left(*key, None);
    }

    fn arriving(&mut self, key: Key, name: String, machine: Machine, stop: oneshot::Sender<()>) {
        if let Some((waiting, _)) = &mut self.recovering {
            waiting.remove(&key);
        }
        let path = self.paths.get(&key).cloned().unwrap_or_default();
        self.note("guest-arriving", &name, "", 0, &machine.kind_name);
        let arrival = Arrival { machine, name, path, wanted: HashMap::new(), _stop: stop };
        let description = json!(describe_arrival(&arrival));
        self.patience.remove(&key);
        self.arriving.insert(key, arrival);
        // Before anybody is told: the next agent has to know of it as well.
        self.save();
        self.dirty = true;
        if let Some(reply) = self.attaching.remove(&key) {
            // Fails only if the client hung up.
            let _ = reply.send(Ok(description));
        }
    }

    /// Prepares a guest, and migrates it then if there is somewhere to.
    fn prepare(&mut self, key: Key, waiter: Waiter) {
        let refuse = |waiter: Waiter, code, text: String, hint: &str| {
            // Fails only if the client hung up.
            let _ = waiter.reply.send(Err(Problem::new(code, text).hint(hint)));
        };
        let recovering = self.recovering.is_some();
        let Some(guest) = self.guests.get_mut(&key) else { return };
        let name = guest.name.clone();
        if self.config.xen.is_some() {
            let text = "Xen domains need no preparation".into();
            return refuse(
                waiter,
                "not-qemu",
                text,
                "use xl migrate or xl save; the agent notices",
            );
        }
        match guest.phase {
            Phase::Attaching | Phase::Detaching => {
                let text = format!("{name} is being attached or detached");
                return refuse(waiter, "busy", text, "try again when vmloop ls says otherwise");
            }
            _ if recovering => {
                let text = "the agent has just started".into();
                return refuse(waiter, "busy", text, "try again in a moment");
            }
            Phase::Standby if guest.moving != Moving::No => {
                let text = format!("{name} is being migrated, or has left");
                return refuse(waiter, "migrating", text, "see vmloop ls");
            }
            Phase::Attached => {
                guest.phase = Phase::Preparing;
                guest.preparing = Instant::now();
            }
            // Its task says so again, or for how long it stays so.
            Phase::Standby | Phase::Returning => {
                guest.phase = Phase::Parting;
                guest.preparing = Instant::now();
                // Fails only if its task has ended.
                let _ = guest.handle.commands.send(Command::Prepare);
            }
            Phase::Preparing | Phase::Parting => {}
        }
        self.preparing.entry(key).or_default().push(waiter);
        self.patience.insert(key, Instant::now() + PATIENCE);
        if self.guests.get(&key).is_some_and(|guest| guest.phase == Phase::Preparing) {
            self.note("guest-preparing", &name, "", 0, "");
            for channel in self.channels_of(key) {
                self.part(channel);
                self.close(channel, shm::VMLOOP_CLOSE_MIGRATION);
            }
            self.finish_prepare(key);
        }
        self.dirty = true;
    }

    /// Lets the control device go once the guest has no channel any more.
    fn finish_prepare(&mut self, key: Key) {
        let busy = self.has_ends(key);
        let Some(guest) = self.guests.get_mut(&key) else { return };
        if guest.phase == Phase::Preparing && !busy && guest.orphans.is_empty() {
            guest.phase = Phase::Parting;
            // Fails only if its task has ended.
            let _ = guest.handle.commands.send(Command::Prepare);
        }
    }

    fn answer_prepared(&mut self, key: Key, answer: &Result<Value, Problem>) {
        for waiter in self.preparing.remove(&key).unwrap_or_default() {
            // Fails only if the client hung up.
            let _ = waiter.reply.send(answer.clone());
        }
    }

    /// A guest stands by; or QEMU does something else with it.
    fn standby(&mut self, key: Key, moving: Moving) {
        let Some(guest) = self.guests.get_mut(&key) else { return };
        let before = std::mem::replace(&mut guest.moving, moving);
        match guest.phase {
            // It was found so: an earlier agent prepared it.
            Phase::Attaching | Phase::Parting => guest.phase = Phase::Standby,
            // It hears soon that it is to return, unless it cannot.
            Phase::Returning if moving != Moving::No => guest.phase = Phase::Standby,
            Phase::Standby => {}
            _ => return,
        }
        let (began, ours) = (guest.preparing, guest.ours);
        let name = guest.name.clone();
        match moving {
            Moving::No | Moving::In => {
                let took = format!("after {} ms", began.elapsed().as_millis());
                self.note("guest-prepared", &name, "", 0, &took);
            }
            Moving::Out if before != moving => self.note("guest-migrating", &name, "", 0, ""),
            Moving::Left if before != moving => self.note("guest-departed", &name, "", 0, ""),
            Moving::Out | Moving::Left => {}
        }
        self.patience.remove(&key);
        // Clients that attached to it while it was under way.
        if let Some(reply) = self.attaching.remove(&key) {
            let value = self.guests.get(&key).map(|guest| self.describe(guest));
            // Fails only if the client hung up.
            let _ = reply.send(Ok(json!(value)));
            self.save();
        }
        // Its task cancels what is ours.
        if moving == Moving::Left || (moving == Moving::Out && !ours) {
            for reply in self.resuming.remove(&key).unwrap_or_default() {
                let text = format!("{name} is being migrated, or has left");
                let problem = Problem::new("migrating", text);
                // Fails only if the client hung up.
                let _ = reply.send(Err(problem.hint("whoever began that must cancel it")));
            }
        }
        self.prepared(key, began);
        self.dirty = true;
    }

    /// Answers those who waited for it, or does what they wanted.
    fn prepared(&mut self, key: Key, began: Instant) {
        let value = self.guests.get(&key).map(|guest| self.describe(guest));
        for Waiter { uri, reply } in self.preparing.remove(&key).unwrap_or_default() {
            let Some(guest) = self.guests.get_mut(&key) else { return };
            match uri {
                None => {
                    // Fails only if the client hung up.
                    let _ = reply.send(Ok(json!(value)));
                }
                Some(_) if guest.ours || guest.moving != Moving::No => {
                    let text = format!("{} is being migrated already", guest.name);
                    let _ = reply.send(Err(Problem::new("migrating", text).hint("see vmloop ls")));
                }
                Some(uri) => {
                    guest.ours = true;
                    // Fails only if its task has ended.
                    let _ = guest.handle.commands.send(Command::Migrate { uri, began, reply });
                }
            }
        }
    }

    /// Has a guest take part again that was prepared, or is about to be.
    fn resume(&mut self, key: Key, reply: oneshot::Sender<Result<Value, Problem>>) {
        let Some(guest) = self.guests.get_mut(&key) else { return };
        let name = guest.name.clone();
        let problem = match guest.phase {
            Phase::Attached => None,
            Phase::Preparing | Phase::Parting | Phase::Returning => {
                self.call_off(key, "resumed");
                None
            }
            Phase::Standby
                if guest.moving == Moving::No || (guest.moving == Moving::Out && guest.ours) =>
            {
                // Fails only if its task has ended.
                let _ = guest.handle.commands.send(Command::Resume);
                None
            }
            Phase::Standby => Some(
                Problem::new("migrating", format!("{name} is being migrated, or has left"))
                    .hint("whoever began that must cancel it"),
            ),
            Phase::Attaching | Phase::Detaching => Some(
                Problem::new("busy", format!("{name} is being attached or detached"))
                    .hint("try again when vmloop ls says otherwise"),
            ),
        };
        if let Some(problem) = problem {
            // Fails only if the client hung up.
            let _ = reply.send(Err(problem));
            return;
        }
        self.resuming.entry(key).or_default().push(reply);
        if self.guests.get(&key).is_some_and(|guest| guest.phase == Phase::Attached) {
            self.answer_attached(key);
        } else {
            self.patience.insert(key, Instant::now() + PATIENCE);
        }
    }

    /// Ends a preparation that is not done.
    fn call_off(&mut self, key: Key, why: &str) {
        let Some(guest) = self.guests.get_mut(&key) else { return };
        let name = guest.name.clone();
        match guest.phase {
            // Its task knows of nothing.
            Phase::Preparing => guest.phase = Phase::Attached,
            Phase::Parting => {
                guest.phase = Phase::Returning;
                // Fails only if its task has ended.
                let _ = guest.handle.commands.send(Command::Resume);
            }
            _ => return,
        }
        self.note("guest-returning", &name, "", 0, why);
        let text = format!("the preparation of {name} was called off: {why}");
        let problem = Problem::new("called-off", text).hint(
            "a guest that is stopped, or has not booted yet, keeps its devices; see vmloop ls",
        );
        self.answer_prepared(key, &Err(problem));
        self.dirty = true;
    }

    fn returning(&mut self, key: Key) {
        let Some(guest) = self.guests.get_mut(&key) else { return };
        if guest.phase == Phase::Standby {
            guest.phase = Phase::Returning;
            (guest.moving, guest.ours) = (Moving::No, false);
            let name = guest.name.clone();
            self.note("guest-returning", &name, "", 0, "it was not migrated");
        }
    }

    // ---- the end of guests

    fn left(&mut self, key: Key, problem: Option<Problem>) {
        self.paths.remove(&key);
        self.patience.remove(&key);
        if let Some(arrival) = self.arriving.remove(&key) {
            self.note("guest-gone", &arrival.name, "", 0, "it did not arrive");
            self.save();
            self.dirty = true;
        }
        let gone = || Problem::new("gone", "the machine has ended");
        self.answer_prepared(key, &Err(gone()));
        for reply in self.resuming.remove(&key).unwrap_or_default() {
            // Fails only if the client hung up.
            let _ = reply.send(Err(gone()));
        }
        if let Some((waiting, _)) = &mut self.recovering {
            waiting.remove(&key);
        }
        if let Some(reply) = self.attaching.remove(&key) {
            let problem = problem.clone().unwrap_or_else(|| {
                Problem::new("gone", "the machine ended while it was being attached")
            });
            if reply.is_closed() {
                warn!(%problem, "attach");
            }
            // Fails only if the client hung up.
            let _ = reply.send(Err(problem));
        }
        for reply in self.detaching.remove(&key).unwrap_or_default() {
            // Fails only if the client hung up.
            let _ = reply.send(Ok(Value::Null));
        }
        let still = self.domain_left(key, problem);
        let Some(guest) = self.guests.remove(&key) else { return };
        if guest.phase == Phase::Detaching
            && let Some(entry) = still.and_then(|domain| self.domains.get_mut(&domain))
        {
            entry.excluded = Some(guest.machine.clone());
        }
        self.order.retain(|other| *other != key);
        if let Some(collecting) = &mut self.collecting {
            collecting.waiting.remove(&key);
        }
        if guest.phase == Phase::Detaching {
            self.note("guest-detached", &guest.name, "", 0, "");
        } else if guest.phase != Phase::Attaching {
            self.counters.guests_gone.add(1);
            self.note("guest-gone", &guest.name, "", 0, "");
        }
        let of_guest: Vec<_> = self.channels_of(key);
        for channel in of_guest {
            self.close(channel, shm::VMLOOP_CLOSE_PEER_GONE);
            self.side_closed(channel, key);
        }
        self.back_off.retain(|pair, _| pair.0 != guest.machine.id && pair.1 != guest.machine.id);
        self.breaks.forget_guest(guest.machine.id);
        self.name_freed(&guest.name);
        self.save();
        self.dirty = true;
    }

    /// The task of a domain has ended; which one, if it is still there.
    fn domain_left(&mut self, key: Key, problem: Option<Problem>) -> Option<Domain> {
        let (domain, entry) = self.domains.iter_mut().find(|(_, entry)| entry.key == Some(key))?;
        entry.key = None;
        if let Some(problem) = problem.filter(|problem| problem.code != "detached") {
            warn!(domain, %problem, "cannot attach");
        }
        Some(*domain)
    }

    /// Answers a guest's HELLO.
    fn welcome(&self, key: Key) {
        let Some(guest) = self.guests.get(&key) else { return };
        let message = AgentMessage::Welcome {
            id: guest.machine.id,
            epoch: guest.machine.epoch,
            agent: self.agent,
            idle_ms: self.policy.idle_ms,
            name: guest.name.clone(),
        };
        let ring_size = self.policy.ring_size;
        // Fails only if its task has ended.
        let _ = guest.handle.commands.send(Command::Welcome { message, ring_size });
    }

    fn save(&self) {
        if self.recovering.is_some() || self.config.xen.is_some() {
            return;
        }
        let guests: Vec<Saved> = self
            .order
            .iter()
            .filter_map(|key| self.guests.get(key))
            .filter(|guest| guest.phase != Phase::Detaching)
            .map(|guest| (&guest.path, &guest.name))
            .chain(self.arriving.values().map(|arrival| (&arrival.path, &arrival.name)))
            .map(|(qmp, name)| Saved { qmp: qmp.clone(), name: Some(name.clone()) })
            .collect();
        if let Err(error) = state::write(&self.config.state, &guests) {
            error!(file = %self.config.state.display(), %error, "soft state");
        }
    }

    fn find(&self, text: &str) -> Result<Key, Problem> {
        let wanted = text.to_ascii_lowercase();
        self.order
            .iter()
            .find(|key| {
                self.guests.get(key).is_some_and(|guest| {
                    guest.name == text
                        || guest.machine.uuid.as_deref() == Some(&*wanted)
                        || hex(guest.machine.id) == wanted
                        || (self.config.xen.is_some() && guest.machine.id.to_string() == text)
                })
            })
            .copied()
            .ok_or_else(|| {
                Problem::new("no-such-guest", format!("there is no guest {text:?}"))
                    .hint("see vmloop ls")
            })
    }

    /// Leaves a machine alone that has not arrived yet; None if there is none.
    fn turn_away(&mut self, text: &str) -> Option<Value> {
        let wanted = text.to_ascii_lowercase();
        let arriving = self.arriving.iter().find(|(_, arrival)| {
            arrival.name == text
                || arrival.machine.uuid.as_deref() == Some(&*wanted)
                || hex(arrival.machine.id) == wanted
        });
        let key = *arriving?.0;
        self.arriving.remove(&key);
        self.save();
        Some(Value::Null)
    }

    fn detach(&mut self, key: Key, reply: oneshot::Sender<Result<Value, Problem>>) {
        let Some(guest) = self.guests.get_mut(&key) else { return };
        guest.phase = Phase::Detaching;
        self.detaching.entry(key).or_default().push(reply);
        self.patience.insert(key, Instant::now() + PATIENCE);
        for channel in self.channels_of(key) {
            self.close(channel, shm::VMLOOP_CLOSE_DETACH);
        }
        let called_off = Problem::new("called-off", "the guest is detached");
        self.answer_prepared(key, &Err(called_off.clone()));
        for reply in self.resuming.remove(&key).unwrap_or_default() {
            // Fails only if the client hung up.
            let _ = reply.send(Err(called_off.clone()));
        }
        self.save();
        self.dirty = true;
        self.finish_detach(key);
    }

    /// Whether a guest has an end of a channel.
    fn has_ends(&self, key: Key) -> bool {
        self.channels
            .values()
            .any(|channel| channel.side_of(key).is_some_and(|side| !channel.sides[side].gone))
    }

    /// Lets the control device go once the guest has no channel any more.
    fn finish_detach(&self, key: Key) {
        let Some(guest) = self.guests.get(&key) else { return };
        if guest.phase == Phase::Detaching && !self.has_ends(key) {
            // Fails only if its task has ended.
            let _ = guest.handle.commands.send(Command::Detach);
        }
    }

    // ---- what guests say

    fn hear(&mut self, key: Key, message: GuestMessage) {
        match message {
            GuestMessage::Hello { version, kernel, major, features, .. } => {
                if major != shm::VMLOOP_SHM_MAJOR {
                    return;
                }
                let Some(guest) = self.guests.get_mut(&key) else { return };
                let again =
                    guest.hello.replace(Hello { version, kernel: kernel.clone(), features });
                guest.leaving = None;
                let name = guest.name.clone();
                guest.arrived = None;
                // Before the directory goes out with it, it must be right.
                self.welcome(key);
                self.meet_all(key);
                if again.is_none() {
                    self.note("guest-ready", &name, "", 0, &kernel);
                }
                self.dirty = true;
            }
            GuestMessage::Advertise(list) => {
                let claim = self.next_claim;
                self.next_claim += 1;
                let Some(guest) = self.guests.get_mut(&key) else { return };
                let mut addresses: Vec<(Address, u64)> = Vec::with_capacity(list.len());
                for address in list {
                    if addresses.iter().any(|(one, _)| *one == address) {
                        continue;
                    }
                    let before = guest
                        .addresses
                        .iter()
                        .find(|(one, _)| one.ip == address.ip && one.mac == address.mac);
                    addresses.push((address, before.map_or(claim, |(_, first)| *first)));
                }
                // QEMU does not tell when a network interface is plugged.
                let unknown = addresses.iter().any(|(address, _)| {
                    guest.machine.nics.iter().all(|nic| nic.mac != address.mac)
                });
                if unknown && guest.rescans.take(Instant::now()).is_ok() {
                    // Fails only if its task has ended.
                    let _ = guest.handle.commands.send(Command::Rescan);
                }
                if guest.addresses != addresses || !guest.advertised {
                    guest.addresses = addresses;
                    guest.advertised = true;
                    self.dirty = true;
                }
            }
            GuestMessage::Want { peer, epoch, .. } => self.want(key, peer, epoch),
            GuestMessage::State { tag, state } => self.state(key, tag, state),
            GuestMessage::Stats { cookie, tag, counters } => {
                if tag == 0 {
                    if let Some(collecting) = &mut self.collecting
                        && collecting.cookie == cookie
                    {
                        collecting.waiting.remove(&key);
                    }
                    return;
                }
                let Some(channel) = self.channel_by_tag(key, tag) else { return };
                let Some(channel) = self.channels.get_mut(&channel) else { return };
                if let Some(side) = channel.side_of(key) {
                    channel.sides[side].stats = Some((cookie, counters));
                }
            }
        }
    }

    fn away(&mut self, key: Key) {
        let Some(guest) = self.guests.get_mut(&key) else { return };
        if guest.hello.take().is_none() {
            return;
        }
        guest.addresses.clear();
        guest.advertised = false;
        if guest.phase == Phase::Attached {
            let name = guest.name.clone();
            self.note("guest-away", &name, "", 0, "its modules do not answer any more");
        }
        for channel in self.channels_of(key) {
            self.part(channel);
            self.close(channel, shm::VMLOOP_CLOSE_PEER_GONE);
            self.side_closed(channel, key);
        }
        self.dirty = true;
    }

    fn want(&mut self, key: Key, peer: u64, epoch: u64) {
        self.counters.wants.add(1);
        match self.grant(key, peer, epoch) {
            Ok(()) => {}
            Err((reason, retry)) => {
                self.counters.refused.add(1);
                let Some(guest) = self.guests.get(&key) else { return };
                debug!(guest = guest.name, peer = hex(peer), reason, ?retry, "refused");
                guest.send(AgentMessage::Refused {
                    peer,
                    reason,
                    retry_ms: u32::try_from(retry.as_millis()).unwrap_or(u32::MAX),
                });
            }
        }
    }

    /// Begins a channel, or says why not, and when to ask again.
    fn grant(&mut self, key: Key, peer: u64, epoch: u64) -> Result<(), (u32, Duration)> {
        let now = Instant::now();
        let Some(guest) = self.guests.get_mut(&key) else { return Ok(()) };
        if let Err(when) = guest.wants.take(now) {
            self.counters.throttled.add(1);
            return Err((shm::VMLOOP_REFUSED_BUSY, (when - now).max(BUSY.1)));
        }
        if !guest.is_ready() || self.recovering.is_some() {
            return Err(BUSY);
        }
        let id = guest.machine.id;
        let gone = (shm::VMLOOP_REFUSED_GONE, Duration::ZERO);
        let Some((other_key, other)) =
            self.guests.iter().find(|(_, other)| other.machine.id == peer)
        else {
            let arrival = self
                .arriving
                .values_mut()
                .find(|arrival| (arrival.machine.id, arrival.machine.epoch) == (peer, epoch));
            let Some(arrival) = arrival else { return Err(gone) };
            arrival.wanted.insert(key, now);
            return Err(BUSY);
        };
        let other_key = *other_key;
        if other_key != key && other.machine.epoch == epoch && other.is_coming() {
            // Side 0 makes the region, and needs nobody for that.
            if id < peer {
                return self.begin(key, other_key).map(drop);
            }
            if let Some(other) = self.guests.get_mut(&other_key) {
                other.awaited_by.insert(key, now);
            }
            return Err(BUSY);
        }
        // It was here before the agent, and has not spoken yet.
        if other_key != key && other.hello.is_none() && self.return_by.is_some() {
            return Err(BUSY);
        }
        if other_key == key || other.machine.epoch != epoch || !other.is_ready() {
            return Err(gone);
        }
        self.begin(key, other_key).map(drop)
    }

    /// Begins channels to a guest that has just arrived for all that had frames
    /// for it until now.
    fn meet_all(&mut self, arrived: Key) {
        let Some(guest) = self.guests.get_mut(&arrived) else { return };
        for (other, at) in std::mem::take(&mut guest.awaited_by) {
            if at.elapsed() < FRESH {
                self.meet(arrived, other);
            }
        }
    }

    /// Begins a channel to a guest that has just arrived for one that waits for
    /// it. In a QEMU it has not spoken yet: its device comes along with the
    /// control device, as each takes the guest long.
    fn meet(&mut self, arrived: Key, other: Key) {
        if !self.guests.get(&other).is_some_and(Guest::is_ready) {
            return;
        }
        match self.begin(other, arrived) {
            Ok(channel) => {
                if let Some(channel) = self.channels.get_mut(&channel) {
                    channel.hello_by = Some(Instant::now() + HELLO);
                }
            }
            // It asks again.
            Err((reason, retry)) => debug!(arrived, other, reason, ?retry, "no channel yet"),
        }
    }

    /// Begins a channel for a guest that wants one, or finds that there is one.
    fn begin(&mut self, key: Key, other_key: Key) -> Result<ChannelKey, (u32, Duration)> {
        let now = Instant::now();
        let (members, keys) = self.members();
        let view = View::new(&members, &self.policy);
        let index = |key| keys.iter().position(|other| *other == key);
        let (Some(a), Some(b)) = (index(key), index(other_key)) else {
            return Err((shm::VMLOOP_REFUSED_GONE, Duration::ZERO));
        };
        if view.links(a, b).is_empty() {
            return Err((shm::VMLOOP_REFUSED_POLICY, Duration::ZERO));
        }

        if let Some((found, channel)) =
            self.channels.iter_mut().find(|(_, channel)| channel.is_between(key, other_key))
        {
            if matches!(channel.stage, Stage::Closing | Stage::Unplugging) {
                return Err(BUSY);
            }
            // Both asked, or the answer was lost: the directory has the tag.
            channel.wanted_by.insert(key);
            let found = *found;
            if let Some(guest) = self.guests.get_mut(&key) {
                guest.told = None;
                self.dirty = true;
            }
            return Ok(found);
        }
        let pair = self.pair(key, other_key);
        if let Some(left) = pair.and_then(|pair| self.breaks.left(pair, now)) {
            return Err((shm::VMLOOP_REFUSED_BROKEN, left));
        }
        if let Some(back_off) = pair.and_then(|pair| self.back_off.get(&pair))
            && back_off.until > now
        {
            return Err((shm::VMLOOP_REFUSED_BUSY, back_off.until - now));
        }
        for one in [key, other_key] {
            if self.channels_of(one).len() >= self.policy.max_channels as usize {
                return Err((shm::VMLOOP_REFUSED_SLOTS, SLOTS_RETRY));
            }
        }
        let used = |tag| self.tag_used(key, tag) || self.tag_used(other_key, tag);
        let Some(tag) = free_tag(self.last_tag, used) else {
            return Err((shm::VMLOOP_REFUSED_SLOTS, SLOTS_RETRY));
        };
        self.last_tag = tag;
        let made = self.make_channel(tag, key, other_key, false);
        if let Some(channel) = self.channels.get_mut(&made) {
            channel.wanted_by.insert(key);
        }
        self.dirty = true;
        Ok(made)
    }

    fn state(&mut self, key: Key, tag: u32, state: ChannelState) {
        let Some(channel_key) = self.channel_by_tag(key, tag) else { return };
        let Some(channel) = self.channels.get_mut(&channel_key) else { return };
        let Some(side) = channel.side_of(key) else { return };
        let was = channel.state();
        channel.sides[side].state = Some(state);
        let (one, two) = (channel.sides[side].name.clone(), channel.sides[1 - side].name.clone());
        let both_idle = channel.sides.iter().all(|side| side.state == Some(ChannelState::Idle));
        let is_up = was != "up" && channel.state() == "up";
        if is_up {
            channel.up_since.get_or_insert_with(Instant::now);
        }
        match state {
            ChannelState::Up if is_up => self.note("channel-up", &one, &two, tag, ""),
            ChannelState::Up => {}
            ChannelState::Idle => {
                if both_idle {
                    self.close(channel_key, shm::VMLOOP_CLOSE_IDLE);
                }
            }
            ChannelState::Closed => {
                self.close(channel_key, shm::VMLOOP_CLOSE_PEER_GONE);
                self.side_closed(channel_key, key);
            }
            ChannelState::Broken => {
                channel.broken_by.get_or_insert(side);
                self.note("channel-broken", &one, &two, tag, "the peer broke the protocol");
                self.close(channel_key, shm::VMLOOP_CLOSE_PEER_GONE);
                // On Xen the memory is its own, or mapped: it says CLOSED yet.
                if self.config.xen.is_none() {
                    self.side_closed(channel_key, key);
                }
            }
        }
    }

    // ---- channels

    fn pair(&self, a: Key, b: Key) -> Option<(u64, u64)> {
        let (a, b) = (self.guests.get(&a)?.machine.id, self.guests.get(&b)?.machine.id);
        Some((a.min(b), a.max(b)))
    }

    fn channels_of(&self, guest: Key) -> Vec<ChannelKey> {
        self.channels
            .iter()
            .filter(|(_, channel)| channel.side_of(guest).is_some())
            .map(|(key, _)| *key)
            .collect()
    }

    /// The channel that a guest calls by this tag now.
    fn channel_by_tag(&self, guest: Key, tag: u32) -> Option<ChannelKey> {
        self.channels
            .iter()
            .find(|(_, channel)| {
                channel.tag == tag
                    && channel.side_of(guest).is_some_and(|side| !channel.sides[side].gone)
            })
            .map(|(key, _)| *key)
    }

    fn tag_used(&self, guest: Key, tag: u32) -> bool {
        self.channel_by_tag(guest, tag).is_some()
            || self.guests.get(&guest).is_some_and(|guest| guest.orphans.contains(&tag))
    }

    fn make_channel(&mut self, tag: u32, a: Key, b: Key, adopted: bool) -> ChannelKey {
        let key = self.next_key;
        self.next_key += 1;
        let mut ends: Vec<(u64, Key)> = [a, b]
            .into_iter()
            .filter_map(|key| Some((self.guests.get(&key)?.machine.id, key)))
            .collect();
        ends.sort_unstable();
        let end = |index: usize| {
            let (id, key) = ends[index];
            let guest = &self.guests[&key];
            let side = ChannelSide {
                guest: key,
                id,
                name: guest.name.clone(),
                state: None,
                gone: false,
                stats: None,
            };
            let end =
                channel::End { id, epoch: guest.machine.epoch, place: guest.handle.place.clone() };
            (side, end)
        };
        let ((side_a, end_a), (side_b, end_b)) = (end(0), end(1));
        let (commands, inbox) = mpsc::unbounded_channel();
        let task = channel::Task {
            key,
            tag,
            ring_size: self.policy.ring_size,
            ends: [end_a, end_b],
            events: self.events.clone(),
            commands: inbox,
        };
        self.channels.insert(
            key,
            Channel {
                tag,
                sides: [side_a, side_b],
                stage: if adopted { Stage::Open } else { Stage::Plugging },
                stuck: false,
                reason: None,
                failure: None,
                wanted_by: HashSet::new(),
                ring_size: if adopted { 0 } else { self.policy.ring_size },
                since: Instant::now(),
                adopted,
                up_since: None,
                up_until: None,
                broken_by: None,
                parted: false,
                hello_by: None,
                commands,
            },
        );
        if !adopted {
            // The directories first, though guests must not rely on it.
            self.refresh();
        }
        tokio::spawn(task.run(adopted));
        key
    }

    fn close(&mut self, key: ChannelKey, reason: u32) {
        let Some(channel) = self.channels.get_mut(&key) else { return };
        if channel.reason.is_some() {
            return;
        }
        channel.reason = Some(reason);
        channel.up_until = Some(Instant::now());
        // While it is being plugged its task hears of this afterwards.
        if channel.stage == Stage::Open {
            channel.stage = Stage::Closing;
        }
        // Fails only if its task has ended.
        let _ = channel.commands.send(channel::Command::Close);
        for (index, side) in channel.sides.iter().enumerate() {
            match self.guests.get(&side.guest) {
                Some(guest) if guest.hello.is_some() => {
                    guest.send(AgentMessage::Close { tag: channel.tag, reason });
                }
                // Nobody to wait for.
                _ => drop(channel.commands.send(channel::Command::Closed(index))),
            }
        }
        let (a, b, tag) =
            (channel.sides[0].name.clone(), channel.sides[1].name.clone(), channel.tag);
        self.note("channel-closing", &a, &b, tag, close_reason(reason));
        self.dirty = true;
    }

    /// Passes on what a guest says about a channel.
    fn relay(&self, key: Key, tag: u32, command: impl FnOnce(usize) -> channel::Command) {
        let channel = self.channel_by_tag(key, tag).and_then(|key| self.channels.get(&key));
        let Some(channel) = channel else { return };
        if let Some(side) = channel.side_of(key) {
            // Fails only if its task has ended.
            let _ = channel.commands.send(command(side));
        }
    }

    /// A guest has let go of a channel.
    /// A channel without its device would never come up, and nobody else would
    /// say so: a guest that had not found the device yet knows of no channel.
    fn unplugged(&mut self, guest: Key, tag: u32) {
        let Some(key) = self.channel_by_tag(guest, tag) else { return };
        if self.channels.get(&key).is_some_and(|one| one.stage != Stage::Unplugging) {
            self.close(key, shm::VMLOOP_CLOSE_PEER_GONE);
            self.side_closed(key, guest);
        }
    }

    fn side_closed(&mut self, key: ChannelKey, guest: Key) {
        let Some(channel) = self.channels.get_mut(&key) else { return };
        if let Some(side) = channel.side_of(guest) {
            // Fails only if its task has ended.
            let _ = channel.commands.send(channel::Command::Closed(side));
        }
    }

    fn channel_news(&mut self, key: ChannelKey, news: News) {
        let Some(channel) = self.channels.get_mut(&key) else { return };
        let (a, b, tag) =
            (channel.sides[0].name.clone(), channel.sides[1].name.clone(), channel.tag);
        match news {
            News::Open => {
                channel.stage = if channel.reason.is_some() { Stage::Closing } else { Stage::Open };
                self.counters.channels_opened.add(1);
                self.note("channel-open", &a, &b, tag, "");
            }
            News::Failed(Failure { side, reason, text, hint }) => {
                let guest = channel.sides[side].name.clone();
                warn!(guest, tag, error = text, hint, "channel");
                let text = format!("{guest}: {text}");
                channel.failure.get_or_insert((reason, text.clone()));
                self.counters.channels_failed.add(1);
                self.note("channel-failed", &a, &b, tag, &text);
            }
            News::Unplugging => {
                channel.stage = Stage::Unplugging;
                self.dirty = true;
            }
            News::Stuck(side) => {
                channel.stuck = true;
                let name = channel.sides[side].name.clone();
                self.note("channel-stuck", &a, &b, tag, &format!("{name} keeps the device"));
            }
            News::SideGone(side) => {
                channel.sides[side].gone = true;
                let guest = channel.sides[side].guest;
                self.finish_detach(guest);
                self.finish_prepare(guest);
            }
            News::Gone => {
                if let Some(channel) = self.channels.remove(&key) {
                    self.channel_gone(channel);
                }
            }
        }
    }

    fn channel_gone(&mut self, channel: Channel) {
        let [a, b] = &channel.sides;
        self.note(
            "channel-closed",
            &a.name,
            &b.name,
            channel.tag,
            channel.reason.map_or("failed", close_reason),
        );
        if channel.failure.is_none() {
            self.counters.channels_closed.add(1);
        }
        let pair = (a.id, b.id);
        let now = Instant::now();
        if let Some(since) = channel.up_since {
            let until = channel.up_until.unwrap_or(now);
            self.breaks.was_up(pair, until.saturating_duration_since(since));
        }
        // Of a guest that is gone nobody would forget it.
        let known = channel.sides.iter().all(|side| self.guests.contains_key(&side.guest));
        if let Some(side) = channel.broken_by.filter(|_| known) {
            self.broke(pair, &channel, side);
        }
        let lived = channel.since.elapsed();
        // A guest that goes and comes back is welcome at once.
        let both_here = !channel.parted
            && channel.sides.iter().all(|side| {
                self.guests.get(&side.guest).is_some_and(|guest| guest.hello.is_some())
            });
        let before = self.back_off.get(&pair).map_or(0, |back_off| back_off.failures);
        let ending = if channel.failure.is_some() {
            Ending::Failed
        } else if !both_here
            || channel.adopted
            || lived >= SHORT_LIFE
            || channel.broken_by.is_some()
        {
            Ending::Well
        } else if channel.up_since.is_some() {
            Ending::Short
        } else {
            Ending::Failed
        };
        let failures = BackOff::count(before, ending);
        if failures == 0 {
            self.back_off.remove(&pair);
        } else {
            let wait = BackOff::wait(failures);
            let wait = match channel.failure {
                Some((shm::VMLOOP_REFUSED_SLOTS, _)) => wait.max(SLOTS_RETRY),
                _ => wait,
            };
            self.back_off.insert(pair, BackOff { failures, until: now + wait });
            if let Some((reason, _)) = channel.failure {
                for key in &channel.wanted_by {
                    let Some(guest) = self.guests.get(key) else { continue };
                    let peer = channel.sides.iter().find(|side| side.guest != *key);
                    guest.send(AgentMessage::Refused {
                        peer: peer.map_or(0, |side| side.id),
                        reason,
                        retry_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
                    });
                    self.counters.refused.add(1);
                }
            }
        }
        for side in &channel.sides {
            self.finish_detach(side.guest);
            self.finish_prepare(side.guest);
        }
        self.dirty = true;
    }

    /// A channel of a pair broke: the pair waits, or is left to the operator.
    fn broke(&mut self, pair: (u64, u64), channel: &Channel, side: usize) {
        let [a, b] = channel.sides.each_ref().map(|side| side.name.clone());
        let why = format!("reported by {}", channel.sides[side].name);
        let names = [a.clone(), b.clone()];
        let (count, wait) = self.breaks.add(pair, names, why.clone(), Instant::now());
        self.counters.channels_broken.add(1);
        let next = match wait {
            Some(wait) => format!("another channel after {} s", wait.as_secs()),
            None => format!("left to the operator: vmloop reset {a} {b}"),
        };
        self.note("pair-broken", &a, &b, 0, &format!("{why}, {count} in a row; {next}"));
    }

    /// When a channel will have been up for long enough to end its pair's row
    /// of breaks.
    fn row_ends(&self, channel: &Channel) -> Option<Instant> {
        let [a, b] = &channel.sides;
        self.breaks.ends((a.id, b.id), channel.up_since.filter(|_| channel.state() == "up")?)
    }

    /// Lets a pair ask for a channel again that had to wait.
    fn reset(&mut self, a: &str, b: &str) -> Result<Value, Problem> {
        let (a, b) = (self.find(a)?, self.find(b)?);
        let pair = self.pair(a, b).filter(|_| a != b).ok_or_else(|| {
            Problem::new("no-such-guest", "a pair are two guests").hint("see vmloop ls")
        })?;
        self.breaks.forget(pair);
        self.back_off.remove(&pair);
        self.tell_again(|id| id == pair.0 || id == pair.1);
        Ok(Value::Null)
    }

    /// Sends guests their directories again: they ask again for what was refused.
    fn tell_again(&mut self, whom: impl Fn(u64) -> bool) {
        for guest in self.guests.values_mut().filter(|guest| whom(guest.machine.id)) {
            guest.told = None;
            self.dirty = true;
        }
    }

    // ---- directories

    /// Where an interface of a guest is; one that is in no bridge is somewhere
    /// only if the policy says that the host routes for it.
    fn place(&self, who: Who<'_>, tap: &str) -> Result<Port, String> {
        self.links.port(tap).or_else(|why| {
            let alone = self.links.alone(tap).filter(|_| self.policy.routed(who, &[tap]).is_some());
            alone.ok_or(why)
        })
    }

    /// Asks the host's routing for the addresses of guests that it routes for.
    /// It keeps what is no guest's from being believed to be one's: the host
    /// would send it elsewhere, or keep it.
    fn ask_routes(&mut self) {
        let mut all = HashSet::new();
        for guest in self.guests.values().filter(|_| self.policy.routes()) {
            let who = guest.who();
            for nic in &guest.machine.nics {
                let Ok(port) = self.place(who, &nic.tap) else { continue };
                let Some(number) = routed_number(&self.policy, who, &port) else { continue };
                let allowed = guest.addresses.iter().map(|(address, _)| address).filter(|one| {
                    one.mac == nic.mac && self.policy.allows_routed_ip(who, number, one.ip)
                });
                all.extend(allowed.map(|address| address.ip));
            }
        }
        self.routes.retain(|ip, _| all.contains(ip));
        for ip in all {
            self.routes.entry(ip).or_insert_with(|| (self.config.route)(ip));
        }
    }

    /// All guests as directories see them, in the order in which they came; then those that are about to.
    fn members(&mut self) -> (Vec<Member>, Vec<Key>) {
        self.ask_routes();
        self.order
            .iter()
            .filter_map(|key| {
                let guest = self.guests.get(key)?;
                if guest.is_coming() {
                    return Some((self.arriver(&guest.machine, guest.who().name), *key));
                }
                let nics: Vec<_> = guest
                    .machine
                    .nics
                    .iter()
                    .map(|nic| (nic.mac, self.place(guest.who(), &nic.tap).ok()))
                    .collect();
                let routed = |address: &Address| {
                    let to = self.routes.get(&address.ip).copied().flatten();
                    to.is_some()
                        && nics.iter().any(|(mac, port)| {
                            let gateway = port.as_ref().and_then(|port| port.gateway.as_ref());
                            *mac == address.mac && gateway.map(|gateway| gateway.index) == to
                        })
                };
                let addresses = guest.addresses.iter().map(|(address, _)| *address);
                let member = Member {
                    id: guest.machine.id,
                    epoch: guest.machine.epoch,
                    name: guest.name.clone(),
                    uuid: guest.who().uuid.to_owned(),
                    ready: guest.is_ready(),
                    addresses: guest.addresses.clone(),
                    routed: addresses.filter(routed).collect(),
                    // One that has not spoken is here for a channel that it has.
                    routes: guest
                        .hello
                        .as_ref()
                        .is_none_or(|hello| hello.features & shm::VMLOOP_F_ROUTED != 0),
                    keep: !guest.advertised && self.return_by.is_some(),
                    nics,
                };
                Some((member, *key))
            })
            .chain(self.arriving.iter().filter_map(|(key, Arrival { machine, name, .. })| {
                // It may not be what it seems.
                let here = self.guests.values().any(|guest| guest.machine.id == machine.id);
                (!here).then(|| (self.arriver(machine, name), *key))
            }))
            .unzip()
    }

    /// A machine that is being migrated to here, as directories see it. Nothing
    /// is known of it but its interfaces.
    fn arriver(&self, machine: &Machine, name: &str) -> Member {
        let uuid = machine.uuid.clone().unwrap_or_default();
        let who = Who { name, uuid: &uuid };
        let nics =
            machine.nics.iter().map(|nic| (nic.mac, self.place(who, &nic.tap).ok())).collect();
        Member {
            id: machine.id,
            epoch: machine.epoch,
            name: name.to_owned(),
            nics,
            uuid,
            ready: true,
            addresses: Vec::new(),
            routed: Vec::new(),
            routes: false,
            keep: false,
        }
    }

    /// Whether the host has none of a guest's interfaces any more. Those of a
    /// domain go before itself.
    fn lacks_interfaces(&self, key: Key) -> bool {
        self.guests
            .get(&key)
            .is_some_and(|guest| guest.machine.nics.iter().all(|nic| !self.links.has(&nic.tap)))
    }

    /// Tells every guest what changed for it, and closes what may not be any
    /// more.
    fn refresh(&mut self) {
        if self.recovering.is_some() || !self.have_links {
            return;
        }
        let (members, keys) = self.members();
        let view = View::new(&members, &self.policy);
        let index = |key: Key| keys.iter().position(|other| *other == key);

        let mut forbidden = Vec::new();
        let mut tags = HashMap::new();
        for (key, channel) in &self.channels {
            let (Some(a), Some(b)) = (index(channel.sides[0].guest), index(channel.sides[1].guest))
            else {
                continue;
            };
            if view.links(a, b).is_empty() {
                let gone = channel.sides.iter().any(|side| self.lacks_interfaces(side.guest));
                let why = if gone { shm::VMLOOP_CLOSE_PEER_GONE } else { shm::VMLOOP_CLOSE_POLICY };
                forbidden.push((*key, why));
            }
            if channel.stage != Stage::Unplugging {
                tags.insert((a, b), channel.tag);
                tags.insert((b, a), channel.tag);
            }
        }
        for (at, key) in keys.iter().enumerate() {
            let entries = view.directory(at, &|a, b| tags.get(&(a, b)).copied().unwrap_or(0));
            let disputes = view.disputed(at);
            let Some(guest) = self.guests.get_mut(key) else { continue };
            for (ip, owner) in &disputes {
                if !guest.disputes.contains(ip) {
                    warn!(guest = guest.name, %ip, owner = members[*owner].name, "address is somebody else's already");
                }
            }
            guest.disputes = disputes.into_iter().map(|(ip, _)| ip).collect();
            let own = entries.iter().filter(|entry| entry.id == guest.machine.id);
            guest.routed = own.flat_map(|entry| entry.ips.clone()).collect();
            if guest.told.as_deref() != Some(&entries) {
                guest.told = Some(Arc::new(entries));
                guest.handle.directory.send_replace(guest.told.clone());
            }
        }
        for (key, why) in forbidden {
            self.close(key, why);
        }
    }

    // ---- the rest

    fn deadlines(&mut self, now: Instant) {
        if self
            .recovering
            .as_ref()
            .is_some_and(|(waiting, until)| waiting.is_empty() || *until <= now)
            && self.have_links
        {
            self.recovered();
        }
        let late: Vec<Key> =
            self.patience.iter().filter(|(_, until)| **until <= now).map(|(key, _)| *key).collect();
        for key in late {
            self.patience.remove(&key);
            self.call_off(key, &format!("not done after {} s", PATIENCE.as_secs()));
            let mut replies = self.detaching.remove(&key).unwrap_or_default();
            replies.extend(self.resuming.remove(&key).unwrap_or_default());
            replies.extend(self.attaching.remove(&key));
            for reply in replies {
                // Fails only if the client hung up.
                let _ = reply.send(Err(Problem::new(
                    "slow",
                    format!("not done after {} s; the agent goes on", PATIENCE.as_secs()),
                )
                .hint("a guest that is stopped, or has not booted yet, keeps its devices; see vmloop ls")));
            }
        }
        let mut mute = Vec::new();
        for (key, guest) in &mut self.guests {
            if guest.leaving.is_some_and(|until| until <= now) {
                guest.leaving = None;
                self.dirty = true;
            }
            if guest.arrived.is_some_and(|until| until <= now) {
                guest.arrived = None;
                mute.push(*key);
                self.dirty = true;
            }
        }
        // What was begun for them while they were on their way.
        for channel in mute.into_iter().flat_map(|key| self.channels_of(key)).collect::<Vec<_>>() {
            self.close(channel, shm::VMLOOP_CLOSE_PEER_GONE);
        }
        if self.return_by.is_some_and(|by| by <= now) {
            self.return_by = None;
            // What addresses were kept of an earlier agent are not any more.
            self.dirty = true;
            let silent: Vec<Key> = self
                .guests
                .iter()
                .filter(|(_, guest)| guest.hello.is_none())
                .map(|(key, _)| *key)
                .collect();
            for key in silent {
                for channel in self.channels_of(key) {
                    self.close(channel, shm::VMLOOP_CLOSE_PEER_GONE);
                }
            }
        }
        let steady: Vec<_> = self
            .channels
            .values()
            .filter(|channel| self.row_ends(channel).is_some_and(|at| at <= now))
            .map(|channel| (channel.sides[0].id, channel.sides[1].id))
            .collect();
        for pair in steady {
            self.breaks.forget(pair);
        }
        let mut silent = Vec::new();
        for (key, channel) in &mut self.channels {
            let speaks = |side: &ChannelSide| {
                self.guests.get(&side.guest).is_some_and(|guest| guest.hello.is_some())
            };
            if channel.sides.iter().all(speaks) {
                channel.hello_by = None;
            } else if channel.hello_by.is_some_and(|by| by <= now) {
                channel.hello_by = None;
                silent.push(*key);
            }
        }
        for key in silent {
            self.close(key, shm::VMLOOP_CLOSE_PEER_GONE);
        }
        if self
            .collecting
            .as_ref()
            .is_some_and(|collecting| collecting.waiting.is_empty() || collecting.deadline <= now)
            && let Some(collecting) = self.collecting.take()
        {
            let listing = json!(self.listing(Some(collecting.cookie)));
            for reply in collecting.replies {
                // Fails only if the client hung up.
                let _ = reply.send(Ok(listing.clone()));
            }
        }
    }

    fn reload(&mut self) -> Result<(), Problem> {
        let before = (self.policy.idle_ms, self.policy.ring_size);
        match self.policy.reload() {
            Ok(()) => {
                let changed = before != (self.policy.idle_ms, self.policy.ring_size);
                let file = self.policy.source().path.display().to_string();
                self.note("policy-loaded", "", "", 0, &file);
                say_policy(&self.policy);
                // The operator has looked at it: who had to wait may ask at once.
                self.back_off.clear();
                let ids: HashSet<u64> =
                    self.breaks.forget_all().into_iter().flat_map(|(a, b)| [a, b]).collect();
                self.tell_again(|id| ids.contains(&id));
                if changed {
                    let ready = self.guests.iter().filter(|(_, guest)| guest.hello.is_some());
                    for key in ready.map(|(key, _)| *key) {
                        self.welcome(key);
                    }
                }
                self.dirty = true;
                Ok(())
            }
            Err(error) => {
                say_policy(&self.policy);
                let stays = match self.policy.state() {
                    State::Denied => "nobody may talk before a good one is there",
                    _ => "the last good policy stays in force",
                };
                self.note("policy-refused", "", "", 0, &format!("{error}; {stays}"));
                Err(Problem::new("policy", error.to_string())
                    .hint(format!("{stays}; try the file with: vmloop policy check FILE")))
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Api(request, reply) => self.api(request, reply),
            Event::Appeared { path, name, reply } => drop(self.attach(path, name, reply, None)),
            Event::Domains { come, gone } => self.domains(come, gone),
            Event::Excluded { key, machine } => {
                let entry = self.domains.values_mut().find(|entry| entry.key == Some(key));
                if let Some(entry) = entry {
                    entry.excluded = Some(*machine);
                }
            }
            Event::Renamed { key, name } => self.renamed(key, &name),
            Event::Leaving { key, why } => self.leaving(key, why),
            Event::Offer { key, tag, gref, port } => {
                self.relay(key, tag, |side| channel::Command::Offer { side, gref, port });
            }
            Event::Fail { key, tag, errno } => {
                self.relay(key, tag, |side| channel::Command::Fail { side, errno });
            }
            Event::Connected(connected) => self.connected(*connected),
            Event::Attached { key } => self.attached(key),
            Event::Away { key } => self.away(key),
            Event::Guest { key, message } => self.hear(key, message),
            Event::Nics { key, nics } => {
                if let Some(guest) = self.guests.get_mut(&key)
                    && guest.machine.nics != nics
                {
                    guest.machine.nics = nics;
                    say_unknown(&guest.name, &guest.machine);
                    self.dirty = true;
                }
            }
            Event::Arriving { key, name, machine, stop } => {
                self.arriving(key, name, *machine, stop);
            }
            Event::Standby { key, moving } => self.standby(key, moving),
            Event::Returning { key } => self.returning(key),
            Event::Left { key, problem } => self.left(key, problem),
            Event::Channel { key, news } => self.channel_news(key, news),
            Event::Unplugged { key, tag } => self.unplugged(key, tag),
            Event::OrphanGone { key, tag } => {
                if let Some(guest) = self.guests.get_mut(&key) {
                    guest.orphans.remove(&tag);
                }
                self.finish_prepare(key);
            }
            Event::Links(links) => {
                // An interface of a guest may be another one now.
                if links.renamed(&self.links) {
                    for guest in self.guests.values() {
                        // Fails only if its task has ended.
                        let _ = guest.handle.commands.send(Command::Rescan);
                    }
                }
                self.links = links;
                self.routes.clear();
                self.have_links = true;
                self.dirty = true;
            }
            Event::Reload => drop(self.reload()),
        }
    }

    fn api(&mut self, request: Request, reply: oneshot::Sender<Result<Value, Problem>>) {
        let answer = match request {
            Request::Attach { qmp, name } => {
                self.attach(qmp, name, reply, None);
                return;
            }
            Request::Include { guest } => {
                self.include(&guest, reply);
                return;
            }
            Request::Detach { guest } => match self.find(&guest) {
                Ok(key) => {
                    self.detach(key, reply);
                    return;
                }
                Err(problem) => self.turn_away(&guest).ok_or(problem),
            },
            Request::Prepare { guest } => match self.find(&guest) {
                Ok(key) => {
                    self.prepare(key, Waiter { uri: None, reply });
                    return;
                }
                Err(problem) => Err(problem),
            },
            Request::Migrate { guest, uri } => match self.find(&guest) {
                Ok(key) => {
                    self.prepare(key, Waiter { uri: Some(uri), reply });
                    return;
                }
                Err(problem) => Err(problem),
            },
            Request::Resume { guest } => match self.find(&guest) {
                Ok(key) => {
                    self.resume(key, reply);
                    return;
                }
                Err(problem) => Err(problem),
            },
            Request::Close { a, b } => self.find(&a).and_then(|a| {
                let b = self.find(&b)?;
                let channel = self
                    .channels
                    .iter()
                    .find(|(_, channel)| channel.is_between(a, b))
                    .map(|(key, _)| *key)
                    .ok_or_else(|| {
                        Problem::new("no-channel", "there is no channel between the two")
                    })?;
                self.close(channel, shm::VMLOOP_CLOSE_DETACH);
                Ok(Value::Null)
            }),
            Request::Reset { a, b } => self.reset(&a, &b),
            Request::Status => Ok(json!(self.status())),
            Request::List => Ok(json!(self.listing(None))),
            Request::Stats => {
                self.collect(reply);
                return;
            }
            Request::Events => Err(Problem::new("events", "not here")),
            Request::PolicyShow => Ok(json!(self.policy.text)),
            Request::PolicyReload => self.reload().map(|()| json!(self.policy.text)),
        };
        // Fails only if the client hung up.
        let _ = reply.send(answer);
    }

    fn collect(&mut self, reply: oneshot::Sender<Result<Value, Problem>>) {
        if let Some(collecting) = &mut self.collecting {
            collecting.replies.push(reply);
            return;
        }
        let cookie = self.next_cookie;
        self.next_cookie = self.next_cookie.wrapping_add(1);
        let mut waiting = HashSet::new();
        for (key, guest) in &self.guests {
            let has_channel = self.channels.values().any(|channel| channel.side_of(*key).is_some());
            if guest.hello.is_some() && has_channel {
                guest.send(AgentMessage::StatsGet { cookie });
                waiting.insert(*key);
            }
        }
        self.collecting = Some(Collecting {
            cookie,
            waiting,
            deadline: Instant::now() + if self.config.xen.is_some() { STATS_XEN } else { STATS },
            replies: vec![reply],
        });
    }

    fn status(&self) -> api::Status {
        let hypervisor = if self.config.xen.is_some() { "xen" } else { "qemu" };
        api::Status {
            hypervisor: hypervisor.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            guests: self.guests.len(),
            guests_ready: self.guests.values().filter(|guest| guest.hello.is_some()).count(),
            channels_up: self.channels.values().filter(|channel| channel.state() == "up").count(),
            channels: self.channels.len(),
            policy: self.policy.source().path.clone(),
            policy_state: self.policy.state().name().into(),
            policy_since: seconds(self.policy.since()),
            policy_error: self.policy.error().into(),
            problems: self.problems(),
            recovering: self.recovering.is_some(),
            counters: self.counters.get(),
        }
    }

    /// What keeps guests from channels, and is no fault of theirs.
    fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self
            .guests
            .values()
            .flat_map(|guest| guest.machine.nics.iter().map(move |nic| (guest, nic)))
            .filter_map(|(guest, nic)| Some((guest, nic.unknown.as_ref()?)))
            .filter(|(_, why)| why.is_a_fault())
            .map(|(guest, why)| format!("{} gets no channels: {why}", guest.name))
            .collect();
        problems.sort_unstable();
        problems.dedup();
        problems
    }

    fn describe(&self, guest: &Guest) -> api::Guest {
        let hello = guest.hello.as_ref();
        api::Guest {
            name: guest.name.clone(),
            id: hex(guest.machine.id),
            epoch: hex(guest.machine.epoch),
            uuid: guest.machine.uuid.clone().unwrap_or_default(),
            qmp: guest.path.clone(),
            pid: guest.machine.pid,
            machine: guest.machine.kind_name.clone(),
            state: match guest.phase {
                Phase::Attaching => "attaching",
                Phase::Attached if guest.leaving.is_some() => "leaving",
                Phase::Attached if hello.is_some() => "ready",
                Phase::Attached if guest.is_coming() => "arriving",
                Phase::Attached => "attached",
                Phase::Preparing | Phase::Parting => "preparing",
                Phase::Standby => match guest.moving {
                    Moving::No | Moving::In => "prepared",
                    Moving::Out => "migrating",
                    Moving::Left => "departed",
                },
                Phase::Returning => "returning",
                Phase::Detaching => "detaching",
            }
            .into(),
            version: hello.map(|hello| hello.version.clone()).unwrap_or_default(),
            kernel: hello.map(|hello| hello.kernel.clone()).unwrap_or_default(),
            nics: guest
                .machine
                .nics
                .iter()
                .map(|nic| {
                    let mut shown = api::Nic {
                        mac: format_mac(&nic.mac),
                        tap: nic.tap.clone(),
                        ..api::Nic::default()
                    };
                    match self.place(guest.who(), &nic.tap) {
                        Ok(port) => {
                            shown.gateway = self.gateway_of(guest, &port);
                            shown.vlan = port.vlan;
                            if !port.alone {
                                shown.bridge = port.bridge_name;
                            }
                        }
                        Err(why) => {
                            shown.blocked = nic.unknown.as_ref().map_or(why, ToString::to_string);
                        }
                    }
                    shown
                })
                .collect(),
            ips: guest
                .addresses
                .iter()
                .map(|(address, _)| format!("{}/{}", address.ip, address.prefix))
                .collect(),
            routed_ips: guest.routed.iter().map(|address| address.ip.to_string()).collect(),
        }
    }

    /// The host's address as the router of a guest's interface; empty if the
    /// policy does not say that it is.
    fn gateway_of(&self, guest: &Guest, port: &Port) -> String {
        let is_routed = routed_number(&self.policy, guest.who(), port).is_some();
        let gateway = port.gateway.as_ref().filter(|_| is_routed);
        gateway.map(|gateway| format_mac(&gateway.mac)).unwrap_or_default()
    }

    fn listing(&self, cookie: Option<u32>) -> api::Listing {
        let mut guests: Vec<_> = self.guests.values().map(|guest| self.describe(guest)).collect();
        let excluded = self.domains.values().filter(|entry| entry.key.is_none());
        guests.extend(excluded.filter_map(|entry| entry.excluded.as_ref()).map(|machine| {
            api::Guest {
                name: machine.name.clone(),
                id: hex(machine.id),
                uuid: machine.uuid.clone().unwrap_or_default(),
                machine: machine.kind_name.clone(),
                state: "detached".into(),
                ..api::Guest::default()
            }
        }));
        guests.extend(self.arriving.values().map(describe_arrival));
        guests.sort_by(|a, b| a.name.cmp(&b.name));
        let side = |side: &ChannelSide| api::Side {
            guest: side.name.clone(),
            state: state_name(side.state).into(),
            stats: side.stats.filter(|(of, _)| Some(*of) == cookie).map(|(_, counters)| {
                api::Stats {
                    tx_frames: counters.tx_frames,
                    tx_bytes: counters.tx_bytes,
                    rx_frames: counters.rx_frames,
                    rx_bytes: counters.rx_bytes,
                    tx_doorbells: counters.tx_doorbells,
                    rx_doorbells: counters.rx_doorbells,
                    tx_full: counters.tx_full,
                    rx_dropped: counters.rx_dropped,
                }
            }),
        };
        let mut channels: Vec<_> = self
            .channels
            .values()
            .map(|channel| api::Channel {
                tag: channel.tag,
                a: side(&channel.sides[0]),
                b: side(&channel.sides[1]),
                state: channel.state().into(),
                reason: channel.reason.map(close_reason).unwrap_or_default().into(),
                age_s: channel.since.elapsed().as_secs(),
                ring_size: channel.ring_size,
            })
            .collect();
        channels.sort_by(|a, b| (a.tag, &a.a.guest).cmp(&(b.tag, &b.a.guest)));
        api::Listing { guests, channels, broken: self.breaks.list(Instant::now()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(ending: Ending) -> Vec<u64> {
        let mut failures = 0;
        let mut next = || {
            failures = BackOff::count(failures, ending);
            BackOff::wait(failures).as_secs()
        };
        (0..8).map(|_| next()).collect()
    }

    #[test]
    fn pairs_wait_as_long_as_their_channels_deserve() {
        assert_eq!(waits(Ending::Failed), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(waits(Ending::Short), [1, 2, 4, 4, 4, 4, 4, 4]);
        // One that works is not held responsible for those that did not.
        assert_eq!(BackOff::count(7, Ending::Short), 3);
        assert_eq!(BackOff::count(7, Ending::Well), 0);
    }
}
