# SPDX-License-Identifier: GPL-2.0
"""A lab of two hosts: one network, and guests that move between them."""

import subprocess

import pytest
from vmlab import CommandFailed, GuestFailed, paths
from vmlab.xen import XL

pytestmark = pytest.mark.migrations


def pytest_generate_tests(metafunc):
    """Each test on both kinds of host, unless it is about what only one has."""
    kinds = ["kvm"] if metafunc.definition.get_closest_marker("kvm_only") else ["kvm", "xen"]
    marked = [pytest.param(kind, id=kind, marks=pytest.mark.lab(kind=kind, hosts=2, guests=2)) for kind in kinds]
    metafunc.parametrize("kind", marked)


@pytest.fixture(autouse=True)
def of_this_kind(kind, lab):
    assert lab.kind.name == kind


def on(guest):
    """Its QEMU, or domain, is on its host, and nowhere else."""
    if guest.lab.kind.name == "xen":
        words = f"{XL} list | grep -c '^{guest.name}[ -]'"
    else:
        words = f"pgrep -fc '^qemu-system.* -name {guest.name} '"
    found = {name: host.run(words, check=False).out.strip() for name, host in guest.lab.hosts.items()}
    return found == {name: "1" if name == guest.host.name else "0" for name in guest.lab.hosts}


def test_hosts_are_one_network(lab, g1, g2):
    assert (g1.host.name, g2.host.name) == ("host", "host2")
    assert on(g1) and on(g2)
    g1.run("ping -c 3 -i 0.2 g2")
    g2.run(f"ping -6 -c 3 -i 0.2 {g1.ip6}")
    lab.hosts["host2"].run("ping -c 1 host")
    g2.run("ping -c 1 host")


def test_a_guest_moves_and_is_reached_as_before(lab, g1, g2):
    g2.run("setsid -f sh -c 'while sleep 0.1; do date +%s.%N; done >/tmp/dates' >/dev/null 2>&1 </dev/null")
    for there in ("host", "host2"):
        lab.migrate("g2", there)
        assert g2.host.name == there and on(g2)
        assert g2.running and g2.exit_status is None
        before = g2.run("wc -l </tmp/dates").out
        g2.run("sleep 0.5")
        assert int(g2.run("wc -l </tmp/dates").out) > int(before), "what ran in it goes on"
        g1.run("ping -c 3 -i 0.2 g2")
        words = ["exec", "--name", lab.name, "g2", "--", "hostname"]
        done = subprocess.run([paths.REPO / "vmlab", *words], capture_output=True, timeout=60, check=False)
        assert done.stdout == b"g2\n"
    # Its end is noticed by who looks after it now.
    g2.kill()
    assert g2.exit_status == 137 and not g2.running


def test_a_migration_that_does_not_begin(lab, g2):
    here = g2.host

    def fail(uri):
        raise CommandFailed("not today")

    with pytest.raises(CommandFailed, match="not today"):
        lab.migrate("g2", "host", fail)
    assert g2.host is here and on(g2)
    g2.run("true")


@pytest.mark.kvm_only
def test_a_migration_that_is_cancelled(lab, g2):
    here = g2.host

    def cancel(uri):
        g2.qmp("migrate-set-parameters", {"max-bandwidth": 1 << 20})
        g2.qmp("migrate", {"uri": uri})
        g2.qmp("migrate_cancel")

    with pytest.raises(GuestFailed, match="cancelled"):
        lab.migrate("g2", "host", cancel)
    assert g2.host is here and on(g2)
    g2.run("true")
