# SPDX-License-Identifier: GPL-2.0
"""Connections of TCP by lanes: the stream path (kernel/paths/tcp/) over the loopback transport.

Both ends are in one machine with several CPUs of its own: the lab's KVM host.
"""

import errno
import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from vmlab import Host
from vmlab.process import Process

from tests.guest.net import BIN, TOOLS, Transfer, until
from tests.guest.streams import NEVER, PARAMETERS, Streams
from tests.guest.veth import IP, MAC, inside

pytestmark = [pytest.mark.loopback, pytest.mark.kvm_only]

PORT = 5501
SOCKETS = Path(__file__).parent / "tools/sockets.py"
RARE = Path(__file__).parent / "tools/rare.py"
LATE = Path(__file__).parent / "tools/late.py"
SLOW_MEMORY = Path(__file__).parent / "tools/slow_memory.py"
CGROUP_PROGRAM = Path(__file__).parent / "tools/cgroup_program.py"
KIND = 1 << 2
"""The bit of lanes that carry streams: VMLOOP_LANE_STREAM."""


@contextmanager
def transfer(streams: Streams, source: str = "a", port: int = PORT) -> Iterator[Transfer]:
    """A checked stream from one namespace to the other for the time of the block."""
    host = streams.host
    sink, address = ("b", IP[1]) if source == "a" else ("a", IP[0])
    words = inside(source, TOOLS / "stream", "send", address, port)
    one = Transfer(host.popen(inside(sink, TOOLS / "stream", "receive", port)), partial(host.popen, words), 1)
    try:
        yield one
    finally:
        one.close()


def test_stream(stage: str, streams: Streams) -> None:
    """A long stream goes over to a lane, and every byte of it is what was sent."""
    with transfer(streams) as one:
        until(lambda: streams.counter("rx_bytes") > 200 << 20, 60, "bytes that came by a lane")
        one.finish()
    assert streams.counter("paired") == 2 and streams.counter("back") == 2
    assert streams.counter("reset") == 0


def test_loading(stage: str, streams: Streams, request: pytest.FixtureRequest) -> None:
    """The module comes and goes under connections, and each time those that are new get lanes."""
    host = streams.host
    loads = request.config.getoption("--loads")
    # Without a rest TCP's own queues take a slow kernel's CPUs, and rmmod waits for RCU.
    pause = 0 if loads < 20 else 300
    # Conntrack's work walks all of its buckets, 262,144 by default, once a minute. With KASAN and lockdep that takes
    # long, and the grace period of RCU's tasks, for which rmmod waits, does not end before it.
    host.run("f=/proc/sys/net/netfilter/nf_conntrack_buckets; [ ! -e $f ] || echo 1024 >$f")
    # After the first load these go on by TCP, since their listener is older than the module. They rest for longer.
    with duplex(streams, 12, 3 * 3600, pause=4 * pause) as old:
        for number in range(loads):
            if number:
                streams.load_stream()
            streams.leave_after(1)
            # What listened before the module came is not taken over.
            with duplex(streams, 4, 3600, PORT + 1, pause) as new:
                until(lambda: streams.counter("rx_bytes") > 1 << 20 or new.poll() is not None, 60, "bytes by lanes")
                # With KASAN and lockdep a grace period of RCU's tasks alone can take a minute.
                host.run("rmmod vmloop_tcp", timeout=300)
                new.terminate()
                result = new.wait(60)
            assert result.code == 0, f"load {number}: {result.err}"
        old.terminate()
        result = old.wait(60)
    assert result.code == 0, result.err


@contextmanager
def duplex(streams: Streams, connections: int, seconds: int, port: int = PORT, pause: int = 0) -> Iterator[Process]:
    """Connections that carry known bytes both ways; a sender rests for so many milliseconds after each record."""
    host = streams.host
    with host.popen(inside("b", TOOLS / "duplex", "serve", port, pause)) as server:
        server.wait_for("ready")
        with host.popen(inside("a", TOOLS / "duplex", "run", IP[1], port, connections, seconds, pause)) as client:
            yield client


def asking(host: Host, what: str, milliseconds: int) -> Process:
    """Connections are asked to go back to TCP so often: "all", or those that are "carried" by their lanes."""
    return host.popen([str(TOOLS / "ask"), f"{PARAMETERS}/go_back", what, str(milliseconds)])


@pytest.mark.main("bytes were lost or came twice where a stream goes from TCP to a lane or back")
def test_switching(stage: str, streams: Streams, request: pytest.FixtureRequest) -> None:
    """Connections go to lanes and back all the time, at any byte of either direction: twelve, if it is for long."""
    host = streams.host
    switches = request.config.getoption("--switches")
    # The long run is for KASAN and lockdep, where connections without a rest take all time for bytes.
    connections, pause = (4, 0) if switches < 1000 else (12, 500)
    streams.leave_after(1)
    with (
        duplex(streams, connections, 2400 + 5 * switches, pause=pause) as client,
        asking(host, "carried", 2) as often,
        # This ends lanes on their way, too. Asked so each 2 ms, hardly one would carry anything.
        asking(host, "all", 300) as now_and_then,
    ):
        programs = (client, often, now_and_then)
        # Both ends of a connection count the lane that came and went. How much a lane carries in its 2 ms is the
        # machine's speed: the bytes are waited for as well.
        until(
            lambda: (
                (streams.counter("back") >= 2 * switches and streams.counter("rx_bytes") > 1 << 20)
                or any(one.poll() is not None for one in programs)
            ),
            120 + switches,
            "lanes that came and went, and carried a MiB",
        )
        for one in programs:
            one.terminate()
        results = [one.wait(60) for one in programs]
    assert all(result.code == 0 for result in results), [result.err for result in results]
    result = results[0]
    assert json.loads(result.out)["received"] > 1 << 20
    assert streams.counter("back") >= 2 * switches and streams.counter("reset") == 0
    assert streams.counter("rx_bytes") > 1 << 20


def test_switching_without_memory(stage: str, streams: Streams) -> None:
    """Connections go to lanes and back while TCP has no more memory than each socket is sure of."""
    host = streams.host
    before = host.run("sysctl -n net.ipv4.tcp_mem").out
    streams.leave_after(1)
    with duplex(streams, 4, 2400) as client:
        until(lambda: streams.counter("paired") > 0, 60, "lanes")
        # Read first: TCP is short of memory as soon as the limit is there, and counts that when it begins.
        refused = memory_refusals(host)
        host.run("sysctl -qw net.ipv4.tcp_mem='1 1 1'")
        try:
            with host.popen(f"while :; do echo 1 >{PARAMETERS}/go_back; sleep 0.1; done"):
                target = streams.counter("back") + 60
                until(lambda: streams.counter("back") >= target or client.poll() is not None, 240, "lanes that ended")
                assert streams.counter("back") >= target, f"the connections have ended: {client.err}"
            assert memory_refusals(host) > refused, "TCP had memory"
        finally:
            host.run(["sysctl", "-qw", f"net.ipv4.tcp_mem={before.strip()}"])
        client.terminate()
        result = client.wait(60)
    assert result.code == 0, result.err
    assert streams.counter("reset") == 0


