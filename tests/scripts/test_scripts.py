"""A stand-alone program of a cell needs torch alone, and shows what the cell finds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gen.checks import Case, Cell, Family
from gen.language.axes import USUAL
from gen.scripts.failures import first, of_failure
from gen.scripts.python_values import NoScript, tensor, value
from gen.scripts.standalone import Script
from gen.targets.protocol import Target
from gen.targets.runtime_target import RuntimeTarget
from gen.targets.torch_target import TorchTarget

OWN: dict[str, dict[str, Any]] = {
    "own.wrong": {
        "call": "torch:sin",
        "reference": "torch:cos",
        "samples": [{"args": [{"shape": [2, 3]}]}],
    },
}
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


def script_of(
    op: str,
    pipeline: str,
    against: tuple[str, ...],
    target: Target | None = None,
    dtype: str = "float64",
    only: int | None = 0,
) -> Script:
    case = Case(
        Cell(op, dtype, USUAL, "full", ()),
        "check",
        Family("tests", OWN),
        target or TorchTarget(),
        only=only,
    )
    return first(
        case, [(c, word, error) for _, c, word, error in case.failing(pipeline, against=against)]
    )


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


def test_the_backward_of_a_function_of_ones_own_is_shown_by_a_call_of_it() -> None:
    op = {"own.sloped": {"call": f"{__name__}:sloped", "samples": [{"args": [{"shape": [2]}]}]}}
    case = Case(
        Cell("own.sloped", "float64", USUAL, "full", ()),
        "check",
        Family("tests", op),
        TorchTarget(),
        only=0,
    )
    found = first(
        case, [(c, word, error) for _, c, word, error in case.failing("vjp", against=("numeric",))]
    )
    assert found.differs
    assert f"import {__name__}" in found.text
    assert f"{__name__}.Slope.apply(" in found.text


@pytest.mark.parametrize(("op", "pipeline", "against"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_a_program_of_at_most_forty_lines_that_shows_it(
    op: str, pipeline: str, against: tuple[str, ...], tmp_path: Path
) -> None:
    found = script_of(op, pipeline, against, only=None)
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
    op: str, pipeline: str, against: tuple[str, ...]
) -> None:
    assert not script_of(
        op, pipeline, against, dtype="float32" if against == ("float64",) else "float64"
    ).differs


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
) -> None:
    family = Family(
        "tests", {"own.refusing": {"call": f"{__name__}:refusing", "samples": SAMPLES, **row}}
    )
    case = Case(Cell("own.refusing", "float64", USUAL, "full", ()), "check", family, TorchTarget())
    with pytest.raises(Exception, match="too long"):
        case.assert_same(pipeline, against=against)
    program = of_failure(case, 1)
    assert program is not None and f"# right: {right}\n" in program
    exec(program, {})
    assert re.fullmatch(
        rf"expected {expected}\nactual   ValueError\('too long'\)\n", capsys.readouterr().out
    )
    assert of_failure(case, 0) is None


def test_the_runtime_is_called_by_its_own_names() -> None:
    text = script_of("torch.sin", "vmap . jvp", ("loop",), RuntimeTarget()).text
    assert "from runtime.func import jvp, vmap" in text


def test_torch_compile_takes_the_whole_program() -> None:
    class Compiled(TorchTarget):
        name = "aot_eager"

    assert (
        'torch.compile(torch.sin, backend="aot_eager")(x0)'
        in script_of("torch.sin", "forward", ("eager",), Compiled()).text
    )


def test_a_reference_without_text_gives_its_values_in_full() -> None:
    found = script_of("own.wrong", "forward", ("reference",))
    assert found.differs
    assert "actual = torch.sin(x0)" in found.text
    assert "expected = torch.tensor([[" in found.text


def test_a_stage_without_text_is_named() -> None:
    with pytest.raises(NoScript, match="per_sample"):
        script_of("torch.nn.functional.linear", "per_sample", ("loop",), only=None)


def test_a_failure_that_no_program_shows_has_none() -> None:
    case = Case(
        Cell("torch.sin", "float64", USUAL, "full", ()),
        "check",
        Family("tests", OWN),
        TorchTarget(),
    )
    case.assert_same("vjp", against="loop")
    assert of_failure(case, 0) is None


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(1.5),
        torch.arange(6.0).reshape(2, 3).T,
        torch.arange(3).expand(2, 3),
        torch.empty(0, 4, dtype=torch.complex64),
        torch.tensor([float("nan"), float("-inf"), -0.0]),
        torch.tensor([complex(float("inf"), 1.0)]),
        torch.tensor([True, False]),
        torch.tensor([1e-3, 65504.0], dtype=torch.float16),
        torch.randn(3, dtype=torch.complex128).conj(),
    ],
    ids=lambda x: f"{x.dtype}{list(x.shape)}",
)
def test_the_literal_of_a_tensor_makes_it_again(x: torch.Tensor) -> None:
    again = eval(tensor(x))
    torch.testing.assert_close(again, x, rtol=0, atol=0, equal_nan=True)
    assert x.is_conj() or again.stride() == x.stride()


_PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
)


@given(
    st.recursive(
        _PLAIN,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner)
            | st.dictionaries(st.text(max_size=2), inner)
        ),
    )
)
def test_the_literal_of_a_value_makes_it_again(x: Any) -> None:
    assert eval(value(x)) == x
