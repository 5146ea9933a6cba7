# SPDX-License-Identifier: GPL-2.0
"""The parts of the lab that need no machine."""

import asyncio
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from vmlab import (
    CommandFailed,
    Guest,
    GuestFailed,
    Host,
    Lab,
    VmlabError,
    accel,
    dilation,
    kernels,
    movable,
    paths,
    programs,
    pytest_plugin,
    qmp,
)
from vmlab.console import DETECTORS, ConsoleWatch, interrupted_twice, scan, stuck_where_patched
from vmlab.errors import story
from vmlab.kinds import Outer, find_kind
from vmlab.lab import start_time
from vmlab.migration import migrate
from vmlab.progress import busy
from vmlab.protocol import (
    MAX_PAYLOAD,
    Frame,
    Parser,
    frame,
    number,
    pack_error,
    pack_open,
    unpack_error,
)
from vmlab.qemu import LAN, GuestSpec, append_line, guest_command, outer_command
from vmlab.silence import Stack, Symbols
from vmlab.switch import Link, Switch
from vmlab.xen import RELAY, XL, guest_config

SAMPLES = {
    "panic": "Kernel panic - not syncing: Fatal exception in interrupt",
    "oops": "Oops: 0002 [#1] PREEMPT SMP NOPTI",
    "bug": "BUG: Bad page cache in process cat",
    "warning": "WARNING: CPU: 1 PID: 99 at net/core/dev.c:10 foo+0x1/0x2 [vmloop]",
    "kasan": "==> KASAN: null-ptr-deref in range [0x0-0x7]",
    "kfence": "BUG: KFENCE: memory corruption in foo",
    "ubsan": "UBSAN: array-index-out-of-bounds in drivers/net/a.c:1:2",
    "lockdep": "inconsistent lock state",
    "atomic-sleep": "scheduling while atomic: kworker/0:1/7/0x00000002",
    "rcu-stall": "rcu: INFO: rcu_preempt self-detected stall on CPU",
    "soft-lockup": "watchdog: soft lockup - CPU#1 stuck for 26s! [ksoftirqd/1:17]",
    "hard-lockup": "Watchdog detected hard LOCKUP on cpu 0",
    "hung-task": "INFO: task modprobe:77 blocked for more than 120 seconds.",
    "kmemleak": "kmemleak: 2 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
    "list-debug": "list_del corruption. prev->next should be ffff8880, but was ffff8881",
    "refcount": "refcount_t: underflow; use-after-free.",
    "use-after-free": "Poison overwritten",
    "workqueue": "workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 33s!",
    "netdev-watchdog": "NETDEV WATCHDOG: eth0 (virtio_net): transmit queue 0 timed out",
    "netdev-refs": "unregister_netdevice: waiting for eth0 to become free. Usage count = 2",
    "out-of-memory": "iperf3 invoked oom-killer: gfp_mask=0x1100cca",
    "page-state": "Bad rss-counter state mm:0000 type:MM_ANONPAGES val:1",
    "call-trace": "Call Trace:",
    "xen-panic": "(XEN) Panic on CPU 0:",
    "domain-crash": "(XEN) Domain 3 (vcpu#0) crashed on cpu#1:",
}
"""One line of each kind, as kernels print it."""


def test_every_detector_has_a_sample():
    assert set(SAMPLES) == set(DETECTORS)


@pytest.mark.parametrize("detector", DETECTORS)
def test_detector_fires(detector):
    found = scan("g1", f"[    1.234567] {SAMPLES[detector]}\n")
    # A line may interest two detectors; the first of the table names it.
    assert found
    assert found[0].detector == detector or detector in ("kfence", "use-after-free")


@pytest.mark.parametrize(
    "line",
    [
        "[    1.36] mtrr: your CPUs had inconsistent MTRRdefType settings",
        "[    8.87] IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
        "[    0.00] debug: unmapping init memory",
        "[   29.15] kvm [268]: vcpu0, guest rIP: 0xffffffff8107e744 Unhandled WRMSR(0xc0010007) = 0xffff",
        "kmemleak: Kernel memory leak detector initialized (mem pool available: 15679)",
        "(XEN) TSC only partially writable",
        "(XEN) Guest Loglevel: Errors and warnings",
    ],
)
def test_harmless_lines_are_let_through(line):
    assert not scan("g1", line)


def test_watch_reports_each_line_once_and_waits_for_its_end(tmp_path):
    log = tmp_path / "console.log"
    watch = ConsoleWatch()
    files = {"g1": log}
    assert watch.check(files) == []
    log.write_text("BUG: unable to handle ")
    assert watch.check(files) == []
    with log.open("a") as file:
        file.write("page fault\nfine\n")
    assert [one.detector for one in watch.check(files)] == ["bug"]
    assert watch.check(files) == []
    log.write_text("WARNING: x\n")  # a new lab: the file is shorter than it was
    assert len(watch.check(files)) == 1


TWICE = """\
[  192.886236]  common_interrupt+0xf/0xa0
[  192.886250]  asm_common_interrupt+0x22/0x40
[  192.886261] RIP: 0010:irq_entries_start+0x98/0x660
[  192.886288] Code: 00 cc 6a 2e e9 39 0b 00 00 cc <6a> 33 e9 11 0b 00 00 cc
[  192.886294] RSP: 0000:fffffe0000002fd8 EFLAGS: 00000006
[  192.886301] RAX: aa0e81e34c6de91d RBX: 00007ffc5b6f6860 RCX: 9e3779b97f4a7c15
"""
"""Of a console: the same interrupt, on the first instruction of its own entry."""


IN_SYSCALL = """\
[   84.324878] traps: PANIC: double fault, error_code: 0x0
[   84.326479] double fault: 0000 [#1] PREEMPT SMP NOPTI
[   84.328880] CPU: 0 PID: 160 Comm: beat Tainted: G           OE      6.1.0-56-amd64 #1  Debian 6.1.192-2
[   84.329062] Hardware name: QEMU Standard PC (i440FX + PIIX, 1996), BIOS 1.16.2-debian-1.16.2-1 04/01/2014
[   84.329155] RIP: 0010:entry_SYSCALL_64+0x0/0x29
[   84.333762] Code: cc cc cc cc cc cc cc <0f> 01 f8 65 48 89 24 25 14 60 00 00 eb 12
[   84.333963] RSP: 0018:00007ffe50ecb568 EFLAGS: 00000002
[   84.334461] RAX: 0000000000000007 RBX: 00007ffe50ecb5a0 RCX: 0000000000443c40
"""
"""Of a console: an interrupt on the first instruction of a system call's entry."""


def test_an_interrupt_delivered_twice_is_known():
    assert interrupted_twice(IN_SYSCALL)
    assert not interrupted_twice(IN_SYSCALL.replace("64+0x0/", "64+0x9/"))
    assert not interrupted_twice(IN_SYSCALL.replace("EFLAGS: 00000002", "EFLAGS: 00000202"))
    assert interrupted_twice(TWICE)
    assert interrupted_twice(TWICE.replace("irq_entries_start", "asm_sysvec_apic_timer_interrupt"))