def memory_refusals(host: Host) -> int:
    """How often TCP of either namespace was short of memory, pruned a queue for that, or dropped what came."""
    names = ("TcpExtPruneCalled", "TcpExtTCPRcvQDrop", "TcpExtTCPRcvCollapsed", "TcpExtTCPMemoryPressures")
    text = "".join(host.run(inside(name, "nstat", "-asz", *names)).out for name in ("a", "b"))
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Tcp"))


HOLE = (
    "add table ip hole; add chain ip hole out { type filter hook output priority 0; }; "
    f"add rule ip hole out tcp dport {PORT} meta length > 400 counter drop"
)
OUTAGE = 75
"""Seconds in which no data comes by TCP; bytes of lanes are kept for those that come before them."""


def test_tcp_that_owes_for_long(stage: str, streams: Streams) -> None:
    """Connections go back to TCP while it owes bytes from before their lanes, and brings none of them for a minute."""
    host = streams.host

    def going_back() -> set[str]:
        """The ends that the hole keeps from TCP's bytes, by their peers' addresses."""
        return {one["remote"] for one in streams.listed("b") if one["state"] == "going-back"}

    streams.leave_after(1)
    with duplex(streams, 4, 2400) as client:
        until(lambda: streams.counter("rx_bytes") > 1 << 20, 30, "bytes that came by lanes")
        host.run(inside("a", "nft", HOLE))
        for _ in range(10):
            host.run(f"echo 1 >{PARAMETERS}/go_back; sleep 1")
        # Ends in "a" may come back late: the hole also drops acknowledgments that carry bytes.
        waiting = going_back()
        host.run(f"sleep {OUTAGE - 10}", timeout=OUTAGE + 60)
        assert waiting and waiting <= going_back(), "ends wait for what TCP owes"
        assert " packets 0 " not in host.run(inside("a", "nft", "list table ip hole")).out
        before = streams.counter("back")
        host.run(inside("a", "nft", "delete table ip hole"))
        until(lambda: streams.counter("back") > before or client.poll() is not None, 180, "lanes come and go again")
        client.terminate()
        result = client.wait(180)
    assert result.code == 0, result.err
    assert streams.counter("reset") == 0


@pytest.mark.main("without the packet path no connection ever got a lane")
def test_without_packets(stage: str, streams: Streams) -> None:
    """The stream path asks for the channel itself."""
    streams.host.run("rmmod vmloop_loopback vmloop_net")
    streams.host.run(["insmod", str(streams.modules / "vmloop_loopback.ko"), f"interfaces={','.join(MAC)}"])
    assert streams.states() == {"none"}
    with duplex(streams, 2, 2400) as client:
        until(lambda: streams.counter("rx_bytes") > 10 << 20, 30, "bytes that came by lanes")
        client.terminate()
        result = client.wait(60)
    assert result.code == 0, result.err
    assert streams.states() == {"up"}


CONNECT = """
import fcntl, os, select, signal, socket, struct, sys, termios, time
role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == 'serve':
    print('ready', flush=True)
    with socket.create_server(('', port)) as listener:
        one, _ = listener.accept()
else:
    one = socket.create_connection((address, port))
one.setblocking(False)
"""
"""The beginning of programs that have one connection: `serve - PORT` accepts it, `run HOST PORT` makes it."""

ANEW = """
import ctypes, socket, struct
libc = ctypes.CDLL(None, use_errno=True)

def place(host, port):
    return struct.pack('=H', socket.AF_INET) + struct.pack('>H', port) + socket.inet_aton(host) + bytes(8)

def connect_anew(fd, there):
    # AF_UNSPEC: it is disconnected, and makes another connection before anything else runs.
    assert libc.connect(fd, bytes(16), 16) == libc.connect(fd, there, 16) == 0
"""
"""Has a socket make another connection, to an address that is made before."""

TURNS = (
    CONNECT
    + """
one.setblocking(True)
if role == 'run':
    ends = []
    signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
    while not ends:
        one.sendall(b'x')
        assert one.recv(1) == b'x'
else:
    part = one.recv(1)
    while part:
        one.sendall(part)
        part = one.recv(1)
"""
)
"""The same, with a byte that goes to and fro until `run` is told to end; `serve` has read the end behind that."""

ECHO = (
    CONNECT
    + """
waits = select.epoll()
waits.register(one, select.EPOLLIN)
events = in_vain = owed = 0
more = b'x' * 3000
ends = False
if role == 'run':
    one.send(more)
    import signal
    def stop(*_):
        global ends
        ends = True
    signal.signal(signal.SIGTERM, stop)
while True:
    for _, what in waits.poll(0.2):
        events += 1
        try:
            got = one.recv(1 << 16)
        except BlockingIOError:
            # Of a hang-up it is told unasked.
            in_vain += what & select.EPOLLIN > 0
            continue
        if not got:
            print(events, in_vain, flush=True)
            sys.exit()
        owed += len(got)
    if ends:
        one.shutdown(socket.SHUT_WR)
        ends = False
    try:
        while owed and (role == 'serve' or not ends):
            owed -= one.send(more[:owed])
    except BlockingIOError:
        pass
    except BrokenPipeError:
        owed = 0
"""
)
"""A program at each end that sends back what comes, and counts how often poll() promised bytes, and when in vain."""


def to_lanes_and_back(streams: Streams, program: str, port: int = PORT) -> list[list[int]]:
    """The last words of both ends of a program whose connection goes to a lane and back again and again."""
    host = streams.host
    streams.leave_after(1)
    with host.popen(inside("b", "python3", "-c", program, "serve", "-", port)) as server:
        server.wait_for("ready", 60)
        with (
            host.popen(inside("a", "python3", "-c", program, "run", IP[1], port)) as client,
            host.popen(f"while :; do echo 1 >{PARAMETERS}/go_back; sleep 0.01; done"),
        ):
            until(lambda: streams.counter("back") >= 200 or client.poll() is not None, 90, "lanes that came and went")
            client.terminate()
            said = [one.wait(60) for one in (client, server)]
    assert [one.code for one in said] == [0, 0], [one.err for one in said]
    return [list(map(int, one.out.splitlines()[-1].split())) for one in said]


@pytest.mark.main("poll() promised bytes that recv() did not have: libuv's tests")
def test_poll_promises(stage: str, streams: Streams) -> None:
    """While connections go to lanes and back, what poll() says is readable can be read."""
    for events, in_vain in to_lanes_and_back(streams, ECHO):
        assert events > 200 and not in_vain, f"{in_vain} of {events} times there was nothing"


COUNT = f"""
add table inet keep
add chain inet keep comes {{ type filter hook input priority 0; }}
add chain inet keep goes {{ type filter hook output priority 0; }}
add rule inet keep comes tcp sport {PORT} counter
add rule inet keep goes tcp dport {PORT} counter
"""


