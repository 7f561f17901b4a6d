"""The output and exit status when generated modules run under pytest."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from gen.run.results import read

pytest_plugins = "pytester"

HEAD = """
from gen.checks import cases, family, known, op
from gen.checks.case import SampleFailure
from gen.outcomes import Lacking, Mismatch, Vacuous
"""
THREE_TIERS = (
    HEAD
    + """
@cases(op("torch.sin", smoke="float64", default="complex128", full="float32"), op("torch.cos", \
full="float64"))
def test_vjp(case):
    case.assert_same("vjp", against="upstream")
"""
)
BOOMS = """
FAMILY = family("demo", known={"boom": known("xfail", raises="RuntimeError", match="boom", \
reason="it booms", source="matrix.yaml:7:3")})
"""


class Runner:
    """pytest in a folder of its own, with the plug-in."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    def write(self, body: str, name: str = "test_demo") -> None:
        self.pytester.makepyfile(**{name: body})

    def __call__(self, *args: str) -> pytest.RunResult:
        target = () if "--target" in args else ("--target", "torch")
        return self.pytester.runpytest_inprocess(
            "-p", "gen.run.plugin", "-p", "no:cacheprovider", *target, *args
        )

    def cells(self, name: str = "results-torch-cpu.jsonl") -> dict[str, Any]:
        return {
            f"{cell.check}[{cell.id}]": cell
            for cell in read(self.pytester.path / ".cache/matrix" / name).cells
        }


@pytest.fixture
def run(pytester: pytest.Pytester) -> Runner:
    return Runner(pytester)


def test_a_tier_collects_its_cells_and_no_others(run: Runner) -> None:
    run.write(THREE_TIERS)
    run("--tier", "smoke", "--collect-only").stdout.fnmatch_lines(["*1 test collected*"])
    run("--tier", "full", "--collect-only").stdout.fnmatch_lines(["*4 tests collected*"])
    run("--tier", "full").assert_outcomes(passed=4)


def test_a_check_without_cells_at_the_tier_is_left_out_and_not_skipped(run: Runner) -> None:
    run.write(
        HEAD
        + '@cases(op("torch.sin", full="float64"))\ndef test_vjp(case): ...\ndef test_plain(): ...'
    )
    run("--tier", "smoke").assert_outcomes(passed=1)


