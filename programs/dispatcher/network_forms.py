"""Layers by the overloads behind their fronts: norms, embeddings, recurrence, filters."""

from __future__ import annotations

import torch

Tensor = torch.Tensor
_aten = torch.ops.aten


def batch_statistics(x: Tensor) -> list[Tensor]:
    """Return running statistics of a batch, and what is normalized by them. x (4, 3)."""
    mean, var = x.new_zeros(3), x.new_ones(3)
    one, nothing = x.new_ones(3), x.new_zeros(3)
    new_mean, new_var = mean.clone(), var.clone()
    plain = _aten._native_batch_norm_legit_no_training.default(x, one, nothing, mean, var, 0.1, 0.0)
    found = _aten.batch_norm_update_stats.default(x, new_mean, new_var, 0.5)
    functional = _aten._batch_norm_with_update_functional.default(
        x, one, nothing, mean, var, 0.5, 0.0
    )
    silent = _aten._batch_norm_no_update.default(x, one, nothing, mean, var, 0.5, 0.0)
    return [plain[0], *found, new_mean, new_var, functional[0], *functional[4:], silent[0]]


def batch_statistics_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same by means over the batch."""
    mean = sum(x) / 4
    var = sum((row - mean) ** 2 for row in x) / 4
    moved = [0.5 * mean, 0.5 + 0.5 * var * 4 / 3]
    scaled = (x - mean) / var.sqrt()
    return [x, mean, var, *moved, scaled, *moved, x]


def embeddings(x: Tensor) -> list[Tensor]:
    """Return sums of rows of a table, and rows of a limited norm. x (4, 3)."""
    chosen, offsets = torch.tensor([1, 2, 2, 0]), torch.tensor([0, 3])
    bag = _aten.embedding_bag.default(x, chosen, offsets)
    padded = _aten.embedding_bag.padding_idx(x, chosen, offsets, False, 0, False, None, False, 2)
    limited = _aten.embedding_renorm.default(x, torch.tensor([1, 3]), 0.5, 2.0)
    in_place = _aten.embedding_renorm_.default(x.clone(), torch.tensor([1, 3]), 0.5, 2.0)
    slope = _aten.embedding_backward.default(x, chosen, 4, -1, False, False)
    thin = _aten.embedding_sparse_backward.default(x, chosen, 4, -1, False).to_dense()
    return [bag[0], padded[0], limited, in_place, slope, thin]


def embeddings_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same row by row."""
    limited = x.clone()
    for row in (1, 3):
        norm = (x[row] * x[row]).sum().sqrt()
        if norm > 0.5:
            limited[row] = x[row] * 0.5 / (norm + 1e-7)
    slope = torch.stack([x[3], x[0], x[1] + x[2], torch.zeros_like(x[0])])
    first = torch.stack([x[1] + 2 * x[2], x[0]])
    return [first, torch.stack([x[1], x[0]]), limited, limited, slope, slope]


def recurrence(x: Tensor, weight: Tensor, inner: Tensor) -> list[Tensor]:
    """Return a recurrence over a packed sequence. x (4, 2, 3): steps, batch, features."""
    packed, sizes = _aten._pack_padded_sequence.default(x, torch.tensor([4, 2]), False)
    start, parameters = x.new_zeros(1, 2, 3), [weight, inner]
    options = (False, 1, 0.0, False, False)
    tanh = _aten.rnn_tanh.data(packed, sizes, start, parameters, *options)
    rectified = _aten.rnn_relu.data(packed, sizes, start, parameters, *options)
    return [packed, sizes, *tanh, *rectified]


def recurrence_by_definition(x: Tensor, weight: Tensor, inner: Tensor) -> list[Tensor]:
    """Return the same step by step, for each sequence alone."""
    steps = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0)]
    packed = torch.stack([x[t, n] for t, n in steps])
    results: list[Tensor] = []
    for bend in (torch.tanh, torch.relu):
        states: dict[int, Tensor] = {}
        rows = []
        for t, n in steps:
            before = states.get(n, x.new_zeros(3))
            states[n] = bend(weight @ x[t, n] + inner @ before)
            rows.append(states[n])
        results += [torch.stack(rows), torch.stack([states[0], states[1]])[None]]
    return [packed, torch.tensor([2, 2, 1, 1]), *results]


def masked_rows(x: Tensor) -> list[Tensor]:
    """Return softmax of rows where a mask shows them, and slopes of kernels. x (3, 4)."""
    hidden = x < x.mean()
    hidden[:, 0] = False
    shares = _aten._masked_softmax.default(x, hidden, 1, 2)
    slope = _aten._masked_softmax_backward.default(torch.ones_like(x), shares, hidden, 1)
    inner = _aten.infinitely_differentiable_gelu_backward.default(torch.ones_like(x), x)
    noise = torch.full_like(x, 0.5)
    bent = _aten.rrelu_with_noise.default(x, noise, 0.25, 0.25, False)
    functional = _aten.rrelu_with_noise_functional.default(x, noise, 0.25, 0.25, False)
    split = _aten._euclidean_dist.default(x, x + 1)
    thin = _aten._trilinear.default(x, x, x, [], [], [], [1])
    return [shares, slope, inner, bent, functional[0], split, thin]


