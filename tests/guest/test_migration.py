# SPDX-License-Identifier: GPL-2.0
"""A guest that moves between two hosts: channels grow and go, and nobody notices.

g1 stays on the first host. g2 is together with it, or apart on the other. Each
test ends with traffic flowing and nothing left behind on either host.

Runs with --migrations only; on Xen hosts with --kinds xen, too.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from vmlab import CommandFailed, Guest, GuestFailed, Lab

from bench.migration.hosts import HOSTS
from bench.migration.load import Load
from bench.migration.stage import HERE, TOOLS, Detached, Stage, build_tools
from bench.migration.trips import go
from bench.path.stage import wait_for
from tests.guest.net import BIN
from tests.guest.programs import running

pytestmark = pytest.mark.migrations

ROUND_TRIPS = 10
MIB, GIB = 1 << 20, 1 << 30
SLOW, FAST = 4 << 20, 128 << 20
"""Bytes a second of a migration: so that something can be done meanwhile; QEMU's own."""
PORT = 5541


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test on both kinds of host, unless it is about what only one has."""
    left_out = {
        kind for kind in HOSTS if any(metafunc.definition.get_closest_marker(f"{x}_only") for x in HOSTS if x != kind)
    }
    kinds = [kind for kind in HOSTS if kind not in left_out]
    marked = [pytest.param(kind, id=kind, marks=pytest.mark.lab(**HOSTS[kind].lab)) for kind in kinds]
    metafunc.parametrize("hosts", marked)


@pytest.fixture(scope="session")
def stages() -> Iterator[dict[int, Stage]]:
    build_tools()
    yield {}


@pytest.fixture
def two(hosts: str, lab: Lab, stages: dict[int, Stage]) -> Iterator[Stage]:
    """vmloop at work on both hosts; judged afterwards."""
    found = stages.get(id(lab))
    if found is None or found.lab is not lab:
        stages.clear()
        found = stages[id(lab)] = Stage(lab)
    found.ensure()
    yield found
    flows(found)
    clean(found)


def flows(two: Stage) -> None:
    """Traffic flows; through a channel exactly where both are on one host that has an agent."""
    two.ensure()
    two.g1.run(["ping", "-c", "3", "-i", "0.2", "-W", "2", two.g2.ip])
    if two.g1.host is two.g2.host:
        # Only traffic brings a channel, once both know of each other.
        wait_for(lambda: pings(two) and two.is_up(), 20, "a channel between guests on one host")


def pings(two: Stage) -> bool:
    """g2 answers g1."""
    return two.g1.run(["ping", "-c", "1", "-W", "2", two.g2.ip], check=False).code == 0


def clean(two: Stage) -> None:
    """No agent knows of a guest or a channel that is not there, no guest holds too much."""
    together = two.g1.host is two.g2.host
    for host in two.lab.hosts.values():
        here = {guest.name for guest in (two.g1, two.g2) if guest.host is host}
        wait_for(lambda: {name for name in ("g1", "g2") if two.known(host, name) == "ready"} == here, 20, str(here))  # noqa: B023
        assert len(two.channels(host)) == (together and host is two.g1.host)
        count = two.kind.domains(host)
        assert count == len(here), f"{count} guests run on {host.name}, which has {sorted(here)}"
    for guest in (two.g1, two.g2):
        # What the kernel says when an interrupt is freed under its handler.
        assert "leaking at least" not in guest.run(["dmesg"]).out
        names = two.kind.left_behind(guest)
        assert len(names) == two.kind.at_rest(int(together)), f"{guest.name}: {names}"


def together(two: Stage) -> None:
    """Both on one host, with a channel."""
    if two.g1.host is not two.g2.host:
        two.lab.migrate("g2", two.g1.host.name, lambda uri: hook(two, uri))
    flows(two)


def apart(two: Stage) -> None:
    """Each on a host of its own."""
    if two.g1.host is two.g2.host:
        two.lab.migrate("g2", two.other.name, lambda uri: hook(two, uri))


def hook(two: Stage, uri: str, guest: Guest | None = None) -> None:
    """What somebody does who migrates past the agent: the hook, then plain QMP; on Xen, xl."""
    guest = guest or two.g2
    if two.kind.has_hook:
        two.command(guest.host, "prepare", guest.name)
        assert two.kind.left_behind(guest) == []
    two.kind.begin(guest, uri)


@contextmanager
def slowly(guest: Guest) -> Iterator[None]:
    """A guest's migration takes its time during a block."""
    here = guest.on(guest.host)
    here.qmp("migrate-set-parameters", {"max-bandwidth": SLOW})
    yield
    if here.running:
        here.qmp("migrate-set-parameters", {"max-bandwidth": FAST})


