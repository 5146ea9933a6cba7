// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One lane's number, the same in both channels: one guest opens it there, and we open it
//! here. Its generations are the same on both sides: a number is free again for the guest
//! that opens it only when it is so for us at the other one.

use std::time::Duration;

use vmloop_abi::lanes::{
    VMLOOP_LIFE_CLOSED, VMLOOP_LIFE_CLOSING, VMLOOP_LIFE_FREE, VMLOOP_LIFE_OPEN,
    VMLOOP_LIFE_REFUSED, VMLOOP_REASON_KIND, VMLOOP_REASON_NONE, VMLOOP_REASON_RING,
    VMLOOP_REASON_ROOM,
};
use vmloop_abi::life::{Life, start, step};
use vmloop_abi::ring::{End, Grain};
use vmloop_abi::shm::VMLOOP_F_MOVES;
use vmloop_abi::table::{Description, LaneRx, LaneTx};

use crate::flow::{Flow, Progress};
use crate::kinds::Kinds;
use crate::side::{Break, Fault, Side};

/// How long a guest may leave unread what the other one has left behind, as in section 3.
pub(crate) const DRAIN_TIME: Duration = Duration::from_millis(200);

/// Bytes that are copied of a lane, one way, before others have their turn.
const BYTES_A_LOOK: u32 = 64 << 10;

/// What was found when a lane was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// There is more to do, whatever the guests do.
    pub(crate) again: bool,
    /// So there is at this time.
    pub(crate) until: Option<Duration>,
}

/// How lanes are to be looked at.
pub(crate) struct Rules<'a> {
    pub(crate) now: Duration,
    pub(crate) kinds: &'a Kinds,
    /// Lanes may be opened.
    pub(crate) open: bool,
}

/// Features that are not passed on: we do not follow a ring that moves.
pub(crate) const NOT_OURS: u64 = VMLOOP_F_MOVES;

/// What we say of a lane of ours that stands for another one.
fn stands_for(said: &Description, block: u32) -> Description {
    let features = said.features & !NOT_OURS;
    Description { ring_offset: u64::from(block), features, ..*said }
}

/// A lane that was opened by one guest and not yet accepted by the other.
struct Offer {
    grain: Grain,
    said: Description,
    rx: LaneRx,
    tx: LaneTx,
}

/// A lane that both guests have opened.
struct Up {
    /// From guest 0, and from guest 1.
    flow: [Flow; 2],
    /// What is not copied by then is not copied any more.
    until: Option<Duration>,
}

enum Phase {
    /// Nobody has opened it.
    Free,
    Offered(Box<Offer>),
    Up(Box<Up>),
    /// What remains is that both guests let go of it.
    Ending,
}

/// Where the rings of the last generation ended.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    ours: u32,
    theirs: u32,
}

pub(crate) struct Lane {
    number: u32,
    /// The guest that opens it.
    near: usize,
    /// The one that accepts it.
    far: usize,
    life: [Life; 2],
    ends: [Ends; 2],
    /// Where our ring for each guest is, in our data.
    block: [Option<u32>; 2],
    phase: Phase,
}

impl Lane {
    pub(crate) fn new(number: u32, sides: &[Side; 2]) -> Self {
        let opens = |side: &Side| number as usize % 2 == side.table.side();
        let life = [0, 1].map(|guest| Life::new(opens(&sides[guest])));
        let far = usize::from(life[1].opens());
        Self {
            number,
            near: 1 - far,
            far,
            life,
            ends: [Ends::default(); 2],
            block: [None; 2],
            phase: Phase::Free,
        }
    }

    /// Whether nobody has opened it.
    pub(crate) fn is_free(&self) -> bool {
        matches!(self.phase, Phase::Free)
    }

    /// Whether a guest has still to answer, or to read: its doorbell may have been lost.
    pub(crate) fn is_awaited(&mut self) -> bool {
        match &mut self.phase {
            Phase::Free => false,
            Phase::Offered(_) | Phase::Ending => true,
            Phase::Up(up) => up.flow.iter_mut().any(Flow::is_awaited),
        }
    }

    /// Whether all that a guest has produced was copied, as of the last look.
    pub(crate) fn is_copied(&self, from: usize) -> bool {
        match &self.phase {
            Phase::Up(up) => up.flow[from].progress == Progress::Done,
            _ => true,
        }
    }

