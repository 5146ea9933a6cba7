# SPDX-License-Identifier: GPL-2.0
"""Many lanes in one channel: the toy path (kernel/paths/toy/) over the loopback transport.

Both ends are in one machine with several CPUs of its own: the lab's KVM host. The far end of each lane is an echo;
`tools/toy.c` compares what comes back.
"""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from vmlab import Lab

from tests.guest.net import DROPS, TOOLS, until
from tests.guest.pair import Pair, standing
from tests.guest.veth import IP, inside
from tests.stages import is_of_loopback

pytestmark = [pytest.mark.loopback, pytest.mark.kvm_only]

PEER = 2
"""Identity of loopback0, as its other end sees it."""

RING = 4096


class Lanes(Pair):
    """Two namespaces of one machine with a channel, and the toy path beside that of packets."""

    def load(self) -> None:
        """All modules."""
        super().load()
        self.host.run(["insmod", str(self.modules / "vmloop_toy.ko")])

    def unload(self) -> None:
        """All of them that are there."""
        self.host.run("rmmod vmloop_toy", check=False)
        super().unload()

    def read(self) -> int:
        """Bytes that the echoes have read."""
        return int(self.host.run("cat /sys/module/vmloop_toy/parameters/bytes_read").out)

    def toy(self, *words: object, timeout: float = 300) -> dict[str, Any]:
        """What the program says at its end."""
        result: dict[str, Any] = json.loads(self.host.run([str(TOOLS / "toy"), *map(str, words)], timeout=timeout).out)
        return result

    def memory(self) -> int:
        """KiB that the kernel has allocated and cannot just take back."""
        self.host.run("sync; echo 3 >/proc/sys/vm/drop_caches")
        info = dict(line.split(":") for line in self.host.run("cat /proc/meminfo").out.splitlines())
        return sum(int(info[name].split()[0]) for name in ("SUnreclaim", "VmallocUsed", "KernelStack", "Percpu"))


@pytest.fixture
def lanes(lab: Lab) -> Iterator[Lanes]:
    """A channel with lanes of both paths."""
    with standing(Lanes(lab.host)) as one:
        yield one


@pytest.mark.main("lanes are opened and closed beside packets")
@pytest.mark.parametrize("kind", ["bytes", "records"])
def test_lanes_beside_packets(stage: str, lanes: Lanes, kind: str, request: pytest.FixtureRequest) -> None:
    """Some lanes flow, 500 others come and go, again and again, and packets: all of it arrives as it was sent."""
    host = lanes.host
    seconds = request.config.getoption("--lane-seconds")
    before = lanes.peers()["loopback0"]["stats"]["tx_frames"]
    churned = []
    with (
        host.popen([str(TOOLS / "toy"), "flow", str(PEER), kind, str(4 * RING), "20", str(seconds)]) as flow,
        host.popen(inside("a", "ping", "-q", "-f", "-w", int(seconds), IP[1])) as ping,
    ):
        while flow.poll() is None:
            churned.append(lanes.toy("churn", PEER, kind, RING, 500, 8))
        flowed = flow.wait(60)
        answer = ping.wait(30).out
    assert churned and all(one["bytes"] > 0 for one in churned)
    assert flowed.code == 0, flowed.err
    flowed = json.loads(flowed.out.splitlines()[-1])
    assert flowed["moved"] > 0, "no ring has moved"
    assert flowed["least"] > 0, "a lane had no turn"
    print(f"{500 * len(churned)} lanes came and went; 20 lanes: {flowed}")
    sent, received = map(int, re.findall(r"(\d+) packets transmitted, (\d+) received", answer)[0])
    assert received and sent - received <= 1, f"more than the one that was under way at the end: {answer}"
    after = lanes.peers()["loopback0"]
    assert after["state"] == "up" and after["stats"]["tx_frames"] > before
    assert not any(after["stats"][name] for name in DROPS), after


def test_stalled_lanes(stage: str, lanes: Lanes) -> None:
    """Lanes that nobody reads leave the others alone."""
    host = lanes.host
    alone = lanes.toy("flow", PEER, "bytes", 4 * RING, 20, 3)
    with host.popen([str(TOOLS / "toy"), "hold", str(PEER), "bytes", str(RING), "4"]) as hold:
        hold.wait_for("ready")
        beside = lanes.toy("flow", PEER, "bytes", 4 * RING, 20, 3)
        assert hold.poll() is None, "they have ended"
        hold.terminate()
        hold.wait(20)
    assert beside["least"] > 0, "a lane had no turn"
    print(f"20 lanes alone: {alone}; beside 4 that are full: {beside}")


