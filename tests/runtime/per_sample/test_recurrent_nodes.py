"""Recurrent layers under ``per_sample_grads``, beside torch's own gradients of one sample
after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from runtime import jit
from runtime.extend import Outer
from runtime.func import functional_call, grad, vmap
from runtime.per_sample import per_sample_grads
from tests.runtime.per_sample.reference import in_one, in_rows, parameters_of

KINDS: dict[str, Callable[..., nn.Module]] = {
    "LSTM": nn.LSTM,
    "LSTM with projections": lambda *sizes, **options: nn.LSTM(*sizes, proj_size=2, **options),
    "GRU": nn.GRU,
    "RNN with tanh": nn.RNN,
    "RNN with relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
Forward = Callable[[nn.Module, Tensor], Any]


def _layer(kind: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return KINDS[kind](3, 4, **options).double()


def _tensors(out: Any) -> list[Tensor]:
    return [
        t
        for o in (out if isinstance(out, tuple) else (out,))
        for t in (_tensors(o) if isinstance(o, tuple) else [o])
    ]


def _loss(out: Any) -> Tensor:
    total: Tensor = sum((t.pow(3) + t * t).sum() for t in _tensors(out))  # type: ignore[assignment]
    return total


def _checked(module: nn.Module, x: Tensor, forward: Forward = lambda m, x: m(x)) -> Any:
    """Compare with the loop over samples, and return the gradients. ``forward``: of a
    module and one sample."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.m = module

        def forward(self, x: Tensor) -> Tensor:
            return _loss(forward(self.m, x))

    whole = Whole()
    params = list(whole.parameters())
    found = [torch.autograd.grad(whole(row), params, allow_unused=True) for row in x]
    loop = torch.stack(
        [
            torch.cat(
                [
                    torch.zeros_like(p).flatten() if g is None else g.flatten()
                    for p, g in zip(params, gs, strict=True)
                ]
            )
            for gs in found
        ]
    )
    grads = per_sample_grads(lambda params, x: functional_call(whole, params, (x,)))(
        parameters_of(whole), x
    )
    assert loop.abs().max() > 1e-3
    torch.testing.assert_close(in_rows(grads.materialize()), loop)
    torch.testing.assert_close(grads.norms(), loop.norm(dim=1))
    weights = torch.linspace(-1, 2, len(x), dtype=x.dtype)
    torch.testing.assert_close(in_one(grads.weighted_sum(weights)), weights @ loop)
    torch.testing.assert_close(grads.losses, torch.stack([whole(row).detach() for row in x]))
    return grads


