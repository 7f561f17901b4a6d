"""The keywords of ``jit``, checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ..aot.calls.states_in_turn import LIMIT
from ..aot.compilers.boxed import Compiler, nop
from ..aot.compilers.inductor import inductor
from ..aot.compilers.tiered import tiered
from ..aot.python_state.values import SIMPLE

_COMPILERS: dict[str, Compiler] = {"replay": nop, "inductor": inductor, "auto": tiered}
_ON_BREAK = ("error", "eager")


class Options:
    """See :class:`.entry.Jit` for each keyword. ``ValueError`` for one that means nothing."""

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
        if on_break not in _ON_BREAK:
            raise ValueError(
                f"on_break={on_break!r}; it is one of {', '.join(map(repr, _ON_BREAK))}"
            )
        # by the class: True is an `int` and no number of programs
        if type(limit) is not int or limit < 1:
            raise ValueError(f"limit={limit!r}; it is a number of programs, at least 1")
        self.dynamic = dynamic
        self.compiler = _compiler(compiler)
        self.static_argnums: tuple[int, ...] = _several(static_argnums)
        self.static_argnames: tuple[str, ...] = _several(static_argnames)
        self.on_break = on_break
        self.ignore = tuple(ignore)
        self.limit = limit
        self.state = _declared(state)
        self.check = _checked(check, donate)
        self.donate: tuple[int | str, ...] = _several(donate)

    def refuse_others(
        self, function: Callable[..., object], name: str, names: Sequence[str]
    ) -> None:
        """Raise ``ValueError`` for arguments that ``function`` does not take. ``name``: of
        ``function``. ``names``: of its positional parameters; none if they are not known."""
        # `donate` takes positions and names, so it is asked twice
        for keyword, positions in (
            ("static_argnums", self.static_argnums),
            ("donate", self.donate),
        ):
            outside = [i for i in positions if isinstance(i, int) and not _is_of(i, names)]
            if names and outside:
                raise ValueError(
                    f"{keyword}={outside[0]}, but {name} takes {len(names)} positional arguments"
                )
        by_name = {"static_argnames": self.static_argnames, "donate": self.donate}
        for keyword, given in by_name.items():
            texts = [name for name in given if isinstance(name, str)]
            unknown = [name for name in texts if not _takes(function, name)]
            if unknown:
                raise ValueError(f"{keyword}={unknown[0]!r}, but {name} takes no such argument")

    def static_names(self, names: Sequence[str]) -> set[str]:
        """Return the parameters whose arguments are constants. ``names``: of the positional
        ones."""
        return {*(names[i] for i in self.static_argnums if _is_of(i, names)), *self.static_argnames}


def _compiler(compiler: str | Compiler) -> Compiler:
    """Return the compiler of a name. ``ValueError`` for another name."""
    if callable(compiler):
        return compiler
    if compiler not in _COMPILERS:
        raise ValueError(
            f"compiler={compiler!r}; it is {', '.join(map(repr, _COMPILERS))}, "
            "or a function of a GraphModule and inputs"
        )
    return _COMPILERS[compiler]


def _several(given: Any) -> tuple[Any, ...]:
    # a name is one argument, and not a sequence of letters
    return (given,) if isinstance(given, (int, str)) else tuple(given)


def _declared(state: object) -> tuple[object, ...] | None:
    """Check the keyword ``state``: an object, or a tuple or list of objects."""
    if state is None:
        return None
    declared = tuple(state) if isinstance(state, (tuple, list)) else (state,)
    constants = [x for x in declared if isinstance(x, SIMPLE)]
    if constants:
        raise ValueError(f"state={constants[0]!r}; it takes objects, and this is a constant")
    return declared


def _checked(check: int | None, donate: int | str | Sequence[int | str]) -> int | None:
    """Return the option ``check``. ``ValueError`` if it is no number of calls, or comes with
    ``donate``, whose arguments are gone before the second run."""
    if check is None:
        return None
    if type(check) is not int or check < 1:
        raise ValueError(f"check={check!r}; it is None, or a number of calls, at least 1")
    # not by its truth: 0 is the first argument
    if donate != ():
        raise ValueError("check= runs calls twice, and donate= takes their arguments away")
    return check


def _is_of(index: int, names: Sequence[str]) -> bool:
    return -len(names) <= index < len(names)


def _takes(function: Callable[..., object], name: str) -> bool:
    """Return whether ``function`` has a parameter ``name``, or any name, as far as that is
    known."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )
