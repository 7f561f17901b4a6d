"""Call an op with ``out=``: full and empty buffers, and buffers that overlap, are too small, or
have gaps or lazy bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gen.checks.forms.form_program import as_program, device_of
from gen.checks.pipelines import Program
from gen.outcomes import Unsuitable
from gen.samples.domains import is_inexact
from gen.samples.samples import Sample
from gen.targets.protocol import Values
from gen.torch_private.loaded_with_torch import neg_view

Tensor = torch.Tensor


def _out(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return two programs with buffers: full buffers of the right shape, whose ones the op must
    overwrite, and empty ones, which it must resize.

    Buffers are inputs, so that a target sees writes to its own values. The programs return them.
    """
    variant = sample.op.out
    if variant is None:
        raise Unsuitable(f"{sample.op.name} has no out= variant")
    count = len(inputs)
    raw = sample.raw(sample.op.call, [tensor.clone() for tensor in inputs])
    results = [raw] if isinstance(raw, Tensor) else list(raw)
    # Ones, since an op that adds to its buffer in place of writing there would pass with zeros.
    full = tuple(torch.full_like(y, 1, memory_format=torch.contiguous_format) for y in results)
    empty = tuple(y.new_empty(0) for y in results)
    # An op with one result takes a tensor as out=, any other a tuple.
    single = isinstance(raw, Tensor)

    def call(*values: Any) -> Values:
        buffers = tuple(buffer.clone() for buffer in values[count:])
        sample.raw(variant, values[:count], out=buffers[0] if single else buffers)
        return buffers

    def plain(*values: object) -> Values:
        raw = sample.raw(sample.op.call, values[:count])
        return (raw,) if single else tuple(raw)

    label = f"{sample.op.name}(out=…)"
    return [
        as_program(sample, (*inputs, *full), label, call, plain),
        as_program(sample, (*inputs, *empty), label + "(empty)", call, plain),
    ]


