# SPDX-License-Identifier: GPL-2.0
"""Core and packet path without a hypervisor: the loopback transport.

Two network namespaces of one guest are peers (veth.py).
"""

import json

import pytest

from tests.guest.net import HERE, Transfer, until
from tests.guest.veth import LOOPBACK, NET, TOPOLOGY, inside

PORT = "7000"


@pytest.fixture
def g(net, g3):
    """g3, with the loopback transport instead of the other one."""
    net.unload(g3)
    try:
        g3.run(TOPOLOGY + NET + LOOPBACK)
        yield g3
    finally:
        g3.run("rmmod vmloop_loopback; rmmod vmloop_net; rmmod vmloop; ip netns del a; ip netns del b", check=False)
        net.load(g3)
        net.ensure()


def peers(g):
    found = json.loads(g.run([f"{HERE}/control", "peers"]).out)
    return {one["name"]: one for one in found}


def bring_up(g, slow):
    def is_up():
        g.run(inside("a", "ping", "-c", "1", "-W", "1", "-q", "10.9.0.2"), check=False)
        return all(one["state"] == "up" for one in peers(g).values())

    until(is_up, 10 * slow, "the loopback channel")


def test_loopback_carries(net, g):
    bring_up(g, net.slow)
    before = peers(g)
    with g.popen(inside("b", f"{HERE}/pattern", "serve", PORT)) as server:
        server.wait_for("ready")
        g.run(inside("a", f"{HERE}/pattern", "tcp", "10.9.0.2", PORT, 1, 1448, 1449, 65536, 1000000))
        g.run(inside("a", f"{HERE}/pattern", "udp", "10.9.0.2", PORT, 1, 1472, 1473, 60000))
        g.run(inside("a", f"{HERE}/pattern", "short", "10.9.0.2", PORT, 100))
    after = peers(g)
    for name in ("loopback0", "loopback1"):
        moved = {key: value - before[name]["stats"][key] for key, value in after[name]["stats"].items()}
        assert moved["tx_bytes"] > 1_000_000 and moved["rx_bytes"] > 1_000_000
        assert not any(value for key, value in moved.items() if key.startswith("drop"))


LOSE = "/sys/module/vmloop_loopback/parameters/lose"
TRACE = "/sys/kernel/tracing"


def test_news_that_fit_no_directory_are_asked_for_again(net, g):
    """The channel's tags come only with the whole directory, after a second."""
    bring_up(g, net.slow)
    g.run(f"echo 1 >{TRACE}/events/vmloop/vmloop_directory/enable && echo >{TRACE}/trace")
    try:
        g.run(f"echo 1 >{LOSE} && echo 0 >/sys/module/vmloop_loopback/parameters/spoil")
        until(lambda: any(one["breaks"] for one in peers(g).values()), 10 * net.slow, "the channel ends")
        bring_up(g, net.slow)
        seen = g.run(f"grep -o 'whole=.*' {TRACE}/trace").out.split("\n")
    finally:
        g.run(f"echo 0 >{TRACE}/events/vmloop/vmloop_directory/enable")
    assert "whole=0 taken=0" in seen, "what was new has been lost"
    assert "whole=1 taken=1" in seen, "then all of it comes"
    assert seen.count("whole=0 taken=0") < 5, "not asked for again and again"
    assert g.run(f"cat {LOSE}").out.strip() == "N"


def test_loopback_under_load(net, g):
    """Path and transport are unloaded and loaded again under a stream whose every byte is checked."""
    bring_up(g, net.slow)
    again = {
        "vmloop_net": NET,
        "vmloop_loopback": LOOPBACK,
    }
    transfer = Transfer(
        g.popen(inside("b", f"{HERE}/stream", "receive", 7100)),
        lambda: g.popen(inside("a", f"{HERE}/stream", "send", "10.9.0.2", 7100)),
        net.slow,
    )
    try:
        for module, back in again.items():
            for command in (f"rmmod {module}", back):
                transfer.wait_bytes(20_000_000)
                g.run(command)
        until(lambda: all(one["state"] == "up" for one in peers(g).values()), 10 * net.slow, "the channel is back")
        before = peers(g)["loopback0"]["stats"]["tx_bytes"], peers(g)["loopback1"]["stats"]["tx_bytes"]
        transfer.wait_bytes(20_000_000)
        after = peers(g)["loopback0"]["stats"]["tx_bytes"], peers(g)["loopback1"]["stats"]["tx_bytes"]
        assert sum(after) - sum(before) > 18_000_000, "the channel does not carry it"
        transfer.finish()
    finally:
        transfer.close()


def test_loopback_wants_two_addresses(net, g):
    """A parameter that cannot be is refused with an example of a good one."""
    g.run("rmmod vmloop_loopback")
    refused = g.run("modprobe vmloop_loopback interfaces=nonsense", check=False)
    assert refused.code != 0
    assert "interfaces=MAC,MAC is needed" in g.run("dmesg | tail -n 5").out
