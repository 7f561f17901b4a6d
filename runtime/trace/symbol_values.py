"""Makes symbols behave like the numbers that they stand for, while a program is traced.

    scale = getattr(self, f"scale_{x.shape[0]}")

``x.shape[0]`` is a ``torch.SymInt`` in a trace for any sizes. Torch has arithmetic and comparisons
for it. A text of it would be the name of a symbol, and it has no hash, no ``divmod`` and no
``numerator``. What torch does not have, or has otherwise than a number, asks for the value here.
That fixes the size: the graph gets a guard, and another size is traced again. What still fails on a
symbol, such as ``json.dumps``, is traced again with numbers (:class:`.symbols.Fixed`).

``isinstance(n, int)`` is true, except where torch, sympy or this package asks: their code tells
symbols from numbers by it. ``type(n)`` is the class of the symbol.

The methods are put into torch's classes once. They act on symbols of the trace that this thread
runs (:func:`running`), and while its program runs: the graph shows symbols by their names. For any
other symbol each does what torch's method does.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.fx.experimental.sym_node import SymNode

from ..seam.ambient import Ambient
from ..seam.user_code import unwatched
from .number_reads import AskedForNumber, TracedNumber
from .provenance import computes_with_symbols, is_of_python

Number = int | float | bool
KINDS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
"""Of each class of symbols the class of the numbers that they stand for."""


class _Programs(Ambient):
    """The programs that are traced on this thread, by their symbols."""

    # the environments of the traces whose programs run, the innermost last
    environments: tuple[object, ...] = ()
    # gives the node of the innermost graph for a symbol of its environment
    lower: Callable[[Any], Any] | None = None


_PROGRAMS = _Programs()


@contextmanager
def running(environment: object, lower: Callable[[Any], object] | None = None) -> Iterator[None]:
    """Say that the program of the trace with this shape environment runs in this block. ``lower``
    returns the node of its graph for a symbol."""
    before, lower_before = _PROGRAMS.environments, _PROGRAMS.lower
    _PROGRAMS.environments, _PROGRAMS.lower = (*before, environment), lower
    try:
        yield
    finally:
        _PROGRAMS.environments, _PROGRAMS.lower = before, lower_before


@contextmanager
def paused() -> Iterator[None]:
    """Say that no program runs in this block: a text of a symbol is its name, and fixes nothing."""
    before = _PROGRAMS.environments
    _PROGRAMS.environments = ()
    try:
        yield
    finally:
        _PROGRAMS.environments = before


def symbols_may_occur() -> bool:
    """Return whether a program runs whose sizes may be symbols."""
    # a trace on real values has none
    environments = _PROGRAMS.environments
    return environments.count(None) < len(environments)


def has_symbols(value: object) -> bool:
    """Return whether ``value`` is a symbol, or a tuple or list that has one at any depth."""
    if isinstance(value, (tuple, list)):
        return any(map(has_symbols, value))
    return type(value) in KINDS


def _is_ours(symbol: Any) -> bool:
    """Return whether ``symbol`` is one of a program that runs."""
    node = symbol.node
    # a number that was read of a tensor has no environment
    if isinstance(node, TracedNumber):
        return bool(_PROGRAMS.environments)
    environment = getattr(node, "shape_env", None)
    return any(environment is program for program in _PROGRAMS.environments)


def _value(symbol: object) -> Number:
    """Return the number that ``symbol`` stands for. From now on the graph is for it alone."""
    kind = KINDS[type(symbol)]
    number: Number = kind(symbol)
    return number


def _plain(value: object) -> Any:
    """Return the number of a symbol, and any other value as it is."""
    if type(value) in KINDS:
        return _value(value)
    return value


# --- methods that torch's symbols lack, or have otherwise -----------------------------------------


def _define(cls: type, name: str) -> None:
    """Let ``cls`` have the method ``name`` of a number. For a symbol of another trace it does what
    it did before."""
    theirs = getattr(cls, name, None)
    ours: Callable[..., object] = getattr(KINDS[cls], name)

    def method(self: Any, *args: object) -> Any:
        """Do with the number of a symbol of ours what the method of numbers does."""
        if _is_ours(self):
            # `_value` would raise as well, but say `float()`
            if name in _OF_TEXT and isinstance(self.node, TracedNumber):
                raise AskedForNumber(self.node, "str(), or print(),")
            return ours(_value(self), *map(_plain, args))
        if theirs is not None:
            return theirs(self, *args)
        # as Python does without the method: it asks the other operand, or raises
        if args:
            return NotImplemented
        raise TypeError(f"bad operand type for {name}: '{cls.__name__}'")

    method.__name__, method.__qualname__ = name, f"{cls.__name__}.{name}"
    setattr(cls, name, method)


_OF_TEXT = frozenset(("__format__", "__repr__", "__str__"))
_OF_OBJECTS = frozenset(
    [
        "__class__",
        "__delattr__",
        "__dir__",
        "__doc__",
        "__getattribute__",
        "__init__",
        "__init_subclass__",
        "__new__",
        "__reduce__",
        "__setattr__",
        "__sizeof__",
        "__subclasshook__",
        "__getnewargs__",
        "__getformat__",
    ]
)
"""What makes a class an object, and is nothing of a number."""


def _missing_methods(cls: type) -> list[str]:
    """Return the special methods of numbers that ``cls`` lacks, or has as every object does."""
    kind = KINDS[cls]
    missing = []
    for name in dir(kind):
        is_special = name.startswith("__") and name not in _OF_OBJECTS
        if not is_special or not callable(getattr(kind, name)):
            continue
        if getattr(cls, name, None) in (None, getattr(object, name, None)):
            missing.append(name)
    return missing


def _define_round() -> None:
    """Let ``round`` of a symbol take negative digits: torch rounds an integer to itself, whatever
    the digits."""
    theirs: Any = torch.SymInt.__round__

    def round_symbol(self: object, ndigits: object = None) -> object:
        if ndigits is not None and _is_ours(self):
            return round(_value(self), _plain(ndigits))
        return theirs(self, ndigits)

    torch.SymInt.__round__ = round_symbol  # type: ignore[method-assign]


def _define_pow() -> None:
    """Let ``pow`` of a symbol take a modulus: torch has no power modulo a third number."""
    theirs: Callable[..., object] = torch.SymInt.__pow__

    def power(self: object, other: object, modulus: object = None) -> object:
        if modulus is not None and _is_ours(self):
            return pow(_value(self), _plain(other), _plain(modulus))
        if modulus is not None:
            return NotImplemented
        return theirs(self, other)

    torch.SymInt.__pow__ = power  # type: ignore[method-assign]


def _define_text() -> None:
    """Let torch's code in C write the number that a symbol stands for into the text of an error,
    which the program may catch. It asks the node of the symbol."""
    theirs: Callable[[Any], str] = SymNode.str

    def text(self: Any) -> str:
        is_ours = any(self.shape_env is program for program in _PROGRAMS.environments)
        # the size of a result that depends on values has no number
        if not is_ours or not self.has_hint():
            return theirs(self)
        symbols: dict[type, Any] = {number: symbol for symbol, number in KINDS.items()}
        return str(_value(symbols[self.pytype](self)))

    SymNode.str = text  # type: ignore[method-assign]


def _define_real(cls: type, name: str, function: Callable[..., object]) -> None:
    """Compute ``function`` of real numbers from the values, where torch computes another one.

    It takes remainders for those of integers, so that ``k % 2.5`` would be at most 1.5. It rounds a
    quotient before it takes the floor, so that ``3 // 0.1`` would be 30, where Python's is 29.
    """
    theirs: Callable[..., object] = getattr(cls, name)
    real = (float, torch.SymFloat)

    def computed(self: Any, other: object) -> Any:
        """Compute with the numbers if one is real, and else as torch does."""
        is_real = isinstance(self, real) or isinstance(other, real)
        if not is_real or not _is_ours(self):
            return theirs(self, other)
        # the graph has Python's own operator for numbers that are read of tensors
        nodes = self.node, getattr(other, "node", None)
        if any(isinstance(node, TracedNumber) for node in nodes):
            return theirs(self, other)
        return function(_value(self), _plain(other))

    setattr(cls, name, computed)


_INTEGER = (operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor)
_ARITHMETIC = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
    *(operator.mod, operator.pow, *_INTEGER),
)
_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_OWN = (int, float, bool, *KINDS)
"""What torch's methods of symbols know. A tensor has its own for symbols."""


