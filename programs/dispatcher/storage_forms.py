"""Sizes, storages and facts of tensors, beside what Python says of them."""

from __future__ import annotations

import torch

Tensor = torch.Tensor
_aten = torch.ops.aten


def resized(x: Tensor) -> list[Tensor]:
    """Return tensors whose sizes or memory were set anew. x (3, 4)."""
    storage = x.clone().untyped_storage()
    empty = x.new_empty(0)
    return [
        _aten.set_.default(x.clone()),
        _aten.set_.source_Tensor(x.new_empty(0), x),
        _aten.set_.source_Storage(x.new_empty(0), storage),
        _aten.set_.source_Storage_storage_offset(x.new_empty(0), storage, 1, [2, 2], [3, 1]),
        _aten.set_.source_Tensor_storage_offset(x.new_empty(0), x.clone(), 1, [2, 2], [3, 1]),
        _aten.set.default(x.clone()),
        _aten.set.source_Tensor(empty, x),
        _aten.set.source_Storage(empty, storage),
        _aten.set.source_Storage_storage_offset(empty, storage, 1, [2, 2], [3, 1]),
        _aten.resize.default(x, [2, 6]),
        _aten.resize_.default(x.clone(), [2, 6]),
        _aten.resize_as.default(x, x.reshape(6, 2)),
        _aten.resize_as_.default(x.clone(), x.reshape(6, 2)),
        _aten.squeeze_.default(x.clone()[None]),
        _aten.squeeze_.dim(x.clone()[None], 0),
        _aten.swapaxes_.default(x.clone(), 0, 1),
        _aten.swapdims_.default(x.clone(), 0, 1),
        _aten.swapaxes.default(x, 0, 1),
        _aten.lift.default(x),
        _aten.lift_fresh_copy.default(x),
        _aten._to_cpu.default([x])[0],
        _aten.data.default(x),
        _aten.copy.default(x * 0, x),
        _aten._to_copy.default(x),
        _aten._lazy_clone.default(x),
    ]


def resized_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same by Python's lists."""
    flat = [value for row in x.tolist() for value in row]

    def made(values: object) -> Tensor:
        return torch.tensor(values, dtype=x.dtype)

    corner = made([flat[1:3], flat[4:6]])
    wide, tall = made([flat[:6], flat[6:]]), made([flat[k : k + 2] for k in range(0, 12, 2)])
    turned = made([list(column) for column in zip(*x.tolist(), strict=True)])
    setting = [made([]), x, made(flat), corner, corner]
    return [
        *setting, *setting[:4], wide, wide, tall, tall, x, x, turned, turned, turned, *[x] * 7,
    ]  # fmt: skip


def facts(x: Tensor) -> list[Tensor]:
    """Return what the dispatcher says of a tensor. x (3, 4)."""
    z, single = torch.complex(x, x), torch.ones(1)
    answers = [
        _aten.dim.default(x),
        _aten.size.int(x, 1),
        _aten.stride.int(x, 0),
        _aten.storage_offset.default(x[1:]),
        _aten.sym_storage_offset.default(x[1:]),
        _aten.is_contiguous.default(x),
        _aten.is_contiguous.memory_format(x[None], torch.channels_last),
        _aten.sym_is_contiguous.default(x),
        _aten.is_floating_point.default(x),
        _aten.is_complex.default(z),
        _aten.is_conj.default(z.conj()),
        _aten.is_neg.default(z.conj().imag),
        _aten.is_signed.default(x),
        _aten.is_inference.default(x),
        _aten.is_leaf.default(x),
        _aten.is_distributed.default(x),
        _aten.is_set_to.default(x, x.view_as(x)),
        _aten.is_same_size.default(x, x.T),
        _aten.output_nr.default(x),
        _aten.retains_grad.default(x),
        _aten.get_device.default(x),
        _aten._is_zerotensor.default(x),
        _aten._version.default(x.clone().mul_(2)),
        _aten.result_type.Scalar_Scalar(1, 2.5) == _aten.result_type.Tensor(single, single),
        _aten.can_cast.default(torch.float32, torch.int64),
    ]
    _aten._assert_async.default(x.new_ones(()))
    _aten._functional_assert_async.msg(x.new_ones(()), "no", x.new_empty(0))
    with torch.enable_grad():
        _aten.retain_grad.default(x.clone().requires_grad_() * 1)
    grown = _aten.requires_grad_.default(x.clone())
    return [torch.tensor(answer) for answer in (*answers, grown.requires_grad)]


def facts_by_definition(x: Tensor) -> list[Tensor]:
    """Return the answers for a matrix of 3 × 4 real numbers."""
    answers = [
        2, 4, 4, 4, 4, True, False, True, True, True, True, True, True, False, True, False, True,
        False, 0, False, -1, False, 1, True, False, True,
    ]  # fmt: skip
    return [torch.tensor(answer) for answer in answers]
