# SPDX-License-Identifier: GPL-2.0
"""The script that starts a guest in dom0 and looks after it, with an xl that only pretends; needs no machine.

A domain is a file: what `xl list -v` shows as the reason for its being shut
down, "-" while it runs.
"""

import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from vmlab import kernels, qemu, xen
from vmlab.qemu import GuestSpec
from vmlab.xen import ARRIVED, RELAY

FAKE_XL = """#!/bin/sh
case $1 in
list)
    [ -e domain ] || exit 6
    echo "Name ID Mem VCPUs State Time(s) UUID Reason-Code Security-Label"
    echo "g1 3 512 1 ------ 1.2 7777 $(cat domain) -"
    cat domain >>seen ;;
create) [ ! -e refuse ] || { echo "not enough memory"; exit 1; }; echo - >domain ;;
destroy) rm domain ;;
domid) [ -e domain ] && echo 3 ;;
migrate-receive | restore)
    echo "Restoring" >&2
    [ "$(cat)" = memory ] || exit 1
    echo - >domain ;;
esac
"""

FAKE_WATCH = """#!/bin/sh
echo $1
exec tail -n +1 -f events
"""


def until(look, what):
    deadline = time.monotonic() + 20
    while not look():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.01)


class Dom0:
    """Runs the script, and has domains shut down."""

    def __init__(self, top, monkeypatch):
        self.top = top
        monkeypatch.setattr(xen, "XL", f"{top}/xl")
        # Hosts of labs have all ports for themselves; here a port may be somebody's.
        with socket.socket() as probe:
            probe.bind(("", 0))
            monkeypatch.setattr(qemu, "MIGRATION_PORT", probe.getsockname()[1] - 1)
        monkeypatch.setattr(kernels, "build_initramfs", lambda *_: top)
        for name, text in (("xl", FAKE_XL), ("xenstore-watch", FAKE_WATCH)):
            (top / name).write_text(text)
            (top / name).chmod(0o755)
        for name in ("events", "seen", "lab/g1/console.log", "log/x", "consoles/x"):
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).touch()
        self.status = top / "lab/g1/status"

    def start(self, incoming=False, machine="pv"):
        """Returns what the script ended with, and what it complained about."""
        guest: Any = SimpleNamespace(
            name="g1", inside=f"{self.top}/lab/g1", own_file=str, spec=GuestSpec("g1", 1, machine=machine),
            lab=SimpleNamespace(directory=self.top / "lab"),
        )  # fmt: skip
        kernel = kernels.Kernel("6.1", "6.1.0", self.top, self.top)
        text = xen.Xen().start_script(guest, kernel, self.top, incoming)
        places = {guest.spec.directory: self.top, "/var/log/xen": f"{self.top}/log"}
        for place, here in {**places, "/run/vmlab/consoles": f"{self.top}/consoles"}.items():
            text = text.replace(place, str(here))
        script = self.top / "lab/g1/start.sh"
        script.write_text(text)
        path = f"{self.top}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", script], env={"PATH": path}, capture_output=True, text=True, timeout=30, check=False
        )
        return done.returncode, done.stderr

    def say(self, reason):
        """The domain is shut down for that reason, or runs again, or is gone."""
        if reason is None:
            (self.top / "domain").unlink()
        else:
            (self.top / "domain").write_text(reason)
        with open(self.top / "events", "a") as events:
            events.write("@releaseDomain\n")

    def wait_status(self):
        until(self.status.exists, "somebody noticed the end")
        return int(self.status.read_text())


@pytest.fixture
def dom0(tmp_path, monkeypatch):
    made = Dom0(tmp_path, monkeypatch)
    yield made
    # Who looks after a domain ends with it.
    if (tmp_path / "domain").exists():
        made.say(None)
        made.wait_status()


@pytest.mark.parametrize(("reason", "status"), [("0", 0), ("3", 134), (None, 137)])
def test_how_it_ended(dom0, reason, status):
    assert dom0.start() == (0, "")
    assert (dom0.top / "lab/g1/domids").read_text() == "3\n"
    dom0.say(reason)
    assert dom0.wait_status() == status
    assert not (dom0.top / "domain").exists(), "a domain that was shut down stays"


def test_it_is_looked_after_when_it_was_suspended(dom0):
    dom0.start()
    for reason, seen in (("", "-"), ("2", "-2"), ("-", "-2-")):
        if reason:
            dom0.say(reason)
        until(lambda: (dom0.top / "seen").read_text().replace("\n", "") == seen, f"{seen} was seen")  # noqa: B023
    assert not dom0.status.exists()
    dom0.say("3")
    assert dom0.wait_status() == 134


def test_what_xl_refuses(dom0):
    (dom0.top / "refuse").touch()
    assert dom0.start() == (1, "not enough memory\n")
    assert dom0.status.read_text() == "1\n"


@pytest.mark.parametrize("machine", ["pv", "pvh"])
@pytest.mark.parametrize("sent", ["memory", "nonsense"])
def test_one_that_comes(dom0, sent, machine):
    assert dom0.start(incoming=True, machine=machine) == (0, "")
    assert int((dom0.top / "receive.pid").read_text())
    port = str(GuestSpec("g1", 1).migration_port)
    connect = [sys.executable, str(RELAY), "connect", port, "127.0.0.1"]
    subprocess.run(connect, input=sent.encode(), timeout=20, check=True)
    if sent == "nonsense":
        assert dom0.wait_status() == 1
        return
    until((dom0.top / "created").exists, "somebody looks after it")
    lines = (dom0.top / "lab/g1/xl.log").read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["Restoring", ARRIVED]
    assert all(float(line.split()[0]) > 1e9 for line in lines)
    dom0.say(None)
    assert dom0.wait_status() == 137