def _operators() -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the names of the methods of two numbers, with the function of each. A reflected method
    has its numbers in the other order."""
    # `operator.and_` has the method `__and__`
    for function in (*_ARITHMETIC, *_COMPARISONS):
        yield f"__{function.__name__.strip('_')}__", function
    for function in _ARITHMETIC:
        yield f"__r{function.__name__.strip('_')}__", function


def _of_reals() -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the methods that torch has for integers alone, with the function of each."""
    for function in (operator.mod, operator.floordiv):
        yield f"__{function.__name__}__", function
        yield f"__r{function.__name__}__", _reflect(function)


def _reflect(function: Callable[..., object]) -> Callable[..., object]:
    """Return ``function`` of its two arguments the other way round."""
    return lambda left, right: function(right, left)


def _is_foreign(value: object) -> bool:
    """Return whether ``value`` is a number of another class: of an enumeration, of NumPy, a
    Decimal. Torch compares by the class alone, so that a size of 8 would not equal ``IntEnum``
    8."""
    kind = type(value)
    if kind in _OWN or isinstance(value, torch.Tensor):
        return False
    # a complex number has no `__float__`
    return isinstance(value, complex) or hasattr(kind, "__float__")


def _are_mixed(first: Any, second: Any) -> bool:
    """Return whether one of two numbers is one that the program has read of a tensor, and the other
    one a size or a number of the state, which torch knows by an expression."""
    if type(second) not in KINDS:
        return False
    if isinstance(first.node, TracedNumber) is isinstance(second.node, TracedNumber):
        return False
    return _PROGRAMS.lower is not None and _is_ours(first) and _is_ours(second)


