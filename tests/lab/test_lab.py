# SPDX-License-Identifier: GPL-2.0
"""The lab's own tests that boot it, for what is the same on every kind of host."""

import os
import signal
import subprocess
import time

import pytest
from vmlab import CommandFailed, CommandTimeout, ConsoleFailed, GuestFailed, Lab, LabFailed, paths
from vmlab.process import allowed


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.lab(guests=2, kind=kind)) for kind in ("kvm", "xen")])
def kind(request):
    """Which kind of host the test's lab has."""
    return request.param


pytestmark = pytest.mark.usefixtures("kind")


def outside(*command, **options):
    """Run ./vmlab on the outside."""
    return subprocess.run(
        [paths.REPO / "vmlab", *command], capture_output=True, timeout=allowed(300), check=False, **options
    )


def test_guests_reach_each_other(g1, g2):
    g1.run("ping -c 3 -i 0.2 g2")
    g2.run(f"ping -6 -c 3 -i 0.2 {g1.ip6}")
    assert g1.run("cat /sys/class/net/eth0/address").out.strip() == g1.mac


def test_cpus(lab, g1):
    """As many as the test session wants, two if it does not say; a guest that is added can have another number."""
    assert int(g1.run("nproc").out) == g1.spec.cpus
    one = lab.add_guest(cpus=1)
    assert int(one.run("nproc").out) == 1


def test_iperf3(g1, g2):
    with g2.popen("iperf3 -s -1 --forceflush") as server:
        server.wait_for("Server listening")
        g1.run(f"iperf3 -c {g2.ip} -t 2")
        assert server.wait(10).code == 0


def test_exec_passes_status_and_streams(lab):
    for machine in ("host", "g1"):
        done = outside(
            "exec", "--name", lab.name, machine, "--", "sh", "-c", "cat; echo err >&2; exit 7", input=b"hello"
        )
        assert (done.returncode, done.stdout, done.stderr) == (7, b"hello", b"err\n")
    assert outside("exec", "--name", lab.name, "g1", "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert outside("exec", "--name", lab.name, "g1", "--", "no-such-program").returncode == 127


def test_exec_carries_much_data_both_ways(g1):
    data = os.urandom(3_000_000)
    with g1.popen("cat") as process:
        process.write(data)
        process.close_stdin()
        process.wait(60)
        assert process.out_bytes == data


def test_a_stalled_stream_holds_up_no_other(lab, g1):
    """A reader that takes nothing must not stop other commands' output."""
    stream = g1.stream()
    stream.open(["cat", "/dev/zero"], "/", {"PATH": "/usr/bin"})
    try:
        for _ in range(3):
            assert g1.run("echo through", timeout=10).out == "through\n"
    finally:
        stream.close()


def test_closing_a_stream_kills_its_command(g1):
    with g1.popen("sleep 4321 & sleep 4321") as process:
        deadline = time.monotonic() + allowed(10)
        while g1.run("pgrep -c -f '^sleep 4321'", check=False).out.strip() != "2":
            assert time.monotonic() < deadline
    deadline = time.monotonic() + allowed(10)
    while g1.run("pgrep -f '^sleep 4321'", check=False).code == 0:
        assert time.monotonic() < deadline
    assert process.machine == "g1"


def test_many_commands_at_once(lab, g1):
    clients = [
        subprocess.Popen(
            [paths.REPO / "vmlab", "exec", "--name", lab.name, "g1", "--", "sh", "-c", f"echo {n}"],
            stdout=subprocess.PIPE,
        )
        for n in range(8)
    ]
    assert [int(client.communicate(timeout=allowed(60))[0]) for client in clients] == list(range(8))


def test_popen_signals(g1):
    with g1.popen(["sleep", "1000"]) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10).code == 128 + signal.SIGTERM


def test_deadline_of_a_command(g1):
    with pytest.raises(CommandTimeout):
        g1.run("sleep 100", timeout=0.5)
    with g1.popen(["sleep", "100"]) as process:
        assert not process.ends_within(0.5)
        process.terminate()
        assert process.ends_within(60)
    with pytest.raises(CommandFailed):
        g1.run("exit 3")


def test_checkout_is_coherent(g1):
    """A file that is rebuilt on the outside must not look old inside."""
    path = paths.OUT / "lab" / "coherent.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    for text in ("one\n", "another text\n"):
        path.unlink(missing_ok=True)
        path.write_text(text)
        assert g1.run(["cat", str(path)]).out == text
    path.write_text("third\n")  # rewritten in place
    assert g1.run(["cat", str(path)]).out == "third\n"
    path.unlink()


