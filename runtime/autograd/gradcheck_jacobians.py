"""Compares Jacobians with finite differences. :func:`runtime.autograd.gradcheck.gradcheck` does so
for each output and input.

Slow mode compares whole Jacobians, fast mode their projections on random directions. A function
with complex outputs is checked as two functions: its imaginary and its real part. In forward mode
complex inputs are split in the same way. So finite differences always have real outputs, and in
forward mode real inputs.

    exact = analytical.jacobians_by_backward(y, [x])[0][0]          what a pass of the runtime says
    estimate = numerical.jacobian(lambda: [f(x)], x, Steps(1e-6))[0]       what differences of f say
    options.agree(exact, estimate)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import analytical, numerical
from .analytical import as_tuple
from .gradcheck_special import GradcheckError
from .numerical import Steps, plain, zeros

_NOT_REENTRANT = (
    "Backward is not reentrant, i.e., two runs of it on the same input and grad_output differ, "
    "although the numerical gradient agrees with the analytical one. "
    "The tolerance for nondeterminism was {}.\n\nIf func uses ops that are not deterministic "
    "(see torch.use_deterministic_algorithms), allow for it with nondet_tol."
)
_IN_FULL = (
    "\nThese are projections of the Jacobians on random directions, as fast_mode=True asks for. "
    "In full they are:\n\nNumerical:\n {}\nAnalytical:\n{}\n\n"
    "The max per-element difference (slow mode) is: {}.\n"
)
_AGREE_IN_FULL = (
    "\nFast gradcheck failed but element-wise differences are small. Whole Jacobians pass, "
    "so this may be an effect of rounding that the projection adds up; try fast_mode=False.\n"
)
_BY_FORWARD = "computed with forward mode "


@dataclass(frozen=True)
class Options:
    """Tolerances and mode of the comparison of Jacobians."""

    steps: Steps
    atol: float
    rtol: float
    nondet_tol: float
    check_grad_dtypes: bool
    fast_mode: bool

    def agree(self, exact: torch.Tensor, estimate: torch.Tensor, scale: float = 1.0) -> bool:
        """Return whether a Jacobian is as near to its estimate by differences as it must be.

        ``scale`` multiplies ``atol``. A projection has one above 1, because the errors of its
        elements add up.
        """
        dtype = torch.promote_types(exact.dtype, estimate.dtype)
        return torch.allclose(exact.to(dtype), estimate.to(dtype), self.rtol, self.atol * scale)


@dataclass(frozen=True)
class Problem:
    """A function at a point, and which of its derivatives are checked."""

    func: Callable[..., object]
    inputs: tuple[Any, ...]
    at: tuple[int, ...]  # the numbers of the inputs to differentiate by
    outputs: tuple[int, ...]  # the numbers of the outputs that have a derivative
    prefix: str = ""  # of the message of an error: which part of a complex function this is

    def evaluate(self) -> list[torch.Tensor]:
        """Return the outputs with a derivative."""
        outputs = as_tuple(self.func(*self.inputs))
        return [outputs[number] for number in self.outputs]

    def wrt(self) -> list[Any]:
        """Return the inputs to differentiate by."""
        return [self.inputs[index] for index in self.at]

    def mismatch(
        self, mode: str, position: int, index: int, estimate: object, exact: object
    ) -> str:
        """Return the message for a Jacobian that differs from its estimate.

        ``position`` is that of the output among ``outputs``, ``index`` the number of the input.
        """
        which = f"output {self.outputs[position]} with respect to input {index}"
        return (
            f"{self.prefix}Jacobian {mode}mismatch for "
            f"{which},\nnumerical:{estimate}\nanalytical:{exact}\n"
        )


def parts_of_outputs(problem: Problem, outs: Sequence[Any]) -> Iterator[Problem]:
    """Yield the problem. With complex outputs: two problems, of their imaginary and of their real
    parts."""
    if not any(output.is_complex() for output in outs):
        yield problem
        return
    # the imaginary part first, as torch's gradcheck does: its errors then name the same part
    for name, part in (("imaginary", torch.imag), ("real", torch.real)):
        # the default binds the part of this turn of the loop
        def func(*inputs: object, part: Callable[..., object] = part) -> tuple[Any, ...]:
            results = as_tuple(problem.func(*inputs))
            return tuple(part(each) if each.is_complex() else each for each in results)

        prefix = f"While considering the {name} part of complex outputs only, "
        yield Problem(func, problem.inputs, problem.at, problem.outputs, prefix)


def parts_of_inputs(problem: Problem) -> Iterator[Problem]:
    """Yield the problem. With complex inputs: two problems, of their imaginary and of their real
    parts. The other part is fixed."""
    complex_at = {index for index in problem.at if problem.inputs[index].is_complex()}
    if not complex_at:
        yield problem
        return
    fixed = {index: problem.inputs[index].detach() for index in complex_at}
    for name in ("imaginary", "real"):
        # the default binds the name of this turn of the loop
        def func(*inputs: Any, name: str = name) -> Any:
            args = list(inputs)
            for index, whole in fixed.items():
                if name == "imaginary":
                    args[index] = torch.complex(whole.real, args[index])
                else:
                    args[index] = torch.complex(args[index], whole.imag)
            return problem.func(*args)

        part_of = torch.imag if name == "imaginary" else torch.real
        parts = list(problem.inputs)
        for index in complex_at:
            parts[index] = part_of(fixed[index]).clone()
        prefix = f"While considering the {name} part of complex inputs only, "
        yield Problem(func, tuple(parts), problem.at, problem.outputs, prefix)


def _directions(value: Any, draw: torch.Generator) -> list[torch.Tensor]:
    """Return one random unit vector with positive entries, or two if ``value`` is complex."""
    real = value.dtype.to_real()
    directions = []
    n_axes = 2 if value.is_complex() else 1
    for _ in range(n_axes):
        # entries have one sign, so their sum bounds what errors of elements add up to
        direction = plain(torch.rand(value.numel(), dtype=real, generator=draw))
        if direction.numel():
            direction = direction / direction.norm()
        directions.append(direction.to(value.device))
    return directions


def _generator() -> torch.Generator:
    """Return a generator with a fixed seed, so that every check draws the same directions and the
    global generator stays as it is."""
    # any number would do
    return torch.Generator().manual_seed(2147483647)


def check_constant(problem: Problem, options: Options) -> None:
    """Check that no output changes with the inputs.

    This is for a function whose outputs do not require grad. ``GradcheckError`` if one changes.
    """
    draw = _generator()
    for index in problem.at:
        x = problem.inputs[index]
        steps: Iterable[torch.Tensor]
        if options.fast_mode:
            steps = [_directions(x, draw)[0].reshape(x.shape)]
        else:
            steps = numerical.one_hots(x)
        # the real axis, and the imaginary one
        axes = (1, 1j) if x.is_complex() else (1,)
        moved: list[torch.Tensor] = []
        for step in steps:
            for axis in axes:
                moved += numerical.directional_derivatives(
                    problem.evaluate, x, step * axis, options.steps
                )
        if any(each.any() for each in moved):
            raise GradcheckError("Numerical gradient for function expected to be zero")


def compare_backward(problem: Problem, outs: Sequence[object], options: Options) -> None:
    """Compare whole Jacobians of the backward pass. Raise ``GradcheckError`` if one differs, or if
    a second pass returns another one."""
    wrt = problem.wrt()
    by_input = [numerical.jacobian(problem.evaluate, x, options.steps) for x in wrt]
    for index, output in enumerate(outs):
        jacobians, same_dtype = analytical.jacobians_by_backward(output, wrt)
        again, _ = analytical.jacobians_by_backward(output, wrt)
        for position, exact, estimates in zip(problem.at, jacobians, by_input, strict=True):
            if not options.agree(exact, estimates[index]):
                raise GradcheckError(problem.mismatch("", index, position, estimates[index], exact))
        if options.check_grad_dtypes and not same_dtype:
            raise GradcheckError("Gradient has dtype mismatch")
        _require_reentrant(jacobians, again, options)


def _require_reentrant(
    first: Sequence[torch.Tensor], second: Sequence[torch.Tensor], options: Options
) -> None:
    """Raise unless two backward passes returned the same."""
    for before, after in zip(first, second, strict=True):
        # "not less" where a NaN is in the difference, too
        if before.numel() and not (before - after).abs().max() <= options.nondet_tol:
            raise GradcheckError(_NOT_REENTRANT.format(options.nondet_tol))


def _gradients(
    output: Any, wrt: Sequence[torch.Tensor], cotangent: torch.Tensor
) -> list[torch.Tensor]:
    """Pull the flat ``cotangent`` of ``output`` back. Zeros stand for no gradient."""
    gradients = analytical.pull(output, wrt, cotangent.reshape(output.shape))
    filled = []
    for x, gradient in zip(wrt, gradients, strict=True):
        filled.append(zeros(x, *x.shape) if gradient is None else gradient)
    return filled


def compare_projected_backward(problem: Problem, outs: Sequence[object], options: Options) -> None:
    """Compare projections of the Jacobians J of the backward pass, u·J·v with random directions u
    and v, as ``torch.autograd.gradcheck`` does with ``fast_mode``. Raise if one differs."""
    draw = _generator()
    wrt = problem.wrt()
    us = [_directions(x, draw) for x in wrt]
    vs = [_directions(output, draw)[0] for output in outs]
    moved = [
        numerical.vector_product(problem.evaluate, x, u, options.steps)
        for x, u in zip(wrt, us, strict=True)
    ]
    for index, (output, v) in enumerate(zip(outs, vs, strict=True)):
        # the second pass is for `_require_reentrant`: both must return the same
        rows, again = _gradients(output, wrt, v), _gradients(output, wrt, v)
        for j, (position, x, u, row) in enumerate(zip(problem.at, wrt, us, rows, strict=True)):
            estimate = (moved[j][index].reshape(-1) * v).sum()
            exact = _along_direction(row, u)
            # each element of J may be off by atol, and has the weight u[i]·v[j] in the sum
            scale = 1.0
            if x.numel():
                scale = float(max(part.sum() for part in u)) * float(v.sum())
            if not options.agree(exact, estimate, scale):
                exact_in_full = analytical.jacobians_by_backward(output, [x])[0][0]
                estimate_in_full = numerical.jacobian(problem.evaluate, x, options.steps)[index]
                raise GradcheckError(
                    problem.mismatch("", index, position, estimate.item(), exact.item())
                    + _show_in_full(exact_in_full, estimate_in_full, options)
                )
        if options.check_grad_dtypes:
            _check_dtypes(rows, wrt)
        _require_reentrant(rows, again, options)


def _along_direction(row: torch.Tensor, u: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the product of a gradient with the direction ``u`` of :func:`_directions`."""
    flat = row.reshape(-1)
    if len(u) == 1:
        return (flat * u[0]).sum()
    return (flat.real * u[0]).sum() + 1j * (flat.imag * u[1]).sum()


