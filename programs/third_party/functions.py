"""Functions as users of torch.autograd.Function write them, in the styles that its
documentation shows."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def _apply(function: Any, *args: Any) -> Any:
    return function.apply(*args)


class _Cube(torch.autograd.Function):
    """Every rule by hand: a formula for each mode, and batches by torch's own rule. An intermediate
    is saved as a further output."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * x * x, 3 * x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, output[1])
        ctx.save_for_forward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_slope: Tensor) -> Any:
        x, slope = ctx.saved_tensors
        return grad * slope + grad_slope * 6 * x

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, Tensor]:
        x, slope = ctx.saved_tensors
        return tangent * slope, tangent * 6 * x


class _Square(torch.autograd.Function):
    """A formula for forward mode alone."""

    @staticmethod
    def forward(x: Tensor) -> Any:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Any:
        return 2 * ctx.saved_tensors[0] * tangent


class _Power(torch.autograd.Function):
    """Arguments that are no tensors, and a rule for batches by hand."""

    @staticmethod
    def forward(x: Tensor, exponent: int, negate: bool) -> Tensor:
        y = x**exponent
        return -y if negate else y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.exponent, ctx.negate = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        slope = ctx.exponent * x ** (ctx.exponent - 1)
        return grad * (-slope if ctx.negate else slope), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, exponent: int, negate: bool) -> Any:
        return _apply(_Power, x, exponent, negate), in_dims[0]


class _Largest(torch.autograd.Function):
    """A second output that has no derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        places = x.argmax(-1, keepdim=True)
        return x.gather(-1, places), places

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        x, places = ctx.saved_tensors
        return torch.zeros_like(x).scatter(-1, places, grad)


class _SumAndDifference(torch.autograd.Function):
    """Gradients of unused outputs are None instead of zeros."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, x - y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Any:
        if first is None or second is None:
            return (first, first) if second is None else (second, -second)
        return first + second, first - second


class _Exp(torch.autograd.Function):
    """The older style: one method runs and saves. An output is saved. torch.func
    refuses this style."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.saved_tensors[0]


class _Once(torch.autograd.Function):
    """A backward pass by NumPy, which cannot be differentiated."""

    @staticmethod
    def forward(x: Tensor) -> Any:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.saved_tensors[0].cos()


def cube(x: Tensor) -> Tensor:
    """x³."""
    result: Tensor = _apply(_Cube, x)[0]
    return result


def square(x: Tensor) -> Tensor:
    """x²."""
    result: Tensor = _apply(_Square, x)
    return result


def power(x: Tensor, exponent: int, negate: bool = False) -> Tensor:
    """±xⁿ."""
    result: Tensor = _apply(_Power, x, exponent, negate)
    return result


def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest element of each row, and its place."""
    values, places = _apply(_Largest, x)
    return values, places


def second_of_two(x: Tensor, y: Tensor) -> Tensor:
    """x - y, by a function that gives x + y too."""
    result: Tensor = _apply(_SumAndDifference, x, y)[1]
    return result


def exp(x: Tensor) -> Tensor:
    """e to the x."""
    result: Tensor = _apply(_Exp, x)
    return result


def once(x: Tensor) -> Tensor:
    """sin x, which can be differentiated once."""
    result: Tensor = _apply(_Once, x)
    return result


def beside_a_constant(x: Tensor) -> tuple[Tensor, Tensor]:
    """sin x, and numbers that do not depend on it."""
    return x.sin(), torch.arange(3.0, dtype=x.dtype)
