// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The state of a domain's task, and how it reads what the guest wrote.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{debug, warn};
use vmloop_abi::message::GuestMessage;
use vmloop_xenstore::{Error, Store, Subscription};

use super::domain::Domain;
use super::end::Order;
use super::nodes::{self, Link};
use super::pages::Written;
use crate::bucket::Bucket;
use crate::event::{Event, Post};
use crate::handle::Command;
use crate::latest::{Directory, Latest};
use crate::machine::{Key, Nic};
use crate::mailbox;

/// What a domain's task needs to begin.
pub struct Task {
    /// names the attachment
    pub key: Key,
    /// the domain
    pub domain: Domain,
    /// attach it even if an operator has detached it before
    pub include: bool,
    /// XenStore
    pub store: Store,
    /// true once the domain is gone
    pub gone: watch::Receiver<bool>,
    /// the broker
    pub post: Post,
}

/// An answer to a want.
pub(super) struct Refusal {
    pub(super) peer: u64,
    pub(super) reason: u32,
    pub(super) retry_ms: u32,
    pub(super) sequence: u32,
}

/// A domain's task that serves.
pub(super) struct Serving {
    pub(super) task: Task,
    pub(super) home: String,
    pub(super) epoch: u64,
    pub(super) name: String,
    pub(super) nics: Vec<Nic>,
    pub(super) inbox: mailbox::Receiver<Command>,
    pub(super) to_do: mpsc::UnboundedReceiver<Order>,
    pub(super) updates: Latest,
    pub(super) theirs: Subscription,
    pub(super) ours: Subscription,
    /// idle_ms and ring_size, once the broker has told
    pub(super) agent: Option<(u32, u32)>,
    /// of the modules that are there; 0 if none
    pub(super) incarnation: u64,
    /// whether there were ever any
    pub(super) has_spoken: bool,
    /// whether the broker knows of them
    pub(super) announced: bool,
    /// whether the broker has answered them
    pub(super) welcomed: bool,
    pub(super) entries: Directory,
    pub(super) links: BTreeMap<u32, Link>,
    /// Channels that the modules which are there know nothing of.
    pub(super) dead: HashSet<u32>,
    /// What the guest said last about each channel.
    pub(super) said: HashMap<u32, Vec<u8>>,
    pub(super) refused: VecDeque<Refusal>,
    pub(super) sequence: u32,
    /// When counters were asked for last.
    pub(super) cookie: Option<u32>,
    /// Whether they have not come yet.
    pub(super) counting: bool,
    pub(super) shutdown: String,
    /// What stands in its pages.
    pub(super) written: Written,
    pub(super) flushed: bool,
    pub(super) dirty: bool,
    pub(super) ending: Vec<(u32, Instant, oneshot::Sender<()>)>,
    pub(super) cleared: Vec<oneshot::Sender<()>>,
    pub(super) complaints: Bucket,
    /// Nodes read in this look.
    pub(super) reads: usize,
}

impl Serving {
    pub(super) async fn tell(&self, event: Event) {
        self.task.post.tell(event).await;
    }

    pub(super) async fn hear(&self, message: GuestMessage) {
        self.tell(Event::Guest { key: self.task.key, message }).await;
    }

    pub(super) fn malformed(&mut self, what: &str) {
        self.task.post.counters.malformed.add(1);
        debug!(guest = self.name, what, "ignored");
        if self.complaints.take(Instant::now()).is_ok() {
            warn!(guest = self.name, "it writes what makes no sense; ignored");
        }
    }

    /// Reads a node of the guest's; None if it is not there, or too long.
    pub(super) async fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        let full = format!("{}/data/vmloop/{path}", self.home);
        let answer = self.task.store.read(&full).await;
        self.accept(answer)
    }

    pub(super) fn accept(
        &mut self,
        answer: Result<Vec<u8>, Error>,
    ) -> Result<Option<Vec<u8>>, Error> {
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
}
