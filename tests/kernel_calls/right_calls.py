"""Record a few right calls of each overload of torch's dispatcher, as the rows of a matrix make
them.

    Recording().of_row(op)      the calls of a row's samples, of their backward passes and forms

A call is kept as a description (:mod:`gen.checks.kernels.call_descriptions`). It is right if the
overload takes the arguments that the description makes. An overload that no row reaches gets the
arguments of a relative, which are tried in a process that may die.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from gen.checks.kernels.call_descriptions import Arguments, Undescribed, describe, is_tensor
from gen.checks.kernels.dying_calls import outcomes_of
from gen.checks.kernels.kernel_calls import Kernel, KernelCall
from gen.checks.overloads.overload_forms import FormsOfCall
from gen.checks.overloads.plain_calls import plain_calls
from gen.checks.overloads.recorded_calls import OverloadCall, calls_of
from gen.samples.samples import Sample
from gen.samples.seeds import seeded
from gen.torch_private.aten_overloads import (
    Overload,
    every_overload,
    full_name,
    has_kernel,
    outputs_of,
    overload_by_name,
)
from gen.torch_private.loaded_with_torch import OpOverload, TorchDispatchMode, pytree
from tests.kernel_calls.guessed_calls import guesses

__all__ = ["Calls", "Recording", "accepted", "with_guesses"]

Calls = dict[str, dict[str, list[list[Arguments]]]]
"""Calls by the name of the overload, then by their structure: each with drawn numbers, and with its
own."""

_BY_HAND = Path(__file__).with_name("calls_by_hand.yaml")
_TRIES = 6  # calls of a structure that are remembered, of which the first right one is kept


@dataclass
class Recording:
    """Calls by the name of the overload, then by their structure."""

    calls: Calls = field(default_factory=dict)

    def of_sample(self, sample: Sample) -> None:
        """Record what the op of a sample calls, with its backward pass and its other forms."""
        recorder = _Recorder(self)
        with seeded(sample.seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _passing(), recorder:
                sample.raw(sample.op.call, [x.clone() for x in sample.inputs])
                if any(sample.differentiable):
                    sample.run_backward()
            with _passing():
                self._note_forms(sample)

    def _note_forms(self, sample: Sample) -> None:
        """Record the forms of the calls that are the op's own: with buffers, in place, on lists."""
        for call in calls_of(sample):
            for plain in plain_calls(call):
                with _passing():
                    self._note_form(plain.call, plain.expected)

    def _note_form(self, call: OverloadCall, expected: OverloadCall) -> None:
        with torch.no_grad():
            results = expected.run()
            for form in FormsOfCall(call, expected.run, results):
                overload = overload_by_name(form.name)
                with _passing():
                    form.run(self._noting(overload))

    def _noting(self, overload: Overload) -> Callable[..., object]:
        """Return the overload, with a note of each call."""

        def run(*args: object, **kwargs: object) -> object:
            return self.noting(overload, args, kwargs, lambda: overload(*args, **kwargs))

        return run

    def noting(
        self,
        overload: Overload,
        args: Iterable[object],
        kwargs: Mapping[str, object],
        run: Callable[[], object],
    ) -> object:
        """Run the call of an overload, and note it if it raises nothing.

        It is described before it runs, since it may write.
        """
        pair = _described(overload, args, kwargs)
        result = run()
        if pair is not None:
            self.merge({full_name(overload): {_structure(pair[0]): [pair]}})
        return result

    def merge(self, other: Calls) -> None:
        """Add what another process has recorded."""
        for name, structures in other.items():
            mine = self.calls.setdefault(name, {})
            for structure, pairs in structures.items():
                same = mine.setdefault(structure, [])
                same += [pair for pair in pairs if pair not in same]
                same.sort(key=_size)
                del same[_TRIES:]


def _described(
    overload: Overload, args: Iterable[object], kwargs: Mapping[str, object]
) -> list[Arguments] | None:
    """Return the arguments of a call with drawn numbers, and with its own. None if they have no
    description, or if the overload has no kernel here.
    """
    if not has_kernel(full_name(overload)):
        return None
    positional = [one.name for one in overload._schema.arguments if not one.kwarg_only]
    values = {**dict(zip(positional, args, strict=False)), **kwargs}
    try:
        return [
            {key: describe(value, exact=exact) for key, value in values.items()}
            for exact in (False, True)
        ]
    except (Undescribed, RuntimeError, NotImplementedError):
        return None


def _structure(arguments: Arguments) -> str:
    """Return the ranks and layouts of tensors, and which other arguments are None."""
    parts = []
    for name, value in arguments.items():
        if value is None:
            continue
        parts.append(f"{name}{_structure_of(value)}")
    return " ".join(parts)


