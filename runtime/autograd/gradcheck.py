"""Compares derivatives with finite differences: ``gradcheck`` and ``gradgradcheck``, as in
``torch.autograd.gradcheck``.

    gradcheck(torch.sin, torch.rand(3, dtype=torch.float64, requires_grad=True))    # True

Numbers in messages count the arguments of ``func`` and its outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..errors import NestedTensor
from ..seam.levels import Value
from ..session.backward import grad
from ..session.leaf import as_leaf
from ..session.tensor import wrap
from ..torch_private.native_tensors import mkldnn_layout
from . import analytical, numerical
from . import gradcheck_special as special
from .analytical import as_tuple
from .gradcheck_jacobians import (
    Options,
    Problem,
    check_constant,
    compare_backward,
    compare_forward,
    compare_projected_backward,
    compare_projected_forward,
    parts_of_inputs,
    parts_of_outputs,
)
from .gradcheck_special import GradcheckError
from .numerical import Steps, plain

__all__ = [
    "GradcheckError",
    "get_analytical_jacobian",
    "get_numerical_jacobian",
    "get_numerical_jacobian_wrt_specific_input",
    "gradcheck",
    "gradgradcheck",
]


def _overlaps(x: torch.Tensor) -> bool:
    """Return whether two elements of ``x`` have one place in memory."""
    if x.numel() < 2:
        return False
    # number the places in memory from the first element to the last, and view them as `x` does
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    places = torch.arange(span).as_strided(x.shape, x.stride())
    return bool(places.unique().numel() < x.numel())


def _as_arguments(tensors: Any) -> tuple[object, ...]:
    """Return a single tensor as a tuple of one, and a sequence as a tuple."""
    if isinstance(tensors, torch.Tensor):
        return (tensors,)
    return tuple(tensors)


def _check_inputs(inputs: object) -> tuple[tuple[object, ...], tuple[int, ...]]:
    """Return the inputs as values, and the numbers of those that require grad."""
    arguments = _as_arguments(inputs)
    values = tuple(
        as_leaf(argument) if isinstance(argument, torch.Tensor) else argument
        for argument in arguments
    )
    at = tuple(
        index
        for index, value in enumerate(values)
        if isinstance(value, Value) and value.requires_grad
    )
    if not at:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, "
            "but none of them have requires_grad=True."
        )
    for position in at:
        _refuse_unfit_input(values[position], position)
    return values, at


def _refuse_unfit_input(value: Any, index: int) -> None:
    """Raise if no element of input ``value``, number ``index``, can be perturbed alone. Warn if its
    dtype is too coarse."""
    if value.layout is torch.sparse_coo and not value.is_coalesced():
        raise ValueError(
            f"gradcheck: input #{index} may specify an element twice; pass x.coalesce()"
        )
    if value.dtype not in (torch.float64, torch.complex128):
        warnings.warn(
            (
                f"Input #{index} requires gradient and is not a double precision floating "
                "point or complex. Finite differences in another dtype are coarser than "
                "the tolerances: pass it as float64 or complex128."
            ),
            stacklevel=4,  # the caller of gradcheck
        )
    if value.layout is not torch.strided:
        return
    if value.is_nested:
        raise NestedTensor
    geometry = zip(value.shape, value.stride(), strict=True)
    if any(stride == 0 and size > 1 for size, stride in geometry):
        raise RuntimeError(
            f"The {index}th input has a dimension with stride 0, so none of its elements can be "
            "perturbed alone. Pass .contiguous() of it to gradcheck."
        )
    if _overlaps(value):
        raise RuntimeError(
            f"The {index}th input has elements that share memory, "
            "so none of them can be perturbed alone. Pass .contiguous() of it to gradcheck."
        )


def _layout_name(tensor: torch.Tensor) -> str:
    """Return the word in errors for the layout of ``tensor``, which is not dense."""
    if tensor.layout is mkldnn_layout:
        return "MKLDNN"
    return "Sparse"


def _require_dense(values: Sequence[Any], at: Sequence[int]) -> None:
    """Raise unless the inputs of the numbers ``at`` are dense: others have no tangents."""
    for index in at:
        if values[index].layout is not torch.strided:
            raise ValueError(
                f"{_layout_name(values[index])} inputs are not support for forward AD gradcheck. "
                f"Input #{index} has layout {values[index].layout}, "
                "and there are no tangents of such tensors; "
                "pass x.to_dense() and convert it within func."
            )


def _check_outputs(outs: Sequence[torch.Tensor]) -> None:
    """Raise unless all outputs are dense."""
    for output in outs:
        if output.layout is not torch.strided:
            raise ValueError(
                f"{_layout_name(output)} output is not supported at gradcheck yet. "
                "Let func return to_dense(masked_grad=...) of it."
            )


def gradcheck(
    func: Callable[..., object],
    inputs: object,
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
    """Compare the derivatives of ``func`` by the inputs that require grad with finite differences,
    as ``torch.autograd.gradcheck``.

    >>> gradcheck(torch.sin, torch.rand(3, dtype=torch.float64, requires_grad=True))
    True

    Return True. If they differ: raise :class:`GradcheckError`, or return False with
    ``raise_exception=False``. ``inputs``: a tensor or a sequence of arguments. Those that require
    grad have double precision and no overlapping memory. They are perturbed by ``eps`` in place.
    For inputs that cannot be checked: ``ValueError`` or ``RuntimeError``. ``atol`` and ``rtol``:
    the tolerances of the comparison, as in ``torch.allclose``. ``fast_mode``: compare projections
    on random directions in place of whole Jacobians.

    ``check_undefined_grad``: a missing cotangent or tangent must count as zero.
    ``check_grad_dtypes``: a gradient must have the dtype of its input. ``check_batched_grad`` and
    ``check_batched_forward_grad``: the derivative under ``vmap`` must equal a loop of it.
    ``nondet_tol``: how much two backward passes may differ. ``masked``: only the specified elements
    of a sparse input are perturbed, and the gradient must be zero elsewhere. By default the
    unspecified elements count as zeros and are perturbed as well. Forward mode needs dense inputs.
    """
    if not (check_forward_ad or check_backward_ad):
        raise AssertionError(
            "Expected at least one of check_forward_ad or check_backward_ad to be True"
        )
    if check_batched_grad and not check_backward_ad:
        raise AssertionError(
            "Setting check_batched_grad=True requires check_backward_ad to be True"
        )
    if check_batched_forward_grad and not check_forward_ad:
        raise AssertionError(
            "Setting check_batched_forward_grad=True requires check_forward_ad to be True"
        )
    options = Options(
        Steps(eps, bool(masked)), atol, rtol, nondet_tol, check_grad_dtypes, fast_mode
    )
    wanted = _Wanted(
        check_backward_ad,
        check_forward_ad,
        check_batched_grad,
        check_batched_forward_grad,
        check_undefined_grad,
    )
    values, at = _check_inputs(inputs)
    if check_forward_ad:
        _require_dense(values, at)
    # only a wrong derivative is an answer; a call that cannot be checked raises in any case
    try:
        _check(func, values, at, wanted, options)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


class _Wanted(NamedTuple):
    """The parts of a gradcheck that are asked for."""

    backward: bool
    forward: bool
    batched_backward: bool
    batched_forward: bool
    undefined: bool


def _check(
    func: Callable[..., object],
    values: tuple[object, ...],
    at: tuple[int, ...],
    wanted: _Wanted,
    options: Options,
) -> None:
    """Raise ``GradcheckError`` unless all derivatives that are ``wanted`` are right."""
    outs = as_tuple(func(*values))
    _check_outputs(outs)
    outputs = tuple(
        index
        for index, output in enumerate(outs)
        if isinstance(output, Value) and output.requires_grad
    )
    if not outputs:
        # `func` may have cut the graph by mistake, so the differences must be zero
        check_constant(Problem(func, values, at, tuple(range(len(outs)))), options)
        return
    problem = Problem(func, values, at, outputs)
    differentiable = [outs[number] for number in outputs]
    if wanted.backward:
        _check_backward(problem, differentiable, options)
    if wanted.forward:
        _check_forward(problem, wanted, options)
    if wanted.backward:
        _check_special_cotangents(problem, differentiable, wanted)
    if wanted.forward and wanted.undefined:
        special.undefined_tangents(func, values, at)


def _check_backward(problem: Problem, outs: Sequence[object], options: Options) -> None:
    """Check the backward pass of each output."""
    reverse = compare_projected_backward if options.fast_mode else compare_backward
    for part in parts_of_outputs(problem, outs):
        reverse(part, part.evaluate(), options)


def _check_forward(problem: Problem, wanted: _Wanted, options: Options) -> None:
    """Check the forward pass with tangents, one by one and in a batch."""
    forward = compare_projected_forward if options.fast_mode else compare_forward
    for part in parts_of_inputs(problem):
        forward(part, options)
    if wanted.batched_forward:
        for index in problem.at:
            special.batched_tangents(problem.func, problem.inputs, index)


def _check_special_cotangents(
    problem: Problem, differentiable: Sequence[object], wanted: _Wanted
) -> None:
    """Check the backward pass with cotangents that are batched, zero or undefined."""
    at = problem.at
    if wanted.batched_backward:
        for number, output in zip(problem.outputs, differentiable, strict=True):
            special.batched_cotangents(output, problem.wrt(), number, at)
    special.zero_cotangent(differentiable, problem.wrt(), at)
    if wanted.undefined:
        special.undefined_cotangents(differentiable, problem.wrt())


def gradgradcheck(
    func: Callable[..., object],
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
    """Check the backward pass of ``func``, by its inputs and by ``grad_outputs``, with
    :func:`gradcheck`, as ``torch.autograd.gradgradcheck``.

    >>> gradgradcheck(torch.sin, torch.rand(3, dtype=torch.float64, requires_grad=True))
    True

    ``grad_outputs``: one per output that requires grad. By default they are random and require
    grad. ``check_fwd_over_rev`` differentiates the backward pass in forward mode,
    ``check_rev_over_rev`` in reverse mode.
    """
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise AssertionError(
            "Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True"
        )
    if check_undefined_grad and not check_rev_over_rev:
        raise AssertionError(
            "Setting check_undefined_grad=True requires check_rev_over_rev to be True"
        )
    if check_batched_grad and not check_rev_over_rev:
        raise AssertionError(
            "Setting check_batched_grad=True requires check_rev_over_rev to be True"
        )
    values, at = _check_inputs(inputs)
    outputs = _differentiable(func(*values))
    if not outputs:
        raise ValueError(
            "gradgradcheck: no output of func requires grad, "
            "so there is no gradient to differentiate"
        )
    cotangents = _cotangents(outputs, grad_outputs, gen_non_contig_grad_outputs)

    def backward(*args: Any) -> tuple[Any, ...]:
        """Return the gradients of ``func``, as a function of its inputs and of the cotangents."""
        xs, cotangents = list(args[: len(values)]), args[len(values) :]
        for index in at:
            # forward mode has detached the inputs, and the backward pass needs their history
            if not xs[index].requires_grad:
                xs[index] = xs[index].requires_grad_()
        grads = grad(
            _differentiable(func(*xs)),
            [xs[index] for index in at],
            cotangents,
            create_graph=True,
            allow_unused=True,
        )
        # gradcheck takes dense tensors, and an input that `func` does not use has no gradient
        gradients = [gradient for gradient in grads if gradient is not None]
        for index, gradient in enumerate(gradients):
            if gradient.layout is not torch.strided:
                gradients[index] = gradient.to_dense(masked_grad=masked)
        return tuple(gradients)

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


def _differentiable(result: object) -> tuple[object, ...]:
    """Return the outputs of a function that require grad."""
    return tuple(out for out in as_tuple(result) if isinstance(out, Value) and out.requires_grad)


def _cotangents(
    outs: Sequence[object], grad_outputs: object, non_contiguous: bool
) -> tuple[object, ...]:
    """Return a cotangent for each of ``outs``: ``grad_outputs``, or random ones for None."""
    if grad_outputs is None:
        return tuple(_cotangent_like(output, non_contiguous) for output in outs)
    cotangents = _as_arguments(grad_outputs)
    if len(cotangents) != len(outs):
        raise ValueError(
            f"gradgradcheck: {len(outs)} outputs of func require grad, "
            f"but there are {len(cotangents)} grad_outputs"
        )
    return cotangents


def _cotangent_like(output: object, non_contiguous: bool) -> object:
    """Return a random cotangent of ``output``, of its shape and dtype, that requires grad.

    ``non_contiguous``: with a stride of 2 in its last dimension, for formulas that read memory.
    """
    cotangent = torch.randn_like(plain(output), memory_format=torch.contiguous_format)
    if non_contiguous:
        # every second element of a tensor twice as large
        cotangent = torch.stack([cotangent, cotangent], dim=-1).select(-1, 0)
    return wrap(cotangent, requires_grad=True)


def _warn_deprecated(name: str, grad_out: float, outs: Sequence[Any]) -> None:
    """Warn that the function ``name`` is deprecated. Raise for arguments that it never took."""
    warnings.warn(
        (
            f"`{name}` was part of PyTorch's private API and not meant to be exposed. "
            "It is deprecated; use gradcheck instead."
        ),
        FutureWarning,
        stacklevel=3,
    )
    if grad_out != 1.0:
        raise ValueError(
            f"Expected grad_out to be 1.0. Multiply the Jacobian that {name} returns instead."
        )
    if any(output.is_complex() for output in outs):
        raise ValueError(
            f"Expected output to be non-complex. {name} is for real outputs; "
            "gradcheck takes complex ones too."
        )


def get_numerical_jacobian(
    fn: Callable[[Any], object],
    inputs: object,
    target: object = None,
    eps: float = 1e-3,
    grad_out: float = 1.0,
) -> tuple[torch.Tensor, ...]:
    """Return the Jacobian of the first output of ``fn``, which takes ``inputs`` as one argument, by
    each tensor of ``target``, (elements of the tensor, elements of the output). Deprecated, as
    ``torch.autograd.gradcheck.get_numerical_jacobian``."""
    outputs = as_tuple(fn(inputs))
    _warn_deprecated("get_numerical_jacobian", grad_out, outputs)
    if target is None:
        target = inputs
    targets = _requiring_grad(target)
    return tuple(
        numerical.jacobian(lambda: as_tuple(fn(inputs)), tensor, Steps(eps))[0]
        for tensor in targets
    )


def get_numerical_jacobian_wrt_specific_input(
    fn: Callable[..., object],
    input_idx: int,
    inputs: Sequence[object],
    outputs: object,
    eps: float,
    input: object = None,
    is_forward_ad: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Return the Jacobian of each output by one input, as
    ``torch.autograd.gradcheck.get_numerical_jacobian_wrt_specific_input``."""
    if input is None:
        input = inputs[input_idx]
    return tuple(numerical.jacobian(lambda: as_tuple(fn(*inputs)), input, Steps(eps)))


def get_analytical_jacobian(
    inputs: object, output: object, nondet_tol: float = 0.0, grad_out: float = 1.0
) -> tuple[tuple[torch.Tensor, ...], bool, bool, bool]:
    """Return the Jacobian of ``output`` by each input that requires grad, whether a second backward
    pass returned the same, and whether the gradients had the sizes and the dtypes of the inputs.
    Deprecated, as ``torch.autograd.gradcheck.get_analytical_jacobian``."""
    _warn_deprecated("get_analytical_jacobian", grad_out, (output,))
    wrt = _requiring_grad(inputs)
    jacobians, same_dtype = analytical.jacobians_by_backward(output, wrt)
    again, _ = analytical.jacobians_by_backward(output, wrt)
    reentrant = all(
        not first.numel() or bool((first - second).abs().max() <= nondet_tol)
        for first, second in zip(jacobians, again, strict=True)
    )
    # the engine refuses gradients of another size than their input
    return tuple(jacobians), reentrant, True, same_dtype


def _requiring_grad(tensors: object) -> list[torch.Tensor]:
    return [
        argument
        for argument in _as_arguments(tensors)
        if isinstance(argument, Value) and argument.requires_grad
    ]
