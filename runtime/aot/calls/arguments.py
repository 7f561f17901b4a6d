"""How the arguments of a call enter a compiled program: their leaves, what these hold, and what of
them the graph depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from ...errors import NestedTensor
from ...functionalize.overlap import shows_twice
from ...seam.shells import VALUES
from ...session.leaf import as_leaf
from ...session.tensor import SESSION, Tensor
from ...tape.nodes import Edge
from ...tape.values import edge_of
from ..capture import opened
from ..capture.subclass_parts import Layout, flattened, layout_of
from ..python_state.values import same

# by one look-up each
_Tensor, _STRIDED, _grad_enabled = torch.Tensor, torch.strided, torch.is_grad_enabled
_inference = torch.is_inference_mode_enabled
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_COMPLEX = frozenset((torch.complex32, torch.complex64, torch.complex128))
_EXACT = frozenset((bool, int, str, type(None)))
_LEAVES = frozenset((torch.Tensor, torch.nn.Parameter, float, *_EXACT))

R = TypeVar("R")
Target = Edge | Tensor
"""Where the gradient of an argument goes: to a node of the tape, or to a leaf that has no
``AccumulateGrad`` node yet."""
Kind = tuple[object, ...]
"""Hashable. What a graph depends on of one argument. First of all: whether its
gradient is wanted."""
Flags = tuple[tuple[int, bool], ...]


def flatten(
    args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[Sequence[object], pytree.TreeSpec | None]:
    """The leaves of the arguments and their tree; None for the tree of plain positional arguments,
    which is at hand at no cost."""
    if not kwargs and (
        _LEAVES.issuperset(map(type, args))
        or all(type(a) in VALUES or type(a) in _LEAVES for a in args)
    ):
        return args, None
    return opened.flatten((args, kwargs))


def of_leaves(f: Callable[..., R], spec: pytree.TreeSpec | None) -> Callable[..., R]:
    """``f`` as a function of the leaves of its arguments, whose tree is ``spec``."""
    if spec is None:
        return f

    def flat(*leaves: object) -> R:
        return opened.call(f, leaves, spec)  # type: ignore[no-any-return]

    return flat


@dataclass
class Call:
    """The arguments of one call of a compiled program.

    ``leaves``: a tensor of torch's that requires grad is a leaf of the session. ``plain``: what
    these hold, for the graph. ``targets``: for each leaf whose gradient is wanted, where that goes,
    if it does. ``kinds``: the kind of each leaf. ``flags``: see :func:`flags_of`."""

    leaves: list[Any]
    plain: list[Any]
    targets: list[Target | None]
    kinds: list[Kind]
    flags: Flags = ()

    @property
    def wanted(self) -> list[bool]:
        """Of which leaves the gradient is wanted."""
        return [bool(kind[0]) for kind in self.kinds]

    def followed_by(self, more: Call) -> Call:
        """A call with the leaves of ``more`` as further arguments."""
        return Call(
            [*self.leaves, *more.leaves],
            [*self.plain, *more.plain],
            [*self.targets, *more.targets],
            [*self.kinds, *more.kinds],
        )


class _Constant:
    """An argument that is no tensor, as a part of a kind. An object that equals another one may
    have other attributes, and a program changes the one that it is given."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is _Constant and same(self.value, other.value)

    def __hash__(self) -> int:
        return hash((_Constant, type(self.value)))  # whose own hash may be code of the user's


def _constant(x: object) -> object:
    """``x`` as a part of a kind. 0.0 and -0.0 are equal, but programs tell them apart, and a NaN
    does not even equal itself."""
    if type(x) in _EXACT:
        return x
    return repr(x) if type(x) in (float, complex) else _Constant(x)


def enter(given: Sequence[object], tracked: bool, dynamic: bool) -> Call | None:
    """The call with the leaves ``given``, or None if one of them is a value of a transform.

    ``tracked``: whether it matters which of them require grad. ``dynamic``: whether the program may
    be for any size."""
    leaves, plain = list(given), list(given)
    targets: list[Target | None] = []
    kinds: list[Kind] = []
    for i, x in enumerate(given):
        target = None
        if type(x) in VALUES:
            v: Tensor = x  # type: ignore[assignment]
            if v._level is not SESSION:
                return None
            if tracked:
                target = (
                    edge_of(v)
                    if v._edge is not None or v._view is not None
                    else v
                    if v._req
                    else None
                )
                if target is not None:
                    targets.append(target)
            x = plain[i] = v._inner
        elif (
            tracked
            and isinstance(x, _Tensor)
            and x.requires_grad
            and (x.grad_fn is None or _grad_enabled())
        ):
            leaf: Tensor = as_leaf(x)  # type: ignore[assignment]
            target = leaves[i] = leaf
            targets.append(leaf)
            x = plain[i] = leaf._inner
        if dynamic or not isinstance(x, _Tensor):
            kinds.append(kind_of(x, target is not None, dynamic))
        else:
            kinds.append(_fixed_kind(x, target is not None))
    return Call(leaves, plain, targets, kinds)


def flags_of(given: Sequence[object]) -> Flags:
    """Without grad mode: which leaves require grad and have no part in a history of the program,
    and whether each is a leaf for autograd. These are all in inference mode, and else what torch's
    own autograd has recorded."""
    tensors = [(i, x) for i, x in enumerate(given) if isinstance(x, _Tensor) and x.requires_grad]
    if not _inference():
        tensors = [(i, x) for i, x in tensors if type(x) not in VALUES and x.grad_fn is not None]
    return tuple([(i, x.is_leaf) for i, x in tensors])


def kind_of(x: object, wanted: bool, dynamic: bool) -> Kind:
    """The kind of an argument. ``dynamic``: a tensor may have any size."""
    if not isinstance(x, _Tensor):
        return wanted, type(x), _constant(x)
    if not dynamic:
        return _fixed_kind(x, wanted)
    if type(x) not in _PLAIN and (layout := layout_of(x, sized=True)) is not None:
        return _composed_kind(x, wanted, layout, True)
    return wanted, x.dtype, x.device, x.dim(), x.layout, x.is_conj(), x.is_neg(), _order(x)


def _fixed_kind(x: torch.Tensor, wanted: bool) -> Kind:
    layout, dtype = x.layout, x.dtype
    try:
        strides = x.stride() if layout is _STRIDED else None
    except RuntimeError as error:
        raise NestedTensor from error
    if type(x) not in _PLAIN and (of_parts := layout_of(x)) is not None:
        return _composed_kind(x, wanted, of_parts, False)
    conj = dtype in _COMPLEX and x.is_conj()
    # the object of a device costs more
    return wanted, dtype, x.is_cpu or x.device, x.shape, strides, layout, conj, x.is_neg()


def _composed_kind(x: torch.Tensor, wanted: bool, layout: Layout, dynamic: bool) -> Kind:
    """The kind of a tensor that consists of others, which are plain."""
    return (
        wanted,
        x.dtype,
        x.device,
        x.layout,
        layout,
        *(kind_of(part, False, dynamic) for part in flattened(x)),
    )


def _order(x: torch.Tensor) -> tuple[object, ...] | None:
    """The order of the dimensions in memory, whether there are gaps or overlaps, and whether there
    are overlaps. None for a contiguous tensor."""
    if x.layout is not _STRIDED or x.is_contiguous():
        return None
    order = sorted(range(x.dim()), key=lambda d: (x.stride(d), x.size(d)))
    return tuple(order), torch.ops.aten.is_non_overlapping_and_dense(x), shows_twice(x)
