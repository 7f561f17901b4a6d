"""A soak finds a planted fault, shrinks it, and leaves out what the matrix knows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gen.checks import known
from gen.cli import main
from gen.severity import Severity
from gen.soak import trial
from gen.soak.search import Search
from gen.soak.soak_findings import Finding, row, summary, write
from gen.soak.space import Draw, Entry, Subject, derivatives
from gen.soak.trial import Failure, Rejected
from gen.targets.protocol import Target
from gen.targets.runtime_target import RuntimeTarget
from gen.targets.torch_target import TorchTarget

REALS = frozenset(("float64", "float32"))
SIN = Subject("torch.sin", "unary", {}, ("float64", "float32"), REALS)
MUL = Subject("torch.mul", "binary", {}, ("float64", "float32"), REALS)
MATRIX = """\
version: 1
dtypes: {real: [float32, float64]}
targets: {default: torch, names: [torch]}
checks:
  forward: {claim: It is right., pipeline: forward, against: reference}
families:
  own:
    title: Own ops.
    ops:
      - {op: own.dies, call: "tests.soak.test_soak:dies", reference: "torch:sin", samples: \
[{args: [{shape: [3]}]}], dtypes: [float64]}
      - {op: own.wrong, call: "torch:sin", reference: "torch:cos", samples: [{args: [{shape: \
[3]}]}], dtypes: [float64]}
tiers: {smoke: {}, default: {}, full: {}}
"""


def dies(x: Any) -> Any:
    os._exit(7)


class NestsWrongly(TorchTarget):
    """A target whose vmap of a vjp is off, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0

    def vmap(self, f: Any, in_dims: Any, out_dims: Any = 0) -> Any:
        def g(*args: Any) -> Any:
            self.inside += 1
            try:
                return super(NestsWrongly, self).vmap(f, in_dims)(*args)
            finally:
                self.inside -= 1

        return g

    def vjp(self, f: Any, *primals: Any) -> Any:
        outputs, pullback = super().vjp(f, *primals)
        return outputs, lambda v: tuple(g * (1.01 if self.inside else 1.0) for g in pullback(v))


def soaked(target: Target, subjects: list[Subject], seconds: float = 20.0) -> list[Failure]:
    """What a search of one seed finds until it has found something or the time is over."""
    found: list[Failure] = []
    search = Search(target, subjects, lambda draw, runs: None, found.append)
    end = time.monotonic() + seconds
    number = 0
    while not found and time.monotonic() < end:
        search._round(end, number)
        number += 1
    return found


def test_a_fault_of_a_nesting_is_found_and_shrunk_to_that_nesting() -> None:
    failure = soaked(NestsWrongly(), [SIN, MUL])[0]
    assert failure.kind == "Mismatch"
    assert failure.draw.stages == ("vmap", "vjp")
    assert (failure.draw.layout, failure.draw.extreme, failure.draw.dtype) == (
        "contiguous",
        False,
        "float64",
    )


def test_a_right_target_has_no_failure() -> None:
    search = Search(
        RuntimeTarget(),
        [SIN, MUL],
        lambda draw, runs: None,
        lambda failure: pytest.fail(str(failure)),
    )
    search._round(time.monotonic() + 60, 0)
    assert search.counts.run - search.counts.rejected > 20


class NestsWronglyElsewhere(NestsWrongly):
    """The same fault in a target that is not torch."""

    name = "elsewhere"


def test_a_fault_of_a_target_that_is_not_torch_is_found() -> None:
    failure = soaked(NestsWronglyElsewhere(), [SIN, MUL])[0]
    assert (failure.kind, failure.draw.stages) == ("Mismatch", ("vmap", "vjp"))


class DetachesElsewhere(TorchTarget):
    """A target that is not torch, and does what torch does."""

    name = "elsewhere"


