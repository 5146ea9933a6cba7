// SPDX-License-Identifier: GPL-2.0 OR MIT
//! On a host: what the agent says.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;
use vmloop_api::{
    Broken, Channel, ChannelState, Client, Disputed, Event, Explained, Guest, GuestState, Listing,
    Migrated, Nic, PolicyState, Reason, Request, Stats, Status,
};
use vmloop_policy::Policy as Checked;

use crate::options::{Command, Options, Policy};
use crate::table::{Table, bytes, dash, date, duration, plural};
use crate::top::{self, Row, Standing};

/// Reads a policy, and says what is wrong with it.
///
/// # Errors
/// What is wrong with it.
pub fn check_policy(file: &Path) -> anyhow::Result<()> {
    let policy = Checked::read(file)?;
    println!(
        "{}: good: {} (rings of {}, at most {} a side, idle after {} ms)",
        file.display(),
        policy.summary(),
        bytes(policy.ring_size.into()),
        plural(policy.doorbells.into(), "doorbell"),
        policy.idle_ms
    );
    Ok(())
}

/// Runs a command.
///
/// # Errors
/// What failed, and what to do.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let path = options.socket.clone().unwrap_or_else(|| PathBuf::from(vmloop_api::SOCKET));
    let mut agent = Client::connect(&path)?;
    let out = &mut io::stdout().lock();
    match &options.command {
        Command::Attach { guest, qmp, name } => {
            let request = match (qmp, guest) {
                (Some(qmp), _) => {
                    Request::Attach { qmp: std::path::absolute(qmp)?, name: name.clone() }
                }
                (None, guest) => Request::Include { guest: guest.clone().unwrap_or_default() },
            };
            let guest: Guest = agent.call(&request)?;
            let verb =
                if guest.state == GuestState::Arriving { "waiting for" } else { "attached to" };
            write!(out, "{verb} {} ({}", guest.name, guest.machine)?;
            if guest.pid != 0 {
                write!(out, ", process {}", guest.pid)?;
            }
            writeln!(out, ")")?;
            for nic in &guest.nics {
                if nic.blocked.is_empty() {
                    writeln!(out, "  {} on {}", nic.mac, network(nic))?;
                } else {
                    writeln!(out, "  {}: no channels, as {}", nic.mac, nic.blocked)?;
                }
            }
            if guest.nics.is_empty() && guest.state != GuestState::Arriving {
                writeln!(out, "  it has no network interface, and so will have no channels")?;
            }
            Ok(())
        }
        Command::Detach { guest } => {
            let _: Value = agent.call(&Request::Detach { guest: guest.clone() })?;
            Ok(())
        }
        Command::Prepare { guest } => {
            let _: Guest = agent.call(&Request::Prepare { guest: guest.clone() })?;
            Ok(())
        }
        Command::Migrate { guest, to, json } => {
            // As long as the machine has memory to send.
            agent.wait_forever();
            let done: Migrated =
                agent.call(&Request::Migrate { guest: guest.clone(), uri: to.clone() })?;
            if *json {
                return print_json(out, &done);
            }
            writeln!(
                out,
                "{} has moved to {}: prepared in {} ms, migrated in {} ms, stood still for {} ms",
                done.guest, done.to, done.prepare_ms, done.total_ms, done.downtime_ms
            )?;
            Ok(())
        }
        Command::Resume { guest } => {
            let _: Guest = agent.call(&Request::Resume { guest: guest.clone() })?;
            Ok(())
        }
        Command::Close { a, b } => {
            let _: Value = agent.call(&Request::Close { a: a.clone(), b: b.clone() })?;
            Ok(())
        }
        Command::Status { json } => {
            let status: Status = agent.call(&Request::Status)?;
            if *json {
                return print_json(out, &status);
            }
            show_status(out, &status)?;
            Ok(())
        }
        Command::Ls { json } => {
            let listing: Listing = agent.call(&Request::List)?;
            if *json {
                return print_json(out, &listing);
            }
            show_listing(out, &listing)?;
            Ok(())
        }
        Command::Stats { json } => {
            let listing: Listing = agent.call(&Request::Stats)?;
            if *json {
                return print_json(out, &listing.channels);
            }
            show_stats(out, &listing.channels)?;
            Ok(())
        }
        Command::Top { interval, batch } => top::run(*interval, *batch, &mut || {
            let listing: Listing = agent.call(&Request::Stats)?;
            Ok(listing.channels.iter().map(row).collect())
        }),
        Command::Events { json } => {
            let mut change: Event = {
                agent.wait_forever();
                agent.call(&Request::Events)?
            };
            loop {
                if *json {
                    serde_json::to_writer(&mut *out, &change)?;
                    writeln!(out)?;
                } else {
                    show_event(out, &change)?;
                }
                out.flush()?;
                change = agent.receive()?;
            }
        }
        Command::Policy { command } => match command {
            Policy::Show => {
                let text: String = agent.call(&Request::PolicyShow)?;
                write!(out, "{text}")?;
                Ok(())
            }
            Policy::Reload => {
                let _: String = agent.call(&Request::PolicyReload)?;
                Ok(())
            }
            Policy::Check { file } => check_policy(file),
        },
        Command::Reset { peer, other } => {
            let other = other.clone().ok_or_else(|| {
                anyhow::anyhow!("on a host, name two guests: vmloop reset GUEST GUEST")
            })?;
            let _: Value = agent.call(&Request::Reset { a: peer.clone(), b: other })?;
            Ok(())
        }
        Command::Explain { peer, other, json } => {
            let other = other.clone().ok_or_else(|| {
                anyhow::anyhow!("on a host, name two guests: vmloop explain GUEST GUEST")
            })?;
            let explained: Explained =
                agent.call(&Request::Explain { a: peer.clone(), b: other })?;
            if *json {
                return print_json(out, &explained);
            }
            show_explained(out, &explained)?;
            Ok(())
        }
        Command::Streams { .. } | Command::Stream { .. } => {
            anyhow::bail!("this is for guests: the agent does not see which connections have lanes")
        }
        Command::Off | Command::On => {
            anyhow::bail!(
                "this is for guests\n  on a host: vmloop detach GUEST, vmloop attach, or a policy"
            )
        }
        Command::Gen { directory } => crate::generate::run(directory),
    }
}

