# SPDX-License-Identifier: GPL-2.0
"""How long connections wait for their lanes where those before ended soon (kernel/paths/tcp/worth.c), over loopback."""

import json

import pytest

from tests.guest.streams import NEVER, PARAMETERS, Streams
from tests.guest.veth import IP, inside

pytestmark = [pytest.mark.loopback, pytest.mark.kvm_only]

PORT = 5601
PORTS = 16
"""Two for each time that a sequence is begun."""
FIRST = 64 << 10
"""So many bytes go by TCP before a connection gets a lane, where nothing is known of those before."""


SERVER = """
import select, socket, sys
first, count = int(sys.argv[1]), int(sys.argv[2])
listeners = [socket.create_server(('', first + number)) for number in range(count)]
print('ready', flush=True)
while True:
    for listener in select.select(listeners, [], [])[0]:
        one, _ = listener.accept()
        with one:
            while one.recv(1) == b'x':
                one.sendall(b'x')
            while one.recv(1 << 16):
                pass
"""
"""Sends back each x that comes first, and then reads to the end."""

CLIENT = """
import json, socket, sys, time
address, port, more = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
PARAMETERS, NEVER = sys.argv[4:]
SHORT, MIDDLE, LONG = 9, 18, 32
SEQUENCE = [
    # pieces, more by the lane, to another port, turns, whether it gets a lane, why
    (SHORT, 0, 0, 1, True, 'the first'),
    (SHORT, 0, 0, 1, False, 'as short as the one before'),
    (MIDDLE, 0, 0, 1, True, 'twice as long'),
    (MIDDLE, 0, 0, 1, False, 'as long as that'),
    (LONG, 0, 0, 1, True, 'four times as long'),
    (LONG, 0, 0, 1, True, 'as long as that: none waits for more than after_most'),
    (LONG, more, 0, 1, True, 'worth it'),
    (SHORT, 0, 0, 1, True, 'after one that was'),
    (SHORT, 0, 0, 1, False, 'after one that ended soon again'),
    (SHORT, 0, 1, 1, True, 'to another port'),
]
TURNS = [
    (0, 0, 0, 9, True, 'for its turns'),
    (SHORT, 0, 0, 1, True, 'after one that got its lane for its turns'),
]

def counter(name):
    with open(f'{PARAMETERS}/{name}') as value:
        return int(value.read())

def set_turns(turns):
    with open(f'{PARAMETERS}/after_turns', 'w') as value:
        value.write(str(turns))

def holds(what, seconds):
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.01)
    return what()

def gets_lane(port, pieces, by_lane, turns, expected):
    paired, back, sent = counter('paired'), counter('back'), counter('tx_bytes')
    with socket.create_connection((address, port)) as one:
        for _ in range(turns):
            one.sendall(b'x')
            one.recv(1)
        for _ in range(pieces):
            one.sendall(bytes(1 << 13))
            time.sleep(0.005)
        lane = holds(lambda: counter('paired') >= paired + 2, 1.5 if expected else 0.5)
        # At least one: the lane is not being opened any more.
        while lane and counter('tx_bytes') <= sent + by_lane:
            one.sendall(b'y' if turns > 1 else bytes(1 << 13))
            time.sleep(0.001)
    # Only lanes by which something went come back. One that came up too late for us may not.
    assert holds(lambda: counter('back') - back == counter('paired') - paired, 60 if lane else 1) or not lane
    return lane

def go(port, sequence):
    # The first that is not as it should be; and whether the module may have forgotten what it was taught.
    taught = time.monotonic()
    for pieces, by_lane, other, turns, expected, why in sequence:
        if turns > 1:
            set_turns(8)
        while True:
            lane = gets_lane(port + other, pieces, by_lane, turns, expected)
            if time.monotonic() - taught > 8:
                return why, True
            if lane or not expected:
                break
        set_turns(NEVER)
        if lane != expected:
            return why, False
        if lane and not other:
            taught = time.monotonic()
    return '', False

said = []
for sequence in SEQUENCE, TURNS:
    for _ in range(4):
        wrong, was_slow = go(port, sequence)
        port += 2
        if not was_slow:
            break
    said.append(wrong)
print(json.dumps(said))
"""
"""Connections, one after the other.

Pieces have 8 KiB and count as 10: SHORT is more than the module waits for at first, MIDDLE more than twice and LONG
more than four times as much. One that a program has locked at the wrong moment gets no lane, and is made again; where
the module may have forgotten meanwhile, all begins anew, four times. Prints what did not hold, for each sequence.
"""


@pytest.mark.main("connections got their lanes as they ended, which cost more than it gave")
def test_connections_that_end_soon(stage: str, streams: Streams) -> None:
    """Where connections end soon after they got a lane, the next ones wait for more bytes, until one was worth it."""
    host = streams.host
    streams.set(after_bytes=FIRST, after_turns=NEVER, after_most=4 * FIRST)
    with host.popen(inside("b", "python3", "-c", SERVER, PORT, PORTS)) as server:
        server.wait_for("ready", 60)
        words = ("python3", "-c", CLIENT, IP[1], PORT, 2 * FIRST, PARAMETERS, NEVER)
        said = json.loads(host.run(inside("a", *words), timeout=300).out)
        assert server.poll() is None, server.err
    assert said == ["", ""]
    assert streams.counter("reset") == 0


FILE = """
import os, socket, sys, time
role, address, port, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def counter(name):
    with open(f'{sys.argv[5]}/{name}') as value:
        return int(value.read())

if role == 'serve':
    with socket.create_server(('', port)) as listener:
        print('ready', flush=True)
        one, _ = listener.accept()
    file = os.memfd_create('file')
    os.ftruncate(file, size)
    assert os.sendfile(one.fileno(), file, 0, 2 * size) == size
    while one.recv(1 << 16):
        pass
else:
    with socket.create_connection((address, port)) as one:
        left = size
        while left:
            left -= len(one.recv(min(left, 1 << 16)))
        print('lanes', counter('paired'), flush=True)
        end = time.monotonic() + 60
        while not counter('tx_bytes') and time.monotonic() < end:
            one.sendall(bytes(1 << 13))
            time.sleep(0.002)
    print('by lane', counter('tx_bytes') > 0)
"""
"""One end sends a file of so many bytes by one call that was to send twice as many: so the kernel says to its end that
more is to come. The other reads that, and then sends until something goes by a lane.
"""


def test_file(stage: str, streams: Streams) -> None:
    """While sendfile() sends there is no lane, which would carry nothing; and there is one after that."""
    host = streams.host
    streams.set(after_bytes=FIRST, after_turns=NEVER)
    words = (PORT, 64 << 20, PARAMETERS)
    with host.popen(inside("b", "python3", "-c", FILE, "serve", "-", *words)) as server:
        server.wait_for("ready", 60)
        said = host.run(inside("a", "python3", "-c", FILE, "run", IP[1], *words), timeout=150).out
        assert server.wait(60).code == 0, server.err
    assert said == "lanes 0\nby lane True\n"
    assert streams.counter("reset") == 0
