// SPDX-License-Identifier: GPL-2.0 OR MIT
//! IP addresses that guests have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::shm;

/// One IP address of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Hardware address of the interface that has it.
    pub mac: [u8; 6],
    /// The address.
    pub ip: IpAddr,
    /// Length of its subnet prefix in bits.
    pub prefix: u8,
}

impl Address {
    pub(crate) fn parse(wire: &shm::Address) -> Option<Self> {
        let (ip, bits) = match wire.family {
            shm::VMLOOP_ADDR_IPV4 => {
                let mut octets = [0; 4];
                octets.copy_from_slice(&wire.ip[..4]);
                (IpAddr::V4(Ipv4Addr::from(octets)), 32)
            }
            shm::VMLOOP_ADDR_IPV6 => (IpAddr::V6(Ipv6Addr::from(wire.ip)), 128),
            _ => return None,
        };
        (wire.prefix <= bits).then_some(Self { mac: wire.mac, ip, prefix: wire.prefix })
    }

    pub(crate) fn wire(&self) -> shm::Address {
        let mut out = shm::Address { prefix: self.prefix, mac: self.mac, ..Default::default() };
        match self.ip {
            IpAddr::V4(ip) => {
                out.family = shm::VMLOOP_ADDR_IPV4;
                out.ip[..4].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                out.family = shm::VMLOOP_ADDR_IPV6;
                out.ip = ip.octets();
            }
        }
        out
    }
}
