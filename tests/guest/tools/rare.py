#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What a program sees of a TCP socket by calls that few programs make, as sockets.py shows it of the others.

usage: rare.py serve PORT [lanes] | rare.py run HOST PORT [lanes]

It uses PORT and the three behind it. With `lanes` connections are to go by lanes: then each case begins on a lane, if
it does not say otherwise, and what carries its connection at the end has to be what the case says.

Each case has a connection of its own. Another one, which lasts for the whole run, has both ends wait for each other.
"""

import ctypes
import fcntl
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.guest.tools.raw import LIBC, Map, Part, Received, Ring, checked, classic, dump
from tests.guest.tools.sockets import DEADLINE, PIECE, WARM, attempt, events, pattern, queued, receive, until

CASE_TIME = 100
"""Seconds after which a case that hangs has failed."""

SO_ATTACH_FILTER, SO_DETACH_FILTER, SO_ATTACH_REUSEPORT_CBPF, F_SETSIG = 26, 27, 51, 10
SO_TIMESTAMP, SO_TIMESTAMPING, SO_MAX_PACING_RATE, SIOCOUTQNSD = 29, 37, 47, 0x894B
STAMP_WHAT_COMES = 8 | 16
"""SOF_TIMESTAMPING_RX_SOFTWARE, and that the times are to be told."""
SYS_SENDTO, SYS_RECVFROM = 44, 45
TCP_MD5SIG, TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ = 14, 19, 20, 21
TCP_FASTOPEN_CONNECT, TCP_ULP, TCP_ZEROCOPY_RECEIVE, TCP_INQ = 30, 31, 35, 36
IPV6_ADDRFORM, MSG_FASTOPEN, SOL_TLS, TLS_TX, TLS_RX = 1, 0x20000000, 282, 1, 2
SYN_DATA = 32
"""Of TCP_INFO's options: the peer has taken bytes of the SYN."""

lanes = False
control: socket.socket


class Failed(Exception):
    """A case has."""


def hangs(*_: object) -> None:
    """SIGALRM."""
    raise Failed("it hangs")


def together() -> None:
    """Wait for the other end to get here."""
    control.sendall(b"+")
    if control.recv(1) != b"+":
        raise Failed("the other end has gone")


STATES = ("tcp", "opening", "going-over", "lane", "going-back")
WHYS = ("young", "asked", "stays", "channel", "room", "peer", "busy", "option", "unread", "policy", "rule", "quota")
"""As in docs/netlink/vmloop_tcp.yaml."""


def listed(connection: socket.socket) -> dict[str, Any]:
    """What the module says of a connection; nothing if it is not the module's.

    Asked here, as a connection is idle while a program is started.
    """
    ends = connection.getsockname()[1], connection.getpeername()[1]
    for one in dump("vmloop_tcp", 1):
        local, remote, state = (int.from_bytes(one[number], "little") for number in (2, 4, 6))
        if (local, remote) == ends:
            why = WHYS[int.from_bytes(one[7], "little")] if 7 in one else ""
            sent, received = (int.from_bytes(one[number], "little") for number in (12, 13))
            return {"state": STATES[state], "why": why, "bytes_sent": sent, "bytes_received": received}
    return {}


def carrier(found: dict[str, Any]) -> str:
    """What carries a connection, of what listed() says: `lane`, `tcp` and why; `kernel` if it is not the module's."""
    state = str(found.get("state", "kernel"))
    return f"tcp:{found['why']}" if state == "tcp" else state


def by_lanes(found: dict[str, Any]) -> int:
    """How many bytes have gone by lanes, of what listed() says."""
    return int(found["bytes_sent"] + found["bytes_received"]) if found else 0


def is_carried_by(connection: socket.socket, wanted: str) -> None:
    """Fail if it is not."""
    if lanes and not until(lambda: carrier(listed(connection)).startswith(wanted), True):
        raise Failed(f"not {wanted}, but {listed(connection)}")


LAST = bytes(PIECE)


def trip(connection: socket.socket, piece: bytes) -> None:
    """Known bytes there and back."""
    connection.sendall(piece)
    if receive(connection, PIECE) != piece:
        raise Failed("other bytes came back")


def exchange(connection: socket.socket, wanted: str = "lane", trips: int = WARM) -> int:
    """Known bytes go there and back until what is wanted carries them: a lane ends if nothing goes by it.

    Returns how many have gone by lanes.
    """
    found: dict[str, Any] = {}

    def is_there() -> bool:
        nonlocal found
        trip(connection, pattern(PIECE))
        found = listed(connection)
        return carrier(found).startswith(wanted)

    for _ in range(trips):
        trip(connection, pattern(PIECE))
    if lanes and not until(is_there, True):
        raise Failed(f"not {wanted}, but {found}")
    trip(connection, LAST)
    return by_lanes(found) + 2 * PIECE


def echo(connection: socket.socket) -> None:
    """The other end of exchange()."""
    piece = b""
    while piece != LAST:
        piece = receive(connection, PIECE)
        if len(piece) < PIECE:
            raise Failed("the other end has gone")
        connection.sendall(piece)


