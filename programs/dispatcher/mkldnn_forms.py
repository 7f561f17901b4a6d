"""Tensors in the layout of oneDNN, and its layers, beside the plain ones."""

from __future__ import annotations

import torch

Tensor = torch.Tensor
_aten = torch.ops.aten


def blocked_shapes(x: Tensor) -> list[Tensor]:
    """Return a matrix that was turned and reshaped in oneDNN's layout. x (4, 6)."""
    m = _aten.to_mkldnn.default(x)
    return [
        m.to_dense(),
        _aten._mkldnn_reshape.default(m, [2, 12]).to_dense(),
        _aten._mkldnn_transpose.default(m, 0, 1).to_dense(),
        _aten.to_mkldnn_backward.default(m, x),
    ]


def blocked_shapes_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same of Python's lists."""
    flat = [value for row in x.tolist() for value in row]
    turned = torch.tensor([list(column) for column in zip(*x.tolist(), strict=True)])
    return [x, torch.tensor([flat[:12], flat[12:]]), turned, x]


def blocked_pools(x: Tensor) -> list[Tensor]:
    """Return pools of images in oneDNN's layout, and a gradient. x (1, 2, 4, 4)."""
    m = _aten.to_mkldnn.default(x)
    volume = _aten.to_mkldnn.default(x[:, :, None].expand(1, 2, 2, 4, 4).contiguous())
    averaged = _aten.mkldnn_adaptive_avg_pool2d.default(m, [2, 2])
    largest = _aten.mkldnn_max_pool2d.default(m, [2, 2], [2, 2])
    deep = _aten.mkldnn_max_pool3d.default(volume, [2, 2, 2], [2, 2, 2])
    one = _aten.to_mkldnn.default(x.new_ones(1, 2, 2, 2))
    return [
        averaged.to_dense(),
        largest.to_dense(),
        deep.to_dense(),
        _aten.mkldnn_adaptive_avg_pool2d_backward.default(one, m).to_dense(),
    ]


def blocked_pools_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same of blocks of four elements."""
    blocks = x.reshape(1, 2, 2, 2, 2, 2)
    high = blocks.amax((3, 5), keepdim=True)
    high = high.reshape(1, 2, 2, 2)
    return [blocks.mean((3, 5)), high, high[:, :, None], torch.full_like(x, 0.25)]


def blocked_layers(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """Return a linear layer of oneDNN and its gradients. x (3, 4), weight (2, 4), bias (2,)."""
    m, w = _aten.to_mkldnn.default(x), _aten.to_mkldnn.default(weight)
    one = _aten.to_mkldnn.default(x.new_ones(3, 2))
    slopes = _aten.mkldnn_linear_backward_weights.default(one, m, weight, True)
    every = _aten.mkldnn_linear_backward.default(m, one, weight, [True, True, True])
    found = [
        _aten.mkldnn_linear.default(m, w, _aten.to_mkldnn.default(bias)),
        _aten.mkldnn_linear_backward_input.default([3, 4], one, weight),
        *slopes,
        *every,
    ]
    return [one.to_dense() for one in found]


def blocked_layers_by_definition(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """Return the same by sums of products."""
    result = torch.einsum("ni,oi->no", x, weight) + bias
    of_input = weight.sum(0).expand(3, 4).clone()
    of_weight, of_bias = x.sum(0).expand(2, 4).clone(), torch.full_like(bias, 3)
    return [result, of_input, of_weight, of_bias, of_input, of_weight, of_bias]


def blocked_filters(x: Tensor, weight: Tensor) -> list[Tensor]:
    """Return filters in the order of oneDNN, and a convolution. x (1, 2, 4, 4)."""
    two = _aten.mkldnn_reorder_conv2d_weight.default(_aten.to_mkldnn.default(weight))
    three = _aten.mkldnn_reorder_conv3d_weight.default(_aten.to_mkldnn.default(weight[:, :, None]))
    shifts = [[1, 1], [1, 1], [1, 1]]
    plain = _aten.mkldnn_convolution.default(x, weight, None, *shifts, 1)
    return [two.to_dense(), three.to_dense()[:, :, 0], plain]


def blocked_filters_by_definition(x: Tensor, weight: Tensor) -> list[Tensor]:
    """Return the same by a sum over places of the filter."""
    wide = x.new_zeros(1, 2, 6, 6)
    wide[..., 1:5, 1:5] = x
    result = x.new_zeros(1, 3, 4, 4)
    for i in range(3):
        for j in range(3):
            part = wide[..., i : i + 4, j : j + 4]
            result += torch.einsum("nchw,oc->nohw", part, weight[..., i, j])
    return [weight, weight, result]
