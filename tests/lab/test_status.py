# SPDX-License-Identifier: GPL-2.0
"""What './vmlab status' prints, without a lab."""

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from vmlab import cli, lab

GUEST: dict[str, Any] = {
    "name": "a-guest-with-a-name",
    "host": "host",
    "running": True,
    "exit_status": None,
    "kernel": "6.1.0-56-amd64",
    "machine": "q35",
    "cpus": 2,
    "ip": "10.77.0.101",
    "mac": "52:54:00:77:00:01",
    "bridge": "br0",
    "vlan": 20,
    "mtu": 1500,
}


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lab of one guest."""
    info = {
        "kind": "kvm",
        "accelerator": "tcg",
        "virtual_time": False,
        "emulator": "10.0.3 (Debian)",
        "dilation": 1,
        "host_kernel": "6.12.57+deb13-amd64",
        "host_cpus": 3,
        "guests": [GUEST],
    }
    found = SimpleNamespace(info=lambda: info, hosts={"host": SimpleNamespace(name="host", ip="10.77.0.1")})
    monkeypatch.setattr(lab.Lab, "open", lambda _name: found)


class Output(io.StringIO):
    """A terminal, or a pipe."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: is_terminal  # type: ignore[method-assign]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_status_cuts_no_column(running: None, monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    """On a terminal of 80 columns, and in a pipe."""
    monkeypatch.setenv("COLUMNS", "80")
    output = Output(is_terminal)
    monkeypatch.setattr(sys, "stdout", output)
    cli.main(["status"], standalone_mode=False)
    text = output.getvalue()
    for word in ("name", "mac", "ip", "kernel"):
        assert GUEST[word] in text, text
    for phrase in ("br0 vlan 20", "6.12.57+deb13-amd64", "kvm on tcg, QEMU 10.0.3"):
        assert phrase in text, text
    assert "…" not in text
