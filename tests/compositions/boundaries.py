"""Programs about the boundary of what is compiled: what a compiled function shares with its caller and with its other calls.

Each compiles a function or a module by :func:`gen.targets.parts.compiled`, which is the function itself but in the stage ``aot.parts``.
Every function is called several times: the first call captures, the second one makes code, the next ones run it.
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


# --- arguments that share memory --------------------------------------------------------------------------------------------------


def _scaled(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(b.sum())
    return a + 3 * b


def same_twice(x: Tensor) -> Results:
    """a ← a Σb and then a + 3b, of different tensors, of the same one twice, and of different ones again. x (N, M); results and what is
    written to."""
    f = compiled(_scaled)
    a, b, c = x * 1, x.sin(), x.cos()
    return f(a, b), f(c, c), f(c, c), f(a, b), a, b, c


def overlapping_views(x: Tensor) -> Results:
    """The same of the first rows of x (N, M) and the last ones, which are mostly the same rows, by two cuts."""
    f = compiled(_scaled)
    y = x * 1
    return f(y[:-1], y[1:]), f(y[:-1], y[1:]), f(y[1:], y[:-1]), y


def two_views(x: Tensor) -> Results:
    """The same of x (N, M) and its transpose, a row of it, and itself."""
    f = compiled(lambda a, b: (a.mul_(b.sum()), b * 2))
    y = x * 1
    return *f(y, y.t()), *f(y[0], y), *f(y.t(), y), *f(y[0], y), y


def separate_histories(x: Tensor) -> Results:
    """a ← 2a of a tensor whose detached alias is read, and of the alias of one that is read."""
    f = compiled(lambda a, b: (a.mul_(2) + 1, b.cos()))
    y = x * 1
    first = f(y, y.detach())
    z = x * 1
    return *first, *f(z.detach(), z), *f(y, y.detach()), y * x, z * x


def shown_twice(x: Tensor) -> Results:
    """Writes to views that show each row but the first and the last one twice, at several places of a tensor."""

    def g(a: Tensor, b: Tensor) -> Tensor:
        a.add_(b.sum())
        return a * 2

    f = compiled(g)
    y = torch.cat([x, x.sin()])
    parts = [part.unfold(0, 2, 1) for part in (y[:3], y[:3], y[1:4], y[2:5])]
    return *(f(part, x) for part in parts), y


def alias_of_closed_over(x: Tensor) -> Results:
    """A tensor as argument and by the closure, which is read: a + 2y of y itself, a part of it and another tensor."""
    y = x * 1
    f = compiled(lambda a: a.sin() + 2 * y.sum())
    return f(y), f(y[1:]), f(x.cos()), f(y)


# --- results that share memory ----------------------------------------------------------------------------------------------------


def views_of_argument(x: Tensor) -> Results:
    """Views of an argument, to which the caller writes: the argument has the numbers."""
    f = compiled(lambda a: (a, a.view(-1), a[1:], a.t(), a.sum()))
    y = x * 1
    found = []
    for turn in range(3):
        same, flat, rest, turned, total = f(y)
        flat[0] = turn + 2.0
        rest.mul_(0.5)
        turned.add_(same.sum())
        found += [total * 1, same is y, rest._base is None]
    return *found, y, same * x, flat.sin()


def views_of_one_another(x: Tensor) -> Results:
    """A result and views of it, one of which the caller writes to: all change."""
    f = compiled(lambda a: (b := a.sin(), b[1:], b.t(), a.cos()))
    found: list[Any] = []
    for factor in (2.0, 3.0, 4.0):
        whole, rest, turned, apart = f(x * factor)
        rest.mul_(factor)
        found += [whole * 1, turned * 1, apart]
    return tuple(found)


def views_of_inside(x: Tensor) -> Results:
    """Two overlapping views of a tensor that is not returned, and one of them twice."""

    def g(a: Tensor) -> Results:
        b = a * 3
        rows = b[:-1]
        return rows, b[1:], rows

    f = compiled(g)
    found: list[Any] = []
    for _ in range(3):
        front, back, again = f(x)
        front.mul_(3)
        found += [front is again, back * 1, again + 1]
    return tuple(found)


def other_views_in_turn(x: Tensor) -> Results:
    """The argument itself, a view of it or a new tensor, as a number says; and whether memory is shared."""

    def g(a: Tensor, way: int) -> Tensor:
        return a if way == 0 else a.view(-1) if way == 1 else a.reshape(-1) * 1

    f = compiled(g)
    found: list[Any] = []
    for way in (0, 1, 2, 0, 1):
        y = x * 1
        f(y, way).mul_(2)
        found.append(y)
    return tuple(found)


def views_without_grad(x: Tensor) -> Results:
    """Views that are taken under ``no_grad``, of an argument and of what is computed: they have no gradient, and share memory."""

    def g(a: Tensor) -> Results:
        b = a * 3
        with torch.no_grad():
            return a[1:], b[:1], b

    f = compiled(g)
    found: list[Any] = []
    for _ in range(3):
        y = x * 1
        of_argument, of_computed, whole = f(y)
        with torch.no_grad():
            of_argument.mul_(2)
            of_computed.add_(1)
        found += [of_argument.requires_grad, of_computed.requires_grad, y * x, whole * x]
    return tuple(found)


# --- writes to arguments ----------------------------------------------------------------------------------------------------------


def written_in_turn(x: Tensor) -> Results:
    """Writes by autograd's eyes, without gradient and through an alias; how often a tensor was written; and what is returned is it."""

    def g(a: Tensor, b: Tensor, c: Tensor) -> Results:
        a.mul_(3).add_(b)
        with torch.no_grad():
            b.mul_(2)
        c.detach().add_(1)
        return a, (a * b * c).sum(0)

    f = compiled(g)
    found: list[Any] = []
    for factor in (1.0, 2.0, 3.0):
        a, b, c = x * factor, x.sin(), x.cos()
        before = [t._version for t in (a, b, c)]
        same, sums = f(a, b, c)
        found += [sums, same is a, *(t._version - n for t, n in zip((a, b, c), before, strict=True)), a, b * x, c * x]
    return tuple(found)


