# SPDX-License-Identifier: GPL-2.0
"""What guests put above and below their interfaces: tunnels, virtual interfaces, containers.

Each is laid between two guests whose channel is up, messages whose every byte is
checked pass both ways, and both channels' counters and kernels' logs are looked
at afterwards. By which way the frames go is not the same for all:

    channel   source and destination are the interfaces' own addresses
    standard  other addresses (macvlan), or to be encrypted behind the hook (ESP)
"""

from contextlib import contextmanager

import pytest

from tests.guest.net import DROPS, HERE

PORT = "7300"
KEY = "0x" + "11" * 20
SIZES = (1, 100, 1400, 1448, 1473, 9000, 65536, 300_000)


def link(kind, own, other, remote):
    """The commands that make interface tun7 of a kind."""
    ends = f"local {own} remote {other}"
    return {
        "vxlan": f"ip link add tun7 type vxlan id 7 {ends} dstport 4789 dev eth0",
        "vxlan-sums": f"ip link add tun7 type vxlan id 7 {ends} dstport 4789 dev eth0 udpcsum",
        "geneve": f"ip link add tun7 type geneve id 7 remote {other}",
        "gre": f"ip link add tun7 type gre {ends}",
        "gretap": f"ip link add tun7 type gretap {ends}",
        "ipip": f"ip link add tun7 type ipip {ends}",
        "vlan": "ip link add link eth0 name tun7 type vlan id 7",
        "macvlan": "ip link add link eth0 name tun7 type macvlan mode bridge",
        "ipvlan": "ip link add link eth0 name tun7 type ipvlan mode l2",
    }[kind] + f"; ip addr add {remote}/24 dev tun7; ip link set tun7 up"


def esp(own, other):
    """The commands that have all traffic between two addresses encrypted, transport mode."""
    lines = ["modprobe -a esp4 esp4_offload xfrm_user"]
    for spi, source, target in ((0x100, *sorted((own, other))), (0x200, *sorted((own, other), reverse=True))):
        ends = f"src {source} dst {target}"
        way = "out" if source == own else "in"
        lines.append(f"ip xfrm state add {ends} proto esp spi {spi} mode transport aead 'rfc4106(gcm(aes))' {KEY} 128")
        lines.append(f"ip xfrm policy add {ends} dir {way} tmpl {ends} proto esp mode transport")
    return "\n".join(lines)


@contextmanager
def counted(net, a, b):
    """Yields a table that is filled at the end of the block with what both ends have counted together."""
    before = net.both(a, b)
    found: dict[str, int] = {}
    yield found
    after = net.both(a, b)
    assert after[0].state == after[1].state == "up"
    for key in after[0].stats:
        found[key] = sum(one[key] - other[key] for one, other in zip(after, before, strict=True))
    assert not any(found[name] for name in DROPS), found


def converse(net, client, server, ip, prefix=()):
    """Messages of all sizes, both ways, by TCP and UDP."""
    words = [*prefix, f"{HERE}/pattern"]
    with net.serving(server, f"{HERE}/pattern", "serve", PORT):
        client.run([*words, "tcp", ip, PORT, *map(str, SIZES)], timeout=60 * net.slow)
        client.run([*words, "udp", ip, PORT, "1", "1400", "1473", "9000"], timeout=60 * net.slow)


@pytest.mark.parametrize(
    "kind", ["vxlan", "vxlan-sums", "geneve", "gre", "gretap", "ipip", "vlan", "macvlan", "ipvlan"]
)
def test_interface(net, g1, g2, kind):
    """An interface above eth0 in each guest."""
    for guest, own, other, ip in ((g1, g1.ip, g2.ip, "10.99.0.1"), (g2, g2.ip, g1.ip, "10.99.0.2")):
        guest.run(f"set -e\n{link(kind, own, other, ip)}")
    try:
        with counted(net, g1, g2) as found:
            converse(net, g1, g2, "10.99.0.2")
    finally:
        for guest in (g1, g2):
            guest.run("ip link del tun7")
    assert not found["standard_segmentation"], found
    if kind == "macvlan":
        assert found["tx_bytes"] < 20_000, found
    else:
        assert found["tx_bytes"] > 2 * sum(SIZES), found


def converse_by_esp(net, g1, g2, *, offload):
    """Talk by ESP in transport mode; what both ends have counted."""
    for guest, own, other in ((g1, g1.ip, g2.ip), (g2, g2.ip, g1.ip)):
        commands = esp(own, other)
        if not offload:
            guest.run("rmmod esp4_offload", check=False)
            commands = commands.replace(" esp4_offload", "")
        guest.run(f"set -e\n{commands}")
    try:
        with counted(net, g1, g2) as found:
            converse(net, g1, g2, g2.ip)
    finally:
        for guest in (g1, g2):
            guest.run("ip xfrm state flush; ip xfrm policy flush; rmmod esp4_offload", check=False)
    return found


def test_ipsec(net, g1, g2):
    """ESP with esp4_offload is encrypted behind the hook, and stays out of the ring."""
    found = converse_by_esp(net, g1, g2, offload=True)
    assert found["standard_encrypted"] > 0, found


def test_ipsec_before_the_hook(net, g1, g2):
    """ESP without esp4_offload is encrypted before the hook, and carried by the channel."""
    found = converse_by_esp(net, g1, g2, offload=False)
    assert found["tx_bytes"] > 2 * sum(SIZES), found
    assert not found["standard_encrypted"], found


def test_container(net, g1, g2):
    """A namespace behind g1, with masquerade: its packets have eth0's address when they leave."""
    g1.run(
        """
        set -e
        ip netns add c
        ip link add bc type veth peer name cb netns c
        ip addr add 10.98.0.1/24 dev bc
        ip -n c addr add 10.98.0.2/24 dev cb
        ip link set bc up
        ip -n c link set cb up
        ip -n c route add default via 10.98.0.1
        echo 1 >/proc/sys/net/ipv4/ip_forward
        nft -f - <<END
        table ip t {
            chain c {
                type nat hook postrouting priority 100
                ip saddr 10.98.0.0/24 masquerade
            }
        }
        END
        """
    )
    try:
        with counted(net, g1, g2) as found:
            converse(net, g1, g2, g2.ip, prefix=("ip", "netns", "exec", "c"))
    finally:
        g1.run("nft delete table ip t; ip netns del c; echo 0 >/proc/sys/net/ipv4/ip_forward", check=False)
    assert found["tx_bytes"] > 2 * sum(SIZES), found
    assert not found["standard_segmentation"], found
