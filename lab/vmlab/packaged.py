# SPDX-License-Identifier: GPL-2.0
"""Kernels that other Debian suites than the outside's package: which there are, and what is needed to build for them.

Modules want the kernel's headers, the programs of its build (kbuild) and its
compiler. All of that is unpacked below .cache/suites/build/RELEASE, and nothing
is installed: where the suite's programs want newer libraries than the outside
has, they are run by their own loader.
"""

import fcntl
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import suites
from .errors import VmlabError

BUILD = suites.TOP / "build"
TOOLS = ("as", "ld", "ld.bfd", "ar", "nm", "objcopy", "objdump", "ranlib", "readelf", "strip")
"""Of binutils, that a build of modules runs."""
ARCHITECTURE = "x86_64-linux-gnu"


@dataclass(frozen=True)
class Packaged:
    """The kernel that a suite packages for one kind of machine."""

    series: str
    """What --kernel says."""
    suite: str
    flavour: str

    @property
    def release(self) -> str:
        """What the suite's meta package stands for; its lists are fetched first."""
        (meta,) = suites.fetch(self.suite, [f"linux-headers-{self.flavour}"])
        found = re.search(r"\blinux-headers-(\d\S*)", _field(meta.path, "Depends"))
        if not found:
            raise VmlabError(f"{meta.path.name} names no kernel")
        return found.group(1)

    def image(self) -> list[Path]:
        """The packages of its image and its modules, which are one or several."""
        name = f"linux-image-{self.release}"
        (package,) = suites.fetch(self.suite, [name])
        wanted = rf"\blinux-(?:binary|modules)-{re.escape(self.release)}(?=[ ,]|$)"
        parts = re.findall(wanted, _field(package.path, "Depends"))
        return [one.path for one in suites.fetch(self.suite, [name, *parts])]


PACKAGED = {
    one.series: one
    for one in (
        Packaged("trixie", "trixie", "amd64"),
        Packaged("newest", "trixie-backports", "amd64"),
        Packaged("6.1-rt", "bookworm", "rt-amd64"),
        Packaged("trixie-rt", "trixie", "rt-amd64"),
        Packaged("newest-rt", "trixie-backports", "rt-amd64"),
    )
}
"""By series. The newest is the newest that is made for a stable Debian."""


def find(series: str) -> Packaged | None:
    """The kernel that ``series`` names: a name of ``PACKAGED``, or the newest's version, as in 7.3 or 7.3-rt."""
    if series in PACKAGED:
        return PACKAGED[series]
    found = re.fullmatch(r"(\d+\.\d+)(-rt)?", series)
    newest = PACKAGED["newest" + (found[2] or "")] if found else None
    if found and newest and newest.release.startswith(found[1] + "."):
        return newest
    return None


def _field(package: Path, name: str) -> str:
    done = subprocess.run(["dpkg-deb", "-f", package, name], capture_output=True, text=True, check=True)
    return done.stdout.strip()


# Building modules for it ---------------------------------------------------


@dataclass(frozen=True)
class Toolchain:
    """What modules of one kernel are built with."""

    release: str
    kdir: Path
    """The kernel's build directory."""
    programs: Path | None
    """Directory that must come first in PATH; None if the outside's own programs do."""
    compiler: str


