# SPDX-License-Identifier: GPL-2.0
"""The frames that clients, the lab's switch and the agents exchange.

The same frames run on every leg, so the switch forwards payloads untouched
and credit is end to end. lab/agent/vmlab-agent.c is the other end and says
what each field means.
"""

import struct
from enum import IntEnum

HEADER = struct.Struct("<IIHH")
MAX_PAYLOAD = 65536
CHUNK = 32768
WINDOW = 262144
"""Bytes of credit that a new stream has each way."""


class Frame(IntEnum):
    """Types of frames, as in the agent's ``enum frame_type``."""

    HELLO = 1
    OPEN = 2
    DATA = 3
    EOF = 4
    OUT = 5
    ERR = 6
    WINDOW = 7
    CLOSE = 8
    SIGNAL = 9
    EXIT = 10
    ERROR = 11
    RESIZE = 12
    OPENED = 13
    WELCOME = 14


LAST_FRAMES = (Frame.EXIT, Frame.ERROR)
"""After one of these the agent knows the stream no more."""

OPEN_TTY = 1
OPEN_CONNECT = 2

# Codes of ERROR frames beyond the errno values that an agent sends.
GUEST_GONE = 10001
LAB_GONE = 10002


def frame(stream: int, kind: Frame, payload: bytes | memoryview = b"") -> bytes:
    """One frame, ready to be written."""
    return HEADER.pack(stream, len(payload), kind, 0) + payload


def number(value: int) -> bytes:
    """The payload of WINDOW, SIGNAL and RESIZE frames."""
    return struct.pack("<I", value)


def pack_open(argv: list[str], cwd: str, env: dict[str, str], flags: int = 0, credit: int = WINDOW) -> bytes:
    """The payload of an OPEN frame. Raises ValueError when it is too long."""
    strings = [cwd, *argv, *(f"{key}={value}" for key, value in env.items())]
    payload = struct.pack("<IIII", flags, credit, len(argv), len(env))
    payload += b"".join(text.encode(errors="surrogateescape") + b"\0" for text in strings)
    if any("\0" in text for text in strings) or len(payload) > MAX_PAYLOAD:
        raise ValueError(f"command too long (more than {MAX_PAYLOAD} bytes) or has a zero byte")
    return payload


def pack_error(code: int, text: str) -> bytes:
    """The payload of an ERROR frame."""
    return struct.pack("<I", code) + text.encode()


def unpack_error(payload: bytes) -> tuple[int, str]:
    """Code (an errno value or one of the above) and text of an ERROR frame."""
    if len(payload) < 4:
        return LAB_GONE, "malformed error"
    return struct.unpack_from("<I", payload)[0], payload[4:].decode(errors="replace")


class Parser:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Add ``data``; return the whole frames: (stream, type, payload).

        Raises ValueError when the stream is not made of frames.
        """
        buffer = self._buffer
        buffer += data
        frames = []
        at = 0
        while len(buffer) - at >= HEADER.size:
            stream, length, kind, _ = HEADER.unpack_from(buffer, at)
            if length > MAX_PAYLOAD:
                raise ValueError(f"frame of {length} bytes")
            end = at + HEADER.size + length
            if len(buffer) < end:
                break
            frames.append((stream, kind, bytes(buffer[at + HEADER.size : end])))
            at = end
        del buffer[:at]
        return frames

    def take(self) -> bytes:
        """Give back, and forget, what has not become a frame yet."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest
