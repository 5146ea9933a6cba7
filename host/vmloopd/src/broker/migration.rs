// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Guests that are prepared for a migration, and what becomes of them.

use tokio::time::Instant;
use vmloop_abi::shm;
use vmloop_api::{EventKind, Problem};

use super::Broker;
use super::guests::Phase;
use super::waiters::Waiter;
use crate::answer::{Reply, answer};
use crate::handle::Command;
use crate::machine::{Key, Moving};

/// Why a guest that is under way is let alone.
fn under_way(name: &str) -> Problem {
    Problem::new("migrating", format!("{name} is being migrated, or has left"))
}

/// Why a guest whose attachment begins or ends is let alone.
fn in_between(name: &str) -> Problem {
    Problem::new("busy", format!("{name} is being attached or detached"))
        .hint("try again when vmloop ls says otherwise")
}

impl Broker {
    /// Prepares a guest, and migrates it then if there is somewhere to.
    pub(super) fn prepare(&mut self, key: Key, waiter: Waiter) {
        let recovering = self.recovering.is_some();
        let prepares = self.capabilities.prepares;
        let Some(guest) = self.guests.get_mut(key) else { return };
        let name = guest.name.clone();
        let problem = match guest.phase {
            _ if !prepares => Some(
                Problem::new("not-qemu", "Xen domains need no preparation")
                    .hint("use xl migrate or xl save; the agent notices"),
            ),
            Phase::Attaching | Phase::Detaching => Some(in_between(&name)),
            _ if recovering => Some(
                Problem::new("busy", "the agent has just started").hint("try again in a moment"),
            ),
            Phase::Standby if guest.moving != Moving::No => {
                Some(under_way(&name).hint("see vmloop ls"))
            }
            Phase::Attached => {
                guest.phase = Phase::Preparing;
                guest.preparing = Instant::now();
                None
            }
            // Its task says so again, or for how long it stays so.
            Phase::Standby | Phase::Returning => {
                guest.phase = Phase::Parting;
                guest.preparing = Instant::now();
                guest.tell(Command::Prepare);
                None
            }
            Phase::Preparing | Phase::Parting => None,
        };
        if let Some(problem) = problem {
            return answer(waiter.reply, Err(problem));
        }
        self.waiters.prepare(key, waiter);
        if self.guests.get(key).is_some_and(|guest| guest.phase == Phase::Preparing) {
            self.note(EventKind::GuestPreparing, &name, "", 0, "");
            self.part_all(key, shm::VMLOOP_CLOSE_MIGRATION);
            self.finish_prepare(key);
        }
        self.due.all();
    }

    /// Lets the control device go once the guest has no channel any more.
    pub(super) fn finish_prepare(&mut self, key: Key) {
        let busy = self.channels.has_ends(key);
        let Some(guest) = self.guests.get_mut(key) else { return };
        if guest.phase == Phase::Preparing && !busy && !guest.has_leftovers() {
            guest.phase = Phase::Parting;
            guest.tell(Command::Prepare);
        }
    }

    /// A guest stands by; or QEMU does something else with it.
    pub(super) fn standby(&mut self, key: Key, moving: Moving) {
        let Some(guest) = self.guests.get_mut(key) else { return };
        let before = std::mem::replace(&mut guest.moving, moving);
        match guest.phase {
            // It was found so: an earlier agent prepared it.
            Phase::Attaching | Phase::Parting => guest.phase = Phase::Standby,
            // It hears soon that it is to return, unless it cannot.
            Phase::Returning if moving != Moving::No => guest.phase = Phase::Standby,
            Phase::Standby => {}
            _ => return,
        }
        let (began, ours) = (guest.preparing, guest.ours);
        let name = guest.name.clone();
        match moving {
            Moving::No | Moving::In => {
                let took = format!("after {} ms", began.elapsed().as_millis());
                self.note(EventKind::GuestPrepared, &name, "", 0, &took);
            }
            Moving::Out if before != moving => {
                self.note(EventKind::GuestMigrating, &name, "", 0, "")
            }
            Moving::Left if before != moving => {
                self.note(EventKind::GuestDeparted, &name, "", 0, "")
            }
            Moving::Out | Moving::Left => {}
        }
        self.waiters.settle(key);
        // Clients that attached to it while it was under way.
        if let Some(reply) = self.waiters.take_attaching(key) {
            answer(reply, Ok(self.answer_of(key)));
            self.save();
        }
        // Its task cancels what is ours.
        if moving == Moving::Left || (moving == Moving::Out && !ours) {
            let problem = under_way(&name).hint("whoever began that must cancel it");
            self.waiters.not_resumed(key, &problem);
        }
        self.prepared(key, began);
        self.due.all();
    }