def once_allowed(connection: socket.socket, call: Callable[[], Any]) -> Any:
    """What a call returns that is refused as long as there is a lane. The connection is not idle meanwhile."""
    state = listed(connection).get("state") if lanes else None
    found = attempt(call)
    # On a slow machine it may have been idle by now.
    if state == "lane" and found != "EBUSY":
        raise Failed(f"not refused while there is a lane, but {found}")

    def again() -> bool:
        nonlocal found
        if found == "EBUSY":
            connection.sendall(b"~")
            found = attempt(call)
        return found != "EBUSY"

    until(again, True)
    return found


def after_noise(connection: socket.socket, size: int) -> bytes:
    """So many bytes behind those that once_allowed() has sent."""
    while (first := connection.recv(1)) == b"~":
        pass
    return first + receive(connection, size - 1)


def listen(port: int, *options: int) -> socket.socket:
    """A listener, of both families, with options of SOL_SOCKET."""
    listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    for option in options:
        listener.setsockopt(socket.SOL_SOCKET, option, 1)
    listener.bind(("::", port))
    listener.listen(64)
    return listener


def beside(connection: socket.socket, to: int) -> tuple[str, int]:
    """The address of the port that is so many behind the server's."""
    host, port = connection.getpeername()[:2]
    return host, port + to


# io_uring


def uring(c: socket.socket) -> Any:
    """Bytes both ways: tried at once, and by a thread that works for the ring."""
    ring = Ring()
    found: list[Any] = []
    for flags in (0, Ring.BY_WORKER):
        found.append(ring.send(c, pattern(300_000), flags))
        found.append(ring.receive(c, 400_000, flags) == pattern(400_000))
    return found


def uring_server(s: socket.socket) -> Any:
    ring = Ring()
    found: list[Any] = []
    for flags in (0, Ring.BY_WORKER):
        found.append(ring.receive(s, 300_000, flags) == pattern(300_000))
        found.append(ring.send(s, pattern(400_000), flags))
    return found


def uring_waits(c: socket.socket) -> Any:
    """Requests that wait for the peer: for bytes, and for room."""
    for _ in range(2):
        together()
        c.sendall(b"later")
    together()
    ring = Ring()
    data = ctypes.create_string_buffer(pattern(8 << 20), 8 << 20)
    ring.begin(Ring.SEND, c.fileno(), data, 8 << 20, socket.MSG_WAITALL)
    early = ring.is_done()
    together()
    return [early, ring.end()[0]]


def uring_waits_server(s: socket.socket) -> Any:
    ring = Ring()
    buffer = ctypes.create_string_buffer(8 << 20)
    found: list[Any] = []
    for flags in (0, Ring.BY_WORKER):
        ring.begin(Ring.RECV, s.fileno(), buffer, 5, socket.MSG_WAITALL, flags=flags)
        found.append(ring.is_done())
        together()
        found += [ring.end()[0], buffer.raw[:5].decode()]
    together()
    together()
    found.append(ring.do(Ring.RECV, s.fileno(), buffer, 8 << 20, socket.MSG_WAITALL))
    return [*found, buffer.raw == pattern(8 << 20)]


def uring_poll(c: socket.socket) -> Any:
    """A request that polls is done when there are bytes, or when there is room, and not before."""
    ring = Ring()
    found: list[Any] = []
    for _ in range(3):
        together()
        c.sendall(b"x")
        together()
    c.setblocking(False)
    sent = quiet = 0
    while quiet < 20:
        size = attempt(lambda: c.send(pattern(50_000)))
        if size == "EAGAIN":
            quiet += 1
            time.sleep(0.01)
        else:
            sent += size
            quiet = 0
    ring.begin(Ring.POLL_ADD, c.fileno(), how=select.POLLOUT)
    found.append(ring.is_done())
    together()
    found.append(ring.end()[0] & select.POLLOUT)
    c.setblocking(True)
    c.shutdown(socket.SHUT_WR)
    return [*found, int(receive(c, 20)) == sent]


def uring_poll_server(s: socket.socket) -> Any:
    ring = Ring()
    found: list[Any] = []
    for _ in range(3):
        ring.begin(Ring.POLL_ADD, s.fileno(), how=select.POLLIN)
        found.append(ring.is_done())
        together()
        found += [ring.end()[0] & select.POLLIN, s.recv(10).decode()]
        together()
    together()
    counts(s)
    return found


def uring_zero_copy(c: socket.socket) -> Any:
    """Its completion says how much has gone, and another one that the memory is free."""
    ring = Ring()
    data = ctypes.create_string_buffer(pattern(30_000), 30_000)
    ring.begin(Ring.SEND_ZC, c.fileno(), data, 30_000, socket.MSG_WAITALL)
    found = [ring.end()]
    if found[0][1]:
        found.append(ring.end())
    return [*found, receive(c, 1).decode()]


def answer(size: int) -> Callable[[socket.socket], Any]:
    """A server that reads so many known bytes, and sends a byte."""

    def server(s: socket.socket) -> Any:
        found = receive(s, size) == pattern(size)
        s.sendall(b".")
        return found

    return server


