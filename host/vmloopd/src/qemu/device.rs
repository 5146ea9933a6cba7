// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Plugging ivshmem devices into a QEMU, and unplugging them. We are the server of
//! every device ([`super::conversation`]).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};
use vmloop_qmp::{self as qmp, Qmp};

use super::conversation::{Spec, conversation, let_go};
use super::slots::{self, Kind, NoSlot};
use crate::config::Vfio;
use crate::limits;

/// How long a guest may take to give a device back before we ask again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// How long QEMU may need to let go of a character device after its user.
const CHARDEV_BUSY: Duration = Duration::from_secs(2);

/// Why a device could not be plugged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no slot for it.
    #[error("no free {0}")]
    Slots(&'static str),
    /// There are some, which are kept for channels.
    #[error("no free {0}: the last ones are not for windows")]
    Kept(&'static str),
    /// There are slots, and none has room for so many bytes.
    #[error("the memory windows of all empty root ports are smaller than {} MiB", .0 >> 20)]
    Small(u64),
    /// It has a device of the host's own, which reads and writes all of the guest's
    /// memory; shared memory would have to be mapped for that as well.
    #[error("the machine has the host's device {0} (VFIO)")]
    Vfio(String),
    /// The machine's firmware is at work, or has not begun.
    #[error("the machine is still booting")]
    Booting,
    /// Nobody wants the device any more.
    #[error("it is not wanted any more")]
    Unwanted,
    /// It is plugged, and not found.
    #[error("QEMU does not say which PCI address the device has")]
    Nowhere,
    /// QMP failed.
    #[error(transparent)]
    Qmp(#[from] qmp::Error),
    /// The host failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Error {
    /// What the operator can do about it; may be empty.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Slots("PCI Express root port") | Self::Kept("PCI Express root port") => {
                "start QEMU with more of -device pcie-root-port,id=rpN,chassis=N,pref64-reserve=64M; one for the control device, one for each peer, and one for each window"
            }
            Self::Slots(_) | Self::Kept(_) => {
                "unplug another device; each channel and each window needs a PCI slot"
            }
            Self::Small(_) => {
                "start QEMU with a larger pref64-reserve for its root ports (64M is enough for rings of 16 MiB), or take a smaller ring_size in the policy"
            }
            Self::Vfio(_) => {
                "QEMU may abort when it cannot map new memory for such a device; to try it, write vfio = \"allow\" into vmloopd.toml"
            }
            Self::Booting => "it is tried again",
            Self::Qmp(error) => error.hint(),
            Self::Io(_) | Self::Nowhere | Self::Unwanted => "",
        }
    }
}

/// A character device that is there, for a device that is to be plugged. Ends
/// with [`Slots::plug_ready`] or [`Slots::discard`].
pub struct Ready {
    device: String,
    chardev: String,
    size: u64,
    vectors: usize,
    server: AsyncFd<OwnedFd>,
}

/// A device that is plugged, by its id and that of its character device; nothing of
/// ours is behind it. It ends with [`Slots::unplug`].
pub struct Plugged {
    device: String,
    chardev: String,
}

impl Plugged {
    /// A device of an earlier agent.
    pub fn found(device: String, chardev: String) -> Self {
        Self { device, chardev }
    }
}

/// The places of one machine for devices. Clones share it.
#[derive(Clone)]
pub struct Slots {
    pub(super) qmp: Qmp,
    kind: Kind,
    vfio: Vfio,
    pub(super) turn: Arc<Mutex<()>>,
    /// leave to make ends of channels
    pub(super) making: Arc<Semaphore>,
}

impl Slots {
    /// Places of the machine behind `qmp`.
    pub fn new(qmp: Qmp, kind: Kind, vfio: Vfio) -> Self {
        let making = Arc::new(Semaphore::new(limits::AT_ONCE));
        Self { qmp, kind, vfio, turn: Arc::default(), making }
    }

