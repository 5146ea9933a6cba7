# SPDX-License-Identifier: GPL-2.0
"""Programs that users have, by lanes: whatever comes or goes under them, no connection of theirs breaks."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.guest.net import HERE, Net, until
from tests.guest.programs import Running, running


@pytest.fixture
def programs(net: Net, g1, g2) -> Iterator[Running]:
    """nginx, redis, PostgreSQL and ssh in g2, their clients in g1, and the stream path in both."""
    for guest in (g1, g2):
        guest.run("modprobe vmloop_tcp")
    try:
        with running(g1, g2, net.slow, scarce=net.transport == "vmloop_xen") as one:
            yield one
    finally:
        if not g2.running:
            g2.start()
            net.ensure()
        for guest in (g1, g2):
            guest.run("rmmod vmloop_tcp", check=False, timeout=120)
        net.recover(g1, g2)


def test_programs(net: Net, g1, g2, programs: Running) -> None:
    """Modules, the agent, the channel and the switch come and go: each program goes on, by lanes where it can."""

    def back() -> int:
        return int(g1.run("cat /sys/module/vmloop_tcp/parameters/back").out)

    def until_back(before: int) -> None:
        until(lambda: back() > before, 30 * net.slow, "connections are back at TCP")
        programs.go_on()

    def off() -> None:
        before = back()
        g2.run([f"{HERE}/control", "off"])
        try:
            until_back(before)
        finally:
            g2.run([f"{HERE}/control", "on"])

    def channel() -> None:
        before = back()
        net.command("close", "g1", "g2")
        until_back(before)

    def agent() -> None:
        net.kill_agent()
        try:
            programs.go_on()
        finally:
            net.start_agent()

    def transport() -> None:
        before = back()
        g2.run(["rmmod", net.transport], timeout=60 * net.slow)
        try:
            until_back(before)
        finally:
            net.load(g2)

    programs.go_on(by_lanes=True)
    things: list[Callable[[], None]] = [off, channel, agent, transport]
    for thing in things:
        thing()
        programs.go_on(by_lanes=True)
    for guest in (g2, g1):
        guest.run("rmmod vmloop_tcp", timeout=120)
        programs.go_on()
    programs.finish()


def test_programs_of_a_guest_that_dies(net: Net, g1, g2, programs: Running) -> None:
    """Their clients get TCP's error in its time, and no other; the module can go meanwhile."""

    def lanes() -> list[object]:
        listing = json.loads(g1.run([f"{HERE}/vmloop", "streams", "--json"]).out)
        return [one for one in listing if one["state"] == "lane"]

    # Seconds, where TCP takes a quarter of an hour to give up.
    patience = g1.run("sysctl -n net.ipv4.tcp_retries2").out.strip()
    g1.run("sysctl -qw net.ipv4.tcp_retries2=5")
    try:
        programs.go_on(by_lanes=True)
        g2.kill()
        until(lambda: not lanes(), 60 * net.slow, "no connection has a lane")
        programs.until_ssh_gives_up()
        g1.run("rmmod vmloop_tcp", timeout=120)
    finally:
        g1.run(f"sysctl -qw net.ipv4.tcp_retries2={patience}")
