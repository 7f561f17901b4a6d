"""Writes into the graph what a traced program computes from numbers that it reads of tensors by
``item()``, as Python does it.

    x.mul_(1 - 0.9 ** step.item())

In the graph are the number of ``step``, ``operator.pow(0.9, number)``, ``operator.sub(1.0, …)`` and
the product. Nothing is simplified, so that a replay gives the bits of eager mode. (Torch's own
symbols are expressions, whose terms are sorted and merged.)

A branch is followed: the graph is for the side that is taken, and asks at that point whether the
number is on that side (:func:`on_side`). A program that asks for the value in another way, as a
size, an index or by ``float()``, gets an error with its line.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import fx

from ..seam.ambient import Ambient
from ..seam.user_code import noted
from .provenance import here

Number = float | bool | None


class OtherSide(Exception):
    """A number in a graph is not on the side of a branch for which the graph was captured."""

    def __init__(self, where: str = "", way: str = "") -> None:
        super().__init__(f"a branch takes another side.{where}")
        # the branch, as the end of an error message
        self.where = where
        # the sides that the call takes so far, of the branches in their order
        self.way = way


def on_side(number: float | bool, side: bool, where: str = "", before: str = "") -> None:
    """Raise :class:`OtherSide` unless a branch on ``number`` takes this side. Graphs call this.
    ``where``: the branch, as the end of an error message. ``before``: the way to the branch."""
    if bool(number) is not side:
        raise OtherSide(where, before + _sign(not side))


def _sign(side: bool) -> str:
    return "+" if side else "-"


class _Way(Ambient):
    """The sides of branches of the program of this thread."""

    # the sides that the program is to take
    ahead: str = ""
    # the sides that it has taken, such as ``"+-+"``
    taken: str = ""
    # the sides that it guesses where it does not know them
    likely: str = ""
    # how often it may guess a side
    guesses: int = 0


_WAY = _Way()
_GUESSES = 16
"""Of a loop that waits for a number a trace on abstract values would never come to the end."""


@contextmanager
def going(ahead: str, likely: str = "") -> Iterator[None]:
    """Trace a program on the way ``ahead``, and on the sides of its own numbers after that. A trace
    draws other random numbers than a call, so that its own numbers may be on other sides. A trace
    on abstract values has none, and guesses that it goes on as on the way ``likely``. The graph
    says where the way is another one."""
    before = _WAY.ahead, _WAY.taken, _WAY.likely, _WAY.guesses
    _WAY.ahead, _WAY.taken, _WAY.likely, _WAY.guesses = ahead, "", likely, _GUESSES
    try:
        yield
    finally:
        _WAY.ahead, _WAY.taken, _WAY.likely, _WAY.guesses = before


def way_so_far() -> str:
    """Return the sides that the program of this thread has taken, such as ``"+-+"``."""
    return _WAY.taken


class AskedForNumber(RuntimeError):
    """The program asks for the value of ``number``, which it has read of a tensor or computed
    of such numbers."""

    def __init__(self, number: TracedNumber, what: str) -> None:
        super().__init__(
            f"{what} asks for the value of a number that the program has read "
            "of a tensor by item(). The graph would keep today's value for ever. "
            "Use torch.where for a choice, pass the number as an argument of its own, "
            f"or leave this part out of what is traced.{here()}"
        )
        self.number = number
        noted(self)  # torch's code in C raises it in the program


_SYMBOLS: dict[type, Any] = {float: torch.SymFloat, int: torch.SymInt, bool: torch.SymBool}
"""By the class of a number the symbol that a program sees."""


class TracedNumber:
    """A number of the program, behind a symbol of torch's."""

    __slots__ = ("kind", "node", "sources", "value")

    def __init__(
        self,
        node: fx.Node | Number,
        kind: type,
        value: Number,
        sources: frozenset[fx.Node] = frozenset(),
    ) -> None:
        # the node of the graph that computes it, or a constant
        self.node = node
        # ``float``, ``int`` or ``bool``
        self.kind = kind
        # the number in the run that is traced; None in a trace on abstract values
        self.value = value
        # the nodes that have read it of tensors
        self.sources = sources

    @staticmethod
    def read(node: fx.Node, kind: type, value: Number) -> TracedNumber:
        """Return the number of class ``kind`` that ``node`` reads of a tensor."""
        number = TracedNumber(node, kind, value, frozenset((node,)))
        number.as_symbol()
        return number

    def as_symbol(self) -> Any:
        """Return the symbol that the program sees."""
        symbol: Any = _SYMBOLS[self.kind](self)
        if isinstance(self.node, fx.Node):
            self.node.meta["val"] = symbol
        return symbol

    def _call(
        self, function: Callable[..., Any], *others: TracedNumber, kind: type | None = None
    ) -> TracedNumber:
        """Return ``function`` of this number and ``others``, of class ``kind``, as a call of the
        graph. None is the class of this number, which torch has given the others as well."""
        operands = (self, *others)
        if kind is None:
            kind = self.kind
        graph = self._graph(*others)
        values = [number.value for number in operands]
        # the program branches on what it computes, so the number of this run goes along
        value = None
        if None not in values:
            value = function(*values)
        node = graph.call_function(function, tuple(number.node for number in operands))
        sources = frozenset[fx.Node]().union(*(number.sources for number in operands))
        result = TracedNumber(node, kind, value, sources)
        result.as_symbol()
        return result

    def _graph(self, *others: TracedNumber) -> fx.Graph:
        """Return the graph of the first of these numbers that is a node. Raise if all are
        constants."""
        for number in (self, *others):
            if isinstance(number.node, fx.Node):
                return number.node.graph
        # torch has taken a condition for 0 or 1, which a float would not be
        raise AskedForNumber(self, "arithmetic on a condition")

    # What torch asks of the node of a symbol. The names and their meaning are those of
    # ``torch.fx.experimental.sym_node.SymNode``.

    def is_int(self) -> bool:
        return self.kind is int

    def is_float(self) -> bool:
        return self.kind is float

    def is_bool(self) -> bool:
        return self.kind is bool

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def maybe_as_int(self) -> None:
        return None

    def maybe_as_float(self) -> None:
        return None

    def maybe_as_bool(self) -> None:
        return None

    def has_hint(self) -> bool:
        return False

    def wrap_float(self, number: float) -> TracedNumber:
        return TracedNumber(float(number), float, float(number))

    def wrap_int(self, number: int) -> TracedNumber:
        # torch has made the other number real before, if this one is
        return TracedNumber(self.kind(number), self.kind, self.kind(number))

    def wrap_bool(self, flag: bool) -> TracedNumber:
        return TracedNumber(flag, bool, flag)

    def expect_true(self, *where: object) -> bool:
        """Return a condition that torch sets for symbols alone, such as that the base of a power is
        not negative."""
        return True

    def float_pow(self, exponent: TracedNumber) -> TracedNumber:
        """Return a power. Where another base or exponent may make it complex, the graph asks."""
        # a power of these is real for any other number, so the graph need not ask
        if not (self._is_positive_constant() or exponent._is_integer_constant()):
            values = self.value, exponent.value
            if None not in values and isinstance(operator.pow(*values), complex):
                raise AskedForNumber(self, "a power, which is complex,")
            return self._call(real_power, exponent)
        return self._call(operator.pow, exponent)

    def _is_positive_constant(self) -> bool:
        return isinstance(self.node, float) and self.node > 0

    def _is_integer_constant(self) -> bool:
        return isinstance(self.node, float) and self.node.is_integer()

    def guard_float(self, *where: object) -> NoReturn:
        raise AskedForNumber(self, "float(), or a function of numbers,")

    def guard_bool(self, *where: object) -> bool:
        """Return the side that the program takes at a branch on this condition, and let the graph
        ask for it. ``where``: the file and line that torch passes, which are its own."""
        before = _WAY.taken
        # the way that a replay has asked for, then the value of the run, then a guess
        if len(before) < len(_WAY.ahead):
            side = _WAY.ahead[len(before)] == _sign(True)
        elif self.value is not None:
            side = bool(self.value)
        elif _WAY.guesses:
            _WAY.guesses -= 1
            side = _WAY.likely[len(before) :][:1] != _sign(False)
        else:
            raise AskedForNumber(self, "a condition")
        _WAY.taken += _sign(side)
        self._graph().call_function(on_side, (self.node, side, here(), before))
        return side

    def guard_int(self, *where: object) -> NoReturn:
        raise AskedForNumber(self, "int(), or a size,")

    def int_(self) -> NoReturn:
        self.guard_int()

    def bool_(self) -> bool:
        return self.guard_bool()

    def __str__(self) -> str:
        """Return the name of the number. While its program runs :mod:`.symbol_values` refuses a
        text."""
        return f"item({self.node})"

    def _graph_repr(self) -> str:
        return str(self)


