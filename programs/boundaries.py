"""Programs about the boundary of what is compiled: what a compiled function shares with its caller
and with its other calls.

Each compiles a function or a module by :func:`gen.targets.parts.compiled`, which is the function
itself but in the stage ``aot.parts``. Every function is called several times: the first call
captures, the second one makes code, the next ones run it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gen.targets.parts import compiled

Results = tuple[Any, ...]


# --- arguments that share memory ------------------------------------------------------------------


def _scaled(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(b.sum())
    return a + 3 * b


def same_twice(x: Tensor) -> Results:
    """a ← a Σb and then a + 3b, of different tensors, of the same one twice, and of different ones
    again. x (N, M); results and what is written to."""
    f = compiled(_scaled)
    a, b, c = x * 1, x.sin(), x.cos()
    return f(a, b), f(c, c), f(c, c), f(a, b), a, b, c


def overlapping_views(x: Tensor) -> Results:
    """The same of the first rows of x (N, M) and the last ones, which are mostly the same
    rows, by two cuts."""
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


def view_beside_base(x: Tensor) -> Results:
    """A row of an argument (M - 1, M) that is the end of another one (M, M), which is written
    to."""

    def g(base: Tensor, end: Tensor) -> Tensor:
        base.mul_(2)
        return end[0]

    f = compiled(g)
    y = x * 1
    return f(y, y[1:]), f(y, y[1:]), y


def turned_after_a_view(x: Tensor) -> Results:
    """A row of x (M, M) from before it is transposed in place, after it is doubled."""

    def g(a: Tensor) -> Tensor:
        a.mul_(2)
        row = a[0]
        a.transpose_(0, 1)
        return row * 3

    f = compiled(g)
    y = x * 1
    return f(y), f(y), y


def shown_twice(x: Tensor) -> Results:
    """Writes to views that show each row but the first and the last one twice, at several
    places of a tensor."""

    def g(a: Tensor, b: Tensor) -> Tensor:
        a.add_(b.sum())
        return a * 2

    f = compiled(g)
    y = torch.cat([x, x.sin()])
    parts = [part.unfold(0, 2, 1) for part in (y[:3], y[:3], y[1:4], y[2:5])]
    return *(f(part, x) for part in parts), y


def alias_of_closed_over(x: Tensor) -> Results:
    """A tensor as argument and by the closure, which is read: a + 2y of y itself, a part of it
    and another tensor."""
    y = x * 1
    f = compiled(lambda a: a.sin() + 2 * y.sum())
    return f(y), f(y[1:]), f(x.cos()), f(y)


# --- results that share memory --------------------------------------------------------------------


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
    """The argument itself, a view of it or a new tensor, as a number says; and whether
    memory is shared."""

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
    """Views that are taken under ``no_grad``, of an argument and of what is computed: they have no
    gradient, and share memory."""

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


# --- writes to arguments --------------------------------------------------------------------------


def written_in_turn(x: Tensor) -> Results:
    """Writes by autograd's eyes, without gradient and through an alias; how often a tensor was
    written; and what is returned is it."""

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
        found += [
            sums,
            same is a,
            *(t._version - n for t, n in zip((a, b, c), before, strict=True)),
            a,
            b * x,
            c * x,
        ]
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


# --- closed-over tensors --------------------------------------------------------------------------


def state_of_closure(x: Tensor) -> Results:
    """A running mean s ← 0.9 s + 0.1 mean(a) in the closure, and a (1 + s); s is changed
    between calls, too."""
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
    for change in (
        {"rate": 1.5},
        {"rate": -2.0},
        {"twice": True},
        {"function": torch.exp, "twice": False},
    ):
        options.update(change)
        found.append(f(x))
    shift.number = 3.0
    return *found, f(x), compiled(shift)(x)


# --- modules --------------------------------------------------------------------------------------


class Normed(nn.Module):
    """x minus a running mean of its columns, times a weight; plus one for each call so far,
    while it trains."""

    mean: Tensor
    calls: Tensor
    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.scale = 0.5
        self.register_buffer(
            "mean", torch.zeros(weight.shape[0], dtype=weight.dtype, device=weight.device)
        )
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
    """A module with buffers, called while it trains, after ``eval``, with another constant, and
    while it trains again."""
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
    """A module that was compiled for an example with a gradient, called with
    arguments that have none."""
    module = Normed(x[:1].t() * 1).eval()
    f = compiled(module, x)
    with torch.no_grad():
        plain = f(x.cos())[0]
    return *f(x.detach()), *f(x), plain, *f(x.sin())
