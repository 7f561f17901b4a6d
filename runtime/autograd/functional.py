"""Computes derivatives of functions of tensors, with the names of ``torch.autograd.functional``.

    jacobian(torch.sin, torch.zeros(3))         # the identity matrix
    vjp(torch.sin, x, torch.ones(3))            # (x.sin(), x.cos())

All functions run the user's function on the tape of level zero. A Jacobian-vector product is the
derivative of the vector-Jacobian product by its cotangent («double backward»). So it can be
differentiated, and ``strict`` can check it, like the others. ``runtime.func.jvp`` and
``forward_ad`` compute it faster. ``inputs`` and ``v`` are a tensor or a tuple of tensors. Results
have the same structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import NestedTensor
from ..func import vmap
from ..session.backward import grad
from . import forward_ad
from .functional_passes import (
    HESSIAN_CONSTANT,
    JACOBIAN_CONSTANT,
    JACOBIAN_INDEPENDENT,
    NEEDS_V,
    OUTPUT_INDEPENDENT,
    STRICT,
    StrictErrors,
    Tensors,
    as_result,
    call_function,
    direction,
    fill_missing,
    gradient_with_history,
    input_direction,
    is_tracked,
    open_inputs,
    pull,
    push_forward,
    scalar_function,
    tensors_in,
    value_of,
)

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def vjp(
    func: Callable[..., object],
    inputs: Tensors,
    v: Tensors = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return (outputs, ``v`` times the Jacobian), ``v`` of the shape of the outputs, as
    ``torch.autograd.functional.vjp``.

    >>> vjp(lambda x: x * x, torch.tensor([1.0, 2.0]), torch.ones(2))
    (tensor([1., 4.]), tensor([2., 4.]))

    ``v`` may be left out for one output of one element. With ``create_graph`` both results have
    a history. If no output depends on an input, its product is zero, or with ``strict`` there is
    a ``RuntimeError``.
    """
    # under the caller's no_grad, too: a derivative is what he asks for
    with torch.enable_grad():
        opened = open_inputs(inputs, "inputs", "vjp", create_graph)
        is_tuple, outputs = call_function(func, opened, "vjp", strict)
        if v is not None:
            vs: Any = direction(v, "vjp", create_graph, outputs, is_tuple)
        elif len(outputs) != 1 or outputs[0].numel() != 1:
            raise RuntimeError(NEEDS_V.format("the user-provided function returns"))
        else:
            vs = None  # `grad` takes 1 for an output of one element
        pulled = pull(outputs, opened, vs, create_graph)
        errors = StrictErrors.of(strict, create_graph, OUTPUT_INDEPENDENT, JACOBIAN_CONSTANT)
        filled = fill_missing(pulled, opened, errors)
    return as_result(outputs, is_tuple, create_graph), as_result(
        filled, isinstance(inputs, tuple), create_graph
    )


