# SPDX-License-Identifier: GPL-2.0
"""What guests send each other arrives, through the channel, as it was sent."""

import ipaddress
import json
import random
import re

import pytest
from vmlab import CommandFailed

from tests.guest.net import HERE, Net, set_up_eth0, until

PORT = "7000"


def sizes(most: int, edges: tuple[int, ...]) -> list[str]:
    """Message sizes: powers of two and their neighbours, edges, and some between."""
    found = set(edges)
    for power in range(17):
        found |= {2**power - 1, 2**power, 2**power + 1}
    between = random.Random(7)
    found |= {round(2 ** between.uniform(0, 16)) for _ in range(40)}
    return [str(size) for size in sorted(found) if 1 <= size <= most]


# Around a segment of 1500 and of 9000 bytes of MTU, with and without
# timestamps, over IPv4 and IPv6, and around what one frame can carry.
TCP_EDGES = (1427, 1428, 1429, 1439, 1440, 1441, 1447, 1448, 1449, 1459, 1460, 1461, 8947, 8948, 8949, 65160, 65483)
UDP_EDGES = (1451, 1452, 1453, 1471, 1472, 1473, 2944, 2952, 8952, 8972, 8973, 65506, 65507)


@pytest.fixture
def server(net, g2):
    with net.serving(g2, f"{HERE}/pattern", "serve", PORT) as process:
        yield process
        assert process.poll() is None and not process.err, process.err


@pytest.mark.core("the channel carries traffic, by two independent witnesses", on="both")
def test_ping(net, g1, g2):
    with net.carried(g1, g2) as found:
        g1.run(f"ping -c 10 -i 0.05 -q {g2.ip}")
        g2.run(f"ping -c 10 -i 0.05 -q -s 1400 {g1.ip}")
    assert found.there["tx_frames"] >= 20 and found.back["tx_frames"] >= 20


def test_ping_of_all_sizes(net, g1, g2):
    """Pings larger than the MTU are fragments or large frames; both must arrive."""
    with net.carried(g1, g2, there=60_000, back=60_000):
        for size in (0, 1, 18, 1472, 1473, 8972, 65000):
            g1.run(f"ping -c 2 -i 0.05 -q -s {size} {g2.ip}")


@pytest.mark.main("IPv6 is found by neighbour discovery, not by ARP")
def test_ping6(net, g1, g2):
    with net.carried(g1, g2) as found:
        g1.run(f"ping -6 -c 10 -i 0.05 -q {g2.ip6}")
        g2.run(f"ping -6 -c 10 -i 0.05 -q -s 4000 {g1.ip6}")
    assert found.there["tx_frames"] >= 20 and found.back["tx_frames"] >= 20


def test_arp_unicast(net, g1, g2):
    """A neighbour that is probed is asked by unicast ARP, which the channel carries."""

    def state() -> str:
        return g1.run(f"ip neigh show {g2.ip} dev eth0").out

    with g1.popen(f"tcpdump -i eth0 -n -e -l arp and ether dst {g2.mac}") as capture:
        capture.wait_for("listening on")
        with net.carried(g1, g2) as found:
            g1.run(f"ip neigh replace {g2.ip} dev eth0 lladdr {g2.mac} nud probe")
            until(lambda: "REACHABLE" in state(), 10 * net.slow, f"g2 answers ARP: {state()}")
        capture.wait_for(f"Request who-has {g2.ip}")
    assert found.there["tx_frames"] >= 1 and found.back["tx_frames"] >= 1


@pytest.mark.parametrize("family", ["ip", "ip6"])
@pytest.mark.core("every byte of TCP arrives, in records of all sizes", on="both")
def test_tcp_of_all_sizes(net, g1, g2, server, family):
    words = sizes(65536, TCP_EDGES)
    total = sum(map(int, words))
    with net.carried(g1, g2, there=total, back=total):
        g1.run([f"{HERE}/pattern", "tcp", getattr(g2, family), PORT, *words], timeout=60 * net.slow)


