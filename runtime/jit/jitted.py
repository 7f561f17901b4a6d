"""A function or module that is captured once for each kind of call, and replayed."""

from __future__ import annotations

import copyreg
import datetime
import decimal
import functools
import inspect
import itertools
import pathlib
import sys
import warnings
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import numpy as np
import torch

from ..aot.calls.compiled_function import function_of
from ..aot.calls.graph_writes import FailedGraph
from ..aot.calls.recipe import Recipe
from ..aot.compilers.graph_names import named_compilers
from ..aot.python_state.closed_over import modules_of
from ..seam.locks import lock_of
from ..trace.error_lines import naming_line
from .check import CheckedCalls
from .donation import donate_arguments
from .options import Options
from .outside_calls import OutsideCalls, WithCalls
from .programs import Break, Captured, Captures, Raised
from .sides import undraw
from .steps import Steps
from .turns import BesideEager, Turns


class Jitted:
    """What ``jit`` makes of a function. ``__wrapped__``: that function."""

    def __init__(self, f: Callable[..., Any], options: Options) -> None:
        self.__setstate__((f, options))
        self._build()

    def __setstate__(self, state: tuple[Callable[..., object], Options]) -> None:
        """Take the function and the options of a copy. The rest waits for its first call: a copy of
        a module with ``self.step = jit(self.go)`` has no attributes yet when it gets ``step``."""
        f, self.options = state
        functools.update_wrapper(self, f, updated=())
        # a module has none, nor has a partial function
        self.__name__ = getattr(f, "__name__", type(f).__name__)
        self._captures: dict[Any, Captures] = {}  # by the static arguments
        self._runs: dict[Any, Callable[..., Any]] = {}
        self._lock = lock_of(self, "_lock")
        self._turns = Turns()
        self._told: set[str] = set()  # where errors were raised that eager mode does not raise
        self._run: Callable[..., Any] = self._build_and_run

    def _build(self) -> None:
        """Make what runs the programs. Errors are those of the options."""
        f, options = self.__wrapped__, self.options
        names = _parameters(f)
        options.refuse_others(f, self.__name__, names)
        self._static_names = options.static_names(names)
        self._names = names
        run: Callable[..., Any] = self._with_static
        if not self._static_names:
            self._captures[None], run = _captures(f, options, self._turns)
        if options.donate:
            run = donate_arguments(run, names, options.donate)
        if options.on_break == "eager":
            run = _or_eager(f, run, self._turns)
        if options.check is not None:
            run = CheckedCalls(f, run, options.check, self.__name__, options.ignore)
        self._run = run

    def _build_and_run(self, *args: object, **kwargs: object) -> object:
        """Run the first call of a copy, which has only its function and options yet."""
        with self._lock:
            # no other thread was faster; by `==`, as each access makes another bound method
            if self._run == self._build_and_run:
                self._build()
        return self._run(*args, **kwargs)

    __name__: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call by its program, or in eager mode where that raises what eager mode may not,
        or where another thread runs in eager mode."""
        try:
            result = self._run(*args, **kwargs)
            return result.finish(self._turns) if type(result) is WithCalls else result
        except Raised as error:
            raised, when = error.__cause__, "when it is captured"
        except FailedGraph as error:
            raised, when = error.__cause__, "in its graph"
            if error.draws:
                undraw()
        except BesideEager as error:
            if error.turns is not self._turns:  # of a jitted function around this one
                raise
            with self._turns.in_eager_mode():
                return self.__wrapped__(*args, **kwargs)
        # behind `except`: an error of the eager run does not have this one as its context
        return self._eager(raised, when, args, kwargs)

    def _eager(self, raised: BaseException | None, when: str, args: Any, kwargs: Any) -> object:
        """Run the call in eager mode, as its program raises an error. So objects are afterwards as
        the program has left them when it raised, or when it has caught that."""
        with naming_line(), self._turns.in_eager_mode():
            result = self.__wrapped__(*args, **kwargs)
        if when in self._told:
            return result
        self._told.add(when)
        warnings.warn(
            f"{self.__name__} raises {raised!r} {when}, and not in eager mode, in which this call "
            "ran.",
            UserWarning,
            stacklevel=3,  # the user's line, above this method and `__call__`
        )
        return result

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle and copy the function with its options. Programs are of this process, so the copy
        has none."""
        name = getattr(self, "__qualname__", "")
        if _named(getattr(self, "__module__", None), name) is self:
            return str(name)
        # what `object.__reduce_ex__` gives: no `__init__`, and `__setstate__` gets the rest
        make: Any = vars(copyreg)["__newobj__"]
        return make, (Jitted,), (self.__wrapped__, self.options)

    def __repr__(self) -> str:
        return (
            f"<jitted {self.__name__}, "
            f"{sum(len(captures.captured) for captures in self._captures.values())} programs>"
        )

    @property
    def captured(self) -> list[Captured]:
        """List the programs, in the order of their captures."""
        return [program for captures in self._captures.values() for program in captures.captured]

    @property
    def refused(self) -> list[str]:
        """List the arguments for which nothing was captured, each with the reason."""
        return [text for captures in self._captures.values() for text in captures.refused]

    def _with_static(self, *args: object, **kwargs: object) -> object:
        """Run a call by the programs for its static arguments."""
        named = self._static_names
        static = {
            name: args[index]
            for index, name in enumerate(self._names[: len(args)])
            if name in named
        }
        static |= {name: value for name, value in kwargs.items() if name in named}
        try:
            # the order of keywords makes no other program
            key = tuple((name, _key_of(value)) for name, value in sorted(static.items()))
            run = self._runs.get(key)
        except TypeError as error:
            raise TypeError(
                f"a static argument of {self.__name__} is compared and so must be hashable: {error}"
            ) from error
        if run is None:
            with self._lock:
                if key not in self._runs:
                    f = _partial(self.__wrapped__, self._names, static)
                    found = _captures(f, self.options, self._turns)
                    self._captures[key], self._runs[key] = found
                run = self._runs[key]
        # those behind the last name belong to `*args`, and no name makes one of them static
        names = self._names[: len(args)]
        rest = [value for name, value in zip(names, args, strict=False) if name not in named]
        rest += args[len(names) :]
        return run(*rest, **{name: value for name, value in kwargs.items() if name not in named})

    __wrapped__: Callable[..., Any]


