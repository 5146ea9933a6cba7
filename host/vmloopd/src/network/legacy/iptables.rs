// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tables of iptables-legacy and ip6tables-legacy as the kernel has them: entries one
//! behind the other, in which chains are ranges (`ip_tables.h`, `ip6_tables.h`).

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use vmloop_api::FilterKind;

use super::blob::{Blob, nonsense};
use crate::network::ruleset::{
    Base, Chain, Family, HARMLESS_TARGETS, NAME_MAX, Pattern, Rule, Step, Which,
};

/// Hooks, by the kernel's numbers, and what iptables calls their chains.
const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// Bytes of the answer to the question for a table's size.
pub const INFO: usize = 84;
/// Bytes before the entries.
pub const HEADER: usize = 40;
/// A rule that is not left but replaced by what it leads to (`IPT_F_GOTO`).
const GOTO: u8 = 2;
/// Conditions on names hold where the names do not fit (`IPT_INV_VIA_IN`, `_OUT`).
const NOT_IN: u8 = 1;
const NOT_OUT: u8 = 2;

/// Where in an entry things are: it begins with what is compared.
struct Layout {
    /// addresses and masks
    addresses: Range<usize>,
    /// names: to come in by, to leave by, and the masks of both
    names: usize,
    protocol: usize,
    flags: usize,
    /// which conditions are turned round
    inverse: usize,
    /// offset of the target, then of the next entry
    offsets: usize,
    /// further conditions
    matches: usize,
}

const IP: Layout = Layout {
    addresses: 0..16,
    names: 16,
    protocol: 80,
    flags: 82,
    inverse: 83,
    offsets: 88,
    matches: 112,
};
const IP6: Layout = Layout {
    addresses: 0..64,
    names: 64,
    protocol: 128,
    flags: 131,
    inverse: 132,
    offsets: 140,
    matches: 168,
};

/// What the kernel says of a table before its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// which hooks it has, as bits
    hooks: usize,
    /// where the chain of each begins, and where its policy is
    begins: [usize; 5],
    policies: [usize; 5],
    /// bytes of all entries
    pub size: usize,
}

impl Info {
    /// From the answer.
    ///
    /// # Errors
    /// It is too short.
    pub fn new(answer: &[u8]) -> io::Result<Self> {
        let answer = Blob(answer);
        let mut info = Self {
            hooks: answer.u32(32)?,
            begins: [0; 5],
            policies: [0; 5],
            size: answer.u32(80)?,
        };
        for hook in 0..5 {
            info.begins[hook] = answer.u32(36 + 4 * hook)?;
            info.policies[hook] = answer.u32(56 + 4 * hook)?;
        }
        Ok(info)
    }
}

/// What an entry is there for.
enum Entry {
    Rule(Rule),
    /// A chain with a name begins behind it.
    Head(String),
}

/// Chains of a table.
///
/// # Errors
/// What the kernel said makes no sense.
pub fn chains(family: Family, table: &str, info: &Info, entries: &[u8]) -> io::Result<Vec<Chain>> {
    let layout = if family == Family::Ip6 { &IP6 } else { &IP };
    let entries = Blob(entries.get(..info.size).ok_or_else(nonsense)?);
    // Names of chains come before what is in them.
    let mut names: HashMap<usize, String> = HashMap::new();
    let mut offsets = Vec::new();
    let mut at = 0;
    while at < info.size {
        let next = next(layout, entries, at)?;
        offsets.push(at);
        // The last entry only marks the end.
        if let Entry::Head(name) = entry(layout, entries, at, &names)?
            && next < info.size
        {
            names.insert(next, name);
        }
        at = next;
    }
    let table: Arc<str> = table.into();
    let chain = |name: &str, base| Chain {
        source: if family == Family::Ip6 {
            FilterKind::Ip6tablesLegacy
        } else {
            FilterKind::IptablesLegacy
        },
        family,
        table: table.clone(),
        name: name.to_owned(),
        base,
        rules: Vec::new(),
    };
    let mut chains = Vec::new();
    let rules = |from: usize, to: usize| -> io::Result<Vec<Rule>> {
        let mut rules = Vec::new();
        for at in offsets.iter().filter(|at| (from..to).contains(*at)) {
            match entry(layout, entries, *at, &names)? {
                Entry::Rule(rule) => rules.push(rule),
                Entry::Head(_) => break,
            }
        }
        Ok(rules)
    };
    for (hook, name) in HOOKS.iter().enumerate().filter(|(hook, _)| info.hooks & (1 << hook) != 0) {
        let (from, to) = (info.begins[hook], info.policies[hook]);
        let Entry::Rule(policy) = entry(layout, entries, to, &names)? else {
            return Err(nonsense());
        };
        let drops = policy.steps != [Step::Accept];
        let base = Some(Base { hook: hook as u32, drops, devices: Vec::new() });
        chains.push(Chain { rules: rules(from, to)?, ..chain(name, base) });
    }
    for (from, name) in &names {
        chains.push(Chain { rules: rules(*from, info.size)?, ..chain(name, None) });
    }
    // Their order must not change from one reading to the next.
    chains.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(chains)
}

/// Where the entry behind another one is.
fn next(layout: &Layout, entries: Blob<'_>, at: usize) -> io::Result<usize> {
    let length = entries.u16(at + layout.offsets + 2)?;
    if length <= layout.matches { Err(nonsense()) } else { Ok(at + length) }
}

