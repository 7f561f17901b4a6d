"""A function or module that is captured once for each kind of call, and replayed."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch

from ..aot.calls.compiled_function import Recipe, function_of
from ..aot.calls.states_in_turn import LIMIT
from ..aot.compilers.boxed import Compiler, nop
from ..aot.compilers.graph_names import named_compilers
from ..aot.compilers.inductor import inductor
from ..aot.partition.partitions import default_partition
from ..aot.python_state.closed_over import modules_of
from ..aot.python_state.values import SIMPLE
from .check import checking
from .donation import donating
from .outside_calls import OutsideCalls, WithCalls
from .programs import Break, Captured, Captures, Raised
from .steps import Steps

_COMPILERS: dict[str, Compiler] = {"replay": nop, "inductor": inductor}
_ON_BREAK = ("error", "eager")


class Options:
    """The keywords of ``jit``, checked."""

    def __init__(
        self,
        dynamic: bool | None,
        compiler: str | Compiler,
        static_argnums: int | Sequence[int],
        static_argnames: str | Sequence[str],
        on_break: str,
        donate: int | str | Sequence[int | str],
        ignore: Sequence[object] = (),
        limit: int = LIMIT,
        state: object = None,
        check: int | None = None,
    ) -> None:
        if dynamic not in (None, True, False):
            raise ValueError(f"dynamic={dynamic!r}; it is None, True or False")
        if not callable(compiler) and compiler not in _COMPILERS:
            raise ValueError(
                f"compiler={compiler!r}; it is {', '.join(map(repr, _COMPILERS))}, "
                "or a function of a GraphModule and inputs"
            )
        if on_break not in _ON_BREAK:
            raise ValueError(
                f"on_break={on_break!r}; it is one of {', '.join(map(repr, _ON_BREAK))}"
            )
        if type(limit) is not int or limit < 1:
            raise ValueError(f"limit={limit!r}; it is a number of programs, at least 1")
        self.dynamic = dynamic
        self.compiler: Compiler = compiler if callable(compiler) else _COMPILERS[compiler]
        self.static_argnums = (
            (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
        )
        self.static_argnames = (
            (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        )
        self.on_break = on_break
        self.ignore = tuple(ignore)
        self.limit = limit
        self.state = _declared(state)
        if check is not None and (type(check) is not int or check < 1):
            raise ValueError(f"check={check!r}; it is None, or a number of calls, at least 1")
        if check is not None and donate != ():
            raise ValueError("check= runs calls twice, and donate= takes their arguments away")
        self.check = check
        self.donate: tuple[int | str, ...] = (
            (donate,) if isinstance(donate, (int, str)) else tuple(donate)
        )

    def captures(self, f: Callable[..., Any]) -> tuple[Captures, Callable[..., Any]]:
        """What finds the programs of ``f``, and the function that runs them."""
        compilers = named_compilers(self.compiler, self.compiler, self.compiler)
        outside = OutsideCalls(f)
        steps = Steps(outside.program, bool(self.donate))
        recipe = Recipe(
            steps.program,
            *compilers,
            default_partition,
            None,
            0,
            bool(self.dynamic),
            modules_of(f),
            True,
            reads="number",
            beside=steps.beside,
            starting=outside.starting(steps.starting),
            before=steps,
            ignore=self.ignore,
            limit=self.limit,
            declared=self.state,
        )
        captures = Captures(recipe, sizes=self.dynamic is None, breaks=self.on_break == "eager")
        return captures, steps.around(function_of(recipe, captures))


def _declared(state: object) -> tuple[object, ...] | None:
    """Check the keyword ``state``: an object, or a tuple or list of objects."""
    if state is None:
        return None
    declared = tuple(state) if isinstance(state, (tuple, list)) else (state,)
    constants = [x for x in declared if isinstance(x, SIMPLE)]
    if constants:
        raise ValueError(f"state={constants[0]!r}; it takes objects, and this is a constant")
    return declared


class Jitted:
    """What ``jit`` makes of a function. ``__wrapped__``: that function."""

    def __init__(self, f: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, f, updated=())
        # a module has none, nor has a partial function
        self.__name__ = getattr(f, "__name__", type(f).__name__)
        self.options = options
        self._run: Callable[..., Any]
        self._captures: dict[Any, Captures] = {}  # by the static arguments
        self._runs: dict[Any, Callable[..., Any]] = {}
        self._lock = threading.Lock()
        names = _parameters(f)
        numbers = {names[i] for i in options.static_argnums if -len(names) <= i < len(names)}
        for keyword, positions in (
            ("static_argnums", options.static_argnums),
            ("donate", options.donate),
        ):
            outside = [
                i for i in positions if isinstance(i, int) and not -len(names) <= i < len(names)
            ]
            if names and outside:
                raise ValueError(
                    f"{keyword}={outside[0]}, "
                    f"but {self.__name__} takes {len(names)} positional arguments"
                )
        for keyword, given in (
            ("static_argnames", options.static_argnames),
            ("donate", options.donate),
        ):
            unknown = [name for name in given if isinstance(name, str) and not _takes(f, name)]
            if unknown:
                raise ValueError(
                    f"{keyword}={unknown[0]!r}, but {self.__name__} takes no such argument"
                )
        self._static_names = {*numbers, *options.static_argnames}
        self._names = names
        if not self._static_names:
            captures, self._run = options.captures(f)
            self._captures[None] = captures
        else:
            self._run = self._with_static
        if options.donate:
            self._run = donating(self._run, names, options.donate)
        if options.on_break == "eager":
            self._run = _or_eager(f, self._run)
        if options.check is not None:
            self._run = checking(f, self._run, options.check, self.__name__, options.ignore)

    __name__: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            result = self._run(*args, **kwargs)
            return result.finish() if type(result) is WithCalls else result
        except Raised as e:
            raised = e.__cause__
        return self._eager(raised, args, kwargs)

    def _eager(self, raised: BaseException | None, args: Any, kwargs: Any) -> Any:
        """The call in eager mode, as its program raises an error of its own: objects are afterwards
        as the program has left them when it raised."""
        result = self.__wrapped__(*args, **kwargs)
        warnings.warn(
            f"{self.__name__} raises {raised!r} when it is captured, and not in eager mode, in "
            "which this call ran.",
            UserWarning,
            stacklevel=3,
        )
        return result

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle and copy the function with its options. Programs are of this process, so the copy
        has none."""
        name = getattr(self, "__qualname__", "")
        if _named(getattr(self, "__module__", None), name) is self:
            return str(name)
        return Jitted, (self.__wrapped__, self.options)

    def __repr__(self) -> str:
        return (
            f"<jitted {self.__name__}, "
            f"{sum(len(c.captured) for c in self._captures.values())} programs>"
        )

    @property
    def captured(self) -> list[Captured]:
        """The programs, in the order of their captures."""
        return [c for captures in self._captures.values() for c in captures.captured]

    @property
    def refused(self) -> list[str]:
        """The arguments for which nothing was captured, each with the reason."""
        return [text for captures in self._captures.values() for text in captures.refused]

    def _with_static(self, *args: Any, **kwargs: Any) -> Any:
        """A call of the function for these static arguments."""
        named = self._static_names
        static = {name: args[i] for i, name in enumerate(self._names[: len(args)]) if name in named}
        static |= {name: x for name, x in kwargs.items() if name in named}
        try:
            key = tuple((name, type(x), x) for name, x in sorted(static.items()))
            run = self._runs.get(key)
        except TypeError as e:
            raise TypeError(
                f"a static argument of {self.__name__} is compared and so must be hashable: {e}"
            ) from e
        if run is None:
            with self._lock:
                if key not in self._runs:
                    self._captures[key], self._runs[key] = self.options.captures(
                        _partial(self.__wrapped__, self._names, static)
                    )
                run = self._runs[key]
        rest = [
            x for i, x in enumerate(args) if i >= len(self._names) or self._names[i] not in named
        ]
        return run(*rest, **{name: x for name, x in kwargs.items() if name not in named})

    __wrapped__: Callable[..., Any]


