"""The graph as users see it: nodes, their names, edges and saved values. Torch's
graph is the oracle."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import make_fx
from runtime.autograd import graph
from runtime.extend import linear
from runtime.func import grad

from ..scenarios import OURS, TORCH, same

OPS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: x * 2,
    lambda x, y: x**2,
    lambda x, y: x**y,
    lambda x, y: 2**x,
    lambda x, y: x.sum(),
    lambda x, y: x.sum(0),
    lambda x, y: x @ y,
    lambda x, y: x.view(4),
    lambda x, y: x[0],
    lambda x, y: x[:, 1:],
    lambda x, y: x.t(),
    lambda x, y: x.expand(3, 2, 2),
    lambda x, y: x.max(0)[0],
    lambda x, y: x.max(),
    lambda x, y: x.std(0),
    lambda x, y: torch.cat([x, y]),
    lambda x, y: torch.stack([x, y]),
    lambda x, y: x.split(1)[1],
    lambda x, y: x.unbind()[1],
    lambda x, y: x.clone(),
    lambda x, y: x.double(),
    lambda x, y: torch.where(x > 0, x, y),
    lambda x, y: torch.nn.functional.log_softmax(x, 1),
    lambda x, y: torch.nn.functional.nll_loss(x, torch.tensor([0, 1])),
    lambda x, y: torch.nn.functional.linear(x, y, y[0]),
    lambda x, y: torch.nn.functional.conv1d(x[None], y[None]),
    lambda x, y: x.clone().mul_(y),
    lambda x, y: x.clone().copy_(y),
    lambda x, y: x[torch.tensor([0])],
]


@pytest.mark.parametrize("op", range(len(OPS)))
def test_nodes_have_torchs_names_and_edges(op: int) -> None:
    def scenario(lib: Any) -> Any:
        x, y = (lib.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True) for _ in range(2))
        out = OPS[op](x, y)
        fn = out.grad_fn
        return (
            fn.name(),
            type(fn).__name__,
            out.output_nr,
            [(None if n is None else n.name(), i) for n, i in fn.next_functions],
        )

    same(scenario)


def test_an_op_that_torch_has_no_derivative_of_is_number_zero() -> None:
    torch.library.define("runtime_test_graph::my_op", "(Tensor x) -> Tensor")
    torch.library.impl("runtime_test_graph::my_op", "CompositeExplicitAutograd")(lambda x: x * 2)
    linear("runtime_test_graph::my_op", {"x": lambda g: g * 2})
    y = torch.ops.runtime_test_graph.my_op(OURS.tensor([1.0], requires_grad=True))
    assert y.grad_fn.name() == "MyOpBackward0"


def test_leaves_end_in_one_accumulator_that_dies_with_the_graph() -> None:
    x = OURS.tensor([1.0], requires_grad=True)
    y, z = x * 2, x * 3
    (end, _), (other, _) = y.grad_fn.next_functions[0], z.grad_fn.next_functions[0]
    assert end is other and end.variable is x and end.name() == "torch::autograd::AccumulateGrad"
    assert type(end).__name__ == "AccumulateGrad" and end.next_functions == ()
    gone = weakref.ref(end)
    gc.disable()
    del y, z, end, other
    gc.enable()
    assert gone() is None


def test_grad_fn_is_a_node_with_metadata_and_a_sequence_number() -> None:
    x = OURS.tensor([1.0], requires_grad=True)
    y = x * 2
    z = y * 3
    assert isinstance(y.grad_fn, graph.Node) and issubclass(type(y.grad_fn), graph.Node)
    y.grad_fn.metadata["mark"] = 1
    assert y.grad_fn.metadata == {"mark": 1} and z.grad_fn.metadata == {}
    assert z.grad_fn._sequence_nr() > y.grad_fn._sequence_nr()
    y.grad_fn._set_sequence_nr(7)
    assert y.grad_fn._sequence_nr() == 7
    assert [(m.shape, m.dtype) for m in y.grad_fn._input_metadata] == [
        (torch.Size([1]), torch.float32)
    ]


def test_the_order_of_execution_follows_sequence_numbers() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0], requires_grad=True)
        ran: list[str] = []
        a = x * 2
        b = x + 3
        a.register_hook(lambda g: ran.append("a"))
        b.register_hook(lambda g: ran.append("b"))
        a.grad_fn._set_sequence_nr(b.grad_fn._sequence_nr() + 1)
        (a + b).backward()
        return ran

    assert same(scenario) == ["a", "b"]


def _saved_result(x: Any) -> Any:
    y = x.exp()
    return y.grad_fn._saved_result.grad_fn is y.grad_fn, y.grad_fn._saved_result


SAVED: dict[str, Callable[[Any], Any]] = {
    "an argument": lambda x: (x * x).grad_fn._saved_self is x,
    "a dimension": lambda x: x.sum(1).grad_fn._saved_dim,
    "a flag": lambda x: x.sum(1).grad_fn._saved_keepdim,
    "sizes": lambda x: list(x.sum(1).grad_fn._saved_self_sym_sizes),
    "a number": lambda x: (x**3).grad_fn._saved_exponent,
    "the result": _saved_result,
}


@pytest.mark.parametrize("what", SAVED)
def test_a_saved_value_is_an_attribute(what: str) -> None:
    same(lambda lib: SAVED[what](lib.tensor([[1.0, 2.0]], requires_grad=True)))


@pytest.mark.parametrize("name", ["_saved_other", "_saved_self"])
def test_saved_values_are_gone_after_the_backward_pass(name: str) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        fn = y.grad_fn
        y.sum().backward()
        return getattr(fn, name)

    assert "already been freed" in same(scenario)[1]


def test_a_node_says_which_attributes_it_has() -> None:
    fn = (OURS.tensor([1.0], requires_grad=True) ** 2).grad_fn
    assert "_saved_self" in dir(fn)
    with pytest.raises(
        AttributeError, match="'PowBackward0' object has no attribute '_saved_nothing'"
    ):
        _ = fn._saved_nothing


def test_a_node_can_be_called_alone() -> None:
    def scenario(lib: Any) -> Any:
        x, y = (lib.tensor([2.0, 3.0], requires_grad=True) for _ in range(2))
        return (x * y).grad_fn(lib.tensor([1.0, 10.0]))

    assert same(scenario) == [[2.0, 30.0], [2.0, 30.0]]
    with pytest.raises(TypeError, match="expected 1 arguments, got 2"):
        (OURS.tensor([1.0], requires_grad=True) * 2).grad_fn(1, 2)


def test_in_place_ops_give_the_tensor_a_new_node() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        y = x * 2
        before = y.grad_fn
        y.add_(1)
        view = y[0]
        view.mul_(3)
        names = [
            before.name(),
            y.grad_fn.name(),
            y.grad_fn.next_functions[0][0].name(),
            y.output_nr,
        ]
        y.sum().backward()
        return names, x.grad

    same(scenario)


def test_tensors_know_their_place_in_the_graph() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        a, b = x.unbind()
        y = x * 2
        y.retain_grad()
        tensors = [x, a, b, y, x.detach(), lib.tensor([1.0])]
        return [
            [t.is_leaf, t.requires_grad, t.retains_grad, t.output_nr, t.grad_fn is None]
            for t in tensors
        ]

    same(scenario)


@pytest.mark.parametrize(
    "make",
    [
        lambda lib, x: x,
        lambda lib, x: x * 2,
        lambda lib, x: (x * 2).view(2),
        lambda lib, x: x.detach(),
        lambda lib, x: lib.tensor([1.0] * 30, requires_grad=True) * 2.5,
    ],
)
def test_printing_names_the_node(make: Any) -> None:
    same(lambda lib: repr(make(lib, lib.tensor([1.0, 2.0], requires_grad=True))))


def test_edges_are_inputs_and_outputs_of_the_engine() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        y = x * 2
        loss = (y * y).sum()
        edge, at_y = lib.graph.get_gradient_edge(x), lib.graph.get_gradient_edge(y)
        grad = lib.autograd.grad
        found = [
            grad(loss, edge, retain_graph=True),
            grad(loss, (x, at_y), retain_graph=True),
            grad(lib.graph.get_gradient_edge(loss), x, retain_graph=True),
            grad(at_y, x, lib.tensor([3.0, 4.0]), retain_graph=True),
            at_y.output_nr,
        ]
        lib.autograd.backward(loss, inputs=(edge,))
        return [*found, x.grad]

    same(scenario)


def test_the_cotangent_of_an_edge_is_made_where_its_leaves_live() -> None:
    x = runtime.wrap(torch.ones(1, device="meta"), True)
    deep = x.exp().sin() + x.detach() * 3
    for y in (x.exp(), deep, (deep * deep).cos()):
        (g,) = runtime.autograd.grad(graph.get_gradient_edge(y), x, retain_graph=True)
        assert g.device.type == "meta" and g.shape == (1,)


def test_an_edge_names_the_value_before_an_in_place_op() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0], requires_grad=True).clone()
        edge = lib.graph.get_gradient_edge(x)
        x *= 2
        return lib.autograd.grad(x.sum(), (edge, x))

    assert same(scenario) == [[2.0, 2.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda lib, x: lib.graph.get_gradient_edge(lib.tensor([1.0])),
        lambda lib, x: lib.autograd.grad(lib.graph.get_gradient_edge(x * 2), x),
        lambda lib, x: lib.autograd.grad(lib.graph.get_gradient_edge(x * 2), x, lib.tensor([1.0])),
        lambda lib, x: lib.autograd.grad(
            (x * 2).sum(),
            (x, lib.graph.get_gradient_edge(lib.tensor([1.0], requires_grad=True))),
            materialize_grads=True,
        ),
    ],
)
def test_misuse_of_edges_is_refused_as_in_torch(misuse: Any) -> None:
    found = same(lambda lib: misuse(lib, lib.tensor([1.0, 2.0], requires_grad=True)))
    assert found[0] == "RuntimeError"


def test_both_libraries_are_meant() -> None:
    assert isinstance(OURS.tensor([1.0]), runtime.Tensor) and not isinstance(
        TORCH.tensor([1.0]), runtime.Tensor
    )


def test_a_leaf_whose_storage_is_replaced_is_not_the_one_that_was_recorded() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        edge = lib.graph.get_gradient_edge(x)
        out = x.clone()
        with torch.no_grad():
            x.set_(lib.tensor([3.0, 4.0]))
        return lib.autograd.grad(out.sum(), edge, retain_graph=True), lib.autograd.grad(
            out.sum(), x
        )

    assert "appears to not have been used" in same(scenario)[1]


@pytest.mark.parametrize("way", ["grad", "make_fx"])
def test_the_ends_of_a_graph_inside_of_a_transform_are_leaves(way: str) -> None:
    """A program that walks to the leaves finds them by the name and the variable of their nodes."""
    found: list[tuple[str, str, bool]] = []

    def walk(x: Any) -> Any:
        leaf = x.detach().requires_grad_() if way == "make_fx" else x
        y = leaf.sin().sum()
        end = y.grad_fn.next_functions[0][0].next_functions[0][0]
        found.append((type(end).__name__, end.name(), end.variable is leaf))
        return y

    x = torch.ones(3)
    make_fx(walk)(x) if way == "make_fx" else grad(walk)(x)
    assert set(found) == {("AccumulateGrad", "torch::autograd::AccumulateGrad", True)}
