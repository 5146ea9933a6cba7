# SPDX-License-Identifier: GPL-2.0
"""Whatever comes or goes under a running transfer, no connection to a living peer breaks.

Each test runs a TCP stream of known content, does something to the channel,
and checks every byte. The longest time for which nothing arrived is reported,
and must be under a second.
"""

from functools import partial

import pytest
from vmlab import CommandFailed

from tests.guest.net import HERE, STALLS, at_once, until

LONGEST_STALL = 1.0
ENOUGH = 30_000_000
"""Bytes after which a path has shown that it carries the transfer."""


class Watch:
    """The transfer of a test."""

    def __init__(self, net, transfer, source, sink):
        self.net = net
        self.transfer = transfer
        self.source = source
        self.sink = sink

    def on_channel(self, count=ENOUGH):
        """The transfer goes on, and the channel carries it.

        Not every byte: what a full ring and its waiting list have no room for
        takes the standard network, and a busy host leaves a receiver waiting.
        """
        self.net.wait_state(self.source, self.sink, "up", 15)
        before = self.net.channel_bytes(self.source, self.sink)
        arrived = self.transfer.bytes

        def carried():
            self.transfer.check()
            return self.net.channel_bytes(self.source, self.sink) - before

        self.transfer.wait_bytes(count)
        until(lambda: carried() >= count, 20 * self.net.slow, f"the channel carries {count} bytes of the transfer")
        arrived = self.transfer.bytes - arrived
        assert carried() >= 0.5 * arrived, f"the channel carried only {carried()} bytes of {arrived}"

    def on_standard(self, count=ENOUGH // 6):
        """The transfer goes on, and no channel carries it."""
        try:
            before = self.net.channel_bytes(self.source, self.sink)
        except CommandFailed:  # no modules: nobody counts
            before = None
        self.transfer.wait_bytes(count)
        if before is not None:
            now = self.net.channel_bytes(self.source, self.sink)
            # A peer that has left the directory meanwhile is counted from nothing.
            carried = now - before if now >= before else now
            assert carried == 0, f"a channel carried {carried} bytes"


@pytest.fixture
def watch(request, net, g1, g2):
    """A transfer from g1 to g2; judged at the end of the test."""
    with net.transfer(g1, g2) as transfer:
        yield Watch(net, transfer, g1, g2)
        longest = transfer.finish()
    judge(request, net, longest)


def judge(request, net, longest):
    STALLS.append({"test": request.node.nodeid.partition("::")[2], "seconds": longest})
    request.node.user_properties.append(("longest_stall_s", longest))
    assert longest < (LONGEST_STALL if net.is_xen else LONGEST_STALL * net.slow), f"nothing arrived for {longest:.3f} s"


@pytest.mark.core("modules are loaded under traffic", on="both")
def test_modprobe(net, g1, g2, request):
    """The modules are loaded under a transfer that began without them."""
    at_once(partial(net.unload, g1), partial(net.unload, g2))
    with net.transfer(g1, g2) as transfer:
        watch = Watch(net, transfer, g1, g2)
        watch.on_standard()
        net.load(g1, g2)
        watch.on_channel()
        longest = transfer.finish()
    judge(request, net, longest)


@pytest.mark.parametrize("who", ["sender", "receiver"])
@pytest.mark.parametrize("first", ["vmloop_net", "transport"])
def test_rmmod(net, g1, g2, watch, who, first):
    """Unload and load again at one end, in either order."""
    guest = g1 if who == "sender" else g2
    second = {"vmloop_net": "transport", "transport": "vmloop_net"}[first]
    watch.on_channel()
    net.unload(guest, (first,))
    watch.on_standard()
    net.unload(guest, (second, "vmloop"))
    watch.on_standard()
    net.load(guest)
    watch.on_channel()


@pytest.mark.core("modules are unloaded under traffic", on="both")
def test_rmmod_everywhere(net, g1, g2, watch):
    """Both ends at the same time."""
    watch.on_channel()
    words = f"rmmod vmloop_net {net.transport} vmloop"
    with g1.popen(words) as one, g2.popen(words) as other:
        assert one.wait(60 * net.slow).code == 0
        assert other.wait(60 * net.slow).code == 0
    watch.on_standard()
    net.load(g1, g2)
    watch.on_channel()


def test_reload_again_and_again(net, g1, g2, watch):
    for _ in range(3):
        watch.on_channel(ENOUGH // 3)
        net.unload(g2)
        net.load(g2)
    watch.on_channel()


def test_off_and_on(net, g1, g2, watch):
    """`vmloop off` in one guest sends traffic back to the standard network."""
    for _ in range(3):
        watch.on_channel(ENOUGH // 3)
        g1.run([f"{HERE}/control", "off"])
        watch.on_standard()
        g1.run([f"{HERE}/control", "on"])
    watch.on_channel()


def test_off_and_on_quickly(net, g1, g2, watch):
    """Who turns it off and on again and again waits for the channel no longer than after the first times."""
    watch.on_channel()
    for _ in range(6):
        g1.run([f"{HERE}/control", "off"])
        until(lambda: net.state(g2, g1) != "up", 15 * net.slow, "the channel is gone at both ends")
        g1.run([f"{HERE}/control", "on"])
        net.wait_state(g1, g2, "up", 15)
    watch.on_channel()


@pytest.mark.main("all state is soft: the agent", on="both")
def test_agent_killed_and_started(net, g1, g2, watch):
    """Channels work without an agent, and a new agent finds them as they are."""
    watch.on_channel()
    tags = net.peers(g1)["g2"].tag, net.peers(g2)["g1"].tag
    net.kill_agent()
    watch.on_channel()
    net.start_agent()
    until(
        lambda: {guest["name"] for guest in net.listing()["guests"] if guest["state"] == "ready"} >= set(net.base),
        15 * net.slow,
        "the new agent knows all guests",
    )
    watch.on_channel()
    assert (net.peers(g1)["g2"].tag, net.peers(g2)["g1"].tag) == tags, "the channel was replaced"
    until(
        lambda: net.listed("g1", "g2").get("state") == "up",
        15 * net.slow,
        "the new agent knows the channel",
    )


def test_agent_killed_and_modules_loaded_again(net, g1, g2, watch):
    """Modules that begin without an agent find the next one."""
    watch.on_channel()
    net.kill_agent()
    net.unload(g2)
    watch.on_standard()
    net.load(g2)
    watch.on_standard()
    net.start_agent()
    watch.on_channel()


@pytest.mark.kvm_only
@pytest.mark.parametrize(
    "who", ["sender", pytest.param("receiver", marks=pytest.mark.main("the device vanishes without warning"))]
)
def test_device_del(net, g1, g2, watch, who):
    """Somebody unplugs a channel's device past the agent."""
    guest = g1 if who == "sender" else g2
    peer = g2 if who == "sender" else g1
    watch.on_channel()
    tag = net.peers(guest)[peer.name].tag
    guest.qmp("device_del", {"id": f"vmloop-ch-{tag}"})
    until(lambda: net.peers(guest)[peer.name].tag != tag, 10 * net.slow, "the channel is gone")
    watch.transfer.wait_bytes(ENOUGH // 6)
    watch.on_channel()


@pytest.mark.kvm_only
def test_plugged_unheard(net, g1, g2):
    """A channel's device is found before the kernel hears of it: its worker waits long where CPUs are full.

    Here it hears nothing at all: event 1 of the firmware is that of PCI hotplug.
    """
    event = "/sys/firmware/acpi/interrupts/gpe01"

    def heard():
        return [guest.run(f"cat {event}").out.split()[0] for guest in (g1, g2)]

    def tell(word):
        for guest in (g1, g2):
            guest.run(f"echo {word} >{event}")

    net.bring_up(g1, g2)
    net.command("close", "g1", "g2")
    until(lambda: not net.listed("g1", "g2"), 10 * net.slow, "the channel is unplugged")
    tell("disable")
    try:
        before = heard()
        net.bring_up(g1, g2)
        assert heard() == before
    finally:
        tell("enable")


@pytest.mark.parametrize(
    "who", ["sender", pytest.param("receiver", marks=pytest.mark.main("a guest as it is before it migrates"))]
)
def test_detach(net, g1, g2, watch, who):
    """`vmloop detach` and `vmloop attach` of one end."""
    guest = g1 if who == "sender" else g2
    watch.on_channel()
    net.command("detach", guest.name)
    try:
        watch.on_standard()
        assert not net.left_behind(guest)
    finally:
        net.attach(guest, again=True)
    watch.on_channel()


def test_close(net, g1, g2, watch):
    """The agent closes the channel; the next frame asks for another."""
    watch.on_channel()
    tag = net.peers(g1)["g2"].tag
    net.command("close", "g1", "g2")
    watch.on_channel()
    assert net.peers(g1)["g2"].tag != tag


@pytest.mark.main("policy holds for channels that are there", on="both")
def test_policy_takes_the_channel_away(net, g1, g2, watch):
    """And gives it back."""
    watch.on_channel()
    net.set_policy("idle_ms = 0\n[[group]]\nname = 'a'\nmembers = ['g2', 'g3']\n")
    try:
        # Its channel goes first, then the peer, and with it what it counted.
        until(lambda: "g2" not in net.peers(g1), 10 * net.slow, "g1 does not know of g2 any more")
        watch.on_standard()
    finally:
        net.set_policy("idle_ms = 0\n")
    watch.on_channel()


def test_new_peer_that_was_talked_to(net, g1, g2):
    """Its channel comes before the next frame: connections that have waited for it need not begin.

    Their neighbour tables do not ask whether the other is still there, which
    would be a frame.
    """

    def know(state):
        for one, other in ((g1, g2), (g2, g1)):
            one.run(f"ip neigh replace {other.ip} lladdr {other.mac} dev eth0 nud {state}")

    net.set_policy("idle_ms = 0\n[[group]]\nname = 'a'\nmembers = ['g2', 'g3']\n")
    try:
        until(lambda: "g2" not in net.peers(g1), 10 * net.slow, "g1 does not know of g2 any more")
        g1.run(["ping", "-c", "3", "-i", "0.1", "-q", g2.ip])
        know("permanent")
        net.set_policy("idle_ms = 0\n")
        net.wait_state(g1, g2, "up", 10)
    finally:
        net.set_policy("idle_ms = 0\n")
        know("stale")


@pytest.mark.main("the only channel that ends by itself")
def test_idle_channel_is_unplugged(net, g1, g3):
    """And traffic brings it back."""
    net.set_policy("idle_ms = 700\n")
    try:
        until(lambda: net.state(g1, g3) != "up", 15 * net.slow, "an idle channel is closed")
        until(lambda: not net.listed("g1", "g3"), 15 * net.slow, "an idle channel is unplugged")
    finally:
        net.set_policy("idle_ms = 0\n")
    net.bring_up(g1, g3)


@pytest.mark.main("stalled channels send to the standard network", on="both")
def test_peer_that_stands_still(net, g1, g2):
    """A paused machine consumes nothing: its channel stalls, and returns when it goes on.

    The pause itself is no stall of the network, and not judged.
    """
    before = net.peers(g1)["g2"]["stalls"]
    with net.transfer(g1, g2) as transfer:
        watch = Watch(net, transfer, g1, g2)
        watch.on_channel()
        g2.pause()
        try:
            net.wait_state(g1, g2, "stalled", 2)
        finally:
            g2.unpause()
        watch.on_channel()
        assert net.peers(g1)["g2"]["stalls"] > before
        transfer.finish()


@pytest.mark.parametrize("agent", ["with_agent", "without_agent"])
def test_peer_killed(net, g1, g2, g3, watch, agent, request):
    """SIGKILL to one of three: the transfer between the other two does not care.

    With an agent the survivors know within a second; without one, what they
    send to the dead is held for stalled, and takes the standard network.
    """
    with net.transfer(g1, g3, port=7101) as doomed:
        doomed.wait_bytes(ENOUGH // 6)
        watch.on_channel()
        if agent == "without_agent":
            net.kill_agent()
        expected = "gone,none,closing" if agent == "with_agent" else "stalled"
        with (
            net.serving(g1, f"{HERE}/control", "until", "g3", expected) as notices,
            net.serving(net.host, "sh", "-c", f"echo ready; {net.lab.kind.kill_command(g3)}"),
        ):
            killed = net.lab.now()
            notices.wait(10 * net.slow)
            noticed = net.lab.now() - killed
            STALLS.append({"test": f"{request.node.name}: until the dead peer was noticed", "seconds": noticed})
        g3.kill()  # returns when it is over
        watch.on_channel()
    if agent == "without_agent":
        net.start_agent()
        until(lambda: net.state(g1, g3) == "gone", 10 * net.slow, "the new agent tells that g3 is dead")
        watch.on_channel()
    g3.start()
    net.ensure()
    watch.on_channel()
    assert noticed < 1.0 * net.slow, f"a dead peer was noticed after {noticed:.2f} s"
