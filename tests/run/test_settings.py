"""What matrix.yaml says of a run acts: the default target and the devices. A narrowed run leaves
the whole's results alone."""

from pathlib import Path

import pytest

from gen.run.results import LAST, read

pytest_plugins = "pytester"

MODULE = """
from gen.checks import cases, family, known, op
from gen.outcomes import Mismatch

FAMILY = family("demo", known={"narrow": known("xfail", raises="Mismatch", match="largest error", \
reason="it is known of exp")})

@cases(op("torch.sin", smoke="float64"), op("torch.cos", smoke="float64"))
def test_vjp(case):
    if case.op == "torch.cos":
        raise Mismatch("largest error 0.5 at index [0]")

@cases(op("torch.exp", smoke="float64", known="narrow"))
def test_jvp(case):
    raise Mismatch("largest error 0.5 at index [0]")
"""
MATRIX = """
targets: {default: torch, names: [torch, runtime]}
devices:
  cpu: {}
  abacus: {available: builtins.bool, reason: nobody moves the beads}
  slide_rule: {available: nowhere.is_there}
"""


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "gen.run.plugin", "-p", "no:cacheprovider", *args)


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_demo=MODULE)
    (pytester.path / "matrix.yaml").write_text(MATRIX)
    return pytester


def test_the_default_target_is_that_of_the_matrix(project: pytest.Pytester) -> None:
    run(project, "--collect-only").stdout.fnmatch_lines(["matrix: target torch *"])
    run(project, "--collect-only", "--target", "runtime").stdout.fnmatch_lines(
        ["matrix: target runtime *"]
    )
    (project.path / "matrix.yaml").unlink()
    run(project, "--collect-only").stdout.fnmatch_lines(["matrix: target runtime *"])


def test_cells_of_a_device_that_is_not_available_are_skipped_with_its_reason(
    project: pytest.Pytester,
) -> None:
    result = run(project, "--device", "abacus:1")
    result.assert_outcomes(skipped=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED  # nothing was proved
    cells = read(project.path / ".cache/matrix/results-torch-abacus_1.jsonl").cells
    assert {(cell.outcome, cell.why) for cell in cells} == {
        ("skipped", "Skipped: device abacus:1 is not available: nobody moves the beads")
    }


def test_a_callable_of_a_device_that_fails_is_the_reason(project: pytest.Pytester) -> None:
    run(project, "--device", "slide_rule", "-rs").stdout.fnmatch_lines(
        ["*device slide_rule is not available: nowhere.is_there raised ModuleNotFoundError*"]
    )


@pytest.mark.parametrize(
    "text", ["", "- 1", "targets: [", "targets: torch", "devices: {cpu: 1}", "\t"]
)
def test_a_matrix_that_is_none_declares_nothing(project: pytest.Pytester, text: str) -> None:
    (project.path / "matrix.yaml").write_text(text)
    found = run(project, "--collect-only")
    found.stdout.fnmatch_lines(["matrix: target runtime *"])
    assert found.ret == pytest.ExitCode.OK


def test_a_run_of_one_file_does_not_replace_the_results_of_the_whole(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(test_other=MODULE)
    folder = project.path / ".cache/matrix"
    run(project)
    assert len(read(folder / "results-torch-cpu.jsonl").cells) == 6
    run(project, "test_other.py")
    assert len(read(folder / "results-torch-cpu.jsonl").cells) == 6
    assert len(read(folder / "results-torch-cpu-part.jsonl").cells) == 3
    assert Path((project.path / LAST).read_text()).name == "results-torch-cpu-part.jsonl"


def test_a_failure_that_another_entry_expects_says_so(project: pytest.Pytester) -> None:
    result = run(project, "--results", "r.jsonl")
    result.stdout.fnmatch_lines(["known elsewhere: 1 entry matches this message (narrow)"])
    failed = next(cell for cell in read(project.path / "r.jsonl").cells if cell.outcome == "failed")
    assert failed.op == "torch.cos"


def test_a_traceback_has_the_frames_of_the_op_and_none_of_the_harness(
    project: pytest.Pytester,
) -> None:
    op = (
        'def slope(x):\n    return inner(x)\n\ndef inner(x):\n    raise ValueError("from the op")\n'
    )
    project.makepyfile(mine=op)
    project.syspathinsert()
    row = (
        '{"mine.slope": {"call": "mine:slope", "samples": [{"args": [{"shape": '
        '[2]}]}, {"args": [{"shape": [3]}]}]}}'
    )
    project.makepyfile(
        test_demo=f"""
from gen.checks import cases, family, op
FAMILY = family("demo", ops={row})
@cases(op("mine.slope", smoke="float64"))
def test_vjp(case):
    case.assert_same("vjp", against="upstream")
"""
    )
    text = run(project).stdout.str()
    frames = [line for line in text.splitlines() if line.strip().startswith("File ")]
    assert [frame.rpartition(", in ")[2] for frame in frames] == ["slope", "inner"]
    assert (
        text.splitlines().count("ValueError: from the op") == 1 and "fails alike: sample 1" in text
    )


DERIVATIVE = """
from gen.checks import cases, family, op

FAMILY = family("demo")

@cases(op("torch.sin", smoke="float64"))
def test_vjp(case):
    case.assert_same("vjp", against="upstream")
"""


def test_the_rules_that_cells_run_are_noted_when_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_demo=DERIVATIVE)
    out = pytester.runpytest_subprocess(
        "-p", "gen.run.plugin", "-p", "no:cacheprovider", "--target", "runtime", "--rules"
    )
    out.assert_outcomes(passed=1)
    found = read(pytester.path / ".cache/matrix/results-runtime-cpu.jsonl")
    assert "sin vjp self" in found.cells[0].rules and "cos vjp self" not in found.cells[0].rules
    assert {"sin vjp self", "cos vjp self"} <= set(found.header["rules"])


def test_a_target_without_rules_is_refused_when_they_are_asked_for(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_demo=DERIVATIVE)
    out = run(pytester, "--target", "torch", "--rules")
    assert out.ret == pytest.ExitCode.USAGE_ERROR
    out.stderr.fnmatch_lines(["*--rules: target torch offers no rules*"])
