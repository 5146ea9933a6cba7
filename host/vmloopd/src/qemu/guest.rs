// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One task for each guest: its QMP connection, its control device, and the
//! conversation over that. What a guest writes is copied, checked and limited
//! here; the broker hears of nothing else.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};
use vmloop_abi::control::{Broken, GuestSide};
use vmloop_abi::message::GuestMessage;
use vmloop_api::Problem;
use vmloop_qmp::{self as qmp, Qmp};

use super::control::{Control, ReadyControl, discard};
use super::device::{self, Plugged, Slots};
use super::ids::{self, CONTROL};
use super::nics::{Taps, nics};
use super::outbox::{Flushed, Outbox};
use super::problems::{device_problem, machine_problem, qmp_problem};
use super::process::{ended, pidfd};
use super::standby::{self, Standby};
use super::{left, machine, migration};
use crate::answer::answer;
use crate::bucket::Bucket;
use crate::config::Vfio;
use crate::end::Place;
use crate::event::{Event, Post};
use crate::handle::{Command, Connected, Handle};
use crate::latest::{Latest, latest};
use crate::machine::{Key, Moving};
use crate::mailbox;

/// Messages taken before others get their turn.
const BATCH: usize = 64;
/// A broken control device is replaced no more often than this.
const REPLACE: Duration = Duration::from_secs(5);
/// How soon a machine is asked again whether its firmware is done.
const BOOTING: Duration = Duration::from_millis(200);
/// How soon a guest that stays after all is tried again: QEMU may still be busy
/// with the migration that was cancelled.
const RETURN: Duration = Duration::from_millis(200);

/// Why a guest's task stops serving a control device.
enum End {
    Detach,
    Prepare,
    MachineGone,
    Broken(Broken),
    Failed(io::Error),
    /// somebody else unplugged it
    Lost,
}

/// What a guest's task needs to begin.
pub struct Task {
    /// names the attachment
    pub key: Key,
    /// QMP socket
    pub path: PathBuf,
    /// name that the operator gave
    pub name: Option<String>,
    /// the broker
    pub post: Post,
    /// how to find the taps of a process
    pub taps: fn(u32) -> Taps,
    /// Until when to try again if QEMU does not answer: the connection of an
    /// earlier agent may have just ended, on a host that is busy.
    pub retry_until: Option<Instant>,
    /// how long a guest that is prepared waits for its migration
    pub prepared: Duration,
    /// whether a machine with a VFIO device gets shared memory
    pub vfio: Vfio,
}

impl Task {
    /// Attaches, serves the guest until it is detached or gone, and tells the
    /// broker how it ended.
    pub async fn run(self) {
        let (key, post) = (self.key, self.post.clone());
        let problem = self.attach_and_serve().await.err();
        post.tell(Event::Left { key, problem }).await;
    }

