"""Programs of a row that are to be compiled while the rest of the row runs as it is, for the stage ``aot.parts``.

    def twice(x):
        f = compiled(lambda a: a.mul_(2).sin())     # in the stage: what the target makes of it; elsewhere the lambda itself
        y = x * 1
        return f(y), f(y), y

So a row can show what lies between a compiled program and its caller: shared memory, several calls, a module with its buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Part = Callable[..., Any]
Compile = Callable[[Part, tuple[Any, ...]], Part]
"""A function or module, and example arguments or none, to what is called in its place."""

_compile: ContextVar[Compile | None] = ContextVar("compile", default=None)


def compiled(f: Part, *examples: Any) -> Part:
    """`f`, a function or a module, compiled by the target if the stage ``aot.parts`` runs. It is called as `f` is.

    With `examples` `f` is a module that returns a tuple. It is compiled at once, and for arguments like these alone.
    """
    make = _compile.get()
    return f if make is None else make(f, examples)


@contextmanager
def parts_compiled(make: Compile) -> Iterator[None]:
    """Inside, :func:`compiled` calls `make`."""
    before = _compile.set(make)
    try:
        yield
    finally:
        _compile.reset(before)
