# SPDX-License-Identifier: GPL-2.0
"""Two guests that share no memory: a relay (host/relay), in the agent for these tests, copies their lanes.

What it copies, and what it does with a guest that breaks the rules, host/relay/tests find out without guests. Here
are both ends kernels.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from vmlab import Guest

from tests.guest.net import Net, at_once, until
from tests.guest.test_stream_guests import Streams
from tests.guest.test_toy import RING, Toy

pytestmark = pytest.mark.kvm_only


def relays(net: Net) -> int:
    """Threads of the agent that are relays."""
    found = net.host.run("cat /proc/$(pgrep -x vmloopd)/task/*/comm", check=False).out
    return found.split().count("relay")


def is_down(net: Net, a: Guest, b: Guest) -> bool:
    """Whether neither says that their channel is up."""
    return all(one is None or one.state != "up" for one in net.between(a, b))


def renew(net: Net, relay: bool) -> None:
    """Another agent, which makes channels with a relay or without, and new channels by it."""
    net.kill_agent()
    net.relay = relay
    net.start_agent()
    renew_channels(net)


def renew_channels(net: Net) -> None:
    """An agent that has just started makes channels of its own."""

    def is_ready() -> bool:
        return {guest["name"] for guest in net.listing()["guests"] if guest["state"] == "ready"} >= set(net.base)

    until(is_ready, 20 * net.slow, "the new agent knows all guests")
    for a, b in net.pairs():
        net.command("close", a.name, b.name)
        until(partial(is_down, net, a, b), 10 * net.slow, "the old channel has ended")
        net.bring_up(a, b)


@contextmanager
def relays_between(net: Net, g1: Guest, g2: Guest, module: str) -> Iterator[None]:
    """Channels with a relay, and a path's module in both guests."""
    try:
        renew(net, True)
        until(lambda: relays(net) == len(net.pairs()), 10 * net.slow, "a relay for each channel")
        at_once(*(lambda guest=guest: guest.run(f"modprobe {module}") for guest in (g1, g2)))
        yield
    finally:
        for guest in (g1, g2):
            guest.run(f"rmmod {module}", check=False, timeout=120)
        renew(net, False)
        assert relays(net) == 0


@pytest.fixture
def relayed(net: Net, g1, g2) -> Iterator[Toy]:
    """Channels with a relay, and the toy path."""
    with relays_between(net, g1, g2, "vmloop_toy"):
        yield Toy(net, g1, g2)


@pytest.fixture
def streams(net: Net, g1, g2) -> Iterator[Streams]:
    """Channels with a relay, and the stream path."""
    with relays_between(net, g1, g2, "vmloop_tcp"):
        yield Streams(net, g1, g2)


def test_packets_and_lanes(net: Net, relayed: Toy) -> None:
    """Packets and lanes of the toy path pass through it, and their account at the end is the far guest's."""
    g1, g2 = relayed.g1, relayed.g2
    with net.carried(g1, g2):
        g1.run(f"ping -c 20 -i 0.05 -q {g2.ip}")
    for source, sink in ((g1, g2), (g2, g1)):
        with net.carried(source, sink, there=20_000_000, standard=200_000), net.transfer(source, sink) as transfer:
            transfer.wait_bytes(20_000_000, 60)
            transfer.finish()
    for kind in ("bytes", "records"):
        assert relayed.run("churn", kind, RING, 50, 8)["bytes"] > 0
    with (
        g1.popen(relayed.words("flow", "bytes", 4 * RING, 5, 4)) as flow,
        g1.popen(relayed.words("flow", "records", 4 * RING, 5, 4)) as records,
        net.transfer(g1, g2) as transfer,
    ):
        for one in (flow, records):
            assert one.wait(60 * net.slow).code == 0, one.err
        transfer.finish()
    for end in ("path", "channel"):
        before = relayed.read()
        with g1.popen(relayed.words("hold", "bytes", RING, 40)) as hold:
            hold.wait_for("ready")
            if end == "path":
                g2.run("rmmod vmloop_toy")
            else:
                net.command("close", "g1", "g2")
            result = hold.wait(30 * net.slow)
        assert result.code == 0, result.err
        account = json.loads(result.out.splitlines()[-1])
        assert account["unread"] > 0, account
        if end == "path":
            assert account["came"] == account["sent"] - account["unread"], account
            g2.run("modprobe vmloop_toy")
        else:
            assert relayed.read() - before == account["sent"] - account["unread"], account
    net.bring_up(g1, g2)
    assert relays(net) == len(net.pairs())


def test_streams(net: Net, streams: Streams) -> None:
    """Connections of TCP go by lanes through it, and on by TCP when those end: by a program that ends, and by others.

    A connection's program learns of the end after the last byte. With the relay what it has not copied is gone, and
    connections go on.
    """
    g1, g2 = streams.g1, streams.g2
    for _ in range(8):
        with streams.duplex(12, 2400) as client:
            streams.check(client)
    with streams.duplex(6, 2400) as client:
        for end in ("channel", "relay", "module"):
            before = streams.counter("back")
            if end == "channel":
                net.command("close", "g1", "g2")
            elif end == "relay":
                net.kill_agent()
            else:
                g2.run("rmmod vmloop_tcp", timeout=120)
            streams.go_back_from(before, client)
            if end == "relay":
                net.start_agent()
                renew_channels(net)
            elif end == "channel":
                net.bring_up(g1, g2)
            if end != "module":
                streams.go_on_by_lanes(client)
        streams.check(client)
    assert streams.counter("reset") == 0
