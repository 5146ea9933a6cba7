# SPDX-License-Identifier: GPL-2.0
"""A Xen guest that is saved, restored or checkpointed under a transfer, by nothing but xl.

g1 stays. The other one sends, so that after each time it stood still it is the
one whose timers have run out, and the transfer goes on at once.

9p does not outlive a save: what is restored needs a guest with its root in its
memory (``movable``). A checkpoint goes on in the same domain, 9p and all.
"""

import json
from contextlib import contextmanager

import pytest
from vmlab.xen import TOOLS as XEN_TOOLS

from tests.guest.net import HERE, TOOLS, until
from tests.guest.programs import running

pytestmark = pytest.mark.xen_only

XL = f"{XEN_TOOLS}/xl"
FILE = f"{HERE}/saved"
"""In the host's memory, which has room for a small guest."""
DISK_FILE = "/run/vmlab/lab/saved"
"""In the lab's folder of the outside."""
PORT = "7300"
RATE = "2"
ENOUGH = 2_000_000
"""Bytes after which a path has shown that it carries the transfer."""
MEMORY = 512
"""MiB of the guest that is saved: all of it is written while it stands still."""
LONGEST_PAUSE = 0.1
LONGEST_RISE = 2.0
"""Seconds from a guest's going on to its traffic in a channel."""


def parameter(guest, name):
    return int(guest.run(["cat", f"/sys/module/vmloop_xen/parameters/{name}"]).out)


def held(guest):
    """What a guest has given to peers and taken from them."""
    return {name: parameter(guest, name) for name in ("granted", "mapped", "channels", "quarantined")}


def pause(guest):
    """How long the guest's last suspension waited for channels to end, in seconds."""
    return parameter(guest, "pause") / 1e6


@pytest.fixture
def alone(net, g1):
    """What g1 holds without the guest that is saved."""
    return held(g1)


@pytest.fixture
def fourth(net, lab, g1, alone):
    """A guest with little memory, and a channel to g1."""
    guest = lab.add_guest(memory=MEMORY)
    net.prepare_guest(guest)
    net.bring_up(g1, guest)
    return guest


@pytest.fixture
def movable(net, lab, g1, alone):
    """The same without 9p."""
    return movable_guest(net, lab, g1, MEMORY)


def movable_guest(net, lab, g1, memory):
    """A guest that has its root in its memory, and a channel to g1."""
    guest = lab.add_guest(memory=memory, movable=True)
    guest.run(["mkdir", "-p", HERE])
    for name in ("control", "stream"):
        guest.put(TOOLS / name, f"{HERE}/{name}")
    net.load(guest)
    net.bring_up(g1, guest)
    return guest


class Flow:
    """A transfer whose sender outlives the line to its guest."""

    def __init__(self, net, receiver):
        self.net = net
        self.receiver = receiver

    @property
    def bytes(self):
        """Bytes that have arrived."""
        lines = [line.split() for line in self.receiver.out.splitlines()]
        return max((int(words[1]) for words in lines if len(words) == 3), default=0)

    def go_on(self, seconds=20):
        """Wait until some more has arrived."""
        target = self.bytes + ENOUGH

        def arrived():
            assert self.receiver.poll() is None, f"the receiver ended: {self.receiver.err}"
            return self.bytes >= target

        until(arrived, seconds * self.net.slow, f"{ENOUGH} more bytes of the transfer")

    def go_on_by_a_lane(self, source, sink):
        """The same, and that the stream path carries it."""
        before = received_by_lanes(sink)
        until(
            lambda: received_by_lanes(sink) - before >= ENOUGH,
            20 * self.net.slow,
            f"a lane carries {ENOUGH} bytes of the transfer",
        )

    def go_on_by_channel(self, source, sink):
        """The same, and that the channel carries it, as packets."""
        self.net.wait_state(source, sink, "up")
        before = self.net.channel_bytes(source, sink)
        until(
            lambda: self.net.channel_bytes(source, sink) - before >= ENOUGH,
            20 * self.net.slow,
            f"the channel carries {ENOUGH} bytes of the transfer",
        )


def received_by_lanes(guest):
    """Bytes of connections that came to a guest by the stream path."""
    return int(guest.run(["cat", "/sys/module/vmloop_tcp/parameters/rx_bytes"]).out)


@contextmanager
def stream_path(*guests):
    """Connections of these guests get lanes during the block, and go on by TCP after it."""
    for guest in guests:
        guest.run("modprobe vmloop_tcp")
    yield
    for guest in guests:
        guest.run("rmmod vmloop_tcp", timeout=120)


@contextmanager
def flow(net, source, sink, begins=Flow.go_on_by_channel):
    """Every byte of it must have arrived at the end of the block."""
    with net.serving(sink, f"{HERE}/stream", "receive", PORT) as receiver:
        source.run(f"setsid -f {HERE}/stream send {sink.ip} {PORT} {RATE} >{HERE}/sent 2>&1 </dev/null")
        one = Flow(net, receiver)
        begins(one, source, sink)
        yield one
        source.run("pkill -TERM -x stream")
        result = receiver.wait(30 * net.slow)
        assert result.code == 0, result.err
    sent = source.run(["cat", f"{HERE}/sent"]).out
    assert json.loads(sent.splitlines()[-1])["bytes"] == json.loads(result.out.splitlines()[-1])["bytes"]


