"""``make_fx`` and each of its keywords. What torch's own ``make_fx`` gives is written down as a
plain value where it is a name or a key."""

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.passes.shape_prop import TensorMetadata

from runtime.aot import aot_function, make_fx, nop
from runtime.autograd.graph import get_gradient_edge
from runtime.func import grad, hessian, jacfwd, jacrev, linearize
from tests.runtime.aot.conftest import generated_at_once  # noqa: F401  programs are called once
from tests.runtime.trace.graphs import Net, close, names, node, targets

aten = torch.ops.aten


# names


def test_placeholders_have_the_names_of_arguments_and_calls_those_of_ops() -> None:
    def f(x: torch.Tensor, pair: list[torch.Tensor], n: int) -> torch.Tensor:
        return (x + pair[0]).sum(0) * pair[1] * n

    x = torch.randn(2, 3)
    assert names(make_fx(f)(x, [x, x], 3)) == [
        "x_1",
        "pair_1",
        "pair_2",
        "n_1",
        "add",
        "sum_1",
        "mul",
        "mul_1",
        "output",
    ]
    assert names(make_fx(lambda *xs: xs[0] + xs[1])(x, x)) == ["arg0_1", "arg1_1", "add", "output"]
    assert names(make_fx(nn.ReLU())(x)) == ["arg0_1", "relu", "output"]


def test_a_constant_is_read_where_it_is_first_used_and_parameters_are_called_so() -> None:
    parameter, table = nn.Parameter(torch.ones(3)), torch.ones(3)
    module = make_fx(lambda x: x.sin() * parameter + table)(torch.ones(3))
    assert names(module) == [
        "x_1",
        "sin",
        "_param_constant0",
        "mul",
        "_tensor_constant0",
        "add",
        "output",
    ]


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_the_module_can_be_pickled_and_copied(mode: str) -> None:
    x = torch.randn(4, 3)
    module = make_fx(lambda x: x.sin() + torch.ones(x.shape[0], 3), tracing_mode=mode)(x)
    close(pickle.loads(pickle.dumps(module))(x), module(x))
    close(copy.deepcopy(module)(x), module(x))


# abstract values


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_values_in_meta_are_fake_tensors_with_shape_strides_dtype_and_device(mode: str) -> None:
    x = torch.randn(4, 3)
    module = make_fx(lambda x: x.t().double().split(1)[1], tracing_mode=mode)(x)
    values = {n.name: n.meta["val"] for n in module.graph.nodes if "val" in n.meta}
    t, getitem = (
        values["t"],
        values[next(name for name in names(module) if name.startswith("getitem"))],
    )
    assert isinstance(t, FakeTensor) and isinstance(getitem, FakeTensor)
    assert (tuple(map(int, t.shape)), tuple(map(int, t.stride())), t.device) == (
        (3, 4),
        (1, 3),
        x.device,
    )
    assert (tuple(map(int, getitem.shape)), getitem.dtype) == ((1, 4), torch.float64)
    assert isinstance(node(module, "t").meta["tensor_meta"], TensorMetadata)


def test_metadata_says_the_memory_format() -> None:
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    module = make_fx(lambda x: (x + 1).contiguous())(x)
    assert node(module, "add").meta["tensor_meta"].memory_format is torch.channels_last
    assert node(module, "clone").meta["tensor_meta"].memory_format is torch.contiguous_format
    assert node(module, "add").meta["tensor_meta"].requires_grad is False


def test_lazy_conjugates_and_offsets_are_in_the_abstract_value() -> None:
    module = make_fx(lambda c: c[1:].conj())(torch.randn(3, dtype=torch.complex64))
    value = module.graph.output_node().args[0].meta["val"]  # type: ignore[union-attr]
    assert value.is_conj() and value.storage_offset() == 1


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_the_value_before_a_change_of_geometry_in_place_keeps_its_shape(mode: str) -> None:
    module = make_fx(lambda x: x.t_() + 1, tracing_mode=mode)(torch.randn(2, 3))
    assert node(module, "x_1").meta["val"].shape == (2, 3)
    assert node(module, "t_").meta["val"].shape == (3, 2)