def other_shape(x: Tensor) -> Results:
    """An argument that gets another shape in place, in each call."""

    def g(a: Tensor) -> Tensor:
        a.t_().mul_(2)
        return a.sum(0)

    f = compiled(g)
    y = x * 1
    return f(y), y.sum(1) * 1, f(y), y.sum(1) * 1, f(y), f(y), y


def written_part(x: Tensor) -> Results:
    """A write to a part of an argument, in each of three layouts."""

    def g(a: Tensor) -> Tensor:
        a[1:].mul_(a[:1].exp())
        return a.sin().sum(0)

    f = compiled(g)
    found: list[Any] = []
    for _ in range(2):
        wide, turned = torch.cat([x, x], 1), x.t().contiguous().t() * 1
        every_second = wide[:, ::2]
        found += [f(turned), f(every_second), turned, wide, f(x * 2)]
    return tuple(found)


# --- closed-over tensors ----------------------------------------------------------------------------------------------------------


def state_of_closure(x: Tensor) -> Results:
    """A running mean s ← 0.9 s + 0.1 mean(a) in the closure, and a (1 + s); s is changed between calls, too."""
    state = torch.ones(x.shape[1], dtype=x.dtype, device=x.device)

    def g(a: Tensor) -> Tensor:
        with torch.no_grad():
            state.mul_(0.9).add_(a.mean(0), alpha=0.1)
        return a * (1 + state)

    f = compiled(g)
    first, second = f(x), f(x.sin())
    state.mul_(-2)
    return first, second, f(x), f(x), state


def history_in_closure(x: Tensor) -> Results:
    """A sum in the closure that gradients flow through, call after call."""
    total = x * 0.5

    def g(a: Tensor) -> Tensor:
        total.add_(a.sin())
        return total.sum(0) + a

    f = compiled(g)
    return f(x), f(x * 2), f(x), total * x


def rebound_weight(x: Tensor) -> Results:
    """A weight in the closure, which is another tensor later, and one that has no gradient."""
    weight = x.cos()

    def g(a: Tensor) -> Tensor:
        return a @ weight.t()

    f = compiled(g)
    found = [f(x), f(x)]
    weight = x.exp()
    found.append(f(x))
    weight = x.detach() * 2
    found += [f(x), f(x)]
    weight = x[:1] * 3
    return *found, f(x)


class Shift:
    """A number that a method adds."""

    def __init__(self, number: float) -> None:
        self.number = number

    def __call__(self, x: Tensor) -> Tensor:
        return self.added(x)

    def added(self, x: Tensor) -> Tensor:
        return x + self.number


def rebound_numbers(x: Tensor) -> Results:
    """Numbers, a function, a flag and an object of Python's state that change between calls."""
    shift = Shift(1.0)
    options: dict[str, Any] = {"rate": 0.5, "function": torch.sin, "twice": False}

    def g(a: Tensor) -> Tensor:
        y: Tensor = options["function"](a * options["rate"])
        return y * 2 if options["twice"] else shift.added(y)

    f = compiled(g)
    found = [f(x), f(x)]
    for change in ({"rate": 1.5}, {"rate": -2.0}, {"twice": True}, {"function": torch.exp, "twice": False}):
        options.update(change)
        found.append(f(x))
    shift.number = 3.0
    return *found, f(x), compiled(shift)(x)


# --- modules ----------------------------------------------------------------------------------------------------------------------


class Normed(nn.Module):
    """x minus a running mean of its columns, times a weight; plus one for each call so far, while it trains."""

    mean: Tensor
    calls: Tensor
    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.scale = 0.5
        self.register_buffer("mean", torch.zeros(weight.shape[0], dtype=weight.dtype, device=weight.device))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64, device=weight.device))
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        if self.training:
            with torch.no_grad():
                self.calls += 1
                self.mean.mul_(0.5).add_(x.mean(0), alpha=0.5)
        here = self
        return ((x - here.mean) @ self.weight * here.scale + self.calls,)


