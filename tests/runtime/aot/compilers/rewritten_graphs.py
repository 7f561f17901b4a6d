"""What the replay makes of a program: its calls, and that they give the bits of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from runtime import aot
from runtime.aot.compilers.peephole import rewritten
from runtime.aot.compilers.placing import DESTINATIONS

from .random_graphs import bits


def calls(f: Callable[..., Any], *args: torch.Tensor) -> list[str]:
    """The names of the ops that run in a call of ``f``, which must do what ``f`` does."""
    graphs: list[fx.Graph] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(rewritten(module.graph, module.meta.get(DESTINATIONS, ()))[0])
        return aot.nop(module, inputs)

    compiled = aot.aot_function(f, keep)
    mine, theirs = [a.clone() for a in args], [a.clone() for a in args]
    for _ in range(2):
        ours, expected = (
            [t for t in pytree.tree_leaves(g(*given)) if t is not None]
            for g, given in ((compiled, mine), (f, theirs))
        )
        for a, b in zip([*ours, *mine], [*expected, *theirs], strict=True):
            assert a.dtype is b.dtype and a.stride() == b.stride() and torch.equal(bits(a), bits(b))
    return names(graphs[0])


def names(graph: fx.Graph) -> list[str]:
    """Of the ops that ``graph`` calls."""
    return [
        getattr(n.target, "__name__", str(n.target)).partition(".")[0]
        for n in graph.nodes
        if n.op == "call_function"
    ]


def rewrites(
    f: Callable[..., Any], *sizes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> fx.Graph:
    """What the rewrites make of ``f``, for which no memory is taken."""
    with FakeTensorMode():
        traced = aot.make_fx(f)(*(torch.empty(size, dtype=dtype) for size in sizes))
    return rewritten(traced.graph)[0]


def runs(
    f: Callable[..., Any], *sizes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> list[str]:
    return names(rewrites(f, *sizes, dtype=dtype))