def masked_rows_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same by formulas."""
    hidden = x < x.mean()
    hidden[:, 0] = False
    powers = torch.where(hidden, torch.zeros_like(x), x.exp())
    shares = powers / powers.sum(1, keepdim=True)
    normal = torch.distributions.Normal(0.0, 1.0)
    inner = normal.cdf(x) + x * normal.log_prob(x).exp()
    bent = torch.where(x < 0, x / 4, x)
    apart = torch.stack([((row - (x + 1)) ** 2).sum(1).sqrt() for row in x])
    return [shares, torch.zeros_like(x), inner, bent, bent, apart, (x**3).sum(1)]


def thick_filters(x: Tensor, weight: Tensor) -> list[Tensor]:
    """Return convolutions by each kernel for the CPU. x (1, 2, 4, 4), weight (3, 2, 3, 3)."""
    deep, deep_weight = x[:, :, None], weight[:, :, None]
    ones, zeros = [1, 1], [0, 0]
    turned = weight.transpose(0, 1).contiguous()
    return [
        _aten._slow_conv2d_forward.default(x, weight, [3, 3], None, ones, ones),
        _aten.slow_conv_dilated2d.default(x, weight, [3, 3], None, ones, ones, ones),
        _aten.slow_conv_transpose2d.default(x, turned.flip(-1, -2), [3, 3], None, ones, ones),
        _aten.thnn_conv2d.default(x, weight, [3, 3], None, ones, ones),
        _aten.slow_conv3d.default(
            deep, deep_weight, [1, 3, 3], None, [1, 1, 1], [0, 1, 1]
        )[:, :, 0],
        _aten.slow_conv_dilated3d.default(
            deep, deep_weight, [1, 3, 3], None, [1, 1, 1], [0, 1, 1], [1, 1, 1]
        )[:, :, 0],
        _aten.slow_conv_transpose3d.default(
            deep, turned.flip(-1, -2)[:, :, None], [1, 3, 3], None, [1, 1, 1], [0, 1, 1]
        )[:, :, 0],
        _aten.convolution.default(x, weight, None, ones, ones, ones, False, zeros, 1),
        _aten._convolution.default(
            x, weight, None, ones, ones, ones, False, zeros, 1, False, False, True, True
        ),
    ]  # fmt: skip


def thick_filters_by_definition(x: Tensor, weight: Tensor) -> list[Tensor]:
    """Return the sum over places of the filter as often."""
    wide = x.new_zeros(1, 2, 6, 6)
    wide[..., 1:5, 1:5] = x
    result = x.new_zeros(1, 3, 4, 4)
    for i in range(3):
        for j in range(3):
            part = wide[..., i : i + 4, j : j + 4]
            result += torch.einsum("nchw,oc->nohw", part, weight[..., i, j])
    return [result] * 9


def jagged_rows(x: Tensor) -> list[Tensor]:
    """Return nested tensors of two rows, made and padded by each op. x (2, 3)."""
    lengths = torch.tensor([[2], [3]])
    nested = _aten._nested_from_padded.default(x, lengths)
    padded = _aten.to_padded_tensor.default(nested, -1.0)
    front = _aten.nested_to_padded_tensor.default(nested, -1.0)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    by_mask = _aten._nested_tensor_from_mask.default(x[..., None], mask)
    fits = _aten._nested_tensor_from_mask_left_aligned.default(x[..., None], mask)
    like = _aten._nested_from_padded_and_nested_example.default(x, nested)
    listed = _aten._nested_tensor_from_tensor_list.default([x[0, :2], x[1]])
    values = torch.cat([x[0, :2], x[1]])[:, None]
    offsets = torch.tensor([0, 2, 5])
    dense = _aten._jagged_to_padded_dense_forward.default(values, [offsets], [3], -1.0)
    flat = _aten._padded_dense_to_jagged_forward.default(dense, [offsets], 5)
    sizes = [
        _aten._nested_tensor_size.default(nested),
        _aten._nested_tensor_strides.default(nested),
        _aten._nested_tensor_storage_offsets.default(nested),
    ]
    pads = [one.to_padded_tensor(-1.0) for one in (like, listed)]
    rows = by_mask.to_padded_tensor(-1.0)
    return [padded, front, rows, torch.tensor(fits), *pads, dense, flat, *sizes]


def jagged_rows_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same with a number in the place of what a row lacks."""
    padded = x.clone()
    padded[0, 2] = -1
    values = torch.tensor([*x.tolist()[0][:2], *x.tolist()[1]], dtype=x.dtype)[:, None]
    sizes = [torch.tensor([[2], [3]]), torch.tensor([[1], [1]]), torch.tensor([0, 2])]
    return [
        padded, padded, padded[..., None], torch.tensor(True), padded, padded, padded[..., None],
        values, *sizes,
    ]  # fmt: skip
