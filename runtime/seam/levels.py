"""Levels and their values: the one seam between programs and transforms.

A *level* is one running transform. A *value* is an instance of a ``torch.Tensor`` subclass. It
belongs to one level and has an ``_inner`` tensor. The inner tensor is a value of an outer level,
or a plain tensor. ``__torch_dispatch__`` of any value looks for the innermost level among the
arguments and passes the call to it. That level unwraps its own values and calls tensor functions
again. Those calls find the next outer level by the same search. Nesting therefore needs no code
anywhere else.

Example: in ``vmap(grad(f))`` the value of ``grad`` has a value of ``vmap`` inside, and that one a
plain tensor. ``aten.sin`` of it goes to ``grad``, which records it, then to ``vmap``, which runs it
on the whole batch, and then to ATen.

The search is in :mod:`.dispatch`, the list of the levels whose function runs in :mod:`.scope`.
"""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch

from ..errors import InplaceError, called_from
from ..torch_private.dispatcher import OpOverload, below_autograd, set_excluded
from ..torch_private.fake_tensors import FakeTensor
from ..torch_private.mode_stacks import (
    no_function_handler,
    number_of_dispatch_modes,
    without_innermost_mode,
    without_modes,
)
from ..torch_private.native_autograd import increment_version
from ..torch_private.native_tensors import TensorBase
from ..torch_private.pytrees import pytree
from .call_types import Arguments, Keywords
from .containers import rewrapped, targets_by_alias, with_arguments
from .dispatch import hand_over, innermost
from .escapes import is_outlived
from .keys import CONJUGATE, NEGATIVE, VIEWS, ZERO, uncounted
from .literals import has_values, readable, reading_method, stacked
from .memory import guard_methods, place, refuse_access
from .nested_views import VIEW_OPS, leaves_unmarked, note_views, root_of
from .scope import SCOPE, is_floating, lifted
from .shells import ON_NEW_VALUES, VALUES, Geometry, same_shape
from .surgery import GEOMETRY, change_geometry, set_class
from .user_code import is_capturing, is_user_code_watched, noted, settled

_no_dispatch = torch.Tensor.__torch_dispatch__
_numbers = itertools.count(1)
# torch's own: under the drop-in the names of `torch.Tensor` lead here
_new_tensor = torch.Tensor.new_tensor
_dlpack = torch.Tensor.__dlpack__
_is_nonzero = reading_method("__bool__")


