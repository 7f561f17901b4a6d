"""The kernel of a layer of an LSTM for Inductor, whose own lowering of it takes the workspace for one element.

    aten.mkldnn_rnn_layer(x, …, True)       # becomes runtime.lstm_layer(x, …, True, 266240)

How large the workspace is depends on the kernel. The trace has called the kernel, so the size is known. It is an argument of the operator.
"""

from __future__ import annotations

from typing import Any

import torch

from .number_tensors import NumberTensors

_layer = torch.ops.aten.mkldnn_rnn_layer.default
_WORKSPACE = 3

_LIBRARY = torch.library.Library("runtime", "FRAGMENT")
_ARGUMENTS, _, _RESULTS = str(_layer._schema).partition("(")[2].partition(") -> ")
_LIBRARY.define(f"lstm_layer({_ARGUMENTS}, int workspace) -> {_RESULTS}")


def _run(*args: Any) -> Any:
    results = _layer(*args[:-1])
    return results if args[-1] else (*results[:_WORKSPACE], args[0].new_empty(0, dtype=torch.uint8))  # None without a backward pass


def _abstract(*args: Any) -> Any:
    results = list(_layer(*args[:-1]))
    results[_WORKSPACE] = torch.empty(args[-1], dtype=torch.uint8, device=args[0].device)
    return tuple(results)


_LIBRARY.impl("lstm_layer", _run, "CPU")
_LIBRARY.impl("lstm_layer", _abstract, "Meta")


class Lowered(NumberTensors):
    """Runs a graph in calls that Inductor lowers as they are."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is _layer:
            workspace = self._node.meta["val"][_WORKSPACE]
            size = 0 if workspace is None else workspace.numel()
            if type(size) is int:
                target, args = torch.ops.runtime.lstm_layer.default, (*args, size)
        return super().call_function(target, args, kwargs)
