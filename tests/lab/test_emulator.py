# SPDX-License-Identifier: GPL-2.0
"""Which QEMU runs outer machines."""

import json
from pathlib import Path

import pytest
from vmlab import VmlabError, accel, emulator, kernels, suites
from vmlab.emulator import Emulator
from vmlab.kinds import Outer, find_kind


def program(path, says):
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """An outside with a QEMU of some version, and packages of another one that can be had."""

    def make(version):
        monkeypatch.delenv(emulator.CHOICE, raising=False)
        (tmp_path / "bin").mkdir(exist_ok=True)
        program(tmp_path / "bin" / emulator.PROGRAM, f"QEMU emulator version {version}")
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
        asked = []

        def unpack(*words, **more):
            asked.append((words, more))
            return Path("/root-of-it")

        monkeypatch.setattr(suites, "unpack", unpack)
        return asked

    return make


@pytest.mark.parametrize(("version", "own"), [("7.2.22 (Debian 1:7.2)", True), ("10.0.7", False), ("11.1.0", False)])
def test_the_outsides_is_used_if_it_is_new_enough(outside, version, own):
    asked = outside(version)
    found = emulator.find()
    assert len(asked) == own
    if own:
        assert found.command[0] == "/root-of-it/lib64/ld-linux-x86-64.so.2"
        assert found.command[found.command.index("--argv0") + 2] == "/root-of-it/usr/bin/qemu-system-x86_64"
        assert found.command.count("-L") == 3
        assert list(found.environment) == ["QEMU_MODULE_DIR"]
        assert asked == [(("trixie", ["qemu-system-x86"]), {"with_dependencies": True})]
    else:
        assert found == Emulator()
        assert found.version() == version


@pytest.mark.parametrize(("version", "own"), [("7.2.22 (Debian 1:7.2)", False), ("10.0.7", True)])
def test_xens_guests_have_an_older_one(outside, version, own):
    asked = outside(version)
    found = emulator.find(svm=True)
    if own:
        assert found.command[0] == "/root-of-it/lib64/ld-linux-x86-64.so.2"
        assert asked == [(("bookworm", ["qemu-system-x86"]), {"with_dependencies": True})]
    else:
        assert found == Emulator() and not asked


def test_what_one_may_choose(outside, monkeypatch, tmp_path):
    asked = outside("7.2.22")
    monkeypatch.setenv(emulator.CHOICE, "system")
    assert emulator.find() == Emulator()
    other = program(tmp_path / "other", "QEMU emulator version 12.0")
    monkeypatch.setenv(emulator.CHOICE, str(other))
    assert emulator.find().version() == "12.0"
    assert not asked


def test_there_is_none(outside, monkeypatch, tmp_path):
    outside("7.2.22")

    def fail(*_, **__):
        raise VmlabError("no network")

    monkeypatch.setattr(suites, "unpack", fail)
    with pytest.raises(VmlabError, match=r"QEMU 10 or newer is needed: no network .*VMLAB_QEMU=system"):
        emulator.find()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(VmlabError, match="install qemu-system-x86"):
        emulator.find()
    with pytest.raises(VmlabError, match="is no QEMU that works: nonsense"):
        Emulator((str(program(tmp_path / "bad", "nonsense")),)).version()


@pytest.mark.parametrize("kind", ["kvm", "xen", "solo"])
def test_outer_machines_are_run_by_it(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("vmlab.xen.packages", lambda: tmp_path)
    monkeypatch.setattr(kernels, "build_initramfs", lambda *_: tmp_path)
    kernel = kernels.Kernel("6.1", "6.1.0", tmp_path, tmp_path)
    qemu = Emulator(("loader", "newer"))
    outer = Outer("x", kernel, tmp_path, tmp_path, tmp_path, 1024, "tcg", False, "pc", emulator=qemu)
    assert find_kind(kind).outer_command(outer)[:3] == ["loader", "newer", "-name"]


def test_a_probe_is_of_one_emulator(outside, monkeypatch, tmp_path):
    """Another version is probed anew."""
    monkeypatch.setattr(accel, "CACHE", tmp_path)
    probed: list[Emulator] = []

    def boots(qemu):
        probed.append(qemu)
        return True

    monkeypatch.setattr(accel, "_boots", boots)
    for version, times in (("10.0.0", 1), ("10.0.0", 1), ("10.0.1", 2)):
        outside(version)
        assert accel.probe()
        assert len(probed) == times
    assert "10.0.1" in json.loads((tmp_path / "kvm-probe.json").read_text())["identity"]