def test_copy(lab, g1, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(os.urandom(200_000))
    assert outside("cp", "--name", lab.name, source, "g1:/tmp/").returncode == 0
    assert outside("cp", "--name", lab.name, "g1:/tmp/source", tmp_path / "back").returncode == 0
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_modprobe(g1):
    g1.run("modprobe veth && ip link add vt0 type veth peer name vt1 && ip link del vt0")


def test_kill_and_start(lab, g1):
    with g1.popen("sleep 1000") as process:
        process.write("")
        g1.kill()
        with pytest.raises(GuestFailed):
            process.wait(10)
    assert not g1.running and g1.exit_status == 128 + signal.SIGKILL
    with pytest.raises(GuestFailed):
        g1.run("true")
    g1.start()
    g1.run("ping -c 1 -w 10 g2")


@pytest.mark.parametrize(
    ("machine", "message", "detector"),
    [
        ("g1", "BUG: unable to handle page fault for address: 0", "bug"),
        ("g1", "WARNING: CPU: 0 PID: 1 at here", "warning"),
        ("g1", "WARNING: possible circular locking dependency detected", "warning"),
        ("g2", "watchdog: BUG: soft lockup - CPU#0 stuck for 22s!", "bug"),
        ("g2", "kmemleak: 3 new suspected memory leaks (see debugfs)", "kmemleak"),
        ("host", "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", "rcu-stall"),
    ],
)
def test_console_watch(lab, machine, message, detector):
    """A warning in a kernel's log reaches the watch, from guests and from the host."""
    lab.machine(machine).run(f"echo '<4>{message}' >/dev/kmsg")
    deadline = time.monotonic() + allowed(5)
    while not (found := lab.findings()):
        assert time.monotonic() < deadline
    assert [(one.machine, one.detector) for one in found] == [(machine, detector)]


def test_check_consoles_raises(lab, g1):
    g1.run("echo 'WARNING: made by a test' >/dev/kmsg")
    deadline = time.monotonic() + allowed(10)
    with pytest.raises(ConsoleFailed, match="made by a test"):
        while time.monotonic() < deadline:
            lab.check_consoles()
            time.sleep(0.05)
    lab.check_consoles()


def test_a_real_panic_is_the_guests_failure(lab, g1):
    with pytest.raises(GuestFailed):
        g1.run("echo c >/proc/sysrq-trigger; sleep 60", timeout=60)
    assert {"panic", "oops"} & {one.detector for one in lab.findings()}
    assert "sysrq" in g1.console_text()


def test_a_guest_that_dies_at_boot_is_not_waited_for(lab):
    with pytest.raises(GuestFailed, match=r"dies did not boot but ended with status \d+"):
        lab.add_guest("dies", extra_append="rdinit=/none")
    assert "Kernel panic" in lab.guest("dies").console_text()
    assert "panic" in {one.detector for one in lab.findings()}
    lab.remove_guest("dies")


def test_a_guest_on_another_bridge_is_apart(lab, g1):
    other = lab.add_guest(bridge="br1")
    other.run("ip -br addr show eth0")
    assert other.run(f"ping -c 1 -w 2 {g1.ip}", check=False).code != 0
    lab.remove_guest(other.name)
    assert other.name not in lab.guests


def test_lab_can_be_found(lab):
    assert lab.name in outside("ls").stdout.decode()
    assert Lab.open(lab.name).guest("g2").ip == "10.77.0.12"
    assert b'"running": true' in outside("status", "--name", lab.name, "--json").stdout
    shown = outside("status", "--name", lab.name).stdout.decode()
    assert lab.guest("g2").mac in shown, "a pipe has no width that would cut a column"


def test_vmloop_by_hand(lab):
    """./vmlab vmloop up: two guests have a channel, whatever was there before."""
    for _ in range(2):
        done = outside("vmloop", "up", "--name", lab.name)
        assert done.returncode == 0, done.stderr.decode()
    deadline = time.monotonic() + allowed(30)

    def state():
        outside("exec", "--name", lab.name, "g1", "--", "ping", "-c", "1", "-W", "1", "g2")
        return outside("exec", "--name", lab.name, "g1", "--", "vmloop", "ls").stdout.decode()

    while " up " not in (seen := state()):
        assert time.monotonic() < deadline, seen
    assert b"g2" in outside("exec", "--name", lab.name, "host", "--", "vmloop", "ls").stdout
    assert outside("vmloop", "down", "--name", lab.name).returncode == 0
    assert lab.host.run("pgrep -x vmloopd", check=False).code == 1
    assert lab.guest("g1").run("grep -q ^vmloop /proc/modules", check=False).code == 1


def test_the_hosts_panic_is_the_labs_failure(kind):
    with Lab.up(f"panic-{os.getpid()}", guests=0, kind=kind, bound=True) as stage:
        with pytest.raises(LabFailed):
            stage.host.run("echo c >/proc/sysrq-trigger; sleep 60", timeout=60)
        assert "Kernel panic" in stage.host.console_text()
