# SPDX-License-Identifier: GPL-2.0
"""Two guests that have the toy path: one opens lanes, the other echoes what comes by them."""

import json

from vmlab import Guest

from tests.guest.net import TOOLS, Net

TOY = str(TOOLS / "toy")

RING = 4096


class Toy:
    """g1, which opens lanes, and g2, which echoes."""

    def __init__(self, net: Net, g1, g2) -> None:
        self.net = net
        self.g1 = g1
        self.g2 = g2

    @property
    def peer(self) -> str:
        """Identity of g2, as g1 knows it."""
        return str(self.net.peers(self.g1)[self.g2.name].peer["id"])

    def words(self, *words: object) -> list[str]:
        """The program with these words, the second of which is the peer."""
        return [TOY, str(words[0]), self.peer, *map(str, words[1:])]

    def read(self) -> int:
        """Bytes that the echoes of g2 have read."""
        return int(self.g2.run("cat /sys/module/vmloop_toy/parameters/bytes_read").out)

    def counters(self, guest: Guest) -> dict[str, int]:
        """Lanes that a guest has, and what those that have ended came to (kernel/paths/toy/account.c)."""
        names = ("lanes", "ended", "peers_read", "we_read", "not_final")
        out = guest.run(f"cd /sys/module/vmloop_toy/parameters && cat {' '.join(names)}").out
        return dict(zip(names, map(int, out.split()), strict=True))

    def run(self, *words: object) -> dict[str, float]:
        """What it says at its end."""
        out = self.g1.run(self.words(*words), timeout=300 * self.net.slow).out
        return dict(json.loads(out))
