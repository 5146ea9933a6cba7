// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The host's network: its interfaces and its routes.

pub mod links;
pub mod qdisc;
pub mod routes;
pub mod watch;
