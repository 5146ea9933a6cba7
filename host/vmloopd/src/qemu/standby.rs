// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A guest that has none of our devices, as QEMU lets no machine go that has:
//! one that was prepared for a migration and waits for it, is under way, or
//! has left; and one that has not arrived yet. Nothing is remembered but what
//! its QEMU says, so that an agent may be killed meanwhile.

use std::os::fd::OwnedFd;
use std::time::Duration;

use serde_json::json;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};
use vmloop_api::{Migrated, Problem};
use vmloop_qmp::{self as qmp, Qmp};

use super::migration::{Migration, migration};
use super::process::ended;
use crate::answer::{Answer, Reply, answer};
use crate::event::{Event, Post};
use crate::handle::Command;
use crate::machine::{Key, Moving};
use crate::mailbox;

/// How often QEMU is asked, should its events not come.
const LOOK: Duration = Duration::from_secs(1);

/// Has QEMU tell of migrations; whether it will. Another client may take that
/// back: nothing relies on it but speed.
pub async fn ask_for_events(qmp: &Qmp) -> bool {
    let events = json!({"capabilities": [{"capability": "events", "state": true}]});
    let answer = qmp.execute("migrate-set-capabilities", events).await;
    if let Err(error) = &answer {
        tracing::debug!(%error, "events of migrations");
    }
    answer.is_ok()
}

/// Whether an event may mean that a machine comes, goes or stays.
fn matters(event: &qmp::Event) -> bool {
    matches!(event.name.as_str(), "MIGRATION" | "RESUME" | "STOP")
}

/// Waits until a machine has arrived and runs. By postcopy it runs while its
/// memory is still on its way: then nothing is plugged before all of it is here,
/// as QEMU takes each page that is missing for one to be fetched.
///
/// # Errors
/// `gone` if its QEMU ends before, `detached` if `stop` is dropped.
pub async fn arrive(
    qmp: &Qmp,
    process: Option<&AsyncFd<OwnedFd>>,
    mut stop: oneshot::Receiver<()>,
) -> Result<(), Problem> {
    let gone = || Problem::new("gone", "its QEMU ended before the machine arrived");
    let postcopy = |status: &str| status.starts_with("postcopy");
    let mut incomplete = false;
    let mut events = qmp.events();
    let told = ask_for_events(qmp).await;
    loop {
        // libvirt has it arrive standing still, and starts it then.
        match migration(qmp).await {
            Ok(now) if postcopy(&now.status) => incomplete = true,
            // It may have begun to run by postcopy between the two answers.
            Ok(now) if now.running => match migration(qmp).await {
                Ok(now) if postcopy(&now.status) => incomplete = true,
                Ok(_) => return Ok(()),
                Err(qmp::Error::Closed) => return Err(gone()),
                Err(_) => {}
            },
            Ok(_) => incomplete = false,
            Err(qmp::Error::Closed) => return Err(gone()),
            _ => {}
        }
        let again = Instant::now() + LOOK;
        loop {
            tokio::select! {
                () = qmp.closed() => return Err(gone()),
                () = ended(process) => return Err(gone()),
                _ = &mut stop => return Err(Problem::new("detached", "detached before it arrived")),
                () = sleep_until(again) => break,
                event = events.recv() => match event {
                    // Nothing else makes an arriving machine run, and each
                    // question costs a QEMU that has just begun to run it long.
                    // Who would not be told of postcopy must ask all the same.
                    Ok(event) if event.name == "RESUME" && told && !incomplete => return Ok(()),
                    Ok(event)
                        if event.name == "MIGRATION"
                            && event.data["status"].as_str().is_some_and(postcopy) =>
                    {
                        incomplete = true;
                    }
                    Ok(event) if !matters(&event) => {}
                    Err(qmp::Missed::Closed) => return Err(gone()),
                    _ => break,
                },
            }
        }
    }
}

/// How standing by ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It stays here: plug the control device again.
    Return,
    /// It was detached, or its QEMU has ended.
    Over,
}

/// A migration that we began.
struct Ours {
    uri: String,
    prepare_ms: u64,
    reply: Reply,
}

/// See the module.
pub struct Standby<'a> {
    /// names the attachment
    pub key: Key,
    /// its name
    pub name: &'a str,
    /// its QEMU
    pub qmp: &'a Qmp,
    /// of the QEMU
    pub process: Option<&'a AsyncFd<OwnedFd>>,
    /// from the broker
    pub inbox: &'a mut mailbox::Receiver<Command>,
    /// the broker
    pub post: &'a Post,
    /// how long to wait for a migration
    pub patience: Duration,
}

