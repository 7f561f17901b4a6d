"""Normalizations agree with torch's engine, and treat running statistics as torch.func does."""

from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from runtime import func
from runtime.errors import BatchingError
from runtime.rules import RECORDS

from ..agreement import Problem, check, check_problem, has_samples

DOUBLE = torch.float64


@pytest.mark.parametrize(
    "name", ["layer_norm", "group_norm", "rms_norm", "normalize", "local_response_norm"]
)
def test_stateless(name: str) -> None:
    check(f"nn.functional.{name}", limit=8)


@pytest.mark.parametrize("eps", [None, 0.1])
@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weighed", [True, False])
def test_rms_norm_where_a_device_has_a_kernel_is_what_aten_composes_elsewhere(
    weighed: bool, dtype: torch.dtype, eps: float | None
) -> None:
    """No call on the CPU reaches these records, so their formulas are run by themselves."""
    forward, backward = (
        RECORDS[getattr(torch.ops.aten, name).default].decomposition
        for name in ("_fused_rms_norm", "_fused_rms_norm_backward")
    )
    assert forward is not None and backward is not None
    shape = [3, 4]
    # the square is of the size of the default eps
    scale = torch.finfo(torch.promote_types(dtype, torch.float32)).eps ** 0.5
    x = (torch.randn(2, *shape, dtype=DOUBLE) * scale).to(dtype).requires_grad_()
    w = torch.randn(shape, dtype=DOUBLE).to(dtype).requires_grad_() if weighed else None
    g = torch.randn(2, *shape, dtype=DOUBLE).to(dtype)
    expected = F.rms_norm(x, shape, w, eps)
    out, rstd = forward(x, shape, w, eps)
    torch.testing.assert_close(out, expected)
    assert rstd.shape == (2, 1, 1)
    wanted = [x] if w is None else [x, w]
    gx, gw = backward(g, x, shape, rstd, w, [True, weighed])
    found = [gx] if gw is None else [gx, gw]
    torch.testing.assert_close(found, list(torch.autograd.grad(expected, wanted, g)))


@pytest.mark.skipif(
    not has_samples("native_group_norm"), reason="torch 2.12 has no samples of native_group_norm"
)
def test_statistics_of_group_norm_have_gradients() -> None:
    check("native_group_norm", limit=8)


@pytest.mark.parametrize(
    "name",
    [
        "nn.functional.batch_norm",
        "nn.functional.instance_norm",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
    ],
)
def test_with_running_statistics(name: str) -> None:
    """Batched all together: an input alone may not be, where statistics are updated."""
    check(name, limit=12, singly=False)