    /// A guest's channel ends: it learns what the other one has read last.
    pub(crate) fn give_back_last(&mut self, guest: usize) {
        if let Phase::Up(up) = &mut self.phase
            && step(self.life[guest].ours()) != VMLOOP_LIFE_CLOSED
        {
            // A position that cannot be changes nothing: the last good one has been told.
            let _ = up.flow[guest].give_back();
        }
    }

    /// Acts upon what the guests have done to the lane.
    pub(crate) fn look(&mut self, sides: &mut [Side; 2], rules: &Rules) -> Result<Look, Fault> {
        for guest in 0..2 {
            self.see(guest, sides)?;
        }
        if let Phase::Free = self.phase {
            self.look_free(sides, rules);
        }
        if let Phase::Offered(_) = self.phase {
            self.look_offered(sides)?;
        }
        let mut look = Look::default();
        if let Phase::Up(_) = self.phase {
            look = self.look_up(sides, rules)?;
        }
        if let Phase::Ending = self.phase {
            self.look_ending(sides);
            // The guest that opens may have opened it again by now.
            look.again |= self.is_free();
        }
        Ok(look)
    }

    fn see(&mut self, guest: usize, sides: &[Side; 2]) -> Result<(), Fault> {
        let word = sides[guest].table.life(self.number);
        match self.life[guest].see(word) {
            Ok(_) => Ok(()),
            Err(_) => Err(Fault { guest, what: Break::Lane(self.number) }),
        }
    }

    fn go(&mut self, guest: usize, sides: &mut [Side; 2], step: u32, reason: u32) {
        sides[guest].go(self.number, &mut self.life[guest], step, reason);
    }

    /// Our ring for a guest is touched no more; it may still be read.
    fn close(&mut self, guest: usize, sides: &mut [Side; 2], reason: u32) {
        if let Some(block) = self.block[guest] {
            sides[guest].area.set_aside(block);
        }
        self.go(guest, sides, VMLOOP_LIFE_CLOSED, reason);
    }

    /// The guest is done with this generation, and so are we.
    fn finish(&mut self, guest: usize, sides: &mut [Side; 2]) {
        if let Some(block) = self.block[guest].take() {
            sides[guest].area.give(block);
        }
        self.ends[guest].theirs = sides[guest].table.their_head(self.number);
        self.go(guest, sides, VMLOOP_LIFE_FREE, VMLOOP_REASON_NONE);
    }

    fn look_free(&mut self, sides: &mut [Side; 2], rules: &Rules) {
        let (near, far) = (self.near, self.far);
        if !rules.open || !self.life[far].may(VMLOOP_LIFE_OPEN) {
            return;
        }
        if self.life[near].may(VMLOOP_LIFE_FREE) {
            // Opened and withdrawn before we have looked.
            let reason = sides[near].table.reason(self.number);
            self.skip(sides, reason);
        } else if self.life[near].may(VMLOOP_LIFE_OPEN) {
            match self.offer(sides, rules.kinds) {
                Ok(offer) => self.phase = Phase::Offered(Box::new(offer)),
                Err(reason) => {
                    self.go(near, sides, VMLOOP_LIFE_REFUSED, reason);
                    self.skip(sides, reason);
                }
            }
        }
    }

    /// The far guest is told of a generation that it had no part in: opened, and closed
    /// before it could see that.
    fn skip(&mut self, sides: &mut [Side; 2], reason: u32) {
        self.life[self.far].go(VMLOOP_LIFE_OPEN);
        self.go(self.far, sides, VMLOOP_LIFE_CLOSED, reason);
        self.phase = Phase::Ending;
    }

    /// The near guest has opened the lane: so do we at the far one. Or the reason why not.
    fn offer(&mut self, sides: &mut [Side; 2], kinds: &Kinds) -> Result<Offer, u32> {
        let (near, far, number) = (self.near, self.far, self.number);
        let said = sides[near].table.described_lane(number);
        let head = sides[near].table.their_head(number);
        let grain = kinds.grain(said.kind).ok_or(VMLOOP_REASON_KIND)?;
        let rx = sides[near].table.rx(number, grain, &said, head);
        let rx = rx.map_err(|_| VMLOOP_REASON_RING)?;
        // As large as the one it stands for: all that is on its way fits, and the largest
        // record.
        let size = said.ring_size;
        let block = sides[far].area.take(size).ok_or(VMLOOP_REASON_ROOM)?;
        let begin = start(self.ends[far].ours);
        let Ok(tx) = sides[far].table.tx(number, grain, u64::from(block), size, begin) else {
            sides[far].area.give(block);
            return Err(VMLOOP_REASON_RING);
        };
        self.block[far] = Some(block);
        let ours = stands_for(&said, block);
        sides[far].table.describe_lane(number, &ours);
        sides[far].table.begin_reading(number, start(self.ends[far].theirs));
        self.go(far, sides, VMLOOP_LIFE_OPEN, VMLOOP_REASON_NONE);
        Ok(Offer { grain, said, rx, tx })
    }

