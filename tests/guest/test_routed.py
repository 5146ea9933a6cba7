# SPDX-License-Identifier: GPL-2.0
"""Guests in two subnets, whose router is the host, and a channel between them.

g1 10.77.0.11, .111 -- br0 10.77.0.1 | host, routing | br4 10.77.4.1 -- r4 10.77.4.N, .111
"""

import re
import struct
from ipaddress import IPv4Address

import pytest

from tests.guest.net import HERE, POLICY, STALLS, until

pytestmark = pytest.mark.keeps("r4")

PORT = "7000"
MORE = {"g1": ("10.77.0.111/24", "fd77::111/64"), "r4": ("10.77.4.111/24", "fd77:0:0:4::111/64")}
"""The second addresses of each."""

ROUTED = (
    POLICY
    + """
[[routed]]
name = "lab"
members = ["g1", "r4"]
interfaces = ["br0", "br4"]
allow_ips = ["10.77.0.0/24", "10.77.4.0/24", "fd77::/48"]
"""
)

QUIET = """
add table netdev quiet
add chain netdev quiet out { type filter hook egress device eth0 priority 0; }
add rule netdev quiet out drop
"""


def address(guest, n, family="ip"):
    """Address n (0 or 1) of a guest."""
    if n:
        return MORE[guest.name][family == "ip6"].partition("/")[0]
    return getattr(guest, family)


def change(guest, verb, cidr):
    nodad = " nodad" if ":" in cidr and verb == "add" else ""
    guest.run(f"ip addr {verb} {cidr} dev eth0{nodad}")


def boot_r4(lab, net):
    """A guest behind the host's other bridge, attached."""
    r4 = lab.add_guest("r4", boot=False, bridge="br4", subnet=4)
    try:
        r4.start()
        net.prepare_guest(r4)
        net.attach(r4)
    except BaseException:
        lab.remove_guest("r4")
        raise
    return r4


@pytest.fixture
def r4(lab, net, g1):
    """A guest behind the host's other bridge; both have two addresses of each family, and routes to each other.

    It stays for the next test of this file (`keeps`), without the policy that lets it have a channel.
    """
    r4 = lab.guest("r4") if "r4" in lab.guests else boot_r4(lab, net)
    try:
        net.host.run("echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
        for guest, far, router in ((g1, "fd77:0:0:4::/64", "fd77::1"), (r4, "fd77::/64", "fd77:0:0:4::1")):
            adding = [f"ip addr replace {cidr} dev eth0{' nodad' if ':' in cidr else ''}" for cidr in MORE[guest.name]]
            guest.run(" && ".join([*adding, f"ip -6 route replace {far} via {router} dev eth0"]))
        until(
            lambda: any((one["name"], one["state"]) == ("r4", "ready") for one in net.listing()["guests"]),
            15 * net.slow,
            "r4 is ready",
        )
        until(lambda: not net.channel_count(r4), 10 * net.slow, "r4 has no channel of an earlier test")
        yield r4
    finally:
        net.set_policy(POLICY)
        net.host.run("echo 0 >/proc/sys/net/ipv6/conf/all/forwarding")
        removing = [f"ip addr del {cidr} dev eth0" for cidr in MORE["g1"]]
        g1.run("; ".join(["ip -6 route del fd77:0:0:4::/64", *removing]), check=False)


def sent(net, guest, peer):
    return net.peers(guest)[peer.name]["tx_frames"]


def uses_channel(net, guest, peer, to):
    """Whether a ping to this address goes through the channel, both ways."""
    before = sent(net, guest, peer), sent(net, peer, guest)
    guest.run(["ping", "-c", "1", "-W", "1", "-q", to], check=False)
    return sent(net, guest, peer) > before[0] and sent(net, peer, guest) > before[1]


def wait_channel(net, guest, peer, to):
    until(lambda: uses_channel(net, guest, peer, to), 10 * net.slow, f"{guest.name} reaches {to} through the channel")


def go_routed(net, g1, r4):
    """The policy says so; returns when all addresses are reached through the channel."""
    net.set_policy(ROUTED)
    net.bring_up(g1, r4)
    for guest, peer in ((g1, r4), (r4, g1)):
        for family in ("ip", "ip6"):
            for n in (0, 1):
                wait_channel(net, guest, peer, address(peer, n, family))


def packet(source, target, from_ip, to_ip):
    """A frame with an IPv4 packet of an experimental protocol, in hexadecimal."""
    head = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 60, 1, 0, 63, 253, 0))
    head += IPv4Address(from_ip).packed + IPv4Address(to_ip).packed
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into("!H", head, 10, 0xFFFF ^ ((total & 0xFFFF) + (total >> 16)))
    macs = bytes.fromhex((target.mac + source.mac).replace(":", ""))
    return (macs + b"\x08\x00" + bytes(head) + bytes(40)).hex()


