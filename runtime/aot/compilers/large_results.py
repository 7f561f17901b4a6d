"""Large results that are new in memory, in huge pages.

    y = relu(x)      # of 16 MB becomes y = empty_in_huge_pages(…); relu(x, out=y)

See :mod:`runtime.huge_pages`. The kernel is the same, as it writes to a tensor that
its caller made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ...huge_pages import LARGE, empty_in_huge_pages
from ...trace.graph_edits import add_call
from .overloads import calls_of, on_cpu, with_out

aten = torch.ops.aten
_PRODUCTS: dict[Any, tuple[Callable[..., Any], str]] = {
    aten.mm.default: (aten.mm.out, "out"),
    aten.bmm.default: (aten.bmm.out, "out"),
    aten.addmm.default: (aten.addmm.out, "out"),
}


def use_huge_pages(graph: fx.Graph) -> None:
    """Let kernels that can do so write their large results to memory in huge pages."""
    for n in calls_of(graph):
        if not on_cpu(n) or n.meta["val"].nbytes < LARGE or not n.meta["val"].is_contiguous():
            continue
        value = n.meta["val"]
        made = (list(value.shape), value.dtype, value.device)
        # none that is pinned, for example
        if n.target is aten.empty.memory_format and n.kwargs.keys() <= {"dtype", "device"}:
            n.target, n.args, n.kwargs = empty_in_huge_pages, made, {}
        elif (found := _PRODUCTS.get(n.target) or _with_out(n.target)) is not None:
            func, out = found
            with graph.inserting_before(n):
                memory = add_call(graph, empty_in_huge_pages, made)
            memory.meta = dict(n.meta)
            n.target, n.kwargs = func, {**n.kwargs, out: memory}


def _with_out(func: Any) -> tuple[Callable[..., Any], str] | None:
    return with_out(func) if isinstance(func, torch._ops.OpOverload) else None