DETACHES = Subject(
    "own.detaches",
    "own",
    {"call": "tests.soak.test_soak:detaches", "samples": [{"args": [{"shape": [3]}]}]},
    ("float64",),
    REALS,
)


def detaches(x: torch.Tensor) -> torch.Tensor:
    return x * x.detach()


@pytest.mark.parametrize(
    ("target", "is_found"), [(TorchTarget(), True), (DetachesElsewhere(), False)]
)
def test_what_torch_does_as_well_is_a_finding_of_torch_alone(
    target: Target, is_found: bool
) -> None:
    draw = Draw(DETACHES, "float64", ("vjp",))
    failure = trial.run(draw, target, lambda runs: None)
    assert (failure is not None) == is_found


def test_what_torch_refuses_as_well_is_no_finding_of_another_target() -> None:
    class RefusesAlone(Refuses):
        name = "elsewhere"

    draw = Draw(SIN, "float64", ("vmap",))
    assert trial.run(draw, RefusesAlone(), lambda runs: None) is not None
    item = Subject(
        "own.item",
        "own",
        {**DETACHES.row, "call": "tests.soak.test_soak:item"},
        ("float64",),
        REALS,
    )
    assert trial.run(Draw(item, "float64", ("vmap",)), RefusesAlone(), lambda runs: None) is None


