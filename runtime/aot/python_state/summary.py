"""Say for people what a program depends on in Python's state.

print(summarize(guard, changes))

compares 4 objects: 1 function (step), 1 object (Trainer), 1 class (Trainer), 1 list (…)
takes as arguments 'steps' of Trainer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .contents import CONTAINERS
from .nodes import Attributes, Cell, ClassNames, ClassParts, FunctionParts, Globals, Node
from .state_guard import StateGuard

_SHOWN = 4  # names of one kind that a text has
_KINDS: tuple[tuple[tuple[type[Node], ...], str], ...] = (
    ((FunctionParts,), "function"),
    ((Cell,), "variable"),
    ((Globals,), "module"),
    ((ClassNames, ClassParts), "class"),
    ((Attributes,), "object"),
    (tuple({node for _, node in CONTAINERS}), "container"),
)
_PLURALS = {"class": "classes"}


@dataclass(frozen=True)
class StateSummary:
    """What one program has to do with Python's state.

    Example: of ``self.steps += 1`` the ``objects`` have ``{"object": ("Trainer",)}``, ``changes``
    and, from the second program on, ``arguments`` have ``"'steps' of Trainer"``."""

    objects: Mapping[str, tuple[str, ...]]
    """Names of the objects that each call compares, by kind."""
    arguments: tuple[str, ...]
    """Places whose numbers or tensors are arguments of the graph."""
    changes: tuple[str, ...]
    """Places to which each call assigns."""
    opaque: tuple[str, ...]
    """Objects that nobody can ask whether they are as they were."""

    @property
    def count(self) -> int:
        """How many objects a call compares."""
        return sum(map(len, self.objects.values()))

    def lines(self) -> list[str]:
        """Say it in sentences without a subject, one a line."""
        kinds = [_listed(kind, names) for kind, names in self.objects.items()]
        found = [f"compares {self.count} objects: {', '.join(kinds)}"] if kinds else []
        for verb, names in (
            ("takes as arguments", self.arguments),
            ("changes", self.changes),
            ("cannot look into", self.opaque),
        ):
            found += [f"{verb} {_some(names)}"] if names else []
        return found

    def __str__(self) -> str:
        return "\n".join(self.lines())


def summarize(guard: StateGuard, changes: Sequence[str]) -> StateSummary:
    """Summarize what a program compares, by ``guard``, and what its calls assign."""
    objects: dict[str, list[str]] = {}
    for node in guard.nodes:
        names = objects.setdefault(_kind_of(node), [])
        if node.name not in names:  # a class has two nodes
            names.append(node.name)
    places = (place.what for place in guard.arguments())
    return StateSummary(
        {kind: tuple(names) for kind, names in objects.items()},
        tuple(dict.fromkeys(places)),
        tuple(changes),
        guard.opaque,
    )


def _kind_of(node: Node) -> str:
    return next((kind for nodes, kind in _KINDS if isinstance(node, nodes)), "other object")


def _listed(kind: str, names: Sequence[str]) -> str:
    noun = kind if len(names) == 1 else _PLURALS.get(kind, f"{kind}s")
    return f"{len(names)} {noun} ({_some(names)})"


def _some(names: Sequence[str]) -> str:
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join([*names[:_SHOWN], *more])
