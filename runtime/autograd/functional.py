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
from typing import Any, NamedTuple

import torch

from ..errors import NestedTensor
from ..func import vmap
from ..seam.levels import Value
from ..session.backward import grad
from ..session.leaf import as_leaf
from ..session.tensor import Tensor
from . import forward_ad

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

Given = torch.Tensor | tuple[torch.Tensor, ...] | None
"""A tensor or several. None: no vector ``v`` is given."""

_STRICT = "strict=True refuses that; without it the derivative is zero."
_NO_GRAPH = "Output {} of the user-provided function does not require gradients. " + _STRICT
_OUTPUT_INDEPENDENT = (
    "The output of the user-provided function is independent of input {}. " + _STRICT
)
_JACOBIAN_CONSTANT = (
    "The jacobian of the user-provided function is independent of input {}. strict=True with "
    "create_graph=True refuses that, for the derivative of the result would be zero."
)
_HESSIAN_CONSTANT = _JACOBIAN_CONSTANT.replace("jacobian", "hessian")
_JACOBIAN_INDEPENDENT = (
    "While computing the hessian, found that the jacobian of the user-provided function with "
    f"respect to input {{}} is independent of the input. {_STRICT}"
)
_NEEDS_V = "The vector v can only be None if {} a single Tensor with a single element."


class _Errors(NamedTuple):
    """The messages for gradients that ``strict=True`` refuses. None: no error."""

    none: str | None = None  # for an input that no gradient arrives at
    constant: str | None = None  # for a gradient without a history

    @classmethod
    def of(cls, strict: bool, create_graph: bool, none: str, constant: str) -> _Errors:
        """Return the errors of a call. Only with ``create_graph`` a gradient has a history."""
        if not strict:
            return cls()
        if not create_graph:
            return cls(none)
        return cls(none, constant)


_NO_ERRORS = _Errors()


def _value(tensor: torch.Tensor) -> Tensor:
    value: Tensor = as_leaf(tensor)  # type: ignore[assignment]
    return value


def _tensors(argument: Given, what: str, function: str) -> tuple[torch.Tensor, ...]:
    """Return ``argument`` as a tuple of tensors. Raise if there is anything else in it."""
    each: tuple[Any, ...] = (argument,)
    if isinstance(argument, tuple):
        each = argument
    for index, tensor in enumerate(each):
        if not isinstance(tensor, torch.Tensor):
            which = f"the given {what}"
            if argument is each:
                which = f"the value at index {index}"
            raise TypeError(
                f"The {what} given to {function} must be either a Tensor or a tuple of Tensors "
                f"but {which} has type {type(tensor)}."
            )
    return each


def _open(
    argument: Given, what: str, function: str, create_graph: bool, track: bool = True
) -> tuple[torch.Tensor, ...]:
    """Return the tensors to differentiate by. With ``create_graph``: views, which have the history
    of the tensors. Else: new leaves."""
    # a new object in each case: the function may also close over the tensor itself, and that use
    # counts as a constant
    opened = []
    for tensor in _tensors(argument, what, function):
        value: Any = _value(tensor)
        if create_graph and value.requires_grad:
            opened.append(value.view_as(value))
        elif track:
            opened.append(value.detach().requires_grad_())
        else:
            opened.append(value.detach())
    return tuple(opened)


def _call(
    func: Callable[..., Any], inputs: Sequence[object], function: str, strict: bool
) -> tuple[bool, tuple[Any, ...]]:
    """Return whether ``func`` returned a tuple, and its outputs."""
    result = func(*inputs)
    outs = _tensors(result, "outputs of the user-provided function", function)
    for index, output in enumerate(outs):
        if strict and not _is_tracked(output):
            raise RuntimeError(_NO_GRAPH.format(index))
    return isinstance(result, tuple), outs


def _is_tracked(tensor: object) -> bool:
    return isinstance(tensor, Value) and tensor.requires_grad


def _scalar(
    func: Callable[..., object], function: str, strict: bool
) -> Callable[..., torch.Tensor]:
    """Return ``func``, with an error unless its result is one tensor of one element."""

    def call_and_check(*inputs: object) -> Any:
        """Call ``func``, and return its one output."""
        is_tuple, outs = _call(func, inputs, function, strict)
        if is_tuple:
            raise RuntimeError(f"The function given to {function} should return a single Tensor")
        if outs[0].numel() != 1:
            raise RuntimeError(
                f"The Tensor returned by the function given to {function} should "
                "contain a single element"
            )
        return outs[0]

    return call_and_check


def _direction(
    v: Given, function: str, create_graph: bool, like: Sequence[torch.Tensor], is_tuple: bool
) -> tuple[torch.Tensor, ...]:
    """Return ``v`` as a tuple of tensors of the shapes of ``like``. Raise if it has others."""
    vs = _open(v, "v", function, create_graph, track=False)
    if is_tuple:
        if len(vs) != len(like):
            raise RuntimeError(
                f"v is a tuple of invalid length: should be {len(like)} but got {len(vs)}."
            )
    elif len(vs) != 1:
        raise RuntimeError("The given v should contain a single Tensor.")
    for index, (expected, vector) in enumerate(zip(like, vs, strict=True)):
        if expected.shape != vector.shape:
            entry = f"Entry {index} in " if is_tuple else ""
            raise RuntimeError(
                f"{entry}v has invalid size: should be {expected.shape} but got {vector.shape}."
            )
    return vs


