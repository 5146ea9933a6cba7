// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Guests that come and go: attached, detached, renamed, gone.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{error, info, warn};
use vmloop_abi::shm;
use vmloop_api::{EventKind, Problem};

use super::Broker;
use super::describe::describe_arrival;
use super::due::Timed;
use super::guests::{Arrival, Guest, Later, Phase, hex};
use super::opening::HELLO;
use crate::answer::{Answer, Reply, answer};
use crate::backend::Socket;
use crate::bucket::Bucket;
use crate::event::{Event, Number};
use crate::handle::{Command, Connected};
use crate::machine::{Found, Key, Machine, Moving, Nic};

/// Says in the log why it is not known which interfaces of the host a guest has.
fn say_unknown(name: &str, machine: &Machine) {
    let mut whys: Vec<_> = machine.nics.iter().filter_map(|nic| nic.unknown.as_ref()).collect();
    whys.dedup();
    for why in whys {
        error!(guest = name, "no channels: {why}");
    }
}

impl Broker {
    // ---- beginning

    /// Begins to attach to the machine behind a socket; None, with the client
    /// answered, if that cannot be.
    pub(super) fn attach(
        &mut self,
        path: PathBuf,
        name: Option<String>,
        reply: Reply,
        retry_until: Option<Instant>,
    ) -> Option<Key> {
        let path = path.canonicalize().unwrap_or(path);
        match self.begin_attach(path, name, retry_until) {
            Ok(key) => {
                self.waiters.attach(key, reply);
                Some(key)
            }
            Err(problem) => {
                answer(reply, Err(problem));
                None
            }
        }
    }

    fn begin_attach(
        &mut self,
        path: PathBuf,
        name: Option<String>,
        retry_until: Option<Instant>,
    ) -> Result<Key, Problem> {
        if self.guests.paths.values().any(|other| *other == path) {
            let text = format!("{} is attached already", path.display());
            return Err(Problem::new("attached-already", text));
        }
        if let Some(problem) = name.as_ref().and_then(|name| self.guests.name_problem(name)) {
            return Err(problem);
        }
        let key = self.new_key();
        let socket = Socket { path: path.clone(), name, retry_until };
        self.backend.attach(&self.post, key, socket)?;
        self.guests.paths.insert(key, path);
        Ok(key)
    }

    /// Machines have come or gone that are found by their numbers. Returns those
    /// that are attached now.
    pub(super) fn machines(&mut self, come: &[Number], gone: &[Number]) -> Vec<Key> {
        for number in gone {
            self.backend.went(*number);
        }
        let mut keys = Vec::with_capacity(come.len());
        for number in come {
            let key = self.new_key();
            self.backend.came(&self.post, key, *number);
            keys.push(key);
        }
        keys
    }

    /// Attaches a machine again that was detached.
    pub(super) fn include(&mut self, text: &str, reply: Reply) {
        let key = self.new_key();
        match self.backend.include(&self.post, key, text) {
            Ok(()) => self.waiters.attach(key, reply),
            Err(problem) => {
                let here = self.guests.find(text).ok().and_then(|key| self.guests.get(key));
                let problem = match here {
                    Some(guest) if problem.code == "no-such-guest" => {
                        let text = format!("{} is attached already", guest.name);
                        Problem::new("attached-already", text)
                    }
                    _ => problem,
                };
                answer(reply, Err(problem));
            }
        }
    }

    /// A machine is being migrated to here.
    pub(super) fn arriving(
        &mut self,
        key: Key,
        name: String,
        machine: Machine,
        stop: oneshot::Sender<()>,
    ) {
        if let Some(recovering) = &mut self.recovering {
            recovering.settled(key);
        }
        self.awaited.remove(&key);
        let path = self.guests.paths.get(&key).cloned().unwrap_or_default();
        self.note(EventKind::GuestArriving, &name, "", 0, &machine.kind_name);
        let arrival = Arrival { machine, name, path, wanted: HashMap::new(), _stop: stop };
        let description = describe_arrival(&arrival);
        self.waiters.settle(key);
        self.guests.arriving.insert(key, arrival);
        // Before anybody is told: the next agent has to know of it as well.
        self.save();
        self.due.all();
        if let Some(reply) = self.waiters.take_attaching(key) {
            answer(reply, Ok(Answer::Guest(Box::new(description))));
        }
    }

