# SPDX-License-Identifier: GPL-2.0
"""What is still to be done with a frame that leaves: segmentation, checksums, encryption.

In one guest, by the loopback transport (veth.py draws its topology).
"""

import json
import re

import pytest

from tests.guest.net import HERE, until
from tests.guest.test_loopback import bring_up, peers
from tests.guest.veth import LOOPBACK, NET, TOPOLOGY, inside

PORT = "7000"
KEY = "0x" + "11" * 20

CONTAINER = """
set -e
ip netns add c
ip link add bc netns b type veth peer name cb netns c
ip -n b addr add 10.7.0.1/24 dev bc
ip -n c addr add 10.7.0.2/24 dev cb
ip -n b link set bc up
ip -n c link set cb up
ip -n a route add 10.7.0.0/24 via 10.9.0.2
ip -n c route add 10.9.0.0/24 via 10.7.0.1
ip netns exec b sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
ip netns exec b ethtool -K bc tx off >/dev/null
"""
"""A container behind b, reached by an interface that leaves all checksums to software."""

RULE = """
table netdev t {
    chain c {
        type filter hook egress device va priority 0
        counter
    }
}
"""


@pytest.fixture
def ring_size(request):
    """Bytes of each ring."""
    return getattr(request, "param", 1 << 20)


@pytest.fixture
def g(net, g3, ring_size):
    """g3, with two namespaces whose interfaces are peers by the loopback transport."""
    net.unload(g3)
    try:
        g3.run(f"{TOPOLOGY}{NET}{LOOPBACK} ring_size={ring_size}")
        bring_up(g3, net.slow)
        yield g3
    finally:
        g3.run("rmmod vmloop_loopback; rmmod vmloop_net; rmmod vmloop", check=False)
        g3.run("for one in a b c; do ip netns del $one; done", check=False)
        net.load(g3)
        net.ensure()


def moved(before, after):
    """What both ends have counted in between, together."""
    return {
        key: sum(after[name]["stats"][key] - before[name]["stats"][key] for name in after)
        for key in after["loopback0"]["stats"]
    }


def pattern(g, net, *words, server="b", client="a"):
    """Messages whose every byte is checked; returns what the channel's ends counted."""
    before = peers(g)
    with g.popen(inside(server, f"{HERE}/pattern", "serve", PORT)) as process:
        process.wait_for("ready", 20 * net.slow)
        g.run(inside(client, f"{HERE}/pattern", *words), timeout=60 * net.slow)
    return moved(before, peers(g))


def assert_by_channel(counted, size):
    """The channel carried it all, and dropped nothing."""
    past = {key: value for key, value in counted.items() if value and key.startswith(("standard", "drop"))}
    assert not past
    assert counted["tx_bytes"] >= size


def test_ipsec_never_enters_a_ring(net, g):
    """Software ESP that esp4_offload puts off until after the hook: plain text at the hook."""
    g.run("modprobe -a esp4 esp4_offload xfrm_user")
    for name, own in (("a", "10.9.0.1"), ("b", "10.9.0.2")):
        for spi, source, target in ((256, "10.9.0.1", "10.9.0.2"), (512, "10.9.0.2", "10.9.0.1")):
            ends = ["src", source, "dst", target]
            way = "out" if source == own else "in"
            esp = ["proto", "esp", "spi", spi, "mode", "transport", "aead", "rfc4106(gcm(aes))", KEY, 128]
            g.run(inside(name, "ip", "xfrm", "state", "add", *ends, *esp))
            template = ["tmpl", *ends, "proto", "esp", "mode", "transport"]
            g.run(inside(name, "ip", "xfrm", "policy", "add", *ends, "dir", way, *template))
    counted = pattern(g, net, "tcp", "10.9.0.2", PORT, 1, 1448, 65536, 300000)
    assert counted["standard_encrypted"] > 100
    assert counted["tx_bytes"] == 0


