# SPDX-License-Identifier: GPL-2.0
"""Commands in the lab's machines, seen from the outside."""

import os
import re
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .errors import CommandFailed, CommandTimeout, GuestFailed, LabFailed, VmlabError
from .protocol import (
    CHUNK,
    GUEST_GONE,
    LAB_GONE,
    WINDOW,
    Frame,
    Parser,
    frame,
    number,
    pack_open,
    unpack_error,
)

ERRNO_LIMIT = 4096
SLOW = float(os.environ.get("VMLAB_SLOW", "1"))
"""All deadlines are so many times as long: for an outside that is slow, or busy with something else.

Inside emulated machines as well (dilation.py).
"""
PATIENCE = 4.0
"""All deadlines are so many times as long as well: a machine may become that much slower amid a run.

A deadline only ends what hangs; nothing waits longer for what comes.
"""
PATIENCE_MOST = 1800.0
"""Seconds, each of them SLOW times as long, that PATIENCE adds at most."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def allowed(seconds: float) -> float:
    """How many seconds pass before the lab gives up what takes less than ``seconds`` on a fast machine that is idle."""
    return SLOW * min(seconds * PATIENCE, seconds + PATIENCE_MOST)


@dataclass
class Result:
    """How a command ended. ``code`` is 128 + N after signal N."""

    out: str
    err: str
    code: int
    seconds: float


class Stream:
    """One command's connection to the lab's switch: frames, and nothing more."""

    def __init__(self, switch: Path, machine: str) -> None:
        self.machine = machine
        self._parser = Parser()
        self._lock = threading.Lock()
        self._credit = WINDOW
        self._room = threading.Condition()
        self.closed = False
        self._ready: deque[tuple[int, int, bytes]] = deque()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(str(switch))
        except OSError as error:
            self._socket.close()
            raise LabFailed(
                "the lab is not running: see './vmlab ls', start it with './vmlab up kvm' or './vmlab up xen'"
            ) from error
        self.send(Frame.HELLO, machine.encode())

    def send(self, kind: Frame, payload: bytes = b"") -> None:
        """Send one frame; a switch that has gone is noticed by read()."""
        try:
            with self._lock:
                self._socket.sendall(frame(1, kind, payload))
        except OSError:
            pass

    def open(self, argv: list[str], cwd: str, env: dict[str, str], flags: int = 0) -> None:
        """Start the command. Raises VmlabError when it is too long."""
        try:
            self.send(Frame.OPEN, pack_open(argv, cwd, env, flags))
        except ValueError as error:
            raise VmlabError(str(error)) from error

    def write(self, data: bytes) -> None:
        """Send stdin, waiting for credit."""
        view = memoryview(data)
        while view:
            with self._room:
                while self._credit <= 0:
                    self._room.wait()
                n = min(self._credit, CHUNK, len(view))
                self._credit -= n
            self.send(Frame.DATA, bytes(view[:n]))
            view = view[n:]

    def read(self) -> tuple[int, bytes]:
        """The next frame: (type, payload). A lost switch reads as an ERROR."""
        while True:
            while not self._ready:
                try:
                    data = self._socket.recv(262144)
                except OSError:
                    data = b""
                if not data:
                    with self._room:
                        self._credit = 1 << 62  # nobody may wait for credit now
                        self._room.notify_all()
                    return Frame.ERROR, number(LAB_GONE) + b"the lab's switch has gone"
                self._ready.extend(self._parser.feed(data))
            _, kind, payload = self._ready.popleft()
            if kind != Frame.WINDOW:
                return kind, payload
            with self._room:
                self._credit += int.from_bytes(payload[:4], "little")
                self._room.notify_all()

    def grant(self, count: int) -> None:
        """Give the sender credit for ``count`` bytes that were consumed."""
        self.send(Frame.WINDOW, number(count))

    def close(self) -> None:
        """Hang up; a command that still runs is killed."""
        self.closed = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()


def failure(machine: str, payload: bytes) -> VmlabError:
    """The exception for an ERROR frame's payload."""
    code, text = unpack_error(payload)
    if code == GUEST_GONE:
        return GuestFailed(text)
    if code == LAB_GONE:
        return LabFailed(text)
    return CommandFailed(f"{machine}: {text}")


def environment(machine: str, extra: dict[str, str] | None) -> dict[str, str]:
    """What a command sees: the outside's PATH, so that its programs are found."""
    path = ":".join(dict.fromkeys([*SYSTEM_PATH.split(":"), *os.environ.get("PATH", "").split(":")]))
    base = {"PATH": path.strip(":"), "HOME": "/root", "LANG": "C.UTF-8", "VMLAB_MACHINE": machine}
    return base | (extra or {})


