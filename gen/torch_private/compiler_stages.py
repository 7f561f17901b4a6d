"""The stages of Dynamo and of AOTAutograd into which `gen audit` plants faults."""

from __future__ import annotations

from torch._dynamo import convert_frame, variables
from torch._dynamo.backends.common import aot_autograd as aot_backend
from torch._dynamo.backends.debugging import boxed_nop
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables.sets import SetVariable
from torch._functorch import aot_autograd
from torch._functorch._aot_autograd import runtime_wrappers

__all__ = [
    "GUARDS",
    "Cells",
    "Dictionaries",
    "GuardBuilder",
    "Lists",
    "SideEffects",
    "aot_autograd",
    "aot_backend",
    "boxed_nop",
    "convert_frame",
    "runtime_wrappers",
]

Lists = variables.ListVariable
Dictionaries = (variables.ConstDictVariable, SetVariable)
Cells = variables.CellVariable
GUARDS = tuple(name for name in vars(GuardBuilder) if name.isupper())
"""The kinds of guards that Dynamo can ask for."""
