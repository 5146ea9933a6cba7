# SPDX-License-Identifier: GPL-2.0
"""Core and packet path on the threads of a machine with several CPUs of its own: the lab's KVM host.

Both ends of a channel over the loopback transport are in it, as in test_loopback.py: each lane's NAPI, watcher, timer
and producers are on whatever CPU they happen to be, and meet as they seldom do in guests that share two CPUs.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from vmlab import Lab
from vmlab.process import Process

from tests.guest.net import DROPS, TOOLS, Transfer, until
from tests.guest.pair import Pair, standing
from tests.guest.veth import IP, inside

pytestmark = [pytest.mark.loopback, pytest.mark.kvm_only]


@pytest.fixture
def pair(lab: Lab) -> Iterator[Pair]:
    """Two namespaces of the host with a channel."""
    with standing(Pair(lab.host)) as one:
        yield one


@pytest.mark.main("what only several CPUs show: a lane's NAPI on one after the other")
def test_streams_and_pings_both_ways(stage: str, pair: Pair) -> None:
    """No end ever holds the other one for a liar, however NAPI, watcher and timer meet."""
    host = pair.host
    ends = (("a", "b", IP[1], 7100), ("b", "a", IP[0], 7101))
    transfers: list[Transfer] = []
    pings: list[Process] = []
    try:
        for cpu, (source, sink, address, port) in enumerate(ends):
            receiver = host.popen(inside(sink, TOOLS / "stream", "receive", port))
            words = inside(source, "taskset", "-c", cpu, TOOLS / "stream", "send", address, port)
            transfers.append(Transfer(receiver, partial(host.popen, words), 1))
        for cpu in range(3):
            for source, _, address, _ in ends:
                pings.append(host.popen(inside(source, "taskset", "-c", cpu, "ping", "-q", "-f", address)))

        def carried() -> bool:
            for one in transfers:
                one.check()
            assert "broken" not in pair.states(), pair.peers()
            return all(one.bytes > 300_000_000 for one in transfers)

        until(carried, 120, "300 MB each way")
        for ping in pings:
            ping.kill()
        for one in transfers:
            one.finish()
    finally:
        for ping in pings:
            ping.__exit__()
        for one in transfers:
            one.close()
    after = pair.peers()
    assert len(after) == 2
    for peer in after.values():
        assert peer["state"] == "up", after
        assert not any(peer["stats"][name] for name in DROPS), after


def end(pair: Pair, name: str) -> dict[str, Any]:
    """What the modules say of one end."""
    return pair.peers()[name]


@pytest.mark.main("a channel that broke was dead until an operator came")
def test_broken_is_not_for_ever(stage: str, pair: Pair) -> None:
    """It is tried again by itself, later each time; what the peer did and how often is shown; a reset forgets it."""
    spoil = "/sys/module/vmloop_loopback/parameters/spoil"
    for breaks in (1, 2):

        def broken(breaks: int = breaks) -> Any:
            # A producer that writes its position at the same time makes it good again.
            pair.host.run(f"echo 0 >{spoil}", check=False)
            seen = end(pair, "loopback1")
            return seen if seen["breaks"] >= breaks else None

        seen = until(broken, 10, "the end that is lied to finds it")
        assert seen["break"] == 2, "the reason: a head that cannot be"
        assert seen["state"] != "broken" or 0 < seen["retry_ms"] <= 1000 * 2 ** (breaks - 1)
        assert end(pair, "loopback0")["breaks"] == 0, "the end that lied has nothing to complain of"
        pair.bring_up()
    assert end(pair, "loopback1")["breaks"] >= 2, "they are in a row until the channel was up for long"
    pair.host.run([str(TOOLS / "control"), "reset", str(end(pair, "loopback1")["id"])])
    assert end(pair, "loopback1")["breaks"] == 0


@pytest.mark.main("a socket's buffer holds few frames that are charged too much")
def test_medium_datagrams_are_charged_what_they_take(stage: str, pair: Pair) -> None:
    """A datagram of 1,700 bytes costs its socket less than three of its size."""
    host = pair.host
    sends = inside("a", "socat", "-u", "-b", "1700", "-", f"UDP-SENDTO:{IP[1]}:7300")
    for name in ("a", "b"):
        host.run(inside(name, "ip", "link", "set", f"v{name}", "mtu", 9000))
    with host.popen(
        inside(
            "b", "python3", "-c", "import socket, sys\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "s.bind(('', 7300))\nprint('ready', flush=True)\nsys.stdin.read()",
        )
    ) as sleeper:  # fmt: skip
        sleeper.wait_for("ready")
        before = end(pair, "loopback1")["stats"]["rx_frames"]
        host.run(sends, stdin=b"x" * 1700 * 10)

        def queued() -> int:
            found = host.run(inside("b", "ss", "-uamnH", "sport", "=", ":7300")).out
            return int(found.partition("skmem:(r")[2].partition(",")[0] or 0)

        until(lambda: end(pair, "loopback1")["stats"]["rx_frames"] >= before + 10, 10, "all come by the channel")
        charged = until(queued, 10, "the datagrams are in the socket's queue")
        assert charged / 10 < 3 * 1700, f"{charged} bytes for 10 datagrams"


def frames_seen(lines: str) -> dict[tuple[str, ...], float]:
    """When a tap saw each ICMP message, by what `tcpdump -tt` prints: source, kind, identity, sequence; seconds."""
    found = re.findall(r"^([\d.]+) IP ([\d.]+) > .*ICMP echo (\w+), id (\d+), seq (\d+)", lines, re.MULTILINE)
    return {tuple(words): float(when) for when, *words in found}


@pytest.mark.main("a tap that sees a frame after the peer has answered it")
def test_taps_see_a_frame_before_the_peer_does(stage: str, pair: Pair) -> None:
    """By the time stamps of a tap at each end: no frame is seen to come before it was seen to go."""
    host = pair.host
    count = 3000
    files = {name: f"/tmp/tap-{name}" for name in ("a", "b")}
    taps: list[Process] = []
    pings: list[Process] = []
    try:
        for name, file in files.items():
            words = inside(name, "tcpdump", "-i", f"v{name}", "-B", 32768, "-w", file, "--time-stamp-precision=nano")
            taps.append(host.popen([*words, "icmp"]))
            taps[-1].wait_for("listening on")
        # Both ways, on a CPU each, several under way: frames come while others go.
        for cpu, (name, address) in enumerate((("a", IP[1]), ("b", IP[0]))):
            words = inside(name, "taskset", "-c", cpu, "ping", "-q", "-f", "-l", 3, "-c", count, address)
            pings.append(host.popen(words))
        for ping in pings:
            ping.wait(120)
        assert end(pair, "loopback1")["stats"]["tx_frames"] >= count, "the channel carried them"
        for tap in taps:
            tap.terminate()
            tap.wait(20)
    finally:
        for one in pings + taps:
            one.__exit__()
    read = "tcpdump -tt --time-stamp-precision=nano -n -r"
    a, b = (frames_seen(host.run(f"{read} {file}").out) for file in files.values())
    both = a.keys() & b.keys()
    assert len(both) > 2 * count, f"{len(a)} and {len(b)} were seen"
    late = [key for key in both if (b[key] - a[key]) * (1 if key[0] == IP[0] else -1) < 0]
    assert not late, f"{len(late)} of {len(both)}: {late[:5]}"
