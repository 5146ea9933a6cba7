// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A QEMU without a machine: enough of QMP for the agent, an ivshmem device
//! that hears what the real one hears, and a guest behind it.

pub mod agent;
mod plain;

use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};
use vmloop_abi::control::{ControlRegion, FakeGuest};
use vmloop_abi::shm;
use zerocopy::{FromBytes, IntoBytes};

/// What an ivshmem device was told.
pub struct Device {
    pub chardev: String,
    pub id: i64,
    pub memory: OwnedFd,
    /// what it was plugged with
    pub vectors: u64,
    /// by server id
    pub doorbells: BTreeMap<i64, Vec<OwnedFd>>,
    _socket: OwnedFd,
}

#[derive(Default)]
pub struct State {
    pub devices: BTreeMap<String, Device>,
    pub chardevs: BTreeMap<String, Option<OwnedFd>>,
    pub fail_device_add: Option<String>,
    /// Its firmware has not given its devices their addresses.
    pub booting: bool,
    /// A device of the host's own, by its id.
    pub vfio: Option<&'static str>,
    /// Devices that the guest does not give back.
    pub keeps: Option<String>,
    /// What query-status and query-migrate say; running and none if empty.
    pub run: String,
    pub migration: String,
    /// Where it was told to migrate to.
    pub uri: Option<String>,
    /// Why it refuses to.
    pub refuse_migrate: Option<String>,
    /// It begins to migrate when this command comes.
    pub migrate_at: Option<String>,
    /// It stands still at this command, or before it greets (`greeting`), until
    /// this is None.
    pub hangs_at: Option<&'static str>,
    /// It answers nothing before so many commands have come, then nothing before so
    /// many more, and so on; only what it says of migrations at once.
    pub together: VecDeque<usize>,
    /// Commands that came, in order.
    pub heard: Vec<String>,
    /// Number of devices ever plugged, by id.
    pub plugged: BTreeMap<String, u32>,
    /// Devices without doorbells, and what they are made of.
    pub plain: plain::Plain,
    fds: BTreeMap<String, OwnedFd>,
    stream: Option<UnixStream>,
}

pub struct Qemu {
    pub path: PathBuf,
    pub state: Arc<Mutex<State>>,
}

/// Reads a message of the ivshmem server's protocol.
fn hear(from: &OwnedFd) -> Option<(i64, Option<OwnedFd>)> {
    let mut bytes = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got =
        recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
            .ok()?;
    let fd = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    (got.bytes == 8).then_some((i64::from_le_bytes(bytes), fd))
}

impl Device {
    fn new(chardev: &str, socket: OwnedFd) -> Option<Self> {
        assert_eq!(hear(&socket)?.0, 0, "version");
        let (id, _) = hear(&socket)?;
        let mut memory = None;
        let mut doorbells: BTreeMap<_, Vec<_>> = BTreeMap::new();
        while let Some((id, Some(fd))) = hear(&socket) {
            match id {
                -1 => memory = Some(fd),
                id => doorbells.entry(id).or_default().push(fd),
            }
        }
        assert_eq!(doorbells.len(), 2);
        let (chardev, memory) = (chardev.into(), memory?);
        Some(Self { chardev, id, memory, vectors: 0, doorbells, _socket: socket })
    }

    pub fn ring(&self) {
        let other = self.doorbells.get(&(self.id ^ 1)).expect("the other side's doorbells");
        rustix::io::write(&other[0], &1u64.to_ne_bytes()).expect("a doorbell rings");
    }
}

