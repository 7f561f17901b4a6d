"""Register losses that are ATen ops of their own."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive import batch_rules as batch
from ..derive.optional import apply_weight, map_optional
from ..record import Formula, Record, asking, kernels, made_of, overload, parameters, register

# --- records of elementwise losses ----------------------------------------------------------------
#
# A record follows from the partial derivatives of one element's loss, for each reduction: none,
# mean, sum.

NONE, MEAN, SUM = range(3)  # ATen's numbers
_broadcast_shapes: Any = torch.broadcast_shapes
_broadcast_tensors: Any = torch.broadcast_tensors


def scaled(g: torch.Tensor, reduction: int, n: int) -> torch.Tensor:
    """Return the cotangent of each element's loss for the cotangent ``g`` of the reduced loss of
    ``n`` elements."""
    if reduction == MEAN:
        return g / max(n, 1)
    return g


def reduced(each: torch.Tensor, reduction: int) -> torch.Tensor:
    """Return the reduced loss, from that of each element."""
    if reduction == MEAN:
        return each.mean()
    if reduction == SUM:
        return each.sum()
    return each


def reduced_rows(each: torch.Tensor, reduction: int) -> torch.Tensor:
    """Return the reduced loss of each element of a physical batch."""
    if reduction == NONE or each.dim() == 1:
        return each
    rows = each.flatten(1)
    if reduction == MEAN:
        return rows.mean(1)
    return rows.sum(1)


def broadcasted(
    size: int, batched: Sequence[bool], args: Arguments
) -> list[torch.Tensor | float | None]:
    """Return ``args`` with all tensors broadcast to one physical shape, (size, *shape). Numbers and
    None stay. Example: a batch (B, n) and a target (m, n) both become (B, m, n)."""
    at = [index for index, argument in enumerate(args) if isinstance(argument, torch.Tensor)]
    rank = max(args[position].dim() - bool(batched[position]) for position in at)

    def shape(t: torch.Tensor, has_batch: bool) -> torch.Tensor:
        """Return ``t`` with its batch in front, and as many dimensions as the widest one."""
        if has_batch:
            return batch.insert_dims(t, size, rank + 1 - t.dim())
        return t.unsqueeze(0)

    shaped = [shape(args[position], batched[position]) for position in at]
    out = list(args)
    for position, tensor in zip(at, _broadcast_tensors(*shaped), strict=True):
        out[position] = tensor
    return out


def elementwise_loss(
    name: str, *, abstract: Formula | None = None, divided_last: bool = False, **partials: Formula
) -> Record:
    """Register a real loss of ``self`` and ``target``, which broadcast: ``NAME=d loss/d NAME`` for
    each element. ``divided_last``: whether the gradient of a mean is divided after the product with
    the cotangent, which rounds as ATen does."""
    arguments = overload(name)._schema.arguments
    at = [argument.name for argument in arguments].index("reduction")
    defaults = [argument.default_value for argument in arguments]

    # a mean divides by the number of losses, which the shapes say
    vjp: dict[str, Formula] = {}
    jvp: dict[str, Formula] = {}
    geometry = ("reduction", "self_shape", "target_shape")
    for argument, partial in partials.items():
        # the default binds the formula of this turn of the loop
        def backward(
            g: torch.Tensor,
            reduction: int,
            self_shape: object,
            target_shape: object,
            *values: object,
            partial: Formula = partial,
        ) -> object:
            """Return the gradient of one argument."""
            count = math.prod(_broadcast_shapes(self_shape, target_shape))
            if divided_last:
                return scaled(partial(*values) * g, reduction, count)
            return scaled(g, reduction, count) * partial(*values)

        def forward(
            t: torch.Tensor,
            reduction: int,
            self_shape: object,
            target_shape: object,
            *values: object,
            partial: Formula = partial,
        ) -> Any:
            """Return the tangent of the reduced loss."""
            shape = _broadcast_shapes(self_shape, target_shape)
            return reduced((t * partial(*values)).expand(shape), reduction)

        vjp[argument] = asking("g", *geometry, *parameters(partial))(
            made_of("g * {}", partial, backward)
        )
        jvp[argument] = asking(f"{argument}_t", *geometry, *parameters(partial))(
            made_of(f"{argument}_t * {{}}", partial, forward)
        )

    def batch_rule(
        func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
    ) -> torch.Tensor:
        """Run the loss without a reduction on broadcast tensors, and reduce each element."""
        reduction: Any = batch.positional(args, at, defaults[at])
        actual = broadcasted(size, batched, args)
        # up to the reduction, which the call may have left out
        actual += defaults[len(actual) : at + 1]
        actual[at] = NONE
        return reduced_rows(func(*actual, **kwargs), reduction)

    return register(name, vjp=vjp, jvp=jvp, batch=batch_rule, abstract=abstract, family="loss")


# --- the losses -----------------------------------------------------------------------------------

aten = torch.ops.aten

# ---- elementwise losses


def _minus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return ``x - y``. Losses take a mask as their target, which ``-`` refuses."""
    if torch.bool in (x.dtype, y.dtype):
        return torch.add(x, y, alpha=-1)
    return x - y


