"""Makes tensors of the session of the subclasses of ``torch.Tensor`` and ``nn.Parameter`` that
programs define.

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
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from ..errors import NestedTensor
from ..rules.ops import Op
from ..seam.ambient import Ambient
from ..seam.call_types import Arguments, Keywords
from ..seam.dispatch import innermost
from ..seam.keys import reopen_keys
from ..seam.levels import Level, Value, composes
from ..seam.scope import SCOPE
from ..seam.shells import ON_NEW_VALUES, VALUES, same_shape
from ..tape.running import STAND_INS
from ..torch_private.dispatcher import OpOverload
from ..torch_private.fake_tensors import FakeTensor
from ..torch_private.mode_stacks import (
    TorchDispatchMode,
    find_torch_dispatch_rule,
    no_function_handler,
    unseen_by_classes,
    without_dispatch_to_python,
)
from ..torch_private.native_tensors import as_installed, make_subclass, make_wrapper_subclass
from ..torch_private.pytrees import pytree
from . import pickling
from .tensor import _STATE, SESSION, Tensor, dispatches, wrap

_handle: Any = handle_torch_function
_dispatched: Any = Value.__torch_dispatch__.__func__  # type: ignore[attr-defined]


class Subclassed(Tensor):
    """The base class after the user's class, in place of ``torch.Tensor``: calls of ``super()``
    come here. ``_kind``: the user's class."""

    _kind: type[torch.Tensor]

    def __reduce_ex__(self, protocol: object) -> Any:
        return pickling.reduced(self, self._kind, protocol)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        if has_torch_function_unary(self):
            public = PUBLIC.get("__repr__", Tensor.__repr__)
            return _handle(public, (self,), self, tensor_contents=tensor_contents)  # type: ignore[no-any-return]
        own: Any = super()
        return str(own.__repr__(tensor_contents=tensor_contents))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: OpOverload,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Any:
        # the runtime reads sizes, and no function that a user's class handles
        with unseen_by_classes():
            return _dispatched(cls, func, types, args, kwargs)


# Set after the class is made: torch replaces its own ``__torch_function__`` by one that does
# nothing when it makes a class with ``__torch_dispatch__``.
Subclassed.__torch_function__ = classmethod(torch.Tensor.__torch_function__.__func__)  # type: ignore[assignment, attr-defined]


# Under the drop-in: the attributes of ``torch.Tensor`` that lead to the session, by their names. A
# user's ``__torch_function__`` gets these.
PUBLIC: dict[str, Any] = {}
# torch's own function for each of these
NATIVE: dict[object, object] = {}


def asking(name: str, method: Callable[..., object]) -> Callable[..., object]:
    """Return ``method`` of the session's tensors, which is called ``name``. It asks modes and the
    ``__torch_function__`` of the user's class first."""

    @functools.wraps(method)
    def ask_and_call(self: object, *args: object, **kwargs: object) -> object:
        if has_torch_function_unary(self):
            return _handle(PUBLIC.get(name, method), (self,), self, *args, **kwargs)
        with unseen_by_classes():
            return method(self, *args, **kwargs)

    return ask_and_call


def _asking_property(name: str, own: Any) -> property:
    """Return the property ``own`` of the session's tensors, which is called ``name``. It asks the
    ``__torch_function__`` of the user's class first, as torch's."""

    def get(self: object) -> Any:
        if name in PUBLIC and has_torch_function_unary(self):
            return _handle(PUBLIC[name], (self,), self)
        with unseen_by_classes():
            return own.fget(self)

    return property(get, own.fset, own.fdel)


for _name in (
    *("backward", "detach_", "numpy", "register_hook", "register_post_accumulate_grad_hook"),
    *("requires_grad_", "retain_grad", "tolist", "__deepcopy__", "__array__", "_is_view"),
    *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"),
):
    setattr(Subclassed, _name, asking(_name, getattr(Tensor, _name)))
for _name in (
    *("_backward_hooks", "_base", "data", "grad", "grad_dtype", "grad_fn", "is_leaf"),
    *("output_nr", "requires_grad", "retains_grad"),
):
    setattr(Subclassed, _name, _asking_property(_name, getattr(Tensor, _name)))


