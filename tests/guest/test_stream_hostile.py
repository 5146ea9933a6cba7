# SPDX-License-Identifier: GPL-2.0
"""A peer that lies about a TCP connection and its lane: the stream path (kernel/paths/tcp/) of the other end.

g3 has a connection to g1 that only its kernel carries. Then its CPUs stand still, and tools/forge.c plays its
modules in the host: it opens lanes for connections that there are not, says false hellos, moves positions. g1
must refuse, go on by TCP, reset the connection, or end the channel, and must not think more of it; what g2 sends to g1
must not notice.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from vmlab import Guest
from vmlab.process import Process

from tests.guest.net import HERE, TOOLS, Net, known_neighbours, until

pytestmark = pytest.mark.kvm_only
"""The tool finds memory by what a QEMU has open."""

CROWD = str(TOOLS / "crowd")
FORGE = str(TOOLS / "forge")
PORT = 5531


def cases() -> dict[str, str]:
    """Name of each lie, and what must come of it; the tool has the table."""
    subprocess.run(["make", "-s", "-C", TOOLS.parents[1] / "tests/guest/tools"], check=True)
    listed = subprocess.run([FORGE, "list"], check=True, capture_output=True, text=True).stdout
    return dict(line.split(": ") for line in listed.splitlines())


CASES = cases()
MAIN = pytest.mark.main("what a peer writes is hostile: a connection's lane")
ONE_OF_EACH = (
    "right",
    "return_of_one_too_much",
    "of_another_guest",
    "closed_at_once",
    "hello_behind",
    "tail_past_the_head",
)


def counter(guest: Guest, name: str) -> int:
    """One of the module's."""
    return int(guest.run(f"cat /sys/module/vmloop_tcp/parameters/{name}").out)


def resets(guest: Guest) -> list[str]:
    """What the kernel's log says of connections that the module reset."""
    log = guest.run("dmesg | grep -E 'vmloop_tcp: .* was reset: ' || true").out
    return [line.partition("vmloop_tcp: ")[2] for line in log.splitlines()]


def standing(guest: Guest) -> list[str]:
    """What carries each connection that its module has taken over."""
    return [one["state"] for one in json.loads(guest.run([f"{HERE}/vmloop", "streams", "--json"]).out)]


@contextmanager
def connection(net: Net, client: Guest, server: Guest, name: str) -> Iterator[tuple[Process, list[str]]]:
    """One whose server sends back what comes, and its numbers."""
    with (
        net.serving(server, CROWD, "serve", str(PORT)),
        client.popen([FORGE, "connect", server.ip, str(PORT), name]) as process,
    ):
        until(lambda: process.out.endswith("\n"), 10 * net.slow, "the connection's numbers")
        yield process, process.out.split()


@contextmanager
def streams(net: Net, victim: Guest, liar: Guest) -> Iterator[None]:
    """The stream path in the victim alone."""
    victim.run("modprobe vmloop_tcp")
    try:
        yield
    finally:
        victim.run("rmmod vmloop_tcp", timeout=120)
        net.recover(victim, liar)


@pytest.mark.parametrize("name", [pytest.param(name, marks=MAIN) if name in ONE_OF_EACH else name for name in CASES])
def test_liar(net: Net, g1: Guest, g2: Guest, g3: Guest, name: str) -> None:
    """The victim does with the connection, the lane and the channel what the table says, and with others nothing."""
    outcome = CASES[name]
    logged = len(resets(g1))
    client = g2 if name == "of_another_guest" else g3
    with (
        known_neighbours(g1, g3),
        net.transfer(g2, g1) as transfer,
        streams(net, g1, g3),
        connection(net, client, g1, name) as (process, numbers),
    ):
        side = net.side(g3, g1)
        breaks = net.peers(g1)["g3"].peer["breaks"]
        g3.pause()
        try:
            words = [str(g3.pid), str(g1.pid), str(side), name, *numbers]
            net.host.run([FORGE, *words], timeout=120 * net.slow)
            if outcome == "reset":
                until(lambda: counter(g1, "reset"), 10 * net.slow, "the connection is reset")
            elif outcome == "broken":
                until(lambda: net.peers(g1)["g3"].peer["breaks"] > breaks, 10 * net.slow, "the channel is broken")
            if outcome != "broken":
                assert net.peers(g1)["g3"].peer["breaks"] == breaks, "the channel was broken for it"
            if outcome == "tcp":
                until(lambda: standing(g1) == ["tcp"], 10 * net.slow, "it is back")
            by_channel = net.channel_bytes(g2, g1)
            transfer.wait_bytes(1_000_000)
            assert net.channel_bytes(g2, g1) - by_channel > 500_000, "the channel of another guest does not carry"
        finally:
            g3.unpause()
        if outcome in ("carried", "lied"):
            # A FIN that comes while there is a lane is another lie: the program sees the end there.
            until(lambda: standing(g1) == ["going-back"], 10 * net.slow, "the lane has ended")
        process.terminate()
        said = [] if outcome in ("any", "broken") else process.wait(30 * net.slow).out.splitlines()[1:]
        if outcome == "tcp" or outcome.startswith("refused"):
            assert said == ["by TCP", "this is the end of it", "in order"]
        elif outcome == "carried":
            assert said == ["by TCP", "returned 12", "by the lane", "this is the end of it", "in order"]
        elif said:
            assert "reset" in said[-1] and not {"by the lane", "this is the end of it"} & set(said), said
        assert outcome in ("any", "broken") or counter(g1, "reset") == (outcome in ("lied", "reset"))
        until(lambda: len(resets(g1)) - logged == counter(g1, "reset"), 10 * net.slow, "each reset is in the log, once")
        for line in resets(g1)[logged:]:
            assert line.startswith(f"{g1.ip}:{PORT} to {client.ip}:")
            assert outcome in ("any", "broken") or line.endswith(": the peer's module sent what cannot be"), line
        if outcome not in ("any", "broken"):
            assert bool(counter(g1, "rx_bytes")) == (outcome in ("carried", "lied")), "bytes of a lane that was none"
        transfer.finish()
