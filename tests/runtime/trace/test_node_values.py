"""What a graph says of the values of its nodes: shape, layout, dtype and device, and symbols for
numbers. Nothing of it holds memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.shape_prop import _extract_tensor_metadata

import runtime
from runtime import jit
from runtime.aot import aot_function, default_partition, make_fx, nop
from runtime.func import linearize, vmap
from tests.runtime.trace.graphs import CallsSeen, Net, node, targets

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


class Compared(fx.Interpreter):
    """Runs a graph. What each node says of its value is true of the value that it has."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, torch.Tensor) and n.op == "call_function":
            abstract = n.meta["val"]
            assert type(abstract) is FakeTensor
            assert _facts(abstract) == _facts(value), n
            assert n.meta["tensor_meta"] == _extract_tensor_metadata(value), n
        return value


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("name", VALUES)
def test_a_node_of_a_trace_has_the_geometry_of_its_value(name: str, mode: str) -> None:
    module = make_fx(VALUES[name], tracing_mode=mode)()
    assert len(module.graph.nodes) > 1
    Compared(module).run()


@pytest.mark.parametrize("name", VALUES)
def test_a_node_that_a_compiler_gets_has_the_geometry_of_its_value(name: str) -> None:
    modules: list[fx.GraphModule] = []

    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        modules.append(module)
        return Compared(module).run

    aot_function(lambda x: (VALUES[name](), x * 1), compiler)(torch.ones(2))
    assert len(targets(modules[0])) > 1


def test_a_node_of_another_layout_is_described_too() -> None:
    call = node(make_fx(lambda x: x.to_sparse())(torch.eye(3)), "_to_sparse")
    described = call.meta["tensor_meta"]
    assert call.meta["val"].layout is torch.sparse_coo
    assert described[:4] == ((3, 3), torch.float32, False, ())
    assert not described.is_quantized and described.memory_format is None
    assert described.qparams == {}


def test_several_results_are_described_as_the_call_returns_them() -> None:
    def f(x: torch.Tensor) -> Any:
        return *x.split(2), *x.max(0)

    module = make_fx(f)(torch.ones(4, 3))
    parts, largest = node(module, "split").meta["val"], node(module, "max_1").meta["val"]
    assert type(parts) is list and [t.shape for t in parts] == [(2, 3)] * 2
    assert isinstance(largest, tuple)
    assert [(t.shape, t.dtype) for t in largest] == [((3,), torch.float32), ((3,), torch.int64)]


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


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_a_trace_of_fake_arguments_works_in_their_mode_and_no_other_trace_does(
    tracing_mode: str,
) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    of_fake = make_fx(f, tracing_mode=tracing_mode)(_fake(torch.ones(2), mode), torch.ones(2))
    assert all(n.meta["val"].fake_mode is mode for n in of_fake.graph.nodes if n.op != "output")
    of_real = make_fx(f, tracing_mode=tracing_mode)(torch.ones(2), torch.ones(2))
    modes = {n.meta["val"].fake_mode for n in of_real.graph.nodes if n.op != "output"}
    assert len(modes) == 1 and mode not in modes


def _sizes_of_inputs(f: Callable[..., Any], *args: torch.Tensor, dynamic: bool) -> list[Any]:
    """The shapes that the inputs of the graph have, which a compiler gets."""
    shapes: list[Any] = []

    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        places = module.graph.find_nodes(op="placeholder")
        shapes.extend(n.meta["val"].shape for n in places)
        return nop(module, inputs)

    aot_function(f, compiler, dynamic=dynamic)(*args)
    return shapes


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_sizes_of_an_argument_are_symbols_if_the_graph_is_for_any_size(dynamic: bool) -> None:
    closed = torch.ones(5, 4)
    argument, constant = _sizes_of_inputs(
        lambda x: x.sum() * closed, torch.ones(3, 4), dynamic=dynamic
    )
    assert [isinstance(n, torch.SymInt) for n in argument] == [dynamic] * 2
    assert constant == (5, 4) and all(type(n) is int for n in constant)


