"""Losses."""

import math

import torch
import torch.nn.functional as F
from torch.autograd import grad

from tests.reports.report import report


@report("F43.1", kernel=True)
def soft_margin_loss_of_a_confident_mistake():
    """soft_margin_loss(-100, 1) is infinite.

    log(1 + e¹⁰⁰) is 100. The exponential overflows in float32.
    """
    return F.soft_margin_loss(torch.tensor([-100.0]), torch.tensor([1.0])), torch.tensor(100.0)


@report("F43.2", kernel=True)
def cross_entropy_with_an_impossible_class():
    """cross_entropy with probabilities as target is NaN if a logit is minus infinity and
    its probability 0.

    0 log 0 is 0 by the definition of the cross-entropy. With the class as target the loss is 0.
    """
    x = torch.tensor([[0.0, -math.inf]])
    return F.cross_entropy(x, torch.tensor([[1.0, 0.0]])), F.cross_entropy(x, torch.tensor([0]))


@report("F43.3", kernel=True)
def kl_div_of_equal_distributions():
    """kl_div of a distribution with a probability 0 from itself is NaN.

    The divergence of a distribution from itself is 0.
    """
    p = torch.tensor([1.0, 0.0])
    return F.kl_div(p.log(), p, reduction="sum"), torch.tensor(0.0)


@report("F43.4", kernel=True)
def binary_cross_entropy_of_a_small_probability():
    """binary_cross_entropy(1e-60, 1) in float64 is 100.

    -log(1e-60) is 138.2. The kernel clamps logarithms at -100, which a double reaches at 3.7e-44.
    """
    p = torch.tensor([1e-60], dtype=torch.float64)
    return F.binary_cross_entropy(p, torch.ones(1, dtype=torch.float64)), torch.tensor(
        60 * math.log(10)
    )


@report("F43.5", kernel=True)
def gradient_of_binary_cross_entropy_of_a_small_probability():
    """The gradient of binary_cross_entropy(1e-20, 1) is -1e12.

    It is -1/p = -1e20. The loss itself is right, so loss and gradient belong to two functions.
    """
    p = torch.tensor([1e-20], dtype=torch.float64, requires_grad=True)
    return grad(F.binary_cross_entropy(p, torch.ones(1, dtype=torch.float64)), p)[0], torch.tensor(
        [-1e20]
    )


@report("F43.6", kernel=True)
def smooth_l1_loss_with_a_tiny_beta():
    """smooth_l1_loss with beta 1e-20 of 1e-25 is 0.

    It is x² / 2 beta = 5e-31. The square underflows.
    """
    return F.smooth_l1_loss(torch.tensor([1e-25]), torch.tensor([0.0]), beta=1e-20), torch.tensor(
        5e-31
    )


@report("F43.7", "pytorch#52241", kernel=True)
def gradient_of_ctc_loss():
    """The gradient of ctc_loss is not that of its input.

    It assumes that the input comes from log_softmax, and subtracts what that would subtract.
    Central differences give the right one."""
    x = torch.log_softmax(
        torch.arange(6, dtype=torch.float64).reshape(2, 1, 3).sin(), 2
    ).requires_grad_()

    def loss(x):
        return F.ctc_loss(
            x, torch.tensor([[1]]), torch.tensor([2]), torch.tensor([1]), reduction="sum"
        )

    steps = 1e-6 * torch.eye(6, dtype=torch.float64).reshape(6, 2, 1, 3)
    differences = torch.stack(
        [(loss(x.detach() + h) - loss(x.detach() - h)) / 2e-6 for h in steps]
    ).reshape(2, 1, 3)
    return grad(loss(x), x)[0], differences


@report("F43.8", kernel=True)
def cosine_embedding_loss_of_large_vectors():
    """cosine_embedding_loss of vectors of length 1e20 is NaN.

    It is 1 - cos(45°).
    """
    x, y = torch.tensor([[1e20, 0.0]]), torch.tensor([[1e20, 1e20]])
    return F.cosine_embedding_loss(x, y, torch.ones(1)), torch.tensor(1 - math.sqrt(0.5))
