"""Cells of the axis `refusal`: a right result or an error with a line of the program."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from gen.checks import Cell
from gen.checks.compare import Tally
from gen.checks.evaluate import Comparison
from gen.checks.refusals import assert_right_or_refused
from gen.language.axes import Axes
from gen.outcomes import Mismatch, Unsuitable


def program(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def refused_in_the_program(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("not here")


def refused_elsewhere(text: str) -> Callable[[Any], Any]:
    made: dict[str, Any] = {}
    exec(compile(f"def f(x):\n    raise RuntimeError({text!r})", "/elsewhere.py", "exec"), made)
    return cast(Callable[[Any], Any], made["f"])


class _Compared:
    """A comparison of `run`, as the target runs the program, with a reference."""

    def __init__(self, run: Callable[[Any], Any], *, deterministic: bool = True) -> None:
        self.run = run
        self.sample = SimpleNamespace(op=SimpleNamespace(call=program))
        expected = (torch.full((2,), 2.0),)
        self.program = SimpleNamespace(deterministic=deterministic, on_reference=lambda: expected)

    @property
    def actual(self) -> tuple[torch.Tensor, ...]:
        return (self.run(torch.ones(2)),)

    def against(self, word: str, tally: Tally) -> None:
        if not torch.equal(self.actual[0], self.program.on_reference()[0]):
            raise Mismatch("another number")
        tally.entries += 1


def _tally(run: Callable[[Any], Any], **facts: Any) -> Tally:
    tally = Tally()
    assert_right_or_refused(cast(Comparison, _Compared(run, **facts)), "loop", tally)
    return tally


def test_the_right_result_passes() -> None:
    assert _tally(program).entries == 1


def test_another_result_fails() -> None:
    with pytest.raises(Mismatch, match="another number"):
        _tally(lambda x: x * 3)


def test_of_draws_only_shapes_and_dtypes_are_compared() -> None:
    _tally(lambda x: x * 3, deterministic=False)
    with pytest.raises(Mismatch, match=r"float64\[2\]|dtype"):
        _tally(lambda x: x.double(), deterministic=False)


@pytest.mark.parametrize(
    "refused",
    [refused_in_the_program, refused_elsewhere(f"not so. It happened at {__file__}:14")],
    ids=["in the traceback", "in the message"],
)
def test_a_refusal_that_shows_a_line_of_the_program_passes(refused: Callable[[Any], Any]) -> None:
    assert _tally(refused).entries == 1


def test_a_refusal_without_a_line_fails() -> None:
    found = _Compared(program)
    # the class of the comparison is in this file, so the folder of the program is another one
    found.sample.op.call = torch.nn.functional.relu
    found.run = refused_elsewhere("not so")
    with pytest.raises(Mismatch, match="without a line of the program: RuntimeError"):
        assert_right_or_refused(cast(Comparison, found), "loop", Tally())


def test_what_says_nothing_of_the_target_is_passed_on() -> None:
    def unsuitable(x: torch.Tensor) -> torch.Tensor:
        raise Unsuitable("no input to batch")

    with pytest.raises(Unsuitable):
        _tally(unsuitable)


def test_such_a_cell_has_a_process_of_its_own() -> None:
    """The program may die in it."""
    assert Cell("f", "float64", Axes.varying({"refusal": "named"}), "full", ()).alone