def test_the_header_prints_every_setting(run: Runner) -> None:
    run.write(THREE_TIERS)
    run("--tier", "smoke", "--shard", "1/2").stdout.fnmatch_lines(
        [
            (
                "matrix: target torch * device cpu * tier smoke * torch * seed * sample usual * "
                "shard 1/2 * results .cache/matrix/*1of2.jsonl"
            )
        ]
    )


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--device", "cuda:77"), "--device cuda:77: not present here, nothing was run"),
        (("--device", "abacus"), "--device abacus: not present here"),
        (("--target", "tporch"), "no target 'tporch'"),
        (("--shard", "3/2"), "expected I/N"),
        (("--sample", "-1"), "one number from 0 up"),
        (("--tier", "fast"), "invalid choice"),
    ],
)
def test_a_setting_that_cannot_be_had_stops_the_run_at_once(
    run: Runner, args: tuple[str, ...], says: str
) -> None:
    run.write(THREE_TIERS)
    result = run(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert says in result.stderr.str() + result.stdout.str()
    assert not (run.pytester.path / ".cache").exists()


FAILING = (
    HEAD
    + """
@cases(op("torch.cos", smoke="float64"), op("torch.sin", smoke="float64"))
def test_vjp(case):
    wrong = [(1, "float64[3]", Mismatch("largest error 0.5 at index [2]")), (2, "float64[]", \
ValueError("unforeseen"))]
    case.compared = 4
    if case.op == "torch.cos":
        case.finish([SampleFailure(*one) for one in wrong if case.only in (None, one[0])])
"""
)


def test_a_mismatch_is_shown_in_three_lines_with_the_command_that_reruns_it(run: Runner) -> None:
    run.write(FAILING)
    result = run()
    result.stdout.fnmatch_lines(
        [
            "torch.cos-float64 under vjp, target torch on cpu, sample 1 float64?3?",
            "largest error 0.5 at index ?2?",
            (
                "reproduce: pytest 'test_demo.py::test_vjp?torch.cos-float64?' --target torch "
                "--tier full --sample 1"
            ),
            "torch.cos-float64 under vjp, target torch on cpu, sample 2*",
        ]
    )
    result.stdout.no_fnmatch_line("*raise Mismatch*")


def test_the_reproduce_command_works_when_pasted(run: Runner) -> None:
    run.write(FAILING)
    # pytest prints a failure's whole text once more in its summary where the variable CI is set
    commands = list(dict.fromkeys(re.findall(r"reproduce: pytest (.*)", run().stdout.str())))
    assert len(commands) == 2
    again = run(*shlex.split(commands[0]))
    again.stdout.fnmatch_lines(["*sample 1*", "largest error 0.5*"])
    again.stdout.no_fnmatch_line("*unforeseen*")


def test_an_unforeseen_exception_keeps_its_traceback(run: Runner) -> None:
    run.write(
        HEAD
        + (
            '@cases(op("torch.sin", smoke="float64"))\ndef test_vjp(case):\n'
            '    raise KeyError("unforeseen")'
        )
    )
    run().stdout.fnmatch_lines(
        [
            "torch.sin-float64 under vjp*",
            '*raise KeyError("unforeseen")',
            "KeyError: 'unforeseen'",
            "reproduce: pytest*",
        ]
    )


def test_one_bad_sample_does_not_hide_another_nor_other_cells(run: Runner) -> None:
    run.write(FAILING)
    result = run()
    result.stdout.fnmatch_lines(["*sample 1*", "*sample 2*", "1 passed * 1 failed"])
    assert run.cells()["vjp[torch.cos-float64]"].outcome == "failed"


def test_a_cell_counts_once_and_samples_that_fail_alike_have_one_report(run: Runner) -> None:
    run.write(
        HEAD
        + """
@cases(op("torch.sin", smoke="float64"))
def test_vjp(case):
    errors = [Mismatch("largest error 0.5 at index [1]"), Mismatch("largest error 0.25 at index \
[0, 2]"), Mismatch("a shape")]
    case.finish([SampleFailure(number, "", error) for number, error in enumerate(errors)])
"""
    )
    result = run()
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert text.count("largest error") == 1
    assert "fails alike: sample 1" in text
    assert text.count("a shape") == 1


OUTCOMES = (
    HEAD
    + BOOMS
    + """
@cases(op("a", smoke="float64"), op("b", smoke="float64", known="boom"), op("c", smoke="float64", \
known="boom"),
       op("d", smoke="float64", known="boom"), op("e", smoke="float64"), op("f", smoke="float64"))
def test_jvp(case):
    match case.op:
        case "b":
            raise RuntimeError("boom")
        case "d":
            raise ValueError("bang")
        case "e":
            raise Lacking("target torch lacks jvp")
        case "f":
            raise Vacuous("nothing was compared")
"""
)
EXPECTED = {
    "a": "passed",
    "b": "xfailed",
    "c": "xpassed",
    "d": "failed",
    "e": "lacking",
    "f": "vacuous",
}


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_every_outcome_reaches_the_results_file_and_the_summary(
    run: Runner, workers: tuple[str, ...]
) -> None:
    run.write(OUTCOMES)
    result = run(*workers)
    assert {cell.op: cell.outcome for cell in run.cells().values()} == EXPECTED
    result.stdout.fnmatch_lines(
        [
            "1 passed · 1 lacking · 1 xfailed · 1 vacuous · 1 xpassed · 1 failed",
            "6 cells, * ms a cell on average*",
            "vacuous*",
            "*test_jvp?f-float64?: nothing was compared",
            "lacking*",
            "*1 cells of jvp: target torch lacks jvp",
            "slowest:",
        ]
    )
    header, *_, end = [
        json.loads(line)
        for line in (run.pytester.path / ".cache/matrix/results-torch-cpu.jsonl")
        .read_text()
        .splitlines()
    ]
    assert (header["event"], header["target"], header["tier"]) == ("run", "torch", "default")
    assert (end["event"], end["complete"]) == ("end", True)


def test_a_wrong_exception_shows_what_was_expected_and_what_came(run: Runner) -> None:
    run.write(OUTCOMES)
    run("-k", "d-float64").stdout.fnmatch_lines(
        ["*expected RuntimeError('boom') ?boom?, got ValueError: bang"]
    )


def test_an_entry_that_did_not_happen_names_itself(run: Runner) -> None:
    run.write(OUTCOMES)
    run("-k", "c-float64").stdout.fnmatch_lines(
        ["*remove the entry or narrow it: 'boom' «it booms» (matrix.yaml:7:3)"]
    )


def test_entries_that_share_a_case_are_listed_when_only_one_of_them_ever_happens(
    run: Runner,
) -> None:
    two = HEAD + (
        'BOOM = known("xfail", raises="RuntimeError", reason="r")\n'
        'BANG = known("xfail", raises="ValueError", reason="gone")\n'
    )
    run.write(
        two
        + 'FAMILY = family("demo", known={"boom": BOOM, "bang": BANG})\n'
        + (
            '@cases(op("a", smoke="float64", known="boom bang"))\ndef test_jvp(case):\n'
            '    raise RuntimeError("boom")'
        )
    )
    run().stdout.fnmatch_lines(
        ["entries that never happened at tier default:", "*demo:bang: «gone»"]
    )
    run("-k", "a-float64").stdout.no_fnmatch_line("*never happened*")


def test_a_run_in_which_nothing_passed_fails(run: Runner) -> None:
    run.write(OUTCOMES)
    result = run("-k", "e-float64")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["nothing passed: a run of which every cell was left out counts as failed"]
    )
    run("-k", "d-float64").stdout.fnmatch_lines(["nothing passed"])