def _out_view(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return a program whose buffers have gaps: every second column of a base.

    The program returns the base, so that writes next to the view show.
    """
    variant, raw, results = _for_out(sample, inputs)
    count = len(inputs)
    bases = tuple(torch.full((*y.shape, 2), 1, dtype=y.dtype, device=y.device) for y in results)

    def call(*values: Any) -> Values:
        copies = tuple(base.clone() for base in values[count:])
        views = tuple(base.select(-1, 0) for base in copies)
        sample.raw(variant, values[:count], out=views[0] if isinstance(raw, Tensor) else views)
        return copies

    def plain(*values: Any) -> Values:
        raw_result = sample.raw(sample.op.call, values[:count])
        parts = (raw_result,) if isinstance(raw_result, Tensor) else tuple(raw_result)
        pairs = zip(parts, values[count:], strict=True)
        # the other column of each base stays as it was
        return tuple(torch.stack([part, base.select(-1, 1)], -1) for part, base in pairs)

    label = f"{sample.op.name}(out=a view with gaps)"
    return [as_program(sample, (*inputs, *bases), label, call, plain)]


def _out_overlapping(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return a buffer all of whose elements are one, which holds a right answer only if that is one
    number."""
    variant, raw, _ = _for_out(sample, inputs)
    if not isinstance(raw, Tensor) or raw.numel() < 2:
        raise Unsuitable(f"{sample.description}: one element overlaps with none")

    # expanded from one number: stride 0 in each dimension
    def call(*values: object) -> Values:
        buffer = torch.zeros((), dtype=raw.dtype, device=device_of(values)).expand(raw.shape)
        sample.raw(variant, values, out=buffer)
        return (buffer.clone(),)

    return [as_program(sample, inputs, f"{sample.op.name}(out=overlapping)", call, sample)]


def _out_of_input(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return a buffer that begins one element after the first input that has its dtype, in the same
    memory."""
    variant, raw, _ = _for_out(sample, inputs)
    # Memory is shared as elements of one dtype, and one element overlaps with nothing next to it.
    places = []
    if isinstance(raw, Tensor) and raw.numel() > 1:
        for number, x in enumerate(inputs):
            if x.dtype is raw.dtype and x.numel() > 1:
                places.append(number)
    if not places:
        raise Unsuitable(f"{sample.description}: no input that a result could overlap with")
    place = places[0]

    def call(*values: Any) -> Values:
        x = values[place]
        memory = torch.cat([x.reshape(-1), x.new_zeros(raw.numel() + 1)])
        arguments = [*values[:place], memory[: x.numel()].view(x.shape), *values[place + 1 :]]
        buffer = memory[1 : raw.numel() + 1].view(raw.shape)
        sample.raw(variant, arguments, out=buffer)
        return (buffer.clone(),)

    def plain(*values: object) -> Values:
        return (sample.raw(sample.op.call, values),)

    return [as_program(sample, inputs, f"{sample.op.name}(out=memory of an input)", call, plain)]


def _out_small(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return a buffer that has half of the elements, as a view of the first elements of a longer
    tensor."""
    variant, raw, _ = _for_out(sample, inputs)
    if not isinstance(raw, Tensor) or raw.numel() < 2:
        raise Unsuitable(f"{sample.description}: nothing is smaller than one element")

    def call(*values: Any) -> Values:
        buffer = values[-1].clone()[: raw.numel() // 2]
        sample.raw(variant, values[:-1], out=buffer)
        return (buffer.clone(),)

    def plain(*values: object) -> Values:
        return (sample.raw(sample.op.call, values[:-1]),)

    # Half of it is the buffer. What is written behind that is outside of the view.
    memory = torch.full((raw.numel(),), 1, dtype=raw.dtype, device=raw.device)
    label = f"{sample.op.name}(out=a view that is too small)"
    return [as_program(sample, (*inputs, memory), label, call, plain)]


def _out_lazy(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return programs with a buffer that shows its memory negated, or conjugated."""
    variant, raw, results = _for_out(sample, inputs)
    # one of them alone, as torch says that it takes no more
    if not all(isinstance(y, Tensor) for y in results):
        raise Unsuitable(f"{sample.description}: the results are not a list of tensors")
    inexact = (number for number, y in enumerate(results) if is_inexact(y.dtype))
    place = next(inexact, None)
    if place is None:
        raise Unsuitable(f"{sample.description}: integers have no lazy bits")
    count = len(inputs)
    full = tuple(torch.full_like(y, 1, memory_format=torch.contiguous_format) for y in results)
    views: dict[str, Callable[[Tensor], Tensor]] = {"negated": neg_view}
    if results[place].is_complex():
        views["conjugated"] = torch.conj

    def write(view: Callable[[Tensor], Tensor], *values: Any) -> Values:
        buffers = [buffer.clone() for buffer in values[count:]]
        buffers[place] = view(buffers[place])
        out = buffers[0] if isinstance(raw, Tensor) else tuple(buffers)
        sample.raw(variant, values[:count], out=out)
        return tuple(buffers)

    def plain(*values: object) -> Values:
        raw_result = sample.raw(sample.op.call, values[:count])
        return (raw_result,) if isinstance(raw_result, Tensor) else tuple(raw_result)

    programs = []
    for name, view in views.items():
        label = f"{sample.op.name}(out={name})"
        programs.append(as_program(sample, (*inputs, *full), label, partial(write, view), plain))
    return programs


def _for_out(
    sample: Sample, inputs: tuple[Tensor, ...]
) -> tuple[Callable[..., Any], Any, list[Tensor]]:
    """Return the op's out= variant, its plain result, and the tensors of that result."""
    if sample.op.out is None:
        raise Unsuitable(f"{sample.op.name} has no out= variant")
    raw = sample.raw(sample.op.call, [tensor.clone() for tensor in inputs])
    if isinstance(raw, bool):
        raise Unsuitable(f"{sample.description}: the result is no tensor")
    return sample.op.out, raw, [raw] if isinstance(raw, Tensor) else list(raw)


FORMS: dict[str, Callable[[Sample, tuple[Tensor, ...]], list[Program]]] = {
    "out": _out,
    "out_view": _out_view,
    "out_overlapping": _out_overlapping,
    "out_of_input": _out_of_input,
    "out_small": _out_small,
    "out_lazy": _out_lazy,
}
