"""Checks a derivative apart from its value: a zero cotangent gives zeros, a missing cotangent
counts as zero, and the derivative can be batched."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from ..func import vmap
from ..func.draws import DrawError
from ..session.backward import grad
from ..tape.engine import execute
from ..tape.nodes import Edge
from ..tape.values import edge_of
from . import analytical
from .numerical import dense, plain, zeros

_UNDEFINED = "A backward that is given None for the gradient of an output must take it for zeros."
_BATCHED = (
    "gradcheck or gradgradcheck failed while testing batched gradient computation. "
    "vmap runs over the derivative, so every op in it needs a batching rule and may "
    "not look at values; python -m runtime coverage lists the rules that there are. "
    "Call gradcheck with {}=False to leave this check out."
)


class GradcheckError(RuntimeError):
    """A derivative is wrong, or was not computed as it must be."""


def _all_zero(grads: Sequence[object]) -> bool:
    """Return whether no gradient has an element other than zero. None counts as zeros."""
    return all(grad is None or not dense(grad).any() for grad in grads)


def zero_cotangent(
    outs: Sequence[object], inputs: Sequence[torch.Tensor], at: Sequence[int]
) -> None:
    """Check that a zero cotangent gives zeros of the type and shape of the inputs. Those of sparse
    inputs may be dense.

    ``at``: which arguments the ``inputs`` are.
    """
    grads = grad(
        outs,
        inputs,
        [torch.zeros_like(plain(output)) for output in outs],
        retain_graph=True,
        allow_unused=True,
    )
    if not _all_zero(grads):
        raise GradcheckError("backward not multiplied by grad_output")
    for index, x, gradient in zip(at, inputs, grads, strict=True):
        if gradient is None:
            continue
        kind = gradient.dtype, gradient.device, gradient.shape
        is_fit = kind == (x.dtype, x.device, x.shape)
        if not is_fit or gradient.layout not in (x.layout, torch.strided):
            raise GradcheckError(
                f"the gradient of input {index} is incorrect: dtype {gradient.dtype}, "
                f"{gradient.device}, {gradient.layout}, size {list(gradient.shape)}, "
                f"of an input of dtype {x.dtype}, {x.device}, {x.layout}, size {list(x.shape)}"
            )


def undefined_cotangents(outs: Sequence[Any], inputs: Sequence[torch.Tensor]) -> None:
    """Check a backward pass in which some outputs, or all, have no cotangent. Inputs that only they
    depend on get none, or zeros."""
    groups = [list(outs)]
    if len(outs) > 1:
        groups += [[output] for output in outs]
    # the engine is called directly, because `grad` takes None for a cotangent of ones
    for group in groups:
        try:
            with torch.no_grad():  # as in a backward pass without create_graph
                roots = [(cast(Edge, edge_of(output)), None) for output in group]
                grads = execute(
                    group[0]._level,
                    roots,
                    list(map(edge_of, inputs)),
                    create_graph=False,
                    keep_graph=True,
                    accumulate=False,
                )
        except Exception as error:
            warnings.warn(
                (
                    "Backwards compatibility: New undefined gradient support checking feature "
                    "is enabled by default. check_undefined_grad=False leaves it out."
                ),
                stacklevel=2,
            )
            raise GradcheckError(
                f"Expected backward function to handle undefined output grads. {_UNDEFINED}"
            ) from error
        if not _all_zero(grads):
            raise GradcheckError(
                "Expected all input grads to be undefined or zero when all output grads are "
                f"undefined or zero. {_UNDEFINED}"
            )


def undefined_tangents(
    func: Callable[..., object], inputs: Sequence[object], at: Sequence[int]
) -> None:
    """Check that an input without a tangent counts as one with a zero tangent."""
    for position in at:
        others = {other: torch.ones_like(plain(inputs[other])) for other in at if other != position}
        without = analytical.push(func, inputs, others)
        with_zero = analytical.push(
            func, inputs, {**others, position: torch.zeros_like(plain(inputs[position]))}
        )
        pairs = zip(without, with_zero, strict=True)
        for index, ((_, tangent), (_, expected)) in enumerate(pairs):
            if not _are_same_tangents(tangent, expected):
                raise GradcheckError(
                    f"Mismatch in tangent values for output with index: {index} when input: "
                    f"{plain(inputs[position])} has an undefined tangent value. Got: "
                    f"{tangent} but expected: {expected}"
                )


def _are_same_tangents(first: object, second: object) -> bool:
    """Return whether two tangents are equal. None counts as zeros."""
    if first is None or second is None:
        return _all_zero((first, second))
    return torch.equal(plain(first), plain(second))


def batched_cotangents(
    out: object, inputs: Sequence[object], number: int, at: Sequence[int]
) -> None:
    """Check that vmap of the backward pass equals a loop of it. ``at``: the numbers of ``inputs``.
    ``number``: the number of ``out``."""
    # two, the smallest batch in which elements can be mixed up
    cotangents = [torch.randn_like(plain(out)) for _ in range(2)]
    expected = [analytical.pull(out, inputs, cotangent) for cotangent in cotangents]
    try:
        grads = grad(
            out,
            inputs,
            torch.stack(cotangents),
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=True,
        )
    except RuntimeError as error:
        raise _batch_error(error, "check_batched_grad") from error
    for index, gradient in enumerate(grads):
        want = [gradients[index] for gradients in expected]
        if gradient is not None or want[0] is not None:
            _require_same(number, at[index], gradient, want, inputs[index], "check_batched_grad")


def batched_tangents(func: Callable[..., object], inputs: Sequence[object], index: int) -> None:
    """Check that vmap of the forward pass over tangents of input ``index`` equals a loop of it."""
    tangents = [torch.randn_like(plain(inputs[index])) for _ in range(2)]

    def push_one(direction: object) -> tuple[torch.Tensor, ...]:
        # vmap takes no None, so a missing tangent becomes zeros
        results = []
        for primal, tangent in analytical.push(func, inputs, {index: direction}):
            results.append(torch.zeros_like(primal) if tangent is None else tangent)
        return tuple(results)

    expected = [analytical.push_densely(func, inputs, {index: tangent}) for tangent in tangents]
    try:
        tangents_of_batch = vmap(push_one)(torch.stack(tangents))
    except RuntimeError as error:
        raise _batch_error(error, "check_batched_forward_grad") from error
    for output, batch in enumerate(tangents_of_batch):
        want = [tangents_of_one[output] for tangents_of_one in expected]
        _require_same(output, index, batch, want, None, "check_batched_forward_grad")


def _batch_error(error: RuntimeError, option: str) -> GradcheckError:
    """Return the error to show. For a random op it is that of the kernel, because the one of
    ``vmap`` names options that the caller does not have."""
    said: BaseException = error
    if isinstance(error, DrawError) and error.__cause__ is not None:
        said = error.__cause__
    return GradcheckError(
        f"While computing batched gradients, got: {said}\n\n{_BATCHED.format(option)}"
    )


def _require_same(
    output: int, index: int, result: object, expected: Sequence[Any], like: Any, option: str
) -> None:
    """Raise unless the batched derivative ``result`` is the batch of the derivatives ``expected``.
    None stands for zeros, of the shape of ``like``."""
    filled = [zeros(like, *like.shape) if each is None else each for each in expected]
    want = torch.stack(filled)
    got = torch.zeros_like(want)
    if result is not None:
        got = plain(result)
    if not torch.allclose(got, want):
        raise GradcheckError(
            f"For output {output} and input {index}, the batched derivative is not a batch "
            f"of the derivatives:\nexpected: {want}\ngot: {got}\n\n{_BATCHED.format(option)}"
        )
