// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Why two guests have a channel, or have none.

use tokio::time::Instant;
use vmloop_api::{ChannelState, Explained, Filter, FilterKind, Problem, Reason, ReasonCode};
use vmloop_policy::in_force::State;

use super::Broker;
use super::closing::close_reason;
use super::guests::Guest;
use crate::answer::Answer;
use crate::directory::Apart;
use crate::machine::{Key, Nic};

fn reason(code: ReasonCode, why: impl Into<String>, what_to_do: impl Into<String>) -> Reason {
    Reason { code, why: why.into(), what_to_do: what_to_do.into(), filter: None }
}

fn filtered(filter: &Filter) -> Reason {
    let what_to_do = match filter.kind {
        FilterKind::Unreadable => "See the agent's log, and: vmloop status",
        _ => {
            "Nothing if that is wanted; else remove it, or have the policy say filters = \"ignore\""
        }
    };
    let why = format!("A channel would get around a filter of the host's: {}.", filter.text);
    Reason { filter: Some(filter.clone()), ..reason(ReasonCode::Filter, why, what_to_do) }
}

impl Broker {
    /// Says how it stands between two guests.
    pub(super) fn explain(&mut self, a: &str, b: &str) -> Result<Answer, Problem> {
        let keys = [self.guests.find(a)?, self.guests.find(b)?];
        if keys[0] == keys[1] {
            return Err(
                Problem::new("no-such-guest", "a pair are two guests").hint("see vmloop ls")
            );
        }
        let mut reasons = self.why_not_ready(keys);
        reasons.extend(self.why_apart(keys));
        let names = keys.map(|key| self.name(key));
        let found = self.channels.between(keys[0], keys[1]).and_then(|key| self.channels.get(key));
        let (channel, tag) = found.map_or((ChannelState::None, 0), |one| (one.state(), one.tag));
        match found {
            Some(one) => reasons.extend(one.reason.map(|why| {
                let why = format!("Their channel is being closed: {}.", close_reason(why));
                reason(ReasonCode::Closing, why, "")
            })),
            None => {
                reasons.extend(self.why_later(keys));
                if reasons.is_empty() {
                    let why = "Neither of them has asked for one: no frame was sent from one to the other, or their modules wait.";
                    let what_to_do = format!(
                        "ping one from the other; in {}: vmloop explain {}",
                        names[0], names[1]
                    );
                    reasons.push(reason(ReasonCode::NotAsked, why, what_to_do));
                }
            }
        }
        let both = keys.map(|key| self.guests.get(key));
        let without_streams = matches!(both, [Some(one), Some(two)]
            if self.policy.allows(one.who(), two.who())
                && !self.policy.allows_streams(one.who(), two.who()));
        let [a, b] = names;
        let explained = Explained { a, b, channel, tag, reasons, without_streams };
        Ok(Answer::Explained(Box::new(explained)))
    }

    fn name(&self, key: Key) -> String {
        self.guests.get(key).map(|guest| guest.name.clone()).unwrap_or_default()
    }

    /// Why one of them could have no channel with anybody.
    fn why_not_ready(&self, keys: [Key; 2]) -> Vec<Reason> {
        let mut reasons = Vec::new();
        if self.recovering.is_some() || !self.have_links {
            let why = "The agent has just started, and does not know yet which guests are here.";
            reasons.push(reason(ReasonCode::Recovering, why, "Wait for half a minute at most."));
        }
        let guests = keys.into_iter().filter_map(|key| self.guests.get(key));
        for guest in guests.filter(|guest| !guest.is_ready()) {
            let name = &guest.name;
            reasons.push(if guest.hello.is_none() && !guest.is_coming() {
                let what_to_do = format!(
                    "In {name}: modprobe vmloop_ivshmem (on Xen vmloop_xen) and vmloop_net"
                );
                reason(ReasonCode::Guest, format!("{name} does not run the modules."), what_to_do)
            } else {
                let why = format!("{name} is about to come or to go: see its state in vmloop ls.");
                reason(ReasonCode::Guest, why, "")
            });
        }
        reasons
    }