def item(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


class Refuses(TorchTarget):
    """A target that refuses every vmap."""

    lacks = TorchTarget.lacks | {"functionalize"}

    def vmap(self, f: Any, in_dims: Any, out_dims: Any = 0) -> Any:
        raise NotImplementedError("no batches here")


def test_what_a_target_refuses_is_one_cause_whatever_op_shows_it() -> None:
    found: list[Failure] = []
    again: list[str] = []
    search = Search(
        Refuses(),
        [SIN, MUL],
        lambda draw, runs: None,
        found.append,
        lambda failure: again.append(failure.draw.subject.name),
    )
    end = time.monotonic() + 60
    for number in range(20):
        search._round(end, number)
        if {"torch.sin", "torch.mul"} <= set(again):
            break
    (cause,) = found
    assert cause.severity is Severity.REFUSED
    assert set(again) == {"torch.sin", "torch.mul"}


def test_a_cause_that_is_not_made_small_in_time_is_kept() -> None:
    class Slow(NestsWrongly):
        """Takes the time that is left as soon as it is wrong."""

        def vjp(self, f: Any, *primals: Any) -> Any:
            if self.inside:
                time.sleep(max(0.0, end - time.monotonic()) + 0.01)
            return super().vjp(f, *primals)

    found: list[Failure] = []
    search = Search(Slow(), [SIN, MUL], lambda draw, runs: None, found.append)
    for number in range(20):
        end = time.monotonic() + 5
        search._round(end, number)
        if found:
            break
    assert [failure.kind for failure in found] == ["Mismatch"]
    assert time.monotonic() < end + 5


def test_a_stage_that_a_target_lacks_is_not_drawn() -> None:
    class Lacks(TorchTarget):
        lacks = TorchTarget.lacks | {"vmap", "functionalize"}

    drawn: list[Draw] = []
    search = Search(Lacks(), [SIN, MUL], lambda draw, runs: drawn.append(draw), lambda _: None)
    search._round(time.monotonic() + 60, 0)
    stages = {stage for draw in drawn for stage in draw.stages}
    assert not {"vmap", "functionalize"} & stages
    assert "vjp" in stages


def finding(severity: Severity, op: str, *ops: str) -> Finding:
    return Finding(
        *(op, "float64", "vmap", "contiguous", "ordinary", "loop", "Error", "It failed.\nThere."),
        draw=op,
        severity=severity.word,
        ops=(op, *ops),
    )


def test_a_summary_has_the_worst_first_and_counts_refusals_apart() -> None:
    ops = [f"torch.op{number}" for number in range(6)]
    lines = [
        *summary(
            [finding(Severity.REFUSED, *ops), finding(Severity.WRONG, "torch.sin")], Path("soaked")
        )
    ]
    assert lines == [
        "causes: 1, refusals: 1, in soaked",
        "  wrong    torch.sin: Error: It failed.",
        "  refused  torch.op0, torch.op1, torch.op2, torch.op3 and 2 more: Error: It failed.",
    ]
    assert [*summary([], Path("soaked"))] == ["causes: 0, refusals: 0"]


def test_draws_of_one_seed_are_the_same_and_of_another_are_not() -> None:
    def drawn(number: int) -> list[str]:
        texts: list[str] = []
        Search(
            TorchTarget(),
            [SIN, MUL],
            lambda draw, runs: texts.append(str(draw)),
            lambda failure: None,
        )._round(time.monotonic() + 60, number)
        return texts

    first, again, other = drawn(1), drawn(1), drawn(2)
    shared = min(len(first), len(again))
    assert shared > 10
    assert first[:shared] == again[:shared]
    assert first[:shared] != other[:shared]


def test_an_error_that_the_matrix_expects_is_no_finding() -> None:
    draw = Draw(SIN, "float64", ("vmap", "vjp"))
    found = trial.run(draw, NestsWrongly(), lambda runs: None)
    assert found is not None
    for entry, is_known in (
        (
            Entry(
                ("vjp",),
                REALS,
                error=known("xfail", reason="a test", raises="Mismatch", match="largest error"),
            ),
            True,
        ),
        (
            Entry(
                ("jvp",),
                REALS,
                error=known("xfail", reason="a test", raises="Mismatch", match="largest error"),
            ),
            False,
        ),
        (
            Entry(
                ("vjp",),
                REALS,
                error=known("xfail", reason="a test", raises="RuntimeError", match="largest error"),
            ),
            False,
        ),
        (
            Entry(
                ("vjp",),
                REALS,
                error=known("xfail", reason="a test", raises="Mismatch", match="another text"),
            ),
            False,
        ),
        (
            Entry(
                ("vjp",),
                frozenset(("float32",)),
                error=known("xfail", reason="a test", raises="Mismatch", match="largest error"),
            ),
            False,
        ),
    ):
        subject = Subject("torch.sin", "unary", {}, ("float64",), REALS, known=(entry,))
        assert (
            trial.run(Draw(subject, "float64", ("vmap", "vjp")), NestsWrongly(), lambda runs: None)
            is None
        ) == is_known


def test_what_the_matrix_excludes_is_no_cell() -> None:
    by_stage = Subject(
        "torch.sin", "unary", {}, ("float64",), REALS, excluded=(Entry(("vjp",), REALS),)
    )
    by_layout = Subject(
        "torch.sin", "unary", {}, ("float64",), REALS, excluded=(Entry((), REALS, "transposed"),)
    )
    for draw, excluded in (
        (Draw(by_stage, "float64", ("vmap", "vjp")), True),
        (Draw(by_stage, "float64", ("vmap",)), False),
        (Draw(by_layout, "float64", ("vmap",), "transposed"), True),
        (Draw(by_layout, "float64", ("vmap",)), False),
    ):
        assert draw.excluded == excluded
    with pytest.raises(Rejected, match="excludes"):
        trial.run(Draw(by_stage, "float64", ("vjp",)), TorchTarget(), lambda runs: None)


def test_a_cut_sample_that_the_op_refuses_is_no_cell() -> None:
    conv = Subject("torch.nn.functional.conv2d", "conv", {}, ("float64",), REALS)
    with pytest.raises(Rejected):
        trial.run(Draw(conv, "float64", (), size=1, sample=3), TorchTarget(), lambda runs: None)


def test_numbers_are_made_simple() -> None:
    x = torch.tensor([0.26, -1.4], dtype=torch.float64)
    assert trial._simplify(x, "whole").tolist() == [0.0, -1.0]
    assert trial._simplify(x, "halves").tolist() == [0.5, -1.5]
    assert trial._simplify(torch.tensor([1, 2]), "whole").tolist() == [1, 2]


def test_derivatives_are_counted() -> None:
    assert derivatives(("vmap", "hessian", "vjp")) == 3


def test_a_finding_is_a_row_that_the_matrix_takes_and_a_program(tmp_path: Path) -> None:
    found = Finding(
        "torch.sin",
        "float64",
        "vmap . vjp",
        "transposed",
        "ordinary",
        "loop",
        "Mismatch",
        "off",
        "torch.sin",
        "print(1)\n",
    )
    write(tmp_path / "out", [found], "torch")
    assert (tmp_path / "out" / "001_torch_sin.py").read_text() == "print(1)\n"
    assert (
        json.loads((tmp_path / "out" / "findings.json").read_text())[0]["pipeline"] == "vmap . vjp"
    )
    families = (
        "families: {own: {title: Own., ops: [torch.sin]}}\n"
        "tiers: {smoke: {}, default: {}, full: {}}\n"
    )
    head = "version: 1\ndtypes: {real: [float64]}\ntargets: {default: torch, names: [torch]}\n"
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(head + row(found, "torch", 1) + families)
    assert main(["generate", "--matrix", str(matrix), "--out", str(tmp_path / "generated")]) == 0
    assert "vmap . vjp" in (tmp_path / "generated" / "test_own.py").read_text()


def test_an_op_that_kills_the_process_is_left_out_and_the_rest_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(MATRIX)
    out = tmp_path / "out"
    code = main(
        [
            "soak",
            "--matrix",
            str(matrix),
            "--minutes",
            "5",
            "--most",
            "1",
            "--target",
            "torch",
            "--seed",
            "0",
            "--out",
            str(out),
        ]
    )
    text = capfd.readouterr().out
    assert code == 1
    assert "left out, since the op itself or its reference crashed" in text
    assert {one["op"] for one in json.loads((out / "findings.json").read_text())} == {"own.wrong"}


def test_a_glob_that_matches_no_op_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(MATRIX)
    # beside one that matches, since a slip would soak less than was asked
    command = ["soak", "--matrix", str(matrix), "--op", "own.*", "--op", "nothing.*"]
    assert main(command) == 2
    assert "matches 'nothing.*'" in capsys.readouterr().err


@pytest.mark.parametrize(("globs", "ops"), [(("*dies", "*wrong"), 2), (("*dies",), 1), ((), 2)])
def test_several_globs_choose_the_ops_of_each(
    globs: tuple[str, ...], ops: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    command = ["soak", "--matrix", str(tmp_path / "matrix.yaml"), "--target", "torch"]
    for glob in globs:
        command += ["--op", glob]
    main([*command, "--minutes", "1e-9"])
    assert f", {ops} ops, target torch" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for child processes")
def test_the_process_that_draws_ends_with_its_parent(tmp_path: Path) -> None:
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(MATRIX)
    command = [sys.executable, "-m", "gen", "soak", "--matrix", str(matrix), "--op", "own.wrong"]
    with subprocess.Popen(
        [*command, "--minutes", "5", "--target", "torch", "--out", str(tmp_path / "out")],
        stdout=subprocess.DEVNULL,
    ) as soak:
        drawing = _until(lambda: _drawing_for(soak.pid), "it draws")
        assert all(map(_is_alive, drawing))
        soak.kill()
    _until(lambda: not any(map(_is_alive, drawing)), "nothing draws")


def _drawing_for(parent: int) -> list[int]:
    """Return the processes that a soak has started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children]


def _is_alive(process: int) -> bool:
    state = Path(f"/proc/{process}/stat")
    return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def _until(happens: Callable[[], Any], what: str) -> Any:
    """Wait until something happens, and return it."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        happened = happens()
        if happened:
            return happened
        time.sleep(0.2)
    raise TimeoutError(what)
