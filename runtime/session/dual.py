"""Computes the tangents of tensors at level zero while a dual level of ``forward_ad`` is active.

A dual tensor is an ordinary :class:`runtime.Tensor`. So is its tangent, which is stored *on the
inner tensor* of the dual tensor. The tape saves inner tensors, so a saved tensor brings its tangent
along. Inside a dual level a backward pass runs on values, so its gradients get tangents: forward
over reverse. Tangents are computed by the rules of ``func.dual_level``, on values of level zero
with their histories. So a tangent can be differentiated: reverse over forward. A level for forward
mode would do neither. At an inner level the tape would save primals without tangents. At an outer
level it would not record tangents.

A thread inside a dual level has a :class:`DualSession` (``running.FORWARD``). Level zero passes
that thread's calls to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from ..errors import InplaceError, MissingRule
from ..func.tangent_rules import fit, tangent_rule
from ..rules.ops import INPLACE, OUT, VIEW, Op, decomposition_of, op_of, written_out
from ..rules.tensors import foreach
from ..seam.call_types import Arguments
from ..seam.levels import Value
from ..seam.literals import READ_OF_NUMBER, refuse_taken_number
from ..seam.memory import storage_of
from ..seam.scope import is_floating
from ..seam.surgery import GEOMETRY
from ..tape import inplace
from ..tape.running import computes_tangents
from ..tape.values import edge_of
from ..torch_private.dispatcher import OpOverload
from ..torch_private.native_autograd import is_forward_enabled, set_forward_enabled
from ..torch_private.native_functions import neg_view
from .session import Session
from .stand_in import StandIn


class fwd_grad_enabled:
    """Turn forward mode on or off. As a context manager: until the end of the ``with`` block."""

    def __init__(self, mode: bool) -> None:
        self.before = is_forward_enabled()
        set_forward_enabled(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        set_forward_enabled(self.before)


class Tangents:
    """The tangents of one dual level. An entry of another dual level is ignored, and ``close``
    removes all entries. So a tensor that outlives the level is its primal."""

    __slots__ = ("holders",)

    def __init__(self) -> None:
        # by id, because `==` of tensors compares their elements
        self.holders: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()

    def put(self, inner: torch.Tensor, tangent: object) -> None:
        """Give ``inner`` its tangent. None: it has no tangent, even if it is a view of
        a base with one."""
        inner._dual = (self, tangent)  # type: ignore[attr-defined]
        self.holders[id(inner)] = inner

    def close(self) -> None:
        """Remove the tangents of all tensors, unless another dual level has set them since."""
        for inner in list(self.holders.values()):
            if self.entered(inner):
                del inner._dual  # type: ignore[attr-defined]

    def entered(self, inner: torch.Tensor) -> bool:
        """Return whether :meth:`put` was called for ``inner``, also with None. False if another
        thread's dual level has called it since."""
        entry = getattr(inner, "_dual", None)
        return entry is not None and entry[0] is self

    def of(self, v: Any) -> Any:
        """Return the tangent of a value of level zero, or None. A view whose base got a tangent by
        a write takes its part of that tangent."""
        entry = getattr(v._inner, "_dual", None)
        if entry is not None and entry[0] is self:
            return entry[1]
        view = v._view
        if view is None:
            return None
        entry = getattr(view.base._inner, "_dual", None)
        if entry is None or entry[0] is not self or entry[1] is None:
            return None
        # the result is stored, and the first call may come under no_grad or in inference mode
        with torch.inference_mode(False), torch.enable_grad():
            tangent = view.replay(entry[1], v)
        self.put(v._inner, tangent)
        return tangent


