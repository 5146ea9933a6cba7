# SPDX-License-Identifier: GPL-2.0
"""Packets of one guest on several lanes: how many two guests agree upon, and that each lane is alone."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.guest.net import HERE, POLICY, Net, known_neighbours, until
from tests.guest.test_frozen import PORT, asleep

SOCKETS = 12
"""Enough for each of two lanes to have some, but for once in 2,000 times."""
BYTES, RATE = "100", "2"
"""Of a datagram, and datagrams a second of each socket: a ring is not filled for minutes, however slow the machine is.
When the guest wakes up, it reads on where it had been: what was written over by then breaks its channel."""


def cpus(guest) -> int:
    """Of a guest."""
    return int(guest.run("nproc").out)


def lane_interrupts(guest) -> dict[str, list[int]]:
    """How often each doorbell that is for one lane has rung, on each CPU; by interrupt, device and lane."""
    found = {}
    for line in guest.run("cat /proc/interrupts").out.splitlines():
        if name := re.search(r"(\d+):.* (\S+-lane\d+)$", line):
            found[f"{name[1]} {name[2]}"] = [
                int(count) for count in re.findall(r"(?<=\s)\d+(?=\s)", line)[: cpus(guest)]
            ]
    return found


def lanes(net: Net, a, b) -> tuple[int, int]:
    """Packet lanes that each of two guests has to the other."""
    there, back = net.both(a, b)
    return there.peer["lanes"], back.peer["lanes"]


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


@contextmanager
def doorbells(net: Net, a, b, most: int) -> Iterator[None]:
    """A channel of two guests with so many doorbells of each side at most, for the block."""

    def has(count: int) -> bool:
        net.command("close", a.name, b.name, check=False)
        net.recover(a, b)
        return len(lane_interrupts(a)) == count

    before = len(lane_interrupts(a))
    net.set_policy(f"{POLICY}doorbells = {most}\n")
    try:
        until(lambda: has(before + most - 1), 20 * net.slow, "a channel with doorbells for lanes")
        yield
    finally:
        net.set_policy(POLICY)
        until(lambda: has(before), 20 * net.slow, "a channel as before")


@pytest.mark.main("all lanes were heard by one CPU")
def test_each_lane_has_a_cpu(net: Net, g1, g2) -> None:
    """Doorbells of one lane are heard by one CPU, those of another by another, if the policy says so."""
    most = min(cpus(g1), cpus(g2), 8)
    if most < 2:
        pytest.skip("a guest of one CPU has one doorbell for all lanes")
    with doorbells(net, g1, g2, 1 + most), ExitStack() as stack:
        assert lanes(net, g1, g2) == (most, most)
        before = lane_interrupts(g1)
        for _ in range(SOCKETS):
            stack.enter_context(g2.popen([f"{HERE}/volley", PORT, BYTES, RATE, "0", "1000000", g1.ip]))

        def heard() -> dict[str, set[int]]:
            """On which CPUs, of the lanes that were rung for since."""
            now = lane_interrupts(g1)
            rises = {name: [b - a for a, b in zip(before[name], counts, strict=True)] for name, counts in now.items()}
            return {name: {cpu for cpu, rise in enumerate(row) if rise} for name, row in rises.items() if sum(row) > 5}

        until(lambda: len(heard()) >= 2, 30 * net.slow, "doorbells of two lanes")
        on = heard()
        assert all(len(where) == 1 for where in on.values()), on
        assert len(set.union(*on.values())) >= 2, on
        with net.transfer(g2, g1) as one, net.transfer(g1, g2, 7101) as other:
            one.wait_bytes(5_000_000)
            other.wait_bytes(5_000_000)
            one.finish()
            other.finish()


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
