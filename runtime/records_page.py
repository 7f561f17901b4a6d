"""Write the page of all records, with the formulas themselves where they are one line.

The formula of a lambda is read from its source file: ``{"self": lambda g, self: g * self.cos()}``
is shown as ``self: g * self.cos()``.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch

from .rules.derive.batch_rules import elementwise
from .rules.ops import op_of
from .rules.record import RECORDS, Formula, Record, parameters
from .torch_private.dispatcher import OpOverload

WIDEST = 110  # characters of a formula that is shown
_HOLE = "HOLE"
_FORMULAS = ("decomposition", "abstract", "inverse")
_MARKS = ("commutes", "fresh", "unfilled", "workspace")
_HEAD = "| op | vjp | jvp | batch | other facts |\n|---|---|---|---|---|"

PREFACE = """\
# Records

Written by `make docs` from `runtime/rules/` with torch {version}; do not edit. \
[rules.md](rules.md) explains the parts of a record.

A formula stands here if it is one line. Its names say what it needs: `g` is the cotangent, \
`self_t` a tangent, the rest are arguments
and results. For a longer one its function stands here, with what it needs. An empty jvp: \
the vjp is transposed twice. An empty batch:
the decomposition, else ATen's or torch's, else a loop that warns. The batch rule `elementwise` \
serves in-place forms as well. A cost
that is not named is low. Overloads with the same facts share a row.
"""


def markdown() -> str:
    """Return the page: one table per family, ops by name."""
    families: dict[str, dict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for func, record in sorted(RECORDS.items(), key=lambda item: str(item[0])):
        if getattr(func, "namespace", "") == "aten":
            families[record.family][_cells(func, record)].append(
                str(func).removeprefix("aten.").removesuffix(".default")
            )
    lines = [PREFACE.format(version=torch.__version__.partition("+")[0])]
    for family, rows in sorted(families.items()):
        lines += [f"## {family}", "", _HEAD]
        lines += [
            f"| {' '.join(f'`{name}`' for name in names)} | {' | '.join(cells)} |"
            for cells, names in rows.items()
        ]
        lines.append("")
    return "\n".join(lines)


def _cells(func: OpOverload, record: Record) -> tuple[str, ...]:
    """Return the columns after the first."""
    arg_names = op_of(func).arg_names
    return (
        _vjp(record, arg_names),
        _jvp(record, arg_names),
        _batch(record.batch),
        "; ".join(_facts(record)),
    )


def _vjp(record: Record, arg_names: tuple[str, ...]) -> str:
    """Return the cell of the vjp."""
    if record.vjp:
        return _table(record.vjp, arg_names)
    if record.nondiff is True:
        return "none needed"
    return ""


def _jvp(record: Record, arg_names: tuple[str, ...]) -> str:
    """Return the cell of the jvp."""
    if isinstance(record.jvp, str):
        return record.jvp
    if isinstance(record.jvp, Mapping):
        return _table(record.jvp, arg_names)
    return _code(record.jvp)


def _table(table: Mapping[Any, Formula], arg_names: tuple[str, ...]) -> str:
    """Return the cell of a table of formulas, one line per formula of an argument of the op."""
    lines: list[str] = []
    for key, formula in table.items():
        if not isinstance(key, str):
            lines.append(f"{', '.join(key)}: {_code(formula)}")
        elif key in arg_names:  # another op of the record may have this argument
            lines.append(f"{key}: {_code(formula)}")
    return "<br>".join(lines)


def _facts(record: Record) -> Iterator[str]:
    """Yield the phrases of the last column."""
    for name in _FORMULAS:
        formula = getattr(record, name)
        if formula is not None:
            yield f"{name} {_code(formula)}"
    if isinstance(record.nondiff, tuple) and record.nondiff:
        yield f"no derivative of result {', '.join(map(str, record.nondiff))}"
    if record.per_sample is not None:
        yield f"per sample {', '.join(record.per_sample)}"
    if record.hidden_writes is not None:
        yield (
            f"writes {', '.join(record.hidden_writes.arguments)} if "
            f"{_code(record.hidden_writes.when)}"
        )
    if record.draws is not None:
        yield f"draws by {record.draws}"
    yield from _marks(record)


def _marks(record: Record) -> Iterator[str]:
    """Yield the facts that a record has or has not."""
    if record.cost == "high":
        yield "cost high"
    if record.in_place and record.batch is not elementwise:
        yield "batch in place"
    yield from (mark for mark in _MARKS if getattr(record, mark))


def _batch(rule: Callable[..., object] | None) -> str:
    """Return the cell of a batch rule. A shared rule is shown with the positions that it was made
    for, such as ``along(1)``."""
    if getattr(rule, "refuses", False):
        return "refused"
    if rule is None or getattr(rule, "__name__", "") == "<lambda>":
        return _code(rule)
    maker, _, inner = getattr(rule, "__qualname__", str(rule)).partition(".<locals>.")
    name = maker.strip("_")
    if not inner:
        return f"`{name}`"
    return f"`{name}({', '.join(map(str, _positions_of(rule)))})`"


def _positions_of(rule: Callable[..., object]) -> Iterator[int]:
    """Yield the positions that a shared rule was made for."""
    for cell in getattr(rule, "__closure__", None) or ():
        if type(cell.cell_contents) is tuple:
            yield from (size for size in cell.cell_contents if type(size) is int)


def _code(formula: Callable[..., object] | None) -> str:
    """Return a formula for a cell: its source, or the name of its function. Nothing for None."""
    if formula is None:
        return ""
    return f"`{source(formula)}`".replace("|", "\\|")


def source(formula: Callable[..., object]) -> str:
    """Return the text of a formula.

    ``self.cos()`` for ``lambda self: self.cos()``, ``name(parameters)`` for a function, and ``…``
    for a text that is too long.
    """
    shown = _expression(formula)
    if shown is None:
        return "…"
    text = ast.unparse(shown)
    if len(text) <= WIDEST:
        return text
    if isinstance(shown, ast.Call) and isinstance(shown.func, ast.Name):
        return f"{shown.func.id}(…)"
    return "…"


def _expression(formula: Callable[..., object]) -> ast.expr | None:
    """Return the syntax tree of what a formula is shown as. None if its source is not known."""
    # a helper made the formula of a lambda: its template says how
    template, plain = getattr(formula, "made_of", (None, formula))
    if template is not None:
        inner = _expression(plain)
        return inner and _replace_names(_parse(template.format(_HOLE)), {_HOLE: inner})
    asked = parameters(plain)
    while isinstance(plain, functools.partial):
        plain = plain.func
        if hasattr(plain, "made_of"):
            return _expression(plain)
    if not isinstance(plain, FunctionType) or plain.__name__ != "<lambda>":
        return _parse(
            f"{getattr(plain, '__name__', type(plain).__name__).strip('_')}({', '.join(asked)})"
        )
    return _body_in_terms_of(asked, plain)


def _body_in_terms_of(asked: Iterable[str], formula: FunctionType) -> ast.expr | None:
    """Return the body of a lambda, with the names of what it asks for as its parameters."""
    body = _body(formula.__code__)
    own = inspect.signature(formula).parameters
    if body is None or any(
        parameter.kind is parameter.VAR_POSITIONAL for parameter in own.values()
    ):
        return body
    # a parameter with a default is bound where the lambda is made, and asks for nothing
    names = dict(zip(own, map(ast.Name, asked), strict=False))
    return _replace_names(_parse(ast.unparse(body)), names)


def _parse(text: str) -> ast.expr:
    """Return the syntax tree of an expression."""
    return ast.parse(text, mode="eval").body


def _replace_names(tree: ast.expr, names: Mapping[str, ast.expr]) -> ast.expr:
    """Return ``tree`` with expressions in place of names: for the parameters of a lambda, the names
    that its formula is declared to ask for."""
    replaced: ast.expr = _NameReplacer(names).visit(tree)
    return replaced


class _NameReplacer(ast.NodeTransformer):
    """Puts expressions in place of names."""

    def __init__(self, names: Mapping[str, ast.expr]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.names.get(node.id, node)


@functools.cache
def _lambdas(path: str) -> dict[int, list[ast.Lambda]]:
    """Return the lambdas of a file, by the line where they begin."""
    lambdas: dict[int, list[ast.Lambda]] = defaultdict(list)
    for node in ast.walk(ast.parse(Path(path).read_text("utf-8"))):
        if isinstance(node, ast.Lambda):
            lambdas[node.lineno].append(node)
    return lambdas


class _Span(NamedTuple):
    """A part of a file, from a line and column to a line and column: ``((3, 8), (3, 12))``."""

    begin: tuple[int, int]
    end: tuple[int, int]

    @classmethod
    def of(cls, node: ast.expr) -> _Span:
        """Return the span of a node."""
        begin = node.lineno, node.col_offset
        return cls(begin, (node.end_lineno or 0, node.end_col_offset or 0))

    def contains(self, other: _Span) -> bool:
        """Return whether ``other`` lies in this span."""
        return self.begin <= other.begin and other.end <= self.end


def _body(code: CodeType) -> ast.expr | None:
    """Return what the lambda with this code returns: the smallest body on its line in which all of
    its instructions lie."""
    # several lambdas may begin on one line, so their instructions decide which one it is
    instructions = list(_instructions(code))
    if not instructions:
        return None
    bodies: dict[_Span, ast.expr] = {}
    for node in _lambdas(code.co_filename)[code.co_firstlineno]:
        span = _Span.of(node.body)
        if all(map(span.contains, instructions)):
            bodies[span] = node.body
    if not bodies:
        return None
    return bodies[min(bodies, key=attrgetter("end"))]


def _instructions(code: CodeType) -> Iterator[_Span]:
    """Yield where the instructions of ``code`` are in its file, if that is known."""
    for line, last_line, column, last_column in code.co_positions():
        if line and last_line and last_column:
            yield _Span((line, column or 0), (last_line, last_column))
