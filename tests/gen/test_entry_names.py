"""Names of entries: a few words of the reason, and each name once."""

from __future__ import annotations

import json

import pytest

from tests.gen.conftest import Expand

MATRIX = """\
    version: 1
    checks: {{forward: {{claim: c, against: eager}}}}
    families: {{one: {{ops: [torch.sin, torch.cos, torch.tan, torch.exp]}}}}
    {kind}: [{entries}]
    """
LONG = "alphabetical breathtaking circumnavigation disproportionately encyclopaedic formalities"
OPS = ("torch.sin", "torch.cos", "torch.tan", "torch.exp")


def entry(op: str, reason: str, **more: str) -> str:
    return json.dumps({"op": op, "reason": reason, **more})


def names(expanded: Expand, *entries: str, kind: str = "skip") -> list[str]:
    """Return the name of each entry of a matrix."""
    plan = expanded(MATRIX.format(kind=kind, entries=", ".join(entries)))
    return [name for op in OPS for name in plan.names(op)]


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
def test_a_name_is_the_words_that_say_something(reason: str, name: str, expanded: Expand) -> None:
    wrong = entry("torch.sin", reason, raises="Mismatch", match="wrong")
    assert names(expanded, wrong, kind="xfail") == [name]


@pytest.mark.parametrize(
    "reason",
    ["1", "\u00e9t\u00e9", "\u2713", "class", "a" * 300, "b " * 300, LONG, "x.y/z-1 % 'q'"],
)
def test_every_reason_gives_an_identifier(reason: str, expanded: Expand) -> None:
    (name,) = names(expanded, entry("torch.sin", reason))
    assert name.isidentifier()
    assert len(name) <= 53


def test_no_name_is_given_twice_and_none_changes_for_a_later_one(expanded: Expand) -> None:
    wanted = ["Slow", "Slow 2", "Slow", "Huge"]
    entries = [entry(op, reason) for op, reason in zip(OPS, wanted, strict=True)]
    found = names(expanded, *entries)
    assert len(set(found)) == 4
    assert found[0] == "slow" and found[3] == "huge"
    for count in (1, 2, 3):
        assert names(expanded, *entries[:count]) == found[:count]


def test_names_that_are_taken_are_not_given(expanded: Expand) -> None:
    taken = entry("torch.exp", "It is so.", name="slow")
    found = names(expanded, entry("torch.sin", "Slow"), entry("torch.cos", "Slow"), taken)
    assert found == ["slow_2", "slow_3", "slow"]
