# SPDX-License-Identifier: GPL-2.0
"""Which interface gets a peer's frames, and which must not: see hub.py for the machine."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.guest.hub import IPS, MACS, Hub, build
from tests.guest.net import until

pytestmark = [pytest.mark.lab(kind="solo", cpus=2)]

HUBS: list[Hub] = []
"""The one whose lab runs, if any."""


@pytest.fixture
def hub(lab) -> Iterator[Hub]:
    if not HUBS or HUBS[0].lab is not lab:
        build()
        HUBS[:] = [Hub(lab)]
    HUBS[0].set_up()
    yield HUBS[0]
    HUBS[0].clean()


def carried(hub: Hub, count: int = 20) -> None:
    """Pings are answered, and go by the channel."""
    before = hub.count()
    assert hub.ping(count) == count
    assert hub.count() - before >= count, "the channel did not carry them"


@pytest.mark.main("any user could take a guest's traffic")
def test_users_interface_gets_nothing(hub):
    """A veth with our address in a namespace that any user can make."""
    make = f"ip link add v0 address {MACS[1]} type veth peer name v1; ip link set v0 up; ip link set v1 up"
    with hub.host.popen(f"exec unshare -Urn sh -c '{make}; echo ready; read x; cat /proc/net/dev'") as user:
        user.wait_for("ready", 20)
        carried(hub)
        user.write("\n")
        assert user.wait(20).code == 0


@pytest.mark.parametrize("kind", ["dummy", "macvlan"])
def test_other_interface_gets_nothing(hub, kind):
    """Whatever has our address and is not the card, wherever it stands."""
    link = f"link {hub.cards()[MACS[2]]}" if kind == "macvlan" else ""
    hub.host.run(f"ip link add other {link} address {MACS[1]} type {kind}")
    try:
        carried(hub)
        hub.host.run("ip link set other up")
        carried(hub)
    finally:
        hub.host.run("ip link del other")


def test_card_whose_address_is_changed(hub):
    """Peers know it by the old one: it neither sends nor receives by the channel, and does again with that."""
    hub.run("b", "ip link set eth1 address 52:54:00:bb:00:01")
    hub.run("a", "ip neigh flush all")
    before = hub.count(peer="loopback1")
    assert hub.ping() == 20
    assert hub.count(peer="loopback1") == before
    hub.run("b", f"ip link set eth1 address {MACS[1]}")
    hub.run("a", "ip neigh flush all")
    carried(hub)


def test_card_that_moves(hub):
    """It is one and the same in whichever namespace it is."""
    hub.host.run("ip -n b link set eth1 netns 1 name moved")
    hub.host.run(
        f"ip link set moved netns b name eth1 && ip -n b link set eth1 up && ip -n b addr add {IPS[1]}/24 dev eth1"
    )
    hub.bring_up()
    carried(hub)


def test_named_interface(hub):
    """What the administrator names is stood at as long as it is named, where it is named."""
    parameter = "/sys/module/vmloop_net/parameters/interfaces"
    standing = "dmesg | grep -c 'va: vmloop: local peers'"

    def stood_at() -> int:
        return int(hub.host.run(standing, check=False).out or 0)

    before = stood_at()
    hub.run("a", f"echo va >{parameter}")
    assert hub.run("a", f"cat {parameter}").out == "va\n"
    assert hub.host.run(["cat", parameter]).out == "\n"
    hub.host.run(f"ip link add va address {MACS[0]} type veth")
    assert stood_at() == before, "named in another namespace"
    hub.host.run("ip link set va netns a")
    assert stood_at() == before + 1
    hub.run("a", f"echo >{parameter}; ip link del va")
    carried(hub)
    assert hub.run("a", f"echo ,, >{parameter}", check=False).code != 0


def past(hub: Hub, reason: str, count: int = 10, answered: int | None = None, drops: int = 0) -> None:
    """Pings take the standard network, for this reason, and so many are answered: all.

    The receiver's end has dropped ``drops`` frames before, and drops none.
    """
    frames, reasons = hub.count(), hub.count(f"standard_{reason}")
    assert hub.ping(count) == (count if answered is None else answered)
    assert hub.count() == frames, "the channel carried something"
    assert hub.count(f"standard_{reason}") - reasons >= count
    assert hub.count("drop_interface", "loopback1") == drops


@pytest.mark.main("rules at the last priority were bypassed")
def test_chain_of_the_last_priority(hub):
    """It was there before our modules, so that the kernel runs it after our hook."""
    chain = "{ type filter hook egress device eth0 priority 2147483647; }"
    hub.set_up(
        before=f"nft 'add table netdev t; add chain netdev t c {chain}; add rule netdev t c ip protocol icmp drop'"
    )
    until(lambda: not hub.ping(1) and all(one["state"] == "up" for one in hub.peers().values()), 20, "a channel")
    past(hub, "hook", answered=0)
    hub.run("a", "nft delete table netdev t")
    hub.bring_up()
    carried(hub)


@pytest.mark.parametrize(
    "qdisc",
    [
        pytest.param("tbf rate 20mbit burst 32k latency 50ms", marks=pytest.mark.main("shaping was bypassed")),
        "netem delay 1ms",
        "htb default 1",
        "fq maxrate 20mbit",
        "cake bandwidth 20mbit",
        "prio",
    ],
)
def test_root_qdisc_is_respected(hub, qdisc):
    hub.run("a", f"tc qdisc replace dev eth0 root {qdisc}")
    past(hub, "shaped")
    parameter = "/sys/module/vmloop_net/parameters/bypass_qdisc"
    hub.host.run(f"echo Y >{parameter}")
    carried(hub)
    hub.host.run(f"echo N >{parameter}")
    hub.run("a", "tc qdisc del dev eth0 root")
    carried(hub)


def test_nothing_gets_past_a_loss(hub):
    hub.run("a", "tc qdisc replace dev eth0 root netem loss 100%")
    past(hub, "shaped", answered=0)


@pytest.mark.parametrize("qdisc", ["pfifo", "fq", "fq_codel", "sfq"])
def test_root_qdisc_that_only_queues(hub, qdisc):
    hub.run("a", f"tc qdisc replace dev eth0 root {qdisc}")
    carried(hub)


@pytest.mark.main("frames for an interface without a driver were lost")
def test_receiver_without_driver(hub):
    device = hub.run("b", "readlink /sys/class/net/eth1/device").out.strip().rpartition("/")[2]
    hub.host.run(f"echo {device} >/sys/bus/virtio/drivers/virtio_net/unbind")
    try:
        past(hub, "receiver", answered=0)
    finally:
        hub.host.run(f"echo {device} >/sys/bus/virtio/drivers/virtio_net/bind")
        until(lambda: MACS[1] in hub.cards(), 10, "the card is back")
    names = hub.cards()
    hub.host.run(f"ip link set {names[MACS[1]]} netns b name eth1 && ip -n b link set eth1 up")
    hub.run("b", f"ip addr add {IPS[1]}/24 dev eth1")
    hub.bring_up()
    carried(hub)


@pytest.mark.main("programs in the receiver's driver were bypassed")
def test_receiver_with_native_xdp(hub, tmp_path):
    """It sees all frames that it saw without us; a generic one is no obstacle."""
    source = '__attribute__((section("xdp"), used)) int pass(void *context) { return 2; }'
    subprocess.run(
        ["clang", "-O2", "-target", "bpf", "-x", "c", "-c", "-", "-o", tmp_path / "pass.o"],
        input=source, text=True, check=True,
    )  # fmt: skip
    hub.host.run("cat >/run/pass.o", stdin=(tmp_path / "pass.o").read_bytes())
    hub.run("b", "ip link set eth1 xdpdrv obj /run/pass.o sec xdp")
    past(hub, "receiver")
    hub.run("b", "ip link set eth1 xdpdrv off")
    hub.bring_up()
    hub.run("b", "ip link set eth1 xdpgeneric obj /run/pass.o sec xdp")
    carried(hub)


BOND = f"""
set -e
ip link add bond0 type bond mode active-backup miimon 50
for n in eth1 eth2; do ip addr flush dev $n; ip link set $n down; ip link set $n master bond0; done
ip link set bond0 address {MACS[1]}
ip addr add {IPS[1]}/24 dev bond0
ip link set bond0 up
ip link set bond0 type bond active_slave eth2
"""


@pytest.mark.main("a bond over two cards lost all traffic")
def test_bond_that_fails_over(hub):
    """Frames for a bond's port would be dropped where it is not the active one."""
    hub.host.run(f"ip link set {hub.cards()[MACS[2]]} netns b name eth2")
    hub.run("b", BOND)
    until(lambda: hub.ping(1), 10, "the bond is up")
    past(hub, "receiver")
    hub.plug(2, up=False)
    until(lambda: "eth1" in hub.run("b", "cat /sys/class/net/bond0/bonding/active_slave").out, 10, "eth1 is active")
    past(hub, "receiver")
    hub.plug(2)
    before = hub.count(peer="loopback1")
    assert hub.ping(where="b", ip=IPS[0]) == 20
    assert hub.count(peer="loopback1") == before


