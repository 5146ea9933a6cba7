// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a running QEMU tells about itself: who it is, where devices can be
//! plugged, which network interfaces it has, and what an earlier agent left.
//!
//! Nothing here is taken from the guest: addresses come from how QEMU was
//! configured, not from what the guest's driver set later.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use vmloop_qmp::{self as qmp, Qmp};

use crate::hypervisor::{Found, Machine, Nic};

/// Prefix of the ids of everything that the agent makes in a QEMU.
pub const PREFIX: &str = "vmloop-";
/// Id of a guest's control device.
pub const CONTROL: &str = "vmloop-ctl";

/// What stands in the way of attaching to a machine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// QMP failed.
    #[error(transparent)]
    Qmp(#[from] qmp::Error),
    /// This QEMU cannot make the device.
    #[error("this QEMU ({0}) has no ivshmem-doorbell device")]
    NoIvshmem(String),
    /// Devices cannot be plugged into this kind of machine.
    #[error("machines of type {0} are not supported")]
    Machine(String),
    /// The machine lives on two hosts at once.
    #[error("the machine is replicated ({0})")]
    Replicated(String),
    /// Its process cannot be looked at.
    #[error("process {0} of this QEMU: {1}")]
    Process(u32, io::Error),
}

impl Error {
    /// What the operator can do about it; may be empty.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Qmp(error) => error.hint(),
            Self::NoIvshmem(_) => {
                "use a QEMU that was built with CONFIG_IVSHMEM_DEVICE, as distributions do"
            }
            Self::Machine(_) => "use -machine pc or -machine q35",
            Self::Replicated(_) => "its memory cannot be shared; end COLO first",
            Self::Process(..) => {
                "vmloopd must run on the same host, as root, outside of any PID namespace"
            }
        }
    }
}

/// How devices are plugged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// i440FX: any slot of pci.0
    Pc,
    /// Q35: an empty root port
    Q35,
}

/// What a QEMU tells about itself.
#[derive(Clone, Debug)]
pub struct Discovered {
    /// what any hypervisor would tell
    pub machine: Machine,
    /// how devices are plugged
    pub kind: Kind,
    /// whether it runs under KVM
    pub kvm: bool,
    /// whether it is on its way
    pub migration: Migration,
}

/// Whether a machine is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moving {
    /// It is here, and stays.
    #[default]
    No,
    /// A migration, or a save, is under way: no device can be plugged or
    /// unplugged.
    Out,
    /// It went on elsewhere, or was saved: what is here stands still.
    Left,
    /// It has not arrived yet.
    In,
}

/// What a QEMU says about a migration; of an old one, while there is no other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migration {
    /// whether it is under way
    pub moving: Moving,
    /// whether the machine runs
    pub running: bool,
    /// QEMU's word for the migration; empty if there never was one
    pub status: String,
    /// QEMU's text for why it failed; may be empty
    pub error: String,
    /// how long it took, once it is over
    pub total_ms: u64,
    /// for how long the machine stood still, once it is over
    pub downtime_ms: u64,
}

impl Migration {
    fn parse(run: &Value, migrate: &Value) -> Self {
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let (run, status) = (text(run, "status"), text(migrate, "status"));
        let moving = match (run.as_str(), status.as_str()) {
            ("inmigrate", _) => Moving::In,
            // A new state of a newer QEMU is one in which it is under way.
            (_, status)
                if !matches!(status, "" | "none" | "cancelled" | "failed" | "completed") =>
            {
                Moving::Out
            }
            ("postmigrate" | "finish-migrate", _) => Moving::Left,
            _ => Moving::No,
        };
        Self {
            moving,
            running: run == "running",
            status,
            error: text(migrate, "error-desc"),
            total_ms: migrate["total-time"].as_u64().unwrap_or(0),
            downtime_ms: migrate["downtime"].as_u64().unwrap_or(0),
        }
    }
}

