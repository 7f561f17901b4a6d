"""Programs as data: drawn by number, compared with two references, made small.

    program = draw(load_grammar(), seed=0, number=7)
    difference_of(program, LEVELS["aot_eager"]())

``programs.yaml`` has the words, ``word_tables`` reads them. ``drawn_program`` is a program and its
text, ``draw`` makes one. ``prelude`` and ``model_world`` are what it calls by name, for torch and
for the model. ``observation`` is what a call gives, ``program_runs`` runs calls, ``program_levels``
says by what. ``program_search`` compares, ``smaller_programs`` makes smaller,
``program_deaths`` what kills its process, ``written_findings`` writes. The package
imports ``reference.model`` and ``torch_private``. Start with ``program_search.py``.
"""

from gen.grammar.draw import draw
from gen.grammar.drawn_program import Call, Input, Program, Statement
from gen.grammar.program_deaths import death_of, small_death
from gen.grammar.program_levels import LEVELS
from gen.grammar.program_runs import Level
from gen.grammar.program_search import Difference, Finding, Search, difference_of, settled
from gen.grammar.word_tables import Grammar, load_grammar
from gen.grammar.written_findings import entry_of, finding_of, script_of

__all__ = [
    "LEVELS",
    "Call",
    "Difference",
    "Finding",
    "Grammar",
    "Input",
    "Level",
    "Program",
    "Search",
    "Statement",
    "death_of",
    "difference_of",
    "draw",
    "entry_of",
    "finding_of",
    "load_grammar",
    "script_of",
    "settled",
    "small_death",
]
