// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One task for each domain: reads what its modules write, within bounds, and
//! keeps what stands in its `vmloop` subtree as it should be, each change in
//! one transaction.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::join;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, warn};
use vmloop_abi::message::{AgentMessage, ChannelState, DirectoryEntry, GuestMessage};
use vmloop_abi::shm;
use vmloop_api::Problem;
use vmloop_xenstore::{Error, Store, Subscription, Transaction};

use super::nodes::{self, Hello, Link, Said};
use super::pages::{self, Draft, Lines, Written};
use super::{Domain, home};
use crate::broker::Event;
use crate::counters::Counters;
use crate::hypervisor::{
    Bucket, Command, Connected, Directory, Found, Handle, Key, Machine, Nic, Place as AnyPlace,
};
use crate::machine::parse_mac;

/// Nodes of a guest that are read in one look.
const BATCH: usize = 32;
/// Addresses of a guest that are read.
const ADDRESSES: usize = shm::VMLOOP_ADVERTISE_MAX;
/// Questions of a guest for a channel that are read when all is looked at.
const WANTS: usize = 64;
/// Refusals that stand in a guest's subtree.
const REFUSALS: usize = 64;
/// Channels of a guest whose counters are read.
const COUNTED: usize = 256;
/// How often a transaction is tried that meets others.
const TRIES: u32 = 10;
/// When XenStore is full, or odd: when to try again.
const AGAIN: Duration = Duration::from_secs(1);
/// For how long what is to be written is gathered: the broker's answers come one
/// by one, and each transaction takes several trips to xenstored.
const GATHER: Duration = Duration::from_millis(4);
/// How long a guest may take to let go of a channel that lost its other end.
const DRAIN: Duration = Duration::from_secs(5);

/// What a channel, or the broker, wants of a guest's subtree.
#[derive(Debug)]
enum Order {
    /// What the guest is to do about a channel.
    Set(u32, Link),
    /// A channel is over: remove the node, and say when that is done.
    Clear(u32, oneshot::Sender<()>),
    /// A channel of an earlier agent has lost its other end: have the guest
    /// let go of it, then as `Clear`.
    End(u32, oneshot::Sender<()>),
}

/// Where a domain's ends of channels are made.
#[derive(Clone)]
pub struct Place {
    orders: mpsc::UnboundedSender<Order>,
}

impl Place {
    /// Tells the guest what to do about a channel.
    pub fn set(&self, tag: u32, link: Link) {
        // Fails only if the guest is gone, and its nodes with it.
        let _ = self.orders.send(Order::Set(tag, link));
    }

    /// Removes the node of a channel that is over.
    pub async fn clear(&self, tag: u32) {
        let (done, wait) = oneshot::channel();
        // Either fails only if the guest is gone, and its nodes with it.
        let _ = self.orders.send(Order::Clear(tag, done));
        let _ = wait.await;
    }

    /// Has the guest let go of a channel without another end, and removes it.
    pub async fn end(&self, tag: u32) {
        let (done, wait) = oneshot::channel();
        // As above.
        let _ = self.orders.send(Order::End(tag, done));
        let _ = wait.await;
    }
}

/// What a domain's task needs to begin.
pub struct Task {
    /// names the attachment
    pub key: Key,
    /// the domain
    pub domain: Domain,
    /// differs for every start of the agent
    pub agent: u64,
    /// attach it even if an operator has detached it before
    pub include: bool,
    /// XenStore
    pub store: Store,
    /// true once the domain is gone
    pub gone: watch::Receiver<bool>,
    /// the broker
    pub events: mpsc::Sender<Event>,
    /// what is counted
    pub counters: Arc<Counters>,
}

/// What stands in XenStore about a domain.
struct Present {
    machine: Machine,
    written: Written,
    hello: Option<Hello>,
}

