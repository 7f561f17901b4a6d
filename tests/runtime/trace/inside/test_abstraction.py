"""Abstract values of a trace: which sizes and numbers are symbols, and how symbols are found.

Inside: ``runtime.trace.symbols.Abstraction``. A door of capture chooses one set of its options and
hides the symbols; what it makes of fixed, given and literal inputs is the ground of all of them."""

from __future__ import annotations

import gc
import operator
import weakref
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    CallMethodKey,
    ConvertIntKey,
    DimDynamic,
    DivideByKey,
    InnerTensorKey,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils import _pytree as pytree

from runtime.trace.symbols import Abstraction, Given, _follow
from tests.runtime.trace.graphs import CallsSeen


def _placeholder() -> fx.Node:
    return fx.Graph().placeholder("n")


def test_every_size_of_an_input_is_a_symbol_of_its_own() -> None:
    fake = Abstraction().abstract(torch.ones(3, 3, 1, 0, requires_grad=True))
    first, second, one, none = (_expression(size) for size in fake.shape)
    assert first != second and fake.requires_grad and (one, none) == (1, 0)


def test_the_sizes_of_a_sparse_input_are_symbols_or_conditions() -> None:
    abstraction, t = Abstraction(), torch.eye(3).to_sparse()
    sizes = [_expression(size) for size in abstraction.abstract(t).shape]
    assert (3 in sizes) is (not _sparse_sizes_are_symbols())
    assert abstraction.holds(t)
    assert abstraction.holds(torch.eye(4).to_sparse()) is (3 not in sizes)


def _sparse_sizes_are_symbols() -> bool:
    """Whether torch itself makes symbols of them. Torch 2.12 makes numbers."""
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fake = mode.from_tensor(torch.eye(3).to_sparse(), symbolic_context=context)
    return all(isinstance(size, torch.SymInt) for size in fake.shape)


