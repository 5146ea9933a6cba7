# SPDX-License-Identifier: GPL-2.0
"""A Xen guest that floods XenStore, while another one's modules come and go.

g3 writes into its own part of a real XenStore as fast as that answers (tools/storm.c):
all that modules say, right and wrong. `--flood-seconds 600` keeps it up for ten minutes.
How long g2 takes to be known, with and without the flood, is kept with the test's result
and judged by nobody here: guests, xenstored and the agent share the CPUs.
"""

import json
import statistics
from collections.abc import Callable

import pytest
from vmlab import Guest

from tests.guest.net import TOOLS, Net, until

pytestmark = pytest.mark.xen_only

QUIET_ROUNDS = 5
FIRST = "xenstore-write data/vmloop/hello '1 1 00000000f0f0f0f0 5 storm 6.1' data/vmloop/want/77 '0000000000000001 1'"
"""A guest's modules have begun, and want a peer that there is not: the number of the refusal is where we begin."""

GROWS = 2 << 20
"""Bytes that the agent may grow by, once the flood has had a third of its time to fill what it can."""


def memory(net: Net) -> int:
    """Bytes that the agent has."""
    pid = json.loads(net.command("status", "--json").out)["pid"]
    kib = net.host.run(f"sed -n 's/^VmRSS:[^0-9]*\\([0-9]*\\) kB$/\\1/p' /proc/{pid}/status").out
    return int(kib) << 10


def counters(net: Net) -> dict[str, int]:
    """What the agent has counted."""
    return dict(json.loads(net.command("status", "--json").out)["counters"])


def arrivals(net: Net, near: Guest, traveller: Guest, go_on: Callable[[int], bool]) -> list[float]:
    """Seconds from when a guest's modules are loaded until another one knows it, again and again."""
    took: list[float] = []
    while go_on(len(took)):
        net.unload(traveller)
        net.wait_state(near, traveller, "gone", 60 * net.slow)
        net.load(traveller)
        began = net.lab.now()
        until(lambda: traveller.name in net.peers(near), 60 * net.slow, f"{near.name} knows {traveller.name}")
        took.append(net.lab.now() - began)
    return took


def refusals(net: Net, guest: Guest) -> int:
    """The number of the last refusal that the agent has told a guest of; 0 without one."""
    said = [rest for word, rest in net.told(guest).items() if word.startswith("refused/")]
    return max((int(rest.split()[2]) for rest in said), default=0)


def at_rest(net: Net, guest: Guest) -> int:
    """The same, once nothing more comes; 0 before."""
    last = refusals(net, guest)
    ask = counters(net)["refused"]
    return last if last == refusals(net, guest) and ask == counters(net)["refused"] else 0


def test_a_flood_in_xenstore(
    net: Net, g1: Guest, g2: Guest, g3: Guest, request: pytest.FixtureRequest, record_property
) -> None:
    """The agent goes on: others come and go, each refusal is counted, its memory stays.

    Afterwards g3's modules are heard as if nothing had been.
    """
    seconds = request.config.getoption("--flood-seconds")
    quiet = arrivals(net, g1, g2, lambda count: count < QUIET_ROUNDS)
    net.unload(g3)
    net.wait_state(g1, g3, "gone")
    g3.run(FIRST)
    first = until(lambda: refusals(net, g3), 30 * net.slow, "the agent refuses what there is not")
    before = counters(net)
    began = net.lab.now()
    words = [str(TOOLS / "storm"), str(seconds), str(g3.domid), g3.mac, str(g1.domid), g1.mac]
    with g3.popen(words) as storm:
        until(lambda: refusals(net, g3) != first, 30 * net.slow, "the agent hears the flood")
        times = arrivals(net, g1, g2, lambda count: not count or net.lab.now() < began + seconds / 3)
        warm = memory(net)
        times += arrivals(net, g1, g2, lambda count: not count or net.lab.now() < began + seconds * 0.95)
        grown = memory(net) - warm
        assert storm.poll() is None or net.lab.now() > began + seconds, f"the flood ended: {storm.err}"
        ended = storm.wait(60 * net.slow + seconds)
    assert ended.code == 0, ended.err
    written = int(ended.out.split()[1])
    told = until(lambda: at_rest(net, g3), 30 * net.slow, "the agent has answered all") - first
    counted = {name: value - before[name] for name, value in counters(net).items()}
    figures = {
        "arrivals": len(times),
        "median_ms": round(statistics.median(times) * 1000),
        "longest_ms": round(max(times) * 1000),
        "median_ms_without": round(statistics.median(quiet) * 1000),
        "written": written,
        "agent_grew": grown,
        "refusals": told,
        "counted": {name: value for name, value in counted.items() if value},
    }
    record_property("flood", json.dumps(figures))
    print(figures)
    assert net.agent and net.agent.poll() is None, "the agent has ended"
    assert counted["malformed"] and counted["throttled"], figures
    # Those of others, whose peer was away, are counted, too.
    assert 0 < told <= counted["refused"], figures
    assert grown < GROWS, figures
    net.load(g3)
    for guest in (g1, g2):
        net.recover(guest, g3)
    with net.carried(g1, g3):
        g1.run(f"ping -c 3 -i 0.05 -q {g3.ip}")
