# SPDX-License-Identifier: GPL-2.0
"""The lab's switch: the process that owns the outer machines and their agents' lines.

It starts the outer QEMUs, holds the only connection to each agent, and forwards
frames between them and any number of clients on a Unix socket. A client begins
with a HELLO whose payload is the machine's name; from then on its frames go to
that machine's agent with the stream numbers changed. Guests' agents are reached
through a stream of their host's agent; DIR/state.json says which host that is now.
Run as ``python -m vmlab.switch DIR``, where DIR/switch.json says what to start;
ends when an outer machine ends.
"""

import asyncio
import ctypes
import errno
import json
import os
import signal
import socket
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from .protocol import (
    CHUNK,
    GUEST_GONE,
    LAB_GONE,
    LAST_FRAMES,
    OPEN_CONNECT,
    WINDOW,
    Frame,
    Parser,
    frame,
    number,
    pack_error,
    pack_open,
)
from .qemu import FIRST_HOST, LAN

PR_SET_PDEATHSIG = 1
RETRY_SECONDS = 0.1


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that made it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Link(ABC):
    """The line to one machine's agent. Subclasses say what carries it."""

    gone_code = LAB_GONE

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = False
        self.streams: dict[int, tuple[Client | GuestLink, int]] = {}
        """By number on this line: whose stream it is, and its number there."""
        self._next = 0
        self._nonce = os.urandom(16)
        self._seen = bytearray()
        self._parser = Parser()
        self._waiting: list[bytes] = []

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send bytes to the agent."""

    def greet(self) -> None:
        """Ask for the agent: it answers once its machine has booted."""
        self.ready = False
        self._seen.clear()
        self._parser = Parser()
        self.write(frame(0, Frame.HELLO, self._nonce))

    def new_stream(self, owner: "Client | GuestLink", theirs: int) -> int:
        """Reserve a stream number on this line."""
        self._next = self._next % 0x7FFFFFFF + 1
        self.streams[self._next] = (owner, theirs)
        return self._next

    def send(self, data: bytes) -> None:
        """Send one frame now, or as soon as the agent has answered."""
        if self.ready:
            self.write(data)
        else:
            self._waiting.append(data)

    def received(self, data: bytes) -> None:
        """Take bytes from the agent."""
        if not self.ready:
            # An earlier connection may have left half a frame on the line.
            self._seen += data
            mark = frame(0, Frame.WELCOME, self._nonce)
            at = self._seen.find(mark)
            if at < 0:
                # An agent that has just started, on a line that may have lost
                # our greeting.
                anew = self._seen.find(frame(0, Frame.WELCOME))
                if anew >= 0:
                    self._seen.clear()
                    self.write(frame(0, Frame.HELLO, self._nonce))
                return
            data = bytes(self._seen[at + len(mark) :])
            self._seen.clear()
            self.ready = True
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                self.write(one)
        for stream, kind, payload in self._parser.feed(data):
            owner = self.streams.get(stream)
            if owner is None:
                continue
            if kind in LAST_FRAMES:
                del self.streams[stream]
            owner[0].deliver(owner[1], kind, payload)

    def fail(self, text: str) -> None:
        """The machine has gone: tell everybody who has a stream."""
        self.ready = False
        self._waiting.clear()
        streams, self.streams = self.streams, {}
        for owner, theirs in streams.values():
            owner.deliver(theirs, Frame.ERROR, pack_error(self.gone_code, text))


class HostLink(Link):
    """An outer machine's line: the Unix socket of its virtio-serial port."""

    def __init__(self, name: str, writer: asyncio.StreamWriter) -> None:
        super().__init__(name)
        self._writer = writer

    def write(self, data: bytes) -> None:
        self._writer.write(data)


