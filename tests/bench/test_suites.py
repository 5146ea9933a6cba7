# SPDX-License-Identifier: GPL-2.0
"""What suites/ makes of reports, without a machine."""

from suites.result import Comparison, count, of_junit

REPORT = """<testsuites tests="4">
<testsuite start="2026"><testcase name="test.test_socket.A.test_one" status="run" result="completed" time="0.1"/>
<testcase name="test.test_socket.A.test_two" status="run" result="completed"><failure>no</failure></testcase>
<testcase name="test.test_socket.A.test_three" status="run" result="completed"><error>no</error></testcase>
<testcase name="test.test_socket.A.test_four" status="run" result="skipped"><skipped/></testcase>
</testsuite></testsuites>"""


def comparison(stream: dict[str, str]) -> Comparison:
    counted = {"paired": 4, "rx_bytes": 1 << 20, "reset": 0}
    return Comparison("a suite", "1.0", of_junit(REPORT), stream, counted, (1.2, 2.7), (2, 2))


def test_complaints():
    """What makes a comparison worth nothing, and what no test looks at."""
    assert comparison({}).complaints == ["few of its tests passed on TCP"]
    many = {f"test_{number}": "passed" for number in range(50)}
    counted = {"paired": 4, "rx_bytes": 1 << 16, "reset": 0}
    assert Comparison("a suite", "1.0", many, many, counted, (1, 1), (0, 0)).complaints == []
    counted |= {"rx_bytes": 1000, "reset": 2}
    one = Comparison("a suite", "1.0", many, many, counted, (1, 1), (0, 1), ["kernel: BUG"])
    assert [line.split()[0] for line in one.complaints] == ["kernel:", "next", "2", "it"]


def test_a_report():
    """Failures and errors are failures; what was skipped is neither."""
    found = of_junit(REPORT)
    assert list(found.values()) == ["passed", "failed", "failed", "skipped"]
    assert next(iter(found)) == "test.test_socket.A.test_one"
    assert count(found) == {"passed": 1, "failed": 2, "skipped": 1}


def test_no_difference():
    """A test that fails both ways is none, and is named."""
    assert comparison(of_junit(REPORT)).passed == 1
    record = comparison(of_junit(REPORT)).record()
    assert record["differences"] == []
    assert len(record["failed"]) == 2
    assert record["seconds"] == [1, 3]


def test_differences():
    """Another result is one, and a test that only one of the runs had."""
    stream = of_junit(REPORT)
    stream["test.test_socket.A.test_one"] = "failed"
    del stream["test.test_socket.A.test_two"]
    stream["new"] = "passed"
    assert comparison(stream).differences == [
        "new: absent, with streams passed",
        "test.test_socket.A.test_one: passed, with streams failed",
        "test.test_socket.A.test_two: failed, with streams absent",
    ]
