# SPDX-License-Identifier: GPL-2.0
"""The root of guests that can be migrated, or saved.

QEMU migrates no machine that has a 9p file system mounted, and over Xen's rings
none outlives a save, so such a guest keeps in its memory what others see of the outside: the programs named here
with their libraries, busybox for everything else, and the kernel modules of the
checkout. It gets all that in one archive, over 9p, before it lets go of that.
"""

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from . import kernels
from .errors import VmlabError
from .paths import CACHE

PROGRAMS = (
    "bash", "dash", "bridge", "ethtool", "ip", "iperf3", "kmod", "modprobe", "nft", "ping", "rmmod", "setsid",
    "sockperf", "ss", "stdbuf", "tc", "tcpdump", "timeout",
)  # fmt: skip
"""What is not there on the outside is left out."""

EXTRA = ("/usr/libexec/coreutils/libstdbuf.so", "/etc/passwd", "/etc/group", "/etc/protocols", "/etc/services")

MERGED = ("bin", "sbin", "lib", "lib64")
"""Links into usr, as in the outside's root."""


def libraries(program: Path) -> set[Path]:
    """The files that the loader maps for a program; empty for a static one."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return {Path(found) for found in re.findall(r"(/\S+) \(0x", done.stdout)}


def place(path: Path) -> str:
    """Where a file of the outside goes in the archive, whose bin and lib are links into usr."""
    parts = path.parts[1:]
    return "/".join(("usr", *parts) if parts[0] in MERGED else parts)


def wanted_files() -> dict[str, Path]:
    """Files of the archive, by place, without the modules."""
    path = os.pathsep.join(("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"))
    files: dict[str, Path] = {}
    programs = [Path(found) for name in (*PROGRAMS, "busybox") if (found := shutil.which(name, path=path))]
    if not any(program.name == "busybox" for program in programs):
        raise VmlabError("busybox is missing: install busybox-static")
    extra = [Path(name) for name in EXTRA if Path(name).exists()]
    for program in [*programs, *extra]:
        files[place(program)] = program
    for program in programs:
        for library in libraries(program.resolve()):
            files[place(library)] = library
    return files


def applets() -> list[str]:
    """What busybox can be called."""
    done = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def module_paths(tree: Path) -> list[Path]:
    """The checkout's modules in a staged tree, what they depend on, and depmod's files."""
    depends = dict(line.split(":", 1) for line in (tree / "modules.dep").read_text().splitlines())
    found: list[str] = []
    for name in [one for one in depends if one.startswith("updates/")]:
        found += [name, *depends[name].split()]
    return [*sorted(tree.glob("modules.*")), *(tree / name for name in dict.fromkeys(found))]


def build(kernel: kernels.Kernel, modules: Path) -> Path:
    """The archive for a guest of this kernel with these staged modules; cached by content."""
    files = wanted_files()
    base = f"usr/lib/modules/{kernel.release}"
    for path in module_paths(modules):
        files[f"{base}/{path.relative_to(modules)}"] = path
    stats = [(name, str(path), path.stat().st_mtime_ns, path.stat().st_size) for name, path in sorted(files.items())]
    names = applets()
    digest = hashlib.sha256(repr((stats, names)).encode()).hexdigest()[:12]
    # Guests see it at its real path, below a root of their own.
    top = CACHE.resolve() / "movable"
    archive = top / f"{kernel.release}-{digest}.tar"
    with kernels.cache_lock("movable"):
        if archive.exists():
            return archive
        top.mkdir(parents=True, exist_ok=True)
        fresh = archive.with_suffix(".new")
        with tarfile.open(fresh, "w") as out:
            for name in MERGED:
                _link(out, name, f"usr/{name}")
            for name, path in sorted(files.items()):
                _file(out, name, path.resolve())
            taken = {Path(name).name for name in files if re.match(r"usr/s?bin/", name)}
            if "sh" not in taken:
                _link(out, "usr/bin/sh", "dash" if "dash" in taken else "busybox")
            for name in names:
                if name not in taken | {"sh"}:
                    _link(out, f"usr/bin/{name}", "busybox")
        fresh.rename(archive)
        # Each build of the modules makes another one.
        for old in sorted(top.glob("*.tar"), key=lambda path: path.stat().st_mtime)[:-4]:
            old.unlink()
    return archive


def _link(out: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type = tarfile.SYMTYPE
    info.linkname = target
    out.addfile(info)


def _file(out: tarfile.TarFile, name: str, path: Path) -> None:
    data = path.read_bytes()
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = path.stat().st_mode & 0o755
    out.addfile(info, io.BytesIO(data))
