# SPDX-License-Identifier: GPL-2.0
"""The stream path (kernel/paths/tcp/) in one machine: what its tests load, set and ask."""

import json

from tests.guest.net import BIN
from tests.guest.pair import Pair
from tests.guest.veth import inside

PARAMETERS = "/sys/module/vmloop_tcp/parameters"
NEVER = 2_000_000_000
"""So many bytes, or turns, go by TCP in no test."""


class Streams(Pair):
    """Two namespaces of one machine with a channel, and the stream path beside that of packets."""

    def load(self) -> None:
        """All modules."""
        super().load()
        self.load_stream()

    def load_stream(self) -> None:
        """The stream path's."""
        self.host.run(["insmod", str(self.modules / "vmloop_tcp.ko")])

    def unload(self) -> None:
        """All of them that are there."""
        self.host.run("rmmod vmloop_tcp", check=False)
        super().unload()

    def set(self, **values: int) -> None:
        """Set parameters of the module."""
        self.host.run("; ".join(f"echo {value} >{PARAMETERS}/{name}" for name, value in values.items()))

    def counter(self, name: str) -> int:
        """One of the module's."""
        return int(self.host.run(f"cat {PARAMETERS}/{name}").out)

    def listed(self, namespace: str) -> list[dict]:
        """What `vmloop streams` says in one of the two."""
        words = inside(namespace, BIN / "vmloop", "--guest", "streams", "--json")
        return list(json.loads(self.host.run(words).out))

    def leave_after(self, what: int) -> None:
        """Connections get a lane after so many bytes, or turns, however soon others ended."""
        self.set(after_bytes=what, after_turns=what, after_most=what)