fn entry(
    layout: &Layout,
    entries: Blob<'_>,
    at: usize,
    names: &HashMap<usize, String>,
) -> io::Result<Entry> {
    let next = next(layout, entries, at)?;
    let target = at + entries.u16(at + layout.offsets)?;
    let name = entries.text(target + 2, 29)?;
    if name == "ERROR" {
        return Ok(Entry::Head(entries.text(target + 32, 30)?));
    }
    let mut steps = conditions(layout, entries, at, target)?;
    let goes = entries.u8(at + layout.flags)? & GOTO != 0;
    if name.is_empty() {
        steps.extend(match entries.i32(target + 32)? {
            -2 => Some(Step::Accept),
            -5 => Some(Step::Return),
            -4 => Some(Step::Harm("queue".into())),
            verdict if verdict < 0 => Some(Step::Harm("drop".into())),
            // What has no target goes on.
            verdict if verdict as usize == next => None,
            verdict => {
                // The name of a chain that comes later is known the second time.
                let name = names.get(&(verdict as usize)).cloned().unwrap_or_default();
                Some(if goes { Step::Goto(name) } else { Step::Jump(name) })
            }
        });
    } else if !HARMLESS_TARGETS.contains(&name.as_str()) {
        steps.push(Step::Harm(name.to_lowercase()));
    }
    Ok(Entry::Rule(Rule { handle: 0, steps }))
}

fn conditions(
    layout: &Layout,
    entries: Blob<'_>,
    at: usize,
    target: usize,
) -> io::Result<Vec<Step>> {
    let mut steps = Vec::new();
    let inverse = entries.u8(at + layout.inverse)?;
    for (number, which, not) in [(0, Which::In, NOT_IN), (1, Which::Out, NOT_OUT)] {
        let names = at + layout.names;
        let name = entries.bytes(names + number * NAME_MAX, NAME_MAX)?;
        let mask = entries.bytes(names + (2 + number) * NAME_MAX, NAME_MAX)?;
        let length = mask.iter().position(|byte| *byte == 0).unwrap_or(NAME_MAX);
        if length > 0 {
            let pattern = Pattern::new(&name[..length]);
            steps.push(Step::Name { which, pattern, equal: inverse & not == 0 });
        }
    }
    let addresses = entries.bytes(at + layout.addresses.start, layout.addresses.len())?;
    let mut may = addresses.iter().any(|byte| *byte != 0)
        || entries.u16(at + layout.protocol)? != 0
        || entries.u8(at + layout.flags)? & !GOTO != 0
        || inverse & !(NOT_IN | NOT_OUT) != 0;
    let mut one = at + layout.matches;
    while one < target {
        may |= entries.text(one + 2, 29)? != "comment";
        let size = entries.u16(one)?;
        if size == 0 {
            return Err(nonsense());
        }
        one += size;
    }
    steps.extend(may.then_some(Step::Maybe));
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a kernel 6.18 said of the rules at the top of the file.
    const CAPTURED: &str = include_str!("captured.txt");

    fn bytes(hex: &str) -> Vec<u8> {
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("a byte");
        (0..hex.len()).step_by(2).map(byte).collect()
    }

    fn captured(family: Family) -> (Info, Vec<u8>) {
        let number = (family as u8).to_string();
        let words = CAPTURED.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let words = words.into_iter().find(|words| words[0] == number).expect("the family");
        (Info::new(&bytes(words[1])).expect("a size"), bytes(words[2]))
    }

    fn name(which: Which, pattern: &[u8], equal: bool) -> Step {
        Step::Name { which, pattern: Pattern::new(pattern), equal }
    }

    /// Of each chain its name, hook, whether it drops, and what its rules do.
    type Shown = (String, Option<(u32, bool)>, Vec<Vec<Step>>);

    fn shown(family: Family) -> Vec<Shown> {
        let (info, entries) = captured(family);
        let chains = chains(family, "filter", &info, &entries).expect("chains");
        let show = |chain: Chain| {
            let base = chain.base.map(|base| (base.hook, base.drops));
            (chain.name, base, chain.rules.into_iter().map(|rule| rule.steps).collect())
        };
        chains.into_iter().map(show).collect()
    }

    #[test]
    fn ipv4() {
        let guests = || "GUESTS".to_owned();
        let forward = vec![
            vec![name(Which::In, b"docker0\0", true), Step::Accept],
            vec![name(Which::In, b"vif", true), name(Which::Out, b"br0\0", false), Step::Accept],
            vec![Step::Maybe, Step::Accept],
            // It has no target.
            vec![Step::Maybe],
            vec![Step::Jump(guests())],
            vec![Step::Maybe, Step::Goto(guests())],
        ];
        let own = vec![
            vec![Step::Maybe, Step::Harm("reject".into())],
            vec![],
            vec![name(Which::In, b"br7\0", true), Step::Return],
            // As the kernel ends each chain.
            vec![Step::Return],
        ];
        assert_eq!(
            shown(Family::Ip),
            [
                ("FORWARD".into(), Some((2, true)), forward),
                (guests(), None, own),
                ("INPUT".into(), Some((1, false)), vec![]),
                ("OUTPUT".into(), Some((3, false)), vec![]),
            ]
        );
    }

    #[test]
    fn ipv6() {
        let forward = vec![
            vec![
                name(Which::In, b"tap1\0", true),
                name(Which::Out, b"tap2\0", true),
                Step::Harm("drop".into()),
            ],
            vec![Step::Maybe, Step::Accept],
        ];
        let all = shown(Family::Ip6);
        assert_eq!(all[0], ("FORWARD".into(), Some((2, false)), forward));
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn half_a_table() {
        let (info, entries) = captured(Family::Ip);
        for end in 0..entries.len() {
            assert!(chains(Family::Ip, "filter", &info, &entries[..end]).is_err(), "{end}");
        }
        // Whatever a byte is, it ends.
        for at in 0..entries.len() {
            let mut other = entries.clone();
            other[at] ^= 0xff;
            let _ = chains(Family::Ip, "filter", &info, &other);
        }
    }
}
