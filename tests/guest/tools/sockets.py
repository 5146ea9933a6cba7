#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What a program sees of a TCP socket, call by call, as lines of JSON.

usage: sockets.py serve PORT PROTOCOL | sockets.py run HOST PORT

PROTOCOL is the number of the listener's: 6 is TCP's, 262 MPTCP's.

Each case has a connection of its own, over which some bytes have gone both ways before. What the calls return is
printed, so that two runs can be compared: one of the kernel's TCP alone, and one by lanes. Nothing of it depends on
time, but for deadlines that end a run.
"""

import errno
import fcntl
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

WARM = 40
"""Round trips before a case begins; the size of each."""
PIECE = 4096
NAME = 16
"""Bytes of a case's name at most."""
DEADLINE = 60.0
CYCLE = bytes(number * 7 % 251 for number in range(251))
"""What known bytes repeat; made once, as Python is slow in an emulated machine."""

SO_TIMESTAMP, SO_PEEK_OFF, SO_ZEROCOPY, MSG_ZEROCOPY = 29, 42, 60, 0x4000000
TCP_NOTSENT_LOWAT, TCP_INQ, IP_RECVERR, IPV6_RECVERR, SIOCATMARK = 25, 36, 11, 25, 0x8905
"""Of Linux on x86; Python does not name them."""


def name(error: OSError) -> str:
    """An error as its name."""
    return errno.errorcode.get(error.errno or 0, str(error))


def attempt(call: Callable[[], Any]) -> Any:
    """What a call returns, or its error's name."""
    try:
        found = call()
    except TimeoutError:
        return "timeout"
    except OSError as error:
        return name(error)
    return len(found) if isinstance(found, bytes) else found


