// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Who is told of whom.

use super::*;
use crate::network::links::Gateway;

fn port(bridge: u32, vlan: u16) -> Port {
    Port {
        bridge,
        bridge_name: format!("br{bridge}"),
        alone: false,
        gateway: Some(Gateway {
            index: bridge,
            name: format!("br{bridge}"),
            mac: gateway(bridge),
            mtu: 1500,
        }),
        vlan,
        tagged: vlan == 0,
        isolated: false,
        mtu: 1500,
        ..Port::default()
    }
}

/// Hardware address of the host on a bridge.
fn gateway(bridge: u32) -> [u8; 6] {
    [2, 0, 0, 0, 1, bridge as u8]
}

fn member(number: u8, port: Option<Port>) -> Member {
    let mac = [2, 0, 0, 0, 0, number];
    Member {
        id: number.into(),
        epoch: 1,
        name: format!("g{number}").into(),
        uuid: String::new(),
        ready: true,
        nics: vec![(mac, port)],
        addresses: vec![(address(mac, number), number.into())],
        routed: Vec::new(),
        routes: true,
        keep: false,
    }
}

/// A member that the host routes for: all its addresses are sent to it.
fn routed(number: u8, port: Port) -> Member {
    let mut member = member(number, Some(port));
    member.routed = member.addresses.iter().map(|(address, _)| *address).collect();
    member
}

fn advertise(member: &mut Member, ip: &str, claim: u64) {
    let (mac, ip) = (member.nics[0].0, ip.parse().expect("an address"));
    member.addresses.push((Address { mac, ip, prefix: 24 }, claim));
    member.routed.push(Address { mac, ip, prefix: 24 });
}

const ROUTED: &str =
    "[[routed]]\nname = 'all'\nmembers = ['g*']\nallow_ips = ['10.0.0.0/16', 'fd00::/16']\n";

fn directory(members: &[Member], policy: &str, of: usize) -> Vec<DirectoryEntry> {
    let policy = Policy::parse(policy, "p").expect("a policy");
    View::new(members, &policy).directory(of, &no_tag())
}

fn ips(entry: &DirectoryEntry) -> Vec<String> {
    entry.ips.iter().map(|address| address.ip.to_string()).collect()
}

fn address(mac: [u8; 6], last: u8) -> Address {
    Address { mac, ip: IpAddr::from([10, 0, 0, last]), prefix: 24 }
}

fn no_tag() -> HashMap<usize, u32> {
    HashMap::new()
}

/// The same channel to each of some members.
fn tags(tag: u32) -> HashMap<usize, u32> {
    (0..9).map(|peer| (peer, tag)).collect()
}

/// Names of the peers in the directory of the first member.
fn peers(members: &[Member]) -> Vec<String> {
    let policy = Policy::default();
    let view = View::new(members, &policy);
    view.directory(0, &no_tag()).into_iter().map(|entry| entry.name.to_string()).collect()
}

#[test]
fn the_network_decides() {
    let one = |port| vec![member(1, Some(self::port(1, 0))), member(2, port)];
    assert_eq!(peers(&one(Some(port(1, 0)))), ["g2"]);
    assert!(peers(&one(Some(port(2, 0)))).is_empty(), "another bridge");
    assert!(peers(&one(None)).is_empty(), "no bridge");
    let vlans = |a, b| vec![member(1, Some(port(1, a))), member(2, Some(port(1, b)))];
    assert_eq!(peers(&vlans(10, 10)), ["g2"]);
    assert!(peers(&vlans(10, 20)).is_empty(), "another VLAN");

    let isolated = Port { isolated: true, ..port(1, 0) };
    let both = vec![member(1, Some(isolated.clone())), member(2, Some(isolated.clone()))];
    assert!(peers(&both).is_empty(), "both isolated");
    assert_eq!(peers(&one(Some(isolated))), ["g2"]);
}

