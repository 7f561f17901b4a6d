"""A stand-alone program of a cell needs torch alone, and shows what the cell finds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from gen.cli import main

MATRIX = """
version: 1
targets: {{default: torch, names: [torch, runtime, aot_eager]}}
checks: {{check: {{claim: c, pipeline: {pipeline}, against: [{against}], dtypes: [{dtype}]}}}}
families: {{tests: {{ops: [{row}]}}}}
"""


@dataclass(frozen=True)
class Shown:
    """What `gen script` says of a cell. `differs`: whether its program shows a difference."""

    differs: bool
    text: str
    errors: str


Show = Callable[..., Shown]


@pytest.fixture
def script_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Show:
    """Write a matrix of one op and one check, and show a cell of it."""
    monkeypatch.chdir(tmp_path)

    def run(
        op: str,
        pipeline: str,
        against: tuple[str, ...],
        *more: str,
        dtype: str = "float64",
        row: Mapping[str, Any] | None = None,
    ) -> Shown:
        described = op if row is None else json.dumps({"op": op, **row})
        Path("matrix.yaml").write_text(
            MATRIX.format(pipeline=pipeline, against=", ".join(against), dtype=dtype, row=described)
        )
        code = main(["script", f"{op}-{dtype}", "--check", "check", *more])
        out, errors = capsys.readouterr()
        assert code in (0, 1), errors
        return Shown(code == 0, out, errors)

    return run


# Each is a fault of every torch that is supported, and docs/findings.md has it.
FAULTS = {
    "jvp of jvp": ("torch.linalg.householder_product", "jvp . jvp", ("loop", "numeric")),
    "hessian": ("torch.nn.functional.layer_norm", "hessian", ("loop",)),
    "jvp by differences": ("torch.cholesky_inverse", "jvp", ("numeric",)),
}
RIGHT = {
    "forward": ("torch.mul", "forward", ("eager",)),
    "in double precision": ("torch.logsumexp", "forward", ("float64",)),
    "vjp": ("torch.sin", "vjp", ("loop",)),
    "vjp by differences": ("torch.sin", "vjp", ("numeric",)),
    "vmap": ("torch.linalg.eigh", "vmap", ("loop",)),
    "vmap of vjp": ("torch.linalg.solve", "vmap . vjp", ("loop",)),
    "jvp of vmap": ("torch.cumsum", "jvp . vmap", ("loop",)),
    "linearize": ("torch.atan2", "linearize", ("loop",)),
    "linearize of several results": ("torch.linalg.eigh", "linearize . vmap", ("loop",)),
    "dual": ("torch.atan2", "dual", ("upstream",)),
    "backward of dual": ("torch.sort", "backward . dual", ("upstream",)),
    "session": ("torch.nn.functional.conv2d", "backward . backward", ("loop",)),
    "jacobian": ("torch.softmax", "jacrev", ("loop",)),
    "trace": ("torch.sort", "trace", ("eager",)),
}


class Slope(torch.autograd.Function):
    """The sine, with a backward that is wrong."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return 2 * g


def sloped(x: torch.Tensor) -> torch.Tensor:
    called: Any = Slope.apply
    return called(x) * 3  # type: ignore[no-any-return]


def test_the_backward_of_a_function_of_ones_own_is_shown_by_a_call_of_it(script_of: Show) -> None:
    row = {"call": f"{__name__}:sloped", "samples": [{"args": [{"shape": [2]}]}]}
    found = script_of("own.sloped", "vjp", ("numeric",), row=row)
    assert found.differs
    assert f"import {__name__}" in found.text
    assert f"{__name__}.Slope.apply(" in found.text


