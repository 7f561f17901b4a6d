"""What of its arguments a call is told apart by, and how they enter a program."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime.aot.calls.arguments import enter, flags_of, flatten, kind_of
from runtime.errors import NestedTensor
from tests.runtime.aot.subclass_helpers import Scaled


def leaf(*values: float) -> Any:
    return runtime.wrap(torch.tensor(values), requires_grad=True)


class Own(torch.Tensor):
    """A class that does nothing else than torch's."""

    @staticmethod
    def __new__(cls, n: int) -> Any:
        return torch.ones(n).as_subclass(cls)


class Equal:
    """Equal to any other object of the class."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 1


class Beside(torch.Tensor):
    """A tensor that looks like its first part. The second one may lie in memory in any way."""

    @staticmethod
    def __new__(cls, first: torch.Tensor, second: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        self.first, self.second = first, second

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any
    ) -> Beside:
        return Beside(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError


def on(device: str) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(2, device=device)


GAPS = torch.ones(4, 9)
KINDS: dict[str, tuple[Any, Any, bool]] = {
    "values": (torch.ones(2), torch.zeros(2), True),
    "dtype": (torch.ones(2), torch.ones(2).double(), False),
    "device": (torch.ones(2), torch.ones(2, device="meta"), False),
    "size": (torch.ones(2), torch.ones(3), False),
    "strides": (torch.ones(2, 3), torch.ones(3, 2).t(), False),
    "layout": (torch.eye(2), torch.eye(2).to_sparse(), False),
    "lazy conjugate": (torch.ones(2) * 1j, (torch.ones(2) * 1j).conj(), False),
    "lazy negative": ((torch.ones(2) * 1j).imag, (torch.ones(2) * 1j).conj().imag, False),
    "number and flag": (1, True, False),
    "integer and float": (1, 1.0, False),
    "zeros": (0.0, -0.0, False),
    "not a number": (float("nan"), float("nan"), True),
    "complex zeros": (0j, complex(0.0, -0.0), False),
    "tuples": ((1, "a", 2.0), (1, "a", 2.0), True),
    "numbers of other classes in tuples": ((1,), (True,), False),
    "objects that change": ({1}, {1}, False),
    "objects that are equal": (Equal(), Equal(), False),
    "texts": ("a", "b", False),
    "sizes of parts": (
        TwoTensor(torch.ones(2, 3), torch.ones(2, 3)),
        TwoTensor(torch.ones(4, 5), torch.ones(4, 5)),
        False,
    ),
    "strides of a part": (
        Beside(torch.ones(4, 3), GAPS[:, :6:2]),
        Beside(torch.ones(4, 3), GAPS[:, ::3]),
        False,
    ),
    "parts": (
        TwoTensor(torch.ones(2), torch.zeros(2)),
        TwoTensor(torch.zeros(2), torch.ones(2)),
        True,
    ),
    "class without parts": (Own(2), Own(2), True),
    "number of a device": (on("cuda:0"), on("cuda:1"), False),
    "device beyond the processor": (on("cuda:0"), on("xpu:0"), False),
}


@pytest.mark.parametrize("name", KINDS)
def test_arguments_are_of_one_kind_if_a_graph_takes_them_for_the_same(name: str) -> None:
    a, b, same = KINDS[name]
    assert (kind_of(a, False, False) == kind_of(b, False, False)) is same
    assert kind_of(a, True, False) != kind_of(a, False, False)


ANY_SIZE: dict[str, tuple[Any, Any, bool]] = {
    "size": (torch.ones(2, 3), torch.ones(4, 5), True),
    "dimensions": (torch.ones(2), torch.ones(2, 1), False),
    "order": (torch.ones(2, 3), torch.ones(3, 2).t(), False),
    "size in another order": (
        torch.ones(2, 3, 4).permute(2, 0, 1),
        torch.ones(5, 6, 7).permute(2, 0, 1),
        True,
    ),
    "another order": (
        torch.ones(2, 3, 4).permute(2, 0, 1),
        torch.ones(2, 3, 4).permute(1, 2, 0),
        False,
    ),
    "parts": (
        TwoTensor(torch.ones(2, 3), torch.ones(2, 3)),
        TwoTensor(torch.ones(4, 5), torch.ones(4, 5)),
        True,
    ),
    "dtype of parts": (
        TwoTensor(torch.ones(2), torch.ones(2)),
        TwoTensor(torch.ones(2).double(), torch.ones(2).double()),
        False,
    ),
    "context": (Scaled(torch.ones(2), 2), Scaled(torch.ones(2), 3), False),
    "class without parts": (Own(2), Own(3), True),
    "gaps": (torch.ones(4, 3).t(), torch.ones(4, 6)[:, ::2].t(), False),
    "overlaps": (torch.ones(4, 6)[:, ::2], torch.ones(6).unfold(0, 3, 1), False),
    "dtype": (torch.ones(2), torch.ones(2).double(), False),
    "device": (torch.ones(2), torch.ones(2, device="meta"), False),
    "number": (1, 2, False),
    "size of one": (torch.ones(2, 3), torch.ones(1, 1), True),
    "sparse": (torch.eye(2).to_sparse(), torch.eye(3).to_sparse(), True),
}


@pytest.mark.parametrize("name", ANY_SIZE)
def test_arguments_of_any_size_are_of_one_kind_if_their_memory_is_laid_out_alike(name: str) -> None:
    a, b, same = ANY_SIZE[name]
    assert (kind_of(a, False, True) == kind_of(b, False, True)) is same


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_has_no_kind() -> None:
    parts = [torch.ones(2), torch.ones(3)]
    for layout in (torch.strided, torch.jagged):
        with pytest.raises(NestedTensor):
            kind_of(torch.nested.nested_tensor(parts, layout=layout), False, False)


def test_a_call_knows_where_gradients_go() -> None:
    x, y, z, view = torch.ones(1, requires_grad=True), leaf(1.0), leaf(1.0) * 1, leaf(1.0, 2.0)[0]
    call = enter([x, y, z, view, torch.ones(1), 2], True, False)
    assert call is not None and call.wanted == [True, True, True, True, False, False]
    assert call.targets[0] is call.leaves[0] and call.targets[1] is y and len(call.targets) == 4
    assert call.targets[2] == z._edge and call.targets[3] == view._edge
    assert [type(t) for t in call.plain] == [torch.Tensor] * 5 + [int]
    untracked = enter([x, y, z], False, False)
    assert (
        untracked is not None
        and untracked.wanted == [False] * 3
        and untracked.targets == []
        and untracked.leaves[0] is x
    )
    found: list[Any] = []

    def inside(v: Any) -> Any:
        found.append(enter([x, v], True, False))
        return v.sum()

    runtime.func.grad(inside)(torch.ones(1))
    assert found == [None]


def test_without_grad_mode_a_leaf_of_torch_is_one_and_what_it_recorded_is_a_constant() -> None:
    x = torch.ones(1, requires_grad=True)
    y = x * 1
    with torch.no_grad():
        call = enter([x, y], True, False)
    assert (
        call is not None
        and call.wanted == [True, False]
        and call.leaves[1] is y
        and call.plain[1] is y
    )
    assert isinstance(call.leaves[0], runtime.Tensor) and call.targets == [call.leaves[0]]


def test_a_call_is_followed_by_the_arguments_of_another_one() -> None:
    first, more = enter([leaf(1.0), 2], True, False), enter([torch.ones(2), leaf(3.0)], True, False)
    assert first is not None and more is not None
    both = first.followed_by(more)
    for name in ("leaves", "plain", "targets", "kinds"):
        assert [id(x) for x in getattr(both, name)] == [
            id(x) for x in (*getattr(first, name), *getattr(more, name))
        ]


def test_without_grad_what_torch_has_recorded_is_told() -> None:
    x = torch.ones(1, requires_grad=True)
    given = [x, x * 1, leaf(1.0), leaf(1.0) * 1, torch.ones(1), 2]
    with torch.no_grad():
        assert flags_of(given) == ((1, False),)
    with torch.inference_mode():
        assert flags_of(given) == ((0, True), (1, False), (2, True), (3, False))


def test_plain_positional_arguments_have_no_tree() -> None:
    given = (torch.ones(1), leaf(1.0), 1, "a", None, True, 2.0)
    assert flatten(given, {}) == (given, None)
    others: list[tuple[tuple[object, ...], dict[str, object]]] = [
        ((torch.ones(1), [1]), {}),
        ((1,), {"k": 2}),
        (((1, 2),), {}),
    ]
    for args, kwargs in others:
        leaves, spec = flatten(args, kwargs)
        assert spec is not None and len(leaves) == 2
