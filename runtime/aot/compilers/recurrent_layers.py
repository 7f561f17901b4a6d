"""A layer of an LSTM for Inductor, which must know how much memory each result takes, and may lay
out arguments in other ways.

The kernel of ``aten.mkldnn_rnn_layer`` chooses the size of its workspace, which the backward pass
reads. Torch's abstract kernel says that it has no elements. Both kernels read their arguments as if
these were contiguous. The ops of this module say the size that the trace has seen, and make
arguments contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
_LAYER: Any = aten.mkldnn_rnn_layer.default
_BACKWARD: Any = aten.mkldnn_rnn_layer_backward.default
_LIBRARY = torch.library.Library("runtime", "FRAGMENT")


def _schema(func: Any, *more: str) -> str:
    """The parameters and results of an op, with ``more`` parameters, as a library reads them."""
    types = [
        (str(a.type).replace("List[int]", "int[]").replace("Optional[Tensor]", "Tensor?"), a.name)
        for a in func._schema.arguments
    ]
    given = ", ".join([*(f"{kind} {name}" for kind, name in types), *more])
    return f"({given}) -> ({', '.join(['Tensor'] * len(func._schema.returns))})"


def _contiguous(args: tuple[Any, ...]) -> list[Any]:
    return [a.contiguous() if isinstance(a, torch.Tensor) else a for a in args]


def _layer(*args: Any) -> Any:
    out, *states, workspace = _LAYER(*_contiguous(args[:-1]))
    # None without grad mode
    return out, *states, out.new_empty(0, dtype=torch.uint8) if workspace is None else workspace


def _abstract_layer(*args: Any) -> Any:
    *results, workspace = _LAYER(*_contiguous(args[:-1]))
    return *results, workspace.new_empty(args[-1])


def _define(
    name: str, schema: str, kernel: Callable[..., Any], abstract: Callable[..., Any]
) -> None:
    _LIBRARY.define(name + schema)
    _LIBRARY.impl(name, kernel, "CPU")
    _LIBRARY.impl(name, abstract, "Meta")


def _layer_backward(*args: Any) -> Any:
    return _BACKWARD(*_contiguous(args))


_define("lstm_layer", _schema(_LAYER, "int workspace"), _layer, _abstract_layer)
_define("lstm_layer_backward", _schema(_BACKWARD), _layer_backward, _layer_backward)


def for_inductor(n: fx.Node, target: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The call ``target(*args)`` of the node ``n``, by an op of this module if it is a layer.
    ``RuntimeError`` for a layer whose sizes are symbols: a trace on abstract values does not
    see the workspace."""
    if target is _BACKWARD:
        return torch.ops.runtime.lstm_layer_backward.default, args
    if target is not _LAYER:
        return target, args
    values = [v for v in n.meta["val"] if v is not None]
    if any(type(size) is not int for v in values for size in v.shape):
        raise RuntimeError(
            f"{target}, a layer of an LSTM, has a workspace of unknown size unless sizes are "
            "fixed: say dynamic=False"
        )
    return torch.ops.runtime.lstm_layer.default, (
        *args,
        values[3].numel() if len(values) > 3 else 0,
    )
