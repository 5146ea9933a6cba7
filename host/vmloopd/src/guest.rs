// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One task for each guest: its QMP connection, its control device, and the
//! conversation over that. What a guest writes is copied, checked and limited
//! here; the broker hears of nothing else.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};
use vmloop_abi::control::{Broken, ControlRegion, GuestSide};
use vmloop_abi::memory::CONTROL_SIZE;
use vmloop_abi::message::{AgentMessage, DirectoryEntry, GuestMessage};
use vmloop_abi::readiness::readable;
use vmloop_api::Problem;
use vmloop_qmp::{self as qmp, Qmp};

use crate::broker::Event;
use crate::counters::Counters;
use crate::device::{self, Plugged, Ready, Slots, Spec};
use crate::hypervisor::{Bucket, Command, Connected, Directory, Handle, Key, Place};
use crate::machine::{self, CONTROL, Moving, Taps};
use crate::standby::{self, Standby};

/// Messages taken before others get their turn.
const BATCH: usize = 64;
/// Messages that wait for room in a guest's ring.
const WAITING: usize = 1024;
/// A broken control device is replaced no more often than this.
const REPLACE: Duration = Duration::from_secs(5);
/// How soon a machine is asked again whether its firmware is done.
const BOOTING: Duration = Duration::from_millis(200);
/// How soon a guest that stays after all is tried again: QEMU may still be busy
/// with the migration that was cancelled.
const RETURN: Duration = Duration::from_millis(200);

/// What a control device is made of, and our ends of it.
struct Parts {
    region: ControlRegion,
    memory: OwnedFd,
    heard: AsyncFd<OwnedFd>,
    ring: OwnedFd,
}

impl Parts {
    fn new() -> io::Result<Self> {
        let (region, memory) = ControlRegion::create("vmloop-control")?;
        let (heard, ring) = (readable(device::doorbell()?)?, device::doorbell()?);
        Ok(Self { region, memory, heard, ring })
    }

    fn spec(&self) -> Spec<'_> {
        Spec {
            device: CONTROL.into(),
            chardev: CONTROL.into(),
            memory: self.memory.as_fd(),
            size: CONTROL_SIZE,
            own: (1, self.ring.as_fd()),
            other: (0, self.heard.get_ref().as_fd()),
        }
    }

    fn plugged(self, plugged: Plugged) -> Control {
        let Self { region, heard, ring, .. } = self;
        Control { region, heard, ring, plugged }
    }
}

/// A control device that only needs to be plugged.
struct ReadyControl {
    parts: Parts,
    ready: Ready,
}

impl ReadyControl {
    async fn new(slots: &Slots) -> Result<Self, device::Error> {
        let parts = Parts::new()?;
        let ready = slots.prepare(parts.spec()).await?;
        Ok(Self { parts, ready })
    }
}

/// A control device that is plugged.
struct Control {
    region: ControlRegion,
    heard: AsyncFd<OwnedFd>,
    ring: OwnedFd,
    plugged: Plugged,
}

impl Control {
    /// Plugs what is ready, or a new one.
    async fn plug(slots: &Slots, ready: Option<ReadyControl>) -> Result<Self, device::Error> {
        if let Some(ReadyControl { parts, ready }) = ready {
            return Ok(parts.plugged(slots.plug_ready(ready).await?));
        }
        let parts = Parts::new()?;
        let plugged = slots.plug(parts.spec()).await?;
        Ok(parts.plugged(plugged))
    }

    fn ring(&self) {
        // Fails only if the counter is full, and then it rings already.
        let _ = rustix::io::write(&self.ring, &1u64.to_ne_bytes());
    }

