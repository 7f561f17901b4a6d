"""Run one of two branches by the value of a tensor: ``cond``.

    cond(x.sum() > 0, torch.sin, torch.cos, (x,))

Its derivative and its batch are conditions of those of the branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ...autograd.function_rules import VmapInfo
from ...func.grad import vjp
from ...func.jvp import jvp
from ...rules.ops import DIFFERENTIABLE
from ...seam.level_mode import entered
from ...seam.levels import levels_of
from ...torch_private.mode_stacks import without_modes
from ...torch_private.pytrees import pytree
from ...trace.provenance import here, line_of
from ...trace.regions import running_traces
from ...trace.symbols import undecided
from ...trace.trace_level import Trace
from .branches import Branch, ControlFlow, Piece, captured, drawing, refuse_draws
from .lanes import batched, chosen_lanes, of_active_lanes
from .torch_operators import (
    Tensors,
    abstract_results,
    run,
    stands_for,
    through_levels,
    transformable,
    unreadable,
)

_OPERATOR = torch.ops.higher_order.cond


def cond(
    pred: bool | torch.Tensor,
    true_fn: Callable[..., object],
    false_fn: Callable[..., object],
    operands: Sequence[object] | dict[str, object] = (),
) -> Any:
    """Return ``true_fn(*operands)`` if ``pred`` is true, else ``false_fn(*operands)``, as
    ``torch.cond`` does.

    >>> cond(torch.tensor(True), torch.sin, torch.cos, (torch.zeros(2),))
    tensor([0., 0.])

    ``pred``: a bool, or a tensor of one element. ``operands``: any pytree. Branches may close over
    tensors and return any pytree. In a trace, and for a batch of conditions, both branches are
    captured: they must return tensors of the same shapes and dtypes, and other values that are
    equal. They write to none of their arguments, return no alias of one, and call no custom
    Function. ``RuntimeError`` with the line otherwise.
    """
    if not isinstance(operands, (list, tuple)):
        raise RuntimeError(
            "Expect operands to be a tuple of possibly nested dict/list/tuple that only consists "
            f"of tensor leaves, but got {operands}"
        )
    if isinstance(pred, torch.Tensor) and pred.numel() != 1:
        raise RuntimeError(
            f"Expect pred to be bool or single-element tensor, but got {pred}{here()}"
        )
    return _run_either(pred, true_fn, false_fn, operands)


def _run_either(
    pred: object,
    true_fn: Callable[..., object],
    false_fn: Callable[..., object],
    operands: Sequence[object],
    copies: bool = False,
) -> Any:
    """Do what :func:`cond` does.

    ``copies``: a result of a branch that shares memory with an operand is copied, not refused.
    """
    pred = _enter(pred)
    if not isinstance(pred, torch.Tensor) or not unreadable(pred):
        if bool(pred):
            return true_fn(*operands)
        return false_fn(*operands)
    # both branches run on the tensors among the operands; other operands are constants to them
    leaves, spec = pytree.tree_flatten(tuple(operands))
    at = [index for index, value in enumerate(leaves) if isinstance(value, torch.Tensor)]

    def of_tensors(function: Callable[..., object]) -> Callable[..., object]:
        """Return a branch as a function of the tensors among the operands."""
        return lambda *tensors: function(
            *pytree.tree_unflatten(replaced(leaves, at, tensors), spec)
        )

    functions = map(of_tensors, (true_fn, false_fn))
    # captured in one go, so that both take the same tensors from outside
    pieces = [Piece("a branch of cond", function, copies=copies) for function in functions]
    tensors_of_operands = [leaves[position] for position in at]
    (on_true, on_false), outside = captured(pieces, tensors_of_operands)
    _make_alike(on_true, on_false)
    return on_true.returned(
        _Cond.apply(
            pred.reshape(()) if pred.dim() else pred,
            on_true,
            on_false,
            *tensors_of_operands,
            *outside,
        )
    )


def _enter(pred: Any) -> object:
    """Return ``pred`` as a traced program has it.

    A tensor from outside is a value of the program. A condition on sizes that no call would check
    becomes a tensor, by which the graph chooses.
    """
    if isinstance(pred, torch.Tensor):
        pred, traces = entered(pred), running_traces()
        if traces and not any(level.number for level in levels_of(pred)):
            # a trace before dispatch does not replace tensors from outside
            return traces[-1].constant(pred)
        return pred
    # `bool` of a symbolic condition would make it a guard, and a trace without guards has no check
    if undecided(pred) and running_traces():
        return torch.full((), torch.sym_ite(pred, 1, 0), dtype=torch.bool)
    return pred


def _make_alike(a: Branch, b: Branch) -> None:
    """Raise unless the branches return tensors of the same shapes and dtypes.

    Results of two layouts both become contiguous, as the graph that follows is right for one.
    """
    same_tree = a.spec == b.spec and a.constants == b.constants
    if not same_tree or _kinds(a) != _kinds(b):
        both = " and ".join(map(_describe, (a, b)))
        raise RuntimeError(
            "the branches of cond return different structures, "
            f"shapes, dtypes or constants: {both}. Make them alike; "
            f"return a number that differs as torch.tensor(number).{here()}"
        )
    for on_true, on_false in zip(a.results(), b.results(), strict=True):
        value, other = on_true.meta["val"], on_false.meta["val"]
        if value.layout is torch.strided and value.stride() != other.stride():
            _return_copy(a.module, on_true)
            _return_copy(b.module, on_false)


def _kinds(branch: Branch) -> list[tuple[list[int], torch.dtype, torch.device]]:
    """List shape, dtype and device of each result of a branch."""
    values = [node.meta["val"] for node in branch.results()]
    return [(list(value.shape), value.dtype, value.device) for value in values]


def _describe(branch: Branch) -> str:
    """Describe the results of a branch, with their lines: ``(float32[2] of f.py:3, 1)``."""
    tensors = []
    for node in branch.results():
        value = node.meta["val"]
        line = line_of(node)
        where = ""
        if line is not None:
            where = f" of {line}"
        tensors.append(f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{where}")
    rest = iter(tensors)
    # a constant is ``...`` where an argument is a tensor
    texts = [next(rest) if constant is ... else repr(constant) for constant in branch.constants]
    return f"({', '.join(texts)})"


def _return_copy(module: fx.GraphModule, result: fx.Node) -> None:
    """Let the graph return a contiguous copy of ``result``."""
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        copy = module.graph.call_function(
            torch.ops.aten.clone.default, (result,), {"memory_format": torch.contiguous_format}
        )
    with without_modes():
        copy.meta = {**result.meta, "val": result.meta["val"].contiguous()}
    # other users of ``result`` in the branch keep its own layout
    output.replace_input_with(result, copy)
    module.recompile()


@stands_for(_OPERATOR)
def chosen(
    pred: object,
    on_true: Callable[..., object],
    on_false: Callable[..., object],
    operands: Sequence[torch.Tensor],
) -> Any:
    """Call ``torch.ops.higher_order.cond`` for values of any level."""
    pred = _enter(pred)
    if not isinstance(pred, torch.Tensor) or not unreadable(pred):
        if bool(pred):
            return on_true(*operands)
        return on_false(*operands)
    # torch also calls the operator with functions, which have no graph yet
    if not isinstance(on_true, fx.GraphModule) or not isinstance(on_false, fx.GraphModule):
        return _run_either(pred, on_true, on_false, operands)
    return _Cond.apply(pred, Branch(on_true), Branch(on_false), *operands)


class _Cond(ControlFlow):
    """Differentiate and batch a call of one of two branches, by a condition that cannot be read.

    It takes the condition, the branches and their arguments.
    """

    @staticmethod
    def forward(
        pred: torch.Tensor, on_true: Branch, on_false: Branch, *operands: torch.Tensor
    ) -> Tensors:
        """Compute the results, or write the call to a graph."""

        def again(tensors: Sequence[torch.Tensor]) -> Tensors:
            return _Cond.forward(tensors[0], on_true, on_false, *tensors[1:])

        def compute() -> Tensors:
            return run(on_true if bool(pred) else on_false, operands)

        return through_levels(
            (pred, *operands),
            again,
            lambda level: _record(level, pred, on_true, on_false, operands),
            compute,
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[object, ...], output: Tensors) -> None:
        """Save what the derivatives need."""
        pred, ctx.on_true, ctx.on_false, *operands = inputs
        ctx.floating = [
            index for index, result in enumerate(output) if result.dtype in DIFFERENTIABLE
        ]
        # no zeros in place of None: zero times an infinite derivative is NaN
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(pred, *operands)
        ctx.save_for_forward(pred, *operands)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[object, ...]:
        """Return the gradients of the operands."""
        refuse_draws("a branch of cond", ctx.on_true, ctx.on_false)
        pred, *operands = ctx.saved_tensors
        # the inputs of the Function begin with the condition and the two branches
        moving = [
            index
            for index, tensor in enumerate(operands)
            if tensor.dtype in DIFFERENTIABLE and ctx.needs_input_grad[index + 3]
        ]
        floating = [position for position in ctx.floating if grads[position] is not None]

        def pull_back(branch: Branch) -> Callable[..., object]:
            """Return the pullback of a branch, as a branch."""

            def pull(*args: torch.Tensor) -> object:
                values, cotangents = args[: len(operands)], args[len(operands) :]
                function = _function_of(branch, values, moving, floating)
                _, pullback = vjp(function, *(values[position] for position in moving))
                return pullback(cotangents)

            return pull

        gradients = _run_either(
            pred,
            pull_back(ctx.on_true),
            pull_back(ctx.on_false),
            (*operands, *(grads[position] for position in floating)),
            copies=True,  # a gradient may be the cotangent itself
        )
        of_operands = dict(zip(moving, gradients, strict=True))
        return (None, None, None, *(map(of_operands.get, range(len(operands)))))

    @staticmethod
    def jvp(ctx: Any, *tangents: object) -> tuple[object, ...]:
        """Return the tangents of the results."""
        refuse_draws("a branch of cond", ctx.on_true, ctx.on_false)
        pred, *operands = ctx.saved_tensors
        moving = [index for index, tangent in enumerate(tangents[3:]) if tangent is not None]
        floating = ctx.floating

        def push_forward(branch: Branch) -> Callable[..., object]:
            """Return the tangent of a branch, as a branch."""

            def push(*args: torch.Tensor) -> object:
                values, directions = args[: len(operands)], args[len(operands) :]
                function = _function_of(branch, values, moving, floating)
                _, tangent = jvp(
                    function, tuple(values[position] for position in moving), directions
                )
                return tangent

            return push

        arguments = (*operands, *(tangents[3 + position] for position in moving))
        results = _run_either(
            pred, push_forward(ctx.on_true), push_forward(ctx.on_false), arguments, copies=True
        )
        of_results = dict(zip(floating, results, strict=True))
        return tuple(map(of_results.get, range(len(ctx.on_true.results()))))

    @staticmethod
    def vmap(
        info: VmapInfo,
        in_dims: tuple[int | None, ...],
        pred: torch.Tensor,
        on_true: Branch,
        on_false: Branch,
        *operands: torch.Tensor,
    ) -> tuple[Tensors, tuple[int, ...]]:
        """Return the results for a batch, and their batch dimensions."""
        dims = in_dims[3:]
        # one condition for the whole batch
        if in_dims[0] is None:
            results = _run_either(
                pred,
                batched(on_true, info, dims),
                batched(on_false, info, dims),
                operands,
                copies=True,
            )
            return results, (0,) * len(results)

        def of_lanes(branch: Branch, mask: torch.Tensor) -> Tensors:
            """Run a branch for the elements in ``mask``."""
            lanes = of_active_lanes(mask, operands, dims)
            results: Tensors = batched(branch, info, (0,) * len(lanes))(*lanes)
            return results

        where_true, where_false = pred.reshape(-1), pred.reshape(-1).logical_not()
        # where all elements agree, one branch does; no element is there to stand in for the others
        if not unreadable(pred):
            if bool(where_true.all()):
                results = of_lanes(on_true, where_true)
                return results, (0,) * len(results)
            if bool(where_false.all()):
                results = of_lanes(on_false, where_false)
                return results, (0,) * len(results)
        results = chosen_lanes(
            where_true, of_lanes(on_true, where_true), of_lanes(on_false, where_false)
        )
        return results, (0,) * len(results)


def _function_of(
    branch: Branch, values: Sequence[object], moving: Sequence[int], floating: Sequence[int]
) -> Callable[..., Tensors]:
    """Return the results ``floating`` of ``branch`` as a function of its arguments ``moving``.

    The other arguments are ``values``.
    """

    def function(*some: torch.Tensor) -> Tensors:
        outputs = run(branch, replaced(values, moving, some))
        return tuple(outputs[index] for index in floating)

    return function


def replaced(values: Sequence[object], at: Sequence[int], new: Sequence[object]) -> list[Any]:
    """Return ``values`` with the items of ``new`` at the places ``at``."""
    exchanged = list(values)
    for index, value in zip(at, new, strict=True):
        exchanged[index] = value
    return exchanged


def _record(
    trace: Trace, pred: object, on_true: Branch, on_false: Branch, operands: Sequence[object]
) -> Tensors:
    """Write one call to the graph of ``trace``.

    Its results have the shapes of those of either branch. In a trace on real tensors one branch
    runs.
    """
    nodes = list(map(trace.lower_output, (pred, *operands)))
    modules = [
        trace.attribute(branch.module, name)
        for branch, name in ((on_true, "true_graph_"), (on_false, "false_graph_"))
    ]
    with drawing(trace, on_true, on_false), without_modes():
        if trace.abstraction is None:
            branches = (transformable(on_true.module), transformable(on_false.module))
            outputs = chosen(trace.lowered(pred), *branches, trace.lowered_args(operands))
        else:
            outputs = abstract_results(trace, on_true, operands)
    noted: Tensors = trace.noted(_OPERATOR, (nodes[0], *modules, tuple(nodes[1:])), tuple(outputs))
    return noted