/// Asks whether a machine is on its way.
///
/// # Errors
/// Those of [`Qmp::execute`].
pub async fn migration(qmp: &Qmp) -> Result<Migration, qmp::Error> {
    // In this order: what has just ended is not taken for what still runs.
    let migrate = qmp.execute("query-migrate", json!({})).await?;
    let run = qmp.execute("query-status", json!({})).await?;
    Ok(Migration::parse(&run, &migrate))
}

/// Identity of a guest: eight bytes of a hash of what makes it unique.
fn identity(unique: &str) -> u64 {
    let hash = Sha256::digest(unique.as_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(bytes).max(1)
}

/// Start time of a process in clock ticks since boot.
fn start_time(pid: u32) -> io::Result<u64> {
    parse_start_time(&fs::read_to_string(format!("/proc/{pid}/stat"))?)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Field 22 of /proc/PID/stat, counted after the command's name, which may
/// contain blanks and parentheses.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Epoch of a guest: the life of a QEMU process, as long as the host is up.
/// A process id has at most 22 bits (`PID_MAX_LIMIT`).
fn epoch(start: u64, pid: u32) -> u64 {
    start << 22 | u64::from(pid)
}

/// Asks a QEMU all of it; `taps` are those of its process.
///
/// # Errors
/// [`Error`], with a hint for the operator.
pub async fn discover(qmp: &Qmp, pid: u32, taps: Taps) -> Result<Discovered, Error> {
    let nothing = || json!({});
    let version = qmp.execute("query-version", nothing()).await?;
    let number = |key: &str| version["qemu"][key].as_u64().unwrap_or(0);
    let version = format!("{}.{}.{}", number("major"), number("minor"), number("micro"));

    let types = qmp.execute("qom-list-types", json!({"implements": "ivshmem-common"})).await?;
    let known = types
        .as_array()
        .is_some_and(|list| list.iter().any(|entry| entry["name"] == "ivshmem-doorbell"));
    if !known {
        return Err(Error::NoIvshmem(version));
    }

    let migration = migration(qmp).await?;
    if migration.status == "colo" {
        return Err(Error::Replicated(migration.status));
    }

    let kind_name = qmp.get_text("/machine", "type").await?;
    let kind_name = kind_name.trim_end_matches("-machine").to_owned();
    let objects = qmp.list("/machine").await?;
    let kind = if objects.iter().any(|(_, kind)| kind == "child<q35-pcihost>") {
        Kind::Q35
    } else if objects.iter().any(|(_, kind)| kind == "child<i440FX-pcihost>") {
        Kind::Pc
    } else {
        return Err(Error::Machine(kind_name));
    };

    let uuid = qmp.execute("query-uuid", nothing()).await?;
    let uuid = uuid["UUID"].as_str().unwrap_or_default().to_ascii_lowercase();
    let uuid = uuid.chars().any(|c| c.is_ascii_hexdigit() && c != '0').then_some(uuid);
    let name = qmp.execute("query-name", nothing()).await?;
    let name = name["name"].as_str().unwrap_or_default().to_owned();
    let kvm = qmp.execute("query-kvm", nothing()).await?;

    let start = start_time(pid).map_err(|error| Error::Process(pid, error))?;
    let epoch = epoch(start, pid);
    let id = match &uuid {
        Some(uuid) => identity(uuid),
        None => identity(&format!("process {epoch}")),
    };
    let nics = nics(qmp, taps).await?;
    Ok(Discovered {
        machine: Machine { uuid, name, kind_name, pid, id, epoch, nics },
        kind,
        kvm: kvm["enabled"].as_bool().unwrap_or(false),
        migration,
    })
}

/// Asks for the network interfaces; `taps` are those of the process.
///
/// # Errors
/// Those of [`Qmp::execute`].
pub async fn nics(qmp: &Qmp, taps: Taps) -> Result<Vec<Nic>, qmp::Error> {
    let info =
        qmp.execute("human-monitor-command", json!({"command-line": "info network"})).await?;
    let backends = parse_info_network(info.as_str().unwrap_or_default());

    let mut nics = Vec::new();
    for container in ["/machine/peripheral", "/machine/peripheral-anon", "/machine/unattached"] {
        for (child, kind) in qmp.list(container).await? {
            // Devices on the main board are many; interfaces among them, made
            // by -nic or -net nic, are few and known.
            let network = ["net", "e1000", "rtl8139", "vmxnet", "ne2k", "tulip", "i8255"];
            let unattached = container.ends_with("unattached");
            if !kind.starts_with("child<")
                || (unattached && !network.iter().any(|name| kind.contains(name)))
            {
                continue;
            }
            let path = format!("{container}/{child}");
            let Some(mac) = parse_mac(&qmp.get_text(&path, "mac").await?) else { continue };
            let netdev = qmp.get_text(&path, "netdev").await?;
            let backend = backends.iter().find(|backend| backend.name == netdev);
            let (tap, unknown) = match (&taps, backend) {
                (Ok(taps), Some(backend)) => (backend.interface(taps), None),
                (Err(why), Some(backend)) if backend.kind == "tap" => (None, Some(why.clone())),
                _ => (None, None),
            };
            nics.push(Nic { mac, tap: tap.unwrap_or_default(), unknown });
        }
    }
    Ok(nics)
}

/// Asks for what an earlier agent left: its channels, and whether there is a
/// control device. Devices with its prefix that make no sense, and character
/// devices without a device, come back as leftovers (device ids, chardev ids).
///
/// # Errors
/// Those of [`Qmp::execute`].
pub async fn left_behind(qmp: &Qmp) -> Result<LeftBehind, qmp::Error> {
    let mut left = LeftBehind::default();
    let mut used = Vec::new();
    for (name, kind) in qmp.list("/machine/peripheral").await? {
        if !name.starts_with(PREFIX) || kind != "child<ivshmem-doorbell>" {
            continue;
        }
        let chardev = qmp.get_text(&format!("/machine/peripheral/{name}"), "chardev").await?;
        match parse_channel(&name, &chardev) {
            Some(found) => left.channels.push(found),
            None => left.devices.push((name, chardev.clone())),
        }
        used.push(chardev);
    }
    let chardevs = qmp.execute("query-chardev", json!({})).await?;
    for entry in chardevs.as_array().map(Vec::as_slice).unwrap_or_default() {
        let label = entry["label"].as_str().unwrap_or_default();
        if label.starts_with(PREFIX) && !used.iter().any(|used| used == label) {
            left.chardevs.push(label.to_owned());
        }
    }
    Ok(left)
}

/// See [`left_behind`].
#[derive(Clone, Debug, Default)]
pub struct LeftBehind {
    /// channels
    pub channels: Vec<Found>,
    /// ids of other devices, such as the control device, and of their chardevs
    pub devices: Vec<(String, String)>,
    /// chardevs without a device
    pub chardevs: Vec<String>,
}

/// Device id of a channel.
pub fn channel_device(tag: u32) -> String {
    format!("{PREFIX}ch-{tag}")
}

/// Character device id of a channel, which says where the channel leads, so
/// that an agent that starts anew knows.
pub fn channel_chardev(tag: u32, peer: u64, epoch: u64) -> String {
    format!("{PREFIX}ch-{tag}-{peer:016x}-{epoch:016x}")
}

/// Tag of the channel whose device has this id.
pub fn channel_tag(device: &str) -> Option<u32> {
    let tag = device.strip_prefix(PREFIX)?.strip_prefix("ch-")?.parse().ok()?;
    // Only what we would have written ourselves.
    ((1..=vmloop_abi::message::TAG_MAX).contains(&tag) && channel_device(tag) == device)
        .then_some(tag)
}

fn parse_channel(device: &str, chardev: &str) -> Option<Found> {
    let tag = channel_tag(device)?;
    let rest = chardev.strip_prefix(&channel_device(tag))?.strip_prefix('-')?;
    let (peer, epoch) = rest.split_once('-')?;
    let found = Found {
        tag,
        peer: u64::from_str_radix(peer, 16).ok()?,
        epoch: u64::from_str_radix(epoch, 16).ok()?,
    };
    (channel_chardev(tag, found.peer, found.epoch) == chardev).then_some(found)
}

/// Reads `52:54:00:12:34:56`.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let hex = |part: &&str| part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit());
        let part = parts.next().filter(hex)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    (parts.next().is_none() && mac != [0; 6]).then_some(mac)
}

/// Writes `52:54:00:12:34:56`.
pub fn format_mac(mac: &[u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// A network backend as `info network` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Backend {
    name: String,
    kind: String,
    ifname: Option<String>,
    fd: Option<u32>,
}

impl Backend {
    /// Name of the host interface behind it, one of `taps`: those that the
    /// process has open now, by descriptor. QEMU's own word is not enough: its
    /// interface may have been deleted, and another one may have the name.
    fn interface(&self, taps: &[(u32, String)]) -> Option<String> {
        if self.kind != "tap" {
            return None;
        }
        let mut fitting = taps.iter().filter(|(fd, name)| {
            self.ifname.as_ref().is_none_or(|ifname| ifname == name)
                && self.fd.is_none_or(|own| own == *fd)
        });
        let (_, name) = fitting.next()?;
        // Of a tap that a helper made, QEMU says nothing more. If the process
        // has a single one, it is that.
        fitting.all(|(_, other)| other == name).then(|| name.clone())
    }
}

/// Taps that a process has open: descriptors and names.
pub type Taps = Result<Vec<(u32, String)>, NoTaps>;

/// Why the taps of a process are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTaps {
    /// It has interfaces with names of their own.
    #[error("its QEMU (process {0}) is in another network namespace than the agent")]
    Elsewhere(u32),
    /// The agent may not look at it.
    #[error(
        "the agent may not look at its QEMU ({0}: {1}): it lacks CAP_SYS_PTRACE; start it by the \
         packaged unit, and see systemctl cat vmloopd"
    )]
    Forbidden(String, String),
    /// Something else is wrong.
    #[error("the agent cannot look at its QEMU ({0}: {1})")]
    Unreadable(String, String),
}

