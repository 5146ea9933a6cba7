// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whether the host's rules could do something to frames between two interfaces of
//! guests, which a channel would carry past them. What was found is remembered until
//! the rules are others: by classes of names that rules cannot tell apart, so that
//! a thousand interfaces that no rule names are looked at once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use vmloop_api::Filter;

use super::classes::Classes;
use super::filters::{Filters, Switches};
use super::links::Port;
use super::ruleset::{Base, Chain, Family, Names, Ruleset};

/// The kernel's numbers of hooks. Those of bridges and of IP are the same, but for
/// the last ones.
const PRE_ROUTING: u32 = 0;
const LOCAL_IN: u32 = 1;
const FORWARD: u32 = 2;
const LOCAL_OUT: u32 = 3;
const POST_ROUTING: u32 = 4;
/// Of bridges only: whether the host routes what came in by a port.
const BROUTING: u32 = 5;
/// Of single interfaces.
const DEVICE_INGRESS: u32 = 0;
const DEVICE_EGRESS: u32 = 1;
/// The first of these, in tables of the family inet.
const INET_INGRESS: u32 = 5;

/// Which way frames pass an interface of a guest.
#[derive(Clone, Copy)]
enum Way {
    /// from the guest
    From,
    /// to the guest
    To,
}

/// A hook that frames pass, and by which names.
struct Pass<'a> {
    at: At<'a>,
    names: Names<'a>,
}

enum At<'a> {
    /// A hook of these families.
    Hook(u32, &'a [Family]),
    /// A hook of one interface.
    Device(u32, &'a str),
}

impl Pass<'_> {
    fn has(&self, chain: &Chain, base: &Base) -> bool {
        match &self.at {
            At::Hook(hook, families) => base.hook == *hook && families.contains(&chain.family),
            At::Device(hook, name) => {
                let of_devices = match chain.family {
                    Family::Netdev => base.hook == *hook,
                    Family::Inet => base.hook == INET_INGRESS && *hook == DEVICE_INGRESS,
                    _ => false,
                };
                of_devices && base.devices.iter().any(|device| device.fits(name))
            }
        }
    }
}

/// Families of IP whose chains see what a bridge passes, as its switches say.
fn called(calls: Switches) -> Vec<Family> {
    let mut families = Vec::new();
    if calls.ip || calls.ip6 {
        families.push(Family::Inet);
    }
    families.extend(calls.ip.then_some(Family::Ip));
    families.extend(calls.ip6.then_some(Family::Ip6));
    families
}

const BRIDGE: &[Family] = &[Family::Bridge];
const IP: &[Family] = &[Family::Inet, Family::Ip, Family::Ip6];
const ARP: &[Family] = &[Family::Arp];

/// What the hooks on one side of the way do, whoever is at the other.
#[derive(Debug, Default)]
struct Part {
    /// to all frames
    filter: Option<Arc<Filter>>,
    /// Chains that do something to some; it depends on the other side.
    depends: Vec<usize>,
}

/// Ways through one bridge, or by the host's routing.
#[derive(Debug)]
struct Ways {
    from: Part,
    to: Part,
}

/// What rules can tell interfaces of guests apart by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    tap: u32,
    bridge: u32,
    gateway: Option<u32>,
    alone: bool,
    calls: Switches,
}

/// What is known of all interfaces that rules cannot tell apart.
#[derive(Debug)]
pub struct Seat {
    place: Place,
    bridged: Ways,
    routed: Ways,
}

impl Seat {
    fn ways(&self, routed: bool) -> &Ways {
        if routed { &self.routed } else { &self.bridged }
    }

    /// What happens to all frames from or to such an interface.
    pub fn always(&self, routed: bool) -> Option<&Arc<Filter>> {
        let ways = self.ways(routed);
        ways.from.filter.as_ref().or(ways.to.filter.as_ref())
    }
}

/// An interface, with what is known of it.
pub type Seated<'a> = (&'a Port, &'a Seat);

/// What a chain does between two places, routed or not.
type Known = HashMap<(usize, Place, Place, bool), Option<Arc<Filter>>>;

/// Results for pairs that are remembered; more than that are forgotten together.
const PAIRS: usize = 100_000;

/// See the module.
#[derive(Default)]
pub struct Judge {
    rules: Arc<Ruleset>,
    /// what is in the way of all packets that the host routes
    routing: Option<Arc<Filter>>,
    classes: RefCell<Classes>,
    seats: RefCell<HashMap<Place, Arc<Seat>>>,
    pairs: RefCell<Known>,
}

