# SPDX-License-Identifier: GPL-2.0
"""A guest that does not answer, seen from outside of it.

Its console tells nothing if its CPUs do not run, or run with interrupts off.
Where a CPU stands is in its registers; symbols are those of another
machine with the same kernel, as the lab's kernels are all at the same address.
"""

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from . import kernels
from .errors import VmlabError

if TYPE_CHECKING:
    from .machine import Guest

STACK_BYTES = 16384
"""Of a stack of the kernel, as large as it may be: what lies behind it cannot be read."""
STACKS = 3
"""That may be behind each other: of interrupts, of what they interrupted."""

# A line of QEMU's monitor: an address, and one or two words that are there.
_WORDS = re.compile(r"^([0-9a-f]{16}): 0x([0-9a-f]{16})(?: 0x([0-9a-f]{16}))?\r*$", re.MULTILINE)

SUMMARY_CALLS = 24
"""Of its stack, in one line for people."""

_EFLAGS_IF = 0x200
_KERNEL_CS = 0x10
_KERNEL_SS = (0x18, 0)
"""An interrupt of user mode leaves none."""
_REGISTERS = 16
"""Words of registers between an entry's return address and what the CPU pushed."""


@dataclass(frozen=True)
class Symbols:
    """Addresses of a kernel's functions, in order, and their names."""

    addresses: list[int]
    names: list[str]

    @classmethod
    def parse(cls, kallsyms: str) -> "Symbols":
        """From the text of /proc/kallsyms."""
        found = []
        for line in kallsyms.splitlines():
            address, kind, name = line.split(maxsplit=2)
            if kind in "tTwW":
                found.append((int(address, 16), name.replace("\t", " ")))
        found.sort()
        return cls([address for address, _ in found], [name for _, name in found])

    def name(self, address: int) -> str:
        """Where an address is, as a kernel's trace says it; empty if it is nowhere."""
        at = bisect_right(self.addresses, address) - 1
        # No function is longer; what is further away is no code.
        if at < 0 or address - self.addresses[at] > 1 << 16:
            return ""
        return f"{self.names[at]}+{address - self.addresses[at]:#x}"