_OF_WRAPPER = frozenset(("_orig_mod", "_jitted", *vars(torch.nn.Module())))
"""Attributes of a jitted module that are not those of the module that it runs."""


class JittedModule(torch.nn.Module):
    """What ``jit`` makes of a module, ``_orig_mod``. Parameters, buffers, modes and other
    attributes are those of the module, as in torch.compile's ``OptimizedModule``."""

    _orig_mod: torch.nn.Module
    _jitted: Jitted

    def __init__(self, module: torch.nn.Module, options: Options) -> None:
        super().__init__()
        self._orig_mod = module
        self._jitted = Jitted(module, options)

    @property
    def training(self) -> bool:
        """Return the mode of the module."""
        return self._orig_mod.training

    @training.setter
    def training(self, mode: bool) -> None:
        module = self.__dict__.get("_modules", {}).get("_orig_mod")
        if module is not None:  # torch's own __init__ sets the mode of a module without parts
            module.training = mode

    def register_buffer(
        self, name: str, tensor: torch.Tensor | None, persistent: bool = True
    ) -> None:
        """Add a buffer to the module."""
        self._orig_mod.register_buffer(name, tensor, persistent)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Add a parameter to the module."""
        self._orig_mod.register_parameter(name, param)

    def add_module(self, name: str, module: torch.nn.Module | None) -> None:
        """Add a child to the module."""
        self._orig_mod.add_module(name, module)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self.__dict__.get("_modules", {}).get("_orig_mod")
            if module is None:  # a copy that has no attributes yet
                raise
        return getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OF_WRAPPER or name in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def forward(self, *args: object, **kwargs: object) -> Any:
        return self._jitted(*args, **kwargs)


_SHOWN_WHOLE = frozenset(
    (
        *(float, complex, range, decimal.Decimal),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
        *(pathlib.PureWindowsPath, pathlib.WindowsPath),
    )
)
"""Classes of which equal objects may differ, but not in their texts."""


def _key_of(x: Any) -> object:
    """Return what tells a static argument from another one. ``1``, ``True`` and ``1.0`` are equal,
    as are ``0.0`` and ``-0.0``, or ``range(0, 3, 2)`` and ``range(0, 4, 2)``, and a program is for
    one of them. Of other objects their own ``__eq__`` says which are equal."""
    kind = type(x)
    if kind in _SHOWN_WHOLE or issubclass(kind, np.generic):
        return kind, repr(x)
    if kind is tuple:
        return kind, tuple(map(_key_of, x))
    if issubclass(kind, tuple):
        # a named one equals another of its class with True in the place of 1
        return kind, tuple(map(_key_of, x)), x
    if kind is frozenset:
        return kind, frozenset(map(_key_of, x))
    return kind, x


def _captures(
    f: Callable[..., object], options: Options, turns: Turns
) -> tuple[Captures, Callable[..., object]]:
    """Return what finds the programs of ``f``, and the function that runs them."""
    outside = OutsideCalls(f)
    steps = Steps(outside.program, bool(options.donate), turns)
    recipe = Recipe(
        fn=steps.program,
        again=function_of,
        compilers=named_compilers(options.compiler, options.compiler, options.compiler),
        modules=modules_of(f),
        dynamic=bool(options.dynamic),
        reads="number",
        retries=True,
        beside=steps.beside,
        starting=outside.starting(steps.starting),
        before=steps,
        ignore=options.ignore,
        limit=options.limit,
        declared=options.state,
    )
    captures = Captures(recipe, sizes=options.dynamic is None, breaks=options.on_break == "eager")
    return captures, steps.around(function_of(recipe, captures))


def _named(module: str | None, path: str) -> object:
    """Return what a module has under a dotted name; None if there is nothing."""
    found: Any = sys.modules.get(module or "")
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _parameters(f: Callable[..., object]) -> list[str]:
    """Return the names of the positional parameters of ``f``; none if they are not known."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]


