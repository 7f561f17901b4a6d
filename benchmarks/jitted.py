"""Jitted transforms beside torch.func: three programs under nine transforms. Guards are included,
captures are not."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import runtime.func
from benchmarks.cells import Cell
from runtime import jit

Program = tuple[Callable[[Tensor], Tensor], Tensor]
Built = tuple[Callable[..., Any], tuple[Tensor, ...]]


def _sines(length: int = 20) -> Program:
    def f(x: Tensor) -> Tensor:
        for _ in range(length):
            x = x.sin()
        return x

    return f, torch.randn(32)


def _mlp() -> Program:
    sizes = (32, 64, 64, 16)
    layers = [(torch.randn(m, n) / n**0.5, torch.randn(m)) for n, m in itertools.pairwise(sizes)]

    def f(x: Tensor) -> Tensor:
        for i, (weight, bias) in enumerate(layers):
            x = torch.nn.functional.linear(x, weight, bias)
            x = x.tanh() if i < len(layers) - 1 else x
        return x

    return f, torch.randn(32)


def _solve() -> Program:
    matrix = torch.randn(8, 8) + 8 * torch.eye(8)
    return (lambda x: torch.linalg.solve(matrix + 0.1 * x.unsqueeze(-1), x)), torch.randn(8)


def _total(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: f(x).sum()


def _vjp(api: Any, f: Callable[[Tensor], Tensor], x: Tensor) -> Built:
    return (lambda x, t: api.vjp(f, x)[1](t)), (x, torch.ones_like(f(x)))


TRANSFORMS: dict[str, Callable[[Any, Callable[[Tensor], Tensor], Tensor], Built]] = {
    "vmap": lambda api, f, x: (api.vmap(f), (torch.stack([x] * 8),)),
    "grad": lambda api, f, x: (api.grad(_total(f)), (x,)),
    "vmap of grad": lambda api, f, x: (api.vmap(api.grad(_total(f))), (torch.stack([x] * 8),)),
    "vjp": _vjp,
    "jvp": lambda api, f, x: ((lambda x, t: api.jvp(f, (x,), (t,))), (x, torch.ones_like(x))),
    "jacrev": lambda api, f, x: (api.jacrev(f), (x,)),
    "jacfwd": lambda api, f, x: (api.jacfwd(f), (x,)),
    "hessian": lambda api, f, x: (api.hessian(_total(f)), (x,)),
    "vmap of grad of grad": lambda api, f, x: (
        api.vmap(api.grad(_total(api.grad(_total(f))))),
        (torch.stack([x] * 8),),
    ),
}


def programs() -> dict[str, Program]:
    """By name, a program and its argument."""
    torch.manual_seed(0)
    return {"sines": _sines(), "MLP": _mlp(), "solve": _solve()}


def both(
    transform: str, f: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[Callable[..., Any], Callable[..., Any], tuple[Tensor, ...]]:
    """The transform of `f` by runtime.func and by torch.func, and its arguments."""
    mine, args = TRANSFORMS[transform](runtime.func, f, x)
    theirs, _ = TRANSFORMS[transform](torch.func, f, x)
    return mine, theirs, args


def cells() -> Iterator[Cell]:
    for name, (f, x) in programs().items():
        for transform in TRANSFORMS:
            yield Cell(
                "jit", "", name, transform, "torch.func", partial(_sides, transform, f, x), 0.8
            )


def captures() -> Iterator[Cell]:
    """What the first call of a jitted function takes, and the first two together, beside
    torch's `make_fx` of the same. The first call captures the program, the second one
    generates its code."""
    for name, (f, x) in programs().items():
        for calls, transform in itertools.product((1, 2), TRANSFORMS):
            row = name if calls == 1 else f"{name}, two calls"
            yield Cell(
                "captures",
                "",
                row,
                transform,
                "torch make_fx",
                partial(_first_calls, transform, calls, f, x),
                milliseconds=True,
            )


def _sides(
    transform: str, f: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[Callable[[], object], Callable[[], object]]:
    mine, theirs, args = both(transform, f, x)
    jitted = jit(mine)
    return lambda: jitted(*args), lambda: theirs(*args)


def _first_calls(
    transform: str, calls: int, f: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[Callable[[], object], Callable[[], object]]:
    mine, theirs, args = both(transform, f, x)

    def called(captured: Callable[..., object]) -> list[object]:
        return [captured(*args) for _ in range(calls)]

    return lambda: called(jit(mine)), lambda: called(make_fx(theirs)(*args))
