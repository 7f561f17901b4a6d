"""Lets views follow their base at a grad level, and changes the base's history at a write to one
of its views.

A view stores its base and the view ops that lead from the base to it. A write to a view gives the
base a new history (``CopySlices``). Every view of that base then notices that its generation is
old, and takes its history from the base again. Example: after ``v = x[0]; v.mul_(2)`` the history
of ``x`` is a ``CopySlices`` node, and that of ``v`` is a view op of the new ``x``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from ..errors import InplaceError, called_from
from ..rules.ops import Op
from ..rules.shape.strided_views import without_overlap
from ..seam.levels import Level, Value
from ..seam.memory import storage_of
from ..seam.nested_views import view_of
from ..seam.shells import VALUES
from ..seam.transforms_of_torch import without_wrappers
from ..seam.user_code import settled
from ..tape.nodes import Edge
from ..torch_private.native_autograd import is_view_replay_enabled
from ..torch_private.native_functions import neg_view
from . import hooks
from .accumulate import dense
from .conform import conform
from .node_names import op_name
from .nodes import AccumulateGrad, Input, Node
from .values import edge_of

_as_strided = torch.ops.aten.as_strided.default
_grad_enabled = torch.is_grad_enabled
# What these show of a tensor, or whether they show it at all, depends on its strides and on
# whether it is conjugated lazily.
OF_MEMORY = frozenset(
    (
        _as_strided,
        torch.ops.aten.view.default,
        torch.ops.aten.view.dtype,
        torch.ops.aten.view_as_complex.default,
        torch.ops.aten.view_as_real.default,
    )
)

# A longer path is one `as_strided` step where that shows the same memory: a program that writes to
# each of thousands of nested views would else run all of their steps for each.
MANY_STEPS = 8
WRITTEN = "is being"
STALE = "its base or another view of its base has been"


class View:
    """The base of a value that is a view, and the view ops that lead from the base to it."""

    __slots__ = ("base", "chain", "creation", "generation", "reshaped")

    def __init__(self, base: Any, chain: tuple[Any, ...], creation: str) -> None:
        self.base = base
        # Per view op (func, arguments after self, kwargs, output number or None). For example,
        # ``x[0]`` is ``((aten.select.int, (0, 0), {}, None),)``.
        self.chain = chain
        # the base's generation when the view last took its history, and its reshapings
        self.generation = base._generation
        self.reshaped = base._reshaped
        # Why a write to the view may not be recorded, or ``""`` if it may. The view was created in
        # ``"no_grad"`` or ``"inference"`` mode, by an op with several views (``"multi"``) or by a
        # custom Function (``"function"``). Or it has a hook and was returned by a compiled program
        # (``"hook"``).
        self.creation = creation

    def path(self, value: Any) -> tuple[Any, ...]:
        """Return the chain of ``value``. If the base has changed its geometry since, one
        ``as_strided`` step to the memory that ``value`` shows, or to the geometry from which the
        chain leads to ``value``.
        """
        base = self.base
        if self.reshaped == base._reshaped:
            return self.chain
        if _comparable(value, base):
            return (_strided_step(value),)
        earlier = (base._earlier or {}).get(self.reshaped)
        if earlier is None:
            self._refuse_lost_geometry()
        return ((_as_strided, earlier, {}, None), *self.chain)

    def short_path(self, value: object) -> tuple[Any, ...]:
        """Return :meth:`path`, or one step in place of many."""
        path = self.path(value)
        if len(path) > MANY_STEPS and _comparable(value, self.base):
            return (_strided_step(value),)
        return path

    def replay(self, tensor: Any, value: Value) -> Any:
        """Return the view of ``tensor``, a tensor of the base's shape, that ``value`` is of the
        base. Example: its tangent, whose strides may differ."""
        base = self.base
        if self.reshaped != base._reshaped:
            self._refuse_lost_geometry()
        one_step_suffices = (
            len(self.chain) > MANY_STEPS
            and _comparable(value, base)
            and _shows_strides(tensor)
            and (tensor.stride(), tensor.storage_offset()) == (base.stride(), base.storage_offset())
        )
        if one_step_suffices:
            return replay((_strided_step(value),), tensor)
        return replay(self.chain, tensor)

    def laid_out(self, tensor: Any) -> Any:
        """Return ``tensor``, a tensor of the base's shape and dtype, or a copy of it in memory like
        the base's where the view would show other elements of ``tensor``, or none. Example: a
        transposed tangent of which the view is ``as_strided``."""
        base = self.base
        if not (has_strides(tensor) and has_strides(base)):
            return tensor
        lazy = _lazy(base)
        alike = tensor.stride() == base.stride() and _lazy(tensor) == lazy
        if alike and tensor.storage_offset() == base.storage_offset():
            return tensor  # without a look at the chain, which may have thousands of steps
        funcs = [step[0] for step in self.chain]
        offset = _offset_of(base, funcs)
        if OF_MEMORY.isdisjoint(funcs) or (alike and _offset_of(tensor, funcs) == offset):
            return tensor
        return _make_lazy(_memory_like(tensor, (base.shape, base.stride(), offset)), lazy).copy_(
            tensor
        )

    def _refuse_lost_geometry(self) -> NoReturn:
        """Raise: the base has changed its geometry, and the view ops do not lead from the new one
        to the view."""
        raise InplaceError(
            f"the base of a view has changed its geometry in place ({list(self.base.shape)} now)"
            f"{self.base._reshaped_at}. The view cannot follow it at this level; "
            "use the out-of-place op (t, transpose, squeeze, …). "
            f"The view was needed{called_from()}"
        )

    def refresh(self, value: Any) -> None:
        """Take the history of ``value`` from its base's present one: by ``as_strided``, as torch
        does, or by running the view ops again."""
        base = self.base
        follows = base.requires_grad
        if not follows and (value._edge is None or isinstance(value._edge[0], Input)):
            # nothing to follow yet: if the base requires grad later, the generation is still old.
            # Or history begins at the view
            return
        if self.creation:
            if not _grad_enabled():
                return  # without grad mode nothing is recorded from the view
            refuse_rebase(value, STALE)
        if not follows:
            raise settled(
                RuntimeError(
                    "the base of this view was both modified inplace and detached inplace "
                    "(detach_), "
                    "and the history of the view is lost. Use detach() instead of detach_(), "
                    "or take the view again"
                )
            )
        self.generation = base._generation
        before = value._edge
        # in inference mode the session would record nothing
        with torch.inference_mode(False), torch.enable_grad():
            value._edge = replay(self._chain_for_history(value), base)._edge
        value._req = False
        if value._retains and value._edge is not None:
            hooks.follow(value, before)

    def _chain_for_history(self, value: Any) -> tuple[object, ...]:
        """Return the steps that are recorded from the base to ``value``."""
        if (
            value._level.restrides_views
            and not is_view_replay_enabled()
            and _comparable(value, self.base)
        ):
            return (_strided_step(value),)
        return self.short_path(value)


def replay(chain: tuple[Any, ...], base: Any) -> Any:
    """Run the view ops of ``chain`` from ``base`` and return the last view."""
    for func, rest, kwargs, which in chain:
        base = view_of(func, base, rest, kwargs)
        if which is not None:
            base = base[which]
    return base


def has_strides(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is strided and not nested."""
    return tensor.layout is torch.strided and not tensor.is_nested


