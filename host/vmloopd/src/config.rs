// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The agent's configuration: `/etc/vmloop/vmloopd.toml`, and what the command
//! line says instead.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use vmloop_policy::in_force::Source;

/// A guest to attach to whenever it is there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestConfig {
    /// its QMP socket
    pub qmp: PathBuf,
    /// its name; QEMU's own name if absent
    pub name: Option<String>,
}

/// What happens with machines that have devices of the host's own (VFIO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vfio {
    /// They get no shared memory.
    #[default]
    Refuse,
    /// They get it as others do.
    Allow,
}

/// Where the policy is unless somebody says otherwise.
pub const POLICY: &str = "/etc/vmloop/policy.toml";

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// where the API listens
    pub socket: PathBuf,
    /// where the soft state lies
    pub state_dir: PathBuf,
    /// the policy; [`POLICY`], where there need be none, if absent
    pub policy: Option<PathBuf>,
    /// where Prometheus finds metrics: `127.0.0.1:PORT`, `[::1]:PORT` or
    /// `unix:PATH`; nowhere if absent
    pub metrics: Option<String>,
    /// QMP sockets to attach to as they appear; `*` and `?` stand for
    /// characters of one part of the path
    pub watch: Vec<String>,
    /// guests to attach to as they appear
    pub guest: Vec<GuestConfig>,
    /// for how many seconds a guest that was prepared for a migration waits for
    /// it, 1 to 86400
    pub prepared_s: u32,
    /// whether machines with VFIO devices get shared memory
    pub vfio: Vfio,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: vmloop_api::SOCKET.into(),
            state_dir: "/run/vmloop".into(),
            policy: None,
            metrics: None,
            watch: Vec::new(),
            guest: Vec::new(),
            prepared_s: 60,
            vfio: Vfio::Refuse,
        }
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// A text with file, line and reason.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let file = path.display();
        let text =
            std::fs::read_to_string(path).map_err(|error| anyhow::anyhow!("{file}: {error}"))?;
        Self::parse(&text).map_err(|(line, what)| anyhow::anyhow!("{file}:{line}: {what}"))
    }

    /// Where the policy is, and whether it must be there.
    pub fn policy_source(&self) -> Source {
        match &self.policy {
            Some(path) => Source::named(path),
            None => Source::default_path(POLICY),
        }
    }

    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let start = error.span().unwrap_or(0..0).start.min(text.len());
            (text[..start].matches('\n').count() + 1, error.message().to_owned())
        })?;
        if !(1..=86400).contains(&config.prepared_s) {
            let line = text.lines().position(|line| line.starts_with("prepared_s"));
            return Err((
                line.map_or(1, |line| line + 1),
                format!("prepared_s: {} must be from 1 to 86400", config.prepared_s),
            ));
        }
        for pattern in &config.watch {
            if !pattern.starts_with('/') {
                let line = text.lines().position(|line| line.contains(pattern.as_str()));
                return Err((
                    line.map_or(1, |line| line + 1),
                    format!("watch: {pattern:?} must begin with /"),
                ));
            }
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files() {
        assert_eq!(Config::parse(""), Ok(Config::default()));
        let config = Config::parse(
            "watch = ['/run/vms/*.sock']\nmetrics = '127.0.0.1:9479'\n[[guest]]\nqmp = '/run/a'\n",
        )
        .expect("a configuration");
        assert_eq!(config.guest.len(), 1);
        assert_eq!(config.policy_source(), Source::default_path(POLICY));
        let named = Config::parse("policy = '/etc/vmloop/policy.toml'").expect("a configuration");
        assert_eq!(named.policy_source(), Source::named(POLICY));
        assert!(Config::parse("\nwatch = ['x/*']").is_err_and(|(line, _)| line == 2));
        assert!(Config::parse("\n\nwach = []").is_err_and(|(line, _)| line == 3));
        assert_eq!(Config::parse("prepared_s = 5").expect("a configuration").prepared_s, 5);
        assert!(Config::parse("metrics = ''\nprepared_s = 0").is_err_and(|(line, _)| line == 2));
    }
}
