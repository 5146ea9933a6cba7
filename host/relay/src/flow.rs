// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One direction of a lane that is open: from the ring of one guest into our ring for the
//! other. What was copied is given back only when the other guest has read it.

use vmloop_abi::ring::{Broken, Copied, End};
use vmloop_abi::table::{LaneRx, LaneTx, copy};

use crate::places::Places;

/// How far a direction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All that there is has been copied, or can be no more.
    Done,
    /// There is no room for what is next.
    Full,
    /// There is more.
    More,
}

pub(crate) struct Flow {
    rx: LaneRx,
    tx: LaneTx,
    places: Places,
    pub(crate) progress: Progress,
}

impl Flow {
    pub(crate) fn new(rx: LaneRx, tx: LaneTx) -> Self {
        let places = Places::new(rx.tail(), tx.head());
        Self { rx, tx, places, progress: Progress::More }
    }

    /// Where our ring ends.
    pub(crate) fn end(&self) -> u32 {
        self.tx.head()
    }

    /// Gives back what the guest that reads has published as read; whether the guest that
    /// writes wants a doorbell.
    ///
    /// # Errors
    /// If the guest that reads says what cannot be.
    pub(crate) fn give_back(&mut self) -> Result<bool, Broken> {
        let near = self.places.near_of(self.tx.tail()?);
        Ok(near != self.rx.published() && self.rx.publish_to(near))
    }

    /// Copies what there is, some `most` bytes, and shows it; whether the guest that reads
    /// wants a doorbell.
    ///
    /// # Errors
    /// The end whose guest says what cannot be.
    pub(crate) fn copy(&mut self, most: u32) -> Result<bool, End> {
        let mut left = most;
        self.progress = loop {
            if left == 0 {
                break Progress::More;
            }
            match copy(&mut self.rx, &mut self.tx, left)? {
                Copied::Some { from, to, bytes } => {
                    self.places.add(from, to, bytes);
                    left = left.saturating_sub(bytes);
                }
                Copied::Empty => break Progress::Done,
                Copied::Full => break Progress::Full,
            }
        };
        Ok(self.tx.publish())
    }

    /// Asks for a doorbell at what comes next. False if it has come already.
    pub(crate) fn wait_for_more(&mut self) -> bool {
        self.rx.sleep()
    }

    /// Asks for a doorbell when the guest that reads has read on. False if it has already.
    pub(crate) fn wait_for_reader(&mut self) -> bool {
        match self.tx.tail() {
            Ok(tail) if tail != self.tx.head() => self.tx.wait_read(tail.wrapping_add(1)),
            Ok(_) => true,
            Err(Broken) => false,
        }
    }

    /// Whether something is on its way that the guest that reads has not read.
    pub(crate) fn is_awaited(&mut self) -> bool {
        self.tx.account() != 0
    }
}
