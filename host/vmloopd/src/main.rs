// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The host agent; see the library.

use clap::Parser;

fn main() -> std::process::ExitCode {
    match vmloopd::cli::run(&vmloopd::cli::Options::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vmloopd: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
