"""A place says which elements of a result depend on which sample. Here the samples are changed one
by one, and the results watched.

Inside: ``runtime.rules.samples.places.Place``, which a batch session has for each tensor. A step
shows a wrong place only where a layer with parameters uses the tensor afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from runtime.per_sample import per_sample
from runtime.per_sample.batch_session import BatchSession
from runtime.rules.samples.places import Place, listed, reshaped
from tests.runtime.opinfo_samples import drawn

OPS = {
    f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op
    for op in op_db
    if op.supports_dtype(torch.float64, "cpu") and "jiterator" not in op.name  # which need a GPU
}
_SAMPLES = 2
_UNFILLED = (
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "empty",
    "empty_permuted",
    "empty_strided",
)

_ARRANGED = ("sort", "msort", "argsort", "nonzero", "argwhere")
"""Their results have an order, or a number of elements, that follows from the values. The place is
right as long as these do not change."""


def _samples(op: Any) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from drawn(op, "cpu", torch.float64, _SAMPLES)


def _marked(sample: Any, dim: int, size: int, every: bool) -> list[int]:
    """The numbers of the arguments that are to be the batch: the first tensor, or every tensor with
    this size there."""
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    fits = [
        i
        for i, a in enumerate(leaves)
        if isinstance(a, torch.Tensor) and a.dim() > dim and a.shape[dim] == size
    ]
    return fits if every else fits[:1]


def _states(
    op: Any, leaves: list[Any], spec: Any, marked: list[int], dim: int
) -> tuple[BatchSession, list[Any], list[Any]]:
    """The results with some arguments marked as a batch, and their states."""
    with per_sample([torch.ones(1, requires_grad=True)]) as grads, torch.no_grad():
        given = [grads.batch(a, dim) if i in marked else a for i, a in enumerate(leaves)]
        x, args, kwargs = pytree.tree_unflatten(given, spec)
        outs = [
            o for o in pytree.tree_leaves(op(x, *args, **kwargs)) if isinstance(o, torch.Tensor)
        ]
        session = grads._session
        return session, outs, [session.state(o) if hasattr(o, "_inner") else None for o in outs]


@pytest.mark.parametrize("name", OPS)
def test_only_elements_of_a_sample_depend_on_it(name: str) -> None:
    op = OPS[name]
    if name in _UNFILLED:
        pytest.skip("its result is memory that nothing has filled")
    compared = 0
    for sample in _samples(op):
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        leaves = [a.detach() if isinstance(a, torch.Tensor) else a for a in leaves]
        first = next((a for a in leaves if isinstance(a, torch.Tensor)), None)
        for dim in range(0 if first is None else first.dim()):
            size = first.shape[dim]  # type: ignore[union-attr]
            for every in (False, True):
                marked = _marked(sample, dim, size, every)
                if size < 2 or not marked or (every and len(marked) == 1):
                    continue
                compared += _compare(op, leaves, spec, marked, dim, size)
    if not compared:
        pytest.skip("no sample of the database has a result that keeps the samples apart")


def _compare(op: Any, leaves: list[Any], spec: Any, marked: list[int], dim: int, size: int) -> int:
    """Compare places with what depends on what. Return the number of results with a place."""
    try:
        torch.manual_seed(0)
        copies = _copies(leaves)
        _, outs, states = _states(op, copies, spec, marked, dim)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return 0  # the op does not take such arguments in a session, or refuses
    plain = [o._inner if hasattr(o, "_inner") else o for o in outs]
    placed = [k for k, state in enumerate(states) if state is None or isinstance(state, Place)]
    if not placed:
        return 0
    for sample in (0, size - 1):
        changed = list(leaves)
        for index in marked:
            changed[index] = _changed(op, leaves[index], dim, sample)
        now = _results(op, changed, spec)
        if now is None:
            continue
        assert len(now) == len(plain)
        for k in placed:
            assert _is_unseen(plain[k], now[k], states[k], sample, size), (
                f"{op.name}: sample {sample} of dimension {dim} is seen where {states[k]} "
                "has another one"
            )
    return sum(isinstance(s, Place) for s in states)


def _copies(leaves: list[Any]) -> list[Any]:
    return [a.clone() if isinstance(a, torch.Tensor) else a for a in leaves]


def _changed(op: Any, a: Any, dim: int, sample: int) -> Any:
    """Return a copy with one sample changed. To change an index might make it wrong."""
    a = a.clone()
    row = a.select(dim, sample)
    if not (a.is_floating_point() or a.is_complex()):
        return a
    row.mul_(1 - 1e-6) if op.name in _ARRANGED else row.mul_(0.75).add_(0.01)
    return a


def _results(op: Any, leaves: list[Any], spec: Any) -> list[Any] | None:
    """Return the tensors that the op returns, or None if it refuses."""
    x, args, kwargs = pytree.tree_unflatten(_copies(leaves), spec)
    torch.manual_seed(0)
    try:
        results = pytree.tree_leaves(op(x, *args, **kwargs))
    except RuntimeError:
        return None  # such as a matrix that is no longer triangular
    return [o for o in results if isinstance(o, torch.Tensor)]


def _is_unseen(before: Any, after: Any, state: Any, sample: int, size: int) -> bool:
    """Return whether a change of one sample leaves the elements of the others as they were."""
    same = before == after
    if before.dtype is not torch.bool:
        same = torch.isclose(before, after, rtol=1e-9, atol=1e-12, equal_nan=True)
    if state is not None:
        others = state.owners(size, before.device) != sample
        same = same.movedim(state.dim, 0)[others]
    return bool(same.all())


@pytest.mark.parametrize("old", [(4, 3), (2, 4, 3), (3, 8), (4, 6, 2)])
@pytest.mark.parametrize(
    "new",
    [
        (12,),
        (4, 3, 1),
        (2, 12),
        (8, 3),
        (2, 2, 2, 3),
        (24,),
        (3, 4, 2),
        (4, 12),
        (48,),
        (4, 3, 2, 2),
    ],
)
def test_a_view_keeps_each_element_with_its_sample(
    old: tuple[int, ...], new: tuple[int, ...]
) -> None:
    t = torch.arange(torch.Size(old).numel())
    if torch.Size(new).numel() != t.numel():
        pytest.skip("another number of elements")
    for dim, n in enumerate(old):
        for size in (k for k in (2, 3, 4) if n % k == 0):
            for place in (
                Place(dim, 1, n // size),
                Place(dim, n // size, 1),
                listed(dim, torch.arange(n).flip(0) % size, size),
            ):
                owners = (
                    place.owners(size, None)
                    .reshape([-1 if d == dim else 1 for d in range(len(old))])
                    .expand(old)
                )
                try:
                    found = reshaped(place, old, new, size)
                except Exception as error:
                    assert "no dimension" in str(error)
                    continue
                shown = (
                    found.owners(size, None)
                    .reshape([-1 if d == found.dim else 1 for d in range(len(new))])
                    .expand(new)
                )
                assert torch.equal(owners.reshape(new), shown)


@pytest.mark.parametrize(
    "place",
    [
        Place(1),
        Place(1, 2, 3),
        Place(0, 1, 6),
        listed(1, torch.tensor([2, 0, 2, 1, 1, 2, 0, 0, 1, 2, 2, 2]), 3),
    ],
)
def test_merged_is_the_inverse_of_split(place: Place) -> None:
    size = 3
    shape = [5, 5, 5]
    shape[place.dim] = place.length(size)
    t = torch.randn(shape)
    parts = place.split(t, size)
    assert parts.shape[0] == size
    assert torch.equal(place.merged(parts), t)
    assert torch.equal(
        place.split_gradient(torch.ones(shape), size).sum(0).sum(), torch.tensor(float(t.numel()))
    )
