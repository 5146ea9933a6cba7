# SPDX-License-Identifier: GPL-2.0
"""What guests are told of each other: all of it once, and then what is new."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.guest.net import Net, until

pytestmark = pytest.mark.kvm_only
"""A Xen guest reads what its host writes into XenStore, page by page."""

TRACE = "/sys/kernel/tracing"
EVENT = f"{TRACE}/events/vmloop/vmloop_directory/enable"


@contextmanager
def directories(guest) -> Iterator[None]:
    """The guest notes during a block which directories it takes."""
    guest.run(f"echo >{TRACE}/trace && echo 1 >{EVENT}")
    try:
        yield
    finally:
        guest.run(f"echo 0 >{EVENT}")


def taken(guest) -> list[dict[str, int]]:
    """Those that it has noted."""
    out = guest.run(f"sed -n 's/.*vmloop_directory: //p' {TRACE}/trace").out
    return [{key: int(value) for key, value in (one.split("=") for one in line.split())} for line in out.splitlines()]


@pytest.mark.main("each change of one guest was told to all others as a whole directory")
def test_what_is_new(net: Net, g1, g2, g3) -> None:
    """A guest goes and comes: the other two are told of it alone, and stay connected."""
    tag = net.peers(g1)["g2"].tag
    with directories(g1):
        net.command("detach", "g3")
        try:
            until(lambda: "g3" not in net.peers(g1), 10 * net.slow, "g1 knows that g3 is gone")
        finally:
            net.attach(g3, again=True)
        until(lambda: "g3" in net.peers(g1), 20 * net.slow, "g1 knows that g3 is back")
        net.bring_up(g1, g3)
        seen = taken(g1)
    # Where both ask for a channel, the second is told again what it knows: nothing is new in that.
    assert {(one["whole"], one["taken"], one["entries"]) for one in seen} <= {(0, 1, 1), (0, 1, 0)}, seen
    assert sum(one["entries"] for one in seen) >= 3, "that it goes, that it comes, and its channel"
    numbers = [one["generation"] for one in seen]
    assert numbers == list(range(numbers[0], numbers[0] + len(seen))), "none was missed"
    assert net.peers(g1)["g2"].tag == tag, "nothing has changed between the others"
    assert net.both_up(g1, g2)


def test_modules_that_come_again_are_told_all(net: Net, g1, g2, g3) -> None:
    """The first directory of new modules is a whole one."""
    net.unload(g1)
    g1.run("modprobe vmloop")
    with directories(g1):
        net.load(g1)
        net.bring_up(g1, g2)
        seen = taken(g1)
    assert (seen[0]["whole"], seen[0]["taken"], seen[0]["entries"]) == (1, 1, 2), seen
    assert not any(one["whole"] for one in seen[1:]), seen
    assert all(one["taken"] for one in seen), seen
