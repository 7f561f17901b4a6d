"""Pipelines under jit: calls of one jitted function, each of which is compared."""

from __future__ import annotations

from typing import Any, cast

from gen.checks.pipelines import Program
from gen.checks.program_stages import doubled_again, other_sizes, other_values
from gen.samples.seeds import Replay
from gen.targets.protocol import Flat, Jitting, Target, Values


def jitted(program: Program, others: bool, sizes: bool) -> Program:
    """`program` jitted, and called twice, so that the second call replays what the first has
    captured. With `others` the first call is on other values.

    With `sizes` it is also called at two other sizes, if the reference accepts those. The first of
    these may capture a program for any size, and the second replays it. A reference runs the same
    calls without jit.
    """
    groups = [other_values(program) if others else program.inputs, program.inputs]
    if sizes and (larger := other_sizes(program, True)):
        groups += [*larger, *doubled_again(program, larger[0])]
    count = len(program.inputs)

    def over(target: Target) -> Flat:
        f = cast(Jitting, target).jit(program.over(target))

        def g(*values: Any) -> Values:
            found: list[Any] = []
            draws = Replay()
            for start in range(0, len(groups) * count, count) if count else range(len(groups)):
                draws.rewind()  # a capture draws too
                found += f(*values[start : start + count])
            return tuple(found)

        return g

    inputs = tuple(x for group in groups for x in group)
    # The label is that of the plain form, so that an entry that names it holds for both.
    return Program(
        over,
        inputs,
        program.differentiable * len(groups),
        program.seed,
        program.label,
        calls=len(groups),
    )
