// SPDX-License-Identifier: GPL-2.0 OR MIT
//! vmloop's command line. On a host it talks to the agent, in a guest to the
//! kernel modules.

mod generate;
mod guest;
mod host;
mod options;
mod table;
mod top;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use options::{Command, Options};

/// Exit codes beyond 0 and 1 (something failed); 2 is clap's, for usage.
const NO_AGENT: u8 = 3;

/// Which of the two this machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Host,
    Guest,
}

fn place(options: &Options) -> anyhow::Result<Place> {
    if options.host {
        return Ok(Place::Host);
    }
    if options.guest {
        return Ok(Place::Guest);
    }
    if options.socket.is_some() {
        return Ok(Place::Host);
    }
    if guest::is_guest() {
        return Ok(Place::Guest);
    }
    if Path::new(vmloop_api::SOCKET).exists() || host_only(&options.command) {
        return Ok(Place::Host);
    }
    anyhow::bail!(
        "neither the agent (no {}) nor the kernel modules (no netlink family \"vmloop\") are here\n  \
         on a host: systemctl start vmloopd\n  in a guest: modprobe vmloop",
        vmloop_api::SOCKET
    )
}

fn host_only(command: &Command) -> bool {
    matches!(
        command,
        Command::Attach { .. }
            | Command::Detach { .. }
            | Command::Close { .. }
            | Command::Prepare { .. }
            | Command::Migrate { .. }
            | Command::Resume { .. }
            | Command::Reset { other: Some(_), .. }
            | Command::Explain { other: Some(_), .. }
            | Command::Policy { .. }
    )
}

fn run(options: &Options) -> anyhow::Result<()> {
    match &options.command {
        Command::Gen { directory } => return generate::run(directory),
        Command::Streams { json } if !options.host => return guest::streams(*json),
        Command::Stream { command } if !options.host => return guest::rules::run(command),
        Command::Policy { command: options::Policy::Check { file } } => {
            return host::check_policy(file);
        }
        _ => {}
    }
    match place(options)? {
        Place::Host => host::run(options),
        Place::Guest => guest::run(options),
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let error = match run(&options) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => error,
    };
    // A reader that has seen enough, such as head, is no error.
    if error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    {
        return ExitCode::SUCCESS;
    }
    eprintln!("vmloop: {error:#}");
    match error.downcast_ref() {
        Some(vmloop_api::CallError::Io(..)) => ExitCode::from(NO_AGENT),
        _ => ExitCode::FAILURE,
    }
}
