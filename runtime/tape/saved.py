"""Stores tensors between forward and backward: each as a tensor with its version, or as the result
of a pack hook.

A node saves *inner* tensors, never values of its own level, so no saved tensor leads back to the
node. The history of a saved tensor is that of the argument or output that it came from. The node
finds it by its edges and passes it as ``edge``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..rules.ops import DIFFERENTIABLE
from ..rules.record import NestedMeta
from ..seam.ambient import Ambient
from ..seam.levels import Level
from ..seam.user_code import settled, watched
from ..torch_private.native_autograd import (
    innermost_saved_hooks,
    pop_saved_hooks,
    push_saved_hooks,
    set_saved_hooks_tracing,
)
from .node_names import op_name
from .node_protocol import History

FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors "
    "after they have already been freed). A backward pass frees what was saved for it. "
    "Specify retain_graph=True in the first one to keep it."
)

Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], torch.Tensor]


def _is_of_checkpoint(hooks: tuple[Pack, Unpack]) -> bool:
    """Return whether ``hooks`` are those of torch's checkpoint."""
    return getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint"


class _Hooks(Ambient):
    """Pack and unpack hooks of this thread."""

    def __init__(self) -> None:
        # The result of an in-place op while it is packed. The dispatcher will increment its version
        # after that.
        self.about_to_bump: torch.Tensor | None = None
        self.stack: list[tuple[Pack, Unpack]] = []
        # the error message while hooks are forbidden
        self.disabled: str | None = None

    def push(self, pack: Pack, unpack: Unpack) -> None:
        """Make this pair the innermost one. Raise if hooks are forbidden."""
        if not (callable(pack) and callable(unpack)):
            raise settled(
                TypeError(
                    "saved_tensors_hooks(): incompatible function arguments: "
                    f"two callables are needed, got {pack!r}, {unpack!r}"
                )
            )
        if self.disabled is not None:
            raise settled(RuntimeError(self.disabled))
        self.stack.append((pack, unpack))

    def innermost(self) -> tuple[Pack, Unpack] | None:
        """Return the pair that applies: the last of ``stack``, else the last that a program has
        pushed by ``torch.autograd.graph`` without the drop-in.

        That of ``torch.utils.checkpoint`` counts what torch's own nodes save. Without it the
        values are the same. Functions that write to older tensors would write twice: a call
        with our values, and one in a capture, is ours (``dropin/intercept.py``).
        """
        if self.stack:
            return self.stack[-1]
        hooks: tuple[Pack, Unpack] | None = innermost_saved_hooks(True)
        if hooks is None or _is_of_checkpoint(hooks):
            return None
        return hooks

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Hide what is saved from all hooks of now, in this block. Those that the block sets see
        what is saved here, and nothing of torch's own nodes, which the parameters in it make."""
        before, self.stack = self.stack, []
        of_torch: list[tuple[Pack, Unpack]] = []
        # torch shows the innermost pair alone, so the others come up one by one
        while hooks := innermost_saved_hooks(True):
            pop_saved_hooks()
            of_torch.append(hooks)
        were_left_out = set_saved_hooks_tracing(True)
        try:
            yield
        finally:
            set_saved_hooks_tracing(were_left_out)
            self.stack = before
            for hooks in reversed(of_torch):
                push_saved_hooks(*hooks)


HOOKS = _Hooks()


class Saved:
    """One saved tensor with the version that it had."""

    __slots__ = ("tensor", "version")

    tensor: torch.Tensor
    version: int

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        try:
            self.version = tensor._version
        except RuntimeError:
            refuse_inference(tensor)
            raise

    def check(self, edge: History | None) -> torch.Tensor:
        """Return the tensor. Raise if it was written to since it was saved. ``edge``: its history,
        for the message.

        The present version may be smaller than the expected one. A saved result of an in-place op
        expects that the dispatcher counts the write, but the dispatcher does not if the op ran on a
        resolved copy of a lazily conjugated or negated target."""
        tensor = self.tensor
        if tensor._version > self.version:
            raise settled(modified(tensor, self.version, edge))
        return tensor