    async fn attach_and_serve(self) -> Result<(), Problem> {
        let (qmp, process) = loop {
            match Qmp::connect(&self.path).await {
                Ok(connected) => break connected,
                Err(qmp::Error::Busy(_) | qmp::Error::Timeout(_) | qmp::Error::Closed)
                    if self.retry_until.is_some_and(|until| Instant::now() < until) => {}
                Err(error) => return Err(qmp_problem(&error)),
            }
        };
        self.post.tell(Event::Answers { key: self.key }).await;
        // What is boxed here and below leaves no room behind in a task that serves.
        let discovered = Box::pin(machine::discover(&qmp, process.pid, (self.taps)(process.pid)))
            .await
            .map_err(|error| machine_problem(&error))?;
        let machine = discovered.machine;
        let mut left =
            Box::pin(left::left_behind(&qmp)).await.map_err(|error| qmp_problem(&error))?;
        let name = self.name.clone().unwrap_or_else(|| {
            if machine.name.is_empty() {
                machine::name_from_socket(&self.path)
            } else {
                machine.name.clone()
            }
        });
        if !discovered.kvm {
            warn!(guest = name, "runs without KVM: slow, but all the same otherwise");
        }
        let gone = pidfd(machine.pid);
        let slots = Slots::new(qmp.clone(), discovered.kind, self.vfio);
        let mut moving = discovered.migration.moving;
        let mut ready = None;
        if moving == Moving::In {
            Box::pin(clear(&slots, std::mem::take(&mut left.chardevs))).await;
            let (stop, stopped) = oneshot::channel();
            let arriving = Event::Arriving {
                key: self.key,
                name: name.clone(),
                machine: Box::new(machine.clone()),
                stop,
            };
            self.post.tell(arriving).await;
            // What can be done before it runs: then each command takes long.
            match Box::pin(ReadyControl::new(&slots)).await {
                Ok(one) => ready = Some(one),
                Err(error) => debug!(guest = name, %error, "prepared once it has arrived"),
            }
            if let Err(problem) = Box::pin(standby::arrive(&qmp, gone.as_ref(), stopped)).await {
                Box::pin(discard(&slots, ready)).await;
                return Err(problem);
            }
            moving = Moving::No;
        }

        let (commands, inbox) = mailbox::mailbox();
        let (directory, updates) = latest();
        let (go, went) = oneshot::channel();
        let connected = Connected {
            key: self.key,
            name: name.clone(),
            found: left.channels,
            windows: left.windows.clone(),
            handle: Handle { place: Arc::new(slots.clone()), commands, directory },
            go,
            machine: machine.clone(),
        };
        let agent_ends = |_| Problem::new("ending", "the agent is ending");
        self.post
            .events
            .send(Event::Connected(Box::new(connected)))
            .await
            .map_err(|_| agent_ends(()))?;
        if let Err(problem) = went.await.map_err(|_| agent_ends(()))? {
            Box::pin(discard(&slots, ready)).await;
            return Err(problem);
        }

        // The control device of an earlier agent, or what it left half done.
        for (device, chardev) in left.devices {
            let (name, id) = (name.clone(), device.clone());
            let slow = move || {
                warn!(guest = name, device = id, "the guest keeps a device of an earlier agent");
            };
            Box::pin(slots.unplug(Plugged::found(device, chardev), slow)).await;
        }
        Box::pin(clear(&slots, left.chardevs)).await;
        // The guest ends their channels, if it uses them; the next have others.
        for window in left.windows {
            let (slots, name) = (slots.clone(), name.clone());
            let (key, post) = (self.key, self.post.clone());
            tokio::spawn(async move {
                let slow = move || warn!(guest = name, ?window, "the guest keeps an old window");
                slots.remove_window(window, Box::new(slow)).await;
                post.tell(Event::WindowGone { key, id: window }).await;
            });
        }

        let mut serving = Serving {
            key: self.key,
            name,
            prepared: self.prepared,
            pid: machine.pid,
            qmp,
            slots,
            ready,
            inbox,
            updates,
            gone,
            post: self.post,
            taps: self.taps,
            outbox: Outbox::default(),
        };
        Box::pin(serving.run(moving)).await
    }
}

/// Removes character devices that an earlier agent has left.
async fn clear(slots: &Slots, chardevs: Vec<String>) {
    for chardev in &chardevs {
        if let Err(error) = slots.remove_chardev(chardev).await {
            warn!(chardev, %error, "chardev left behind");
        }
    }
}

struct Serving {
    key: Key,
    name: String,
    prepared: Duration,
    pid: u32,
    qmp: Qmp,
    slots: Slots,
    /// for the first control device
    ready: Option<ReadyControl>,
    inbox: mailbox::Receiver<Command>,
    updates: Latest,
    gone: Option<AsyncFd<OwnedFd>>,
    post: Post,
    taps: fn(u32) -> Taps,
    outbox: Outbox,
}

