"""Second and third derivatives by the plain engine."""

import torch
import torch.nn.functional as F
from torch.autograd import grad

from tests.reports.report import report


@report("F3.1", raises="output_padding is not supported for non-transposed convolutions")
def third_derivative_of_a_transposed_convolution():
    """The third derivative of conv_transpose1d with output_padding raises; with more
    channels it is wrong.

    The op is linear in input and weight. So the sum of d(input gradient)/d(weight) along u is
    linear in u, with the derivative by u that central differences give.
    """
    x, w = (
        torch.arange(1.0, 5).double().reshape(1, 1, 4).requires_grad_(),
        torch.ones(1, 1, 3).double().requires_grad_(),
    )
    y = F.conv_transpose1d(x, w, stride=2, padding=1, output_padding=1)
    (gx,) = grad(y, x, torch.ones_like(y), create_graph=True)

    def along(u):
        return grad(gx, w, u, create_graph=True)[0].sum()

    u, steps = torch.ones_like(gx, requires_grad=True), torch.eye(4).double().reshape(4, 1, 1, 4)
    differences = (
        torch.stack([(along(u.detach() + h) - along(u.detach() - h)) / 2 for h in steps])
        .detach()
        .reshape(1, 1, 4)
    )
    return grad(along(u), u)[0], differences


@report("F7.1", raises="Expected a proper Tensor but got None")
def double_backward_of_layer_norm_with_a_bias_alone():
    """The double backward of layer_norm with a bias but no weight raises.

    With a weight of ones it is the same function.
    """

    def second(weight):
        x = torch.tensor([[1.0, 2.0, 4.0], [3.0, 1.0, 0.0]], requires_grad=True)
        b, c = torch.zeros(3, requires_grad=True), torch.ones(2, 3).cumsum(1).requires_grad_()
        g = grad(F.layer_norm(x, (3,), weight, b), (x, b), c, create_graph=True)
        return grad(g[0].square().sum() + g[1].sum(), (x, c))

    expected = second(torch.ones(3))
    return second(None), expected


@report("F22.1", torch=">=2.13")
def second_derivative_of_linear_cross_entropy_in_chunks():
    """linear_cross_entropy in chunks has no second derivative by its arguments.

    Its forward pass computes the gradients and keeps them as constants. Without chunks it is
    the same function.
    """
    from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

    def second(options):
        torch.manual_seed(0)
        x, w, t = (
            torch.randn(5, 3, requires_grad=True),
            torch.randn(4, 3),
            torch.zeros(5, dtype=torch.long),
        )
        c = torch.ones((), requires_grad=True)
        (g,) = grad(F.linear_cross_entropy(x, w, t, options=options), x, c, create_graph=True)
        return grad(g.square().sum(), x, allow_unused=True)[0]

    expected = second(None)
    chunks = LinearCrossEntropyOptions(batch_chunk_size=2, allow_retain_graph=True)
    return second(chunks), expected


@report("F26.1")
def second_derivative_of_weight_norm():
    """The second derivative of _weight_norm lacks a term.

    Central differences of the first derivative, which is right, give it.
    """
    g = torch.tensor([[2.0]], dtype=torch.float64, requires_grad=True)

    def first(v):
        return grad(torch._weight_norm(v, g, 0)[0, 0], v, create_graph=True)[0][0, 0]

    v = torch.tensor([[3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    steps = 1e-6 * torch.eye(2, dtype=torch.float64)[:, None]
    differences = torch.stack([(first(v + h) - first(v - h)).detach() / 2e-6 for h in steps])[None]
    return grad(first(v), v)[0], differences


@report("F28.1")
def second_derivative_of_a_write_through_an_overlapping_view():
    """The second derivative of a write through a view that shows elements several times is wrong.

    The middle row takes the sum twice, so the write is x + w * x.sum().
    """
    b, w = torch.arange(6).double().reshape(3, 2) / 7, torch.tensor([[1.0], [2.0], [1.0]]).double()

    def written(x):
        x = x * 1
        x.unfold(0, 2, 1).add_(x.sum())
        return x

    def second(f):
        x = b.clone().requires_grad_()
        return grad(grad(f(x).sin().sum(), x, create_graph=True)[0].square().sum(), x)[0]

    return second(written), second(lambda x: x + w * x.sum())


@report("F46.1", "pytorch#186256", torch="<2.14")
def third_derivative_of_batch_norm():
    """The third derivative of batch_norm in training takes the batch's statistics for constants.

    The same normalization written with mean and var has the right one.
    """

    def third(f):
        x = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64, requires_grad=True)
        y = f(x)[0, 0]
        for _ in range(2):
            y = grad(y, x, create_graph=True)[0][0, 0]
        return grad(y, x)[0]

    plain = third(lambda x: (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt())
    return third(lambda x: F.batch_norm(x, None, None, training=True)), plain


@report("F46.2", "pytorch#175754")
def third_derivative_of_layer_norm():
    """The third derivative of layer_norm takes the row's statistics for constants.

    The same normalization written with mean and var has the right one.
    """

    def third(f):
        x = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64, requires_grad=True)
        y = f(x)[0]
        for _ in range(2):
            y = grad(y, x, create_graph=True)[0][0]
        return grad(y, x)[0]

    plain = third(lambda x: (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt())
    return third(lambda x: F.layer_norm(x, (3,))), plain


@report("F47.1")
def third_derivative_of_logcumsumexp():
    """The third derivative of logcumsumexp is NaN.

    Its gradient takes logarithms of the positive and of the negative part of a cotangent, one of
    which is 0. Each element of the result is a logsumexp, whose third derivative is right.
    """

    def third(f):
        x = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64, requires_grad=True)
        y = f(x)[2]
        for _ in range(2):
            y = grad(y, x, create_graph=True)[0][0]
        return grad(y, x)[0]

    return third(lambda x: torch.logcumsumexp(x, 0)), third(
        lambda x: torch.stack([torch.logsumexp(x[: i + 1], 0) for i in range(3)])
    )


@report("F47.2")
def third_derivative_of_i1_at_zero():
    """The third derivative of i1 at 0 is 0.

    i1(x) = x/2 + x³/16 + …, so it is 3/8.
    """
    x = y = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    y = torch.special.i1(x)
    for _ in range(3):
        (y,) = grad(y, x, create_graph=True)
    return y, torch.tensor(3 / 8)