def modified(tensor: torch.Tensor, version: int, edge: History | None = None) -> RuntimeError:
    """Return the error for a tensor of history ``edge`` that was saved at ``version`` and written
    to since."""
    source = ""
    # the node of a leaf has no edges, and torch names no op for a leaf
    if edge is not None and edge[0].edges:
        source = f", which is output {edge[1]} of {op_name(edge[0])},"
    return RuntimeError(
        "one of the variables needed for gradient computation has "
        f"been modified by an inplace operation: [{_type_name(tensor)} "
        f"{NestedMeta.of(tensor) or list(tensor.shape)}]{source} is at version {tensor._version}; "
        f"expected version {version} instead. Write to a clone, or after the backward pass. "
        "torch.autograd.set_detect_anomaly(True, check_nan=False) shows which call saved it."
    )


def refuse_inference(tensor: object) -> None:
    """Raise if ``tensor`` is an inference tensor: it has no version."""
    if isinstance(tensor, torch.Tensor) and tensor.is_inference():
        raise settled(
            RuntimeError(
                "Inference tensors cannot be saved for backward. Compute with a clone that is made "
                "outside of inference mode, or make the tensor under no_grad instead."
            )
        ) from None


class Packed:
    """A saved tensor that went through a pack hook. ``unpack(payload)`` returns the tensor."""

    __slots__ = ("payload", "unpack")

    def __init__(self, payload: object, unpack: Unpack) -> None:
        self.payload = payload
        self.unpack = unpack


def _type_name(tensor: torch.Tensor) -> str:
    """Return the type of ``tensor`` as torch's error shows it, ``torch.FloatTensor``."""
    if tensor.layout not in (torch.strided, torch.sparse_coo):  # `type()` knows no other
        return f"{tensor.layout} {tensor.dtype}"
    if tensor.dtype.is_complex:  # `type()` has no legacy name for these
        kind = tensor.type().rpartition(".")[2].removesuffix("Tensor")
        return f"{tensor.device.type.upper()}{kind}Type"
    return tensor.type()


def save(level: Level, tensor: torch.Tensor, edge: History | None) -> Saved | Packed:
    """Save inner tensor ``tensor`` of history ``edge``. It is packed if this thread has hooks and
    ``level`` is the eager session."""
    if level.packs and (hooks := HOOKS.innermost()) is not None:
        return pack(level, tensor, edge, *hooks)
    return store(level, tensor)


def store(level: Level, tensor: torch.Tensor) -> Saved:
    """Save inner tensor ``tensor``. An inference tensor has no version, so a transform saves a copy
    of it. The session refuses it, as torch."""
    if tensor.is_inference() and not level.packs:
        tensor = tensor.clone()
    return Saved(tensor)


def restore(level: Level, s: Saved | Packed, edge: History | None) -> torch.Tensor:
    """Return the inner tensor that ``s`` has saved. ``edge``: its history, for the message.

    ``RuntimeError`` if it was written to since, ``TypeError`` if the unpack hook returns anything
    but a tensor.
    """
    if type(s) is Saved:
        return s.check(edge)
    assert type(s) is Packed
    with level.packing():
        unpacked = watched(s.unpack, s.payload)
    if not isinstance(unpacked, torch.Tensor):
        raise settled(
            TypeError(
                "Output of saved tensor unpack_hook expected to be a Tensor but got result "
                f"of type {type(unpacked).__name__}"
            )
        )
    # no version is checked, as in torch: nobody can follow one through the hooks
    return level.lowered(unpacked)  # type: ignore[no-any-return]


def present(level: Level, tensor: torch.Tensor, edge: History | None) -> Any:
    """Return inner tensor ``tensor`` as users see it: a value of ``level`` with history ``edge``,
    or the leaf itself if it is one.

    An integer gets no history, even if it is the output of a node: else ops on it would be
    recorded.
    """
    if edge is not None and tensor.dtype not in DIFFERENTIABLE:
        edge = None
    if edge is not None:
        leaf = getattr(edge[0], "variable", None)
        # a leaf that has got other data since is not what was saved
        if leaf is not None and leaf._inner is tensor:
            return leaf
    return level.wrap(tensor, edge)