#[test]
fn only_those_that_run_the_modules_or_have_a_channel() {
    let mut members = vec![member(1, Some(port(1, 0))), member(2, Some(port(1, 0)))];
    members[1].ready = false;
    assert!(peers(&members).is_empty());
    let policy = Policy::default();
    let view = View::new(&members, &policy);
    let entries = view.directory(0, &tags(9));
    assert_eq!((entries.len(), entries[0].tag), (1, 9));
}

#[test]
fn a_member_that_is_not_ready_is_told_of_nobody() {
    let mut members = [routed(1, port(1, 0)), routed(2, port(2, 0))];
    assert_eq!(directory(&members, ROUTED, 0).len(), 2);
    members[0].ready = false;
    assert!(directory(&members, ROUTED, 0).is_empty(), "not of itself either");
    let policy = Policy::parse(ROUTED, "p").expect("a policy");
    let entries = View::new(&members, &policy).directory(0, &tags(9));
    assert_eq!((entries.len(), entries[0].tag), (1, 9));
}

#[test]
fn tags_and_vlan_frames() {
    let policy = Policy::default();
    let mut members = vec![member(1, Some(port(1, 0))), member(2, Some(port(1, 0)))];
    members[1].nics[0].1.as_mut().expect("a port").mtu = 9000;
    let entry = View::new(&members, &policy).directory(0, &tags(3)).remove(0);
    assert_eq!((entry.tag, entry.tagged, entry.mtu), (3, true, 1500));
    let members = vec![member(1, Some(port(1, 5))), member(2, Some(port(1, 5)))];
    assert!(!View::new(&members, &policy).directory(0, &no_tag())[0].tagged);
}

#[test]
fn streams_where_the_policy_has_them() {
    let members: Vec<_> = (1..=3).map(|n| member(n, Some(port(1, 0)))).collect();
    let without = |policy: &str| {
        let entries = directory(&members, policy, 0);
        entries.iter().map(|entry| entry.without).collect::<Vec<_>>()
    };
    assert_eq!(without("default = 'same-bridge'"), [0, 0]);
    assert_eq!(without("streams = 'deny'"), [4, 4]);
    let groups = "[[group]]\nname = 'all'\nmembers = ['*']\n\
         [[group]]\nname = 'two'\nmembers = ['g1', 'g2']\nstreams = 'deny'\n";
    assert_eq!(without(groups), [4, 0]);
}

