"""Descriptions of tensors become the tensors that they describe."""

from typing import Any

import pytest
import torch

from gen.samples.descriptions import arrange, build, called, tensor
from gen.samples.seeds import seeded

D = torch.float64


def made(dtype: Any = D, **described: Any) -> Any:
    with seeded("test"):
        return tensor(described, dtype, "cpu")


def test_domains() -> None:
    assert (made(shape=[50], domain="positive") > 0).all()
    unit = made(shape=[50], domain="unit")
    assert ((unit > 0) & (unit < 1)).all()
    assert (made(shape=[50], domain="nonzero").abs() >= 0.1).all()
    assert made(shape=[6, 6], domain="distinct").unique().numel() == 36
    symmetric = made(torch.complex128, shape=[2, 4, 4], domain="symmetric")
    assert torch.equal(symmetric, symmetric.mH)
    assert (torch.linalg.eigvalsh(made(shape=[2, 4, 4], domain="spd")) > 0.5).all()


def test_domains_of_integers() -> None:
    index = made(shape=[50], domain="index", size=3)
    assert index.dtype is torch.int64
    assert set(index.tolist()) == {0, 1, 2}
    assert made(shape=[2, 5], domain="permutation").sort().values.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert made(shape=[5], domain="bool").dtype is torch.bool
    assert (made(torch.int32, shape=[50], domain="nonzero") != 0).all()
    assert (made(torch.uint8, shape=[50]) < 10).all()


def test_bounds_of_the_author_win() -> None:
    values = made(shape=[50], low=3.0, high=4.0)
    assert ((values >= 3) & (values < 4)).all()


def test_floating_tensors_require_grad_unless_told_otherwise() -> None:
    assert made(shape=[2]).requires_grad
    assert not made(shape=[2], requires_grad=False).requires_grad
    assert not made(torch.int64, shape=[2]).requires_grad


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "noncontiguous", "strided"])
def test_layouts_keep_values(layout: Any) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    y = arrange(x, layout)
    assert torch.equal(x, y)
    assert y.is_contiguous() == (layout == "contiguous")


def test_expanded_repeats_the_first_slice() -> None:
    y = arrange(torch.arange(6.0).reshape(2, 3), "expanded")
    assert y.stride() == (0, 1)
    assert y.tolist() == [[0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"shape": [2], "domian": "unit"}, "no key domian; it may have domain"),
        ({"shape": [2], "domain": "primes"}, "no domain 'primes'; known: any"),
        ({"shape": [2], "domain": "index"}, "domain index needs `size`"),
        ({"shape": [2, 3], "domain": "spd"}, r"domain spd needs square matrices .* \[2, 3\]"),
        ({"shape": [2], "layout": "diagonal"}, "no layout 'diagonal'"),
    ],
)
def test_mistakes_are_named(described: Any, message: Any) -> None:
    with pytest.raises(ValueError, match=message):
        made(**described)


def test_samples_may_hold_lists_of_tensors_values_and_keywords() -> None:
    source = [
        {
            "args": [[{"shape": [2]}, {"shape": [3]}], 1],
            "kwargs": {"weight": {"shape": []}, "mode": "sum"},
        }
    ]
    ((args, kwargs, _, _),) = build(source, D, "cpu")
    assert [x.shape for x in args[0]] == [(2,), (3,)]
    assert args[1] == 1
    assert kwargs["weight"].shape == ()
    assert kwargs["mode"] == "sum"


def test_samples_may_come_from_a_callable() -> None:
    given = called(
        "mine.samples", lambda dtype, device: [{"args": [torch.zeros(2, dtype=dtype), 3]}], D, "cpu"
    )
    ((args, _, _, _),) = build(given, D, "cpu")
    assert args[0].requires_grad
    assert args[1] == 3


def test_a_plain_dtype_is_named_with_its_module() -> None:
    ((args, _, _, _),) = build([{"args": ["torch.int64", "int64", "torch.nothing"]}], D, "cpu")
    assert args == (torch.int64, "int64", "torch.nothing")
