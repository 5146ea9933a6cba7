# SPDX-License-Identifier: GPL-2.0
"""Connections of TCP by lanes between two guests: the stream path (kernel/paths/tcp/).

What of it needs no second guest is in test_stream.py.
"""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from vmlab import CommandFailed
from vmlab.process import Process

from tests.guest.net import HERE, POLICY, TOOLS, Net, at_once, until

DUPLEX = str(TOOLS / "duplex")
CROWD = str(TOOLS / "crowd")
LAST = str(TOOLS / "last")
PORT = 5511
CONNECTIONS, BUSY, BUSY_SECONDS = 1000, 100, 20
IDLE = 8
"""Seconds after which a lane that nobody used is given back, and as many again."""
PARAMETERS = "/sys/module/vmloop_tcp/parameters"


class Streams:
    """g1, which connects, and g2."""

    def __init__(self, net: Net, g1, g2) -> None:
        self.net = net
        self.g1 = g1
        self.g2 = g2

    def counter(self, name: str) -> int:
        """One of g1's module's."""
        return int(self.g1.run(f"cat {PARAMETERS}/{name}").out)

    @contextmanager
    def duplex(self, connections: int, seconds: int, by: tuple[str, ...] = ()) -> Iterator[Process]:
        """Connections that carry known bytes both ways; some have gone by lanes when the block begins.

        ``by`` is a command that runs the one that connects.
        """
        before = self.counter("rx_bytes")
        with (
            self.net.serving(self.g2, DUPLEX, "serve", str(PORT)),
            self.g1.popen([*by, DUPLEX, "run", self.g2.ip, str(PORT), str(connections), str(seconds)]) as client,
        ):
            try:
                until(
                    lambda: self.counter("rx_bytes") - before > 1 << 20 or client.poll() is not None,
                    30 * self.net.slow,
                    "bytes come by lanes",
                )
            except AssertionError as error:
                raise AssertionError(f"{error}; connections: {self.listed(self.g1)}") from error
            assert client.poll() is None, f"the connections have ended: {client.err}"
            yield client

    def listed(self, guest) -> list[dict]:
        """What `vmloop streams` says in a guest."""
        return list(json.loads(guest.run([f"{HERE}/vmloop", "streams", "--json"]).out))

    def counted(self) -> dict[str, int]:
        """What `vmloop status` says of g1's."""
        return dict(json.loads(self.g1.run([f"{HERE}/vmloop", "status", "--json"]).out)["streams"])

    def lanes(self, guest) -> list[dict]:
        """A guest's connections that have a lane."""
        return [one for one in self.listed(guest) if one["lane"] is not None]

    def go_on_by_lanes(self, client: Process) -> None:
        """Bytes go, and by lanes."""
        before = self.counter("tx_bytes")
        until(
            lambda: self.counter("tx_bytes") > before + (1 << 20) or client.poll() is not None,
            60 * self.net.slow,
            "bytes go by lanes",
        )
        assert client.poll() is None, f"the connections have ended: {client.err}"

    def go_back_from(self, before: int, client: Process) -> None:
        """Connections go back to TCP: g1's counter of them was ``before``."""
        until(
            lambda: self.counter("back") > before or client.poll() is not None,
            60 * self.net.slow,
            "connections are back",
        )

    def rule(self, *words: str) -> str:
        """`vmloop stream` in g1; returns what it says."""
        return str(self.g1.run([f"{HERE}/vmloop", "stream", *words]).out.strip())

    def rules(self) -> list[dict]:
        """Those of g1, in their order."""
        return list(json.loads(self.g1.run([f"{HERE}/vmloop", "stream", "rules", "--json"]).out))

    def wait_denied(self) -> None:
        """A rule has all of g1's connections stay on TCP, which g2 heeds."""
        denied = {("tcp", "rule")}
        until(
            lambda: {(one["state"], one["why"]) for one in self.listed(self.g1)} == denied,
            30 * self.net.slow,
            "a rule has the connections stay on TCP",
        )
        until(lambda: not self.lanes(self.g2), 10 * self.net.slow, "the other end has no lanes either")

    def check(self, client: Process) -> None:
        """All that was sent has come, and the connections were not reset. Ends what still runs."""
        client.terminate()
        result = client.wait(120 * self.net.slow)
        assert result.code == 0, result.err
        assert json.loads(result.out)["received"] > 1 << 20


