"""A functionalized program mutates nothing inside and means the same outside."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.aot import make_fx
from runtime.errors import EscapedValue, InplaceError
from runtime.func import functionalize, vjp, vmap

aten = torch.ops.aten


def write_through_a_view(x: torch.Tensor) -> Any:
    y = x.clone()
    part = y.view(-1)[1:4]
    part.mul_(2)
    y[0].add_(1)
    return y, part


def write_to_the_base_of_a_view(x: torch.Tensor) -> Any:
    y = x.clone()
    row = y[1]
    y.sin_()
    return row


def change_geometry(x: torch.Tensor) -> Any:
    y = x.clone()
    y.t_()
    y.unsqueeze_(0)
    y[0, 0].zero_()
    return y


def write_to_pieces(x: torch.Tensor) -> Any:
    y = x.clone()
    a, b = torch.split(y, [1, 2])
    b.cos_()
    for row in y.unbind():
        row.add_(1)
    return y, a


def write_to_diagonal(x: torch.Tensor) -> Any:
    y = x.clone()
    y.diagonal().fill_(7)
    y.T[1].neg_()
    return y


def write_where_no_inverse_is_written(x: torch.Tensor) -> Any:
    y = x.clone()
    y.unfold(1, 2, 2).mul_(3)
    return y


def fill_a_fresh_buffer(x: torch.Tensor) -> Any:
    y = torch.zeros(3)
    y[1] = x.sum()
    torch.add(y, 1, out=y)
    return y


def cast_on_write(x: torch.Tensor) -> Any:
    y = torch.zeros(3, 4, dtype=torch.float32)
    y.add_(x.double())
    y.copy_(x.double())
    return y


def write_by_index(x: torch.Tensor) -> Any:
    y = x.clone()
    y.index_put_((torch.tensor([0, 0]),), torch.ones(2, 4), accumulate=True)
    y[y > 1] = 0
    return y


PROGRAMS = [
    write_through_a_view,
    write_to_the_base_of_a_view,
    change_geometry,
    write_to_pieces,
    write_to_diagonal,
    write_where_no_inverse_is_written,
    fill_a_fresh_buffer,
    cast_on_write,
    write_by_index,
]


def mutations(graph: torch.fx.Graph) -> list[str]:
    return [
        str(n.target)
        for n in graph.nodes
        if n.op == "call_function"
        and getattr(n.target, "_schema", None)
        and n.target._schema.is_mutable
    ]


@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
@pytest.mark.parametrize("f", PROGRAMS)
def test_the_result_is_that_of_the_program(f: Callable[..., Any], remove: str) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(functionalize(f, remove=remove)(x), f(x))


@pytest.mark.parametrize("f", PROGRAMS)
def test_its_graph_has_no_mutation_and_replays(f: Callable[..., Any]) -> None:
    module = make_fx(functionalize(f))(torch.randn(3, 4))
    assert mutations(module.graph) == []
    x = torch.randn(3, 4)
    torch.testing.assert_close(module(x), f(x))


def test_a_composite_op_that_fills_a_buffer_of_its_own_mutates_nothing_either() -> None:
    module = make_fx(functionalize(lambda x: torch.block_diag(x, x)))(torch.randn(2, 3))
    assert mutations(module.graph) == []
    x = torch.randn(2, 3)
    torch.testing.assert_close(module(x), torch.block_diag(x, x))


def test_views_can_be_removed_too() -> None:
    module = make_fx(functionalize(write_through_a_view, remove="mutations_and_views"))(
        torch.randn(3, 4)
    )
    names = [str(n.target) for n in module.graph.nodes if n.op == "call_function"]
    assert "aten.view_copy.default" in names
    assert not any(name.startswith(("aten.view.", "aten.slice.", "aten.select.")) for name in names)


def test_a_mutated_argument_is_mutated_once_at_the_end() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[0] = 5
        return x.sum()

    a, b = torch.ones(2, 2), torch.ones(2, 2)
    torch.testing.assert_close(functionalize(f)(a), f(b))
    torch.testing.assert_close(a, b)
    module = make_fx(functionalize(f))(torch.ones(2, 2))
    assert mutations(module.graph) == ["aten.copy_.default"]


def test_a_closed_over_tensor_is_mutated_at_the_end_and_read_meanwhile() -> None:
    count = torch.zeros(())

    def f(x: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return x * count

    torch.testing.assert_close(functionalize(f)(torch.ones(2)), torch.ones(2))
    assert count == 1


def test_running_statistics_of_batch_norm_are_found_though_the_schema_hides_them() -> None:
    a, b = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
    x = torch.randn(5, 4)
    torch.testing.assert_close(functionalize(a)(x), b(x))
    torch.testing.assert_close(a.running_mean, b.running_mean)


def test_it_composes_with_vmap_and_vjp() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.mul_(x)
        y.sin_()
        return y

    x, g = torch.randn(3, 4), torch.randn(3, 4)
    expected = g * (x * x).cos() * 2 * x
    torch.testing.assert_close(functionalize(lambda x: vjp(f, x)[1](g)[0])(x), expected)
    torch.testing.assert_close(vjp(functionalize(f), x)[1](g)[0], expected)
    torch.testing.assert_close(vmap(functionalize(f))(x), f(x))


def test_a_saved_tensor_mutated_through_a_view_is_an_error_as_in_eager() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        z = y * y
        y[0].zero_()
        return z

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        functionalize(lambda x: vjp(f, x)[1](torch.ones(3))[0])(torch.ones(3))


def test_writing_to_an_expanded_tensor_is_refused() -> None:
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        functionalize(lambda x: x.sum().expand(3).add_(1))(torch.ones(3))


def test_a_draw_in_place_draws_by_the_probability_that_it_is_given() -> None:
    sevens = torch.full((1000,), 7.0)
    drawn = functionalize(lambda x: x.clone().bernoulli_(0.25))(sevens)
    assert 150 < drawn.sum().item() < 350
    # one half
    assert 400 < functionalize(lambda x: x.clone().bernoulli_())(sevens).sum().item() < 600


CAPTURED: torch.Tensor = torch.zeros(2, 3)


def several_results(x: torch.Tensor) -> Any:
    top, where = x.new_zeros(3), torch.zeros(3, dtype=torch.int64)
    given = torch.max(x, 1, out=(top, where))
    return top, where, given[0]


def lists(x: torch.Tensor) -> Any:
    a, b = x.clone(), x.clone()
    torch._foreach_mul_([a, b[0]], 2.0)
    torch._foreach_add_([a, b], [x, x], alpha=3.0)
    return a, b


def without_functional_form(x: torch.Tensor) -> Any:
    a, b = x.clone(), x.clone()
    torch._foreach_zero_([a[0], b])
    return a, b


def returned_as_given(x: torch.Tensor) -> Any:
    y = x.clone()
    assert y.detach_() is y and y.add_(1) is y and torch.sin(y, out=y) is y
    return y


@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
@pytest.mark.parametrize("f", [several_results, lists, without_functional_form, returned_as_given])
def test_writes_of_every_form(f: Any, remove: str) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(functionalize(f, remove=remove)(x), f(x))


torch.library.define(
    "runtime_test_functionalize::running_sum", "(Tensor x, int n=1, *, Tensor(a!) total) -> Tensor"
)
torch.library.define(
    "runtime_test_functionalize::zero_all", "(Tensor(a!)[] xs, *, Tensor? last=None) -> ()"
)
torch.library.impl("runtime_test_functionalize::zero_all", "CompositeExplicitAutograd")(
    lambda xs, last=None: [x.mul_(0 if last is None else last) for x in xs] and None
)
torch.library.define(
    "runtime_test_functionalize::minmax_of",
    "(Tensor x, Tensor(a!) low, Tensor(b!) high) -> (Tensor, Tensor)",
)
torch.library.impl("runtime_test_functionalize::running_sum", "CompositeExplicitAutograd")(
    lambda x, n=1, *, total: total.add_(x * n) * 2
)
torch.library.impl("runtime_test_functionalize::minmax_of", "CompositeExplicitAutograd")(
    lambda x, low, high: (
        low.copy_(torch.minimum(low, x)) - 1,
        high.copy_(torch.maximum(high, x)) + 1,
    )
)
OWN = torch.ops.runtime_test_functionalize


def statistics(x: torch.Tensor) -> Any:
    table = x.new_ones(2, 4)
    return *aten._native_batch_norm_legit(x, None, None, table[0], table[1], True, 0.1, 1e-5), table


def statistics_of_a_layer(x: torch.Tensor) -> Any:
    table = x.new_ones(3, 4)
    return torch.nn.functional.batch_norm(x, table[1], table[2], training=True), table


def statistics_and_reserve(x: torch.Tensor) -> Any:
    mean, var = x.new_zeros(4), x.new_ones(4)
    return *aten._batch_norm_with_update(x, None, None, mean, var, 0.1, 1e-5), mean, var


def noise(x: torch.Tensor) -> Any:
    torch.manual_seed(0)
    drawn = x.new_zeros(2, 3, 4)
    return aten.rrelu_with_noise(x, drawn[1], training=True), drawn


def noise_in_place(x: torch.Tensor) -> Any:
    torch.manual_seed(0)
    y, drawn = x.clone(), torch.zeros_like(x)
    assert aten.rrelu_with_noise_(y, drawn, training=True) is y
    return y, drawn


def of_a_custom_op(x: torch.Tensor) -> Any:
    table = x.new_ones(3, 3, 4)
    return OWN.running_sum(x, total=table[0]), OWN.running_sum(x, 3, total=table[1]), table


def of_a_custom_op_with_several_results(x: torch.Tensor) -> Any:
    table = x.new_zeros(2, 3, 4)
    return *OWN.minmax_of(x, table[0], table[1]), table


def of_a_custom_op_on_lists(x: torch.Tensor) -> Any:
    y, z = x.clone(), x.new_ones(2, 4)
    row = z[1]
    z.add_(1)
    OWN.zero_all([y[0], row], last=z[0])
    OWN.zero_all([y[1]])
    return y, z, row


def of_a_helper_without_results(x: torch.Tensor) -> Any:
    table, where = x.new_zeros(2, 3, 4), torch.zeros(3, 4, dtype=torch.int64)
    assert aten._cummax_helper(x, table[1], where, 0) is None
    return table, where


WRITES_ON_THE_SIDE = [
    statistics,
    statistics_of_a_layer,
    statistics_and_reserve,
    noise,
    noise_in_place,
    of_a_custom_op,
]
WRITES_ON_THE_SIDE += [
    of_a_custom_op_on_lists,
    of_a_custom_op_with_several_results,
    of_a_helper_without_results,
]


@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
@pytest.mark.parametrize("f", WRITES_ON_THE_SIDE)
def test_ops_with_results_of_their_own_may_write_to_arguments_too(f: Any, remove: str) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(functionalize(f, remove=remove)(x), f(x))


@pytest.mark.parametrize("f", [statistics, statistics_and_reserve, noise, noise_in_place])
def test_their_graphs_have_the_functional_form(f: Any) -> None:
    assert mutations(make_fx(functionalize(f))(torch.randn(3, 4)).graph) == []


def test_trees_numbers_and_keywords_go_in_and_out() -> None:
    def f(tree: Any, *, factor: float) -> Any:
        tree["a"].mul_(factor)
        return {"b": [tree["a"] + 1, factor, None]}

    ours, theirs = {"a": torch.ones(2), "n": 3}, {"a": torch.ones(2), "n": 3}
    torch.testing.assert_close(functionalize(f)(ours, factor=2.0), f(theirs, factor=2.0))
    torch.testing.assert_close(ours["a"], theirs["a"])


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (
            lambda x: x.clone().resize_(2),
            "changes the storage or geometry of a tensor, which functionalize cannot follow",
        ),
        (lambda x: x.clone().set_(x), "changes the storage or geometry"),
        (lambda x: CAPTURED.t_(), "changes the geometry of a tensor that the program closes over"),
        (
            lambda x: torch.add(x, 1, out=x.new_zeros(1)),
            r"out= has shape \[1\], the result \[3, 4\]; give it that shape",
        ),
        (
            lambda x: x.new_zeros(3, 1).add_(x),
            r"output with shape \[3, 1\] doesn't match the broadcast shape \[3, 4\]",
        ),
    ],
)
def test_what_cannot_be_done_without_a_write_is_refused(f: Any, message: str) -> None:
    with pytest.raises((InplaceError, RuntimeError), match=message):
        functionalize(f)(torch.ones(3, 4))


def test_an_argument_is_fresh_already() -> None:
    x = torch.ones(3)
    torch.testing.assert_close(functionalize(lambda x: aten.lift_fresh.default(x) * 2)(x), x * 2)


@pytest.mark.parametrize("remove", ["", "views", None])
def test_what_to_remove_must_be_known(remove: Any) -> None:
    with pytest.raises(RuntimeError, match=f"received invalid argument for remove={remove}"):
        functionalize(lambda x: x, remove=remove)


def test_batch_norm_without_statistics_or_out_of_training_writes_nothing() -> None:
    x = torch.randn(5, 4)
    for module in (
        torch.nn.BatchNorm1d(4).eval(),
        torch.nn.BatchNorm1d(4, track_running_stats=False),
    ):
        before, versions = (
            {k: v.clone() for k, v in module.state_dict().items()},
            [b._version for b in module.buffers()],
        )
        torch.testing.assert_close(functionalize(module)(x), module(x))
        torch.testing.assert_close(dict(module.state_dict()), before)
        assert all(
            b._version == version for b, version in zip(module.buffers(), versions, strict=True)
        )
    module = torch.nn.BatchNorm1d(4)
    functionalize(module)(x)
    torch.testing.assert_close(module.running_var, 0.9 + 0.1 * x.var(0))


def test_a_value_shows_what_it_is_now() -> None:
    seen: list[str] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        row = y[0]
        y.zero_()
        seen.append(repr(row))
        return y

    functionalize(f)(torch.ones(2, 2))
    assert "FunctionalValue(level=" in seen[0] and "[0., 0.]" in seen[0]


def test_a_keyword_argument_is_read_as_it_is_now() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        order = torch.tensor([[0, 1, 2], [2, 1, 0]])
        row = order[0]
        order.copy_(order.flip(0))
        return torch.searchsorted(x, x.new_tensor([0.5, 1.5]), sorter=row)

    x = torch.tensor([2.0, 1.0, 0.0])
    assert functionalize(f)(x).tolist() == f(x).tolist() == [1, 2]


def test_writes_are_counted_as_torch_counts_them() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x.clone()
        row, counts = y[0], [y._version]
        row.add_(1)
        counts.append(y._version)
        y.mul_(2).neg_()
        return [*counts, row._version]

    assert functionalize(f)(torch.ones(2, 2)) == f(torch.ones(2, 2)) == [0, 1, 3]


def test_what_outlives_the_program_says_so() -> None:
    kept: list[Any] = []
    functionalize(lambda x: kept.append(x))(torch.ones(2))
    with pytest.raises(EscapedValue, match="after the transform has returned"):
        kept[0] + 1


def test_polygamma_in_place_is_functional_although_its_arguments_change_places() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.polygamma_(1) * 2

    x, y = torch.tensor([1.5, 2.5]), torch.tensor([1.5, 2.5])
    expected = torch.polygamma(1, x)
    torch.testing.assert_close(functionalize(f)(y), expected * 2)
    torch.testing.assert_close(y, expected)
    assert torch.ops.aten.polygamma.default in [
        n.target for n in make_fx(functionalize(f))(x).graph.nodes
    ]


def test_a_write_leaves_the_order_of_dimensions() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.cumsum_(0)  # the functional form of which is contiguous
        return x * 2

    for x in (
        torch.ones(2, 3).t(),
        torch.ones(2, 6)[:, ::2].t(),
        torch.ones(3, 2, 8)[..., ::2].permute(2, 0, 1),
    ):
        assert functionalize(f)(x).stride() == f(x).stride()


def test_rrelu_has_the_strides_of_the_kernel() -> None:
    x = torch.linspace(-1, 1, 6).reshape(3, 2).t()
    assert (
        functionalize(lambda x: torch.rrelu(x, training=True))(x).stride()
        == torch.rrelu(x, training=True).stride()
        == (3, 1)
    )


def test_a_write_of_two_tensors_to_overlapping_memory_is_refused() -> None:
    with pytest.raises(
        InplaceError,
        match=r"rrelu_with_noise_.* writes to 2 tensors, and the first shows an element",
    ):
        functionalize(lambda x: torch.rrelu_(x.clone().unfold(0, 2, 1), training=True))(
            torch.ones(4)
        )


@pytest.mark.parametrize("before", [False, True])
def test_as_strided_of_a_written_tensor_with_gaps_is_refused(before: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        view = x.as_strided((2,), (1,)) if before else x
        torch.nn.functional.elu_(x)
        return view * 2 if before else x.as_strided((2,), (1,)) * 2

    x = torch.arange(6.0).reshape(2, 3)[:, ::2]
    with pytest.raises(
        InplaceError, match="as_strided of a tensor with gaps, which the program has written to"
    ):
        functionalize(f)(x)
    dense = torch.arange(4.0).reshape(2, 2)
    assert functionalize(f)(dense.clone()).tolist() == f(dense).tolist()


def test_a_foreach_op_on_overlapping_elements_writes_one_after_the_other() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> None:
        torch._foreach_mul_([x, y.unfold(0, 2, 1)], 2.0)

    args, expected = [(torch.ones(2), torch.ones(4)) for _ in range(2)]
    f(*expected)
    functionalize(f)(*args)
    assert [t.tolist() for t in args] == [t.tolist() for t in expected]


def test_a_result_may_be_written_to_memory_without_elements() -> None:
    def program(x: Any) -> Any:
        out = torch.empty(0)
        torch.add(x, 1, out=out)
        return out * 2

    torch.testing.assert_close(
        functionalize(program)(torch.arange(3.0)), torch.tensor([2.0, 4.0, 6.0])
    )
