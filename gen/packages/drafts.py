"""Learn from calls of a function what it can do. The calls are recorded, or somebody writes them.

    attempt_given(Given("torch.sqrt", "function", "torch.sqrt", [{"args": [{"shape": [512]}]}]))
    # Trial("torch.sqrt", samples=[{"args": [{"shape": [4], "domain": "positive"}]}], ...)

Domains are learned by trial. The first one counts under which most calls have finite gradients.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gen.packages.package_scan import FUNCTION_KINDS, Entry
from gen.packages.sampled_calls import (
    Call,
    ModuleCall,
    NotUsableError,
    OnCopies,
    is_zero,
)
from gen.packages.sizes import elements, has_tensor, smaller
from gen.packages.trials import (
    Trial,
    error_of,
    learn_facts,
    learn_shapes,
    require_finite,
    resolve,
    run_forward,
)
from gen.recording.hook import Sample

__all__ = ["DOMAINS", "Given", "attempt_given"]

Function = Callable[..., object]
Forms = Callable[[Sample], Iterator[Sample]]
DOMAINS = ("any", "positive", "unit", "nonzero", "spd", "symmetric", "distinct")
LAYOUTS = ("transposed", "noncontiguous", "expanded")
# Maps `keeps_flags` to the trials in their order, and each says whether the recorded
# `requires_grad` counts. If it does not, every floating tensor requires grad.
_FLAGS = {False: (False, True), True: (True,)}
MOST_SAMPLES = 4  # of one row
MOST_REASONS = 2  # the last calls whose refusal an error reports
MOST_ELEMENTS = 2_000  # of the largest tensor of a sample


@dataclass(frozen=True)
class Given:
    """A function, and calls of it as a recorder describes them."""

    name: str
    kind: str  # that of an Entry, or "op"
    expression: str  # the function, or the class of a module, as Python text
    samples: list[Sample]
    more_shapes: bool = False  # whether to try other shapes too
    keeps_sizes: bool = False  # somebody has chosen the sizes, so they are tried first
    keeps_flags: bool = False  # a floating tensor that did not require grad has no derivative
    remarks: list[str] = field(default_factory=list)
    writes: bool = False  # the function writes to an argument


def attempt_given(given: Given) -> Trial:
    """Try the calls, and return what they show of the function."""
    trial = Trial(given.name, call=given.expression, remarks=list(given.remarks))
    try:
        function, samples = resolve(given.expression), given.samples
        if given.kind == "module":
            function, samples = _module_and_samples(given, trial)
        elif given.writes:
            function = OnCopies(function)
            trial.call = f"OnCopies({given.expression})"
        forms = _given_sizes_first if given.keeps_sizes else smaller
        accepted = list(_accepted_samples(function, samples, forms, trial))
        calls = _calls_of_best_domain(function, accepted, trial, _FLAGS[given.keeps_flags])
        # A cell that compares only zeros proves nothing.
        if all(map(is_zero, calls)):
            raise NotUsableError("its result is zero")
    except NotUsableError as error:
        trial.reason = str(error)
        return trial
    if given.more_shapes and not calls[0].keywords:
        learn_shapes(trial, calls[0])
        other_arguments = trial.samples
        trial.samples = list(map(_sample_of, calls))
        others = [{"args": arguments} for arguments in other_arguments]
        trial.samples += [sample for sample in others if sample not in trial.samples]
    else:
        trial.samples = list(map(_sample_of, calls))
        if len(calls) == 1:
            trial.samples *= 2  # two draws, as the first may have gradients of zero
    learn_facts(trial, calls[0], Entry(given.name, given.kind, (), has_jvp=_has_jvp(given)))
    _learn_limits(trial, given, calls[0])
    return trial


def _learn_limits(trial: Trial, given: Given, call: Call) -> None:
    """Learn which layouts and transforms no cell can ask of the function."""
    if call.makes_tensors:
        trial.takes_layouts = trial.takes_vmap = False
        trial.remarks.append("no layout and no vmap: it takes no tensor")
        return
    is_op = given.kind == "op"
    if is_op and "backward" in given.name:
        trial.differentiable = False
        trial.remarks.append("no derivative is tested: its arguments are results of another op")
    if is_op and ("backward" in given.name or "._" in given.name):
        trial.takes_layouts = False
        trial.remarks.append("no layout is tested: only torch calls it, with layouts that it makes")
        return
    for layout in LAYOUTS:
        laid_out = dataclasses.replace(call, described=_laid_out(call, layout))
        error = error_of(run_forward, laid_out)
        if error is not None:
            trial.takes_layouts = False
            trial.remarks.append(f"no layout {layout}: {error}")


def _laid_out(call: Call, layout: str) -> list[Any]:
    """Return the arguments of a call with tensors in a layout."""
    described = list(call.described)
    for place, argument in enumerate(described):
        if isinstance(argument, dict) and "shape" in argument:
            described[place] = argument | {"layout": layout}
    return described


def _has_jvp(given: Given) -> bool:
    """Return whether a Function has a formula for forward mode. True for anything else."""
    if given.kind not in FUNCTION_KINDS:
        return True
    function = resolve(given.expression.removesuffix(".apply"))
    return function.jvp is not torch.autograd.Function.jvp


def _module_and_samples(given: Given, trial: Trial) -> tuple[Function, list[Sample]]:
    """Return a module as a function of inputs and parameters, and its samples."""
    constructor = given.samples[0].get("constructor") or {"args": []}
    text = _argument_text(constructor)
    make = functools.partial(
        resolve(given.expression), *constructor["args"], **constructor.get("kwargs", {})
    )
    try:
        module = ModuleCall(make)
    except Exception as error:  # whatever a constructor raises
        raise NotUsableError(f"its constructor with ({text}) raises {error}") from None
    trial.call = f"ModuleCall(lambda: {given.expression}({text}))"
    parameters = [{"shape": shape} for shape in module.shapes]
    # A row has one constructor, that of the first call. `ModuleCall` takes no keywords.
    samples: list[Sample] = []
    for sample in given.samples:
        is_alike = sample.get("constructor", constructor) == constructor
        if is_alike and not sample.get("kwargs"):
            samples.append({"args": [*sample["args"], *parameters]})
    omitted = len(given.samples) - len(samples)
    if omitted:
        _remark(trial, f"kinds of calls left out, by keywords or of another constructor: {omitted}")
    if not samples:
        raise NotUsableError("a module is called with its inputs by position")
    return module, samples


def _argument_text(constructor: Sample) -> str:
    """Return the arguments of a constructor as Python text: "3, bias=False"."""
    keywords = constructor.get("kwargs", {})
    words = list(map(repr, constructor["args"]))
    words += [f"{name}={value!r}" for name, value in keywords.items()]
    # The text of other objects does not make them again.
    plain = (bool, int, float, str, type(None))
    if not all(isinstance(value, plain) for value in (*constructor["args"], *keywords.values())):
        raise NotUsableError(f"its constructor is called with more than numbers and texts: {words}")
    return ", ".join(words)


def _accepted_samples(
    function: Function, samples: Sequence[Sample], forms: Forms, trial: Trial
) -> Iterator[Sample]:
    """Yield each sample in the first of its forms that a forward pass accepts, without repeats."""
    seen: set[str] = set()
    for sample in samples:
        if len(seen) == MOST_SAMPLES:
            _remark(trial, f"of {len(samples)} kinds of calls, {MOST_SAMPLES} are samples")
            return
        form = _first_form(function, sample, forms, trial)
        if form is None:
            continue
        if form != dict(sample):
            _remark(trial, "sizes are smaller than those of the calls")
        # A mapping cannot be in a set, but its text can.
        text = json.dumps(form)
        if text not in seen:
            seen.add(text)
            yield form


def _given_sizes_first(sample: Sample) -> Iterator[Sample]:
    """Yield a sample as it is, and then smaller forms of it."""
    yield dict(sample)
    yield from smaller(sample)


def _first_form(function: Function, sample: Sample, forms: Forms, trial: Trial) -> Sample | None:
    """Return the first form of a sample that a forward pass accepts, or None."""
    errors = []
    for form in forms(sample):
        if elements(form) > MOST_ELEMENTS:
            continue
        error = _error_of_all_domains(function, form)
        if not error:
            return form
        errors.append(error)
    if elements(sample) <= MOST_ELEMENTS:
        _remark(trial, f"a call is no sample: {errors[-1]}")
    else:
        error_when_smaller = ""
        if errors:
            error_when_smaller = f"; made smaller: {errors[0]}"
        size = f"a tensor has {elements(sample):,} elements"
        _remark(trial, f"a call is no sample: {size}{error_when_smaller}")
    return None


def _remark(trial: Trial, text: str) -> None:
    """Add a remark once."""
    if text not in trial.remarks:
        trial.remarks.append(text)


def _error_of_all_domains(function: Function, sample: Sample) -> str:
    """Return the first error of a forward pass. Empty if some domain has none."""
    first_error = ""
    for domain in DOMAINS:
        error = error_of(run_forward, _call(function, sample, domain, flags=True))
        if error is None:
            return ""
        first_error = first_error or error
    return first_error


def _calls_of_best_domain(
    function: Function, samples: Sequence[Sample], trial: Trial, flags: Sequence[bool]
) -> list[Call]:
    """Return the calls in the domain in which most of them work.

    A call works if its gradients are finite. If no call has such gradients, it works if its
    forward pass does.
    """
    if not samples:
        raise NotUsableError("; ".join(trial.remarks[-MOST_REASONS:]) or "there is no call of it")
    first_error = ""
    for require in (require_finite, run_forward):
        best, error = _working_calls(require, function, samples, flags)
        first_error = first_error or error
        if best:
            if first_error:
                _remark(trial, f"with domain any, and gradients of all inputs: {first_error}")
            return best
    raise NotUsableError(first_error)


def _working_calls(
    require: Callable[[Call], None],
    function: Function,
    samples: Sequence[Sample],
    flags: Sequence[bool],
) -> tuple[list[Call], str]:
    """Return the calls that work in the domain in which most do, and the first error of all."""
    best: list[Call] = []
    first_error = ""
    for flags_count, domain in itertools.product(flags, DOMAINS):
        calls = [_call(function, sample, domain, flags=flags_count) for sample in samples]
        errors = [error_of(require, call) for call in calls]
        first_error = first_error or next(filter(None, errors), "")
        working = [call for call, error in zip(calls, errors, strict=True) if error is None]
        # max returns the first of equals: the earlier domain, which is the more general one.
        best = max(best, working, key=len)
        if len(best) == len(samples):
            break
    return best, first_error


def _call(function: Function, sample: Sample, domain: str, *, flags: bool) -> Call:
    """Return the call of a sample. `flags`: the recorded `requires_grad` of each tensor counts."""
    keywords = sample.get("kwargs", {})
    recorded = [*sample["args"], *keywords.values()]
    described = _describe_value(recorded, domain, flags)
    return Call(function, described, tuple(keywords), makes_tensors=not has_tensor(sample))


def _sample_of(call: Call) -> Sample:
    """Return a call as a sample of a matrix. The last of its arguments are the keywords' values."""
    positional_count = len(call.described) - len(call.keywords)
    sample: Sample = {"args": call.described[:positional_count]}
    if call.keywords:
        by_keyword = zip(call.keywords, call.described[positional_count:], strict=True)
        sample["kwargs"] = dict(by_keyword)
    return sample


def _describe_value(value: Any, domain: str, flags: bool) -> Any:
    """Translate a recorded value into the language of samples."""
    if isinstance(value, list):
        return [_describe_value(item, domain, flags) for item in value]
    if not isinstance(value, dict):
        return value
    if "shape" in value:
        return _describe_tensor(value, domain, flags)
    return {key: _describe_value(item, domain, flags) for key, item in value.items()}


def _describe_tensor(recorded: Sample, domain: str, flags: bool) -> Sample:
    """Translate a recorded tensor. A floating one gets the dtype of the cell instead of its own."""
    tensor = dict(recorded)
    requires_grad = tensor.pop("requires_grad", True)
    if "float" not in tensor.get("dtype", "float"):
        return tensor
    tensor.pop("dtype", None)
    shape = tensor["shape"]
    is_square = len(shape) > 1 and shape[-1] == shape[-2]
    needs_square = domain in ("spd", "symmetric")
    # A matrix that is not square cannot have such a domain. The call's other tensors still do.
    if domain != "any" and (is_square or not needs_square):
        tensor["domain"] = domain
    if flags and not requires_grad:
        tensor["requires_grad"] = False
    return tensor