def pack(
    level: Level, tensor: torch.Tensor, edge: History | None, hook: Pack, unpack: Unpack
) -> Packed:
    """Save inner tensor ``tensor`` of history ``edge`` as what ``hook`` returns for it. ``unpack``
    gets that back. ``RuntimeError`` if the hook writes to the tensor."""
    version = tensor._version
    # without grad mode, as in torch: what a hook computes would be recorded for nobody
    with torch.no_grad(), level.packing():
        payload = watched(hook, present(level, tensor, edge))
    if tensor._version != version:
        raise settled(
            RuntimeError(
                "A saved tensor pack hook is modifying its input in place. "
                "The program goes on computing with that tensor: change a clone and return it."
            )
        )
    return Packed(payload, unpack)


class SavedTensor:
    """One saved tensor to inspect or to register hooks on: ``node._raw_saved_self``. It has the
    interface of ``torch._C._autograd.SavedTensor``.

    ``node`` stores it in ``slots[index]``. ``edge``: its history.
    """

    __slots__ = ("_edge", "_index", "_node", "_slots")
    _node: Any
    _slots: list[Any]
    _index: int
    _edge: Any

    def __init__(self, *_: object) -> None:
        raise settled(
            RuntimeError("Trying to create a SavedTensor object from Python is forbidden.")
        )

    @classmethod
    def of(cls, node: object, slots: list[object], index: int, edge: History | None) -> SavedTensor:
        """Return the handle of ``slots[index]``. Users cannot make one, as in torch."""
        handle = cls.__new__(cls)
        handle._node, handle._slots, handle._index, handle._edge = node, slots, index, edge
        return handle

    @property
    def data(self) -> Any:
        """Return the stored object: the tensor itself, or the result of the pack hook."""
        saved = self._slots[self._index]
        if type(saved) is Packed:
            return saved.payload
        if saved is None:
            return None
        return present(self._node.level, saved.tensor, self._edge)

    @property
    def unpack_hook(self) -> Unpack | None:
        """Return the unpack hook, None if the tensor is not packed."""
        saved = self._slots[self._index]
        if type(saved) is not Packed:
            return None
        return saved.unpack

    def unpack(self) -> Any:
        """Return the tensor as users of the backward pass see it."""
        self._require_saved(FREED)
        saved = self._slots[self._index]
        if saved is None:
            return None
        tensor = restore(self._node.level, saved, self._edge)
        return present(self._node.level, tensor, self._edge)

    def register_hooks(
        self, pack_hook: Pack | None = None, unpack_hook: Unpack | None = None
    ) -> None:
        """Store ``pack_hook(tensor)`` in place of the tensor. The backward pass gets
        ``unpack_hook`` of that. At most once per tensor."""
        if not (callable(pack_hook) and callable(unpack_hook)):
            raise settled(
                TypeError(
                    "register_hooks(): incompatible function arguments: "
                    f"two callables are needed, got {pack_hook!r}, {unpack_hook!r}"
                )
            )
        self._require_saved(
            "Calling register_hooks on a saved tensor after it has been freed. "
            "Register before the backward pass, or keep what is saved with retain_graph=True."
        )
        saved = self._slots[self._index]
        if saved is None:
            raise settled(
                RuntimeError(
                    "Calling register_hooks on a saved tensor with value None is forbidden"
                )
            )
        if type(saved) is Packed:
            raise settled(
                RuntimeError(
                    "Calling register_hooks on a saved tensor whose hooks have already been "
                    "set. It takes one pair."
                )
            )
        level = self._node.level
        # the slot is of the node, so the backward pass finds the packed tensor
        self._slots[self._index] = pack(
            level, saved.check(self._edge), self._edge, pack_hook, unpack_hook
        )

    def _require_saved(self, message: str) -> None:
        # a pass that frees the node drops its list, and this handle still has it
        if self._node.saved is None:
            raise settled(RuntimeError(message))