def test_a_view_of_an_argument_that_is_closed_over_has_numbers_beside_its_base() -> None:
    base = torch.ones(3, 4)
    part = base[1:]
    argument, constant = _sizes_of_inputs(lambda x: x.sum() * part, base, dynamic=True)
    assert all(isinstance(n, torch.SymInt) for n in argument)
    assert constant == (2, 4) and all(type(n) is int for n in constant)


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


def test_a_value_of_a_transform_is_described_without_its_batch() -> None:
    found: list[Any] = []

    def f(x: torch.Tensor) -> Any:
        module = make_fx(lambda y: y * 1)(x)
        found.append(node(module, "y_1").meta["val"])
        return module(x)

    vmap(f)(torch.ones(5, 2, 3, dtype=torch.float64).transpose(1, 2))
    assert _facts(found[0])[:2] == ((3, 2), (1, 3))
    assert (found[0].dtype, found[0].device.type) == (torch.float64, "cpu")


def _number_of_programs(f: Callable[..., Any], *shapes: tuple[int, ...]) -> int:
    jitted = jit(f, dynamic=True)
    for shape in shapes:
        jitted(torch.ones(shape))
    return len(jitted.captured)


def test_a_graph_is_for_the_sizes_that_its_conditions_allow() -> None:
    def divides(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if x.shape[0] % x.shape[1] == 0 else 3)

    assert _number_of_programs(divides, (6, 3), (8, 4)) == 1
    assert _number_of_programs(divides, (6, 3), (7, 3)) == 2


def test_a_size_of_one_is_another_graph_since_it_broadcasts() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert _number_of_programs(double, (6, 3), (2, 3), (7, 3)) == 1
    assert _number_of_programs(double, (6, 3), (1, 3)) == 2


def test_a_quotient_by_zero_is_another_case() -> None:
    def divides(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if x.shape[0] % x.shape[1] == 0 else 3)

    jitted = jit(divides, dynamic=True)
    jitted(torch.ones(6, 3))
    with pytest.raises(ZeroDivisionError):
        jitted(torch.ones(6, 0))


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


def test_all_values_of_a_graph_are_of_one_mode() -> None:
    """Also the one that is a part of another, and the one on another device."""

    def f(x: torch.Tensor) -> Any:
        return x * 2, x[1:].sin(), torch.zeros(2, device="meta")

    values = [n.meta["val"] for n in make_fx(f)(torch.ones(3)).graph.nodes if n.op != "output"]
    assert len({value.fake_mode for value in values}) == 1
    assert [value.device.type for value in values].count("meta") == 1
    assert not any(value.requires_grad for value in values)


def test_the_modes_of_the_caller_see_nothing_of_a_description() -> None:
    examples = (torch.zeros(2, 3), torch.zeros(2, 3)[:, 1:], torch.eye(2).to_sparse())
    with CallsSeen() as seen:
        for t in examples:
            make_fx(lambda x: x * 1)(t)
    # the first two enter the argument in the trace
    assert set(seen.names) <= {"aten::detach", "aten::clone", "aten::mul"}


def test_late_values_are_made_once() -> None:
    joint: list[fx.GraphModule] = []
    halves: list[fx.GraphModule] = []

    def partition(module: fx.GraphModule, *args: Any, **options: Any) -> Any:
        joint.append(module)
        return default_partition(module, *args, **options)

    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        halves.append(module)
        return nop(module, inputs)

    x = runtime.wrap(torch.ones(3), requires_grad=True)
    aot_function(lambda x: x.sin().exp(), compiler, partition_fn=partition)(x).sum().backward()
    for name in ("sin", "exp"):
        assert node(joint[0], name).meta["val"] is node(halves[0], name).meta["val"]


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
