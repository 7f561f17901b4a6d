"""Runs methods of the session's tensors directly on the inner tensor, where a pass through the
dispatcher would add nothing.

Example: ATen runs ``x[0, 1, 2]`` as three view ops, and each would arrive in
``__torch_dispatch__``. ``bool(x)`` is never recorded. Here each is one call on the inner tensor.
The tape gets the same nodes as from the parts. A write without history, such as an optimizer's
under ``no_grad``, is done on the inner tensor, and its version is counted.

Everything else goes to torch's own method: values of other classes, modes that need to see each
call, and forward mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..facts.lock import probe
from ..rules.ops import Op, op_of
from ..seam.literals import reading_method
from ..seam.scope import SCOPE
from ..seam.transforms_of_torch import innermost_of_torch
from ..seam.user_code import settled
from ..tape import view_history
from ..tape.foreign import recorded_by_torch
from ..tape.inplace import run, unrecorded
from ..tape.nodes import Edge
from ..tape.running import current_stand_in, is_recording
from ..tape.values import edge_of
from ..torch_private.global_settings import tracing_state
from ..torch_private.mode_stacks import number_of_dispatch_modes, number_of_function_modes
from ..torch_private.native_autograd import increment_version
from .composite import known_part, run_op
from .tensor import SESSION, Tensor

aten = torch.ops.aten
_SELECT, _SLICE = op_of(aten.select.int), op_of(aten.slice.Tensor)
_COPY, _FILL = op_of(aten.copy_.default), op_of(aten.fill_.Tensor)
_FILL_NUMBER = op_of(aten.fill_.Scalar)
# whether a number that is written to a part is a tensor in the graph, which has an edge to nothing
_NUMBERS_ARE_TENSORS = probe("written", "a number by an index").endswith(" None]")
_UNSQUEEZE, _ALIAS = op_of(aten.unsqueeze.default), op_of(aten.alias.default)
_CLONE = op_of(aten.clone.default)
_native_getitem: Any = torch.Tensor.__getitem__
_native_setitem: Any = torch.Tensor.__setitem__
_native_clone: Any = torch.Tensor.clone
_scalar_tensor = torch.scalar_tensor
_grad_enabled = torch.is_grad_enabled
_END = 2**63 - 1  # ATen's end of a slice without an end
_NUMBERS = frozenset((bool, int, float, complex))


def unseen() -> bool:
    """Return whether only the session's tape would see a call of its tensors: there is no mode, no
    stand-in, and no trace or transform of torch itself."""
    return (
        not number_of_dispatch_modes()
        and not number_of_function_modes()
        and current_stand_in() is None
        and tracing_state() is None
        and innermost_of_torch() is None
    )


def _dense(tensor: object) -> bool:
    """Return whether ``tensor`` is a strided plain tensor. A value with it inside shares its memory
    and version counter."""
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_nested


def _basic(index: tuple[object, ...]) -> bool:
    """Return whether ``index`` needs only view ops: integers, slices of integers with positive
    steps, None and at most one Ellipsis."""
    ellipses = 0
    for entry in index:
        # by type: True and False are ints, too, but as an index they are a mask
        if type(entry) is int or entry is None:
            continue
        if entry is Ellipsis:
            ellipses += 1
        elif type(entry) is not slice or not _is_plain_slice(entry):
            return False
    return ellipses < 2


def _is_plain_slice(entry: slice) -> bool:
    """Return whether the ends of a slice are integers and its step is positive."""
    for end in (entry.start, entry.stop):
        if end is not None and type(end) is not int:
            return False
    return entry.step is None or (type(entry.step) is int and entry.step >= 1)


def _n_indexed(index: tuple[object, ...]) -> int:
    """Count the dimensions that ``index`` names one by one."""
    return sum(entry is not None and entry is not Ellipsis for entry in index)


def _parts(
    index: tuple[Any, ...], shape: torch.Size, lone: bool
) -> list[tuple[Op, tuple[Any, ...]]]:
    """Return the view ops that ATen runs for an index, with their arguments after ``self``. In a
    tuple ATen leaves out a slice of everything. ``lone``: the index is no tuple."""
    parts: list[tuple[Op, tuple[Any, ...]]] = []
    sizes = iter(shape)
    skipped = len(shape) - _n_indexed(index)  # what an Ellipsis stands for
    # the dimension of the result so far: an integer removes one, so the next entry has the same
    dim = 0
    for place, entry in enumerate(index):
        if type(entry) is int:
            size = next(sizes)
            if not -size <= entry < size:
                raise settled(
                    IndexError(
                        f"index {entry} is out of bounds for dimension {place} with size {size}"
                    )
                )
            parts.append((_SELECT, (dim, entry)))
        elif entry is None:
            parts.append((_UNSQUEEZE, (dim,)))
            dim += 1
        elif entry is Ellipsis:
            # the entries behind it index the last dimensions
            for _ in range(skipped):
                next(sizes)
            dim += skipped
        else:
            size = next(sizes)
            start, stop, step = _ends_of(entry)
            if lone or start or stop < size or step != 1:
                parts.append((_SLICE, (dim, start, stop, step)))
            dim += 1
    return parts or [(_ALIAS, ())]


def _ends_of(entry: slice) -> tuple[int, int, int]:
    """Return the start, stop and step that ATen has for a slice."""
    stop = _END if entry.stop is None else entry.stop
    return entry.start or 0, stop, entry.step or 1


def _part(tensor: torch.Tensor, *index: Any) -> torch.Tensor:
    """Return ``tensor[index]``, as a step of a chain of views."""
    return tensor[index]


def _getitem(self: torch.Tensor, index: Any) -> object:
    """Return ``self[index]``, by one view of the inner tensor where that is enough."""
    if type(self) is Tensor and unseen() and not recorded_by_torch(self):
        inner = self._inner
        lone = type(index) is not tuple
        each = (index,) if lone else index
        if _dense(inner) and _basic(each):
            edge = edge_of(self) if is_recording() else None
            # recorded, an index of too many dimensions is left to torch, for its error
            if edge is None or _n_indexed(each) <= inner.dim():
                return _view(self, each, lone, edge)
    # not `each`: a list of lists is read as a tuple, but not inside a tuple
    return _native_getitem(self, index)


def _view(tensor: Any, index: tuple[Any, ...], lone: bool, edge: Edge | None) -> Any:
    """Return ``tensor[index]`` as a view of ``tensor``. ``edge``: that of ``tensor``, or None if
    nothing is recorded."""
    inner = tensor._inner
    if edge is None:
        inner = inner[index]
    else:
        for op, rest in _parts(index, inner.shape, lone):
            inner, edge = run_op(op, [inner, *rest], (edge,), 1)
    part = SESSION.wrap(inner, edge)
    view_history.follow(part, tensor, (_part, index, {}, None))
    return part


def _setitem(self: torch.Tensor, index: object, value: torch.Tensor | float) -> None:
    """Do ``self[index] = value``, by one write to the inner tensor where that is enough."""
    if not _set_inner(self, index, value):
        _native_setitem(self, index, value)


def _set_inner(self: torch.Tensor, index: Any, value: torch.Tensor | float) -> bool:
    """Do ``self[index] = value`` by one write to the inner tensor. Return whether that is
    enough."""
    if type(self) is not Tensor or not unseen() or (self._req and self._view is not None):
        return False
    each = index
    if type(index) is not tuple:
        each = (index,)
    if not _is_plain(self, value) or not _dense(self._inner) or not _basic(each):
        return False
    histories = _histories(self, value) if is_recording() else None
    if histories is not None:
        return _record_write(self, each, value, histories[0])
    if type(value) is Tensor:
        value = value._inner
    self._inner[index] = value
    unrecorded(self)
    return True


def _is_plain(target: object, value: Any) -> bool:
    """Tell whether ``value`` may be written to ``target`` without torch's own method: a number, or
    a dense tensor, neither seen by torch's engine."""
    kind = type(value)
    if _grad_enabled():
        # torch must see the write to pass its mark on
        is_seen = recorded_by_torch(target) or (kind is Tensor and recorded_by_torch(value))
        if is_seen:
            return False
    if kind in _NUMBERS:
        return True
    if kind is Tensor:
        return _dense(value._inner)
    return _dense(value) and not value.requires_grad