@pytest.mark.parametrize("family", ["ip", "ip6"])
@pytest.mark.main("datagrams of all sizes, which no protocol repeats", on="both")
def test_udp_of_all_sizes(net, g1, g2, server, family):
    words = sizes(65507, UDP_EDGES)
    total = sum(map(int, words))
    with net.carried(g1, g2, there=total, back=total):
        g1.run([f"{HERE}/pattern", "udp", getattr(g2, family), PORT, *words], timeout=60 * net.slow)


def test_the_other_way_round(net, g1, g2):
    """The side that listens and the side that connects change places."""
    words = ["1", "1472", "1473", "9000", "65000"]
    with net.serving(g1, f"{HERE}/pattern", "serve", PORT), net.carried(g1, g2, 75_000, 75_000):
        g2.run([f"{HERE}/pattern", "tcp", g1.ip, PORT, *words])
        g2.run([f"{HERE}/pattern", "udp", g1.ip, PORT, *words])


@pytest.mark.main("the larger MTU at POST_ROUTING", on="both")
def test_large_datagrams_stay_whole(net, g1, g2, server):
    """60,000 bytes over IPv4 are one frame, not 41 fragments."""
    with net.carried(g1, g2, there=100 * 60_000, back=100 * 60_000) as found:
        g1.run([f"{HERE}/pattern", "udp", g2.ip, PORT, *["60000"] * 100])
    assert found.there["tx_frames"] < 120 and found.back["tx_frames"] < 120


def test_short_connections(net, g1, g2, server):
    with net.carried(g1, g2) as found:
        g1.run([f"{HERE}/pattern", "short", g2.ip, PORT, "1000"], timeout=120 * net.slow)
    # SYN, ACK, message, FIN at least
    assert found.there["tx_frames"] >= 4000


def test_file_of_a_gigabyte(net, g1, g2):
    """1 GiB from a file to a file; sha256 at both ends."""
    size = 1 << 30
    tmpfs = "mkdir -p /run/big && mount -t tmpfs -o size=1100m big /run/big"
    g1.run(tmpfs)
    g2.run(tmpfs)
    try:
        # No block is like another: each part begins with its number, and so elsewhere in a page.
        g1.run(
            "openssl rand 16777216 >/run/part &&"
            " for n in $(seq 1001 1064); do echo $n; cat /run/part; done >/run/big/file &&"
            f" truncate -s {size} /run/big/file && rm /run/part",
            timeout=180 * net.slow,
        )
        listen = ["socat", "-d", "-d", "-u", "-b", "262144", "TCP-LISTEN:7200,reuseaddr", "CREATE:/run/big/file"]
        with (
            net.serving(g2, *listen, ready="listening on") as sink,
            net.carried(g1, g2, there=size, standard=1_000_000),
        ):
            g1.run(f"socat -u -b 262144 OPEN:/run/big/file TCP:{g2.ip}:7200", timeout=180 * net.slow)
            assert sink.wait(30 * net.slow).code == 0
        with g2.popen("stat -c %s /run/big/file; sha256sum </run/big/file") as there:
            here = g1.run("stat -c %s /run/big/file; sha256sum </run/big/file", timeout=180 * net.slow)
            there_result = there.wait(180 * net.slow)
        assert here.out == there_result.out
        assert here.out.splitlines()[0] == str(size)
    finally:
        g1.run("umount /run/big")
        g2.run("umount -l /run/big")


def test_64_parallel_streams(net, g1, g2):
    with (
        net.serving(g2, "iperf3", "-s", "-1", "--forceflush", ready="Server listening"),
        net.carried(g1, g2, standard=1 << 40) as found,
    ):
        result = json.loads(g1.run(f"iperf3 -c {g2.ip} -P 64 -t {3 * net.slow} -J", timeout=60 * net.slow).out)
    streams = [one["receiver"]["bytes"] for one in result["end"]["streams"]]
    assert len(streams) == 64 and min(streams) > 0
    assert found.there["tx_bytes"] >= 0.95 * sum(streams), found
    # 64 senders fill ring and waiting list: what does not fit goes the other way, and that is little.
    assert max(found.standard.values()) <= found.there["tx_bytes"] / 20, found


