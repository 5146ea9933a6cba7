# SPDX-License-Identifier: GPL-2.0
"""What cannot work says so: a message that names what to do, a status, and nothing half done.

The machines here are QEMUs that stand still before their first instruction
(-S), if nothing else is said: the agent looks at them from outside only.
"""

import json
from contextlib import contextmanager

import pytest

from tests.guest.net import HERE, until

pytestmark = [pytest.mark.one_stage, pytest.mark.kvm_only]

QMP = f"{HERE}/machine.sock"
WATCH = f"{HERE}/watch.sock"

# Connects to a QMP socket, to ask it.
ASK = """
import json, os, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f = s.makefile("rw")
f.readline()
def ask(name, **arguments):
    f.write(json.dumps({"execute": name, "arguments": arguments}) + "\\n"); f.flush()
    while True:
        answer = json.loads(f.readline())
        if "return" in answer or "error" in answer:
            return answer.get("return", answer.get("error"))
ask("qmp_capabilities")
"""

# All that an attempt to attach could leave behind.
SNAPSHOT = (
    ASK
    + """
fds = sorted(os.readlink(f"/proc/{sys.argv[2]}/fd/{fd}").split(":")[0] for fd in os.listdir(f"/proc/{sys.argv[2]}/fd"))
print(json.dumps([ask("query-pci"), sorted(one["label"] for one in ask("query-chardev")),
    ask("qom-list", path="/objects"), ask("qom-list", path="/machine/peripheral"), ask("query-fdsets"), fds]))
"""
)

BEGIN = ASK + "ask('cont')"


@contextmanager
def machine(net, *arguments, program="qemu-system-x86_64", accel="tcg"):
    """A QEMU in the host that does not run its guest; yields a function that tells what it has."""
    command = [
        program, "-S", "-nodefaults", "-no-user-config", "-display", "none", "-accel", accel, "-m", "64",
        "-qmp", f"unix:{QMP},server=on,wait=off", "-qmp", f"unix:{WATCH},server=on,wait=off", *arguments,
    ]  # fmt: skip
    net.host.run(["rm", "-f", QMP, WATCH])
    with net.host.popen(command) as qemu:

        def listens() -> bool:
            assert qemu.poll() is None, qemu.err
            return net.host.run(["test", "-S", WATCH], check=False).code == 0

        until(listens, 20, "QEMU listens")
        yield lambda: json.loads(net.host.run(["python3", "-", WATCH, str(qemu.pid)], stdin=SNAPSHOT).out)
        assert qemu.poll() is None, f"QEMU ended: {qemu.err}"


def refused(net, *words, status=1, timeout=20):
    """Run the vmloop command, which must fail in order; returns its message."""
    result = net.command(*words, check=False, timeout=timeout)
    message = result.err.strip()
    assert result.code == status, f"status {result.code}: {result.out} {message}"
    assert message.startswith("vmloop: "), message
    assert "panicked" not in message and "RUST_BACKTRACE" not in message, message
    assert len(message) < 1000, message
    return message


def attach_refused(net, socket=QMP, **options):
    """Attaching must fail, name the socket or the machine, say what to do, and leave the agent as it was."""
    before = net.listing()
    message = refused(net, "attach", "--qmp", socket, "--name", "bad", **options)
    assert "\n" in message, f"it does not say what to do: {message}"
    after = net.listing()
    for one in (before, after):
        for channel in one["channels"]:
            channel.pop("age_s")
    assert [one["name"] for one in after["guests"]] == [one["name"] for one in before["guests"]]
    assert after["channels"] == before["channels"]
    return message


# Sockets


def test_no_such_socket(net):
    message = attach_refused(net, "/run/no-such.sock")
    assert "/run/no-such.sock" in message and "-qmp" in message


def test_not_a_socket(net):
    assert f"{HERE}/policy.toml" in attach_refused(net, f"{HERE}/policy.toml")


def test_nobody_listens(net):
    net.host.run(["python3", "-c", f"import socket; socket.socket(socket.AF_UNIX).bind('{HERE}/dead.sock')"])
    try:
        assert f"{HERE}/dead.sock" in attach_refused(net, f"{HERE}/dead.sock")
    finally:
        net.host.run(["rm", f"{HERE}/dead.sock"])


@pytest.mark.parametrize(
    "says", ["SYSTEM:echo hello; cat", "SYSTEM:cat >/dev/null", "SYSTEM:cat /dev/zero", "SYSTEM:true"]
)
def test_not_qmp(net, says):
    """Something else listens: it says something else, nothing, far too much, or hangs up."""
    path = f"{HERE}/other.sock"
    with net.host.popen(["socat", f"UNIX-LISTEN:{path},fork,unlink-early", says]):
        until(lambda: net.host.run(["test", "-S", path], check=False).code == 0, 10, "socat listens")
        assert path in attach_refused(net, path)
    net.host.run(["rm", "-f", path])


def test_qmp_socket_that_is_in_use(net):
    """QEMU talks to one client at a time on each socket."""
    with machine(net) as snapshot:
        before = snapshot()
        with net.host.popen(["socat", f"UNIX-CONNECT:{QMP}", "-"]) as other:
            other.wait_for("QMP")
            message = attach_refused(net)
        assert QMP in message
        assert snapshot() == before


# Machines


