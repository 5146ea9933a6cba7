// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the broker and the task of a guest say to each other.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;
use vmloop_abi::message::AgentMessage;
use vmloop_api::Problem;

use crate::answer::Reply;
use crate::end::{Place, WindowId};
use crate::latest::Teller;
use crate::machine::{Found, Key, Machine};
use crate::mailbox;

/// What the broker tells a guest's task.
#[derive(Debug)]
pub enum Command {
    /// Answer a HELLO; the directory follows by itself.
    Welcome {
        /// the answer
        message: AgentMessage,
        /// bytes of each ring of new channels, for guests that make them
        ring_size: u32,
        /// whether the guest understands what is new in a directory, or wants it whole
        changes: bool,
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
        reply: Reply,
    },
    /// Plug the control device again; a migration that [`Command::Migrate`]
    /// began is cancelled before.
    Resume,
    /// Leave the guest alone, and end.
    Detach,
}

/// The broker's handle of a guest.
pub struct Handle {
    /// where its ends of channels are made
    pub place: Arc<dyn Place>,
    /// its task
    pub commands: mailbox::Sender<Command>,
    /// what it is to know
    pub directory: Teller,
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
    /// windows that an earlier agent has left; each is told of when it is gone
    /// ([`crate::event::Event::WindowGone`])
    pub windows: Vec<WindowId>,
    /// the handle
    pub handle: Handle,
    /// the broker's answer: go on, or why not
    pub go: oneshot::Sender<Result<(), Problem>>,
}
