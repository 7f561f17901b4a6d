"""Failed cells are ordered by severity, and one cause over many cells is one finding."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from gen.cli import main
from gen.run.results import read

pytest_plugins = "pytester"

OPS = """
import os
import time

import torch


def function(backward):
    def forward(ctx, x):
        return x * 2

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Double", (torch.autograd.Function,), members)


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


def fine(x):
    return x * 2


def wrong(x):
    return Triple.apply(x)


def crash(x):
    return function(lambda ctx, g: os.abort()).apply(x)


def misnamed(ctx, g):
    return {}["slope"]


def error(x):
    return function(misnamed).apply(x)


def slow(x):
    return function(lambda ctx, g: time.sleep(60)).apply(x)


def unasked(x):
    return x * 0


def detached(x):
    return x.detach().sin() * x**2


def old_style(x):
    return function(lambda ctx, g: g * 2).apply(x)


def lenient(x):
    if x.ndim > 1:
        raise RuntimeError("too many dimensions")
    return x * 2


def misworded(x):
    if x.ndim > 1:
        raise ValueError("no")
    return x * 2
"""
SAMPLES = "samples: [{args: [{shape: [3]}]}]"
MATRIX = f"""
version: 1
targets: {{default: torch, names: [torch]}}
dtypes: {{double: [float64]}}
devices: {{cpu: {{}}}}
checks:
  backward:
    claim: The backward pass equals central differences.
    pipeline: backward
    against: numeric
  vjp: {{claim: vjp equals central differences., pipeline: vjp, against: numeric}}
  jacrev: {{claim: jacrev equals a loop., pipeline: jacrev, against: loop}}
  vmap_of_vjp: {{claim: vmap of vjp equals a loop., pipeline: vmap . vjp, against: loop}}
  errors: {{claim: Bad input raises., against: raises, requires: [errors]}}
families:
  eager:
    title: Backward passes
    dtypes: [double]
    checks: [backward]
    ops:
      - {{op: severe.unasked, {SAMPLES}}}
      - {{op: severe.slow, {SAMPLES}}}
      - {{op: severe.error, {SAMPLES}}}
      - {{op: severe.crash, {SAMPLES}}}
      - {{op: severe.wrong, {SAMPLES}}}
      - {{op: severe.fine, {SAMPLES}}}
  transforms:
    title: Transforms of a Function of the old style
    dtypes: [double]
    checks: [vjp, jacrev, vmap_of_vjp]
    ops: [{{op: severe.old_style, {SAMPLES}}}]
  bad:
    title: Bad input
    dtypes: [double]
    checks: [errors]
    ops:
      - op: severe.lenient
        {SAMPLES}
        errors: [{{args: [{{shape: [2, 2]}}], raises: ValueError, match: dimensions}}]
      - op: severe.misworded
        {SAMPLES}
        errors: [{{args: [{{shape: [2, 2]}}], raises: ValueError, match: dimensions}}]
tiers: {{smoke: {{}}, default: {{}}, full: {{}}}}
"""
ORDER = ["wrong", "crash", "error", "slow", "refused", "unasked"]


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with an op for each severity, and its generated modules."""
    pytester.makepyfile(severe=OPS)
    (pytester.path / "matrix.yaml").write_text(MATRIX)
    assert main(["generate"]) == 0
    pytester.syspathinsert()
    return pytester


def run(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    return project.runpytest_inprocess(
        "-p", "gen.run.plugin", "-p", "no:cacheprovider", "--cell-timeout", "3",
        *(args or ("generated_tests",)),
    )  # fmt: skip


def in_order(words: list[str]) -> list[str]:
    return list(dict.fromkeys(words))


def test_the_terminal_shows_the_most_severe_failures_first(
    project: pytest.Pytester,
) -> None:
    result = run(project)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "failed, the most severe first: "
            "1 wrong · 1 crash · 3 error · 1 slow · 3 refused · 1 unasked",
            "findings (8):",
            "  wrong: *test_backward[[]severe.wrong-float64]",
            "  crash: *test_backward[[]severe.crash-float64]",
            "  error: *test_backward[[]severe.error-float64] [[]severe.py:* in misnamed]",
            "  error: *test_errors[[]severe.lenient-float64] [[]severe.py:* in lenient]",
            "  error: *test_errors[[]severe.misworded-float64]",
            "  slow: *test_backward[[]severe.slow-float64]",
            "  refused: 3 cells of severe.old_style under jacrev, vjp, vmap_*: *setup_context*",
            "  unasked: *test_backward[[]severe.unasked-float64]",
        ],
        consecutive=True,
    )


