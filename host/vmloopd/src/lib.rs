// SPDX-License-Identifier: GPL-2.0 OR MIT
//! vmloopd, the host agent: finds the guests of this host, gives each the
//! directory of its peers, and brings about a channel between two that want
//! one.
//!
//! `broker` decides, and never waits. A task for each guest (`qemu::guest`,
//! `xen::guest`) and each channel (`channel`) does what takes time; they tell the
//! broker with `event`. `backend` and `end` are what the broker and the channels
//! know of a hypervisor. What guests write is checked in `vmloop_abi` and
//! `xen::nodes`, and limited in their tasks. See docs/agent.md, and the picture
//! in ARCHITECTURE.md.

pub mod answer;
pub mod backend;
pub mod breaks;
pub mod broker;
pub mod bucket;
pub mod channel;
pub mod cli;
pub mod config;
pub mod counters;
pub mod differences;
pub mod directory;
pub mod end;
pub mod event;
pub mod handle;
pub mod latest;
pub mod limits;
pub mod mac;
pub mod machine;
pub mod mailbox;
pub mod metrics;
pub mod network;
pub mod qemu;
pub mod relayed;
pub mod server;
pub mod state;
pub mod window;
pub mod windows;
pub mod xen;
