// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Why frames for a peer take the standard network, and what to do about it.

use std::io::{self, Write};

use super::netlink::Peer;

/// What the name of each counter of such frames begins with.
const STANDARD: &str = "standard-";

/// For each counter: why, and what to do, if anything.
const REASONS: [(&str, &str, &str); 18] = [
    (
        "no-channel",
        "No channel was up: none was asked for yet, it was being opened, or it was refused.",
        "Nothing if the channel is up now; else see the state above.",
    ),
    (
        "closing",
        "The channel was ending, or had just broken.",
        "Nothing: a new channel comes with the next frames.",
    ),
    (
        "stalled",
        "The peer did not consume what was sent.",
        "See whether the peer hangs, is paused or has too little CPU time.",
    ),
    (
        "full",
        "Neither the ring nor the queue behind it had room.",
        "Give the channels larger rings (ring_size in the host's policy), or the peer more CPU time.",
    ),
    (
        "flushed",
        "Frames that waited for room when the channel ended or stalled were sent this way.",
        "Nothing: none of them was lost.",
    ),
    (
        "shaped",
        "The interface shapes its traffic (its root qdisc), which a channel would bypass.",
        "Nothing if that is wanted; else replace the qdisc: tc qdisc replace dev INTERFACE root fq_codel, or allow it: bypass_qdisc=Y of vmloop_net",
    ),
    (
        "classified",
        "Classifiers are attached to the egress of the interface, which a channel would bypass.",
        "Nothing if they are wanted; else: tc qdisc del dev INTERFACE clsact",
    ),
    (
        "hook",
        "Another hook at the egress of the interface runs after vmloop's, and would be bypassed.",
        "Give its nftables chain a lower priority, or load the vmloop modules after it.",
    ),
    (
        "receiver",
        "The peer's interface cannot receive through the channel.",
        "In the peer, see vmloop status: the interface is down, has no driver, is in a bond, or runs a native XDP program.",
    ),
    (
        "source",
        "The frames came from an address that is not the interface's own: from a bridge, a macvlan or a virtual machine behind it.",
        "Nothing: such frames always take the standard network.",
    ),
    (
        "interface",
        "The interface is down, has no carrier, or is a port of a bond or team.",
        "For a bond, name it: echo bond0 >/sys/module/vmloop_net/parameters/interfaces; else nothing.",
    ),
    (
        "vlan",
        "The frames had a VLAN tag, and the host does not say that tags pass between the two.",
        "Nothing; or connect both machines to ports of the host's bridge that pass all tags.",
    ),
    (
        "feature",
        "The peer's modules are older and do not know frames of this kind.",
        "Update vmloop in the peer.",
    ),
    (
        "segmentation",
        "The frames were to be segmented in a way that the channel does not know, and could not be segmented before.",
        "Nothing: forwarded frames without checksums, or too little memory.",
    ),
    (
        "checksum",
        "The frames needed a checksum that the channel does not know, and it could not be computed before.",
        "Load libcrc32c; else too little memory.",
    ),
    (
        "encrypted",
        "The frames are encrypted only behind vmloop (IPsec or TLS offload), and plain text never enters a channel.",
        "To use the channel, unload esp4_offload and esp6_offload: IPsec then encrypts before.",
    ),
    (
        "unreadable",
        "The bytes of the frames are in a device's memory.",
        "Nothing: the CPU cannot copy them.",
    ),
    (
        "too-large",
        "The frames are larger than a record, or than a quarter of the ring.",
        "Give the channels larger rings (ring_size in the host's policy).",
    ),
];

/// One reason.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Reason {
    /// name of its counter, without "standard-"
    pub name: &'static str,
    /// how many frames
    pub frames: u64,
    /// in a sentence
    pub why: &'static str,
    /// in a sentence
    pub what_to_do: &'static str,
}

/// All about a peer.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Explanation {
    /// identity of the peer
    pub id: String,
    /// its name on the host
    pub peer: String,
    /// of its channel
    pub state: String,
    /// the state in a sentence
    pub why: String,
    /// in a sentence; empty if there is nothing to do
    pub what_to_do: String,
    /// frames that its channel carried
    pub frames_by_channel: u64,
    /// frames that took the standard network
    pub frames_by_standard_network: u64,
    /// of these; the most frequent first
    pub reasons: Vec<Reason>,
}