DERIVATIVES = """
checks:
  backward: {claim: A backward pass., pipeline: backward, against: numeric}
  second: {claim: A second backward pass., pipeline: backward . backward, against: numeric}
  dual: {claim: Dual tensors., pipeline: dual, against: numeric}
  vjp: {claim: A transform., pipeline: vjp, against: numeric}
families:
  detached:
    title: A factor without a history
    dtypes: [double]
    ops: [{op: severe.detached, samples: [{args: [{shape: [3]}]}, {args: [{shape: [2]}]}]}]
tiers:"""


def test_wrong_derivatives_of_an_op_are_one_finding(project: pytest.Pytester) -> None:
    head, _, rest = MATRIX.partition("checks:")
    (project.path / "matrix.yaml").write_text(head + DERIVATIVES + rest.partition("tiers:")[2])
    assert main(["generate"]) == 0
    run(project).stdout.fnmatch_lines(
        [
            "findings (1):",
            "  wrong: 4 cells of severe.detached under backward, dual, second, vjp: *",
        ],
        consecutive=True,
    )


def test_reports_show_the_most_severe_failures_first(project: pytest.Pytester) -> None:
    run(project)
    assert main(["report", "--json", "r.json"]) == 0
    page = Path("report/index.html").read_text()
    headlines = ["wrong value", "crash of", "wrong kind", "slow, or", "refused ", "cannot be"]
    places = [page.index(f"<h3>{headline}") for headline in headlines]
    assert places == sorted(places)
    (written,) = json.loads(Path("r.json").read_text())["runs"]
    assert in_order([finding["severity"] for finding in written["findings"]]) == ORDER
    assert in_order([failure["severity"] for failure in written["failures"]]) == ORDER
    (refused,) = [one for one in written["findings"] if one["severity"] == "refused"]
    assert (refused["count"], len(refused["nodes"])) == (3, 3)
    assert "in old_style" in refused["frame"]