@pytest.fixture
def streams(net: Net, g1, g2) -> Iterator[Streams]:
    """A channel between g1 and g2, and the stream path in both."""
    at_once(*(lambda guest=guest: guest.run("modprobe vmloop_tcp") for guest in (g1, g2)))
    try:
        yield Streams(net, g1, g2)
    finally:
        for guest in (g1, g2):
            guest.run("rmmod vmloop_tcp", check=False, timeout=120)
        net.recover(g1, g2)


@pytest.mark.main("a connection between guests did not go by a lane, or bytes were wrong", on="both")
def test_lanes_carry(net: Net, streams: Streams) -> None:
    """Connections go over to lanes, beside packets, and nearly all of their bytes go there."""
    with streams.duplex(6, 2400) as client, net.transfer(streams.g2, streams.g1) as transfer:
        transfer.wait_bytes(20_000_000)
        transfer.finish()
        until(lambda: streams.counted()["lanes"] > 0, 60 * net.slow, "vmloop status counts lanes")
        assert streams.counted()["connections"] >= 6
        streams.check(client)
    until(lambda: streams.counter("back") > 0, 30 * net.slow, "lanes are given back")
    assert streams.counter("reset") == 0
    assert not streams.g1.run("ss -Htn state established").out.strip()


ENDS = pytest.mark.main("a lane between guests that ended took a connection with it")


@pytest.mark.parametrize(
    "end", [pytest.param("off", marks=ENDS), "channel", "transport", pytest.param("module", marks=ENDS)]
)
def test_ends(net: Net, streams: Streams, end: str) -> None:
    """However the lanes end, the connections go on, and not a byte is lost, repeated or changed."""
    with streams.duplex(6, 2400) as client:
        before = streams.counter("back")
        if end == "off":
            streams.g2.run(["/run/vmloop-test/control", "off"])
        elif end == "channel":
            net.command("close", "g1", "g2")
        elif end == "transport":
            streams.g2.run(["rmmod", net.transport])
        else:
            streams.g2.run("rmmod vmloop_tcp", timeout=120)
        streams.go_back_from(before, client)
        streams.check(client)
    if end == "off":
        streams.g2.run(["/run/vmloop-test/control", "on"])
    elif end == "transport":
        streams.g2.run(f"modprobe {net.transport}")
    assert streams.counter("back") > before and streams.counter("reset") == 0


@pytest.mark.main("the host's policy had no word for streams", on="both")
def test_policy(net: Net, streams: Streams) -> None:
    """Where the host's policy denies streams, connections go by TCP, and by lanes again when it allows them."""
    g1, g2 = streams.g1, streams.g2
    with streams.duplex(4, 2400) as client:
        try:
            net.set_policy(f"{POLICY}streams = 'deny'\n")
            denied = {("tcp", "policy")}
            until(lambda: {(one["state"], one["why"]) for one in streams.listed(g1)} == denied, 30 * net.slow, "denied")
            until(lambda: not streams.lanes(g2), 10 * net.slow, "the other end has none either")
            assert json.loads(net.command("explain", "g1", "g2", "--json").out)["without_streams"]
            by_lanes, by_packets = streams.counter("tx_bytes"), net.channel_bytes(g1, g2)
            until(lambda: net.channel_bytes(g1, g2) > by_packets + (1 << 20), 60 * net.slow, "bytes go as packets")
            assert streams.counter("tx_bytes") == by_lanes
        finally:
            net.set_policy(POLICY)
        until(lambda: streams.counter("tx_bytes") > by_lanes + (1 << 20), 60 * net.slow, "bytes go by lanes again")
        streams.check(client)
    assert streams.counter("reset") == 0


