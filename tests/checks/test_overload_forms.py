"""Overloads of the dispatcher: a target whose out=, in-place, number or list form differs from the
plain op fails, and the failure names the overload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gen.outcomes import Mismatch
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case, row_of

Tensor = torch.Tensor
OVERLOADS = {"values": "overloads"}


class Planted(TorchTarget):
    """Torch with one overload replaced."""

    def __init__(self, name: str, fault: Callable[..., Any]) -> None:
        super().__init__()
        self.faulty, self.fault = name, fault

    def overload(self, name: str) -> Callable[..., Any]:
        if name == self.faulty:
            return self.fault
        return super().overload(name)


def assert_forms(target: TorchTarget, op: str, *args: object) -> None:
    cell = case(op, "float64", target, OVERLOADS, ops={op: row_of({"args": list(args)})})
    cell.assert_same("forward", against="eager", values="overloads")


def add_without_resizing(x: Tensor, y: Tensor, *, alpha: Any = 1, out: Tensor) -> Tensor:
    return out.fill_(0) if out.numel() == 0 else torch.add(x, y, alpha=alpha, out=out)


def add_as_if_contiguous(x: Tensor, y: Tensor, *, alpha: Any = 1, out: Tensor) -> Tensor:
    out.resize_(x.shape)
    out.as_strided(out.shape, x.stride()).copy_(torch.add(x, y, alpha=alpha))
    return out


def add_into_another(x: Tensor, y: Tensor, *, alpha: Any = 1, out: Tensor) -> Tensor:
    return torch.add(x, y, alpha=alpha)


def sin_beside_its_view(x: Tensor) -> Tensor:
    whole = x.as_strided((2 * x.numel(),), (1,)) if x.stride(-1) == 2 else x
    whole.sin_()
    return x


def sin_of_the_first(tensors: list[Tensor]) -> list[Tensor]:
    return [tensors[0].sin() for _ in tensors]


def multiply_by_a_float(x: Tensor, number: float) -> Tensor:
    return x * float(torch.tensor(number, dtype=torch.bfloat16))


FAULTS = [
    ("torch.add", "aten::add.out", add_without_resizing),
    ("torch.add", "aten::add.out", add_as_if_contiguous),
    ("torch.add", "aten::add.out", add_into_another),
    ("torch.sin", "aten::sin_", sin_beside_its_view),
    ("torch.sin", "aten::_foreach_sin", sin_of_the_first),
    ("torch.mul", "aten::multiply.Scalar", multiply_by_a_float),
]


@pytest.mark.parametrize(
    ("op", "name", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_fault_in_one_overload_fails_by_its_name(op: str, name: str, fault: Any) -> None:
    x, y = torch.randn(5, dtype=torch.float64), torch.randn((), dtype=torch.float64)
    args = (x,) if op == "torch.sin" else (x, y)
    assert_forms(TorchTarget(), op, *args)
    with pytest.raises(Mismatch, match=rf"{name}\b"):
        assert_forms(Planted(name, fault), op, *args)


def test_a_form_may_refuse_memory_with_gaps_and_no_other() -> None:
    def refuses_gaps(x: Tensor) -> Tensor:
        if not x.is_contiguous():
            raise RuntimeError("input must be contiguous")
        return x.sin()

    def refuses(x: Tensor) -> Tensor:
        raise RuntimeError("not today")

    x = torch.randn(5, dtype=torch.float64)
    assert_forms(Planted("aten::sin", refuses_gaps), "torch.sin", x)
    with pytest.raises(Mismatch, match="aten::sin: RuntimeError: not today"):
        assert_forms(Planted("aten::sin", refuses), "torch.sin", x)


def test_a_program_is_compared_with_its_definition() -> None:
    row = row_of({"args": [torch.randn(5, dtype=torch.float64)]}, reference="torch.cos")
    op = "torch.Tensor.sin"
    cell = case(op, "float64", TorchTarget(), OVERLOADS, ops={op: {**row, "call": "torch.sin"}})
    with pytest.raises(Mismatch, match="largest error"):
        cell.assert_same("forward", against="eager", values="overloads")