def test_statistics_of_layer_norm_have_gradients() -> None:
    """torch ignores cotangents of the returned mean and reciprocal standard deviation."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.aten.native_layer_norm(x, [3], w, None, 0.1))

    def reference(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean = x.mean(1, keepdim=True)
        rstd = (((x - mean) ** 2).mean(1, keepdim=True) + 0.1).rsqrt()
        return (x - mean) * rstd * w, mean, rstd

    check_problem(
        Problem(
            f,
            (torch.randn(4, 3, dtype=DOUBLE), torch.randn(3, dtype=DOUBLE)),
            (0, 1),
            "native_layer_norm",
            reference,
        )
    )


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_with_any_input_batched(training: bool) -> None:
    mean, var = torch.randn(3, dtype=DOUBLE), torch.rand(3, dtype=DOUBLE) + 0.5

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            F.batch_norm(
                x, None if training else mean, None if training else var, w, b, training=training
            ),
        )

    inputs = (
        torch.randn(4, 3, 2, dtype=DOUBLE),
        torch.randn(3, dtype=DOUBLE),
        torch.randn(3, dtype=DOUBLE),
    )
    check_problem(Problem(f, inputs, (0, 1, 2), f"batch_norm training={training}"))


def test_batched_running_statistics_are_updated_each_by_its_own_element() -> None:
    x = torch.randn(2, 5, 3, dtype=DOUBLE)
    mean, var = torch.zeros(2, 3, dtype=DOUBLE), torch.ones(2, 3, dtype=DOUBLE)
    expected = mean.clone(), var.clone()
    for i in range(2):
        F.batch_norm(x[i], expected[0][i], expected[1][i], training=True)
    func.vmap(lambda x, m, v: F.batch_norm(x, m, v, training=True))(x, mean, var)
    torch.testing.assert_close((mean, var), expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_each_running_statistic_may_be_batched_or_not_where_the_input_is_not(channels: int) -> None:
    x, means, var = torch.randn(5, channels), torch.randn(2, channels), torch.rand(channels)
    expected = [(m.clone(), var.clone()) for m in means]
    outs = [F.batch_norm(x, *each, training=True) for each in expected]
    found = func.vmap(lambda m: F.batch_norm(x, m, var, training=True))(means)
    torch.testing.assert_close(found, torch.stack(outs))
    torch.testing.assert_close(
        (means, var), (torch.stack([m for m, _ in expected]), expected[0][1])
    )


def test_unbatched_running_statistics_cannot_follow_a_batch() -> None:
    mean, var = torch.zeros(3), torch.ones(3)
    with pytest.raises(
        BatchingError, match="running_mean or running_var that it updates in place is not batched"
    ):
        func.vmap(lambda x: F.batch_norm(x, mean, var, training=True))(torch.randn(2, 5, 3))


SECOND_ORDER = {
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "instance_norm": lambda x: F.instance_norm(x[None])[0],
    "group_norm": lambda x: F.group_norm(x[None], 1)[0],
}


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_second_derivatives_are_those_of_central_differences(name: str) -> None:
    """torch's engine and torch.func lose part of them (docs/findings.md, F2), so they are
    no reference here."""
    f = SECOND_ORDER[name]
    x, t, u = torch.randn(3, 2, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))

    def tangent(x: torch.Tensor) -> torch.Tensor:
        pushed: torch.Tensor = func.jvp(f, (x,), (t,))[1]
        return pushed

    step = 1e-5
    slope = (tangent(x + step * u) - tangent(x - step * u)) / (2 * step)
    torch.testing.assert_close(func.jvp(tangent, (x,), (u,))[1], slope, rtol=1e-6, atol=1e-8)
    pulled = func.vjp(tangent, x)[1](u)[0]
    torch.testing.assert_close((pulled * u).sum(), (slope * u).sum(), rtol=1e-6, atol=1e-8)


def test_running_statistics_that_lie_in_memory_apart_are_updated_behind_a_derivative() -> None:
    """The oracle is a loop: torch.func leaves such statistics as they were."""
    x = torch.randn(2, 5, 4, 3, dtype=DOUBLE)

    def statistics() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(5, 3, 2, dtype=DOUBLE).transpose(0, 2), torch.ones(
            5, 3, 2, dtype=DOUBLE
        ).transpose(0, 2)

    def gradient(x: Any, mean: Any, var: Any) -> Any:
        normed = func.vmap(
            lambda x, mean, var: F.batch_norm(x, mean, var, training=True), in_dims=(0, 1, 1)
        )
        out, pullback = func.vjp(lambda x: normed(x, mean, var), x)
        return pullback(out.sin())[0]

    mean, var = statistics()
    expected = torch.empty_like(x)
    for i, j in product(range(2), range(5)):
        leaf = x[i, j].clone().requires_grad_()
        out = F.batch_norm(leaf, mean[i, :, j], var[i, :, j], training=True)
        (expected[i, j],) = torch.autograd.grad(out, leaf, out.detach().sin())
    nested, single = statistics(), statistics()
    torch.testing.assert_close((func.vmap(gradient)(x, *nested), *nested), (expected, mean, var))
    torch.testing.assert_close(
        (torch.stack([gradient(*one) for one in zip(x, *single, strict=True)]), *single),
        (expected, mean, var),
    )
