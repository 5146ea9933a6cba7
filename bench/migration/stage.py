# SPDX-License-Identifier: GPL-2.0
"""The stage: two hosts with an agent each, g1 that stays on the first, g2 that moves."""

import json
import subprocess
from typing import Any

from vmlab import Guest, Host, Lab, paths
from vmlab.errors import VmlabError
from vmlab.process import Process

from ..path.stage import BIN, wait_for
from .hosts import HOSTS

TOOLS = paths.OUT / "guest-tools"
HERE = "/run/vmloop-test"
"""Where each machine has its own copy of the programs."""

POLICY = "idle_ms = 0\n"


def build_tools() -> None:
    """Compile what runs in guests."""
    subprocess.run(["make", "-s", "-C", paths.REPO / "tests/guest/tools"], check=True)


class Stage:
    """vmloop on both hosts of a lab and in both guests."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.kind = HOSTS[lab.kind.name]
        self.g1 = lab.guest("g1")
        self.g2 = lab.guest("g2")
        self.agents: dict[str, Process] = {}
        self.events: dict[str, Process] = {}
        """What each agent tells as it happens."""

    def patient(self, seconds: float) -> float:
        """How long to wait here for what may take so long on KVM hosts."""
        return seconds * self.kind.patience

    # The agents

    def ensure(self) -> None:
        """Programs, agents and modules are where they are to be."""
        for host in self.lab.hosts.values():
            if host.run(["test", "-e", f"{HERE}/policy.toml"], check=False).code:
                programs = f"{BIN}/vmloopd {BIN}/vmloop"
                host.run(f"mkdir -p {HERE} && cp {programs} {HERE}/ && cat >{HERE}/policy.toml", stdin=POLICY)
            agent = self.agents.get(host.name)
            if agent is None or agent.poll() is not None:
                self.start_agent(host)
        for guest in (self.g1, self.g2):
            if guest.run(["test", "-e", f"{HERE}/ready"], check=False).code:
                self.prepare_guest(guest)

    def start_agent(self, host: Host) -> None:
        """Start a host's agent; returns when it answers."""
        log = f"/run/vmlab/lab/{host.name}/vmloopd.log"
        # As vmloopd.service says.
        command = f"nice -n -5 {HERE}/vmloopd --policy {HERE}/policy.toml {self.kind.agent_options} --log-level debug"
        agent = self.agents[host.name] = host.popen(f"exec {command} >>{log} 2>&1")

        def answers() -> bool:
            if agent.poll() is not None:
                raise VmlabError(f"vmloopd ended: see {self.lab.directory}/{host.name}/vmloopd.log")
            return self.command(host, "status", check=False).code == 0

        wait_for(answers, self.patient(30), f"vmloopd answers on {host.name}")
        self.events[host.name] = host.popen([f"{HERE}/vmloop", "--host", "events", "--json"])

    def kill_agent(self, host: Host) -> None:
        """SIGKILL to a host's agent."""
        agent = self.agents.pop(host.name)
        agent.kill()
        agent.wait(20)

    def without(self) -> None:
        """End vmloop on both hosts, while g2 is apart: nothing of it stands in any guest's way.

        ensure() has it back.
        """
        for host in self.lab.hosts.values():
            if self.kind.has_hook:
                for name in [guest.name for guest in (self.g1, self.g2) if guest.host is host]:
                    self.command(host, "detach", name)
            self.kill_agent(host)

    def command(self, host: Host, *words: str, check: bool = True, timeout: float = 60) -> Any:
        """Run the vmloop command on a host."""
        return host.run([f"{HERE}/vmloop", "--host", *words], check=check, timeout=timeout)

    def known(self, host: Host, name: str) -> str:
        """What a host's agent says of a guest; empty if it knows none of that name."""
        listing = json.loads(self.command(host, "ls", "--json").out)
        return next((str(one["state"]) for one in listing["guests"] if one["name"] == name), "")

    def channels(self, host: Host) -> list[dict[str, Any]]:
        """The channels of which a host's agent knows."""
        found: list[dict[str, Any]] = json.loads(self.command(host, "ls", "--json").out)["channels"]
        return found

    # The guests

    def prepare_guest(self, guest: Guest) -> None:
        """Give a guest its programs, which come over the agent's line, and load the modules."""
        guest.run(["mkdir", "-p", HERE])
        for name in ("beat", "control", "stream", "turns"):
            guest.put(TOOLS / name, f"{HERE}/{name}")
        guest.run(f"modprobe -a {' '.join(self.kind.modules)} && touch {HERE}/ready", timeout=self.patient(120))

    def state(self, guest: Guest, peer: Guest) -> str:
        """State of the channel to a peer; "gone" if the directory has it not."""
        peers = json.loads(guest.run([f"{HERE}/control", "peers"]).out)
        return next((str(one["state"]) for one in peers if one["name"] == peer.name), "gone")

    def drops(self, guest: Guest, peer: Guest) -> int:
        """Frames from a peer that a guest dropped since it knows it."""
        peers = json.loads(guest.run([f"{HERE}/control", "peers"]).out)
        stats: dict[str, int] = next((one["stats"] for one in peers if one["name"] == peer.name), {})
        return sum(count for name, count in stats.items() if name.startswith("drop_"))

    def is_up(self) -> bool:
        """Whether both use the channel."""
        return self.state(self.g1, self.g2) == self.state(self.g2, self.g1) == "up"

    # Migrations

    @property
    def other(self) -> Host:
        """The host on which g2 is not."""
        here = self.g2.host
        return next(host for host in self.lab.hosts.values() if host is not here)

    def clock(self, host: Host) -> float:
        """A host's clock, in seconds since the epoch."""
        return float(host.run(["date", "+%s.%N"]).out)

    def told(self, host: Host) -> list[dict[str, Any]]:
        """What a host's agent has told since it was started."""
        return [json.loads(line) for line in self.events[host.name].out.splitlines() if line.endswith("}")]

    def first(self, host: Host, event: str, after: float) -> float:
        """When a host's agent first told of an event after that, by the host's clock."""
        times: list[float] = []

        def is_there() -> bool:
            times[:] = [float(one["time"]) for one in self.told(host) if one["event"] == event and one["time"] >= after]
            return bool(times)

        wait_for(is_there, self.patient(5), f"the agent on {host.name} tells of {event}")
        return times[0]


