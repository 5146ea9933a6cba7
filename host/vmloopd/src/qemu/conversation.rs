// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What an ivshmem device hears from its server, which is the agent
//! (docs/specs/ivshmem-spec in QEMU's tree).
//!
//! As we know everything when the device is made, we write the whole conversation
//! into a socket pair before QEMU gets its end, by `getfd`, so that no path exists that
//! anybody else could connect to, and QEMU never waits for us. Our end goes as soon as
//! QEMU has read all of that: a device needs its server for nothing else, and a host may
//! have ten thousand of them.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags,
    SocketType, sendmsg, shutdown, socketpair,
};
use tokio::io::unix::AsyncFd;
use vmloop_abi::readiness::readable;

/// Version of the ivshmem server's protocol.
const VERSION: i64 = 0;

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
    /// server's id for the device, with the doorbells that ring here
    pub own: (u16, &'a [OwnedFd]),
    /// and for the other side, with as many that ring there
    pub other: (u16, &'a [OwnedFd]),
}

/// Closes the server's end of a conversation, in the background, once QEMU has read all
/// of it, has lost the device, or has ended. Until then only writing is shut down: QEMU
/// takes an end that is closed for a reason to read no further (POLLHUP,
/// `tcp_chr_hup()` in its chardev/char-socket.c), and the device would lack doorbells.
/// At the end of what there is to read QEMU closes its own end.
pub fn let_go(server: AsyncFd<OwnedFd>) {
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
///
/// # Errors
/// Those of the host, when it has no more descriptors.
pub fn conversation(spec: &Spec<'_>) -> io::Result<(AsyncFd<OwnedFd>, OwnedFd)> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let to = ours.as_fd();
    message(to, VERSION, None)?;
    message(to, i64::from(spec.own.0), None)?;
    let doorbells = |(id, doorbells): (u16, &[OwnedFd])| {
        let mut all = doorbells.iter();
        all.try_for_each(|doorbell| message(to, i64::from(id), Some(doorbell.as_fd())))
    };
    // QEMU reads what comes before the memory, and that, while it makes the device, and the
    // rest when it has. Its own doorbells it can only use then.
    doorbells(spec.other)?;
    message(to, -1, Some(spec.memory))?;
    doorbells(spec.own)?;
    Ok((readable(ours)?, theirs))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::IoSliceMut;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use tokio::time::{Instant, sleep};
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
        doorbells: [Vec<OwnedFd>; 2],
    }

    impl Parts {
        fn new() -> Self {
            let header = memory::channel_header(memory::RING_MIN, memory::Layout::Table);
            let memory = memory::create("test", &header).expect("memfd");
            let two = || [(); 2].map(|()| doorbell().expect("eventfd")).into();
            let doorbells = [two(), two()];
            Self { memory, size: header.size, doorbells }
        }

        fn spec(&self) -> Spec<'_> {
            Spec {
                device: "d".into(),
                chardev: "c".into(),
                memory: self.memory.as_fd(),
                size: self.size,
                own: (14, &self.doorbells[0]),
                other: (15, &self.doorbells[1]),
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
        assert_eq!(heard, 7);
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
        // In the order of their numbers, its own after the memory.
        for (id, all) in [(15, other), (14, own)] {
            if id == 14 {
                let Some((-1, Some(region))) = hear(&theirs) else { panic!("no memory") };
                assert_eq!(inode(&region), inode(&memory));
                let size = File::from(region).metadata().expect("its size").len();
                assert_eq!(size, region_size);
            }
            let mut count = [0; 8];
            for (number, bell) in all.iter().enumerate() {
                let Some((heard, Some(ring))) = hear(&theirs) else { panic!("no doorbell") };
                assert_eq!(heard, id);
                rustix::io::write(&ring, &1u64.to_ne_bytes()).expect("ring");
                assert_eq!(rustix::io::read(bell, &mut count), Ok(8), "{number} of {id}");
            }
            for bell in all {
                let silent = rustix::io::read(&bell, &mut count);
                assert_eq!(silent, Err(rustix::io::Errno::AGAIN));
            }
        }
        assert!(hear(&theirs).is_none(), "nothing more is said");
        drop(ours);
    }
}