class DualSession(StandIn):
    """Handles the session's calls of a thread inside a dual level. Each call also computes the
    tangents of its results and of its writes."""

    __slots__ = ("session", "tangents")
    sees_gradients = True

    def __init__(self, session: Session) -> None:
        self.session = session
        self.tangents = Tangents()

    def record(self, func: Any, args: Sequence[object], kwargs: dict[str, Any]) -> Any:
        """Run the call on the session's tape, without tangents."""
        return self.session.record(func, args, kwargs)

    def call(self, func: OpOverload, args: Sequence[object], kwargs: dict[str, Any]) -> Any:
        """Run a call of the session, and compute the tangents of its results if an argument has
        one."""
        op = op_of(func)
        is_on = computes_tangents(0)
        tangents: list[Any] = []
        any_tangent = False
        # a view shares its base's tangent, also where no tangents are computed
        if is_on or op.kind is VIEW:
            tangents, any_tangent = self._split(op, args)
        in_kwargs = is_on and self._any_dual(kwargs.values())
        if op.kind is OUT:
            if any_tangent or in_kwargs:
                raise NotImplementedError(
                    f"Trying to use forward AD with {op.base_name}_out that does not support it "
                    "because it is an out= function"
                )
            return self.record(func, args, kwargs)
        # formulas exist for positional arguments only
        if in_kwargs:
            return written_out(op, "jvp")(*args, **kwargs)
        if not any_tangent:
            return self._call_without_tangents(op, args, kwargs)
        if op.kind is INPLACE:
            return self._write(op, args, kwargs, tangents)
        return self._call_with_tangents(op, args, kwargs, tangents)

    def _call_without_tangents(self, op: Op, args: Arguments, kwargs: dict[str, object]) -> object:
        """Run a call whose arguments have no tangents. Like an unpacked primal, a view of it has
        none, now and later."""
        out = self.record(op.func, args, kwargs)
        if op.kind is not VIEW:
            return out
        base = args[0]
        if self._owns(base) and self.tangents.entered(base._inner):
            self._put_all(op, out, None)
        return out

    def _call_with_tangents(
        self, op: Op, args: Sequence[object], kwargs: dict[str, object], tangents: list[object]
    ) -> Any:
        """Run a call that writes nothing, and compute the tangents of its results."""
        func, record = op.func, op.record
        if record is None and op.composite:
            # its parts come here one by one
            return func.decompose(*args, **kwargs)
        if func is READ_OF_NUMBER:
            refuse_taken_number()
        # no result can have a tangent
        if len(op.nondiff) >= op.n_results:
            return self.record(func, args, kwargs)
        decomposed = _decomposition_for_tangents(op)
        if decomposed is not None:
            return decomposed(*args, **kwargs)
        out = self.record(func, args, kwargs)
        if op.kind is VIEW:
            # a view of the tangent, so that they share writes
            self._put_all(op, out, func(tangents[0], *args[1:], **kwargs))
            return out
        primals = list(map(self.without_tangent, args))
        of_results = tangent_rule(op)(op, primals, tangents, kwargs, self.without_tangent(out))
        self._put_all(op, out, unshared(of_results, tangents))
        return out

    def _owns(self, argument: object) -> bool:
        """Return whether ``argument`` is a value of level zero."""
        return isinstance(argument, Value) and argument._level is self.session

    def _tangent_of(self, argument: object) -> object:
        """Return the tangent of an argument, None if it is no value of level zero."""
        if not self._owns(argument):
            return None
        return self.tangents.of(argument)

    def _any_dual(self, args: Iterable[object]) -> bool:
        return any(self._tangent_of(argument) is not None for argument in args)

    def _split(self, op: Op, args: Arguments) -> tuple[list[Any], bool]:
        """Return the tangent of each argument (a list for a list), and whether there is any."""
        tangents: list[Any] = [None] * len(args)
        for index in op.tensor_args:
            if index >= len(args):
                break
            argument = args[index]
            if type(argument) is not list and type(argument) is not tuple:
                tangents[index] = self._tangent_of(argument)
                continue
            of_parts = list(map(self._tangent_of, argument))
            if any(part is not None for part in of_parts):
                tangents[index] = of_parts
        return tangents, any(tangent is not None for tangent in tangents)

    def without_tangent(self, argument: object) -> Any:
        """Return ``argument`` with its history and without its tangent. In a list or tuple: each
        element."""
        if isinstance(argument, torch.Tensor):
            if not isinstance(argument, Value):
                return self.session.wrap(argument.detach())
            if argument._level is not self.session:
                return argument
            return self.session.wrap(argument._inner.detach(), edge_of(argument))
        if type(argument) is list or type(argument) is tuple:
            return type(argument)(map(self.without_tangent, argument))
        return argument

    def _put_all(self, op: Op, out: Any, tangents: Any) -> None:
        """Give each result of ``op`` that is differentiable its tangent. None: they have none."""
        if isinstance(out, torch.Tensor):
            out = (out,)
            if not isinstance(tangents, (tuple, list)):
                tangents = (tangents,)
        if tangents is None:
            tangents = [None] * len(out)
        for index, output in enumerate(out):
            if not isinstance(output, Value) or index in op.nondiff:
                continue
            if not is_floating(output):
                continue
            tangent = tangents[index]
            # the tangent of a view shares memory with that of its base, and must not be copied
            if op.kind is not VIEW:
                tangent = _tangent_of_new(output, tangent)
            self.tangents.put(output._inner, tangent)

    def _write(
        self, op: Op, args: Sequence[object], kwargs: dict[str, object], tangents: list[object]
    ) -> Any:
        """Run an in-place op of arguments with tangents."""
        target = args[0]
        if not isinstance(target, torch.Tensor):
            return foreach.run(op, args, kwargs)
        if not self._owns(target):
            self.session.refuse_captured_write(op.func)
        if op.base_name in GEOMETRY and op.functional is not None:
            return self.record(op.func, args, kwargs)
        if op.base_name in inplace.METADATA:
            return self._detach(op, target, args, kwargs)
        return self._write_tangent(op, args, kwargs, tangents)

    def _write_tangent(
        self, op: Op, args: Arguments, kwargs: dict[str, object], tangents: list[object]
    ) -> object:
        """Run an in-place op of one tensor that writes numbers. The tangent of the target is
        written in place, too, so that tangents share memory where primals do."""
        target = args[0]
        functional = op.functional or op
        if functional.record is None:
            raise MissingRule(str(op.func), "jvp")
        # the formula needs the values from before the write
        before = [_copy_shared(self.without_tangent(argument), target) for argument in args]
        own = self.tangents.of(target)
        if own is not None:
            # the tape saves them, so they must not be written to
            tangents = [_copy_shared(tangent, own) for tangent in tangents]
        self.record(op.func, args, kwargs)
        after = self.without_tangent(target)
        if torch.is_grad_enabled():
            # the dispatcher counts this write after we return, so the tape must not save
            # the target itself
            after = after.clone()
        tangent = None
        if not functional.nondiff:
            tangent = tangent_rule(functional)(functional, before, tangents, kwargs, after)
        if tangent is not None:
            tangent = fit(tangent, target)
        self.assign(target, tangent, tangents)
        return target

    def _detach(
        self, op: Op, target: Any, args: Sequence[object], kwargs: dict[str, object]
    ) -> object:
        """Run ``detach_``, which drops the tangent. Raise for another op of ``METADATA``."""
        if op.base_name != "detach_":
            raise InplaceError(
                f"{op.func} changes the geometry of a tensor that has a tangent; "
                "use the out-of-place op"
            )
        self.record(op.func, args, kwargs)
        self.tangents.put(target._inner, None)
        return target

    def assign(self, target: Any, t: object, inputs: list[object]) -> None:
        """Give ``target``, which was written to, the tangent ``t``. None: zero. ``t`` may be
        one of ``inputs``."""
        tangents = self.tangents
        own = tangents.of(target)
        if own is not None and t is None:
            own.zero_()
            return
        if own is not None:
            own.copy_(t)
            return
        if t is None:
            return
        view = target._view
        # a view that was given no tangent (an unpacked primal) gets one of its own; else the base
        # gets one, and the view shows its part
        if view is None or tangents.entered(target._inner):
            tangents.put(target._inner, laid_out_like(unshared(t, inputs), target._inner))
            return
        base = view.base
        # created from t, so that it is batched if t is
        of_base = empty_like_laid_out(t, base._inner)
        tangents.put(base._inner, of_base)
        tangents.of(target).copy_(t)

    def copy_before_write(self, inner: torch.Tensor) -> torch.Tensor:
        """Return a copy as :meth:`Tape.copy_before_write`, with a copy of the tangent."""
        copy = inner.clone()
        entry = getattr(inner, "_dual", None)
        if entry is not None and entry[0] is self.tangents and entry[1] is not None:
            self.tangents.put(copy, entry[1].clone())
        return copy


