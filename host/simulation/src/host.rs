// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The pretended host: which guests there are, and which bridge each is on.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use vmloopd::network::links::{Link, Links};

/// Index of the first bridge; those of taps are smaller.
const BRIDGES: u32 = 1_000_000;

/// How many guests and bridges a host has. Guest N is on bridge N modulo their number.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// guests
    pub guests: u32,
    /// bridges
    pub bridges: u32,
}

/// Name of the interface behind guest `number`.
pub fn tap(number: u32) -> String {
    format!("tap{number}")
}

/// Hardware address of guest `number`.
pub fn mac(number: u32) -> [u8; 6] {
    let [_, a, b, c] = number.to_be_bytes();
    [0x52, 0x54, 0, a, b, c]
}

/// IP address of guest `number`.
pub fn ip(number: u32) -> IpAddr {
    let [_, a, b, c] = number.to_be_bytes();
    Ipv4Addr::new(10, a, b, c).into()
}

/// QMP socket of guest `number`.
pub fn socket(directory: &Path, number: u32) -> PathBuf {
    directory.join(format!("g{number}.sock"))
}

/// Socket of the agent's API.
pub fn api(directory: &Path) -> PathBuf {
    directory.join("api.sock")
}

impl Host {
    /// Bridge of guest `number`.
    pub fn bridge(&self, number: u32) -> u32 {
        number % self.bridges
    }

    /// Guests on a bridge, in order.
    pub fn on(&self, bridge: u32) -> impl Iterator<Item = u32> {
        (bridge..self.guests).step_by(self.bridges as usize)
    }

    /// Interfaces of the host by index, as processes of QEMU have them open.
    pub fn taps(&self) -> Vec<(u32, String)> {
        (0..self.guests).map(|number| (number + 1, tap(number))).collect()
    }

    /// All interfaces.
    pub fn links(&self) -> Links {
        let taps = (0..self.guests).map(|number| {
            let master = BRIDGES + self.bridge(number);
            let link = Link { name: tap(number), mtu: 1500, up: true, ..Link::default() };
            (number + 1, Link { master, forwarding: true, running: true, ..link })
        });
        let bridges = (0..self.bridges).map(|number| {
            let name = format!("br{number}");
            (BRIDGES + number, Link { name, up: true, bridge: true, mtu: 1500, ..Link::default() })
        });
        Links::new(taps.chain(bridges))
    }
}