def _sequences(*shape: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "batch_first": True}, {"bias": False, "batch_first": True}]
)
def test_a_sample_that_is_one_sequence(kind: str, both_ways: bool, options: dict[str, Any]) -> None:
    module = _layer(kind, bidirectional=both_ways, **options)
    dim = 0 if options.get("batch_first") else 1
    _checked(module, _sequences(5, 6, 3))
    _checked(module, _sequences(6, 6, 3), lambda m, x: m(x.unsqueeze(dim)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_sample_that_is_several_sequences(kind: str, batch_first: bool) -> None:
    _checked(
        _layer(kind, bidirectional=True, num_layers=2, batch_first=batch_first),
        _sequences(3, 3, 3, 3),
    )


def test_the_weights_have_one_sum_of_outer_products_over_time() -> None:
    grads = _checked(nn.LSTM(24, 24, 2).double(), _sequences(5, 6, 24))
    terms = {p.name: p.terms for p in grads._parameters}
    weights = [terms[name] for name in terms if "weight" in name]
    assert len(weights) == 4
    assert all(
        len(t) == 1 and isinstance(t[0], Outer) and t[0].left.shape == (5, 6, 96) for t in weights
    )


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", ["LSTM with projections", "GRU"])
def test_the_results_are_those_of_each_sample_alone(kind: str, batch_first: bool) -> None:
    module = _layer(kind, num_layers=2, bidirectional=True, batch_first=batch_first)

    def loss(params: Any, x: Tensor) -> tuple[Tensor, Any]:
        out = functional_call(module, params, (x,))
        return _loss(out), out

    x = _sequences(3, 5, 2, 3)
    found = per_sample_grads(loss, has_aux=True)(parameters_of(module), x).aux
    for each, *alone in zip(_tensors(found), *(_tensors(module(one)) for one in x), strict=True):
        torch.testing.assert_close(each, torch.stack(alone).detach())


def _some(kind: str, which: tuple[int, ...]) -> Forward:
    return lambda m, x: tuple(_tensors(m(x))[i] for i in which)


@pytest.mark.parametrize("kind", KINDS)
def test_cotangents_of_some_results_alone(kind: str) -> None:
    results = 3 if "LSTM" in kind else 2
    for n in range(1, results + 1):
        for which in itertools.combinations(range(results), n):
            _checked(_layer(kind, bidirectional=True), _sequences(4, 3, 3), _some(kind, which))


@pytest.mark.parametrize("kind", KINDS)
def test_initial_states_that_are_parameters_data_or_computed(kind: str) -> None:
    class Started(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = _layer(kind)
            self.first = nn.Parameter(torch.linspace(-1, 1, 4, dtype=torch.float64).reshape(1, 4))
            self.second = nn.Linear(3, 4).double()

        def forward(self, x: Tensor) -> Any:
            h = self.first[:, :2] if "projections" in kind else self.first
            states = {
                "data": torch.ones_like(h),
                "parameter": h,
                "computed": self.second(x[:1])[:, : h.shape[1]],
            }
            outs = []
            for name, state in states.items():
                cell = self.second(x[1:2]) if name == "computed" else self.first
                outs.append(self.layer(x, (state, cell) if "LSTM" in kind else state))
            return tuple(outs)

    _checked(Started(), _sequences(4, 3, 3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("lengths", [[5, 3, 3, 1], [4], [3, 3]])
def test_packed_sequences(kind: str, both_ways: bool, lengths: list[int]) -> None:
    def forward(m: nn.Module, x: Tensor) -> Any:
        out, last = m(pack_padded_sequence(x, torch.tensor(lengths), batch_first=True))
        return pad_packed_sequence(out)[0], last

    module = _layer(kind, num_layers=2, bidirectional=both_ways)
    _checked(module, _sequences(3, len(lengths), max(lengths), 3), forward)


def test_packed_sequences_with_states_and_in_any_order() -> None:
    def forward(m: nn.Module, x: Tensor) -> Any:
        packed = pack_padded_sequence(
            x, torch.tensor([2, 5, 3]), batch_first=True, enforce_sorted=False
        )
        out, last = m(packed, x[:, 0].repeat(2, 1, 2)[..., :4])
        return pad_packed_sequence(out)[0], last

    _checked(_layer("GRU", bidirectional=True), _sequences(4, 3, 5, 3), forward)


def test_dropout_between_layers_is_that_of_the_forward_pass() -> None:
    module = _layer("LSTM", num_layers=2, dropout=0.5)
    x = torch.ones(64, 4, 3, dtype=torch.float64)

    def loss(params: Any, x: Tensor) -> Tensor:
        return _loss(functional_call(module, params, (x,))[0])

    torch.manual_seed(3)
    grads = per_sample_grads(loss)(parameters_of(module), x)
    torch.manual_seed(3)
    wanted = vmap(grad(loss), (None, 0), randomness="different")(parameters_of(module), x)
    assert grads.losses.unique().numel() > 16
    torch.testing.assert_close(in_rows(grads.materialize()), in_rows(wanted))


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_used_twice_on_computed_weights_between_other_layers(kind: str) -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.layer = nn.Linear(3, 3).double(), _layer(kind)
            nn.utils.parametrizations.weight_norm(self.words)
            self.back = nn.Linear(2 if "projections" in kind else 4, 3).double()

        def forward(self, x: Tensor) -> Any:
            first = self.layer(self.words(x))[0]
            return self.layer(self.back(first).tanh() + x)[0]

    _checked(Stack(), _sequences(4, 3, 3))


def test_frozen_weights_have_no_term_and_pass_cotangents_on() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3).double()
            self.layers = [_layer("GRU").requires_grad_(False)]

        def forward(self, x: Tensor) -> Any:
            return self.layers[0](self.first(x))

    _checked(Head(), _sequences(4, 3, 3))


def test_cells() -> None:
    def run(m: nn.Module, x: Tensor) -> Any:
        h = m(x[:1])
        return m(x[1:], (h[0].expand(2, 4), h[1].expand(2, 4)))

    torch.manual_seed(0)
    _checked(nn.LSTMCell(3, 4).double(), _sequences(4, 3, 3), run)
    _checked(nn.GRUCell(3, 4).double(), _sequences(4, 3, 3), lambda m, x: m(x[1:], m(x[:2])))


def _norms(module: nn.Module) -> Any:
    def loss(params: Any, x: Tensor) -> Tensor:
        return _loss(functional_call(module, params, (x,)))

    def norms(params: Any, x: Tensor) -> Tensor:
        found: Tensor = per_sample_grads(loss)(params, x).norms()
        return found

    return norms, loss


@pytest.mark.parametrize("kind", KINDS)
def test_jit_vmap_and_grad_of_norms(kind: str) -> None:
    module = _layer(kind, bidirectional=True)
    norms, loss = _norms(module)
    params, x = parameters_of(module), _sequences(2, 3, 4, 3)
    wanted = torch.stack([norms(params, row) for row in x])
    torch.testing.assert_close(vmap(norms, (None, 0))(params, x), wanted)
    torch.testing.assert_close(jit(norms)(params, x[1]), wanted[1])
    by_vmap = grad(lambda p: in_rows(vmap(grad(loss), (None, 0))(p, x[0])).norm(dim=1).sum())(
        params
    )
    found = grad(lambda p: norms(p, x[0]).sum())(params)
    torch.testing.assert_close(found, by_vmap)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_dtypes(dtype: torch.dtype) -> None:
    module, x = _layer("LSTM"), _sequences(4, 5, 3)
    exact = _norms(module)[0](parameters_of(module), x)
    module = module.to(dtype)
    found = _norms(module)[0](parameters_of(module), x.to(dtype))
    bound = 1e-5 if dtype is torch.float32 else 5e-2
    torch.testing.assert_close(found.double(), exact, rtol=bound, atol=bound)


def test_an_input_that_is_written_to_is_refused() -> None:
    module = _layer("GRU")

    def loss(params: Any, x: Tensor) -> Tensor:
        h = x * 2
        out = functional_call(module, params, (h,))[0]
        h.add_(1)
        return _loss(out) + h.sum()

    with pytest.raises(RuntimeError, match=r"a recurrent layer.* modified by an inplace operation"):
        per_sample_grads(loss)(parameters_of(module), _sequences(4, 3, 3))


def test_results_may_be_written_to() -> None:
    _checked(_layer("GRU"), _sequences(4, 3, 3), lambda m, x: tuple(t.mul_(2) for t in m(x)))


def test_packed_sequences_of_other_lengths_in_each_sample_are_refused() -> None:
    def loss(params: Any, x: Tensor, lengths: Tensor) -> Tensor:
        return _loss(functional_call(module, params, (pack_padded_sequence(x, lengths),))[1])

    module = _layer("GRU")
    with pytest.raises(RuntimeError, match="one list for all elements"):
        per_sample_grads(loss)(
            parameters_of(module), _sequences(2, 3, 2, 3), torch.tensor([[3, 2], [3, 2]])
        )


def test_without_grad_mode_a_layer_has_no_gradients() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = _layer("LSTM"), nn.Linear(4, 2).double()

        def forward(self, x: Tensor) -> Any:
            with torch.no_grad():
                h = self.layer(x)[0]
            return self.head(h)

    _checked(Part(), _sequences(4, 3, 3))


def test_an_input_of_another_size_is_refused_in_torchs_words() -> None:
    norms, _ = _norms(_layer("LSTM"))
    with pytest.raises(RuntimeError, match=r"input.size\(-1\) must be equal to input_size"):
        norms(parameters_of(_layer("LSTM")), _sequences(4, 3, 5))


MISFITS: dict[str, tuple[Callable[[nn.Module, Tensor], Any], str]] = {
    "states of another number of sequences": (
        lambda m, x: m(x[None].expand(2, -1, -1), x.new_zeros(1, 3, 4)),
        "hidden",
    ),
    "states of another width": (lambda m, x: m(x, x.new_zeros(1, 5)), "hidden"),
    "states of more layers": (lambda m, x: m(x, x.new_zeros(2, 4)), "hidden"),
    "states of another dtype": (lambda m, x: m(x, x.new_zeros(1, 4, dtype=torch.float32)), "dtype"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_states_that_do_not_fit_are_refused_as_alone(name: str) -> None:
    module, (run, says) = _layer("GRU", batch_first=True), MISFITS[name]
    with pytest.raises((RuntimeError, ValueError), match=says):
        run(module, _sequences(6, 3))
    with pytest.raises((RuntimeError, ValueError), match=says):
        per_sample_grads(lambda params, x: _loss(functional_call(_Of(module, run), params, (x,))))(
            parameters_of(_Of(module, run)), _sequences(4, 6, 3)
        )


class _Of(nn.Module):
    def __init__(self, module: nn.Module, run: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.m, self.run = module, run

    def forward(self, x: Tensor) -> Any:
        return self.run(self.m, x)


ATEN: dict[str, Callable[..., Any]] = {
    "states of another number of sequences": lambda x, h, p: torch.gru(
        x, h.new_zeros(1, 3, 4), p, True, 1, 0.0, False, False, True
    ),
    "states of another width": lambda x, h, p: torch.gru(
        x, h.new_zeros(1, 2, 5), p, True, 1, 0.0, False, False, True
    ),
    "states of more layers": lambda x, h, p: torch.gru(
        x, h.new_zeros(2, 2, 4), p, True, 1, 0.0, False, False, True
    ),
    "states without layers": lambda x, h, p: torch.gru(
        x, h[0], p, True, 1, 0.0, False, False, True
    ),
    "weights of fewer layers": lambda x, h, p: torch.gru(
        x, h.new_zeros(2, 2, 4), p, True, 2, 0.0, False, False, True
    ),
    "weights without biases": lambda x, h, p: torch.gru(x, h, p, False, 1, 0.0, False, False, True),
    "an input of another width": lambda x, h, p: torch.gru(
        x[..., :2], h, p, True, 1, 0.0, False, False, True
    ),
    "an input of another dtype": lambda x, h, p: torch.gru(
        x.float(), h, p, True, 1, 0.0, False, False, True
    ),
    "a weight of another shape": lambda x, h, p: torch.gru(
        x, h, [p[0], p[1][:, :3], *p[2:]], True, 1, 0.0, False, False, True
    ),
    "a bias of another shape": lambda x, h, p: torch.gru(
        x, h, [*p[:2], p[2][:5], p[3]], True, 1, 0.0, False, False, True
    ),
    "lengths of more sequences": lambda x, h, p: torch.gru(
        x.flatten(0, 1), torch.tensor([3, 1]), h, p, True, 1, 0.0, False, False
    ),
    "lengths of fewer rows": lambda x, h, p: torch.gru(
        x.flatten(0, 1), torch.tensor([2, 1]), h, p, True, 1, 0.0, False, False
    ),
}


@pytest.mark.parametrize("name", ATEN)
def test_what_aten_takes_or_refuses_is_taken_or_refused(name: str) -> None:
    """A call that does not fit goes to ATen, one sample after the other, as a call without
    per-sample gradients does."""
    params = [p.detach() for p in _layer("GRU").parameters()]
    x, h = _sequences(3, 2, 5, 3), torch.zeros(1, 2, 4, dtype=torch.float64)

    def loss(params: list[Tensor], x: Tensor) -> Tensor:
        return _loss(ATEN[name](x, h, params))

    try:
        wanted = torch.stack([loss(params, one).detach() for one in x])
    except (RuntimeError, IndexError, ValueError):
        with pytest.raises((RuntimeError, IndexError, ValueError)):
            per_sample_grads(loss)(params, x)
    else:
        torch.testing.assert_close(per_sample_grads(loss)(params, x).losses, wanted)
