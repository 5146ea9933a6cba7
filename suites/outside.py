# SPDX-License-Identifier: GPL-2.0
"""What is made of a suite on the outside, once: trees in which 127.0.0.1 is the peer's address, and archives of them.

Suites name 127.0.0.1 in sources, scripts and programs, and that is the loopback interface's. THERE is as long, so
it can stand in its place everywhere, in a program, too.
"""

import inspect
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from vmlab import VmlabError, archive, suites

from .machine import THERE

LOOPBACK = b"127.0.0.1"
assert len(LOOPBACK) == len(THERE)


def run(words: list[str | Path], what: str, cwd: Path | None = None, **environment: str) -> str:
    """Run a program on the outside, at a low priority; its output. Raises VmlabError."""
    words = ["nice", *words]
    env = {**os.environ, **environment}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise VmlabError(f"{what}: {(done.stderr or done.stdout)[-2000:].strip() or f'status {done.returncode}'}")
    return done.stdout


def version(source: Path) -> str:
    """Of a source package; or which archive it was, of a source as its project has it."""
    if not (source / "debian/changelog").exists():
        return (source / suites.ARCHIVE).read_text()
    return (source / "debian/changelog").read_text().partition("(")[2].partition(")")[0]


def copy(tree: Path, to: Path, links: bool = False) -> None:
    """A copy of a tree that may be changed; what links name becomes part of it, or links stay (``links``)."""
    shutil.copytree(tree, to, symlinks=links, dirs_exist_ok=True)


def copy_file(path: Path, to: Path) -> None:
    """A copy of one file that may be changed."""
    shutil.copy2(path, to)


def redirect(trees: Iterable[Path]) -> None:
    """Have the peer's address in the place of 127.0.0.1 in all files of trees of one's own."""
    for tree in trees:
        for path in [tree] if tree.is_file() else tree.rglob("*"):
            if path.is_symlink() or not path.is_file():
                continue
            data = path.read_bytes()
            if LOOPBACK in data:
                path.write_bytes(data.replace(LOOPBACK, THERE.encode()))


def made(name: str, identity: object, build: Callable[[Path, Path], Iterable[str]], source: Path) -> Path:
    """The archive of a suite that ``build`` makes of its source, as archive.made() says; it names the peer.

    It is made anew when the file that has ``build`` has changed.
    """
    recipe = Path(inspect.getfile(build)).read_text()

    def say_and_make(scratch: Path) -> Iterable[str]:
        print(f"{name}: is built on the outside", flush=True)
        return build(scratch, source)

    return archive.made("suites/made", name, (identity, recipe, THERE), say_and_make)