def test_sctp_for_a_container(net, g):
    """A CRC32c that is still to be computed is no 16-bit sum: where b forwards it, it would be spoilt."""
    g.run("modprobe sctp")
    g.run(CONTAINER)
    counted = pattern(g, net, "sctp", "10.7.0.2", PORT, 1, 1000, 60000, server="c")
    assert_by_channel(counted, 100_000)
    errors = re.search(r"SctpChecksumErrors\s+(\d+)", g.run(inside("c", "cat", "/proc/net/sctp/snmp")).out)
    assert errors and errors[1] == "0"


def test_tunnel_stays_on_one_path(net, g):
    """Frames of VXLAN that are still to be segmented go by the channel, as their small neighbours do."""
    for name, own, other in (("a", 1, 2), ("b", 2, 1)):
        ends = ["remote", f"10.9.0.{other}", "local", f"10.9.0.{own}", "dstport", 4789, "dev", f"v{name}"]
        g.run(inside(name, "ip", "link", "add", "vx", "type", "vxlan", "id", 5, *ends))
        g.run(inside(name, "ip", "addr", "add", f"10.8.0.{own}/24", "dev", "vx"))
        g.run(inside(name, "ip", "link", "set", "vx", "up"))
    counted = pattern(g, net, "tcp", "10.8.0.2", PORT, 1, 1448, 65536, 3_000_000)
    assert_by_channel(counted, 6_000_000)


@pytest.mark.parametrize("ring_size", [1 << 16], indirect=True)
def test_small_ring_loses_nothing(net, g):
    """Frames larger than a quarter of the ring, behind others that wait for room."""
    counted = pattern(g, net, "tcp", "10.9.0.2", PORT, 1, *[1_000_000] * 8)
    assert_by_channel(counted, 16_000_000)
    assert counted["tx_queued"] > 0, "nothing waited: this has shown nothing"
    for name in "ab":
        lines = g.run(inside(name, "grep", "^Tcp:", "/proc/net/snmp")).out.splitlines()
        tcp = dict(zip(*(line.split() for line in lines), strict=True))
        assert tcp["RetransSegs"] == "0", name


@pytest.mark.parametrize("ring_size", [1 << 16], indirect=True)
def test_flushed_frames_pass_nftables_once(net, g):
    """What waited when the channel ended goes on behind the hooks that it has passed."""
    g.run(
        inside("a", "nft", "-f", "-"),
        stdin=RULE,
    )
    sent = "cat /sys/class/net/va/statistics/tx_packets"

    def passed():
        rules = json.loads(g.run(inside("a", "nft", "-j", "list", "chain", "netdev", "t", "c")).out)["nftables"]
        return next(one["rule"]["expr"][0]["counter"]["packets"] for one in rules if "rule" in one)

    def left():
        return int(g.run(inside("a", "sh", "-c", sent)).out)

    for name in "ab":
        # One segment a frame, so that each is one for the rule and for the interface.
        g.run(inside(name, "ip", "link", "set", f"v{name}", "gso_max_segs", 1))
    before = left() - passed()
    with g.popen(inside("b", f"{HERE}/pattern", "serve", PORT)) as server:
        server.wait_for("ready", 20 * net.slow)
        words = [f"{HERE}/pattern", "tcp", "10.9.0.2", PORT, *[16_000_000] * 40]
        with g.popen(inside("a", *words)) as client:

            def flushed():
                g.run([f"{HERE}/control", "off"])
                g.run([f"{HERE}/control", "on"])
                assert client.poll() is None, "the stream ended before a frame waited at the channel's end"
                until(lambda: all(one["state"] == "up" for one in peers(g).values()), 10 * net.slow, "the channel")
                return peers(g)["loopback0"]["stats"]["standard_flushed"]

            until(flushed, 60 * net.slow, "a frame that waited when the channel ended")
            client.kill()
            client.wait(10)
    until(lambda: left() - passed() == before, 5 * net.slow, "as many frames have left as have passed the rule")
