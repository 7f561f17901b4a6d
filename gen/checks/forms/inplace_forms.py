"""Call an op in place: on a copy, a view, the argument itself, and on memory that overlaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gen.checks.forms.form_program import as_program
from gen.checks.forms.input_fillings import accepts
from gen.checks.pipelines import Program
from gen.outcomes import Unsuitable
from gen.samples.samples import Sample
from gen.targets.protocol import Values

Tensor = torch.Tensor


def _inplace_variant(sample: Sample) -> Callable[..., object]:
    """Return the in-place variant. Raises Unsuitable if the result does not fit into the first
    argument.
    """
    if sample.op.inplace is None:
        raise Unsuitable(f"{sample.op.name} has no in-place variant")
    args, _ = sample.rebuild(sample.inputs)
    outputs = sample.facts.outputs
    if not args or not isinstance(args[0], Tensor) or len(outputs) != 1:
        raise Unsuitable(f"{sample.description}: in-place needs a tensor first and one result")
    if outputs[0].shape != args[0].shape or outputs[0].dtype != args[0].dtype:
        raise Unsuitable(f"{sample.description}: the result would not fit into the first argument")
    return sample.op.inplace


def _same_inplace_variant(sample: Sample) -> Callable[..., object]:
    """Return the in-place variant, for a comparison with the op itself."""
    if sample.facts.random:
        raise Unsuitable("the op draws random numbers: its in-place variant draws others")
    return _inplace_variant(sample)


def _inplace(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return a program that works in place on a copy of the first argument."""
    variant = _same_inplace_variant(sample)

    def call(*values: Any) -> Values:
        # a leaf that requires grad takes no write, and a copy of it does
        x = values[0].clone()
        sample.raw(variant, (x, *values[1:]))
        return (x,)

    return [as_program(sample, inputs, f"{sample.op.name} in place", call, sample)]


def _inplace_overlapping(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return a program that works in place on a tensor all of whose elements are one, which holds
    a right answer only if that is one number."""
    variant = _same_inplace_variant(sample)
    # A single element lies nowhere twice.
    if inputs[0].numel() < 2:
        raise Unsuitable(f"{sample.description}: one element overlaps with none")

    def call(*values: Any) -> Values:
        # stride 0 in every dimension
        x = values[0].reshape(-1)[0].clone().expand(values[0].shape)
        sample.raw(variant, (x, *values[1:]))
        return (x.clone(),)

    def plain(*values: Any) -> Values:
        x = values[0].reshape(-1)[0].expand(values[0].shape).clone()
        return tuple(sample(x, *values[1:]))

    return [as_program(sample, inputs, f"{sample.op.name} in place, overlapping", call, plain)]


def _inplace_of_input(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return programs that work in place on the memory in which another input lies, which begins
    one element later. One for each input that can lie there.
    """
    variant = _same_inplace_variant(sample)
    dtype, size = inputs[0].dtype, inputs[0].numel()
    others = []
    for place, x in enumerate(inputs):
        if place and x.dtype is dtype and x.numel() > 1:
            others.append(place)
    if size < 2 or not others:
        raise Unsuitable(f"{sample.description}: no input that the first one could overlap with")

    def overlapping(place: int, values: Sequence[Any]) -> tuple[Tensor, ...]:
        """Return the values, of which the first one and that at `place` share memory.

        The other one keeps only its last elements, as the memory begins with the first input.
        """
        first, other = values[0], values[place]
        rest = other.reshape(-1)[: max(0, other.numel() + 1 - size)]
        memory = torch.cat([first.reshape(-1), rest])
        shared = memory[1 : other.numel() + 1].view(other.shape)
        between, behind = values[1:place], values[place + 1 :]
        return (memory[:size].view(first.shape), *between, shared, *behind)

    def call(place: int, *values: Any) -> Values:
        arguments = overlapping(place, values)
        sample.raw(variant, arguments)
        return (arguments[0].clone(),)

    def plain(place: int, *values: Any) -> Values:
        return tuple(sample(*(x.clone() for x in overlapping(place, values))))

    programs = []
    for place in others:
        # what was an index is none any more where it has shifted values
        if not accepts(sample, overlapping(place, inputs)):
            continue
        label = f"{sample.op.name} in place on the memory of input {place}"
        programs.append(
            as_program(sample, inputs, label, partial(call, place), partial(plain, place))
        )
    if not programs:
        raise Unsuitable(f"{sample.description}: the op refuses the values of that memory")
    return programs


def _view_inplace(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return a program that works in place on a view of the first half of a base.

    The program returns the base, so values and gradients of the other half count.
    """
    variant = _same_inplace_variant(sample)

    def call(*values: Any) -> Values:
        x = values[0].reshape(-1)
        base = torch.cat([x, x])
        view = base[: x.shape[0]].view(values[0].shape)
        sample.raw(variant, (view, *values[1:]))
        return (base,)

    def plain(*values: Any) -> Values:
        return (torch.cat([sample(*values)[0].reshape(-1), values[0].reshape(-1)]),)

    return [as_program(sample, inputs, f"{sample.op.name} in place on a view", call, plain)]


def _argument_inplace(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return a program that works in place on the first argument itself.

    What captures or compiles the program must carry the write out on the caller's tensor.
    """
    variant = _inplace_variant(sample)

    def call(*values: object) -> Values:
        return sample.outputs(sample.raw(variant, values))

    def plain(*values: Any) -> Values:
        return (values[0].copy_(sample(values[0].clone(), *values[1:])[0]),)

    # Where the op draws, its variant draws other numbers: then the reference calls the variant too.
    same = None if sample.facts.random else plain
    program = as_program(sample, inputs, f"{sample.op.name} in place on its argument", call, same)
    return [replace(program, written=(0,))]


def _data_write(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return a program that assigns to ``.data`` of its differentiable inputs before the call."""
    if not any(sample.differentiable):
        raise Unsuitable(f"{sample.description}: no differentiable tensor to write to")

    def call(*values: Any) -> Values:
        for value, flag in zip(values, sample.differentiable, strict=True):
            if flag:
                value.data = torch.zeros_like(value)
        return sample(*values)

    return [as_program(sample, inputs, f"{sample.op.name} after a write to .data", call, sample)]


FORMS: dict[str, Callable[[Sample, tuple[Tensor, ...]], list[Program]]] = {
    "inplace": _inplace,
    "inplace_overlapping": _inplace_overlapping,
    "inplace_of_input": _inplace_of_input,
    "view_inplace": _view_inplace,
    "argument_inplace": _argument_inplace,
    "data_write": _data_write,
}
