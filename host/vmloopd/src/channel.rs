// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One task for each channel: plugs its two devices, waits until it is to be
//! closed, lets both guests drain, and unplugs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tracing::warn;
use vmloop_abi::memory;

use crate::broker::Event;
use crate::device::{self, Plugged, Slots, Spec};
use crate::machine::{channel_chardev, channel_device};

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
}

/// What a channel's task tells the broker.
#[derive(Debug)]
pub enum News {
    /// Both devices are plugged.
    Open,
    /// A device could not be plugged; which side's, and why. `Gone` follows.
    Failed(usize, device::Error),
    /// The guests had their chance: the tag must leave the directories.
    Unplugging,
    /// One side keeps its device for long.
    Stuck(usize),
    /// The device of one side is gone.
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
    /// its places for devices
    pub slots: Slots,
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
    async fn tell(&self, news: News) {
        // Fails only when the agent ends.
        let _ = self.events.send(Event::Channel { key: self.key, news }).await;
    }

    /// Makes the channel, and serves it until it is gone.
    pub async fn open(mut self) {
        let [a, b] = &self.ends;
        let plugged = match Parts::new(self.ring_size) {
            Err(error) => {
                self.tell(News::Failed(0, error.into())).await;
                self.tell(News::Gone).await;
                return;
            }
            Ok(parts) => tokio::join!(
                a.slots.plug(parts.spec(0, self.tag, b)),
                b.slots.plug(parts.spec(1, self.tag, a)),
            ),
        };
        let plugged = match plugged {
            (Ok(a), Ok(b)) => {
                self.tell(News::Open).await;
                [Some(a), Some(b)]
            }
            (a, b) => {
                let mut left = [None, None];
                for (side, result) in [a, b].into_iter().enumerate() {
                    match result {
                        Ok(plugged) => left[side] = Some(plugged),
                        Err(error) => self.tell(News::Failed(side, error)).await,
                    }
                }
                self.unplug(left).await;
                return;
            }
        };
        self.serve(plugged).await;
    }

    /// Serves a channel of an earlier agent.
    pub async fn adopt(mut self) {
        let found = |peer: &End| {
            let chardev = channel_chardev(self.tag, peer.id, peer.epoch);
            Some(Plugged::found(channel_device(self.tag), chardev))
        };
        let plugged = [found(&self.ends[1]), found(&self.ends[0])];
        self.serve(plugged).await;
    }

    async fn serve(&mut self, plugged: [Option<Plugged>; 2]) {
        let mut closed = [false; 2];
        loop {
            match self.commands.recv().await {
                // The agent ends: the channel stays.
                None => {
                    std::mem::forget(plugged);
                    return;
                }
                Some(Command::Close) => break,
                Some(Command::Closed(side)) => closed[side] = true,
            }
        }
        let deadline = Instant::now() + DRAIN;
        while closed != [true; 2] {
            match timeout_at(deadline, self.commands.recv()).await {
                Ok(Some(Command::Closed(side))) => closed[side] = true,
                Ok(Some(Command::Close)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        self.unplug(plugged).await;
    }

    async fn unplug(&self, plugged: [Option<Plugged>; 2]) {
        self.tell(News::Unplugging).await;
        let [a, b] = plugged;
        tokio::join!(self.unplug_side(0, a), self.unplug_side(1, b));
        self.tell(News::Gone).await;
    }

    async fn unplug_side(&self, side: usize, plugged: Option<Plugged>) {
        if let Some(plugged) = plugged {
            let (events, key, tag) = (self.events.clone(), self.key, self.tag);
            self.ends[side]
                .slots
                .unplug(plugged, move || {
                    warn!(tag, side, "the guest keeps the channel's device; asking again");
                    // A full queue loses a remark, nothing else.
                    let _ = events.try_send(Event::Channel { key, news: News::Stuck(side) });
                })
                .await;
        }
        self.tell(News::SideGone(side)).await;
    }
}
