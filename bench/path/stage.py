# SPDX-License-Identifier: GPL-2.0
"""The stage of a measurement: a KVM host with two guests, the agent, and a switch between two paths."""

import json
import time
from collections.abc import Callable
from types import TracebackType

from vmlab import Guest, Lab, LabFailed, paths
from vmlab.errors import VmlabError

BIN = paths.OUT / "bin"
HERE = "/run/vmloop"
"""Where each machine has its own copy of the programs."""

PATHS = ("standard", "channel")


def wait_for(look: Callable[[], bool], seconds: float, what: str) -> None:
    """Look until it is so. Raises VmlabError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() > deadline:
            raise VmlabError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


class Stage:
    """Two guests and an agent. A context manager; its end is the end of the lab."""

    def __init__(self, name: str, kernel: str = "6.1", machine: str = "pc", policy: str = "idle_ms = 0\n") -> None:
        self.name = name
        self.kernel = kernel
        self.machine = machine
        self.policy = policy
        self.retries: list[str] = []
        self.loaded = False

    def __enter__(self) -> "Stage":
        self.lab = self._boot()
        try:
            self.g1 = self.lab.guest("g1")
            self.g2 = self.lab.guest("g2")
            self._start_agent()
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
                return Lab.up(self.name, 2, kernel=self.kernel, machine=self.machine, bound=True)
            except LabFailed as error:
                # The stage broke, not what is measured on it.
                self.retries.append(str(error))
                if attempt == 2:
                    raise
        raise AssertionError("not reached")

    def _start_agent(self) -> None:
        host = self.lab.host
        host.run(
            f"mkdir -p {HERE} && cp {BIN}/vmloopd {BIN}/vmloop {HERE}/ && cat >{HERE}/policy.toml", stdin=self.policy
        )
        for guest in self.guests:
            guest.run(f"mkdir -p {HERE} && cp {BIN}/vmloop {HERE}/")
        log = "/run/vmlab/lab/host/vmloopd.log"
        self.agent = host.popen(f"exec {HERE}/vmloopd --policy {HERE}/policy.toml >>{log} 2>&1")

        def answers() -> bool:
            if self.agent.poll() is not None:
                raise VmlabError(f"vmloopd ended: see {self.lab.directory}/host/vmloopd.log")
            return host.run([f"{HERE}/vmloop", "--host", "status"], check=False).code == 0

        wait_for(answers, 15, "vmloopd answers")
        for guest in self.guests:
            host.run([f"{HERE}/vmloop", "--host", "attach", "--qmp", guest.qmp_socket, "--name", guest.name])

    @property
    def guests(self) -> tuple[Guest, Guest]:
        """Both guests."""
        return self.g1, self.g2

    def both(self, command: str, timeout: float = 60) -> None:
        """Run a command in both guests at the same time."""
        with self.g1.popen(command) as one, self.g2.popen(command) as other:
            for process in (one, other):
                result = process.wait(timeout)
                if result.code:
                    raise VmlabError(f"{process.machine}: {command}: {result.err.strip()}")

    def load(self) -> None:
        """Load the modules; returns at once, the channel comes with the traffic."""
        self.both("modprobe -a vmloop_ivshmem vmloop_net")
        self.loaded = True

    def unload(self) -> None:
        """Unload the modules."""
        self.both("rmmod vmloop_net vmloop_ivshmem vmloop")
        self.loaded = False

    def channel_is_up(self) -> bool:
        """Whether both guests use the channel."""
        for guest, peer in (self.guests, self.guests[::-1]):
            peers = json.loads(guest.run([f"{HERE}/vmloop", "--guest", "ls", "--json"]).out)
            if not any(one["name"] == peer.name and one["state"] == "up" for one in peers):
                return False
        return True

    def use(self, path: str) -> None:
        """Switch to a path; returns when it is in use."""
        if not self.loaded:
            self.load()
        if path == "channel":
            self.both(f"{HERE}/vmloop --guest on")

            def is_up() -> bool:
                self.g1.run(["ping", "-c", "1", "-W", "1", "-q", self.g2.ip], check=False)
                return self.channel_is_up()

            wait_for(is_up, 20, "the channel is up")
        else:
            self.both(f"{HERE}/vmloop --guest off")
            wait_for(lambda: not self.channel_is_up(), 20, "the channel is closed")
        # Neighbours and caches are as they will be.
        self.g1.run(["ping", "-c", "10", "-i", "0.01", "-q", self.g2.ip])
