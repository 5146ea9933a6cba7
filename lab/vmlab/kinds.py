# SPDX-License-Identifier: GPL-2.0
"""Kinds of host: what differs between a host that runs KVM and one that runs Xen.

A lab has one kind. The rest of the lab asks it for command lines and for what
to do with a guest; how machines are talked to is the same for all.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from . import kernels
from .emulator import Emulator
from .errors import VmlabError
from .qemu import FIRST_HOST, GuestSpec

if TYPE_CHECKING:
    from .machine import Guest

GUEST_CPUS = 2
"""What one CPU never shows, such as two contexts of a driver at the same time, is most of what goes wrong."""


@dataclass(frozen=True)
class Outer:
    """What an outer machine is made from. Sizes in MiB."""

    lab: str
    kernel: kernels.Kernel
    modules: Path
    lab_dir: Path
    run_dir: Path
    memory: int
    accelerator: str
    virtual_time: bool
    machine: str
    """Guests' machine, as the host may have to suit it."""
    host: str = FIRST_HOST
    lan: int = 0
    """Its number among several hosts; 0 if it is alone."""
    cpus: int = 0
    """0 stands for what the kind of host needs."""
    append: str = ""
    """More for its kernel's command line, where it is what is tried."""
    emulator: Emulator = field(default_factory=Emulator)
    init: str = ""
    """Process 1 of a KVM host: ``systemd``, or the lab's agent if empty."""


class HostKind(ABC):
    """One kind of host. There is one object of each class, without state."""

    name: ClassVar[str]
    machines: ClassVar[tuple[str, ...]]
    """Guests' machines, the default first."""
    guest_console: ClassVar[str] = ""
    """Device of a guest's console, below /dev."""
    boot_seconds: ClassVar[float]
    """How long the outer machine's boot may take, on a busy outside too."""
    memory: ClassVar[int] = 4096
    """MiB of an outer machine, if nothing else is said."""
    has_guests: ClassVar[bool] = True
    """Where there can be none, the outer machine is what is tried, with the kernel and the modules of guests."""

    def check_machine(self, machine: str) -> str:
        """Return ``machine`` if guests can be one; raise VmlabError if not."""
        if machine not in self.machines:
            raise VmlabError(f"no machine {machine!r} on a {self.name} host: choose one of {', '.join(self.machines)}")
        return machine

    def guest_append(self, machine: str, made_for: str) -> str:
        """What such a guest's kernel must be told on a host that suits guests with machine ``made_for``."""
        return ""

    def needs_svm(self, machine: str) -> bool:
        """Whether such guests run by the host's SVM, and under Xen."""
        return False

    def guest_cpus(self, virtual_time: bool, hosts: int) -> int:
        """How many CPUs a guest of a lab with so many hosts has, if nothing else is said."""
        return GUEST_CPUS

    def check_guests(self, guests: int, cpus: int) -> None:
        """Raise VmlabError unless such a host can have so many guests, and be given a number of CPUs (0: it is not)."""
        if cpus:
            raise VmlabError(f"a {self.name} host has the CPUs that it needs: only a solo machine is given a number")

    def check_hosts(self, hosts: int, virtual_time: bool) -> None:
        """Raise VmlabError unless a lab of this kind can have so many hosts."""
        if hosts not in (1, 2):
            raise VmlabError("a lab has one host or two")
        if hosts > 1 and virtual_time:
            raise VmlabError("virtual time is for one host: two have no clock in common")

    @abstractmethod
    def choose_accelerator(self, wanted: str, virtual_time: bool) -> str:
        """The outer machine's accelerator, ``kvm`` or ``tcg``, for --accel ``wanted``."""

    @abstractmethod
    def outer_command(self, outer: Outer) -> list[str]:
        """The command line of the outer machine's QEMU."""

    @abstractmethod
    def start_script(self, guest: "Guest", kernel: kernels.Kernel, modules: Path, incoming: bool = False) -> str:
        """A shell script that starts a guest inside the host, or has it wait for one that comes.

        It may put files into the guest's directory of the lab. It ends with
        status 0 when the guest's agent can be waited for, and writes how the
        guest ended into the file ``guest.status_file``, whenever that is.
        """

    @abstractmethod
    def running(self, guest: "Guest") -> bool:
        """Whether the hypervisor runs the guest."""

    @abstractmethod
    def kill_command(self, guest: "Guest") -> str:
        """A command of the host's shell that ends the guest at once; it may fail when there is none."""

    @abstractmethod
    def pause(self, guest: "Guest") -> None:
        """Have the guest's CPUs stand still."""

    @abstractmethod
    def unpause(self, guest: "Guest") -> None:
        """Have them go on."""

    @abstractmethod
    def stop(self, guest: "Guest") -> None:
        """Have the hypervisor end the guest without asking it, in good order."""

    @abstractmethod
    def attach(self, guest: "Guest") -> int:
        """Tie this process's terminal to the guest's console; returns a status for exit."""

    @abstractmethod
    def wait_incoming(self, there: "Guest") -> None:
        """Wait until what was started with ``incoming`` waits for a guest to come."""

    @abstractmethod
    def begin_migration(self, guest: "Guest", uri: str, seconds: float) -> None:
        """Have a guest's host migrate it to ``tcp:ADDRESS:PORT``, where its other self waits.

        May return before that is over. Raises GuestFailed when it fails or takes longer than ``seconds``.
        """

    @abstractmethod
    def wait_migrated(self, here: "Guest", there: "Guest", seconds: float) -> float | None:
        """Wait until a migration that has begun is over; for how many seconds the machine stood still, if it is said.

        Raises GuestFailed when it failed or takes longer than ``seconds``: the guest is still here then.
        """

    def blame(self, line: str, domains: dict[int, str]) -> str:
        """Which machine a complaint on the host's console is about."""
        return "host"


def find_kind(name: str) -> HostKind:
    """The kind called ``name``. Raises VmlabError when there is none."""
    from .kvm import Kvm
    from .solo import Solo
    from .xen import Xen

    for kind in (Kvm(), Xen(), Solo()):
        if kind.name == name:
            return kind
    raise VmlabError(f"no host of kind {name!r}: choose kvm, xen or solo")


def bridge_port(spec: GuestSpec) -> str:
    """Shell commands that put a guest's network interface in the host into its bridge."""
    script = f"""\
echo 1 >/proc/sys/net/ipv6/conf/{spec.tap}/disable_ipv6
ip link set {spec.tap} master {spec.bridge} mtu {spec.mtu} up || exit
"""
    if spec.vlan is not None:
        script += f"""\
bridge vlan del dev {spec.tap} vid 1 && bridge vlan add dev {spec.tap} vid {spec.vlan} pvid untagged || exit
"""
    return script
