// SPDX-License-Identifier: GPL-2.0 OR MIT
//! vmloopd, the host agent: finds the guests of this host, gives each the
//! directory of its peers, and brings about a channel between two that want
//! one.
//!
//! `broker` decides; a task for each guest (`guest` on QEMU, `xen::guest`) and
//! each channel (`channel`, `xen::channel`) does what takes time; `hypervisor`
//! is what the two kinds have in common; `standby` waits for migrations. What guests write is checked in
//! `vmloop_abi` and `xen::nodes`, and limited in their tasks. See
//! docs/agent.md.

pub mod breaks;
pub mod broker;
pub mod channel;
pub mod cli;
pub mod config;
pub mod counters;
pub mod device;
pub mod directory;
pub mod guest;
pub mod hypervisor;
pub mod limits;
pub mod links;
pub mod machine;
pub mod metrics;
pub mod routes;
pub mod server;
pub mod standby;
pub mod state;
pub mod watch;
pub mod xen;
