"""Provides the names of ``torch.autograd.graph``: nodes and edges, and context managers for the
tensors that a graph saves.

    with save_on_cpu():
        loss = model(x).sum()       # what backward needs is on the CPU meanwhile
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import NestedTensor
from ..seam.ambient import Ambient
from ..seam.containers import tensors_of, written_arguments
from ..seam.levels import Value, bottom
from ..seam.memory import storage_of
from ..seam.scope import SCOPE
from ..tape.gradient_edges import GradientEdge, get_gradient_edge, register_multi_grad_hook
from ..tape.nodes import Node
from ..tape.saved import HOOKS
from ..tape.tape import Tape
from ..torch_private.dispatcher import OpOverload
from ..torch_private.mode_stacks import TorchDispatchMode
from ..torch_private.native_autograd import increment_version as native_increment_version

__all__ = [
    "GradientEdge",
    "Node",
    "allow_mutation_on_saved_tensors",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]


class saved_tensors_hooks:
    """Store every tensor that is saved for backward in this block as ``pack_hook(tensor)``. The
    semantics are those of ``torch.autograd.graph.saved_tensors_hooks``.

    >>> x = runtime.tensor([1.0, 2.0], requires_grad=True)
    >>> with saved_tensors_hooks(lambda tensor: tensor.half(), lambda packed: packed.float()):
    ...     y = x.exp()
    >>> y.grad_fn._raw_saved_result.data.dtype
    torch.float16

    When the tensor is needed, it is ``unpack_hook`` of the stored object. Of nested pairs only the
    innermost one applies. A pack hook must not return an output of the op itself, which would be a
    reference cycle, but its ``detach()``. ``RuntimeError`` inside a transform, whose saved tensors
    no hook sees.
    """

    for_transforms = False  # whether it may be entered there, without effect

    def __init__(
        self,
        pack_hook: Callable[[torch.Tensor], object],
        unpack_hook: Callable[[Any], torch.Tensor],
    ) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def __enter__(self) -> None:
        if not self.for_transforms and _inside_transform():
            raise RuntimeError(
                "hooks for saved tensors inside of grad, vjp or jacrev do not see what the "
                "transform saves. Leave them out, or differentiate by backward() or autograd.grad."
            )
        HOOKS.push(self.pack_hook, self.unpack_hook)

    def __exit__(self, *exc: object) -> None:
        HOOKS.stack.pop()


def _inside_transform() -> bool:
    """Return whether ``grad``, ``vjp`` or ``jacrev`` runs this code."""
    return any(isinstance(level, Tape) and not level.starts_leaves for level in SCOPE.levels)


class save_on_cpu(saved_tensors_hooks):
    """Store saved tensors on the CPU and copy them back to their device when needed. The semantics
    are those of ``torch.autograd.graph.save_on_cpu``.

    ``pin_memory``: store them in pinned memory, if ``device_type`` has any, and
    copy asynchronously.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        device_module = getattr(torch, device_type, torch.cuda)

        def pack(tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
            tensor = bottom(tensor)  # a hook gets a value, and what is stored is no value
            if not pin_memory:
                return tensor.device, tensor.cpu()
            # sparse memory cannot be pinned
            pinned = device_module.is_available() and not tensor.is_sparse
            packed = torch.empty(
                tensor.size(), dtype=tensor.dtype, layout=tensor.layout, pin_memory=pinned
            )
            return tensor.device, packed.copy_(tensor)

        def unpack(packed: tuple[torch.device, torch.Tensor]) -> torch.Tensor:
            device, tensor = packed
            return tensor.to(device, non_blocking=pin_memory)

        super().__init__(pack, unpack)


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Generator[None]:
    """Let hooks on saved tensors raise ``RuntimeError(error_message)`` in this block, as
    ``torch.autograd.graph.disable_saved_tensors_hooks``."""
    # hooks that are active already would see what the block saves
    if HOOKS.stack:
        raise RuntimeError(error_message)
    before = HOOKS.disabled
    HOOKS.disabled = error_message
    try:
        yield
    finally:
        HOOKS.disabled = before


def increment_version(tensor: torch.Tensor | Sequence[torch.Tensor]) -> None:
    """Count a write to the data of a tensor, or of several, that the dispatcher did not see, as
    ``torch.autograd.graph.increment_version``."""
    tensors = (tensor,) if isinstance(tensor, torch.Tensor) else tuple(tensor)
    for each in tensors:
        if isinstance(each, Value):
            each.count_write()
        else:
            native_increment_version([each])


class _Handle:
    """Stands in a graph for one version of a saved tensor."""

    __slots__ = ("__weakref__",)


class _AllowMutationOnSavedContext:
    """The tables of :func:`allow_mutation_on_saved_tensors`. An entry lives as long as the node
    with its handle.

    ``original``: the tensor of each handle, until the first write to it. ``cloned``: its copy from
    before that write. ``tid_to_weakhandle``: the handle of each tensor id, which is (storage,
    geometry, version). ``sid_to_tid``: the tensor ids of a storage."""

    def __init__(self) -> None:
        self.original: weakref.WeakKeyDictionary[_Handle, torch.Tensor] = (
            weakref.WeakKeyDictionary()
        )
        self.cloned: weakref.WeakKeyDictionary[_Handle, torch.Tensor] = weakref.WeakKeyDictionary()
        self.tid_to_weakhandle: weakref.WeakValueDictionary[object, _Handle] = (
            weakref.WeakValueDictionary()
        )
        self.sid_to_tid: dict[int, set[object]] = defaultdict(set)

    def pack(self, tensor: torch.Tensor) -> _Handle:
        """Return the handle of ``tensor`` at its present version. It is the pack hook."""
        tensor = bottom(tensor)
        sid = storage_of(tensor)._cdata
        if tensor.is_nested:
            raise NestedTensor
        # the version is part of the id: after a write the same tensor is another saved one
        tid = (
            sid,
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.is_conj(),
            tensor.is_neg(),
            tensor._version,
        )
        handle = self.tid_to_weakhandle.get(tid)
        if handle is None:
            handle = self.tid_to_weakhandle[tid] = _Handle()
            self.sid_to_tid[sid].add(tid)
            self.original[handle] = tensor
        return handle

    def unpack(self, handle: _Handle) -> torch.Tensor:
        """Return the tensor of ``handle``, or its copy. Raise if the block is left."""
        # a handle is in one of the two tables: `before_write` moves it
        tensor = self.cloned.get(handle)
        if tensor is None:
            tensor = self.original.get(handle)
        if tensor is None:
            raise AssertionError(
                "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context "
                "in which the graph was originally recorded."
            )
        return tensor

    def before_write(self, tensor: torch.Tensor) -> None:
        """Copy the tensors in the storage of ``tensor`` that graphs still need."""
        # the whole storage: a write through one view changes what was saved through another
        for tid in self.sid_to_tid.pop(storage_of(bottom(tensor))._cdata, ()):
            handle = self.tid_to_weakhandle.pop(tid, None)
            # None: the graph that had saved the tensor is gone
            if handle is not None:
                self.cloned[handle] = self.original.pop(handle).clone()

    def clear(self) -> None:
        """Forget all tensors."""
        for state in (self.original, self.cloned, self.tid_to_weakhandle, self.sid_to_tid):
            state.clear()


class _CopyBeforeWrite(TorchDispatchMode):
    """A mode that copies what graphs need of a tensor before a call writes to it."""

    def __init__(self, context: _AllowMutationOnSavedContext) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.context = context

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Any,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        for index, name in written_arguments(func._schema):
            self._before_write(args[index] if index < len(args) else kwargs.get(name))
        return func(*args, **kwargs)

    def _before_write(self, argument: object) -> None:
        """Copy what graphs need of an argument that is written to: a tensor or a list of them."""
        for tensor in tensors_of((argument,)):
            self.context.before_write(tensor)


class _Mutation(Ambient):
    """``allowed``: whether this thread copies a saved tensor when it is written to."""

    allowed = False


_MUTATION = _Mutation()


@contextmanager
def allow_mutation_on_saved_tensors() -> Generator[_AllowMutationOnSavedContext]:
    """Copy a tensor that was saved for backward before a write to it, in this block, as
    ``torch.autograd.graph.allow_mutation_on_saved_tensors``.

    >>> x = runtime.tensor([1.0, 2.0], requires_grad=True)
    >>> with allow_mutation_on_saved_tensors():
    ...     y = x * 1
    ...     loss = (y * y).sum()
    ...     _ = y.zero_()
    ...     loss.backward()
    >>> x.grad
    tensor([2., 4.])

    Forward and backward must run in the same ``with`` block. A later backward
    raises ``AssertionError``.
    """
    if _MUTATION.allowed:
        raise RuntimeError("allow_mutation_on_saved_tensors contexts cannot be nested")
    context = _AllowMutationOnSavedContext()
    with saved_tensors_hooks(context.pack, context.unpack), _CopyBeforeWrite(context):
        _MUTATION.allowed = True
        try:
            yield context
        finally:
            _MUTATION.allowed = False
            context.clear()
