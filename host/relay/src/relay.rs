// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Both channels, turn by turn.

use std::io;
use std::time::{Duration, Instant};

use vmloop_abi::lanes::VMLOOP_TABLE_MAJOR;
use vmloop_abi::shm::{
    VMLOOP_SIDE_ABSENT, VMLOOP_SIDE_CLOSED, VMLOOP_SIDE_CLOSING, VMLOOP_SIDE_READY,
};
use vmloop_abi::table::Table;

use crate::bells::Doorbells;
use crate::kinds::Kinds;
use crate::lane::{DRAIN_TIME, Lane, NOT_OURS, Rules};
use crate::side::{Break, Fault, Side};

/// Lanes that one turn looks at.
pub const LANES_A_TURN: usize = 64;

/// How often guests are looked at and rung that have something to do: a doorbell can be
/// lost.
const POLL: Duration = Duration::from_secs(1);

/// What is to be done after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Another one, at once.
    Again,
    /// Another one when a guest rings, or at this time.
    Wait(Duration),
    /// Nothing: both channels have ended.
    Over,
}

/// How a channel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As channels end.
    Closed,
    /// The guest broke the protocol.
    Broken(Break),
}

/// Two regions that a relay cannot stand between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the regions are no two that a relay can stand between")]
pub struct NotTwo;

enum Phase {
    /// Until both guests are there.
    Waiting,
    /// Lanes are copied; one of the guests may be closing.
    Up,
    /// One channel has ended; the other one's lanes are closed, until then.
    Cut(usize, Duration),
    Over,
}

/// A relay between guest 0 and guest 1.
pub struct Relay {
    sides: [Side; 2],
    kinds: Kinds,
    lanes: Vec<Lane>,
    /// Lanes to be looked at.
    news: Vec<bool>,
    /// Where to begin, so that each has its turn: among those in use, and the others.
    next: [usize; 2],
    phase: Phase,
    outcome: [Outcome; 2],
    /// When a guest was first seen to close its channel, and to have closed it.
    closing: Option<Duration>,
    closed: Option<Duration>,
    /// By [`Relay::close`], whatever the guests say.
    told_to_close: bool,
    /// When lanes that wait for something are looked at.
    until: Duration,
}

impl Relay {
    /// Stands between two guests; each has the other side of one of the regions.
    ///
    /// # Errors
    /// [`NotTwo`] unless both regions are new and of one size, and we are the side in each
    /// that we are not in the other: so each guest has the side that it would have.
    pub fn new(regions: [Table; 2], kinds: Kinds) -> Result<Self, NotTwo> {
        let [a, b] = &regions;
        if a.side() == b.side() || a.pages() != b.pages() {
            return Err(NotTwo);
        }
        let [a, b] = regions.map(Side::new);
        Ok(Self {
            sides: [a.ok_or(NotTwo)?, b.ok_or(NotTwo)?],
            kinds,
            lanes: Vec::new(),
            news: Vec::new(),
            next: [0; 2],
            phase: Phase::Waiting,
            outcome: [Outcome::Closed; 2],
            closing: None,
            closed: None,
            told_to_close: false,
            until: Duration::ZERO,
        })
    }

    /// How the two channels have ended, once they have.
    pub fn outcome(&self) -> [Outcome; 2] {
        self.outcome
    }

    /// Pages of our data in each region that no lane has.
    pub fn pages_left(&self) -> [u32; 2] {
        [self.sides[0].area.left(), self.sides[1].area.left()]
    }

