// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What vmloop programs that share memory agree on, for Rust.
//!
//! - [`shm`]: the structures and numbers of `include/vmloop_shm.h`;
//! - [`layout`]: their sizes and offsets, as text;
//! - [`message`]: the control messages, checked;
//! - [`address`]: addresses of guests;
//! - [`directory`]: what guests are told of each other;
//! - [`control`]: the agent's end of a control region, over the ring that is
//!   compiled from `kernel/core/ring.c`, so that there is one implementation;
//! - [`memory`]: sealed memory for regions, and the layout of channels;
//! - [`table`]: one side of a channel of version 2, over the same C files as the
//!   guests' modules: [`ring`], [`life`], and news.
//!
//! Everything unsafe of the host side lives in this crate, in the modules
//! `ring`, `life`, `table`, `mapping`, `control` and `readiness`.

pub mod address;
pub mod control;
pub mod directory;
pub mod lanes;
pub mod layout;
pub mod life;
mod mapping;
pub mod memory;
pub mod message;
pub mod readiness;
pub mod ring;
pub mod shm;
pub mod table;
