"""Programs with branches, loops and scans by the target's own functions, called as they are, under
transforms, and in graphs.

The reference are Python's ``if`` and ``while``, and a loop for each batch: torch's own operators
would compile the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gen.targets.parts import compiled, offered
from programs.tools import Results, beside, graph_of, own, own_refused, plain, transform


def _if(
    chosen: Any,
    then: Callable[..., Any],
    otherwise: Callable[..., Any],
    operands: Sequence[Any] = (),
) -> Any:
    return (then if bool(chosen) else otherwise)(*operands)


def _while(
    goes_on: Callable[..., Any], step: Callable[..., Any], carry: Sequence[Any]
) -> tuple[Any, ...]:
    found: tuple[Any, ...] = tuple(carry)
    while bool(goes_on(*found)):
        found = step(*found)
    return found


def _scan(
    step: Callable[[Any, Any], Any],
    init: Any,
    xs: Any,
    *,
    dim: int = 0,
    reverse: bool = False,
    unroll: bool | None = None,
) -> tuple[Any, Any]:
    leaves, spec = pytree.tree_flatten(xs)
    rows = list(zip(*(x.unbind(dim) for x in leaves), strict=True))
    carry, found = init, []
    for row in reversed(rows) if reverse else rows:
        carry, y = step(carry, pytree.tree_unflatten(list(row), spec))
        found.append(y)
    return carry, _stacked(found[::-1] if reverse else found, dim)


def _map(f: Callable[..., Any], xs: Any, *args: Any, unroll: bool | None = None) -> Any:
    return _scan(lambda carry, x: (carry, f(x, *args)), (), xs)[1]


def _prefixes(
    combine: Callable[[Any, Any], Any],
    xs: Any,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    leaves, spec = pytree.tree_flatten(xs)
    rows = [
        pytree.tree_unflatten(list(row), spec)
        for row in zip(*(x.unbind(dim) for x in leaves), strict=True)
    ]
    rows = rows[::-1] if reverse else rows
    found = [rows[0]]
    for row in rows[1:]:
        found.append(combine(found[-1], row))
    return _stacked(found[::-1] if reverse else found, dim)


def _stacked(found: list[Any], dim: int = 0) -> Any:
    return pytree.tree_map(lambda *each: torch.stack(each, min(dim, each[0].dim())), *found)


# A program asks for these before it is captured: a compiler that reads code knows no offers.


def _cond() -> Any:
    return offered("aot.cond", _if)


def _while_loop() -> Any:
    return offered("aot.while_loop", _while)


def _scanned() -> Any:
    return offered("aot.scan", _scan)


def _each(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` of each row of its arguments."""
    vmap = own("func.vmap")
    return vmap(f) if vmap else lambda *xs: _stacked([f(*row) for row in zip(*xs, strict=True)])


