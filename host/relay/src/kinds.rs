// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which kinds of lanes are copied.

use vmloop_abi::lanes::{VMLOOP_LANE_STREAM, VMLOOP_LANE_TOY_BYTES, VMLOOP_LANE_TOY_RECORDS};
use vmloop_abi::ring::Grain;
use vmloop_abi::shm::VMLOOP_LANE_PACKET;

/// What rings of each kind carry. A kind that is not here is refused: one that is not
/// known, as it is not known what its rings carry, and one with references, as there is no
/// memory that both guests could read.
#[derive(Clone, Debug)]
pub struct Kinds(Vec<(u32, Grain)>);

impl Default for Kinds {
    /// All kinds that can be copied.
    fn default() -> Self {
        Self(vec![
            (VMLOOP_LANE_PACKET, Grain::Records),
            (VMLOOP_LANE_STREAM, Grain::Bytes),
            (VMLOOP_LANE_TOY_RECORDS, Grain::Records),
            (VMLOOP_LANE_TOY_BYTES, Grain::Bytes),
        ])
    }
}

impl Kinds {
    /// What rings of a kind carry, if it is copied.
    pub fn grain(&self, kind: u32) -> Option<Grain> {
        self.0.iter().find(|(one, _)| *one == kind).map(|(_, grain)| *grain)
    }
}
