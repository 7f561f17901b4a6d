"""``gradcheck`` and ``gradgradcheck``: derivatives compared with finite differences. As in ``torch.autograd.gradcheck``.

Slow mode compares whole Jacobians, fast mode their projections on random directions. A function with complex outputs is checked as the
two functions of its imaginary and real parts; in forward mode the same is done to its complex inputs, so that both sides are derivatives
of functions that finite differences know. Numbers in messages count the arguments of ``func`` and its outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import NestedTensor
from ..seam.levels import Value
from ..session.backward import grad
from ..session.leaf import as_leaf
from ..session.tensor import wrap
from . import analytical, numerical
from . import gradcheck_special as special
from .analytical import as_tuple
from .gradcheck_special import GradcheckError
from .numerical import Steps, plain, zeros

__all__ = [
    "GradcheckError",
    "get_analytical_jacobian",
    "get_numerical_jacobian",
    "get_numerical_jacobian_wrt_specific_input",
    "gradcheck",
    "gradgradcheck",
]

_REENTRANT = (
    "Backward is not reentrant, i.e., two runs of it on the same input and grad_output differ, although the numerical gradient agrees with "
    "the analytical one. The tolerance for nondeterminism was {}.\n\nIf func uses ops that are not deterministic (see "
    "torch.use_deterministic_algorithms), allow for it with nondet_tol."
)
_FAST = (
    "\nThese are projections of the Jacobians on random directions, as fast_mode=True asks for. In full they are:\n\nNumerical:\n {}\n"
    "Analytical:\n{}\n\nThe max per-element difference (slow mode) is: {}.\n"
)
_FAST_ALONE = (
    "\nFast gradcheck failed but element-wise differences are small. Whole Jacobians pass, so this may be an effect of rounding that the "
    "projection adds up; try fast_mode=False.\n"
)


@dataclass(frozen=True)
class _Options:
    """How closely, and in which mode, Jacobians are compared."""

    steps: Steps
    atol: float
    rtol: float
    nondet_tol: float
    check_grad_dtypes: bool
    fast_mode: bool

    def agree(self, a: torch.Tensor, n: torch.Tensor, scale: float = 1.0) -> bool:
        dtype = torch.promote_types(a.dtype, n.dtype)
        return torch.allclose(a.to(dtype), n.to(dtype), self.rtol, self.atol * scale)


@dataclass(frozen=True)
class _Problem:
    """A function at a point: ``at`` numbers the inputs to differentiate by, ``outputs`` the outputs that have a derivative."""

    func: Callable[..., Any]
    inputs: tuple[Any, ...]
    at: tuple[int, ...]
    outputs: tuple[int, ...]
    prefix: str = ""

    def evaluate(self) -> list[Any]:
        outs = as_tuple(self.func(*self.inputs))
        return [outs[k] for k in self.outputs]

    def wrt(self) -> list[Any]:
        return [self.inputs[i] for i in self.at]

    def mismatch(self, mode: str, output: int, i: int, n: Any, a: Any) -> str:
        which = f"output {self.outputs[output]} with respect to input {i}"
        return f"{self.prefix}Jacobian {mode}mismatch for {which},\nnumerical:{n}\nanalytical:{a}\n"


_FORWARD = "computed with forward mode "


def _overlaps(x: torch.Tensor) -> bool:
    """Whether two elements of ``x`` have one place in memory."""
    if x.numel() < 2:
        return False
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    places = torch.arange(span).as_strided(x.shape, x.stride())
    return bool(places.unique().numel() < x.numel())


def _checked_inputs(inputs: Any) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The inputs as values, and the numbers of those that require grad."""
    given = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    values = tuple(as_leaf(x) if isinstance(x, torch.Tensor) else x for x in given)
    at = tuple(i for i, x in enumerate(values) if isinstance(x, Value) and x.requires_grad)
    if not at:
        raise ValueError("gradcheck expects at least one input tensor to require gradient, but none of them have requires_grad=True.")
    for i in at:
        x = values[i]
        if x.layout is torch.sparse_coo and not x.is_coalesced():
            raise ValueError(f"gradcheck: input #{i} may specify an element twice; pass x.coalesce()")
        if x.dtype not in (torch.float64, torch.complex128):
            warnings.warn(
                f"Input #{i} requires gradient and is not a double precision floating point or complex. Finite differences in another "
                "dtype are coarser than the tolerances: pass it as float64 or complex128.",
                stacklevel=4,
            )
        if x.layout is not torch.strided:
            continue
        if x.is_nested:
            raise NestedTensor
        if any(s == 0 and n > 1 for n, s in zip(x.shape, x.stride(), strict=True)):
            raise RuntimeError(
                f"The {i}th input has a dimension with stride 0, so none of its elements can be perturbed alone. Pass .contiguous() of "
                "it to gradcheck."
            )
        if _overlaps(x):
            raise RuntimeError(
                f"The {i}th input has elements that share memory, so none of them can be perturbed alone. "
                "Pass .contiguous() of it to gradcheck."
            )
    return values, at


