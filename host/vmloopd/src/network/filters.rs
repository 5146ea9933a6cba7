// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the host's network does to frames that is no matter of single interfaces: its
//! chains of rules, whether those of IP see what a bridge passes, rules of routing.

use std::fs;
use std::io;
use std::sync::Arc;

use vmloop_api::{Filter, FilterKind};

use super::legacy::read as legacy;
use super::nft::socket;
use super::ruleset::{Chain, Ruleset};

/// Where the switches of br_netfilter are, for all bridges.
const SWITCHES: &str = "/proc/sys/net/bridge/bridge-nf-call-";

/// Which chains of IP and ARP see frames that a bridge passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Switches {
    /// those of IPv4
    pub ip: bool,
    /// those of IPv6
    pub ip6: bool,
    /// those of ARP
    pub arp: bool,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// all chains
    pub rules: Arc<Ruleset>,
    /// why those are not known, if they are not
    pub unreadable: Option<String>,
    /// what br_netfilter shows of all bridges; None if it is not there, and shows
    /// nothing, whatever single bridges say
    pub br_netfilter: Option<Switches>,
    /// a rule of routing that the kernel does not have by itself
    pub routing: Option<String>,
}

impl Filters {
    /// Which chains see what a bridge passes that has these switches of its own.
    pub fn calls(&self, bridge: Switches) -> Switches {
        let Some(all) = self.br_netfilter else { return Switches::default() };
        Switches { ip: all.ip || bridge.ip, ip6: all.ip6 || bridge.ip6, arp: all.arp || bridge.arp }
    }

    /// That the rules are not known, as a filter.
    pub fn unknown(&self) -> Option<Filter> {
        let text = format!("the host's filters cannot be read ({})", self.unreadable.as_ref()?);
        Some(Filter { kind: FilterKind::Unreadable, text, ..Filter::default() })
    }

    /// A rule of routing, as a filter of routed packets.
    pub fn route_rule(&self) -> Option<Filter> {
        let text = format!("the host has a rule of routing ({})", self.routing.as_ref()?);
        Some(Filter { kind: FilterKind::Rule, text, ..Filter::default() })
    }
}

/// The switches of br_netfilter in this network namespace.
pub fn br_netfilter() -> Option<Switches> {
    let is_on = |which: &str| match fs::read_to_string(format!("{SWITCHES}{which}")) {
        Ok(text) => Some(text.trim() != "0"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        // What is there and cannot be read may be on.
        Err(_) => Some(true),
    };
    let found = ["iptables", "ip6tables", "arptables"].map(is_on);
    found.iter().any(Option::is_some).then(|| {
        let [ip, ip6, arp] = found.map(|one| one.unwrap_or(false));
        Switches { ip, ip6, arp }
    })
}

/// All chains that nftables has, or why they are not known.
///
/// # Errors
/// A text for people, as for the following.
pub async fn nftables() -> Result<Vec<Chain>, String> {
    read("nftables", socket::read).await
}

/// All chains of iptables and ebtables of the old kind, or why they are not known.
///
/// # Errors
/// A text for people.
pub async fn legacy() -> Result<Vec<Chain>, String> {
    read("iptables-legacy", legacy::read).await
}

async fn read(what: &str, how: fn() -> io::Result<Vec<Chain>>) -> Result<Vec<Chain>, String> {
    let read = tokio::task::spawn_blocking(how).await;
    read.map_err(io::Error::from).and_then(|read| read).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "{what}: {error}: the agent lacks CAP_NET_ADMIN; start it by the packaged unit, and \
             see systemctl cat vmloopd"
        ),
        _ => format!("{what}: {error}"),
    })
}
