"""Register sums, factories and fills, the ops that the transforms themselves use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive import batch_rules as batch
from ..derive.families import flat, linear, random
from ..derive.fixed_layouts import same
from ..derive.reduction_records import rows
from ..record import asking, register


def _sum_batch(
    func: object, size: int, batched: object, args: Sequence[torch.Tensor], kwargs: Keywords
) -> object:
    return rows(args[0]).sum(1, **kwargs)


def spread(g: torch.Tensor, shape: Sequence[int], dim: object, keepdim: bool) -> torch.Tensor:
    """Return the cotangent of a sum, expanded over the dimensions that were summed.

    ``shape``: that of the argument of the sum. ``dim``, ``keepdim``: those of the call. None and
    ``[]`` mean all dimensions.
    """
    rank = len(shape)
    if keepdim or not rank:
        return g.expand(shape)
    # in rising order, so that each number is that of the final shape
    for summed in sorted({each % rank for each in _dims_to_sum(dim, rank)}):
        g = g.unsqueeze(summed)
    return g.expand(shape)


def _dims_to_sum(dim: object, rank: int) -> Iterable[int]:
    """Return the dimensions that ``dim`` of a reduction names. None and ``[]``: all."""
    if isinstance(dim, int):
        return [dim]
    if isinstance(dim, (list, tuple)) and dim:
        return dim
    return range(rank)


linear(
    "sum",
    {"self": lambda g, self_shape: g.expand(self_shape)},
    _sum_batch,
    fresh=True,
    family="reduction",
)
linear(
    "sum.dim_IntList",
    {"self": lambda g, self_shape, dim, keepdim: spread(g, self_shape, dim, keepdim)},
    batch.along(1),
    family="reduction",
)


def _empty_strided_batch(
    func: Kernel, size: int, batched: object, args: Arguments, kwargs: object
) -> object:
    """Run ``new_empty_strided`` on a batch, whose elements lie in memory one after the other."""
    like, shape, strides = args[0], args[1], args[2]
    last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    # the extent of an element in memory, or 1 if it is empty
    extent = max(1, last + 1)
    return func(like, [size, *shape], [extent, *strides])


_FACTORY: dict[str, Any] = {"nondiff": True, "family": "factory"}
register("ones_like zeros_like full_like", batch=same, **_FACTORY)
register("empty_like", batch=same, unfilled=True, **_FACTORY)
register("new_zeros new_ones", batch=batch.sizes(1), **_FACTORY)
register("new_full", batch=batch.sizes(1), **_FACTORY)
register("new_empty", batch=batch.sizes(1), unfilled=True, **_FACTORY)
register(
    "new_empty_strided",
    unfilled=True,
    batch=_empty_strided_batch,
    **_FACTORY,
)


# --- what torch's forward mode asks of a primal and its tangent -----------------------------------


def _zeros_as_other(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Return zeros of the shape of ``other``, behind the batch dimensions of ``self``."""
    # the batch of `other` gives the result its batch; else that of `self` is one more to add
    if batched[1]:
        return func(*args, **kwargs)
    among = kwargs.get("self_num_batch_dims", 0) + 1
    return func(*args, **{**kwargs, "self_num_batch_dims": among})


def _same_memory(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> bool:
    """Return whether both have as much memory. If one alone is batched, torch makes a copy."""
    return bool(all(batched[:2]) and func(*args, **kwargs))


register("_new_zeros_with_same_feature_meta", batch=_zeros_as_other, **_FACTORY)
register("_has_same_storage_numel", batch=_same_memory, nondiff=True, family="reading")

register("empty.memory_format", batch=batch.sizes(0), unfilled=True, **_FACTORY)
register(
    "zeros ones full arange arange.start arange.start_step linspace scalar_tensor eye eye.m",
    **_FACTORY,
)
_OVERWRITTEN: dict[str, Any] = {
    "vjp": {"self": lambda g: torch.zeros_like(g)},
    "jvp": {"self": lambda self_t: None},
}
for _name in ("zero", "fill.Scalar"):
    register(_name, batch=batch.elementwise, in_place=True, family="inplace", **_OVERWRITTEN)


def _fill_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: object
) -> object:
    x, value = batch.expand(args[0], batched[0], size), args[1]
    if not batched[1]:
        return func(x, value)
    return torch.empty_like(x).copy_(value.reshape(size, *(1,) * (x.dim() - 1)))


