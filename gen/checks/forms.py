"""Call an op in its forms, and lay out and fill its inputs.

Forms are functional, out=, in-place, on a view, writing to ``.data``, under autocast, and a round
trip through a file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gen.checks import autocasting
from gen.checks.pipelines import Program
from gen.outcomes import Mismatch, Unsuitable
from gen.reference.arrays import Definite
from gen.reference.exact import Exact
from gen.reference.standard import Standard
from gen.samples import points, special_points
from gen.samples.descriptions import arrange, clone_with_strides
from gen.samples.domains import Domain, is_inexact
from gen.samples.samples import Sample
from gen.targets.protocol import Flat, Target, Values
from gen.torch_private.loaded_with_torch import neg_view

Tensor = torch.Tensor
OVERLAP = (
    r"single memory location|internal overlap|resize|as_strided|expanded|"
    r"fallback doesn't currently support"
)
"""What ops say of a buffer that overlaps with itself or with an input, that is too small, or that
is one of a list and has a lazy bit."""
DATA_WRITE = (
    r"mutating directly with `\.data` (inside functorch|under vmap) transform is not|the program "
    r"assigns to \.data of a tensor"
)
"""What torch documents for an assignment to ``.data`` under a transform; a target words its
own error likewise."""

REFUSED = {"data_write": DATA_WRITE}
"""Forms that an op must refuse, with the error."""
NEAR_DTYPE = torch.bfloat16
"""What form ``autocast_near`` casts to."""
MAY_REFUSE = frozenset(
    ("out_overlapping", "out_of_input", "out_small", "out_lazy", "inplace_overlapping")
)
"""Forms that an op may refuse with an error about memory. Otherwise its answer must be right."""


BESIDE = MAY_REFUSE | {"out_view", "reloaded"}
"""Forms that are about memory rather than values."""


def is_refusal(form: str, error: Exception) -> bool:
    """Return whether an op may say this of its buffer, instead of an answer."""
    return (
        form in MAY_REFUSE
        and isinstance(error, RuntimeError)
        and re.search(OVERLAP, str(error)) is not None
    )


def programs(sample: Sample, form: str, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return the op in `form`, as programs to transform. A reference runs the functional op
    instead. Raises Unsuitable if there is no program."""
    return _FORMS[form](sample, inputs)


def _program(
    sample: Sample,
    inputs: tuple[Tensor, ...],
    label: str,
    call: Callable[..., object],
    plain: Callable[..., object] | None = None,
) -> Program:
    """Return a program that runs `call` on a target and `plain` on a reference. Inputs after the
    sample's own are buffers, not differentiable."""
    buffers = len(inputs) - len(sample.differentiable)
    flags = (*sample.differentiable, *[False] * buffers)

    def over(target: Target) -> Any:
        if isinstance(target, (Exact, Definite, Standard)):
            return target.root
        return call if plain is None or not is_reference(target) else plain

    return Program(over, inputs, flags, sample.seed, label)


def is_reference(target: Target) -> bool:
    """Return whether `target` computes expected results. It captures and compiles nothing."""
    return target.name in ("loop", "numeric")


