# SPDX-License-Identifier: GPL-2.0
"""Has a BPF program of a cgroup run until SIGTERM, and says how often it did.

    cgroup_program.py CGROUP ingress|egress|release

It lets pass what the cgroup's sockets send or receive, as systemd does for IPAddressDeny= and IPAccounting=
(cgroup_skb, of bpf(2)), or sees its sockets released (cgroup/sock_release).
"""

import ctypes
import os
import signal
import struct
import sys

CALL = {"x86_64": 321, "aarch64": 280}
MAP_CREATE, MAP_LOOKUP, PROG_LOAD, PROG_ATTACH, PROG_DETACH = 0, 1, 5, 8, 9
ARRAY = 2
CGROUP_SKB, CGROUP_SOCK = 8, 9
TYPES = {"ingress": (CGROUP_SKB, 0), "egress": (CGROUP_SKB, 1), "release": (CGROUP_SOCK, 34)}
"""Of the program, and of where it runs."""

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, attributes: bytes) -> int:
    """A file descriptor, or 0."""
    room = ctypes.create_string_buffer(attributes.ljust(128, b"\0"))
    done = libc.syscall(CALL[os.uname().machine], command, room, len(room))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(done)


def instruction(code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    """One of a program: the registers are numbers."""
    return struct.pack("<BBhi", code, source << 4 | target, offset, value)


def counts(counter: int) -> bytes:
    """A program that counts in the first place of an array, and returns 1: pass."""
    return b"".join(
        (
            instruction(0x62, 10, offset=-4),  # *(u32 *)(r10 - 4) = 0
            instruction(0xBF, 2, 10),  # r2 = r10
            instruction(0x07, 2, value=-4),  # r2 += -4
            instruction(0x18, 1, 1, value=counter),  # r1 = the array
            instruction(0),
            instruction(0x85, value=1),  # r0 = its place of that number
            instruction(0x15, offset=2),  # there is none: not reached
            instruction(0xB7, 1, value=1),  # r1 = 1
            instruction(0xDB, 0, 1),  # *(u64 *)r0 += r1, as one
            instruction(0xB7, 0, value=1),  # r0 = 1
            instruction(0x95),  # return
        )
    )


def counted(counter: int) -> int:
    """How often a program has run."""
    key, value = ctypes.c_uint32(0), ctypes.c_uint64()
    bpf(MAP_LOOKUP, struct.pack("IIQQQ", counter, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
    return value.value


def main() -> None:
    path, where = sys.argv[1:]
    kind, place = TYPES[where]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    counter = bpf(MAP_CREATE, struct.pack("IIII", ARRAY, 4, 8, 1))
    content = counts(counter)
    code = ctypes.create_string_buffer(content, len(content))
    licence = ctypes.create_string_buffer(b"GPL")
    what = struct.pack("IIQQ", kind, len(content) // 8, ctypes.addressof(code), ctypes.addressof(licence))
    # The place is checked when it is loaded, too (expected_attach_type).
    program = bpf(PROG_LOAD, what.ljust(68, b"\0") + struct.pack("I", place))
    cgroup = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    pair = struct.pack("IIII", cgroup, program, place, 0)
    bpf(PROG_ATTACH, pair)
    print("attached", flush=True)
    signal.sigwait([signal.SIGTERM])
    bpf(PROG_DETACH, pair)
    print("detached", counted(counter), flush=True)


main()
