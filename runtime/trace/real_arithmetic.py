"""Sums and products of real numbers, as expressions that nothing simplifies.

    (n * 0.1) * 10        # 7.000000000000001 for n = 7

Sympy's ``Mul`` merges the two factors to ``1.0 * n``, which is 7.0: real numbers of a computer are
not associative, and ``n + 1e16 - 1e16`` is not ``n``. So a sum or product with a real operand is a
function of sympy's that has no rules: :class:`RealSum` and :class:`RealProduct`. Quotients and
powers of torch's are such functions already.

Torch's interpreter of expressions calls the handler that ``_torch_handler_name`` names. Printers
show Python's own operator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, ClassVar

import sympy  # type: ignore[import-untyped]

__all__ = ["RealProduct", "RealSum", "operation"]


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


def operation(function: Callable[..., object], first: object, second: object) -> Any:
    """Return a sum, difference or product of two expressions, of which at least one is real.

    ``function``: ``operator.add``, ``operator.sub`` or ``operator.mul``.
    """
    return _EXPRESSIONS[function](first, second)