def _dense_for_tangents(values: Sequence[Any], at: Sequence[int]) -> None:
    for i in at:
        if values[i].layout is not torch.strided:
            kind = "MKLDNN" if values[i].layout is torch._mkldnn else "Sparse"  # type: ignore[attr-defined]
            raise ValueError(
                f"{kind} inputs are not support for forward AD gradcheck. Input #{i} has layout {values[i].layout}, and there are no "
                "tangents of such tensors; pass x.to_dense() and convert it within func."
            )


def _checked_outputs(outs: Sequence[Any]) -> None:
    for o in outs:
        if o.layout is not torch.strided:
            kind = "MKLDNN" if o.layout is torch._mkldnn else "Sparse"  # type: ignore[attr-defined]
            raise ValueError(f"{kind} output is not supported at gradcheck yet. Let func return to_dense(masked_grad=...) of it.")


def _parts_of_outputs(problem: _Problem, outs: Sequence[Any]) -> Iterator[_Problem]:
    """The problem, or that of the imaginary and that of the real parts of its outputs."""
    if not any(o.is_complex() for o in outs):
        yield problem
        return
    for name, part in (("imaginary", torch.imag), ("real", torch.real)):

        def func(*inputs: Any, part: Callable[..., Any] = part) -> tuple[Any, ...]:
            return tuple(part(o) if o.is_complex() else o for o in as_tuple(problem.func(*inputs)))

        prefix = f"While considering the {name} part of complex outputs only, "
        yield _Problem(func, problem.inputs, problem.at, problem.outputs, prefix)


def _parts_of_inputs(problem: _Problem) -> Iterator[_Problem]:
    """The problem, or that of the imaginary and that of the real parts of its inputs, with the other parts fixed."""
    complex_at = {i for i in problem.at if problem.inputs[i].is_complex()}
    if not complex_at:
        yield problem
        return
    fixed = {i: problem.inputs[i].detach() for i in complex_at}
    for name in ("imaginary", "real"):

        def func(*inputs: Any, name: str = name) -> Any:
            args = list(inputs)
            for i, z in fixed.items():
                args[i] = torch.complex(z.real, args[i]) if name == "imaginary" else torch.complex(args[i], z.imag)
            return problem.func(*args)

        parts = [
            (torch.imag if name == "imaginary" else torch.real)(fixed[i]).clone() if i in complex_at else x
            for i, x in enumerate(problem.inputs)
        ]
        prefix = f"While considering the {name} part of complex inputs only, "
        yield _Problem(func, tuple(parts), problem.at, problem.outputs, prefix)


def _directions(x: Any, draw: torch.Generator) -> list[torch.Tensor]:
    """A unit vector with positive entries for each real dimension of ``x``'s numbers."""
    real = x.dtype.to_real()
    found = []
    for _ in range(2 if x.is_complex() else 1):
        v = plain(torch.rand(x.numel(), dtype=real, generator=draw))
        found.append((v / v.norm() if v.numel() else v).to(x.device))
    return found


def _generator() -> torch.Generator:
    """A generator with a fixed seed, so that every check draws the same directions and the global generator stays as it is."""
    return torch.Generator().manual_seed(2147483647)


def _no_derivative(problem: _Problem, options: _Options) -> None:
    """Check that no output changes with the inputs, since none requires grad."""
    draw = _generator()
    for i in problem.at:
        x = problem.inputs[i]
        steps = [u.reshape(x.shape) for u in _directions(x, draw)[:1]] if options.fast_mode else numerical.one_hots(x)
        axes = (1, 1j) if x.is_complex() else (1,)
        moved = [m for step in steps for axis in axes for m in numerical.along(problem.evaluate, x, step * axis, options.steps)]
        if any(m.any() for m in moved):
            raise GradcheckError("Numerical gradient for function expected to be zero")