def _input_direction(
    v: Given, function: str, create_graph: bool, inputs: Given, opened: Sequence[torch.Tensor]
) -> tuple[object, ...]:
    """Return ``v`` in the space of the inputs: 1 for None, if there is one input of one element."""
    if v is not None:
        return _direction(v, function, create_graph, opened, isinstance(inputs, tuple))
    if len(opened) != 1 or opened[0].numel() != 1:
        raise RuntimeError(_NEEDS_V.format("the input to the user-provided function is"))
    return (torch.ones_like(opened[0].detach()),)


def _pull(
    outs: Sequence[object],
    inputs: Sequence[object],
    cotangents: Sequence[object] | None,
    create_graph: bool,
) -> tuple[object, ...]:
    """Return gradients of ``inputs``, None where none arrives. Outputs that are None or have no
    history are left out."""
    tracked = [index for index, output in enumerate(outs) if _is_tracked(output)]
    if not tracked:
        return (None,) * len(inputs)
    grad_outputs = None
    if cotangents is not None:
        grad_outputs = [cotangents[i] for i in tracked]
    # the graph is retained: `_rows` pulls through it once per row
    grads: tuple[Any, ...] = grad(
        [outs[i] for i in tracked],
        inputs,
        grad_outputs,
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )
    return grads


def _fill_missing(
    grads: Sequence[object], like: Sequence[Any], errors: _Errors = _NO_ERRORS
) -> tuple[object, ...]:
    """Return ``grads`` with zeros in place of None. Raise the error for one that ``errors``
    names."""
    for index, gradient in enumerate(grads):
        if gradient is None and errors.none is not None:
            raise RuntimeError(errors.none.format(index))
        if gradient is not None and errors.constant is not None and not _is_tracked(gradient):
            raise RuntimeError(errors.constant.format(index))
    filled = []
    for gradient, x in zip(grads, like, strict=True):
        filled.append(torch.zeros_like(x.detach()) if gradient is None else gradient)
    return tuple(filled)


def _push(
    outs: Sequence[Any],
    inputs: Sequence[object],
    v: Sequence[object],
    create_graph: bool,
    strict: bool,
    none: str,
    constant: str,
) -> tuple[object, ...]:
    """Return the Jacobian of ``outs`` times ``v``: the derivative of the vector-Jacobian product by
    its cotangent, in which it is linear."""
    # the product is linear in the cotangents, so its derivative is the same at any of them
    zeros = [torch.zeros_like(_value(output).detach()) for output in outs]
    cotangents = [_value(zero).start_leaf() for zero in zeros]
    pulled = _pull(outs, inputs, cotangents, True)
    if strict:
        # only for its error: the second pull leaves a missing gradient out by itself
        _fill_missing(pulled, inputs, _Errors(none))
    pushed = _pull(pulled, cotangents, v, create_graph)
    return _fill_missing(pushed, outs, _Errors.of(strict, create_graph, constant, constant))


def _as_result(tensors: Sequence[Any], is_tuple: bool, create_graph: bool) -> Any:
    """Return ``tensors`` to the user: detached without ``create_graph``, and as a tuple only if the
    argument was one."""
    results = tuple(tensors)
    if not create_graph:
        results = tuple(tensor.detach() for tensor in results)
    if is_tuple:
        return results
    return results[0]


