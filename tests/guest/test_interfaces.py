# SPDX-License-Identifier: GPL-2.0
"""Which interface gets a peer's frames, and which must not: see hub.py for the machine."""

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
    link = "link eth2" if kind == "macvlan" else ""
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
    hub.host.run("ip -n b link set eth1 netns 1")
    hub.host.run(f"ip link set eth1 netns b && ip -n b link set eth1 up && ip -n b addr add {IPS[1]}/24 dev eth1")
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
