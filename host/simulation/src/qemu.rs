// SPDX-License-Identifier: GPL-2.0 OR MIT
//! QEMUs without machines: as much of QMP as the agent uses, and ivshmem devices
//! that hear what real ones hear. Channel devices keep nothing of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, ensure};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc};

use crate::host::{mac, socket, tap};

/// Name of the control device.
const CONTROL: &str = "vmloop-ctl";
/// What precedes the tag in the name of a channel's device.
const CHANNEL: &str = "vmloop-ch-";

/// What a guest finds in its machine.
#[derive(Debug)]
pub enum Hardware {
    /// A control device: its memory, what rings at the agent, what rings here.
    Control {
        /// the region
        memory: OwnedFd,
        /// the agent's doorbell
        agent: OwnedFd,
        /// the guest's doorbell
        own: OwnedFd,
    },
    /// The control device is gone.
    NoControl,
    /// A channel's device, by its tag.
    Channel(u32),
}

/// A QEMU.
pub struct Qemu {
    number: u32,
    /// devices and their chardevs
    devices: RefCell<BTreeMap<String, String>>,
    chardevs: RefCell<BTreeMap<String, Option<OwnedFd>>>,
    fds: RefCell<BTreeMap<String, OwnedFd>>,
    /// Devices are not given back.
    pub keeps: Cell<bool>,
    /// It stands still, and answers nothing.
    hangs: Cell<bool>,
    goes_on: Notify,
    guest: mpsc::UnboundedSender<Hardware>,
}

/// One message of the ivshmem server's protocol.
fn message(from: &OwnedFd) -> anyhow::Result<(i64, Option<OwnedFd>)> {
    let mut bytes = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    ensure!(got.bytes == 8, "half a message");
    let fd = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((i64::from_le_bytes(bytes), fd))
}

/// What a device with one doorbell hears: memory, the other side's doorbell, its own.
fn conversation(from: &OwnedFd) -> anyhow::Result<[OwnedFd; 3]> {
    ensure!(message(from)?.0 == 0, "another version");
    let (own, _) = message(from)?;
    let (other, other_bell) = message(from)?;
    let (minus, memory) = message(from)?;
    let (again, own_bell) = message(from)?;
    ensure!(minus == -1 && own == again && other == own ^ 1, "ids {own}, {other}, {again}");
    let all = memory.zip(other_bell).zip(own_bell).context("descriptors")?;
    Ok([all.0.0, all.0.1, all.1])
}

fn text(arguments: &Value, key: &str) -> String {
    arguments[key].as_str().unwrap_or_default().to_owned()
}

fn generic(why: &str) -> Value {
    json!({"error": {"class": "GenericError", "desc": why}})
}

impl Qemu {
    /// Listens on its socket in `directory`; what is plugged goes to `guest`. Must run
    /// in a `LocalSet`.
    ///
    /// # Errors
    /// Those of bind(2).
    pub fn start(
        directory: &Path,
        number: u32,
        guest: mpsc::UnboundedSender<Hardware>,
    ) -> io::Result<Rc<Self>> {
        let listener = UnixListener::bind(socket(directory, number))?;
        let qemu = Rc::new(Self {
            number,
            devices: RefCell::default(),
            chardevs: RefCell::default(),
            fds: RefCell::default(),
            keeps: Cell::new(false),
            hangs: Cell::new(false),
            goes_on: Notify::new(),
            guest,
        });
        let serving = qemu.clone();
        tokio::task::spawn_local(async move {
            // One client at a time; it ends when the agent hangs up.
            while let Ok((stream, _)) = listener.accept().await {
                if let Err(error) = serving.serve(&stream).await {
                    tracing::debug!(number, %error, "QMP");
                }
            }
        });
        Ok(qemu)
    }

    /// Has it stand still, or go on.
    pub fn hang(&self, hangs: bool) {
        self.hangs.set(hangs);
        self.goes_on.notify_waiters();
    }

    async fn say(stream: &UnixStream, what: &Value) -> io::Result<()> {
        let line = format!("{what}\r\n");
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            stream.writable().await?;
            match stream.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn serve(&self, stream: &UnixStream) -> anyhow::Result<()> {
        Self::say(stream, &json!({"QMP": {"version": {}, "capabilities": []}})).await?;
        let (mut buffer, mut fds) = (Vec::new(), Vec::new());
        loop {
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let request: Value = serde_json::from_slice(&line)?;
                while self.hangs.get() {
                    let goes_on = self.goes_on.notified();
                    if self.hangs.get() {
                        goes_on.await;
                    }
                }
                let (mut reply, event) = self.execute(&request, &mut fds)?;
                reply["id"] = request["id"].clone();
                Self::say(stream, &reply).await?;
                if let Some(event) = event {
                    Self::say(stream, &event).await?;
                }
            }
            if self.read(stream, &mut buffer, &mut fds).await? == 0 {
                return Ok(());
            }
        }
    }

