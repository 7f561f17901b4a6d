"""Describe, as data, how the programs of one compiled function are captured and compiled.

Recipe(fn=f, modules=(), again=function_of, compilers=compilers, dynamic=True)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import fx

from ...torch_private.dispatcher import OpOverload
from ..cache.cuts import Cache
from ..capture.joint import Joint
from ..compilers.graph_names import Compilers
from ..partition.partitions import Partition, default_partition
from ..python_state.program_code import Code
from ..python_state.program_state import ProgramState
from ..python_state.reads import Read
from . import states_in_turn
from .arguments import Call
from .identities import OutsideArguments


@dataclass(frozen=True)
class Beside:
    """Hold the facts of a program besides its graph."""

    # Values of Python's state that the program has read, though its code does not name them.
    reads: Sequence[Read] = ()
    # Takes the joint graph, and returns the function that a call runs before the graph.
    begin: Callable[[Joint], Callable[[Call], Sequence[str]] | None] | None = None
    # Places, each the id of an owner and a name, that a call does not check, although the code
    # reads them. The graph takes the call's value from there.
    carried: frozenset[tuple[int, object]] = frozenset()
    # The identities of containers, there and in the arguments, whose contents the graph takes.
    containers: frozenset[int] = frozenset()
    # Names of places that the graph changes, in addition to `carried`.
    left: Sequence[str] = ()


class Leading(Protocol):
    """The arguments that a caller puts before those of the user: values that change from call to
    call. ``leading``: how many of them there are."""

    @property
    def leading(self) -> int:
        """Count the arguments that the caller puts before those of the user."""

    def pinned(self, positions: Collection[int]) -> None:
        """Note that the program asks for the values of the numbers at ``positions``.

        It may raise an exception by which the call begins once more.
        """

    def captures(self, args: object, kwargs: object) -> None:
        """Note that a program is about to be captured, for copies of these arguments.

        It may raise the same exception as :meth:`pinned`.
        """


class _NoLeading:
    """Put no arguments before those of the user."""

    leading = 0

    def pinned(self, positions: Collection[int]) -> None: ...

    def captures(self, args: object, kwargs: object) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the programs of one compiled function are captured and compiled.

    Fields without a comment are the arguments of :func:`aot_function`.
    """

    fn: Callable[..., object]
    # The modules that `fn` calls.
    modules: Sequence[torch.nn.Module]
    # Returns the function that runs the programs of a recipe. The derivative of a program has a
    # recipe of its own.
    again: Callable[[Recipe], Callable[..., object]]

    # the graph, and how it is cut and compiled
    compilers: Compilers
    partition: Partition = default_partition
    decompositions: Mapping[OpOverload, Callable[..., object]] | None = None
    num_params_buffers: int = 0
    dynamic: bool = False
    keep_primals: bool = True
    cache: Cache | None = None
    # The answer to `item()`. See :class:`...trace.trace_level.Trace`.
    reads: str = "refuse"
    # Whether a call whose graph has raised may run once more. See
    # :class:`.graph_writes.FailedGraph`.
    retries: bool = False

    # which programs there are
    # Whether one program has to serve all calls, even if it has changed the state that it reads.
    single: bool = False
    # How many programs there may be in turn, each for the state that the one before has left.
    limit: int = states_in_turn.LIMIT

    # Python's state
    # Objects that are no state of the program.
    ignore: tuple[object, ...] = ()
    # The only objects, besides arguments, whose state the program may reach. None: any object.
    declared: tuple[object, ...] | None = None
    # Returns the facts of the program that was captured last, besides its graph.
    beside: Callable[[], Beside] = Beside
    # Gets, before a capture, the state of Python that the program reads.
    starting: Callable[[ProgramState], None] | None = None
    # The arguments before those of the user.
    before: Leading = field(default_factory=_NoLeading)

    # what one capture leaves for the next one
    # The code that earlier captures have run, by identity.
    entered: dict[int, Code] = field(default_factory=dict)
    # Effects of the last failed capture that nobody can undo.
    lost: list[str] = field(default_factory=list)
    # The error of the last failed capture, if eager mode raises it too.
    raised: list[BaseException] = field(default_factory=list)
    # Arguments of calls that programs have also reached by themselves.
    outside: OutsideArguments = field(default_factory=OutsideArguments)

    @property
    def name(self) -> str:
        """Return the name of the function in messages."""
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)

    def differentiated(self, pullback: fx.GraphModule) -> Callable[..., object]:
        """Return the pullback of one of the programs as a function, compiled in the same way."""
        # a graph reads none of Python's state, so whatever concerns that is empty
        recipe = replace(
            self,
            fn=pullback,
            decompositions=None,
            num_params_buffers=0,
            modules=(),
            beside=Beside,
            starting=None,
            before=_NoLeading(),
            outside=OutsideArguments(),
        )
        return self.again(recipe)
