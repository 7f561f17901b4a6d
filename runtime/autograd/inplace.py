"""In-place ops and views at a grad level.

A mutation is carried out for real, on the inner tensor, so aliasing needs no bookkeeping; what this module keeps right is history.
A view remembers its base and the view ops that lead to it. Writing to a view changes the base's history (``CopySlices``); every
view of that base then finds that its generation is old and takes its history anew by replaying its view ops on the base.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InplaceError
from ..levels import _VIEWS, GEOMETRY, Value, _set_excluded, change_geometry, unwrap_kwargs
from ..rules.ops import Op
from . import hooks
from .accumulate import dense
from .nodes import AccumulateGrad, Edge, Input, Node, OpNode

_grad_enabled = torch.is_grad_enabled


class View:
    """How a value follows its base. ``chain``: (func, arguments after self, kwargs, output number or None) per view op."""

    __slots__ = ("base", "chain", "creation", "generation")

    def __init__(self, base: Any, chain: tuple[Any, ...], creation: str) -> None:
        self.base = base
        self.chain = chain
        self.generation = base._generation
        self.creation = creation  # "" | "no_grad" | "multi" | "function"

    def replay(self, base: Any) -> Any:
        for func, rest, kwargs, which in self.chain:
            base = func(base, *rest, **kwargs)
            if which is not None:
                base = base[which]
        return base

    def refresh(self, v: Any) -> None:
        """Take the history of ``v`` from its base's present one."""
        if self.creation == "function":
            refuse_rebase(v, "its base or another view of its base has been modified inplace")
        self.generation = self.base._generation
        before = v._edge
        with torch.enable_grad():
            v._edge = self.replay(self.base)._edge
        v._req = False
        if v._retains and v._edge is not None:
            hooks.follow(v, before)


def mark_view(v: Any, op: Op, args: Any, kwargs: Any, which: int | None = None) -> None:
    source = args[0]
    if not (isinstance(source, Value) and source._level is v._level):
        return
    step = ((op.func, tuple(args[1:]), kwargs, which),)
    creation = "multi" if op.multi_view else "" if _grad_enabled() else "no_grad"
    of = source._view
    if of is None or getattr(source, "_req", False):  # a view that was made a leaf is where history begins
        v._view = View(source, step, creation)
    else:
        v._view = View(of.base, of.chain + step, of.creation if of.creation == "function" else creation or of.creation)


def run(level: Any, op: Op, args: Any, kwargs: Any) -> Any:
    """An in-place op: mutate the inner tensor, then give the target its new history."""
    from .level import edge_of

    target = args[0]
    if not isinstance(target, torch.Tensor):
        return _foreach(level, op, args, kwargs)
    if not (isinstance(target, Value) and target._level is level):
        refuse(level, op.func)
    if op.base_name in GEOMETRY and op.functional is not None:
        return change_geometry(op.functional.func, op.func, target, args[1:], kwargs)
    inner, edges, at, spans, wanted = level.collect(op, args)
    recording = edges is not None and _grad_enabled() and op.base_name not in _METADATA
    special = _METADATA.get(op.base_name)
    if special is not None:
        return special(level, op, target, inner, edges, kwargs)
    self_edge = edge_of(target)
    node: Any = None
    if recording or (target._view is not None and target._view.creation == "no_grad" and _grad_enabled()):
        check_write(op.func, target, self_edge, recording)
    if recording:
        functional = op.functional
        if functional is None or functional.record is None:
            functional = op if op.record is not None else None
        if functional is None:
            raise InplaceError(f"{op.func} has no functional form with a record, so its gradient is not known")
        metas = ((inner[0].shape, inner[0].dtype),)
        node = level.make_node(functional, tuple(edges), metas, at, spans, wanted)
    saved = list(inner)
    if isinstance(node, OpNode):
        for kind, i, reader in node.plan.slots:
            if kind == "arg" and reader is None and i < len(inner) and aliases(inner[i], inner[0]):
                saved[i] = level.kept(inner[i])  # the formula wants the value from before
    shares_counter = type(inner[0]) is torch.Tensor
    if shares_counter:
        # the shell shares its version counter, and the caller's own pass through the dispatcher counts this mutation
        _set_excluded(_VIEWS, True)
        try:
            level.outward(op, inner, unwrap_kwargs(level, kwargs))
        finally:
            _set_excluded(_VIEWS, False)
    else:
        level.outward(op, inner, unwrap_kwargs(level, kwargs))
    if node is None:
        return target
    if isinstance(node, OpNode):
        node.save(saved, kwargs, inner[0])
        if shares_counter:
            _expect_next_version(node, inner[0])
    rebase(level, target, (node, 0), at.get(0))
    return target


