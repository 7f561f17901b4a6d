"""Rows of programs that are drawn, and the check of them.

    sine.triples("sizes")               # programs with a sine, called again with other sizes

A row is a kind of statement in the grammar of :mod:`gen.grammar`. A program is compared at each
level of the target, which its attribute ``levels`` names:

| a program that | is |
|---|---|
| has the values and gradients of the model, and all else as torch without a compiler | right |
| is refused, by an error of a class by which targets refuse | right |
| has other values, gradients, strides, flags or versions, or shares other memory | a mismatch |
| raises any other error | a mismatch |
| is refused by torch without a compiler | no program |
"""

from __future__ import annotations

from typing import Any, cast

import torch

from gen.checks.compare import Tally
from gen.grammar import LEVELS, Difference, Program, difference_of, load_grammar, settled
from gen.grammar.draw import Drawing
from gen.outcomes import Lacking, Mismatch
from gen.samples.samples import Sample
from gen.severity import Severity
from gen.targets.protocol import Target

PROGRAMS_OF_A_CELL = 7
_ATTEMPTS = 4  # torch refuses a program in eight


class DrawnPrograms:
    """The programs with a statement of one kind."""

    def __init__(self, statement: str) -> None:
        self.statement = statement

    def __call__(self, x: Any) -> Any:
        """Return a copy, for what asks a row for a result."""
        return torch.clone(x)

    def triples(self, again: str) -> list[tuple[str, str, str]]:
        """Return the triples of the programs of a cell: this statement, another one, a call.

        The others are those from `again` on, so that the cells of a row have all of them.
        """
        grammar = load_grammar()
        others, calls = list(grammar.statements), list(grammar.calls)
        # rounded up: with fewer, the cells of a row would not reach every other statement
        count = max(PROGRAMS_OF_A_CELL, -(-len(others) // len(calls)))
        start = (calls.index(again) + others.index(self.statement)) * count
        places = (place % len(others) for place in range(start, start + count))
        return [(self.statement, others[place], again) for place in places]


# A row of the matrix names its op by module and name: `gen.checks.drawn_programs.sine`.
globals().update({name: DrawnPrograms(name) for name in load_grammar().statements})


def assert_programs(target: Target, sample: Sample, again: str, tally: Tally) -> None:
    """Run the programs of a cell at each level of `target`.

    `sample` is of a row of this module, `again` the kind of call. Raises Mismatch if a program
    runs otherwise, with the text of each, and Lacking if the target names no levels.
    """
    levels = getattr(target, "levels", ())
    if not levels:
        raise Lacking(f"target {target.name} has no levels for programs")
    failures: list[str] = []
    for triple in cast(DrawnPrograms, sample.op.call).triples(again):
        plain = _program(triple)
        if plain is None:
            continue
        differences = [difference_of(plain, LEVELS[name]()) for name in levels]
        # a program that each level refuses compares nothing
        compared = [
            difference
            for difference in differences
            if difference is None or not _is_refusal(difference)
        ]
        tally.entries += len(compared)
        tally.nonzero += len(compared)
        failures += [_text(plain, difference) for difference in compared if difference is not None]
    if failures:
        raise Mismatch("\n".join(failures))


def _program(triple: tuple[str, str, str]) -> Program | None:
    """Return a program with the triple. None if torch refuses all that were drawn."""
    for attempt in range(_ATTEMPTS):
        program = Drawing(load_grammar(), triple, f"{'/'.join(triple)}/{attempt}").program()
        plain = program and settled(program)
        if plain is not None:
            return plain
    return None


def _is_refusal(difference: Difference) -> bool:
    """Return whether a level runs no such program at all."""
    return difference.severity is Severity.REFUSED


def _text(program: Program, difference: Difference) -> str:
    """Return what differs, and the program."""
    calls = "; ".join(call.text().replace("\n", "; ") for call in program.calls)
    return f"{difference.level}: {difference.message}\n{program.text()}# called with {calls}"
