// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How many doorbells a channel gets, and how many descriptors the agent needs, to be
//! compared with its unit.
//!
//! Of memory it locks none. What it maps is a page or so of each guest's control
//! device, so that vm.max_map_count (65,530) is far away.

use vmloop_policy::DOORBELLS_MAX;

/// Of an agent without guests: log, API, netlink, inotify, signals, metrics,
/// and some clients at once.
pub const BASE: u64 = 256;
/// Of a QEMU guest: QMP, pidfd, and the two doorbells of its control device. A channel
/// that is open takes none: its memory, its doorbells and the sockets behind its devices
/// are QEMU's alone then.
pub const GUEST: u64 = 4;
/// More, while its control device is made: memory, and both ends of a socket.
pub const CONTROL: u64 = 3;
/// Of a channel between two QEMU guests while it is made: memory, doorbells of both sides,
/// and both ends of a socket for each of the two devices.
pub const MAKING: u64 = 5 + 2 * BELLS as u64;

/// Doorbells of a side, at most.
pub const BELLS: u32 = DOORBELLS_MAX;
/// Doorbells that all channels of a guest have for each of its CPUs, before new channels
/// get one only: a CPU of an x86 guest has some 200 interrupt vectors for all devices.
const BELLS_OF_CPU: u32 = 64;
/// The same, whatever CPUs it has: KVM has 4,096 interrupt routes for all devices of a
/// machine (`KVM_MAX_IRQ_ROUTES`).
const BELLS_OF_GUEST: u32 = 1024;

/// What counts of a guest when a channel of its own is made.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// CPUs that are online, 0 if it does not say so; None before it has spoken
    pub cpus: Option<u32>,
    /// doorbells that its channels have
    pub bells: u32,
    /// doorbells that its machine has room for
    pub room: u32,
}

/// Doorbells of each side of a channel between two guests: more than one where both have
/// CPUs that could each hear one of their own. A guest that has not spoken yet may have as
/// many as the other: it hears those that it can. No more than `most`, the policy's.
pub fn bells(guests: [Use; 2], most: u32) -> u32 {
    let cpus = guests.iter().filter_map(|guest| guest.cpus);
    let lanes = cpus.fold(most.min(BELLS).saturating_sub(1), u32::min);
    let have = |guest: &Use| {
        let cpus = guest.cpus.unwrap_or(lanes);
        let most = BELLS_OF_CPU.saturating_mul(cpus).min(BELLS_OF_GUEST).min(guest.room);
        guest.bells.saturating_add(1 + lanes) <= most
    };
    if lanes > 1 && guests.iter().all(have) { 1 + lanes } else { 1 }
}

/// Windows of which a guest has an end at a time: each takes a place for a device.
pub const WINDOWS_OF_GUEST: usize = 16;

/// Channels of one guest that are made at once; others wait for them.
pub const AT_ONCE: usize = 4;

/// What so many guests take at most: all have control devices made at the same time,
/// and as many channels and windows as they may.
pub const fn descriptors(guests: u64) -> u64 {
    let making = guests * AT_ONCE as u64 / 2;
    // Memory of a window, until both guests have it.
    let windows = guests * WINDOWS_OF_GUEST as u64 / 2;
    BASE + guests * (GUEST + CONTROL) + making * MAKING + windows
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &str = include_str!("../../../packaging/debian/vmloop-agent.vmloopd.service");

    fn setting(name: &str) -> Vec<&'static str> {
        UNIT.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
    }

    #[test]
    fn doorbells_are_for_guests_of_several_cpus() {
        let guest = |cpus| Use { cpus, bells: 0, room: 1000 };
        let of = |a, b| bells([guest(a), guest(b)], BELLS);
        // As the guest with fewer CPUs has CPUs, and one for all.
        assert_eq!(of(Some(4), Some(2)), 3);
        assert_eq!(of(Some(8), Some(64)), 9);
        assert_eq!(of(Some(u32::MAX), Some(u32::MAX)), 9);
        // A CPU alone, or none that is known.
        assert_eq!([of(Some(1), Some(8)), of(Some(8), Some(0))], [1, 1]);
        // No more than the policy says.
        let most = |most| bells([guest(Some(8)), guest(Some(8))], most);
        assert_eq!([most(0), most(1), most(2), most(3), most(99)], [1, 1, 1, 3, 9]);
        // One that has just arrived.
        assert_eq!([of(Some(4), None), of(None, Some(64)), of(None, Some(1))], [5, 9, 1]);
    }

    #[test]
    fn doorbells_are_bounded() {
        let of = |cpus, bells, room| {
            let (one, other) = (
                Use { cpus: Some(cpus), bells, room },
                Use { cpus: Some(cpus), bells: 0, room: 1000 },
            );
            assert_eq!(super::bells([one, other], BELLS), super::bells([other, one], BELLS));
            super::bells([one, other], BELLS)
        };
        assert_eq!([of(2, 125, 1000), of(2, 126, 1000)], [3, 1]);
        assert_eq!([of(64, 1015, 2000), of(64, 1016, 2000), of(64, u32::MAX, 2000)], [9, 1, 1]);
        assert_eq!([of(2, 7, 10), of(2, 8, 10), of(2, 0, 0)], [3, 1, 1]);
    }

    #[test]
    fn the_unit_grants_what_a_thousand_guests_take() {
        let needed = descriptors(1000);
        assert_eq!(needed, 61_256);
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
