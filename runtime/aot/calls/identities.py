"""Mark arguments that are one object: one that is passed twice, and one that the program also
reaches by itself.

    w = torch.ones(3, requires_grad=True)

    @jit
    def f(x):
        (gradient,) = torch.autograd.grad((x * w).sum(), w)
        return gradient, x is w

    f(w)        # returns 2 and True: a program in which the argument is w itself
    f(w + 1)    # another program

A capture has a value in place of each argument. Where two arguments are one, there is one value.
Where the program also reaches the argument by itself, it gets the tensor, as a function would that
had no such argument.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch

R = TypeVar("R")


class Repeat:
    """Stand for a tensor that comes once more among the arguments. ``index``: of the first one.

    A program may ask whether two of its arguments are one object, ``a is b``. So a call in which
    they are is of another kind.
    """

    __slots__ = ("index",)
    _known: ClassVar[dict[int, Repeat]] = {}

    def __init__(self, index: int) -> None:
        self.index = index

    @classmethod
    def of(cls, index: int) -> Repeat:
        """Return the only mark of this index: guards compare marks by ``is``."""
        return cls._known.setdefault(index, cls(index))


class Outside:
    """Stand for an argument that is ``tensor``, which the program reaches by itself as well.

    A call with another argument in its place is of another kind.
    """

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        # weak, as the marks of a function live as long as the function
        self._tensor = weakref.ref(tensor)

    @property
    def tensor(self) -> torch.Tensor:
        """Return the argument itself, which the call holds alive."""
        tensor = self._tensor()
        assert tensor is not None, "a call holds its arguments"
        return tensor

    def stands_for(self, value: object) -> bool:
        """Return whether ``value`` is the argument."""
        return self._tensor() is value


class MetOutside(BaseException):
    """Say that the program has reached its arguments ``tensors`` by itself.

    It is to be captured once more. This is no ``Exception``, since nothing is wrong with the
    program, and its handlers must not see it.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.tensors = tensors


class OutsideArguments:
    """Remember the arguments that programs of one function have also reached by themselves.

    Each has one mark: guards and kinds of calls compare marks by ``is``.
    """

    def __init__(self) -> None:
        self._marks: dict[int, Outside] = {}

    def learn(self, tensors: Iterable[torch.Tensor]) -> None:
        """Mark ``tensors`` in all calls from now on."""
        self._marks |= {id(tensor): Outside(tensor) for tensor in tensors}

    def marked(self, leaves: Sequence[object]) -> Sequence[object]:
        """Return ``leaves``, with a mark for each of these tensors, and a :class:`Repeat` for each
        tensor that comes again."""
        marks = self._marks
        if marks and not marks.keys().isdisjoint(map(id, leaves)):
            leaves = [_mark(value, marks) for value in leaves]
        return _mark_repetitions(leaves)


def _mark(value: object, marks: Mapping[int, Outside]) -> object:
    """Return the mark of ``value``, or ``value`` if it has none."""
    mark = marks.get(id(value))
    # a new tensor may have the identity of one that is gone
    if mark is None or not mark.stands_for(value):
        return value
    return mark


def _mark_repetitions(leaves: Sequence[object]) -> Sequence[object]:
    """Return ``leaves``, with a :class:`Repeat` for each tensor that comes again."""
    # in most calls no object comes twice
    if len(set(map(id, leaves))) == len(leaves):
        return leaves
    first: dict[int, int] = {}
    marked = list(leaves)
    for index, value in enumerate(leaves):
        if isinstance(value, torch.Tensor) and first.setdefault(id(value), index) != index:
            marked[index] = Repeat.of(first[id(value)])
    return marked


def refuse_outside(leaves: Iterable[object], identities: Collection[int]) -> None:
    """Raise :class:`MetOutside` if a tensor in ``leaves`` has one of ``identities``."""
    met = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and id(leaf) in identities]
    if met:
        raise MetOutside(met)


def with_tensors(function: Callable[..., R], marked: Sequence[object]) -> Callable[..., R]:
    """Return ``function`` as a function of leaves that replaces those at the marks in ``marked``.

    A mark of :class:`Outside` becomes its tensor. A :class:`Repeat` becomes the leaf that it
    repeats.
    """
    repeats = [(index, x.index) for index, x in enumerate(marked) if type(x) is Repeat]
    outside = [(index, x.tensor) for index, x in enumerate(marked) if type(x) is Outside]
    # without marks there is nothing to replace, and no call in between
    if not repeats and not outside:
        return function

    def flat(*leaves: object) -> R:
        """Call ``function`` with the tensors in place of the marks."""
        arguments = list(leaves)
        for index, tensor in outside:
            arguments[index] = tensor
        for index, first in repeats:
            arguments[index] = arguments[first]
        return function(*arguments)

    return flat


class Apart:
    """Ask whether no argument of a call is a tensor that a program reaches by itself."""

    __slots__ = ("known", "leading", "others")

    def __init__(self, known: Collection[int] = (), leading: Sequence[object] = ()) -> None:
        # the identities of the tensors that the program reaches
        self.known = frozenset(known)
        # the number of values of Python's state that come before the arguments
        self.leading = len(leading)
        # the identities that none of these values may have in another call
        self.others = self.known.difference(map(id, leading))

    def holds(self, given: Sequence[object]) -> bool:
        """Return whether it is so for the arguments ``given``."""
        # a value of Python's state may be the tensor that it was at the capture, and no other one
        before, after = given[: self.leading], given[self.leading :]
        return not (_has_one_of(before, self.others) or _has_one_of(after, self.known))

    def conditions(
        self, given: Sequence[object], names: Sequence[str], constant: Callable[[Any], str]
    ) -> list[str]:
        """Return the question as Python source, in a list that is empty if there is none.

        ``names``: of the arguments ``given``. ``constant``: gives an object a name.
        """
        pairs = list(zip(names, given, strict=True))
        conditions: list[str] = []
        for some, known in (
            (pairs[: self.leading], self.others),
            (pairs[self.leading :], self.known),
        ):
            tensors = [name for name, x in some if isinstance(x, torch.Tensor)]
            conditions += none_among(tensors, known, constant)
        return conditions


def _has_one_of(values: Sequence[object], identities: Collection[int]) -> bool:
    return any(isinstance(x, torch.Tensor) and id(x) in identities for x in values)


def none_among(
    tensors: Sequence[str], known: frozenset[int], constant: Callable[[Any], str]
) -> list[str]:
    """Return the condition that none of ``tensors`` is one of those with the identities ``known``.

    ``tensors``: Python source of each. The list is empty if there is nothing to ask.
    """
    asked = [f"id({tensor})" for tensor in tensors]
    if not asked or not known:
        return []
    # by identity: `in` would compare tensors, which compare by elements
    if len(asked) == 1:
        return [f"{asked[0]} not in {constant(known)}"]
    return [f"{constant(known)}.isdisjoint(({', '.join(asked)}))"]