@pytest.mark.parametrize(
    ("was", "ordinary"),
    [
        ("EFLAGS: 00000006", "EFLAGS: 00000206"),  # interrupts were enabled
        ("RIP: 0010:irq_entries_start", "RIP: 0010:_raw_spin_unlock_irqrestore"),
        ("asm_common_interrupt+", "asm_exc_page_fault+"),  # a fault may come at any time
    ],
)
def test_an_ordinary_trace_is_no_interrupt_delivered_twice(was, ordinary):
    assert not interrupted_twice(TWICE.replace(was, ordinary))


STUCK = """\
[  481.203454] watchdog: BUG: soft lockup - CPU#1 stuck for 79s! [qemu-system-x86:960]
[  481.203879] Modules linked in: bridge stp llc vhost_net tun vhost vhost_iotlb tap kvm_amd ccp kvm
[  481.205193] CPU: 1 PID: 960 Comm: qemu-system-x86 Not tainted 6.1.0-56-amd64 #1  Debian 6.1.192-2
[  481.205430] Hardware name: QEMU Standard PC (i440FX + PIIX, 1996), BIOS 1.16.2-debian-1.16.2-1 04/01/2014
[  481.205683] RIP: 0010:__apic_accept_irq+0x72/0x290 [kvm]
[  481.206577] Code: 08 84 d2 0f 85 8e 00 00 00 <0f> 1f 44 00 00 0f 1f 44 00 00 45 84
[  481.207099] RSP: 0018:ffffc90002e23c30 EFLAGS: 00000202
"""
"""Of a host's console: one of its CPUs."""


def test_cpus_that_are_stuck_where_code_was_patched_are_known():
    other = STUCK.replace("CPU#1", "CPU#2")
    assert stuck_where_patched(STUCK + other)
    assert not stuck_where_patched(STUCK + STUCK)  # one CPU may be stuck by itself
    assert not stuck_where_patched(STUCK + other.replace("+0x72", "+0x70"))
    assert not stuck_where_patched(STUCK + other.replace("<0f> 1f 44", "<f3> 90 44"))  # pause: it waits for a lock
    jumps = (STUCK + other).replace("<0f> 1f 44 00 00", "<e9> 8e 01 00 00")
    assert stuck_where_patched(jumps)  # the label is turned on
    assert not stuck_where_patched(jumps.replace("<e9>", "<eb>"))  # short, as at the end of any loop


RESUMED = """\
[   11.8] ------------[ cut here ]------------
[   11.8] WARNING: CPU: 0 PID: 24 at drivers/xen/events/events_base.c:1635 evtchn_put+0x5d/0x70
[   11.8] RIP: e030:evtchn_put+0x5d/0x70
[   11.8] Call Trace:
[   11.8]  <TASK>
[   11.8]  xencons_disconnect_backend+0x58/0x80
[   11.8]  xencons_resume+0x19/0x60
[   11.8]  xenbus_dev_resume+0x8a/0x100
[   11.8] ---[ end trace 0000000000000000 ]---
"""


def test_what_a_restored_console_says_of_itself_is_no_finding():
    assert scan("g1", RESUMED) == []
    # Whoever else puts a port too often is one, and what comes before or behind is.
    for was, other in (
        ("xencons_resume", "withdraw"),
        ("evtchn_put", "evtchn_get"),
        (" xencons_disc", " doorbell_disc"),
    ):
        assert [one.detector for one in scan("g1", RESUMED.replace(was, other))] == ["warning", "call-trace"]
    ours = RESUMED.replace("xencons_", "vmloop_xen_")
    assert len(scan("g1", ours + RESUMED + ours)) == 4
    assert len(scan("g1", RESUMED.rpartition("[ ")[0])) == 2, "a trace that is cut off may be any"


PLUGIN = """
from pathlib import Path
from types import SimpleNamespace
import pytest
from vmlab import pytest_plugin
from vmlab.console import Finding
from vmlab.lab import Evidence
from vmlab.silence import Silence

SILENCE = Silence("at halt", [], "")
TRACE = {trace!r}
USES = []

def get(pool, options, kept):
    USES.append(1)
    found = [Finding({machine!r}, "bug", "BUG: x")] if len(USES) <= {bad} else []
    return SimpleNamespace(
        findings=lambda: found,
        keep_evidence=lambda name: Evidence(Path("nowhere"), {{"g1": SILENCE}} if len(USES) <= {bad} else {{}}),
        running=True,
        hosts=["host"],
        kind=SimpleNamespace(has_guests=True),
        machine=lambda name: SimpleNamespace(console_text=lambda: TRACE),
    )

@pytest.fixture(autouse=True)
def no_machines(monkeypatch):
    monkeypatch.setattr(pytest_plugin.LabPool, "get", get)
"""


