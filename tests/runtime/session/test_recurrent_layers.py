"""Recurrent layers and cells are recorded as what ATen composes them of. Torch's engine on the same
values is the oracle."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import runtime
from runtime import func

from ..view_scenarios import OURS, Scenario, gradients, outcome, same
from ..view_scenarios import TORCH as THEIRS

KINDS = {"gru": 3, "rnn_tanh": 1, "rnn_relu": 1, "lstm": 4}
FEATURES, HIDDEN, STEPS, BATCH = 3, 2, 3, 2


def agree(scenario: Scenario) -> None:
    """As ``same``, but to rounding: memory of another layout may be added up in another order."""
    expected, found = outcome(scenario, THEIRS), outcome(scenario, OURS)
    assert _rounded(found) == _rounded(expected)


def _rounded(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [_rounded(y) for y in x]
    return round(x, 9) if isinstance(x, float) else x


def values(lib: Any, number: int, *shape: int, wanted: bool = True) -> Any:
    t = lib.leaf(*shape) if shape else lib.leaf()
    t = ((t.detach() * (7 + number)) % 5 - 2) / 4
    return t.requires_grad_() if wanted else t


def weights(lib: Any, kind: str, layers: int, directions: int, wanted: bool = True) -> list[Any]:
    gates = KINDS[kind] * HIDDEN
    found: list[Any] = []
    for i in range(layers * directions):
        features = FEATURES if i < directions else HIDDEN * directions
        for shape in ((gates, features), (gates, HIDDEN), (gates,), (gates,)):
            found.append(values(lib, len(found), *shape, wanted=wanted))
    return found


def graph(t: Any) -> list[Any]:
    """Every node behind a tensor once, oldest first, with its name and the places and outputs that
    its edges lead to."""
    order: list[Any] = []
    stack = [t.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in order:
            order.append(node)
            stack += [following for following, _ in node.next_functions]
    order.sort(
        key=lambda n: (n._sequence_nr(), list(getattr(getattr(n, "variable", None), "shape", ())))
    )
    inner = [n for n in order if n.next_functions]

    def place(node: Any) -> Any:
        return (
            inner.index(node)
            if node in inner
            else None
            if node is None
            else list(node.variable.shape)
        )

    return [
        (n.name().replace("ReshapeAlias", "View"), [(place(m), i) for m, i in n.next_functions])
        for n in inner
    ]


def layer(lib: Any, kind: str, *, layers: int = 1, both: bool = False, batch_first: bool = False,
    of_x: bool = False, of_h: bool = False,
          of_w: bool = True, dropout: float = 0.0) -> Any:  # fmt: skip
    directions = 1 + both
    x = values(lib, 50, *((BATCH, STEPS) if batch_first else (STEPS, BATCH)), FEATURES, wanted=of_x)
    states = [
        values(lib, 60 + i, layers * directions, BATCH, HIDDEN, wanted=of_h)
        for i in range(1 + (kind == "lstm"))
    ]
    given = weights(lib, kind, layers, directions, of_w)
    outs = getattr(torch, kind)(
        x,
        states if kind == "lstm" else states[0],
        given,
        True,
        layers,
        dropout,
        dropout > 0,
        both,
        batch_first,
    )
    return outs, [t for t in (x, *states, *given) if t.requires_grad]


def in_parts(arrived: list[str]) -> bool:
    """Whether a layer or cell came op by op: each has one of these activations."""
    return not {"relu", "tanh", "tanh_"}.isdisjoint(arrived)


CASES: dict[str, dict[str, Any]] = {
    "plain": {}, "two layers": {"layers": 2}, "both ways": {"both": True},
    "two layers both ways": {"layers": 2, "both": True}, "by input": {"of_x": True},
    "by state": {"of_h": True}, "by all": {"of_x": True, "of_h": True},
    "by input alone": {"of_x": True, "of_w": False},
    "by state alone": {"of_h": True, "of_w": False}, "batch first": {"batch_first": True},
    "batch first, by state": {"batch_first": True, "of_h": True},
    "batch first, two layers both ways": {"batch_first": True, "layers": 2, "both": True},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_layer_has_torchs_results_graph_and_gradients(
    kind: str, options: dict[str, Any], arrived: list[str]
) -> None:
    def scenario(lib: Any) -> Any:
        outs, leaves = layer(lib, kind, **options)
        facts = [(list(o.stride()), o._version, o._is_view(), o.requires_grad) for o in outs]
        total = sum((o * o).sum() for o in outs)
        return outs, facts, [graph(o) for o in outs], gradients(lib, total, *leaves)

    agree(scenario)
    assert not in_parts(arrived)


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_that_aten_copies_goes_the_long_way(kind: str, arrived: list[str]) -> None:
    def scenario(lib: Any) -> Any:
        outs, leaves = layer(lib, kind, batch_first=True, of_x=True)
        return outs, gradients(lib, outs[0] * outs[0], *leaves)

    agree(scenario)
    assert in_parts(arrived)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_without_a_history_torchs_kernels_run_whole(kind: str, mode: Any) -> None:
    def scenario(lib: Any) -> Any:
        with mode():
            outs, _ = layer(lib, kind, of_w=mode is not torch.enable_grad, batch_first=True)
        return outs, [
            (o._version if not o.is_inference() else None, o.requires_grad, o.is_inference())
            for o in outs
        ]

    agree(scenario)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of_x", [True, False])
@pytest.mark.parametrize("of_h", [True, False])
def test_a_cell_has_torchs_results_graph_and_gradients(
    kind: str, of_x: bool, of_h: bool, arrived: list[str]
) -> None:
    def scenario(lib: Any) -> Any:
        x = values(lib, 50, BATCH, FEATURES, wanted=of_x)
        states = [
            values(lib, 60 + i, BATCH, HIDDEN, wanted=of_h) for i in range(1 + (kind == "lstm"))
        ]
        given = weights(lib, kind, 1, 1)
        outs = getattr(torch, f"{kind}_cell")(x, states if kind == "lstm" else states[0], *given)
        outs = outs if isinstance(outs, tuple) else (outs,)
        total = sum((o * o).sum() for o in outs)
        leaves = [t for t in (x, *states, *given) if t.requires_grad]
        return (
            outs,
            [o._version for o in outs],
            [graph(o) for o in outs],
            gradients(lib, total, *leaves),
        )

    agree(scenario)
    assert not in_parts(arrived)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_are_those_of_the_parts(kind: str) -> None:
    def scenario(lib: Any) -> Any:
        outs, leaves = layer(lib, kind, of_x=True, of_h=True)
        first = lib.grad((outs[0] ** 3).sum(), leaves, create_graph=True)
        return lib.grad(sum((g * g).sum() for g in first), leaves, allow_unused=True)

    agree(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_layer_of_float32_agrees_too(kind: str) -> None:
    def run(lib: Any) -> Any:
        torch.manual_seed(0)
        shapes = [
            (STEPS, BATCH, FEATURES),
            (1, BATCH, HIDDEN),
            *((KINDS[kind] * HIDDEN, n) for n in (FEATURES, HIDDEN)),
        ]
        x, h, w, u = (torch.randn(s) for s in shapes)
        leaves = [
            t if lib is THEIRS else runtime.wrap(t)
            for t in (x, h, w, u, torch.randn(len(w)), torch.randn(len(w)))
        ]
        leaves = [t.requires_grad_() for t in leaves]
        x, h, *rest = leaves
        outs = getattr(torch, kind)(
            x, [h, h] if kind == "lstm" else h, rest, True, 1, 0.0, True, False, False
        )
        return [runtime.unwrap(g).detach() for g in lib.grad(outs[0].square().sum(), leaves)]

    torch.testing.assert_close(run(OURS), run(THEIRS))


def test_a_saved_state_that_was_written_to_is_refused() -> None:
    outs, leaves = layer(OURS, "gru")
    with torch.no_grad():
        leaves[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outs[0].sum().backward()


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GRU": lambda: nn.GRU(3, 4, 2), "LSTM": lambda: nn.LSTM(3, 4, proj_size=2),
    "RNN": lambda: nn.RNN(3, 4, batch_first=True), "GRUCell": lambda: nn.GRUCell(3, 4),
    "LSTMCell": lambda: nn.LSTMCell(3, 4, bias=False), "RNNCell": lambda: nn.RNNCell(3, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("batched", ["inputs", "weights"])
def test_a_layer_under_vmap_is_a_loop(name: str, batched: str) -> None:
    """The states that a layer starts with have no batch, and neither have the
    weights, or the inputs."""
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    weights = {
        k: torch.stack([p.detach(), 2 * p.detach()]) if batched == "weights" else p.detach()
        for k, p in layer.named_parameters()
    }
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    in_dims = (0, None) if batched == "weights" else (None, 0)

    def loss(weights: Any, x: Any) -> Any:
        return sum(
            (t * t).sum()
            for t in pytree.tree_leaves(torch.func.functional_call(layer, weights, (x,)))
        )

    def element(i: int) -> Any:
        own = {k: w[i] if batched == "weights" else w for k, w in weights.items()}
        return torch.func.grad(loss, argnums=(0, 1))(own, x[0] if batched == "weights" else x[i])

    expected = pytree.tree_map(lambda *parts: torch.stack(parts), element(0), element(1))
    found = func.vmap(func.grad(loss, argnums=(0, 1)), in_dims)(
        weights, x[0] if batched == "weights" else x
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_cell_without_a_history_has_torchs_results(
    kind: str, mode: Any, arrived: list[str]
) -> None:
    def scenario(lib: Any) -> Any:
        with mode():
            wanted = mode is not torch.enable_grad
            x, given = (
                values(lib, 50, BATCH, FEATURES, wanted=wanted),
                weights(lib, kind, 1, 1, wanted),
            )
            states = [
                values(lib, 60 + i, BATCH, HIDDEN, wanted=wanted)
                for i in range(1 + (kind == "lstm"))
            ]
            outs = getattr(torch, f"{kind}_cell")(
                x, states if kind == "lstm" else states[0], *given
            )
        outs = outs if isinstance(outs, tuple) else (outs,)
        return outs, [
            (o._version if not o.is_inference() else None, o.requires_grad, o.is_inference())
            for o in outs
        ]

    agree(scenario)
    assert in_parts(arrived) is (mode is torch.inference_mode)


Change = Callable[[Any, list[Any], list[Any]], tuple[Any, list[Any], list[Any]]]
ODD: dict[str, Change] = {
    "an input of another width": lambda x, states, given: (x[..., :2], states, given),
    "an input of two dimensions": lambda x, states, given: (x[0], states, given),
    "an input of no steps": lambda x, states, given: (x[:0], states, given),
    "states of another width": lambda x, states, given: (x, [s[..., :1] for s in states], given),
    "states of another batch": lambda x, states, given: (x, [s[:, :1] for s in states], given),
    "states of two layers": lambda x, states, given: (
        x,
        [torch.cat([s, s]) for s in states],
        given,
    ),
    "states without layers": lambda x, states, given: (x, [s[0] for s in states], given),
    "weights of another width": lambda x, states, given: (x, states, [given[0][:, :2], *given[1:]]),
    "weights of other gates": lambda x, states, given: (
        x,
        states,
        [given[0], given[1][:1], *given[2:]],
    ),
    "weights of one dimension": lambda x, states, given: (x, states, [given[0][0], *given[1:]]),
    "fewer weights": lambda x, states, given: (x, states, given[:2]),
    "a bias of another size": lambda x, states, given: (
        x,
        states,
        [*given[:2], given[2][:1], given[3]],
    ),
    "float32 weights": lambda x, states, given: (x, states, [w.float() for w in given]),
    "a float32 input": lambda x, states, given: (x.float(), states, given),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ODD)
def test_what_does_not_fit_has_torchs_result_or_is_refused_as_by_torch(
    kind: str, name: str
) -> None:
    def scenario(lib: Any) -> Any:
        x, given = values(lib, 50, STEPS, BATCH, FEATURES), weights(lib, kind, 1, 1)
        x, states, given = ODD[name](
            x, [values(lib, 60 + i, 1, BATCH, HIDDEN) for i in range(1 + (kind == "lstm"))], given
        )
        try:
            return getattr(torch, kind)(
                x, states if kind == "lstm" else states[0], given, True, 1, 0.0, False, False, False
            )
        except IndexError as error:
            raise RuntimeError(str(error)) from error

    agree(scenario)


ODD_CELLS: dict[str, Change] = {
    "fitting": lambda x, states, given: (x, states, given),
    "an input of one dimension": lambda x, states, given: (x[0], states, given),
    "an input of another width": lambda x, states, given: (x[:, :2], states, given),
    "an input of one row": lambda x, states, given: (x[:1], states, given),
    "no rows": lambda x, states, given: (x[:0], [s[:0] for s in states], given),
    "states of another width": lambda x, states, given: (x, [s[:, :1] for s in states], given),
    "states of one row": lambda x, states, given: (x, [s[:1] for s in states], given),
    "a last state of one row": lambda x, states, given: (x, [*states[:-1], states[-1][:1]], given),
    "states of one dimension": lambda x, states, given: (x, [s[0] for s in states], given),
    "weights of more gates": lambda x, states, given: (
        x,
        states,
        [torch.cat([w, w]) for w in given],
    ),
    "an input weight of more gates": lambda x, states, given: (
        x,
        states,
        [torch.cat([given[0]] * 2), *given[1:]],
    ),
    "a state weight of more gates": lambda x, states, given: (
        x,
        states,
        [given[0], torch.cat([given[1]] * 2), *given[2:]],
    ),
    "a weight of one dimension": lambda x, states, given: (
        x,
        states,
        [given[0], given[1][0], *given[2:]],
    ),
    "a bias of one element": lambda x, states, given: (
        x,
        states,
        [*given[:2], given[2][:1], given[3]],
    ),
    "a bias of another size": lambda x, states, given: (
        x,
        states,
        [*given[:3], torch.cat([given[3]] * 2)],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ODD_CELLS)
def test_a_cell_takes_what_torchs_takes_and_refuses_the_rest_in_its_words(
    kind: str, name: str
) -> None:
    def scenario(lib: Any) -> Any:
        x, given = values(lib, 50, BATCH, FEATURES), weights(lib, kind, 1, 1)
        x, states, given = ODD_CELLS[name](
            x, [values(lib, 60 + i, BATCH, HIDDEN) for i in range(1 + (kind == "lstm"))], given
        )
        try:
            return getattr(torch, f"{kind}_cell")(
                x, states if kind == "lstm" else states[0], *given
            )
        except IndexError as error:
            raise RuntimeError(str(error)) from error

    agree(scenario)


OTHERS: dict[str, Callable[..., Any]] = {  # of the input, the states and the weights of two layers
    "no biases": lambda run, x, h, w: run(
        x, h, [t for i in (0, 4) for t in w[i : i + 2]], False, 2, 0.0, True, False, False
    ),
    "dropout in evaluation": lambda run, x, h, w: run(x, h, w, True, 2, 0.5, False, False, False),
    "dropout of all": lambda run, x, h, w: run(x, h, w, True, 2, 1.0, True, False, False),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OTHERS)
def test_layers_with_other_options(kind: str, name: str, arrived: list[str]) -> None:
    def scenario(lib: Any) -> Any:
        x, given = values(lib, 50, STEPS, BATCH, FEATURES), weights(lib, kind, 2, 1)
        states = [values(lib, 60 + i, 2, BATCH, HIDDEN) for i in range(1 + (kind == "lstm"))]
        outs = OTHERS[name](getattr(torch, kind), x, states if kind == "lstm" else states[0], given)
        return outs, gradients(lib, sum((o * o).sum() for o in outs), x, *states, *given)

    agree(scenario)
    assert in_parts(arrived) is (name != "dropout in evaluation")


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers_draws_as_torch_does(kind: str) -> None:
    def scenario(lib: Any) -> Any:
        torch.manual_seed(0)
        outs, leaves = layer(lib, kind, layers=2, dropout=0.5)
        return outs, gradients(lib, outs[0] * outs[0], *leaves)

    agree(scenario)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(("lengths", "total"), [([3, 1], None), ([3, 1], 5), ([2, 2], None)])
def test_padding_a_packed_sequence_is_torchs(
    batch_first: bool, lengths: list[int], total: int | None
) -> None:
    def scenario(lib: Any) -> Any:
        x = values(lib, 50, max(lengths), 2, FEATURES)
        packed = nn.utils.rnn.pack_padded_sequence(x * 2, lengths)
        padded, found = nn.utils.rnn.pad_packed_sequence(packed, batch_first, 0.5, total)
        return padded, found.tolist(), gradients(lib, padded * padded, x)

    same(scenario)


def _of_a_step(module: nn.Module, x: Any) -> Any:
    return module(x[0])


def _of_all(module: nn.Module, x: Any) -> Any:
    return module(x)


# by name: a module, and its call with an input of (T, B, n)
FROZEN: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any]]] = {
    f"{kind}, {'biases' if bias else 'no biases'}": (
        partial(getattr(nn, kind), 3, 2, bias=bias),
        _of_a_step if "Cell" in kind else _of_all,
    )
    for kind in ("RNN", "GRU", "LSTM", "RNNCell", "GRUCell", "LSTMCell")
    for bias in (True, False)
} | {
    "RNN with relu": (lambda: nn.RNN(3, 2, nonlinearity="relu"), _of_all),
    "two layers, batch first, both ways": (
        lambda: nn.GRU(3, 2, 2, batch_first=True, bidirectional=True),
        _of_all,
    ),
    "a packed sequence": (
        lambda: nn.GRU(3, 2),
        lambda m, x: m(nn.utils.rnn.pack_padded_sequence(x, [3, 2]))[0].data,
    ),
    "states of the caller": (
        lambda: nn.LSTM(3, 2),
        lambda m, x: m(x, (torch.ones(1, 2, 2), torch.ones(1, 2, 2))),
    ),
}


@pytest.mark.parametrize("name", FROZEN)
def test_an_input_of_the_session_has_its_gradient_through_a_plain_module(name: str) -> None:
    """ATen adds products of the input in place to products of the states, which are plain tensors,
    as the weights are."""
    torch.manual_seed(0)
    make, run = FROZEN[name]
    module, x = make().requires_grad_(False), torch.randn(3, 2, 3)

    def gradient(x: Any, grad: Any) -> Any:
        outs = [t for t in pytree.tree_leaves(run(module, x * 1)) if isinstance(t, torch.Tensor)]
        return grad(sum((t * t).sum() for t in outs), x)[0]

    expected = gradient(x.clone().requires_grad_(), torch.autograd.grad)
    torch.testing.assert_close(
        runtime.unwrap(gradient(runtime.wrap(x, requires_grad=True), runtime.autograd.grad)),
        expected,
    )


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_a_packed_sequence_runs_inside_of_functionalize(kind: str) -> None:
    layer = getattr(nn, kind)(3, 4, dtype=torch.float64).requires_grad_(False)

    def program(x: torch.Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]))
        padded, lengths = nn.utils.rnn.pad_packed_sequence(layer(packed)[0])
        return padded, lengths * 1

    x = torch.linspace(-1, 1, 18, dtype=torch.float64).reshape(3, 2, 3)
    expected = program(x)
    torch.testing.assert_close(runtime.func.functionalize(program)(x), expected)
    batched = runtime.func.vmap(runtime.func.functionalize(lambda x: program(x)[0]))(x[None])
    torch.testing.assert_close(batched[0], expected[0])
