// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Domains: their numbers, and where XenStore has what it knows of them.

/// A domain's number.
pub type Domain = u32;

/// Path of a domain.
pub fn home(domain: Domain) -> String {
    format!("/local/domain/{domain}")
}
