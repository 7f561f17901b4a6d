"""Find where the samples lie in the result of ops that join tensors, repeat them, put one into
another, add up windows, or put their elements in another order: see :mod:`.places`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .places import Mixed, Place, Placed, Tensor, is_packed, listed, one_place


def place_cat(call: Placed) -> Place:
    """Return the place in joined parts, which must have the samples alike, or be joined along
    them."""
    place, *others = [own for own in call.places["tensors"] if own is not None]
    if call.args["dim"] % call.outs[0].dim() == place.dim:
        return _join_along_samples(call, place.dim)
    one_place([place, *others])
    # parts without samples meet those of the others, row by row
    places: list[Place | None] = []
    for tensor in call.args["tensors"]:
        if _is_left_out(tensor):
            places.append(None)
        else:
            places.append(place)
    call.places["tensors"] = places
    return place  # type: ignore[no-any-return]


def _is_left_out(part: Tensor) -> bool:
    """Return whether ``cat`` ignores a part: an empty vector, whatever the rank of the others."""
    return part.dim() == 1 and part.numel() == 0


def _join_along_samples(call: Placed, dim: int) -> Place:
    """Return the place in parts that are joined along the dimension of the samples."""
    parts: Sequence[Tensor] = call.args["tensors"]
    joined: list[Place] = []
    for part, own in zip(parts, call.places["tensors"], strict=True):
        # ATen ignores empty vectors
        if _is_left_out(part):
            continue
        if own is None or own.dim != dim:
            raise Mixed("it joins samples with what belongs to none")
        joined.append(own)
    owners = torch.cat([own.owners(call.size, parts[0].device) for own in joined])
    return listed(dim, owners, call.size, any(map(is_packed, joined)))


def place_stack(call: Placed) -> Place:
    """Return the place in stacked tensors, which must all have the samples in one place."""
    place = one_place([own for own in call.places["tensors"] if own is not None])
    call.places["tensors"] = [place] * len(call.args["tensors"])
    dim = call.args["dim"] % call.outs[0].dim()
    return place.moved(place.dim + (place.dim >= dim))


def place_repeat(call: Placed) -> Place:
    """Return the place in a repeated tensor."""
    place, x, repeats = call.place("self"), call.args["self"], call.args["repeats"]
    assert place is not None
    # repeats may name more dimensions than there are, which come in front
    dim = place.dim + len(repeats) - x.dim()
    return listed(dim, call.owners("self").repeat(repeats[dim]), call.size)


def place_sort(call: Placed) -> Place:
    """Return the place in a sorted tensor. Sorting along the samples puts them in another order, if
    each has one number."""
    place, x = call.place("self"), call.args["self"]
    assert place is not None
    if place.dim not in call.dims("dim", x.dim()):
        return place
    if x.numel() != x.shape[place.dim]:
        raise Mixed(f"it sorts along dimension {place.dim}, which runs over the samples")
    # the second result is the permutation
    return listed(place.dim, call.owners("self")[call.outs[1].flatten()], call.size)


def place_isin(call: Placed) -> Place:
    """Return the place of elements that are compared with those of a set, which all samples
    share."""
    place = call.place("elements")
    if place is None or call.place("test_elements") is not None:
        raise Mixed("it compares elements with those of all samples")
    return place


def place_scattered(call: Placed) -> Place:
    """Return the place in ``self`` with ``src`` in one part of it: in an index, a slice, or a
    diagonal."""
    rank = call.args["self"].dim()
    written = [call.args[name] % rank for name in ("dim", "dim1", "dim2") if name in call.args]
    # for each dimension of `src`, that of `self`
    dims = [dim for dim in range(rank) if dim not in written]
    if call.op.base_name == "slice_scatter":
        dims = list(range(rank))
    places = []
    own, source = call.place("self"), call.place("src")
    if own is not None:
        places.append(own)
    if source is not None:
        if source.dim >= len(dims):
            raise Mixed("its samples would lie on a diagonal")
        places.append(source.moved(dims[source.dim]))
    place = one_place(places)
    if place.dim in written:
        raise Mixed(f"it writes along dimension {place.dim}, which runs over the samples")
    call.places["self"], call.places["src"] = place, place.moved(dims.index(place.dim))
    return place


def place_renorm(call: Placed) -> Place:
    """Return the place of slices that are scaled down to a norm, each by itself."""
    place = call.place("self")
    assert place is not None
    if place.dim != call.args["dim"] % call.args["self"].dim():
        raise Mixed(f"it takes norms over dimension {place.dim}, which runs over the samples")
    return place


def place_overlapped(call: Placed) -> Place:
    """Return the place in sums of windows, which lie along ``dim`` and along the last dimension."""
    place, rank = call.place("grad_in"), call.args["grad_in"].dim()
    assert place is not None
    if place.dim in (call.args["dim"] % (rank - 1), rank - 1):
        raise Mixed(f"its windows run along dimension {place.dim}, which runs over the samples")
    return place
