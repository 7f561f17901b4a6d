"""Differentiate functions in reverse mode: ``vjp``, ``grad``, ``grad_and_value``.

Each call runs the function at a level that records its ops (:class:`Transform`), and then runs the
recorded graph backwards once per cotangent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from ..errors import NestedTensor
from ..seam.escapes import living, refuse_closed
from ..seam.level_mode import entered
from ..seam.levels import Value
from ..seam.memory import storage_of
from ..seam.scope import is_floating
from ..seam.shells import VALUES
from ..seam.transforms_of_torch import refuse_value_of_torch
from ..tape.engine import execute
from ..tape.foreign import pass_mark_on
from ..tape.grad_level import GradLevel
from ..tape.nodes import Edge
from ..tape.values import GradValue, edge_of
from ..torch_private.dispatcher import DispatchKey, is_excluded, set_excluded
from ..torch_private.mode_stacks import number_of_dispatch_modes
from ..torch_private.native_autograd import set_grad_enabled
from ..torch_private.native_tensors import set_conj, set_neg
from ..torch_private.pytrees import pytree
from . import trees

_AUTOGRAD = DispatchKey.AutogradFunctionality
_inference = torch.is_inference_mode_enabled

P = ParamSpec("P")
R = TypeVar("R")


def versioned(value: object) -> Any:
    """Return ``value``, or an alias of its memory if it is a tensor of inference mode.

    Such a tensor has no version counter, and a write to it could not be noticed. The alias has one.
    During a capture, the result is the value that stands for ``value`` in the captured program.
    """
    if number_of_dispatch_modes():
        return entered(value)
    if type(value) in VALUES:
        refuse_value_of_torch(value)
        return value
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    if not value.is_inference():
        return entered(value)
    # `set_` and no view: a view of a tensor of inference mode has no version counter either
    alias = torch.empty(0, dtype=value.dtype, device=value.device).set_(
        storage_of(value), value.storage_offset(), value.shape, value.stride()
    )
    set_conj(alias, value.is_conj())
    set_neg(alias, value.is_neg())
    return alias


def _record(
    level: GradLevel, func: Callable[..., object], args: Sequence[object], kwargs: dict[str, object]
) -> trees.Tree:
    """Run ``func(*args, **kwargs)`` inside ``level`` with grad mode on.

    ``torch.enable_grad`` would cost six times as much as the two calls here.
    """
    before = torch.is_grad_enabled()
    set_grad_enabled(True)
    try:
        return living(level.run_inside(func, args, kwargs))
    finally:
        set_grad_enabled(before)


def outside_inference(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function``, to be called under ``no_grad`` if inference mode is on.

    A transform differentiates under inference mode as well. But tensors of inference mode have
    neither versions nor views, and the transform needs both to follow writes.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _inference():
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **kwargs)

    return call


def _as_inputs(level: GradLevel, tree: trees.Tree) -> trees.Tree:
    """Return ``tree`` with an input of ``level`` in place of each leaf."""
    if isinstance(tree, torch.Tensor):
        return _input(level, tree)
    leaves, spec = trees.flatten(tree)
    return trees.unflatten([_input(level, value) for value in leaves], spec)


def _input(level: GradLevel, x: object) -> GradValue:
    """Return ``x`` as an input of ``level``. Raise unless it is a real or complex tensor."""
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"Thing passed to transform API must be Tensor, got {type(x)}")
    if x.is_nested:
        raise NestedTensor
    if not is_floating(x):
        raise RuntimeError("only Tensors of floating point dtype can require gradients")
    value: GradValue = level.input(versioned(x))
    return value


def _lower(level: GradLevel, tree: trees.Tree) -> trees.Tree:
    """Return ``tree`` with the inner tensors of ``level`` in place of its values."""
    return trees.map_tensors(level.lowered, tree)


def _edge(level: GradLevel, value: object) -> Edge | None:
    """Return the edge of the graph that leads to ``value``, None if it is a constant."""
    if isinstance(value, Value) and value._level is level:
        return edge_of(value)
    refuse_closed(value, "the derivative")
    return None


def _pull(
    level: GradLevel,
    outs: Sequence[Edge | None],
    cotangents: Sequence[torch.Tensor | None],
    inputs: Sequence[GradValue],
    input_edges: Sequence[Edge | None],
    keep: bool,
) -> list[torch.Tensor]:
    """Return the cotangents of ``inputs``, whose edges are ``input_edges``. Zeros where none
    arrives. ``outs``: the edges of the outputs."""
    roots = [
        (edge, cotangent)
        for edge, cotangent in zip(outs, cotangents, strict=True)
        if edge is not None and cotangent is not None
    ]
    before = is_excluded(_AUTOGRAD)
    # torch must not record this pass for plain parameters that the program closed over
    set_excluded(_AUTOGRAD, True)
    try:
        grads = execute(
            level, roots, input_edges, create_graph=False, keep_graph=keep, accumulate=False
        )
    finally:
        set_excluded(_AUTOGRAD, before)
    return [
        torch.zeros_like(x._inner) if gradient is None else gradient
        for gradient, x in zip(grads, inputs, strict=True)
    ]


def with_aux(what: str, result: trees.Tree) -> tuple[trees.Tree, trees.Tree]:
    """Return ``result`` if it is a pair (output, aux) and aux holds tensors only.

    ``has_aux=True`` requires both. Raise ``RuntimeError`` otherwise. ``what``: the call, for the
    message.
    """
    if not (isinstance(result, tuple) and len(result) == 2):
        raise RuntimeError(
            f"{what}: output of function f should be a tuple: (output, aux) if has_aux is True"
        )
    for x in trees.flatten(result[1])[0]:
        if not isinstance(x, torch.Tensor):
            raise RuntimeError(
                f"{what}: Expected tensors, got unsupported type {type(x)} in aux. Return "
                "tensors, or store what is none in a variable of the function around."
            )
    return result


class Transform(GradLevel):
    """The level of :func:`grad` and :func:`vjp`. Its leaves are the inputs."""

    __slots__ = ()
    starts_leaves = False


def check_outputs(what: str, flat: Sequence[object]) -> None:
    """Raise ``RuntimeError`` unless ``flat``, the outputs of a differentiated function, has at
    least one entry and only tensors."""
    if not flat or (len(flat) == 1 and flat[0] is None):
        raise RuntimeError(
            f"{what}: Expected f to be a function that has non-empty output (got output = {flat})"
        )
    for output in flat:
        if not isinstance(output, torch.Tensor):
            raise RuntimeError(
                f"{what}: expected f(*primals) to return only tensors, "
                f"got unsupported type {type(output)}"
            )


@outside_inference
def vjp(func: Callable[..., object], *primals: object, has_aux: bool = False) -> Any:
    """Return ``func(*primals)``, and a function that maps cotangents of the outputs to cotangents
    of ``primals``. As ``torch.func.vjp``.

    >>> output, pullback = vjp(torch.sin, torch.zeros(2))
    >>> pullback(torch.ones(2))
    (tensor([1., 1.]),)

    ``primals`` and outputs are pytrees of real or complex tensors. A cotangent has the shape and
    dtype of its output; None means zero. The pullback returns a tuple with one pytree per primal,
    with zeros where no output depends on it. It can be called again. ``has_aux``: ``func`` returns
    (outputs, aux), and ``vjp`` returns (outputs, pullback, aux). ``RuntimeError`` for outputs that
    are not floating-point or complex tensors, and for cotangents of another structure or shape.
    """
    level = Transform()
    try:
        values = _as_inputs(level, primals)
        outputs = _record(level, func, values, {})
        aux = None
        if has_aux:
            outputs, aux = with_aux("vjp(f, *primals)", outputs)
            aux = _lower(level, aux)
        flat, spec = trees.flatten(outputs)
        check_outputs("vjp(f, *primals)", flat)
        for output in flat:
            if not is_floating(output):
                raise RuntimeError(
                    "vjp(f, ...): All outputs of f must be floating-point or complex Tensors, "
                    f"got Tensor with dtype {output.dtype}"
                )
        # the caller gets the tensors below the level, and the pullback the edges to them, which
        # outlive the level
        results = trees.unflatten(list(map(level.lowered, flat)), spec)
        # so that a backward pass for all leaves refuses plain tensors of torch's own engine
        pass_mark_on(flat, tuple(trees.flatten(results)[0]))
        inputs, in_spec = trees.flatten(values)
        edges = [_edge(level, output) for output in flat]
        input_edges = [_edge(level, x) for x in inputs]
    finally:
        level.close()

    @outside_inference
    def pullback(
        cotangents: trees.Tree, retain_graph: bool = True, create_graph: bool | None = None
    ) -> trees.Tree:
        """Return the cotangents of the primals for these ``cotangents`` of the outputs.

        ``create_graph`` is accepted as torch accepts it. A transform around the call records it.
        """
        flat_ct, ct_spec = trees.flatten(cotangents)
        if ct_spec != spec:
            raise RuntimeError(
                "Expected pytree structure of cotangents to be the same as "
                "pytree structure of outputs to the function. cotangents: "
                f"{pytree.treespec_pprint(trees.torch_spec(ct_spec))}, primal output: "
                f"{pytree.treespec_pprint(trees.torch_spec(spec))}"
            )
        for index, (cotangent, output) in enumerate(zip(flat_ct, flat, strict=True)):
            _check_cotangent(index, cotangent, output)
        grads = _pull(level, edges, flat_ct, inputs, input_edges, retain_graph)
        pass_mark_on(flat, tuple(grads))
        return trees.unflatten(grads, in_spec)

    if has_aux:
        return results, pullback, aux
    return results, pullback


def _check_cotangent(index: int, cotangent: object, output: torch.Tensor) -> None:
    """Raise unless ``cotangent`` fits ``output``, which is output number ``index``. None stands for
    zeros and fits any output."""
    if cotangent is None:
        return
    if not isinstance(cotangent, torch.Tensor):
        raise TypeError(
            f"gradients can be either Tensors or None, but got {type(cotangent).__name__}"
        )
    if cotangent.shape != output.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{index}] has a shape of {cotangent.shape} and "
            f"output[{index}] has "
            f"a shape of {output.shape}."
        )
    if cotangent.is_complex() != output.is_complex():
        raise RuntimeError(
            "For complex Tensors, "
            "both grad_output and output are required to have the same dtype. Mismatch in dtype: "
            f"grad_output[{index}] has a dtype of {cotangent.dtype} and output[{index}] has a "
            f"dtype of {output.dtype}."
        )


def grad_and_value(
    func: Callable[..., object], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that returns (gradients, value), as ``torch.func.grad_and_value``. With
    ``has_aux``: (gradients, (value, aux)).

    >>> grad_and_value(lambda x: (x * x).sum())(torch.tensor([1.0, 2.0]))
    (tensor([2., 4.]), tensor(5.))

    Arguments and errors are those of :func:`grad`.
    """

    @outside_inference
    @wraps(func)
    def transformed(*args: object, **kwargs: object) -> object:
        """Return (gradients, value) of one call, with aux if ``has_aux``."""
        # only the chosen arguments become inputs of the level; all others are constants to it
        which = normalize_argnums(argnums, len(args))
        each = which if isinstance(which, tuple) else (which,)
        level = Transform()
        try:
            values = list(args)
            for index in each:
                values[index] = _as_inputs(level, values[index])
            out = _record(level, func, values, kwargs)
            aux = None
            if has_aux:
                out, aux = with_aux("grad_and_value(f)(*args)", out)
            _check_scalar(out)
            value = _lower(level, out)
            selected: Any = tuple(map(values.__getitem__, each))
            if not isinstance(which, tuple):
                selected = selected[0]
            inputs, spec = trees.flatten(selected)
            out_edges, input_edges = [_edge(level, out)], [_edge(level, x) for x in inputs]
            # nobody else can reach the graph, so it is freed as the pass goes
            flat_grads = _pull(
                level, out_edges, [torch.ones_like(value)], inputs, input_edges, False
            )
            grads = trees.unflatten(flat_grads, spec)
            pass_mark_on((out,), (value, *trees.flatten(grads)[0]))
            if has_aux:
                return grads, (value, _lower(level, aux))
            return grads, value
        finally:
            level.close()

    return transformed


