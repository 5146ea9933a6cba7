// SPDX-License-Identifier: GPL-2.0 OR MIT
//! nftables, as the kernel tells of it by nfnetlink.

pub mod attribute;
pub mod expression;
pub mod message;
pub mod socket;
