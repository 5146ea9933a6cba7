# SPDX-License-Identifier: GPL-2.0
"""Kernels for the lab's machines, and the module trees that go with them.

Debian's kernel packages are downloaded and unpacked into the cache; nothing is
installed. A kernel boots from its uncompressed image by PVH, as decompressing
it inside an emulated machine takes seconds.
"""

import fcntl
import glob
import hashlib
import lzma
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import VmlabError
from .packaged import PACKAGED, Packaged
from .packaged import find as find_packaged
from .paths import CACHE, KERNELS, LAB_SOURCE, OUT

DEFAULT = "6.1"
META_PACKAGES = {"6.1": "linux-image-amd64", "6.12": "linux-image-6.12-amd64"}
"""Of the outside's own apt."""
BUILT = ("debug", "kcsan")
"""See build_kernel.py."""
SERIES = (*META_PACKAGES, *PACKAGED, *BUILT)
"""What --kernel takes; also the newest's version, as in 7.3."""

BOOT_MODULES = ("virtio_pci", "virtio_console", "virtio_net", "9pnet_virtio", "9p", "overlay")
"""What /init needs before it has the outside's root, and the network."""
PROGRAMS = ("vmlab-agent", "vmlab-hold")
"""Of lab/agent/, which each of the lab's machines has."""


@dataclass(frozen=True)
class Kernel:
    """One unpacked kernel."""

    series: str
    release: str
    image: Path
    """What QEMU's -kernel takes."""
    modules: Path
    """Directory with ``kernel/`` and the lists of built-in modules."""


