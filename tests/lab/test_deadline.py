# SPDX-License-Identifier: GPL-2.0
"""pytest ends in time: what there is no time for is not begun, and named. No machine is booted."""

import json
from pathlib import Path

import pytest

PLUGINS = ("-p", "vmlab.pytest_plugin", "-p", "tests.deadline", "-p", "no:cacheprovider")

CONFTEST = """
import time
from types import SimpleNamespace
import pytest
from tests import deadline
from vmlab import pytest_plugin

class Clock:
    now = 1000.0

    @classmethod
    def monotonic(cls):
        return cls.now

deadline.time = Clock

# What a phase takes is by the same clock.
call_info = pytest.CallInfo.from_call.__func__

@classmethod
def from_call(cls, *words, **more):
    began = Clock.now
    found = call_info(cls, *words, **more)
    found.duration = Clock.now - began
    return found

pytest.CallInfo.from_call = from_call

def get(pool, options, kept):
    if pool._options != options:
        pool._options = options
        pool.boots += 1
        Clock.now += {boot}
    return SimpleNamespace(findings=list, running=True)

@pytest.fixture(autouse=True)
def no_machines(monkeypatch):
    monkeypatch.setattr(pytest_plugin.LabPool, "get", get)

@pytest.fixture
def takes():
    def spend(seconds):
        Clock.now += seconds
    return spend
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Run tests whose times are given, and return what passed and the account."""
    # Restored in the end: what runs inside is in this process, and has it replaced.
    monkeypatch.setattr(pytest.CallInfo, "from_call", pytest.CallInfo.from_call)
    top = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{top}:{top / 'lab'}")

    def begin(tests: str, recorded: dict, *words: str, boot: float = 0.0, process: bool = False):
        (pytester.path / "recorded.json").write_text(json.dumps(recorded))
        pytester.makeconftest(CONFTEST.replace("{boot}", str(boot)))
        pytester.makeini("[pytest]\nmarkers = core: -\n main: -\n migrations: -\n xen_only: -\n")
        pytester.makepyfile(test_it="import pytest\n" + tests)
        account = pytester.path / "account.json"
        more = ("--recorded", pytester.path / "recorded.json", "--account", account)
        pytest_runs = pytester.runpytest_subprocess if process else pytester.runpytest_inprocess
        result = pytest_runs("-v", *PLUGINS, *more, *words)
        passed = [line.partition("::")[2].split()[0] for line in result.outlines if " PASSED" in line]
        return result, passed, json.loads(account.read_text()) if account.exists() else None

    return begin


def test_named(name: str, seconds: float, marks: str = "", lab: str = "") -> str:
    return f"{marks}def test_{name}(takes{lab}): takes({seconds})\n"


test_named.__test__ = False  # type: ignore[attr-defined]
CORE = '@pytest.mark.core("why")\n'
RECORDED = {"tests": {f"test_it.py::test_{name}": 100.0 for name in ("a", "b", "c", "d")}, "boots": {"": 0.0}}
MARGIN = 30
"""What deadline.TAKEN_DOWN is, at the recorded pace."""


def test_what_would_not_be_over_is_not_begun(run):
    tests = "".join(test_named(name, 100) for name in "abcd")
    result, passed, account = run(tests, RECORDED, "--within", str(250 + MARGIN))
    assert passed == ["test_a", "test_b"]
    assert account["not_run"] == ["test_it.py::test_c", "test_it.py::test_d"]
    assert account["core_not_run"] == []
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*not run: no time was left*", "test_it.py::test_c", "test_it.py::test_d"])


def test_without_a_deadline_all_is_run(run):
    tests = "".join(test_named(name, 100) for name in "abcd")
    _, passed, account = run(tests, RECORDED)
    assert len(passed) == 4 and account["not_run"] == []
    assert account["took"]["tests"]["test_it.py::test_a"] == 100


def test_the_core_list_keeps_its_time(run):
    """There would be time for b, but not for b and the core test behind it."""
    tests = "".join(test_named(name, 100, CORE if name == "d" else "") for name in "abcd")
    _, passed, account = run(tests, RECORDED, "--within", str(250 + MARGIN))
    assert passed == ["test_a", "test_d"]
    assert account["not_run"] == ["test_it.py::test_b", "test_it.py::test_c"]


