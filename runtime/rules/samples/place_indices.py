"""Find where the samples lie in what indices or masks pick from a tensor, and in a tensor to which
they write: see :mod:`.places`.

Example: ``x[arange(B), last]`` picks one element of each sample, so the result has the samples
where the indices have them. An index that picks from other samples than its own is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..record import overload
from .place_views import dim_of
from .places import (
    Mixed,
    Place,
    Placed,
    Tensor,
    common_owners,
    is_packed,
    listed,
    one_place,
    picked,
)

# by op that takes indices or a mask: where the samples of its result are
INDICES: dict[object, Callable[[Placed], object]] = {}


def _embedding(call: Placed) -> Place:
    place = call.place("indices")
    if call.place("weight") is not None or place is None:
        raise Mixed("its table depends on the sample")
    return place


def _index_select(call: Placed) -> Place:
    """Return the place of selected rows: of the table, of the indices, or of samples that are
    picked."""
    own, of_index = call.place("self"), call.place("index")
    dim = dim_of(call)
    # rows of a constant table, one or more for each sample
    if own is None:
        assert of_index is not None
        return of_index.moved(dim)
    if own.dim != dim:
        if of_index is not None:
            raise Mixed(
                "its indices depend on the sample and would pick from all samples. "
                "Use gather or take_along_dim"
            )
        return own
    owners = call.owners("self")[call.args["index"].reshape(-1)]  # an index may be a scalar
    return _place_of_picked(own, dim, owners, call, of_index)


def _place_of_picked(
    own: Place, dim: int, owners: Tensor, call: Placed, of_index: Place | None
) -> Place:
    """Return the place of what was picked by indices along the samples. ``owners``: the sample of
    each element."""
    # the same picks for any batch: whether samples are treated alike is a matter of their order
    if of_index is None:
        return picked(own, dim, owners, call.size)
    if not torch.equal(owners, of_index.owners(call.size, owners.device)):
        raise Mixed("its indices pick from other samples than their own")
    return listed(dim, owners, call.size, is_packed(own))


def _gather(call: Placed) -> Place:
    """Return the place for ``gather`` and ``scatter``: their tensors have the samples in one
    dimension, and indices along another."""
    place = one_place([place for place in call.places.values() if place is not None])
    if place.dim == dim_of(call):
        return _gather_along_samples(call, place)
    n = place.length(call.size)
    # only the source of a gather may be longer: the elements beyond are read by nobody
    picks = call.op.base_name == "gather"
    for name, tensor, own in call.tensors():
        if not tensor.dim():
            continue
        if tensor.shape[place.dim] == n:
            call.places[name] = place
        elif own is not None or not (picks and name == "self"):
            raise Mixed("its arguments do not have the same number of samples")
    return place


def _gather_along_samples(call: Placed, place: Place) -> Place:
    """Return the place for :func:`_gather`, with indices along the dimension of the samples.

    A gather may pick from what is the same for all samples, and a scatter may write one number for
    each.
    """
    ranks = {tensor.dim() for _, tensor, _ in call.tensors()}
    if call.op.func is overload("scatter.src") and ranks <= {0, 1}:
        return _scattered_numbers(call)
    if call.op.base_name != "gather" or call.place("self") is not None:
        raise Mixed(f"its indices run along dimension {place.dim}, which runs over the samples")
    return place


def _scattered_numbers(call: Placed) -> Place:
    """Return the place for ``scatter`` of one number for each sample. Example: the inverse of a
    permutation of them."""
    own, index, source = map(call.place, ("self", "index", "src"))
    rows, n = call.args["index"], call.outs[0].numel()
    by_rows = (index or source).owners(call.size, rows.device)  # type: ignore[union-attr]
    agree = index is None or source is None or index == source
    # a tensor that belongs to no sample must not show any of its old numbers
    stays_shared = own is None and len(rows) != n
    if not agree or len(by_rows) != len(rows) or stays_shared:
        raise Mixed("it writes to several samples by indices")
    owners = rows.new_zeros(n)
    if own is not None:
        owners = own.owners(call.size, rows.device).clone()
    owners[rows] = by_rows
    return listed(0, owners, call.size)


def _along_index(call: Placed) -> Place:
    """Return the place for ``index_add`` and others: ``(self, dim, index, source)``."""
    places = [place for place in map(call.place, ("self", "source")) if place is not None]
    along_samples = bool(places) and places[0].dim == dim_of(call)
    of_index = call.place("index")
    if call.place("value") is not None or (of_index is not None and not along_samples):
        raise Mixed("it writes to several samples by indices")
    if along_samples:
        return _write_samples_by_index(call, dim_of(call))
    # the index runs along another dimension, the same in each sample
    place = one_place(places)
    call.places["self"] = place
    if _has_source(call):
        call.places["source"] = place
    return place


def _has_source(call: Placed) -> bool:
    return isinstance(call.args.get("source"), torch.Tensor)


def _write_samples_by_index(call: Placed, dim: int) -> Place:
    """Return the place for :func:`_along_index`, with indices along the samples: each source must
    go to an element of its own sample."""
    own, source = call.place("self"), call.place("source")
    index = call.args["index"].reshape(-1)
    if own is None:
        own = _place_after_rows(call, index, dim)
        call.places["self"] = own
    if not _has_source(call):
        return own
    # a constant source has a part for each sample; another one must have the same order
    owners = own.owners(call.size, index.device)[index]
    if source is None:
        call.places["source"] = listed(dim, owners, call.size)
    elif not torch.equal(owners, call.owners("source")):
        raise Mixed("it writes samples to places of other samples")
    return own


def _place_after_rows(call: Placed, index: Tensor, dim: int) -> Place:
    """Return the place in ``self``, of no sample so far, after rows of ``source`` were written to
    it. ``Mixed`` if some rows get nothing, and the order says not whose they are."""
    regular = _place_after_write(call, dim, index, call.owners("source"))
    if regular is not None:
        return regular
    owners = index.new_full((call.args["self"].shape[dim],), -1)
    owners[index] = call.owners("source")
    if (owners < 0).any():
        raise Mixed("some rows get nothing, and belong to no sample. Write to rows for each sample")
    return listed(dim, owners, call.size)


class _Indices:
    """The indices of ``x[indices]``.

    ``by_dim``: the index of each dimension of x that has one. ``places``: where the samples lie in
    these. ``first``: where the dimensions of the indices stand in the result. ``rank``: their
    number.
    """

    def __init__(self, call: Placed) -> None:
        self.by_dim: dict[int, Tensor] = {}
        self.places: dict[int, Place] = {}
        indices = call.args["indices"]
        places = call.places.get("indices") or [None] * len(indices)
        dim = 0
        # None is a whole dimension, and a mask stands for as many as it has
        for index, place in zip(indices, places, strict=True):
            if index is None:
                dim += 1
            elif index.dtype in (torch.bool, torch.uint8):
                self._add_mask(dim, index, place, call.size)
                dim += index.dim()
            else:
                self._add(dim, index, place)
                dim += 1
        used = list(self.by_dim)
        self.rank = max((index.dim() for index in self.by_dim.values()), default=0)
        # as in NumPy, the dimensions of the indices come first if the indexed ones lie apart
        self.first = 0
        if used and used[-1] - used[0] == len(used) - 1:
            self.first = used[0]

    def _add(self, dim: int, index: Tensor, place: Place | None) -> None:
        self.by_dim[dim] = index
        if place is not None:
            self.places[dim] = place

    def _add_mask(self, dim: int, mask: Tensor, place: Place | None, size: int) -> None:
        """Add the indices for which a mask stands: one for each of its dimensions."""
        indices = mask.nonzero(as_tuple=True)
        of_true = None
        if place is not None and indices:
            # the mask of each sample decides which of its elements are picked
            owners = place.owners(size, mask.device)[indices[place.dim]]
            of_true = listed(0, owners, size)
        for position, index in enumerate(indices):
            self._add(dim + position, index, of_true)

    def place(self) -> Place | None:
        """Return the place of the samples in the result by the indices, or None."""
        places = []
        for dim, place in self.places.items():
            missing = self.rank - self.by_dim[dim].dim()  # the indices broadcast
            places.append(place.moved(self.first + missing + place.dim))
        if not places:
            return None
        return one_place(places)

    def of_rows(self, call: Placed, own: Place) -> Place:
        """Return where the samples lie in ``x[arange(B), last]``: an index along the samples picks
        elements of one sample for each place of the result."""
        rows, by_index = self.by_dim[own.dim], self.place()
        n = call.args["self"].shape[own.dim]
        # who owns each picked element: along one dimension of the indices it must be one sample
        owners = call.owners("self")[rows.where(rows >= 0, rows + n)]  # an index may be negative
        for dim in range(rows.dim()):
            along = common_owners(owners, dim)
            at = self.first + self.rank - rows.dim() + dim
            if along is not None and (by_index is None or by_index.dim == at):
                return _place_of_picked(own, at, along, call, by_index)
        raise Mixed("its indices pick from several samples")

    def rank_of_picked(self, rank: int) -> int:
        """Return the number of dimensions of what the indices pick from a tensor of ``rank``."""
        return rank - len(self.by_dim) + self.rank

    def kept(self, dim: int) -> int:
        """Return the dimension of the result that a dimension of x without an index becomes."""
        at = dim - sum(indexed < dim for indexed in self.by_dim)
        if at < self.first:
            return at
        return at + self.rank


def _index(call: Placed) -> Place:
    """Return the place in ``x[indices]``."""
    own, indices = call.place("self"), _Indices(call)
    if own is None:
        by_indices = indices.place()
        assert by_indices is not None
        return by_indices
    if own.dim in indices.by_dim:
        return indices.of_rows(call, own)
    if indices.place() is not None:
        raise Mixed(
            "its indices depend on the sample and would pick from all samples. "
            "Use gather or take_along_dim"
        )
    return own.moved(indices.kept(own.dim))


def _index_put(call: Placed) -> Place:
    """Return the place in ``x`` after ``x[indices] = values``."""
    own, values, indices = call.place("self"), call.place("values"), _Indices(call)
    if own is None:
        own = _place_by_writes(call, indices)
        call.places["self"] = own
    if own.dim in indices.by_dim:
        target = indices.of_rows(call, own)
    elif indices.place() is None:
        target = own.moved(indices.kept(own.dim))
    else:
        raise Mixed("it writes to several samples by indices. Use scatter or torch.where")
    # values broadcast from the last dimension, so they may lack that of the samples
    tensor = call.args["values"]
    at = target.dim - indices.rank_of_picked(call.args["self"].dim()) + tensor.dim()
    if values is None:
        if at >= 0 and tensor.shape[at] != 1:
            call.places["values"] = target.moved(at)
    elif values != target.moved(at) and not _same_elements(call, indices, values, target):
        raise Mixed("it writes samples to places of other samples")
    return own


def _place_by_writes(call: Placed, indices: _Indices) -> Place:
    """Return the place in ``self``, of no sample so far, after ``index_put``: see
    :func:`_place_after_write`."""
    values, tensor = call.place("values"), call.args["values"]
    own = None
    if values is not None and len(indices.by_dim) == indices.rank == 1:
        ((dim, rows),) = indices.by_dim.items()
        if values.dim == tensor.dim() - call.args["self"].dim() + indices.first:
            own = _place_after_write(call, dim, rows, call.owners("values"))
    if own is None:
        raise Mixed(
            "it writes samples to a tensor that belongs to none. "
            "Make it by zeros_like or new_zeros of a batch, or use index_add"
        )
    return own


def _same_elements(call: Placed, indices: _Indices, values: Place, target: Place) -> bool:
    """Return whether the values, which are broadcast, meet elements of their own samples.
    ``target``: the place in what the indices pick."""
    tensor, n = call.args["values"], target.length(call.size)
    lead = indices.rank_of_picked(call.args["self"].dim()) - tensor.dim()
    if lead < 0 or (target.dim >= lead and tensor.shape[target.dim - lead] not in (1, n)):
        return False
    shape = [*[1] * lead, *tensor.shape]
    shape[target.dim] = n
    theirs = values.owners_in(tensor.shape, call.size, tensor.device).expand(shape)
    return torch.equal(theirs, target.owners_in(shape, call.size, tensor.device))


def _place_after_write(call: Placed, dim: int, rows: Tensor, owners: Tensor) -> Place | None:
    """Return the place in ``self``, of no sample so far, after rows of the samples ``owners`` were
    written to it. Example: ``o[w] = x[w]``."""
    n = call.args["self"].shape[dim]
    # the first even division of the rows in which each written one lies at its own sample
    for inner in range(1, n // call.size + 1):
        if n % (inner * call.size):
            continue
        # rows that are not written may be of any sample, so several divisions can fit
        place = Place(dim, n // (call.size * inner), inner)
        if torch.equal(place.owners(call.size, rows.device)[rows], owners):
            return place
    return None


def _pack(call: Placed) -> object:
    """Return the places for ``pack_padded_sequence``: row i of the data is a time step of one
    sequence, all first steps first."""
    place, batch_dim = call.place("input"), int(not call.args["batch_first"])
    if place is None or place.dim != batch_dim:
        raise Mixed("the sequences do not lie where batch_first says")
    # the second result says how many sequences have each step; the longest ones come first
    owners, sizes = call.owners("input"), call.outs[1].tolist()
    owners_of_steps = torch.cat([owners[:size] for size in sizes])
    return [listed(0, owners_of_steps, call.size, packed=True), None]


def _take(call: Placed) -> Place:
    place = call.place("index")
    if call.place("self") is not None or place is None:
        raise Mixed("it picks from the elements of all samples. Use gather or take_along_dim")
    return place


def _masked_select(call: Placed) -> Place:
    """Return the place of the elements at which a mask is true."""
    own, follows_from_batch = call.place("self"), call.place("mask") is not None
    owners = _owners_at_mask(call)
    # a mask that follows from the batch decides for each sample by itself
    if follows_from_batch or own is None:
        return listed(0, owners, call.size)
    return picked(own, 0, owners, call.size)


def _masked_scatter(call: Placed) -> Place:
    """Return the place in ``self``, whose elements at a mask are those of ``source``, one after the
    other."""
    owners, source = _owners_at_mask(call), call.place("source")
    if source is None:
        raise Mixed(
            "it gives elements of its source to the samples by their order. Use torch.where"
        )
    theirs = source.owners_in(call.args["source"].shape, call.size, owners.device).flatten()
    if not torch.equal(theirs[: len(owners)], owners):
        raise Mixed("it writes samples to places of other samples")
    return _place_at_mask(call)


def _place_at_mask(call: Placed) -> Place:
    """Return the place in ``self`` and ``mask`` together, and place the one that has none."""
    masked, mask = call.args["self"], call.args["mask"]
    rank = max(masked.dim(), mask.dim())
    places = []
    for name, tensor in (("self", masked), ("mask", mask)):
        own = call.place(name)
        if own is not None:
            places.append(own.moved(own.dim + rank - tensor.dim()))
    if not places:
        raise Mixed("it writes samples to a tensor that belongs to none. Use torch.where")
    place = one_place(places)
    # dimensions line up from the right; one of size 1 is the same for all samples
    for name, tensor in (("self", masked), ("mask", mask)):
        dim = place.dim - rank + tensor.dim()
        if dim >= 0 and tensor.shape[dim] != 1:
            call.places[name] = place.moved(dim)
    return place


def _owners_at_mask(call: Placed) -> Tensor:
    """Return the sample of each element at which the mask is true."""
    masked, mask = call.args["self"], call.args["mask"]
    shape = torch.broadcast_shapes(masked.shape, mask.shape)
    owners = _place_at_mask(call).owners_in(shape, call.size, masked.device)
    return owners[mask.expand(shape)]


for _names, _placed in {
    "embedding": _embedding,
    "take": _take,
    "masked_select": _masked_select,
    "masked_scatter": _masked_scatter,
    "index_select": _index_select,
    (
        "gather scatter.src scatter.value scatter_add scatter_reduce.two "
        "scatter.reduce scatter.value_reduce"
    ): _gather,
    "index_add index_copy index_reduce index_fill.int_Scalar index_fill.int_Tensor": _along_index,
    "index.Tensor _unsafe_index.Tensor": _index,
    "index_put _unsafe_index_put _index_put_impl": _index_put,
    "_pack_padded_sequence": _pack,
}.items():
    for _name in _names.split():
        INDICES[overload(_name)] = _placed