impl Serving {
    /// Returns when the guest is detached or gone; a problem only if it never
    /// had a control device. `moving` if it was found on its way.
    async fn run(&mut self, moving: Moving) -> Result<(), Problem> {
        let mut first = true;
        let mut pause = REPLACE;
        let mut stand_by = moving != Moving::No;
        loop {
            if stand_by {
                if Box::pin(self.stand_by()).await == standby::End::Over {
                    return Ok(());
                }
                stand_by = false;
                first = false;
                pause = RETURN;
            }
            let plugged_at = Instant::now();
            let mut qemu = self.qmp.events();
            let mut control = match Box::pin(Control::plug(&self.slots, self.ready.take())).await {
                Ok(control) => control,
                Err(device::Error::Booting) => {
                    if first {
                        self.tell(Event::Attached { key: self.key }).await;
                        first = false;
                    }
                    match self.wait_until(plugged_at + BOOTING).await {
                        Waited::Enough => {}
                        Waited::Prepare => stand_by = true,
                        Waited::Over => return Ok(()),
                    }
                    continue;
                }
                Err(error) => {
                    // Whoever migrates need not ask us: it may have begun now.
                    stand_by = Box::pin(migration::migration(&self.qmp))
                        .await
                        .is_ok_and(|now| matches!(now.moving, Moving::Out | Moving::Left));
                    if stand_by {
                        continue;
                    }
                    if first {
                        return Err(device_problem(&error));
                    }
                    warn!(key = self.key, %error, "control device; trying again");
                    match self.wait_until(plugged_at + pause).await {
                        Waited::Enough => {}
                        Waited::Prepare => stand_by = true,
                        Waited::Over => return Ok(()),
                    }
                    pause = REPLACE;
                    continue;
                }
            };
            first = false;
            pause = REPLACE;
            self.tell(Event::Attached { key: self.key }).await;
            let end = self.serve(&mut control, &mut qemu).await;
            self.tell(Event::Away { key: self.key }).await;
            control.region.close();
            match &end {
                End::MachineGone => {
                    self.qmp.abandon();
                    return Ok(());
                }
                End::Detach | End::Prepare => {}
                End::Broken(error) => {
                    self.post.counters.control_broken.add(1);
                    warn!(key = self.key, %error, "replacing the control device");
                }
                End::Failed(error) => warn!(key = self.key, %error, "replacing the control device"),
                End::Lost => {
                    warn!(key = self.key, "the control device was unplugged; plugging another");
                }
            }
            control.ring();
            let key = self.key;
            let slow = move || warn!(key, "the guest keeps its control device");
            Box::pin(self.slots.unplug(control.plugged, slow)).await;
            let waited = match end {
                End::Detach => return Ok(()),
                End::Prepare => Waited::Prepare,
                _ => self.wait_until(plugged_at + REPLACE).await,
            };
            match waited {
                Waited::Enough => {}
                Waited::Prepare => stand_by = true,
                Waited::Over => return Ok(()),
            }
        }
    }

    async fn stand_by(&mut self) -> standby::End {
        let standby = Standby {
            key: self.key,
            name: &self.name,
            qmp: &self.qmp,
            process: self.gone.as_ref(),
            inbox: &mut self.inbox,
            post: &self.post,
            patience: self.prepared,
        };
        standby.run().await
    }

    async fn tell(&self, event: Event) {
        self.post.tell(event).await;
    }

    /// Waits, without a control device.
    async fn wait_until(&mut self, deadline: Instant) -> Waited {
        loop {
            tokio::select! {
                () = sleep_until(deadline) => return Waited::Enough,
                () = self.qmp.closed() => return Waited::Over,
                command = self.inbox.recv() => match command {
                    None | Some(Command::Detach) => return Waited::Over,
                    Some(Command::Prepare) => return Waited::Prepare,
                    Some(command) => refuse(command),
                },
            }
        }
    }

    fn rescan(&self) {
        let (qmp, key, post) = (self.qmp.clone(), self.key, self.post.clone());
        let (taps, pid) = (self.taps, self.pid);
        tokio::spawn(async move {
            match nics(&qmp, taps(pid)).await {
                Ok(nics) => post.tell(Event::Nics { key, nics }).await,
                Err(error) => debug!(key, %error, "interfaces"),
            }
        });
    }

    async fn serve(&mut self, control: &mut Control, qemu: &mut qmp::Events) -> End {
        match self.serve_inner(control, qemu).await {
            Ok(end) => end,
            Err(error) => End::Broken(error),
        }
    }

