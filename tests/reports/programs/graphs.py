"""Graphs made ahead of time."""

import torch
import torch.nn.functional as F
from functorch.compile import aot_function, nop
from torch.func import jvp
from torch.fx.experimental.proxy_tensor import make_fx

from tests.reports.report import report


@report("F18.1", raises="must match the size of tensor")
def aot_function_of_cumprod_with_dynamic_sizes():
    """aot_function with dynamic=True fixes a size in the formula of cumprod, and does not check it.

    The formula makes a guard of the size, which nothing evaluates. The first gradient of the
    product of ones is n, n - 1, … 1."""
    f = aot_function(lambda x: torch.cumprod(x, 0), fw_compiler=nop, bw_compiler=nop, dynamic=True)
    gradients = []
    for n in (5, 10):
        x = torch.ones(n, requires_grad=True)
        f(x).sum().backward()
        gradients.append(x.grad)
    return gradients, [torch.arange(n, 0.0, -1) for n in (5, 10)]


@report("F18.2")
def aot_function_of_tensor_split_with_dynamic_sizes():
    """aot_function with dynamic=True cuts a second tensor where it has cut the first.

    Three parts of five numbers have the lengths 2, 2 and 1.
    """
    f = aot_function(lambda x: torch.tensor_split(x, 3), nop, dynamic=True)
    f(torch.arange(10.0))
    return [len(part) for part in f(torch.arange(5.0))], [2, 2, 1]


@report("F72.1")
def aot_function_of_a_complex_pseudo_inverse():
    """aot_function of linalg.pinv gives a wrong pseudo-inverse of a complex matrix.

    The kernel of linalg.pinv is wrong under every dispatch mode: it loses a lazy conjugate. The
    inverse of [[1, i], [0, 1]] is [[1, -i], [0, 1]].
    """
    x = torch.tensor([[1, 1j], [0, 1]])
    return aot_function(torch.linalg.pinv, nop)(x), torch.tensor([[1, -1j], [0, 1]])


@report("F29.1", raises="INTERNAL ASSERT FAILED", torch="<2.14")
def symbolic_trace_of_the_tangent_of_gradient():
    """make_fx with symbolic sizes records a call under jvp that plain tensors do not take.

    gradient, a composite in C++, asks for sizes, which the trace records as a call on a constant.
    Its tangent is gradient of the tangent."""
    x, v = torch.arange(20.0).reshape(4, 5), torch.arange(20.0).reshape(4, 5).sin()

    def tangent(x, v):
        return jvp(lambda x: torch.gradient(x)[0], (x,), (v,))[1]

    return make_fx(tangent, tracing_mode="symbolic")(x, v)(x, v), torch.gradient(v)[0]


@report("F111.1")
def aot_function_of_multilabel_margin_loss_with_padded_targets():
    """In aot_function multilabel_margin_loss adds margins of the targets after the first -1.

    The decomposition reads them as class 0. Class 2 is the only target, and the two others are less
    than 1 below it by 1 each: 2 / 3."""
    x, targets = torch.zeros(3), torch.tensor([2, -1, 0])
    return aot_function(F.multilabel_margin_loss, nop)(x, targets), torch.tensor(2 / 3)


@report("F96.3", "pytorch#175154", "pytorch#198201")
def aot_function_of_interpolate_by_a_factor_that_keeps_the_size():
    """In aot_function interpolate by nearest resamples a dimension of an image whose size stays.

    1.3 times 2 is 2 elements, and eager keeps both. The decomposition divides the index by 1.3, and
    takes the first one twice."""
    x = torch.tensor([[[[1.0, 2.0]]]])
    return aot_function(lambda x: F.interpolate(x, scale_factor=1.3, mode="nearest"), nop)(x), x
