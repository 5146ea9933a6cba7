// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `make bench-agent`: see the library.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::sleep;
use vmloop_simulation::flood::{Attack, Flood};
use vmloop_simulation::host::{Host, ip};
use vmloop_simulation::run::World;
use vmloop_simulation::usage::{self, Memory, percentile};

/// What the agent's policy says: only this is not the default.
const POLICY: &str = "default = 'same-bridge'\nidle_ms = 0\nmax_memory = '900G'\n";
/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Parser)]
#[command(about = "The agent with hundreds of pretended guests")]
struct Options {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Be the agent; `measure` starts it
    Agent {
        /// where the sockets are
        #[arg(long)]
        directory: PathBuf,
        /// guests on this host
        #[arg(long)]
        guests: u32,
        /// bridges that they are on
        #[arg(long)]
        bridges: u32,
    },
    /// Print figures of the agent, as JSON
    Measure(Measure),
}

#[derive(Args)]
struct Measure {
    /// guests that are there all the time
    #[arg(long, default_value = "1000")]
    guests: u32,
    /// bridges that they are on
    #[arg(long, default_value = "10")]
    bridges: u32,
    /// channels for each guest, each with two of them
    #[arg(long, default_value = "10")]
    channels: usize,
    /// guests that come and go, more than these
    #[arg(long, default_value = "50")]
    travellers: u32,
    /// times that each does
    #[arg(long, default_value = "4")]
    rounds: usize,
    /// seconds for which nothing happens
    #[arg(long, default_value = "10")]
    idle: u64,
    /// seconds of a guest that means harm, and of one that never answers beside a
    /// QEMU that hangs; 0: none
    #[arg(long, default_value = "20")]
    disturbed: u64,
}

/// Times of arrivals, in milliseconds.
#[derive(Serialize)]
struct Arrivals {
    count: usize,
    median_ms: f64,
    p99_ms: f64,
    longest_ms: f64,
    cpu_percent: f64,
}

/// Memory over the time of a flood.
#[derive(Serialize)]
struct Sample {
    seconds: f64,
    rss_mb: f64,
    arrival_p99_ms: f64,
}

#[derive(Serialize)]
struct Disturbed {
    arrivals: Arrivals,
    samples: Vec<Sample>,
    sent: u64,
    began: u64,
    directories: u64,
    refused: u64,
    throttled: u64,
    malformed: u64,
    control_broken: u64,
}

#[derive(Serialize)]
struct Figures {
    guests: u32,
    bridges: u32,
    channels: usize,
    descriptors: usize,
    before: Memory,
    attached: Memory,
    memory: Memory,
    after: Memory,
    idle_cpu_percent: f64,
    arrivals: Arrivals,
    #[serde(skip_serializing_if = "Option::is_none")]
    disturbed: Option<Disturbed>,
}

fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::ERROR)
        .with_writer(std::io::stderr)
        .init();
    match Options::parse().role {
        Role::Agent { directory, guests, bridges } => {
            vmloop_simulation::agent::run(&directory, Host { guests, bridges }, POLICY)
        }
        Role::Measure(options) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let figures = runtime.block_on(LocalSet::new().run_until(measure(&options)))?;
            println!("{}", serde_json::to_string(&figures)?);
            Ok(())
        }
    }
}

/// What part of one CPU's time the agent takes while something else is waited for.
struct Cpu {
    agent: u32,
    began: std::time::Instant,
    used: Duration,
}

impl Cpu {
    fn new(agent: u32) -> anyhow::Result<Self> {
        Ok(Self { agent, began: std::time::Instant::now(), used: usage::cpu(agent)? })
    }

    fn percent(&self) -> anyhow::Result<f64> {
        let used = usage::cpu(self.agent)?.saturating_sub(self.used);
        Ok(used.as_secs_f64() / self.began.elapsed().as_secs_f64() * 100.0)
    }
}

fn arrivals(times: &[Duration], cpu: &Cpu) -> anyhow::Result<Arrivals> {
    Ok(Arrivals {
        count: times.len(),
        median_ms: percentile(times, 50),
        p99_ms: percentile(times, 99),
        longest_ms: percentile(times, 100),
        cpu_percent: cpu.percent()?,
    })
}

/// Waits until the agent has nothing to do any more.
async fn settle(agent: u32) -> anyhow::Result<()> {
    loop {
        let before = usage::cpu(agent)?;
        sleep(Duration::from_millis(500)).await;
        if usage::cpu(agent)?.saturating_sub(before) < Duration::from_millis(10) {
            return Ok(());
        }
    }
}