def _as_read(symbol: Any) -> object:
    """Return ``symbol`` as a number of the graph, as are those that a program reads of tensors."""
    if isinstance(symbol.node, TracedNumber):
        return symbol
    assert _PROGRAMS.lower is not None
    value: Any = None
    if symbol.node.has_hint():
        value = symbol.node.hint
    kind = KINDS[type(symbol)]
    return TracedNumber(_PROGRAMS.lower(symbol), kind, value).as_symbol()


# --- where an expression of torch's is not what Python computes -----------------------------------


def _has_quotient(_: object, divisor: object) -> bool:
    """Return whether Python divides by ``divisor``, and does not raise."""
    return bool(divisor != 0)


def _has_shift(_: object, count: torch.SymInt) -> bool:
    """Return whether Python shifts by ``count``, and does not raise."""
    return bool(count >= 0)


def _has_real_power(base: Any, exponent: float | torch.SymInt) -> bool:
    """Return whether a power is of the class that torch takes it for: of two integers an integer,
    of a real number no complex one."""
    if not any(isinstance(number, (float, torch.SymFloat)) for number in (base, exponent)):
        return bool(exponent >= 0)  # 2 ** -1 is a float
    if type(exponent) is int:
        return exponent >= 0 or bool(base != 0)  # Python raises for 0.0 ** -1
    return bool(base > 0)  # a negative base may give a complex number


def _has_no_negative_zero(*numbers: object) -> bool:
    """Return whether no number is ``-0.0``, which an expression does not tell from ``0``."""
    zeros = (number for number in numbers if type(number) is float and number == 0)
    return all(math.copysign(1, zero) > 0 for zero in zeros)


_DOMAINS: dict[Callable[..., object], Callable[..., bool]] = {
    operator.truediv: _has_quotient,
    operator.floordiv: _has_quotient,
    operator.mod: _has_quotient,
    operator.lshift: _has_shift,
    operator.rshift: _has_shift,
    operator.pow: _has_real_power,
    operator.add: _has_no_negative_zero,
    operator.sub: _has_no_negative_zero,
    operator.mul: _has_no_negative_zero,
}
"""Asks, as a condition of the program, whether an expression of torch's has the value and the
class that Python computes."""


def _is_expression(value: object) -> bool:
    """Return whether ``value`` is a symbol that torch computes with by an expression."""
    return type(value) in KINDS and not isinstance(value.node, TracedNumber)  # type: ignore[attr-defined]


def _is_outside_domain(function: Callable[..., object], a: object, b: object) -> bool:
    """Return whether Python computes another thing of two numbers than torch of their expressions,
    or raises."""
    domain = _DOMAINS.get(function)
    if domain is None:
        return False
    if not all(type(number) in (int, float) or _is_expression(number) for number in (a, b)):
        return False
    # its comparisons become guards, and run torch's code, which is not the user's
    return not unwatched(domain, a, b)


