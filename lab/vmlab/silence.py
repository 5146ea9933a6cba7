# SPDX-License-Identifier: GPL-2.0
"""A guest that does not answer, seen from outside of it.

Its console tells nothing if its CPU does not run, or runs with interrupts off.
Where the CPU stands is in its registers; symbols are those of another guest
with the same kernel, as the lab's kernels are all at the same address.
"""

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import VmlabError

if TYPE_CHECKING:
    from .machine import Guest

STACK_WORDS = 96
"""Of 8 bytes each, from the stack's top."""

# Not the addresses at which they are: those have no 0x.
_WORD = re.compile(r"0x([0-9a-f]{16})")


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


def trace(stack: str, symbols: Symbols) -> list[str]:
    """What may be return addresses in a dump of a stack, the last call first."""
    words = (int(one, 16) for one in _WORD.findall(stack))
    return [name for name in map(symbols.name, words) if name]


def symbols_of(guest: "Guest") -> Symbols:
    """A kernel's symbols, from another guest with the same kernel that answers; none if there is none."""
    for other in map(guest.lab.guest, guest.lab.guests):
        if other is not guest and other.spec.kernel == guest.spec.kernel and other.answers(10):
            return Symbols.parse(other.run("cat /proc/kallsyms", timeout=60).out)
    return Symbols([], [])


def _registers(guest: "Guest", symbols: Symbols) -> str:
    """Where its CPU is, by QEMU's monitor, which makes the CPU leave the guest for it."""

    def monitor(line: str) -> str:
        return str(guest.qmp("human-monitor-command", {"command-line": line}))

    registers = monitor("info registers")
    place, top = (
        int(one[1], 16) if (one := re.search(rf"{name}=([0-9a-f]+)", registers)) else 0 for name in ("RIP", "RSP")
    )
    name = symbols.name(place)
    stack = monitor(f"x /{STACK_WORDS}gx {top:#x}")
    calls = "\n".join(f"  {one}" for one in trace(stack, symbols))
    return f"at {name or '?'}; on its stack:\n{calls}\n{registers}\n{monitor('info lapic')}\n{stack}"


def _threads(guest: "Guest") -> str:
    """What the threads of its QEMU do, by the host."""
    script = (
        f"for task in /proc/{guest.pid}/task/*; do"
        # Of the line after the name, which may have spaces.
        ' echo "$(cat $task/comm): $(sed "s/.*) //" $task/stat | cut -d" " -f1,12,13), in $(cat $task/wchan)";'
        " cat $task/stack; done"
    )
    return guest.host.run(script, check=False).out


def look_at(guest: "Guest") -> str:
    """All that can be known of a guest of a KVM host that does not answer; lines for people.

    The first line says where its CPU was. Looking may wake it, which is told at
    the end.
    """
    said: list[str] = []

    def ask(what: str, question: Callable[[], str]) -> None:
        try:
            said.append(f"{what}: {question()}")
        except VmlabError as error:
            said.append(f"{what}: not to be had: {error}")

    symbols = symbols_of(guest)
    ask("threads of its QEMU (state, ticks in user and system mode)", lambda: _threads(guest))
    for number in (1, 2, 3):
        ask(f"look {number}", lambda: _registers(guest, symbols))
    ask("threads, again", lambda: _threads(guest))
    said.append("and now it answers" if guest.answers(10) else "and it still does not answer")
    looks = [one.splitlines()[0].removesuffix("; on its stack:") for one in said if one.startswith("look")]
    return "\n".join(["; ".join([*looks, said[-1]]), *said])
