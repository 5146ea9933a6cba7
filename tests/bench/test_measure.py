# SPDX-License-Identifier: GPL-2.0
"""Slices and rounds on a stage without machines."""

import re

import pytest
from vmlab.errors import VmlabError

from bench.path.hosts import HOSTS, Domains, find_host
from bench.path.measure import KINDS, ratio
from bench.path.rounds import STEPS_OF_A_ROUND, run_rounds


def value(number):
    return lambda: {"tcp_stream": number}


def test_each_test_gives_its_values(meter):
    one = meter()
    assert one.ping(10) == {"ping_rtt": 250}
    assert one.request_response(1) == {"tcp_rr": 25}
    assert one.tcp(1) == {"tcp_stream": 2.0, "cpu_per_gb": 4.0}
    assert one.udp(1) == {"udp_stream": 2.0}
    assert one.udp_mtu(1) == {"udp_mtu": 2.0}
    assert [word for word in one.stage.log if "1472" in word]


def test_inside_one_guest_nothing_goes_to_the_other(meter):
    one = meter()
    with one.inside():
        for test in (lambda: one.ping(10), lambda: one.request_response(1), lambda: one.tcp(1), lambda: one.udp(1)):
            test()
    assert one.stage.log and all("127.0.0.1" in line for line in one.stage.log)
    del one.stage.log[:]
    one.ping(10)
    assert one.stage.g2.ip in one.stage.log[0]


def test_nothing_received_costs_nothing_to_divide_by(meter, monkeypatch):
    monkeypatch.setattr("bench.path.measure.iperf_received", lambda _: {"bytes": 0.0, "bits_per_second": 0.0})
    assert meter().tcp(1) == {"tcp_stream": 0.0}


def test_a_disturbed_slice_is_taken_again(meter):
    one = meter("kvm", 0.5, 0.0)
    one.take("channel", value(1.0))
    assert [(slice_.kept, slice_.others) for slice_ in one.slices] == [(False, 0.5), (True, 0.0)]
    assert one.record()["repeated"] == 1
    assert one.results()[0]["values"] == [1.0]


def test_the_last_disturbed_slice_counts_and_says_so(meter):
    one = meter("kvm", 0.5, 0.5, 0.5, 0.5)
    one.take("channel", value(1.0))
    assert [slice_.kept for slice_ in one.slices] == [False, False, True]
    assert one.record()["kept_although_disturbed"] == 1
    assert one.record()["disturbed_above_cpus"] == 0.15


def test_virtual_time_is_not_disturbed(meter):
    one = meter("xen", 1.9)
    one.take("channel", value(1.0))
    assert [slice_.kept for slice_ in one.slices] == [True]
    assert one.slices[0].others == 1.9
    assert one.record()["disturbed_above_cpus"] is None
    assert one.record()["kept_although_disturbed"] == 0


def test_medians_and_ratios(meter):
    one = meter()
    for path, numbers in (("standard", (1.0, 9.0, 2.0)), ("channel", (8.0, 6.0, 7.0))):
        for number in numbers:
            one.take(path, value(number))
    results = one.results()
    assert results == [
        {"test": "tcp_stream", "path": "standard", "unit": "Gbit/s", "median": 2.0, "values": [1.0, 9.0, 2.0]},
        {"test": "tcp_stream", "path": "channel", "unit": "Gbit/s", "median": 7.0, "values": [8.0, 6.0, 7.0]},
    ]
    assert ratio(results, "tcp_stream") == 3.5
    assert ratio(results, "ping_rtt") is None
    assert ratio(results, "tcp_stream", "loopback") is None
    with one.inside():
        one.take("loopback", value(3.5))
    assert ratio(one.results(), "tcp_stream", "loopback") == 2
    assert ratio(results[:1], "tcp_stream") is None


@pytest.mark.parametrize("kind", HOSTS)
def test_rounds_take_everything_in_turn(meter, kind):
    one = meter(kind)
    steps: list[str] = []
    run_rounds(one, 2, one.stage.kind.lengths, lambda what, taken: steps.append(what) if taken is None else None)
    assert len(steps) == 2 * STEPS_OF_A_ROUND
    uses = [line for line in one.stage.log if line.startswith("use")]
    paths = ["use standard", "use channel", "use stream"]
    assert uses == paths + paths[::-1]
    found = {(result["test"], result["path"]): len(result["values"]) for result in one.results()}
    all_tests = {(test, path): 2 for test in KINDS for path in ("standard", "channel", "loopback")}
    assert found == all_tests | {(test, "stream"): 2 for test in ("tcp_rr", "tcp_stream", "cpu_per_gb")}


def test_longer_slices():
    lengths = HOSTS["kvm"].lengths
    assert lengths.times(2).ping == 2 * lengths.ping
    assert lengths.times(2).udp == 2 * lengths.udp


def test_a_host_that_there_is_not():
    with pytest.raises(VmlabError, match="'vmware': choose kvm or xen"):
        find_host("vmware")


class FakeDomains:
    """The process in dom0: answers in lines, of which more than one may be there."""

    def __init__(self):
        self.out = ""
        self.asked = 0

    def popen(self, command):
        assert "domain_getinfo" in command[-1]
        compile(command[-1], "program", "exec")
        return self

    def write(self, text):
        self.asked += 1
        self.out += f"domains {text.strip()} 0:{self.asked}000000000 5:500000000\n"

    def wait_for(self, pattern, _timeout):
        # It may come in pieces.
        assert not re.search(pattern, self.out[:-4], re.MULTILINE)
        found = re.search(pattern, self.out, re.MULTILINE)
        assert found
        return found


def test_cpu_time_on_xen_is_asked_anew_each_time():
    lab = type("Lab", (), {"host": FakeDomains()})()
    domains = Domains(lab)
    assert [domains.read() for _ in range(12)] == [n + 1.5 for n in range(12)]
