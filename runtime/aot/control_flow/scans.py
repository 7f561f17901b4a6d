"""Loop over the elements of tensors: ``map`` and ``scan``.

A graph has the calls of every step. With ``unroll=False``, and where the length is a symbol, it has
one call of torch's operator ``scan``. Its derivatives and its batch are scans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ...autograd.function_rules import VmapInfo
from ...func.grad import vjp
from ...func.jvp import jvp
from ...rules.ops import DIFFERENTIABLE
from ...torch_private.mode_stacks import without_modes
from ...torch_private.pytrees import pytree
from ...trace.provenance import here
from ...trace.regions import traced
from ...trace.symbols import unchecked
from ...trace.trace_level import Trace
from .branches import Branch, ControlFlow, Piece, captured, drawing, refuse_draws
from .conditions import replaced
from .lanes import batched
from .loops import check_carry, entered
from .torch_operators import (
    Tensors,
    abstract_results,
    run,
    stands_for,
    through_levels,
    transformable,
)

_OPERATOR = torch.ops.higher_order.scan


def map(f: Callable[..., object], xs: object, *args: object, unroll: bool | None = None) -> Any:
    """Return ``f(x, *args)`` for each ``x`` along the first dimension of the tensors in ``xs``,
    stacked, as ``map`` of torch's control flow does.

    >>> map(lambda x, y: x.sum() * y, torch.ones(3, 2), torch.tensor(2.0))
    tensor([4., 4., 4.])

    ``unroll``: as that of :func:`scan`. ``RuntimeError`` for an empty first dimension.
    """

    def step(carry: tuple[()], value: object) -> tuple[tuple[()], object]:
        """Call ``f`` as a step of a scan without a carry."""
        return carry, f(value, *args)

    return scan_along(step, (), xs, 0, False, unroll)[1]


def scan(
    combine_fn: Callable[[Any, Any], tuple[object, object]],
    init: object,
    xs: object,
    *,
    dim: int = 0,
    reverse: bool = False,
    unroll: bool | None = None,
) -> tuple[Any, Any]:
    """Do ``carry, y = combine_fn(carry, x)`` for each ``x`` along ``dim``, as torch's ``scan``
    does. Return the last carry, and all ``y``, stacked.

    >>> scan(lambda total, x: (total + x, total + x), torch.tensor(0), torch.tensor([1, 2, 3]))
    (tensor(6), tensor([1, 3, 6]))

    ``unroll``: whether a graph has the calls of every step. False: it has one call of torch's
    operator, and shapes and dtypes of the carry stay. None: False where the length is a symbol.
    ``dim`` is where ``y`` is stacked, too, if it has so many dimensions. ``RuntimeError`` for an
    empty dimension.
    """
    return scan_along(combine_fn, init, xs, dim, reverse, unroll)


def scan_along(
    step: Callable[..., tuple[object, object]],
    init: object,
    xs: object,
    dim: int,
    reverse: bool,
    unroll: bool | None,
) -> tuple[Any, Any]:
    """Do what :func:`scan` does, in Python or as one call of the graph.

    ``step``: takes the carry and an element, as ``combine_fn`` of :func:`scan`.
    """
    flat, spec = pytree.tree_flatten(xs)
    if not flat:
        return init, []
    # From here on, the dimension of the steps is the first one.
    moved = flat
    if dim:
        moved = [x.movedim(dim, 0) for x in flat]
    length = length_of(moved)
    if not _is_one_call(init, moved, length, unroll):
        _refuse_unknown_length(length, unroll)
        carry, ys = _stepwise(step, init, moved, spec, reverse)
    elif reverse:
        carry, ys = _capture(step, init, [x.flip(0) for x in moved], spec)
        ys = pytree.tree_map_only(torch.Tensor, lambda y: y.flip(0), ys)
    else:
        carry, ys = _capture(step, init, moved, spec)
    if not dim:
        return carry, ys
    return carry, pytree.tree_map_only(torch.Tensor, partial(_move_steps, dim), ys)


def _is_one_call(
    init: object, moved: Sequence[torch.Tensor], length: object, unroll: bool | None
) -> bool:
    """Return whether all steps are one call of torch's operator in a graph."""
    # Torch's operator carries only tensors, so any other carry needs a loop in Python.
    whole = unroll is False or (unroll is None and not isinstance(length, int))
    if not whole or not all(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(init)):
        return False
    return traced(moved)


