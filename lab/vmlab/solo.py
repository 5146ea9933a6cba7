# SPDX-License-Identifier: GPL-2.0
"""A machine by itself: what is tried runs in the outer machine, without a hypervisor in between.

It boots in seconds, with any of the lab's kernels, and its CPUs run side by
side on those of the outside. Core and packet path are tried in it by the
loopback transport.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from . import accel, kernels
from .errors import VmlabError
from .kinds import HostKind, Outer
from .qemu import TCG_CPU_CX16, linux, outer_command, smp

if TYPE_CHECKING:
    from .machine import Guest

CPUS = 2


class Solo(HostKind):
    """One machine, and no guests."""

    name = "solo"
    machines = ("pc",)
    boot_seconds = 90.0
    memory = 2048
    has_guests = False

    def check_guests(self, guests: int, cpus: int) -> None:
        if guests:
            self._refuse()
        if cpus < 0:
            raise VmlabError("a machine has one CPU or more")

    def check_hosts(self, hosts: int, virtual_time: bool) -> None:
        if hosts != 1:
            raise VmlabError("a solo machine is the only one of its lab")
        super().check_hosts(hosts, virtual_time)

    def choose_accelerator(self, wanted: str, virtual_time: bool) -> str:
        if virtual_time:
            raise VmlabError("virtual time is for the Xen host")
        return accel.choose(wanted)

    def outer_command(self, outer: Outer) -> list[str]:
        # No guest is run in it, so that what TCG gets wrong about that takes no CPU away.
        cpu, append = ["-accel", "kvm", "-cpu", "host"], outer.append
        if outer.accelerator == "tcg":
            # Some programs are built for CPUs with CMPXCHG16B (Debian's haproxy); the kernel does without.
            cpu, append = ["-accel", "tcg,thread=multi", "-cpu", TCG_CPU_CX16], f"clearcpuid=cx16 {append}"
        boot = linux(outer, kernels.build_initramfs(outer.kernel), {"kind": self.name}, append)
        return outer_command(outer, [*cpu, "-smp", smp(outer.cpus or CPUS)], boot)

    def _refuse(self) -> NoReturn:
        raise VmlabError("a solo machine has no guests: './vmlab up kvm' and './vmlab up xen' boot hosts that have")

    def start_script(self, guest: "Guest", kernel: kernels.Kernel, modules: Path, incoming: bool = False) -> str:
        self._refuse()

    def running(self, guest: "Guest") -> bool:
        return False

    def kill_command(self, guest: "Guest") -> str:
        self._refuse()

    def pause(self, guest: "Guest") -> None:
        self._refuse()

    def unpause(self, guest: "Guest") -> None:
        self._refuse()

    def stop(self, guest: "Guest") -> None:
        self._refuse()

    def attach(self, guest: "Guest") -> int:
        self._refuse()

    def wait_incoming(self, there: "Guest") -> None:
        self._refuse()

    def begin_migration(self, guest: "Guest", uri: str, seconds: float) -> None:
        self._refuse()

    def wait_migrated(self, here: "Guest", there: "Guest", seconds: float) -> float | None:
        self._refuse()
