"""Which tensors of a call are one object: one that is given twice, and one that the program also
comes to by itself.

    w = torch.ones(3, requires_grad=True)

    @jit
    def f(x):
        (gradient,) = torch.autograd.grad((x * w).sum(), w)
        return gradient, x is w

    f(w)        # gives 2 and True: a program in which the argument is w itself
    f(w + 1)    # another program

A capture has a value in place of each argument. Where two are one, so is the value. Where the
program also comes to the argument by itself, it gets the tensor, as a function would that had no
such argument."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch

R = TypeVar("R")


class Repeat:
    """Stands for a tensor that a call is given once more. ``index``: of the leaf that it is. A
    program may ask whether two of its arguments are one object, ``a is b``, so a call in which
    they are is of another kind."""

    __slots__ = ("index",)
    _known: ClassVar[dict[int, Repeat]] = {}

    def __init__(self, index: int) -> None:
        self.index = index

    @classmethod
    def of(cls, index: int) -> Repeat:
        """Return the only one of this index, as guards ask for the object."""
        return cls._known.setdefault(index, cls(index))


class Outside:
    """Stands for an argument that is ``tensor``, to which the program comes by itself as well. A
    call with another argument in its place is of another kind."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = weakref.ref(tensor)

    @property
    def tensor(self) -> torch.Tensor:
        """The argument itself, which the call holds."""
        found = self._tensor()
        assert found is not None, "a call holds its arguments"
        return found

    def stands_for(self, value: object) -> bool:
        return self._tensor() is value


class MetOutside(BaseException):
    """The program has come to its arguments ``tensors`` by itself, and is to be captured once more.
    No ``Exception``, since nothing is wrong with it."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.tensors = tensors


class OutsideArguments:
    """The tensors that programs of one function were given and have come to by themselves. Each has
    one mark, as guards and kinds of calls ask for the object."""

    def __init__(self) -> None:
        self._marks: dict[int, Outside] = {}

    def learn(self, tensors: Iterable[torch.Tensor]) -> None:
        self._marks |= {id(tensor): Outside(tensor) for tensor in tensors}

    def marked(self, leaves: Sequence[object]) -> Sequence[object]:
        """``leaves``, in which these tensors are marks, and one that comes again is a
        :class:`Repeat`."""
        marks = self._marks
        if marks and not marks.keys().isdisjoint(map(id, leaves)):
            leaves = [_mark(value, marks) for value in leaves]
        return _without_repetition(leaves)


def _mark(value: object, marks: Mapping[int, Outside]) -> object:
    mark = marks.get(id(value))
    if mark is None or not mark.stands_for(value):  # a new tensor may be where one was that is gone
        return value
    return mark


def _without_repetition(leaves: Sequence[object]) -> Sequence[object]:
    if len(set(map(id, leaves))) == len(leaves):
        return leaves
    first: dict[int, int] = {}
    found = list(leaves)
    for index, value in enumerate(leaves):
        if isinstance(value, torch.Tensor) and first.setdefault(id(value), index) != index:
            found[index] = Repeat.of(first[id(value)])
    return found


def refuse_outside(given: Iterable[object], known: Collection[int]) -> None:
    """Raise :class:`MetOutside` if a tensor in ``given`` is one of the identities ``known``."""
    met = [x for x in given if isinstance(x, torch.Tensor) and id(x) in known]
    if met:
        raise MetOutside(met)


def with_tensors(function: Callable[..., R], given: Sequence[object]) -> Callable[..., R]:
    """``function`` as a function of leaves in which there is anything in place of the marks in
    ``given``."""
    repeats = [(i, x.index) for i, x in enumerate(given) if type(x) is Repeat]
    outside = [(i, x.tensor) for i, x in enumerate(given) if type(x) is Outside]
    if not repeats and not outside:
        return function

    def flat(*leaves: object) -> R:
        found = list(leaves)
        for i, tensor in outside:
            found[i] = tensor
        for i, index in repeats:
            found[i] = found[index]
        return function(*found)

    return flat


class Apart:
    """Asks whether no argument of a call is a tensor that a program comes to by itself. ``known``:
    the identities of these. ``leading``: how many values of Python's state come before the
    arguments."""

    __slots__ = ("known", "leading")

    def __init__(self, known: Collection[int] = (), leading: int = 0) -> None:
        self.known = frozenset(known)
        self.leading = leading

    def holds(self, given: Sequence[object]) -> bool:
        return not any(
            isinstance(x, torch.Tensor) and id(x) in self.known for x in given[self.leading :]
        )

    def conditions(
        self, given: Sequence[object], names: Sequence[str], constant: Callable[[Any], str]
    ) -> list[str]:
        """Return the question as Python source. ``names``: of the arguments ``given``.
        ``constant``: gives an object a name."""
        pairs = list(zip(names, given, strict=True))[self.leading :]
        asked = [f"id({name})" for name, x in pairs if isinstance(x, torch.Tensor)]
        if not asked or not self.known:
            return []
        if len(asked) == 1:
            return [f"{asked[0]} not in {constant(self.known)}"]
        return [f"{constant(self.known)}.isdisjoint(({', '.join(asked)}))"]
