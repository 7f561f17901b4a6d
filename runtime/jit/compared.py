"""Values that are noted and compared later, for :mod:`.check`.

before = freeze([x, 2], known)
x.add_(1)
list(differences("the result", before, freeze([x, 2], known)))
# ["the result[0] is tensor([2.]), in eager mode tensor([1.])"]
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..aot.python_state.values import SIMPLE, attributes_of
from ..session.tensor import Tensor, unwrap
from ..torch_private.mode_stacks import unseen_by_handlers
from ..torch_private.native_autograd import set_version_counters

Frozen = Any
"""A value that later writes do not change: a constant, a known object, one of the classes below."""
# as those of torch.testing for float32: numbers may be read of such tensors
_RELATIVE, _ABSOLUTE = 1.3e-6, 1e-5
_SEQUENCES = (list, tuple, deque)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, eq=False)
class _Elements:
    """A tensor: a copy of its elements, and whether it requires grad."""

    value: torch.Tensor
    requires_grad: bool


@dataclass(frozen=True, eq=False)
class _Parts:
    """An object that a run has made: its class, and what it has."""

    kind: type
    items: Mapping[Any, Frozen]


def freeze(value: object, known: Callable[[Any], bool]) -> Frozen:
    """Note ``value``. ``known``: whether an object was there before, so that it is compared by
    identity. Tensors are compared by their elements."""
    return _freeze(value, known, {})


def _freeze(x: object, known: Callable[[Any], bool], seen: dict[int, object]) -> Frozen:
    if isinstance(x, torch.Tensor):
        return _Elements(_copy(x), x.requires_grad)
    if isinstance(x, SIMPLE) or id(x) in seen or (not isinstance(x, tuple) and known(x)):
        return x
    seen[id(x)] = x  # the object stays alive, so that no other one gets its identity
    parts = _parts_of(x).items()
    return _Parts(type(x), {key: _freeze(part, known, seen) for key, part in parts})


def _parts_of(x: object) -> dict[Any, Any]:
    """Return what a container holds, by key or position. Of a set only constants are compared, and
    how many items there are. Of an object: its attributes."""
    # keys that are tensors by identity: they compare by elements
    if isinstance(x, dict):
        return {
            id(key) if isinstance(key, torch.Tensor) else key: value for key, value in x.items()
        }
    if isinstance(x, _SEQUENCES):
        return dict(enumerate(x))
    if isinstance(x, (set, frozenset)):
        return {"items": len(x)} | {item: None for item in x if isinstance(item, SIMPLE)}
    return attributes_of(x) or {}


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), unseen_by_handlers():
        copied: torch.Tensor = unwrap(tensor).detach().clone()
        return copied


def differences(name: str, eager: Frozen, ours: Frozen) -> Iterator[str]:
    """Say what differs between two values that were noted. ``name``: how one comes to them."""
    if isinstance(eager, _Elements) and isinstance(ours, _Elements):
        if eager.requires_grad != ours.requires_grad:
            yield f"{name} has requires_grad={ours.requires_grad}, and not in eager mode"
        elif not _close(eager, ours):
            yield f"{name} is {_text(ours)}, in eager mode {_text(eager)}{_distance(eager, ours)}"
    elif isinstance(eager, _Parts) and isinstance(ours, _Parts):
        if eager.kind is not ours.kind or eager.items.keys() != ours.items.keys():
            yield f"{name} has other parts than in eager mode"
            return
        for key, value in eager.items.items():
            yield from differences(f"{name}[{key!r}]", value, ours.items[key])
    elif not _equal(eager, ours):
        yield f"{name} is {_text(ours)}, in eager mode {_text(eager)}"


def _close(a: _Elements, b: _Elements) -> bool:
    """Return whether two tensors have about the same elements. Those on ``meta`` have none."""
    if a.value.is_meta:
        return a.value.shape == b.value.shape and a.value.dtype is b.value.dtype
    try:
        torch.testing.assert_close(b.value, a.value, equal_nan=True)
    except AssertionError:
        return False
    return True


def _distance(a: _Elements, b: _Elements) -> str:
    """Return how far two tensors of one shape are apart, in words. Empty for others."""
    if a.value.shape != b.value.shape or a.value.numel() < 2 or a.value.is_meta:
        return ""
    apart = (a.value.to(torch.complex128) - b.value.to(torch.complex128)).abs()
    return f", and an element differs by {apart.nan_to_num(math.inf).max().item():.3g}"


def _equal(a: Any, b: Any) -> bool:
    """Return whether two values are one object, or constants of one class that are equal, of which
    numbers may differ as tensors do."""
    if a is b:
        return True
    if type(a) is not type(b) or not isinstance(a, SIMPLE):
        return False
    if isinstance(a, float):
        both_nan = a != a and b != b
        return both_nan or math.isclose(a, b, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return bool(a == b)


def _text(x: Frozen) -> str:
    if isinstance(x, _Elements):
        x = x.value
    if isinstance(x, torch.Tensor):
        shape = f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        return f"{x.item()!r}" if x.numel() == 1 else shape
    return repr(x) if isinstance(x, SIMPLE) else type(x).__name__


class TensorCopy:
    """A tensor, and what it had: elements, geometry, gradient, version, whether it requires grad.

    ``name``: how the graph comes to it. ``RuntimeError`` for a tensor that cannot be put back."""

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        self.tensor = tensor
        self.name = name
        self._plain = unwrap(tensor)
        if type(self._plain) not in _PLAIN or self._plain.layout is not torch.strided:
            raise RuntimeError(
                f"check= cannot copy {name}, a {type(self._plain).__name__} of layout "
                f"{self._plain.layout}. Leave check= out, or name it in ignore=(…)."
            )
        self._alias = self._plain.detach()  # the same memory, also if the tensor gets another one
        self._elements = _copy(tensor)
        self._version = self._plain._version
        self._requires_grad = tensor.requires_grad
        self._history = tensor.grad_fn
        self._grad = _grad_of(tensor)
        self._grad_copy = None if self._grad is None else TensorCopy(self._grad, f"{name}.grad")

    def outcome(self) -> Frozen:
        """Note what the tensor has now."""
        grad = _grad_of(self.tensor)
        noted = None if grad is None else _Elements(_copy(grad), grad.requires_grad)
        return _Parts(
            type(self),
            {"elements": _Elements(_copy(self.tensor), self.tensor.requires_grad), "grad": noted},
        )

    def restore(self) -> None:
        """Put everything back. ``RuntimeError`` if a write has given the tensor a history."""
        tensor, plain = self.tensor, self._plain
        if tensor.grad_fn is not self._history:
            raise RuntimeError(
                f"check= cannot put {self.name} back: a write has given it another history. Leave "
                "check= out, or pass its detach()."
            )
        with torch.no_grad(), unseen_by_handlers():
            if tensor.requires_grad != self._requires_grad:
                tensor.requires_grad_(self._requires_grad)
            if _geometry(plain) != _geometry(self._alias):
                plain.data = self._alias
            # not by the version: batch_norm writes its statistics and does not count that
            if not plain.is_meta and not torch.equal(plain, self._elements):
                plain.detach().copy_(self._elements)
            set_version_counters((plain,), (self._version,))
        if self._grad_copy is not None:
            self._grad_copy.restore()
        if _grad_of(tensor) is not self._grad:
            tensor.grad = self._grad


def _grad_of(tensor: torch.Tensor) -> torch.Tensor | None:
    if isinstance(tensor, Tensor):
        found: torch.Tensor | None = tensor._grad
        return found
    return tensor.grad if tensor.is_leaf else None


def _geometry(tensor: torch.Tensor) -> Sequence[Any]:
    return tensor.shape, tensor.stride(), tensor.data_ptr(), tensor.dtype
