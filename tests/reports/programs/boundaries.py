"""What a function that was compiled ahead of time shares with its caller: draws, memory, history."""

import torch
from functorch.compile import aot_function, min_cut_rematerialization_partition, nop
from torch._functorch import config

from tests.reports.report import report


@report("F76.1")
def draws_under_a_memory_budget():
    """With activation_memory_budget below one, aot_function draws again in the backward pass, and other numbers.

    The gradient of the sum of sin(r x) at one is r cos(r), where r is drawn by the forward pass.
    """
    x = torch.ones(5, requires_grad=True)
    with config.patch(activation_memory_budget=0.9):
        f = aot_function(lambda x: (x * torch.rand_like(x)).sin(), nop, partition_fn=min_cut_rematerialization_partition)
        torch.manual_seed(0)
        f(x).sum().backward()
    torch.manual_seed(0)
    r = torch.rand(5)
    return x.grad, r * r.cos()


@report("F77.1")
def gradient_beside_a_result_that_is_not_used():
    """A result of aot_function that is not used gets a cotangent of zeros, which an infinite derivative makes NaN.

    Only 2 x is used, and its gradient is 2.
    """
    x = torch.zeros(2, requires_grad=True)
    _, doubled = aot_function(lambda x: (x.sqrt(), 2 * x), nop)(x)
    doubled.sum().backward()
    return x.grad, torch.full((2,), 2.0)


@report("F78.1")
def seed_in_a_program():
    """aot_function does not carry out manual_seed in a program.

    Both calls set the same seed before they draw, so both give the same numbers.
    """

    def seeded(x):
        torch.manual_seed(0)
        return x * torch.rand(2)

    f = aot_function(seeded, nop)
    return f(torch.ones(2)), f(torch.ones(2))


@report("F79.1")
def write_to_elements_that_are_shown_twice():
    """In aot_function an addition in place to a view that shows an element twice adds to it once.

    The windows (0, 1) and (1, 2) of three zeros both show the second one, so eager adds 1 to it twice.
    """
    x = torch.zeros(3)
    aot_function(lambda a: a.add_(1.0), nop)(x.unfold(0, 2, 1))
    return x, torch.tensor([1.0, 2.0, 1.0])


@report("F80.1")
def requires_grad_of_an_argument():
    """aot_function does not carry out requires_grad_() of an argument.

    The program asks for the gradient of its argument, as it does without aot_function.
    """
    x = torch.ones(2)
    aot_function(lambda x: x.requires_grad_() * 2, nop)(x)
    return x.requires_grad, True
