"""The gradients of a parameter by its uses, and by those of tensors that are
computed of it alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..rules.samples.factors import Tensor, Term, joined
from ..seam.levels import Level
from ..tape.engine import execute
from ..tape.nodes import Edge, Node, OpNode
from .general import Pulled
from .uses import Use

aten = torch.ops.aten


class Sources(dict[Edge, list[Term]]):
    """The terms of uses, by where the tensor that is used comes from. It does not change
    once it is read."""

    @functools.cached_property
    def _by_node(self) -> dict[Node, list[Edge]]:
        found: dict[Node, list[Edge]] = {}
        for at in self:
            for node in _reached(at[0]):
                found.setdefault(node, []).append(at)
        return found

    def computed_of(self, end: Node) -> Sequence[Edge]:
        """Where the tensors come from that paths lead from to ``end``."""
        return self._by_node.get(end, ())


def by_source(uses: Iterable[Use]) -> Sources:
    """Return the terms of the uses, by where the tensor that is used comes from."""
    found = Sources()
    for at, term in uses:
        found.setdefault(at, []).append(term)
    return found


def terms_of(tape: Level, end: Edge, value: Tensor, uses: Sources) -> list[Term]:
    """Return the gradients of the parameter ``value``, which enters the tape at ``end``."""
    found = list(uses.get(end, ()))
    for at in uses.computed_of(end[0]):
        if at == end:
            continue
        terms = uses[at]
        if _is_transpose(at[0], end) and (turned := _transposed(terms)) is not None:
            found += turned
            continue
        found += [Pulled(t, _pull(tape, at, end), value) for t in terms]
    return joined(found)


def _transposed(terms: Sequence[Term]) -> list[Term] | None:
    """Return the gradients of the transposed matrix, None if some are not known in factors."""
    found = []
    for term in terms:
        turned = term.transposed
        if turned is None:
            return None
        found.append(turned)
    return found


def _pull(tape: Level, at: Edge, end: Edge) -> Callable[[Tensor], Tensor]:
    def pull(grad: Tensor) -> Tensor:
        (found,) = execute(
            tape, [(at, grad)], [end], create_graph=False, keep_graph=True, accumulate=False
        )
        return found  # type: ignore[no-any-return]

    return pull


def _reached(node: Node) -> set[Node]:
    """Return the nodes that paths from ``node`` lead to, and ``node``."""
    seen = {node}
    stack = [node]
    while stack:
        for edge in stack.pop().edges:
            if edge is not None and edge[0] not in seen:
                seen.add(edge[0])
                stack.append(edge[0])
    return seen


def _is_transpose(node: Node, end: Edge) -> bool:
    """Return whether ``node`` is the transposition of the matrix at ``end``. ``w.transpose(0, 0)``
    is ``w``."""
    if len(node.metas[0][0]) != 2 or not isinstance(node, OpNode) or list(node.edges) != [end]:
        return False
    func = node.plan.op.func
    saved: Any = node
    if func is aten.permute.default:  # of ``w.T``
        return bool(saved._saved_dims[0] % 2 == 1)
    if func is aten.transpose.int:
        return bool((saved._saved_dim0 - saved._saved_dim1) % 2 == 1)
    return func is aten.t.default
