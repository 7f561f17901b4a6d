"""Find which of the runtime's rules run, and which kinds of fault would change their results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch

from gen.targets.faults import KINDS, REFUSED, Call, change, differs, inexact, leaves, moves
from gen.targets.runtime_hooks import hooked
from gen.targets.runtime_rules import rules
from gen.torch_private.loaded_with_torch import without_modes
from runtime import func as transforms
from runtime.errors import BatchingError, MissingRule
from runtime.func.batch import BatchedValue
from runtime.func.dual_level import DualValue
from runtime.seam.levels import Value
from runtime.tape.values import GradValue

SURVEYED = 3  # executions of a rule that a watch inspects between two calls of `taken`
_MOST_TRIES = 10  # executions of a rule that are asked for a derivative by saved values


class Watched:
    """Note the rules that run, see :class:`gen.targets.faults.Watch`.

    Kinds are tried on the plain tensors behind the values of an execution.
    """

    def __init__(self, kinds: bool = True) -> None:
        self._surveyed = 0
        if kinds:
            self._surveyed = SURVEYED
        self._parts = {rule.name: rule.part for rule in rules()}
        # since the last call of `taken`, by rule: the kinds that would show, and the executions
        self._ran: dict[str, set[str]] = {}
        self._looked: Counter[str] = Counter()
        # since the start: the rules with a derivative by saved values, and the tries to find one
        self._depends: dict[str, bool] = {}
        self._tries: Counter[str] = Counter()
        self._busy = False  # a kind is being tried

    def taken(self) -> dict[str, frozenset[str]]:
        """Return the rules that ran since the last call, with the kinds that would show."""
        kinds_by_rule = {name: frozenset(kinds) for name, kinds in self._ran.items()}
        self._ran.clear()
        self._looked.clear()
        return kinds_by_rule

    def hook(self, name: str, call: Call) -> Any:
        """Run a rule, note it, and try kinds of fault on the first executions of it."""
        # A trial runs rules itself, and these are no part of the cell.
        if self._busy:
            return call.result()
        kinds = self._ran.setdefault(name, set())
        try:
            result = call.result()
        except (MissingRule, BatchingError):
            kinds.add(REFUSED)
            raise
        self._looked[name] += 1
        if self._looked[name] <= self._surveyed:
            self._busy = True
            try:
                # The trials must neither be traced nor change what the cell draws.
                with without_modes(), torch.random.fork_rng(devices=()):
                    kinds.update(self._kinds_that_show(name, call, result, kinds))
            finally:
                self._busy = False
        return result

    def _kinds_that_show(
        self, name: str, call: Call, result: object, shown_before: set[str]
    ) -> Iterator[str]:
        """Yield the kinds of fault that would change the result of an execution."""
        truth = _plain(result)
        if not _is_plain(truth):
            return
        batched = any(map(_is_batched, call.inputs))
        plain = replace(call, inputs=tuple(map(_plain, call.inputs)), others={})
        looked_into = not batched and all(map(_is_plain, plain.inputs))
        for kind in KINDS[self._parts[name]]:
            if kind in shown_before or kind in call.inert:
                continue
            if batched and not moves(kind, _part_of_rule(call, result)):
                continue
            if kind == "detached":
                # a batched value hides the history of what it holds
                shows = not batched and self._shows_detached(name, call, plain)
            elif kind in call.others:
                shows = _shows_by_target(call.others[kind], truth)
            elif looked_into or kind not in ("saved", "edge"):
                shows = _shows_by_change(plain, kind, truth)
            else:
                shows = False
            if shows:
                yield kind

    def _shows_detached(self, name: str, call: Call, plain: Call) -> bool:
        return self._depends_on_saved(name, plain) and any(map(_is_tracked, call.saved()))

    def _depends_on_saved(self, name: str, call: Call) -> bool:
        """Return whether the rule's result has a derivative by its saved values.

        If not, treating these as constants is no fault.
        """
        # Only a derivative is final. Without one here, other values may have one.
        if name not in self._depends and self._tries[name] < _MOST_TRIES:
            self._tries[name] += 1
            with suppress(Exception):
                if _derivative(call):
                    self._depends[name] = True
        return self._depends.get(name, False)


def _part_of_rule(call: Call, result: Any) -> object:
    """Return what belongs to the rule in a result that may have several parts."""
    if call.place is None:
        return result
    return result[call.place]


def _shows_by_target(altered: Callable[[], object], truth: object) -> bool:
    """Return whether a kind that only the target can apply changes the result."""
    try:
        return differs(_plain(altered()), truth)
    except Exception:
        return True  # it would raise in a cell too, which shows


def _shows_by_change(plain: Call, kind: str, truth: object) -> bool:
    """Return whether a kind changes the result. It does not if it cannot be applied here."""
    try:
        return differs(change(plain, kind, truth), truth)
    except Exception:
        return False


def _derivative(call: Call) -> bool:
    """Return whether the result has a derivative by saved values that is not 0."""
    saved = [place for place, role in enumerate(call.roles) if role == "saved"]
    places = [place for place in saved if _differentiable(call.inputs[place])]

    def of_saved(*saved: object) -> tuple[Any, ...]:
        inputs = list(call.inputs)
        for place, value in zip(places, saved, strict=True):
            inputs[place] = value
        result = call.run(*inputs)
        return tuple(filter(inexact, leaves(_part_of_rule(call, result))))

    if not places:
        return False
    outputs, pullback = transforms.vjp(of_saved, *[call.inputs[place] for place in places])
    gradients = pullback(tuple(map(torch.randn_like, outputs)))
    for gradient in gradients:
        parts = gradient if isinstance(gradient, list) else [gradient]
        if any(bool((part != 0).any()) for part in parts):
            return True
    return False


def _differentiable(value: object) -> bool:
    """Return whether all leaves are floating or complex, as a transform requires of an input."""
    parts = leaves(value)
    return bool(parts) and all(map(inexact, parts))


def _is_tracked(value: object) -> bool:
    """Return whether a value has a history or a tangent that :func:`constant` would take away."""
    while isinstance(value, Value):
        if isinstance(value, GradValue) and value.requires_grad:
            return True
        if isinstance(value, DualValue) and value._tangent is not None:
            return True
        value = value._inner
    return False


def _plain(value: Any) -> Any:
    """Return the plain tensors behind values, in tuples and lists too."""
    if type(value) is list:
        return list(map(_plain, value))
    if isinstance(value, (tuple, list)):
        return tuple(map(_plain, value))
    while isinstance(value, Value):
        value = value._inner
    return value


def _is_plain(value: object) -> bool:
    """Return whether all tensors are plain. A symbolic trace, for example, has tensors without
    values.
    """
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return not isinstance(value, torch.Tensor) or type(value) is torch.Tensor


def _is_batched(value: object) -> bool:
    """Return whether a value has a batch at any of its levels."""
    if isinstance(value, (tuple, list)):
        return any(map(_is_batched, value))
    while isinstance(value, Value):
        if isinstance(value, BatchedValue):
            return True
        value = value._inner
    return False


@contextmanager
def watched(kinds: bool = True) -> Iterator[Watched]:
    """Note the rules that run inside, see :meth:`gen.targets.faults.Auditable.watched`."""
    watch = Watched(kinds)
    with hooked(watch.hook):
        yield watch
