# SPDX-License-Identifier: GPL-2.0
"""What programs send without waiting while a connection goes to a lane or back (kernel/paths/tcp/pending.c)."""

import shlex

import pytest

from tests.guest.net import until
from tests.guest.streams import NEVER, PARAMETERS, Streams
from tests.guest.test_stream import CONNECT, to_lanes_and_back
from tests.guest.veth import IP, inside

pytestmark = [pytest.mark.loopback, pytest.mark.kvm_only]

PORT = 5521
PENDING = 16 << 10
"""Bytes that a connection takes at most before something carries it: STREAM_PENDING_PARTS of STREAM_PENDING_PART."""


TURNS = (
    CONNECT
    + """
ends = False
def stop(*_):
    global ends
    ends = True
signal.signal(signal.SIGTERM, stop)
one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
turns = refused = partly = 0
size = 1
def say():
    global refused, partly
    message = bytes([turns % 251]) * size
    try:
        done = one.send(message)
        partly += done < size
    except BlockingIOError:
        refused += 1
        done = 0
    if done < size:
        one.setblocking(True)
        one.sendall(message[done:])
        one.setblocking(False)
if role == 'run':
    say()
came = b''
while True:
    select.select([one], [], [])
    try:
        part = one.recv(1 << 16)
    except BlockingIOError:
        continue
    if not part:
        break
    came += part
    if len(came) < size:
        continue
    assert came == bytes([turns % 251]) * size, (turns, len(came))
    came = b''
    turns += role == 'run'
    if role == 'run':
        if ends:
            one.shutdown(socket.SHUT_WR)
            continue
        size = turns * 37 % 500 + 1
    say()
    turns += role == 'serve'
    if role == 'serve':
        size = turns * 37 % 500 + 1
print(turns, refused, partly, flush=True)
"""
)
"""One message at a time goes there and back, each sent when nothing is unsent, by a call that does not wait."""


@pytest.mark.main("a call that does not wait failed though nothing was unsent: PostgreSQL ends a session for that")
def test_turns_without_waiting(stage: str, streams: Streams) -> None:
    """While connections go to lanes and back, a small message can be sent when the one before has been answered."""
    for turns, refused, partly in to_lanes_and_back(streams, TURNS, PORT):
        assert turns > 200 and not refused and not partly, f"{refused} were refused and {partly} cut, of {turns}"
    assert streams.counter("reset") == 0


TOGETHER = (
    CONNECT
    + """
import threading
size, threads, each = 1000, 4, 2
whole = size * threads * each
one.setblocking(True)
batches = split = 0
over = ends = False
def stop(*_):
    global ends
    ends = True
def send(mark):
    while meet.wait() >= 0 and not over:
        for _ in range(each):
            assert one.send(bytes([mark]) * size) == size
if role == 'run':
    signal.signal(signal.SIGTERM, stop)
    meet = threading.Barrier(threads + 1)
    senders = [threading.Thread(target=send, args=(mark,)) for mark in range(threads)]
    for sender in senders:
        sender.start()
    while not ends:
        meet.wait()
        assert one.recv(1) == b'.'
        batches += 1
    over = True
    meet.wait()
    for sender in senders:
        sender.join()
    one.shutdown(socket.SHUT_WR)
while role == 'serve':
    came = one.recv(whole, socket.MSG_WAITALL)
    if not came:
        break
    batches += 1
    split += any(len(set(came[at:at + size])) > 1 for at in range(0, whole, size))
    one.sendall(b'.')
print(batches, split, flush=True)
"""
)
"""Threads send messages at the same time, no more than there is always room for, and the other end answers."""


def test_threads_that_send(stage: str, streams: Streams) -> None:
    """While connections go to lanes and back, a message of one thread has none of another's in it."""
    for batches, split in to_lanes_and_back(streams, TOGETHER, PORT):
        assert batches > 200 and not split, f"{split} of {batches} batches"
    assert streams.counter("reset") == 0