enum Failed {
    /// The domain is not there any more.
    Gone,
    Store(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

fn random() -> u64 {
    let mut number = [0; 8];
    // Fails never on a kernel that is up; a number by the clock is no worse
    // than a guest that keeps its channels.
    if rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty()).is_err() {
        number = (now().as_nanos() as u64).to_ne_bytes();
    }
    u64::from_ne_bytes(number).max(1)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Interfaces of a domain, from their backends, which only dom0 can write.
async fn nics(store: &Store, domain: Domain) -> Result<Vec<Nic>, Error> {
    let path = format!("/local/domain/0/backend/vif/{domain}");
    let mut names = store.directory(&path).await?;
    names.sort_by_key(|name| nodes::number::<u32>(name));
    let mut nics = Vec::new();
    for name in names {
        let (mac, given) = (format!("{path}/{name}/mac"), format!("{path}/{name}/vifname"));
        let (mac, given) = join!(biased; store.text(&mac), store.text(&given));
        let Some(mac) = mac?.as_deref().and_then(parse_mac) else { continue };
        let tap = given?.filter(|given| !given.is_empty());
        let tap = tap.unwrap_or_else(|| format!("vif{domain}.{name}"));
        nics.push(Nic { mac, tap, unknown: None });
    }
    Ok(nics)
}

/// Whether a path says what a domain is: its name, or its interfaces. What else
/// is below their backends the drivers write, a dozen times while they connect.
fn is_what_it_is(path: &str) -> bool {
    let Some((_, below)) = path.split_once("/backend/vif/") else { return true };
    let mut parts = below.split('/').skip(2);
    matches!((parts.next(), parts.next()), (None | Some("mac" | "vifname"), None))
}

/// The name that a domain will have which xl, or who does as it does, is about
/// to receive. It is renamed just before it runs.
pub fn incoming<'a>(machine: &Machine, name: &'a str) -> Option<&'a str> {
    name.strip_suffix("--incoming").filter(|_| machine.kind_name.starts_with("xen-"))
}

/// Reads `epoch`: the domain's epoch, and the incarnation that was welcomed.
fn parse_epoch(lines: &Lines) -> Option<(u64, u64)> {
    let (epoch, incarnation) = lines.get("epoch")?.split_once(' ')?;
    Some((nodes::random(epoch).filter(|epoch| *epoch != 0)?, nodes::random(incarnation)?))
}

/// Channels in a guest's pages.
fn parse_links(lines: &Lines) -> BTreeMap<u32, Link> {
    lines
        .iter()
        .filter_map(|(word, rest)| {
            Some((nodes::tag(word.strip_prefix("channel/")?)?, Link::parse(rest)?))
        })
        .collect()
}

/// Epoch of a peer, as the guest was told it.
fn peer_epoch(lines: &Lines, peer: u64) -> Option<u64> {
    nodes::random(lines.get(&format!("peer/{peer}"))?.split(' ').next()?)
}

fn store_problem(error: &Error) -> Problem {
    Problem::new("xenstore", error.to_string())
        .hint("see the log of xenstored, and vmloopd's; vmloop attach tries again")
}

impl Task {
    /// Attaches, serves the guest until it is detached or gone, and tells the
    /// broker how it ended.
    pub async fn run(self) {
        let (key, events) = (self.key, self.events.clone());
        let problem = self.attach_and_serve().await.err();
        // Fails only when the agent ends.
        let _ = events.send(Event::Left { key, problem }).await;
    }