@pytest.mark.main("a rule of the guest's administrator did not hold")
def test_rules(net: Net, streams: Streams) -> None:
    """A rule holds at once: connections go back to TCP. Without it they get lanes again. The first rule decides."""
    assert [(one["lanes"], one["ports"]) for one in streams.rules()] == [(False, [22, 22])]
    with streams.duplex(4, 2400) as client:
        against = streams.rule("add", "tcp", "--port", f"{PORT - 1}-{PORT + 1}")
        assert [one["id"] for one in streams.rules()][1:] == [int(against)]
        streams.wait_denied()
        by_packets = net.channel_bytes(streams.g1, streams.g2)
        until(
            lambda: net.channel_bytes(streams.g1, streams.g2) > by_packets + (1 << 20),
            60 * net.slow,
            "bytes go as packets",
        )
        before = streams.rule("add", "lanes", "--address", f"{streams.g2.ip}/28", "--before", against)
        streams.go_on_by_lanes(client)
        streams.rule("remove", before)
        streams.wait_denied()
        streams.rule("remove", against)
        streams.go_on_by_lanes(client)
        streams.check(client)
    assert streams.counter("reset") == 0
    with pytest.raises(CommandFailed, match="no rule of that number"):
        streams.rule("remove", against)


FILE = "/run/stream.rules"


def test_rules_of_a_file(net: Net, streams: Streams) -> None:
    """They replace those that there are. What cannot hold is named, and what is wrong changes nothing."""
    g1 = streams.g1

    def load(text: str) -> None:
        g1.run(f"cat >{FILE}", stdin=text)
        streams.rule("load", FILE)

    def ports() -> list[tuple[bool, list[int] | None]]:
        return [(one["lanes"], one["ports"]) for one in streams.rules()]

    wanted = [(False, [5432, 5433]), (True, None)]
    load("# databases\ntcp --port 5432-5433\n\nlanes --address 10.0.0.0/8  # all others\n")
    assert ports() == wanted
    with pytest.raises(CommandFailed, match=r"the rules are as before.*\n  line 2: .*udp"):
        load("tcp --port 1\nudp --port 2\n")
    assert ports() == wanted
    with pytest.raises(CommandFailed, match=r"left out, all others hold\n  line 1: no cgroup: .*nowhere"):
        load("tcp --cgroup /nowhere\ntcp --port 7\n")
    assert ports() == [(False, [7, 7])]
    with pytest.raises(CommandFailed, match=r"the rules are as before.*\n  there may be 256"):
        load("tcp --port 8\n" * 256)
    assert ports() == [(False, [7, 7])]
    # A file that is wrong opens nothing, if that is wanted.
    load("lanes --port 9\n" * 128)
    g1.run(f"for _ in $(seq 128); do {HERE}/vmloop stream add lanes || exit 1; done")
    assert len(ports()) == 256
    for wrong in ("udp\n", "lanes --port 8\n" * 256):
        g1.run(f"cat >{FILE}", stdin=wrong)
        with pytest.raises(CommandFailed, match="all connections stay on TCP"):
            streams.rule("load", "--closed", FILE)
        assert ports() == [(False, None)]
    load("tcp --port 22\n")
    assert ports() == [(False, [22, 22])]


CGROUP = "/sys/fs/cgroup/apart"
NAMESPACE = "apart"


