// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The Xen side of the agent, in dom0: finds guests, and speaks with their
//! modules through XenStore (docs/protocol.md, section 8).
//!
//! Nothing is polled: domains that come and go, guests' nodes and the
//! backends of their interfaces are watched. A guest's own subtree can hold
//! anything; its task reads it a bounded number of times.

pub mod domain;
pub mod end;
pub mod guest;
mod look;
pub mod nodes;
pub mod pages;
pub mod present;
pub mod serving;
mod subtree;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tracing::{debug, warn};
use vmloop_abi::message::TAG_MAX;
use vmloop_api::{Hypervisor, Problem};
use vmloop_xenstore::{Error, Store};

use crate::backend::{Backend, Capabilities, Socket};
use crate::end::Pending;
use crate::event::{Event, Number, Post};
use crate::machine::{Key, Machine};
use domain::{Domain, home};

/// How long guests may take to send their counters, each of which is a request to
/// XenStore.
const STATS: Duration = Duration::from_secs(1);
/// How long the end of the agent may wait for XenStore.
const GOODBYE: Duration = Duration::from_secs(2);

/// Whether this is the control domain of a Xen host.
pub fn is_here() -> bool {
    std::fs::read_to_string("/proc/xen/capabilities").is_ok_and(|text| text.contains("control_d"))
}

/// All domains but our own that are there and alive.
async fn domains(store: &Store) -> Result<BTreeSet<Domain>, Error> {
    let mut all = BTreeSet::new();
    for name in store.directory("/local/domain").await? {
        let Some(domain) = nodes::number::<Domain>(&name).filter(|domain| *domain != 0) else {
            continue;
        };
        if store.is_introduced(domain).await? {
            all.insert(domain);
        }
    }
    Ok(all)
}

/// Tells the broker of domains as they come and go; at first of all.
///
/// # Errors
/// Those of XenStore.
pub async fn find(store: Store, events: mpsc::Sender<Event>) -> Result<(), Error> {
    let mut changes = store.subscribe();
    changes.watch("@introduceDomain").await?;
    changes.watch("@releaseDomain").await?;
    let mut known = BTreeSet::new();
    let mut first = true;
    loop {
        // What changes from here on is looked at again.
        changes.take(usize::MAX);
        let now = domains(&store).await?;
        let come: Vec<_> = now.difference(&known).copied().collect();
        let gone: Vec<_> = known.difference(&now).copied().collect();
        known = now;
        if first || !come.is_empty() || !gone.is_empty() {
            first = false;
            debug!(?come, ?gone, "domains");
            if events.send(Event::Machines { come, gone }).await.is_err() {
                return Ok(());
            }
        }
        tokio::select! {
            () = changes.changed() => {}
            () = store.closed() => return Err(Error::Closed),
        }
    }
}

/// Says to all guests that there is no agent any more. Channels stay.
pub async fn goodbye(store: &Store) {
    let all = async {
        for domain in domains(store).await? {
            let root = format!("{}/vmloop", home(domain));
            let transaction = store.begin().await?;
            let now = pages::read(&transaction, &root).await?;
            let mut lines = now.lines.clone();
            if lines.remove("agent").is_none() {
                continue;
            }
            // Far from what its task may write at the same time.
            let generation = now.generation.wrapping_add(1000);
            pages::Draft::new(generation, lines).write(&transaction, &root, &now).await?;
            match transaction.commit().await {
                // A domain that ends, or an agent that was about to write.
                Err(error) if error.is_conflict() => {}
                other => other?,
            }
        }
        Ok::<_, Error>(())
    };
    match timeout(GOODBYE, all).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(%error, "saying goodbye"),
        Err(_) => warn!("XenStore does not answer"),
    }
}

/// A domain that is there.
struct Entry {
    /// its guest, if it is attached
    key: Option<Key>,
    /// tells its task when it is gone
    gone: watch::Sender<bool>,
    /// what it is, if an operator has detached it
    excluded: Option<Machine>,
}

