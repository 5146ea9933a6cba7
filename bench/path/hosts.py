# SPDX-License-Identifier: GPL-2.0
"""What differs between a KVM host and a Xen host for a measurement.

One object of each class, without state. All else in bench/ names no
hypervisor.
"""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

from vmlab import Guest, Lab
from vmlab import xen as lab_xen
from vmlab.errors import VmlabError

from .parse import domain_seconds, proc_stat


@dataclass(frozen=True)
class Lengths:
    """How much each slice measures: packets, and seconds of the guests' time."""

    ping: int
    request_response: int
    tcp: int
    udp: int

    def times(self, factor: int) -> "Lengths":
        """The same, so many times as long."""
        return Lengths(self.ping * factor, self.request_response * factor, self.tcp * factor, self.udp * factor)


@dataclass(frozen=True)
class Spans:
    """Seconds of the timeline without, with, and again without the modules."""

    before: float
    during: float
    after: float


class Processors(Protocol):
    """The clock of a whole host's CPU time."""

    def read(self) -> float:
        """CPU-seconds that the host has used since some moment in the past."""


class StageHost(ABC):
    """A kind of host, as measurements see it."""

    name: ClassVar[str]
    title: ClassVar[str]
    """For people, in a sentence."""
    transport: ClassVar[str]
    """The guests' module that makes channels here."""
    hypervisor: ClassVar[str]
    """The agent's word for it."""
    standard_network: ClassVar[str]
    cpu_time: ClassVar[str]
    """Whose CPU time counts, and who counted it."""
    virtual_time: ClassVar[bool]
    """Whether the host's clocks go by the instructions that it executed."""
    patience: ClassVar[float]
    """By how much things take longer on the outside than inside."""
    lengths: ClassVar[Lengths]
    spans: ClassVar[Spans]

    @abstractmethod
    def version(self, lab: Lab) -> str:
        """The hypervisor and its version."""

    @abstractmethod
    def attach(self, guest: Guest) -> list[str]:
        """Arguments of `vmloop --host` that tell the agent of a guest; none where it finds guests itself."""

    @abstractmethod
    def processors(self, lab: Lab) -> Processors:
        """The clock of the host's CPU time."""

    @abstractmethod
    def now(self, lab: Lab) -> float:
        """Seconds since some moment in the past, as the lab's machines count them."""


class KvmHost(StageHost):
    """A KVM host: virtio-net against ivshmem, in real time."""

    name = "kvm"
    title = "a KVM host"
    transport = "vmloop_ivshmem"
    hypervisor = "qemu"
    standard_network = "virtio-net, vhost-net, bridge"
    cpu_time = "the host's own /proc/stat: guests, vhost, bridge and QEMU; guest time is counted once"
    virtual_time = False
    patience = 1.0
    lengths = Lengths(ping=500, request_response=2, tcp=3, udp=2)
    spans = Spans(6, 10, 6)

    def version(self, lab: Lab) -> str:
        return f"KVM of Linux {lab.state['host_kernel']}"

    def attach(self, guest: Guest) -> list[str]:
        return ["attach", "--qmp", guest.qmp_socket, "--name", guest.name]

    def processors(self, lab: Lab) -> Processors:
        return ProcStat(lab)

    def now(self, lab: Lab) -> float:
        return lab.now()


class ProcStat:
    """CPU time of a Linux host."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def read(self) -> float:
        """CPU-seconds that were used, by its /proc/stat."""
        return proc_stat(self.lab.host.run(["cat", "/proc/stat"]).out)


class XenHost(StageHost):
    """A Xen host: netfront against grants and event channels, in virtual time."""

    name = "xen"
    title = "a Xen host"
    transport = "vmloop_xen"
    hypervisor = "xen"
    standard_network = "netfront, netback, bridge"
    cpu_time = "what Xen charges to its domains: both guests, and dom0 with netback and bridge; in nanoseconds"
    virtual_time = True
    patience = 10.0
    # Virtual time is steady: short slices tell as much as long ones, and each
    # of their seconds takes longer outside.
    lengths = Lengths(ping=500, request_response=1, tcp=2, udp=1)
    spans = Spans(3, 5, 3)

    def version(self, lab: Lab) -> str:
        found = re.search(r"^xen_version\s*: (\S+)", lab.host.run([f"{lab_xen.TOOLS}/xl", "info"]).out, re.MULTILINE)
        return f"Xen {found[1]}" if found else "Xen, version unknown"

    def attach(self, guest: Guest) -> list[str]:
        return []

    def processors(self, lab: Lab) -> Processors:
        return Domains(lab)

    def now(self, lab: Lab) -> float:
        found = lab.host.run(["cat", "/proc/uptime"], timeout=60 * self.patience)
        return float(found.out.split()[0])


class Domains:
    """CPU time of all domains of a Xen host.

    `xl list` rounds to tenths of a second, so Xen is asked for nanoseconds by
    the Python binding that comes with its tools. One process in dom0 answers
    again and again: starting it would cost more than what is measured.
    """

    # Debian's Python, which the binding was built for.
    PROGRAM = f"""
import sys
sys.path.insert(0, "/usr/lib/xen-{lab_xen.VERSION}/lib/python")
from xen.lowlevel.xc import xc
hypervisor = xc()
for question in iter(sys.stdin.readline, ""):
    times = [f"{{one['domid']}}:{{one['cpu_time']}}" for one in hypervisor.domain_getinfo()]
    print("domains", question.strip(), *times, flush=True)
"""

    def __init__(self, lab: Lab) -> None:
        self.process = lab.host.popen(["/usr/bin/python3", "-c", self.PROGRAM])
        self.questions = 0

    def read(self) -> float:
        """CPU-seconds that were charged to the domains that there are."""
        self.questions += 1
        self.process.write(f"{self.questions}\n")
        # Up to the end of the line: it may come in pieces.
        answer = self.process.wait_for(rf"^domains {self.questions} (.*)\n", 60 * XenHost.patience)
        return sum(domain_seconds(answer[1]).values())


HOSTS: dict[str, StageHost] = {host.name: host for host in (KvmHost(), XenHost())}


def find_host(name: str) -> StageHost:
    """The kind of host called ``name``. Raises VmlabError when there is none."""
    if name not in HOSTS:
        raise VmlabError(f"no host of kind {name!r}: choose {' or '.join(HOSTS)}")
    return HOSTS[name]