impl Judge {
    /// One that goes by what the host has.
    pub fn new(filters: &Filters) -> Self {
        Self {
            rules: filters.rules.clone(),
            routing: filters.route_rule().map(Arc::new),
            classes: RefCell::new(Classes::new(&filters.rules)),
            ..Self::default()
        }
    }

    /// What is known of an interface, for the following.
    pub fn seat(&self, port: &Port) -> Arc<Seat> {
        let place = self.place(port);
        if let Some(found) = self.seats.borrow().get(&place) {
            return found.clone();
        }
        let ways = |routed| Ways {
            from: self.part(port, Way::From, routed),
            to: self.part(port, Way::To, routed),
        };
        let seat = Seat { place: place.clone(), bridged: ways(false), routed: ways(true) };
        let seat = Arc::new(seat);
        self.seats.borrow_mut().insert(place, seat.clone());
        seat
    }

    /// What the host does to frames between two interfaces, one way or the other, that
    /// go by one bridge, or are routed.
    pub fn between(&self, a: Seated<'_>, b: Seated<'_>, routed: bool) -> Option<Arc<Filter>> {
        if routed {
            let before_host = a.0.before_host.as_ref().or(b.0.before_host.as_ref());
            let before_host = before_host.map(|filter| Arc::new(filter.clone()));
            if let Some(filter) = self.routing.clone().or(before_host) {
                return Some(filter);
            }
        }
        self.one_way(a, b, routed).or_else(|| self.one_way(b, a, routed))
    }

    fn one_way(&self, from: Seated<'_>, to: Seated<'_>, routed: bool) -> Option<Arc<Filter>> {
        let (start, end) = (&from.1.ways(routed).from, &to.1.ways(routed).to);
        if let Some(filter) = start.filter.as_ref().or(end.filter.as_ref()) {
            return Some(filter.clone());
        }
        let both = start.depends.iter().filter(|chain| end.depends.contains(chain));
        both.copied().find_map(|chain| self.chain(chain, from, to, routed))
    }

    fn place(&self, port: &Port) -> Place {
        let mut classes = self.classes.borrow_mut();
        Place {
            tap: classes.of(&port.name),
            bridge: classes.of(&port.bridge_name),
            gateway: port.gateway.as_ref().map(|gateway| classes.of(&gateway.name)),
            alone: port.alone,
            calls: port.calls,
        }
    }

    fn part(&self, port: &Port, way: Way, routed: bool) -> Part {
        let mut part = Part::default();
        for pass in passes(port, way, routed, &called(port.calls)) {
            for (number, _, _) in self.rules.bases().filter(|(_, one, base)| pass.has(one, base)) {
                match self.rules.harm(number, &pass.names) {
                    None => {}
                    Some(harm) if harm.guessed && pass.is_half() => part.depends.push(number),
                    Some(harm) => drop(part.filter.get_or_insert(Arc::new(harm.filter))),
                }
            }
        }
        part
    }

    /// What a chain does to frames from one interface to another one.
    fn chain(
        &self,
        number: usize,
        from: Seated<'_>,
        to: Seated<'_>,
        routed: bool,
    ) -> Option<Arc<Filter>> {
        let key = (number, from.1.place.clone(), to.1.place.clone(), routed);
        if let Some(found) = self.pairs.borrow().get(&key) {
            return found.clone();
        }
        let (from, to) = (from.0, to.0);
        let gateway = |port: &Port| port.gateway.as_ref().map(|gateway| gateway.name.clone());
        let (in_gateway, out_gateway) = (gateway(from), gateway(to));
        let names = if routed {
            Names { iif: in_gateway.as_deref(), oif: out_gateway.as_deref(), ..Names::default() }
        } else {
            Names {
                iif: Some(&from.name),
                oif: Some(&to.name),
                ibr: Some(&from.bridge_name),
                obr: Some(&to.bridge_name),
            }
        };
        let filter = self.rules.harm(number, &names).map(|harm| Arc::new(harm.filter));
        let mut pairs = self.pairs.borrow_mut();
        if pairs.len() >= PAIRS {
            pairs.clear();
        }
        pairs.insert(key, filter.clone());
        filter
    }
}

impl Pass<'_> {
    /// Whether the other side's names would be known at this hook.
    fn is_half(&self) -> bool {
        match self.at {
            At::Hook(FORWARD, _) => self.names.iif.is_none() || self.names.oif.is_none(),
            _ => false,
        }
    }
}

