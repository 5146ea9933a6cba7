# SPDX-License-Identifier: GPL-2.0
"""scripts/run-tests counts what fails, above all what fails silently."""

import importlib.util
import json
import sys
import threading
import time
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))

from tests import stages  # noqa: E402
from tests.plan import UNKNOWN, Durations, Planned, part, split  # noqa: E402


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loader = SourceFileLoader("run_tests", str(TOP / "scripts/run-tests"))
    spec = importlib.util.spec_from_loader("run_tests", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look themselves up there.
    monkeypatch.setitem(sys.modules, "run_tests", module)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(module)
    monkeypatch.setattr(module, "LOGS", tmp_path)
    monkeypatch.setattr(module, "TOP", tmp_path)
    monkeypatch.setattr(module, "machine_pace", lambda: 1.0)
    monkeypatch.delenv("VMLAB_SLOW", raising=False)
    return module


def run_main(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["run-tests", *words])
    return int(runner.main())


def counts(runner: ModuleType, command: str, counter: str = "count_status", **more: object) -> tuple[int, int, int]:
    found = runner.run(runner.Step("a step", command, getattr(runner, counter), **more))
    return found.passed, found.failed, found.skipped


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("true", (1, 0, 0)),
        ("false", (0, 1, 0)),
        ("no-such-program", (0, 1, 0)),
        ("kill -SEGV $$", (0, 1, 0)),
    ],
)
def test_status(runner: ModuleType, command: str, expected: tuple[int, int, int]) -> None:
    assert counts(runner, command) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (r"printf '1..2\nok 1 - a\nok 2 - b\n'", (2, 0, 0)),
        (r"printf '1..2\nok 1 - a\nnot ok 2 - b\n'; false", (1, 1, 0)),
        (r"printf '1..2\nok 1 - a\nnot ok 2 - b\n'", (1, 1, 0)),
        # It ended, or died, before it had done what it announced.
        (r"printf '1..3\nok 1 - a\n'", (1, 2, 0)),
        (r"printf '1..3\nok 1 - a\nok 2 - b\n'; kill -SEGV $$", (2, 1, 0)),
        (r"printf 'ok 1 - a\n'; false", (1, 1, 0)),
        (r"printf '1..2\nok 1 - a\nok 2 - b # SKIP no b\n'", (1, 0, 1)),
        ("true", (0, 1, 0)),
    ],
)
def test_tap(runner: ModuleType, command: str, expected: tuple[int, int, int]) -> None:
    assert counts(runner, command, "count_tap") == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo 'test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured'", (5, 0, 1)),
        ("echo 'test result: FAILED. 5 passed; 2 failed; 0 ignored'; exit 101", (5, 2, 0)),
        ("echo 'error: could not compile'; exit 101", (0, 1, 0)),
        ("echo 'test result: ok. 0 passed; 0 failed; 0 ignored'", (0, 1, 0)),
    ],
)
def test_cargo(runner: ModuleType, command: str, expected: tuple[int, int, int]) -> None:
    assert counts(runner, command, "count_cargo") == expected


REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><failure/></testcase><testcase name="c"><error/></testcase>
<testcase name="d"><skipped message="no d"/></testcase></testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"echo '{REPORT}' >report; false", (1, 2, 1)),
        ("echo '<testsuites><testcase name=\"a\"/></testsuites>' >report", (1, 0, 0)),
        ("echo '<testsuites>' >report; exit 3", (0, 1, 0)),
        ("exit 4", (0, 1, 0)),
        # pytest says 5 when it collected nothing.
        ("echo '<testsuites/>' >report; exit 5", (0, 1, 0)),
    ],
)
def test_junit(runner: ModuleType, tmp_path: Path, command: str, expected: tuple[int, int, int]) -> None:
    step = runner.Step("a step", command, runner.count_junit(tmp_path / "report"))
    found = runner.run(step)
    assert (found.passed, found.failed, found.skipped) == expected


