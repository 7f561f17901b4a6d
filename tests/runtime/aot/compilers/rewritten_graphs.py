"""The ops that the code of a program calls, by their names, and that it gives the bits of the
program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from runtime import aot

from .executed import Calls, calls_of_graph, executed


def calls(f: Callable[..., Any], *args: torch.Tensor) -> list[str]:
    """The names of the ops that run in a call of ``f``, which must do what ``f`` does."""
    return [_name(op) for op in executed(f, *args)]


def rewrites(
    f: Callable[..., Any], *sizes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Calls:
    """The calls that run for arguments of these sizes."""
    args = [torch.ones(size, dtype=dtype) for size in sizes]
    return calls_of_graph(aot.make_fx(f)(*args), *args)[1]


def runs(
    f: Callable[..., Any], *sizes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> list[str]:
    """The names of the ops that run for arguments of these sizes."""
    found = [_name(op) for op in rewrites(f, *sizes, dtype=dtype).ops]
    # a kernel that writes to given memory returns it detached
    return [name for name in found if name != "detach"]


def names(graph: fx.Graph) -> list[str]:
    """Of the ops that ``graph`` calls."""
    return [_name(n.target) for n in graph.nodes if n.op == "call_function"]


def _name(target: Any) -> str:
    return getattr(target, "__name__", str(target)).partition(".")[0]
