"""Pipelines: any nesting is accepted, and each mistake says where in the text it is."""

from __future__ import annotations

import re
from itertools import product

import pytest

from tests.gen.conftest import Expand, Generate, Mistakes

NESTING = [
    "vmap",
    "vjp",
    "jvp",
    "linearize",
    "grad",
    "jacrev",
    "jacfwd",
    "hessian",
    "functionalize",
]
WHOLE = ["trace", "aot.joint", "aot.export", "aot.saved"]
HEAD = "version: 1\nfamilies: {one: {ops: [torch.sin]}}\nchecks:\n"


def check(name: str, pipeline: str) -> str:
    """Return the line of a check."""
    against = "eager" if pipeline.split(" ")[0] in WHOLE else "loop"
    return f'  {name}: {{claim: c, against: {against}, pipeline: "{pipeline}"}}\n'


@pytest.mark.parametrize("dot", [".", " . ", ". ", "  . "])
def test_every_nesting_reads_back_as_it_was_written(dot: str, generated: Generate) -> None:
    nestings = [*product([*WHOLE, *NESTING], NESTING), ("vmap", "vjp", "jvp", "vmap", "grad")]
    nestings += [(stage,) for stage in (*WHOLE, *NESTING)]
    checks = [check(f"c{number}", dot.join(stages)) for number, stages in enumerate(nestings)]
    (module,) = generated(HEAD + "".join(checks)).values()
    found = re.findall(r'def test_c(\d+)\(.*?assert_same\("([^"]*)"', module, re.DOTALL)
    assert {int(number): text for number, text in found} == {
        number: " . ".join(stages) for number, stages in enumerate(nestings)
    }


@pytest.mark.parametrize(
    ("text", "message", "offset"),
    [
        ("vmap . vjpp", 'unknown transform "vjpp"', 7),
        ("vmap vjp", 'no ` . ` before "vjp"', 5),
        ("vmap . ", "ends after", 5),
        ("", "an empty pipeline", 0),
        (". vmap", "'.' is out of place", 0),
        ("vmap . . vjp", "'.' is out of place", 7),
        ("vmap (vjp)", "'(' is out of place", 5),
        ("vmap . aot.joint", "takes a whole program", 7),
        ("aot.joinn", 'unknown transform "aot.joinn"', 0),
        ("vmap . backward", "runs in the eager session", 7),
        ("forward . vmap", "stands for no transform", 0),
        ("aot.function . vjp", "compiles the op itself", 0),
    ],
)
def test_a_mistake_says_what_and_where(
    text: str, message: str, offset: int, mistakes: Mistakes
) -> None:
    line = check("wrong", text)
    found = mistakes(HEAD + line)[0]
    column = line.index('"') + 2 + offset  # columns count from 1, and the quote is one of them
    assert found.startswith(f"matrix.yaml:4:{column}: checks.wrong.pipeline: ")
    assert message in found


@pytest.mark.parametrize(
    ("pipeline", "differentiates"),
    [
        ("vmap . vjp", True),
        ("aot.joint", True),
        ("vmap . functionalize", False),
        ("trace", False),
    ],
)
def test_derivatives_are_told_apart_from_maps(
    pipeline: str, differentiates: bool, expanded: Expand
) -> None:
    """A derivative has no cell of an integer dtype."""
    dtypes = "claim: c, dtypes: [int64, float64]"
    plan = expanded(HEAD + check("one", pipeline).replace("claim: c", dtypes))
    assert ("one[torch.sin-int64]" in plan.cells()) != differentiates
