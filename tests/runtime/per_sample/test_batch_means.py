"""Losses of torch in the context have the gradients of a loop over the samples, with each
of their options."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import runtime
from runtime.per_sample import per_sample

B, C, T = 4, 3, 5


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def classes(*shape: int) -> Tensor:
    return torch.randint(0, C, shape, generator=torch.Generator().manual_seed(2))


def check(
    loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, target: Tensor, **options: Any
) -> None:
    """The gradients of ``loss(scores, target)`` are those of each sample alone by torch."""
    w = (
        torch.linspace(0.5, 2, C, dtype=torch.float64)
        .reshape(C, *[1] * (x.dim() - 2))
        .requires_grad_()
    )
    expected = [
        torch.autograd.grad(loss(x[b : b + 1] * w, target[b : b + 1]), w)[0] for b in range(len(x))
    ]
    with per_sample(w, **options) as grads:
        loss(grads.batch(x) * w, grads.batch(target)).backward()
    torch.testing.assert_close(grads.materialize(), torch.stack(expected))
    assert torch.stack(expected).abs().max() > 1e-3


OPTIONS = [
    {"reduction": reduction, "label_smoothing": smoothing, "weight": weight}
    for reduction, smoothing, weight in itertools.product(
        ("mean", "sum"), (0.0, 0.2), (None, torch.tensor([0.5, 2.0, 1.0]).double())
    )
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(str(v)[:6] for v in o.values()))
@pytest.mark.parametrize("shape", [(B, C), (B, C, T)], ids=str)
def test_cross_entropy_with_probabilities(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    check(
        lambda x, y: F.cross_entropy(x, y, **options),
        numbers(*shape),
        numbers(*shape, seed=1).softmax(1),
    )


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(str(v)[:6] for v in o.values()))
@pytest.mark.parametrize("shape", [(B, C), (B, C, T)], ids=str)
def test_cross_entropy_with_classes(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x, y, **options)

    if (
        options["label_smoothing"]
        and options["weight"] is not None
        and options["reduction"] == "mean"
    ):
        with pytest.raises(RuntimeError, match=r"^per_sample: .* mixes samples"):
            check(loss, numbers(*shape), classes(B, *shape[2:]))
    else:
        check(loss, numbers(*shape), classes(B, *shape[2:]))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_targets_that_are_ignored_have_no_part_in_the_mean_of_their_sample(
    ignored: int, smoothing: float
) -> None:
    target = classes(B, T)
    target[0, 2:], target[1, 0] = ignored, ignored
    options: dict[str, Any] = {} if ignored == -100 else {"ignore_index": ignored}
    check(
        lambda x, y: 3 * F.cross_entropy(x, y, label_smoothing=smoothing, **options),
        numbers(B, C, T),
        target,
    )


@pytest.mark.parametrize("first", [True, False])
def test_a_mean_over_some_targets_beside_one_over_all_samples_needs_a_word(first: bool) -> None:
    target = classes(B, T)
    target[1, 0] = -100

    def loss(x: Tensor, y: Tensor) -> Tensor:
        terms = F.cross_entropy(x, y), x.exp().mean()
        return terms[0] + terms[1] if first else terms[1] + terms[0]

    with pytest.raises(RuntimeError, match="it adds a sum and a mean over the samples"):
        check(loss, numbers(B, C, T), target)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_without_reduction_are_reduced_by_the_program(reduction: str) -> None:
    soft = numbers(B, C, seed=1).softmax(1)
    check(
        lambda x, y: getattr(F.cross_entropy(x, y, reduction="none"), reduction)(),
        numbers(B, C),
        soft,
    )
    check(
        lambda x, y: getattr(
            F.cross_entropy(x, y, reduction="none", label_smoothing=0.1), reduction
        )(),
        numbers(B, C),
        classes(B),
    )


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(str(v)[:6] for v in o.values()))
def test_a_sample_of_one_vector_of_scores(options: dict[str, Any]) -> None:
    w, x, y = (
        torch.ones(C, dtype=torch.float64, requires_grad=True),
        numbers(1, C),
        numbers(1, C, seed=1).softmax(1),
    )
    (expected,) = torch.autograd.grad(F.cross_entropy((x * w)[0], y[0], **options), w)
    with per_sample(w) as grads:
        F.cross_entropy((grads.batch(x) * w)[0], grads.batch(y)[0], **options).backward()
    torch.testing.assert_close(grads.materialize(), expected[None])


@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")
@pytest.mark.parametrize(
    "old", [{"size_average": False}, {"reduce": True}, {"size_average": True, "reduce": True}]
)
def test_the_old_names_of_reductions(old: dict[str, Any]) -> None:
    check(lambda x, y: F.cross_entropy(x, y, **old), numbers(B, C), classes(B))
    check(lambda x, y: F.kl_div(x, y, **old), numbers(B, C), numbers(B, C, seed=1).softmax(1))


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", ["batchmean", "sum", "mean"])
@pytest.mark.parametrize("shape", [(B, C), (B, C, T)], ids=str)
def test_the_divergence_of_kullback_and_leibler(
    shape: tuple[int, ...], reduction: str, log_target: bool
) -> None:
    target = (
        numbers(*shape, seed=1).log_softmax(1) if log_target else numbers(*shape, seed=1).softmax(1)
    )
    check(
        lambda x, y: F.kl_div(x.log_softmax(1), y, reduction=reduction, log_target=log_target),
        numbers(*shape),
        target,
    )


# options of cross entropy, and whether it gets probabilities
REFUSED: dict[str, tuple[dict[str, Any], bool]] = {
    "a reduction without a name": ({"reduction": "average"}, True),
    "a reduction without a name, of smoothed classes": (
        {"reduction": "average", "label_smoothing": 0.1},
        False,
    ),
    "too much smoothing": ({"label_smoothing": 1.5}, True),
    "too much smoothing of classes": ({"label_smoothing": 1.5}, False),
    "classes to ignore among probabilities": ({"ignore_index": 0}, True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cross_entropy_refuses_is_refused_in_torchs_words(name: str) -> None:
    options, soft = REFUSED[name]
    x, target = numbers(B, C), numbers(B, C, seed=1).softmax(1) if soft else classes(B)
    with pytest.raises((ValueError, RuntimeError)) as alone:
        F.cross_entropy(x, target, **options)
    with (
        per_sample(torch.ones(1, requires_grad=True)) as grads,
        pytest.raises(type(alone.value)) as found,
    ):
        F.cross_entropy(grads.batch(x), grads.batch(target), **options)
    assert str(found.value) == str(alone.value)


def test_probabilities_are_no_integers() -> None:
    with (
        per_sample(torch.ones(1, requires_grad=True)) as grads,
        pytest.raises(RuntimeError, match="Expected floating point type for target"),
    ):
        F.cross_entropy(
            grads.batch(numbers(B, C)), grads.batch(torch.ones(B, C, dtype=torch.int64))
        )


@pytest.mark.parametrize("smoothing", [0.0, 1.0, -1.0])
def test_the_value_of_smoothed_cross_entropy_is_torchs(smoothing: float) -> None:
    x, target = numbers(B, C), classes(B)
    with per_sample(torch.ones(1, requires_grad=True)) as grads:
        found = F.cross_entropy(grads.batch(x), grads.batch(target), label_smoothing=smoothing)
    torch.testing.assert_close(
        runtime.unwrap(found), F.cross_entropy(x, target, label_smoothing=smoothing)
    )


@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")
@pytest.mark.parametrize("old", [{"size_average": False}, {"reduce": False}])
def test_the_old_names_of_reductions_come_before_the_new_one(old: dict[str, Any]) -> None:
    x, target = numbers(B, C).log_softmax(1), numbers(B, C, seed=1).softmax(1)
    with per_sample(torch.ones(1, requires_grad=True)) as grads:
        found = F.kl_div(grads.batch(x), grads.batch(target), reduction="batchmean", **old)
    torch.testing.assert_close(
        runtime.unwrap(found), F.kl_div(x, target, reduction="batchmean", **old)
    )


def _normalized(x: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    mean, var = torch.full((C,), 0.5, dtype=x.dtype), torch.full((C,), 2.0, dtype=x.dtype)
    return F.instance_norm(x, mean, var, **options), mean, var


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.5, "eps": 0.3}, {"use_input_stats": False}], ids=str
)
def test_instance_norm_by_its_function(options: dict[str, Any]) -> None:
    check(
        lambda x, y: (_normalized(x.sin(), **options)[0] * y).sum(),
        numbers(B, C, T),
        numbers(B, C, T, seed=1),
    )
    x = numbers(B, C, T)
    with per_sample(torch.ones(1, requires_grad=True)) as grads:
        found = _normalized(grads.batch(x), **options)
    torch.testing.assert_close([runtime.unwrap(t) for t in found], list(_normalized(x, **options)))


@pytest.mark.parametrize("shape", [(B, C), (C,)], ids=str)
def test_what_instance_norm_refuses_is_refused_in_torchs_words(shape: tuple[int, ...]) -> None:
    with pytest.raises((ValueError, RuntimeError)) as alone:
        _normalized(numbers(*shape))
    with (
        per_sample(torch.ones(1, requires_grad=True)) as grads,
        pytest.raises(type(alone.value)) as found,
    ):
        _normalized(grads.batch(numbers(*shape)))
    assert str(found.value) == str(alone.value)


def test_instance_norm_of_no_samples_has_no_elements() -> None:
    with per_sample(torch.ones(1, requires_grad=True)) as grads:
        assert _normalized(grads.batch(numbers(0, C, T)))[0].shape == (0, C, T)


# of the loss of each of 4 samples, and what the error says of it
NUMBERS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "divided by their number": (
        lambda each: each.sum() / 4,
        "a sum over 4 samples is divided by 4",
    ),
    "divided by a multiple": (
        lambda each: each.sum() / 12,
        "a sum over 4 samples is divided by 12",
    ),
    "divided by a tensor": (
        lambda each: each.sum() / torch.tensor(4.0),
        "a sum over 4 samples is divided by 4",
    ),
    "times the inverse": (
        lambda each: each.sum() * 0.25,
        "a sum over 4 samples is multiplied with 0.25",
    ),
    "times the negative inverse": (
        lambda each: -0.25 * each.sum(),
        "a sum over 4 samples is multiplied with 0.25",
    ),
    "times the inverse in single precision": (
        lambda each: each.sum() * float(torch.tensor(1 / 12)),
        "a sum over 4 samples is multiplied",
    ),
    "a mean times their number": (
        lambda each: each.mean() * 4,
        "a mean over 4 samples is multiplied with 4",
    ),
    "a mean divided by the inverse": (
        lambda each: each.mean() / 0.25,
        "a mean over 4 samples is divided by 0.25",
    ),
    "in place": (lambda each: each.sum().div_(8), "a sum over 4 samples is divided by 8"),
}
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "a sum divided by less": lambda each: each.sum() / 2,
    "a sum divided by no multiple": lambda each: each.sum() / 6,
    "a sum divided by more than a multiple": lambda each: each.sum() / 4.001,
    "a sum times their number": lambda each: each.sum() * 4,
    "a sum times zero and itself": lambda each: each.sum() * 0.0 + each.sum(),
    "a mean divided by their number": lambda each: each.mean() / 4,
    "a mean times less": lambda each: each.mean() * 2,
    "a mean times no multiple": lambda each: each.mean() * 5,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_sum_by_a_number_that_may_be_that_of_the_samples_is_refused(name: str) -> None:
    scaled, says = NUMBERS[name]
    instead = "mean" if "a sum" in says else "sum"
    with pytest.raises(
        RuntimeError,
        match=(
            rf"{says}.* may be their number\. Use {instead}\(\), "
            r"or say which the gradients are of by reduc"
        ),
    ):
        check(lambda x, y: scaled((x * y).sum(1)), numbers(B, C), numbers(B, C, seed=1))


def test_a_sum_over_two_samples_divided_by_two_may_be_their_mean() -> None:
    with pytest.raises(
        RuntimeError, match="a sum over 2 samples is divided by 2, which may be their number"
    ):
        check(lambda x, y: (x * y).sum() / 2, numbers(2, C), numbers(2, C, seed=1))


@pytest.mark.parametrize("name", OTHERS)
def test_a_sum_by_another_number_is_a_sum_with_a_weight(name: str) -> None:
    check(lambda x, y: OTHERS[name]((x * y).sum(1)), numbers(B, C), numbers(B, C, seed=1))


@pytest.mark.parametrize("name", NUMBERS)
def test_a_word_decides_what_the_number_means(name: str) -> None:
    w, x, share = (
        torch.ones(C, dtype=torch.float64, requires_grad=True),
        numbers(B, C),
        float(NUMBERS[name][0](torch.ones(B))) / B,
    )
    for reduction, scale in (("sum", share), ("mean", B * share)):
        with per_sample(w, reduction=reduction) as grads:
            NUMBERS[name][0]((grads.batch(x) * w).sum(1)).backward()
        torch.testing.assert_close(grads.materialize(), scale * x)


@pytest.mark.parametrize("factor", [float("inf"), float("nan")])
def test_a_loss_may_be_scaled_by_what_is_no_number_of_samples(factor: float) -> None:
    p = runtime.tensor([1.0, 2.0], requires_grad=True)
    with per_sample([p]) as grads:
        ((grads.batch(torch.ones(3, 2)) * p).sum(1).mean() * factor).backward()
    assert not grads.norms().isfinite().any()
