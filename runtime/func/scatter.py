"""The inverse of each view op: a base in which the part that the view shows is replaced. For :mod:`runtime.func.functionalize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import InplaceError

aten = torch.ops.aten
_reshape_copy = aten._reshape_copy.default
Inverse = Callable[..., Any]  # (base, part, *arguments of the view op after self, **kwargs) -> base


def _same_elements(base: Any, part: Any, *_: Any, **__: Any) -> Any:
    return part.reshape(base.shape)


def _inverse(dims: Any) -> list[int]:
    return sorted(range(len(dims)), key=lambda i: dims[i] % len(dims))


def _in_own_places(base: Any, part: Any) -> Any:
    """``part``, what an expanded tensor became, if each of its elements has a place of its own in ``base``."""
    if part.numel() != base.numel():
        raise InplaceError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Write to a clone of it, which has an element of its own at each place."
        )
    return part


_INVERSES: dict[str, Inverse] = {
    **dict.fromkeys(("view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze"), _same_elements),
    **dict.fromkeys(("alias", "detach", "lift_fresh"), lambda base, part: part),
    "t": lambda base, part: aten.t(part),
    "transpose": lambda base, part, a, b: aten.transpose(part, a, b),
    "permute": lambda base, part, dims: aten.permute(part, _inverse(dims)),
    "expand": lambda base, part, *_, **__: _in_own_places(base, part).reshape(base.shape),
    "select": lambda base, part, dim, index: aten.select_scatter(base, part, dim, index),
    "slice": lambda base, part, dim=0, start=None, end=None, step=1: aten.slice_scatter(base, part, dim, start, end, step),
    "diagonal": lambda base, part, offset=0, dim1=0, dim2=1: aten.diagonal_scatter(base, part, offset, dim1, dim2),
    "as_strided": lambda base, part, size, stride, offset=None: aten.as_strided_scatter(base, part, size, stride, offset),
    "view_as_real": lambda base, part: aten.view_as_complex(part.contiguous()),
    "view_as_complex": lambda base, part: aten.view_as_real(part.resolve_conj()),
    "_conj": lambda base, part: part.conj(),
    "_neg_view": lambda base, part: -part,
}


# those of the above whose result is a view of `part`
_COPYING: dict[str, Inverse] = {
    **dict.fromkeys(
        ("view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze"), lambda base, part, *_: _reshape_copy(part, base.shape)
    ),
    "t": lambda base, part: aten.t_copy(part),
    "transpose": lambda base, part, a, b: aten.transpose_copy(part, a, b),
    "permute": lambda base, part, dims: aten.permute_copy(part, _inverse(dims)),
    "expand": lambda base, part, *_, **__: _reshape_copy(_in_own_places(base, part), base.shape),
    "view_as_real": lambda base, part: aten.view_as_complex_copy(part.contiguous()),
    "view_as_complex": lambda base, part: aten.view_as_real_copy(part.resolve_conj()),
    "_conj": lambda base, part: aten._conj_copy(part),
}


def copying_form(func: Any) -> Any:
    """The op that copies what ``func`` views; ``func`` itself where ATen has none."""
    name, overload = func._schema.name.split("::")[1], func._overloadname
    copying = getattr(getattr(aten, f"{name}_copy", None), overload, None)
    return func if copying is None else copying


def _piece(name: str, base: Any, part: Any, which: int, *args: Any) -> Any:
    """Views that come in lists: unbind, split, split_with_sizes."""
    if name == "unbind":
        return aten.select_scatter(base, part, args[0] if args else 0, which)
    dim = args[1] if len(args) > 1 else 0
    start = sum(args[0][:which]) if isinstance(args[0], (list, tuple)) else args[0] * which
    return aten.slice_scatter(base, part, dim, start, start + part.shape[dim])


def put_back(func: Any, base: Any, part: Any, which: int | None, args: Any, kwargs: Any, copying: bool = False) -> Any:
    """``base`` with ``part`` where ``func(base, *args, **kwargs)`` (its output number ``which``) looks. ``copying``: make no views."""
    name = func._schema.name.split("::")[1]
    if which is not None and name in ("unbind", "split", "split_with_sizes"):
        return _piece(name, base, part, which, *args)
    view, reshape = (copying_form(func), _reshape_copy) if copying else (func, aten.reshape)
    if name == "view" and func._overloadname == "dtype":
        return view(part, base.dtype)
    inverse = (_COPYING.get(name) if copying else None) or _INVERSES.get(name)
    if inverse is not None:
        return inverse(base, part, *args, **kwargs)
    # any view that only moves elements: see where it takes them
    places = view(reshape(torch.arange(base.numel(), device=base.device), base.shape), *args, **kwargs)
    places = places if which is None else places[which]
    flat = reshape(base, [-1]).scatter(0, reshape(places, [-1]), reshape(part, [-1]))
    return reshape(flat, base.shape)