impl Qemu {
    /// Starts one; `number` makes UUID, addresses and interface.
    pub fn start(directory: &Path, number: u8) -> Self {
        let path = directory.join(format!("g{number}.sock"));
        // From a life before.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("a socket");
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let clone = stream.try_clone().expect("a stream");
                let mut state = shared.lock().expect("no panic");
                if state.stream.as_ref().is_some_and(|old| old.peer_addr().is_err()) {
                    return;
                }
                state.stream = Some(clone);
                drop(state);
                // Ends when the agent hangs up.
                let _ = serve(stream, &shared, number);
            }
        });
        Self { path, state }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    /// Ends it, as far as the agent can see.
    #[allow(dead_code)]
    pub fn kill(&self) {
        // Nobody can connect any more.
        let _ = std::fs::remove_file(&self.path);
        if let Some(stream) = self.state().stream.take() {
            stream.shutdown(std::net::Shutdown::Both).expect("an open stream");
        }
    }

    /// Somebody unplugs a device past the agent.
    #[allow(dead_code)]
    pub fn lose(&self, device: &str) {
        let mut state = self.state();
        assert!(state.devices.remove(device).is_some(), "{device} is plugged");
        let event = json!({"event": "DEVICE_DELETED", "data": {"device": device, "path": ""}});
        let stream = state.stream.as_mut().expect("an agent");
        stream.write_all(format!("{event}\r\n").as_bytes()).expect("an agent that listens");
    }

    /// It says something unasked, if somebody listens.
    #[allow(dead_code)]
    pub fn event(&self, name: &str, data: &Value) {
        let mut state = self.state();
        if let Some(stream) = state.stream.as_mut() {
            let event = json!({"event": name, "data": data});
            // The agent may have been killed.
            let _ = stream.write_all(format!("{event}\r\n").as_bytes());
        }
    }

    /// Its migration goes on to this state, and the machine to that.
    #[allow(dead_code)]
    pub fn migration(&self, status: &str, run: &str) {
        {
            let mut state = self.state();
            status.clone_into(&mut state.migration);
            run.clone_into(&mut state.run);
        }
        self.event("MIGRATION", &json!({"status": status}));
    }

    /// Somebody migrates it past the agent; whether QEMU does.
    #[allow(dead_code)]
    pub fn migrate(&self) -> bool {
        // A device of this kind blocks that.
        if !self.devices().is_empty() {
            return false;
        }
        self.migration("active", "running");
        true
    }

    /// The version of what is in a channel's memory.
    #[allow(dead_code)]
    pub fn major(&self, device: &str) -> u16 {
        let mut header = shm::Header::default();
        let memory = &self.state().devices[device].memory;
        let read = rustix::io::pread(memory, header.as_mut_bytes(), 0).expect("its memory");
        assert_eq!(read, size_of::<shm::Header>());
        header.major
    }

    pub fn devices(&self) -> Vec<String> {
        self.state().devices.keys().cloned().collect()
    }

    pub fn has(&self, device: &str) -> bool {
        self.state().devices.contains_key(device)
    }
}

/// Stands still, if it is to.
fn hang(state: &Mutex<State>, at: &str) {
    while state.lock().expect("no panic").hangs_at == Some(at) {
        thread::sleep(Duration::from_millis(2));
    }
}

fn serve(mut stream: UnixStream, state: &Mutex<State>, number: u8) -> std::io::Result<()> {
    hang(state, "greeting");
    // What the real one may say before it greets: news, and the answer to
    // somebody who is gone.
    for first in [
        json!({"event": "RESUME", "timestamp": {"seconds": 1, "microseconds": 2}}),
        json!({"return": {}, "id": 1}),
        json!({"QMP": {"version": {}, "capabilities": []}}),
    ] {
        stream.write_all(format!("{first}\r\n").as_bytes())?;
    }
    let mut buffer = Vec::new();
    let mut fds = Vec::new();
    let mut held = Vec::new();
    loop {
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let request: Value = serde_json::from_slice(&line)?;
            hang(state, request["execute"].as_str().unwrap_or_default());
            let (answer, event) = execute(&request, &mut fds, state, number);
            let mut reply = match answer {
                Ok(value) => json!({"return": value}),
                Err((class, desc)) => json!({"error": {"class": class, "desc": desc}}),
            };
            reply["id"] = request["id"].clone();
            let said: String =
                [Some(reply), event].iter().flatten().map(|one| format!("{one}\r\n")).collect();
            let mut state = state.lock().expect("no panic");
            let now =
                ["query-migrate", "query-status"].iter().any(|one| request["execute"] == *one);
            match state.together.front().copied() {
                Some(count) if !now => {
                    held.push(said);
                    if held.len() == count {
                        state.together.pop_front();
                        stream.write_all(std::mem::take(&mut held).concat().as_bytes())?;
                    }
                }
                _ => stream.write_all(said.as_bytes())?,
            }
        }
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(
            &stream,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = part {
                fds.extend(more);
            }
        }
        if got.bytes == 0 {
            return Ok(());
        }
        buffer.extend_from_slice(&bytes[..got.bytes]);
    }
}

