"""Say for people what a program depends on in Python's state.

    print(summarize(guard, changes))
    line_naming("'steps' of Trainer", codes)    # ("train.py", 12, "step"): self.steps += 1

The first prints such lines as ``compares 4 objects: 1 function (step), 1 object (Trainer), …`` and
``takes as arguments 'steps' of Trainer``. The second is for errors: the first line on which the
program's code names something. It says where to look, and nothing depends on it.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType

from ...trace.provenance import Line
from .contents import CONTAINERS
from .nodes import Attributes, Cell, ClassNames, ClassParts, FunctionParts, Globals, Node
from .program_code import Code
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


# --- lines for errors -----------------------------------------------------------------------------

_LABEL = re.compile(r"'([A-Za-z_]\w*)' of ")
_NAME = re.compile(r"[A-Za-z_]\w*")


def line_naming(what: str, code: Iterable[Code]) -> Line | None:
    """Find the first line of ``code`` that names ``what``, a place such as ``'rate' of Trainer`` or
    ``module.config.rate``. The last name of a path is looked for first. None if no line has it."""
    code = list(code)
    for name in (*_LABEL.findall(what), *reversed(_NAME.findall(what))):
        for top, _ in code:
            line = next(_lines_with(top, name), None)
            if line is not None:
                return line
    return None


def _lines_with(code: CodeType, name: str) -> Iterator[Line]:
    """Yield the lines of ``code``, and of code inside, that have ``name``."""
    # MAKE_CELL and COPY_FREE_VARS name variables too, on no line of the text
    for i in dis.get_instructions(code):
        number = None if i.positions is None else i.positions.lineno
        if number is not None and isinstance(i.argval, str) and i.argval == name:
            yield code.co_filename, number, code.co_name
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines_with(constant, name)
