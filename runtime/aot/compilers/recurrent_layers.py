"""A layer of an LSTM for Inductor, which must know how much memory each result takes.

The kernel of ``aten.mkldnn_rnn_layer`` chooses the size of its workspace, which the backward pass reads. Torch's abstract kernel says that
it has no elements. The op of this module says what the trace has seen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_LAYER: Any = torch.ops.aten.mkldnn_rnn_layer.default
_LIBRARY = torch.library.Library("runtime", "FRAGMENT")
_PARAMETERS = ", ".join(f"{str(a.type).replace('List[int]', 'int[]')} {a.name}" for a in _LAYER._schema.arguments)
_LIBRARY.define(f"lstm_layer({_PARAMETERS}, int workspace) -> (Tensor, Tensor, Tensor, Tensor)")


def _layer(*args: Any) -> Any:
    return _LAYER(*args[:-1])


def _abstract_layer(*args: Any) -> Any:
    *results, workspace = _LAYER(*args[:-1])
    return *results, workspace.new_empty(args[-1])


_LIBRARY.impl("lstm_layer", _layer, "CPU")
_LIBRARY.impl("lstm_layer", _abstract_layer, "Meta")


def with_workspace(n: fx.Node, target: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The call ``target(*args)`` of the node ``n`` as one that Inductor can place in memory. ``RuntimeError`` for a layer whose sizes are
    symbols: a trace on abstract values does not see the workspace."""
    if target is not _LAYER:
        return target, args
    values = n.meta["val"]
    if any(type(size) is not int for v in values for size in v.shape):
        raise RuntimeError(
            f"{target}, a layer of an LSTM, has a workspace of unknown size where its sizes are not fixed: say dynamic=False"
        )
    return torch.ops.runtime.lstm_layer.default, (*args, values[3].numel())