type Answer = Result<Value, (&'static str, String)>;

fn execute(
    request: &Value,
    fds: &mut Vec<OwnedFd>,
    state: &Mutex<State>,
    number: u8,
) -> (Answer, Option<Value>) {
    let arguments = &request["arguments"];
    let text = |key: &str| arguments[key].as_str().unwrap_or_default().to_owned();
    let generic = |desc: &str| Err(("GenericError", desc.to_owned()));
    let mut state = state.lock().expect("no panic");
    let mut event = None;
    state.heard.push(request["execute"].as_str().unwrap_or_default().to_owned());
    if state.migrate_at.is_some() && state.migrate_at.as_deref() == request["execute"].as_str() {
        state.migrate_at = None;
        state.migration = "active".into();
    }
    let migrating = matches!(state.migration.as_str(), "setup" | "active" | "cancelling");
    let answer = match request["execute"].as_str().unwrap_or_default() {
        "qmp_capabilities" => Ok(json!({})),
        "query-version" => Ok(json!({"qemu": {"major": 7, "minor": 2, "micro": 0}})),
        "qom-list-types" => Ok(json!([{"name": "ivshmem-doorbell"}])),
        "query-status" => {
            let run = if state.run.is_empty() { "running" } else { state.run.as_str() };
            Ok(json!({"status": run}))
        }
        "query-migrate" if state.migration.is_empty() => Ok(json!({})),
        "query-migrate" => Ok(json!({"status": state.migration, "total-time": 700,
            "downtime": 30, "error-desc": "Connection reset by peer"})),
        "migrate-set-capabilities" if migrating => {
            generic("There's a migration process in progress")
        }
        "migrate-set-capabilities" => Ok(json!({})),
        "migrate" => {
            assert!(state.devices.is_empty(), "a device blocks the migration");
            match state.refuse_migrate.clone() {
                Some(why) => generic(&why),
                None => {
                    state.uri = Some(text("uri"));
                    state.migration = "active".into();
                    event = Some(json!({"event": "MIGRATION", "data": {"status": "active"}}));
                    Ok(json!({}))
                }
            }
        }
        "migrate_cancel" => {
            state.migration = "cancelled".into();
            event = Some(json!({"event": "MIGRATION", "data": {"status": "cancelled"}}));
            Ok(json!({}))
        }
        "device_add" | "device_del" if migrating => generic("not allowed while migrating"),
        "query-pci" => {
            let address = if state.booting { -1_i64 } else { 0xfebc_0000 };
            let nic = json!({"qdev_id": "n0", "regions": [{"bar": 1, "address": address}]});
            let devices: Vec<Value> = [nic].into_iter().chain(state.plain.pci()).collect();
            Ok(json!([{"bus": 0, "devices": devices}]))
        }
        "query-uuid" => {
            Ok(json!({"UUID": format!("00000000-0000-0000-0000-0000000000{number:02}")}))
        }
        "query-name" => Ok(json!({"name": format!("g{number}")})),
        "query-kvm" => Ok(json!({"enabled": true, "present": true})),
        "human-monitor-command" => Ok(json!(format!(
            "n0: index=0,type=nic\r\n \\ hn0: index=0,type=tap,ifname=tap{number}\r\n"
        ))),
        "qom-list" => Ok(match text("path").as_str() {
            "/machine" => json!([{"name": "x", "type": "child<i440FX-pcihost>"}]),
            "/machine/peripheral" => {
                let mut list = vec![json!({"name": "n0", "type": "child<virtio-net-pci>"})];
                list.extend(state.vfio.map(|id| json!({"name": id, "type": "child<vfio-pci>"})));
                list.extend(
                    state
                        .devices
                        .keys()
                        .map(|id| json!({"name": id, "type": "child<ivshmem-doorbell>"})),
                );
                list.extend(
                    state
                        .plain
                        .devices()
                        .map(|id| json!({"name": id, "type": "child<ivshmem-plain>"})),
                );
                json!(list)
            }
            "/objects" => json!(
                state
                    .plain
                    .memories()
                    .map(|id| json!({"name": id, "type": "child<memory-backend-file>"}))
                    .collect::<Vec<_>>()
            ),
            _ => json!([]),
        }),
        "qom-get" => match (text("path").as_str(), text("property").as_str()) {
            ("/machine", "type") => Ok(json!("pc-i440fx-7.2-machine")),
            ("/machine/peripheral/n0", "mac") => Ok(json!(format!("52:54:00:00:00:{number:02x}"))),
            ("/machine/peripheral/n0", "netdev") => Ok(json!("hn0")),
            (path, "chardev") => {
                let id = path.trim_start_matches("/machine/peripheral/");
                Ok(json!(state.devices.get(id).map(|device| device.chardev.clone())))
            }
            _ => generic("Property not found"),
        },
        "query-chardev" => {
            Ok(json!(state.chardevs.keys().map(|id| json!({"label": id})).collect::<Vec<_>>()))
        }
        "getfd" => {
            let fd = fds.pop().expect("getfd comes with a descriptor");
            state.fds.insert(text("fdname"), fd);
            Ok(json!({}))
        }
        "closefd" => {
            state.fds.remove(&text("fdname"));
            Ok(json!({}))
        }
        "chardev-add" => {
            let name = arguments["backend"]["data"]["addr"]["data"]["str"].as_str();
            let fd = state.fds.remove(name.unwrap_or_default());
            assert!(fd.is_some(), "chardev-add without its descriptor");
            assert!(state.chardevs.insert(text("id"), fd).is_none(), "the id is taken");
            Ok(json!({}))
        }
        "chardev-remove" => {
            let id = text("id");
            if state.devices.values().any(|device| device.chardev == id) {
                generic("Chardev is busy")
            } else if state.chardevs.remove(&id).is_none() {
                generic("Chardev not found")
            } else {
                Ok(json!({}))
            }
        }
        "device_add" => {
            let (id, chardev) = (text("id"), text("chardev"));
            assert!(!state.booting, "firmware that sizes this device ends the machine");
            let fail = state.fail_device_add.as_ref().is_some_and(|prefix| id.starts_with(prefix));
            if !fail && text("driver") == "ivshmem-plain" {
                state.plain.plug(&id, &text("memdev"));
                *state.plugged.entry(id).or_default() += 1;
                Ok(json!({}))
            } else if fail {
                generic(
                    "PCI: no slot/function available for ivshmem-doorbell, all in use or reserved",
                )
            } else {
                let socket = state.chardevs.get_mut(&chardev).and_then(Option::take);
                let mut device =
                    Device::new(&chardev, socket.expect("a chardev")).expect("a server");
                // With more than that QEMU refuses some, and with fewer it ends.
                device.vectors = arguments["vectors"].as_u64().expect("vectors");
                let counts = device.doorbells.values().map(|all| all.len() as u64);
                assert!(counts.eq([device.vectors; 2]), "doorbells of {id}");
                assert!(state.devices.insert(id.clone(), device).is_none(), "the id is taken");
                *state.plugged.entry(id).or_default() += 1;
                Ok(json!({}))
            }
        }
        "device_del" => {
            let id = text("id");
            if state.keeps.as_ref().is_some_and(|prefix| id.starts_with(prefix)) {
                Ok(json!({}))
            } else if state.devices.remove(&id).is_some() || state.plain.unplug(&id) {
                event =
                    Some(json!({"event": "DEVICE_DELETED", "data": {"device": id, "path": ""}}));
                Ok(json!({}))
            } else {
                Err(("DeviceNotFound", format!("Device '{id}' not found")))
            }
        }
        "add-fd" => {
            let fd = fds.pop().expect("add-fd comes with a descriptor");
            Ok(state.plain.add_fd(fd, &text("opaque")))
        }
        "remove-fd" => state.plain.remove_fd(&arguments["fdset-id"]),
        "query-fdsets" => Ok(state.plain.sets()),
        "object-add" => state.plain.object_add(arguments),
        "object-del" => state.plain.object_del(&text("id")),
        other => panic!("the agent said {other}"),
    };
    (answer, event)
}

/// The modules of a guest.
pub struct Modules<'a> {
    qemu: &'a Qemu,
    guest: FakeGuest,
    pub directory: Vec<shm::Peer>,
    pub generation: u64,
    /// Types of the messages of all directories.
    pub told: Vec<u16>,
    /// The agent's number of the directory.
    number: u64,
    pub closes: Vec<u32>,
    pub refused: Vec<u32>,
    /// Of the last refusal.
    pub retry_ms: u32,
    pub welcomes: u32,
    next: Vec<shm::Peer>,
    /// Answer CLOSE with STATE CLOSED.
    pub polite: bool,
    /// What it was told of windows.
    pub windows: Vec<shm::WindowAt>,
}

