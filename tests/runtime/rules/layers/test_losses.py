"""Losses agree with torch's engine; those whose second derivative torch lacks, with the same
loss written out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import runtime
from runtime import func
from runtime.aot import aot_function, nop

from ..agreement import Problem, check, check_problem

NAMES = """
mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy
binary_cross_entropy_with_logits nll_loss cross_entropy kl_div multilabel_soft_margin_loss
margin_ranking_loss hinge_embedding_loss cosine_embedding_loss cosine_similarity pairwise_distance
triplet_margin_loss poisson_nll_loss linear_cross_entropy
"""
DOUBLE = torch.float64
REDUCTIONS = ["none", "mean", "sum"]


@pytest.mark.parametrize("name", NAMES.split())
def test_agrees(name: str) -> None:
    if not hasattr(F, name):
        assert name == "linear_cross_entropy"
        pytest.skip("torch 2.12 has no linear_cross_entropy")
    check(f"nn.functional.{name}", limit=8)


def _reduced(each: list[torch.Tensor], reduction: str) -> tuple[torch.Tensor, ...]:
    stacked = torch.stack(each)
    return (
        stacked.mean() if reduction == "mean" else stacked.sum() if reduction == "sum" else stacked,
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin(p: int, reduction: str) -> None:
    target = torch.tensor([2, 0])
    weight = torch.tensor([0.5, 2.0, 3.0], dtype=DOUBLE)

    def reference(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = []
        for row, t in zip(x, target.tolist(), strict=True):
            hinges = [(0.7 - row[t] + row[i]).clamp(min=0) ** p for i in range(3) if i != t]
            rows.append(weight[t] * sum(hinges, torch.zeros(())) / 3)
        return _reduced(rows, reduction)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            F.multi_margin_loss(x, target, p=p, margin=0.7, weight=weight, reduction=reduction),
        )

    check_problem(
        Problem(f, (torch.randn(2, 3, dtype=DOUBLE),), (0,), "multi_margin_loss", reference)
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin(reduction: str) -> None:
    """The second row's targets end at its first -1; what follows does not count."""
    target = torch.tensor([[1, 3, -1, -1], [2, -1, 0, 1]])
    labels = [[1, 3], [2]]

    def reference(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = []
        for row, ts in zip(x, labels, strict=True):
            hinges = [
                (1 - row[t] + row[i]).clamp(min=0) for t in ts for i in range(4) if i not in ts
            ]
            rows.append(sum(hinges, torch.zeros(())) / 4)
        return _reduced(rows, reduction)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (F.multilabel_margin_loss(x, target, reduction=reduction),)

    check_problem(
        Problem(f, (torch.randn(2, 4, dtype=DOUBLE),), (0,), "multilabel_margin_loss", reference)
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_ctc_first_derivatives(reduction: str) -> None:
    log_probs = torch.randn(6, 3, 5, dtype=DOUBLE).log_softmax(2)
    targets = torch.randint(1, 5, (3, 2))

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            F.ctc_loss(
                x, targets, torch.tensor([6, 6, 5]), torch.tensor([2, 1, 2]), reduction=reduction
            ),
        )

    check_problem(
        Problem(f, (log_probs,), (0,), "ctc_loss"), ("vjp", "vmap", "vmap_vjp", "vjp_vmap")
    )


def test_ctc_forward_mode_is_the_transpose_of_reverse_mode() -> None:
    x, t = torch.randn(6, 2, 5, dtype=DOUBLE).log_softmax(2), torch.randn(6, 2, 5, dtype=DOUBLE)
    targets = torch.tensor([[1, 2], [3, 3]])

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(x, targets, torch.tensor([6, 6]), torch.tensor([2, 2]), reduction="sum")

    forward = func.jvp(f, (x,), (t,))[1]
    (g,) = func.vjp(f, x)[1](torch.ones((), dtype=DOUBLE))
    torch.testing.assert_close(forward, (g * t).sum())


def test_weights_of_likelihoods_may_be_batched() -> None:
    x, target = torch.randn(2, 4, 3, dtype=DOUBLE), torch.tensor([0, 2, 1, -100])
    weight = torch.rand(2, 3, dtype=DOUBLE)

    def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.nll_loss(x, target, weight)

    expected = torch.stack([f(*pair) for pair in zip(x, weight, strict=True)])
    torch.testing.assert_close(func.vmap(f)(x, weight), expected)


@pytest.mark.parametrize("loss", [torch.nn.functional.mse_loss, torch.nn.functional.smooth_l1_loss])
def test_a_mask_may_be_the_target_of_a_loss(loss: Any) -> None:
    mask = torch.tensor([True, False, True])
    x = torch.tensor([0.5, 0.25, 3.0], requires_grad=True)
    f: Callable[[torch.Tensor], torch.Tensor]
    for f in (lambda x: loss(x, mask), lambda x: loss(mask, x)):
        (expected,) = torch.autograd.grad(f(x), x)
        torch.testing.assert_close(func.grad(f)(x.detach()), expected)
        torch.testing.assert_close(
            func.grad(lambda x, f=f: f(x).square())(x.detach()), 2 * f(x).detach() * expected
        )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("positive", [False, True])
def test_the_gradient_of_binary_cross_entropy_with_logits_has_the_bits_of_torchs_also_in_a_graph(
    reduction: str, positive: bool
) -> None:
    for n in (3, 5, 7, 8):
        generator = torch.Generator().manual_seed(n)
        x, g = (
            torch.randn(n, 2, generator=generator),
            torch.rand((n, 2) if reduction == "none" else (), generator=generator),
        )
        target = (torch.randn(n, 2, generator=generator) > 0).float()
        pos_weight = torch.rand(2, generator=generator) if positive else None

        def loss(x: Any, target: Any = target, pos_weight: Any = pos_weight) -> Any:
            return torch.nn.functional.binary_cross_entropy_with_logits(
                x, target, pos_weight=pos_weight, reduction=reduction
            )

        leaf = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(leaf), leaf, g)
        for f in (loss, aot_function(loss, nop)):
            of_session = runtime.wrap(x.clone(), requires_grad=True)
            assert torch.equal(
                runtime.unwrap(runtime.autograd.grad(f(of_session), of_session, g)[0]), expected
            )