def uring_back(c: socket.socket) -> Any:
    together()
    c.sendall(b"0123456789")
    return receive(c, 1).decode()


def uring_back_server(s: socket.socket) -> Any:
    """Requests of all kinds wait when the kernel gets the socket for good."""
    rings = [Ring(), Ring(), Ring()]
    buffers = [ctypes.create_string_buffer(4), ctypes.create_string_buffer(6)]
    rings[0].begin(Ring.RECV, s.fileno(), buffers[0], 4, socket.MSG_WAITALL, flags=Ring.BY_WORKER)
    rings[1].begin(Ring.POLL_ADD, s.fileno(), how=select.POLLIN)
    s.setsockopt(socket.SOL_TCP, TCP_INQ, 1)
    found: list[Any] = [rings[0].is_done()]
    together()
    found += [rings[0].end()[0], buffers[0].raw.decode(), rings[1].end()[0] & select.POLLIN]
    found += [rings[2].do(Ring.RECV, s.fileno(), buffers[1], 6, socket.MSG_WAITALL), buffers[1].raw.decode()]
    s.sendall(b".")
    return found


def uring_splice_server(s: socket.socket) -> Any:
    """splice() from a socket, by a thread that works for the ring."""
    ring = Ring()
    out, into = os.pipe()
    came = b""
    nowhere = (1 << 64) - 1
    while len(came) < 5000:
        size = ring.do(Ring.SPLICE, into, nowhere, 4096, offset=nowhere, other=s.fileno())
        came += os.read(out, size)
    s.sendall(b".")
    return came == pattern(5000)


def sends(size: int) -> Callable[[socket.socket], Any]:
    """A client that sends so many known bytes, and is answered by a byte."""

    def client(c: socket.socket) -> Any:
        c.sendall(pattern(size))
        return receive(c, 1).decode()

    return client


def uring_connects(c: socket.socket) -> Any:
    """A connection that is made and accepted by rings has a lane as any other."""
    ring = Ring()
    [*_, (_, _, _, _, address)] = socket.getaddrinfo(*beside(c, 1), c.family, socket.SOCK_STREAM)
    packed = struct.pack("=H", c.family) + struct.pack("!H", address[1])
    if c.family == socket.AF_INET:
        packed += socket.inet_aton(str(address[0])) + bytes(8)
    else:
        packed += bytes(4) + socket.inet_pton(c.family, str(address[0])) + bytes(4)
    with socket.socket(c.family, socket.SOCK_STREAM) as other:
        together()
        buffer = ctypes.create_string_buffer(packed, len(packed))
        found = ring.do(Ring.CONNECT, other.fileno(), buffer, offset=len(packed))
        exchange(other)
        together()
    return found


def uring_connects_server(s: socket.socket) -> Any:
    ring = Ring()
    with listen(s.getsockname()[1] + 1) as listener:
        ring.begin(Ring.ACCEPT, listener.fileno())
        found = ring.is_done()
        together()
        with socket.socket(fileno=ring.end()[0]) as other:
            echo(other)
            together()
    return found


# Maps of BPF's


def sockmap(c: socket.socket) -> Any:
    """What is sent is dropped as long as the socket is in a map whose program says so."""
    found: list[Any] = []
    with_verdict = Map(Map.SOCKMAP, 0)
    found.append(once_allowed(c, lambda: with_verdict.put(c)))
    found.append(attempt(lambda: c.send(b"dropped")))
    found.append(attempt(with_verdict.take))
    c.sendall(b"said")
    found.append(receive(c, 4).decode())
    # Without a program, bytes go as before.
    plain = Map(Map.SOCKHASH)
    found.append(attempt(lambda: plain.put(c)))
    c.sendall(pattern(200_000))
    found.append(receive(c, 200_000) == pattern(200_000))
    return found


def sockmap_server(s: socket.socket) -> Any:
    found: list[Any] = [after_noise(s, 4).decode()]
    s.sendall(b"said")
    found.append(receive(s, 200_000) == pattern(200_000))
    s.sendall(pattern(200_000))
    return found


def sockmap_unread(c: socket.socket) -> Any:
    """A socket of which bytes are still to be read is put into a map."""
    c.sendall(b"unread")
    together()
    while c.recv(1) == b"~":
        pass
    c.sendall(b"read")
    return receive(c, 1).decode()


def sockmap_unread_server(s: socket.socket) -> Any:
    until(lambda: queued(s, termios.FIONREAD), 6)
    together()
    plain = Map(Map.SOCKHASH)
    found = [once_allowed(s, lambda: plain.put(s))]
    s.sendall(b"!")
    found.append(receive(s, 10).decode())
    s.sendall(b".")
    return found


def put_before(address: tuple[str, int]) -> socket.socket:
    """A connection that is in a map before it has a lane."""
    c = socket.create_connection(address)
    Map(Map.SOCKMAP).put(c)
    return c


