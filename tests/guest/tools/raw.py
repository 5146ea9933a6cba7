# SPDX-License-Identifier: GPL-2.0
"""System calls that Python does not have, for rare.py: io_uring, bpf(), and what some others are told by."""

import ctypes
import errno
import mmap
import socket
import struct
from typing import Any

SYS_BPF, SYS_IO_URING_SETUP, SYS_IO_URING_ENTER = 321, 425, 426
"""Of Linux on x86-64."""

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.vmsplice.restype = ctypes.c_ssize_t


def checked(result: int) -> int:
    """What a function of C's returned, or its error."""
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result


def dump(family: str, command: int) -> list[dict[int, bytes]]:
    """What a family of generic netlink says in answer to a question without attributes."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16) as one:
        [about] = ask(one, 16, 3, 1, struct.pack("=HH", 4 + len(family) + 1, 2) + family.encode() + b"\0")
        return ask(one, int.from_bytes(about[1], "little"), command, 0x301)


def ask(one: socket.socket, kind: int, command: int, flags: int, attributes: bytes = b"") -> list[dict[int, bytes]]:
    """The attributes of each message of an answer."""
    attributes += bytes(-len(attributes) % 4)
    one.send(struct.pack("=IHHIIBBH", 20 + len(attributes), kind, flags, 1, 0, command, 1, 0) + attributes)
    found: list[dict[int, bytes]] = []
    while True:
        said = one.recv(1 << 16)
        while said:
            size, what = struct.unpack_from("=IH", said)
            message, said = said[20:size], said[(size + 3) & ~3 :]
            # An error, or the end.
            if what in (2, 3):
                return found
            found.append({})
            while message:
                length, number = struct.unpack_from("=HH", message)
                found[-1][number & 0x3FFF] = message[4:length]
                message = message[(length + 3) & ~3 :]
        if flags == 1:
            return found


class Part(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Received(ctypes.Structure):
    """struct tcp_zerocopy_receive."""

    _fields_ = (
        ("address", ctypes.c_uint64), ("length", ctypes.c_uint32), ("skip", ctypes.c_uint32),
        ("queue", ctypes.c_uint32), ("error", ctypes.c_int32), ("copy", ctypes.c_uint64),
        ("copied", ctypes.c_int32), ("flags", ctypes.c_uint32), ("rest", ctypes.c_uint64 * 3),
    )  # fmt: skip


def classic(*code: tuple[int, int]) -> tuple[bytes, Any]:
    """A classic program of BPF's, and what must not go before it has been used."""
    buffer = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", op, 0, 0, word) for op, word in code))
    return struct.pack("=H6xQ", len(code), ctypes.addressof(buffer)), buffer