def vjp(
    func: Callable[..., object],
    inputs: Given,
    v: Given = None,
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
    with torch.enable_grad():
        opened = _open(inputs, "inputs", "vjp", create_graph)
        is_tuple, outs = _call(func, opened, "vjp", strict)
        if v is not None:
            vs: Any = _direction(v, "vjp", create_graph, outs, is_tuple)
        elif len(outs) != 1 or outs[0].numel() != 1:
            raise RuntimeError(_NEEDS_V.format("the user-provided function returns"))
        else:
            vs = None
        pulled = _pull(outs, opened, vs, create_graph)
        errors = _Errors.of(strict, create_graph, _OUTPUT_INDEPENDENT, _JACOBIAN_CONSTANT)
        filled = _fill_missing(pulled, opened, errors)
    return _as_result(outs, is_tuple, create_graph), _as_result(
        filled, isinstance(inputs, tuple), create_graph
    )


def jvp(
    func: Callable[..., object],
    inputs: Given,
    v: Given = None,
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
        opened = _open(inputs, "inputs", "jvp", create_graph)
        vs = _input_direction(v, "jvp", create_graph, inputs, opened)
        is_tuple, outs = _call(func, opened, "jvp", strict)
        pushed = _push(
            outs, opened, vs, create_graph, strict, _OUTPUT_INDEPENDENT, _JACOBIAN_CONSTANT
        )
    return _as_result(outs, is_tuple, create_graph), _as_result(pushed, is_tuple, create_graph)


def vhp(
    func: Callable[..., object],
    inputs: Given,
    v: Given = None,
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
        opened = _open(inputs, "inputs", "vhp", create_graph)
        vs = _input_direction(v, "vhp", create_graph, inputs, opened)
        out = _scalar(func, "vhp", strict)(*opened)
        jacobian_ = _gradient(out, opened, strict)
        pulled = _pull(jacobian_, opened, vs, create_graph)
        errors = _Errors.of(strict, create_graph, _JACOBIAN_INDEPENDENT, _HESSIAN_CONSTANT)
        filled = _fill_missing(pulled, opened, errors)
    return _as_result((out,), False, create_graph), _as_result(
        filled, isinstance(inputs, tuple), create_graph
    )


def hvp(
    func: Callable[..., object],
    inputs: Given,
    v: Given = None,
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
        opened = _open(inputs, "inputs", "hvp", create_graph)
        vs = _input_direction(v, "hvp", create_graph, inputs, opened)
        out = _scalar(func, "hvp", strict)(*opened)
        jacobian_ = _gradient(out, opened, strict)
        pushed = _push(
            jacobian_, opened, vs, create_graph, strict, _JACOBIAN_INDEPENDENT, _HESSIAN_CONSTANT
        )
    return _as_result((out,), False, create_graph), _as_result(
        pushed, isinstance(inputs, tuple), create_graph
    )


def _gradient(out: object, inputs: Sequence[object], strict: bool) -> tuple[object, ...]:
    """Return the gradients of ``inputs`` with their history."""
    grads = _pull((out,), inputs, None, True)
    errors = _Errors.of(strict, True, _OUTPUT_INDEPENDENT, _JACOBIAN_INDEPENDENT)
    return _fill_missing(grads, inputs, errors)


def _nest(blocks: list[list[object]], many_outputs: bool, many_inputs: bool) -> object:
    """Return ``blocks[output][input]`` as tuples, without those around a single tensor
    that was not in one."""
    per_output = tuple(tuple(row) if many_inputs else row[0] for row in blocks)
    if many_outputs:
        return per_output
    return per_output[0]


def _one_hot(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of shape (numel, *shape): for each element of ``tensor``, 1 at its place."""
    if tensor.is_nested:
        raise NestedTensor
    return torch.eye(tensor.numel(), dtype=tensor.dtype, device=tensor.device).reshape(
        (tensor.numel(), *tensor.shape)
    )


def jacobian(
    func: Callable[..., object],
    inputs: Given,
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
        opened = _open(inputs, "inputs", "jacobian", create_graph)
        many_outputs, outs = _call(func, opened, "jacobian", strict)
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
            for index, output in enumerate(outs)
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
    none = f"Output {index} of the user-provided function is independent of input {{}}. {_STRICT}"
    errors = _Errors.of(strict, create_graph, none, _JACOBIAN_CONSTANT)
    for cotangent in _one_hot(out):
        grads = _pull((out,), inputs, (cotangent,), create_graph)
        rows.append(_fill_missing(grads, inputs, errors))
    # an output without elements: there is no row to stack
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
    if _is_tracked(out) and out.numel():
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


def _columns(func: Callable[..., Any], inputs: Given, strict: bool, vectorize: bool) -> object:
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
    xs: tuple[Any, ...] = tuple(map(_value, _tensors(inputs, "inputs", "jacobian")))
    sizes = [x.numel() for x in xs]
    many_outputs = False  # only the call below shows it

    def push(*tangents: torch.Tensor) -> tuple[object, ...]:
        """Return the tangents of the outputs for one row of the basis."""
        nonlocal many_outputs
        with forward_ad.dual_level():
            result = func(
                *(forward_ad.make_dual(x, tangent) for x, tangent in zip(xs, tangents, strict=True))
            )
            outs = _tensors(result, "outputs of the user-provided function", "jacobian")
            many_outputs = isinstance(result, tuple)
            unpacked = list(map(forward_ad.unpack_dual, outs))
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
    return _value(value).start_leaf()


def hessian(
    func: Callable[..., object],
    inputs: Given,
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
    _tensors(inputs, "inputs", "hessian")
    scalar = _scalar(func, "hessian", strict)

    def gradients_at(*xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if outer_jacobian_strategy == "forward-mode":
            xs = tuple(map(_require_grad, xs))
        # an output of shape (1,) would be a first dimension of the Hessian
        grads: tuple[Any, ...] = jacobian(lambda *xs: scalar(*xs).squeeze(), xs, create_graph=True)
        for index, gradient in enumerate(grads):
            if strict and not _is_tracked(gradient):
                raise RuntimeError(_JACOBIAN_INDEPENDENT.format(index))
        return grads

    blocks = jacobian(
        gradients_at, inputs, create_graph, strict, vectorize, outer_jacobian_strategy
    )
    if isinstance(inputs, tuple):
        return blocks
    return blocks[0]  # `gradients_at` returns a tuple of one
