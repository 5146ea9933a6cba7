// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One task for each domain: reads what its modules write, within bounds, and
//! keeps what stands in its `vmloop` subtree as it should be, each change in
//! one transaction.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tracing::warn;
use vmloop_abi::message::{AgentMessage, ChannelState};
use vmloop_api::Problem;
use vmloop_xenstore::Error;

use super::domain::home;
use super::end::{DRAIN, Order, Subtree};
use super::look::BATCH;
use super::nodes::{self, Link, Said};
use super::present::{
    Failed, Present, is_what_it_is, now, parse_epoch, parse_links, peer_epoch, present,
};
use super::serving::{Refusal, Serving, Task};
use crate::bucket::Bucket;
use crate::event::Event;
use crate::handle::{Command, Connected, Handle};
use crate::latest::latest;
use crate::machine::Found;
use crate::mailbox;

/// Refusals that stand in a guest's subtree.
const REFUSALS: usize = 64;
/// When XenStore is full, or odd: when to try again.
const AGAIN: Duration = Duration::from_secs(1);
/// For how long what is to be written is gathered: the broker's answers come one
/// by one, and each transaction takes several trips to xenstored.
const GATHER: Duration = Duration::from_millis(4);

fn store_problem(error: &Error) -> Problem {
    Problem::new("xenstore", error.to_string())
        .hint("see the log of xenstored, and vmloopd's; vmloop attach tries again")
}

impl Task {
    /// Attaches, serves the guest until it is detached or gone, and tells the
    /// broker how it ended.
    pub async fn run(self) {
        let (key, post) = (self.key, self.post.clone());
        let problem = self.attach_and_serve().await.err();
        post.tell(Event::Left { key, problem }).await;
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
        let Present { machine, written, hello } = match present(&self.store, self.domain).await {
            Ok(present) => present,
            Err(Failed::Gone) => return Err(gone()),
            Err(Failed::Store(error)) => return Err(store_problem(&error)),
        };

        if written.lines.contains_key("detached") && !self.include {
            let name = machine.name.clone();
            let event = Event::Excluded { key: self.key, machine: Box::new(machine) };
            self.post.tell(event).await;
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

        let (commands, inbox) = mailbox::mailbox();
        let (orders, to_do) = mpsc::unbounded_channel();
        let (directory, updates) = latest();
        let (go, went) = oneshot::channel();
        let (name, epoch) = (machine.name.clone(), machine.epoch);
        let connected = Connected {
            key: self.key,
            name: name.clone(),
            found,
            windows: Vec::new(),
            handle: Handle { place: Arc::new(Subtree { orders }), commands, directory },
            go,
            machine: machine.clone(),
        };
        let agent_ends = |_| Problem::new("ending", "the agent is ending");
        self.post
            .events
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

impl Serving {
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
                    if !changed {
                        return;
                    }
                    self.entries = self.updates.take().0;
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
                            self.task.post.counters.throttled.add(1);
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
            Command::Welcome { message, ring_size, .. } => {
                if let AgentMessage::Welcome { idle_ms, name, .. } = message {
                    self.agent = Some((idle_ms, ring_size));
                    self.name = name;
                    self.welcomed = self.incarnation != 0;
                    self.entries = self.updates.take().0;
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
}
