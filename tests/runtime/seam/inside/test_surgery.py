"""Exchanges inside a tensor object: every reference to it stays valid and shows the change.

Inside: ``runtime.seam.surgery`` and ``rewrapped``. Ops in place use them one after the other, so
that a program shows the sum and not which step moved what."""

from typing import Any

import pytest
import torch

import runtime
from runtime.func import grad, vmap
from runtime.rules.ops import op_of
from runtime.seam.containers import rewrapped
from runtime.seam.surgery import GEOMETRY, detach_inner, exchange, refit


def test_refit_shows_the_other_tensor_and_keeps_the_version_counter() -> None:
    v, fresh = runtime.wrap(torch.zeros(2, 3)), runtime.wrap(torch.ones(6)[1:])
    v.add_(1)
    version = v._version
    refit(v, fresh)
    assert v.shape == (5,) and v.storage_offset() == 1 and v.data_ptr() == fresh.data_ptr()
    assert v._version == version != fresh._version


def test_exchange_moves_class_memory_and_attributes_and_leaves_identities() -> None:
    plain: Any = torch.zeros(2)
    value = runtime.wrap(torch.ones(3), requires_grad=True)
    plain.note, names = "mine", (id(plain), id(value))
    exchange(plain, value)
    assert (id(plain), id(value)) == names
    assert (
        type(plain) is runtime.Tensor and plain.requires_grad and plain.tolist() == [1.0, 1.0, 1.0]
    )
    assert type(value) is torch.Tensor and value.tolist() == [0.0, 0.0] and value.note == "mine"  # type: ignore[attr-defined]


def test_detach_inner_reaches_the_outer_levels() -> None:
    def f(x: Any) -> Any:
        y = x * x
        detach_inner(y)
        return y.sum() + x.sum()

    assert grad(lambda x: vmap(f)(x).sum())(torch.ones(2, 2)).tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("name", sorted(GEOMETRY))
def test_each_of_them_changes_sizes_and_strides_alone(name: str) -> None:
    op = op_of(
        next(
            getattr(getattr(torch.ops.aten, name), o)
            for o in getattr(torch.ops.aten, name).overloads()
        )
    )
    assert op.functional is not None
    arguments = {
        "transpose_": (0, 1),
        "swapaxes_": (0, 1),
        "swapdims_": (0, 1),
        "unsqueeze_": (0,),
        "as_strided_": ((3, 2), (1, 3)),
    }
    x, expected = runtime.wrap(torch.arange(6.0).view(2, 3)), torch.arange(6.0).view(2, 3)
    given = arguments.get(name, ())
    place, same = x.data_ptr(), getattr(x, name)(*given)
    shown = getattr(expected, name)(*given)
    assert same is x and x.data_ptr() == place
    assert x.shape == shown.shape and x.stride() == shown.stride() and torch.equal(x._inner, shown)


def test_rewrapped_takes_one_result_or_several() -> None:
    def number(t: torch.Tensor, i: int | None) -> Any:
        return i

    t = torch.zeros(2)
    assert rewrapped(t, number) is None and rewrapped(3, number) == 3
    assert rewrapped([t, None, t], number) == [0, None, 2]
    named = rewrapped(torch.zeros(2, 2).sort(), number)
    assert type(named) is tuple and named == (0, 1)