def test_runxfail_shows_an_expected_failure_as_it_is(run: Runner) -> None:
    run.write(OUTCOMES)
    run("-k", "b-float64", "--runxfail").stdout.fnmatch_lines(["*RuntimeError: boom*"])


def test_a_narrowed_run_does_not_replace_the_results_of_a_whole_one(run: Runner) -> None:
    run.write(OUTCOMES)
    run()
    run("-k", "a-float64")
    assert len(run.cells()) == 6
    assert list(run.cells("results-torch-cpu-part.jsonl")) == ["jvp[a-float64]"]


def test_a_table_with_a_mistake_stops_collection_and_says_where(run: Runner) -> None:
    run.write(HEAD + '@cases(op("torch.sin", smoke="float46"))\ndef test_vjp(case): ...')
    result = run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*'float46' is not a dtype*"])


def test_an_entry_that_the_table_lacks_stops_collection(run: Runner) -> None:
    run.write(
        HEAD + '@cases(op("torch.sin", smoke="float64", known="nowhere"))\ndef test_vjp(case): ...'
    )
    run().stdout.fnmatch_lines(["*has no entry nowhere*"])


def test_tests_that_are_none_of_the_matrix_are_left_alone(run: Runner) -> None:
    run.write(
        "import pytest\n@pytest.mark.parametrize('case', [1, 2])\ndef test_other(case): assert case"
    )
    run().assert_outcomes(passed=2)
    assert not (run.pytester.path / ".cache").exists()


def test_a_case_that_cannot_be_made_is_an_error_of_the_cell(run: Runner) -> None:
    run.write(
        HEAD
        + "import pytest\n@pytest.fixture\ndef case():\n    raise OSError('no disk')\n"
        + THREE_TIERS.replace(HEAD, "")
    )
    run("--tier", "smoke")
    cell = run.cells()["vjp[torch.sin-float64]"]
    assert (cell.outcome, cell.op) == ("error", "torch.sin") and "no disk" in cell.why


def test_20000_cells_are_collected(run: Runner, tmp_path: Path) -> None:
    row = 'op(f"torch.op{i}", smoke="float64", full="float32 complex64 complex128 bfloat16")'
    checks = "".join(
        f"@cases(*[{row} for i in range(100)])\ndef test_c{number}(case): ...\n"
        for number in range(40)
    )
    run.write(HEAD + checks)
    result = run("--collect-only", "-qq", "--tier", "full")
    result.stdout.fnmatch_lines(["test_demo.py: 20000"])


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_cell_records_the_ops_that_its_vmap_looped_over(
    run: Runner, workers: tuple[str, ...]
) -> None:
    both = (
        HEAD
        + """
@cases(op("torch.histc", full="float64"), op("torch.sin", full="float64"))
def test_vmap(case):
    case.assert_same("vmap", against="loop")
"""
    )
    run.write(both)
    run("--tier", "full", *workers).assert_outcomes(passed=2)
    loops = {cell.op: dict(cell.loops) for cell in run.cells().values()}
    assert (
        loops["torch.histc"].keys() == {"aten::histc"} and loops["torch.histc"]["aten::histc"] > 0
    )
    assert loops["torch.sin"] == {}


def test_a_cell_that_no_tier_has_runs_by_its_id(run: Runner) -> None:
    run.write(THREE_TIERS)
    run("test_demo.py::test_vjp[torch.sin-bfloat16]").assert_outcomes(passed=1)
    run(
        "--tier",
        "smoke",
        "test_demo.py::test_vjp[torch.exp-float64]",
        "test_demo.py::test_vjp[torch.sin-float64]",
    ).assert_outcomes(passed=2)


def test_an_id_that_no_cell_of_the_check_can_have_is_not_found(run: Runner) -> None:
    run.write(THREE_TIERS)
    assert run("test_demo.py::test_vjp[torch.sin-float99]").ret == pytest.ExitCode.USAGE_ERROR
    assert (
        run("test_demo.py::test_vjp[torch.sin-float64-transposed]").ret
        == pytest.ExitCode.USAGE_ERROR
    )


def test_the_tier_all_takes_what_reduction_drops_and_refuses_modules_without_it(
    run: Runner,
) -> None:
    run.write(THREE_TIERS)
    refused = run("--tier", "all")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert "make matrix TIER=all" in refused.stderr.str() + refused.stdout.str()
    run.write(THREE_TIERS.replace('full="float32"', 'full="float32", all="bfloat16"'))
    run("--tier", "full").assert_outcomes(passed=4)
    run("--tier", "all").assert_outcomes(passed=5)
