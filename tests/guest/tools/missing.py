# SPDX-License-Identifier: GPL-2.0
"""A page that is missing (userfaultfd): whoever touches it waits until it is brought."""

import ctypes
import fcntl
import mmap
import struct
import sys

USERFAULTFD = 323
UFFDIO_API = 0xC018AA3F
UFFDIO_REGISTER = 0xC020AA00
UFFDIO_COPY = 0xC028AA03
API, MODE_MISSING = 0xAA, 1

libc = ctypes.CDLL(None, use_errno=True)


class MissingPage:
    """A page of memory, and where it is."""

    def __init__(self) -> None:
        self.faults = libc.syscall(USERFAULTFD, 0)
        if self.faults < 0:
            sys.exit("no userfaultfd: " + str(ctypes.get_errno()))
        fcntl.ioctl(self.faults, UFFDIO_API, struct.pack("QQQ", API, 0, 0))
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        fcntl.ioctl(self.faults, UFFDIO_REGISTER, struct.pack("QQQQ", self.address, mmap.PAGESIZE, MODE_MISSING, 0))

    def bring(self, content: bytes = b"") -> None:
        """Have it there; it begins with that."""
        source = ctypes.create_string_buffer(content, mmap.PAGESIZE)
        copy = struct.pack("QQQQq", self.address, ctypes.addressof(source), mmap.PAGESIZE, 0, 0)
        fcntl.ioctl(self.faults, UFFDIO_COPY, copy)
