"""torch.compile with Inductor, on the CPU. The right value is eager's, which a
closed form confirms."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from tests.reports.report import report


@report("F27.1", compiled=True)
def remainder_of_a_float_argument():
    """Compiled code decides a condition on the remainder of a float once for all values.

    From the second value on a float argument is a symbol. The range of k % 1.5 is taken for that of
    an integer, 0 to 0.5."""

    def f(x, k):
        return x * (2 if k % 1.5 > 0.5 else 3)

    compiled = torch.compile(f, backend="eager")
    return [compiled(torch.ones(()), k).item() for k in (0.1, 0.7, 1.4)], [3.0, 2.0, 2.0]


@report("F49.1", compiled=True)
def compiled_product_with_zero():
    """Compiled x * 0 is 0 for NaN and infinity.

    NaN times 0 is NaN, and so is infinity times 0.
    """
    return torch.compile(lambda x: x * 0)(torch.tensor([math.nan, math.inf, 1.0])), torch.tensor(
        [math.nan, math.nan, 0.0]
    )


@report("F49.2", "pytorch#138385", compiled=True)
def compiled_softshrink_of_nan():
    """Compiled softshrink of NaN is 0.

    NaN lies in no interval; eager gives NaN.
    """
    return torch.compile(F.softshrink)(torch.tensor([math.nan])), torch.tensor([math.nan])


@report("F50.1", "pytorch#189803", compiled=True)
def compiled_expm1_of_a_small_number():
    """Compiled expm1(1e-10) is 0 in a vector.

    expm1 is there to be x for small x. The vector code computes exp(x) - 1.
    """
    x = torch.full((40,), 1e-10)
    return torch.compile(torch.expm1)(x), x


@report("F50.2", "pytorch#198183", compiled=True)
def compiled_erf_of_a_tiny_number():
    """Compiled erf(1e-30) is 0 in a vector.

    erf(x) is 2x/sqrt(pi) for small x.
    """
    x = torch.full((40,), 1e-30)
    return torch.compile(torch.erf)(x), x * 2 / math.sqrt(math.pi)


@report("F50.3", "pytorch#198134", compiled=True)
def compiled_acosh_of_a_large_number():
    """Compiled acosh(1e30) is infinite in a vector.

    It is log(2e30) = 69.8. The vector code squares the argument.
    """
    return torch.compile(torch.acosh)(torch.full((40,), 1e30)), torch.full((40,), math.log(2e30))


@report("F50.4", "pytorch#198183", compiled=True)
def compiled_atanh_of_a_small_number():
    """Compiled atanh(1e-6) is off by one per cent in a vector.

    atanh(x) is x + x³/3 + … The vector code takes the logarithm of a quotient near 1.
    """
    x = torch.full((40,), 1e-6)
    return torch.compile(torch.atanh)(x), x


@report("F50.5", "pytorch#189801", "pytorch#189803", compiled=True)
def compiled_elu_of_a_small_number():
    """Compiled elu(-1e-5) is off by a thousandth in a vector, and celu too.

    It is expm1(x) = x + x²/2 + … The vector code computes exp(x) - 1.
    """
    x = torch.full((40,), -1e-5)
    return torch.compile(F.elu)(x), x + x * x / 2


@report("F51.1", compiled=True)
def compiled_floor_division():
    """Compiled floor_divide(1, 0.1) is 10.

    0.1 in float32 is a little more than a tenth, so the quotient is below 10 and its floor is 9.
    Python's // agrees."""
    one, tenth = torch.ones(40), torch.full((40,), 0.1)
    return torch.compile(torch.floor_divide)(one, tenth), torch.full((40,), 1.0 // tenth[0].item())


@report("F51.2", compiled=True)
def compiled_floor_division_by_infinity():
    """Compiled floor_divide(-1, inf) is -0.

    The floor of a negative number that is as small as can be is -1. Python's // agrees.
    """
    x = torch.full((40,), math.inf)
    return torch.compile(torch.floor_divide)(-torch.ones(40), x), torch.full(
        (40,), -1.0 // math.inf
    )


@report("F51.3", compiled=True)
def compiled_floor_division_of_infinity():
    """Compiled floor_divide(inf, 1) is infinite.

    x // y is (x - x mod y) / y, and inf mod 1 is not a number. Python's // agrees.
    """
    x = torch.full((40,), math.inf)
    return torch.compile(torch.floor_divide)(x, torch.ones(40)), torch.full((40,), math.inf // 1.0)


@report("F52.1", "pytorch#169779", compiled=True)
def compiled_index_select_of_a_negative_index():
    """Compiled index_select takes -1 for the last element.

    Eager refuses a negative index.
    """
    try:
        answer = torch.compile(lambda x, i: x.index_select(0, i))(
            torch.arange(5.0), torch.tensor([-1])
        ).item()
    except (IndexError, RuntimeError):
        answer = "an error"
    return answer, "an error"


@report("F52.2", compiled=True)
def compiled_scatter_out_of_range():
    """Compiled scatter to an index out of range does nothing.

    Eager refuses the index.
    """
    try:
        answer = (
            torch.compile(lambda i: torch.zeros(3).scatter(0, i, 1.0))(torch.tensor([3]))
            .sum()
            .item()
        )
    except (IndexError, RuntimeError):
        answer = "an error"
    return answer, "an error"


@report("F53.1", compiled=True)
def compiled_gradient_of_logit_at_nan():
    """The compiled gradient of logit with eps is 0 at NaN.

    NaN lies in no interval; eager gives NaN.
    """

    def gradient(f):
        x = torch.tensor([math.nan], requires_grad=True)
        f(x).sum().backward()
        return x.grad

    return gradient(torch.compile(lambda x: torch.logit(x, 0.2))), torch.tensor([math.nan])


@report("F49.3", "pytorch#189799", compiled=True)
def compiled_sum_of_zeros():
    """Compiled -0.0 + 0.0 is -0.0.

    IEEE 754 gives 0.0, whose reciprocal is plus infinity. The compiler removes the addition.
    """
    compiled = torch.compile(lambda x: (x.ceil() + torch.zeros_like(x)).reciprocal())
    return compiled(torch.tensor([-0.5])), torch.tensor([math.inf])


@report("F41.6", "pytorch#197089", compiled=True)
def compiled_deviation_of_large_and_small_numbers():
    """Compiled std of numbers near 1e30 is infinite, and near 1e-30 it is 0.

    Eager adds the squares in double precision, and so does the right value.
    """
    x = torch.tensor([1e30, -1e30, 1e30, -1e30])
    return torch.compile(torch.std)(x), torch.std(x.double())


@report("F52.3", "pytorch#185885", compiled=True)
def compiled_index_add_at_a_negative_index():
    """Compiled index_add takes -1 for the last element.

    Eager refuses a negative index.
    """
    try:
        answer = (
            torch.compile(lambda x, i: x.index_add(0, i, torch.ones(1)))(
                torch.zeros(3), torch.tensor([-1])
            )
            .sum()
            .item()
        )
    except (IndexError, RuntimeError):
        answer = "an error"
    return answer, "an error"


@report("F52.4", "pytorch#197554", compiled=True)
def compiled_index_copy_at_a_negative_index():
    """Compiled index_copy takes -1 for the last element.

    Eager refuses a negative index.
    """
    try:
        answer = (
            torch.compile(lambda x, i: x.index_copy(0, i, torch.ones(1)))(
                torch.zeros(3), torch.tensor([-1])
            )
            .sum()
            .item()
        )
    except (IndexError, RuntimeError):
        answer = "an error"
    return answer, "an error"


@report("F52.5", "pytorch#193757", compiled=True)
def compiled_binary_cross_entropy_of_an_impossible_target():
    """Compiled binary_cross_entropy of the target 1.5 is -50.

    Eager refuses a target that is no probability.
    """
    try:
        answer = torch.compile(lambda t: F.binary_cross_entropy(torch.ones_like(t), t))(
            torch.full((4, 4), 1.5)
        ).item()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F52.6", "pytorch#197554", compiled=True)
def compiled_repeat_interleave_of_negative_repeats():
    """Compiled repeat_interleave repeats an element -1 times.

    Eager refuses it.
    """
    try:
        repeat = torch.compile(lambda x, r: torch.repeat_interleave(x, r, output_size=3))
        answer = repeat(torch.ones(2), torch.tensor([1, -1])).sum().item()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F52.7", compiled=True)
def compiled_bernoulli_of_an_impossible_probability():
    """Compiled bernoulli with the probability 2 is 1.

    Eager refuses it.
    """
    try:
        answer = torch.compile(torch.bernoulli)(torch.tensor([2.0])).item()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F50.6", "pytorch#198133", compiled=True, rtol=1e-6)
def compiled_erfinv_near_one():
    """Compiled erfinv(1 - 1e-16) is off in the fifth digit in double precision.

    It is 5.86358474875516792, by mpmath for the double next to 1; eager gives that.
    """
    x = torch.tensor([1 - 1e-16], dtype=torch.float64)
    return torch.compile(torch.erfinv)(x), torch.tensor([5.86358474875516792], dtype=torch.float64)


@report("F51.4", "pytorch#198057", compiled=True)
def compiled_remainder_of_a_large_number():
    """Compiled 1e20 % 3 is 0 in a vector.

    1e20 in float32 is 100000002004087734272, which leaves 2 by integer arithmetic.
    """
    return torch.compile(torch.remainder)(
        torch.full((40,), 1e20), torch.full((40,), 3.0)
    ), torch.full((40,), 100000002004087734272 % 3.0)


@report("F100.1", "pytorch#198033", compiled=True)
def compiled_sum_with_a_flipped_tensor():
    """Compiled _foreach_add_ of a tensor and its own flip reads elements that are written already.

    0, 1, 2 and 2, 1, 0 add up to twos.
    """

    def f(x):
        torch._foreach_add_([x], [x.flip(0)])
        return x

    return torch.compile(f)(torch.arange(3.0)), torch.full((3,), 2.0)


@report("F100.2", "pytorch#197829", compiled=True)
def compiled_shift_of_rows():
    """Compiled code that moves the rows of a tensor down copies rows that are written already.

    The program copies the rows before it writes. The copy is left out.
    """

    def f(x):
        x[1:] = x[:-1].clone()
        return x

    return torch.compile(f)(torch.arange(32.0).reshape(4, 8)), torch.arange(32.0).reshape(4, 8)[
        [0, 0, 1, 2]
    ]


@report("F101.1", "pytorch#197887", compiled=True)
def compiled_product_whose_factor_is_written_afterwards():
    """The gradient of a compiled product is that of other numbers, if a factor is written before
    the backward pass.

    The gradient by w is the sum of x. Eager raises an error: a saved tensor was modified.
    """
    x, w = torch.ones(2, 3), torch.ones(3, 2, requires_grad=True)
    y = torch.compile(torch.matmul)(x, w)
    x.add_(1.0)
    try:
        y.sum().backward()
    except RuntimeError:
        w.grad = torch.full((3, 2), 2.0)
    return w.grad, torch.full((3, 2), 2.0)


@report("F102.1", "pytorch#186799", compiled=True)
def compiled_gradient_of_a_minimum_of_angles():
    """The compiled gradient of the smallest of some atan2 is 0.

    It compares the minimum with angles that it computes again, and they differ in the last bit. The
    gradient by x is y/(x² + y²)."""
    torch.manual_seed(0)
    x, y = torch.randn(2, 3).requires_grad_(), torch.randn(2, 3)
    torch.compile(lambda x: torch.atan2(x, y).amin(-1))(x).sum().backward()
    least = F.one_hot(torch.atan2(x.detach().double(), y.double()).argmin(-1), 3)
    return x.grad, least * y / (x.detach() ** 2 + y**2)


@report("F103.1", "pytorch#183986", compiled=True)
def compiled_index_add_of_an_expanded_tensor():
    """Compiled index_add to an expanded tensor adds to all of its rows.

    The result is a new tensor, whose rows are their own.
    """
    f = torch.compile(lambda source, i: torch.zeros(1, 2).expand(3, 2).index_add(0, i, source))
    return f(torch.ones(2, 2), torch.tensor([0, 0])), torch.tensor(
        [[2.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    )


@report("F104.1", "pytorch#179804", compiled=True, rtol=1e-4)
def compiled_product_without_autocast_in_autocast():
    """The compiled gradient of a product in autocast(enabled=False) is computed in bfloat16, if the
    call is in autocast.

    The backward pass has no autocast around it, and its product is one of float32.
    """

    def f(x, w):
        with torch.autocast("cpu", enabled=False):
            return x @ w

    x, w = torch.full((4, 4), 1.003), torch.full((4, 4), 1.0, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.compile(f, backend="aot_eager")(x, w)
    y.sum().backward()
    return w.grad, torch.full((4, 4), 4.012)


@report("F92.1", compiled=True, raises="appears to not have been used in the graph")
def compiled_slices_beside_a_detached_tensor():
    """Compiled slices of a tensor have no gradient, if the tensor is returned too, detached.

    The slices are half of twice x each, so the gradient by x is 2.
    """

    def f(x):
        y = x * 2
        return y[0:2], y[2:4], y.detach()

    x = torch.ones(4, requires_grad=True)
    a, b, _ = torch.compile(f)(x)
    return torch.autograd.grad(a.sum() + b.sum(), x)[0], torch.full((4,), 2.0)


@report("F203.1", compiled=True)
def compiled_labels_behind_the_first_gap():
    """Compiled multilabel_margin_loss counts labels that stand behind a -1 at the beginning.

    The first -1 ends the labels, so there are none, and the loss is 0.
    """
    scores, labels = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[-1, 0, 1]])
    loss = torch.compile(lambda x, y: F.multilabel_margin_loss(x, y))
    return loss(scores, labels), torch.tensor(0.0)


@report("F203.2", "pytorch#194501", compiled=True)
def compiled_loss_with_a_negative_beta():
    """Compiled smooth_l1_loss takes a negative beta.

    Eager refuses it.
    """
    loss = torch.compile(lambda x: F.smooth_l1_loss(x, x + 1, beta=-1.0))
    try:
        answer = loss(torch.ones(1)).item()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F203.3", "pytorch#178480", compiled=True)
def compiled_celu_with_alpha_zero():
    """Compiled celu takes the alpha 0.

    Eager refuses it.
    """
    try:
        answer = torch.compile(lambda x: torch.celu(x, 0.0))(torch.ones(1)).item()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F203.4", compiled=True)
def compiled_unpooling_at_a_negative_place():
    """Compiled max_unpool1d takes a negative place, and counts it from the end.

    Eager refuses it.
    """
    unpool = torch.compile(lambda x, i: F.max_unpool1d(x, i, 2))
    try:
        answer = unpool(torch.ones(1, 1, 2), torch.tensor([[[-1, 2]]])).sum().item()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F203.5", compiled=True)
def compiled_layer_norm_of_two_precisions():
    """Compiled layer_norm takes a weight of another precision.

    Eager refuses it.
    """
    norm = torch.compile(lambda x, w: F.layer_norm(x, (3,), w))
    try:
        answer = norm(torch.ones(2, 3, dtype=torch.float64), torch.ones(3)).sum().item()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F203.6", compiled=True)
def compiled_cross_entropy_of_narrow_labels():
    """Compiled cross_entropy takes labels of 32 bits.

    Eager refuses them.
    """
    loss = torch.compile(lambda x, y: F.cross_entropy(x, y))
    try:
        answer = loss(torch.zeros(2, 3), torch.tensor([0, 1], dtype=torch.int32)).item()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F203.7", compiled=True)
def compiled_index_select_at_a_negative_place():
    """Compiled index_select takes a negative place, and counts it from the end.

    Eager refuses it.
    """
    select = torch.compile(lambda x, i: torch.index_select(x, 0, i))
    try:
        answer = select(torch.arange(3.0), torch.tensor([-1])).item()
    except IndexError:
        answer = "an error"
    return answer, "an error"


@report(
    "F335.1",
    compiled=True,
    raises="one of the variables needed for gradient computation has been modified by an inplace",
)
def compiled_write_to_a_part_of_an_argument():
    """Compiled code that writes to rows of its argument has no backward pass.

    The argument is kept for the backward pass and then written to by the compiled code itself.
    Eager mode computes the gradient, and so does the backend "aot_eager".
    """

    def f(a):
        a[1:].mul_(a[:1].exp())
        return a.sin().sum()

    def slope(function):
        x = torch.ones(3, 3, requires_grad=True)
        function(x * 1).backward()
        return x.grad

    return slope(torch.compile(f)), slope(f)


@report("F336.1", "pytorch#188074", compiled=True)
def compiled_bernoulli_with_the_draws_of_eager():
    """Compiled bernoulli draws other numbers with fallback_random.

    This option of Inductor is there to let compiled code draw as eager mode does.
    """
    p = torch.full((20,), 0.5, dtype=torch.float64)
    compiled = torch.compile(torch.bernoulli, options={"fallback_random": True})
    torch.manual_seed(0)
    drawn = compiled(p)
    torch.manual_seed(0)
    return drawn, torch.bernoulli(p)


@report("F337.1", compiled=True)
def compiled_choice_of_numpy():
    """Compiled np.where of two plain numbers is float32.

    NumPy makes float64 of a float of Python.
    """

    def f(x):
        return torch.as_tensor(np.where(x.numpy() > 0, 1.5, 0.1)).dtype

    return torch.compile(f, backend="eager")(torch.ones(2)) == torch.float64, True
