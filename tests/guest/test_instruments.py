# SPDX-License-Identifier: GPL-2.0
"""The instruments of the other tests find what they are there to find.

A check that cannot fail shows nothing. Here each instrument meets what it must
not let pass: traffic that the channel did not carry, bytes that are wrong, a
transfer that stood still.
"""

import time

import pytest
from vmlab import CommandFailed

from tests.guest.net import HERE, until

PORT = "7400"


@pytest.mark.main("the witness of all the others is no yes-man")
def test_carried_notices_the_standard_network(net, g1, g2):
    """Traffic beside the channel, by either way of looking, is not taken for the channel's."""
    g1.run([f"{HERE}/control", "off"])
    try:
        until(lambda: net.state(g2, g1) != "up", 10 * net.slow, "the channel is closed")
        with pytest.raises(AssertionError), net.carried(g1, g2):
            g1.run(f"ping -c 3 -i 0.05 -q {g2.ip}")
    finally:
        g1.run([f"{HERE}/control", "on"])
    net.bring_up(g1, g2)
    with pytest.raises(AssertionError, match="g1 to g2"), net.carried(g1, g2, there=50_000):
        # Broadcasts never use a channel.
        g1.run("ping -b -c 50 -i 0.01 -w 2 -s 1400 -q 10.77.0.255", check=False)
    with pytest.raises(AssertionError, match="standard network was used"), net.carried(g1, g2, there=0, back=0):
        g1.run("ping -b -c 50 -i 0.01 -w 2 -s 1400 -q 10.77.0.255", check=False)


def test_pattern_notices_an_echo(net, g1, g2):
    """An echo has the right length and the wrong content."""
    for protocol in ("tcp", "udp"):
        listen = f"{protocol.upper()}4-LISTEN:{PORT},reuseaddr,fork"
        echo = net.serving(g2, "socat", "-d", "-d", listen, "EXEC:cat", ready="listening on")
        with echo, pytest.raises(CommandFailed, match="is wrong"):
            g1.run([f"{HERE}/pattern", protocol, g2.ip, PORT, "1000"])


def test_pattern_notices_a_datagram_that_is_lost(net, g1, g2):
    with pytest.raises(CommandFailed, match=r"no answer|refused"):
        g1.run([f"{HERE}/pattern", "udp", g2.ip, PORT, "1000"])


@pytest.mark.main("the judge of all transfers finds a wrong byte")
def test_stream_notices_a_wrong_byte(net, g1, g2):
    with net.serving(g2, f"{HERE}/stream", "receive", PORT) as receiver:
        g1.run(f"head -c 100000 /dev/zero | socat -u - TCP:{g2.ip}:{PORT}", check=False)
        result = receiver.wait(20)
    assert result.code == 1 and "the stream is wrong at byte 0" in result.err


def test_transfer_notices_that_it_breaks(net, g1, g2):
    with net.transfer(g1, g2) as transfer:
        transfer.wait_bytes(1_000_000)
        g2.run("ss -K sport = :7100", check=False)  # resets it
        with pytest.raises(AssertionError, match="ended with status 1"):
            transfer.wait_bytes(10_000_000_000)


def test_transfer_notices_a_stall(net, g1, g2):
    """The sender is paused for 1.2 s: longer than any transfer of the other tests may stand still."""
    with net.transfer(g1, g2) as transfer:
        transfer.wait_bytes(1_000_000)
        g1.pause()
        time.sleep(1.2 * net.lab.dilation)
        g1.unpause()
        transfer.wait_bytes(1_000_000)
        assert transfer.finish() > 1.0
