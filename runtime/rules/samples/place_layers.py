"""Find where the samples lie in the results of layers and losses: see :mod:`.places`.

Example: the mean of ``mse_loss`` over a batch is the mean of the losses of the samples. That of
``nll_loss`` with weights is none: it divides by the weights of all targets.
"""

from __future__ import annotations

from typing import Any

import torch

from .place_rules import (
    Rule,
    along,
    front,
    has_one_run_each,
    place_as,
    place_by_leading,
    require_constant_but,
)
from .places import Mixed, Place, Placed, Pooled, Tensor, pool, pool_by_counts


def normalization(call: Placed) -> Place:
    """Return the place for norms over the trailing dimensions, which are those of the weights."""
    count = len(call.args["normalized_shape"])
    return place_by_leading(call, dict.fromkeys(call.names, count))


def batch_norm(call: Placed) -> object:
    """Return the places for batch norm: in training each channel must belong to one sample."""
    place = call.place("input")
    if place is None:
        raise Mixed("its weights depend on the sample")
    # as instance norm calls it, with the channels of all samples in one dimension
    if call.args["input"].dim() > 1 and place.dim == 1:
        return _instance_norm(call, place.moved(0), place)
    require_constant_but(call, "input")
    # two ops have no argument `training`, since they always take the running statistics
    evaluates = ("_native_batch_norm_legit_no_training", "_batch_norm_no_update")
    if call.args.get("training", call.op.base_name not in evaluates):
        raise Mixed("batch norm computes its statistics over the batch. Use group norm, or eval()")
    return [place, *[None] * (len(call.outs) - 1)]


def _instance_norm(call: Placed, of_rows: Place, place: Place) -> object:
    """Return the places for batch norm of the channels of all samples together.

    ``of_rows``: the place in a tensor with one number for each channel.
    """
    for name in ("weight", "bias", "running_mean", "running_var"):
        place_as(call, name, of_rows)
    places: list[Place | None] = [place, *[None] * (len(call.outs) - 1)]
    for index, output in enumerate(call.outs[1:], 1):
        if output.dim() == 1 and output.numel():  # statistics, not the empty reserve
            places[index] = of_rows
    return places


NONE, MEAN, SUM = range(3)
"""The values of ``reduction``."""


def loss(*others: str) -> Rule:
    """Return the rule of losses with ``reduction``. ``others``: the arguments that broadcast with
    ``self``."""

    def rule(call: Placed) -> Any:
        """Return the place in the losses, or what they become if they are summed."""
        names = [name for name in ("self", *others) if call.args.get(name) is not None]
        return _reduced_loss(call, place_by_leading(call.with_only(names), {}))

    return rule


def _reduced_loss(call: Placed, place: Place) -> object:
    """Return ``place``, where the losses have samples, or that a sum or mean is over these."""
    how = call.args["reduction"]
    if how == NONE:
        return place
    return pool(place, call.size, how == MEAN)


def nll_loss(call: Placed) -> object:
    """Return the places for ``nll_loss``, whose mean weighs the targets."""
    scores, place = call.args["self"], call.place("self")
    require_constant_but(call, "self", "target")
    if place is None or place.dim == 1 or scores.dim() < 2:
        raise Mixed("the classes lie in dimension 1, and so do the samples")
    # targets have the dimensions of the scores but that of the classes
    shifted = place.moved(place.dim - (place.dim > 1))
    if call.place("target") not in (None, shifted):
        raise Mixed("the targets have the samples in another place than the scores")
    call.places["target"] = shifted
    if call.args["reduction"] == NONE:
        return [shifted, None]
    if call.args["reduction"] == SUM:
        return [Pooled(), None]
    # a mean divides by all weights, where a sample alone would divide by its own
    own = shifted.split_gradient(_weights_of_targets(call), call.size).flatten(1).sum(1)
    if own[0] > 0 and bool((own == own[0]).all()):
        return [Pooled(call.size), None]
    return [pool_by_counts(own), None]


def _weights_of_targets(call: Placed) -> Tensor:
    """Return what each target counts in the mean of ``nll_loss``."""
    target, weight = call.args["target"], call.args["weight"]
    counts: Tensor = (target != call.args["ignore_index"]).to(call.args["self"].dtype)
    if weight is None:
        return counts
    # an ignored target may be negative
    weights: Tensor = weight[target.clamp_min(0)]
    return counts * weights