@pytest.fixture
def time_is_over_when_ready(runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps may take an hour, all of them two: both are over once a step has made the file `ready`."""
    ready = tmp_path / "ready"

    class Timer(threading.Thread):
        def __init__(self, seconds: float, function: Callable[[], None]) -> None:
            super().__init__()
            self.function = function
            self.cancelled = threading.Event()

        def run(self) -> None:
            while not ready.exists():
                if self.cancelled.wait(0.01):
                    return
            self.function()

        def cancel(self) -> None:
            self.cancelled.set()

    now = time.monotonic
    monkeypatch.setattr(runner.threading, "Timer", Timer)
    monkeypatch.setattr(runner.time, "monotonic", lambda: now() + 7200 * ready.exists())


@pytest.mark.usefixtures("time_is_over_when_ready")
@pytest.mark.parametrize("before", ["", "trap 'exit 0' TERM; "])
def test_what_never_ends_fails(runner: ModuleType, before: str) -> None:
    forever = "echo ok 1; touch ready; while :; do sleep 0.1; done"
    assert counts(runner, before + forever, "count_tap") == (1, 1, 0)


@pytest.mark.usefixtures("time_is_over_when_ready")
def test_what_is_ended_may_say_what_it_found(runner: ModuleType, tmp_path: Path) -> None:
    """Also if its shell is gone before it."""
    script = f"trap 'sleep 0.5; echo '\\''{REPORT}'\\'' >report; exit 1' TERM; touch ready; while :; do sleep 0.1; done"
    (tmp_path / "slow").write_text(script)
    step = runner.Step("a step", "sh slow; true", runner.count_junit(tmp_path / "report"))
    found = runner.run(step)
    assert (found.passed, found.failed, found.skipped) == (1, 2, 1)


@pytest.mark.usefixtures("time_is_over_when_ready")
def test_what_does_not_want_to_end_is_killed(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "GRACE", 0.5)
    command = "trap '' TERM; echo ok 1; touch ready; sleep 60; touch survived"
    assert counts(runner, command, "count_tap") == (1, 1, 0)
    assert not (tmp_path / "survived").exists()


@pytest.mark.parametrize("core", [False, True])
def test_what_is_left_when_the_time_is_over_is_named(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, core: bool
) -> None:
    """It has neither passed nor failed; but without the core list nothing has passed."""
    over: list[bool] = []
    now = time.monotonic
    monkeypatch.setattr(runner.time, "monotonic", lambda: now() + 7200 * len(over))

    def last_in_time(log: str, status: int) -> object:
        over.append(True)
        return runner.Count(passed=1)

    steps = [
        runner.Step("quick", "true"),
        runner.Step("last", "true", last_in_time),
        runner.Step("late", "touch late", core=core),
        runner.Step("needy", "touch needy", needs=("late",)),
    ]
    later = [runner.Step("later", "true")]
    monkeypatch.setattr(runner, "SUITES", {"check": lambda: steps, "ring": lambda: later})
    monkeypatch.setattr(runner, "PARALLEL", 1)
    assert run_main(runner, monkeypatch, "--within", "7200", "check", "ring") == core
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("not run: ")] == [
        "not run: late",
        "not run: needy",
        "not run: later",
    ]
    assert lines[-1] == f"2 passed, {core:d} failed"
    assert ("FAILED core list: 1 of it not run: late" in lines) == core
    assert not (tmp_path / "late").exists() and not (tmp_path / "needy").exists()


@pytest.mark.usefixtures("time_is_over_when_ready")
def test_what_is_not_ready_when_the_time_is_over_fails(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [runner.Step("quick", "true"), runner.Step("slow", "touch ready; sleep 60"), runner.Step("late", "true")]
    monkeypatch.setattr(runner, "SUITES", {"check": lambda: steps})
    monkeypatch.setattr(runner, "PARALLEL", 1)
    assert run_main(runner, monkeypatch, "--within", "7200", "check") == 1
    assert capsys.readouterr().out.splitlines()[-2:] == ["1 not run: no time was left", "1 passed, 1 failed"]


@pytest.mark.parametrize(("spent", "begun"), [(50.0, True), (200.0, False)])
@pytest.mark.parametrize("core", [False, True])
def test_a_step_begins_if_it_will_be_over_in_time(runner: ModuleType, spent: float, begun: bool, core: bool) -> None:
    """By what was recorded, on a machine that is as fast, or takes more than twice as long. Core steps may try."""
    pace = runner.Pace(runner.Durations(steps={"early": 50.0, "late": 600.0}))
    pace.add(runner.Step("early", ""), spent)
    count = runner.run(runner.Step("late", "true", core=core), time.monotonic() + 1000, pace)
    if begun or core:
        assert (count.passed, count.failed, count.not_run) == (1, 0, [])
    else:
        assert (count.passed, count.failed, count.not_run) == (0, 0, ["late"])


def account_step(runner: ModuleType, tmp_path: Path, found: dict[str, object], core: bool = False) -> Any:
    """A pytest that leaves one good test, and an account of what it has not run."""
    (tmp_path / "xml").write_text('<testsuites><testcase name="a"/></testsuites>')
    (tmp_path / "found").write_text(json.dumps({"took": {}, "core_not_run": [], "not_run": []} | found))
    command = "cp found account; : "
    return runner.Step("labs", command, runner.count_junit(tmp_path / "xml"), account=tmp_path / "account", core=core)


def test_what_a_pytest_has_not_run_is_named(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    step = account_step(runner, tmp_path, {"not_run": ["t.py::b", "t.py::c"], "took": {"tests": {"t.py::a": 2.0}}})
    monkeypatch.setattr(runner, "SUITES", {"check": lambda: [step]})
    assert run_main(runner, monkeypatch, "check") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4:] == ["not run: t.py::b", "not run: t.py::c", "2 not run: no time was left", "1 passed, 0 failed"]
    assert runner.Durations.load(tmp_path / "durations.json").tests == {"t.py::a": 2.0}


def test_a_pytest_that_has_not_run_the_core_list_fails(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    step = account_step(runner, tmp_path, {"not_run": ["t.py::b"], "core_not_run": ["t.py::b"]})
    monkeypatch.setattr(runner, "SUITES", {"check": lambda: [step]})
    assert run_main(runner, monkeypatch, "check") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 1 failed"


@pytest.mark.parametrize(
    ("machine", "told", "slow", "said"),
    [
        (1.0, None, "1", "--pace 1.00"),
        (1.9, None, "1", "--pace 1.90"),
        (3.2, None, "3", "--pace 3.20"),
        (40.0, None, "8", "--pace 40.00"),
        (3.2, "5", "5", "--pace 5.00"),
        (3.2, "1", "1", "--pace 3.20"),
    ],
)
def test_a_pytest_is_told_by_when_to_end_and_how_slow_the_machine_is(
    runner: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    machine: float,
    told: str | None,
    slow: str,
    said: str,
) -> None:
    """What steps took so far does not count. Clocks are slowed where they must be, or as one was told."""
    monkeypatch.setattr(runner, "machine_pace", lambda: machine)
    if told:
        monkeypatch.setenv("VMLAB_SLOW", told)
    step = account_step(runner, tmp_path, {"took": {"tests": {"t.py::a": 2.0}}})
    step.command = "cp found account; echo $VMLAB_SLOW >told"
    pace = runner.Pace(runner.Durations(steps={"early": 60.0}))
    pace.add(runner.Step("early", ""), 180.0)
    runner.run(step, time.monotonic() + 500.4, pace)
    assert (tmp_path / "told").read_text() == f"{slow} {said} --within 500\n"
    assert bool(pace.took.tests) == (slow == "1"), "durations by slow clocks are nobody's"


def test_the_machines_pace(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each CPU's share of the work counts: with ten times as much of it, the machine is slower."""
    monkeypatch.undo()
    pace = runner.machine_pace()
    assert pace > 0.05
    monkeypatch.setattr(
        runner, "PROBE", runner.PROBE.replace("1_500_000", "15_000_000").replace("400_000", "4_000_000")
    )
    assert runner.machine_pace() > pace


def test_what_needs_a_step_that_failed_is_not_begun(runner: ModuleType, tmp_path: Path) -> None:
    """It waits for it, and has failed with it."""
    steps = [
        runner.Step("build", "sleep 0.2; false"),
        runner.Step("good build", "sleep 0.2; touch built"),
        runner.Step("needy", "touch needy", needs=("build",)),
        runner.Step("other", "test -e built", needs=("good build",)),
    ]
    total = runner.run_all(steps, 3)
    assert (total.passed, total.failed) == (2, 2)
    assert not (tmp_path / "needy").exists()


def test_what_needs_a_step_that_was_not_begun_is_not_run(runner: ModuleType, tmp_path: Path) -> None:
    """There would be time for it."""
    pace = runner.Pace(runner.Durations(steps={"build": 600.0, "needy": 1.0}))
    steps = [runner.Step("build", "true"), runner.Step("needy", "touch needy", needs=("build",))]
    total = runner.run_all(steps, 1, time.monotonic() + 300, pace)
    assert (total.passed, total.failed, total.not_run) == (0, 0, ["build", "needy"])
    assert not (tmp_path / "needy").exists()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_thing_is_in_one_part(count: int) -> None:
    """Parts take about the same time, and keep what is side by side together."""
    things = list(range(60))
    parts = split(things, lambda n: 1.0 + n % 5, count)
    assert [n for part in parts for n in part] == things
    spent = [sum(1.0 + n % 5 for n in part) for part in parts]
    assert max(spent) - min(spent) <= 2 * 5.0


def test_parts_of_little_or_nothing() -> None:
    assert split([], float, 3) == [[], [], []]
    assert split([0, 0], float, 2) == [[0, 0], []]
    assert [n for part in split([100, 1], float, 4) for n in part] == [100, 1]


@pytest.mark.parametrize("text", ["", "2", "0/2", "3/2", "1/0", "a/b", "1/2/3"])
def test_no_part(text: str) -> None:
    with pytest.raises(ValueError, match="no part"):
        part(text)


@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_parts_of_a_run(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int) -> None:
    """All steps and tests are in exactly one; what a lab needs is in each part that has such a lab."""
    planned = [
        Planned(f"{group}-{n}", group, f"lab of {group}", 5.0 + n, kernel)
        for group, kernel in (("a", "6.1"), ("b", "debug"), ("c", "6.1"))
        for n in range(10)
    ]
    monkeypatch.setattr(runner, "planned_tests", lambda: planned)
    monkeypatch.setattr(runner, "built", lambda: [runner.lab_tools(), runner.Step("build", "", prepares=True)])
    debug = runner.Step("debug kernel", "", prepares=True)
    monkeypatch.setattr(runner, "modules_of", lambda kernel: [debug] if kernel == "debug" else [])
    tools = runner.Step("tools", "", prepares=True)
    checks = [runner.Step(f"check {n}", "", needs=("tools",)) for n in range(4)]
    others = runner.Step("others", "")
    monkeypatch.setattr(runner, "SUITES", {"check": lambda: [tools, *checks], "all": lambda: [others]})
    steps: list[str] = []
    tests: list[str] = []
    prepared = {"lab tools", "build"}
    for number in range(1, count + 1):
        for found in runner.divided(["check", "all"], (number, count), runner.Durations()):
            names = [step.name for step in found.steps]
            if found.suite == "check":
                assert names[:1] in ([], ["tools"])
                steps += names[1:]
                continue
            steps += [name for name in names if name == "others"]
            for step in found.steps:
                if step.name.startswith("labs "):
                    mine = (tmp_path / f"{step.name.replace(' ', '-')}.tests").read_text().splitlines()
                    assert f"--listed {tmp_path / step.name.replace(' ', '-')}.tests" in step.command
                    assert mine
                    tests += mine
                    needs = prepared | {"debug kernel"} if step.name == "labs b" else prepared
                    assert set(step.needs) == needs <= set(names)
    assert steps == [*(f"check {n}" for n in range(4)), "others"]
    assert tests == [one.name for one in planned]


def test_a_run_says_how_long_it_takes(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = [Planned(f"t-{n}", "6.1-pc", "a lab", 600.0, "6.1") for n in range(12)]
    monkeypatch.setattr(runner, "planned_tests", lambda: planned)
    monkeypatch.setattr(runner, "built", list)
    monkeypatch.setitem(runner.SUITES, "all", list)
    monkeypatch.setattr(runner, "steps_of", lambda tests: [runner.Step("a step", "true")])
    monkeypatch.setattr(
        runner.Durations, "load", lambda *_: runner.Durations(steps={"a step": 0.0}, boots={"a lab": 300})
    )
    assert run_main(runner, monkeypatch, "--part", "1/2", "all") == 0
    assert "part 1/2 of it takes about 1 h 05 min" in capsys.readouterr().out


def test_durations_are_kept_and_recorded(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a step that ended by itself, and well."""
    steps = [runner.Step("good", "sleep 0.2"), runner.Step("bad", "false")]
    monkeypatch.setattr(runner, "SUITES", {"check": lambda: steps})
    run_main(runner, monkeypatch, "check")
    kept = runner.Durations.load(tmp_path / "durations.json")
    assert set(kept.steps) == {"good"} and 0.2 <= kept.steps["good"] < 60
    recorded = tmp_path / "recorded.json"
    recorded.write_text(json.dumps({"steps": {"other": 3.0, "good": 99.0}}))
    load, save = runner.Durations.load, runner.Durations.save
    monkeypatch.setattr(runner.Durations, "load", lambda path=recorded: load(path))
    monkeypatch.setattr(runner.Durations, "save", lambda self, path=recorded: save(self, path))
    assert run_main(runner, monkeypatch, "--record") == 0
    assert load(recorded).steps == {"other": 3.0, "good": kept.steps["good"]}


def test_a_test_that_was_never_seen_takes_what_its_like_take() -> None:
    durations = Durations(tests={"a.py::one[6.1-pc-x]": 3.0, "a.py::one[6.12-q35-x]": 4.0})
    assert durations.test("a.py::one[6.1-pc-x]") == 3.0
    assert durations.test("a.py::one[debug-pc-y]") == 4.0
    assert durations.test("a.py::other[6.1-pc-x]") == UNKNOWN["tests"]


def test_steps_that_use_the_same_wait(runner: ModuleType) -> None:
    """mkdir fails if the other is at it."""
    alone = "mkdir busy && sleep 0.2 && rmdir busy"
    steps = [runner.Step(f"step {n}", alone, uses="it") for n in range(3)] + [runner.Step("other", "true")]
    total = runner.run_all(steps, 3)
    assert (total.passed, total.failed) == (4, 0)


def test_a_step_that_is_alone_shares_nothing(runner: ModuleType) -> None:
    """Whatever runs beside it finds its directory, or it theirs."""
    step = "mkdir mine.$$ && sleep 0.2 && {} && rmdir mine.$$"
    lonely = step.format('test "$(ls -d mine.*)" = mine.$$')
    steps = [runner.Step(f"step {n}", lonely if n % 3 == 1 else step.format(":"), alone=n % 3 == 1) for n in range(7)]
    total = runner.run_all(steps, 3)
    assert (total.passed, total.failed) == (7, 0)


@pytest.mark.parametrize(
    ("command", "status", "last"), [("true", 0, "1 passed, 0 failed"), ("false", 1, "0 passed, 1 failed")]
)
def test_last_line_and_status(
    runner: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    status: int,
    last: str,
) -> None:
    monkeypatch.setattr(runner, "SUITES", {"check": lambda: [runner.Step("a step", command)]})
    assert run_main(runner, monkeypatch, "check") == status
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_a_broken_suite_fails(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> list[object]:
        raise OSError("no dpkg-query")

    monkeypatch.setattr(runner, "SUITES", {"check": broken})
    assert run_main(runner, monkeypatch, "check") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"


def test_who_asks_for_a_step_gets_what_it_needs(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [
        runner.Step("tools", "touch tools"),
        runner.Step("build", "test -e tools && touch built", needs=("tools",)),
        runner.Step("test it", "test -e built", needs=("build",)),
        runner.Step("test other", "false"),
    ]
    monkeypatch.setattr(runner, "SUITES", {"check": lambda: steps})
    assert run_main(runner, monkeypatch, "--only", "test it", "check") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 passed, 0 failed"


@pytest.mark.parametrize("suite", ["check", "ring", "main", "debug"])
def test_every_need_is_there(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, suite: str) -> None:
    """A need that no step of the suite has is not waited for."""
    monkeypatch.setattr(runner, "kernel_releases", lambda: ["6.1.0"])
    steps = runner.SUITES[suite]()
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    assert not {name for step in steps for name in step.needs} - set(names)


def test_steps_of_several_suites(runner: ModuleType) -> None:
    """Each runs once, and what others need comes first."""
    tools, build = (runner.Step(name, "", prepares=True) for name in ("tools", "build"))
    check, labs = runner.Step("check", "", needs=("tools",)), runner.Step("labs", "", needs=("tools", "build"))
    again = runner.Step("tools", "", prepares=True)
    rounds = [runner.Round("check", [tools, check]), runner.Round("main", [again, build, labs])]
    assert runner.merged(rounds) == [tools, build, check, labs]


def test_every_kernel_of_a_stage_is_made(runner: ModuleType) -> None:
    """With modules for it; installed ones by built(), so not again."""
    for stage in stages.ALL:
        kernel = stages.parts(stage.name)[0]
        names = [step.name for step in runner.modules_of(kernel)]
        assert names[-1:] == ([] if kernel in ("6.1", "6.12") else [f"modules {kernel}"]), stage.name
    assert [step.name for step in runner.modules_of("kcsan")] == ["kcsan kernel", "modules kcsan"]
    assert [step.command for step in runner.modules_of("newest")] == ["scripts/check-kernels newest"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("6.1-pc", ("6.1", "pc", 0)),
        ("6.12-q35-4cpu", ("6.12", "q35", 4)),
        ("newest-rt-pc-1cpu", ("newest-rt", "pc", 1)),
    ],
)
def test_names_of_stages(name: str, expected: tuple[str, str, int]) -> None:
    assert stages.parts(name) == expected


@pytest.mark.parametrize("name", ["", "6.1", "pc", "6.1-pc-", "6.1-PC", "-pc"])
def test_no_stage(name: str) -> None:
    with pytest.raises(ValueError, match="no stage"):
        stages.parts(name)


def test_all_fast_checks_are_core(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "kernel_releases", lambda: ["6.1.0"])
    assert all(step.core for step in runner.check_steps())
    assert [step.core for step in runner.main_steps() if step.name == "main"] == [True]
