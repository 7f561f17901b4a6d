"""What a graph says of the values of its nodes: shape, layout, dtype and device, and symbols for
numbers. Nothing of it holds memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.shape_prop import _extract_tensor_metadata

import runtime
from runtime.aot import make_fx
from runtime.func import linearize, vmap
from runtime.trace.abstract_values import AbstractValues
from runtime.trace.symbols import Abstraction, Given, _plain_like
from tests.runtime.trace.graphs import CallsSeen, Net, node

Make = Callable[[], torch.Tensor]
IMAGE = (2, 3, 4, 5)
VALUES: dict[str, Make] = {
    "plain": lambda: torch.zeros(3, 4),
    "transposed": lambda: torch.zeros(3, 4).t(),
    "of integers": lambda: torch.zeros(3, dtype=torch.int16),
    "with an offset": lambda: torch.zeros(3, 4)[1:, 2:],
    "an expanded one": lambda: torch.zeros(3, 1).expand(3, 4),
    "a number": lambda: torch.zeros(4)[2],
    "nothing": lambda: torch.zeros(0, 3),
    "an image": lambda: torch.zeros(IMAGE),
    "an image of channels last": lambda: torch.zeros(IMAGE).contiguous(
        memory_format=torch.channels_last
    ),
    "a volume of channels last": lambda: torch.zeros(*IMAGE, 2).contiguous(
        memory_format=torch.channels_last_3d
    ),
    "a permuted image": lambda: torch.zeros(IMAGE).permute(3, 0, 1, 2),
    "conjugated": lambda: torch.zeros(3, dtype=torch.complex64).conj(),
    "negated": lambda: torch.zeros(3, dtype=torch.complex64).conj().imag,
    "on another device": lambda: torch.zeros(3, 4, device="meta"),
}


def _facts(t: torch.Tensor) -> tuple[Any, ...]:
    return (
        t.shape,
        t.stride(),
        t.storage_offset(),
        t.dtype,
        t.device,
        t.is_conj(),
        t.is_neg(),
        t.layout,
    )


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", VALUES)
def test_an_abstract_value_has_the_geometry_of_the_value(name: str, late: bool) -> None:
    t, graph = VALUES[name](), torch.fx.Graph()
    call = graph.call_function(torch.ops.aten.sin.default)
    values = AbstractValues(None, late)
    at_once = values.describe(call, t)
    assert (at_once is None) is late is ("val" not in call.meta)
    values.complete()
    abstract = call.meta["val"]
    assert (
        type(abstract) is FakeTensor
        and abstract.fake_mode is values.mode
        and (late or abstract is at_once)
    )
    assert _facts(abstract) == _facts(t)
    expected = _extract_tensor_metadata(t)
    assert call.meta["tensor_meta"] == expected
    copied = values.snapshot(abstract)
    assert copied is not abstract and _facts(copied) == _facts(t)


def test_a_placeholder_is_described_at_once_and_other_layouts_too() -> None:
    graph, values = torch.fx.Graph(), AbstractValues(None, late=True)
    placeholder, call = graph.placeholder("x"), graph.call_function(torch.ops.aten.sin.default)
    assert _facts(values.describe(placeholder, torch.zeros(3))) == _facts(torch.zeros(3))
    sparse = torch.eye(3).to_sparse()
    assert (
        values.describe(call, sparse).layout is torch.sparse_coo
        and call.meta["tensor_meta"].stride == ()
    )
    assert (
        not call.meta["tensor_meta"].is_quantized and call.meta["tensor_meta"].memory_format is None
    )


@pytest.mark.parametrize(
    "value", [3, None, "text", [torch.zeros(2), None], (torch.zeros(2), 4)], ids=str
)
def test_what_is_no_tensor_is_its_own_abstract_value(value: Any) -> None:
    found = AbstractValues(None).of(value)
    assert type(found) is type(value)
    for a, b in zip(
        *(v if isinstance(v, (list, tuple)) else (v,) for v in (found, value)), strict=True
    ):
        assert _facts(a) == _facts(b) if isinstance(b, torch.Tensor) else a is b


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("name", VALUES)
def test_a_placeholder_has_the_geometry_of_the_argument(name: str, mode: str) -> None:
    t = VALUES[name]()
    traced = make_fx(lambda x: x * 1, tracing_mode=mode)(t)
    found = node(traced, "x_1").meta["val"]
    assert _facts(found)[:2] == _facts(t)[:2] and _facts(found)[3:] == _facts(t)[3:]


def test_a_size_that_is_one_or_zero_is_a_number_and_any_other_a_symbol() -> None:
    traced = make_fx(lambda x: x * 1, tracing_mode="symbolic")(torch.zeros(0, 1, 2, 5))
    kinds = [type(n) for n in node(traced, "x_1").meta["val"].shape]
    assert kinds == [int, int, torch.SymInt, torch.SymInt]
    assert node(make_fx(lambda x: x * 1, tracing_mode="fake")(torch.zeros(2, 5)), "x_1").meta[
        "val"
    ].shape == (2, 5)


@pytest.mark.parametrize("number", [0, 1, 5, -3])
def test_an_integer_argument_is_a_symbol_that_its_placeholder_shows(number: int) -> None:
    traced = make_fx(lambda x, n: x * n + n, tracing_mode="symbolic")(torch.ones(2), number)
    found = node(traced, "n_1").meta["val"]
    assert isinstance(found, torch.SymInt) and found.node.hint == number
    assert torch.equal(traced(torch.ones(2), 7), torch.full((2,), 14.0))


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_an_integer_argument_is_a_constant_of_other_graphs(mode: str) -> None:
    traced = make_fx(lambda x, n: x * n, tracing_mode=mode)(torch.ones(2), 3)
    assert torch.equal(traced(torch.ones(2), 7), torch.full((2,), 3.0))


def _fake(t: torch.Tensor, mode: FakeTensorMode | None = None) -> torch.Tensor:
    return (mode or FakeTensorMode(shape_env=ShapeEnv())).from_tensor(t)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_fake_arguments_of_two_modes_are_refused(mode: str) -> None:
    with pytest.raises(RuntimeError, match="fake tensors of two modes"):
        make_fx(torch.add, tracing_mode=mode)(_fake(torch.ones(2)), _fake(torch.ones(2)))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_fake_tensor_of_another_mode_that_the_program_closes_over_is_refused(mode: str) -> None:
    other = _fake(torch.ones(2))
    with pytest.raises(RuntimeError, match="closes over a fake tensor of another mode"):
        make_fx(lambda x: x + other, tracing_mode=mode)(_fake(torch.ones(2)))
    with pytest.raises(
        RuntimeError, match="closes over a fake tensor" if mode == "real" else "of another mode"
    ):
        make_fx(lambda x: x + other, tracing_mode=mode)(torch.ones(2))


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_a_real_tensor_that_a_fake_program_closes_over_is_a_constant_if_allowed(
    mode: str, allowed: bool
) -> None:
    real = torch.tensor([2.0, 3.0])
    trace = make_fx(
        lambda x: x * real + torch.tensor(1.0), tracing_mode=mode, _allow_non_fake_inputs=allowed
    )
    if allowed:
        assert trace(torch.ones(2))(torch.ones(2)).tolist() == [3.0, 4.0]
    else:
        with pytest.raises(RuntimeError, match="Please convert all Tensors to FakeTensors first"):
            trace(torch.ones(2))


def test_a_trace_of_fake_arguments_works_in_their_mode_and_no_other_trace_has_one() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fake = _fake(torch.ones(2), mode)
    given = Abstraction.of([fake, torch.ones(2)], dynamic=True)
    assert isinstance(given, Given) and given.mode is mode and given.guards() == ""
    assert Abstraction.of([torch.ones(2)]) is None
    for dynamic, only_fake in ((True, False), (False, True), (True, True)):
        made = Abstraction.of([torch.ones(2)], dynamic=dynamic, fake=only_fake)
        assert made is not None and not isinstance(made, Given) and made.dynamic is dynamic


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
def test_the_sizes_of_an_input_are_symbols_if_the_trace_is_dynamic_and_they_are_not_fixed(
    dynamic: bool, fixed: bool
) -> None:
    abstraction = Abstraction(dynamic=dynamic)
    fake = abstraction.abstract(torch.ones(3, 4), fixed)
    symbolic = dynamic and not fixed
    assert [isinstance(n, torch.SymInt) for n in fake.shape] == [symbolic] * 2
    assert [x is fake for x in abstraction.inputs] == [True] * symbolic
    assert fake.fake_mode is abstraction.mode and not abstraction.knows(_symbol(Abstraction()))


def _symbol(abstraction: Abstraction) -> Any:
    return abstraction.abstract(torch.ones(5)).shape[0]


def test_a_view_of_an_input_of_fixed_sizes_has_numbers_beside_its_base() -> None:
    abstraction, base = Abstraction(), torch.ones(3, 4)
    abstraction.abstract(base)
    part = abstraction.abstract(base[1:], fixed=True)
    assert part.shape == (2, 4) and all(type(n) is int for n in part.shape)


PLAIN: dict[str, Make] = {
    "a leaf of torch": lambda: torch.ones(2, requires_grad=True),
    "a tensor of torch": lambda: torch.ones(3, 2)[1:],
    "a sparse one": lambda: torch.eye(2).to_sparse(),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_tensor_of_torch_stands_for_itself_in_an_abstract_trace(name: str) -> None:
    t = PLAIN[name]()
    assert _plain_like(t) is t


@pytest.mark.parametrize("wanted", [False, True])
def test_a_tensor_of_the_session_stands_for_the_one_that_it_holds(wanted: bool) -> None:
    inner = torch.arange(8.0, dtype=torch.float64).view(2, 4)[:, 1:]
    found = _plain_like(runtime.wrap(inner, requires_grad=wanted))
    assert (
        type(found) is torch.Tensor
        and found.data_ptr() == inner.data_ptr()
        and _facts(found) == _facts(inner)
    )


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize(
    ("f", "make"),
    [
        (
            lambda x: torch.view_as_real(x.resolve_conj()) * 1,
            lambda: torch.complex(torch.ones(3), torch.arange(3.0)).conj(),
        ),
        (lambda x: x.imag * 1, lambda: torch.complex(torch.ones(3), torch.arange(3.0)).conj()),
        (lambda x: x * x.storage_offset(), lambda: torch.arange(8.0)[3:]),
        (lambda x: x.as_strided((2,), (1,), 4) * 2, lambda: torch.arange(8.0)[3:]),
        (lambda x: x.resolve_neg() * 2, lambda: torch._neg_view(torch.arange(3.0))),
    ],
    ids=["conjugated", "its imaginary part", "an offset", "a place in memory", "negated"],
)
def test_a_graph_of_a_tensor_of_the_session_is_that_of_the_one_that_it_holds(
    f: Any, make: Make, mode: str
) -> None:
    theirs, ours = (make_fx(f, tracing_mode=mode)(t) for t in (make(), runtime.wrap(make())))
    assert ours.code == theirs.code
    assert torch.equal(ours(make()), f(make())) and torch.equal(
        runtime.unwrap(ours(runtime.wrap(make()))), f(make())
    )


def test_a_value_of_a_transform_stands_for_zeros_of_its_shape() -> None:
    found: list[torch.Tensor] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        found.append(_plain_like(x))
        return x

    vmap(f)(torch.ones(5, 2, 3, dtype=torch.float64).transpose(1, 2))
    assert type(found[0]) is torch.Tensor and found[0].tolist() == [[0.0] * 2] * 3
    assert (
        found[0].stride() == (1, 3)
        and found[0].dtype is torch.float64
        and found[0].device.type == "cpu"
    )


def test_the_guards_of_a_graph_are_asked_of_sizes_and_a_quotient_by_zero_is_another_case() -> None:
    abstraction = Abstraction()
    x = abstraction.abstract(torch.ones(6, 3))
    assert x.shape[0] % x.shape[1] == 0
    assert [abstraction.holds(torch.ones(n, m)) for n, m in ((6, 3), (8, 4), (7, 3), (6, 0))] == [
        True,
        True,
        False,
        False,
    ]
    free = Abstraction()
    free.abstract(torch.ones(6, 3))
    # with one element it would be another graph: it broadcasts
    assert [free.holds(torch.ones(n, 3)) for n in (2, 7)] == [True, True]
    assert not free.holds(torch.ones(1, 3))


def test_the_derivative_of_a_program_at_a_point_has_no_node_that_holds_memory() -> None:
    _, push = linearize(lambda x: (x.sin() * x).sum(), torch.ones(3))
    (module,) = [
        c.cell_contents
        for f in _closures(push)
        for c in f.__closure__ or ()
        if isinstance(c.cell_contents, torch.fx.GraphModule)
    ]
    assert all(not n.meta and n.op != "get_attr" for n in module.graph.nodes)


def _closures(f: Any) -> list[Any]:
    inner = [
        c.cell_contents
        for c in f.__closure__ or ()
        if callable(c.cell_contents) and hasattr(c.cell_contents, "__closure__")
    ]
    return [f, *inner]


@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_an_argument_that_is_not_used_is_described_as_well(mode: str) -> None:
    traced = make_fx(lambda x, y, n: x * 1, tracing_mode=mode)(
        torch.ones(2), torch.ones(3, dtype=torch.int8), 4
    )
    assert node(traced, "y_1").meta["val"].dtype is torch.int8
    assert isinstance(node(traced, "n_1").meta.get("val"), torch.SymInt) is (mode == "symbolic")


def test_a_number_that_is_computed_of_sizes_is_described_with_its_value() -> None:
    traced = make_fx(
        lambda x: x.new_ones(x.shape[0] * 2 + 1, x.shape[1] // 2), tracing_mode="symbolic"
    )(torch.ones(5, 8))
    (call,) = (n for n in traced.graph.nodes if n.target is torch.ops.aten.new_ones.default)
    sizes = [n.meta["val"] for n in call.args[1]]
    assert [type(n) for n in sizes] == [torch.SymInt] * 2 and [n.node.hint for n in sizes] == [
        11,
        4,
    ]
    assert call.meta["val"].shape == tuple(sizes)


def test_abstract_values_of_a_mode_are_of_that_mode() -> None:
    for mode in (None, FakeTensorMode(), FakeTensorMode()):
        values = AbstractValues(mode)
        # of the second a part is copied from the first
        for t in (torch.zeros(2), torch.zeros(3), torch.zeros(2, device="meta")):
            found = values.of(t)
            assert found.fake_mode is values.mode and (mode is None or values.mode is mode)
            assert found.device == t.device and not found.requires_grad


def test_the_modes_of_the_caller_see_nothing_of_a_description() -> None:
    with CallsSeen() as seen:
        for t in (torch.zeros(2, 3), torch.zeros(2, 3)[:, 1:], torch.eye(2).to_sparse()):
            AbstractValues(None).of(t)
    assert set(seen.names) <= {"aten::eye", "aten::_to_sparse", "aten::zeros", "aten::slice"}


def test_late_values_are_made_once() -> None:
    values, call = (
        AbstractValues(None, late=True),
        torch.fx.Graph().call_function(torch.ops.aten.sin.default),
    )
    values.describe(call, torch.zeros(2))
    values.complete()
    first = call.meta["val"]
    values.complete()
    assert call.meta["val"] is first
    fake = values.of(torch.zeros(2))
    assert values.describe(call, fake) is fake is call.meta["val"]


def test_the_geometry_of_symbolic_sizes_asks_for_no_guard() -> None:
    traced = make_fx(lambda x: x * 2, tracing_mode="symbolic")(
        torch.zeros(IMAGE).contiguous(memory_format=torch.channels_last)
    )
    for n in traced.graph.nodes:
        if n.op != "output":
            found = n.meta["tensor_meta"]
            assert (
                found.requires_grad,
                found.is_quantized,
                found.memory_format,
                found.qparams,
            ) == (False, False, None, {})
            assert found.dtype is torch.float32 and found.stride == n.meta["val"].stride()
    sparse = torch.fx.Graph().call_function(torch.ops.aten.sin.default)
    AbstractValues(None).describe(sparse, torch.eye(3).to_sparse())
    assert (
        sparse.meta["tensor_meta"][:3] == ((3, 3), torch.float32, False)
        and sparse.meta["tensor_meta"].qparams == {}
    )


def test_what_nobody_asks_for_is_not_noted_and_not_allowed() -> None:
    x, net, real = torch.ones(2, 3), Net(), torch.ones(3)
    modules = {
        mode: make_fx(lambda x: x * 2, tracing_mode=mode)(x)
        for mode in ("real", "fake", "symbolic")
    }
    assert [module.shape_env is not None for module in modules.values()] == [False, False, True]
    for n in make_fx(net)(x).graph.nodes:
        assert not {"nn_module_stack", "torch_fn", "stack_trace"} & n.meta.keys()
    with pytest.raises(RuntimeError, match="Please convert all Tensors to FakeTensors first"):
        make_fx(lambda x: x * real, tracing_mode="fake")(x)
    given: list[Any] = []

    def f(x: torch.Tensor, module: Any) -> torch.Tensor:
        given.append(module)
        return x * 2

    make_fx(f)(x, net)
    assert given == [net]