impl NoTaps {
    fn new(path: &str, error: &io::Error) -> Self {
        let (path, text) = (path.to_owned(), error.to_string());
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Forbidden(path, text),
            _ => Self::Unreadable(path, text),
        }
    }

    /// Whether the agent or its host is at fault, and not how the guest is set up.
    pub fn is_a_fault(&self) -> bool {
        !matches!(self, Self::Elsewhere(_))
    }
}

/// Looks for the taps of a process.
///
/// # Errors
/// [`NoTaps`], also if it lives in another network namespace.
pub fn taps(pid: u32) -> Taps {
    let namespace = |whose: &str| {
        let path = format!("/proc/{whose}/ns/net");
        fs::read_link(&path).map_err(|error| NoTaps::new(&path, &error))
    };
    if namespace("self")? != namespace(&pid.to_string())? {
        return Err(NoTaps::Elsewhere(pid));
    }
    let path = format!("/proc/{pid}/fdinfo");
    let failed = |error| NoTaps::new(&path, &error);
    let mut taps = Vec::new();
    for entry in fs::read_dir(&path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let info = match fs::read_to_string(entry.path()) {
            Ok(info) => info,
            // It was closed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(error)),
        };
        let fd = entry.file_name().to_str().and_then(|fd| fd.parse().ok());
        taps.extend(fd.zip(parse_fdinfo(&info)));
    }
    Ok(taps)
}