def _decomposition_for_tangents(op: Op) -> Any:
    """Return the decomposition of an op that the tape would decompose, None if it has a formula.
    Intermediate tensors of the tape would have no tangents."""
    record = op.record
    if record is not None and record.vjp is not None:
        return None
    decomposed = decomposition_of(op, "jvp")
    if decomposed is None and (record is None or record.jvp is None):
        raise MissingRule(str(op.func), "jvp")
    return decomposed


def _storage_of(tensor: object) -> Any:
    """Return a number for the storage of a plain strided tensor, None for any other."""
    if type(tensor) is torch.Tensor and tensor.layout is torch.strided:
        return storage_of(tensor)._cdata
    return None


def _copy_shared(argument: object, written: Value) -> object:
    """Return ``argument``, or a copy of it if it shares memory with ``written``. In a list or
    tuple: each element."""
    if type(argument) is list or type(argument) is tuple:
        return type(argument)(_copy_shared(item, written) for item in argument)
    if not isinstance(argument, Value):
        return argument
    if argument is written or _storage_of(argument._inner) == _storage_of(written._inner):
        return argument.clone()
    return argument


def unshared(t: object, inputs: list[Any]) -> Any:
    """Return ``t``, or a copy if it shares memory with one of ``inputs``. Tangents are written in
    place, so no two values may share one."""
    if isinstance(t, (tuple, list)):
        return [unshared(tensor, inputs) for tensor in t]
    if t is None or not isinstance(t, Value):
        return t
    own = _storage_of(t._inner)
    for tensor in _tensors_in(inputs):
        if t is tensor or (own is not None and own == _storage_of(tensor._inner)):
            return t.clone()
    return t


