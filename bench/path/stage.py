# SPDX-License-Identifier: GPL-2.0
"""The stage of a measurement: a host with two guests, the agent, and a switch between two paths."""

import json
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from vmlab import Guest, Lab, LabFailed, paths
from vmlab.errors import VmlabError
from vmlab.process import allowed

from .hosts import StageHost

BIN = paths.OUT / "bin"
HERE = "/run/vmloop"
"""Where each machine has its own copy of the programs."""

EARLIER_BUILD = f"{HERE}/earlier"
"""Where the guests have another build of vmloop: its modules, and its command."""

PATHS = ("standard", "channel")
STREAM = "stream"
"""The stream path on top of the channel (docs/stream.md): TCP's bytes past TCP and IP. Packets go as by the channel."""

EARLIER = "earlier"
"""The channel as another build of vmloop makes it, in the same guests (bench/earlier)."""

LOOPBACK = "loopback"
"""Not between guests, but inside one: what its kernel and its CPUs take for the same work without a way to go."""

UNIX = "unix"
"""Inside one guest, too, by a socket of the file system: nothing of a network."""

GUEST_CPUS = 1
"""Of each guest, if nothing else is wanted: the stage has two CPUs that work."""

RING_SIZE = 4 << 20
"""Bytes of each ring, where nothing else is wanted."""


def wait_for(look: Callable[[], bool], seconds: float, what: str) -> None:
    """Look until it is so. Raises VmlabError after ``seconds`` of a fast machine (allowed())."""
    deadline = time.monotonic() + allowed(seconds)
    while not look():
        if time.monotonic() > deadline:
            raise VmlabError(f"not within {allowed(seconds):g} s: {what}")
        time.sleep(0.05)