#[test]
fn an_address_belongs_to_the_first_that_claims_it() {
    let policy = Policy::default();
    let mut members: Vec<_> = (1..=3).map(|n| member(n, Some(port(1, 0)))).collect();
    let stolen = address(members[2].nics[0].0, 2);
    members[2].addresses.push((stolen, 99));
    let view = View::new(&members, &policy);
    let of = |name: &str| {
        let entries = view.directory(0, &no_tag());
        let entry = entries.into_iter().find(|entry| &*entry.name == name).expect("a peer");
        entry.ips.iter().map(|address| address.ip.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(of("g2"), ["10.0.0.2"]);
    assert_eq!(of("g3"), ["10.0.0.3"]);
    assert_eq!(view.disputed(2), [(stolen.ip, 1)]);
    assert!(view.disputed(1).is_empty());

    // On another bridge it is nobody's business.
    members[1].nics[0].1 = Some(port(2, 0));
    let view = View::new(&members, &policy);
    assert_eq!(view.directory(0, &no_tag())[0].ips.len(), 2);
}

#[test]
fn addresses_that_cannot_be_and_that_policy_forbids() {
    let policy =
        Policy::parse("[[guest]]\nmatch='g2'\nallow_ips=['10.0.0.0/30']", "p").expect("policy");
    let mut members: Vec<_> = (1..=2).map(|n| member(n, Some(port(1, 0)))).collect();
    let mac = members[1].nics[0].0;
    members[1].addresses.push((address(mac, 200), 5));
    let view = View::new(&members, &policy);
    assert_eq!(*view.directory(0, &no_tag())[0].ips, [address(mac, 2)]);
    for ip in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1"] {
        assert!(!is_usable(ip.parse().expect("an address")), "{ip}");
    }
}

#[test]
fn other_networks_only_where_the_policy_says_that_the_host_routes() {
    let mut members = vec![routed(1, port(1, 0)), routed(2, port(2, 0))];
    advertise(&mut members[1], "fd00::2", 5);
    assert!(directory(&members, "default = 'same-bridge'", 0).is_empty());
    let entries = directory(&members, ROUTED, 0);
    let [peer, own] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((peer.id, peer.gateway, peer.tagged), (2, Some(gateway(1)), false));
    assert_eq!((peer.local_mac[5], peer.mac[5]), (1, 2));
    assert_eq!(ips(peer), ["10.0.0.2", "fd00::2"]);
    // What others know of it, it is told as well.
    assert_eq!((own.id, own.tag, own.local_mac, own.mac), (1, 0, own.mac, own.mac));
    assert_eq!((own.gateway, &ips(own)[..]), (Some(gateway(1)), &["10.0.0.1".to_owned()][..]));

    // The smallest network on the way counts.
    members[1].nics[0].1.as_mut().and_then(|port| port.gateway.as_mut()).expect("one").mtu = 1400;
    assert_eq!(directory(&members, ROUTED, 0)[0].mtu, 1400);

    // Who is in one network is a neighbour, also of who is routed to others.
    members.push(routed(3, port(1, 0)));
    let entries = directory(&members, ROUTED, 0);
    let to = |id| entries.iter().find(|entry| entry.id == id).expect("an entry");
    assert_eq!((to(3).gateway, to(2).gateway), (None, Some(gateway(1))));
    assert_eq!(ips(to(3)), ["10.0.0.3"]);

    // VLANs of one bridge are networks as well; isolated ports of one are not.
    let two = |one, two| directory(&[routed(1, one), routed(2, two)], ROUTED, 0).len();
    assert_eq!(two(port(1, 10), port(1, 20)), 2);
    let isolated = || Port { isolated: true, ..port(1, 0) };
    assert_eq!(two(isolated(), isolated()), 1, "its own entry only");
    assert_eq!(two(port(1, 0), Port { gateway: None, ..port(2, 0) }), 1, "the host is not there");
    let alone = |bridge| Port { alone: true, ..port(bridge, 0) };
    assert_eq!(two(alone(5), alone(6)), 2);
    assert_eq!(two(alone(5), alone(5)), 1, "one interface is no network");
}

#[test]
fn who_is_routed() {
    let members = || vec![routed(1, port(1, 0)), routed(2, port(2, 0))];
    let peers = |members: &[Member], policy: &str| {
        let entries = directory(members, policy, 0);
        entries.iter().filter(|entry| entry.id != 1).count()
    };
    assert_eq!(peers(&members(), ROUTED), 1);
    let some = |members, interfaces| {
        format!(
            "[[routed]]\nname = 'x'\nmembers = {members}\n{interfaces}\nallow_ips = ['::/0', '0.0.0.0/0']\n"
        )
    };
    assert_eq!(peers(&members(), &some("['g1']", "")), 0, "not a member");
    assert_eq!(peers(&members(), &some("['g?']", "interfaces = ['br1']")), 0, "not there");
    assert_eq!(peers(&members(), &some("['g?']", "interfaces = ['br1', 'br2']")), 1);
    let apart = some("['g1']", "") + &some("['g2']", "").replace("'x'", "'y'");
    assert_eq!(peers(&members(), &apart), 0, "one each");
    // What keeps neighbours apart keeps these apart as well.
    assert_eq!(peers(&members(), &format!("default = 'deny'\n{ROUTED}")), 0);
    let group = |names| format!("[[group]]\nname = 'a'\nmembers = {names}\n{ROUTED}");
    assert_eq!(peers(&members(), &group("['g1']")), 0);
    assert_eq!(peers(&members(), &group("['g1', 'g2']")), 1);
    // Modules that do not know what it means are not told.
    for of in 0..2 {
        let mut members = members();
        members[of].routes = false;
        assert_eq!(peers(&members, ROUTED), 0, "{of}");
        assert!(directory(&members, ROUTED, of).is_empty());
    }
}

#[test]
fn addresses_that_are_routed() {
    let mut members = vec![routed(1, port(1, 0)), routed(2, port(2, 0)), routed(3, port(3, 0))];
    // Out of the range, of the link only, and sent elsewhere by the host.
    advertise(&mut members[1], "192.0.2.1", 20);
    advertise(&mut members[1], "fe80::2", 21);
    advertise(&mut members[1], "10.0.0.20", 22);
    members[1].routed.pop();
    // The third claims what the second has.
    advertise(&mut members[2], "10.0.0.2", 99);
    let policy = ROUTED.replace("fd00::/16", "::/0");
    let policy = Policy::parse(&policy, "p").expect("a policy");
    let view = View::new(&members, &policy);
    let entries = view.directory(0, &no_tag());
    let of = |id| ips(entries.iter().find(|entry| entry.id == id).expect("an entry"));
    assert_eq!((of(2), of(3)), (vec!["10.0.0.2".into()], vec!["10.0.0.3".to_owned()]));
    assert_eq!(view.disputed(2), [("10.0.0.2".parse().expect("an address"), 1)]);
    assert!(view.disputed(1).is_empty());
    // Its own view is that of the others.
    let own = view.directory(2, &no_tag()).pop().expect("its own");
    assert_eq!((own.id, ips(&own)), (3, vec!["10.0.0.3".to_owned()]));

    // One entry has room for eight.
    for last in 100..110 {
        advertise(&mut members[0], &format!("10.0.0.{last}"), 50);
    }
    let own = directory(&members, ROUTED, 0).pop().expect("its own");
    assert_eq!((own.id, own.ips.len()), (1, 8));

    let pinned = format!("{ROUTED}[[guest]]\nmatch = 'g2'\nallow_ips = ['10.0.0.99']\n");
    let entries = directory(&members, &pinned, 0);
    assert!(ips(&entries[0]).is_empty());
    assert_eq!(ips(&entries[1]), ["10.0.0.3", "10.0.0.2"], "now the third has it");
}

#[test]
fn addresses_that_only_an_earlier_agent_knew() {
    let mut members = vec![routed(1, port(1, 0)), routed(2, port(2, 0))];
    members[1].addresses.clear();
    members[1].keep = true;
    let keeps = |of| -> Vec<(u64, bool)> {
        let entries = directory(&members, ROUTED, of);
        entries.iter().map(|entry| (entry.id, entry.keep)).collect()
    };
    assert_eq!((keeps(0), keeps(1)), (vec![(2, true), (1, false)], vec![(1, false), (2, true)]));
}

#[test]
fn a_hardware_address_belongs_to_the_first() {
    let mut members: Vec<_> = (1..=3).map(|n| member(n, Some(port(1, 0)))).collect();
    members[2].nics[0].0 = members[1].nics[0].0;
    assert_eq!(peers(&members), ["g2"]);
}

#[test]
fn one_entry_for_each_pair_of_interfaces() {
    let mut members: Vec<_> = (1..=2).map(|n| member(n, Some(port(1, 0)))).collect();
    members[0].nics.push(([2, 0, 0, 0, 1, 1], Some(port(2, 0))));
    members[1].nics.push(([2, 0, 0, 0, 1, 2], Some(port(2, 0))));
    assert_eq!(peers(&members).len(), 2);
    members[1].nics[1].1 = Some(port(1, 0));
    assert_eq!(peers(&members).len(), 2);
}

#[test]
fn who_is_told_when_somebody_comes_goes_or_changes() {
    let before: Vec<_> = (1..=4).map(|n| member(n, Some(port(1 + u32::from(n > 2), 0)))).collect();
    let policy = Policy::default();
    let told = |now: &[Member], policy| affected(now, &before, policy);
    assert_eq!(told(&before, &policy), [false; 4]);
    let mut now = before.clone();
    advertise(&mut now[0], "10.0.0.9", 9);
    assert_eq!(told(&now, &policy), [true, true, false, false]);
    // By way of the host others hear of it, too.
    let routed = Policy::parse(ROUTED, "p").expect("a policy");
    assert_eq!(told(&now, &routed), [true; 4]);
    assert_eq!(told(&before[..3], &policy), [false, false, true]);
    let mut now = before.clone();
    now.push(member(5, Some(port(2, 0))));
    assert_eq!(told(&now, &policy), [false, false, true, true, true]);
    now[4] = member(5, None);
    assert_eq!(told(&now, &policy), [false, false, false, false, true]);
    let mut now = before.clone();
    now[0].nics[0].1 = Some(port(2, 0));
    assert_eq!(told(&now, &policy), [true; 4]);
}

#[test]
fn guests_share_what_they_are_told_alike() {
    let mut members: Vec<_> = (1..=3).map(|n| member(n, Some(port(1, 0)))).collect();
    let told = |members: &[Member], of: usize, id: u64| {
        let entries = View::new(members, &Policy::default()).directory(of, &no_tag());
        entries.into_iter().find(|entry| entry.id == id).expect("an entry")
    };
    let policy = Policy::default();
    let view = View::new(&members, &policy);
    let [one, two] = [0, 1].map(|of| view.directory(of, &no_tag()));
    let third = |entries: &[DirectoryEntry]| {
        entries.iter().find(|entry| entry.id == 3).expect("the third").peer.clone()
    };
    assert!(Arc::ptr_eq(&third(&one), &third(&two)));
    // There may be a hundred thousand.
    assert!(size_of::<DirectoryEntry>() <= 32);

    // What it is called, which life it is, and its address are told when they change.
    let before = told(&members, 0, 3);
    members[2].name = "other".into();
    assert_eq!(&*told(&members, 0, 3).name, "other");
    members[2].epoch = 9;
    members[2].nics[0].0[5] = 77;
    let after = told(&members, 0, 3);
    assert_eq!((after.epoch, after.mac[5]), (9, 77));
    assert_ne!(before, after);
}

#[test]
fn what_stays_is_shared() {
    let mut members: Vec<_> = (1..=2).map(|n| member(n, Some(port(1, 0)))).collect();
    let policy = Policy::default();
    let first = Index::new(&members, &policy, None, None);
    let old = members.clone();
    advertise(&mut members[0], "10.0.0.9", 9);
    members[1].name = "g2".into();
    let second = Index::new(&members, &policy, None, Some((&old, &first)));
    let bridged = |index: &Index, at: usize| index.told[at][0].bridged.clone();
    let routed = |index: &Index, at: usize| index.told[at][0].routed.clone();
    assert!(Arc::ptr_eq(&routed(&first, 1), &routed(&second, 1)));
    assert!(Arc::ptr_eq(&bridged(&first, 1), &bridged(&second, 1)));
    assert_eq!((bridged(&first, 0).ips.len(), bridged(&second, 0).ips.len()), (1, 2));
}

#[test]
fn free_tags() {
    let after = |last, taken: &[u32]| free_tag(last, TAG_MAX, |tag| taken.contains(&tag));
    assert_eq!(after(0, &[]), Some(1));
    assert_eq!(after(1, &[1, 2, 4]), Some(3));
    assert_eq!(after(3, &[1, 2, 4]), Some(5));
    assert_eq!(after(TAG_MAX, &[1]), Some(2));
    assert_eq!(free_tag(7, TAG_MAX, |tag| tag != 7), Some(7));
    assert_eq!(free_tag(7, TAG_MAX, |_| true), None);
    // Low ones again, while there are any.
    assert_eq!(free_tag(8, 8, |tag| tag < 3), Some(3));
    assert_eq!(free_tag(8, 8, |tag| tag < 9), Some(9));
    assert_eq!(free_tag(20, 8, |_| false), Some(1));
    assert_eq!(free_tag(9, 8, |tag| tag != TAG_MAX), Some(TAG_MAX));
    assert_eq!(free_tag(9, 8, |_| true), None);
}