def test_what_rules_match(net: Net, streams: Streams) -> None:
    """By port, address, cgroup and network namespace; and what does not match does nothing."""
    g1, g2 = streams.g1, streams.g2
    g1.run(f"mkdir -p {CGROUP}/below {CGROUP}2 && ip netns add {NAMESPACE}")
    inside = ("sh", "-c", f'echo 0 >{CGROUP}/below/cgroup.procs && exec "$@"', "sh")
    others = [
        ("--port", str(PORT + 1)),
        ("--address", g1.ip),
        ("--cgroup", f"{CGROUP}2"),
        ("--netns", NAMESPACE),
        ("--port", str(PORT), "--netns", NAMESPACE),
    ]
    ours = [("--port", str(PORT)), ("--address", f"{g2.ip}/32"), ("--cgroup", "/apart"), ("--netns", "1"), ()]
    try:
        with streams.duplex(2, 2400, by=inside) as client:
            back = streams.counter("back")
            for words in others:
                streams.rule("add", "tcp", *words)
            streams.go_on_by_lanes(client)
            assert streams.counter("back") == back, "a rule that does not match had connections go back"
            listed = streams.rules()
            assert [one["cgroup_path"] for one in listed if one["cgroup"]] == ["/apart2"]
            assert [one["netns_name"] for one in listed if one["netns"]] == [NAMESPACE] * 2
            for words in ours:
                streams.rule("add", "tcp", *words)
                streams.wait_denied()
                streams.rule("remove", str(streams.rules()[-1]["id"]))
                streams.go_on_by_lanes(client)
            with pytest.raises(CommandFailed, match="first network namespace"):
                g1.run(["ip", "netns", "exec", NAMESPACE, f"{HERE}/vmloop", "stream", "add", "tcp"])
            streams.check(client)
    finally:
        g1.run(f"ip netns del {NAMESPACE}; rmdir {CGROUP}/below {CGROUP} {CGROUP}2", check=False)
    assert streams.counter("reset") == 0


ON_TOP = "eth0.9"
ON_TOP_IPS = "10.77.9.1", "10.77.9.2"


def test_an_interface_on_top(net: Net, streams: Streams) -> None:
    """Connections by a VLAN, whose interface has the address of the one below it, stay on TCP."""
    guests = streams.g1, streams.g2
    for guest, ip in zip(guests, ON_TOP_IPS, strict=True):
        guest.run(f"ip link add link eth0 name {ON_TOP} type vlan id 9 && ip link set {ON_TOP} up")
        guest.run(["ip", "address", "add", f"{ip}/24", "dev", ON_TOP])
    try:
        with (
            net.serving(streams.g2, DUPLEX, "serve", str(PORT)),
            streams.g1.popen([DUPLEX, "run", ON_TOP_IPS[1], str(PORT), "4", "300"]) as client,
        ):
            came = f"cat /sys/class/net/{ON_TOP}/statistics/rx_bytes"
            until(
                lambda: int(streams.g1.run(came).out) > 16 << 20 or client.poll() is not None,
                60 * net.slow,
                "bytes come by the VLAN",
            )
            assert streams.listed(streams.g1) == streams.listed(streams.g2) == []
            streams.check(client)
    finally:
        for guest in guests:
            guest.run(f"ip link del {ON_TOP}")
    assert streams.counter("paired") == 0


STILL = 75
"""Seconds for which a guest stands still, as when it is saved to a slow disk. TCP waits for 15 minutes."""


@pytest.mark.kvm_only
def test_peer_stands_still(net: Net, streams: Streams) -> None:
    """Connections with lanes to a guest that stands still for more than a minute go on when it does."""
    with streams.duplex(4, 2400) as client:
        lanes = streams.lanes(streams.g1)
        assert lanes, "no connection has a lane"
        streams.g2.pause()
        try:
            time.sleep(STILL * net.lab.dilation)
            assert client.poll() is None, f"the connections have ended: {client.err}"
        finally:
            streams.g2.unpause()
        before = streams.counter("rx_bytes")
        until(lambda: streams.counter("rx_bytes") - before > 1 << 20, 60 * net.slow, "bytes come by lanes again")
        streams.check(client)
    assert streams.counter("reset") == 0


