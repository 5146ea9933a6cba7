# SPDX-License-Identifier: GPL-2.0
"""A lab: one host machine or two (outer QEMUs), and their guests (inner ones)."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from . import dilation, emulator, kernels, paths, silence
from .console import ConsoleWatch, Finding
from .errors import CommandFailed, ConsoleFailed, GuestFailed, LabFailed, VmlabError
from .kinds import HostKind, Outer, find_kind
from .machine import Guest, Host
from .migration import migrate
from .process import allowed
from .qemu import FIRST_HOST, GuestSpec


@dataclass(frozen=True)
class Evidence:
    """What was kept of a test."""

    directory: Path
    silent: dict[str, silence.Silence]
    """The guests of a KVM host that did not answer, by name."""


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone.

    With the pid it names a process for good: pids are used again.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def qemu_keys(hosts: list[str]) -> list[str]:
    """Under which keys of its state a lab has the processes of these hosts."""
    return ["qemu" if name == FIRST_HOST else f"qemu-{name}" for name in hosts]


class Lab:
    """A lab, running or not. Labs are made with Lab.up() and found with Lab.open().

    All that describes it is in its directory, so that any number of processes
    can use it at the same time.
    """

    def __init__(self, name: str) -> None:
        self.name = paths.check_name(name)
        self.directory = paths.lab_dir(name)
        self.run_dir = paths.runtime_dir(name)
        self.switch_socket = self.run_dir / "switch.sock"
        self._state: dict[str, Any] = {}
        self.host = Host(self)
        self._hosts = {FIRST_HOST: self.host}
        self._guests: dict[str, Guest] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self.watch = ConsoleWatch()

    # Life of a lab

    @classmethod
    def up(
        cls,
        name: str = "lab",
        guests: int = 0,
        *,
        kind: str = "kvm",
        hosts: int = 1,
        kernel: str = kernels.DEFAULT,
        host_kernel: str = kernels.DEFAULT,
        machine: str = "",
        mtu: int = 1500,
        memory: int | None = None,
        cpus: int = 0,
        guest_memory: int | None = None,
        guest_cpus: int = 0,
        append: str = "",
        modules: str | Path | None = None,
        accelerator: str = "auto",
        virtual_time: bool = False,
        init: str = "",
        bound: bool = False,
    ) -> "Lab":
        """Boot a host and its guests g1 to gN.

        ``kind`` is the host's, kvm or xen, or ``solo`` for a machine by itself, named
        host: ``kernel``, ``append`` and ``modules`` are that one's, and ``cpus`` its
        number of CPUs. With ``hosts=2`` there are two, host and
        host2, with one br0; guests take turns (g1 on host, g2 on host2, ...) and can
        be migrated; ``memory`` is that of each host. ``kernel``, ``machine``, ``mtu``,
        ``guest_memory``, ``guest_cpus`` (0: as many as the stage allows), ``append`` and ``modules`` are the
        guests' defaults. ``virtual_time`` has the clocks of
        a Xen host go by the instructions that were executed. ``init="systemd"``
        makes systemd process 1 of a KVM host. ``bound`` ties the
        lab's life to this process. Raises LabFailed or GuestFailed when
        something does not boot in time, VmlabError when something is missing
        or the lab is up already.
        """
        lab = cls(name)
        with lab._locked():
            if lab._load() and lab.running:
                raise VmlabError(f"lab {name} is up already: './vmlab down --name {name}' ends it")
            host = find_kind(kind)
            host.check_guests(guests, cpus)
            outer = kernels.find_kernel(host_kernel if host.has_guests else kernel)
            machine = host.check_machine(machine or host.machines[0])
            defaults: dict[str, Any] = {
                "kernel": kernel, "machine": machine, "mtu": mtu, "memory": guest_memory, "extra_append": append,
                "cpus": guest_cpus or host.guest_cpus(virtual_time, hosts),
            }  # fmt: skip
            if modules is not None:
                if not Path(modules).is_dir():
                    raise VmlabError(f"--modules {modules}: no such directory")
                defaults["modules"] = str(Path(modules).resolve())
            if guest_memory is None:
                del defaults["memory"]  # what the guest's kernel needs
            kernels.find_kernel(kernel)
            host.check_hosts(hosts, virtual_time)
            defaults["movable"] = hosts > 1
            if init and (init, kind) != ("systemd", "kvm"):
                raise VmlabError(f"{init} as process 1 of a {kind} host: there is systemd on a KVM host, and no other")
            chosen = host.choose_accelerator(accelerator, virtual_time)
            lab._boot_hosts(
                host, outer, memory or host.memory, chosen, virtual_time, defaults, bound, hosts, cpus, init
            )
        try:
            for one in lab.hosts.values():
                one.run("true", timeout=host.boot_seconds * hosts)
                if host.has_guests:
                    one.ensure_bridge("br0", mtu=mtu, subnet=0)
            # All start at once; their boots overlap.
            fresh = [lab.add_guest(boot=False) for _ in range(guests)]
            with ThreadPoolExecutor(max_workers=4) as pool:
                for done in [pool.submit(guest.start) for guest in fresh]:
                    done.result()
        except BaseException as error:
            if isinstance(error, VmlabError) and not isinstance(error, GuestFailed):
                error = LabFailed(f"lab {name} did not boot: {error} (console: {lab.directory}/host/console.log)")
            lab.down()
            raise error from None
        return lab

    @classmethod
    def open(cls, name: str = "lab") -> "Lab":
        """The running lab ``name``. Raises VmlabError when there is none."""
        lab = cls(name)
        if not lab._load() or not lab.running:
            raise VmlabError(f"no lab {name} is up: start it with './vmlab up kvm|xen --name {name}'")
        lab.watch.read_new(lab.console_files())  # what was before is not ours
        return lab

    def down(self) -> None:
        """End the lab: only processes that it started, known by pid and start time."""
        if not self._load():
            return
        for key in ("switch", *qemu_keys(list(self.hosts))):
            for number in (signal.SIGTERM, signal.SIGKILL):
                if not self._signal(key, number):
                    break
                deadline = time.monotonic() + 5
                while self._alive(key) and time.monotonic() < deadline:
                    if self._child:
                        self._child.poll()
                    time.sleep(0.02)
        if self._child:
            self._child.wait()
        (self.directory / "state.json").unlink(missing_ok=True)
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def __enter__(self) -> "Lab":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def kind(self) -> HostKind:
        """What kind of host the lab has."""
        if not self._state:
            self._load()
        return find_kind(self._state.get("kind", "kvm"))

    @property
    def running(self) -> bool:
        """Whether the lab's switch, and so its outer machine, is alive."""
        return self._alive("switch")

    @property
    def hosts(self) -> dict[str, Host]:
        """All hosts by name, the first one first."""
        if not self._state:
            self._load()
        for number, name in enumerate(self._state.get("hosts", [FIRST_HOST]), 1):
            if name not in self._hosts:
                self._hosts[name] = Host(self, name, number)
        return dict(self._hosts)

    # Guests

    @property
    def guests(self) -> dict[str, Guest]:
        """All guests by name, in the order of their making."""
        self._load()
        for name, values in self._state.get("guests", {}).items():
            if name not in self._guests:
                self._guests[name] = Guest(self, GuestSpec(**values))
            # Another process may have moved it.
            self._guests[name].spec.host = values.get("host", FIRST_HOST)
        return dict(self._guests)

    def guest(self, name: str) -> Guest:
        """The guest called ``name``. Raises VmlabError when there is none."""
        found = self.guests.get(name)
        if found is None:
            have = ", ".join([*self.hosts, *self.guests])
            raise VmlabError(f"lab {self.name} has no machine {name!r}: it has {have}")
        return found

    def machine(self, name: str) -> Host | Guest:
        """A host or a guest by name."""
        return self.hosts.get(name) or self.guest(name)

    def add_guest(self, name: str | None = None, *, boot: bool = True, **options: Any) -> Guest:
        """Define one more guest and boot it.

        ``options`` are fields of GuestSpec (kernel, machine, memory, cpus, mtu,
        bridge, vlan, subnet, modules, root_ports, extra_args, extra_append, host);
        what is left out is as given to Lab.up().
        """
        self.kind.check_guests(1, 0)
        with self._locked():
            self._load()
            guests = self._state["guests"]
            index = 1 + max((values["index"] for values in guests.values()), default=0)
            name = paths.check_name(name or f"g{index}")
            hosts = list(self.hosts)
            if name in guests or name in (*hosts, "evidence"):
                raise VmlabError(f"lab {self.name} has a machine {name} already")
            if index > 200:
                raise VmlabError("a lab has at most 200 guests")
            try:
                turn = {"host": hosts[(index - 1) % len(hosts)]}
                spec = GuestSpec(name=name, index=index, **(self._state["defaults"] | turn | options))
                self.kind.check_machine(spec.machine)
                suited = self.kind.guest_append(spec.machine, self._state["defaults"]["machine"])
                spec.extra_append = f"{spec.extra_append} {suited}".strip()
                if spec.host not in hosts:
                    raise VmlabError(f"no host {spec.host!r}: choose one of {', '.join(hosts)}")
            except TypeError as error:
                raise VmlabError(f"add_guest: {error}") from error
            guests[name] = asdict(spec)
            self._save()
        guest = self.guest(name)
        if boot:
            guest.start()
        return guest

    def migrate(
        self, name: str, host: str, start: Callable[[str], None] | None = None, seconds: float = 600
    ) -> float | None:
        """Move a guest to another host while it runs.

        ``start`` is called with the URI once the host there waits, and is to have
        the one here migrate to it; without it the lab does, by QMP or ``xl migrate``.
        Commands that run in the guest by popen() are killed: start with ``setsid -f``
        what must live on. Raises GuestFailed when the migration fails or takes longer than
        ``seconds``; the guest is then where it was. Returns for how many seconds the guest stood still, by its
        hypervisor's account; None on Xen, which has none.
        """
        guest = self.guest(name)
        if host not in self.hosts:
            raise VmlabError(f"no host {host!r}: choose one of {', '.join(self.hosts)}")
        if not guest.spec.movable:
            raise VmlabError(f"{name} uses 9p: only guests of a lab with two hosts can be migrated")
        return migrate(guest, self.hosts[host], start, seconds)

    def placed(self, name: str, host: str) -> None:
        """Remember where a guest is."""
        with self._locked():
            self._load()
            self._state["guests"][name]["host"] = host
            self._save()
        self.guest(name)

    def remove_guest(self, name: str) -> None:
        """Kill a guest and forget it; its logs stay until the lab's next boot."""
        self.guest(name).kill()
        with self._locked():
            self._load()
            del self._state["guests"][name]
            self._save()
        del self._guests[name]

    # Evidence

    def console_files(self) -> dict[str, Path]:
        """Console of every machine, by the machine's name."""
        return {name: self.directory / name / "console.log" for name in [*self.hosts, *self.guests]}

    def findings(self) -> list[Finding]:
        """What the kernels' own checks printed on any console since the last call."""
        return [self._blamed(one) for one in self.watch.check(self.console_files())]

    def _blamed(self, finding: Finding) -> Finding:
        """The same with the machine that it is about: a hypervisor speaks of guests."""
        if finding.machine not in self.hosts:
            return finding
        domains: dict[int, str] = {}
        for name, guest in self.guests.items():
            file = self.directory / name / guest.on(self.hosts[finding.machine]).own_file("domids")
            if file.exists():
                domains |= {int(word): name for word in file.read_text().split()}
        blamed = self.kind.blame(finding.line, domains)
        return finding if blamed == FIRST_HOST else replace(finding, machine=blamed)

    def check_consoles(self) -> None:
        """Raise if a console shows a BUG, WARNING, lockdep report, stall or the like.

        ConsoleFailed (a GuestFailed) when a guest printed it, LabFailed when
        only the host did. Each line is reported once.
        """
        found = self.findings()
        guests = [str(one) for one in found if not self.kind.has_guests or one.machine not in self.hosts]
        if guests:
            raise ConsoleFailed("a guest's kernel complains:\n" + "\n".join(guests[:20]))
        if found:
            raise LabFailed("the host's kernel complains:\n" + "\n".join(map(str, found[:20])))

    def keep_evidence(self, test: str) -> Evidence:
        """Copy consoles, QEMU and QMP logs, the lab's own state and each machine's dmesg for ``test``.

        Of a guest that does not answer, what is seen from outside: silence.txt.
        """
        silent: dict[str, silence.Silence] = {}
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in test)[-150:]
        target = self.directory / "evidence" / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for kept in ("state.json", "switch.json", "switch.log"):
            if (self.directory / kept).exists():
                shutil.copy2(self.directory / kept, target / kept)
        answers = {name: self.running and host.answers(10) for name, host in self.hosts.items()}
        for machine in [*self.hosts, *self.guests]:
            (target / machine).mkdir(parents=True)
            for log in (self.directory / machine).glob("*"):
                if log.is_file():
                    shutil.copy2(log, target / machine / log.name)
            if not answers[self.machine(machine).host.name]:
                continue
            try:
                if machine in self.hosts or self.guest(machine).answers():
                    with self.machine(machine).popen(["dmesg"]) as process:
                        text = process.wait(10).out
                    (target / machine / "dmesg.txt").write_text(text)
                elif self.kind.name == "kvm" and self.guest(machine).running:
                    silent[machine] = silence.look_at(self.guest(machine))
                    (target / machine / "silence.txt").write_text(silent[machine].text)
            except (CommandFailed, GuestFailed, LabFailed) as error:
                (target / machine / "dmesg.txt").write_text(f"not to be had: {error}\n")
        return Evidence(target, silent)

    # State

    def _boot_hosts(
        self, kind: HostKind, kernel: kernels.Kernel, memory: int, accelerator: str, virtual_time: bool,
        defaults: dict[str, Any], bound: bool, count: int, cpus: int, init: str,
    ) -> None:  # fmt: skip
        factor = dilation.factor(accelerator, virtual_time)
        qemu = emulator.find(kind.needs_svm(defaults["machine"]) and accelerator == "tcg")
        version = qemu.version()
        host_dir = self.directory / "host"
        host_dir.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.run_dir, ignore_errors=True)
        self.run_dir = paths.runtime_dir(self.name)
        for old in self.directory.iterdir():
            if old.is_dir() and old.name != "evidence":
                shutil.rmtree(old)
        names = [FIRST_HOST, *(f"host{number}" for number in range(2, count + 1))]
        for name in names:
            (self.directory / name).mkdir()
            (self.run_dir / name).mkdir()
        modules = kernels.stage_modules(kernel, None, "plain")
        if not kind.has_guests:
            modules = self._stage_own(kernel, defaults)
        outers = [
            Outer(
                self.name, kernel, modules, self.directory, self.run_dir / name, memory, accelerator, virtual_time,
                defaults["machine"], name, number if count > 1 else 0, cpus, defaults["extra_append"],
                qemu, init,
            )
            for number, name in enumerate(names, 1)
        ]  # fmt: skip
        config = {
            "hosts": {outer.host: kind.outer_command(outer) for outer in outers},
            "run_dir": str(self.run_dir),
            "environment": {**qemu.environment, **dilation.environment(factor)},
        }
        (self.directory / "switch.json").write_text(json.dumps(config, indent=1))
        environ = dict(os.environ, PYTHONPATH=str(paths.LAB_SOURCE))
        if bound:
            environ["VMLAB_PDEATHSIG"] = str(os.getpid())
        (self.directory / "qemu.pids").unlink(missing_ok=True)
        with open(self.directory / "switch.log", "wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "vmlab.switch", str(self.directory)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ,
                start_new_session=True, cwd="/",
            )  # fmt: skip
        self._child = child
        deadline = time.monotonic() + allowed(15)
        while not self.switch_socket.exists():
            if child.poll() is not None or time.monotonic() > deadline:
                child.kill()
                child.wait()
                logs = [self.directory / name / "qemu.log" for name in names]
                logs = [*(log for log in logs if log.exists()), self.directory / "switch.log"]
                text = "".join(log.read_text() for log in logs)
                raise LabFailed(f"the outer machine did not start: {text.strip()[-800:] or 'no message'}")
            time.sleep(0.02)
        pids = json.loads((self.directory / "qemu.pids").read_text())
        self._state = {
            "name": self.name,
            "kind": kind.name,
            "virtual_time": virtual_time,
            "dilation": factor,
            "accelerator": accelerator,
            "emulator": version,
            "memory": memory,
            "host_kernel": kernel.release,
            "hosts": names,
            "switch": [child.pid, start_time(child.pid)],
            **{key: [pids[name], start_time(pids[name])] for name, key in zip(names, qemu_keys(names), strict=True)},
            "defaults": defaults,
            "guests": {},
        }
        self._save()

    def _stage_own(self, kernel: kernels.Kernel, defaults: dict[str, Any]) -> Path:
        """Put the newest modules of the outside where a solo machine sees them."""
        extra = Path(defaults["modules"]) if "modules" in defaults else kernels.default_modules(kernel)
        return kernels.stage_modules(kernel, extra, self.name)

    def stage_modules(self) -> None:
        """Do so again: the next modprobe in this lab's solo machine, or in its guests, loads the newest ones."""
        if not self.kind.has_guests:
            self._stage_own(kernels.find_kernel(self._state["defaults"]["kernel"]), self._state["defaults"])
        for guest in self.guests.values():
            guest.stage_modules()

    def _alive(self, key: str) -> bool:
        pid, started = self._state.get(key, (0, None))
        return started is not None and start_time(pid) == started

    def _signal(self, key: str, number: int) -> bool:
        """Signal one of our processes if it is still the one that we started."""
        if not self._alive(key):
            return False
        try:
            os.kill(self._state[key][0], number)
        except ProcessLookupError:
            return False
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _load(self) -> bool:
        try:
            self._state = json.loads((self.directory / "state.json").read_text())
        except FileNotFoundError:
            return False
        return True

    def _save(self) -> None:
        fresh = self.directory / "state.json.new"
        fresh.write_text(json.dumps(self._state, indent=1) + "\n")
        fresh.rename(self.directory / "state.json")

    @property
    def state(self) -> dict[str, Any]:
        """What state.json holds: acceleration, kernels, processes, guests."""
        self._load()
        return self._state

    @property
    def dilation(self) -> float:
        """Seconds that pass outside while one does by the machines' clocks; 1 in virtual time, too."""
        return float(self.state["dilation"])

    def now(self) -> float:
        """Seconds since some moment in the past, as fast as the machines count them (not in virtual time)."""
        return time.monotonic() / self.dilation

    @property
    def clocks(self) -> str:
        """By what the machines' clocks go, for people."""
        if self.state["virtual_time"]:
            return "virtual: it counts the instructions that the whole host executes"
        return "real" if self.dilation == 1 else f"{self.dilation:g} times slower than real"

    def info(self) -> dict[str, Any]:
        """What './vmlab status' tells."""
        state = self.state
        sources = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
        return {
            "name": self.name,
            "kind": self.kind.name,
            "virtual_time": state["virtual_time"],
            "dilation": state["dilation"],
            "running": self.running,
            "accelerator": state["accelerator"],
            "emulator": state["emulator"],
            "host_kernel": state["host_kernel"],
            "host_cpus": int(self.host.run("nproc").out),
            "memory": state["memory"],
            "hosts": list(self.hosts),
            "host_clocksource": self.host.run(["cat", sources]).out.strip(),
            "guests": [guest.info() for guest in self.guests.values()],
        }