    fn look_offered(&mut self, sides: &mut [Side; 2]) -> Result<(), Fault> {
        let (near, far) = (self.near, self.far);
        let refused = step(self.life[far].theirs()) == VMLOOP_LIFE_REFUSED;
        if !refused && self.life[near].is_final() {
            // Withdrawn.
            let reason = sides[near].table.reason(self.number);
            self.close(far, sides, reason);
            self.end();
        } else if refused {
            let reason = sides[far].table.reason(self.number);
            if self.life[near].may(VMLOOP_LIFE_REFUSED) {
                self.go(near, sides, VMLOOP_LIFE_REFUSED, reason);
            }
            self.end();
        } else if self.life[far].may_consume() {
            let Phase::Offered(offer) = std::mem::replace(&mut self.phase, Phase::Ending) else {
                return Ok(());
            };
            self.accept(sides, *offer)?;
        }
        Ok(())
    }

    /// The far guest has accepted the lane: so do we at the near one.
    fn accept(&mut self, sides: &mut [Side; 2], offer: Offer) -> Result<(), Fault> {
        let (near, far, number) = (self.near, self.far, self.number);
        let said = sides[far].table.described_lane(number);
        let rx = sides[far].table.rx(number, offer.grain, &said, start(self.ends[far].theirs));
        let Ok(rx) = rx else {
            return Err(Fault { guest: far, what: Break::Lane(number) });
        };
        if said.kind != offer.said.kind {
            return Err(Fault { guest: far, what: Break::Lane(number) });
        }
        let size = said.ring_size;
        let Some(block) = sides[near].area.take(size) else {
            self.ends[far].ours = offer.tx.head();
            self.close(far, sides, VMLOOP_REASON_ROOM);
            self.go(near, sides, VMLOOP_LIFE_REFUSED, VMLOOP_REASON_ROOM);
            return Ok(());
        };
        self.block[near] = Some(block);
        let begin = start(self.ends[near].ours);
        let tx = sides[near].table.tx(number, offer.grain, u64::from(block), size, begin);
        let tx = tx.map_err(|_| Fault { guest: far, what: Break::Lane(number) })?;
        let ours = stands_for(&said, block);
        sides[near].table.describe_lane(number, &ours);
        self.go(near, sides, VMLOOP_LIFE_OPEN, VMLOOP_REASON_NONE);
        let from_near = Flow::new(offer.rx, offer.tx);
        let from_far = Flow::new(rx, tx);
        let flow = if near == 0 { [from_near, from_far] } else { [from_far, from_near] };
        self.phase = Phase::Up(Box::new(Up { flow, until: None }));
        Ok(())
    }

