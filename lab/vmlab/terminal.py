# SPDX-License-Identifier: GPL-2.0
"""A command, or a console, on this process's own stdin, stdout and stderr."""

import contextlib
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator

from .process import Stream, failure
from .protocol import CHUNK, OPEN_CONNECT, OPEN_TTY, Frame, number, unpack_error

ESCAPE = b"\x1d"
"""Ctrl-] leaves a console."""


@contextlib.contextmanager
def raw_mode(wanted: bool) -> Iterator[None]:
    """Have the terminal on stdin pass every key on."""
    if not wanted:
        yield
        return
    saved = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, saved)


def _pump(stream: Stream, escape: bool) -> None:
    """Carry stdin to the command until its end."""
    with contextlib.suppress(OSError):
        while data := os.read(0, CHUNK):
            if escape and ESCAPE in data:
                stream.close()
                return
            stream.write(data)
    stream.send(Frame.EOF)


def _follow_size(stream: Stream) -> None:
    """Tell the command's terminal the size of ours, now and when it changes."""

    def resize(*_: object) -> None:
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(0)
            stream.send(Frame.RESIZE, number(size.lines | size.columns << 16))

    resize()
    signal.signal(signal.SIGWINCH, resize)


def _forward_signals(stream: Stream) -> None:
    """Pass signals on to the command; the third one kills it."""
    count = 0

    def forward(signum: int, _: object) -> None:
        nonlocal count
        count += 1
        stream.send(Frame.SIGNAL, number(signum if count < 3 else signal.SIGKILL))

    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, forward)


def run_here(stream: Stream, argv: list[str], cwd: str, env: dict[str, str], *, terminal: bool) -> int:
    """Run a command as if it ran in this process's place.

    Returns its exit status; 126 or 127 when it cannot be run, 255 when the
    machine or the lab failed under it.
    """
    if terminal:
        env = env | {"TERM": os.environ.get("TERM", "linux")}
    stream.open(argv, cwd, env, OPEN_TTY if terminal else 0)
    _forward_signals(stream)
    if terminal:
        _follow_size(stream)
    return _relay(stream, raw=terminal, escape=False)


def attach(stream: Stream, socket_path: str) -> int:
    """Connect the terminal to a console's socket inside the host, until Ctrl-]."""
    stream.open([socket_path], "/", {}, OPEN_CONNECT)
    return _relay(stream, raw=True, escape=True)


def _relay(stream: Stream, *, raw: bool, escape: bool) -> int:
    threading.Thread(target=_pump, args=(stream, escape), daemon=True).start()
    try:
        with raw_mode(raw):
            while True:
                kind, payload = stream.read()
                if kind in (Frame.OUT, Frame.ERR):
                    _write_all(1 if kind == Frame.OUT else 2, payload)
                    stream.grant(len(payload))
                elif kind == Frame.EXIT:
                    return int.from_bytes(payload[:4], "little", signed=True)
                elif kind == Frame.ERROR:
                    break
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    finally:
        closed_by_us = stream.closed
        stream.close()
    if closed_by_us:
        return 0
    print(f"vmlab: {failure(stream.machine, payload)}", file=sys.stderr)
    return {2: 127, 13: 126}.get(unpack_error(payload)[0], 255)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