    /// Makes the character device of a device that [`Slots::plug_ready`] plugs
    /// later. QEMU migrates machines that have one, and takes it for a machine
    /// that has not arrived yet. What was half done is undone on an error. Must
    /// run to its end: spawn it where it could be cancelled.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn prepare(&self, spec: Spec<'_>) -> Result<Ready, Error> {
        let (ours, theirs) = conversation(&spec)?;
        let name = json!({"fdname": spec.chardev});
        let chardev = json!({"id": spec.chardev, "backend": {"type": "socket", "data": {
            "addr": {"type": "fd", "data": {"str": spec.chardev}}, "server": false}}});
        let made = async {
            let named = self.qmp.ask("getfd", name.clone(), Some(theirs.as_fd())).await?;
            let added = self.qmp.ask("chardev-add", chardev, None).await?;
            // If the first is refused, so is the second.
            (named.answer().await, added.answer().await).1
        };
        let made = made.await;
        drop(theirs);
        let ready = Ready {
            device: spec.device,
            chardev: spec.chardev,
            size: spec.size,
            vectors: spec.own.1.len(),
            server: ours,
        };
        match made {
            Ok(_) => Ok(ready),
            Err(error @ qmp::Error::Timeout(_)) => {
                self.reconcile(ready);
                Err(error.into())
            }
            Err(error) => {
                // QEMU has taken the descriptor or not; either is fine.
                let _ = self.qmp.execute("closefd", name).await;
                Err(error.into())
            }
        }
    }

    /// Undoes, in the background, what QEMU has done of a device after nobody
    /// waited for it any more: else its ids would be taken for ever, and a device
    /// that nobody knows of would keep the machine from being migrated.
    fn reconcile(&self, ready: Ready) {
        let slots = self.clone();
        tokio::spawn(async move {
            let _turn = slots.turn.lock().await;
            // QEMU carries out commands in order: what it answers now comes after
            // all that it was told before.
            loop {
                match slots.qmp.execute("query-status", json!({})).await {
                    Err(qmp::Error::Timeout(_)) => {}
                    Err(qmp::Error::Closed) => return,
                    _ => break,
                }
            }
            tracing::warn!(device = ready.device, "QEMU answers again; undoing what it did late");
            // It is still there if the character device could not be made.
            let _ = slots.qmp.execute("closefd", json!({"fdname": ready.chardev})).await;
            while slots.remove_once(&ready.device).await == Deleted::NotYet {}
            slots.discard(ready).await;
        });
    }

    /// Undoes [`Slots::prepare`].
    pub async fn discard(&self, ready: Ready) {
        self.remove_last(&ready.chardev).await;
        // Only now may the server's socket go: `ready` ends here.
    }

    /// Plugs a device, unless the machine's firmware is not done with those that
    /// it has; a machine that is reset meanwhile is not noticed. What was half
    /// done is undone on an error. Must run to its end: spawn it where it could be
    /// cancelled.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn plug(&self, spec: Spec<'_>) -> Result<Plugged, Error> {
        // One at a time, so that two never choose the same port, and none gets
        // a slot that the guest is about to eject.
        let _turn = self.turn.lock().await;
        let bus = self.place(spec.size).await?;
        let ready = self.prepare(spec).await?;
        self.add(ready, bus).await
    }

    /// The same with a character device that is made before it is known whether there
    /// is a place: a command more if there is none, and waiting less where there
    /// most likely is one.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn plug_likely(&self, spec: Spec<'_>) -> Result<Plugged, Error> {
        let _turn = self.turn.lock().await;
        let size = spec.size;
        let (ready, place) = tokio::join!(self.prepare(spec), self.place(size));
        self.add_at(ready?, place).await
    }

    /// The same with what was prepared.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn plug_ready(&self, ready: Ready) -> Result<Plugged, Error> {
        let _turn = self.turn.lock().await;
        let place = self.place(ready.size).await;
        self.add_at(ready, place).await
    }

    async fn add_at(
        &self,
        ready: Ready,
        place: Result<Option<String>, Error>,
    ) -> Result<Plugged, Error> {
        match place {
            Ok(bus) => self.add(ready, bus).await,
            // Who waits for a device is to know in time, and not when QEMU goes on.
            Err(error @ Error::Qmp(qmp::Error::Timeout(_))) => {
                self.reconcile(ready);
                Err(error)
            }
            Err(error) => {
                self.discard(ready).await;
                Err(error)
            }
        }
    }

    /// Where a device can be plugged; see [`slots::free_slot`].
    async fn place(&self, size: u64) -> Result<Option<String>, Error> {
        self.place_beside(size, 0).await
    }

    /// The same, where so many more places are free.
    pub(super) async fn place_beside(
        &self,
        size: u64,
        spare: usize,
    ) -> Result<Option<String>, Error> {
        match slots::free_slot(&self.qmp, self.kind, self.vfio, size, spare).await {
            Ok(bus) => Ok(bus),
            Err(NoSlot::Full(what)) => Err(Error::Slots(what)),
            Err(NoSlot::Small(size)) => Err(Error::Small(size)),
            Err(NoSlot::Vfio(device)) => Err(Error::Vfio(device)),
            // An ivshmem device answers at its addresses as soon as it is plugged
            // (ivshmem_common_realize() in QEMU's hw/misc/ivshmem.c; only a reset
            // of the machine ends that). Firmware learns a BAR's size by writing
            // all ones to it. SeaBIOS does not turn the device off for that: KVM
            // refuses memory so high, and QEMU aborts.
            Err(NoSlot::Booting) => Err(Error::Booting),
            Err(NoSlot::Qmp(error)) => Err(error.into()),
        }
    }

    async fn add(&self, ready: Ready, bus: Option<String>) -> Result<Plugged, Error> {
        let mut device = json!({"driver": "ivshmem-doorbell", "id": ready.device,
            "chardev": ready.chardev, "vectors": ready.vectors, "master": "off"});
        if let Some(bus) = bus {
            device["bus"] = Value::from(bus);
        }
        match self.qmp.execute("device_add", device).await {
            Ok(_) => {
                let Ready { device, chardev, server, .. } = ready;
                let_go(server);
                Ok(Plugged { device, chardev })
            }
            Err(error @ qmp::Error::Timeout(_)) => {
                self.reconcile(ready);
                Err(error.into())
            }
            Err(error) => {
                self.discard(ready).await;
                let full = matches!(&error, qmp::Error::Command { desc, .. }
                    if desc.contains("no slot/function available"));
                Err(if full { Error::Slots("PCI slot") } else { error.into() })
            }
        }
    }

    /// Unplugs a device, as often as it takes: a guest that is stopped, or has
    /// not booted yet, gives it back later. Returns when it is gone, or the
    /// machine is. `slow` is called once, when the guest takes its time.
    pub async fn unplug(&self, plugged: Plugged, slow: impl FnOnce()) {
        let mut slow = Some(slow);
        loop {
            // While two removals are pending on a PC, the guest hears of each of
            // them twice, and ejects what was plugged in between.
            let _turn = self.turn.lock().await;
            match self.remove_once(&plugged.device).await {
                Deleted::Yes => break,
                Deleted::MachineGone => return,
                Deleted::NotYet => {
                    if let Some(slow) = slow.take() {
                        slow();
                    }
                }
            }
        }
        self.remove_last(&plugged.chardev).await;
    }

    /// Asks once for a device to be given back; the caller has the turn.
    pub(super) async fn remove_once(&self, device: &str) -> Deleted {
        let mut events = self.qmp.events();
        match self.qmp.execute("device_del", json!({"id": device})).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() => return Deleted::Yes,
            Err(qmp::Error::Closed) => return Deleted::MachineGone,
            // "already in the process of unplug", and a QEMU that is slow.
            Err(error) => tracing::debug!(device, %error, "device_del"),
        }
        self.deleted(&mut events, device).await
    }

    /// Removes the character device of a device that is gone.
    async fn remove_last(&self, chardev: &str) {
        if let Err(error) = self.remove_chardev(chardev).await {
            tracing::warn!(chardev, %error, "chardev left behind");
        }
    }

    async fn deleted(&self, events: &mut qmp::Events, id: &str) -> Deleted {
        let deadline = Instant::now() + ASK_AGAIN;
        loop {
            tokio::select! {
                () = self.qmp.closed() => return Deleted::MachineGone,
                event = timeout_at(deadline, events.recv()) => match event {
                    Err(_) | Ok(Err(qmp::Missed::Closed)) => return Deleted::NotYet,
                    // We may have missed it: ask QEMU again.
                    Ok(Err(qmp::Missed::Lagged)) => return Deleted::NotYet,
                    Ok(Ok(event)) => {
                        if event.data["device"] != id {
                            continue;
                        }
                        match event.name.as_str() {
                            "DEVICE_DELETED" => return Deleted::Yes,
                            "DEVICE_UNPLUG_GUEST_ERROR" => {
                                tracing::warn!(device = id, "the guest will not let go of it");
                            }
                            _ => {}
                        }
                    }
                },
            }
        }
    }

    /// Removes a character device; QEMU may hold it a little longer than the
    /// device that used it.
    ///
    /// # Errors
    /// That of the last try.
    pub async fn remove_chardev(&self, id: &str) -> Result<(), qmp::Error> {
        let deadline = Instant::now() + CHARDEV_BUSY;
        loop {
            match self.qmp.execute("chardev-remove", json!({"id": id})).await {
                Err(qmp::Error::Command { desc, .. })
                    if desc.contains("busy") && Instant::now() < deadline =>
                {
                    sleep(Duration::from_millis(20)).await;
                }
                // A QEMU that stands still does it when it goes on.
                Err(qmp::Error::Timeout(_)) => {}
                Err(qmp::Error::Closed) => return Ok(()),
                Err(error) if error.is_not_found() => return Ok(()),
                other => return other.map(drop),
            }
        }
    }
}

/// What became of a device that was to be unplugged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Deleted {
    Yes,
    NotYet,
    MachineGone,
}