    /// A guest's task has connected: it is a guest, unless something is wrong
    /// with it.
    pub(super) fn connected(&mut self, connected: Connected) {
        let Connected { key, machine, mut name, found, windows, handle, go } = connected;
        let arrival = self.guests.arriving.remove(&key);
        let arrived = arrival.is_some();
        if arrived {
            self.due.all();
        }
        self.supersede(&machine);
        if self.capabilities.names {
            name = self.guests.own_name(&machine, &name);
        }
        if let Some(problem) = self.identity_problem(key, &machine, &name) {
            if arrived {
                warn!(guest = name, %problem, "it has arrived, and uses the standard network only");
            }
            // Its task may have ended.
            let _ = go.send(Err(problem));
            return;
        }
        let mut guest = Guest {
            machine,
            coming_as: self.backend.incoming(&name).map(str::to_owned),
            name,
            path: self.guests.paths.get(&key).cloned().unwrap_or_default(),
            phase: Phase::Attaching,
            handle,
            hello: None,
            addresses: Vec::new(),
            advertised: false,
            routed: Vec::new(),
            found,
            orphans: HashSet::new(),
            windows_left: windows,
            go: Some(go),
            awaited_by: arrival.map(|arrival| arrival.wanted).unwrap_or_default(),
            arrived: None,
            wants: Bucket::new(2.0, 20.0),
            departures: Bucket::new(0.2, 8.0),
            claims: Bucket::new(5.0, 20.0),
            windows: Bucket::new(1.0, 8.0),
            hellos: Bucket::new(1.0, 5.0),
            complaints: Bucket::new(0.1, 3.0),
            later: Later::default(),
            rescans: Bucket::new(0.2, 3.0),
            told: None,
            again: false,
            disputes: BTreeMap::new(),
            leaving: None,
            preparing: Instant::now(),
            moving: Moving::No,
            ours: false,
        };
        self.awaited.remove(&key);
        if let Some(recovering) = &mut self.recovering {
            // The control device follows when it is clear which channels stay.
            recovering.settled(key);
        } else {
            guest.go(Ok(()));
            for found in std::mem::take(&mut guest.found) {
                guest.orphans.insert(found.tag);
                self.remove_orphan(key, &guest, &found);
            }
        }
        say_unknown(&guest.name, &guest.machine);
        self.guests.insert(key, guest);
    }

    /// Why a machine cannot be a guest, if it cannot.
    fn identity_problem(&self, key: Key, machine: &Machine, name: &str) -> Option<Problem> {
        let Some((_, other)) = self.guests.with_id(machine.id) else {
            return self.guests.name_problem(name);
        };
        let path = self.guests.paths.get(&key).map(|path| path.display().to_string());
        let text = format!(
            "{} has the UUID of {}, which is attached",
            path.unwrap_or_default(),
            other.name
        );
        let hint = "each machine needs its own -uuid; a clone must not keep that of its original";
        Some(Problem::new("identity-taken", text).hint(hint))
    }

    /// The machine runs here in another QEMU now: the one that it has left is
    /// no guest any more.
    fn supersede(&mut self, machine: &Machine) {
        let Some((key, guest)) = self.guests.with_id(machine.id) else { return };
        if guest.phase == Phase::Standby && guest.moving != Moving::No {
            guest.tell(Command::Detach);
            self.left(key, None);
        }
    }

    /// Removes an end of a channel that has lost the other one.
    pub(super) fn remove_orphan(&self, key: Key, guest: &Guest, found: &Found) {
        info!(
            guest = guest.name,
            tag = found.tag,
            peer = hex(found.peer),
            "removing a channel without a peer"
        );
        let place = guest.handle.place.clone();
        let (post, found, name) = (self.post.clone(), found.clone(), guest.name.clone());
        tokio::spawn(async move {
            let tag = found.tag;
            let slow = move || {
                warn!(guest = name, tag, "the guest keeps the device of an old channel");
            };
            place.remove(&found, Box::new(slow)).await;
            post.tell(Event::OrphanGone { key, tag }).await;
        });
    }

    /// A guest can be told who is here.
    pub(super) fn attached(&mut self, key: Key) {
        let Some(guest) = self.guests.get_mut(key) else { return };
        // It may be about to go again, or for good.
        let known = match guest.phase {
            Phase::Attaching => false,
            Phase::Attached | Phase::Standby | Phase::Returning => true,
            Phase::Preparing | Phase::Parting | Phase::Detaching => return,
        };
        let was = std::mem::replace(&mut guest.phase, Phase::Attached);
        (guest.moving, guest.ours) = (Moving::No, false);
        let (name, machine) = (guest.name.clone(), guest.machine.kind_name.clone());
        if !known {
            self.note(EventKind::GuestAttached, &name, "", 0, &machine);
            self.save();
        } else if was != Phase::Attached {
            self.note(EventKind::GuestReturned, &name, "", 0, "");
        }
        let here = self.answer_of(key);
        self.waiters.here(key, &here);
        self.meet_all(key);
        self.due.all();
    }

    // ---- changing

    /// A guest has other interfaces.
    pub(super) fn nics(&mut self, key: Key, nics: Vec<Nic>) {
        if let Some(guest) = self.guests.get_mut(key)
            && guest.machine.nics != nics
        {
            guest.machine.nics = nics;
            say_unknown(&guest.name, &guest.machine);
            self.due.all();
        }
    }

