// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A guest that means harm: it says all that can be said over a control device, right
//! and wrong, as fast as the agent takes it. In a thread of its own.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use vmloop_abi::control::{ControlRegion, FakeGuest};
use vmloop_abi::shm;
use zerocopy::IntoBytes;

use crate::guest::advertisement;
use crate::qemu::Hardware;

/// How long it waits for the agent's echo before it begins again.
const AGAIN: Duration = Duration::from_millis(50);

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Messages of all kinds, good and malformed ones; addresses of others.
    Messages,
    /// Modules that begin, and begin again, without a HELLO, or go at once.
    Handshakes,
    /// Positions that cannot be: the agent replaces the device.
    Positions,
    /// One after the other, each for a second.
    All,
}

/// What it has done, and heard.
#[derive(Debug, Default)]
pub struct Account {
    /// messages that the ring had room for
    pub sent: AtomicU64,
    /// of those, such that mean nothing
    pub malformed: AtomicU64,
    /// times that it began
    pub began: AtomicU64,
    /// directories that it was sent
    pub directories: AtomicU64,
    /// refusals that it was sent
    pub refused: AtomicU64,
    hush: AtomicBool,
    stop: AtomicBool,
}

/// The guest, while it floods; ends with [`Flood::end`].
pub struct Flood {
    /// what it has done
    pub account: Arc<Account>,
    thread: JoinHandle<()>,
}

impl Flood {
    /// Begins, as guest `number`, once its control device is there. It claims the
    /// addresses `others`, and asks for channels to `peers` (identity, epoch).
    pub fn begin(
        number: u32,
        hardware: mpsc::UnboundedReceiver<Hardware>,
        attack: Attack,
        others: Vec<IpAddr>,
        peers: Vec<(u64, u64)>,
    ) -> Self {
        let account = Arc::<Account>::default();
        let attacker = Attacker {
            number,
            hardware,
            others,
            peers,
            account: account.clone(),
            random: 0x9e37_79b9_7f4a_7c15,
            incarnation: 0x1000,
            device: None,
        };
        Self { account, thread: thread::spawn(move || attacker.run(attack)) }
    }

    /// Says nothing more, and goes on to read.
    pub fn hush(&self) {
        self.account.hush.store(true, Ordering::Relaxed);
    }

    /// Ends.
    ///
    /// # Panics
    /// If its thread did.
    pub fn end(self) {
        self.account.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("an attacker that does not panic");
    }
}

struct Device {
    region: FakeGuest,
    agent: OwnedFd,
    _own: OwnedFd,
    begun: Option<Instant>,
    connected: bool,
}

struct Attacker {
    number: u32,
    hardware: mpsc::UnboundedReceiver<Hardware>,
    others: Vec<IpAddr>,
    peers: Vec<(u64, u64)>,
    account: Arc<Account>,
    random: u64,
    incarnation: u64,
    device: Option<Device>,
}