def test_kept_alive(stage: str, streams: Streams) -> None:
    """While a lane carries a connection, both ends are heard by TCP now and then: a firewall must not forget it."""
    host = streams.host

    def packets() -> list[int]:
        said = host.run(inside("a", "nft", "-j", "list", "table", "inet", "keep")).out
        rules = [one["rule"] for one in json.loads(said)["nftables"] if "rule" in one]
        return [part["counter"]["packets"] for rule in rules for part in rule["expr"] if "counter" in part]

    host.run(f"echo 1 >{PARAMETERS}/keep_alive")
    host.run(inside("a", "nft", COUNT))
    streams.leave_after(1)
    with duplex(streams, 2, 2400) as client:
        until(lambda: streams.counter("rx_bytes") > 10 << 20, 30, "bytes that came by lanes")
        before, lanes = packets(), streams.counter("paired")
        until(
            lambda: (
                all(now - then >= 6 for now, then in zip(packets(), before, strict=True)) or client.poll() is not None
            ),
            30,
            "both ends are heard of",
        )
        assert (streams.counter("paired"), streams.counter("back")) == (lanes, 0), "they went by TCP meanwhile"
        client.terminate()
        result = client.wait(60)
    assert result.code == 0, result.err


@pytest.mark.parametrize("end", ["off", "transport", "broken", "module"])
def test_ends(stage: str, streams: Streams, end: str) -> None:
    """However a lane ends, the connection goes on by TCP, and not a byte is lost, repeated or changed."""
    host = streams.host
    with duplex(streams, 6, 2400) as client:
        until(lambda: streams.counter("rx_bytes") > 10 << 20, 30, "bytes that came by lanes")
        assert client.poll() is None and streams.counter("back") < streams.counter("paired"), "no lane is in use"
        if end == "off":
            host.run([str(TOOLS / "control"), "off"])
        elif end == "transport":
            host.run("rmmod vmloop_loopback")
        elif end == "broken":
            host.run("echo 1 >/sys/module/vmloop_loopback/parameters/spoil")
        else:
            host.run("rmmod vmloop_tcp", timeout=120)
        if end != "module":
            until(lambda: streams.counter("back") >= 2 or client.poll() is not None, 30, "connections are back")
        client.terminate()
        result = client.wait(60)
    assert result.code == 0, result.err
    if end != "module":
        assert streams.counter("back") >= 2 and streams.counter("reset") == 0


@pytest.mark.parametrize(
    ("first", "buffer", "end"),
    [
        (0, 0, "back"),
        (0, 0, "module"),
        (100_001, 0, "back"),
        pytest.param(100_001, 0, "module", marks=pytest.mark.main("rmmod waited for programs")),
        (0, 8192, "back"),
        (0, 8192, "module"),
    ],
)
def test_late_reader(stage: str, streams: Streams, end: str, first: int, buffer: int) -> None:
    """A lane ends before its bytes are read: TCP has them, in order, and nothing waits for the reader."""
    host = streams.host
    size = 16 << 20
    streams.leave_after(1)
    with host.popen(inside("b", "python3", LATE, "serve", PORT, first, buffer)) as reader:
        reader.wait_for("ready", 60)
        with host.popen(inside("a", "python3", LATE, "send", IP[1], PORT, size)):
            reader.wait_for("waiting", 60)
            # A ring is full, or nearly: a sender waits for a quarter. After four seconds the module takes the bytes,
            # and counts them as received.
            read = streams.counter("rx_bytes")
            until(lambda: streams.counter("tx_bytes") - read > 48 << 10, 60, "a ring was full")
            if end == "module":
                host.run("rmmod vmloop_tcp", timeout=120)
            else:
                streams.leave_after(NEVER)
                host.run(f"echo 1 >{PARAMETERS}/go_back")
                until(lambda: streams.counter("back") == 2, 30, "both ends are back")
                assert streams.counter("reset") == 0
            reader.terminate()
            until(lambda: reader.out.count("\n") == 3, 60, "the reader's last words")
    _, before, last = reader.out.splitlines()
    word, bytes_read, after = last.split()
    assert (word, int(bytes_read)) == ("right", size)
    if buffer and end != "module":
        assert after == before.split()[1], "the program's receive buffer has another size"


READER = """
import signal, socket, sys, time
role, address, port, size, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
pattern = bytes(range(251)) * 600
at = 0
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
if role == 'read':
    with socket.create_server(('', port)) as listener:
        print('ready', flush=True)
        one, _ = listener.accept()
    one.setblocking(False)
    ended = False
    while not ended:
        time.sleep(pause)
        if len(told) == 1:
            continue
        try:
            while got := one.recv(size):
                assert got == pattern[at % 251:][:len(got)], at
                at += len(got)
                if size < 65536 or len(told) == 1:
                    break
            else:
                ended = True
        except BlockingIOError:
            pass
else:
    with socket.create_connection((address, port)) as one:
        while not told:
            at += one.send(pattern[at % 251:])
print(at, flush=True)
"""
"""Reads all that there is, or so much, after each pause, and nothing from one SIGTERM to the next; the other role sends
without a pause, up to one.
"""


@pytest.mark.parametrize(
    ("size", "pause", "ring"), [(1 << 16, 0.005, 128 << 10), (4096, 0.002, 64 << 10)], ids=["bursts", "slow"]
)
def test_ring_grows(stage: str, streams: Streams, size: int, pause: float, ring: int) -> None:
    """A reader that empties its ring has a larger one, as its user's share allows, and one that is slow has not."""
    host = streams.host

    def ring_is() -> int:
        listed = host.run(inside("a", BIN / "vmloop", "--guest", "streams", "--json")).out
        return max((end["ring_size"] for end in json.loads(listed)), default=0)

    streams.leave_after(1)
    words = (PORT, size, pause)
    with host.popen(inside("b", "python3", "-c", READER, "read", "-", *words)) as reader:
        reader.wait_for("ready", 60)
        with host.popen(inside("a", "python3", "-c", READER, "send", IP[1], *words)) as sender:
            until(lambda: streams.counter("rx_bytes") > 4 << 20, 120, "bytes by the ring")
            until(lambda: ring_is() == ring, 60, f"the ring has {ring} bytes")
            # It ends while all of it is full, but for what a sender does not wait for.
            reader.terminate()
            full = ring - ring // 4
            until(lambda: streams.counter("tx_bytes") - streams.counter("rx_bytes") >= full, 60, "the ring is full")
            streams.leave_after(NEVER)
            host.run(f"echo 1 >{PARAMETERS}/go_back")
            until(lambda: streams.counter("back") == 2, 30, "both ends are back")
            reader.terminate()
            sender.terminate()
            sent = int(sender.wait(60).out)
        assert int(reader.wait(120).out.splitlines()[-1]) == sent
    assert streams.counter("reset") == 0


