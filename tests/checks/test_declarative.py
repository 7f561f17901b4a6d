"""Descriptions of tensors become the tensors that they describe."""

from contextlib import suppress
from typing import Any

import pytest
import torch

from gen.outcomes import Vacuous
from tests.checks.cells import Row, Watching, case

D = torch.float64
HERE = "tests.checks.test_declarative"
_calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []


def noted(*args: Any, **kwargs: Any) -> Any:
    """Note the arguments. The op of the rows below."""
    _calls.append((args, kwargs))
    return torch.ones(2)


def called(samples: Any, dtype: torch.dtype = D) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with which the op is called for the first sample of a row."""
    _calls.clear()
    row: Row = {"call": f"{HERE}:noted", "samples": samples}
    made = case("own.noted", str(dtype).removeprefix("torch."), ops={"own.noted": row})
    made.assert_same("forward", against="eager")
    return _calls[0]


def made(dtype: torch.dtype = D, **described: Any) -> Any:
    """Return the tensor of a description."""
    return called([{"args": [described]}], dtype)[0][0]


def is_differentiated(dtype: torch.dtype = D, **described: Any) -> bool:
    """Return whether a check takes the gradient by the tensor of a description."""
    row = {"call": "torch:clone", "samples": [{"args": [described]}]}
    made = case("own.clone", str(dtype).removeprefix("torch."), ops={"own.clone": row})
    try:
        made.assert_same("vjp", against="loop")
    except Vacuous as reason:
        assert "no differentiable input" in str(reason)
        return False
    return True


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
    assert is_differentiated(shape=[2])
    assert not is_differentiated(shape=[2], requires_grad=False)
    assert not is_differentiated(torch.int64, shape=[2])


def values_in(layout: str, by: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensor with which a target is called in a layout, and the contiguous one.

    `by`: whether the description of the tensor or the axis of the cell names the layout.
    """
    found = []
    for word in (layout, "contiguous"):
        target = Watching()
        described: dict[str, Any] = {"shape": [3, 4]}
        axes = {}
        if by == "axis":
            axes["layout"] = word
        else:
            described["layout"] = word
        row = {"call": "torch:clone", "samples": [{"args": [described]}]}
        with suppress(Vacuous):
            case("own.clone", target=target, axes=axes, ops={"own.clone": row}).assert_same(
                "forward", against="eager"
            )
        found.append(target.calls[0][0])
    return found[0], found[1]


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "noncontiguous", "strided"])
def test_layouts_of_descriptions_keep_values(layout: str) -> None:
    x, plain = values_in(layout, "description")
    assert torch.equal(x, plain)
    assert x.is_contiguous() == (layout == "contiguous")


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "noncontiguous"])
def test_layouts_of_the_axis_keep_values(layout: str) -> None:
    x, plain = values_in(layout, "axis")
    assert torch.equal(x, plain)
    assert x.is_contiguous() == (layout == "contiguous")


@pytest.mark.parametrize("by", ["axis", "description"])
def test_expanded_repeats_the_first_slice(by: str) -> None:
    x, plain = values_in("expanded", by)
    assert x.stride() == (0, 1)
    assert torch.equal(x, plain[:1].expand(3, 4))


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
    args, kwargs = called(source)
    assert [x.shape for x in args[0]] == [(2,), (3,)]
    assert args[1] == 1
    assert kwargs["weight"].shape == ()
    assert kwargs["mode"] == "sum"


def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    return [{"args": [torch.zeros(2, dtype=dtype, device=device), 3]}]


def test_samples_may_come_from_a_callable() -> None:
    args, _ = called(f"{HERE}:samples")
    assert args[0].tolist() == [0, 0] and args[0].dtype == D
    assert args[1] == 3


def test_a_plain_dtype_is_named_with_its_module() -> None:
    args, _ = called([{"args": ["torch.int64", "int64", "torch.nothing"]}])
    assert args == (torch.int64, "int64", "torch.nothing")
