// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A file of rules for the stream path, for `vmloop stream load`: in each line the words that
//! `vmloop stream add` takes. What follows a `#` is a comment.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use clap::Parser;

use crate::options::Rule;

/// More than the module takes; a file that is longer is no file of rules.
const LONGEST: u64 = 1 << 20;

#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    rule: Rule,
}

/// What is wrong with a line, in one line.
fn brief(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").into()
}

/// The rules of a text, each with the number of its line.
///
/// # Errors
/// Which lines are no rules, and why.
fn parse(text: &str) -> Result<Vec<(usize, Rule)>, String> {
    let mut rules = Vec::new();
    let mut wrong = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words = line.split('#').next().unwrap_or_default().split_whitespace();
        if words.clone().next().is_none() {
            continue;
        }
        match Line::try_parse_from(words) {
            Ok(line) if line.rule.before.is_some() => {
                wrong.push(format!(
                    "line {number}: rules are in the order of the lines: no --before"
                ));
            }
            Ok(line) => rules.push((number, line.rule)),
            Err(error) => wrong.push(format!("line {number}: {}", brief(&error))),
        }
    }
    if wrong.is_empty() { Ok(rules) } else { Err(wrong.join("\n  ")) }
}

/// The rules of a file, each with the number of its line.
///
/// # Errors
/// It cannot be read, or which lines are no rules.
pub fn read(path: &Path) -> anyhow::Result<Vec<(usize, Rule)>> {
    let mut text = String::new();
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let size = file.take(LONGEST + 1).read_to_string(&mut text);
    let size = size.with_context(|| path.display().to_string())?;
    anyhow::ensure!(
        u64::try_from(size)? <= LONGEST,
        "{} is too large to be a file of rules",
        path.display()
    );
    parse(&text).map_err(|wrong| {
        anyhow::anyhow!(
            "{}\n  {wrong}\n  each line has the words of vmloop stream add",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Carrier, Ports};

    #[test]
    fn lines() {
        let text = "# databases\n\ntcp --port 5432-5433  # both\n  lanes --address 10.0.0.0/8\n";
        let rules = parse(text).expect("rules");
        let lines: Vec<usize> = rules.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [3, 4]);
        assert_eq!(rules[0].1.by, Carrier::Tcp);
        assert_eq!(rules[0].1.port, Some(Ports { first: 5432, last: 5433 }));
        assert_eq!(rules[1].1.by, Carrier::Lanes);
        assert!(rules[1].1.address.is_some());
    }

    #[test]
    fn wrong_lines_are_named() {
        let text = "tcp\nudp --port 5\ntcp --port 0\ntcp --before 1\ntcp --help\n";
        let said = parse(text).expect_err("four lines");
        for line in ["line 2: ", "line 3: ", "line 4: ", "line 5: "] {
            assert!(said.contains(line), "{line} in {said}");
        }
        assert!(!said.contains("line 1"), "{said}");
        assert_eq!(said.lines().count(), 4, "{said}");
    }
}
