"""``map``, ``scan`` and ``associative_scan`` give what loops in Python give, as graphs of every
step and as one call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import (
    aot_function,
    associative_scan,
    default_partition,
    export,
    make_fx,
    map,
    min_cut_rematerialization_partition,
    nop,
    scan,
)
from runtime.func import functionalize, grad, hessian, jacfwd, jvp, vmap

torch.manual_seed(0)
XS, W = torch.randn(4, 3, dtype=torch.double), torch.randn(3, 3, dtype=torch.double)
MORE = torch.randn(6, 3, dtype=torch.double)
OPERATORS = (torch.ops.higher_order.scan, torch.ops.higher_order.map_impl)


def scanned(xs: Any, w: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        h = torch.tanh(carry["h"] @ w + x)
        return {"h": h, "n": carry["n"] + 1}, (h * x, carry["n"].clone())

    start = {"h": xs[0] * 0, "n": torch.zeros((), dtype=torch.int64)}
    carry, (ys, ns) = scan(step, start, xs, unroll=False)
    return carry["h"], ys, ns


def scanned_in_python(xs: Any, w: Any) -> Any:
    h, ys = xs[0] * 0, []
    for x in xs.unbind():
        h = torch.tanh(h @ w + x)
        ys.append(h * x)
    return h, torch.stack(ys), torch.arange(len(ys))


def mapped(xs: Any, w: Any) -> Any:
    ys = map(lambda x, w: (x @ w).sin() * xs.sum(), xs, w, unroll=False)
    return ys[0], ys


def mapped_in_python(xs: Any, w: Any) -> Any:
    ys = torch.stack([(x @ w).sin() * xs.sum() for x in xs.unbind()])
    return ys[0], ys


PROGRAMS = {"scan": (scanned, scanned_in_python), "map": (mapped, mapped_in_python)}


def loss(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda xs, w: f(xs, w)[0].sum() + f(xs, w)[1].square().sum()


NESTINGS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "itself": lambda f: f,
    "grad": lambda f: grad(loss(f), (0, 1)),
    "hessian": lambda f: hessian(lambda xs, w: f(xs, w)[1].square().sum(), 1),
    "jvp": lambda f: lambda xs, w: jvp(lambda xs, w: f(xs, w)[:2], (xs, w), (xs.exp(), w.cos())),
    "forward over forward": lambda f: (
        lambda xs, w: jacfwd(lambda xs: jvp(lambda xs: f(xs, w)[0], (xs,), (xs.exp(),))[1])(xs)
    ),
    "functionalize": functionalize,
    "vmap": lambda f: lambda xs, w: vmap(f, (0, None))(torch.stack([xs, -xs]), w),
    "vmap of grad": lambda f: (
        lambda xs, w: vmap(grad(loss(f), (0, 1)))(torch.stack([xs, -xs]), torch.stack([w, w * 2]))
    ),
    "grad of vmap": lambda f: grad(
        lambda xs, w: (
            vmap(lambda xs, w: f(xs, w)[1], (1, None))(torch.stack([xs, -xs], 1), w).square().sum()
        ),
        1,
    ),
}


@pytest.mark.parametrize("mode", ["eager", "real", "symbolic"])
@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_nesting_of_transforms_is_that_of_the_loop_for_any_length(
    program: str, nesting: str, mode: str
) -> None:
    ours, expected = PROGRAMS[program]
    f = NESTINGS[nesting](ours)
    run = f if mode == "eager" else make_fx(f, tracing_mode=mode)(XS, W)
    for xs in (XS, -XS) if mode == "real" else (XS, MORE):
        torch.testing.assert_close(run(xs, W), NESTINGS[nesting](expected)(xs, W))


@pytest.mark.parametrize(
    ("dynamic", "partition"),
    [(False, default_partition), (True, min_cut_rematerialization_partition)],
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_compiled_scan_has_first_and_second_derivatives(
    program: str, dynamic: bool, partition: Any
) -> None:
    ours, expected = PROGRAMS[program]
    compiled = aot_function(loss(ours), nop, partition_fn=partition, dynamic=dynamic)
    for xs in (XS, MORE):
        found = []
        for f in (compiled, loss(expected)):
            leaves = [runtime.wrap(t.clone(), True) for t in (xs, W)]
            first = runtime.autograd.grad(f(*leaves), leaves, create_graph=True)
            second = runtime.autograd.grad(sum(g.sum() for g in first), leaves)
            found.append([t.detach() for t in (*first, *second)])
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_call_of_torchs_operator_is_exported_saved_and_run(
    program: str, tmp_path: Path
) -> None:
    ours, expected = PROGRAMS[program]
    exported = export(ours, (XS, W))
    assert [n for n in exported.graph.nodes if n.target in OPERATORS]
    torch.export.save(exported, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    torch.testing.assert_close(loaded(-XS, W), expected(-XS, W))


def test_a_length_that_is_a_symbol_is_not_unrolled() -> None:
    def f(xs: Any) -> Any:
        return scan(lambda c, x: (c + x, c * x), xs[0] * 0, xs)

    symbolic, real = (make_fx(f, tracing_mode=mode)(XS) for mode in ("symbolic", "real"))
    assert [n for n in symbolic.graph.nodes if n.target in OPERATORS]
    assert not [n for n in real.graph.nodes if n.target in OPERATORS]
    for xs in (XS, MORE):
        torch.testing.assert_close(symbolic(xs)[0], xs.sum(0))


@pytest.mark.parametrize("unroll", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_scan_goes_along_a_dimension_in_either_direction_and_stacks_there(
    dim: int, reverse: bool, unroll: bool
) -> None:
    def f(xs: Any, start: Any) -> Any:
        carry, ys = scan(
            lambda c, x: (c * x, {"sum": c + x}), start, xs, dim=dim, reverse=reverse, unroll=unroll
        )
        return carry, ys["sum"]

    def expected(xs: Any, start: Any) -> Any:
        carry, sums = start, []
        for x in reversed(xs.unbind(dim)) if reverse else xs.unbind(dim):
            sums.append(carry + x)
            carry = carry * x
        return carry, torch.stack(sums[::-1] if reverse else sums, dim)

    start = XS.select(dim, 0)
    for run in (f, make_fx(f)(XS, start)):
        torch.testing.assert_close(run(XS, start), expected(XS, start))


def test_a_graph_with_a_scan_takes_values_of_any_level() -> None:
    for ours, expected in PROGRAMS.values():
        graph = make_fx(ours)(XS, W)
        leaf = runtime.wrap(W.clone(), True)
        graph(XS, leaf)[1].square().sum().backward()
        torch.testing.assert_close(
            leaf.grad, grad(lambda w, f=expected: f(XS, w)[1].square().sum())(W)
        )
        torch.testing.assert_close(
            vmap(graph, (0, None))(torch.stack([XS, -XS]), W), NESTINGS["vmap"](expected)(XS, W)
        )


@pytest.mark.parametrize("mode", ["pointwise", "generic"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
def test_an_associative_scan_gives_all_partial_results(n: int, reverse: bool, mode: str) -> None:
    xs = torch.randn(2, n, 3, dtype=torch.double)

    def f(xs: Any) -> Any:
        return associative_scan(
            lambda a, b: {"s": a["s"] + b["s"], "p": a["p"] * b["p"]},
            {"s": xs, "p": xs + 1},
            1,
            reverse,
            mode,
        )

    def turned(t: Any) -> Any:
        return t.flip(1) if reverse else t

    def expected(xs: Any) -> Any:
        return {"s": turned(turned(xs).cumsum(1)), "p": turned(turned(xs + 1).cumprod(1))}

    for nest in (
        lambda f: f,
        lambda f: grad(lambda xs: (f(xs)["p"].sin() + f(xs)["s"]).sum()),
        lambda f: vmap(f, 2),
    ):
        torch.testing.assert_close(make_fx(nest(f))(xs)(xs), nest(expected)(xs))


def test_an_associative_scan_of_matrices_does_not_commute() -> None:
    xs = torch.randn(5, 2, 2, dtype=torch.double)
    expected = [xs[0]]
    for x in xs[1:]:
        expected.append(expected[-1] @ x)
    torch.testing.assert_close(
        associative_scan(torch.matmul, xs, 0, combine_mode="generic"), torch.stack(expected)
    )


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an empty dimension": (
        lambda xs: scan(lambda c, x: (c, x), xs[0], xs[:0]),
        r"length of at least 1.*test_scans\.py",
    ),
    "two lengths": (
        lambda xs: map(lambda x: x[0] + x[1].sum(), (xs, xs[:2])),
        "tensors with one length",
    ),
    "a carry of another shape": (
        lambda xs: scan(lambda c, x: (x.sum(), x * 2), xs[0], xs, unroll=False),
        "value 0 of the carry",
    ),
    "a carry of another structure": (
        lambda xs: scan(lambda c, x: ((c, x), x * 2), xs[0], xs, unroll=False),
        "the function returns the carry",
    ),
    "an element": (
        lambda xs: map(lambda x: x, xs, unroll=False),
        "the function of map returns a tensor that shares memory",
    ),
    "a write": (
        lambda xs: map(lambda x: x.add_(1) * 2, xs, unroll=False),
        r"writes to a tensor that it is given.*test_scans\.py",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_scan_cannot_do_is_refused(what: str) -> None:
    f, message = REFUSED[what]
    with pytest.raises(RuntimeError, match=message):
        make_fx(f)(XS)


@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_a_tensor_that_the_carry_starts_from_stays_itself_where_it_is_closed_over(
    mode: str,
) -> None:
    def f(xs: Any, w: Any) -> Any:
        return scan(lambda c, x: (c * w, (c + x) * w), w, xs, unroll=False)

    def expected(xs: Any, w: Any) -> Any:
        return w.pow(len(xs) + 1), torch.stack(
            [(w.pow(i + 1) + x) * w for i, x in enumerate(xs.unbind())]
        )

    w = W[0]
    for transform in (lambda f: f, lambda f: grad(lambda xs, w: f(xs, w)[1].square().sum(), 1)):
        found = make_fx(transform(f), tracing_mode=mode)(XS, w)(-XS, w * 2)
        torch.testing.assert_close(found, transform(expected)(-XS, w * 2))
