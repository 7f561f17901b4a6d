"""Modules, optimizers and nested tensors."""

import torch
from torch import nn

from tests.reports.report import report


@report("F88.1", "pytorch#191763", kernel=True, torch="<2.14")
def fused_step_in_half_precision():
    """SGD with fused=True leaves parameters of bfloat16 and float16 as they are.

    A step of 0.5 along a gradient of ones takes ones to halves. Of a longer parameter only the rest
    moves that fills no vector register."""
    p = torch.ones(64, dtype=torch.bfloat16, requires_grad=True)
    p.grad = torch.ones(64, dtype=torch.bfloat16)
    torch.optim.SGD([p], lr=0.5, fused=True).step()
    return p.detach(), torch.full((64,), 0.5, dtype=torch.bfloat16)


@report("F89.1", "pytorch#118628", kernel=True)
def encoder_layer_with_a_mask_of_numbers():
    """TransformerEncoderLayer in eval mode without gradients takes a mask of numbers for
    one of booleans.

    The numbers are added to the scores, and 1 is not minus infinity. With gradients it does so.
    """
    layer, x = (
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(),
        torch.arange(12.0).reshape(1, 3, 4).sin(),
    )
    mask = torch.eye(3)
    with torch.no_grad():
        fast = layer(x, src_mask=mask)
    return fast, layer(x, src_mask=mask).detach()


@report("F89.2", "pytorch#190486", kernel=True)
def encoder_rows_that_see_nothing():
    """TransformerEncoderLayer in eval mode without gradients is NaN for a row that sees no key.

    With gradients its attention is 0, and so is that of scaled_dot_product_attention.
    """
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    x, mask = torch.randn(1, 3, 4), torch.arange(3)[:, None].eq(1).expand(3, 3)
    with torch.no_grad():
        fast = layer(x, src_mask=mask)
    return fast.isnan().any(), layer(x, src_mask=mask).isnan().any()


@report("F90.1", "pytorch#196708", kernel=True, runtime="it refuses tensors of the jagged layout")
def parts_of_a_narrowed_nested_tensor():
    """unbind of a jagged tensor that torch.nested.narrow made reads the parts from wrong places.

    It takes the lengths from 2 and 1 for the distance between the parts. The second part starts at
    the second element of its row."""
    x = torch.arange(4.0).reshape(2, 2)
    narrowed = torch.nested.narrow(
        x, 1, torch.tensor([0, 1]), torch.tensor([2, 1]), layout=torch.jagged
    )
    return list(narrowed.unbind()), [torch.tensor([0.0, 1.0]), torch.tensor([3.0])]


@report("F90.2", kernel=True, runtime="it refuses tensors of the jagged layout")
def gradient_of_softmax_along_the_ragged_dimension():
    """The gradient of softmax along the ragged dimension of a jagged tensor is that
    along another one.

    Each part is a tensor, whose softmax along its first dimension has the gradient that is right.
    """
    parts = [torch.arange(6.0).reshape(2, 3).sin(), torch.arange(3.0).reshape(1, 3)]
    leaves, others = (
        [p.clone().requires_grad_() for p in parts],
        [p.clone().requires_grad_() for p in parts],
    )
    out = torch.nested.as_nested_tensor(leaves, layout=torch.jagged).softmax(1)
    sum((part * parts[0][0]).square().sum() for part in out.unbind()).backward()
    sum((part.softmax(0) * parts[0][0]).square().sum() for part in others).backward()
    return [leaf.grad for leaf in leaves], [other.grad for other in others]
