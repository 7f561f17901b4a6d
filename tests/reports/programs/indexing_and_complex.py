"""Scatters, complex numbers and half precision."""

import torch
import torch.nn.functional as F
from torch.autograd import grad
from torch.autograd.functional import hessian as plain_hessian
from torch.func import hessian

from tests.reports.report import report


@report("F54.1")
def hessian_of_a_product_by_scatter_reduce():
    """torch.func.hessian of scatter_reduce(reduce="prod") is wrong.

    The tangent of its gradient takes the result for a constant. 2 a b has the mixed derivative
    2, and no other.
    """

    def product(source):
        return (
            torch.full((1,), 2.0, dtype=torch.float64)
            .scatter_reduce(0, torch.tensor([0, 0]), source, "prod")
            .sum()
        )

    return hessian(product)(torch.tensor([3.0, 5.0], dtype=torch.float64)), torch.tensor(
        [[0.0, 2.0], [2.0, 0.0]]
    )


@report("F55.1", "pytorch#193012", rtol=2e-3)
def plain_hessian_of_atan2_in_half_precision():
    """torch.autograd.functional.hessian of atan2 in float16 is NaN at (0.004, 0.004).

    Its elements are about -31200, 0 and 31200, which float16 holds. The second derivative by y is
    -2xy / (x² + y²)²."""
    a = torch.tensor([4e-3, 4e-3], dtype=torch.float16)
    return plain_hessian(lambda a: torch.atan2(a[0], a[1]), a)[0, 0], -0.5 / a[0].double() ** 2


@report("F55.2", kernel=True)
def mse_loss_in_half_precision():
    """mse_loss of (300, 0, 0, 0) in float16 is infinite.

    The mean of the squares is 22500, which float16 holds. The first square does not fit.
    """
    x = torch.tensor([300.0, 0.0, 0.0, 0.0], dtype=torch.float16)
    return F.mse_loss(x, torch.zeros_like(x)), torch.tensor(22500.0)


@report("F56.1", kernel=True)
def complex_power_of_zero():
    """0 to the complex power 0 is NaN.

    It is 1 for real numbers, for the complex number 0j to the Python power 0, and in Python.
    """
    return torch.pow(
        torch.zeros(1, dtype=torch.complex64), torch.zeros(1, dtype=torch.complex64)
    ), torch.ones(1)


@report("F56.2")
def gradient_of_the_angle_of_a_tiny_number():
    """The gradient of angle at 1e-30j is NaN.

    A step to the right turns the angle by -1e30.
    """
    z = torch.tensor(1e-30j, dtype=torch.complex64, requires_grad=True)
    return grad(torch.angle(z), z)[0], torch.tensor(-1e30)


@report("F57.1", "pytorch#41508", "pytorch#160064", kernel=True)
def attention_with_all_keys_masked():
    """MultiheadAttention that returns weights is NaN if all keys are masked.

    Without the weights the same module returns its bias, since there is nothing to attend to.
    """
    torch.manual_seed(0)
    module, x = torch.nn.MultiheadAttention(4, 1, batch_first=True), torch.randn(1, 2, 4)
    mask = torch.tensor([[True, True]])
    return module(x, x, x, key_padding_mask=mask)[0], module(
        x, x, x, key_padding_mask=mask, need_weights=False
    )[0]


@report("F54.2", kernel=True)
def take_along_dim_of_an_index_out_of_range():
    """take_along_dim takes -4 for the last of three elements.

    Only -3 to 2 are indices of three elements. gather, and indexing by a tensor, refuse -4.
    """
    try:
        answer = torch.take_along_dim(torch.arange(3.0), torch.tensor([-4]), 0).item()
    except (IndexError, RuntimeError):
        answer = "an error"
    return answer, "an error"
