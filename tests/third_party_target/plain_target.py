"""A target of a third party: reverse mode by torch's plain engine, and nothing else yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["PlainTarget"]

Flat = Callable[..., tuple[Any, ...]]


class PlainTarget:
    """Offers `forward`, `vjp`, `backward` and `grad`. What it lacks it names, and
    need not define."""

    name = "plain"
    lacks = frozenset(
        (
            "jvp",
            "vmap",
            "jacrev",
            "jacfwd",
            "hessian",
            "functionalize",
            "trace",
            "joint",
            "compiled",
            "export",
            "saved",
        )
    ) | {
        "linearize",
        "overload",
        "dual",
        "jit",
        "state",
        "per_sample",
        "per_sample_answer",
        "checkpoint",
        "functional",
        "session",
        "part",
    }

    def forward(self, f: Flat) -> Flat:
        return f

    def vjp(
        self, f: Flat, *primals: Any
    ) -> tuple[tuple[Any, ...], Callable[[tuple[Any, ...]], tuple[Any, ...]]]:
        with torch.enable_grad():
            # Without a copy: a primal that an outer vjp tracks must stay part of its graph.
            tracked = [
                primal.view_as(primal) if primal.requires_grad else primal.detach().requires_grad_()
                for primal in primals
            ]
            outputs = f(*tracked)

        def pullback(cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
            return torch.autograd.grad(
                outputs,
                tracked,
                cotangents,
                create_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )

        return outputs, pullback

    backward = vjp  # torch's plain engine is an eager session

    def grad(self, f: Callable[..., Any]) -> Flat:
        def g(*args: Any) -> tuple[Any, ...]:
            (value,), pullback = self.vjp(lambda *xs: (f(*xs),), *args)
            return pullback((torch.ones_like(value),))

        return g
