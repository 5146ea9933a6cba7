// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The host's network: its interfaces and its routes.

pub mod classes;
pub mod filters;
pub mod judge;
pub mod legacy;
pub mod links;
pub mod nft;
pub mod qdisc;
pub mod routes;
pub mod ruleset;
pub mod watch;