def round_trips(two: Stage, request: pytest.FixtureRequest, count: int, enough: int) -> None:
    """There and back again under every kind of traffic; nothing breaks, nothing is lost by vmloop.

    It goes on until g1 has received ``enough`` checked bytes. How long all of it takes is kept with the result, and
    is what `make demo-migration` measures, beside the same without vmloop.
    """
    apart(two)
    trips = []
    with Load(two, rate=two.kind.requests) as load:
        for _ in range(2 * count):
            trips.append(go(two, load))
            load.check()
        wait_for(lambda: load.bytes() >= enough, 600, f"{enough} checked bytes")
        report = load.finish()
    request.node.user_properties.append(("trips", [trip.record() for trip in trips]))
    assert (report["connections_broken"], report["bytes_wrong"]) == (0, 0), report
    assert min(report["bytes"]) >= enough * 0.9
    for trip in trips:
        assert trip.down and trip.clean, f"not down before QEMU began: {trip}"
        assert trip.lost == 0, f"vmloop lost datagrams: {trip}"
    assert [trip.rise is not None for trip in trips] == [True, False] * count, f"a channel where both are: {trips}"


def test_a_round_trip(two, request):
    """The one that runs by default."""
    round_trips(two, request, 1, MIB)


def test_round_trips(two, request):
    """And again, until much has been checked."""
    round_trips(two, request, ROUND_TRIPS, GIB)


def test_connections_by_lanes(two):
    """Connections whose bytes go by lanes go on by TCP when one end leaves, and by lanes when it is back."""
    together(two)

    def count(name: str) -> int:
        return int(two.g1.run(f"cat /sys/module/vmloop_tcp/parameters/{name}").out)

    def by_lanes() -> None:
        before = count("rx_bytes")
        wait_for(lambda: count("rx_bytes") > before + MIB, two.patient(90), "bytes come by lanes")

    def by_the_network() -> None:
        came = "cat /sys/class/net/eth0/statistics/rx_bytes"
        before = int(two.g1.run(came).out)
        wait_for(lambda: int(two.g1.run(came).out) > before + MIB, two.patient(90), "bytes come by the network")

    for guest in (two.g1, two.g2):
        guest.put(TOOLS / "duplex", f"{HERE}/duplex")
        guest.run("modprobe vmloop_tcp")
    server = Detached(two.g2, "serve", f"{HERE}/duplex serve {PORT} {two.kind.rest}")
    server.wait_for("ready")
    client = Detached(two.g1, "run", f"{HERE}/duplex run {two.g2.ip} {PORT} 4 3600 {two.kind.rest}")
    try:
        by_lanes()
        for _ in range(2):
            back = count("back")
            apart(two)
            by_the_network()
            assert count("back") > back and not client.has_ended(), client.out("err")
            together(two)
            by_lanes()
        assert client.end(two.patient(60)) == 0, client.out("err")
        assert count("reset") == 0
    finally:
        client.kill()
        server.kill()
        for guest in (two.g1, two.g2):
            guest.run("rmmod vmloop_tcp", timeout=120)


@pytest.mark.kvm_only
@pytest.mark.lab(guest_memory=1024, memory=4096)
def test_programs_by_lanes(two):
    """Connections of nginx, redis, PostgreSQL and ssh outlive that their server's guest leaves and comes back."""
    together(two)
    two.g1.put(BIN / "vmloop", f"{HERE}/vmloop")
    for guest in (two.g1, two.g2):
        guest.run("modprobe vmloop_tcp")
    try:
        with running(two.g1, two.g2, two.kind.patience, moves=True) as programs:
            programs.go_on(by_lanes=True)
            for _ in range(2):
                apart(two)
                programs.go_on()
                together(two)
                programs.go_on(by_lanes=True)
            programs.finish()
        for guest in (two.g1, two.g2):
            assert guest.run("cat /sys/module/vmloop_tcp/parameters/reset").out == "0\n"
    finally:
        for guest in (two.g1, two.g2):
            guest.run("rmmod vmloop_tcp", timeout=120)


