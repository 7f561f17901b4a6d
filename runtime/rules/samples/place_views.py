"""Find where the samples lie in views of a tensor, and in tensors whose elements a view op or a
roll puts in another order: see :mod:`.places`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..record import overload
from .places import (
    Mixed,
    Place,
    Placed,
    Tensor,
    is_packed,
    listed,
    picked,
    place_of,
    reshaped,
)

# by view op: where the samples of its result are
VIEWS: dict[object, Callable[[Placed], object]] = {}


def _rule(names: str) -> Callable[[Callable[[Placed, Place], object]], object]:
    """Return a decorator that registers a rule of ops on one tensor, ``self``. The rule gets the
    place in that tensor."""

    def decorate(rule: Callable[[Placed, Place], object]) -> object:
        """Register the rule under all names."""

        def place_in_self(call: Placed) -> object:
            """Call the rule with the place in ``self``, the only tensor that can have samples."""
            place = call.place("self")
            assert place is not None  # rules are for calls in which an argument has samples
            return rule(call, place)

        for name in names.split():
            VIEWS[overload(name)] = place_in_self
        return rule

    return decorate


def dim_of(call: Placed, name: str = "dim", more: int = 0) -> int:
    """Return a dimension that an argument names, as a non-negative number. ``more``: how many
    dimensions the result has beyond those of ``self``."""
    rank = call.args["self"].dim() + more
    number: int = call.args[name]
    if not rank:
        return 0
    return number % rank  # type: ignore[no-any-return]


@_rule("view_as_complex")
def _as_complex(call: Placed, place: Place) -> Place:
    if place.dim == call.args["self"].dim() - 1:
        raise Mixed("it joins pairs of samples to complex numbers")
    return place


@_rule(
    "detach alias lift_fresh _conj _neg_view view_as_real detach_copy alias_copy "
    "_conj_copy view_as_real_copy"
)
def _same(call: Placed, place: Place) -> Place:
    return place


@_rule("view.dtype view_copy.dtype")
def _as_dtype(call: Placed, place: Place) -> Place:
    """Return the place in memory that is read as another dtype."""
    if place.dim == call.args["self"].dim() - 1 and call.outs[0].shape != call.args["self"].shape:
        raise Mixed(
            "it joins or splits elements of the last dimension, which runs over the samples"
        )
    return place


@_rule("view _unsafe_view _reshape_alias _reshape_copy view_copy squeeze squeeze_copy")
def _reshape(call: Placed, place: Place) -> Place:
    return reshaped(place, call.args["self"].shape, call.outs[0].shape, call.size)


@_rule("squeeze.dim squeeze.dims squeeze_copy.dim squeeze_copy.dims")
def _squeeze(call: Placed, place: Place) -> Place:
    """Return the place without dimensions of size 1."""
    shape = call.args["self"].shape
    gone = [dim for dim in call.dims("dim", len(shape)) if shape[dim] == 1]
    if place.dim in gone:  # all of it belongs to one sample
        return reshaped(place, shape, call.outs[0].shape, call.size)
    return place.moved(place.dim - sum(dim < place.dim for dim in gone))


@_rule("expand expand_copy")
def _expand(call: Placed, place: Place) -> Place:
    """Return the place in an expanded tensor."""
    dim = place.dim + call.outs[0].dim() - call.args["self"].dim()
    n = call.outs[0].shape[dim]
    if n == place.length(call.size):
        return place.moved(dim)
    # a dimension of one element, whose copies belong to its sample
    return listed(dim, call.owners("self").expand(n), call.size)


@_rule("unsqueeze unsqueeze_copy")
def _unsqueeze(call: Placed, place: Place) -> Place:
    # a new dimension before it, or in its place, moves it by one
    return place.moved(place.dim + (place.dim >= dim_of(call, more=1)))


@_rule("t t_copy")
def _t(call: Placed, place: Place) -> Place:
    return place.moved(call.args["self"].dim() - 1 - place.dim)


@_rule("transpose.int transpose_copy.int")
def _transpose(call: Placed, place: Place) -> Place:
    first, second = dim_of(call, "dim0"), dim_of(call, "dim1")
    exchanged = {first: second, second: first}
    return place.moved(exchanged.get(place.dim, place.dim))


@_rule("permute permute_copy")
def _permute(call: Placed, place: Place) -> Place:
    return place.moved(call.dims("dims", call.args["self"].dim()).index(place.dim))


@_rule("select.int select_copy.int unbind.int unbind_copy.int")
def _without(call: Placed, place: Place) -> Place:
    dim = dim_of(call)
    if dim == place.dim:
        raise Mixed(f"it picks single samples, which lie in dimension {dim}")
    return place.moved(place.dim - (dim < place.dim))


@_rule(
    "slice.Tensor slice_copy.Tensor split.Tensor split_with_sizes split_copy.Tensor "
    "split_with_sizes_copy narrow_copy"
)
def _parts(call: Placed, place: Place) -> Any:
    """Return the places in slices or in parts of a split."""
    if dim_of(call) != place.dim:
        return place
    n = call.args["self"].shape[place.dim]
    # only a slice has a start and a step; a split goes on from part to part
    first, step = call.args.get("start") or 0, call.args.get("step", 1)
    if first < 0:
        first = max(0, first + n)
    owners, places = call.owners("self"), []
    splits = call.op.base_name.startswith("split")
    for output in call.outs:
        length = output.shape[place.dim]
        own = owners[first : first + length * step : step]
        if splits:  # all parts of a split are likely to be treated alike, and then joined
            places.append(listed(place.dim, own, call.size, is_packed(place)))
        else:
            places.append(picked(place, place.dim, own, call.size))
        first += length
    return places


VIEWS[overload("unsafe_split.Tensor")] = VIEWS[overload("split.Tensor")]
VIEWS[overload("unsafe_split_with_sizes")] = VIEWS[overload("split_with_sizes")]


@_rule("diagonal diagonal_copy")
def _diagonal(call: Placed, place: Place) -> Place:
    """Return the place in diagonals, of which the samples must not be a part."""
    dims = (dim_of(call, "dim1"), dim_of(call, "dim2"))
    if place.dim in dims:
        raise Mixed(
            f"it takes the diagonal along dimension {place.dim}, which runs over the samples"
        )
    return place.moved(place.dim - sum(dim < place.dim for dim in dims))


@_rule("unfold unfold_copy")
def _unfold(call: Placed, place: Place) -> Place:
    if dim_of(call, "dimension") == place.dim:
        raise Mixed(f"its windows run along dimension {place.dim}, which runs over the samples")
    return place


@_rule("as_strided as_strided_copy")
def _as_strided(call: Placed, place: Place) -> Place:
    """Return the place in a view by strides: by the sample of each element of memory."""
    x, out = call.args["self"], call.outs[0]
    if _geometry(x) == _geometry(out):
        return place
    # the sample of each number in memory, -1 for those that belong to none
    n_elements = x.untyped_storage().nbytes() // x.itemsize
    memory = torch.full([n_elements], -1, device=x.device)
    memory.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(
        place.owners_in(x.shape, call.size, x.device)
    )
    owners = memory.as_strided(out.shape, out.stride(), out.storage_offset())
    place_in_view = place_of(owners, call.size)
    if place_in_view is None or bool((owners < 0).any()):
        raise Mixed(
            "it describes memory by strides, and shows elements of several samples. "
            "Use views that name dimensions"
        )
    return place_in_view


def _geometry(t: Tensor) -> tuple[Any, ...]:
    return t.shape, t.stride(), t.storage_offset()


@_rule("flip")
def _flip(call: Placed, place: Place) -> Place:
    if place.dim not in call.dims("dims", call.args["self"].dim()):
        return place
    return listed(place.dim, call.owners("self").flip(0), call.size)


@_rule("nonzero")
def _nonzero(call: Placed, place: Place) -> Place:
    # each row of the result is an index, one of whose numbers says the sample
    return listed(0, call.owners("self")[call.outs[0][:, place.dim]], call.size)


@_rule("roll")
def _roll(call: Placed, place: Place) -> Place:
    """Return the place of rolled samples, or of samples whose elements are rolled."""
    shifts = call.args["shifts"]
    if not call.args["dims"]:
        raise Mixed("it rolls the elements of all samples in one row. Name a dimension")
    if isinstance(shifts, int):
        shifts = [shifts]
    # rolling along the samples gives them another order
    owners = call.owners("self")
    dims = call.dims("dims", call.args["self"].dim())
    for shift, dim in zip(shifts, dims, strict=True):
        if dim == place.dim:
            owners = owners.roll(shift)
    return listed(place.dim, owners, call.size)
