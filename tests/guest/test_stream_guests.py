# SPDX-License-Identifier: GPL-2.0
"""Connections of TCP by lanes between two guests: the stream path (kernel/paths/tcp/).

What of it needs no second guest is in test_stream.py.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from vmlab.process import Process

from tests.guest.net import TOOLS, Net, at_once, until

DUPLEX = str(TOOLS / "duplex")
PORT = 5511
PARAMETERS = "/sys/module/vmloop_tcp/parameters"


class Streams:
    """g1, which connects, and g2."""

    def __init__(self, net: Net, g1, g2) -> None:
        self.net = net
        self.g1 = g1
        self.g2 = g2

    def counter(self, name: str) -> int:
        """One of g1's module's."""
        return int(self.g1.run(f"cat {PARAMETERS}/{name}").out)

    @contextmanager
    def duplex(self, connections: int, seconds: int) -> Iterator[Process]:
        """Connections that carry known bytes both ways; some have gone by lanes when the block begins."""
        before = self.counter("rx_bytes")
        with (
            self.net.serving(self.g2, DUPLEX, "serve", str(PORT)),
            self.g1.popen([DUPLEX, "run", self.g2.ip, str(PORT), str(connections), str(seconds)]) as client,
        ):
            until(
                lambda: self.counter("rx_bytes") - before > 1 << 20 or client.poll() is not None,
                30 * self.net.slow,
                "bytes come by lanes",
            )
            assert client.poll() is None, f"the connections have ended: {client.err}"
            yield client

    def check(self, client: Process) -> None:
        """All that was sent has come, and the connections were not reset. Ends what still runs."""
        client.terminate()
        result = client.wait(120 * self.net.slow)
        assert result.code == 0, result.err
        assert json.loads(result.out)["received"] > 1 << 20


@pytest.fixture
def streams(net: Net, g1, g2) -> Iterator[Streams]:
    """A channel between g1 and g2, and the stream path in both."""
    at_once(*(lambda guest=guest: guest.run("modprobe vmloop_tcp") for guest in (g1, g2)))
    try:
        yield Streams(net, g1, g2)
    finally:
        for guest in (g1, g2):
            guest.run("rmmod vmloop_tcp", check=False, timeout=60)
        net.recover(g1, g2)


@pytest.mark.main("a connection between guests did not go by a lane, or bytes were wrong", on="both")
def test_lanes_carry(net: Net, streams: Streams) -> None:
    """Connections go over to lanes, beside packets, and nearly all of their bytes go there."""
    with streams.duplex(6, 300) as client, net.transfer(streams.g2, streams.g1) as transfer:
        transfer.wait_bytes(20_000_000)
        transfer.finish()
        streams.check(client)
    until(lambda: streams.counter("back") > 0, 30 * net.slow, "lanes are given back")
    assert streams.counter("reset") == 0
    assert not streams.g1.run("ss -Htn state established").out.strip()


@pytest.mark.main("a lane between guests that ended took a connection with it")
@pytest.mark.parametrize("end", ["off", "channel", "transport", "module"])
def test_ends(net: Net, streams: Streams, end: str) -> None:
    """However the lanes end, the connections go on, and not a byte is lost, repeated or changed."""
    with streams.duplex(6, 300) as client:
        before = streams.counter("back")
        if end == "off":
            streams.g2.run(["/run/vmloop-test/control", "off"])
        elif end == "channel":
            net.command("close", "g1", "g2")
        elif end == "transport":
            streams.g2.run(["rmmod", net.transport])
        else:
            streams.g2.run("rmmod vmloop_tcp", timeout=60)
        until(
            lambda: streams.counter("back") > before or client.poll() is not None,
            30 * net.slow,
            "connections are back",
        )
        streams.check(client)
    if end == "off":
        streams.g2.run(["/run/vmloop-test/control", "on"])
    elif end == "transport":
        streams.g2.run(f"modprobe {net.transport}")
    assert streams.counter("back") > before and streams.counter("reset") == 0
