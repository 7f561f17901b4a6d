"""The digest by which two runs are compared whose cells all pass."""

from typing import Any

import pytest
import torch

from gen.checks.compare import Seen
from gen.checks.tables import DTYPES


def digest(*outputs: Any) -> str:
    seen = Seen()
    seen.values(outputs)
    return seen.digest


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_values_of_each_dtype_have_a_digest(dtype: str) -> None:
    kind = getattr(torch, dtype)
    one, zero = torch.ones(3, dtype=kind), torch.zeros(3, dtype=kind)
    assert digest(one) == digest(one.clone()) != digest(zero)
    assert digest(one) != digest(torch.ones(3, 1, dtype=kind))


@pytest.mark.parametrize(
    "same",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: x.conj().resolve_conj().conj(),
        lambda x: (-x).neg(),
        lambda x: torch.nn.Parameter(x),
        lambda x: x.to_sparse(),
    ],
)
def test_what_holds_the_values_does_not_matter(same: Any) -> None:
    x = torch.tensor([[1 + 2j, 0], [3, 4j]])
    assert digest(same(x)) == digest(x)


@pytest.mark.parametrize("shape", [(), (0,), (0, 2), (1,), (1, 1)])
def test_tensors_of_few_elements_have_one_whatever_their_strides(shape: Any) -> None:
    x = torch.ones(shape, dtype=torch.int32)
    assert digest(x.as_strided(shape, (0,) * len(shape))) == digest(x) != ""
    assert digest(x.as_strided(shape, (2,) * len(shape))) == digest(x)


def test_nans_are_one_and_signs_of_zeros_are_two() -> None:
    nan = torch.tensor([torch.nan])
    assert digest(nan) == digest(-nan) != digest(torch.tensor([torch.inf]))
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))


def test_there_is_none_of_nothing_and_the_order_counts() -> None:
    assert digest() == digest(torch.empty(2, device="meta")) == ""
    one, two = torch.ones(1), torch.zeros(1)
    assert digest(one, two) != digest(two, one)


def test_the_first_refusal_is_kept_without_its_numbers() -> None:
    seen = Seen()
    seen.refused(RuntimeError("a size of 3 is too large"))
    seen.refused(ValueError("no"))
    assert seen.refusal == "RuntimeError: is too large"