/// The state of a peer's channel, and what to do, in sentences.
fn state(peer: &Peer, enabled: bool) -> (&'static str, &'static str) {
    if !enabled {
        return ("vmloop is off in this guest.", "To use channels: vmloop on");
    }
    match (peer.state.as_str(), peer.reason.as_str()) {
        ("none", _) => ("There is no channel; one is asked for with the next frame.", ""),
        ("requested", _) => {
            ("A channel was asked for, and the host's agent has not answered yet.", "")
        }
        ("opening", _) => ("The channel waits for the peer.", "See vmloop status in the peer."),
        ("up", _) => ("The channel is up.", ""),
        ("stalled", _) => (
            "The channel is up, but the peer does not consume.",
            "See whether the peer hangs, is paused or has too little CPU time.",
        ),
        ("closing", _) => ("The channel is ending.", ""),
        ("refused", "policy") => (
            "The host's agent refused a channel: its policy does not let the two talk.",
            "On the host: vmloop explain GUEST GUEST, vmloop policy show",
        ),
        ("refused", "gone") => ("The agent refused a channel: the peer is gone.", ""),
        ("refused", "slots") => (
            "The agent refused a channel: one of the two has no slot left for a device or too many channels, or the host has no more memory for channels.",
            "On the host: vmloop status and vmloop ls; max_channels and max_memory in the policy",
        ),
        ("refused", "busy") => (
            "The agent refused a channel for now: the peer is being started, saved or migrated.",
            "",
        ),
        ("refused", _) => (
            "The agent refused a channel: it could not make one.",
            "See the agent's log on the host; then: vmloop reset PEER",
        ),
        ("failed", _) => (
            "The agent was asked three times for a channel and did not answer.",
            "See whether vmloopd runs on the host; then: vmloop reset PEER",
        ),
        ("broken", _) => (
            "The channel broke: what came from the peer was against the protocol.",
            "See the kernel's log in both guests; then: vmloop reset PEER",
        ),
        _ => ("The state is one that this program does not know.", "Update the vmloop command."),
    }
}

/// Explains a peer; `enabled` says whether vmloop is on in this guest.
#[must_use]
pub fn explain(peer: &Peer, enabled: bool) -> Explanation {
    let count = |name: &str| peer.stats.get(name).copied().unwrap_or(0);
    let (why, what_to_do) = state(peer, enabled);
    let mut reasons: Vec<Reason> = REASONS
        .iter()
        .map(|&(name, why, what_to_do)| Reason {
            name,
            frames: count(&format!("{STANDARD}{name}")),
            why,
            what_to_do,
        })
        .filter(|reason| reason.frames > 0)
        .collect();
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.frames));
    Explanation {
        id: peer.id.clone(),
        peer: peer.name.clone(),
        state: peer.state.clone(),
        why: why.to_owned(),
        what_to_do: what_to_do.replace("PEER", &peer.name),
        frames_by_channel: count("tx-frames"),
        frames_by_standard_network: count("tx-standard"),
        reasons,
    }
}

/// Prints all of it.
///
/// # Errors
/// Those of writing.
pub fn show(out: &mut dyn Write, one: &Explanation) -> io::Result<()> {
    writeln!(out, "{} ({}): {}", one.peer, one.state, one.why)?;
    if !one.what_to_do.is_empty() {
        writeln!(out, "  {}", one.what_to_do)?;
    }
    writeln!(
        out,
        "Sent to it: {} frames through channels, {} by the standard network.",
        one.frames_by_channel, one.frames_by_standard_network
    )?;
    for reason in &one.reasons {
        writeln!(out, "  {}: {} frames. {}", reason.name, reason.frames, reason.why)?;
        writeln!(out, "    {}", reason.what_to_do)?;
    }
    Ok(())
}

/// Prints it in one line.
///
/// # Errors
/// Those of writing.
pub fn show_line(out: &mut dyn Write, one: &Explanation) -> io::Result<()> {
    write!(out, "  {} ({}): ", one.peer, one.state)?;
    if one.state != "up" {
        write!(out, "{} ", one.why)?;
    }
    match one.reasons.as_slice() {
        [] => writeln!(out, "No frame took the standard network."),
        reasons => {
            let listed: Vec<String> =
                reasons.iter().map(|one| format!("{} {}", one.frames, one.name)).collect();
            writeln!(out, "Frames by the standard network: {}.", listed.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::netlink::COUNTERS;

    fn peer(state: &str, reason: &str, stats: &[(&'static str, u64)]) -> Peer {
        Peer {
            name: "web1".into(),
            state: state.into(),
            reason: reason.into(),
            stats: stats.iter().copied().collect(),
            ..Peer::default()
        }
    }

    fn text(one: &Explanation) -> String {
        let mut out = Vec::new();
        show(&mut out, one).expect("memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn each_counter_is_explained() {
        let counted: Vec<&str> =
            COUNTERS.iter().filter_map(|name| name.strip_prefix(STANDARD)).collect();
        let explained: Vec<&str> = REASONS.iter().map(|reason| reason.0).collect();
        assert_eq!(counted, explained);
    }

    #[test]
    fn the_most_frequent_comes_first() {
        let one = explain(
            &peer("up", "", &[("tx-standard", 9), ("standard-full", 2), ("standard-encrypted", 7)]),
            true,
        );
        let names: Vec<&str> = one.reasons.iter().map(|reason| reason.name).collect();
        assert_eq!(names, ["encrypted", "full"]);
        assert!(text(&one).contains("9 by the standard network"));
        assert!(text(&one).contains("esp4_offload"));
    }

    #[test]
    fn states_say_what_to_do() {
        let refused = explain(&peer("refused", "policy", &[]), true);
        assert!(text(&refused).contains("policy does not let"), "{}", text(&refused));
        let failed = explain(&peer("failed", "", &[]), true);
        assert!(text(&failed).contains("vmloop reset web1"), "{}", text(&failed));
        let off = explain(&peer("none", "", &[]), false);
        assert!(text(&off).contains("vmloop on"), "{}", text(&off));
    }
}
