# SPDX-License-Identifier: GPL-2.0
"""Archives that are made on the outside once, kept in the cache, and unpacked in machines."""

import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from . import kernels, paths


def made(folder: str, name: str, identity: object, make: Callable[[Path], Iterable[str]]) -> Path:
    """The archive ``name`` in a folder of the cache, made unless that has been done; older ones of that name go.

    ``make`` is given an empty directory, and says which of what it left there belongs into the archive. Whatever the
    result depends on is in ``identity``. All files are root's. Raises VmlabError.
    """
    top = paths.CACHE / folder
    archive = top / f"{name}-{hashlib.sha256(repr(identity).encode()).hexdigest()[:12]}.tar"
    with kernels.cache_lock(f"{folder}-{name}".replace("/", "-")):
        if not archive.exists():
            scratch = top / f"{name}.new"
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            wanted = make(scratch)
            fresh = archive.with_suffix(".new")
            words: list[str | Path] = [
                "tar",
                "--owner=0",
                "--group=0",
                "--numeric-owner",
                "-cf",
                fresh,
                "-C",
                scratch,
                *wanted,
            ]
            kernels.run_tool(words, f"pack {archive.name}")
            shutil.rmtree(scratch)
            for old in top.glob(f"{name}-*.tar"):
                old.unlink()
            fresh.rename(archive)
    return archive
