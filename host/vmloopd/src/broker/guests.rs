// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Guests: the machines that are attached, and those that are about to be.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;

use tokio::sync::oneshot;
use tokio::time::Instant;
use vmloop_abi::address::Address;
use vmloop_abi::message::AgentMessage;
use vmloop_abi::shm;
use vmloop_api::Problem;
use vmloop_policy::Who;

use crate::bucket::Bucket;
use crate::end::WindowId;
use crate::handle::{Command, Handle};
use crate::latest::Directory;
use crate::machine::{Found, Key, Machine, Moving};

/// Identity or epoch, as the API has it.
pub(super) fn hex(id: u64) -> String {
    format!("{id:016x}")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Connected; the control device is not plugged yet.
    Attaching,
    Attached,
    /// Channels are being closed, for a migration.
    Preparing,
    /// The control device is being unplugged, for a migration.
    Parting,
    /// Nothing of ours is in the machine.
    Standby,
    /// The control device is being plugged again.
    Returning,
    /// Channels are being closed, then the control device goes.
    Detaching,
}

/// A machine that is being migrated to here. Its neighbours know of it already:
/// who has frames for it asks for a channel, which is made as soon as it is here.
pub(super) struct Arrival {
    pub(super) machine: Machine,
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Guests that want a channel to it, and when they last said so.
    pub(super) wanted: HashMap<Key, Instant>,
    /// Its task ends when this is dropped.
    pub(super) _stop: oneshot::Sender<()>,
}

/// What a guest's modules say of themselves.
#[derive(PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: String,
    pub(super) kernel: String,
    /// Online; 0 if it has not said so.
    pub(super) cpus: u32,
    pub(super) features: u64,
}

/// What a guest said too soon after what it said before: the last of it counts,
/// when the time has come.
#[derive(Default)]
pub(super) struct Later {
    pub(super) hello: Option<Hello>,
    pub(super) addresses: Option<Vec<Address>>,
    pub(super) at: Option<Instant>,
}

/// A guest.
pub(super) struct Guest {
    pub(super) machine: Machine,
    pub(super) name: String,
    /// the name that it will have, if it is called as one that is on its way
    pub(super) coming_as: Option<String>,
    pub(super) path: PathBuf,
    pub(super) phase: Phase,
    pub(super) handle: Handle,
    pub(super) hello: Option<Hello>,
    pub(super) addresses: Vec<(Address, u64)>,
    /// It has said its addresses to this agent.
    pub(super) advertised: bool,
    /// Addresses by which others reach it through the host.
    pub(super) routed: Vec<Address>,
    /// Tags of an earlier agent's channels, until they are adopted or gone.
    pub(super) found: Vec<Found>,
    pub(super) orphans: HashSet<u32>,
    /// Windows that an earlier agent has left in it.
    pub(super) windows_left: Vec<WindowId>,
    pub(super) go: Option<oneshot::Sender<Result<(), Problem>>>,
    /// Guests that wanted a channel to it before it was here, and when.
    pub(super) awaited_by: HashMap<Key, Instant>,
    /// When it has arrived, and has not spoken yet: until when neighbours are
    /// told of it all the same. Xen only; elsewhere it is no guest before.
    pub(super) arrived: Option<Instant>,
    pub(super) wants: Bucket,
    /// how often its modules may go while that excuses channels that lived short
    pub(super) departures: Bucket,
    /// how often it may say something that changes what others are told
    pub(super) claims: Bucket,
    /// Windows that it may ask for.
    pub(super) windows: Bucket,
    /// how often its HELLO is answered
    pub(super) hellos: Bucket,
    /// how often it is complained of
    pub(super) complaints: Bucket,
    pub(super) later: Later,
    pub(super) rescans: Bucket,
    pub(super) told: Directory,
    /// it is to be told that again
    pub(super) again: bool,
    pub(super) disputes: BTreeMap<IpAddr, String>,
    /// Until when it is believed that it will end, or be saved.
    pub(super) leaving: Option<Instant>,
    /// When its preparation began.
    pub(super) preparing: Instant,
    /// What QEMU does with it, while it stands by.
    pub(super) moving: Moving,
    /// Whether [`Command::Migrate`] began what it does.
    pub(super) ours: bool,
}

impl Guest {
    /// Runs the modules, and stays: it may have channels.
    pub(super) fn is_ready(&self) -> bool {
        self.hello.is_some() && self.phase == Phase::Attached && self.leaving.is_none()
    }

    /// Whether it knows channels of version 2; None before it has said.
    pub(super) fn knows_lanes(&self) -> Option<bool> {
        self.hello.as_ref().map(|hello| hello.features & shm::VMLOOP_F_LANES != 0)
    }

    /// Whether something of an earlier agent is in it that is on its way out.
    pub(super) fn has_leftovers(&self) -> bool {
        !self.orphans.is_empty() || !self.windows_left.is_empty()
    }

    /// Whether it knows windows that the host makes.
    pub(super) fn knows_windows(&self) -> bool {
        self.hello.as_ref().is_some_and(|hello| hello.features & shm::VMLOOP_F_WINDOWS != 0)
    }

