// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which guests a rule is about: by name, or by UUID.

use std::str::FromStr;

use crate::pattern::Pattern;

/// Who a rule is about.
#[derive(Clone, Copy, Debug)]
pub struct Who<'a> {
    /// name on this host
    pub name: &'a str,
    /// in lower case; empty if none
    pub uuid: &'a str,
}

/// Which guests a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Guests {
    /// Those with such a name: `web*`, `name:web*`.
    Named(Pattern),
    /// Those with such a UUID: `uuid:b7a9bf05-*`.
    WithUuid(Pattern),
}

/// Whether text can be nothing but a UUID, or the beginning of one.
fn is_like_uuid(text: &str) -> bool {
    let hex = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b'?';
    let bytes = text.as_bytes();
    bytes.len() > 8
        && bytes[..8].iter().all(hex)
        && bytes[8] == b'-'
        && bytes[9..].iter().all(|byte| hex(byte) || matches!(byte, b'-' | b'*'))
}

impl FromStr for Guests {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(uuid) = text.strip_prefix("uuid:") {
            let uuid = uuid.to_ascii_lowercase();
            let known = |byte: u8| byte.is_ascii_hexdigit() || b"-*?".contains(&byte);
            let whole = uuid.len() == 36
                && uuid
                    .bytes()
                    .enumerate()
                    .all(|(at, byte)| (byte == b'-') == matches!(at, 8 | 13 | 18 | 23));
            if uuid.is_empty() || !uuid.bytes().all(known) || !(whole || uuid.contains('*')) {
                return Err(format!(
                    "{text:?} is no UUID; write \"uuid:\" and 36 characters, of which a * stands for any"
                ));
            }
            return Ok(Self::WithUuid(Pattern::new(&uuid)));
        }
        if let Some(name) = text.strip_prefix("name:") {
            return Ok(Self::Named(Pattern::new(name)));
        }
        if is_like_uuid(text) {
            return Err(format!(
                "{text:?} could be a UUID or a name, and names do not stand for UUIDs; write \"uuid:{text}\" or \"name:{text}\""
            ));
        }
        Ok(Self::Named(Pattern::new(text)))
    }
}

impl Guests {
    /// Whether the rule is about that guest.
    pub(crate) fn has(&self, who: Who<'_>) -> bool {
        match self {
            Self::Named(pattern) => pattern.matches(who.name),
            Self::WithUuid(pattern) => !who.uuid.is_empty() && pattern.matches(who.uuid),
        }
    }
}
