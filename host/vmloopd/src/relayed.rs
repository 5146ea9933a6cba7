// SPDX-License-Identifier: GPL-2.0 OR MIT
//! For tests: a relay in a thread of the agent's between the two guests of a channel. Each
//! guest has memory of its own with it, and none with the other.
//!
//! With the variable `VMLOOPD_TEST_RELAY` in the agent's environment, for guests of QEMU
//! whose channels have tables of lanes. A relay ends with its agent, and what it copied
//! stalls: guests take the standard network.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};
use tracing::{info, warn};
use vmloop_abi::table::Table;
use vmloop_relay::{Doorbells, Kinds, Outcome, Relay};

use crate::end::Region;

static WANTED: LazyLock<bool> = LazyLock::new(|| {
    let wanted = std::env::var_os("VMLOOPD_TEST_RELAY").is_some_and(|value| value == "1");
    if wanted {
        warn!("VMLOOPD_TEST_RELAY: relays stand between guests, for tests alone");
    }
    wanted
});

/// Whether guests are to share nothing with each other. Those of version 1 share memory all the
/// same.
pub fn is_wanted() -> bool {
    *WANTED
}

/// A relay that runs, until this is dropped or both of its channels have ended.
pub struct Relayed {
    over: Arc<AtomicBool>,
    bell: OwnedFd,
}

/// Doorbells, each an eventfd, in the order of the guests.
struct Bells {
    guests: [OwnedFd; 2],
    ours: [OwnedFd; 2],
    over: Arc<AtomicBool>,
}

fn ring(bell: &OwnedFd) {
    // Fails only where it has been rung so often that it is heard for certain.
    let _ = write(bell, &1u64.to_ne_bytes());
}

impl Doorbells for Bells {
    fn ring(&mut self, guest: usize) {
        ring(&self.guests[guest]);
    }

    fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        let timeout = Timespec::try_from(at_most).map_err(io::Error::other)?;
        let mut bells = self.ours.each_ref().map(|bell| PollFd::new(bell, PollFlags::IN));
        match poll(&mut bells, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for bell in &self.ours {
            // Silent ones say that there is nothing.
            let _ = read(bell, &mut [0; 8]);
        }
        if self.over.load(Ordering::Acquire) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    }
}

impl Relayed {
    /// Stands between the guests that have the sides 0 of `regions[0]` and 1 of
    /// `regions[1]`.
    ///
    /// # Errors
    /// Those of the host, when it has no more memory, descriptors or threads.
    pub fn start(tag: u32, regions: [&Region; 2]) -> io::Result<Self> {
        let [a, b] = regions;
        let tables = [Table::map(&a.memory, 1)?, Table::map(&b.memory, 0)?];
        let mut relay = Relay::new(tables, Kinds::default()).map_err(io::Error::other)?;
        let over = Arc::new(AtomicBool::new(false));
        let mut bells = Bells {
            guests: [a.doorbells[0][0].try_clone()?, b.doorbells[1][0].try_clone()?],
            ours: [a.doorbells[1][0].try_clone()?, b.doorbells[0][0].try_clone()?],
            over: Arc::clone(&over),
        };
        let bell = a.doorbells[1][0].try_clone()?;
        thread::Builder::new().name("relay".into()).spawn(move || match relay.run(&mut bells) {
            Ok([Outcome::Closed, Outcome::Closed]) => info!(tag, "relay: both channels closed"),
            Ok(outcome) => warn!(tag, ?outcome, "relay: a guest broke the protocol"),
            Err(_) => info!(tag, "relay: its channel is gone"),
        })?;
        Ok(Self { over, bell })
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        ring(&self.bell);
    }
}
