# SPDX-License-Identifier: GPL-2.0
"""The parts of xen.py that need no machine."""

from tests.guest.xen import GONE, NOTHING, Held, interfaces, pages, parse_domains, parse_held, parse_ports

EVENT_CHANNELS = """\
   1: VCPU 0: Interdomain (Connected) - Remote Domain 0, Port 21
   2: VCPU 0: Interdomain (Connected) - Remote Domain 0, Port 22
   3: VCPU 0: Virtual IRQ 0
   4: VCPU 0: IPI
  17: VCPU 0: Interdomain (Connected) - Remote Domain 12, Port 31
  18: VCPU 0: Interdomain (Waiting connection) - Remote Domain 3
  19: VCPU 0: Interdomain (Connected) - Remote Domain 3, Port 9
"""

DOMAINS = """\
Name                                        ID   Mem VCPUs\tState\tTime(s)
Domain-0                                     0  2048     1     r-----      81.3
g1                                           1  1536     1     -b----      22.9
(null)                                       7     0     1     --p--d       4.0
"""

ANSWER = """\
parameter channels:2
parameter granted:2067
parameter ignored:5
parameter mapped:2065
parameter max_grants:0
parameter quarantined:3
interrupt            CPU0
interrupt  24:        831  xen-dyn    -event     vif0-q0-tx
interrupt  31:       5120  xen-dyn    -lateeoi   vmloop_xen
interrupt  32:         12  xen-dyn    -lateeoi   vmloop_xen
area 0xffffc90002000000-0xffffc90002811000 8458240 offer_alloc+0x7d/0x120 [vmloop_xen] pages=2064 vmalloc vpages N0=2064
area 0xffffc90003000000-0xffffc90003811000 8458240 vmloop_xen_map+0x1f2/0x3f0 [vmloop_xen] vmap
area 0xffffc90000111000-0xffffc90000113000    8192 vmloop_xen_map+0x1f2/0x3f0 [vmloop_xen] vmap
"""


def test_event_channels_by_domain():
    assert parse_ports(EVENT_CHANNELS) == {12: 1, 3: 2}
    assert parse_ports("") == {}


def test_dying_domains_are_seen():
    assert parse_domains(DOMAINS) == {0, 1, 7}


def test_what_a_guest_holds():
    found = parse_held(ANSWER, {12: 1})
    assert found == Held(
        granted=2067, quarantined=3, mapped=2065, channels=2, doorbells=2, areas=2, ports={12: 1}
    )  # fmt: skip
    assert found != NOTHING


def test_what_a_guest_without_the_module_holds():
    interrupts = "\n".join(line for line in ANSWER.splitlines() if "vif0" in line)
    assert parse_held(interrupts, {}) == GONE
    assert GONE != NOTHING


def test_pages_of_a_channel():
    # A header, two tables of 2 or 41 pages, and twice a ring and a quarter.
    assert pages(64 << 10) == (45 + 1, 45 + 1)
    assert pages(4 << 20) == (2643 + 3, 2643 + 1)


def test_what_is_believed_of_a_peer():
    peer = {"interface": [{"mac": "52:54:00:77:00:01", "ip": ["0a4d000b", "fd77" + "0" * 26 + "0b"]}]}
    assert interfaces(peer) == ({"52:54:00:77:00:01"}, {"10.77.0.11", "fd77::b"})
    assert interfaces({}) == (set(), set())
