// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The command line of vmloopd, and its start.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};
use tracing_subscriber::filter::LevelFilter;
use vmloop_xenstore::Store;

use crate::backend::Backend;
use crate::broker::{self, Broker};
use crate::config::Config;
use crate::counters::Counters;
use crate::event::Event;
use crate::network::{routes, watch};
use crate::qemu::{self, Qemu};
use crate::xen::{self, Xen};
use crate::{metrics, server};

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// for people
    Text,
    /// one JSON object a line
    Json,
}

/// Whose guests are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Hypervisor {
    /// Xen in its control domain, QEMU elsewhere
    #[default]
    Auto,
    /// QEMU machines, with or without KVM
    Qemu,
    /// Xen domains, from dom0
    Xen,
}

/// Host agent of vmloop: lets the guests of this host, of QEMU/KVM or Xen, talk through shared memory.
#[derive(Clone, Debug, Parser)]
#[command(
    version,
    about,
    after_help = "Signals: HUP reads the policy again; TERM and INT end the agent and leave all channels as they are."
)]
pub struct Options {
    /// Configuration file [default: /etc/vmloop/vmloopd.toml, if it is there]
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Whose guests to serve
    #[arg(long, value_enum, default_value = "auto")]
    pub hypervisor: Hypervisor,
    /// Socket of the API, instead of the configuration's
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Policy, instead of the configuration's
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Directory of the soft state, instead of the configuration's
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Attach to QMP sockets that match, as they appear; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub watch: Vec<String>,
    /// Where Prometheus finds metrics: 127.0.0.1:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// How log lines look
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Least important lines that are logged
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = ["error", "warn", "info", "debug", "trace"])]
    pub log_level: String,
}

const CONFIG: &str = "/etc/vmloop/vmloopd.toml";

impl Options {
    fn config(&self) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None if std::path::Path::new(CONFIG).exists() => Config::read(CONFIG.as_ref())?,
            None => Config::default(),
        };
        if let Some(socket) = &self.socket {
            config.socket.clone_from(socket);
        }
        if let Some(policy) = &self.policy {
            config.policy = Some(policy.clone());
        }
        if let Some(directory) = &self.state_dir {
            config.state_dir.clone_from(directory);
        }
        if self.metrics.is_some() {
            config.metrics.clone_from(&self.metrics);
        }
        config.watch.extend(self.watch.iter().cloned());
        Ok(config)
    }
}

/// Runs the agent until it is told to end.
///
/// # Errors
/// Whatever keeps it from starting: configuration, policy, sockets.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let level: LevelFilter = options.log_level.parse().context("--log-level")?;
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        // Colours are for people who look on, not for files.
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match options.log_format {
        LogFormat::Json => log.json().flatten_event(true).init(),
        // journald has times of its own.
        LogFormat::Text if std::env::var_os("JOURNAL_STREAM").is_some() => {
            log.without_time().init();
        }
        LogFormat::Text => log.with_target(false).init(),
    }
    let config = options.config()?;
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(main(config, options.hypervisor))
}

fn private_directory(path: &std::path::Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("directory {}", path.display()))
}

async fn main(config: Config, hypervisor: Hypervisor) -> anyhow::Result<()> {
    private_directory(&config.state_dir)?;
    if let Some(parent) = config.socket.parent() {
        private_directory(parent)?;
    }
    // Two agents would fight over the guests: the socket comes first.
    let listener = server::listen(&config.socket).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => anyhow::anyhow!(
            "another vmloopd listens on {}\n  end it first, or give another --socket and --state-dir",
            config.socket.display()
        ),
        _ => anyhow::anyhow!("socket {}: {error}", config.socket.display()),
    })?;

    let xen = match hypervisor {
        Hypervisor::Xen => true,
        Hypervisor::Qemu => false,
        Hypervisor::Auto => xen::is_here(),
    };
    if xen && !(config.watch.is_empty() && config.guest.is_empty()) {
        warn!("QMP sockets in the configuration are not looked at: this is a Xen host");
    }
    let policy = config.policy_source();
    let backend: Box<dyn Backend> = if xen {
        Box::new(Xen::new(Store::connect()?))
    } else {
        Box::new(Qemu {
            patterns: config.watch,
            guests: config.guest,
            taps: qemu::nics::taps,
            prepared: Duration::from_secs(config.prepared_s.into()),
            vfio: config.vfio,
        })
    };
    let counters = Arc::new(Counters::default());
    let (broker, events, inbox) = Broker::new(
        broker::Config {
            policy,
            state: config.state_dir.join("guests.json"),
            route: routes::interface_to,
            backend,
        },
        counters,
    )?;
    let (log, backend) = (broker.log(), broker.backend());
    let hypervisor = backend.capabilities().hypervisor;
    let (find, goodbye) = (backend.find(events.clone()), backend.goodbye());

    let (links_tx, mut links_rx) = tokio::sync::mpsc::channel(1);
    let mut network = tokio::spawn(watch::watch(links_tx));
    let to_broker = events.clone();
    tokio::spawn(async move {
        while let Some(links) = links_rx.recv().await {
            if to_broker.send(Event::Links(links)).await.is_err() {
                break;
            }
        }
    });
    let mut broker = tokio::spawn(broker.run(inbox));
    tokio::spawn(server::serve(listener, events.clone(), log));
    if let Some(address) = &config.metrics {
        metrics::listen(address, events.clone()).await?;
    }
    let mut finder = tokio::spawn(find);

    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let version = env!("CARGO_PKG_VERSION");
    let hypervisor = <&str>::from(hypervisor);
    info!(version, hypervisor, socket = %config.socket.display(), "ready");
    // Fails only where nobody wants to know.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    loop {
        tokio::select! {
            _ = hangup.recv() => {
                if events.send(Event::Reload).await.is_err() {
                    anyhow::bail!("the broker has ended");
                }
            }
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            ended = &mut network => {
                let error = match ended {
                    Ok(Err(error)) => error,
                    Ok(Ok(())) => anyhow::anyhow!("ended"),
                    Err(error) => error.into(),
                };
                error!(%error, "the host's network can no longer be watched");
                return Err(error.context("network"));
            }
            ended = &mut finder => {
                let error = match ended {
                    Ok(Err(error)) => error,
                    Ok(Ok(())) => anyhow::anyhow!("ended"),
                    Err(error) => error.into(),
                };
                // With XenStore gone nothing can be done; the next agent goes on.
                return Err(error.context("guests can no longer be found"));
            }
            ended = &mut broker => {
                ended.context("broker")?;
                anyhow::bail!("the broker has ended");
            }
        }
    }
    info!("ending; channels stay as they are");
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    if let Some(goodbye) = goodbye {
        broker.abort();
        goodbye.await;
    }
    Ok(())
}
