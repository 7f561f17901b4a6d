"""Random numbers in calls of control flow under ``vmap``: each element draws for itself, or all
share a draw, also in a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit
from runtime.aot import cond, make_fx, map, scan, while_loop
from runtime.func import grad, grad_and_value, jvp, vmap

from ...watched_generators import Generator

X = torch.ones(2, 3)
NO_BATCH: dict[str, Callable[[Any], Any]] = {  # nothing in them is a batch
    "cond without arguments": lambda x: cond(
        x.sum() > 0, lambda: torch.rand(2, 3), lambda: torch.zeros(2, 3), ()
    ),
    "cond": lambda x: cond(x.sum() > 0, lambda x: torch.rand_like(x) * x, lambda x: x * 0, (x,)),
    "while_loop": lambda x: while_loop(
        lambda y: y.sum() < 3, lambda y: (y + torch.rand_like(y),), (x * 0,)
    )[0],
    "the condition of a while_loop": lambda x: while_loop(
        lambda y: y.sum() < 900 * torch.rand(()), lambda y: (y + x / 6,), (x * 0,)
    )[0],
    "map": lambda x: map(lambda row: row * torch.rand_like(row), x, unroll=False),
    "scan": lambda x: scan(
        lambda c, row: (c + row, torch.rand_like(row)), x[0] * 0, x, unroll=False
    )[1],
    "the carry of a scan": lambda x: scan(
        lambda c, row: (c + torch.rand_like(row), row * 2), x[0] * 0, x, unroll=False
    )[0],
    "dropout": lambda x: cond(
        x.sum() > 0,
        lambda x: torch.dropout(x.repeat(9, 9), 0.5, True),
        lambda x: x.repeat(9, 9) * 0,
        (x,),
    ),
}
ONES = torch.ones(4)


def _of_elements(f: Callable[[Any], Any], randomness: str) -> Callable[[Any, Any], Any]:
    return lambda x, elements: vmap(lambda _: f(x), randomness=randomness)(elements)


def _distinct(found: Tensor) -> int:
    return len(found.flatten(1).unique(dim=0))


RUNS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "eager": lambda f: f,
    "real": lambda f: make_fx(f)(X, ONES),
    "symbolic": lambda f: make_fx(f, tracing_mode="symbolic")(X, ONES),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", NO_BATCH)
def test_each_element_draws_for_itself(name: str, run: str) -> None:
    torch.manual_seed(0)
    f = RUNS[run](_of_elements(NO_BATCH[name], "different"))
    first, second = f(X, ONES), f(X, ONES)
    steps = "condition" in name  # two elements may take as many of them
    assert (
        len(first) == 4
        and min(_distinct(first), _distinct(second)) >= (2 if steps else 4)
        and not first.equal(second)
    )


@pytest.mark.parametrize("run", ["eager", "real"])
@pytest.mark.parametrize("name", NO_BATCH)
def test_all_elements_share_a_draw(name: str, run: str) -> None:
    torch.manual_seed(0)
    f = RUNS[run](_of_elements(NO_BATCH[name], "same"))
    first, second = f(X, ONES), f(X, ONES)
    assert (
        len(first) == 4 and _distinct(first) == _distinct(second) == 1 and not first.equal(second)
    )


@pytest.mark.parametrize("name", NO_BATCH)
def test_a_draw_is_refused_by_default(name: str) -> None:
    with pytest.raises(RuntimeError, match="random"):
        make_fx(_of_elements(NO_BATCH[name], "error"))(X, ONES)


def test_another_branch_than_that_which_draws_is_a_constant() -> None:
    f = RUNS["real"](_of_elements(NO_BATCH["cond"], "different"))
    assert f(-X, ONES).equal(torch.zeros(4, 2, 3))


@pytest.mark.parametrize(
    ("outer", "inner", "distinct"),
    [("different", "different", 12), ("same", "different", 3), ("different", "same", 4)],
)
@pytest.mark.parametrize("name", ["cond without arguments", "while_loop", "map"])
def test_batches_inside_one_another(name: str, outer: str, inner: str, distinct: int) -> None:
    torch.manual_seed(0)

    def f(x: Any, elements: Any) -> Any:
        return vmap(
            lambda _: vmap(lambda _: NO_BATCH[name](x), randomness=inner)(torch.ones(3)),
            randomness=outer,
        )(elements)

    for run in (f, make_fx(f)(X, ONES)):
        found = run(X, ONES)
        assert found.shape[:2] == (4, 3) and _distinct(found.flatten(0, 1)) == distinct


DIFFERENTIATED: dict[str, Callable[[Any], Any]] = {
    "cond": lambda x: cond(
        x.sum() > 0, lambda x: x * torch.bernoulli(x.detach() * 0.5), lambda x: x * 2, (x,)
    ),
    "the other branch of cond": lambda x: cond(
        x.sum() < 0, lambda x: x * 2, lambda x: x * torch.bernoulli(x.detach() * 0.5), (x,)
    ),
    "while_loop": lambda x: while_loop(
        lambda y: y.sum() > 5, lambda y: (y * torch.bernoulli(y.detach() * 0.5),), (x,)
    )[0],
    "condition of while_loop": lambda x: while_loop(
        lambda y: y.sum() > 9 * torch.rand(()), lambda y: (y * 0.5,), (x,)
    )[0],
    "map": lambda x: map(lambda row: row * torch.bernoulli(row.detach() * 0.5), x, unroll=False),
}
DERIVATIVES: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "grad": lambda f: grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x,)),
}


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_a_graph_of_a_derivative_would_draw_other_numbers_and_is_refused_with_the_line(
    name: str, derivative: str
) -> None:
    with pytest.raises(
        RuntimeError, match=r"draws random numbers, and is differentiated\. .*test_draws\.py"
    ):
        make_fx(DERIVATIVES[derivative](DIFFERENTIATED[name]))(X)


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_the_derivatives_of_elements_that_take_branches_which_draw_are_refused(
    randomness: str, derivative: str
) -> None:
    f = DERIVATIVES[derivative](
        lambda x: cond(x.sum() > 0, lambda x: x * torch.rand(3), lambda x: x * 2, (x,))
    )
    with pytest.raises(
        RuntimeError, match="a branch of cond draws random numbers, and is differentiated"
    ):
        vmap(f, randomness=randomness)(torch.stack([X, X]))


@pytest.mark.parametrize("name", ["cond", "map"])
def test_what_runs_in_python_is_differentiated_with_its_own_draws(name: str) -> None:
    torch.manual_seed(0)
    x = torch.ones(50)
    slope, value = grad_and_value(lambda x: DIFFERENTIATED[name](x).sum())(x)
    assert slope.sum() == value and 0 < value < 50


def test_what_draws_nothing_is_one_call_for_all_elements() -> None:
    graph = make_fx(
        _of_elements(lambda x: cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "different")
    )(X, ONES)
    (call,) = [n for n in graph.graph.nodes if n.target is torch.ops.higher_order.cond]
    assert all(n.meta["val"].shape == (2, 3) for n in call.args[3])


GENERATOR = Generator()


def _own(t: Any) -> Any:
    g = Generator().manual_seed(5)
    return t + torch.rand(2, 3, generator=g)


def _clone(t: Any) -> Any:
    g = GENERATOR.clone_state()
    return t + torch.rand(2, 3, generator=g)


def _cond(x: Any, on_true: Callable[[Any], Any]) -> Any:
    return cond(x.sum() > 7, on_true, lambda t: t * 2, (x,))


def _draw(t: Any) -> Any:
    return t + torch.rand(2, 3)


def _draw_of(t: Any) -> Any:
    return t + torch.rand(2, 3, generator=GENERATOR)


def _forked(x: Any) -> Any:
    with torch.random.fork_rng(devices=()):
        return _cond(x, _draw)


def _from_own(x: Any) -> Any:
    g = Generator().manual_seed(5)
    return _cond(x, lambda t: t + torch.rand(2, 3, generator=g)) + torch.rand(2, 3, generator=g)


WITH_STATES: dict[str, Callable[[Any], Any]] = {
    "a branch": lambda x: _cond(x, _draw) + torch.rand(2, 3),
    "a branch, of a generator": lambda x: (
        _cond(x, lambda t: t + torch.rand(2, 3, generator=GENERATOR))
        + torch.rand(2, 3, generator=GENERATOR)
    ),
    "a branch after a seed": lambda x: (torch.manual_seed(3), _cond(x, _draw))[1],
    "a branch after a seed of a generator": lambda x: (
        GENERATOR.manual_seed(3),
        _cond(x, lambda t: torch.poisson(t, generator=GENERATOR)),
    )[1],
    "a branch before a seed": lambda x: (_cond(x, _draw), torch.manual_seed(3))[0],
    "a branch whose state is given back": _forked,
    "a branch, of a generator that each call makes": _from_own,
    "a loop": lambda x: (
        while_loop(lambda y: y.sum() < 9, lambda y: (y + torch.rand_like(y),), (x,))[0]
        + torch.rand(2, 3)
    ),
    "a condition": lambda x: (
        while_loop(lambda y: y.sum() < 9 * torch.rand(()), lambda y: (y + x / 6,), (x * 0,))[0]
        + torch.rand(2, 3)
    ),
    "a scan": lambda x: (
        scan(lambda c, row: (c + row, torch.rand_like(row)), x[0] * 0, x, unroll=False)[1]
        + torch.rand(2, 3)
    ),
    "a map": lambda x: map(
        lambda row: row * torch.rand((3,), generator=GENERATOR), x, unroll=False
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WITH_STATES)
def test_a_compiled_call_draws_as_the_program_whichever_branch_was_captured(
    name: str, dynamic: bool
) -> None:
    seen = []
    for f in (WITH_STATES[name], jit(WITH_STATES[name], dynamic=dynamic)):
        torch.manual_seed(1)
        GENERATOR.manual_seed(2)
        seen.append(
            [(f(X * n), torch.rand(2), torch.rand(2, generator=GENERATOR)) for n in (1, 2, 1, 2)]
        )
    for expected, found in zip(*seen, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


SETS: dict[str, Callable[[Any], Any]] = {
    "a seed": lambda t: (torch.manual_seed(3), t + torch.rand(2, 3))[1],
    "a seed without a draw": lambda t: (torch.manual_seed(3), t + 1)[1],
    "a seed of a generator": lambda t: (
        GENERATOR.manual_seed(3),
        t + torch.rand(2, 3, generator=GENERATOR),
    )[1],
    "a seed after a draw": lambda t: (t + torch.rand(2, 3), torch.manual_seed(3))[0],
    "a generator of its own": _own,
    "a clone": _clone,
}


@pytest.mark.parametrize("run", ["real", "symbolic"])
@pytest.mark.parametrize("name", SETS)
def test_a_branch_that_sets_a_state_is_refused(name: str, run: str) -> None:
    state = torch.get_rng_state(), GENERATOR.get_state()
    with pytest.raises(
        RuntimeError,
        match=(
            r"makes a random generator or sets the state of one|sets the state "
            r"of a random generator"
        ),
    ):
        make_fx(lambda x: _cond(x, SETS[name]), tracing_mode=run)(X)
    assert torch.equal(torch.get_rng_state(), state[0]) and torch.equal(
        GENERATOR.get_state(), state[1]
    )
