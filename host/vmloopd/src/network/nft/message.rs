// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages of nfnetlink's subsystem for nftables: tables, chains and rules. They
//! come from the kernel; what is not understood counts as harm to frames.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use vmloop_api::FilterKind;

use super::attribute::{attributes, find, number, text};
use super::expression;
use crate::network::ruleset::{Base, Chain, Family, Pattern, Rule};

/// A table (`NFT_MSG_NEWTABLE`).
pub const NEW_TABLE: u8 = 0;
/// A chain (`NFT_MSG_NEWCHAIN`).
pub const NEW_CHAIN: u8 = 3;
/// A rule (`NFT_MSG_NEWRULE`).
pub const NEW_RULE: u8 = 6;

/// Of a table: its chains are not at their hooks (`NFT_TABLE_F_DORMANT`).
const DORMANT: u32 = 1;
/// Verdict of a chain's policy (`NF_ACCEPT`).
const ACCEPT: u32 = 1;

/// A message, without its headers.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    /// which of the above
    pub kind: u8,
    /// number of the family
    pub family: u8,
    /// attributes
    pub body: &'a [u8],
}

/// What is read of the kernel's tables, chains and rules, in that order.
#[derive(Default)]
pub struct Reading {
    dormant: HashSet<(Family, String)>,
    tables: HashMap<(Family, String), Arc<str>>,
    chains: Vec<Chain>,
    index: HashMap<(Family, String, String), usize>,
}

impl Reading {
    /// Takes a message.
    pub fn take(&mut self, message: &Message<'_>) {
        let Some(family) = Family::from_number(message.family) else { return };
        match message.kind {
            NEW_TABLE => self.table(family, message.body),
            NEW_CHAIN => self.chain(family, message.body),
            NEW_RULE => self.rule(family, message.body),
            _ => {}
        }
    }

    fn table(&mut self, family: Family, body: &[u8]) {
        let flags = find(body, 2).and_then(number).unwrap_or(0);
        if flags & DORMANT != 0 {
            self.dormant.insert((family, find(body, 1).map(text).unwrap_or_default()));
        }
    }

    fn chain(&mut self, family: Family, body: &[u8]) {
        let table = find(body, 1).map(text).unwrap_or_default();
        let name = find(body, 3).map(text).unwrap_or_default();
        let key = (family, table);
        let is_dormant = self.dormant.contains(&key);
        let shared = self.tables.entry(key.clone()).or_insert_with(|| key.1.as_str().into());
        let base = find(body, 4).filter(|_| !is_dormant).map(|hook| {
            let policy = find(body, 5).and_then(number).unwrap_or(ACCEPT);
            base(hook, policy)
        });
        let chain = Chain {
            source: FilterKind::Nftables,
            family,
            table: shared.clone(),
            name: name.clone(),
            base,
            rules: Vec::new(),
        };
        self.index.insert((family, key.1, name), self.chains.len());
        self.chains.push(chain);
    }

    fn rule(&mut self, family: Family, body: &[u8]) {
        let table = find(body, 1).map(text).unwrap_or_default();
        let name = find(body, 2).map(text).unwrap_or_default();
        // One that came after the chains were read; it is told of by an event.
        let Some(chain) = self.index.get(&(family, table, name)) else { return };
        let steps = find(body, 4).map(expression::steps).unwrap_or_default();
        if expression::does_nothing(&steps) {
            return;
        }
        let handle =
            find(body, 3).and_then(|value| Some(u64::from_be_bytes(value.try_into().ok()?)));
        self.chains[*chain].rules.push(Rule { handle: handle.unwrap_or(0), steps });
    }

    /// All of it.
    pub fn finish(self) -> Vec<Chain> {
        self.chains
    }
}

