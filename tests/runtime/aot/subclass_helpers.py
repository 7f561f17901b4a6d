"""What the tests of tensor subclasses share: classes of tensors that consist of others, and a
program beside torch's eager run of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import runtime
from runtime.aot import aot_function, nop


class Scaled(torch.Tensor):
    """A tensor that holds its elements divided by a number, which is its context:
    ``elements * scale``. Elementwise ops multiply first."""

    @staticmethod
    def __new__(cls, elements: torch.Tensor, scale: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, elements.shape, strides=elements.stride(), dtype=elements.dtype
        )

    def __init__(self, elements: torch.Tensor, scale: Any) -> None:
        self.elements = elements
        self.scale = scale

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["elements"], self.scale

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], scale: Any, size: Any, stride: Any
    ) -> Scaled:
        return Scaled(inner["elements"], scale)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        context = next(t.scale for t in pytree.tree_leaves(args) if isinstance(t, Scaled))
        scale = float(context["by"] if isinstance(context, dict) else context)
        args = pytree.tree_map_only(Scaled, lambda t: t.elements * scale, args)
        out = func(*args, **(kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, lambda t: Scaled(t / scale, context), out)


class Opaque(torch.Tensor):
    """A tensor that handles its own calls and does not say what it consists of."""

    @staticmethod
    def __new__(cls, inside: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inside.shape, dtype=inside.dtype)

    def __init__(self, inside: torch.Tensor) -> None:
        self.inside = inside

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return func(*pytree.tree_map_only(Opaque, lambda t: t.inside, args), **(kwargs or {}))


def numbers(shape: Sequence[int], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def two(shape: Sequence[int] = (2, 3), seed: int = 0) -> TwoTensor:
    return TwoTensor(numbers(shape, seed), numbers(shape, seed + 1))


def nested(shape: Sequence[int] = (2, 3), seed: int = 0) -> TwoTensor:
    """A TwoTensor of TwoTensors."""
    return TwoTensor(two(shape, seed), two(shape, seed + 2))


def compiled(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return aot_function(f, nop, **options)


def parts(t: Any) -> list[Any]:
    """What ``t`` consists of, with brackets around each TwoTensor."""
    t = runtime.unwrap(t) if isinstance(t, runtime.Tensor) else t
    return (
        ["(", *parts(t.a), *parts(t.b), ")"]
        if isinstance(t, TwoTensor)
        else [t.detach() if isinstance(t, torch.Tensor) else t]
    )


def same(a: Any, b: Any) -> bool:
    """Whether two values are of one class, with parts that are."""
    one, other = parts(a), parts(b)
    return len(one) == len(other) and all(
        torch.allclose(x, y, atol=1e-6)
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
        else x == y
        for x, y in zip(one, other, strict=True)
    )


def outcome(
    run: Callable[..., Any], f: Callable[..., Any], args: Sequence[torch.Tensor]
) -> tuple[list[Any], list[Any], list[Any]]:
    """(results, arguments afterwards, gradients of the sum of all results) of ``f``, by the engine
    whose ``grad`` is ``run``. What is differentiated is ``args``; ``f`` takes their products with
    one, which may be written to."""
    given = [t * 1 for t in args]
    results = pytree.tree_leaves(f(*given))
    sums = [r.sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    grads = (
        run(sums, args, [torch.ones_like(s.detach()) for s in sums], allow_unused=True)
        if sums
        else []
    )
    return results, given, list(grads)


def as_in_torch(
    f: Callable[..., Any], make: Callable[[], Sequence[torch.Tensor]], **options: Any
) -> Callable[..., Any]:
    """``f`` compiled, after its call gave what torch's eager call of ``f`` gives."""
    g = compiled(f, **options)
    as_eager(g, f, make)
    return g


def as_eager(
    g: Callable[..., Any], f: Callable[..., Any], make: Callable[[], Sequence[torch.Tensor]]
) -> None:
    """Assert that ``g`` on tensors of the runtime gives what ``f`` gives on torch's."""
    torchs = outcome(torch.autograd.grad, f, [t.requires_grad_() for t in make()])
    ours = outcome(runtime.autograd.grad, g, [runtime.wrap(t, requires_grad=True) for t in make()])
    for expected, found in zip(torchs, ours, strict=True):
        assert len(expected) == len(found)
        for x, y in zip(expected, found, strict=True):
            assert same(x, y), (x, y)
            if isinstance(x, torch.Tensor):
                assert x.requires_grad == y.requires_grad
    assert [t._version for t in torchs[1]] == [t._version for t in ours[1]]
