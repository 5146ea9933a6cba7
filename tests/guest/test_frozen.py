# SPDX-License-Identifier: GPL-2.0
"""A guest that stands still, while somebody else moves its position in the shared memory.

How far a peer has read is for the peer to say. What a slow or lying one does to
us shows only where it is as slow as we like, and its modules do not set things
right meanwhile: so its CPUs are stopped, and a program in the host (`frozen`)
writes the position in its place.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise

import pytest
from vmlab import Guest
from vmlab.process import Process

from tests.guest.net import HERE, POLICY, STALLS, Net, known_neighbours, set_up_eth0, until

pytestmark = pytest.mark.kvm_only
"""The program finds memory by what a QEMU has open."""

PORT = "7400"
BYTES = 1400
RATE = 200
"""Datagrams a second to each peer."""
BUFFER = 32768
"""A socket's send buffer that RATE fills in a tenth of a second, if nothing is given back."""

LONGEST_WAIT = 0.6
"""Seconds. A datagram is held for 200 ms, and looked at each 300 ms where nobody else sends."""

BREAK_TAIL = 1
"""A consumer's position that cannot be (break-reason in docs/netlink/vmloop.yaml)."""

Player = Callable[..., AbstractContextManager[Process]]


@contextmanager
def asleep(net: Net, guest: Guest, peer: Guest) -> Iterator[Player]:
    """Its CPUs stand still for the block; yields what starts `frozen` for its channel with the peer."""
    who = [f"{HERE}/frozen", str(guest.pid), str(peer.pid), str(net.side(guest, peer))]
    guest.pause()
    try:
        yield lambda *words: net.serving(net.host, *who, *words)
    finally:
        guest.unpause()


def volley(net: Net, guest: Guest, *peers: Guest, rate: int = RATE, count: int = 0, buffer: int = BUFFER):
    """Datagrams to the peers in turn, by one socket."""
    numbers = (PORT, BYTES, rate, count, buffer)
    return net.serving(guest, f"{HERE}/volley", *map(str, numbers), *(peer.ip for peer in peers))


def ended(net: Net, process: Process) -> dict:
    """What a volley says when it is over."""
    result = process.wait(30 * net.slow)
    assert result.code == 0, result.err
    return dict(json.loads(result.out.splitlines()[-1]))


class Receiver:
    """What has arrived at a receiver of numbered datagrams."""

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def lines(self) -> list[tuple[float, int, int, int]]:
        """Seconds, how many had come, how many were missing, how many came twice; each tenth of a second."""
        words = [line.split() for line in self.process.out.splitlines()]
        return [(float(one[0]), int(one[1]), int(one[2]), int(one[3])) for one in words if len(one) == 4]

    @property
    def count(self) -> int:
        return self.lines[-1][1] if self.lines else 0

    @property
    def longest_gap(self) -> float:
        """The longest time, from the first one on, in which none came, to a tenth of a second."""
        came = [line[0] for last, line in pairwise(self.lines) if line[1] > last[1]]
        return max((b - a for a, b in pairwise(came)), default=0)

    def wait_count(self, net: Net, count: int) -> None:
        until(lambda: self.count >= count, 20 * net.slow, f"{count} datagrams arrive", self.lines[-1:])


def by_channel(net: Net, a: Guest, b: Guest) -> None:
    """Pings are answered, and go by the channel."""
    before = net.channel_bytes(a, b)
    assert a.run(f"ping -c 3 -i 0.05 -W 5 -q {b.ip}", timeout=60 * net.slow).code == 0
    assert net.channel_bytes(a, b) - before >= 3 * 98, "the channel did not carry them"


CREEPS = pytest.param(
    ("read", "16", "250"), 2.5, id="creeps", marks=pytest.mark.main("a peer could block a socket to everybody")
)
STANDS = pytest.param(("read", "0", "1000"), 0.9, id="stands")


@pytest.mark.parametrize(("position", "stalled_within"), [CREEPS, STANDS])
def test_peer_does_not_hold_up_a_socket(net, g1, g2, g3, position, stalled_within, request):
    """Who sends to it and to others by one socket reaches the others all the time, and it by the standard network soon.

    A position that creeps moves whenever somebody looks whether it moves.
    """
    before = net.peers(g1)["g2"]
    with known_neighbours(g1, g2, g3), net.serving(g3, f"{HERE}/beat", "receive", PORT) as process:
        receiver = Receiver(process)
        with asleep(net, g2, g1) as play:
            with (
                play(*position),
                net.serving(g1, f"{HERE}/control", "until", "g2", "stalled") as notices,
                volley(net, g1, g2, g3) as sender,
            ):
                began = net.lab.now()
                notices.wait(10 * net.slow)
                took = net.lab.now() - began
                stalled = net.peers(g1)["g2"]
                receiver.wait_count(net, receiver.count + 2 * RATE)
                later = net.peers(g1)["g2"]
                sender.terminate()
                report = ended(net, sender)
            receiver.wait_count(net, report["sent"][1])
            STALLS.append({"test": f"{request.node.name}: until the channel stalled", "seconds": took})
            STALLS.append({"test": f"{request.node.name}: one send", "seconds": report["longest"]})
            assert took < stalled_within * net.slow, f"stalled after {took:.2f} s only"
            assert report["longest"] < LONGEST_WAIT * net.slow, report
            assert receiver.longest_gap < (LONGEST_WAIT + 0.2) * net.slow, receiver.lines
            assert receiver.lines[-1][1:] == (report["sent"][1], 0, 0)

            assert (stalled.state, later.state) == ("stalled", "stalled")
            assert later["stalls"] == before["stalls"] + 1, "it came back in between"
            assert later["tx_frames"] == stalled["tx_frames"], "frames went into the ring of a peer that is stalled"
            assert later["standard_stalled"] - stalled["standard_stalled"] > RATE
        until(lambda: net.both_up(g1, g2), 10 * net.slow, "it is back")
    assert net.peers(g1)["g2"].peer["breaks"] == before.peer["breaks"]
    by_channel(net, g1, g2)