/// The `iff:` line of a tap's fdinfo.
fn parse_fdinfo(info: &str) -> Option<String> {
    let name = info.lines().find_map(|line| line.strip_prefix("iff:"))?.trim();
    (!name.is_empty() && name.len() < 16 && !name.contains('/')).then(|| name.to_owned())
}

/// Lines look like ` \ hn0: index=0,type=tap,ifname=tap0,script=no,...`; the
/// first backend of a name counts, as those of further queues repeat it.
fn parse_info_network(text: &str) -> Vec<Backend> {
    let mut backends: Vec<Backend> = Vec::new();
    for line in text.lines() {
        let line = line.trim_start_matches([' ', '\\']).trim_end();
        // Names of devices may contain colons; ": index=" ends them.
        let Some((name, rest)) = line.split_once(": index=") else { continue };
        let Some((_, rest)) = rest.split_once(",type=") else { continue };
        let mut words = rest.split(',');
        let kind = words.next().unwrap_or_default();
        if kind == "nic" || backends.iter().any(|backend| backend.name == name) {
            continue;
        }
        let value =
            |key: &str| rest.split(',').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        backends.push(Backend {
            name: name.to_owned(),
            kind: kind.to_owned(),
            ifname: value("ifname").map(str::to_owned),
            fd: value("fd").and_then(|fd| fd.parse().ok()),
        });
    }
    backends
}

