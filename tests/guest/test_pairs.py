# SPDX-License-Identifier: GPL-2.0
"""Three and four guests: who shares memory with whom, and who does not."""

import json
import os
from functools import partial

import pytest
from vmlab import Guest

from tests.guest.net import HERE, at_once, until

UNUSED = 3072
"""Offset in a region's first page where nothing is: a mark there disturbs nobody."""


def regions(guest):
    """The channel regions that a guest has, by tag."""
    found = json.loads(guest.run([f"{HERE}/shm", "list"]).out)
    return {one["tag"]: one for one in found if one["kind"] == 1}


def find(guest, mark):
    """Tags of the regions in which a guest finds a mark."""
    found = guest.run([f"{HERE}/shm", "find", mark], timeout=60).out
    return [int(line.split()[0]) for line in found.splitlines()]


@pytest.mark.kvm_only
@pytest.mark.main("isolation: no third guest sees a pair's memory")
def test_each_pair_has_memory_of_its_own(net, g1, g2, g3):
    """What is written into one pair's region is seen by that pair and nobody else."""
    guests = {"g1": g1, "g2": g2, "g3": g3}
    tags = {name: {peer: one.tag for peer, one in net.peers(guest).items()} for name, guest in guests.items()}
    for name, guest in guests.items():
        assert len(set(tags[name].values())) == 2, "two peers behind one device"
        assert set(regions(guest)) == set(tags[name].values())
    for a, b, other in (("g1", "g2", "g3"), ("g1", "g3", "g2"), ("g2", "g3", "g1")):
        mark = os.urandom(16).hex()
        guests[a].run([f"{HERE}/shm", "mark", str(tags[a][b]), str(UNUSED), mark])
        assert find(guests[a], mark) == [tags[a][b]]
        assert find(guests[b], mark) == [tags[b][a]], "the pair does not share this memory: the test shows nothing"
        assert find(guests[other], mark) == [], f"{other} sees what {a} and {b} share"


@pytest.mark.kvm_only
def test_a_channel_is_not_used_again(net, g1, g2):
    """The next channel of the same pair has new, zeroed memory."""
    mark = os.urandom(16).hex()
    tag = net.peers(g1)["g2"].tag
    g1.run([f"{HERE}/shm", "mark", str(tag), str(UNUSED), mark])
    net.command("close", "g1", "g2")
    until(lambda: tag not in regions(g1) and tag not in regions(g2), 10 * net.slow, "the channel is unplugged")
    net.bring_up(g1, g2)
    assert find(g1, mark) == find(g2, mark) == []


@pytest.mark.main("isolation: groups")
def test_guest_outside_of_the_group(net, g1, g2, g3):
    """It gets no channel, its traffic takes the standard network, and its peers keep theirs."""
    net.set_policy("idle_ms = 0\n[[group]]\nname = 'pair'\nmembers = ['g1', 'g2']\n")
    try:
        for guest in (g1, g2):
            net.wait_state(guest, g3, "gone")
        until(lambda: not net.channel_count(g3), 10 * net.slow, "g3 has no channel")
        before = net._taps()
        with net.serving(g3, f"{HERE}/pattern", "serve", "7000"):
            for guest in (g1, g2):
                guest.run([f"{HERE}/pattern", "tcp", g3.ip, "7000", *["50000"] * 20])
                g3.run(f"ping -c 3 -i 0.1 -q {guest.ip}")
        after = net._taps()
        assert after["g3"] - before["g3"] >= 2 * 2 * 20 * 50_000, "its traffic did not pass its tap"
        assert not net.channel_count(g3)
        with net.carried(g1, g2, standard=50_000):
            g1.run(f"ping -c 5 -i 0.05 -q {g2.ip}")
    finally:
        net.set_policy("idle_ms = 0\n")
    net.bring_up(g1, g3)
    net.bring_up(g2, g3)


XDP = """
echo '__attribute__((section("xdp"), used)) int pass(void *context) { return 2; }' >/run/pass.c
clang -O2 -target bpf -c /run/pass.c -o /run/pass.o
"""
ON_BRIDGES = "/proc/sys/net/bridge/bridge-nf-call-iptables"
FORWARD = "type filter hook forward priority 0;"
# How it comes, how it goes, and what is said of it.
FILTERS = {
    "tc": ("tc qdisc add dev TAP clsact", "tc qdisc del dev TAP clsact", "TAP has a qdisc for classifiers"),
    "xdp": (
        f"{XDP}ip link set TAP xdpgeneric obj /run/pass.o sec xdp",
        "ip link set TAP xdpgeneric off",
        "XDP program is attached to TAP",
    ),
    "shaper": (
        "tc qdisc add dev TAP root tbf rate 1gbit burst 100kb latency 50ms",
        "tc qdisc del dev TAP root",
        "TAP has a qdisc that may shape, tbf",
    ),
    "locked": (
        "bridge link set dev TAP locked on",
        "bridge link set dev TAP locked off",
        "TAP is a locked port",
    ),
    # No frame is dropped: that is not what the agent can see.
    "nft-bridge": (
        f"nft 'add table bridge f; add chain bridge f c {{ {FORWARD} }};"
        " add rule bridge f c iifname TAP udp dport 9 drop'",
        "nft delete table bridge f",
        "bridge table f, chain c",
    ),
    "nft-netdev": (
        "nft 'add table netdev f; add chain netdev f c { type filter hook ingress device TAP priority 0; };"
        " add rule netdev f c udp dport 9 drop'",
        "nft delete table netdev f",
        "netdev table f, chain c",
    ),
    "br_netfilter": (
        f"modprobe br_netfilter; echo 1 >{ON_BRIDGES}; nft 'add table ip f; add chain ip f c {{ {FORWARD} }};"
        " add rule ip f c ip saddr 192.0.2.0/24 drop'",
        f"echo 0 >{ON_BRIDGES}; nft delete table ip f",
        "ip table f, chain c",
    ),
}