    async fn present(&self) -> Result<Present, Failed> {
        let (store, home) = (&self.store, home(self.domain));
        let Some(name) = store.text(&format!("{home}/name")).await? else {
            return Err(Failed::Gone);
        };
        let uuid = store.text(&format!("{home}/vm")).await?.unwrap_or_default();
        let uuid = uuid.trim_start_matches("/vm/").to_ascii_lowercase();
        let uuid = uuid.chars().any(|c| c.is_ascii_hexdigit() && c != '0').then_some(uuid);
        let kind = store.text(&format!("/libxl/{}/type", self.domain)).await?;
        let written = pages::read(&store.begin().await?, &format!("{home}/vmloop")).await?;
        let hello = match store.read(&format!("{home}/data/vmloop/hello")).await {
            Ok(value) => Hello::parse(&value),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        let machine = Machine {
            uuid,
            name,
            kind_name: format!("xen-{}", kind.as_deref().unwrap_or("domain")),
            pid: 0,
            id: self.domain.into(),
            epoch: parse_epoch(&written.lines).map_or_else(random, |(epoch, _)| epoch),
            nics: nics(store, self.domain).await?,
        };
        Ok(Present { machine, written, hello })
    }

    async fn attach_and_serve(self) -> Result<(), Problem> {
        let gone = || Problem::new("gone", format!("domain {} is not there", self.domain));
        let home = home(self.domain);
        let mut theirs = self.store.subscribe();
        let mut ours = self.store.subscribe();
        let watched = async {
            theirs.watch(&format!("{home}/data/vmloop")).await?;
            theirs.watch(&format!("{home}/control/shutdown")).await?;
            ours.watch(&format!("{home}/name")).await?;
            ours.watch(&format!("/local/domain/0/backend/vif/{}", self.domain)).await
        };
        watched.await.map_err(|error| store_problem(&error))?;
        let Present { machine, written, hello } = match self.present().await {
            Ok(present) => present,
            Err(Failed::Gone) => return Err(gone()),
            Err(Failed::Store(error)) => return Err(store_problem(&error)),
        };

        if written.lines.contains_key("detached") && !self.include {
            let name = machine.name.clone();
            let event = Event::Excluded { key: self.key, machine: Box::new(machine) };
            // Fails only when the agent ends.
            let _ = self.events.send(event).await;
            return Err(Problem::new("detached", format!("{name} was detached"))
                .hint("vmloop attach lets it take part again"));
        }

        // Channels of a guest whose modules were started again are lost.
        let incarnation = hello.as_ref().map_or(0, |hello| hello.incarnation);
        let saved = parse_epoch(&written.lines).map_or(0, |(_, incarnation)| incarnation);
        let links = parse_links(&written.lines);
        let alive = |link: &Link| {
            incarnation != 0 && incarnation == saved && link.task != nodes::Task::Close
        };
        let found = links
            .iter()
            .map(|(tag, link)| {
                // An epoch of 0 is nobody's.
                let epoch = peer_epoch(&written.lines, link.peer).filter(|_| alive(link));
                Found { tag: *tag, peer: link.peer, epoch: epoch.unwrap_or(0) }
            })
            .collect();
        let dead =
            if incarnation == saved { HashSet::new() } else { links.keys().copied().collect() };

        let (commands, inbox) = mpsc::unbounded_channel();
        let (orders, to_do) = mpsc::unbounded_channel();
        let (directory, updates) = watch::channel(None);
        let (go, went) = oneshot::channel();
        let (name, epoch) = (machine.name.clone(), machine.epoch);
        let connected = Connected {
            key: self.key,
            name: name.clone(),
            found,
            handle: Handle { place: AnyPlace::Xen(Place { orders }), commands, directory },
            go,
            machine: machine.clone(),
        };
        let agent_ends = |_| Problem::new("ending", "the agent is ending");
        self.events
            .send(Event::Connected(Box::new(connected)))
            .await
            .map_err(|_| agent_ends(()))?;
        went.await.map_err(|_| agent_ends(()))??;

        let mut serving = Serving {
            home,
            epoch,
            name,
            nics: machine.nics,
            inbox,
            to_do,
            updates,
            agent: None,
            incarnation,
            has_spoken: incarnation != 0 || saved != 0,
            announced: false,
            welcomed: false,
            entries: None,
            links,
            dead,
            said: HashMap::new(),
            refused: VecDeque::new(),
            // Others than those of an earlier agent.
            sequence: now().as_secs() as u32,
            cookie: None,
            counting: false,
            shutdown: String::new(),
            written,
            flushed: false,
            dirty: true,
            ending: Vec::new(),
            cleared: Vec::new(),
            complaints: Bucket::new(0.1, 3.0),
            reads: 0,
            theirs,
            ours,
            task: self,
        };
        serving.tell(Event::Attached { key: serving.task.key }).await;
        serving.run().await;
        Ok(())
    }
}

/// Returns when a domain is gone.
async fn ended(gone: &mut watch::Receiver<bool>) {
    // Fails only when the agent ends.
    let _ = gone.wait_for(|gone| *gone).await;
}

struct Refusal {
    peer: u64,
    reason: u32,
    retry_ms: u32,
    sequence: u32,
}

struct Serving {
    task: Task,
    home: String,
    epoch: u64,
    name: String,
    nics: Vec<Nic>,
    inbox: mpsc::UnboundedReceiver<Command>,
    to_do: mpsc::UnboundedReceiver<Order>,
    updates: watch::Receiver<Directory>,
    theirs: Subscription,
    ours: Subscription,
    /// idle_ms and ring_size, once the broker has told
    agent: Option<(u32, u32)>,
    /// of the modules that are there; 0 if none
    incarnation: u64,
    /// whether there were ever any
    has_spoken: bool,
    /// whether the broker knows of them
    announced: bool,
    /// whether the broker has answered them
    welcomed: bool,
    entries: Directory,
    links: BTreeMap<u32, Link>,
    /// Channels that the modules which are there know nothing of.
    dead: HashSet<u32>,
    /// What the guest said last about each channel.
    said: HashMap<u32, Vec<u8>>,
    refused: VecDeque<Refusal>,
    sequence: u32,
    /// When counters were asked for last.
    cookie: Option<u32>,
    /// Whether they have not come yet.
    counting: bool,
    shutdown: String,
    /// What stands in its pages.
    written: Written,
    flushed: bool,
    dirty: bool,
    ending: Vec<(u32, Instant, oneshot::Sender<()>)>,
    cleared: Vec<oneshot::Sender<()>>,
    complaints: Bucket,
    /// Nodes read in this look.
    reads: usize,
}

impl Serving {
    async fn tell(&self, event: Event) {
        // Fails only when the agent ends.
        let _ = self.task.events.send(event).await;
    }

