# SPDX-License-Identifier: GPL-2.0
"""The debug kernel: built from Debian's source with every check that helps."""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from .errors import VmlabError
from .kernels import Kernel, cache_lock, run_tool, version_key
from .paths import KERNELS, LAB_SOURCE

PACKAGE = "linux-source-6.12"
CONFIG = LAB_SOURCE / "kernels" / "debug.config"
TOP = KERNELS / "debug"
BUILD = TOP / "build"
"""What KDIR of a module's build must be."""
OBJECTS = 2300
"""About how many objects a build has, for the progress bar."""


def built_kernel() -> Kernel:
    """The debug kernel, if it is built and its configuration is still the same."""
    stamp = TOP / "stamp"
    if not stamp.exists():
        raise VmlabError("the debug kernel is not built: run './vmlab build-kernel debug' (takes long, once)")
    if stamp.read_text() != _identity(_version_of_build()):
        raise VmlabError(f"{CONFIG.name} has changed: run './vmlab build-kernel debug' again")
    release = (BUILD / "include/config/kernel.release").read_text().strip()
    return Kernel("debug", release, BUILD / "vmlinux", TOP / "install/lib/modules" / release)


def _version_of_build() -> str:
    return (TOP / "version").read_text().strip() if (TOP / "version").exists() else ""


def _identity(version: str) -> str:
    return hashlib.sha256(version.encode() + CONFIG.read_bytes()).hexdigest()


def _package() -> Path:
    """The newest source package in the cache, downloaded if there is none."""
    downloads = KERNELS / "deb"
    downloads.mkdir(parents=True, exist_ok=True)
    pattern = f"{PACKAGE}_*.deb"
    if not list(downloads.glob(pattern)):
        run_tool(["apt-get", "download", PACKAGE], f"download {PACKAGE}", cwd=downloads)
    return max(downloads.glob(pattern), key=lambda path: version_key(path.name))


def _source(package: Path, version: str) -> Path:
    """The unpacked source tree."""
    tree = TOP / f"source-{version}"
    if not tree.exists():
        scratch = TOP / "unpack"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        run_tool(["dpkg", "-x", package, scratch], f"unpack {PACKAGE}")
        archive = next(scratch.glob("usr/src/*.tar.xz"))
        run_tool(["tar", "-xf", archive, "-C", scratch], "unpack the kernel's source")
        next(path for path in scratch.iterdir() if (path / "Kbuild").exists()).rename(tree)
        shutil.rmtree(scratch)
    return tree


def _configure(source: Path) -> None:
    """Make .config, and see that it has all that was asked for."""
    environment = [f"KCONFIG_ALLCONFIG={CONFIG}"]
    run_tool(["make", "-C", source, f"O={BUILD}", *environment, "allnoconfig"], "configure the debug kernel")
    have = set((BUILD / ".config").read_text().splitlines())
    lines = CONFIG.read_text().splitlines()
    missing = [line for line in lines if line.startswith("CONFIG_") and line not in have]
    if missing:
        raise VmlabError(f"{CONFIG.name}: not taken, as something that it depends on is missing: {' '.join(missing)}")


def _make(source: Path, target: list[str], what: str) -> None:
    """Run make with a progress bar; its output is in build.log."""
    from rich.progress import Progress

    log = TOP / "build.log"
    command = ["nice", "-n", "19", "make", "-C", str(source), f"O={BUILD}", f"-j{os.cpu_count() or 1}", *target]
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


def build() -> Kernel:
    """Build the debug kernel unless that has been done with this configuration."""
    with cache_lock("debug"):
        package = _package()
        version = package.name.split("_")[1]
        stamp = TOP / "stamp"
        if not (stamp.exists() and stamp.read_text() == _identity(version)):
            TOP.mkdir(parents=True, exist_ok=True)
            stamp.unlink(missing_ok=True)
            source = _source(package, version)
            BUILD.mkdir(exist_ok=True)
            (TOP / "build.log").unlink(missing_ok=True)
            _configure(source)
            _make(source, ["vmlinux", "modules"], "debug kernel")
            shutil.rmtree(TOP / "install", ignore_errors=True)
            run_tool(
                ["make", "-C", source, f"O={BUILD}", f"INSTALL_MOD_PATH={TOP / 'install'}", "modules_install"],
                "install the modules",
            )
            (TOP / "version").write_text(version + "\n")
            stamp.write_text(_identity(version))
    return built_kernel()
