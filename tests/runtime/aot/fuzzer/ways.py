"""Ways to call a program of two matrices that may be jitted: with keywords, trees, closures,
modules, writes, and jit inside of jit.

A way takes a program and ``wrap``, which is ``jit`` or nothing. It gives a function of the number
of a call and two matrices, which returns everything that a caller sees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .surroundings import values

Program = Callable[[Any, Any], Any]
Wrap = Callable[[Any], Any]
Step = Callable[[int, Any, Any], Any]


def positional(f: Program, wrap: Wrap) -> Step:
    g = wrap(f)
    return lambda call, x, y: g(x, y)


def keywords(f: Program, wrap: Wrap) -> Step:
    g = wrap(lambda x, *, y, scale, offset=0.25: f(x * scale, y) + offset)
    return lambda call, x, y: g(x, y=y, scale=1.5 + call, **({"offset": call} if call > 1 else {}))


def trees(f: Program, wrap: Wrap) -> Step:
    def inner(tree: dict[str, Any], name: str) -> Any:
        out = f(tree["x"], tree["rest"][0])
        return {name: out, "n": tree["n"], "with": [out + tree["n"], None, tree["rest"][1]]}

    g = wrap(inner)
    return lambda call, x, y: pytree.tree_leaves(
        g({"x": x, "rest": (y, "text"), "n": call}, "odd" if call % 2 else "even")
    )


@dataclass
class Batch:
    x: Any
    y: Any
    weight: float = 1.0


def data_classes(f: Program, wrap: Wrap) -> Step:
    g = wrap(lambda batch: f(batch.x, batch.y) * batch.weight)
    return lambda call, x, y: g(Batch(x, y, 1.0 + call))


def closures(f: Program, wrap: Wrap) -> Step:
    weight, factor = values(9, (3,), torch.float64), [2.0]
    g = wrap(lambda x, y: f(x * weight, y) * factor[0])

    def step(call: int, x: Any, y: Any) -> Any:
        factor[0] = 2.0 + call % 2
        weight.add_(0.125)
        return g(x, y)

    return step


class Method:
    def __init__(self, f: Program, wrap: Wrap) -> None:
        self.factor, self.f = 1.0, f
        self.run = wrap(self.plain)

    def plain(self, x: Any, y: Any) -> Any:
        return self.f(x, y * self.factor)


def methods(f: Program, wrap: Wrap) -> Step:
    owner = Method(f, wrap)

    def step(call: int, x: Any, y: Any) -> Any:
        owner.factor = 1.0 + call % 2
        return owner.run(x, y)

    return step


class Module(nn.Module):
    seen: torch.Tensor

    def __init__(self, f: Program) -> None:
        super().__init__()
        self.f, self.layer = f, nn.Linear(3, 3, dtype=torch.float64).requires_grad_(False)
        self.register_buffer("seen", torch.zeros(()))
        for number, t in enumerate(self.layer.parameters()):
            t.copy_(values(20 + number, t.shape, t.dtype))

    def forward(self, x: Any, y: Any) -> Any:
        hidden = self.layer(x) * (2 if self.training else 1)
        self.seen += 1
        return self.f(hidden, y) + self.seen


def modules(f: Program, wrap: Wrap) -> Step:
    module = Module(f)
    g = wrap(module)

    def step(call: int, x: Any, y: Any) -> Any:
        module.train(call % 2 == 0)
        module.layer.weight.mul_(0.75)
        return g(x, y), module.seen.clone()

    return step


def writes(f: Program, wrap: Wrap) -> Step:
    total = torch.zeros(())

    def inner(x: Any, y: Any) -> Any:
        x.mul_(0.5)
        before = f(x, y)
        x[0].add_(1)
        total.add_(x.sum())
        return before + f(x, y) + total

    g = wrap(inner)
    return lambda call, x, y: (g(x, y), x, total.clone())


def aliases(f: Program, wrap: Wrap) -> Step:
    def inner(x: Any, y: Any) -> Any:
        x.add_(1)
        return f(x, y), x.view(-1)

    g = wrap(inner)

    def step(call: int, x: Any, y: Any) -> Any:
        outs = g(x, x.view(x.shape) if call % 2 else y)
        outs[1].mul_(2)  # a result that is a view of the argument
        return (*outs, x)

    return step


def twice(f: Program, wrap: Wrap) -> Step:
    return positional(wrap(f), wrap)


def within(f: Program, wrap: Wrap) -> Step:
    inner = wrap(f)
    g = wrap(lambda x, y: inner(x, y) + inner(x + 1, y).sin())
    return lambda call, x, y: (g(x, y), inner(x, y))


def one_after_another(f: Program, wrap: Wrap) -> Step:
    first, second = wrap(f), wrap(lambda out, x: out.sum() * x)
    return lambda call, x, y: second(first(x, y), x)


WAYS: tuple[Callable[[Program, Wrap], Step], ...] = (
    positional, keywords, trees, data_classes, closures, methods, modules, writes, aliases, twice,
    within, one_after_another,
)  # fmt: skip
