# SPDX-License-Identifier: GPL-2.0
"""vmloop at work in a lab: agent, modules, channels, counters, long transfers.

Everything here waits for states, never for a time: until() polls with a
deadline, and says what it waited for when that passes.
"""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from vmlab import CommandFailed, Guest, Lab, Machine, paths
from vmlab.process import Process, allowed

TOOLS = paths.OUT / "guest-tools"
BIN = Path(os.environ.get("VMLOOP_BIN") or paths.OUT / "bin")
"""Where the agent and the command are: what `make host` built, or another build of them."""
HERE = "/run/vmloop-test"
"""Where a machine has its own copies of all programs."""

TRANSPORTS = {"kvm": "vmloop_ivshmem", "xen": "vmloop_xen"}
"""What guests of each kind of host share memory by."""

DROPS = ("drop_source", "drop_destination", "drop_vlan", "drop_malformed", "drop_memory", "drop_interface")

POLICY = """\
# of the tests: everybody may talk, and no channel is closed for being idle
idle_ms = 0
"""

STALLS: list[dict[str, Any]] = []
"""The longest stall of each transfer that something was done to."""

T = TypeVar("T")


def until(look: Callable[[], T], seconds: float, what: str, seen: Any = None) -> T:
    """Look again and again until it finds something true; return that.

    ``seen``, which ``look`` may change, is shown where it never did.
    """
    deadline = time.monotonic() + allowed(seconds)
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {allowed(seconds):g} s: {what} (last seen: {seen or found!r})")
        time.sleep(0.03)


def at_once(*things: Callable[[], T]) -> list[T]:
    """Do several things in machines at the same time; what each returned, in this order.

    Whatever it is, a program is started for it, which takes an emulated machine its time.
    """
    with ThreadPoolExecutor(max(1, len(things))) as threads:
        return [one.result() for one in [threads.submit(thing) for thing in things]]


@contextmanager
def known_neighbours(*guests: Guest) -> Iterator[None]:
    """Nobody asks by ARP or neighbour discovery for the time of the block."""

    def learn(guest: Guest) -> None:
        for other in guests:
            if other is not guest:
                guest.run(f"ip neigh replace {other.ip} dev eth0 lladdr {other.mac} nud permanent")

    at_once(*(partial(learn, guest) for guest in guests))
    try:
        yield
    finally:
        forget = "ip neigh flush dev eth0 nud permanent"
        at_once(*(partial(guest.run, forget, check=False) for guest in guests))


def set_up_eth0(guest: Guest) -> None:
    """Give eth0, which was taken away and is back, what it has after a boot."""
    spec = guest.spec
    guest.run(f"""
        cd /proc/sys/net/ipv6/conf/eth0 && echo 0 >accept_dad && echo 0 >accept_ra &&
        ip addr add {spec.ip}/24 broadcast + dev eth0 && ip addr add {spec.ip6}/64 dev eth0 &&
        ip link set eth0 mtu {spec.mtu} up && ip route add default via 10.77.{spec.subnet}.1
    """)


def build_tools() -> None:
    """Compile what runs in guests."""
    subprocess.run(["make", "-s", "-C", paths.REPO / "tests/guest/tools"], check=True)


@dataclass(frozen=True)
class Counters:
    """What one guest has counted for one peer."""

    state: str
    tag: int
    stats: dict[str, int]
    peer: dict[str, Any]

    def __getitem__(self, name: str) -> int:
        return self.stats[name]


@dataclass
class Carried:
    """What went through a channel during a block, seen from both ends."""

    a: str
    b: str
    there: dict[str, int] = field(default_factory=dict)
    """What a counted for b."""
    back: dict[str, int] = field(default_factory=dict)
    """What b counted for a."""
    standard: dict[str, int] = field(default_factory=dict)
    """Bytes that passed each guest's tap device in the host."""

    def __str__(self) -> str:
        there, back = ({name: n for name, n in one.items() if n} for one in (self.there, self.back))
        return f"{self.a}: {there}, {self.b}: {back}, taps: {self.standard}"


