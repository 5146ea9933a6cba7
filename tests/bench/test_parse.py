# SPDX-License-Identifier: GPL-2.0
"""What the programs that measure print is read rightly, or not at all."""

import argparse

import pytest
from vmlab.errors import VmlabError

from bench.path import parse
from bench.path.sizes import parse_ring_size, parse_size, size_name
from tests.bench.fakes import IPERF, PING, SOCKPERF


def test_busy_time_of_a_linux_host():
    """Guest time is part of user time; idle and iowait are no work."""
    text = "cpu  1000 200 300 99999 88888 40 5 6 900 100\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    assert parse.proc_stat(text) == pytest.approx((1000 + 200 + 300 + 40 + 5 + 6) / parse.TICKS)


def test_cpu_time_of_xens_domains():
    assert parse.domain_seconds("0:1500000000 3:250000000") == {0: 1.5, 3: 0.25}


def test_what_is_printed():
    assert parse.ping_mean(PING) == 250
    assert parse.sockperf_latency(SOCKPERF) == 12.5
    assert parse.iperf_received(IPERF) == {"bytes": 5e8, "bits_per_second": 2e9}
    assert parse.netpipe_rows("64 1.5 0.0003\n128 3 0.0004\n") == [(64, 1.5, 0.0003), (128, 3.0, 0.0004)]


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (parse.proc_stat, ""),
        (parse.proc_stat, "cpu0 1 2 3 4 5 6 7 8 9 10\n"),
        (parse.proc_stat, "cpu  1 2 3\n"),
        (parse.domain_seconds, "0:1.5"),
        (parse.domain_seconds, "0"),
        (parse.domain_seconds, ""),
        (parse.domain_seconds, "3:250000000"),
        (parse.ping_mean, "5 packets transmitted, 0 received, 100% packet loss"),
        (parse.sockperf_latency, "sockperf: ERROR: connection refused"),
        (parse.iperf_received, ""),
        (parse.iperf_received, "[]"),
        (parse.iperf_received, '{"error": "unable to connect"}'),
        (parse.iperf_received, '{"end": {}}'),
        (parse.iperf_received, '{"end": {"sum_received": {"bytes": null, "bits_per_second": 1}}}'),
        (parse.netpipe_rows, "64 1.5\n"),
        (parse.netpipe_rows, "64 fast 1\n"),
    ],
)
def test_what_cannot_be_read(reader, text):
    with pytest.raises(VmlabError):
        reader(text)


def test_sizes():
    for text, size in {"64": 64, "1K": 1024, "4M": 4 << 20, "1G": 1 << 30}.items():
        assert parse_size(text) == size
        assert size_name(size) == text
    assert size_name(65507) == "65,507"
    assert parse_ring_size("64K") == 65536


@pytest.mark.parametrize("text", ["", "K", "0", "-1", "1.5M", "1T", "64k", "٣"])
def test_what_is_no_size(text):
    with pytest.raises(argparse.ArgumentTypeError, match="no size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["32K", "3M", "2G"])
def test_what_is_no_size_of_a_ring(text):
    with pytest.raises(argparse.ArgumentTypeError, match="power of two"):
        parse_ring_size(text)
