"""What a call gives and leaves: elements, gradients, strides, flags, versions, shared memory.

    seen = of_torch(arguments, versions, results)
    seen.differs(expected, tolerance)

A script of a finding has this file, so it imports torch alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

Tensor = torch.Tensor
Gradients = Callable[..., Sequence[Tensor | None]]


class Differentiating(Protocol):
    """The level of a target. `gradients`: of a loss by leaves, None for those it does not have."""

    @property
    def gradients(self) -> Gradients: ...

    @property
    def is_twice_differentiable(self) -> bool: ...


@dataclass
class Observation:
    """The results of a call, as numbers and texts that two runs can compare."""

    # lists of numbers, by what they belong to, such as ``result 0``
    values: dict[str, list[float]] = field(default_factory=dict)
    # texts, by what they belong to
    facts: dict[str, str] = field(default_factory=dict)

    def differs(self, other: Observation, tolerance: float) -> str | None:
        """Return what is another here, as ``gradient of leaf 0: got [1.0], expected [2.0]``. None
        if nothing is. What one of both has not is left out."""
        for name, expected in other.values.items():
            if name in self.values and not _are_close(self.values[name], expected, tolerance):
                return f"{name}: got {_text(self.values[name])}, expected {_text(expected)}"
        for name, fact in other.facts.items():
            if name in self.facts and self.facts[name] != fact:
                return f"{name}: got {self.facts[name]}, expected {fact}"
        return None


def _are_close(got: Sequence[float], expected: Sequence[float], tolerance: float) -> bool:
    if len(got) != len(expected):
        return False
    pairs = zip(got, expected, strict=True)
    return all(math.isclose(*pair, rel_tol=tolerance, abs_tol=tolerance) for pair in pairs)


def _text(numbers: Sequence[float]) -> str:
    shown = [f"{number:.5g}" for number in numbers[:12]]
    if len(numbers) > 12:
        shown.append("…")
    return f"[{', '.join(shown)}]"


def flat(results: Any, kind: type | tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    """Yield what is of a class in nested results, such as tensors, each with its place."""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(results, kind):
        yield "", results
    elif isinstance(results, Mapping):
        parts = results.items()
    elif isinstance(results, (list, tuple)):
        parts = enumerate(results)
    for key, value in parts:
        for place, x in flat(value, kind):
            yield f".{key}{place}", x


def weight_of(result: int, i: int) -> float:
    """Return the weight of number `i` of a result in the loss: of few digits, and not 0.

    Weights differ, so that a gradient that belongs to another element or result shows.
    """
    return ((3 * result + 2 * i) % 5 - 2) / 2 + 0.25


def of_torch(
    arguments: Mapping[str, Tensor], versions: Mapping[str, int], results: Any
) -> Observation:
    """Return what a call with tensors of torch gives. `versions`: of the arguments, before it."""
    seen = Observation()
    objects = {id(argument): f"argument {name}" for name, argument in arguments.items()}
    owners: list[tuple[range, str]] = []
    # The first to have a memory is its owner. A result is told by the argument whose memory it
    # shows.
    for name, x in arguments.items():
        _owner(owners, x, f"argument {name}")
        seen.values[f"argument {name} afterwards"] = _numbers(x)
        seen.facts[f"whether argument {name} was written to"] = str(version(x) > versions[name])
        seen.facts[f"geometry of argument {name}"] = _geometry(x)
    for place, x in flat(results, Tensor):
        name = f"result {place[1:]}"
        owner = "none"
        if x.numel():
            owner = _owner(owners, x, name)
        seen.values[name] = _numbers(x)
        seen.facts[f"dtype and requires_grad of {name}"] = f"{x.dtype} {x.requires_grad}"
        seen.facts[f"class of {name}"] = type(x).__name__
        seen.facts[f"memory of {name}"] = f"{owner}, object {objects.setdefault(id(x), name)}"
        seen.facts[f"geometry of {name}"] = _geometry(x)
    add_numbers(seen, results)
    return seen


def add_numbers(seen: Observation, results: Any) -> None:
    """Add the plain numbers among results."""
    for place, number in flat(results, (int, float)):
        seen.values[f"number {place[1:]}"] = [float(number)]


def version(x: Tensor) -> int:
    """Return how often the tensor was written to. One of inference mode does not count."""
    return 0 if x.is_inference() else x._version


def _numbers(x: Tensor) -> list[float]:
    """Return the elements in order, two numbers of each complex one."""
    x = x.detach().resolve_conj().resolve_neg()
    return list(map(float, _flat_reals(x).tolist()))


def _flat_reals(x: Tensor) -> Tensor:
    """Return the numbers in order, two of each complex element."""
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return x.reshape(-1)


def _owner(owners: list[tuple[range, str]], x: Tensor, name: str) -> str:
    """Return the name of the first whose memory `x` shows, which may be `x` itself.

    By addresses, since a tensor that an array has lent its memory has another storage.
    """
    storage = x.untyped_storage()
    start, size = storage.data_ptr(), storage.nbytes()
    for memory, owner in owners:
        if start < memory.stop and memory.start < start + size:
            return owner
    owners.append((range(start, start + size), name))
    return name


def _geometry(x: Tensor) -> str:
    """Return the shape and those strides that say something."""
    # No step is made along a size of 1 or in an empty tensor, so ops leave any stride there.
    pairs = zip(x.shape, x.stride(), strict=True)
    strides = [stride * (size > 1 and x.numel() > 0) for size, stride in pairs]
    return f"{tuple(x.shape)} {tuple(strides)}"


def add_gradients(
    seen: Observation, leaves: Sequence[Tensor], results: Any, level: Differentiating
) -> None:
    """Add the gradients of the results, and those of the gradients if the level has them."""
    tensors = [x for _, x in flat(results, Tensor)]
    # A result keeps its number where others have no gradient: the model has weights by it too.
    with_grad = [(index, x) for index, x in enumerate(tensors) if x.requires_grad]
    first = _by_leaves(with_grad, leaves, level)
    _add(seen, "gradient", leaves, first)
    if level.is_twice_differentiable:
        whole = _in_one(leaves, first)
        second = _by_leaves([(0, x) for x in whole if x.requires_grad], leaves, level)
        _add(seen, "second gradient", leaves, second)


def _by_leaves(
    pairs: Iterable[tuple[int, Tensor]], leaves: Sequence[Tensor], level: Differentiating
) -> Sequence[Tensor | None]:
    """Return the gradients of the weighted sum of some results: None for each leaf if there is no
    result.
    """
    loss = _loss(pairs)
    return [None] * len(leaves) if loss is None else level.gradients(loss, leaves)


def _in_one(leaves: Sequence[Tensor], found: Sequence[Tensor | None]) -> list[Tensor]:
    """Return all numbers of the gradients as one tensor, whose weights the model counts through."""
    whole = []
    for leaf, gradient in zip(leaves, found, strict=True):
        # without a gradient there are zeros, so that the numbers behind it keep their weights
        if gradient is None:
            gradient = torch.zeros_like(leaf)
        whole.append(_flat_reals(gradient))
    return [torch.cat(whole)]


def _loss(pairs: Iterable[tuple[int, Tensor]]) -> Tensor | None:
    """Return the sum of all numbers of numbered tensors, each times its weight."""
    total: Tensor | None = None
    for number, x in pairs:
        whole = _flat_reals(x)
        weights = [weight_of(number, index) for index in range(whole.numel())]
        part = (whole * torch.tensor(weights, dtype=whole.dtype)).sum()
        total = part if total is None else total + part
    return total


def _add(
    seen: Observation, word: str, leaves: Sequence[Tensor], found: Sequence[Tensor | None]
) -> None:
    """Add the gradients of leaves to what was seen, by a name that begins with `word`."""
    for index, (leaf, gradient) in enumerate(zip(leaves, found, strict=True)):
        if gradient is not None:
            seen.values[f"{word} of leaf {index}"] = _numbers(gradient)
        else:
            # A gradient that is absent is compared as zeros, which the model has there.
            count = leaf.numel() * (2 if leaf.is_complex() else 1)
            seen.values[f"{word} of leaf {index}"] = [0.0] * count
