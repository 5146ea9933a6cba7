// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the API says of the agent, its guests and its channels.

use tokio::time::Instant;
use vmloop_abi::message::ChannelState;
use vmloop_api::{self as api, EndState, GuestState, PolicyState};
use vmloop_policy::in_force::State;

use super::channels::{Channel, ChannelSide};
use super::closing::close_reason;
use super::directories::got_around;
use super::guests::{Arrival, Guest, Phase, hex};
use super::scene::heeded;
use super::{Broker, seconds};
use crate::answer::Answer;
use crate::directory::routed_number;
use crate::mac::format_mac;
use crate::machine::{Key, Moving, Nic};
use crate::network::links::Port;

fn end_state(state: Option<ChannelState>) -> EndState {
    match state {
        None => EndState::None,
        Some(ChannelState::Up) => EndState::Up,
        Some(ChannelState::Idle) => EndState::Idle,
        Some(ChannelState::Closed) => EndState::Closed,
        Some(ChannelState::Broken) => EndState::Broken,
    }
}

fn policy_state(state: State) -> PolicyState {
    match state {
        State::File => PolicyState::File,
        State::None => PolicyState::None,
        State::LastGood => PolicyState::LastGood,
        State::Denied => PolicyState::Denied,
    }
}

/// A machine that has not arrived yet.
pub(super) fn describe_arrival(arrival: &Arrival) -> api::Guest {
    api::Guest {
        name: arrival.name.clone(),
        id: hex(arrival.machine.id),
        epoch: hex(arrival.machine.epoch),
        uuid: arrival.machine.uuid.clone().unwrap_or_default(),
        qmp: arrival.path.clone(),
        pid: arrival.machine.pid,
        machine: arrival.machine.kind_name.clone(),
        state: GuestState::Arriving,
        ..api::Guest::default()
    }
}

fn guest_state(guest: &Guest) -> GuestState {
    match guest.phase {
        Phase::Attaching => GuestState::Attaching,
        Phase::Attached if guest.leaving.is_some() => GuestState::Leaving,
        Phase::Attached if guest.hello.is_some() => GuestState::Ready,
        Phase::Attached if guest.is_coming() => GuestState::Arriving,
        Phase::Attached => GuestState::Attached,
        Phase::Preparing | Phase::Parting => GuestState::Preparing,
        Phase::Standby => match guest.moving {
            Moving::No | Moving::In => GuestState::Prepared,
            Moving::Out => GuestState::Migrating,
            Moving::Left => GuestState::Departed,
        },
        Phase::Returning => GuestState::Returning,
        Phase::Detaching => GuestState::Detaching,
    }
}

impl Broker {
    pub(super) fn status(&self) -> api::Status {
        let up = |(_, channel): &(_, &Channel)| channel.state() == api::ChannelState::Up;
        api::Status {
            hypervisor: self.capabilities.hypervisor,
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            guests: self.guests.len(),
            guests_ready: self.guests.iter().filter(|(_, guest)| guest.hello.is_some()).count(),
            channels_up: self.channels.iter().filter(up).count(),
            channels: self.channels.len(),
            memory: self.memory(),
            memory_max: self.memory_max(),
            policy: self.policy.source().path.clone(),
            policy_state: policy_state(self.policy.state()),
            policy_since: seconds(self.policy.since()),
            policy_error: self.policy.error().into(),
            problems: self.problems(),
            recovering: self.recovering.is_some(),
            counters: self.post.counters.get(),
        }
    }