/// Domains of this host.
pub struct Xen {
    store: Store,
    domains: HashMap<Domain, Entry>,
}

impl Xen {
    /// Those that this XenStore knows.
    pub fn new(store: Store) -> Self {
        Self { store, domains: HashMap::new() }
    }

    /// Attaches a domain; `include` even if an operator has detached it.
    fn serve(&mut self, post: &Post, key: Key, domain: Domain, include: bool) {
        let Some(entry) = self.domains.get_mut(&domain) else { return };
        entry.key = Some(key);
        entry.excluded = None;
        let task = serving::Task {
            key,
            domain,
            include,
            store: self.store.clone(),
            gone: entry.gone.subscribe(),
            post: post.clone(),
        };
        tokio::spawn(task.run());
    }

    fn by_key(&mut self, key: Key) -> Option<(&Domain, &mut Entry)> {
        self.domains.iter_mut().find(|(_, entry)| entry.key == Some(key))
    }
}

impl Backend for Xen {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            hypervisor: Hypervisor::Xen,
            finds_all: true,
            names: true,
            prepares: false,
            gives_memory: false,
            tags_in_turn: TAG_MAX,
            stats: STATS,
        }
    }

    fn find(&self, events: mpsc::Sender<Event>) -> Pending<'static, anyhow::Result<()>> {
        let store = self.store.clone();
        Box::pin(async move { Ok(find(store, events).await?) })
    }

    fn goodbye(&self) -> Option<Pending<'static, ()>> {
        let store = self.store.clone();
        Some(Box::pin(async move { goodbye(&store).await }))
    }

    fn attach(&mut self, _: &Post, _: Key, _: Socket) -> Result<(), Problem> {
        let hint = "domains are found by themselves; vmloop attach DOMAIN undoes vmloop detach";
        Err(Problem::new("not-qemu", "this agent serves Xen domains, not QEMUs").hint(hint))
    }

    fn came(&mut self, post: &Post, key: Key, number: Number) {
        let entry = Entry { key: None, gone: watch::channel(false).0, excluded: None };
        self.domains.insert(number, entry);
        self.serve(post, key, number, false);
    }

    fn went(&mut self, number: Number) {
        if let Some(entry) = self.domains.remove(&number) {
            entry.gone.send_replace(true);
        }
    }

    fn include(&mut self, post: &Post, key: Key, text: &str) -> Result<(), Problem> {
        let wanted = text.to_ascii_lowercase();
        let found = self.domains.iter().find(|(domain, entry)| {
            entry.key.is_none()
                && (domain.to_string() == text
                    || entry.excluded.as_ref().is_some_and(|machine| {
                        machine.name == text
                            || machine.uuid.as_deref() == Some(&*wanted)
                            || format!("{:016x}", machine.id) == wanted
                    }))
        });
        let Some((domain, _)) = found else {
            let text = format!("there is no domain {text:?}");
            return Err(Problem::new("no-such-guest", text).hint("see vmloop ls and xl list"));
        };
        self.serve(post, key, *domain, true);
        Ok(())
    }

    fn exclude(&mut self, key: Key, machine: Machine) {
        if let Some((_, entry)) = self.by_key(key) {
            entry.excluded = Some(machine);
        }
    }

    fn ended(&mut self, key: Key, problem: Option<&Problem>) {
        let Some((domain, entry)) = self.by_key(key) else { return };
        entry.key = None;
        if let Some(problem) = problem.filter(|problem| problem.code != "detached") {
            warn!(domain, %problem, "cannot attach");
        }
    }

    fn excluded(&self) -> Vec<&Machine> {
        let idle = self.domains.values().filter(|entry| entry.key.is_none());
        idle.filter_map(|entry| entry.excluded.as_ref()).collect()
    }

    /// xl, or who does as it does, renames a domain that it receives just before
    /// it runs.
    fn incoming<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_suffix("--incoming")
    }
}