def _slow_reverse(problem: _Problem, outs: Sequence[Any], options: _Options) -> None:
    wrt = problem.wrt()
    by_input = [numerical.jacobian(problem.evaluate, x, options.steps) for x in wrt]
    for k, o in enumerate(outs):
        jacobians, same_dtype = analytical.reverse(o, wrt)
        again, _ = analytical.reverse(o, wrt)
        for i, a, n in zip(problem.at, jacobians, by_input, strict=True):
            if not options.agree(a, n[k]):
                raise GradcheckError(problem.mismatch("", k, i, n[k], a))
        if options.check_grad_dtypes and not same_dtype:
            raise GradcheckError("Gradient has dtype mismatch")
        _same_again(jacobians, again, options)


def _same_again(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor], options: _Options) -> None:
    for a, b in zip(first, second, strict=True):
        if a.numel() and not (a - b).abs().max() <= options.nondet_tol:
            raise GradcheckError(_REENTRANT.format(options.nondet_tol))


def _fast_reverse(problem: _Problem, outs: Sequence[Any], options: _Options) -> None:
    draw = _generator()
    wrt = problem.wrt()
    us = [_directions(x, draw) for x in wrt]
    vs = [_directions(o, draw)[0] for o in outs]
    moved = [numerical.vector_product(problem.evaluate, x, u, options.steps) for x, u in zip(wrt, us, strict=True)]
    for k, (o, v) in enumerate(zip(outs, vs, strict=True)):
        rows, again = (
            [zeros(x, *x.shape) if g is None else g for x, g in zip(wrt, analytical.pull(o, wrt, v.reshape(o.shape)), strict=True)]
            for _ in range(2)
        )
        for j, (i, x, u, row) in enumerate(zip(problem.at, wrt, us, rows, strict=True)):
            n = (moved[j][k].reshape(-1) * v).sum()
            flat = row.reshape(-1)
            a = (flat.real * u[0]).sum() + 1j * (flat.imag * u[1]).sum() if x.is_complex() else (flat * u[0]).sum()
            scale = float(max(part.sum() for part in u)) * float(v.sum()) if x.numel() else 1.0
            if not options.agree(a, n, scale):
                full_a, full_n = analytical.reverse(o, [x])[0][0], numerical.jacobian(problem.evaluate, x, options.steps)[k]
                raise GradcheckError(problem.mismatch("", k, i, n.item(), a.item()) + _in_full(full_a, full_n, options))
        if options.check_grad_dtypes and any(g.dtype != x.dtype for g, x in zip(rows, wrt, strict=True)):
            raise GradcheckError("Gradient has dtype mismatch")
        _same_again(rows, again, options)


def _in_full(a: torch.Tensor, n: torch.Tensor, options: _Options) -> str:
    text = _FAST.format(n, a, (a - n).abs().max().item())
    return text + _FAST_ALONE if options.agree(a, n) else text


def _slow_forward(problem: _Problem, options: _Options) -> None:
    for i in problem.at:
        expected = numerical.jacobian(problem.evaluate, problem.inputs[i], options.steps)
        found = analytical.forward(problem.func, problem.inputs, problem.at, i, problem.outputs)
        for k, (a, n) in enumerate(zip(found, expected, strict=True)):
            if not options.agree(a, n):
                raise GradcheckError(problem.mismatch(_FORWARD, k, i, n, a))


