"""The mutants of a source file. Each changes one operator, constant, argument,
condition or statement."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mutant", "mutants_of"]

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
}
REMOVED = (ast.Expr, ast.AugAssign, ast.Delete, ast.Raise, ast.Continue, ast.Break)
TYPES_ONLY = {"cast", "TypeVar", "ParamSpec"}  # calls that do nothing when the program runs
# exchanging their arguments can only raise an error
ASYMMETRIC = {"isinstance", "issubclass", "getattr", "setattr", "hasattr"}
MESSAGES = {"warn", "warning", "debug", "info"}  # calls whose arguments are messages


@dataclass(frozen=True)
class Mutant:
    """Replace ``old``, the bytes from ``start`` on, by ``new``.

    ``lines`` are the first and last line of the statement. A test that runs none of them cannot
    notice the change. For a function's defaults and decorators, they are the lines of the function.
    For any other statement that runs at import, they are (0, 0)."""

    path: str
    line: int
    kind: str
    start: int
    old: str
    new: str
    lines: tuple[int, int]
    within: str  # the function's qualified name; "" at the level of the module or of a class
    text: str  # of the line

    def applied(self, source: bytes) -> bytes:
        old = self.old.encode()
        assert source[self.start : self.start + len(old)] == old, (
            "the source has changed since the mutant was made"
        )
        return source[: self.start] + self.new.encode() + source[self.start + len(old) :]

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.path}:{self.line}: {self.kind}: {_short(old)} → {_short(new)}"


def mutants_of(root: Path, path: str) -> list[Mutant]:
    """Every mutant of the file ``path`` under ``root``, in the order of their places."""
    finder = _Finder(path, (root / path).read_bytes())
    finder.block(ast.parse(finder.source).body)
    return sorted(finder.found, key=lambda mutant: (mutant.start, mutant.kind, mutant.new))


class _Finder:
    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source, self.found = path, source, list[Mutant]()
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        # the enclosing functions and classes, and whether each is a function
        self._names: list[tuple[str, bool]] = []

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    @property
    def _is_in_function(self) -> bool:
        return any(is_function for _, is_function in self._names)

    def _add(self, node: ast.expr | ast.stmt, kind: str, new: str, lines: tuple[int, int]) -> None:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        within = ""
        if self._is_in_function:
            within = ".".join(name for name, _ in self._names)
        old = self.source[start:end].decode()
        text = self.source.splitlines()[node.lineno - 1].decode().strip()
        self.found.append(
            Mutant(self.path, node.lineno, kind, start, old, new, lines, within, text)
        )

    def _statement(self, node: ast.stmt) -> None:
        if _only_for_readers(node):
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            self._definition(node)
            return
        lines = self._own_lines(node)
        self._whole_statement(node, lines)
        if not isinstance(node, ast.Raise):  # the text of an error is not behaviour
            self._expressions(node, lines)
        for name in ("body", "orelse", "finalbody"):
            self.block(getattr(node, name, []))
        for part in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
            self.block(part.body)

    def _own_lines(self, node: ast.stmt) -> tuple[int, int]:
        """Return the lines of a statement without those of its body; (0, 0) at import."""
        if not self._is_in_function:
            return 0, 0
        body = getattr(node, "body", None)
        last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
        return node.lineno, max(node.lineno, last)

    def _definition(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        """Add the mutants of the decorators, of the defaults and of the body."""
        lines = self._own_lines(node)
        is_function = isinstance(node, ast.FunctionDef)
        if is_function:
            lines = (node.lineno, node.end_lineno or node.lineno)
        for decorator in node.decorator_list:
            self._expressions(decorator, lines)
        if isinstance(node, ast.FunctionDef):
            self._expressions(node.args, lines)
        self._names.append((node.name, is_function))
        self.block(node.body)
        self._names.pop()

    def _whole_statement(self, node: ast.stmt, lines: tuple[int, int]) -> None:
        """Add the mutants that remove a statement, or change whether its body runs."""
        if _is_removable(node):
            self._add(node, "statement removed", "pass", lines)
        match node:
            case ast.Return(value=ast.expr() as value) if not _is_false(value):
                self._add(node, "returns None", "return None", lines)
            case ast.If(test=test) | ast.While(test=test):
                condition = ast.unparse(test)
                self._add(test, "condition negated", f"not ({condition})", lines)
                if isinstance(node, ast.If):
                    self._add(test, "branch never taken", f"False and ({condition})", lines)
            case ast.With(items=[ast.withitem(context_expr=context, optional_vars=None)]):
                nothing = "__import__('contextlib').nullcontext()"
                self._add(context, "context dropped", nothing, lines)

    def _expressions(self, node: ast.AST, lines: tuple[int, int]) -> None:
        """Add the mutants of the expressions in ``node``, except those in its statements."""
        for name, child in ast.iter_fields(node):
            if name in ("annotation", "returns"):
                continue
            for one in child if isinstance(child, list) else [child]:
                if isinstance(one, ast.keyword) and _asserts(node, one):
                    continue
                if isinstance(one, ast.expr):
                    self._expression(one, lines)
                elif isinstance(one, ast.AST) and not isinstance(
                    one, ast.stmt | ast.ExceptHandler | ast.match_case
                ):
                    self._expressions(one, lines)

    def _expression(self, node: ast.expr, lines: tuple[int, int]) -> None:
        if isinstance(node, ast.JoinedStr):
            return
        for kind, new in _changes(node):
            self._add(node, kind, ast.unparse(new), lines)
        called = _called(node)
        if called in MESSAGES | TYPES_ONLY:
            return
        self._expressions(node, lines)


def _is_removable(node: ast.stmt) -> bool:
    """Return whether a program without the statement still has all of its names."""
    if isinstance(node, ast.Assign):
        return not any(isinstance(target, ast.Name | ast.Tuple) for target in node.targets)
    return isinstance(node, REMOVED)


def _changes(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the replacements of an expression, each with its kind of change."""
    match node:
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp() | ast.BinOp():
            yield from _changes_of_operator(node)
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", ast.Constant(value + 1)
            yield "constant", ast.Constant(value - 1)
        case ast.Slice(lower=None):
            yield "slice", _with(node, lower=ast.Constant(1))
        case ast.Slice(upper=None):
            yield "slice", _with(node, upper=ast.Constant(-1))
        case ast.IfExp():
            yield "branches exchanged", _with(node, body=node.orelse, orelse=node.body)
        case ast.Call() if _called(node) not in MESSAGES | TYPES_ONLY:
            yield from _changes_of_call(node)