@pytest.mark.main("taps see frames that no driver does")
def test_tcpdump_sees_both_directions(net, g1, g2):
    """At both ends, each frame once, as with the standard network."""
    captures = [guest.popen("tcpdump -i eth0 -n -l --immediate-mode icmp") for guest in (g1, g2)]
    try:
        for capture in captures:
            capture.wait_for("listening on")
        with net.carried(g1, g2):
            g1.run(f"ping -c 5 -i 0.05 -q -s 1000 {g2.ip}")
        for capture in captures:
            capture.wait_for(r"echo reply, id \d+, seq 5", 10 * net.slow)
            capture.terminate()
            lines = capture.wait(20).out.splitlines()
            for kind, source, target in (("request", g1.ip, g2.ip), ("reply", g2.ip, g1.ip)):
                seen = [line for line in lines if f"{source} > {target}: ICMP echo {kind}" in line]
                assert len(seen) == 5 and all("length 1008" in line for line in seen), lines
    finally:
        for capture in captures:
            capture.__exit__()


NFT = {
    "output": ("g1", "inet", "type filter hook output priority 0", "icmp type echo-request"),
    "postrouting": ("g1", "inet", "type filter hook postrouting priority 300", "icmp type echo-request"),
    "egress": ("g1", "netdev", "type filter hook egress device eth0 priority 0", "icmp type echo-request"),
    "ingress": ("g2", "netdev", "type filter hook ingress device eth0 priority 0", "icmp type echo-request"),
    "prerouting": ("g2", "inet", "type filter hook prerouting priority -300", "icmp type echo-request"),
    "input": ("g2", "inet", "type filter hook input priority 0", "icmp type echo-request"),
}


FIRST_AND_LAST = pytest.mark.main("the guest's rules hold: the last hook of the sender, the first of the receiver")


@pytest.mark.parametrize(
    "hook", [pytest.param(hook, marks=FIRST_AND_LAST) if hook.endswith("gress") else hook for hook in NFT]
)
def test_nftables_still_drops(lab, net, g1, g2, hook):
    where, family, chain, match = NFT[hook]
    guest = lab.guest(where)
    with net.carried(g1, g2):
        g1.run(f"ping -c 1 -W 5 {g2.ip}")
    try:
        guest.run(
            ["nft", f"add table {family} t; add chain {family} t c {{ {chain}; }}; "
             f"add rule {family} t c {match} counter drop"]
        )  # fmt: skip
        with pytest.raises(CommandFailed):
            g1.run(f"ping -c 3 -i 0.1 -W 1 -q {g2.ip}")
        rule = guest.run("nft list ruleset").out
        # At egress ping hears of the drop (ENOBUFS), and tries again.
        counted = re.search(r"counter packets (\d+) ", rule)
        assert counted and (int(counted[1]) >= 3 if hook == "egress" else int(counted[1]) == 3), rule
    finally:
        guest.run(f"nft delete table {family} t", check=False)
    with net.carried(g1, g2):
        g1.run(f"ping -c 1 -W 5 {g2.ip}")


