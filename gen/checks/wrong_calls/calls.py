"""Make calls of an op that may be wrong: mixed dtypes, other ranks, a wrong ``out=``.

    mm(x, y)   ->   mm(x, y as float32), mm(x[0], y), mm(x, y, out=an int64 tensor), …

Nothing says here which of them are mistakes: the plain op decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gen.checks.illformed import attempt, reshaped
from gen.samples.samples import Sample
from gen.targets.protocol import Flat, Values

__all__ = [
    "Call",
    "as_it_is",
    "of_dtypes",
    "of_out",
    "of_ranks",
    "with_first_indices",
    "with_right_out",
]

Tensor = torch.Tensor
Inputs = tuple[Tensor, ...]
_OTHERS = {
    torch.float64: (torch.float32, torch.int64),
    torch.float32: (torch.float64, torch.int64),
    torch.int64: (torch.int32, torch.uint8, torch.float64),
    torch.int32: (torch.int64, torch.float64),
    torch.bool: (torch.uint8, torch.float64),
}
"""The dtypes that an input gets in place of its own. None is complex: few kernels of real numbers
have code for such a mixture, and each says so in another way.
"""
_OTHERS_OF_RESULTS = {
    torch.float64: (torch.float32, torch.int64),
    torch.float32: (torch.float64, torch.int64),
    torch.int64: (torch.int32, torch.float64, torch.bool),
    torch.bool: (torch.int64, torch.float64),
}
"""The dtypes that a buffer for a result gets in place of the result's own."""


@dataclass(frozen=True)
class Call:
    """A call that may be wrong."""

    label: str
    # takes `inputs`, of which the buffers of ``out=`` are the last
    run: Flat
    inputs: Inputs
    # whether it has tensors of several devices
    has_other_device: bool = False
    # Whether a target may refuse it though the plain op takes it. For example, the plain op resizes
    # a buffer and warns of that.
    may_refuse: bool = False
    sample: Sample | None = None
    """The sample with the arguments of this call, for the other variants of the op."""

    def result(self, variant: Callable[..., Any], **extra: object) -> Any:
        """Return what a variant of the op gives for copies of the inputs."""
        assert self.sample is not None, f"{self.label}: only a call of the op has variants"
        return self.sample.raw(variant, [x.clone() for x in self.inputs], **extra)

    def written(self, variant: Callable[..., Any]) -> Tensor:
        """Return a copy of the first input, to which the variant has written."""
        assert self.sample is not None, f"{self.label}: only a call of the op has variants"
        copies = [x.clone() for x in self.inputs]
        self.sample.raw(variant, copies)
        return copies[0]


def as_it_is(sample: Sample) -> Call:
    """Return the call of the sample itself, which nothing is wrong with."""
    return Call("the sample as it is", sample, sample.inputs, sample=sample)


def of_dtypes(sample: Sample) -> Iterator[Call]:
    """Yield the sample with one input in another dtype, if it has several inputs."""
    if len(sample.inputs) < 2:
        return
    for place, x in enumerate(sample.inputs):
        for dtype in _OTHERS.get(x.dtype, ()):
            changed = _with(sample.inputs, place, x.to(dtype))
            yield Call(f"input {place} in {_name(dtype)}", sample, changed)


def of_ranks(sample: Sample) -> Iterator[Call]:
    """Yield the sample with one input of another rank or size."""
    inputs = with_first_indices(sample)
    for place, x in enumerate(inputs):
        for label, other in reshaped(x):
            yield Call(f"input {place} {label}", sample, _with(inputs, place, other))


def with_first_indices(sample: Sample) -> Inputs:
    """Return the inputs with 0 for each index, and masks of nothing, if the op takes that.

    Then no index is out of range where a size is another, and no mask has too many places. Tensors
    of meta have no values, so an op cannot refuse them there.
    """
    # Where all inputs have one dtype, whole numbers and truths are data.
    if len({x.dtype for x in sample.inputs}) < 2:
        zeros = sample.inputs
    else:
        zeros = tuple(map(_zeros_for_indices, sample.inputs))
    if isinstance(attempt(sample, lambda: sample(*zeros)), Exception):
        return sample.inputs
    return zeros


def _zeros_for_indices(x: Tensor) -> Tensor:
    if x.dtype in (torch.int64, torch.bool):
        return torch.zeros_like(x)
    return x


def with_right_out(sample: Sample) -> Call | None:
    """Return the call with buffers as they should be. None if the op takes no ``out=`` here."""
    buffers = _buffers(sample)
    if not buffers:
        return None
    return _call(sample, "out= as it should be", buffers)


def of_out(sample: Sample) -> Iterator[Call]:
    """Yield calls with a buffer of another dtype, device or shape."""
    buffers = _buffers(sample)
    for place, buffer in enumerate(buffers):
        for dtype in _OTHERS_OF_RESULTS.get(buffer.dtype, ()):
            other = _with(buffers, place, buffer.to(dtype))
            yield _call(sample, f"out= {place} in {_name(dtype)}", other)
        on_meta = _with(buffers, place, buffer.to("meta"))
        yield _call(sample, f"out= {place} on meta", on_meta, has_other_device=True)
        if buffer.numel() > 1:
            turned = _with(buffers, place, buffer.new_zeros(_other_shape(buffer)))
            label = f"out= {place} of shape {list(_other_shape(buffer))}"
            yield _call(sample, label, turned, may_refuse=True)


def _other_shape(x: Tensor) -> tuple[int, ...]:
    """Return another shape with as many elements, so that memory is enough."""
    if x.ndim == 1:
        return (1, x.numel())
    return (x.numel(),)


def _buffers(sample: Sample) -> Inputs:
    """Return zeros like the raw results of the op, for ``out=``. Empty if the op has no ``out=``,
    or gives anything but strided tensors.
    """
    if sample.op.out is None:
        return ()
    raw = sample.raw(sample.op.call, [x.clone() for x in sample.inputs])
    # a truth, as of `equal`, is no result that a buffer holds
    if isinstance(raw, bool):
        return ()
    results = (raw,) if isinstance(raw, Tensor) else tuple(raw)
    if not all(map(_is_strided, results)):
        return ()
    return tuple(map(torch.zeros_like, results))


def _is_strided(result: object) -> bool:
    return isinstance(result, Tensor) and result.layout is torch.strided


def _call(sample: Sample, label: str, buffers: Inputs, **flags: Any) -> Call:
    """Return the call of the op with these buffers, as inputs that it returns."""
    count = len(sample.inputs)
    variant: Callable[..., Any] = sample.op.out  # type: ignore[assignment]

    def run(*values: Any) -> Values:
        own_buffers = tuple(values[count:])
        # An op of one result takes a tensor as `out`, that of several a tuple.
        out = own_buffers[0] if len(own_buffers) == 1 else own_buffers
        sample.raw(variant, values[:count], out=out)
        return own_buffers

    return Call(label, run, (*sample.inputs, *buffers), **flags)


def _with(inputs: Sequence[Tensor], place: int, x: Tensor) -> Inputs:
    return (*inputs[:place], x, *inputs[place + 1 :])


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
