"""Learn what a function can do from calls of it: recorded ones, or those that somebody writes.

    attempt_given(Given("torch.sqrt", "function", "torch.sqrt", [{"args": [{"shape": [512]}]}]))
    # Trial("torch.sqrt", samples=[{"args": [{"shape": [4], "domain": "positive"}]}], ...)

Domains are learned by trying: the first one for which most calls have finite gradients.
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
_FLAGS = {False: (False, True), True: (True,)}
"""Whether each recorded `requires_grad` counts, in the order in which it is tried."""
MOST_SAMPLES = 4
"""Samples of one row."""
MOST_REASONS = 2
"""Calls of which it is said why none is a sample."""
MOST_ELEMENTS = 2_000
"""Elements of the largest tensor of a sample."""


@dataclass(frozen=True)
class Given:
    """A function, and calls of it as a recorder describes them."""

    name: str
    kind: str  # as of an Entry, or op
    expression: str  # Python text of what is called, or of the class of a module
    samples: list[Sample]
    more_shapes: bool = False  # also try other shapes
    keeps_sizes: bool = False  # somebody has chosen them
    keeps_flags: bool = False  # a floating tensor that did not require grad has no derivative
    remarks: list[str] = field(default_factory=list)
    writes: bool = False  # to an argument


def attempt_given(given: Given) -> Trial:
    """Try the calls, and return what was learned of the function."""
    trial = Trial(given.name, call=given.expression, remarks=list(given.remarks))
    try:
        function, samples = resolve(given.expression), given.samples
        if given.kind == "module":
            function, samples = _module_and_samples(given, trial)
        elif given.writes:
            function = OnCopies(function)
            trial.call = f"OnCopies({given.expression})"
        forms = _with_sizes if given.keeps_sizes else smaller
        fitting = list(_fitting(function, samples, forms, trial))
        calls = _best(function, fitting, trial, _FLAGS[given.keeps_flags])
        # a cell that compares zeros alone proves nothing
        if all(map(is_zero, calls)):
            raise NotUsableError("its result is zero")
    except NotUsableError as error:
        trial.reason = str(error)
        return trial
    if given.more_shapes and not calls[0].keywords:
        learn_shapes(trial, calls[0])
        others = trial.samples
        trial.samples = list(map(_sample, calls))
        trial.samples += [{"args": each} for each in others if {"args": each} not in trial.samples]
    else:
        trial.samples = list(map(_sample, calls))
        if len(calls) == 1:
            trial.samples *= 2  # two draws: the first may have gradients of zero
    learn_facts(trial, calls[0], Entry(given.name, given.kind, (), has_jvp=_has_jvp(given)))
    _learn_limits(trial, given, calls[0])
    return trial


def _learn_limits(trial: Trial, given: Given, call: Call) -> None:
    """Learn what no cell can ask of the function."""
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
    text = _arguments(constructor)
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
    if len(samples) < len(given.samples):
        left = len(given.samples) - len(samples)
        _remark(trial, f"kinds of calls left out, by keywords or of another constructor: {left}")
    if not samples:
        raise NotUsableError("a module is called with its inputs by position")
    return module, samples


def _arguments(constructor: Sample) -> str:
    """Return the arguments of a constructor as Python text."""
    plain = (bool, int, float, str, type(None))
    words = list(map(repr, constructor["args"]))
    values = [*constructor["args"], *constructor.get("kwargs", {}).values()]
    words += [f"{name}={each!r}" for name, each in constructor.get("kwargs", {}).items()]
    if not all(isinstance(each, plain) for each in values):
        raise NotUsableError(f"its constructor is called with more than numbers and texts: {words}")
    return ", ".join(words)


def _fitting(
    function: Function, samples: Sequence[Sample], forms: Forms, trial: Trial
) -> Iterator[Sample]:
    """Yield the samples in the first of their forms that a forward pass takes, each once."""
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
        # as text, since a mapping is no member of a set
        text = json.dumps(form)
        if text not in seen:
            seen.add(text)
            yield form


def _with_sizes(sample: Sample) -> Iterator[Sample]:
    """Yield a sample as it is, and then smaller forms of it."""
    yield dict(sample)
    yield from smaller(sample)


def _first_form(function: Function, sample: Sample, forms: Forms, trial: Trial) -> Sample | None:
    """Return the first form of a sample that a forward pass takes. None if it takes none."""
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
        why = ""
        if errors:
            why = f"; made smaller: {errors[0]}"
        _remark(trial, f"a call is no sample: a tensor has {elements(sample):,} elements{why}")
    return None


def _remark(trial: Trial, text: str) -> None:
    """Add a remark once."""
    if text not in trial.remarks:
        trial.remarks.append(text)


def _error_of_all_domains(function: Function, sample: Sample) -> str:
    """Return the first error of a forward pass, empty if it works for some domain."""
    first = ""
    for domain in DOMAINS:
        error = error_of(run_forward, _call(function, sample, domain, flags=True))
        if error is None:
            return ""
        first = first or error
    return first


def _best(
    function: Function, samples: Sequence[Sample], trial: Trial, flags: Sequence[bool]
) -> list[Call]:
    """Return the calls of the domain for which most work.

    First each floating tensor requires grad, then those that did in the recorded calls. Without a
    backward pass, a forward pass is enough.
    """
    if not samples:
        raise NotUsableError("; ".join(trial.remarks[-MOST_REASONS:]) or "there is no call of it")
    first = ""
    for require in (require_finite, run_forward):
        best, error = _most(require, function, samples, flags)
        first = first or error
        if best:
            if first:
                _remark(trial, f"with domain any, and gradients of all inputs: {first}")
            return best
    raise NotUsableError(first)


def _most(
    require: Callable[[Call], None],
    function: Function,
    samples: Sequence[Sample],
    flags: Sequence[bool],
) -> tuple[list[Call], str]:
    """Return the most calls of one domain that work, and the first error of any."""
    best: list[Call] = []
    first = ""
    for kept, domain in itertools.product(flags, DOMAINS):
        calls = [_call(function, sample, domain, flags=kept) for sample in samples]
        errors = [error_of(require, call) for call in calls]
        first = first or next(filter(None, errors), "")
        working = [call for call, error in zip(calls, errors, strict=True) if error is None]
        # of equals the earlier domain stays, which is the more general one
        best = max(best, working, key=len)
        if len(best) == len(samples):
            break
    return best, first


def _call(function: Function, sample: Sample, domain: str, *, flags: bool) -> Call:
    """Return the call of a sample. ``flags``: the recorded `requires_grad` counts."""
    keywords = sample.get("kwargs", {})
    described = [*sample["args"], *keywords.values()]
    arguments = _language(described, domain, flags)
    return Call(function, arguments, tuple(keywords), makes_tensors=not has_tensor(sample))


def _sample(call: Call) -> Sample:
    """Return the sample of a call, as a matrix has it."""
    cut = len(call.described) - len(call.keywords)
    sample: Sample = {"args": call.described[:cut]}
    if call.keywords:
        sample["kwargs"] = dict(zip(call.keywords, call.described[cut:], strict=True))
    return sample


def _language(value: Any, domain: str, flags: bool) -> Any:
    """Return a recorded description as a sample has it."""
    if isinstance(value, list):
        return [_language(each, domain, flags) for each in value]
    if not isinstance(value, dict):
        return value
    if "shape" in value:
        return _tensor(value, domain, flags)
    return {key: _language(each, domain, flags) for key, each in value.items()}


def _tensor(recorded: Sample, domain: str, flags: bool) -> Sample:
    """Return a tensor as a sample has it: a floating one has the dtype of the case."""
    tensor = dict(recorded)
    requires_grad = tensor.pop("requires_grad", True)
    if "float" not in tensor.get("dtype", "float"):
        return tensor
    tensor.pop("dtype", None)
    shape = tensor["shape"]
    is_square = len(shape) > 1 and shape[-1] == shape[-2]
    needs_square = domain in ("spd", "symmetric")
    # other tensors of the call have the domain all the same
    if domain != "any" and (is_square or not needs_square):
        tensor["domain"] = domain
    if flags and not requires_grad:
        tensor["requires_grad"] = False
    return tensor
