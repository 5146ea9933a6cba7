# SPDX-License-Identifier: GPL-2.0
"""Stages of the guest tests as data: which labs there are, and which tests each is for.

A stage is one lab that all its tests share. Its name says what guests it has:
KERNEL-MACHINE, as in `6.1-pc`, or KERNEL-MACHINE-Ncpu, as in `6.12-q35-4cpu`;
without a number the lab decides (two). A machine of Xen's makes the host a Xen host.

`make test` boots the stages of MAIN, for tests with the marks `core` and `main`;
`make test-all` boots those of ALL. A new stage is one more line there.
"""

import re
from dataclasses import dataclass
from typing import Any

KERNEL_MEMORY = {"debug": (8192, 2304), "kcsan": (8192, 2304)}
"""MiB of a KVM host and of each of its guests, where a kernel wants more than others."""
HOST_MEMORY = 6144
GUEST_MEMORY = 1536
"""MiB; files of 1 GiB are kept in guests' memory."""
SOLO_MEMORY = 6144
"""MiB of a machine by itself with one of these kernels."""
SOLO_CPUS = 3
"""As many as an emulated KVM host has, on which such tests run otherwise."""


@dataclass(frozen=True)
class Stage:
    """One lab of the guest tests."""

    name: str
    why: str
    files: tuple[str, ...] = ()
    """The files of tests/guest/ that run there; all where there is none."""


MAIN = (
    Stage("6.1-pc", "the kernel and the machine of most guests, on a KVM host"),
    Stage("6.1-pv-1cpu", "the same on a Xen host, with guests of one CPU: with two the emulated host fell silent once"),
)
"""What `make test` boots, in this order."""

ON_CPUS = ("test_transitions.py", "test_hostile.py", "test_traffic.py")
"""Where the number of CPUs shows most."""

ON_LOOPBACK = ("test_lanes.py", "test_spread.py", "test_stream.py", "test_threads.py", "test_windows.py")
"""Of tests with the mark `loopback`: what several CPUs do there at the same time."""

ALL = (
    *MAIN,
    Stage("6.1-pv", "two CPUs in each guest of a Xen host", ON_CPUS),
    Stage("6.12-q35", "Debian 12's newer kernel; PCI Express, whose slots are hotplugged in another way"),
    Stage("trixie-q35", "Debian 13's kernel"),
    Stage("newest-q35", "the newest kernel that Debian makes for a stable release"),
    Stage("6.1-pc-1cpu", "one context at a time: what the others interrupt is whole", ON_CPUS),
    Stage("6.1-pc-4cpu", "more contexts at the same time than with two CPUs", ON_CPUS),
    Stage("6.12-q35-4cpu", "the same on Debian 12's newer kernel", ON_CPUS),
    Stage("newest-q35-4cpu", "the same on the newest kernel", ON_CPUS),
    Stage("debug-pc", "KASAN, lockdep and kmemleak"),
    Stage("kcsan-pc", "races between what several CPUs do to the same word", (*ON_CPUS, *ON_LOOPBACK)),
)
"""What `make test-all` boots, in this order."""


def names(wanted: str | None, file: str) -> list[str]:
    """The stages on which the tests of a file run, if --stages says so."""
    if wanted == "all":
        return [stage.name for stage in ALL if not stage.files or file in stage.files]
    return wanted.split(",") if wanted else [stage.name for stage in MAIN]


def parts(name: str) -> tuple[str, str, int]:
    """Kernel, machine and CPUs of a stage; 0 CPUs where its name leaves them to the lab."""
    found = re.fullmatch(r"(.+?)-([a-z][a-z0-9]*)(?:-(\d+)cpu)?", name)
    if not found:
        raise ValueError(f"no stage {name!r}: it is KERNEL-MACHINE or KERNEL-MACHINE-Ncpu, as in 6.12-q35-4cpu")
    return found[1], found[2], int(found[3] or 0)


def kind(name: str) -> str:
    """The kind of host of a stage: the one that has such machines."""
    # Not above: who only wants the tables need not have what vmlab needs.
    from vmlab.kvm import Kvm
    from vmlab.xen import Xen

    machine = parts(name)[1]
    for one in (Kvm, Xen):
        if machine in one.machines:
            return one.name
    raise ValueError(f"no stage {name!r}: no host has machines {machine!r}")


def is_of_loopback(name: str) -> bool:
    """Whether a stage's kernel is one that we build, for what it checks: tests of one machine run in such a one."""
    return parts(name)[0] in KERNEL_MEMORY


def options(name: str, loopback: bool = False) -> dict[str, Any]:
    """What Lab.up() is told for a stage; for tests whose two ends are in one machine, `loopback`."""
    kernel, machine, cpus = parts(name)
    if loopback and is_of_loopback(name):
        # Its host has no such kernel, and the machine of those tests is the host elsewhere.
        return {"kind": "solo", "kernel": kernel, "cpus": cpus or SOLO_CPUS, "memory": SOLO_MEMORY}
    found: dict[str, Any] = {"guests": 3, "kernel": kernel, "machine": machine}
    if cpus:
        found["guest_cpus"] = cpus
    if kind(name) == "xen":
        return found | {"kind": "xen", "memory": 10240, "guest_memory": GUEST_MEMORY}
    memory, guest_memory = KERNEL_MEMORY.get(kernel, (HOST_MEMORY, GUEST_MEMORY))
    # shm writes to regions that the modules use.
    return found | {"memory": memory, "guest_memory": guest_memory, "append": "iomem=relaxed"}