class GuestLink(Link):
    """An inner machine's line: a stream of the host's agent to a Unix socket."""

    gone_code = GUEST_GONE

    def __init__(self, name: str, host: Link) -> None:
        super().__init__(name)
        self._host = host
        self._stream = 0
        self._credit = 0
        self._buffer = bytearray()
        self._unacknowledged = 0
        self.alive = False

    def move(self, host: Link) -> None:
        """The guest is on that host now; whoever has a stream lost it."""
        if host is self._host:
            return
        if self.alive:
            self._host.send(frame(self._stream, Frame.CLOSE))
            self._host.streams.pop(self._stream, None)
            self._lost("has moved to another host")
        self._host = host

    def connect(self) -> None:
        """Open the line; failure arrives as an ERROR frame."""
        self.alive = True
        self._buffer.clear()
        self._credit = WINDOW
        self._unacknowledged = 0
        self._stream = self._host.new_stream(self, 0)
        path = f"/run/vmlab/{self.name}/agent.sock"
        payload = pack_open([path], "/", {}, OPEN_CONNECT)
        self._host.send(frame(self._stream, Frame.OPEN, payload))
        self.greet()

    def write(self, data: bytes) -> None:
        self._buffer += data
        self._push()

    def _push(self) -> None:
        while self._buffer and self._credit:
            n = min(self._credit, CHUNK, len(self._buffer))
            self._host.send(frame(self._stream, Frame.DATA, bytes(self._buffer[:n])))
            del self._buffer[:n]
            self._credit -= n

    def deliver(self, _stream: int, kind: int, payload: bytes) -> None:
        """A frame of the host's agent about our connection."""
        if kind == Frame.OUT:
            self._unacknowledged += len(payload)
            if self._unacknowledged >= WINDOW // 4:
                self._host.send(frame(self._stream, Frame.WINDOW, number(self._unacknowledged)))
                self._unacknowledged = 0
            try:
                self.received(payload)
            except ValueError:
                self._host.send(frame(self._stream, Frame.CLOSE))
                self._host.streams.pop(self._stream, None)
                self._lost("sent garbage")
        elif kind == Frame.WINDOW:
            self._credit += first_number(payload)
            self._push()
        elif kind == Frame.ERROR:
            code = first_number(payload)
            if code in (errno.ENOENT, errno.ECONNREFUSED):
                self._lost("is not running")
            else:
                self._lost(payload[4:].decode(errors="replace"))
        elif kind == Frame.EXIT:
            self._lost("has gone (it ended)")

    def _lost(self, why: str) -> None:
        self.alive = False
        self.fail(f"guest {self.name} {why}")


def first_number(payload: bytes) -> int:
    """The number that a WINDOW or ERROR payload begins with."""
    return int.from_bytes(payload[:4], "little")


class Client:
    """One connection of a client."""

    def __init__(self, switch: "Switch", writer: asyncio.StreamWriter) -> None:
        self._switch = switch
        self._writer = writer
        self._link: Link | None = None
        self._numbers: dict[int, int] = {}
        """Our stream numbers to those on the line."""

    def deliver(self, stream: int, kind: int, payload: bytes) -> None:
        """Pass on a frame from the agent."""
        if kind in LAST_FRAMES:
            self._numbers.pop(stream, None)
        self._writer.write(frame(stream, Frame(kind), payload))

    def handle(self, stream: int, kind: int, payload: bytes) -> None:
        """A frame from the client."""
        if kind == Frame.HELLO:
            self._link = self._switch.link(payload.decode())
            return
        if self._link is None:
            return
        if kind == Frame.OPEN:
            self._numbers[stream] = self._link.new_stream(self, stream)
            if isinstance(self._link, GuestLink) and not self._link.alive:
                self._link.connect()
        ours = self._numbers.get(stream)
        if ours is None:
            return
        if kind == Frame.CLOSE:
            self._numbers.pop(stream)
            self._link.streams.pop(ours, None)
        self._link.send(frame(ours, Frame(kind), payload))

    def close(self) -> None:
        """The client has gone: what it ran must end."""
        for ours in self._numbers.values():
            if self._link and self._link.streams.pop(ours, None):
                self._link.send(frame(ours, Frame.CLOSE))
        self._numbers.clear()


