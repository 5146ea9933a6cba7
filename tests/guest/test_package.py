# SPDX-License-Identifier: GPL-2.0
"""The Debian package of the agent, on a host whose process 1 is systemd.

What the other tests run as root, without bounds, runs here as the package has
it: by its unit, with the capabilities, paths and system calls that it grants.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from vmlab import Guest, Lab, paths
from vmlab.machine import Host
from vmlab.qemu import QEMU_UID

from tests.guest.net import at_once, until

CAPABILITIES = {"dac_override": 1, "net_admin": 12, "sys_ptrace": 19}
DROP_IN = "/run/systemd/system/vmloopd.service.d"
PINGS = 50

pytestmark = [pytest.mark.lab(guests=2, init="systemd")]


@pytest.fixture(scope="session")
def packages() -> list[str]:
    """The packages of the agent and of the command: built now, or those in the directory VMLOOP_PACKAGES."""
    made = os.environ.get("VMLOOP_PACKAGES")
    if not made:
        done = subprocess.run(["make", "-s", "deb-host"], cwd=paths.REPO, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = sorted(str(path) for path in (Path(made) if made else paths.OUT / "deb").glob("vmloop*.deb"))
    assert [path.rpartition("/")[2].partition("_")[0] for path in found] == ["vmloop-agent", "vmloop"]
    return found


def vmloop(host: Host, *words: str) -> Any:
    """Run the packaged command; what it says, from JSON."""
    return json.loads(host.run(["vmloop", "--host", *words, "--json"]).out)


def daemon(host: Host) -> int:
    """Process id of the service."""
    return int(host.run("systemctl show -P MainPID vmloopd").out)


def process(host: Host, pid: int) -> dict[str, str]:
    """What /proc/PID/status says."""
    lines = host.run(["cat", f"/proc/{pid}/status"]).out.splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def descriptors(host: Host) -> int:
    """How many the service has."""
    return len(host.run(["ls", f"/proc/{daemon(host)}/fd"]).out.split())


def taps(host: Host, *guests: Guest) -> int:
    """Bytes that passed the guests' tap devices, both ways."""
    names = [f"/sys/class/net/{guest.spec.tap}/statistics/{way}_bytes" for guest in guests for way in ("rx", "tx")]
    return sum(map(int, host.run(["cat", *names]).out.split()))


def channel_state(host: Host) -> str:
    """State of the only channel; empty if there is none."""
    found = vmloop(host, "ls")["channels"]
    return str(found[0]["state"]) if found else ""


@pytest.fixture
def installed(lab: Lab, packages: list[str]) -> Iterator[Host]:
    """The service, installed and started."""
    host = lab.host
    install = "DEBIAN_FRONTEND=noninteractive dpkg -i " + " ".join(packages)
    host.run(f"dpkg-query -W vmloop-agent >/dev/null 2>&1 || {install}", timeout=300)
    host.run("systemctl daemon-reload && systemctl start vmloopd", timeout=120)
    assert host.run("systemctl is-active vmloopd").out == "active\n"
    yield host
    host.run(f"rm -rf {DROP_IN} && systemctl daemon-reload")


@pytest.fixture
def service(lab: Lab, installed: Host) -> Host:
    """The service with both guests attached, and the modules loaded in them."""
    guests = list(lab.guests.values())
    names = {guest["name"] for guest in vmloop(installed, "ls")["guests"]}
    for guest in guests:
        if guest.name not in names:
            installed.run(["vmloop", "attach", "--qmp", guest.qmp_socket, "--name", guest.name], timeout=120)
    load = ["modprobe", "-a", "vmloop_ivshmem", "vmloop_net"]
    at_once(*(partial(guest.run, load, timeout=240) for guest in guests))
    return installed


def grant_less(host: Host, lacking: str) -> None:
    """Take one capability from the service."""
    names = " ".join(f"CAP_{name.upper()}" for name in CAPABILITIES if f"CAP_{name.upper()}" != lacking)
    text = f"[Service]\\nCapabilityBoundingSet=\\nCapabilityBoundingSet={names}\\n"
    host.run(f"mkdir -p {DROP_IN} && printf '{text}' >{DROP_IN}/less.conf && systemctl daemon-reload")
    host.run("systemctl restart vmloopd", timeout=120)


def grant_all(host: Host) -> None:
    """Let it have what its unit says."""
    host.run(f"rm -rf {DROP_IN} && systemctl daemon-reload && systemctl restart vmloopd", timeout=120)


def check_it_says_why(host: Host, lacking: str) -> None:
    """No guest's interface counts, and everything that can be looked at says why."""
    guests = until(lambda: [one for one in vmloop(host, "ls")["guests"] if one["nics"]], 60, "the guests are there")
    for guest in guests:
        assert lacking in guest["nics"][0]["blocked"], guest
    problems = vmloop(host, "status")["problems"]
    assert problems and all(lacking in problem for problem in problems), problems
    assert "PROBLEM" in host.run(["vmloop", "--host", "status"]).out
    assert lacking in host.run("journalctl -q -u vmloopd -b --no-pager").out