def _exported(f: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    make = own("aot.export")
    return f if make is None else make(f, args).module()


def _calls(graph: Any, name: str, wanted: int) -> bool:
    """Whether the graph, if it is one, has so many calls of this operator."""
    nodes = [] if own("unwrap") is None else graph.graph.nodes
    return (
        own("unwrap") is None
        or sum(getattr(n.target, "__name__", "") == name for n in nodes) == wanted
    )


# --- branches -------------------------------------------------------------------------------------


def _branches(w: Tensor) -> Callable[[Tensor, Tensor], Any]:
    cond = _cond()

    def then(a: Tensor, b: list[Tensor]) -> dict[str, Any]:
        inner = cond(a[0].sum() > 0, lambda t: t.exp(), lambda t: t * 3, (a,))
        return {"a": a.sin() * w + inner, "b": [b[0] * 2, None], "n": 2}

    def otherwise(a: Tensor, b: list[Tensor]) -> dict[str, Any]:
        return {"a": a.cos() - w, "b": [(b[0] + a.sum()).t().contiguous().t(), None], "n": 2}

    return lambda x, y: cond((x * y).sum() > 0, then, otherwise, (x, [y]))


def branches(x: Tensor) -> Results:
    """Trees as operands and results, a branch inside a branch, what is closed over; each side, in
    graphs and in compiled programs."""
    y = plain(x)
    f = _branches(y.cos())
    graph, exported, twice = (
        graph_of(f, y, y),
        _exported(f, y, y),
        compiled(lambda a, b: f(a, b)["a"] * 2),
    )
    found = [of(s * y, b) for of in (f, graph, exported) for s in (1, -1) for b in (y, y.t().abs())]
    return beside(
        x, *found, f(x, y)["a"], *(twice(s * x, y) for s in (1, -1, 1)), _calls(graph, "cond", 1)
    )


def derivatives_of_branches(x: Tensor) -> Results:
    """First and second derivatives of each side, at once and in graphs that take either side."""
    y = plain(x)
    f = _branches(y.cos())
    grad, jvp = transform("grad"), transform("jvp")
    of_all = [
        grad(lambda a, b: f(a, b)["a"].sum() + f(a, b)["b"][0].pow(2).sum(), (0, 1)),
        lambda a, b: jvp(lambda t: f(t, b)["a"], (a,), (b.sin(),)),
        lambda a, b: transform("jacrev")(lambda t: f(t, b)["a"][0])(a),
        lambda a, b: grad(lambda s: grad(lambda t: f(t, b)["a"].sum())(s).pow(2).sum())(a),
    ]
    made = [graph_of(d, y, y) for d in of_all]
    return beside(x, *(d(s * y, y) for d in (*of_all, *made) for s in (1, -1)))


def batches_of_branches(x: Tensor) -> Results:
    """A side for each element, alone, with its derivatives and in a graph; a side for all where the
    condition is shared."""
    y, cond = plain(x), _cond()

    def f(a: Tensor, k: Tensor) -> Any:
        return cond(a.sum() > k, lambda t: (t.sin(), t.sum()), lambda t: (t * k, t.prod()), (a,))

    grad = transform("grad")
    ks = y.new_tensor([-9.0, 0.1, 9.0])
    of_one = lambda a, k: grad(lambda t: f(t, k)[0].pow(3).sum())(a)  # noqa: E731
    shared = _each(lambda a: cond(ks.sum() > 0, lambda t: t.exp(), lambda t: t * 2, (a,)))(y)
    graph = graph_of(_each(f), y, ks)
    return beside(
        x,
        _each(f)(y, ks),
        _each(of_one)(y, ks),
        shared,
        graph(-y, ks),
        graph(y, ks.flip(0)),
        grad(lambda a: _each(f)(a, ks)[0].sum())(y),
    )


def branches_refused(x: Tensor) -> Results:
    """Branches that do not fit one another, write, give back what they are given, or ask for
    values, in a graph."""
    y, cond = plain(x), _cond()

    def trace(
        then: Callable[[Tensor], Any], otherwise: Callable[[Tensor], Any], of: Any = None
    ) -> Callable[[], object]:
        return lambda: graph_of(
            lambda t: cond(t.sum() > 0 if of is None else of(t), then, otherwise, (t,)), y
        )

    flags = own_refused(
        trace(lambda t: t.sin(), lambda t: t[0].sin()),
        trace(lambda t: t.sin(), lambda t: t.sin().float()),
        trace(lambda t: (t.sin(), 1), lambda t: (t.sin(), 2)),
        trace(lambda t: (t.sin(),), lambda t: [t.sin()]),
        trace(lambda t: t, lambda t: t.sin()),
        trace(lambda t: t.view(9), lambda t: t.view(9).sin()),
        trace(lambda t: t.mul_(2) + 1, lambda t: t.sin()),
        trace(lambda t: t.sin() if t.sum() > 1 else t, lambda t: t.sin()),
        trace(lambda t: t.sin(), lambda t: t.cos(), lambda t: t > 0),
        lambda: cond(y > 0, torch.sin, torch.cos, (y,)),
        lambda: cond(True, torch.sin, torch.cos, y),
    )
    return beside(x, *flags)


# --- loops ----------------------------------------------------------------------------------------


def _grown(limit: float) -> Callable[[Tensor, Tensor], Any]:
    """The number of steps, and a ← a (1 + b²/2) + sin(a) until its sum of squares is beyond the
    limit, at most six times."""
    while_loop = _while_loop()

    def goes_on(n: Tensor, pair: dict[str, Tensor]) -> Tensor:
        return (pair["a"].pow(2).sum() < limit) & (n < 6)

    def step(n: Tensor, pair: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        a, b = pair["a"], pair["b"]
        return n + 1, {"a": a * (1 + b * b / 2) + a.sin(), "b": b.cos()}

    return lambda a, b: while_loop(
        goes_on, step, (torch.zeros((), dtype=torch.int64), {"a": a, "b": b})
    )


def loops(x: Tensor) -> Results:
    """Loops of some steps, of none and with a number in the carry; the graph of one takes any
    number of steps."""
    y, f = plain(x), _grown(40.0)
    graph = graph_of(f, y, y)
    numbers = _while_loop()(lambda i, t: i < 4, lambda i, t: (i + 2, t * i + 1), (1, y))
    made = compiled(lambda a, b: f(a, b)[1]["a"])
    found = [of(s * y, y) for of in (f, graph) for s in (0.1, 1, 9)]
    made_of = [made(s * x, y) for s in (0.1, 9, 1)]
    return beside(
        x,
        *found,
        *numbers,
        *made_of,
        f(y, x)[1]["a"],
        *_exported(f, y, y)(y, y.cos()),
        _calls(graph, "while_loop", 1),
    )


def derivatives_of_loops(x: Tensor) -> Results:
    """Gradients, tangents and Jacobians of loops, at once and in graphs at other
    numbers of steps."""
    y, f = plain(x), _grown(40.0)
    of_all = [
        transform("grad")(lambda a, b: f(a, b)[1]["a"].sum(), (0, 1)),
        lambda a, b: transform("jvp")(lambda t: f(t, b)[1]["a"], (a,), (b.sin(),)),
        lambda a, b: transform("jacrev")(lambda t: f(a, t)[1]["a"][0])(b),
    ]
    made = [graph_of(d, y, y) for d in of_all]
    return beside(x, *(d(s * y, y.cos()) for d in (*of_all, *made) for s in (0.1, 1)))


def batches_of_loops(x: Tensor) -> Results:
    """Another number of steps for each element, with derivatives and in a graph."""
    y, f = plain(x), _grown(8.0)
    scales = y.new_tensor([0.01, 1.0, 9.0])
    run = _each(lambda a, b, s: (f(a * s, b)[0], f(a * s, b)[1]["a"]))
    slope = _each(lambda a, b, s: transform("grad")(lambda t: f(t * s, b)[1]["a"].sum())(a))
    graph = graph_of(run, y, y, scales)
    return beside(
        x, run(y, y, scales), slope(y, y.cos(), scales), graph(y.cos(), y, scales.flip(0))
    )


def loops_refused(x: Tensor) -> Results:
    """Conditions that are no boolean, carries that change, writes and aliases in a graph."""
    y, while_loop = plain(x), _while_loop()

    def trace(
        step: Callable[[Tensor], Any], goes_on: Any = lambda t: t.sum() < 9
    ) -> Callable[[], object]:
        return lambda: graph_of(lambda t: while_loop(goes_on, step, (t,)), y)

    flags = own_refused(
        trace(lambda t: (t.float() * 2,)),
        trace(lambda t: (t[:2] * 2,)),
        trace(lambda t: (t * 2, t)),
        trace(lambda t: [t * 2, t * 3]),
        trace(lambda t: (t.mul_(2),)),
        trace(lambda t: (t,)),
        trace(lambda t: (t * 2,), lambda t: t < 9),
        trace(lambda t: (t * 2,), lambda t: t.sum()),
        lambda: while_loop(lambda t: t.sum(), lambda t: (t * 2,), (y,)),
        lambda: while_loop(lambda t: t.sum() < 0, lambda t: (t * 2,), y),
    )
    return beside(x, *flags)


# --- scans ----------------------------------------------------------------------------------------


def _filter(dim: int, reverse: bool, unroll: bool | None) -> Callable[[Tensor, Tensor], Any]:
    scanned = _scanned()

    def step(carry: dict[str, Tensor], row: list[Tensor]) -> tuple[dict[str, Tensor], list[Tensor]]:
        new = carry["s"] * row[1].cos() + row[0]
        return {"s": new, "n": carry["n"] + 1}, [new.sin(), row[0].sum() * carry["s"]]

    return lambda x, s: scanned(
        step,
        {"s": s, "n": torch.zeros((), dtype=torch.int64)},
        [x, x * 2],
        dim=dim,
        reverse=reverse,
        unroll=unroll,
    )


WAYS: list[tuple[int, bool, bool | None]] = [
    (0, False, False),
    (1, True, False),
    (0, True, None),
    (-1, False, True),
]


def scans(x: Tensor) -> Results:
    """Scans of trees along each dimension, backwards, as one call of a graph and as the
    calls of every step."""
    y = plain(x)
    found: list[Any] = []
    for dim, reverse, unroll in WAYS[:3]:
        f = _filter(dim, reverse, unroll)
        graph = graph_of(f, y, y[0])
        found += [f(y, y[0]), graph(y.t(), y[1]), _calls(graph, "scan", int(unroll is False))]
    of_any = graph_of(_filter(0, False, None), y, y[0], tracing_mode="symbolic")
    longer = torch.cat([y, y.cos()])
    made = compiled(lambda a, s: _filter(0, True, False)(a, s)[1][0])
    kept = [
        _filter(1, False, False)(x, y[0])[1],
        _exported(_filter(0, False, False), y, y[0])(y.t(), y[1]),
    ]
    return beside(
        x,
        *found,
        *kept,
        of_any(longer, y[0]),
        _calls(of_any, "scan", 1),
        *(made(a, y[0]) for a in (x, x.sin(), longer)),
    )


def derivatives_of_scans(x: Tensor) -> Results:
    """Gradients with respect to rows and carry, tangents, second derivatives and batches, at
    once and in graphs."""
    y = plain(x)
    f = _filter(0, False, False)
    grad = transform("grad")

    def last(a: Tensor, s: Tensor) -> Any:
        return f(a, s)[0]["s"].pow(2).sum()

    def whole(a: Tensor, s: Tensor) -> Any:
        return last(a, s) + (f(a, s)[1][0] * a).sum() + f(a, s)[1][1].sum()

    of_all = [
        grad(whole, (0, 1)),
        grad(last, 1),
        lambda a, s: transform("jvp")(lambda t: f(t, s)[1], (a,), (a.sin(),)),
        lambda a, s: grad(lambda t: grad(last)(t, s).pow(2).sum())(a),
        lambda a, s: _each(lambda t: grad(whole)(a, t))(a),
    ]
    made = [graph_of(d, y, y[0]) for d in of_all]
    return beside(x, *(d(y.cos(), y[1]) for d in (*of_all, *made)))


def maps(x: Tensor) -> Results:
    """Maps over trees with arguments that are shared, as one call and as those of every row, and
    their derivatives."""
    y = plain(x)
    run = offered("aot.map", _map)
    f = lambda pair, k, w: (pair[0].sin() * w + k, pair[1].sum())  # noqa: E731
    found = [run(f, (y, y.t()), 2.0, y[0]), run(f, (x, y), 1.0, x[0])]
    graphs = [
        graph_of(lambda a, b, u=u: run(f, (a, b), 2.0, a[0], unroll=u), y, y) for u in (True, False)
    ]
    slopes = [
        transform("grad")(lambda a, u=u: run(f, (a, a.cos()), 1.0, a[1], unroll=u)[0].pow(2).sum())
        for u in (True, False)
    ]
    whole = graph_of(slopes[1], y)
    return beside(
        x,
        *found,
        *(g(y.t(), y) for g in graphs),
        *(s(y) for s in slopes),
        whole(y.t()),
        _calls(graphs[1], "map_impl", 1),
    )


def prefixes(x: Tensor) -> Results:
    """Partial results of associative functions: of numbers, of pairs and of matrices, along each
    dimension and backwards."""
    y = plain(x)
    scan = offered("aot.associative_scan", _prefixes)
    linear = lambda p, q: [p[0] * q[0], p[1] * q[0] + q[1]]  # noqa: E731
    longer = torch.cat([y, y.cos(), y.sin()])[:7]
    stack = torch.stack([y, y.cos(), y.sin(), y.t()])
    found = [
        scan(torch.add, longer, dim, reverse=reverse) for dim in (0, 1) for reverse in (False, True)
    ]
    found += scan(linear, [longer, longer.sin()], 0) + scan(
        linear, [longer, longer.sin()], 1, reverse=True
    )
    found += [scan(torch.matmul, stack, 0, combine_mode="generic"), scan(torch.mul, y[:1], 0)]
    graph = graph_of(lambda a: scan(linear, [a, a.cos()], 0), longer)
    slope = transform("grad")(lambda a: scan(linear, [a, a.cos()], 0)[1].pow(2).sum())(longer)
    return beside(x, *found, *graph(longer.sin()), slope)


def scans_refused(x: Tensor) -> Results:
    """Empty dimensions, other lengths, carries and structures that do not stay, and unknown
    modes."""
    y, scanned = plain(x), _scanned()
    scan, prefix = own("aot.associative_scan"), own("aot.scan")

    def whole(step: Callable[[Any, Any], Any]) -> Callable[[], object]:
        return lambda: graph_of(lambda a: scanned(step, y[0], a, unroll=False), y)

    flags = own_refused(
        lambda: scanned(lambda c, r: (c, r), y[0], y[:0]),
        lambda: scanned(lambda c, r: (c, r[0]), y[0], [y, y[:2]]),
        whole(lambda c, r: (c.float(), r)),
        whole(lambda c, r: (c[:1] * r, r)),
        whole(lambda c, r: ([c * r], r)),
        whole(lambda c, r: (c * r, r.mul_(2))),
        lambda: scan(torch.add, y, 0, combine_mode="other"),
        lambda: scan(torch.add, y[:0], 0),
        lambda: scan(lambda a, b: [a, b], y, 0),
        lambda: offered("aot.map", _map)(torch.sin, y[:0]),
        lambda: prefix(lambda c: c, y[0], y),
    )
    return beside(x, *flags)
