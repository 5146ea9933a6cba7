# SPDX-License-Identifier: GPL-2.0
"""What vmloop holds of Xen, told by three that do not copy from each other.

The module counts grants and mappings; the guest's kernel lists interrupts and
large areas of addresses by who made them; Xen lists a guest's event channels
and the domains that are not quite gone. A leak that one of them does not see
shows in another.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vmlab import Guest
from vmlab.machine import Host
from vmlab.xen import TOOLS

from tests.guest.net import Net

PAGE = 4096
ENTRY = 320
"""Bytes that a lane takes in each of the two tables."""
GRANTS_A_PAGE = 1014
"""Grants in one page of a descriptor (docs/protocol.md, section 8)."""

LARGE = 128 << 10
"""Bytes: a region is larger, and all else that the module allocates is smaller."""

HELD = """
grep -s . /sys/module/vmloop_xen/parameters/* | sed 's,.*/,parameter ,'
sed 's,^,interrupt ,' /proc/interrupts
grep -F '[vmloop_xen]' /proc/vmallocinfo | sed 's,^,area ,'
true
"""
"""What a guest is asked; parse_held() reads the answer."""


@dataclass(frozen=True)
class Held:
    """What vmloop holds of Xen in one guest."""

    loaded: bool = True
    """Whether the transport is there; the next four are its own counters."""
    granted: int = 0
    quarantined: int = 0
    mapped: int = 0
    channels: int = 0
    doorbells: int = 0
    """Its interrupts, as the kernel lists them."""
    areas: int = 0
    """Regions that it made or mapped, as the kernel lists them."""
    ports: Mapping[int, int] = field(default_factory=dict)
    """Event channels to each other guest, as Xen lists them, by domain."""


NOTHING = Held()
GONE = Held(loaded=False)


def parse_held(answer: str, ports: Mapping[int, int]) -> Held:
    """What a guest answered to HELD, and Xen of its event channels."""
    counters = {name: int(value) for name, value in re.findall(r"^parameter (\w+):(\d+)$", answer, re.M)}
    areas = re.findall(r"^area \S+ +(\d+) ", answer, re.M)
    names = ("granted", "quarantined", "mapped", "channels")
    return Held(
        loaded="channels" in counters,
        doorbells=len(re.findall(r"^interrupt .*\svmloop_xen(?:-lane\d)?$", answer, re.M)),
        areas=sum(int(size) > LARGE for size in areas),
        ports=ports,
        **{name: counters.get(name, 0) for name in names},
    )


def parse_ports(listed: str) -> dict[int, int]:
    """How many event channels lead, or could lead, to each domain but dom0, from what lsevtchn prints."""
    remote = [int(domain) for domain in re.findall(r"^ *\d+: .*Remote Domain (\d+)", listed, re.M)]
    return dict(Counter(domain for domain in remote if domain))


def parse_domains(listed: str) -> set[int]:
    """The domains that `xl list` shows, those that are dying included."""
    return {int(number) for number in re.findall(r"^\S+ +(\d+) ", listed, re.M)}


def held(host: Host, guest: Guest, domain: int) -> Held:
    """What a guest, whose domain id that is, holds now."""
    ports = parse_ports(host.run([f"{TOOLS}/lsevtchn", str(domain)]).out)
    return parse_held(guest.run(HELD).out, ports)


def domains(host: Host) -> set[int]:
    """All domains that Xen knows. One of whose pages somebody has mapped stays."""
    return parse_domains(host.run([f"{TOOLS}/xl", "list"]).out)


def ids(guests: Iterable[Guest]) -> dict[str, int]:
    """Domain ids by name; all of them run."""
    found = {guest.name: guest.domid for guest in guests}
    return {name: domain for name, domain in found.items() if domain is not None}


def pages(ring_size: int) -> tuple[int, int]:
    """How many pages side 0 of a channel grants, and side 1 maps, for rings of so many bytes."""
    lanes = min(max(ring_size // 8192, 12), 512)
    table = 1 + -(-lanes * ENTRY // PAGE)
    region = 1 + 2 * table + 2 * (ring_size + ring_size // 4) // PAGE
    # Of the descriptor, side 1 keeps the first page.
    return region + -(-region // GRANTS_A_PAGE), region + 1


def expected(net: Net, guest: Guest, peers: Iterable[Guest], domain: Mapping[str, int]) -> Held:
    """What a guest holds with one channel to each of these peers, which are up, and no other."""
    known = net.peers(guest)
    granted = mapped = 0
    ports = {}
    for peer in peers:
        lent, borrowed = pages(known[peer.name].peer["ring_size"])
        if domain[guest.name] < domain[peer.name]:
            granted += lent
        else:
            mapped += borrowed
        ports[domain[peer.name]] = 1
    count = len(ports)
    return Held(granted=granted, mapped=mapped, channels=count, doorbells=count, areas=count, ports=ports)


def interfaces(peer: dict[str, Any]) -> tuple[set[str], set[str]]:
    """The Ethernet and IP addresses that a guest's modules believe of a peer (`control peers`)."""
    listed = peer.get("interface", [])
    ips = {str(ipaddress.ip_address(bytes.fromhex(ip))) for one in listed for ip in one.get("ip", [])}
    return {one["mac"] for one in listed}, ips
