# SPDX-License-Identifier: GPL-2.0
"""The line over which one host's xl sends a guest to the other's, and a host an archive to its guest.

Run inside dom0, by what Python the outside has; uses nothing else of the lab.

    relay.py listen PORT PIDFILE COMMAND...   wait for a caller, become COMMAND with it as stdin and stdout
    relay.py feed PORT PIDFILE COMMAND...     wait for a caller, run COMMAND with what it sends in a pipe as stdin;
                                              say "arrived" to it if that ends well
    relay.py connect PORT HOST ...            be stdin and stdout of who listens there; other words are ignored
    relay.py stamp                            copy lines, each behind the time at which it came

``xl migrate`` and ``xl migrate-receive`` talk in both directions, ``xl save`` and
``xl restore`` in one.
"""

import os
import socket
import subprocess
import sys
import threading
import time

CHUNK = 1 << 20
ARRIVED = b"arrived\n"


def accept(port: int, pid_file: str) -> socket.socket:
    """Write our pid once we listen, and return when somebody has called."""
    with socket.create_server(("", port)) as server:
        with open(pid_file, "w") as file:
            file.write(f"{os.getpid()}\n")
        return server.accept()[0]


def listen(port: int, pid_file: str, command: list[str]) -> None:
    """Become the command when somebody has called."""
    line = accept(port, pid_file)
    os.dup2(line.fileno(), 0)
    os.dup2(line.fileno(), 1)
    os.execv(command[0], command)


def feed(port: int, pid_file: str, command: list[str]) -> int:
    """Run the command with what a caller sends; returns its status."""
    with accept(port, pid_file) as line, subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        assert child.stdin
        try:
            while os.splice(line.fileno(), child.stdin.fileno(), CHUNK):
                pass
        except ConnectionError:
            pass  # either has ended: its status says how
        child.stdin.close()
        status = child.wait()
        if status == 0:
            line.sendall(ARRIVED)
        return status


def connect(port: int, host: str) -> None:
    """Carry what comes on stdin there, and what comes from there to stdout, until both have ended."""
    try:
        line = socket.create_connection((host, port))
    except OSError as error:
        sys.exit(f"relay: {host} port {port}: {error}")
    with line:
        back = threading.Thread(target=copy_back, args=(line,))
        back.start()
        try:
            while os.splice(0, line.fileno(), CHUNK):
                pass
        except ConnectionError:
            pass  # who listened there has gone: xl learns it from the end of our stdout
        else:
            line.shutdown(socket.SHUT_WR)
        back.join()


def copy_back(line: socket.socket) -> None:
    """The few bytes of answers."""
    try:
        while data := line.recv(CHUNK):
            os.write(1, data)
    except ConnectionError:
        pass  # as above
    os.close(1)


def stamp() -> None:
    """Copy lines, each behind the time in seconds since the epoch. On a busy host a program for each would be late."""
    for line in sys.stdin:
        print(f"{time.time():.6f} {line}", end="", flush=True)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "listen":
        listen(int(rest[0]), rest[1], rest[2:])
    elif what == "feed":
        sys.exit(feed(int(rest[0]), rest[1], rest[2:]))
    elif what == "connect":
        connect(int(rest[0]), rest[1])
    else:
        stamp()
