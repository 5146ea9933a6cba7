# SPDX-License-Identifier: GPL-2.0
"""A Xen guest that floods XenStore, while another one's modules come and go.

g3 writes into its own part of a real XenStore as fast as that answers (tools/storm.c):
all that modules say, right and wrong. `--flood-seconds 600` keeps it up for ten minutes.
How long g2 takes to be known, with and without the flood, is kept with the test's result
and judged by nobody here: guests, xenstored and the agent share the CPUs.
"""

import json
import statistics

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


def arrival(net: Net, near: Guest, traveller: Guest) -> float:
    """Seconds from when a guest's modules are loaded until another one knows it."""
    net.unload(traveller)
    net.wait_state(near, traveller, "gone", 60 * net.slow)
    net.load(traveller)
    began = net.lab.now()
    until(lambda: traveller.name in net.peers(near), 60 * net.slow, f"{near.name} knows {traveller.name}")
    return net.lab.now() - began


def refusals(net: Net, guest: Guest) -> int:
    """The number of the last refusal that the agent has told a guest of; 0 without one."""
    said = [rest for word, rest in net.told(guest).items() if word.startswith("refused/")]
    return max((int(rest.split()[2]) for rest in said), default=0)


def at_rest(net: Net, guest: Guest) -> int:
    """The same, once nothing more was counted for a second; 0 before."""
    last, ask = refusals(net, guest), counters(net)["refused"]
    ended = net.lab.now() + 1
    while net.lab.now() < ended:
        if last != refusals(net, guest) or ask != counters(net)["refused"]:
            return 0
    return last


def test_a_flood_in_xenstore(
    net: Net, g1: Guest, g2: Guest, g3: Guest, request: pytest.FixtureRequest, record_property
) -> None:
    """The agent goes on: others come and go, each refusal is counted, its memory stays.

    Afterwards g3's modules are heard as if nothing had been.
    """
    seconds = request.config.getoption("--flood-seconds")
    quiet = [arrival(net, g1, g2) for _ in range(QUIET_ROUNDS)]
    net.unload(g3)
    net.wait_state(g1, g3, "gone", 60 * net.slow)
    g3.run(FIRST)
    first = until(lambda: refusals(net, g3), 30 * net.slow, "the agent refuses what there is not")
    before = counters(net)
    words = [str(TOOLS / "storm"), str(seconds), str(g3.domid), g3.mac, str(g1.domid), g1.mac]
    times: list[float] = []
    memories: list[tuple[float, int]] = []
    with g3.popen(words) as storm:
        until(lambda: refusals(net, g3) != first, 30 * net.slow, "the agent hears the flood")
        began = net.lab.now()
        while storm.poll() is None:
            took = arrival(net, g1, g2)
            if storm.poll() is None:
                times.append(took)
            memories.append((net.lab.now() - began, memory(net)))
        ended = storm.wait(30)
    assert ended.code == 0, ended.err
    asked, unheard = (int(ended.out.split()[at]) for at in (1, 3))
    told = until(lambda: at_rest(net, g3), 60 * net.slow, "the agent has answered all") - first
    counted = {name: value - before[name] for name, value in counters(net).items()}
    assert times, f"no arrival within the flood of {seconds} s"
    warm = [size for at, size in memories if at > seconds / 3]
    assert len(warm) > 2, f"too few arrivals within the flood of {seconds} s: {memories}"
    figures = {
        "arrivals": len(times),
        "median_ms": round(statistics.median(times) * 1000),
        "longest_ms": round(max(times) * 1000),
        "median_ms_without": round(statistics.median(quiet) * 1000),
        "asked": asked,
        "refused_by_xenstored": unheard,
        "agent_grew": warm[-1] - warm[0],
        "refusals": told,
        "counted": {name: value for name, value in counted.items() if value},
    }
    record_property("flood", json.dumps(figures))
    print(figures)
    assert net.agent and net.agent.poll() is None, "the agent has ended"
    assert counted["malformed"] and counted["throttled"], figures
    assert unheard < asked / 10, f"XenStore let little through: {figures}"
    # The others are told, too, that a peer of theirs is away: a few times an arrival.
    assert 0 < told <= counted["refused"] <= told + 4 * len(memories), figures
    assert warm[-1] - warm[0] < GROWS, figures
    net.load(g3)
    for guest in (g1, g2):
        net.recover(guest, g3)
    with net.carried(g1, g3):
        g1.run(f"ping -c 3 -i 0.05 -q {g3.ip}")