/// What an error says, with QEMU's words, when a device cannot be plugged.
#[derive(Debug, thiserror::Error)]
pub enum NoSlot {
    /// QMP failed.
    #[error(transparent)]
    Qmp(#[from] qmp::Error),
    /// Every place has a device.
    #[error("no free {0}")]
    Full(&'static str),
    /// Firmware has not given the machine's devices their addresses, since it
    /// was started or reset.
    #[error("the machine is still booting")]
    Booting,
}

/// Slots of a PCI bus.
const BUS_SLOTS: usize = 32;

/// Where to plug a device with a BAR of `size` bytes: the id of a root port on
/// Q35, None (QEMU finds a slot) on PC.
///
/// # Errors
/// [`NoSlot`]
pub async fn free_slot(qmp: &Qmp, kind: Kind, size: u64) -> Result<Option<String>, NoSlot> {
    let buses = qmp.execute("query-pci", json!({})).await?;
    let port = match kind {
        Kind::Pc if used_slots(&buses).len() == BUS_SLOTS => {
            return Err(NoSlot::Full("PCI slot"));
        }
        Kind::Pc => None,
        Kind::Q35 => Some(free_port(qmp, &buses, size).await?),
    };
    let is_set_up =
        buses.as_array().is_some_and(|all| all.iter().any(|bus| any_mapped(&bus["devices"])));
    if is_set_up { Ok(port) } else { Err(NoSlot::Booting) }
}

async fn free_port(qmp: &Qmp, buses: &Value, size: u64) -> Result<String, NoSlot> {
    let mut ports: Vec<String> = qmp
        .list("/machine/peripheral")
        .await?
        .into_iter()
        .filter(|(_, kind)| kind.starts_with("child<") && kind.contains("root-port"))
        .map(|(name, _)| name)
        .collect();
    // Before firmware has numbered the buses, query-pci shows them empty.
    let mut at = 0;
    while let Some(port) = ports.get(at) {
        match qmp.list(&format!("/machine/peripheral/{port}/{port}")).await {
            Ok(bus) if bus.iter().any(|(name, _)| name.starts_with("child[")) => {
                ports.remove(at);
            }
            Err(error @ (qmp::Error::Closed | qmp::Error::Timeout(_))) => return Err(error.into()),
            _ => at += 1,
        }
    }
    choose_port(buses, &ports, size).ok_or(NoSlot::Full("PCI Express root port"))
}

/// The slots of a PC's bus that have a device.
fn used_slots(buses: &Value) -> HashSet<u64> {
    let devices = buses[0]["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    devices.iter().filter_map(|device| device["slot"].as_u64()).collect()
}

/// The first empty root port whose prefetchable window is large enough, or, as
/// firmware may still be about to set the windows, the first empty one.
fn choose_port(buses: &Value, ports: &[String], size: u64) -> Option<String> {
    let mut second = None;
    for bus in buses.as_array()? {
        for device in bus["devices"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let name = device["qdev_id"].as_str().unwrap_or_default();
            let bridge = &device["pci_bridge"];
            let empty = bridge["devices"].as_array().is_none_or(Vec::is_empty);
            if !bridge.is_object() || !empty || !ports.iter().any(|port| port == name) {
                continue;
            }
            let window = &bridge["bus"]["prefetchable_range"];
            let base = window["base"].as_u64().unwrap_or(0);
            let limit = window["limit"].as_u64().unwrap_or(0);
            if limit > base && limit - base + 1 >= size {
                return Some(name.to_owned());
            }
            second.get_or_insert_with(|| name.to_owned());
        }
    }
    second
}

/// Whether any of these devices, or one behind them, answers at an address.
/// Ours do not count: nobody has to give them one for that.
fn any_mapped(devices: &Value) -> bool {
    devices.as_array().is_some_and(|devices| {
        devices.iter().any(|device| {
            let name = device["qdev_id"].as_str().unwrap_or_default();
            let regions = device["regions"].as_array().map(Vec::as_slice).unwrap_or_default();
            // An address of -1 is none.
            let mapped = regions.iter().any(|one| one["address"].as_i64().is_some_and(|at| at > 0));
            (mapped && !name.starts_with(PREFIX)) || any_mapped(&device["pci_bridge"]["devices"])
        })
    })
}

/// Name for a guest that QEMU gives none: that of its socket's file, or of the
/// directory if the file's says nothing.
pub fn name_from_socket(path: &Path) -> String {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let stem = stem.unwrap_or_default();
    let generic = ["qmp", "monitor", "qmp-sock", "sock", ""];
    if !generic.contains(&stem.as_str()) {
        return stem;
    }
    let parent = path.parent().and_then(Path::file_name);
    parent.map_or(stem, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_two_functions_has_one_slot() {
        let device = |slot: u64, function: u64| json!({"slot": slot, "function": function});
        let buses = json!([{"bus": 0, "devices": [device(0, 0), device(1, 0), device(1, 1)]},
            {"bus": 1, "devices": [device(7, 0)]}]);
        assert_eq!(used_slots(&buses), HashSet::from([0, 1]));
    }

    #[test]
    fn firmware_is_done_when_a_device_of_the_machine_has_an_address() {
        let device = |name: &str, address: i64| json!({"qdev_id": name, "regions": [{"bar": 0, "address": address}]});
        let behind = |device: Value| json!({"qdev_id": "rp1", "regions": [], "pci_bridge": {"devices": [device]}});
        for (devices, done) in [
            (json!([]), false),
            (json!([device("", -1), device("n0", -1)]), false),
            (json!([device("", -1), device("n0", 0xfebc_0000)]), true),
            (json!([device("", -1), device("vmloop-ctl", 0xfebc_0000)]), false),
            (json!([device("", -1), behind(device("n0", -1))]), false),
            (json!([device("", -1), behind(device("n0", 0xc000))]), true),
        ] {
            assert_eq!(any_mapped(&devices), done, "{devices}");
        }
    }

    #[test]
    fn info_network_of_qemu() {
        let text = "virtio-net-pci.0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:77:00:01\r\n \\ hn0: index=0,type=tap,ifname=tap0,script=no,downscript=no\r\nn1: index=0,type=nic,model=e1000,macaddr=52:54:00:77:00:02\r\n \\ hn1: index=0,type=tap,fd=17\r\nmq: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:77:00:03\r\n \\ hn2: index=0,type=tap,fd=20\r\n \\ hn2: index=1,type=tap,fd=21\r\nhlp: index=0,type=tap,helper=/usr/lib/qemu/qemu-bridge-helper,br=br0\r\nu0: index=0,type=user,net=10.0.2.0,restrict=off\r\n";
        let backends = parse_info_network(text);
        let tap = |name: &str, ifname: Option<&str>, fd| Backend {
            name: name.into(),
            kind: "tap".into(),
            ifname: ifname.map(str::to_owned),
            fd,
        };
        assert_eq!(
            backends,
            [
                tap("hn0", Some("tap0"), None),
                tap("hn1", None, Some(17)),
                tap("hn2", None, Some(20)),
                tap("hlp", None, None),
                Backend { name: "u0".into(), kind: "user".into(), ifname: None, fd: None },
            ]
        );
        assert_eq!(parse_info_network("nonsense\n: index=,type=\n"), {
            vec![Backend { name: String::new(), kind: String::new(), ifname: None, fd: None }]
        });
    }

    #[test]
    fn interfaces_of_backends() {
        let backend = |ifname: Option<&str>, fd| Backend {
            name: "hn0".into(),
            kind: "tap".into(),
            ifname: ifname.map(str::to_owned),
            fd,
        };
        let taps = [(17, "tap0".to_owned()), (18, "tap0".to_owned()), (20, "tap1".to_owned())];
        let of = |ifname, fd| backend(ifname, fd).interface(&taps);
        assert_eq!(of(Some("tap1"), None).as_deref(), Some("tap1"));
        assert_eq!(of(None, Some(17)).as_deref(), Some("tap0"));
        assert_eq!(of(Some("tap2"), None), None, "deleted meanwhile");
        assert_eq!(of(None, Some(3)), None);
        assert_eq!(of(None, None), None, "one of several");
        assert_eq!(backend(None, None).interface(&taps[..2]).as_deref(), Some("tap0"));
        let user = Backend { kind: "user".into(), ..backend(None, None) };
        assert_eq!(user.interface(&taps[..1]), None);
    }

    #[test]
    fn taps_that_cannot_be_looked_for() {
        assert_eq!(taps(std::process::id()), Ok(Vec::new()));
        let Err(gone) = taps(u32::MAX) else { panic!("no such process") };
        assert!(matches!(gone, NoTaps::Unreadable(..)) && gone.is_a_fault(), "{gone}");
        let error = io::ErrorKind::PermissionDenied.into();
        let forbidden = NoTaps::new("/proc/7/ns/net", &error).to_string();
        assert!(forbidden.contains("/proc/7/ns/net: permission denied"), "{forbidden}");
        assert!(forbidden.contains("CAP_SYS_PTRACE"), "{forbidden}");
        assert!(!NoTaps::Elsewhere(7).is_a_fault());
    }

    #[test]
    fn fdinfo_of_a_tap() {
        let info = "pos:\t104\nflags:\t0104002\nmnt_id:\t15\nino:\t96\niff:\tvnet3\n";
        assert_eq!(parse_fdinfo(info).as_deref(), Some("vnet3"));
        assert_eq!(parse_fdinfo("pos:\t0\n"), None);
        assert_eq!(parse_fdinfo("iff:\t../../etc\n"), None);
    }

    #[test]
    fn stat_of_a_process_with_a_strange_name() {
        let stat =
            "4242 (a) b (c)) S 1 4242 4242 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 4 0 123456 99 1";
        assert_eq!(parse_start_time(stat), Some(123_456));
        assert_eq!(parse_start_time("nothing"), None);
        assert!(start_time(std::process::id()).is_ok_and(|ticks| ticks > 0));
    }

    #[test]
    fn machines_on_their_way() {
        let moving = |run: &str, status: &str| {
            Migration::parse(&json!({"status": run}), &json!({"status": status})).moving
        };
        assert_eq!(Migration::parse(&json!({"status": "running"}), &json!({})).moving, Moving::No);
        for over in ["none", "failed", "cancelled", "completed"] {
            assert_eq!(moving("running", over), Moving::No, "{over}");
        }
        for under_way in ["setup", "active", "pre-switchover", "device", "cancelling", "novel"] {
            assert_eq!(moving("running", under_way), Moving::Out, "{under_way}");
        }
        assert_eq!(moving("finish-migrate", "device"), Moving::Out);
        assert_eq!(moving("postmigrate", "completed"), Moving::Left);
        assert_eq!(moving("inmigrate", "active"), Moving::In);
        let over = Migration::parse(
            &json!({"status": "postmigrate"}),
            &json!({"status": "completed", "total-time": 1200, "downtime": 31}),
        );
        assert_eq!((over.total_ms, over.downtime_ms, over.running), (1200, 31, false));
    }

    #[test]
    fn identities() {
        let one = identity("b7a9bf05-b0c5-4e0e-9a3a-6d4a2dbf6c01");
        assert_eq!(one, identity("b7a9bf05-b0c5-4e0e-9a3a-6d4a2dbf6c01"));
        assert_ne!(one, identity("b7a9bf05-b0c5-4e0e-9a3a-6d4a2dbf6c02"));
        assert_ne!(epoch(1, 2), epoch(2, 1));
    }

    #[test]
    fn ids_of_channels_tell_where_they_lead() {
        let chardev = channel_chardev(7, 0xabc, u64::MAX);
        assert_eq!(
            parse_channel("vmloop-ch-7", &chardev),
            Some(Found { tag: 7, peer: 0xabc, epoch: u64::MAX })
        );
        for (device, chardev) in [
            ("vmloop-ch-8", chardev.as_str()),
            ("vmloop-ch-07", "vmloop-ch-7-0000000000000abc-ffffffffffffffff"),
            ("vmloop-ch-0", "vmloop-ch-0-0000000000000abc-0000000000000001"),
            ("vmloop-ctl", "vmloop-ctl"),
            ("vmloop-ch-7", "vmloop-ch-7-abc-1"),
            ("vmloop-ch-7", ""),
        ] {
            assert_eq!(parse_channel(device, chardev), None, "{device} {chardev}");
        }
    }

    #[test]
    fn hardware_addresses() {
        assert_eq!(parse_mac("52:54:00:12:34:5F"), Some([0x52, 0x54, 0, 0x12, 0x34, 0x5f]));
        for bad in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:56:78",
            "0:0:0:0:0:0",
            "00:00:00:00:00:00",
            "+1:54:00:12:34:56",
        ] {
            assert_eq!(parse_mac(bad), None, "{bad}");
        }
        assert_eq!(format_mac(&[0x52, 0x54, 0, 0x12, 0x34, 0x5f]), "52:54:00:12:34:5f");
    }

    #[test]
    fn ports() {
        let port = |name: &str, base: u64, limit: u64, devices: Value| {
            json!({"qdev_id": name, "pci_bridge": {
                "bus": {"prefetchable_range": {"base": base, "limit": limit}}, "devices": devices}})
        };
        let buses = json!([{"bus": 0, "devices": [
            {"qdev_id": "net0"},
            port("rp0", 0, 0xfff_ffff, json!([{"qdev_id": "disk"}])),
            port("other", 0, 0xfff_ffff, json!([])),
            port("rp1", 0, 0, json!([])),
            port("rp2", 0x10_0000_0000, 0x10_03ff_ffff, json!([])),
        ]}]);
        let ports = ["rp0", "rp1", "rp2"].map(str::to_owned);
        assert_eq!(choose_port(&buses, &ports, 16 << 20).as_deref(), Some("rp2"));
        assert_eq!(choose_port(&buses, &ports, 128 << 20).as_deref(), Some("rp1"));
        assert_eq!(choose_port(&buses, &ports[..1], 1), None);
    }

    #[test]
    fn names() {
        for (path, name) in [
            ("/run/vms/web1.sock", "web1"),
            ("/run/vmlab/g1/qmp.sock", "g1"),
            ("/run/web1/monitor.sock", "web1"),
        ] {
            assert_eq!(name_from_socket(Path::new(path)), name);
        }
    }
}
