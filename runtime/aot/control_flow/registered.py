"""Torch's operators of control flow on values of any level: in a trace a call of the operator itself, under a transform its rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from ...func.draws import DrawPerElement
from ...func.functionalize import FunctionalLevel
from ...func.pre_dispatch import PreDispatchMode
from ...func.trace import Trace
from ...seam.level_mode import LevelMode
from ...seam.levels import Value, innermost, levels_of
from ...seam.shells import VALUES
from ..capture.closed_over import ClosedOver
from .branches import Branch, Entering, example

Tensors = tuple[torch.Tensor, ...]
OURS: dict[Any, Callable[..., Any]] = {}
"""Ours for each operator of torch."""


def _key_of_batches() -> Any:
    """The set of the key by which torch refuses draws under vmap. It has no name in Python."""
    before = torch._C._dispatch_tls_local_include_set()
    torch._C._vmapmode_increment_nesting()
    try:
        return torch._C._dispatch_tls_local_include_set() - before
    finally:
        torch._C._vmapmode_decrement_nesting()


_VMAP_MODE = _key_of_batches()
_MODES = (LevelMode, PreDispatchMode, DrawPerElement, ClosedOver, Entering)


def stands_for(operator: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare what torch's ``operator`` does on values of ours, and inside of our levels: in a graph that is called with them."""

    def declare(f: Callable[..., Any]) -> Callable[..., Any]:
        OURS[operator] = f
        for values in [c for c in VALUES if issubclass(c, Value)]:
            operator.py_impl(values)(f)

        def inside(mode: Any, *args: Any, **kwargs: Any) -> Any:
            with mode:
                return f(*args, **kwargs)

        for mode in _MODES:
            operator.py_impl(mode)(inside)
        theirs = operator.py_kernels[DispatchKey.Autograd]

        def differentiated(*args: Any, **kwargs: Any) -> Any:
            """Torch's rule is for tensors of torch's engine. Values have a tape of their own."""
            mode = _get_current_dispatch_mode()
            of_ours = isinstance(mode, _MODES) or any(isinstance(x, Value) for x in pytree.tree_leaves((args, kwargs)))
            return f(*args, **kwargs) if of_ours else theirs(*args, **kwargs)

        operator.py_kernels[DispatchKey.Autograd] = differentiated
        operator.non_fallthrough_keys = operator.non_fallthrough_keys - _VMAP_MODE
        operator._dispatch_cache.clear()
        return f

    return declare


def transformable(module: fx.GraphModule) -> fx.GraphModule:
    """``module`` with ours for each call of torch's operators, which know no levels of ours."""
    if not any(n.target in OURS for n in module.graph.nodes):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for n in graph.nodes:
        n.target = OURS.get(n.target, n.target)
    return fx.GraphModule(module, graph)


def run(branch: Branch, args: Sequence[Any]) -> Any:
    return transformable(branch.module)(*args)


def unreadable(t: Any) -> bool:
    """Whether the element of ``t`` is traced or differs within a batch."""
    return any(isinstance(level, Trace) or level.hidden for level in levels_of(t))


def through_levels(
    tensors: Sequence[torch.Tensor],
    again: Callable[[Sequence[Any]], Tensors],
    record: Callable[[Trace], Tensors],
    compute: Callable[[], Tensors],
) -> Tensors:
    """The results of an operator on ``tensors``: at a functionalize level ``again`` on what they hold, in a trace what ``record`` writes
    down, else what ``compute`` gives."""
    level = innermost(tensors, None)
    if isinstance(level, FunctionalLevel):
        with _disable_current_modes():  # else the level would see the calls that bring its values up to date
            results = again(level.lowered_args(tensors))
        return tuple(level.wrap(r) for r in results)
    return record(level) if isinstance(level, Trace) else compute()


def abstract_results(trace: Trace, branch: Branch, operands: Sequence[Any]) -> Tensors:
    """Abstract values of what ``branch`` returns for ``operands``, of the mode of ``trace``."""
    assert trace.abstraction is not None
    if branch.spec is not None:
        return tuple(example(n.meta["val"], trace.abstraction.mode) for n in branch.results())
    with trace.abstraction.running():  # a graph from elsewhere, whose notes are of another mode
        return tuple(branch.module(*trace.lowered_args(operands)))