def _record_write(target: Any, index: tuple[object, ...], value: Any, edge: Any) -> bool:
    """Write ``value`` to ``target[index]`` and record it, as ATen does. ``edge``: that of
    ``target``. Return whether this is a write that can be done here."""
    inner = target._inner
    if _n_indexed(index) > inner.dim():
        return False
    part = target  # to which ATen writes if the index names no part
    if _parts(index, inner.shape, False)[0][0] is not _ALIAS:
        part = _view(target, index, False, edge)
    if type(value) in _NUMBERS and _NUMBERS_ARE_TENSORS:
        value = _scalar_tensor(value, dtype=inner.dtype, device=inner.device)
    op = _op_of_write(part, value)
    if op is None:
        return False
    run(SESSION, op, (part, value), {})
    increment_version([inner])  # as the dispatcher does after the call
    return True


def _op_of_write(part: torch.Tensor, value: torch.Tensor) -> Op | None:
    """Choose the op that writes ``value`` to ``part``. None if neither a copy nor a fill does."""
    if type(value) in _NUMBERS:
        return _FILL_NUMBER
    written = value._inner if type(value) is Tensor else value
    if part.shape == written.shape:
        return _COPY
    if written.dim() == 0 and written.device.type == "cpu":
        return _FILL
    return None


