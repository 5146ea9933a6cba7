// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What can be typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

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
    /// Ask for a peer's channel again, although it was refused, failed or broken (guest)
    Reset {
        /// Name or identity of the peer
        peer: String,
    },
    /// Write man pages and shell completions
    #[command(hide = true)]
    Gen {
        /// Directory that gets man/ and completion/
        directory: PathBuf,
    },
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

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("must be a number from 0.1 to 3600".into()),
    }
}
