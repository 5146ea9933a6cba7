# SPDX-License-Identifier: GPL-2.0
"""scripts/run-tests counts what fails, above all what fails silently."""

import importlib.util
import sys
import threading
import time
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

TOP = Path(__file__).resolve().parents[2]


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
    return module


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


@pytest.mark.usefixtures("time_is_over_when_ready")
def test_what_is_left_when_the_time_is_over_fails(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    slow = "touch ready; sleep 60"
    steps = [runner.Step("quick", "true"), runner.Step("slow", slow), runner.Step("late", "touch late")]
    monkeypatch.setattr(runner, "SUITES", {"check": lambda: steps, "ring": lambda: [runner.Step("later", "true")]})
    monkeypatch.setattr(runner, "PARALLEL", {})
    monkeypatch.setattr(runner, "prepare_python", lambda: None)
    monkeypatch.setattr(sys, "argv", ["run-tests", "--within", "7200", "check", "ring"])
    assert runner.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 3 failed"
    assert not (tmp_path / "late").exists()


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
    monkeypatch.setattr(runner, "prepare_python", lambda: None)
    monkeypatch.setattr(sys, "argv", ["run-tests", "check"])
    assert runner.main() == status
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_a_broken_preparation_fails(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise OSError("no python3-venv")

    monkeypatch.setattr(runner, "prepare_python", broken)
    monkeypatch.setattr(sys, "argv", ["run-tests", "check"])
    assert runner.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"
