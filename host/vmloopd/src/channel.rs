// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One task for each channel: makes its two ends, waits until it is to be
//! closed, lets both guests drain, and removes them. Here are QEMU's, which are
//! devices; Xen's are in `xen::channel`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tracing::warn;
use vmloop_abi::{memory, shm};

use crate::broker::Event;
use crate::device::{self, Plugged, Slots, Spec};
use crate::hypervisor::Place;
use crate::machine::{channel_chardev, channel_device};
use crate::xen;

/// How long guests may drain a channel that is to be closed.
const DRAIN: Duration = Duration::from_millis(500);

/// Names a channel; never used again.
pub type ChannelKey = u64;

/// What the broker tells a channel's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Close it; the broker has told the guests.
    Close,
    /// A side (0 or 1) is done with it, or is not there any more.
    Closed(usize),
    /// A side has made the region; Xen only.
    Offer {
        /// which
        side: usize,
        /// grant of the region's descriptor
        gref: u32,
        /// event channel
        port: u32,
    },
    /// A side could not make the region, or map it; Xen only.
    Fail {
        /// which
        side: usize,
        /// an error's number
        errno: u32,
    },
}

/// Why an end of a channel could not be made.
#[derive(Debug)]
pub struct Failure {
    /// which side's
    pub side: usize,
    /// `VMLOOP_REFUSED_*`
    pub reason: u32,
    /// why, for people
    pub text: String,
    /// what the operator can do about it; may be empty
    pub hint: &'static str,
}

impl Failure {
    fn new(side: usize, error: &device::Error) -> Self {
        let reason = match error {
            device::Error::Slots(_) => shm::VMLOOP_REFUSED_SLOTS,
            _ => shm::VMLOOP_REFUSED_FAILED,
        };
        Self { side, reason, text: error.to_string(), hint: error.hint() }
    }
}

/// What a channel's task tells the broker.
#[derive(Debug)]
pub enum News {
    /// Both ends are made.
    Open,
    /// An end could not be made. `Gone` follows.
    Failed(Failure),
    /// The guests had their chance: the tag must leave the directories.
    Unplugging,
    /// One side keeps its end for long.
    Stuck(usize),
    /// The end of one side is gone.
    SideGone(usize),
    /// All is gone.
    Gone,
}

/// One end of a channel.
pub struct End {
    /// identity of the guest
    pub id: u64,
    /// its epoch
    pub epoch: u64,
    /// where its end is made
    pub place: Place,
}

/// A channel's task.
pub struct Task {
    /// names the channel
    pub key: ChannelKey,
    /// its tag
    pub tag: u32,
    /// of each ring in bytes
    pub ring_size: u32,
    /// the guests, the lower identity first
    pub ends: [End; 2],
    /// the broker
    pub events: mpsc::Sender<Event>,
    /// from the broker
    pub commands: mpsc::UnboundedReceiver<Command>,
}

/// Memory and doorbells of a channel. QEMU has its own descriptors of them
/// once the devices are plugged, and ours go.
struct Parts {
    memory: OwnedFd,
    size: u64,
    doorbells: [OwnedFd; 2],
}

impl Parts {
    fn new(ring_size: u32) -> io::Result<Self> {
        let header = memory::channel_header(ring_size);
        Ok(Self {
            memory: memory::create("vmloop-channel", &header)?,
            size: header.size,
            doorbells: [device::doorbell()?, device::doorbell()?],
        })
    }

    fn spec(&self, side: usize, tag: u32, peer: &End) -> Spec<'_> {
        let id = |side: usize| (2 * tag + side as u32) as u16;
        Spec {
            device: channel_device(tag),
            chardev: channel_chardev(tag, peer.id, peer.epoch),
            memory: self.memory.as_fd(),
            size: self.size,
            own: (id(side), self.doorbells[side].as_fd()),
            other: (id(1 - side), self.doorbells[1 - side].as_fd()),
        }
    }
}

