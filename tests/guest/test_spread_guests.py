# SPDX-License-Identifier: GPL-2.0
"""Packets of one guest on several lanes: how many two guests agree upon, and that each lane is alone."""

from contextlib import ExitStack

import pytest

from tests.guest.net import HERE, Net, known_neighbours, until
from tests.guest.test_frozen import PORT, asleep

SOCKETS = 12
"""Enough for each of two lanes to have some, but for once in 2,000 times."""
BYTES, RATE = "100", "2"
"""Of a datagram, and datagrams a second of each socket: a ring is not filled for minutes, however slow the machine is.
When the guest wakes up, it reads on where it had been: what was written over by then breaks its channel."""


def cpus(guest) -> int:
    """Of a guest."""
    return int(guest.run("nproc").out)


def lanes(net: Net, a, b) -> tuple[int, int]:
    """Packet lanes that each of two guests has to the other."""
    there, back = net.both(a, b)
    return there.peer["lanes"], back.peer["lanes"]


@pytest.mark.main("guests of several CPUs had one lane", on="both")
def test_lanes_are_those_of_the_smaller_guest(net: Net, g1, g2) -> None:
    """Both have as many as the one with fewer CPUs; who wants fewer, or knows one only, gets that."""
    most = min(cpus(g1), cpus(g2), 8)
    assert lanes(net, g1, g2) == (most, most)
    try:
        for options, expected in (("lanes=1", 1), ("lanes=2", min(most, 2)), ("", most)):
            net.unload(g2)
            g2.run(f"modprobe vmloop_net {options} && modprobe {net.transport}", timeout=60 * net.slow)
            net.bring_up(g1, g2)
            assert lanes(net, g1, g2) == (expected, expected), options
            with net.carried(g1, g2):
                g1.run(f"ping -c 5 -i 0.05 -q {g2.ip}")
            with net.transfer(g2, g1) as one, net.transfer(g1, g2, 7101) as other:
                one.wait_bytes(5_000_000)
                other.wait_bytes(5_000_000)
                one.finish()
                other.finish()
    finally:
        net.unload(g2)
        net.load(g2)
    net.bring_up(g1, g2)


@pytest.mark.kvm_only
@pytest.mark.main("a lane that stalls held up the others")
def test_one_lane_stalls(net: Net, g1, g2) -> None:
    """What goes by a lane that its peer does not read takes the standard network; the other lane goes on."""
    if min(cpus(g1), cpus(g2)) < 2:
        assert lanes(net, g1, g2) == (1, 1)
        return
    before = net.peers(g1)["g2"]
    with known_neighbours(g1, g2):
        with asleep(net, g2, g1) as play, play("read", "0", "1000", "1"), ExitStack() as stack:
            senders = [
                stack.enter_context(g1.popen([f"{HERE}/volley", PORT, BYTES, RATE, "0", "1000000", g2.ip]))
                for _ in range(SOCKETS)
            ]
            net.wait_state(g1, g2, "stalled")
            stalled = net.peers(g1)["g2"]

            def both_ways() -> bool:
                now = net.peers(g1)["g2"]
                return all(now[name] - stalled[name] > 20 for name in ("tx_frames", "standard_stalled"))

            until(both_ways, 30 * net.slow, "frames go by the other lane, and past the one that stalls")
            assert net.state(g1, g2) == "stalled"
            assert all(one.poll() is None for one in senders)
            now = net.peers(g1)["g2"]
            assert now["stalls"] == before["stalls"] + 1, "one lane stalled, once"
        until(lambda: net.both_up(g1, g2), 10 * net.slow, "it is back")
    with net.carried(g1, g2):
        g1.run(f"ping -c 3 -i 0.05 -q {g2.ip}")