SHORT = """
import json, select, socket, sys, time
role, address, port, size, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
def wait_for_the_end(one):
    poll = select.poll()
    poll.register(one, select.POLLRDHUP)
    while not poll.poll():
        pass
    one.setblocking(False)
if role == 'serve':
    with socket.create_server(('', port)) as listener:
        print('ready', flush=True)
        while True:
            one, _ = listener.accept()
            came = 0
            with one:
                while got := one.recv(1 << 16):
                    came += len(got)
                try:
                    one.sendall(came.to_bytes(8, 'big'))
                except OSError as error:
                    print(came, error, flush=True)
                if came != size:
                    print(came, flush=True)
block = bytes(size)
count, wrong = 0, []
until = time.monotonic() + seconds
while time.monotonic() < until and count < 10_000 and len(wrong) < 10:
    with socket.create_connection((address, port)) as one:
        answer = b''
        step = 'send'
        try:
            one.sendall(block)
            step = 'shutdown'
            one.shutdown(socket.SHUT_WR)
            if role == 'polls':
                step = 'poll'
                wait_for_the_end(one)
            step = 'recv'
            while got := one.recv(8):
                answer += got
        except OSError as error:
            wrong.append([count, step, str(error)])
        else:
            if int.from_bytes(answer, 'big') != size:
                wrong.append([count, answer.hex()])
    count += 1
print(json.dumps([count, wrong]))
"""
"""Connections one after the other, which are over as soon as each end has had its say."""


MAIN = pytest.mark.main("a short answer was lost where a connection ended while it got a lane")


@pytest.mark.parametrize("client", [pytest.param("reads", marks=MAIN), "polls"])
def test_short_connections(stage: str, streams: Streams, client: str) -> None:
    """A connection gets a lane as it ends: what the other end says last comes, before the end is told."""
    host, size = streams.host, 64 << 10
    streams.leave_after(size)
    with host.popen(inside("b", "python3", "-c", SHORT, "serve", "-", PORT, size, 0)) as server:
        server.wait_for("ready", 60)
        said = host.run(inside("a", "python3", "-c", SHORT, client, IP[1], PORT, size, 12), timeout=120).out
        assert server.poll() is None, server.err
    count, wrong = json.loads(said)
    counters = {name: streams.counter(name) for name in ("taken", "paired", "back", "reset")}
    assert not wrong, f"of {count} answers these did not come: {wrong}; {counters}; {server.out}"
    assert count > 20 and counters["paired"] > 20 and counters["reset"] == 0, counters


PEEK = (
    CONNECT
    + """
one.setblocking(True)
if role == 'serve':
    one.sendall(b'12345678')
    time.sleep(0.5)
    one.sendall(b'abcdefgh')
    one.recv(1)
else:
    count = len(one.recv(16, socket.MSG_PEEK | socket.MSG_TRUNC | socket.MSG_WAITALL))
    seen = one.recv(16, socket.MSG_PEEK | socket.MSG_WAITALL)
    print('seen', count, len(seen), one.recv(16, socket.MSG_WAITALL) == seen == b'12345678abcdefgh', flush=True)
"""
)
"""One end sends in two parts; the other looks at both before it reads."""


def test_peek_waits(stage: str, streams: Streams) -> None:
    """A call that looks at bytes waits for as many as it wants, as TCP's does, where TCP carries the connection."""
    host = streams.host
    with host.popen(inside("b", "python3", "-c", PEEK, "serve", "-", PORT)) as server:
        server.wait_for("ready", 60)
        assert host.run(inside("a", "python3", "-c", PEEK, "run", IP[1], PORT), timeout=60).out == "seen 16 16 True\n"
        assert server.wait(30).code == 0, server.err
    assert streams.counter("taken") == 2


TRICKLE = """
import socket, sys, time
role, address, port, option = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if role == 'serve':
    print('ready', flush=True)
    with socket.create_server(('', port)) as listener:
        connection, _ = listener.accept()
    while connection.recv(1 << 16):
        pass
else:
    connection = socket.create_connection((address, port))
    if option:
        # As a rate, one that nobody here sees.
        connection.setsockopt(socket.SOL_SOCKET, option, 1 << 30)
    while True:
        connection.sendall(bytes(1024))
        time.sleep(0.005)
"""
"""A connection on which a little comes all the time."""
SO_TIMESTAMP, SO_MAX_PACING_RATE = 29, 47


@pytest.mark.parametrize(
    "option",
    [
        pytest.param(0, id="lane", marks=pytest.mark.main("vmloop streams did not say what carries a connection")),
        pytest.param(SO_TIMESTAMP, id="tcp"),
        pytest.param(SO_MAX_PACING_RATE, id="paced"),
    ],
)
def test_list(stage: str, streams: Streams, option: int) -> None:
    """`vmloop streams` has both ends of a connection, each in its namespace, what carries it, why, and whose it is."""
    host = streams.host

    def listed(namespace: str, *words: str) -> str:
        return host.run(inside(namespace, BIN / "vmloop", "--guest", "streams", *words)).out

    def both() -> list[dict]:
        found = [streams.listed(namespace) for namespace in "ab"]
        assert all(len(ends) <= 1 for ends in found), found
        return [end for ends in found for end in ends]

    streams.leave_after(1)
    with host.popen(inside("b", "python3", "-c", TRICKLE, "serve", "-", PORT, 0)) as server:
        server.wait_for("ready", 60)
        with host.popen(inside("a", "python3", "-c", TRICKLE, "send", IP[1], PORT, option)) as client:
            wanted = ("tcp", "option") if option else ("lane", "")

            def stands() -> list[dict]:
                ends = both()
                if len(ends) < 2 or (ends[0]["state"], ends[0]["why"]) != wanted:
                    return []
                return ends if option or ends[1]["bytes_received"] else []

            sender, receiver = until(stands, 30, f"the sender's end is {wanted}")
            assert client.poll() is None
            text = listed("a").splitlines()
            outside = host.run([str(BIN / "vmloop"), "--guest", "streams", "--json"]).out
        server.wait(30)
    assert sender["remote"] == receiver["local"] == f"{IP[1]}:{PORT}"
    assert sender["local"] == receiver["remote"]
    assert (sender["active"], receiver["active"]) == (True, False)
    for end in (sender, receiver):
        assert [program["name"] for program in end["programs"]] == ["python3"], end
        assert bool(end["lanes"]) == bool(end["bytes_sent"] + end["bytes_received"]) == (not option), end
    if option:
        assert receiver["state"] == "tcp"
        assert any("option" in line for line in text), text
    else:
        assert sender["bytes_sent"] and not sender["bytes_received"]
        assert sender["lane"] == receiver["lane"] and sender["ring_size"] == 64 << 10
    assert json.loads(outside) == [], "of another network namespace"
    until(lambda: not both(), 30, "connections that have ended are not listed")


