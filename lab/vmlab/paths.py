# SPDX-License-Identifier: GPL-2.0
"""Where things are: in the checkout, in its caches, and at run time."""

import hashlib
import os
import tempfile
from pathlib import Path

from .errors import VmlabError

REPO = Path(__file__).resolve().parents[2]
LAB_SOURCE = REPO / "lab"
RELAY = LAB_SOURCE / "vmlab/relay.py"
"""What carries a domain, or an archive, over a host's network."""
CACHE = (REPO / ".cache").resolve()
"""Its real path: machines see the outside below a root of their own, where a link would lead elsewhere."""
KERNELS = CACHE / "kernels"
OUT = REPO / "out"
LABS = OUT / "lab"


def check_name(name: str) -> str:
    """Return ``name`` if it can name a lab or a guest; raise VmlabError if not."""
    if not name or not all(c.isalnum() or c in "-_" for c in name) or len(name) > 32:
        raise VmlabError(f"bad name {name!r}: use up to 32 letters, digits, '-' and '_'")
    return name


def lab_dir(name: str) -> Path:
    """Where the lab ``name`` keeps its state, consoles and evidence."""
    return LABS / check_name(name)


def runtime_dir(name: str) -> Path:
    """A short private directory for the lab's sockets.

    A Unix socket's path has at most 107 bytes, and a checkout may lie deep.
    """
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    top = base / f"vmlab-{os.getuid()}"
    top.mkdir(mode=0o700, exist_ok=True)
    if top.is_symlink() or top.stat().st_uid != os.getuid():
        raise VmlabError(f"{top} belongs to somebody else: remove it, or set XDG_RUNTIME_DIR")
    digest = hashlib.sha256(str(REPO).encode()).hexdigest()[:8]
    path = top / f"{check_name(name)}-{digest}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path