class Ring:
    """An io_uring, for one request or some at a time."""

    NOP, POLL_ADD, ACCEPT, CONNECT, SEND, RECV, SPLICE, SEND_ZC = 0, 6, 13, 16, 26, 27, 30, 47
    BY_WORKER = 1 << 4
    ENTRIES = 8

    def __init__(self) -> None:
        said = ctypes.create_string_buffer(120)
        self.fd = checked(LIBC.syscall(SYS_IO_URING_SETUP, self.ENTRIES, said))
        words = struct.unpack("30I", said.raw)
        self.sq, self.cq = words[10:18], words[20:28]
        self.submissions = mmap.mmap(self.fd, self.sq[6] + 4 * words[0], offset=0)
        self.completions = mmap.mmap(self.fd, self.cq[5] + 16 * words[1], offset=0x8000000)
        self.requests = mmap.mmap(self.fd, 64 * words[0], offset=0x10000000)
        self.keep: list[Any] = []

    def begin(
        self,
        code: int,
        fd: int,
        buffer: Any = None,
        size: int = 0,
        how: int = 0,
        offset: int = 0,
        flags: int = 0,
        other: int = 0,
    ) -> None:
        """One request; it has been looked at when this returns."""
        [tail] = struct.unpack_from("I", self.submissions, self.sq[1])
        at = tail & (self.ENTRIES - 1)
        address = buffer if isinstance(buffer, int) else ctypes.addressof(buffer) if buffer is not None else 0
        self.keep.append(buffer)
        struct.pack_into(
            "=BBHiQQIIQHHi16x", self.requests, 64 * at, code, flags, 0, fd, offset, address, size, how, 7, 0, 0, other
        )
        struct.pack_into("I", self.submissions, self.sq[6] + 4 * at, at)
        struct.pack_into("I", self.submissions, self.sq[1], tail + 1)
        checked(LIBC.syscall(SYS_IO_URING_ENTER, self.fd, 1, 0, 0, None, 0))

    def is_done(self) -> bool:
        """Whether there is a completion."""
        # Some are put there only when the program is inside of the kernel.
        checked(LIBC.syscall(SYS_IO_URING_ENTER, self.fd, 0, 0, 1, None, 0))
        head, tail = (struct.unpack_from("I", self.completions, where)[0] for where in self.cq[:2])
        return bool(head != tail)

    def end(self) -> tuple[int, int]:
        """Result and flags of the next completion, which is waited for."""
        if not self.is_done():
            checked(LIBC.syscall(SYS_IO_URING_ENTER, self.fd, 0, 1, 1, None, 0))
        [head] = struct.unpack_from("I", self.completions, self.cq[0])
        at = head & (self.cq_entries() - 1)
        _, result, flags = struct.unpack_from("QiI", self.completions, self.cq[5] + 16 * at)
        struct.pack_into("I", self.completions, self.cq[0], head + 1)
        return result, flags

    def cq_entries(self) -> int:
        """How many completions have room."""
        return int(struct.unpack_from("I", self.completions, self.cq[3])[0])

    def do(self, code: int, fd: int, *words: Any, **more: Any) -> Any:
        """One request and its result; an error by its name."""
        self.begin(code, fd, *words, **more)
        result, _ = self.end()
        return result if result >= 0 else errno.errorcode[-result]

    def send(self, connection: socket.socket, data: bytes, flags: int = 0) -> int:
        """All of it, by as many requests as it takes."""
        buffer = ctypes.create_string_buffer(data, len(data))
        sent = 0
        while sent < len(data):
            address = ctypes.addressof(buffer) + sent
            sent += self.do(self.SEND, connection.fileno(), address, len(data) - sent, flags=flags)
        return sent

    def receive(self, connection: socket.socket, size: int, flags: int = 0) -> bytes:
        """So many bytes, by as many requests as it takes."""
        buffer = ctypes.create_string_buffer(size)
        found = b""
        while len(found) < size:
            got = self.do(self.RECV, connection.fileno(), buffer, size - len(found), flags=flags)
            found += buffer.raw[:got]
        return found


class Map:
    """A map of sockets; with a verdict, a program that says it of all that is sent by them."""

    SOCKMAP, SOCKHASH, PROGRAM_OF_MESSAGES, VERDICT_OF_MESSAGES = 15, 18, 16, 7
    CREATE, UPDATE, DELETE, LOAD, ATTACH = 0, 2, 3, 5, 8
    TRIES = 5
    """As libbpf does."""

    def __init__(self, kind: int, verdict: int | None = None) -> None:
        self.fd = self.call(self.CREATE, struct.pack("IIIII", kind, 4, 4, 4, 0))
        if verdict is None:
            return
        code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, verdict, 0x95, 0, 0, 0), 16)
        words = ctypes.create_string_buffer(b"GPL")
        what = struct.pack("=IIQQ", self.PROGRAM_OF_MESSAGES, 2, ctypes.addressof(code), ctypes.addressof(words))
        program = self.load(what)
        self.call(self.ATTACH, struct.pack("=IIII", self.fd, program, self.VERDICT_OF_MESSAGES, 0))

    def load(self, what: bytes) -> int:
        """A program of BPF's. The kernel gives up with EAGAIN where the task has other work, such as io_uring's."""
        for _ in range(self.TRIES):
            try:
                return self.call(self.LOAD, what)
            except BlockingIOError:
                continue
        return self.call(self.LOAD, what)

    @staticmethod
    def call(command: int, words: bytes) -> int:
        """bpf()."""
        buffer = ctypes.create_string_buffer(words, 128)
        return checked(LIBC.syscall(SYS_BPF, command, buffer, 128))

    def put(self, connection: socket.socket) -> int:
        """Put a socket into it."""
        key, value = (ctypes.create_string_buffer(struct.pack("I", word), 4) for word in (1, connection.fileno()))
        return self.call(self.UPDATE, struct.pack("=I4xQQQ", self.fd, *map(ctypes.addressof, (key, value)), 0))

    def take(self) -> int:
        """Take it out again."""
        key = ctypes.create_string_buffer(struct.pack("I", 1), 4)
        return self.call(self.DELETE, struct.pack("=I4xQQQ", self.fd, ctypes.addressof(key), 0, 0))