impl Task {
    /// Tells the broker.
    pub async fn tell(&self, news: News) {
        // Fails only when the agent ends.
        let _ = self.events.send(Event::Channel { key: self.key, news }).await;
    }

    /// Makes the channel, or takes over one of an earlier agent (`adopted`),
    /// and serves it until it is gone.
    pub async fn run(self, adopted: bool) {
        match [&self.ends[0].place, &self.ends[1].place] {
            [Place::Qemu(a), Place::Qemu(b)] => {
                let mut devices = Devices { slots: [a.clone(), b.clone()], task: self };
                if adopted {
                    devices.adopt().await;
                } else {
                    devices.open().await;
                }
            }
            [Place::Xen(a), Place::Xen(b)] => {
                let places = [a.clone(), b.clone()];
                xen::channel::run(self, places, adopted).await;
            }
            // A host has one hypervisor.
            _ => self.tell(News::Gone).await,
        }
    }
}

/// A channel between two QEMUs.
struct Devices {
    task: Task,
    slots: [Slots; 2],
}

impl Devices {
    async fn open(&mut self) {
        let task = &self.task;
        let [a, b] = &task.ends;
        let plugged = match Parts::new(task.ring_size) {
            Err(error) => {
                task.tell(News::Failed(Failure::new(0, &error.into()))).await;
                task.tell(News::Gone).await;
                return;
            }
            Ok(parts) => tokio::join!(
                self.slots[0].plug(parts.spec(0, task.tag, b)),
                self.slots[1].plug(parts.spec(1, task.tag, a)),
            ),
        };
        let plugged = match plugged {
            (Ok(a), Ok(b)) => {
                task.tell(News::Open).await;
                [Some(a), Some(b)]
            }
            (a, b) => {
                let mut left = [None, None];
                for (side, result) in [a, b].into_iter().enumerate() {
                    match result {
                        Ok(plugged) => left[side] = Some(plugged),
                        Err(error) => {
                            task.tell(News::Failed(Failure::new(side, &error))).await;
                        }
                    }
                }
                self.unplug(left).await;
                return;
            }
        };
        self.serve(plugged).await;
    }

    async fn adopt(&mut self) {
        let tag = self.task.tag;
        let found = |peer: &End| {
            let chardev = channel_chardev(tag, peer.id, peer.epoch);
            Some(Plugged::found(channel_device(tag), chardev))
        };
        let plugged = [found(&self.task.ends[1]), found(&self.task.ends[0])];
        self.serve(plugged).await;
    }

    async fn serve(&mut self, plugged: [Option<Plugged>; 2]) {
        let mut closed = [false; 2];
        loop {
            match self.task.commands.recv().await {
                // The agent ends: the channel stays.
                None => {
                    std::mem::forget(plugged);
                    return;
                }
                Some(Command::Close) => break,
                Some(Command::Closed(side)) => closed[side] = true,
                Some(Command::Offer { .. } | Command::Fail { .. }) => {}
            }
        }
        let deadline = Instant::now() + DRAIN;
        while closed != [true; 2] {
            match timeout_at(deadline, self.task.commands.recv()).await {
                Ok(Some(Command::Closed(side))) => closed[side] = true,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        self.unplug(plugged).await;
    }

    async fn unplug(&self, plugged: [Option<Plugged>; 2]) {
        self.task.tell(News::Unplugging).await;
        let [a, b] = plugged;
        tokio::join!(self.unplug_side(0, a), self.unplug_side(1, b));
        self.task.tell(News::Gone).await;
    }

    async fn unplug_side(&self, side: usize, plugged: Option<Plugged>) {
        if let Some(plugged) = plugged {
            let (events, key, tag) = (self.task.events.clone(), self.task.key, self.task.tag);
            self.slots[side]
                .unplug(plugged, move || {
                    warn!(tag, side, "the guest keeps the channel's device; asking again");
                    // A full queue loses a remark, nothing else.
                    let _ = events.try_send(Event::Channel { key, news: News::Stuck(side) });
                })
                .await;
        }
        self.task.tell(News::SideGone(side)).await;
    }
}
