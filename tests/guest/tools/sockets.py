#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What a program sees of a TCP socket, call by call, as lines of JSON.

usage: sockets.py serve PORT | sockets.py run HOST PORT

Each case has a connection of its own, over which some bytes have gone both ways before. What the calls return is
printed, so that two runs can be compared: one of the kernel's TCP alone, and one by lanes. Nothing of it depends on
time, but for deadlines that end a run.
"""

import errno
import fcntl
import json
import select
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

WARM = 40
"""Round trips before a case begins; the size of each."""
PIECE = 4096
DEADLINE = 20.0


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
    return bytes(i * 7 % 251 for i in range(size))


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


# Each case: what the client does, what the server does; each returns what it saw.


def half_close(c: socket.socket) -> Any:
    c.sendall(pattern(300_000))
    c.shutdown(socket.SHUT_WR)
    return [attempt(lambda: c.send(b"x", socket.MSG_NOSIGNAL)), receive(c, 1 << 20) == pattern(200_000)]


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


def urgent(c: socket.socket) -> Any:
    c.sendall(b"before")
    c.send(b"!", socket.MSG_OOB)
    c.sendall(b"after")
    return c.recv(1).decode()


def urgent_server(s: socket.socket) -> Any:
    found: list[Any] = [events(s, select.POLLPRI, select.POLLPRI), s.recv(1, socket.MSG_OOB).decode()]
    rest = b""
    while len(rest) < len(b"beforeafter"):
        rest += s.recv(100)
    s.sendall(b".")
    return [*found, rest.decode()]


def reused(c: socket.socket) -> Any:
    """A socket that is disconnected, and connects again, is as new."""
    there = c.getpeername()
    c.sendall(b"first")
    c.recv(1)
    libc = __import__("ctypes").CDLL(None, use_errno=True)
    nowhere = struct.pack("H14x", socket.AF_UNSPEC)
    found: list[Any] = [libc.connect(c.fileno(), nowhere, len(nowhere))]
    return [*found, attempt(lambda: c.recv(1)), there[1] > 0]


def reused_server(s: socket.socket) -> Any:
    found: list[Any] = [receive(s, 5).decode()]
    s.sendall(b".")
    return [*found, attempt(lambda: s.recv(1))]


CASES: dict[str, tuple[Callable[[socket.socket], Any], Callable[[socket.socket], Any]]] = {
    "half_close": (half_close, half_close_server),
    "peek": (peek, peek_server),
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
    "urgent": (urgent, urgent_server),
    "reused": (reused, reused_server),
}


def serve(port: int) -> None:
    """One connection after the other, until it is killed."""
    listener = socket.create_server(("0.0.0.0", port))
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.SOL_TCP, socket.TCP_NODELAY, 1)
            case = receive(connection, 16).decode().strip()
            for _ in range(WARM):
                connection.sendall(receive(connection, PIECE))
            print(json.dumps({"case": case, "server": CASES[case][1](connection)}, default=bytes.decode), flush=True)


def run(host: str, port: int) -> None:
    """All cases."""
    for case, (client, _) in CASES.items():
        with socket.create_connection((host, port)) as connection:
            connection.setsockopt(socket.SOL_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(case.ljust(16).encode())
            for _ in range(WARM):
                connection.sendall(pattern(PIECE))
                if receive(connection, PIECE) != pattern(PIECE):
                    sys.exit("FAILED: other bytes came back")
            print(json.dumps({"case": case, "client": client(connection)}, default=bytes.decode), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"] and len(sys.argv) == 3:
        serve(int(sys.argv[2]))
    elif sys.argv[1:2] == ["run"] and len(sys.argv) == 4:
        run(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(__doc__)
