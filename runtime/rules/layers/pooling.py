"""Register average and maximum pooling. Averages are linear. A maximum is a gather of the chosen
elements, and its transpose a scatter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel
from ..derive.batch_rules import each, expand
from ..derive.families import linear
from ..derive.fixed_layouts import fold
from ..record import asking, kernels, overload, register

# Averages

_AVERAGE = (
    "kernel_size",
    "stride",
    "padding",
    "ceil_mode",
    "count_include_pad",
    "divisor_override",
)


def _average(name: str, rank: int, *options: str) -> None:
    """Register ``name(self, …)`` and ``name_backward(g, self, …)``. The latter uses only the
    shape of ``self``."""
    forward, backward = getattr(kernels, name), getattr(kernels, f"{name}_backward")
    linear(
        name,
        {"self": asking("g", "self", *options)(lambda g, self, *rest: backward(g, self, *rest))},
        fold(rank),
    )
    # the transpose of the transpose is the average itself;
    # an adaptive one has no options but the output's size, which is that of the cotangent
    if options:
        again = asking("g", *options)(lambda g, *rest: forward(g, *rest))
    else:
        again = asking("g", "grad_output_shape")(lambda g, shape: forward(g, shape[2 - rank :]))
    linear(
        f"{name}_backward",
        {"grad_output": again, "self": lambda g: torch.zeros_like(g)},
        fold(rank),
    )


_average("avg_pool2d", 4, *_AVERAGE)
_average("avg_pool3d", 5, *_AVERAGE)
_average("_adaptive_avg_pool2d", 4)
_average("_adaptive_avg_pool3d", 5)

# Maxima

# The backward takes a result of the forward by another name.
_SAVED_AS = {"indices": "result1"}


def _pick(t: torch.Tensor, indices: torch.Tensor, spatial: int) -> torch.Tensor:
    """Return the elements of ``t`` at ``indices``, which index its last ``spatial`` dimensions as
    if flattened."""
    return t.flatten(-spatial).gather(-1, indices.flatten(-spatial)).reshape(indices.shape)


def _maximum(
    name: str,
    spatial: int,
    batch: object,
    *,
    abstract: object = None,
    abstract_backward: object = None,
) -> None:
    """Register ``name(self, …) -> (values, indices)`` and ``name_backward(g, self, …, indices)``,
    which is linear in ``g``."""
    backward = getattr(kernels, f"{name}_backward")
    # behind the cotangent and the input, which the formulas name themselves
    backward_arguments = [
        argument.name for argument in overload(f"{name}_backward")._schema.arguments[2:]
    ]
    needed = [_SAVED_AS.get(argument, argument) for argument in backward_arguments]
    register(
        name,
        vjp={"self": asking("g", "self", *needed)(lambda g, self, *rest: backward(g, self, *rest))},
        jvp={"self": lambda self_t, result1: (_pick(self_t, result1, spatial), None)},
        batch=batch,
        nondiff=(1,),
        fresh=True,
        cost="high",
        abstract=abstract,
        family="pooling",
    )
    linear(
        f"{name}_backward",
        {
            "grad_output": lambda g, indices: _pick(g, indices, spatial),
            "self": lambda g: torch.zeros_like(g),
        },
        fold(spatial + 2),
        fresh=True,
        abstract=abstract_backward,
    )


def _fractional_batch(spatial: int) -> object:
    """Return the batch rule of fractional pooling. Samples are (N, C, spatial) even if the input
    has no N."""

    def rule(
        func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: object
    ) -> object:
        """Pool with the batch folded into N, or as N."""
        x, kernel, output, samples = args
        x = expand(x, batched[0], size)
        samples = expand(samples, batched[3], size).flatten(0, 1)
        if x.dim() == spatial + 2:
            return func(x, kernel, output, samples)
        return each(
            func(x.flatten(0, 1), kernel, output, samples),
            lambda o: o.reshape(size, x.shape[1], *o.shape[1:]),
        )

    return rule


def _fractional_abstract(
    self: torch.Tensor, kernel_size: Sequence[int], output_size: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an abstract result.

    Torch's abstract kernel in three dimensions takes sizes as numbers, so a graph of symbolic sizes
    would be for one size.
    """
    for size, window, out in zip(self.shape[-3:], kernel_size, output_size, strict=True):
        if out + window - 1 > size:
            raise RuntimeError(
                "fractional_max_pool3d: "
                f"a window of {window} with {out} results does not fit into a size of {size}"
            )
    shape = [*self.shape[:-3], *output_size]
    return self.new_empty(shape), self.new_empty(shape, dtype=torch.long)


_maximum("max_pool2d_with_indices", 2, fold(4))
_maximum("max_pool3d_with_indices", 3, fold(5))
_maximum("adaptive_max_pool2d", 2, fold(4))
_maximum("adaptive_max_pool3d", 3, fold(5))
_maximum("fractional_max_pool2d", 2, _fractional_batch(2))
_maximum(
    "fractional_max_pool3d",
    3,
    _fractional_batch(3),
    abstract=_fractional_abstract,
    abstract_backward=lambda self: torch.empty_like(self),
)


def _unpool(name: str, spatial: int) -> None:
    """Register an op that scatters elements to ``indices``, whose transpose picks them again."""
    linear(name, {"self": lambda g, indices: _pick(g, indices, spatial)}, fold(spatial + 2))


_unpool("max_unpool2d", 2)
_unpool("max_unpool3d", 3)