    /// Whether lanes are, or were, copied.
    pub fn is_up(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// A guest is gone, and says nothing any more: as if it had closed its channel.
    pub fn gone(&mut self, guest: usize) {
        self.sides[guest].theirs = VMLOOP_SIDE_CLOSED;
        self.look_at_all();
    }

    /// Ends both channels, as if each guest had begun to close its own.
    pub fn close(&mut self) {
        for side in &mut self.sides {
            side.theirs = side.theirs.max(VMLOOP_SIDE_CLOSING);
        }
        self.told_to_close = true;
        self.look_at_all();
    }

    /// Runs until both channels have ended.
    ///
    /// # Errors
    /// Those of [`Doorbells::wait`].
    pub fn run(&mut self, bells: &mut impl Doorbells) -> io::Result<[Outcome; 2]> {
        let begin = Instant::now();
        loop {
            match self.turn(begin.elapsed(), bells) {
                // What is to end it is seen there.
                Turn::Again => bells.wait(Duration::ZERO)?,
                Turn::Wait(until) => bells.wait(until.saturating_sub(begin.elapsed()))?,
                Turn::Over => return Ok(self.outcome),
            }
        }
    }

    /// Does a bounded part of what there is to do. `now` never goes back.
    pub fn turn(&mut self, now: Duration, bells: &mut impl Doorbells) -> Turn {
        if let Err(fault) = self.act(now) {
            self.break_off(fault, now);
        }
        for (guest, side) in self.sides.iter_mut().enumerate() {
            if std::mem::take(&mut side.ring) {
                bells.ring(guest);
            }
        }
        match self.phase {
            Phase::Over => Turn::Over,
            Phase::Up if self.news.contains(&true) => Turn::Again,
            Phase::Cut(_, until) => Turn::Wait(until),
            Phase::Up | Phase::Waiting => Turn::Wait(self.until),
        }
    }

    fn act(&mut self, now: Duration) -> Result<(), Fault> {
        let mut moved = false;
        for guest in 0..2 {
            moved |= self.see_state(guest)?;
        }
        match self.phase {
            Phase::Over => Ok(()),
            Phase::Waiting => self.wait_for_both(now),
            Phase::Up => {
                if moved {
                    self.look_at_all();
                }
                self.act_up(now)
            }
            Phase::Cut(guest, until) => self.act_cut(guest, until, now),
        }
    }

    /// Whether a guest's state is another one than before.
    fn see_state(&mut self, guest: usize) -> Result<bool, Fault> {
        let side = &mut self.sides[guest];
        if side.ours == VMLOOP_SIDE_CLOSED || side.theirs == VMLOOP_SIDE_CLOSED {
            return Ok(false);
        }
        let state = side.table.state();
        if state > VMLOOP_SIDE_CLOSED {
            return Err(Fault { guest, what: Break::State });
        }
        if state < side.theirs {
            // Not of one that was told to close, which may not have seen it yet.
            let closing = self.told_to_close && side.theirs == VMLOOP_SIDE_CLOSING;
            return if closing { Ok(false) } else { Err(Fault { guest, what: Break::State }) };
        }
        let moved = state != side.theirs;
        side.theirs = state;
        Ok(moved)
    }

    fn wait_for_both(&mut self, now: Duration) -> Result<(), Fault> {
        self.until = now + POLL;
        if self.sides.iter().any(|side| side.theirs > VMLOOP_SIDE_READY) {
            self.finish();
            return Ok(());
        }
        if self.sides.iter().any(|side| side.theirs == VMLOOP_SIDE_ABSENT) {
            return Ok(());
        }
        let mut said = [(0, 0); 2];
        for (guest, side) in self.sides.iter().enumerate() {
            let (major, features, lanes) = side.table.described();
            if major != VMLOOP_TABLE_MAJOR {
                return Err(Fault { guest, what: Break::Version });
            }
            if lanes < 2 || lanes % 2 != 0 {
                return Err(Fault { guest, what: Break::Lanes });
            }
            said[guest] = (features, lanes.min(side.table.room()));
        }
        for (guest, side) in self.sides.iter_mut().enumerate() {
            let (features, lanes) = said[1 - guest];
            let features = features & !NOT_OURS;
            side.table.describe(features, lanes.min(side.table.room()));
            side.say_state(VMLOOP_SIDE_READY);
        }
        let used = said[0].1.min(said[1].1);
        self.lanes = (0..used).map(|number| Lane::new(number, &self.sides)).collect();
        // Whatever was told by then.
        self.news = vec![true; self.lanes.len()];
        self.phase = Phase::Up;
        self.act_up(now)
    }

    /// Marks all lanes that somebody has opened.
    fn look_at_all(&mut self) {
        for (news, lane) in self.news.iter_mut().zip(&self.lanes) {
            *news |= !lane.is_free();
        }
    }

    /// Whether a guest closes its channel, or has closed it.
    fn is_closing(&self) -> bool {
        self.sides.iter().any(|side| side.theirs > VMLOOP_SIDE_READY)
    }

    fn act_up(&mut self, now: Duration) -> Result<(), Fault> {
        if self.is_closing() && self.closing.is_none() {
            self.closing = Some(now);
            self.look_at_all();
        }
        if now >= self.until {
            self.until = now + POLL;
            self.look_at_all();
            self.ring_again();
        }
        for side in &mut self.sides {
            let news = &mut self.news;
            side.table.take(|lane| {
                // Not all that there is room for may be used.
                if let Some(news) = news.get_mut(lane as usize) {
                    *news = true;
                }
            });
        }
        self.look(now)?;
        if let Some(since) = self.closing {
            self.pass_on_states(since, now);
        }
        Ok(())
    }

    /// A doorbell may have been lost.
    fn ring_again(&mut self) {
        if self.lanes.iter_mut().any(Lane::is_awaited) {
            for side in &mut self.sides {
                side.ring = true;
            }
        }
    }

    /// Looks at some of the lanes that there is news of. Those in use come first, as one
    /// that ends makes room; the others have a part of each turn for themselves.
    fn look(&mut self, now: Duration) -> Result<(), Fault> {
        let rules = Rules { now, kinds: &self.kinds, open: !self.is_closing() };
        let mut left = 0;
        for (free, more) in [(false, LANES_A_TURN * 3 / 4), (true, LANES_A_TURN / 4)] {
            left += more;
            let begin = self.next[usize::from(free)];
            for number in (begin..self.lanes.len()).chain(0..begin) {
                let lane = &mut self.lanes[number];
                if !self.news[number] || lane.is_free() != free {
                    continue;
                }
                if left == 0 {
                    self.next[usize::from(free)] = number;
                    break;
                }
                left -= 1;
                let look = lane.look(&mut self.sides, &rules)?;
                self.news[number] = look.again;
                if let Some(until) = look.until {
                    self.until = self.until.min(until);
                }
            }
        }
        Ok(())
    }

    /// What a guest says of its side the other one is told when all of its lanes have been
    /// copied, or the time for that is over.
    fn pass_on_states(&mut self, since: Duration, now: Duration) {
        let quiet = !self.news.contains(&true);
        let copied = |from: usize| quiet && self.lanes.iter().all(|lane| lane.is_copied(from));
        let copied = [copied(0), copied(1)];
        for (from, to) in [(0, 1), (1, 0)] {
            if self.sides[from].theirs == VMLOOP_SIDE_CLOSED {
                let closed = *self.closed.get_or_insert(now);
                if copied[from] || now >= closed + DRAIN_TIME {
                    self.finish();
                    return;
                }
            }
            if self.sides[from].theirs > VMLOOP_SIDE_READY
                && self.sides[to].ours == VMLOOP_SIDE_READY
                && (copied[from] || now >= since + DRAIN_TIME)
            {
                self.sides[to].say_state(VMLOOP_SIDE_CLOSING);
            }
        }
        if now >= since + 2 * DRAIN_TIME {
            self.finish();
            return;
        }
        for until in [since + DRAIN_TIME, since + 2 * DRAIN_TIME]
            .into_iter()
            .chain(self.closed.map(|closed| closed + DRAIN_TIME))
            .filter(|until| *until > now)
        {
            self.until = self.until.min(until);
        }
    }

    /// Both channels end. A guest is told CLOSED only if the other guest has said CLOSED, and after
    /// what the other guest has read last, as CLOSED makes that account final. Otherwise it is told
    /// CLOSING, and ends its channel after 200 ms.
    fn finish(&mut self) {
        for guest in 0..2 {
            let is_final = self.sides[1 - guest].theirs == VMLOOP_SIDE_CLOSED;
            let state = if is_final { VMLOOP_SIDE_CLOSED } else { VMLOOP_SIDE_CLOSING };
            if is_final {
                for lane in &mut self.lanes {
                    lane.give_back_last(guest);
                }
            }
            if self.sides[guest].ours < state {
                self.sides[guest].say_state(state);
            }
        }
        self.phase = Phase::Over;
    }

    /// The same where one guest is not believed any more.
    fn finish_cut(&mut self) {
        for side in &mut self.sides {
            if side.ours != VMLOOP_SIDE_CLOSED {
                side.say_state(VMLOOP_SIDE_CLOSED);
            }
        }
        self.phase = Phase::Over;
    }

    /// A guest broke the protocol: its channel has ended, and the other one's lanes are
    /// closed.
    fn break_off(&mut self, fault: Fault, now: Duration) {
        let other = 1 - fault.guest;
        self.outcome[fault.guest] = Outcome::Broken(fault.what);
        self.sides[fault.guest].say_state(VMLOOP_SIDE_CLOSED);
        if !matches!(self.phase, Phase::Up) || self.sides[other].theirs == VMLOOP_SIDE_CLOSED {
            self.finish_cut();
            return;
        }
        self.phase = Phase::Cut(other, now + DRAIN_TIME);
        for lane in &mut self.lanes {
            lane.cut(other, &mut self.sides);
        }
    }

    fn act_cut(&mut self, guest: usize, until: Duration, now: Duration) -> Result<(), Fault> {
        let mut done = now >= until || self.sides[guest].theirs == VMLOOP_SIDE_CLOSED;
        self.sides[guest].table.take(|_| {});
        if !done {
            done = true;
            for lane in &mut self.lanes {
                done &= lane.is_cut(guest, &self.sides)?;
            }
        }
        if done {
            self.finish_cut();
        }
        Ok(())
    }
}
