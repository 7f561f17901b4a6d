"""Control flow by the value of a tensor, in graphs and under transforms: ``cond``, and loops over a fixed number of steps.

    cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

A condition that Python can read decides at once. One that is traced or batched cannot be read. Then both branches are captured, and the
graph has one call of ``torch.ops.higher_order.cond``, which torch exports and runs. Its derivative is a ``cond`` of the derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ...autograd.function_rules import VmapInfo
from ...func.functionalize import FunctionalLevel
from ...func.grad import vjp
from ...func.jvp import jvp
from ...func.trace import Trace
from ...func.vmap import vmap
from ...rules.ops import DIFFERENTIABLE
from ...seam.levels import Value, innermost, levels_of
from ...seam.shells import VALUES
from .branches import Branch, ControlFlow, captured, example

__all__ = ["cond", "map", "scan"]
Tensors = tuple[torch.Tensor, ...]


def cond(
    pred: bool | torch.Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] | dict[str, Any] = ()
) -> Any:
    """``true_fn(*operands)`` where ``pred`` is true, else ``false_fn(*operands)``, as ``torch.cond``.

    >>> cond(torch.tensor(True), torch.sin, torch.cos, (torch.zeros(2),))
    tensor([0., 0.])

    ``pred``: a bool, or a tensor of one element. ``operands``: any pytree of tensors. Branches may close over tensors. In a trace, and for
    a batch of conditions, both branches are captured: they must return tensors of the same shapes and dtypes, write to nothing that they
    are given, and call no custom Function. ``RuntimeError`` otherwise.
    """
    if isinstance(operands, (list, tuple)):
        given, spec = pytree.tree_flatten(tuple(operands))
    else:
        raise RuntimeError(
            f"Expect operands to be a tuple of possibly nested dict/list/tuple that only consists of tensor leaves, but got {operands}"
        )
    if not isinstance(pred, torch.Tensor):
        return (true_fn if pred else false_fn)(*operands)
    if pred.numel() != 1:
        raise RuntimeError(f"Expect pred to be bool or single-element tensor, but got {pred}")
    if not _unreadable(pred):
        return (true_fn if bool(pred) else false_fn)(*operands)
    if not all(isinstance(x, torch.Tensor) for x in given):
        raise RuntimeError("the operands of a cond that is captured must be tensors. Let the branches close over other values.")
    outside: list[torch.Tensor] = []
    on_true, on_false = (captured(f, given, spec, outside) for f in (true_fn, false_fn))
    if outside:  # both take what either closes over
        on_true, on_false = (captured(f, given, spec, outside) for f in (true_fn, false_fn))
    _require_same(on_true, on_false)
    results = _Cond.apply(pred.reshape(()) if pred.dim() else pred, on_true, on_false, *given, *outside)
    assert on_true.spec is not None
    return pytree.tree_unflatten(list(results), on_true.spec)


def map(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """``f(x, *args)`` for each ``x`` along the first dimension of the tensors in ``xs``, stacked. As ``map`` of torch's control flow.

    A graph has the calls of every step. ``RuntimeError`` for an empty first dimension.
    """
    flat, spec = pytree.tree_flatten(xs)
    steps = [f(pytree.tree_unflatten([x[i] for x in flat], spec), *args) for i in range(_length(flat))]
    return pytree.tree_map(lambda *each: torch.stack(each), *steps)


def scan(combine_fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> tuple[Any, Any]:
    """``carry, y = combine_fn(carry, x)`` for each ``x`` along ``dim``. Returns the last carry and the stacked ``y``. As torch's ``scan``.

    A graph has the calls of every step. ``RuntimeError`` for an empty dimension.
    """
    flat, spec = pytree.tree_flatten(xs)
    moved = [x.movedim(dim, 0) for x in flat]
    order = range(_length(moved))
    carry, ys = init, []
    for i in reversed(order) if reverse else order:
        carry, y = combine_fn(carry, pytree.tree_unflatten([x[i] for x in moved], spec))
        ys.append(y)
    if reverse:
        ys.reverse()
    return carry, pytree.tree_map(lambda *each: torch.stack(each), *ys)


def _length(xs: Sequence[Any]) -> int:
    lengths = {x.shape[0] for x in xs}
    if len(lengths) != 1 or 0 in lengths:
        raise RuntimeError(f"map and scan take tensors with one length of at least 1, got lengths {sorted(lengths)}")
    return int(lengths.pop())


def _unreadable(t: torch.Tensor) -> bool:
    """Whether the element of ``t`` is traced or differs within a batch."""
    return any(isinstance(level, Trace) or level.hidden for level in levels_of(t))


def _require_same(a: Branch, b: Branch) -> None:
    def outputs(branch: Branch) -> list[Any]:
        return [(list(n.meta["val"].shape), n.meta["val"].dtype) for n in branch.module.graph.output_node().args[0]]  # type: ignore[union-attr]

    if a.spec != b.spec or outputs(a) != outputs(b):
        raise RuntimeError(
            f"the branches of cond return tensors of different shapes or dtypes: {outputs(a)} and {outputs(b)}. Make them alike."
        )


def chosen(pred: torch.Tensor, on_true: fx.GraphModule, on_false: fx.GraphModule, operands: Sequence[torch.Tensor]) -> Any:
    """``torch.ops.higher_order.cond`` for values of any level."""
    if not _unreadable(pred):
        return (on_true if bool(pred) else on_false)(*operands)
    return _Cond.apply(pred, Branch(on_true), Branch(on_false), *operands)


def _of_values(pred: Any, on_true: Any, on_false: Any, operands: Sequence[Any]) -> Any:
    """What torch's operator does where an argument is a value of ours, as in a graph that is called with tensors of the session."""
    return chosen(pred, on_true, on_false, tuple(operands))


