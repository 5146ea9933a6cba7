# SPDX-License-Identifier: GPL-2.0
"""Windows: memory of one end of a channel that the other can only read, for references to bytes there.

The toy path (kernel/paths/toy/) has them over the loopback transport, whose ends are in one machine, the KVM host.
A program fills its window and sends references, the echo sends back what it finds there; `tools/toy.c` compares.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from vmlab import Lab
from vmlab.machine import Machine

from tests.guest.net import TOOLS, until
from tests.guest.pair import standing
from tests.guest.test_lanes import PEER, RING, Lanes

pytestmark = [pytest.mark.loopback, pytest.mark.kvm_only]

SIZE = 1 << 20
MOST = 4
"""Windows that an end may have: VMLOOP_WINDOWS_MAX."""
KIND = 15
"""VMLOOP_LANE_WINDOW."""
RECORDS = 6
"""VMLOOP_LANE_TOY_RECORDS."""
PARAMETERS = "/sys/module/vmloop_{}/parameters/{}"


@pytest.fixture
def lanes(lab: Lab) -> Iterator[Lanes]:
    """A channel with the toy path; nothing of a window is left when it has gone."""
    with standing(Lanes(lab.host)) as one:
        yield one
        until(lambda: not memory_of_windows(lab.host), 10, "memory of windows is free again")


def memory_of_windows(host: Machine) -> list[str]:
    """Whatever the transport has allocated or mapped for windows."""
    found = host.run("grep -E 'window_(make|map)' /proc/vmallocinfo", check=False).out.splitlines()
    return [line for line in found if "vmloop_loopback" in line]


def keep(host: Machine, size: int = SIZE) -> Any:
    """A program that has a window, and goes on with references to it until its end."""
    return host.popen([str(TOOLS / "toy"), "keep", str(PEER), "records", str(size)])


def account(done: Any) -> dict[str, int]:
    """What a program that has come to its end says."""
    assert done.code == 0, done.err
    said: dict[str, int] = json.loads(done.out.splitlines()[-1])
    return said


@pytest.mark.main("windows come and go while lanes flow, and references are followed")
def test_references(stage: str, lanes: Lanes) -> None:
    """What references name comes back as it was written; one that cannot be is answered so."""
    with lanes.host.popen([str(TOOLS / "toy"), "flow", str(PEER), "records", str(4 * RING), "20", "6"]) as flow:
        said = lanes.toy("refer", PEER, "records", SIZE, 3, 5)
        assert flow.wait(60).code == 0
    assert said["windows"] > MOST and said["referred"] > said["refused"] > 0, said
    assert lanes.peers()["loopback0"]["state"] == "up"


def make_ms(host: Machine, ms: int) -> None:
    """From now on the memory of a window is there after so long, as where a host makes it; 0: at once."""
    host.run(f"echo {ms} >{PARAMETERS.format('loopback', 'make_ms')}")


@pytest.mark.main("a window whose memory comes later was taken for one that has it")
def test_memory_comes_later(stage: str, lanes: Lanes) -> None:
    """A path has its window in hand before there is memory for it."""
    make_ms(lanes.host, 50)
    said = lanes.toy("refer", PEER, "records", SIZE, 3, 5)
    assert said["windows"] > MOST and said["referred"] > said["refused"] > 0, said


@pytest.mark.parametrize("end", ["program", "off", "channel", "policy"])
def test_end_before_memory(stage: str, lanes: Lanes, end: str) -> None:
    """However a window ends that has no memory yet, what comes for it later is nobody's."""
    host = lanes.host
    make_ms(host, 2000)
    with keep(host) as one:
        until(lambda: memory_of_windows(host), 10, "the window is in the making")
        if end == "program":
            one.terminate()
        elif end == "off":
            host.run([str(TOOLS / "control"), "off"])
        elif end == "channel":
            host.run("rmmod vmloop_loopback")
        else:
            host.run(f"echo {1 << KIND},{1 << KIND} >{PARAMETERS.format('loopback', 'without')}")
        done = one.wait(20)
    if end != "program":
        assert done.code == 1 and "no window: Connection refused" in done.err, done
    if end == "channel":
        return
    make_ms(host, 0)
    # Its memory comes while there is nothing that it is for.
    host.run("sleep 2")
    if end == "off":
        host.run([str(TOOLS / "control"), "on"])
    host.run(f"echo 0,0 >{PARAMETERS.format('loopback', 'without')}")
    until(lambda: lanes.peers()["loopback0"]["state"] == "up", 30, "a channel")
    assert lanes.toy("refer", PEER, "records", SIZE, 3, 1)["windows"] > 0


MAIN = pytest.mark.main("a window's memory goes while it is used")
IN_MAIN = {("transport", 1000), ("off", 50)}


