# SPDX-License-Identifier: GPL-2.0
"""A guest that writes whatever it likes into the memory that it shares.

g3 attacks g1 with tests/guest/tools/shm.c: past its own modules it writes
frames, records, positions and states that no module would. g1 must drop and
count, or end the channel and use the standard network; its console must stay
clean (the lab's fixture sees to that), and g2 must not notice.
"""

import ipaddress
import struct
import subprocess
from contextlib import contextmanager

import pytest

from tests.guest.net import DROPS, HERE, TOOLS, known_neighbours, until

pytestmark = pytest.mark.kvm_only
"""The attacker's tool finds memory by its PCI device."""

QUIET = """
add table netdev quiet
add chain netdev quiet out { type filter hook egress device eth0 priority 0; }
add rule netdev quiet out drop
"""


def attacks() -> dict[str, str]:
    """Name of each attack, and what must come of it; the tool has the table."""
    subprocess.run(["make", "-s", "-C", TOOLS.parents[1] / "tests/guest/tools"], check=True)
    listed = subprocess.run([TOOLS / "shm", "list-attacks"], check=True, capture_output=True, text=True).stdout
    return dict(line.split(": ") for line in listed.splitlines())


ATTACKS = attacks()
COUNTED = [name for name, outcome in ATTACKS.items() if outcome.startswith("counter")]
ENDING = [name for name, outcome in ATTACKS.items() if not outcome.startswith("counter")]


@contextmanager
def silent(guest):
    """Its modules send nothing, so that only we write to its rings."""
    guest.run("nft -f -", stdin=QUIET)
    try:
        yield
    finally:
        guest.run("nft delete table netdev quiet")


def attack(net, attacker, victim, name, other):
    tag = net.peers(attacker)[victim.name].tag
    attacker.run([f"{HERE}/shm", "attack", str(tag), name, attacker.mac, victim.mac, other.mac])


def have_all_lanes(net, a, b) -> bool:
    """Whether two guests have as many packet lanes as there may be: one for each CPU of the smaller one."""
    most = min(8, *(int(guest.run("nproc").out) for guest in (a, b)))
    return [peer and peer.peer["lanes"] for peer in net.between(a, b)] == [most, most]


def deltas(net, victim, attacker, before):
    now = net.peers(victim)[attacker.name].stats
    return {name: now[name] - before[name] for name in now}


@pytest.mark.main("what a peer writes is hostile: frames")
def test_frames_that_cannot_be(net, g1, g2, g3):
    """Each is dropped and counted under its own reason, one by one, and nothing else happens."""
    wrong = {}
    # A channel of its own for the table: the modules' position is not ours afterwards.
    with known_neighbours(g1, g3), silent(g3), silent(g1):
        for name in COUNTED:
            before = net.peers(g1)["g3"].stats
            attack(net, g3, g1, name, g2)
            _, counter, count = ATTACKS[name].split()

            def counted(before=before, counter=counter, count=count):
                moved = deltas(net, g1, g3, before)
                return moved[counter] >= int(count) and moved

            try:
                moved = until(counted, 3 * net.slow, f"{counter} moves")
            except AssertionError as error:
                wrong[name] = str(error)
                continue
            expected = dict.fromkeys(("rx_frames", *DROPS), 0) | {counter: int(count)}
            seen = {one: moved[one] for one in expected}
            if seen != expected or net.state(g1, g3) != "up":
                wrong[name] = f"{seen}, state {net.state(g1, g3)}"
    net.command("close", "g1", "g3")
    assert not wrong, wrong
    net.recover(g1, g3)
    with net.carried(g1, g3):
        g1.run(f"ping -c 3 -i 0.05 -q {g3.ip}")


@pytest.mark.main("what a peer writes is hostile: addresses")
def test_forged_source_is_not_delivered(net, g1, g2, g3):
    """The frame that carries its own address is seen in g1, the forged one is not."""
    with known_neighbours(g1, g3), silent(g3), silent(g1):
        with g1.popen("tcpdump -i eth0 -n -e -l --immediate-mode ether proto 0x88b5") as capture:
            capture.wait_for("listening on")
            attack(net, g3, g1, "forged_source", g2)
            attack(net, g3, g1, "good", g2)
            capture.wait_for(g3.mac)
            capture.terminate()
            seen = capture.wait(20).out
        assert g2.mac not in seen and seen.count("ethertype Unknown (0x88b5)") == 1, seen
    net.command("close", "g1", "g3")
    net.recover(g1, g3)


CONTAINER = """
set -e
ip netns add c
ip link add bc type veth peer name cb netns c
ip addr add 10.7.0.1/24 dev bc
ip -n c addr add 10.7.0.2/24 dev cb
ip link set bc up
ip -n c link set cb up
ethtool -K bc tx off >/dev/null
echo 1 >/proc/sys/net/ipv4/ip_forward
"""
"""A container of the victim's, reached by an interface that leaves all checksums to software."""

NO_CONTAINER = "echo 0 >/proc/sys/net/ipv4/ip_forward; ip netns del c"
NEEDS_CSUM, DATA_VALID = 1, 2
CSUM_START, CSUM_OFFSET = 14 + 20, 6


