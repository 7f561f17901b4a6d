"""Attributes that the user has given to tensors, and that a program reads of its arguments.

    x.scale = 3
    jit(lambda x: x * getattr(x, "scale", 1))(x)    # a program for arguments whose scale is 3

A capture has a value in place of ``x``. It answers with the attribute of the tensor that the call
is given, or says that there is none. From then on a call is of another kind where that differs. An
attribute that the program gives to an argument would not reach the caller's tensor, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..aot.capture.tree_structure import constant
from ..aot.python_state.nodes import Place
from ..aot.python_state.program_state import ProgramState
from ..aot.python_state.value_attributes import attributes_of_user
from ..aot.python_state.values import MISSING, SIMPLE, attributes_of
from ..seam.levels import Value
from ..session.subclasses import class_of_results
from ..torch_private.native_autograd import set_version_counters
from ..trace.provenance import happened_at, here
from .given_tensors import Key, tensors_by_key
from .tensor_questions import VERSION, answer_of, answering


class Attributes:
    """An argument of the program: what it has asked tensors for. ``found``: by tensor and name.
    There is one object for each kind of answer."""

    __slots__ = ("found",)

    def __init__(self, found: Mapping[tuple[Key, str], Any]) -> None:
        self.found = found


class TensorAttributes:
    """What the programs of one function ask of the tensors that they are given. ``asked``: which
    tensor, and the name of the attribute."""

    def __init__(self) -> None:
        self.asked: list[tuple[Key, str]] = []
        self._known: dict[object, Attributes] = {}

    def of(self, args: object, kwargs: object, places: Sequence[Place]) -> Attributes:
        """Return what a call is given beside its arguments. ``places``: whose values are
        arguments."""
        tensors = tensors_by_key((args, kwargs), {place.key: place.current() for place in places})
        found = {(key, name): answer_of(tensors.get(key), name) for key, name in self.asked}
        # one object for each answer: a kind of call compares such an argument by identity
        kind = tuple([(which, constant(value)) for which, value in found.items()])
        return self._known.setdefault(kind, Attributes(found))

    @contextmanager
    def shown(
        self,
        attributes: Attributes,
        values: Mapping[Key, Any],
        may_have: Callable[[str], bool],
        again: Callable[[], BaseException],
    ) -> Iterator[None]:
        """Show, while entered, the ``attributes`` of tensors by the ``values`` that stand for them.
        ``may_have``: tells whether the program's code may have a name. ``again``: makes the error
        that has the program captured with more of them."""
        keys = {id(value): key for key, value in values.items()}
        known = attributes.found

        # Python's own look-up has failed before, and raises its `AttributeError` once more.
        def ask(value: object, name: str) -> Any:
            """Return what the tensor of ``value`` has under ``name``, or begin once more."""
            if id(value) not in keys:
                return object.__getattribute__(value, name)
            which = keys[id(value)], name
            if which not in known:
                self.asked.append(which)
                raise again()
            if known[which] is MISSING:
                return object.__getattribute__(value, name)
            return _only_constant(known[which], name)

        def ask_all(name: str) -> list[object]:
            """Return what all tensors have under ``name``, or begin once more."""
            # all at once, so that the program is captured once more and not once for each
            unknown = [(key, name) for key in values if (key, name) not in known]
            if unknown:
                self.asked += unknown
                raise again()
            return [known[key, name] for key in values]

        _start_versions(values, known)
        # now: the program may give a value another history, and it is no given leaf any more
        edges = {id(value): getattr(value, "_edge", None) for value in values.values()}
        with answering(ask, ask_all, may_have, edges):
            yield


def _start_versions(values: Mapping[Key, Any], known: Mapping[tuple[Key, str], Any]) -> None:
    """Give ``values`` the versions that are ``known`` of the tensors for which they stand."""
    for key, value in values.items():
        version = known.get((key, VERSION), MISSING)
        if version is not MISSING:
            set_version_counters((value,), (version,))


def refuse_lost(values: Iterable[object], what: str, state: ProgramState) -> None:
    """Refuse attributes that the program has given to ``values``, which a call would lose.
    ``what``: the values are."""
    for value in values:
        # level 0 is the session's, whose tensors stay: only values of the trace are lost
        names = _given(value) if isinstance(value, Value) and value._level.number else ()
        if names:
            raise RuntimeError(
                f"the program assigns to the attribute {names[0]!r} of {what}. A call would lose "
                "it: a graph has tensors alone. Return what is assigned."
                f"{happened_at(state.graph.code.first_line)}"
            )


def refuse_dictionaries(given: Sequence[object], state: ProgramState) -> None:
    """Refuse that the program is given the dictionary of an object as an argument, such as
    ``vars(x)``, and comes to the object, too: what it has is a copy."""
    owners = {id(attributes_of(x)): f"a {type(x).__name__}" for x in given}
    for x in given:
        if type(x) is not dict:
            continue
        node = state.graph.owner_of(x)
        name = owners.get(id(x)) if node is None else node.name
        if name is not None:
            raise RuntimeError(
                f"the program is given the dictionary in which {name} keeps its values, and comes "
                "to them by itself, too. A call would not see that they are one. Pass the object, "
                f"or a copy.{happened_at(state.graph.code.first_line)}"
            )


def refuse_subclasses(given: Iterable[object]) -> None:
    """Refuse arguments of classes whose results torch gives the same class: a graph knows none."""
    for x in given:
        kind = class_of_results(x)
        if kind is not None:
            raise RuntimeError(
                f"an argument is a {kind.__name__}, a subclass of torch.Tensor, and so would be "
                "what is computed with it. The tensors of a graph are plain ones. Pass "
                "x.as_subclass(torch.Tensor), or give the class __torch_dispatch__ and "
                "__tensor_flatten__."
            )


def _only_constant(value: object, name: str) -> object:
    """Return ``value``, what a tensor has under ``name``. ``RuntimeError`` if it may change."""
    parts = value if type(value) is tuple else (value,)
    if value is MISSING or all(type(part) in SIMPLE for part in parts):
        return value
    raise RuntimeError(
        f"the program asks a tensor that it is given for its attribute {name!r}, a "
        f"{type(value).__name__}. A call would not see what changes in it. Pass it as an argument."
        f"{here()}"
    )


def _given(value: object) -> list[str]:
    """Return the names of the attributes that a program has given to the value ``value``."""
    return [name for name in attributes_of_user(value) if not name.startswith("__")]