class JittedModule(torch.nn.Module):
    """What ``jit`` makes of a module. Parameters, buffers and modes are those of ``module``."""

    def __init__(self, module: torch.nn.Module, options: Options) -> None:
        super().__init__()
        self.module = module
        self.jitted = Jitted(module, options)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.jitted(*args, **kwargs)


def _named(module: str | None, path: str) -> Any:
    """What a module has under a dotted name; None if there is nothing."""
    found: Any = sys.modules.get(module or "")
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _parameters(f: Callable[..., Any]) -> list[str]:
    """The names of the positional parameters of ``f``; none if they are not known."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _takes(f: Callable[..., Any], name: str) -> bool:
    """Whether ``f`` has a parameter ``name``, or any name, as far as that is known."""
    try:
        parameters = inspect.signature(f).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _partial(
    f: Callable[..., Any], names: Sequence[str], static: dict[str, Any]
) -> Callable[..., Any]:
    """``f`` without the parameters in ``static``, which have these values. ``names``: of its
    positional parameters."""
    free = [name for name in names if name not in static]

    @functools.wraps(f)
    def without_static(*args: Any, **kwargs: Any) -> Any:
        known = {**static, **dict(zip(free, args, strict=False))}
        positional = list(itertools.takewhile(known.__contains__, names))
        named = {name: x for name, x in known.items() if name not in positional}
        return f(*(known[name] for name in positional), *args[len(free) :], **named, **kwargs)

    # for the graph of objects, which does not look into functions of ours
    without_static.static_values = tuple(static.values())  # type: ignore[attr-defined]
    return without_static


def _or_eager(f: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, or ``f`` where it cannot be captured."""
    told: list[str] = []

    def call(*args: Any, **kwargs: Any) -> Any:
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
        return f(*args, **kwargs)

    return call
