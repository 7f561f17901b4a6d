"""Apply a function as long as another one says so: ``while_loop``.

    while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))

A graph has one call of ``torch.ops.higher_order.while_loop``. Its derivatives and its batch are
loops.
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
from ...seam.graph_walks import inputs_of, walk
from ...seam.levels import levels_of
from ...torch_private.mode_stacks import without_modes
from ...torch_private.pytrees import pytree
from ...trace.graph_module import GraphModule
from ...trace.provenance import here, made_at
from ...trace.regions import running_traces, traced
from ...trace.symbols import undecided
from ...trace.trace_level import Trace
from .branches import Branch, ControlFlow, Piece, captured, drawing, draws, refuse_draws
from .conditions import replaced
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

_OPERATOR = torch.ops.higher_order.while_loop


def while_loop(
    cond_fn: Callable[..., object], body_fn: Callable[..., object], carried_inputs: Sequence[object]
) -> tuple[Any, ...]:
    """Repeat ``carry = body_fn(*carry)`` as long as ``cond_fn(*carry)``, as torch's ``while_loop``
    does. Begin with ``carry = carried_inputs``, and return the last carry.

    >>> start = torch.tensor(0), torch.ones(2)
    >>> while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), start)
    (tensor(3), tensor([8., 8.]))

    ``carried_inputs``: a tuple of pytrees. ``cond_fn`` returns a bool, or a boolean tensor of one
    element. ``body_fn`` returns a tuple like ``carried_inputs``. In a trace, and where the
    condition differs within a batch, both are captured. Then the carry consists of tensors, whose
    shapes and dtypes stay, and neither function writes to an argument, returns an alias of one or
    calls a custom Function. ``RuntimeError`` with the line otherwise.

    A loop with an ``int`` in its carry runs in Python, so its condition must not depend on traced
    tensors. The reverse derivative of a loop that a graph has as one call saves no
    steps: it computes the carry before each step again, from the start.
    """
    if not isinstance(carried_inputs, (tuple, list)):
        raise RuntimeError(f"carried_inputs must be a tuple or list, got {type(carried_inputs)}")
    return _repeat(cond_fn, body_fn, tuple(carried_inputs))


def _repeat(
    cond_fn: Callable[..., object],
    body_fn: Callable[..., object],
    carry: tuple[object, ...],
    copies: bool = False,
) -> tuple[object, ...]:
    """Do what :func:`while_loop` does.

    ``copies``: a result that shares memory with the carry is copied, not refused.
    """
    leaves, spec = pytree.tree_flatten(carry)
    of_tensors = all(isinstance(value, torch.Tensor) for value in leaves)
    if of_tensors and traced(leaves):
        return _capture(cond_fn, body_fn, leaves, spec, copies)
    # step by step, until a condition cannot be read
    ran = False
    while True:
        go_on = cond_fn(*carry)
        if _is_unreadable_condition(go_on):
            if not of_tensors:
                raise _number_in_carry("a traced tensor", "its present value")
            return _capture(cond_fn, body_fn, pytree.tree_leaves(carry), spec, copies)
        if undecided(go_on):
            raise _number_in_carry("a size that is a symbol", "the steps for one size")
        if not bool(go_on):
            break
        carry = _step_once(body_fn, carry, spec)
        ran = True
    if ran:
        return carry
    # no step has run, and no result may be a tensor of the caller's
    return pytree.tree_map_only(torch.Tensor, torch.clone, carry)  # type: ignore[no-any-return]


def _is_unreadable_condition(go_on: object) -> bool:
    """Return whether a condition is a tensor whose value only a graph has.

    ``RuntimeError`` if it is a tensor and no boolean scalar.
    """
    if not isinstance(go_on, torch.Tensor):
        return False
    if go_on.numel() != 1 or go_on.dtype is not torch.bool:
        raise _no_boolean(go_on, here())
    return unreadable(go_on)


def _number_in_carry(source: str, constant: str) -> RuntimeError:
    """Return the error of a loop in a graph whose carry has a value that is no tensor.

    ``source``: what the condition depends on. ``constant``: what would be a constant of the graph.
    """
    return RuntimeError(
        f"while_loop: the condition depends on {source}, and the carry has a value that is no "
        f"tensor. A graph would keep {constant}. "
        f"Carry a number as a tensor, torch.tensor(0).{here()}"
    )


def _no_boolean(condition: object, where: str) -> RuntimeError:
    """Return the error of a ``condition`` that is no boolean scalar."""
    got = repr(condition)
    if isinstance(condition, torch.Tensor):
        got = f"{condition.dtype}{list(condition.shape)}"
    return RuntimeError(
        "while_loop: cond_fn must return a boolean scalar tensor or a boolean "
        f"but got {got}.{where}"
    )


def _step_once(
    body_fn: Callable[..., object], carry: tuple[object, ...], spec: pytree.TreeSpec
) -> tuple[object, ...]:
    """Return the carry after one step.

    ``RuntimeError`` if it has another structure or other shapes or dtypes.
    """
    result = body_fn(*carry)
    after = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    leaves, new_spec = pytree.tree_flatten(after)
    check_carry(pytree.tree_leaves(carry), spec, leaves, new_spec)
    return after


def check_carry(
    old: Sequence[object],
    spec: object,
    new: Sequence[object],
    new_spec: object,
    nodes: Sequence[fx.Node] = (),
    what: str = "while_loop",
) -> None:
    """Raise unless the carry after a step is like that before it.

    ``nodes``: those of ``new`` in a graph. ``what``: the name of the loop in the error.
    """
    if len(old) != len(new):
        raise RuntimeError(
            f"{what}: body_fn returns {len(new)} values, the carry has {len(old)}. "
            f"Return a new value for each.{here()}"
        )
    for index, (kind, new_kind) in enumerate(
        zip(map(_kind_of, old), map(_kind_of, new), strict=True)
    ):
        if kind != new_kind:
            where = "".join(map(made_at, nodes[index : index + 1])) or here()
            raise RuntimeError(
                f"{what}: body_fn returns {new_kind} for value {index} of the carry, "
                f"which is {kind}. Keep shape and dtype.{where}"
            )
    if spec != new_spec:
        raise RuntimeError(
            f"{what}: body_fn returns the structure {new_spec}, the carry has {spec}. "
            f"Return a tuple like the carry.{here()}"
        )


def _kind_of(value: object) -> object:
    """Return what a step must leave as it is: of a tensor shape, dtype and device, else the
    class."""
    if isinstance(value, torch.Tensor):
        return list(value.shape), value.dtype, value.device
    return type(value)


def _capture(
    cond_fn: Callable[..., object],
    body_fn: Callable[..., object],
    leaves: Sequence[torch.Tensor],
    spec: pytree.TreeSpec,
    copies: bool,
) -> tuple[Any, ...]:
    """Capture both functions, and return the carry after one call of the operator."""
    count, call = len(leaves), here()

    def go_on(*flat: object) -> Tensors:
        """Return the condition as a tuple of a scalar tensor."""
        condition = cond_fn(*pytree.tree_unflatten(flat, spec))
        if not isinstance(condition, torch.Tensor):
            raise _no_boolean(condition, call)
        if condition.numel() != 1 or condition.dtype is not torch.bool:
            raise _no_boolean(condition, call)
        return (condition.reshape(()),)

    def step(*flat: object) -> Sequence[object]:
        """Return the carry after one step, as a tuple."""
        carry = body_fn(*pytree.tree_unflatten(flat, spec))
        return tuple(carry) if isinstance(carry, (tuple, list)) else (carry,)

    pieces = (
        Piece("the condition of while_loop", go_on, count, True),
        Piece("the body of while_loop", step, count, copies),
    )
    leaves = list(map(entered, leaves))
    (condition, body), outside = captured(pieces, leaves)
    assert body.spec is not None
    nodes = iter(body.results())
    after = [
        next(nodes).meta["val"] if constant is ... else constant for constant in body.constants
    ]
    check_carry(leaves, spec, after, body.spec, body.results())
    carry: tuple[Any, ...] = pytree.tree_unflatten(
        _While.apply(_return_tensor(condition), body, count, *leaves, *outside), spec
    )
    return carry


def entered(tensor: torch.Tensor) -> torch.Tensor:
    """Return a value of the carry as the graph takes it: contiguous, and a value of a trace."""
    # a call on a tensor from outside of the trace makes a value of it
    if running_traces() and not any(isinstance(level, Trace) for level in levels_of(tensor)):
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.contiguous() if tensor.layout is torch.strided else tensor


def _return_tensor(condition: Branch) -> Branch:
    """Let the graph of a condition return a tensor and no tuple, as torch's operator needs it."""
    output = condition.module.graph.output_node()
    output.args = (condition.results()[0],)
    condition.module.recompile()
    return condition