impl<'a> Modules<'a> {
    /// Loads them: begins on the control device that is plugged, says HELLO,
    /// and one address.
    pub fn load(qemu: &'a Qemu, incarnation: u64, address: [u8; 4]) -> Self {
        let mut modules =
            Self::begin(qemu, incarnation, shm::VMLOOP_F_LANES | shm::VMLOOP_F_CHANGES);
        modules.advertise(&[address.into()]);
        modules
    }

    /// Loads them, with these features; says no address.
    pub fn begin(qemu: &'a Qemu, incarnation: u64, features: u64) -> Self {
        wait("a control device", || qemu.has("vmloop-ctl"));
        let guest = {
            let state = qemu.state();
            let device = &state.devices["vmloop-ctl"];
            assert_eq!(device.id, 1);
            let mut guest = ControlRegion::fake_guest(&device.memory).expect("its memory");
            guest.begin(incarnation);
            device.ring();
            guest
        };
        wait("the agent's echo", || guest.echo() == incarnation);
        let mut modules = Self {
            qemu,
            guest,
            directory: Vec::new(),
            generation: 0,
            told: Vec::new(),
            number: 0,
            closes: Vec::new(),
            refused: Vec::new(),
            retry_ms: 0,
            welcomes: 0,
            next: Vec::new(),
            polite: true,
            windows: Vec::new(),
        };
        modules.hello(features);
        modules
    }

