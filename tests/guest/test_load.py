# SPDX-License-Identifier: GPL-2.0
"""Ordinary load for as long as one likes: no channel breaks, and no byte is wrong.

A checked stream and two flood pings go each way, and now and then one guest
takes its interface down and up again. `--load-seconds` says for how long; the
load needs guests of several CPUs to show a race between two polls of one lane.
"""

import itertools
import time
from contextlib import ExitStack

import pytest

from tests.guest.net import until

PAUSE = 10.0
"""Seconds from one change of an interface to the next, at most: each guest has its turn."""

LOOK = 1.0
"""Seconds from one look at the channel to the next."""


DOWN_AND_UP = """
set -e
echo 1 >/proc/sys/net/ipv6/conf/eth0/keep_addr_on_down
routes=$(ip route show default dev eth0)
ip link set eth0 down
ip link set eth0 up
[ -z "$routes" ] || ip route replace $routes dev eth0
"""
"""What goes with the interface, for good, is put back: later tests want it."""


def flood(stack, guest, peer):
    """A flood ping; it runs until it is told to end."""
    return stack.enter_context(guest.popen(["ping", "-q", "-f", peer.ip]))


@pytest.mark.main("two polls of one lane at the same time took each other's position for the peer's")
def test_no_channel_breaks(net, g1, g2, request):
    """The channel that is there at the end is the one that was there at the beginning."""
    seconds = request.config.getoption("--load-seconds")
    before = net.both(g1, g2)
    with ExitStack() as stack:
        transfers = [
            stack.enter_context(net.transfer(g1, g2, 7100)),
            stack.enter_context(net.transfer(g2, g1, 7101)),
        ]
        pings = [flood(stack, *pair) for pair in 2 * [(g1, g2), (g2, g1)]]
        guests = itertools.cycle((g1, g2))
        end = time.monotonic() + seconds
        pause = min(PAUSE, seconds / 3)
        change = time.monotonic() + pause
        while (now := time.monotonic()) < end:
            time.sleep(LOOK)  # the pace of looking, not a wait for anything
            for one in transfers:
                one.check()
            for ping in pings:
                assert ping.poll() is None, f"a flood ping ended: {ping.err}"
            for one, was in zip(net.both(g1, g2), before, strict=True):
                assert (one.state, one.tag) in (("up", was.tag), ("stalled", was.tag)), f"{one} after {was}"
            if now >= change:
                next(guests).run(DOWN_AND_UP)
                change = now + pause
        for one in transfers:
            one.wait_bytes(1)
            one.finish()
    until(lambda: net.both_up(g1, g2), 10 * net.slow, "the channel is up at rest")
    after = net.both(g1, g2)
    assert [one.tag for one in after] == [one.tag for one in before]
    assert all(one["drop_malformed"] == 0 for one in after)