    async fn read(
        &self,
        stream: &UnixStream,
        buffer: &mut Vec<u8>,
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        let mut bytes = [0; 4096];
        let got = stream
            .async_io(Interest::READABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let mut slices = [IoSliceMut::new(&mut bytes)];
                let flags = RecvFlags::CMSG_CLOEXEC;
                let got = recvmsg(stream.as_fd(), &mut slices, &mut control, flags)?;
                for part in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(more) = part {
                        fds.extend(more);
                    }
                }
                Ok(got.bytes)
            })
            .await?;
        buffer.extend_from_slice(&bytes[..got]);
        Ok(got)
    }

    /// Answers a command; also an event that follows.
    fn execute(
        &self,
        request: &Value,
        fds: &mut Vec<OwnedFd>,
    ) -> anyhow::Result<(Value, Option<Value>)> {
        let arguments = &request["arguments"];
        let mut event = None;
        let number = self.number;
        let value = match request["execute"].as_str().unwrap_or_default() {
            "qmp_capabilities" | "query-migrate" => json!({}),
            "query-version" => json!({"qemu": {"major": 7, "minor": 2, "micro": 0}}),
            "qom-list-types" => json!([{"name": "ivshmem-doorbell"}]),
            "query-status" => json!({"status": "running"}),
            "query-pci" => {
                json!([{"bus": 0, "devices": [{"qdev_id": "n0", "regions": [{"bar": 1, "address": 0xfebc_0000_u32}]}]}])
            }
            "query-uuid" => json!({"UUID": format!("00000000-0000-4000-8000-{number:012}")}),
            "query-name" => json!({"name": format!("g{number}")}),
            "query-kvm" => json!({"enabled": true, "present": true}),
            "human-monitor-command" => json!(format!(
                "n0: index=0,type=nic\r\n \\ hn0: index=0,type=tap,ifname={}\r\n",
                tap(number)
            )),
            "qom-list" => self.list(&text(arguments, "path")),
            "qom-get" => match self.property(arguments) {
                Some(value) => value,
                None => return Ok((generic("Property not found"), None)),
            },
            "query-fdsets" => json!([]),
            "query-chardev" => {
                let all = self.chardevs.borrow();
                json!(all.keys().map(|id| json!({"label": id})).collect::<Vec<_>>())
            }
            "getfd" => {
                let fd = fds.pop().context("getfd without a descriptor")?;
                self.fds.borrow_mut().insert(text(arguments, "fdname"), fd);
                json!({})
            }
            "closefd" => {
                self.fds.borrow_mut().remove(&text(arguments, "fdname"));
                json!({})
            }
            "chardev-add" => {
                let name = &arguments["backend"]["data"]["addr"]["data"]["str"];
                let fd = self.fds.borrow_mut().remove(name.as_str().unwrap_or_default());
                ensure!(fd.is_some(), "chardev-add without its descriptor");
                self.chardevs.borrow_mut().insert(text(arguments, "id"), fd);
                json!({})
            }
            "chardev-remove" => {
                self.chardevs.borrow_mut().remove(&text(arguments, "id"));
                json!({})
            }
            "device_add" => {
                self.plug(&text(arguments, "id"), &text(arguments, "chardev"))?;
                json!({})
            }
            "device_del" => {
                let id = text(arguments, "id");
                if !self.devices.borrow().contains_key(&id) {
                    let error = json!({"class": "DeviceNotFound", "desc": "Device not found"});
                    return Ok((json!({"error": error}), None));
                }
                if !self.keeps.get() {
                    self.devices.borrow_mut().remove(&id);
                    if id == CONTROL {
                        self.tell(Hardware::NoControl);
                    }
                    event = Some(json!({"event": "DEVICE_DELETED", "data": {"device": id}}));
                }
                json!({})
            }
            other => anyhow::bail!("the agent said {other}"),
        };
        Ok((json!({"return": value}), event))
    }

    fn list(&self, path: &str) -> Value {
        match path {
            "/machine" => json!([{"name": "x", "type": "child<i440FX-pcihost>"}]),
            "/machine/peripheral" => {
                let devices = self.devices.borrow();
                let ours = devices.keys().map(|id| (id.as_str(), "child<ivshmem-doorbell>"));
                let all = [("n0", "child<virtio-net-pci>")].into_iter().chain(ours);
                json!(
                    all.map(|(name, kind)| json!({"name": name, "type": kind})).collect::<Vec<_>>()
                )
            }
            _ => json!([]),
        }
    }

    fn property(&self, arguments: &Value) -> Option<Value> {
        match (arguments["path"].as_str()?, arguments["property"].as_str()?) {
            ("/machine", "type") => Some(json!("pc-i440fx-7.2-machine")),
            ("/machine/peripheral/n0", "mac") => {
                let mac = mac(self.number).map(|byte| format!("{byte:02x}")).join(":");
                Some(json!(mac))
            }
            ("/machine/peripheral/n0", "netdev") => Some(json!("hn0")),
            (path, "chardev") => {
                let id = path.strip_prefix("/machine/peripheral/")?;
                Some(json!(self.devices.borrow().get(id)?))
            }
            _ => None,
        }
    }

    fn plug(&self, id: &str, chardev: &str) -> anyhow::Result<()> {
        let mut chardevs = self.chardevs.borrow_mut();
        let socket = chardevs.get_mut(chardev).and_then(Option::take).context("no chardev")?;
        let [memory, agent, own] = conversation(&socket)?;
        self.devices.borrow_mut().insert(id.to_owned(), chardev.to_owned());
        if id == CONTROL {
            self.tell(Hardware::Control { memory, agent, own });
        } else if let Some(tag) = id.strip_prefix(CHANNEL) {
            self.tell(Hardware::Channel(tag.parse()?));
        }
        Ok(())
    }

    fn tell(&self, hardware: Hardware) {
        // Fails only if the guest is no more.
        let _ = self.guest.send(hardware);
    }
}
