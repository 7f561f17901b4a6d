"""Runs that go on with, or are compared with, an earlier one, and what a long run says."""

import json
from pathlib import Path

import pytest

from gen.run.results import read

pytest_plugins = "pytester"

TESTS = """
from pathlib import Path
from gen.checks import cases, family, known, op
from gen.checks.case import SampleFailure
from gen.outcomes import Mismatch

@cases(op("torch.cos", smoke="float64"), op("torch.sin", smoke="float64"),
       op("torch.tan", smoke="float64"))
def test_vjp(case):
    case.compared = 1
    text = Path("%s").with_name(case.op).read_text()
    if text:
        case.finish([SampleFailure(0, "", Mismatch(text))])
"""
OPS = ("torch.cos", "torch.sin", "torch.tan")


class Project:
    """Three cells, each of which fails with the text of a file, if there is one."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        pytester.makepyfile(test_demo=TESTS % (pytester.path / "x"))
        self.fail()

    def fail(self, **errors: str) -> None:
        for op in OPS:
            (self.pytester.path / op).write_text(errors.get(op.removeprefix("torch."), ""))

    def __call__(self, *args: str) -> pytest.RunResult:
        return self.pytester.runpytest_inprocess(
            "-p", "gen.run.plugin", "-p", "no:cacheprovider", "--target", "torch", *args
        )

    @property
    def path(self) -> Path:
        return self.pytester.path / ".cache/matrix/results-torch-cpu.jsonl"

    def outcomes(self) -> dict[str, str]:
        return {cell.op.removeprefix("torch."): cell.outcome for cell in read(self.path).cells}

    def cut(self, cells: int) -> None:
        """Leave of the results what a run that is killed leaves."""
        lines = self.path.read_text().splitlines(keepends=True)
        self.path.write_text("".join(lines[: 1 + cells]) + lines[1 + cells][:20])


@pytest.fixture
def run(pytester: pytest.Pytester) -> Project:
    return Project(pytester)


def test_an_interrupted_run_goes_on_with_the_cells_without_an_outcome(run: Project) -> None:
    run()
    run.cut(2)
    result = run("--resume")
    result.assert_outcomes(passed=1, deselected=2)
    assert run.outcomes() == {"cos": "passed", "sin": "passed", "tan": "passed"}
    assert read(run.path).end["complete"]


def test_what_failed_before_the_interruption_fails_the_run_that_goes_on(run: Project) -> None:
    run.fail(cos="largest error 1")
    run()
    run.cut(2)
    result = run("--resume")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["2 passed · 1 failed", "failed, the most severe first: 1 wrong"])


def test_a_run_of_which_only_the_end_is_lost_ends(run: Project) -> None:
    run()
    run.path.write_text("".join(run.path.read_text().splitlines(keepends=True)[:-1]))
    assert run("--resume").ret == 0
    assert read(run.path).end["complete"]


def test_without_results_a_run_begins(run: Project) -> None:
    run("--resume").assert_outcomes(passed=3)


def test_workers_go_on_with_a_run_too(run: Project) -> None:
    run()
    run.cut(1)
    run("--resume", "-n", "2").assert_outcomes(passed=2)
    assert len(run.outcomes()) == 3


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "has ended; without --resume a new run begins"),
        (("--tier", "full"), "is of another run: tier default, now full"),
    ],
)
def test_a_run_that_cannot_go_on_is_refused(run: Project, args: tuple[str, ...], says: str) -> None:
    run()
    before = run.path.read_text()
    result = run("--resume", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert says in result.stderr.str()
    assert run.path.read_text() == before


def test_a_module_that_has_changed_meanwhile_is_refused(run: Project) -> None:
    run()
    run.cut(2)
    lines = run.path.read_text().splitlines(keepends=True)
    header = json.loads(lines[0]) | {"began": "2020-01-01T00:00:00"}
    run.path.write_text("".join([json.dumps(header, separators=(",", ":")) + "\n", *lines[1:]]))
    result = run("--resume")
    assert "test_demo.py has changed since the run" in result.stderr.str() + result.stdout.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_run_fails_only_by_what_its_baseline_has_not(run: Project) -> None:
    run.fail(cos="largest error 0.5", sin="largest error 0.1")
    assert run("--results", "base.jsonl").ret == 1
    # another number is no other failure
    run.fail(cos="largest error 0.7")
    result = run("--baseline", "base.jsonl")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["against base.jsonl: 0 failures are new, 1 are old, 1 cells fail no more"]
    )


@pytest.mark.parametrize("errors", [{"sin": "largest error 1"}, {"cos": "another shape"}])
def test_a_new_failure_fails_the_run_and_is_named(run: Project, errors: dict[str, str]) -> None:
    run.fail(cos="largest error 0.5")
    run("--results", "base.jsonl")
    run.fail(**({"cos": "largest error 0.5"} | errors))
    result = run("--baseline", "base.jsonl")
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"  new: wrong: *test_vjp?torch.{next(iter(errors))}-float64?*"])


@pytest.mark.parametrize(
    ("text", "says"), [(None, "No such file"), ("{}", "base.jsonl"), ("", "no header line")]
)
def test_a_baseline_that_cannot_be_read_stops_the_run(
    run: Project, text: str | None, says: str
) -> None:
    if text is not None:
        (run.pytester.path / "base.jsonl").write_text(text)
    result = run("--baseline", "base.jsonl")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--baseline: " in result.stderr.str()
    assert says in result.stderr.str()


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_run_says_how_far_it_is(run: Project, workers: tuple[str, ...]) -> None:
    run.fail(cos="largest error 1")
    result = run("--progress", "1e-9", *workers)
    result.stdout.fnmatch_lines(["matrix: 3 of 3 cells · 1 wrong · * a second · 0 s to go"])


@pytest.mark.parametrize("seconds", ["-1", "nan", "soon"])
def test_an_interval_that_is_none_is_refused(run: Project, seconds: str) -> None:
    assert run(f"--progress={seconds}").ret == pytest.ExitCode.USAGE_ERROR