@stands_for(_OPERATOR)
def chosen_loop(
    condition: Callable[..., object],
    body: Callable[..., object],
    carried: Sequence[object],
    rest: Sequence[object],
    mutated_arg_indices: str = "",
) -> Any:
    """Call ``torch.ops.higher_order.while_loop`` for values of any level."""
    operands = (*carried, *rest)
    of_tensors = all(isinstance(operand, torch.Tensor) for operand in operands)
    in_graph = of_tensors and (running_traces() or any(map(unreadable, operands)))
    # torch also calls the operator with functions, which have no graph yet
    if in_graph and isinstance(condition, fx.GraphModule) and isinstance(body, fx.GraphModule):
        return _While.apply(Branch(condition), Branch(body), len(carried), *operands)
    return _repeat(
        lambda *c: condition(*c, *rest), lambda *c: body(*c, *rest), tuple(carried), copies=True
    )


def _repeat_branch(
    condition: Branch, body: Branch, carried: Sequence[object], rest: Sequence[object]
) -> tuple[Any, ...]:
    """Run a loop of graphs. ``rest``: the arguments after the carry."""
    return _repeat(
        lambda *c: run(condition, (*c, *rest)),
        lambda *c: run(body, (*c, *rest)),
        tuple(carried),
        copies=True,
    )


