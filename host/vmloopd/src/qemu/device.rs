// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Plugging ivshmem devices into a QEMU, and unplugging them.
//!
//! We are the ivshmem server of every device. As we know everything when the
//! device is made, we write the whole conversation (docs/specs/ivshmem-spec in
//! QEMU's tree) into a socket pair before QEMU gets its end, by `getfd`, so
//! that no path exists that anybody else could connect to, and QEMU never
//! waits for us. Our end goes as soon as QEMU has read all of that: a device needs
//! its server for nothing else, and a host may have ten thousand of them.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags,
    SocketType, sendmsg, shutdown, socketpair,
};
use serde_json::{Value, json};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};
use vmloop_abi::readiness::readable;
use vmloop_qmp::{self as qmp, Qmp};

use super::slots::{self, Kind, NoSlot};
use crate::config::Vfio;
use crate::limits;

/// Version of the ivshmem server's protocol.
const VERSION: i64 = 0;
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
            Self::Slots("PCI Express root port") => {
                "start QEMU with more of -device pcie-root-port,id=rpN,chassis=N,pref64-reserve=64M; one for the control device and one for each peer"
            }
            Self::Slots(_) => "unplug another device; each channel needs a PCI slot",
            Self::Small(_) => {
                "start QEMU with a larger pref64-reserve for its root ports (64M is enough for rings of 16 MiB), or take a smaller ring_size in the policy"
            }
            Self::Vfio(_) => {
                "QEMU may abort when it cannot map new memory for such a device; to try it, write vfio = \"allow\" into vmloopd.toml"
            }
            Self::Booting => "it is tried again",
            Self::Qmp(error) => error.hint(),
            Self::Io(_) => "",
        }
    }
}