impl Standby<'_> {
    /// Waits until it is clear what becomes of the machine.
    pub async fn run(self) -> End {
        let mut events = self.qmp.events();
        ask_for_events(self.qmp).await;
        let mut until = Instant::now() + self.patience;
        let mut seen = false;
        let mut told = None;
        let mut ours: Option<Ours> = None;
        loop {
            let now = match migration(self.qmp).await {
                Ok(now) => now,
                Err(qmp::Error::Closed) => return self.over(ours),
                // A QEMU that is slow: what it said before holds.
                Err(error) => {
                    warn!(guest = self.name, %error, "its migration");
                    Migration { moving: told.unwrap_or_default(), ..Migration::default() }
                }
            };
            if told != Some(now.moving) {
                told = Some(now.moving);
                self.tell(Event::Standby { key: self.key, moving: now.moving }).await;
            }
            match now.moving {
                Moving::Out => seen = true,
                Moving::Left => {
                    seen = true;
                    if let Some(ours) = ours.take() {
                        self.answer_left(ours, &now);
                    }
                }
                Moving::No | Moving::In if seen => {
                    if let Some(ours) = ours.take() {
                        answer_failed(self.name, ours, &now);
                    }
                    return self.back().await;
                }
                Moving::No | Moving::In if until <= Instant::now() => {
                    info!(guest = self.name, "no migration came: it stays");
                    return self.back().await;
                }
                Moving::No | Moving::In => {}
            }

            let again = Instant::now() + LOOK;
            let waits = !seen && until < again;
            loop {
                tokio::select! {
                    biased;
                    () = self.qmp.closed() => return self.over(ours),
                    () = ended(self.process) => return self.over(ours),
                    command = self.inbox.recv() => match command {
                        None | Some(Command::Detach) => return self.over(ours),
                        Some(Command::Prepare) => {
                            until = Instant::now() + self.patience;
                            told = None;
                            break;
                        }
                        Some(Command::Resume) => match now.moving {
                            Moving::No | Moving::In => return self.back().await,
                            Moving::Out if ours.is_some() => self.cancel().await,
                            Moving::Out | Moving::Left => {}
                        },
                        Some(Command::Migrate { uri, began, reply }) => {
                            match self.migrate(uri, began, reply).await {
                                Some(begun) => {
                                    ours = Some(begun);
                                    seen = true;
                                    break;
                                }
                                None => return self.back().await,
                            }
                        }
                        // There is nobody to tell; a new control device begins
                        // with everything.
                        Some(Command::Welcome { .. } | Command::Send(_) | Command::Rescan) => {}
                    },
                    event = events.recv() => match event {
                        Ok(event) if !matters(&event) => {}
                        Ok(event) => {
                            // It may be over before we look.
                            seen |= event.name == "MIGRATION" && event.data["status"] != "none";
                            break;
                        }
                        Err(qmp::Missed::Lagged) => break,
                        Err(qmp::Missed::Closed) => return self.over(ours),
                    },
                    () = sleep_until(if waits { until } else { again }) => break,
                }
            }
        }
    }

    async fn tell(&self, event: Event) {
        self.post.tell(event).await;
    }

    async fn back(&self) -> End {
        self.tell(Event::Returning { key: self.key }).await;
        End::Return
    }

    fn over(&self, ours: Option<Ours>) -> End {
        if let Some(ours) = ours {
            let text = format!("the QEMU of {} ended during the migration", self.name);
            let hint = "it may have arrived: look at the other host, with vmloop ls";
            answer(ours.reply, Err(Problem::new("gone", text).hint(hint)));
        }
        End::Over
    }

    /// Begins a migration; None if QEMU refuses.
    async fn migrate(&self, uri: String, began: Instant, reply: Reply) -> Option<Ours> {
        let prepare_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        match self.qmp.execute("migrate", json!({"uri": uri})).await {
            Ok(_) => Some(Ours { uri, prepare_ms, reply }),
            Err(error) => {
                let text = format!("{} stays here: {error}", self.name);
                let hint = "is the destination's QEMU started with -incoming, and reached?";
                answer(reply, Err(Problem::new("migration-refused", text).hint(hint)));
                None
            }
        }
    }

    async fn cancel(&self) {
        if let Err(error) = self.qmp.execute("migrate_cancel", json!({})).await {
            warn!(guest = self.name, %error, "its migration cannot be cancelled");
        }
    }

    fn answer_left(&self, ours: Ours, now: &Migration) {
        let done = Migrated {
            guest: self.name.into(),
            to: ours.uri,
            prepare_ms: ours.prepare_ms,
            total_ms: now.total_ms,
            downtime_ms: now.downtime_ms,
        };
        answer(ours.reply, Ok(Answer::Migrated(done)));
    }
}

fn answer_failed(name: &str, ours: Ours, now: &Migration) {
    let problem = if now.status == "cancelled" {
        Problem::new("migration-cancelled", format!("the migration of {name} was cancelled"))
    } else {
        let why = if now.error.is_empty() { now.status.as_str() } else { now.error.as_str() };
        Problem::new("migration-failed", format!("{name} stays here: {why}"))
            .hint("see what the QEMU at the destination says")
    };
    answer(ours.reply, Err(problem));
}
