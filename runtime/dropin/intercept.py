"""Intercepts calls of torch's own autograd with tensors of this package, while the drop-in
is not installed.

    class Square(torch.autograd.Function): ...
    runtime.func.grad(lambda x: Square.apply(x).sum())(x)   # runs Square's backward

Torch's engine does not know our tapes. It would run ``forward`` and record nothing, so gradients
would silently be zero. ``import runtime`` therefore replaces two functions of torch:

- ``Function.apply`` forwards a call that has our values among its arguments to
  :mod:`runtime.autograd.function`.
- The entry of the engine refuses a backward pass whose outputs or inputs are our values.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from ..autograd import function, function_node
from ..seam.shells import VALUES
from ..session.tensor import Tensor

_Function: Any = torch.autograd.function.Function
_graph: Any = torch.autograd.graph
_record = _Function.__dict__["apply"].__func__
_run_backward = _graph._engine_run_backward


@functools.wraps(_record)
def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    for a in args:
        if type(a) in VALUES:
            return function.apply(cls, args, kwargs)
    for a in kwargs.values():
        if type(a) in VALUES:
            return function.apply(cls, args, kwargs)
    return _record(cls, *args, **kwargs)


@functools.wraps(_run_backward)
def _backward(
    outputs: Any,
    gradients: Any,
    keep_graph: Any,
    create_graph: Any,
    inputs: Any = (),
    *args: Any,
    **kwargs: Any,
) -> Any:
    for t in (*outputs, *inputs):
        if type(t) in VALUES:
            _refuse(t)
    return _run_backward(outputs, gradients, keep_graph, create_graph, inputs, *args, **kwargs)


def _refuse(t: Any) -> NoReturn:
    where = "of the session" if isinstance(t, Tensor) else f"a value of {t._level.what}"
    raise RuntimeError(
        f"torch's engine was asked for gradients of a runtime tensor ({where}). "
        "It does not know the tensor's history. Call runtime.autograd.backward "
        "or runtime.autograd.grad, or run the program under runtime.dropin."
    )


def _replace(module: Any, name: str, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    if vars(module).get(name) is old:
        setattr(module, name, new)


def intercept_torch_autograd() -> None:
    """Replace ``Function.apply`` and the entry of torch's engine. ``import runtime``
    calls this once."""
    function_node.INTERFACES.update(
        c for c in _Function.__mro__ if c is not object
    )  # so subclasses of torch's Function work as subclasses of ours
    _Function.apply = classmethod(_apply)
    for name in ("torch.autograd", "torch.autograd.graph"):
        _replace(sys.modules[name], "_engine_run_backward", _run_backward, _backward)