def test_page_that_nobody_brings(stage: str, lanes: Lanes) -> None:
    """Tasks that wait for their own memory, amid a read and a write, keep no channel."""
    host = lanes.host
    with host.popen([str(TOOLS / "toy"), "stuck", str(PEER), "bytes", str(RING)]) as stuck:
        stuck.wait_for("ready")
        host.run("rmmod vmloop_loopback", timeout=10)
        host.run("pkill -USR1 -x toy")
        result = stuck.wait(20)
    assert result.code == 0, result.err
    said = json.loads(result.out.splitlines()[-1])
    assert said["read"] == 4, "what had come is kept"
    assert (said["written"], said["error"]) == (-1, "Broken pipe"), said


def skip_where_memory_is_kept(stage: str) -> None:
    """KASAN keeps what was freed for a while, so that its use is seen."""
    if is_of_loopback(stage):
        pytest.skip("the kernel keeps memory that was freed")


@pytest.mark.main("a lane that ended left something behind")
def test_memory_is_flat(stage: str, lanes: Lanes) -> None:
    """What a lane takes is given back when it has ended, however often."""
    skip_where_memory_is_kept(stage)
    lanes.toy("churn", PEER, "bytes", RING, 1000, 8)
    before = lanes.memory()
    lanes.toy("churn", PEER, "bytes", RING, 10000, 8, timeout=600)
    assert lanes.memory() - before < 1024, "KiB more than before"


@pytest.mark.main("unread bytes were counted wrong at the end of a lane")
@pytest.mark.parametrize("end", ["transport", "off", "broken"])
def test_account(stage: str, lanes: Lanes, end: str) -> None:
    """However a lane ends, its path learns what the peer has read: to the byte, if both ends close it."""
    host = lanes.host
    before = lanes.read()
    with host.popen([str(TOOLS / "toy"), "hold", str(PEER), "bytes", str(RING), "50"]) as hold:
        hold.wait_for("ready")
        if end == "off":
            host.run([str(TOOLS / "control"), "off"])
        elif end == "transport":
            host.run("rmmod vmloop_loopback")
        else:
            host.run("echo 1 >/sys/module/vmloop_loopback/parameters/spoil")
        result = hold.wait(60)
    assert result.code == 0, result.err
    account = json.loads(result.out.splitlines()[-1])
    assert account["unread"] > 0 and account["moved"] > 0, account
    # Whoever closed first reads no more: what comes back after that is lost, and was read.
    assert account["came"] <= account["sent"] - account["unread"], account
    read = lanes.read() - before
    if end == "off":
        assert read == account["sent"] - account["unread"], (read, account)
    else:
        # The opener does not wait for the other end, which goes on for a moment.
        assert read >= account["sent"] - account["unread"], (read, account)


IDLE = 5.0
"""Seconds for which lanes are left alone."""


def test_cost_of_an_idle_lane(stage: str, lanes: Lanes) -> None:
    """Opening one takes two doorbells; it takes 4 KiB at most at each end beside its ring, and is silent when idle."""
    skip_where_memory_is_kept(stage)
    host, count = lanes.host, 200

    def doorbells() -> int:
        return sum(peer["stats"]["tx_doorbells"] for peer in lanes.peers().values())

    # What is allocated once for all is there after these.
    lanes.toy("churn", PEER, "bytes", RING, 300, 8)
    memory, rung = lanes.memory(), doorbells()
    with host.popen([str(TOOLS / "toy"), "open", str(PEER), "bytes", str(RING), str(count)]) as held:
        held.wait_for("ready", 60)
        assert doorbells() - rung <= 2 * count, "doorbells"
        assert lanes.memory() - memory <= 2 * 4 * count, "KiB, of both ends"
        rung = doorbells()
        time.sleep(IDLE)  # whatever would happen by itself has that long
        assert doorbells() - rung < count / 10, "a packet may have gone, but not one a lane"
        assert held.poll() is None
    until(lambda: lanes.memory() - memory < 512, 20, "the memory is given back")


def test_more_lanes_than_there_are(stage: str, lanes: Lanes) -> None:
    """When numbers or memory are used up, lanes are refused, and those that are there go on."""
    host = lanes.host
    with host.popen([str(TOOLS / "toy"), "flow", str(PEER), "bytes", str(RING), "20", "10"]) as flow:
        refused = host.run([str(TOOLS / "toy"), "hold", str(PEER), "bytes", str(RING), "400"], check=False)
        assert refused.code == 1 and "no lane: No space left on device" in refused.err
        assert flow.wait(60).code == 0
    until(lambda: lanes.toy("churn", PEER, "bytes", RING, 100, 4)["bytes"] > 0, 10, "lanes are opened again")