    /// Waits until the guest rings.
    async fn heard(&self) -> io::Result<()> {
        let mut ready = self.heard.readable().await?;
        let mut count = [0; 8];
        match rustix::io::read(self.heard.get_ref(), &mut count) {
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::AGAIN) => {
                ready.clear_ready();
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What waits to be sent to a guest.
#[derive(Default)]
struct Outbox {
    messages: VecDeque<AgentMessage>,
    directory: Option<(u64, Arc<Vec<DirectoryEntry>>, usize)>,
    generation: u64,
}

impl Outbox {
    fn push(&mut self, message: AgentMessage) {
        if self.messages.len() == WAITING {
            // A guest that does not read misses something; it asks again.
            self.messages.pop_front();
        }
        self.messages.push_back(message);
    }

    fn start_directory(&mut self, entries: Arc<Vec<DirectoryEntry>>) {
        self.generation += 1;
        self.directory = Some((self.generation, entries, 0));
    }

    /// Sends as much as there is room for; whether all was sent.
    fn flush(&mut self, region: &mut ControlRegion) -> Result<bool, Broken> {
        while let Some(message) = self.messages.front() {
            if !region.send(message)? {
                return Ok(false);
            }
            self.messages.pop_front();
        }
        while let Some((generation, entries, next)) = &mut self.directory {
            let message = if *next == 0 {
                AgentMessage::DirBegin(*generation)
            } else if let Some(entry) = entries.get(*next - 1) {
                AgentMessage::DirPeer(Box::new(entry.clone()))
            } else {
                AgentMessage::DirEnd(*generation)
            };
            if !region.send(&message)? {
                return Ok(false);
            }
            *next += 1;
            if *next == entries.len() + 2 {
                self.directory = None;
            }
        }
        Ok(true)
    }
}

type Events = broadcast::Receiver<qmp::Event>;

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
    pub events: mpsc::Sender<Event>,
    /// what is counted
    pub counters: Arc<Counters>,
    /// how to find the taps of a process
    pub taps: fn(u32) -> Taps,
    /// Until when to try again if QEMU does not answer: the connection of an
    /// earlier agent may have just ended, on a host that is busy.
    pub retry_until: Option<Instant>,
    /// how long a guest that is prepared waits for its migration
    pub prepared: Duration,
}

fn qmp_problem(error: &qmp::Error) -> Problem {
    let code = match error {
        qmp::Error::NotFound(_) => "qmp-not-found",
        qmp::Error::NotSocket(_) => "qmp-not-a-socket",
        qmp::Error::Refused(_) => "qmp-nobody-listens",
        qmp::Error::Busy(_) => "qmp-busy",
        qmp::Error::NotQmp(..) => "qmp-not-qmp",
        _ => "qmp-failed",
    };
    Problem::new(code, error.to_string()).hint(error.hint())
}

fn machine_problem(error: &machine::Error) -> Problem {
    let code = match error {
        machine::Error::Qmp(error) => return qmp_problem(error),
        machine::Error::NoIvshmem(_) => "no-ivshmem",
        machine::Error::Machine(_) => "machine-type",
        machine::Error::Replicated(_) => "replicated",
        machine::Error::Process(..) => "process",
    };
    Problem::new(code, error.to_string()).hint(error.hint())
}

fn device_problem(error: &device::Error) -> Problem {
    let code = match error {
        device::Error::Slots(_) => "no-slot",
        device::Error::Booting => "booting",
        device::Error::Qmp(error) => return qmp_problem(error),
        device::Error::Io(_) => "failed",
    };
    Problem::new(code, format!("control device: {error}")).hint(error.hint())
}

impl Task {
    /// Attaches, serves the guest until it is detached or gone, and tells the
    /// broker how it ended.
    pub async fn run(self) {
        let (key, events) = (self.key, self.events.clone());
        let problem = self.attach_and_serve().await.err();
        // Fails only when the agent ends.
        let _ = events.send(Event::Left { key, problem }).await;
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
        let discovered = machine::discover(&qmp, process.pid, (self.taps)(process.pid))
            .await
            .map_err(|error| machine_problem(&error))?;
        let machine = discovered.machine;
        let mut left = machine::left_behind(&qmp).await.map_err(|error| qmp_problem(&error))?;
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
        let slots = Slots::new(qmp.clone(), discovered.kind);
        let mut moving = discovered.migration.moving;
        let mut ready = None;
        if moving == Moving::In {
            clear(&slots, std::mem::take(&mut left.chardevs)).await;
            let (stop, stopped) = oneshot::channel();
            let arriving = Event::Arriving {
                key: self.key,
                name: name.clone(),
                machine: Box::new(machine.clone()),
                stop,
            };
            // Fails only when the agent ends.
            let _ = self.events.send(arriving).await;
            // What can be done before it runs: then each command takes long.
            match ReadyControl::new(&slots).await {
                Ok(one) => ready = Some(one),
                Err(error) => debug!(guest = name, %error, "prepared once it has arrived"),
            }
            if let Err(problem) = standby::arrive(&qmp, gone.as_ref(), stopped).await {
                discard(&slots, ready).await;
                return Err(problem);
            }
            moving = Moving::No;
        }

        let (commands, inbox) = mpsc::unbounded_channel();
        let (directory, updates) = watch::channel(None);
        let (go, went) = oneshot::channel();
        let connected = Connected {
            key: self.key,
            name: name.clone(),
            found: left.channels,
            handle: Handle { place: Place::Qemu(slots.clone()), commands, directory },
            go,
            machine: machine.clone(),
        };
        let agent_ends = |_| Problem::new("ending", "the agent is ending");
        self.events
            .send(Event::Connected(Box::new(connected)))
            .await
            .map_err(|_| agent_ends(()))?;
        if let Err(problem) = went.await.map_err(|_| agent_ends(()))? {
            discard(&slots, ready).await;
            return Err(problem);
        }

        // The control device of an earlier agent, or what it left half done.
        for (device, chardev) in left.devices {
            let (name, id) = (name.clone(), device.clone());
            slots
                .unplug(Plugged::found(device, chardev), move || {
                    warn!(
                        guest = name,
                        device = id,
                        "the guest keeps a device of an earlier agent"
                    );
                })
                .await;
        }
        clear(&slots, left.chardevs).await;

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
            events: self.events,
            counters: self.counters,
            taps: self.taps,
            outbox: Outbox::default(),
        };
        serving.run(moving).await
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

/// Ends what was prepared and is not to be plugged.
async fn discard(slots: &Slots, control: Option<ReadyControl>) {
    if let Some(control) = control {
        slots.discard(control.ready).await;
    }
}

/// Readable when the process ends.
fn pidfd(pid: u32) -> Option<AsyncFd<OwnedFd>> {
    let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let opened = pidfd_open(raw, PidfdFlags::NONBLOCK).map_err(io::Error::from);
    opened
        .and_then(readable)
        .inspect_err(|error| warn!(pid, %error, "only QMP will tell when this QEMU ends"))
        .ok()
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
    inbox: mpsc::UnboundedReceiver<Command>,
    updates: watch::Receiver<Directory>,
    gone: Option<AsyncFd<OwnedFd>>,
    events: mpsc::Sender<Event>,
    counters: Arc<Counters>,
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
                if self.stand_by().await == standby::End::Over {
                    return Ok(());
                }
                stand_by = false;
                first = false;
                pause = RETURN;
            }
            let plugged_at = Instant::now();
            let mut qemu = self.qmp.events();
            let mut control = match Control::plug(&self.slots, self.ready.take()).await {
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
                    stand_by = machine::migration(&self.qmp)
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
                    self.counters.control_broken.add(1);
                    warn!(key = self.key, %error, "replacing the control device");
                }
                End::Failed(error) => warn!(key = self.key, %error, "replacing the control device"),
                End::Lost => {
                    warn!(key = self.key, "the control device was unplugged; plugging another");
                }
            }
            control.ring();
            let key = self.key;
            self.slots
                .unplug(control.plugged, move || {
                    warn!(key, "the guest keeps its control device");
                })
                .await;
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
            events: &self.events,
            patience: self.prepared,
        };
        standby.run().await
    }

    async fn tell(&self, event: Event) {
        // Fails only when the agent ends.
        let _ = self.events.send(event).await;
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
        let (qmp, key, events) = (self.qmp.clone(), self.key, self.events.clone());
        let (taps, pid) = (self.taps, self.pid);
        tokio::spawn(async move {
            match machine::nics(&qmp, taps(pid)).await {
                // Fails only when the agent ends.
                Ok(nics) => drop(events.send(Event::Nics { key, nics }).await),
                Err(error) => debug!(key, %error, "interfaces"),
            }
        });
    }

    async fn serve(&mut self, control: &mut Control, qemu: &mut Events) -> End {
        match self.serve_inner(control, qemu).await {
            Ok(end) => end,
            Err(error) => End::Broken(error),
        }
    }

    async fn serve_inner(
        &mut self,
        control: &mut Control,
        qemu: &mut Events,
    ) -> Result<End, Broken> {
        let mut messages = Bucket::new(200.0, 400.0);
        let mut wakes = Bucket::new(2000.0, 2000.0);
        let mut connected = false;
        let mut was_reset = false;
        let mut welcomed = false;
        let mut payload = Vec::new();
        self.outbox = Outbox { generation: self.outbox.generation, ..Outbox::default() };

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
                    self.outbox.messages.clear();
                    self.outbox.directory = None;
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
            let mut more = false;
            if connected && !was_reset {
                let mut taken = 0;
                while taken < BATCH {
                    if let Err(when) = messages.take(Instant::now()) {
                        not_before = Some(when);
                        break;
                    }
                    let Some(kind) = control.region.receive(&mut payload)? else { break };
                    taken += 1;
                    self.hear(kind, &payload).await;
                }
                if control.region.received() {
                    control.ring();
                }
                more = taken == BATCH;
                if not_before.is_some() {
                    self.counters.throttled.add(1);
                }

                let all_sent = self.outbox.flush(&mut control.region)?;
                if control.region.sent() {
                    control.ring();
                }
                more |= !all_sent && !control.region.wait_room();
                more |= not_before.is_none() && !control.region.may_sleep();
            }
            if more {
                tokio::task::yield_now().await;
            }
            let doorbells_from = wakes.take(Instant::now()).err();
            let wake_at = if more { None } else { not_before.max(doorbells_from) };

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
                            self.outbox.start_directory(Arc::default());
                            self.outbox.flush(&mut control.region)?;
                            if control.region.sent() {
                                control.ring();
                            }
                        }
                        return Ok(End::Prepare);
                    }
                    Some(command @ (Command::Migrate { .. } | Command::Resume)) => refuse(command),
                    Some(Command::Rescan) => self.rescan(),
                    Some(Command::Send(message)) => self.outbox.push(message),
                    Some(Command::Welcome { message, .. }) => {
                        self.outbox.push(message);
                        welcomed = true;
                        if let Some(entries) = self.updates.borrow_and_update().clone() {
                            self.outbox.start_directory(entries);
                        }
                    }
                },
                changed = self.updates.changed(), if welcomed => {
                    if changed.is_err() {
                        return Ok(End::Detach);
                    }
                    if let Some(entries) = self.updates.borrow_and_update().clone() {
                        self.outbox.start_directory(entries);
                    }
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
                        match machine::channel_tag(device) {
                            Some(tag) => self.tell(Event::Unplugged { key: self.key, tag }).await,
                            None => self.rescan(),
                        }
                    }
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return Ok(End::MachineGone),
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
                self.counters.malformed.add(1);
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
        // Fails only if the client hung up.
        let _ = reply
            .send(Err(Problem::new("busy", "it has just gone back to work").hint("try again")));
    }
}