    /// What keeps guests from channels, and is no fault of theirs.
    fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self
            .guests
            .iter()
            .flat_map(|(_, guest)| guest.machine.nics.iter().map(move |nic| (guest, nic)))
            .filter_map(|(guest, nic)| Some((guest, nic.unknown.as_ref()?)))
            .filter(|(_, why)| why.is_a_fault())
            .map(|(guest, why)| format!("{} gets no channels: {why}", guest.name))
            .collect();
        let revoked = self.channels.iter().filter(|(_, channel)| channel.is_revoked());
        problems.extend(revoked.map(|(_, channel)| {
            let (a, b, _) = channel.label();
            format!("{a} and {b} keep shared memory that the policy has taken from them; end one of the two")
        }));
        if let Some(unknown) =
            heeded(&self.policy, &self.judge).and_then(|_| self.links.filters.unknown())
        {
            problems.push(format!("no guest gets a channel: {}", unknown.text));
        }
        if !self.have_memory() {
            problems.push("no more channels: they may take no more memory; see max_memory and ring_size of the policy".into());
        }
        problems.sort_unstable();
        problems.dedup();
        problems
    }

    /// A guest, as an answer; nothing if it is not there.
    pub(super) fn answer_of(&self, key: Key) -> Answer {
        let guest = self.guests.get(key).map(|guest| Box::new(self.describe(guest)));
        guest.map_or(Answer::Nothing, Answer::Guest)
    }

    fn describe(&self, guest: &Guest) -> api::Guest {
        let hello = guest.hello.as_ref();
        let addresses = guest.addresses.iter().map(|(address, _)| address);
        let disputes = guest.disputes.iter();
        api::Guest {
            name: guest.name.clone(),
            id: hex(guest.machine.id),
            epoch: hex(guest.machine.epoch),
            uuid: guest.machine.uuid.clone().unwrap_or_default(),
            qmp: guest.path.clone(),
            pid: guest.machine.pid,
            machine: guest.machine.kind_name.clone(),
            state: guest_state(guest),
            version: hello.map(|hello| hello.version.clone()).unwrap_or_default(),
            kernel: hello.map(|hello| hello.kernel.clone()).unwrap_or_default(),
            nics: guest.machine.nics.iter().map(|nic| self.describe_nic(guest, nic)).collect(),
            ips: addresses
                .filter(|address| !guest.disputes.contains_key(&address.ip))
                .map(|address| format!("{}/{}", address.ip, address.prefix))
                .collect(),
            disputed_ips: disputes
                .map(|(ip, owner)| api::Disputed { ip: ip.to_string(), owner: owner.clone() })
                .collect(),
            routed_ips: guest.routed.iter().map(|address| address.ip.to_string()).collect(),
        }
    }

    fn describe_nic(&self, guest: &Guest, nic: &Nic) -> api::Nic {
        let mut shown =
            api::Nic { mac: format_mac(&nic.mac), tap: nic.tap.clone(), ..api::Nic::default() };
        match self.place(guest.who(), &nic.tap) {
            Ok(port) => {
                shown.gateway = self.gateway_of(guest, &port);
                let is_routed = !shown.gateway.is_empty();
                shown.blocked = self.blocked(&port, is_routed).unwrap_or_default();
                shown.vlan = port.vlan;
                if !port.alone {
                    shown.bridge = port.bridge_name;
                }
            }
            Err(why) => {
                shown.blocked = nic.unknown.as_ref().map_or(why, ToString::to_string);
            }
        }
        shown
    }

    /// What the host does to all frames of an interface, also to those that it routes.
    fn blocked(&self, port: &Port, is_routed: bool) -> Option<String> {
        let seat = heeded(&self.policy, &self.judge)?.seat(port);
        let bridged = if port.alone { None } else { Some(seat.always(false)?) };
        let routed = if is_routed { Some(seat.always(true)?) } else { None };
        bridged.or(routed).map(|filter| got_around(filter))
    }

    /// The host's address as the router of a guest's interface; empty if the
    /// policy does not say that it is.
    fn gateway_of(&self, guest: &Guest, port: &Port) -> String {
        let is_routed = routed_number(&self.policy, guest.who(), port).is_some();
        let gateway = port.gateway.as_ref().filter(|_| is_routed);
        gateway.map(|gateway| format_mac(&gateway.mac)).unwrap_or_default()
    }

    pub(super) fn listing(&self, cookie: Option<u32>) -> api::Listing {
        let mut guests: Vec<_> =
            self.guests.iter().map(|(_, guest)| self.describe(guest)).collect();
        guests.extend(self.backend.excluded().into_iter().map(|machine| api::Guest {
            name: machine.name.clone(),
            id: hex(machine.id),
            uuid: machine.uuid.clone().unwrap_or_default(),
            machine: machine.kind_name.clone(),
            state: GuestState::Detached,
            ..api::Guest::default()
        }));
        guests.extend(self.guests.arriving.values().map(describe_arrival));
        guests.sort_by(|a, b| a.name.cmp(&b.name));
        let mut channels: Vec<_> =
            self.channels.iter().map(|(_, channel)| describe_channel(channel, cookie)).collect();
        channels.sort_by(|a, b| (a.tag, &a.a.guest).cmp(&(b.tag, &b.a.guest)));
        api::Listing { guests, channels, broken: self.breaks.list(Instant::now()) }
    }
}

fn describe_channel(channel: &Channel, cookie: Option<u32>) -> api::Channel {
    api::Channel {
        tag: channel.tag,
        a: describe_side(&channel.sides[0], cookie),
        b: describe_side(&channel.sides[1], cookie),
        state: channel.state(),
        reason: channel.reason.map(close_reason).unwrap_or_default().into(),
        age_s: channel.since.elapsed().as_secs(),
        ring_size: channel.ring_size,
        windows: u32::try_from(channel.windows.len()).unwrap_or(u32::MAX),
        window_bytes: channel.windows.iter().map(|window| window.size).sum(),
        bells: channel.bells,
    }
}

/// One side; with its counters, if they came with this cookie.
fn describe_side(side: &ChannelSide, cookie: Option<u32>) -> api::Side {
    let counters = side.stats.as_deref().filter(|(of, _)| Some(*of) == cookie);
    api::Side {
        guest: side.name.clone(),
        state: end_state(side.state),
        stats: counters.map(|(_, counters)| api::Stats {
            tx_frames: counters.tx_frames,
            tx_bytes: counters.tx_bytes,
            rx_frames: counters.rx_frames,
            rx_bytes: counters.rx_bytes,
            tx_doorbells: counters.tx_doorbells,
            rx_doorbells: counters.rx_doorbells,
            tx_full: counters.tx_full,
            rx_dropped: counters.rx_dropped,
        }),
    }
}
