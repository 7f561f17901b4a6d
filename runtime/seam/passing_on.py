"""Passes a call on from a kernel of ours for ``PythonTLSSnapshot``, the first key of tensors with a
``__torch_dispatch__``.

    pass_on = passing_on(aten.linear.default)
    pass_on(keys & BELOW, x, weight, bias)      # in a kernel that was called with these keys

Our kernel stands in the place of torch's own, which notes the state of the thread. Torch 2.12 needs
that note when a call reaches ``__torch_dispatch__``. The keys of autograd lead to further calls,
which have a note of their own. In inference mode there are no such keys, and the dispatcher fails
with an internal assertion. On such a torch a call takes the way of :func:`by_snapshot`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..facts.lock import probe
from ..torch_private.dispatcher import DispatchKey, DispatchKeySet, OpOverload, keys_after

SNAPSHOT = DispatchKey.PythonTLSSnapshot
BELOW = keys_after(SNAPSHOT)
_snapshot = DispatchKeySet(SNAPSHOT)
_NAMESPACE = "runtime_passing"
_LIBRARY = torch.library.Library(_NAMESPACE, "DEF")  # its kernels last as long as this object


@functools.cache
def by_snapshot(func: OpOverload) -> Callable[..., object]:
    """Return ``func`` with torch's own kernel for ``PythonTLSSnapshot``, as a function of the keys
    below that and the arguments.

    It calls an op of this package that has no other kernel, by that key alone: the kernels of other
    keys, such as those for ``torch.vmap``, know only ``func``. So the keys of ``func`` are an
    argument.
    """
    redispatch = func._handle.redispatch_boxed
    name = func._name.removeprefix("aten::").replace(".", "_")
    arguments = str(func._schema)[len(func._name) :].removeprefix("(")
    _LIBRARY.define(f"{name}(int keys, {arguments}")

    def call_func(keys: int, *args: object, **kwargs: object) -> object:
        return redispatch(DispatchKeySet.from_raw_repr(keys), *args, **kwargs)

    _LIBRARY.impl(name, call_func, "CompositeImplicitAutograd")
    through = getattr(getattr(torch.ops, _NAMESPACE), name).default._handle.redispatch_boxed

    def run(keys: DispatchKeySet, *args: object, **kwargs: object) -> Any:
        return through(_snapshot, keys.raw_repr(), *args, **kwargs)

    return run


def _redispatch(func: OpOverload) -> Callable[..., object]:
    """Return ``func`` as a function of the keys, where the dispatcher takes such a call."""
    redispatch: Callable[..., object] = func._handle.redispatch_boxed
    return redispatch


_Way = Callable[[OpOverload], Callable[..., object]]
_WAYS: dict[str, _Way] = {"runs": _redispatch, "refused by RuntimeError": by_snapshot}
passing_on: _Way = _WAYS[probe("refused", "a call passed on in inference mode")]
"""``func`` as a function of the keys below ``PythonTLSSnapshot`` and the arguments."""