@pytest.mark.parametrize(("op", "pipeline", "against"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_a_program_of_at_most_forty_lines_that_shows_it(
    op: str, pipeline: str, against: tuple[str, ...], tmp_path: Path, script_of: Show
) -> None:
    found = script_of(op, pipeline, against)
    assert found.differs
    assert found.text.count("\n") <= 40
    path = tmp_path / "program.py"
    path.write_text(found.text)
    ran = subprocess.run(
        [sys.executable, "-I", str(path)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    expected, _, actual = ran.stdout.partition("actual  ")
    assert expected.removeprefix("expected ").strip() != actual.strip()
    assert "\n# right: " in found.text


@pytest.mark.parametrize(("op", "pipeline", "against"), RIGHT.values(), ids=RIGHT)
def test_what_is_right_is_a_program_that_shows_no_difference(
    op: str, pipeline: str, against: tuple[str, ...], script_of: Show
) -> None:
    dtype = "float32" if against == ("float64",) else "float64"
    found = script_of(op, pipeline, against, "--sample", "0", dtype=dtype)
    assert not found.differs
    assert "the program shows no difference" in found.errors and "actual" in found.text


LAID_OUT = {
    "noncontiguous": r"x0 = torch\.empty_strided\(\(2, 3\), \(6, 2\), dtype=.*\)\.copy_\(",
    "strided": r"x0 = torch\.empty_strided\(\(2, 3\), \(6, 2\), dtype=.*\)\.copy_\(",
    "transposed": r"x0 = torch\.empty_strided\(\(2, 3\), \(1, 2\), dtype=.*\)\.copy_\(",
    "expanded": r"x0 = torch\.tensor\(.*\)\.expand\(\(2, 3\)\)",
}


@pytest.mark.parametrize("call", ["torch:sin", f"{__name__}:sloped"])
@pytest.mark.parametrize(("layout", "text"), LAID_OUT.items(), ids=LAID_OUT)
def test_a_sample_keeps_the_layout_of_its_description(
    layout: str, text: str, call: str, script_of: Show
) -> None:
    samples = [{"args": [{"shape": [2, 3], "layout": layout}]}]
    row = {"call": call, "samples": samples}
    name = f"own.{layout}_{call.partition(':')[2]}"  # samples are stored by name
    found = script_of(name, "vjp", ("numeric",), "--sample", "0", row=row)
    assert found.differs == ("sloped" in call)  # numbers are rounded where a difference shows
    assert re.search(text, found.text)


def refusing(x: torch.Tensor) -> torch.Tensor:
    if len(x) > 2:
        raise ValueError("too long")
    return torch.sin(x)


SAMPLES = [{"args": [{"shape": [2]}]}, {"args": [{"shape": [3]}]}]
ERRORS = [
    {"args": [{"shape": [3]}], "raises": "ValueError", "match": "long"},
    {"args": [{"shape": [4]}], "raises": "TypeError"},
]
RAISING: dict[str, tuple[dict[str, Any], str, str, str, str]] = {
    "beside a reference": (
        {"reference": "torch:sin"},
        "vmap",
        "loop",
        "the op's own reference",
        r"tensor\(\[.*",
    ),
    "without a reference": (
        {},
        "forward",
        "eager",
        "a value, for the matrix has this call as a sample of the op",
        "'a value'",
    ),
    "another error": (
        {"errors": ERRORS},
        "forward",
        "raises",
        "what the matrix names as the error of this call",
        "'TypeError'",
    ),
}


@pytest.mark.parametrize(
    ("row", "pipeline", "against", "right", "expected"), RAISING.values(), ids=RAISING
)
def test_an_op_that_raises_itself_is_shown_with_its_error_and_what_was_due(
    row: dict[str, Any],
    pipeline: str,
    against: str,
    right: str,
    expected: str,
    capsys: pytest.CaptureFixture[str],
    script_of: Show,
) -> None:
    row = {"call": f"{__name__}:refusing", "samples": SAMPLES, **row}
    found = script_of("own.refusing", pipeline, (against,), "--sample", "1", row=row)
    assert found.differs and f"# right: {right}\n" in found.text
    exec(found.text, {})
    assert re.fullmatch(
        rf"expected {expected}\nactual   ValueError\('too long'\)\n", capsys.readouterr().out
    )
    assert not script_of("own.refusing", pipeline, (against,), "--sample", "0", row=row).differs


def test_the_runtime_is_called_by_its_own_names(script_of: Show) -> None:
    found = script_of("torch.sin", "vmap . jvp", ("loop",), "--target", "runtime")
    assert "from runtime.func import jvp, vmap" in found.text


def test_torch_compile_takes_the_whole_program(script_of: Show) -> None:
    found = script_of("torch.sin", "forward", ("eager",), "--target", "aot_eager")
    assert 'torch.compile(torch.sin, backend="aot_eager")(x0)' in found.text


def test_a_reference_without_text_gives_its_values_in_full(script_of: Show) -> None:
    row = {
        "call": "torch:sin",
        "reference": "torch:cos",
        "samples": [{"args": [{"shape": [2, 3]}]}],
    }
    found = script_of("own.wrong", "forward", ("reference",), row=row)
    assert found.differs
    assert "actual = torch.sin(x0)" in found.text
    assert "expected = torch.tensor([[" in found.text


def test_a_stage_without_text_is_named(script_of: Show) -> None:
    found = script_of("torch.nn.functional.linear", "per_sample", ("loop",))
    assert not found.text
    assert re.search("no program: .*per_sample", found.errors)
