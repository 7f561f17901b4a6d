"""What one call does: which ways it takes for which programs, what it notes when it fails, and how writes reach the caller's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime.aot import aot_function, nop
from runtime.aot.calls.arguments import enter, flags_of, flatten, kind_of
from runtime.aot.calls.compiled_program import CompiledProgram
from runtime.aot.capture.boundary import Input, write
from runtime.aot.capture.joint import joint_graph


def leaf(*values: float) -> Any:
    return runtime.wrap(torch.tensor(values), requires_grad=True)


def program_of(f: Callable[..., Any], *args: Any, **options: Any) -> CompiledProgram:
    recipe = aot_function(f, nop, **options).recipe  # type: ignore[attr-defined]
    given, spec = flatten(args, {})
    call = enter(given, True, False)
    assert call is not None
    program: CompiledProgram = recipe.program(spec, call, True)
    return program


def added(x: Any) -> Any:
    x.add_(1)
    return x * 2


def begun(x: Any) -> Any:
    return x.requires_grad_()


def hooked(x: Any) -> Any:
    x.register_hook(lambda g: g)
    return x * 2


def other_mode(module: nn.Module, x: Any) -> Any:
    module.eval()
    return x * 2


PLAIN: dict[str, tuple[Callable[..., Any], tuple[int, ...] | None]] = {
    "a result": (lambda x: x * 2, (0,)),
    "results in another order": (lambda x: [x * 2, x + 1], (0, 1)),
    "one twice": (lambda x: (lambda y: (y, y))(x * 2), None),
    "an argument": (lambda x: x, None),
    "a number beside it": (lambda x: (x * 2, 1), None),
    "a view": (lambda x: x[0], None),
    "a view of a result and the result": (lambda x: (lambda y: (y, y[0]))(x * 2), None),
    "a leaf": (lambda x: (x * 2).requires_grad_(), None),
    "a write": (added, None),
    "a change of geometry": (lambda x: (x.unsqueeze_(0), x * 2)[1], None),
    "an argument that becomes a leaf": (begun, None),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_program_that_only_computes_gives_the_results_of_its_graph(name: str) -> None:
    f, direct = PLAIN[name]
    assert program_of(f, torch.ones(2)).direct == direct


def test_a_program_with_a_backward_or_that_changes_a_mode_does_more() -> None:
    module = nn.Dropout()
    assert program_of(lambda x: x * 2, leaf(1.0)).direct is None
    found = program_of(lambda x: other_mode(module, x), torch.ones(2))
    assert found.direct is None and found.modes == [(module, False)]


def test_a_program_knows_what_it_does_to_its_arguments() -> None:
    found = program_of(lambda x, y: (added(x), y.t_(), y * 1), torch.ones(2), torch.ones(2, 3))
    assert [i for i, _ in found.written] == [0] and [i for i, _ in found.reshaped] == [1] and found.begun == []
    assert found.computed == [None, None, None] and found.n_forward == 3
    found = program_of(lambda x, y: (hooked(x), begun(y)), leaf(1.0), torch.ones(1))
    assert [i for i, _ in found.hooked] == [0] and found.begun == [1] and found.replaced == []


class TestWrites:
    @pytest.mark.parametrize("counted", [0, 1, 2, 3])
    @pytest.mark.parametrize("recorded", [False, True])
    def test_the_version_advances_as_often_as_the_program_has_written(self, counted: int, recorded: bool) -> None:
        if recorded and not counted:
            return
        target: Any = runtime.wrap(torch.zeros(2))
        new: Any = leaf(1.0, 2.0) * 1 if recorded else torch.tensor([1.0, 2.0])
        with torch.no_grad():
            write([(Input(False, True, None, counted), target, new, recorded)])
        assert target.tolist() == [1.0, 2.0] and target._version == counted and target.requires_grad is recorded

    @pytest.mark.parametrize("counted", [0, 1, 2])
    def test_plain_tensors_are_written_together(self, counted: int) -> None:
        targets = [torch.zeros(2), torch.zeros(3), nn.Parameter(torch.zeros(1), requires_grad=False)]
        news = [torch.ones(2), torch.ones(3) * 2, torch.ones(1) * 3]
        write([(Input(False, True, None, counted), t, new, False) for t, new in zip(targets, news, strict=True)])
        assert [t.tolist() for t in targets] == [t.tolist() for t in news] and [t._version for t in targets] == [counted] * 3

    def test_what_a_list_cannot_take_is_written_alone(self) -> None:
        targets = [
            torch.zeros(2, dtype=torch.complex64).conj(),
            torch.zeros(1).expand(3),
            torch.zeros(2, dtype=torch.complex64).conj().imag,
        ]
        news = [torch.tensor([1 + 2j, 3j]), torch.ones(3), torch.tensor([1.0, 2.0])]
        write([(Input(False, True, None, 1), t, new, False) for t, new in zip(targets, news, strict=True)])
        assert [t.tolist() for t in targets] == [t.tolist() for t in news] and [t._version for t in targets] == [1, 1, 1]

    def test_nothing_is_written_where_the_program_writes_nothing(self) -> None:
        target = torch.zeros(2)
        Input(False).write(target, torch.ones(2), False)
        assert target.tolist() == [0.0, 0.0] and target._version == 0

    @pytest.mark.parametrize("size", [2, 3])
    def test_an_expanded_dimension_is_written_once_and_must_be_one_number(self, size: int) -> None:
        base = torch.zeros(2, 1)
        record = Input(False, True, None, 1)
        record.write(base.expand(2, size), torch.tensor([[1.0] * size, [2.0] * size]), False)
        assert base.tolist() == [[1.0], [2.0]]
        with pytest.raises(RuntimeError, match="a part of an expanded argument"):
            record.write(base.expand(2, size), torch.tensor([[1.0] * size, [2.0] * (size - 1) + [3.0]]), False)
        assert base.tolist() == [[1.0], [2.0]]

    def test_an_expanded_dimension_of_one_is_like_any_other(self) -> None:
        base = torch.zeros(3)
        target = base.as_strided((1, 3), (0, 1))
        Input(False, True, None, 1).write(target, torch.tensor([[1.0, 2.0, 3.0]]), False)
        assert base.tolist() == [1.0, 2.0, 3.0]


def failing(module: fx.GraphModule, inputs: list[Any]) -> Any:
    """A compiler whose graph fails before it writes."""

    def run(*args: Any) -> Any:
        raise ValueError("graph")

    return run


def test_a_call_whose_graph_fails_leaves_its_arguments_and_says_nothing_of_them() -> None:
    x = torch.zeros(2)
    with pytest.raises(ValueError, match="graph") as caught:
        aot_function(added, failing)(x)
    assert x.tolist() == [0.0, 0.0] and not getattr(caught.value, "__notes__", [])


def test_an_exported_graph_takes_plain_tensors() -> None:
    two = TwoTensor(torch.ones(1), torch.ones(1))
    with pytest.raises(RuntimeError, match="a TwoTensor is among the inputs, and an exported graph takes plain tensors"):
        joint_graph(lambda x, y: x * 2, [two, two], [False, False], whole=True)


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
    "lists": ([1], [1], True),
    "other lists": ([1], [2], False),
    "texts": ("a", "b", False),
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
    "gaps": (torch.ones(4, 3).t(), torch.ones(4, 6)[:, ::2].t(), False),
    "overlaps": (torch.ones(4, 6)[:, ::2], torch.ones(6).unfold(0, 3, 1), False),
    "dtype": (torch.ones(2), torch.ones(2).double(), False),
    "device": (torch.ones(2), torch.ones(2, device="meta"), False),
    "number": (1, 2, False),
}


@pytest.mark.parametrize("name", ANY_SIZE)
def test_arguments_of_any_size_are_of_one_kind_if_their_memory_is_laid_out_alike(name: str) -> None:
    a, b, same = ANY_SIZE[name]
    assert (kind_of(a, False, True) == kind_of(b, False, True)) is same


def test_a_call_knows_where_gradients_go() -> None:
    x, y, z, view = torch.ones(1, requires_grad=True), leaf(1.0), leaf(1.0) * 1, leaf(1.0, 2.0)[0]
    call = enter([x, y, z, view, torch.ones(1), 2], True, False)
    assert call is not None and call.wanted == [True, True, True, True, False, False]
    assert call.targets[0] is call.leaves[0] and call.targets[1] is y and len(call.targets) == 4
    assert call.targets[2] == z._edge and call.targets[3] == view._edge
    assert [type(t) for t in call.plain] == [torch.Tensor] * 5 + [int]
    untracked = enter([x, y, z], False, False)
    assert untracked is not None and untracked.wanted == [False] * 3 and untracked.targets == [] and untracked.leaves[0] is x
    found: list[Any] = []

    def inside(v: Any) -> Any:
        found.append(enter([x, v], True, False))
        return v.sum()

    runtime.func.grad(inside)(torch.ones(1))
    assert found == [None]


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
    others: list[tuple[tuple[object, ...], dict[str, object]]] = [((torch.ones(1), [1]), {}), ((1,), {"k": 2}), (((1, 2),), {})]
    for args, kwargs in others:
        leaves, spec = flatten(args, kwargs)
        assert spec is not None and len(leaves) == 2