@pytest.mark.main("the path over the host as router")
def test_guests_in_two_subnets(net, g1, g2, r4):
    """One channel carries both families and all addresses; what is seen is what a router would make of it."""
    # By itself the network keeps them apart, and the host routes.
    assert "r4" not in net.peers(g1) and not net.channel_count(r4)
    g1.run(f"ping -c 2 -W 5 -i 0.2 -q {r4.ip}")
    assert "r4" not in net.peers(g1) and not net.channel_count(r4)

    go_routed(net, g1, r4)
    assert net.channel_count(r4) == 1, "one channel, whatever the addresses"
    with net.serving(r4, f"{HERE}/pattern", "serve", PORT):
        for family in ("ip", "ip6"):
            for n in (0, 1):
                to = address(r4, n, family)
                with net.carried(g1, r4, 86_000, 86_000):
                    g1.run([f"{HERE}/pattern", "tcp", to, PORT, "1", "1448", "20000", "65000"], timeout=60 * net.slow)
                    # A server that is bound to none answers from an address of the kernel's choice.
                    if (family, n) == ("ip", 0):
                        g1.run(
                            [f"{HERE}/pattern", "udp", to, PORT, "1", "1472", "1473", "60000"], timeout=60 * net.slow
                        )
        with net.carried(g1, r4, 20 * 60_000, 20 * 60_000) as found:
            g1.run([f"{HERE}/pattern", "udp", r4.ip, PORT, *["60000"] * 20], timeout=60 * net.slow)
        assert found.there["tx_frames"] < 40, f"datagrams did not stay whole: {found}"
    # From each address of one to each of the other.
    with net.carried(g1, r4):
        for source in (0, 1):
            for target in (0, 1):
                g1.run(f"ping -c 2 -i 0.05 -q -I {address(g1, source)} {address(r4, target)}")
    # Neighbours go on as before.
    with net.carried(g1, g2):
        g1.run(f"ping -c 3 -i 0.05 -q {g2.ip}")

    # One hop less, from the router's address.
    router = net.host.run("cat /sys/class/net/br4/address").out.strip()
    with r4.popen("tcpdump -i eth0 -n -e -v -l --immediate-mode icmp") as capture:
        capture.wait_for("listening on")
        with net.carried(g1, r4):
            # One by one: after its last request ping waits for two round trips only.
            answers = g1.run(f"for n in 1 2; do ping -c 1 -W 5 {r4.ip}; done").out
        assert answers.count("ttl=63") == 2, answers
        capture.wait_for(rf"{router} > {r4.mac}.*ttl 63", 10 * net.slow)
    # The end of the hops is the router's to tell.
    for words, router in (
        (f"ping -t 1 -c 1 -W 5 {r4.ip}", "10.77.0.1"),
        (f"ping -6 -t 1 -c 1 -W 5 {r4.ip6}", "fd77::1"),
    ):
        told = g1.run(words, check=False).out
        assert re.search(rf"From {router} .*(Time to live exceeded|Hop limit)", told), told

    # Without the policy the channel goes, and the traffic does not.
    net.set_policy(POLICY)
    net.wait_state(g1, r4, "gone")
    until(lambda: not net.channel_count(r4), 10 * net.slow, "the channel is unplugged")
    g1.run(f"ping -c 2 -W 5 -i 0.2 -q {r4.ip}")


# How it comes to the host as the router, how it goes, and what is said of it.
FILTERS = {
    "chain": (
        "nft 'add table ip f; add chain ip f c { type filter hook forward priority 0; };"
        " add rule ip f c iifname docker0 drop; add rule ip f c oifname br4 udp dport 9 drop'",
        "nft delete table ip f",
        "ip table f, chain c",
    ),
    "translation": (
        "nft 'add table ip f; add chain ip f c { type nat hook postrouting priority 100; };"
        " add rule ip f c ip saddr 192.0.2.0/24 masquerade'",
        "nft delete table ip f",
        "ip table f, chain c",
    ),
    "rule": (
        "ip rule add from 192.0.2.1 lookup main priority 100",
        "ip rule del priority 100",
        "ip rule show priority 100",
    ),
    "bridge": (
        "tc qdisc add dev br4 root tbf rate 1gbit burst 100kb latency 50ms",
        "tc qdisc del dev br4 root",
        "br4 has a qdisc that may shape",
    ),
}


@pytest.mark.kvm_only
@pytest.mark.parametrize("name", FILTERS)
def test_filters_of_the_router(net, g1, g2, r4, name):
    """What the host has for packets that it forwards ends the channel of a routed pair, and no other."""
    come, go, what = FILTERS[name]
    go_routed(net, g1, r4)
    tag = net.peers(g1)["g2"].tag
    assert net.explained(g1, r4) == {}
    net.host.run(come)
    try:
        until(lambda: not net.channel_count(r4), 10 * net.slow, "r4 has no channel")
        assert what in net.explained(g1, r4)["filter"]
        assert net.explained(g1, g2) == {} and net.peers(g1)["g2"].tag == tag
    finally:
        net.host.run(go)
    go_routed(net, g1, r4)