def _slope(self: torch.Tensor, target: torch.Tensor, beta: float) -> torch.Tensor:
    """Return the derivative of the smooth l1 loss: linear within ``beta`` of zero, the sign
    beyond."""
    z = _minus(self, target)
    if not beta:
        return z.sign()
    # z.sign() would turn NaN into 0
    return torch.where(z.abs() >= beta, z.sign(), z / beta)


def _bce(self: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Return the derivative by ``self``. The denominator is at least 1e-12, as in ATen."""
    return apply_weight((self - target) / ((1 - self) * self).clamp_min(1e-12), weight)


def _bce_target(self: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Return the derivative by ``target``. Logarithms are at least -100, as in ATen."""
    return apply_weight((1 - self).log().clamp_min(-100) - self.log().clamp_min(-100), weight)


def _logits(
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    pos_weight: torch.Tensor | None,
) -> torch.Tensor:
    """Return the derivative by the logits."""
    s = self.sigmoid()  # the order is ATen's, so that the result has the same bits
    if pos_weight is None:
        return apply_weight(s - target, weight)
    positive = pos_weight * target
    return apply_weight((positive + 1 - target) * s - positive, weight)


def _logits_target(
    self: torch.Tensor, weight: torch.Tensor | None, pos_weight: torch.Tensor | None
) -> torch.Tensor:
    """Return the derivative by the target."""
    if pos_weight is None:
        return apply_weight(-self, weight)
    log_sigmoid = torch.nn.functional.logsigmoid
    return apply_weight(log_sigmoid(-self) - pos_weight * log_sigmoid(self), weight)


elementwise_loss(
    "mse_loss",
    self=lambda self, target: 2 * _minus(self, target),
    target=lambda self, target: 2 * _minus(target, self),
)
elementwise_loss(
    "smooth_l1_loss", self=_slope, target=lambda self, target, beta: -_slope(self, target, beta)
)
elementwise_loss(
    "huber_loss",
    self=lambda self, target, delta: _slope(self, target, delta) * delta,
    target=lambda self, target, delta: _slope(target, self, delta) * delta,
)
elementwise_loss(
    "soft_margin_loss",
    self=lambda self, target: -target * (-target * self).sigmoid(),
    target=lambda self, target: -self * (-target * self).sigmoid(),
)
elementwise_loss(
    "binary_cross_entropy",
    self=_bce,
    target=_bce_target,
    # of symbolic sizes torch's abstract kernel has the order in memory of the target, and a view of
    # the result may not exist
    abstract=lambda self, reduction: self.new_empty(()) if reduction else torch.empty_like(self),
)
elementwise_loss(
    "binary_cross_entropy_with_logits", divided_last=True, self=_logits, target=_logits_target
)


# ---- negative log-likelihood: classes are dimension 1 of (N, C, …), or 0 of (C,). The loss is
# linear in the log-probabilities, and its backward op is linear in the cotangent. Each is the
# transpose of the other.


def _class_weights(
    target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the class weight of each target. Zero for ignored targets."""
    is_used = target != ignore_index
    if weight is None:
        return is_used.to(dtype)
    # an ignored target may be the number of no class, as -100 is
    classes = torch.where(is_used, target, 0).reshape(*weight.shape[:-1], -1)
    return torch.where(is_used, weight.gather(-1, classes).reshape(target.shape), 0)


def _fold_batch(
    size: int, batched: BatchFlags, self: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Return the log-probabilities (B, [N,] C, …) and targets ([B,] [N,] …) with B and N folded,
    and the physical shape of the targets."""
    x = batch.expand(self, batched[0], size)
    tensor = batch.expand(target, batched[1], size)
    shape = list(tensor.shape)
    if x.dim() == 2:  # (B, C), without N
        return x, tensor, shape
    return x.flatten(0, 1), tensor.flatten(0, 1), shape


def _nll_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run the loss on a batch without a reduction, and reduce each element."""
    self, target, weight, reduction, ignore_index = args
    x, tensor, shape = _fold_batch(size, batched, self, target)
    shared = weight
    if batched[2]:
        shared = None  # the kernel takes one weight per class
    each = func(x, tensor, shared, NONE, ignore_index)[0].reshape(shape)
    targets = tensor.reshape(shape)
    if shared is not None:
        weight = weight.expand(size, -1)
    weights = _class_weights(targets, weight, ignore_index, x.dtype)
    if batched[2]:
        each = each * weights
    if reduction == NONE:
        return each, x.new_zeros(size)
    # the mean of `nll_loss` divides by the weights, not by the number of targets
    total = reduced_rows(weights, SUM)
    each = reduced_rows(each, SUM)
    if reduction == MEAN:
        each = each / total
    return each, total


def _nll_backward_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run the backward op on a batch, for cotangents of each loss."""
    g, self, target, weight, reduction, ignore_index, total = args
    x, tensor, shape = _fold_batch(size, batched[1:], self, target)
    # the cotangent of each loss without a reduction, which the kernel then takes
    g = batch.expand(g, batched[0], size)
    if reduction == MEAN:
        g = g / batch.expand(total, batched[6], size)
    if reduction != NONE:
        g = g.reshape(size, *(1,) * (len(shape) - 1)).expand(shape)
    if batched[3]:
        g = g * _class_weights(tensor.reshape(shape), weight, ignore_index, x.dtype)
        weight = None
    out = func(
        g.reshape(tensor.shape).contiguous(), x, tensor, weight, NONE, ignore_index, x.new_zeros(())
    )
    return out.reshape(size, *self.shape[int(batched[1]) :])


for _name in ("nll_loss", "nll_loss2d"):
    _forward, _backward = (getattr(kernels, f"{_name}_{way}") for way in ("forward", "backward"))

    def _nll_vjp(
        g: torch.Tensor,
        self: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None,
        reduction: int,
        ignore_index: int,
        result1: torch.Tensor,
        op: Callable[..., object] = _backward,
    ) -> object:
        """Return the gradient of the log-probabilities, by the backward kernel."""
        # the result has its strides
        return op(g, self.contiguous(), target, weight, reduction, ignore_index, result1)

    def _nll_jvp(
        self_t: object,
        target: object,
        weight: object,
        reduction: object,
        ignore_index: object,
        op: Any = _forward,
    ) -> object:
        """Return the loss of the tangent, since the loss is linear."""
        return op(self_t, target, weight, reduction, ignore_index)[0], None

    register(
        f"{_name}_forward",
        vjp={
            "self": asking("g", "self", "target", "weight", "reduction", "ignore_index", "result1")(
                _nll_vjp
            )
        },
        jvp=asking("self_t", "target", "weight", "reduction", "ignore_index")(_nll_jvp),
        batch=_nll_batch,
        nondiff=(1,),
        family="loss",
    )
    register(
        f"{_name}_backward",
        vjp={
            "grad_output": asking("g", "target", "weight", "reduction", "ignore_index")(
                lambda g, target, weight, reduction, ignore_index, op=_forward: op(
                    g, target, weight, reduction, ignore_index
                )[0]
            ),
            "self": lambda g: torch.zeros_like(g),
        },
        jvp="linear",
        batch=_nll_backward_batch,
        family="loss",
    )


# ---- margins over classes


def _multi_margin(
    self: torch.Tensor,
    target: torch.Tensor,
    p: int = 1,
    margin: float = 1,
    weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> torch.Tensor:
    """Return ``mean over i != t of max(0, margin - x[t] + x[i])^p`` for the target t, times the
    weight of class t."""
    x = self.reshape(-1, self.shape[-1]) if self.dim() else self.reshape(1, 1)
    tensor = target.reshape(-1, 1)
    z = margin - x.gather(1, tensor) + x
    z = torch.where(z > 0, z, 0)  # not relu: where it is NaN, ATen adds nothing
    if p != 1:  # ATen takes 1 and 2 alone
        z = z * z
    if weight is not None:
        z = z * weight.index_select(0, tensor.flatten()).unsqueeze(1)
    others = torch.arange(x.shape[1], device=x.device) != tensor
    each = torch.where(others, z, 0).sum(1) / x.shape[1]
    if reduction == NONE:
        return each.reshape(target.shape)
    return reduced(each, reduction)


def _multilabel_margin(
    self: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``sum over targets j and other classes i of max(0, 1 - x[j] + x[i]) / C``, and a mask
    of the targets among the classes.

    The targets of a row end at the first -1.
    """
    n = 1
    if self.dim():
        n = self.shape[-1]
    x, t = self.reshape(-1, n), target.reshape(-1, n)
    valid = (t < 0).cumsum(1) == 0
    at = torch.where(valid, t, 0)
    is_target = torch.zeros_like(at).scatter_add(1, at, valid.to(at.dtype)) > 0
    z = 1 - x.gather(1, at).unsqueeze(2) + x.unsqueeze(1)
    z = torch.where(z > 0, z, 0)  # not relu: where it is NaN, ATen adds nothing
    each = torch.where(valid.unsqueeze(2) & ~is_target.unsqueeze(1), z, 0).sum((1, 2)) / n
    if reduction == NONE:
        each = each.reshape(self.shape[:-1])
    return reduced(each, reduction), is_target.to(self.dtype).reshape(target.shape)


register("multi_margin_loss", decomposition=_multi_margin, family="loss")
register("multilabel_margin_loss_forward", decomposition=_multilabel_margin, family="loss")


# ---- linear_cross_entropy in chunks: ops that torch registers when a module of its own is
# imported. They never hold all logits at once. The reduced op also returns its gradients.
# Derivatives and batches do not use these: they run the plain loss.


def _linear_cross_entropy(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    linear_bias: torch.Tensor | None,
    weight: torch.Tensor | None,
    dtype: torch.dtype,
    **options: Any,
) -> torch.Tensor:
    """Return the loss, computed in ``dtype``, the dtype in which the kernels add up the chunks."""
    bias = map_optional(lambda t: t.to(dtype), linear_bias)
    logits = torch.nn.functional.linear(input.to(dtype), linear_weight.to(dtype), bias)
    weight = map_optional(lambda t: t.to(dtype), weight)
    return torch.nn.functional.cross_entropy(logits, target, weight, **options).to(input.dtype)


def _linear_cross_entropy_reduced(
    input: torch.Tensor, linear_weight: torch.Tensor, target: torch.Tensor,
    linear_bias: torch.Tensor | None,
    weight: torch.Tensor | None, reduction: str, ignore_index: int, label_smoothing: float,
    batch_chunk_size: int, acc_policy: str, acc_dtype: torch.dtype, *switches: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return the loss, and empty gradients in place of those that the kernel returns with it."""
    options = {
        "reduction": reduction,
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
    }
    loss = _linear_cross_entropy(
        input, linear_weight, target, linear_bias, weight, acc_dtype, **options
    )
    return (loss, *(loss.new_empty(0, 0).detach() for _ in range(3)))


def _linear_cross_entropy_none(
    input: torch.Tensor, linear_weight: torch.Tensor, target: torch.Tensor,
    linear_bias: torch.Tensor | None,
    weight: torch.Tensor | None, ignore_index: int, batch_chunk_size: int, acc_policy: str,
    acc_dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """Return the loss of each sample."""
    return _linear_cross_entropy(
        input,
        linear_weight,
        target,
        linear_bias,
        weight,
        acc_dtype,
        reduction="none",
        ignore_index=ignore_index,
    )


_CHUNKED = "torch.nn.modules.linear_cross_entropy"

if importlib.util.find_spec(_CHUNKED) is not None:  # torch 2.12 has no such ops
    importlib.import_module(_CHUNKED)
    register(
        "torch_nn::_linear_cross_entropy_batch_chunked",
        decomposition=_linear_cross_entropy_reduced,
        family="loss",
    )
    register(
        "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
        decomposition=_linear_cross_entropy_none,
        family="loss",
    )
