"""A pass of Inductor that ends the process in which Inductor runs, or never returns."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

_LIBRARY = torch.library.Library("trial_tests", "DEF")
_LIBRARY.define("crash(Tensor x) -> Tensor")
_LIBRARY.impl("crash", torch.empty_like, "Meta")


def _crash(x: torch.Tensor) -> torch.Tensor:
    ctypes.string_at(0)
    return x


_LIBRARY.impl("crash", _crash, "CPU")
_LIBRARY.define("shorter(Tensor x) -> Tensor")
_LIBRARY.impl("shorter", torch.empty_like, "Meta")
_LIBRARY.impl("shorter", lambda x: x[1:].clone(), "CPU")


def _exits(graph: fx.Graph) -> None:
    os._exit(7)


def _is_killed(graph: fx.Graph) -> None:
    print("about to die", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def _never_ends(graph: fx.Graph) -> None:
    while True:
        time.sleep(1)


def _raises(graph: fx.Graph) -> None:
    raise ValueError("not this graph")


def _makes_code_that_crashes(graph: fx.Graph) -> None:
    _replace_sines(graph, torch.ops.trial_tests.crash.default)


def _makes_code_of_a_wrong_layout(graph: fx.Graph) -> None:
    _replace_sines(graph, torch.ops.trial_tests.shorter.default)


def _replace_sines(graph: fx.Graph, by: Any) -> None:
    for node in graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            node.target = by


WAYS: dict[str, Callable[[fx.Graph], None]] = {
    "raises": _raises,
    # after one that leaves the process running: its start is not within the limit
    "never ends": _never_ends,
    "exits": _exits,
    "is killed": _is_killed,
    "makes code that crashes": _makes_code_that_crashes,
    "makes code of a wrong layout": _makes_code_of_a_wrong_layout,
}


class Failing(CustomGraphPass):
    def __init__(self, way: str) -> None:
        self.way = way

    def __call__(self, graph: fx.Graph) -> None:
        WAYS[self.way](graph)

    def uuid(self) -> str:
        return self.way
