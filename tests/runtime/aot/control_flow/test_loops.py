"""``while_loop`` in graphs and under transforms gives what the loop in Python gives, for each
element of a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import (
    aot_function,
    cond,
    default_partition,
    export,
    make_fx,
    min_cut_rematerialization_partition,
    nop,
    while_loop,
)
from runtime.func import functionalize, grad, hessian, jacfwd, jvp, vmap
from tests.runtime.trace.graphs import CallsSeen

X, W = torch.tensor([0.3, 0.4]), torch.tensor([1.5, 1.2])
BATCH = torch.tensor([[0.3, 0.4], [3.0, 1.0], [20.0, 1.0], [0.1, 0.1]])  # 5, 2, 0 and 7 steps
ZERO = torch.zeros((), dtype=torch.int64)


def step(i: Any, y: Any, w: Any) -> Any:
    return i + 1, y * w + i * 0.1


def looped(x: Any, w: Any) -> Any:
    start = (torch.zeros((), dtype=torch.int64), x * 1)
    return while_loop(lambda i, y: y.sum() < 10, lambda i, y: step(i, y, w), start)


def plain(x: Any, w: Any) -> Any:
    i, y = ZERO, x * 1
    while bool(y.sum() < 10):
        i, y = step(i, y, w)
    return i, y


def loss(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w: f(x, w)[1].square().sum()


NESTINGS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "itself": lambda f: f,
    "grad": lambda f: grad(loss(f), (0, 1)),
    "hessian": lambda f: hessian(loss(f), (0, 1)),
    "jvp": lambda f: lambda x, w: jvp(lambda x, w: f(x, w)[1], (x, w), (x.exp(), w.cos())),
    "forward over forward": lambda f: jacfwd(jacfwd(lambda x, w: f(x, w)[1]), 1),
    "functionalize": functionalize,
}
BATCHES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "vmap": (
        lambda x, w: vmap(lambda x: looped(x, w))(x),
        lambda x, w: tuple(
            torch.stack(each) for each in zip(*(plain(e, w) for e in x), strict=True)
        ),
    ),
    "vmap over weights": (
        lambda x, w: vmap(looped, (None, 0))(w, x + 1.1),
        lambda x, w: tuple(
            torch.stack(each) for each in zip(*(plain(w, e + 1.1) for e in x), strict=True)
        ),
    ),
    "vmap of grad": (
        lambda x, w: vmap(grad(loss(looped)), (0, None))(x, w),
        lambda x, w: torch.stack([grad(loss(plain))(e, w) for e in x]),
    ),
    "grad of vmap": (
        grad(lambda x, w: vmap(lambda x: loss(looped)(x, w))(x).sum(), (0, 1)),
        grad(lambda x, w: sum(loss(plain)(e, w) for e in x), (0, 1)),
    ),
}


@pytest.mark.parametrize("mode", ["eager", "real", "symbolic"])
@pytest.mark.parametrize("nesting", NESTINGS)
def test_a_nesting_of_transforms_runs_as_many_steps_as_the_values_need(
    nesting: str, mode: str
) -> None:
    f = NESTINGS[nesting](looped)
    run = f if mode == "eager" else make_fx(f, tracing_mode=mode)(X, W)
    for x in (X, X / 3, X * 100):
        torch.testing.assert_close(run(x, W), NESTINGS[nesting](plain)(x, W))


@pytest.mark.parametrize("mode", ["eager", "real", "symbolic"])
@pytest.mark.parametrize("nesting", BATCHES)
def test_each_element_of_a_batch_stops_at_its_own_step(nesting: str, mode: str) -> None:
    f, expected = BATCHES[nesting]
    run = f if mode == "eager" else make_fx(f, tracing_mode=mode)(BATCH, W)
    for x in (BATCH, BATCH * 2):
        torch.testing.assert_close(run(x, W), expected(x, W))


def test_a_batch_whose_condition_is_that_of_all_is_not_masked() -> None:
    def f(x: Any, n: Any) -> Any:
        return while_loop(
            lambda i, y: i < n, lambda i, y: (i + 1, y * 2), (torch.zeros((), dtype=torch.int64), x)
        )[1]

    graph = make_fx(vmap(f, (0, None)))(BATCH, torch.tensor(3))
    (loop,) = [n for n in graph.graph.nodes if n.target is torch.ops.higher_order.while_loop]
    assert len(loop.args[2]) == 2  # no mask in the carry
    for n in (3, 0, 5):
        torch.testing.assert_close(graph(BATCH, torch.tensor(n)), BATCH * 2**n)


def test_an_element_that_has_stopped_takes_no_part() -> None:
    """The body is finite for no element that has stopped, and the loop inside it would not end."""

    def halved(y: Any) -> Any:
        (z,) = while_loop(
            lambda z: z > 1, lambda z: ((z / 2).ceil() * (z > 0),), (y.detach().clone(),)
        )
        return z

    def f(x: Any, w: Any) -> Any:
        return while_loop(lambda y: y > 0, lambda y: ((y * w).sqrt() - halved(y) * 3,), (x,))[0]

    def one(x: Any, w: Any) -> Any:
        while bool(x > 0):
            z = x.detach().clone()
            while bool(z > 1):
                z = (z / 2).ceil()
            x = (x * w).sqrt() - z * 3
        return x

    w = torch.tensor(2.0)
    x = torch.tensor([50.0, -4.0, 3.0])
    expected = grad(lambda x, w: sum(one(e, w) for e in x), (0, 1))(x, w)
    of_all = grad(lambda x, w: vmap(f, (0, None))(x, w).sum(), (0, 1))
    for run in (of_all, make_fx(of_all)(x, w)):
        torch.testing.assert_close(run(x, w), expected)


@pytest.mark.parametrize(
    ("dynamic", "partition"),
    [(False, default_partition), (True, min_cut_rematerialization_partition)],
)
def test_a_compiled_loop_has_first_and_second_derivatives(dynamic: bool, partition: Any) -> None:
    compiled = aot_function(loss(looped), nop, partition_fn=partition, dynamic=dynamic)
    for scale in (1.0, 3.0, 100.0):
        found = []
        for f in (compiled, loss(plain)):
            x, w = (runtime.wrap(t.double(), True) for t in (X * scale, W))
            out = f(x, w)
            first = runtime.autograd.grad(
                out, (x, w), create_graph=True, allow_unused=True, materialize_grads=True
            )
            both = sum(g.sum() for g in first)
            second = runtime.autograd.grad(both, (x, w), allow_unused=True, materialize_grads=True)
            found.append([t.detach() for t in (out, *first, *second)])
        torch.testing.assert_close(*found)


class Power(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(W.clone())

    def forward(self, x: Any) -> Any:
        return looped(x, self.weight)


def test_an_exported_loop_is_torchs_own_operator_which_torch_saves_and_runs(tmp_path: Path) -> None:
    module = Power()
    exported = export(module, (X,))
    assert [n for n in exported.graph.nodes if n.target is torch.ops.higher_order.while_loop]
    torch.export.save(exported, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    for x in (X, X / 3, X * 100):
        torch.testing.assert_close(loaded(x), plain(x, W))


def test_a_graph_with_a_loop_takes_values_of_any_level() -> None:
    graph = make_fx(looped)(X, W)
    leaf = runtime.wrap(X.clone(), True)
    graph(leaf, W)[1].square().sum().backward()
    torch.testing.assert_close(leaf.grad, grad(loss(plain))(X, W))
    torch.testing.assert_close(vmap(graph, (0, None))(BATCH, W), BATCHES["vmap"][1](BATCH, W))
    torch.testing.assert_close(
        make_fx(grad(loss(graph)))(X, W)(X / 3, W), grad(loss(plain))(X / 3, W)
    )


def test_a_condition_in_a_loop_in_a_condition() -> None:
    def f(x: Any) -> Any:
        def body(i: Any, y: Any) -> Any:
            return i + 1, cond(i % 2 == 0, torch.sin, lambda y: y * 3, (y,))

        def run(x: Any) -> Any:
            return while_loop(
                lambda i, y: i < 5, body, (torch.zeros((), dtype=torch.int64), x.clone())
            )[1]

        return cond(x.sum() > 0, run, torch.neg, (x,))

    def expected(x: Any) -> Any:
        return (((x.sin() * 3).sin() * 3).sin()) if bool(x.sum() > 0) else -x

    for nest in (lambda f: f, lambda f: grad(lambda y: f(y).sum()), jacfwd):
        run = make_fx(nest(f))(X)
        for x in (X, -X):
            torch.testing.assert_close(run(x), nest(expected)(x))


def test_a_loop_with_an_integer_in_its_carry_runs_in_python() -> None:
    def f(x: Any) -> Any:
        return while_loop(lambda i, y: 2 * i < x.shape[0], lambda i, y: (i + 1, y + i), (0, x))

    assert f(BATCH)[0] == 2
    torch.testing.assert_close(make_fx(f)(BATCH)(BATCH)[1], BATCH + 1)


def test_a_loop_without_a_step_returns_copies() -> None:
    (y,) = while_loop(lambda y: y.sum() > 100, lambda y: (y * 2,), (X,))
    assert y is not X
    torch.testing.assert_close(y, X)


def test_a_carry_of_another_layout_may_change_it() -> None:
    def f(x: Any) -> Any:
        return while_loop(
            lambda i, y: i < 3,
            lambda i, y: (i + 1, (y * 2).t()),
            (torch.zeros((), dtype=torch.int64), x.t()),
        )[1].reshape(-1)

    x = torch.arange(4.0).view(2, 2)
    torch.testing.assert_close(make_fx(f)(x)(x), (x * 8).reshape(-1))


def count(f: Callable[..., Any], start: Any = None) -> Callable[[Any], Any]:
    return lambda x: while_loop(
        lambda i, y: y.sum() < 10,
        f,
        (torch.zeros((), dtype=torch.int64), x.sin()) if start is None else start(x),
    )


def writing(i: Any, y: Any) -> Any:
    y.mul_(2)
    return i + 1, y.clone()


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a write to the carry": (
        count(writing),
        r"body of while_loop writes to a tensor that it is given.*y\.mul_\(2\)",
    ),
    "an alias of the carry": (
        count(lambda i, y: (i, y * 2)),
        "body of while_loop returns a tensor that shares memory",
    ),
    "another shape": (
        count(lambda i, y: (i + 1, (y * 2).sum())),
        "value 1 of the carry, which is .*Keep shape and dtype.*test_loops.py",
    ),
    "another dtype": (count(lambda i, y: (i + 1, y.double())), "value 1 of the carry, which is"),
    "too few values": (count(lambda i, y: (i + 1,)), "returns 1 values, the carry has 2"),
    "a number for a tensor": (count(lambda i, y: (i + 1, 3)), "for value 1 of the carry, which is"),
    "an integer in the carry": (
        count(lambda i, y: (i + 1, y * 2), lambda x: (0, x)),
        r"Carry a number as a tensor.*test_loops\.py",
    ),
    "a condition of two elements": (
        lambda x: while_loop(lambda y: y < 1, lambda y: (y * 2,), (x,)),
        "must return a boolean scalar",
    ),
    "a condition that is no Boolean": (
        lambda x: while_loop(lambda y: y.sum(), lambda y: (y * 2,), (x,)),
        "must return a boolean scalar",
    ),
    "a carry that is no tuple": (
        lambda x: while_loop(lambda y: y.sum() < 1, lambda y: (y * 2,), x),
        "must be a tuple or list",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_graph_cannot_hold_is_refused(what: str) -> None:
    f, message = REFUSED[what]
    with pytest.raises(RuntimeError, match=message):
        make_fx(f)(X)


@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_a_tensor_that_the_carry_starts_from_stays_itself_where_it_is_closed_over(
    mode: str,
) -> None:
    def f(x: Any) -> Any:
        return while_loop(
            lambda i, z: z.sum() < x.sum() * 9,
            lambda i, z: (i + 1, z * (1 + x)),
            (torch.zeros((), dtype=torch.int64), x),
        )

    x = torch.tensor([1.0, 1.0], dtype=torch.double)
    n, z = make_fx(f, tracing_mode=mode)(x)(x)
    assert n == 4 and z.tolist() == [16.0, 16.0]  # 1, 2, 4, 8, 16
    n, z = make_fx(f, tracing_mode=mode)(x)(x * 3)
    assert n == 2 and z.tolist() == [48.0, 48.0]  # 3, 12, 48


def test_a_loop_that_runs_returns_what_its_last_step_has_returned() -> None:
    kept = torch.ones(2)
    i, y = while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, kept), (torch.tensor(0), X))
    assert i == 2 and y is kept


def test_modes_of_the_caller_see_the_steps_of_a_loop_that_runs() -> None:
    with CallsSeen() as seen:
        (y,) = while_loop(lambda y: y.sum() < 10, lambda y: (y * 2,), (torch.ones(2),))
    assert y.tolist() == [8.0, 8.0] and seen.names.count("aten::mul") == 3
