# SPDX-License-Identifier: GPL-2.0
"""Each kernel that the modules are for: they load, carry, go, and do so again, and the kernel says nothing.

A machine by itself boots the kernel, and the loopback transport joins two of its
namespaces (veth.py).
"""

import json

import pytest
from vmlab import kernels

from tests.guest.net import TOOLS, build_tools, until
from tests.guest.veth import LOOPBACK, NET, TOPOLOGY, UNLOAD, inside

PORT = "7000"
CPUS = 2
ROUNDS = 3


def kernel(series):
    """One kernel, and the lab that boots it."""
    return pytest.param(series, marks=pytest.mark.lab(kind="solo", kernel=series, cpus=CPUS), id=series)


def segmented(sender, receiver, *, size=1400, count=20):
    """A script that sends ``count`` datagrams as one, which the kernel is to divide (UDP_SEGMENT), and checks each."""
    return f"""
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def inside(namespace):
    with open("/run/netns/" + namespace) as file:
        assert libc.setns(file.fileno(), 0x40000000) == 0, os.strerror(ctypes.get_errno())
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver = inside({receiver!r})
receiver.bind(("10.9.0.2", 7001))
receiver.settimeout(10)
sender = inside({sender!r})
sender.setsockopt(socket.IPPROTO_UDP, 103, {size})
data = os.urandom({size * count})
sender.sendto(data, ("10.9.0.2", 7001))
assert b"".join(receiver.recv(65536) for _ in range({count})) == data
"""


def peers(host):
    return {one["name"]: one for one in json.loads(host.run([str(TOOLS / "control"), "peers"]).out)}


def carry(host):
    """Bytes with a pattern through a new channel, both ways, small and large; returns what the channel moved."""

    def is_up():
        host.run(inside("a", "ping", "-c", "1", "-W", "1", "-q", "10.9.0.2"), check=False)
        return all(one["state"] == "up" for one in peers(host).values())

    until(is_up, 20, "the channel is up")
    before = peers(host)
    with host.popen(inside("b", TOOLS / "pattern", "serve", PORT)) as server:
        server.wait_for("ready")
        host.run(inside("a", TOOLS / "pattern", "tcp", "10.9.0.2", PORT, 1, 1448, 1449, 65536, 1000000))
        host.run(inside("a", TOOLS / "pattern", "udp", "10.9.0.2", PORT, 1, 1472, 1473, 60000))
        host.run(inside("a", TOOLS / "pattern", "short", "10.9.0.2", PORT, 20))
    host.run(["python3", "-c", segmented("a", "b")])
    after = peers(host)
    return {
        name: {key: value - before[name]["stats"][key] for key, value in after[name]["stats"].items()} for name in after
    }


@pytest.mark.parametrize("series", [kernel(series) for series in kernels.SERIES if series not in kernels.BUILT])
def test_kernel(lab, host, series):
    build_tools()
    host.run(TOPOLOGY)
    try:
        for _ in range(ROUNDS):
            host.run(f"set -e{NET}{LOOPBACK}")
            assert "/updates/" in host.run("modinfo -n vmloop").out
            for moved in carry(host).values():
                # Not all of it: on a busy host a reader comes late, and then some takes the standard network.
                assert moved["tx_bytes"] > 500_000 and moved["rx_bytes"] > 500_000
                assert not any(value for key, value in moved.items() if key.startswith("drop"))
            host.run(UNLOAD)
    finally:
        host.run(f"{UNLOAD}; ip netns del a; ip netns del b", check=False)