class Transfer:
    """A long TCP stream of known content from one guest to another."""

    def __init__(self, receiver: Process, sender: Callable[[], Process], slow: float) -> None:
        self.slow = slow
        self.receiver = receiver
        receiver.wait_for("ready", 20 * slow)
        self.sender = sender()
        self.report: dict[str, Any] = {}
        self.wait_bytes(1)

    @property
    def bytes(self) -> int:
        """Bytes that have arrived, a tenth of a second ago at most."""
        lines = [line.split() for line in self.receiver.out.splitlines()]
        numbers = [int(words[1]) for words in lines if len(words) == 3]
        return numbers[-1] if numbers else 0

    def check(self) -> None:
        """Raise unless both ends are at work."""
        for process, name in ((self.sender, "sender"), (self.receiver, "receiver")):
            code = process.poll()
            assert code is None, f"the {name} ended with status {code}: {process.err}"

    def wait_bytes(self, count: int, seconds: float = 20) -> None:
        """Wait until so many more bytes have arrived."""
        target = self.bytes + count

        def arrived() -> bool:
            self.check()
            return self.bytes >= target

        until(arrived, seconds * self.slow, f"{count} more bytes of the transfer")

    def finish(self) -> float:
        """End it in order; every byte must have arrived. Returns the longest stall in seconds."""
        self.check()
        self.sender.terminate()
        sent = self.sender.wait(30 * self.slow)
        received = self.receiver.wait(30 * self.slow)
        assert (sent.code, received.code) == (0, 0), f"{sent.err} {received.err}"
        there = json.loads(sent.out.splitlines()[-1])
        here = json.loads(received.out.splitlines()[-1])
        assert here["bytes"] == there["bytes"]
        self.report = here
        return float(here["gaps"][0][1])

    def close(self) -> None:
        """Kill what still runs."""
        self.sender.__exit__()
        self.receiver.__exit__()


