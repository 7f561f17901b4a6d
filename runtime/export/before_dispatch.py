"""Graphs to differentiate later: free of writes, with switches of the grad mode as calls and some
composite ops whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..aot.capture.boundary import Boundary, Input, Made, Output, ViewStep
from ..aot.capture.joint import Joint
from ..functionalize.functional_level import FunctionalLevel, FunctionalValue
from ..trace.make_fx import make_fx

# Composite ops that never write to an argument or return one. FunctionalLevel sees to a dropout
# that drops nothing. The others are decomposed.
_NAMES = (
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul "
    "layer_norm group_norm scaled_dot_product_attention dropout"
)
WHOLE = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name in _NAMES.split()
    for overload in getattr(torch.ops.aten, name).overloads()
)


def traced_before_dispatch(
    f: Callable[..., Any],
    leaves: Sequence[Any],
    decompositions: Mapping[Any, Callable[..., Any]] | None,
    dynamic: bool,
) -> Joint:
    """The graph of ``f`` on ``leaves``, without gradients, in the grad mode of the caller."""
    boundary: Boundary | None = None
    out_spec: Any = None

    def run(*traced: Any) -> list[Any]:
        nonlocal boundary, out_spec
        level = FunctionalLevel(whole=WHOLE)
        values = [level.wrap(t) if isinstance(t, torch.Tensor) else t for t in traced]
        try:
            with level.mode:
                outs, out_spec = pytree.tree_flatten(level.run_inside(f, values, {}))
            if any(v._store.memory.generation for v in level.closed_over.values()):
                raise RuntimeError(
                    "the program writes to a tensor that it closes over. "
                    "Pass it as an argument, or make it a buffer."
                )
            inputs = tuple(_record(v) for v in values)
            written = [
                level.read(v) for v, record in zip(values, inputs, strict=True) if record.written
            ]
            boundary = Boundary(
                inputs, tuple(Output(Made.RESULT, i) for i in range(len(outs))), (None,) * len(outs)
            )
            return [*written, *(level.lowered(o) for o in outs)]
        finally:
            level.close()

    mode = "symbolic" if dynamic else "real"
    with torch.random.fork_rng(devices=()):  # the draws of the trace are not those of a call
        module = make_fx(run, decompositions, tracing_mode=mode, pre_dispatch=True)(*leaves)
    assert boundary is not None
    results: Any = module.graph.output_node().args[0]
    module.graph.output_node().args = (tuple(results),)
    module.recompile()
    return Joint(module, boundary, out_spec, None)


def _record(v: Any) -> Input:
    if not isinstance(v, FunctionalValue):
        return Input(False)
    store = v._store
    return Input(
        False,
        bool(store.memory.generation),
        None,
        store.counter[0],
        tuple(ViewStep(*step) for step in v._chain),
    )
