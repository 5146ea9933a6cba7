// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The agent with all of its guests: brings them up, has some come and go, and says
//! how long that took to be known.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use vmloop_api::Status;

use crate::guest::{Board, Guest};
use crate::host::{Host, api, socket};
use crate::qemu::{Hardware, Qemu};

/// How many machines are attached to at once.
const AT_ONCE: usize = 16;

/// How soon a guest may come again: one HELLO a second is answered at once.
const AGAIN: Duration = Duration::from_millis(1050);

/// The agent's process; ends with this.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The agent, and all machines of the host.
pub struct World {
    /// how many there are
    pub host: Host,
    /// guests by number; None where somebody else plays one
    pub guests: Vec<Option<Rc<Guest>>>,
    /// QEMUs by number
    pub qemus: Vec<Rc<Qemu>>,
    /// what guests heard
    pub board: Rc<Board>,
    directory: PathBuf,
    agent: Agent,
    patience: Duration,
}

/// Asks the agent, as the command line does.
async fn ask(directory: &Path, request: &Value) -> anyhow::Result<Value> {
    let mut stream = UnixStream::connect(api(directory)).await?;
    stream.write_all(format!("{request}\n").as_bytes()).await?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await?;
    let mut answer: Value = serde_json::from_str(&line).context("the agent's answer")?;
    ensure!(answer["error"].is_null(), "the agent refuses {request}: {answer}");
    Ok(answer["ok"].take())
}