def test_a_graph_keeps_no_tensor_of_its_trace() -> None:
    kept: list[Any] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        kept.append(weakref.ref(y._inner))  # type: ignore[attr-defined]
        z = y + 1
        del y
        assert kept[0]() is None  # it is freed while the program runs
        kept.append(weakref.ref(z._inner))  # type: ignore[attr-defined]
        return z

    module = make_fx(f)(torch.ones(3))
    gc.collect()
    assert kept[1]() is None
    close(module(torch.ones(3)), torch.full((3,), 3.0))


def test_values_that_are_no_strided_tensors_are_described() -> None:
    module = make_fx(lambda x: x.to_sparse().to_dense())(torch.eye(3))
    assert node(module, "_to_sparse").meta["val"].layout is torch.sparse_coo
    close(module(2 * torch.eye(3)), 2 * torch.eye(3))


# modes


def test_fake_mode_runs_no_kernel_and_draws_nothing() -> None:
    before = torch.get_rng_state()
    # 4 TB
    module = make_fx(lambda x: torch.rand(2**20, 2**20).sum() + x, tracing_mode="fake")(
        torch.zeros(())
    )
    assert torch.get_rng_state().equal(before)
    assert targets(module)[0] is aten.rand.default


def test_real_mode_advances_the_random_state_as_the_program_does() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3)

    torch.manual_seed(5)
    f(torch.zeros(3))
    expected = torch.rand(2)
    torch.manual_seed(5)
    make_fx(f)(torch.zeros(3))
    close(torch.rand(2), expected)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_fake_arguments_bring_their_mode(mode: str) -> None:
    with FakeTensorMode() as fakes:
        x = torch.randn(2, 3)
    module = make_fx(lambda x: x.sin().t(), tracing_mode=mode)(x)
    assert all(n.meta["val"].fake_mode is fakes for n in module.graph.nodes if "val" in n.meta)
    y = torch.randn(2, 3)
    close(module(y), y.sin().t())


def test_fake_arguments_of_two_modes_are_refused() -> None:
    with FakeTensorMode():
        x = torch.randn(2)
    with FakeTensorMode():
        y = torch.randn(2)
    with pytest.raises(RuntimeError, match="two modes"):
        make_fx(torch.add)(x, y)


def test_a_program_may_close_over_fake_tensors_of_the_mode_of_its_arguments_only() -> None:
    with FakeTensorMode():
        x, closed = torch.randn(2), torch.randn(2)
    assert node(make_fx(lambda x: x + closed)(x), "_tensor_constant0").meta["val"] is closed
    with pytest.raises(RuntimeError, match=r"closes over a fake tensor.*test_make_fx\.py"):
        make_fx(lambda x: x + closed)(torch.randn(2))


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_real_constants_beside_fake_arguments_need_a_keyword(mode: str) -> None:
    table, x = torch.randn(3), torch.randn(4, 3)
    with pytest.raises(RuntimeError, match=r"_allow_non_fake_inputs.*test_make_fx\.py"):
        make_fx(lambda x: x * table, tracing_mode=mode)(x)
    module = make_fx(lambda x: x * table, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
    close(module(x), x * table)
    literal = make_fx(lambda x: x * torch.tensor([1.0, 2.0, 3.0]), tracing_mode=mode)(x)
    close(literal(x), x * torch.tensor([1.0, 2.0, 3.0]))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="'real', 'fake' or 'symbolic'"):
        make_fx(torch.sin, tracing_mode="abstract")


# what a trace leaves alone


def test_a_trace_does_not_write_to_closed_over_tensors_and_a_replay_does() -> None:
    counter, table = torch.zeros(()), torch.ones(4)

    def f(x: torch.Tensor) -> torch.Tensor:
        counter.add_(1)
        table[1:].mul_(3)
        return x * table.sum()

    module = make_fx(f)(torch.ones(()))
    assert counter == 0 and table.tolist() == [1, 1, 1, 1] and table._version == 0
    close(module(torch.ones(())), torch.tensor(10.0))
    assert counter == 1 and table.tolist() == [1, 3, 3, 3]


def test_a_trace_in_training_mode_does_not_count_as_a_batch() -> None:
    net = Net()
    x = torch.randn(5, 3)
    before = copy.deepcopy(net.state_dict())
    module = make_fx(net)(x)
    close(dict(net.state_dict()), dict(before))
    module(x)
    norm: Any = net.rest[1]
    assert norm.num_batches_tracked == 1 and not norm.running_mean.equal(
        before["rest.1.running_mean"]
    )