def refused_and_back(c: socket.socket) -> Any:
    """Behind a call that is refused, the connection goes back to TCP for one that has that done."""
    plain = Map(Map.SOCKMAP)
    state = listed(c).get("state") if lanes else None
    if (found := attempt(lambda: plain.put(c))) != "EBUSY" and state == "lane":
        raise Failed(f"not refused while there is a lane, but {found}")
    child = os.fork()
    if not child:
        # The lane is not idle meanwhile.
        while True:
            c.sendall(b"~")
            if select.select([c], [], [], 0.01)[0]:
                os._exit(0)
    said = attempt(lambda: c.setsockopt(socket.SOL_TCP, TCP_INQ, 1))
    together()
    os.waitpid(child, 0)
    c.sendall(b"!")
    return [said, receive(c, 1).decode()]


def refused_and_back_server(s: socket.socket) -> Any:
    until(lambda: queued(s, termios.FIONREAD) > 0, True)
    while not select.select([control], [], [], 0)[0]:
        s.recv(1 << 16)
    together()
    s.sendall(b".")
    return after_noise(s, 1).decode()


# TCP of another kind


def keys(mark: int) -> bytes:
    """Of TLS 1.2 by AES-GCM-128."""
    return struct.pack("=HH", 0x0303, 51) + bytes([mark]) * 8 + bytes(range(16)) + bytes([mark]) * 4 + bytes(8)


def tls(c: socket.socket) -> Any:
    """kTLS: what was sent before is read as it is, and what follows is encrypted."""
    c.sendall(b"plain")
    together()
    found = [attempt(lambda: c.setsockopt(socket.SOL_TCP, TCP_ULP, b"tls"))]
    together()
    if found == [None]:
        c.setsockopt(SOL_TLS, TLS_TX, keys(1))
        c.setsockopt(SOL_TLS, TLS_RX, keys(2))
    c.sendall(pattern(200_000))
    return [*found, receive(c, 300_000) == pattern(300_000)]


def tls_server(s: socket.socket) -> Any:
    until(lambda: queued(s, termios.FIONREAD), 5)
    found: list[Any] = [attempt(lambda: s.setsockopt(socket.SOL_TCP, TCP_ULP, b"tls"))]
    found.append(receive(s, 5).decode())
    if found[0] is None:
        s.setsockopt(SOL_TLS, TLS_RX, keys(1))
        s.setsockopt(SOL_TLS, TLS_TX, keys(2))
    together()
    together()
    found.append(receive(s, 200_000) == pattern(200_000))
    s.sendall(pattern(300_000))
    return found


def sign(connection: socket.socket) -> Any:
    """TCP_MD5SIG: segments are signed, and others are dropped."""
    host = str(connection.getpeername()[0])
    address = struct.pack("=HH", connection.family, 0)
    if connection.family == socket.AF_INET:
        address += socket.inet_aton(host)
    else:
        address += bytes(4) + socket.inet_pton(socket.AF_INET6, host)
    key = struct.pack("=BBHi", 0, 0, 6, 0) + b"secret".ljust(80, b"\0")
    return attempt(lambda: connection.setsockopt(socket.SOL_TCP, TCP_MD5SIG, address.ljust(128, b"\0") + key))


def signed(c: socket.socket) -> Any:
    found = [sign(c)]
    together()
    together()
    c.sendall(pattern(200_000))
    return [*found, receive(c, 300_000) == pattern(300_000)]


def signed_server(s: socket.socket) -> Any:
    together()
    found = [sign(s)]
    together()
    found.append(receive(s, 200_000) == pattern(200_000))
    s.sendall(pattern(300_000))
    return found


def repaired(c: socket.socket) -> Any:
    """TCP_REPAIR: what checkpoints read of a connection, which goes on.

    Not in another socket: until that is there, a packet of the peer's, such as a late acknowledgment, gets a reset.
    """
    c.sendall(pattern(5000))
    found = [receive(c, 1).decode(), until(lambda: queued(c, termios.TIOCOUTQ), 0)]
    found.append(attempt(lambda: c.setsockopt(socket.SOL_TCP, TCP_REPAIR, 1)))
    if found[-1] is not None:
        return found
    numbers = []
    for queue in (1, 2):
        c.setsockopt(socket.SOL_TCP, TCP_REPAIR_QUEUE, queue)
        numbers.append(ctypes.c_uint32.from_buffer_copy(c.getsockopt(socket.SOL_TCP, TCP_QUEUE_SEQ, 4)).value)
    found.append(len(set(numbers)))
    c.setsockopt(socket.SOL_TCP, TCP_REPAIR, 0)
    together()
    c.sendall(pattern(200_000))
    return [*found, receive(c, 300_000) == pattern(300_000)]


def repaired_server(s: socket.socket) -> Any:
    found = [receive(s, 5000) == pattern(5000)]
    s.sendall(b".")
    together()
    found.append(receive(s, 200_000) == pattern(200_000))
    s.sendall(pattern(300_000))
    return found


