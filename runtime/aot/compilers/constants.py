"""What a graph computes from constants alone is computed once, and arithmetic with ones and zeros
that changes no bit is left out.

    grad(f)      # begins with ones_like(f(x)), so f(x) was computed for its size

``x * 1``, ``x / 1`` and ``x - 0.0`` are ``x``, also for zeros of both signs and infinities.
``x + 0.0`` is not: it makes ``0.0`` of ``-0.0``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...seam import factories
from ...torch_private.dispatcher import below_autograd
from ...torch_private.mode_stacks import without_dispatch_to_python
from .overloads import aten, calls_of, on_cpu, same_layout, static
from .replacing import Returned

_ELEMENTS = 1 << 12  # of a constant, which lives as long as the program
_LIKE = frozenset((
    aten.ones_like.default, aten.zeros_like.default, aten.full_like.default, aten.new_zeros.default,
    aten.new_ones.default, aten.new_full.default,
))  # fmt: skip
_FACTORIES = frozenset(
    (
        aten.ones.default,
        aten.zeros.default,
        aten.full.default,
        aten.eye.default,
        aten.scalar_tensor.default,
    )
)
_ARITHMETIC = frozenset((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor))
_MADE_OF_CONSTANTS = frozenset((
    aten.view.default, aten.expand.default, aten.t.default, aten.transpose.int,
    aten.permute.default, aten.unsqueeze.default, aten.squeeze.dim, aten.fill.Scalar,
    aten.diagonal.default, aten.diagonal_scatter.default, aten.diag_embed.default, aten.select.int,
    aten.clone.default, aten.neg.default, *_ARITHMETIC, aten.alias.default, aten.detach.default,
))  # fmt: skip
_WIDE = (torch.float32, torch.float64)


def fold(graph: fx.Graph) -> None:
    """Compute small constants now. Those that a result may share memory with are made by every
    call, as the caller may write to them."""
    values: dict[fx.Node, torch.Tensor] = {}
    with below_autograd(), without_dispatch_to_python():
        for n in calls_of(graph):
            if _constant(n, values) and _small(n):
                found = _computed(n, values)
                if _fits(found, n):
                    values[n] = found
    results = Returned(graph)
    for n, value in values.items():
        if n not in results:
            _take_constant(n, value, [u for u in n.users if u not in values])


def _take_constant(n: fx.Node, value: torch.Tensor, users: Sequence[fx.Node]) -> None:
    """Let ``users`` of ``n`` take the constant ``value`` in its place."""

    def constant_for(a: fx.Node) -> Any:
        if a is n:
            return value
        return a

    for user in users:
        user.args = fx.map_arg(user.args, constant_for)
        user.kwargs = fx.map_arg(user.kwargs, constant_for)


def _small(n: fx.Node) -> bool:
    return on_cpu(n) and n.meta["val"].numel() <= _ELEMENTS


def _constant(n: fx.Node, values: dict[fx.Node, torch.Tensor]) -> bool:
    if n.target in _LIKE:
        return static(n.args[0]) and len(n.all_input_nodes) == 1
    if n.target in _FACTORIES:
        return not n.all_input_nodes
    return (
        n.target in _MADE_OF_CONSTANTS
        and bool(n.all_input_nodes)
        and all(a in values for a in n.all_input_nodes)
    )


def _computed(n: fx.Node, values: dict[fx.Node, torch.Tensor]) -> torch.Tensor:
    func: Any = n.target
    args: Any = n.args
    if func in _LIKE:  # of the argument, only the layout and the dtype matter
        like: Any = n.args[0]
        value = like.meta["val"]
        args = (
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu"),
            *args[1:],
        )
    found: torch.Tensor = func(*fx.map_arg(args, values.__getitem__), **n.kwargs)
    return found


def _fits(found: torch.Tensor, n: fx.Node) -> bool:
    value = n.meta["val"]
    return (
        found.dtype is value.dtype
        and found.shape == value.shape
        and found.stride() == value.stride()
    )


def without_neutral(graph: fx.Graph) -> None:
    """Leave out arithmetic that changes no bit, and take a number for a tensor whose elements
    are all the same."""
    results = Returned(graph)
    for n in calls_of(graph):
        if not _is_float_arithmetic(n):
            continue
        x, other = _operand_and_constant(n)
        number = _number(other)
        if number is None or not static(x) or not same_layout(n, x):
            continue
        if _neutral(n.target, number):
            results.replace(n, x)
        elif isinstance(other, torch.Tensor) and other.dim():
            n.args = (x, factories.tensor(number, dtype=other.dtype, device="cpu"))


def _operand_and_constant(n: fx.Node) -> tuple[Any, Any]:
    """Return the operands of ``n`` with the one behind the other that may be a constant."""
    a, b = n.args
    if n.target is aten.mul.Tensor and not isinstance(a, fx.Node):
        return b, a
    return a, b


def _is_float_arithmetic(n: fx.Node) -> bool:
    if n.target not in _ARITHMETIC or len(n.args) != 2 or n.kwargs:
        return False
    return static(n) and n.meta["val"].dtype in _WIDE


def _number(a: Any) -> float | None:
    """Return the number that all elements of ``a`` are, if they are one."""
    if isinstance(a, torch.Tensor):
        if a.dtype not in _WIDE or not a.numel():
            return None
        elements = a.reshape(-1)
        first = elements[0]
        same = bool((elements == first).all()) and bool(
            (elements.signbit() == first.signbit()).all()
        )
        return float(first) if same else None
    return float(a) if type(a) in (int, float) else None


def _neutral(func: object, number: float) -> bool:
    if func is aten.mul.Tensor or func is aten.div.Tensor:
        return number == 1.0
    negative = str(number) == "-0.0"
    return number == 0.0 and (negative if func is aten.add.Tensor else not negative)