    /// Says HELLO.
    pub fn hello(&mut self, features: u64) {
        self.hello_of(features, 0);
    }

    /// The same, of a guest with so many CPUs.
    pub fn hello_of(&mut self, features: u64, cpus: u32) {
        let hello = shm::Hello { major: 1, cpus, features, ..Default::default() };
        self.send(shm::VMLOOP_MSG_HELLO, hello.as_bytes());
    }

    /// Says all of its addresses.
    pub fn advertise(&mut self, addresses: &[IpAddr]) {
        let mac = self.mac();
        let mut message = [addresses.len() as u32, 0].as_bytes().to_vec();
        for address in addresses {
            let mut ip = [0; 16];
            let (family, prefix) = match address {
                IpAddr::V4(four) => {
                    ip[..4].copy_from_slice(&four.octets());
                    (4, 24)
                }
                IpAddr::V6(six) => {
                    ip = six.octets();
                    (6, 64)
                }
            };
            message.extend_from_slice(shm::Address { family, prefix, mac, ip }.as_bytes());
        }
        self.send(shm::VMLOOP_MSG_ADVERTISE, &message);
    }

    fn mac(&self) -> [u8; 6] {
        let name = self.qemu.path.file_stem().expect("a name").to_string_lossy().into_owned();
        [0x52, 0x54, 0, 0, 0, name.trim_start_matches('g').parse().expect("a number")]
    }

    pub fn send(&mut self, kind: u16, payload: &[u8]) {
        assert!(self.guest.send(kind, payload));
        self.ring();
    }

    /// Rings, unless the agent took the device away meanwhile.
    pub fn ring(&self) {
        if let Some(device) = self.qemu.state().devices.get("vmloop-ctl") {
            device.ring();
        }
    }

    pub fn state(&mut self, tag: u32, state: u32) {
        self.send(shm::VMLOOP_MSG_STATE, shm::State { tag, state }.as_bytes());
    }

    pub fn want(&mut self, peer: &shm::Peer) {
        let want = shm::Want { peer: peer.id, epoch: peer.epoch, attempt: 1, reserved: 0 };
        self.send(shm::VMLOOP_MSG_WANT, want.as_bytes());
    }

