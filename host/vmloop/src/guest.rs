// SPDX-License-Identifier: GPL-2.0 OR MIT
//! In a guest: what the kernel modules say.

mod explain;
mod genl;
mod netlink;
mod rule_file;
pub mod rules;
mod streams;

use std::io::{self, Write};

use anyhow::Context;

use crate::host::print_json;
use crate::options::{Command, Options};
use crate::table::{Table, bytes, dash, plural};
use crate::top::{self, Row, Standing};
use explain::Explanation;
use netlink::{Modules, Peer, Status};
use streams::Count;

/// Whether the kernel modules are loaded here.
pub fn is_guest() -> bool {
    matches!(Modules::open(), Ok(Some(_)))
}

fn as_root(error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::PermissionDenied {
        anyhow::anyhow!("only root may do this")
    } else {
        error.into()
    }
}

/// Runs a command.
///
/// # Errors
/// What failed, and what to do.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut modules = Modules::open()
        .context("generic netlink")?
        .context("the kernel modules are not loaded\n  load them with: modprobe vmloop")?;
    let out = &mut io::stdout().lock();
    match &options.command {
        Command::Status { json } => {
            let status = modules.status()?;
            let peers = modules.peers()?;
            let why: Vec<_> =
                peers.iter().map(|peer| explain::explain(peer, status.enabled)).collect();
            let found = streams::ask()?;
            let whole = Whole { status, why, streams: found.as_deref().map(Count::of) };
            if *json { print_json(out, &whole) } else { Ok(show_status(out, &whole)?) }
        }
        Command::Explain { peer, other, json } => {
            anyhow::ensure!(other.is_none(), "in a guest, name one peer");
            let enabled = modules.status()?.enabled;
            let one = explain::explain(&find(&mut modules, peer)?, enabled);
            if *json { print_json(out, &one) } else { Ok(explain::show(out, &one)?) }
        }
        Command::Ls { json } => {
            let peers = modules.peers()?;
            if *json { print_json(out, &peers) } else { Ok(show_peers(out, &peers)?) }
        }
        Command::Stats { json } => {
            let peers = modules.peers()?;
            if *json { print_json(out, &peers) } else { Ok(show_stats(out, &peers)?) }
        }
        Command::Top { interval, batch } => {
            top::run(*interval, *batch, &mut || Ok(modules.peers()?.iter().map(row).collect()))
        }
        Command::Events { json } => modules.events(&mut |peer| {
            if *json {
                serde_json::to_writer(&mut *out, peer)?;
                writeln!(out)?;
            } else {
                writeln!(out, "{} tag {}: {}", peer.name, peer.tag, standing(peer))?;
            }
            Ok(out.flush()?)
        }),
        Command::Off => modules.enable(false).map_err(as_root),
        Command::On => modules.enable(true).map_err(as_root),
        Command::Reset { peer, other } => {
            anyhow::ensure!(other.is_none(), "in a guest, name one peer");
            let one = find(&mut modules, peer)?;
            modules.reset(u64::from_str_radix(&one.id, 16)?).map_err(as_root)
        }
        Command::Attach { .. }
        | Command::Detach { .. }
        | Command::Close { .. }
        | Command::Prepare { .. }
        | Command::Migrate { .. }
        | Command::Resume { .. }
        | Command::Policy { .. } => {
            anyhow::bail!("this is for hosts, and this is a guest\n  if it is a host too: --host")
        }
        Command::Streams { json } => streams(*json),
        Command::Stream { command } => rules::run(command),
        Command::Gen { directory } => crate::generate::run(directory),
    }
}

fn in_user_namespace(error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::PermissionDenied {
        anyhow::anyhow!(
            "no connection in a network namespace of a user's own (a container without root) has a lane\n  for those of the guest: ask outside of it"
        )
    } else {
        error.into()
    }
}

/// Shows connections of this network namespace; the directory, which has the peers' names, is
/// asked for only in the first one.
///
/// # Errors
/// What failed, and what to do.
pub fn streams(json: bool) -> anyhow::Result<()> {
    let peers = match Modules::open().context("generic netlink")? {
        Some(mut modules) => modules.peers()?,
        None => Vec::new(),
    };
    let streams = streams::list(&peers).map_err(in_user_namespace)?.context(
        "the stream path is not loaded\n  load it in both guests, before servers start: modprobe vmloop_tcp (/usr/share/doc/vmloop/stream.md)",
    )?;
    let out = &mut io::stdout().lock();
    if json { print_json(out, &streams) } else { Ok(streams::show(out, &streams)?) }
}

/// This guest, why frames for its peers take the standard network, and how many connections the
/// stream path has; none if that is not loaded.
#[derive(serde::Serialize)]
struct Whole {
    #[serde(flatten)]
    status: Status,
    why: Vec<Explanation>,
    streams: Option<Count>,
}

/// The peer with a name or an identity.
fn find(modules: &mut Modules, peer: &str) -> anyhow::Result<Peer> {
    let wanted = peer.to_ascii_lowercase();
    let mut found = modules.peers()?.into_iter().filter(|one| one.name == peer || one.id == wanted);
    let one =
        found.next().with_context(|| format!("there is no peer {peer:?}\n  see vmloop ls"))?;
    anyhow::ensure!(
        found.next().is_none(),
        "several peers are called {peer:?}\n  give an identity; see vmloop ls --json"
    );
    Ok(one)
}

