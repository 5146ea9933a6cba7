# SPDX-License-Identifier: GPL-2.0
"""Two network namespaces of one machine (veth.py) that have a channel by the loopback transport."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from vmlab import Host, paths

from tests.guest.net import TOOLS, build_tools, until
from tests.guest.veth import IP, MAC, NAMES, TOPOLOGY, inside


class Pair:
    """Two namespaces of one machine that have a channel."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.modules = paths.OUT / "modules" / host.run(["uname", "-r"]).out.strip()

    def load(self) -> None:
        """All modules."""
        for words in ("vmloop", "vmloop_net", f"vmloop_loopback interfaces={','.join(MAC)}"):
            name, _, options = words.partition(" ")
            self.host.run(["insmod", str(self.modules / f"{name}.ko"), *options.split()])
            if name == "vmloop_net":
                self.host.run(NAMES)

    def unload(self) -> None:
        """All of them that are there."""
        self.host.run("rmmod vmloop_loopback; rmmod vmloop_net; rmmod vmloop", check=False)

    def peers(self) -> dict[str, dict[str, Any]]:
        """What the modules say of both."""
        found = json.loads(self.host.run([str(TOOLS / "control"), "peers"]).out)
        return {one["name"]: one for one in found}

    def states(self) -> set[str]:
        """The states of both ends: one, mostly."""
        return {str(one["state"]) for one in self.peers().values()}

    def bring_up(self) -> None:
        """Have a channel."""

        def is_up() -> bool:
            self.host.run(inside("a", "ping", "-c", 1, "-W", 1, "-q", IP[1]), check=False)
            return self.states() == {"up"}

        until(is_up, 10, "the loopback channel")


P = TypeVar("P", bound=Pair)


@contextmanager
def standing(pair: P) -> Iterator[P]:
    """The pair, with a channel that is up, for the time of the block."""
    build_tools()
    try:
        pair.host.run(TOPOLOGY)
        pair.load()
        pair.bring_up()
        yield pair
    finally:
        pair.unload()
        pair.host.run("ip netns del a; ip netns del b", check=False)