class Net:
    """vmloop in one lab. It stays from test to test; ensure() brings it back to what a test expects."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.host = lab.host
        self.agent: Process | None = None
        self.base = list(lab.guests)
        self.is_xen = lab.kind.name == "xen"
        self.transport = TRANSPORTS[lab.kind.name]
        self.slow = 5 if lab.guest("g1").spec.kernel == "debug" else 3 if self.is_xen else 1
        """By how much deadlines are longer than on an ordinary kernel: an emulated dom0 is soon busy."""

        self.relay = False
        """Whether the agent puts a relay between guests, instead of memory that they share."""

    # The agent

    def command(self, *words: str, check: bool = True, timeout: float = 60) -> Any:
        """Run the vmloop command in the host."""
        return self.host.run([f"{HERE}/vmloop", "--host", *words], check=check, timeout=timeout)

    def listing(self) -> dict[str, Any]:
        """What the agent knows."""
        return dict(json.loads(self.command("ls", "--json").out))

    def listed(self, a: str, b: str) -> dict[str, Any]:
        """What `vmloop list --json` says of two guests' channel: nothing, if there is none."""
        for one in self.listing()["channels"]:
            if {one["a"]["guest"], one["b"]["guest"]} == {a, b}:
                return dict(one)
        return {}

    def explained(self, a: Guest, b: Guest) -> dict[str, str]:
        """Why two guests have no channel, by the code of each reason: the filter's text, or the reason's."""
        found = json.loads(self.command("explain", a.name, b.name, "--json").out)["reasons"]
        return {one["code"]: one.get("filter", {}).get("text", one["why"]) for one in found}

    def prepare_host(self) -> None:
        """Copies, so that who builds meanwhile changes nothing under us."""
        programs = shlex.join([str(BIN / "vmloopd"), str(BIN / "vmloop"), str(TOOLS / "frozen")])
        self.host.run(f"mkdir -p {HERE} && cp {programs} {HERE}/", timeout=120)
        self.set_policy(POLICY, reload=False)

    def set_policy(self, text: str, reload: bool = True) -> None:
        """Write the policy, and have the agent read it."""
        self.host.run(f"cat >{HERE}/policy.toml", stdin=text)
        if reload:
            self.command("policy", "reload")

    def start_agent(self) -> None:
        """Start the agent; returns when it answers."""
        log = "/run/vmlab/lab/host/vmloopd.log"
        words = f"{HERE}/vmloopd --policy {HERE}/policy.toml --log-level debug"
        if self.relay:
            words = f"env VMLOOPD_TEST_RELAY=1 {words}"
        if self.is_xen:
            words += " --hypervisor xen"
        self.agent = self.host.popen(f"exec {words} >>{log} 2>&1")
        agent = self.agent

        def answers() -> bool:
            code = agent.poll()
            assert code is None, f"vmloopd ended with status {code}: see {log}"
            return bool(self.command("status", check=False).code == 0)

        until(answers, 15 * self.slow, "vmloopd answers")

    def kill_agent(self) -> None:
        """SIGKILL."""
        assert self.agent
        self.agent.kill()
        self.agent.wait(20)
        self.agent = None

    def attach(self, guest: Guest, again: bool = False) -> None:
        """Tell the agent of a guest; on Xen it knows by itself, unless it was told to forget it."""
        if not self.is_xen:
            self.command("attach", "--qmp", guest.qmp_socket, "--name", guest.name)
        elif again:
            self.command("attach", guest.name)

    # Guests

    def prepare_guest(self, guest: Guest) -> None:
        """Give a guest that has just booted the programs and the modules."""
        names = ("beat", "control", "pattern", "shm", "stream", "volley")
        programs = [*(TOOLS / name for name in names), BIN / "vmloop"]
        copy = f"mkdir -p {HERE} && cp {shlex.join(map(str, programs))} {HERE}/"
        guest.run(f"{copy} && modprobe -a {self.transport} vmloop_net", timeout=120 * self.slow)

    def load(self, *guests: Guest) -> None:
        """Load all modules, in several guests at the same time."""
        words = ["modprobe", "-a", self.transport, "vmloop_net"]
        at_once(*(partial(guest.run, words, timeout=60 * self.slow) for guest in guests))

    def unload(self, guest: Guest, order: tuple[str, ...] = ("vmloop_net", "transport", "vmloop")) -> None:
        """Unload the modules one by one; "transport" is the host's."""
        names = [self.transport if name == "transport" else name for name in order]
        guest.run(["rmmod", *names], timeout=60 * self.slow)

    def peers(self, guest: Guest) -> dict[str, Counters]:
        """What the modules of a guest say of each peer."""
        found = json.loads(guest.run([f"{HERE}/control", "peers"]).out)
        return {peer["name"]: Counters(peer["state"], peer["tag"], peer["stats"], peer) for peer in found}

    def status(self, guest: Guest) -> dict[str, Any]:
        """What the modules of a guest say of themselves."""
        return dict(json.loads(guest.run([f"{HERE}/control", "status"]).out))

    def state(self, guest: Guest, peer: Guest) -> str:
        """State of the channel to a peer; "gone" if the directory has it no more."""
        found = self.peers(guest).get(peer.name)
        return found.state if found else "gone"

    def between(self, a: Guest, b: Guest) -> tuple[Counters | None, Counters | None]:
        """What each of two guests says of the other; None if its directory does not have it."""
        there, back = at_once(partial(self.peers, a), partial(self.peers, b))
        return there.get(b.name), back.get(a.name)

    def both(self, a: Guest, b: Guest) -> tuple[Counters, Counters]:
        """The same of two guests that know each other."""
        there, back = self.between(a, b)
        assert there and back, f"{a.name} and {b.name} do not know each other"
        return there, back

    def both_up(self, a: Guest, b: Guest) -> bool:
        """Whether both say that their channel is up."""
        return all(one and one.state == "up" for one in self.between(a, b))

    def wait_state(self, guest: Guest, peer: Guest, state: str, seconds: float = 10) -> None:
        """Wait until a guest says that about a peer."""
        seen: list[str] = []

        def is_so() -> bool:
            seen[:] = [self.state(guest, peer)]
            return seen == [state]

        until(is_so, seconds * self.slow, f"{guest.name} has {state!r} for {peer.name}", seen)

    def channel_count(self, guest: Guest) -> int:
        """How many channels the guest's transport holds memory for."""
        if self.is_xen:
            return int(guest.run("cat /sys/module/vmloop_xen/parameters/channels").out)
        found = json.loads(guest.run([f"{HERE}/shm", "list"]).out)
        return sum(one["kind"] == 1 for one in found)

    def page(self, guest: Guest, number: int) -> str:
        """A page of what the agent has written for a guest of Xen."""
        return self.host.run(["xenstore-read", "-R", f"/local/domain/{guest.domid}/vmloop/page/{number}"]).out

    def told(self, guest: Guest) -> dict[str, str]:
        """All that the agent has written for a guest of Xen, by the first word of each line."""
        pages = self.host.run(["xenstore-list", f"/local/domain/{guest.domid}/vmloop/page"]).out.split()
        lines = [line.partition(" ") for page in pages for line in self.page(guest, int(page)).splitlines()[1:]]
        return {word: rest for word, _, rest in lines}

    def left_behind(self, guest: Guest) -> list[str]:
        """What the host still has of vmloop for a guest that was detached."""
        if self.is_xen:
            # That it was detached, and its epoch, stay there.
            return [word for word in self.told(guest) if word not in ("detached", "epoch")]
        devices = guest.qmp("qom-list", {"path": "/machine/peripheral"})
        return [one["name"] for one in devices if one["name"].startswith("vmloop")]

    def bring_up(self, a: Guest, b: Guest, seconds: float = 20) -> None:
        """Send until the channel between two guests is up."""

        def is_up() -> bool:
            a.run(["ping", "-c", "1", "-W", "1", "-q", b.ip], check=False)
            return self.both_up(a, b)

        until(is_up, seconds * self.slow, f"a channel between {a.name} and {b.name}")

    def recover(self, a: Guest, b: Guest) -> None:
        """A new channel, whatever has become of the old one: the operator forgives both."""
        if self.both_up(a, b):
            return
        self.command("policy", "reload")
        for guest, peer, known in zip((a, b), (b, a), self.between(a, b), strict=True):
            if known and known.state != "up":
                guest.run([f"{HERE}/vmloop", "--guest", "reset", peer.name], check=False)
        self.bring_up(a, b)

    def pairs(self) -> list[tuple[Guest, Guest]]:
        """All pairs of the lab's own guests."""
        guests = [self.lab.guest(name) for name in self.base]
        return [(a, b) for n, a in enumerate(guests) for b in guests[n + 1 :]]

    def ensure(self) -> None:
        """What each test finds: agent, modules in all guests, a channel for each pair.

        All machines are asked at the same time: every test begins with this.
        """
        guests = [self.lab.guest(name) for name in self.base]
        with ThreadPoolExecutor(len(guests) + 1) as threads:
            agent = threads.submit(self._ensure_agent)
            states = dict(zip(self.base, threads.map(self._ensure_guest, guests), strict=True))
            attached = agent.result()
        at_once(*(partial(self.attach, guest) for guest in guests if guest.name not in attached))
        missing: list[tuple[Guest, Guest]] = []
        for a, b in self.pairs():
            there, back = states[a.name].get(b.name), states[b.name].get(a.name)
            if not (there and back and there.state == back.state == "up"):
                missing.append((a, b))
        at_once(*(partial(self.recover, a, b) for a, b in missing))

    def _ensure_agent(self) -> set[str]:
        """An agent that runs; returns the guests that it has."""
        if self.agent is None or self.agent.poll() is not None:
            if self.host.run(["test", "-e", f"{HERE}/vmloopd"], check=False).code:
                self.prepare_host()
            self.start_agent()
        return {guest["name"] for guest in self.listing()["guests"] if guest["state"] != "detaching"}

    def _ensure_guest(self, guest: Guest) -> dict[str, Counters]:
        """Programs and modules in a guest; returns what its modules say of each peer."""
        try:
            return self.peers(guest)
        except CommandFailed:
            self.prepare_guest(guest)
            return {}

    # Proof that the channel carried it

    def _taps(self) -> dict[str, int]:
        found = self.host.run("grep . /sys/class/net/tap-*/statistics/[rt]x_bytes").out
        taps: dict[str, int] = {}
        for line in found.splitlines():
            path, _, value = line.rpartition(":")
            name = path.split("/")[4].removeprefix("tap-")
            taps[name] = taps.get(name, 0) + int(value)
        return taps

    def _at_rest(self, a: Guest, b: Guest) -> tuple[Counters, Counters]:
        """What both ends have counted while nothing was on its way: twice the same."""
        seen = self.both(a, b)

        def rests() -> bool:
            nonlocal seen
            before, seen = seen, self.both(a, b)
            return [one.stats for one in before] == [one.stats for one in seen]

        until(rests, 5 * self.slow, f"nothing comes from {a.name} to {b.name} or back")
        return seen

    @contextmanager
    def carried(
        self, a: Guest, b: Guest, there: int = 1, back: int = 1, standard: int = 20_000, drops: bool = False
    ) -> Iterator[Carried]:
        """Check that the channel, and not the standard network, carried what the block sends.

        At least ``there`` bytes from a to b and ``back`` bytes the other way,
        each counted alike by its sender and its receiver, none dropped, and at
        most ``standard`` bytes through the tap devices of a and b in the host.
        """
        found = Carried(a.name, b.name)
        taps = self._taps()
        before = self._at_rest(a, b)
        assert before[0].state == before[1].state == "up"
        yield found

        def settled() -> bool:
            after = self.both(a, b)
            found.there = {name: after[0][name] - before[0][name] for name in after[0].stats}
            found.back = {name: after[1][name] - before[1][name] for name in after[1].stats}
            dropped = sum(found.there[name] + found.back[name] for name in DROPS)
            if dropped:
                return True
            return all(
                one[f"tx_{what}"] == other[f"rx_{what}"]
                for one, other in ((found.there, found.back), (found.back, found.there))
                for what in ("frames", "bytes")
            )

        until(settled, 5 * self.slow, "both ends of the channel have counted the same", found)
        now = self._taps()
        found.standard = {name: now[name] - taps.get(name, 0) for name in (a.name, b.name) if name in now}
        if not drops:
            dropped = {name: found.there[name] + found.back[name] for name in DROPS}
            assert not any(dropped.values()), f"frames were dropped: {dropped}"
        ends = [(one.state, one.peer.get("break")) for one in self.both(a, b)]
        assert found.there["tx_bytes"] >= there, f"{a.name} to {b.name}: {found}, {ends}"
        assert found.back["tx_bytes"] >= back, f"{b.name} to {a.name}: {found}, {ends}"
        assert max(found.standard.values()) <= standard, f"the standard network was used: {found}"

    # Things that run in guests

    @contextmanager
    def serving(self, machine: Machine, *command: str, ready: str = "ready") -> Iterator[Process]:
        """A program that serves in a machine during a block."""
        with machine.popen([str(word) for word in command]) as process:
            process.wait_for(ready, 20 * self.slow)
            yield process

    @contextmanager
    def transfer(self, source: Guest, sink: Guest, port: int = 7100, rate: float = 0) -> Iterator[Transfer]:
        """A transfer that runs during a block, at ``rate`` MB/s at most."""
        words = [f"{HERE}/stream", "send", sink.ip, str(port), *([str(rate)] if rate else [])]
        one = Transfer(sink.popen([f"{HERE}/stream", "receive", str(port)]), lambda: source.popen(words), self.slow)
        try:
            yield one
        finally:
            one.close()

    def side(self, guest: Guest, peer: Guest) -> int:
        """Which side of the channel with a peer a QEMU guest is."""
        tag = self.peers(guest)[peer.name].tag
        devices = json.loads(guest.run([f"{HERE}/shm", "list"]).out)
        [number] = [one["id"] for one in devices if one["tag"] == tag and one["kind"] == 1]
        return int(number) % 2

    def channel_bytes(self, a: Guest, b: Guest) -> int:
        """Bytes that a has sent to b through channels so far."""
        found = self.peers(a).get(b.name)
        return found["tx_bytes"] if found else 0


def log_path(lab: Lab) -> Path:
    """The agent's log, which is evidence."""
    return lab.directory / "host" / "vmloopd.log"
