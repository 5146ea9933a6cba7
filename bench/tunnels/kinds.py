# SPDX-License-Identifier: GPL-2.0
"""What two guests can put above or below their interfaces, as commands for both ends, and how it is laid.

The guest tests (tests/guest/test_tunnels.py) and the benchmark lay the same.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from vmlab import Guest
from vmlab.errors import VmlabError

NAME = "tun7"
"""The interface that is made, where one is."""
PORT = 4789
SPIS = (0x100, 0x200)
KEY = "0x" + "11" * 20
"""Of both directions; nobody else is there to read it."""
PRIVATE = ("W" * 42 + "A=", "X" * 42 + "A=")
"""WireGuard's keys of the two ends, base64: any 32 bytes will do."""
SAVED = "/run/vmlab-eth0"
"""Where a guest keeps its interface's addresses while something else has them."""


@dataclass(frozen=True)
class End:
    """One of the two guests."""

    number: int
    """0 or 1."""
    own: str
    """The address of its eth0."""
    other: str
    """And of the peer's."""

    @property
    def inner(self) -> str:
        """Its address above what is laid."""
        return f"10.99.0.{self.number + 1}"


Commands = Callable[[End], list[str]]


@dataclass(frozen=True)
class Kind:
    """One thing to lay, and to take away again."""

    title: str
    lay: Commands
    """For each end, the client's first."""
    undo: Commands
    by_channel: bool = True
    """Whether its frames are such as the channel takes."""
    outer: bool = False
    """The guests talk with their own addresses, not with ``End.inner``."""
    prefix: tuple[str, ...] = ()
    """What the client's commands begin with."""

    def target(self, server: End) -> str:
        """The address to talk to."""
        return server.own if self.outer else server.inner


def _delete(end: End) -> list[str]:
    return [f"ip link del {NAME}"]


def _link(title: str, how: Callable[[End], str], by_channel: bool = True) -> Kind:
    """An interface above eth0 with an address of its own; ``how`` ends `ip link add tun7`."""

    def lay(end: End) -> list[str]:
        return [how(end), f"ip addr add {end.inner}/24 dev {NAME}", f"ip link set {NAME} up"]

    return Kind(title, lay, _delete, by_channel)


def _added(words: str) -> Callable[[End], str]:
    """`ip link add` with the words, in which OWN and OTHER are the ends' addresses."""
    return lambda end: f"ip link add {words}".replace("OWN", end.own).replace("OTHER", end.other)


def _wireguard(end: End) -> list[str]:
    own, other = PRIVATE[end.number], PRIVATE[1 - end.number]
    return [
        "modprobe wireguard",
        f"ip link add {NAME} type wireguard",
        f"echo {own} >{SAVED}.key",
        f"wg set {NAME} listen-port 51820 private-key {SAVED}.key "
        f"peer $(echo {other} | wg pubkey) allowed-ips 10.99.0.0/24 endpoint {end.other}:51820",
        f"ip addr add {end.inner}/24 dev {NAME}",
        f"ip link set {NAME} up",
    ]


def _esp(offload: bool) -> Commands:
    """ESP between the two addresses, transport mode."""
    modules = "esp4 esp4_offload xfrm_user" if offload else "esp4 xfrm_user"

    def lay(end: End) -> list[str]:
        lines = [] if offload else ["rmmod esp4_offload 2>/dev/null || :"]
        lines.append(f"modprobe -a {modules}")
        ends = (end.own, end.other) if end.number == 0 else (end.other, end.own)
        for spi, source, target in ((SPIS[0], *ends), (SPIS[1], *reversed(ends))):
            between = f"src {source} dst {target}"
            way = "out" if source == end.own else "in"
            cipher = f"aead 'rfc4106(gcm(aes))' {KEY} 128"
            lines.append(f"ip xfrm state add {between} proto esp spi {spi} mode transport {cipher}")
            lines.append(f"ip xfrm policy add {between} dir {way} tmpl {between} proto esp mode transport")
        return lines

    return lay


def _no_esp(end: End) -> list[str]:
    return ["ip xfrm state flush", "ip xfrm policy flush", "rmmod esp4_offload 2>/dev/null || :"]


def _under(make: list[str]) -> Commands:
    """Another interface takes eth0 for itself, and its addresses."""

    def lay(end: End) -> list[str]:
        return [
            f"ip addr save dev eth0 >{SAVED}",
            "ip -4 addr flush dev eth0",
            *make,
            f"ip addr add {end.own}/24 dev {NAME}",
            f"ip link set {NAME} up",
        ]

    return lay


