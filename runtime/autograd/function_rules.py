"""Runs custom Functions under the transforms: the rules of the dual, batch and functionalize levels
for ``Function.apply``.

Example: under ``vmap`` the rule calls the ``vmap`` staticmethod with physical tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

from ..func.batch import BatchLevel
from ..func.draws import DrawPerElement
from ..func.dual_level import DualLevel, DualValue, tangent_of
from ..functionalize.functional_level import FunctionalLevel
from ..functionalize.functional_value import FunctionalValue
from ..rules.ops import DIFFERENTIABLE
from ..seam.levels import Value, levels_of
from ..tape.running import computes_tangents
from ..tape.view_history import View, aliases
from ..torch_private.functorch_state import enter_vmap_mode, leave_vmap_mode
from ..torch_private.mode_stacks import (
    current_dispatch_mode,
    current_dispatch_modes,
    without_innermost_mode,
)
from ..torch_private.pytrees import broadcast_and_flatten, pytree
from .function import (
    _SEE_NOTE,
    TANGENT_NOT_WRITTEN,
    FunctionClass,
    dispatch,
    new_ctx,
    require_setup_context,
    rule,
    run_forward,
)
from .function_arguments import RebuiltContainers, check_marks, exchanged, lowered, position_of
from .function_for_each import ForEach, batch_dims
from .function_node import as_outputs, as_returned, defines


@rule(DualLevel)
def _push(level: DualLevel, cls: FunctionClass, args: tuple[Any, ...]) -> tuple[object, object]:
    """Run the Function at the next outer level, and compute the tangents of its outputs by the
    ``jvp`` staticmethod."""
    require_setup_context(cls)
    primals = tuple(lowered(level, argument) for argument in args)
    containers = RebuiltContainers(args, primals)
    # by `dispatch`: an outer level may record the call, and then its rule runs `forward`
    output, _ = dispatch(cls, primals)
    containers.refuse_changes(cls)
    tangents = _tangents_of(level, args)
    ctx = new_ctx(cls, [tangent is not None for tangent in tangents])
    cls.setup_context(ctx, primals, output)
    outputs = as_outputs(output)
    check_marks(ctx, outputs, primals)
    for index, (argument, primal, tangent) in enumerate(zip(args, primals, tangents, strict=True)):
        # only the tangents of written inputs are written to, and only those must be as large
        if tangent is None or position_of(primal, ctx.dirty_tensors) is None:
            continue
        if _batches(primal) - _batches(tangent):
            # `jvp` writes to it, so it must be as large a batch as the primal is
            level._set_tangent(argument, tangent + torch.zeros_like(primal))
            tangents[index] = tangent_of(argument)
    out_tangents = (None,) * len(outputs)
    if any(tangent is not None for tangent in tangents):
        out_tangents = ctx.push(primals, outputs, tangents)
    call = _Pushed(level, args, primals, tangents, ctx.dirty_tensors)
    pairs = zip(outputs, out_tangents, strict=True)
    wrapped = tuple(call.output(out, tangent) for out, tangent in pairs)
    ctx.forget_marks()
    return as_returned(wrapped, output), ctx


def _tangents_of(level: DualLevel, args: tuple[object, ...]) -> list[torch.Tensor | None]:
    """Return the tangent of each argument. None without one, and while forward mode is off."""
    if not computes_tangents(level.number):
        return [None] * len(args)
    tangents: list[torch.Tensor | None] = []
    for argument in args:
        if isinstance(argument, Value) and argument._level is level:
            tangents.append(tangent_of(argument))
        else:
            tangents.append(None)
    return tangents


class _Pushed(NamedTuple):
    """A call of a Function at a dual level. ``primals``: ``args`` without this level. ``dirty``:
    those that ``forward`` wrote to."""

    level: DualLevel
    args: tuple[Any, ...]
    primals: tuple[Any, ...]
    tangents: list[torch.Tensor | None]
    dirty: tuple[torch.Tensor, ...]

    def output(self, out: object, tensor: torch.Tensor | None) -> Any:
        """Return ``out``, which ``forward`` returned, with the tangent ``tensor``."""
        if not isinstance(out, torch.Tensor):
            return out
        source = position_of(out, self.primals)
        if source is not None and position_of(out, self.dirty) is not None:
            return _check_written_input(
                self.level, self.args[source], self.tangents[source], tensor
            )
        if isinstance(out, Value) and out._level.number > self.level.number:
            return out  # as at a grad level: an inner level recorded it
        value = self.level.wrap(out, tensor)
        base = self._base_of(out)
        if base is not None:
            value._view = View(base, (), "function")
        return value

    def _base_of(self, out: torch.Tensor) -> object:
        """Return what the output ``out`` is a view of: the first argument that shares memory with
        it, or the base of this argument. None if none does."""
        for argument, primal in zip(self.args, self.primals, strict=True):
            if not isinstance(argument, Value) or argument._level is not self.level:
                continue
            if aliases(out, primal):
                # no view has a view for its base, as in torch
                return argument if argument._view is None else argument._view.base
        return None


def _batches(tensor: object) -> set[BatchLevel]:
    """Return the levels at which ``tensor`` is a batch."""
    return {level for level in levels_of(tensor) if isinstance(level, BatchLevel)}


def _check_written_input(
    level: DualLevel, target: object, before: torch.Tensor | None, tensor: torch.Tensor | None
) -> object:
    """Return the output for an input that ``forward`` wrote to. Raise unless its tangent has been
    written to as well."""
    if not (isinstance(target, DualValue) and target._level is level):
        if tensor is None:
            return target
        level.refuse_captured_write("a custom Function")
    if before is not None and tensor is not before:
        raise RuntimeError(TANGENT_NOT_WRITTEN)
    if before is None and tensor is not None:
        level._set_tangent(target, tensor)
    return target


@contextmanager
def _outside_batch(level: BatchLevel) -> Iterator[None]:
    """Turn the randomness of ``level`` off. A ``vmap`` staticmethod reads it from ``info`` and
    draws for the whole batch. A generated rule enters levels of its own."""
    mode = current_dispatch_mode()
    if level.randomness == "error":
        leave_vmap_mode()
        try:
            yield
        finally:
            enter_vmap_mode()
    elif isinstance(mode, DrawPerElement) and mode.level is level:
        with without_innermost_mode():
            yield
    else:
        yield


class VmapInfo(NamedTuple):
    """The first argument of the ``vmap`` staticmethod."""

    batch_size: int
    randomness: str


@rule(BatchLevel)
def _batch(level: BatchLevel, cls: FunctionClass, args: tuple[object, ...]) -> tuple[Any, Any]:
    """Run the ``vmap`` staticmethod on physical tensors. With ``generate_vmap_rule``: a Function of
    the other methods."""
    require_setup_context(cls)
    _require_one_rule(cls)
    physical = tuple(lowered(level, argument) for argument in args)
    containers = RebuiltContainers(args, physical)
    in_dims = batch_dims(level, args)
    if cls.generate_vmap_rule:
        each = ForEach(cls, in_dims, level.size, level.randomness)
        # an outer level may differentiate or batch the physical call in turn
        with _outside_batch(level):
            output, _ = dispatch(each.function(), physical)
        out_dims = each.output_dims
    else:
        with _outside_batch(level):
            result = cls.vmap(VmapInfo(level.size, level.randomness), in_dims, *physical)
        _require_two_returns(result)
        output, out_dims = result
    containers.refuse_changes(cls)
    flat, spec = pytree.tree_flatten(output)
    # one entry may stand for all outputs, as in `out_dims` of vmap
    dims = _check_out_dims(out_dims, spec)
    values = [
        _rebatch(level, out, dim, args, physical) for out, dim in zip(flat, dims, strict=True)
    ]
    # no ctx: a batch level has no node and no tangent, and no caller asks it for one
    return pytree.tree_unflatten(values, spec), None


def _require_one_rule(cls: FunctionClass) -> None:
    """Raise unless the Function has one rule for batches, its own or a generated one."""
    own_rule = defines(cls, "vmap")
    if cls.generate_vmap_rule and own_rule:
        raise RuntimeError(
            f"You tried to vmap over {cls.__name__}, but it has both generate_vmap_rule=True "
            f"and an overridden vmap staticmethod. Only one of them can be the rule. {_SEE_NOTE}"
        )
    if not (cls.generate_vmap_rule or own_rule):
        raise RuntimeError(
            f"You tried to vmap over {cls.__name__}, but it does not have vmap support. "
            f"Write its vmap staticmethod, or let generate_vmap_rule=True make one. {_SEE_NOTE}"
        )


def _require_two_returns(result: object) -> None:
    """Raise unless a ``vmap`` staticmethod has returned an output and its dimensions."""
    if isinstance(result, tuple) and len(result) == 2:
        return
    got = f"a {type(result)}"
    if isinstance(result, tuple):
        got = f"{len(result)} returns"
    raise RuntimeError(
        "Expected the vmap staticmethod to have two returns, "
        "an output and out_dims with pytree structure compatible with the output. Got "
        f"{got} instead"
    )


def _check_out_dims(out_dims: pytree.PyTree, spec: pytree.TreeSpec) -> list[int | None]:
    """Return one entry for each leaf of an output of the structure ``spec``."""
    dims = broadcast_and_flatten(out_dims, spec)
    if dims is None or not all(dim is None or isinstance(dim, int) for dim in dims):
        raise RuntimeError(
            "The autograd.Function's vmap staticmethod returned an incompatible "
            f"(output, out_dims) tuple. out_dims={out_dims} has structure "
            f"{pytree.tree_flatten(out_dims)[1]}, the output {spec}. {_SEE_NOTE}"
        )
    return dims


def _rebatch(
    level: BatchLevel,
    out: object,
    dim: int | None,
    args: tuple[object, ...],
    physical: tuple[object, ...],
) -> object:
    """Return an output of a vmap rule as a value of ``level``. For an input that was returned as it
    is: the same value."""
    source = position_of(out, physical)
    if source is not None and isinstance(out, torch.Tensor):
        return args[source]
    if dim is None or not isinstance(out, torch.Tensor):
        return out
    if dim:
        out = out.movedim(dim, 0)
    return level.wrap(out)


@rule(FunctionalLevel)
def run_functional(
    level: FunctionalLevel, cls: FunctionClass, args: tuple[object, ...]
) -> tuple[object, object]:
    """Run ``forward`` on functional values if no outer level differentiates or batches, else at the
    next outer level."""

    def read_own(value: FunctionalValue) -> object:
        if value._level is not level:
            return value
        return level.read(value)

    # with the modes off, since the tensors that are read belong to outer levels
    with _below(level):
        read = tuple(exchanged(argument, read_own) for argument in args)
    # no outer level asks for the derivative or the batch of the Function as a whole
    if not any(map(_is_transformed, pytree.tree_leaves(read))):
        return _run_alone(level, cls, args)
    versions = _versions(read)
    containers = RebuiltContainers(args, read)
    with _outside(level):
        output, ctx = dispatch(cls, read)
    containers.refuse_changes(cls)
    if _versions(read) != versions:
        raise RuntimeError(
            f"functionalize: {cls.__name__} writes to an input, which cannot be taken back where "
            "an outer transform has its derivative. Write a Function that returns a new tensor."
        )

    def as_value(tensor: torch.Tensor) -> object:
        source = position_of(tensor, read)
        if source is not None:
            return args[source]  # an input that was returned as it is
        return level.wrap(tensor)

    return pytree.tree_map_only(torch.Tensor, as_value, output), ctx


def _versions(args: Sequence[object]) -> list[int | None]:
    """Return the version of each tensor, None for an argument that is no tensor."""
    return [argument._version if isinstance(argument, torch.Tensor) else None for argument in args]


def _run_alone(
    level: FunctionalLevel, cls: FunctionClass, args: tuple[object, ...]
) -> tuple[object, object]:
    """Run ``forward`` on functional values. What it has written to is released, if ``level``
    does that."""
    output, ctx = run_forward(cls, args)
    if not level.releases or not ctx.dirty_tensors:
        return output, ctx
    # an integer cannot have a history that it would have to be released from
    dirty = [
        tensor
        for tensor in ctx.dirty_tensors
        if isinstance(tensor, FunctionalValue)
        and tensor._level is level
        and tensor.dtype in DIFFERENTIABLE
    ]

    def release_written(value: FunctionalValue) -> torch.Tensor:
        if position_of(value, dirty) is None:
            return value
        return level.released(value)

    with _below(level):
        return pytree.tree_map_only(FunctionalValue, release_written, output), ctx


def _is_transformed(tensor: object) -> bool:
    """Return whether a level differentiates or batches ``tensor``. A trace does neither."""
    return any(level.keeps_history or level.hidden for level in levels_of(tensor))


@contextmanager
def _below(level: FunctionalLevel) -> Iterator[None]:
    """Turn the mode of ``level`` and those entered after it off. A value that is read there is one
    of outer levels."""
    with ExitStack() as stack:
        while level.mode in current_dispatch_modes():
            stack.enter_context(without_innermost_mode())
        yield


@contextmanager
def _outside(level: FunctionalLevel) -> Iterator[None]:
    """Turn the mode of ``level`` off, so that the level does not see calls on tensors
    of outer levels."""
    if current_dispatch_mode() is level.mode:
        with without_innermost_mode():
            yield
    else:
        yield
