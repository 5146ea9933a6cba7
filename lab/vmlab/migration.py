# SPDX-License-Identifier: GPL-2.0
"""Live migration of a guest from one host of a lab to the other."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from .errors import VmlabError

if TYPE_CHECKING:
    from .machine import Guest, Host


def migrate(guest: "Guest", to: "Host", start: Callable[[str], None] | None, seconds: float) -> float | None:
    """Move a guest; see Lab.migrate()."""
    if to is guest.host:
        raise VmlabError(f"{guest.name} is on {to.name} already")
    if not guest.running:
        raise VmlabError(f"{guest.name} does not run")
    kind = guest.lab.kind
    here = guest.on(guest.host)
    there = guest.on(to)
    uri = f"tcp:{to.ip}:{guest.spec.migration_port}"
    there.launch(incoming=True)
    try:
        kind.wait_incoming(there)
        if start:
            start(uri)
        else:
            kind.begin_migration(here, uri, seconds)
        stood = kind.wait_migrated(here, there, seconds)
    except BaseException:
        # What waits there would wait for ever.
        there.kill()
        raise
    guest.lab.placed(guest.name, to.name)
    here.stop()
    guest.wait_booted()
    return stood