def _move_steps(dim: int, y: torch.Tensor) -> torch.Tensor:
    """Move the dimension of the steps from the front to ``dim``, if ``y`` has so many."""
    if dim >= y.dim():
        return y
    return y.movedim(0, dim)


def _refuse_unknown_length(length: object, unroll: bool | None) -> None:
    """Refuse a loop in Python over a length that is a symbol."""
    if unchecked(length):
        reason = "the carry has a value that is no tensor."
        if unroll:
            reason = "unroll=True."
        raise RuntimeError(
            f"scan and map: the length is a symbol, and {reason}"
            " A graph would keep the steps for one length. "
            f"Carry a number as a tensor, torch.tensor(0), and let unroll be None.{here()}"
        )


def _stepwise(
    step: Callable[..., tuple[object, object]],
    init: object,
    moved: Sequence[torch.Tensor],
    spec: pytree.TreeSpec,
    reverse: bool,
) -> tuple[object, object]:
    """Take one step after another along the first dimension of ``moved``.

    Begin at the end if ``reverse``. The results are stacked in the order of the elements.
    """
    carry, each = init, []
    order = range(moved[0].shape[0])
    for index in reversed(order) if reverse else order:
        carry, y = step(carry, pytree.tree_unflatten([x[index] for x in moved], spec))
        each.append(y)
    if reverse:
        each.reverse()
    # A value that is no tensor cannot be stacked, so it is the one of the first element.
    return carry, pytree.tree_map(
        lambda *y: torch.stack(y) if isinstance(y[0], torch.Tensor) else y[0], *each
    )


def length_of(xs: Sequence[torch.Tensor]) -> object:
    """Return the length of the first dimension. ``RuntimeError`` if it is 0 or not one."""
    lengths = [x.shape[0] for x in xs]
    if any(length != lengths[0] for length in lengths) or lengths[0] == 0:
        raise RuntimeError(
            "map and scan take tensors with one length of at least 1, "
            f"got lengths {lengths}{here()}"
        )
    return lengths[0]


def _capture(
    step: Callable[..., tuple[object, object]],
    init: object,
    xs: Sequence[torch.Tensor],
    spec: pytree.TreeSpec,
    copies: bool = False,
) -> Any:
    """Return the last carry and the results of ``step`` along ``xs``, as one call of the graph."""
    start, init_spec = pytree.tree_flatten(init)
    n, m = len(start), len(xs)  # how many tensors are carried, and how many give an element
    # The user's line is noted here, because inside of the step it would be a line of the step.
    call = here()
    y_spec: Any = None

    def flat_step(*given: torch.Tensor) -> list[object]:
        """Take one step of flat lists: the carry, then one element of each of ``xs``."""
        nonlocal y_spec
        carry, y = step(
            pytree.tree_unflatten(given[:n], init_spec), pytree.tree_unflatten(given[n:], spec)
        )
        new, new_spec = pytree.tree_flatten(carry)
        if new_spec != init_spec:
            raise RuntimeError(
                f"scan: the function returns the carry {new_spec}, which was {init_spec}{call}"
            )
        ys, y_spec = pytree.tree_flatten(y)
        return [*new, *ys]

    given = [entered(tensor) for tensor in (*start, *xs)]
    what = "the function of scan"
    if not n:
        what = "the function of map"
    piece = Piece(what, flat_step, n, copies)
    (body,), outside = captured((piece,), [*given[:n], *(x[0] for x in given[n:])])
    # The graph returns only tensors, and `...` among the constants stands for one of them.
    nodes = iter(body.results())
    after = [
        next(nodes).meta["val"] if constant is ... else constant for constant in body.constants[:n]
    ]
    # No structures are passed, because flat_step has compared them.
    check_carry(given[:n], None, after, None, body.results(), "scan")
    results = list(_Scan.apply(body, n, m, *given, *outside))
    tensors = iter(results)
    leaves = [next(tensors) if constant is ... else constant for constant in body.constants]
    return pytree.tree_unflatten(leaves[:n], init_spec), pytree.tree_unflatten(leaves[n:], y_spec)