def _check_scalar(out: object) -> None:
    """Raise unless ``out``, the output of a function for ``grad``, is one real number."""
    if not isinstance(out, torch.Tensor):
        raise RuntimeError(
            f"grad_and_value(f)(*args): Expected f(*args) to return a Tensor, got {type(out)}"
        )
    if out.dim() != 0:
        raise RuntimeError(
            "grad_and_value(f)(*args): Expected f(*args) to return a scalar Tensor, "
            f"got tensor with {out.dim()} dims. vjp and jacrev take outputs of any shape."
        )
    if out.is_complex():
        raise RuntimeError(
            f"grad can be implicitly created only for real scalar outputs but got {out.dtype}"
        )


def grad(
    func: Callable[..., object], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that returns the gradient of ``func``, as ``torch.func.grad``.

    >>> grad(lambda x: (x * x).sum())(torch.tensor([1.0, 2.0]))
    tensor([2., 4.])

    ``func`` returns one real tensor of shape (). With ``has_aux`` it returns (that tensor, aux),
    and the result is (gradients, aux). ``argnums``: which arguments to differentiate by. Each is a
    pytree of real or complex tensors. An int gives one gradient, with the structure and shapes of
    that argument. A tuple gives a tuple of gradients. The gradient by a complex argument is the
    conjugate Wirtinger derivative times two, as everywhere in torch. ``RuntimeError`` for an output
    of another shape, integer arguments, and ``argnums`` out of range or repeated.
    """
    both = grad_and_value(func, argnums, has_aux)

    @wraps(func)
    def transformed(*args: object, **kwargs: object) -> object:
        grads, value = both(*args, **kwargs)
        if has_aux:
            return grads, value[1]
        return grads

    return transformed


def normalize_argnums(argnums: int | tuple[int, ...], n: int) -> int | tuple[int, ...]:
    """Return ``argnums`` as non-negative numbers, for a call with ``n`` positional arguments.

    ``normalize_argnums((0, -1), 3)`` is ``(0, 2)``. ``RuntimeError`` if one is out of range or
    repeated.
    """
    # almost every call; `True` is an int, too, and goes the long way
    if type(argnums) is int and 0 <= argnums < n:
        return argnums
    if isinstance(argnums, tuple):
        return _normalize_each(argnums, n)
    if not isinstance(argnums, int):
        raise RuntimeError(f"argnums must be int or Tuple[int, ...], got: {type(argnums)}")
    return _normalize_each((argnums,), n)[0]


def _normalize_each(argnums: tuple[int, ...], n: int) -> tuple[int, ...]:
    """Return the numbers of a tuple as non-negative numbers. Raise as :func:`normalize_argnums`."""
    for index in argnums:
        if not isinstance(index, int):
            raise RuntimeError(f"argnum must be int, got: {type(index)}")
    if not argnums:
        raise RuntimeError("argnums must be non-empty")
    for index in argnums:
        if not -n <= index < n:
            raise RuntimeError(f"Got argnum={index}, but only {n} positional inputs")
    # 0 and -n are the same argument, so repeats show only here
    positions = tuple(index % n for index in argnums)
    if len(set(positions)) != len(positions):
        raise RuntimeError(f"argnums elements must be unique, got {positions}")
    return positions
