"""How the programs of one compiled function are made, as data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

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
    """What belongs to a program beside its graph. ``reads``: what it has found in Python's state,
    and its code does not show. ``begin``: makes of the joint graph what a call does before the
    graph runs. ``carried``: places, each the id of an owner and a name, that a call does not ask
    for, although the code reads them: the graph has what is there then. ``left``: names of places
    that the graph, too, changes, beside ``carried``."""

    reads: Sequence[Read] = ()
    begin: Callable[[Joint], Callable[[Call], Sequence[str]] | None] | None = None
    carried: frozenset[tuple[int, Any]] = frozenset()
    left: Sequence[str] = ()


class Leading(Protocol):
    """The arguments that a caller puts before those of the user's: values that change from call to
    call. ``leading``: how many of them there are."""

    @property
    def leading(self) -> int: ...

    def pinned(self, positions: Collection[int]) -> None:
        """The program asks for the values of the numbers at ``positions``. May raise what has the
        call begin once more."""

    def captures(self, args: object, kwargs: object) -> None:
        """A program is about to be captured, for arguments of which it gets copies. May raise
        the same."""


class _None:
    leading = 0

    def pinned(self, positions: Collection[int]) -> None: ...

    def captures(self, args: object, kwargs: object) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the programs of one compiled function are made; most fields are the arguments
    of :func:`aot_function`.

    ``again``: makes the function that runs the programs of a recipe, such as this one's for the
    derivative of a program. ``modules``: those that it calls. ``reads``: what becomes of
    ``item()``, see :class:`...trace.trace_level.Trace`. ``beside``: gives what belongs to the
    program that was captured last. ``starting``: is told before a capture what the program finds in
    Python's state. ``before``: the arguments before those of the user's. ``entered``: code that the
    captures before have run, by identity. ``ignore``: objects that are no state of the program.
    ``single``: whether one program has to serve all calls, also where it has changed what it found.
    ``limit``: how many programs there may be in turn, each for the state that the one before has
    left behind. ``lost``: what the last capture that failed has done and nobody can undo.
    ``declared``: the only objects whose state the program may come to, beside arguments; None if it
    may come to any. ``outside``: arguments of calls to which programs have come by themselves."""

    fn: Callable[..., object]
    modules: Sequence[torch.nn.Module]
    again: Callable[[Recipe], Callable[..., Any]]

    # the graph, and how it is cut and compiled
    compilers: Compilers
    partition: Partition = default_partition
    decompositions: Mapping[OpOverload, Callable[..., object]] | None = None
    num_params_buffers: int = 0
    dynamic: bool = False
    keep_primals: bool = True
    cache: Cache | None = None
    reads: str = "refuse"

    # which programs there are
    single: bool = False
    limit: int = states_in_turn.LIMIT

    # Python's state
    ignore: tuple[object, ...] = ()
    declared: tuple[object, ...] | None = None
    beside: Callable[[], Beside] = Beside
    starting: Callable[[ProgramState], None] | None = None
    before: Leading = field(default_factory=_None)

    # what one capture leaves for the next one
    entered: dict[int, Code] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    outside: OutsideArguments = field(default_factory=OutsideArguments)

    @property
    def name(self) -> str:
        """What messages call the function."""
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)

    def differentiated(self, pullback: fx.GraphModule) -> Callable[..., Any]:
        """Return the pullback of one of the programs as a function, compiled in the same way. It is
        a graph, which has nothing to do with Python's state."""
        recipe = replace(
            self,
            fn=pullback,
            decompositions=None,
            num_params_buffers=0,
            modules=(),
            beside=Beside,
            starting=None,
            before=_None(),
            outside=OutsideArguments(),
        )
        return self.again(recipe)
