"""Runs ``backward`` and ``grad``: checks the arguments of users and turns them into edges for the
engine.

An error about how tensors were recorded is ``settled``: if a program is captured here, each later
call of it raises the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..facts.lock import probe
from ..func.vmap import vmap
from ..rules.record import NestedMeta, extent
from ..rules.tensors.sparse import in_layout
from ..seam.levels import Value, constant_of
from ..seam.shells import VALUES
from ..seam.transforms_of_torch import refuse_tangent_of_torch
from ..seam.user_code import settled
from ..tape.engine import execute
from ..tape.foreign import refuse_lost_gradients, refuse_plain_inputs
from ..tape.gradient_edges import GradientEdge
from ..tape.hooks import for_users
from ..tape.nodes import AccumulateGrad, Edge, Node, Sink, nodes_after
from ..tape.values import GradValue, edge_of
from ..torch_private.native_autograd import set_grad_enabled
from ..torch_private.native_functions import native_ones_like
from .captures import CAPTURE

_CYCLE = (
    "Using backward() with create_graph=True will create a reference cycle between the parameter "
    "and its gradient which can cause a memory leak. autograd.grad returns gradients without "
    "storing them; or set .grad to None when you have used it."
)
_warned: set[str] = set()  # texts of warnings, each shown once


def _warn_once(message: str) -> None:
    if message not in _warned or torch.is_warn_always_enabled():
        _warned.add(message)
        warnings.warn(message, stacklevel=3)


def _own_edge(tensor: object) -> object:
    """Return ``tensor``, as an edge of this package if it is a result of torch's
    ``get_gradient_edge``."""
    if isinstance(tensor, tuple) and isinstance(node := getattr(tensor, "node", None), Node):
        return GradientEdge(node, tensor.output_nr)  # type: ignore[attr-defined]
    return tensor


def listed(x: Any) -> tuple[Any, ...]:
    """Return the tensors of an argument as a tuple. A value without a history of its transform is
    unwrapped, so that the session may find one."""
    x = _own_edge(x)
    several = (x,) if isinstance(x, (torch.Tensor, GradientEdge)) else map(_own_edge, x)
    return tuple(map(constant_of, several))


# versions of torch differ in what they raise for no inputs, and in the words
_NO_INPUTS: type[Exception] = {
    "refused by ValueError": ValueError,
    "refused by RuntimeError": RuntimeError,
}[probe("refused", "a gradient for no inputs")]
_NO_INPUTS_SAID = probe("said", "no inputs")
_UNUSED_SAID = probe("said", "an input that is not used")


def _no_inputs(caller: str) -> Exception:
    """Return the error of a call without inputs, as torch's function of that name has it."""
    if caller == "grad":
        return _NO_INPUTS(f"{_NO_INPUTS_SAID}.")
    return RuntimeError(f"`inputs` argument to `{caller}()` cannot be empty.")


def _inputs(inputs: object, caller: str) -> tuple[Any, ...]:
    """Return the tensors or edges of the argument ``inputs``, and of a dict its values. Raise for
    anything else. ``caller``: the function's name, for errors."""
    if isinstance(inputs, Mapping):
        if type(inputs) is not dict:
            raise settled(
                TypeError(
                    f"`inputs` argument to `{caller}()` must be a dict, "
                    f"not {type(inputs).__name__}. Pass dict(inputs)."
                )
            )
        inputs = inputs.values()
    tensors = listed(inputs)
    if not tensors:
        raise _no_inputs(caller)
    for tensor in tensors:
        if not isinstance(tensor, (torch.Tensor, GradientEdge)):
            raise settled(
                RuntimeError(
                    "all inputs have to be Tensors or GradientEdges, "
                    f"but got {type(tensor).__name__}"
                )
            )
    refuse_plain_inputs(tensors)
    return tensors


