"""Random programs, compiled, do what torch does with them, or they are refused.

    PROGRAMS=5000 pytest tests/runtime/aot/fuzzer/test_random_programs.py      # more of them
    SEED=4711 PROGRAMS=1 pytest tests/runtime/aot/fuzzer/test_random_programs.py

A program that differs is printed without the statements that do not matter. Known and not looked
at: see ``UNCOUNTED`` in :mod:`.observations`.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter

import pytest

from .observations import difference, observed
from .outcomes import Outcome, compiled, outcome
from .programs import Case, Step, random_case
from .surroundings import SESSION, TORCH

# random programs do much that torch warns of
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
NUMBER, FIRST = int(os.environ.get("PROGRAMS", "45")), int(os.environ.get("SEED", "0"))


def described(case: Case, found: Outcome) -> str:
    """The failing part of a case, as source."""
    small = case.shrunk(lambda part: outcome(part).what == found.what)
    return f"{small}\n--> {outcome(small)}\n"


def test_random_programs_do_what_they_do_in_torch() -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for seed in range(FIRST, FIRST + NUMBER):
        case = random_case(seed)
        found = outcome(case)
        counts[f"{found.what} {found.kind}" if found.what == "refused" else found.what] += 1
        if found.what in ("different", "error"):
            wrong.append(described(case, found))
    print(counts)
    assert not wrong, "\n".join(wrong)
    refused = sum(n for kind, n in counts.items() if kind.startswith("refused"))
    # some statements are refused by design, such as requires_grad_() of an argument; a fuzzer that
    # is refused more finds nothing
    assert NUMBER == 1 or (refused < 0.06 * NUMBER and counts["same"] > 0.85 * NUMBER), counts


def simple(program: str, after: str = "gradients") -> Case:
    """The first case whose arguments are two matrices that require grad, with another program."""
    call = random_case(0).calls[0]
    lines = tuple(
        line
        for i in range(2)
        for line in (
            f"b{i} = leaf({i}, (2, 3), torch.float32, requires_grad=True)",
            f"x{i} = b{i} * 1",
        )
    )
    call = dataclasses.replace(
        call,
        lines=lines,
        args="x0, x1, 2.5",
        grad=True,
        hooks=False,
        after=(after,),
        picks=(0.0,) * 4,
    )
    return Case(
        0, "x0, x1, s", tuple(Step(line) for line in program.split("; ")), ("v",), "tuple", (call,)
    )


class TestTheFuzzer:
    """A fuzzer that sees nothing finds nothing."""

    def test_a_seed_gives_one_program(self) -> None:
        assert str(random_case(3)) == str(random_case(3)) != str(random_case(4))

    def test_a_planted_difference_is_seen(self) -> None:
        planted = {
            "values": ("v = x0 * 2", "v = x0 * 3"),
            "gradients": ("v = x0 * 2", "v = x0 + x0.detach()"),
            "writes": ("v = x0 * 2; x1.mul_(2)", "v = x0 * 2"),
            "versions": ("v = x0 * 2; x1.mul_(2)", "v = x0 * 2; x1.mul_(1).mul_(2)"),
            "aliases": ("v = x0.view(-1)", "v = x0.reshape(-1).clone()"),
            "identity": ("v = x0", "v = x0.view_as(x0)"),
            "strides": ("v = x0.t().detach()", "v = x0.t().contiguous().detach()"),
            "dtype": ("v = x0 > 0", "v = (x0 > 0).int()"),
            "requires_grad": ("v = x0.detach()", "v = x0 * 1"),
            "random state": ("v = x0 * 2", "v = x0 * 2; torch.rand(1)"),
            "buffers": ("v = norm(x0)", "v = norm(x0); norm.running_mean.add_(1)"),
            "second derivatives": ("v = x0 * x0", "v = 2 * x0 * x0.detach() - (x0 * x0).detach()"),
        }
        for what, (right, wrong) in planted.items():
            after = (
                "second"
                if what == "second derivatives"
                else "write"
                if what == "aliases"
                else "gradients"
            )
            expected, found = (
                observed(TORCH, simple(text, after), lambda f: f) for text in (right, wrong)
            )
            assert (
                difference(expected, expected, 1e-4) == "" != difference(expected, found, 1e-4)
            ), what

    def test_what_differs_is_found_by_its_outcome(self) -> None:
        case = simple("v = x0.sin(); w = v * 2; v = w * x1")
        assert outcome(case) == Outcome("same")
        doubled = observed(
            SESSION, case, lambda f: lambda *args: tuple(2 * o for o in compiled(case)(f)(*args))
        )
        assert difference(observed(TORCH, case, lambda f: f), doubled, 1e-4).startswith(
            "call 0, result 0 after the call"
        )

    def test_a_failing_program_loses_what_does_not_matter(self) -> None:
        case = simple("u = x1.sin(); v = x0 * 2; w = v.cos()")
        assert [
            step.text for step in case.shrunk(lambda part: "v = x0 * 2" in str(part)).steps
        ] == ["v = x0 * 2"]
