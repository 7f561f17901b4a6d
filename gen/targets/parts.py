"""Name programs of a row that are to be compiled while the rest of the row runs as it is, for the
stage ``aot.parts``.

    def twice(x):
        f = compiled(lambda a: a.mul_(2).sin())     # in the stage: what the target makes of it;
                                                    # elsewhere the lambda itself
        y = x * 1
        return f(y), f(y), y

So a row can show what lies between a compiled program and its caller: shared memory, several calls,
a module with its buffers.

A row may call what a target offers by a name of its own as well:

    jacfwd = offered("func.jacfwd", torch.func.jacfwd)
    # in the stage: the target's; elsewhere torch's
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

__all__ = ["Compile", "Offer", "Part", "compiled", "offered", "parts_compiled"]

Part = Callable[..., Any]
Compile = Callable[[Part, tuple[Any, ...]], Part]
"""A function or module, and example arguments or none, to what is called in its place."""
Offer = Callable[[str, Any], Any]
"""A name, and what stands for it elsewhere, to what the target offers."""

_compile: ContextVar[Compile | None] = ContextVar("compile", default=None)
_offer: ContextVar[Offer | None] = ContextVar("offer", default=None)


def compiled(f: Part, *examples: object) -> Part:
    """Return `f`, a function or a module, compiled by the target if the stage ``aot.parts`` runs.

    It is called as `f` is. With `examples` `f` is a module that returns a tuple. It is compiled at
    once, and for arguments like these alone.
    """
    # Where Dynamo compiles the whole program, it compiles `f` with it. It reads no ContextVar.
    if torch.compiler.is_dynamo_compiling():
        return f
    make = _compile.get()
    if make is None:
        return f
    return make(f, examples)


def offered(name: str, otherwise: object) -> Any:
    """Return what the target offers by this name, such as ``func.vmap``, if the stage ``aot.parts``
    runs.

    Elsewhere `otherwise`: torch's own, or a loop.
    """
    offer = _offer.get()
    if offer is None:
        return otherwise
    return offer(name, otherwise)


@contextmanager
def parts_compiled(make: Compile, offer: Offer | None = None) -> Iterator[None]:
    """Let :func:`compiled` call `make`, and :func:`offered` call `offer`, inside."""
    compile_token, offer_token = _compile.set(make), _offer.set(offer)
    try:
        yield
    finally:
        _compile.reset(compile_token)
        _offer.reset(offer_token)