    /// Writes nonsense where the agent looks.
    #[allow(dead_code)]
    pub fn misbehave(&mut self) {
        let lane = std::mem::offset_of!(shm::Side, lane);
        let head = lane + std::mem::offset_of!(shm::Lane, tx_head);
        self.guest.poke32(self.guest.side_field(head), 0x7fff_fff3);
        // An earlier doorbell may have shown it to the agent already.
        self.ring();
    }

    /// Hears what the agent said meanwhile.
    pub fn hear(&mut self) {
        while let Some((kind, payload)) = self.guest.receive() {
            if (shm::VMLOOP_MSG_DIR_BEGIN..=shm::VMLOOP_MSG_DIR_END).contains(&kind)
                || kind >= shm::VMLOOP_MSG_DIR_CHANGE
            {
                self.told.push(kind);
            }
            match kind {
                shm::VMLOOP_MSG_WELCOME => self.welcomes += 1,
                shm::VMLOOP_MSG_DIR_BEGIN => self.next.clear(),
                shm::VMLOOP_MSG_DIR_CHANGE => {
                    let change = shm::DirChange::read_from_bytes(&payload).expect("a change");
                    assert_eq!(change.before, self.number, "what this guest has");
                    self.next.clone_from(&self.directory);
                }
                shm::VMLOOP_MSG_DIR_GONE => {
                    let gone = shm::DirGone::read_from_bytes(&payload).expect("one that is gone");
                    let before = self.next.len();
                    self.next.retain(|one| {
                        (one.id, one.local_mac, one.mac) != (gone.id, gone.local_mac, gone.mac)
                    });
                    assert_eq!(self.next.len() + 1, before, "one that it knows");
                }
                shm::VMLOOP_MSG_DIR_PEER => {
                    // Without a gateway it ends before that.
                    let mut payload = payload;
                    payload.resize(size_of::<shm::Peer>(), 0);
                    let peer = shm::Peer::read_from_bytes(&payload).expect("a peer");
                    self.next.retain(|one| {
                        (one.id, one.local_mac, one.mac) != (peer.id, peer.local_mac, peer.mac)
                    });
                    self.next.push(peer);
                }
                shm::VMLOOP_MSG_DIR_END => {
                    self.directory = std::mem::take(&mut self.next);
                    self.number = shm::Dir::read_from_bytes(&payload).expect("an end").generation;
                    self.generation += 1;
                }
                shm::VMLOOP_MSG_CLOSE => {
                    let close = shm::Close::read_from_bytes(&payload).expect("a close");
                    self.closes.push(close.reason);
                    if self.polite {
                        self.state(close.tag, shm::VMLOOP_STATE_CLOSED);
                    }
                }
                shm::VMLOOP_MSG_REFUSED => {
                    let refused = shm::Refused::read_from_bytes(&payload).expect("a refusal");
                    self.refused.push(refused.reason);
                    self.retry_ms = refused.retry_ms;
                }
                shm::VMLOOP_MSG_STATS_GET => {
                    let get = shm::StatsGet::read_from_bytes(&payload).expect("a request");
                    for peer in self.directory.clone() {
                        let stats = shm::Stats {
                            cookie: get.cookie,
                            tag: peer.tag,
                            tx_bytes: 42,
                            ..Default::default()
                        };
                        self.send(shm::VMLOOP_MSG_STATS, stats.as_bytes());
                    }
                    let last = shm::Stats { cookie: get.cookie, ..Default::default() };
                    self.send(shm::VMLOOP_MSG_STATS, last.as_bytes());
                }
                shm::VMLOOP_MSG_WINDOW_AT => {
                    self.windows.push(shm::WindowAt::read_from_bytes(&payload).expect("a window"));
                }
                other => panic!("the agent said {other}"),
            }
        }
        if self.guest.is_awaited() {
            self.ring();
        }
    }
}

/// Waits for something that must happen soon.
#[track_caller]
pub fn wait(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !happened() {
        assert!(Instant::now() < deadline, "no {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Reads up to the end of a line, without more.
#[allow(dead_code)]
pub fn line(stream: &mut UnixStream) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).is_ok_and(|n| n == 1) && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8_lossy(&line).into_owned()
}