def _functional(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return the op itself as one program."""
    program = _program(sample, inputs, sample.op.name, sample)

    def over(target: Target) -> Flat:
        """Return the op in torch, its definition, or the target's own implementation of it."""
        if isinstance(target, (Exact, Definite, Standard)):
            return target.root
        implementation = getattr(target, "op", None)
        if implementation is None:
            return sample
        call = implementation(sample.op.name)
        # a target with `op` has `flat` too
        return lambda *values: tuple(target.flat(sample.process(sample.raw(call, values))))  # type: ignore[attr-defined]

    return [replace(program, over=over)]


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
        _program(sample, (*inputs, *full), label, call, plain),
        _program(sample, (*inputs, *empty), label + "(empty)", call, plain),
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
        return tuple(
            torch.stack([part, base.select(-1, 1)], -1)
            for part, base in zip(parts, values[count:], strict=True)
        )

    return [
        _program(sample, (*inputs, *bases), f"{sample.op.name}(out=a view with gaps)", call, plain)
    ]


def _out_overlapping(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return a buffer all of whose elements are one, which holds a right answer only if that is one
    number."""
    variant, raw, _ = _for_out(sample, inputs)
    if not isinstance(raw, Tensor) or raw.numel() < 2:
        raise Unsuitable(f"{sample.description}: one element overlaps with none")

    # expanded from one number: stride 0 in each dimension
    def call(*values: object) -> Values:
        buffer = torch.zeros((), dtype=raw.dtype, device=_device_of(values)).expand(raw.shape)
        sample.raw(variant, values, out=buffer)
        return (buffer.clone(),)

    return [_program(sample, inputs, f"{sample.op.name}(out=overlapping)", call, sample)]


def _device_of(values: Sequence[object]) -> torch.device:
    """Return the device of the first tensor among the inputs of a call."""
    return next((x.device for x in values if isinstance(x, Tensor)), torch.device("cpu"))


def _out_of_input(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return a buffer that begins one element after the first input that has its dtype, in the same
    memory."""
    variant, raw, _ = _for_out(sample, inputs)
    # the first input that has the dtype of the result
    place = next(
        (
            k
            for k, x in enumerate(inputs)
            if isinstance(raw, Tensor) and x.dtype is raw.dtype and x.numel() > 1
        ),
        None,
    )
    if place is None or raw.numel() < 2:
        raise Unsuitable(f"{sample.description}: no input that a result could overlap with")

    def call(*values: Any) -> Values:
        x = values[place]
        memory = torch.cat([x.reshape(-1), x.new_zeros(raw.numel() + 1)])
        arguments = [*values[:place], memory[: x.numel()].view(x.shape), *values[place + 1 :]]
        buffer = memory[1 : raw.numel() + 1].view(raw.shape)
        sample.raw(variant, arguments, out=buffer)
        return (buffer.clone(),)

    def plain(*values: object) -> Values:
        return (sample.raw(sample.op.call, values),)

    return [_program(sample, inputs, f"{sample.op.name}(out=memory of an input)", call, plain)]


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
    return [
        _program(
            sample,
            (*inputs, memory),
            f"{sample.op.name}(out=a view that is too small)",
            call,
            plain,
        )
    ]


def _out_lazy(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return programs with a buffer that shows its memory negated, or conjugated."""
    variant, raw, results = _for_out(sample, inputs)
    # one of them alone, as torch says that it takes no more
    if not all(isinstance(y, Tensor) for y in results):
        raise Unsuitable(f"{sample.description}: the results are not a list of tensors")
    place = next((k for k, y in enumerate(results) if is_inexact(y.dtype)), None)
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

    return [
        _program(
            sample, (*inputs, *full), f"{sample.op.name}(out={name})", partial(write, view), plain
        )
        for name, view in views.items()
    ]


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
        x = values[0].clone()
        sample.raw(variant, (x, *values[1:]))
        return (x,)

    return [_program(sample, inputs, f"{sample.op.name} in place", call, sample)]


def _inplace_overlapping(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return a program that works in place on a tensor all of whose elements are one, which holds
    a right answer only if that is one number."""
    variant = _same_inplace_variant(sample)
    if inputs[0].numel() < 2:
        raise Unsuitable(f"{sample.description}: one element overlaps with none")

    def call(*values: Any) -> Values:
        x = values[0].reshape(-1)[0].clone().expand(values[0].shape)
        sample.raw(variant, (x, *values[1:]))
        return (x.clone(),)

    def plain(*values: Any) -> Values:
        x = values[0].reshape(-1)[0].expand(values[0].shape).clone()
        return tuple(sample(x, *values[1:]))

    return [_program(sample, inputs, f"{sample.op.name} in place, overlapping", call, plain)]


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

    return [_program(sample, inputs, f"{sample.op.name} in place on a view", call, plain)]


def _argument_inplace(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return a program that works in place on the first argument itself.

    What captures or compiles the program must carry the write out on the caller's tensor.
    """
    variant = _inplace_variant(sample)

    def call(*values: object) -> Values:
        return sample.outputs(sample.raw(variant, values))

    def plain(*values: Any) -> Values:
        return (values[0].copy_(sample(values[0].clone(), *values[1:])[0]),)

    # the variant of an op that draws draws other numbers
    same = None if sample.facts.random else plain
    program = _program(sample, inputs, f"{sample.op.name} in place on its argument", call, same)
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

    return [_program(sample, inputs, f"{sample.op.name} after a write to .data", call, sample)]


def _reload(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return the results after a round trip through a file, and their strides, which must be those
    of the results."""

    def call(*values: object) -> Values:
        results = sample(*values)
        # Strides and lazy bits are compared here, as values would not show them.
        file = io.BytesIO()
        torch.save(results, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        for place, (before, after) in enumerate(zip(results, loaded, strict=True)):
            if (
                before.stride() != after.stride()
                or before.is_conj() != after.is_conj()
                or before.is_neg() != after.is_neg()
            ):
                raise Mismatch(
                    f"output {place} has strides {after.stride()} or lazy bits other than before "
                    f"it was saved: {before.stride()}"
                )
        return tuple(loaded)

    return [_program(sample, inputs, f"{sample.op.name}, saved and loaded", call, sample)]


def _autocast(low: torch.dtype, sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return the op under autocast. The reference casts inputs and results as
    :mod:`gen.checks.autocasting` says."""

    return _under_autocast(low, sample, inputs, partial(autocasting.cast_by_hand, low, sample))


def _autocast_near(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return the op under autocast. The reference is the op without it: torch documents no casts
    of somebody's own op."""
    return _under_autocast(NEAR_DTYPE, sample, inputs, sample)


def _under_autocast(
    low: torch.dtype,
    sample: Sample,
    inputs: tuple[Tensor, ...],
    plain: Callable[..., object],
) -> list[Program]:
    """Return the op under autocast as one program, whose reference calls `plain`."""

    def call(*values: object) -> Values:
        with torch.autocast("cpu", dtype=low):
            return sample(*values)

    label = f"{sample.op.name} under autocast to {str(low).removeprefix('torch.')}"
    return [_program(sample, inputs, label, call, plain)]


_FORMS: dict[str, Callable[[Sample, tuple[Tensor, ...]], list[Program]]] = {
    "functional": _functional,
    "out": _out,
    "out_view": _out_view,
    "out_overlapping": _out_overlapping,
    "out_of_input": _out_of_input,
    "out_small": _out_small,
    "out_lazy": _out_lazy,
    "inplace_overlapping": _inplace_overlapping,
    "reloaded": _reload,
    "autocast": partial(_autocast, torch.bfloat16),
    "autocast_half": partial(_autocast, torch.float16),
    "autocast_near": _autocast_near,
    "inplace": _inplace,
    "view_inplace": _view_inplace,
    "argument_inplace": _argument_inplace,
    "data_write": _data_write,
}


# --- values and layouts ---------------------------------------------------------------------------


def fillings(sample: Sample, values: str) -> list[tuple[str, tuple[Tensor, ...]]]:
    """Return ``(name, inputs)``: the sample's own inputs, or those of their extreme or degenerate
    variants that the plain op accepts.
    """
    if values == "ordinary":
        return [("", sample.inputs)]
    if values == "special":
        return _special(sample)
    if values in points.WORDS:
        return _degenerate(sample, values)
    candidates = [(name, tuple(map(fill, sample.inputs))) for name, fill in _EXTREMES.items()]
    for name, stop in (("zero-size", 0), ("one element", 1)):
        candidates.append((name, tuple(_truncate(x, stop) for x in sample.inputs)))
    accepted = [(name, inputs) for name, inputs in candidates if _accepts(sample, inputs)]
    if not accepted:
        raise Unsuitable(f"{sample.description}: the op takes no extreme values")
    return accepted


def _truncate(x: Tensor, size: int) -> Tensor:
    """Return the first `size` entries along each dimension."""
    return x[(slice(size),) * x.ndim]


def _special(sample: Sample) -> list[tuple[str, tuple[Tensor, ...]]]:
    """Return the special points that the definition has: that the op refuses one is a failure."""
    fillings_at_points = special_points.fillings(sample)
    if not fillings_at_points:
        raise Unsuitable(f"special: {sample.description} has no such points")
    return fillings_at_points


def _degenerate(sample: Sample, word: str) -> list[tuple[str, tuple[Tensor, ...]]]:
    """Return the degenerate points that the plain op accepts."""
    fillings_at_points = points.fillings(sample, word)
    if not fillings_at_points:
        raise Unsuitable(f"{word}: {sample.description} has no such points")
    accepted = [(name, inputs) for name, inputs in fillings_at_points if _accepts(sample, inputs)]
    if not accepted:
        raise Unsuitable(f"{word}: {sample.description}: the op refuses these values")
    return accepted


def _fill_thirds(x: Tensor, number: float) -> Tensor:
    """Return `x` with every third element replaced by `number`, from the first on, with alternating
    signs.
    """
    if not is_inexact(x.dtype) or not x.numel():
        return x
    flat = x.reshape(-1).clone()
    flat[::3] = number
    flat[3::6] = -number
    return flat.reshape(x.shape)


_EXTREMES: dict[str, Callable[[Tensor], Tensor]] = {
    "large": lambda x: _fill_thirds(x, torch.finfo(x.dtype).max / 4 if _has_range(x) else 0.0),
    "tiny": lambda x: _fill_thirds(x, torch.finfo(x.dtype).tiny if _has_range(x) else 0.0),
    "inf": lambda x: _fill_thirds(x, float("inf")),
    "nan": lambda x: _fill_thirds(x, float("nan")),
}


def _has_range(x: Tensor) -> bool:
    return is_inexact(x.dtype)


def _accepts(sample: Sample, inputs: tuple[Tensor, ...]) -> bool:
    """Return whether the plain op takes these inputs."""
    try:
        sample(*inputs)
    except Exception:  # ops refuse such values or sizes with different errors
        return False
    return True


def laid_out(inputs: tuple[Tensor, ...], layout: str) -> tuple[Tensor, ...]:
    """Return copies of inputs in a layout, since samples share the inputs.

    ``contiguous`` keeps the strides of the sample, whose description may have a layout of its own.
    ``expanded`` sets stride 0 where a slice repeats, see :func:`repeating`.
    """
    copies = []
    for x in inputs:
        copy = _lay_out(x, layout)
        if copy is x:
            copy = clone_with_strides(x)
        copies.append(copy)
    return tuple(copies)


def _lay_out(x: Tensor, layout: str) -> Tensor:
    """Return an input in a layout: itself if it has that already."""
    if layout == "contiguous":
        return x
    if layout in ("conjugated", "negated"):
        return _with_bit(x, layout)
    if layout == "channels_last":
        return _channels_last(x)
    if layout == "expanded":
        return _expand(x)
    return arrange(x, layout)


def _channels_last(x: Tensor) -> Tensor:
    """Return `x` with its second dimension innermost in memory, if it has three dimensions or
    more.
    """
    if x.ndim > 2:
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    return x.clone()


def _with_bit(x: Tensor, layout: str) -> Tensor:
    """Return `x` as a lazy conjugate of its conjugate, or a lazy negation of its negation.

    Complex numbers alone have the one, and integers and booleans neither.
    """
    if x.is_complex() and layout == "conjugated":
        return x.conj_physical().conj()
    if layout == "negated" and is_inexact(x.dtype):
        return neg_view(x.neg())
    return x.clone()


def repeating(sample: Sample, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return contiguous inputs whose first slice repeats along the first dimension. ``expanded``
    can lay these out.

    Some ops do not take repeated indices or lengths, such as lengths that must have a sum. These
    stay as they are. So does a single matrix or row of a domain, whose slices belong together.
    Raises Unsuitable if the op does not take equal numbers at all, such as one that divides by
    their deviation: then no layout is at fault.
    """
    repeated = tuple(map(_repeat, inputs, sample.domains or [None] * len(inputs)))
    if _accepts(sample, repeated):
        return repeated
    pairs = zip(inputs, repeated, strict=True)
    repeated = tuple(y if is_inexact(x.dtype) else x for x, y in pairs)
    if not _accepts(sample, repeated):
        raise Unsuitable("the op itself refuses inputs that repeat")
    return repeated


def _repeat(x: Tensor, domain: Domain | None) -> Tensor:
    """Return `x` with its first slice repeated, unless the domain ties all dimensions together."""
    tied = 0 if domain is None else domain.dims
    if x.ndim <= tied or not x.shape[0]:
        return x
    return x[:1].expand(x.shape).contiguous()


def _expand(x: Tensor) -> Tensor:
    """Return an input with stride 0 along its first dimension that repeats one slice."""
    for dim in range(x.ndim):
        first = x.narrow(dim, 0, min(1, x.shape[dim]))
        if x.shape[dim] > 1 and torch.equal(first.expand(x.shape), x):
            return first.clone().expand(x.shape)
    return x