    async fn serve_inner(
        &mut self,
        control: &mut Control,
        qemu: &mut qmp::Events,
    ) -> Result<End, Broken> {
        let mut messages = Bucket::new(200.0, 400.0);
        let mut wakes = Bucket::new(2000.0, 2000.0);
        let mut connected = false;
        let mut was_reset = false;
        let mut welcomed = false;
        let mut payload = Vec::new();
        // A message may be heard now; and the next one has waited until it might.
        let (mut may_hear, mut waited) = (false, false);
        self.outbox.clear();
        self.updates.wants_news(false);

        let mut other_version = false;
        loop {
            let side = match control.region.poll() {
                // Another control device would not change that; other modules
                // in the guest would.
                Err(error @ Broken::Version(_)) => {
                    if !other_version {
                        warn!(key = self.key, %error);
                    }
                    other_version = true;
                    GuestSide::Away
                }
                side => side?,
            };
            match side {
                GuestSide::Began => {
                    other_version = false;
                    if connected {
                        self.tell(Event::Away { key: self.key }).await;
                    }
                    connected = true;
                    was_reset = false;
                    welcomed = false;
                    self.outbox.clear();
                    self.updates.wants_news(false);
                    control.ring();
                }
                GuestSide::Away => {
                    if connected {
                        connected = false;
                        self.tell(Event::Away { key: self.key }).await;
                    }
                }
                GuestSide::Connected => {}
            }

            let mut not_before = None;
            let mut told_from = None;
            let mut more = false;
            if connected && !was_reset {
                let mut taken = 0;
                while taken < BATCH {
                    if !may_hear && let Err(when) = messages.take(Instant::now()) {
                        not_before = Some(when);
                        waited = true;
                        break;
                    }
                    // What no message was there for is for the next one.
                    may_hear = true;
                    let heard = control.region.receive(&mut payload)?;
                    if std::mem::take(&mut waited) && heard.is_some() {
                        self.post.counters.throttled.add(1);
                    }
                    let Some(kind) = heard else { break };
                    may_hear = false;
                    taken += 1;
                    self.hear(kind, &payload).await;
                }
                if control.region.received() {
                    control.ring();
                }
                more = taken == BATCH;

                let flushed = self.outbox.flush(&mut control.region, &mut self.updates)?;
                if control.region.sent() {
                    control.ring();
                }
                match flushed {
                    Flushed::All => {}
                    Flushed::Until(when) => told_from = Some(when),
                    Flushed::Full => more |= !control.region.wait_room(),
                }
                more |= not_before.is_none() && !control.region.may_sleep();
            }
            if more {
                tokio::task::yield_now().await;
            }
            let doorbells_from = wakes.take(Instant::now()).err();
            let waits = [not_before.max(doorbells_from), told_from];
            let wake_at = waits.into_iter().flatten().min().filter(|_| !more);

            tokio::select! {
                biased;
                () = self.qmp.closed() => return Ok(End::MachineGone),
                () = ended(self.gone.as_ref()) => return Ok(End::MachineGone),
                command = self.inbox.recv() => match command {
                    None | Some(Command::Detach) => return Ok(End::Detach),
                    Some(Command::Prepare) => {
                        // What it knows is not to come along, and the broker's
                        // last directory may be on its way yet. A guest that has
                        // no room for two more messages does not read them either.
                        if connected && !was_reset {
                            self.outbox.nobody();
                            self.outbox.flush(&mut control.region, &mut self.updates)?;
                            if control.region.sent() {
                                control.ring();
                            }
                        }
                        return Ok(End::Prepare);
                    }
                    Some(command @ (Command::Migrate { .. } | Command::Resume)) => refuse(command),
                    Some(Command::Rescan) => self.rescan(),
                    Some(Command::Send(message)) => self.outbox.push(message),
                    Some(Command::Welcome { message, changes, .. }) => {
                        self.outbox.welcome(message);
                        self.updates.wants_news(changes);
                        welcomed = true;
                    }
                },
                changed = self.updates.changed(), if welcomed => {
                    if !changed {
                        return Ok(End::Detach);
                    }
                    self.outbox.directory();
                }
                event = qemu.recv() => match event {
                    Ok(event)
                        if matches!(event.name.as_str(), "RESET" | "SHUTDOWN") && connected =>
                    {
                        // Its memory still says what it said before; and a QEMU may
                        // stay when its machine has been shut down.
                        connected = false;
                        was_reset = true;
                        self.tell(Event::Away { key: self.key }).await;
                    }
                    Ok(event) if event.name == "DEVICE_DELETED" => {
                        let device = event.data["device"].as_str().unwrap_or_default();
                        if device == CONTROL {
                            return Ok(End::Lost);
                        }
                        match ids::channel_tag(device) {
                            Some(tag) => self.tell(Event::Unplugged { key: self.key, tag }).await,
                            None if ids::parse_window(device).is_some() => {}
                            None => self.rescan(),
                        }
                    }
                    Ok(_) | Err(qmp::Missed::Lagged) => {}
                    Err(qmp::Missed::Closed) => return Ok(End::MachineGone),
                },
                heard = control.heard(), if doorbells_from.is_none() => {
                    if let Err(error) = heard {
                        return Ok(End::Failed(error));
                    }
                }
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if more || wake_at.is_some() => {}
            }
        }
    }

    async fn hear(&self, kind: u16, payload: &[u8]) {
        match GuestMessage::parse(kind, payload) {
            Ok(message) => self.tell(Event::Guest { key: self.key, message }).await,
            Err(error) => {
                self.post.counters.malformed.add(1);
                debug!(key = self.key, %error, "message ignored");
            }
        }
    }
}

/// What came of waiting.
enum Waited {
    Enough,
    Prepare,
    /// It is to be detached, or gone.
    Over,
}

/// A command that came too late.
fn refuse(command: Command) {
    if let Command::Migrate { reply, .. } = command {
        let problem = Problem::new("busy", "it has just gone back to work").hint("try again");
        answer(reply, Err(problem));
    }
}