class _While(ControlFlow):
    """Differentiate and batch a loop whose condition cannot be read.

    It takes the condition, the body, the length of the carry, the carry and the other arguments.
    """

    @staticmethod
    def forward(condition: Branch, body: Branch, n: int, *operands: torch.Tensor) -> Tensors:
        """Compute the results, or write the call to a graph."""

        def again(tensors: Sequence[torch.Tensor]) -> Tensors:
            return _While.forward(condition, body, n, *tensors)

        def compute() -> Tensors:
            return _repeat_branch(condition, body, operands[:n], operands[n:])

        return through_levels(
            operands, again, lambda level: _record(level, condition, body, n, operands), compute
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[object, ...], output: Tensors) -> None:
        """Save what the derivatives need."""
        ctx.condition, ctx.body, ctx.n, *operands = inputs
        ctx.floating = [
            index for index, result in enumerate(output) if result.dtype in DIFFERENTIABLE
        ]
        # a missing cotangent becomes zeros, unlike in a `cond`: the loop backward carries one of
        # each floating value from step to step
        ctx.save_for_backward(*operands)
        ctx.save_for_forward(*operands)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[object, ...]:
        """Return the gradients of the operands."""
        refuse_draws("while_loop", ctx.condition, ctx.body)
        n, floating = ctx.n, ctx.floating
        operands = ctx.saved_tensors
        carried, rest = operands[:n], operands[n:]
        wanted = [
            index
            for index, tensor in enumerate(rest)
            if tensor.dtype in DIFFERENTIABLE and ctx.needs_input_grad[3 + n + index]
        ]

        def step(*carry: torch.Tensor) -> Tensors:
            """Return the carry after one step."""
            return run(ctx.body, (*carry, *rest))

        def count_step(k: torch.Tensor, *carry: torch.Tensor) -> Tensors:
            """Take one step, and count it."""
            return (k + 1, *step(*carry))

        # run the loop once more to count its steps
        start = torch.zeros((), dtype=torch.int64)
        count = _repeat(
            lambda k, *c: run(ctx.condition, (*c, *rest)),
            count_step,
            (start, *carried),
            copies=True,
        )[0]

        def back(k: torch.Tensor, *state: torch.Tensor) -> Tensors:
            """Take the last of ``k`` steps backward.

            ``state``: cotangents of the carry, then the sums of gradients of other arguments.
            """
            k = k - 1
            # from the start again: a tensor of all carries would have a length that no graph knows
            before = _repeat(lambda j, *c: j < k, count_step, (start, *carried), copies=True)[1:]

            def last_step(*some: torch.Tensor) -> Tensors:
                """Take one step, as a function of what is differentiated."""
                given = replaced(before, floating, some[: len(floating)])
                outputs = run(ctx.body, (*given, *replaced(rest, wanted, some[len(floating) :])))
                return tuple(outputs[i] for i in floating)

            cotangents, sums = state[: len(floating)], state[len(floating) :]
            primals = (
                *(before[i] for i in floating),
                *(rest[i] for i in wanted),
            )
            _, pullback = vjp(last_step, *primals)
            pulled = pullback(cotangents)
            # every step uses the other arguments, so their gradients are sums over the steps
            more = zip(sums, pulled[len(floating) :], strict=True)
            return (k, *pulled[: len(floating)], *(total + grad for total, grad in more))

        zeros = [torch.zeros_like(rest[i]) for i in wanted]
        final = _repeat(
            lambda k, *state: k > 0,
            back,
            (count, *(grads[i] for i in floating), *zeros),
            copies=True,
        )[1:]
        gradients: list[object] = [None] * len(operands)
        gradients = replaced(gradients, [*floating, *(n + i for i in wanted)], final)
        return (None, None, None, *gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: object) -> tuple[object, ...]:
        """Return the tangents of the results."""
        refuse_draws("while_loop", ctx.condition, ctx.body)
        n, floating = ctx.n, ctx.floating
        operands = ctx.saved_tensors
        carried, rest = operands[:n], operands[n:]
        moved = [index for index, tangent in enumerate(tangents[3 + n :]) if tangent is not None]
        directions = [tangents[3 + n + i] for i in moved]

        def step(*state: torch.Tensor) -> Tensors:
            """Take one step of the carry and of its tangents."""
            carry, along = state[:n], state[n:]

            def advance(*some: torch.Tensor) -> tuple[Tensors, Tensors]:
                """Take one step, as a function of what has a tangent."""
                given = replaced(carry, floating, some[: len(floating)])
                outputs = run(ctx.body, (*given, *replaced(rest, moved, some[len(floating) :])))
                return tuple(outputs[i] for i in floating), outputs

            primals = (
                *(carry[i] for i in floating),
                *(rest[i] for i in moved),
            )
            _, pushed, outputs = jvp(advance, primals, (*along, *directions), has_aux=True)
            return (*outputs, *pushed)

        # a value without a tangent may have one after a step, and a carry never grows
        along = [
            torch.zeros_like(carried[i]) if tangents[3 + i] is None else tangents[3 + i]
            for i in floating
        ]
        results = _repeat(
            lambda *state: run(ctx.condition, (*state[:n], *rest)),
            step,
            (*carried, *along),
            copies=True,
        )
        tangents_of_results = dict(zip(floating, results[n:], strict=True))
        return tuple(map(tangents_of_results.get, range(n)))

    @staticmethod
    def vmap(
        info: VmapInfo,
        in_dims: tuple[int | None, ...],
        condition: Branch,
        body: Branch,
        n: int,
        *operands: torch.Tensor,
    ) -> tuple[tuple[object, ...], tuple[int | None, ...]]:
        """Return the results for a batch, and their batch dimensions."""
        size = info.batch_size
        dims = [None if dim is None else 0 for dim in in_dims[3:]]
        draws_differ = info.randomness == "different" and (draws(body) or draws(condition))
        varying, each_stops = _values_that_vary(condition, body, n, dims, draws_differ)
        dims[:n] = [0 if value else None for value in varying]
        carried = _with_batch_dims(operands[:n], in_dims[3:], dims, size)
        rest = operands[n:]
        step = batched(body, info, dims, dims[:n])
        if not each_stops:
            # the condition depends on no value that is a batch
            results = _repeat(
                lambda *c: run(condition, (*c, *rest)),
                lambda *c: step(*c, *rest),
                tuple(carried),
                copies=True,
            )
            return results, tuple(dims[:n])

        # elements stop at different steps: an element that has stopped has its last carry
        goes_on = batched(_as_tuple(condition), info, dims)
        # of_active_lanes makes a batch of every argument
        each = batched(body, info, (0,) * len(dims))

        def go_on(active: torch.Tensor, *carry: torch.Tensor) -> torch.Tensor:
            """Return whether any element goes on."""
            return active.any()

        def advance(active: torch.Tensor, *carry: torch.Tensor) -> Tensors:
            """Take one step of the active elements, and find those that go on."""
            after = each(*of_active_lanes(active, (*carry, *rest), dims))
            next_carry = chosen_lanes(active, after, carry)
            # a condition that draws might let an element go on that has stopped
            return (active & goes_on(*next_carry, *rest)[0], *next_carry)

        results = _repeat(go_on, advance, (goes_on(*carried, *rest)[0], *carried), copies=True)[1:]
        return results, (0,) * n


