// SPDX-License-Identifier: GPL-2.0 OR MIT
//! XenStore's messages: kinds, strings and errors.

/// Bytes of a message's header.
pub(crate) const HEADER: usize = 16;
/// Longest payload of a message.
pub const PAYLOAD_MAX: usize = 4096;

/// Kinds of messages, as xs_wire.h numbers them.
pub mod kind {
    /// children of a node
    pub const DIRECTORY: u32 = 1;
    /// value of a node
    pub const READ: u32 = 2;
    /// who may do what with a node
    pub const GET_PERMS: u32 = 3;
    /// tell of changes at and below a node
    pub const WATCH: u32 = 4;
    /// no more
    pub const UNWATCH: u32 = 5;
    /// begin a transaction
    pub const TRANSACTION_START: u32 = 6;
    /// end one
    pub const TRANSACTION_END: u32 = 7;
    /// set a value
    pub const WRITE: u32 = 11;
    /// make an empty node
    pub const MKDIR: u32 = 12;
    /// remove a node with all below it
    pub const RM: u32 = 13;
    /// say who may do what with a node
    pub const SET_PERMS: u32 = 14;
    /// something changed
    pub const WATCH_EVENT: u32 = 15;
    /// the answer to what failed
    pub const ERROR: u32 = 16;
    /// whether xenstored knows a domain
    pub const IS_DOMAIN_INTRODUCED: u32 = 17;
    /// children of a node that has many
    pub const DIRECTORY_PART: u32 = 22;
}

/// Why XenStore did not do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It said no, with the name of an error, such as `ENOENT`.
    #[error("XenStore: {1}: {0}")]
    Refused(String, String),
    /// A path or value is too long.
    #[error("XenStore: {0} is too long")]
    TooLong(String),
    /// It sent something that makes no sense.
    #[error("XenStore: {0}: an answer that makes no sense")]
    Answer(String),
    /// It hung up.
    #[error("XenStore hung up")]
    Closed,
}

impl Error {
    pub(crate) fn is(&self, name: &str) -> bool {
        matches!(self, Self::Refused(error, _) if error == name)
    }

    /// There is no such node.
    pub fn is_not_found(&self) -> bool {
        self.is("ENOENT")
    }

    /// The transaction met another one; try it again.
    pub fn is_conflict(&self) -> bool {
        self.is("EAGAIN")
    }
}

/// Strings with a zero behind each.
pub(crate) fn split(bytes: &[u8]) -> Vec<String> {
    bytes
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .filter_map(|name| String::from_utf8(name.to_vec()).ok())
        .collect()
}

/// Each string with a zero behind it.
pub(crate) fn strings(parts: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        out.extend_from_slice(part.as_bytes());
        out.push(0);
    }
    out
}
