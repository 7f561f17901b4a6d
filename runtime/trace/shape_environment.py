"""Decide conditions on sizes and numbers: torch's shape environment, right for real numbers too.

Torch's own takes real numbers for rational ones, and their ranges for those of integers. Example:

    (n * 0.1) * 10        # 7.000000000000001 for n = 7

Sympy's ``Mul`` merges the two factors to ``1.0 * n``, which is 7.0: real numbers of a computer are
not associative, and ``n + 1e16 - 1e16`` is not ``n``. So a sum or product with a real operand is a
function of sympy's that has no rules: :class:`RealSum` and :class:`RealProduct`. Quotients and
powers of torch's are such functions already.

Torch's interpreter of expressions calls the handler that ``_torch_handler_name`` names. Printers
show Python's own operator.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ..torch_private.symbolic_shapes import IntTrueDiv, TruncToInt, forgetful_cache

# as `SYMBOLIC` of `symbols.py`, which imports this
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class _RealOperation(sympy.Function):  # type: ignore[misc]
    """An operation of two numbers, of which at least one is real."""

    is_real = True
    symbol: ClassVar[str]
    saved_as: ClassVar[str]
    """The function of sympy's in an exported program, whose sizes other packages read."""
    compute: ClassVar[Callable[[float, float], float]]

    @classmethod
    def eval(cls, first: Any, second: Any) -> Any:
        """Return the result of two constants. None: the operation stays as it is."""
        if first.is_Number and second.is_Number:
            return sympy.Float(cls.compute(float(first), float(second)))
        return None

    def _torch_sympystr(self, printer: sympy.printing.StrPrinter) -> str:
        first, second = map(printer.doprint, self.args)
        return f"(({first}) {self.symbol} ({second}))"

    _sympystr = _torch_sympystr  # what `str` shows

    def _sympyrepr(self, printer: Any) -> str:
        first, second = map(printer.doprint, self.args)
        return f"{self.saved_as}({first}, {second})"


class RealSum(_RealOperation):
    """A sum of two numbers, of which at least one is real."""

    _torch_handler_name = "add"
    symbol = "+"
    saved_as = "Add"
    compute = operator.add


class RealProduct(_RealOperation):
    """A product of two numbers, of which at least one is real."""

    _torch_handler_name = "mul"
    symbol = "*"
    saved_as = "Mul"
    compute = operator.mul


_EXPRESSIONS: dict[Callable[..., object], Callable[[Any, Any], Any]] = {
    operator.add: RealSum,
    operator.sub: lambda first, second: RealSum(first, -second),  # the same bits, by IEEE 754
    operator.mul: RealProduct,
}


def _real_operation(function: Callable[..., object], first: object, second: object) -> Any:
    """Return a sum, difference or product of two expressions, of which at least one is real.

    ``function``: ``operator.add``, ``operator.sub`` or ``operator.mul``.
    """
    return _EXPRESSIONS[function](first, second)


def _cut_below_zero(expr: object) -> Iterator[object]:
    """Yield the integer parts of quotients in ``expr`` that may be negative."""
    if not isinstance(expr, sympy.Basic):
        return
    for part in expr.atoms(TruncToInt):
        quotient = part.args[0]
        if isinstance(quotient, IntTrueDiv) and not all(
            argument.is_nonnegative for argument in quotient.args
        ):
            yield part


class ShapeEnvironment(ShapeEnv):
    """A shape environment in which a condition on a real number becomes a guard, and is never
    decided by the ranges of its parts. Torch's ranges are those of integers: it concludes that
    ``k % 1.5`` is at most 0.5.

    Torch also takes the integer part of a quotient for its floor, which is another one below zero.

    Torch's caches of what follows from conditions are of the class, and keep environments alive.
    Here each has its own. ``checked``: whether calls of the graph check the conditions.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.checked = True
        # torch never clears the caches of these, since their results depend on no condition
        for name in ("get_implications", "_maybe_guard_rel", "_inner_evaluate_expr"):
            self._cache(name, functools.lru_cache(None))
        for name in (
            "_find",
            "_maybe_evaluate_static",
            "_simplify_floor_div",
            "_update_divisible",
            "get_axioms",
            "replace",
            "simplify",
        ):
            self._cache(name, forgetful_cache)  # which forgets when a condition is added
        decided: Any = self._maybe_evaluate_static

        # None: torch then compares the hints, and the condition becomes a guard
        def by_hint(expr: object, **options: object) -> object:
            if _real(expr) and not (options.get("unbacked_only") or options.get("compute_hint")):
                return None
            return decided(expr, **options)

        # torch clears the cache of the method that it finds
        by_hint.cache_clear = decided.cache_clear  # type: ignore[attr-defined]
        self._maybe_evaluate_static = by_hint  # type: ignore[assignment]
        simplified: Any = self.simplify

        # torch would take these integer parts for floors, so it must not see them
        def exact(expr: Any, *rest: object, **options: object) -> object:
            stand_ins = {part: sympy.Dummy(integer=True) for part in _cut_below_zero(expr)}
            if stand_ins:
                expr = expr.xreplace(stand_ins)
            result = simplified(expr, *rest, **options)
            return result.xreplace({dummy: part for part, dummy in stand_ins.items()})

        exact.cache_clear = simplified.cache_clear  # type: ignore[attr-defined]
        self.simplify = exact  # type: ignore[assignment]

    def real_operation(
        self, function: Callable[..., object], first: object, second: object
    ) -> torch.SymFloat:
        """Return a sum, difference or product of two numbers, of which one is real, as a symbol
        that torch does not simplify. ``first``, ``second``: numbers, or symbols from here."""
        hints = [_hint(number) for number in (first, second)]
        hint: Any = None
        if None not in hints:
            hint = function(*hints)
        expression = _real_operation(function, *map(_expression, (first, second)))
        result: Any = self.create_symfloatnode(expression, hint=hint)
        return result  # type: ignore[no-any-return]

    def _cache(self, name: str, cache: Callable[[Any], Any]) -> None:
        """Give this environment a ``cache`` of its own for its method ``name``."""
        uncached = getattr(getattr(ShapeEnv, name, None), "__wrapped__", None)
        if uncached is not None:  # else another version of torch has no cache here
            setattr(self, name, types.MethodType(cache(uncached), self))

    def _maybe_fast_eval_comparison(self, expr: object) -> object:
        if _real(expr):
            return None  # not known: torch asks `_maybe_evaluate_static` next
        return super()._maybe_fast_eval_comparison(expr)


def _expression(number: object) -> Any:
    """Return a number, or a symbol of torch's, as an expression of sympy's."""
    if isinstance(number, _SYMBOLS):
        return number.node.expr
    return sympy.sympify(number)


def _hint(number: object) -> Any:
    """Return the number that a symbol stands for in this trace. None: it has none."""
    if not isinstance(number, _SYMBOLS):
        return number
    if number.node.has_hint():
        return number.node.hint
    return None


def _real(expression: Any) -> bool:
    """Return whether a number in ``expression`` is no integer."""
    return any(
        part.is_Float or (part.is_Symbol and not part.is_integer) for part in expression.atoms()
    )