class Switch:
    """The outer machines of a lab and its clients."""

    def __init__(self, lab_dir: Path) -> None:
        self._config = json.loads((lab_dir / "switch.json").read_text())
        self._run_dir = Path(self._config["run_dir"])
        self._lab_dir = lab_dir
        self._hosts: dict[str, HostLink] = {}
        self._guests: dict[str, GuestLink] = {}

    def link(self, name: str) -> Link:
        """The line to the machine called ``name``."""
        if name in self._hosts:
            return self._hosts[name]
        host = self._hosts.get(self._place(name), self._hosts[FIRST_HOST])
        guest = self._guests.setdefault(name, GuestLink(name, host))
        guest.move(host)
        return guest

    def _place(self, guest: str) -> str:
        """The host that a guest is on."""
        try:
            state = json.loads((self._lab_dir / "state.json").read_text())
        except FileNotFoundError:
            return FIRST_HOST
        return str(state["guests"].get(guest, {}).get("host", FIRST_HOST))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Client(self, writer)
        parser = Parser()
        try:
            while data := await reader.read(262144):
                for one in parser.feed(data):
                    client.handle(*one)
        except (OSError, ValueError):
            pass
        finally:
            client.close()
            writer.close()

    async def _hold_host(self, reader: asyncio.StreamReader, host: HostLink) -> None:
        while data := await reader.read(262144):
            host.received(data)

    async def _start(self, name: str, lan: socket.socket) -> asyncio.subprocess.Process:
        """Start an outer machine; ``lan`` is its end of the line to the other one."""
        given = self._config["hosts"][name]
        command = [word.replace(LAN, f"fd={lan.fileno()}") for word in given]
        with open(self._lab_dir / name / "qemu.log", "ab") as log:
            return await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **self._config["environment"]},
                preexec_fn=die_with_parent, pass_fds=[lan.fileno()] if command != given else [],
            )  # fmt: skip

    async def _connect(self, name: str, qemu: asyncio.subprocess.Process) -> asyncio.Task[None] | None:
        """Open the line to an outer machine's agent; None if the machine ends before."""
        while qemu.returncode is None:
            try:
                reader, writer = await asyncio.open_unix_connection(str(self._run_dir / name / "agent.sock"))
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            host = self._hosts[name] = HostLink(name, writer)
            host.greet()
            return asyncio.create_task(self._hold_host(reader, host))
        return None

    async def run(self) -> int:
        """Run until an outer machine ends or SIGTERM; return its status."""
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        names = list(self._config["hosts"])
        qemus = {name: await self._start(name, end) for name, end in zip(names, ends, strict=False)}
        for end in ends:
            end.close()
        (self._lab_dir / "qemu.pids").write_text(json.dumps({name: qemu.pid for name, qemu in qemus.items()}))

        def kill_all() -> None:
            for qemu in qemus.values():
                if qemu.returncode is None:
                    qemu.kill()

        loop = asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, kill_all)
        tasks = [await self._connect(name, qemu) for name, qemu in qemus.items()]
        if None in tasks:
            kill_all()
            return max([await qemu.wait() for qemu in qemus.values()]) or 1
        # Made under another name: whoever sees the socket can connect to it.
        path = self._run_dir / "switch.sock"
        server = await asyncio.start_unix_server(self._serve, str(path) + ".new")
        os.rename(str(path) + ".new", path)
        waits = [asyncio.create_task(qemu.wait()) for qemu in qemus.values()]
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        status = done.pop().result()
        kill_all()
        await asyncio.wait(waits)
        for task in tasks:
            if task:
                task.cancel()
        for guest in self._guests.values():
            guest.gone_code = LAB_GONE
        for host in self._hosts.values():
            host.fail(f"the outer machine ended (status {status})")
        for guest in self._guests.values():
            guest.fail(f"the outer machine ended (status {status})")
        path.unlink(missing_ok=True)
        server.close()
        await asyncio.sleep(0.2)  # let the last frames reach the clients
        return status


def main() -> None:
    """Entry point of the switch's process."""
    if os.environ.get("VMLAB_PDEATHSIG"):
        die_with_parent()
        if os.getppid() != int(os.environ["VMLAB_PDEATHSIG"]):
            sys.exit(1)  # the parent ended before we asked
    status = asyncio.run(Switch(Path(sys.argv[1])).run())
    print(f"switch: the outer machine ended with status {status}", flush=True)


if __name__ == "__main__":
    main()