FIRST = 64 << 10
"""Bytes that go by TCP before a lane is there."""


def test_last_words(net: Net, streams: Streams) -> None:
    """A peer dies while its lanes are full: all that its program had sent can be read, and then TCP's error follows.

    One program reads at once, the other when its socket has the error already.
    """
    g1, g2 = streams.g1, streams.g2
    g2.run(f"echo 1 >{PARAMETERS}/after_bytes")
    ports = (PORT + 1, PORT + 2)
    with ExitStack() as stack:
        readers = [stack.enter_context(net.serving(g1, LAST, "read", str(port))) for port in ports]
        senders = [stack.enter_context(g2.popen([LAST, "send", g1.ip, str(port), str(FIRST)])) for port in ports]
        for sender in senders:
            sender.wait_for("first", 60 * net.slow)
        until(lambda: len(streams.lanes(g2)) == len(senders), 60 * net.slow, "each has a lane")
        before = streams.counter("rx_bytes")
        for sender in senders:
            sender.terminate()
        sent = [int(sender.wait_for(r"all (\d+)", 120 * net.slow)[1]) for sender in senders]
        assert {bool(one["tx_queue"]) for one in streams.lanes(g2)} == {True}, "the lanes are empty"
        assert streams.counter("rx_bytes") == before, "something was read"
        g2.kill()
        readers[0].terminate()
        dead = f"sport = :{ports[1]}"
        until(
            lambda: not g1.run(f"ss -Htn state established '{dead}'").out.strip(),
            120 * net.slow,
            "TCP has given the connection up",
        )
        readers[1].terminate()
        ends = [json.loads(reader.wait(120 * net.slow).out.splitlines()[-1]) for reader in readers]
    g2.start()
    net.ensure()
    assert [(end["bytes"], end["right"]) for end in ends] == [(count, True) for count in sent]
    assert {end["end"] for end in ends} <= {"ETIMEDOUT", "EHOSTUNREACH"}


@pytest.mark.kvm_only
def test_what_is_kept_is_bounded(net: Net, streams: Streams) -> None:
    """What connections keep for a peer that does not answer has a bound for all of them; one beyond it is reset."""
    streams.g1.run(f"echo 1 >{PARAMETERS}/unsent_max")
    with streams.duplex(4, 2400) as client:
        streams.g2.pause()
        try:
            # Their rings fill, and then the lanes end.
            until(lambda: {bool(one["tx_queue"]) for one in streams.lanes(streams.g1)} == {True}, 30 * net.slow, "full")
            streams.g1.run(f"echo 1 >{PARAMETERS}/go_back")
            until(lambda: streams.counter("reset") > 0, 30 * net.slow, "a connection is reset")
            said = f"to {streams.g2.ip}:.* was reset: no memory for what the peer has not confirmed"
            streams.g1.run(f"dmesg | grep '{said}'")
        finally:
            streams.g2.unpause()
        until(lambda: client.poll() is not None, 60 * net.slow, "the program is told")
        assert client.wait(10).code != 0