/// Prints JSON with line breaks.
///
/// # Errors
/// Those of writing.
pub fn print_json(out: &mut dyn Write, value: &impl serde::Serialize) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)?;
    Ok(())
}

/// Where an interface is that can have channels.
fn network(nic: &Nic) -> String {
    let place = if nic.bridge.is_empty() { &nic.tap } else { &nic.bridge };
    let vlan = if nic.vlan == 0 { String::new() } else { format!(" VLAN {}", nic.vlan) };
    let routed = if nic.gateway.is_empty() { "" } else { ", routed" };
    format!("{place}{vlan}{routed}")
}

fn show_status(out: &mut dyn Write, status: &Status) -> io::Result<()> {
    writeln!(
        out,
        "vmloopd {}, process {}, up {}{}",
        status.version,
        status.pid,
        duration(status.uptime_s),
        if status.recovering { ", recovering" } else { "" }
    )?;
    writeln!(out, "host      {}", status.hypervisor)?;
    writeln!(out, "guests    {} ({} run the modules)", status.guests, status.guests_ready)?;
    writeln!(out, "channels  {} ({} up)", status.channels, status.channels_up)?;
    if let Some(most) = status.memory_max {
        let (taken, most) = (bytes(status.memory), bytes(most >> 20 << 20));
        writeln!(out, "memory    channels of up to {taken}, of {most} at most")?;
    }
    writeln!(out, "policy    {}", policy_line(status))?;
    for problem in &status.problems {
        writeln!(out, "PROBLEM   {problem}")?;
    }
    let counters = &status.counters;
    writeln!(
        out,
        "opened {}, closed {}, failed {}, broken {}; asked for {}, refused {}",
        counters.channels_opened,
        counters.channels_closed,
        counters.channels_failed,
        counters.channels_broken,
        counters.wants,
        counters.refused
    )?;
    writeln!(
        out,
        "guests gone {}; messages ignored {}, control devices replaced {}, throttled {}",
        counters.guests_gone, counters.malformed, counters.control_broken, counters.throttled
    )
}

