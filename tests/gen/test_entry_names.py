"""Names of entries: a few words of the reason, and each name once."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gen.plan.entry_names import WIDTH, UniqueNames, words_of


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("the op, or one that it is made of, has no batching rule", "op_made_no_batching_rule"),
        (
            "torch's backward is wrong (docs/findings.md, F4); ours is not",
            "torch_backward_wrong_ours_not",
        ),
        ("an in-place kernel writes a batched value", "in_place_kernel_writes_batched_value"),
        ("Boolean: boolean", "boolean"),
        ("10 and more factors overflow", "xfail_10_more_factors_overflow"),
        ("it is where it is", "xfail"),
    ],
)
def test_a_name_is_the_words_that_say_something(reason: str, name: str) -> None:
    assert words_of(reason, "xfail") == name


@given(st.text())
def test_every_reason_gives_an_identifier(reason: str) -> None:
    name = words_of(reason, "skip")
    assert name.isidentifier()
    assert len(name) <= WIDTH + len("skip_")


@given(st.lists(st.sampled_from(["slow", "slow_2", "huge"])))
def test_no_name_is_given_twice_and_none_changes_for_a_later_one(wanted: list[str]) -> None:
    names = UniqueNames()
    given = [names.give(name) for name in wanted]
    assert len(set(given)) == len(given)
    assert all(
        re.fullmatch(rf"{name}(_\d+)?", got) for name, got in zip(wanted, given, strict=True)
    )
    again = UniqueNames()
    assert [again.give(name) for name in wanted[:3]] == given[:3]


def test_names_that_are_taken_are_not_given() -> None:
    names = UniqueNames(taken=["slow"])
    assert [names.give("slow"), names.give("slow")] == ["slow_2", "slow_3"]
