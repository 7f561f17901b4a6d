"""Learn what a function can do from calls of it: recorded ones, or those that somebody writes.

    attempt_given(Given("torch.sqrt", "function", "torch.sqrt", [{"args": [{"shape": [512]}]}]))
    # Trial("torch.sqrt", samples=[{"args": [{"shape": [4], "domain": "positive"}]}], ...)

Domains are learned by trying: the first one for which most calls have finite gradients.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gen.packages.package_scan import Entry
from gen.packages.sampled_calls import Call, ModuleCall, NotUsableError
from gen.packages.sizes import elements, smaller
from gen.packages.trials import (
    Trial,
    error_of,
    learn_facts,
    learn_shapes,
    require_finite,
    resolve,
    run_forward,
)

__all__ = ["DOMAINS", "Given", "attempt_given"]

DOMAINS = ("any", "positive", "unit", "nonzero", "spd", "symmetric", "distinct")
MOST_SAMPLES = 4
"""Samples of one row."""
MOST_ELEMENTS = 2_000
"""Elements of the largest tensor of a sample."""


@dataclass(frozen=True)
class Given:
    """A function, and calls of it as a recorder describes them."""

    name: str
    kind: str  # as of an Entry, or op
    expression: str  # Python text of what is called, or of the class of a module
    samples: list[dict[str, Any]]
    more_shapes: bool = False  # also try other shapes
    remarks: list[str] = field(default_factory=list)


def attempt_given(given: Given) -> Trial:
    """Try the calls, and return what was learned of the function."""
    trial = Trial(given.name, call=given.expression, remarks=list(given.remarks))
    try:
        function, samples = _function(given, trial)
        fitting = list(_fitting(function, samples, trial))
        calls = _best(function, fitting, trial)
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
    learn_facts(trial, calls[0], Entry(given.name, given.kind, (), has_jvp=_has_jvp(given)))
    if given.kind == "op" and "backward" in given.name:
        trial.differentiable = False
        trial.remarks.append("no derivative is tested: its arguments are results of another op")
    return trial


def _has_jvp(given: Given) -> bool:
    """Return whether a Function has a formula for forward mode. True for anything else."""
    if given.kind not in ("function_class", "old_style"):
        return True
    import torch

    function = resolve(given.expression.removesuffix(".apply"))
    return function.jvp is not torch.autograd.Function.jvp


def _function(given: Given, trial: Trial) -> tuple[Any, list[dict[str, Any]]]:
    """Return what is called, and its samples. A module is called with its parameters too."""
    value = resolve(given.expression)
    if given.kind != "module":
        return value, given.samples
    constructor = given.samples[0].get("constructor") or {"args": []}
    text = _arguments(constructor)
    try:
        module = ModuleCall(lambda: value(*constructor["args"], **constructor.get("kwargs", {})))
    except Exception as error:
        raise NotUsableError(f"its constructor with ({text}) raises {error}") from None
    trial.call = f"ModuleCall(lambda: {given.expression}({text}))"
    parameters = [{"shape": shape} for shape in module.shapes]
    samples = [
        {"args": [*each["args"], *parameters]}
        for each in given.samples
        if each.get("constructor", constructor) == constructor and not each.get("kwargs")
    ]
    if len(samples) < len(given.samples):
        left = len(given.samples) - len(samples)
        trial.remarks.append(f"{left} calls by keywords, or of another {given.name}, are left out")
    if not samples:
        raise NotUsableError("a module is called with its inputs by position")
    return module, samples


def _arguments(constructor: Mapping[str, Any]) -> str:
    """Return the arguments of a constructor as Python text."""
    plain = (bool, int, float, str, type(None))
    words = [repr(each) for each in constructor["args"]]
    values = [*constructor["args"], *constructor.get("kwargs", {}).values()]
    words += [f"{name}={each!r}" for name, each in constructor.get("kwargs", {}).items()]
    if not all(isinstance(each, plain) for each in values):
        raise NotUsableError(f"its constructor is called with more than numbers and texts: {words}")
    return ", ".join(words)


def _fitting(
    function: Any, samples: Sequence[Mapping[str, Any]], trial: Trial
) -> Iterator[dict[str, Any]]:
    """Yield the samples in the smallest form that a forward pass takes, each once."""
    seen: set[str] = set()
    for sample in samples:
        if len(seen) == MOST_SAMPLES:
            _remark(trial, f"of {len(samples)} kinds of calls, {MOST_SAMPLES} are samples")
            return
        form = _smallest(function, sample, trial)
        if form is None:
            continue
        if form != dict(sample):
            _remark(trial, "sizes are smaller than those of the calls")
        text = json.dumps(form)
        if text not in seen:
            seen.add(text)
            yield form


def _smallest(function: Any, sample: Mapping[str, Any], trial: Trial) -> dict[str, Any] | None:
    """Return the smallest form of a sample that a forward pass takes. None if it takes none."""
    errors = []
    for form in smaller(sample):
        if elements(form) > MOST_ELEMENTS:
            continue
        error = _error_of_all_domains(function, form)
        if not error:
            return form
        errors.append(error)
    if elements(sample) <= MOST_ELEMENTS:
        _remark(trial, f"a call is no sample: {errors[-1]}")
    else:
        why = "; ".join(["", *errors[:1]]).replace("; ", "; made smaller: ")
        _remark(trial, f"a call is no sample: a tensor has {elements(sample):,} elements{why}")
    return None


def _remark(trial: Trial, text: str) -> None:
    """Add a remark once."""
    if text not in trial.remarks:
        trial.remarks.append(text)


def _error_of_all_domains(function: Any, sample: Mapping[str, Any]) -> str:
    """Return the first error of a forward pass, empty if it works for some domain."""
    first = ""
    for domain in DOMAINS:
        error = error_of(run_forward, _call(function, sample, domain, flags=True))
        if error is None:
            return ""
        first = first or error
    return first


def _best(function: Any, samples: Sequence[Mapping[str, Any]], trial: Trial) -> list[Call]:
    """Return the calls of the domain for which most work."""
    if not samples:
        raise NotUsableError("; ".join(trial.remarks) or "there is no call of it")
    best: tuple[int, list[Call]] = (0, [])
    first = ""
    for require, (flags, domain) in itertools.product(
        (require_finite, run_forward), itertools.product((False, True), DOMAINS)
    ):
        calls = [_call(function, sample, domain, flags=flags) for sample in samples]
        errors = [error_of(require, call) for call in calls]
        first = first or next((error for error in errors if error), "")
        working = [call for call, error in zip(calls, errors, strict=True) if error is None]
        if len(working) > best[0]:
            best = len(working), working
        if len(working) == len(calls) or (require is run_forward and best[0]):
            break
    if not best[0]:
        raise NotUsableError(first)
    if first:
        _remark(trial, f"with domain any, and gradients of all inputs: {first}")
    return best[1]


def _call(function: Any, sample: Mapping[str, Any], domain: str, *, flags: bool) -> Call:
    """Return the call of a sample. ``flags``: the recorded `requires_grad` counts."""
    keywords = sample.get("kwargs", {})
    described = [*sample["args"], *keywords.values()]
    return Call(function, _language(described, domain, flags), tuple(keywords))


def _sample(call: Call) -> dict[str, Any]:
    """Return the sample of a call, as a matrix has it."""
    cut = len(call.described) - len(call.keywords)
    sample: dict[str, Any] = {"args": call.described[:cut]}
    if call.keywords:
        sample["kwargs"] = dict(zip(call.keywords, call.described[cut:], strict=True))
    return sample


def _language(value: Any, domain: str, flags: bool) -> Any:
    """Return a recorded description as a sample has it: numbers of the case's dtype."""
    if isinstance(value, list):
        return [_language(each, domain, flags) for each in value]
    if not isinstance(value, dict):
        return value
    if "shape" not in value:
        return {key: _language(each, domain, flags) for key, each in value.items()}
    tensor = dict(value)
    requires_grad = tensor.pop("requires_grad", True)
    if "float" not in tensor.get("dtype", "float"):
        return tensor
    tensor.pop("dtype", None)  # that of the case
    if domain != "any" and not (domain in ("spd", "symmetric") and not _is_square(tensor)):
        tensor["domain"] = domain
    if flags and not requires_grad:
        tensor["requires_grad"] = False
    return tensor


def _is_square(tensor: Mapping[str, Any]) -> bool:
    shape = tensor["shape"]
    return len(shape) > 1 and shape[-1] == shape[-2]