def test_a_trace_that_fails_restores_closed_over_tensors() -> None:
    table = torch.ones(2)

    def f(x: torch.Tensor) -> torch.Tensor:
        table.zero_()
        return x if x.sum() > 0 else -x

    with pytest.raises(RuntimeError, match="while the program is being traced"):
        make_fx(f)(torch.ones(2))
    close(table, torch.ones(2))


def test_a_generator_is_an_attribute_and_its_draws_are_replayed() -> None:
    generator = torch.Generator().manual_seed(1)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3, generator=generator)

    module = make_fx(f)(torch.zeros(3))
    assert "_opaque_obj0" in names(module)
    generator.manual_seed(2)
    expected = f(torch.zeros(3))
    generator.manual_seed(2)
    close(module(torch.zeros(3)), expected)


@pytest.mark.parametrize("mode", ["real", "symbolic"])
@pytest.mark.parametrize(
    "change", [lambda t: t.t_(), lambda t: t.add_(1).resize_(2), lambda t: t.unsqueeze_(0)]
)
def test_a_change_of_the_geometry_of_a_closed_over_tensor_is_refused(
    change: Any, mode: str
) -> None:
    table = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match=r"sizes or strides in place.*test_make_fx\.py"):
        make_fx(lambda x: x + change(table).sum(), tracing_mode=mode, _allow_non_fake_inputs=True)(
            torch.ones(3)
        )
    assert table.equal(torch.ones(2, 3))


# decompositions


VIEWS = get_decompositions(
    [aten.t, aten.expand, aten.slice, aten.transpose, aten.unsqueeze, aten.squeeze]
)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.t(),
        lambda x: x.expand(4, 2, 3),
        lambda x: x[1:],
        lambda x: x[:],
        lambda x: x[0].t() * 2,
    ],
)
def test_views_can_be_decomposed(f: Any) -> None:
    x = torch.randn(2, 3)
    module = make_fx(f, decomposition_table=VIEWS)(x)
    assert not {aten.t.default, aten.expand.default, aten.slice.Tensor} & set(targets(module))
    close(module(x), f(x))


def test_a_write_to_a_decomposed_view_reaches_its_base() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.t()[0].add_(1)
        y[:].mul_(2)
        return y

    x = torch.randn(2, 3)
    close(make_fx(f, decomposition_table=VIEWS)(x)(x), f(x))


@pytest.mark.parametrize("table", [VIEWS, core_aten_decompositions()], ids=["views", "core"])
def test_a_joint_graph_can_be_decomposed(table: Any) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.GELU())
    x = torch.randn(4, 3, requires_grad=True)
    compiled = aot_function(net, nop, decompositions=table)
    expected = torch.autograd.grad(net(x).sum(), x)[0]
    import runtime

    y = runtime.wrap(x.detach(), requires_grad=True)
    close(runtime.unwrap(runtime.autograd.grad(compiled(y).sum(), y)[0]), expected)


# values in Python


def test_a_refusal_names_the_line_of_the_program() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x

    for trace in (make_fx(f), aot_function(f, nop)):
        with pytest.raises(
            RuntimeError,
            match=rf"test_make_fx\.py:{f.__code__.co_firstlineno + 1}: if x\.sum\(\) > 0:",
        ):
            trace(torch.ones(3))
    with pytest.raises(
        RuntimeError, match=r"size.*depends on values.*test_make_fx\.py:\d+: .*nonzero"
    ):
        aot_function(lambda x: x.nonzero(), nop)(torch.ones(3))


def test_a_condition_on_an_unknown_value_names_the_line() -> None:
    with pytest.raises(GuardOnDataDependentSymNode) as refused:
        make_fx(lambda x: x if x.sum() > 0 else -x, tracing_mode="symbolic")(torch.ones(3))
    assert "test_make_fx.py" in str(refused.value)


