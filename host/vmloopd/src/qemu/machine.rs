// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a running QEMU tells about itself: who it is, where devices can be
//! plugged, which network interfaces it has, and what an earlier agent left.
//!
//! Nothing here is taken from the guest: addresses come from how QEMU was
//! configured, not from what the guest's driver set later.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::json;
use sha2::{Digest, Sha256};
use tracing::warn;
use vmloop_qmp::{self as qmp, Qmp};

use super::migration::{Migration, migration};
use super::nics::{Taps, nics};
use super::process::bells;
use super::slots::Kind;
use crate::machine::Machine;

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
    let bells = bells(pid).unwrap_or_else(|error| {
        warn!(pid, %error, "channels of this QEMU get one doorbell: how many files it may open is not known");
        0
    });
    Ok(Discovered {
        machine: Machine { uuid, name, kind_name, pid, number: None, id, epoch, nics, bells },
        kind,
        kvm: kvm["enabled"].as_bool().unwrap_or(false),
        migration,
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
    fn stat_of_a_process_with_a_strange_name() {
        let stat =
            "4242 (a) b (c)) S 1 4242 4242 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 4 0 123456 99 1";
        assert_eq!(parse_start_time(stat), Some(123_456));
        assert_eq!(parse_start_time("nothing"), None);
        assert!(start_time(std::process::id()).is_ok_and(|ticks| ticks > 0));
    }

    #[test]
    fn identities() {
        let one = identity("b7a9bf05-b0c5-4e0e-9a3a-6d4a2dbf6c01");
        assert_eq!(one, identity("b7a9bf05-b0c5-4e0e-9a3a-6d4a2dbf6c01"));
        assert_ne!(one, identity("b7a9bf05-b0c5-4e0e-9a3a-6d4a2dbf6c02"));
        assert_ne!(epoch(1, 2), epoch(2, 1));
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