def _partial(
    f: Callable[..., object], names: Sequence[str], static: dict[str, object]
) -> Callable[..., object]:
    """Return ``f`` without the parameters in ``static``, which have these values. ``names``: of its
    positional parameters."""
    free = [name for name in names if name not in static]

    @functools.wraps(f)
    def without_static(*args: object, **kwargs: object) -> Any:
        known = {**static, **dict(zip(free, args, strict=False))}
        # Up to the first parameter without a value. Behind such a gap only names can say which.
        positional = list(itertools.takewhile(known.__contains__, names))
        named = {name: value for name, value in known.items() if name not in positional}
        return f(*(known[name] for name in positional), *args[len(free) :], **named, **kwargs)

    # for the graph of objects, which does not look into functions of ours
    without_static.static_values = tuple(static.values())  # type: ignore[attr-defined]
    return without_static


def _or_eager(
    f: Callable[..., object], run: Callable[..., object], turns: Turns
) -> Callable[..., object]:
    """Return a function that is ``run``, or ``f`` where that cannot be captured, with one
    warning."""
    told: list[str] = []  # one warning for all calls, as a loop makes many

    def call(*args: object, **kwargs: object) -> Any:
        try:
            return run(*args, **kwargs)
        except Break as broken:
            if not told:
                told.append(str(broken))
                warnings.warn(
                    f"a call cannot be captured, so that it runs eagerly: {broken}",
                    UserWarning,
                    stacklevel=3,
                )
        with turns.in_eager_mode():
            return f(*args, **kwargs)

    return call
