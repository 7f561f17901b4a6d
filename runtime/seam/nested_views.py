"""Cuts long chains of views of views in the dispatcher, whose memory would grow quadratically.

    for _ in range(5000):
        y = y.t()

The dispatcher marks the result of each view op as a view. For a tensor of a Python class the mark
has the argument of the op, and a copy of the functions of all views before: quadratic memory,
gigabytes for the program above. What a value is a view of, its level knows itself. So after
:data:`MOST` views of views the next one is not marked: the marks begin again there. It shares the
version counter with its base, as a marked view does.

The dispatcher marks what ``__torch_dispatch__`` returns, when the call is over. So whoever calls
the op decides. For a call of a rule this is :func:`leaves_unmarked`. For a call of a program it is
a kernel for ``PythonTLSSnapshot``, the key of tensors with a ``__torch_dispatch__``, which is there
only in processes with such programs: it would cost each view op some microseconds. It stands in
the place of torch's kernel, which notes the state of the thread for ``enable_reentrant_dispatch``.
So tensors of users' classes pass through that one by another op. Under torch's Python dispatcher,
as in a symbolic trace, the results are marked all the same, so memory is quadratic there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..torch_private.dispatcher import (
    DispatchKeySet,
    OpOverload,
    is_excluded,
    set_excluded,
)
from ..torch_private.mode_stacks import without_dispatch_to_python
from ..torch_private.native_tensors import TensorBase, make_subclass, swap_contents
from .keys import CHUNK, NARROW, VIEWS, reopen_keys
from .locks import lock_of
from .passing_on import BELOW, SNAPSHOT, by_snapshot, passing_on
from .shells import VALUES
from .surgery import refit

aten = torch.ops.aten

# How many views of views the dispatcher marks. The attributes of a value: ``_nesting`` counts them,
# and ``_root``, where the marks begin again, is the base of all.
MOST = 32
# The view ops that the dispatcher marks, but those of sparse and nested tensors and of torch's
# forward mode. `detach` marks nothing.
VIEW_OPS = {
    id(func): func  # by id, because the overloads live as long as the process
    for func in (
        aten._conj.default,
        aten._neg_view.default,
        aten._reshape_alias.default,
        aten.alias.default,
        aten.as_strided.default,
        aten.chunk.default,
        aten.diagonal.default,
        aten.expand.default,
        aten.narrow.default,
        aten.permute.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
        aten.transpose.int,
        aten.unbind.int,
        aten.unfold.default,
        aten.unsqueeze.default,
        aten.view.default,
        aten.view.dtype,
        aten.view_as_complex.default,
        aten.view_as_real.default,
    )
}
_unmarked = BELOW - DispatchKeySet(VIEWS)
_inference = torch.is_inference_mode_enabled
_recorded_by_torch: Any = TensorBase.__dict__["requires_grad"].__get__
_base_by_dispatcher: Any = TensorBase.__dict__["_base"].__get__
_lock = lock_of(sys.modules[__name__], "_lock")
_libraries: list[torch.library.Library] = []  # their kernels last as long as they do


def leaves_unmarked(func: OpOverload, args: Sequence[object]) -> bool:
    """Return whether the calls that a level makes for ``func``, a view op on ``args``, are not
    marked as views by the dispatcher."""
    if func is NARROW or func is CHUNK:
        return True
    inner: Any = getattr(args[0], "_inner", None)
    return type(inner) in VALUES and inner._nesting >= MOST


def reopen_for(func: OpOverload, args: Sequence[object]) -> None:
    """Switch keys on as :func:`.keys.reopen_keys` does, for the call of ``func`` on ``args``."""
    reopen_keys(func)
    if id(func) in VIEW_OPS and leaves_unmarked(func, args):
        set_excluded(VIEWS, True)


def view_of(
    func: Callable[..., object], tensor: Any, rest: Sequence[object], kwargs: dict[str, object]
) -> Any:
    """Return ``func(tensor, *rest, **kwargs)``, a view of ``tensor``, as one step of many. For code
    of a level."""
    if type(tensor) not in VALUES or tensor._nesting < MOST:
        return func(tensor, *rest, **kwargs)
    before = is_excluded(VIEWS)
    set_excluded(VIEWS, True)
    try:
        return func(tensor, *rest, **kwargs)
    finally:
        set_excluded(VIEWS, before)


def note_views(result: object, source: Any) -> Any:
    """Return ``result``, what a view op has returned for ``source``, after the views are
    counted."""
    if type(source) not in VALUES or source.layout is not torch.strided:
        return result
    nesting = source._nesting + 1
    # before the first view that is not to be marked, and in no process without such a program
    if nesting == MOST:
        _install_kernels()
    views = result if isinstance(result, (list, tuple)) else (result,)
    for view in views:
        if type(view) in VALUES and view is not source:
            if nesting <= MOST:
                view._nesting = nesting
            else:
                _begin_again(view, source)
    return result


def _begin_again(value: Any, source: torch.Tensor) -> None:
    """Let ``value``, a view of ``source`` that is not marked, have its base and version counter."""
    base = root_of(source)
    if base is None:
        base = source
    value._root = base
    # a value with memory has the counter of its inner tensor; no counter is older than a value
    # of inference mode
    if value._geometry is None or _inference() or source.is_inference():
        return
    before = is_excluded(VIEWS)
    set_excluded(VIEWS, False)  # else it would get a counter of its own
    try:
        with without_dispatch_to_python():
            counted = make_subclass(type(value), source)
    finally:
        set_excluded(VIEWS, before)
    refit(counted, value)
    swap_contents(value, counted)


def root_of(value: object) -> Any:
    """Return the base of a value, as the dispatcher would know it if it had marked all views. None:
    it is no view."""
    base = _base_by_dispatcher(value)
    marked = value
    if base is not None:
        marked = base
    root = getattr(marked, "_root", None)
    if root is None:
        return base
    return root


def _install_kernels() -> None:
    """Let the calls of programs pass through :func:`_kernel_that_passes_on`, from now on."""
    if _libraries:
        return
    with _lock:
        # another thread may have done it meanwhile
        if _libraries:
            return
        library = torch.library.Library("aten", "IMPL")
        for func in VIEW_OPS.values():
            library.impl(func, _kernel_that_passes_on(func), SNAPSHOT.name, with_keyset=True)
        _libraries.append(library)


def _kernel_that_passes_on(func: OpOverload) -> Callable[..., object]:
    """Return a kernel that passes a call of ``func`` on, below the key that marks views if the
    argument is a value with many marks."""
    pass_on, pass_on_noted = passing_on(func), by_snapshot(func)

    def run(keys: DispatchKeySet, tensor: Any, *rest: object, **kwargs: object) -> Any:
        if type(tensor) not in VALUES:
            return pass_on_noted(keys & BELOW, tensor, *rest, **kwargs)
        # torch's own engine needs the mark for a write to the view
        many = tensor._nesting >= MOST and not _recorded_by_torch(tensor)
        below = _unmarked if many else BELOW
        return pass_on(keys & below, tensor, *rest, **kwargs)

    return run
