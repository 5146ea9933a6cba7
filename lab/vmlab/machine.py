# SPDX-License-Identifier: GPL-2.0
"""The machines of a lab: what a test or a person does with one."""

import json
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import kernels, paths
from .errors import CommandFailed, CommandTimeout, GuestFailed, LabFailed, VmlabError
from .process import Process, Result, Stream, environment, shell_argv
from .qemu import QEMU_UID, GuestSpec, guest_command

if TYPE_CHECKING:
    from .lab import Lab


ANSWER_SECONDS = 20.0


class Machine:
    """The host or a guest."""

    def __init__(self, lab: "Lab", name: str) -> None:
        self.lab = lab
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.lab.name}/{self.name}>"

    def stream(self) -> Stream:
        """A new connection to this machine's agent."""
        return Stream(self.lab.switch_socket, self.name)

    def popen(self, command: str | list[str], *, cwd: str | None = None, env: dict[str, str] | None = None) -> Process:
        """Start a command (a string is run by sh) and return it running."""
        return Process(self.stream(), shell_argv(command), cwd or str(paths.REPO), environment(self.name, env))

    def run(
        self,
        command: str | list[str],
        *,
        check: bool = True,
        timeout: float = 60,
        stdin: bytes | str = b"",
        cwd: str | None = None,
        env: dict[str, str] | None = None,
    ) -> Result:
        """Run a command to its end, at most ``timeout`` seconds.

        Raises CommandFailed when it takes longer, cannot be run, or (with
        ``check``) ends with another status than 0; GuestFailed or LabFailed
        when the machine does not live to tell.
        """
        with self.popen(command, cwd=cwd, env=env) as process:
            if stdin:
                process.write(stdin)
            process.close_stdin()
            try:
                result = process.wait(timeout)
            except CommandTimeout:
                self.check_alive()
                raise
        if check and result.code:
            text = (result.err or result.out).strip()[-1000:]
            shown = command if isinstance(command, str) else shlex.join(map(str, command))
            raise CommandFailed(f"{self.name}: {shown!r} ended with status {result.code}: {text}")
        return result

    def answers(self, timeout: float = ANSWER_SECONDS) -> bool:
        """Whether this machine's agent can still run something within ``timeout`` s."""
        try:
            with self.popen(["true"]) as process:
                process.wait(timeout)
        except VmlabError:
            return False
        return True

    def check_alive(self) -> None:
        """Find out whose fault a silence is: raises LabFailed or GuestFailed."""
        host = self.lab.host
        if not host.answers():
            console = self.lab.directory / "host" / "console.log"
            raise LabFailed(f"the host of lab {self.lab.name} does not answer: see {console}")
        if self is not host and not self.answers():
            raise GuestFailed(f"{self.name} does not answer: see {self.lab.directory}/{self.name}/console.log")

    def console_text(self) -> str:
        """All that this machine's console printed since it last started anew."""
        path = self.lab.directory / self.name / "console.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def put(self, source: Path | str, target: str, timeout: float = 120) -> None:
        """Copy a file of the outside to this machine."""
        mode = Path(source).stat().st_mode & 0o777
        quoted = shlex.quote(target)
        self.run(f"cat >{quoted} && chmod {mode:o} {quoted}", stdin=Path(source).read_bytes(), timeout=timeout)

    def get(self, source: str, target: Path | str, timeout: float = 120) -> None:
        """Copy a file of this machine to the outside."""
        with self.popen(["cat", source]) as process:
            process.close_stdin()
            result = process.wait(timeout)
            if result.code:
                raise CommandFailed(f"{self.name}: {result.err.strip()}")
            Path(target).write_bytes(process.out_bytes)