impl Attacker {
    fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % below.max(1)
    }

    fn run(mut self, attack: Attack) {
        let began = Instant::now();
        while !self.account.stop.load(Ordering::Relaxed) {
            while let Ok(hardware) = self.hardware.try_recv() {
                match hardware {
                    Hardware::Control { memory, agent, own } => {
                        let region = ControlRegion::fake_guest(&memory).expect("a mapping");
                        self.device = Some(Device {
                            region,
                            agent,
                            _own: own,
                            begun: None,
                            connected: false,
                        });
                    }
                    Hardware::NoControl => self.device = None,
                    Hardware::Channel(_) => {}
                }
            }
            if self.device.is_none() {
                // The agent replaces a control device every 5 s at most.
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            let parts = [Attack::Messages, Attack::Handshakes, Attack::Positions];
            let now = match attack {
                Attack::All => parts[began.elapsed().as_secs() as usize % parts.len()],
                one => one,
            };
            match now {
                Attack::Handshakes => self.handshake(),
                Attack::Positions => self.position(),
                _ => self.messages(),
            }
        }
    }

    /// Rings at the agent.
    fn ring(&self) {
        if let Some(device) = &self.device {
            // Fails only if the counter is full, and then it rings already.
            let _ = rustix::io::write(&device.agent, &1u64.to_ne_bytes());
        }
    }

    fn begin(&mut self) {
        self.incarnation += 1;
        let Some(device) = &mut self.device else { return };
        device.region.begin(self.incarnation);
        (device.begun, device.connected) = (Some(Instant::now()), false);
        self.account.began.fetch_add(1, Ordering::Relaxed);
        self.ring();
    }

    /// As many messages as there is room for.
    fn messages(&mut self) {
        if !self.is_connected() {
            return thread::sleep(Duration::from_micros(200));
        }
        let hush = self.account.hush.load(Ordering::Relaxed);
        if hush {
            thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..if hush { 0 } else { 64 } {
            let (kind, payload, malformed) = self.message();
            let Some(device) = &mut self.device else { return };
            if !device.region.send(kind, &payload) {
                // A CPU that does nothing else would not make the agent read faster.
                thread::sleep(Duration::from_micros(100));
                break;
            }
            self.account.sent.fetch_add(1, Ordering::Relaxed);
            self.account.malformed.fetch_add(u64::from(malformed), Ordering::Relaxed);
        }
        self.ring();
        self.read();
    }

    /// Whether the agent has followed it into this incarnation; begins another one if
    /// it does not.
    fn is_connected(&mut self) -> bool {
        let incarnation = self.incarnation;
        let Some(device) = &mut self.device else { return false };
        device.connected |= device.begun.is_some() && device.region.echo() == incarnation;
        let connected = device.connected;
        if !connected && device.begun.is_none_or(|begun| begun.elapsed() > AGAIN) {
            self.begin();
        }
        connected
    }

    fn read(&mut self) {
        let Some(device) = &mut self.device else { return };
        if !device.connected {
            return;
        }
        while let Some((kind, _)) = device.region.receive() {
            let counted = match kind {
                shm::VMLOOP_MSG_DIR_BEGIN => &self.account.directories,
                shm::VMLOOP_MSG_REFUSED => &self.account.refused,
                _ => continue,
            };
            counted.fetch_add(1, Ordering::Relaxed);
        }
        if device.region.is_awaited() {
            self.ring();
        }
    }

    /// A message: kind, payload, whether it means nothing.
    fn message(&mut self) -> (u16, Vec<u8>, bool) {
        let choice = self.random(9);
        let variant = self.random(2) as u64;
        match choice {
            // Directories without end: each time it says something else of itself.
            0 | 1 => {
                let features = shm::VMLOOP_F_LANES * variant;
                let hello =
                    shm::Hello { major: shm::VMLOOP_SHM_MAJOR, features, ..Default::default() };
                (shm::VMLOOP_MSG_HELLO, hello.as_bytes().to_vec(), false)
            }
            2 => {
                let at = self.random(self.others.len());
                let claimed: Vec<IpAddr> = self.others.iter().skip(at).take(8).copied().collect();
                (shm::VMLOOP_MSG_ADVERTISE, advertisement(self.number, &claimed), false)
            }
            3 | 4 => {
                let at = self.random(self.peers.len());
                let (peer, epoch) = self.peers.get(at).copied().unwrap_or((self.random, 1));
                let want = shm::Want { peer, epoch: epoch + variant, attempt: 1, reserved: 0 };
                (shm::VMLOOP_MSG_WANT, want.as_bytes().to_vec(), false)
            }
            5 => {
                let tag = self.random(16383) as u32 + 1;
                let state = self.random(4) as u32 + 1;
                let state = shm::State { tag, state };
                (shm::VMLOOP_MSG_STATE, state.as_bytes().to_vec(), false)
            }
            6 => {
                let tag = self.random(16383) as u32;
                let stats = shm::Stats { cookie: self.random as u32, tag, ..Default::default() };
                (shm::VMLOOP_MSG_STATS, stats.as_bytes().to_vec(), false)
            }
            7 => (6 + self.random(1000) as u16 * 60, vec![0xff; self.random(64)], true),
            _ => {
                let known = [shm::VMLOOP_MSG_HELLO, shm::VMLOOP_MSG_WANT, shm::VMLOOP_MSG_STATE];
                (known[self.random(known.len())], vec![0xee; self.random(7)], true)
            }
        }
    }

    /// Begins, and says no HELLO; sometimes it goes before it was heard.
    fn handshake(&mut self) {
        self.begin();
        if self.random(2) == 0
            && let Some(device) = &self.device
        {
            let state = device.region.side_field(std::mem::offset_of!(shm::Side, state));
            device.region.poke32(state, shm::VMLOOP_SIDE_CLOSED);
            self.ring();
        }
        thread::sleep(Duration::from_micros(200));
    }

    /// A position that cannot be, over a connection that is there: the agent does not look
    /// at positions of a guest that has begun without it.
    fn position(&mut self) {
        if !self.is_connected() {
            return thread::sleep(Duration::from_micros(200));
        }
        let value = self.random(u32::MAX as usize) as u32 | 1;
        if let Some(device) = &self.device {
            let lane = std::mem::offset_of!(shm::Side, lane);
            let head = device.region.side_field(lane + std::mem::offset_of!(shm::Lane, tx_head));
            device.region.poke32(head, value);
        }
        self.ring();
        thread::sleep(Duration::from_millis(1));
    }
}
