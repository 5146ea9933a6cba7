# SPDX-License-Identifier: GPL-2.0
"""One machine with real network cards that talk to each other, and the loopback transport between two of them.

    namespace a                        namespace b
    eth0 10.9.0.1 ---- QEMU's hub ---- eth1 10.9.0.2     (eth2 and eth3 are on the hub, too)
         `------- vmloop_loopback ------'

The machine is by itself (kind="solo"). The cards are virtio ones, plugged into it, so that what a driver, a
bond or a pulled cable does is what it does in a guest.
"""

import asyncio
import json
import re
import shlex
import socket
import subprocess
from typing import Any

from vmlab import Lab, paths
from vmlab.process import Result
from vmlab.qmp import talk

from tests.guest.net import TOOLS, until

CARDS = 4
MACS = [f"52:54:00:aa:00:{n:02x}" for n in range(CARDS)]
IPS = ("10.9.0.1", "10.9.0.2")


class Hub:
    """The machine. Cards stay from test to test; set_up() makes all else anew."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.host = lab.host
        self.modules = paths.OUT / "modules" / self.host.run(["uname", "-r"]).out.strip()
        self.host.run("modprobe -a virtio_net veth dummy bonding")
        self.clean(wait=False)
        for n, mac in enumerate(MACS) if not self.cards() else ():
            self.qmp("netdev_add", type="hubport", id=f"hub{n}", hubid=1)
            self.qmp("device_add", driver="virtio-net-pci", id=f"nic{n}", netdev=f"hub{n}", mac=mac, romfile="")
        until(lambda: len(self.cards()) == CARDS, 20, "all cards are there")

    def qmp(self, command: str, **arguments: Any) -> Any:
        """A command to the QEMU that the machine runs in."""
        with socket.socket(socket.AF_UNIX) as qemu:
            qemu.connect(str(self.lab.run_dir / self.host.name / "qmp.sock"))
            return asyncio.run(talk(self.host.name, qemu, command, arguments))

    def cards(self) -> dict[str, str]:
        """Names of the cards in the first namespace, by their addresses."""
        found = json.loads(self.host.run("ip -j link").out)
        return {one["address"]: one["ifname"] for one in found if one["address"] in MACS}

    def run(self, where: str, command: str, check: bool = True) -> Result:
        """Run a shell command in a namespace."""
        return self.host.run(f"ip netns exec {where} sh -c {shlex.quote(command)}", check=check)

    def load(self, module: str, parameters: str = "") -> None:
        """Load one of our modules."""
        self.host.run(f"insmod {self.modules}/{module}.ko {parameters}")

    def clean(self, wait: bool = True) -> None:
        """Nothing of ours is loaded, and all cards are in the first namespace, down."""
        self.host.run("for m in vmloop_loopback vmloop_net vmloop; do ! [ -e /sys/module/$m ] || rmmod $m; done")
        self.host.run("for n in a b; do ip netns del $n; done", check=False)
        if wait:
            until(lambda: len(self.cards()) == CARDS, 20, "all cards are back")

    def set_up(self, before: str = "") -> None:
        """The drawing above; there is a channel. ``before`` runs in namespace a before our modules are loaded."""
        self.clean()
        names = self.cards()
        for n, (where, ip) in enumerate(zip("ab", IPS, strict=True)):
            self.host.run(
                f"ip netns add {where} && ip link set {names[MACS[n]]} netns {where} name eth{n} && "
                f"ip -n {where} link set lo up && ip -n {where} link set eth{n} up && "
                f"ip -n {where} addr add {ip}/24 dev eth{n}"
            )
        if before:
            self.run("a", before)
        self.load("vmloop")
        self.load("vmloop_net")
        self.load("vmloop_loopback", f"interfaces={MACS[0]},{MACS[1]}")
        if not before:
            self.bring_up()

    def peers(self) -> dict[str, dict[str, Any]]:
        """What the modules say: loopback0 is who a reaches, loopback1 who b does."""
        found = json.loads(self.host.run([str(TOOLS / "control"), "peers"]).out)
        return {one["name"]: one for one in found}

    def plug(self, card: int, up: bool = True) -> None:
        """Plug a card's cable, or pull it."""
        self.qmp("set_link", name=f"nic{card}", up=up)

    def count(self, name: str = "tx_frames", peer: str = "loopback0") -> int:
        """One counter."""
        return int(self.peers()[peer]["stats"][name])

    def ping(self, count: int = 20, where: str = "a", ip: str = IPS[1]) -> int:
        """Send so many; how many were answered."""
        found = self.run(where, f"ping -q -c {count} -i 0.02 -W 2 {ip}", check=False)
        answered = re.search(r"(\d+) received", found.out)
        return int(answered[1]) if answered else 0

    def bring_up(self) -> None:
        """Send until there is a channel, and it carries what is sent."""

        def is_up() -> bool:
            before = self.count()
            self.ping(1)
            return all(one["state"] == "up" for one in self.peers().values()) and self.count() > before

        until(is_up, 20, "the loopback channel")


def build() -> None:
    """Compile what the machine runs."""
    subprocess.run(["make", "-s", "-C", paths.REPO / "tests/guest/tools"], check=True)