BEHIND = """
import fcntl, signal, socket, sys, termios, time
role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
first, piece, many, few = 40000, 16384, 80, 40
def receive(one, left):
    while left:
        got = len(one.recv(min(left, piece)))
        assert got, 'the end came too early'
        left -= got
def send(one, pieces):
    for _ in range(pieces):
        one.sendall(bytes(piece))
        time.sleep(0.01)
if role == 'serve':
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    with socket.create_server(('', port)) as listener:
        print('ready', flush=True)
        one, _ = listener.accept()
    while int.from_bytes(fcntl.ioctl(one, termios.FIONREAD, bytes(4)), 'little') < first:
        pass
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    send(one, many)
    signal.sigwait({signal.SIGUSR1})
    receive(one, first)
    send(one, few)
    one.recv(1)
else:
    with socket.create_connection((address, port)) as one:
        one.sendall(bytes(first))
        receive(one, many * piece)
        print('behind', flush=True)
        receive(one, few * piece)
        print('done', flush=True)
        signal.sigwait({signal.SIGTERM})
"""
"""The end that accepts sends much before it reads what has come, more than its buffer may have; then a little.

Much is three refusals' worth, and less than the fourth's where each takes four times as much as the one before.
"""


def test_reader_that_was_behind(stage: str, streams: Streams) -> None:
    """A connection whose program did not read is tried again soon: its lane need not wait for many times as much."""
    host = streams.host

    def why(namespace: str) -> list[tuple[str, str]]:
        found = json.loads(host.run(inside(namespace, BIN / "vmloop", "--guest", "streams", "--json")).out)
        return [(one["state"], one["why"]) for one in found]

    streams.leave_after(1 << 16)
    with host.popen(inside("b", "python3", "-c", BEHIND, "serve", "-", PORT)) as server:
        server.wait_for("ready", 60)
        with host.popen(inside("a", "python3", "-c", BEHIND, "run", IP[1], PORT)) as client:
            client.wait_for("behind", 60)
            until(lambda: why("a") == [("tcp", "busy")], 10, "the end that asks has been refused for the moment")
            assert why("b") == [("tcp", "unread")]
            assert streams.counter("paired") == 0
            server.send_signal(signal.SIGUSR1)
            client.wait_for("done", 60)
            until(lambda: streams.counter("paired") >= 2, 30, "both ends have a lane")
            assert streams.counter("reset") == 0


def test_ports_left_out(stage: str, streams: Streams) -> None:
    """The module begins with a rule for each port that it is to leave out, and does not load with what is none."""
    host = streams.host

    def ports(*parameters: str) -> list[list[int]] | str:
        host.run("rmmod vmloop_tcp")
        result = host.run(["insmod", str(streams.modules / "vmloop_tcp.ko"), *parameters], check=False)
        if result.code:
            streams.load_stream()
            return result.err
        rules = json.loads(host.run([str(BIN / "vmloop"), "stream", "rules", "--json"]).out)
        return [rule["ports"] for rule in rules]

    assert ports() == [[22, 22]]
    assert ports("left_out=0") == []
    assert ports("left_out=22,5432") == [[22, 22], [5432, 5432]]
    assert "Invalid" in ports("left_out=22,65536")


SIX = "ip -n a addr add fd09::1/64 dev va nodad && ip -n b addr add fd09::2/64 dev vb nodad"


TCP, MPTCP = socket.IPPROTO_TCP, 262


@pytest.mark.parametrize(
    ("there", "listens"),
    [
        pytest.param(IP[1], TCP, id="4", marks=pytest.mark.main("a program saw another socket than TCP's")),
        pytest.param(f"::ffff:{IP[1]}", TCP, id="mapped"),
        pytest.param("fd09::2", TCP, id="6"),
        pytest.param(IP[1], MPTCP, id="mptcp"),
    ],
)
def test_calls(stage: str, streams: Streams, there: str, listens: int) -> None:
    """Calls return by lanes, and by TCP through the module, what the kernel's return: tools/sockets.py has them."""
    streams.host.run(SIX)
    seen = outcomes(streams, SOCKETS, there, listens)
    assert seen["tcp"] == seen["kernel"]
    assert seen["lane"] == seen["kernel"]
    assert streams.counter("reset") == 0


def outcomes(
    streams: Streams, tool: Path, there: str, *options: object, by_lanes: tuple[str, ...] = ()
) -> dict[str, list[str]]:
    """What both ends of each case print, by the kernel alone, by TCP through the module, and by lanes."""
    host = streams.host
    ports = {way: PORT + 2 + 4 * n for n, way in enumerate(("kernel", "tcp", "lane"))}
    rule = f"{ports['kernel']}-{ports['kernel'] + 3}"
    host.run([str(BIN / "vmloop"), "stream", "add", "tcp", "--port", rule])

    def one_way(way: str) -> list[str]:
        port, more = ports[way], by_lanes if way == "lane" else ()
        with host.popen(inside("b", "python3", tool, "serve", port, *options, *more)) as server:
            server.wait_for("ready", 60)
            client = host.run(inside("a", "python3", tool, "run", there, port, *more), check=False, timeout=240)
            cases = client.out.count("\n")
            resets = streams.counter("reset")
            said = f"{way}, after {cases} cases, {resets} resets: {client.err} {server.poll()} {server.err}"
            assert client.code == 0, said + client.out + server.out
            until(lambda: server.out.count("\n") > cases, 30, "the server's last words")
            # All of them, and both ends.
            paired = streams.counter("paired")
            assert paired >= 2 * cases if way == "lane" else not paired
            return sorted(client.out.splitlines() + server.out.splitlines())

    # What has no lanes waits most of its time: both at once.
    streams.leave_after(NEVER)
    with ThreadPoolExecutor() as threads:
        seen = dict(zip(("kernel", "tcp"), threads.map(one_way, ("kernel", "tcp")), strict=True))
    streams.leave_after(1)
    return seen | {"lane": one_way("lane")}


@pytest.mark.parametrize("there", [IP[1], f"::ffff:{IP[1]}", "fd09::2"], ids=["4", "mapped", "6"])
def test_rare_calls(stage: str, streams: Streams, there: str) -> None:
    """As test_calls, by calls that few programs make: tools/rare.py has them, and what carries them by lanes."""
    host = streams.host
    host.run(SIX)
    host.run("modprobe tls")
    for namespace in "ab":
        host.run(inside(namespace, "sysctl", "net.ipv4.tcp_fastopen=3"))
    seen = outcomes(streams, RARE, there, by_lanes=("lanes",))
    assert not [line for line in seen["kernel"] if "ENOENT" in line or "ENOSYS" in line], "the kernel cannot do it"
    assert seen["tcp"] == seen["kernel"]
    assert seen["lane"] == seen["kernel"]
    assert streams.counter("reset") == 0


ESP = ["proto", "esp", "mode", "transport", "aead", "rfc4106(gcm(aes))", "0x" + "11" * 20, 128]


def encrypt(streams: Streams, keys: bool = True) -> None:
    """Have what the two namespaces say to each other encrypted; without keys, nothing may be said."""
    for name, own in zip("ab", IP, strict=True):
        for spi, source, target in ((256, *IP), (512, *IP[::-1])):
            ends = ["src", source, "dst", target]
            if keys:
                streams.host.run(inside(name, "ip", "xfrm", "state", "add", *ends, "spi", spi, *ESP))
            policy = ["policy", "add", *ends, "dir", "out" if source == own else "in"]
            streams.host.run(inside(name, "ip", "xfrm", *policy, "tmpl", *ends, *ESP[:4]))


