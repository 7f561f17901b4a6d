"""Record the calls of a function as lines of Python. The values are computed along, so that
programs may ask for shapes and dtypes.

The function ``lambda x: x.sin() * 2`` becomes ``lambda x1: x1.sin().mul(2)``.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import resolve_name

from gen.scripts import python_values
from gen.torch_private.loaded_with_torch import (
    OpOverload,
    OpOverloadPacket,
    pytree,
    unseen_by_classes,
)

Tensor = torch.Tensor
# Methods that ask for facts of a tensor. Their answers stand in the text as literals.
_ASKING = {
    "size",
    "dim",
    "numel",
    "stride",
    "is_contiguous",
    "is_complex",
    "is_floating_point",
    "item",
    "tolist",
}


@dataclass
class Line:
    """A line ``name = expression``, or the definition of a function."""

    name: str
    expression: str
    # whether the expression may stand at a later place
    pure: bool = True
    # whether `expression` is the rest of a definition
    defines: bool = False

    def __str__(self) -> str:
        if self.defines:
            return f"def {self.name}{self.expression}"
        return f"{self.name} = {self.expression}"

    def uses(self, name: str) -> int:
        """Return how often the expression has a name, as a whole word: x1 is no part of x10."""
        return len(re.findall(rf"\b{name}\b", self.expression))

    def insert(self, line: Line) -> None:
        """Put the expression of another line in the place of its name."""
        text = line.expression
        if not _is_primary(text):
            text = f"({text})"
        # a function, as backslashes of a text would mean groups
        self.expression = re.sub(rf"\b{line.name}\b", lambda _: text, self.expression)


class Scope:
    """The body of a function, or the program itself."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def written(self, results: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the lines that `results` need, and `results`. A name that is used once is replaced
        by its expression.
        """
        lines = list(map(replace, self.lines))
        # The results as one more user, with a separator that no expression has.
        last = Line("results", "\0".join(results))
        # From the last line on: a line that is dropped no longer uses the names of earlier ones.
        for place in reversed(range(len(lines))):
            line, later = lines[place], [*lines[place + 1 :], last]
            users = [other for other in later if other.uses(line.name)]
            if not users and line.pure:
                del lines[place]
            elif len(users) == 1 and _may_move(line, later, users[0]):
                users[0].insert(line)
                del lines[place]
        return list(map(str, lines)), last.expression.split("\0")


_LONGEST = 110  # characters of two expressions together, up to which one is put into the other


def _is_primary(text: str) -> bool:
    """Return whether calls and indices may follow `text` without parentheses around it."""
    return isinstance(
        ast.parse(text, mode="eval").body,
        ast.Call | ast.Attribute | ast.Name | ast.Subscript | ast.List | ast.Tuple,
    )


def _may_move(line: Line, later: Sequence[Line], user: Line) -> bool:
    """Return whether the expression of a line may stand in the place of its name."""
    is_plain = line.pure and not line.defines and not user.defines
    if not is_plain or user.uses(line.name) > 1:
        return False
    if len(line.expression) + len(user.expression) >= _LONGEST:
        return False
    between = itertools.takewhile(lambda other: other is not user, later)
    return all(other.pure for other in between)


class Tracer:
    """What has been written so far: the bodies of the functions that are being written, innermost
    last.
    """

    def __init__(self) -> None:
        self.scopes = [Scope()]
        self.modules: set[str] = set()  # of people's own autograd.Functions, which the text calls
        self._numbers: dict[str, int] = {}

    def name(self, letter: str) -> str:
        """Return the next name of a letter: y1, y2, …"""
        self._numbers[letter] = self._numbers.get(letter, 0) + 1
        return f"{letter}{self._numbers[letter]}"

    def skip(self, letter: str, count: int) -> None:
        """Leave the first `count` names of `letter` to the caller: x0, x1, …"""
        self._numbers[letter] = count

    def assign(self, expression: str, letter: str = "y", pure: bool = True) -> str:
        """Write a line that gives a new name to `expression`. Return the name."""
        name = self.name(letter)
        self.scopes[-1].lines.append(Line(name, expression, pure))
        return name

    def named(self, name: str, of: Tensor) -> Any:
        """Return a value that stands for `name`, with the shape, dtype and numbers of `of`."""
        value = of.detach().as_subclass(Traced)
        value.tracer, value.text = self, name
        return value

    def results(self, expression: str, like: Any, pure: bool = True) -> Any:
        """Return values that stand for what `expression` returns. `like`: a result of that
        structure.
        """
        name = self.assign(expression, pure=pure)
        if isinstance(like, Tensor):
            return self.named(name, like)
        return type(like)(self.named(f"{name}[{index}]", part) for index, part in enumerate(like))

    def function(
        self, f: Callable[..., Any], values: Sequence[Tensor], scalar: bool = False
    ) -> tuple[str, tuple[Any, ...]]:
        """Write `f` as a function of one parameter for each of `values`. Return its name and its
        results.

        A function with one result returns that, not a tuple. `scalar`: `f` itself does so.
        """
        # The body is a scope of its own, whose lines are inlined before the function is written.
        parameters = [self.name("x") for _ in values]
        self.scopes.append(Scope())
        try:
            results = f(*map(self.named, parameters, values))
            outputs = (results,) if scalar else tuple(results)
        finally:
            scope = self.scopes.pop()
        lines, texts = scope.written(list(map(text_of, outputs)))
        returned = python_values.one_or_tuple(texts)
        parameter_list = ", ".join(parameters)
        if not lines:
            # A function that only calls another one is that one: `torch.sin` for `lambda x:
            # torch.sin(x)`.
            called = returned.removesuffix(f"({parameter_list})")
            if called != returned and re.fullmatch(r"[\w.]+", called):
                return called, outputs
            return f"lambda {parameter_list}: {returned}", outputs
        name = self.name("f")
        parts = itertools.chain.from_iterable(map(str.splitlines, lines))
        inner = "".join(f"\n    {part}" for part in parts)
        definition = f"({parameter_list}):{inner}\n    return {returned}"
        self.scopes[-1].lines.append(Line(name, definition, defines=True))
        return name, outputs


def text_of(value: Any) -> str:
    """Return the expression of a traced value, or the literal of any other."""
    if isinstance(value, Traced):
        return value.text
    if isinstance(value, Tensor):
        return python_values.tensor(value)
    if isinstance(value, list):
        return f"[{', '.join(map(text_of, value))}]"
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return python_values.arguments(list(map(text_of, value)))
    return python_values.value(value)


class Traced(torch.Tensor):
    """A tensor whose every use is written down by a tracer."""

    tracer: Tracer
    text: str

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        # torch calls this method if an argument is of this class, so there is at least one.
        leaves = pytree.tree_leaves((args, kwargs))
        traced = [leaf for leaf in leaves if isinstance(leaf, Traced)]
        with unseen_by_classes():
            plain_args, plain_kwargs = pytree.tree_map(_plain, (tuple(args), kwargs))
            result = func(*plain_args, **plain_kwargs)
        name = getattr(func, "__name__", "")
        if name in _ASKING or not _has_tensor(result):
            return result
        # The name of an in-place op ends in one underscore, that of a method of Python in two.
        writes = "out" in kwargs or bool(re.fullmatch(r"\w*[^_]_", name))
        return _write_call(traced[0].tracer, _call(func, args, kwargs), result, pure=not writes)


def _has_tensor(result: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(result))


@contextmanager
def whole_functions() -> Iterator[None]:
    """Write the call of a person's autograd.Function as one line, inside. Its forward alone would
    lose its backward.
    """
    base: Any = torch.autograd.Function
    # `apply` is replaced on the base class, so that functions of any module are seen.
    native = base.__dict__["apply"]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        call = native.__get__(None, cls)
        traced = [argument for argument in args if isinstance(argument, Traced)]
        if not traced:
            return call(*args, **kwargs)
        if not _stands_in_module(cls):
            raise python_values.NoScript(
                f"the op calls {cls.__qualname__}, an autograd.Function that no module has by name"
            )
        with unseen_by_classes():
            result = call(*map(_plain, args), **kwargs)
        tracer = traced[0].tracer
        tracer.modules.add(cls.__module__)
        arguments = ", ".join(map(text_of, args))
        expression = f"{cls.__module__}.{cls.__qualname__}.apply({arguments})"
        return _write_call(tracer, expression, result, pure=True)

    base.apply = classmethod(apply)
    try:
        yield
    finally:
        base.apply = native


def _stands_in_module(cls: type) -> bool:
    """Return whether the module of a class has it by its name, so that a program can call it."""
    found: object = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


def _write_call(tracer: Tracer, expression: str, result: Any, pure: bool) -> Any:
    """Write a line for a call, and return values that stand for its result."""
    name = tracer.assign(expression, pure=pure)
    if isinstance(result, Tensor):
        return tracer.named(name, result)
    parts = list(result)
    for index, part in enumerate(parts):
        if isinstance(part, Tensor):
            parts[index] = tracer.named(f"{name}[{index}]", part)
    if type(result) is list:
        return parts
    return tuple(parts)


def _plain(argument: Any) -> Any:
    if isinstance(argument, Traced):
        return argument.as_subclass(Tensor)
    return argument


def _call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """Return the text of a call."""
    arguments = list(map(text_of, args))
    named = [f"{key}={text_of(value)}" for key, value in kwargs.items()]
    if isinstance(func, (OpOverload, OpOverloadPacket)):
        return f"torch.ops.{func}({', '.join(arguments + named)})"
    if getattr(func, "__name__", "") == "__get__":
        return f"{arguments[0]}.{func.__self__.__name__}"
    path = resolve_name(func) or f"{func.__module__}.{func.__qualname__}"
    if path.startswith("torch.Tensor."):
        method = path.removeprefix("torch.Tensor.")
        if method == "__getitem__":
            return f"{arguments[0]}[{_index(args[1])}]"
        return f"{arguments[0]}.{method}({', '.join(arguments[1:] + named)})"
    if not path.startswith("torch.") or "<" in path:
        raise python_values.NoScript(f"the op calls {path}, which is no function of torch")
    return f"{path}({', '.join(arguments + named)})"


def _index(index: Any) -> str:
    """Return the text of an index."""
    if isinstance(index, tuple):
        return ", ".join(map(_index, index)) or "()"
    if isinstance(index, slice):
        text = f"{_text_of_bound(index.start)}:{_text_of_bound(index.stop)}"
        if index.step is not None:
            text += f":{index.step}"
        return text
    return text_of(index)


def _text_of_bound(bound: Any) -> str:
    if bound is None:
        return ""
    return str(bound)
