"""Compares Jacobians with finite differences. :func:`runtime.autograd.gradcheck.gradcheck` does so
for each output and input.

Slow mode compares whole Jacobians, fast mode their projections on random directions. A function
with complex outputs is checked as two functions: its imaginary and its real part. In forward mode
complex inputs are split in the same way. So finite differences always have real outputs, and in
forward mode real inputs.
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

_REENTRANT = (
    "Backward is not reentrant, i.e., two runs of it on the same input and grad_output differ, "
    "although the numerical gradient agrees with the analytical one. "
    "The tolerance for nondeterminism was {}.\n\nIf func uses ops that are not deterministic "
    "(see torch.use_deterministic_algorithms), allow for it with nondet_tol."
)
_FAST = (
    "\nThese are projections of the Jacobians on random directions, as fast_mode=True asks for. "
    "In full they are:\n\nNumerical:\n {}\nAnalytical:\n{}\n\n"
    "The max per-element difference (slow mode) is: {}.\n"
)
_FAST_ALONE = (
    "\nFast gradcheck failed but element-wise differences are small. Whole Jacobians pass, "
    "so this may be an effect of rounding that the projection adds up; try fast_mode=False.\n"
)
_FORWARD = "computed with forward mode "


@dataclass(frozen=True)
class Options:
    """Tolerances and mode of the comparison of Jacobians."""

    steps: Steps
    atol: float
    rtol: float
    nondet_tol: float
    check_grad_dtypes: bool
    fast_mode: bool

    def agree(self, a: torch.Tensor, n: torch.Tensor, scale: float = 1.0) -> bool:
        """Return whether the analytical ``a`` is as near to the numerical ``n`` as it must be.
        ``scale``: of projections, which add up the errors of their elements."""
        dtype = torch.promote_types(a.dtype, n.dtype)
        return torch.allclose(a.to(dtype), n.to(dtype), self.rtol, self.atol * scale)


@dataclass(frozen=True)
class Problem:
    """A function at a point. ``at``: the numbers of the inputs to differentiate by. ``outputs``:
    those of the outputs with a derivative."""

    func: Callable[..., Any]
    inputs: tuple[Any, ...]
    at: tuple[int, ...]
    outputs: tuple[int, ...]
    prefix: str = ""

    def evaluate(self) -> list[torch.Tensor]:
        """Return the outputs with a derivative."""
        outs = as_tuple(self.func(*self.inputs))
        return [outs[k] for k in self.outputs]

    def wrt(self) -> list[Any]:
        """Return the inputs to differentiate by."""
        return [self.inputs[i] for i in self.at]

    def mismatch(self, mode: str, output: int, index: int, n: object, argument: object) -> str:
        """Return the message for two Jacobians that differ, the numerical ``n`` and the analytical
        ``argument``. ``output``: the position among ``outputs``. ``index``: of the input."""
        which = f"output {self.outputs[output]} with respect to input {index}"
        return (
            f"{self.prefix}Jacobian {mode}mismatch for "
            f"{which},\nnumerical:{n}\nanalytical:{argument}\n"
        )


def parts_of_outputs(problem: Problem, outs: Sequence[Any]) -> Iterator[Problem]:
    """Yield the problem. With complex outputs: two problems, of their imaginary and of their real
    parts."""
    if not any(output.is_complex() for output in outs):
        yield problem
        return
    for name, part in (("imaginary", torch.imag), ("real", torch.real)):

        def func(*inputs: object, part: Callable[..., object] = part) -> tuple[Any, ...]:
            outs = as_tuple(problem.func(*inputs))
            return tuple(part(out) if out.is_complex() else out for out in outs)

        prefix = f"While considering the {name} part of complex outputs only, "
        yield Problem(func, problem.inputs, problem.at, problem.outputs, prefix)


def parts_of_inputs(problem: Problem) -> Iterator[Problem]:
    """Yield the problem. With complex inputs: two problems, of their imaginary and of their real
    parts. The other part is fixed."""
    complex_at = {i for i in problem.at if problem.inputs[i].is_complex()}
    if not complex_at:
        yield problem
        return
    fixed = {i: problem.inputs[i].detach() for i in complex_at}
    for name in ("imaginary", "real"):

        def func(*inputs: Any, name: str = name) -> Any:
            args = list(inputs)
            for i, z in fixed.items():
                if name == "imaginary":
                    args[i] = torch.complex(z.real, args[i])
                else:
                    args[i] = torch.complex(args[i], z.imag)
            return problem.func(*args)

        part_of = torch.imag if name == "imaginary" else torch.real
        parts = list(problem.inputs)
        for i in complex_at:
            parts[i] = part_of(fixed[i]).clone()
        prefix = f"While considering the {name} part of complex inputs only, "
        yield Problem(func, tuple(parts), problem.at, problem.outputs, prefix)


def _directions(value: Any, draw: torch.Generator) -> list[torch.Tensor]:
    """Return one random unit vector with positive entries, or two if ``value`` is complex."""
    real = value.dtype.to_real()
    directions = []
    n_axes = 2 if value.is_complex() else 1
    for _ in range(n_axes):
        v = plain(torch.rand(value.numel(), dtype=real, generator=draw))
        if v.numel():
            v = v / v.norm()
        directions.append(v.to(value.device))
    return directions


def _generator() -> torch.Generator:
    """Return a generator with a fixed seed, so that every check draws the same directions and the
    global generator stays as it is."""
    return torch.Generator().manual_seed(2147483647)


def no_derivative(problem: Problem, options: Options) -> None:
    """Check that no output changes with the inputs. For a function whose outputs do
    not require grad."""
    draw = _generator()
    for i in problem.at:
        x = problem.inputs[i]
        steps: Iterable[torch.Tensor]
        if options.fast_mode:
            steps = [_directions(x, draw)[0].reshape(x.shape)]
        else:
            steps = numerical.one_hots(x)
        axes = (1, 1j) if x.is_complex() else (1,)
        moved: list[torch.Tensor] = []
        for step in steps:
            for axis in axes:
                moved += numerical.along(problem.evaluate, x, step * axis, options.steps)
        if any(m.any() for m in moved):
            raise GradcheckError("Numerical gradient for function expected to be zero")


def slow_reverse(problem: Problem, outs: Sequence[object], options: Options) -> None:
    """Compare whole Jacobians of the backward pass. Raise ``GradcheckError`` if one differs, or if
    a second pass returns another one."""
    wrt = problem.wrt()
    by_input = [numerical.jacobian(problem.evaluate, x, options.steps) for x in wrt]
    for k, output in enumerate(outs):
        jacobians, same_dtype = analytical.reverse(output, wrt)
        again, _ = analytical.reverse(output, wrt)
        for i, a, n in zip(problem.at, jacobians, by_input, strict=True):
            if not options.agree(a, n[k]):
                raise GradcheckError(problem.mismatch("", k, i, n[k], a))
        if options.check_grad_dtypes and not same_dtype:
            raise GradcheckError("Gradient has dtype mismatch")
        _require_reentrant(jacobians, again, options)


def _require_reentrant(
    first: Sequence[torch.Tensor], second: Sequence[torch.Tensor], options: Options
) -> None:
    """Raise unless two backward passes returned the same."""
    for before, after in zip(first, second, strict=True):
        if before.numel() and not (before - after).abs().max() <= options.nondet_tol:
            raise GradcheckError(_REENTRANT.format(options.nondet_tol))


def _gradients(output: Any, wrt: Sequence[torch.Tensor], v: torch.Tensor) -> list[torch.Tensor]:
    """Pull the flat cotangent ``v`` of ``output`` back. Zeros stand for no gradient."""
    pulled = zip(wrt, analytical.pull(output, wrt, v.reshape(output.shape)), strict=True)
    return [zeros(x, *x.shape) if g is None else g for x, g in pulled]


def fast_reverse(problem: Problem, outs: Sequence[object], options: Options) -> None:
    """Compare projections of the Jacobians J of the backward pass, u·J·v with random directions u
    and v, as ``torch.autograd.gradcheck`` does with ``fast_mode``. Raise if one differs."""
    draw = _generator()
    wrt = problem.wrt()
    us = [_directions(x, draw) for x in wrt]
    vs = [_directions(out, draw)[0] for out in outs]
    moved = [
        numerical.vector_product(problem.evaluate, x, u, options.steps)
        for x, u in zip(wrt, us, strict=True)
    ]
    for k, (output, v) in enumerate(zip(outs, vs, strict=True)):
        rows, again = _gradients(output, wrt, v), _gradients(output, wrt, v)
        for j, (i, x, u, row) in enumerate(zip(problem.at, wrt, us, rows, strict=True)):
            n = (moved[j][k].reshape(-1) * v).sum()
            a = _along_direction(row, u)
            scale = 1.0
            if x.numel():
                scale = float(max(part.sum() for part in u)) * float(v.sum())
            if not options.agree(a, n, scale):
                full_a = analytical.reverse(output, [x])[0][0]
                full_n = numerical.jacobian(problem.evaluate, x, options.steps)[k]
                raise GradcheckError(
                    problem.mismatch("", k, i, n.item(), a.item())
                    + _show_in_full(full_a, full_n, options)
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


def _show_in_full(a: torch.Tensor, n: torch.Tensor, options: Options) -> str:
    """Return the part of an error that shows two Jacobians of fast mode in full."""
    text = _FAST.format(n, a, (a - n).abs().max().item())
    if options.agree(a, n):
        text += _FAST_ALONE
    return text


def slow_forward(problem: Problem, options: Options) -> None:
    """Compare whole Jacobians of the forward pass. Raise ``GradcheckError`` if one differs."""
    for i in problem.at:
        expected = numerical.jacobian(problem.evaluate, problem.inputs[i], options.steps)
        jacobians = analytical.forward(problem.func, problem.inputs, problem.at, i, problem.outputs)
        for k, (a, n) in enumerate(zip(jacobians, expected, strict=True)):
            if not options.agree(a, n):
                raise GradcheckError(problem.mismatch(_FORWARD, k, i, n, a))


def fast_forward(problem: Problem, options: Options) -> None:
    """Compare J·u of the forward pass with a random direction u. Raise if one differs."""
    draw = _generator()
    for i in problem.at:
        x = problem.inputs[i]
        u = _directions(x, draw)
        expected = numerical.vector_product(problem.evaluate, x, u, options.steps)
        still = analytical.at_rest(problem.inputs, problem.at)
        tangents = analytical.pushed(
            problem.func, problem.inputs, {**still, i: u[0].reshape(x.shape)}
        )
        for k, n in enumerate(expected):
            a = tangents[problem.outputs[k]]
            scale = float(u[0].sum()) if x.numel() else 1.0
            if not options.agree(a, n, scale):
                full_a = analytical.forward(
                    problem.func, problem.inputs, problem.at, i, problem.outputs
                )[k]
                full_n = numerical.jacobian(problem.evaluate, x, options.steps)[k]
                flat_n, flat_a = n.reshape(-1), a.reshape(-1)
                raise GradcheckError(
                    problem.mismatch(_FORWARD, k, i, flat_n, flat_a)
                    + _show_in_full(full_a, full_n, options)
                )
