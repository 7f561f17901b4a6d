"""Describes the value of a node in ``node.meta``: ``val``, an abstract tensor, and ``tensor_meta``.

A graph outlives its trace, so it must not refer to the tensors that the trace computed. ``val`` is
a ``FakeTensor``: shape, strides, dtype and device without memory. It is created at once, so that a
tensor of the trace is freed when the program drops it. Of a trace that is ``late`` only the
geometry is noted at once. A program that is called once, by :mod:`runtime.aot.compilers.staged`,
does without the abstract values, which take a tenth of the time of its capture.

:func:`run_abstractly` computes with such tensors, for a program that runs on them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.passes.shape_prop import TensorMetadata

from ..rules.ops import op_of
from ..rules.record import parameters
from ..seam import factories
from ..seam.ambient import Ambient
from ..seam.call_types import Kernel
from ..seam.locks import lock_of
from ..seam.shape_errors import with_zeros
from ..seam.shells import Geometry, faithful_geometry
from ..seam.user_code import settle_error
from ..torch_private.fake_tensors import FakeTensor, FakeTensorMode, UnsupportedOperatorException
from ..torch_private.mode_stacks import (
    unseen_by_handlers,
    without_dispatch_to_python,
    without_modes,
)
from ..torch_private.native_tensors import (
    as_installed,
    close_memory,
    make_subclass,
    set_conj,
    set_neg,
)
from .graph_edits import add_call
from .raising_calls import HAS_INTEGERS, INTEGERS

_META = torch.device("meta")
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def faked(mode: FakeTensorMode, tensor: torch.Tensor, **options: Any) -> FakeTensor:
    """Return ``mode.from_tensor(tensor, **options)``. For it torch reads all that ``tensor`` has,
    such as ``.grad``. A program that is captured around this trace does not."""
    with unseen_by_handlers():
        return mode.from_tensor(tensor, **options)


class _Thread(Ambient):
    """The fake mode that the traces on real values of one thread share. To create it takes as long
    as to create twenty abstract values."""

    def __init__(self) -> None:
        self.mode: FakeTensorMode | None = None
        # by device, the attributes of a fake tensor
        self.first: dict[torch.device, dict[str, Any]] = {}


_THREAD = _Thread()


class AbstractValues:
    """Make the abstract values of one graph."""

    def __init__(self, mode: FakeTensorMode | None, late: bool = False) -> None:
        if mode is None and _THREAD.mode is None:
            with without_dispatch_to_python():
                _THREAD.mode = FakeTensorMode(allow_non_fake_inputs=True)
        # the fake mode of the values; by default that of this thread
        self.mode: FakeTensorMode = mode or _THREAD.mode  # type: ignore[assignment]
        self._first: dict[torch.device, dict[str, Any]] = {} if mode is not None else _THREAD.first
        # Whether the values of plain tensors that calls return wait for :meth:`complete`. Any
        # thread may call that.
        self.late = late
        self._noted: list[tuple[fx.Node, Geometry]] = []
        self._lock = lock_of(self, "_lock")

    def item(self, node: fx.Node, place: object, abstract: Any) -> fx.Node:
        """Return the node of the result at ``place`` of the call at ``node``, see
        :func:`rewrapped`; of its only result, ``node`` itself."""
        if place is None:
            return node
        # a tensor in a list among several results
        if isinstance(place, tuple):
            first, second = place
            return self.item(self.item(node, first, abstract), second, abstract[first])
        item = add_call(node.graph, operator.getitem, (node, place))
        # where the call comes from, and nothing of its value
        item.meta.update(
            (key, value)
            for key, value in node.meta.items()
            if key not in ("val", "tensor_meta", "unbacked_bindings")
        )
        self.describe(item, abstract[place])
        return item

    def describe(self, node: fx.Node, value: Any, geometry: Geometry | None = None) -> Any:
        """Write what is known of ``value``, the result of ``node``, to its ``meta``. Returns the
        abstract value, or None if it is late. ``geometry``: that of ``value``, if it is known."""
        if (
            self.late
            and type(value) is torch.Tensor
            and node.op == "call_function"
            and _is_plain_strided(value)
        ):
            self._noted.append((node, geometry or faithful_geometry(value)))
            if value.dtype in INTEGERS:
                node.meta[HAS_INTEGERS] = True
            return None
        abstract = self.of(value)
        node.meta["val"] = abstract
        if isinstance(abstract, torch.Tensor):
            node.meta["tensor_meta"] = _metadata_of(value)
        return abstract

    def complete(self) -> None:
        """Make the abstract values that are late."""
        with self._lock:
            for node, geometry in self._noted:
                node.meta["val"] = abstract = self._fake_of(geometry)
                node.meta["tensor_meta"] = _metadata_of(abstract)
            self._noted.clear()

    def of(self, value: object) -> Any:
        """Return ``value`` with an abstract tensor in place of each tensor. None for a tensor that
        has no abstract form."""
        if isinstance(value, FakeTensor):
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, list):
            return list(map(self.of, value))
        if isinstance(value, tuple):
            return tuple(map(self.of, value))
        return value

    def snapshot(self, value: torch.Tensor) -> object:
        """Return a copy of an abstract tensor whose sizes are about to change in place."""
        return self._tensor(value)  # `of` returns a fake tensor itself

    def _tensor(self, tensor: torch.Tensor) -> object:
        """Return the abstract tensor of one that is not abstract, or another one like it."""
        if not _is_plain_strided(tensor):
            return self._other_layout(tensor)
        return self._fake_of(faithful_geometry(tensor))

    def _fake_of(self, geometry: Geometry) -> torch.Tensor:
        """Return the fake tensor of a geometry, which is shape, strides, offset, dtype and
        device."""
        arguments, bits = geometry
        shape, stride, offset, _, dtype, _, device = arguments[:7]
        with without_dispatch_to_python():
            like = factories.empty_strided(shape, stride, dtype=dtype, device=_META)
            if offset:
                like = _shift(like, offset)
            first = self._first.get(device)
            if first is None:
                fake: torch.Tensor = FakeTensor(self.mode, like, device)
            else:  # the constructor takes four times as long
                fake = as_installed(make_subclass)(
                    FakeTensor, like, False, dispatch_device=True, device_for_backend_keys=device
                )
                fake.__dict__.update(first)
                close_memory(fake)
            if bits is not None:
                set_conj(fake, bits[0])
                set_neg(fake, bits[1])
        if first is None:
            self._first[device] = dict(fake.__dict__)
        return fake

    def _other_layout(self, tensor: torch.Tensor) -> object:
        """Return the fake tensor of one that is not strided. None if torch has none, as for some
        sparse layouts."""
        with without_modes():
            try:
                return faked(self.mode, tensor.detach(), static_shapes=True)
            except (NotImplementedError, RuntimeError, AssertionError):
                return None


def _is_plain_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def _metadata_of(tensor: torch.Tensor) -> TensorMetadata:
    """Return the ``tensor_meta`` of a value, as ``ShapeProp`` of torch writes it."""
    if tensor.layout is not torch.strided:
        return TensorMetadata(tensor.shape, tensor.dtype, False, (), None, tensor.is_quantized, {})
    shape = tensor.shape
    # a question for the memory format of symbolic sizes would become a guard
    if any(type(size) is not int for size in shape):
        return TensorMetadata(shape, tensor.dtype, False, tensor.stride(), None, False, {})
    memory_format = None
    if tensor.is_contiguous():
        memory_format = torch.contiguous_format
    elif tensor.dim() in _CHANNELS_LAST and tensor.is_contiguous(
        memory_format=_CHANNELS_LAST[tensor.dim()]
    ):
        memory_format = _CHANNELS_LAST[tensor.dim()]
    return TensorMetadata(shape, tensor.dtype, False, tensor.stride(), memory_format, False, {})


def _shift(t: torch.Tensor, offset: int | torch.SymInt) -> torch.Tensor:
    """Return a tensor like ``t`` with that storage offset."""
    shape, stride = t.shape, t.stride()
    size = offset + 1 + sum(size * s for size, s in zip(shape, stride, strict=True))
    return factories.empty((size,), dtype=t.dtype, device=_META).as_strided(shape, stride, offset)


# --- calls on fake tensors ------------------------------------------------------------------------
#
# These may be calls of ops without an abstract kernel of torch's:
# ``fractional_max_pool3d_backward``.

aten = torch.ops.aten
# draws from a generator, whose kernels take no sizes that are symbols, with the same ones from the
# default generator
_UNGIVEN = {
    aten.rand.generator: aten.rand.default,
    aten.randn.generator: aten.randn.default,
    aten.randint.generator: aten.randint.default,
    aten.randint.low_generator: aten.randint.low,
    aten.randperm.generator: aten.randperm.default,
}


def _drop_generator(func: object, kwargs: Mapping[str, object]) -> tuple[object, dict[str, object]]:
    """Return the call without its generator: nothing is drawn from it, and torch's decompositions
    refuse one."""
    others = {name: value for name, value in kwargs.items() if name != "generator"}
    if func in _UNGIVEN:
        return _UNGIVEN[func], others
    return func, {**others, "generator": None}


def run_abstractly(func: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
    """Return ``func(*args, **kwargs)`` on fake tensors, in their mode: by ``abstract`` of the
    record, by torch, or by the decomposition in it.

    Raises ``UnsupportedOperatorException`` if there is none of these.
    """
    if "generator" in kwargs:
        func, kwargs = _drop_generator(func, kwargs)
    op = op_of(func)
    record = op.record
    if record is not None and record.abstract is not None:
        places = map(op.arg_names.index, parameters(record.abstract))
        return record.abstract(*(op.argument(place, args, dict(kwargs)) for place in places))
    try:
        return func(*args, **kwargs)
    except UnsupportedOperatorException:
        if record is None or record.decomposition is None:
            raise
        return record.decomposition(*args, **kwargs)


def raise_as_kernel(func: Kernel, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raise the error of the kernel for tensors like these fake ones, if it has one, and settle it.

    Fake kernels raise errors of other classes with other texts, and some fail where the kernel does
    not. The tensors are zeros, so that an error of values would be raised for some of them only;
    but a fake kernel has refused their shapes.
    """
    try:
        with without_modes():
            func(
                *map(with_zeros, args),
                **{name: with_zeros(value) for name, value in kwargs.items()},
            )
    except NotImplementedError:  # no kernel of this device can run here
        return
    except Exception as error:
        settle_error(error)
        raise error from None
