// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Attributes of nfnetlink's messages. Numbers in them have the network's order.

use rtnetlink::packet_core::NlasIterator;

/// The attributes in some bytes: numbers and values. The first one with an impossible
/// length ends them.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).map(|one| {
        let kind = one.kind();
        let value = one.into_inner();
        let end = usize::from(u16::from_ne_bytes([value[0], value[1]]));
        (kind, &value[4..end])
    })
}

/// The value of an attribute.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(number, _)| *number == kind).map(|(_, value)| value)
}

/// A number, as nftables has them.
pub fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.try_into().ok()?))
}

/// A text that ends with a zero.
pub fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}
