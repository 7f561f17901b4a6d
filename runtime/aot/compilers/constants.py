"""Compute once what a graph computes from constants alone, and leave out arithmetic with ones and
zeros that changes no bit.

    grad(f)      # begins with ones_like(f(x)), so f(x) was computed for its size

``x * 1``, ``x / 1`` and ``x - 0.0`` are ``x``, also for zeros of both signs and infinities.
``x + 0.0`` is not: ``-0.0 + 0.0`` is ``0.0``.
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
    """Compute small constants now.

    A constant whose memory a result may share is computed by every call, as the caller may write
    to it.
    """
    values: dict[fx.Node, torch.Tensor] = {}
    with below_autograd(), without_dispatch_to_python():
        for node in calls_of(graph):
            if _is_constant(node, values) and _is_small(node):
                constant = _compute(node, values)
                if _fits(constant, node):
                    values[node] = constant
    results = Returned(graph)
    # users that are constants themselves are not computed any more
    for node, value in values.items():
        if node not in results:
            _take_constant(node, value, [user for user in node.users if user not in values])


def _take_constant(node: fx.Node, value: torch.Tensor, users: Sequence[fx.Node]) -> None:
    """Let ``users`` of ``node`` take the constant ``value`` in its place."""

    def constant_for(argument: fx.Node) -> torch.Tensor | fx.Node:
        """Return the constant for ``node``, and other arguments as they are."""
        if argument is node:
            return value
        return argument

    for user in users:
        user.args = fx.map_arg(user.args, constant_for)
        user.kwargs = fx.map_arg(user.kwargs, constant_for)


def _is_small(node: fx.Node) -> bool:
    return on_cpu(node) and node.meta["val"].numel() <= _ELEMENTS


def _is_constant(node: fx.Node, values: dict[fx.Node, torch.Tensor]) -> bool:
    """Return whether constants, whose ``values`` are known, decide the result of ``node``."""
    if node.target in _LIKE:
        return static(node.args[0]) and len(node.all_input_nodes) == 1
    if node.target in _FACTORIES:
        return not node.all_input_nodes
    if node.target not in _MADE_OF_CONSTANTS or not node.all_input_nodes:
        return False
    return all(argument in values for argument in node.all_input_nodes)


def _compute(node: fx.Node, values: dict[fx.Node, torch.Tensor]) -> torch.Tensor:
    """Call ``node`` with the constants ``values`` of its arguments."""
    func: Any = node.target
    args: Any = node.args
    # of the argument of such a factory only the layout and the dtype matter
    if func in _LIKE:
        like: Any = node.args[0]
        value = like.meta["val"]
        args = (
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu"),
            *args[1:],
        )
    result: torch.Tensor = func(*fx.map_arg(args, values.__getitem__), **node.kwargs)
    return result


def _fits(result: torch.Tensor, node: fx.Node) -> bool:
    """Return whether ``result`` has the dtype and layout that ``node`` had in the trace."""
    value = node.meta["val"]
    return (
        result.dtype is value.dtype
        and result.shape == value.shape
        and result.stride() == value.stride()
    )


def without_neutral(graph: fx.Graph) -> None:
    """Leave out arithmetic that changes no bit, and replace a tensor of equal elements by one."""
    results = Returned(graph)
    for node in calls_of(graph):
        if not _is_float_arithmetic(node):
            continue
        x, other = _operand_and_constant(node)
        number = _number(other)
        if number is None or not static(x) or not same_layout(node, x):
            continue
        if _is_neutral(node.target, number):
            results.replace(node, x)
        # one element broadcasts, and is read once
        elif isinstance(other, torch.Tensor) and other.dim():
            node.args = (x, factories.tensor(number, dtype=other.dtype, device="cpu"))


def _operand_and_constant(node: fx.Node) -> tuple[Any, Any]:
    """Return the operands of ``node``, the one that may be a constant last."""
    a, b = node.args
    if node.target is aten.mul.Tensor and not isinstance(a, fx.Node):
        return b, a
    return a, b


def _is_float_arithmetic(node: fx.Node) -> bool:
    """Return whether ``node`` is plain arithmetic in float32 or float64."""
    if node.target not in _ARITHMETIC or len(node.args) != 2 or node.kwargs:
        return False
    return static(node) and node.meta["val"].dtype in _WIDE


def _number(argument: Any) -> float | None:
    """Return the number that all elements of ``argument`` equal, if there is one."""
    if isinstance(argument, torch.Tensor):
        if argument.dtype not in _WIDE or not argument.numel():
            return None
        elements = argument.reshape(-1)
        first = elements[0]
        if not bool((elements == first).all()):
            return None
        # 0.0 and -0.0 are equal
        if not bool((elements.signbit() == first.signbit()).all()):
            return None
        return float(first)
    if type(argument) in (int, float):
        return float(argument)
    return None


def _is_neutral(func: object, number: float) -> bool:
    """Return whether ``func(x, number)`` has the bits of ``x`` for every ``x``."""
    if func in (aten.mul.Tensor, aten.div.Tensor):
        return number == 1.0
    if number != 0.0:
        return False
    # `x + -0.0` and `x - 0.0` leave the sign of a zero as it is
    negative = str(number) == "-0.0"
    return negative is (func is aten.add.Tensor)