def blocked(net, name="g1"):
    """Why a guest's interface gets no channels; empty if it does."""
    return next(one for one in net.listing()["guests"] if one["name"] == name)["nics"][0]["blocked"]


def check_filter(net, g1, g2, come, go, what):
    """A channel goes when a filter comes, and returns when it goes, unless the policy ignores filters."""
    assert blocked(net) == ""
    net.host.run(f"set -e\n{come}", timeout=60 * net.slow)
    try:
        for guest, peer in ((g1, g2), (g2, g1)):
            net.wait_state(guest, peer, "gone")
        assert what in blocked(net) and 'filters = "ignore"' in blocked(net)
        assert what in net.command("ls").out, "people are told as well"
        assert what in net.explained(g2, g1)["filter"]
        assert what in net.command("explain", "g1", "g2").out
        until(lambda: not net.channel_count(g1), 10 * net.slow, "g1 has no channel")
        try:
            net.set_policy("idle_ms = 0\nfilters = 'ignore'\n")
            net.bring_up(g1, g2)
        finally:
            net.set_policy("idle_ms = 0\n")
        net.wait_state(g1, g2, "gone")
    finally:
        net.host.run(go)
    # No policy is set here, since that alone has the agent look at all again.
    net.bring_up(g1, g2)
    with net.carried(g1, g2):
        g1.run(f"ping -c 3 -i 0.05 -q {g2.ip}")
    assert net.explained(g1, g2) == {}


@pytest.mark.kvm_only
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("tc", marks=pytest.mark.main("a channel gets around what the host has on a tap")),
        "xdp",
        "shaper",
        "locked",
        pytest.param("nft-bridge", marks=pytest.mark.main("a channel gets around the host's nftables")),
        "nft-netdev",
        "br_netfilter",
    ],
)
def test_filter(net, g1, g2, name):
    """A channel goes when a filter comes, and returns when it goes, unless the policy ignores filters."""
    check_filter(net, g1, g2, *(words.replace("TAP", g1.spec.tap) for words in FILTERS[name]))


@pytest.mark.kvm_only
def test_switch_of_br_netfilter(net, g1, g2):
    """Rules of IP count when br_netfilter shows them frames, which nothing tells of."""
    come, go, what = FILTERS["br_netfilter"]
    net.host.run(f"set -e\n{come}\necho 0 >{ON_BRIDGES}", timeout=60 * net.slow)
    try:
        net.bring_up(g1, g2)
        check_filter(net, g1, g2, f"echo 1 >{ON_BRIDGES}", f"echo 0 >{ON_BRIDGES}", what)
    finally:
        net.host.run(go)


@pytest.mark.kvm_only
def test_rules_that_do_nothing_to_a_pair(net, g1, g2, g3):
    """Rules that accept, count, or are for others cost nothing; one between two guests parts only those."""
    tag = net.peers(g1)["g2"].tag
    rules = f"""
table bridge harmless {{
    chain f {{
        {FORWARD} policy accept;
        ip protocol icmp counter accept
        iifname "docker0" drop
        oifname "virbr*" drop
        ibrname != "br0" drop
        ip saddr 192.0.2.0/24 meta mark set 7 counter jump more
        iifname "{g2.spec.tap}" oifname "{g3.spec.tap}" udp dport 9 drop
    }}
    chain more {{
        log prefix "x" return
    }}
}}
table ip off_bridges {{
    chain f {{
        {FORWARD} policy drop;
    }}
}}
table bridge dormant {{
    flags dormant
    chain f {{
        {FORWARD} policy drop;
    }}
}}
"""
    net.host.run("nft -f -", stdin=rules)
    try:
        net.wait_state(g2, g3, "gone")
        net.wait_state(g3, g2, "gone")
        assert blocked(net, "g1") == blocked(net, "g2") == ""
        assert "bridge table harmless, chain f" in net.explained(g3, g2)["filter"]
        assert net.explained(g1, g2) == net.explained(g1, g3) == {}
        net.bring_up(g1, g3)
        with net.carried(g1, g2):
            g1.run(f"ping -c 3 -i 0.05 -q {g2.ip}")
        assert net.peers(g1)["g2"].tag == tag, "the channel was closed meanwhile"
    finally:
        net.host.run("nft 'delete table bridge harmless; delete table ip off_bridges; delete table bridge dormant'")
    net.bring_up(g2, g3)