def _edge(tensor: object) -> Any:
    """Return (node, output number) of a tensor or a gradient edge, None if nothing was recorded."""
    if type(tensor) in VALUES:
        # a value of a level without a tape, as that of vmap, has no such attribute
        return edge_of(tensor) if hasattr(tensor, "_edge") else None
    if isinstance(tensor, GradientEdge):
        return tensor.node, tensor.output_nr
    return None


def _require_recorded(edges: Sequence[Edge | None]) -> None:
    """Raise if no backward pass can start from one of the edges."""
    for index, edge in enumerate(edges):
        if edge is None or type(edge[0]) is Sink:
            raise settled(
                RuntimeError(
                    f"element {index} of tensors does not require grad and does not have a grad_fn"
                )
            )


def _level(edges: Sequence[Edge]) -> Any:
    """Return the innermost level of the nodes of ``edges``."""
    level = edges[0][0].level
    for node, _ in edges[1:]:
        if node.level.number > level.number:
            level = node.level
    return level


def _device(node: Node) -> torch.device:
    """Return the device of the leaves of a graph. A node notes shapes and dtypes alone."""
    stack, visited = [node], {node}
    while stack:
        node = stack.pop()
        if isinstance(node, AccumulateGrad):
            return node.variable.device
        following = [next_node for next_node in nodes_after(node) if next_node not in visited]
        visited.update(following)
        stack += following
    return torch.get_default_device()


def _ones(tensor: Any, edge: Any) -> torch.Tensor | None:
    """Return the default cotangent of a scalar of history ``edge``: one. Raise if it is no real
    scalar."""
    if edge is None:
        return None  # `run_pass` refuses it, and says which of the tensors it is
    is_tensor = type(tensor) in VALUES
    if is_tensor:
        shape, dtype = extent(tensor), tensor.dtype
    else:
        node, index = edge
        shape, dtype = node.metas[index]
    if type(shape) is NestedMeta or shape.numel() != 1:
        raise settled(RuntimeError("grad can be implicitly created only for scalar outputs"))
    if not dtype.is_floating_point:
        raise settled(
            RuntimeError(
                f"grad can be implicitly created only for real scalar outputs but got {dtype}"
            )
        )
    if is_tensor:
        return native_ones_like(tensor._inner)
    return torch.ones(shape, dtype=dtype, device=_device(tensor.node))


def cotangents_of(
    outputs: Sequence[object], edges: Sequence[object], given: object, batched: bool = False
) -> list[torch.Tensor | None]:
    """Return one cotangent per output, by default one for a scalar. Raise unless it has the shape
    of the output, with ``batched`` after the first dimension."""
    tensors = list(outputs)
    if given is not None:
        tensors += listed(given)
    for tensor in tensors:
        refuse_tangent_of_torch(tensor)
    if given is None:
        return [_ones(output, edge) for output, edge in zip(outputs, edges, strict=True)]
    grads = listed(given)
    if len(grads) != len(outputs):
        raise settled(RuntimeError(f"got {len(outputs)} tensors and {len(grads)} gradients"))
    cotangents: list[torch.Tensor | None] = []
    for index, (output, gradient) in enumerate(zip(outputs, grads, strict=True)):
        if gradient is None:
            cotangents.append(_ones(output, edges[index]))
            continue
        _refuse_unfit_cotangent(gradient, output, index, batched)
        cotangents.append(gradient)
    return cotangents


def _refuse_unfit_cotangent(g: object, tensor: Any, index: int, batched: bool) -> None:
    """Raise unless ``g`` has the shape of output ``tensor``, number ``index``, and is complex if
    that is."""
    if not isinstance(g, torch.Tensor):
        raise settled(
            TypeError(f"gradients can be either Tensors or None, but got {type(g).__name__}")
        )
    if isinstance(tensor, GradientEdge):
        shape, dtype = tensor.node.metas[tensor.output_nr]
    else:
        shape, dtype = extent(tensor), tensor.dtype
    if type(shape) is NestedMeta:
        dtype = shape.dtype or g.dtype
    _refuse_unfit_shape(extent(g), shape, index, batched)
    if dtype.is_complex != g.dtype.is_complex:
        raise settled(
            RuntimeError(
                "For complex Tensors, both grad_output and output are required to have "
                f"the same dtype. Mismatch in dtype: grad_output[{index}] has a dtype of {g.dtype} "
                f"and output[{index}] has a dtype of {dtype}."
            )
        )


