// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Asks the kernel for the tables of the old kind that are there. A table that nobody
//! uses must not be asked for, as the kernel would make it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::blob::Blob;
use super::ebtables;
use super::iptables::{self, Info};
use super::option::{self, Which};
use crate::network::ruleset::{Chain, Family};

/// Bytes of a table's name, at the beginning of all questions.
const NAME: usize = 32;
/// Options of iptables and ip6tables: a table's size, and its entries.
const INFO: i32 = 64;
const ENTRIES: i32 = 65;
/// How often a table is asked for again that is replaced meanwhile.
const TRIES: u32 = 8;
/// The same of ebtables.
const EBTABLES_INFO: Which = Which { level: libc::SOL_IP, number: 128 };
const EBTABLES_ENTRIES: Which = Which { level: libc::SOL_IP, number: 129 };
/// Its tables. Nothing lists those that are there, so each is asked for whose module is.
const EBTABLES: [&str; 3] = ["filter", "nat", "broute"];

/// A kind of tables.
struct Kind {
    family: Family,
    sockets: AddressFamily,
    level: i32,
    /// which tables there are
    names: &'static str,
}

const KINDS: [Kind; 2] = [
    Kind {
        family: Family::Ip,
        sockets: AddressFamily::INET,
        level: libc::SOL_IP,
        names: "/proc/net/ip_tables_names",
    },
    Kind {
        family: Family::Ip6,
        sockets: AddressFamily::INET6,
        level: libc::SOL_IPV6,
        names: "/proc/net/ip6_tables_names",
    },
];

/// All chains of the old kind.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_ADMIN; others of getsockopt(2).
pub fn read() -> io::Result<Vec<Chain>> {
    let mut chains = Vec::new();
    for kind in &KINDS {
        let tables = match fs::read_to_string(kind.names) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        if tables.trim().is_empty() {
            continue;
        }
        let socket = socket_with(kind.sockets, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        for name in tables.split_whitespace() {
            chains.extend(table(socket.as_fd(), kind, name)?);
        }
    }
    let is_there = |name: &&&str| Path::new(&format!("/sys/module/ebtable_{name}")).exists();
    for name in EBTABLES.iter().filter(is_there) {
        let socket =
            socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        chains.extend(bridge_table(socket.as_fd(), name)?);
    }
    Ok(chains)
}

/// A question about a table, of so many bytes.
fn question(name: &str, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    let length = name.len().min(NAME - 1);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    bytes
}

fn bridge_table(socket: BorrowedFd<'_>, name: &str) -> io::Result<Vec<Chain>> {
    for _ in 0..TRIES {
        let mut info = question(name, ebtables::QUESTION);
        match option::get(socket, EBTABLES_INFO, &mut info) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let size = Blob(&info).u32(ebtables::SIZE)?;
        let hooks = Blob(&info).u32(ebtables::HOOKS)?;
        let mut all = question(name, ebtables::QUESTION + size);
        let same = ebtables::COUNT..ebtables::SIZE + 4;
        all[same.clone()].copy_from_slice(&info[same]);
        let behind = ebtables::QUESTION;
        match option::get_behind(socket, EBTABLES_ENTRIES, &mut all, ebtables::ADDRESS, behind) {
            Ok(_) => return ebtables::chains(name, hooks, &all[behind..]),
            // It has another size by now.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("ebtables: table {name} changes all the time")))
}

fn table(socket: BorrowedFd<'_>, kind: &Kind, name: &str) -> io::Result<Vec<Chain>> {
    let which = |number| Which { level: kind.level, number };
    for _ in 0..TRIES {
        let mut answer = question(name, iptables::INFO);
        option::get(socket, which(INFO), &mut answer)?;
        let info = Info::new(&answer)?;
        let mut entries = question(name, iptables::HEADER + info.size);
        entries[NAME..NAME + 4].copy_from_slice(&(info.size as u32).to_ne_bytes());
        match option::get(socket, which(ENTRIES), &mut entries) {
            Ok(_) => {
                return iptables::chains(kind.family, name, &info, &entries[iptables::HEADER..]);
            }
            // It has another size by now.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("table {name} changes all the time")))
}
