"""What of its arguments a call is told apart by, and how they enter a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import runtime
from runtime.aot import aot_function, nop
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


def keeping(graphs: list[fx.GraphModule]) -> Callable[[fx.GraphModule, list[Any]], Any]:
    """Return a compiler that keeps its graphs in a list."""

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(module)
        return nop(module, inputs)

    return keep


def n_programs_for(a: Any, b: Any, **options: Any) -> int:
    """Return how many programs there are after calls with ``a`` and with ``b``."""
    graphs: list[fx.GraphModule] = []
    f = aot_function(lambda _, x: x * 2, keeping(graphs), **options)
    for given in (a, b, a, b):
        assert f(given, torch.ones(2)).tolist() == [2.0, 2.0]
    return len(graphs)


@pytest.mark.parametrize("name", KINDS)
def test_arguments_are_of_one_kind_if_a_graph_takes_them_for_the_same(name: str) -> None:
    a, b, same = KINDS[name]
    assert n_programs_for(a, b) == 2 - same


@pytest.mark.parametrize("of_torch", [False, True])
def test_an_argument_that_requires_grad_is_of_another_kind(of_torch: bool) -> None:
    asking = torch.ones(2, requires_grad=True) if of_torch else leaf(1.0, 1.0)
    assert n_programs_for(torch.ones(2), asking) == 2


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
    # which a program takes for a number
    "size of one": (torch.ones(2, 3), torch.ones(1, 1), False),
    "sparse": (torch.eye(2).to_sparse(), torch.eye(3).to_sparse(), True),
}


@pytest.mark.parametrize("name", ANY_SIZE)
def test_arguments_of_any_size_are_of_one_kind_if_their_memory_is_laid_out_alike(name: str) -> None:
    a, b, same = ANY_SIZE[name]
    assert n_programs_for(a, b, dynamic=True) == 2 - same


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_has_no_kind() -> None:
    parts = [torch.ones(2), torch.ones(3)]
    for layout in (torch.strided, torch.jagged):
        with pytest.raises(NestedTensor):
            aot_function(torch.sin, nop)(torch.nested.nested_tensor(parts, layout=layout))


def test_a_call_knows_where_gradients_go() -> None:
    seen: list[type] = []

    def noting(module: fx.GraphModule, inputs: list[Any]) -> Any:
        def run(*args: Any) -> Any:
            seen[:] = map(type, args)
            return module(*args)

        return run

    def weighted(x: Any, y: Any, z: Any, view: Any, plain: Any, n: int) -> Any:
        return x + 2 * y + 3 * z + 4 * view + plain * n

    f = aot_function(weighted, noting, nop)
    x: Any = torch.ones(1, requires_grad=True)
    y, base, pair = leaf(1.0), leaf(1.0), leaf(1.0, 2.0)
    f(x, y, base * 1, pair[:1], torch.ones(1), 2).sum().backward()
    leaves: tuple[Any, ...] = (x, y, base, pair)
    assert [t.grad.tolist() for t in leaves] == [[1.0], [2.0], [3.0], [4.0, 0.0]]
    assert seen == [torch.Tensor] * 5 + [int]
    with torch.no_grad():
        assert not f(x, y, base * 1, pair[:1], torch.ones(1), 2).requires_grad


def test_a_call_with_a_value_of_a_transform_is_one_of_the_function_itself() -> None:
    graphs: list[fx.GraphModule] = []
    f = aot_function(lambda x, v: (x * v).sum(), keeping(graphs))
    x = torch.full((1,), 3.0)
    assert runtime.func.grad(lambda v: f(x, v))(torch.ones(1)).tolist() == [3.0] and not graphs
    f(x, torch.ones(1))
    assert len(graphs) == 1


def test_what_a_program_closes_over_follows_its_arguments() -> None:
    w, v, graphs = leaf(5.0), leaf(7.0), list[fx.GraphModule]()
    f = aot_function(lambda x, n, y: x * n * w + y * v, keeping(graphs))
    x, y = leaf(1.0), leaf(3.0)
    f(x, 2, y).sum().backward()
    assert [t.grad.item() for t in (x, y, w, v)] == [10.0, 7.0, 2.0, 3.0]
    products = [n.args for n in graphs[0].graph.nodes if n.target is torch.ops.aten.mul.Tensor]
    used = [a.name for args in products for a in args if getattr(a, "op", "") == "placeholder"]
    assert used == ["primals_1", "primals_4", "primals_3", "primals_5"]


RECORDED: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "of torch": (
        lambda: torch.ones(1, requires_grad=True),
        lambda: torch.ones(1, requires_grad=True) * 1,
    ),
    "of the session": (lambda: leaf(1.0), lambda: leaf(1.0) * 1),
}


@pytest.mark.parametrize(
    "mode, whose, n_programs",
    [
        (torch.no_grad, "of torch", 2),
        (torch.no_grad, "of the session", 1),
        (torch.inference_mode, "of torch", 2),
        (torch.inference_mode, "of the session", 2),
    ],
)
def test_without_grad_what_torch_has_recorded_is_told_from_a_leaf(
    mode: Any, whose: str, n_programs: int
) -> None:
    a, b = (make() for make in RECORDED[whose])
    with mode():
        assert n_programs_for(a, b) == n_programs


def test_plain_positional_arguments_have_no_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    flattened: list[Any] = []
    tree_flatten = pytree.tree_flatten

    def noted(tree: Any, *args: Any, **options: Any) -> Any:
        flattened.append(tree)
        return tree_flatten(tree, *args, **options)

    f = aot_function(lambda *args, **kwargs: torch.ones(1), nop)
    plain = (torch.ones(1), leaf(1.0), 1, "a", None, True, 2.0)
    others: list[tuple[tuple[object, ...], dict[str, object]]] = [
        ((torch.ones(1), [1]), {}),
        ((1,), {"k": 2}),
        (((1, 2),), {}),
    ]
    for args, kwargs in ((plain, {}), *others):  # which are captured
        f(*args, **kwargs)
    monkeypatch.setattr(pytree, "tree_flatten", noted)
    f(*plain)
    assert not flattened
    for args, kwargs in others:
        f(*args, **kwargs)
    assert len(flattened) == 3