impl World {
    /// Starts `program` as the agent, and all machines, and has it attach to them. The
    /// `strangers` among the guests are played by whoever gets their hardware. Nothing
    /// may take longer than `patience`. Must run in a `LocalSet`.
    ///
    /// # Errors
    /// What went wrong.
    pub async fn start(
        program: &Path,
        directory: &Path,
        host: Host,
        strangers: &mut [(u32, mpsc::UnboundedReceiver<Hardware>)],
        patience: Duration,
    ) -> anyhow::Result<Self> {
        let board = Rc::<Board>::default();
        let (mut guests, mut qemus) = (Vec::new(), Vec::new());
        for number in 0..host.guests {
            let (hardware, inbox) = mpsc::unbounded_channel();
            qemus.push(Qemu::start(directory, number, hardware)?);
            match strangers.iter_mut().find(|(stranger, _)| *stranger == number) {
                Some((_, theirs)) => {
                    *theirs = inbox;
                    guests.push(None);
                }
                None => guests.push(Some(Guest::start(number, board.clone(), inbox))),
            }
        }
        let agent = Command::new(program)
            .args(["agent", "--directory"])
            .arg(directory)
            .args(["--guests", &host.guests.to_string(), "--bridges", &host.bridges.to_string()])
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("{}", program.display()))?;
        let directory = directory.to_owned();
        let world = Self { host, guests, qemus, board, directory, agent: Agent(agent), patience };
        let deadline = Instant::now() + patience;
        while UnixStream::connect(api(&world.directory)).await.is_err() {
            ensure!(Instant::now() < deadline, "the agent does not listen");
            sleep(Duration::from_millis(5)).await;
        }
        world.attach().await?;
        Ok(world)
    }

    async fn attach(&self) -> anyhow::Result<()> {
        let mut asking = JoinSet::new();
        for number in 0..self.host.guests {
            if asking.len() >= AT_ONCE {
                asking.join_next().await.context("somebody asks")???;
            }
            let directory = self.directory.clone();
            let request = json!({"do": "attach", "qmp": socket(&directory, number)});
            asking.spawn_local(async move { ask(&directory, &request).await.map(drop) });
        }
        while let Some(done) = asking.join_next().await {
            done??;
        }
        Ok(())
    }

    /// Process of the agent.
    pub fn agent(&self) -> u32 {
        self.agent.0.id()
    }

    /// What the agent says of itself.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn status(&self) -> anyhow::Result<Status> {
        Ok(serde_json::from_value(ask(&self.directory, &json!({"do": "status"})).await?)?)
    }

    /// Puts a policy in force.
    ///
    /// # Errors
    /// What is wrong with it.
    pub async fn policy(&self, text: &str) -> anyhow::Result<()> {
        std::fs::write(self.directory.join("policy.toml"), text)?;
        ask(&self.directory, &json!({"do": "policy-reload"})).await.map(drop)
    }

    /// A guest that is played here.
    ///
    /// # Panics
    /// If there is none of that number.
    pub fn guest(&self, number: u32) -> &Rc<Guest> {
        self.guests[number as usize].as_ref().expect("a guest of ours")
    }

    /// Waits for something to be so, and looks every few milliseconds.
    ///
    /// # Errors
    /// What it was, if it is not so in time.
    pub async fn until(&self, what: &str, is_so: impl Fn() -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + self.patience;
        while !is_so() {
            if Instant::now() > deadline {
                bail!("not within {:?}: {what}", self.patience);
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Loads the modules of these guests; returns when all know each other that share
    /// a bridge.
    ///
    /// # Errors
    /// If that takes too long.
    pub async fn load(&self, numbers: &[u32]) -> anyhow::Result<()> {
        for number in numbers {
            self.guest(*number).begin();
        }
        let mut on_bridge = vec![0; self.host.bridges as usize];
        for number in numbers {
            on_bridge[self.host.bridge(*number) as usize] += 1;
        }
        self.until("all know each other", || {
            numbers.iter().all(|number| {
                let directory = self.guest(*number).directory.borrow();
                let named = directory.values().filter(|peer| peer.addresses > 0).count();
                named + 1 >= on_bridge[self.host.bridge(*number) as usize]
            })
        })
        .await
    }

    /// Has each of these guests ask for a channel to the next `count` of them on its
    /// bridge; returns when all are plugged. Returns how many there are.
    ///
    /// # Errors
    /// If that takes too long.
    pub async fn connect(&self, numbers: &[u32], count: usize) -> anyhow::Result<usize> {
        for bridge in 0..self.host.bridges {
            let is_there = |number: &&u32| self.host.bridge(**number) == bridge;
            let here: Vec<u32> = numbers.iter().filter(is_there).copied().collect();
            ensure!(here.len() > 2 * count, "{} guests on a bridge", here.len());
            for (at, number) in here.iter().enumerate() {
                for next in 1..=count {
                    let peer = self.guest(here[(at + next) % here.len()]).id.get();
                    ensure!(self.guest(*number).want(peer), "{number} does not know {peer:x}");
                }
            }
        }
        self.until("all channels are plugged", || {
            numbers.iter().all(|number| self.guest(*number).plugged.borrow().len() == 2 * count)
        })
        .await?;
        Ok(numbers.len() * count)
    }

    /// Has these guests, whose modules are not loaded, come and go, one after the
    /// other, `rounds` times. Returns how long each took to be known to all of
    /// `neighbours` on its bridge. Those that come too soon after another time wait
    /// until the agent would answer their HELLO at once.
    ///
    /// # Errors
    /// Who did not hear of it.
    pub async fn arrivals(
        &self,
        travellers: &[u32],
        neighbours: &[u32],
        rounds: usize,
    ) -> anyhow::Result<Vec<Duration>> {
        let mut times = Vec::new();
        for _ in 0..rounds {
            for number in travellers {
                times.push(self.arrival(*number, neighbours).await?);
            }
        }
        Ok(times)
    }

    async fn arrival(&self, number: u32, neighbours: &[u32]) -> anyhow::Result<Duration> {
        let traveller = self.guest(number);
        if let Some(began) = traveller.began.get() {
            tokio::time::sleep_until(began + AGAIN).await;
        }
        let bridge = self.host.bridge(number);
        let near: Vec<u32> =
            neighbours.iter().copied().filter(|one| self.host.bridge(*one) == bridge).collect();
        let took = self
            .board
            .heard(traveller.id.get(), true, near.clone(), self.patience, || traveller.begin())
            .await
            .map_err(|who| anyhow::anyhow!("{who:?} did not hear that {number} came"))?;
        self.board
            .heard(traveller.id.get(), false, near, self.patience, || traveller.leave())
            .await
            .map_err(|who| anyhow::anyhow!("{who:?} did not hear that {number} went"))?;
        Ok(took)
    }
}
