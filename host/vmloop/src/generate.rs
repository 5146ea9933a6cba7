// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Man pages and shell completions, made from the definitions of the command
//! lines.

use std::fs;
use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

/// Writes `man/*.8` and `completion/*` below `directory`.
///
/// # Errors
/// Those of writing.
pub fn run(directory: &Path) -> anyhow::Result<()> {
    let man = directory.join("man");
    let completion = directory.join("completion");
    for path in [&man, &completion] {
        fs::create_dir_all(path).with_context(|| path.display().to_string())?;
    }
    for command in
        [crate::options::Options::command(), vmloopd::cli::Options::command().name("vmloopd")]
    {
        let name = command.get_name().to_owned();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut command.clone(), &name, &completion)?;
        }
        pages(&man, &command, &name)?;
    }
    Ok(())
}

/// A page for a command and one for each of its subcommands.
fn pages(directory: &Path, command: &clap::Command, name: &str) -> anyhow::Result<()> {
    let titled = command.clone().name(name.to_owned()).bin_name(name.replace('-', " "));
    let mut page = Vec::new();
    clap_mangen::Man::new(titled).section("8").manual("vmloop").render(&mut page)?;
    let file = directory.join(format!("{name}.8"));
    fs::write(&file, page).with_context(|| file.display().to_string())?;
    for sub in
        command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
    {
        pages(directory, sub, &format!("{name}-{}", sub.get_name()))?;
    }
    Ok(())
}