/// Which policy is in force, and why.
fn policy_line(status: &Status) -> String {
    let (file, error) = (status.policy.display(), &status.policy_error);
    match status.policy_state {
        PolicyState::None => {
            format!("none, as there is no {file}: all guests on the same bridge and VLAN may talk")
        }
        PolicyState::LastGood => {
            format!("last good one of {} in force: {error}", date(status.policy_since))
        }
        PolicyState::Denied => format!("NOBODY may talk, as none can be read: {error}"),
        _ if error.is_empty() => file.to_string(),
        // Of an older agent.
        _ => format!("{file}, NOT in force as it stands now: {error}"),
    }
}

fn show_listing(out: &mut dyn Write, listing: &Listing) -> io::Result<()> {
    let mut table = Table::new(&["GUEST", "STATE", "MACHINE", "KERNEL", "MAC", "NETWORK", "IP"]);
    for guest in &listing.guests {
        let nics = guest.nics.len().max(1);
        for index in 0..nics {
            let nic = guest.nics.get(index).cloned().unwrap_or_default();
            let network = if guest.nics.is_empty() {
                "-".into()
            } else if nic.blocked.is_empty() {
                network(&nic)
            } else {
                format!("none: {}", nic.blocked)
            };
            let first = |text: &str| if index == 0 { dash(text) } else { String::new() };
            table.row([
                first(&guest.name),
                first(&guest.state.to_string()),
                first(&guest.machine),
                first(&guest.kernel),
                dash(&nic.mac),
                network,
                first(&guest.ips.join(" ")),
            ]);
        }
    }
    if table.is_empty() {
        return writeln!(
            out,
            "no guests; on Xen they are found by themselves, with QEMU: vmloop attach --qmp SOCKET"
        );
    }
    table.write(out)?;
    let routed = |guest: &&Guest| guest.nics.iter().any(|nic| !nic.gateway.is_empty());
    for guest in listing.guests.iter().filter(routed) {
        let ips = dash(&guest.routed_ips.join(" "));
        writeln!(out, "{} is reached through the host by: {ips}", guest.name)?;
    }
    for guest in &listing.guests {
        for Disputed { ip, owner } in &guest.disputed_ips {
            writeln!(out, "{} also says that it is {ip}, which is {owner}'s", guest.name)?;
        }
    }
    show_broken(out, &listing.broken)?;
    if listing.channels.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let mut table = Table::new(&["TAG", "STATE", "A", "B", "RING", "AGE", ""]);
    for channel in &listing.channels {
        table.row([
            channel.tag.to_string(),
            channel.state.to_string(),
            format!("{} ({})", channel.a.guest, channel.a.state),
            format!("{} ({})", channel.b.guest, channel.b.state),
            if channel.ring_size == 0 { "-".into() } else { bytes(channel.ring_size.into()) },
            duration(channel.age_s),
            channel.reason.clone(),
        ]);
    }
    table.write(out)
}

fn show_explained(out: &mut dyn Write, one: &Explained) -> io::Result<()> {
    let Explained { a, b, channel, tag, reasons, without_streams } = one;
    match channel {
        ChannelState::None => writeln!(out, "{a} and {b} have no channel.")?,
        state => writeln!(out, "{a} and {b} have channel {tag} ({state}).")?,
    }
    for Reason { code, why, what_to_do, .. } in reasons {
        writeln!(out, "  {code}: {why}")?;
        if !what_to_do.is_empty() {
            writeln!(out, "    {what_to_do}")?;
        }
    }
    if *without_streams {
        writeln!(out, "  Their connections go as packets: the policy has no streams for them.")?;
    }
    Ok(())
}

fn show_broken(out: &mut dyn Write, broken: &[Broken]) -> io::Result<()> {
    for Broken { a, b, breaks, reason, operator, next_ms } in broken {
        let times = if *breaks == 1 { "once".into() } else { format!("{breaks} times in a row") };
        write!(out, "{a} - {b}: their channel broke {times} ({reason}); ")?;
        if *operator {
            writeln!(out, "no other before: vmloop reset {a} {b}")?;
        } else if *next_ms == 0 {
            writeln!(out, "they may have another")?;
        } else {
            writeln!(out, "another in {} s", next_ms.div_ceil(1000))?;
        }
    }
    Ok(())
}