@pytest.mark.parametrize(
    "arguments",
    [["-machine", "pc"], ["-machine", "q35", "-device", "pcie-root-port,id=rp1,chassis=1,pref64-reserve=64M"]],
    ids=["pc", "q35"],
)
def test_a_good_machine_is_attached(net, arguments):
    """The tests below refuse for the reason that they say, not because it stands still.

    Nothing is plugged before its firmware has been through: to size the BAR of
    a device that was plugged meanwhile ends a QEMU, with KVM.
    """
    with machine(net, *arguments, accel="kvm") as snapshot:
        before = snapshot()[:-1]
        net.command("attach", "--qmp", QMP, "--name", "still")
        assert snapshot()[:-1] == before  # the agent has a connection
        refused(net, "attach", "--qmp", QMP, "--name", "still")
        net.host.run(["python3", "-", WATCH], stdin=BEGIN)
        until(lambda: "vmloop-ctl" in str(snapshot()), 20 * net.slow, "it has its control device")
        refused(net, "attach", "--qmp", QMP, "--name", "still")
    until(
        lambda: "still" not in [one["name"] for one in net.listing()["guests"]],
        10 * net.slow,
        "the agent forgets a machine that has ended",
    )


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["-machine", "q35"], "pcie-root-port"),
        (
            [
                "-machine",
                "q35",
                "-device",
                "pcie-root-port,id=rp1,chassis=1,slot=1",
                "-device",
                "virtio-rng-pci,bus=rp1",
            ],
            "pcie-root-port",
        ),
        (["-machine", "pc", *["-device", "virtio-rng-pci"] * 30], "slot"),
    ],
    ids=["q35-without-ports", "q35-with-full-ports", "pc-full"],
)
def test_no_free_slot(net, arguments, advice):
    with machine(net, *arguments) as snapshot:
        before = snapshot()
        message = attach_refused(net)
        assert "no free" in message and advice in message, message
        assert snapshot() == before


def test_machine_without_pci(net):
    with machine(net, "-machine", "microvm") as snapshot:
        before = snapshot()
        message = attach_refused(net)
        assert "-machine pc" in message, message
        assert snapshot() == before


def test_qemu_without_ivshmem(net):
    """Debian builds QEMU's SPARC emulator without ivshmem, though its machines have PCI."""
    with machine(net, "-machine", "sun4u", "-bios", "/dev/null", program="qemu-system-sparc64") as snapshot:
        before = snapshot()
        message = attach_refused(net)
        assert "ivshmem" in message, message
        assert snapshot() == before


# Policies


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("idle_ms = 0\nring_size = '3M'\n", ":2: ring_size must be a power of two"),
        ("[[group]]\nname = 'x'\nmembrs = ['a']\n", ":3: unknown field `membrs`"),
        ("[[group]\n", ":1: "),
        ("[[guest]]\nmatch = 'x'\nallow_ips = ['10.0.0.0/99']\n", ":3: "),
    ],
)
@pytest.mark.main("a policy with an error leaves the last one in force")
def test_policy_with_an_error(net, g1, g2, text, complaint):
    """check and reload refuse it and say where; the policy in force stays."""
    file = f"{HERE}/policy.toml"
    net.host.run(f"cat >{file}", stdin=text)
    try:
        for words in (("policy", "check", file), ("policy", "reload")):
            assert f"{file}{complaint}" in refused(net, *words)
        status = json.loads(net.command("status", "--json").out)
        assert complaint in status["policy_error"]
        assert "idle_ms = 0" in net.command("policy", "show").out
        assert net.state(g1, g2) == "up"
    finally:
        net.set_policy("idle_ms = 0\n")
    assert json.loads(net.command("status", "--json").out)["policy_error"] == ""


@pytest.mark.parametrize(
    ("text", "complaint"), [("default = 'perhaps'\n", ":1: "), ("", "it is empty"), (None, "No such file")]
)
def test_agent_with_a_wrong_policy_lets_nobody_talk(net, text, complaint):
    file, socket = f"{HERE}/wrong.toml", f"{HERE}/second.sock"
    net.host.run(f"rm -f {file}" if text is None else f"cat >{file}", stdin=text or "")
    words = ["--policy", file, "--socket", socket, "--state-dir", f"{HERE}/second"]
    with net.host.popen([f"{HERE}/vmloopd", *words]) as agent:
        agent.wait_for("ready", 20 * net.slow)
        status = json.loads(net.command("--socket", socket, "status", "--json").out)
        shown = net.command("--socket", socket, "status").out
    assert status["policy_state"] == "denied"
    assert file in status["policy_error"] and complaint in status["policy_error"]
    assert f"NOBODY may talk, as none can be read: {status['policy_error']}" in shown


# The agent and the command


def test_second_agent(net):
    started = net.host.run(f"{HERE}/vmloopd --policy {HERE}/policy.toml", check=False, timeout=20)
    assert started.code == 1 and "another vmloopd" in started.err, started.err


def test_no_agent(net):
    message = refused(net, "--socket", "/run/no-agent.sock", "status", status=3)
    assert "/run/no-agent.sock" in message and "systemctl start vmloopd" in message


def test_unknown_guest(net):
    for words in (("detach", "nobody"), ("close", "nobody", "g1")):
        message = refused(net, *words)
        assert "nobody" in message and "vmloop ls" in message, message


def test_host_command_in_a_guest_and_the_reverse(net, g1):
    result = g1.run([f"{HERE}/vmloop", "attach", "--qmp", "/x"], check=False)
    assert result.code in (1, 3) and "\n" in result.err.strip(), result.err
    refused(net, "off")


def test_guest_without_modules(net, g3):
    net.unload(g3)
    try:
        result = g3.run([f"{HERE}/vmloop", "--guest", "status"], check=False)
        assert result.code == 1 and "modprobe vmloop" in result.err, result.err
    finally:
        net.load(g3)