def _fast_forward(problem: _Problem, options: _Options) -> None:
    draw = _generator()
    for i in problem.at:
        x = problem.inputs[i]
        u = _directions(x, draw)
        expected = numerical.vector_product(problem.evaluate, x, u, options.steps)
        still = analytical.at_rest(problem.inputs, problem.at)
        tangents = analytical.pushed(problem.func, problem.inputs, {**still, i: u[0].reshape(x.shape)})
        for k, n in enumerate(expected):
            a = tangents[problem.outputs[k]]
            if not options.agree(a, n, float(u[0].sum()) if x.numel() else 1.0):
                full_a = analytical.forward(problem.func, problem.inputs, problem.at, i, problem.outputs)[k]
                full_n = numerical.jacobian(problem.evaluate, x, options.steps)[k]
                flat_n, flat_a = n.reshape(-1), a.reshape(-1)
                raise GradcheckError(problem.mismatch(_FORWARD, k, i, flat_n, flat_a) + _in_full(full_a, full_n, options))


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """As ``torch.autograd.gradcheck``: whether the derivatives of ``func`` by the inputs that require grad are those of finite differences.

    ``inputs``: a tensor or a sequence of arguments; those to check are of double precision and without overlapping memory, and are
    perturbed by ``eps`` in place. A failure is a :class:`GradcheckError`, or False with ``raise_exception=False``; what cannot be
    checked at all is a ``ValueError`` or ``RuntimeError`` in any case. ``nondet_tol``: by how much two backward passes may differ.
    ``masked``: of a sparse input only the elements that it specifies are perturbed, and the gradient must be zero elsewhere; by default
    its unspecified elements are zeros like others. Forward mode takes dense inputs only.
    """
    if not (check_forward_ad or check_backward_ad):
        raise AssertionError("Expected at least one of check_forward_ad or check_backward_ad to be True")
    if check_batched_grad and not check_backward_ad:
        raise AssertionError("Setting check_batched_grad=True requires check_backward_ad to be True")
    if check_batched_forward_grad and not check_forward_ad:
        raise AssertionError("Setting check_batched_forward_grad=True requires check_forward_ad to be True")
    options = _Options(Steps(eps, bool(masked)), atol, rtol, nondet_tol, check_grad_dtypes, fast_mode)
    values, at = _checked_inputs(inputs)
    if check_forward_ad:
        _dense_for_tangents(values, at)
    try:
        outs = as_tuple(func(*values))
        _checked_outputs(outs)
        outputs = tuple(k for k, o in enumerate(outs) if isinstance(o, Value) and o.requires_grad)
        if not outputs:
            _no_derivative(_Problem(func, values, at, tuple(range(len(outs)))), options)
            return True
        problem = _Problem(func, values, at, outputs)
        differentiable = [outs[k] for k in outputs]
        if check_backward_ad:
            for part in _parts_of_outputs(problem, differentiable):
                (_fast_reverse if fast_mode else _slow_reverse)(part, part.evaluate(), options)
        if check_forward_ad:
            for part in _parts_of_inputs(problem):
                (_fast_forward if fast_mode else _slow_forward)(part, options)
            if check_batched_forward_grad:
                for i in at:
                    special.batched_tangents(func, values, i)
        if check_backward_ad:
            if check_batched_grad:
                for k, o in zip(outputs, differentiable, strict=True):
                    special.batched_cotangents(o, problem.wrt(), k, at)
            special.zero_cotangent(differentiable, problem.wrt(), at)
            if check_undefined_grad:
                special.undefined_cotangents(differentiable, problem.wrt())
        if check_forward_ad and check_undefined_grad:
            special.undefined_tangents(func, values, at)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """As ``torch.autograd.gradgradcheck``: :func:`gradcheck` of the backward pass of ``func``, by its inputs and by ``grad_outputs``.

    ``grad_outputs``: one per output that requires grad; random ones that require grad by default. ``check_fwd_over_rev`` differentiates
    the backward pass in forward mode, ``check_rev_over_rev`` in reverse mode.
    """
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise AssertionError("Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True")
    if check_undefined_grad and not check_rev_over_rev:
        raise AssertionError("Setting check_undefined_grad=True requires check_rev_over_rev to be True")
    if check_batched_grad and not check_rev_over_rev:
        raise AssertionError("Setting check_batched_grad=True requires check_rev_over_rev to be True")
    values, at = _checked_inputs(inputs)
    outs = _differentiable(func(*values))
    if not outs:
        raise ValueError("gradgradcheck: no output of func requires grad, so there is no gradient to differentiate")
    if grad_outputs is None:
        cotangents = tuple(_cotangent_like(o, gen_non_contig_grad_outputs) for o in outs)
    else:
        cotangents = (grad_outputs,) if isinstance(grad_outputs, torch.Tensor) else tuple(grad_outputs)
        if len(cotangents) != len(outs):
            raise ValueError(f"gradgradcheck: {len(outs)} outputs of func require grad, but there are {len(cotangents)} grad_outputs")

    def backward(*args: Any) -> tuple[Any, ...]:
        xs, gs = args[: len(values)], args[len(values) :]
        # forward mode detaches its inputs, and the backward pass needs the tape of them
        xs = tuple(x.requires_grad_() if i in at and not x.requires_grad else x for i, x in enumerate(xs))
        found = grad(_differentiable(func(*xs)), [xs[i] for i in at], gs, create_graph=True, allow_unused=True)
        return tuple(g if g.layout is torch.strided else g.to_dense(masked_grad=masked) for g in found if g is not None)

    return gradcheck(
        backward,
        (*values, *cotangents),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad,
        check_forward_ad=check_fwd_over_rev,
        check_backward_ad=check_rev_over_rev,
        fast_mode=fast_mode,
        masked=masked,
    )


