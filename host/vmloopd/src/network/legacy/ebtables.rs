// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tables of ebtables-legacy as the kernel has them: chains one behind the other, each
//! with a head (`ebtables.h`).

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use vmloop_api::FilterKind;

use super::blob::{Blob, nonsense};
use crate::network::ruleset::{Base, Chain, Family, NAME_MAX, Pattern, Rule, Step, Which};

/// Bytes of a question and its answer (`struct ebt_replace`): the name of the table,
/// then numbers, then where entries are to be written.
pub const QUESTION: usize = 120;
/// Where in it the bits of the hooks are.
pub const HOOKS: usize = 32;
/// Where in it the number of rules is.
pub const COUNT: usize = 36;
/// Where in it is how many bytes all entries take.
pub const SIZE: usize = 40;
/// Where in it the address is for these.
pub const ADDRESS: usize = 112;

/// Of the head of a chain: its name, its policy, and where its rules begin. What tells
/// it from a rule is a zero at its beginning.
const NAME: usize = 4;
const POLICY: usize = 40;
const HEAD: usize = 48;
/// Of a rule: the protocol, names (two to come in by, two to leave by), addresses,
/// where watchers, the target and the next rule are, and further conditions.
const INVERSE: usize = 4;
const NAMES: usize = 10;
const WATCHERS: usize = 100;
const TARGET: usize = 104;
const NEXT: usize = 108;
const MATCHES: usize = 112;
/// Bits of a rule: any protocol; a source or a destination is compared.
const ANY_PROTOCOL: usize = 2;
const ADDRESSES: usize = 8 | 16;
/// Which condition each name has, with its bit among those that are turned round.
const CONDITIONS: [(Which, usize); 4] =
    [(Which::In, 2), (Which::InBridge, 32), (Which::Out, 4), (Which::OutBridge, 64)];
/// Of a target: the verdict of one that only has that.
const VERDICT: usize = 40;

fn is_head(entries: Blob<'_>, at: usize) -> io::Result<bool> {
    Ok(entries.u32(at)? & 1 == 0)
}

/// Chains of a table whose hooks are these bits.
///
/// # Errors
/// What the kernel said makes no sense.
pub fn chains(table: &str, hooks: usize, entries: &[u8]) -> io::Result<Vec<Chain>> {
    let size = entries.len();
    let entries = Blob(entries);
    let table: Arc<str> = table.into();
    // Those of hooks come first, in the order of their bits.
    let mut hooks = (0..32).filter(|hook| hooks & (1 << hook) != 0);
    let mut names = HashMap::new();
    let mut chains: Vec<Chain> = Vec::new();
    let mut rules: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    while at < size {
        if is_head(entries, at)? {
            let name = entries.text(at + NAME, 32)?;
            names.insert(at, name.clone());
            let drops = entries.i32(at + POLICY)? != -1;
            let base = hooks.next().map(|hook| Base { hook, drops, devices: Vec::new() });
            chains.push(Chain {
                source: FilterKind::EbtablesLegacy,
                family: Family::Bridge,
                table: table.clone(),
                name,
                base,
                rules: Vec::new(),
            });
            at += HEAD;
        } else {
            rules.push((chains.len().checked_sub(1).ok_or_else(nonsense)?, at));
            let length = entries.u32(at + NEXT)?;
            if length <= MATCHES {
                return Err(nonsense());
            }
            at = at.checked_add(length).ok_or_else(nonsense)?;
        }
    }
    for (chain, at) in rules {
        let steps = steps(entries, at, &names)?;
        chains[chain].rules.push(Rule { handle: 0, steps });
    }
    Ok(chains)
}

