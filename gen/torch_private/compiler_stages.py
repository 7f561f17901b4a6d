"""The stages of Dynamo and of AOTAutograd into which `gen audit` plants faults. They are slow to
import."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
import torch._dynamo.backends.common
import torch._dynamo.backends.debugging
import torch._functorch._aot_autograd.runtime_wrappers
import torch._functorch.aot_autograd

calls_around_graphs = torch._functorch._aot_autograd.runtime_wrappers
"""The module with what AOTAutograd does before and after a graph."""
values_saved_for_backward: Any = calls_around_graphs._AutogradSavedState
"""The class that stores what a backward graph needs of a forward graph."""
collection_of_facts = torch._functorch.aot_autograd
"""The module that asks what a program does to its arguments."""
compilation_of_frames = torch._dynamo.convert_frame
"""The module that compiles a function, and once more where a guard does not hold."""
aot_backend: Any = torch._dynamo.backends.common.aot_autograd
"""Makes a backend of AOTAutograd and two compilers of graphs."""
as_it_is: Any = torch._dynamo.backends.debugging.boxed_nop
"""The compiler of graphs that runs a graph as it is."""
Guards: Any = torch._dynamo.guards.GuardBuilder
"""The class with a method for each kind of guard, named in capitals."""
Effects: Any = torch._dynamo.side_effects.SideEffects
"""The class that knows what a program changes of Python's objects."""
ListsOfDynamo: Any = torch._dynamo.variables.ListVariable
"""What stands for a list in Dynamo."""
DictionariesOfDynamo: Any = (
    torch._dynamo.variables.ConstDictVariable,
    torch._dynamo.variables.sets.SetVariable,
)
"""What stands for a dictionary or a set in Dynamo."""
CellsOfDynamo: Any = torch._dynamo.variables.CellVariable
"""What stands for a variable of a function around in Dynamo."""