@pytest.mark.kvm_only
def test_peers_have_shares_of_what_is_kept(net: Net, streams: Streams, g3) -> None:
    """One peer that does not answer may have three quarters of what is kept; what is left is for another one."""
    g1, g2 = streams.g1, streams.g2
    ring, many = 64 << 10, 14
    load = f"modprobe vmloop_tcp ring_size={ring} owner_share=100"
    for guest in (g1, g2):
        guest.run(f"rmmod vmloop_tcp && {load}")
    g3.run(load)
    g1.run(f"echo {10 * ring} >{PARAMETERS}/unsent_max")
    other = Streams(net, g1, g3)

    def queued(guest, state: str) -> list[int]:
        """Bytes in the ring of each connection to a guest that is in one state."""
        listed = [one for one in streams.listed(g1) if one["remote"].startswith(f"{guest.ip}:")]
        return [one["tx_queue"] for one in listed if one["state"] == state]

    def stop(guest, connections: int) -> None:
        """Pauses a guest while each connection to it has a lane, and has these end when they are full."""
        until(lambda: len(queued(guest, "lane")) == connections, 60 * net.slow, f"each has a lane to {guest.name}")
        guest.pause()
        until(lambda: set(queued(guest, "lane")) <= {ring}, 60 * net.slow, f"the rings to {guest.name} are full")
        g1.run(f"echo 1 >{PARAMETERS}/go_back")
        until(lambda: not queued(guest, "lane"), 60 * net.slow, f"the lanes to {guest.name} end")

    try:
        with streams.duplex(many, 2400) as client, other.duplex(1, 2400) as few:
            try:
                stop(g2, many)
                kept = len(queued(g2, "going-back"))
                assert kept in (7, 8)
                assert streams.counter("reset") == many - kept
                stop(g3, 1)
                assert len(queued(g3, "going-back")) == 1
                assert streams.counter("reset") == many - kept
            finally:
                for guest in (g2, g3):
                    guest.unpause()
            other.check(few)
            assert client.wait(60 * net.slow).code != 0
    finally:
        g3.run("rmmod vmloop_tcp", timeout=120)
        net.recover(g1, g3)


def test_a_crowd(net: Net, streams: Streams, record_property) -> None:
    """A thousand connections, of which a hundred are busy: each of these gets on, and idle ones hold no ring.

    The channel's memory is not enough for a lane for each: the others' bytes go by TCP.
    """
    g1, g2 = streams.g1, streams.g2
    # The busy ones ask again while the test lasts, on a slow machine too.
    g1.run(f"echo 16 >{PARAMETERS}/after_turns")
    words = [CROWD, "run", g2.ip, str(PORT), str(CONNECTIONS), str(BUSY), str(BUSY_SECONDS * net.slow)]
    with net.serving(g2, CROWD, "serve", str(PORT)), g1.popen(words) as client:
        client.wait_for("warm", 300 * net.slow)
        had = streams.counter("paired")
        seen: list[list[dict]] = []
        times: list[float] = []
        while client.poll() is None:
            times.append(net.lab.now())
            seen.append(streams.lanes(g1))
        result = client.wait(120 * net.slow)
    assert result.code == 0, result.err
    figures = json.loads(result.out.splitlines()[-1]) | {
        "lanes_while_all_were_busy": had,
        "lanes_at_most": max(map(len, seen)),
        "lanes_at_last": len(seen[-2]),
        "KiB_of_rings_at_most": max(sum(one["ring_size"] for one in lanes) for lanes in seen) >> 10,
        "bytes_by_lanes": streams.counter("tx_bytes"),
    }
    record_property("crowd", json.dumps(figures))
    print(figures)
    assert had and figures["lanes_at_last"], f"no connection has a lane: {figures}"
    before = {
        one["local"]: one["bytes_sent"]
        for n, lanes in enumerate(seen)
        if times[n] < times[-2] - IDLE * net.slow
        for one in lanes
    }
    idle = [one for one in seen[-2] if before.get(one["local"]) == one["bytes_sent"]]
    assert before and not idle, f"idle connections hold lanes: {idle}"
    assert min(one["ring_size"] for lanes in seen for one in lanes) == 64 << 10
    if not net.is_xen:
        assert figures["lanes_at_most"] > 24, f"rings are large, and so few: {figures}"
    assert figures["least"] >= 5 and figures["least"] * 10 >= figures["middle"], f"a connection starved: {figures}"
    assert figures["longest_s"] < 15 * net.slow, f"an exchange took so long: {figures}"
    assert streams.counter("reset") == 0
    until(lambda: not streams.lanes(g1) and not streams.lanes(g2), 30 * net.slow, "lanes end with their connections")