def test_a_number_may_be_made_a_constant() -> None:
    module = make_fx(lambda x: x * x.sum().item(), _error_on_data_dependent_ops=False)(
        torch.ones(3)
    )
    close(module(torch.full((3,), 2.0)), torch.full((3,), 6.0))


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.nonzero().sum(0) + x.shape[0],
        lambda x: torch.zeros(x.nonzero().shape[0] * 2) + 1,
        lambda x: x[x > 0] * 2,
        lambda x: x * x.sum().item(),
        lambda x: torch.ones(x.unique().shape[0] + 1),
        lambda x: torch.masked_select(x, x > 0),
        lambda x: torch.nonzero(x, as_tuple=True)[0],
        lambda x: torch.split(x.flatten()[:3], x.argmax().reshape(1).tolist() * 0 + [1, 2])[1],
        lambda x: torch.full((2,), x.numel() / 2) + x.max().long().item(),
        lambda x: x + (x > 0).sum().item() // 2,
    ],
)
def test_sizes_and_numbers_that_depend_on_values_are_symbols(f: Any, mode: str) -> None:
    module = make_fx(f, tracing_mode=mode)(torch.tensor([[1.0, -1.0], [3.0, 0.5]]))
    x = torch.tensor([[-2.0, -1.0], [3.0, 0.0]])
    close(module(x), f(x))


def test_an_unbacked_symbol_is_bound_at_the_node_that_makes_it() -> None:
    module = make_fx(lambda x: torch.zeros(x.nonzero().shape[0]), tracing_mode="symbolic")(
        torch.ones(3)
    )
    ((symbol, path),) = node(module, "nonzero").meta["unbacked_bindings"].items()
    assert str(symbol) == "u0" and len(path) == 2
    assert names(module) == ["x_1", "nonzero", "sym_size_int", "zeros", "output"]


def test_a_kernel_that_asks_whether_values_are_equal_is_refused_on_fake_tensors() -> None:
    with pytest.raises(RuntimeError, match=r"while the program is being traced.*test_make_fx\.py"):
        make_fx(lambda x: x if torch.equal(x, x) else -x, tracing_mode="fake")(torch.ones(3))


# symbols


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x.shape[0], x.cos(), x.shape[0] / 5),
        lambda x: x[:, x.shape[1] // 2 :],
        lambda x: torch.arange(x.shape[0] % 3 + x.shape[0] // 2),
        lambda x: x * (1.0 / x.shape[-1] ** 0.5),
        lambda x: torch.zeros(torch.sym_max(x.shape[0], x.shape[1])),
        lambda x: x.as_strided((2,), (1,), x.storage_offset() + 1),
        lambda x: x.as_strided(x.shape, x.stride()),
        lambda x: torch.empty(0).resize_(x.shape[0] * 2).fill_(1),
        lambda x: x.clone().index_put_((x > 0,), torch.tensor(0.0)),
        lambda x: nn.functional.interpolate(x[None, None], scale_factor=2),
        lambda x: x.clone().t_().reshape(-1) * x.shape[1],
        lambda x: linearize(lambda y: y.sum() * y * y.shape[0], x)[1](x),
        lambda x: linearize(lambda y: grad(lambda z: (z**3).sum() * z.shape[1])(y), x)[1](x),
    ],
)
def test_a_symbolic_graph_computes_what_follows_from_sizes(f: Any) -> None:
    module = make_fx(f, tracing_mode="symbolic")(torch.randn(7, 5)[1:])
    for x in (torch.randn(9, 6)[2:], torch.randn(5, 3)[1:]):
        close(module(x), f(x))


def test_an_integer_argument_is_a_symbol_in_symbolic_mode_and_a_constant_in_others() -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.zeros(n, 2) + n * x

    x = torch.ones(2)
    module = make_fx(f, tracing_mode="symbolic")(x, 5)
    for n in (3, 1, 7):
        close(module(x, n), f(x, n))
    assert module.shape_env is node(module, "n_1").meta["val"].node.shape_env
    close(make_fx(f)(x, 5)(x, 3), f(x, 5))


def test_a_size_is_read_before_it_changes_in_place() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        rows = y.shape[0]
        y.t_()
        return torch.zeros(rows, y.shape[0])

    module = make_fx(f, tracing_mode="symbolic")(torch.randn(4, 5))
    assert module(torch.randn(6, 7)).shape == (6, 7)


# nesting