def bring_up(host: Host, g1: Guest, g2: Guest) -> None:
    """Send until there is a channel."""

    def is_up() -> bool:
        g1.run(["ping", "-c", "1", "-W", "1", "-q", g2.ip], check=False)
        return channel_state(host) == "up"

    until(is_up, 60, "a channel that is up")


def sent(host: Host) -> tuple[int, int]:
    """Frames that each side has given to the channel."""
    channel = vmloop(host, "stats")[0]
    return channel["a"]["stats"]["tx_frames"], channel["b"]["stats"]["tx_frames"]


def check_traffic(host: Host, g1: Guest, g2: Guest) -> None:
    """Ping from one guest to the other: it goes by the channel, and not by the taps."""
    before, by_taps = sent(host), taps(host, g1, g2)
    g1.run(["ping", "-c", str(PINGS), "-i", "0.01", "-s", "1000", "-q", g2.ip])
    after = sent(host)
    assert all(now - then >= PINGS for now, then in zip(after, before, strict=True)), (before, after)
    assert taps(host, g1, g2) - by_taps < PINGS * 1000


def test_two_guests_talk(service: Host, g1: Guest, g2: Guest) -> None:
    # The guests' QEMUs are as libvirt would run them: another user's.
    for guest in (g1, g2):
        assert guest.pid is not None
        assert process(service, guest.pid)["Uid"].split()[1] == str(QEMU_UID)
    without = descriptors(service)
    bring_up(service, g1, g2)
    check_traffic(service, g1, g2)
    # host/vmloopd/src/limits.rs: an open channel takes none.
    until(lambda: descriptors(service) == without, 10, "all descriptors of the channel let go")
    assert vmloop(service, "status")["problems"] == []