fn show_status(out: &mut dyn Write, whole: &Whole) -> io::Result<()> {
    let Whole { status, why, streams } = whole;
    let known = |hex: &str| !hex.trim_start_matches('0').is_empty();
    writeln!(
        out,
        "vmloop {}, protocol {}, {}",
        status.version,
        status.protocol,
        if status.enabled { "on" } else { "OFF (vmloop on)" }
    )?;
    writeln!(out, "transports  {}", dash(&status.transports.join(" ")))?;
    if known(&status.id) {
        writeln!(out, "this guest  {} ({})", status.name, status.id)?;
    }
    let agent = if known(&status.agent) { &status.agent } else { "none heard of" };
    writeln!(out, "agent       {agent}")?;
    if !status.routed_ips.is_empty() {
        writeln!(out, "routed      {}", status.routed_ips.join(" "))?;
    }
    writeln!(out, "peers       {} ({} up)", status.peers, plural(status.channels_up, "channel"))?;
    match streams {
        Some(Count { connections, lanes }) => writeln!(
            out,
            "streams     {} ({})",
            plural(*connections, "connection"),
            plural(*lanes, "lane")
        )?,
        None => writeln!(out, "streams     - (vmloop_tcp is not loaded)")?,
    }
    for one in why {
        explain::show_line(out, one)?;
    }
    if why.iter().any(|one| !one.reasons.is_empty()) {
        writeln!(out, "  for more: vmloop explain PEER")?;
    }
    Ok(())
}

fn show_peers(out: &mut dyn Write, peers: &[Peer]) -> io::Result<()> {
    let mut table = Table::new(&[
        "PEER",
        "STATE",
        "TAG",
        "RING",
        "TRANSPORT",
        "OURS",
        "PEER'S",
        "ROUTER",
        "MTU",
        "IP",
    ]);
    for peer in peers {
        for index in 0..peer.interfaces.len().max(1) {
            let interface = peer.interfaces.get(index).cloned().unwrap_or_default();
            let first = |text: String| if index == 0 { text } else { String::new() };
            let state = standing(peer);
            table.row([
                first(dash(&peer.name)),
                first(state),
                first(if peer.tag == 0 { "-".into() } else { peer.tag.to_string() }),
                first(rings(peer)),
                first(peer.transport.clone()),
                dash(&interface.local_mac),
                dash(&interface.mac),
                dash(&interface.gateway),
                interface.mtu.to_string(),
                dash(&interface.ips.join(" ")),
            ]);
        }
    }
    if table.is_empty() {
        return writeln!(
            out,
            "no peers: no other guest on the same network runs vmloop, or the host has no agent"
        );
    }
    table.write(out)
}

/// Bytes of its rings of packets, and how many they are where there are several.
fn rings(peer: &Peer) -> String {
    match (peer.ring_size, peer.lanes) {
        (0, _) => "-".into(),
        (size, 0 | 1) => bytes(size),
        (size, lanes) => format!("{} in {lanes}", bytes(size)),
    }
}

/// The state of a peer's channel, why so, and when it is tried again if it is not up.
fn standing(peer: &Peer) -> String {
    let mut why = Vec::new();
    if !peer.reason.is_empty() {
        why.push(peer.reason.clone());
    }
    if !peer.broke.is_empty() {
        let times =
            if peer.breaks > 1 { format!(", {} times", peer.breaks) } else { String::new() };
        why.push(format!("broke: {}{times}", peer.broke));
    }
    if peer.retry_ms > 0 {
        why.push(format!("again in {} s", peer.retry_ms.div_ceil(1000)));
    } else if peer.state == "broken" && peer.breaks >= netlink::BREAKS_MAX {
        why.push("until vmloop reset".into());
    }
    if why.is_empty() {
        return peer.state.clone();
    }
    format!("{} ({})", peer.state, why.join("; "))
}

fn counter(peer: &Peer, name: &str) -> u64 {
    peer.stats.get(name).copied().unwrap_or(0)
}

fn dropped(peer: &Peer) -> u64 {
    peer.stats.iter().filter(|(name, _)| name.starts_with("drop-")).map(|(_, value)| value).sum()
}

fn show_stats(out: &mut dyn Write, peers: &[Peer]) -> io::Result<()> {
    if peers.is_empty() {
        return writeln!(out, "no peers");
    }
    for peer in peers {
        writeln!(out, "{} ({})", peer.name, peer.state)?;
        for name in netlink::COUNTERS {
            writeln!(out, "  {name:<18}{}", counter(peer, name))?;
        }
    }
    Ok(())
}

fn row(peer: &Peer) -> Row {
    Row {
        name: peer.name.clone(),
        state: peer.state.clone(),
        standing: match peer.state.as_str() {
            "up" => Standing::Up,
            "broken" | "failed" => Standing::Fault,
            _ => Standing::Other,
        },
        out_bytes: counter(peer, "tx-bytes"),
        out_frames: counter(peer, "tx-frames"),
        in_bytes: counter(peer, "rx-bytes"),
        in_frames: counter(peer, "rx-frames"),
        doorbells: counter(peer, "tx-doorbells") + counter(peer, "rx-doorbells"),
        dropped: dropped(peer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_channel() {
        let status = Status { peers: 2, channels_up: 1, ..Status::default() };
        let mut whole = Whole { status, why: Vec::new(), streams: None };
        let mut out = Vec::new();
        show_status(&mut out, &whole).expect("written");
        whole.streams = Some(Count { connections: 12, lanes: 1 });
        show_status(&mut out, &whole).expect("written");
        let text = String::from_utf8_lossy(&out);
        let peers = "peers       2 (1 channel up)\n";
        assert!(
            text.contains(&format!("{peers}streams     - (vmloop_tcp is not loaded)\n")),
            "{text}"
        );
        assert!(text.contains(&format!("{peers}streams     12 connections (1 lane)\n")), "{text}");
    }
}
