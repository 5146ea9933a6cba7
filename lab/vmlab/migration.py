# SPDX-License-Identifier: GPL-2.0
"""Live migration of a guest from one KVM host of a lab to the other."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .errors import GuestFailed, VmlabError
from .process import SLOW

if TYPE_CHECKING:
    from .machine import Guest, Host

OVER = ("completed", "failed", "cancelled")


def migrate(guest: "Guest", to: "Host", start: Callable[[str], None] | None, seconds: float) -> None:
    """Move a guest; see Lab.migrate()."""
    if to is guest.host:
        raise VmlabError(f"{guest.name} is on {to.name} already")
    if not guest.running:
        raise VmlabError(f"{guest.name} does not run")
    here = guest.on(guest.host)
    there = guest.on(to)
    uri = f"tcp:{to.ip}:{guest.spec.migration_port}"
    there.launch(incoming=True)
    try:
        there.qmp("query-status")  # it answers once it listens
        if start:
            start(uri)
        else:
            here.qmp("migrate", {"uri": uri})
        found = wait_over(here, seconds * SLOW)
        if found["status"] != "completed":
            raise GuestFailed(f"{guest.name} stays on {here.host.name}: {found}")
    except BaseException:
        # What waits there would wait for ever.
        there.kill()
        raise
    guest.lab.placed(guest.name, to.name)
    here.stop()
    guest.wait_booted()


def wait_over(guest: "Guest", seconds: float) -> dict[str, Any]:
    """Wait until a guest's migration is over; cancel it if that takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        found: dict[str, Any] = guest.qmp("query-migrate")
        if found.get("status") in OVER:
            return found
        if time.monotonic() > deadline:
            guest.qmp("migrate_cancel")
            raise GuestFailed(f"{guest.name}: not migrated within {seconds:.0f} s: {found}")
        time.sleep(0.1)