fn steps(entries: Blob<'_>, at: usize, names: &HashMap<usize, String>) -> io::Result<Vec<Step>> {
    let mut steps = Vec::new();
    let (bits, inverse) = (entries.u32(at)?, entries.u32(at + INVERSE)?);
    for (number, (which, not)) in CONDITIONS.into_iter().enumerate() {
        let name = entries.bytes(at + NAMES + number * NAME_MAX, NAME_MAX)?;
        // Where a 1 stands any end fits.
        let end = name.iter().position(|byte| *byte <= 1).unwrap_or(NAME_MAX);
        if name.first() != Some(&0) {
            let whole = end < NAME_MAX && name[end] == 0;
            let pattern = Pattern::new(&name[..end + usize::from(whole)]);
            steps.push(Step::Name { which, pattern, equal: inverse & not == 0 });
        }
    }
    let may =
        bits & ANY_PROTOCOL == 0 || bits & ADDRESSES != 0 || entries.u32(at + WATCHERS)? > MATCHES;
    steps.extend(may.then_some(Step::Maybe));
    let target = at + entries.u32(at + TARGET)?;
    let name = entries.text(target, 31)?;
    if name != "standard" {
        steps.push(Step::Harm(name));
        return Ok(steps);
    }
    steps.extend(match entries.i32(target + VERDICT)? {
        -1 => Some(Step::Accept),
        -3 => None,
        -4 => Some(Step::Return),
        verdict if verdict < 0 => Some(Step::Harm("drop".into())),
        verdict => {
            let name = names.get(&(verdict as usize)).ok_or_else(nonsense)?;
            Some(Step::Jump(name.clone()))
        }
    });
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(name: &str, policy: i32) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        bytes[NAME..NAME + name.len()].copy_from_slice(name.as_bytes());
        bytes[POLICY..POLICY + 4].copy_from_slice(&policy.to_ne_bytes());
        bytes
    }

    /// A rule for frames that come in by a name, with a target of that kind.
    fn rule(bits: u32, inverse: u32, name: &[u8], target: &str, verdict: i32) -> Vec<u8> {
        let mut bytes = vec![0; MATCHES + 48];
        let mut set = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        set(0, &(bits | 1).to_ne_bytes());
        set(INVERSE, &inverse.to_ne_bytes());
        set(NAMES, name);
        for (at, offset) in [(WATCHERS, MATCHES), (TARGET, MATCHES), (NEXT, MATCHES + 48)] {
            set(at, &(offset as u32).to_ne_bytes());
        }
        set(MATCHES, target.as_bytes());
        set(MATCHES + VERDICT, &verdict.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_table() {
        let sub = 3 * HEAD + 4 * (MATCHES + 48);
        let parts = [
            head("INPUT", -1),
            head("FORWARD", -2),
            rule(2, 0, b"tap1", "standard", -1),
            rule(2, 2, b"vif\x01", "standard", sub as i32),
            rule(0, 0, b"", "standard", -3),
            rule(2, 0, b"", "arpreply", -2),
            head("OUTPUT", -1),
            head("sub", -1),
            rule(2 | 8, 0, b"", "standard", -2),
            rule(2, 0, b"", "standard", -4),
        ];
        let bytes = parts.concat();
        // Of the hooks for what comes to the host, passes it, leaves it.
        let all = chains("filter", 0b1110, &bytes).expect("chains");
        let shown: Vec<_> = all
            .iter()
            .map(|one| (one.name.as_str(), one.base.as_ref().map(|base| (base.hook, base.drops))))
            .collect();
        assert_eq!(
            shown,
            [
                ("INPUT", Some((1, false))),
                ("FORWARD", Some((2, true))),
                ("OUTPUT", Some((3, false))),
                ("sub", None)
            ]
        );
        let name = |pattern: &[u8], equal| Step::Name {
            which: Which::In,
            pattern: Pattern::new(pattern),
            equal,
        };
        let steps = |chain: usize| -> Vec<Vec<Step>> {
            all[chain].rules.iter().map(|rule| rule.steps.clone()).collect()
        };
        assert_eq!(
            steps(1),
            [
                vec![name(b"tap1\0", true), Step::Accept],
                vec![name(b"vif", false), Step::Jump("sub".into())],
                vec![Step::Maybe],
                vec![Step::Harm("arpreply".into())],
            ]
        );
        assert_eq!(steps(3), [vec![Step::Maybe, Step::Harm("drop".into())], vec![Step::Return]]);

        for end in (0..bytes.len()).step_by(4) {
            // At the end of a chain or a rule there is nothing wrong.
            let _ = chains("filter", 0b1110, &bytes[..end]);
        }
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0xff;
            let _ = chains("filter", 0b1110, &other);
        }
    }
}
