"""Rows of programs that are drawn: one for each kind of statement in the grammar of
:mod:`gen.grammar`.

    sine.numbers("sizes")               # the numbers of programs with a sine and other sizes

A row has programs for each kind of later call. In those of all kinds it stands beside each other
statement once.
"""

from __future__ import annotations

from typing import Any

import torch

from gen.grammar.tables import load_grammar

PROGRAMS_OF_A_CELL = 7


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
        count = max(PROGRAMS_OF_A_CELL, -(-len(others) // len(calls)))
        start = (calls.index(again) + others.index(self.statement)) * count
        return [(self.statement, others[(start + i) % len(others)], again) for i in range(count)]


globals().update({name: DrawnPrograms(name) for name in load_grammar().statements})
