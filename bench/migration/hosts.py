# SPDX-License-Identifier: GPL-2.0
"""What differs between KVM hosts and Xen hosts for a guest that moves.

One object of each class, without state. All else in bench/migration names no
hypervisor.
"""

import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from vmlab import Guest, Host, Lab
from vmlab.errors import VmlabError
from vmlab.xen import ARRIVED, XL

from ..path.hosts import KvmHost, XenHost

LONGEST = 600.0
"""Seconds that a migration may take."""


class MovingHost(ABC):
    """A kind of host, as migrations see it."""

    name: ClassVar[str]
    title: ClassVar[str]
    """For people, two of them."""
    standard_network: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]
    """What guests load."""
    agent_options: ClassVar[str]
    """How the agent finds who comes."""
    lab: ClassVar[dict[str, Any]]
    """What Lab.up() is to make."""
    patience: ClassVar[float]
    """By how much things may take longer than on KVM hosts."""
    requests: ClassVar[int]
    """How many a second a test's load may make at most; 0: as many as are answered."""
    rest: ClassVar[int]
    """Milliseconds that a test's connections rest after each record: a guest's memory must change no faster than its
    host can send it, and a domain's host has one emulated CPU for that, and for the guests' network."""
    megabytes: ClassVar[float]
    """Checked bytes of the load a second, each way."""
    megabits: ClassVar[int]
    """Of iperf3, beside those."""
    halts: ClassVar[str]
    """What the hypervisor does once vmloop is out of the way."""
    has_hook: ClassVar[bool]
    """Whether the agent is told first (`vmloop prepare`), and vmloop gone before the hypervisor begins."""

    @abstractmethod
    def version(self, lab: Lab) -> str:
        """The hypervisor and its version."""

    def begin(self, guest: Guest, uri: str) -> None:
        """Have a guest's host migrate it there; what needs a hook has been prepared."""
        guest.lab.kind.begin_migration(guest, uri, LONGEST)

    @abstractmethod
    def left_behind(self, guest: Guest) -> list[str]:
        """What vmloop still has in a guest that would be in the way."""

    @abstractmethod
    def at_rest(self, channels: int) -> int:
        """How many names left_behind() has for a guest with so many channels."""

    @abstractmethod
    def domains(self, host: Host) -> int:
        """How many guests the hypervisor of a host runs."""

    @abstractmethod
    def resumed(self, guest: Guest) -> float:
        """When a guest last went on after a migration, in seconds since the epoch by its host's clock."""

    @abstractmethod
    def own_pause(self, guest: Guest) -> float:
        """For how many seconds vmloop kept a guest standing still in its last migration."""


class KvmHosts(MovingHost):
    """QEMU, which lets no machine go that has a device of vmloop's: the agent takes them out before."""

    name = "kvm"
    title = "two KVM hosts"
    standard_network = KvmHost.standard_network
    modules = (KvmHost.transport, "vmloop_net")
    # The QEMU of whoever arrives is found by itself.
    agent_options = "--watch '/run/vmlab/*/qmp.sock'"
    lab: ClassVar[dict[str, Any]] = {"hosts": 2, "guests": 2, "memory": 3072, "guest_memory": 512}
    patience = 1.0
    requests = 0
    rest = 0
    megabytes = 2.0
    megabits = 10
    halts = "QEMU begins"
    has_hook = True

    def version(self, lab: Lab) -> str:
        return lab.host.run("qemu-system-x86_64 --version | head -n 1").out.strip()

    def left_behind(self, guest: Guest) -> list[str]:
        devices = guest.qmp("qom-list", {"path": "/machine/peripheral"})
        chardevs = guest.qmp("query-chardev")
        names = [str(one["name"]) for one in devices] + [str(one["label"]) for one in chardevs]
        return [name for name in names if name.startswith("vmloop")]

    def at_rest(self, channels: int) -> int:
        # The control device and one for each channel, each with a character device.
        return 2 + 2 * channels

    def domains(self, host: Host) -> int:
        return int(host.run("pgrep -c qemu-system", check=False).out)

    def resumed(self, guest: Guest) -> float:
        # What it said on the agent's QMP socket.
        log = guest.lab.directory / guest.name / "qmp.log"
        pattern = r'"timestamp": \{"seconds": (\d+), "microseconds": (\d+)\}, "event": "RESUME"'
        found = re.findall(pattern, log.read_text(errors="replace"))
        if not found:
            raise VmlabError(f"{guest.name} has not arrived anywhere: see {log}")
        return int(found[-1][0]) + int(found[-1][1]) / 1e6

    def own_pause(self, guest: Guest) -> float:
        return 0.0  # all was gone before QEMU halted it


class XenHosts(MovingHost):
    """Xen: xl is all there is. The guest lets go by itself while it is suspended."""

    name = "xen"
    title = "two Xen hosts"
    standard_network = XenHost.standard_network
    modules = (XenHost.transport, "vmloop_net")
    agent_options = "--hypervisor xen"
    lab: ClassVar[dict[str, Any]] = {
        "kind": "xen",
        "hosts": 2,
        "guests": 2,
        "machine": "pvh",
        "memory": 3072,
        "guest_memory": 256,
    }
    patience = 3.0
    requests = 100
    rest = 50
    megabytes = 0.25
    megabits = 1
    halts = "halted by Xen"
    has_hook = False

    HELD = ("granted", "mapped", "channels", "quarantined")
    """Counters of the module that are 0 without channels."""

    def version(self, lab: Lab) -> str:
        return XenHost().version(lab)

    def _parameter(self, guest: Guest, name: str) -> int:
        return int(guest.run(["cat", f"/sys/module/vmloop_xen/parameters/{name}"]).out)

    def left_behind(self, guest: Guest) -> list[str]:
        return [name for name in self.HELD if self._parameter(guest, name)]

    def at_rest(self, channels: int) -> int:
        # Side 0 grants, side 1 maps.
        return 2 if channels else 0

    def domains(self, host: Host) -> int:
        # A header, and dom0.
        return len(host.run([XL, "list"]).out.splitlines()) - 2

    def resumed(self, guest: Guest) -> float:
        # The last thing that xl says before it has the domain go on. What it says behind that can come seconds
        # late: the domain runs already, and wants the CPU as well. Of a PV domain nothing else is said.
        log = guest.lab.directory / guest.name / guest.own_file("xl.log")
        found = re.search(
            rf"^(\d+\.\d+) (?:migration target: Got permission|{ARRIVED})",
            log.read_text(errors="replace"),
            re.MULTILINE,
        )
        if not found:
            raise VmlabError(f"{guest.name} has not arrived on {guest.host.name}: see {log}")
        return float(found[1])

    def own_pause(self, guest: Guest) -> float:
        return self._parameter(guest, "pause") / 1e6


HOSTS: dict[str, MovingHost] = {host.name: host for host in (KvmHosts(), XenHosts())}