_aten, _prim = torch.ops.aten, torch.ops.prim
# What torch asks an instance whose class answers for its sizes, its strides, its device or its
# layout (the policies of ``_make_wrapper_subclass``), and how to ask the instance itself.
_ANSWERS: dict[object, Callable[..., object]] = {
    _aten.size.default: lambda tensor: tensor.size(),
    _aten.sym_size.default: lambda tensor: tensor.size(),
    _aten.stride.default: lambda tensor: tensor.stride(),
    _aten.sym_stride.default: lambda tensor: tensor.stride(),
    _aten.storage_offset.default: lambda tensor: tensor.storage_offset(),
    _aten.sym_storage_offset.default: lambda tensor: tensor.storage_offset(),
    _aten.numel.default: lambda tensor: tensor.numel(),
    _aten.sym_numel.default: lambda tensor: tensor.numel(),
    _aten.dim.default: lambda tensor: tensor.dim(),
    _aten.is_contiguous.default: lambda tensor: tensor.is_contiguous(),
    _aten.is_contiguous.memory_format: lambda tensor, memory_format: tensor.is_contiguous(
        memory_format=memory_format
    ),
    _prim.device.default: lambda tensor: tensor.device,
    _prim.layout.default: lambda tensor: tensor.layout,
}
# the names of the arguments of ``_make_wrapper_subclass`` behind the class, in order
_OPTIONS = (
    *("size", "strides", "storage_offset", "memory_format", "dtype", "layout", "device"),
    *("pin_memory", "requires_grad", "dispatch_sizes_strides_policy", "dispatch_device"),
    "dispatch_layout",
)
_POLICIES = ("dispatch_sizes_strides_policy", "dispatch_device", "dispatch_layout")
# the policies by which a value asks the instance that it holds
_ASK_ALL = {
    "dispatch_sizes_strides_policy": "sizes",
    "dispatch_device": True,
    "dispatch_layout": True,
}


# The attributes of every tensor. If a user's class stores something by the name of a method,
# such as ``self.t``, both objects have it: else the value would find the method.
_OF_TENSORS = {name: getattr(Tensor, name) for name in dir(Tensor)}


class _Hooks(Ambient):
    """``depth``: inside how many ``__torch_dispatch__`` of users' classes this thread is that see
    values of the session. ``made``: by the ``id`` of an instance, the value around it that such a
    hook has returned."""

    depth = 0
    made: dict[int, object] | None = None


HOOKS = _Hooks()


class _Hook:
    """A block in which a user's class makes values."""

    def __enter__(self) -> None:
        HOOKS.depth += 1

    def __exit__(self, *error: object) -> None:
        HOOKS.depth -= 1


def _handles(kind: type) -> bool:
    return kind not in VALUES and dispatches(kind) and not issubclass(kind, FakeTensor)


