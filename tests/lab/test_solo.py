# SPDX-License-Identifier: GPL-2.0
"""A machine by itself: as many CPUs as asked for, its own kernel, our modules, and all that root may do."""

import pytest
from vmlab import VmlabError

CPUS = 4

pytestmark = pytest.mark.lab(kind="solo", kernel="6.12", cpus=CPUS)


def test_cpus_and_kernel(lab, host):
    assert int(host.run("nproc").out) == CPUS
    assert host.run("uname -r").out.startswith("6.12.")
    assert [*lab.hosts, *lab.guests] == ["host"]
    with pytest.raises(VmlabError, match="no guests"):
        lab.add_guest()


def test_root_may_do_all(host):
    """Kinds of interfaces, rules and namespaces, for which the kernel fetches its modules itself."""
    host.run("""
        set -e
        ip netns add one
        ip link add v0 type veth peer name v1 netns one
        for kind in bridge bond dummy wireguard; do ip link add x-$kind type $kind; done
        ip link add x-vxlan type vxlan id 1 dstport 4789
        ip link add link v0 name x-macvlan type macvlan
        ip link add link x-dummy name x-ipvlan type ipvlan
        nft 'add table netdev t; add chain netdev t c { type filter hook egress device v0 priority 0; }'
        tc qdisc add dev v0 root netem delay 1ms
        ip netns del one
        nft delete table netdev t
        for kind in bridge bond ipvlan dummy wireguard vxlan; do ip link del x-$kind; done
    """)


def test_modules_of_the_checkout(host):
    host.run("modprobe vmloop_net && modprobe vmloop_loopback interfaces=02:00:00:00:00:01,02:00:00:00:00:02")
    assert "/updates/" in host.run("modinfo -n vmloop").out
    host.run("rmmod vmloop_loopback && rmmod vmloop_net && rmmod vmloop")
