"""Modules as inputs of a traced graph: the program gets a proxy, and what it does with it
is in the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.proxy import GraphAppendingTracer

from .trace_level import Trace


class _Tracer(GraphAppendingTracer):
    """Proxies of the graph of ``level``, whose tensors they may meet."""

    def __init__(self, level: Trace) -> None:
        super().__init__(level.graph)
        self.level = level

    def create_arg(self, a: Any) -> Any:
        return self.level.lower_output(a) if isinstance(a, torch.Tensor) else super().create_arg(a)


class ModuleProxies:
    """The proxies of the modules among the inputs of ``level``."""

    def __init__(self, level: Trace) -> None:
        self.level = level
        self.tracer = _Tracer(level)

    def instead_of_modules(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """``values``, the inputs of the program, with a proxy in place of each module."""
        placeholders = [n for n in self.level.graph.nodes if n.op == "placeholder"]
        pairs = zip(placeholders, values, strict=True)
        return tuple(
            fx.Proxy(n, self.tracer) if isinstance(v, torch.nn.Module) else v for n, v in pairs
        )

    def lowered(self, outs: Sequence[Any]) -> list[Any]:
        """Results that are proxies, as nodes."""
        return [o.node if isinstance(o, fx.Proxy) else o for o in outs]