fn show_stats(out: &mut dyn Write, channels: &[Channel]) -> io::Result<()> {
    let mut table =
        Table::new(&["TAG", "FROM", "TO", "FRAMES", "BYTES", "DOORBELLS", "FULL", "DROPPED"]);
    for channel in channels {
        for (from, to) in [(&channel.a, &channel.b), (&channel.b, &channel.a)] {
            let cell = |side: &vmloop_api::Side, value: fn(&Stats) -> u64| {
                side.stats.as_ref().map_or_else(|| "-".into(), |stats| value(stats).to_string())
            };
            table.row([
                channel.tag.to_string(),
                from.guest.clone(),
                to.guest.clone(),
                cell(from, |stats| stats.tx_frames),
                cell(from, |stats| stats.tx_bytes),
                cell(from, |stats| stats.tx_doorbells),
                cell(from, |stats| stats.tx_full),
                // Frames are dropped by whoever receives them.
                cell(to, |stats| stats.rx_dropped),
            ]);
        }
    }
    if table.is_empty() {
        return writeln!(out, "no channels");
    }
    table.write(out)
}

fn row(channel: &Channel) -> Row {
    let stats = |side: &vmloop_api::Side| side.stats.unwrap_or_default();
    let (a, b) = (stats(&channel.a), stats(&channel.b));
    Row {
        name: format!("{} - {}", channel.a.guest, channel.b.guest),
        state: channel.state.to_string(),
        standing: match channel.state {
            ChannelState::Up => Standing::Up,
            ChannelState::Stuck | ChannelState::Revoked => Standing::Fault,
            _ => Standing::Other,
        },
        out_bytes: a.tx_bytes,
        out_frames: a.tx_frames,
        in_bytes: b.tx_bytes,
        in_frames: b.tx_frames,
        doorbells: a.tx_doorbells + b.tx_doorbells,
        dropped: a.rx_dropped + b.rx_dropped,
    }
}

fn show_event(out: &mut dyn Write, change: &Event) -> io::Result<()> {
    let seconds = change.time.rem_euclid(86400.0);
    write!(
        out,
        "{:02}:{:02}:{:06.3}Z {:<16} {}",
        (seconds / 3600.0) as u32,
        (seconds / 60.0) as u32 % 60,
        seconds % 60.0,
        change.event,
        change.guest
    )?;
    if !change.peer.is_empty() {
        write!(out, " - {}", change.peer)?;
    }
    if change.tag != 0 {
        write!(out, " tag {}", change.tag)?;
    }
    if !change.detail.is_empty() {
        write!(out, " ({})", change.detail)?;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use vmloop_api::ReasonCode;

    use super::*;

    #[test]
    fn policies() {
        let said = |policy_state, error: &str| {
            let policy = "/etc/vmloop/policy.toml".into();
            policy_line(&Status {
                policy,
                policy_state,
                policy_error: error.into(),
                ..Status::default()
            })
        };
        // No sentence may read as if there were a file that there is not.
        assert_eq!(
            said(PolicyState::None, ""),
            "none, as there is no /etc/vmloop/policy.toml: all guests on the same bridge and VLAN may talk"
        );
        assert_eq!(said(PolicyState::File, ""), "/etc/vmloop/policy.toml");
        assert_eq!(
            said(PolicyState::LastGood, "line 3"),
            "last good one of 1970-01-01 00:00:00 UTC in force: line 3"
        );
        assert_eq!(
            said(PolicyState::Denied, "line 3"),
            "NOBODY may talk, as none can be read: line 3"
        );
    }

    #[test]
    fn explanations() {
        let reason = Reason {
            code: ReasonCode::Filter,
            why: "A filter.".into(),
            what_to_do: "Remove it".into(),
            filter: None,
        };
        let mut one = Explained {
            a: "web1".into(),
            b: "web2".into(),
            channel: ChannelState::None,
            tag: 0,
            reasons: vec![reason],
            without_streams: false,
        };
        let shown = |one: &Explained| {
            let mut out = Vec::new();
            show_explained(&mut out, one).expect("memory");
            String::from_utf8(out).expect("text")
        };
        let text = "web1 and web2 have no channel.\n  filter: A filter.\n    Remove it\n";
        assert_eq!(shown(&one), text);
        one.reasons.clear();
        (one.channel, one.tag) = (ChannelState::Up, 7);
        assert_eq!(shown(&one), "web1 and web2 have channel 7 (up).\n");
        one.without_streams = true;
        assert!(shown(&one).ends_with("the policy has no streams for them.\n"));
    }
}
