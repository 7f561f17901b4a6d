"""Branches, loops and scans in the session, under transforms, in graphs and exported, by the target's own operators.

The reference is Python's own control flow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gen.targets.parts import compiled, offered
from tests.compositions.tools import Results, beside, own, own_refused, plain


def _rows(trees: list[Any]) -> Any:
    return pytree.tree_map(lambda *rows: torch.stack(rows), *trees)


def _nth(tree: Any, i: int, dim: int = 0) -> Any:
    return pytree.tree_map(lambda t: t.select(dim, i), tree)


def _while(condition: Callable[..., Any], body: Callable[..., Any], carried: Any, additional: Any = ()) -> Any:
    while condition(*carried):
        carried = body(*carried)
    return carried


def _scan(f: Callable[..., Any], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    count, carry, outs = pytree.tree_leaves(xs)[0].shape[dim], init, []
    for i in reversed(range(count)) if reverse else range(count):
        carry, out = f(carry, _nth(xs, i, dim))
        outs.append(out)
    stacked = _rows(outs[::-1] if reverse else outs)
    return carry, pytree.tree_map(lambda t: t.movedim(0, dim) if dim < t.dim() else t, stacked)


def _map(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    return _rows([f(_nth(xs, i), *args) for i in range(pytree.tree_leaves(xs)[0].shape[0])])


def _associative(f: Callable[..., Any], xs: Any, dim: int = 0, reverse: bool = False, combine_mode: str = "pointwise") -> Any:
    rows = [_nth(xs, i, dim) for i in range(pytree.tree_leaves(xs)[0].shape[dim])]
    rows = rows[::-1] if reverse else rows
    for i in range(1, len(rows)):
        rows[i] = f(rows[i - 1], rows[i])
    return pytree.tree_map(lambda *each: torch.stack(each, dim), *(rows[::-1] if reverse else rows))


def _op(name: str) -> Any:
    own_op = {"cond": lambda p, t, f, args=(): t(*args) if p else f(*args), "while_loop": _while, "scan": _scan, "map": _map}
    return offered(f"aot.{name}", {**own_op, "associative_scan": _associative}[name])


def _func(name: str) -> Any:
    return offered(f"func.{name}", getattr(torch.func, name))


def _graph(f: Callable[..., Any], *args: Any, **options: Any) -> Any:
    make = own("aot.make_fx")
    return f if make is None else make(f, **options)(*args)


def _exported(f: Callable[..., Any], *args: Any, **options: Any) -> Any:
    make = own("aot.export")
    return f if make is None else make(f, args, **options).module()


# --- branches ---------------------------------------------------------------------------------------------------------------------


def branches(x: Tensor) -> Results:
    """Both sides, of trees, nested, with tensors from outside, and a side that does not use an argument."""
    cond, weight = _op("cond"), x.cos()

    def f(a: Tensor, b: Tensor) -> Any:
        def inner(t: Tensor) -> Tensor:
            return cond(t.sum() > 2, lambda s: s * 2, lambda s: s.exp() * weight, (t,))  # type: ignore[no-any-return]

        return cond(
            a.sum() > b.sum(), lambda s, t: {"y": inner(s), "z": [t * 1]}, lambda s, t: {"y": s.sin() * t, "z": [s + weight]}, (a, b)
        )

    run = compiled(f)
    pairs = [(x, x.cos()), (x.cos(), x + 9), (x.sin() + 3, x.sin()), (x - 9, x)]
    constant = cond(torch.tensor(True), lambda t: t * 3, lambda t: t * 4, (x,))
    return [f(a, b) for a, b in pairs], [run(a, b) for a, b in pairs], constant, cond(True, lambda t: t * 3, lambda t: t * 4, (x,))


def branches_under_transforms(x: Tensor) -> Results:
    """Branches that differ from element to element, their gradients, tangents and second derivatives."""
    cond, vmap, grad, jvp = _op("cond"), _func("vmap"), _func("grad"), _func("jvp")
    f = lambda a: cond(a.sum() > 0, lambda t: (t.sin() * t).sum(), lambda t: t.exp().sum() * 2, (a,))  # noqa: E731
    each = [f(row) for row in x]  # type: ignore[no-untyped-call]
    g = f if own("unwrap") is not None else lambda a: torch.where(a.sum() > 0, (a.sin() * a).sum(), a.exp().sum() * 2)
    found = [vmap(g)(x), vmap(grad(g))(x), grad(f)(x[0]), jvp(f, (x[1],), (x[2],))[1], grad(lambda a: grad(f)(a).sum())(x[2])]
    return *each, *found, vmap(lambda a: vmap(g)(torch.stack([a, -a])))(x)


def branches_in_graphs(x: Tensor) -> Results:
    """Branches of captured and exported programs, for either side, and at other sizes."""
    cond, y = _op("cond"), plain(x)
    outside = y.sin()

    def f(a: Tensor) -> Any:
        return cond(a.sum() > 0, lambda t: (t.sin() + outside[0], t.sum()), lambda t: (t * 2, t.prod()), (a,))

    graphs = [_graph(f, y), _graph(f, y, tracing_mode="symbolic", _allow_non_fake_inputs=True), _exported(f, y)]
    grads = _graph(_func("grad")(lambda a: f(a)[0].sum()), y) if own("unwrap") is not None else torch.func.grad(lambda a: f(a)[0].sum())  # type: ignore[misc]
    run = own("jit")(f) if own("unwrap") is not None else f
    found = [g(a) for g in graphs for a in (y.exp(), -y.exp())]
    found += [run(a) for a in (y.exp(), -y.exp(), y, torch.cat([y, y]).exp())]
    return beside(x, *found, *(grads(a) for a in ((y.exp(), -y.exp()) if own("unwrap") is not None else ())), *_eager_grads(f, y))


def _eager_grads(f: Callable[..., Any], y: Tensor) -> list[Tensor]:
    """What the graph of the gradient gives on the reference, where transforms cannot branch."""
    if own("unwrap") is not None:
        return []
    found = []
    for a in (y.exp(), -y.exp()):
        leaf = a.clone().requires_grad_()
        found.append(torch.autograd.grad(f(leaf)[0].sum(), leaf)[0])
    return found


# --- loops ------------------------------------------------------------------------------------------------------------------------


def loops(x: Tensor) -> Results:
    """Loops with numbers and tensors that are carried, with tensors from outside, none at all, and compiled ones."""
    loop, weight = _op("while_loop"), x.detach().cos() / 4

    def f(a: Tensor) -> Any:
        return loop(lambda n, t: n < 3, lambda n, t: (n + 1, t.sin() + t @ weight), (torch.zeros((), dtype=torch.int64), a))

    def until(a: Tensor) -> Any:
        return loop(lambda t, total: total < 50, lambda t, total: (t * 1.5, total + t.abs().sum()), (a, a.abs().sum() * 0))

    y = x.detach()
    none = loop(lambda t: t.sum() < -1000, lambda t: (t * 2,), (y,))
    run = compiled(f)
    mapped = (
        _func("vmap")(lambda row: until(row)[1]) if own("unwrap") is not None else lambda rows: torch.stack([until(r)[1] for r in rows])
    )
    graph = _graph(until, plain(x), tracing_mode="symbolic")
    found = [f(y), run(y), run(y.sin()), until(y), none, mapped(y), graph(plain(x)), graph(plain(x)[:2])]
    return beside(x, *found, *_exported(f, plain(x))(plain(x).cos()))


def loops_with_gradients(x: Tensor) -> Results:
    """The gradient of a loop whose count the values say, and the tangent."""
    loop = _op("while_loop")

    def f(a: Tensor) -> Tensor:
        _, out = loop(lambda n, t: n < 2, lambda n, t: (n + 1, t.sin() * a), (torch.zeros((), dtype=torch.int64), a * 1))
        return out  # type: ignore[no-any-return]

    run = compiled(f)
    return (
        f(x),
        run(x),
        run(x.cos()),
        _func("jvp")(f, (x,), (x.cos(),))[1] if own("unwrap") is not None else torch.func.jvp(f, (x,), (x.cos(),))[1],
    )


# --- scans and maps ---------------------------------------------------------------------------------------------------------------


def scans(x: Tensor) -> Results:
    """Scans of trees, backwards, along another dimension, with tensors from outside and with gradients."""
    scan, weight = _op("scan"), x.cos() / 3

    def f(carry: dict[str, Tensor], row: list[Tensor]) -> Any:
        state = carry["s"] * row[0].sin() + row[1] @ weight
        return {"s": state, "n": carry["n"] + 1}, {"out": state.cos(), "sum": state.sum()}

    def run(a: Tensor, **options: Any) -> Any:
        start = {"s": a[0] * 1, "n": torch.zeros((), dtype=a.dtype)}
        return scan(f, start, [a, a.exp() / 9], **options)

    made = compiled(run)
    return run(x), run(x, reverse=True), run(x, dim=1), made(x), made(x.cos()), made(x, reverse=True)


def scans_under_transforms(x: Tensor) -> Results:
    """Gradients, tangents, batches and graphs of a scan."""
    scan, y = _op("scan"), x.detach() / 2
    f = lambda a: scan(lambda c, r: ((c * r).sin(), c + r), a[0], a)  # noqa: E731
    vmap, grad, jvp = _func("vmap"), _func("grad"), _func("jvp")
    total = lambda a: f(a)[1].square().sum() + f(a)[0].sum()  # type: ignore[no-untyped-call]  # noqa: E731
    found: list[Any] = [
        grad(total)(y),
        vmap(f)(torch.stack([y, y.cos()])),
        jvp(f, (y,), (y.cos(),)),
        vmap(grad(total))(torch.stack([y, y.sin()])),
    ]
    p = plain(x)
    graphs = [_graph(f, p), _exported(f, p), _graph(f, p, tracing_mode="symbolic")]
    return beside(x, *found, *(g(p.cos()) for g in graphs), graphs[2](torch.cat([p, p])), grad(lambda a: grad(total)(a).sum())(y))


def maps(x: Tensor) -> Results:
    """Maps of trees with shared arguments, their gradients, batches and graphs."""
    mapped = _op("map")
    f = lambda a, b: mapped(lambda row, shared: {"y": row["r"].sin() * shared, "z": row["r"].sum()}, {"r": a}, b)  # noqa: E731
    vmap, grad = _func("vmap"), _func("grad")
    run, p = compiled(f), plain(x)
    graph = _graph(f, p, p[0])
    inside = grad(lambda a: f(a, a[0])["y"].sum())(x)  # type: ignore[no-untyped-call]
    return f(x, x[0]), run(x, x[0]), run(x.cos(), x[1]), graph(p.exp(), p[1]), inside, vmap(f, (0, None))(torch.stack([x, x.cos()]), x[2])  # type: ignore[no-untyped-call]


def associative_scans(x: Tensor) -> Results:
    """Scans of what may be computed in any order: sums, products of pairs, backwards, along another dimension."""
    scan = _op("associative_scan")
    add = lambda a, b: a + b  # noqa: E731
    pair = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])  # noqa: E731
    run = compiled(lambda t: scan(pair, (t.sin(), t), 0))
    found = [scan(add, x, 0), scan(add, x, 1), scan(add, x, 0, reverse=True), *scan(pair, (x.sin(), x), 0), *run(x), *run(x.cos())]
    batch = _func("vmap")(lambda t: scan(add, t, 0))(torch.stack([x, x.sin()]))
    return *found, batch, _func("grad")(lambda t: scan(pair, (t.sin(), t), 1)[1].sum())(x)


def control_flow_refused(x: Tensor) -> Results:
    """Branches and loops whose results fit nothing."""
    y, cond, loop, scan, mapped = plain(x), _op("cond"), _op("while_loop"), _op("scan"), _op("map")
    calls: list[Callable[[Tensor], object]] = [
        lambda a: cond(a.sum() > 0, lambda t: t * 1, lambda t: t[0] * 1, (a,)),
        lambda a: cond(a.sum() > 0, lambda t: t * 1, lambda t: (t * 1, t * 2), (a,)),
        lambda a: cond(a.sum() > 0, lambda t: t * 1, lambda t: t.float(), (a,)),
        lambda a: cond(a, lambda t: t * 1, lambda t: t * 2, (a,)),
        lambda a: cond(a.sum() > 0, lambda t: t.sum().item(), lambda t: t * 2, (a,)),
        lambda a: loop(lambda t: t.sum() < 0, lambda t: (t[0] * 1,), (a,)),
        lambda a: loop(lambda n, t: t.sum() < n, lambda n, t: (n + 1, t.float()), (a.sum(), a)),
        lambda a: loop(lambda n, t: t.sum() < n, lambda n, t: (n + 1,), (a.sum(), a)),
        lambda a: loop(lambda t: t, lambda t: (t * 1,), (a,)),
        lambda a: scan(lambda c, r: c * 1, a[0], a),
        lambda a: scan(lambda c, r: (c * 1, r * 1), a[0], a[:0]),
        lambda a: mapped(lambda r: r * 1, a[:0]),
    ]
    return beside(x, *own_refused(*(lambda f=f: own("aot.make_fx")(f)(y) for f in calls)), mapped(lambda r: r * 2, y))