def test_bond_that_is_named(hub):
    """By the channel, whichever of its ports is active."""
    hub.host.run(f"ip link set {hub.cards()[MACS[2]]} netns b name eth2")
    hub.run("b", BOND)
    hub.run("b", "echo bond0 >/sys/module/vmloop_net/parameters/interfaces")
    hub.bring_up()
    carried(hub)
    hub.run("b", "ip link set bond0 type bond active_slave eth1")
    carried(hub)
    before = hub.count(peer="loopback1")
    assert hub.ping(where="b", ip=IPS[0]) == 20
    assert hub.count(peer="loopback1") - before >= 20


def test_receiver_whose_cable_is_pulled(hub):
    """As without us: nothing gets there."""
    hub.plug(1, up=False)
    try:
        until(lambda: not hub.ping(1), 10, "nothing gets there")
        # A ping that was in the ring before the sender was told is lost, as in a cable.
        past(hub, "receiver", answered=0, drops=hub.count("drop_interface", "loopback1"))
    finally:
        hub.plug(1)
    hub.bring_up()


@pytest.mark.main("readers of counters met a table that was not ours")
def test_counters_are_read_while_interfaces_come_and_go(hub):
    """/proc/net/dev is read all the time while the copy of the driver's operations comes and goes."""
    name = "echo va >/sys/module/vmloop_net/parameters/interfaces"
    unname = "echo >/sys/module/vmloop_net/parameters/interfaces"
    hub.run("a", f"ip link add va address {MACS[0]} type veth")
    reader = "while :; do cat /proc/net/dev >/dev/null || exit 1; done"
    with hub.host.popen(["ip", "netns", "exec", "a", "sh", "-c", reader]) as one:
        hub.run("a", f"n=0; while [ $n -lt 100 ]; do {name}; {unname}; n=$((n + 1)); done")
        assert one.poll() is None
    hub.run("a", "ip link del va")
    until(lambda: hub.ping(1), 10, "all is as before")
    carried(hub)