@pytest.mark.parametrize("inner", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("outer", ["real", "fake", "symbolic"])
def test_a_trace_runs_inside_a_trace_and_leaves_no_trace_of_its_own(outer: str, inner: str) -> None:
    def f(y: torch.Tensor) -> torch.Tensor:
        return y.sin() * y.shape[0]

    def traced(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = make_fx(f, tracing_mode=inner)(x)(x)
        return out

    x = torch.randn(4, 3)
    module = make_fx(traced, tracing_mode=outer)(x)
    assert [t for t in targets(module) if t is not aten.sym_size.int] == [
        aten.sin.default,
        aten.mul.Tensor,
    ]
    close(module(x), f(x))
    close(grad(lambda x: traced(x).sum())(x), grad(lambda x: f(x).sum())(x))


def test_a_tensor_of_the_session_is_traced_as_a_plain_one() -> None:
    import runtime

    x = runtime.wrap(torch.tensor([1.0, 2.0]), requires_grad=True)
    for mode in ("real", "fake", "symbolic"):
        module = make_fx(lambda y: y * 2, tracing_mode=mode)(x)
        close(module(torch.tensor([3.0, 4.0])), torch.tensor([6.0, 8.0]))


# draws


@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_dropout_in_a_gradient_draws_as_without_a_trace(mode: str) -> None:
    f = grad(lambda x: (nn.functional.dropout(x, 0.3) * x).sum())
    x = torch.randn(4, 30)
    module = make_fx(f, tracing_mode=mode)(x)
    torch.manual_seed(3)
    expected = f(x)
    torch.manual_seed(3)
    close(module(x), expected)


# further kinds of inputs and results


def test_modules_among_the_arguments_may_be_inputs_of_the_graph() -> None:
    module = make_fx(lambda m, x: m(x) * 2 + m.bias, proxy_module_inputs=True)(
        nn.Linear(3, 3), torch.randn(4, 3)
    )
    other, x = nn.Linear(3, 3), torch.randn(4, 3)
    close(module(other, x), other(x) * 2 + other.bias)


def test_literals_are_copied_and_may_be_read() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        table = torch.tensor([1.0, 2.0])
        table.add_(1)
        out: torch.Tensor = x * table * torch.tensor([2, 3]).tolist()[1]
        return out

    module = make_fx(f)(torch.ones(2))
    for _ in range(2):
        close(module(torch.ones(2)), torch.tensor([6.0, 9.0]))


@pytest.mark.parametrize("closed", [torch.nn.Linear(3, 3)])
def test_transforms_of_modules_with_parameters_of_torch_are_traced(closed: nn.Linear) -> None:
    x = torch.randn(3)
    module = make_fx(hessian(lambda z: closed(z).pow(2).sum()))(x)
    weight = closed.weight
    close(module(x), 2 * (weight.t() @ weight).detach())


def test_graph_passes_of_torch_take_the_module() -> None:
    from torch._functorch.compile_utils import fx_graph_cse
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp
    from torch.fx.passes.shape_prop import ShapeProp

    x = torch.randn(3)
    module = make_fx(lambda x: x.sin() + x.sin())(x)
    shorter = fx_graph_cse(module.graph)
    assert sum(n.op == "call_function" for n in shorter.nodes) == 2
    close(torch.fx.GraphModule(module, shorter)(x), module(x))
    ShapeProp(module).propagate(x)
    FakeTensorProp(module).propagate(x)
    module.print_readable(print_output=False)


def test_jacobians_of_several_arguments_are_right_for_other_sizes() -> None:
    """The place of an argument in the basis is a sum of sizes."""

    def f(x: Any, w: Any) -> Any:
        return (x @ w).sin().sum(1)

    w = torch.arange(6.0).view(3, 2) / 6
    for transform in (jacfwd, jacrev):
        jacobian = transform(f, (0, 1))
        graph = make_fx(jacobian, tracing_mode="symbolic")(torch.ones(4, 3), w)
        for n in (4, 6, 3):
            x = torch.arange(3.0 * n).view(n, 3) / n
            torch.testing.assert_close(graph(x, w), jacobian(x, w))


def test_metadata_of_a_tensor_of_any_size_tells_no_gradient_quantization_or_memory_format() -> None:
    found = node(make_fx(lambda x: x.sin(), tracing_mode="symbolic")(torch.ones(4, 3)), "sin").meta[
        "tensor_meta"
    ]
    assert (found.requires_grad, found.is_quantized, found.memory_format, found.qparams) == (
        False,
        False,
        None,
        {},
    )


@pytest.mark.parametrize(
    "edge_of",
    [torch.autograd.graph.get_gradient_edge, get_gradient_edge],
    ids=["torch", "runtime"],
)
def test_a_gradient_edge_stands_for_its_tensor(edge_of: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad([edge_of(leaf.sin())], [leaf], [torch.ones(3)])

    x = torch.linspace(0, 1, 3)
    torch.testing.assert_close(make_fx(program)(x + 1)(x), (x.cos(),))
