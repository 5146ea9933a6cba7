# SPDX-License-Identifier: GPL-2.0
"""haproxy's own tests, reg-tests of Debian's source package."""

from collections.abc import Iterable
from pathlib import Path

from . import debian, outside, vtc


def build(scratch: Path, source: Path) -> Iterable[str]:
    """The tests, which name the peer."""
    outside.copy(source / "reg-tests", scratch / "reg-tests", links=True)
    outside.redirect([scratch / "reg-tests"])
    return ["reg-tests"]


SCRIPT = vtc.script("/haproxy/reg-tests", "*/*.vtc", "HAPROXY_PROGRAM=/usr/sbin/haproxy")
SUITES = (debian.Tests("haproxy", "haproxy", "haproxy", build, SCRIPT, vtc.run_of),)
"""All of its tests; those that its package's features or this varnishtest do not allow fail."""
