# SPDX-License-Identifier: GPL-2.0
"""The lab's own tests that need a Xen host."""

import re
import statistics
import time

import pytest
from vmlab import GuestFailed, LabFailed, VmlabError
from vmlab.process import allowed

pytestmark = pytest.mark.lab(guests=2, kind="xen")


def until(look, seconds, what):
    """Look again and again until it finds something true; return that."""
    deadline = time.monotonic() + allowed(seconds)
    while not (found := look()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def test_dom0_is_one(host):
    assert host.run("cat /sys/hypervisor/type").out == "xen\n"
    assert "Domain-0" in host.run("xl list").out


def test_guests_are_pv(g1):
    assert g1.run("cat /sys/hypervisor/guest_type").out == "PV\n"
    assert g1.domid is not None
    with pytest.raises(VmlabError, match="no QMP"):
        g1.qmp("query-status")


def test_guests_see_xenstore_as_the_design_has_it(host, g1):
    """What the control plane needs of XenStore's permissions."""
    base = f"/local/domain/{g1.domid}"
    g1.run("xenstore-write data/vmloop/x hello")
    assert host.run(f"xenstore-read {base}/data/vmloop/x").out == "hello\n"

    host.run(f"xenstore-write {base}/vmloop/peers 1 && xenstore-chmod -r {base}/vmloop n0 r{g1.domid}")
    assert g1.run("xenstore-read vmloop/peers").out == "1\n"
    for forbidden in ("xenstore-write vmloop/peers 2", "xenstore-write vmloop/mine 2", "xenstore-rm vmloop"):
        refused = g1.run(forbidden, check=False)
        assert refused.code != 0
        assert "EACCES" in refused.err or "could not" in refused.err
    assert host.run(f"xenstore-read {base}/vmloop/peers").out == "1\n"

    with g1.popen("xenstore-watch -n 2 vmloop") as watch:
        until(lambda: watch.out.count("vmloop") >= 1, 20, "the first event")
        host.run(f"xenstore-write {base}/vmloop/peers 3")
        assert watch.wait(20).code == 0
        assert "vmloop/peers" in watch.out


def test_guests_see_no_peers_nodes(lab, g1, g2):
    g2.run("xenstore-write data/vmloop/secret 1")
    assert g2.run("xenstore-read data/vmloop/secret").out == "1\n"
    assert g1.run(f"xenstore-read /local/domain/{g2.domid}/data/vmloop/secret", check=False).code != 0


def test_the_trustworthy_mac(host, g1):
    node = f"/local/domain/0/backend/vif/{g1.domid}/0/mac"
    assert host.run(["xenstore-read", node]).out.strip() == g1.mac
    assert g1.run(f"xenstore-write {node} 00:16:3e:00:00:01", check=False).code != 0
    assert host.run(["xenstore-read", node]).out.strip() == g1.mac


def test_vif_is_in_the_bridge(host, g1):
    assert f"master {g1.spec.bridge}" in host.run(f"ip link show {g1.spec.tap}").out


def test_routed_guests(lab, g1):
    """Two subnets with dom0 between them."""
    other = lab.add_guest(bridge="br7", subnet=7)
    assert other.ip == "10.77.7.13"
    other.run(f"ping -c 1 -w 10 {g1.ip}")
    ttl = re.search(r"ttl=(\d+)", g1.run(f"ping -c 1 -w 10 {other.ip}").out)
    assert ttl
    assert ttl[1] == "63"
    lab.remove_guest(other.name)


def test_vlan(lab, g1):
    """A guest of another VLAN on the same bridge is apart."""
    other = lab.add_guest(vlan=9)
    assert other.run(f"ping -c 1 -w 2 {g1.ip}", check=False).code != 0
    lab.remove_guest(other.name)


def test_large_mtu(lab, host):
    other = lab.add_guest(mtu=9000, bridge="br9")
    assert other.run("cat /sys/class/net/eth0/mtu").out == "9000\n"
    assert "mtu 9000" in host.run(f"ip link show {other.spec.tap}").out
    lab.remove_guest(other.name)


def test_a_crash_that_xen_reports_is_the_guests(lab, host, g1):
    """The hypervisor speaks on the host's console, about a guest."""
    host.run(f"echo '(XEN) Domain {g1.domid} (vcpu#0) crashed on cpu#1:' >/dev/console")
    found = until(lab.findings, 5, "the line is found")
    assert [(one.machine, one.detector) for one in found] == [("g1", "domain-crash")]
    host.run("echo '(XEN) Domain 9999 (vcpu#0) crashed on cpu#1:' >/dev/console")
    with pytest.raises(LabFailed, match="9999"):
        until(lab.check_consoles, 5, "the line is found")


def test_a_guest_that_shuts_itself_down(g1):
    with pytest.raises(GuestFailed):
        g1.run("echo o >/proc/sysrq-trigger; sleep 60", timeout=60)
    until(lambda: g1.exit_status is not None, 20, "it ended")
    assert g1.exit_status == 0
    g1.start()


def test_what_xl_refuses_is_told(lab):
    with pytest.raises(GuestFailed, match="memory"):
        lab.add_guest(memory=100000)
    lab.remove_guest(next(reversed(lab.guests)))
    with pytest.raises(VmlabError, match="choose one of pv, pvh"):
        lab.add_guest(machine="q35")


@pytest.mark.lab(guests=1, kind="xen", kernel="6.12", machine="pvh")
def test_pvh(g1, host):
    assert g1.run("cat /sys/hypervisor/guest_type").out == "PVH\n"
    assert g1.run("uname -r").out.startswith("6.12.")
    g1.run("modprobe veth && ping -c 1 -w 10 host")


@pytest.mark.lab(guests=1, kind="xen", kernel="6.12")
def test_pv_with_the_newer_kernel(g1):
    assert g1.run("cat /sys/hypervisor/guest_type; uname -r").out.startswith("PV\n6.12.")
    g1.run("ping -c 1 -w 10 host")


@pytest.mark.lab(guests=2, kind="xen", virtual_time=True)
def test_virtual_time_is_steady(g1, g2):
    """Round trips take the same virtual time again and again, whatever the machine does."""
    g1.run("ping -c 5 -i 0.01 g2")
    means = []
    for _ in range(5):
        out = g1.run("ping -c 50 -i 0.01 -q g2").out
        found = re.search(r"= [\d.]+/([\d.]+)/", out)
        assert found
        means.append(float(found[1]))
    middle = statistics.median(means)
    assert max(means) < 1.1 * middle, means
    assert min(means) > 0.9 * middle, means
