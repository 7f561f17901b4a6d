"""The one seam: how an ATen call finds the level that handles it.

A *level* is one running transform. A *value* is a ``torch.Tensor`` subclass instance that belongs to one level and holds an
``_inner`` tensor, which belongs to a level further out or to none. ``__torch_dispatch__`` of any value looks for the innermost
level among the arguments and hands the call to it. That level unwraps its own values and calls tensor functions again; those
calls find the next level out by the same search. Nesting therefore needs no code anywhere else.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch._C import _disabled_torch_function_impl
from torch.utils._python_dispatch import _pop_mode_temporarily

from ..errors import EscapedValue, InplaceError
from .ambient import Ambient
from .keys import CHUNK, CONJUGATE, NARROW, NEGATIVE, VIEWS, set_excluded, uncounted
from .shells import VALUES, same_shape
from .surgery import GEOMETRY, change_geometry

_numbers = itertools.count(1)
_new_tensor = torch.Tensor.new_tensor


class Level:
    """One running transform. What every level needs has a default here, so a subclass writes what it does differently.

    ``number`` grows with every level ever entered, so the larger of two numbers is the inner one. ``values``: the class of its values.
    """

    __slots__ = ("__weakref__", "alive", "finalizers", "number")
    what = "transform"
    values: type[Value]
    hidden = 0  # how many leading dimensions of what a value holds it does not show
    keeps_history = False  # whether its values have a history beside what they hold
    packs = False  # whether hooks on saved tensors see what it saves
    finalizers: list[Callable[[], None]]  # called when the transform returns, in order

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.alive = True
        self.finalizers = []

    def call(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen call of which some argument is a value of this level and none is of an inner one. By default it runs on what the
        values hold, at the outer levels, and its results become values."""
        name = func._schema.name.partition("::")[2]
        if name in GEOMETRY:
            return change_geometry(getattr(getattr(torch.ops.aten, name[:-1]), func._overloadname), args[0], args[1:], kwargs)
        inner, options = self.lowered_args(args), self.lowered_kwargs(kwargs)
        if not func._schema.is_mutable:
            return self.valued(func(*inner, **options))
        return self.written(func, args, kwargs, uncounted(func, *inner, **options))  # the dispatcher counts the write on the value

    def wrap(self, inner: torch.Tensor, history: Any = None, /) -> Any:
        """A value of this level that holds ``inner``, a tensor of the outer levels. ``history``: what the level knows of it beside that, an
        edge of the tape, a tangent, a node of a graph; None if nothing."""
        v = same_shape(self.values, inner)
        v._level = self
        return v

    def valued(self, result: Any) -> Any:
        """What an op returned, a tensor or several, as values without a history; anything else as it is. Asked for each of several."""
        return self.wrap(result) if isinstance(result, torch.Tensor) else rewrapped(result, lambda t, _: self.valued(t))

    def lowered(self, a: Any) -> Any:
        """What ``a`` is to the outer levels: what it holds, if it is a value of this level, else ``a``."""
        return a._inner if type(a) in VALUES and a._level is self else a

    def lowered_args(self, args: Iterable[Any]) -> list[Any]:
        """The arguments of an ATen call as they are to the outer levels; lists are entered, nothing else is."""
        out = list(args)
        for i, a in enumerate(out):
            kind = type(a)
            if kind in VALUES:
                if a._level is self:
                    out[i] = a._inner
            elif kind is list or kind is tuple:
                out[i] = [b._inner if type(b) in VALUES and b._level is self else b for b in a]  # `lowered`, without its frame
        return out

    def lowered_kwargs(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(kwargs, self.lowered_args(kwargs.values()), strict=True)) if kwargs else kwargs

    def written(self, func: torch._ops.OpOverload, args: Any, kwargs: Any, result: Any) -> Any:
        """What an op that writes to arguments returns: those very arguments, and values of what else ``result`` has."""
        schema = func._schema
        given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        targets = {
            frozenset(a.alias_info.before_set): given[a.name]
            for a in schema.arguments
            if a.alias_info is not None and a.alias_info.is_write and a.name in given
        }
        for t in targets.values():
            if isinstance(t, Value) and t._level is self and t.shape != t._inner.shape:
                raise InplaceError(f"{func} changes the size of a value of {self.what}: use an op that returns its result")
        several = type(result) in (list, tuple)
        outs = [
            self.valued(out) if r.alias_info is None else targets.get(frozenset(r.alias_info.before_set), out)
            for r, out in zip(schema.returns, result if several else [result], strict=True)
        ]
        return type(result)(outs) if several else outs[0] if outs else None

    def elementwise(self, formula: Callable[..., Any], args: Any) -> Any:
        """``formula(*args)`` for a formula of broadcasting elementwise ops; this level is the innermost among ``args``."""
        return formula(*args)

    def batchwise(self, formula: Callable[..., Any], args: Any) -> Any:
        """``formula(*args, batched)`` as :func:`run_batchwise` says; this level is the innermost among ``args``."""
        return formula(*args, (False,) * len(args))

    def is_constant(self, v: Value) -> bool:
        """Whether a value of this level is no more than what it holds: the transform keeps histories, and it has none."""
        return False

    def acting(self) -> Any:
        """What handles calls with values of this level now: the level, or what stands before it."""
        return self

    def on_close(self, finalize: Callable[[], None]) -> None:
        """Have ``finalize`` called when the transform returns."""
        self.finalizers.append(finalize)

    def refuse_captured_write(self, what: object) -> NoReturn:
        """``what`` writes a value of this level into a tensor that is none and cannot become one."""
        raise InplaceError(
            f"During a grad (vjp, jvp, grad, etc) transform, the function provided attempted to call in-place operation ({what}) that "
            f"would mutate a captured Tensor: it writes a value of {self.what} into a tensor that cannot take on its history, because it "
            "is older than the transform, belongs to another one, or is seen by other views (whose history would be lost). Make the buffer "
            "with new_zeros, zeros_like or clone of an input, or pass it to the transformed function as an input."
        )

    def run_inside(self, f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """``f(*args, **kwargs)``, the function of this transform or an op in terms of others, as code in the scope of this level."""
        around = SCOPE.levels
        SCOPE.levels = (*around, self)
        try:
            return f(*args, **kwargs)
        finally:
            SCOPE.levels = around

    def close(self) -> None:
        """The transform has returned: its values may no longer be used, but for those without a history of it: see :func:`outlived`."""
        for finalize in self.finalizers:
            finalize()
        self.finalizers.clear()
        self.alive = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.number}{'' if self.alive else ' closed'}>"


