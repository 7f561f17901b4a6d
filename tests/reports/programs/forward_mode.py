"""Tangents and second derivatives through tangents."""

import torch
import torch.nn.functional as F
from torch.func import grad, hessian, jacfwd, jvp, vjp

from tests.reports.report import report


@report("F1.1", "pytorch#192540", "pytorch#196696", torch="<2.15")
def jvp_of_jvp_of_det():
    """jvp(jvp(det)) takes the factors of LU for constants.

    det(A + tI) = (2 + t)(3 + t), whose second derivative is 2.
    """
    A, E = (
        torch.tensor([[2.0, 1.0], [0.0, 3.0]], dtype=torch.float64),
        torch.eye(2, dtype=torch.float64),
    )
    second = jvp(lambda a: jvp(torch.linalg.det, (a,), (E,))[1], (A,), (E,))[1]
    return second, torch.tensor(2.0)


@report("F1.2", "pytorch#192540", torch="<2.15")
def jvp_of_jvp_of_slogdet():
    """jvp(jvp(slogdet)) is 0: the factors of LU count as constants.

    log det(A + tI) = log(2 + t) + log(3 + t), whose second derivative at 0 is -1/4 - 1/9.
    """
    A, E = (
        torch.tensor([[2.0, 1.0], [0.0, 3.0]], dtype=torch.float64),
        torch.eye(2, dtype=torch.float64),
    )
    second = jvp(lambda a: jvp(lambda a: torch.linalg.slogdet(a)[1], (a,), (E,))[1], (A,), (E,))[1]
    return second, torch.tensor(-1 / 4 - 1 / 9)


@report("F1.3", "pytorch#192540", torch="<2.15")
def jvp_of_jvp_of_solve():
    """jvp(jvp(solve)) takes the factors of LU for constants; so do `solve_ex` and `tensorsolve`.

    d²/dt² (A + tI)⁻¹ b at 0 is 2 A⁻³ b.
    """
    A, E = (
        torch.tensor([[2.0, 1.0], [0.0, 3.0]], dtype=torch.float64),
        torch.eye(2, dtype=torch.float64),
    )
    b = torch.ones(2, dtype=torch.float64)
    second = jvp(lambda a: jvp(lambda a: torch.linalg.solve(a, b), (a,), (E,))[1], (A,), (E,))[1]
    return second, 2 * torch.linalg.matrix_power(torch.linalg.inv(A), 3) @ b


@report("F1.4", "pytorch#196698")
def jvp_of_jvp_of_householder_product():
    """jvp(jvp(householder_product)) takes the reflections for constants.

    With the vector (1, t) and tau = 2 / (1 + t²) the first column sums to 1 - 2(1 + t)/(1 + t²).
    Its second derivative is (-4t³ - 12t² + 12t + 4) / (1 + t²)³.
    """

    def f(t):
        vector = torch.stack((torch.ones((), dtype=t.dtype), t)).reshape(2, 1)
        return torch.linalg.householder_product(vector, (2 / (1 + t * t)).reshape(1)).sum()

    t, one = torch.tensor(0.7, dtype=torch.float64), torch.ones((), dtype=torch.float64)
    second = jvp(lambda t: jvp(f, (t,), (one,))[1], (t,), (one,))[1]
    return second, (-4 * t**3 - 12 * t**2 + 12 * t + 4) / (1 + t * t) ** 3


@report("F2.1", "pytorch#196700")
def jvp_of_jvp_of_layer_norm():
    """jvp(jvp(layer_norm)) takes the saved mean and deviation for constants.

    The row (t, 0) with weights 1 and 2 and eps 1/4 sums to -t / sqrt(1 + t²), whose second
    derivative is 3t (1 + t²)^(-5/2)."""

    def f(t):
        row = torch.stack((t, torch.zeros((), dtype=t.dtype)))
        return F.layer_norm(row, (2,), torch.tensor([1.0, 2.0], dtype=t.dtype), eps=0.25).sum()

    t, one = torch.tensor(0.7, dtype=torch.float64), torch.ones((), dtype=torch.float64)
    second = jvp(lambda t: jvp(f, (t,), (one,))[1], (t,), (one,))[1]
    return second, 3 * t * (1 + t * t) ** -2.5


@report("F2.2")
def hessian_of_layer_norm_by_input_and_weight():
    """The mixed block of the hessian of layer_norm takes the saved statistics for constants.

    The sum of weight times normalized input has the mixed derivative that jacfwd gives of the
    normalized input.
    """
    x, weight = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    mixed = hessian(lambda x, w: F.layer_norm(x, (2,), w).sum(), (0, 1))(x, weight)[1][0]
    return mixed, jacfwd(lambda x: F.layer_norm(x, (2,)))(x)


