"""Run every form of an op's calls over a target, and compare with what the plain call gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import cast

import torch

from gen.checks.compare import Rule, Tally, compare, compare_kinds
from gen.checks.overloads.form_buffers import Form
from gen.checks.overloads.overload_forms import FormsOfCall
from gen.checks.overloads.plain_calls import PlainCall, plain_calls
from gen.checks.overloads.recorded_calls import calls_of, copied
from gen.outcomes import Lacking, Mismatch, Unsuitable
from gen.samples.samples import Sample, flat_tensors
from gen.samples.seeds import seeded
from gen.targets.protocol import Dispatching, Target
from gen.targets.target_marks import target_runs
from gen.torch_private.aten_overloads import full_name, has_kernel

__all__ = ["assert_forms_agree"]

Tensor = torch.Tensor
_LONGEST = 400  # characters of an error in a message


_SHOWN = {"aten::_ctc_loss": 1, "aten::_linalg_det": 1, "aten::_linalg_slogdet": 2}
"""How many results of these ops are compared. The others are for their backward pass: probabilities
of which part is memory as it was, and factors of a matrix or of its transpose.
"""


def assert_forms_agree(target: Target, sample: Sample, rule: Rule, tally: Tally) -> None:
    """Raise Mismatch if a form of a call does not give what the call gives, or is refused.

    Raises Unsuitable if the op makes no call that has other forms, Lacking if the target runs no
    single overloads.
    """
    if not hasattr(target, "overload"):
        raise Lacking(f"target {target.name} lacks overload")
    failures = list(_difference_of_program(target, sample, rule, tally))
    # An op may make several calls of one overload, whose forms are the same.
    seen: set[str] = set()
    for form in _forms(sample):
        if form.label in seen:
            continue
        seen.add(form.label)
        failures += _difference(cast(Dispatching, target), form, sample, rule, tally)
    if failures:
        raise Mismatch("; ".join(failures))
    if not tally.entries:
        raise Unsuitable(f"{sample.description}: no call with other forms")


def _difference_of_program(
    target: Target, sample: Sample, rule: Rule, tally: Tally
) -> Iterator[str]:
    """Yield a text if a program that calls overloads differs from its definition."""
    reference = sample.op.reference
    if sample.op.info is not None or reference is None:
        return
    args, kwargs = sample.rebuild([copied(x) for x in sample.inputs])
    expected = flat_tensors(reference(*args, **kwargs))

    def run() -> object:
        """Run the program as the target."""
        with target_runs():
            return target.forward(sample)(*map(copied, sample.inputs))

    actual = _attempt(sample, run)
    if isinstance(actual, Exception):
        yield _shown(actual)
        return
    try:
        compare(_flat(actual), expected, rule, tally)
    except Mismatch as mismatch:
        yield str(mismatch)


def _shown(error: Exception) -> str:
    """Return an error as a message has it: `RuntimeError: not today`."""
    return f"{type(error).__name__}: {str(error)[:_LONGEST]}"


def _forms(sample: Sample) -> Iterator[Form]:
    """Yield the forms of each call that the op makes on the sample."""
    for call in calls_of(sample):
        for plain in plain_calls(call):
            yield from _forms_of(plain, sample)


def _forms_of(plain: PlainCall, sample: Sample) -> Iterator[Form]:
    """Yield the forms of a plain call, if torch runs it on the sample."""
    call, expected = plain
    if not has_kernel(full_name(call.overload)):
        return
    results = _attempt(sample, expected.run)
    if isinstance(results, Exception) or results is None:
        return
    # a tensor without dimensions may be refused where a number is not
    is_converted = call is not expected and call.base == expected.base
    if is_converted and isinstance(_attempt(sample, call.run), Exception):
        return
    yield from FormsOfCall(call, expected.run, results)


def _difference(
    target: Dispatching, form: Form, sample: Sample, rule: Rule, tally: Tally
) -> Iterator[str]:
    """Yield a text if a form differs from the plain call."""
    expected = _attempt(sample, form.truth)
    if isinstance(expected, Exception):
        return

    overload = target.overload(form.name)

    def marked(*args: object, **kwargs: object) -> object:
        """Call the overload as the target: buffers and copies are made by the check."""
        with target_runs():
            return overload(*args, **kwargs)

    actual = _attempt(sample, lambda: form.run(marked))
    if isinstance(actual, Exception):
        if not _is_refusal(actual, form):
            yield f"{form.label}: {_shown(actual)}"
        return
    count = _SHOWN.get(form.name.partition(".")[0])
    results, wanted = _flat(actual)[:count], _flat(expected)[:count]
    try:
        if _is_uninitialized(form):
            compare_kinds(results, wanted, tally)
        else:
            compare(results, wanted, rule, tally)
    except Mismatch as mismatch:
        yield f"{form.label}: {mismatch}"


def _is_refusal(error: Exception, form: Form) -> bool:
    """Return whether a form may raise an error: that it has no kernel, or refuses its memory."""
    if isinstance(error, NotImplementedError):
        return True
    return form.may_refuse and isinstance(error, RuntimeError)


def _is_uninitialized(form: Form) -> bool:
    """Return whether the results of a call are memory as it happens to be."""
    base = form.name.partition(".")[0]
    return "empty" in base or "resize" in base


def _flat(results: object) -> tuple[Tensor, ...]:
    """Return the tensors of results as compare takes them.

    Nested ones are their components, and quantized ones the numbers that they stand for.
    """
    tensors: list[Tensor] = []
    for x in flat_tensors(results):
        if x.is_nested:
            tensors += x.unbind()
        else:
            tensors.append(_as_numbers(x))
    return tuple(tensors)


def _as_numbers(x: Tensor) -> Tensor:
    """Return the numbers that a tensor stands for."""
    if x.is_quantized:
        return x.dequantize()
    # eight bits are compared as numbers of more, which have them all
    if x.is_floating_point() and x.itemsize == 1:
        return x.float()
    return x


def _attempt(sample: Sample, run: Callable[[], object]) -> object:
    """Return what becomes of a call: its result, or the exception that it raises."""
    with seeded(sample.seed), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            return run()
        except Exception as error:  # kernels raise different errors
            return error
