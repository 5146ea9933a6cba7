# SPDX-License-Identifier: GPL-2.0
"""Kernels that are built from Debian's source, for the checks that Debian's own are built without."""

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .errors import VmlabError
from .kernels import Kernel, cache_lock, run_tool, version_key
from .paths import KERNELS, LAB_SOURCE

PACKAGE = "linux-source-6.12"
COMMON = LAB_SOURCE / "kernels" / "guest.config"
OBJECTS = 2300
"""About how many objects a build has, for the progress bar."""


@dataclass(frozen=True)
class Kind:
    """One configuration."""

    name: str
    variables: tuple[str, ...] = ()
    """Of make, for the kernel and its own modules, not for ours."""

    @property
    def config(self) -> Path:
        """What it has more than ``COMMON``."""
        return LAB_SOURCE / "kernels" / f"{self.name}.config"

    @property
    def top(self) -> Path:
        """Where all of it is."""
        return KERNELS / self.name

    @property
    def build(self) -> Path:
        """What KDIR of a module's build must be."""
        return self.top / "build"

    def identity(self, version: str) -> str:
        """Changes when it must be built again."""
        content = COMMON.read_bytes() + self.config.read_bytes() + repr(self.variables).encode()
        return hashlib.sha256(version.encode() + content).hexdigest()


KINDS = {
    kind.name: kind
    for kind in (
        Kind("debug"),
        # What says that a directory is not watched is said of all of them.
        Kind("kcsan", ("KCSAN_SANITIZE=n",)),
    )
}


def built_kernel(name: str) -> Kernel:
    """A kernel of ``KINDS``, if it is built and its configuration is still the same."""
    kind = KINDS[name]
    stamp = kind.top / "stamp"
    if not stamp.exists():
        raise VmlabError(f"the {name} kernel is not built: run './vmlab build-kernel {name}' (takes long, once)")
    if stamp.read_text() != kind.identity(_version_of_build(kind)):
        raise VmlabError(f"the {name} kernel's configuration has changed: run './vmlab build-kernel {name}' again")
    release = (kind.build / "include/config/kernel.release").read_text().strip()
    return Kernel(name, release, kind.build / "vmlinux", kind.top / "install/lib/modules" / release)


def _version_of_build(kind: Kind) -> str:
    return (kind.top / "version").read_text().strip() if (kind.top / "version").exists() else ""


def _package() -> Path:
    """The newest source package in the cache, downloaded if there is none."""
    downloads = KERNELS / "deb"
    downloads.mkdir(parents=True, exist_ok=True)
    pattern = f"{PACKAGE}_*.deb"
    if not list(downloads.glob(pattern)):
        run_tool(["apt-get", "download", PACKAGE], f"download {PACKAGE}", cwd=downloads)
    return max(downloads.glob(pattern), key=lambda path: version_key(path.name))


def _source(package: Path, version: str) -> Path:
    """The unpacked source tree, which all kinds are built from."""
    top = KERNELS / "source"
    tree = top / version
    with cache_lock("source"):
        if not tree.exists():
            scratch = top / "unpack"
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            run_tool(["dpkg", "-x", package, scratch], f"unpack {PACKAGE}")
            archive = next(scratch.glob("usr/src/*.tar.xz"))
            run_tool(["tar", "-xf", archive, "-C", scratch], "unpack the kernel's source")
            next(path for path in scratch.iterdir() if (path / "Kbuild").exists()).rename(tree)
            shutil.rmtree(scratch)
    return tree


def _configure(kind: Kind, source: Path) -> None:
    """Make .config, and see that it has all that was asked for."""
    wanted = kind.top / "wanted.config"
    wanted.write_text(COMMON.read_text() + kind.config.read_text())
    what = f"configure the {kind.name} kernel"
    run_tool(["make", "-C", source, f"O={kind.build}", f"KCONFIG_ALLCONFIG={wanted}", "allnoconfig"], what)
    have = set((kind.build / ".config").read_text().splitlines())
    lines = wanted.read_text().splitlines()
    missing = [line for line in lines if line.startswith("CONFIG_") and line not in have]
    if missing:
        raise VmlabError(f"{what}: not taken, as something that it depends on is missing: {' '.join(missing)}")


def _make(kind: Kind, source: Path, target: list[str], what: str) -> None:
    """Run make with a progress bar; its output is in build.log."""
    from rich.progress import Progress

    log = kind.top / "build.log"
    jobs = os.environ.get("JOBS") or os.cpu_count() or 1
    command = ["nice", "-n", "19", "make", "-C", str(source), f"O={kind.build}", f"-j{jobs}", *kind.variables, *target]
    objects = 0
    with open(log, "a") as out, Progress() as progress:
        task = progress.add_task(what, total=OBJECTS)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as make:
            assert make.stdout
            for line in make.stdout:
                out.write(line)
                if re.match(r"\s+(CC|AS|LD|AR)\s", line):
                    objects += 1
                    progress.update(task, completed=min(objects, OBJECTS))
        progress.update(task, completed=OBJECTS)
    if make.returncode:
        tail = "".join(log.read_text().splitlines(keepends=True)[-15:])
        raise VmlabError(f"{what} failed, see {log}:\n{tail}")


def build(name: str) -> Kernel:
    """Build a kernel of ``KINDS`` unless that has been done with this configuration."""
    kind = KINDS[name]
    with cache_lock(name):
        package = _package()
        version = package.name.split("_")[1]
        stamp = kind.top / "stamp"
        if not (stamp.exists() and stamp.read_text() == kind.identity(version)):
            kind.top.mkdir(parents=True, exist_ok=True)
            stamp.unlink(missing_ok=True)
            source = _source(package, version)
            kind.build.mkdir(exist_ok=True)
            (kind.top / "build.log").unlink(missing_ok=True)
            _configure(kind, source)
            _make(kind, source, ["vmlinux", "modules"], f"{name} kernel")
            install = kind.top / "install"
            shutil.rmtree(install, ignore_errors=True)
            run_tool(
                ["make", "-C", source, f"O={kind.build}", f"INSTALL_MOD_PATH={install}", "modules_install"],
                "install the modules",
            )
            (kind.top / "version").write_text(version + "\n")
            stamp.write_text(kind.identity(version))
    return built_kernel(name)
