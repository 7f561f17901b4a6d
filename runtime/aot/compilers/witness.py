"""Find which ATen calls a Python callable makes, without running them.

Witness(result).watch(torch.relu, (x,), {})     # [(aten.relu.default, (x,), {})]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ...torch_private.dispatcher import OpOverload, below_autograd
from ...torch_private.mode_stacks import TorchDispatchMode, without_dispatch_to_python
from ...torch_private.pytrees import pytree


def example(a: Any) -> Any:
    """Return arguments as they were when the graph was traced.

    A symbolic size stays a node, which no binding takes.
    """
    if isinstance(a, fx.Node):
        value = a.meta.get("val")
        if isinstance(value, torch.Tensor):
            return value
        return a
    # fx has classes of its own for the lists and dictionaries of a call, which a binding refuses
    if isinstance(a, fx.immutable_collections.immutable_dict):
        return {key: example(value) for key, value in a.items()}
    if type(a) in (list, tuple) or isinstance(a, fx.immutable_collections.immutable_list):
        return list(map(example, a))
    return a


class Witness(TorchDispatchMode):
    """Note the calls that reach ATen, and answer each with ``result`` instead of running it."""

    def __init__(self, result: object) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.result = result
        self.calls: list[tuple[OpOverload, Sequence[object], Mapping[str, object]]] = []

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Note a call, and return ``result`` with new tensors."""
        # a question about an abstract tensor, which is no call of the graph
        if func is torch.ops.prim.device.default:
            return args[0].device
        self.calls.append((func, args, kwargs or {}))
        # the result is abstract, and its own detach() takes a hundred times as long
        with without_dispatch_to_python():
            # fresh tensors: a view may be marked once only
            return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, self.result)

    def watch(
        self, call: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> list[tuple[OpOverload, Sequence[object], Mapping[str, object]]]:
        """Return the ATen calls of ``call(*args, **kwargs)``; none if it does not take these
        arguments."""
        # a binding raises either error for arguments that it does not take
        try:
            with self, below_autograd():
                call(*args, **kwargs)
        except (TypeError, RuntimeError):
            return []
        return self.calls

    def sees_only(
        self,
        call: Callable[..., object],
        func: OpOverload,
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> bool:
        """Return whether ``call(*args, **kwargs)`` is one call of ``func`` with just these
        arguments."""
        calls = self.watch(call, args, kwargs)
        return len(calls) == 1 and calls[0][0] is func and _same(list(calls[0][1:]), [args, kwargs])


def _same(a: object, b: object) -> bool:
    """Return whether two arguments are the same: one tensor, or equal objects of one type."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    if isinstance(a, (list, tuple)):
        return _is_same_list(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return type(a) is type(b) and bool(a == b)


def _is_same_list(a: Sequence[object], b: object) -> bool:
    """Return whether ``b`` is a list of the same items as ``a``."""
    # a schema may take a number for a list of one
    if type(b) is int:
        b = (b,)
    return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(_same, a, b))