def test_the_boot_of_the_core_lists_lab_is_counted(run):
    lab = "@pytest.mark.lab(guests=1)\n"
    tests = test_named("a", 100) + test_named("b", 100) + test_named("d", 100, CORE + lab, ", lab")
    recorded = RECORDED | {"boots": {"guests=1": 200.0}}
    _, passed, account = run(tests, recorded, "--within", str(450 + MARGIN), boot=200)
    assert passed == ["test_a", "test_d"]
    assert account["took"]["boots"] == {"guests=1": 200}
    _, passed, _ = run(tests, recorded, "--within", str(550 + MARGIN), boot=200)
    assert passed == ["test_a", "test_b", "test_d"]


def test_a_core_test_that_has_no_time_is_named_as_such(run):
    tests = "".join(test_named(name, 300, CORE) for name in "ab")
    result, passed, account = run(tests, RECORDED, "--within", "250")
    assert passed == ["test_a"]
    assert account["core_not_run"] == account["not_run"] == ["test_it.py::test_b"]
    result.stdout.fnmatch_lines(["core: test_it.py::test_b"])


def test_the_pace_is_learned(run):
    """All takes three times as long as was recorded: c would not be over."""
    tests = "".join(test_named(name, 300) for name in "abcd")
    _, passed, _ = run(tests, RECORDED, "--within", "800")
    assert passed == ["test_a", "test_b"]


def test_the_pace_can_be_told(run):
    tests = "".join(test_named(name, 100) for name in "abcd")
    _, passed, _ = run(tests, RECORDED, "--within", "250", "--pace", "3")
    assert passed == []
    _, passed, _ = run(tests, RECORDED, "--within", "250", "--pace", "1")
    assert passed == ["test_a", "test_b"]


def test_what_failed_is_not_recorded(run):
    """It may have hung."""
    lab = "@pytest.mark.lab(guests=1)\n"
    tests = f"{lab}def test_a(takes, lab): takes(500); assert False\n" + test_named("b", 10, lab, ", lab")
    _, passed, account = run(tests, RECORDED, boot=200)
    assert passed == ["test_b"]
    assert account["took"] == {"steps": {}, "tests": {"test_it.py::test_b": 10}, "boots": {"guests=1": 200}}


def test_a_boot_that_failed_is_not_recorded(run):
    lab = "@pytest.mark.lab(guests=1)\n"
    tests = f"@pytest.fixture\ndef bad(lab): assert False\n{lab}def test_a(bad, takes): pass\n"
    _, passed, account = run(tests, RECORDED, boot=200)
    assert passed == [] and account["took"] == {"steps": {}, "tests": {}, "boots": {}}


def test_what_was_not_come_to_when_it_is_ended_is_named(run):
    tests = test_named("a", 1) + "def test_b(): raise KeyboardInterrupt\n" + test_named("c", 1)
    _, passed, account = run(tests, RECORDED, process=True)
    assert passed == ["test_a"] and account["not_run"] == ["test_it.py::test_c"]


def test_fixtures_of_what_is_left_out_are_ended(run, pytester):
    """The fixture of a module whose last test is left out ends before the next module begins."""
    fixture = '@pytest.fixture(scope="module", autouse=True)\ndef order(): yield\n'
    pytester.makepyfile(test_other=f"import pytest\n{fixture}{test_named('x', 15, CORE)}")
    tests = fixture + test_named("a", 100) + test_named("b", 100)
    files = (pytester.path / "test_it.py", pytester.path / "test_other.py")
    result, passed, account = run(tests, RECORDED, "--within", "200", *files)
    assert passed == ["test_a", "test_x"] and account["not_run"] == ["test_it.py::test_b"]
    result.assert_outcomes(passed=2)


def test_only_what_is_listed_runs(run, pytester):
    tests = "".join(test_named(name, 1) for name in "abcd")
    listed = pytester.path / "listed"
    listed.write_text("test_it.py::test_c\ntest_it.py::test_a\n")
    _, passed, _ = run(tests, RECORDED, "--listed", listed)
    assert passed == ["test_a", "test_c"]
    listed.write_text("test_it.py::test_nowhere\n")
    result, passed, _ = run(tests, RECORDED, "--listed", listed)
    assert passed == [] and result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_plan_runs_nothing(run, pytester):
    lab = '@pytest.mark.lab(guests=1, kind="xen", kernel="6.12")\n'
    tests = test_named("a", 1) + test_named("b", 1, lab, ", lab")
    _, passed, _ = run(tests, RECORDED, "--plan", pytester.path / "plan")
    assert passed == []
    plan = json.loads((pytester.path / "plan").read_text())
    assert [one["name"] for one in plan] == ["test_it.py::test_a", "test_it.py::test_b"]
    assert plan[1] == {
        "name": "test_it.py::test_b",
        "group": "lab xen",
        "lab": "guests=1 kernel=6.12 kind=xen",
        "seconds": 100.0,
        "kernel": "6.12",
    }
