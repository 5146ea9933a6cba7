// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The policy's file as it is written, before it is checked.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use toml::Spanned;

/// What happens where no group is defined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fallback {
    /// Guests on the same bridge and VLAN may talk.
    #[default]
    SameBridge,
    /// Nobody may.
    Deny,
}

/// What the host's own filters of frames mean for channels, which they do not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Filters {
    /// An interface that one looks at has no channels.
    #[default]
    Respect,
    /// It has.
    Ignore,
}

/// Whether connections of TCP may go by lanes of their own, which packet tools of the
/// guests do not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Streams {
    /// They may, where both guests have the module.
    #[default]
    Allow,
    /// They may not.
    Deny,
}

/// Why a policy cannot be used; names the file and the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(pub(crate) String);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

impl Invalid {
    /// There is no file any more.
    pub fn missing(path: &Path) -> Self {
        Self(format!("{}: it is not there any more", path.display()))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    #[serde(default)]
    pub(crate) default: Fallback,
    #[serde(default)]
    pub(crate) filters: Filters,
    #[serde(default)]
    pub(crate) streams: Streams,
    pub(crate) ring_size: Option<Spanned<Size>>,
    pub(crate) doorbells: Option<Spanned<u32>>,
    pub(crate) idle_ms: Option<u32>,
    pub(crate) max_channels: Option<Spanned<u32>>,
    pub(crate) max_memory: Option<Size>,
    #[serde(default)]
    pub(crate) group: Vec<FileGroup>,
    #[serde(default)]
    pub(crate) routed: Vec<FileRouted>,
    #[serde(default)]
    pub(crate) guest: Vec<FileGuest>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileGroup {
    pub(crate) name: Spanned<String>,
    pub(crate) members: Spanned<Vec<Spanned<String>>>,
    pub(crate) streams: Option<Streams>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileRouted {
    pub(crate) name: Spanned<String>,
    pub(crate) members: Spanned<Vec<Spanned<String>>>,
    pub(crate) interfaces: Option<Spanned<Vec<Spanned<String>>>>,
    pub(crate) allow_ips: Spanned<Vec<Spanned<String>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileGuest {
    #[serde(rename = "match")]
    pub(crate) matches: Spanned<String>,
    pub(crate) allow_ips: Option<Vec<Spanned<String>>>,
}

/// A number of bytes: `4194304`, `"4M"`.
pub(crate) struct Size(pub(crate) u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u64),
            Text(String),
        }
        let text = match Either::deserialize(from)? {
            Either::Number(number) => return Ok(Self(number)),
            Either::Text(text) => text,
        };
        let (digits, shift) = match text.trim_end_matches("iB").as_bytes().last() {
            Some(b'K' | b'k') => (&text[..text.trim_end_matches("iB").len() - 1], 10),
            Some(b'M') => (&text[..text.trim_end_matches("iB").len() - 1], 20),
            Some(b'G') => (&text[..text.trim_end_matches("iB").len() - 1], 30),
            _ => (text.as_str(), 0),
        };
        digits
            .trim()
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(1 << shift))
            .map(Self)
            .ok_or_else(|| {
                serde::de::Error::custom(format!("{text:?} is not a size; write \"4M\""))
            })
    }
}

/// Makes an error of a place in the file and of what is wrong there.
pub(crate) type At<'a> = &'a dyn Fn(std::ops::Range<usize>, String) -> Invalid;

/// Reads each entry of a list.
pub(crate) fn all<T: FromStr<Err = String>>(
    list: Vec<Spanned<String>>,
    at: At<'_>,
) -> Result<Vec<T>, Invalid> {
    list.into_iter().map(|entry| one(entry, at)).collect()
}

pub(crate) fn one<T: FromStr<Err = String>>(
    entry: Spanned<String>,
    at: At<'_>,
) -> Result<T, Invalid> {
    let span = entry.span();
    entry.into_inner().parse().map_err(|what| at(span, what))
}

/// Reads each entry of a list that must not be empty; `what` says that it is.
pub(crate) fn some<T: FromStr<Err = String>>(
    list: Spanned<Vec<Spanned<String>>>,
    what: &str,
    at: At<'_>,
) -> Result<Vec<T>, Invalid> {
    let span = list.span();
    let list = all(list.into_inner(), at)?;
    if list.is_empty() {
        return Err(at(span, format!("{what}; add some or remove it")));
    }
    Ok(list)
}
