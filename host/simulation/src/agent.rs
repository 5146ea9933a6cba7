// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The agent's process: all of the agent, but for what looks at the real host.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::mpsc;
use vmloop_policy::in_force::Source;
use vmloopd::broker::{Broker, Config};
use vmloopd::config::Vfio;
use vmloopd::counters::Counters;
use vmloopd::event::Event;
use vmloopd::qemu::Qemu;
use vmloopd::server;

use crate::host::{Host, api};

/// Taps of the one process that plays all QEMUs.
static TAPS: OnceLock<Vec<(u32, String)>> = OnceLock::new();

/// Runs until it is killed. `policy` is what its file says.
///
/// # Errors
/// Whatever keeps it from starting.
pub fn run(directory: &Path, host: Host, policy: &str) -> anyhow::Result<()> {
    TAPS.set(host.taps()).ok().context("one host in a process")?;
    let file = directory.join("policy.toml");
    std::fs::write(&file, policy).with_context(|| format!("{}", file.display()))?;
    let backend = Qemu {
        patterns: Vec::new(),
        guests: Vec::new(),
        taps: |_| Ok(TAPS.get().cloned().unwrap_or_default()),
        prepared: Duration::from_secs(60),
        vfio: Vfio::default(),
    };
    let config = Config {
        policy: Source::default_path(file),
        state: directory.join("guests.json"),
        route: |_| None,
        backend: Box::new(backend),
    };
    // As cli.rs has it.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let (broker, events, inbox) = Broker::new(config, Arc::new(Counters::default()))?;
        let listener = server::listen(&api(directory))?;
        tokio::spawn(server::serve(listener, events.clone(), broker.log()));
        show(&events, host).await?;
        broker.run(inbox).await;
        anyhow::bail!("the broker has ended")
    })
}

async fn show(events: &mpsc::Sender<Event>, host: Host) -> anyhow::Result<()> {
    events.send(Event::Links(host.links())).await.map_err(|_| anyhow::anyhow!("no broker"))
}
