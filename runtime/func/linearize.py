"""Linearize a function at a point: return its derivative there, as a function of the tangents
alone.

The function runs once. Its ops on tangents are recorded as a graph, with primals as constants. For
``torch.sin`` at ``x`` the graph is ``tangent * x.cos()``, with ``x.cos()`` already computed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ..seam.escapes import refuse_closed
from ..seam.levels import Value
from ..tape.running import with_forward_mode
from ..tape.saved import Saved, store
from ..tape.view_history import OF_MEMORY, has_strides
from ..torch_private.pytrees import pytree
from ..trace.graph_module import GraphModule
from .dual_level import DualLevel, tangent_of
from .grad import outside_inference, versioned
from .jvp import own_memory
from .outside_writes import OutsideWrites


@outside_inference
def linearize(func: Callable[..., object], *primals: object) -> tuple[Any, Callable[..., Any]]:
    """Return ``func(*primals)``, and its derivative at ``primals`` as a function of tangents. As
    ``torch.func.linearize``.

    >>> output, push = linearize(torch.sin, torch.zeros(2))
    >>> push(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])

    ``primals`` and outputs are pytrees of tensors. A tangent has the shape and dtype of its primal.
    ``func`` runs once, when ``linearize`` is called. The returned function holds the intermediate
    tensors that the derivative needs. It can be called any number of times and can be transformed:
    ``vmap(push)`` takes many tangents. It raises ``RuntimeError`` for tangents of another
    structure, shape or dtype, and if a tensor that it holds was written to in the meantime.
    """
    flat, spec = pytree.tree_flatten(primals)
    for primal in flat:
        if not isinstance(primal, torch.Tensor):
            raise RuntimeError(
                f"linearize(f, *primals): Expected all primals to be Tensors, got {type(primal)}"
            )
    writes = OutsideWrites()
    try:
        output, push = _record_derivative(writes.noting(func), flat, spec, copying=False)
    except _Overwritten:
        # the program writes to a tensor that its derivative needs, so a second run copies them all
        writes.undo("linearize")
        output, push = _record_derivative(func, flat, spec, copying=True)

    def jvp_fn(*tangents: object) -> object:
        """Return the derivative along ``tangents``. Raise if they do not fit the primals."""
        flat_t, t_spec = pytree.tree_flatten(tangents)
        if t_spec != spec:
            raise RuntimeError(
                f"Expected the tangents {t_spec} to have the same argspec as the primals {spec}"
            )
        for index, (primal, tensor) in enumerate(zip(flat, flat_t, strict=True)):
            if not isinstance(tensor, torch.Tensor):
                raise RuntimeError(
                    f"tangent:{index} in flattened pytree is not a Tensor but {type(tensor)}"
                )
            for what, actual, required in (
                ("shape", tensor.shape, primal.shape),
                ("dtype", tensor.dtype, primal.dtype),
            ):
                if actual != required:
                    raise RuntimeError(
                        f"tangent:{index} with {what} {actual} in flattened pytree doesn't match "
                        f"the {what} {required} of the corresponding primal."
                    )
        return push(flat_t)

    return output, jvp_fn


class _Overwritten(Exception):
    """Raised if a tensor of the recorded derivative was written to after it was recorded."""


def _was_overwritten(saved: object) -> bool:
    """Return whether a constant was written to after it was saved. A number never is."""
    return isinstance(saved, Saved) and saved.tensor._version != saved.version


def _record_derivative(
    func: Callable[..., object], flat: list[torch.Tensor], spec: pytree.TreeSpec, *, copying: bool
) -> tuple[Any, Callable[[list[Any]], Any]]:
    """Run ``func`` at a dual level whose tangents are the only values of a trace.

    ``flat`` and ``spec``: the leaves of the primals, and their tree. ``copying``: whether each
    tensor that the derivative needs is copied. Returns the outputs, and the function from the
    leaves of the tangents to the tangents of the outputs. Raises ``_Overwritten`` if the program
    writes to a tensor that the derivative needs, and nothing is copied.

    A rule computes with primals and tangents. Its calls on primals run at once, since no primal is
    a value of the trace. Its calls on tangents are written to the graph, with primals as constants.
    So the graph is the linear part of the program. Its constants are tensors of outer levels and so
    still have derivatives there. (Replaying the jvp rules would need no graph, but a second
    implementation of views, in-place writes and custom Functions.)
    """
    # the trace is outside of the dual level, so the tangents are its values
    trace = _linear_part()(copying)
    level = DualLevel()
    results: list[Any] = []
    has_tangent: list[bool] = []  # for each result
    examples = list(map(torch.zeros_like, flat))
    try:
        duals = [
            level.wrap(versioned(p), trace.input(example, f"tangent{index}"))
            for index, (p, example) in enumerate(zip(flat, examples, strict=True))
        ]
        flat_out, out_spec = pytree.tree_flatten(
            with_forward_mode(level, func, pytree.tree_unflatten(duals, spec))
        )
        tangents = []
        for output in flat_out:
            primal, tangent = _split_output(level, output)
            results.append(primal)
            has_tangent.append(tangent is not None)
            if tangent is not None:
                tangents.append(trace.lower_output(tangent))
        trace.graph.output(tangents)
    finally:
        level.close()
        trace.close()
    # primals that the tangents were multiplied with, and the like
    saved_constants = trace.take_constants()
    if not copying and any(map(_was_overwritten, saved_constants)):
        raise _Overwritten
    strides: list[tuple[int, ...] | None] = [None] * len(flat)
    # only ops such as as_strided depend on how a tangent lies in memory
    if any(node.target in OF_MEMORY for node in trace.graph.nodes):
        strides = list(map(_strides_of, examples))
    # a graph without parameters or state: all constants are its arguments
    linear_part = GraphModule(torch.nn.Module(), trace.graph, "LinearPart")

    def push(tangents: list[torch.Tensor]) -> Any:
        """Run the graph on the leaves of the tangents. An output without tangent gets zeros."""
        tangents = [
            _with_strides(tangent, stride)
            for tangent, stride in zip(tangents, strides, strict=True)
        ]
        computed = iter(linear_part(*tangents, *map(_constant, saved_constants)))
        pushed = []
        for result, has in zip(results, has_tangent, strict=True):
            if has:
                pushed.append(own_memory(next(computed), tangents, result))
            else:
                pushed.append(torch.zeros_like(result))
        return pytree.tree_unflatten(pushed, out_spec)

    return pytree.tree_unflatten(results, out_spec), push


def _split_output(level: DualLevel, output: object) -> tuple[object, torch.Tensor | None]:
    """Return an output of the function without its tangent, and the tangent, None for zero."""
    if not isinstance(output, torch.Tensor):
        raise RuntimeError(
            f"linearize(f, *primals): Expected f to return only Tensors, got {type(output)}"
        )
    refuse_closed(output, "the derivative")
    if isinstance(output, Value) and output._level is level:
        return output._inner, tangent_of(output)
    return output, None


@cache
def _linear_part() -> type:
    """Return the class of the trace."""
    # a late import: sympy and Dynamo take longer to import than all of this package
    from ..trace.trace_level import Trace

    class LinearPart(Trace):
        """A trace whose constants become arguments. Each constant is stored with the version that
        it had at its first use."""

        def __init__(self, copying: bool) -> None:
            super().__init__()
            self.copying = copying
            self.saved: dict[str, Saved] = {}
            self.numbers: dict[str, object] = {}  # constants that are no tensors

        def constant(self, tensor: torch.Tensor, literal: bool = False) -> Any:
            """Note the version of a tensor that the graph takes from outside, or copy it."""
            if self.copying:
                tensor = tensor.clone()
            value = super().constant(tensor, literal)
            if value._node.op == "get_attr":
                self.saved.setdefault(str(value._node.target), store(self, tensor))
            return value

        def other_constant(self, argument: object) -> Any:
            """Note a constant that is no tensor, to be passed to the graph as the others are."""
            node = super().other_constant(argument)
            self.numbers[str(node.target)] = argument
            return node

        def take_constants(self) -> list[object]:
            """Make each constant that the finished graph uses a placeholder. Return the constants
            in the order of these placeholders. A tensor is :class:`Saved`.

            A graph and its nodes form reference cycles, which are freed late. So all tables are
            cleared here: no tensor waits for the collector.
            """
            for node in self.graph.nodes:
                node.meta.clear()
            self.graph.eliminate_dead_code()
            constants: list[object] = []
            # the new placeholders come after those of the tangents; None if there are no primals
            last = next(
                (node for node in reversed(self.graph.nodes) if node.op == "placeholder"), None
            )
            # a list, since the loop changes the graph
            for node in list(self.graph.nodes):
                if node.op == "get_attr":
                    name = str(node.target)
                    if name in self.saved:
                        constants.append(self.saved[name])
                    else:
                        constants.append(self.numbers[name])
                    with self.graph.inserting_after(last):
                        last = self.graph.placeholder(name)
                    node.replace_all_uses_with(last)
                    self.graph.erase_node(node)
            for table in (self.attributes, self.constants, self.saved, self.numbers):
                table.clear()
            self.held.clear()
            return constants

    return LinearPart


def _strides_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the strides of ``tensor``, None if it has none."""
    if not has_strides(tensor):
        return None
    return tensor.stride()


def _with_strides(tensor: torch.Tensor, stride: tuple[int, ...] | None) -> torch.Tensor:
    """Return ``tensor`` with the strides of the tangent with which the graph was recorded. Calls of
    the graph such as ``as_strided`` would show other elements with other strides. None: as it
    is."""
    own = _strides_of(tensor)
    if stride is None or own is None:
        return tensor
    # a lazy conjugate or negative shows other numbers than its memory has
    is_lazy = tensor.is_conj() or tensor.is_neg()
    if own == stride and tensor.storage_offset() == 0 and not is_lazy:
        return tensor
    return tensor.new_empty_strided(tensor.shape, stride).copy_(tensor)


def _constant(saved: object) -> object:
    """Return a constant of the derivative: a tensor that was not written to in the meantime, or a
    number."""
    if isinstance(saved, Saved):
        return _detach_parameter(saved.check(None))
    return saved


def _detach_parameter(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of torch that requires grad without that flag, so that torch's own autograd
    does not record. Other tensors stay as they are."""
    if tensor.requires_grad and not isinstance(tensor, Value):
        return tensor.detach()
    return tensor
