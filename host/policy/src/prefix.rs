// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Ranges of IP addresses.

use std::net::IpAddr;
use std::str::FromStr;

/// A range of addresses, such as `10.1.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    ip: IpAddr,
    bits: u8,
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (ip, bits) = match text.split_once('/') {
            Some((ip, bits)) => (ip, Some(bits)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| {
            format!("{text:?} is not an address or a prefix; write 10.1.0.0/16 or fd00::/64")
        })?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) => bits
                .parse()
                .ok()
                .filter(|bits| *bits <= most)
                .ok_or_else(|| format!("{text:?}: the length must be a number up to {most}"))?,
        };
        Ok(Self { ip, bits })
    }
}

impl Prefix {
    /// An address in the range, and how many of its bits count.
    pub fn parts(&self) -> (IpAddr, u8) {
        (self.ip, self.bits)
    }

    /// Whether an address is in the range.
    pub fn contains(&self, ip: IpAddr) -> bool {
        fn same<const N: usize>(a: [u8; N], b: [u8; N], bits: u8) -> bool {
            let whole = usize::from(bits / 8);
            let rest = bits % 8;
            a[..whole] == b[..whole] && (rest == 0 || (a[whole] ^ b[whole]) >> (8 - rest) == 0)
        }
        match (self.ip, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(a.octets(), b.octets(), self.bits),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.octets(), b.octets(), self.bits),
            _ => false,
        }
    }
}
