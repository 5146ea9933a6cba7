// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The ends of a channel: what a hypervisor makes in each of its two guests.
//!
//! A guest has a [`Place`] where ends are made, and each channel a [`GuestEnd`]
//! in each of its guests. `crate::channel` drives both ends and names no
//! hypervisor.

use std::future::Future;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::Semaphore;
use vmloop_abi::lanes::VMLOOP_WINDOWS_MAX;
use vmloop_abi::memory::{self, Layout};

use crate::limits::BELLS;
use crate::machine::Found;

/// What takes time.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Called once when a guest takes its time.
pub type Slow<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Who makes the memory of a channel, and its doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// The host, one window, and doorbells for each side; see [`Region`].
    Host,
    /// The host, a window for each side, and copies from one to the other; see
    /// [`crate::relayed`].
    Relay,
    /// The guest on side 0, which offers them to side 1; see [`Offer`].
    Guest,
}

/// Memory and doorbells of a channel that the host makes. Guests have their own
/// descriptors of them once both ends are open, and ours go.
pub struct Region {
    /// the memory
    pub memory: OwnedFd,
    /// its bytes
    pub size: u64,
    /// what rings at each side, 1 at least and as many at both
    pub doorbells: [Vec<OwnedFd>; 2],
}

/// A doorbell.
///
/// # Errors
/// Those of eventfd(2).
pub fn doorbell() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

impl Region {
    /// For rings of packets of so many bytes, with `bells` doorbells of each side.
    ///
    /// # Errors
    /// Those of the host, when it has no more memory or descriptors.
    pub fn new(ring_size: u32, bells: u32, layout: Layout) -> io::Result<Self> {
        let doorbells = || (0..bells.max(1)).map(|_| doorbell()).collect::<io::Result<_>>();
        let header = memory::channel_header(ring_size, layout);
        Ok(Self {
            memory: memory::create("vmloop-channel", &header)?,
            size: header.size,
            doorbells: [doorbells()?, doorbells()?],
        })
    }
}

/// Where to find the memory and the doorbells that the guest on side 0 made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// grant of the memory's descriptor
    pub gref: u32,
    /// event channels, 1 at least
    pub ports: Ports,
}

/// Event channels of one side of a channel, by the number of the doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    all: [u32; BELLS as usize],
    count: usize,
}

impl Ports {
    /// The first of these; what is more than a channel can use is left out.
    pub fn new(ports: &[u32]) -> Self {
        let mut own = Self::default();
        own.count = ports.len().min(own.all.len());
        own.all[..own.count].copy_from_slice(&ports[..own.count]);
        own
    }

    /// All of them.
    pub fn as_slice(&self) -> &[u32] {
        &self.all[..self.count]
    }
}

/// Why an end of a channel could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// Which end of which channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// tag of the channel
    pub tag: u32,
    /// which side the guest is; 0 is the lower identity
    pub side: usize,
    /// identity of the other guest
    pub peer: u64,
    /// epoch of the other guest
    pub epoch: u64,
    /// what its memory is to have in it
    pub layout: Layout,
    /// doorbells of each side, at most
    pub bells: u32,
}

/// Names a window of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowId {
    /// tag of the channel
    pub tag: u32,
    /// the side that owns it
    pub owner: usize,
    /// its number there
    pub number: u32,
}

impl WindowId {
    /// Whether only one of the two can be there at a time.
    pub fn has_place_of(self, other: Self) -> bool {
        let place = |id: Self| (id.owner, id.number % VMLOOP_WINDOWS_MAX);
        place(self) == place(other)
    }
}

/// A guest's end of a window.
pub struct WindowEnd<'a> {
    /// which window
    pub id: WindowId,
    /// its memory
    pub memory: BorrowedFd<'a>,
    /// bytes of that
    pub size: u64,
    /// The guest may write to it; else it can only read.
    pub writes: bool,
    /// False once nobody wants it any more: nothing is plugged then.
    pub wanted: &'a AtomicBool,
}

/// Where a guest's ends of channels are made.
pub trait Place: Send + Sync {
    /// Who makes memory and doorbells. Two guests can have a channel only if
    /// it is the same for both.
    fn medium(&self) -> Medium;

    /// Where to ask for leave before an end is made; None if the host makes nothing
    /// for it.
    fn making(&self) -> Option<Arc<Semaphore>>;

    /// How long the guest may take to let go of a channel that is to end.
    fn drain(&self) -> Duration;

    /// An end that is neither open nor adopted yet.
    fn end(&self, spec: Spec) -> Box<dyn GuestEnd>;

    /// Removes an end of an earlier agent that has lost the other one. Returns
    /// when it is gone, or the machine is.
    fn remove<'a>(&'a self, found: &'a Found, slow: Slow<'a>) -> Pending<'a, ()>;

    /// Makes an end of a window that the host makes; where it is on the guest's PCI bus.
    /// After an error, which is for people, something of it may be there:
    /// [`Place::remove_window`] follows. Must run to its end.
    fn window<'a>(&'a self, end: WindowEnd<'a>) -> Pending<'a, Result<u16, String>>;

    /// Removes an end of a window, if there is one. Returns when it is gone, or the machine
    /// is.
    fn remove_window<'a>(&'a self, id: WindowId, slow: Slow<'a>) -> Pending<'a, ()>;
}

/// One end of one channel. It is opened or adopted once, then asked to let go,
/// then removed, unless the agent ends before.
pub trait GuestEnd: Send {
    /// Opens the end on what the host made; None where guests make it, and then
    /// it returns before they have. What was half done is undone on an error.
    fn open<'a>(&'a mut self, region: Option<&'a Region>) -> Pending<'a, Result<(), Failure>>;

    /// Takes over the end that an earlier agent opened.
    fn adopt(&mut self);

    /// Tells side 1 what side 0 has made; never where the host makes it.
    fn take(&mut self, offer: Offer);

    /// Has the guest let go of the channel, as far as the broker's CLOSE does not.
    fn release(&mut self);

    /// Removes the end, if it is open. Returns when it is gone, or the machine is.
    fn remove<'a>(&'a mut self, slow: Slow<'a>) -> Pending<'a, ()>;

    /// The agent ends, and the channel stays.
    fn leave(self: Box<Self>);
}
