"""Find where the samples lie in the results of an op, by the family of the op: see :mod:`.places`.

    leading(x1=2, x2=2)    # of stacks of matrices: not in the last two dimensions of either
    along()                # of a sum of each step: where they did, but not in that dimension
    front("input")         # a layer: the batch is dimension 0 of the input and of all results

A rule takes a :class:`.places.Placed` call and returns the places in its results: one for all of
them, or a list. ``None`` in the list: the result has no samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .places import Listed, Mixed, Place, Placed, Tensor, one_place, pool

Rule = Callable[[Placed], Any]


def leading(**cores: int) -> Rule:
    """Return the rule of ops that broadcast the leading dimensions of their arguments.

    ``cores``: by the name of an argument, the number of its other, trailing dimensions. Any other
    argument has none.
    """
    return lambda call: place_by_leading(call, cores)


def trailing(core: int) -> Rule:
    """Return the rule of ops on the last ``core`` dimensions of each argument. Example: a pooling
    of images has 2."""
    return lambda call: place_by_leading(call, dict.fromkeys(call.names, core))


def place_by_leading(call: Placed, cores: dict[str, int]) -> Place:
    """Return the place for :func:`leading`. Also place the arguments whose elements meet those of
    samples."""
    # how many leading dimensions each argument has, of which the last ones line up
    leads = {name: call.args[name].dim() - cores.get(name, 0) for name in call.names}
    most = max(leads.values())
    places = []
    for name, lead in leads.items():
        own = call.places.get(name)
        if own is None:
            continue
        # behind the leading dimensions come those that the op itself works on
        if own.dim >= lead:
            raise Mixed(
                f"it computes along dimension {own.dim} of {name}, which runs over the samples"
            )
        places.append(own.moved(own.dim + most - lead))
    # the arguments without samples: constant along that dimension, or one part for each sample
    place = one_place(places)
    length = place.length(call.size)
    for name, lead in leads.items():
        own, dim = call.places.get(name), place.dim - most + lead
        if own is not None:
            _require_size(call, name, own.dim, length)
        elif dim >= 0:
            if call.args[name].shape[dim] != 1:
                _require_size(call, name, dim, length)
            place_if_met(call, name, place.moved(dim))
    return place


def _require_size(call: Placed, name: str, dim: int, length: int) -> None:
    """Raise ``Mixed`` unless dimension ``dim`` of the argument ``name`` has ``length`` elements."""
    if call.args[name].shape[dim] != length:
        raise Mixed("its arguments do not have the same number of samples")


aligned = leading()  # of pointwise ops: all dimensions broadcast


def product(left: str, right: str, bias: str | None = None) -> Rule:
    """Return the rule of products of matrices and vectors: rows of the left and columns of the
    right argument may be samples, and so may stacks of both."""

    def rule(call: Placed) -> Place:
        """Return the place in the product, and place the bias."""
        if call.place(left) is None and call.place(right) is None:
            assert bias is not None  # one of the three has samples
            place = _place_of_bias(call, bias)
        else:
            place = _place_of_product(call, left, right)
        if bias is not None:
            _align(call, bias, place)
        return place

    return rule


def _place_of_bias(call: Placed, bias: str) -> Place:
    """Return the place in the result of what is broadcast to it."""
    place = call.place(bias)
    assert place is not None
    return place.moved(place.dim + call.outs[0].dim() - call.args[bias].dim())


def _place_of_product(call: Placed, left: str, right: str) -> Place:
    """Return the place of rows, of columns, or of stacks."""
    left_matrix, right_matrix, rank = call.args[left], call.args[right], call.outs[0].dim()
    rows, columns = (
        _in_dim(call.place(left), left_matrix, -2),
        _in_dim(call.place(right), right_matrix, -1),
    )
    if rows is not None and call.place(right) is None:
        if right_matrix.dim() > 1:
            return rows.moved(rank - 2)
        return rows.moved(rank - 1)  # a vector adds no columns
    if columns is not None and call.place(left) is None:
        return columns.moved(rank - 1)
    cores = {left: min(2, left_matrix.dim()), right: min(2, right_matrix.dim())}
    return place_by_leading(call.with_only((left, right)), cores)


def _in_dim(place: Place | None, matrix: Tensor, dim: int) -> Place | None:
    """Return the place in a matrix, None if the samples lie elsewhere than in dimension ``dim``,
    which counts from the end."""
    if place is None or matrix.dim() < 2 or place.dim != matrix.dim() + dim:
        return None
    return place


def _align(call: Placed, name: str, place: Place) -> None:
    """Place the argument ``name``, which is broadcast to the result. ``place``: in the result."""
    tensor, out = call.args[name], call.outs[0]
    if tensor is None:
        return
    # dimensions line up from the right; a constant of size 1 there is the same for all samples
    own, dim = call.place(name), place.dim - out.dim() + tensor.dim()
    if own is not None:
        one_place([place, own.moved(own.dim + out.dim() - tensor.dim())])
    elif dim >= 0 and tensor.shape[dim] == out.shape[place.dim]:
        call.places[name] = place.moved(dim)


def place_as(call: Placed, name: str, place: Place) -> None:
    """Place an optional argument. ``Mixed`` if it has the samples elsewhere."""
    if call.args.get(name) is not None:
        call.places[name] = one_place([place, call.place(name) or place])


def has_one_run_each(place: Place | None) -> bool:
    """Return whether the elements of each sample lie together."""
    return place is not None and not isinstance(place, Listed) and place.outer == 1


def along(name: str = "dim", argument: str = "self") -> Rule:
    """Return the rule of ops that compute along dimensions, and keep them.

    ``name``: the argument with the dimensions. ``argument``: the tensor.
    """

    def rule(call: Placed) -> Place:
        """Return the place in the argument. ``Mixed`` if the op computes along it."""
        place, tensor = call.place(argument), call.args[argument]
        assert place is not None
        if place.dim in call.dims(name, tensor.dim()):
            raise Mixed(f"it computes along dimension {place.dim}, which runs over the samples")
        return place

    return rule


def reduced(call: Placed) -> Any:
    """Return the place in a reduction over dimensions. A sum or mean over the samples has no place,
    but is :class:`.places.Pooled`."""
    place, rank = call.place("self"), call.args["self"].dim()
    if place is None:
        raise Mixed("its first argument has no samples, and another one has")
    dims = call.dims("dim", rank)
    if place.dim in dims:
        kind = call.op.base_name
        if kind not in ("sum", "mean"):
            raise Mixed(f"it computes over dimension {place.dim}, which runs over the samples")
        return pool(place, call.size, kind == "mean")
    if call.args.get("keepdim"):
        return place
    # each reduced dimension in front of it is gone
    return place.moved(place.dim - sum(dim < place.dim for dim in dims))


def require_constant_but(call: Placed, *names: str) -> None:
    """Raise unless all other arguments are the same for all samples."""
    for name, place in call.places.items():
        if isinstance(place, Place) and name not in names:
            raise Mixed(
                f"its argument {name} must be the same for all samples, and differs between them"
            )


def front(*names: str, dim: int = 0) -> Rule:
    """Return the rule of layers that have the batch in dimension ``dim`` of the named arguments and
    of all results."""

    def rule(call: Placed) -> Place:
        """Return the place, which all named arguments have."""
        require_constant_but(call, *names)
        place = one_place([own for own in map(call.place, names) if own is not None])
        if place.dim != dim:
            raise Mixed(
                f"it has the batch in dimension {dim}, and the samples lie in dimension {place.dim}"
            )
        for name in names:
            if call.args.get(name) is not None:
                call.places[name] = place
        return place

    return rule


def place_if_met(call: Placed, name: str, place: Place) -> None:
    """Place an argument without samples if it has an element for each of those in ``place``."""
    if call.args[name].shape[place.dim] == place.length(call.size):
        call.places[name] = place