def address_form(s: socket.socket) -> Any:
    """IPV6_ADDRFORM makes a socket of IPv6 with a mapped address one of IPv4, while bytes are unread."""
    until(lambda: queued(s, termios.FIONREAD), 5000)
    found = [attempt(lambda: s.setsockopt(socket.IPPROTO_IPV6, IPV6_ADDRFORM, socket.AF_INET))]
    found.append(s.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN))
    found.append(receive(s, 5000) == pattern(5000))
    s.sendall(b".")
    return found


def mapped_reads(connection: socket.socket, address: int, size: int, copy: Any = None) -> Any:
    """getsockopt() of TCP_ZEROCOPY_RECEIVE: how many bytes were mapped, are to be read, and were copied."""
    what = Received(address=address, length=size)
    if copy is not None:
        what.copy, what.copied = ctypes.addressof(copy), len(copy)
    length = ctypes.c_uint32(ctypes.sizeof(what))
    checked(
        LIBC.getsockopt(
            connection.fileno(), socket.SOL_TCP, TCP_ZEROCOPY_RECEIVE, ctypes.byref(what), ctypes.byref(length)
        )
    )
    return [what.length, what.skip, what.copied]


def map_socket(connection: socket.socket, size: int) -> int:
    """mmap() of a socket."""
    found = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, connection.fileno(), 0)
    if found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "")
    return int(found)


def mapped(c: socket.socket) -> Any:
    c.sendall(pattern(1000))
    receive(c, 1)
    c.sendall(pattern(1 << 20))
    return receive(c, 1).decode()


def mapped_server(s: socket.socket) -> Any:
    """Few bytes are copied; many are mapped, page by page, or read where they do not fill pages."""
    until(lambda: queued(s, termios.FIONREAD), 1000)
    copy = ctypes.create_string_buffer(4096)
    found: list[Any] = [attempt(lambda: mapped_reads(s, 0, 0, copy)), copy.raw[:1000] == pattern(1000)]
    found.append(queued(s, termios.FIONREAD))
    address = map_socket(s, 1 << 20)
    s.sendall(b".")
    came = b""
    while len(came) < 1 << 20:
        select.select([s], [], [])
        length, skip, _ = mapped_reads(s, address, 1 << 20)
        came += ctypes.string_at(address, length)
        came += receive(s, skip) if skip else b""
    s.sendall(b".")
    return [*found, came == pattern(1 << 20)]


def map_refused(s: socket.socket) -> Any:
    """mmap() while there is a lane."""
    found = once_allowed(s, lambda: map_socket(s, 4096) > 0)
    s.sendall(b"!")
    return [found, receive(s, 4).decode()]


def map_refused_client(c: socket.socket) -> Any:
    found = after_noise(c, 1).decode()
    c.sendall(b"said")
    return found


def attach(connection: socket.socket, option: int, *code: tuple[int, int]) -> Any:
    """Set a filter."""
    program, _kept = classic(*code)
    return attempt(lambda: connection.setsockopt(socket.SOL_SOCKET, option, program))


TAKE_ALL = (6, 0xFFFFFFFF)


def filtered_before(address: tuple[str, int]) -> socket.socket:
    """A connection with a filter that lets all pass."""
    c = socket.create_connection(address)
    attach(c, SO_ATTACH_FILTER, TAKE_ALL)
    return c


def filtered(c: socket.socket) -> Any:
    """With a filter it stays on TCP, and without it again it may leave TCP."""
    c.sendall(pattern(100_000))
    found: list[Any] = [receive(c, 1).decode()]
    is_carried_by(c, "tcp:option")
    found.append(attempt(lambda: c.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)))
    exchange(c)
    return found


def filtered_server(s: socket.socket) -> Any:
    found = receive(s, 100_000) == pattern(100_000)
    s.sendall(b".")
    echo(s)
    return found


def option_later(set_one: Callable[[socket.socket], Any]) -> Callable[[socket.socket], Any]:
    """What TCP alone does is asked for while there is a lane: the connection goes back to TCP."""

    def server(s: socket.socket) -> Any:
        found = [set_one(s)]
        together()
        echo(s)
        _, ancillary, _, _ = s.recvmsg(1, 512)
        found += [[level, kind] for level, kind, _ in ancillary]
        found.append(receive(s, 300_000 - 1) == pattern(300_000)[1:])
        s.sendall(b".")
        return found

    return server


def option_later_client(c: socket.socket) -> Any:
    together()
    # It is not for want of bytes.
    exchange(c, "tcp")
    c.sendall(pattern(300_000))
    return receive(c, 1).decode()


def out_queue(c: socket.socket) -> Any:
    """SIOCOUTQ and SIOCOUTQNSD count what the peer's program has not read, of what a lane carries."""
    together()
    counts: tuple[list[int], list[int]] = ([], [])
    for _ in range(2):
        c.sendall(pattern(1500))
        for values, what in zip(counts, (termios.TIOCOUTQ, SIOCOUTQNSD), strict=True):
            values.append(queued(c, what))
    together()
    found: list[Any] = [receive(c, 1).decode(), until(lambda: queued(c, termios.TIOCOUTQ), 0), queued(c, SIOCOUTQNSD)]
    # TCP counts what the peer's kernel has not acknowledged: that depends on the moment.
    if lanes and counts != ([1500, 3000], [1500, 3000]):
        raise Failed(f"counted were {counts}")
    return found