def test_conntrack_follows(net, g1, g2, server):
    """A stateful firewall sees connections, large datagrams included, as established."""
    try:
        g2.run(
            ["nft", "add table inet t; add chain inet t c { type filter hook input priority 0; policy drop; }; "
             "add rule inet t c ct state established,related counter accept; "
             "add rule inet t c ct state new meta l4proto { tcp, udp } th dport 7000 counter accept; "
             "add rule inet t c meta l4proto icmpv6 accept"]
        )  # fmt: skip
        g1.run(
            ["nft", "add table inet t; add chain inet t c { type filter hook input priority 0; policy drop; }; "
             "add rule inet t c ct state established counter accept; "
             "add rule inet t c meta l4proto icmpv6 accept"]
        )  # fmt: skip
        with net.carried(g1, g2, 80_000, 80_000):
            g1.run([f"{HERE}/pattern", "tcp", g2.ip, PORT, "1", "20000"])
            g1.run([f"{HERE}/pattern", "udp", g2.ip, PORT, "1", "60000"])
    finally:
        for guest in (g1, g2):
            guest.run("nft delete table inet t", check=False)


def test_mtu_1500(net, g1, g2):
    """The largest packet passes whole, and a larger one that must not be fragmented is refused."""
    with net.carried(g1, g2):
        g1.run(f"ping -c 2 -i 0.1 -M do -s 1472 {g2.ip}")
    refused = g1.run(f"ping -c 1 -W 1 -M do -s 1473 {g2.ip}", check=False)
    assert refused.code != 0 and "message too long" in (refused.out + refused.err).lower()


@pytest.mark.main("the MTU changes while channels are up")
def test_mtu_9000(lab, net, g1, g2, server):
    def set_mtu(mtu: int) -> None:
        bridge = f"ip link set br0 mtu {mtu}" if mtu == 1500 else ":"
        taps = "; ".join(f"ip link set tap-{name} mtu {mtu}" for name in net.base)
        net.host.run(f"{bridge}; {taps}; ip link set br0 mtu {mtu}")
        for guest in (g1, g2):
            guest.run(f"ip link set eth0 mtu {mtu}")

    set_mtu(9000)
    try:
        with net.carried(g1, g2, there=9000):
            g1.run(f"ping -c 2 -i 0.1 -M do -s 8972 {g2.ip}")
        refused = g1.run(f"ping -c 1 -W 1 -M do -s 8973 {g2.ip}", check=False)
        assert refused.code != 0
        words = ["1", "1473", "8947", "8948", "8949", "8972", "8973", "65000"]
        with net.carried(g1, g2, there=100_000, back=100_000):
            g1.run([f"{HERE}/pattern", "tcp", g2.ip, PORT, *words])
            g1.run([f"{HERE}/pattern", "udp", g2.ip, PORT, *words])
    finally:
        set_mtu(1500)


@pytest.mark.parametrize(
    "kind", ["in_the_frame", pytest.param("offloaded", marks=pytest.mark.main("the tag is not in the frame"))]
)
def test_vlan(net, g1, g2, kind):
    """A VLAN interface in both guests; the tag is in the frame, or in its metadata."""
    try:
        for guest, ip in ((g1, "10.78.0.1"), (g2, "10.78.0.2")):
            reorder = "on" if kind == "offloaded" else "off"
            guest.run(
                f"ip link add link eth0 name eth0.100 type vlan id 100 reorder_hdr {reorder} &&"
                f" echo 0 >/proc/sys/net/ipv6/conf/eth0.100/accept_dad;"
                f" ip addr add {ip}/24 dev eth0.100 && ip link set eth0.100 up"
            )
        with (
            net.serving(g2, f"{HERE}/pattern", "serve", PORT),
            g2.popen("tcpdump -i eth0 -n -e -l --immediate-mode vlan 100 and icmp") as capture,
        ):
            capture.wait_for("listening on")
            g1.run("ping -c 1 -W 5 -q 10.78.0.2")  # neighbours are found by broadcast
            with net.carried(g1, g2, 100_000, 100_000):
                g1.run("ping -c 5 -i 0.05 -q 10.78.0.2")
                g1.run([f"{HERE}/pattern", "tcp", "10.78.0.2", PORT, *sizes(65536, TCP_EDGES)])
                g1.run([f"{HERE}/pattern", "udp", "10.78.0.2", PORT, "1", "1472", "1473", "60000"])
            capture.wait_for("vlan 100.*echo request")
            capture.wait_for("vlan 100.*echo reply")
    finally:
        for guest in (g1, g2):
            guest.run("ip link del eth0.100", check=False)


