# SPDX-License-Identifier: GPL-2.0
"""The lab's own tests that need a KVM host, or boot a lab that is cheapest with one."""

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from vmlab import Lab, paths, silence
from vmlab.lab import start_time


@pytest.mark.lab(guests=2, kind="kvm")
def test_qmp(g1):
    assert g1.qmp("query-status")["status"] == "running"
    assert g1.qmp("query-name")["name"] == "g1"


@pytest.mark.lab(guests=2, kind="kvm")
def test_a_silent_guest_is_looked_at(g1):
    g1.pause()
    try:
        seen = silence.look_at(g1)
    finally:
        g1.unpause()
    # What an idle CPU has on its stack.
    idle = r"(do_idle|default_idle_call|cpu_startup_entry)\+0x\w+"
    place = r"\w+\+0x\w+"
    assert re.fullmatch(
        # Three looks at each of two CPUs.
        rf"at {place}(, {place}){{5}}; on the stack of CPU 0 .*{idle} .*; on the stack of CPU 1 .*"
        "; and it still does not answer",
        seen.summary,
    )
    assert not seen.interrupted_while_off
    assert seen.text.startswith(seen.summary + "\n")
    assert re.search(rf"^  {idle}$", seen.text, re.MULTILINE)
    assert re.search(r"^qemu-system-x86: S \d+ \d+, in futex_wait\w*$", seen.text, re.MULTILINE)


@pytest.mark.lab(guests=2, kind="kvm")
def test_a_guest_that_comes_and_goes_has_no_kernel_code_changed(host, g2):
    """Emulated CPUs hang now and then where KVM rewrites what they execute (docs/lab.md)."""
    tracing = "/sys/kernel/tracing"
    host.run(
        f"""set -e
        mountpoint -q {tracing} || mount -t tracefs tracefs {tracing}
        cd {tracing}
        echo text_poke_bp_batch >set_ftrace_filter
        echo function >current_tracer
        echo >trace
        echo 1 >tracing_on"""
    )
    try:
        g2.kill()
        g2.start()
        changed = host.run(f"grep '<-' {tracing}/trace", check=False).out
    finally:
        host.run(f"cd {tracing}; echo nop >current_tracer; echo >set_ftrace_filter")
    assert not changed


ROUNDS = 60
"""An outer QEMU 7.2 freezes for good before that many (docs/lab.md)."""

CHAINS = {
    "egress": "type filter hook egress device lo priority 0;",
    "ingress": "type filter hook ingress device lo priority 0;",
    "postrouting": "type filter hook postrouting priority 0;",
}


@pytest.mark.lab(guests=1, kind="kvm", guest_cpus=2)
def test_a_guest_changes_its_own_code_under_load(g1):
    """Hooks come and go, for which the kernel rewrites jump labels that both of its CPUs execute all the time."""
    with ExitStack() as streams:
        for port in (5301, 5302):
            server = streams.enter_context(g1.popen(f"iperf3 -s -p {port} --forceflush"))
            server.wait_for("Server listening")
            streams.enter_context(g1.popen(f"iperf3 -c 127.0.0.1 -t 3600 -p {port}"))
        for _ in range(ROUNDS):
            for hook, chain in CHAINS.items():
                family = "ip" if hook == "postrouting" else "netdev"
                g1.run(
                    f"nft 'add table {family} t; add chain {family} t c {{ {chain} }}' && nft delete table {family} t"
                )
        assert g1.run("pgrep -c iperf3").out.split() == ["4"], "the load has ended before"


@pytest.mark.lab(guests=0)  # not of the fixture's: its own
def test_a_bound_lab_ends_with_its_process():
    name = f"bound-{os.getpid()}"
    script = (
        f"from vmlab import Lab; lab = Lab.up({name!r}, bound=True); print(lab.state['qemu'][0], flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=str(paths.LAB_SOURCE)),
    )
    assert child.stdout
    qemu = int(child.stdout.readline())
    assert start_time(qemu) is not None
    child.kill()
    child.wait()
    deadline = time.monotonic() + 10
    while start_time(qemu) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    Lab(name).down()
