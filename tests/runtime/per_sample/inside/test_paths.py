"""Which calls of layers are one node of the tape, and which ATen takes apart: by the vectors
and by the context.

Inside: ``linear``, ``recurrent_nodes`` and ``whole_layers`` of ``runtime.per_sample``. Both ways
give the same gradients, and one is fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from runtime.func import functional_call
from runtime.per_sample import linear, per_sample, per_sample_grads, recurrent_nodes, whole_layers
from tests.runtime.per_sample.reference import parameters_of

B, T = 3, 4


class Path(NamedTuple):
    """How a program ran. ``whole``: whether each call of a layer was one. ``directions``: how many
    passes through time there were."""

    whole: list[bool]
    directions: int


def _spied(monkeypatch: pytest.MonkeyPatch) -> tuple[list[bool], list[str]]:
    whole: list[bool] = []
    directions: list[str] = []

    def asked(f: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            found = f(*args)
            whole.append(found is not NotImplemented)
            return found

        return run

    def counted(f: Callable[..., Any]) -> Callable[..., Any]:
        def run(session: Any, kind: str, *args: Any, **kwargs: Any) -> Any:
            directions.append(kind)
            return f(session, kind, *args, **kwargs)

        return run

    for module, name in ((linear, "run"), (recurrent_nodes, "run"), (whole_layers, "run")):
        monkeypatch.setattr(module, name, asked(getattr(module, name)))
    for module, name in ((recurrent_nodes, "_layer"), (whole_layers, "_direction")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    return whole, directions


def _sum(out: Any) -> Tensor:
    found: Tensor = sum(
        o.square().sum()
        for o in (out if isinstance(out, tuple) else (out,))
        if isinstance(o, Tensor)
    )  # type: ignore[assignment]
    return found


def by_function(
    monkeypatch: pytest.MonkeyPatch, module: nn.Module, x: Tensor, forward: Callable[..., Any]
) -> Path:
    """``forward`` of one sample under ``per_sample_grads``."""
    whole, directions = _spied(monkeypatch)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.m = module

        def forward(self, x: Tensor) -> Tensor:
            return _sum(forward(self.m, x))

    loss = Loss()
    per_sample_grads(lambda params, x: functional_call(loss, params, (x,)))(parameters_of(loss), x)
    return Path(whole, len(directions))


def by_context(
    monkeypatch: pytest.MonkeyPatch,
    module: nn.Module,
    x: Tensor,
    forward: Callable[..., Any],
    dim: int = 0,
) -> Path:
    """``forward`` of the batch under ``per_sample``."""
    whole, directions = _spied(monkeypatch)
    with per_sample(list(module.parameters())) as grads:
        _sum(forward(module, grads.batch(x, dim))).backward()
    return Path(whole, len(directions))


def numbers(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


RECURRENT: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {
    "LSTM": (nn.LSTM, {}),
    "LSTM without biases": (nn.LSTM, {"bias": False}),
    "LSTM with projections": (nn.LSTM, {"proj_size": 2}),
    "LSTM with projections, without biases": (nn.LSTM, {"proj_size": 2, "bias": False}),
    "GRU": (nn.GRU, {}),
    "GRU without biases": (nn.GRU, {"bias": False}),
    "RNN": (nn.RNN, {}),
    "RNN with relu": (nn.RNN, {"nonlinearity": "relu"}),
    "RNN with dropout": (nn.RNN, {"dropout": 0.5}),
}


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", RECURRENT)
def test_each_layer_and_direction_is_one_pass_through_time(
    kind: str, layers: int, both_ways: bool, batch_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, options = RECURRENT[kind]
    if "dropout" in options and layers == 1:
        options = {}
    module = make(
        3, 5, layers, bidirectional=both_ways, batch_first=batch_first, **options
    ).double()
    expected = Path([True], layers * (1 + both_ways))
    x = numbers(B, T, 3)
    assert (
        by_function(monkeypatch, module, x, lambda m, x: m(x.unsqueeze(0 if batch_first else 1))[0])
        == expected
    )
    monkeypatch.undo()
    batch = x if batch_first else x.transpose(0, 1).contiguous()
    assert (
        by_context(monkeypatch, module, batch, lambda m, x: m(x)[0], 0 if batch_first else 1)
        == expected
    )


@pytest.mark.parametrize("kind", ["LSTM with projections", "GRU", "RNN with dropout"])
def test_a_packed_sequence_is_one_pass_through_time(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, options = RECURRENT[kind]
    module = make(3, 5, 2, **options).double()
    lengths = [T, 2, 1]
    by_samples = by_function(
        monkeypatch,
        module,
        numbers(2, T, 3, 3),
        lambda m, x: m(pack_padded_sequence(x, lengths))[0].data,
    )
    monkeypatch.undo()
    assert (
        by_context(
            monkeypatch,
            module,
            numbers(T, B, 3),
            lambda m, x: m(pack_padded_sequence(x, lengths))[0].data,
            1,
        )
        == by_samples
    )
    assert by_samples == Path([True], 2)


LINEAR: dict[str, tuple[Callable[[Any, Tensor], Any], list[bool]]] = {
    "a layer": (lambda m, x: m(x), [True]),
    "two layers": (lambda m, x: m(m(x)), [True, True]),
    "without a bias": (lambda m, x: F.linear(x, m.weight), [True]),
    "a computed weight": (lambda m, x: F.linear(x, m.weight * 2, m.bias), [True]),
    "constants": (lambda m, x: F.linear(x, m.weight.detach()) * m.weight[0], [True]),
    "a weight of samples": (
        lambda m, x: F.linear(x * m.bias, x.reshape(-1, 3)[:1] * m.weight[0]),
        [False],
    ),
    "a bias of samples": (lambda m, x: F.linear(x, m.weight, x[0, :1].sum() * m.bias), [False]),
    "weights alone": (lambda m, x: x * F.linear(m.weight, m.weight).sum(), []),
}


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_layer_is_one_node(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, expected = LINEAR[name]
    assert by_function(monkeypatch, nn.Linear(3, 3).double(), numbers(B, 2, 3), forward) == Path(
        expected, 0
    )


@pytest.mark.parametrize(
    "name", ["a layer", "two layers", "without a bias", "a computed weight", "constants"]
)
def test_a_linear_layer_is_one_node_in_the_context(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, expected = LINEAR[name]
    assert (
        by_context(monkeypatch, nn.Linear(3, 3).double(), numbers(B, 2, 3), forward).whole
        == expected
    )


def without_grad(m: nn.Module, x: Tensor) -> Any:
    with torch.no_grad():
        y = m(x)
    return (y[0] if isinstance(y, tuple) else y) * next(m.parameters()).sum()


def autocast(m: nn.Module, x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = m(x)
    return (y[0] if isinstance(y, tuple) else y).float()


@pytest.mark.parametrize("forward", [without_grad, autocast])
@pytest.mark.parametrize(
    "make",
    [lambda: nn.Linear(3, 3), lambda: nn.RNN(3, 3, batch_first=True)],
    ids=["linear", "recurrent"],
)
def test_without_grad_mode_and_under_autocast_aten_takes_a_layer_apart(
    make: Callable[[], nn.Module], forward: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = numbers(B, 2, 3).float()
    assert not by_function(monkeypatch, make(), x, lambda m, x: forward(m, x.unsqueeze(0))).whole[0]
    monkeypatch.undo()
    assert not by_context(monkeypatch, make(), x, forward).whole[0]


NO_LAYER: dict[str, tuple[Any, ...]] = {
    "a vector for a matrix": (numbers(2, 3), numbers(3), None),
    "another width": (numbers(2, 3), numbers(4, 2), None),
    "another dtype of the weight": (numbers(2, 3), numbers(4, 3).float(), None),
    "another dtype of the bias": (numbers(2, 3), numbers(4, 3), numbers(4).float()),
    "a bias of one number": (numbers(2, 3), numbers(4, 3), numbers(1)),
    "a bias of two dimensions": (numbers(2, 3), numbers(4, 3), numbers(1, 4)),
    "no dimension": (numbers(), numbers(4, 1), None),
}


@pytest.mark.parametrize("name", NO_LAYER)
def test_what_is_no_linear_layer_does_not_fit(name: str) -> None:
    assert linear.fits(*NO_LAYER[name]) is False


def test_layers_fit() -> None:
    for bias in (None, numbers(4)):
        for x in (numbers(3), numbers(2, 3), numbers(5, 2, 3), numbers(0, 3)):
            assert linear.fits(x, numbers(4, 3), bias)


def _call(
    func: Any = torch.ops.aten.gru.input,
    layers: int = 1,
    both_ways: bool = False,
    biases: bool = True,
    **other: Any,
) -> Any:
    """The call of a GRU with 3 inputs and 2 states, with some arguments replaced."""
    x, h = other.get("x", numbers(T, B, 3)), other.get("h", numbers(layers * (1 + both_ways), B, 2))
    directions = 1 + both_ways
    params: list[Tensor] = []
    for i in range(layers * directions):
        params += [
            numbers(6, 3 if i < directions else 2 * directions),
            numbers(6, 2),
            *([numbers(6), numbers(6)] if biases else []),
        ]
    other.get("change", lambda params: None)(params)
    return recurrent_nodes.call_of(
        func, (x, h, params, biases, layers, 0.0, True, both_ways, False)
    )


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_call_has_the_weights_of_each_layer_and_direction(
    layers: int, both_ways: bool, biases: bool
) -> None:
    call = _call(layers=layers, both_ways=both_ways, biases=biases)
    assert len(call.of_layers) == layers * (1 + both_ways) and call.batch_dim == 1
    for w in call.of_layers:
        assert (
            w.h.shape == (6, 2)
            and (w.b_x is None) is (w.b_h is None) is (not biases)
            and w.projection is None
        )
    order = [t for w in call.of_layers for t in (w.x, w.h, w.b_x, w.b_h) if t is not None]
    assert all(a is b for a, b in zip(order, call.params, strict=True))


CHANGES: dict[str, dict[str, Any]] = {
    "another function": {"func": torch.ops.aten.sin.default},
    "another batch of states": {"h": numbers(1, B + 1, 2)},
    "too many states": {"h": numbers(2, B, 2)},
    "states of two dimensions": {"h": numbers(B, 2)},
    "a state of another width": {"h": numbers(1, B, 3)},
    "states of another dtype": {"h": numbers(1, B, 2).float()},
    "an input of two dimensions": {"x": numbers(T, 3)},
    "an input of another width": {"x": numbers(T, B, 4)},
    "an input without elements": {"x": numbers(0, B, 3)},
    "an input of integers": {"x": torch.ones(T, B, 3, dtype=torch.int64)},
    "an input on another device": {"x": numbers(T, B, 3).to("meta")},
    "too few weights": {"change": lambda params: params.pop()},
    "too many weights": {"change": lambda params: params.append(numbers(6))},
    "a weight of another width": {"change": lambda params: params.__setitem__(0, numbers(6, 4))},
    "a weight of another height": {"change": lambda params: params.__setitem__(0, numbers(5, 3))},
    "a weight of the state of another width": {
        "change": lambda params: params.__setitem__(1, numbers(6, 3))
    },
    "a weight of the state of one dimension": {
        "change": lambda params: params.__setitem__(1, numbers(6))
    },
    "a bias of another width": {"change": lambda params: params.__setitem__(2, numbers(5))},
    "a second bias of another width": {"change": lambda params: params.__setitem__(3, numbers(5))},
    "a weight of the second layer": {
        "layers": 2,
        "change": lambda params: params.__setitem__(4, numbers(6, 3)),
    },
    "a weight of the second layer both ways": {
        "layers": 2,
        "both_ways": True,
        "change": lambda params: params.__setitem__(8, numbers(6, 2)),
    },
    "a weight of the second direction": {
        "both_ways": True,
        "change": lambda params: params.__setitem__(4, numbers(6, 4)),
    },
    "no layers": {"layers": 0, "h": numbers(0, B, 2)},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_no_recurrent_layer_is_left_to_aten(name: str) -> None:
    assert _call(**CHANGES[name]) is None
