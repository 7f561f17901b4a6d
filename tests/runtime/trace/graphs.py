"""What the tests of traces share: a small module, and readers of a graph."""

from __future__ import annotations

import linecache
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


def names(module: torch.fx.GraphModule) -> list[str]:
    return [n.name for n in module.graph.nodes]


def targets(module: torch.fx.GraphModule) -> list[Any]:
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def node(module: torch.fx.GraphModule, name: str) -> torch.fx.Node:
    (found,) = (n for n in module.graph.nodes if n.name == name)
    assert isinstance(found, torch.fx.Node)
    return found


def line_of(node: torch.fx.Node) -> str | None:
    """The user's line that a node comes from, as ``file:line: source``."""
    if "user_line" not in node.meta:
        return None
    file, number, _ = node.meta["user_line"]
    return f"{file}:{number}: {linecache.getline(file, number).strip()}"


def close(a: object, b: object) -> None:
    torch.testing.assert_close(a, b)


class CallsSeen(TorchDispatchMode):
    """A mode of the caller's. ``names``: of the ops whose calls it sees."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.rest = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.rest(self.first(x)) + self.first(x)
        return y
