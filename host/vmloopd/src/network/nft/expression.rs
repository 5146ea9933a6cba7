// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the expressions of a rule of nftables do to a frame.

use super::attribute::{attributes, find, number, text};
use crate::network::ruleset::{HARMLESS_TARGETS, NAME_MAX, Pattern, Step, Which};

/// The register that holds a verdict (`NFT_REG_VERDICT`).
const VERDICT: u32 = 0;
/// Registers of 16 bytes are 1 to 4; those of 4 bytes, from here on, are the same
/// memory (`NFT_REG32_00`).
const SHORT_REGISTERS: u32 = 8;

/// Names of interfaces that `meta` loads, by its keys.
const NAMES: [(u32, Which); 4] =
    [(6, Which::In), (7, Which::Out), (17, Which::InBridge), (18, Which::OutBridge)];
/// Keys that `meta` may set without a frame's becoming another one, or going
/// elsewhere: mark, priority, trace, security mark.
const HARMLESS_KEYS: [u32; 4] = [3, 2, 13, 14];
/// Kinds of objects that only take note (counter, helper of connections, their
/// timeout, security mark, expectation), and that decide nothing.
const NOTING_OBJECTS: [u32; 5] = [1, 3, 7, 8, 9];
/// Kinds of objects that are conditions: quota, limit, limit of connections.
const DECIDING_OBJECTS: [u32; 3] = [2, 4, 5];

/// A register that holds the name of an interface: where its memory begins, in units
/// of 4 bytes.
type Loaded = Option<(u32, Which)>;

/// Where the memory of a register begins.
fn place(register: u32) -> u32 {
    if register < SHORT_REGISTERS {
        register.wrapping_sub(1) * 4
    } else {
        register - SHORT_REGISTERS
    }
}

/// Whether a rule with these steps lets every frame be.
pub fn does_nothing(steps: &[Step]) -> bool {
    steps.iter().all(|step| matches!(step, Step::Name { .. } | Step::Maybe))
}

/// What the expressions of a rule do, in order.
pub fn steps(expressions: &[u8]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut loaded: Loaded = None;
    for (_, expression) in attributes(expressions) {
        let name = find(expression, 1).map(text).unwrap_or_default();
        let data = find(expression, 2).unwrap_or_default();
        if let Some(step) = step(&name, data, &mut loaded)
            // Twice is the same as once.
            && (step != Step::Maybe || steps.last() != Some(&Step::Maybe))
        {
            steps.push(step);
        }
    }
    steps
}

fn step(name: &str, data: &[u8], loaded: &mut Loaded) -> Option<Step> {
    let get = |kind| find(data, kind).and_then(number);
    let harm = |verb: &str| Some(Step::Harm(verb.to_owned()));
    match name {
        "counter" | "log" | "notrack" | "last" => return None,
        "cmp" => return Some(compare(data, *loaded)),
        "meta" => {
            let key = get(2);
            if find(data, 3).is_some() {
                return match key {
                    Some(key) if HARMLESS_KEYS.contains(&key) => None,
                    _ => harm("change"),
                };
            }
            let which = NAMES.iter().find(|(number, _)| Some(*number) == key);
            *loaded = which.and_then(|(_, which)| Some((place(get(1)?), *which)));
            return None;
        }
        _ => *loaded = None,
    }
    match name {
        "immediate" if get(1) == Some(VERDICT) => {
            verdict(find(data, 2).unwrap_or_default()).or_else(|| harm("decide"))
        }
        "immediate" => None,
        "ct" if find(data, 4).is_some() => None,
        // A map may hold any verdict.
        "lookup" if get(3) == Some(VERDICT) => harm("drop (by a map)"),
        // Those that load what conditions look at, and conditions.
        "payload" | "exthdr" if find(data, 1).is_some() => Some(Step::Maybe),
        "payload" | "exthdr" => harm("change"),
        "ct" | "lookup" | "bitwise" | "byteorder" | "range" | "fib" | "rt" | "socket" | "osf"
        | "tunnel" | "xfrm" | "numgen" | "hash" | "limit" | "quota" | "connlimit" | "dynset"
        | "inner" | "flow_offload" => Some(Step::Maybe),
        "match" if find(data, 1).map(text).as_deref() == Some("comment") => None,
        "match" => Some(Step::Maybe),
        "target" => {
            let target = find(data, 1).map(text).unwrap_or_default();
            if HARMLESS_TARGETS.contains(&target.as_str()) {
                None
            } else {
                harm(&target.to_lowercase())
            }
        }
        "objref" => match get(1) {
            Some(kind) if NOTING_OBJECTS.contains(&kind) => None,
            Some(kind) if DECIDING_OBJECTS.contains(&kind) => Some(Step::Maybe),
            // One of several, by a map.
            None => Some(Step::Maybe),
            Some(_) => harm("change"),
        },
        _ => harm(name),
    }
}

/// A comparison of what was loaded last.
fn compare(data: &[u8], loaded: Loaded) -> Step {
    let get = |kind| find(data, kind).and_then(number);
    let value = find(data, 3).and_then(|data| find(data, 1));
    let equal = match get(2) {
        Some(0) => true,
        Some(1) => false,
        _ => return Step::Maybe,
    };
    match (loaded, get(1), value) {
        (Some((at, which)), Some(register), Some(value))
            if place(register) == at && !value.is_empty() && value.len() <= NAME_MAX =>
        {
            Step::Name { which, pattern: Pattern::new(value), equal }
        }
        _ => Step::Maybe,
    }
}

/// What a verdict does.
fn verdict(data: &[u8]) -> Option<Step> {
    let data = find(data, 2)?;
    let chain = || find(data, 2).map(text).unwrap_or_default();
    match number(find(data, 1)?)?.cast_signed() {
        1 => Some(Step::Accept),
        // Of this rule nothing more counts, and the next one follows.
        -1 | -2 => Some(Step::Maybe),
        -3 => Some(Step::Jump(chain())),
        -4 => Some(Step::Goto(chain())),
        -5 => Some(Step::Return),
        code => {
            let verb = match code & 0xff {
                0 => "drop",
                3 => "queue",
                _ => "take",
            };
            Some(Step::Harm(verb.to_owned()))
        }
    }
}
