# SPDX-License-Identifier: GPL-2.0
"""late.py - a connection whose reader reads late: not before it gets SIGTERM.

    late.py serve PORT FIRST BUFFER     reads FIRST bytes, waits, and reads the others
    late.py send HOST PORT SIZE         sends so many, and the end

BUFFER is SO_RCVBUF of the reader; 0 leaves it to the kernel. The bytes are numbers of 4
bytes that count up. The reader says `ready`, `waiting` with its receive buffer, and at the end how many bytes were
as they should be, and its receive buffer then.
"""

import signal
import socket
import sys
import time
from array import array

MOST = 64 << 20


def say(*what: object) -> None:
    """A line."""
    print(*what, flush=True)


def receive(connection: socket.socket, most: int) -> bytearray:
    """So many bytes, or all up to the end."""
    got = bytearray()
    while len(got) < most and (part := connection.recv(min(65536, most - len(got)))):
        got += part
    return got


def serve(port: int, first: int, buffer: int) -> None:
    """The reader."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    listener = socket.create_server(("", port))
    if buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    say("ready")
    connection = listener.accept()[0]
    got = receive(connection, first)
    before = connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    say("waiting", before)
    signal.sigwait([signal.SIGTERM])
    got += receive(connection, MOST)
    # It becomes as before within a second of being empty, if a module is there that does it.
    end = time.monotonic() + 30
    while (size := connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)) != before and time.monotonic() < end:
        time.sleep(0.05)
    wanted = array("I", range(len(got) // 4 + 1)).tobytes()[: len(got)]
    wrong = next((at for at, (x, y) in enumerate(zip(got, wanted, strict=True)) if x != y), -1) if got != wanted else -1
    say("right" if wrong < 0 else f"wrong at {wrong} of", len(got), size)


def send(host: str, port: int, size: int) -> None:
    """The other end."""
    with socket.create_connection((host, port)) as connection:
        connection.sendall(array("I", range(size // 4)).tobytes())
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*map(int, sys.argv[2:]))
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