def interface_counters(guest):
    found = json.loads(guest.run("ip -s -j link show eth0").out)[0]["stats64"]
    return {way: (found[way]["packets"], found[way]["bytes"]) for way in ("rx", "tx")}


@pytest.mark.main("counters count what no driver saw")
def test_interface_counters_move(net: Net, g1, g2, server):
    """By what was sent, as if it had passed the driver."""
    before = interface_counters(g1), interface_counters(g2)
    with net.carried(g1, g2) as found:
        g1.run([f"{HERE}/pattern", "udp", g2.ip, PORT, *["1000"] * 200])
    after = interface_counters(g1), interface_counters(g2)
    for n, way, other in ((0, "tx", "there"), (1, "rx", "there"), (1, "tx", "back"), (0, "rx", "back")):
        packets = after[n][way][0] - before[n][way][0]
        size = after[n][way][1] - before[n][way][1]
        carried = getattr(found, other)
        assert carried["tx_frames"] >= 200 and carried["tx_bytes"] >= 200 * 1042
        # A few frames of the standard network (multicast, the lab) come on top.
        assert carried["tx_frames"] <= packets <= carried["tx_frames"] + 50, (n, way, found)
        assert carried["tx_bytes"] <= size <= carried["tx_bytes"] + 10_000, (n, way, found)


def test_interface_in_a_namespace(net, g1, g2):
    """The card in another namespace: its addresses are told to peers, and it sends and receives by the channel."""
    address = f"10.77.{g1.spec.subnet}.99"
    told = ipaddress.IPv4Address(address).packed.hex()
    g1.run(f"ip netns add x && ip link set eth0 netns x && ip -n x addr add {address}/24 dev eth0")
    try:
        g1.run("ip -n x link set eth0 up")
        until(lambda: told in str(net.peers(g2)["g1"].peer["interface"]), 10 * net.slow, "g2 knows its address")
        ping = f"ip netns exec x ping -c 1 -W 1 -q {g2.ip}"
        until(lambda: g1.run(ping, check=False).code == 0 and net.both_up(g1, g2), 20 * net.slow, "it is reached")
        with net.carried(g1, g2) as found:
            g1.run(f"ip netns exec x ping -c 10 -i 0.05 -q {g2.ip}")
        assert found.there["tx_frames"] >= 10 and found.back["tx_frames"] >= 10
    finally:
        g1.run("ip -n x link set eth0 netns 1 && ip netns del x")
        set_up_eth0(g1)


def test_ss_shows_the_sockets(net, g1, g2):
    with net.transfer(g1, g2, port=7300) as transfer:
        here = g1.run(f"ss -Htnei state established dst {g2.ip} dport = :7300").out
        there = g2.run("ss -Htnei state established sport = :7300").out
        assert g2.ip in here and "bytes_acked" in here
        assert g1.ip in there and "bytes_received" in there
        transfer.finish()


def test_command_in_guest(net, g1, g2):
    """The vmloop command says what the modules say over netlink."""
    g1.run(f"ping -c 1 -q {g2.ip}")
    ours = net.peers(g1)["g2"]
    shown = json.loads(g1.run([f"{HERE}/vmloop", "--guest", "stats", "--json"]).out)
    text = json.dumps(shown)
    assert "g2" in text and "g3" in text
    peer = next(one for one in shown if one["name"] == "g2")
    assert peer["state"] == "up"
    # Neighbours may talk meanwhile: compare what a ping more or less cannot change.
    assert abs(peer["stats"]["tx-frames"] - ours["tx_frames"]) < 20
    assert g1.run([f"{HERE}/vmloop", "--guest", "status"]).code == 0
