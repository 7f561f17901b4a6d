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
    """What belongs to a program besides its graph.

    ``reads``: values of Python's state that the program has read, though its code does not name
    them. ``begin``: takes the joint graph and returns what a call does before the graph runs.
    ``carried``: places, each the id of an owner and a name, that a call does not check, although
    the code reads them. The graph takes the value of the call from there. ``containers``: the
    identities of those there and in the arguments, whose contents the graph takes. ``left``: names
    of places that the graph changes too, in addition to ``carried``.
    """

    reads: Sequence[Read] = ()
    begin: Callable[[Joint], Callable[[Call], Sequence[str]] | None] | None = None
    carried: frozenset[tuple[int, object]] = frozenset()
    containers: frozenset[int] = frozenset()
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

    Most fields are the arguments of :func:`aot_function`. The others:

    ``again``: returns the function that runs the programs of a recipe. The derivative of a program
    has a recipe of its own. ``modules``: the modules that ``fn`` calls. ``reads``: what becomes of
    ``item()``, see :class:`...trace.trace_level.Trace`. ``retries``: whether a call whose graph has
    raised may run once more, see :class:`.graph_writes.FailedGraph`. ``beside``: returns what
    belongs to the program that was captured last. ``starting``: gets, before a capture, the state
    of Python that the program reads. ``before``: the arguments before those of the user.
    ``entered``: code that the captures before have run, by identity. ``ignore``: objects that are
    no state of the program. ``single``: whether one program has to serve all calls, also where it
    has changed the state that it reads. ``limit``: how many programs there may be in turn, each for
    the state that the one before has left behind. ``lost``: effects of the last capture that failed
    which nobody can undo. ``raised``: the error with which it has failed, if eager mode raises
    it, too. ``declared``: the only objects, besides arguments, whose state the
    program may reach; None if it may reach any. ``outside``: arguments of calls that programs have
    reached by themselves too.
    """

    fn: Callable[..., object]
    modules: Sequence[torch.nn.Module]
    again: Callable[[Recipe], Callable[..., object]]

    # the graph, and how it is cut and compiled
    compilers: Compilers
    partition: Partition = default_partition
    decompositions: Mapping[OpOverload, Callable[..., object]] | None = None
    num_params_buffers: int = 0
    dynamic: bool = False
    keep_primals: bool = True
    cache: Cache | None = None
    reads: str = "refuse"
    retries: bool = False

    # which programs there are
    single: bool = False
    limit: int = states_in_turn.LIMIT

    # Python's state
    ignore: tuple[object, ...] = ()
    declared: tuple[object, ...] | None = None
    beside: Callable[[], Beside] = Beside
    starting: Callable[[ProgramState], None] | None = None
    before: Leading = field(default_factory=_NoLeading)

    # what one capture leaves for the next one
    entered: dict[int, Code] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    raised: list[BaseException] = field(default_factory=list)
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