    async fn hear(&self, message: GuestMessage) {
        self.tell(Event::Guest { key: self.task.key, message }).await;
    }

    /// Returns when the guest is detached or gone, or XenStore is.
    async fn run(&mut self) {
        let mut looks = Bucket::new(10.0, 20.0);
        // Answers to a flood are written together.
        let mut flushes = Bucket::new(20.0, 40.0);
        let mut throttled = None;
        let mut retry = None;
        let mut gather = None;
        loop {
            self.end_channels();
            let now = Instant::now();
            if self.dirty && self.may_flush() && retry.is_none() && gather.is_none() {
                match flushes.take(now) {
                    Ok(()) => gather = Some(now + GATHER),
                    Err(when) => retry = Some(when),
                }
            }
            if gather.take_if(|until| *until <= now).is_some() && self.may_flush() {
                match self.flush().await {
                    Ok(()) => {
                        for done in self.cleared.drain(..) {
                            // Fails only if nobody waits any more.
                            let _ = done.send(());
                        }
                    }
                    Err(Failed::Gone) => return,
                    Err(Failed::Store(Error::Closed)) => return,
                    Err(Failed::Store(error)) => {
                        if self.complaints.take(Instant::now()).is_ok() {
                            warn!(guest = self.name, %error, "its directory; trying again");
                        }
                        retry = Some(Instant::now() + AGAIN);
                    }
                }
            }
            let deadline = self.ending.iter().map(|(_, until, _)| *until).min();
            let wake = [throttled, retry, gather, deadline].into_iter().flatten().min();
            let store = self.task.store.clone();
            tokio::select! {
                biased;
                () = ended(&mut self.task.gone) => return,
                () = store.closed() => return,
                command = self.inbox.recv() => match command {
                    None => return,
                    Some(Command::Detach) => {
                        self.leave().await;
                        return;
                    }
                    Some(command) => self.obey(command).await,
                },
                order = self.to_do.recv() => match order {
                    None => return,
                    Some(order) => self.carry_out(order),
                },
                changed = self.updates.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.entries = self.updates.borrow_and_update().clone();
                    self.dirty = true;
                }
                () = self.ours.changed() => {
                    // What changes from here on is looked at again.
                    let changed = self.ours.take(usize::MAX);
                    if changed.is_some_and(|paths| !paths.iter().any(|path| is_what_it_is(path))) {
                        continue;
                    }
                    match self.look_at_ours().await {
                        Ok(()) => {}
                        Err(Failed::Gone | Failed::Store(Error::Closed)) => return,
                        Err(Failed::Store(error)) => {
                            warn!(guest = self.name, %error, "its interfaces");
                        }
                    }
                }
                () = self.theirs.changed(), if throttled.is_none() => {
                    match looks.take(Instant::now()) {
                        Err(when) => {
                            self.task.counters.throttled.add(1);
                            throttled = Some(when);
                        }
                        Ok(()) => {
                            self.reads = 0;
                            match self.look().await {
                                Ok(()) => {}
                                Err(Error::Closed) => return,
                                Err(error) => self.malformed(&error.to_string()),
                            }
                            // A look at everything is worth several.
                            looks.owe(self.reads as f64 / BATCH as f64);
                        }
                    }
                }
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {
                    let now = Instant::now();
                    throttled = throttled.filter(|when| *when > now);
                    retry = retry.filter(|when| *when > now);
                }
            }
            // What came in a burst is written at once.
            while let Ok(order) = self.to_do.try_recv() {
                self.carry_out(order);
            }
        }
    }