    /// A guest has a name, which may be another one.
    pub(super) fn renamed(&mut self, key: Key, name: &str) {
        let Some(guest) = self.guests.get(key) else { return };
        let name = self.guests.own_name(&guest.machine, name);
        if guest.name == name {
            return;
        }
        let before = guest.name.clone();
        self.note(EventKind::GuestRenamed, &name, "", 0, &format!("it was {before}"));
        self.channels.rename(key, &name);
        let coming_as = self.backend.incoming(&name).map(str::to_owned);
        if let Some(guest) = self.guests.get_mut(key) {
            if guest.incoming().is_some() {
                let until = Instant::now() + HELLO;
                guest.arrived = Some(until);
                self.deadlines.at(until, Timed::Guest(key));
            }
            guest.machine.name.clone_from(&name);
            guest.name = name;
            guest.coming_as = coming_as;
            if guest.hello.is_some() {
                self.welcome(key);
            }
        }
        self.name_freed(&before);
        // The policy may say something else about it now.
        self.due.all();
    }

    /// Nobody has this name any more: the machine that wanted it can have it.
    fn name_freed(&self, name: &str) {
        if !self.capabilities.names {
            return;
        }
        let wanting =
            |(_, guest): &(_, &Guest)| guest.name == format!("{name}.{}", guest.machine.id);
        if let Some((_, guest)) = self.guests.iter().find(wanting) {
            guest.tell(Command::Rescan);
        }
    }

    // ---- the end

    /// Has a guest detached.
    pub(super) fn detach(&mut self, key: Key, reply: Reply) {
        let Some(guest) = self.guests.get_mut(key) else { return };
        guest.phase = Phase::Detaching;
        self.waiters.detach(key, reply);
        self.close_all(key, shm::VMLOOP_CLOSE_DETACH);
        let called_off = Problem::new("called-off", "the guest is detached");
        self.waiters.not_prepared(key, &called_off);
        self.waiters.not_resumed(key, &called_off);
        self.save();
        self.due.all();
        self.finish_detach(key);
    }

    /// Lets the control device go once the guest has no channel any more.
    pub(super) fn finish_detach(&self, key: Key) {
        let Some(guest) = self.guests.get(key) else { return };
        if guest.phase == Phase::Detaching
            && !self.channels.has_ends(key)
            && guest.found.is_empty()
            && !guest.has_leftovers()
        {
            guest.tell(Command::Detach);
        }
    }

    /// Leaves a machine alone that has not arrived yet; whether there is one.
    pub(super) fn turn_away(&mut self, text: &str) -> bool {
        let Some(key) = self.guests.find_arriving(text) else { return false };
        self.guests.arriving.remove(&key);
        self.save();
        true
    }

    /// A guest's task has ended; a problem if it could not be attached.
    pub(super) fn left(&mut self, key: Key, problem: Option<Problem>) {
        self.guests.paths.remove(&key);
        self.waiters.settle(key);
        if let Some(arrival) = self.guests.arriving.remove(&key) {
            self.note(EventKind::GuestGone, &arrival.name, "", 0, "it did not arrive");
            self.save();
            self.due.all();
        }
        let gone = Problem::new("gone", "the machine has ended");
        self.waiters.not_prepared(key, &gone);
        self.waiters.not_resumed(key, &gone);
        if let Some(recovering) = &mut self.recovering {
            recovering.settled(key);
        }
        self.awaited.remove(&key);
        if let Some(reply) = self.waiters.take_attaching(key) {
            let problem = problem.clone().unwrap_or_else(|| {
                Problem::new("gone", "the machine ended while it was being attached")
            });
            if reply.is_closed() {
                warn!(%problem, "attach");
            }
            answer(reply, Err(problem));
        }
        self.waiters.detached(key);
        let guest = self.guests.remove(key);
        if let Some(guest) = guest.as_ref().filter(|guest| guest.phase == Phase::Detaching) {
            self.backend.exclude(key, guest.machine.clone());
        }
        self.backend.ended(key, problem.as_ref());
        let Some(guest) = guest else { return };
        if let Some(collecting) = &mut self.collecting {
            collecting.waiting.remove(&key);
        }
        if guest.phase == Phase::Detaching {
            self.note(EventKind::GuestDetached, &guest.name, "", 0, "");
        } else if guest.phase != Phase::Attaching {
            self.post.counters.guests_gone.add(1);
            self.note(EventKind::GuestGone, &guest.name, "", 0, "");
        }
        self.close_all(key, shm::VMLOOP_CLOSE_PEER_GONE);
        self.all_closed(key);
        self.back_off.forget_guest(guest.machine.id);
        self.breaks.forget_guest(guest.machine.id);
        self.name_freed(&guest.name);
        self.save();
        self.due.all();
    }
}