    /// Answers those who waited for it, or does what they wanted.
    fn prepared(&mut self, key: Key, began: Instant) {
        let here = self.answer_of(key);
        for Waiter { uri, reply } in self.waiters.take_preparing(key) {
            let Some(guest) = self.guests.get_mut(key) else { return };
            match uri {
                None => answer(reply, Ok(here.clone())),
                Some(_) if guest.ours || guest.moving != Moving::No => {
                    let text = format!("{} is being migrated already", guest.name);
                    answer(reply, Err(Problem::new("migrating", text).hint("see vmloop ls")));
                }
                Some(uri) => {
                    guest.ours = true;
                    guest.tell(Command::Migrate { uri, began, reply });
                }
            }
        }
    }

    /// Has a guest take part again that was prepared, or is about to be.
    pub(super) fn resume(&mut self, key: Key, reply: Reply) {
        let Some(guest) = self.guests.get_mut(key) else { return };
        let name = guest.name.clone();
        let problem = match guest.phase {
            Phase::Attached => None,
            Phase::Preparing | Phase::Parting | Phase::Returning => {
                self.call_off(key, "resumed");
                None
            }
            Phase::Standby
                if guest.moving == Moving::No || (guest.moving == Moving::Out && guest.ours) =>
            {
                guest.tell(Command::Resume);
                None
            }
            Phase::Standby => Some(under_way(&name).hint("whoever began that must cancel it")),
            Phase::Attaching | Phase::Detaching => Some(in_between(&name)),
        };
        if let Some(problem) = problem {
            return answer(reply, Err(problem));
        }
        self.waiters.resume(key, reply);
        if self.guests.get(key).is_some_and(|guest| guest.phase == Phase::Attached) {
            let here = self.answer_of(key);
            self.waiters.here(key, &here);
        }
    }

    /// Ends a preparation that is not done.
    pub(super) fn call_off(&mut self, key: Key, why: &str) {
        let Some(guest) = self.guests.get_mut(key) else { return };
        let name = guest.name.clone();
        match guest.phase {
            // Its task knows of nothing.
            Phase::Preparing => guest.phase = Phase::Attached,
            Phase::Parting => {
                guest.phase = Phase::Returning;
                guest.tell(Command::Resume);
            }
            _ => return,
        }
        self.note(EventKind::GuestReturning, &name, "", 0, why);
        let text = format!("the preparation of {name} was called off: {why}");
        let problem = Problem::new("called-off", text).hint(
            "a guest that is stopped, or has not booted yet, keeps its devices; see vmloop ls",
        );
        self.waiters.not_prepared(key, &problem);
        self.due.all();
    }

    /// A guest that stood by stays: its control device comes back.
    pub(super) fn returning(&mut self, key: Key) {
        let Some(guest) = self.guests.get_mut(key) else { return };
        if guest.phase == Phase::Standby {
            guest.phase = Phase::Returning;
            (guest.moving, guest.ours) = (Moving::No, false);
            let name = guest.name.clone();
            self.note(EventKind::GuestReturning, &name, "", 0, "it was not migrated");
        }
    }
}