def _differentiable(result: Any) -> tuple[Any, ...]:
    return tuple(o for o in as_tuple(result) if isinstance(o, Value) and o.requires_grad)


def _cotangent_like(o: Any, non_contiguous: bool) -> Any:
    """A random cotangent of ``o`` that requires grad, in double precision if ``o`` is not of a floating dtype of its own."""
    g = torch.randn_like(plain(o), memory_format=torch.contiguous_format)
    if non_contiguous:
        g = torch.stack([g, g], dim=-1).select(-1, 0)
    return wrap(g, requires_grad=True)


def _deprecated(name: str, grad_out: float, outs: Sequence[Any]) -> None:
    warnings.warn(
        f"`{name}` was part of PyTorch's private API and not meant to be exposed. It is deprecated; use gradcheck instead.",
        FutureWarning,
        stacklevel=3,
    )
    if grad_out != 1.0:
        raise ValueError(f"Expected grad_out to be 1.0. Multiply the Jacobian that {name} returns instead.")
    if any(o.is_complex() for o in outs):
        raise ValueError(f"Expected output to be non-complex. {name} is for real outputs; gradcheck takes complex ones too.")


def get_numerical_jacobian(
    fn: Callable[[Any], Any], inputs: Any, target: Any = None, eps: float = 1e-3, grad_out: float = 1.0
) -> tuple[torch.Tensor, ...]:
    """Deprecated. As ``torch.autograd.gradcheck.get_numerical_jacobian``: the Jacobian of the first output of ``fn``, which takes
    ``inputs`` as one argument, by each tensor of ``target``, (elements of the tensor, elements of the output)."""
    outs = as_tuple(fn(inputs))
    _deprecated("get_numerical_jacobian", grad_out, outs)
    targets = _tracked(inputs if target is None else target)
    return tuple(numerical.jacobian(lambda: as_tuple(fn(inputs)), x, Steps(eps))[0] for x in targets)


def get_numerical_jacobian_wrt_specific_input(
    fn: Callable[..., Any], input_idx: int, inputs: Sequence[Any], outputs: Any, eps: float, input: Any = None, is_forward_ad: bool = False
) -> tuple[torch.Tensor, ...]:
    """As ``torch.autograd.gradcheck.get_numerical_jacobian_wrt_specific_input``: the Jacobian of each output by one input."""
    x = inputs[input_idx] if input is None else input
    return tuple(numerical.jacobian(lambda: as_tuple(fn(*inputs)), x, Steps(eps)))


def get_analytical_jacobian(
    inputs: Any, output: Any, nondet_tol: float = 0.0, grad_out: float = 1.0
) -> tuple[tuple[torch.Tensor, ...], bool, bool, bool]:
    """Deprecated. As ``torch.autograd.gradcheck.get_analytical_jacobian``: the Jacobian of ``output`` by each input that requires grad,
    whether a second backward pass gave the same, and whether the gradients had the sizes and the dtypes of the inputs."""
    _deprecated("get_analytical_jacobian", grad_out, (output,))
    wrt = _tracked(inputs)
    jacobians, same_dtype = analytical.reverse(output, wrt)
    again, _ = analytical.reverse(output, wrt)
    reentrant = all(not a.numel() or bool((a - b).abs().max() <= nondet_tol) for a, b in zip(jacobians, again, strict=True))
    return tuple(jacobians), reentrant, True, same_dtype


def _tracked(tensors: Any) -> list[Any]:
    each = (tensors,) if isinstance(tensors, torch.Tensor) else tensors
    return [x for x in each if isinstance(x, Value) and x.requires_grad]