@dataclass(frozen=True)
class Stack:
    """Words of a stack, of which the last call's come first."""

    address: int
    words: list[int]

    @classmethod
    def parse(cls, dump: str, top: int) -> "Stack":
        """From what QEMU's monitor shows of memory, up to what it cannot read."""
        words = [int(word, 16) for _, *line in _WORDS.findall(dump) for word in line if word]
        return cls(top, words[top % 16 // 8 :])

    @property
    def before(self) -> int:
        """Where the stack is that was left for this one, which is of interrupts; 0 if there is none.

        Linux keeps it in the stack's first word, that is the last one here (call_on_stack()).
        """
        end = self.address + len(self.words) * 8
        link = self.words[-1] if self.words and not end % 4096 else 0
        return link if link >> 47 == (1 << 17) - 1 and not self.address <= link < end and not link % 8 else 0

    def trace(self, symbols: Symbols) -> list[str]:
        """What may be return addresses."""
        return [name for name in map(symbols.name, self.words) if name]

    def interrupted_while_off(self, symbols: Symbols) -> list[str]:
        """Where the kernel took an interrupt with interrupts disabled, which no CPU can do.

        An entry's return address is followed by the registers (struct pt_regs).
        """
        places = []
        for at, word in enumerate(self.words):
            name = symbols.name(word)
            frame = self.words[at + 1 + _REGISTERS : at + 6 + _REGISTERS]
            if not name.startswith(("asm_sysvec_", "asm_common_interrupt+")) or len(frame) < 5:
                continue
            ip, cs, flags, _, ss = frame
            if cs == _KERNEL_CS and ss in _KERNEL_SS and not flags & _EFLAGS_IF:
                places.append(f"{name.partition('+')[0]} at {symbols.name(ip) or hex(ip)}")
        return places


def symbols_of(guest: "Guest") -> Symbols:
    """A kernel's symbols, from another machine with the same kernel that answers; none if there is none.

    The host's modules are at other places than the guest's.
    """
    lab = guest.lab
    for other in map(lab.guest, lab.guests):
        if other is not guest and other.spec.kernel == guest.spec.kernel and other.answers(10):
            return Symbols.parse(other.run("cat /proc/kallsyms", timeout=60).out)
    if lab.state["host_kernel"] == kernels.find_kernel(guest.spec.kernel).release:
        text = guest.host.run("cat /proc/kallsyms", timeout=60).out
        return Symbols.parse("".join(line for line in text.splitlines(keepends=True) if not line.endswith("]\n")))
    return Symbols([], [])


@dataclass(frozen=True)
class Look:
    """What one look at a CPU of a guest has found."""

    cpu: int
    place: str
    calls: list[str]
    while_off: list[str]
    """Interrupts that were taken with interrupts disabled, and where."""
    text: str


def _look(guest: "Guest", cpu: int, symbols: Symbols) -> Look:
    """Where a CPU of its is, by QEMU's monitor, which makes the CPU leave the guest for it."""

    def monitor(line: str) -> str:
        # A QEMU that hangs is asked often: all of the evidence has two minutes where a run is ended.
        words = {"command-line": line, "cpu-index": cpu}
        return str(guest.qmp("human-monitor-command", words, timeout=2))

    registers = monitor("info registers")
    place, top = (
        int(one[1], 16) if (one := re.search(rf"{name}=([0-9a-f]+)", registers)) else 0 for name in ("RIP", "RSP")
    )
    calls: list[str] = []
    while_off: list[str] = []
    dumps = ""
    for _ in range(STACKS):
        # It shows no pair of words of which it cannot read one.
        dump = monitor(f"x /{STACK_BYTES // 8}gx {top & ~15:#x}")
        dumps += dump
        stack = Stack.parse(dump, top)
        calls += stack.trace(symbols)
        while_off += stack.interrupted_while_off(symbols)
        top = stack.before
        if not top:
            break
    name = symbols.name(place) or "?"
    listed = "".join(f"  {one}\n" for one in calls)
    text = f"CPU {cpu} at {name}; on its stack:\n{listed}{registers}\n{monitor('info lapic')}\n{dumps}"
    return Look(cpu, name, calls, while_off, text)


def _threads(guest: "Guest") -> str:
    """What the threads of its QEMU do, by the host."""
    script = (
        f"for task in /proc/{guest.pid}/task/*; do"
        # Of the line after the name, which may have spaces.
        ' echo "$(cat $task/comm): $(sed "s/.*) //" $task/stat | cut -d" " -f1,12,13), in $(cat $task/wchan)";'
        " cat $task/stack; done"
    )
    return guest.host.run(script, check=False).out


@dataclass(frozen=True)
class Silence:
    """All that can be known of a guest of a KVM host that does not answer."""

    summary: str
    """One line."""
    interrupted_while_off: list[str]
    """By which interrupt, and where: it is the emulator that broke the guest."""
    text: str


def look_at(guest: "Guest") -> Silence:
    """Look at it from outside. That may wake it, which is told."""
    said: list[str] = []
    looks: list[Look] = []

    def ask(what: str, question: Callable[[], str]) -> None:
        try:
            said.append(f"{what}: {question()}")
        except VmlabError as error:
            said.append(f"{what}: not to be had: {error}")

    def look(cpu: int) -> str:
        looks.append(_look(guest, cpu, symbols))
        return looks[-1].text

    symbols = symbols_of(guest)
    ask("threads of its QEMU (state, ticks in user and system mode)", lambda: _threads(guest))
    for number in (1, 2, 3):
        for cpu in range(guest.spec.cpus):
            ask(f"look {number}", partial(look, cpu))
    ask("threads, again", lambda: _threads(guest))
    said.append("and now it answers" if guest.answers(10) else "and it still does not answer")
    while_off = list(dict.fromkeys(one for look in looks for one in look.while_off))
    summary = [f"at {', '.join(one.place for one in looks) or '?'}"]
    for look_at_cpu in looks[: guest.spec.cpus]:
        summary.append(f"on the stack of CPU {look_at_cpu.cpu} {' < '.join(look_at_cpu.calls[:SUMMARY_CALLS])}")
    if while_off:
        summary.append(f"interrupted with interrupts off by {', '.join(while_off)}")
    summary.append(said[-1])
    return Silence("; ".join(summary), while_off, "\n".join(["; ".join(summary), *said]))
