"""Enter the arguments of a call: find their leaves, unwrap them and compute their kinds.

call = enter([x, 2], True, False)
call.kinds[1]       # (False, int, 2): the graph depends on the value of a number
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ...errors import NestedTensor
from ...functionalize.overlap import shows_twice
from ...seam.levels import Value
from ...seam.shells import VALUES
from ...session.leaf import as_leaf
from ...session.subclasses import class_of_results
from ...session.tensor import SESSION, Tensor
from ...tape.nodes import Edge
from ...tape.values import edge_of
from ...torch_private.pytrees import pytree
from ...trace.provenance import here
from ..capture import opened
from ..capture.subclass_parts import Layout, flattened, layout_of
from ..capture.tree_structure import EXACT, constant, structure_of
from ..python_state.reads import form_of
from ..python_state.values import is_tree
from .identities import with_tensors

# global names, as each call would pay for a look-up in a module
_Tensor, _STRIDED, _grad_enabled = torch.Tensor, torch.strided, torch.is_grad_enabled
_inference = torch.is_inference_mode_enabled
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_COMPLEX = frozenset((torch.complex32, torch.complex64, torch.complex128))
_LEAVES = frozenset((torch.Tensor, torch.nn.Parameter, float, *EXACT))

R = TypeVar("R")
Target = Edge | Tensor
"""Where the gradient of an argument goes: to a node of the tape, or to a leaf that has no
``AccumulateGrad`` node yet."""
Kind = tuple[object, ...]
"""What a graph depends on of one argument. It is hashable. The first item says whether the gradient
of the argument is wanted."""
Flags = tuple[tuple[int, bool], ...]
_USUAL = frozenset((torch.Tensor, torch.nn.Parameter, Tensor, int, float, bool))


def flatten(
    args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[Sequence[object], pytree.TreeSpec | None]:
    """Return the leaves of the arguments, and their tree; None for the tree of plain positional
    arguments, whose leaves are at hand at no cost."""
    if not kwargs and (
        _LEAVES.issuperset(map(type, args))
        or all(type(argument) in VALUES or type(argument) in _LEAVES for argument in args)
    ):
        return args, None
    try:
        return opened.flatten((args, kwargs))
    except RecursionError as error:
        if is_tree([*args, *kwargs.values()]):  # it is only deep
            raise
        raise RuntimeError(
            f"an argument is a container that holds itself. Pass what is in it.{here()}"
        ) from error


def of_leaves(
    function: Callable[..., R], spec: pytree.TreeSpec | None, arguments: Sequence[object]
) -> Callable[..., R]:
    """Return ``function`` as a function of the leaves of its arguments, whose tree is ``spec``.

    ``arguments``: the leaves of one call. They show which tensors are one object.
    """
    if spec is None:
        return with_tensors(function, arguments)

    def flat(*leaves: object) -> R:
        """Call ``function`` with the arguments that have these leaves."""
        return _call(function, leaves, spec)  # type: ignore[no-any-return]

    return with_tensors(flat, arguments)


def _call(function: Callable[..., object], leaves: Sequence[object], spec: pytree.TreeSpec) -> Any:
    """Return ``function`` of the arguments with these leaves.

    The arguments are new objects. So what ``function`` assigns to a list, a dictionary or a field
    of one does not reach the caller. ``RuntimeError`` if that is a tensor which ``function`` does
    not return; a warning for anything else.
    """
    args, kwargs = opened.unflatten(leaves, spec)
    before, _ = opened.flatten((args, kwargs))
    result = function(*args, **kwargs)
    # the same objects, after the program has had them
    after, of_after = opened.flatten((args, kwargs))
    changed = structure_of(of_after) != structure_of(spec)
    if changed or any(new is not old for new, old in zip(after, before, strict=True)):
        # a computed tensor that the caller would only find in its list is lost, so it is an error
        old_and_returned = set(map(id, (*before, *opened.flatten(result)[0])))
        if any(isinstance(x, Value) and id(x) not in old_and_returned for x in after):
            raise RuntimeError(
                "the program assigns a tensor to a list, "
                "a dictionary or a field that it is given as an argument. "
                f"A compiled program has its own. Return the tensor instead.{here()}"
            )
        warnings.warn(
            (
                "the program changes a list, a dictionary or an object that it is given as "
                "an argument. A compiled program has its own, so that the caller's stays as it is."
            ),
            UserWarning,
            stacklevel=2,
        )
    return result


@dataclass(slots=True)
class Call:
    """Hold the arguments of one call of a compiled program."""

    # Tensors and other values. A tensor of torch that requires grad is a leaf of the session here.
    leaves: list[Any]
    # The plain tensors inside the leaves, for the graph.
    plain: list[Any]
    # For each leaf whose gradient is wanted, where the gradient goes, or None.
    targets: list[Target | None]
    # The kind of each leaf.
    kinds: list[Kind]
    # See :func:`flags_of`.
    flags: Flags = ()
    # The arguments as the caller passes them, with marks. Empty if nobody asks which tensors are
    # one object.
    given: Sequence[object] = ()

    @property
    def wanted(self) -> list[bool]:
        """Return for each leaf whether its gradient is wanted."""
        return [bool(kind[0]) for kind in self.kinds]

    def followed_by(self, more: Call) -> Call:
        """Return a call with the leaves of ``more`` as further arguments."""
        return Call(
            [*self.leaves, *more.leaves],
            [*self.plain, *more.plain],
            [*self.targets, *more.targets],
            [*self.kinds, *more.kinds],
        )


def enter(given: Sequence[object], tracked: bool, dynamic: bool) -> Call | None:
    """Return the call with the leaves ``given``, or None if one of them is a value of a transform.

    ``tracked``: whether it matters which of them require grad. ``dynamic``: whether the program may
    be for any size.
    """
    leaves, plain = list(given), list(given)
    targets: list[Target | None] = []
    kinds: list[Kind] = []
    for index, x in enumerate(given):
        target: Target | None = None
        # a tensor of the session: unwrap it, and note where its gradient goes
        if type(x) in VALUES:
            tensor: Tensor = x  # type: ignore[assignment]
            if tensor._level is not SESSION:
                return None
            if tracked:
                if tensor._edge is not None or tensor._view is not None:
                    target = edge_of(tensor)
                elif tensor._req:
                    target = tensor
                if target is not None:
                    targets.append(target)
            x = plain[index] = tensor._inner
        # a tensor of torch that is differentiated becomes a leaf of the session
        elif tracked and isinstance(x, _Tensor) and x.requires_grad and _takes_part(x):
            leaf: Tensor = as_leaf(x)  # type: ignore[assignment]
            target = leaves[index] = leaf
            targets.append(leaf)
            x = plain[index] = leaf._inner
        if dynamic or not isinstance(x, _Tensor):
            kinds.append(kind_of(x, target is not None, dynamic))
        else:
            kinds.append(_fixed_kind(x, target is not None))
    _note_classes(given, kinds)
    return Call(leaves, plain, targets, kinds)


def _note_classes(given: Sequence[object], kinds: list[Kind]) -> None:
    """Add to the kinds of tensors of a user's class that class: ``plain`` has none of them."""
    if _USUAL.issuperset(map(type, given)):
        return
    for index, x in enumerate(given):
        own = class_of_results(x)
        if own is not None:
            kinds[index] = (*kinds[index], own)


