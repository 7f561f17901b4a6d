"""Call an op with a dimension too few, too many or out of range, and assert that vmap raises
exactly if a loop does.

A batch has one dimension more than an element. A kernel that gets the whole batch may treat the
batch dimension as a dimension of the op, and return an answer that mixes the elements. The variants
of a sample make this possible: the batch is as long as the missing dimension. The loop decides
which variants are mistakes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gen.checks.batched_inputs import vary
from gen.checks.compare import Rule, Tally, compare
from gen.outcomes import Mismatch, Unsuitable, refuse_fault
from gen.samples.samples import Sample
from gen.samples.seeds import seeded
from gen.targets.protocol import Flat, Target, Values
from gen.torch_private.loaded_with_torch import pytree

Tensor = torch.Tensor
Rows = Sequence[Sequence[Tensor]]
LENGTHS = range(2, 6)  # of a batch in the place of a dimension; any other batch has two elements


@dataclass(frozen=True)
class Variant:
    """A call that may be ill-formed."""

    label: str
    call: Flat
    inputs: tuple[Tensor, ...]
    # the place of the input that differs from the sample, if one does
    changed: int | None = None
    # the batch for that place, if it is not made by varying the input
    batch: Tensor | None = None

    @property
    def size(self) -> int:
        return 2 if self.batch is None else len(self.batch)


def variants(sample: Sample, form: str) -> Iterator[Variant]:
    """Yield the calls to try. The first is the sample itself."""
    places = _written_places(sample, form)
    call = _call_of(sample, form, places)
    yield Variant("as it is", call, sample.inputs)
    for place, x in enumerate(sample.inputs):
        for label, changed in reshaped(x):
            batch = None
            if changed.ndim < x.ndim and x.shape[0] in LENGTHS:
                batch = x  # its memory is that of the sample
            yield Variant(
                f"tensor {place} {label}",
                call,
                _replace(sample.inputs, place, changed),
                place,
                batch,
            )
    yield from _with_index_out_of_range(sample, call)
    for label, change in _changes_of_integers(sample):
        yield Variant(label, _call_of(sample, form, places, change), sample.inputs)


def _written_places(sample: Sample, form: str) -> list[int]:
    """Return the places of the inputs to which the call writes."""
    if form != "inplace":
        return [place for place, flag in enumerate(sample.facts.mutated) if flag]
    if sample.op.inplace is None or not sample.inputs:
        raise Unsuitable(f"{sample.op.name} has no in-place variant")
    return [0]


def _call_of(
    sample: Sample,
    form: str,
    places: Sequence[int],
    change: Callable[[list[Any]], None] | None = None,
) -> Flat:
    """Return the call as a function of the inputs. It writes to copies of those at `places`.

    `change` is applied to all arguments of the call.
    """

    def f(*values: Any) -> Values:
        copies = list(values)
        # the same inputs are used for the loop, for vmap and for other variants
        for place in places:
            copies[place] = values[place].clone()
        args, kwargs = sample.rebuild(copies)
        if change is not None:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            change(leaves)
            args, kwargs = pytree.tree_unflatten(leaves, spec)
        if form == "inplace":
            assert sample.op.inplace is not None
            sample.op.inplace(*args, **kwargs)
            return (copies[0],)
        return sample.outputs(sample.op.call(*args, **kwargs))

    return f


def _with_index_out_of_range(sample: Sample, call: Flat) -> Iterator[Variant]:
    """Yield the calls in which the first index of a tensor is beyond its dimension."""
    for place, x in enumerate(sample.inputs):
        if x.dtype is torch.int64 and x.numel() and sample.inputs[0].ndim:
            beyond = x.clone(memory_format=torch.contiguous_format)
            beyond.view(-1)[0] = max(sample.inputs[0].shape)
            # in memory, the rows of the next element follow those of the first
            batch = torch.stack([beyond, vary(x, 1)])
            yield Variant(
                f"tensor {place} with an index out of range", call, sample.inputs, place, batch
            )


def reshaped(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the input with other shapes, each with what it is for messages."""
    yield "with a dimension more", torch.stack([x, vary(x, 1)])
    if x.ndim and x.shape[0]:
        yield "without its first dimension", x[0]
    if x.ndim and x.shape[-1] > 1:
        yield "with a last dimension shorter by one", x[..., :-1]


def _replace(inputs: tuple[Tensor, ...], place: int, changed: Tensor) -> tuple[Tensor, ...]:
    """Return `inputs` with `changed` in the place of one tensor, wherever that tensor occurs."""
    return tuple(changed if x is inputs[place] else x for x in inputs)


def _changes_of_integers(sample: Sample) -> Iterator[tuple[str, Callable[[list[Any]], None]]]:
    """Yield changes of one integer argument each: to a dimension just out of range on either side,
    and to the integer argument before it.
    """
    leaves = pytree.tree_leaves(sample.rebuild(sample.inputs))
    rank = sample.inputs[0].ndim if sample.inputs else 0

    def setting(place: int, value: int) -> Callable[[list[Any]], None]:
        def change(values: list[Tensor | int]) -> None:
            values[place] = value

        return change

    before: int | None = None
    for place, leaf in enumerate(leaves):
        if type(leaf) is not int:
            before = None
            continue
        for value in dict.fromkeys((rank, -rank - 1, before)):
            if value is not None and value != leaf:
                yield f"{value} in place of {leaf} (argument {place})", setting(place, value)
        before = leaf


