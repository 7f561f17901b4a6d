"""Cells that a test asserts on a target of its own, and targets that see or answer for the op."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from gen.checks import Case, Cell, Family, Known
from gen.language.axes import Axes
from gen.outcomes import Lacking, Vacuous
from gen.targets.torch_target import TorchTarget

Tensor = torch.Tensor
Row = Mapping[str, Any]
Function = Callable[..., Any]

# Samples are stored by family, so rows of one name in two tests are of two families.
_numbers = itertools.count()


def case(
    op: str = "torch.mul",
    dtype: str = "float64",
    target: Any = None,
    axes: Mapping[str, str] | None = None,
    entries: Mapping[str, Known] | None = None,
    ops: Mapping[str, Row] | None = None,
    family: Family | None = None,
    **settings: Any,
) -> Case:
    """Return a cell of `op`, on torch unless the test has another target.

    `ops`: rows of this cell alone. `family`: rows that cells share, with their samples.
    """
    if ops is not None:
        family = Family(f"tests {next(_numbers)}", ops)
    return Case(
        Cell(op, dtype, Axes.varying(axes or {}), "full", ()),
        "check",
        family or Family("tests"),
        target or TorchTarget(),
        entries=entries or {},
        **settings,
    )


class Watching(TorchTarget):
    """A target that notes the inputs of each call of the plain op."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, ...]] = []

    def forward(self, f: Function) -> Function:
        def g(*inputs: Tensor) -> Any:
            self.calls.append(inputs)
            return f(*inputs)

        return g


_given: list[dict[str, Any]] = []


def given(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return the samples that :func:`row_of` was called with. Rows name this function."""
    return list(_given)


def row_of(*samples: dict[str, Any], **more: Any) -> Row:
    """Return a row with these samples, which may have tensors. It holds until the next call."""
    _given[:] = samples
    return {"samples": "tests.checks.cells:given", **more}


def inputs_of(op: str, *args: Any, axes: Mapping[str, str], **kwargs: Any) -> list[Sequence[Any]]:
    """Return the inputs with which a cell of `op` calls a target, for one sample.

    The tensors of the sample are of one dtype.
    """
    first = next(x for x in args if isinstance(x, Tensor))
    row = row_of({"args": list(args), "kwargs": kwargs})
    target = Watching()
    made = case(op, str(first.dtype).removeprefix("torch."), target, axes, ops={op: row})
    with suppress(Vacuous, Lacking):  # what they compare is not asked for here
        made.assert_same("forward", against="eager")
    return list(target.calls)


class Answering(TorchTarget):
    """A target that gives these results, whatever the op."""

    def __init__(self, results: Sequence[Any]) -> None:
        super().__init__()
        self.results = tuple(results)

    def forward(self, f: Function) -> Function:
        return lambda *inputs: self.results


_expected: list[Function] = []


def expected(*inputs: Tensor) -> Any:
    """Return the results that :func:`answer` was called with. Its row names this function."""
    return _expected[0](*inputs)


def answer(
    actual: Sequence[Tensor],
    right: Sequence[Tensor] | Function,
    *,
    dtype: str = "float64",
    entries: Mapping[str, Known] | None = None,
) -> Case:
    """Return a cell whose target gives `actual`, once it was compared with `right`.

    `right`: the results of the op, or the op itself, which gets one tensor of two elements.
    """
    _expected[:] = [right if callable(right) else lambda x: tuple(right)]
    sample = {"args": [torch.ones(2, dtype=getattr(torch, dtype))]}
    row = row_of(sample, call="tests.checks.cells:expected")
    made = case("own.answer", dtype, Answering(actual), entries=entries, ops={"own.answer": row})
    made.assert_same("forward", against="eager")
    return made
