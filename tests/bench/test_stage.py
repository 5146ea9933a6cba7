# SPDX-License-Identifier: GPL-2.0
"""What a stage does in its machines, on each kind of host."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from vmlab import LabFailed
from vmlab.errors import VmlabError

from bench.path import stage as stage_module
from bench.path.hosts import HOSTS
from bench.path.stage import RING_SIZE, Stage
from tests.bench.fakes import Ended, Running


class Machine:
    """Does what it is told, and writes it down."""

    def __init__(self, lab, name):
        self.lab = lab
        self.name = name
        self.ip = f"ip-of-{name}"
        self.qmp_socket = f"/run/{name}/qmp.sock"
        self.spec = SimpleNamespace(machine="a machine")

    def note(self, command):
        text = command if isinstance(command, str) else " ".join(command)
        self.lab.log.append(f"{self.name}: {text}")
        return text

    def run(self, command, *, stdin="", **_):
        text = self.note(command)
        if stdin:
            self.lab.policy = stdin
        if "uptime" in text:
            return Ended("12.34 5.6\n")
        if text.endswith("--guest ls --json"):
            other = "g2" if self.name == "g1" else "g1"
            state = "up" if self.lab.on and self.lab.pings > 1 else "idle"
            return Ended(json.dumps([{"name": other, "state": state, "ring_size": self.lab.made or self.lab.wanted()}]))
        if text.startswith("ping -c 1 "):
            self.lab.pings += 1
        return Ended("")

    def popen(self, command):
        text = self.note(command)
        if text.endswith("--guest on"):
            self.lab.on, self.lab.pings = True, 0
        elif text.endswith("--guest off"):
            self.lab.on = False
        return Running()


class FakeLab:
    def __init__(self):
        self.log = []
        self.on = True
        self.pings = 0
        self.made = 0
        """Bytes of the rings that guests make, if not what they are told."""
        self.policy = ""
        self.host = Machine(self, "host")
        self.machines = {name: Machine(self, name) for name in ("g1", "g2")}
        self.directory = "/lab"
        self.options: dict[str, Any] = {}
        self.is_down = False

    def wanted(self):
        return int(self.policy.rpartition("= ")[2])

    def guest(self, name):
        return self.machines[name]

    def down(self):
        self.is_down = True


@pytest.fixture
def boot(monkeypatch):
    """boot(kind): a lab, and the options it was booted with."""
    lab = FakeLab()

    def up(name, guests, **options):
        lab.options = options | {"guests": guests}
        return lab

    monkeypatch.setattr(stage_module, "Lab", SimpleNamespace(up=up))
    return lab


def test_a_kvm_host(boot):
    with Stage("x", HOSTS["kvm"]) as stage:
        stage.load()
        stage.unload()
        assert stage.machine == "a machine"
    assert boot.options["kind"] == "kvm"
    assert boot.options["guest_cpus"] == 1
    assert boot.options["virtual_time"] is False
    agent = next(line for line in boot.log if "exec" in line)
    assert "--hypervisor qemu" in agent
    assert [line.rpartition(" ")[2] for line in boot.log if "attach --qmp" in line] == ["g1", "g2"]
    for name in ("g1", "g2"):
        assert f"{name}: modprobe -a vmloop_ivshmem vmloop_net" in boot.log
        assert f"{name}: rmmod vmloop_net vmloop_ivshmem vmloop" in boot.log
    assert boot.is_down


def test_a_xen_host(boot):
    with Stage("x", HOSTS["xen"]) as stage:
        stage.load()
        stage.unload()
        assert stage.now() == 12.34
        assert stage.patient(6) > 6
    assert boot.options["kind"] == "xen"
    assert boot.options["virtual_time"] is True
    assert [line for line in boot.log if "exec" in line and line.startswith("host") and "--hypervisor xen" in line]
    assert not [line for line in boot.log if "attach" in line]
    for name in ("g1", "g2"):
        assert f"{name}: modprobe -a vmloop_xen vmloop_net" in boot.log
        assert f"{name}: rmmod vmloop_net vmloop_xen vmloop" in boot.log


def test_switching_waits_until_it_is_so(boot):
    with Stage("x", HOSTS["xen"]) as stage:
        stage.use("channel")
        assert boot.pings > 1
        assert stage.channel_is_up()
        stage.use("standard")
        assert not stage.channel_is_up()


def test_another_build_takes_turns(boot):
    with Stage("x", HOSTS["kvm"]) as stage:
        stage.use("stream")
        begin = len(boot.log)
        stage.use("earlier")
        stage.use("channel")
    log = [line for line in boot.log[begin:] if line.startswith("g1: ")]
    build = "/run/vmloop/earlier"
    names = ("vmloop", "vmloop_ivshmem", "vmloop_net")
    turns = [
        "g1: rmmod vmloop_tcp",
        "g1: rmmod vmloop_net vmloop_ivshmem vmloop",
        "g1: set -e; " + "; ".join(f"insmod {build}/{name}.ko" for name in names),
        f"g1: {build}/vmloop --guest on",
        "g1: rmmod vmloop_net vmloop_ivshmem vmloop",
        "g1: modprobe -a vmloop_ivshmem vmloop_net",
        "g1: /run/vmloop/vmloop --guest on",
    ]
    assert [line for line in log if line in turns] == turns


def test_rings_of_another_size(boot):
    with Stage("x", HOSTS["kvm"]) as stage:
        assert boot.wanted() == RING_SIZE
        stage.use("channel")
        stage.set_ring_size(RING_SIZE)
        assert boot.on, "nothing was to be done"
        stage.set_ring_size(65536)
        assert not boot.on, "channels keep their rings"
        assert boot.wanted() == 65536
        assert "idle_ms = 0" in boot.policy
        assert boot.log[-1].endswith("--host policy reload")
        stage.use("channel")


def test_rings_that_are_not_as_wanted(boot):
    with Stage("x", HOSTS["kvm"]) as stage:
        boot.made = 65536
        with pytest.raises(VmlabError, match=f"65536 bytes were made instead of {RING_SIZE}"):
            stage.use("channel")


def test_a_lab_that_does_not_boot_is_booted_again(boot, monkeypatch):
    tries = []

    def up(*_, **__):
        tries.append(1)
        if len(tries) < 2:
            raise LabFailed("the host died")
        return boot

    monkeypatch.setattr(stage_module, "Lab", SimpleNamespace(up=up))
    with Stage("x", HOSTS["kvm"]) as stage:
        assert stage.retries == ["the host died"]


def test_an_agent_that_ends_is_told_of(boot, monkeypatch):
    popen = boot.host.popen

    def ended(command):
        running = popen(command)
        running.code = 1
        return running

    boot.host.popen = ended
    with pytest.raises(VmlabError, match=r"vmloopd ended: see /lab/host/vmloopd\.log"), Stage("x", HOSTS["kvm"]):
        pass
    assert boot.is_down