@report("F2.3", "pytorch#196699")
def jvp_of_jvp_of_batch_norm():
    """jvp(jvp(batch_norm)) in training takes the batch's statistics for constants.

    Central differences of the first tangent, which is right, give the second.
    """
    y, v = (
        torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64),
        torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64),
    )

    def first(y):
        return jvp(lambda y: F.batch_norm(y, None, None, training=True), (y,), (v,))[1]

    second = jvp(first, (y,), (v,))[1]
    return second, (first(y + 1e-5 * v) - first(y - 1e-5 * v)) / 2e-5


@report("F4.1", "pytorch#198017")
def jvp_of_cholesky_inverse():
    """The tangent of cholesky_inverse multiplies in the wrong order.

    With A = L Lᵀ the tangent of A⁻¹ is -A⁻¹ (V Lᵀ + L Vᵀ) A⁻¹.
    """
    L = torch.tensor([[2.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    V = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    tangent = jvp(torch.cholesky_inverse, (L,), (V,))[1]
    inverse = torch.linalg.inv(L @ L.T)
    return tangent, -inverse @ (V @ L.T + L @ V.T) @ inverse


@report("F4.2")
def jvp_of_the_gradient_of_a_complex_triangular_solve():
    """The tangent of the gradient of a complex triangular_solve lacks a conjugate.

    Central differences of the gradient give the tangent.
    """
    A = torch.tensor([[1 + 1j, 2], [0, 1]], dtype=torch.complex128)
    b = torch.ones(2, 1, dtype=torch.complex128)
    V = torch.tensor([[0, 1j], [0, 0]], dtype=torch.complex128)

    def gradient(A):
        return vjp(lambda A: torch.triangular_solve(b, A)[0], A)[1](b)[0]

    tangent = jvp(gradient, (A,), (V,))[1]
    return tangent, (gradient(A + 1e-6 * V) - gradient(A - 1e-6 * V)) / 2e-6


@report("F5.1")
def jvp_of_a_custom_op_without_a_tangent_formula():
    """A custom op without a formula for the tangent gets the tangent 0.

    Right is an error, or 2, the tangent of 2x.
    """

    @torch.library.custom_op("reports::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    twice.register_autograd(lambda ctx, g: 2 * g)
    try:
        answer = jvp(twice, (torch.tensor(1.0),), (torch.tensor(1.0),))[1].item()
    except (NotImplementedError, RuntimeError):
        answer = "an error"
    return answer in (2.0, "an error"), True


@report("F12.1")
def jvp_of_a_complex_logcumsumexp():
    """The tangent of a complex logcumsumexp overflows to NaN.

    All elements move by 1, so the result moves by 1; the gradient is right.
    """
    x = torch.tensor([1e4, 0.0], dtype=torch.complex128)
    tangent = jvp(lambda x: torch.logcumsumexp(x, 0), (x,), (torch.ones_like(x),))[1]
    return tangent, torch.ones(2)


@report("F30.1", "pytorch#196701")
def jvp_of_jvp_of_cumprod_at_a_zero_factor():
    """jvp(jvp(cumprod)) is wrong behind a factor 0.

    The products of (t, t - 1, t + 3) are t, t² - t and t³ + 2t² - 3t, with second derivatives
    0, 2 and 6t + 4.
    """

    def f(t):
        return torch.cumprod(torch.stack((t, t - 1, t + 3)), 0)

    t = torch.ones((), dtype=torch.float64)
    second = jvp(lambda t: jvp(f, (t,), (torch.ones_like(t),))[1], (t,), (torch.ones_like(t),))[1]
    return second, torch.tensor([0.0, 2.0, 10.0])


@report("F31.1", "pytorch#197867")
def jvp_of_jvp_of_an_autograd_function():
    """jvp(jvp) of an autograd.Function with a tangent formula is 0.

    The formula is made of torch's operators, so it has a derivative: the second one of x² is 2.
    """

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_forward(*inputs)

        @staticmethod
        def jvp(ctx, v):
            return 2 * ctx.saved_tensors[0] * v

    t = torch.tensor(3.0)
    second = jvp(lambda t: jvp(Square.apply, (t,), (torch.ones(()),))[1], (t,), (torch.ones(()),))[
        1
    ]
    return second, torch.tensor(2.0)


@report("F32.1", "pytorch#192521", torch="<2.15")
def jvp_of_the_gradient_of_det_at_equal_singular_values():
    """jvp(grad(det)) at the identity is NaN.

    The gradient is the cofactor matrix. Of I + tE, with E the unit matrix at (0, 0), it is
    diag(1, 1 + t, 1 + t).
    """
    E = torch.zeros(3, 3, dtype=torch.float64)
    E[0, 0] = 1
    tangent = jvp(grad(torch.linalg.det), (torch.eye(3, dtype=torch.float64),), (E,))[1]
    return tangent, torch.diag(torch.tensor([0.0, 1.0, 1.0]))


@report("F81.1")
def linearize_of_a_function_that_writes_to_a_constant():
    """linearize leaves out a write through a view of a tensor that the function makes.

    It folds into constants what does not depend on the tangent, and drops calls whose result
    nothing uses. The tangent of x · (1, 0) is t · (1, 0).
    """

    def f(x):
        factor = torch.zeros(2)
        factor[0] = 1
        return x * factor

    _, push = torch.func.linearize(f, torch.ones(2))
    return push(torch.ones(2)), torch.tensor([1.0, 0.0])


@report("F81.2")
def linearize_of_singular_vectors():
    """The pushforward of linearize gives NaN for the singular vectors of any matrix.

    It drops the write by which their formula avoids zero divided by zero. The squares of the
    singular vectors of diag(3, 2) have a maximum or a minimum there, so their tangent is
    zero, as jvp says.
    """
    x = torch.diag(torch.tensor([3.0, 2.0]))
    _, push = torch.func.linearize(lambda a: torch.linalg.svd(a)[0].square(), x)
    return push(torch.ones(2, 2)), torch.zeros(2, 2)


@report("F82.1")
def jvp_of_a_product_that_is_written_over_its_factors():
    """The tangent of y.mul_(y) is wrong.

    The formula writes its first part over the tangent of y, and then reads that for the second one.
    The derivative of y² is 2y."""
    x, t = torch.tensor([2.0, 3.0]), torch.ones(2)

    def squared(x):
        y = x.clone()
        return y.mul_(y)

    return jvp(squared, (x,), (t,))[1], 2 * x


@report("F82.2")
def jvp_of_addcmul_over_its_own_factors():
    """The tangent of y.addcmul_(y, y) is wrong.

    The derivative of y + y² is 1 + 2y.
    """
    x, t = torch.tensor([2.0, 3.0]), torch.ones(2)

    def added(x):
        y = x.clone()
        return y.addcmul_(y, y)

    return jvp(added, (x,), (t,))[1], 1 + 2 * x


@report("F82.3")
def jvp_of_atan2_over_its_own_arguments():
    """The tangent of y.atan2_(y) is wrong; so are those of hypot_, pow_, xlogy_, fmod_,
    remainder_ and ldexp_.

    Of a positive y and itself the angle is a constant.
    """
    x, t = torch.tensor([2.0, 3.0]), torch.ones(2)

    def angle(x):
        y = x.clone()
        return y.atan2_(y)

    return jvp(angle, (x,), (t,))[1], torch.zeros(2)


@report("F83")
def jacfwd_by_the_last_argument():
    """jacfwd by the argument -1 is zero.

    No argument gets a tangent. jacrev takes the number, as jacfwd does for 1. The derivative of
    a · b by b is a.
    """
    a, b = torch.tensor([0.5, 1.0]), torch.tensor([2.0, 3.0])
    return torch.func.jacfwd(torch.mul, -1)(a, b), torch.diag(a)


@report("F87.1", "pytorch#196702")
def tangent_of_scatter_reduce_by_product():
    """The tangent of scatter_reduce with "prod" is 0.

    The source element is written to a place of its own, so the derivative of the product is
    that of two numbers.
    """
    x, source, one = torch.tensor([2.0, 3.0]), torch.tensor([5.0]), torch.ones(2)
    tangent = jvp(
        lambda x, s: torch.scatter_reduce(x, 0, torch.tensor([0]), s, "prod"),
        (x, source),
        (one, one[:1]),
    )[1]
    return tangent, torch.tensor([7.0, 1.0])


@report("F11.5")
def tangent_of_a_copy_to_another_dtype():
    """The tangent of copy_ to another dtype has the dtype of the source, and is complex
    where the source is.

    copy_ to a real tensor keeps the real part. The tangent along i has none.
    """
    x = torch.ones(2, dtype=torch.complex64)
    return jvp(lambda x: torch.zeros(2).copy_(x), (x,), (1j * x,))[1], torch.zeros(2)


@report("F208.1", "pytorch#191787", raises="forward gradient that has a different size")
def tangent_of_a_norm_of_all_elements():
    """The tangent of aten::norm.Scalar has as many dimensions as the input, so forward mode raises.

    The norm of all elements has none. torch.linalg.vector_norm gives both.
    """
    x = torch.ones(2, 3)
    return jvp(lambda x: torch.ops.aten.norm.Scalar(x, 2), (x,), (x,))[1], torch.tensor(6**0.5)