def out_queue_server(s: socket.socket) -> Any:
    together()
    together()
    found = receive(s, 3000) == pattern(1500) * 2
    s.sendall(b".")
    return found


# A socket becomes the kernel's amid a call of another thread's, which has done a part of it


def taken_amid(s: socket.socket, number: int, call: Callable[[], Any]) -> Any:
    """What a call returns whose socket becomes the kernel's when the other end says that a part is done."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(attempt(call)), daemon=True)
    thread.start()
    together()
    together()
    syscall = Path(f"/proc/self/task/{thread.native_id}/syscall")
    seen = 0
    while thread.is_alive() and seen < 20:
        seen = seen + 1 if syscall.read_text().split()[0] == str(number) else 0
        time.sleep(0.01)
    found.append(attempt(lambda: s.setsockopt(socket.SOL_TCP, TCP_INQ, 1)))
    together()
    thread.join(DEADLINE)
    return found


def taken_amid_recv(c: socket.socket) -> Any:
    together()
    c.sendall(pattern(1000))
    found = [until(lambda: queued(c, termios.TIOCOUTQ), 0)]
    together()
    together()
    # The first of these wakes the reader.
    c.sendall(pattern(1000))
    found.append(until(lambda: queued(c, termios.TIOCOUTQ), 0))
    c.sendall(pattern(1000))
    return [*found, receive(c, 1).decode()]


def taken_amid_recv_server(s: socket.socket) -> Any:
    """It waits for all, and gets all."""
    found = taken_amid(s, SYS_RECVFROM, lambda: s.recv(3000, socket.MSG_WAITALL))
    s.sendall(b".")
    return found


def taken_amid_send(c: socket.socket) -> Any:
    together()
    events(c, select.POLLIN, select.POLLIN)
    together()
    together()
    found = receive(c, 16 << 20) == pattern(16 << 20)
    c.sendall(b".")
    return found


def taken_amid_send_server(s: socket.socket) -> Any:
    """It sends more than fits, and sends all of it."""
    return [taken_amid(s, SYS_SENDTO, lambda: s.send(pattern(16 << 20))), receive(s, 1).decode()]


# Connections that begin in another way

EARLY = b"early"


def open_fast(address: tuple[str, int]) -> socket.socket:
    """connect() and the first bytes by one call."""
    [(family, _, _, _, where), *_] = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    c = socket.socket(family, socket.SOCK_STREAM)
    c.sendto(EARLY, MSG_FASTOPEN, where)
    return c


def option_for_fast(address: tuple[str, int]) -> socket.socket:
    """connect() does not connect if the peer has been there before; the first send() does."""
    [(family, _, _, _, where), *_] = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    c = socket.socket(family, socket.SOCK_STREAM)
    c.setsockopt(socket.SOL_TCP, TCP_FASTOPEN_CONNECT, 1)
    c.connect(where)
    c.sendall(EARLY)
    return c


def bytes_of_syn(c: socket.socket) -> Any:
    """Whether the first bytes came with the SYN."""
    c.sendall(pattern(100_000))
    return [receive(c, 1).decode(), c.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 8)[5] & SYN_DATA]


def fast_again(c: socket.socket) -> Any:
    """MSG_FASTOPEN on a connection; and where nobody listens."""
    found: list[Any] = [attempt(lambda: c.sendto(b"x", MSG_FASTOPEN, c.getpeername()))]
    for wanted in (MSG_FASTOPEN, 0):
        with socket.socket(c.family, socket.SOCK_STREAM) as other:
            if wanted:
                found.append(attempt(lambda: other.sendto(EARLY, MSG_FASTOPEN, beside(c, 3))))
            else:
                other.setsockopt(socket.SOL_TCP, TCP_FASTOPEN_CONNECT, 1)
                found += [attempt(lambda: other.connect(beside(c, 3))), attempt(lambda: other.send(EARLY))]
    c.sendall(pattern(100_000))
    return [*found, receive(c, 1).decode()]


def deferred(c: socket.socket) -> Any:
    """TCP_DEFER_ACCEPT: a connection is accepted when it has brought bytes."""
    together()
    with socket.create_connection(beside(c, 1)) as other:
        together()
        together()
        exchange(other)
        together()
    return None


def deferred_server(s: socket.socket) -> Any:
    with listen(s.getsockname()[1] + 1) as listener:
        listener.setsockopt(socket.SOL_TCP, socket.TCP_DEFER_ACCEPT, 30)
        together()
        together()
        listener.setblocking(False)
        found: list[Any] = [attempt(listener.accept), select.select([listener], [], [], 0)[0]]
        listener.setblocking(True)
        together()
        other, _ = listener.accept()
        with other:
            found.append(queued(other, termios.FIONREAD) > 0)
            echo(other)
            together()
    return found


def shared(c: socket.socket) -> Any:
    """SO_REUSEPORT: two listeners on one port; by their program, the second has all connections."""
    together()
    for _ in range(4):
        with socket.create_connection(beside(c, 2)) as other:
            exchange(other)
            together()
    return None


def shared_server(s: socket.socket) -> Any:
    port = s.getsockname()[1] + 2
    with listen(port, socket.SO_REUSEPORT) as first, listen(port, socket.SO_REUSEPORT) as second:
        found = [attach(second, SO_ATTACH_REUSEPORT_CBPF, (6, 1))]
        together()
        for _ in range(4):
            [here] = select.select([first, second], [], [])[0]
            found.append(here is second)
            with here.accept()[0] as other:
                echo(other)
                together()
    return found


# Bytes from elsewhere, signals, the end


def gifts(c: socket.socket) -> Any:
    """vmsplice() into a pipe, and splice() from there."""
    out, into = os.pipe()
    data = ctypes.create_string_buffer(pattern(300_000), 300_000)
    sent = 0
    while sent < 300_000:
        part = Part(ctypes.addressof(data) + sent, min(300_000 - sent, 50_000))
        size = checked(LIBC.vmsplice(into, ctypes.byref(part), ctypes.c_size_t(1), 0))
        sent += size
        while size:
            size -= os.splice(out, c.fileno(), size)
    return [sent, receive(c, 1).decode()]


def signals_wanted(connection: socket.socket) -> int:
    """Have a socket send signals, which wait."""
    number = signal.SIGRTMIN
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    fcntl.fcntl(connection, F_SETSIG, number)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
    return number


def told(number: int, wanted: int) -> bool:
    """Whether a signal comes that tells of that event."""
    while said := signal.sigtimedwait({number}, DEADLINE):
        if said.si_band & wanted:
            return True
    return False


def signals_server(s: socket.socket) -> Any:
    """O_ASYNC: a signal for each arrival, and none without."""
    number = signals_wanted(s)
    found: list[Any] = [signal.sigtimedwait({number}, 0) is None]
    for _ in range(3):
        together()
        found += [told(number, select.POLLIN), s.recv(10).decode()]
        while signal.sigtimedwait({number}, 0):
            pass
    fcntl.fcntl(s, fcntl.F_SETFL, fcntl.fcntl(s, fcntl.F_GETFL) & ~os.O_ASYNC)
    return found


def signals(c: socket.socket) -> Any:
    for _ in range(3):
        together()
        c.sendall(b"x")


def signals_out(c: socket.socket) -> Any:
    """O_ASYNC: a signal when there is room again."""
    number = signals_wanted(c)
    c.setblocking(False)
    sent = 0
    always = True
    while sent < 4 << 20:
        size = attempt(lambda: c.send(pattern(50_000)))
        if size == "EAGAIN":
            always = always and told(number, select.POLLOUT)
        else:
            sent += size
    c.setblocking(True)
    c.shutdown(socket.SHUT_WR)
    return [always, int(receive(c, 20)) == sent]


def counts(s: socket.socket) -> Any:
    """Reads all, and says how much it was."""
    count = 0
    while part := s.recv(1 << 16):
        count += len(part)
    s.sendall(str(count).rjust(20).encode())
    return None


def lingers(c: socket.socket) -> Any:
    """SO_LINGER of some time: all that was sent arrives, and then the end."""
    with socket.create_connection(beside(c, 0)) as other:
        exchange(other)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10))
        other.sendall(pattern(200_000))
    together()
    return receive(c, 1).decode()


def lingers_server(s: socket.socket) -> Any:
    with listener.accept()[0] as other:
        echo(other)
        together()
        found = receive(other, 1 << 20) == pattern(200_000)
    s.sendall(b".")
    return found


@dataclass
class Case:
    """What both ends do, and return of what they saw."""

    client: Callable[[socket.socket], Any]
    server: Callable[[socket.socket], Any]
    ends: str | None = "lane"
    """What carries the client's end when it is over, as carrier() says it; `lane`: and bytes went by it. None: it is
    not looked at."""
    server_ends: str | None = None
    begins: str = "lane"
    connect: Callable[[tuple[str, int]], socket.socket] = socket.create_connection
    early: bytes = b""
    """What connect() sends."""


def later(set_one: Callable[[socket.socket], Any]) -> Case:
    """A case of an option that comes late."""
    return Case(option_later_client, option_later(set_one), None, "tcp")


CASES: dict[str, Case] = {
    "uring": Case(uring, uring_server),
    "uring_waits": Case(uring_waits, uring_waits_server),
    "uring_poll": Case(uring_poll, uring_poll_server, None),
    "uring_zero_copy": Case(uring_zero_copy, answer(30_000), "tcp:stays"),
    "uring_back": Case(uring_back, uring_back_server, None, "kernel"),
    "uring_splice": Case(sends(5000), uring_splice_server, None, "kernel"),
    "uring_connects": Case(uring_connects, uring_connects_server, None),
    "sockmap": Case(sockmap, sockmap_server, "kernel"),
    "sockmap_unread": Case(sockmap_unread, sockmap_unread_server, None, "kernel"),
    "sockmap_before": Case(sends(100_000), answer(100_000), "kernel", begins="kernel", connect=put_before),
    "refused_and_back": Case(refused_and_back, refused_and_back_server, "kernel"),
    "tls": Case(tls, tls_server, "kernel", "kernel"),
    "signed": Case(signed, signed_server, "kernel", "kernel"),
    "repaired": Case(repaired, repaired_server, "kernel"),
    "address_form": Case(sends(5000), address_form, None, "kernel"),
    "mapped": Case(mapped, mapped_server, None, "kernel"),
    "map_refused": Case(map_refused_client, map_refused, None, "kernel"),
    "filtered": Case(filtered, filtered_server, begins="tcp:option", connect=filtered_before),
    "filtered_later": later(lambda s: attach(s, SO_ATTACH_FILTER, TAKE_ALL)),
    "stamped_later": later(lambda s: s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)),
    "stamping_later": later(lambda s: s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, STAMP_WHAT_COMES)),
    "paced_later": later(lambda s: s.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 1 << 30)),
    "taken_amid_recv": Case(taken_amid_recv, taken_amid_recv_server, None, "kernel"),
    "taken_amid_send": Case(taken_amid_send, taken_amid_send_server, None, "kernel"),
    "out_queue": Case(out_queue, out_queue_server),
    "open_fast_first": Case(sends(100_000), answer(100_000), "kernel", begins="kernel", connect=open_fast, early=EARLY),
    "open_fast": Case(bytes_of_syn, answer(100_000), "kernel", begins="kernel", connect=open_fast, early=EARLY),
    "option_for_fast": Case(
        bytes_of_syn, answer(100_000), "kernel", begins="kernel", connect=option_for_fast, early=EARLY
    ),
    "fast_again": Case(fast_again, answer(100_000), "tcp:stays"),
    "deferred": Case(deferred, deferred_server, None),
    "shared": Case(shared, shared_server, None),
    "gifts": Case(gifts, answer(300_000)),
    "signals": Case(signals, signals_server),
    "signals_out": Case(signals_out, counts, None),
    "lingers": Case(lingers, lingers_server, None),
}

listener: socket.socket


def serve(port: int) -> None:
    """One case after the other, as the client says, who connects anew when one has failed."""
    global control, listener
    listener = listen(port)
    listener.setsockopt(socket.SOL_TCP, socket.TCP_FASTOPEN, 16)
    print("ready", flush=True)
    while True:
        control, _ = listener.accept()
        control.setsockopt(socket.SOL_TCP, socket.TCP_NODELAY, 1)
        with control:
            while name := receive(control, 16).decode().strip():
                try:
                    told = {"case": name, "server": serve_case(CASES[name])}
                except (Failed, OSError, TypeError) as error:
                    print(json.dumps({"case": name, "server failed": repr(error)}), flush=True)
                    break
                print(json.dumps(told, default=bytes.decode), flush=True)
                together()
            signal.alarm(0)


def serve_case(case: Case) -> Any:
    signal.alarm(CASE_TIME)
    with listener.accept()[0] as connection:
        connection.setsockopt(socket.SOL_TCP, socket.TCP_NODELAY, 1)
        early = receive(connection, len(case.early)) == case.early
        echo(connection)
        found = case.server(connection)
        if case.server_ends:
            is_carried_by(connection, case.server_ends)
        together()
    return found if early else "other bytes came first"


def run(host: str, port: int) -> None:
    """All cases, or those that the environment names."""
    global control
    failed = 0
    control = socket.create_connection((host, port))
    for name, case in CASES.items():
        if name not in os.environ.get("CASES", name).split(","):
            continue
        try:
            told = {"case": name, "client": run_case(name, case, (host, port))}
            together()
        except (Failed, OSError, TypeError) as error:
            told = {"case": name, "client failed": repr(error)}
            failed += 1
            control.close()
            control = socket.create_connection((host, port))
        print(json.dumps(told, default=bytes.decode), flush=True)
    signal.alarm(0)
    if failed:
        sys.exit(f"FAILED: {failed} cases")


def run_case(name: str, case: Case, address: tuple[str, int]) -> Any:
    signal.alarm(CASE_TIME)
    control.sendall(name.ljust(16).encode())
    with case.connect(address) as connection:
        connection.setsockopt(socket.SOL_TCP, socket.TCP_NODELAY, 1)
        before = exchange(connection, case.begins)
        found = case.client(connection)
        # It may have been idle since.
        if lanes and case.ends == "lane" and by_lanes(found_now := listed(connection)) <= before:
            raise Failed(f"nothing went by the lane: {found_now}")
        if case.ends and case.ends != "lane":
            is_carried_by(connection, case.ends)
        together()
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, hangs)
    if sys.argv[1:2] == ["serve"] and len(sys.argv) in (3, 4):
        lanes = sys.argv[3:] == ["lanes"]
        serve(int(sys.argv[2]))
    elif sys.argv[1:2] == ["run"] and len(sys.argv) in (4, 5):
        lanes = sys.argv[4:] == ["lanes"]
        run(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(__doc__)
