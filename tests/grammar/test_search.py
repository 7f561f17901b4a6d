"""Faults of a compiler, planted one by one: the search shows each by a small program."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gen.grammar import LEVELS, Finding, Level, Search, load_grammar

GRAMMAR = load_grammar()
Function = Callable[..., Any]


def mapped(change: Callable[[torch.Tensor], Any], results: Any) -> Any:
    """Return nested results with each tensor changed."""
    if isinstance(results, torch.Tensor):
        return change(results)
    if isinstance(results, dict):
        return {key: mapped(change, value) for key, value in results.items()}
    if not isinstance(results, (list, tuple)):
        return results
    return type(results)(mapped(change, value) for value in results)


def on_results(change: Callable[[torch.Tensor], Any]) -> Callable[[Function], Function]:
    """Return a compiler that changes each tensor of the results."""
    return lambda f: lambda *args: mapped(change, f(*args))


def on_copies(f: Function) -> Function:
    """Run on copies of the arguments, so that their writes are lost."""
    return lambda *args: f(*[x.clone() for x in args])


def with_first_results(f: Function) -> Function:
    """Give the results of the first call in all calls, as if nothing were compared."""
    kept: list[Any] = []

    def call(*args: torch.Tensor) -> Any:
        results = f(*args)
        kept.append(results)
        return kept[0]

    return call


def with_first_precision(f: Function) -> Function:
    """Give results in the precision of the first call."""
    kept: list[torch.dtype] = []

    def call(*args: torch.Tensor) -> Any:
        results = f(*args)

        def as_first(x: torch.Tensor) -> torch.Tensor:
            kept.append(x.dtype)
            return x.to(kept[0]) if x.is_floating_point() and kept[0].is_floating_point else x

        return mapped(as_first, results)

    return call


def without_shared_memory(f: Function) -> Function:
    """Run on arguments that share no memory any more, and write back what each of them has."""

    def call(*args: torch.Tensor) -> Any:
        apart = [x.clone() for x in args]
        results = f(*apart)
        for x, new in zip(args, apart, strict=True):
            counts = not (x.is_inference() or new.is_inference() or x.requires_grad)
            if counts and new._version and new.shape == x.shape:
                x.copy_(new)
        return results

    return call


def with_silent_versions(f: Function) -> Function:
    """Write to arguments so that their versions do not tell."""

    def call(*args: torch.Tensor) -> Any:
        counting = tuple(x for x in args if not x.is_inference())
        with torch.autograd._unsafe_preserve_version_counter(counting):  # type: ignore[attr-defined]
            return f(*args)

    return call


def in_grad_mode(f: Function) -> Function:
    """Record also where the caller does not."""

    def call(*args: torch.Tensor) -> Any:
        with torch.enable_grad():
            return f(*args)

    return call


def without_grad_mode(f: Function) -> Function:
    """Record nothing."""

    def call(*args: torch.Tensor) -> Any:
        with torch.no_grad():
            return f(*args)

    return call


FAULTS: dict[str, tuple[Callable[[Function], Function], str]] = {
    "a copy in place of an alias": (on_results(torch.clone), "memory of result"),
    "no gradient": (
        on_results(torch.detach),
        "gradient of leaf|requires_grad of result|memory of result",
    ),
    "strides of another layout": (
        on_results(lambda x: x.contiguous() if x.dim() > 1 else x),
        "geometry of result|memory of result",
    ),
    "writes that are lost": (on_copies, "argument afterwards|memory of result|result"),
    "results of the first call": (with_first_results, "result|geometry|memory"),
    "precision of the first call": (with_first_precision, "dtype|memory of result"),
    "memory that is not shared": (without_shared_memory, "argument|memory of result|result"),
    "versions that stay": (with_silent_versions, "written to"),
    "records under no_grad": (in_grad_mode, "requires_grad of result"),
    "records nothing": (without_grad_mode, "gradient of leaf|requires_grad of result"),
    "a value that is off": (on_results(lambda x: x * (1 + 1e-6)), "result|memory of result"),
    "a conjugate that is dropped": (
        on_results(lambda x: x.conj() if x.is_complex() else x),
        "result",
    ),
    "an error of its own": (
        on_results(lambda x: x if x.dim() < 3 else x[x.dim() * (0,) + (0,)]),
        "IndexError",
    ),
}


def first_finding(compiler: Callable[[Function], Function]) -> Finding:
    """Return what a search finds first."""
    eager = LEVELS["eager"]()
    level = Level("planted", compiler, eager.gradients)
    search = Search(GRAMMAR, [level], seed=11)
    for number in range(80):
        found = search.try_number(number)
        if found:
            return found[0]
    raise AssertionError("80 programs show nothing")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_shown_by_a_small_program(fault: str) -> None:
    compiler, part = FAULTS[fault]
    finding = first_finding(compiler)
    assert re.search(part, finding.difference.part)
    assert len(finding.program.statements) <= 3
    assert len(finding.program.calls) <= 2


def test_without_a_fault_nothing_is_found() -> None:
    level = Level("planted", lambda f: f, LEVELS["eager"]().gradients)
    search = Search(GRAMMAR, [level], seed=11)
    assert [search.try_number(number) for number in range(40)] == [[]] * 40
    assert search.refused < 20


def test_a_cause_is_kept_once() -> None:
    level = Level("planted", on_results(torch.detach), LEVELS["eager"]().gradients)
    search = Search(GRAMMAR, [level], seed=11)
    found = [one for number in range(40) for one in search.try_number(number)]
    assert len(found) < 10
    assert search.repeated > len(found)
