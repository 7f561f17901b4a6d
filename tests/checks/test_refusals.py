"""Cells of the axis `refusal`: a right result or an error with a line of the program."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from gen.checks import Case, Cell
from gen.language.axes import Axes
from gen.outcomes import Mismatch, Unsuitable, Vacuous
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case, row_of

Function = Callable[..., Any]
_is_refused: list[bool] = []


def program(x: torch.Tensor) -> torch.Tensor:
    if _is_refused:
        raise RuntimeError("not here")
    return x * 2


def drawing(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


@contextmanager
def refusing() -> Iterator[None]:
    """Let the program raise an error."""
    _is_refused.append(True)
    try:
        yield
    finally:
        _is_refused.clear()


def written_elsewhere(body: str, **names: object) -> Function:
    """Return a function of another folder, of which no line is one of the program."""
    namespace: dict[str, Any] = dict(names)
    exec(compile(f"def f(x):\n    {body}", "/elsewhere.py", "exec"), namespace)
    return namespace["f"]  # type: ignore[no-any-return]


class Running(TorchTarget):
    """A target that runs another function in place of the program."""

    lacks = frozenset[str]()

    def __init__(self, make: Callable[[Function], Function]) -> None:
        super().__init__()
        self.make = make

    def forward(self, f: Function) -> Function:
        return self.make(f)


def check(make: Callable[[Function], Function], name: str = "program") -> Case:
    """Compare a program of this file on a target that runs another function in its place."""
    row = row_of({"args": [torch.ones(2)]}, call=f"tests.checks.test_refusals:{name}")
    made = case("own.op", "float32", Running(make), {"refusal": "named"}, ops={"own.op": row})
    made.assert_same("forward", against="loop")
    return made


def test_the_right_result_passes() -> None:
    assert check(lambda f: f).compared == 1


def test_another_result_fails() -> None:
    with pytest.raises(Mismatch, match="largest error 1 "):
        check(lambda f: lambda x: (x * 3,))


def test_of_draws_only_shapes_and_dtypes_are_compared() -> None:
    assert check(lambda f: lambda x: (x * 3,), "drawing").compared == 1
    with pytest.raises(Mismatch, match="dtype"):
        check(lambda f: lambda x: (x.double(),), "drawing")


def test_a_refusal_with_a_line_of_the_program_in_its_traceback_passes() -> None:
    body = "\n    ".join(("with refusing():", "    return run(x)"))
    made = check(lambda f: written_elsewhere(body, run=f, refusing=refusing))
    assert made.compared == 1 and made.seen.refusal == "RuntimeError: not here"


def test_a_refusal_with_a_line_of_the_program_in_its_message_passes() -> None:
    text = f"not so. It happened at {__file__}:14"
    assert check(lambda f: written_elsewhere(f"raise RuntimeError({text!r})")).compared == 1


def test_a_refusal_without_a_line_fails() -> None:
    with pytest.raises(Mismatch, match="without a line of the program: RuntimeError"):
        check(lambda f: written_elsewhere("raise RuntimeError('not so')"))


def test_what_says_nothing_of_the_target_is_passed_on() -> None:
    body = "raise Unsuitable('no input to batch')"
    with pytest.raises(Vacuous, match="no input to batch"):
        check(lambda f: written_elsewhere(body, Unsuitable=Unsuitable))


def test_such_a_cell_has_a_process_of_its_own() -> None:
    """The program may die in it."""
    assert Cell("f", "float64", Axes.varying({"refusal": "named"}), "full", ()).alone