SEND = (
    CONNECT
    + """
import errno
def pattern(at, size):
    return bytes((at + n) % 251 for n in range(size))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
one.setblocking(True)
if role == 'serve':
    if sys.argv[4] == 'unread':
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    came = b''
    while came != b'y':
        came = one.recv(1)
        one.send(came)
    if sys.argv[4] in ('full', 'unread'):
        signal.sigwait([signal.SIGTERM])
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    at = 0
    while part := one.recv(1 << 16):
        assert part == pattern(at, len(part)), at
        at += len(part)
    print('came', at, flush=True)
    sys.exit()

def queued():
    return struct.unpack('i', fcntl.ioctl(one, termios.TIOCOUTQ, b'    '))[0]
def writable():
    return int(bool(select.select([], [one], [], 0)[1]))
def send_all():
    global sent
    before = sent
    while True:
        try:
            sent += one.send(pattern(sent, 1000))
        except BlockingIOError:
            return sent - before
        except OSError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
if sys.argv[4] == 'unread':
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
print('pid', os.getpid(), flush=True)
# A lane that is not used is given back.
word = b'x'
while word == b'x':
    word = b'y' if signal.sigtimedwait([signal.SIGTERM], 0.01) else b'x'
    one.send(word)
    assert one.recv(1) == word
one.setblocking(False)
sent = 0
if sys.argv[4] in ('full', 'unread'):
    quiet = 0
    while quiet < 10:
        quiet = 0 if send_all() else quiet + 1
        time.sleep(0.01)
open(sys.argv[5], 'w').close()
signal.sigwait([signal.SIGTERM])
edges = select.epoll()
edges.register(one, select.EPOLLOUT | select.EPOLLET)
# What this end says of the lane is in TCP's queue, and stays there.
before = -1
while queued() < 16 or queued() != before:
    before = queued()
    time.sleep(0.2)
seen = [writable(), len(edges.poll(0))]
def wait_for_error():
    failed = select.poll()
    failed.register(one, 0)
    assert failed.poll(25000) == [(one.fileno(), select.POLLERR)]
def hear():
    try:
        one.send(pattern(sent, 1000))
    except OSError as error:
        assert error.errno == errno.EHOSTUNREACH, error
    else:
        sys.exit('no error')
if sys.argv[4] == 'error':
    one.setsockopt(socket.IPPROTO_IP, 11, 1)
    wait_for_error()
    hear()
if sys.argv[4] == 'urgent':
    try:
        one.send(b'!', socket.MSG_OOB)
    except BlockingIOError:
        seen += [writable(), len(edges.poll(0))]
before = queued()
pending = send_all()
seen += [writable(), len(edges.poll(0))]
if sys.argv[4] == 'error':
    wait_for_error()
print('pending', pending, queued() - before, *seen, flush=True)
if sys.argv[4] == 'error':
    signal.sigwait([signal.SIGTERM])
    hear()
if sys.argv[4] == 'close':
    one.close()
elif sys.argv[4] == 'shut':
    one.shutdown(socket.SHUT_WR)
    one.setblocking(True)
    assert one.recv(1) == b''
else:
    print('edge', len(edges.poll(60)), writable(), flush=True)
    one.setblocking(True)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    more = pattern(sent, 1 << 20)
    one.sendall(more)
    sent += len(more)
    one.close()
print('sent', sent, flush=True)
"""
)
"""One end sends without waiting while nothing carries the connection, and then goes on, or ends; the other reads."""

QUIET = "/tmp/quiet"
"""A file that the one that sends makes when it does nothing more, with the connection by a lane."""

CHAIN = "add table ip hole; add chain ip hole out { type filter hook output priority 0; }"
HOLE = f"add rule ip hole out tcp dport {PORT} drop; add rule ip hole out tcp sport {PORT} drop"
"""TCP brings nothing from one end to the other."""
NO_WAY = HOLE.replace("drop", "reject with icmp host-unreachable")
"""And is told so of each packet."""


PENDS = f"{PENDING} {PENDING} 1 1 0 0"
"""What is sent, by how much SIOCOUTQ grows, and whether poll() and an edge say that there is room, before and after."""


FULL = "0 0 1 1 0 0"
"""The same where there is no memory: a program learns that by trying."""

REFUSES = "0 0 1 1 0 0 0 0"
"""The same after a call that a lane does not carry: it waits, and all that follow do."""