@contextmanager
def cache_lock(name: str) -> Iterator[None]:
    """Keep other vmlab processes out of one part of the cache."""
    KERNELS.mkdir(parents=True, exist_ok=True)
    with open(KERNELS / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_tool(argv: list[str | Path], what: str, cwd: Path | None = None) -> str:
    """Run an outside program and return its output; VmlabError says ``what`` failed."""
    try:
        done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise VmlabError(f"{what}: {error.filename} is not installed") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise VmlabError(f"{what}: {lines[-1] if lines else f'status {done.returncode}'}")
    return done.stdout


def version_key(release: str) -> list[int]:
    """Sort key of a kernel release: its numbers."""
    return [int(n) for n in re.findall(r"\d+", release)]


def _wanted_releases(series: str) -> Iterator[str]:
    """Releases to try, best first: those whose headers are installed lead."""
    builds = glob.glob("/lib/modules/*/build")
    names = [Path(build).parent.name for build in builds]
    plain = [n for n in names if n.startswith(series + ".") and re.search(r"\d-amd64$|\d\+deb\d+-amd64$", n)]
    yield from sorted(plain, key=version_key, reverse=True)
    depends = run_tool(["apt-cache", "depends", META_PACKAGES[series]], "look up the kernel")
    found = re.search(r"Depends: linux-image-(\S+)", depends)
    if found:
        yield found.group(1)


def _download(release: str) -> list[Path]:
    """The package of a release's image and modules, by the outside's own apt."""
    package = f"linux-image-{release}"
    downloads = KERNELS / "deb"
    downloads.mkdir(parents=True, exist_ok=True)
    found = sorted(downloads.glob(f"{package}_*.deb"))
    if not found:
        run_tool(["apt-get", "download", package], f"download {package}", cwd=downloads)
        found = sorted(downloads.glob(f"{package}_*.deb"))
    return found[-1:]


def _unpack(series: str, release: str, packages: list[Path]) -> None:
    """Unpack one release into the cache."""
    scratch = KERNELS / f"{release}.new"
    shutil.rmtree(scratch, ignore_errors=True)
    for package in packages:
        run_tool(["dpkg", "-x", package, scratch], f"unpack {package.name}")
    top = scratch / "lib/modules"
    if not top.exists():
        top = scratch / "usr/lib/modules"
    packed = [str(path) for path in top.rglob("*.ko.xz")]
    for at in range(0, len(packed), 500):
        # Unpacking a module inside an emulated machine would be slow.
        run_tool(["xz", "-d", "-T0", *packed[at : at + 500]], "unpack modules")
    compressed = scratch / "boot" / f"vmlinuz-{release}"
    if not compressed.exists():
        compressed = top / release / "vmlinuz"
    image = scratch / "vmlinux"
    image.write_bytes(extract_vmlinux(compressed.read_bytes()) or compressed.read_bytes())
    (top / release).rename(scratch / "modules")
    (scratch / "series").write_text(series + "\n")
    shutil.rmtree(KERNELS / release, ignore_errors=True)
    scratch.rename(KERNELS / release)


def extract_vmlinux(bzimage: bytes) -> bytes | None:
    """The ELF image inside a bzImage, or None if it is packed in another way."""
    if bzimage[0x202:0x206] != b"HdrS" and bzimage[0x202:0x206] != b"HdrS"[::-1]:
        return None
    sectors = bzimage[0x1F1] or 4
    offset, length = struct.unpack_from("<II", bzimage, 0x248)
    start = (sectors + 1) * 512 + offset
    payload = bzimage[start : start + length]
    if payload[:6] == b"\xfd7zXZ\0":
        return lzma.LZMADecompressor().decompress(payload)
    if payload[:4] == b"\x28\xb5\x2f\xfd" and shutil.which("zstd"):
        # The size that the kernel's build appends is not for zstd.
        done = subprocess.run(["zstd", "-dc"], input=payload[:-4], capture_output=True, check=False)
        return done.stdout if done.returncode == 0 else None
    return None


def find_kernel(series: str) -> Kernel:
    """The kernel of ``series``, downloaded first if the cache has none.

    Raises VmlabError with what to do when it cannot be had.
    """
    if series in BUILT:
        from .build_kernel import built_kernel

        return built_kernel(series)
    if series not in META_PACKAGES:
        packaged = find_packaged(series)
        if packaged is None:
            raise VmlabError(f"no kernel {series!r}: choose one of {', '.join(SERIES)}")
        return _find_packaged(packaged)
    with cache_lock("unpack"):
        problem: VmlabError | None = None
        try:
            for release in _wanted_releases(series):
                if not (KERNELS / release / "series").exists():
                    try:
                        _unpack(series, release, _download(release))
                    except VmlabError as error:
                        problem = problem or error
                        continue
                return _cached(series, release)
        except VmlabError as error:
            problem = problem or error
        cached = [p.parent.name for p in KERNELS.glob(f"{series}.*/series")]
        if cached:
            return _cached(series, max(cached, key=version_key))
    raise problem or VmlabError(f"no package for kernel {series}: run apt-get update")


def _find_packaged(packaged: Packaged) -> Kernel:
    """The kernel of another suite, downloaded first if the cache has none."""
    release = packaged.release
    with cache_lock("unpack"):
        if not (KERNELS / release / "series").exists():
            _unpack(packaged.series, release, packaged.image())
    return _cached(packaged.series, release)


def _cached(series: str, release: str) -> Kernel:
    top = KERNELS / release
    return Kernel(series, release, top / "vmlinux", top / "modules")


def default_modules(kernel: Kernel) -> Path | None:
    """The checkout's own modules for this kernel, if they have been built."""
    path = OUT / "modules" / kernel.release
    return path if path.is_dir() else None


def stage_modules(kernel: Kernel, extra: Path | None, key: str) -> Path:
    """Make the directory that becomes /lib/modules/RELEASE in machines.

    ``extra`` is a directory whose *.ko go below updates/, without what is for debuggers. ``key`` names the
    tree: trees of two labs differ. Does nothing when nothing changed. The
    tree's files are replaced, never rewritten, so machines may use it meanwhile.
    """
    base = KERNELS / "stage" / f"{kernel.release}-{key}"
    tree = base / "lib/modules" / kernel.release
    ours = sorted(extra.glob("*.ko")) if extra else []
    stats = [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in ours]
    identity = hashlib.sha256(repr((kernel.release, str(kernel.modules), str(extra), stats)).encode()).hexdigest()
    stamp = base / "identity"
    with cache_lock(f"stage-{key}"):
        if stamp.exists() and stamp.read_text() == identity:
            return tree
        (tree / "updates").mkdir(parents=True, exist_ok=True)
        link = tree / "kernel"
        if link.is_symlink() and Path(os.readlink(link)) != kernel.modules / "kernel":
            link.unlink()
        if not link.is_symlink():
            link.symlink_to(kernel.modules / "kernel")
        for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
            if (kernel.modules / name).exists():
                shutil.copy2(kernel.modules / name, tree / name)
        for path in ours:
            fresh = tree / "updates" / f".{path.name}.new"
            # What a debugger wants is nine tenths of it, and guests read it anew at each modprobe.
            run_tool(["strip", "--strip-debug", "--preserve-dates", "-o", fresh, path], f"strip {path.name}")
            fresh.rename(tree / "updates" / path.name)
        for old in (tree / "updates").glob("*.ko"):
            if old.name not in {path.name for path in ours}:
                old.unlink()
        run_tool(["/sbin/depmod", "-b", base, kernel.release], "depmod")
        stamp.write_text(identity)
    return tree


def module_files(kernel: Kernel, names: tuple[str, ...]) -> list[Path]:
    """Files of the modules and of what they depend on, in load order.

    What is built into the kernel has no file and is left out.
    """
    tree = stage_modules(kernel, None, "plain")
    depends: dict[str, list[str]] = {}
    for line in (tree / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        depends[path] = rest.split()
    by_name = {Path(path).name.split(".")[0].replace("-", "_"): path for path in depends}
    order: list[str] = []
    for name in names:
        found = by_name.get(name.replace("-", "_"))
        if found is None:
            continue
        # modules.dep lists the nearest dependency first.
        for one in [*reversed(depends[found]), found]:
            if one not in order:
                order.append(one)
    return [tree / path for path in order]


def build_program(name: str) -> Path:
    """A program of the lab's machines, built if its source is newer than the cache."""
    source = LAB_SOURCE / "agent" / f"{name}.c"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    program = CACHE / "agent" / f"{name}-{digest}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        fresh = program.with_suffix(f".{os.getpid()}")
        run_tool(["gcc", "-O2", "-Wall", "-static", "-o", fresh, source], f"build {name}")
        fresh.rename(program)
    return program


def build_initramfs(kernel: Kernel, boot_modules: tuple[str, ...] = BOOT_MODULES) -> Path:
    """The initramfs of machines that boot ``kernel`` and need these modules; cached by content."""
    modules = module_files(kernel, boot_modules)
    init = LAB_SOURCE / "guest" / "init"
    busybox = shutil.which("busybox")
    if not busybox:
        raise VmlabError("busybox is missing: install busybox-static")
    programs = {name: build_program(name) for name in PROGRAMS}
    content = hashlib.sha256(kernel.release.encode())
    for path in (init, *programs.values(), Path(busybox), *modules):
        content.update(path.read_bytes())
    archive = CACHE / "initramfs" / f"{kernel.release}-{content.hexdigest()[:12]}.cpio"
    with cache_lock("initramfs"):
        if archive.exists():
            return archive
        root = archive.with_suffix(".d")
        shutil.rmtree(root, ignore_errors=True)
        for name in ("bin", "modules", "dev", "proc", "sys"):
            (root / name).mkdir(parents=True)
        shutil.copy2(busybox, root / "bin/busybox")
        for name, program in programs.items():
            shutil.copy2(program, root / "bin" / name)
        shutil.copy2(init, root / "init")
        (root / "init").chmod(0o755)
        for path in modules:
            shutil.copy2(path, root / "modules" / path.name)
        (root / "modules/order").write_text("".join(f"{p.name}\n" for p in modules))
        names = "\n".join(str(p.relative_to(root)) for p in sorted(root.rglob("*")))
        fresh = archive.with_suffix(".new")
        with open(fresh, "wb") as out:
            subprocess.run(
                ["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0"],
                input=names.encode() + b"\n",
                stdout=out,
                cwd=root,
                check=True,
            )
        shutil.rmtree(root)
        fresh.rename(archive)
    return archive