    /// Why policy and network keep them apart, if they do.
    fn why_apart(&mut self, keys: [Key; 2]) -> Vec<Reason> {
        let scene = self.scene();
        let view = scene.view(&self.policy, &self.judge);
        let places = keys.map(|key| scene.at(key));
        let ([Some(a), Some(b)], [Some(one), Some(two)]) =
            (places, keys.map(|key| self.guests.get(key)))
        else {
            return Vec::new();
        };
        let mut reasons = Vec::new();
        if !self.policy.allows(one.who(), two.who()) {
            let why = match self.policy.state() {
                State::Denied => format!("Nobody may talk, as no policy can be read: {}.", self.policy.error()),
                _ => "The policy does not let the two talk: they are in no common group, or its default is deny.".into(),
            };
            reasons.push(reason(ReasonCode::Policy, why, "vmloop policy show"));
        }
        let mut apart = Vec::new();
        for (ours, nic) in one.machine.nics.iter().enumerate() {
            for (theirs, other) in two.machine.nics.iter().enumerate() {
                match view.meets((a, ours), (b, theirs)) {
                    // One pair of interfaces is enough.
                    Ok(_) => return reasons,
                    Err(Apart::Nowhere) => {
                        apart.extend(self.why_nowhere(one, nic));
                        apart.extend(self.why_nowhere(two, other));
                    }
                    Err(why) => apart.push(why_pair(&why, &nic.tap, &other.tap)),
                }
            }
        }
        for guest in [one, two].into_iter().filter(|guest| guest.machine.nics.is_empty()) {
            let why = format!("{} has no network interface.", guest.name);
            apart.push(reason(ReasonCode::Interface, why, ""));
        }
        for one in apart {
            if !reasons.contains(&one) {
                reasons.push(one);
            }
        }
        reasons
    }

    /// Why an interface is nowhere, if it is.
    fn why_nowhere(&self, guest: &Guest, nic: &Nic) -> Option<Reason> {
        if let Some(filter) = self.filter_of(&nic.tap) {
            return Some(filtered(&filter));
        }
        let why = self.place(guest.who(), &nic.tap).err()?;
        let why = nic.unknown.as_ref().map_or(why, ToString::to_string);
        Some(reason(
            ReasonCode::Interface,
            format!("An interface of {}: {why}.", guest.name),
            "See vmloop ls",
        ))
    }

    /// Why there is no channel yet between two that may have one.
    fn why_later(&self, keys: [Key; 2]) -> Vec<Reason> {
        let [a, b] = keys.map(|key| self.name(key));
        let now = Instant::now();
        let mut reasons = Vec::new();
        for key in keys.into_iter().filter(|key| self.channels.keeps_revoked(*key)) {
            let why = format!(
                "{} keeps shared memory that the policy has taken from it, and gets no other channel before it lets go.",
                self.name(key)
            );
            reasons.push(reason(
                ReasonCode::Revoked,
                why,
                "End it, or its peer there: vmloop status",
            ));
        }
        let pair = self.pair(keys[0], keys[1]);
        if pair.is_some_and(|pair| self.breaks.left(pair, now).is_some()) {
            let why = "Their channel broke: one of them wrote what no module writes.";
            reasons.push(reason(
                ReasonCode::Broken,
                why,
                format!("vmloop ls; to try again at once: vmloop reset {a} {b}"),
            ));
        }
        if let Some(left) = pair.and_then(|pair| self.back_off.left(pair, now)) {
            let why = format!(
                "Their last channel failed, or lived short: they may ask again in {} s.",
                left.as_secs() + 1
            );
            reasons.push(reason(
                ReasonCode::Waiting,
                why,
                format!("See the agent's log; to try again at once: vmloop reset {a} {b}"),
            ));
        }
        for key in keys {
            let most = self.policy.max_channels;
            if self.channels.of(key).len() >= most as usize {
                let why =
                    format!("{} has as many channels as a guest may have, {most}.", self.name(key));
                reasons.push(reason(ReasonCode::MaxChannels, why, "max_channels in the policy"));
            }
        }
        if !self.have_memory() {
            let why = "All channels together take as much memory as they may.";
            reasons.push(reason(
                ReasonCode::Memory,
                why,
                "vmloop status; max_memory and ring_size in the policy",
            ));
        }
        reasons
    }
}

/// Why two interfaces do not meet that are both somewhere.
fn why_pair(why: &Apart, tap: &str, other: &str) -> Reason {
    match why {
        Apart::Nowhere | Apart::Networks => reason(
            ReasonCode::Network,
            format!("{tap} and {other} are in different networks (bridges or VLANs)."),
            "If this host routes between them, [[routed]] in the policy says so",
        ),
        Apart::Isolated => reason(
            ReasonCode::Isolated,
            format!("{tap} and {other} are isolated ports of their bridge."),
            format!("Nothing if that is wanted; else: bridge link set dev {tap} isolated off"),
        ),
        Apart::Address => reason(
            ReasonCode::Address,
            format!(
                "The hardware address of {tap} or {other} is also that of a guest that came before."
            ),
            "Give each interface an address of its own",
        ),
        Apart::Filter(filter) => filtered(filter),
    }
}
