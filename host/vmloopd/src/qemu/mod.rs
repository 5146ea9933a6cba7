// SPDX-License-Identifier: GPL-2.0 OR MIT
//! QEMU machines: each has a task that speaks QMP and serves the guest's control
//! device, and channels are devices that are plugged.

pub mod control;
pub mod conversation;
pub mod device;
pub mod end;
pub mod guest;
pub mod ids;
pub mod left;
pub mod machine;
pub mod migration;
pub mod nics;
pub mod outbox;
pub mod problems;
pub mod process;
pub mod slots;
pub mod standby;
pub mod watch;
pub mod window;

use std::time::Duration;

use tokio::sync::mpsc;
use tracing::error;
use vmloop_api::{Hypervisor, Problem};

use crate::backend::{Backend, Capabilities, Socket};
use crate::config::{GuestConfig, Vfio};
use crate::end::Pending;
use crate::event::{Event, Number, Post};
use crate::machine::{Key, Machine};
use nics::Taps;

/// How long guests may take to send their counters.
const STATS: Duration = Duration::from_millis(300);

/// QEMU machines of this host.
pub struct Qemu {
    /// sockets to attach to as they appear
    pub patterns: Vec<String>,
    /// guests to attach to as they appear
    pub guests: Vec<GuestConfig>,
    /// how to find the taps of a process
    pub taps: fn(u32) -> Taps,
    /// how long a guest that was prepared waits for its migration
    pub prepared: Duration,
    /// whether machines with VFIO devices get shared memory
    pub vfio: Vfio,
}

impl Backend for Qemu {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            hypervisor: Hypervisor::Qemu,
            finds_all: false,
            names: false,
            prepares: true,
            gives_memory: true,
            // QEMU keeps an entry for each id up to the device's, 2 * tag + 1, with one for
            // each of its vectors (resize_peers() in its hw/misc/ivshmem.c): with the
            // highest tags 4 MiB for a device of nine.
            tags_in_turn: 2047,
            stats: STATS,
        }
    }

    fn find(&self, events: mpsc::Sender<Event>) -> Pending<'static, anyhow::Result<()>> {
        let (patterns, guests) = (self.patterns.clone(), self.guests.clone());
        Box::pin(async move {
            if let Err(error) = watch::run(patterns, guests, events).await {
                error!(%error, "QMP sockets are no longer watched");
            }
            std::future::pending().await
        })
    }

    fn goodbye(&self) -> Option<Pending<'static, ()>> {
        None
    }

    fn attach(&mut self, post: &Post, key: Key, socket: Socket) -> Result<(), Problem> {
        let Socket { path, name, retry_until } = socket;
        let task = guest::Task {
            key,
            path,
            name,
            post: post.clone(),
            taps: self.taps,
            retry_until,
            prepared: self.prepared,
            vfio: self.vfio,
        };
        tokio::spawn(task.run());
        Ok(())
    }

    fn came(&mut self, _: &Post, _: Key, _: Number) {}

    fn went(&mut self, _: Number) {}

    fn include(&mut self, _: &Post, _: Key, _: &str) -> Result<(), Problem> {
        Err(Problem::new("not-xen", "this agent serves QEMUs, not Xen domains")
            .hint("attach to a machine with: vmloop attach --qmp SOCKET"))
    }

    fn exclude(&mut self, _: Key, _: Machine) {}

    fn ended(&mut self, _: Key, _: Option<&Problem>) {}

    fn excluded(&self) -> Vec<&Machine> {
        Vec::new()
    }

    fn incoming<'a>(&self, _: &'a str) -> Option<&'a str> {
        None
    }
}
