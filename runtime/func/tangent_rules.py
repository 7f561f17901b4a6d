"""Compute tangents of an op's results from tangents of its arguments.

The rule comes from the ``jvp`` of the op's record. Without one, the ``vjp`` is transposed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import MissingRule
from ..rules.ops import Op
from ..rules.record import parameters
from ..seam.call_types import Keywords
from ..seam.containers import items_of
from ..seam.dispatch import run_elementwise
from ..seam.levels import Value
from ..seam.scope import is_floating
from ..tape.conform import conform
from ..tape.engine import execute
from ..tape.grad_level import GradLevel
from ..tape.nodes import Edge
from ..tape.op_nodes import OpNode
from ..tape.values import edge_of

TangentRule = Callable[[Op, list[Any], list[Any], dict[str, Any], Any], Any]
"""``rule(op, primals, tangents, kwargs, result) -> tangent``, or one per result. A tangent is None
where it is zero."""


def fit(tensor: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor | None:
    """Return the tangent ``tensor`` with the shape and dtype of ``result``."""
    if tensor is None:
        return None
    if tensor.shape != result.shape:
        tensor = tensor.expand(result.shape)
    if tensor.dtype is not result.dtype:
        if tensor.is_complex() and not result.is_complex():
            tensor = torch.real(tensor)
        tensor = tensor.to(result.dtype)
    return tensor


def tangent_rule(op: Op) -> TangentRule:
    """Return the tangent rule of an op. It is compiled from the record once."""
    if op.jvp is None:
        op.jvp = _complete(op, *_compile(op, op.record.jvp))  # type: ignore[union-attr]
    rule: TangentRule = op.jvp
    return rule


def _compile(op: Op, jvp: object) -> tuple[TangentRule, frozenset[int]]:
    """Return the rule for the field ``jvp`` of a record, and the positions of the arguments whose
    tangents it uses."""
    if jvp == "linear":
        return _linear, op.vjp_args
    if jvp == "multilinear":
        return _multilinear, op.vjp_args
    if isinstance(jvp, dict):
        return _sum_of_terms(op, jvp), frozenset(
            op.positions[name] for name in jvp if name in op.positions
        )
    if callable(jvp):
        call = _caller(op, jvp)

        def rule(
            op: Op,
            primals: list[object],
            tangents: list[torch.Tensor | None],
            kwargs: dict[str, object],
            result: object,
        ) -> Any:
            return call(primals, tangents, kwargs, result)

        arguments = (_argument_of_tangent(op, parameter) for parameter in parameters(jvp))
        return rule, frozenset(at for at in arguments if at is not None)
    return transposed_twice, op.vjp_args


def _argument_of_tangent(op: Op, parameter: str) -> int | None:
    """Return the position of the argument whose tangent a formula calls ``parameter``, such as
    ``x_t``. None if it means no tangent."""
    if not parameter.endswith("_t"):
        return None
    return op.positions.get(parameter[:-2])


def _complete(op: Op, rule: TangentRule, used: frozenset[int]) -> TangentRule:
    """Return ``rule``, with a ``MissingRule`` for tangents of arguments that it does not use.

    ``used``: the positions of those that it uses. The rule alone would ignore any other tangent.
    """
    unused = [index for index in op.tensor_args if index not in used]
    if not unused:
        return rule

    def check(
        op: Op,
        primals: list[object],
        tangents: list[torch.Tensor | None],
        kwargs: dict[str, object],
        result: object,
    ) -> Any:
        """Raise if an argument that the rule ignores has a tangent. Else run the rule."""
        lacking = [
            op.arg_names[position]
            for position in unused
            if position < len(tangents) and tangents[position] is not None
        ]
        if lacking:
            raise MissingRule(
                str(op.func), "jvp", lacking, [op.arg_names[position] for position in used]
            )
        return rule(op, primals, tangents, kwargs, result)

    return check


def _caller(op: Op, formula: Callable[..., object]) -> Callable[..., object]:
    """Return a function that calls ``formula`` with what its parameters name: a tangent (``x_t``),
    an argument, or a result of the call."""
    elementwise = op.record is not None and op.record.elementwise
    # for each parameter of the formula: (is it a tangent, its position, the reader of a fact)
    sources = []
    for parameter in parameters(formula):
        at = _argument_of_tangent(op, parameter)
        if at is None:
            sources.append((False, *op.locate(parameter)))
        else:
            sources.append((True, at, None))
    reach = 1 + max(at for _, at, _ in sources)  # how many operands of the call are looked at

    def call(
        primals: list[Any],
        tangents: list[torch.Tensor | None],
        kwargs: dict[str, object],
        result: object,
    ) -> Any:
        """Call the formula with the values of one call of the op."""
        operands = op.operands(primals, kwargs, result, reach)
        actual = []
        for is_tangent, at, reader in sources:
            if not is_tangent:
                value = operands[at]
            elif at < len(tangents):
                value = tangents[at]
            else:
                value = None
            actual.append(value if reader is None else reader(value))
        if elementwise:
            return run_elementwise(formula, actual)
        return formula(*actual)

    return call


def _sum_of_terms(op: Op, table: dict[str, Callable[..., object]]) -> TangentRule:
    """Return the rule of a table ``{argument: formula}``. Its tangent is the sum of one term per
    argument with a tangent."""
    # a table may serve several overloads, and this one may lack an argument
    calls = [
        (op.positions[name], _caller(op, formula))
        for name, formula in table.items()
        if name in op.positions
    ]

    def rule(
        op: Op,
        primals: list[object],
        tangents: list[torch.Tensor | None],
        kwargs: dict[str, object],
        result: object,
    ) -> Any:
        """Add the terms of the arguments that have a tangent."""
        total = None
        for index, call in calls:
            if index < len(tangents) and tangents[index] is not None:
                total = _add(total, call(primals, tangents, kwargs, result))
        return total

    return rule


def _add(total: Any, part: object) -> Any:
    """Return the sum of two tangents, of which None is zero."""
    if total is None:
        return part
    if part is None:
        return total
    return total + part


def _linear(
    op: Op, primals: list[Any], tangents: list[Any], kwargs: Keywords, result: object
) -> object:
    """Return the tangent of an op that is linear in all its differentiable arguments together: the
    op itself, of the tangents. Example: ``cat``."""
    # one argument has a tangent, else the rule would not run
    like = next(tangent for tangent in items_of(tangents) if tangent is not None)

    def zeros(primal: Any, tensor: object) -> Any:
        """Return zeros in place of a missing tangent. They are made from another tangent, so that
        they are batched if that one is."""
        if tensor is None and primal is not None:
            return like.new_zeros(primal.shape, dtype=primal.dtype)
        return tensor

    actual = list(primals)
    for index in op.vjp_args:
        if index >= len(actual):
            continue
        primal, tangent = primals[index], tangents[index]
        if isinstance(primal, list):
            of_parts = tangent or [None] * len(primal)
            pairs = zip(primal, of_parts, strict=True)
            actual[index] = [zeros(part, of_part) for part, of_part in pairs]
        else:
            actual[index] = zeros(primal, tangent)
    return op.func(*actual, **kwargs)


def _multilinear(
    op: Op, primals: list[object], tangents: list[object], kwargs: dict[str, object], result: object
) -> object:
    """Return the tangent of an op that is linear in each argument: the product rule. For ``mm``:
    ``x_t @ y + x @ y_t``."""
    total = None
    for index, tangent in enumerate(tangents):
        if tangent is not None:
            total = _add(total, op.func(*primals[:index], tangent, *primals[index + 1 :], **kwargs))
    return total


def transposed_twice(
    op: Op, primals: list[object], tangents: list[object], kwargs: dict[str, object], result: object
) -> Any:
    """Return the jvp, computed from the vjp alone. The vjp is linear in its cotangent u. Its
    transpose, applied to the tangents, is the jvp."""
    level = GradLevel()
    try:
        # the vjp is linear in the cotangents, so their value does not matter: they are zeros
        with torch.enable_grad():
            cotangents = _cotangents(op, level, result)
            roots = _pull_back(op, level, cotangents, primals, tangents, kwargs, result)
    finally:
        level.close()
    captures = [None if cotangent is None else edge_of(cotangent) for cotangent in cotangents]
    tangents_of_results = execute(
        level, roots, captures, create_graph=False, keep_graph=False, accumulate=False
    )
    if isinstance(result, torch.Tensor):
        return tangents_of_results[0]
    return tangents_of_results


def _cotangents(op: Op, level: GradLevel, result: object) -> list[torch.Tensor | None]:
    """Return an input of ``level`` for the cotangent of each result of a call. None for a result
    without derivative."""
    outputs = list(items_of((result,)))
    cotangents: list[torch.Tensor | None] = [None] * len(outputs)
    for index, output in enumerate(outputs):
        if index not in op.nondiff and is_floating(output):
            cotangents[index] = level.input(torch.zeros_like(output))
    return cotangents


def _pull_back(
    op: Op,
    level: GradLevel,
    cotangents: list[torch.Tensor | None],
    primals: list[object],
    tangents: list[Any],
    kwargs: dict[str, object],
    result: object,
) -> list[tuple[Edge, torch.Tensor]]:
    """Return the vjp of the call as a function of ``cotangents``, recorded at ``level``: an edge
    for each gradient, with the tangent of the same argument.

    The tangent serves as the cotangent of that gradient in the second transpose.
    """
    wanted = [index for index, tangent in enumerate(tangents) if tangent is not None]
    spans = {
        position: len(tangents[position])
        for position in wanted
        if isinstance(tangents[position], list)
    }
    flat_tangents = list(items_of(tangents[position] for position in wanted))
    flat_primals = list(items_of(primals[position] for position in wanted))
    # a node as the tape would make it, for the arguments with a tangent
    node: OpNode = OpNode.of(
        op,
        level,
        (None,) * len(flat_tangents),
        (),
        sum(1 << position for position in wanted),
        spans,
    )
    node.save(primals, kwargs, result)
    roots = []
    for cotangent, tangent, primal in zip(
        node.apply(cotangents, None, False), flat_tangents, flat_primals, strict=True
    ):
        # a gradient that is no value of the level does not depend on the cotangents
        if tangent is None or not isinstance(cotangent, Value) or cotangent._level is not level:
            continue
        edge = edge_of(conform(cotangent, (primal.shape, primal.dtype), node, 0))
        if edge is not None:
            roots.append((edge, tangent))
    return roots