async fn measure(options: &Measure) -> anyhow::Result<Figures> {
    let say = |what: &str| eprintln!("{what}");
    let directory = tempfile::tempdir()?;
    let extra = options.travellers + if options.disturbed > 0 { 3 } else { 0 };
    let host = Host { guests: options.guests + extra, bridges: options.bridges };
    let stay: Vec<u32> = (0..options.guests).collect();
    let travellers: Vec<u32> = (options.guests..options.guests + options.travellers).collect();
    let enemy = options.guests + options.travellers;
    let (hung, mute) = (enemy + 1, enemy + 2);
    let mut strangers = Vec::new();
    if options.disturbed > 0 {
        strangers.push((enemy, mpsc::unbounded_channel().1));
    }
    let program = std::env::current_exe()?;
    say(&format!("{} machines", host.guests));
    let world = World::start(&program, directory.path(), host, &mut strangers, PATIENCE).await?;
    let agent = world.agent();
    settle(agent).await?;
    let before = usage::memory(agent)?;

    say("their modules");
    world.load(&stay).await?;
    // What they are is known from then on.
    for number in &travellers {
        let guest = world.guest(*number);
        guest.begin();
        world.until("a traveller is told who it is", || guest.id.get() != 0).await?;
        guest.leave();
    }
    settle(agent).await?;
    let attached = usage::memory(agent)?;

    say("channels");
    let channels = world.connect(&stay, options.channels).await?;
    settle(agent).await?;
    let memory = usage::memory(agent)?;
    let descriptors = usage::descriptors(agent)?;

    say("nothing");
    let cpu = Cpu::new(agent)?;
    sleep(Duration::from_secs(options.idle)).await;
    let idle_cpu_percent = cpu.percent()?;

    say("arrivals");
    let cpu = Cpu::new(agent)?;
    let times = world.arrivals(&travellers, &stay, options.rounds).await?;
    let quiet = arrivals(&times, &cpu)?;
    let after = usage::memory(agent)?;

    let disturbed = match strangers.pop() {
        Some((_, hardware)) => {
            say("a guest that floods, a QEMU that hangs, a guest that never answers");
            for number in [hung, mute] {
                world.guest(number).begin();
                world.until("it is told who it is", || world.guest(number).id.get() != 0).await?;
            }
            let knows = |number: u32, peer: u32| {
                let peer = world.guest(peer).id.get();
                world.guest(number).directory.borrow().contains_key(&peer)
            };
            let neighbour = |of: u32| host.on(host.bridge(of)).next().context("a neighbour");
            for number in [hung, mute] {
                let by = neighbour(number)?;
                world.until("it is known", || knows(by, number)).await?;
            }
            world.qemus[mute as usize].keeps.set(true);
            world.guest(mute).mute.set(true);
            world.qemus[hung as usize].hang(true);
            // Both are asked for something that they do not do.
            for number in [hung, mute] {
                world.guest(neighbour(number)?).want(world.guest(number).id.get());
            }
            let peers: Vec<_> = host
                .on(host.bridge(enemy))
                .filter(|number| *number < options.guests)
                .map(|number| {
                    let id = world.guest(number).id.get();
                    let by = world.guest(number).directory.borrow();
                    (id, by.values().next().map_or(1, |peer| peer.epoch))
                })
                .collect();
            let others = host.on(host.bridge(enemy)).map(ip).collect();
            let before = world.status().await?.counters;
            let flood = Flood::begin(enemy, hardware, Attack::All, others, peers);
            let cpu = Cpu::new(agent)?;
            let began = std::time::Instant::now();
            let (mut all, mut samples) = (Vec::new(), Vec::new());
            while began.elapsed() < Duration::from_secs(options.disturbed) {
                let times = world.arrivals(&travellers, &stay, 1).await?;
                samples.push(Sample {
                    seconds: began.elapsed().as_secs_f64(),
                    rss_mb: usage::memory(agent)?.rss_mb,
                    arrival_p99_ms: percentile(&times, 99),
                });
                all.extend(times);
            }
            let figures = arrivals(&all, &cpu)?;
            let account = flood.account.clone();
            flood.end();
            let now = world.status().await?.counters;
            world.qemus[hung as usize].hang(false);
            let read =
                |one: &std::sync::atomic::AtomicU64| one.load(std::sync::atomic::Ordering::Relaxed);
            Some(Disturbed {
                arrivals: figures,
                samples,
                sent: read(&account.sent),
                began: read(&account.began),
                directories: read(&account.directories),
                refused: now.refused - before.refused,
                throttled: now.throttled - before.throttled,
                malformed: now.malformed - before.malformed,
                control_broken: now.control_broken - before.control_broken,
            })
        }
        None => None,
    };
    drop(world);
    finish(directory.path())?;
    Ok(Figures {
        guests: options.guests,
        bridges: options.bridges,
        channels,
        descriptors,
        before,
        attached,
        memory,
        after,
        idle_cpu_percent,
        arrivals: quiet,
        disturbed,
    })
}

/// The agent keeps what it must, and nothing else.
fn finish(directory: &Path) -> anyhow::Result<()> {
    let state = std::fs::read_to_string(directory.join("guests.json"))?;
    serde_json::from_str::<serde_json::Value>(&state).context("soft state").map(drop)
}
