"""Random programs of one leaf: uses, hooks, frozen times, passes and gradients in any order.
Torch's engine on the same program is the oracle."""

from __future__ import annotations

import random
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ..scenarios import same


class Program:
    """A leaf ``x``, what was computed of it, and what was seen. ``lib``: torch or the runtime."""

    def __init__(self, lib: Any, draw: random.Random) -> None:
        self.lib, self.draw = lib, draw
        self.x = lib.tensor([1.0, 2.0], requires_grad=True)
        self.found: list[Any] = []
        self.seen: list[Any] = []
        self.nodes: list[Any] = []  # torch's node is gone with the graph, and its hooks with it
        self.handles: list[Any] = []

    def hook(self, name: str) -> Callable[[Any], Any]:
        number, factor = len(self.seen), self.draw.randint(1, 3)

        def called(g: Any) -> Any:
            self.seen.append((name, number, g.tolist()))
            return g * factor

        return called

    def note(self, name: str) -> Callable[..., None]:
        return lambda *_: self.seen.append(name)

    def use(self) -> None:
        y = self.x * self.draw.randint(1, 4)
        self.found.append(y * self.x if self.draw.random() < 0.3 else y)

    def node(self) -> Any:
        self.nodes.append(self.lib.graph.get_gradient_edge(self.x).node)
        return self.nodes[-1]

    def backward(self, **options: Any) -> None:
        sum(y.sum() for y in self.found).backward(retain_graph=True, **options)

    def set_dtype(self) -> None:
        if self.x.grad is None:
            self.x.grad_dtype = self.draw.choice([torch.float64, torch.float32, None])

    def without_history(self, change: Callable[[Any], Any]) -> None:
        with torch.no_grad():
            change(self.x)


STEPS: dict[str, Callable[[Program], Any]] = {
    "use": Program.use,
    "use again": Program.use,
    "hook": lambda p: p.handles.append(p.x.register_hook(p.hook("leaf"))),
    "remove a hook": lambda p: p.handles and p.handles.pop().remove(),
    "assign hooks": lambda p: setattr(
        p.x, "_backward_hooks", OrderedDict({-1: p.hook("assigned")})
    ),
    "clear the hooks": lambda p: setattr(p.x, "_backward_hooks", None),
    "hook of a result": lambda p: p.found and p.found[-1].register_hook(p.hook("result")),
    "hook after": lambda p: p.x.register_post_accumulate_grad_hook(p.note("after")),
    "hook before the node": lambda p: p.node().register_prehook(p.note("before the node")),
    "hook after the node": lambda p: p.node().register_hook(p.note("after the node")),
    "freeze": lambda p: p.x.requires_grad_(False),
    "thaw": lambda p: p.x.requires_grad_(True),
    "pass": Program.backward,
    "pass again": Program.backward,
    "recorded pass": lambda p: p.backward(create_graph=True),
    "gradient": lambda p: p.seen.append(
        p.lib.autograd.grad(p.found[-1].sum(), p.x, retain_graph=True)
    ),
    "drop the gradient": lambda p: setattr(p.x, "grad", None),
    "dtype of the gradient": Program.set_dtype,
    "other data": lambda p: setattr(p.x, "data", p.x.data * 2),
    "write": lambda p: p.without_history(lambda x: x.add_(1)),
    "write to a result": lambda p: p.found and p.found[-1].mul_(2),
}


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_a_random_program_of_a_leaf_is_torchs(first: int) -> None:
    for seed in range(first, first + 40):

        def scenario(lib: Any, seed: int = seed) -> Any:
            draw = random.Random(seed)
            program = Program(lib, draw)
            for name in draw.choices(list(STEPS), k=14):
                try:
                    STEPS[name](program)
                except (RuntimeError, IndexError, AttributeError) as error:
                    program.seen.append(type(error).__name__)
                x = program.x
                hooks = None if x._backward_hooks is None else len(x._backward_hooks)
                program.seen.append(
                    (
                        name,
                        x.requires_grad,
                        x.is_leaf,
                        hooks,
                        x.grad,
                        None if x.grad is None else x.grad.dtype,
                    )
                )
            return program.seen

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same(scenario)
