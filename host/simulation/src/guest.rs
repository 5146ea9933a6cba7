// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A guest without a kernel: what modules say and hear over the control device.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use vmloop_abi::control::{ControlRegion, FakeGuest};
use vmloop_abi::readiness::readable;
use vmloop_abi::shm;
use zerocopy::{FromBytes, IntoBytes};

use crate::host::{ip, mac};
use crate::qemu::Hardware;

/// What a guest was told of another one.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// epoch
    pub epoch: u64,
    /// channel; 0 for none
    pub tag: u32,
    /// how many addresses it has
    pub addresses: u16,
}

/// Somebody whose coming or going is waited for in the directories of some guests.
struct Awaited {
    id: u64,
    comes: bool,
    missing: HashSet<u32>,
    last: Instant,
}

/// Where guests note what they have heard, for whoever waits for it.
#[derive(Default)]
pub struct Board {
    awaited: RefCell<Option<Awaited>>,
    complete: Notify,
}

impl Board {
    /// Waits until all of `guests` have heard that a guest came, with an address, or
    /// went. `begin` has that happen. Returns how long it took.
    ///
    /// # Errors
    /// The guests that have not heard of it within `patience`.
    pub async fn heard(
        &self,
        id: u64,
        comes: bool,
        guests: impl IntoIterator<Item = u32>,
        patience: Duration,
        begin: impl FnOnce(),
    ) -> Result<Duration, HashSet<u32>> {
        let began = Instant::now();
        let missing = guests.into_iter().collect();
        *self.awaited.borrow_mut() = Some(Awaited { id, comes, missing, last: began });
        begin();
        let heard = tokio::time::timeout(patience, self.complete.notified()).await;
        let awaited = self.awaited.borrow_mut().take();
        match (heard, awaited) {
            (Ok(()), Some(awaited)) => Ok(awaited.last - began),
            (_, awaited) => Err(awaited.map(|one| one.missing).unwrap_or_default()),
        }
    }

    fn directory(&self, number: u32, directory: &HashMap<u64, Peer>) {
        let mut awaited = self.awaited.borrow_mut();
        let Some(one) = awaited.as_mut() else { return };
        let is_here = directory.get(&one.id).is_some_and(|peer| peer.addresses > 0);
        if is_here == one.comes && one.missing.remove(&number) && one.missing.is_empty() {
            one.last = Instant::now();
            self.complete.notify_one();
        }
    }
}

/// The control device.
struct Device {
    region: FakeGuest,
    agent: OwnedFd,
    own: Rc<AsyncFd<OwnedFd>>,
}

impl Device {
    fn ring(&self) {
        // Fails only if the counter is full, and then it rings already.
        let _ = rustix::io::write(&self.agent, &1u64.to_ne_bytes());
    }

    fn send(&mut self, kind: u16, payload: &[u8]) {
        assert!(self.region.send(kind, payload), "an honest guest's ring is full");
        self.ring();
    }
}

/// A guest; see the module.
pub struct Guest {
    /// its number
    pub number: u32,
    /// its identity; 0 before it was told
    pub id: Cell<u64>,
    /// Modules are loaded.
    loaded: Cell<bool>,
    /// It reads nothing and says nothing.
    pub mute: Cell<bool>,
    connected: Cell<bool>,
    incarnation: Cell<u64>,
    /// when they were loaded last
    pub began: Cell<Option<Instant>>,
    device: RefCell<Option<Device>>,
    /// whom it knows
    pub directory: RefCell<HashMap<u64, Peer>>,
    next: RefCell<HashMap<u64, Peer>>,
    /// of the directory
    generation: Cell<u64>,
    /// tags of channels that were plugged
    pub plugged: RefCell<HashSet<u32>>,
    /// how many directories it was sent
    pub directories: Cell<u64>,
    /// how often it was refused
    pub refused: Cell<u64>,
    board: Rc<Board>,
}

