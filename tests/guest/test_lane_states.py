# SPDX-License-Identifier: GPL-2.0
"""A channel that ends while lanes are at each step of their life: the account says what was read.

Steps are those of the state diagram in docs/protocol.md, section 9, and pass quickly. So one guest's CPUs stand still,
which keeps its side where it is, and the other goes on to where it is wanted; `shm lanes` says, from the memory that
they share, that both are there. Then the channel ends, by the guest that goes on or by the agent, or the one that
stands still is killed.

Of lanes that have ended the toy path counts what the peer has read, by the account, and what it has read itself
(kernel/paths/toy/account.c): the first of one guest must be the second of the other.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from vmlab import Guest
from vmlab.process import Process

from tests.guest.net import HERE, Net, until
from tests.guest.toy import RING, Toy

pytestmark = pytest.mark.kvm_only
"""Steps are read from a device's BAR."""

LANES = 4
TOY_BYTES = 7
"""VMLOOP_LANE_TOY_BYTES."""

TRIES = 20
"""How often a step that passes within 200 ms is tried to be met."""

Steps = tuple[str, str]
"""Of the side that opened the lanes, g1, and of the other, g2."""


class Missed(Exception):
    """A step had passed before the CPUs stood still."""


class Scene:
    """g1, which opens lanes, and g2; one of them stands still, or none."""

    def __init__(self, toy: Toy, stack: ExitStack) -> None:
        self.toy = toy
        self.net = toy.net
        self.stack = stack
        self.tag = str(self.net.peers(toy.g1)[toy.g2.name].tag)
        self.before = {guest.name: toy.counters(guest) for guest in (toy.g1, toy.g2)}
        self.asleep: Guest | None = None
        self.program: Process | None = None
        self.read = 0
        """Bytes of g1's rings that g2 had read when these were full."""

    @property
    def awake(self) -> Guest:
        """The guest that goes on."""
        return self.toy.g2 if self.asleep is self.toy.g1 else self.toy.g1

    def sleep(self, guest: Guest) -> None:
        """Its CPUs stand still, those of the other do not any more."""
        guest.pause()
        self.wake()
        self.asleep = guest

    def wake(self) -> None:
        """Both go on."""
        asleep, self.asleep = self.asleep, None
        if asleep:
            asleep.unpause()

    def run(self, *words: object) -> Process:
        """The toy program, in g1."""
        self.program = self.stack.enter_context(self.toy.g1.popen(self.toy.words(*words)))
        return self.program

    def end_program(self) -> None:
        """The side that opened the lanes closes them."""
        assert self.program
        self.program.terminate()

    def serve(self, yes: bool) -> None:
        """Whether g2 has lanes that g1 opens; if not it closes those that there are."""
        self.toy.g2.run(f"echo {int(yes)} >/sys/module/vmloop_toy/parameters/serve")

    def steps(self) -> set[Steps]:
        """Where the lanes are."""
        return self.parse(self.awake.run([f"{HERE}/shm", "lanes", self.tag]).out)

    @staticmethod
    def parse(lanes: str) -> set[Steps]:
        """The same from what `shm lanes` has said."""
        found = [(one["steps"], one["number"] % 2) for one in json.loads(lanes) if one["kind"] == TOY_BYTES]
        return {(steps[opener], steps[1 - opener]) for steps, opener in found}

    def lanes_left(self) -> int:
        """Lanes whose end one of both has not counted."""
        return sum(self.toy.counters(guest)["lanes"] for guest in (self.toy.g1, self.toy.g2))

    def reach(self, *steps: Steps) -> None:
        """Wait until all lanes are there; of several, at the first or behind it already."""
        until(lambda: self.steps() <= set(steps) and self.steps(), 10 * self.net.slow, f"lanes are at {steps}")
        if self.steps() != {steps[0]}:
            raise Missed


# What leads to a step. Each begins with both guests awake and no lane of theirs, and ends with one asleep.


def offered(scene: Scene) -> None:
    """g1 has opened lanes that g2 does not know of."""
    scene.sleep(scene.toy.g2)
    scene.run("open", "bytes", RING, LANES)
    scene.reach(("open", "free"))


def withdrawn(scene: Scene) -> None:
    """And has closed them again."""
    offered(scene)
    scene.end_program()
    scene.reach(("closed", "free"))


def accepted(scene: Scene) -> None:
    """g2 has accepted the first of them, which g1 does not know."""
    offered(scene)
    scene.sleep(scene.toy.g1)
    scene.reach(("open", "open"))


