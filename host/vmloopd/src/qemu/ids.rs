// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Ids of what the agent makes in a QEMU, by which the next agent knows it.

use crate::end::WindowId;
use crate::machine::Found;

/// Prefix of the ids of everything that the agent makes in a QEMU.
pub const PREFIX: &str = "vmloop-";
/// Id of a guest's control device.
pub const CONTROL: &str = "vmloop-ctl";

/// Device id of a channel.
pub fn channel_device(tag: u32) -> String {
    format!("{PREFIX}ch-{tag}")
}

/// Character device id of a channel, which says where the channel leads, so
/// that an agent that starts anew knows.
pub fn channel_chardev(tag: u32, peer: u64, epoch: u64) -> String {
    format!("{PREFIX}ch-{tag}-{peer:016x}-{epoch:016x}")
}

/// Tag of the channel whose device has this id.
pub fn channel_tag(device: &str) -> Option<u32> {
    let tag = device.strip_prefix(PREFIX)?.strip_prefix("ch-")?.parse().ok()?;
    // Only what we would have written ourselves.
    ((1..=vmloop_abi::message::TAG_MAX).contains(&tag) && channel_device(tag) == device)
        .then_some(tag)
}

/// The channel whose device and character device have these ids.
pub fn parse_channel(device: &str, chardev: &str) -> Option<Found> {
    let tag = channel_tag(device)?;
    let rest = chardev.strip_prefix(&channel_device(tag))?.strip_prefix('-')?;
    let (peer, epoch) = rest.split_once('-')?;
    let found = Found {
        tag,
        peer: u64::from_str_radix(peer, 16).ok()?,
        epoch: u64::from_str_radix(epoch, 16).ok()?,
    };
    (channel_chardev(tag, found.peer, found.epoch) == chardev).then_some(found)
}

/// Id of a window's device, of its memory, and of the descriptor behind that.
pub fn window_device(window: WindowId) -> String {
    let WindowId { tag, owner, number } = window;
    format!("{PREFIX}win-{tag}-{owner}-{number}")
}

/// The window whose device, or memory, has this id.
pub fn parse_window(device: &str) -> Option<WindowId> {
    let mut parts = device.strip_prefix(PREFIX)?.strip_prefix("win-")?.split('-');
    let id = WindowId {
        tag: parts.next()?.parse().ok()?,
        owner: parts.next()?.parse().ok()?,
        number: parts.next()?.parse().ok()?,
    };
    (id.owner < 2 && window_device(id) == device).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_channels_tell_where_they_lead() {
        let chardev = channel_chardev(7, 0xabc, u64::MAX);
        assert_eq!(
            parse_channel("vmloop-ch-7", &chardev),
            Some(Found { tag: 7, peer: 0xabc, epoch: u64::MAX })
        );
        for (device, chardev) in [
            ("vmloop-ch-8", chardev.as_str()),
            ("vmloop-ch-07", "vmloop-ch-7-0000000000000abc-ffffffffffffffff"),
            ("vmloop-ch-0", "vmloop-ch-0-0000000000000abc-0000000000000001"),
            ("vmloop-ctl", "vmloop-ctl"),
            ("vmloop-ch-7", "vmloop-ch-7-abc-1"),
            ("vmloop-ch-7", ""),
        ] {
            assert_eq!(parse_channel(device, chardev), None, "{device} {chardev}");
        }
    }

    #[test]
    fn ids_of_windows() {
        let id = WindowId { tag: 7, owner: 1, number: 42 };
        assert_eq!(window_device(id), "vmloop-win-7-1-42");
        assert_eq!(parse_window("vmloop-win-7-1-42"), Some(id));
        for wrong in ["vmloop-win-7-2-42", "vmloop-win-07-1-42", "vmloop-win-7-1", "vmloop-ch-7"] {
            assert_eq!(parse_window(wrong), None, "{wrong}");
        }
    }
}
