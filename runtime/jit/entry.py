"""``jit``, ``jit.explain`` and ``jit.source``: how users come in.

What captures programs is imported by the first call: it takes as long as all of ``import runtime``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import torch

if TYPE_CHECKING:
    from ..aot.compilers.boxed import Compiler
    from .jitted import Jitted, JittedModule
    from .options import Options
    from .report import Report


class _Keywords(TypedDict, total=False):
    """The keywords of :meth:`Jit.__call__`, for the types of its overloads."""

    dynamic: bool | None
    compiler: str | Compiler
    static_argnums: int | Sequence[int]
    static_argnames: str | Sequence[str]
    on_break: str
    donate: int | str | Sequence[int | str]
    ignore: Sequence[object]
    limit: int
    state: object
    check: int | None


class Jit:
    """``f`` captured as a program at its first call, and replayed by the next ones. Also a
    decorator, of methods too.

    >>> from runtime.func import grad, vmap
    >>> slopes = jit(vmap(grad(lambda x: x.sin())))
    >>> slopes(torch.zeros(3))
    tensor([1., 1., 1.])

    A call asks whether its arguments, and what the program finds in Python's state, are of a kind
    that is known. Else another program is captured; ``jit.explain`` says why. A call computes what
    ``f`` computes, with gradients, writes, views and random numbers; ``docs/aot.md`` says how.
    Inside a transform ``f`` itself runs, so ``grad(jit(f))`` is ``grad(f)``.

    ``dynamic``: None captures the first sizes as constants, and at the second ones a program for
    any sizes. True does that at once, False never. ``compiler``: ``"replay"`` runs the graph call
    by call, ``"inductor"`` gives it to torch's Inductor, ``"auto"`` does the first at once and
    changes to the second where that is right and faster; or a function of a ``GraphModule`` and
    example inputs that returns a function. ``static_argnums``, ``static_argnames``: arguments that
    are constants of the program; they must be hashable. ``on_break``: what a call does that cannot
    be captured (an integer of the elements of a tensor, an iterator that moves): ``"error"`` raises
    with the user's line, ``"eager"`` warns once and runs ``f``. ``donate``: names or positions of
    arguments whose memory the call takes. They have no elements afterwards. They must be plain
    tensors that own their memory. ``ignore``: objects that calls neither compare nor change. What
    ``f`` does to them happens when it is captured, and its programs keep what it has read there.

    ``state``: the objects that are all the mutable state of ``f``, beside its arguments; an object
    or a tuple. Another one is refused by name and line. ``limit``: how many programs there may be
    in turn, each for the state that the one before leaves behind. ``check``: each call whose number
    it divides also runs eagerly, and a difference raises; for debugging.

    >>> history = []
    >>> model = torch.nn.Linear(2, 1)
    >>> step = jit(lambda x: (history.append(1), model(x))[1], state=model)
    >>> step(torch.ones(2))
    Traceback (most recent call last):
    RuntimeError: the program comes to 'history' of ...

    :meth:`outside` is a decorator of functions that are left out of programs, such as logs.
    ``jit.explain(slopes)`` is a :class:`.report.Report` of what was captured and why,
    ``jit.source(slopes)`` the programs as text.

    ``RuntimeError`` for what cannot be captured. ``TypeError`` for what is not callable,
    ``ValueError`` for an option that is none."""

    @overload
    # it is callable
    def __call__(self, f: torch.nn.Module, **options: Unpack[_Keywords]) -> JittedModule: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, f: Callable[..., Any], **options: Unpack[_Keywords]) -> Jitted: ...
    @overload
    def __call__(
        self, f: None = None, **options: Unpack[_Keywords]
    ) -> Callable[[Callable[..., Any]], Jitted]: ...

    def __call__(
        self,
        f: Callable[..., Any] | None = None,
        *,
        dynamic: bool | None = None,
        compiler: str | Compiler = "replay",
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
        on_break: str = "error",
        donate: int | str | Sequence[int | str] = (),
        ignore: Sequence[object] = (),
        limit: int = 8,
        state: object = None,
        check: int | None = None,
    ) -> Any:
        """Return ``f`` jitted, or a decorator if there is no ``f``. See :class:`Jit`."""
        from .options import Options

        options = Options(
            dynamic,
            compiler,
            static_argnums,
            static_argnames,
            on_break,
            donate,
            ignore,
            limit,
            state,
            check,
        )
        return functools.partial(_jitted, options=options) if f is None else _jitted(f, options)

    @property
    def explain(self) -> Callable[[Any], Report]:
        """Return :func:`.report.explain`, which tells what was captured and why."""
        from .report import explain

        return explain

    @property
    def outside(self) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Return :func:`.outside_calls.outside`, the decorator of functions that are left out."""
        from .outside_calls import outside

        return outside

    @property
    def source(self) -> Callable[[Any], str]:
        """Return :func:`.report.source`, which gives the programs as text."""
        from .report import source

        return source

    def __repr__(self) -> str:
        return "<function jit>"


jit = Jit()


def _jitted(f: Callable[..., object], options: Options) -> Jitted | JittedModule:
    from .jitted import Jitted, JittedModule

    if not callable(f):
        raise TypeError(f"jit takes a function or a module, not {type(f).__name__}")
    return JittedModule(f, options) if isinstance(f, torch.nn.Module) else Jitted(f, options)