def test_a_list_of_what_failed_shows_the_most_severe_first(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--failed"]) == 2
    assert "run `pytest generated_tests` first" in capsys.readouterr().err
    run(project)
    capsys.readouterr()
    assert main(["list", "--failed"]) == 0
    *lines, _, _, _, total = capsys.readouterr().out.splitlines()
    words = [line.split("  ")[2].partition(": ")[0] for line in lines if "::" in line]
    assert in_order(words) == ORDER
    assert total == f"{len(words)} cases"


def test_the_results_have_both_sides_and_the_program_of_a_failure(
    project: pytest.Pytester,
) -> None:
    run(project)
    found = read(Path(".cache/matrix/results-torch-cpu.jsonl")).cells
    cells = {cell.op: cell for cell in found if cell.severity}
    wrong = cells["severe.wrong"]
    expected, actual = json.loads(wrong.expected), json.loads(wrong.actual)
    assert torch.allclose(torch.tensor(actual), 1.5 * torch.tensor(expected))
    assert cells["severe.error"].expected == "a value"
    assert cells["severe.error"].actual == "KeyError: 'slope'"
    assert cells["severe.misworded"].expected.startswith("ValueError with a message that matches")
    assert cells["severe.misworded"].actual.startswith("ValueError: ")
    assert cells["severe.slow"].actual.startswith("TimedOut: no result after 3 s")
    assert (cells["severe.unasked"].expected, cells["severe.unasked"].actual) == ("", "")
    namespace: dict[str, torch.Tensor] = {}
    exec(wrong.program, namespace)
    assert not torch.allclose(namespace["actual"], namespace["expected"])


def test_the_results_of_the_run_before_are_kept_for_the_history(
    project: pytest.Pytester,
) -> None:
    for _ in range(2):
        run(project, "generated_tests", "-k", "severe.fine or severe.wrong")
    earlier = Path(".cache/matrix/earlier")
    (before,) = earlier.glob("results-torch-cpu-part@*.jsonl")
    assert {cell.op for cell in read(before).cells} == {"severe.fine", "severe.wrong"}
    for _ in range(2):
        run(project, "generated_tests", "-k", "severe.fine", "--results", "r.jsonl")
    assert not Path("earlier").exists()
    for day in range(10, 20):
        shutil.copy(before, earlier / f"results-torch-cpu-part@2020-01-{day}T00-00-00.jsonl")
    run(project, "generated_tests", "-k", "severe.fine")
    names = sorted(path.name for path in earlier.iterdir())
    assert len(names) == 8 and names[0].startswith("results-torch-cpu-part@2020-01-14")


def test_junit_has_the_most_severe_failures_first(project: pytest.Pytester) -> None:
    run(project)
    assert main(["report", "--junit", "r.xml"]) == 0
    suite = ElementTree.parse("r.xml").getroot().find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    severities = [case.find("properties/property") for case in cases]
    shown = [one.get("value", "") for one in severities if one is not None]
    assert in_order(shown) == ORDER
    assert severities[: len(shown)].count(None) == 0, "failures come before what passed"


@pytest.mark.parametrize(
    ("op", "word", "status"),
    [
        ("wrong", "wrong", pytest.ExitCode.TESTS_FAILED),
        ("crash", "wrong", pytest.ExitCode.OK),
        ("crash", "crash", pytest.ExitCode.TESTS_FAILED),
        ("error", "crash", pytest.ExitCode.OK),
        ("old_style", "slow", pytest.ExitCode.OK),
        ("unasked", "unasked", pytest.ExitCode.TESTS_FAILED),
    ],
)
def test_a_run_fails_by_cells_that_are_severe_enough(
    project: pytest.Pytester, op: str, word: str, status: pytest.ExitCode
) -> None:
    result = run(project, "generated_tests", "-k", f"{op} or fine", "--fail-on", word)
    assert result.ret == status
    severe = 0 if status == pytest.ExitCode.OK else 1
    result.stdout.fnmatch_lines([f"--fail-on {word}: {severe} failed cells count, *"])
    assert "failed" in result.stdout.str().splitlines()[-1], "a failure is shown all the same"


def test_a_failure_that_is_no_cell_fails_the_run_whatever_is_tolerated(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(test_other="def test_other():\n    assert False")
    chosen = ("generated_tests", "test_other.py", "-k", "unasked or fine or other")
    assert run(project, *chosen, "--fail-on", "wrong").ret == pytest.ExitCode.TESTS_FAILED


WORKERS = """
from gen.checks import cases, op

@cases(op("a", smoke="float64"), op("b", smoke="float64"))
def test_jvp(case):
    case.compared = 1
    if case.op == "b":
        raise RuntimeError("refused")
"""


def test_workers_send_the_severity_of_their_cells(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_demo=WORKERS)
    result = run(pytester, "test_demo.py", "-n", "1", "--target", "torch", "--fail-on", "wrong")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["failed, the most severe first: 1 refused"])


def test_a_run_that_is_stopped_by_a_failure_fails(project: pytest.Pytester) -> None:
    chosen = ("generated_tests", "-k", "unasked or fine", "-x")
    assert run(project, *chosen, "--fail-on", "wrong").ret == pytest.ExitCode.TESTS_FAILED


def test_a_word_that_is_no_severity_is_refused_with_those_there_are(
    project: pytest.Pytester,
) -> None:
    result = run(project, "generated_tests", "--fail-on", "bad")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--fail-on: invalid choice: 'bad' (choose from *wrong*crash*"])
