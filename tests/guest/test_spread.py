# SPDX-License-Identifier: GPL-2.0
"""Packets of one peer on several lanes, by flow, over the loopback transport.

Both ends are in one machine with several CPUs of its own, as in test_threads.py. What takes two guests is in
test_spread_guests.py.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import pytest
from vmlab import Lab

from tests.guest.net import DROPS, TOOLS, Transfer, until
from tests.guest.pair import Pair, standing
from tests.guest.veth import IP, MAC, inside

pytestmark = [pytest.mark.loopback, pytest.mark.kvm_only]

RING = 1 << 24
"""Of each way; room for more lanes than the machine has CPUs."""
IP6 = ("fd00::1", "fd00::2")
FLOWS = 6
RUNS = 4
OF_A_STALL = {"stalls", "standard_stalled", "standard_flushed"}
"""What is counted where a lane stalls: that, what goes past it, and what waited for it."""
STALL = "events/vmloop/vmloop_stall"

LANES = "/sys/module/vmloop_net/parameters/lanes"


class Spread(Pair):
    """Two namespaces with a channel that has room for many lanes."""

    def load(self) -> None:
        """All modules, with large rings."""
        super().load()
        self.host.run("rmmod vmloop_loopback")
        self.again()
        for name, address in zip("ab", IP6, strict=True):
            self.host.run(["ip", "-n", name, "addr", "add", f"{address}/64", "dev", f"v{name}", "nodad"])

    def again(self) -> None:
        """A channel from the beginning."""
        words = f"rmmod vmloop_loopback; insmod {self.modules}/vmloop_loopback.ko interfaces={','.join(MAC)}"
        self.host.run(f"{words} ring_size={RING}")

    @property
    def lanes(self) -> tuple[int, int]:
        """Lanes that the packets of each end go by."""
        return tuple(peer["lanes"] for peer in sorted(self.peers().values(), key=lambda one: one["name"]))

    def standard(self) -> Counter[str]:
        """Frames of both ends that took the standard network, by reason, and how often a lane stalled."""
        found: Counter[str] = Counter()
        for peer in self.peers().values():
            found.update({word: n for word, n in peer["stats"].items() if word.startswith(("standard", "stalls"))})
        return found

    def tcp(self) -> Counter[str]:
        """What both ends have counted of TCP."""
        found: Counter[str] = Counter()
        for name in "ab":
            counted = json.loads(self.host.run(inside(name, "nstat", "-a", "-s", "-z", "-j")).out)["kernel"]
            found.update({word: n for word, n in counted.items() if word.startswith("Tcp")})
        return found


@pytest.fixture
def spread(lab: Lab) -> Iterator[Spread]:
    """A channel whose lanes are as many as the machine has CPUs."""
    with standing(Spread(lab.host)) as one:
        yield one


def transfers(spread: Spread, stack: ExitStack) -> list[Transfer]:
    """Streams both ways, of which every byte is checked."""
    found = []
    for flow in range(FLOWS):
        source, sink, address = ("a", "b", IP[1]) if flow % 2 else ("b", "a", IP[0])
        port = 7100 + flow
        receiver = spread.host.popen(inside(sink, TOOLS / "stream", "receive", port))
        words = inside(source, TOOLS / "stream", "send", address, port)
        found.append(Transfer(receiver, partial(spread.host.popen, words), 1))
        stack.callback(found[-1].close)
    return found


def flow_for(transfers: list[Transfer], count: int) -> None:
    """Wait until so many bytes more have come by each."""
    targets = [one.bytes + count for one in transfers]

    def arrived() -> bool:
        for one in transfers:
            one.check()
        return all(one.bytes >= target for one, target in zip(transfers, targets, strict=True))

    until(arrived, 120, f"{count} bytes by each stream")


T = TypeVar("T")


def without_stall(spread: Spread, work: Callable[[], T]) -> T:
    """What some work found in a run in which all frames took the channel.

    A lane stalls where the machine gives its reader no time for 300 ms, and frames go past it, out of order as
    they may be then: such a run says nothing of the lanes, and is made again.
    """
    for _ in range(RUNS):
        found, other, said = stalls_of(spread, work)
        assert set(other) <= OF_A_STALL, f"frames that took another way: {other}"
        if not other:
            return found
    pytest.fail(f"a lane stalled in each of {RUNS} runs; as the modules traced it:\n{said}")


def stalls_of(spread: Spread, work: Callable[[], T]) -> tuple[T, Counter[str], str]:
    """What some work found, what took the standard network meanwhile, and what the modules said of each stall."""
    trace = "/sys/kernel/tracing"
    spread.host.run(f"mount -t tracefs none {trace} 2>/dev/null; echo >{trace}/trace; echo 1 >{trace}/{STALL}/enable")
    before = spread.standard()
    found = work()
    said = spread.host.run(f"echo 0 >{trace}/{STALL}/enable; grep -v ^# {trace}/trace", check=False).out
    return found, spread.standard() - before, said


@pytest.mark.main("flows of a peer were in one lane, or changed their lane")
def test_flows_keep_their_order(spread: Spread) -> None:
    """Streams are spread over the lanes, and no segment of one ever overtakes another."""
    cpus = int(spread.host.run("nproc --all").out)
    assert cpus > 1 and spread.lanes == (min(cpus, 8),) * 2

    def flow() -> Counter[str]:
        before = spread.tcp()
        with ExitStack() as stack:
            streams = transfers(spread, stack)
            flow_for(streams, 30_000_000)
            for one in streams:
                one.finish()
        return spread.tcp() - before

    counted = without_stall(spread, flow)
    if counted["TcpExtTCPOFOQueue"]:
        # Where a socket dropped a segment, what comes after it is early.
        assert counted["TcpExtTCPBacklogDrop"] or counted["TcpExtTCPRcvQDrop"], f"came out of order: {counted}"
    after = spread.peers()
    assert not any(peer["stats"][name] for peer in after.values() for name in DROPS), after


RECEIVE = """
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
s.bind(('::', 7200))
print('ready', flush=True)
last, late = -1, 0
while True:
    number = int.from_bytes(s.recv(65536)[:4], 'big')
    if number == 0xffffffff:
        break
    late += number < last
    last = max(number, last)
