"""Attributes that the user has given to tensors, and that a program reads of its arguments.

    x.scale = 3
    jit(lambda x: x * getattr(x, "scale", 1))(x)    # a program for arguments whose scale is 3

A capture has a value in place of ``x``. It answers with the attribute of the tensor that the call
is given, or says that there is none. From then on a call is of another kind where that differs. An
attribute that the program gives to an argument would not reach the caller's tensor, and is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..aot.capture import opened
from ..aot.capture.tree_structure import constant
from ..aot.python_state.nodes import Place
from ..aot.python_state.program_code import ProgramCode
from ..aot.python_state.program_state import ProgramState
from ..aot.python_state.value_attributes import attributes_of_user, is_own
from ..aot.python_state.values import MISSING, SIMPLE, attributes_of
from ..seam.ambient import Ambient
from ..seam.levels import Value
from ..seam.locks import lock_of
from ..session.subclasses import class_of_results
from ..tape.values import GradValue
from ..torch_private.native_autograd import set_version_counters
from ..torch_private.native_tensors import TensorBase
from ..trace.provenance import happened_at, here

Key = object
"""Which tensor: the number of an argument, or a place of Python's state with a number."""


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
        tensors = tensors_by_key((args, kwargs), {p.key: p.current() for p in places})
        found = {(k, name): _attribute(tensors.get(k), name) for k, name in self.asked}
        kind = tuple([(which, constant(value)) for which, value in found.items()])
        return self._known.setdefault(kind, Attributes(found))

    @contextmanager
    def shown(
        self,
        attributes: Attributes,
        values: Mapping[Key, Any],
        code: ProgramCode,
        again: Callable[[], BaseException],
    ) -> Iterator[None]:
        """Show, while entered, the ``attributes`` of tensors by the ``values`` that stand for them.
        ``code``: of the program. ``again``: makes the error that has the program captured with more
        of them."""
        keys = {id(v): key for key, v in values.items()}
        known = attributes.found

        def ask(value: object, name: str) -> Any:
            if id(value) not in keys:
                return object.__getattribute__(value, name)
            which = keys[id(value)], name
            if which not in known:
                self.asked.append(which)
                raise again()
            if known[which] is MISSING:
                return object.__getattribute__(value, name)
            return _only_constant(known[which], name)

        def ask_versions() -> None:
            # what records calls asks for versions, too
            if _VERSION not in code.names and not code.computed:
                return
            unknown = [(key, _VERSION) for key in values if (key, _VERSION) not in known]
            if unknown:
                self.asked += unknown
                raise again()

        _start_versions(values, known)
        edges = {id(v): getattr(v, "_edge", None) for v in values.values()}
        with _asked(ask, ask_versions, edges):
            yield


def _start_versions(values: Mapping[Key, Any], known: Mapping[tuple[Key, str], Any]) -> None:
    """Give ``values`` the versions that are ``known`` of the tensors for which they stand."""
    for key, value in values.items():
        version = known.get((key, _VERSION), MISSING)
        if version is not MISSING:
            set_version_counters((value,), (version,))


def refuse_lost(values: Iterable[object], what: str, state: ProgramState) -> None:
    """Refuse attributes that the program has given to ``values``, which a call would lose.
    ``what``: the values are."""
    for v in values:
        names = _given(v) if isinstance(v, Value) and v._level.number else ()
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


def tensors_by_key(arguments: object, at_places: Mapping[Any, Any]) -> dict[Key, Any]:
    """Return the tensors in ``arguments`` by number, and those ``at_places`` by key and number. One
    that is at several is at the first of them."""
    found: dict[Key, Any] = dict(enumerate(opened.flatten(arguments)[0]))
    for key, value in at_places.items():
        found |= {(key, index): x for index, x in enumerate(opened.flatten(value)[0])}
    once = {id(x): key for key, x in reversed(found.items()) if isinstance(x, torch.Tensor)}
    return {key: found[key] for key in once.values()}


_IS_PARAMETER = "_is_param"
"""What ``isinstance(x, torch.nn.Parameter)`` asks of a tensor that is of another class."""

_IS_VIEW = "_is_view"
_VERSION = "_version"


def _attribute(tensor: object, name: str) -> object:
    if name == _IS_PARAMETER:
        return True if isinstance(tensor, torch.nn.Parameter) else MISSING
    if name == _IS_VIEW:
        return isinstance(tensor, torch.Tensor) and tensor._is_view()
    if name == _VERSION and isinstance(tensor, torch.Tensor) and tensor.is_inference():
        return MISSING
    return MISSING if tensor is None else getattr(tensor, name, MISSING)


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


# --- what a value of this thread's capture answers ------------------------------------------------


class _Asking(Ambient):
    """``ask``: gives what the tensor has for which a value of this thread's capture stands; raises
    ``AttributeError`` if there is nothing. ``ask_versions``: asks for the versions of all such
    tensors. ``edges``: by identity of such a value the history that the program finds."""

    ask: Callable[[Any, str], Any] | None = None
    ask_versions: Callable[[], None] = lambda: None
    edges: Mapping[int, object] = {}