    /// Its name here; while a domain is on its way, the one that it will have.
    pub(super) fn who(&self) -> Who<'_> {
        let name = self.incoming().unwrap_or(&self.name);
        Who { name, uuid: self.machine.uuid.as_deref().unwrap_or_default() }
    }

    /// The name that it will have, if it is a domain on its way to here.
    pub(super) fn incoming(&self) -> Option<&str> {
        self.coming_as.as_deref().filter(|_| self.hello.is_none())
    }

    /// A domain that is on its way, or has just arrived: neighbours may ask for
    /// channels. They are begun at once where the neighbour makes the region, or
    /// when it speaks.
    pub(super) fn is_coming(&self) -> bool {
        self.phase == Phase::Attached
            && self.hello.is_none()
            && (self.arrived.is_some() || self.incoming().is_some())
    }

    /// Hears what it said later, at that time at the latest. Returns the time, unless
    /// that was clear already.
    pub(super) fn postpone(&mut self, when: Instant) -> Option<Instant> {
        let is_new = self.later.at.is_none_or(|at| when < at);
        is_new.then(|| *self.later.at.insert(when))
    }

    /// Sends it a message.
    pub(super) fn send(&self, message: AgentMessage) {
        self.tell(Command::Send(message));
    }

    /// Tells its task.
    pub(super) fn tell(&self, command: Command) {
        self.handle.commands.send(command);
    }

    /// Lets its task go on, or says why not.
    pub(super) fn go(&mut self, answer: Result<(), Problem>) {
        if let Some(go) = self.go.take() {
            // Its task may have ended.
            let _ = go.send(answer);
        }
    }
}

/// Whether an operator's text names a machine.
fn names(text: &str, name: &str, machine: &Machine) -> bool {
    let wanted = text.to_ascii_lowercase();
    name == text
        || machine.uuid.as_deref() == Some(&*wanted)
        || hex(machine.id) == wanted
        || machine.number.is_some_and(|number| number.to_string() == text)
}

/// All guests.
#[derive(Default)]
pub(super) struct Guests {
    all: HashMap<Key, Guest>,
    /// In the order in which they came.
    order: Vec<Key>,
    by_id: HashMap<u64, Key>,
    /// One may have changed.
    touched: bool,
    /// Machines that are not guests yet.
    pub(super) arriving: HashMap<Key, Arrival>,
    /// Sockets of guests that are attached or about to be.
    pub(super) paths: HashMap<Key, PathBuf>,
}

impl Guests {
    pub(super) fn get(&self, key: Key) -> Option<&Guest> {
        self.all.get(&key)
    }

    /// To change something of it; directories are made anew.
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Guest> {
        self.touched = true;
        self.all.get_mut(&key)
    }

    /// To change what directories do not depend on: what it may still say, what it was
    /// told.
    pub(super) fn get_untold(&mut self, key: Key) -> Option<&mut Guest> {
        self.all.get_mut(&key)
    }

    /// As [`Guests::get_untold`], of all.
    pub(super) fn iter_untold(&mut self) -> impl Iterator<Item = (Key, &mut Guest)> {
        self.all.iter_mut().map(|(key, guest)| (*key, guest))
    }

    /// Whether any may have changed since this was asked before.
    pub(super) fn take_touched(&mut self) -> bool {
        std::mem::take(&mut self.touched)
    }

    /// The guest with an identity.
    pub(super) fn with_id(&self, id: u64) -> Option<(Key, &Guest)> {
        let key = *self.by_id.get(&id)?;
        Some((key, self.all.get(&key)?))
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Guest)> {
        self.all.iter().map(|(key, guest)| (*key, guest))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut Guest)> {
        self.touched = true;
        self.all.iter_mut().map(|(key, guest)| (*key, guest))
    }

    /// In the order in which they came.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (Key, &Guest)> {
        self.order.iter().filter_map(|key| Some((*key, self.all.get(key)?)))
    }

    /// A guest that is new; no other has its identity.
    pub(super) fn insert(&mut self, key: Key, guest: Guest) {
        self.touched = true;
        self.by_id.insert(guest.machine.id, key);
        self.order.push(key);
        self.all.insert(key, guest);
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Guest> {
        let guest = self.all.remove(&key)?;
        self.touched = true;
        self.order.retain(|other| *other != key);
        self.by_id.remove(&guest.machine.id);
        Some(guest)
    }

    /// Whether a guest runs the modules.
    pub(super) fn speaks(&self, key: Key) -> bool {
        self.get(key).is_some_and(|guest| guest.hello.is_some())
    }

    /// The guest that an operator means.
    pub(super) fn find(&self, text: &str) -> Result<Key, Problem> {
        self.in_order()
            .find(|(_, guest)| names(text, &guest.name, &guest.machine))
            .map(|(key, _)| key)
            .ok_or_else(|| {
                Problem::new("no-such-guest", format!("there is no guest {text:?}"))
                    .hint("see vmloop ls")
            })
    }

    /// The machine on its way that an operator means.
    pub(super) fn find_arriving(&self, text: &str) -> Option<Key> {
        self.arriving
            .iter()
            .find(|(_, arrival)| names(text, &arrival.name, &arrival.machine))
            .map(|(key, _)| *key)
    }

    /// Why a guest cannot have a name, if it cannot.
    pub(super) fn name_problem(&self, name: &str) -> Option<Problem> {
        if name.is_empty() || name.len() > 63 || name.chars().any(char::is_control) {
            return Some(
                Problem::new("bad-name", format!("{name:?} cannot be the name of a guest"))
                    .hint("use 1 to 63 bytes without control characters"),
            );
        }
        self.all.values().any(|guest| guest.name == name).then(|| {
            Problem::new("name-taken", format!("there is a guest {name:?} already"))
                .hint("give another name with --name")
        })
    }

    /// A name that no other guest has, of a machine that its hypervisor named.
    /// While one is migrated within the host there are two of the same.
    pub(super) fn own_name(&self, machine: &Machine, name: &str) -> String {
        let name: String = name.chars().filter(|c| !c.is_control()).take(50).collect();
        let taken =
            self.all.values().any(|guest| guest.name == name && guest.machine.id != machine.id);
        if taken || name.is_empty() { format!("{name}.{}", machine.id) } else { name }
    }
}