/// The hooks that frames from or to an interface pass. What is before the place where
/// the ways of two interfaces meet is the first one's, what is behind it is the other
/// one's; the chains of that place itself are of both.
fn passes<'a>(port: &'a Port, way: Way, routed: bool, called: &'a [Family]) -> Vec<Pass<'a>> {
    let tap = Some(&*port.name);
    let bridge = Some(&*port.bridge_name);
    let none = Names::default();
    let mut all = Vec::new();
    let mut hook = |hook, families, names| all.push(Pass { at: At::Hook(hook, families), names });
    let is_bridged = !port.alone;
    let gateway = port.gateway.as_ref().map(|gateway| &*gateway.name);
    match way {
        Way::From => {
            let from = Names { iif: tap, ibr: bridge, ..none };
            if is_bridged {
                hook(BROUTING, BRIDGE, from);
                hook(PRE_ROUTING, BRIDGE, from);
                hook(PRE_ROUTING, called, Names { iif: bridge, ..none });
            }
            if routed {
                if is_bridged {
                    hook(LOCAL_IN, BRIDGE, from);
                }
                let from = Names { iif: gateway, ..none };
                hook(PRE_ROUTING, IP, from);
                hook(FORWARD, IP, from);
            } else {
                hook(FORWARD, BRIDGE, Names { obr: bridge, ..from });
                let across = Names { iif: bridge, oif: bridge, ..none };
                hook(FORWARD, called, across);
                if port.calls.arp {
                    hook(FORWARD, ARP, across);
                }
            }
        }
        Way::To => {
            let to = Names { oif: tap, obr: bridge, ..none };
            if routed {
                let to = Names { oif: gateway, ..none };
                hook(FORWARD, IP, to);
                hook(POST_ROUTING, IP, to);
            } else {
                hook(FORWARD, BRIDGE, Names { ibr: bridge, ..to });
                hook(POST_ROUTING, called, Names { oif: bridge, ..none });
            }
            if is_bridged {
                if routed {
                    hook(LOCAL_OUT, BRIDGE, to);
                }
                hook(POST_ROUTING, BRIDGE, to);
            }
        }
    }
    let mut devices = vec![&*port.name];
    if routed {
        devices.extend(gateway);
        if is_bridged {
            devices.push(&port.bridge_name);
        }
    }
    for name in devices {
        let (hook, names) = match way {
            Way::From => (DEVICE_INGRESS, Names { iif: Some(name), ..none }),
            Way::To => (DEVICE_EGRESS, Names { oif: Some(name), ..none }),
        };
        all.push(Pass { at: At::Device(hook, name), names });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::links::Gateway;
    use crate::network::ruleset::{Pattern, Rule, Step, Which};

    fn port(name: &str, bridge: &str) -> Port {
        let gateway = Gateway { index: 1, name: bridge.into(), mac: [2; 6], mtu: 1500 };
        Port {
            name: name.into(),
            bridge_name: bridge.into(),
            alone: name == bridge,
            gateway: Some(gateway),
            ..Port::default()
        }
    }

    fn base(
        family: Family,
        hook: u32,
        drops: bool,
        device: Option<&str>,
        rules: &[&[Step]],
    ) -> Chain {
        let rules = rules.iter().map(|steps| Rule { handle: 1, steps: steps.to_vec() });
        Chain {
            source: vmloop_api::FilterKind::Nftables,
            family,
            table: "t".into(),
            name: "c".into(),
            base: Some(Base {
                hook,
                drops,
                devices: device.map(Pattern::name).into_iter().collect(),
            }),
            rules: rules.collect(),
        }
    }

    fn judge(chain: Chain) -> Judge {
        Judge::new(&Filters { rules: Arc::new(Ruleset::new(vec![chain])), ..Filters::default() })
    }

    fn is_filtered(judge: &Judge, a: &Port, b: &Port, routed: bool) -> bool {
        let (one, two) = (judge.seat(a), judge.seat(b));
        let found = judge.between((a, &one), (b, &two), routed);
        assert_eq!(found, judge.between((b, &two), (a, &one), routed), "either way round");
        found.is_some()
    }

    /// Whether a chain that drops all is one for frames on a bridge, and for routed ones.
    fn drops(family: Family, hook: u32, device: Option<&str>, calls: Switches) -> [bool; 2] {
        let judge = judge(base(family, hook, true, device, &[]));
        let port = |name, bridge| Port { calls, ..port(name, bridge) };
        [
            is_filtered(&judge, &port("tap1", "br0"), &port("tap2", "br0"), false),
            is_filtered(&judge, &port("tap1", "br0"), &port("tap3", "br1"), true),
        ]
    }

    #[test]
    fn hooks() {
        let off = Switches::default();
        for (hook, expected) in [
            (PRE_ROUTING, [true, true]),
            (LOCAL_IN, [false, true]),
            (FORWARD, [true, false]),
            (LOCAL_OUT, [false, true]),
            (POST_ROUTING, [true, true]),
            (BROUTING, [true, true]),
        ] {
            assert_eq!(drops(Family::Bridge, hook, None, off), expected, "{hook}");
        }
        let ip = Switches { ip: true, ..off };
        let ip6 = Switches { ip6: true, ..off };
        for hook in [PRE_ROUTING, FORWARD, POST_ROUTING] {
            for family in [Family::Inet, Family::Ip, Family::Ip6] {
                assert_eq!(drops(family, hook, None, off), [false, true], "{hook}");
            }
            assert_eq!(drops(Family::Ip, hook, None, ip), [true, true]);
            assert_eq!(drops(Family::Ip, hook, None, ip6), [false, true]);
            assert_eq!(drops(Family::Ip6, hook, None, ip6), [true, true]);
            assert_eq!(drops(Family::Inet, hook, None, ip6), [true, true]);
        }
        // What the host itself receives and sends concerns no two guests.
        for hook in [LOCAL_IN, LOCAL_OUT] {
            assert_eq!(drops(Family::Inet, hook, None, ip), [false, false]);
        }
        let arp = Switches { arp: true, ..off };
        assert_eq!(drops(Family::Arp, FORWARD, None, arp), [true, false]);
        assert_eq!(drops(Family::Arp, FORWARD, None, ip), [false, false]);
        assert_eq!(drops(Family::Arp, 0, None, arp), [false, false]);
    }

    #[test]
    fn devices() {
        let off = Switches::default();
        for hook in [DEVICE_INGRESS, DEVICE_EGRESS] {
            assert_eq!(drops(Family::Netdev, hook, Some("tap1"), off), [true, true]);
            assert_eq!(drops(Family::Netdev, hook, Some("tap2"), off), [true, false]);
            assert_eq!(drops(Family::Netdev, hook, Some("br0"), off), [false, true]);
            assert_eq!(drops(Family::Netdev, hook, Some("eth0"), off), [false, false]);
        }
        assert_eq!(drops(Family::Inet, INET_INGRESS, Some("tap1"), off), [true, true]);
        assert_eq!(drops(Family::Inet, INET_INGRESS, Some("eth0"), off), [false, false]);
    }

    #[test]
    fn pairs() {
        let step = |which, name| Step::Name { which, pattern: Pattern::name(name), equal: true };
        let drop = || Step::Harm("drop".into());
        let rule = [step(Which::In, "tap1"), step(Which::Out, "tap2"), drop()];
        let one = judge(base(Family::Bridge, FORWARD, false, None, &[&rule]));
        let tap = |name| port(name, "br0");
        assert!(is_filtered(&one, &tap("tap1"), &tap("tap2"), false));
        assert!(!is_filtered(&one, &tap("tap1"), &tap("tap3"), false));
        assert!(!is_filtered(&one, &tap("tap3"), &tap("tap2"), false));
        assert_eq!(one.seat(&tap("tap1")).always(false), None, "not of all its frames");

        // Of one interface only: all of its frames.
        let rule = [step(Which::In, "tap1"), drop()];
        let one = judge(base(Family::Bridge, FORWARD, false, None, &[&rule]));
        assert!(is_filtered(&one, &tap("tap1"), &tap("tap3"), false));
        assert!(!is_filtered(&one, &tap("tap2"), &tap("tap3"), false));
        assert!(one.seat(&tap("tap1")).always(false).is_some());

        // Of another bridge, as Docker's and libvirt's rules are.
        let rule = [step(Which::In, "docker0"), drop()];
        let one = judge(base(Family::Ip, FORWARD, false, None, &[&rule]));
        let seen = |name, bridge| Port {
            calls: Switches { ip: true, ..Switches::default() },
            ..port(name, bridge)
        };
        assert!(!is_filtered(&one, &seen("tap1", "br0"), &seen("tap2", "br0"), false));
        assert!(is_filtered(&one, &seen("v1", "docker0"), &seen("v2", "docker0"), false));
        assert!(!is_filtered(&one, &tap("tap1"), &port("tap3", "br1"), true));
        assert!(is_filtered(&one, &tap("tap1"), &port("v1", "docker0"), true));
    }

    #[test]
    fn routed_only() {
        let none = Judge::new(&Filters::default());
        let (a, b) = (port("tap1", "br0"), port("vif1.0", "vif1.0"));
        assert!(!is_filtered(&none, &a, &b, true));
        let routing = Some("ip rule show priority 7".into());
        let rule = Judge::new(&Filters { routing, ..Filters::default() });
        assert!(is_filtered(&rule, &a, &b, true));
        assert!(!is_filtered(&rule, &a, &port("tap2", "br0"), false));
        let shaped = Port { before_host: Some(Filter::default()), ..a.clone() };
        assert!(is_filtered(&none, &shaped, &b, true));
        assert!(!is_filtered(&none, &shaped, &a, false));
        // From one of the router's interfaces to another one: that pair, no other.
        let step = |which, name| Step::Name { which, pattern: Pattern::name(name), equal: true };
        let drop = Step::Harm("drop".into());
        let rule = [step(Which::In, "br0"), step(Which::Out, "br1"), drop];
        let forward = judge(base(Family::Ip, FORWARD, false, None, &[&rule]));
        let (c, d) = (port("tap3", "br1"), port("tap4", "br2"));
        assert!(is_filtered(&forward, &a, &c, true));
        assert!(!is_filtered(&forward, &a, &d, true) && !is_filtered(&forward, &c, &d, true));
        // Of an interface that is in no bridge no bridge's chains see anything.
        let bridge = judge(base(Family::Bridge, PRE_ROUTING, true, None, &[]));
        assert!(!is_filtered(&bridge, &b, &port("vif2.0", "vif2.0"), true));
        assert!(is_filtered(&bridge, &b, &a, true));
    }

    #[test]
    fn many_rules_for_pairs() {
        let is = |which, at: usize| Step::Name {
            which,
            pattern: Pattern::name(&format!("tap{at}")),
            equal: true,
        };
        let rule = |at: usize| {
            let (a, b) = (at % 100, at / 100);
            vec![is(Which::In, a), is(Which::Out, b), Step::Harm("drop".into())]
        };
        // From each of a hundred to each of them, in turn.
        let rules: Vec<Vec<Step>> = (0..10_000).map(rule).collect();
        let rules: Vec<&[Step]> = rules.iter().map(Vec::as_slice).collect();
        let one = judge(base(Family::Bridge, FORWARD, false, None, &rules));
        let ports: Vec<Port> = (0..200).map(|at| port(&format!("tap{at}"), "br0")).collect();
        let seats: Vec<_> = ports.iter().map(|port| one.seat(port)).collect();
        for a in 0..200 {
            for b in 0..200 {
                let pair = ((&ports[a], &*seats[a]), (&ports[b], &*seats[b]));
                let found = one.between(pair.0, pair.1, false);
                assert_eq!(found.is_some(), a < 100 && b < 100, "{a} {b}");
            }
        }
    }

    #[test]
    fn many_interfaces_that_no_rule_names_are_looked_at_once() {
        let step = |at: usize| Step::Name {
            which: Which::In,
            pattern: Pattern::name(&format!("eth{at}")),
            equal: true,
        };
        let rules: Vec<[Step; 2]> =
            (0..10_000).map(|at| [step(at), Step::Harm("drop".into())]).collect();
        let rules: Vec<&[Step]> = rules.iter().map(|rule| &rule[..]).collect();
        let one = judge(base(Family::Bridge, FORWARD, false, None, &rules));
        let ports: Vec<Port> = (0..1000).map(|at| port(&format!("tap{at}"), "br0")).collect();
        let seats: Vec<_> = ports.iter().map(|port| one.seat(port)).collect();
        assert!(seats.iter().all(|seat| Arc::ptr_eq(seat, &seats[0])));
        for (a, one_seat) in ports.iter().zip(&seats) {
            for (b, seat) in ports.iter().zip(&seats) {
                assert_eq!(one.between((a, one_seat), (b, seat), false), None);
            }
        }
        assert_eq!((one.seats.borrow().len(), one.pairs.borrow().len()), (1, 0));
    }
}
