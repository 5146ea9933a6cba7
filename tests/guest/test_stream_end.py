# SPDX-License-Identifier: GPL-2.0
"""The end of what a program sends, which the lane says before TCP's FIN has come."""

from itertools import product

import pytest

from tests.guest.net import until
from tests.guest.streams import Streams
from tests.guest.test_stream import ANEW, CONNECT, TURNS
from tests.guest.veth import IP, inside

pytestmark = [pytest.mark.loopback, pytest.mark.kvm_only]

PORT = 5531
LAST = 50_000
"""Bytes that are sent last, of which the ring is not full."""


ENDS = (
    CONNECT
    + f"""
how = sys.argv[4]
count = 0
if role == 'run':
    ends = []
    signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
    one.setblocking(True)
    while not ends:
        count += one.send(b'x')
        time.sleep(0.01)
    one.sendall(b'x' * {LAST})
    print('sent', count + {LAST}, flush=True)
    if how == 'shut':
        one.shutdown(socket.SHUT_WR)
        assert one.recv(1) == b''
    one.close()
    sys.exit()
"""
    + """
waits = select.epoll()
waits.register(one, select.EPOLLIN | select.EPOLLRDHUP | (select.EPOLLET if how == 'edge' else 0))
one.setblocking(how == 'recv')
part = b'x'
while part:
    [(_, event)] = [(0, 0)] if how == 'recv' else waits.poll()
    try:
        part = one.recv(1 << 16)
        while part and how != 'level':
            count += len(part)
            part = one.recv(1 << 16)
        count += len(part)
    except BlockingIOError:
        pass
assert how != 'level' or event & select.EPOLLRDHUP, event
# It is the end from now on, whatever is asked.
assert one.recv(1, socket.MSG_PEEK) == one.recv(1) == b''
after = select.poll()
after.register(one, select.POLLIN | select.POLLRDHUP)
[(_, what)] = after.poll(0)
assert what & (select.POLLIN | select.POLLRDHUP) == select.POLLIN | select.POLLRDHUP, what
print('end', count, flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
signal.sigwait([signal.SIGTERM])
assert one.recv(1) == b''
one.close()
"""
)
"""`run` sends until it is told to end; `serve` reads to the end, sleeping in recv(), or by epoll, level or edge."""

CHAIN = "add table ip fins; add chain ip fins out { type filter hook output priority 0; }"
NO_FINS = "add rule ip fins out tcp flags & fin == fin drop"
NOTHING = f"add rule ip fins out tcp dport {PORT} drop"
MAIN = pytest.mark.main("a program learnt of the end of a connection milliseconds late: tests of redis and haproxy")


WAITS = pytest.mark.main("TIME-WAIT came to servers as well: one without SO_REUSEADDR did not start again")

CASES = list(product(("recv", "level", "edge"), ("close", "shut"), ("fins", "all")))


@pytest.mark.parametrize(
    ("reads", "ends", "lost"),
    [pytest.param(*case, marks=MAIN if case == ("level", "close", "all") else ()) for case in CASES],
)
def test_end_without_a_fin(stage: str, streams: Streams, reads: str, ends: str, lost: str) -> None:
    """A program learns that its peer's sends nothing more, after the last byte, though no FIN comes by TCP.

    And though nothing at all does (``all``), as long as a lane takes to end.
    """
    host = streams.host
    streams.leave_after(1)
    host.run(inside("a", "nft", CHAIN))
    try:
        with host.popen(inside("b", "python3", "-c", ENDS, "serve", "-", PORT, reads)) as server:
            server.wait_for("ready", 60)
            with host.popen(inside("a", "python3", "-c", ENDS, "run", IP[1], PORT, ends)) as client:
                until(lambda: streams.counter("rx_bytes") > 10, 60, "bytes come by a lane")
                host.run(inside("a", "nft", NO_FINS if lost == "fins" else NOTHING))
                client.terminate()
                sent = client.wait_for(r"sent (\d+)", 30)[1]
                assert server.wait_for(r"end (\d+)", 60)[1] == sent
                host.run(inside("a", "nft", "flush table ip fins"))
                server.terminate()
                assert server.wait(90).code == 0, server.err
                assert client.wait(90).code == 0, client.err
    finally:
        host.run(inside("a", "nft", "delete table ip fins"))
    assert streams.counter("reset") == 0


