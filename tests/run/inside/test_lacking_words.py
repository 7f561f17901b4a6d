"""The table of words for what a target lacks has each word that a cell can need, and no other.

Inside: gen.checks.needed_words and gen.targets.lacking_words. No matrix has a column for each word
of each axis, so a run shows a part of the words alone.
"""

from __future__ import annotations

from gen.checks.needed_words import needed_words
from gen.language.axes import AXES, Axes
from gen.language.pipeline import FORWARD, STAGES
from gen.targets.lacking_words import WORDS, word_of


def test_the_table_has_each_word_that_a_case_can_need_and_no_other() -> None:
    needed: set[str] = set(STAGES) - {FORWARD}
    for axis, words in AXES.items():
        for word in words:
            needed.update(needed_words((), Axes.varying({axis: word}), ("fake",)))
    assert {word_of(text) for text in needed} == set(WORDS)
