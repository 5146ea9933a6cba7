// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The agent, where the host's network has filters on the way between two guests.

mod fake;

use std::sync::Arc;

use fake::agent::{Agent, link, meet, network_of, tap, two_guests};
use fake::{Modules, Qemu, wait};
use vmloop_api::{ChannelState, Explained, FilterKind, Request, Status};
use vmloopd::event::Event;
use vmloopd::network::filters::{Filters, Switches};
use vmloopd::network::links::{Link, Links};
use vmloopd::network::ruleset::{Base, Chain, Family, Pattern, Rule, Ruleset, Step, Which};

/// The kernel's number of the hook between two ports, or two networks.
const FORWARD: u32 = 2;

fn rules(family: Family, drops: bool, rules: Vec<Vec<Step>>) -> Filters {
    let rules = rules.into_iter().map(|steps| Rule { handle: 9, steps }).collect();
    let base = Some(Base { hook: FORWARD, drops, devices: Vec::new() });
    let chain = Chain {
        source: FilterKind::Nftables,
        family,
        table: "guests".into(),
        name: "between".into(),
        base,
        rules,
    };
    Filters { rules: Arc::new(Ruleset::new(vec![chain])), ..Filters::default() }
}

fn with(filters: Filters) -> Event {
    with_mtu(1500, filters)
}

fn with_mtu(mtu: u32, filters: Filters) -> Event {
    let mut links = network_of(mtu);
    links.filters = filters;
    Event::Links(links)
}

/// Waits until the two do not know of each other any more, and their channel is gone.
fn parted(agent: &Agent, one: &mut Modules<'_>, two: &mut Modules<'_>) {
    wait("an end", || {
        one.hear();
        two.hear();
        one.directory.is_empty() && two.directory.is_empty() && agent.channels() == 0
    });
}

/// Has them have a channel again.
fn reunited(agent: &Agent, one: &mut Modules<'_>, two: &mut Modules<'_>) {
    wait("the peer", || {
        one.hear();
        two.hear();
        one.directory.len() == 1 && two.directory.len() == 1
    });
    // What lived short would have to wait.
    agent.ask(Request::Reset { a: "g1".into(), b: "g2".into() }).expect("two guests");
    let peer = one.directory[0];
    one.want(&peer);
    wait("a channel", || {
        one.hear();
        two.hear();
        agent.channels() == 1 && one.directory[0].tag != 0
    });
}

/// Why the interface of g1 has no channels.
fn blocked(agent: &Agent) -> String {
    let guests = agent.list(Request::List).guests;
    guests.iter().find(|guest| guest.name == "g1").expect("g1").nics[0].blocked.clone()
}

/// Why g1 has no channel with another guest: codes, and the whole.
fn explain(agent: &Agent, other: &str) -> (Vec<String>, Explained) {
    let request = Request::Explain { a: "g1".into(), b: other.into() };
    let answer = agent.ask(request).expect("an explanation");
    let explained: Explained = serde_json::from_value(answer).expect("an explanation");
    (explained.reasons.iter().map(|reason| reason.code.to_string()).collect(), explained)
}

fn linked<'a>(agent: &Agent, one: &'a Qemu, two: &'a Qemu) -> (Modules<'a>, Modules<'a>) {
    let (mut a, mut b) = meet(agent, one, two);
    link(&mut a, &mut b, one, two);
    (a, b)
}

#[test]
fn a_chain_that_drops() {
    let (directory, one, two, agent) = two_guests();
    let (mut a, mut b) = linked(&agent, &one, &two);

    agent.send(with(rules(Family::Bridge, true, Vec::new())));
    parted(&agent, &mut a, &mut b);
    let why = blocked(&agent);
    assert!(why.contains("bridge table guests, chain between: policy drop"), "{why}");
    let (codes, explained) = explain(&agent, "g2");
    // What lived short has to wait as well.
    assert_eq!(codes, ["filter", "waiting"]);
    let filter = explained.reasons[0].filter.as_ref().expect("a filter");
    assert_eq!(filter.kind, FilterKind::Nftables);
    assert_eq!([&filter.family, &filter.table, &filter.chain], ["bridge", "guests", "between"]);
    assert!(explained.reasons[0].why.contains(&filter.text), "{explained:?}");
    assert!(why.contains("filters = \"ignore\""), "{why}");

    agent.policy(directory.path(), "filters = 'ignore'\n");
    reunited(&agent, &mut a, &mut b);
    assert_eq!(blocked(&agent), "");
    agent.policy(directory.path(), "filters = 'respect'\n");
    parted(&agent, &mut a, &mut b);

    agent.send(with(Filters::default()));
    reunited(&agent, &mut a, &mut b);
    assert_eq!(blocked(&agent), "");
}

#[test]
fn a_rule_between_two_guests_parts_no_others() {
    let (directory, one, two, agent) = two_guests();
    let (mut a, mut b) = linked(&agent, &one, &two);
    let is = |which, name| Step::Name { which, pattern: Pattern::name(name), equal: true };
    let rule = vec![is(Which::In, "tap2"), is(Which::Out, "tap1"), Step::Harm("drop".to_owned())];
    agent.send(with(rules(Family::Bridge, false, vec![rule])));
    parted(&agent, &mut a, &mut b);
    assert_eq!(blocked(&agent), "", "not all of its frames");
    assert_eq!(explain(&agent, "g2").0, ["filter", "waiting"]);

    let three = Qemu::start(directory.path(), 3);
    agent.attach(&three);
    let mut c = Modules::load(&three, 33, [10, 0, 0, 3]);
    wait("the third one's peers", || {
        a.hear();
        c.hear();
        c.directory.len() == 2 && a.directory.len() == 1 && a.directory[0].ip_count == 1
    });
}