def _refuse_unfit_shape(of_grad: Any, shape: object, index: int, batched: bool) -> None:
    """Raise unless ``of_grad``, the extent of a cotangent, is that of output number ``index``."""
    if batched:
        if type(shape) is NestedMeta or type(of_grad) is NestedMeta:
            raise settled(RuntimeError("Batched grads are not supported with Nested Tensor."))
        of_grad = of_grad[1:]
    if of_grad == shape:
        return
    difference = (
        f"grad_output[{index}] has a shape of {of_grad} and output[{index}] has a shape of {shape}"
    )
    if batched:
        raise settled(
            RuntimeError(
                "If `is_grads_batched=True`, "
                "we interpret the first dimension of each grad_output as the batch dimension. "
                f"Without it, {difference}. For a batch of only some of them, call vmap of grad."
            )
        )
    raise settled(RuntimeError(f"Mismatch in shape: {difference}."))


def run_pass(
    edges: Sequence[Any],
    cotangents: Sequence[object],
    captures: Sequence[GradientEdge | torch.Tensor] | None,
    retain_graph: bool | None,
    create_graph: bool,
    accumulate: bool,
) -> tuple[Any, list[Any]]:
    """Run the engine from the roots ``edges`` with their ``cotangents``. Return the level of the
    graph and the gradients of ``captures``.

    ``captures``: the tensors or edges whose gradients are wanted. None: all leaves, which get
    theirs in ``.grad``. ``retain_graph``: None for what ``create_graph`` says. ``accumulate``:
    whether leaves get their gradients in ``.grad``. ``RuntimeError`` if a root or a capture has no
    history.
    """
    _require_recorded(edges)
    if not edges:
        return None, [None] * len(captures or ())
    level = _level(edges)
    acting = level.acting()
    # in a dual level gradients get tangents, so the pass runs on values
    on_values = create_graph or (acting is not level and acting.sees_gradients)
    roots = []
    for edge, cotangent in zip(edges, cotangents, strict=True):
        if cotangent is not None and on_values:
            cotangent = for_users(level, cotangent)
        elif cotangent is not None:
            cotangent = level.lowered(cotangent)
        roots.append((edge, cotangent))
    edges_of_captures = None if captures is None else _edges_of(captures)
    if retain_graph is None:
        retain_graph = create_graph
    before = torch.is_grad_enabled()
    # also where the caller is in no_grad: `create_graph` alone says whether formulas are recorded
    set_grad_enabled(create_graph)
    try:
        return level, execute(
            level,
            roots,
            edges_of_captures,
            create_graph=on_values,
            keep_graph=retain_graph,
            accumulate=accumulate,
        )
    finally:
        set_grad_enabled(before)


def _edges_of(captures: Sequence[object]) -> list[Edge | None]:
    """List the edges of the tensors whose gradients are wanted. Raise if one has none."""
    edges = list(map(_edge, captures))
    if None in edges:
        raise settled(RuntimeError("One of the differentiated Tensors does not require grad"))
    return edges


