"""Replace losses that divide a sum over the samples by their number, and a layer that takes a mean
over them.

A followed batch needs to see each mean as a mean: ``F.kl_div(x, y, reduction="batchmean")`` is a
sum that ATen divides by a number, and it is replaced by ``losses.mean()``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from ..rules.samples.places import Mixed, Tensor


def refuse_number_of_samples(
    name: str, arguments: Sequence[object], is_sum: bool, size: int
) -> None:
    """Raise ``Mixed`` if a sum over the samples is divided by a multiple of their number, or a mean
    is multiplied with one.

    Example: ``losses.sum() / 4`` with a batch of 4 is their mean, or a sum with a weight. ``name``:
    the name of the op, ``arguments``: its arguments."""
    divides = name.startswith("div")
    how = "divided by" if divides else "multiplied with"
    what, instead = "mean", "sum()"
    if is_sum:
        what, instead = "sum", "mean()"
    for number in _numbers(arguments):
        factor = number
        if divides != is_sum:  # a sum times 1 / 4 is divided by 4
            factor = 1 / number
        if _is_multiple(factor, size):
            raise Mixed(
                f"a {what} over {size} samples is {how} {number:g}, which may be their number. "
                f"Use {instead}, or say which the gradients are of by reduction='sum' or 'mean'"
            )


def _is_multiple(number: float, size: int) -> bool:
    """Return whether ``number`` is a multiple of ``size``, as far as its digits tell."""
    if not math.isfinite(number):
        return False
    near = round(number)
    return near >= size and near % size == 0 and math.isclose(number, near, rel_tol=1e-6)


def _numbers(arguments: Sequence[object]) -> list[float]:
    """Return the magnitudes of the numbers among ``arguments``, without zeros."""
    magnitudes: list[float] = []
    for argument in arguments:
        number: object = argument
        if type(argument) is torch.Tensor and argument.numel() == 1 and not argument.is_complex():
            number = argument.item()
        if isinstance(number, (int, float)) and number:
            magnitudes.append(abs(float(number)))
    return magnitudes


def _cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute ``F.cross_entropy`` by ops that show a mean over the samples as a mean.

    ATen divides a sum by the number of samples for targets of probabilities, and for smoothed
    labels without weights. All other calls are left to ATen.
    """
    has_probabilities = x.shape == target.shape  # in place of the numbers of classes
    if has_probabilities:
        divides = ignore_index < 0 and target.is_floating_point()
    else:
        divides = bool(label_smoothing) and weight is None
    # torch refuses other calls, in its own words
    valid = reduction in ("none", "mean", "sum") and 0 <= label_smoothing <= 1
    is_deprecated_form = size_average is not None or reduce is not None
    if is_deprecated_form or not divides or not valid:
        return F.cross_entropy(
            x, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
        )
    if has_probabilities:
        return _cross_entropy_of_probabilities(x, target, weight, reduction, label_smoothing)
    dim = _dim_of_classes(x)
    scores = x.log_softmax(dim)
    # smoothing mixes each score with the mean over the classes, and not over the samples
    scores = (1 - label_smoothing) * scores + label_smoothing * scores.mean(dim, keepdim=True)
    return F.nll_loss(scores, target, None, ignore_index=ignore_index, reduction=reduction)


def _cross_entropy_of_probabilities(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: str, label_smoothing: float
) -> Tensor:
    """Compute the cross entropy with targets that are probabilities of classes."""
    dim = _dim_of_classes(x)
    scores = x.log_softmax(dim)
    target = target * (1 - label_smoothing) + label_smoothing / x.shape[dim]
    if weight is not None:
        scores = scores * weight.reshape([-1, *[1] * (x.dim() - 1 - dim)])
    return _REDUCTIONS[reduction](-(scores * target).sum(dim))


def _dim_of_classes(x: Tensor) -> int:
    if x.dim() == 1:  # without a batch
        return 0
    return 1


_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda losses: losses,
    "mean": torch.mean,
    "sum": torch.sum,
}


def _kl_div(
    x: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Compute ``F.kl_div`` with ``"batchmean"`` as a mean over the samples of their sums."""
    is_deprecated_form = size_average is not None or reduce is not None
    if is_deprecated_form or reduction != "batchmean" or x.dim() < 2:
        return F.kl_div(x, target, size_average, reduce, reduction, log_target)
    return F.kl_div(x, target, reduction="none", log_target=log_target).flatten(1).sum(1).mean()


def _instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Compute ``F.instance_norm`` as batch norm of the channels of all samples together, as ATen
    does.

    ATen then takes the mean over the samples of the statistics, inside of one op. Here that mean is
    an op of its own.
    """
    # only an update of running statistics takes a mean over the samples
    updates = use_input_stats and x.dim() >= 3 and len(x) > 0
    if not updates or running_mean is None or running_var is None:
        return F.instance_norm(
            x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
        )
    # each sample has channels of its own, and so statistics, weights and biases of its own
    size, channels = x.shape[:2]
    mean, var = running_mean.repeat(size), running_var.repeat(size)
    if weight is not None:
        weight = weight.repeat(size)
    if bias is not None:
        bias = bias.repeat(size)
    rows = x.reshape(1, size * channels, *x.shape[2:])
    out = F.batch_norm(
        rows, mean, var, weight, bias, training=True, momentum=momentum, eps=eps
    ).view(x.shape)
    # the mean that ATen takes inside
    for moving, each in ((running_mean, mean), (running_var, var)):
        moving.copy_(each.view(size, channels).mean(0))
    return out


REPLACED: dict[object, Callable[..., Tensor]] = {
    F.cross_entropy: _cross_entropy,
    F.kl_div: _kl_div,
    F.instance_norm: _instance_norm,
}
"""Functions of torch that divide a sum by the size of the batch, and the same with a mean; and one
that hides a mean over the samples."""


def equal(factor: object, other: object) -> bool:
    """Return whether two factors of sums over the samples are the same."""
    if isinstance(factor, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(factor, other)
    if isinstance(factor, torch.Tensor) or isinstance(other, torch.Tensor):
        return False  # a number is no tensor, and == would compare elements
    return factor == other