def _check_dtypes(gradients: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    """Raise unless each gradient has the dtype of its input."""
    if any(grad.dtype != x.dtype for grad, x in zip(gradients, inputs, strict=True)):
        raise GradcheckError("Gradient has dtype mismatch")


def _show_in_full(exact: torch.Tensor, estimate: torch.Tensor, options: Options) -> str:
    """Return the part of an error that shows two Jacobians of fast mode in full."""
    text = _IN_FULL.format(estimate, exact, (exact - estimate).abs().max().item())
    if options.agree(exact, estimate):
        text += _AGREE_IN_FULL
    return text


def compare_forward(problem: Problem, options: Options) -> None:
    """Compare whole Jacobians of the forward pass. Raise ``GradcheckError`` if one differs."""
    for position in problem.at:
        expected = numerical.jacobian(problem.evaluate, problem.inputs[position], options.steps)
        jacobians = analytical.jacobians_by_forward(
            problem.func, problem.inputs, problem.at, position, problem.outputs
        )
        for index, (exact, estimate) in enumerate(zip(jacobians, expected, strict=True)):
            if not options.agree(exact, estimate):
                raise GradcheckError(
                    problem.mismatch(_BY_FORWARD, index, position, estimate, exact)
                )


def compare_projected_forward(problem: Problem, options: Options) -> None:
    """Compare J·u of the forward pass with a random direction u. Raise if one differs."""
    draw = _generator()
    for position in problem.at:
        x = problem.inputs[position]
        u = _directions(x, draw)
        expected = numerical.vector_product(problem.evaluate, x, u, options.steps)
        # real here: `parts_of_inputs` has split complex inputs, so `u` is one direction
        zero_tangents = analytical.zero_tangents(problem.inputs, problem.at)
        tangents = analytical.push_densely(
            problem.func, problem.inputs, {**zero_tangents, position: u[0].reshape(x.shape)}
        )
        for index, estimate in enumerate(expected):
            exact = tangents[problem.outputs[index]]
            # an element of J·u adds up a row of J, each element of which may be off by atol
            scale = float(u[0].sum()) if x.numel() else 1.0
            if not options.agree(exact, estimate, scale):
                exact_in_full = analytical.jacobians_by_forward(
                    problem.func, problem.inputs, problem.at, position, problem.outputs
                )[index]
                estimate_in_full = numerical.jacobian(problem.evaluate, x, options.steps)[index]
                raise GradcheckError(
                    problem.mismatch(
                        _BY_FORWARD, index, position, estimate.reshape(-1), exact.reshape(-1)
                    )
                    + _show_in_full(exact_in_full, estimate_in_full, options)
                )