def rebase(level: Any, target: Any, edge: Edge, self_edge: int | None) -> None:
    """A write gave ``target`` the history ``edge``, whose node has the target's former history at edge ``self_edge``."""
    from .level import edge_of

    view = target._view
    rewritten = target if view is None else view.base
    before = edge_of(rewritten)
    rewritten._edge = edge if view is None else (CopySlices(level, before, rewritten, view, edge[0], self_edge), 0)
    rewritten._req = False
    rewritten._generation += 1
    if rewritten._retains:
        hooks.follow(rewritten, before)


def _expect_next_version(node: OpNode, result: torch.Tensor) -> None:
    """A saved result of an in-place op is mutated once more in the version count, by the dispatcher on the way out."""
    from .saved import Saved

    for s in node.saved or ():
        if isinstance(s, Saved) and s.tensor is result:
            s.version += 1


def check_write(what: Any, target: Any, edge: Any, recording: bool) -> None:
    """Mutations that history could not follow."""
    if edge is not None and isinstance(edge[0], (AccumulateGrad, Input)):
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    view = target._view
    if view is None:
        return
    if view.creation == "function":
        refuse_rebase(target, "is being modified inplace")
    from .level import edge_of

    base_edge = edge_of(view.base)
    if view.creation == "multi":
        name = edge[0].name() if edge is not None else what
        raise RuntimeError(
            f"Output {edge[1] if edge else 0} of {name} is a view and is being modified inplace. This view is the output of a function "
            "that returns multiple views. Such functions do not allow the output views to be modified inplace. "
            "You should replace the inplace operation by an out-of-place one."
        )
    if view.creation == "no_grad" and (recording or base_edge is not None):
        raise RuntimeError(
            "A view was created in no_grad mode and is being modified inplace with grad mode enabled. Given that this use case is "
            "ambiguous and error-prone, it is forbidden. You can clarify your code by moving both the view and the inplace either "
            "both inside the no_grad block (if you don't want the inplace to be tracked) or both outside (if you want the inplace to be "
            "tracked)."
        )
    if base_edge is not None and isinstance(base_edge[0], (AccumulateGrad, Input)):
        raise RuntimeError("a view of a leaf Variable that requires grad is being used in an in-place operation.")


def refuse_rebase(v: Any, what: str) -> None:
    """``v`` came out of a custom Function as a view; history taken anew from its base would pass its derivative by."""
    node, index = getattr(v, "_edge", None) or (None, 0)
    name = node.name().removesuffix("Backward") if node is not None else "a custom Function"
    raise RuntimeError(
        f"Output {index} of {name} is a view and {what}. "
        + (
            "This view is the output of a function that returns multiple views. Such functions do not allow the output views to be "
            "modified inplace. You should replace the inplace operation by an out-of-place one."
            if node is not None and len(node.metas) > 1
            else "This view was created inside a custom Function (or because an input was returned as-is) and the autograd logic to handle "
            "view+inplace would override the custom backward associated with the custom Function, leading to incorrect gradients. This "
            "behavior is forbidden. You can fix this by cloning the output of the custom Function."
        )
    )


def aliases(a: Any, b: Any) -> bool:
    """Whether two tensors share memory, at whatever level they are."""
    while isinstance(a, Value):
        a = a._inner
    while isinstance(b, Value):
        b = b._inner
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    if a.layout is not torch.strided or b.layout is not torch.strided or a.device != b.device:
        return a is b
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


