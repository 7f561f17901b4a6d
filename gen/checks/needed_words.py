"""Say which words of `lacks` a case needs: its stages, and what its axes and references ask beside
them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gen.language.axes import Axes
from gen.targets.lacking_words import METHODS

__all__ = ["lacking_among", "needed_words"]


def needed_words(stages: Sequence[str], axes: Axes, references: Sequence[str]) -> Iterator[str]:
    """Yield the words, see :mod:`gen.targets.lacking_words`. A stage stands for its word."""
    needed = {
        "jit": axes.jitted or axes.by == "jit" or axes.trains != "eagerly",
        "state": axes.moment is not None,
        "cuts": axes.cuts == "loaded",
        "per_sample_answer": axes.of is not None,
        "fake": "fake" in references,
        "refusal": axes.refusal is not None,
        "overload": axes.values == "overloads",
        "out_dims": axes.batch in ("out_dims", "mistaken"),
    }
    yield from stages
    yield from (word for word, is_needed in needed.items() if is_needed)


def lacking_among(words: Sequence[str], lacks: frozenset[str]) -> list[str]:
    """Return those of the words that a target lacks, each once."""
    found = [word for word in words if {word, METHODS.get(word, word)} & lacks]
    return list(dict.fromkeys(found))