@pytest.mark.parametrize(
    "when",
    ["before", pytest.param("meanwhile", marks=pytest.mark.main("what a new policy encrypts went on in the clear"))],
)
def test_ipsec(stage: str, streams: Streams, when: str) -> None:
    """What policy encrypts goes by no lane, also if that was not so when the lane began; without it, it has one."""
    host = streams.host
    host.run("modprobe -a esp4 xfrm_user")

    def encrypted() -> int:
        said = host.run(inside("b", "ip", "-s", "xfrm", "state", "list", "dst", IP[1])).out
        return int(said.split("lifetime current:")[1].split("(bytes)")[0])

    def by_tcp() -> bool:
        found = json.loads(host.run(inside("a", BIN / "vmloop", "--guest", "streams", "--json")).out)
        return all(one["state"] == "tcp" for one in found)

    streams.leave_after(1)
    if when == "before":
        encrypt(streams)
    with duplex(streams, 2, 2400) as client:
        if when == "meanwhile":
            until(lambda: streams.counter("rx_bytes") > 1 << 20, 60, "bytes by lanes")
            encrypt(streams)
            until(by_tcp, 30, "the lanes have ended")
        before, by_lanes = encrypted(), streams.counter("rx_bytes")
        until(lambda: encrypted() > before + (1 << 20) or client.poll() is not None, 60, "encrypted bytes")
        assert by_tcp() and streams.counter("rx_bytes") == by_lanes
        assert bool(streams.counter("paired")) == (when == "meanwhile")
        for name in "ab":
            host.run(inside(name, "sh", "-c", "ip xfrm policy flush; ip xfrm state flush"))
        if when == "before":
            with duplex(streams, 2, 2400, PORT + 1) as new:
                until(lambda: streams.counter("rx_bytes") > 1 << 20, 60, "bytes by lanes")
                new.terminate()
                assert new.wait(60).code == 0
        client.terminate()
        result = client.wait(60)
    assert result.code == 0, result.err
    assert streams.counter("reset") == 0


def test_ipsec_without_keys(stage: str, streams: Streams) -> None:
    """A policy that has no keys yet ends lanes as well: what TCP may not say, no lane says."""
    host = streams.host
    host.run("modprobe -a esp4 xfrm_user")

    def states() -> set[str]:
        found = json.loads(host.run(inside("a", BIN / "vmloop", "--guest", "streams", "--json")).out)
        return {one["state"] for one in found}

    streams.leave_after(1)
    with duplex(streams, 2, 2400) as client:
        until(lambda: streams.counter("rx_bytes") > 1 << 20, 60, "bytes by lanes")
        encrypt(streams, keys=False)
        until(lambda: "lane" not in states(), 30, "the lanes have ended")
        before = streams.counter("rx_bytes")
        time.sleep(1)
        assert streams.counter("rx_bytes") == before, "bytes go in the clear"
        for name in "ab":
            host.run(inside(name, "sh", "-c", "ip xfrm policy flush; ip xfrm state flush"))
        until(lambda: streams.counter("rx_bytes") > before + (1 << 20), 120, "bytes by lanes again")
        client.terminate()
        result = client.wait(60)
    assert result.code == 0, result.err
    assert streams.counter("reset") == 0


RDS = """
import socket, sys
role, own, other = sys.argv[1:]
one = socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET)
one.bind((own, 4000))
if role == 'serve':
    print('ready', flush=True)
for number in range(400):
    data = bytes([number % 256]) * 8192
    if role == 'send':
        one.sendto(data, (other, 4000))
    came, source = one.recvfrom(1 << 16)
    assert came == data, number
    if role == 'serve':
        one.sendto(came, source)
"""
"""Messages there and back, which the kernel carries by a TCP connection of its own, to port 16385."""


def test_kernel_sockets(stage: str, streams: Streams) -> None:
    """The kernel's own connections are none of ours."""
    host = streams.host
    streams.leave_after(1)
    host.run("modprobe rds_tcp")
    try:
        with host.popen(inside("b", "python3", "-c", RDS, "serve", IP[1], IP[0])) as server:
            server.wait_for("ready", 60)
            host.run(inside("a", "python3", "-c", RDS, "send", IP[0], IP[1]), timeout=60)
            assert server.wait(30).code == 0, server.err
        table = host.run(inside("a", "cat", "/proc/net/tcp")).out
        # Local and remote address, and that it is established.
        assert re.search(r"0100090A:\w+ 0200090A:\w+ 01 ", table) and ":4001 " in table, table
        assert streams.counter("taken") == streams.counter("paired") == 0
    finally:
        host.run("rmmod rds_tcp; rmmod rds", check=False)


LISTEN = f"""
import select, socket, sys, threading
how, family, port = sys.argv[1], socket.AF_INET6 if sys.argv[2] == '6' else socket.AF_INET, int(sys.argv[3])
listener = socket.socket(family, socket.SOCK_STREAM, {MPTCP})
listener.bind(('', port))
listener.listen()
listener.listen(5)
listener.setblocking(how == 'blocks')
print('ready', flush=True)
def serve():
    while True:
        if how == 'polls':
            select.select([listener], [], [])
        try:
            one, _ = listener.accept()
        except BlockingIOError:
            continue
        one.setblocking(True)
        while got := one.recv(1 << 16):
            one.sendall(got)
        print(one.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL), flush=True)
        one.close()
threading.Thread(target=serve).start()
serve()
"""
"""A server of two threads whose listener is MPTCP's, as those of Go's are. It sends back what comes, and then says what
each connection was."""

ASK = """
import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
one = socket.socket(family, socket.SOCK_STREAM, int(sys.argv[3]))
one.connect((sys.argv[1], int(sys.argv[2])))
for number in range(1024):
    sent = bytes([number % 256]) * 4096
    one.sendall(sent)
    assert one.recv(4096, socket.MSG_WAITALL) == sent
"""


@pytest.mark.parametrize(
    ("how", "family", "there"),
    [
        pytest.param("blocks", 4, IP[1], marks=pytest.mark.main("servers of Go's got no lanes: they listen by MPTCP")),
        ("polls", 6, IP[1]),
        ("blocks", 6, "fd09::2"),
    ],
)
def test_mptcp(stage: str, streams: Streams, how: str, family: int, there: str) -> None:
    """What an MPTCP listener accepts of TCP gets lanes, and of MPTCP none; the module goes meanwhile."""
    host = streams.host
    host.run(SIX)
    seen: list[int] = []

    def ask(protocol: int) -> None:
        host.run(inside("a", "python3", "-c", ASK, there, PORT, protocol), timeout=90)
        seen.append(protocol)
        until(lambda: [int(word) for word in server.out.split()[1:]] == seen, 30, f"the server's connections: {seen}")

    def by_lanes() -> int:
        before = streams.counter("rx_bytes")
        ask(TCP)
        return streams.counter("rx_bytes") - before

    streams.leave_after(1)
    with host.popen(inside("b", "python3", "-c", LISTEN, how, family, PORT)) as server:
        server.wait_for("ready", 60)
        assert by_lanes() > 1 << 20
        before = streams.counter("rx_bytes")
        ask(MPTCP)
        assert streams.counter("rx_bytes") == before
        assert by_lanes() > 1 << 20
        if how == "blocks":
            wait_in_ours(streams, 2)
        host.run("rmmod vmloop_tcp", timeout=90)
        ask(TCP)
        ask(MPTCP)
        assert server.poll() is None, server.err