def _with_batch_dims(
    carry: Sequence[torch.Tensor],
    in_dims: Sequence[int | None],
    dims: Sequence[int | None],
    size: int,
) -> list[torch.Tensor]:
    """Expand those values of a carry that become batches of ``size`` at some step.

    ``dims``: where the batch dimension of each is then.
    """
    expanded: list[torch.Tensor] = []
    for tensor, in_dim, dim in zip(carry, in_dims, dims, strict=False):
        if in_dim is None and dim is not None:
            tensor = tensor.expand(size, *tensor.shape)
        expanded.append(tensor)
    return expanded


def _as_tuple(condition: Branch) -> Branch:
    """Return the condition as a branch with one result in a tuple."""
    graph = fx.Graph()
    graph.output((graph.graph_copy(condition.module.graph, {}),))
    return Branch(GraphModule(condition.module, graph))


def _values_that_vary(
    condition: Branch, body: Branch, n: int, dims: Sequence[int | None], all_vary: bool
) -> tuple[list[bool], bool]:
    """Return which values of the carry differ within a batch at some step, and whether the
    condition does.

    If it does, all of them differ.
    """
    # where each element draws for itself, anything may differ
    if all_vary:
        return [True] * n, True
    varying = {index for index, dim in enumerate(dims) if dim is not None}
    # a value differs once it is computed from one that does
    needs = [_arguments_of(body, result) for result in body.results()]
    added = set(varying)
    while added:
        varying |= added
        added = {i for i in range(n) if not varying.isdisjoint(needs[i])} - varying
    if not varying.isdisjoint(_arguments_of(condition, condition.results()[0])):
        return [True] * n, True
    return [i in varying for i in range(n)], False


def _arguments_of(branch: Branch, result: fx.Node) -> set[int]:
    """Return the numbers of the arguments that ``result`` may depend on."""
    placeholders = [node for node in branch.module.graph.nodes if node.op == "placeholder"]
    needed = set(walk([result], inputs_of))
    return {index for index, placeholder in enumerate(placeholders) if placeholder in needed}


def _record(
    trace: Trace, condition: Branch, body: Branch, n: int, operands: Sequence[object]
) -> Tensors:
    """Write one call to the graph of ``trace``."""
    nodes = list(map(trace.lower_output, operands))
    modules = [
        trace.attribute(branch.module, name)
        for branch, name in (
            (condition, "while_loop_cond_graph_"),
            (body, "while_loop_body_graph_"),
        )
    ]
    with drawing(trace, condition, body), without_modes():
        if trace.abstraction is None:
            inner = trace.lowered_args(operands)
            outputs = chosen_loop(
                transformable(condition.module), transformable(body.module), inner[:n], inner[n:]
            )
        else:
            outputs = abstract_results(trace, body, operands)
    noted: Tensors = trace.noted(
        _OPERATOR, (*modules, tuple(nodes[:n]), tuple(nodes[n:])), tuple(outputs)
    )
    return noted
