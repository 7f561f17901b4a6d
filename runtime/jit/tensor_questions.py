"""What a program asks of a tensor about the object itself, and not about its elements.

    jit(lambda x: x * x.storage_offset())(base[2:])     # a program for arguments with the offset 2

A capture has a value in place of ``base[2:]``. Sizes, strides, dtype and device are those of the
value. What a value would say otherwise than the tensor is in the table ``_OF_VALUES``. There the
value answers with what the tensor says, or refuses with the line. From then on a call in which a
tensor says something else is of another kind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch

from ..aot.python_state.value_attributes import is_own
from ..aot.python_state.values import MISSING
from ..seam.ambient import Ambient
from ..seam.level_mode import entering_mode
from ..seam.levels import Value
from ..seam.locks import lock_of
from ..seam.user_code import is_user_code_watched
from ..session.captures import CAPTURE
from ..tape.values import GradValue
from ..torch_private.native_tensors import TensorBase
from ..trace.provenance import here

_IS_PARAMETER = "_is_param"
"""What ``isinstance(x, torch.nn.Parameter)`` asks of a tensor that is of another class."""

VERSION = "_version"
_IS_VIEW, _IS_INFERENCE, _OFFSET = "_is_view", "is_inference", "storage_offset"
_GRAD_DTYPE = "grad_dtype"
_NO_LEAF = "no leaf"
_SET_TO = "is_set_to"
_METHODS = (_IS_VIEW, _IS_INFERENCE, _OFFSET)


def answer_of(tensor: Any, name: str) -> object:
    """Return what ``tensor`` says to the question ``name``; ``MISSING`` if it has no answer, or if
    the call has no such tensor."""
    if name == _IS_PARAMETER:
        return True if isinstance(tensor, torch.nn.Parameter) else MISSING
    if not isinstance(tensor, torch.Tensor):
        return MISSING
    if name in _METHODS:
        return getattr(tensor, name)()
    if name == _GRAD_DTYPE and not tensor.is_leaf:
        return _NO_LEAF
    if name == VERSION and tensor.is_inference():  # torch raises: it counts no versions there
        return MISSING
    return getattr(tensor, name, MISSING)


# --- what a value of this thread's capture answers ------------------------------------------------


class _Asking(Ambient):
    """``ask``: gives what the tensor has for which a value of this thread's capture stands; raises
    ``AttributeError`` if there is nothing. ``ask_all``: gives the answers of all such tensors.
    ``may_have``: tells whether the program's code may have a name. ``edges``: by identity of such a
    value the history that the program finds."""

    ask: Callable[[Any, str], Any] | None = None
    ask_all: Callable[[str], list[object]]
    may_have: Callable[[str], bool]
    edges: Mapping[int, object] = {}


_ASKING = _Asking()
_LOCK = lock_of(sys.modules[__name__], "_LOCK")
_count = 0  # how many captures ask, in all threads


@contextmanager
def answering(
    ask: Callable[[Any, str], object],
    ask_all: Callable[[str], list[object]],
    may_have: Callable[[str], bool],
    edges: Mapping[int, object],
) -> Iterator[None]:
    """Answer by ``ask(value, name)``, while entered, when this thread asks for an attribute that
    Python does not find. At other times the class has no ``__getattr__``: Dynamo takes one for a
    reason to know nothing of the tensors of a class. See :class:`_Asking`."""
    around = dict(vars(_ASKING))  # as a whole: outside of a capture some have no value
    _ASKING.ask, _ASKING.ask_all, _ASKING.edges = ask, ask_all, edges
    _ASKING.may_have = may_have
    _ask_of_values(1)
    try:
        yield
    finally:
        _ask_of_values(-1)
        vars(_ASKING).clear()
        vars(_ASKING).update(around)


def _ask_of_values(change: int) -> None:
    """Count the contexts that are entered, of all threads, and let the class of values have
    ``__getattr__`` while there are any. ``change``: 1 for one that begins, -1 for one that ends."""
    global _count
    with _LOCK:
        before, _count = _count, _count + change
        # The classes are those of all threads. One that captures nothing has no `ask`, so that it
        # gets the answers of the classes.
        if not before:
            Value.__getattr__ = _answer  # type: ignore[attr-defined]
            for question in _OF_VALUES:
                setattr(question.cls, question.name, question.asking)
        elif not _count:
            del Value.__getattr__  # type: ignore[attr-defined]
            for question in _OF_VALUES:
                question.leave()


def _answer(value: object, name: str) -> object:
    """Return what ``value.name`` is, which Python has not found."""
    kind: Any = type(value)
    own = name.startswith("__") or (name != _IS_PARAMETER and is_own(kind, name))
    if _ASKING.ask is None or own:
        return object.__getattribute__(value, name)  # the same error once more
    return _ASKING.ask(value, name)


# --- the questions --------------------------------------------------------------------------------


def _asks(value: Any) -> bool:
    """Return whether ``value`` stands for a tensor that this thread's program is given."""
    return _ASKING.ask is not None and id(value) in _ASKING.edges


