# SPDX-License-Identifier: GPL-2.0
"""The machines of a lab: what a test or a person does with one."""

import json
import shlex
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import kernels, paths
from .errors import CommandFailed, CommandTimeout, GuestFailed, LabFailed, VmlabError
from .process import SLOW, Process, Result, Stream, allowed, environment, shell_argv
from .qemu import FIRST_HOST, GuestSpec

if TYPE_CHECKING:
    from .lab import Lab


ANSWER_SECONDS = 20.0


class Machine(ABC):
    """The host or a guest."""

    def __init__(self, lab: "Lab", name: str) -> None:
        self.lab = lab
        self.name = name

    @property
    @abstractmethod
    def host(self) -> "Host":
        """The host on which it is; a host is on itself."""

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
            # A machine that is silent is found out before all patience is at its end.
            if not process.ends_within(timeout):
                self.check_alive()
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
                return process.ends_within(timeout)
        except VmlabError:
            return False

    def check_alive(self) -> None:
        """Find out whose fault a silence is: raises LabFailed or GuestFailed."""
        host = self.host
        if not host.answers():
            console = self.lab.directory / host.name / "console.log"
            error = LabFailed if self.lab.kind.has_guests else GuestFailed
            raise error(f"{host.name} of lab {self.lab.name} does not answer: see {console}")
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
    """An outer machine, as seen from inside it: a KVM host, or Xen's dom0."""

    def __init__(self, lab: "Lab", name: str = FIRST_HOST, number: int = 1) -> None:
        super().__init__(lab, name)
        self.number = number
        self.ip = f"10.77.0.{number}"

    @property
    def host(self) -> "Host":
        return self

    def ensure_bridge(self, bridge: str, mtu: int = 1500, subnet: int | None = None, vlans: bool = False) -> None:
        """Make a bridge unless it exists. ``subnet`` N gives it 10.77.N.1/24 (.2 on host2).

        Of several hosts, br0 is one network.
        """
        q = shlex.quote(bridge)
        # Otherwise it has that of a port, another one with each guest that comes or goes,
        # and who talks to the host waits until that is learnt.
        mac = "" if subnet is None else f"address 52:54:00:fe:{subnet:02x}:{self.number:02x}"
        script = f"""
            if ! [ -e /sys/class/net/{q} ]; then
                ip link add {q} {mac} type bridge stp_state 0 forward_delay 0
                echo 0 >/proc/sys/net/ipv6/conf/{q}/accept_dad
            fi
            ip link set {q} mtu {mtu} up
        """
        if subnet is not None:
            ip6 = f"fd77:0:0:{subnet:x}::{self.number}" if subnet else f"fd77::{self.number}"
            script += f"ip addr replace 10.77.{subnet}.{self.number}/24 dev {q}; ip addr replace {ip6}/64 dev {q}\n"
        if bridge == "br0" and len(self.lab.hosts) > 1:
            script += f"""
                echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6
                ip link set eth0 mtu {mtu} master br0 up
            """
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
        self.inside = f"/run/vmlab/lab/{spec.name}"
        """Where the host has this guest's directory of the lab."""

    @property
    def host(self) -> Host:
        return self.lab.hosts[self.spec.host]

    def on(self, host: Host) -> "Guest":
        """The same guest as if it were on that host."""
        return Guest(self.lab, replace(self.spec, host=host.name))

    def own_file(self, name: str) -> str:
        """Name of a file in its directory that each host has one of."""
        stem, dot, end = name.partition(".")
        return name if self.spec.host == FIRST_HOST else f"{stem}-{self.spec.host}{dot}{end}"

    def start(self, wait: bool = True) -> None:
        """Start it, and wait until its agent answers."""
        if self.running:
            raise VmlabError(f"{self.name} runs already")
        self.launch()
        if wait:
            self.wait_booted()

    def launch(self, incoming: bool = False) -> None:
        """Have its host run a QEMU, or a domain; ``incoming``: one that waits for it to come."""
        spec = self.spec
        kernel = kernels.find_kernel(spec.kernel)
        here = self.lab.directory / self.name
        here.mkdir(exist_ok=True)
        self.host.ensure_bridge(
            spec.bridge, spec.mtu, spec.subnet if spec.bridge == "br0" or spec.subnet else None,
            spec.vlan is not None,
        )  # fmt: skip
        script = self.lab.kind.start_script(self, kernel, self.stage_modules(kernel), incoming)
        start = self.own_file("start.sh")
        (here / start).write_text(script)
        with open(here / "console.log", "ab") as console:
            console.write(f"vmlab: {'incoming' if incoming else 'start'}\n".encode())
        try:
            self.host.run(f"mkdir -p {spec.directory} && sh {self.inside}/{start}", timeout=2 * spec.boot_seconds)
        except CommandFailed as error:
            raise GuestFailed(f"{self.name}: it did not start: {error}") from error

    def wait_booted(self, timeout: float | None = None) -> None:
        """Wait until the guest's agent answers. Raises GuestFailed when it does not."""
        timeout = timeout or self.spec.boot_seconds
        began = time.monotonic()
        look = began + timeout * SLOW
        with self.popen(["true"]) as process:
            while True:
                try:
                    if process.ends_within(1):
                        return
                    ended = self.exit_status is not None
                except (CommandFailed, GuestFailed) as error:
                    raise self._not_booted(isinstance(error, GuestFailed), began) from error
                now = time.monotonic()
                if ended or now > began + allowed(timeout):
                    raise self._not_booted(ended, began)
                if now > look:
                    self.host.check_alive()
                    look = now + timeout * SLOW

    def _not_booted(self, ended: bool, began: float) -> GuestFailed:
        """What to say of a guest that did not boot, or whose QEMU, or domain, ended."""
        seconds = time.monotonic() - began
        self.host.check_alive()
        ended = ended or self.exit_status is not None
        if ended:
            self.wait_ended()  # its line ends before its host has its status
        why = f"but ended with status {self.exit_status}" if ended else f"within {seconds:.0f} s"
        tail = "\n".join(self.console_text().splitlines()[-5:])
        return GuestFailed(f"{self.name} did not boot {why}; its console ends with:\n{tail}")

    def stage_modules(self, kernel: kernels.Kernel | None = None) -> Path:
        """Put the newest modules of the outside where the guest sees them.

        A running guest sees them at once: its next modprobe loads them.
        """
        kernel = kernel or kernels.find_kernel(self.spec.kernel)
        extra = Path(self.spec.modules) if self.spec.modules else kernels.default_modules(kernel)
        return kernels.stage_modules(kernel, extra, self.lab.name)

    @property
    def pid(self) -> int | None:
        """Pid of its QEMU inside a KVM host, or None when it does not run."""
        file = f"{self.spec.directory}/qemu.pid"
        script = f"p=$(cat {file}) && [ -e /proc/$p/exe ] && grep -q qemu /proc/$p/comm && echo $p"
        found = self.host.run(script, check=False).out.strip()
        return int(found) if found else None

    @property
    def domid(self) -> int | None:
        """Its domain id on a Xen host, or None when it does not run."""
        from .xen import Xen

        kind = self.lab.kind
        return kind.domid(self) if isinstance(kind, Xen) else None

    @property
    def running(self) -> bool:
        """Whether the hypervisor runs it."""
        return self.lab.kind.running(self)

    @property
    def exit_status(self) -> int | None:
        """How it ended: its QEMU's status, on Xen the like; None while it runs.

        128 + N after signal N. On Xen 137 (SIGKILL) after ``xl destroy``, 134
        (SIGABRT) after a crash, 0 after it ended itself.
        """
        path = self.lab.directory / self.name / self.own_file("status")
        # A domain that was saved has ended, and may have come back.
        return int(path.read_text()) if path.exists() and not self.running else None

    def kill(self) -> None:
        """End it at once (SIGKILL to its QEMU, or ``xl destroy``), and wait for that."""
        found = self.host.run(self.lab.kind.kill_command(self), check=False)
        if found.code and self.running:
            raise GuestFailed(f"{self.name} could not be killed: {found.err.strip()}")
        self.wait_ended()

    def pause(self) -> None:
        """Have its CPUs stand still."""
        self.lab.kind.pause(self)

    def unpause(self) -> None:
        """Have them go on."""
        self.lab.kind.unpause(self)

    def stop(self) -> None:
        """End it without asking it, but let the hypervisor clean up."""
        if self.running:
            self.lab.kind.stop(self)
        self.wait_ended()

    def wait_ended(self) -> None:
        """Wait until its QEMU, or domain, is gone. One that was never started is."""
        started = (self.lab.directory / self.name / self.own_file("start.sh")).exists()
        deadline = time.monotonic() + allowed(30)
        while (started and self.exit_status is None) or self.running:
            if time.monotonic() > deadline:
                raise GuestFailed(f"{self.name}: it outlived its end")
            time.sleep(0.05)

    def qmp(self, command: str, arguments: dict[str, Any] | None = None, timeout: float = 20) -> Any:
        """One QMP command over the lab's own socket (KVM host); returns what it returned."""
        if self.lab.kind.name != "kvm":
            raise VmlabError(f"{self.name} has no QMP: lab {self.lab.name} is a {self.lab.kind.name} host")
        from .qmp import execute

        return execute(self, command, arguments or {}, timeout)

    def info(self) -> dict[str, Any]:
        """What './vmlab status' tells about it."""
        spec = self.spec
        return {
            "name": self.name, "host": spec.host, "running": self.running, "exit_status": self.exit_status,
            "kernel": spec.kernel, "machine": spec.machine, "ip": self.ip, "ip6": self.ip6,
            "mac": self.mac, "bridge": spec.bridge, "vlan": spec.vlan, "mtu": spec.mtu,
            "memory": spec.memory, "cpus": spec.cpus, "uuid": spec.uuid,
            **({"qmp": self.qmp_socket} if self.lab.kind.name == "kvm" else {"domid": self.domid}),
        }  # fmt: skip


def dump(value: Any) -> str:
    """JSON for people."""
    return json.dumps(value, indent=2)