def counters(guest: Guest) -> dict[str, int]:
    """Of the toy path: what lanes that have ended came to (kernel/paths/toy/account.c)."""
    names = ("lanes", "ended", "peers_read", "we_read", "not_final")
    out = guest.run(f"cd /sys/module/vmloop_toy/parameters && cat {' '.join(names)}").out
    return dict(zip(names, map(int, out.split()), strict=True))


def test_lanes_and_a_window(two):
    """When a guest leaves both know of each lane what was read; a window is taken out before, and can be had again."""
    together(two)
    both = (two.g1, two.g2)
    two.g1.put(TOOLS / "toy", f"{HERE}/toy")
    for guest in both:
        guest.run("modprobe vmloop_toy")
    programs = []

    def begin(name: str, words: str) -> Detached:
        peers = json.loads(two.g1.run([f"{HERE}/control", "peers"]).out)
        [peer] = [one["id"] for one in peers if one["name"] == "g2"]
        programs.append(Detached(two.g1, name, f"{HERE}/toy {words.replace('PEER', str(peer))}"))
        return programs[-1]

    try:
        before = [counters(guest) for guest in both]
        begin("hold", "hold PEER bytes 4096 20").wait_for("ready")
        begin("keep", "keep PEER records 1048576 100").wait_for("ready")
        apart(two)
        for program in programs:
            wait_for(program.has_ended, two.patient(20), "it has ended")
        wait_for(lambda: not any(counters(guest)["lanes"] for guest in both), two.patient(20), "all accounts are made")
        one, other = (
            {name: (now - old[name]) % (1 << 32) for name, now in counters(guest).items()}
            for guest, old in zip(both, before, strict=True)
        )
        # As in test_lane_states.py: the side that ended a lane last had the other's last word.
        assert one["ended"] == other["ended"] > 20, (one, other)
        assert one["not_final"] + other["not_final"] <= one["ended"], (one, other)
        for counted, peer in ((one, other), (other, one)):
            later = (peer["we_read"] - counted["peers_read"]) % (1 << 32)
            assert peer["we_read"] > 0 and (later == 0 or (counted["not_final"] and later < 1 << 31)), (one, other)
        together(two)
        again = begin("again", "refer PEER records 1048576 2 2")
        wait_for(again.has_ended, two.patient(20), "windows come and go")
        assert '"referred"' in again.out(), again.out("err")
    finally:
        for program in programs:
            program.kill()
        for guest in both:
            guest.run("rmmod vmloop_toy", timeout=120)


@pytest.mark.kvm_only
def test_by_the_agent(two):
    """`vmloop migrate` does all of it."""
    together(two)
    here = two.g2.host
    with Load(two, everything=False) as load:
        two.lab.migrate(
            "g2",
            two.other.name,
            lambda uri: two.command(here, "migrate", "g2", "--to", uri, "--json", timeout=600),
        )
        assert load.finish()["connections_broken"] == 0
    assert two.g2.host is not here


def set_postcopy(guest: Guest, wanted: bool) -> None:
    guest.qmp("migrate-set-capabilities", {"capabilities": [{"capability": "postcopy-ram", "state": wanted}]})