class Stage:
    """Two guests and an agent. A context manager; its end is the end of the lab."""

    def __init__(
        self, name: str, kind: StageHost, kernel: str = "6.1", machine: str = "", ring_size: int = RING_SIZE,
        guest_cpus: int = GUEST_CPUS,
    ) -> None:  # fmt: skip
        self.name = name
        self.kind = kind
        self.kernel = kernel
        self.machine = machine
        self.ring_size = ring_size
        self.guest_cpus = guest_cpus
        self.retries: list[str] = []
        self.loaded = False
        self.streams = False
        self.stream_ring = 0
        self.has_earlier = False
        """Whether the guests' modules, and the command that asks them, are those of the other build."""

    def __enter__(self) -> "Stage":
        self.lab = self._boot()
        try:
            self.g1 = self.lab.guest("g1")
            self.g2 = self.lab.guest("g2")
            self.machine = self.g1.spec.machine
            self._start_agent()
            self.processors = self.kind.processors(self.lab)
        except BaseException:
            self.lab.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lab.down()

    def _boot(self) -> Lab:
        for attempt in range(3):
            try:
                return Lab.up(
                    self.name,
                    2,
                    kind=self.kind.name,
                    kernel=self.kernel,
                    machine=self.machine,
                    guest_cpus=self.guest_cpus,
                    virtual_time=self.kind.virtual_time,
                    bound=True,
                )
            except LabFailed as error:
                # The stage broke, not what is measured on it.
                self.retries.append(str(error))
                if attempt == 2:
                    raise
        raise AssertionError("not reached")

    def patient(self, seconds: float) -> float:
        """How long to wait outside for what may take so long inside."""
        return seconds * self.kind.patience

    def now(self) -> float:
        """Seconds since some moment in the past, as the guests count them."""
        return self.kind.now(self.lab)

    # The agent

    def _command(self, *words: str, check: bool = True) -> int:
        """Run the vmloop command in the host; returns its status."""
        command = [f"{HERE}/vmloop", "--host", *words]
        return self.lab.host.run(command, check=check, timeout=self.patient(60)).code

    def _write_policy(self) -> None:
        text = f"idle_ms = 0\nring_size = {self.ring_size}\n"
        self.lab.host.run(f"cat >{HERE}/policy.toml", stdin=text, timeout=self.patient(60))

    def _start_agent(self) -> None:
        host = self.lab.host
        copying = self.patient(60)
        host.run(f"mkdir -p {HERE} && cp {BIN}/vmloopd {BIN}/vmloop {HERE}/", timeout=copying)
        self._write_policy()
        for guest in self.guests:
            guest.run(f"mkdir -p {HERE} && cp {BIN}/vmloop {HERE}/", timeout=copying)
        log = "/run/vmlab/lab/host/vmloopd.log"
        options = f"--hypervisor {self.kind.hypervisor} --policy {HERE}/policy.toml"
        self.agent = host.popen(f"exec {HERE}/vmloopd {options} >>{log} 2>&1")

        def answers() -> bool:
            if self.agent.poll() is not None:
                raise VmlabError(f"vmloopd ended: see {self.lab.directory}/host/vmloopd.log")
            return self._command("status", check=False) == 0

        wait_for(answers, self.patient(15), "vmloopd answers")
        for guest in self.guests:
            words = self.kind.attach(guest)
            if words:
                self._command(*words)

    # The guests

    @property
    def guests(self) -> tuple[Guest, Guest]:
        """Both guests."""
        return self.g1, self.g2

    def both(self, command: str) -> None:
        """Run a command in both guests at the same time."""
        with self.g1.popen(command) as one, self.g2.popen(command) as other:
            for process in (one, other):
                result = process.wait(self.patient(60))
                if result.code:
                    raise VmlabError(f"{process.machine}: {command}: {result.err.strip()}")

    def load(self) -> None:
        """Load the modules; returns at once, the channel comes with the traffic."""
        if self.has_earlier:
            names = ("vmloop", self.kind.transport, "vmloop_net")
            self.both("; ".join(["set -e", *(f"insmod {EARLIER_BUILD}/{name}.ko" for name in names)]))
        else:
            self.both(f"modprobe -a {self.kind.transport} vmloop_net")
        self.loaded = True

    def unload(self) -> None:
        """Unload the modules."""
        self.both(f"rmmod vmloop_net {self.kind.transport} vmloop")
        self.loaded = False

    @property
    def _tool(self) -> str:
        """The command, in a guest, of the build whose modules are loaded there."""
        return f"{EARLIER_BUILD if self.has_earlier else HERE}/vmloop"

    def _peer(self, guest: Guest, name: str) -> dict[str, Any]:
        """What a guest's modules say of a peer; nothing if they do not know it."""
        out = guest.run([self._tool, "--guest", "ls", "--json"], timeout=self.patient(60)).out
        return next((dict(one) for one in json.loads(out) if one["name"] == name), {})

    def channel_is_up(self) -> bool:
        """Whether both guests use the channel."""
        return all(self._peer(a, b.name).get("state") == "up" for a, b in (self.guests, self.guests[::-1]))

    def use(self, path: str) -> None:
        """Switch to a path; returns when it is in use. Connections from now on may use it."""
        if self.streams and path != STREAM:
            self.both("rmmod vmloop_tcp")
            self.streams = False
        if self.loaded and self.has_earlier != (path == EARLIER):
            self.unload()
        if not self.loaded:
            self.has_earlier = path == EARLIER
            self.load()
        if path != "standard":
            self.both(f"{self._tool} --guest on")

            def is_up() -> bool:
                self.g1.run(["ping", "-c", "1", "-W", "1", "-q", self.g2.ip], check=False, timeout=self.patient(60))
                return self.channel_is_up()

            wait_for(is_up, self.patient(20), "the channel is up")
            made = self._peer(self.g1, self.g2.name).get("ring_size")
            if made != self.ring_size:
                raise VmlabError(f"rings of {made} bytes were made instead of {self.ring_size}: is memory short?")
        else:
            self.both(f"{self._tool} --guest off")
            wait_for(lambda: not self.channel_is_up(), self.patient(20), "the channel is closed")
        # Neighbours and caches are as they will be.
        self.g1.run(["ping", "-c", "10", "-i", "0.01", "-q", self.g2.ip], timeout=self.patient(60))
        if path == STREAM and not self.streams:
            self.both(
                "modprobe vmloop_tcp"
                + (f" ring_size={self.stream_ring} first_ring={self.stream_ring}" if self.stream_ring else "")
            )
            self.streams = True

    def set_stream_ring(self, size: int) -> None:
        """Have lanes of streams made with rings of ``size`` bytes, a power of two; 0: as the module has it.

        Ends without the stream path where that is a change.
        """
        if size != self.stream_ring and self.streams:
            self.both("rmmod vmloop_tcp")
            self.streams = False
        self.stream_ring = size

    def set_ring_size(self, size: int) -> None:
        """Have channels from now on made with rings of ``size`` bytes each, a power of two.

        Ends on the standard network where that is a change: a channel keeps the
        rings that it was made with.
        """
        if size == self.ring_size:
            return
        self.use("standard")
        self.ring_size = size
        self._write_policy()
        self._command("policy", "reload")