def _tangent_of_new(output: Any, tensor: torch.Tensor | None) -> object:
    """Return the tangent of ``output``, a result with memory of its own, laid out as that.
    ``tensor``: by the formula of the op. None is zero, for which torch has a tangent of zeros."""
    if tensor is None:
        return torch.zeros_like(output.detach())
    return laid_out_like(fit(tensor, output), output._inner)


def _tensors_in(inputs: list[object]) -> Iterator[Any]:
    """Yield the tensors among ``inputs`` and in the lists among them."""
    for group in inputs:
        members = group if isinstance(group, list) else (group,)
        for member in members:
            if member is not None:
                yield member


def _have_same_strides(tensor: torch.Tensor, primal: torch.Tensor) -> bool:
    """Return whether the strides of both are equal wherever a step along them leads to another
    element."""
    if primal.numel() == 0:
        return True
    geometry = zip(primal.shape, tensor.stride(), primal.stride(), strict=True)
    return all(size == 1 or stride == required for size, stride, required in geometry)


def _have_same_layout(tensor: torch.Tensor, primal: torch.Tensor) -> bool:
    """Return whether views of both show the same elements: they have equal strides, offsets, lazy
    bits and sizes of storages."""
    if tensor.is_conj() != primal.is_conj() or tensor.is_neg() != primal.is_neg():
        return False
    if not _have_same_strides(tensor, primal):
        return False
    same_place = (
        tensor.storage_offset() == primal.storage_offset()
        and storage_of(tensor).nbytes() == storage_of(primal).nbytes()
    )
    return same_place or primal.numel() == 0


def empty_like_laid_out(tensor: Any, primal: torch.Tensor) -> Any:
    """Return zeros created from ``tensor``, with the dtype and geometry of ``primal`` in a storage
    of the same size, so that every view of ``primal`` can be taken of them. A view may have another
    dtype than its base: ``z.real``."""
    if primal.layout is not torch.strided:
        return tensor.new_zeros(primal.shape, dtype=primal.dtype)
    cells = storage_of(primal).nbytes() // primal.itemsize
    zeros = tensor.new_zeros(cells, dtype=primal.dtype).as_strided(
        primal.shape, primal.stride(), primal.storage_offset()
    )
    if primal.is_conj():
        zeros = zeros.conj()
    if primal.is_neg():
        zeros = neg_view(zeros)
    return zeros


def laid_out_like(tangent: Any, primal: torch.Tensor) -> object:
    """Return ``tangent`` if it has the memory layout of ``primal``, else a copy in that layout. For
    a value of an inner level (a batch of tangents) only the strides are compared, because it has no
    memory of its own."""
    if (
        type(primal) is not torch.Tensor
        or primal.layout is not torch.strided
        or tangent.layout is not torch.strided
    ):
        return tangent
    inner = tangent
    if isinstance(tangent, Value) and tangent._home is not None:
        inner = tangent._inner
    if type(inner) is torch.Tensor:
        same = _have_same_layout(inner, primal)
    else:
        same = _have_same_strides(inner, primal)
    if same:
        return tangent
    return empty_like_laid_out(tangent, primal).copy_(tangent)


__all__ = ["DualSession", "Tangents", "fwd_grad_enabled", "laid_out_like", "unshared"]