class Level:
    """One running transform. Every method has a default, so a subclass overrides only what it
    does differently.

    ``number`` grows with every level ever entered, so the larger of two numbers is the inner one.
    ``values``: the class of its values.
    """

    __slots__ = ("__weakref__", "alive", "finalizers", "number")
    what = "transform"
    values: type[Value]
    hidden = 0  # how many leading dimensions of its inner tensor a value does not show
    keeps_history = False  # whether a value has a history besides its inner tensor
    # whether a view that was taken without grad mode requires grad if its base does, as a
    # tensor of torch does
    follows_bases = False
    # whether a call with a tensor of a user's class that handles its own calls is
    # left to that class
    leaves_classes = False
    # whether it is left to that class if the tensor consists of values of this level or of an
    # inner one. A capture has a place of its own for such tensors.
    leaves_parts = True
    # whether a value shows the strides and the offset that its inner tensor has, so that
    # `as_strided` of it shows the memory that it says
    shows_strides = False
    packs = False  # whether pack hooks see the tensors that this level saves
    finalizers: list[Callable[[], None]]  # called when the transform returns, in order

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.alive = True
        self.finalizers = []

    def call(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, object]) -> Any:
        """Run one ATen call. Some argument is a value of this level, and none is a value of an
        inner level. By default: run the call on the inner tensors, at the outer levels, and
        wrap its results. Example: ``call(aten.add.Tensor, (x, 2.0), {})``."""
        name = func._schema.name.partition("::")[2]
        # the object stays, and gets the sizes and strides of the result of the view op
        if name in GEOMETRY:
            return change_geometry(
                getattr(getattr(torch.ops.aten, name[:-1]), func._overloadname),
                args[0],
                args[1:],
                kwargs,
            )
        inner, options = self.lowered_args(args), self.lowered_kwargs(kwargs)
        if not func._schema.is_mutable:
            return self.valued(func(*inner, **options))
        # the dispatcher counts the write on the value
        return self.written(func, args, kwargs, uncounted(func, *inner, **options))

    def leaves(self, types: Sequence[type], args: Arguments, kwargs: Keywords | None) -> bool:
        """Return whether a call with arguments of ``types`` is left to a user's class that handles
        its own calls. Example: ``x * MaskedTensor(x, mask)``, where ``x`` is a value of this level.
        """
        if VALUES.issuperset(types) or not composes(types):
            return False
        if self.leaves_classes:
            return True
        return self.leaves_parts and self._is_inside_of(args, kwargs or {})

    def _is_inside_of(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Return whether one of the arguments is no value, and consists of values of this level or
        of an inner one."""
        tensors = [
            argument
            for argument in pytree.tree_leaves((args, kwargs))
            if isinstance(argument, torch.Tensor)
        ]
        if not any(map(self._is_around_part_of, tensors)):
            return False
        for tensor in tensors:
            if isinstance(tensor, Value) and composes((type(bottom(tensor)),)):
                raise RuntimeError(
                    f"a {type(bottom(tensor)).__name__} that comes from outside of "
                    f"{self.what} meets a "
                    "tensor of a user's class that is made inside of it. Make both inside, or "
                    f"both outside. It happened{called_from()}"
                )
        return True

    def _is_around_part_of(self, tensor: torch.Tensor) -> bool:
        """Return whether ``tensor`` consists of a value of this level or of an inner one."""
        return any(part._level.number >= self.number for part in _parts_of(tensor))

    def wrap(self, inner: torch.Tensor, history: Any = None, /) -> Any:
        """Return a value of this level with the inner tensor ``inner``, one of the outer levels.
        ``history``: what else the level stores, such as an edge of the tape, a tangent or a node of
        a graph. None: nothing."""
        value = same_shape(self.values, inner)
        value._level = self
        return value

    def valued(self, result: object) -> Any:
        """Return the result of an op, one tensor or several, as values without a history. Anything
        else stays as it is. Called for each tensor."""
        if isinstance(result, torch.Tensor):
            return self.wrap(result)
        return rewrapped(result, lambda tensor, _: self.valued(tensor))

    def lowered(self, a: Any) -> Any:
        """Return the inner tensor of ``a`` if it is a value of this level, else ``a``: what the
        outer levels see."""
        return a._inner if type(a) in VALUES and a._level is self else a

    def lowered_args(self, args: Iterable[Any]) -> list[Any]:
        """Return the arguments of an ATen call, and the elements of lists and tuples among them,
        each :meth:`lowered`."""
        lowered = list(args)
        for index, argument in enumerate(lowered):
            kind = type(argument)
            if kind in VALUES:
                if argument._level is self:
                    lowered[index] = argument._inner
            elif kind is list or kind is tuple:
                # as operators of `torch.distributed`
                if argument and isinstance(argument[0], (list, tuple)):
                    lowered[index] = self.lowered_args(argument)
                    continue
                # `lowered`, without its frame
                lowered[index] = [
                    item._inner if type(item) in VALUES and item._level is self else item
                    for item in argument
                ]
        return lowered

    def lowered_kwargs(self, kwargs: dict[str, object]) -> dict[str, Any]:
        """Return keyword arguments as :meth:`lowered_args` does positional ones."""
        if not kwargs:
            return kwargs
        return dict(zip(kwargs, self.lowered_args(kwargs.values()), strict=True))

    def written(
        self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, object], result: object
    ) -> Any:
        """Return the results of an op that writes to arguments: for a written argument the argument
        itself, for any other result a new value."""
        schema = func._schema
        names = (argument.name for argument in schema.arguments)
        targets = targets_by_alias(schema, dict(zip(names, args, strict=False)) | kwargs)
        # the kernel has resized the inner tensor, and the value would still show its old sizes
        for tensor in targets.values():
            is_mine = isinstance(tensor, Value) and tensor._level is self
            if is_mine and tensor.shape != tensor._inner.shape:
                raise InplaceError(
                    f"{func} changes the size of a value of {self.what}: "
                    "use an op that returns its result"
                )
        return with_arguments(schema, targets, result, self.valued)

    def elementwise(self, formula: Callable[..., Any], args: Arguments) -> Any:
        """Return ``formula(*args)`` for a formula of broadcasting elementwise ops. This level is
        the innermost one among ``args``."""
        return formula(*args)

    def batchwise(self, formula: Callable[..., object], args: Sequence[object]) -> Any:
        """Return ``formula(*args, batched)``, see :func:`run_batchwise`. This level is the
        innermost one among ``args``."""
        return formula(*args, (False,) * len(args))

    def layer(self, func: object, args: Sequence[object]) -> Any:
        """Return the results of a call of ``linear`` or of a recurrent layer, which ATen takes
        apart otherwise. NotImplemented: so it does.

        This level is the innermost one among ``args``.
        """
        return NotImplemented

    def is_constant(self, v: Value) -> bool:
        """Return whether ``v``, a value of this level, may be replaced by its inner tensor: the
        level keeps histories, and ``v`` has none."""
        return False

    def packing(self) -> AbstractContextManager[None]:
        """Return the context for a hook that packs or unpacks a tensor that this level saves."""
        return nullcontext()

    def acting(self) -> Level:
        """Return the object that handles calls with values of this level now: the level, or one
        that stands in for it."""
        return self

    def overtakes(self, address: int) -> bool:
        """Return whether the program has written to the storage at ``address``, from outside, and
        the storage does not have the new elements."""
        return False

    def has_written(self, v: torch.Tensor) -> bool:
        """Return whether the program has written to ``v``, a value of this level, and the level has
        only replaced the inner tensor of ``v`` for that."""
        return False

    def note_elements(self, t: torch.Tensor) -> None:
        """Note that the program has read the elements of ``t``, a tensor from outside."""

    def on_close(self, finalize: Callable[[], None]) -> None:
        """Call ``finalize`` when the transform returns."""
        self.finalizers.append(finalize)

    def refuse_captured_write(self, what: object) -> NoReturn:
        """Raise: ``what`` writes a value of this level into a tensor that is no value of it and
        cannot become one."""
        raise InplaceError(
            "During a grad (vjp, jvp, grad, etc) transform, the function provided attempted "
            f"to call in-place operation ({what}) that would mutate a captured Tensor: "
            f"it writes a value of {self.what} into a tensor that cannot take on its history, "
            "because it is older than the transform, belongs to another one, or is seen "
            "by other views (whose history would be lost). Make the buffer with new_zeros, "
            "zeros_like or clone of an input, or pass it to the transformed function as an input."
        )

    def run_inside(
        self, f: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Any:
        """Call ``f(*args, **kwargs)`` as code in the scope of this level. ``f``: the transformed
        function, or an op in terms of others."""
        around = SCOPE.levels
        SCOPE.levels = (*around, self)
        try:
            return f(*args, **kwargs)
        finally:
            SCOPE.levels = around

    def close(self) -> None:
        """End the transform. From now on only values without a history may be used:
        see :func:`~.escapes.outlived`."""
        for finalize in self.finalizers:
            finalize()
        self.finalizers.clear()
        self.alive = False

    def __repr__(self) -> str:
        state = "" if self.alive else " closed"
        return f"<{type(self).__name__} {self.number}{state}>"


class Value(torch.Tensor):
    """A tensor that belongs to one level, with the tensor of the next outer level inside.

    In ``vmap(grad(f))`` the value that ``f`` gets is one of ``grad``. Its inner tensor is a value
    of ``vmap``, whose inner tensor is the whole batch.
    """

    # of the class: the one level of all its values, which never closes
    _home: Level | None = None
    # the class that the value is for users
    _shown: type = torch.Tensor
    # A value stands for a tensor of torch. Libraries choose what they do for an object by its
    # class: by ``x.__class__``, or by the module of it.
    __class__ = property(operator.attrgetter("_shown"), lambda self, kind: self._become(kind))

    _level: Level
    # of the same logical shape, unless the level has `hidden` dimensions
    _inner: torch.Tensor
    # of the result of a view op: the ops that lead from its base to it, see `tape.view_history`
    _view: Any = None
    # how often its sizes or strides have changed in place, and where that happened last
    _reshaped: int = 0
    _reshaped_at: str = ""
    # by that number, the sizes, strides and offset that it had
    _earlier: dict[int, tuple[torch.Size, tuple[int, ...], int]] | None = None
    # the arguments from which `.shells` made it, None for a value with memory of its own; and
    # whether these have the strides of the inner tensor
    _geometry: Geometry | None = None
    _faithful: bool = False
    # see `.nested_views`
    _nesting: int = 0
    _root: Value | None = None
    # the value that this is an alias of, if a Function wrote to that value and returned it
    released_from: Value | None = None

    __torch_function__ = no_function_handler  # type: ignore[assignment]

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        VALUES.add(cls)
        for prepare in ON_NEW_VALUES:
            prepare(cls)

    @classmethod
    def holding(cls, inner: torch.Tensor) -> object:
        """Return a new value of this class that has ``inner`` inside and shows its shape."""
        return same_shape(cls, inner)

    def _become(self, kind: type) -> None:
        """Do ``self.__class__ = kind``. Users can only set what they read: the class that the value
        is for them."""
        if kind in VALUES:
            set_class(self, kind)
        elif kind is not self._shown:
            raise TypeError(
                f"__class__ of a tensor inside {self._level.what} is assigned. "
                "as_subclass() gives a tensor of another class."
            )

    @property
    def _base(self) -> Any:  # type: ignore[override]
        """Return the tensor that this is a view of, as ``torch.Tensor._base``."""
        return root_of(self)

    def _is_view(self) -> bool:
        return self._base is not None

    def count_write(self) -> None:
        """Count a write that the dispatcher has not seen."""
        increment_version([self])

    def retain_grad(self) -> None:
        """Raise: a value has no ``.grad``, and torch would say that it does not require grad."""
        raise noted(
            RuntimeError(
                "You are attempting to call Tensor.retain_grad() inside of a function being "
                f"transformed by {self._level.what}, whose tensors have no .grad. Return it and "
                "call retain_grad() of the result, or ask for the gradient with respect to it."
            )
        )

    def requires_grad_(self, requires_grad: bool = True) -> torch.Tensor:
        """Raise: with torch's flag on a value, torch's engine would record what the level does."""
        if requires_grad and not is_floating(self):
            raise settled(
                RuntimeError("only Tensors of floating point dtype can require gradients")
            )
        if requires_grad:
            self._refuse_leaf()
        return self

    def _refuse_leaf(self) -> NoReturn:
        """Raise: a value of this level cannot become a leaf."""
        raise noted(
            RuntimeError(
                "You are attempting to call Tensor.requires_grad_() inside of a function being "
                f"transformed by {self._level.what}, whose leaves are its inputs. "
                "torch.autograd.functional calls it unless create_graph=True. Use a transform in "
                "the function (grad, vjp, jacrev), or call it on what the transform is given."
            )
        )

    def start_leaf(self) -> object:
        """Do ``requires_grad_()`` for code of the runtime."""
        return self.requires_grad_()

    def _set_requires_grad(self, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    # an assignment is the method, since torch's own setter would set the flag of torch's engine
    requires_grad = property(
        TensorBase.requires_grad.__get__,  # type: ignore[attr-defined]
        lambda self, flag: self._set_requires_grad(flag),
    )

    def new_tensor(self, data: object, **options: Any) -> Any:  # type: ignore[override]
        """Return a tensor of numbers, as ``torch.Tensor.new_tensor``. Torch's own dispatches
        nothing, so no level would see the new tensor."""
        if isinstance(data, (list, tuple)):
            data = readable(data)
        tensor: Any
        if has_values(data):
            dtype, device = options.get("dtype"), options.get("device")
            tensor = stacked(data, dtype or self.dtype, device or self.device)
        else:
            tensor = _new_tensor(self, data, **options)
        number = -1  # a plain tensor becomes a value of all levels in scope
        if type(tensor) in VALUES:
            number = tensor._level.number
        return lifted(tensor, number)

    def detach_(self) -> Any:
        """Drop the history, as ``torch.Tensor.detach_``. Torch's own detaches only from torch's
        engine and dispatches nothing. This one calls the level."""
        func, types = torch.ops.aten.detach_.default, (type(self),)
        if not number_of_dispatch_modes():
            return Value.__torch_dispatch__(func, types, (self,))
        # below torch's autograd, as the dispatcher runs a mode: one that calls `func` again would
        # detach from torch's engine alone
        with without_innermost_mode() as mode, below_autograd():
            return mode.__torch_dispatch__(func, types, (self,), {})

    def swapaxes_(self, axis0: int, axis1: int) -> torch.Tensor:
        """Swap two dimensions, as ``torch.Tensor.swapaxes_``. In inference mode torch's own resizes
        the memory of a lazy conjugate. A shell has none."""
        return self.transpose_(axis0, axis1)

    def swapdims_(self, dim0: int, dim1: int) -> torch.Tensor:
        """Swap two dimensions, as ``torch.Tensor.swapdims_``, see :meth:`swapaxes_`."""
        return self.transpose_(dim0, dim1)

    item = reading_method("item")
    __float__ = reading_method("__float__")
    __int__ = reading_method("__int__")
    __index__ = reading_method("__index__")
    __complex__ = reading_method("__complex__")

    def __bool__(self) -> bool:
        """Return whether the only element is not zero."""
        truth: torch.Tensor = self
        # a program branches on a tensor of truths, since a graph has no other numbers for Python
        if self.dtype is not torch.bool and is_capturing():
            truth = self.ne(0)
        return bool(_is_nonzero(truth))

    def tolist(self) -> Any:
        """Return the elements, as ``torch.Tensor.tolist``. A value of a trace has none, and raises
        with the user's line."""
        return self._below("tolist()", lambda tensor: tensor.tolist())

    def numpy(self, *, force: bool = False) -> Any:
        """Return an array, as ``torch.Tensor.numpy``, see :meth:`tolist`."""
        return self._below("numpy()", lambda tensor: tensor.numpy(force=force))

    def _below(self, how: str, read: Callable[[torch.Tensor], object]) -> Any:
        """Return ``read`` of the inner tensor, which has the elements of this value."""
        if self._level.hidden:  # each element of the batch has others
            refuse_access(how, self)
        inner = self._level.lowered(self)
        with nullcontext() if isinstance(inner, Value) else without_modes():
            return read(inner)

    def __deepcopy__(self, memo: dict[int, object]) -> object:
        """Copy a value of a transform that has returned. Raise for any other, as torch does for a
        result and for its own wrappers."""
        if is_outlived(self):
            return copy.deepcopy(self._inner, memo)
        if self.requires_grad and not self.is_leaf:
            raise settled(
                RuntimeError(
                    "Only Tensors created explicitly by the user (graph leaves) support the "
                    "deepcopy protocol at the moment"
                )
            )
        raise self._copy_refusal("copy.deepcopy()")

    def __reduce_ex__(self, protocol: object) -> Any:
        if is_outlived(self):
            return self._inner.__reduce_ex__(protocol)
        raise self._copy_refusal("copy.copy() or pickling")

    def _copy_refusal(self, how: str) -> NotImplementedError:
        """Return the error of a copy that torch refuses for its own wrappers, too: the object would
        take the level with it."""
        return noted(
            NotImplementedError(
                f"{how} of a tensor inside {self._level.what} would copy the transform with it. "
                f"Use clone() for other elements, or detach() for the same ones."
            )
        )

    def __dlpack__(self, **options: Any) -> Any:
        """Export the memory, as ``torch.Tensor.__dlpack__``. Refuse a value of a transform: it may
        be a shell, which has no memory."""
        tensor = constant_of(self)
        if type(tensor) in VALUES and tensor._home is None:
            raise noted(
                BufferError(
                    f"a tensor inside {tensor._level.what} cannot be exported by DLPack. "
                    "Export its detach(), or what is outside."
                )
            )
        return _dlpack(tensor, **options)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        """Return what the value is at its level. ``RuntimeError`` with the user's line in a program
        of ``jit``: its results and state could have the text."""
        if is_user_code_watched():
            raise noted(
                RuntimeError(
                    "str(), print() or an f-string asks for the elements of a tensor while the "
                    "program is being captured, and would have the text of a trace. Print the "
                    f"tensor in a function of jit.outside, or print its shape.{place()}"
                )
            )
        return self._text()

    def _text(self) -> str:
        """Describe the value at its level, for a reader who looks into a transform."""
        return object.__repr__(self)

    def __format__(self, spec: str) -> str:
        """Return the text of a 0-d tensor as that of its number, as ``torch.Tensor.__format__``.
        Torch's own does not do this for subclasses."""
        if self.dim() == 0 and not self.is_meta:
            return format(self.item(), spec)
        return object.__format__(self, spec)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        set_excluded(CONJUGATE, False)  # reopen_keys(func), without its frame
        set_excluded(NEGATIVE, False)
        set_excluded(ZERO, False)
        is_view = id(func) in VIEW_OPS
        # of a view of many views no level marks one more, see `.nested_views`
        set_excluded(VIEWS, is_view and leaves_unmarked(func, args))
        # the session is the one level of its class of values, so there is nothing to search
        level = (cls._home if len(types) == 1 else None) or innermost(args, kwargs)
        if len(types) > 1 and level.leaves(types, args, kwargs):
            return NotImplemented
        # the common case of `hand_over`, without its frame
        if level.alive and not SCOPE.levels:
            result = level.call(func, args, kwargs or {})
            return note_views(result, args[0]) if is_view else result
        return hand_over(level, func, args, kwargs or {})


def composes(types: Iterable[type]) -> bool:
    """Return whether one of ``types``, the classes that handle a call, is a user's. If a level
    returns NotImplemented then, torch asks that class. Abstract values stand for plain tensors."""
    return any(
        not issubclass(kind, (Value, FakeTensor)) and kind.__torch_dispatch__ is not _no_dispatch  # type: ignore[attr-defined]
        for kind in types
    )


VALUES.add(Value)  # `__init_subclass__` enters its subclasses alone
guard_methods(Value)


def bottom(t: object) -> Any:
    """Return the tensor under all values that ``t`` consists of: the plain tensor, which has the
    memory."""
    while isinstance(t, Value):
        t = t._inner
    return t


def values_of(t: object) -> Iterator[Value]:
    """Yield the values that ``t`` consists of, that of the innermost level first."""
    while isinstance(t, Value):
        yield t
        t = t._inner


def _parts_of(tensor: object) -> Iterator[Value]:
    """Yield the values in the attributes of ``tensor``, if it is a tensor of a user's class."""
    if type(tensor) in VALUES or type(tensor) is torch.Tensor:
        return
    for part in vars(tensor).values():
        if isinstance(part, Value):
            yield part
        elif isinstance(part, torch.Tensor):
            yield from _parts_of(part)


def levels_of(tensor: object) -> Iterator[Level]:
    """Yield the levels of the values that ``tensor`` consists of, the innermost first."""
    return (value._level for value in values_of(tensor))


def constant_of(t: Any) -> Any:
    """Return ``t`` unwrapped as long as it is a value without a history. Anything else stays as it
    is."""
    while type(t) in VALUES and t._level.is_constant(t):
        t = t._inner
    return t