/// Returns when the process has ended; never without a pidfd.
pub async fn ended(pidfd: Option<&AsyncFd<OwnedFd>>) {
    match pidfd {
        // An error is no news about the process.
        Some(fd) if fd.readable().await.is_ok() => {}
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_larger_than_the_ring() {
        let (mut region, fd) = ControlRegion::create("test").expect("a region");
        let mut guest = ControlRegion::fake_guest(&fd).expect("its other end");
        guest.begin(1);
        assert_eq!(region.poll(), Ok(GuestSide::Began));
        let entry = DirectoryEntry {
            id: 1,
            epoch: 1,
            tag: 0,
            tagged: false,
            keep: false,
            gateway: None,
            local_mac: [1; 6],
            mac: [2; 6],
            mtu: 1500,
            name: "x".into(),
            ips: Vec::new(),
        };
        let mut outbox = Outbox::default();
        outbox.start_directory(Arc::new(vec![entry; 3000]));
        let mut heard = Vec::new();
        let mut rounds = 0;
        loop {
            let done = outbox.flush(&mut region).expect("an honest guest");
            region.sent();
            while let Some((kind, _)) = guest.receive() {
                heard.push(kind);
            }
            rounds += 1;
            if done {
                break;
            }
        }
        assert!(rounds > 2);
        assert_eq!(heard.len(), 3002);
        assert_eq!((heard[0], heard[1], heard[3001]), (33, 34, 35));
    }
}