def wait_in_ours(streams: Streams, threads: int) -> None:
    """Wait until so many threads of the server are asleep in the module's accept()."""
    stacks = "$(printf '/proc/%s/task/*/stack ' $(pgrep -f threading.Thread))"
    asleep = f"grep -l vmloop_tcp {stacks} 2>/dev/null | wc -l"
    until(lambda: int(streams.host.run(asleep, check=False).out or 0) >= threads, 30, "threads that wait in accept()")


PART = f"""
import ctypes, socket, threading, time
listener = socket.create_server(('', {PORT}))
def wait():
    try:
        listener.accept()
    except OSError as error:
        print(error.errno, flush=True)
for _ in range(3):
    threading.Thread(target=wait, daemon=True).start()
print('ready', flush=True)
input()
# AF_UNSPEC
assert ctypes.CDLL(None).connect(listener.fileno(), bytes(16), 16) == 0
print('disconnected', flush=True)
time.sleep(3600)
"""
"""A listener that stops to be one while three threads wait in accept()."""


def test_listener_is_disconnected(stage: str, streams: Streams) -> None:
    """Threads that wait in accept() when it stops to be a listener do not keep the module."""
    with streams.host.popen(inside("b", "python3", "-c", PART)) as server:
        server.wait_for("ready", 60)
        wait_in_ours(streams, 3)
        server.write("\n")
        server.wait_for("disconnected", 30)
        until(lambda: server.out.count(str(errno.EINVAL)) == 3, 30, "all threads are told")
        streams.host.run("rmmod vmloop_tcp", timeout=60)
        assert server.poll() is None, server.err


@pytest.mark.parametrize("end", ["active", "passive"])
def test_policy_of_one_end(stage: str, streams: Streams, end: str) -> None:
    """One end that keeps to the host's policy is enough: it closes lanes, opens none and refuses the other end's."""
    host = streams.host

    def without(active: int, passive: int) -> None:
        host.run(f"echo {active},{passive} >/sys/module/vmloop_loopback/parameters/without")

    def denied(connections: int) -> bool:
        found = json.loads(host.run(inside("a", BIN / "vmloop", "--guest", "streams", "--json")).out)
        return len(found) == connections and all((one["state"], one["why"]) == ("tcp", "policy") for one in found)

    streams.leave_after(1)
    with duplex(streams, 4, 2400) as client:
        until(lambda: streams.counter("rx_bytes") > 1 << 20, 60, "bytes by lanes")
        without(*((KIND, 0) if end == "active" else (0, KIND)))
        until(lambda: denied(4), 60, "no lane for want of a policy")
        by_lanes, paired = streams.counter("rx_bytes"), streams.counter("paired")
        with duplex(streams, 2, 2400, PORT + 1) as new:
            until(lambda: denied(6), 60, "none for new ones")
            new.terminate()
            assert new.wait(60).code == 0
        assert (streams.counter("rx_bytes"), streams.counter("paired")) == (by_lanes, paired)
        without(0, 0)
        until(lambda: streams.counter("rx_bytes") > by_lanes + (1 << 20), 60, "bytes by lanes again")
        client.terminate()
        result = client.wait(60)
    assert result.code == 0, result.err
    assert streams.counter("reset") == 0


CGROUPS = "/run/cgroups"
REST = 200
"""Milliseconds between two records of a connection: dozens of them leave the machine time for other programs."""


class Owner:
    """Whose programs are: a user, by number, in a cgroup."""

    def __init__(self, streams: Streams, user: int, cgroup: str, port: int) -> None:
        self.streams = streams
        self.user = user
        self.cgroup = f"{CGROUPS}{cgroup}"
        self.port = port

    def _popen(self, namespace: str, *words: object) -> Process:
        enter = f'echo 0 >{self.cgroup}/cgroup.procs && exec "$@"'
        who = ["setpriv", f"--reuid={self.user}", "--clear-groups", TOOLS / "duplex", *words]
        return self.streams.host.popen(["sh", "-c", enter, "sh", *inside(namespace, *who)])

    @contextmanager
    def busy(self, connections: int) -> Iterator[None]:
        """Both ends of so many connections, for the time of the block."""
        with self._popen("b", "serve", self.port, REST) as server:
            server.wait_for("ready", 60)
            with self._popen("a", "run", IP[1], self.port, connections, 3600, REST) as client:
                yield
                client.terminate()
                result = client.wait(120)
        assert result.code == 0, result.err

    def ends(self) -> list[dict]:
        """Its connections, at the end that asks for lanes."""
        found = json.loads(self.streams.host.run(inside("a", BIN / "vmloop", "--guest", "streams", "--json")).out)
        return [one for one in found if one["remote"] == f"{IP[1]}:{self.port}"]


def settled(owners: list[Owner], why: str) -> int:
    """Bytes of rings that they have together when no more come, as those without one are refused for that reason."""
    last: list[tuple[list[int], set[str]]] = []

    def is_so() -> bool:
        time.sleep(0.5)
        ends = [end for owner in owners for end in owner.ends()]
        rings = sorted(end["ring_size"] for end in ends if end["ring_size"])
        last[:] = [*last[-4:], (rings, {end["state"] for end in ends if end["ring_size"]})]
        reasons = {end["why"] for end in ends if end["why"]}
        return last == [(rings, {"lane"} if rings else set())] * 5 and why in reasons

    until(is_so, 120, f"connections have what they get, others none: {why}")
    return sum(last[-1][0])


WORKS = 256
"""So many works of a workqueue run at a time, where the kernel says so."""


