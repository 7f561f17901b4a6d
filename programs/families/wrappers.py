"""Subclasses that wrap a tensor, and the same of the tensor inside.

    written_through_view(x, y, made="wrapped_twice")     # of a wrapper of a wrapper, with gradients

``made`` says how x is wrapped: once, twice, inside an ``autograd.Function``, as a parameter of a
module, or as a subclass that overrides functions instead of wrapping. An op of a wrapper is the op
of the tensor inside, so that no result, gradient or write may differ.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from programs.families.tools import Results, Row, detached, leaves_of, weighted


class Wrapper(Tensor):
    """A tensor that holds another one, and passes each op on to it."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        made: Wrapper = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=inner.device,
            requires_grad=False,
        )
        made.held = inner
        return made

    def __init__(self, inner: Tensor) -> None:
        """Take the argument of the constructor."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        inner_args, inner_kwargs = pytree.tree_map_only(
            Wrapper, lambda one: one.held, (args, dict(kwargs or {}))
        )
        found = func(*inner_args, **inner_kwargs)
        if func._schema.name.endswith("_") and not func._schema.name.endswith("__"):
            return args[0]  # a write returns the tensor that it was given
        return pytree.tree_map_only(Tensor, Wrapper, found)


class Overriding(Tensor):
    """A subclass that sees each function of torch and passes it on."""

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        return super().__torch_function__(func, types, args, given)  # type: ignore[no-untyped-call]


class _Wrapping(torch.autograd.Function):
    """Wrap a plain tensor. The gradient is what lies in the wrapper."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return Wrapper(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _plain(gradients[0])


class _Holding(nn.Module):
    """A module whose parameter is a wrapper."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(Wrapper(x))


def _plain(x: Any) -> Tensor:
    """Return the plain tensor inside of all wrappers."""
    while isinstance(x, Wrapper):
        x = x.held
    return x.as_subclass(Tensor) if isinstance(x, Overriding) else x


def _wrapped(x: Tensor, made: str) -> tuple[Tensor, Tensor]:
    """Return x as the program gets it, and the leaf whose gradient is asked for."""
    if made == "by_function":
        (leaf,) = leaves_of(x)
        return _Wrapping.apply(leaf), leaf  # type: ignore[no-untyped-call]
    if made == "overridden":
        leaf = x.detach().clone().as_subclass(Overriding).requires_grad_()
        return leaf, leaf
    if made == "parameter":
        held = _Holding(x.detach().clone()).weight
        return held, held
    once = Wrapper(x.detach().clone())
    leaf = (Wrapper(once) if made == "wrapped_twice" else once).requires_grad_()
    return leaf, leaf


# --- programs -------------------------------------------------------------------------------------
#
# Each is a function of a wrapped tensor (3, 4) and a plain one (3, 4).


def _written_through_view(x: Tensor, y: Tensor) -> Tensor:
    z = x * 1
    z[1].mul_(3)
    z.t()[0].add_(y[:, 0].sum())
    return z * x


def _several_views(x: Tensor, y: Tensor) -> list[Tensor]:
    z = x.sin()
    return [
        z.view(4, 3) * 2,
        z[:, 1:3].t(),
        z.diagonal(),
        z.unsqueeze(0).expand(2, 3, 4),
        *z.chunk(2),
    ]


def _copied(x: Tensor, y: Tensor) -> Tensor:
    other = copy.deepcopy(x.detach())
    other.mul_(2)
    return x * other


def _second(x: Tensor, y: Tensor) -> Tensor:
    (first,) = torch.autograd.grad((x.sin() * y).sum(), x, create_graph=True)
    return first * x


def _hooked(x: Tensor, y: Tensor) -> Tensor:
    z = x * y
    z.register_hook(lambda gradient: gradient * 3)
    return z.exp()


def _assigned(x: Tensor, y: Tensor) -> Tensor:
    z = x * 1
    z[0] = y[0]
    z[:, 2] = 4.0
    return z * y


def _retained(x: Tensor, y: Tensor) -> list[Tensor]:
    z = x * 2
    a, b = z.split([1, 3], 1)
    return [a * b, torch.cat([b, a], 1) @ y.t()]


def _layered(x: Tensor, y: Tensor) -> Tensor:
    hidden = nn.functional.linear(y, x, x[:, 0])
    return nn.functional.layer_norm(hidden, (3,)).relu()


def _without_grad(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        part = (x * 2).clone()
        part.add_(y)
    return x * part


PROGRAMS: dict[str, Callable[[Any, Tensor], Any]] = {
    "multiplied": lambda x, y: x * y + 1,
    "from_the_right": lambda x, y: y - x,
    "times_matrix": lambda x, y: x @ y.t(),
    "reduced": lambda x, y: [x.sum(0), x.amax(1), x.std(), x.logsumexp(1)],
    "softmax": lambda x, y: x.softmax(1) * y,
    "chosen": lambda x, y: torch.where(y > 0, x, x * x),
    "indexed": lambda x, y: x[torch.tensor([2, 0, 2])] * y,
    "gathered": lambda x, y: x.gather(1, torch.tensor([[1, 1], [3, 0], [2, 2]])),
    "to_single": lambda x, y: x.float() * 2,
    "sorted": lambda x, y: x.sort(1).values * y,
    "written_through_view": _written_through_view,
    "views": _several_views,
    "copied": _copied,
    "second_derivative": _second,
    "hooked": _hooked,
    "assigned": _assigned,
    "split": _retained,
    "layer": _layered,
    "without_grad": _without_grad,
}


def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return the tensor that is wrapped and a plain one."""
    made = ("wrapped", "wrapped_twice", "by_function", "overridden", "parameter")
    return [
        {"args": [{"shape": [3, 4]}, {"shape": [3, 4]}], "kwargs": {"made": word}} for word in made
    ]


def _row(f: Callable[[Any, Tensor], Any]) -> Row:
    def program(x: Tensor, y: Tensor, *, made: str) -> Results:
        given, leaf = _wrapped(x, made)
        found = f(given, y)
        parts = list(found) if isinstance(found, (list, tuple)) else [found]
        (gradient,) = torch.autograd.grad(weighted(parts), leaf)
        kinds = torch.tensor([type(one) is type(given) for one in parts if made != "parameter"])
        return *(_plain(one.detach()) for one in parts), _plain(gradient), kinds

    def definition(x: Tensor, y: Tensor, *, made: str) -> Results:
        (leaf,) = leaves_of(x)
        found = f(leaf, y)
        parts = list(found) if isinstance(found, (list, tuple)) else [found]
        (gradient,) = torch.autograd.grad(weighted(parts), leaf)
        kinds = torch.tensor([True for _ in parts if made != "parameter"])
        return *detached(parts), gradient, kinds

    return Row(program, definition)


globals().update({name: _row(f) for name, f in PROGRAMS.items()})
