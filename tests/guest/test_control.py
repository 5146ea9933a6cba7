# SPDX-License-Identifier: GPL-2.0
"""A second control device: one agent at a time says who is here, whoever else can plug devices."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from vmlab import Guest, GuestFailed
from vmlab.process import Process
from vmlab.qemu import ROOT_PORTS

from tests.guest.net import Net, until

pytestmark = pytest.mark.kvm_only

READY = 1
"""State of a side that takes part (docs/protocol.md, section 2)."""

# The server of one ivshmem device, with a control region as the agent makes it (docs/protocol.md, sections 1 and 7;
# QEMU's docs/specs/ivshmem-spec). Answers each line of its input with what stands in the guest's side.
SERVER = """
import json, mmap, os, socket, struct, sys
memory = os.memfd_create("second")
os.ftruncate(memory, 1 << 20)
region = mmap.mmap(memory, 1 << 20)
struct.pack_into("<QHHIQQQIIQQQQ", region, 0, 0x706f6f6c6d760a01, 1, 2, 2, 1 << 20, 4096, 8192, 4096, 0,
                 512 << 10, 256 << 10, 256 << 10, 256 << 10)
struct.pack_into("<HHQIIQ", region, 4096 + 4, 1, 2, 0, (256 << 10) // 4 - 8, 1, 0)
struct.pack_into("<IIQ", region, 4096 + 64, 2, 256 << 10, 0)
struct.pack_into("<I", region, 4096, 1)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
listener.listen()
print("ready", flush=True)
qemu, _ = listener.accept()
def say(value, *fds):
    socket.send_fds(qemu, [struct.pack("<q", value)], fds)
say(0); say(1); say(-1, memory); say(0, os.eventfd(0)); say(1, os.eventfd(0))
for line in sys.stdin:
    state, = struct.unpack_from("<I", region, 8192)
    incarnation, = struct.unpack_from("<Q", region, 8192 + 24)
    print(line.strip(), json.dumps({"state": state, "incarnation": incarnation}), flush=True)
"""


def devices(guest: Guest) -> list[str]:
    return [one["name"] for one in guest.qmp("qom-list", {"path": "/machine/peripheral"})]


def unplug(net: Net, guest: Guest, device: str) -> None:
    """Have QEMU ask the guest for a device; returns when it is gone."""
    guest.qmp("device_del", {"id": device})
    until(lambda: device not in devices(guest), 20 * net.slow, f"{device} is unplugged")


def removed(guest: Guest, chardev: str) -> bool:
    """Whether QEMU has removed a character device, which is busy for a moment after its device is gone."""
    try:
        guest.qmp("chardev-remove", {"id": chardev})
    except GuestFailed as error:
        assert "is busy" in str(error), error
        return False
    return True


class Second:
    """A control device that the agent knows nothing of."""

    def __init__(self, server: Process) -> None:
        self._server = server
        self._numbers = count(1)

    @property
    def side(self) -> dict[str, Any]:
        """What stands in the guest's side of its region now."""
        number = next(self._numbers)
        self._server.write(f"look{number}\n")
        return dict(json.loads(self._server.wait_for(rf"^look{number} (\{{.*\}})$", 10)[1]))


@contextmanager
def second_control(net: Net, guest: Guest) -> Iterator[Second]:
    """Plugged for the block; the guest has refused it by then."""
    path = f"{guest.spec.directory}/second.sock"
    device = {"driver": "ivshmem-doorbell", "id": "second", "chardev": "second", "vectors": 1, "master": "off"}
    if guest.spec.machine == "q35":
        device["bus"] = f"rp{ROOT_PORTS}"  # the agent takes the first free one
    backend = {"type": "socket", "data": {"addr": {"type": "unix", "data": {"path": path}}, "server": False}}
    refused = "dmesg | grep -c 'a second control device is not used'"
    before = guest.run(refused, check=False).out
    net.host.run(["rm", "-f", path])
    with net.serving(net.host, "python3", "-c", SERVER, path) as server:
        guest.qmp("chardev-add", {"id": "second", "backend": backend})
        guest.qmp("device_add", device)
        try:
            until(lambda: guest.run(refused, check=False).out != before, 20 * net.slow, "the guest refuses it")
            yield Second(server)
        finally:
            unplug(net, guest, "second")
            until(lambda: removed(guest, "second"), 5 * net.slow, "its character device is removed")


def heard(net: Net, a: Guest, b: Guest) -> None:
    """The agent closes a channel, and makes a new one when it is asked."""
    net.command("close", a.name, b.name)
    until(lambda: not net.both_up(a, b), 10 * net.slow, "the channel is closed")
    net.bring_up(a, b)


@pytest.mark.main("two control devices fed one directory")
def test_second_control_device_is_refused(net, g1, g2):
    """The first one goes on to be heard; the guest writes nothing into the second."""
    known = net.status(g1), sorted(net.peers(g1))
    with second_control(net, g1) as second:
        heard(net, g1, g2)
        assert (net.status(g1), sorted(net.peers(g1))) == known
        assert second.side == {"state": 0, "incarnation": 0}
    heard(net, g1, g2)
    assert (net.status(g1), sorted(net.peers(g1))) == known


def test_second_control_device_is_used_once_the_first_is_gone(net, g1, g2):
    """It was refused, and nothing happens to it; channels stay; then the agent's next one is used."""
    net.kill_agent()
    with second_control(net, g1) as second:
        assert second.side == {"state": 0, "incarnation": 0}
        unplug(net, g1, "vmloop-ctl")
        until(lambda: second.side["state"] == READY, 10 * net.slow, "the guest speaks to the second one")
        assert second.side["incarnation"] != 0
        assert net.both_up(g1, g2)
    assert net.both_up(g1, g2)
    net.start_agent()
    until(
        lambda: {guest["name"] for guest in net.listing()["guests"] if guest["state"] == "ready"} >= set(net.base),
        15 * net.slow,
        "the new agent knows all guests",
    )
    heard(net, g1, g2)


def test_modules_go_while_a_second_one_waits(net, g1, g2):
    """Nobody tries to bind it to a driver that goes."""
    tried = "dmesg | grep -c 'control device cannot be used either'"
    before = g1.run(tried, check=False).out
    with second_control(net, g1) as second:
        net.unload(g1)
        assert second.side == {"state": 0, "incarnation": 0}
        assert g1.run(tried, check=False).out == before