def _is_foreign(program: Path) -> bool:
    """Whether the outside cannot run the program, as its libraries are older."""
    done = subprocess.run([program, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return "not found (required by" in done.stderr or "error while loading shared libraries" in done.stderr


def _wrapper(path: Path, root: Path, program: Path, *arguments: str) -> None:
    """A script at ``path`` that runs ``program`` with the loader and the libraries below ``root``."""
    libraries = f"{root}/usr/lib/{ARCHITECTURE}"
    words = [str(root / "lib64/ld-linux-x86-64.so.2"), "--library-path", libraries, "--argv0", '"$0"', str(program)]
    path.unlink(missing_ok=True)
    path.write_text(f'#!/bin/sh\nexec {" ".join([*words, *arguments])} "$@"\n')
    path.chmod(0o755)


def _is_program(path: Path) -> bool:
    if path.is_symlink() or not path.is_file() or not os.access(path, os.X_OK):
        return False
    with open(path, "rb") as file:
        head = file.read(18)
    return head[:4] == b"\x7fELF" and head[16] in (2, 3)


def _programs(into: Path, final: Path, root: Path, compiler: str) -> None:
    """Scripts in ``into``, which will be ``final``, that run the compiler and binutils below ``root``."""
    into.mkdir()
    bin_ = root / "usr/bin"
    for tool in TOOLS:
        if (bin_ / f"{ARCHITECTURE}-{tool}").exists():
            _wrapper(into / f"{ARCHITECTURE}-{tool}", root, bin_ / f"{ARCHITECTURE}-{tool}")
            (into / tool).symlink_to(f"{ARCHITECTURE}-{tool}")
    version = compiler.rpartition("-")[2]
    _wrapper(into / "cc1", root, root / f"usr/libexec/gcc/{ARCHITECTURE}/{version}/cc1")
    # The compiler finds its parts by -B.
    _wrapper(into / compiler, root, bin_ / f"{ARCHITECTURE}-{compiler}", f"-B{final}/")
    (into / f"{ARCHITECTURE}-{compiler}").symlink_to(compiler)
    _wrapper(into / "pahole", root, bin_ / "pahole")


def _copy(source: Path, into: Path) -> None:
    """Copy a tree, as links to the same files."""
    into.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-al", source, into], check=True)


def _assemble(packaged: Packaged, release: str, top: Path) -> None:
    """Make ``top`` of the release's packages; its final place is ``BUILD / release``."""
    final = BUILD / release
    headers = f"linux-headers-{release}"
    root = suites.unpack(packaged.suite, [headers])
    source = root / "usr/src" / headers
    variables = (source / ".kernelvariables").read_text()
    compiler = re.search(r"\b(gcc-\d+)\b", variables)
    common = re.search(r"/usr/src/(linux-headers-\S+-common\S*)/Makefile", (source / "Makefile").read_text())
    kbuild = re.search(r"(linux-kbuild-[^/]+)/", os.readlink(source / "scripts"))
    if not (compiler and common and kbuild):
        raise VmlabError(f"{headers} does not say what it is built with")

    root = suites.unpack(packaged.suite, [headers, common[1]])
    for name in (headers, common[1]):
        _copy(root / "usr/src" / name, top / "usr/src" / name)
    for name in ("Makefile", ".kernelvariables"):
        path = top / "usr/src" / headers / name
        text = path.read_text().replace("/usr/src/", f"{final}/usr/src/")
        path.unlink()
        path.write_text(text)

    tools = suites.unpack(packaged.suite, [kbuild[1], compiler[1], "binutils"], with_dependencies=True)
    _copy(tools / "usr/lib" / kbuild[1], top / "usr/lib" / kbuild[1])
    programs = [path for path in sorted((top / "usr/lib" / kbuild[1]).rglob("*")) if _is_program(path)]
    foreign = any(_is_foreign(path) for path in programs)
    if foreign:
        for path in programs:
            _wrapper(path, tools, tools / path.relative_to(top))
    if foreign or not shutil.which(compiler[1]):
        _programs(top / "bin", final / "bin", tools, compiler[1])
    (top / "compiler").write_text(compiler[1] + "\n")


def toolchain(packaged: Packaged) -> Toolchain:
    """What modules for ``packaged`` are built with, made first if it is not in the cache."""
    release = packaged.release
    top = BUILD / release
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / f".{release}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not top.exists():
            new = top.with_name(f"{release}.new")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            _assemble(packaged, release, new)
            new.rename(top)
    programs = top / "bin"
    kdir = top / "usr/src" / f"linux-headers-{release}"
    return Toolchain(release, kdir, programs if programs.exists() else None, (top / "compiler").read_text().strip())
