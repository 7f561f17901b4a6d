"""Draw the programs of a row, and assert that the target gives what the model and torch give.

A program is compared at each level of the target, as :mod:`gen.grammar` does it. A refusal is
right, if it is of a class by which the target refuses. Nothing else may differ: values, gradients,
shared memory, strides, flags, versions.
"""

from __future__ import annotations

from typing import Protocol, cast

from gen.checks.compare import Tally
from gen.grammar.draw import Drawing
from gen.grammar.levels import LEVELS
from gen.grammar.program import Program
from gen.grammar.search import Difference, difference_of, settled
from gen.grammar.tables import load_grammar
from gen.outcomes import Mismatch
from gen.run.severity import Severity
from gen.samples.samples import Sample
from gen.targets.protocol import Target


class Row(Protocol):
    """The programs with a statement of one kind."""

    def triples(self, again: str) -> list[tuple[str, str, str]]:
        """Return a statement, another one and a call, for each program of a cell."""
        ...


def assert_programs(target: Target, sample: Sample, again: str, tally: Tally) -> None:
    """Raise Mismatch if the target runs a program of a row otherwise. It names each of them."""
    levels = getattr(target, "levels", ())
    failures: list[str] = []
    for triple in cast(Row, sample.op.call).triples(again):
        program = Drawing(load_grammar(), triple, "/".join(triple)).program()
        plain = None if program is None else settled(program)
        if plain is None:
            continue
        tally.entries += 1
        tally.nonzero += 1
        found = [difference_of(plain, LEVELS[name]()) for name in levels]
        failures += [_text(plain, one) for one in found if one is not None and not _is_refusal(one)]
    if failures:
        raise Mismatch("\n".join(failures))


def _is_refusal(difference: Difference) -> bool:
    return difference.severity is Severity.REFUSED


def _text(program: Program, difference: Difference) -> str:
    """Return what differs, and the program."""
    calls = "; ".join(call.text().replace("\n", "; ") for call in program.calls)
    return f"{difference.level}: {difference.message}\n{program.text()}# called with {calls}"
