"""What ATen reads to check an argument is a call of the graph, which checks the arguments of
every later call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from runtime.aot import aot_function, export, make_fx, min_cut_rematerialization_partition, nop
from runtime.func import vjp, vmap

COUNTS = torch.tensor([1, 2, 3, 4])
WEIGHTS = torch.tensor([0.5, 1.0, 0.25, 2.0], dtype=torch.float64)
WINDOW = torch.hann_window(8, dtype=torch.float64)


def _rows(n: int = 4) -> torch.Tensor:
    return torch.randn(3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))


def _spectrum(frames: int = 9) -> torch.Tensor:
    return torch.randn(
        5, frames, dtype=torch.complex128, generator=torch.Generator().manual_seed(frames)
    )


CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "counts": (lambda x, f: torch.cov(x, fweights=f), (_rows(), COUNTS)),
    "weights": (lambda x, a: torch.cov(x, aweights=a), (_rows(), WEIGHTS)),
    "both": (
        lambda x, f, a: torch.cov(x, correction=2, fweights=f, aweights=a),
        (_rows(), COUNTS, WEIGHTS),
    ),
    "uncorrected": (lambda x, a: torch.cov(x, correction=0, aweights=a), (_rows(), WEIGHTS)),
    "a row": (lambda x, f: torch.cov(x[0], fweights=f), (_rows(), COUNTS)),
    "complex": (lambda x, a: torch.cov(x, aweights=a), (_rows() + 1j * _rows().flip(1), WEIGHTS)),
    "corrcoef": (torch.corrcoef, (_rows(),)),
    "istft": (lambda s, w: torch.istft(s, 8, window=w), (_spectrum(), WINDOW)),
    "istft of a length": (
        lambda s, w: torch.istft(s, 8, window=w, length=12),
        (_spectrum(), WINDOW),
    ),
    "istft of narrow windows": (
        lambda s, w: torch.istft(s, 8, 2, 6, w[1:7]),
        (_spectrum(), WINDOW),
    ),
    "istft of a batch": (
        lambda s, w: torch.istft(torch.stack([s, 2 * s]), 8, window=w, normalized=True),
        (_spectrum(), WINDOW),
    ),
    "gaussian_nll_loss": (
        lambda x, a: F.gaussian_nll_loss(x, x.flip(0).detach(), a.expand(3, 4), full=True),
        (_rows(), WEIGHTS),
    ),
    "gaussian_nll_loss of one variance": (
        lambda x: F.gaussian_nll_loss(x, x.flip(0).detach(), 0.5, reduction="none"),
        (_rows(),),
    ),
}
cases = pytest.mark.parametrize(("f", "args"), CASES.values(), ids=CASES)
modes = pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])


@cases
@modes
def test_a_graph_gives_what_aten_gives(
    f: Callable[..., torch.Tensor], args: tuple[torch.Tensor, ...], mode: str
) -> None:
    graph = make_fx(f, tracing_mode=mode)(*args)
    assert torch.equal(graph(*args), f(*args))


@cases
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_function_gives_the_gradients_of_eager(
    f: Callable[..., torch.Tensor], args: tuple[torch.Tensor, ...], dynamic: bool
) -> None:
    def leaves() -> list[Any]:
        return [
            x.clone().requires_grad_() if x.is_floating_point() or x.is_complex() else x
            for x in args
        ]

    given, expected = leaves(), leaves()
    f(*expected).abs().sum().backward()
    compiled = aot_function(
        f, nop, partition_fn=min_cut_rematerialization_partition, dynamic=dynamic
    )
    compiled(*given).abs().sum().backward()
    for x, y in zip(given, expected, strict=True):
        assert (x.grad is None) == (y.grad is None)
        if y.grad is not None:
            torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_check_is_carried_out_by_every_call(dynamic: bool) -> None:
    compiled = aot_function(lambda x, f: torch.cov(x, fweights=f), nop, dynamic=dynamic)
    assert torch.equal(compiled(_rows(), COUNTS), torch.cov(_rows(), fweights=COUNTS))
    with pytest.raises(RuntimeError, match="fweights cannot be negative"):
        compiled(_rows(), COUNTS - 2)
    with pytest.raises(RuntimeError, match="weights sum to zero"):
        compiled(_rows(), COUNTS * 0)
    loss = aot_function(
        lambda x, a: F.gaussian_nll_loss(x, x * 2, a.expand(3, 4)), nop, dynamic=dynamic
    )
    loss(_rows(), WEIGHTS)
    with pytest.raises(RuntimeError, match="negative entry"):
        loss(_rows(), WEIGHTS - 1)
    inverse = aot_function(lambda s, w: torch.istft(s, 8, window=w), nop, dynamic=dynamic)
    inverse(_spectrum(), WINDOW)
    with pytest.raises(RuntimeError, match="leave out a sample"):
        inverse(_spectrum(), WINDOW * 0)


def test_an_unused_result_leaves_its_check_in_the_graph() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        torch.cov(x, aweights=w)
        return x * 2

    compiled = aot_function(f, nop, partition_fn=min_cut_rematerialization_partition)
    x = _rows().requires_grad_()
    compiled(x, WEIGHTS).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(x.grad, 2))
    with pytest.raises(RuntimeError, match="aweights cannot be negative"):
        compiled(x, -WEIGHTS)


def test_more_corrections_than_observations_give_what_eager_gives() -> None:
    graph = make_fx(lambda x, f: torch.cov(x, correction=20, fweights=f))(_rows(), COUNTS)
    with pytest.warns(UserWarning, match="degrees of freedom"):
        expected = torch.cov(_rows(), correction=20, fweights=COUNTS)
    assert torch.equal(graph(_rows(), COUNTS), expected)


@pytest.mark.parametrize(
    ("f", "n"),
    [
        (torch.cov, 6),
        (torch.corrcoef, 6),
        (lambda x: torch.cov(x, aweights=x[0].abs()), 7),
        (lambda x: torch.cov(x, correction=0), 9),
    ],
    ids=["cov", "corrcoef", "weights", "uncorrected"],
)
def test_a_graph_of_symbolic_sizes_is_for_other_numbers_of_observations(
    f: Callable[..., torch.Tensor], n: int
) -> None:
    graph = make_fx(f, tracing_mode="symbolic")(_rows(4))
    assert torch.equal(graph(_rows(n)), f(_rows(n)))


def test_a_check_within_a_batch_holds_for_every_element() -> None:
    rows, counts = torch.stack([_rows(), _rows() + 1]), torch.stack([COUNTS, COUNTS.flip(0)])
    graph = make_fx(vmap(lambda x, f: torch.cov(x, fweights=f)))(rows, counts)
    expected = torch.stack([torch.cov(x, fweights=f) for x, f in zip(rows, counts, strict=True)])
    torch.testing.assert_close(graph(rows, counts), expected)
    with pytest.raises(RuntimeError, match="cannot be negative"):
        graph(rows, torch.stack([COUNTS, -COUNTS]))


def test_what_the_op_refuses_is_refused_in_its_own_words() -> None:
    programs: tuple[Callable[..., torch.Tensor], ...] = (
        lambda x: torch.cov(x, fweights=torch.ones(4)),
        lambda x: torch.cov(x, aweights=torch.ones(3)),
        lambda x: torch.istft(x + 0j, 8),
    )
    for f in programs:
        with pytest.raises(RuntimeError) as eager:
            f(_rows())
        with pytest.raises(RuntimeError) as traced:
            make_fx(f)(_rows())
        assert str(traced.value)[:40] == str(eager.value)[:40]


def test_the_gradient_is_traced_with_the_check() -> None:
    def gradient(x: torch.Tensor, w: torch.Tensor) -> Any:
        out, pull = vjp(lambda x, w: torch.cov(x, aweights=w), x, w)
        return pull(torch.ones_like(out))

    graph = make_fx(gradient)(_rows(), WEIGHTS)
    x, w = _rows().requires_grad_(), WEIGHTS.clone().requires_grad_()
    torch.cov(x, aweights=w).sum().backward()
    torch.testing.assert_close(graph(_rows(), WEIGHTS), (x.grad, w.grad))
    with pytest.raises(RuntimeError, match="cannot be negative"):
        graph(_rows(), -WEIGHTS)


class _Covariance(torch.nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cov(x, aweights=w)


def test_an_exported_program_has_the_check() -> None:
    program = export(_Covariance(), (_rows(), WEIGHTS))
    assert torch.equal(program.module()(_rows(), WEIGHTS), torch.cov(_rows(), aweights=WEIGHTS))
    with pytest.raises(RuntimeError, match="cannot be negative"):
        program.module()(_rows(), -WEIGHTS)


def test_a_program_that_reads_an_element_is_refused_beside_a_torch_function_that_does() -> None:
    def f(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        loss = F.gaussian_nll_loss(x, x * 2, a.expand(3, 4))
        return loss if torch.any(a < 1) else -loss

    with pytest.raises(RuntimeError, match="asks for the elements of a tensor"):
        make_fx(f)(_rows(), WEIGHTS)


def test_one_hot_without_a_number_of_classes_takes_the_largest_class_of_each_call() -> None:
    graph = make_fx(F.one_hot, tracing_mode="symbolic")(torch.tensor([0, 2, 1]))
    for classes in ([1, 4, 0, 0], [0, 0], [3]):
        assert torch.equal(graph(torch.tensor(classes)), F.one_hot(torch.tensor(classes)))
    with pytest.raises(RuntimeError, match="must be non-negative"):
        graph(torch.tensor([0, -1, 1]))
    with pytest.raises(RuntimeError, match="asks for the elements of a tensor"):
        make_fx(F.one_hot)(torch.tensor([0, 2, 1]))


def test_the_weight_of_one_observation_is_checked_and_of_none_there_is_no_weight() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cov(x, correction=0, fweights=w)

    one = make_fx(f)(torch.ones(2, 1), torch.tensor([3]))
    assert one(torch.ones(2, 1), torch.tensor([2])).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    with pytest.raises(RuntimeError, match="fweights cannot be negative"):
        one(torch.ones(2, 1), torch.tensor([-3]))
    with pytest.raises(RuntimeError, match="weights sum to zero"):
        make_fx(f)(torch.ones(2, 0), torch.zeros(0, dtype=torch.int64))