def _structure_of(value: Any) -> str:
    if is_tensor(value):
        return f"{len(value['shape'])}{value.get('layout', '')}{_kind(value['dtype'])}"
    if isinstance(value, list) and value and is_tensor(value[0]):
        return f"[{_structure_of(value[0])}]"
    return type(value).__name__


def _kind(dtype: str) -> str:
    """Return the first letter of a dtype: f, i, b, c, u."""
    return dtype[0]


def _size(pair: list[Arguments]) -> tuple[bool, bool, int]:
    """Return what sorts calls: one with elements, in single precision, of a short text first."""
    text = json.dumps(pair[0])
    return (
        '"shape": [0' in text or ", 0]" in text,
        "float32" not in text,
        len(text) + _elements(pair[0]),
    )


def _elements(arguments: Arguments) -> int:
    """Return the number of elements of all tensors, but a prime part for sizes of one."""
    total = 0
    for value in pytree.tree_leaves(list(arguments.values()), is_leaf=is_tensor):
        if is_tensor(value):
            shape = value["shape"]
            count = 1
            for size in shape:
                count *= size
            # a size of one hides what a kernel does with sizes
            total += count + 100 * shape.count(1)
    return total


class _passing:
    """Let pass what the forms of a call may raise."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        return kind is not None and issubclass(kind, Exception)


class _Recorder(TorchDispatchMode):
    """Note each call of the dispatcher that is not composed of others."""

    supports_higher_order_operators = True

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Note the call of an overload of ATen before it runs."""
        kwargs = kwargs or {}
        if isinstance(func, OpOverload) and func.namespace == "aten":
            return self._recording.noting(func, args, kwargs, lambda: func(*args, **kwargs))
        return func(*args, **kwargs)


def accepted(recording: Recording) -> dict[str, list[Arguments]]:
    """Return calls that their overloads take: for each overload one of each structure."""
    right: dict[str, dict[str, Arguments]] = {}
    left = {
        (name, structure): list(_in_order(pairs))
        for name, structures in sorted(recording.calls.items())
        for structure, pairs in structures.items()
    }
    while left:
        taken = _taken([(name, tries[0]) for (name, _), tries in left.items()], is_guess=False)
        for (key, tries), is_right in zip(list(left.items()), taken, strict=True):
            if is_right:
                right.setdefault(key[0], {})[key[1]] = tries[0]
            if is_right or len(tries) == 1:
                del left[key]
            else:
                tries.pop(0)
    return {name: _some(name, list(calls.values())) for name, calls in right.items()}


def with_guesses(right: Mapping[str, list[Arguments]]) -> dict[str, list[Arguments]]:
    """Return right calls with guesses for the overloads that have none."""
    found = dict(right)
    by_hand = _by_hand()
    for name in every_overload():
        if name in right or not has_kernel(name):
            continue
        if name in by_hand:
            found[name] = by_hand[name]
            continue
        tried = list(guesses(name, right))
        taken = _taken([(name, arguments) for arguments in tried], is_guess=True)
        good = [arguments for arguments, is_right in zip(tried, taken, strict=True) if is_right]
        if good:
            found[name] = [max(good[:10], key=_elements)]
    return found


def _by_hand() -> dict[str, list[Arguments]]:
    """Return the calls that a person has written, by the name of the overload."""
    written: dict[str, Arguments] = yaml.safe_load(_BY_HAND.read_text())
    return {f"aten::{name}": [call] for name, call in written.items() if name.strip("_")}


def _in_order(pairs: list[list[Arguments]]) -> Iterator[Arguments]:
    """Yield the calls to try: those with drawn numbers first, whose descriptions are short."""
    for exact in (0, 1):
        yield from (pair[exact] for pair in pairs)


def _taken(calls: list[tuple[str, Arguments]], *, is_guess: bool) -> list[bool]:
    """Return whether each call is taken, of which the process may die. A guess has no fault."""
    kernels = {name: Kernel.of_overload(overload_by_name(name)) for name, _ in calls}

    def run(number: int) -> bytes:
        """Make a call. What has no answer is not taken."""
        name, arguments = calls[number]
        try:
            call = KernelCall(kernels[name], arguments)
            is_right = call.is_taken() and not (is_guess and call.fault())
            return b"taken" if is_right else b""
        except Exception:  # the description cannot be built
            return b""

    return [outcome == b"taken" for outcome in outcomes_of(len(calls), run)]


def _some(name: str, calls: list[Arguments]) -> list[Arguments]:
    """Return the calls that differ most: with the most arguments, with the fewest, and one of
    another layout, for which there is another kernel.

    An overload with buffers for its results has the kernel of another one, and gets one call.
    """
    ordered = sorted(calls, key=lambda one: len(_structure(one)), reverse=True)
    strided = [one for one in ordered if "layout" not in json.dumps(one)]
    others = [one for one in ordered if one not in strided]
    found = [*strided[:1], *strided[1:][-1:], *others[-1:]]
    return found[:1] if outputs_of(overload_by_name(name)) else found
