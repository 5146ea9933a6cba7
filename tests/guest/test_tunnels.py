# SPDX-License-Identifier: GPL-2.0
"""What guests put above and below their interfaces: tunnels, virtual interfaces, containers.

Each is laid between two guests whose channel is up, messages whose every byte is
checked pass both ways, and both channels' counters and kernels' logs are looked
at afterwards. By which way the frames go is not the same for all:

    channel   source and destination are the interfaces' own addresses
    standard  other addresses (macvlan), an interface in a bond that nobody has
              named, or to be encrypted behind the hook (ESP)

What is laid, and which way it takes, says bench/tunnels/kinds.py.
"""

from contextlib import contextmanager

import pytest

from bench.tunnels.kinds import KINDS, laid
from tests.guest.net import DROPS, HERE, until

PORT = "7300"
SIZES = (1, 100, 1400, 1448, 1473, 9000, 65536, 300_000)


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


@pytest.mark.parametrize("name", KINDS)
def test_content(net, g1, g2, name):
    """What is sent through it arrives as it was sent, by the way that its frames are to take."""
    kind = KINDS[name]
    with laid(kind, (g1, g2), net.slow) as (_, server):
        address = kind.target(server)
        reached = f"{' '.join(kind.prefix)} ping -c 1 -W 1 {address}"
        until(lambda: g1.run(reached, check=False).code == 0, 20 * net.slow, f"{address} answers by {kind.title}")
        if kind.outer:
            # An interface that went down and came back has ended the channel, or not yet.
            until(lambda: net.both_up(g1, g2), 20 * net.slow, "the channel is up")
        with counted(net, g1, g2) as found:
            converse(net, g1, g2, address, kind.prefix)
    assert not found["standard_segmentation"], found
    if kind.by_channel:
        assert found["tx_bytes"] > 2 * sum(SIZES), found
        assert not found["standard_encrypted"], found
    elif name == "esp-offload":
        assert found["standard_encrypted"] > 0, found
        # ESP does not put off what is larger than the MTU and not to be segmented (xfrm_dev_offload_ok()): two of the
        # datagrams, each way, are encrypted when they come to our hook. Nothing smaller may be by the channel.
        assert found["tx_frames"] < 10 and found["tx_bytes"] > 1500 * found["tx_frames"], found
    else:
        assert found["tx_bytes"] < 20_000, found


def shared(net, guest, peer, byte, target, size):
    """How often what `guest` has sent is in memory that it shares: a datagram that consists of one byte's value."""
    before = sum(net.peers(guest)[peer.name].stats[key] for key in ("tx_frames", "tx_standard"))
    fill = f"head -c {size} /dev/zero | tr '\\0' '\\{byte:o}'"
    guest.run(f"{fill} | socat -u -b {size} - UDP-SENDTO:{target}:9")

    def sent():
        return sum(net.peers(guest)[peer.name].stats[key] for key in ("tx_frames", "tx_standard")) > before

    until(sent, 5 * net.slow, "the datagram is counted, whichever way it took")
    return len(guest.run([f"{HERE}/shm", "find", f"{byte:02x}" * 16]).out.splitlines())


@pytest.mark.kvm_only
def test_plain_text_is_not_shared(net, g1, g2):
    """IPsec's plain text never enters a ring, whether ESP is done before our hook or put off until after it."""
    sizes = (1000, 9000)
    values = iter(range(0xA5, 0x100))
    for size in sizes:
        found = shared(net, g1, g2, next(values), g2.ip, size)
        assert found, f"{size}: not even what is sent in clear was found: this shows nothing"
    for name in ("esp", "esp-offload"):
        with laid(KINDS[name], (g1, g2), net.slow):
            for size in sizes:
                assert not shared(net, g1, g2, next(values), g2.ip, size), (name, size)
            # A peer takes nothing in clear any more: so it was sent, and by ESP.
            until(lambda: g1.run(f"ping -c 1 -W 1 {g2.ip}", check=False).code == 0, 20 * net.slow, f"{name} carries")
            for size in sizes:
                assert not shared(net, g1, g2, next(values), g2.ip, size), (name, size)
