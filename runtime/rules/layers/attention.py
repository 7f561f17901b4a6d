"""Register fused attention. First derivatives and batches run on ATen's fused kernels. Tangents run
attention in plain ops.

The kernel does not save the probabilities p = softmax(s) of the scores s = scale·q·kᵀ + mask, only
the logarithms of their denominators. The mask is a keyword argument. If it requires grad, levels
run the decomposition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive.batch_rules import each, expand, with_flags_of_keywords
from ..derive.optional import add_present, map_optional
from ..record import kernels, register
from ..samples.factors import wide

aten = torch.ops.aten
Tensor = torch.Tensor


def _factor(query: Tensor, scale: float | None) -> float:
    if scale is None:
        return 1 / math.sqrt(query.shape[-1])
    return scale


def _wide(*tensors: object) -> list[Any]:
    """Return the tensors in single precision if they have half precision. The kernels, too, round
    only their results to half precision."""
    return [map_optional(wide, tensor) for tensor in tensors]


def _repeat_for_query_heads(query: Tensor, *shared: Tensor | None) -> list[Any]:
    """Return the heads of keys and values (B, H, …), repeated so that there is one per head of the
    query.

    With n query heads per shared head, query head h reads shared head h // n.
    """
    heads = query.shape[-3]

    def repeat(t: Tensor) -> Tensor:
        """Repeat the heads of one tensor, if there are fewer than those of the query."""
        if t.shape[-3] == heads:
            return t
        return t.repeat_interleave(heads // t.shape[-3], -3)

    return [map_optional(repeat, tensor) for tensor in shared]


def _sum_over_query_heads(g: Tensor, like: Tensor) -> Tensor:
    """Return the transpose of :func:`_repeat_for_query_heads`."""
    shared_heads = like.shape[-3]
    if g.shape[-3] == shared_heads:
        return g
    return g.unflatten(-3, (shared_heads, -1)).sum(-3)  # type: ignore[no-any-return]


def _scores(
    query: Tensor, key: Tensor, is_causal: bool, attn_mask: Any, scale: float | None
) -> Tensor:
    """Return scale·q·kᵀ + mask, with -inf at positions that a query must not see."""
    scores = torch.matmul(query * _factor(query, scale), key.transpose(-2, -1))
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if attn_mask is None:
        return scores
    if attn_mask.dtype is torch.bool:
        return scores.masked_fill(~attn_mask, -math.inf)
    return scores + attn_mask  # type: ignore[no-any-return]


def _written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: object = None,
    scale: Any = None,
) -> tuple[Tensor, Tensor]:
    """Return attention in plain ops, and the logarithms of the denominators."""
    dtype = query.dtype
    query, key, value, attn_mask = _wide(query, key, value, attn_mask)
    key, value = _repeat_for_query_heads(query, key, value)
    scores = _scores(query, key, is_causal, attn_mask, scale)
    return torch.matmul(aten._safe_softmax(scores, -1), value).to(dtype), scores.logsumexp(-1)


def _backward_written_out(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: object, logsumexp: object,
    dropout_p: float, is_causal: bool, *, attn_mask: object = None, scale: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the backward in plain ops. It recomputes ``out`` and ``logsumexp`` from the other
    arguments, so that derivatives go through them."""
    dtype = query.dtype
    grad_out, query, shared_key, shared_value, attn_mask = _wide(
        grad_out, query, key, value, attn_mask
    )
    key, value = _repeat_for_query_heads(query, shared_key, shared_value)
    p = aten._safe_softmax(_scores(query, key, is_causal, attn_mask, scale), -1)
    # out = p @ value
    by_p = torch.matmul(grad_out, value.transpose(-2, -1))
    # the derivative of the softmax, and of the scale
    by_scores = p * (by_p - (p * by_p).sum(-1, keepdim=True)) * _factor(query, scale)
    by_query = torch.matmul(by_scores, key)
    by_key = _sum_over_query_heads(torch.matmul(by_scores.transpose(-2, -1), query), shared_key)
    by_value = _sum_over_query_heads(torch.matmul(p.transpose(-2, -1), grad_out), shared_value)
    return by_query.to(dtype), by_key.to(dtype), by_value.to(dtype)


