"""Sort the words of `against:`, and say which checks apply to some ops only."""

from __future__ import annotations

from collections.abc import Sequence

from gen.checks import forms
from gen.language.axes import Axes

PLAIN = frozenset({"loop", "upstream", "eager"})
"""References that are the program itself, over plain torch."""
OF_ITSELF = frozenset({"again", "threads", "strides", "fake"})
"""References that compare results of the target with one another. They may be zero."""
_OF_CALLS = frozenset({"wrong_call", "wrong_number", "neighbours", "overloads", "wrong_arguments"})


def may_show_nothing(axes: Axes, words: Sequence[str]) -> bool:
    """Return whether a check by its nature applies to some ops only.

    The words are of references that some ops have, the op may refuse the form or the way in which
    values are made, a call of one tensor mixes no dtypes, or rows repeat, as those of a matrix that
    has no inverse there.
    """
    if axes.layout == "expanded":
        return True
    if axes.values in _OF_CALLS or axes.made is not None:
        return True
    return OF_ITSELF.issuperset(words) or axes.form in forms.MAY_REFUSE
