"""Ask the native part whether all is as it was noted, and Python where it is not.

    noted = Noted.of(Question("empty containers", containers), lambda: compare)
    noted.condition(constant)           # "(c1() or c2())": one call of C++ as a rule

A batch of C++ says yes only if each fact is the one that was noted. Where it says no, ``compare``
decides, which is what a guard without the native part asks. If that holds, the facts are noted that
were seen before: another thread may write after the comparison, and the next call must see that.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from .library import NativeBatch, library

Kind = Literal[
    "versions",
    "versions of attributes",
    "empty containers",
    "objects without attributes",
    "classes",
    "items of lists",
    "tensors",
    "tensors and their memory",
    "tensors without hooks",
]
"""The kinds of objects that ``batches.cpp`` compares."""
_FEWEST = 2  # objects from which one call of C++ takes less time than conditions in Python


Compare = Callable[[], bool]


class Question(NamedTuple):
    """Say what to compare.

    ``own``: for a kind that asks for attributes, the dictionaries in which ``objects`` have them.
    """

    kind: Kind
    objects: Sequence[object]
    own: Sequence[object] | None = None


class Noted:
    """Objects of one kind, with the facts that were noted of them."""

    def __init__(self, batch: NativeBatch, make: Callable[[], Compare]) -> None:
        self._batch = batch
        self._make = make
        self._in_python: Compare | None = None

    @classmethod
    def of(cls, question: Question, make: Callable[[], Compare]) -> Noted | None:
        """Return what asks ``question``, None if the native part does not.

        ``make``: makes the comparison in Python, when it is needed for the first time.
        """
        batch = native_batch(question)
        return None if batch is None else cls(batch, make)

    def condition(self, constant: Callable[[object], str]) -> str:
        """Write the question as Python source. ``constant``: gives an object a name."""
        return f"({constant(self._batch)}() or {constant(self.compare)}())"

    def holds(self) -> bool:
        """Return whether all is as it was."""
        return self._batch() or self.compare()

    def compare(self) -> bool:
        """Compare in Python, and note what was seen before if that holds."""
        if self._in_python is None:
            self._in_python = self._make()
        seen = self._batch.look()
        if not self._in_python():
            return False
        if seen is not None:
            self._batch.note(seen)
        return True


def native_batch(question: Question) -> NativeBatch | None:
    """Return the batch that asks ``question``, with nothing noted.

    None if there is no native part, or if it does not know this kind of objects.
    """
    kind, objects, own = question
    native = library().module
    if native is None or len(objects) < _FEWEST:
        return None
    try:
        batch = native.Batch(kind, objects)
    except (TypeError, ValueError):  # a kind that this Python does not have
        return None
    if own is not None and not all(map(operator.is_, map(native.own_dictionary, objects), own)):
        return None
    # such as a tensor without memory of its own
    return None if batch.look() is None else batch