/// Where frames come to a chain, from its attribute for that.
fn base(hook: &[u8], policy: u32) -> Base {
    let mut devices = Vec::new();
    for (kind, value) in attributes(hook) {
        match kind {
            3 => devices.push(Pattern::name(&text(value))),
            4 => devices.extend(attributes(value).map(|(kind, name)| match kind {
                // A name, or (2) the beginning of names.
                1 => Pattern::name(&text(name)),
                _ => Pattern::new(text(name).as_bytes()),
            })),
            _ => {}
        }
    }
    // A single one comes twice, for older programs.
    devices.dedup();
    Base { hook: find(hook, 1).and_then(number).unwrap_or(0), drops: policy != ACCEPT, devices }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::ruleset::{Step, Which};

    /// What a kernel 6.18 said of the rules at the top of the file.
    const CAPTURED: &str = include_str!("captured.txt");

    fn captured() -> Vec<Chain> {
        let mut reading = Reading::default();
        for line in CAPTURED.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            let byte = |at| u8::from_str_radix(&words[2][at..at + 2], 16).expect("a byte");
            let body: Vec<u8> = (0..words[2].len()).step_by(2).map(byte).collect();
            let [kind, family] = [0, 1].map(|at| words[at].parse().expect("a number"));
            reading.take(&Message { kind, family, body: &body });
        }
        reading.finish()
    }

    fn name(which: Which, pattern: &[u8], equal: bool) -> Step {
        Step::Name { which, pattern: Pattern::new(pattern), equal }
    }

    fn harm(verb: &str) -> Step {
        Step::Harm(verb.into())
    }

    #[test]
    fn chains() {
        let all = captured();
        let shown: Vec<_> = all
            .iter()
            .map(|chain| (chain.family, &*chain.table, &*chain.name, chain.base.clone()))
            .collect();
        let base = |hook, drops| Some(Base { hook, drops, devices: Vec::new() });
        let taps = Some(Base { hook: 0, drops: true, devices: vec![Pattern::name("v0")] });
        assert_eq!(
            shown,
            [
                (Family::Bridge, "guests", "forward", base(2, false)),
                (Family::Bridge, "guests", "sub", None),
                (Family::Bridge, "guests", "last", None),
                (Family::Netdev, "taps", "in", taps),
                // Its table is dormant.
                (Family::Ip, "asleep", "c", None),
                (Family::Inet, "t", "c", base(4, false)),
                (Family::Inet, "t", "r", base(2, false)),
                (Family::Ip, "filter", "FORWARD", base(2, true)),
            ]
        );
    }

    #[test]
    fn rules() {
        let all = captured();
        let rules = |chain: &str| -> Vec<(u64, Vec<Step>)> {
            let found = all.iter().find(|one| one.name == chain);
            let rules = &found.expect("the chain").rules;
            rules.iter().map(|rule| (rule.handle, rule.steps.clone())).collect()
        };
        let jump = |name: &str| Step::Jump(name.into());
        assert_eq!(
            rules("forward"),
            [
                (4, vec![name(Which::In, b"vif", true), Step::Accept]),
                (
                    5,
                    vec![
                        name(Which::In, b"tap1\0", true),
                        name(Which::Out, b"tap2\0", true),
                        harm("drop"),
                    ]
                ),
                (6, vec![Step::Maybe, jump("sub")]),
                // What sets a mark does nothing to the frame.
            ]
        );
        assert_eq!(
            rules("sub"),
            [
                (9, vec![Step::Maybe, Step::Return]),
                (11, vec![harm("drop (by a map)")]),
                (12, vec![Step::Maybe, harm("change")]),
                (13, vec![Step::Goto("last".into())]),
            ]
        );
        assert_eq!(rules("last"), [(14, vec![Step::Maybe, harm("drop")])]);
        assert_eq!(rules("r"), [(4, vec![Step::Maybe, harm("reject")]), (5, vec![harm("change")])]);
        // As iptables writes them.
        assert_eq!(
            rules("FORWARD"),
            [
                (2, vec![name(Which::In, b"docker0\0", true), Step::Accept]),
                (
                    3,
                    vec![
                        name(Which::In, b"vif", true),
                        name(Which::Out, b"br0\0", false),
                        Step::Accept,
                    ]
                ),
                (4, vec![Step::Maybe, Step::Accept]),
                (6, vec![Step::Maybe, harm("reject")]),
            ]
        );
    }

    #[test]
    fn anything() {
        // Nothing that comes makes it panic, and half a rule is none that passes.
        for line in CAPTURED.lines().filter(|line| line.starts_with("6 ")) {
            let hex = line.rsplit(' ').next().expect("bytes");
            let body: Vec<u8> = (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("a byte"))
                .collect();
            for end in 0..body.len() {
                let mut reading = Reading::default();
                reading.take(&Message { kind: NEW_RULE, family: 7, body: &body[..end] });
            }
        }
    }
}