@pytest.mark.kvm_only
def test_by_postcopy(two):
    """The guest runs there before its memory has come: vmloop plugs nothing until it has."""
    apart(two)
    here, there = two.g2.on(two.g2.host), two.g2.on(two.other)
    for host in two.lab.hosts.values():
        host.run("echo 1 >/proc/sys/vm/unprivileged_userfaultfd")

    def begin(uri: str) -> None:
        for machine in (here, there):
            set_postcopy(machine, True)
        here.qmp("migrate-set-parameters", {"max-bandwidth": SLOW, "max-postcopy-bandwidth": 4 * SLOW})
        hook(two, uri)
        wait_for(lambda: here.qmp("query-migrate").get("status") == "active", 20, "it is under way")
        here.qmp("migrate-start-postcopy")
        wait_for(lambda: there.qmp("query-status")["status"] == "running", 60, "it runs there")
        looks = 0
        while (found := two.kind.left_behind(there), there.qmp("query-migrate")["status"])[1] == "postcopy-active":
            # The chardev that its control device will need; the device's name would be there a second time.
            assert found == ["vmloop-ctl"], "a device was plugged while its memory was on its way"
            looks += 1
        assert looks > 3, "too fast: its memory has come"

    with Load(two, everything=False) as load:
        two.lab.migrate("g2", two.other.name, begin)
        set_postcopy(there, False)
        wait_for(two.is_up, 20, "a channel")
        assert load.finish()["connections_broken"] == 0


@pytest.mark.kvm_only
def test_without_the_hook_qemu_refuses(two):
    """And the guest stays where it is, with its channel."""
    together(two)
    with pytest.raises(GuestFailed, match="ivshmem"):
        two.lab.migrate("g2", two.other.name)
    assert two.is_up()


@pytest.mark.kvm_only
def test_a_destination_that_refuses(two):
    """Nobody listens there: the guest stays, and has its channel back."""
    together(two)
    with Load(two, everything=False) as load:
        done = two.command(two.g2.host, "migrate", "g2", "--to", f"tcp:{two.other.ip}:9", check=False, timeout=120)
        assert done.code == 1 and "g2" in done.err
        wait_for(two.is_up, 20, "the channel is back")
        assert load.finish()["connections_broken"] == 0


@pytest.mark.xen_only
def test_a_destination_that_goes_away(two):
    """Who receives it is killed: the guest stays, and has its channel."""
    together(two)

    def begin(uri: str) -> None:
        with ThreadPoolExecutor(max_workers=1) as pool:
            move = pool.submit(two.kind.begin, two.g2, uri)
            two.other.run(f"kill -KILL $(cat {two.g2.spec.directory}/receive.pid)")
            move.result()

    with Load(two, everything=False) as load:
        with pytest.raises(GuestFailed, match="g2 stays on host"):
            two.lab.migrate("g2", two.other.name, begin)
        wait_for(two.is_up, two.patient(20), "the channel is back")
        assert load.finish()["connections_broken"] == 0


@pytest.mark.kvm_only
@pytest.mark.parametrize("how", ["by_the_agent", "by_hand"])
def test_cancelled_half_way(two, how):
    together(two)
    here = two.g2.host

    def begin(uri: str) -> None:
        if how == "by_hand":
            hook(two, uri)
            wait_for(lambda: two.known(here, "g2") == "migrating", 20, "the agent notices")
            two.g2.qmp("migrate_cancel")
            return
        with here.popen([f"{HERE}/vmloop", "--host", "migrate", "g2", "--to", uri]) as migrating:
            wait_for(lambda: two.known(here, "g2") == "migrating", 20, "it has begun")
            two.command(here, "resume", "g2")
            done = migrating.wait(60)
            assert done.code == 1 and "cancelled" in done.err

    with Load(two, everything=False) as load, slowly(two.g2):
        with pytest.raises(GuestFailed, match="cancelled"):
            two.lab.migrate("g2", two.other.name, begin)
        wait_for(two.is_up, 20, "the channel is back")
        assert load.finish()["connections_broken"] == 0


@pytest.mark.kvm_only
@pytest.mark.parametrize("step", ["preparing", "prepared"])
def test_agent_killed_before_it_leaves(two, step):
    """The next agent has the guest back at work."""
    together(two)
    here = two.g2.host
    with Load(two, everything=False) as load:
        if step == "prepared":
            two.command(here, "prepare", "g2")
            two.kill_agent(here)
        else:
            with here.popen([f"{HERE}/vmloop", "--host", "prepare", "g2"]):
                wait_for(lambda: two.state(two.g1, two.g2) != "up", 20, "the channel is closing")
                two.kill_agent(here)
        two.start_agent(here)
        wait_for(two.is_up, 40, "the channel is back")
        assert load.finish()["connections_broken"] == 0


