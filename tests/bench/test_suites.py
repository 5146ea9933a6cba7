# SPDX-License-Identifier: GPL-2.0
"""What suites/ makes of reports, without a machine."""

from unittest.mock import Mock

import pytest
from vmlab import VmlabError

from suites import cpython, go, libuv, outside, postgres, redis, vtc
from suites.result import Comparison, Run, count, of_junit

REPORT = """<testsuites tests="4">
<testsuite start="2026"><testcase name="test.test_socket.A.test_one" status="run" result="completed" time="0.1"/>
<testcase name="test.test_socket.A.test_two" status="run" result="completed"><failure>no</failure></testcase>
<testcase name="test.test_socket.A.test_three" status="run" result="completed"><error>no</error></testcase>
<testcase name="test.test_socket.A.test_four" status="run" result="skipped"><skipped/></testcase>
</testsuite></testsuites>"""


def comparison(stream: dict[str, str]) -> Comparison:
    counted = {"paired": 4, "rx_bytes": 1 << 20, "reset": 0}
    return Comparison("a suite", "1.0", Run(of_junit(REPORT), 2, "", 1.2), Run(stream, 2, "", 2.7), counted)


def test_complaints():
    """What makes a comparison worth nothing, and what no test looks at."""
    assert comparison({}).complaints == ["few of its tests passed on TCP"]
    many = {f"test_{number}": "passed" for number in range(50)}
    counted = {"paired": 4, "rx_bytes": 1 << 16, "reset": 0}
    assert Comparison("a suite", "1.0", Run(many, 0), Run(many, 0), counted).complaints == []
    counted |= {"rx_bytes": 1000, "reset": 2}
    one = Comparison("a suite", "1.0", Run(many, 0), Run(many, 1, "panic"), counted, ["kernel: BUG"])
    assert [line.split()[0] for line in one.complaints] == ["kernel:", "next", "2", "it", "with"]


def test_cpython_without_its_tests(tmp_path, monkeypatch):
    """What to install is said before anything runs; the interpreter's package alone has the folder, too."""
    (tmp_path / "support").mkdir()
    monkeypatch.setattr(cpython, "LIBRARY", str(tmp_path))
    for suite in cpython.SUITES:
        with pytest.raises(VmlabError, match=rf"no {suite.module} in .*: install libpython3.11-testsuite"):
            suite.prepare(Mock())


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


def test_what_suites_say():
    """Each has words of its own for a result, and for its end: without that, not all of it ran."""
    said = "=== RUN   TestA\n--- PASS: TestA (0.00s)\n    --- FAIL: TestA/b (1.20s)\nserver log--- SKIP: TestC (0.0s)\n"
    said += "--- FAIL: TestD (0.0s)\n--- PASS: TestD (0.0s)\n"
    one = go.run_of("net", said + "FAIL\n", 1)
    assert one.results == {
        "net.TestA": "passed",
        "net.TestA/b": "failed",
        "net.TestC": "skipped",
        "net.TestD": "failed",
    }
    assert not one.cut
    assert go.run_of("net", said, 1).cut
    assert go.run_of("net", said + "panic: test timed out after 1s\nFAIL\n", 2).cut

    said = "1..3\nok 1 - one\n# Output\nnot ok 2 - two\n"
    assert libuv.run_of(said, 1).cut
    one = libuv.run_of(said + "ok 3 - three # SKIP not here\n", 1)
    assert (one.results, one.cut) == ({"one": "passed", "two": "failed", "three": "skipped"}, "")

    said = "a/b.vtc 0\n*** h1 c.vtc 1\nd/e.vtc 77\nf.vtc 2\n"
    assert vtc.run_of(said).cut and vtc.run_of(said + "4 files\n").cut
    one = vtc.run_of("a/b.vtc failed, try 1\nf.vtc failed, try 1\n" + said + "3 files\n")
    assert one.again == ["a/b.vtc"]
    assert (one.results, one.cut) == ({"a/b.vtc": "passed", "d/e.vtc": "skipped", "f.vtc": "failed"}, "")

    said = (
        "\x1b[0;32m[ok]\x1b[0m: SET and GET (3 ms)\n[ok]: SET and GET (17 ms)\n[err]: 12 clients in tests/unit/a.tcl\n"
    )
    assert redis.run_of(said + "status 1").cut
    one = redis.run_of(said + "!!! WARNING The following tests failed:\nstatus 1")
    assert one.results == {"SET and GET#1": "passed", "SET and GET#2": "passed", "N clients#1": "failed"}
    assert (one.status, one.cut) == (1, "")
    kills = [f"[{word}]: PSYNC2 #3899 regression: kill chained replica\n" for word in ("ok", "err", "ok")]
    one = redis.run_of("".join(kills) + "!!! WARNING The following tests failed:\nstatus 1")
    assert one.results == {"PSYNCN #N regression: kill chained replica#1": "failed"}
    one = redis.run_of(kills[0] + kills[2] + "All tests passed without errors\nstatus 0")
    assert one.results == {"PSYNCN #N regression: kill chained replica#1": "passed"}

    said = "test boolean ... ok   12 ms\nparallel group (2 tests):  a b\n     char  ... FAILED  9 ms\n"
    assert postgres.run_of(said + "status 2").cut
    one = postgres.run_of(said + "===\n 1 of 2 tests failed. \n===\nstatus 1")
    assert (one.results, one.status, one.cut) == ({"boolean": "passed", "char": "failed"}, 1, "")


def test_address(tmp_path):
    """All files of a copy name the peer, programs, too, which stay as long; those of other trees stay as they are."""
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    (tree / "in").mkdir(parents=True)
    (tree / "in/program").write_bytes(b"\0\xff127.0.0.1\0next")
    (tree / "link").symlink_to("in/program")
    outside.copy(tree, copy, links=True)
    outside.redirect([copy])
    assert (copy / "in/program").read_bytes() == b"\0\xff10.99.0.2\0next"
    assert (tree / "in/program").read_bytes() == b"\0\xff127.0.0.1\0next"
    assert (copy / "link").is_symlink()
