"""Compare runtime.func with torch.func: every transform of every program."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import runtime.func
from benchmarks.cells import Cell
from benchmarks.programs import Program, programs

Built = Callable[[], object]


def _grad(api: Any, p: Program) -> Built:
    f = api.grad(p.loss, argnums=tuple(range(1, 1 + len(p.parameters))))
    return lambda: f(p.x, *p.parameters)


def _vmap(api: Any, p: Program) -> Built:
    f = api.vmap(p.outputs, in_dims=(0, *[None] * len(p.parameters)))
    return lambda: f(p.x, *p.parameters)


def _vmap_of_grad(api: Any, p: Program) -> Built:
    per_sample = api.grad(p.loss, argnums=tuple(range(1, 1 + len(p.parameters))))
    f = api.vmap(per_sample, in_dims=(0, *[None] * len(p.parameters)))
    return lambda: f(p.x, *p.parameters)


def _jvp(api: Any, p: Program) -> Built:
    inputs = (p.x, *p.parameters)
    tangents = tuple(torch.ones_like(t) for t in inputs)
    return lambda: api.jvp(p.loss, inputs, tangents)


def _jacobian(name: str) -> Callable[[Any, Program], Built]:
    def build(api: Any, p: Program) -> Built:
        f = getattr(api, name)(p.loss if name == "hessian" else p.pooled, argnums=p.few)
        return lambda: f(p.x, *p.parameters)

    return build


def _vmap_of_vjp_of_vjp(api: Any, p: Program) -> Built:
    def twice(*args: Tensor) -> Any:
        def once(*inner: Tensor) -> Any:
            out, pullback = api.vjp(p.outputs, *inner)
            return pullback(torch.ones_like(out))

        grads, pullback = api.vjp(once, *args)
        return pullback(grads)

    f = api.vmap(twice, in_dims=(0, *[None] * len(p.parameters)))
    return lambda: f(p.x, *p.parameters)


TRANSFORMS: dict[str, Callable[[Any, Program], Built]] = {
    "grad": _grad,
    "vmap": _vmap,
    "vmap∘grad": _vmap_of_grad,
    "jvp": _jvp,
    "jacrev": _jacobian("jacrev"),
    "jacfwd": _jacobian("jacfwd"),
    "hessian": _jacobian("hessian"),
    "vmap∘vjp∘vjp": _vmap_of_vjp_of_vjp,
}


def cells(sizes: tuple[str, ...]) -> Iterator[Cell]:
    for p in programs(sizes):
        for name, build in TRANSFORMS.items():
            yield Cell("transforms", p.size, p.name, name, "torch.func", partial(_both, build, p))


def _both(build: Callable[[Any, Program], Built], p: Program) -> tuple[Built, Built]:
    return build(runtime.func, p), build(torch.func, p)
