// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Text with wildcards.

use std::str::FromStr;

/// Text in which `*` stands for any characters and `?` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self::new(text))
    }
}

impl Pattern {
    /// From text.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Whether it stands for `text`; the case of letters counts.
    pub fn matches(&self, text: &str) -> bool {
        wildcard(self.0.as_bytes(), text.as_bytes())
    }
}

/// Goes back to the last `*` only, so that it takes at most the product of
/// both lengths.
fn wildcard(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, t));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == b'?' || pattern[p] == text[t]) {
            p += 1;
            t += 1;
        } else if let Some((star_p, star_t)) = star {
            star = Some((star_p, star_t + 1));
            p = star_p + 1;
            t = star_t + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn wildcards_agree_with_a_simple_one(pattern in "[ab*?]{0,8}", text in "[ab]{0,8}") {
            fn simple(p: &[u8], t: &[u8]) -> bool {
                match p.first() {
                    None => t.is_empty(),
                    Some(b'*') => simple(&p[1..], t) || (!t.is_empty() && simple(p, &t[1..])),
                    Some(b'?') => !t.is_empty() && simple(&p[1..], &t[1..]),
                    Some(c) => t.first() == Some(c) && simple(&p[1..], &t[1..]),
                }
            }
            prop_assert_eq!(wildcard(pattern.as_bytes(), text.as_bytes()), simple(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
