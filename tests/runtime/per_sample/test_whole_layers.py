"""Linear and recurrent layers in the context: where they take part as a whole, and where
ATen's parts do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils import _pytree as pytree

import runtime
from runtime import func
from runtime.per_sample import per_sample, per_sample_grads

B, T, N = 4, 5, 3
CELLS: dict[str, Any] = {
    "lstm": nn.LSTM,
    "lstm with projections": lambda *sizes, **options: nn.LSTM(*sizes, proj_size=2, **options),
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
Loss = Callable[..., Tensor]


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def leaf(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return numbers(*shape, seed=seed, dtype=dtype).requires_grad_()


def check(loss: Loss, params: list[Tensor], x: Tensor, dim: int = 0) -> None:
    """The gradients of ``loss(x)``, a sum over the samples, are those of the loss of each
    sample alone by torch."""
    loop = []
    for b in range(x.shape[dim]):
        found = torch.autograd.grad(loss(x.narrow(dim, b, 1)), params, allow_unused=True)
        loop.append(
            [torch.zeros_like(p) if g is None else g for p, g in zip(params, found, strict=True)]
        )
    with per_sample(params) as grads:
        loss(grads.batch(x, dim)).backward()
    for g, expected in zip(grads.materialize(), zip(*loop, strict=True), strict=True):
        torch.testing.assert_close(g, torch.stack(expected))
    rows = torch.stack([torch.cat([g.flatten() for g in gs]) for gs in loop])
    assert rows.abs().max() > 1e-3
    torch.testing.assert_close(grads.norms(), rows.norm(dim=1))


def squares(out: Any) -> Tensor:
    parts = out if isinstance(out, tuple) else (out,)
    total: Tensor = sum(
        (squares(t) if isinstance(t, tuple) else t.abs().pow(2).sum() + t.abs().sum())
        for t in parts
    )  # type: ignore[assignment]
    return total


LINEAR: dict[str, tuple[Loss, Callable[[], list[Tensor]]]] = {
    "weight and bias": (lambda x, w, b: F.linear(x, w, b), lambda: [leaf(2, N), leaf(2)]),
    "no bias": (lambda x, w: F.linear(x, w), lambda: [leaf(2, N)]),
    "a constant weight": (lambda x, b: F.linear(x, numbers(2, N), b), lambda: [leaf(2)]),
    "a constant bias": (lambda x, w: F.linear(x, w, numbers(2)), lambda: [leaf(2, N)]),
    "a computed weight": (
        lambda x, w, b: F.linear(x, w.exp() * 2, b),
        lambda: [leaf(2, N), leaf(2)],
    ),
    "a computed bias": (lambda x, w, b: F.linear(x, w, b.exp() * 2), lambda: [leaf(2, N), leaf(2)]),
    "one use after another": (lambda x, w: F.linear(F.linear(x, w).sin(), w), lambda: [leaf(N, N)]),
    "a parameter before a constant layer": (
        lambda x, p: F.linear(x * p, numbers(2, N), numbers(2)),
        lambda: [leaf(N)],
    ),
    "a constant layer beside": (lambda x, p: F.linear(x, numbers(N, N)) * p, lambda: [leaf(N)]),
}


@pytest.mark.parametrize("shape", [(B, N), (B, T, N), (B, 2, T, N), (1, N), (1, T, N)], ids=str)
@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_layer_has_the_gradients_of_a_loop(name: str, shape: tuple[int, ...]) -> None:
    layer, make = LINEAR[name]
    params = make()
    check(lambda x: squares(layer(x, *params)), params, numbers(*shape))


def test_the_samples_may_lie_in_any_dimension_but_the_last() -> None:
    w, b = leaf(2, N), leaf(2)
    check(lambda x: squares(F.linear(x, w, b)), [w, b], numbers(T, B, N), dim=1)


def test_a_complex_linear_layer() -> None:
    w, b = leaf(2, N, dtype=torch.complex128), leaf(2, dtype=torch.complex128)
    check(
        lambda x: squares(F.linear(F.linear(x, w, b), w.mT)),
        [w, b],
        numbers(B, N, dtype=torch.complex128),
    )


@pytest.mark.parametrize("shape", [(N, B), (N, N)], ids=str)
def test_a_linear_layer_along_the_samples_is_refused(shape: tuple[int, ...]) -> None:
    w = leaf(2, shape[1])
    with (
        per_sample([w]) as grads,
        pytest.raises(
            RuntimeError,
            match="mixes samples in the program: it computes along dimension 1 of self",
        ),
    ):
        F.linear(grads.batch(numbers(*shape), 1), w).sum().backward()


def test_products_of_samples_with_samples_are_refused() -> None:
    w = leaf(N, N)
    with per_sample([w]) as grads, pytest.raises(RuntimeError, match="mixes samples"):
        x = grads.batch(numbers(B, N))
        F.linear(F.linear(x, w), x).sum().backward()


def test_a_bias_of_one_number_for_each_sample_is_no_bias_of_a_layer() -> None:
    w = leaf(B, N)
    with per_sample([w]) as grads, pytest.raises(RuntimeError, match="mixes samples"):
        x = grads.batch(numbers(B, N))
        F.linear(x, w, x[:, 0]).sum().backward()


def test_a_frozen_layer_of_the_batch_has_no_history() -> None:
    w = leaf(N)
    with per_sample([w]) as grads:
        x = grads.batch(numbers(B, N))
        assert not F.linear(x, numbers(2, N), numbers(2)).requires_grad
        assert F.linear(x * w, numbers(2, N), numbers(2)).requires_grad


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", ["lstm with projections", "gru"])
def test_a_recurrent_layer_returns_what_it_returns_alone(
    kind: str, batch_first: bool, packed: bool
) -> None:
    def run(x: Tensor) -> Any:
        return cell(pack_padded_sequence(x, [T, 3, 3, 1], batch_first=batch_first) if packed else x)

    torch.manual_seed(0)
    cell = CELLS[kind](N, 3, 2, batch_first=batch_first, bidirectional=True).double()
    x = numbers(B, T, N) if batch_first else numbers(T, B, N)
    with per_sample(cell.parameters()) as grads:
        found = run(grads.batch(x, 0 if batch_first else 1))
    torch.testing.assert_close(pytree.tree_map(runtime.unwrap, found), run(x))


def test_a_layer_without_grad_mode_is_a_constant() -> None:
    w, v, cell = leaf(2, N), leaf(2, N), nn.GRU(N, 2, batch_first=True).double()

    def loss(x: Tensor) -> Tensor:
        with torch.no_grad():
            constant = F.linear(x, w) * cell(x)[0]
        found: Tensor = (F.linear(x, v) * constant).sum()
        return found

    check(loss, [v, w, *cell.parameters()], numbers(B, T, N))


def test_under_autocast_a_layer_computes_in_the_narrow_dtype() -> None:
    w, cell, x = leaf(2, N, dtype=torch.float32), nn.RNN(N, 2), numbers(B, N, dtype=torch.float32)
    with per_sample([w, *cell.parameters()]) as grads, torch.autocast("cpu", dtype=torch.bfloat16):
        out = F.linear(grads.batch(x), w)
        assert out.dtype is torch.bfloat16
        (out.float().sum() + cell(grads.batch(x).unsqueeze(0))[0].float().sum()).backward()
    torch.testing.assert_close(
        grads.materialize()[0], x.unsqueeze(1).expand(B, 2, N), rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (numbers(B, N + 1), "mat1 and mat2 shapes cannot be multiplied"),
        (numbers(B, N, dtype=torch.float32), "to have the same dtype"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_torchs_words(x: Tensor, says: str) -> None:
    w = leaf(2, N)
    with per_sample([w]) as grads, pytest.raises(RuntimeError, match=says):
        F.linear(grads.batch(x), w)


@pytest.mark.parametrize(("at", "batch_first"), [(0, False), (2, False), (1, True), (2, True)])
def test_a_recurrent_layer_along_the_samples_is_refused(at: int, batch_first: bool) -> None:
    cell = nn.GRU(N, 2, batch_first=batch_first).double()
    with per_sample(cell.parameters()) as grads, pytest.raises(RuntimeError, match="mixes samples"):
        cell(grads.batch(numbers(N, N, N), at))[0].sum().backward()


# of the initial state (1, 1, p) and the samples' (1, B, p)
STATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "constants": lambda own, of_samples: torch.ones_like(of_samples.detach()),
    "parameters": lambda own, of_samples: own.expand(1, of_samples.shape[1], -1),
    "of the samples": lambda own, of_samples: own * of_samples,
}


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", CELLS)
def test_a_recurrent_layer_from_states(kind: str, state: str, batch_first: bool) -> None:
    torch.manual_seed(0)
    cell = CELLS[kind](N, 3, batch_first=batch_first).double()
    own, to_state = leaf(1, 1, 2 if "projections" in kind else 3), leaf(3, N)

    def loss(x: Tensor) -> Tensor:
        rows = x.select(1 if batch_first else 0, 0)
        h = STATES[state](own, F.linear(rows, to_state)[None, :, : own.shape[2]])
        c = STATES[state](to_state[:1, None], F.linear(rows, to_state)[None])
        return squares(cell(x, (h, c) if "lstm" in kind else h))

    check(
        loss,
        [*cell.parameters(), own, to_state],
        numbers(T, B, N).transpose(0, int(batch_first)),
        dim=int(not batch_first),
    )


@pytest.mark.parametrize("given", ["a plain tensor", "a batch that was marked"])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_first_states_that_a_module_is_called_with_have_the_samples_behind_the_layers(
    kind: str, given: str
) -> None:
    torch.manual_seed(0)
    cell = CELLS[kind](N, 3, num_layers=B, batch_first=True).double()  # as many layers as samples
    x, h, params = numbers(B, T, N), numbers(B, B, 3, seed=2), list(cell.parameters())

    def states(h: Tensor) -> Any:
        return (h, 2 * h) if kind == "lstm" else h

    loop = [
        torch.autograd.grad(
            squares(cell(x[b : b + 1], states(h[:, b : b + 1].contiguous()))), params
        )
        for b in range(B)
    ]
    with per_sample(params) as grads:
        squares(cell(x, states(h if given == "a plain tensor" else grads.batch(h, 1)))).backward()
    for g, expected in zip(grads.materialize(), zip(*loop, strict=True), strict=True):
        torch.testing.assert_close(g, torch.stack(expected))


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_a_call_of_aten_with_constant_states(kind: str) -> None:
    torch.manual_seed(0)
    cell = CELLS[kind](N, 3, batch_first=True).double()
    params = list(cell.parameters())

    def loss(x: Tensor) -> Tensor:
        h = torch.ones(1, x.shape[0], 3, dtype=x.dtype)
        return squares(
            getattr(torch.ops.aten, kind).input(
                x, [h, 2 * h] if kind == "lstm" else h, params, True, 1, 0.0, False, False, True
            )
        )

    check(loss, params, numbers(B, T, N))


def test_a_recurrent_layer_with_options_by_keyword() -> None:
    torch.manual_seed(0)
    cell = nn.GRU(N, 2).double()
    params: list[Tensor] = list(cell.parameters())

    def loss(x: Tensor) -> Tensor:
        options: Any = {
            "num_layers": 1,
            "dropout": 0.0,
            "train": False,
            "bidirectional": False,
            "batch_first": False,
        }
        return squares(
            torch.gru(x, x.new_zeros(1, x.shape[1], 2), params, has_biases=True, **options)
        )

    check(loss, params, numbers(T, B, N), dim=1)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_packed_batch_from_learned_states(kind: str) -> None:
    torch.manual_seed(0)
    cell, own = CELLS[kind](N, 3).double(), leaf(1, 1, 3)

    def loss(x: Tensor, lengths: list[int]) -> Tensor:
        h = own.expand(1, len(lengths), -1)
        return squares(
            cell(pack_padded_sequence(x, lengths), (h, 2 * h) if kind == "lstm" else h)[1]
        )

    lengths, x, params = [T, 3, 3, 1], numbers(T, B, N), [*cell.parameters(), own]
    loop = [
        torch.autograd.grad(loss(x[:, b : b + 1], lengths[b : b + 1]), params) for b in range(B)
    ]
    with per_sample(params) as grads:
        loss(grads.batch(x, 1), lengths).backward()
    for g, expected in zip(grads.materialize(), zip(*loop, strict=True), strict=True):
        torch.testing.assert_close(g, torch.stack(expected))


class Misread(nn.Module):
    """Reads a packed sequence by other sizes of its steps, and with so many first states."""

    def __init__(self, sizes: list[int], states: int) -> None:
        super().__init__()
        self.cell, self.sizes, self.states = nn.GRU(N, 2).double(), torch.tensor(sizes), states

    def forward(self, packed: Any) -> Tensor:
        first = packed.data.new_zeros(1, self.states, 2)
        weights: list[Tensor] = list(self.cell.parameters())
        out: Tensor = torch.gru(
            packed.data, self.sizes, first, weights, True, 1, 0.0, False, False
        )[0]
        return out


@pytest.mark.parametrize(
    ("sizes", "states", "says"),
    [
        ([4, 3], 3, r"size of tensor a \(3\) must match the size of tensor b \(4\)"),
        ([4, 4], 4, r"start \(4\) \+ length \(4\) exceeds"),
    ],
    ids=["other states", "more rows"],
)
def test_a_packed_batch_that_does_not_fit_is_refused_in_torchs_words(
    sizes: list[int], states: int, says: str
) -> None:
    torch.manual_seed(0)
    module, packed = Misread(sizes, states), pack_padded_sequence(numbers(2, B, N), [2, 2, 2, 1])
    with pytest.raises(RuntimeError, match=says):
        module(packed)
    with per_sample(module.parameters()), pytest.raises(RuntimeError, match=says):
        module(packed)
    with pytest.raises(RuntimeError, match=says):
        per_sample_grads(
            lambda p, x: func.functional_call(module, p, (packed._replace(data=x),)).sum()
        )(dict(module.named_parameters()), packed.data.expand(2, -1, -1))


@pytest.mark.parametrize("rows", [[4, 3], [4, 2]])
def test_rows_behind_the_last_step_of_a_packed_batch_are_left_out(rows: list[int]) -> None:
    torch.manual_seed(0)
    module, packed = Misread(rows, 4), pack_padded_sequence(numbers(2, B, N), [2, 2, 2, 1])
    with per_sample(module.parameters()):
        found = module(packed)
    torch.testing.assert_close(runtime.unwrap(found.detach()), module(packed).detach())


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_frozen_and_computed_weights_of_a_recurrent_layer(kind: str) -> None:
    torch.manual_seed(0)
    cell, first = CELLS[kind](N, 3).double(), leaf(N)
    cell.weight_hh_l0.requires_grad_(False)
    nn.utils.parametrizations.weight_norm(cell, "weight_ih_l0")
    params = [p for p in cell.parameters() if p.requires_grad]
    check(lambda x: squares(cell(x * first)), [*params, first], numbers(T, B, N), dim=1)


MADE: dict[str, tuple[Callable[[], list[Tensor]], Callable[..., Tensor], str]] = {
    "linear": (lambda: [leaf(2, N)], lambda x, w: F.linear(x, w), "an argument of linear"),
    "an elementwise op": (lambda: [leaf(N)], lambda x, w: x * w, "an argument of aten.mul.Tensor"),
    "LSTM": (
        lambda: list(nn.LSTM(N, 2).double().parameters()),
        lambda x, *p: torch.lstm(
            x[None], [x.new_zeros(1, B, 2)] * 2, p, True, 1, 0.0, False, False, False
        )[0],
        "an argument of a recurrent layer",
    ),
    "GRU, batch first": (
        lambda: list(nn.GRU(N, 2).double().parameters()),
        lambda x, *p: torch.gru(
            x[:, None], x.new_zeros(1, B, 2), p, True, 1, 0.0, False, False, True
        )[0],
        "an argument of a recurrent layer",
    ),
    "GRU, packed": (
        lambda: list(nn.GRU(N, 2).double().parameters()),
        lambda x, *p: torch.gru(
            *pack_padded_sequence(x[None], [1] * B)[:2],
            x.new_zeros(1, B, 2),
            p,
            True,
            1,
            0.0,
            False,
            False,
        )[0],
        "an argument of a recurrent layer",
    ),
}


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("name", MADE)
def test_a_pass_with_create_graph_is_refused(name: str) -> None:
    make, layer, _ = MADE[name]
    params = make()
    with per_sample(params) as grads:
        loss = layer(grads.batch(numbers(B, N)), *params).pow(2).sum()
        with pytest.raises(
            RuntimeError,
            match=r"create_graph passes a use of the parameters.* Use per_sample_grads",
        ):
            loss.backward(create_graph=True)


@pytest.mark.parametrize("name", MADE)
def test_passes_through_a_retained_graph_add_up_and_one_that_is_not_retained_is_the_last(
    name: str,
) -> None:
    make, layer, _ = MADE[name]
    params = make()
    with per_sample(params) as grads:
        loss = layer(grads.batch(numbers(B, N)), *params).sum()
        loss.backward(retain_graph=True)
        once = grads.materialize()
        (3 * loss).backward()
        torch.testing.assert_close(grads.materialize(), [4 * g for g in once])
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


@pytest.mark.parametrize(
    ("name", "which"),
    [
        (name, which)
        for name in MADE
        for which in ("samples", "parameter")
        if (name, which) != ("GRU, packed", "samples")
    ],
)  # the samples of a packed sequence are copies
def test_an_argument_that_is_written_to_before_the_pass_is_refused(name: str, which: str) -> None:
    make, layer, says = MADE[name]
    params = make()
    with per_sample(params) as grads:
        x = grads.batch(numbers(B, N)) * 1
        loss = layer(x, *params).pow(2).sum()
        with torch.no_grad():
            (x if which == "samples" else params[0]).add_(1)
        with pytest.raises(
            RuntimeError, match=f"{says}, of shape .* has been modified by an inplace operation"
        ):
            loss.backward()


@pytest.mark.parametrize("name", MADE)
def test_the_batch_has_its_ordinary_gradient(name: str) -> None:
    make, layer, _ = MADE[name]
    params, x = make(), numbers(B, N).requires_grad_()
    (expected,) = torch.autograd.grad(layer(x, *params).pow(2).sum(), x)
    with per_sample(params) as grads:
        marked = grads.batch(x)
        (found,) = runtime.autograd.grad(layer(marked, *params).pow(2).sum(), marked)
    torch.testing.assert_close(runtime.unwrap(found), expected)


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(N, 2), lambda: nn.GRU(N, 2), lambda: nn.LSTM(N, 2, batch_first=True)]
)
def test_weights_that_are_no_parameters_of_the_context_have_their_ordinary_gradient(
    make: Callable[[], nn.Module],
) -> None:
    torch.manual_seed(0)
    layer, p, x = make().double(), leaf(N), numbers(B, T, N)
    dim = 0 if not isinstance(layer, nn.RNNBase) or layer.batch_first else 1
    expected = torch.autograd.grad(squares(layer(x.transpose(0, dim) * p)), [*layer.parameters()])
    of_p = torch.stack(
        [
            torch.autograd.grad(squares(layer(x[b : b + 1].transpose(0, dim) * p)), p)[0]
            for b in range(B)
        ]
    )
    with per_sample([p]) as grads:
        squares(layer(grads.batch(x.transpose(0, dim), dim) * p)).backward()
    torch.testing.assert_close([w.grad for w in layer.parameters()], list(expected))
    torch.testing.assert_close(grads.materialize()[0], of_p)


class NoGradient(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Any) -> Any:
        return y * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return None


@pytest.mark.parametrize("name", MADE)
def test_a_layer_whose_result_has_no_gradient_gives_none_to_its_parameters(name: str) -> None:
    make, layer, _ = MADE[name]
    params, q, x = make(), leaf(N), numbers(B, N)
    with per_sample([*params, q]) as grads:
        marked = grads.batch(x)
        (NoGradient.apply(layer(marked * q, *params)).sum() + (marked * q).sum()).backward()
    *found, of_q = grads.materialize()
    assert not any(g.any() for g in found)
    torch.testing.assert_close(of_q, x)