def wait_rise(net, guest, peer, begun):
    """Both ends of a channel are up, soon after the guest went on.

    The peer tells when: the lab may take longer to find its line to the guest.
    """
    net.wait_state(peer, guest, "up")
    took = net.lab.now() - begun
    assert took < LONGEST_RISE * net.slow, f"the channel came back after {took:.1f} s"
    guest.wait_booted()
    net.wait_state(guest, peer, "up")


def wait_gone(net, guest, peer, alone):
    """A guest knows nothing more of a peer, and holds nothing for it."""
    net.wait_state(guest, peer, "gone")
    until(lambda: held(guest) == alone, 10 * net.slow, f"{guest.name} holds {alone}")


def save(net, host, guest, *words):
    host.run([XL, "save", *words], timeout=300 * net.slow)
    until(lambda: not guest.running, 20 * net.slow, f"{guest.name} is saved")


def save_to_disk(net, host, guest):
    """To DISK_FILE. By a pipe: 9p cannot write from the pages of another domain, nor read to them."""
    pipe = f"{FILE}.pipe"
    host.run(
        f"mkfifo {pipe} && {{ cat {pipe} >{DISK_FILE} & }} && {XL} save {guest.name} {pipe} && wait $! && rm {pipe}",
        timeout=300 * net.slow,
    )
    until(lambda: not guest.running, 20 * net.slow, f"{guest.name} is saved")


def restore(net, host, file=FILE):
    """Returns when the guest began to run, at the latest."""
    host.run(f"cat {file} | {XL} restore /dev/stdin", timeout=300 * net.slow)
    begun = net.lab.now()
    host.run(["rm", file])
    return begun


@pytest.mark.main("a guest that is suspended must let go before it stands still")
def test_checkpoint(net, host, g1, fourth, alone):
    """`xl save -c`: the same domain goes on, with another channel."""
    domid, tag = fourth.domid, net.peers(fourth)["g1"].tag
    with_channel = held(g1)
    with flow(net, fourth, g1) as transfer:
        for _ in range(2):
            host.run([XL, "save", "-c", fourth.name, "/dev/null"], timeout=300 * net.slow)
            wait_rise(net, fourth, g1, net.lab.now())
            assert 0 < pause(fourth) < LONGEST_PAUSE * net.slow
            transfer.go_on_by_channel(fourth, g1)
    assert fourth.domid == domid
    assert net.peers(fourth)["g1"].tag != tag, "the channel outlived the checkpoint"
    assert held(g1) == with_channel
    assert held(fourth)["quarantined"] == 0
    fourth.kill()
    wait_gone(net, g1, fourth, alone)


def test_checkpoint_beside_a_peer_that_stands_still(net, host, g1, fourth):
    """It is not kept from being saved by a peer that does not let go."""
    g1.pause()
    try:
        host.run([XL, "save", "-c", fourth.name, "/dev/null"], timeout=300 * net.slow)
        assert pause(fourth) < 1.0 * net.slow
    finally:
        g1.unpause()
    net.bring_up(fourth, g1)
    assert held(fourth)["quarantined"] == 0


def test_save_and_restore(net, host, g1, movable, alone):
    """It comes back as another domain, and finds its peers by itself."""
    domid = movable.domid
    with flow(net, movable, g1) as transfer:
        save(net, host, movable, movable.name, FILE)
        wait_gone(net, g1, movable, alone)
        begun = restore(net, host)
        wait_rise(net, movable, g1, begun)
        assert 0 < pause(movable) < LONGEST_PAUSE * net.slow
        assert movable.domid != domid
        transfer.go_on_by_channel(movable, g1)
    assert held(movable)["quarantined"] == 0


def test_a_lane_after_a_restore(net, host, g1, movable, alone):
    """A connection that had a lane has one again, though its peer is another domain than the one that it began with."""
    with stream_path(g1, movable), flow(net, movable, g1, Flow.go_on_by_a_lane) as transfer:
        save(net, host, movable, movable.name, FILE)
        wait_gone(net, g1, movable, alone)
        wait_rise(net, movable, g1, restore(net, host))
        transfer.go_on_by_a_lane(movable, g1)


def test_programs_outlive_a_restore(net, lab, host, g1, alone):
    """Connections of nginx, redis, PostgreSQL and ssh go on when the guest of their servers is restored."""
    guest = movable_guest(net, lab, g1, 2 * MEMORY)
    with stream_path(g1, guest), running(g1, guest, net.slow, moves=True, scarce=True) as programs:
        programs.go_on()
        programs.go_on(by_lanes=True)
        save_to_disk(net, host, guest)
        wait_gone(net, g1, guest, alone)
        wait_rise(net, guest, g1, restore(net, host, DISK_FILE))
        programs.go_on()
        programs.go_on(by_lanes=True)
        programs.finish()
        for one in (g1, guest):
            assert one.run("cat /sys/module/vmloop_tcp/parameters/reset").out == "0\n"


def test_restore_without_an_agent(net, host, g1, movable, alone):
    """It uses the standard network until there is an agent."""
    with flow(net, movable, g1) as transfer:
        save(net, host, movable, movable.name, FILE)
        wait_gone(net, g1, movable, alone)
        net.kill_agent()
        restore(net, host)
        transfer.go_on()
        movable.wait_booted()
        assert not net.peers(movable), "it knows peers of an earlier life"
        assert held(movable)["channels"] == 0
        net.start_agent()
        transfer.go_on_by_channel(movable, g1)
