// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the broker knows of any hypervisor, and what it asks of one.
//!
//! On QEMU a guest has a task that speaks QMP and a control device
//! (`guest`), and a channel one that plugs devices (`channel`). On Xen both
//! speak XenStore (`xen`). Everything that decides is the same for both.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use vmloop_abi::message::{AgentMessage, DirectoryEntry};
use vmloop_api::Problem;

use crate::device::{Plugged, Slots};
use crate::machine::{NoTaps, channel_chardev, channel_device};
use crate::xen;

/// Names an attachment: a number that is never used again, so that what a
/// former life of a guest caused cannot be taken for its present one's doing.
pub type Key = u64;

/// A directory, shared between the broker and a guest's task; None while the
/// broker does not know enough yet.
pub type Directory = Option<Arc<Vec<DirectoryEntry>>>;

/// A network interface as the hypervisor was told to make it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// address that the hypervisor was told
    pub mac: [u8; 6],
    /// host interface behind it; empty if it has none
    pub tap: String,
    /// why that is not known, if it is not; QEMU only
    pub unknown: Option<NoTaps>,
}

/// A channel that an earlier agent made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// of the channel
    pub tag: u32,
    /// identity of the other guest
    pub peer: u64,
    /// epoch of the other guest
    pub epoch: u64,
}

/// What a hypervisor tells about a guest.
#[derive(Clone, Debug)]
pub struct Machine {
    /// UUID; None if it has none, or only zeros
    pub uuid: Option<String>,
    /// the hypervisor's name for it; may be empty
    pub name: String,
    /// kind of machine, for people
    pub kind_name: String,
    /// process of its QEMU; 0 on Xen
    pub pid: u32,
    /// identity; never 0
    pub id: u64,
    /// epoch
    pub epoch: u64,
    /// interfaces
    pub nics: Vec<Nic>,
}

/// What the broker tells a guest's task.
#[derive(Debug)]
pub enum Command {
    /// Answer a HELLO; the directory follows by itself.
    Welcome {
        /// the answer
        message: AgentMessage,
        /// bytes of each ring of new channels, for guests that make them
        ring_size: u32,
    },
    /// Send a message.
    Send(AgentMessage),
    /// Look for interfaces again.
    Rescan,
    /// Unplug the control device, and stand by for a migration; QEMU only.
    Prepare,
    /// Begin a migration, of a guest that is prepared.
    Migrate {
        /// where to, as QEMU wants to hear it
        uri: String,
        /// when its preparation began
        began: Instant,
        /// how it went
        reply: oneshot::Sender<Result<Value, Problem>>,
    },
    /// Plug the control device again; a migration that [`Command::Migrate`]
    /// began is cancelled before.
    Resume,
    /// Leave the guest alone, and end.
    Detach,
}

/// Where a guest's ends of channels are made.
#[derive(Clone)]
pub enum Place {
    /// In a QEMU, as devices.
    Qemu(Slots),
    /// In XenStore, as nodes.
    Xen(xen::guest::Place),
}

impl Place {
    /// Removes an end of a channel that has lost the other one. Returns when
    /// it is gone; `slow` is called once if the guest takes its time.
    pub async fn remove(&self, found: &Found, slow: impl FnOnce()) {
        match self {
            Self::Qemu(slots) => {
                let plugged = Plugged::found(
                    channel_device(found.tag),
                    channel_chardev(found.tag, found.peer, found.epoch),
                );
                slots.unplug(plugged, slow).await;
            }
            Self::Xen(place) => place.end(found.tag).await,
        }
    }
}

/// The broker's handle of a guest.
pub struct Handle {
    /// where its ends of channels are made
    pub place: Place,
    /// its task
    pub commands: mpsc::UnboundedSender<Command>,
    /// what it is to know
    pub directory: watch::Sender<Directory>,
}

/// What the broker learns when a task has connected.
pub struct Connected {
    /// names the attachment
    pub key: Key,
    /// what the hypervisor told
    pub machine: Machine,
    /// the name to use
    pub name: String,
    /// channels of an earlier agent
    pub found: Vec<Found>,
    /// the handle
    pub handle: Handle,
    /// the broker's answer: go on, or why not
    pub go: oneshot::Sender<Result<(), Problem>>,
}

/// Grants so many things per second, and some at once.
#[derive(Debug)]
pub struct Bucket {
    per_second: f64,
    most: f64,
    level: f64,
    then: Instant,
}

impl Bucket {
    /// A full one.
    pub fn new(per_second: f64, most: f64) -> Self {
        Self { per_second, most, level: most, then: Instant::now() }
    }

    /// Takes one, or says when there will be one.
    ///
    /// # Errors
    /// The instant at which to ask again.
    pub fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let passed = now.saturating_duration_since(self.then).as_secs_f64();
        self.then = now;
        self.level = (self.level + passed * self.per_second).min(self.most);
        if self.level >= 1.0 {
            self.level -= 1.0;
            return Ok(());
        }
        Err(now + Duration::from_secs_f64((1.0 - self.level) / self.per_second))
    }

    /// Takes more than are there, for what cost more than was known before.
    pub fn owe(&mut self, count: f64) {
        self.level -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets() {
        let mut bucket = Bucket::new(10.0, 2.0);
        let now = Instant::now();
        assert_eq!(bucket.take(now), Ok(()));
        assert_eq!(bucket.take(now), Ok(()));
        let Err(later) = bucket.take(now) else { panic!("a third one") };
        let wait = later - now;
        assert!(wait > Duration::from_millis(90) && wait < Duration::from_millis(110), "{wait:?}");
        assert_eq!(bucket.take(later + Duration::from_millis(1)), Ok(()));
        assert!(bucket.take(later + Duration::from_millis(1)).is_err());
        bucket.owe(10.0);
        assert!(bucket.take(later + Duration::from_millis(1001)).is_err());
        assert!(bucket.take(later + Duration::from_millis(1201)).is_ok());
    }
}