CLOSES = (
    TURNS
    + """
how = sys.argv[4]
if how == 'shut':
    one.shutdown(socket.SHUT_WR)
    while one.recv(1):
        pass
elif how == 'late':
    # As long as a lane takes to end, and no longer.
    time.sleep(0.01 if role == 'serve' else 0)
one.close()
"""
)
"""`run` ends first, and `serve` behind it."""

ROUNDS = 4
"""So often, as which FIN is first may be chance."""


def sockets(streams: Streams, where: str, port: int) -> list[str]:
    """States of the connections of that port at one end."""
    lines = streams.host.run(inside(where, "ss", "-Htan", f"( sport = :{port} or dport = :{port} )")).out.splitlines()
    return [line.split()[0] for line in lines]


def settled(streams: Streams, where: str, port: int) -> list[str]:
    """The same, when nothing but TIME-WAIT is left."""
    until(lambda: not set(sockets(streams, where, port)) - {"TIME-WAIT"}, 30, f"the end in namespace {where} is gone")
    return sockets(streams, where, port)


def ends_by_lane(streams: Streams, program: str, port: int, how: str, silent: bool = False) -> None:
    """Both ends of one connection, whose client is told to end when bytes come by a lane.

    Nothing more comes from its TCP where it is ``silent``.
    """
    host, before = streams.host, streams.counter("rx_bytes")
    with host.popen(inside("b", "python3", "-c", program, "serve", "-", port, how)) as server:
        server.wait_for("ready", 60)
        with host.popen(inside("a", "python3", "-c", program, "run", IP[1], port, how)) as client:
            until(lambda: streams.counter("rx_bytes") > before + 100, 60, "bytes come by a lane")
            if silent:
                host.run(inside("a", "nft", f"add rule ip fins out tcp dport {port} drop"))
            client.terminate()
            assert client.wait(30).code == 0, client.err
            assert server.wait(30).code == 0, server.err


@pytest.mark.parametrize("how", [pytest.param("close", marks=WAITS), "shut", "late"])
def test_who_waits(stage: str, streams: Streams, how: str) -> None:
    """TIME-WAIT is at the end that has closed first, as with TCP alone: a server's port is free when it has ended."""
    streams.leave_after(1)
    for port in range(PORT + 1, PORT + 1 + ROUNDS):
        ends_by_lane(streams, CLOSES, port, how)
        assert settled(streams, "b", port) == [], f"port {port}"
        assert settled(streams, "a", port) == ["TIME-WAIT"], f"port {port}"
    assert streams.counter("reset") == 0


FROM_ONE_TO_ANOTHER = ANEW + CLOSES.replace(
    "how = sys.argv[4]",
    """how = 'close'
if role == 'serve':
    with socket.create_server((sys.argv[4], port + 1)) as other:
        fd, there = one.fileno(), place(sys.argv[4], port + 1)
        one.shutdown(socket.SHUT_WR)
        connect_anew(fd, there)
        end, _ = other.accept()
    for _ in range(60):
        time.sleep(0.1)
        one.sendall(b'y')
        assert end.recv(1) == b'y'
    sys.exit()
""",
)
"""The server's socket, whose FIN waits for the client's, is another connection's from one moment to the next."""


def test_another_connection_meanwhile(stage: str, streams: Streams) -> None:
    """A socket that makes a new connection has nothing of the one before it, whose FIN was to come."""
    host = streams.host
    streams.leave_after(1)
    host.run("ip -n b link set lo up")
    host.run(inside("a", "nft", CHAIN))
    try:
        for port in range(PORT + 11, PORT + 11 + 2 * ROUNDS, 2):
            ends_by_lane(streams, FROM_ONE_TO_ANOTHER, port, IP[1], silent=True)
    finally:
        host.run(inside("a", "nft", "delete table ip fins"))
    host.run("rmmod vmloop_tcp", timeout=120)
