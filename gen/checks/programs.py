"""Stages that take a whole program: captured graphs, joint graphs, exports and per-sample gradients.

Each becomes a :class:`~gen.checks.pipelines.Program`. A graph is captured on one set of values and run on another, so that a value that is
constant in the graph shows. With dynamic shapes it also runs at another size, if the sample has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gen.checks.batching import VARIATIONS, vary
from gen.checks.outcomes import Mismatch, Unsuitable
from gen.checks.pipelines import Program, extend, restricted
from gen.checks.seeds import seeded
from gen.reference import Loop
from gen.targets.protocol import Flat, Target, Values

Tensor = torch.Tensor


def whole(stage: str, program: Program, axes: Mapping[str, str]) -> Program:
    """`stage` of `program`. `axes` may have ``shapes``, ``partition``, ``loss_reduction`` and ``input_grad``."""
    if stage == "per_sample":
        return _per_sample(program, axes)
    dynamic = axes.get("shapes") == "dynamic"
    if stage == "aot.joint":
        return _joint(program, axes.get("partition", "default"), dynamic)
    return _captured(stage, program, dynamic)


def _captured(stage: str, program: Program, dynamic: bool) -> Program:
    capture = {"trace": "trace", "aot.export": "export"}[stage]
    groups = [other_values(program), *other_sizes(program, dynamic)]
    count = len(program.inputs)

    def over(target: Target) -> Flat:
        def g(*values: Any) -> Values:
            examples = _beside(values, program.inputs)
            replay = getattr(target, capture)(program.over(target), examples, dynamic=dynamic)
            if capture == "trace" and target.name not in ("loop", "numeric") and getattr(replay, "graph", None) is None:
                raise Mismatch("the traced function has no attribute `graph`")
            found: list[Any] = []
            for k in range(len(groups)):
                with seeded(program.seed):  # the capture may have drawn too
                    found += replay(*values[k * count : (k + 1) * count])
            return tuple(found)

        return g

    inputs = tuple(x for group in groups for x in group)
    return Program(over, inputs, program.differentiable * len(groups), program.seed, f"{stage}({program.label})")


def _joint(program: Program, partition: str, dynamic: bool) -> Program:
    kept, flags, count = program.active_outputs, program.differentiable, len(program.inputs)
    _ = program.active_inputs  # raises if nothing is differentiable
    groups = [other_values(program), *other_sizes(program, dynamic)]
    everywhere = [extend(Program(program.over, group, flags, program.seed, program.label), "vjp").inputs for group in groups]

    def recorded(values: Sequence[Tensor]) -> list[Tensor]:
        return [x.detach().clone().requires_grad_() if flag else x for x, flag in zip(values, flags, strict=True)]

    def over(target: Target) -> Flat:
        inner = program.over(target)

        def g(*values: Any) -> Values:
            examples = recorded(_beside(values, program.inputs))
            replay = target.joint(
                lambda *xs: restricted(inner, xs, range(count), kept)(*xs), examples, partition=partition, dynamic=dynamic
            )
            found: list[Any] = []
            for start in range(0, len(values), count + len(kept)):
                with seeded(program.seed):
                    outputs, gradients = replay(recorded(values[start : start + count]), values[start + count : start + count + len(kept)])
                found += [*outputs, *gradients]
            return tuple(found)

        return g

    inputs = tuple(x for group in everywhere for x in group)
    every = (*flags, *(True for _ in kept)) * len(groups)
    return Program(over, inputs, every, program.seed, f"aot.joint({program.label})")


def _beside(values: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`inputs`, each on the device of its value."""
    return tuple(x.to(value.device) for x, value in zip(inputs, values, strict=False))


def other_values(program: Program) -> tuple[Tensor, ...]:
    """Inputs of the same shapes with other values. The reference accepts them."""
    for variation in VARIATIONS:
        inputs = tuple(vary(x, 1, variation) for x in program.inputs)
        outputs = _accepted(program, inputs)
        if outputs is not None and all(o.shape == p.shape for o, p in zip(outputs, program.observed[0], strict=True)):
            return inputs
    return program.inputs


def other_sizes(program: Program, dynamic: bool) -> list[tuple[Tensor, ...]]:
    """Inputs in which every dimension of one size n > 1 has become 2n: one set, or none. The number of results does not change."""
    if not dynamic:
        return []
    sizes = sorted({size for x in program.inputs for size in x.shape if size > 1}, reverse=True)
    for size in sizes:
        inputs = tuple(_doubled(x, size) for x in program.inputs)
        outputs = _accepted(program, inputs)
        if outputs is not None and len(outputs) == len(program.observed[0]):
            return [inputs]
    return []


def _doubled(x: Tensor, size: int) -> Tensor:
    for dim in range(x.ndim):
        if x.shape[dim] == size:
            x = torch.cat([x, vary(x, 1, 1)], dim)
    return x


def _accepted(program: Program, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    reference = Loop()
    try:
        with seeded(program.seed):
            return reference.observe(program.over(reference), inputs, program.differentiable)[0]
    except Exception:  # the op refuses these inputs, with any error
        return None


# --- per-sample gradients ---------------------------------------------------------------------------------------------------------


def _per_sample(program: Program, axes: Mapping[str, str]) -> Program:
    """Per-sample gradients of `program`.

    The batch is the first input or one of indices. The op must work sample by sample along its dimension 0.
    """
    place = _batch_input(program)
    active, kept = program.active_inputs, program.active_outputs
    params = [p for p in active if p != place]
    if not params:
        raise Unsuitable(f"{program.label} has no differentiable input besides the batch")
    reduction = axes.get("loss_reduction", "sum")
    input_grad = axes.get("input_grad", "without_input_grad") == "with_input_grad" and program.differentiable[place]

    def over(target: Target) -> Flat:
        f = program.over(target)

        def g(*values: Any) -> Values:
            inner = restricted(f, values, [place, *params], kept)
            held = [values[p] for p in params]
            return tuple(target.per_sample(inner, values[place], held, loss_reduction=reduction, input_grad=input_grad))

        return g

    return Program(over, program.inputs, program.differentiable, program.seed, f"per_sample({program.label})")


def _batch_input(program: Program) -> int:
    for place, x in enumerate(program.inputs):
        usual = place == 0 or not (x.is_floating_point() or x.is_complex())
        if usual and x.ndim >= 2 and len(x) >= 2 and _works_by_sample(program, place):
            return place
    raise Unsuitable(f"{program.label}: no input is a batch along dimension 0")


def _works_by_sample(program: Program, place: int) -> bool:
    f: Callable[..., tuple[Tensor, ...]] = program.over(Loop())
    try:
        rows = [f(*program.inputs[:place], entry[None], *program.inputs[place + 1 :]) for entry in program.inputs[place]]
        together = [torch.cat(column) for column in zip(*rows, strict=True)]
    except Exception:  # not a batch: the op refuses a slice of this input, or the results cannot be joined
        return False
    whole_outputs = program.observed[0]
    return all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-2, atol=1e-3, equal_nan=True)
        for a, b in zip(together, whole_outputs, strict=True)
    )