print(last, late, flush=True)
"""

SEND = """
import socket, sys, time
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
count = int(sys.argv[2])
for number in range(count):
    s.sendto(number.to_bytes(4, 'big') + bytes((200, 4000)[number // 3 % 2]), (sys.argv[1], 7200))
for _ in range(20):  # one that takes another way may get lost where a lane stalls
    s.sendto(b'\\xff' * 4, (sys.argv[1], 7200))
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    "address",
    [
        IP[1],
        pytest.param(
            IP6[1],
            marks=pytest.mark.main("fragments took another lane than the datagrams of their socket that are whole"),
        ),
    ],
)
def test_datagrams_of_a_socket_keep_their_order(spread: Spread, address: str) -> None:
    """Small and large ones in turn: those of IPv6 that are large are in fragments."""
    count = 3000
    target = f"::ffff:{address}" if "." in address else address

    def flow() -> tuple[int, ...]:
        before = spread.peers()["loopback0"]["stats"]["tx_frames"]
        with spread.host.popen(inside("b", "python3", "-c", RECEIVE)) as receiver:
            receiver.wait_for("ready")
            spread.host.run(inside("a", "python3", "-c", SEND, target, count))
            last, late = map(int, receiver.wait(60).out.splitlines()[-1].split())
        return last, late, spread.peers()["loopback0"]["stats"]["tx_frames"] - before

    last, late, carried = without_stall(spread, flow)
    assert carried >= count, "the channel carried them"
    assert (last, late) == (count - 1, 0)


def test_lanes_are_fewer_if_wanted(spread: Spread) -> None:
    """The parameter says how many at most; all rings together are as large as one that is alone."""
    alone: list[int] = []
    for lanes in (1, 2, 0, 100):
        spread.host.run(f"echo {lanes} >{LANES}")
        spread.again()
        spread.bring_up()
        cpus = int(spread.host.run("nproc --all").out)
        assert spread.lanes == (max(1, min(lanes, cpus, 8)),) * 2
        sizes = [peer["ring_size"] for peer in spread.peers().values()]
        alone = alone or sizes
        assert sizes == alone, lanes


@pytest.mark.main("a lane stood still when its CPU went")
def test_cpu_goes_and_comes(spread: Spread) -> None:
    """Streams flow on while a CPU is taken out and put back: lanes are served by those that are left."""
    cpus = int(spread.host.run("nproc --all").out)
    with ExitStack() as stack:
        streams = transfers(spread, stack)
        for cpu in range(1, cpus):
            for online in (0, 1):
                spread.host.run(f"echo {online} >/sys/devices/system/cpu/cpu{cpu}/online", timeout=60)
                flow_for(streams, 5_000_000)
        for one in streams:
            one.finish()
    assert spread.states() == {"up"}
    assert spread.lanes == (min(cpus, 8),) * 2
