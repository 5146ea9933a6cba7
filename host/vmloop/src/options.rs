// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What can be typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use vmloop_policy::Prefix;

/// Shows and steers vmloop: shared-memory networking between the machines of one host.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "vmloop",
    version,
    about,
    after_help = "Exit status: 0 if all is well, 1 if something failed, 2 for wrong usage, 3 if the agent cannot be reached."
)]
pub struct Options {
    /// Talk to the agent of this host, whatever else is here
    #[arg(long = "host", id = "on_host", global = true, conflicts_with = "in_guest")]
    pub host: bool,
    /// Talk to this guest's kernel modules, whatever else is here
    #[arg(long = "guest", id = "in_guest", global = true)]
    pub guest: bool,
    /// Socket of the agent [default: /run/vmloop/vmloopd.sock]
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "in_guest")]
    pub socket: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Attach to a running QEMU machine, or to a Xen domain that was detached (host)
    Attach {
        /// Name, UUID or number of the domain; Xen only, where all others are found by themselves
        #[arg(value_name = "DOMAIN", required_unless_present = "qmp", conflicts_with = "qmp")]
        guest: Option<String>,
        /// QMP socket of the machine, of which vmloopd must be the only user
        #[arg(long, value_name = "SOCKET")]
        qmp: Option<PathBuf>,
        /// Name for the guest [default: QEMU's -name, or the socket's]
        #[arg(long, requires = "qmp")]
        name: Option<String>,
    },
    /// Close a guest's channels and leave it alone: QEMU's until it is attached again or
    /// starts anew, Xen's until it is attached again or ends (host)
    Detach {
        /// Name, UUID or identity of the guest
        guest: String,
    },
    /// Make a QEMU guest ready to be migrated or saved: returns when its channels
    /// are closed and vmloop's devices are gone. It takes part again by itself if
    /// the migration fails, is cancelled, or does not come (host)
    Prepare {
        /// Name, UUID or identity of the guest
        guest: String,
    },
    /// Prepare a QEMU guest, and migrate it live to a QEMU that waits for it
    /// (-incoming) (host)
    Migrate {
        /// Name, UUID or identity of the guest
        guest: String,
        /// HOST, HOST:PORT (49152 if not given), or what QEMU takes, such as unix:PATH
        #[arg(long, value_name = "DESTINATION", value_parser = destination)]
        to: String,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Have a prepared guest take part again; a migration that `vmloop migrate`
    /// began is cancelled (host)
    Resume {
        /// Name, UUID or identity of the guest
        guest: String,
    },
    /// Close the channel between two guests; they may ask for another (host)
    Close {
        /// Name, UUID or identity of one guest
        a: String,
        /// And of the other
        b: String,
    },
    /// Show the state of the agent, or of this guest
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// List guests and channels, or this guest's peers
    #[command(visible_alias = "list")]
    Ls {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the counters of every channel
    Stats {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// List the TCP connections to peers that the stream path has taken over: what
    /// carries each, why TCP does where it does, and which program has it (guest)
    Streams {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show, add and remove the rules that say which connections may have lanes (guest)
    Stream {
        /// What to do
        #[command(subcommand)]
        command: Stream,
    },
    /// Say how the channel to a peer stands, why frames for it take the standard
    /// network, and what to do about it (guest); say why two guests have a channel or
    /// have none: policy, network, a filter of the host's, bounds (host)
    Explain {
        /// Name or identity of the peer; on a host, of one guest
        peer: String,
        /// On a host: name, UUID or identity of the other guest
        other: Option<String>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Watch the traffic of every channel
    Top {
        /// Seconds between two looks
        #[arg(long, short, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
        interval: f64,
        /// Print so many looks as plain text instead of drawing
        #[arg(long, short = 'n', value_name = "COUNT")]
        batch: Option<u64>,
    },
    /// Print what happens, as it happens
    Events {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Check, show or reload the policy (host)
    Policy {
        /// What to do
        #[command(subcommand)]
        command: Policy,
    },
    /// Close this guest's channels and use none (guest)
    Off,
    /// Use channels again (guest)
    On,
    /// Ask for a peer's channel again, although it was refused, failed or broken
    /// (guest); let two guests ask again whose channels broke or failed (host)
    Reset {
        /// Name or identity of the peer; on a host, of one guest
        peer: String,
        /// On a host: name, UUID or identity of the other guest
        other: Option<String>,
    },
    /// Write man pages and shell completions
    #[command(hide = true)]
    Gen {
        /// Directory that gets man/ and completion/
        directory: PathBuf,
    },
}

/// What to do with the rules of the stream path.
#[derive(Clone, Debug, Subcommand)]
pub enum Stream {
    /// List the rules: the first that matches a connection decides, and where none does, it
    /// may have a lane
    Rules {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a rule, which holds at once, and print its number; it matches where all that is
    /// given does
    Add(Rule),
    /// Have the rules of a file instead of those that there are: in each line what `add`
    /// takes, and comments behind a #
    Load {
        /// If the file cannot be read, or a line is wrong, have all connections stay on TCP; else
        /// the rules are as before then
        #[arg(long)]
        closed: bool,
        /// The file, such as /etc/vmloop/stream.rules
        file: PathBuf,
    },
    /// Remove a rule
    Remove {
        /// Its number
        id: u32,
    },
}

/// A rule that is to be.
#[derive(Clone, Debug, clap::Args)]
pub struct Rule {
    /// What is to carry the connections
    pub by: Carrier,
    /// A port, or FIRST-LAST, of either end
    #[arg(long, value_name = "PORT", value_parser = ports)]
    pub port: Option<Ports>,
    /// Address of the other end, or a network: ADDRESS/BITS
    #[arg(long, value_name = "NETWORK")]
    pub address: Option<Prefix>,
    /// The socket was made in this cgroup, or below it, such as /system.slice/nginx.service
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
    /// Network namespace: a name of `ip netns`, or the number of a process in it where no
    /// name is such
    #[arg(long, value_name = "NAME")]
    pub netns: Option<String>,
    /// Put it before the rule with this number [default: behind all others]
    #[arg(long, value_name = "RULE", value_parser = clap::value_parser!(u32).range(1..))]
    pub before: Option<u32>,
}

/// What carries a connection's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Carrier {
    /// Lanes, when they are worth it
    Lanes,
    /// TCP alone
    Tcp,
}

/// Ports, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// the first
    pub first: u16,
    /// the last
    pub last: u16,
}

fn ports(text: &str) -> Result<Ports, String> {
    let port = |text: &str| match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("{text:?} is no port: they go from 1 to 65535")),
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let ports = Ports { first: port(first)?, last: port(last)? };
    if ports.first > ports.last {
        return Err("the first port is behind the last".into());
    }
    Ok(ports)
}

/// What to do with the policy.
#[derive(Clone, Debug, Subcommand)]
pub enum Policy {
    /// Read a file and say what is wrong with it; needs no agent
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print the policy in force
    Show,
    /// Make the agent read its file again
    Reload,
}

/// Port of migrations, as libvirt's first.
const MIGRATION_PORT: u16 = 49152;

/// The URI that QEMU wants for a host, or for what is one already.
fn destination(text: &str) -> Result<String, String> {
    let schemes = ["tcp:", "unix:", "exec:", "fd:", "rdma:", "vsock:"];
    if schemes.iter().any(|scheme| text.starts_with(scheme)) {
        return Ok(text.into());
    }
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (format!("[{host}]"), None),
        Some((host, rest)) => (format!("[{host}]"), Some(rest.strip_prefix(':').unwrap_or(rest))),
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => (format!("[{text}]"), None),
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (text.to_owned(), None),
        },
    };
    let port: u16 = match port {
        None => MIGRATION_PORT,
        Some(port) => port.parse().map_err(|_| format!("{port:?} is no port"))?,
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == ',') {
        return Err(format!("{host:?} is no host"));
    }
    Ok(format!("tcp:{host}:{port}"))
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("must be a number from 0.1 to 3600".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules() {
        assert_eq!(ports("22"), Ok(Ports { first: 22, last: 22 }));
        assert_eq!(ports("1-65535"), Ok(Ports { first: 1, last: 65535 }));
        for text in ["", "0", "65536", "2-1", "1-", "-1", "ssh"] {
            assert!(ports(text).is_err(), "{text}");
        }
    }

    #[test]
    fn destinations() {
        for (text, uri) in [
            ("host2", "tcp:host2:49152"),
            ("host2:4444", "tcp:host2:4444"),
            ("10.0.0.2", "tcp:10.0.0.2:49152"),
            ("fd77::2", "tcp:[fd77::2]:49152"),
            ("[fd77::2]", "tcp:[fd77::2]:49152"),
            ("[fd77::2]:1", "tcp:[fd77::2]:1"),
            ("tcp:host2:1", "tcp:host2:1"),
            ("unix:/run/m.sock", "unix:/run/m.sock"),
        ] {
            assert_eq!(destination(text).as_deref(), Ok(uri), "{text}");
        }
        for text in ["", ":1", "host2:", "host2:x", "host2:65536", "a b", "[::1]x"] {
            assert!(destination(text).is_err(), "{text}");
        }
    }
}