def _along(
    step: Callable[..., tuple[object, object]],
    carry: Sequence[torch.Tensor],
    xs: Sequence[torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Do ``carry, y = step(carry, x)`` along ``xs``, all flat lists. One call in a trace."""
    spec = pytree.tree_structure(list(xs))
    if traced((*carry, *xs)):
        return _capture(step, list(carry), xs, spec, copies=True)  # type: ignore[no-any-return]
    return scan_along(step, list(carry), list(xs), 0, False, True)


@stands_for(_OPERATOR)
def _scan_values(
    body: Callable[..., Sequence[torch.Tensor]],
    init: Sequence[torch.Tensor],
    xs: Sequence[torch.Tensor],
    rest: Sequence[object] = (),
    mutated_arg_indices: str = "",
) -> Tensors:
    """Call ``torch.ops.higher_order.scan`` for values of any level.

    In ``mutated_arg_indices`` torch 2.14 names the writes of ``body``. They happen here without it,
    because ``body`` runs.
    """
    count = len(init)

    def step(carry: Sequence[torch.Tensor], x: Sequence[torch.Tensor]) -> tuple[object, object]:
        """Run the body once."""
        outputs = body(*carry, *x, *rest)
        return list(outputs[:count]), list(outputs[count:])

    carry, ys = _along(step, init, xs)
    return (*carry, *ys)


@stands_for(torch.ops.higher_order.map_impl)
def _map_values(
    body: Callable[..., object],
    xs: Sequence[torch.Tensor],
    rest: Sequence[object] = (),
    mutated_arg_indices: str = "",
) -> Any:
    """Call ``torch.ops.higher_order.map_impl`` for values of any level.

    A graph returns a tuple, and a function any pytree.
    """
    spec: Any = None

    def flat(*given: object) -> list[torch.Tensor]:
        """Return the leaves of a result of the body."""
        nonlocal spec
        leaves, spec = pytree.tree_flatten(body(*given))
        return leaves

    return pytree.tree_unflatten(list(_scan_values(flat, (), xs, rest)), spec)


def _select(values: Mapping[int, torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
    """Return the ``values`` with these numbers."""
    return [values[index] for index in numbers]


def _carry_before_steps(
    body: Branch, carry: Tensors, xs: Tensors, rest: Tensors
) -> Sequence[torch.Tensor]:
    """Return the values of ``carry`` before each step, stacked, by one more run of the steps."""
    # A `map` carries nothing, so it needs no further run.
    if not carry:
        return ()

    def step(
        state: Sequence[torch.Tensor], each: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Take one step, whose result is the carry before it."""
        return list(run(body, (*state, *each, *rest))[: len(carry)]), list(state)

    return _along(step, carry, xs)[1]


@dataclass(frozen=True)
class _Moving:
    """Hold the numbers of the operands of a scan for which a derivative is computed."""

    # Operands in the carry.
    carry: list[int]
    # Tensors of which each step takes one element.
    elements: list[int]
    # All other operands.
    rest: list[int]

    @classmethod
    def of(cls, numbers: Sequence[int], n: int, m: int) -> _Moving:
        """Sort ``numbers`` of operands, of which ``n`` are the carry and ``m`` elements."""
        return cls(
            [index for index in numbers if index < n],
            [index for index in numbers if n <= index < n + m],
            [index for index in numbers if index >= n + m],
        )

    @property
    def numbers(self) -> list[int]:
        """Return all numbers."""
        return [*self.carry, *self.elements, *self.rest]


def _or_zeros(tensor: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """Return ``tensor``, or zeros like ``like`` for None."""
    return torch.zeros_like(like) if tensor is None else tensor


class _Scan(ControlFlow):
    """Differentiate and batch a scan as one call.

    It takes the body, ``n`` and ``m``, and the operands: ``n`` tensors of the carry, ``m`` of which
    each step takes an element, and the further arguments of the body.
    """

    @staticmethod
    def forward(body: Branch, n: int, m: int, *operands: torch.Tensor) -> Tensors:
        """Compute the results, or write the call to a graph."""

        def again(tensors: Sequence[torch.Tensor]) -> Tensors:
            """Do the same with the tensors of an outer level."""
            return _Scan.forward(body, n, m, *tensors)

        def compute() -> Tensors:
            """Run the steps, with no level around."""
            return _scan_values(
                transformable(body.module), operands[:n], operands[n : n + m], operands[n + m :]
            )

        return through_levels(
            operands, again, lambda level: _record(level, body, n, m, operands), compute
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[object, ...], output: Tensors) -> None:
        """Save what the derivatives need."""
        ctx.body, ctx.n, ctx.m, *operands = inputs
        ctx.floating = [
            index for index, result in enumerate(output) if result.dtype in DIFFERENTIABLE
        ]
        # Zeros must not replace None, because zero times an infinite derivative is NaN.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*operands)
        ctx.save_for_forward(*operands)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[object, ...]:
        """Return the gradients of the operands."""
        refuse_draws("the function of map or scan", ctx.body)
        n, m = ctx.n, ctx.m
        # A carry may get its cotangent from a later step, so it counts even without one.
        floating = [index for index in ctx.floating if index < n or grads[index] is not None]
        operands = ctx.saved_tensors
        carried, xs, rest = operands[:n], operands[n : n + m], operands[n + m :]
        moving = _Scan._moving_in_backward(ctx)
        numbers, n_moving = moving.numbers, len(moving.carry)
        # The forward saves no intermediate carry, because torch's operator returns none.
        before = _carry_before_steps(ctx.body, carried, xs, rest)

        def back(
            state: Sequence[torch.Tensor], each: Sequence[torch.Tensor]
        ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            """Take one step backward.

            ``state``: cotangents of the carry, then the sums of gradients of further arguments.
            ``each``: the operands of the step, then the cotangents of its results.
            """
            cotangents, sums = state[:n_moving], state[n_moving:]
            given = (*each[: n + m], *rest)

            def step(*some: torch.Tensor) -> Tensors:
                """Take one step, as a function of what is differentiated."""
                outputs = run(ctx.body, replaced(given, numbers, some))
                return tuple(outputs[position] for position in floating)

            _, pullback = vjp(step, *(given[index] for index in numbers))
            pulled = pullback((*cotangents, *each[n + m :]))
            of_carry, others = pulled[:n_moving], pulled[n_moving:]
            n_elements = len(moving.elements)
            # Every step uses the further arguments, so their gradients are sums over the steps.
            more = zip(sums, others[n_elements:], strict=True)
            return [*of_carry, *(total + grad for total, grad in more)], list(others[:n_elements])

        # The backward pass is a scan from the last step to the first one.
        start = [
            *(_or_zeros(grads[position], operands[position]) for position in moving.carry),
            *(torch.zeros_like(operands[position]) for position in moving.rest),
        ]
        elements = [*before, *xs, *(grads[position] for position in floating if position >= n)]
        final, of_each = _along(back, start, [element.flip(0) for element in elements])
        of_operands = [*final[:n_moving], *(y.flip(0) for y in of_each), *final[n_moving:]]
        gradients: list[object] = [None] * len(operands)
        return (None, None, None, *replaced(gradients, numbers, of_operands))

    @staticmethod
    def _moving_in_backward(ctx: Any) -> _Moving:
        """Find the operands that get a gradient.

        A carry always does, because the steps before may need it.
        """
        of_carry = [index for index in ctx.floating if index < ctx.n]
        # The inputs of `forward` begin with the body and the two lengths.
        wanted = [
            index
            for index, tensor in enumerate(ctx.saved_tensors)
            if index >= ctx.n and tensor.dtype in DIFFERENTIABLE and ctx.needs_input_grad[3 + index]
        ]
        return _Moving.of([*of_carry, *wanted], ctx.n, ctx.m)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> tuple[object, ...]:
        """Return the tangents of the results."""
        refuse_draws("the function of map or scan", ctx.body)
        n, m, floating = ctx.n, ctx.m, ctx.floating
        operands = ctx.saved_tensors
        rest = operands[n + m :]
        carry_out = [index for index in floating if index < n]
        # A carry may get its tangent from an earlier step, so it counts even without one.
        with_tangent = [
            index
            for index, tangent in enumerate(tangents[3:])
            if tangent is not None or index in carry_out
        ]
        moving = _Moving.of(with_tangent, n, m)
        numbers = moving.numbers
        moved = {index: _or_zeros(tangents[3 + index], operands[index]) for index in numbers}
        fixed = _select(moved, moving.rest)

        def step(
            state: Sequence[torch.Tensor], each: Sequence[torch.Tensor]
        ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            """Take one step of the carry and of its tangents."""
            given = (*state[:n], *each[:m], *rest)

            def advance(*some: torch.Tensor) -> tuple[Tensors, Tensors]:
                """Take one step, as a function of what has a tangent."""
                outputs = run(ctx.body, replaced(given, numbers, some))
                return tuple(outputs[position] for position in floating), outputs

            _, pushed, outputs = jvp(
                advance,
                tuple(given[index] for index in numbers),
                (*state[n:], *each[m:], *fixed),
                has_aux=True,
            )
            return [*outputs[:n], *pushed[: len(carry_out)]], list(pushed[len(carry_out) :])

        carry = [*operands[:n], *_select(moved, moving.carry)]
        elements = [*operands[n : n + m], *_select(moved, moving.elements)]
        final, ys = _along(step, carry, elements)
        of_results = dict(zip(floating, [*final[n:], *ys], strict=True))
        return tuple(of_results.get(position) for position in range(len(ctx.body.results())))

    @staticmethod
    def vmap(
        info: VmapInfo,
        in_dims: tuple[int | None, ...],
        body: Branch,
        n: int,
        m: int,
        *operands: torch.Tensor,
    ) -> tuple[Tensors, tuple[int, ...]]:
        """Return the results for a batch, and their batch dimensions."""
        # A step may mix a batch into any part of the carry, so all of it is a batch. So are all
        # results.
        dims = [0 if index < n else dim for index, dim in enumerate(in_dims[3:])]
        carry = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor
            for tensor, dim in zip(operands[:n], in_dims[3:], strict=False)
        ]
        # The dimension of the steps comes first, and that of the batch second. So each step gets an
        # element whose batch comes first.
        xs = [
            x if dim is None else x.movedim(0, 1)
            for x, dim in zip(operands[n : n + m], dims[n:], strict=False)
        ]
        rest = operands[n + m :]
        each = batched(body, info, dims)

        def step(
            state: Sequence[torch.Tensor], x: Sequence[torch.Tensor]
        ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            """Take one step of the whole batch."""
            outputs = each(*state, *x, *rest)
            return list(outputs[:n]), list(outputs[n:])

        final, ys = _along(step, carry, xs)
        return (*final, *ys), (*(0 for _ in final), *(1 for _ in ys))


def _record(trace: Trace, body: Branch, n: int, m: int, operands: Sequence[object]) -> Tensors:
    """Write one call to the graph of ``trace``: of torch's ``scan``, or of its ``map`` without a
    carry."""
    nodes = [trace.lower_output(operand) for operand in operands]
    carry, xs, rest = nodes[:n], nodes[n : n + m], nodes[n + m :]
    # Torch's printed graphs call the two bodies by these names.
    module = trace.attribute(body.module, "scan_combine_graph_" if n else "body_graph_")
    inner = trace.lowered_args(operands)
    with drawing(trace, body), without_modes():
        if trace.abstraction is None:
            outputs = _scan_values(
                transformable(body.module), inner[:n], inner[n : n + m], inner[n + m :]
            )
        else:
            # The body runs for one step. The results of all steps get their number as the first
            # dimension.
            length = inner[n].shape[0]
            with trace.abstraction.running():
                slices = [*inner[:n], *(x[0] for x in inner[n : n + m]), *inner[n + m :]]
            each = abstract_results(trace, body, slices)
            with trace.abstraction.running():
                outputs = (*each[:n], *(y.new_empty((length, *y.shape)) for y in each[n:]))
    if n:
        noted: Tensors = trace.noted(_OPERATOR, (module, carry, xs, tuple(rest)), tuple(outputs))
        return noted
    return trace.noted(torch.ops.higher_order.map_impl, (module, xs, rest), tuple(outputs))  # type: ignore[no-any-return]