def _is_as_given(value: Any) -> bool:
    """Return whether ``value`` stands for a given tensor and has the history that the program
    finds."""
    return _asks(value) and getattr(value, "_edge", None) is _ASKING.edges[id(value)]


def _may_be_asked(name: str) -> bool:
    """Return whether a program that is captured may ask for ``name``: the user's code runs, and has
    the name."""
    asks = _ASKING.ask is not None and is_user_code_watched()
    return asks and _ASKING.may_have(name)


def _ask(value: object, name: str) -> Any:
    assert _ASKING.ask is not None
    return _ASKING.ask(value, name)


def _refuse(name: str, why: str) -> NoReturn:
    raise RuntimeError(f"the program asks a tensor for {name!r}, {why}{here()}")


def _is_given_leaf(value: Any) -> bool:
    """Return whether ``value`` stands for a leaf that requires grad, with the history that the
    program finds."""
    return value._edge is not None and _is_as_given(value) and bool(_ask(value, "is_leaf"))


def _is_leaf(value: Any) -> Any:
    return _is_given_leaf(value) or _LEAF.fget(value)


def _grad_fn(value: Any) -> Any:
    return None if _is_given_leaf(value) else _GRAD_FN.fget(value)


def _is_view(value: Any) -> bool:
    return bool(_ask(value, _IS_VIEW) if _asks(value) else _VIEW(value))


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


def _version(value: Any) -> Any:
    """Return the version, after the versions of all given tensors are asked for: any of them may
    share its counter."""
    if _may_be_asked(VERSION) and MISSING in _ASKING.ask_all(VERSION):
        _refuse(VERSION, "and is given one of inference mode, which has none. Pass its clone().")
    return _NATIVE[VERSION].__get__(value)


def _storage_offset(value: Any) -> Any:
    """Return the offset, after the offsets of all given tensors are asked for: any of them may have
    ``value`` as a view."""
    if any(map(_may_be_asked, (_OFFSET, f"sym_{_OFFSET}"))):
        _ASKING.ask_all(_OFFSET)
    return _NATIVE[_OFFSET](value)


def _is_inference(value: Any) -> Any:
    """Return whether ``value`` is of inference mode. ``RuntimeError`` for what the program computes
    where a tensor from outside is: what is a view of it is, too."""
    if not _may_be_asked(_IS_INFERENCE):
        return _NATIVE[_IS_INFERENCE](value)
    of_given = _ASKING.ask_all(_IS_INFERENCE)
    if _asks(value):
        return _ask(value, _IS_INFERENCE)
    mode = entering_mode()
    if True in of_given or (mode is not None and any(map(_NATIVE[_IS_INFERENCE], mode.found))):
        _refuse(
            _IS_INFERENCE,
            "which it has computed, and comes to a tensor of inference mode. Let it use a clone().",
        )
    return _NATIVE[_IS_INFERENCE](value)


def _is_set_to(value: Any, other: Any) -> Any:
    """Return whether two tensors have one memory and one layout. ``RuntimeError`` where that is not
    known of another call: one of them is given, or is from outside."""
    if _may_be_asked(_SET_TO) and not (_is_computed(value) and _is_computed(other)):
        _refuse(_SET_TO, "which compares memory that another call may have elsewhere.")
    return _NATIVE[_SET_TO](value, other)


def _is_computed(x: object) -> bool:
    return isinstance(x, Value) and not _asks(x)


def _as_given(value: Any, name: str, of_value: Any) -> Any:
    """Return what the tensor says for which ``value`` stands, as long as the program has not given
    it another history. ``of_value``: what other values say."""
    return _ask(value, name) if _is_as_given(value) else of_value(value)


def _hooks(value: Any, name: str, of_value: Any) -> Any:
    """Return the hooks of the program's own. ``RuntimeError`` where the tensor that is given has
    some."""
    # only to raise: hooks of the caller's tensor are no constant, and so no answer
    if _asks(value) and _may_be_asked(name):
        _ask(value, name)
    return of_value(value)


