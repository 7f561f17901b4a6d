"""Run an op whose result has another dtype than its arguments: ``out_dtype``. In a graph it is one
call.

    out_dtype(torch.ops.aten.mm.default, torch.int32, x, w)
    # of int8 matrices, without an overflow

Its derivative and its batch are those of the op on arguments of a dtype that holds
them and the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...autograd.function_rules import VmapInfo
from ...func.grad import vjp
from ...func.jvp import jvp
from ...func.vmap import vmap
from ...rules.ops import DIFFERENTIABLE
from ...seam.levels import Value
from ...session.tensor import unwrap
from ...torch_private.dispatcher import OpOverload, PromotionKind, elementwise_dtypes
from ...torch_private.mode_stacks import current_dispatch_mode, without_modes
from ...torch_private.pytrees import pytree
from ...trace.trace_level import Trace
from .branches import ControlFlow
from .conditions import replaced
from .torch_operators import Tensors, stands_for, through_levels

_OPERATOR = torch.ops.higher_order.out_dtype


@stands_for(_OPERATOR)
def _apply(op: object, dtype: torch.dtype, *args: object) -> object:
    """Call ``torch.ops.higher_order.out_dtype`` for values of any level."""
    return _OutDtype.apply(op, dtype, *args)


def _compute_by_parts(
    op: Callable[..., torch.Tensor], dtype: torch.dtype, args: Sequence[object]
) -> torch.Tensor:
    """Compute the result by a conversion to a wide dtype, the op, and a conversion back."""
    tensors = [
        argument for argument in pytree.tree_leaves(args) if isinstance(argument, torch.Tensor)
    ]
    # the result takes part in the promotion as a tensor of ``dtype`` without memory
    wide = elementwise_dtypes(
        *tensors,
        torch.empty(1, dtype=dtype, device="meta"),
        type_promotion_kind=PromotionKind.DEFAULT,
    )[0]
    converted = (
        argument.to(wide) if isinstance(argument, torch.Tensor) else argument for argument in args
    )
    return op(*converted).to(dtype)


def _tensors_at(args: Sequence[object]) -> list[int]:
    """Return the places of the tensors among ``args``."""
    return [index for index, argument in enumerate(args) if isinstance(argument, torch.Tensor)]


def _function_of(
    op: OpOverload, dtype: torch.dtype, args: Sequence[object], moving: Sequence[int]
) -> Callable[..., torch.Tensor]:
    """Return the result as a function of the arguments ``moving``."""
    return lambda *some: _compute_by_parts(op, dtype, replaced(args, moving, some))


class _OutDtype(ControlFlow):
    """Differentiate and batch one call of ``out_dtype``.

    It takes the op, the dtype of its result and its arguments.
    """

    @staticmethod
    def forward(op: OpOverload, dtype: torch.dtype, *args: Any) -> torch.Tensor:
        """Compute the results, or write the call to a graph."""
        at = _tensors_at(args)

        def again(tensors: Sequence[object]) -> Tensors:
            return (_OutDtype.forward(op, dtype, *replaced(args, at, tensors)),)

        def compute() -> Tensors:
            """Compute the result by torch's operator, or by its parts."""
            plain = [unwrap(args[index]) for index in at]
            of_level = any(isinstance(tensor, Value) for tensor in plain)
            # Here torch's operator would call this function again, or not know the mode. The parts
            # are calls of ATen, which every level and mode knows.
            if of_level or current_dispatch_mode() is not None:
                return (_compute_by_parts(op, dtype, args),)
            return (_OPERATOR(op, dtype, *replaced(args, at, plain)),)

        tensors = [args[index] for index in at]
        return through_levels(
            tensors, again, lambda trace: (_record(trace, op, dtype, args, at),), compute
        )[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[object, ...], output: torch.Tensor) -> None:
        """Save what the derivatives need."""
        ctx.op, ctx.dtype, *args = inputs
        at = _tensors_at(args)
        ctx.args = replaced(args, at, [None] * len(at))
        ctx.at = at
        ctx.save_for_backward(*(args[index] for index in at))
        ctx.save_for_forward(*(args[index] for index in at))

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[object, ...]:
        """Return the gradients of the operands."""
        args = replaced(ctx.args, ctx.at, ctx.saved_tensors)
        # the inputs of the Function begin with the op and the dtype
        moving = [
            index
            for index in ctx.at
            if args[index].dtype in DIFFERENTIABLE and ctx.needs_input_grad[index + 2]
        ]
        function = _function_of(ctx.op, ctx.dtype, args, moving)
        _, pullback = vjp(function, *(args[index] for index in moving))
        gradients = pullback(g)
        return (None, None, *replaced([None] * len(args), moving, gradients))

    @staticmethod
    def jvp(ctx: Any, *tangents: object) -> object:
        """Return the tangents of the results."""
        args = replaced(ctx.args, ctx.at, ctx.saved_tensors)
        moving = [index for index, tangent in enumerate(tangents[2:]) if tangent is not None]
        primals, directions = (
            tuple(x[position] for position in moving) for x in (args, tangents[2:])
        )
        _, tangent = jvp(_function_of(ctx.op, ctx.dtype, args, moving), primals, directions)
        return tangent

    @staticmethod
    def vmap(
        info: VmapInfo,
        in_dims: tuple[object, ...],
        op: OpOverload,
        dtype: torch.dtype,
        *args: object,
    ) -> tuple[torch.Tensor, int]:
        """Return the results for a batch, and their batch dimensions."""
        at = _tensors_at(args)
        each = vmap(
            _function_of(op, dtype, args, at),
            tuple(in_dims[2 + index] for index in at),
            randomness=info.randomness,
        )
        return each(*(args[index] for index in at)), 0


def _record(
    trace: Trace, op: OpOverload, dtype: torch.dtype, args: Sequence[object], at: Sequence[int]
) -> torch.Tensor:
    """Write one call to the graph of ``trace``."""
    nodes = replaced(args, at, [trace.lower_output(args[index]) for index in at])
    inner = replaced(args, at, trace.lowered_args([args[index] for index in at]))
    with without_modes():
        if trace.abstraction is None:
            out = _OPERATOR(op, dtype, *inner)
        else:
            # only shape and dtype of the result are needed, and the parts have the same
            with trace.abstraction.running():
                out = _compute_by_parts(op, dtype, inner)
    noted: torch.Tensor = trace.noted(_OPERATOR, (op, dtype, *nodes), out)
    return noted