def _has_memory(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor``, an instance of a user's class, has elements of its own. An
    instance of ``_make_wrapper_subclass`` has none."""
    return tensor.layout is torch.strided and tensor.data_ptr() != 0


def _value_of(tensor: object) -> object:
    """Return the value around ``tensor``, if that is an instance of a user's class."""
    if not _handles(type(tensor)):
        return tensor
    reference = vars(tensor).get("_value")
    value = None
    if reference is not None:
        value = reference()
    if value is None or value._inner is not tensor:
        value = SESSION.wrap(tensor)
    return value


def _instance_in(value: Any) -> object:
    """Return the instance in ``value``. The value is the one that users get for it."""
    inner = value._inner
    if HOOKS.made is not None and value._edge is None and not value._req:
        HOOKS.made[id(inner)] = value
    return inner


class _BelowTheTape(TorchDispatchMode):
    """A mode in which calls on tensors of the session are recorded nowhere, as torch's tape records
    nothing inside ``__torch_dispatch__``. Their results are tensors of the session without a
    history."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every call passes through a wrapper that costs more than the dispatch

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Any:
        """Run a call below the tape: on the instances inside, or by the user's classes."""
        # what torch asks a value for its sizes, the instance inside answers
        answer = _ANSWERS.get(func)
        if answer is not None and isinstance(args[0], _Wrapper):
            return answer(args[0]._inner, *args[1:])
        of_session = innermost(args, kwargs) is SESSION
        if not composes(types):
            reopen_keys(func)
            if of_session:
                # the call of any level, not that of the session, which would record it
                return Level.call(SESSION, func, args, kwargs or {})
            return func(*args, **(kwargs or {}))
        if not of_session:
            return self._ask_classes(func, types, args, kwargs or {})
        # torch leaves a mode while it handles a call, and the user's class makes further ones
        with self:
            return func(*SESSION.lowered_args(args), **SESSION.lowered_kwargs(kwargs or {}))

    def _ask_classes(self, func: OpOverload, types: Any, args: object, kwargs: object) -> object:
        """Return what the user's classes answer, which are asked in torch's order. They see the
        values of the session, as their users do."""
        if as_installed(make_wrapper_subclass) is make_wrapper_subclass:
            return NotImplemented  # not under the drop-in: a class makes instances, torch asks it
        kinds = list(filter(_handles, types))
        with self, _Hook():
            args, kwargs = pytree.tree_map_only(torch.Tensor, _value_of, (args, kwargs))
            for kind in kinds:
                rule = None
                if func.namespace not in ("aten", "prims"):
                    rule = find_torch_dispatch_rule(func, kind)
                ask = functools.partial(rule, kind) if rule else kind.__torch_dispatch__
                answer = ask(func, tuple(kinds), args, kwargs)
                if answer is not NotImplemented:
                    return pytree.tree_map_only(_Wrapper, _instance_in, answer)
        return NotImplemented


@functools.cache
def _handled_below(func: OpOverload) -> Op:
    """Return the op of ``func`` for an instance that handles the call itself."""
    op = Op(func)
    kernel = op.kernel

    def unrecorded(*args: object, **kwargs: object) -> object:
        with _BelowTheTape():  # type: ignore[no-untyped-call]
            return kernel(*args, **kwargs)

    op.kernel = unrecorded
    return op


class _Wrapper(Subclassed):
    """A value around an instance of a class with its own ``__torch_dispatch__``. The two share the
    attributes that users set.

    ``_asks``: whether torch asks the instances for their sizes and the like, because one was
    created with a policy. The values ask the instances then.
    """

    _asks = False

    @classmethod
    def holding(cls, inner: torch.Tensor) -> Any:
        """Return the value that a hook has returned around ``inner``, or a new one."""
        value: Any = HOOKS.made.pop(id(inner), None) if HOOKS.made else None
        if value is not None:
            return value
        with unseen_by_classes():
            if inner.layout is torch.jagged:
                raise NestedTensor
            if cls._asks:
                value = make_wrapper_subclass(
                    cls,
                    inner.shape,
                    dtype=inner.dtype,
                    layout=inner.layout,
                    device=inner.device,
                    **_ASK_ALL,
                )
                value._inner = inner
            elif _has_memory(inner):
                with without_dispatch_to_python():
                    value = make_subclass(cls, inner)
                value._inner = inner
            else:
                value = same_shape(cls, inner)
        shared = vars(inner)
        shared["_value"] = weakref.ref(value)
        # what the user's class has stored by the name of a method, see `_OF_TENSORS`
        value.__dict__.update({name: shared[name] for name in shared.keys() & _OF_TENSORS.keys()})
        return value

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: OpOverload,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Any:
        """Record a call, and run its kernel on the instances, whose classes handle it."""
        answer = _ANSWERS.get(func)
        if answer is not None and isinstance(args[0], _Wrapper):
            with unseen_by_classes():
                return answer(args[0]._inner, *args[1:])
        if SCOPE.levels or STAND_INS or innermost(args, kwargs) is not SESSION:
            return Subclassed.__torch_dispatch__(func, types, args, kwargs)
        reopen_keys(func)
        # the hooks of this call return values of their own; an outer call goes on with its table
        around, HOOKS.made = HOOKS.made, {}
        try:
            return SESSION.call(_handled_below(func), args, kwargs or {})
        finally:
            HOOKS.made = around

    def __getattr__(self, name: str) -> Any:
        # also `_inner`, for which this method would call itself without end
        if name in _STATE:
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        # properties of tensors, such as `grad`, are those of the value
        if name in _STATE or name.startswith("__") or hasattr(_OF_TENSORS.get(name), "__set__"):
            object.__setattr__(self, name, value)
            return
        setattr(self._inner, name, value)
        if name in _OF_TENSORS:
            self.__dict__[name] = value

    def __getstate__(self) -> object:
        return pickling.state_of(self._inner, _STATE)


def _silent() -> type:
    """Return a base class whose subclass is no news for the ``__init_subclass__`` of a user's
    class. Each class has its own, so any order of bases is consistent."""

    class Silent:
        __slots__ = ()

        def __init_subclass__(cls) -> None:
            return

    return Silent


@functools.cache
def session_class(kind: type[torch.Tensor]) -> type[Tensor]:
    """Return the class of the session's tensors that are a ``kind`` for users."""
    if issubclass(kind, Tensor):
        return kind
    if issubclass(kind, (Value, FakeTensor)) or kind in (
        torch.Tensor,
        torch.nn.Parameter,
        torch.nn.Buffer,
    ):
        return Tensor
    body: dict[str, object] = {
        "_kind": kind,
        "_shown": kind,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    base: type[Tensor] = Subclassed
    if dispatches(kind):
        base = _Wrapper
        for name in ("__torch_dispatch__", "holding", "__getattr__", "__setattr__", "__getstate__"):
            body[name] = _entry_of(base, name)
    bases = _bases_of(kind, base)
    cls: Any = types.new_class(
        kind.__name__, (_silent(), *bases), {}, lambda namespace: namespace.update(body)
    )
    # torch has put one there that does nothing, as above; the user's is inherited
    if "__torch_function__" in vars(cls):
        del cls.__torch_function__
    VALUES.add(cls)
    for listener in ON_NEW_VALUES:
        listener(cls)
    return cls  # type: ignore[no-any-return]


def _entry_of(cls: type, name: str) -> object:
    """Return the attribute ``name`` as the body of a class has it: not bound, not called."""
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    raise AttributeError(name)


def _bases_of(kind: type[torch.Tensor], base: type[Tensor]) -> Iterable[type]:
    """Return the bases of the session's class for ``kind``, each once: ``kind``, the classes of the
    session for its bases, and ``base``."""
    of_bases = [
        session_class(parent) for parent in kind.__bases__ if issubclass(parent, torch.Tensor)
    ]
    subclassed = [parent for parent in of_bases if issubclass(parent, Subclassed)]
    return dict.fromkeys((kind, *subclassed, base))


SESSION.class_of = session_class


def note_policy(kind: object, args: Arguments, kwargs: Keywords) -> dict[str, object]:
    """Return the arguments of a call of ``_make_wrapper_subclass`` by name. A class whose instances
    answer for their sizes, their device or their layout is noted."""
    options = {**dict(zip(_OPTIONS, args, strict=False)), **kwargs}
    if any(map(options.get, _POLICIES)):
        cls: Any = session_class(getattr(kind, "_kind", kind))
        cls._asks = True
    return options


def wrapper_subclass(make: Callable[..., Any], cls: Any, options: dict[str, Any]) -> Any:
    """Do ``_make_wrapper_subclass``, which is ``make``: return a tensor of the session with the
    instance inside. No attribute of the instance is read: its ``__init__`` comes later."""
    kind = getattr(cls, "_kind", cls)
    requires_grad = options.pop("requires_grad", False)
    value_class: Any = session_class(kind)
    if options.get("layout") is torch.jagged:
        raise NestedTensor
    inner = make(kind, **options)
    # a class that handles no calls needs no value around its instance
    if not dispatches(kind):
        with unseen_by_classes():
            return wrap(inner, requires_grad)
    if value_class._asks:
        options = {**options, **_ASK_ALL}
    value = make(value_class, **options)
    value._inner, value._edge, value._req = inner, None, requires_grad
    vars(inner)["_value"] = weakref.ref(value)
    return value


def class_of_results(x: object) -> type[torch.Tensor] | None:
    """Return the class of what is computed with ``x``. None if it is that of any tensor."""
    kind: Any = type(x)
    if isinstance(x, Subclassed):
        kind = x._kind
    elif isinstance(x, (Value, FakeTensor)) or not isinstance(x, torch.Tensor):
        return None
    if kind is torch.Tensor or dispatches(kind):
        return None
    # a parameter's class says that results are of none
    return None if kind.__torch_function__ is no_function_handler else kind


def holds_instance(tensor: object) -> bool:
    """Return whether ``tensor`` is a value around an instance of a class with
    ``__torch_dispatch__``."""
    return isinstance(tensor, _Wrapper)


@contextmanager
def unnoted(*tensors: object) -> Iterator[None]:
    """Let no instance of a user's class refer to its value, in this block. Torch exchanges no
    tensors with weak references."""
    values = [tensor for tensor in tensors if isinstance(tensor, _Wrapper)]
    for value in values:
        vars(value._inner).pop("_value", None)
    try:
        yield
    finally:
        for value in values:
            vars(value._inner)["_value"] = weakref.ref(value)