class Process:
    """A command that runs in a machine, with its output as it comes.

    Use it as a context manager to have it killed at the end of the block.
    """

    def __init__(
        self, stream: Stream, argv: list[str], cwd: str, env: dict[str, str],
        on_output: Callable[[bytes], None] | None = None,
    ) -> None:  # fmt: skip
        self.argv = argv
        self.machine = stream.machine
        self.pid: int | None = None
        self._stream = stream
        self._out = bytearray()
        self._err = bytearray()
        self._changed = threading.Condition()
        self._code: int | None = None
        self._failure: VmlabError | None = None
        self._started = time.monotonic()
        self._ended = self._started
        self._on_output = on_output
        stream.open(argv, cwd, env)
        self._thread = threading.Thread(target=self._read, name=f"vmlab-{argv[0]}", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            kind, payload = self._stream.read()
            with self._changed:
                if kind == Frame.OUT:
                    self._out += payload
                elif kind == Frame.ERR:
                    self._err += payload
                elif kind == Frame.OPENED:
                    self.pid = int.from_bytes(payload[:4], "little")
                elif kind in (Frame.EXIT, Frame.ERROR):
                    if kind == Frame.EXIT:
                        self._code = int.from_bytes(payload[:4], "little", signed=True)
                    elif self._failure is None:
                        self._failure = failure(self.machine, payload)
                    self._ended = time.monotonic()
                    self._changed.notify_all()
                    self._stream.close()
                    return
                self._changed.notify_all()
            if kind in (Frame.OUT, Frame.ERR):
                self._stream.grant(len(payload))
                if self._on_output:
                    self._on_output(payload)

    @property
    def out(self) -> str:
        """Standard output until now."""
        with self._changed:
            return self._out.decode(errors="replace")

    @property
    def out_bytes(self) -> bytes:
        """Standard output until now, undecoded."""
        with self._changed:
            return bytes(self._out)

    @property
    def err(self) -> str:
        """Standard error until now."""
        with self._changed:
            return self._err.decode(errors="replace")

    def poll(self) -> int | None:
        """The exit status, or None while it runs. Raises if the machine failed."""
        with self._changed:
            if self._failure:
                raise self._failure
            return self._code

    def write(self, data: bytes | str) -> None:
        """Write to its standard input."""
        self._stream.write(data.encode() if isinstance(data, str) else data)

    def close_stdin(self) -> None:
        """End its standard input."""
        self._stream.send(Frame.EOF)

    def send_signal(self, number_: int) -> None:
        """Send a signal to it and to its children (its process group)."""
        self._stream.send(Frame.SIGNAL, number(number_))

    def terminate(self) -> None:
        """SIGTERM to its process group."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to its process group; returns at once, wait() tells the end."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = 60) -> Result:
        """Wait for its end. It runs on when CommandFailed says "still runs"."""
        with self._changed:
            patience = None if timeout is None else allowed(timeout)
            if not self._over(patience):
                raise CommandTimeout(f"{self.machine}: {' '.join(self.argv)} still runs after {patience:g} s")
            if self._failure:
                raise self._failure
            assert self._code is not None
            return Result(
                self._out.decode(errors="replace"), self._err.decode(errors="replace"),
                self._code, self._ended - self._started,
            )  # fmt: skip

    def ends_within(self, seconds: float) -> bool:
        """Whether it ends by itself in so many seconds, SLOW times as long, and no more. Raises what wait() raises."""
        with self._changed:
            if self._over(seconds * SLOW) and self._failure:
                raise self._failure
            return self._code is not None

    def _over(self, seconds: float | None) -> bool:
        """Wait for its end, or for a failure; the caller holds the lock."""
        return bool(self._changed.wait_for(lambda: self._code is not None or self._failure, seconds))

    def wait_for(self, pattern: str, timeout: float = 30) -> re.Match[str]:
        """Wait until its output (stdout, then stderr) has a match of ``pattern``."""
        deadline = time.monotonic() + allowed(timeout)
        while True:
            with self._changed:
                for text in (self._out, self._err):
                    found = re.search(pattern, text.decode(errors="replace"), re.MULTILINE)
                    if found:
                        return found
                if self._failure:
                    raise self._failure
                left = deadline - time.monotonic()
                if self._code is not None or left <= 0:
                    why = "ended" if self._code is not None else f"{allowed(timeout):g} s passed"
                    raise CommandFailed(
                        f"{self.machine}: {' '.join(self.argv)} {why} without {pattern!r}: "
                        f"{(self._out + self._err).decode(errors='replace')[-500:]}"
                    )
                self._changed.wait(left)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            over = self._code is not None or self._failure is not None
        if not over:
            self._stream.close()  # the agent kills what hangs on it


def shell_argv(command: str | list[str]) -> list[str]:
    """A string is run by sh, a list as it is."""
    return ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
