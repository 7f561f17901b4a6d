"""Fused attention: the kernel CPUs have, and what is written out around it."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import runtime
from runtime import func
from runtime.aot import make_fx
from runtime.autograd.graph import saved_tensors_hooks

from ..agreement import Problem, check, check_problem

Tensor = torch.Tensor


def tensors(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(s, dtype=torch.float64) for s in shapes)


QKV = ((2, 2, 4, 3), (2, 2, 5, 3), (2, 2, 5, 3))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.rand(4, 5) > 0.3},
        {"attn_mask": torch.randn(2, 1, 4, 5).double()},
    ],
    ids=["plain", "causal", "scaled", "bool mask", "float mask"],
)
@pytest.mark.parametrize("heads", [2, 4], ids=["heads of their own", "grouped queries"])
def test_with_options(options: dict[str, Any], heads: int) -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return (F.scaled_dot_product_attention(q, k, v, enable_gqa=heads > 2, **options),)

    def written_out(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        with sdpa_kernel(SDPBackend.MATH):  # torch differentiates the fused kernel once only
            return f(q, k, v)

    inputs = tensors((2, heads, 4, 3), *QKV[1:])
    check_problem(
        Problem(f, inputs, (0, 1, 2), f"attention {list(options)} with {heads} heads", written_out)
    )


@pytest.mark.parametrize(
    "dims",
    [(0, None, None), (None, 0, 0), (None, 0, None), (None, None, 0), (0, 0, None), (0, 0, 0)],
)
def test_grouped_queries_where_some_are_batched(dims: tuple[int | None, ...]) -> None:
    shapes = ((2, 1, 6, 4, 3), (2, 1, 2, 5, 3), (2, 1, 2, 5, 3))
    inputs = [x if d == 0 else x[0] for x, d in zip(tensors(*shapes), dims, strict=True)]

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def gradients(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return func.grad(lambda *qkv: f(*qkv).pow(2).sum(), argnums=(0, 1, 2))(q, k, v)

    for g in (
        lambda *qkv: (f(*qkv),),
        gradients,
        lambda *qkv: func.jvp(f, qkv, tuple(x.cos() for x in qkv)),
    ):
        loop = [
            g(*(x if d is None else x[b] for x, d in zip(inputs, dims, strict=True)))
            for b in range(2)
        ]
        expected = tuple(torch.stack(r) for r in zip(*loop, strict=True))
        torch.testing.assert_close(func.vmap(g, in_dims=dims)(*inputs), expected)


def test_samples() -> None:
    check("nn.functional.scaled_dot_product_attention", limit=10, checks=("vjp",))


def test_a_mask_that_requires_grad_gets_its_gradient() -> None:
    def f(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return (F.scaled_dot_product_attention(q, k, v, attn_mask=mask),)

    inputs = tensors(*QKV, (2, 2, 4, 5))
    check_problem(Problem(f, inputs, (0, 1, 2, 3), "attention with a mask"))
    check_problem(Problem(f, inputs, (3,), "attention by its mask alone"))


def test_a_row_that_attends_to_nothing_has_no_gradient() -> None:
    q, k, v = tensors(*QKV)
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[1] = False
    g = func.grad(lambda q: F.scaled_dot_product_attention(q, k, v, attn_mask=mask).sum())(q)
    t = func.jvp(
        lambda q: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        (q,),
        (torch.ones_like(q),),
    )[1]
    assert (
        not g[:, :, 1].any() and not t[:, :, 1].any() and g.isfinite().all() and t.isfinite().all()
    )


def test_a_masks_wrapper_does_not_reach_the_tape() -> None:
    """A mask that is a runtime tensor itself: the formula gets what it holds."""
    q, k, v = (runtime.wrap(t, requires_grad=True) for t in tensors(*QKV))
    mask = runtime.wrap(torch.randn(4, 5, dtype=torch.float64))
    saved: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        saved.append(t)
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out.sum().backward()
    assert len(saved) == 6  # query, key, value, mask, output and logsumexp, as torch's engine
    plain = [t.detach().clone().requires_grad_() for t in tensors(*QKV)]
    F.scaled_dot_product_attention(
        plain[0], plain[1], plain[2], attn_mask=runtime.unwrap(mask)
    ).sum().backward()
    for mine, theirs in zip((q, k, v), plain, strict=True):
        assert mine.grad is not None and theirs.grad is not None
        torch.testing.assert_close(runtime.unwrap(mine.grad), theirs.grad)


MASKS = {
    "none": (None, None),
    "shared, of two dimensions": (torch.rand(4, 5) > 0.3, None),
    "shared, of each sample": (torch.randn(2, 1, 4, 5).double(), None),
    "of each call, of two dimensions": (torch.rand(3, 4, 5) > 0.3, 0),
    "of each call, for all samples": (torch.randn(3, 1, 2, 4, 5).double(), 0),
    "of each call and sample": (torch.randn(2, 3, 2, 4, 5).double(), 1),
}


@pytest.mark.parametrize(("mask", "mask_dim"), MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dims", [(0, None, None), (1, 0, 0), (0, 0, None)])
def test_a_batch_of_calls_is_one_call_of_the_kernel(
    dims: tuple[int | None, ...], mask: Any, mask_dim: int | None
) -> None:
    inputs = [
        x if d is None else torch.stack([x + i for i in range(3)], d)
        for x, d in zip(tensors(*QKV), dims, strict=True)
    ]

    def f(mask: Any, *qkv: Tensor) -> tuple[Tensor, ...]:
        y, back = func.vjp(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), *qkv
        )
        return (y, *back(y.cos()))

    def one(i: int) -> tuple[Tensor, ...]:
        picked = [
            x if d is None else x.select(d, i)
            for x, d in zip([mask, *inputs], [mask_dim, *dims], strict=True)
        ]
        return f(*picked)

    expected = tuple(torch.stack(r) for r in zip(*(one(i) for i in range(3)), strict=True))
    mapped = func.vmap(f, in_dims=(mask_dim, *dims))
    torch.testing.assert_close(mapped(mask, *inputs), expected)
    graph = make_fx(lambda *qkv: mapped(mask, *qkv))(*inputs).graph
    assert sum("flash_attention" in str(n.target) for n in graph.nodes) == 2
    assert not any("softmax" in str(n.target) for n in graph.nodes)


@pytest.mark.parametrize("dims", [(-1, -1, -1), (0, -1, 0), (None, None, -1)])
def test_a_batch_along_the_last_dimension_is_copied_for_the_kernel_which_reads_rows_without_strides(
    dims: tuple[int | None, ...],
) -> None:
    # several are copied where they are put beside the batch
    one_sample = [x[:1] for x in tensors(*QKV)]
    inputs = [
        x if d is None else torch.stack([x + i for i in range(3)], d)
        for x, d in zip(one_sample, dims, strict=True)
    ]
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

    def f(*qkv: Tensor) -> tuple[Tensor, ...]:
        y, back = func.vjp(lambda q, k, v: kernel(q, k, v)[0], *qkv)
        return (y, *back(y.cos()))

    loop = [
        f(
            *(
                x if d is None else x.select(d, i).contiguous()
                for x, d in zip(inputs, dims, strict=True)
            )
        )
        for i in range(3)
    ]
    torch.testing.assert_close(
        func.vmap(f, in_dims=dims)(*inputs), tuple(torch.stack(r) for r in zip(*loop, strict=True))
    )
