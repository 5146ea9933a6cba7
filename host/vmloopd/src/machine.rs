// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is known of a machine, whatever hypervisor runs it.

use std::io;

/// Names an attachment: a number that is never used again, so that what a
/// former life of a guest caused cannot be taken for its present one's doing.
pub type Key = u64;

/// A network interface as the hypervisor was told to make it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// address that the hypervisor was told
    pub mac: [u8; 6],
    /// host interface behind it; empty if it has none
    pub tap: String,
    /// why that is not known, if it is not; QEMU only
    pub unknown: Option<NoTaps>,
}

/// A channel that an earlier agent made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// of the channel
    pub tag: u32,
    /// identity of the other guest
    pub peer: u64,
    /// epoch of the other guest
    pub epoch: u64,
}

/// What a hypervisor tells about a guest.
#[derive(Clone, Debug)]
pub struct Machine {
    /// UUID; None if it has none, or only zeros
    pub uuid: Option<String>,
    /// the hypervisor's name for it; may be empty
    pub name: String,
    /// kind of machine, for people
    pub kind_name: String,
    /// process of its QEMU; 0 on Xen
    pub pid: u32,
    /// the hypervisor's number for it, by which an operator may name it
    pub number: Option<u32>,
    /// identity; never 0
    pub id: u64,
    /// epoch
    pub epoch: u64,
    /// interfaces
    pub nics: Vec<Nic>,
    /// doorbells of channels that it has room for, beside those that it had when it was
    /// attached
    pub bells: u32,
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
    /// Because of an error at a path of the process.
    pub fn new(path: &str, error: &io::Error) -> Self {
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
