# SPDX-License-Identifier: GPL-2.0
"""The root of guests that can be migrated, or saved.

QEMU migrates no machine that has a 9p file system mounted, and over Xen's rings
none outlives a save, so such a guest keeps in its memory what others see of the outside: the programs named here
with their libraries, busybox for everything else, and the kernel modules of the
checkout. It gets all that in one archive: over 9p, before it lets go of that, or
on Xen in its ramdisk.
"""

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from . import kernels
from .errors import VmlabError
from .paths import CACHE

PROGRAMS = (
    "bash", "dash", "bridge", "ethtool", "ip", "iperf3", "kmod", "modprobe", "nft", "ping", "pkill", "rmmod", "setsid",
    "sockperf", "ss", "stdbuf", "tc", "tcpdump", "timeout",
)  # fmt: skip
"""What is not there on the outside is left out."""

EXTRA = ("/usr/libexec/coreutils/libstdbuf.so", "/etc/passwd", "/etc/group", "/etc/protocols", "/etc/services")

MODULES = ("tcp_diag",)
"""Of the kernel's own: with it, ss says how many bytes a connection has carried."""

MERGED = ("bin", "sbin", "lib", "lib64")
"""Links into usr, as in the outside's root."""

ROOT = "/movable.tar"
"""The archive in a ramdisk."""


def libraries(program: Path) -> set[Path]:
    """The files that the loader maps for a program; empty for a static one."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return {Path(found) for found in re.findall(r"(/\S+) \(0x", done.stdout)}


def place(path: Path) -> str:
    """Where a file of the outside goes in the archive, whose bin and lib are links into usr."""
    parts = path.parts[1:]
    return "/".join(("usr", *parts) if parts[0] in MERGED else parts)


def with_libraries(programs: tuple[str, ...], extra: Iterable[Path]) -> dict[str, Path]:
    """Files of the programs that are there, of their libraries, and those of ``extra`` that are, by place."""
    path = os.pathsep.join(("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"))
    files: dict[str, Path] = {}
    found = [Path(one) for name in programs if (one := shutil.which(name, path=path))]
    for program in [*found, *(one for one in extra if one.is_file())]:
        files[place(program)] = program
    for program in found:
        for library in libraries(program.resolve()):
            files[place(library)] = library
    return files


def wanted_files() -> dict[str, Path]:
    """Files of the archive, by place, without the modules."""
    files = with_libraries((*PROGRAMS, "busybox"), map(Path, EXTRA))
    if not any(program.name == "busybox" for program in files.values()):
        raise VmlabError("busybox is missing: install busybox-static")
    return files


def identity(files: dict[str, Path], *more: object) -> str:
    """A name for an archive of these files as they are now."""
    stats = [(name, str(path), path.stat().st_mtime_ns, path.stat().st_size) for name, path in sorted(files.items())]
    return hashlib.sha256(repr((stats, *more)).encode()).hexdigest()[:12]


def applets() -> list[str]:
    """What busybox can be called."""
    done = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def module_paths(tree: Path) -> list[Path]:
    """The checkout's modules in a staged tree, those of ``MODULES``, what they depend on, and depmod's files."""
    depends = dict(line.split(":", 1) for line in (tree / "modules.dep").read_text().splitlines())
    found: list[str] = []
    wanted = [name for name in depends if name.startswith("updates/") or Path(name).name.partition(".")[0] in MODULES]
    for name in wanted:
        found += [name, *depends[name].split()]
    return [*sorted(tree.glob("modules.*")), *(tree / name for name in dict.fromkeys(found))]


def build(kernel: kernels.Kernel, modules: Path) -> Path:
    """The archive for a guest of this kernel with these staged modules; cached by content."""
    files = wanted_files()
    base = f"usr/lib/modules/{kernel.release}"
    for path in module_paths(modules):
        files[f"{base}/{path.relative_to(modules)}"] = path
    names = applets()

    def links(out: tarfile.TarFile) -> None:
        for name in MERGED:
            _link(out, name, f"usr/{name}")
        taken = {Path(name).name for name in files if re.match(r"usr/s?bin/", name)}
        if "sh" not in taken:
            _link(out, "usr/bin/sh", "dash" if "dash" in taken else "busybox")
        for name in names:
            if name not in taken | {"sh"}:
                _link(out, f"usr/bin/{name}", "busybox")

    return pack("movable", f"{kernel.release}-{identity(files, names)}", files, links)


def pack(folder: str, name: str, files: dict[str, Path], more: Callable[[tarfile.TarFile], None] | None = None) -> Path:
    """The archive of that name with these files and what ``more`` adds, in a folder of the cache; made if need be."""
    archive = CACHE / folder / f"{name}.tar"
    with kernels.cache_lock(folder):
        if archive.exists():
            return archive
        archive.parent.mkdir(parents=True, exist_ok=True)
        fresh = archive.with_suffix(".new")
        with tarfile.open(fresh, "w") as out:
            for where, path in sorted(files.items()):
                _add_file(out, where, path.resolve())
            if more:
                more(out)
        fresh.rename(archive)
        _keep_newest(archive)
    return archive


def ramdisk(initramfs: Path, root: Path) -> Path:
    """An initramfs that has the archive ``root`` in it, as ``ROOT``; cached."""
    place = root.with_name(f"{root.stem}+{initramfs.stem.rpartition('-')[2]}.cpio")
    with kernels.cache_lock("movable"):
        if place.exists():
            return place
        fresh = place.with_suffix(".new")
        with tempfile.TemporaryDirectory(dir=root.parent) as scratch, open(fresh, "wb") as out:
            os.link(root, scratch + ROOT)
            # Linux unpacks one archive after the other.
            out.write(initramfs.read_bytes())
            out.flush()
            names = f"{ROOT.removeprefix('/')}\n".encode()
            command = ["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0"]
            subprocess.run(command, input=names, stdout=out, cwd=scratch, check=True)
        fresh.rename(place)
        _keep_newest(place)
    return place


def _keep_newest(path: Path) -> None:
    """Remove all but a few files of its kind: each build of the modules makes another one."""
    for old in sorted(path.parent.glob(f"*{path.suffix}"), key=lambda one: one.stat().st_mtime)[:-4]:
        old.unlink()


def _link(out: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type = tarfile.SYMTYPE
    info.linkname = target
    out.addfile(info)


def _add_file(out: tarfile.TarFile, name: str, path: Path) -> None:
    """Add a file of the outside to an archive, as root's and without special rights."""
    data = path.read_bytes()
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = path.stat().st_mode & 0o755
    out.addfile(info, io.BytesIO(data))