_ASKING = _Asking()
_LOCK = lock_of(sys.modules[__name__], "_LOCK")
_count = 0  # how many captures ask, in all threads


@contextmanager
def _asked(
    ask: Callable[[Any, str], object],
    ask_versions: Callable[[], None],
    edges: Mapping[int, object],
) -> Iterator[None]:
    """Answer by ``ask(value, name)``, while entered, when this thread asks for an attribute that
    Python does not find. At other times the class has no ``__getattr__``: Dynamo takes one for a
    reason to know nothing of the tensors of a class. See :class:`_Asking`."""
    around = _ASKING.ask, _ASKING.ask_versions, _ASKING.edges
    _ASKING.ask, _ASKING.ask_versions, _ASKING.edges = ask, ask_versions, edges
    _ask_of_values(1)
    try:
        yield
    finally:
        _ask_of_values(-1)
        _ASKING.ask, _ASKING.ask_versions, _ASKING.edges = around


def _ask_of_values(change: int) -> None:
    """Count the contexts that are entered, of all threads, and let the class of values have
    ``__getattr__`` while there are any. ``change``: 1 for one that begins, -1 for one that ends."""
    global _count
    with _LOCK:
        before, _count = _count, _count + change
        if not before:
            Value.__getattr__ = _answer  # type: ignore[attr-defined]
            for cls, name, _, answer in _OF_ARGUMENTS:
                setattr(cls, name, answer)
        elif not _count:
            del Value.__getattr__  # type: ignore[attr-defined]
            for cls, name, of_value, _ in _OF_ARGUMENTS:
                setattr(cls, name, of_value)


def _answer(value: object, name: str) -> object:
    """Return what ``value.name`` is, which Python has not found."""
    kind: Any = type(value)
    of_class = name.startswith("__") or (name != _IS_PARAMETER and is_own(kind, name))
    if _ASKING.ask is None or of_class:
        return object.__getattribute__(value, name)  # the same error once more
    return _ASKING.ask(value, name)


# --- what a given tensor says of its history ------------------------------------------------------


def _asks(value: Any) -> bool:
    """Return whether ``value`` stands for a tensor that this thread's program is given."""
    return _ASKING.ask is not None and id(value) in _ASKING.edges


def _is_given_leaf(value: Any) -> bool:
    """Return whether ``value`` stands for a leaf that requires grad, with the history that the
    program finds."""
    edge = value._edge
    if edge is None or not _asks(value) or edge is not _ASKING.edges[id(value)]:
        return False
    return bool(_ASKING.ask(value, "is_leaf"))  # type: ignore[misc]


def _is_leaf(value: Any) -> Any:
    return _is_given_leaf(value) or _LEAF.fget(value)


def _grad_fn(value: Any) -> Any:
    return None if _is_given_leaf(value) else _GRAD_FN.fget(value)


def _is_view(value: Any) -> bool:
    return bool(_ASKING.ask(value, _IS_VIEW) if _asks(value) else _VIEW(value))  # type: ignore[misc]


def _base(value: Any) -> Any:
    """Return the tensor that ``value`` is a view of, or None. ``RuntimeError`` for a given tensor
    that is a view, and for a view of it: the base of both is not given."""
    base = root = _BASE.fget(value)
    if _asks(value):
        base, root = None, value
    if not _asks(root) or not _is_view(root):
        return base
    raise RuntimeError(
        "the program asks a tensor that it is given for its base, '_base', which it is not given. "
        f"Pass the base, and take the view in the program.{here()}"
    )


def _version(value: Any) -> int:
    """Return the version, after the versions of all given tensors are asked for: any of them may
    share its counter."""
    _ASKING.ask_versions()
    version: int = _VERSION_OF.__get__(value)
    return version


_VERSION_OF: Any = vars(TensorBase)[_VERSION]
_LEAF, _GRAD_FN = vars(GradValue)["is_leaf"], vars(GradValue)["grad_fn"]
_BASE, _VIEW = vars(Value)["_base"], vars(Value)["_is_view"]
_OF_ARGUMENTS: tuple[tuple[Any, str, Any, Any], ...] = (
    (GradValue, "is_leaf", _LEAF, property(_is_leaf)),
    (GradValue, "grad_fn", _GRAD_FN, property(_grad_fn)),
    (Value, "_base", _BASE, property(_base)),
    (Value, "_is_view", _VIEW, _is_view),
    (Value, _VERSION, _VERSION_OF, property(_version)),
)
"""Class, name, what values say, and what they say while a capture asks."""


def _given(value: object) -> list[str]:
    """Return the names of the attributes that a program has given to the value ``value``."""
    return [name for name in attributes_of_user(value) if not name.startswith("__")]
