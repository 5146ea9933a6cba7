# SPDX-License-Identifier: GPL-2.0
"""What the measurement of a suspension's length makes of what it reads."""

import pytest
from vmlab.errors import VmlabError

from bench.pause.__main__ import longest_gap, table

PINGS = """\
PING 10.77.0.12 (10.77.0.12) 56(84) bytes of data.
[10.000] 64 bytes from 10.77.0.12: icmp_seq=1 ttl=64 time=0.1 ms
[10.005] 64 bytes from 10.77.0.12: icmp_seq=2 ttl=64 time=0.1 ms
[10.900] From 10.77.0.11 icmp_seq=9 Destination Host Unreachable
[11.205] 64 bytes from 10.77.0.12: icmp_seq=240 ttl=64 time=0.2 ms
[11.210] 64 bytes from 10.77.0.12: icmp_seq=241 ttl=64 time=0.1 ms

--- 10.77.0.12 ping statistics ---
241 packets transmitted, 4 received, 98% packet loss, time 1210ms
"""


def test_the_longest_gap_is_between_answers():
    assert longest_gap(PINGS) == pytest.approx(1.2)
    with pytest.raises(VmlabError, match="1 pings"):
        longest_gap("\n".join(PINGS.splitlines()[:2]))


def test_the_table_has_medians_of_each_role_and_way():
    taken = [
        {"way": way, "role": role, "own_ms": own, "unanswered_ms": unanswered}
        for role in ("grants", "maps")
        for way, figures in {"without": [(0, 7), (0, 9)], "with": [(2, 20), (4, 40), (3, 30)]}.items()
        for own, unanswered in figures
    ]
    columns = [list(column.cells) for column in table(taken).columns]
    assert columns[1:] == [["3.0"] * 2, ["30.0"] * 2, ["8.0"] * 2]
