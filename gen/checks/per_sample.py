"""Ask for per-sample gradients of a program, and for sums, norms and products of them.

    linear(x, w), x of shape (8, 3) and w of (2, 3)   ->   gradients of w, of shape (8, 2, 3)

The batch is the first input or one of indices; for the answers the first input that can be one. The
op must work sample by sample along its dimension 0. The other differentiable inputs are the
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from gen.checks.pipelines import Program, restricted
from gen.language.axes import Axes
from gen.outcomes import Unsuitable
from gen.reference import Loop
from gen.targets.protocol import Answering, Flat, Target, Values

Tensor = torch.Tensor

_ROUNDING = 1e-9  # a norm below is that of a gradient that is zero but for rounding
# of the parameters of one program; a projection is compared by as many gradients of one entry each
_ENTRIES = 500


def gradients(program: Program, axes: Axes) -> Program:
    """Return the per-sample gradients of `program`, by the axes ``loss_reduction`` and
    ``input_grad``.
    """
    place, params, outputs = _parts(program)
    input_grad = axes.input_grad == "with_input_grad" and program.differentiable[place]

    def over(target: Target) -> Flat:
        function = program.over(target)

        def g(*values: Any) -> Values:
            inner = restricted(function, values, [place, *params], outputs)
            parameters = [values[parameter] for parameter in params]
            results = target.per_sample(
                inner,
                values[place],
                parameters,
                loss_reduction=axes.loss_reduction,
                input_grad=input_grad,
            )
            return tuple(results)

        return g

    return Program(
        over, program.inputs, program.differentiable, program.seed, f"per_sample({program.label})"
    )


def answers(program: Program, of: str, axes: Axes) -> Program:
    """Return what `of`, a word of the axis of this name, asks of the per-sample gradients of
    `program`. The axis ``cotangents`` is the layout of their cotangents."""
    place, params, outputs = _parts(program, every=True)
    layout, each = axes.cotangents, axes.run_on == "sample"
    shapes = [program.inputs[parameter].shape for parameter in params]
    entries = sum(shape.numel() for shape in shapes)
    if of == "project" and entries > _ENTRIES:
        raise Unsuitable(
            f"{program.label} has {entries} entries of parameters, "
            "which would be as many projections"
        )

    def inner(f: Flat, values: Sequence[object]) -> Flat:
        some = restricted(f, values, [place, *params], outputs)
        return lambda *inputs: tuple(_with_cotangents(out, layout) for out in some(*inputs))

    bound = _bound(inner(program.over(Loop()), program.inputs), program.inputs, place, params)
    directions = _directions(shapes, program.seed)

    def over(target: Target) -> Flat:
        f, ask = program.over(target), cast(Answering, target).per_sample_answer

        def g(*values: Any) -> Values:
            batch = values[place]
            parameters = [values[parameter] for parameter in params]
            some = inner(f, values)
            # The matrix of a projection is the target's own, so what follows from it is compared.
            if of == "project":
                # Several times more columns than entries, so that the entries can be solved for.
                columns = max(64, 4 * entries)

                def project(function: Flat, batch: Tensor) -> Any:
                    return ask(function, batch, parameters, of=of, given=columns, each=each)[0]

                return _gradients_of_projections(project, some, batch, parameters)
            question: Any = None
            if of == "clipped_sum":
                question = bound
            elif of == "gram":
                # Another order and one sample fewer: no exchange of rows and columns stays hidden.
                question = batch.flip(0)[1:]
            elif of == "dot":
                pairs = zip(directions, parameters, strict=True)
                question = [direction.to(parameter) for direction, parameter in pairs]
            return tuple(ask(some, batch, parameters, of=of, given=question, each=each))

        return g

    return Program(
        over, program.inputs, program.differentiable, program.seed, f"per_sample({program.label})"
    )


def _parts(program: Program, every: bool = False) -> tuple[int, list[int], list[int]]:
    """Return which input is the batch, which ones are parameters, and which outputs have gradients.
    `every`: any input may be the batch."""
    active = program.active_inputs
    for place, x in enumerate(program.inputs):
        params = [other for other in active if other != place]
        may_be_batch = every or place == 0 or _is_exact(x)
        if params and may_be_batch and _works_along(program, place):
            return place, params, list(program.active_outputs)
    raise Unsuitable(
        f"{program.label}: no input is a batch along dimension 0, "
        "with another one that is differentiable"
    )


def _is_exact(x: Tensor) -> bool:
    return not x.is_floating_point() and not x.is_complex()


def _works_along(program: Program, place: int) -> bool:
    """Return whether an input has samples along dimension 0, and the program works by sample."""
    x = program.inputs[place]
    return x.ndim >= 2 and len(x) >= 2 and _works_by_sample(program, place)


def _with_cotangents(out: Tensor, layout: str) -> object:
    """Return a function of `out` whose backward pass gives a cotangent in this layout to `out`. No
    sample meets another."""
    if out.is_complex():  # the square alone would not depend on the angle
        out = torch.view_as_real(out) + 1
    if layout == "transposed" and out.ndim >= 3:
        return out.mT.contiguous().mT
    if layout == "noncontiguous":
        return torch.stack([out, 2 * out], -1)[..., :1]
    if layout == "expanded" and out.ndim >= 2:
        return out.sum(list(range(1, out.ndim))).unsqueeze(-1)
    return out


def _bound(f: Flat, inputs: Sequence[Tensor], place: int, params: Sequence[int]) -> float:
    """Return a bound between the norms of the samples, so that some gradients are clipped and
    others are not. Raises Unsuitable if all are 0."""
    norms: Tensor = Loop().per_sample_answer(
        f,
        inputs[place],
        [inputs[parameter] for parameter in params],
        of="norms",
        given=None,
        each=False,
    )[0]
    if not (norms > _ROUNDING).any() or not norms.isfinite().all():
        raise Unsuitable("no result depends on a parameter, or a gradient is not finite")
    ordered = norms.double().sort().values
    middle = float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2])
    # Half of the sum is the median, and the bound lies a little below it.
    return max(1e-3, middle * 0.45)


def _directions(shapes: Sequence[torch.Size], seed: int) -> list[Tensor]:
    """Draw a direction for each parameter, in double precision: then each dtype has the same."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def _gradients_of_projections(
    project: Callable[[Flat, Tensor], Tensor], f: Flat, batch: Tensor, params: Sequence[Tensor]
) -> Values:
    """Return the gradients of the samples of `f`, which follow from their projections, and the
    norms of the rows of the projection's matrix.

    A projection is a linear map, of which only the target knows the matrix. Its rows are the
    projections of gradients with one entry each, of which there are fewer than columns. So the
    gradients follow from their projections.
    """
    sizes = [parameter.numel() for parameter in params]
    constants = [parameter.detach().flatten() for parameter in params]

    def one_entry(places: Tensor, *parameters: Any) -> Values:
        """Return 1 / 2 for each sample, with a gradient that is 1 in one place: the loss is the
        square.
        """
        parts = places.split(sizes, 1)
        moved = []
        for part, parameter, constant in zip(parts, parameters, constants, strict=True):
            moved.append(part @ (parameter.flatten() - constant))
        # At the constants the sum is 0, and the square of 1 / 2 has the slope 1.
        return (0.5 + torch.stack(moved).sum(0),)

    # The projections of unit gradients are the rows of the matrix.
    matrix = project(one_entry, torch.eye(sum(sizes), dtype=params[0].dtype, device=batch.device))
    # The normal equations of `gradients @ matrix == projections`.
    gradients = torch.linalg.solve(matrix @ matrix.mT, matrix @ project(f, batch).mT).mT
    return gradients, matrix.square().sum(1)


def _works_by_sample(program: Program, place: int) -> bool:
    """Return whether the program gives for a batch what it gives for its entries one by one."""
    call: Callable[..., tuple[Tensor, ...]] = program.over(Loop())
    samples = len(program.inputs[place])
    if any(not output.ndim or len(output) % samples for output in program.observed[0]):
        # without a call: kernels of torch write outside of their memory for some arguments that do
        # not fit together
        return False
    try:
        rows = [
            call(*program.inputs[:place], entry[None], *program.inputs[place + 1 :])
            for entry in program.inputs[place]
        ]
        together = list(map(torch.cat, zip(*rows, strict=True)))
    except Exception:
        # not a batch: the op refuses a slice of this input, or the results cannot be joined
        return False
    whole_outputs = program.observed[0]
    if len(together) != len(whole_outputs):
        return False
    for by_entry, whole in zip(together, whole_outputs, strict=True):
        if by_entry.shape != whole.shape:
            return False
        # With room for rounding, as kernels for one row and for many add in another order.
        if not torch.allclose(by_entry, whole, rtol=1e-2, atol=1e-3, equal_nan=True):
            return False
    return True
