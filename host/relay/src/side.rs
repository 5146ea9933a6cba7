// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Our side of one of the two channels.

use vmloop_abi::lanes::VMLOOP_LIFE_FREE;
use vmloop_abi::life::{Area, Life};
use vmloop_abi::shm::VMLOOP_SIDE_ABSENT;
use vmloop_abi::table::Table;

/// What a guest did that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Break {
    /// Its side has another version than the region.
    #[error("another version than the channel's")]
    Version,
    /// Its number of lanes.
    #[error("a number of lanes that cannot be")]
    Lanes,
    /// The state of its side.
    #[error("a state that does not follow from the one before")]
    State,
    /// The life of a lane, or what it says of one that it has accepted.
    #[error("lane {0}: a step that cannot be")]
    Lane(u32),
    /// A ring.
    #[error("lane {0}: a position or a record that cannot be")]
    Ring(u32),
}

/// Guest 0 or 1, and what it did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) guest: usize,
    pub(crate) what: Break,
}

/// What we are to one guest.
pub(crate) struct Side {
    pub(crate) table: Table,
    pub(crate) area: Area,
    /// The guest's state, as last seen and believed.
    pub(crate) theirs: u32,
    /// Ours.
    pub(crate) ours: u32,
    /// The guest is to be rung at the end of the turn.
    pub(crate) ring: bool,
}

impl Side {
    /// None for a region that has been used, or without data.
    pub(crate) fn new(table: Table) -> Option<Self> {
        let pages = table.pages().min(Area::PAGES_MAX);
        // As in the core: most of it may wait for a guest that does not let go.
        let area = Area::new(pages, pages - pages / 8)?;
        let new = table.our_state() == VMLOOP_SIDE_ABSENT;
        new.then_some(Self {
            table,
            area,
            theirs: VMLOOP_SIDE_ABSENT,
            ours: VMLOOP_SIDE_ABSENT,
            ring: false,
        })
    }

    pub(crate) fn say_state(&mut self, state: u32) {
        self.ours = state;
        self.table.say_state(state);
        self.ring = true;
    }

    pub(crate) fn tell(&mut self, lane: u32) {
        self.ring |= self.table.tell(lane);
    }

    /// Takes a step of a lane's life that is ours, and tells.
    pub(crate) fn go(&mut self, lane: u32, life: &mut Life, step: u32, reason: u32) {
        if step != VMLOOP_LIFE_FREE {
            self.table.say_reason(lane, reason);
        }
        self.table.say_life(lane, life.go(step));
        self.tell(lane);
    }
}
