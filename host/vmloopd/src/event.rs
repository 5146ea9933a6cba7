// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the broker hears, from all that waits for a guest or a hypervisor.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use vmloop_abi::message::GuestMessage;
use vmloop_api::{Problem, Request};

use crate::answer::Reply;
use crate::counters::Counters;
use crate::end::{Failure, Offer, WindowId};
use crate::handle::Connected;
use crate::machine::{Key, Machine, Moving, Nic};
use crate::network::links::Links;

/// Names a channel; never used again.
pub type ChannelKey = u64;

/// A machine's number, where the hypervisor gives it one.
pub type Number = u32;

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
    /// Where a side has its end of a window; None: it cannot be made.
    Window {
        /// the side, 0 or 1
        side: usize,
        /// the window
        id: WindowId,
        /// its bytes
        size: u64,
        /// on the guest's PCI bus
        place: Option<u16>,
    },
    /// A window cannot be made.
    WindowFailed {
        /// the side in which it cannot be; None: nowhere
        side: Option<usize>,
        /// the window
        id: WindowId,
        /// why, and what the operator can do about it
        text: String,
    },
    /// A window that was wanted is not, or will not be, there any more.
    WindowGone {
        /// the window
        id: WindowId,
    },
    /// The end of one side of a window is gone.
    WindowEndGone {
        /// the side, 0 or 1
        side: usize,
        /// the window
        id: WindowId,
    },
    /// All is gone.
    Gone,
}

/// Everything that the broker hears.
pub enum Event {
    /// A client of the API asks.
    Api(Request, Reply),
    /// Attach to a QMP socket, unless that was done already; from the watch.
    Appeared {
        /// the socket
        path: PathBuf,
        /// name from the configuration
        name: Option<String>,
        /// how it went
        reply: Reply,
    },
    /// Machines have come or gone that are found by their numbers. The first of
    /// these names all.
    Machines {
        /// numbers that are new
        come: Vec<Number>,
        /// numbers that are not there any more
        gone: Vec<Number>,
    },
    /// An operator has detached this machine some time ago; its task ends.
    Excluded {
        /// the guest
        key: Key,
        /// what it is
        machine: Box<Machine>,
    },
    /// A machine has answered its task for the first time; what else it says comes
    /// with `Connected`.
    Answers {
        /// the attachment
        key: Key,
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
    /// A guest has made a channel's memory.
    Offer {
        /// the guest
        key: Key,
        /// tag of the channel
        tag: u32,
        /// where it is
        offer: Offer,
    },
    /// A guest could not make a channel's memory, or map it.
    Fail {
        /// the guest
        key: Key,
        /// tag of the channel
        tag: u32,
        /// why
        failure: Failure,
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
    /// A window of an earlier agent is gone.
    WindowGone {
        /// the guest
        key: Key,
        /// the window
        id: WindowId,
    },
    /// The host's network changed.
    Links(Links),
    /// SIGHUP
    Reload,
}

/// What the task of a guest or of a channel tells, and counts.
#[derive(Clone)]
pub struct Post {
    /// the broker
    pub events: mpsc::Sender<Event>,
    /// what is counted
    pub counters: Arc<Counters>,
    /// differs for every start of the agent; never 0
    pub agent: u64,
}

impl Post {
    /// Tells the broker.
    pub async fn tell(&self, event: Event) {
        // Fails only when the agent ends.
        let _ = self.events.send(event).await;
    }
}
