"""Programs with hooks and members that change between the calls of what is compiled: added before
the first call, added after it, replaced, and removed again.

As in :mod:`programs.boundaries`, each compiles a function or a module by
:func:`gen.targets.parts.compiled`, and calls it several times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gen.targets.parts import compiled
from programs.tools import Results, leaf_of

Hook = Callable[..., Any]


class Scaled(nn.Module):
    """The sine of x times a weight."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sin()  # type: ignore[operator]


class Pair(nn.Module):
    """One module after another, a number of times, and a function of what they give."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.inner = Scaled(weight)
        self.others = nn.ModuleList([Scaled(weight * 2)])
        self.function: Callable[[Tensor], Tensor] = torch.exp
        self.sizes = {"factor": 0.5}

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        for other in self.others:
            y = other(y)
        return self.function(y * self.sizes["factor"])


def _plus_one(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return result + 1


def _halved(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    return (args[0] / 2,)


def _doubled(gradient: Tensor) -> Tensor:
    return gradient * 2


# --- hooks of modules -----------------------------------------------------------------------------


def hooks_of_modules(x: Tensor) -> Results:
    """Hooks of a module before and after its ``forward``: from before the first call, from after
    it, and removed again."""
    module = Scaled(x.detach().cos())
    first = module.register_forward_hook(_plus_one)
    f = compiled(module)
    found = [f(x), f(x)]
    second = module.register_forward_pre_hook(_halved)
    found += [f(x), f(x * 2)]
    first.remove()
    found.append(f(x))
    second.remove()
    return *found, f(x), f(x * 2)


def hooks_of_inner_modules(x: Tensor) -> Results:
    """The same of a module inside of the one that is compiled. One hook says that it is always
    called, and one has keywords."""
    module = Pair(x.detach().cos())
    first = module.inner.register_forward_hook(_plus_one, always_call=True)
    f = compiled(module)
    found = [f(x), f(x)]
    first.remove()
    found.append(f(x))
    second = module.inner.register_forward_pre_hook(
        lambda m, args, named: ((args[0] / 2,), named), with_kwargs=True
    )
    found += [f(x), f(x * 2)]
    second.remove()
    return *found, f(x)


# --- hooks of gradients ---------------------------------------------------------------------------


def _pass(f: Callable[[Tensor], Tensor], a: Tensor, w: Tensor) -> list[Any]:
    """Run a backward pass, and return its gradients."""
    a.grad = w.grad = None
    f(a).sum().backward()
    return [a.grad, w.grad]


def hooks_of_leaves(x: Tensor) -> Results:
    """Hooks of an argument and of a weight of the closure, from before the first call, from after
    it, and removed again."""
    a, w = leaf_of(x), leaf_of(x.cos())
    first = w.register_hook(_doubled)
    f = compiled(lambda t: (t @ w).sin())
    found = [*_pass(f, a, w), *_pass(f, a, w)]
    second = a.register_hook(_doubled)
    found += _pass(f, a, w)
    first.remove()
    found += _pass(f, a, w)
    second.remove()
    return *found, *_pass(f, a, w), x * 1


def hooks_after_accumulation(x: Tensor) -> Results:
    """Hooks that run when a gradient is in its place: one changes it, one does a step."""
    a, w = leaf_of(x), leaf_of(x.cos())

    def clip(t: Tensor) -> None:
        t.grad.clamp_(-0.5, 0.5)  # type: ignore[union-attr]

    def step(t: Tensor) -> None:
        with torch.no_grad():
            t.sub_(t.grad, alpha=0.1)  # type: ignore[arg-type]

    first = w.register_post_accumulate_grad_hook(clip)
    f = compiled(lambda t: (t @ w).sin())
    found = [*_pass(f, a, w), *_pass(f, a, w)]
    second = a.register_post_accumulate_grad_hook(step)
    found += [*_pass(f, a, w), a * 1]
    first.remove()
    found += _pass(f, a, w)
    second.remove()
    return *found, *_pass(f, a, w), a * 1, x * 1


def hooks_of_results(x: Tensor) -> Results:
    """Hooks of what is computed inside and of a result, which the caller adds in some calls."""
    a, w = leaf_of(x), leaf_of(x.cos())

    def g(t: Tensor) -> Tensor:
        inner = t @ w
        inner.register_hook(_doubled)
        return inner.sin()

    f = compiled(g)
    found: list[Any] = []
    for is_hooked in (False, True, False):
        a.grad = w.grad = None
        y = f(a)
        if is_hooked:
            y.register_hook(_doubled)
        y.sum().backward()
        found += [a.grad, w.grad]
    return *found, x * 1


# --- members --------------------------------------------------------------------------------------


def replaced_members(x: Tensor) -> Results:
    """A module whose weight, inner module, list, function, dictionary and ``forward`` are replaced
    by others after the first call."""
    module = Pair(x.detach().cos())
    f = compiled(module)
    found = [f(x), f(x)]
    module.inner.weight = x.detach().sin()
    found.append(f(x))
    module.inner = Scaled(x.detach() * 2)
    found.append(f(x))
    module.others.append(Scaled(x.detach() / 2))
    found.append(f(x))
    module.function = torch.tanh
    found.append(f(x))
    module.sizes = {"factor": 2.0}
    found.append(f(x))
    module.inner.forward = lambda x: x * 3  # type: ignore[method-assign]
    found.append(f(x))
    del module.others[0]
    return *found, f(x), f(x * 2)