    // ---- what the agent wants

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Welcome { message, ring_size } => {
                if let AgentMessage::Welcome { idle_ms, name, .. } = message {
                    self.agent = Some((idle_ms, ring_size));
                    self.name = name;
                    self.welcomed = self.incarnation != 0;
                    self.entries = self.updates.borrow_and_update().clone();
                    self.dirty = true;
                }
            }
            Command::Send(AgentMessage::Refused { peer, reason, retry_ms }) => {
                self.refused.retain(|refusal| refusal.peer != peer);
                if self.refused.len() == REFUSALS {
                    self.refused.pop_front();
                }
                self.sequence = self.sequence.wrapping_add(1);
                let sequence = self.sequence;
                self.refused.push_back(Refusal { peer, reason, retry_ms, sequence });
                self.dirty = true;
            }
            Command::Send(AgentMessage::StatsGet { cookie }) => {
                self.cookie = Some(cookie);
                self.counting = true;
                self.dirty = true;
            }
            // Channels and directories have ways of their own.
            Command::Send(_) => {}
            Command::Rescan => match self.look_at_ours().await {
                Ok(()) | Err(Failed::Gone) => {}
                Err(Failed::Store(error)) => warn!(guest = self.name, %error, "its interfaces"),
            },
            // Xen's own word comes in time, in control/shutdown: the broker asks
            // for none of these.
            Command::Detach | Command::Prepare | Command::Migrate { .. } | Command::Resume => {}
        }
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Set(tag, link) => {
                if self.dead.contains(&tag) {
                    return;
                }
                if self.links.insert(tag, link).is_none() {
                    // What stands there is about an older one.
                    self.said.remove(&tag);
                }
            }
            Order::Clear(tag, done) => {
                self.links.remove(&tag);
                self.dead.remove(&tag);
                self.said.remove(&tag);
                self.cleared.push(done);
            }
            Order::End(tag, done) => {
                if let Some(link) = self.links.get_mut(&tag) {
                    link.task = nodes::Task::Close;
                }
                self.ending.push((tag, Instant::now() + DRAIN, done));
            }
        }
        self.dirty = true;
    }

    /// Removes channels without another end that the guest has let go of.
    fn end_channels(&mut self) {
        let now = Instant::now();
        for (tag, until, done) in std::mem::take(&mut self.ending) {
            let closed = self.said.get(&tag).is_some_and(|said| {
                matches!(Said::parse(said), Some(Said::State(ChannelState::Closed) | Said::Fail(_)))
            });
            if closed || until <= now || self.incarnation == 0 || self.dead.contains(&tag) {
                self.carry_out(Order::Clear(tag, done));
            } else {
                self.ending.push((tag, until, done));
            }
        }
    }

    // ---- our subtree

    /// Whether enough is known: a guest that was there before the agent must
    /// not find its directory empty in between, and the broker is about to answer
    /// one that has just begun.
    fn may_flush(&self) -> bool {
        self.entries.is_some() && (self.incarnation == 0 || self.welcomed)
    }

    fn desired(&self) -> Lines {
        let mut all = Lines::new();
        let epoch = self.epoch;
        let echo = if self.welcomed { self.incarnation } else { 0 };
        all.insert("epoch".into(), format!("{epoch:016x} {echo:016x}"));
        if let Some((idle_ms, ring_size)) = self.agent {
            let agent = nodes::Agent {
                agent: self.task.agent,
                id: self.task.domain.into(),
                epoch,
                echo,
                idle_ms,
                ring_size,
                name: self.name.clone(),
            };
            all.insert("agent".into(), agent.to_string());
        }
        // Who has not spoken does not read.
        if !self.welcomed {
            return all;
        }
        for (tag, link) in &self.links {
            if !self.dead.contains(tag) {
                all.insert(format!("channel/{tag}"), link.to_string());
            }
        }
        if let Some(entries) = &self.entries {
            // A channel that these modules do not know is none.
            let known = |entry: &DirectoryEntry| {
                let tag = if self.dead.contains(&entry.tag) { 0 } else { entry.tag };
                DirectoryEntry { tag, ..entry.clone() }
            };
            let entries: Vec<_> = entries.iter().map(known).collect();
            nodes::directory(&entries, &mut all);
        }
        for Refusal { peer, reason, retry_ms, sequence } in &self.refused {
            all.insert(format!("refused/{peer}"), format!("{reason} {retry_ms} {sequence}"));
        }
        if let Some(cookie) = self.cookie {
            all.insert("stats".into(), cookie.to_string());
        }
        all
    }

    async fn flush(&mut self) -> Result<(), Failed> {
        let desired = self.desired();
        if !self.flushed || desired != self.written.lines {
            match self.replace(desired).await {
                Ok(written) => self.written = written,
                Err(failed) => {
                    // It may be there all the same: no other state has its number.
                    self.written.generation = self.written.generation.wrapping_add(1);
                    return Err(failed);
                }
            }
        }
        self.flushed = true;
        self.dirty = false;
        Ok(())
    }

    /// Has its pages say something else, all at once.
    async fn replace(&self, lines: Lines) -> Result<Written, Failed> {
        let root = format!("{}/vmloop", self.home);
        let draft = Draft::new(self.written.generation.wrapping_add(1), lines);
        if self.flushed && draft.is_only(&self.written) {
            self.write_only(&root, &draft).await?;
            return Ok(draft.written());
        }
        let mut attempt = 0;
        loop {
            match self.write(&root, &draft).await {
                Err(Failed::Store(error)) if error.is_conflict() && attempt < TRIES => {
                    // Others get their turn.
                    sleep(Duration::from_millis(1 << attempt.min(6))).await;
                    attempt += 1;
                }
                other => return other.map(|()| draft.written()),
            }
        }
    }

    async fn write_only(&self, root: &str, draft: &Draft) -> Result<(), Failed> {
        let store = &self.task.store;
        let (written, there) = join!(biased; draft.write_only(store, root), store.few(&self.home));
        // It has brought back what the end of the domain had removed.
        if there?.is_some_and(|names| names == ["vmloop"]) {
            store.remove(&self.home).await?;
            return Err(Failed::Gone);
        }
        Ok(written?)
    }

    async fn write(&self, root: &str, draft: &Draft) -> Result<(), Failed> {
        let transaction = self.task.store.begin().await?;
        let writing = async {
            if !self.flushed {
                self.make(&transaction, root).await?;
            }
            draft.write(&transaction, root, &self.written).await
        };
        // A write would bring back what the end of the domain has removed.
        // XenStore does one thing after the other, so both may be on their way.
        let (there, written) = join!(biased; transaction.exists(&self.home), writing);
        if !there? {
            return Err(Failed::Gone);
        }
        written?;
        Ok(transaction.commit().await?)
    }

    /// Makes what the guest and we write below.
    async fn make(&self, transaction: &Transaction, root: &str) -> Result<(), Error> {
        // What is made below it later has the same permissions.
        let reader = format!("r{}", self.task.domain);
        transaction.make(root).await?;
        transaction.permit(root, &["n0", &reader]).await?;
        // The toolstack has made this one already, as a rule.
        let data = format!("{}/data", self.home);
        if !transaction.exists(&data).await? {
            let owner = format!("n{}", self.task.domain);
            transaction.make(&data).await?;
            transaction.permit(&data, &[&owner]).await?;
        }
        Ok(())
    }

    /// Leaves only the note that the guest is to be left alone.
    async fn leave(&mut self) {
        let epoch = format!("{:016x} {:016x}", self.epoch, 0);
        let lines = Lines::from([("epoch".into(), epoch), ("detached".into(), "1".into())]);
        match self.replace(lines).await {
            Ok(_) | Err(Failed::Gone) => {}
            Err(Failed::Store(error)) => warn!(guest = self.name, %error, "detach"),
        }
    }

    // ---- what the domain is

    async fn look_at_ours(&mut self) -> Result<(), Failed> {
        let store = self.task.store.clone();
        let name = format!("{}/name", self.home);
        let (name, nics) = join!(biased; store.text(&name), nics(&store, self.task.domain));
        let Some(name) = name? else {
            return match store.read(&self.home).await {
                Err(error) if error.is_not_found() => Err(Failed::Gone),
                _ => Ok(()),
            };
        };
        self.tell(Event::Renamed { key: self.task.key, name }).await;
        let nics = nics?;
        if self.nics != nics {
            self.nics.clone_from(&nics);
            self.tell(Event::Nics { key: self.task.key, nics }).await;
        }
        Ok(())
    }

    // ---- what the guest says

    fn malformed(&mut self, what: &str) {
        self.task.counters.malformed.add(1);
        debug!(guest = self.name, what, "ignored");
        if self.complaints.take(Instant::now()).is_ok() {
            warn!(guest = self.name, "it writes what makes no sense; ignored");
        }
    }

    /// Reads a node of the guest's; None if it is not there, or too long.
    async fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        let full = format!("{}/data/vmloop/{path}", self.home);
        let answer = self.task.store.read(&full).await;
        self.accept(answer)
    }

    fn accept(&mut self, answer: Result<Vec<u8>, Error>) -> Result<Option<Vec<u8>>, Error> {
        self.reads += 1;
        match answer {
            Ok(value) if value.len() > nodes::VALUE_MAX => {
                self.malformed("a long value");
                Ok(None)
            }
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Looks at what changed below the guest's own nodes, up to a limit.
    async fn look(&mut self) -> Result<(), Error> {
        let root = format!("{}/data/vmloop", self.home);
        let shutdown = format!("{}/control/shutdown", self.home);
        let changed = self.theirs.take(BATCH);
        let mut all = changed.is_none();
        let mut hello = all;
        let mut addresses = all;
        let mut stats = false;
        let mut leaving = all;
        let mut wants = Vec::new();
        let mut tags = Vec::new();
        for path in changed.unwrap_or_default() {
            if path == shutdown {
                leaving = true;
                continue;
            }
            let Some(rest) = path.strip_prefix(&root) else { continue };
            let parts: Vec<&str> = rest.trim_start_matches('/').splitn(3, '/').collect();
            match parts[..] {
                [""] => all = true,
                ["hello"] => hello = true,
                ["address"] => addresses = true,
                ["stats"] => stats = true,
                ["want", peer] => match nodes::number::<u64>(peer).filter(|peer| *peer != 0) {
                    Some(peer) => wants.push(peer),
                    None => self.malformed("want"),
                },
                ["channel", tag] => match nodes::tag(tag) {
                    Some(tag) => tags.push(tag),
                    None => self.malformed("channel"),
                },
                // What leads to others, and what a count or cookie tells of.
                ["want" | "channel"] | ["address", _] | ["stats", ..] => {}
                _ => self.malformed("a path"),
            }
        }
        if leaving {
            self.look_at_shutdown(&shutdown).await?;
        }
        let mut address = None;
        if all || hello {
            let (hello, said) = (format!("{root}/hello"), format!("{root}/address"));
            let store = self.task.store.clone();
            // Whoever begins says its addresses before, if it knows them.
            let (hello, said) = join!(biased; store.read(&hello), store.read(&said));
            let hello = self.accept(hello)?;
            address = Some(self.accept(said)?);
            let before = self.announced.then_some(self.incarnation);
            self.look_at_hello(hello).await;
            // Whoever begins has said nothing else yet.
            addresses |= self.announced && before != Some(self.incarnation);
        }
        if self.incarnation == 0 {
            return Ok(());
        }
        if all || addresses {
            let address = match address {
                Some(address) => address,
                None => self.read("address").await?,
            };
            self.look_at_addresses(address).await?;
        }
        if all {
            tags = self.links.keys().copied().collect();
        }
        for tag in tags {
            self.look_at_channel(tag).await?;
        }
        if all {
            // What is there was not answered yet.
            let listed = self.task.store.few(&format!("{root}/want")).await?;
            let listed = listed.unwrap_or_default();
            wants = listed.iter().filter_map(|peer| nodes::number(peer)).take(WANTS).collect();
        }
        for peer in wants {
            self.look_at_want(peer).await?;
        }
        if all || stats {
            self.look_at_stats().await?;
        }
        Ok(())
    }

    async fn look_at_shutdown(&mut self, path: &str) -> Result<(), Error> {
        let value = match self.task.store.read(path).await {
            Ok(value) => value,
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error),
        };
        let known = ["suspend", "poweroff", "halt", "reboot"];
        let value = known.iter().find(|word| word.as_bytes() == value).unwrap_or(&"");
        if *value != self.shutdown {
            (*value).clone_into(&mut self.shutdown);
            if !value.is_empty() {
                self.tell(Event::Leaving { key: self.task.key, why: value }).await;
            }
        }
        Ok(())
    }

    async fn look_at_hello(&mut self, value: Option<Vec<u8>>) {
        let mut hello = value.as_deref().and_then(Hello::parse);
        if value.is_some() && hello.is_none() {
            self.malformed("hello");
        }
        if let Some(Hello { major, .. }) = hello
            && major != shm::VMLOOP_SHM_MAJOR
        {
            if self.complaints.take(Instant::now()).is_ok() {
                warn!(
                    guest = self.name,
                    major, "its modules speak another version of the protocol"
                );
            }
            hello = None;
        }
        let incarnation = hello.as_ref().map_or(0, |hello| hello.incarnation);
        if incarnation != self.incarnation {
            // These modules know nothing of what the ones before did. What is
            // there before the first ones was begun for them.
            if std::mem::replace(&mut self.has_spoken, true) {
                self.dead.extend(self.links.keys());
            }
            self.said.clear();
            self.refused.clear();
            self.cookie = None;
            self.counting = false;
            self.welcomed = false;
            self.incarnation = incarnation;
            self.dirty = true;
            if std::mem::take(&mut self.announced) {
                self.tell(Event::Away { key: self.task.key }).await;
            }
        }
        if let Some(Hello { major, minor, features, version, kernel, .. }) = hello
            && !self.announced
        {
            self.announced = true;
            self.hear(GuestMessage::Hello { major, minor, features, version, kernel }).await;
        }
    }

    async fn look_at_addresses(&mut self, value: Option<Vec<u8>>) -> Result<(), Error> {
        let Some(value) = value else { return Ok(()) };
        let Some((count, mut list)) = nodes::addresses(&value) else {
            self.malformed("address");
            return Ok(());
        };
        let count = count.min(ADDRESSES);
        for at in 1..count.div_ceil(nodes::ADDRESSES) {
            let Some(value) = self.read(&format!("address/{at}")).await? else { continue };
            match nodes::more_addresses(&value) {
                Some(more) => list.extend(more),
                None => self.malformed("addresses"),
            }
        }
        list.truncate(count);
        self.hear(GuestMessage::Advertise(list)).await;
        Ok(())
    }

    async fn look_at_want(&mut self, peer: u64) -> Result<(), Error> {
        let Some(value) = self.read(&format!("want/{peer}")).await? else {
            return Ok(());
        };
        match nodes::want(&value) {
            Some((epoch, attempt)) => {
                self.hear(GuestMessage::Want { peer, epoch, attempt }).await;
            }
            None => self.malformed("want"),
        }
        Ok(())
    }

    async fn look_at_channel(&mut self, tag: u32) -> Result<(), Error> {
        let Some(link) = self.links.get(&tag).copied() else { return Ok(()) };
        if self.dead.contains(&tag) {
            return Ok(());
        }
        let Some(value) = self.read(&format!("channel/{tag}")).await? else { return Ok(()) };
        if self.said.get(&tag) == Some(&value) {
            return Ok(());
        }
        let key = self.task.key;
        match Said::parse(&value) {
            Some(Said::State(state)) => self.hear(GuestMessage::State { tag, state }).await,
            Some(Said::Offer(gref, port)) if link.side == 0 => {
                self.tell(Event::Offer { key, tag, gref, port }).await;
            }
            Some(Said::Fail(errno)) => self.tell(Event::Fail { key, tag, errno }).await,
            Some(Said::Offer(..)) | None => self.malformed("channel"),
        }
        self.said.insert(tag, value);
        Ok(())
    }

    async fn look_at_stats(&mut self) -> Result<(), Error> {
        let Some(cookie) = self.cookie.filter(|_| self.counting) else { return Ok(()) };
        let value = self.read("stats").await?;
        let answered = value.as_deref().and_then(nodes::words);
        if answered.and_then(|words| nodes::number::<u32>(words.first()?)) != Some(cookie) {
            return Ok(());
        }
        self.counting = false;
        let tags: Vec<u32> = self.links.keys().copied().take(COUNTED).collect();
        for tag in tags {
            let Some(value) = self.read(&format!("stats/{cookie}/{tag}")).await? else { continue };
            match nodes::counters(&value) {
                Some(counters) => self.hear(GuestMessage::Stats { cookie, tag, counters }).await,
                None => self.malformed("stats"),
            }
        }
        let counters = vmloop_abi::message::Counters::default();
        self.hear(GuestMessage::Stats { cookie, tag: 0, counters }).await;
        Ok(())
    }
}
