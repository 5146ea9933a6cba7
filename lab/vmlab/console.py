# SPDX-License-Identifier: GPL-2.0
"""The console watch: what no machine may print while a test runs.

Every message that a kernel's or Xen's own checks print is found here, on the
host's console and on each guest's, and belongs to the test during which it appeared.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DETECTORS: dict[str, str] = {
    "panic": r"Kernel panic - not syncing",
    "oops": r"\bOops: |general protection fault|unable to handle (kernel|page fault)|double fault:",
    "bug": r"\bBUG: |kernel BUG at |\bBUG at ",
    "warning": r"\bWARNING: ",
    "kasan": r"\bKASAN: ",
    "kfence": r"BUG: KFENCE: ",
    "ubsan": r"\bUBSAN: ",
    "lockdep": r"possible (circular|recursive|irq lock inversion)|inconsistent lock state|"
    r"possible (deadlock|invalid wait context)|held lock freed|bad unlock balance|INVALID wait context|"
    r"lock held when returning to user space|suspicious RCU usage|DEBUG_LOCKS_WARN_ON",
    "atomic-sleep": r"sleeping function called from invalid context|scheduling while atomic",
    "rcu-stall": r"rcu: INFO: \w+ (self-)?detected (expedited )?stalls?|rcu_\w+ kthread (starved|timer wakeup)",
    "soft-lockup": r"soft lockup",
    "hard-lockup": r"hard LOCKUP",
    "hung-task": r"blocked for more than \d+ seconds",
    "kmemleak": r"kmemleak: \d+ new suspected memory leaks",
    "list-debug": r"list_(add|del) corruption",
    "refcount": r"refcount_t: ",
    "use-after-free": r"use-after-free|slab-out-of-bounds|Object (already free|padding overwritten)|Poison overwritten",
    "workqueue": r"workqueue lockup",
    "netdev-watchdog": r"NETDEV WATCHDOG: ",
    "netdev-refs": r"unregister_netdevice: waiting for .* to become free",
    "out-of-memory": r"Out of memory: |invoked oom-killer",
    "page-state": r"Bad page (state|map)|Bad rss-counter state",
    "call-trace": r"\bCall Trace:",
    "xen-panic": r"\(XEN\) .*(Panic on CPU|Xen (BUG|WARN) at|Assertion .* failed|FATAL (TRAP|PAGE FAULT)|"
    r"CPU\d+ is stuck)",
    "domain-crash": r"\(XEN\) .*(\(vcpu#\d+\) crashed|Dom0 crashed|d\d+v\d+ (Triple fault|Unhandled:))",
}
"""Name of each detector, and the expression that finds it in a line."""

_ALL = re.compile("|".join(f"(?P<d{n}>{text})" for n, text in enumerate(DETECTORS.values())))
_NAMES = list(DETECTORS)


_REST = r"(?:(?!.*end trace).*\n)*?"
_CONSOLE_RESUMED = re.compile(
    rf".*WARNING: .* evtchn_put\+.*\n{_REST}.* xencons_disconnect_backend\+.*\n"
    rf".* xencons_resume\+.*\n{_REST}.*end trace.*"
)
"""What Debian's 6.1 says of its own second console whenever a guest of Xen is restored; nothing else."""


@dataclass(frozen=True)
class Finding:
    """One suspicious line of a console."""

    machine: str
    detector: str
    line: str

    def __str__(self) -> str:
        return f"{self.machine}: [{self.detector}] {self.line}"


def scan(machine: str, text: str) -> list[Finding]:
    """The findings in a piece of a console's text."""
    findings = []
    for line in _CONSOLE_RESUMED.sub("", text).splitlines():
        found = _ALL.search(line)
        if found and found.lastgroup:
            # lastgroup is the outermost named group that matched.
            findings.append(Finding(machine, _NAMES[int(found.lastgroup[1:])], line.strip()))
    return findings


_ENTRY = re.compile(
    r" asm_(?:common_interrupt|sysvec_\w+)\+.*\n"
    r".*RIP: 0010:(?:irq_entries_start|asm_sysvec_\w+)\+.*\n"
    r"(?:.* Code: .*\n)?"
    r".*RSP: .* EFLAGS: ([0-9a-f]{8})"
)
_SYSCALL = re.compile(
    r" double fault: .*\n"
    r"(?:.*\n){0,3}"
    r".*RIP: 0010:entry_SYSCALL_64\+0x0/.*\n"
    r"(?:.* Code: .*\n)?"
    r".*RSP: .* EFLAGS: ([0-9a-f]{8})"
)
_EFLAGS_IF = 0x200


def interrupted_twice(text: str) -> bool:
    """Whether a kernel's trace shows an interrupt that was taken while an entry had disabled them.

    The entry is another interrupt's, or that of a system call, which still has
    the user's stack: what comes there cannot be handled, and is a double fault.

    No CPU does that, and no software can make it do so: it is one of the
    faults of QEMU's SVM (docs/lab.md, "What emulation gets wrong").
    """
    found = _ENTRY.findall(text) + _SYSCALL.findall(text)
    return any(not int(flags, 16) & _EFLAGS_IF for flags in found)


_STUCK = re.compile(
    r"soft lockup - CPU#(\d+) stuck .*\n"
    r"(?:.*\n){0,4}?"
    r".*RIP: 0010:(\S+).*\n"
    r".* Code: .*(?:<0f> 1f 44 00 00|<e9>(?: [0-9a-f]{2}){4})"
)


def stuck_where_patched(text: str) -> bool:
    """Whether several CPUs are stuck at one and the same jump label: five bytes that do nothing, or a jump.

    No CPU can be: it is a fault of QEMU's TCG (docs/lab.md, "What emulation
    gets wrong"). Of the host's kernel only, in which nothing is ours.
    """
    places: dict[str, set[str]] = {}
    for cpu, place in _STUCK.findall(text):
        places.setdefault(place, set()).add(cpu)
    return any(len(cpus) > 1 for cpus in places.values())


class ConsoleWatch:
    """Reads each console once, from where it left off.

    ``files`` are console logs by machine name; machines may appear later.
    """

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}

    def read_new(self, files: Mapping[str, Path]) -> dict[str, str]:
        """What each console printed since the last call."""
        fresh = {}
        for machine, path in files.items():
            offset = self._offsets.get(machine, 0)
            try:
                with open(path, "rb") as file:
                    if file.seek(0, 2) < offset:
                        offset = 0  # a new lab of the same name
                    file.seek(offset)
                    data = file.read()
            except FileNotFoundError:
                continue
            # A line that is still being printed is left for the next time.
            end = data.rfind(b"\n") + 1
            self._offsets[machine] = offset + end
            fresh[machine] = data[:end].decode(errors="replace")
        return fresh

    def check(self, files: Mapping[str, Path]) -> list[Finding]:
        """The findings since the last call."""
        return [one for machine, text in self.read_new(files).items() for one in scan(machine, text)]
