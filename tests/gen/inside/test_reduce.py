"""Reductions are complete over the valid cells. The proof is by brute force that shares
no code with them.

Inside: gen.plan.reduce. A proof by brute force needs hundreds of small sets of valid cells that
hypothesis draws. A matrix gives one such set at a time, and seldom one that has gaps.
"""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gen.plan.reduce import Column, bits, cover, coverage, sample

CHECKS = {"a": ("x", "y"), "b": ("x", "y", "z"), "c": ("x", "z")}
AXES = {"a": (), "b": ("m=1", "m=2"), "c": ("m=1", "n=1", "n=2")}
COLUMNS: list[Column] = [
    (f"check={check}", f"dtype={dtype}", *([axis] if axis else []))
    for check, dtypes in CHECKS.items()
    for dtype, axis in product(dtypes, AXES[check] or ("",))
]
ROWS = [f"op{index}" for index in range(8)]

Masks = st.lists(st.integers(0, 2 ** len(COLUMNS) - 1), min_size=len(ROWS), max_size=len(ROWS))


def tuples(masks: list[int], t: int) -> set[frozenset[str]]:
    """Every t-tuple of factor values that some cell has, by listing the cells."""
    return {
        frozenset(some)
        for row, mask in zip(ROWS, masks, strict=True)
        for index, column in enumerate(COLUMNS)
        if mask & (1 << index)
        for some in combinations((f"op={row}", *column), t)
    }


@settings(max_examples=60, deadline=None)
@given(Masks, st.integers(1, 3))
def test_a_cover_has_every_tuple_of_the_valid_cells_and_only_valid_cells(
    valid: list[int], t: int
) -> None:
    chosen = cover(ROWS, valid, COLUMNS, t, [0] * len(ROWS))
    assert all(mask & ~ok == 0 for mask, ok in zip(chosen, valid, strict=True))
    assert tuples(chosen, t) == tuples(valid, t)


@settings(max_examples=30, deadline=None)
@given(Masks, Masks, st.integers(1, 2))
def test_what_is_given_is_kept_and_counts(valid: list[int], mask: list[int], t: int) -> None:
    given_ = [ok & some for ok, some in zip(valid, mask, strict=True)]
    chosen = cover(ROWS, valid, COLUMNS, t, given_)
    assert all(before & ~after == 0 for before, after in zip(given_, chosen, strict=True))
    assert tuples(chosen, t) == tuples(valid, t)


@settings(max_examples=30, deadline=None)
@given(Masks, Masks, st.integers(1, 3))
def test_the_proof_counts_what_brute_force_counts(
    valid: list[int], chosen: list[int], t: int
) -> None:
    proof = coverage(valid, chosen, COLUMNS, t)
    kept = [ok & some for ok, some in zip(valid, chosen, strict=True)]
    assert proof.tuples == len(tuples(valid, t))
    assert proof.covered == len(tuples(kept, t))
    assert proof.cells == sum(mask.bit_count() for mask in kept)
    assert proof.complete == (tuples(kept, t) == tuples(valid, t))


def test_a_pairwise_cover_is_near_the_least_possible() -> None:
    """Each (op, check) pair needs a cell of its own; more than a quarter above that would be
    waste."""
    rows = [f"op{index}" for index in range(40)]
    columns: list[Column] = [(f"check={c}", f"dtype={d}") for c in range(12) for d in range(6)]
    valid = [2 ** len(columns) - 1] * len(rows)
    chosen = cover(rows, valid, columns, 2, [0] * len(rows))
    assert sum(mask.bit_count() for mask in chosen) <= 1.25 * len(rows) * 12


def test_smoke_takes_little_more_than_one_cell_of_each_row() -> None:
    valid = [2 ** len(COLUMNS) - 1] * len(ROWS)
    chosen = cover(ROWS, valid, COLUMNS, 1, [0] * len(ROWS))
    assert len(ROWS) <= sum(mask.bit_count() for mask in chosen) <= len(ROWS) + 4


@pytest.mark.parametrize("t", [1, 2])
def test_a_new_row_changes_no_other_rows_own_cover(t: int) -> None:
    """So that adding an op shows as one line in the diff of the generated modules."""
    rows = [f"op{index}" for index in range(60)]
    valid = [2 ** len(COLUMNS) - 1] * 60
    before = cover(rows, valid, COLUMNS, t, [0] * 60)
    after = cover([*rows, "new"], [*valid, 2 ** len(COLUMNS) - 1], COLUMNS, t, [0] * 61)
    assert sum(a != b for a, b in zip(before, after, strict=False)) <= 1


def test_a_sample_has_the_size_asked_for_and_depends_on_its_seed() -> None:
    valid = [2 ** len(COLUMNS) - 1] * len(ROWS)
    one, same, other = (sample(ROWS, valid, COLUMNS, 20, seed) for seed in (1, 1, 2))
    assert sum(mask.bit_count() for mask in one) == 20
    assert one == same != other
    assert sum(mask.bit_count() for mask in sample(ROWS, valid, COLUMNS, 10**6, 1)) == len(
        ROWS
    ) * len(COLUMNS)


@given(st.integers(0, 2**200))
def test_bits_are_the_places_of_the_ones(mask: int) -> None:
    assert sum(1 << place for place in bits(mask)) == mask
