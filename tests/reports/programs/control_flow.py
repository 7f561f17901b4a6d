"""Branches, loops and scans.

The operators that a graph has for them are called as a graph calls them, on plain tensors. The
right value is that of a loop in Python."""

import torch
import torch.autograd.forward_ad as fwAD
from functorch.compile import aot_function, nop

from tests.reports.report import report


@report("F73.1", torch=">=2.13")
def second_derivative_of_a_scan():
    """The second derivative of a scan leaves out terms.

    The state is multiplied by w in each of two steps, so the last one is w² and its second
    derivative by w is 2.
    """
    w, one = torch.tensor(3.0, requires_grad=True), torch.ones(())
    last, _ = torch.ops.higher_order.scan(
        lambda s, x, w: [w * s, s + x], [one], [torch.zeros(2)], (w,)
    )
    (first,) = torch.autograd.grad(last, w, create_graph=True)
    return torch.autograd.grad(first, w)[0], torch.tensor(2.0)


@report("F73.2")
def second_derivative_of_a_while_loop():
    """The second derivative of a while_loop leaves out terms.

    x is squared twice: x⁴ has the second derivative 12 x².
    """
    x = torch.tensor(2.0, requires_grad=True)

    def squared(i, x):
        return i + 1, x * x

    _, last = torch.ops.higher_order.while_loop(
        lambda i, x: i < 2, squared, (torch.tensor(0), x), ()
    )
    (first,) = torch.autograd.grad(last, x, create_graph=True)
    return torch.autograd.grad(first, x)[0], torch.tensor(48.0)


@report("F74.1")
def gradient_of_a_while_loop_without_steps():
    """The gradient of a while_loop that makes no step is that of one step.

    Nothing is tripled, so the result is x.
    """
    x = torch.tensor(2.0, requires_grad=True)
    (last,) = torch.ops.higher_order.while_loop(lambda x: x < 0, lambda x: (3 * x,), (x,), ())
    return torch.autograd.grad(last, x)[0], torch.tensor(1.0)


@report("F105.1", raises="scan might be aliasing the input or the output")
def aot_function_of_a_scan_that_computes_with_its_new_state():
    """aot_function refuses a scan that computes with its new state.

    The backward pass wants the new state, so the forward pass gives it twice: as the state and as
    what is saved. The check for aliases finds the two. The sum of 1 and 2 is 3, and its square 9.
    """

    def step(state, row):
        new = state + row
        return [new, new * new]

    def squares(state, rows):
        return torch.ops.higher_order.scan(step, [state], [rows], ())[1]

    state = torch.ones(1, requires_grad=True)
    return aot_function(squares, nop)(state, torch.tensor([[2.0]])), torch.tensor([[9.0]])


@report("F75.1")
def tangent_of_a_branch():
    """A tangent does not pass through cond.

    The branch gives 3 x, so its tangent is three times that of x.
    """
    with fwAD.dual_level():
        x = fwAD.make_dual(torch.tensor(2.0), torch.tensor(1.0))
        (y,) = torch.ops.higher_order.cond(x > 0, lambda x: (3 * x,), lambda x: (-x,), (x,))
        tangent = fwAD.unpack_dual(y).tangent
    return torch.tensor(0.0) if tangent is None else tangent, torch.tensor(3.0)


@report("F75.2")
def tangent_of_a_scan():
    """A tangent does not pass through scan.

    The last state is the sum of the elements.
    """
    with fwAD.dual_level():
        x = fwAD.make_dual(torch.arange(3.0), torch.ones(3))
        last, _ = torch.ops.higher_order.scan(
            lambda s, x: [s + x, s * x], [torch.zeros(())], [x], ()
        )
        tangent = fwAD.unpack_dual(last).tangent
    return torch.tensor(0.0) if tangent is None else tangent, torch.tensor(3.0)


@report("F75.3")
def tangent_of_a_map():
    """A tangent does not pass through map.

    Each element is tripled.
    """
    with fwAD.dual_level():
        x = fwAD.make_dual(torch.arange(3.0), torch.ones(3))
        (y,) = torch.ops.higher_order.map_impl(lambda x: (3 * x,), (x,), ())
        tangent = fwAD.unpack_dual(y).tangent
    return torch.zeros(3) if tangent is None else tangent, torch.full((3,), 3.0)