def jvp(
    func: Callable[..., object],
    inputs: Tensors,
    v: Tensors = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[object, object]:
    """Return (outputs, the Jacobian times ``v``), ``v`` of the shape of the inputs, as
    ``torch.autograd.functional.jvp``.

    >>> jvp(lambda x: x.sum(), torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]))
    (tensor(3.), tensor(1.))

    ``v`` may be left out for one input of one element. ``create_graph`` and ``strict`` as
    for :func:`vjp`.
    """
    with torch.enable_grad():
        opened = open_inputs(inputs, "inputs", "jvp", create_graph)
        vs = input_direction(v, "jvp", create_graph, inputs, opened)
        is_tuple, outputs = call_function(func, opened, "jvp", strict)
        pushed = push_forward(
            outputs, opened, vs, create_graph, strict, OUTPUT_INDEPENDENT, JACOBIAN_CONSTANT
        )
    return as_result(outputs, is_tuple, create_graph), as_result(pushed, is_tuple, create_graph)


def vhp(
    func: Callable[..., object],
    inputs: Tensors,
    v: Tensors = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[object, object]:
    """Return (output, ``v`` times the Hessian) of a function with one output of one element, as
    ``torch.autograd.functional.vhp``.

    >>> vhp(lambda x: (x**3).sum(), torch.tensor([1.0, 2.0]), torch.ones(2))
    (tensor(9.), tensor([ 6., 12.]))

    ``v`` has the shape of the inputs, and so has the product. It may be left out for one input of
    one element. ``create_graph`` and ``strict`` as for :func:`vjp`.
    """
    with torch.enable_grad():
        opened = open_inputs(inputs, "inputs", "vhp", create_graph)
        vs = input_direction(v, "vhp", create_graph, inputs, opened)
        out = scalar_function(func, "vhp", strict)(*opened)
        jacobian_ = gradient_with_history(out, opened, strict)
        pulled = pull(jacobian_, opened, vs, create_graph)
        errors = StrictErrors.of(strict, create_graph, JACOBIAN_INDEPENDENT, HESSIAN_CONSTANT)
        filled = fill_missing(pulled, opened, errors)
    return as_result((out,), False, create_graph), as_result(
        filled, isinstance(inputs, tuple), create_graph
    )


def hvp(
    func: Callable[..., object],
    inputs: Tensors,
    v: Tensors = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[object, object]:
    """Return (output, the Hessian times ``v``), as ``torch.autograd.functional.hvp``. Where the
    Hessian is symmetric, ``vhp`` is faster.

    >>> hvp(lambda x: (x**3).sum(), torch.tensor([1.0, 2.0]), torch.ones(2))
    (tensor(9.), tensor([ 6., 12.]))

    Arguments, results and errors are those of :func:`vhp`. It takes one more backward pass.
    """
    with torch.enable_grad():
        opened = open_inputs(inputs, "inputs", "hvp", create_graph)
        vs = input_direction(v, "hvp", create_graph, inputs, opened)
        out = scalar_function(func, "hvp", strict)(*opened)
        jacobian_ = gradient_with_history(out, opened, strict)
        pushed = push_forward(
            jacobian_, opened, vs, create_graph, strict, JACOBIAN_INDEPENDENT, HESSIAN_CONSTANT
        )
    return as_result((out,), False, create_graph), as_result(
        pushed, isinstance(inputs, tuple), create_graph
    )


def _nest(blocks: list[list[object]], many_outputs: bool, many_inputs: bool) -> object:
    """Return ``blocks[output][input]`` as tuples, without those around a single tensor
    that was not in one."""
    per_output = tuple(tuple(row) if many_inputs else row[0] for row in blocks)
    if many_outputs:
        return per_output
    return per_output[0]


def _one_hot(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of shape (numel, *shape): for each element of ``tensor``, 1 at its place."""
    # a nested tensor has no shape of which the second part could be
    if tensor.is_nested:
        raise NestedTensor
    return torch.eye(tensor.numel(), dtype=tensor.dtype, device=tensor.device).reshape(
        (tensor.numel(), *tensor.shape)
    )


def jacobian(
    func: Callable[..., object],
    inputs: Tensors,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """Return for output i and input j a tensor of shape (*output shape, *input shape), as
    ``torch.autograd.functional.jacobian``.

    >>> jacobian(lambda x, y: x * y, (torch.tensor([1.0, 2.0]), torch.tensor(3.0)))
    (tensor([[3., 0.],
            [0., 3.]]), tensor([1., 2.]))

    Returns one tensor if neither inputs nor outputs are a tuple, else a tuple over the outputs, the
    inputs, or both. ``vectorize``: compute all rows of an output in one pass under ``vmap``.
    ``strategy="forward-mode"`` computes columns, and needs ``vectorize``. ``create_graph`` and
    ``strict`` as for :func:`vjp`; neither goes with the forward mode, nor ``strict`` with
    ``vectorize``.
    """
    if strategy not in ("forward-mode", "reverse-mode"):
        raise AssertionError(
            'Expected strategy to be either "forward-mode" or "reverse-mode". '
            "The first costs a pass per element of the inputs, the "
            "second one per element of the outputs."
        )
    if strategy == "forward-mode":
        if create_graph:
            raise NotImplementedError(
                "torch.autograd.functional.jacobian: `create_graph=True` "
                'and `strategy="forward-mode"` are not supported together (yet). '
                'strategy="reverse-mode" gives a result with a history.'
            )
        return _columns(func, inputs, strict, vectorize)
    with torch.enable_grad():
        opened = open_inputs(inputs, "inputs", "jacobian", create_graph)
        many_outputs, outputs = call_function(func, opened, "jacobian", strict)
        # after the call, as in torch: the error for an output without a history comes first
        if strict and vectorize:
            raise RuntimeError(
                "torch.autograd.functional.jacobian: "
                "`strict=True` and `vectorized=True` are not supported together. Whether a row "
                "depends on an input is seen only when it is computed alone: set vectorize=False."
            )
        rows = _rows_at_once if vectorize else _rows
        blocks = [
            list(rows(index, output, opened, create_graph, strict))
            for index, output in enumerate(outputs)
        ]
    return _nest(blocks, many_outputs, isinstance(inputs, tuple))


def _rows(
    index: int, out: torch.Tensor, inputs: Sequence[torch.Tensor], create_graph: bool, strict: bool
) -> list[torch.Tensor]:
    """Return the Jacobian of output number ``index`` by each input. Each backward pass gives a
    row."""
    if out.is_complex():
        raise RuntimeError(
            f"grad can be implicitly created only for real scalar outputs but got {out.dtype}"
        )
    rows = []
    none = f"Output {index} of the user-provided function is independent of input {{}}. {STRICT}"
    errors = StrictErrors.of(strict, create_graph, none, JACOBIAN_CONSTANT)
    for cotangent in _one_hot(out):
        grads = pull((out,), inputs, (cotangent,), create_graph)
        rows.append(fill_missing(grads, inputs, errors))
    # of an output without elements there is no row to stack
    if not rows:
        return [x.detach().new_zeros((*out.shape, *x.shape)) for x in inputs]
    return [
        torch.stack(column).reshape((*out.shape, *x.shape))
        for column, x in zip(zip(*rows, strict=True), inputs, strict=True)
    ]


def _rows_at_once(
    index: int, out: torch.Tensor, inputs: Sequence[Any], create_graph: bool, strict: bool
) -> list[object]:
    """Return the Jacobian of output number ``index`` by each input, from one backward pass with a
    batch of cotangents."""
    # an output without a history or without elements has zeros, and no pass to run
    grads: Sequence[Any] = (None,) * len(inputs)
    if is_tracked(out) and out.numel():
        grads = grad(
            out,
            inputs,
            _one_hot(out),
            retain_graph=True,
            create_graph=create_graph,
            allow_unused=True,
            is_grads_batched=True,
        )
    blocks = []
    for gradient, x in zip(grads, inputs, strict=True):
        shape = (*out.shape, *x.shape)
        if gradient is None:
            blocks.append(x.detach().new_zeros(shape))
        else:
            blocks.append(gradient.reshape(shape))
    return blocks


def _columns(func: Callable[..., Any], inputs: Tensors, strict: bool, vectorize: bool) -> object:
    """Return the Jacobian in forward mode: a dual level whose tangents are a batch, one per element
    of the inputs."""
    if strict:
        raise RuntimeError(
            "torch.autograd.functional.jacobian: "
            '`strict=True` and `strategy="forward-mode"` are not supported together (yet). '
            'The tape of strategy="reverse-mode" shows what an output does not depend on.'
        )
    if not vectorize:
        raise NotImplementedError(
            "Computing Jacobian using forward-AD or forward-over-reverse Hessian is only "
            "implemented for `vectorize=True`."
        )
    xs: tuple[Any, ...] = tuple(map(value_of, tensors_in(inputs, "inputs", "jacobian")))
    sizes = [x.numel() for x in xs]
    many_outputs = False  # only the call below shows it

    def push(*tangents: torch.Tensor) -> tuple[object, ...]:
        """Return the tangents of the outputs for one row of the basis."""
        nonlocal many_outputs
        with forward_ad.dual_level():
            result = func(
                *(forward_ad.make_dual(x, tangent) for x, tangent in zip(xs, tangents, strict=True))
            )
            outputs = tensors_in(result, "outputs of the user-provided function", "jacobian")
            many_outputs = isinstance(result, tuple)
            # an output that depends on no input has no tangent
            unpacked = list(map(forward_ad.unpack_dual, outputs))
            columns = []
            for primal, tangent in unpacked:
                columns.append(torch.zeros_like(primal) if tangent is None else tangent)
            return tuple(columns)

    # one batch for the elements of all inputs together: in the tangents of one input, row
    # `start + i` is 1 at its element i, and all other rows are zero
    total = sum(sizes)
    basis, start = [], 0
    for x, size in zip(xs, sizes, strict=True):
        one_hot = torch.zeros(total, size, dtype=x.dtype, device=x.device)
        one_hot.diagonal(-start).fill_(1)
        basis.append(one_hot.reshape((total, *x.shape)))
        start += size
    columns = vmap(push)(*basis)
    blocks = []
    for column in columns:
        # the batch is in front; in a Jacobian the elements of the input come last
        parts = zip(column.split(sizes), xs, strict=True)
        blocks.append(
            [part.movedim(0, -1).reshape((*column.shape[1:], *x.shape)) for part, x in parts]
        )
    return _nest(blocks, many_outputs, isinstance(inputs, tuple))


def _require_grad(value: torch.Tensor) -> torch.Tensor:
    """Return ``value`` if it requires grad, else a leaf with its data that does.

    The inner :func:`jacobian` detaches an input that does not, and its tangent would be lost. The
    result would be zeros.
    """
    if value.requires_grad:
        return value
    return value_of(value).start_leaf()


def hessian(
    func: Callable[..., object],
    inputs: Tensors,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Return the second derivatives of a function with one output of one element, as
    ``torch.autograd.functional.hessian``.

    >>> hessian(lambda x: (x**3).sum(), torch.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])

    A tensor of shape (*input shape, *input shape), or for a tuple of inputs a tuple of tuples of
    them. The inner Jacobian is in reverse mode, the outer one in the mode that
    ``outer_jacobian_strategy`` names; ``"forward-mode"`` needs ``vectorize``. ``create_graph`` and
    ``strict`` as for :func:`jacobian`.
    """
    if outer_jacobian_strategy not in ("forward-mode", "reverse-mode"):
        raise AssertionError('Expected strategy to be either "forward-mode" or "reverse-mode".')
    # only for its error, which `jacobian` would raise under its own name
    tensors_in(inputs, "inputs", "hessian")
    scalar = scalar_function(func, "hessian", strict)

    def gradients_at(*xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the gradient by each input, with a history: the function of the outer Jacobian."""
        if outer_jacobian_strategy == "forward-mode":
            xs = tuple(map(_require_grad, xs))
        # an output of shape (1,) would be a first dimension of the Hessian
        grads: tuple[Any, ...] = jacobian(lambda *xs: scalar(*xs).squeeze(), xs, create_graph=True)
        for index, gradient in enumerate(grads):
            if strict and not is_tracked(gradient):
                raise RuntimeError(JACOBIAN_INDEPENDENT.format(index))
        return grads

    blocks = jacobian(
        gradients_at, inputs, create_graph, strict, vectorize, outer_jacobian_strategy
    )
    if isinstance(inputs, tuple):
        return blocks
    return blocks[0]  # `gradients_at` returns a tuple of one