def _offset_of(tensor: torch.Tensor, funcs: Sequence[object]) -> object:
    """Return the offset of ``tensor``, if it matters for a view by ``funcs``. ``as_strided`` counts
    places from the start of the storage."""
    if _as_strided not in funcs:
        return None
    return tensor.storage_offset()


def _lazy(tensor: torch.Tensor) -> tuple[bool, bool]:
    """Return whether ``tensor`` is conjugated and whether it is negated lazily. View ops differ for
    it then."""
    return tensor.dtype.is_complex and tensor.is_conj(), tensor.is_neg()


def _make_lazy(t: torch.Tensor, lazy: tuple[bool, bool]) -> torch.Tensor:
    """Conjugate and negate ``t`` lazily, as :func:`_lazy` says of another tensor."""
    conjugated, negated = lazy
    if conjugated:
        t = t.conj()
    if negated:
        t = neg_view(t)
    return t


def _memory_like(
    tensor: torch.Tensor, geometry: tuple[Any, Any, Any], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return new memory, of the dtype and device of ``tensor``, with the ``geometry`` (shape,
    strides, offset or None) of a tensor, so that its views can be taken of it."""
    shape, stride, offset = geometry
    if offset is not None:
        last = sum(step * max(size - 1, 0) for size, step in zip(shape, stride, strict=True))
        reach = offset + 1 + last
        return tensor.new_zeros(reach, dtype=dtype).as_strided(shape, stride, offset)
    if dense(shape, stride):
        return tensor.new_empty_strided(shape, stride, dtype=dtype)
    return tensor.new_empty(shape, dtype=dtype)


def _strided_step(value: Any) -> tuple[object, ...]:
    """Return the memory that ``value`` shows, as a step of a chain."""
    return (_as_strided, (value.shape, value.stride(), value.storage_offset()), {}, None)


def _shows_strides(tensor: Any) -> bool:
    """Return whether ``tensor`` is a plain strided tensor or a value, at any levels, that shows
    one's strides."""
    while type(tensor) in VALUES and tensor._level.shows_strides:
        tensor = tensor._inner
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_nested


def _comparable(value: Any, base: Any) -> bool:
    """Return whether sizes and strides alone determine which part of ``base`` the view ``value``
    shows."""
    a, b = value._inner, base._inner
    while type(a) in VALUES and type(b) in VALUES and a._level is b._level:
        if not a._level.shows_strides:
            return False
        a, b = a._inner, b._inner
    if type(a) is not torch.Tensor or type(b) is not torch.Tensor:
        return False
    return a.layout is torch.strided and _read_memory_alike(a, b)


def _read_memory_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two dense tensors make the same elements of the same memory."""
    if a.dtype is not b.dtype or a.is_nested or b.is_nested:
        return False
    return a.is_conj() == b.is_conj() and a.is_neg() == b.is_neg()


def mark_view(
    value: object,
    op: Op,
    args: Sequence[object],
    kwargs: dict[str, object],
    which: int | None = None,
) -> None:
    """Note that ``value`` is the result of the view op ``op``, or its result number ``which``."""
    creation = ""
    if op.multi_view:
        creation = "multi"
    follow(value, args[0], (op.func, tuple(args[1:]), kwargs, which), creation)


def follow(value: Any, source: Any, step: tuple[object, ...], creation: str = "") -> None:
    """Note that ``value`` is a view of ``source``. ``step``: the view op, as in the chain of
    a :class:`View`."""
    if type(source) not in VALUES or source._level is not value._level:
        return
    # inference tensors have no history, but that of a transform
    if source._level.packs and source.is_inference():
        value._edge = None
        return
    if not _grad_enabled():
        creation = "inference" if torch.is_inference_mode_enabled() else "no_grad"
    of = source._view
    if of is None:
        value._view = View(source, (step,), creation)
        return
    # these two reasons of the source hold for every view of it
    if not creation or of.creation in ("function", "inference"):
        creation = of.creation
    if source._req:  # a view that was made a leaf: history begins there
        value._view = View(source, (step,), creation)
    elif step[0] is _as_strided and _comparable(value, of.base):
        # it may reach beside ``source``, so its chain does not lead through that
        value._view = View(of.base, (_strided_step(value),), creation)
    else:
        value._view = View(of.base, (*of.path(source), step), creation)


def refuse_stale_target(target: Any) -> None:
    """Raise if ``target`` is a view to which no write may be recorded, and whose base has changed.
    Else the error would name the change of the base, not this write."""
    view = target._view
    if view is None or not view.creation:
        return
    base_has_changed = view.generation != view.base._generation
    if base_has_changed and _grad_enabled() and view.base.requires_grad:
        refuse_rebase(target, WRITTEN)


def base_edge(value: Any) -> Any:
    """Return the edge of the base of a view, None for a tensor that is no view."""
    if value._view is None:
        return None
    return edge_of(value._view.base)


def check_write(target: Any, edge: object, recording: bool) -> None:
    """Raise if the history cannot follow a write to ``target``. ``edge``: the target's.
    ``recording``: whether the write is recorded."""
    view = target._view
    if view is None:
        _refuse_write_to_leaf(edge)
        return
    # a write to a view enters the history of its base, so that must allow it, too
    of_base = base_edge(target)
    if recording or of_base is not None:
        if view.base.is_nested or target.is_nested:
            raise InplaceError(
                "the gradient of a write to a view of a nested tensor, "
                "or to a nested one of a buffer, is not known. Clone it first"
            )
        if view.creation:
            refuse_rebase(target, WRITTEN)
    if (edge is not None or of_base is not None) and view.base.is_leaf:
        raise settled(RuntimeError(_WRITTEN_LEAF.format("a view of a leaf")))
    _refuse_write_to_leaf(edge)


_WRITTEN_LEAF = "{} Variable that requires grad is being used in an in-place operation."


def _refuse_write_to_leaf(edge: Any) -> None:
    """Raise if ``edge``, that of the target of a write, is the edge of a leaf."""
    if edge is not None and isinstance(edge[0], (AccumulateGrad, Input)):
        raise settled(RuntimeError(_WRITTEN_LEAF.format("a leaf")))


_AMBIGUOUS = (
    "Nothing says whether the write belongs to the history. Make the view and write to it both "
    "inside the {} block, where nothing is recorded, or both outside."
)
_REASONS = {
    "no_grad": _AMBIGUOUS.format("no_grad"),
    "inference": _AMBIGUOUS.format("inference_mode"),
    "multi": (
        "This view is the output of a function that returns multiple views. "
        "Such functions do not allow the output views to be modified inplace. "
        "Use the out-of-place op, or make the view alone, by select or narrow."
    ),
    "function": (
        "This view was created inside a custom Function (or because an input was returned as-is). "
        "The history of a view that is written to is made from its base, "
        "which would leave out the Function's backward. Write to a clone of the output."
    ),
    "hook": (
        "A compiled program has returned it with a hook that it has registered. "
        "The history of a view that is written to is made from its base, "
        "which would leave out the hook. Register the hook on the result of the call."
    ),
}


def refuse_rebase(value: Any, what: str) -> None:
    """Raise: the history of ``value`` would have to come from its base, and ``value`` was created
    in a way that does not allow it. ``what``: WRITTEN or STALE."""
    creation = value._view.creation
    node, index = getattr(value, "_edge", None) or (None, 0)
    by_mode = creation in ("no_grad", "inference")
    # torch says the same of a Function with several results as of an op with several views
    if node is not None and len(node.metas) > 1 and creation == "function":
        creation = "multi"
    mode, now = "no_grad mode", "with grad mode enabled"
    if creation == "inference":
        mode, now = "inference mode", "in normal mode"
    if node is None:
        text = f"A view was created in {mode} and {what} modified inplace {now}."
    elif by_mode:
        text = (
            f"Output {index} of {op_name(node)} is a view of a view which was created in {mode} "
            f"and {what} modified inplace {now}."
        )
    else:
        text = f"Output {index} of {op_name(node)} is a view and {what} modified inplace."
    raise settled(RuntimeError(f"{text} {_REASONS[creation]}"))


def aliases(first: object, second: object) -> bool:
    """Return whether two tensors share memory, at any levels."""
    # `bottom`, without its frame, because every recorded write comes here
    while isinstance(first, Value):
        first = first._inner
    while isinstance(second, Value):
        second = second._inner
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    if (
        first.layout is not torch.strided
        or second.layout is not torch.strided
        or first.device != second.device
    ):
        return first is second
    try:
        return bool(storage_of(first)._cdata == storage_of(second)._cdata)
    except NotImplementedError:
        # a transform of torch's own is running: its tensors show the storage of those that
        # they wrap alone
        own = storage_of(without_wrappers(first))
        return bool(own._cdata == storage_of(without_wrappers(second))._cdata)


class CopySlices(Node):
    """The node of a base after a write to one of its views. The gradient of the written part goes
    through the node of the write, the rest goes to the base's former history."""

    namespace = AccumulateGrad.namespace
    __slots__ = ("chain", "geometry", "inner_node", "lazy", "others", "self_edge")

    def __init__(
        self,
        level: Level,
        of_base: Edge | None,
        target: Any,
        node: Node,
        self_edge: int | None,
    ) -> None:
        base = target._view.base
        count = len(node.edges)
        edges = node.edges
        # the edges of the write but the one of its target, whose gradient goes through the base
        if self_edge is None:
            self.others = tuple(range(count))
        else:
            self.others = (*range(self_edge), *range(self_edge + 1, count))
            edges = tuple([node.edges[index] for index in self.others])
        Node.__init__(self, level, (of_base, *edges), ((base.shape, base.dtype),))
        # without the base itself, to which a reference would close a cycle
        self.chain = target._view.short_path(target)
        offset = _offset_of(base, [step[0] for step in self.chain])
        self.geometry = (base.shape, base.stride(), offset)
        self.lazy = _lazy(base)
        self.inner_node = node
        self.self_edge = self_edge

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Take the cotangents of the write's arguments from the written part of that of the base,
        see :meth:`Node.apply`."""
        gradient = grads[0]
        if gradient is None:
            return (None,) * len(self.edges)
        # a copy in memory like the base's, of which the view can be taken as of the base
        base = _make_lazy(_memory_like(gradient, self.geometry), self.lazy).copy_(gradient)
        part = replay(self.chain, base)
        inner_wanted = None if wanted is None else self._wanted_of_inner(wanted)
        # when the pass is recorded, a saved result has the inner node as its history, which is to
        # be freed on its own
        node = copy.copy(self.inner_node) if create_graph else self.inner_node
        # a clone, since a result may be the cotangent itself, and `part` is written over below
        out = node.apply([part.clone()], inner_wanted, create_graph)
        of_base = None
        if self.edges[0] is not None:
            own = None if self.self_edge is None else out[self.self_edge]
            of_base = self._insert_own(gradient, base, part, own, create_graph)
        return (of_base, *(out[index] for index in self.others))

    def _wanted_of_inner(self, wanted: Any) -> list[bool]:
        """Return the wanted edges of the inner node, from ``wanted`` of this node."""
        of_inner = [False] * len(self.inner_node.edges)
        # edge 0 is that of the base
        for place, index in enumerate(self.others, 1):
            of_inner[index] = wanted[place]
        if self.self_edge is not None:
            of_inner[self.self_edge] = wanted[0]
        return of_inner

    def _insert_own(
        self, g: object, base: object, part: torch.Tensor, own: Any, create_graph: bool
    ) -> Any:
        """Return the cotangent of the base: ``base``, a copy of ``g``, with its ``part`` that was
        written replaced by the target's cotangent ``own``. None: zero."""
        if own is None:
            part.zero_()
            return base
        own = conform(own, (part.shape, part.dtype), self.inner_node, 0)
        is_recorded_copy = create_graph and not part.is_complex()
        if is_recorded_copy and not without_overlap(part.shape, part.stride()):
            return self._insert_last_elements(g, own)
        part.copy_(own)
        return base

    def _insert_last_elements(self, g: Any, own: torch.Tensor) -> object:
        """Return ``g`` with the written part replaced by ``own``, where the view shows a place
        several times.

        A recorded copy into such a view has a derivative by each element that shows a place, but
        only one of them is left there. So each place takes the last of its elements.
        """
        shape = self.geometry[0]
        numbers = torch.arange(shape.numel(), device=own.device)
        base = _memory_like(numbers, self.geometry, torch.long).copy_(numbers.view(shape))
        # of each element of the view: the place that it shows
        places = replay(self.chain, base).reshape(-1).abs()
        # of each place: the last element that shows it, -1 if none does
        last = numbers.new_full((shape.numel(),), -1)
        elements = torch.arange(places.numel(), device=own.device)
        last = last.scatter_reduce(0, places, elements, "amax")
        written = (last >= 0).view(shape)
        replaced = own.reshape(-1).index_select(0, last.clamp(min=0)).view(shape)
        return torch.where(written, replaced, g)

    def inputs(self) -> list[int | None]:
        """Return the inputs of the write, the base first."""
        inner_inputs = list(self.inner_node.inputs())
        # the base takes the place of the tensor that was written to
        written = inner_inputs.index(self.self_edge) if self.self_edge is not None else 0
        edge_numbers: list[int | None] = [0]
        for edge in (*inner_inputs[:written], *inner_inputs[written + 1 :]):
            edge_numbers.append(None if edge is None else self.others.index(edge) + 1)
        return edge_numbers

    def release(self) -> None:
        self.inner_node.release()