def _changes_of_operator(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            yield "comparison", _with(node, ops=[COMPARISONS[type(operator)]()])
        case ast.BoolOp(op=ast.And()):
            yield "and/or", _with(node, op=ast.Or())
        case ast.BoolOp(op=ast.Or()):
            yield "and/or", _with(node, op=ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield "not dropped", node.operand
        case ast.UnaryOp(op=ast.USub()):
            yield "sign", node.operand
        case ast.BinOp(op=operator) if type(operator) in ARITHMETIC:
            # Texts are only joined, and a text minus another one raises.
            if not (_is_text(node.left) or _is_text(node.right)):
                yield "arithmetic", _with(node, op=ARITHMETIC[type(operator)]())


def _changes_of_call(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    match node.args:
        case [first, second, *rest] if _exchangeable(node, first, second):
            yield "arguments exchanged", _with(node, args=[second, first, *rest])
    for index, keyword in enumerate(node.keywords):
        if keyword.arg is not None and not _asserts(node, keyword):
            others = [*node.keywords[:index], *node.keywords[index + 1 :]]
            yield "keyword dropped", _with(node, keywords=others)


def _exchangeable(call: ast.Call, first: ast.expr, second: ast.expr) -> bool:
    return (
        _called(call) not in ASYMMETRIC
        and not isinstance(first, ast.Starred)
        and ast.dump(first) != ast.dump(second)
    )


def _asserts(node: ast.AST, keyword: ast.keyword) -> bool:
    """Whether a keyword is an assertion, as in ``zip(…, strict=True)``."""
    return keyword.arg == "strict" and _called(node) == "zip"


def _with(node: ast.expr, **fields: object) -> ast.expr:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _called(node: ast.AST) -> str:
    """The last part of the called function's name, or ``""`` if no name is called."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def _is_false(node: ast.expr) -> bool:
    """Whether a result is None, or is only asked whether it is true."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _only_for_readers(node: ast.stmt) -> bool:
    """Whether a statement is a docstring, an import, an assertion (for the type checker),
    `__all__`, or under TYPE_CHECKING."""
    match node:
        case (
            ast.Expr(value=ast.Constant())
            | ast.Import()
            | ast.ImportFrom()
            | ast.Assert()
            | ast.Pass()
            | ast.Global()
            | ast.Nonlocal()
        ):
            return True
        case (
            ast.If(test=ast.Name(id="TYPE_CHECKING"))
            | ast.FunctionDef(decorator_list=[ast.Name(id="overload"), *_])
        ):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
            return True
        case ast.Assign(value=ast.Call() as call) if _called(call) in TYPES_ONLY:
            return True
    return False


def _short(text: str) -> str:
    return text if len(text) <= 70 else text[:60] + " … " + text[-8:]
