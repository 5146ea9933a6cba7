# SPDX-License-Identifier: GPL-2.0
"""A kernel that is too old, or lacks what is needed, is refused before anything is compiled."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from vmlab import paths


def headers() -> Path:
    """Headers of some installed kernel that the modules are built for."""
    found = sorted(Path("/lib/modules").glob("6.*/build/Makefile"))
    assert found, "no kernel headers are installed: run make deps"
    return found[0].parent.resolve()


@pytest.fixture
def kdir(tmp_path):
    """A build directory made of links, in which single files can be replaced."""
    source = headers()
    target = tmp_path / "kdir"
    shutil.copytree(source, target, symlinks=True, copy_function=lambda a, b: Path(b).symlink_to(a))
    for link in ("scripts", "tools"):
        (target / link).unlink()
        (target / link).symlink_to((source / link).resolve())
    return target


def replace(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def build(kdir: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Build a copy of the modules' source."""
    shutil.copytree(paths.REPO / "kernel", tmp_path / "kernel", dirs_exist_ok=True)
    shutil.copytree(paths.REPO / "include", tmp_path / "include", dirs_exist_ok=True)
    return subprocess.run(
        ["make", "-C", tmp_path / "kernel", f"KDIR={kdir}", "modules"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def refused(kdir: Path, tmp_path: Path) -> str:
    result = build(kdir, tmp_path)
    output = result.stdout + result.stderr
    assert result.returncode != 0, output
    assert not list(tmp_path.glob("kernel/**/*.o")), "it began to compile"
    return output


def test_kernel_without_egress_hook(kdir, tmp_path):
    config = kdir / "include/config/auto.conf"
    replace(config, re.sub("CONFIG_NETFILTER_EGRESS=y\n", "", config.read_text()))
    assert "CONFIG_NETFILTER_EGRESS" in refused(kdir, tmp_path)


def test_kernel_too_old(kdir, tmp_path):
    """Headers that say of themselves that they are 5.10's."""
    found = re.search(r"include (\S+)", (kdir / "Makefile").read_text())
    assert found
    common = Path(found[1])
    old = tmp_path / "common"
    old.mkdir()
    for one in common.parent.iterdir():
        (old / one.name).symlink_to(one)
    makefile = re.sub(r"(?m)^VERSION = .*$", "VERSION = 5", common.read_text())
    replace(old / "Makefile", re.sub(r"(?m)^PATCHLEVEL = .*$", "PATCHLEVEL = 10", makefile))
    replace(kdir / "Makefile", f"include {old}/Makefile\n")
    message = refused(kdir, tmp_path)
    assert "5.10" in message and "5.17" in message, message