def test_what_bounds_the_service(service: Host) -> None:
    pid = daemon(service)
    status = process(service, pid)
    wanted = sum(1 << number for number in CAPABILITIES.values())
    assert {name: int(status[name], 16) for name in ("CapBnd", "CapEff", "CapPrm")} == {
        "CapBnd": wanted, "CapEff": wanted, "CapPrm": wanted,
    }  # fmt: skip
    assert int(status["CapAmb"], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert int(process(service, 1)["CapBnd"], 16) & ~wanted, "process 1 has more"
    limits = service.run(["cat", f"/proc/{pid}/limits"]).out
    [files] = [line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files")]
    # limits.rs has a test that it is enough.
    assert files == [service.run("systemctl show -P LimitNOFILE vmloopd").out.strip()] * 2
    assert int(files[0]) > 4096, "systemd's own"
    # Its own view of the file system: nothing can be written but below /run/vmloop.
    inside = ["nsenter", "-t", str(pid), "-m", "sh", "-c"]
    assert service.run([*inside, "touch /etc/vmloop/x"], check=False).code
    assert service.run([*inside, "touch /run/vmloop/x && rm /run/vmloop/x"]).code == 0
    assert service.run(["touch", "/etc/vmloop/x"]).code == 0


def test_restart_and_reload(service: Host, g1: Guest, g2: Guest) -> None:
    bring_up(service, g1, g2)
    before = daemon(service)
    service.run("systemctl restart vmloopd", timeout=120)
    assert daemon(service) != before
    until(lambda: channel_state(service) == "up", 60, "the channel is taken over")
    check_traffic(service, g1, g2)
    change = "sed -i 's/^default = .*/default = \"%s\"/' /etc/vmloop/policy.toml && systemctl reload vmloopd"
    service.run(change % "deny")
    until(lambda: channel_state(service) == "", 30, "the policy is in force")
    service.run(change % "same-bridge")
    bring_up(service, g1, g2)


@pytest.mark.parametrize("lacking", ["CAP_SYS_PTRACE", "CAP_NET_ADMIN"])
def test_a_service_that_may_not_look_says_so(service: Host, g1: Guest, g2: Guest, lacking: str) -> None:
    """Without one of its capabilities there is no channel; why, and what to do, is shown."""
    grant_less(service, lacking)
    check_it_says_why(service, lacking)
    until(lambda: channel_state(service) == "", 60, "no channel")
    grant_all(service)
    bring_up(service, g1, g2)
    check_traffic(service, g1, g2)


@pytest.mark.lab(guests=0, init="systemd", memory=2048)
def test_a_qemu_of_another_user(installed: Host) -> None:
    """The same without guests, of a QEMU that stands still: it needs no nested virtualization."""
    tap, socket = "tap-still", "/run/still/qmp.sock"
    installed.run(
        f"mkdir -p /run/still && chown {QEMU_UID} /run/still && "
        f"ip tuntap add dev {tap} mode tap user {QEMU_UID} vnet_hdr && ip link set {tap} master br0 up"
    )
    user = ["setpriv", f"--reuid={QEMU_UID}", f"--regid={QEMU_UID}", "--clear-groups"]
    qemu = [
        "qemu-system-x86_64", "-name", "still", "-nodefaults", "-display", "none", "-machine", "pc", "-m", "16", "-S",
        "-uuid", "77770000-0000-4000-8000-0000000000ff", "-qmp", f"unix:{socket},server=on,wait=off",
        "-netdev", f"tap,id=n0,ifname={tap},script=no,downscript=no", "-device", "virtio-net-pci,netdev=n0,romfile=",
    ]  # fmt: skip
    with installed.popen([*user, *qemu]) as machine:
        until(lambda: installed.run(["test", "-S", socket], check=False).code == 0, 60, "QEMU's socket")
        assert machine.poll() is None, machine.err
        installed.run(["vmloop", "attach", "--qmp", socket], timeout=120)
        [guest] = vmloop(installed, "ls")["guests"]
        assert process(installed, guest["pid"])["Uid"].split()[1] == str(QEMU_UID)
        [nic] = guest["nics"]
        assert (nic["tap"], nic["bridge"], nic["blocked"]) == (tap, "br0", "")
        assert vmloop(installed, "status")["problems"] == []
        for lacking in ("CAP_SYS_PTRACE", "CAP_NET_ADMIN"):
            grant_less(installed, lacking)
            check_it_says_why(installed, lacking)
        grant_all(installed)
        attached = until(lambda: vmloop(installed, "ls")["guests"], 60, "it is attached again")
        assert attached[0]["nics"][0]["tap"] == tap
        installed.run(["vmloop", "detach", "still"], timeout=120)


@pytest.mark.lab(guests=0, init="systemd", memory=2048)
def test_rules_of_the_stream_path(installed: Host, packages: list[str]) -> None:
    """The unit loads them where the module is; without the module, or without rules, it does nothing."""

    modules = paths.OUT / "modules" / installed.run(["uname", "-r"]).out.strip()
    names = ("vmloop", "vmloop_tcp")

    def state() -> str:
        installed.run("systemctl restart vmloop-stream-rules", check=False)
        return installed.run("systemctl is-active vmloop-stream-rules", check=False).out.strip()

    def added_rule_outlives_an_upgrade() -> None:
        installed.run("vmloop stream add tcp --port 80")
        before = json.loads(installed.run("vmloop stream rules --json").out)
        # A container's image forbids packages to start anything; an administrator's machine does not.
        policy = "/usr/sbin/policy-rc.d"
        installed.run(f"[ ! -e {policy} ] || mount --bind /bin/true {policy}")
        installed.run(["dpkg", "-i", *packages], timeout=300)
        installed.run(f"umount {policy} 2>/dev/null || [ ! -e {policy} ]")
        assert json.loads(installed.run("vmloop stream rules --json").out) == before

    # Messages and policy.toml name the documents; a guest has the folder without the agent's package.
    docs = (
        "/usr/share/doc/vmloop/stream.md",
        "/usr/share/doc/vmloop/stream-coverage.toml",
        "/usr/share/doc/vmloop-agent/agent.md",
    )
    shells = (
        "bash-completion/completions/vmloop",
        "zsh/vendor-completions/_vmloop",
        "fish/vendor_completions.d/vmloop.fish",
    )
    there = {*docs, "/etc/vmloop", *(f"/usr/share/{one}" for one in shells)}
    assert there <= set(installed.run("dpkg -L vmloop vmloop-agent").out.split())
    assert "/etc/vmloop" in installed.run("dpkg -L vmloop").out.split()
    assert installed.run("systemctl is-enabled vmloop-stream-rules").out.strip() == "enabled"
    installed.run("printf 'tcp --port 22\\ntcp --port 5432-5433\\n' >/etc/vmloop/stream.rules")
    try:
        assert state() == "inactive"
        for name in names:
            installed.run(["insmod", str(modules / f"{name}.ko")])
        assert state() == "active"
        rules = json.loads(installed.run("vmloop stream rules --json").out)
        assert [one["ports"] for one in rules] == [[22, 22], [5432, 5433]]
        added_rule_outlives_an_upgrade()
        installed.run("echo udp >/etc/vmloop/stream.rules; ! systemctl restart vmloop-stream-rules")
        assert "all connections stay on TCP" in installed.run("journalctl -q -u vmloop-stream-rules -b --no-pager").out
        # Mended, the file would be loaded by a start of the unit, which has failed.
        installed.run("echo 'tcp --port 22' >/etc/vmloop/stream.rules")
        added_rule_outlives_an_upgrade()
    finally:
        installed.run(f"rmmod {' '.join(reversed(names))}; rm -f /etc/vmloop/stream.rules", check=False)
