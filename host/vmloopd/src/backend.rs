// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A hypervisor: how its machines are found and attached, and in what one
//! differs from another. What it makes in a guest is a `crate::end::Place`.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use vmloop_api::{Hypervisor, Problem};

use crate::end::Pending;
use crate::event::{Event, Number, Post};
use crate::machine::{Key, Machine};

/// In what hypervisors differ, as far as the broker must know.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// for the API and the log: `qemu`, `xen`
    pub hypervisor: Hypervisor,
    /// Machines are found by their numbers, and what an earlier agent had with
    /// them stands where guests can read it. Otherwise they are found by sockets,
    /// which the soft state remembers.
    pub finds_all: bool,
    /// The hypervisor names its machines, several alike if it wants, and may
    /// rename them.
    pub names: bool,
    /// A guest must be prepared before it is migrated or saved.
    pub prepares: bool,
    /// The rings of channels are the host's memory, not the guests' own.
    pub gives_memory: bool,
    /// Tags of channels that are taken in turn; those above only when none of them is free.
    pub tags_in_turn: u32,
    /// how long guests may take to send their counters
    pub stats: Duration,
}

/// A machine to attach to, by its socket.
pub struct Socket {
    /// path of the socket
    pub path: PathBuf,
    /// name that the operator gave
    pub name: Option<String>,
    /// Until when to try again if nobody answers: the connection of an earlier
    /// agent may have just ended, on a host that is busy.
    pub retry_until: Option<Instant>,
}

/// A hypervisor. It spawns a task for each machine, which tells the broker of it
/// with `Connected` and `Left`; what is called here never waits.
pub trait Backend: Send {
    /// In what it differs from others.
    fn capabilities(&self) -> Capabilities;

    /// Finds machines for ever. An error is the end of the agent.
    fn find(&self, events: mpsc::Sender<Event>) -> Pending<'static, anyhow::Result<()>>;

    /// Says to all guests that there is no agent any more. Channels stay. None
    /// where that says itself.
    fn goodbye(&self) -> Option<Pending<'static, ()>>;

    /// Begins to attach to the machine behind a socket.
    ///
    /// # Errors
    /// `not-qemu` where machines have none.
    fn attach(&mut self, post: &Post, key: Key, socket: Socket) -> Result<(), Problem>;

    /// A machine with a number has come: begins to attach to it.
    fn came(&mut self, post: &Post, key: Key, number: Number);

    /// A machine with a number is not there any more.
    fn went(&mut self, number: Number);

    /// Begins to attach again to a machine that an operator has detached.
    ///
    /// # Errors
    /// `not-xen` where that is not needed, `no-such-guest` if there is none.
    fn include(&mut self, post: &Post, key: Key, text: &str) -> Result<(), Problem>;

    /// An operator has detached a machine, now or some time ago.
    fn exclude(&mut self, key: Key, machine: Machine);

    /// The task of a machine has ended; a problem if it could not be attached.
    fn ended(&mut self, key: Key, problem: Option<&Problem>);

    /// Machines that are here, and that an operator has detached.
    fn excluded(&self) -> Vec<&Machine>;

    /// The name that a machine will have, if it is called as one that is about
    /// to be received.
    fn incoming<'a>(&self, name: &'a str) -> Option<&'a str>;
}
