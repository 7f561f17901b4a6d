"""Programs about the calls of what is compiled: other kinds of arguments and modes in turn,
gradients of some results, and draws.

As in :mod:`programs.boundaries`, each compiles a function or a module by
:func:`gen.targets.parts.compiled`, and calls it several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from gen.targets.parts import compiled

Results = tuple[Any, ...]


# --- kinds of calls -------------------------------------------------------------------------------


def numbers_in_turn(x: Tensor) -> Results:
    """sin(k a) + k, but its double where k > 1.2, for numbers of several kinds."""

    def g(a: Tensor, k: float) -> Tensor:
        y = (a * k).sin() + k
        return 2 * y if k > 1.2 else y

    f = compiled(g)
    return tuple(f(x, k) for k in (0.5, 0.75, 2, 3, 2.5, True, 1.0, -1.0))


def numbers_as_places(x: Tensor) -> Results:
    """Numbers that say a dimension, a size and a place."""
    f = compiled(lambda a, dim, *, start, size: a.cumsum(dim).narrow(0, start, size) * size)
    return (
        f(x, 0, start=1, size=2),
        f(x, 1, start=1, size=2),
        f(x, -1, start=0, size=3),
        f(x, 0, start=1, size=1),
    )


def shapes_in_turn(x: Tensor) -> Results:
    """a / rows + Σa of other sizes, ranks, layouts and dtypes in turn."""
    f = compiled(
        lambda a: (
            a / a.shape[0] + a.sum(),
            a.shape[-1],
            a.new_ones(a.shape[0]) * a.reshape(a.shape[0], -1).sum(1),
        )
    )
    wide = torch.cat([x, x])
    given = (
        x,
        x[:2],
        x.sin(),
        wide,
        x.t(),
        x[:, :1],
        x.reshape(-1),
        x[:1],
        x.to(torch.complex64),
        x[:2],
    )
    return tuple(part for a in given for part in f(a))


def gradients_in_turn(x: Tensor) -> Results:
    """a sin(b) with a gradient for both, one or none of the arguments, and under ``no_grad``; and
    whether the result has one."""
    f = compiled(lambda a, b: a * b.sin())
    y, z = x * 2, x.cos()
    found: list[Any] = []
    for a, b in (
        (y, z),
        (y.detach(), z),
        (y, z.detach()),
        (y.detach(), z.detach()),
        (y, z),
        (y, z.detach()),
    ):
        found.append(f(a, b))
        found.append(found[-1].requires_grad)
        with torch.no_grad():
            found.append(f(a, b))
            found.append(found[-1].requires_grad)
    return tuple(found)


def modes_inside(x: Tensor) -> Results:
    """What a program computes without gradient, and with one again, called with and
    without gradients."""

    def g(a: Tensor) -> Results:
        with torch.no_grad():
            b = a.exp()
            with torch.enable_grad():
                c = a.sin() * b
        return b * a, c, b, a.detach() * a

    f = compiled(g)
    first = f(x)
    with torch.no_grad():
        plain = f(x * 2)
    return *first, plain[0], plain[2], *f(x.cos()), *(part.requires_grad for part in first)


def trees(x: Tensor) -> Results:
    """Lists, dictionaries, None and keywords, as arguments and as results."""

    def g(
        pair: list[Tensor], *, named: dict[str, Any], last: Tensor | None = None
    ) -> dict[str, Any]:
        total = pair[0] * named["b"] + pair[1]
        return {
            "sum": total if last is None else total - last,
            "rest": [named["b"] * 2, None, (named["k"],)],
            "a": pair[1],
        }

    f = compiled(g)
    y = x.sin()
    found: list[Any] = []
    for k, last in ((1, None), (1, x), (2, None), (2, y)):
        made = f([x, y], named={"k": k, "b": x.cos()}, last=last)
        found += [
            made["sum"],
            made["rest"][0],
            made["rest"][2][0],
            made["a"] is y,
            made["rest"][1] is None,
        ]
    return tuple(found)


@dataclass
class Pair:
    """Two tensors and a number."""

    a: Tensor
    b: Tensor
    k: float


def objects(x: Tensor) -> Results:
    """Objects of a data class, as arguments and as results."""
    f = compiled(lambda pair, other: Pair(pair.a * other.b + pair.k, other.a, other.k * 2))
    y = x.sin()
    found: list[Any] = []
    for k in (1.0, 1.0, 2.0, 3.0):
        made = f(Pair(x, y, k), Pair(y, x.cos(), 2 * k))
        found += [made.a, made.b is y, made.k]
    return tuple(found)


def modes_in_turn(x: Tensor) -> Results:
    """A product and ones of the default dtype, called under autocast, with another default dtype
    and in inference mode."""

    def g(a: Tensor) -> tuple[Tensor, Tensor]:
        # nothing that rounds: a kernel of the compiler's own may round float32 otherwise
        return a @ a, a.abs() + torch.ones(a.shape[0]) / 3

    f = compiled(g)
    y, before = x.detach().to(torch.float32), torch.get_default_dtype()
    found = [*f(y), *f(y)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found += [*f(y), *f(y.sin())]
    try:
        torch.set_default_dtype(torch.float64)
        found += [*f(y), *f(x)]
    finally:
        torch.set_default_dtype(before)
    with torch.inference_mode():
        inside = f(x.detach() * 1)
    return *found, *(part.is_inference() for part in inside), *f(y.cos())


def of_two_parts(x: Tensor) -> Results:
    """Tensors that consist of two tensors, and plain ones, which are written to,
    added and transposed."""

    def g(a: Tensor, b: Tensor) -> Results:
        a.mul_(2)
        return (a + b).sin(), b.t(), a.sum(0)

    f = compiled(g)
    found: list[Any] = []
    for factor in (1.0, 2.0, 3.0):
        values = x.detach() * factor
        whole, other = TwoTensor(values, values.cos()), TwoTensor(values.sin(), values.exp())
        for part in (*f(whole, other), whole):
            found += [part.a, part.b] if isinstance(part, TwoTensor) else [part]
        found += f(values.cos(), values)
    return *found, x * 1


# --- gradients ------------------------------------------------------------------------------------


def some_results(x: Tensor) -> Results:
    """Results of which only some are used, in turn. √ of zeros beside them has a gradient that is
    infinite, and may not be asked for."""
    f = compiled(
        lambda a: (a.sin().exp(), (a - a.detach()).sqrt(), a.cos() * 2, torch.ones_like(a))
    )
    first, _, third, ones = f(x)
    return first * 2, f(x * 2)[2] * f(x * 2)[0], third.detach(), ones * x, f(x.cos())[2]


def hooks(x: Tensor) -> Results:
    """Hooks on an argument and on what is computed, which change gradients."""

    def g(a: Tensor) -> Tensor:
        b = a.sin()
        if b.requires_grad:
            b.register_hook(lambda grad: grad * 2)
        return b.exp()

    f = compiled(g)
    return f(x), f(x * 2), f(x.cos())


def hook_on_argument(x: Tensor) -> Results:
    """A hook that the program registers on its argument, which sees the gradient by
    the caller as well."""

    def g(a: Tensor) -> Tensor:
        if a.requires_grad:
            a.register_hook(lambda grad: grad.clamp(-0.5, 0.5))
        return a.sin()

    f = compiled(g)
    found: list[Any] = []
    for factor in (1.0, 2.0, 3.0):
        y = x * factor
        found += [f(y), y.exp()]
    return tuple(found)


def begun_inside(x: Tensor) -> Results:
    """An argument that requires grad from the middle of the program on."""

    def g(a: Tensor, b: Tensor) -> Tensor:
        c = a.sin()
        a.requires_grad_()
        return a * c * b

    f = compiled(g)
    found: list[Any] = []
    for _ in range(3):
        y = x.detach() * 1
        found += [y.requires_grad, f(y, x), y.requires_grad]
    return tuple(found)


class Clipped(torch.autograd.Function):
    """The identity, with a gradient of at most one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-1, 1)


def own_function(x: Tensor) -> Results:
    """A function with a derivative of its own between others."""
    f = compiled(lambda a: Clipped.apply(a.sin() * 3).exp())  # type: ignore[no-untyped-call]
    return f(x), f(x * 2), f(x.cos())


def deep(x: Tensor) -> Results:
    """Products and pointwise ops in a row, some of which are dear and some large."""

    def g(a: Tensor, w: Tensor) -> Tensor:
        for _ in range(2):
            h = (a @ w).softmax(-1)
            a = torch.cat([a, h.exp()], 1).tanh()[:, : a.shape[1]] + nn.functional.layer_norm(
                h @ w.t(), (a.shape[1],)
            )
        return a.cumsum(0).logsumexp(1)

    f = compiled(g)
    w = x.t() * 0.5
    return f(x, w), f(x * 2, w), f(x.sin(), w)


# --- draws ----------------------------------------------------------------------------------------


def draws(x: Tensor) -> Results:
    """Draws whose results are used forwards and backwards, beside what may be computed again."""

    def g(a: Tensor) -> Tensor:
        kept = nn.functional.dropout(a.sin().exp(), 0.4)
        noise = torch.rand_like(a) + torch.randn(a.shape, dtype=a.dtype, device=a.device)
        return (kept * noise.cos()).exp() * torch.bernoulli(torch.full_like(a, 0.5)).add(a)

    f = compiled(g)
    first, second = f(x), f(x)
    with torch.no_grad():
        plain = f(x)
    return first, second, plain, torch.rand_like(x) * x, f(x * 2)


def unused_draws(x: Tensor) -> Results:
    """Draws that nobody uses, and one that is written over, before one that is returned."""

    def g(a: Tensor) -> Results:
        torch.rand_like(a)
        b = a.sin().uniform_().mul(a)
        return b.exp(), a * torch.rand((), dtype=a.dtype)

    f = compiled(g)
    return *f(x), *f(x), *f(x * 2), torch.rand_like(x) * x


class Dropping(nn.Module):
    """Dropout between two products, with a rate that may change."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop((self.drop(x.sin()) @ x.t()).exp())  # type: ignore[no-any-return]


def dropping_module(x: Tensor) -> Results:
    """A module with dropout while it trains, with another rate, and after ``eval``."""
    module = Dropping()
    f = compiled(module)
    found = [f(x), f(x)]
    module.drop.p = 0.2
    found += [f(x), f(x)]
    module.eval()
    found += [f(x), f(x)]
    module.train()
    return *found, f(x), torch.rand_like(x) * x


@contextmanager
def _state_kept() -> Iterator[None]:
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def seeds_inside(x: Tensor) -> Results:
    """A program that sets a seed before it draws: each call draws the same, and what is drawn
    afterwards goes on from there."""

    def g(a: Tensor) -> Tensor:
        torch.manual_seed(11)
        return a * torch.rand_like(a)

    f: Callable[[Tensor], Tensor] = compiled(g)
    first = f(x)
    after = torch.rand_like(x) * x
    with _state_kept():
        second = f(x * 2)
    return first, after, second, torch.rand_like(x) * x, f(x)