def refused(scene: Scene) -> None:
    """g2 has refused it."""
    scene.serve(False)
    offered(scene)
    scene.sleep(scene.toy.g1)
    scene.reach(("open", "refused"))


def full(scene: Scene, asleep: Guest) -> None:
    """Lanes are full both ways, half of them amid a move."""
    before = scene.toy.read()
    scene.run("hold", "bytes", RING, LANES).wait_for("ready", 30)
    scene.read = scene.toy.read() - before
    scene.sleep(asleep)
    scene.reach(("open", "open"))


def both_open(scene: Scene) -> None:
    """Nothing else is the matter with them."""
    full(scene, scene.toy.g2)


def opener_closed(scene: Scene) -> None:
    """g1 has closed them, and waited in vain for g2."""
    full(scene, scene.toy.g2)
    scene.end_program()
    scene.reach(("closed", "open"))


def other_closed(scene: Scene) -> None:
    """g2 has closed them, and waited in vain for g1."""
    full(scene, scene.toy.g1)
    scene.serve(False)
    scene.reach(("open", "closed"))


def opener_draining(scene: Scene) -> None:
    """g1 is closing, and g2 has closed."""
    full(scene, scene.toy.g2)
    scene.end_program()
    scene.reach(("closing", "open"), ("closed", "open"))
    scene.sleep(scene.toy.g1)
    scene.reach(("closing", "closed"), ("closed", "free"), ("closing", "free"))


def other_draining(scene: Scene) -> None:
    """The other way round."""
    full(scene, scene.toy.g1)
    scene.serve(False)
    scene.sleep(scene.toy.g2)
    scene.reach(("closed", "closing"), ("free", "closed"), ("free", "closing"))


def let_go(scene: Scene) -> None:
    """Both have closed; g2 has let go, and g1 has not seen that."""
    opener_closed(scene)
    scene.sleep(scene.toy.g1)
    scene.reach(("closed", "free"))


STEPS: list[Callable[[Scene], None]] = [
    offered,
    withdrawn,
    accepted,
    refused,
    both_open,
    opener_closed,
    other_closed,
    opener_draining,
    other_draining,
    let_go,
]

# How the channel ends. Each ends with both guests awake, or with the one that was asleep dead.


def by_off(scene: Scene) -> None:
    """The guest that goes on will not have channels."""
    guest = scene.awake
    guest.run([f"{HERE}/control", "off"])
    scene.wake()
    guest.run([f"{HERE}/control", "on"])


def by_transport(scene: Scene) -> None:
    """It unloads what makes channels."""
    guest = scene.awake
    guest.run(["rmmod", scene.net.transport])
    scene.wake()
    guest.run(["modprobe", scene.net.transport])


def at_the_agent(scene: Scene, *words: str) -> None:
    """The agent ends it, and waits for both; the guest that goes on does not."""
    awake, asleep = scene.awake, scene.asleep
    assert asleep
    with scene.net.host.popen([f"{HERE}/vmloop", "--host", *words]) as command:
        until(lambda: scene.net.state(awake, asleep) in ("none", "gone"), 20 * scene.net.slow, "one side is gone")
        scene.wake()
        result = command.wait(60 * scene.net.slow)
    assert result.code == 0, result.err


def by_close(scene: Scene) -> None:
    """The host's administrator closes it."""
    at_the_agent(scene, "close", "g1", "g2")


def by_migration(scene: Scene) -> None:
    """The guest that goes on is made ready to be migrated."""
    guest = scene.awake
    at_the_agent(scene, "prepare", guest.name)
    scene.net.command("resume", guest.name)


def by_agent(scene: Scene) -> None:
    """Nothing ends by the agent's death. It is off that ends the channel, which a new agent has by then."""
    scene.net.kill_agent()
    scene.net.start_agent()
    by_off(scene)


ENDS = [by_off, by_transport, by_close, by_migration, by_agent]
WORD = 1 << 32


def off_at(scene: Scene, steps: Steps, before: str = "true") -> None:
    """The guest that goes on does something, and will have no channels right after lanes were seen at a step."""
    look = f"{HERE}/shm lanes {scene.tag}"
    out = scene.awake.run(f"{before} && {look} && {HERE}/control off").out
    if scene.parse(out) != {steps}:
        scene.awake.run([f"{HERE}/control", "on"])
        raise Missed


def opener_closing(scene: Scene) -> None:
    """g1 is closing, and waits for g2."""
    full(scene, scene.toy.g2)
    is_open = f'{HERE}/shm lanes {scene.tag} | grep \'"kind": {TOY_BYTES},\' | grep -q \'"open", "open"\''
    off_at(scene, ("closing", "open"), f"pkill -x toy && while {is_open}; do :; done")