class Host(Machine):
    """The outer machine, as seen from inside it: a KVM host."""

    def __init__(self, lab: "Lab") -> None:
        super().__init__(lab, "host")

    def ensure_bridge(self, bridge: str, mtu: int = 1500, subnet: int | None = None, vlans: bool = False) -> None:
        """Make a bridge unless it exists. ``subnet`` N gives it 10.77.N.1/24."""
        q = shlex.quote(bridge)
        script = f"""
            if ! [ -e /sys/class/net/{q} ]; then
                ip link add {q} type bridge stp_state 0 forward_delay 0
                echo 0 >/proc/sys/net/ipv6/conf/{q}/accept_dad
            fi
            ip link set {q} mtu {mtu} up
        """
        if subnet is not None:
            ip6 = f"fd77:0:0:{subnet:x}::1" if subnet else "fd77::1"
            script += f"ip addr replace 10.77.{subnet}.1/24 dev {q}; ip addr replace {ip6}/64 dev {q}\n"
        if vlans:
            script += f"ip link set {q} type bridge vlan_filtering 1\n"
        self.run("set -e\n" + script)


class Guest(Machine):
    """An inner machine."""

    def __init__(self, lab: "Lab", spec: GuestSpec) -> None:
        super().__init__(lab, spec.name)
        self.spec = spec
        self.ip = spec.ip
        self.ip6 = spec.ip6
        self.mac = spec.mac
        self.qmp_socket = f"{spec.directory}/qmp.sock"
        """QMP socket inside the host that the lab leaves free for an agent."""
        self.lab_qmp_socket = f"{spec.directory}/lab-qmp.sock"

    def start(self, wait: bool = True) -> None:
        """Start its QEMU, and wait until the guest answers."""
        if self.running:
            raise VmlabError(f"{self.name} runs already")
        spec = self.spec
        kernel = kernels.find_kernel(spec.kernel)
        initramfs = kernels.build_initramfs(kernel)
        command = guest_command(spec, kernel.image, initramfs, self.stage_modules(kernel))
        here = self.lab.directory / self.name
        here.mkdir(exist_ok=True)
        inside = f"/run/vmlab/lab/{self.name}"
        self.lab.host.ensure_bridge(
            spec.bridge, spec.mtu, spec.subnet if spec.bridge == "br0" or spec.subnet else None,
            spec.vlan is not None,
        )  # fmt: skip
        vlan = (
            f"bridge vlan del dev {spec.tap} vid 1 && "
            f"bridge vlan add dev {spec.tap} vid {spec.vlan} pvid untagged || exit"
            if spec.vlan is not None
            else ""
        )
        # The console's file is on the outside, where it outlives everything;
        # it is opened here as QEMU's user may not write there.
        script = f"""#!/bin/sh
# Starts guest {spec.name} inside the host.
cd {spec.directory}
if [ "${{1-}}" = run ]; then
    trap '' HUP
    setpriv --reuid={QEMU_UID} --regid={QEMU_UID} --clear-groups \\
        --inh-caps=+dac_read_search --ambient-caps=+dac_read_search \\
        sh -c 'echo $$ >qemu.pid; exec "$@"' sh \\
        {shlex.join(command)} >{inside}/qemu.log 2>&1
    echo $? >{inside}/status.new
    ip link del {spec.tap}
    mv {inside}/status.new {inside}/status
    exit
fi
rm -f *.sock qemu.pid {inside}/status
chown {QEMU_UID}:{QEMU_UID} .
[ ! -e /sys/class/net/{spec.tap} ] || ip link del {spec.tap}
ip tuntap add dev {spec.tap} mode tap user {QEMU_UID} vnet_hdr || exit
echo 1 >/proc/sys/net/ipv6/conf/{spec.tap}/disable_ipv6
ip link set {spec.tap} master {spec.bridge} mtu {spec.mtu} up || exit
{vlan}
setsid -f sh {inside}/start.sh run 8>>{inside}/qmp.log 9>>{inside}/console.log >/dev/null 2>&1 </dev/null
tries=0
# vhost's worker is a thread of the kernel up to Linux 6.3, of QEMU's since.
until [ -S agent.sock ] && [ -S qmp.sock ] && pid=$(cat qemu.pid) &&
        {{ worker=$(pgrep -x "vhost-$pid") || grep -q '^vhost-' /proc/$pid/task/*/comm; }}; do
    tries=$((tries + 1))
    if [ $tries -gt 3000 ] || [ -e {inside}/status ]; then
        cat {inside}/qemu.log >&2
        exit 1
    fi
    sleep 0.01
done
# The kernel's does not inherit that CPU 0 is out of bounds.
for thread in $worker; do
    taskset -cp "$(taskset -cp $$ | sed 's/.*: //')" $thread
done
"""
        (here / "start.sh").write_text(script)
        with open(here / "console.log", "ab") as console:
            console.write(b"vmlab: start\n")
        try:
            self.lab.host.run(f"mkdir -p {spec.directory} && sh {inside}/start.sh", timeout=60)
        except CommandFailed as error:
            raise GuestFailed(f"{self.name}: its QEMU did not start: {error}") from error
        if wait:
            self.wait_booted()

    def wait_booted(self, timeout: float | None = None) -> None:
        """Wait until the guest's agent answers. Raises GuestFailed when it does not."""
        timeout = timeout or self.spec.boot_seconds
        try:
            with self.popen(["true"]) as process:
                process.wait(timeout)
        except CommandFailed as error:
            self.lab.host.check_alive()
            tail = "\n".join(self.console_text().splitlines()[-5:])
            why = f"{self.name} did not boot within {timeout:.0f} s"
            raise GuestFailed(f"{why}; its console ends with:\n{tail}") from error

    def stage_modules(self, kernel: kernels.Kernel | None = None) -> Path:
        """Put the newest modules of the outside where the guest sees them.

        A running guest sees them at once: its next modprobe loads them.
        """
        kernel = kernel or kernels.find_kernel(self.spec.kernel)
        extra = Path(self.spec.modules) if self.spec.modules else kernels.default_modules(kernel)
        return kernels.stage_modules(kernel, extra, self.lab.name)

    @property
    def pid(self) -> int | None:
        """Pid of its QEMU inside the host, or None when it does not run."""
        file = f"{self.spec.directory}/qemu.pid"
        script = f"p=$(cat {file}) && [ -e /proc/$p/exe ] && grep -q qemu /proc/$p/comm && echo $p"
        found = self.lab.host.run(script, check=False).out.strip()
        return int(found) if found else None

    @property
    def running(self) -> bool:
        """Whether its QEMU runs."""
        return self.pid is not None

    @property
    def exit_status(self) -> int | None:
        """How its QEMU ended (128 + N after signal N); None while it runs."""
        path = self.lab.directory / self.name / "status"
        return int(path.read_text()) if path.exists() else None

    def kill(self) -> None:
        """SIGKILL to its QEMU, and wait for its end."""
        pid = self.pid
        if pid is not None:
            self.lab.host.run(["kill", "-KILL", str(pid)], check=False)
        deadline = time.monotonic() + 20
        while self.running or self.exit_status is None:
            if time.monotonic() > deadline:
                raise GuestFailed(f"{self.name}: its QEMU outlived SIGKILL")
            time.sleep(0.05)

    def stop(self) -> None:
        """End its QEMU without asking the guest, but let QEMU clean up."""
        if self.running:
            self.qmp("quit")
        deadline = time.monotonic() + 20
        while self.running or self.exit_status is None:
            if time.monotonic() > deadline:
                raise GuestFailed(f"{self.name}: its QEMU did not quit")
            time.sleep(0.05)

    def qmp(self, command: str, arguments: dict[str, Any] | None = None, timeout: float = 20) -> Any:
        """One QMP command over the lab's own socket; returns what it returned."""
        from .qmp import execute

        return execute(self, command, arguments or {}, timeout)

    def info(self) -> dict[str, Any]:
        """What './vmlab status' tells about it."""
        spec = self.spec
        return {
            "name": self.name, "running": self.running, "exit_status": self.exit_status,
            "kernel": spec.kernel, "machine": spec.machine, "ip": self.ip, "ip6": self.ip6,
            "mac": self.mac, "bridge": spec.bridge, "vlan": spec.vlan, "mtu": spec.mtu,
            "memory": spec.memory, "cpus": spec.cpus, "uuid": spec.uuid, "qmp": self.qmp_socket,
        }  # fmt: skip


def dump(value: Any) -> str:
    """JSON for people."""
    return json.dumps(value, indent=2)