@pytest.mark.parametrize(
    ("end", "held"),
    [
        pytest.param(
            end, held, id=f"{end}-{held}ms", marks=[MAIN] if (end, held) in {("transport", 1000), ("off", 50)} else []
        )
        for end in ("transport", "off", "broken", "policy")
        for held in (0, 50, 1000)
    ],
)
def test_end(stage: str, lanes: Lanes, end: str, held: int) -> None:
    """However a window ends, and however long the reader would use it, nobody touches it after that."""
    host = lanes.host
    host.run(f"echo {held} >{PARAMETERS.format('toy', 'hold_ms')}")
    with keep(host) as one:
        one.wait_for("ready", 30)
        assert len(memory_of_windows(host)) == 2, "what one end has made and the other mapped"
        if end == "off":
            host.run([str(TOOLS / "control"), "off"])
        elif end == "transport":
            host.run("rmmod vmloop_loopback")
        elif end == "policy":
            host.run(f"echo {1 << KIND},{1 << KIND} >{PARAMETERS.format('loopback', 'without')}")
        else:
            # What an end tells at the same time may hide it: again, until there is no channel to spoil.
            spoil = f"echo 1 >{PARAMETERS.format('loopback', 'spoil')}"
            until(lambda: host.run(spoil, check=False).code != 0, 30, "an end has been found broken")
        done = one.wait(60)
    said = account(done)
    assert held or said["referred"] > 0, said
    until(lambda: not memory_of_windows(host), 10, "memory of windows is free again")
    if end == "policy":
        refused = host.run([str(TOOLS / "toy"), "keep", str(PEER), "records", str(SIZE)], check=False)
        assert refused.code and "no window: Permission denied" in refused.err, refused.err
        assert lanes.toy("churn", PEER, "records", RING, 10, 2)["bytes"] > 0, "lanes go on"


def test_policy_of_its_lanes(stage: str, lanes: Lanes) -> None:
    """A window goes with the lanes that refer to it, whatever its program does: here it stands still."""
    host, without = lanes.host, PARAMETERS.format("loopback", "without")
    with keep(host) as one:
        one.wait_for("ready", 30)
        host.run("pkill -STOP -x toy")
        host.run(f"echo {1 << RECORDS},{1 << RECORDS} >{without}")
        until(lambda: not memory_of_windows(host), 10, "memory of windows is free again")
        host.run(f"pkill -CONT -x toy; echo 0,0 >{without}")
        account(one.wait(60))
    assert lanes.toy("refer", PEER, "records", SIZE, 1, 1)["windows"] > 0


def test_no_more_than_there_may_be(stage: str, lanes: Lanes) -> None:
    """An end has so many windows at most; when one ends, its number is free again."""
    host = lanes.host
    command = [str(TOOLS / "toy"), "keep", str(PEER), "records", str(SIZE)]
    with keep(host) as one, keep(host) as two, keep(host) as three, keep(host) as four:
        for held in (one, two, three, four):
            held.wait_for("ready", 30)
        refused = host.run(command, check=False)
        assert refused.code and "no window: No space left on device" in refused.err, refused.err
        four.terminate()
        four.wait(30)
        with keep(host) as five:
            five.wait_for("ready", 30)


@pytest.mark.parametrize("size", [0, 100, 4096 + 512, 2 << 30])
def test_size(stage: str, lanes: Lanes, size: int) -> None:
    """A window is whole pages, and not larger than windows may be."""
    refused = lanes.host.run([str(TOOLS / "toy"), "keep", str(PEER), "records", str(size)], check=False)
    assert refused.code and "no window: Invalid argument" in refused.err, refused.err


@pytest.mark.parametrize("lie", range(1, 9))
def test_window_that_cannot_be(stage: str, lanes: Lanes, lie: int) -> None:
    """An end that says of its window what cannot be has none; the one that it had goes on, and so do lanes."""
    host = lanes.host
    with keep(host) as good:
        good.wait_for("ready", 30)
        # The lie is told with the doorbell, which is not rung where another one has not been answered.
        host.run("pkill -STOP -x toy")
        host.run(f"echo {lie} >{PARAMETERS.format('loopback', 'forge')}")
        refused = host.run([str(TOOLS / "toy"), "keep", str(PEER), "records", str(SIZE)], check=False)
        assert refused.code and "no window: Connection refused" in refused.err, refused.err
        host.run(f"echo 0 >{PARAMETERS.format('loopback', 'forge')}")
        host.run("pkill -CONT -x toy")
        with keep(host) as another:
            another.wait_for("ready", 30)
        assert good.poll() is None, good.err
        assert lanes.peers()["loopback0"]["state"] == "up"