def _masks(variant: Variant, form: str) -> list[tuple[bool, ...]]:
    """Return the choices of batched inputs: all; only the changed one; or only the first, to which
    an in-place op writes."""
    places = range(len(variant.inputs))
    # an in-place op cannot write batched results to an input without a batch
    masks = [
        (True,) * len(places),
        tuple(place == (variant.changed or 0) for place in places),
    ]
    return [mask for mask in dict.fromkeys(masks) if mask[0] or form != "inplace"]


def assert_refused(target: Target, sample: Sample, form: str, tally: Tally) -> None:
    """Raise Mismatch unless vmap of every variant agrees with the loop.

    A choice of batched inputs is left out if the target's vmap refuses the sample itself under it,
    as other checks judge that. Raises Unsuitable if that leaves none.
    """
    if not sample.inputs:
        raise Unsuitable(f"{sample.description} has no tensor input to batch")
    unchanged, *others = variants(sample, form)
    taken: dict[tuple[bool, ...], bool] = {}
    failures: list[str] = []
    # Whether vmap takes the sample itself is asked once for each choice of inputs.
    for variant in others:
        for mask in _masks(variant, form):
            if mask not in taken:
                taken[mask] = not isinstance(_map(target, sample, unchanged, mask), Exception)
            if taken[mask]:
                failures += _differences(target, sample, variant, mask, tally)
    if not any(taken.values()):
        raise Unsuitable(f"{sample.description}: vmap refuses the sample itself")
    if failures:
        raise Mismatch("; ".join(failures))


def _batch(variant: Variant, mask: Sequence[bool]) -> tuple[Tensor, ...]:
    """Return the inputs of a variant, with batches of them where `mask` is set."""
    batch = []
    for x, is_batched in zip(variant.inputs, mask, strict=True):
        if is_batched:
            # `vary` has three entries, which a longer batch repeats.
            entries = [vary(x, index % 3) for index in range(variant.size)]
            batch.append(torch.stack(entries))
        else:
            batch.append(x.clone())
    if variant.batch is not None and variant.changed is not None and mask[variant.changed]:
        batch[variant.changed] = variant.batch.clone()
    return tuple(batch)


def _map(target: Target, sample: Sample, variant: Variant, mask: Sequence[bool]) -> Any:
    """Return the results of vmap over the batch, or the exception that it raises."""
    in_dims = tuple(0 if is_batched else None for is_batched in mask)
    f = target.vmap(variant.call, in_dims)
    return attempt(sample, lambda: f(*_batch(variant, mask)))


def _loop(sample: Sample, variant: Variant, mask: Sequence[bool]) -> Any:
    """Return the results of a loop over the batch, or the exception that it raises."""

    def run() -> tuple[Tensor, ...]:
        batch = _batch(variant, mask)
        rows = []
        for index in range(variant.size):
            entries = []
            for x, is_batched in zip(batch, mask, strict=True):
                entry = x[index] if is_batched else x
                entries.append(entry.clone())
            rows.append(variant.call(*entries))
        return tuple(map(torch.stack, zip(*rows, strict=True)))

    return attempt(sample, run)


def attempt(sample: Sample, run: Callable[[], Any]) -> tuple[Tensor, ...] | Exception:
    """Return the result or the exception, of any class: kernels, decompositions and Python raise
    different ones. Raises Mismatch for one that says that torch is at fault."""
    with seeded(sample.seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return tuple(run())
        except Exception as error:
            refuse_fault(error)
            return error


def _differences(
    target: Target, sample: Sample, variant: Variant, mask: Sequence[bool], tally: Tally
) -> Iterator[str]:
    """Yield a text for each difference between vmap and the loop."""
    expected, actual = _loop(sample, variant, mask), _map(target, sample, variant, mask)
    batched = [place for place, is_batched in enumerate(mask) if is_batched]
    where = f"{variant.label}, batch of {variant.size} in {batched}"
    if not isinstance(expected, Exception) and not isinstance(actual, Exception):
        try:
            compare(actual, expected, Rule(), tally)
            tally.nonzero += 1  # the claim is that nothing raises, so zeros count too
        except Mismatch as mismatch:
            yield f"{where}: {mismatch}"
        return
    tally.entries += 1
    tally.nonzero += 1
    if not isinstance(actual, Exception):
        yield (
            f"{where}: the loop raises {said(expected)}, "
            f"and vmap gives {[list(x.shape) for x in actual]}"
        )
    if not isinstance(expected, Exception):
        yield (
            f"{where}: vmap raises {said(actual)}, "
            f"and the loop gives {[list(x.shape) for x in expected]}"
        )


def said(error: object) -> str:
    """Return an error as text: its class and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}"