@pytest.mark.parametrize("position", ["beyond", "between", "back"])
def test_position_that_cannot_be(net, g1, g2, g3, position):
    """Its channel breaks at the next look, with the reason, and what is for others does not notice."""
    with known_neighbours(g1, g2, g3), net.serving(g3, f"{HERE}/beat", "receive", PORT) as process:
        before = net.peers(g1)["g2"]
        with asleep(net, g2, g1) as play:
            with (
                play(position) as liar,
                net.serving(g1, f"{HERE}/control", "until", "g2", "broken") as notices,
                volley(net, g1, g2, g3, count=RATE // 2) as sender,
            ):
                assert liar.wait(10 * net.slow).code == 0
                notices.wait(10 * net.slow)
                seen = net.peers(g1)["g2"]
                report = ended(net, sender)
            after = net.peers(g1)["g2"]
            Receiver(process).wait_count(net, report["sent"][1])
        assert seen.peer["break"] == BREAK_TAIL
        assert seen.peer["breaks"] == before.peer["breaks"] + 1
        assert report["longest"] < LONGEST_WAIT * net.slow, report
        assert after["tx_frames"] - before["tx_frames"] < RATE // 4, "frames went into a ring that is broken"
        counted = sum(after[name] - before[name] for name in ("tx_frames", "tx_standard"))
        assert counted >= report["sent"][0] == RATE // 2
    net.recover(g1, g2)
    by_channel(net, g1, g2)


@contextmanager
def small_rings(net: Net, a: Guest, b: Guest) -> Iterator[None]:
    """A channel of two guests that is soon full, for the block."""

    def ring_size() -> int:
        return int(net.peers(a)[b.name].peer["ring_size"])

    def is_new(size: int) -> bool:
        net.command("close", a.name, b.name, check=False)
        net.recover(a, b)
        return ring_size() == size

    usual = ring_size()
    net.set_policy(POLICY + "ring_size = '64K'\n")
    try:
        until(lambda: is_new(64 << 10), 20 * net.slow, "a channel with small rings")
        yield
    finally:
        net.set_policy(POLICY)
        until(lambda: is_new(usual), 20 * net.slow, "a channel as before")


@contextmanager
def without_driver(net: Net, guest: Guest) -> Iterator[None]:
    """Its eth0 is not there for the block; afterwards it has what it has after a boot."""
    device = guest.run("basename $(readlink /sys/class/net/eth0/device)").out.strip()
    driver = "/sys/bus/virtio/drivers/virtio_net"
    guest.run(f"echo {device} >{driver}/unbind", timeout=30 * net.slow)
    try:
        assert not guest.run("ls -d /sys/class/net/eth0", check=False).out
        yield
    finally:
        guest.run(f"echo {device} >{driver}/bind", timeout=30 * net.slow)
        set_up_eth0(guest)


@pytest.mark.main("frames that waited kept their interface after it was freed")
def test_interface_goes_while_frames_wait(net, g1, g2, g3):
    """Frames that wait for a peer that reads slowly go with their interface, and are counted."""
    count = 900
    with small_rings(net, g1, g2), known_neighbours(g1, g2), asleep(net, g2, g1) as play:
        before = net.peers(g1)["g2"]

        def moved(*names: str) -> int:
            after = net.peers(g1)["g2"]
            return sum(after[name] - before[name] for name in names)

        # So fast that it does not stall, so slow that frames wait for seconds.
        with play("read", "8192", "50"):
            with volley(net, g1, g2, rate=0, count=count, buffer=16 << 20) as sender:
                assert ended(net, sender)["sent"] == [count]
            assert moved("tx_frames", "tx_standard") < count - 100, "nothing waits: this shows nothing"
            with without_driver(net, g1):
                assert moved("tx_frames", "tx_standard") == count
                assert moved("standard_flushed") >= 100
            net.bring_up(g1, g3)
            by_channel(net, g1, g3)
        assert moved("stalls") == 0
    by_channel(net, g1, g2)