def _grad_dtype(value: Any) -> Any:
    """Return the dtype of gradients. ``RuntimeError`` for what is no leaf: from which version of
    torch on that has one is not known here."""
    if not _may_be_asked(_GRAD_DTYPE):
        return _NATIVE[_GRAD_DTYPE].__get__(value)
    found = _ask(value, _GRAD_DTYPE) if _is_as_given(value) else _NO_LEAF
    if found == _NO_LEAF:
        _refuse(_GRAD_DTYPE, "no leaf that it is given. Ask for the dtype of the tensor.")
    return found


def _gradient(value: Any) -> Any:
    """Return ``value._grad``, which is another name of ``value.grad``."""
    if _asks(value) and CAPTURE.gradients is not None:
        return CAPTURE.gradients.gradient(value)
    return vars(value).get(_GRAD)


def _set_gradient(value: Any, new: object) -> None:
    if _asks(value) and CAPTURE.gradients is not None:
        CAPTURE.gradients.assign(value, new)
    else:
        vars(value)[_GRAD] = new


def _refused(value: Any, name: str) -> Any:
    """Raise: ``name`` tells the stand-in of a capture from the tensor for which it stands."""
    if not _may_be_asked(name):
        return _NATIVE[name].__get__(value)
    _refuse(name, "which says what no later call has: a capture has a stand-in for the tensor.")


def _not_assigned(value: Any, new: object, name: str) -> None:
    if not _may_be_asked(name):
        _NATIVE[name].__set__(value, new)
        return
    raise RuntimeError(
        f"the program assigns to {name!r} of a tensor that it is given or computes. A call would "
        f"lose it: a graph has tensors alone. Assign it outside.{here()}"
    )


_GRAD = "_grad"
_POST_HOOKS = "_post_accumulate_grad_hooks"
_OF_STAND_INS = ("_cdata", "_grad_fn", "_python_dispatch")
_ABSENT = object()
_NATIVE: dict[str, Any] = {
    name: vars(TensorBase)[name]
    for name in (
        VERSION,
        _OFFSET,
        _SET_TO,
        _IS_INFERENCE,
        _GRAD_DTYPE,
        _POST_HOOKS,
        *_OF_STAND_INS,
    )
}
_LEAF, _GRAD_FN = vars(GradValue)["is_leaf"], vars(GradValue)["grad_fn"]
_BASE, _VIEW = vars(Value)["_base"], vars(Value)["_is_view"]


class _Question(NamedTuple):
    """``asking``: what the class ``cls`` has under ``name`` while a capture asks. ``of_class``:
    what it has at other times itself."""

    cls: Any
    name: str
    asking: Any
    of_class: Any

    def leave(self) -> None:
        """Let the class have again what it has at other times, which may be inherited."""
        if self.of_class is _ABSENT:
            delattr(self.cls, self.name)
        else:
            setattr(self.cls, self.name, self.of_class)


def _question(cls: type, name: str, asking: Any) -> _Question:
    return _Question(cls, name, asking, vars(cls).get(name, _ABSENT))


def _of_given(cls: type, name: str, answer: Callable[..., Any]) -> _Question:
    """Return the question whose ``answer`` gets the value, the name, and what the class says."""
    own = getattr(cls, name)
    of_class = own.fget if isinstance(own, property) else own.__get__
    get = partial(answer, name=name, of_value=of_class)
    put = partial(_not_assigned, name=name) if name in _NATIVE else own.fset
    return _question(cls, name, property(get, put))


_OF_VALUES: tuple[_Question, ...] = (
    _question(GradValue, "is_leaf", property(_is_leaf)),
    _question(GradValue, "grad_fn", property(_grad_fn)),
    _question(Value, "_base", property(_base)),
    _question(Value, _IS_VIEW, _is_view),
    _question(Value, VERSION, property(_version)),
    _question(Value, _OFFSET, _storage_offset),
    _question(Value, _SET_TO, _is_set_to),
    _question(Value, _IS_INFERENCE, _is_inference),
    _question(Value, _GRAD_DTYPE, property(_grad_dtype, partial(_not_assigned, name=_GRAD_DTYPE))),
    _question(GradValue, _GRAD, property(_gradient, _set_gradient)),
    _of_given(GradValue, "output_nr", _as_given),
    _of_given(GradValue, "retains_grad", _as_given),
    _of_given(GradValue, "_backward_hooks", _hooks),
    _of_given(Value, _POST_HOOKS, _hooks),
    *(_question(Value, name, property(partial(_refused, name=name))) for name in _OF_STAND_INS),
)
"""The questions that a value does not answer as the tensor does for which it stands. All others are
about sizes, dtype, device and the like, which a value shares with the tensor, or ops of ATen."""