def backward(
    tensors: object,
    grad_tensors: object = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: object = None,
    inputs: object = None,
) -> None:
    """Add the gradients of ``tensors`` to the ``.grad`` of the leaves, as
    ``torch.autograd.backward``.

    >>> x = runtime.tensor([1.0, 2.0], requires_grad=True)
    >>> backward((x * x).sum())
    >>> x.grad
    tensor([2., 4.])

    ``grad_tensors``: a cotangent per tensor, of its shape. None stands for one, for a real tensor
    of one element. ``inputs``: the tensors or edges that get gradients, by default all leaves.
    ``retain_graph``: do not free saved tensors, for another pass. ``create_graph``: record the
    pass, so that gradients can be differentiated. ``RuntimeError`` for a tensor without history, a
    cotangent of another shape, a saved tensor that was written to, and a second pass through a
    graph that was not retained.
    """
    if grad_variables is not None:
        warnings.warn(
            "`grad_variables` is deprecated. Use `grad_tensors` instead.",
            FutureWarning,
            stacklevel=2,
        )
        if grad_tensors is not None:
            raise settled(
                RuntimeError(
                    "`grad_tensors` and `grad_variables` (deprecated) arguments both passed "
                    "to `backward()`. They mean the same."
                )
            )
        grad_tensors = grad_variables
    if CAPTURE.gradients is not None:
        CAPTURE.gradients.backward(tensors, grad_tensors, retain_graph, create_graph, inputs)
        return
    captures = None
    if inputs is not None:
        captures = _inputs(inputs, "backward")
        for tensor in captures:
            # a tensor that is no leaf gets a `.grad` only if it retains it
            if not isinstance(tensor, GradientEdge):
                tensor.retain_grad()
    outputs = listed(tensors)
    # a pass to named inputs writes to no other leaf, so none can go without its gradient
    if captures is None:
        refuse_lost_gradients(outputs)
    edges = list(map(_edge, outputs))
    _refuse_transforms(outputs)
    cotangents = cotangents_of(outputs, edges, grad_tensors)
    if create_graph:
        _warn_once(_CYCLE)
    run_pass(edges, cotangents, captures, retain_graph, create_graph, True)


def _refuse_transforms(outputs: Sequence[object]) -> None:
    """Raise for a tensor inside a transform: ``backward()`` adds to the ``.grad`` of leaves, and
    the inputs of a transform have none."""
    for output in outputs:
        if not isinstance(output, GradValue):
            continue
        level: Any = output._level
        if not level.starts_leaves:
            raise settled(
                RuntimeError(
                    f"backward() of a tensor inside {level.what}, whose inputs have no .grad. "
                    "Use grad or vjp in it, or autograd.grad by the inputs."
                )
            )