#[test]
fn what_only_accepts_costs_nothing() {
    let (_directory, one, two, agent) = two_guests();
    let (mut a, mut b) = linked(&agent, &one, &two);
    let accepts = vec![Step::Maybe, Step::Accept];
    let elsewhere = vec![
        Step::Name { which: Which::In, pattern: Pattern::name("docker0"), equal: true },
        Step::Harm("drop".to_owned()),
    ];
    let br_netfilter = Some(Switches::default());
    let harmless = [
        rules(Family::Bridge, false, vec![accepts, elsewhere]),
        // They decide for IP only, and no bridge shows them anything.
        rules(Family::Ip, true, Vec::new()),
        Filters { br_netfilter, ..rules(Family::Ip, true, Vec::new()) },
    ];
    for (mtu, filters) in (1401..).zip(harmless) {
        agent.send(with_mtu(u32::from(mtu), filters));
        wait("another directory", || {
            a.hear();
            b.hear();
            a.directory.len() == 1 && a.directory[0].mtu == mtu
        });
        assert_eq!(blocked(&agent), "");
    }
    assert_eq!(agent.list(Request::List).channels[0].state, ChannelState::Up);
    assert!(a.closes.is_empty() && b.closes.is_empty());

    let br_netfilter = Some(Switches { ip: true, ..Switches::default() });
    agent.send(with(Filters { br_netfilter, ..rules(Family::Ip, true, Vec::new()) }));
    parted(&agent, &mut a, &mut b);
    assert!(blocked(&agent).contains("ip table guests"), "{}", blocked(&agent));
}

#[test]
fn rules_that_cannot_be_read() {
    let (directory, one, two, agent) = two_guests();
    let (mut a, mut b) = linked(&agent, &one, &two);
    let unreadable = Some("nftables: Operation not permitted".to_owned());
    agent.send(with(Filters { unreadable, ..Filters::default() }));
    parted(&agent, &mut a, &mut b);
    assert!(blocked(&agent).contains("cannot be read"), "{}", blocked(&agent));
    let status = || -> Status {
        serde_json::from_value(agent.ask(Request::Status).expect("a status")).expect("a status")
    };
    assert_eq!(status().problems.len(), 1, "{:?}", status().problems);
    let (codes, explained) = explain(&agent, "g2");
    // What lived short has to wait as well.
    assert_eq!(codes, ["filter", "waiting"]);
    assert_eq!(
        explained.reasons[0].filter.as_ref().expect("a filter").kind,
        FilterKind::Unreadable
    );

    agent.policy(directory.path(), "filters = 'ignore'\n");
    reunited(&agent, &mut a, &mut b);
    assert!(status().problems.is_empty(), "{:?}", status().problems);
}

#[test]
fn explained() {
    let (directory, one, two, agent) = two_guests();
    agent.attach(&one);
    agent.attach(&two);
    let ask = |other: &str| explain(&agent, other);
    assert_eq!(ask("g2").0, ["guest", "guest"], "no modules");
    for (a, b) in [("g1", "g1"), ("g1", "g9")] {
        let request = Request::Explain { a: a.into(), b: b.into() };
        assert_eq!(agent.ask(request).expect_err("no pair").code, "no-such-guest");
    }

    let mut a = Modules::load(&one, 11, [10, 0, 0, 1]);
    let mut b = Modules::load(&two, 22, [10, 0, 0, 2]);
    wait("directories", || {
        a.hear();
        b.hear();
        a.directory.len() == 1 && b.directory.len() == 1
    });
    assert_eq!(ask("g2").0, ["not-asked"]);
    let tag = link(&mut a, &mut b, &one, &two);
    wait("both to have it", || ask("g2").1.channel == ChannelState::Up);
    let (codes, explained) = ask("g2");
    assert_eq!((codes.len(), &*explained.a, &*explained.b), (0, "g1", "g2"));
    assert_eq!(explained.tag, tag);

    agent.policy(directory.path(), "default = 'deny'\n");
    parted(&agent, &mut a, &mut b);
    assert_eq!(ask("g2").0, ["policy", "waiting"]);
    agent.policy(directory.path(), "max_memory = '64K'\n");
    assert_eq!(ask("g2").0, ["memory"]);
    agent.policy(directory.path(), "max_channels = 1\n");
    reunited(&agent, &mut a, &mut b);
    let three = Qemu::start(directory.path(), 3);
    agent.attach(&three);
    let _c = Modules::load(&three, 33, [10, 0, 0, 3]);
    wait("modules", || ask("g3").0 == ["max-channels"]);

    let network = |change: &dyn Fn(u32, &mut Link)| {
        let mut taps = [1, 2, 3].map(|number| (number, tap(number)));
        taps.iter_mut().for_each(|(number, link)| change(*number, link));
        let bridge =
            |name: &str| Link { name: name.into(), up: true, bridge: true, ..Link::default() };
        let bridges = [(100, bridge("br0")), (101, bridge("br1"))];
        agent.send(Event::Links(Links::new(taps.into_iter().chain(bridges))));
    };
    let says = |code: &str| wait(code, || ask("g2").0.first().is_some_and(|first| first == code));
    network(&|number, link| link.isolated = number < 3);
    says("isolated");
    network(&|number, link| link.master = if number == 2 { 101 } else { 100 });
    says("network");
    network(&|number, link| link.up = number != 2);
    says("interface");
    network(&|number, link| link.xdp = number == 2);
    says("filter");
    let filter = ask("g2").1.reasons[0].filter.clone().expect("a filter");
    assert_eq!((filter.kind, &*filter.interface), (FilterKind::Xdp, "tap2"));
}
