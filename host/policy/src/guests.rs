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

/// Whether text looks like a UUID, or the beginning of one: `b7a9bf05-*`, `b7a9*`.
/// Names have their digits at the end (`db01*`) or are numbers (`100*`).
fn is_like_uuid(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_hexdigit() || b"-*?".contains(&byte);
    let wild = |byte: &u8| b"*?".contains(byte);
    let bytes = text.as_bytes();
    if !bytes.iter().all(|byte| known(*byte)) {
        return false;
    }
    let first = bytes.split(|byte| matches!(byte, b'-' | b'*')).next().unwrap_or_default();
    let mut digit = false;
    let mixed = first.iter().any(|byte| {
        digit |= byte.is_ascii_digit();
        digit && byte.is_ascii_alphabetic()
    });
    match bytes.get(first.len()) {
        Some(b'-') => first.len() == 8,
        _ => (mixed || first.len() >= 8) && bytes.iter().any(wild),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_the_beginning_of_a_uuid() {
        for text in ["b7a9*", "B7A9*", "4f*", "1?a*", "b7a9bf05*", "12345678*", "b7a9bf0?"] {
            let error = text.parse::<Guests>().expect_err(text);
            assert!(error.contains("could be a UUID or a name"), "{error}");
            assert!(format!("name:{text}").parse::<Guests>().is_ok());
        }
        for text in
            ["db*", "db01*", "100*", "*", "??", "cafe*", "b7a9", "a-1*", "fe-b7a9*", "1a-*x"]
        {
            assert!(matches!(text.parse(), Ok(Guests::Named(_))), "{text}");
        }
    }
}