_ARITHMETIC: dict[str, Callable[..., object]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "mod": operator.mod,
    "int_floordiv": operator.floordiv,
    "pow_by_natural": operator.pow,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "sym_and": operator.and_,
    "sym_or": operator.or_,
    "neg": operator.neg,
    "pos": operator.pos,
    "abs": operator.abs,
    "sym_min": min,
    "sym_max": max,
}
_REAL_ARITHMETIC: dict[str, Callable[..., object]] = {
    "float_truediv": operator.truediv,
    "int_truediv": operator.truediv,
    "sym_float": float,
    "sym_sqrt": math.sqrt,
    "sym_exp": math.exp,
    "sym_log": math.log,
}


def real_power(base: float, exponent: float) -> float:
    """Return a power as Python does. ``ValueError`` for a complex one: the graph is for a real
    number."""
    power = base**exponent
    if isinstance(power, complex):
        raise ValueError(
            f"{base} ** {exponent} is complex, in a graph that is for a real number. Compute it by "
            "tensors of a complex dtype."
        )
    return float(power)


_COMPARISONS: dict[str, Callable[..., object]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


MAY_RAISE: frozenset[Callable[..., object]] = frozenset(
    (
        *(operator.truediv, operator.floordiv, operator.mod, operator.pow, real_power),
        *(operator.lshift, operator.rshift, math.sqrt, math.exp, math.log),
    )
)
"""Arithmetic that Python refuses for some numbers, so that a call is not left out as unused."""
_TO_INTEGERS = ("trunc", "floor", "ceil", "round", "is_integer")


def _method(function: Callable[..., object], kind: type | None) -> Callable[..., TracedNumber]:
    return lambda number, *others: number._call(function, *others, kind=kind)


for _name, _function in _ARITHMETIC.items():
    setattr(TracedNumber, _name, _method(_function, None))
for _name, _function in _REAL_ARITHMETIC.items():
    setattr(TracedNumber, _name, _method(_function, float))
for _name, _function in _COMPARISONS.items():
    setattr(TracedNumber, _name, _method(_function, bool))
# such a number is real or a condition, and an integer that follows from it asks for the value
for _name in _TO_INTEGERS:
    setattr(TracedNumber, _name, TracedNumber.guard_int)


def number_of(argument: object) -> TracedNumber | None:
    """Return what ``argument`` stands for, if it is a number that a program has read of a
    tensor."""
    if not isinstance(argument, (torch.SymFloat, torch.SymInt, torch.SymBool)):
        return None
    node = argument.node
    if not isinstance(node, TracedNumber):
        return None
    return node


def with_values(args: Any) -> Any:
    """Return the arguments of a call on the tensors of a trace, with a value for each number that
    the program has read."""
    if isinstance(args, dict):
        return dict(zip(args, with_values(list(args.values())), strict=True))
    if type(args) in (list, tuple):
        return type(args)(map(with_values, args))
    number = number_of(args)
    if number is None:
        return args
    if number.value is None:
        return 0.5  # any number does for abstract tensors
    return number.value