def folded(data: bytes) -> int:
    """The Internet's sum of 16-bit words."""
    total = sum(int.from_bytes(data[n : n + 2], "big") for n in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def datagram_to_container(source, router) -> bytes:
    """A frame with a UDP datagram of which only the pseudo header has been summed."""
    data = b"data" * 25
    ends = ipaddress.IPv4Address(source.ip).packed + ipaddress.IPv4Address("10.7.0.2").packed
    size = 8 + len(data)
    udp = struct.pack(">HHHH", 9, 9, size, folded(ends + struct.pack(">HH", 17, size))) + data
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + size, 1, 0, 64, 17, 0) + ends
    ip = ip[:10] + struct.pack(">H", ~folded(ip) & 0xFFFF) + ip[12:]
    return bytes.fromhex((router.mac + source.mac).replace(":", "")) + b"\x08\0" + ip + udp


def test_checksum_that_is_to_be_computed_is_not_valid(net, g1, g3):
    """A record that says both: it is computed where the datagram goes on."""
    frame = datagram_to_container(g3, g1).hex()
    g1.run(CONTAINER)
    try:
        with known_neighbours(g1, g3), silent(g3):
            tag = str(net.peers(g3)["g1"].tag)
            for flags, seen in ((DATA_VALID, "bad udp cksum"), (NEEDS_CSUM | DATA_VALID, "udp sum ok")):
                with g1.popen("ip netns exec c tcpdump -i cb -n -vv -l --immediate-mode udp port 9") as capture:
                    capture.wait_for("listening on")
                    words = (tag, frame, str(flags), str(CSUM_START), str(CSUM_OFFSET))
                    g3.run([f"{HERE}/shm", "frame", *words])
                    assert capture.wait_for("udp sum ok|bad udp cksum")[0] == seen
        net.command("close", "g1", "g3")
        net.recover(g1, g3)
    finally:
        g1.run(NO_CONTAINER)


ONE_OF_EACH = (
    "unaligned_head",
    "record_of_all_ones",
    "tail_past_the_head",
    "changing_records",
    "life_backwards",
    "lanes_of_packets",
    "lanes_of_wild_slots",
)
MAIN = pytest.mark.main("what a peer writes is hostile: positions and records")


@pytest.mark.parametrize("name", [pytest.param(name, marks=MAIN) if name in ONE_OF_EACH else name for name in ENDING])
def test_channel_that_lies(net, g1, g2, g3, name):
    """The channel is ended, both go on by the standard network, and can begin again."""
    outcome = ATTACKS[name]
    until(lambda: have_all_lanes(net, g1, g3), 10 * net.slow, "all packet lanes are open")
    with known_neighbours(g1, g3):
        with silent(g3):
            attack(net, g3, g1, name, g2)
            if name == "tail_past_the_head":
                # Noticed by who looks for room: g1 must send more than a ring.
                g1.run(f"head -c 20000000 /dev/zero | socat -u -b 60000 - UDP-SENDTO:{g3.ip}:9", timeout=60 * net.slow)
            if outcome == "broken":
                net.wait_state(g1, g3, "broken", 3)
            elif outcome == "ended":
                until(lambda: net.state(g1, g3) != "up", 3 * net.slow, "g1 ends the channel")
            elif name == "changing_records":
                # g3's own modules do not know how far its ring was filled.
                net.command("close", "g1", "g3", check=False)  # it may be broken by now
                until(lambda: net.state(g1, g3) != "up", 3 * net.slow, "the channel is closed")
        taps = net._taps()

        def pings() -> bool:
            return g1.run(f"ping -c 3 -i 0.05 -W 1 -q -s 1000 {g3.ip}", check=False).code == 0

        # g3's own modules learn from g1 that a lane is closed: until then they answer by it.
        until(pings, 5 * net.slow, "both go on")
        if outcome == "broken":
            seen = net.peers(g1)["g3"].peer
            assert seen["breaks"] >= 1 and seen["break"], "that the peer broke the rules is shown, and how"
            if seen["state"] == "broken":  # it is tried again after a second
                assert net._taps()["g1"] - taps["g1"] >= 6 * 1000, "the standard network did not carry it"
    with net.carried(g1, g2):
        g1.run(f"ping -c 3 -i 0.05 -q {g2.ip}")
    net.recover(g1, g3)
    # One lane that was closed is wanted again after a second, while the channel stays up.
    until(lambda: have_all_lanes(net, g1, g3), 10 * net.slow, "all packet lanes are open again")
    with net.carried(g1, g3):
        g1.run(f"ping -c 3 -i 0.05 -q {g3.ip}")


def test_doorbells_without_end(net, g1, g2, g3):
    """While g3 rings and rings, the transfer between the others goes on."""
    tag = net.peers(g3)["g1"].tag
    with (
        net.transfer(g2, g1) as transfer,
        g3.popen(f"while :; do {HERE}/shm attack {tag} many_doorbells {g3.mac} {g1.mac}; done") as ringing,
    ):
        transfer.wait_bytes(20_000_000, 120)  # the flood costs the host more than the transfer
        assert ringing.poll() is None, ringing.err
        transfer.finish()
    assert net.state(g1, g3) == "up"
