// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Who may talk to whom: `/etc/vmloop/policy.toml`.
//!
//! The network always comes first: guests that share no bridge and VLAN get no
//! channel, whatever the policy says, unless it says that the host routes
//! between them. See docs/agent.md.

mod file;
mod guests;
pub mod in_force;
pub mod pattern;
mod policy;
mod prefix;

pub use file::{Fallback, Filters, Invalid, Streams};
pub use guests::Who;
pub use policy::{DOORBELLS_MAX, IDLE_MS, Policy, RING_SIZE};
pub use prefix::Prefix;