def _histories(target: object, value: object) -> tuple[object, ...] | None:
    """Return the edges of ``target``, of its base and of ``value``. None if there are none. While
    the caller refers to them, the ``AccumulateGrad`` nodes of leaves stay alive, so they need not
    be created again."""
    own, of_base = edge_of(target), view_history.base_edge(target)
    of_value = edge_of(value) if type(value) is Tensor else None
    if own is None and of_base is None and of_value is None:
        return None
    return own, of_base, of_value


def _clone(self: object, **kwargs: object) -> object:
    """Return ``self.clone(**kwargs)``, recorded without the dispatcher where that is enough."""
    if not kwargs and type(self) is Tensor and unseen() and not SCOPE.levels:
        part = known_part(self)
        if part is not None:
            inner, edge = part
            return SESSION.wrap(*run_op(_CLONE, [inner], (edge,), edge is not None))
    return _native_clone(self, **kwargs)


def _reader_of(native: Callable[..., object]) -> Callable[[Any], object]:
    """Return a method that reads the number in a tensor."""
    read = reading_method(native.__name__)

    @functools.wraps(native)
    def answer(self: object) -> object:
        if type(self) is Tensor and unseen():
            return native(self._inner)
        return read(self)

    return answer


def _writer_of(native: Callable[..., object]) -> Callable[..., object]:
    """Return an in-place method. It writes to the inner tensor if nothing is recorded and no view
    needs the history."""

    @functools.wraps(native)
    def write(self: object, *args: object, **kwargs: object) -> Any:
        """Write to the inner tensor and count the write, or call torch's own method."""
        if type(self) is not Tensor or not unseen() or not _dense(self._inner):
            return native(self, *args, **kwargs)
        plain, recording = None, _grad_enabled()
        if not recording or _no_history(self):
            plain = _plain_operands(args, kwargs, recording)
        if plain is None:
            return native(self, *args, **kwargs)
        native(self._inner, *plain, **kwargs)
        unrecorded(self)
        return self

    return write


def _plain_operands(
    args: tuple[object, ...], kwargs: dict[str, object], recording: bool
) -> list[object] | None:
    """Return ``args`` with the inner tensors of the session's. None if the write must be seen:
    an operand has a history, or is of another class."""
    plain = []
    for operand in args:
        if type(operand) is Tensor and (not recording or _no_history(operand)):
            operand = operand._inner
        elif isinstance(operand, (list, tuple)):
            return None  # it may hold tensors
        elif isinstance(operand, torch.Tensor) and (not _dense(operand) or operand.requires_grad):
            return None
        plain.append(operand)
    if kwargs and any(isinstance(argument, torch.Tensor) for argument in kwargs.values()):
        return None
    return plain


def _comparison_of(native: Callable[..., object]) -> Callable[..., object]:
    """Return a method whose result has no gradient."""

    @functools.wraps(native)
    def compare(self: object, *args: object, **kwargs: object) -> object:
        """Compare the inner tensors, or call torch's own method."""
        if type(self) is not Tensor or kwargs or not unseen():
            return native(self, *args, **kwargs)
        plain = [
            operand._inner if type(operand) is Tensor else operand for operand in (self, *args)
        ]
        # a subclass handles the call
        for operand in plain:
            if isinstance(operand, torch.Tensor) and type(operand) is not torch.Tensor:
                return native(self, *args)
        out = native(*plain)
        if type(out) is torch.Tensor:
            return SESSION.wrap(out)
        return out

    return compare


def _no_history(tensor: Any) -> bool:
    """Return whether ``tensor`` is no view and requires grad neither by our engine nor by
    torch's."""
    return (
        tensor._edge is None
        and not tensor._req
        and tensor._view is None
        and not recorded_by_torch(tensor)
    )


# initialization and optimizers write with these
_WRITES = (
    "__iadd__ __imul__ __isub__ __itruediv__ add_ addcdiv_ addcmul_ addmm_ addmv_ bernoulli_ "
    "clamp_ clamp_max_ clamp_min_ copy_ div_ exp_ exponential_ fill_ lerp_ log_ masked_fill_ "
    "mul_ neg_ normal_ pow_ random_ reciprocal_ relu_ round_ rsqrt_ sigmoid_ sign_ sqrt_ "
    "square_ sub_ tanh_ tril_ triu_ uniform_ zero_"
)

for _name, _method in (("__getitem__", _getitem), ("__setitem__", _setitem), ("clone", _clone)):
    setattr(Tensor, _name, _method)
for _name in ("__bool__", "__float__", "__index__", "__int__", "item"):
    setattr(Tensor, _name, _reader_of(getattr(torch.Tensor, _name)))
for _name in ("__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__", "all", "any"):
    setattr(Tensor, _name, _comparison_of(getattr(torch.Tensor, _name)))
for _name in _WRITES.split():
    setattr(Tensor, _name, _writer_of(getattr(torch.Tensor, _name)))