@pytest.mark.parametrize("then", ["more", "shut", "close", "full", "unread", "urgent", "poor", "error"])
def test_sends_while_nothing_carries(stage: str, streams: Streams, then: str) -> None:
    """A call that does not wait sends 16 KiB while a connection cannot go back; all of it comes, in its place.

    With `full` the peer's program has read nothing before, and with `unread` it does not until the connection is back.
    The peer's module keeps what is in the ring, so that as a rule nothing is sent twice. With `poor` all connections
    have no memory left, and nothing is taken. With `error` the program is to hear of an error of TCP's that does not
    end the connection, and it hears of it, and the connection goes back meanwhile.
    """
    host = streams.host
    streams.leave_after(1)

    def states() -> list[str]:
        return [one["state"] for end in "ab" for one in streams.listed(end)]

    with host.popen(inside("b", "python3", "-c", SEND, "serve", "-", PORT, then)) as server:
        server.wait_for("ready", 60)
        with host.popen(inside("a", "python3", "-c", SEND, "run", IP[1], PORT, then, QUIET)) as client:
            pid = client.wait_for(r"pid (\d+)", 60)[1]
            until(lambda: streams.counter("tx_bytes") > 10, 30, "bytes go by a lane")
            streams.leave_after(NEVER)
            for end in "ab":
                host.run(inside(end, "nft", CHAIN))
            # At once: a lane that nobody uses is given back.
            hole = NO_WAY if then == "error" else HOLE
            # What the kernel says of a packet to its own sender comes by it.
            host.run("ip -n a link set lo up")
            holes = " && ".join(" ".join(map(shlex.quote, inside(end, "nft", hole))) for end in "ab")
            host.run(
                f"rm -f {QUIET}; kill -TERM {pid}; until [ -e {QUIET} ]; do kill -0 {pid} && sleep 0.01 || exit; done; "
                f"{holes} && echo 1 >{PARAMETERS}/go_back"
            )
            until(lambda: states() == ["going-back", "going-back"], 30, "nothing carries the connection")
            if then == "poor":
                host.run(f"echo 1 >{PARAMETERS}/unsent_max")
            client.terminate()
            said = client.wait_for(r"pending (.*)", 60)[1]
            for end in "ab":
                host.run(inside(end, "nft", "delete table ip hole"))
            if then in ("unread", "error"):
                until(lambda: states()[:1] == ["tcp"], 60, "the sender's end is back")
            if then == "error":
                client.terminate()
            if then in ("full", "unread"):
                server.terminate()
            sent = client.wait_for(r"sent (\d+)", 90)[1]
            if then == "error":
                # poll() calls a socket with an error writable.
                assert said.split()[:2] == PENDS.split()[:2]
            else:
                assert said == {"urgent": REFUSES, "poor": FULL}.get(then, PENDS)
            if then not in ("shut", "close"):
                assert client.wait_for(r"edge (.*)", 30)[1].split() == ["1", "1"]
            assert client.wait(60).code == 0, client.err
        assert server.wait_for(r"came (\d+)", 60)[1] == sent
    assert streams.counter("reset") == 0


URGENT = (
    CONNECT
    + """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
one.setblocking(True)
if role == 'run':
    one.send(b'!', socket.MSG_OOB)
    print('sent', flush=True)
    signal.sigwait([signal.SIGTERM])
    one.send(b'b')
    one.close()
else:
    signal.sigwait([signal.SIGTERM])
    came = b''
    while part := one.recv(100):
        came += part
    print('came', came, flush=True)
"""
)
"""One end sends an urgent byte first; the other reads when it is told to."""


def test_urgent_byte_before_a_lane(stage: str, streams: Streams) -> None:
    """A connection that has sent an urgent byte stays on TCP: a reader who skips it must not read what is ours."""
    host = streams.host
    streams.leave_after(1)
    with host.popen(inside("b", "python3", "-c", URGENT, "serve", "-", PORT)) as server:
        server.wait_for("ready", 60)
        with host.popen(inside("a", "python3", "-c", URGENT, "run", IP[1], PORT)) as client:
            client.wait_for("sent", 60)
            # The byte alone would have asked for a lane.
            stays = [("tcp", "stays")]
            until(lambda: [(one["state"], one["why"]) for one in streams.listed("a")] == stays, 30, "it stays on TCP")
            assert streams.counter("paired") == 0
            server.terminate()
            client.terminate()
            assert server.wait_for(r"came (.*)", 60)[1] == "b'b'"
    assert (streams.counter("rx_bytes"), streams.counter("reset")) == (0, 0)