class Detached:
    """A command in a guest that moves: it lives on when its line to the outside does not.

    Its output is a file in the guest.
    """

    def __init__(self, guest: Guest, name: str, command: str) -> None:
        self.guest = guest
        self.file = f"/tmp/{name}"
        run = f"{command} >{self.file}.out 2>{self.file}.err & echo $! >{self.file}.pid"
        script = f"{run}; wait $!; echo $? >{self.file}.status"
        begun = f"until [ -s {self.file}.pid ]; do sleep 0.01; done"
        guest.run(f"rm -f {self.file}.*; setsid -f sh -c '{script}' >/dev/null 2>&1 </dev/null; {begun}")

    def out(self, kind: str = "out") -> str:
        """What it printed until now."""
        return self.guest.run(["cat", f"{self.file}.{kind}"]).out

    def last(self) -> list[str]:
        """Words of the last whole line that it printed."""
        return (
            self.guest.run(["tail", "-n", "2", f"{self.file}.out"]).out.rpartition("\n")[0].rpartition("\n")[2].split()
        )

    def wait_for(self, text: str, seconds: float = 20) -> None:
        """Wait until it has printed something."""
        wait_for(lambda: text in self.out(), seconds, f"{self.file} says {text!r}")

    def has_ended(self) -> bool:
        """By itself, or killed."""
        return not self.guest.run(["test", "-e", f"{self.file}.status"], check=False).code

    def end(self, seconds: float = 30) -> int:
        """SIGTERM; returns its status."""
        self.guest.run(f"kill -TERM $(cat {self.file}.pid)", check=False)
        return self.wait(seconds)

    def wait(self, seconds: float = 30) -> int:
        """Wait for its end; returns its status."""
        status = f"{self.file}.status"
        wait_for(lambda: bool(self.guest.run(f"cat {status} 2>/dev/null", check=False).out.strip()), seconds, status)
        return int(self.guest.run(["cat", status]).out)

    def kill(self) -> None:
        """SIGKILL, whatever it does. A guest that does not answer any more keeps nobody waiting."""
        self.guest.run(f"kill -KILL $(cat {self.file}.pid) 2>/dev/null", check=False, timeout=5)
