"""Declares what hooks, error messages and anomaly mode use of a node. ``tape/nodes.py`` has the
nodes, and imports those modules."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Hook = Callable[..., Any]
Hooks = OrderedDict[int, Hook]  # a plain dict takes no weak references, which removal handles need


class TapeNode(Protocol):
    """A node of the tape, as the modules see it that ``tape/nodes.py`` imports. The attributes are
    those of :class:`runtime.tape.nodes.Node`."""

    pre_hooks: Hooks | None
    tensor_hooks: dict[int, Hooks] | None
    post_hooks: Hooks | None
    retained: dict[int, weakref.ref[Any]] | None

    @property
    def edges(self) -> Sequence[Any]: ...

    @property
    def metas(self) -> Any: ...

    @property
    def metadata(self) -> dict[Any, Any]: ...

    def name(self) -> str: ...

    def inputs(self) -> Sequence[int | None]: ...


History = tuple[TapeNode, int]  # an edge: the node that made a tensor, and the number of the output
