"""The gradients of a parameter by its uses, and by those of tensors that are computed of it alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..rules.per_sample import Tensor, Term, joined
from ..seam.levels import Level
from ..tape.engine import execute
from ..tape.nodes import Edge, Node, OpNode
from .general import Pulled
from .uses import Use

aten = torch.ops.aten


def by_source(uses: Iterable[Use]) -> dict[Edge, list[Term]]:
    """The terms of the uses, by where the tensor that is used comes from."""
    found: dict[Edge, list[Term]] = {}
    for at, term in uses:
        found.setdefault(at, []).append(term)
    return found


def terms_of(tape: Level, end: Edge, value: Tensor, uses: Mapping[Edge, Sequence[Term]]) -> list[Term]:
    """The gradients of the parameter ``value``, which enters the tape at ``end``."""
    found = list(uses.get(end, ()))
    for at, terms in uses.items():
        if at == end or not _leads_to(at[0], end[0]):
            continue
        turned = [t.transposed for t in terms] if _is_transpose(at[0], end) else [None]
        if all(t is not None for t in turned):
            found += [t for t in turned if t is not None]
        else:
            found += [Pulled(t, _pull(tape, at, end), value) for t in terms]
    return joined(found)


def _pull(tape: Level, at: Edge, end: Edge) -> Callable[[Tensor], Tensor]:
    def pull(g: Tensor) -> Tensor:
        (found,) = execute(tape, [(at, g)], [end], create_graph=False, keep_graph=True, accumulate=False)
        return found  # type: ignore[no-any-return]

    return pull


def _leads_to(node: Node, end: Node) -> bool:
    """Whether a path leads from ``node`` to ``end``."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        at = stack.pop()
        if at is end:
            return True
        if at not in seen:
            seen.add(at)
            stack.extend(edge[0] for edge in at.edges if edge is not None)
    return False


def _is_transpose(node: Node, end: Edge) -> bool:
    """Whether ``node`` is the transposition of the matrix at ``end``. ``w.transpose(0, 0)`` is ``w``."""
    func = node.plan.op.func if isinstance(node, OpNode) and list(node.edges) == [end] else None
    saved: Any = node
    if len(node.metas[0][0]) != 2:
        return False
    return func is aten.t.default or (func is aten.transpose.int and (saved._saved_dim0 - saved._saved_dim1) % 2 == 1)