def margin_loss(call: Placed) -> object:
    """Return the places for losses of scores (B, C) or (C,) and one target for each row."""
    cores = {"self": 1, "target": int(call.op.base_name == "multilabel_margin_loss_forward")}
    require_constant_but(call, *cores)
    place = place_by_leading(call.with_only(cores), cores)
    return [_reduced_loss(call, place), *([place] * (len(call.outs) - 1))]


def embedding_bag(call: Placed) -> object:
    """Return the places for bags of rows. Each sample must have whole bags, one after the other."""
    place, offsets = call.place("indices"), call.args["offsets"]
    bags = call.outs[0].shape[0]
    require_constant_but(call, "indices", "per_sample_weights")
    if place is not None:
        place_as(call, "per_sample_weights", place)
    if place is None or not has_one_run_each(place) or bags % call.size:
        raise Mixed(
            "the bags of a sample are not known. Give the indices as a matrix with one row per bag"
        )
    # the first bag of each sample must start at its first index
    starts = offsets[:bags].reshape(call.size, -1)[:, 0]
    if not torch.equal(starts, torch.arange(0, call.size, device=starts.device) * place.inner):
        raise Mixed("a bag has the indices of several samples")
    return [Place(0, 1, bags // call.size), *[None] * (len(call.outs) - 1)]


def recurrent(call: Placed) -> object:
    """Return the places for a layer over time, in its outputs and last states."""
    place = call.place("input")
    require_constant_but(call, "input", "hx_", "cx_")
    if place is None or place.dim != 1:
        raise Mixed("a recurrent layer has the batch in dimension 1 of its input")
    for name in ("hx_", "cx_"):
        if call.args.get(name) is not None:
            place_as(call, name, place.moved(call.args[name].dim() - 2))
    places: list[Place | None] = [place, *[None] * (len(call.outs) - 1)]
    for index, output in enumerate(call.outs[1:], 1):
        if output.dim() > 1:  # a state, not the workspace
            places[index] = place.moved(output.dim() - 2)
    return places


def padding(call: Placed) -> Place:
    """Return the place in a padded tensor. ``pad`` may name dimensions that it leaves as they
    are."""
    # two widths for each dimension, those of the last one first
    padded = [index // 2 for index, width in enumerate(call.args["pad"]) if width]
    return place_by_leading(call, {"self": 1 + max(padded, default=-1)})


def fractional_pool(call: Placed) -> Place:
    """Return the place in a pooled tensor. Each sample has random numbers of its own."""
    if call.args["self"].dim() != len(call.args["kernel_size"]) + 2:
        raise Mixed("it pools one sample. Give it a batch, with one more dimension in front")
    return front("self", "random_samples")(call)  # type: ignore[no-any-return]


def per_channel(call: Placed) -> Place:
    """Return the place in what is rounded with a scale for each channel."""
    require_constant_but(call, "self")
    return along("axis")(call)  # type: ignore[no-any-return]


def convolution(call: Placed) -> Place:
    """Return the place in a convolution: the samples are the batch, the weights of output channels,
    or groups of channels, each with weights of its own."""
    of_x, of_weight = call.place("input"), call.place("weight")
    # Samples in dimension 0 of the weight have output channels of their own. Their input is the
    # same for all, or lies in groups of channels.
    is_in_channels = of_x is None or of_x.dim == 1
    if of_weight is None or of_weight.dim != 0 or not is_in_channels:
        return front("input")(call)  # type: ignore[no-any-return]
    if of_x is None and call.args["groups"] == 1 and not call.args["transposed"]:
        place = of_weight.moved(1)
    else:
        place = _place_of_groups(call)
    # the bias has one number for each output channel
    place_as(call, "bias", place.moved(0))
    return place


def _place_of_groups(call: Placed) -> Place:
    """Return the place in the result of a convolution in which each sample has groups of its
    own."""
    runs = has_one_run_each(call.place("input")) and has_one_run_each(call.place("weight"))
    if call.args["groups"] % call.size or not runs:
        raise Mixed("groups of channels are not the samples")
    return Place(1, 1, call.outs[0].shape[1] // call.size)


def log_probs(call: Placed) -> object:
    """Return the place in the losses of ``ctc_loss``, for scores (T, B, C)."""
    place = call.place("log_probs")
    require_constant_but(call, "log_probs", "targets")
    if place != Place(1) or call.args["targets"].dim() != 2:
        raise Mixed(
            "ctc_loss has the batch in dimension 1 of the scores, and needs the targets as a matrix"
        )
    return Place(0)