/// What a device is made of.
pub struct Spec<'a> {
    /// its id
    pub device: String,
    /// id of its character device
    pub chardev: String,
    /// region
    pub memory: BorrowedFd<'a>,
    /// bytes of the region
    pub size: u64,
    /// server's id for the device
    pub own: (u16, BorrowedFd<'a>),
    /// and for the other side, with the doorbell that rings there
    pub other: (u16, BorrowedFd<'a>),
}

/// A character device that is there, for a device that is to be plugged. Ends
/// with [`Slots::plug_ready`] or [`Slots::discard`].
pub struct Ready {
    device: String,
    chardev: String,
    size: u64,
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

/// Closes the server's end of a conversation, in the background, once QEMU has read all
/// of it, has lost the device, or has ended. Until then only writing is shut down: QEMU
/// takes an end that is closed for a reason to read no further (POLLHUP,
/// `tcp_chr_hup()` in its chardev/char-socket.c), and the device would lack doorbells.
/// At the end of what there is to read QEMU closes its own end.
fn let_go(server: AsyncFd<OwnedFd>) {
    // Fails only if QEMU has closed its end already.
    let _ = shutdown(server.get_ref(), Shutdown::Write);
    tokio::spawn(async move {
        // Devices say nothing: anything but "not yet" is the end.
        while let Ok(mut ready) = server.readable().await {
            match rustix::io::read(server.get_ref(), &mut [0; 1]) {
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                _ => break,
            }
        }
    });
}

fn message(to: BorrowedFd<'_>, value: i64, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let bytes = value.to_le_bytes();
    match sendmsg(to, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)? {
        8 => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// A socket pair with everything said on it that a device needs to hear: our
/// end and QEMU's.
fn conversation(spec: &Spec<'_>) -> io::Result<(AsyncFd<OwnedFd>, OwnedFd)> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let to = ours.as_fd();
    message(to, VERSION, None)?;
    message(to, i64::from(spec.own.0), None)?;
    message(to, -1, Some(spec.memory))?;
    message(to, i64::from(spec.other.0), Some(spec.other.1))?;
    message(to, i64::from(spec.own.0), Some(spec.own.1))?;
    Ok((readable(ours)?, theirs))
}

/// The places of one machine for devices. Clones share it.
#[derive(Clone)]
pub struct Slots {
    qmp: Qmp,
    kind: Kind,
    vfio: Vfio,
    turn: Arc<Mutex<()>>,
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
        let ready =
            Ready { device: spec.device, chardev: spec.chardev, size: spec.size, server: ours };
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
        match slots::free_slot(&self.qmp, self.kind, self.vfio, size).await {
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
            "chardev": ready.chardev, "vectors": 1, "master": "off"});
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
    async fn remove_once(&self, device: &str) -> Deleted {
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Deleted {
    Yes,
    NotYet,
    MachineGone,
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::IoSliceMut;
    use std::os::fd::AsRawFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use vmloop_abi::memory;

    use super::*;
    use crate::end::doorbell;

    /// Reads as QEMU does: eight bytes, perhaps a descriptor.
    fn hear(from: &OwnedFd) -> Option<(i64, Option<OwnedFd>)> {
        let mut bytes = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(
            from,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
        .ok()?;
        if got.bytes == 0 {
            return None;
        }
        assert_eq!(got.bytes, 8);
        let mut fds: Vec<OwnedFd> = control
            .drain()
            .flat_map(|part| match part {
                RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
                _ => Vec::new(),
            })
            .collect();
        assert!(fds.len() <= 1);
        Some((i64::from_le_bytes(bytes), fds.pop()))
    }

    fn inode(fd: &OwnedFd) -> u64 {
        std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_or(0, |meta| {
            use std::os::unix::fs::MetadataExt;
            meta.ino()
        })
    }

    /// What to make a device of.
    struct Parts {
        memory: OwnedFd,
        size: u64,
        doorbells: [OwnedFd; 2],
    }

    impl Parts {
        fn new() -> Self {
            let header = memory::channel_header(memory::RING_MIN, memory::Layout::Table);
            let memory = memory::create("test", &header).expect("memfd");
            let doorbells = [(); 2].map(|()| doorbell().expect("eventfd"));
            Self { memory, size: header.size, doorbells }
        }

        fn spec(&self) -> Spec<'_> {
            Spec {
                device: "d".into(),
                chardev: "c".into(),
                memory: self.memory.as_fd(),
                size: self.size,
                own: (14, self.doorbells[0].as_fd()),
                other: (15, self.doorbells[1].as_fd()),
            }
        }
    }

    /// What a socket has for who polls it.
    fn polled(fd: &OwnedFd) -> PollFlags {
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("a poll");
        fds[0].revents()
    }

    #[tokio::test]
    async fn a_socket_goes_when_qemu_has_read_all_of_it() {
        let (ours, theirs) = conversation(&Parts::new().spec()).expect("a socket pair");
        let_go(ours);
        let mut heard = 0;
        while hear(&theirs).is_some_and(|(_, fd)| fd.is_some() || heard < 2) {
            heard += 1;
            // Whatever the runtime had to do.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            // QEMU reads no further when it sees this.
            assert!(!polled(&theirs).contains(PollFlags::HUP), "after {heard} messages");
        }
        assert_eq!(heard, 5);
        let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert_eq!(alive(), 1);
        // The end of what it can read, where QEMU closes its own.
        assert_eq!(rustix::io::read(&theirs, &mut [0; 8]), Ok(0));
        drop(theirs);
        let deadline = Instant::now() + Duration::from_secs(20);
        while alive() > 0 {
            assert!(Instant::now() < deadline, "the server's end stays");
            sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn what_a_device_hears() {
        let parts = Parts::new();
        let (ours, theirs) = conversation(&parts.spec()).expect("a socket pair");
        let Parts { memory, size: region_size, doorbells: [own, other] } = parts;

        assert!(matches!(hear(&theirs), Some((0, None))));
        assert!(matches!(hear(&theirs), Some((14, None))));
        let Some((-1, Some(region))) = hear(&theirs) else { panic!("no memory") };
        assert_eq!(inode(&region), inode(&memory));
        let size = File::from(region).metadata().expect("its size").len();
        assert_eq!(size, region_size);
        let Some((15, Some(ring_other))) = hear(&theirs) else { panic!("no doorbell of 15") };
        let Some((14, Some(ring_own))) = hear(&theirs) else { panic!("no doorbell of 14") };
        assert!(hear(&theirs).is_none(), "nothing more is said");

        let mut count = [0; 8];
        rustix::io::write(&ring_other, &1u64.to_ne_bytes()).expect("ring");
        assert_eq!(rustix::io::read(&other, &mut count), Ok(8));
        assert_eq!(rustix::io::read(&own, &mut count), Err(rustix::io::Errno::AGAIN));
        rustix::io::write(&ring_own, &1u64.to_ne_bytes()).expect("ring");
        assert_eq!(rustix::io::read(&own, &mut count), Ok(8));
        drop(ours);
    }
}