def _vjp(
    g: Tensor, query: Tensor, key: Tensor, value: Tensor, result0: Tensor, result1: Tensor,
    dropout_p: float, is_causal: bool, attn_mask: object, scale: object,
) -> object:  # fmt: skip
    """Return the gradients by query, key and value, by the fused backward kernel."""
    backward = kernels._scaled_dot_product_flash_attention_for_cpu_backward
    return backward(
        g,
        query,
        key,
        value,
        result0,
        result1,
        dropout_p,
        is_causal,
        attn_mask=attn_mask,
        scale=scale,
    )


def _jvp(
    query_t: Tensor | None,
    key_t: Tensor | None,
    value_t: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    attn_mask: Tensor | None,
    scale: float | None,
) -> tuple[object, None]:
    """Return the tangent of the output. The logarithms of the denominators have none."""
    dtype = query.dtype
    query_t, key_t, value_t, query, key, value, attn_mask = _wide(
        query_t, key_t, value_t, query, key, value, attn_mask
    )
    key_t, value_t, key, value = _repeat_for_query_heads(query, key_t, value_t, key, value)
    p = aten._safe_softmax(_scores(query, key, is_causal, attn_mask, scale), -1)
    total = map_optional(lambda t: torch.matmul(p, t), value_t)
    # the product rule for q·kᵀ, and the derivative of the softmax along each change
    for q, k in ((query_t, key), (query, key_t)):
        if q is not None and k is not None:
            change = torch.matmul(q * _factor(query, scale), k.transpose(-2, -1))
            part = torch.matmul(p * (change - (p * change).sum(-1, keepdim=True)), value)
            total = add_present(total, part)
    return map_optional(lambda t: t.to(dtype), total), None


@dataclass(frozen=True)
class _SampleFold:
    """A batch of ``size`` calls on ``inner`` samples each, as one call on more samples."""

    size: int
    inner: int

    def fold(self, t: Tensor, batched: bool) -> Tensor:
        """Return a tensor of all calls as one of more samples."""
        whole = expand(t, batched, self.size)
        flat: Tensor = whole.reshape(self.size * self.inner, *t.shape[1 + batched :])
        # the kernel reads a row as if its elements lay side by side
        if flat.dim() == 4 and flat.stride(-1) != 1:
            return flat.contiguous()
        return flat

    def fold_mask(self, mask: Tensor, batched: bool) -> Tensor:
        """Return the mask of all samples. One that all of them share stays as it is."""
        if batched:
            if mask.dim() == 3:  # (size, T, S)
                mask = mask.unsqueeze(1).unsqueeze(1)
            return self.fold(mask.expand(self.size, self.inner, *mask.shape[2:]), True)
        if mask.dim() == 4 and mask.shape[0] > 1:
            return self.fold(mask, False)
        return mask

    def unfold(self, t: Tensor) -> Tensor:
        """Return the inverse of :meth:`fold`."""
        return t.reshape(self.size, self.inner, *t.shape[1:])


@with_flags_of_keywords
def _batch(
    func: Kernel,
    size: int,
    batched: BatchFlags,
    args: Arguments,
    kwargs: Keywords,
    named: Any = None,
) -> Any:
    """Run a batch of calls as one call on more samples, of which the kernel takes any number."""
    first = args[0]  # the query, or the cotangent: its samples are those of all arguments
    samples = _SampleFold(size, first.shape[int(batched[0])])
    actual = list(args)
    for index, (argument, is_batched) in enumerate(zip(args, batched, strict=True)):
        if isinstance(argument, torch.Tensor):
            actual[index] = samples.fold(argument, is_batched)
    mask = kwargs.get("attn_mask")
    if mask is not None:
        mask_batched = bool((named or {}).get("attn_mask"))
        kwargs = kwargs | {"attn_mask": samples.fold_mask(mask, mask_batched)}
    return each(func(*actual, **kwargs), samples.unfold)


register(
    "_scaled_dot_product_flash_attention_for_cpu",
    batch=_batch,
    vjp={("query", "key", "value"): _vjp},
    jvp=_jvp,
    decomposition=_written_out,
    nondiff=(1,),
    cost="high",
    # q·kᵀ and p·v: in each, every query meets every key once for each feature
    flops=lambda query_shape, key_shape: 4 * math.prod(query_shape) * key_shape[-2],
    family="attention",
)
register(
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    batch=_batch,
    decomposition=_backward_written_out,
    cost="high",
    family="attention",
)
