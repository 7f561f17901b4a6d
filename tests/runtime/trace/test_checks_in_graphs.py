"""What a traced composite op refuses, and in which dtype and on which device its
check is computed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from runtime.aot import make_fx

X = torch.arange(12.0, dtype=torch.float64).view(3, 4).sin()
SPECTRUM = torch.complex(
    torch.arange(45.0, dtype=torch.float64).view(5, 9).sin(),
    torch.arange(45.0, dtype=torch.float64).view(5, 9).cos(),
)
LABELS = torch.tensor([0, 2, 1])
REFUSED: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "cov of three dimensions": (lambda x: torch.cov(x[None], aweights=x[0].abs()), X),
    "cov of booleans": (lambda x: torch.cov(x > 0, fweights=torch.ones(4, dtype=torch.int64)), X),
    "counts that are no integers": (lambda x: torch.cov(x, fweights=x[0].abs()), X),
    "complex counts": (lambda x: torch.cov(x, fweights=torch.ones(4, dtype=torch.complex64)), X),
    "boolean counts": (lambda x: torch.cov(x, fweights=x[0] > 0), X),
    "integer weights": (lambda x: torch.cov(x, aweights=torch.ones(4, dtype=torch.int64)), X),
    "a matrix of weights": (lambda x: torch.cov(x, aweights=x[:1].abs()), X),
    "too few weights": (lambda x: torch.cov(x, aweights=x[0, :3].abs()), X),
    "too few counts": (lambda x: torch.cov(x, fweights=torch.ones(3, dtype=torch.int64)), X),
    "istft of real numbers": (lambda s: torch.istft(s.real, 8, window=torch.ones(8)), SPECTRUM),
    "istft of one dimension": (lambda s: torch.istft(s[0], 8, window=torch.ones(8)), SPECTRUM),
    "istft of four dimensions": (
        lambda s: torch.istft(s[None, None], 8, window=torch.ones(8)),
        SPECTRUM,
    ),
    "istft without steps": (
        lambda s: torch.istft(s, 8, hop_length=0, window=torch.ones(8)),
        SPECTRUM,
    ),
    "istft of steps past the window": (
        lambda s: torch.istft(s, 8, hop_length=6, win_length=4, window=torch.ones(4)),
        SPECTRUM,
    ),
    "istft of a wide window": (
        lambda s: torch.istft(s, 8, win_length=10, window=torch.ones(10)),
        SPECTRUM,
    ),
    "istft of another window": (lambda s: torch.istft(s, 8, window=torch.ones(6)), SPECTRUM),
    "istft of other frequencies": (lambda s: torch.istft(s, 10, window=torch.ones(10)), SPECTRUM),
    "one_hot of floats": (lambda t: F.one_hot(t.double()), LABELS),
    "one_hot of small integers": (lambda t: F.one_hot(t.int()), LABELS),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_op_refuses_a_trace_refuses_in_the_same_words(name: str) -> None:
    f, x = REFUSED[name]
    with pytest.raises((RuntimeError, TypeError, IndexError)) as eager:
        f(x)
    with pytest.raises(type(eager.value)) as traced:
        make_fx(f)(x)
    assert str(traced.value).split("\n")[0][:60] == str(eager.value).split("\n")[0][:60]


@pytest.mark.parametrize("classes", [4, 7])
def test_one_hot_of_a_number_of_classes_has_as_many_for_every_argument(classes: int) -> None:
    graph = make_fx(lambda t: F.one_hot(t, classes), tracing_mode="symbolic")(LABELS)
    for labels in ([1, 0], [3, 3, 2, 0], [0]):
        assert torch.equal(graph(torch.tensor(labels)), F.one_hot(torch.tensor(labels), classes))


EDGES: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "cov of a row": (lambda x: torch.cov(x[0], aweights=x[1].abs()), X),
    "cov of a number": (lambda x: torch.cov(x[0, 0], aweights=x[0, 1].abs()), X),
    "cov of a negative divisor": (
        lambda x: torch.cov(x, correction=4, aweights=x[0].abs() * 0.01),
        X,
    ),
    "cov with counts and weights": (
        lambda x: torch.cov(x, fweights=torch.tensor([1, 2, 1, 3]), aweights=x[0].abs()),
        X,
    ),
    "istft of a narrow window": (lambda s: torch.istft(s, 8, 2, 6), SPECTRUM),
    "istft of a window of two to its last sample": (
        lambda s: torch.istft(s, 8, 2, 2, length=17),
        SPECTRUM,
    ),
    "istft of a window of three to its last sample": (
        lambda s: torch.istft(s, 8, 2, 3, length=17),
        SPECTRUM,
    ),
    "istft of a window of odd width": (lambda s: torch.istft(s, 8, 2, 5), SPECTRUM),
    "istft without a window": (lambda s: torch.istft(s, 8), SPECTRUM),
    "istft of the largest step": (lambda s: torch.istft(s, 8, 8), SPECTRUM),
    "istft that is not centred": (
        lambda s: torch.istft(s, 8, center=False, window=s.real.new_ones(8)),
        SPECTRUM,
    ),
    "istft of a short signal": (lambda s: torch.istft(s, 8, length=11), SPECTRUM),
    "istft of two signals": (lambda s: torch.istft(torch.stack([s, s * 2]), 8, 3), SPECTRUM),
}


@pytest.mark.filterwarnings(
    "ignore:cov():UserWarning", "ignore:A window was not provided:UserWarning"
)
@pytest.mark.parametrize("name", EDGES)
def test_a_graph_gives_what_the_op_gives_where_it_is_just_allowed(name: str) -> None:
    f, x = EDGES[name]
    graph = make_fx(f)(x)
    torch.testing.assert_close(graph(x * 0.5), f(x * 0.5), equal_nan=True)


@pytest.mark.filterwarnings("ignore:A window was not provided:UserWarning")
@pytest.mark.parametrize("name", [n for n in EDGES if n.startswith("istft")])
def test_the_check_of_windows_is_computed_in_the_precision_and_on_the_device_of_the_spectrum(
    name: str,
) -> None:
    f, x = EDGES[name]
    for given, mode in ((x, "real"), (x.to("meta"), "fake")):
        values = [
            n.meta["val"]
            for n in make_fx(f, tracing_mode=mode)(given).graph.nodes
            if isinstance(n.meta.get("val"), torch.Tensor)
        ]
        assert {v.dtype.to_real() for v in values if v.is_floating_point() or v.is_complex()} == {
            torch.float64
        }
        assert {v.device.type for v in values} == {given.device.type}


def test_windows_that_leave_out_a_sample_are_refused_by_the_graph() -> None:
    def f(s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.istft(s, 8, 8, window=w, center=False)

    graph = make_fx(f)(SPECTRUM, torch.ones(8, dtype=torch.float64))
    # of which the square is above 1e-11, or is not
    for first, fits in ((1e-5, True), (3e-6, False), (-1e-5, True), (0.0, False)):
        window = torch.ones(8, dtype=torch.float64)
        window[0] = first
        if fits:
            torch.testing.assert_close(graph(SPECTRUM, window), f(SPECTRUM, window))
        else:
            with pytest.raises(RuntimeError, match="leave out a sample"):
                graph(SPECTRUM, window)


@pytest.mark.parametrize("traced", ["an argument", "a keyword argument", "nothing"])
def test_a_call_is_taken_apart_where_a_trace_sees_it(traced: str) -> None:
    weights = X[0].abs()

    def f(x: torch.Tensor) -> Any:
        if traced == "an argument":
            return torch.cov(x, aweights=weights)
        if traced == "a keyword argument":
            return torch.cov(X, aweights=x[0].abs())
        return torch.cov(X, aweights=weights) + x.sum()

    graph = make_fx(f)(X)
    assert torch.ops.aten._assert_async.msg in [n.target for n in graph.graph.nodes]
    assert torch.equal(graph(X), f(X))


@pytest.mark.parametrize(("wide", "fits"), [(4, True), (3, True), (2, False), (1, False)])
def test_windows_are_a_fourth_of_their_length_apart_if_nobody_says(wide: int, fits: bool) -> None:
    def f(s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.istft(s, 12, window=w, center=False, length=16)

    spectrum, window = torch.cat([SPECTRUM, SPECTRUM[:2]]), torch.zeros(12, dtype=torch.float64)
    graph = make_fx(f)(spectrum, torch.ones(12, dtype=torch.float64))
    window[:wide] = 1
    expected = pytest.raises(RuntimeError, match=r"leave out a sample|overlap add min")
    with nullcontext() if fits else expected:
        torch.testing.assert_close(graph(spectrum, window), f(spectrum, window))


@pytest.mark.parametrize(
    ("center", "length", "fits"),
    [(False, 7, True), (False, 8, False), (True, 3, True), (True, 4, False)],
)
def test_samples_after_the_length_that_is_asked_for_may_be_left_out(
    center: bool, length: int, fits: bool
) -> None:
    def f(s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.istft(s, 8, 8, window=w, center=center, length=length)

    window = torch.ones(8, dtype=torch.float64)
    graph = make_fx(f)(SPECTRUM, window.clone())
    window[7] = 0  # every eighth sample is left out
    with nullcontext() if fits else pytest.raises(RuntimeError, match="leave out a sample"):
        torch.testing.assert_close(graph(SPECTRUM, window), f(SPECTRUM, window))