    /// Remembers where our rings end.
    fn end(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Ending) {
            Phase::Offered(offer) => self.ends[self.far].ours = offer.tx.head(),
            Phase::Up(up) => {
                for guest in 0..2 {
                    self.ends[guest].ours = up.flow[1 - guest].end();
                }
            }
            Phase::Free | Phase::Ending => {}
        }
    }

    fn look_up(&mut self, sides: &mut [Side; 2], rules: &Rules) -> Result<Look, Fault> {
        let Phase::Up(mut up) = std::mem::replace(&mut self.phase, Phase::Ending) else {
            return Ok(Look::default());
        };
        let done = self.work(&mut up, sides, rules);
        self.phase = Phase::Up(up);
        let look = done?;
        if self.life.iter().all(|life| step(life.ours()) == VMLOOP_LIFE_CLOSED) {
            self.end();
        }
        Ok(look)
    }

    fn work(&mut self, up: &mut Up, sides: &mut [Side; 2], rules: &Rules) -> Result<Look, Fault> {
        let number = self.number;
        let ring = |guest| Fault { guest, what: Break::Ring(number) };
        // Words were loaded before positions are: what a guest that has closed the lane has
        // read is final.
        for (from, to) in [(0, 1), (1, 0)] {
            if step(self.life[from].ours()) != VMLOOP_LIFE_CLOSED
                && up.flow[from].give_back().map_err(|_| ring(to))?
            {
                sides[from].tell(number);
            }
        }
        for (from, to) in [(0, 1), (1, 0)] {
            let produces =
                sides[to].ours == vmloop_abi::shm::VMLOOP_SIDE_READY && self.life[to].may_produce();
            if !produces || !self.life[from].may_consume() {
                up.flow[from].progress = Progress::Done;
                continue;
            }
            let copied = up.flow[from].copy(BYTES_A_LOOK);
            let wanted = copied.map_err(|end| match end {
                End::Rx => ring(from),
                End::Tx => ring(to),
            })?;
            if wanted {
                sides[to].tell(number);
            }
        }
        self.pass_on_ends(up, sides, rules.now);
        Ok(self.wait(up, sides))
    }

    /// A guest that produces nothing more, or has closed the lane: the other one is told
    /// when all that there was has been copied.
    fn pass_on_ends(&mut self, up: &mut Up, sides: &mut [Side; 2], now: Duration) {
        for (from, to) in [(0, 1), (1, 0)] {
            let copied = up.flow[from].progress == Progress::Done;
            let reason = sides[from].table.reason(self.number);
            if self.life[from].is_final() {
                let until = *up.until.get_or_insert(now + DRAIN_TIME);
                if (copied || now >= until) && self.life[to].may(VMLOOP_LIFE_CLOSED) {
                    self.close(to, sides, reason);
                }
            } else if step(self.life[from].theirs()) == VMLOOP_LIFE_CLOSING
                && copied
                && self.life[to].may(VMLOOP_LIFE_CLOSING)
            {
                self.go(to, sides, VMLOOP_LIFE_CLOSING, reason);
            }
        }
    }

    /// Asks for doorbells.
    fn wait(&self, up: &mut Up, sides: &[Side; 2]) -> Look {
        let mut look = Look::default();
        for (from, to) in [(0, 1), (1, 0)] {
            let reads = self.life[from].may_consume() && !self.life[from].is_final();
            let open = step(self.life[to].ours()) != VMLOOP_LIFE_CLOSED;
            let flow = &mut up.flow[from];
            match flow.progress {
                Progress::More => look.again = true,
                Progress::Done if reads && sides[to].ours == vmloop_abi::shm::VMLOOP_SIDE_READY => {
                    look.again |= self.life[to].may_produce() && !flow.wait_for_more();
                }
                Progress::Done => {}
                Progress::Full if open && self.life[from].is_final() => look.until = up.until,
                Progress::Full => {}
            }
            if open && !self.life[to].is_final() {
                look.again |= !flow.wait_for_reader();
            }
        }
        look
    }

    fn look_ending(&mut self, sides: &mut [Side; 2]) {
        let (near, far) = (self.near, self.far);
        if step(self.life[far].ours()) != VMLOOP_LIFE_FREE && self.life[far].may(VMLOOP_LIFE_FREE) {
            self.finish(far, sides);
        }
        // Not before the far guest is ready for the next one.
        let next = step(self.life[far].ours()) == VMLOOP_LIFE_FREE
            && self.life[far].theirs() == self.life[far].ours();
        if next && self.life[near].may(VMLOOP_LIFE_FREE) {
            self.finish(near, sides);
            self.phase = Phase::Free;
        }
    }

    /// The other guest is gone: closes the lane.
    pub(crate) fn cut(&mut self, guest: usize, sides: &mut [Side; 2]) {
        if self.life[guest].may(VMLOOP_LIFE_CLOSED) {
            self.close(guest, sides, VMLOOP_REASON_NONE);
        } else if self.life[guest].may(VMLOOP_LIFE_REFUSED) {
            self.go(guest, sides, VMLOOP_LIFE_REFUSED, VMLOOP_REASON_KIND);
        }
    }

    /// Whether a guest has done with a lane that was cut.
    pub(crate) fn is_cut(&mut self, guest: usize, sides: &[Side; 2]) -> Result<bool, Fault> {
        self.see(guest, sides)?;
        let free = step(self.life[guest].ours()) == VMLOOP_LIFE_FREE;
        Ok(free || self.life[guest].is_final())
    }
}