class CopySlices(Node):
    """History of a base after a write to one of its views: the gradient passes everywhere but through the written part."""

    namespace = AccumulateGrad.namespace
    __slots__ = ("geometry", "inner_node", "others", "self_edge", "view")

    def __init__(self, level: Any, base_edge: Any, base: Any, view: View, node: Node, self_edge: int | None) -> None:
        self.others = tuple(i for i in range(len(node.edges)) if i != self_edge)
        super().__init__(level, (base_edge, *(node.edges[i] for i in self.others)), ((base.shape, base.dtype),))
        self.geometry = (base.shape, base.stride(), base.storage_offset())
        self.view = View.__new__(View)
        self.view.chain = view.chain  # the chain alone: the base itself would close a cycle
        self.inner_node = node
        self.self_edge = self_edge

    def apply(self, grads: list[Any], wanted: Any, create_graph: bool) -> tuple[Any, ...]:
        from .engine import conform

        g = grads[0]
        shape, stride, _ = self.geometry
        base = g.new_empty_strided(shape, stride) if dense(shape, stride) else torch.empty_like(g, memory_format=torch.contiguous_format)
        base = base.copy_(g)
        part = self.view.replay(base)
        inner_wanted = None
        if wanted is not None:
            inner_wanted = [False] * len(self.inner_node.edges)
            for k, i in enumerate(self.others):
                inner_wanted[i] = wanted[k + 1]
            if self.self_edge is not None:
                inner_wanted[self.self_edge] = wanted[0]
        out = self.inner_node.apply([part.clone()], inner_wanted, create_graph)
        if self.edges[0] is not None:
            own = out[self.self_edge] if self.self_edge is not None else None
            if own is None:
                part.zero_()
            else:
                part.copy_(conform(own, (part.shape, part.dtype), self.inner_node, 0))
        return (base if self.edges[0] is not None else None, *(out[i] for i in self.others))

    def release(self) -> None:
        self.inner_node.release()


def refuse(level: Any, what: Any) -> None:
    """A value of ``level`` is written into a tensor that does not belong to it and that could not carry its history."""
    raise InplaceError(
        f"{what} writes a value of {level.what} into a tensor that does not belong to that transform, so the result could not be "
        "differentiated. Make the buffer with new_zeros, zeros_like or clone of an input, or pass it to the transformed function "
        "as an input."
    )


def reshell(v: Any) -> None:
    """After a change of the inner tensor's sizes, strides or storage, make the value's own shell follow."""
    inner = v._inner
    if type(inner) is torch.Tensor:  # the shell shares the storage: point it there, below dispatch
        with torch._C._DisableTorchDispatch():
            v.set_(inner.untyped_storage(), inner.storage_offset(), inner.shape, inner.stride())
        return
    fresh = v._level.wrap(inner, v._edge)
    state = dict(v.__dict__)
    torch.utils.swap_tensors(v, fresh)
    v.__dict__.update(state)


def _foreach(level: Any, op: Op, args: Any, kwargs: Any) -> Any:
    """``_foreach_add_`` and its like: without history, straight; with it, refused until they have records."""
    inner, edges, *_ = level.collect(op, args)
    if edges is not None and _grad_enabled():
        raise InplaceError(f"{op.func} mutates a list of tensors of which some require grad; use the single-tensor op, or no_grad")
    return level.outward(op, inner, unwrap_kwargs(level, kwargs))


def _detach_(level: Any, op: Op, target: Any, inner: Any, edges: Any, kwargs: Any) -> Any:
    if target._view is not None:
        raise RuntimeError(
            "Can't detach views in-place. Use detach() instead. If you are using DistributedDataParallel, this is not allowed."
        )
    target._edge = None
    target._req = False
    target._generation += 1
    return target


def _metadata(level: Any, op: Op, target: Any, inner: Any, edges: Any, kwargs: Any) -> Any:
    """Ops that change sizes or strides of ``self`` in place: on a value without history the inner tensor changes and the shell follows."""
    if edges is not None and _grad_enabled():
        raise InplaceError(f"{op.func} changes the geometry of a tensor that requires grad; use the out-of-place op")
    level.outward(op, inner, unwrap_kwargs(level, kwargs))
    reshell(target)
    target._accumulator = None  # the next one knows the new shape; as in torch, what was recorded before belongs to the old tensor
    return target


_METADATA = {
    "detach_": _detach_,
    **dict.fromkeys(("resize_", "resize_as_", "set_"), _metadata),
}

__all__ = ["CopySlices", "View", "aliases", "check_write", "mark_view", "rebase", "refuse", "refuse_rebase", "reshell", "run"]
