"""Writes, sums and means while the samples are followed: the gradients of a loop, or a
refusal that says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import runtime
from runtime.per_sample import per_sample

B, N = 4, 3
Program = Callable[[Tensor, Tensor, Tensor], Any]
"""Of the samples, a parameter, and their product, to which it may write. Its result, None for the
product, is squared and added up."""


def samples(rows: int = B) -> Tensor:
    return torch.randn(rows, N, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def parameter() -> Tensor:
    return torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)


def buffer(x: Tensor, *shape: int) -> Tensor:
    return torch.zeros(shape or x.shape, dtype=x.dtype)


def loss_of(program: Program, x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    out = program(x, w, y)
    found: Tensor = (y if out is None else out).pow(2).sum()
    return found


def put(target: Tensor, at: Any, value: Any) -> Tensor:
    target[at] = value
    return target


def without_grad(write: Callable[[], Any]) -> None:
    with torch.no_grad():
        write()


def copied_without_grad(target: Tensor, value: Tensor) -> Tensor:
    without_grad(lambda: target.copy_(value))
    return target


def _set_twice(x: Tensor, w: Tensor) -> Tensor:
    return x * put(put(buffer(x, N), slice(2), w[:2]), 2, 2.0)


WRITES: dict[str, Program] = {
    "a number into a column": lambda x, w, y: put(y, (slice(None), 0), 0.0),
    "a number into a column of samples alone": lambda x, w, y: (
        put(x * 1, (slice(None), 0), 2.0) * w
    ),
    "samples into a column": lambda x, w, y: put(y, (slice(None), 0), x[:, 1] * w[1]),
    "samples into a column by its transpose": lambda x, w, y: [
        y,
        y.mT[0].copy_(x[:, 0].exp() * w[0]),
    ][0],
    "a parameter into a column": lambda x, w, y: put(y, (slice(None), 0), w[0]),
    "a parameter into every row": lambda x, w, y: y.copy_(w),
    "samples over all": lambda x, w, y: put(y, slice(None), x.flip(1) * w[0]),
    "samples into a part of zeros": lambda x, w, y: put(
        buffer(x), (slice(None), slice(1, None)), y[:, 1:]
    ),
    "samples into a row of zeros": lambda x, w, y: put(buffer(x, N, len(x)), 1, y[:, 0]),
    "samples into a row of zeros in two dimensions": lambda x, w, y: put(
        buffer(x, 2, len(x), N), 1, y
    ),
    "a parameter into a part of zeros": lambda x, w, y: x * put(buffer(x, N), slice(2), w[:2]),
    "a parameter into a part of zeros, and a number beside it": lambda x, w, y: _set_twice(x, w),
    "a parameter into zeros of the batch": lambda x, w, y: (
        put(buffer(x), (slice(None), 0), w[0]) * x
    ),
    "a parameter beside samples": lambda x, w, y: put(
        put(buffer(x), (slice(None), 0), y[:, 0]), (slice(None), 1), w[1]
    ),
    "a number into a part of a parameter": lambda x, w, y: x * put(w * 1, 0, 0.0),
    "numbers over a tensor of parameters": lambda x, w, y: y * (w * 2).copy_(torch.ones(N)),
    "products into columns": lambda x, w, y: [
        y,
        y[:, 0].mul_(x[:, 1]),
        y[:, 1].mul_(w[2]),
        y[:, 2].add_(1),
    ][0],
    "products with a parameter into a tensor of parameters": lambda x, w, y: y * (w * 2).mul_(w),
    "a product with a parameter into samples": lambda x, w, y: (x * 1).mul_(w).add_(w),
    "a parameter without grad mode": lambda x, w, y: without_grad(
        lambda: put(y, (slice(None), 0), w[0])
    ),
    "samples without grad mode": lambda x, w, y: without_grad(
        lambda: put(y, (slice(None), 0), x[:, 1])
    ),
    "another shape in place": lambda x, w, y: y.t_().unsqueeze_(0),
    "masked samples": lambda x, w, y: y.masked_fill_(x > 0, 0.5),
    "accumulated parts": lambda x, w, y: buffer(x, len(x), 2).index_add_(
        1, torch.tensor([0, 1, 1]), y
    ),
    "what is detached, to itself": lambda x, w, y: y.add_(y.detach()),
    "through detach": lambda x, w, y: (z := x * 1, z.detach().mul_(x), z * w)[2],
    "through detach, of samples with a history": lambda x, w, y: (
        z := y + 1,
        z.detach().clamp_(min=0.5),
        z * 2,
    )[2],
    "what is detached after it": lambda x, w, y: [y.mul_(x), y.detach()][0],
    "a view that was taken before": lambda x, w, y: [y[:, 1], y.mul_(x)][0],
    "a parameter into a part of a tensor of parameters": lambda x, w, y: x * put(w * 1, 0, w[1]),
    "constants over all": lambda x, w, y: y.copy_(torch.ones(N)) * w,
    "a number over parameters without grad mode": lambda x, w, y: (
        x * copied_without_grad(w * 1, torch.ones(N))
    ),
    "parameters over others without grad mode": lambda x, w, y: (
        x * copied_without_grad(w * 1, 2 * w)
    ),
    "a view of parameters that was taken before": lambda x, w, y: (
        b := w * 1,
        v := b[:2],
        b.mul_(w),
        x[:, :2] * v,
    )[3],
}


@pytest.mark.parametrize("rows", [B, N, 1])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_has_the_gradients_of_a_loop(name: str, rows: int) -> None:
    x, w = samples(rows), parameter()
    expected = [torch.autograd.grad(loss_of(WRITES[name], one[None], w), w)[0] for one in x]
    with per_sample([w]) as grads:
        loss_of(WRITES[name], grads.batch(x), w).backward()
    torch.testing.assert_close(grads.materialize()[0], torch.stack(expected))
    assert torch.stack(expected).abs().max() > 1e-3


def test_a_constant_to_which_samples_are_written_through_detach_has_them() -> None:
    def program(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        z = runtime.wrap(buffer(x))
        z.detach().add_(x)
        return z * y

    x, w = samples(), parameter()
    each = [loss_of(lambda x, w, y: x * y, one[None], w) for one in x]
    expected = torch.stack([torch.autograd.grad(loss, w)[0] for loss in each])
    with per_sample([w]) as grads:
        loss_of(program, grads.batch(x), w).backward()
    torch.testing.assert_close(grads.materialize()[0], expected)


def _out_argument(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return torch.add(y, 1, out=torch.empty_like(y.detach()))


def _two_means(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return put(put(buffer(x, 2), 0, y.sum()), 1, y.sum(1).mean())


def _part_written_through_detach(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    z = x * 1
    z.detach()[:, 0].mul_(x[:, 1])
    return z * w


REFUSED: dict[str, tuple[Program, str]] = {
    "a mixture into a column": (
        lambda x, w, y: put(y, (slice(None), 0), y.softmax(0)[:, 0]),
        "aten._softmax.default mixes samples",
    ),
    "samples into a column of a mixture": (
        lambda x, w, y: put(x * y.sum(0), (slice(None), 0), y[:, 0]),
        "aten.mul.Tensor mixes samples",
    ),
    "one sample": (
        lambda x, w, y: put(y, 0, 0.0),
        "aten.select.int mixes samples .*: it picks single samples, which lie in dimension 0",
    ),
    "some samples": (
        lambda x, w, y: put(y, slice(1, 3), x[1:3]),
        "aten.slice.Tensor mixes samples .* by their position in the batch",
    ),
    "a sum into a part of parameters": (
        lambda x, w, y: x * put(w * 1, 0, y.sum()),
        "does not fit the samples in the other parts",
    ),
    "a mean beside a sum": (
        _two_means,
        "aten.copy_.default mixes samples .* does not fit the samples in the other parts",
    ),
    "a sum into every row": (
        lambda x, w, y: put(y, (slice(None), 0), y.sum()),
        "a sum or mean over the samples and with single samples",
    ),
    "a part of memory that was written to through detach": (
        _part_written_through_detach,
        r"written to through detach\(\) or .data. Write to the tensor",
    ),
    "memory that was written to through detach of a transpose": (
        lambda x, w, y: (z := y + 1, z.t().detach().mul_(x.t()), z * w)[2],
        r"written to through detach\(\) or .data. Write to the tensor",
    ),
    "memory that was written to through detach of a part": (
        lambda x, w, y: (z := x * 1, z[:, 0].detach().mul_(x[:, 1]), z * w)[2],
        r"written to through detach\(\) or .data. Write to the tensor",
    ),
    "memory that a mixture was written to through detach": (
        lambda x, w, y: (z := x * 1, z.detach().copy_(y.detach().softmax(0)), z * w)[2],
        r"written to through detach\(\) or .data. Write to the tensor",
    ),
    "out": (
        _out_argument,
        (
            "aten.add.out writes samples or parameters by out= in the program, "
            "and has no gradient. Use its result"
        ),
    ),
    "several tensors": (
        lambda x, w, y: torch._foreach_mul_([y, y * 1], [w, w]),
        (
            "aten._foreach_mul_.List writes samples or parameters to several tensors "
            "in the program. Write to one at a time"
        ),
    ),
    "a square of a sum": (
        lambda x, w, y: y.sum(),
        "aten.pow.Tensor_Scalar mixes samples .*: it is not linear in a sum or mean",
    ),
    "a product of sums": (
        lambda x, w, y: (y.sum() * x.sum() * torch.ones(())).sqrt(),
        "aten.mul.Tensor mixes samples .* not linear",
    ),
    "a product of a sum with samples": (
        lambda x, w, y: y * y.sum(),
        "it computes with a sum or mean over the samples and with single",
    ),
    "samples that a packed layout shows of several": (
        lambda x, w, y: y.flatten()[1:],
        "aten.slice.Tensor mixes samples",
    ),
    "a write of which nothing is known": (
        lambda x, w, y: y.polygamma_(1),
        (
            "aten.polygamma_.default mixes samples .* nothing is known of where this "
            "write leaves the samples"
        ),
    ),
    "a sum of constants that were written over samples": (
        lambda x, w, y: (x * w) * y.copy_(torch.ones(N)).sum(),
        "it computes with a sum or mean over the samples and with single samples",
    ),
    "a sum of parameters that were written over samples without grad mode": (
        lambda x, w, y: x * w * copied_without_grad(y, w).sum(),
        "it computes with a sum or mean over the samples and with single samples",
    ),
    "a view of a mixture that was taken before": (
        lambda x, w, y: (v := y[:, 1], y.copy_(y.softmax(0)), v)[2],
        "aten._softmax.default mixes samples",
    ),
    "what depends on one mixture and another": (
        lambda x, w, y: y.softmax(0) * y.cumsum(0),
        "aten._softmax.default mixes samples",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    program, says = REFUSED[name]
    w = parameter()
    with per_sample([w]) as grads, pytest.raises(RuntimeError, match=f"(?s)^per_sample: .*{says}"):
        loss_of(program, grads.batch(samples()), w).backward()


@pytest.mark.parametrize(
    "name",
    ["a mixture into a column", "a square of a sum", "what depends on one mixture and another"],
)
def test_a_mixture_through_which_no_gradient_passes_is_a_constant(name: str) -> None:
    w, x = parameter(), samples()
    with per_sample([w]) as grads:
        marked = grads.batch(x)
        loss_of(REFUSED[name][0], marked, w)
        (marked * w).sum().backward()
    torch.testing.assert_close(grads.materialize()[0], x)


Joined = Callable[[Tensor], Tensor]
"""Of the loss of each sample: the loss of all."""
SUMS: dict[str, Joined] = {
    "a sum": lambda each: each.sum(),
    "sums": lambda each: 2 * each.sum() + (each * each).sum() - each.sum() / 3,
    "a stack of sums": lambda each: torch.stack([each.sum(), each.exp().sum(), each.sum()]).sum(),
    "a sum of a constant multiple": lambda each: (
        (each.sum() * torch.tensor(3.0)).neg().unsqueeze(0).sum()
    ),
}
MEANS: dict[str, Joined] = {
    "a mean": lambda each: each.mean(),
    "means": lambda each: 2 * each.mean() + (each * each).mean() - each.mean() / 3,
    "a stack of means": lambda each: torch.stack(
        [each.mean(), each.exp().mean(), each.mean()]
    ).mean(),
    "a mean minus a number": lambda each: 1 - (each.mean() - 5),
}


@pytest.mark.parametrize("word", [True, False])
@pytest.mark.parametrize("name", SUMS | MEANS)
def test_sums_and_means_of_the_losses(name: str, word: bool) -> None:
    x, w, joined = samples(), parameter(), (SUMS | MEANS)[name]
    expected = [torch.autograd.grad(joined((one[None] * w).sin().sum(1)), w)[0] for one in x]
    reduction = "sum" if name in SUMS else "mean"
    with per_sample([w], reduction=reduction if word else None) as grads:
        joined((grads.batch(x) * w).sin().sum(1)).backward()
    torch.testing.assert_close(grads.materialize()[0], torch.stack(expected))


ADDED: dict[str, Joined] = {
    "in a sum": lambda each: each.sum() + each.mean(),
    "in a sum, the other way round": lambda each: each.mean() + each.sum(),
    "in a stack, the mean first": lambda each: torch.stack(
        [each.mean(), each.sum(), each.sum()]
    ).sum(),
    "in a stack, the mean in the middle": lambda each: torch.stack(
        [each.sum(), each.mean(), each.sum()]
    ).sum(),
    "in a stack, the mean last": lambda each: torch.stack(
        [each.sum(), each.sum(), each.mean()]
    ).sum(),
}


@pytest.mark.parametrize("name", ADDED)
def test_a_sum_and_a_mean_together_need_a_word(name: str) -> None:
    w = parameter()
    with (
        per_sample([w]) as grads,
        pytest.raises(
            RuntimeError,
            match=r"it adds a sum and a mean over the samples\. Say which the gradients",
        ),
    ):
        ADDED[name]((grads.batch(samples()) * w).sum(1)).backward()


def test_one_pass_of_a_sum_and_a_mean_needs_a_word() -> None:
    w = parameter()
    with per_sample([w]) as grads:
        each = (grads.batch(samples()) * w).sum(1)
        with pytest.raises(
            RuntimeError,
            match="the loss is a sum over the samples in one term and a mean in another",
        ):
            runtime.autograd.backward([each.sum(), each.mean()])


def test_one_pass_of_a_sum_and_a_mean_is_of_what_the_word_says() -> None:
    x, w = samples(), parameter()
    for reduction, factor in (("sum", 1), ("mean", B)):
        with per_sample([w], reduction=reduction) as grads:
            each = (grads.batch(x) * w).sum(1)
            runtime.autograd.backward([each.sum(), each.mean()])
        torch.testing.assert_close(grads.materialize()[0], factor * (1 + 1 / B) * x)


WITHOUT_GRADIENT: dict[str, Callable[[Tensor], Tensor]] = {
    "a comparison": lambda w: (w > 0).sum(),
    "a position": lambda w: w.argmax(),
    "what is detached": lambda w: w.detach().sum(),
    "data": lambda w: w.data.sum() + (w * 1).data.sum(),
}


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_a_number_of_the_parameters_without_a_gradient_may_be_added_to_the_loss(name: str) -> None:
    x, w = samples(), parameter()
    with per_sample([w]) as grads:
        ((grads.batch(x) * w).sum() + WITHOUT_GRADIENT[name](w)).backward()
    torch.testing.assert_close(grads.materialize()[0], x)


@pytest.mark.parametrize("rows", [2, N])
def test_samples_in_rows_that_are_written_into_columns_are_refused(rows: int) -> None:
    w = parameter()
    with (
        per_sample([w]) as grads,
        pytest.raises(RuntimeError, match="does not fit the samples in the other parts"),
    ):
        x = grads.batch(samples(rows))
        y = (x * w)[:, :rows].clone()
        y.mT.copy_(x[:, :rows])
        y.sum().backward()


def test_what_samples_were_written_to_in_an_earlier_context_is_a_constant() -> None:
    x, w = samples(), parameter()
    with per_sample([w]) as grads:
        kept = (grads.batch(x) * 1).mul_(2)
    with per_sample([w]) as grads:
        (grads.batch(x) * w * kept).sum().backward()
    torch.testing.assert_close(grads.materialize()[0], 2 * x * x)


def test_passes_of_a_sum_and_of_a_mean_add_up() -> None:
    x, w = samples(), parameter()
    with per_sample([w]) as grads:
        (grads.batch(x) * w).sum().backward()
        (grads.batch(x) * w).sum(1).mean().backward()
    torch.testing.assert_close(grads.materialize()[0], 2 * x)


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_loss_of_samples_and_a_parameter(loss: Any, reduction: str) -> None:
    x, w = samples(), parameter()
    expected = [
        torch.autograd.grad(loss(one[None], w.expand(1, N), reduction=reduction), w)[0] for one in x
    ]
    with per_sample([w]) as grads:
        loss(grads.batch(x), w.expand(B, N), reduction=reduction).backward()
    torch.testing.assert_close(grads.materialize()[0], torch.stack(expected))


def test_a_pass_that_begins_at_the_losses_needs_a_word() -> None:
    x, w = samples(), parameter()
    with (
        per_sample([w]) as grads,
        pytest.raises(
            RuntimeError, match="began behind the sum or mean over the samples, or outside of the"
        ),
    ):
        (grads.batch(x) * w).sum(1).backward(torch.ones(B, dtype=x.dtype))
    for reduction, factor in (("sum", 1), ("mean", B)):
        with per_sample([w], reduction=reduction) as grads:
            (grads.batch(x) * w).sum(1).backward(torch.ones(B, dtype=x.dtype))
        torch.testing.assert_close(grads.materialize()[0], factor * x)


def test_batches_of_several_sizes_are_refused() -> None:
    with per_sample([parameter()]) as grads:
        grads.batch(samples())
        with pytest.raises(
            RuntimeError, match="a batch has 3 samples in dimension 1, and another one has 4"
        ):
            grads.batch(samples(), 1)


def test_a_term_of_parameters_alone_is_refused_by_the_name_of_the_parameter() -> None:
    w, v = parameter(), parameter()
    with per_sample({"scale": w, "shift": v}) as grads:
        loss = (grads.batch(samples()) * w + v).sum() + v.square().sum()
        with pytest.raises(
            RuntimeError, match="it adds a term of parameters alone to the loss of the samples"
        ):
            loss.backward()
        with pytest.raises(
            RuntimeError, match=r"the loss depends on \['shift'\] by a term without samples"
        ):
            v.square().sum().backward()


@pytest.mark.parametrize("mode", ["sum", "max"])
def test_a_row_of_indices_is_the_bag_of_a_sample(mode: str) -> None:
    rows, table = (
        torch.tensor([[0, 4, 0], [2, 2, 1]]),
        torch.linspace(-1, 1, 10, dtype=torch.float64).reshape(5, 2).requires_grad_(),
    )
    expected = [
        torch.autograd.grad(F.embedding_bag(row[None], table, mode=mode).exp().sum(), table)[0]
        for row in rows
    ]
    with per_sample([table]) as grads:
        F.embedding_bag(grads.batch(rows), table, mode=mode).exp().sum().backward()
    torch.testing.assert_close(grads.materialize()[0], torch.stack(expected))


@pytest.mark.parametrize("name", ["_embedding_bag", "_embedding_bag_forward_only"])
def test_an_op_of_bags_is_followed_by_its_own_name(name: str) -> None:
    rows = torch.tensor([[0, 4, 0], [2, 2, 1]])
    table = torch.linspace(-1, 1, 10, dtype=torch.float64).reshape(5, 2).requires_grad_()
    bags = getattr(torch.ops.aten, name)
    rate = torch.ones(2, dtype=torch.float64, requires_grad=True)
    expected = [bags(table.detach(), row, torch.tensor([0]))[0].exp() for row in rows]
    with per_sample([rate]) as grads:
        indices = grads.batch(rows).reshape(-1)
        (bags(table.detach(), indices, torch.tensor([0, 3]))[0].exp() * rate).sum().backward()
    torch.testing.assert_close(grads.materialize()[0], torch.cat(expected))