@pytest.mark.kvm_only
def test_agent_killed_while_it_migrates(two):
    """The next one waits for how it ends."""
    together(two)
    here = two.g2.host

    def begin(uri: str) -> None:
        hook(two, uri)
        two.kill_agent(here)
        two.start_agent(here)
        wait_for(lambda: two.known(here, "g2") == "migrating", 20, "the new agent finds it under way")
        two.g2.qmp("migrate-set-parameters", {"max-bandwidth": FAST})

    with Load(two, everything=False) as load, slowly(two.g2):
        two.lab.migrate("g2", two.other.name, begin)
        assert load.finish()["connections_broken"] == 0


@pytest.mark.kvm_only
def test_peer_killed_while_it_is_prepared(two):
    together(two)
    here = two.g2.host
    with here.popen([f"{HERE}/vmloop", "--host", "prepare", "g2"]) as preparing:
        two.g1.kill()
        assert preparing.wait(60).code == 0
    two.command(here, "resume", "g2")
    two.g1.start()


def test_two_at_once(two):
    """Both leave together, and meet again."""
    together(two)
    there = two.other
    for host in (there, two.g1.host):
        with ThreadPoolExecutor(max_workers=2) as pool:
            moves = [
                pool.submit(two.lab.migrate, guest.name, host.name, lambda uri, guest=guest: hook(two, uri, guest))
                for guest in (two.g1, two.g2)
            ]
            for move in moves:
                move.result()
        assert two.g1.host is two.g2.host is host
        flows(two)


def test_a_host_without_an_agent(two):
    """There the guest just uses the standard network; the channel comes with the agent."""
    apart(two)
    there = two.g1.host
    with Load(two, everything=False) as load:
        two.kill_agent(there)
        two.lab.migrate("g2", there.name, lambda uri: hook(two, uri))
        assert two.state(two.g2, two.g1) == "gone"
        two.g1.run(["ping", "-c", "3", "-i", "0.2", two.g2.ip])
        two.start_agent(there)
        wait_for(two.is_up, 40, "the channel comes with the agent")
        assert load.finish()["connections_broken"] == 0


@pytest.mark.kvm_only
def test_an_identity_that_is_taken(two):
    """Where its UUID belongs to another guest, it just uses the standard network."""
    apart(two)
    there = two.g1.host
    g3 = two.lab.add_guest("g3", host=there.name, extra_args=["-uuid", two.g2.spec.uuid])
    wait_for(lambda: two.known(there, "g3") != "", 20, "the agent knows g3")
    two.lab.migrate("g2", there.name, lambda uri: hook(two, uri))
    wait_for(lambda: two.known(there, "g2") == "", 20, "it is left alone")
    two.g1.run(["ping", "-c", "3", "-i", "0.2", two.g2.ip])
    assert two.state(two.g1, two.g2) == "gone" and two.kind.left_behind(two.g2) == []
    two.lab.migrate("g2", two.other.name)  # nothing of vmloop's stands in the way
    two.lab.remove_guest(g3.name)


@pytest.mark.kvm_only
def test_a_qemu_that_is_stopped(two):
    """SIGSTOP: its peer falls back, and returns."""
    together(two)
    pid = two.g2.pid
    with Load(two, everything=False) as load:
        two.g2.host.run(f"kill -STOP {pid}")
        try:
            wait_for(lambda: two.state(two.g1, two.g2) == "stalled", 5, "the channel is held for stalled")
        finally:
            two.g2.host.run(f"kill -CONT {pid}")
        wait_for(two.is_up, 20, "the channel is back")
        assert load.finish()["connections_broken"] == 0


def test_a_migration_needs_somebody(two):
    """Errors say what is wrong."""
    for words, text in (
        (("prepare", "nobody"), "no guest"),
        (("migrate", "nobody", "--to", "host2"), "no guest"),
        (("resume", "nobody"), "no guest"),
        (("migrate", "g1", "--to", "host2:x"), "port"),
    ):
        with pytest.raises(CommandFailed, match=text):
            two.command(two.g1.host, *words)
