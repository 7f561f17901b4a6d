"""Compare who takes a call that may be wrong: the plain op, and a target, a batch, the meta device
or another variant of the op.

Two refusals agree, whatever their errors are. Two results agree in shapes and dtypes, and in
values where there are any.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, product

import torch

from gen.checks.batched_inputs import vary
from gen.checks.compare import Rule, Tally, compare, compare_kinds
from gen.checks.illformed import attempt, said
from gen.checks.wrong_calls import calls
from gen.checks.wrong_calls.calls import Call
from gen.checks.wrong_calls.other_arguments import of_numbers
from gen.checks.wrong_calls.ways_to_call import VARIANTS, Variant, make_on_meta
from gen.outcomes import Mismatch, Unsuitable
from gen.samples.samples import Sample
from gen.targets.protocol import Target

__all__ = ["assert_same_numbers", "assert_same_refusals"]

Tensor = torch.Tensor
Answer = tuple[Tensor, ...] | Exception
Run = Callable[[Call], Answer]
MOST_COMPILED = 12  # calls of a sample, for a target to which each is a compilation


@dataclass(frozen=True)
class Side:
    """Who answers a call, with the name for messages. `kinds_only`: its results have no values."""

    name: str
    run: Run
    # whether its results have shapes and dtypes, but no values
    kinds_only: bool = False

    def takes(self, call: Call) -> bool:
        """Return whether the answer is a result, and no exception."""
        return not isinstance(self.run(call), Exception)


def assert_same_refusals(target: Target, sample: Sample, batched: bool, tally: Tally) -> None:
    """Raise Mismatch if the target takes what the plain op refuses, or the other way round.

    The target is `vmap` if `batched`, and the loop then the plain op. Torch itself is compared with
    its meta device. Raises Unsuitable if there is no such call.
    """
    plain, other = _sides(target, sample, batched)
    failures: list[str] = []
    for call in _calls(sample, other, batched):
        if call.has_other_device and other.kinds_only:
            failures += _taken_on_two_devices(call, plain.run(call))
        else:
            failures += _difference(call, plain, other, sample.facts.random)
        tally.entries += 1
        tally.nonzero += 1
    _require(failures, tally, f"{sample.description}: {other.name} refuses the sample itself")


def assert_same_numbers(target: Target, sample: Sample, tally: Tally) -> None:
    """Raise Mismatch if the target takes numbers that the plain op refuses, or the other way round,
    or gives something else.

    Torch itself is compared with its meta device and with the other variants of the op. Raises
    Unsuitable if the op has no argument that is no tensor.
    """
    plain = Side("the plain op", lambda call: _try(sample, call.run, call.inputs))
    tried = _some(list(of_numbers(sample)), sample, target)
    failures: list[str] = []
    # A side that refuses the sample itself is left out: its refusals say nothing of the numbers.
    as_it_is = calls.as_it_is(sample)
    others = [other for other in _others(target, sample) if other.takes(as_it_is)]
    for other, call in product(others, tried):
        failures += _difference(call, plain, other, sample.facts.random)
        tally.entries += 1
        tally.nonzero += 1
    _require(failures, tally, f"{sample.description} has no argument that is no tensor")


def _require(failures: list[str], tally: Tally, otherwise: str) -> None:
    """Raise Mismatch if there are failures, and Unsuitable if nothing was compared."""
    if failures:
        raise Mismatch("; ".join(failures))
    if not tally.entries:
        raise Unsuitable(otherwise)


def _some(every: list[Call], sample: Sample, target: Target) -> list[Call]:
    """Return the calls to try: a few of them, if each is a compilation."""
    if not getattr(target, "slow", False):
        return every
    return random.Random(sample.seed).sample(every, min(len(every), MOST_COMPILED))


def _others(target: Target, sample: Sample) -> list[Side]:
    """Return who is compared with the plain op."""
    other = _sides(target, sample, batched=False)[1]
    if target.name != "torch":
        return [other]
    if not sample.inputs:
        return [Side(other.name, lambda call: make_on_meta(call, sample), kinds_only=True)]
    return [other, *(_side(name, run, sample) for name, run in VARIANTS.items())]


def _side(name: str, run: Variant, sample: Sample) -> Side:
    return Side(name, lambda call: run(call, sample))


def _sides(target: Target, sample: Sample, batched: bool) -> tuple[Side, Side]:
    """Return the plain side and the other one."""
    if batched:
        loop = Side("the loop", lambda call: _loop(sample, call))
        return loop, Side("vmap", lambda call: _map(target, sample, call))
    plain = Side("the plain op", lambda call: _try(sample, call.run, call.inputs))
    if target.name != "torch":
        run = target.forward
        return plain, Side("the target", lambda call: _try(sample, run(call.run), call.inputs))
    return plain, Side(
        "the meta device", lambda call: _try(sample, call.run, _on_meta(call.inputs)), True
    )


def _calls(sample: Sample, other: Side, batched: bool) -> Iterator[Call]:
    """Yield the calls to try. What the other side does not take when it is right says nothing."""
    if other.takes(calls.as_it_is(sample)):
        yield from calls.of_dtypes(sample)
        if not batched:  # a check of ill-formed calls has them for batches
            yield from calls.of_ranks(sample)
    if batched:
        return
    right = calls.with_right_out(sample)
    if right is not None and other.takes(right):
        yield from calls.of_out(sample)


def _taken_on_two_devices(call: Call, answer: Answer) -> Iterator[str]:
    """Yield a text if the plain op takes tensors of two devices, of which one holds nothing."""
    if not isinstance(answer, Exception):
        yield f"{call.label} is taken"


def _difference(call: Call, plain: Side, other: Side, random: bool) -> Iterator[str]:
    """Yield a text if the two sides differ on a call."""
    expected, actual = plain.run(call), other.run(call)
    if isinstance(expected, Exception) and isinstance(actual, Exception):
        return
    # a kernel that is not written for a dtype says nothing of the call, nor does one of meta, nor
    # a variant that there is not
    if isinstance(expected, NotImplementedError) or isinstance(actual, NotImplementedError):
        return
    if isinstance(expected, Exception):
        yield f"{call.label}: {plain.name} raises {said(expected)}, and {other.name} takes it"
    elif isinstance(actual, Exception):
        if call.may_refuse:
            return
        yield f"{call.label}: {other.name} raises {said(actual)}, and {plain.name} takes it"
    else:
        yield from _unequal(call, expected, actual, random or other.kinds_only)


def _unequal(
    call: Call, expected: tuple[Tensor, ...], actual: tuple[Tensor, ...], kinds_only: bool
) -> Iterator[str]:
    """Yield a text if results differ. Tensors of meta are compared by shape and dtype."""
    on_meta = any(x.is_meta for x in chain(expected, actual))
    try:
        if kinds_only or on_meta:
            compare_kinds(actual, expected, Tally())
        else:
            # a buffer of a wide dtype holds what is computed in a narrow one
            compare(actual, expected, Rule(dtype=_narrowest(call.inputs)), Tally())
    except Mismatch as mismatch:
        yield f"{call.label}: {mismatch}"


def _narrowest(inputs: calls.Inputs) -> torch.dtype | None:
    """Return the floating dtype of the inputs with the largest rounding errors, if there is one."""
    dtypes = {x.dtype for x in inputs if x.is_floating_point()}
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=None)


def _loop(sample: Sample, call: Call) -> Answer:
    """Return the results of a loop over two entries, stacked, or the exception that it raises."""

    def run() -> tuple[Tensor, ...]:
        rows = [call.run(*_entry(call.inputs, index)) for index in range(2)]
        return tuple(map(torch.stack, zip(*rows, strict=True)))

    return attempt(sample, run)


def _map(target: Target, sample: Sample, call: Call) -> Answer:
    """Return the results of vmap of two entries, or the exception that it raises."""
    entries = [_entry(call.inputs, index) for index in range(2)]
    batch = tuple(map(torch.stack, zip(*entries, strict=True)))
    f = target.vmap(call.run, (0,) * len(batch))
    return attempt(sample, lambda: f(*batch))


def _entry(inputs: calls.Inputs, index: int) -> calls.Inputs:
    """Return the inputs of an entry of the batch."""
    return tuple(vary(x, index).clone() for x in inputs)


def _try(sample: Sample, run: Callable[..., object], inputs: calls.Inputs) -> Answer:
    """Return what becomes of a call on copies of its inputs."""
    return attempt(sample, lambda: run(*(x.clone() for x in inputs)))


def _on_meta(inputs: calls.Inputs) -> calls.Inputs:
    return tuple(x.to("meta") for x in inputs)
