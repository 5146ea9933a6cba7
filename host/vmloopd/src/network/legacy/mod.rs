// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Rules of the old kind, which nftables knows nothing of: those of iptables-legacy
//! and ebtables-legacy. They are read by options of sockets, with CAP_NET_ADMIN, and
//! nothing tells of changes.

pub mod blob;
pub mod ebtables;
pub mod iptables;
pub mod option;
pub mod read;