@pytest.mark.kvm_only
def test_isolated_ports(net, g1, g2, g3):
    """Two isolated ports have no channel; with one that is not, each has."""
    taps = [guest.spec.tap for guest in (g1, g2)]
    net.host.run("\n".join(f"bridge link set dev {tap} isolated on" for tap in taps))
    try:
        for guest, peer in ((g1, g2), (g2, g1)):
            net.wait_state(guest, peer, "gone")
        assert set(taps) <= set(net.explained(g1, g2)["isolated"].split())
        net.bring_up(g1, g3)
        net.bring_up(g2, g3)
    finally:
        net.host.run("\n".join(f"bridge link set dev {tap} isolated off" for tap in taps))
    net.bring_up(g1, g2)


def test_fourth_guest(lab, net, g1, g2, g3):
    """It joins, has a channel with each of the others, and goes again.

    The agent knows it before it has booted, as an agent does that watches for
    new machines; a reboot is no different.
    """
    g4 = lab.add_guest(boot=False)
    try:
        g4.start(wait=False)
        net.attach(g4)
        g4.wait_booted()
        net.prepare_guest(g4)
        others = (g1, g2, g3)
        for other in others:
            net.bring_up(g4, other)
        assert net.channel_count(g4) == 3
        for other in others:
            with net.carried(g4, other):
                g4.run(f"ping -c 3 -i 0.05 -q {other.ip}")
        assert len({net.peers(one)["g4"].peer["id"] for one in others}) == 1
        with net.carried(g1, g2):
            g1.run(f"ping -c 3 -i 0.05 -q {g2.ip}")
    finally:
        lab.remove_guest("g4")
    for other in (g1, g2, g3):
        net.wait_state(other, g4, "gone", 5)
    until(
        lambda: "g4" not in {guest["name"] for guest in net.listing()["guests"]}, 5 * net.slow, "the agent forgets g4"
    )


def test_the_network_decides(lab, net, g1):
    """Guests that the host's network keeps apart get no channel, whatever the policy says.

    v4 and v5 are on a bridge of their own, first on different VLANs, then on
    the same one, then apart again.
    """
    v4, v5 = (
        lab.add_guest(name, boot=False, bridge="br2", vlan=vlan, subnet=2) for name, vlan in (("v4", 10), ("v5", 20))
    )
    both = (v4, v5)

    def ready() -> bool:
        states = {one["name"]: one["state"] for one in net.listing()["guests"]}
        return states.get("v4") == states.get("v5") == "ready"

    def begin(guest: Guest) -> None:
        guest.wait_booted()
        net.prepare_guest(guest)
        net.attach(guest)

    def move_v5(old: int, new: int) -> None:
        tap = v5.spec.tap
        net.host.run(f"bridge vlan del dev {tap} vid {old}; bridge vlan add dev {tap} vid {new} pvid untagged")

    try:
        # One after the other, as the first makes their bridge.
        for guest in both:
            guest.start(wait=False)
        at_once(*(partial(begin, guest) for guest in both))
        until(ready, 15 * net.slow, "both are ready")
        assert net.peers(v4) == net.peers(v5) == {}, "guests on different VLANs see each other"
        assert not {"v4", "v5"} & set(net.peers(g1)), "guests on different bridges see each other"
        # Not even a frame with the right address gets there.
        v4.run(f"ip neigh replace {v5.ip} dev eth0 lladdr {v5.mac} nud permanent")
        assert v4.run(f"ping -c 2 -i 0.2 -W 1 -q {v5.ip}", check=False).code != 0
        assert not regions(v4) and not regions(v5)

        move_v5(20, 10)
        v4.run(f"ip neigh del {v5.ip} dev eth0")
        net.bring_up(v4, v5)
        with net.carried(v4, v5):
            v4.run(f"ping -c 3 -i 0.05 -q {v5.ip}")
        # A port that is untagged in one VLAN passes no tags: neither may the channel.
        for guest, ip in ((v4, "10.78.0.1"), (v5, "10.78.0.2")):
            guest.run(
                "ip link add link eth0 name eth0.20 type vlan id 20 && "
                f"ip addr add {ip}/24 dev eth0.20 && ip link set eth0.20 up"
            )
        v4.run(f"ip neigh replace 10.78.0.2 dev eth0.20 lladdr {v5.mac} nud permanent")
        assert v4.run("ping -c 2 -i 0.2 -W 1 -q 10.78.0.2", check=False).code != 0

        move_v5(10, 20)
        until(lambda: net.state(v4, v5) == "gone", 10 * net.slow, "v4 hears that v5 is on another VLAN now")
        until(lambda: not regions(v4) and not regions(v5), 10 * net.slow, "the channel is unplugged")
        v4.run(f"ip neigh replace {v5.ip} dev eth0 lladdr {v5.mac} nud permanent")
        assert v4.run(f"ping -c 2 -i 0.2 -W 1 -q {v5.ip}", check=False).code != 0
    finally:
        for guest in both:
            lab.remove_guest(guest.name)