def grad(
    outputs: object,
    inputs: object,
    grad_outputs: object = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    """Return the gradients of ``inputs``, as ``torch.autograd.grad``. Every ``.grad`` stays as it
    is.

    >>> x = runtime.tensor([1.0, 2.0], requires_grad=True)
    >>> grad((x * x).sum(), x)
    (tensor([2., 4.]),)

    ``inputs``: tensors or edges. For a dict the result is a dict. Each gradient has the shape of
    its input. ``grad_outputs``, ``retain_graph``, ``create_graph`` and errors: as for
    :func:`backward`. If the outputs do not depend on an input, there is a ``RuntimeError``. With
    ``allow_unused`` the gradient of such an input is None, with ``materialize_grads`` zeros.
    ``is_grads_batched``: each cotangent has the shape (B, *output), each gradient the shape (B,
    *input). The pass runs under ``vmap``.
    """
    if materialize_grads and allow_unused is False:
        raise settled(
            ValueError(
                "Expected allow_unused to be True or not passed when materialize_grads=True, "
                "but got: allow_unused=False."
            )
        )
    if not only_inputs:
        warnings.warn(
            (
                "only_inputs argument is deprecated and is ignored now (defaults to True). "
                "Only backward adds to .grad."
            ),
            FutureWarning,
            stacklevel=2,
        )
    if allow_unused is None:
        allow_unused = materialize_grads
    # a capture puts the program's values in place of the tensors, and calls `gradients_of` itself
    find = gradients_of if CAPTURE.gradients is None else CAPTURE.gradients.grad
    return find(
        outputs,
        inputs,
        grad_outputs,
        retain_graph,
        create_graph,
        allow_unused=allow_unused,
        is_grads_batched=is_grads_batched,
        materialize_grads=materialize_grads,
    )


def gradients_of(
    outputs: object,
    inputs: object,
    grad_outputs: object,
    retain_graph: bool | None,
    create_graph: bool,
    *,
    allow_unused: bool,
    is_grads_batched: bool,
    materialize_grads: bool,
) -> Any:
    """Return :func:`grad`, whose arguments and results these are, without a look at whether a
    program is captured. A capture calls this with the values that stand for the user's tensors."""
    outputs, wanted = listed(outputs), _inputs(inputs, "grad")
    edges = list(map(_edge, outputs))
    cotangents = cotangents_of(outputs, edges, grad_outputs, is_grads_batched)

    def run(*of_outputs: object) -> tuple[Any, ...]:
        return _grads(
            edges, wanted, of_outputs, retain_graph, create_graph, allow_unused, materialize_grads
        )

    if is_grads_batched:
        _require_recorded(edges)  # else there is no level to ask for
        grads = _batched_grads(_level(edges), run, cotangents, len(wanted))
    else:
        grads = _restore_layouts(wanted, run(*cotangents))
    if isinstance(inputs, dict):
        return dict(zip(inputs, grads, strict=True))
    return grads


def _batched_grads(
    level: Any, run: Callable[..., tuple[object, ...]], cotangents: Sequence[object], number: int
) -> tuple[object, ...]:
    """Return the ``number`` gradients of a batch of cotangents. ``run`` returns those of one
    element."""
    reached: list[int] = []

    def run_element(*batched: object) -> tuple[object, ...]:
        grads = run(*batched)
        # vmap returns nothing but tensors, so the others are left out; only the pass shows which
        reached[:] = [index for index, grad in enumerate(grads) if grad is not None]
        return tuple(grads[position] for position in reached)

    batches = vmap(run_element)(*cotangents)
    grads: list[torch.Tensor | None] = [None] * number
    for position, batch in zip(reached, batches, strict=True):
        grads[position] = for_users(level, batch)
    return tuple(grads)


def _restore_layouts(
    inputs: Sequence[object], grads: tuple[torch.Tensor | None, ...]
) -> tuple[object, ...]:
    """Return the gradients, those of sparse inputs in the layout of the input."""
    results = list(grads)
    for index, (tensor, grad) in enumerate(zip(inputs, grads, strict=True)):
        if grad is not None and isinstance(tensor, Value) and tensor.layout is not torch.strided:
            results[index] = in_layout(grad, tensor._inner)
    return tuple(results)


def _grads(
    edges: Sequence[object],
    inputs: Sequence[Any],
    cotangents: Sequence[Any],
    retain_graph: bool | None,
    create_graph: bool,
    allow_unused: bool,
    materialize: bool,
) -> tuple[object, ...]:
    """Return the gradients of ``inputs`` from one pass. Raise, or return None or zeros, for an
    input that no gradient arrives at."""
    level, captured = run_pass(edges, cotangents, inputs, retain_graph, create_graph, False)
    grads = []
    for index, (tensor, gradient) in enumerate(zip(inputs, captured, strict=True)):
        if gradient is not None:
            grads.append(for_users(level, gradient))
        elif not allow_unused:
            raise settled(
                RuntimeError(
                    f"{_UNUSED_SAID.replace('index 0', f'index {index}')}. "
                    "Set allow_unused=True to get None for it."
                )
            )
        elif not materialize:
            grads.append(None)
        elif isinstance(tensor, GradientEdge):
            raise settled(
                RuntimeError(
                    "materialize_grads cannot be used when the given input is a GradientEdge"
                )
            )
        else:
            zeros = torch.zeros_like(tensor)
            # as in torch, where every gradient of such a pass can be differentiated again
            if create_graph:
                zeros = zeros.requires_grad_()
            grads.append(zeros)
    return tuple(grads)
