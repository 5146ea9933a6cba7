# SPDX-License-Identifier: GPL-2.0
"""Two network namespaces of one machine, joined by a veth pair, whose ends are peers by the loopback transport.

namespace a                      namespace b
va 10.9.0.1 ---- veth pair ---- vb 10.9.0.2
     `------- vmloop_loopback ------'
"""

MAC = ("02:00:00:00:00:01", "02:00:00:00:00:02")
IP = ("10.9.0.1", "10.9.0.2")

TOPOLOGY = f"""
set -e
ip netns add a
ip netns add b
ip link add va netns a address {MAC[0]} type veth peer name vb netns b address {MAC[1]}
ip -n a addr add {IP[0]}/24 dev va
ip -n b addr add {IP[1]}/24 dev vb
ip -n a link set va up
ip -n b link set vb up
"""

NAMES = """
ip netns exec a sh -c 'echo va >/sys/module/vmloop_net/parameters/interfaces'
ip netns exec b sh -c 'echo vb >/sys/module/vmloop_net/parameters/interfaces'
"""
"""Interfaces that are no hardware are stood at where the administrator names them."""

NET = f"\nmodprobe vmloop_net{NAMES}"
LOOPBACK = f"modprobe vmloop_loopback interfaces={','.join(MAC)}"

UNLOAD = "rmmod vmloop_loopback && rmmod vmloop_net && rmmod vmloop"


def inside(namespace: str, *words: object) -> list[str]:
    """A command in one of the namespaces."""
    return ["ip", "netns", "exec", namespace, *map(str, words)]