@pytest.mark.kvm_only
def test_forged_addresses(net, g1, g2, r4):
    """A peer sends from its own addresses only, and to ours only; the rest is dropped and counted."""
    go_routed(net, g1, r4)
    wrong = {}
    g1.run("nft -f -", stdin=QUIET)
    r4.run("nft -f -", stdin=QUIET)
    try:
        for counter, from_ip, to_ip in (
            ("rx_frames", r4.ip, g1.ip),
            ("rx_frames", address(r4, 1), address(g1, 1)),
            ("drop_source", "10.77.4.99", g1.ip),
            ("drop_source", g2.ip, g1.ip),
            ("drop_source", g1.ip, g1.ip),
            ("drop_source", "10.77.4.1", g1.ip),
            ("drop_destination", r4.ip, g2.ip),
            ("drop_destination", r4.ip, "10.77.0.255"),
        ):
            before = net.peers(g1)["r4"].stats
            r4.run([f"{HERE}/shm", "frame", str(net.peers(r4)["g1"].tag), packet(r4, g1, from_ip, to_ip)])

            def moved(before=before):
                now = net.peers(g1)["r4"].stats
                names = ("rx_frames", *(name for name in now if name.startswith("drop")))
                return {name: now[name] - before[name] for name in names if now[name] != before[name]}

            seen = until(moved, 3 * net.slow, f"g1 has counted {from_ip} to {to_ip}")
            if seen != {counter: 1}:
                wrong[f"{from_ip} to {to_ip}"] = seen
    finally:
        for guest in (g1, r4):
            guest.run("nft delete table netdev quiet", check=False)
    assert not wrong, wrong
    # r4's modules do not know how far its ring was filled.
    net.command("close", "g1", "r4")
    net.recover(g1, r4)
    with net.carried(g1, r4):
        g1.run(f"ping -c 3 -i 0.05 -q {r4.ip}")


def test_address_removed_under_load(request, net, g1, r4):
    """It stops using the channel, and can come back; the other address does not notice.

    How soon it stops is printed at the end.
    """
    go_routed(net, g1, r4)
    cidr, ip = MORE["r4"][0], address(r4, 1)
    tag = net.peers(g1)["r4"].tag

    def by_host():
        """Packets to the address that the host has forwarded."""
        found = re.search(r"counter packets (\d+)", net.host.run("nft list table ip routed").out)
        assert found
        return int(found[1])

    net.host.run(
        "nft 'add table ip routed; add chain ip routed c { type filter hook forward priority 0; };"
        f" add rule ip routed c ip daddr {ip} counter'"
    )
    try:
        # As much as fits the ring at any time: what does not takes the standard network.
        with net.transfer(g1, r4, rate=10) as transfer, g1.popen(f"ping -i 0.01 -q {ip}") as load:
            transfer.wait_bytes(20_000_000)
            assert by_host() == 0, "the address does not use the channel: the test shows nothing"

            # A program that already runs there: to start one takes a good part of the second. On
            # br0, as nobody behind br4 has the address any more.
            watch = ["tcpdump", "-i", "br0", "-n", "-l", "--immediate-mode", "-c", "1", f"icmp and dst {ip}"]
            with net.serving(net.host, *watch, ready="listening on") as passes:
                change(r4, "del", cidr)
                removed = net.lab.now()
                passes.wait(10 * net.slow)
                took = net.lab.now() - removed
            STALLS.append({"test": f"{request.node.name}: until the channel was not used", "seconds": took})
            # The channel has none of them any more: r4 would drop and count them.
            dropped, passed = net.peers(r4)["g1"]["drop_destination"], by_host()
            until(lambda: by_host() > passed + 20, 10 * net.slow, "more packets pass the host")
            assert net.peers(r4)["g1"]["drop_destination"] == dropped

            before = net.channel_bytes(g1, r4)
            transfer.wait_bytes(20_000_000)
            assert net.channel_bytes(g1, r4) - before >= 10_000_000, "the other address does not use the channel"

            change(r4, "add", cidr)
            wait_channel(net, g1, r4, ip)
            passed = by_host()
            transfer.wait_bytes(20_000_000)
            assert load.poll() is None and by_host() == passed, "packets to the address pass the host"
            assert net.peers(g1)["r4"].tag == tag and net.channel_count(r4) == 1
            longest = transfer.finish()
        assert longest < 1.0 * net.slow, f"nothing arrived for {longest:.3f} s"
    finally:
        net.host.run("nft delete table ip routed", check=False)
