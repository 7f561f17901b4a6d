"""Random programs of views, writes, aliases and closed-over tensors: compiled, they do what they do otherwise, or they are refused.

``PROGRAMS=5000 pytest tests/runtime/aot/test_random_programs.py`` tries more of them.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import tensor
from runtime.aot import aot_function, default_partition, min_cut_rematerialization_partition, nop

NUMBER = int(os.environ.get("PROGRAMS", "300"))
PARTITIONS = (default_partition, min_cut_rematerialization_partition)
REFUSALS = (
    "share memory",  # a write to arguments that share memory and require grad
    "sizes or strides",  # a change of geometry of memory that something else shows
    "changed its geometry in place",
)
Program = Callable[..., tuple[Any, ...]]

UNARY = ("sin", "tanh", "exp", "relu", "neg", "abs")
VIEWS: tuple[Callable[[Any], Any], ...] = (
    lambda t: t.view(-1) if t.is_contiguous() else t,
    lambda t: t[0] if t.dim() and t.shape[0] else t,
    lambda t: t.t() if t.dim() == 2 else t,
    lambda t: t[..., 1:] if t.dim() and t.shape[-1] > 1 else t,
    lambda t: t.unsqueeze(0),
    lambda t: t.detach(),
    lambda t: t.data,
    lambda t: t.unbind(0)[-1] if t.dim() and t.shape[0] else t,
    lambda t: t.expand(2, *t.shape) if t.dim() < 3 else t,
)
KINDS = (
    "unary",
    "unary",
    "view",
    "view",
    "write",
    "write",
    "product",
    "no_grad",
    "foreach",
    "draw",
    "literal",
    "parameter",
    "buffer",
    "geometry",
)


def written(t: Any, how: float, other: Any) -> None:
    if how < 0.3:
        t.mul_(1.5)
    elif how < 0.5:
        t.add_(other.sum())
    elif how < 0.7 and t.dim():
        t[0] = other.mean()
    elif how < 0.8:
        t.sin_()
    else:
        t.copy_(other.sum().expand(t.shape))


class Random:
    """One random program of two arguments. Everything that it does follows from ``seed``."""

    def __init__(self, seed: int) -> None:
        rnd = random.Random(seed)
        self.steps = [(rnd.choice(KINDS), rnd.random(), rnd.random(), rnd.random()) for _ in range(rnd.randint(2, 8))]
        self.outputs = [rnd.random() for _ in range(rnd.randint(1, 3))]
        self.require = [rnd.random() < 0.6 for _ in range(2)]
        self.leaves = [rnd.random() < 0.3 for _ in range(2)]
        self.alias = rnd.random()

    def program(self, counter: Any, weight: Any) -> Program:
        def f(x: Any, y: Any) -> tuple[Any, ...]:
            pool = [x, y]
            for kind, a, b, c in self.steps:
                self._step(kind, pool, pool[int(a * len(pool))], b, pool[int(c * len(pool))], counter, weight)
            return tuple(pool[int(r * len(pool))] for r in self.outputs)

        return f

    @staticmethod
    def _step(kind: str, pool: list[Any], t: Any, b: float, other: Any, counter: Any, weight: Any) -> None:
        if kind == "unary":
            pool.append(getattr(t, UNARY[int(b * len(UNARY))])())
        elif kind == "view":
            pool.append(VIEWS[int(b * len(VIEWS))](t))
        elif kind == "write":
            written(t, b, other)
        elif kind == "product":
            pool.append(t * other.sum())
        elif kind == "no_grad":
            with torch.no_grad():
                t.add_(1)
        elif kind == "foreach":
            torch._foreach_mul_([t, other], 2.0)
        elif kind == "draw":
            pool.append(t * torch.rand(()))
        elif kind == "literal":
            literal = torch.tensor([1.0, 2.0])
            literal.add_(1)
            pool.append(t.sum() * literal)
        elif kind == "parameter":
            pool.append(t.sum() * weight)
        elif kind == "buffer":
            counter.add_(1)
            pool.append(t * counter)
        elif t.dim() == 2:
            t.t_()
        else:
            t.unsqueeze_(0)

    def arguments(self) -> tuple[list[Any], list[Any]]:
        bases = [tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], requires_grad=flag) for flag in self.require]
        given = [t if leaf else t * 1 for t, leaf in zip(bases, self.leaves, strict=True)]
        if self.alias < 0.2:
            given[1] = given[0] if self.alias < 0.1 else given[0][:1]
        return bases, given

    def run(self, compiled: Callable[[Program], Program]) -> list[Any]:
        """Two calls: results, which of them are arguments, what a write to the first result changes, gradients, buffers, the next draw."""
        counter, weight = torch.tensor([1.5]), tensor([0.5, 2.0], requires_grad=True)
        f = compiled(self.program(counter, weight))
        seen: list[Any] = []
        for call in range(2):
            bases, given = self.arguments()
            torch.manual_seed(call)
            outs = f(*given)
            seen += [o.detach().clone() for o in outs]
            seen.append([[x is o for x in given] for o in outs])
            with torch.no_grad():
                outs[0].mul_(2)
            seen += [(t.detach().clone(), t.stride()) for t in (*given, *outs)]
            loss = sum((t * t).sum() for t in (*outs, *given) if t.requires_grad)
            if isinstance(loss, torch.Tensor) and loss.requires_grad:
                loss.backward()
            seen += [None if t.grad is None else t.grad.clone() for t in (*bases, weight)]
            seen += [counter.clone(), torch.rand(1)]
        return seen


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and torch.allclose(a, b, atol=1e-5, equal_nan=True)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def outcome(seed: int) -> str:
    """What becomes of a random program: "same", "different", "refused", or "eager" if it fails without the compiler."""
    program = Random(seed)
    try:
        expected = program.run(lambda f: f)
    except RuntimeError:
        return "eager"
    try:
        found = program.run(lambda f: aot_function(f, nop, partition_fn=PARTITIONS[seed % 2]))
    except RuntimeError as error:
        if not any(text in str(error) for text in REFUSALS):
            raise
        return "refused"
    return "same" if same(expected, found) else "different"


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_random_programs_are_the_same_when_compiled() -> None:
    found = {seed: outcome(seed) for seed in range(NUMBER)}
    assert [seed for seed, what in found.items() if what == "different"] == []
    counts = Counter(found.values())
    assert counts["same"] > NUMBER / 2 and counts["refused"] < NUMBER / 10, counts


def test_a_difference_would_be_seen() -> None:
    program = Random(0)
    assert same(program.run(lambda f: f), program.run(lambda f: f))
    assert not same(program.run(lambda f: f), program.run(lambda f: lambda *args: tuple(2 * o for o in f(*args))))
