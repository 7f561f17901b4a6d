"""Collect the gradients of a parameter: by its uses, and by those of tensors that are computed of
it alone.

If ``F.linear`` uses ``w.T``, the gradients of ``w`` are the transposed gradients of that use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..rules.samples.factors import Tensor, Term, joined
from ..seam.graph_walks import walk
from ..seam.levels import Level
from ..tape.engine import execute
from ..tape.nodes import Edge, Node, nodes_after
from ..tape.op_nodes import OpNode
from .general import Pulled
from .uses import Use

aten = torch.ops.aten


class Sources(dict[Edge, list[Term]]):
    """The terms of uses, by where the tensor that is used comes from. It does not change after the
    first read."""

    @functools.cached_property
    def _by_node(self) -> dict[Node, list[Edge]]:
        """Return, for each node of the tape, the used tensors that are computed of it."""
        sources: dict[Node, list[Edge]] = {}
        for at in self:
            for node in walk([at[0]], nodes_after):
                sources.setdefault(node, []).append(at)
        return sources

    def computed_of(self, end: Node) -> Sequence[Edge]:
        """Return where the used tensors come from that are computed of ``end``."""
        return self._by_node.get(end, ())


def by_source(uses: Iterable[Use]) -> Sources:
    """Return the terms of the uses, by where the tensor that is used comes from."""
    sources = Sources()
    for at, term in uses:
        sources.setdefault(at, []).append(term)
    return sources


def terms_of(tape: Level, end: Edge, value: Tensor, uses: Sources) -> list[Term]:
    """Return the gradients of the parameter ``value``, which enters the tape at ``end``."""
    terms_of_value = list(uses.get(end, ()))
    # uses of tensors that are computed of the parameter, such as its transpose
    for at in uses.computed_of(end[0]):
        if at == end:
            continue
        terms = uses[at]
        if _is_transpose(at[0], end):
            turned = _transpose(terms)
            if turned is not None:
                # still in factors, so no dense gradients are needed
                terms_of_value += turned
                continue
        terms_of_value += [Pulled(term, _pull(tape, at, end), value) for term in terms]
    return joined(terms_of_value)


def _transpose(terms: Sequence[Term]) -> list[Term] | None:
    """Return the gradients of the transposed matrix, None if some are not known in factors."""
    transposes = []
    for term in terms:
        transpose = term.transposed
        if transpose is None:
            return None
        transposes.append(transpose)
    return transposes


def _pull(tape: Level, at: Edge, end: Edge) -> Callable[[Tensor], Tensor]:
    """Return a function from a gradient of the tensor at ``at`` to one of the parameter at
    ``end``."""

    def pull(grad: Tensor) -> Tensor:
        # the part of the tape between the parameter and the tensor, which later calls need again
        (gradient,) = execute(
            tape, [(at, grad)], [end], create_graph=False, keep_graph=True, accumulate=False
        )
        return gradient  # type: ignore[no-any-return]

    return pull


def _is_transpose(node: Node, end: Edge) -> bool:
    """Return whether ``node`` is the transposition of the matrix at ``end``. ``w.transpose(0, 0)``
    is ``w``."""
    if len(node.metas[0][0]) != 2 or not isinstance(node, OpNode) or list(node.edges) != [end]:
        return False
    func = node.plan.op.func
    saved: Any = node
    # modulo 2, as dimensions of a matrix may be counted from its end: -1 is 1, and -2 is 0
    if func is aten.permute.default:  # of ``w.T``
        return bool(saved._saved_dims[0] % 2 == 1)
    if func is aten.transpose.int:
        return bool((saved._saved_dim0 - saved._saved_dim1) % 2 == 1)
    return func is aten.t.default
