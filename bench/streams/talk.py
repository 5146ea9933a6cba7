# SPDX-License-Identifier: GPL-2.0
"""The two ends of the connections that are measured: out/bench/talk, which talk.c describes."""

import json

from vmlab import paths

from ..path.parse import GIGA
from ..path.stage import LOOPBACK, UNIX, Stage

TALK = paths.OUT / "bench/talk"
PORT = 7400
INSIDE = (LOOPBACK, UNIX)
"""Paths between two programs of one guest."""


class Talk:
    """Measures on the path that a stage uses, or inside one guest."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def _say(self, path: str, what: str, size: int, seconds: int, connections: int = 1) -> dict[str, float]:
        stage = self.stage
        server = stage.g1 if path in INSIDE else stage.g2
        address = "unix:/run/talk" if path == UNIX else f"{'127.0.0.1' if path == LOOPBACK else stage.g2.ip}:{PORT}"
        # A socket that listened before the stream path was loaded has none: each slice has its own server.
        with server.popen([str(TALK), "serve", address]) as serving:
            serving.wait_for("ready", stage.patient(20))
            words = [str(TALK), what, address, str(size), str(seconds)]
            if what != "trips":
                words.append(str(connections))
            return dict(json.loads(stage.g1.run(words, timeout=stage.patient(60 + seconds)).out))

    def stream(self, path: str, size: int, seconds: int, connections: int = 1) -> float:
        """Gbit/s of connections that write ``size`` bytes at a time."""
        found = self._say(path, "stream", size, seconds, connections)
        return 8 * found["bytes"] / found["seconds"] / GIGA

    def trip(self, path: str, size: int, seconds: int) -> float:
        """Microseconds for which ``size`` bytes take to go and to come back."""
        found = self._say(path, "trips", size, seconds)
        return 1e6 * found["seconds"] / found["trips"]

    def blocks(self, path: str, size: int, seconds: int, connections: int) -> float:
        """Gbit/s of blocks of ``size`` bytes, each in equal parts by so many new connections."""
        found = self._say(path, "blocks", size, seconds, connections)
        return 8 * found["bytes"] / found["seconds"] / GIGA
