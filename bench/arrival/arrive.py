# SPDX-License-Identifier: GPL-2.0
"""Has a saved guest of Xen arrive as one that migrates does.

Run inside dom0; uses nothing of the lab.

    arrive.py FILE COMMAND...   FILE is what `xl save` wrote, COMMAND `xl migrate-receive` with its options

What ``xl migrate`` sends is what ``xl save`` writes, and a word when the domain may go
on. Says when that was given, in seconds since the epoch. Messages: xl_migrate.c.
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path

# Of these only the first goes without its terminating zero.
BANNER = b"xl migration receiver ready, send binary domain data.\n"
READY = b"domain received, ready to unpause\0"
GO = b"domain is yours, you are cleared to unpause\0"
REPORT = b"my copy unpause results are as follows\0"
STARTED = b"\0"
"""The result: anything else is an error's number."""


class Refused(Exception):
    """The receiver said something else than it ought to."""


def play(receiver: subprocess.Popen[bytes], file: Path) -> float:
    """Say what another xl would say, and hear what it would hear."""
    assert receiver.stdin and receiver.stdout
    into, out = receiver.stdin, receiver.stdout

    def expect(message: bytes) -> None:
        if (heard := out.read(len(message))) != message:
            raise Refused(f"{heard!r} instead of {message!r}")

    expect(BANNER)
    with file.open("rb") as saved:
        shutil.copyfileobj(saved, into)
    into.flush()
    expect(READY)
    gone_on = time.time()
    into.write(GO)
    into.flush()
    expect(REPORT + STARTED)
    return gone_on


def arrive(file: Path, command: list[str]) -> float:
    """Have it arrive; returns when it went on. A receiver that refuses tells why, and ends the program."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as receiver:
        try:
            return play(receiver, file)
        except (BrokenPipeError, Refused) as error:
            # It may wait for us as well.
            _, said = receiver.communicate()
            sys.exit(f"{command}: {error}: {said.decode()}")


if __name__ == "__main__":
    print(f"{arrive(Path(sys.argv[1]), sys.argv[2:]):.6f}")
