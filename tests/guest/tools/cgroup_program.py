# SPDX-License-Identifier: GPL-2.0
"""Has a BPF program let pass what the sockets of a cgroup send or receive, until SIGTERM.

    cgroup_program.py CGROUP ingress|egress

As systemd does for IPAddressDeny= and IPAccounting=: cgroup_skb, of bpf(2).
"""

import ctypes
import os
import signal
import struct
import sys

CALL = {"x86_64": 321, "aarch64": 280}
PROG_LOAD, PROG_ATTACH, PROG_DETACH = 5, 8, 9
CGROUP_SKB = 8
TYPES = {"ingress": 0, "egress": 1}
PASS = struct.pack("<BBhi", 0xB7, 0, 0, 1) + struct.pack("<BBhi", 0x95, 0, 0, 0)
"""Return 1."""

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, attributes: bytes) -> int:
    """A file descriptor, or 0."""
    room = ctypes.create_string_buffer(attributes.ljust(128, b"\0"))
    done = libc.syscall(CALL[os.uname().machine], command, room, len(room))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(done)


def main() -> None:
    path, where = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    code = ctypes.create_string_buffer(PASS, len(PASS))
    licence = ctypes.create_string_buffer(b"GPL")
    what = struct.pack("IIQQ", CGROUP_SKB, len(PASS) // 8, ctypes.addressof(code), ctypes.addressof(licence))
    program = bpf(PROG_LOAD, what)
    cgroup = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    pair = struct.pack("IIII", cgroup, program, TYPES[where], 0)
    bpf(PROG_ATTACH, pair)
    print("attached", flush=True)
    signal.sigwait([signal.SIGTERM])
    bpf(PROG_DETACH, pair)
    print("detached", flush=True)


main()