def pattern(size: int) -> bytes:
    """Bytes that are known."""
    return (CYCLE * (size // len(CYCLE) + 1))[:size]


def receive(connection: socket.socket, size: int) -> bytes:
    """So many bytes, or what there is before the end."""
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            break
        found += part
    return found


def queued(connection: socket.socket, what: int) -> int:
    """FIONREAD or SIOCOUTQ."""
    return int(struct.unpack("i", fcntl.ioctl(connection, what, b"\0\0\0\0"))[0])


def until(what: Callable[[], Any], wanted: Any) -> Any:
    """What is asked for, once it is what is wanted; or what it is at last."""
    end = time.monotonic() + DEADLINE
    while (found := what()) != wanted and time.monotonic() < end:
        time.sleep(0.01)
    return found


def events(connection: socket.socket, mask: int, wanted: int) -> int:
    """Events that poll() tells, once those are among them that are wanted."""
    poll = select.poll()
    poll.register(connection, mask)

    def seen() -> int:
        found = poll.poll(100)
        return found[0][1] if found else 0

    return int(until(lambda: seen() & wanted, wanted)) and seen()


def events_now(connection: socket.socket, mask: int) -> list[int]:
    """Events that poll() tells at once."""
    poll = select.poll()
    poll.register(connection, mask)
    return [found for _, found in poll.poll(0)]


# Each case: what the client does, what the server does; each returns what it saw.


def half_close(c: socket.socket) -> Any:
    """Who sends behind the end is told so, and gets a signal, if MSG_NOSIGNAL does not keep it away."""
    c.sendall(pattern(300_000))
    c.shutdown(socket.SHUT_WR)
    signals: list[int] = []
    before = signal.signal(signal.SIGPIPE, lambda number, _: signals.append(number))
    found: list[Any] = []
    for flags in (socket.MSG_NOSIGNAL, 0, socket.MSG_DONTWAIT):
        found += [attempt(partial(c.send, b"x", flags)), len(signals)]
    signal.signal(signal.SIGPIPE, before)
    return [*found, receive(c, 1 << 20) == pattern(200_000)]


def half_close_server(s: socket.socket) -> Any:
    came = receive(s, 1 << 20)
    s.sendall(pattern(200_000))
    return came == pattern(300_000)


def peek(c: socket.socket) -> Any:
    c.sendall(b"0123456789")
    return c.recv(1)


def peek_server(s: socket.socket) -> Any:
    first = s.recv(4, socket.MSG_PEEK | socket.MSG_WAITALL)
    found: list[Any] = [first.decode(), s.recv(4, socket.MSG_PEEK).decode(), s.recv(6, socket.MSG_WAITALL).decode()]
    found += [queued(s, termios.FIONREAD), s.recv(100).decode(), queued(s, termios.FIONREAD)]
    s.sendall(b".")
    return found


def peek_cold(c: socket.socket) -> Any:
    c.sendall(pattern(50_000))
    return c.recv(1).decode()


def peek_cold_server(s: socket.socket) -> Any:
    """A look at bytes sees all of them, though the program's memory has not been there before."""
    until(lambda: queued(s, termios.FIONREAD), 50_000)
    with mmap.mmap(-1, 50_000) as memory:
        found: list[Any] = [s.recv_into(memory, 50_000, socket.MSG_PEEK), memory[:] == pattern(50_000)]
    found.append(receive(s, 50_000) == pattern(50_000))
    s.sendall(b".")
    return found


def wait_all(c: socket.socket) -> Any:
    for _ in range(50):
        c.sendall(pattern(1000))
        time.sleep(0.002)
    return c.recv(1).decode()


def wait_all_server(s: socket.socket) -> Any:
    came = s.recv(50_000, socket.MSG_WAITALL)
    s.sendall(b".")
    return came == pattern(1000) * 50


def no_wait(c: socket.socket) -> Any:
    found: list[Any] = [attempt(lambda: c.recv(10, socket.MSG_DONTWAIT))]
    c.settimeout(0.05)
    found.append(attempt(lambda: c.recv(10)))
    c.setblocking(False)
    found.append(attempt(lambda: c.recv(10)))
    c.setblocking(True)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
    found.append(attempt(lambda: c.recv(10)))
    c.sendall(b".")
    return found


def one_byte(s: socket.socket) -> Any:
    return receive(s, 1).decode()


def nothing(c: socket.socket) -> Any:
    """Who wants no bytes gets none, and does not wait, where there are some."""
    c.sendall(b"0123456789")
    return receive(c, 1).decode()


def nothing_server(s: socket.socket) -> Any:
    found: list[Any] = [until(lambda: queued(s, termios.FIONREAD), 10), receive(s, 4).decode()]
    found.append(attempt(lambda: len(s.recvmsg(0, 0, socket.MSG_DONTWAIT)[0])))
    s.setblocking(True)
    found.append(attempt(lambda: len(s.recvmsg(0)[0])))
    s.sendall(b".")
    return [*found, receive(s, 6).decode()]


def full(c: socket.socket) -> Any:
    """Nobody reads: at some point no more goes; then all of it is read."""
    c.setblocking(False)
    sent = quiet = 0
    while quiet < 20 and sent < 64 << 20:
        try:
            sent += c.send(pattern(5000))
            quiet = 0
        except BlockingIOError:
            quiet += 1
            time.sleep(0.01)
    c.setblocking(True)
    c.shutdown(socket.SHUT_WR)
    return int(receive(c, 20)) == sent


def full_server(s: socket.socket) -> Any:
    """Reads when nothing has come for a while."""
    before = -1
    while (now := queued(s, termios.FIONREAD)) != before:
        before = now
        time.sleep(3)
    count = 0
    while part := s.recv(1 << 16):
        count += len(part)
    s.sendall(str(count).rjust(20).encode())
    return None


def end_seen(c: socket.socket) -> Any:
    mask = select.POLLIN | select.POLLOUT | select.POLLRDHUP
    # Not writable is what a socket may be for a moment.
    found: list[Any] = [events(c, mask, select.POLLRDHUP | select.POLLOUT), receive(c, 100).decode()]
    found.append(attempt(lambda: c.recv(10)))
    return [*found, attempt(lambda: c.recv(10))]


def end_seen_server(s: socket.socket) -> Any:
    s.sendall(b"last words")
    return None


def after_end(c: socket.socket) -> Any:
    """The peer has closed: the first bytes bring a reset, then there is nobody."""
    found: list[Any] = [receive(c, 100).decode()]
    found.append(attempt(lambda: c.send(b"x", socket.MSG_NOSIGNAL)))
    found.append(events(c, select.POLLIN, select.POLLERR | select.POLLHUP))
    found.append(attempt(lambda: c.send(b"x", socket.MSG_NOSIGNAL)))
    return [*found, attempt(lambda: c.recv(1))]


def unread(c: socket.socket) -> Any:
    """The peer closes without reading what has come: a reset."""
    c.sendall(pattern(1000))
    found: list[Any] = [c.recv(1).decode(), events(c, select.POLLIN, select.POLLERR | select.POLLHUP)]
    return [*found, attempt(lambda: c.recv(1)), attempt(lambda: c.recv(1))]


def unread_server(s: socket.socket) -> Any:
    events(s, select.POLLIN, select.POLLIN)
    s.sendall(b".")
    return None


def linger(c: socket.socket) -> Any:
    return [events(c, select.POLLIN, select.POLLERR | select.POLLHUP), attempt(lambda: c.recv(1))]


def linger_server(s: socket.socket) -> Any:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return None


def edges(c: socket.socket) -> Any:
    """Each arrival is an edge, though nothing was read in between."""
    for _ in range(5):
        c.sendall(b"x")
        c.recv(1)
    return None


def edges_server(s: socket.socket) -> Any:
    epoll = select.epoll()
    epoll.register(s, select.EPOLLIN | select.EPOLLET)
    found: list[Any] = []
    for count in range(1, 6):
        until(lambda: queued(s, termios.FIONREAD), count)
        found.append(len(epoll.poll(DEADLINE)))
        s.sendall(b".")
    return [*found, receive(s, 5).decode()]


def edges_out(c: socket.socket) -> Any:
    """A sender that waits for edges, and hears of nothing else, is told of room."""
    c.setblocking(False)
    epoll = select.epoll()
    epoll.register(c, select.EPOLLOUT | select.EPOLLET)
    epoll.poll(0)
    sent = 0
    told = True
    while sent < 4 << 20:
        try:
            sent += c.send(pattern(50_000))
        except BlockingIOError:
            told = told and bool(epoll.poll(DEADLINE))
    c.setblocking(True)
    c.shutdown(socket.SHUT_WR)
    return [told, int(receive(c, 20)) == sent]


def edges_out_server(s: socket.socket) -> Any:
    count = 0
    while part := s.recv(1 << 16):
        count += len(part)
        time.sleep(0.02)
    s.sendall(str(count).rjust(20).encode())
    return None


def low_water(c: socket.socket) -> Any:
    c.sendall(b"x" * 50)
    c.recv(1)
    c.sendall(b"y" * 50)
    return c.recv(1).decode()


def low_water_server(s: socket.socket) -> Any:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 100)
    until(lambda: queued(s, termios.FIONREAD), 50)
    poll = select.poll()
    poll.register(s, select.POLLIN)
    found: list[Any] = [poll.poll(0)]
    s.sendall(b".")
    found.append(len(poll.poll(DEADLINE * 1000)))
    found.append(len(s.recv(200)))
    s.sendall(b".")
    return found


def low_water_less(c: socket.socket) -> Any:
    c.sendall(b"x" * 60)
    return c.recv(1).decode()


def low_water_less_server(s: socket.socket) -> Any:
    """Who waits is told when what is there has become enough."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 100)
    epoll = select.epoll()
    epoll.register(s, select.EPOLLIN)
    found: list[Any] = [until(lambda: queued(s, termios.FIONREAD), 60), epoll.poll(0.1)]
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    # A lane by which nothing goes is given back after four seconds, and that wakes those who wait.
    found += [len(epoll.poll(2.5)), receive(s, 60).decode()]
    s.sendall(b".")
    return found


def urgent(c: socket.socket) -> Any:
    c.sendall(b"before")
    c.send(b"!", socket.MSG_OOB)
    c.sendall(b"after")
    c.shutdown(socket.SHUT_WR)
    return c.recv(1).decode()


def urgent_server(s: socket.socket) -> Any:
    found: list[Any] = [events(s, select.POLLPRI, select.POLLPRI), s.recv(1, socket.MSG_OOB).decode()]
    # All has come: a call could go on behind the mark.
    events(s, select.POLLRDHUP, select.POLLRDHUP)
    rest = b""
    ends = []
    while len(rest) < len(b"beforeafter"):
        rest += s.recv(100)
        ends.append(len(rest))
    s.sendall(b".")
    # No call returns bytes of both its sides.
    return [*found, rest.decode(), len(b"before") in ends]


def reused(c: socket.socket) -> Any:
    """A socket that is disconnected, and connects again, is as new."""
    there = c.getpeername()
    c.sendall(b"first")
    c.recv(1)
    until(lambda: queued(c, termios.FIONREAD), 100)
    libc = __import__("ctypes").CDLL(None, use_errno=True)
    nowhere = struct.pack("H14x", socket.AF_UNSPEC)
    found: list[Any] = [libc.connect(c.fileno(), nowhere, len(nowhere)), events_now(c, select.POLLIN)]
    found += [attempt(lambda: c.recv(1)) for _ in range(3)]
    c.connect(there)
    warm(c, "no_errors")
    return [*found, attempt(lambda: c.recv(1, socket.MSG_DONTWAIT)), no_errors(c)]


def reused_server(s: socket.socket) -> Any:
    found: list[Any] = [receive(s, 5).decode()]
    s.sendall(b"." + b"never read".ljust(100))
    return [*found, attempt(lambda: s.recv(1))]


def asleep(c: socket.socket) -> Any:
    """Calls that sleep in other threads while their socket is disconnected."""
    c.sendall(b"first")
    c.recv(1)
    libc = __import__("ctypes").CDLL(None, use_errno=True)
    nowhere = struct.pack("H14x", socket.AF_UNSPEC)

    def sends() -> None:
        while True:
            c.send(bytes(PIECE * 16))

    threads = []
    found: dict[int, Any] = {}
    for number, call in ((45, lambda: c.recv(1)), (44, sends)):
        task = partial(lambda number, call: found.update({number: attempt(call)}), number, call)
        thread = threading.Thread(target=task, daemon=True)
        thread.start()
        threads.append(thread)
        # Not for a moment only: what is sent moves on until the peer's buffer is full, too.
        file = Path(f"/proc/self/task/{thread.native_id}/syscall")
        seen = 0
        while thread.is_alive() and seen < 50:
            seen = seen + 1 if file.read_text().split()[0] == str(number) else 0
            time.sleep(0.01)
    result = libc.connect(c.fileno(), nowhere, len(nowhere))
    for thread in threads:
        thread.join(DEADLINE)
    return [result, found.get(45, "sleeps on"), found.get(44, "sleeps on")]


def asleep_server(s: socket.socket) -> Any:
    found: list[Any] = [receive(s, 5).decode()]
    s.sendall(b".")
    # It reads nothing, so that the peer's send() sleeps until the connection ends.
    return [*found, events(s, select.POLLHUP, select.POLLHUP)]


def truncated(c: socket.socket) -> Any:
    """MSG_TRUNC: bytes are passed over, and counted."""
    c.sendall(b"0123456789")
    return receive(c, 1).decode()


def truncated_server(s: socket.socket) -> Any:
    until(lambda: queued(s, termios.FIONREAD), 10)
    found: list[Any] = [len(s.recv(4, socket.MSG_TRUNC)), queued(s, termios.FIONREAD), receive(s, 6).decode()]
    s.sendall(b".")
    return found


def vectors(c: socket.socket) -> Any:
    """Several buffers in one call, some of them empty, and one call that goes on with another."""
    found: list[Any] = [c.sendmsg([b"abc", b"", pattern(70_000), b"z"])]
    # What a message says beside its bytes is looked at: 99 is nothing that can be said.
    found.append(attempt(lambda: c.sendmsg([b"not sent"], [(socket.SOL_SOCKET, 99, b"")])))
    found.append(c.send(b"more, ", socket.MSG_MORE))
    found.append(c.send(b"and the end"))
    return [*found, receive(c, 1).decode()]


def vectors_server(s: socket.socket) -> Any:
    parts = [bytearray(3), bytearray(0), bytearray(70_000), bytearray(1)]
    size = s.recvmsg_into(parts, 0, socket.MSG_WAITALL)[0]
    found: list[Any] = [size, bytes(parts[0]).decode(), bytes(parts[2]) == pattern(70_000), bytes(parts[3]).decode()]
    found.append(receive(s, 17).decode())
    s.sendall(b".")
    return found


def corked(c: socket.socket) -> Any:
    """What is held back comes when it is let go."""
    c.setsockopt(socket.SOL_TCP, socket.TCP_NODELAY, 0)
    c.setsockopt(socket.SOL_TCP, socket.TCP_CORK, 1)
    for _ in range(10):
        c.sendall(b"0123456789")
    c.setsockopt(socket.SOL_TCP, socket.TCP_CORK, 0)
    found: list[Any] = [receive(c, 1).decode(), c.getsockopt(socket.SOL_TCP, socket.TCP_CORK)]
    return [*found, until(lambda: queued(c, termios.TIOCOUTQ), 0)]


def corked_server(s: socket.socket) -> Any:
    found = receive(s, 100).decode()
    s.sendall(b".")
    return found


def send_timeout(c: socket.socket) -> Any:
    """Nobody reads: a send that waits no longer than it may."""
    c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 100_000))
    sent = 0
    last: Any = 1
    while isinstance(last, int) and sent < 64 << 20:
        last = attempt(lambda: c.send(pattern(50_000)))
        sent += last if isinstance(last, int) else 0
    c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 0))
    c.shutdown(socket.SHUT_WR)
    return [last, int(receive(c, 20)) == sent]


def peek_offset(c: socket.socket) -> Any:
    c.sendall(b"0123456789")
    return receive(c, 1).decode()


def peek_offset_server(s: socket.socket) -> Any:
    """SO_PEEK_OFF: each look goes on where the last one ended; TCP has it since 6.9."""
    until(lambda: queued(s, termios.FIONREAD), 10)
    found: list[Any] = [attempt(lambda: s.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 2))]
    if found == [None]:
        found += [s.recv(3, socket.MSG_PEEK).decode(), s.recv(3, socket.MSG_PEEK).decode()]
        found.append(s.getsockopt(socket.SOL_SOCKET, SO_PEEK_OFF))
    found += [s.recv(4).decode(), attempt(lambda: s.getsockopt(socket.SOL_SOCKET, SO_PEEK_OFF)), receive(s, 6).decode()]
    s.sendall(b".")
    return found


def at_mark(c: socket.socket) -> Any:
    c.sendall(b"abc")
    c.recv(1)
    c.send(b"!", socket.MSG_OOB)
    c.sendall(b"def")
    return c.recv(1).decode()


def at_mark_server(s: socket.socket) -> Any:
    """SIOCATMARK: where the urgent byte is."""
    found: list[Any] = [receive(s, 3).decode(), queued(s, SIOCATMARK)]
    s.sendall(b".")
    events(s, select.POLLPRI, select.POLLPRI)
    found += [until(lambda: queued(s, SIOCATMARK), 1), s.recv(1, socket.MSG_OOB).decode(), receive(s, 3).decode()]
    s.sendall(b".")
    return [*found, queued(s, SIOCATMARK)]


def splice_out(c: socket.socket) -> Any:
    c.sendall(pattern(5000))
    return receive(c, 1).decode()


def splice_out_server(s: socket.socket) -> Any:
    """splice() from a socket to a pipe."""
    out, into = os.pipe()
    came = b""
    while len(came) < 5000:
        came += os.read(out, os.splice(s.fileno(), into, 4096))
    s.sendall(b".")
    return came == pattern(5000)


KERNEL_FLAGS = 0x10000, 0x20000, 0x80000, 0x100000
"""By which the kernel marks its own calls; before 6.5 programs may say them as well."""


def kernel_flags(c: socket.socket) -> Any:
    """A program that says what only the kernel says sends its bytes all the same."""
    sent = 0
    while sent < 400_000:
        for flag in KERNEL_FLAGS:
            sent += c.send(pattern(400_000)[sent : sent + 5000], flag)
    return [sent, receive(c, 1).decode()]


def kernel_flags_server(s: socket.socket) -> Any:
    found = receive(s, 400_000) == pattern(400_000)
    s.sendall(b".")
    return found


def splice_in(c: socket.socket) -> Any:
    """splice() from a pipe to a socket, and sendfile()."""
    out, into = os.pipe()
    sent = 0
    while sent < 50_000:
        size = os.write(into, pattern(50_000)[sent : sent + 4096])
        while size:
            moved = os.splice(out, c.fileno(), size)
            size -= moved
            sent += moved
    with tempfile.TemporaryFile() as file:
        file.write(pattern(300_000))
        file.flush()
        at = 0
        while at < 300_000:
            at += os.sendfile(c.fileno(), file.fileno(), at, 300_000 - at)
    return [sent, receive(c, 1).decode()]


def splice_in_server(s: socket.socket) -> Any:
    found = [receive(s, 50_000) == pattern(50_000), receive(s, 300_000) == pattern(300_000)]
    s.sendall(b".")
    return found


def zero_copy(c: socket.socket) -> Any:
    """MSG_ZEROCOPY: the bytes come, and the error queue says of how many calls."""
    c.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    found: list[Any] = []
    for _ in range(3):
        found.append(c.send(pattern(30_000), MSG_ZEROCOPY))
    done = -1

    def completed() -> int:
        nonlocal done
        try:
            _, ancillary, _, _ = c.recvmsg(1, 512, socket.MSG_ERRQUEUE)
        except BlockingIOError:
            return done
        for level, kind, data in ancillary:
            if (level, kind) in ((socket.SOL_IP, IP_RECVERR), (socket.IPPROTO_IPV6, IPV6_RECVERR)):
                done = max(done, struct.unpack("IBBBBII", data[:16])[6])
        return done

    found.append(until(completed, 2))
    found.append(attempt(lambda: c.recvmsg(1, 512, socket.MSG_ERRQUEUE)))
    return [*found, receive(c, 1).decode()]


def zero_copy_server(s: socket.socket) -> Any:
    found = [receive(s, 30_000) == pattern(30_000) for _ in range(3)]
    s.sendall(b".")
    return found


def no_errors(c: socket.socket) -> Any:
    """The error queue is empty."""
    found = attempt(lambda: c.recvmsg(1, 512, socket.MSG_ERRQUEUE))
    c.sendall(b".")
    return found


def copies(c: socket.socket) -> Any:
    """A descriptor that is duplicated, handed to a child, and passed by a message."""
    with c.dup() as other:
        other.sendall(b"dup ")
    child = os.fork()
    if not child:
        c.sendall(b"fork ")
        os._exit(0)
    os.waitpid(child, 0)
    here, there = socket.socketpair()
    with here, there:
        socket.send_fds(here, [b"x"], [c.fileno()])
        _, descriptors, _, _ = socket.recv_fds(there, 1, 1)
    with socket.socket(fileno=descriptors[0]) as passed:
        passed.sendall(b"passed ")
    c.sendall(b"own")
    return receive(c, 1).decode()


def copies_server(s: socket.socket) -> Any:
    found = receive(s, len(b"dup fork passed own")).decode()
    s.sendall(b".")
    return found


def stamps(c: socket.socket) -> Any:
    c.sendall(b"0123456789")
    c.recv(1)
    c.sendall(b"0123456789")
    return c.recv(1).decode()


def stamps_server(s: socket.socket) -> Any:
    """SO_TIMESTAMP and TCP_INQ, asked for amid the connection. Of times there may be none yet."""
    found: list[Any] = [receive(s, 10).decode()]
    s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
    s.setsockopt(socket.SOL_TCP, TCP_INQ, 1)
    s.sendall(b".")
    until(lambda: queued(s, termios.FIONREAD), 10)
    data, ancillary, _, _ = s.recvmsg(4, 512)
    kinds = {(level, kind): data for level, kind, data in ancillary}
    found.append(data.decode())
    found.append(list(kinds.get((socket.SOL_TCP, TCP_INQ), b"")))
    found.append(receive(s, 6).decode())
    s.sendall(b".")
    return found


def stamps_once(c: socket.socket) -> Any:
    c.sendall(b".")
    for _ in range(10):
        c.sendall(pattern(1000))
        time.sleep(0.02)
    return c.recv(1).decode()


def stamps_once_server(s: socket.socket) -> Any:
    """A call that waits for bytes several times tells one time, for which there is room. Lanes may have none."""
    s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
    found: list[Any] = [s.recv(1).decode()]
    data, ancillary, flags, _ = s.recvmsg(10_000, socket.CMSG_SPACE(16), socket.MSG_WAITALL)
    found += [data == pattern(1000) * 10, len(ancillary) <= 1, flags]
    s.sendall(b".")
    return found


def reads_no_more(c: socket.socket) -> Any:
    """shutdown() for reading, and then for both."""
    c.shutdown(socket.SHUT_RD)
    found: list[Any] = [attempt(lambda: c.recv(10)), attempt(lambda: c.send(b"0123456789"))]
    c.shutdown(socket.SHUT_RDWR)
    found.append(events_now(c, select.POLLIN | select.POLLOUT | select.POLLRDHUP))
    return [*found, attempt(lambda: c.send(b"x", socket.MSG_NOSIGNAL)), attempt(lambda: c.recv(10))]


def reads_no_more_server(s: socket.socket) -> Any:
    return [receive(s, 100).decode(), attempt(lambda: s.recv(10))]


def options(c: socket.socket) -> Any:
    """What is set is there, and bytes go by small buffers."""
    found: list[Any] = []
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.SOL_TCP, socket.TCP_KEEPIDLE, 77),
        (socket.SOL_TCP, socket.TCP_USER_TIMEOUT, 33_000),
        (socket.SOL_TCP, TCP_NOTSENT_LOWAT, 20_000),
        (socket.SOL_SOCKET, socket.SO_SNDBUF, 10_000),
        (socket.SOL_SOCKET, socket.SO_RCVBUF, 10_000),
    ):
        c.setsockopt(level, option, value)
        found.append(c.getsockopt(level, option))
    c.sendall(pattern(500_000))
    c.shutdown(socket.SHUT_WR)
    info = c.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 256)
    return [*found, len(info) > 100, receive(c, 600_000) == pattern(600_000)]


def options_server(s: socket.socket) -> Any:
    found = receive(s, 1 << 20) == pattern(500_000)
    s.sendall(pattern(600_000))
    return found


def levels(c: socket.socket) -> Any:
    """epoll by level, and once only."""
    c.sendall(b"ab")
    c.recv(1)
    c.sendall(b"c")
    return c.recv(1).decode()


def levels_server(s: socket.socket) -> Any:
    epoll = select.epoll()
    epoll.register(s, select.EPOLLIN)
    until(lambda: queued(s, termios.FIONREAD), 2)
    found: list[Any] = [len(epoll.poll(DEADLINE)), s.recv(1).decode(), len(epoll.poll(DEADLINE)), s.recv(1).decode()]
    found.append(len(epoll.poll(0)))
    epoll.modify(s, select.EPOLLIN | select.EPOLLONESHOT)
    s.sendall(b".")
    found += [len(epoll.poll(DEADLINE)), len(epoll.poll(0)), s.recv(1).decode()]
    s.sendall(b".")
    return found


CASES: dict[str, tuple[Callable[[socket.socket], Any], Callable[[socket.socket], Any]]] = {
    "half_close": (half_close, half_close_server),
    "peek": (peek, peek_server),
    "peek_cold": (peek_cold, peek_cold_server),
    "wait_all": (wait_all, wait_all_server),
    "no_wait": (no_wait, one_byte),
    "nothing": (nothing, nothing_server),
    "full": (full, full_server),
    "end_seen": (end_seen, end_seen_server),
    "after_end": (after_end, end_seen_server),
    "unread": (unread, unread_server),
    "linger": (linger, linger_server),
    "edges": (edges, edges_server),
    "edges_out": (edges_out, edges_out_server),
    "low_water": (low_water, low_water_server),
    "low_water_less": (low_water_less, low_water_less_server),
    "urgent": (urgent, urgent_server),
    "reused": (reused, reused_server),
    "asleep": (asleep, asleep_server),
    "truncated": (truncated, truncated_server),
    "vectors": (vectors, vectors_server),
    "corked": (corked, corked_server),
    "send_timeout": (send_timeout, full_server),
    "peek_offset": (peek_offset, peek_offset_server),
    "at_mark": (at_mark, at_mark_server),
    "splice_out": (splice_out, splice_out_server),
    "splice_in": (splice_in, splice_in_server),
    "zero_copy": (zero_copy, zero_copy_server),
    "kernel_flags": (kernel_flags, kernel_flags_server),
    "no_errors": (no_errors, one_byte),
    "copies": (copies, copies_server),
    "stamps": (stamps, stamps_server),
    "stamps_once": (stamps_once, stamps_once_server),
    "reads_no_more": (reads_no_more, reads_no_more_server),
    "options": (options, options_server),
    "levels": (levels, levels_server),
}


def serve(port: int, protocol: int) -> None:
    """One connection after the other, until it is killed; of both families."""
    listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, protocol)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("::", port))
    listener.listen()
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.SOL_TCP, socket.TCP_NODELAY, 1)
            case = receive(connection, NAME).decode().strip()
            for _ in range(WARM):
                connection.sendall(receive(connection, PIECE))
            print(json.dumps({"case": case, "server": CASES[case][1](connection)}, default=bytes.decode), flush=True)


def warm(connection: socket.socket, case: str) -> None:
    """Say which case it is, and have bytes go both ways."""
    connection.setsockopt(socket.SOL_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(case.ljust(NAME).encode())
    for _ in range(WARM):
        connection.sendall(pattern(PIECE)[:-1])
        # While it goes from TCP to a lane, too. The peer, which has not all yet, does not end it meanwhile.
        nothing_sent = {attempt(lambda: connection.send(b"")) for _ in range(20)}
        if nothing_sent != {0}:
            sys.exit(f"FAILED: to send nothing returned {nothing_sent}")
        connection.sendall(pattern(PIECE)[-1:])
        if receive(connection, PIECE) != pattern(PIECE):
            sys.exit("FAILED: other bytes came back")


def run(host: str, port: int) -> None:
    """All cases."""
    assert max(map(len, CASES)) <= NAME
    for case, (client, _) in CASES.items():
        with socket.create_connection((host, port)) as connection:
            warm(connection, case)
            print(json.dumps({"case": case, "client": client(connection)}, default=bytes.decode), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"] and len(sys.argv) == 4:
        serve(int(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["run"] and len(sys.argv) == 4:
        run(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(__doc__)
