"""Programs that differ in anything a cut depends on are two entries; those that differ in
nothing of it are one."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import runtime
from runtime import aot
from runtime.aot import Cache

CUT: Any = aot.min_cut_rematerialization_partition
Program = tuple[Any, tuple[Any, ...]]


def leaf(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return runtime.wrap(torch.ones(*sizes, dtype=dtype), requires_grad=True)


def entries(folder: Path, *programs: Program, cut: Any = CUT, **options: Any) -> tuple[int, int]:
    """How many entries the programs have, and how many were found."""
    cache = Cache(folder)
    for f, args in programs:
        aot.aot_function(f, aot.nop, partition_fn=cut, cache=cache, **options)(*args)
    assert not cache.info().bypasses
    return cache.info().entries, cache.info().hits


X = (leaf(4, 4),)
XY = (leaf(4, 4), leaf(4, 4))
CONSTANT, WIDE = torch.ones(4, 4), torch.ones(1, 4)


def mapped(n: int) -> Any:
    return lambda x: aot.map(lambda e: e.sin() * n, x)


DIFFERENT: dict[str, tuple[Program, Program]] = {
    "an op": ((lambda x: x.sin(), X), (lambda x: x.cos(), X)),
    "an overload": ((lambda x: x.pow(2), X), (lambda x: torch.pow(2, x), X)),
    "a number": ((lambda x: x * 2.5, X), (lambda x: x * 3.5, X)),
    "the type of a number": ((lambda x: x * 2, X), (lambda x: x * 2.0, X)),
    "a flag": ((lambda x: x.sum(0, True), X), (lambda x: x.sum(0, False), X)),
    "a dimension": ((lambda x: x.softmax(0), X), (lambda x: x.softmax(1), X)),
    "a keyword": ((lambda x: x.sum(0, dtype=torch.float64), X), (lambda x: x.sum(0), X)),
    "a list of sizes": ((lambda x: x.view(2, 8).sin(), X), (lambda x: x.view(8, 2).sin(), X)),
    "the order of arguments": (
        (lambda x, y: x.sin() - y.exp(), XY),
        (lambda x, y: y.sin() - x.exp(), XY),
    ),
    "the order of results": ((lambda x: (x.sin(), x.exp()), X), (lambda x: (x.exp(), x.sin()), X)),
    "an argument that is used twice": (
        (lambda x, y: x.sin() * x * y, XY),
        (lambda x, y: x.sin() * y * y, XY),
    ),
    "a list of tensors": (
        (lambda x, y: torch.cat([x, y, y]).sin(), XY),
        (lambda x, y: torch.cat([x, x, y]).sin(), XY),
    ),
    "sizes": ((torch.sin, (leaf(4, 4),)), (torch.sin, (leaf(4, 5),))),
    "the number of dimensions": ((torch.sin, (leaf(4, 1),)), (torch.sin, (leaf(4),))),
    "a dtype": ((torch.sin, (leaf(4),)), (torch.sin, (leaf(4, dtype=torch.float64),))),
    "strides": (
        (torch.sin, (leaf(4, 5),)),
        (torch.sin, (leaf(5, 4).detach().t().requires_grad_(),)),
    ),
    "what is differentiated": (
        (lambda x, y: x.sin() * y.exp(), XY),
        (lambda x, y: x.sin() * y.exp(), (leaf(4, 4), torch.ones(4, 4))),
    ),
    "sizes of a constant": (
        (lambda x: x.sin() * torch.ones(4, 4).exp(), X),
        (lambda x: x.sin() * torch.ones(1, 4).exp(), X),
    ),
    "sizes of a closed-over tensor": (
        (lambda x: x.sin() * CONSTANT, X),
        (lambda x: x.sin() * WIDE, X),
    ),
    "the function of a map": ((mapped(2), X), (mapped(3), X)),
    "a lazy conjugate": (
        (lambda x, y: x.sin() * y, (leaf(4), torch.ones(4, dtype=torch.complex64))),
        (lambda x, y: x.sin() * y, (leaf(4), torch.ones(4, dtype=torch.complex64).conj())),
    ),
    "the item of a call": (
        (lambda x: x.max(0)[0].sin() * x.min(0)[0], X),
        (lambda x: x.min(0)[0].sin() * x.max(0)[0], X),
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_programs_that_differ_in_one_thing_are_two_entries(what: str, tmp_path: Path) -> None:
    assert entries(tmp_path, *DIFFERENT[what]) == (2, 0)
    assert entries(tmp_path, *DIFFERENT[what]) == (2, 2)


def written_otherwise(first: Any) -> Any:
    once = first.sin()
    twice = once * 2.0
    return twice + torch.full((4, 4), 5.0)


ZEROS = torch.zeros(4, 4)
SAME: dict[str, tuple[Program, Program]] = {
    "names and lines": (
        (lambda x: x.sin() * 2.0 + torch.full((4, 4), 5.0), X),
        (written_otherwise, X),
    ),
    "the elements of an argument": (
        (torch.sin, X),
        (torch.sin, (runtime.wrap(torch.zeros(4, 4), requires_grad=True),)),
    ),
    "the elements of a closed-over tensor": (
        (lambda x: x.sin() * CONSTANT, X),
        (lambda x: x.sin() * (lambda c: c)(ZEROS), X),
    ),
    "its place among the programs of a process": ((mapped(2), X), (mapped(2), X)),
}


@pytest.mark.parametrize("what", SAME)
def test_programs_that_differ_in_nothing_a_cut_depends_on_are_one_entry(
    what: str, tmp_path: Path
) -> None:
    assert entries(tmp_path, *SAME[what]) == (1, 1)


def test_a_program_for_any_size_is_another_one_and_found_again(tmp_path: Path) -> None:
    f: Program = (lambda x: x.sin().sum(0) * x.shape[0], X)
    assert entries(tmp_path, f) == (1, 0)
    assert entries(tmp_path, f, dynamic=True) == (2, 0)
    assert entries(tmp_path, f, dynamic=True) == (2, 1)
    other: Program = (lambda x: x.sin().sum(0) * x.shape[1], X)
    assert entries(tmp_path, other, dynamic=True) == (3, 0)


def test_options_of_a_partition_count_however_they_are_bound(tmp_path: Path) -> None:
    f: Program = (torch.sin, X)
    assert entries(tmp_path, f, cut=partial(CUT, memory_budget=0.5)) == (1, 0)
    assert entries(
        tmp_path, f, cut=partial(partial(CUT, memory_budget=0.25), memory_budget=0.5)
    ) == (1, 1)
    assert entries(
        tmp_path, f, cut=partial(partial(CUT, memory_budget=0.5), recomputable_ops=None)
    ) == (2, 0)
    assert entries(tmp_path, f, cut=partial(CUT, memory_budget=0.25)) == (3, 0)


def test_the_ops_that_may_run_again_count_in_any_order(tmp_path: Path) -> None:
    f: Program = (lambda x: x.sin().exp(), X)
    sin, exp = torch.ops.aten.sin.default, torch.ops.aten.exp.default
    assert entries(tmp_path, f, cut=partial(CUT, recomputable_ops=[sin, exp])) == (1, 0)
    assert entries(tmp_path, f, cut=partial(CUT, recomputable_ops=(exp, sin))) == (1, 1)
    assert entries(tmp_path, f, cut=partial(CUT, recomputable_ops=[sin])) == (2, 0)


@pytest.mark.parametrize(
    "partition, reason",
    [
        (partial(CUT, None), "a partition with positional arguments"),
        (aot.default_partition, "default_partition, which searches for nothing"),
        (
            partial(aot.default_partition, static_lifetime_input_indices=None),
            "default_partition, which searches for nothing",
        ),
        (lambda *args, **kw: CUT(*args, **kw), "a partition that is not of this package"),
        (
            partial(CUT, may_recompute=lambda n: True),
            "a function (may_recompute) decides what runs again",
        ),
        (partial(CUT, other=object()), "an argument of type object"),
    ],
)
def test_a_partition_without_a_key_says_why(partition: Any, reason: str, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with suppress(TypeError, ValueError):  # of a partition that cannot be called so
        aot.aot_function(torch.sin, aot.nop, partition_fn=partition, cache=cache)(*X)
    assert cache.info().bypasses == {reason: 1} and cache.info().entries == 0


def test_names_of_files_begin_with_the_graph_and_tell_all_parts(tmp_path: Path) -> None:
    other_cut, other_boundary = partial(CUT, memory_budget=0.5), lambda x: (x.sin(), None)
    names: list[str] = []
    for f, cut in (
        (torch.sin, CUT),
        (torch.sin, other_cut),
        (other_boundary, CUT),
        (torch.cos, CUT),
    ):
        entries(tmp_path, (f, X), cut=cut)
        (name,) = {p.stem for p in tmp_path.iterdir()} - {*names}
        names.append(name)
    graphs = [name.partition("-")[0] for name in names]
    assert len(set(names)) == 4 and {len(name) for name in names} == {81}
    assert graphs[0] == graphs[1] == graphs[2] != graphs[3]
