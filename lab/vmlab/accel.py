# SPDX-License-Identifier: GPL-2.0
"""Whether hardware virtualization works here.

The presence of /dev/kvm proves nothing: on some machines a stock kernel hangs
under it. So: nested virtualization must be announced, as the outer machine is
itself a KVM host, and a kernel must have booted under a deadline.
"""

import json
import os
import platform
import subprocess
from pathlib import Path

from . import emulator, kernels
from .errors import VmlabError
from .paths import CACHE

PROBE_SECONDS = 20.0
CHOICES = ("auto", "tcg", "kvm")


def nested() -> bool:
    """Whether this machine's KVM says that guests can use KVM themselves."""
    for path in Path("/sys/module").glob("kvm_*/parameters/nested"):
        if path.read_text().strip() in ("Y", "1"):
            return True
    return False


def choose(wanted: str) -> str:
    """The outer machine's accelerator, ``kvm`` or ``tcg``, for --accel ``wanted``."""
    if wanted not in CHOICES:
        raise VmlabError(f"no accelerator {wanted!r}: choose one of {', '.join(CHOICES)}")
    if wanted != "auto":
        return wanted
    return "kvm" if Path("/dev/kvm").exists() and nested() and probe() else "tcg"


def probe() -> bool:
    """Boot something tiny under KVM; the answer is remembered per kernel and QEMU."""
    qemu = emulator.find()
    identity = f"{platform.release()} QEMU {qemu.version()}"
    cache = CACHE / "kvm-probe.json"
    if cache.exists():
        known = json.loads(cache.read_text())
        if known.get("identity") == identity:
            return bool(known["works"])
    works = _boots(qemu)
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps({"identity": identity, "works": works}) + "\n")
    return works


def _boots(qemu: emulator.Emulator) -> bool:
    kernel = kernels.find_kernel(kernels.DEFAULT)
    initramfs = kernels.build_initramfs(kernel)
    # rdinit is a program that ends at once: the panic, and with -no-reboot the
    # end of QEMU, proves that a kernel ran from its start to user space.
    command = [
        *qemu.command, "-accel", "kvm", "-cpu", "host", "-m", "256", "-nodefaults",
        "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
        "-kernel", str(kernel.image), "-initrd", str(initramfs),
        "-append", "console=ttyS0 panic=-1 rdinit=/bin/busybox",
    ]  # fmt: skip
    return prints(command, b"Attempted to kill init", PROBE_SECONDS, qemu.environment)


def prints(command: list[str], text: bytes, seconds: float, environment: dict[str, str] | None = None) -> bool:
    """Whether a command prints ``text`` and ends in time; it is killed if not."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=seconds)
        return text in out
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            pass  # stuck in the kernel: it ends when the kernel lets go of it
        return False
