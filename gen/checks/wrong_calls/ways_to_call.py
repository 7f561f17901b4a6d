"""Run a call by the other ways into an op: with ``out=``, in place, on inputs with gaps in memory,
on inputs that require grad.

    add(x, y, alpha=True)   ->   add(x, y, alpha=True, out=z), x.add_(y, alpha=True), …
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from gen.checks import forms
from gen.checks.illformed import attempt
from gen.checks.wrong_calls.calls import Call
from gen.samples.samples import Sample

__all__ = ["VARIANTS", "Variant", "make_on_meta"]

Tensor = torch.Tensor
Answer = tuple[Tensor, ...] | Exception
Variant = Callable[[Call, Sample], Answer]
_ABSENT = NotImplementedError("there is no such way to call the op")


def _with_gaps(call: Call, sample: Sample) -> Answer:
    """Return the results of inputs whose elements lie apart in memory."""
    inputs = forms.laid_out(call.inputs, "noncontiguous")
    return attempt(sample, lambda: call.run(*inputs))


def _with_grad(call: Call, sample: Sample) -> Answer:
    """Return the results of inputs that require grad, where the sample has derivatives."""
    pairs = zip(call.inputs, sample.differentiable, strict=True)
    # a leaf could not be written to, which an option may ask for
    inputs = [x.clone().requires_grad_(flag).clone() for x, flag in pairs]
    return attempt(sample, lambda: [y.detach() for y in call.run(*inputs)])


def _with_out(call: Call, sample: Sample) -> Answer:
    """Return what the op leaves in buffers without elements, which it makes larger."""
    variant = sample.op.out
    if variant is None:
        return _ABSENT
    plain = _plain(call, sample)
    # Of a call that the plain op refuses nobody knows the results, so buffers are for the sample's.
    results = sample.facts.outputs if isinstance(plain, Exception) else plain
    answer = attempt(sample, lambda: _fill(call, variant, results))
    return _unless_signature(answer)


def _unless_signature(answer: Answer) -> Answer:
    """Return `answer`, unless it is a TypeError: then the variant has no such parameter."""
    if isinstance(answer, TypeError):
        return _ABSENT
    return answer


def _fill(
    call: Call, variant: Callable[..., object], results: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Run a variant with buffers of the kinds of the results, and return them.

    The op of one result takes a tensor as ``out``, that of several a tuple.
    """
    buffers = tuple(x.new_empty(0) for x in results)
    if len(buffers) == 1:
        call.result(variant, out=buffers[0])
    else:
        call.result(variant, out=buffers)
    return buffers


def _in_place(call: Call, sample: Sample) -> Answer:
    """Return what the in-place variant leaves in the first input.

    The variant may refuse a result that does not fit there.
    """
    variant = sample.op.inplace
    if variant is None:
        return _ABSENT
    plain = _plain(call, sample)
    if not isinstance(plain, Exception) and not _fits(plain, call.inputs[0]):
        return _ABSENT
    return _unless_signature(attempt(sample, lambda: (call.written(variant),)))


def _fits(results: Sequence[Tensor], x: Tensor) -> bool:
    """Return whether there is one result, and it has the shape and dtype of `x`."""
    if len(results) != 1:
        return False
    return (results[0].shape, results[0].dtype) == (x.shape, x.dtype)


def _plain(call: Call, sample: Sample) -> Answer:
    """Return the results of the plain op, on copies that it may write to."""
    return attempt(sample, lambda: call.run(*(x.clone() for x in call.inputs)))


def make_on_meta(call: Call, sample: Sample) -> Answer:
    """Return what an op without tensors makes on the meta device."""
    on_meta = partial(sample.op.call, device="meta")
    return attempt(sample, lambda: sample.outputs(call.result(on_meta)))


VARIANTS: dict[str, Variant] = {
    "the op with gaps": _with_gaps,
    "the op with gradients": _with_grad,
    "the op with out=": _with_out,
    "the op in place": _in_place,
}
"""What calls an op in another way, by its name in messages."""