register(
    "fill.Tensor",
    vjp={"self": lambda g: torch.zeros_like(g), "value": lambda g: g.sum()},
    jvp={"self": lambda self_t: None, "value": lambda value_t: value_t},
    batch=_fill_batch,
    family="op",
)
random("rand rand.generator randn randn.generator", batch.sizes(0), shape_only=True)
random("randint randint.generator", batch.sizes(1), shape_only=True)
random("randint.low randint.low_generator", batch.sizes(2), shape_only=True)
random("normal.float_float", batch.sizes(2), shape_only=True)
random("rand_like randn_like", shape_only=True)
random("randint_like randint_like.low_dtype", shape_only=True)
random(
    (
        "uniform exponential geometric cauchy log_normal random random.to random.from "
        "normal_functional bernoulli.p"
    ),
    shape_only=True,
    **_OVERWRITTEN,
)
random(
    "bernoulli.Tensor",
    shape_only=True,
    vjp={**_OVERWRITTEN["vjp"], "p": lambda g: torch.zeros_like(g)},
    jvp={**_OVERWRITTEN["jvp"], "p": lambda p_t: None},
)
# Abstract kernels of torch keep the strides of an argument where these draws give a
# contiguous result.
flat(
    "poisson",
    "self",
    batch=batch.trailing,
    draws="values",
    abstract=lambda self: self.new_empty(self.shape),
)


def _multinomial_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Draw for a batch. The kernel takes rows of weights, so the batch becomes more rows."""
    weights = batch.expand(args[0], batched[0], size)
    drawn = func(weights.flatten(0, -2), *args[1:], **kwargs)
    return drawn.unflatten(0, weights.shape[:-1])


register("multinomial", nondiff=True, batch=_multinomial_batch, draws="values", family="random")
register(
    "_standard_gamma",
    vjp={"self": lambda g, self, result: g * torch.ops.aten._standard_gamma_grad(self, result)},
    batch=batch.trailing,
    draws="values",
    abstract=lambda self: self.new_empty(self.shape),
)
# torch has no derivatives for these draws and gradients of draws either; one raises MissingRule
register(
    "_standard_gamma_grad",
    abstract=lambda self, output: torch.empty_like(self + output),
    family="random",
)
register("_dirichlet_grad", abstract=lambda x: x.new_empty(x.shape), family="random")
register(
    "_sample_dirichlet",
    batch=batch.trailing,
    draws="values",
    abstract=lambda self: self.new_empty(self.shape),
    family="random",
)
register(
    "binomial",
    batch=batch.trailing,
    draws="values",
    abstract=lambda count: count.new_empty(count.shape),
    family="random",
)
register("rrelu_with_noise_functional", nondiff=(1,), draws="values", family="random")


def _dropout_and_mask(
    input: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the dropout and its mask, by the same draws as the kernel.

    Torch's decomposition compares with a uniform draw, which is another mask under the same seed.
    """
    if train is False:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    mask = torch.empty_like(input, dtype=torch.bool).bernoulli_(1 - p)
    scale = 0.0
    if p != 1:
        scale = 1 / (1 - p)
    return input * mask * scale, mask


register("native_dropout", decomposition=_dropout_and_mask, draws="values", family="random")


def _zero_derivatives(*names: str) -> dict[str, Any]:
    """Return the gradient of a draw by the parameters of its distribution: zero, as torch
    documents."""
    vjp = {name: asking("g")(lambda g: torch.zeros_like(g)) for name in names}
    jvp = {name: asking(f"{name}_t")(lambda t: torch.zeros_like(t)) for name in names}
    return {"vjp": vjp, "jvp": jvp}


random("bernoulli", **_zero_derivatives("self"))
_OF_NORMAL = {
    "Tensor_float": None,
    "float_Tensor": lambda std: std.new_empty(std.shape),
    "Tensor_Tensor": lambda mean, std: mean.new_empty(
        torch.broadcast_shapes(mean.shape, std.shape)
    ),
}
for _name, _abstract in _OF_NORMAL.items():
    random(
        f"normal.{_name}", batch.elementwise, abstract=_abstract, **_zero_derivatives("mean", "std")
    )

# ATen kernels that do not support symbolic sizes ask a tensor for plain ones, by names that are no
# operators. The answer becomes a guard.
QUESTIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "size": lambda self: tuple(map(int, self.shape)),
    "stride": lambda self: tuple(map(int, self.stride())),
    "numel": lambda self: int(self.numel()),
    "storage_offset": lambda self: int(self.storage_offset()),
}
for _name, _answer in QUESTIONS.items():
    register(_name, decomposition=_answer, family="geometry")
QUESTIONS["layout"] = lambda self: self.layout  # of a compressed sparse tensor
register("prim::layout", nondiff=True, family="geometry")
