// SPDX-License-Identifier: GPL-2.0 OR MIT
//! vmloopd, the host agent: attaches to running QEMUs, gives every guest the
//! directory of its peers, and plugs a channel between two that want one.
//!
//! `broker` decides; a task for each guest (`guest`) and each channel
//! (`channel`) does what takes time. What guests write is checked in
//! `vmloop_abi` and limited in `guest`. See docs/agent.md.

pub mod broker;
pub mod channel;
pub mod cli;
pub mod config;
pub mod counters;
pub mod device;
pub mod directory;
pub mod guest;
pub mod links;
pub mod machine;
pub mod metrics;
pub mod policy;
pub mod qmp;
pub mod server;
pub mod state;
pub mod watch;
