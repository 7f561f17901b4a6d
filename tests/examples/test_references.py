"""The scalar references of the example ops, compared with values computed by hand."""

import math

import pytest
import torch
from torch import Tensor

from examples import ops, reference
from programs.third_party import ops as third_party
from programs.third_party import reference as third_party_reference


def exact(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


HAND_COMPUTED = [
    ("squared_relu", (exact([-2.0, 0.0, 3.0]),), {}, exact([0.0, 0.0, 9.0])),
    ("soft_threshold", (exact([-2.0, 0.25, 3.0]),), {"threshold": 0.5}, exact([-1.5, 0.0, 2.5])),
    (
        "rms_norm",
        (exact([[3.0, 4.0]]), exact([1.0, 2.0])),
        {"eps": 0.0},
        exact([[3 / math.sqrt(12.5), 8 / math.sqrt(12.5)]]),
    ),
    ("geglu", (exact([2.0]), exact([0.0])), {}, exact([0.0])),
    ("rotary", (exact([[1.0, 0.0]]), exact([[math.pi / 2]])), {}, exact([[0.0, 1.0]])),
    (
        "squared_distances",
        (exact([[0.0, 0.0]]), exact([[3.0, 4.0], [1.0, 0.0]])),
        {},
        exact([[25.0, 1.0]]),
    ),
    (
        "smoothed_cross_entropy",
        (exact([[0.0, 0.0]]), torch.tensor([1])),
        {"smoothing": 0.5},
        exact(math.log(2)),
    ),
    ("moving_average", (exact([1.0, 0.0, 4.0]),), {"decay": 0.5}, exact([0.5, 0.25, 2.125])),
]


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "expected"), HAND_COMPUTED, ids=[row[0] for row in HAND_COMPUTED]
)
def test_a_reference_gives_the_value_worked_out_by_hand(
    name: str, args: tuple[Tensor, ...], kwargs: dict[str, float], expected: Tensor
) -> None:
    torch.testing.assert_close(getattr(reference, name)(*args, **kwargs), expected)


def test_every_example_op_has_a_hand_computed_row() -> None:
    defined = {
        name
        for name, value in vars(ops).items()
        if callable(value) and value.__module__ == ops.__name__
    }
    assert defined == {row[0] for row in HAND_COMPUTED}


def test_the_references_of_the_custom_ops_give_the_values_worked_out_by_hand() -> None:
    torch.testing.assert_close(
        third_party_reference.shift_scale(exact([1.0]), exact([2.0]), 3.0), exact([9.0])
    )
    torch.testing.assert_close(
        third_party_reference.log_cosh(exact([0.0, math.log(2)])), exact([0.0, math.log(1.25)])
    )


def test_rms_norm_names_the_sizes_that_disagree() -> None:
    with pytest.raises(ValueError, match="the last dimension of x is 7, but weight has 8 entries"):
        ops.rms_norm(torch.ones(4, 7), torch.ones(8))


def test_the_opaque_custom_op_has_the_gradient_of_its_formula() -> None:
    x, shift = exact([1.0, -2.0]).requires_grad_(), exact([0.5, 0.5]).requires_grad_()
    third_party.shift_scale(x, shift, 3.0).sum().backward()
    assert x.grad is not None and shift.grad is not None
    torch.testing.assert_close((x.grad, shift.grad), (exact([3.0, 3.0]), exact([3.0, 3.0])))