/// ADVERTISE with these addresses, all of one interface.
pub fn advertisement(number: u32, addresses: &[std::net::IpAddr]) -> Vec<u8> {
    let count = u32::try_from(addresses.len()).expect("few addresses");
    let mut message = [count, 0].as_bytes().to_vec();
    for address in addresses {
        let mut octets = [0; 16];
        let (family, prefix) = match address {
            std::net::IpAddr::V4(four) => {
                octets[..4].copy_from_slice(&four.octets());
                (shm::VMLOOP_ADDR_IPV4, 8)
            }
            std::net::IpAddr::V6(six) => {
                octets = six.octets();
                (shm::VMLOOP_ADDR_IPV6, 64)
            }
        };
        let address = shm::Address { family, prefix, mac: mac(number), ip: octets };
        message.extend_from_slice(address.as_bytes());
    }
    message
}

impl Guest {
    /// A guest, whose machine is heard through `hardware`. Must run in a `LocalSet`.
    pub fn start(
        number: u32,
        board: Rc<Board>,
        mut hardware: mpsc::UnboundedReceiver<Hardware>,
    ) -> Rc<Self> {
        let guest = Rc::new(Self {
            number,
            id: Cell::new(0),
            loaded: Cell::new(false),
            mute: Cell::new(false),
            connected: Cell::new(false),
            incarnation: Cell::new(0),
            began: Cell::new(None),
            device: RefCell::default(),
            directory: RefCell::default(),
            next: RefCell::default(),
            plugged: RefCell::default(),
            generation: Cell::new(0),
            directories: Cell::new(0),
            refused: Cell::new(0),
            board,
        });
        let here = guest.clone();
        tokio::task::spawn_local(async move {
            loop {
                let own = here.device.borrow().as_ref().map(|device| device.own.clone());
                let rings = async {
                    match &own {
                        Some(own) => heard(own).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = rings => here.hear(),
                    plugged = hardware.recv() => match plugged {
                        Some(plugged) => here.plug(plugged),
                        None => return,
                    },
                }
            }
        });
        guest
    }

    fn plug(&self, hardware: Hardware) {
        match hardware {
            Hardware::Control { memory, agent, own } => {
                let region = ControlRegion::fake_guest(&memory).expect("memory that can be mapped");
                let own = Rc::new(readable(own).expect("a doorbell"));
                *self.device.borrow_mut() = Some(Device { region, agent, own });
                self.connected.set(false);
                if self.loaded.get() {
                    self.begin();
                }
            }
            Hardware::NoControl => {
                *self.device.borrow_mut() = None;
                self.connected.set(false);
            }
            Hardware::Channel(tag) => {
                self.plugged.borrow_mut().insert(tag);
                self.state(tag, shm::VMLOOP_STATE_UP);
            }
        }
    }

    /// Loads its modules, or has them begin anew.
    pub fn begin(&self) {
        self.loaded.set(true);
        self.connected.set(false);
        self.began.set(Some(Instant::now()));
        let mut device = self.device.borrow_mut();
        let Some(device) = device.as_mut() else { return };
        // Others than those of another life of this machine.
        let incarnation = self.incarnation.get() + 1;
        self.incarnation.set(incarnation);
        device.region.begin(incarnation);
        device.ring();
    }

    /// Unloads its modules.
    pub fn leave(&self) {
        self.loaded.set(false);
        self.connected.set(false);
        self.plugged.borrow_mut().clear();
        if let Some(device) = self.device.borrow_mut().as_mut() {
            let state = device.region.side_field(std::mem::offset_of!(shm::Side, state));
            device.region.poke32(state, shm::VMLOOP_SIDE_CLOSED);
            device.ring();
        }
    }

    /// Asks for a channel to a guest that it knows; whether it does.
    pub fn want(&self, peer: u64) -> bool {
        let Some(Peer { epoch, .. }) = self.directory.borrow().get(&peer).copied() else {
            return false;
        };
        let want = shm::Want { peer, epoch, attempt: 1, reserved: 0 };
        self.send(shm::VMLOOP_MSG_WANT, want.as_bytes());
        true
    }

    fn state(&self, tag: u32, state: u32) {
        self.send(shm::VMLOOP_MSG_STATE, shm::State { tag, state }.as_bytes());
    }

    fn send(&self, kind: u16, payload: &[u8]) {
        if !self.connected.get() || self.mute.get() {
            return;
        }
        if let Some(device) = self.device.borrow_mut().as_mut() {
            device.send(kind, payload);
        }
    }

    /// The agent has rung.
    fn hear(&self) {
        if !self.loaded.get() || self.mute.get() {
            return;
        }
        if !self.connected.get() {
            let mut device = self.device.borrow_mut();
            let Some(device) = device.as_mut() else { return };
            if device.region.echo() != self.incarnation.get() {
                return;
            }
            self.connected.set(true);
            let features = shm::VMLOOP_F_LANES | shm::VMLOOP_F_CHANGES;
            let hello = shm::Hello { major: shm::VMLOOP_SHM_MAJOR, features, ..Default::default() };
            device.send(shm::VMLOOP_MSG_HELLO, hello.as_bytes());
            let addresses = advertisement(self.number, &[ip(self.number)]);
            device.send(shm::VMLOOP_MSG_ADVERTISE, &addresses);
        }
        while let Some((kind, payload)) = self.next_message() {
            self.understand(kind, payload);
        }
    }

    /// The next message; None after the agent was asked to ring at the next one.
    fn next_message(&self) -> Option<(u16, Vec<u8>)> {
        let mut device = self.device.borrow_mut();
        let device = device.as_mut()?;
        loop {
            if let Some(message) = device.region.receive() {
                return Some(message);
            }
            if device.region.is_awaited() {
                device.ring();
            }
            if device.region.sleep() {
                return None;
            }
        }
    }

    fn understand(&self, kind: u16, mut payload: Vec<u8>) {
        match kind {
            shm::VMLOOP_MSG_WELCOME => {
                let welcome = shm::Welcome::read_from_bytes(&payload).expect("a welcome");
                self.id.set(welcome.id);
            }
            shm::VMLOOP_MSG_DIR_BEGIN => self.next.borrow_mut().clear(),
            shm::VMLOOP_MSG_DIR_CHANGE => {
                let change = shm::DirChange::read_from_bytes(&payload).expect("a change");
                assert_eq!(change.before, self.generation.get(), "what this guest has");
                self.next.borrow_mut().clone_from(&self.directory.borrow());
            }
            shm::VMLOOP_MSG_DIR_GONE => {
                let gone = shm::DirGone::read_from_bytes(&payload).expect("one that is gone");
                assert!(self.next.borrow_mut().remove(&gone.id).is_some(), "one that it knows");
            }
            shm::VMLOOP_MSG_DIR_PEER => {
                // Without a gateway it ends before that.
                payload.resize(size_of::<shm::Peer>(), 0);
                let peer = shm::Peer::read_from_bytes(&payload).expect("a peer");
                let (epoch, tag, addresses) = (peer.epoch, peer.tag, peer.ip_count);
                self.next.borrow_mut().insert(peer.id, Peer { epoch, tag, addresses });
            }
            shm::VMLOOP_MSG_DIR_END => {
                let whole = self.next.take();
                let end = shm::Dir::read_from_bytes(&payload).expect("an end");
                self.generation.set(end.generation);
                self.directories.set(self.directories.get() + 1);
                self.board.directory(self.number, &whole);
                *self.directory.borrow_mut() = whole;
            }
            shm::VMLOOP_MSG_CLOSE => {
                let close = shm::Close::read_from_bytes(&payload).expect("a close");
                self.plugged.borrow_mut().remove(&close.tag);
                self.state(close.tag, shm::VMLOOP_STATE_CLOSED);
            }
            shm::VMLOOP_MSG_REFUSED => self.refused.set(self.refused.get() + 1),
            shm::VMLOOP_MSG_STATS_GET => {
                let get = shm::StatsGet::read_from_bytes(&payload).expect("a request");
                let last = shm::Stats { cookie: get.cookie, ..Default::default() };
                self.send(shm::VMLOOP_MSG_STATS, last.as_bytes());
            }
            other => panic!("the agent said {other}"),
        }
    }
}

/// Waits until a doorbell rings.
async fn heard(own: &AsyncFd<OwnedFd>) {
    loop {
        let mut ready = own.readable().await.expect("a doorbell");
        let mut count = [0; 8];
        match rustix::io::read(own.get_ref(), &mut count) {
            Ok(_) => return,
            Err(_) => ready.clear_ready(),
        }
    }
}