@pytest.mark.parametrize(
    ("machine", "trace", "bad", "repeated", "outcome"),
    [
        ("g1", TWICE, 1, True, {"passed": 2}),
        ("g1", TWICE, 2, True, {"passed": 2, "errors": 1}),  # once more, and not again
        ("g1", "BUG: x", 1, False, {"passed": 2, "errors": 1}),  # a kernel's own fault is its own
        ("host", STUCK + STUCK.replace("CPU#1", "CPU#2"), 1, True, {"passed": 2}),
        ("g1", STUCK + STUCK.replace("CPU#1", "CPU#2"), 1, False, {"passed": 2, "errors": 1}),  # it has code of ours
    ],
)
def test_what_the_emulator_broke_is_repeated_once(pytester, machine, trace, bad, repeated, outcome):
    pytester.makeconftest(PLUGIN.format(machine=machine, trace=trace, bad=bad))
    pytester.makepyfile("def test_one(no_machines, lab): pass\ndef test_other(no_machines, lab): pass\n")
    result = pytester.runpytest_inprocess("-p", "vmlab.pytest_plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(**outcome)
    assert ("test_one was repeated: the emulator" in result.stdout.str()) == repeated


@pytest.mark.parametrize(("while_off", "outcome"), [(["asm_sysvec_x at y"], {"passed": 1}), ([], {"failed": 1})])
def test_a_guest_that_the_emulator_silenced(pytester, while_off, outcome):
    plugin = PLUGIN.format(machine="g1", trace="", bad=1).replace("if len(USES) <= 1 else []", "if False else []")
    pytester.makeconftest(plugin.replace('"at halt", []', f'"at halt", {while_off}'))
    pytester.makepyfile("import conftest\ndef test_one(no_machines, lab): assert len(conftest.USES) > 1\n")
    result = pytester.runpytest_inprocess("-p", "vmlab.pytest_plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(**outcome)
    assert "test_one: g1 was silent: at halt" in result.stdout.str()
    assert ("test_one was repeated: the emulator delivered" in result.stdout.str()) == bool(while_off)


def test_frames_survive_any_cut():
    data = frame(1, Frame.OUT, b"x" * 100) + frame(2, Frame.EXIT, number(7)) + frame(3, Frame.EOF)
    for size in (1, 3, 11, 12, 13, 50, len(data)):
        parser = Parser()
        got = [one for at in range(0, len(data), size) for one in parser.feed(data[at : at + size])]
        assert got == [(1, Frame.OUT, b"x" * 100), (2, Frame.EXIT, number(7)), (3, Frame.EOF, b"")]


def test_garbage_is_no_frame():
    with pytest.raises(ValueError, match="frame of"):
        Parser().feed(b"\xff" * 12)


def test_open_refuses_what_does_not_fit():
    assert pack_open(["a"], "/", {"K": "v"}).endswith(b"/\0a\0K=v\0")
    with pytest.raises(ValueError, match="too long"):
        pack_open(["x" * MAX_PAYLOAD], "/", {})
    with pytest.raises(ValueError, match="zero byte"):
        pack_open(["a\0b"], "/", {})


def test_error_frames():
    assert unpack_error(pack_error(2, "no")) == (2, "no")
    assert unpack_error(b"")[1] == "malformed error"


def test_names_are_checked():
    for bad in ("", "a/b", "../x", "x" * 33, "a b"):
        with pytest.raises(VmlabError):
            paths.check_name(bad)


def test_guests_are_told_apart():
    one, two = GuestSpec("g1", 1), GuestSpec("g2", 2, subnet=3)
    assert (one.mac, one.ip, one.ip6) == ("52:54:00:77:00:01", "10.77.0.11", "fd77::11")
    assert (two.mac, two.ip, two.ip6) == ("52:54:00:77:03:02", "10.77.3.12", "fd77:0:0:3::12")
    assert one.uuid != two.uuid


def test_guest_command(tmp_path):
    here = tmp_path
    pc = guest_command(GuestSpec("g1", 1, cpus=1), here, here, here, here / "root.tar")
    assert pc[pc.index("-smp") + 1] == "1,maxcpus=2"
    two = guest_command(GuestSpec("g1", 1), here, here, here, here / "root.tar")
    assert two[two.index("-smp") + 1] == "2"
    assert not [word for word in pc if "pcie-root-port" in word]
    q35 = guest_command(GuestSpec("g1", 1, machine="q35", extra_args=["-S"]), here, here, here, here / "root.tar")
    assert len([word for word in q35 if "pref64-reserve=64M" in word]) == 8
    assert q35[-1] == "-S"
    bare = guest_command(GuestSpec("g1", 1, machine="q35", root_ports=0), here, here, here, here / "root.tar")
    assert not [word for word in bare if "pcie-root-port" in word]
    with pytest.raises(VmlabError, match="no machine"):
        guest_command(GuestSpec("g1", 1, machine="isapc"), here, here, here, here / "root.tar")


def test_a_guest_that_comes(tmp_path):
    here = tmp_path
    plain = guest_command(GuestSpec("g2", 2), here, here, here, here / "root.tar")
    comes = guest_command(GuestSpec("g2", 2, host="host2"), here, here, here, here / "root.tar", incoming=True)
    # The machine must be the same, or what it left will not fit.
    assert comes == [*plain, "-incoming", "tcp:0:49154"]
    moves = guest_command(GuestSpec("g2", 2, movable=True), here, here, here, here / "root.tar")
    assert f"vmlab.movable={here}/root.tar" in moves[moves.index("-append") + 1]
    assert f"vmlab.programs={here}/root.tar" in plain[plain.index("-append") + 1]


def test_hosts_are_joined(tmp_path):
    def command(host, lan):
        kernel = kernels.Kernel("6.1", "6.1.0", tmp_path, tmp_path)
        outer = Outer("x", kernel, tmp_path, tmp_path, tmp_path, 1024, "tcg", False, "pc", host, lan)
        return outer_command(outer, [], [])

    assert not [word for word in command("host", 0) if "netdev" in word]
    one, two = command("host", 1), command("host2", 2)
    assert f"socket,id=lan,{LAN}" in one
    macs = {word for words in (one, two) for word in words if word.startswith("virtio-net-pci")}
    assert len(macs) == 2
    assert f"{tmp_path}/host2/console.log" in " ".join(two)
    for kind in ("kvm", "xen"):
        find_kind(kind).check_hosts(2, False)
        for hosts, virtual_time in ((3, False), (0, False), (2, True)):
            with pytest.raises(VmlabError, match="host"):
                find_kind(kind).check_hosts(hosts, virtual_time)


def test_a_machine_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "build_initramfs", lambda *_: tmp_path)
    solo = find_kind("solo")
    kernel = kernels.Kernel("6.12", "6.12.0", tmp_path, tmp_path)
    for cpus, smp in ((0, "2"), (1, "1,maxcpus=2"), (4, "4")):
        outer = Outer("x", kernel, tmp_path, tmp_path, tmp_path, 1024, "tcg", False, "pc", cpus=cpus, append="one=1")
        words = solo.outer_command(outer)
        assert words[words.index("-smp") + 1] == smp
        line = words[words.index("-append") + 1].split()
        assert {"vmlab.role=host", "vmlab.kind=solo", "one=1"} <= set(line)
        assert not [word for word in line if word.startswith("isolcpus")]
    solo.check_guests(0, 4)
    for kind, guests, cpus in (("solo", 1, 4), ("solo", 0, -1), ("kvm", 1, 4), ("xen", 1, 4)):
        with pytest.raises(VmlabError):
            find_kind(kind).check_guests(guests, cpus)
    with pytest.raises(VmlabError):
        solo.check_hosts(2, False)


def test_files_of_a_guest_on_each_host():
    here = Guest(Lab("nowhere"), GuestSpec("g1", 1))
    there = here.on(Host(Lab("nowhere"), "host2", 2))
    assert (here.own_file("start.sh"), there.own_file("start.sh")) == ("start.sh", "start-host2.sh")
    assert (here.own_file("status"), there.own_file("status")) == ("status", "status-host2")
    assert here.spec.host == "host"


class FakeGuest:
    """A guest that says what is done to it, and whose migration ends as told."""

    def __init__(self, host, log, end="completed"):
        self.name, self.host, self.log, self.end = "g2", host, log, end
        self.asked = 0
        self.running = True
        self.spec = GuestSpec("g2", 2, movable=True)
        self.lab = SimpleNamespace(placed=lambda name, host: log.append(f"placed on {host}"), kind=find_kind("kvm"))

    def on(self, host):
        return self if host is self.host else FakeGuest(host, self.log)

    def qmp(self, command, arguments=None):
        if command == "migrate":
            self.log.append(f"{self.host.name} migrates to {arguments['uri']}")
        if command == "query-status":
            self.asked += 1
            return {"status": "finish-migrate" if self.asked < 2 else "postmigrate"}
        return {"status": self.end, "downtime": 250 if self.asked else 0}

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.log.append(f"{self.host.name}: {name}")


def test_a_migration_step_by_step():
    one, two = (Host(Lab("nowhere"), name, number) for name, number in (("host", 1), ("host2", 2)))
    log: list[str] = []
    move: Any = migrate
    assert move(FakeGuest(one, log), two, None, 5) == 0.25
    assert log == [
        "host2: launch", "host migrates to tcp:10.77.0.2:49154", "placed on host2", "host: stop", "host: wait_booted",
    ]  # fmt: skip
    # Somebody else begins it.
    log.clear()
    move(FakeGuest(one, log), two, lambda uri: log.append(f"begun: {uri}"), 5)
    assert log[1] == "begun: tcp:10.77.0.2:49154"
    # What waits at the destination goes when nothing comes.
    log.clear()
    with pytest.raises(GuestFailed, match="stays on host"):
        move(FakeGuest(one, log, "failed"), two, None, 5)
    assert log[-1] == "host2: kill"
    assert not [line for line in log if line.startswith("placed")]
    log.clear()
    with pytest.raises(ZeroDivisionError):
        move(FakeGuest(one, log), two, lambda uri: 1 / 0, 5)
    assert log == ["host2: launch", "host2: kill"]
    with pytest.raises(VmlabError, match="already"):
        move(FakeGuest(one, log), one, None, 5)


class FakeDom0:
    """A Xen host that notes what it is to run, and fails as told."""

    name = "host"

    def __init__(self, refuse):
        self.refuse, self.ran = refuse, []

    def run(self, command, **options):
        self.ran.append(command)
        if self.refuse:
            raise CommandFailed(self.refuse)


def test_a_guest_that_was_never_started_is_gone(tmp_path):
    lab: Any = SimpleNamespace(directory=tmp_path)
    guest: Any = SimpleNamespace(name="g1", lab=lab, own_file=str, exit_status=None, running=False)
    Guest.wait_ended(guest)


class SlowToAnswer:
    """A process in a guest that the lab has to wait for more than once."""

    def __init__(self):
        self.asked = 0

    def __enter__(self):
        return self

    def __exit__(self, *what):
        pass

    def ends_within(self, seconds):
        self.asked += 1
        return self.asked == 3


def test_a_domain_that_was_saved_and_is_back_is_waited_for(tmp_path):
    kind = SimpleNamespace(running=lambda guest: True)
    lab: Any = SimpleNamespace(directory=tmp_path, kind=kind, hosts={"host": SimpleNamespace(check_alive=lambda: None)})
    guest: Any = Guest(lab, GuestSpec("g2", 2))
    (tmp_path / "g2").mkdir()
    (tmp_path / "g2/start.sh").touch()
    (tmp_path / "g2/status").write_text("137\n")
    process: Any = SlowToAnswer()
    guest.popen = lambda command: process
    guest.wait_booted()
    assert process.asked == 3
    assert guest.exit_status is None
    # One that is not back has ended.
    kind.running = lambda guest: False
    guest.popen = lambda command: SlowToAnswer()
    with pytest.raises(GuestFailed, match="ended with status 137"):
        guest.wait_booted()
    # One that runs, and does not answer in time, has not booted.
    kind.running = lambda guest: True
    process.ends_within = lambda seconds: False
    guest.popen = lambda command: process
    with pytest.raises(GuestFailed, match="did not boot within 0 s"):
        guest.wait_booted(0.01)


def test_xl_migrates_over_the_relay():
    guest: Any = SimpleNamespace(name="g2", host=FakeDom0(""))
    guest.spec = GuestSpec("g2", 2, machine="pvh")
    find_kind("xen").begin_migration(guest, "tcp:10.77.0.2:49154", 5)
    assert guest.host.ran == [f"{XL} migrate -s '/usr/bin/python3 {RELAY} connect 49154' g2 10.77.0.2"]
    guest.spec.machine = "pv"
    find_kind("xen").begin_migration(guest, "tcp:10.77.0.2:49154", 5)
    assert f"{XL} save -p g2 leaving" in guest.host.ran[1]
    guest.host.refuse = "no such thing"
    with pytest.raises(GuestFailed, match=r"g2 stays on host.*no such thing"):
        find_kind("xen").begin_migration(guest, "tcp:10.77.0.2:49154", 5)


def test_the_relay_joins_two_programs(tmp_path):
    """Each end of it sees the end of the other's output."""
    port, pid = str(free_port()), tmp_path / "pid"
    there = relay("listen", port, pid, "wc -c; echo $$")
    connect = [sys.executable, str(RELAY), "connect", port, "127.0.0.1", "xl", "migrate-receive"]
    here = subprocess.run(connect, input=bytes(3_000_000), capture_output=True, timeout=20, check=True)
    assert there.wait(10) == 0
    # Its pid is that of the program which it became.
    assert here.stdout.split() == [b"3000000", pid.read_bytes().strip()]
    there = relay("feed", port, pid, "wc -c >&2")
    assert subprocess.run(connect, input=b"12345", capture_output=True, timeout=20, check=True).stdout == b"arrived\n"
    assert there.wait(10) == 0 and there.stderr and there.stderr.read() == b"5\n"
    there = relay("feed", port, pid, "exit 3")
    assert subprocess.run(connect, input=bytes(3_000_000), capture_output=True, timeout=20, check=False).stdout == b""
    assert there.wait(10) == 3
    # As what a migration says is kept with the time of each line.
    began = time.time()
    stamped = subprocess.run(
        [sys.executable, str(RELAY), "stamp"], input="a b\n\nc", capture_output=True, timeout=20, check=True, text=True
    )
    lines = [line.partition(" ") for line in stamped.stdout.split("\n")]
    assert [rest for _, _, rest in lines] == ["a b", "", "c"]
    assert all(began <= float(at) <= time.time() for at, _, _ in lines)
    # Nobody listens any more.
    again = subprocess.run(connect, input=b"x", capture_output=True, timeout=20, check=False)
    assert again.returncode and b"refused" in again.stderr


def relay(how, port, pid, script):
    pid.unlink(missing_ok=True)
    made = subprocess.Popen([sys.executable, RELAY, how, port, pid, "/bin/sh", "-c", script], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 10
    while not (pid.exists() and pid.read_text()):
        assert time.monotonic() < deadline and made.poll() is None
        time.sleep(0.01)
    return made


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_the_agent_finds_its_terminal_again(tmp_path):
    """As after a restore: the old one is hung up, another one has its name, or has it only after a while."""
    ends = [os.openpty() for _ in range(4)]
    path = tmp_path / "terminal"
    path.symlink_to(os.ttyname(ends[0][1]))
    with subprocess.Popen([kernels.build_program("vmlab-agent"), path], stderr=subprocess.DEVNULL) as agent:
        try:
            await_greeting(ends[0][0])
            path.unlink()
            path.symlink_to(os.ttyname(ends[1][1]))
            for end in ends[0]:
                os.close(end)
            # This one takes the agent's greeting, and says nothing.
            await_greeting(ends[1][0])
            path.unlink()
            path.symlink_to(os.ttyname(ends[2][1]))
            # Where it is greeted it stays.
            await_greeting(ends[2][0], bytes(range(16)))
            path.unlink()
            path.symlink_to(os.ttyname(ends[3][1]))
            assert not select.select([ends[3][0]], [], [], 5)[0], "it left the terminal on which it was greeted"
        finally:
            agent.kill()
            for end in (*ends[1], *ends[2], *ends[3]):
                os.close(end)


def await_greeting(master, nonce=b""):
    """The agent on a terminal's other side says WELCOME; greet it back with the nonce, if any, until it answers."""
    heard = b""
    while not heard.endswith(frame(0, Frame.WELCOME, nonce)):
        assert select.select([master], [], [], 10)[0], f"no greeting, only {heard!r}"
        heard += os.read(master, 100)
        if nonce and heard.endswith(frame(0, Frame.WELCOME)):
            os.write(master, frame(0, Frame.HELLO, nonce))


def test_what_a_test_finds_of_a_lab_that_is_up(monkeypatch):
    """It is booted anew if one of its hosts does not answer; a guest alone is started again."""

    class FakeMachine:
        def __init__(self, name, log, silent):
            self.name, self.log, self.silent = name, log, silent
            self.running = True

        def answers(self):
            return self.name not in self.silent

        def kill(self):
            self.log.append(f"kill {self.name}")

        def start(self):
            self.log.append(f"start {self.name}")
            self.silent.discard(self.name)

    class FakeLab:
        def __init__(self, log, silent):
            self.log = log
            self.running = True
            self.hosts = {name: FakeMachine(name, log, silent) for name in ("host", "host2")}
            self.guests = {name: FakeMachine(name, log, silent) for name in ("g1", "g2")}
            self.guest = self.guests.get

        def remove_guest(self, name):
            self.log.append(f"remove {name}")
            del self.guests[name]

        def findings(self):
            return []

        def down(self):
            self.log.append("down")

    def boot(name, **options):
        log.append("up")
        silent.clear()
        labs.append(FakeLab(log, silent))
        return labs[-1]

    log: list[str] = []
    silent: set[str] = set()
    labs: list[FakeLab] = []
    monkeypatch.setattr(pytest_plugin.Machine, "answers", FakeMachine.answers)
    monkeypatch.setattr(pytest_plugin.Lab, "up", boot)
    config: Any = SimpleNamespace(getoption=lambda name: None)
    pool = pytest_plugin.LabPool(config)
    options = {"hosts": 2}
    for one, expected in (
        ("", ["up"]),
        ("", []),
        ("host2", ["down", "up"]),
        ("host", ["down", "up"]),
        ("g2", ["kill g2", "start g2"]),
    ):
        log.clear()
        silent.update({one} - {""})
        pool.get(options)
        assert log == expected, one
    # Guests that a test added stay for tests that keep them, while they are well.
    for kept, mute, suspect, expected in (
        ({"r4"}, set(), set(), []),
        (set(), set(), set(), ["remove r4"]),
        ({"v4"}, set(), set(), ["remove r4"]),
        ({"r4"}, {"r4"}, set(), ["remove r4"]),
        ({"r4"}, set(), {"r4"}, ["remove r4"]),
    ):
        labs[-1].guests["r4"] = FakeMachine("r4", log, silent)
        log.clear()
        silent |= mute
        pool.suspect(suspect)
        pool.get(options, kept)
        assert log == expected
        silent.clear()


def test_a_line_follows_its_guest(tmp_path):
    class Line(Link):
        def __init__(self, name):
            super().__init__(name)
            self.ready = True
            self.written = []

        def write(self, data):
            self.written += Parser().feed(data)

    def place(host):
        (tmp_path / "state.json").write_text(json.dumps({"guests": {"g2": {"host": host}}}))

    (tmp_path / "switch.json").write_text(json.dumps({"run_dir": str(tmp_path), "hosts": {}}))
    switch: Any = Switch(tmp_path)
    one, two = Line("host"), Line("host2")
    switch._hosts = {"host": one, "host2": two}
    assert switch.link("host2") is two
    line = switch.link("g2")
    assert line._host is one  # nothing is known yet
    place("host")
    assert switch.link("g2") is line
    line.connect()
    assert [kind for _, kind, _ in one.written] == [Frame.OPEN, Frame.DATA]
    told = []
    owner = SimpleNamespace(deliver=lambda stream, kind, payload: told.append((stream, kind)))
    line.new_stream(owner, 7)
    place("host2")
    assert switch.link("g2") is line
    assert one.written[-1][1] == Frame.CLOSE
    assert told == [(7, Frame.ERROR)], "who had a stream is told"
    line.connect()
    assert [kind for _, kind, _ in two.written] == [Frame.OPEN, Frame.DATA]
    assert switch.link("g2").alive


FAKE_OUTER = """
import os, socket, sys, time
name, path, lan, proof = sys.argv[1:]
agent = socket.socket(socket.AF_UNIX)
agent.bind(path)
agent.listen()
line = socket.socket(fileno=int(lan.rpartition("=")[2]))
line.sendall(name.encode())
open(proof, "w").write(line.recv(100).decode() + os.environ["TOLD"])
agent.accept()[0].recv(1)
time.sleep(100)
"""


def test_hosts_of_a_switch_are_joined_and_end_together(tmp_path):
    (tmp_path / "run").mkdir()
    hosts = {}
    for name in ("host", "host2"):
        (tmp_path / name).mkdir()
        (tmp_path / "run" / name).mkdir()
        socket = str(tmp_path / "run" / name / "agent.sock")
        hosts[name] = [sys.executable, "-c", FAKE_OUTER, name, socket, f"socket,{LAN}", str(tmp_path / name / "proof")]
    config = {"run_dir": str(tmp_path / "run"), "hosts": hosts, "environment": {"TOLD": " and more"}}
    (tmp_path / "switch.json").write_text(json.dumps(config))
    switch = subprocess.Popen(
        [sys.executable, "-m", "vmlab.switch", str(tmp_path)], env=dict(os.environ, PYTHONPATH=str(paths.LAB_SOURCE))
    )

    def wait(look):
        deadline = time.monotonic() + 60
        while not look():
            assert switch.poll() is None, "the switch has ended"
            assert time.monotonic() < deadline
            time.sleep(0.02)

    try:
        wait((tmp_path / "run" / "switch.sock").exists)
        wait(lambda: all((tmp_path / name / "proof").exists() for name in hosts))
        pids = json.loads((tmp_path / "qemu.pids").read_text())
        wait(lambda: (tmp_path / "host" / "proof").read_text() == "host2 and more")
        wait(lambda: (tmp_path / "host2" / "proof").read_text() == "host and more")
        # One host is nothing without the other.
        os.kill(pids["host2"], signal.SIGKILL)
        switch.wait(20)
        assert start_time(pids["host"]) is None
    finally:
        switch.kill()
        switch.wait()


def test_the_root_of_movable_guests(tmp_path, monkeypatch):
    assert movable.place(movable.Path("/lib/x/libc.so.6")) == "usr/lib/x/libc.so.6"
    assert movable.place(movable.Path("/usr/bin/ip")) == "usr/bin/ip"
    assert any("libc.so" in str(path) for path in movable.libraries(movable.Path("/usr/bin/env")))

    program = tmp_path / "ip"
    program.write_text("x")
    program.chmod(0o4755)
    tree = tmp_path / "tree"
    for name, text in {
        "updates/ours.ko": "", "kernel/net/needed.ko": "", "kernel/net/other.ko": "",
        "modules.dep": "updates/ours.ko: kernel/net/needed.ko\nkernel/net/needed.ko:\nkernel/net/other.ko:\n",
    }.items():  # fmt: skip
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    monkeypatch.setattr(movable, "CACHE", tmp_path)
    monkeypatch.setattr(movable.kernels, "KERNELS", tmp_path)
    monkeypatch.setattr(movable, "wanted_files", lambda: {"usr/sbin/ip": program})
    monkeypatch.setattr(movable, "applets", lambda: ["ip", "cat", "sh"])
    kernel: Any = SimpleNamespace(release="6.1")
    archive = movable.build(kernel, tree)
    with tarfile.open(archive) as found:
        links = {one.name: one.linkname for one in found if one.issym()}
        files = {one.name: one.mode for one in found if one.isreg()}
    assert links == {
        "bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64",
        "usr/bin/sh": "busybox", "usr/bin/cat": "busybox",
    }  # fmt: skip
    base = "usr/lib/modules/6.1"
    assert set(files) == {
        "usr/sbin/ip", f"{base}/modules.dep", f"{base}/updates/ours.ko", f"{base}/kernel/net/needed.ko",
    }  # fmt: skip
    assert files["usr/sbin/ip"] == 0o755
    assert movable.build(kernel, tree) == archive
    (tree / "updates/ours.ko").write_text("new")
    assert movable.build(kernel, tree) != archive


def test_the_programs_of_guests(tmp_path, monkeypatch):
    """Those that are there, with their libraries, at the places where the outside's root has them."""
    monkeypatch.setattr(movable, "CACHE", tmp_path)
    monkeypatch.setattr(programs, "PROGRAMS", ("sh", "no-such-program"))
    monkeypatch.setattr(movable.kernels, "KERNELS", tmp_path)
    archive = programs.build.__wrapped__()
    with tarfile.open(archive) as found:
        names = {one.name for one in found}
        assert found.getmember("usr/bin/sh").isreg(), "a link would lead to what is not there"
    assert any(name.startswith("usr/lib") and "libc.so" in name for name in names)
    assert "etc/passwd" in names and not [name for name in names if "no-such" in name]
    assert programs.build.__wrapped__() == archive
    monkeypatch.setattr(programs, "PROGRAMS", ("sh", "true"))
    assert programs.build.__wrapped__() != archive


def test_xen_guest_config(tmp_path):
    text = guest_config(GuestSpec("g1", 1, machine="pvh", extra_args=["maxvcpus = 2"]), *[tmp_path] * 4)
    values: dict[str, object] = {}
    exec(text, values)  # xl's syntax and Python's are the same here
    assert values["type"] == "pvh"
    assert values["vcpus"] == 2
    assert values["vif"] == ["mac=52:54:00:77:00:01,bridge=br0,vifname=tap-g1,script=/run/vmlab/g1/vif"]
    assert "console=hvc0" in str(values["cmdline"])
    assert values["cpus"] == "all,^0"
    assert values["tsc_mode"] == "native"
    assert values["maxvcpus"] == 2
    assert "vmlab.layers=xen" in str(values["cmdline"]) and "vmlab.movable" not in str(values["cmdline"])
    assert f"vmlab.programs={tmp_path}" in str(values["cmdline"])


def test_a_xen_guest_that_is_movable_takes_its_root_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(movable, "build", lambda kernel, modules: tmp_path / f"{kernel.release}.tar")
    monkeypatch.setattr(programs, "build", lambda: tmp_path / "programs.tar")
    monkeypatch.setattr(kernels, "build_initramfs", lambda *_: tmp_path / "init-1.cpio")
    (tmp_path / "init-1.cpio").write_bytes(bytes(512))
    (tmp_path / "6.1.0.tar").write_text("all of it")
    kernel = kernels.Kernel("6.1", "6.1.0", tmp_path, tmp_path)
    (tmp_path / "g1").mkdir()
    for wanted in (True, False):
        guest: Any = SimpleNamespace(
            name="g1", inside="/x", lab=SimpleNamespace(directory=tmp_path), own_file=str,
            spec=GuestSpec("g1", 1, machine="pv", movable=wanted),
        )  # fmt: skip
        find_kind("xen").start_script(guest, kernel, tmp_path)
        text = (tmp_path / "g1" / "xl.cfg").read_text()
        assert ("vmlab.movable=/movable.tar" in text.split()) == wanted
        assert ("vmlab.layers=xen" in text.split()) != wanted
        assert (f"vmlab.programs={tmp_path}/programs.tar" in text.split()) != wanted
        assert ("tag=root" in text) != wanted
        disk = tmp_path / ("6.1.0+1.cpio" if wanted else "init-1.cpio")
        assert f"ramdisk = '/run/vmlab/outside{disk}'" in text
        assert (b"movable.tar\0" in disk.read_bytes() and b"all of it" in disk.read_bytes()) == wanted


@pytest.mark.parametrize(("machine", "cpus"), [("pv", "2"), ("pvh", "3")])
def test_virtual_time_has_one_line_of_time(tmp_path, monkeypatch, machine, cpus):
    """And two CPUs, one more for guests that stay off CPU 0."""
    monkeypatch.setattr("vmlab.xen.packages", lambda: tmp_path)
    monkeypatch.setattr(kernels, "build_initramfs", lambda *_: tmp_path)
    kernel = kernels.Kernel("6.1", "6.1.0", tmp_path, tmp_path)
    outer = Outer("lab", kernel, tmp_path, tmp_path, tmp_path, 4096, "tcg", True, machine)
    words = find_kind("xen").outer_command(outer)
    assert words[words.index("-icount") + 1] == "shift=1,sleep=off"
    assert words[words.index("-accel") + 1] == "tcg,thread=single"
    assert words[words.index("-smp") + 1] == cpus
    assert "-cx16" not in words[words.index("-cpu") + 1]


@pytest.mark.parametrize("machine", ["pv", "pvh"])
@pytest.mark.parametrize("virtual_time", [True, False])
def test_allocators_of_pv_kernels_are_whole(tmp_path, monkeypatch, machine, virtual_time):
    """They have CMPXCHG16B, or take a lock: their CLI, which Linux has instead, does nothing under Xen."""
    monkeypatch.setattr("vmlab.xen.packages", lambda: tmp_path)
    monkeypatch.setattr(kernels, "build_initramfs", lambda *_: tmp_path)
    kernel = kernels.Kernel("6.1", "6.1.0", tmp_path, tmp_path)
    xen = find_kind("xen")
    words = xen.outer_command(Outer("lab", kernel, tmp_path, tmp_path, tmp_path, 4096, "tcg", virtual_time, machine))
    has = "-cx16" not in words[words.index("-cpu") + 1].split(",")
    dom0 = words[words.index("-initrd") + 1].partition(",")[0]
    for append in (dom0, xen.guest_append("pv", machine)):
        assert has or "slub_debug=F" in append.split()
    assert not xen.guest_append("pvh", machine)
    assert not find_kind("kvm").guest_append("pc", "pc")


def test_who_a_hypervisor_speaks_of():
    xen, domains = find_kind("xen"), {3: "g1", 5: "g1", 4: "g2"}
    for line, machine in {
        "(XEN) Domain 3 (vcpu#0) crashed on cpu#1:": "g1",
        "(XEN) Hardware Dom0 crashed: rebooting machine in 5 seconds.": "host",
        "(XEN) emul-priv-op.c:10:d4v0 Unhandled: vec 13, #GP[0000]": "g2",
        "(XEN) Domain 9 (vcpu#0) crashed on cpu#1:": "host",
        "(XEN) Panic on CPU 0:": "host",
        "[    1.2] BUG: in dom0, about Domain 3": "host",
    }.items():
        assert xen.blame(line, domains) == machine
    assert find_kind("kvm").blame("(XEN) Domain 3 (vcpu#0) crashed on cpu#1:", domains) == "host"


def test_kinds_are_checked():
    with pytest.raises(VmlabError, match="choose kvm, xen or solo"):
        find_kind("vmware")
    with pytest.raises(VmlabError, match="choose one of pv, pvh"):
        find_kind("xen").check_machine("pc")
    with pytest.raises(VmlabError, match="virtual time"):
        find_kind("kvm").choose_accelerator("tcg", virtual_time=True)
    assert find_kind("xen").choose_accelerator("auto", virtual_time=True) == "tcg"


def test_an_echo_is_no_answer():
    """A terminal that sends back what it gets is no agent; one that starts late is greeted again."""

    class Line(Link):
        def __init__(self):
            super().__init__("g1")
            self.written = []

        def write(self, data):
            self.written.append(data)

    line = Line()
    line.greet()
    (hello,) = line.written
    line.received(hello)
    assert not line.ready
    line.received(b"noise" + frame(0, Frame.WELCOME)[:5])
    line.received(frame(0, Frame.WELCOME)[5:])
    assert line.written == [hello, hello]
    line.received(frame(0, Frame.WELCOME, hello[12:]))
    assert line.ready


def test_append_line_refuses_spaces():
    with pytest.raises(VmlabError, match="space"):
        append_line({"repo": "/a b"}, "")


def test_processes_are_known_by_their_start():
    child = subprocess.Popen(["sleep", "100"])
    assert start_time(child.pid) is not None
    child.kill()
    assert start_time(child.pid) is None or child.wait() < 0
    child.wait()
    assert start_time(child.pid) is None
    assert start_time(os.getpid()) != start_time(1)


def test_unknown_choices():
    with pytest.raises(VmlabError, match="choose one of"):
        kernels.find_kernel("2.4")
    with pytest.raises(VmlabError, match="choose one of"):
        accel.choose("xen")


def test_bzimage_that_is_none():
    assert kernels.extract_vmlinux(b"\0" * 4096) is None


def test_a_probe_that_hangs_is_killed(tmp_path):
    pid_file = tmp_path / "pid"
    script = f"echo $$ >{pid_file}; echo text; exec sleep 1000"
    assert not accel.prints(["sh", "-c", script], b"text", 0.5)
    assert start_time(int(pid_file.read_text())) is None
    assert accel.prints(["echo", "some text"], b"text", 5)
    assert not accel.prints(["echo", "nothing"], b"text", 5)


@pytest.mark.parametrize(
    ("nested", "boots", "expected"), [(False, True, "tcg"), (True, False, "tcg"), (True, True, "kvm")]
)
def test_kvm_is_used_only_if_all_of_it_works(monkeypatch, nested, boots, expected):
    monkeypatch.setattr(accel, "nested", lambda: nested)
    monkeypatch.setattr(accel, "probe", lambda: boots)
    monkeypatch.setattr(accel.Path, "exists", lambda self: True)
    assert accel.choose("auto") == expected
    assert accel.choose("tcg") == "tcg"


def test_cpus_of_guests():
    assert find_kind("kvm").guest_cpus(False, 1) == find_kind("xen").guest_cpus(False, 1) == 2
    assert find_kind("xen").guest_cpus(True, 1) == 1
    assert (find_kind("kvm").guest_cpus(False, 2), find_kind("xen").guest_cpus(False, 2)) == (2, 1)


@pytest.mark.parametrize(("words", "expected"), [([], None), (["--guest-cpus", "4"], 4)])
def test_cpus_of_all_guests_of_a_test_session(pytester, words, expected):
    """The option goes before the mark."""
    pytester.makeconftest(
        PLUGIN.format(machine="g1", trace="", bad=0).replace("USES.append(1)", "USES.append(options)")
    )
    pytester.makepyfile(f"""
        import conftest, pytest
        @pytest.mark.lab(guest_cpus=3)
        def test_marked(no_machines, lab): assert conftest.USES[-1]["guest_cpus"] == ({expected} or 3)
        def test_plain(no_machines, lab): assert conftest.USES[-1].get("guest_cpus") == {expected}
        @pytest.mark.lab(kind="solo")
        def test_solo(no_machines, lab): assert conftest.USES[-1]["guests"] == 0
    """)
    result = pytester.runpytest_inprocess("-p", "vmlab.pytest_plugin", "-p", "no:cacheprovider", *words)
    result.assert_outcomes(passed=3)


def test_the_debug_kernel_gets_more():
    assert GuestSpec("g1", 1, kernel="debug").memory == 1024
    assert GuestSpec("g1", 1).memory == 512
    assert GuestSpec("g1", 1, memory=300).memory == 300


def test_story_of_errors():
    """Who cleans up after an error fails, too: what was first is told first."""
    with pytest.raises(CommandFailed) as caught:
        try:
            raise GuestFailed("g2 broke")
        except GuestFailed as error:
            try:
                raise TimeoutError from error
            finally:
                raise CommandFailed("no answer")
    assert story(caught.value).split("\n  and then: ") == ["g2 broke", "TimeoutError", "no answer"]


def test_events_before_what_should_come_first(caplog):
    """QEMU may tell of something before it greets, and before it answers qmp_capabilities."""
    ours, theirs = socket.socketpair()
    version = {"qemu": {"major": 7, "minor": 2, "micro": 22}, "package": ""}
    happened = {"event": "RESUME", "timestamp": {"seconds": 1, "microseconds": 2}}

    def qemu():
        def say(what):
            theirs.sendall(json.dumps(what).encode() + b"\n")

        with theirs:
            say(happened)
            say({"QMP": {"version": version, "capabilities": []}})
            for answer in ({}, {"status": "running"}):
                asked = json.loads(theirs.recv(4096))
                say(happened)
                say({"return": answer, "id": asked["id"]})
            theirs.recv(1)  # it hangs up

    with ThreadPoolExecutor(max_workers=1) as pool, ours:
        done = pool.submit(qemu)
        assert asyncio.run(qmp.talk("g1", ours, "query-status", {})) == {"status": "running"}
        ours.close()
        done.result(10)
    assert not caplog.records


KALLSYMS = """\
ffffffff81000000 T startup_64
ffffffff81000100 t do_idle
ffffffff81000180 D jiffies
ffffffff81000200 t lane_poll\t[vmloop_net]
ffffffff81156330 T hrtimer_interrupt
ffffffff81168830 t tick_sched_timer
ffffffff81a47be0 T sysvec_apic_timer_interrupt
ffffffff81a592e0 T native_safe_halt
ffffffff81a59b80 T _raw_spin_unlock_irqrestore
ffffffff81a5a114 t __raw_callee_save___pv_queued_spin_unlock
ffffffff81c00ef0 T asm_sysvec_apic_timer_interrupt
"""

# Of a guest that was seen halted in a spin lock of hrtimer_interrupt(), which had interrupted itself.
INTERRUPTED = """\
ffffc90000003e60: 0x0000000000000000 0x0000000000000000
ffffc90000003e70: 0xffffffff81c00f06 0xffff88801f023040
ffffc90000003e80: 0xffff88801f0235c0 0xffff88801f023060
ffffc90000003e90: 0x0000000000000006 0xffff88801f023000
ffffc90000003ea0: 0xffffffff81168830 0xffffc90000003ff8
ffffc90000003eb0: 0x0000000000000000 0x0000000000000000
ffffc90000003ec0: 0xffff88801f023060 0xffff88801f023801
ffffc90000003ed0: 0xffff88801f023800 0x0000000000000000
ffffc90000003ee0: 0x0000000000000006 0xffff88801f023000
ffffc90000003ef0: 0xffffffffffffffff 0xffffffff81a5a114
ffffc90000003f00: 0x0000000000000010 0x0000000000000002
ffffc90000003f10: 0xffffc90000003f20 0x0000000000000018
ffffc90000003f20: 0xffffffff81a59b8a 0x0000000000000000
"""
BELOW = """\
ffffffff82a03de0: 0xffffffff81c00f06 0x0000000000000000
ffffffff82a03df0: 0xffffffff82a1a118 0x0000000000000000
ffffffff82a03e00: 0x0000000000000000 0xffffffff82a1aa40
ffffffff82a03e10: 0x0000000000000000 0x0000000000000000
ffffffff82a03e20: 0x00000000fffffffb 0x0000000000000000
ffffffff82a03e30: 0x0000000bc56ed437 0x000000000001ad40
ffffffff82a03e40: 0x0000000000000000 0x4000000000000000
ffffffff82a03e50: 0x0000000000000000 0x0000000000007424
ffffffff82a03e60: 0xffffffffffffffff 0xffffffff81a592eb
ffffffff82a03e70: 0x0000000000000010 0x0000000000000246
ffffffff82a03e80: 0xffffffff82a03e98 0x0000000000000018
"""


def test_where_a_silent_guest_is():
    symbols = Symbols.parse(KALLSYMS)
    assert symbols.name(0xFFFFFFFF81000190) == "do_idle+0x90"
    assert symbols.name(0xFFFFFFFF81000204) == "lane_poll [vmloop_net]+0x4"
    assert symbols.name(0xFFFFFFFF80000000) == symbols.name(0xFFFFFFFF82000000) == ""
    dump = "ffffffff81000100: 0xffffffff81000201 0x0000000000000000\r\nffffffff81000110: 0xffff888000000000\r\n"
    assert Stack.parse(dump, 0xFFFFFFFF81000100).trace(symbols) == ["lane_poll [vmloop_net]+0x1"]
    assert Stack.parse(dump, 0xFFFFFFFF81000108).words == [0, 0xFFFF888000000000]
    assert Symbols([], []).name(1) == ""
    assert Stack.parse("Cannot access memory", 0).before == 0


def test_the_stack_that_an_interrupt_left():
    end = "ffffc90000003ff0: 0xffffffff81a47c49 0x{:016x}\nffffc90000004000: Cannot access memory\n"
    there = 0xFFFFFFFF82A03DD0
    assert Stack.parse(end.format(there), 0xFFFFC90000003FF8).before == there
    assert Stack.parse(end.format(0xFFFFC90000003FF0), 0xFFFFC90000003FF0).before == 0, "it is this one"
    assert Stack.parse(end.format(there + 1), 0xFFFFC90000003FF0).before == 0
    assert Stack.parse(end.format(0x7F0000000000), 0xFFFFC90000003FF0).before == 0, "not the kernel's"
    assert Stack.parse(INTERRUPTED, 0xFFFFC90000003E60).before == 0, "it is cut off"


def test_an_interrupt_that_came_while_they_were_off():
    symbols = Symbols.parse(KALLSYMS)
    place = "__raw_callee_save___pv_queued_spin_unlock+0x0"
    expected = [f"asm_sysvec_apic_timer_interrupt at {place}"]
    assert Stack.parse(INTERRUPTED, 0xFFFFC90000003E68).interrupted_while_off(symbols) == expected
    after_user = INTERRUPTED.replace("0x0000000000000018", "0x0000000000000000")
    assert Stack.parse(after_user, 0xFFFFC90000003E60).interrupted_while_off(symbols) == expected
    # As it ought to be, of user mode, or cut off, it is none.
    assert not Stack.parse(BELOW, 0xFFFFFFFF82A03DE0).interrupted_while_off(symbols)
    user = INTERRUPTED.replace("0x0000000000000010", "0x0000000000000033")
    assert not Stack.parse(user, 0xFFFFC90000003E60).interrupted_while_off(symbols)
    cut = "\n".join(INTERRUPTED.splitlines()[:-2])
    assert not Stack.parse(cut, 0xFFFFC90000003E60).interrupted_while_off(symbols)


def test_nothing_is_drawn_for_nobody():
    before = set(threading.enumerate())
    text = io.StringIO()
    with busy(Console(file=text), "booting"):
        assert set(threading.enumerate()) <= before
        assert text.getvalue() == "booting ...\n"
    with busy(Console(file=io.StringIO(), force_terminal=True), "booting"):
        assert len(set(threading.enumerate()) - before) == 1


def test_who_has_slower_clocks(monkeypatch):
    monkeypatch.setattr(dilation, "SLOW", 4.0)
    assert dilation.factor("tcg", False) == 4
    assert dilation.factor("tcg", True) == dilation.factor("kvm", False) == 1
    assert dilation.environment(1) == {}
    monkeypatch.setattr(dilation, "LIBRARY", Path("/nowhere"))
    with pytest.raises(VmlabError, match="make deps"):
        dilation.environment(4)


def test_clocks_are_slower():
    """By as much as they are to be: what a program sees passes lies between what passed around and within."""
    script = "import time\nwhile input(): print(time.monotonic(), time.time(), flush=True)"
    environ = {**os.environ, **dilation.environment(10)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True, env=environ) as child:
        assert child.stdin and child.stdout
        moments, said = [], []
        for _ in range(2):
            moments.append(time.monotonic())
            print("now", file=child.stdin, flush=True)
            said.append([float(word) for word in child.stdout.readline().split()])
            moments.append(time.monotonic())
            time.sleep(0.5)
        print(file=child.stdin, flush=True)
    around, within = moments[3] - moments[0], moments[2] - moments[1]
    for first, second in zip(*said, strict=True):
        assert 0.999 * within / 10 - 1e-6 <= second - first <= 1.001 * around / 10 + 1e-6
