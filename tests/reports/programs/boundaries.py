"""What a function that was compiled ahead of time shares with its caller: draws,
memory, history."""

import torch
from functorch.compile import aot_function, min_cut_rematerialization_partition, nop
from torch._functorch import config

from tests.reports.report import report


@report("F76.1", "pytorch#190717")
def draws_under_a_memory_budget():
    """With activation_memory_budget below one, aot_function draws again in the backward pass,
    and other numbers.

    The gradient of the sum of sin(r x) at one is r cos(r), where r is drawn by the forward pass.
    """
    x = torch.ones(5, requires_grad=True)
    with config.patch(activation_memory_budget=0.9):
        f = aot_function(
            lambda x: (x * torch.rand_like(x)).sin(),
            nop,
            partition_fn=min_cut_rematerialization_partition,
        )
        torch.manual_seed(0)
        f(x).sum().backward()
    torch.manual_seed(0)
    r = torch.rand(5)
    return x.grad, r * r.cos()


@report("F77.1")
def gradient_beside_a_result_that_is_not_used():
    """A result of aot_function that is not used gets a cotangent of zeros, which an infinite
    derivative makes NaN.

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

    The windows (0, 1) and (1, 2) of three zeros both show the second one, so eager
    adds 1 to it twice.
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


@report("F97.1", "pytorch#198095")
def result_that_is_a_view_of_an_argument_beside_its_base():
    """A result of aot_function that is a view of one argument is made of another, if that one is
    written and holds the memory of both.

    tail is rows 1 and 2 of base, and its row 0 is row 1 of base.
    """

    def f(base, tail):
        base.add_(10.0)
        return tail[0]

    base = torch.arange(3.0)[:, None] * torch.ones(2)
    return aot_function(f, nop)(base, base[1:]), torch.tensor([11.0, 11.0])


@report("F98.1", runtime="it refuses an assignment to the data of a tensor")
def data_of_an_argument():
    """aot_function does not carry out an assignment to the data of an argument.

    The program gives its argument other data, and it reads them.
    """

    def f(x):
        x.data = torch.full((2,), 5.0)
        return x * 2

    x = torch.ones(2)
    return [aot_function(f, nop)(x), x], [torch.full((2,), 10.0), torch.full((2,), 5.0)]


@report("F99.1")
def view_of_an_argument_that_is_transposed_afterwards():
    """The gradient by a view of an argument of aot_function is transposed, if the argument is
    written and then transposed in place.

    The view is row 0 as it was before. So row 0 has the gradient 2, and the other one 0.
    """

    def f(x):
        x.mul_(2.0)
        row = x[0]
        x.transpose_(0, 1)
        return row * 1

    leaf = torch.ones(2, 2, requires_grad=True)
    aot_function(f, nop)(leaf.clone()).sum().backward()
    return leaf.grad, torch.tensor([[2.0, 2.0], [0.0, 0.0]])
