// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How many descriptors the agent needs, to be compared with its unit.
//!
//! Of memory it locks none. What it maps is a page or so of each guest's control
//! device, so that vm.max_map_count (65,530) is far away.

/// Of an agent without guests: log, API, netlink, inotify, signals, metrics,
/// and some clients at once.
pub const BASE: u64 = 256;
/// Of a QEMU guest: QMP, pidfd, and the two doorbells of its control device. A channel
/// that is open takes none: its memory, its doorbells and the sockets behind its devices
/// are QEMU's alone then.
pub const GUEST: u64 = 4;
/// More, while its control device is made: memory, and both ends of a socket.
pub const CONTROL: u64 = 3;
/// Of a channel between two QEMU guests while it is made: memory, two doorbells, and
/// both ends of a socket for each of the two devices.
pub const MAKING: u64 = 7;

/// Channels of one guest that are made at once; others wait for them.
pub const AT_ONCE: usize = 4;

/// What so many guests take at most: all have control devices made at the same time,
/// and as many channels as they may.
pub const fn descriptors(guests: u64) -> u64 {
    let making = guests * AT_ONCE as u64 / 2;
    BASE + guests * (GUEST + CONTROL) + making * MAKING
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &str = include_str!("../../../packaging/debian/vmloop-agent.vmloopd.service");

    fn setting(name: &str) -> Vec<&'static str> {
        UNIT.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
    }

    #[test]
    fn the_unit_grants_what_a_thousand_guests_take() {
        let needed = descriptors(1000);
        assert_eq!(needed, 21_256);
        let [limit] = setting("LimitNOFILE")[..] else { panic!("one LimitNOFILE") };
        let limit: u64 = limit.parse().expect("a number");
        // The kernel's own bound for a process, fs.nr_open, is 1,048,576.
        assert!((needed..=1 << 20).contains(&limit), "{limit} of {needed}");
    }

    #[test]
    fn the_unit_grants_what_it_takes_to_look_at_the_host() {
        let [capabilities] = setting("CapabilityBoundingSet")[..] else { panic!("one set") };
        let mut capabilities: Vec<_> = capabilities.split(' ').collect();
        capabilities.sort_unstable();
        assert_eq!(capabilities, ["CAP_DAC_OVERRIDE", "CAP_NET_ADMIN", "CAP_SYS_PTRACE"]);
        // What would hide other processes, the host's network, or sockets in /home.
        for forbidden in ["ProtectProc", "PrivateNetwork", "PrivateUsers", "PrivateDevices"] {
            assert_eq!(setting(forbidden), [""; 0], "{forbidden}");
        }
        assert_eq!(setting("ProtectHome"), ["read-only"]);
    }
}