def other_closing(scene: Scene) -> None:
    """g2 is closing, and waits for g1."""
    full(scene, scene.toy.g1)
    off_at(scene, ("open", "closing"), "echo 0 >/sys/module/vmloop_toy/parameters/serve")


def both_closing(scene: Scene) -> None:
    """Each is closing, and knows that of the other."""
    full(scene, scene.toy.g2)
    scene.end_program()
    scene.reach(("closing", "open"), ("closed", "open"))
    scene.sleep(scene.toy.g1)
    off_at(scene, ("closing", "closing"))


@contextmanager
def at_step(toy: Toy, step: Callable[[Scene], None]) -> Iterator[Scene]:
    """Lanes at a step. What passes quickly is tried again until it is met."""
    for _ in range(TRIES):
        toy.net.bring_up(toy.g1, toy.g2)
        with ExitStack() as stack:
            scene = Scene(toy, stack)
            stack.callback(toy.g2.run, "echo 1 >/sys/module/vmloop_toy/parameters/serve", check=False)
            stack.callback(scene.wake)
            try:
                step(scene)
            except Missed:
                scene.end_program()
                scene.wake()
                until(lambda: not scene.lanes_left(), 10 * toy.net.slow, "no lane is left")  # noqa: B023
                continue
            yield scene
            return
    pytest.fail(f"{step.__name__} was not met in {TRIES} tries")


def growth(scene: Scene, guest: Guest) -> dict[str, int]:
    """What the lanes that have ended since the beginning came to, in one guest."""
    now = scene.toy.counters(guest)
    return {name: (now[name] - before) % WORD for name, before in scene.before[guest.name].items()}


def check(scene: Scene) -> None:
    """Both agree.

    Of each lane the side that ended it last had the other's last word, and the other may have counted as unread what
    was read later.
    """
    one, other = growth(scene, scene.toy.g1), growth(scene, scene.toy.g2)
    assert one["not_final"] + other["not_final"] <= max(one["ended"], other["ended"]), (one, other)
    for counted, peer in ((one, other), (other, one)):
        later = (peer["we_read"] - counted["peers_read"]) % WORD
        may_be_later = counted["not_final"] == counted["ended"] > 0
        assert later == 0 or (may_be_later and later < WORD // 2), (one, other)


MAIN = pytest.mark.main("a side did not know the other's last word")


@pytest.mark.parametrize(
    ("step", "end"),
    [
        pytest.param(step, end, marks=[MAIN] if (step, end) == (both_open, by_off) else [])
        for step in STEPS
        for end in ENDS
    ],
)
def test_end_at_each_step(net: Net, toy: Toy, step: Callable[[Scene], None], end: Callable[[Scene], None]) -> None:
    """However the channel ends, and wherever its lanes are: both sides say the same of what was read."""
    with at_step(toy, step) as scene:
        end(scene)
        until(lambda: not scene.lanes_left(), 20 * net.slow, "all accounts are made")
        check(scene)


@pytest.mark.parametrize("step", [opener_closing, other_closing, both_closing])
def test_off_amid_draining(net: Net, toy: Toy, step: Callable[[Scene], None]) -> None:
    """The same at steps that pass within 200 ms, for what can be done in that time."""
    with at_step(toy, step) as scene:
        awake = scene.awake
        scene.wake()
        awake.run([f"{HERE}/control", "on"])
        until(lambda: not scene.lanes_left(), 20 * net.slow, "all accounts are made")
        check(scene)


@pytest.mark.parametrize("step", STEPS)
def test_death_at_each_step(net: Net, toy: Toy, step: Callable[[Scene], None]) -> None:
    """The same of a guest that is killed: what it had read is what it had read when its CPUs stood still."""
    with at_step(toy, step) as scene:
        awake, asleep = scene.awake, scene.asleep
        assert asleep
        scene.asleep = None
        asleep.kill()
        until(lambda: net.state(awake, asleep) == "gone", 20 * net.slow, "its death is known")
        until(lambda: not toy.counters(awake)["lanes"], 20 * net.slow, "all accounts are made")
        counted = growth(scene, awake)
        asleep.start()
        net.ensure()
    # g1 reads nothing before it closes; then it keeps all that has come, which is as much as g2 had read.
    assert counted["peers_read"] == (scene.read if asleep is toy.g2 or step is let_go else 0), counted
