"""The joint graph: forward and backward of a program in one, by running our own tape under a trace.

From the outside in: trace, functionalize, grad. The rules of the grad level so call the functionalize level, whose calls are traced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ...func.symbols import Abstraction
from ...func.trace import Trace
from ...func.tracing import module_of, trace_flat
from .aliasing import Group
from .boundary import Boundary
from .primals import refuse_subclasses
from .program import Program


@dataclass(frozen=True)
class Joint:
    """A joint graph. Placeholders: primals (arguments, bases of arguments that share memory, closed-over tensors), then tangents. Results
    are what ``boundary`` says.

    ``closed_over``: the tensors from outside, the last primals. ``groups``: the arguments that share memory; those that are not one tensor
    have a common base.
    """

    module: fx.GraphModule
    boundary: Boundary
    out_spec: pytree.TreeSpec
    abstraction: Abstraction | None
    closed_over: tuple[torch.Tensor, ...] = ()
    groups: tuple[Group, ...] = ()

    @property
    def n_forward(self) -> int:
        return self.boundary.n_forward


def joint_graph(
    f: Callable[..., Any],
    inputs: Sequence[Any],
    differentiate: Sequence[bool],
    *,
    dynamic: bool = False,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    groups: Sequence[Group] = (),
    bases: Sequence[torch.Tensor] = (),
    lift: bool = True,
    whole: bool = False,
    abstraction: Abstraction | None = None,
    loss: int | None = None,
) -> Joint:
    """``f`` takes ``inputs`` (tensors, and other values that become constants) and returns a pytree; see :class:`Joint`.

    ``differentiate``: for each input whether its gradient is wanted. ``groups``: inputs that share memory, if ``f`` writes to any input.
    ``bases``: the common base of each group that is not one tensor.
    ``lift``: make arguments of the tensors that ``f`` closes over, else they are constants of the graph. ``whole``: the graph computes all
    that ``f`` returns, arguments and their views as well. ``abstraction``: what makes the abstract values of the trace.
    ``loss``: the number of the result whose gradients the graph gives. Then it takes no cotangents.
    """
    refuse_subclasses([*inputs, *bases])
    programs: list[Program] = []

    def run(trace: Trace, *traced: Any) -> list[Any]:
        program = Program(trace, f, differentiate, groups, bases, lift, whole, loss)
        programs.append(program)
        return program.results(traced)

    names = [f"primals_{i + 1}" for i in range(len(inputs))]
    abstract = dynamic or abstraction is not None
    with torch.random.fork_rng(devices=()):  # the draws of the trace are not those of a call
        graph, attributes, level = trace_flat(
            run, inputs, dynamic=dynamic, decompositions=decompositions, names=names, fixed_sizes=not abstract, abstraction=abstraction
        )
    (program,) = programs
    module = module_of(graph, attributes, "Joint")
    return Joint(module, program.boundary, program.out_spec, level.abstraction, tuple(program.primals.outside), tuple(groups))