def _takes_part(x: torch.Tensor) -> bool:
    """Return whether ``x``, a tensor of torch that requires grad, is differentiated.

    A leaf is, also without grad mode, as the program may switch that on.
    """
    return x.grad_fn is None or _grad_enabled()


def flags_of(given: Sequence[object]) -> Flags:
    """Return the leaves of a call without grad mode that require grad and are not differentiated.

    Each is the index of a leaf, and whether that is a leaf for autograd. In inference mode these
    are all that require grad, and else the tensors that torch's own autograd has recorded.
    """
    tensors = [
        (index, x) for index, x in enumerate(given) if isinstance(x, _Tensor) and x.requires_grad
    ]
    # a leaf is differentiated even then, as the program may switch grad mode on
    if not _inference():
        tensors = [
            (index, tensor)
            for index, tensor in tensors
            if type(tensor) not in VALUES and tensor.grad_fn is not None
        ]
    return tuple([(index, tensor.is_leaf) for index, tensor in tensors])


def kind_of(value: object, wanted: bool, dynamic: bool) -> Kind:
    """Return the kind of an argument. ``dynamic``: a tensor may have any size."""
    if not isinstance(value, _Tensor):
        return wanted, type(value), constant(value)
    if not dynamic:
        return _fixed_kind(value, wanted)
    if type(value) not in _PLAIN and (layout := layout_of(value, sized=True)) is not None:
        return _composed_kind(value, wanted, layout, True)
    return (
        wanted,
        value.dtype,
        value.device,
        value.dim(),
        value.layout,
        value.is_conj(),
        value.is_neg(),
        _order(value),
    )


def _fixed_kind(x: torch.Tensor, wanted: bool) -> Kind:
    """Return the kind of a tensor whose sizes and strides are constants of the graph."""
    layout, dtype = x.layout, x.dtype
    try:
        form = x.stride() if layout is _STRIDED else form_of(x)
    except RuntimeError as error:
        raise NestedTensor from error
    if type(x) not in _PLAIN and (of_parts := layout_of(x)) is not None:
        return _composed_kind(x, wanted, of_parts, False)
    conj = dtype in _COMPLEX and x.is_conj()
    # `is_cpu` is a bool, and hashing an object of a device would cost more
    return wanted, dtype, x.is_cpu or x.device, x.shape, form, layout, conj, x.is_neg()


def _composed_kind(x: torch.Tensor, wanted: bool, layout: Layout, dynamic: bool) -> Kind:
    """Return the kind of a tensor that consists of others, which are plain."""
    return (
        wanted,
        x.dtype,
        x.device,
        x.layout,
        layout,
        *(kind_of(part, False, dynamic) for part in flattened(x)),
    )


def _order(x: torch.Tensor) -> tuple[object, ...] | None:
    """Return the order of the dimensions in memory, whether there are gaps or overlaps, and whether
    there are overlaps. None for a contiguous tensor. Of a sparse one what its layout has."""
    if x.layout is not _STRIDED:
        return form_of(x)
    if x.is_contiguous():
        return None
    order = sorted(range(x.dim()), key=lambda dim: (x.stride(dim), x.size(dim)))
    return tuple(order), torch.ops.aten.is_non_overlapping_and_dense(x), shows_twice(x)
