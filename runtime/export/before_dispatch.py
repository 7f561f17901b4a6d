"""Trace programs before dispatch, as ``aot_export_module(..., pre_dispatch=True)`` does.

Graphs to differentiate later are free of writes. They have switches of the grad mode as calls, and
some composite ops whole:

    with torch.no_grad():       # a call that turns the grad mode off
        y = linear(x, w)        # aten.linear, where other graphs have aten.t and aten.mm
                                # a call that turns the grad mode on again
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch

from ..aot.capture.boundary import Boundary, Input, Made, Output, ViewStep
from ..aot.capture.joint import Joint
from ..aot.capture.make_fx import make_fx
from ..functionalize.functional_level import FunctionalLevel
from ..functionalize.functional_value import FunctionalValue
from ..seam.escapes import living
from ..seam.generator_states import own_draws
from ..seam.graph_walks import results_of
from ..torch_private.pytrees import pytree
from ..trace.provenance import happened_at

# Composite ops that never write to an argument or return one. FunctionalLevel sees to a dropout
# that drops nothing. The others are decomposed.
_NAMES = (
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul "
    "layer_norm group_norm scaled_dot_product_attention dropout"
)
_PACKETS = [getattr(torch.ops.aten, name) for name in _NAMES.split()]
WHOLE = frozenset(
    chain.from_iterable(map(partial(getattr, packet), packet.overloads()) for packet in _PACKETS)
)


def traced_before_dispatch(
    function: Callable[..., object],
    leaves: Sequence[torch.Tensor | int],
    decompositions: Mapping[object, Callable[..., object]] | None,
    dynamic: bool,
) -> Joint:
    """Return the graph of ``function`` on ``leaves``, without gradients, in the grad mode of the
    caller."""
    boundary: Boundary | None = None
    out_spec: Any = None

    def run(*traced: Any) -> list[object]:
        """Run the program at a functionalize level, and return new values and results."""
        nonlocal boundary, out_spec
        level = FunctionalLevel(whole=WHOLE)
        values = [
            level.wrap(value) if isinstance(value, torch.Tensor) else value for value in traced
        ]
        try:
            with level.mode:
                outputs, out_spec = pytree.tree_flatten(
                    living(level.run_inside(function, values, {}))
                )
            _refuse_writes_outside(level)
            # new values of written inputs come first, as in a joint graph
            inputs = tuple(map(_input_record, values))
            written = [
                level.read(value)
                for value, record in zip(values, inputs, strict=True)
                if record.written
            ]
            results = tuple(Output(Made.RESULT, index) for index in range(len(outputs)))
            boundary = Boundary(inputs, results, (None,) * len(outputs))
            return [*written, *map(level.lowered, outputs)]
        finally:
            level.close()

    mode = "symbolic" if dynamic else "real"
    with own_draws():  # the draws of the trace are not those of a call
        module = make_fx(run, decompositions, tracing_mode=mode, pre_dispatch=True)(*leaves)
    assert boundary is not None
    results = results_of(module.graph)
    module.graph.output_node().args = (tuple(results),)
    module.recompile()
    return Joint(module, boundary, out_spec, None)


def _refuse_writes_outside(level: FunctionalLevel) -> None:
    """Raise if the program wrote to a tensor that it closes over."""
    for value in level.closed_over.values():
        if value._store.memory.generation:
            raise RuntimeError(
                "the program writes to a tensor that it closes over. Pass it as an "
                f"argument, or make it a buffer.{happened_at(value._store.memory.written_at)}"
            )


def _input_record(value: object) -> Input:
    """Return what the program did to an input."""
    if not isinstance(value, FunctionalValue):
        return Input(False)
    store = value._store
    return Input(
        differentiated=False,
        written=bool(store.memory.generation),
        tangent=None,
        counted=store.counter[0],
        reshaped=tuple(ViewStep(*step) for step in value._chain),
        written_at=store.memory.written_at,
    )