def _expression(size: Any) -> Any:
    """The symbol of a size, or the number that it is."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def test_a_fixed_input_has_plain_sizes_even_if_met_before_and_is_not_among_the_inputs() -> None:
    abstraction, x = Abstraction(), torch.ones(3, requires_grad=True)
    met, fixed = abstraction.abstract(x), abstraction.abstract(x, fixed=True)
    assert (
        _expression(fixed.shape[0]) == 3 and fixed.requires_grad and _expression(met.shape[0]) != 3
    )
    assert [t is met for t in abstraction.inputs] == [True]
    static = Abstraction(dynamic=False)
    assert _expression(static.abstract(x).shape[0]) == 3 and not static.inputs


def test_a_view_is_abstracted_without_its_base_and_no_mode_of_the_caller_sees_it() -> None:
    abstraction, base = Abstraction(), torch.ones(6)
    with CallsSeen() as seen:
        fakes = [abstraction.abstract(base[1:4]), abstraction.constant(base[1:])]
    assert not fakes[0]._is_view() and type(fakes[1].shape[0]) is int
    assert seen.names == ["aten::slice"] * 2


def test_an_abstraction_is_freed_with_the_conditions_that_it_found() -> None:
    abstraction = Abstraction()
    fake = abstraction.abstract(torch.ones(4, 3))
    assert bool(fake.shape[0] * 2 > fake.shape[1]) and bool(
        (fake.shape[0] // 2) * fake.shape[1] == 6
    )
    environment = weakref.ref(abstraction.shape_env)
    del abstraction, fake
    gc.collect()
    assert environment() is None


def test_how_an_input_lies_in_memory_is_no_condition() -> None:
    abstraction = Abstraction()
    fake = abstraction.abstract(torch.ones(20)[3:17].as_strided((2, 3), (7, 2), 3))
    assert bool(fake.stride(0) > 5) and bool(fake.storage_offset() == 3)
    assert "stride" not in abstraction.guards() and "offset" not in abstraction.guards()
    assert abstraction.holds(torch.ones(2, 3)) and not abstraction.holds(torch.ones(1, 3))


@pytest.mark.parametrize("value", [7, 0, 1, -3, 7.5, -0.25], ids=str)
def test_a_number_that_is_an_input_is_a_symbol(value: float) -> None:
    abstraction, node = Abstraction(), _placeholder()
    abstraction.abstract(torch.ones(2, 2))
    number = abstraction.unknown(value, node)
    assert (
        type(number) is (torch.SymFloat if type(value) is float else torch.SymInt)
        and number.node.hint == value
    )
    assert abstraction.inputs[1:] == abstraction.numbers == [number] and not abstraction.pinned(
        number
    )
    assert abstraction.lower(number) is node
    assert bool(number > value - 1) and not bool(number > value + 1)
    x = torch.ones(2, 2)
    assert (
        abstraction.holds(x, value)
        and not abstraction.holds(x, value + 5)
        and not abstraction.holds(x, value - 5)
    )
    assert bool(number == value) and abstraction.pinned(number)


def test_a_condition_on_a_real_number_is_not_decided_by_ranges_of_integers() -> None:
    """Torch finds that the rest of a division by 1.5 is at most 0.5."""
    abstraction = Abstraction()
    n = abstraction.unknown(7, _placeholder())
    assert bool(n % 1.5 > 0.5)
    assert abstraction.holds(7) and abstraction.holds(10) and not abstraction.holds(8)


def test_constants_keep_their_sizes_and_are_of_the_mode_of_the_trace() -> None:
    abstraction, x = Abstraction(), torch.ones(3)
    fake = abstraction.abstract(x)
    made = abstraction.constant(torch.ones(5))
    assert (
        isinstance(made, FakeTensor)
        and type(made.shape[0]) is int
        and abstraction.constant(fake) is fake
    )
    other = FakeTensorMode().from_tensor(x)
    with pytest.raises(RuntimeError, match="a fake tensor of another mode"):
        abstraction.constant(other)
    abstraction.allows_real_constants = False
    with pytest.raises(RuntimeError, match="closes over a real tensor"):
        abstraction.constant(torch.ones(5))
    assert abstraction.constant(torch.ones(5), literal=True).shape == (5,)


def test_fake_tensors_of_two_modes_have_no_trace_and_those_of_one_bring_it() -> None:
    mode, x = FakeTensorMode(shape_env=ShapeEnv()), torch.ones(3)
    fake = mode.from_tensor(x)
    given = Abstraction.of([fake, 3, x])
    assert (
        isinstance(given, Given) and given.mode is mode and given.guards() == "" and given.holds(x)
    )
    seen: Any = given.abstract(fake)
    assert seen is not fake and not seen.requires_grad and type(given.abstract(x)) is FakeTensor
    assert (
        type(given.abstract(torch.ones(4)).shape[0]) is int
        and not given.dynamic
        and type(seen.shape[0]) is torch.SymInt
    )
    assert Abstraction.of([x]) is None and type(Abstraction.of([x], fake=True)) is Abstraction
    with pytest.raises(RuntimeError, match="of two modes"):
        Abstraction.of([fake, FakeTensorMode().from_tensor(x)])


# a value, the path to a number in it, the number
PATHS: dict[str, tuple[Any, tuple[Any, ...], int]] = {
    "itself": (3, (), 3),
    "a size": (torch.ones(2, 5), (CallMethodKey("size"), pytree.SequenceKey(1)), 5),
    "a stride of one of several": (
        (0, torch.ones(2, 5)),
        (pytree.SequenceKey(1), CallMethodKey("stride"), pytree.SequenceKey(0)),
        5,
    ),
    "the offset": (torch.ones(9)[4:], (CallMethodKey("storage_offset"),), 4),
    "a truth as a number": (True, (ConvertIntKey(),), 1),
    "an untruth as a number": (False, (ConvertIntKey(),), 0),
    "a part of a size": (
        torch.ones(8),
        (CallMethodKey("size"), pytree.SequenceKey(0), DivideByKey(4)),
        2,
    ),
    "a size of an element": (
        [torch.ones(3)],
        (pytree.SequenceKey(0), CallMethodKey("size"), pytree.SequenceKey(0)),
        3,
    ),
}


@pytest.mark.parametrize("name", PATHS)
def test_a_path_to_a_symbol_in_a_result_is_computed_by_the_graph(name: str) -> None:
    value, path, expected = PATHS[name]
    graph = fx.Graph()
    graph.output(_follow(graph.placeholder("x"), path))
    assert fx.GraphModule({}, graph)(value) == expected


def test_a_path_that_no_call_follows_is_refused() -> None:
    with pytest.raises(RuntimeError, match="a graph cannot compute"):
        _follow(fx.Graph().call_function(operator.neg, (1,)), (InnerTensorKey("values"),))


def test_a_number_that_neither_an_input_nor_a_result_determines_is_refused() -> None:
    abstraction, other = Abstraction(), Abstraction()
    size: Any = abstraction.abstract(torch.ones(3)).shape[0]
    assert abstraction.knows(size) and not other.knows(size)
    with pytest.raises(RuntimeError, match="neither an input nor a result determines"):
        abstraction.lower(size + 1)


def test_of_a_number_that_is_constant_the_graph_has_the_number() -> None:
    abstraction = Abstraction()
    size: Any = abstraction.abstract(torch.ones(3)).shape[0]
    for number, plain in ((size - size, 0), (size == size, True), (size != size, False)):
        lowered = (
            abstraction.lower(number)
            if isinstance(number, (torch.SymInt, torch.SymBool))
            else number
        )
        assert lowered == plain and type(lowered) is type(plain)
