"""Subclasses of ``torch.Tensor`` and ``nn.Parameter`` that programs define, as
tensors of the session.

    class Length(torch.Tensor): ...
    runtime.tensor([1.0]).as_subclass(Length)        # isinstance(…, Length), isinstance(…,
                                                     # runtime.Tensor)

PyTorch does not let one object become an instance of two classes. So for each class of a user, a
class is made that inherits from it and from the session's. A user's class with
``__torch_dispatch__`` handles its own ATen calls. It works below the tape, as it does below
torch's: a value holds an instance of it, which sees the calls after they are recorded. The two
share the attributes that users set."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import handle_torch_function, has_torch_function_unary
from torch.utils._python_dispatch import TorchDispatchMode

from ..rules.ops import Op
from ..seam.keys import reopen_keys
from ..seam.levels import SCOPE, Level, Value, composes, innermost
from ..seam.shells import VALUES
from ..tape.running import STAND_INS
from . import pickling
from .tensor import _STATE, SESSION, Tensor, dispatches

_handle: Any = handle_torch_function


class Subclassed(Tensor):
    """The base class after the user's class, in place of ``torch.Tensor``: calls of ``super()``
    come here. ``_kind``: the user's class."""

    _kind: type[torch.Tensor]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return pickling.reduced(self, self._kind, protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        if has_torch_function_unary(self):
            return _handle(Tensor.__repr__, (self,), self)  # type: ignore[no-any-return]
        return super().__repr__()


# Set after the class is made: torch replaces its own ``__torch_function__`` by one that does
# nothing when it makes a class with ``__torch_dispatch__``.
Subclassed.__torch_function__ = classmethod(torch.Tensor.__torch_function__.__func__)  # type: ignore[assignment, attr-defined]


def _asking(method: Callable[..., Any]) -> Callable[..., Any]:
    """``method``, a method of the session's tensors, that asks the ``__torch_function__`` of the
    user's class first."""

    @functools.wraps(method)
    def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if has_torch_function_unary(self):
            return _handle(method, (self,), self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return asked


for _name in (
    *(
        "backward",
        "detach_",
        "numpy",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "requires_grad_",
        "retain_grad",
        "tolist",
    ),
    *(
        "new_empty",
        "new_empty_strided",
        "new_full",
        "new_ones",
        "new_tensor",
        "new_zeros",
        "__deepcopy__",
    ),
):
    setattr(Subclassed, _name, _asking(getattr(Tensor, _name)))
_data: Any = Tensor.data
Subclassed.data = property(_asking(_data.fget), _data.fset, _data.fdel)  # type: ignore[method-assign, assignment]


class _BelowTheTape(TorchDispatchMode):
    """While entered, calls on tensors of the session are recorded nowhere, as torch's tape
    records nothing inside ``__torch_dispatch__``. Their results are tensors of the session
    without a history."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every call passes through a wrapper that costs more than the dispatch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        of_session = innermost(args, kwargs) is SESSION
        if not composes(types):
            reopen_keys(func)
            return (
                Level.call(SESSION, func, args, kwargs or {})
                if of_session
                else func(*args, **(kwargs or {}))
            )
        if not of_session:
            return NotImplemented  # torch asks the user's class
        with self:
            return func(*SESSION.lowered_args(args), **SESSION.lowered_kwargs(kwargs or {}))


@functools.cache
def _handled_below(func: torch._ops.OpOverload) -> Op:
    """The op of ``func`` for an instance that handles the call itself."""
    op = Op(func)
    kernel = op.kernel

    def unrecorded(*args: Any, **kwargs: Any) -> Any:
        with _BelowTheTape():  # type: ignore[no-untyped-call]
            return kernel(*args, **kwargs)

    op.kernel = unrecorded
    return op


class _Wrapper(Subclassed):
    """A value that holds an instance of a class with its own ``__torch_dispatch__``. The two share
    the attributes that users set."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if SCOPE.levels or STAND_INS or innermost(args, kwargs) is not SESSION:
            return Value.__torch_dispatch__(func, types, args, kwargs)
        reopen_keys(func)
        return SESSION.call(_handled_below(func), args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name in _STATE:
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _STATE or name.startswith("__") or hasattr(Tensor, name):
            object.__setattr__(self, name, value)
        else:
            setattr(self._inner, name, value)

    def __getstate__(self) -> Any:
        return self._inner.__getstate__()


@functools.cache
def session_class(kind: type[torch.Tensor]) -> type[Tensor]:
    """The class of the session's tensors that are a ``kind`` for users."""
    if issubclass(kind, Tensor):
        return kind
    if issubclass(kind, (Value, FakeTensor)) or kind in (
        torch.Tensor,
        torch.nn.Parameter,
        torch.nn.Buffer,
    ):
        return Tensor
    body: dict[str, Any] = {
        "_kind": kind,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    base: type[Tensor] = Subclassed
    if dispatches(kind):
        base = _Wrapper
        for name in ("__torch_dispatch__", "__getattr__", "__setattr__", "__getstate__"):
            body[name] = next(vars(c)[name] for c in base.__mro__ if name in vars(c))
    of_bases = (session_class(b) for b in kind.__bases__ if issubclass(b, torch.Tensor))
    bases = dict.fromkeys((kind, *(b for b in of_bases if issubclass(b, Subclassed)), base))
    made: Any = types.new_class(
        kind.__name__, tuple(bases), {}, lambda namespace: namespace.update(body)
    )
    if "__torch_function__" in vars(made):
        del made.__torch_function__
    VALUES.add(made)  # ``Value.__init_subclass__`` does so, but a user's may not call it
    return made  # type: ignore[no-any-return]


SESSION.class_of = session_class