def _alone(end: End) -> list[str]:
    return ["ip link set eth0 nomaster", f"ip link del {NAME}", "ip link set eth0 up", f"ip addr restore <{SAVED}"]


def _container(end: End) -> list[str]:
    """A namespace behind the client, with masquerade."""
    if end.number:
        return []
    rule = "ip saddr 10.98.0.0/24 masquerade"
    return [
        "ip netns add c",
        "ip link add bc type veth peer name cb netns c",
        "ip addr add 10.98.0.1/24 dev bc",
        "ip -n c addr add 10.98.0.2/24 dev cb",
        "ip link set bc up",
        "ip -n c link set cb up",
        "ip -n c route add default via 10.98.0.1",
        "echo 1 >/proc/sys/net/ipv4/ip_forward",
        f"nft 'table ip t {{ chain c {{ type nat hook postrouting priority 100; {rule}; }}; }}'",
    ]


def _no_container(end: End) -> list[str]:
    if end.number:
        return []
    return ["nft delete table ip t", "ip netns del c", "echo 0 >/proc/sys/net/ipv4/ip_forward"]


VXLAN = f"{NAME} type vxlan id 7 local OWN remote OTHER dstport {PORT} dev eth0"
BRIDGE = [f"ip link add {NAME} type bridge", f"ip link set eth0 master {NAME}"]
BOND = [
    f"ip link add {NAME} type bond mode active-backup miimon 100",
    "ip link set eth0 down",
    f"ip link set eth0 master {NAME}",
]

KINDS = {
    "vxlan": _link("VXLAN", _added(VXLAN)),
    "vxlan-sums": _link("VXLAN with checksums", _added(f"{VXLAN} udpcsum")),
    "geneve": _link("Geneve", _added(f"{NAME} type geneve id 7 remote OTHER")),
    "gre": _link("GRE", _added(f"{NAME} type gre local OWN remote OTHER")),
    "gretap": _link("GRE, Ethernet", _added(f"{NAME} type gretap local OWN remote OTHER")),
    "ipip": _link("IP in IP", _added(f"{NAME} type ipip local OWN remote OTHER")),
    "vlan": _link("VLAN", _added(f"link eth0 name {NAME} type vlan id 7")),
    "macvlan": _link("macvlan", _added(f"link eth0 name {NAME} type macvlan mode bridge"), by_channel=False),
    "ipvlan": _link("ipvlan", _added(f"link eth0 name {NAME} type ipvlan mode l2")),
    "wireguard": Kind("WireGuard", _wireguard, _delete),
    "bridge": Kind("bridge", _under(BRIDGE), _alone, outer=True),
    "bond": Kind("bond", _under(BOND), _alone, by_channel=False, outer=True),
    "esp": Kind("ESP", _esp(False), _no_esp, outer=True),
    "esp-offload": Kind("ESP behind the hook", _esp(True), _no_esp, by_channel=False, outer=True),
    "container": Kind(
        "container, masquerade", _container, _no_container, outer=True, prefix=("ip", "netns", "exec", "c")
    ),
}

LAYING = 240.0
"""Seconds that an end may take. The first key of a guest's ESP takes its kernel up to a minute under emulation:
jitterentropy tests itself before there are the random numbers that seqiv wants. The guest's log says then
"DRBG: Continuing without Jitter RNG"."""


@contextmanager
def laid(kind: Kind, guests: tuple[Guest, Guest], patience: float = 1) -> Iterator[tuple[End, End]]:
    """What is laid between two guests, at both ends at once, is there meanwhile; the client's end comes first.

    ``patience`` is how many times longer than elsewhere commands may take.
    """
    addresses = [guest.ip for guest in guests]
    ends = End(0, *addresses), End(1, *reversed(addresses))
    both = list(zip(guests, ends, strict=True))
    try:
        with ExitStack() as stack:
            laying = [stack.enter_context(guest.popen("set -e\n" + "\n".join(kind.lay(end)))) for guest, end in both]
            for process in laying:
                done = process.wait(LAYING * patience)
                if done.code:
                    raise VmlabError(f"{process.machine}: {kind.title} cannot be laid: {done.err.strip()}")
        yield ends
    finally:
        for guest, end in both:
            guest.run("\n".join(kind.undo(end)), timeout=60 * patience)