_SIMPLIFIED = (operator.add, operator.sub, operator.mul)
"""Whose results torch has as sums and products of sympy's, which are sorted and merged."""


def _is_real_operation(function: Callable[..., object], a: object, b: object) -> bool:
    """Return whether torch would simplify an operation of real numbers, which Python rounds, and
    their environment has an expression that stays as it is."""
    if function not in _SIMPLIFIED:
        return False
    if not any(isinstance(number, (float, torch.SymFloat)) for number in (a, b)):
        return False
    symbols: list[Any] = [number for number in (a, b) if type(number) not in (int, float)]
    return all(map(_is_expression, symbols)) and all(
        hasattr(symbol.node.shape_env, "real_operation") for symbol in symbols
    )


def _define_of_two(cls: type, name: str, function: Callable[..., object]) -> None:
    """Let the method compute with the value, if the other number is of a class that torch does not
    know, or torch's expression has another value than Python computes. Let it compute with nodes
    of the graph, if only one of both numbers is an expression."""
    theirs: Callable[..., object] | None = getattr(cls, name, None)
    if theirs is None:
        return
    is_reflected = name != f"__{function.__name__.strip('_')}__"
    of_two = _reflect(function) if is_reflected else function

    def method(self: object, other: object, *rest: object) -> Any:
        """Compute with values, with nodes, or as torch does."""
        if _is_foreign(other) and _is_ours(self):
            return of_two(_value(self), other)
        a, b = (other, self) if is_reflected else (self, other)
        # before the expressions: with the numbers Python raises its own error
        if _is_ours(self) and _is_outside_domain(function, a, b):
            return function(_plain(a), _plain(b))
        if _is_real_operation(function, a, b):
            return self.node.shape_env.real_operation(function, a, b)  # type: ignore[attr-defined]
        if _are_mixed(self, other):
            return of_two(_as_read(self), _as_read(other))
        if type(other) in _OWN:
            return unwatched(theirs, self, other, *rest)
        return theirs(self, other, *rest)

    method.__name__, method.__qualname__ = name, f"{cls.__name__}.{name}"
    setattr(cls, name, method)


def _define_attributes(cls: type) -> None:
    """Add the attributes of numbers that torch's class lacks: ``numerator``, ``bit_count``."""
    kind = KINDS[cls]
    public = [name for name in dir(kind) if not name.startswith("_")]
    names = frozenset(name for name in public if not hasattr(cls, name))

    def attribute(self: object, name: str) -> object:
        if name in names and _is_ours(self):
            return getattr(_value(self), name)
        raise AttributeError(f"'{cls.__name__}' object has no attribute '{name}'")

    cls.__getattr__ = attribute  # type: ignore[attr-defined]


def _define_class(cls: type) -> None:
    """Let ``isinstance(n, int)`` be true, except in code that computes with symbols. Python's own
    code, such as ``functools.singledispatch``, asks for who calls it."""
    kind, attribute = KINDS[cls], object.__getattribute__

    def get_attribute(self: object, name: str) -> object:
        """Return the class of the number as ``__class__``, and any other attribute as it is."""
        if name != "__class__" or not _PROGRAMS.environments or not _is_ours(self):
            return attribute(self, name)
        # `isinstance` is in C, so the next frame is that of whoever asks
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and is_of_python(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None or computes_with_symbols(frame.f_code.co_filename):
            return cls
        return kind

    # `__class__` of an existing class cannot become a property
    cls.__getattribute__ = get_attribute  # type: ignore[method-assign, assignment]


def _install() -> None:
    """Put all methods into torch's classes. The operators come last, as they call the methods that
    are defined before."""
    for cls in KINDS:
        for name in (*_missing_methods(cls), "__repr__", "__hash__"):
            _define(cls, name)
        _define_attributes(cls)
        _define_class(cls)
    _define_round()
    _define_pow()
    _define_text()
    for cls in (torch.SymInt, torch.SymFloat):
        for name, function in _of_reals():
            if hasattr(cls, name):
                _define_real(cls, name, function)
    for cls in KINDS:
        for name, function in _operators():
            _define_of_two(cls, name, function)


_install()