def module_in_turn(x: Tensor) -> Results:
    """A module with buffers, called while it trains, after ``eval``, with another constant, and while it trains again."""
    module = Normed(x[:1].t() * 1)
    f = compiled(module)
    found = [*f(x), *f(x.sin())]
    module.eval()
    found += [*f(x), *f(x)]
    module.scale = 2.0
    found += f(x)
    module.train()
    found += [*f(x), *f(x * 2)]
    return *found, module.mean, module.calls


def module_at_once(x: Tensor) -> Results:
    """The same module, compiled for an example."""
    module = Normed(x[:1].t() * 1)
    f = compiled(module, x)
    found = [*f(x.sin()), *f(x), *f(x * 2)]
    module.mean.add_(1)
    return *found, *f(x), module.mean, module.calls


def module_at_once_detached(x: Tensor) -> Results:
    """A module that was compiled for an example with a gradient, called with arguments that have none."""
    module = Normed(x[:1].t() * 1).eval()
    f = compiled(module, x)
    with torch.no_grad():
        plain = f(x.cos())[0]
    return *f(x.detach()), *f(x), plain, *f(x.sin())


# --- kinds of calls ---------------------------------------------------------------------------------------------------------------


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
    return f(x, 0, start=1, size=2), f(x, 1, start=1, size=2), f(x, -1, start=0, size=3), f(x, 0, start=1, size=1)


def shapes_in_turn(x: Tensor) -> Results:
    """a / rows + Σa of other sizes, ranks, layouts and dtypes in turn."""
    f = compiled(lambda a: (a / a.shape[0] + a.sum(), a.shape[-1], a.new_ones(a.shape[0]) * a.reshape(a.shape[0], -1).sum(1)))
    wide = torch.cat([x, x])
    given = (x, x[:2], x.sin(), wide, x.t(), x[:, :1], x.reshape(-1), x[:1], x.to(torch.complex64), x[:2])
    return tuple(part for a in given for part in f(a))


def gradients_in_turn(x: Tensor) -> Results:
    """a sin(b) with a gradient for both, one or none of the arguments, and under ``no_grad``; and whether the result has one."""
    f = compiled(lambda a, b: a * b.sin())
    y, z = x * 2, x.cos()
    found: list[Any] = []
    for a, b in ((y, z), (y.detach(), z), (y, z.detach()), (y.detach(), z.detach()), (y, z), (y, z.detach())):
        found.append(f(a, b))
        found.append(found[-1].requires_grad)
        with torch.no_grad():
            found.append(f(a, b))
            found.append(found[-1].requires_grad)
    return tuple(found)


def modes_inside(x: Tensor) -> Results:
    """What a program computes without gradient, and with one again, called with and without gradients."""

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

    def g(pair: list[Tensor], *, named: dict[str, Any], last: Tensor | None = None) -> dict[str, Any]:
        total = pair[0] * named["b"] + pair[1]
        return {"sum": total if last is None else total - last, "rest": [named["b"] * 2, None, (named["k"],)], "a": pair[1]}

    f = compiled(g)
    y = x.sin()
    found: list[Any] = []
    for k, last in ((1, None), (1, x), (2, None), (2, y)):
        made = f([x, y], named={"k": k, "b": x.cos()}, last=last)
        found += [made["sum"], made["rest"][0], made["rest"][2][0], made["a"] is y, made["rest"][1] is None]
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
    """A product and ones of the default dtype, called under autocast, with another default dtype and in inference mode."""

    def g(a: Tensor) -> tuple[Tensor, Tensor]:
        return a @ a, a.sin() + torch.ones(a.shape[0]) / 3

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
    """Tensors that consist of two tensors, and plain ones, which are written to, added and transposed."""

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


# --- gradients --------------------------------------------------------------------------------------------------------------------


def some_results(x: Tensor) -> Results:
    """Results of which only some are used, in turn. √ of zeros beside them has a gradient that is infinite, and may not be asked for."""
    f = compiled(lambda a: (a.sin().exp(), (a - a.detach()).sqrt(), a.cos() * 2, torch.ones_like(a)))
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
    """A hook that the program registers on its argument, which sees the gradient by the caller as well."""

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
            a = torch.cat([a, h.exp()], 1).tanh()[:, : a.shape[1]] + nn.functional.layer_norm(h @ w.t(), (a.shape[1],))
        return a.cumsum(0).logsumexp(1)

    f = compiled(g)
    w = x.t() * 0.5
    return f(x, w), f(x * 2, w), f(x.sin(), w)


# --- draws ------------------------------------------------------------------------------------------------------------------------


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
    """A program that sets a seed before it draws: each call draws the same, and what is drawn afterwards goes on from there."""

    def g(a: Tensor) -> Tensor:
        torch.manual_seed(11)
        return a * torch.rand_like(a)

    f: Callable[[Tensor], Tensor] = compiled(g)
    first = f(x)
    after = torch.rand_like(x) * x
    with _state_kept():
        second = f(x * 2)
    return first, after, second, torch.rand_like(x) * x, f(x)
