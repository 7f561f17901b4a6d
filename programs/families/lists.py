"""Calls of torch on lists of tensors, ``torch._foreach_…``, as loops over the lists.

    add_lists(x, made="of_other_shapes")      # results, and the gradients of all tensors
    add_lists_tangents(x, made="alike")       # results, and their tangents

Optimizers call these ops. The definition calls the op of one tensor for each element of the lists.
A tensor of a list that gets no gradient has zeros.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.autograd.forward_ad as forward
from torch import Tensor

from gen.outcomes import Unsuitable
from programs.families.tools import Results, Row, gradients, leaves_of

Made = Callable[[Tensor], list[Tensor]]
Op = Callable[..., Any]
NUMBERS = (0.45, 0.4, 0.5)
"""A number for each tensor of a list."""
MIDDLE = 0.45
"""A number that is larger than some elements, and smaller than others."""

MADE: dict[str, Made] = {
    "alike": lambda x: [x[0].clone(), x[1].clone(), x[2].clone()],
    "of_other_shapes": lambda x: [x[0].clone(), x[1, :4].reshape(2, 2).clone(), x[2, 0].clone()],
    "with_gaps": lambda x: [x[:, :3].t(), x[:2, ::2], x[2, :1].expand(3)],
    "empty": lambda x: [x[0].clone(), x[1, :0].clone(), x[:0].clone()],
    "one": lambda x: [x[0].clone()],
}
"""Lists of tensors by word of axis ``made``."""


@dataclass(frozen=True)
class Call:
    """A call of an op on ``lists`` lists, and the loop over them that is the same."""

    op: Op
    loop: Op
    lists: int = 1

    def run(self, tensors: Sequence[Tensor]) -> Results:
        """Call the op on the lists that follow one another in ``tensors``."""
        return tuple(self.op(*self._lists(tensors)))

    def run_each(self, tensors: Sequence[Tensor]) -> Results:
        """Call the op of one tensor in a loop."""
        return tuple(self.loop(*self._lists(tensors)))

    def _lists(self, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        size = len(tensors) // self.lists
        return [list(tensors[k * size : (k + 1) * size]) for k in range(self.lists)]


def _each(one: Op) -> Op:
    """Return a loop of the op ``one`` over lists."""
    return lambda *lists: [one(*group) for group in zip(*lists, strict=True)]


def _each_numbered(one: Op) -> Op:
    """Return a loop of the op ``one``, which gets a number behind the tensors."""
    return lambda *lists: [one(*group) for group in zip(*lists, NUMBERS, strict=False)]


def _by_one_tensor(op: Op) -> Op:
    """Return ``op`` with one tensor behind the list, which all tensors of a second list make."""
    return lambda x, others: op(x, torch.stack([other.sum() for other in others]).sum())


def _tensors(call: Call, x: Tensor, made: str) -> list[Tensor]:
    """Return the tensors of all lists. Each row has elements on both sides of ``MIDDLE``."""
    ramp = torch.linspace(0.1, 0.8, x.numel(), dtype=x.dtype).reshape(x.shape[::-1]).t()
    spread = ramp + 0.04 * x / (1 + x.abs())
    lists = (MADE[made](spread + 0.02 * k) for k in range(call.lists))
    return list(itertools.chain.from_iterable(lists))


def _with_gradients(
    run: Callable[[Sequence[Tensor]], Results], call: Call, x: Tensor, made: str
) -> Results:
    leaves = leaves_of(*_tensors(call, x, made))
    results = run(leaves)
    found = gradients(results, leaves)
    return (*(one.detach() for one in results), *found)


def _with_tangents(
    run: Callable[[Sequence[Tensor]], Results], call: Call, x: Tensor, made: str
) -> Results:
    tensors = _tensors(call, x, made)
    with forward.dual_level():
        duals = [forward.make_dual(one.clone(), one.cos()) for one in tensors]
        try:
            results = run(duals)
        except NotImplementedError as error:
            raise Unsuitable(f"refused: {error}") from error
        parts = [forward.unpack_dual(one) for one in results]
    tangents = [
        torch.zeros_like(part.primal) if part.tangent is None else part.tangent for part in parts
    ]
    return (*(part.primal for part in parts), *tangents)


def _rows(name: str, call: Call) -> dict[str, Row]:
    """Return the rows of a call, by name: one with gradients, and one with tangents."""
    ways = {name: _with_gradients, f"{name}_tangents": _with_tangents}
    return {
        row: Row(_program(way, call.run, call), _program(way, call.run_each, call))
        for row, way in ways.items()
    }


def _program(way: Op, run: Op, call: Call) -> Callable[..., Results]:
    def program(x: Tensor, *, made: str) -> Results:
        results: Results = way(run, call, x, made)
        return results

    return program


_ONE_NAMES = """
abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg
reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
"""
_ONE = _ONE_NAMES.split()
_TWO = ("add", "sub", "mul", "div", "pow", "maximum", "minimum")
_ORDERS = {"1": 1.0, "2": 2.0, "3": 3.0, "inf": float("inf")}


def _of_lists(name: str) -> Op:
    op: Op = getattr(torch, f"_foreach_{name}")
    return op


def _of_tensors(name: str) -> Op:
    """Return the op of one tensor, which takes a number in place of the second one."""
    op: Op = getattr(torch, name)
    if name not in ("maximum", "minimum"):
        return op

    def run(x: Tensor, other: Tensor | float) -> Tensor:
        result: Tensor = op(x, torch.as_tensor(other, dtype=x.dtype))
        return result

    return run


def _with_number(op: Op, number: float) -> Op:
    """Return ``op`` with a number behind the lists."""
    return lambda *lists: op(*lists, number)


def _with_numbers(op: Op) -> Op:
    """Return ``op`` with a number for each tensor behind the lists."""
    return lambda *lists: op(*lists, list(NUMBERS[: len(lists[0])]))


def _calls() -> dict[str, Call]:
    """Return all calls by name."""
    calls = {name: Call(_of_lists(name), _each(getattr(torch, name))) for name in _ONE}
    for name in _TWO:
        op, one = _of_lists(name), _of_tensors(name)
        calls[f"{name}_lists"] = Call(op, _each(one), lists=2)
        calls[f"{name}_number"] = Call(_with_number(op, MIDDLE), _each(_with_number(one, MIDDLE)))
        calls[f"{name}_numbers"] = Call(_with_numbers(op), _each_numbered(one))
    for name in ("add", "mul", "div"):
        op, one = _of_lists(name), getattr(torch, name)
        loop = _by_one_tensor(partial(_of_each, one))
        calls[f"{name}_tensor"] = Call(_by_one_tensor(op), loop, lists=2)
    for name in ("addcmul", "addcdiv"):
        op, one = _of_lists(name), getattr(torch, name)
        twice = partial(op, value=2.0), _each(partial(one, value=2.0))
        calls[name] = Call(op, _each(one), lists=3)
        calls[f"{name}_number"] = Call(*twice, lists=3)
        calls[f"{name}_numbers"] = Call(_with_numbers(op), _each_numbered(_scaled(one)), lists=3)
    lerp = _of_lists("lerp")
    weighted = _with_number(lerp, 0.3), _each(_with_number(torch.lerp, 0.3))
    calls["lerp_lists"] = Call(lerp, _each(torch.lerp), lists=3)
    calls["lerp_number"] = Call(*weighted, lists=2)
    calls["lerp_numbers"] = Call(_with_numbers(lerp), _each_numbered(torch.lerp), lists=2)
    for name, order in _ORDERS.items():
        norm = partial(torch.linalg.vector_norm, ord=order)
        calls[f"norm_{name}"] = Call(_with_number(_of_lists("norm"), order), _each(norm))
    calls["pow_of_number"] = Call(partial(torch._foreach_pow, 2.5), _each(partial(torch.pow, 2.5)))
    calls["largest"] = Call(torch._foreach_max, _each(torch.max))
    return calls


def _of_each(one: Op, tensors: Sequence[Tensor], other: Tensor) -> list[Tensor]:
    return [one(x, other) for x in tensors]


def _scaled(op: Op) -> Op:
    """Return ``op`` with its factor as the last argument."""
    return lambda x, first, second, number: op(x, first, second, value=number)


ROWS: dict[str, Row] = {
    row: made for name, call in _calls().items() for row, made in _rows(name, call).items()
}
"""The rows by name."""
globals().update(ROWS)


def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return a matrix of three rows, of which lists are made in each way."""
    return [{"args": [{"shape": [3, 4]}], "kwargs": {"made": word}} for word in MADE]
