# SPDX-License-Identifier: GPL-2.0
"""What guests keep in their memory of the outside's programs.

A program that an emulated guest reads by 9p comes in many small pieces, and
takes a third of a second the first time; an archive is read in one go. So a guest has a
layer over the outside's root with the programs that are run most, and with what
each program looks at when it begins. All else is read by 9p as before.
"""

import functools
from pathlib import Path

from .movable import identity, pack, with_libraries

PROGRAMS = (
    "bash", "cat", "chmod", "cp", "cut", "dash", "dmesg", "echo", "ethtool", "grep", "head", "ip", "iperf3", "kill",
    "kmod", "ls", "mkdir", "modprobe", "mount", "nft", "pgrep", "ping", "printf", "rm", "rmmod", "sed", "seq",
    "setsid", "sh", "sha256sum", "sleep", "socat", "ss", "stat", "tail", "tcpdump", "test", "touch", "true",
    "truncate", "umount", "uname", "wc", "wg",
)  # fmt: skip
"""What is not there on the outside is left out."""

EXTRA = ("/etc/ld.so.cache", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/protocols")
LOCALE = Path("/usr/lib/locale/C.utf8")
"""The locale of all commands in guests."""


@functools.cache
def build() -> Path:
    """The archive; cached by content, and looked at once in the life of a process."""
    files = with_libraries(PROGRAMS, [*map(Path, EXTRA), *sorted(LOCALE.rglob("*"))])
    return pack("programs", identity(files), files)