class Value(torch.Tensor):
    """A tensor that belongs to one level.

    ``_level``: the level; ``_inner``: the tensor one level out, of the same logical shape unless the level says otherwise;
    ``_view``: for the result of a view op, what is needed to follow its base (see ``runtime.tape.view_history``);
    ``_reshaped``: how often its sizes or strides have changed in place; ``_geometry``: what :func:`~.shells.shell` made it of.
    ``_home``: of a class whose values all belong to one level, which never closes, that level.
    """

    _home: Level | None = None

    _level: Level
    _inner: torch.Tensor
    _view: Any = None
    _reshaped: int = 0
    _geometry: tuple[Any, ...] | None = None

    __torch_function__ = _disabled_torch_function_impl  # type: ignore[assignment]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        VALUES.add(cls)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Refused, as a flag of torch's on a value would have torch's engine record what the level does."""
        if requires_grad:
            raise RuntimeError(
                f"requires_grad_() of a tensor inside {self._level.what} is not possible. Differentiate by runtime.func.grad, or take a "
                "tensor that requires grad in from outside."
            )
        return self

    def _set_requires_grad(self, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    requires_grad = property(torch._C.TensorBase.requires_grad.__get__, _set_requires_grad)  # type: ignore[attr-defined]

    def new_tensor(self, data: Any, **options: Any) -> Any:  # type: ignore[override]
        """As ``torch.Tensor.new_tensor``, which no level sees."""
        made: Any = _new_tensor(self, data, **options)
        return lifted(made, made._level.number if type(made) in VALUES else -1)

    def detach_(self) -> Any:
        """Brought to the levels by hand: torch's own method detaches from torch's engine alone, and dispatches nothing."""
        func, types = torch.ops.aten.detach_.default, (type(self),)
        if not torch._C._len_torch_dispatch_stack():
            return Value.__torch_dispatch__(func, types, (self,))
        with _pop_mode_temporarily() as mode:
            return mode.__torch_dispatch__(func, types, (self,), {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if _is_outlived(self):
            return copy.deepcopy(self._inner, memo)
        raise RuntimeError(f"copy.deepcopy() of a tensor inside {self._level.what} would copy the transform with it. Use clone() instead.")

    def __reduce_ex__(self, protocol: Any) -> Any:
        whole: Any = self._inner if _is_outlived(self) else super()
        return whole.__reduce_ex__(protocol)

    def __dlpack__(self, **options: Any) -> Any:
        """As ``torch.Tensor.__dlpack__``, of memory. What only shows the shape of a tensor further out has none."""
        t = constant_of(self)
        if type(t) in VALUES and t._level.number:
            raise BufferError(f"a tensor inside {t._level.what} cannot be exported by DLPack. Export its detach(), or what is outside.")
        return torch.Tensor.__dlpack__(t, **options)

    def __format__(self, spec: str) -> str:
        """Of a number the number's, as ``torch.Tensor.__format__``, which for subclasses knows no format."""
        return format(self.item(), spec) if self.dim() == 0 and not self.is_meta else object.__format__(self, spec)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        set_excluded(CONJUGATE, False)  # reopen_keys(func), without its frame
        set_excluded(NEGATIVE, False)
        set_excluded(VIEWS, func is NARROW or func is CHUNK)
        level = cls._home if len(types) == 1 else None
        if level is None:
            level = innermost(args, kwargs)
            if not level.alive:
                return outlived(level, func, args, kwargs or {})
        if SCOPE.levels:
            return hand_over(level, func, args, kwargs or {})
        return level.call(func, args, kwargs or {})


class Scope(Ambient):
    """The transforms of this thread in whose function the present code runs and that keep history: outermost first.

    ``b = c.clone(); b[0] = x[0]`` in a differentiated function: ``c``, from outside, is no value of the transform, but what is made of it
    may be written to with one that is. So what an ATen call returns is *lifted*: it becomes a value of every transform in whose scope the
    call was made, as in torch. The rules of a level are not code of its function: while one runs, only the levels further out are here.
    """

    levels: tuple[Level, ...] = ()


SCOPE = Scope()


def hand_over(level: Level, func: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
    """``level.call`` for code in the scope of transforms, of which ``level`` itself need not be one."""
    around = SCOPE.levels
    number, innermost_number = level.number, around[-1].number
    if innermost_number < number:
        return level.call(func, args, kwargs)
    if innermost_number == number:
        SCOPE.levels = around[:-1]
        try:
            return level.call(func, args, kwargs)
        finally:
            SCOPE.levels = around
    with scope_outside(level):
        result = level.call(func, args, kwargs)
    return lifted(result, number) if _is_fresh(func) else result


@contextmanager
def scope_outside(level: Level) -> Iterator[None]:
    """For the length of a ``with`` block the code that runs is a rule of ``level``."""
    around = SCOPE.levels
    SCOPE.levels = tuple(inner for inner in around if inner.number < level.number)
    try:
        yield
    finally:
        SCOPE.levels = around


def lifted(result: Any, number: int) -> Any:
    """A fresh result of the level of that number, or lists of them, as values of the transforms in whose scope it was made."""
    if isinstance(result, torch.Tensor):
        if result.is_floating_point() or result.is_complex():
            for level in SCOPE.levels:
                if level.number > number:
                    result = level.wrap(result)
        return result
    if type(result) is tuple or type(result) is list:
        return type(result)(lifted(r, number) for r in result)
    return result


_fresh: dict[int, bool] = {}  # by id of the overload, which lives as long as torch does


def _is_fresh(func: torch._ops.OpOverload) -> bool:
    """Whether what an overload returns is memory of its own rather than a view of an argument or an argument."""
    known = _fresh.get(id(func))
    if known is None:
        known = _fresh[id(func)] = not any(r.alias_info is not None for r in func._schema.returns)
    return known


VALUES.add(Value)


def _is_outlived(v: Value) -> bool:
    """Whether the transform of ``v`` has returned and never gave it a history: it is no more than what it holds."""
    level = v._level
    return not level.alive and level.is_constant(v)


def constant_of(t: Any) -> Any:
    """What a value without a history of its transform holds, and so on outwards; anything else as it is."""
    while type(t) in VALUES and t._level.is_constant(t):
        t = t._inner
    return t


def outlived(level: Level, func: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
    """A call with values of ``level``, whose transform has returned. ``EscapedValue`` if one of them has a history.

    A constant that a transformed function made and stored, such as a table of positions, serves afterwards, as in torch.
    """

    def settled(a: Any) -> Any:
        if type(a) in VALUES and a._level is level:
            if not _is_outlived(a):
                raise escaped(level, func)
            return a._inner
        return type(a)(map(settled, a)) if type(a) is list or type(a) is tuple else a

    inner = [settled(a) for a in args]
    result = func(*inner, **{name: settled(a) for name, a in kwargs.items()})
    return next((a for a, x in zip(args, inner, strict=True) if x is result), result)  # what was written to


def escaped(level: Level, func: torch._ops.OpOverload) -> EscapedValue:
    return EscapedValue(
        f"a value of {level.what} (level {level.number}) is used by {func} after the transform has returned. "
        "Return values from the transformed function instead of storing them, or detach them inside it."
    )


def innermost(args: Iterable[Any], kwargs: dict[str, Any] | None) -> Any:
    """The level with the largest number among the values in an ATen call's arguments (lists included)."""
    best: Any = None
    number = -1
    for a in args:
        kind = type(a)
        if kind in VALUES:
            if a._level.number > number:
                best = a._level
                number = best.number
        elif kind is list or kind is tuple:
            for b in a:
                if type(b) in VALUES and b._level.number > number:
                    best = b._level
                    number = best.number
    if kwargs:
        for a in kwargs.values():
            for b in a if isinstance(a, (list, tuple)) else (a,):
                if type(b) in VALUES and b._level.number > number:
                    best = b._level
                    number = best.number
    return best


def run_elementwise(formula: Callable[..., Any], args: Any) -> Any:
    """``formula(*args)`` in the way that is cheapest for the innermost level among ``args``: in a batch, at once on what it holds."""
    level = innermost(args, None)
    return formula(*args) if level is None else level.elementwise(formula, args)


def run_batchwise(formula: Callable[..., Any], *args: torch.Tensor) -> Any:
    """``formula(*args, batched)`` for a formula that takes a batch along dimension 0 of every argument that ``batched`` marks.

    On values of a vmap it runs once on what they hold, without a dispatch for each of its ops; otherwise nothing is marked.
    """
    level = innermost(args, None)
    return formula(*args, (False,) * len(args)) if level is None else level.batchwise(formula, args)


def rewrapped(result: Any, wrap: Callable[[torch.Tensor, int | None], Any]) -> Any:
    """What an op returned, with ``wrap(tensor, number)`` in place of each tensor; the number is None for a single result.

    A list stays a list, and tuples with names become plain ones. What is no tensor stays as it is.
    """
    if isinstance(result, torch.Tensor):
        return wrap(result, None)
    if not isinstance(result, (tuple, list)):
        return result
    wrapped = [wrap(r, i) if isinstance(r, torch.Tensor) else r for i, r in enumerate(result)]
    return wrapped if type(result) is list else tuple(wrapped)