for _class in [c for c in VALUES if issubclass(c, Value)]:
    torch.ops.higher_order.cond.py_impl(_class)(_of_values)


def transformable(module: fx.GraphModule) -> fx.GraphModule:
    """``module`` with :func:`chosen` for each call of torch's ``cond``, which knows no levels of ours."""
    if not any(n.target is torch.ops.higher_order.cond for n in module.graph.nodes):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for n in graph.nodes:
        if n.target is torch.ops.higher_order.cond:
            n.target = chosen
    return fx.GraphModule(module, graph)


def _run(branch: Branch, args: Sequence[Any]) -> Any:
    return transformable(branch.module)(*args)


class _Cond(ControlFlow):
    """One of two branches, by a condition that cannot be read. Takes the condition, the branches and their arguments."""

    @staticmethod
    def forward(pred: torch.Tensor, on_true: Branch, on_false: Branch, *operands: torch.Tensor) -> Tensors:
        level = innermost((pred, *operands), None)
        if isinstance(level, FunctionalLevel):
            with _disable_current_modes():  # else the level would see the calls that bring its values up to date
                results = _Cond.forward(level.lowered(pred), on_true, on_false, *level.lowered_args(operands))
            return tuple(level.wrap(r) for r in results)
        if isinstance(level, Trace):
            return _recorded(level, pred, on_true, on_false, operands)
        return _run(on_true if bool(pred) else on_false, operands)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        pred, ctx.on_true, ctx.on_false, *operands = inputs
        ctx.save_for_backward(pred, *operands)
        ctx.save_for_forward(pred, *operands)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        pred, *operands = ctx.saved_tensors
        moving = [i for i, t in enumerate(operands) if t.dtype in DIFFERENTIABLE and ctx.needs_input_grad[i + 3]]

        def pulled(branch: Branch) -> Callable[..., Any]:
            def pull(*args: torch.Tensor) -> Any:
                values, cotangents = list(args[: len(operands)]), args[len(operands) :]

                def f(*some: torch.Tensor) -> Any:
                    return _run(branch, _replaced(values, moving, some))

                return vjp(f, *(values[i] for i in moving))[1](cotangents)

            return pull

        found = cond(pred, pulled(ctx.on_true), pulled(ctx.on_false), (*operands, *grads))
        of_operands = dict(zip(moving, found, strict=True))
        return (None, None, None, *(of_operands.get(i) for i in range(len(operands))))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        pred, *operands = ctx.saved_tensors
        moving = [i for i, t in enumerate(tangents[3:]) if t is not None]

        def pushed(branch: Branch) -> Callable[..., Any]:
            def push(*args: torch.Tensor) -> Any:
                values, moved = list(args[: len(operands)]), args[len(operands) :]

                def f(*some: torch.Tensor) -> Any:
                    return _run(branch, _replaced(values, moving, some))

                return jvp(f, tuple(values[i] for i in moving), tuple(moved))[1]

            return push

        return cond(pred, pushed(ctx.on_true), pushed(ctx.on_false), (*operands, *(tangents[3 + i] for i in moving)))

    @staticmethod
    def vmap(info: VmapInfo, in_dims: tuple[Any, ...], pred: Any, on_true: Branch, on_false: Branch, *operands: Any) -> Any:
        dims = tuple(in_dims[3:])

        def batched(branch: Branch) -> Callable[..., Any]:
            if all(d is None for d in dims):
                return lambda *args: tuple(r.expand(info.batch_size, *r.shape) for r in _run(branch, args))
            return vmap(transformable(branch.module), in_dims=dims, randomness=info.randomness)

        if in_dims[0] is None:
            results = cond(pred, batched(on_true), batched(on_false), operands)
        else:
            pairs = zip(batched(on_true)(*operands), batched(on_false)(*operands), strict=True)
            results = tuple(torch.where(pred.reshape(-1, *[1] * (a.dim() - 1)), a, b) for a, b in pairs)
        return results, (0,) * len(results)


def _replaced(values: Sequence[Any], at: Sequence[int], new: Sequence[Any]) -> list[Any]:
    found = list(values)
    for i, v in zip(at, new, strict=True):
        found[i] = v
    return found


def _recorded(trace: Trace, pred: Any, on_true: Branch, on_false: Branch, operands: Sequence[Any]) -> Tensors:
    """One call in the graph of ``trace``. Its results have the shapes of either branch's; in a trace on real tensors, their values."""
    given = [trace.lower_output(t) for t in (pred, *operands)]
    modules = [trace.attribute(b.module, name) for b, name in ((on_true, "true_graph_"), (on_false, "false_graph_"))]
    with _disable_current_modes():
        if trace.abstraction is None:
            outs = chosen(trace.lowered(pred), transformable(on_true.module), transformable(on_false.module), trace.lowered_args(operands))
        else:
            results: Any = on_true.module.graph.output_node().args[0]
            outs = [example(n.meta["val"], trace.abstraction.mode) for n in results]
    noted: Tensors = trace.noted(torch.ops.higher_order.cond, (given[0], *modules, tuple(given[1:])), tuple(outs))
    return noted