def test_programs_that_wait_for_memory(stage: str, streams: Streams) -> None:
    """Programs that read into memory that nobody brings hold up no other connection: they keep their sockets locked."""
    host = streams.host

    def held_up() -> int:
        """Connections whose end in b cannot come back."""
        listing = json.loads(host.run(inside("b", BIN / "vmloop", "--guest", "streams", "--json")).out)
        return sum(one["state"] == "going-back" for one in listing)

    def until_waiting(count: int) -> None:
        wait = "grep -l handle_userfault /proc/[0-9]*/task/*/wchan 2>/dev/null | wc -l"
        until(lambda: host.run(wait, check=False).out.strip() == str(count), 30, f"{count} wait for memory")

    def until_more(counter: str, by: int) -> None:
        before = streams.counter(counter)
        until(lambda: streams.counter(counter) >= before + by, 60, f"{counter} grows")

    streams.leave_after(1)
    # As many as there is memory for lanes, at a time.
    batch, batches = 12, 0
    with host.popen(inside("b", "python3", SLOW_MEMORY, "serve", PORT)) as server:
        server.wait_for("ready", 60)
        with host.popen(inside("a", "python3", SLOW_MEMORY, "run", IP[1], PORT)) as client:
            while held_up() <= WORKS:
                # Each has a byte that TCP brought, and a lane behind it, which is given back if nothing goes by it.
                paired = 2 * batch * (batches + 1)
                server.wait_for(f"batch {batches + 1}\n", 60)
                client.send_signal(signal.SIGUSR1)
                until(partial(lambda least: streams.counter("paired") >= least, paired), 60, f"{paired} ends of lanes")
                server.send_signal(signal.SIGUSR1)
                batches += 1
                until_waiting(batches * batch)
                host.run(f"echo 1 >{PARAMETERS}/go_back")
                assert batches < 3 * WORKS // batch, f"{held_up()} of {batches * batch} are held up"
                client.send_signal(signal.SIGUSR1)
            with duplex(streams, 4, 2400, PORT + 1) as other:
                for _ in range(2):
                    until_more("tx_bytes", 1 << 20)
                    host.run(f"echo 1 >{PARAMETERS}/go_back")
                    until_more("tx_bytes", 1 << 20)
                other.terminate()
                assert other.wait(60).code == 0, other.err
            server.terminate()
            said = server.wait_for(r"right (\d+) (\d+)", 60)
            assert (said[1], said[2]) == (str(batches * batch), str(batches * batch))
    assert streams.counter("reset") == 0


def test_cgroup_program_of_sockets(stage: str, streams: Streams) -> None:
    """A program of a cgroup sees each socket released once, also where a lane has close() come later."""
    host = streams.host
    cgroup = f"{CGROUPS}/watched"
    owner = Owner(streams, 0, "/watched", PORT)
    host.run(f"mkdir -p {CGROUPS} && mount -t cgroup2 cgroup2 {CGROUPS} && mkdir -p {cgroup}")

    def released(state: str) -> str:
        with host.popen(["python3", str(CGROUP_PROGRAM), cgroup, "release"]) as program:
            program.wait_for("attached", 30)
            with owner.busy(8):
                until(lambda: [one["state"] for one in owner.ends()] == [state] * 8, 60, f"eight of {state}")
            until(lambda: not owner.ends(), 60, "all have ended")
            program.terminate()
            return program.wait_for(r"detached (\d+)", 30)[1]

    try:
        streams.leave_after(NEVER)
        by_tcp = released("tcp")
        assert int(by_tcp) >= 16
        streams.leave_after(1)
        assert released("lane") == by_tcp
    finally:
        host.run(f"rmdir {cgroup}; umount {CGROUPS}", check=False)
    assert streams.counter("reset") == 0


@pytest.mark.parametrize("which", ["egress", "ingress"])
def test_cgroup_program(stage: str, streams: Streams, which: str) -> None:
    """Where a program of their cgroup sees the packets of its sockets, connections go back to TCP, and stay there."""
    host = streams.host
    cgroup = f"{CGROUPS}/filtered"
    owner = Owner(streams, 0, "/filtered", PORT)
    streams.leave_after(1)
    host.run(f"mkdir -p {CGROUPS} && mount -t cgroup2 cgroup2 {CGROUPS} && mkdir -p {cgroup}")

    def stand(state: str, why: str) -> bool:
        return {(one["state"], one["why"]) for one in owner.ends()} == {(state, why)}

    def by_packets() -> int:
        return int(host.run(inside("a", "cat", "/sys/class/net/va/statistics/tx_bytes")).out)

    try:
        with owner.busy(2):
            until(lambda: stand("lane", ""), 60, "both have lanes")
            with host.popen(["python3", str(CGROUP_PROGRAM), cgroup, which]) as program:
                program.wait_for("attached", 30)
                until(lambda: stand("tcp", "option"), 60, "both are back at TCP")
                lanes, packets = streams.counter("tx_bytes"), by_packets()
                until(lambda: by_packets() > packets + (1 << 20), 60, "TCP carries them")
                assert streams.counter("tx_bytes") == lanes
                program.terminate()
                assert int(program.wait_for(r"detached (\d+)", 30)[1]) > 0
            until(lambda: stand("lane", ""), 60, "both have lanes again")
        until(lambda: not owner.ends(), 30, "all have ended")
    finally:
        host.run(f"rmdir {cgroup}; umount {CGROUPS}", check=False)
    assert streams.counter("reset") == 0


@pytest.mark.parametrize("by", ["user", "cgroup"])
def test_share_of_an_owner(stage: str, streams: Streams, by: str) -> None:
    """Who is busy with many connections has a share of the memory, and others get lanes; it is free again at the end.

    By user: all are in the first cgroup, which has no share. By cgroup: the first one has two users.
    """
    host = streams.host
    share = f"{PARAMETERS}/owner_share"
    for wrong in (0, 101, "all"):
        assert host.run(f"echo {wrong} >{share}", check=False).code != 0
    assert host.run(f"cat {share}").out.strip() == "75"
    cgroups = ["", ""] if by == "user" else ["/one", "/other"]
    users = [1001] if by == "user" else [1001, 1002]
    first = [Owner(streams, user, cgroups[0], PORT + user) for user in users]
    other = Owner(streams, 1003, cgroups[1], PORT)
    streams.leave_after(1)
    host.run(f"mkdir -p {CGROUPS} && mount -t cgroup2 cgroup2 {CGROUPS} && mkdir -p {CGROUPS}/one {CGROUPS}/other")

    @contextmanager
    def busy() -> Iterator[None]:
        with ExitStack() as stack:
            for owner in first:
                stack.enter_context(owner.busy(24 // len(first)))
            yield

    try:
        host.run(f"echo 100 >{share}")
        with busy():
            most = settled(first, "room")
            with other.busy(2):
                assert not settled([other], "room")
        until(lambda: not any(owner.ends() for owner in first), 30, "connections that have ended are not listed")
        host.run(f"echo 50 >{share}")
        had = []
        for _ in range(2):
            with busy():
                had.append(settled(first, "quota"))
                with other.busy(2):
                    until(lambda: any(end["state"] == "lane" for end in other.ends()), 30, "the other has a lane")
            until(lambda: not any(owner.ends() for owner in [*first, other]), 30, "all have ended")
    finally:
        host.run(f"rmdir {CGROUPS}/one {CGROUPS}/other; umount {CGROUPS}", check=False)
    # But for less than a ring, all of the memory is had by somebody when there is no bound.
    assert most // 2 - (64 << 10) <= had[0] <= most // 2 + (32 << 10), (most, had)
    assert had[0] == had[1], f"what has ended still counts: {had}"
    assert streams.counter("reset") == 0
