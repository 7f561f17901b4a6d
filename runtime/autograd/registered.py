"""Custom ops of ``torch.library.custom_op`` with the formulas that their authors registered there.

``register_autograd`` and ``register_vmap`` address torch's own engine. Here an op without a record, for which there are such formulas,
runs as a :class:`Function` made of them. A record, which also gives forward mode, comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS

from ..rules.ops import Op
from .function import Function

BACKWARD, VMAP = "_backward_fn", "_vmap_fn"
_functions: dict[torch._ops.OpOverload, type[Function]] = {}


def registered(op: Op, formula: str) -> Callable[..., Any] | None:
    """``op`` as a Function, if its author registered ``formula``; else None."""
    if op.func.namespace in ("aten", "prim", "prims"):
        return None
    definition = OPDEFS.get(op.func._name)
    if definition is None or getattr(definition, formula) is None:
        return None
    if op.func not in _functions:
        _functions[op.func] = _function(op, definition)
    function = _functions[op.func]

    def run(*args: Any, **kwargs: Any) -> Any:
        every = [op.argument(i, args, kwargs) for i in range(len(op.arg_names))]
        return function.apply(*every)

    return run


def _function(op: Op, definition: Any) -> type[Function]:
    arguments = op.func._schema.arguments
    positional = sum(not a.kwarg_only for a in arguments)
    names = [a.name for a in arguments[positional:]]

    class Registered(Function):
        @staticmethod
        def forward(*every: Any) -> Any:
            return op.func(*every[:positional], **dict(zip(names, every[positional:], strict=True)))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            if definition._setup_context_fn is None:
                return
            keywords = {"keyword_only_inputs": dict(zip(names, inputs[positional:], strict=True))} if names else {}
            definition._setup_context_fn(ctx=ctx, inputs=inputs[:positional], output=output, **keywords)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            result = definition._backward_fn(ctx, *grads)
            return (*(result if isinstance(result, tuple) else (result,)), *[None] * len(names))

        if definition._vmap_fn is not None:

            @staticmethod
            def vmap(info: Any, in_dims: tuple[Any, ...], *every: Any) -> Any:
                keywords = dict(zip(names, every[positional:], strict=True))
                return definition._vmap_fn(info, in_dims[:positional], *every[:positional], **keywords)

    Registered.__name__ = Registered.__qualname__ = op.base_name
    return Registered
