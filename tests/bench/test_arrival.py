# SPDX-License-Identifier: GPL-2.0
"""bench/arrival/arrive.py says to a receiver what another xl would say, and hears what it says."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ARRIVE = Path(__file__).resolve().parents[2] / "bench/arrival/arrive.py"
SAVED = bytes(range(256)) * 1000
"""More than a pipe takes at once."""

RECEIVER = """
import sys
from pathlib import Path
into, out = sys.stdin.buffer, sys.stdout.buffer
def say(message):
    out.write(message)
    out.flush()
say({banner!r})
Path("received").write_bytes(into.read({size}))
say(b"domain received, ready to unpause\\0")
if into.read(44) != b"domain is yours, you are cleared to unpause\\0":
    sys.exit("no permission")
if {dies}:
    sys.exit("no such page")
say(b"my copy unpause results are as follows\\0" + bytes([{status}]))
if {status}:
    sys.exit("it does not start")
"""
BANNER = b"xl migration receiver ready, send binary domain data.\n"


def arrive(
    where: Path, status: int = 0, banner: bytes = BANNER, size: int = len(SAVED), dies: bool = False
) -> subprocess.CompletedProcess[str]:
    (where / "saved").write_bytes(SAVED)
    (where / "receiver.py").write_text(RECEIVER.format(banner=banner, size=size, status=status, dies=dies))
    command = [sys.executable, str(ARRIVE), "saved", sys.executable, "receiver.py"]
    return subprocess.run(command, cwd=where, capture_output=True, text=True)


def test_a_guest_arrives(tmp_path: Path) -> None:
    before = time.time()
    told = arrive(tmp_path)
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "received").read_bytes() == SAVED
    assert before < float(told.stdout) < time.time()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"status": 1}, "it does not start"),
        ({"banner": b"xl: no such domain\n".ljust(len(BANNER))}, "no such domain"),
        # It ends while it is sent what was saved, and after it was told to go on.
        ({"size": 1000}, "no permission"),
        ({"dies": True}, "no such page"),
    ],
)
def test_one_that_is_refused_is_told_why(tmp_path: Path, wrong: dict[str, Any], why: str) -> None:
    told = arrive(tmp_path, **wrong)
    assert told.returncode == 1
    assert "receiver.py" in told.stderr.splitlines()[0]
    assert why in told.stderr
    assert not told.stdout
