"""Programs that make graphs of functions and modules, run them, and ask what they are, by the
target's own functions.

The reference runs the function itself. What only a graph has, such as its calls, is compared with
what is written here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from programs.tools import (
    Results,
    beside,
    calls_of,
    graph_of,
    has_calls,
    own,
    own_refused,
    plain,
    transform,
)

F = nn.functional
aten = torch.ops.aten


# --- traces ---------------------------------------------------------------------------------------


def traces(x: Tensor) -> Results:
    """Trees as arguments and results, constants from outside, numbers and a module, replayed
    on other values."""
    y = plain(x)
    outside, layer = y.cos(), nn.Linear(3, 2).double()

    def f(pair: list[Tensor], named: dict[str, Any], k: int) -> dict[str, Any]:
        return {
            "a": pair[0].sin() * k + outside,
            "b": [named["x"] @ pair[1], None, k],
            "c": layer(pair[0]).detach(),
        }

    graph = graph_of(f, [y, y], {"x": y}, 2)
    flat = graph_of(lambda a, b: (a.sin(), [b * 2], a), y, y)
    outside.mul_(2)
    made = graph([y.exp(), y.t()], {"x": y.t()}, 2)
    return beside(
        x,
        made,
        flat(y.t(), y.exp()),
        graph_of(layer, y)(y.sin()).detach(),
        has_calls(flat, "sin", "mul.Tensor"),
    )


def traces_of_other_sizes(x: Tensor) -> Results:
    """Traces with symbols for sizes and for numbers, at other sizes: sizes that are computed,
    compared and returned."""
    y = plain(x)

    def f(a: Tensor, n: int) -> Results:
        rows, columns = a.shape
        b = a.reshape(-1)[: rows * columns - 1] if rows > 1 else a.reshape(-1)
        return (
            b.sum() / rows,
            a.new_ones(rows + n, columns).cumsum(0),
            rows * 2,
            torch.arange(columns),
            a.numel(),
            a.expand(n, rows, columns),
        )

    def g(a: Tensor) -> Results:
        found = a.nonzero()
        return found, a[a > 0].sum(), found.shape[0]

    graph = graph_of(f, y, 4, tracing_mode="symbolic")
    places = graph_of(g, y, tracing_mode="symbolic")
    fake = graph_of(lambda a: a.sin() + a.shape[0], y, tracing_mode="fake")
    wide = torch.cat([y, y.sin()], 1)
    return beside(
        x,
        *graph(y, 5),
        *graph(wide, 2),
        *graph(wide.t().contiguous(), 7),
        *places(y),
        *places(wide * (wide > 0)),
        fake(y.cos()),
    )


def traces_before_dispatch(x: Tensor) -> Results:
    """Composite calls that stay whole, grad mode and autocast as calls, and transforms inside."""
    y, weight = plain(x), plain(x.cos())

    def f(a: Tensor, w: Tensor) -> Results:
        b = F.linear(a, w)
        with torch.no_grad():
            c = F.linear(b, w)
            with torch.enable_grad():
                d = torch.matmul(c, w)
        return b, c + 1, d, F.layer_norm(d, (3,))

    def g(a: Tensor, w: Tensor) -> Results:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = a @ w
            with torch.autocast("cpu", enabled=False):
                c = a @ w
            d = b @ w
        return b.float(), c, d.float(), a @ w

    before = graph_of(f, y, weight, pre_dispatch=True)
    narrow = y.float(), weight.float()
    cast = graph_of(g, *narrow, pre_dispatch=True)
    mapped = graph_of(
        lambda a, w: transform("vmap")(lambda row: F.linear(row, w))(a),
        y,
        weight,
        pre_dispatch=True,
    )
    sized = graph_of(
        lambda a, w: F.linear(a, w).relu(), y, weight, pre_dispatch=True, tracing_mode="symbolic"
    )
    told = (
        has_calls(sized, "linear", "relu"),
        own("unwrap") is None
        or [c.partition(" ")[0] for c in calls_of(before)].count("linear") == 2,
    )
    switches = own("unwrap") is None or sum("_set_grad_enabled" in c for c in calls_of(before)) == 2
    regions = own("unwrap") is None or sum("autocast" in c for c in calls_of(cast)) == 4
    return beside(
        x,
        *before(y.sin(), weight),
        *cast(*narrow),
        mapped(y, weight),
        sized(y[:2], weight),
        *told,
        switches,
        regions,
    )


def traces_with_other_calls(x: Tensor) -> Results:
    """Decompositions that replace calls, also calls of what replaces others."""
    y = plain(x)
    table = {
        aten.sinh.default: lambda a: (a.exp() - (-a).exp()) / 2,
        aten.exp.default: lambda a: torch.cosh(a) + torch.sqrt(torch.cosh(a) ** 2 - 1) * a.sign(),
        aten.silu.default: lambda a: a * a.sigmoid(),
    }
    graph = graph_of(
        lambda a: (a.sinh(), F.silu(a), a.clone().silu() if hasattr(a, "silu") else a),
        y,
        decomposition_table=table,
    )
    replaced = own("unwrap") is None or not {"sinh", "exp", "silu"} & set(calls_of(graph))
    return beside(x, *graph(y.cos()), replaced)


def traces_of_modules(x: Tensor) -> Results:
    """What nodes tell of the modules that made them, and a module as an input of the graph."""
    y = plain(x)
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 2))).double()
    graph = graph_of(model, y, record_module_stack=True)
    lines = graph_of(lambda a: a.sin() + 1, y, record_stack_traces=True)
    flags: list[bool] = []
    if own("unwrap") is not None:
        nodes = [n for n in graph.graph.nodes if n.op == "call_function"]
        paths = [
            list(n.meta["nn_module_stack"].values())[-1][0]
            for n in nodes
            if n.meta.get("nn_module_stack")
        ]
        flags = [
            any("1.0" in p for p in paths),
            any(p.endswith("1.1") for p in paths),
            any(p.endswith("0") for p in paths),
        ]
        flags += [
            "graphs.py" in n.meta["stack_trace"]
            for n in lines.graph.nodes
            if n.op == "call_function"
        ]
        flags += [n.meta["val"].shape == (3, 2) for n in nodes[-1:]]
    return beside(x, graph(y.cos()).detach(), lines(y.exp()), *(flags or [True] * 6))


def traces_refused(x: Tensor) -> Results:
    """What no trace takes, and reads that a trace may fix."""
    y = plain(x)
    fixed = graph_of(
        lambda a: a * int(a.shape[0] + 0 * a.sum().item()), y, _error_on_data_dependent_ops=False
    )
    read = graph_of(lambda a: a * a.sum().item(), y, tracing_mode="symbolic")
    return beside(
        x,
        fixed(y.cos()),
        read(y.cos()),
        *own_refused(
            lambda: graph_of(torch.sin, y, tracing_mode="abstract"),
            lambda: graph_of(lambda a: a if a.sum() > 0 else -a, y),
            lambda: graph_of(lambda a: a * a.sum().item(), y),
            lambda: graph_of(lambda a: a.tolist(), y),
            lambda: graph_of(lambda a: a.numpy(), y),
            lambda: graph_of(lambda a: a * y, y, tracing_mode="fake"),
            lambda: graph_of(lambda a: a if a.sum() > 0 else -a, y, tracing_mode="symbolic"),
        ),
    )


def traces_of_draws(x: Tensor) -> Results:
    """Draws of a graph come from the generator that a program would use, and advance it as far."""
    y = plain(x)
    graph = graph_of(
        lambda a: (
            F.dropout(a, 0.5),
            torch.rand_like(a) + torch.randn(3, dtype=a.dtype),
            torch.randperm(5),
        ),
        y,
    )
    torch.manual_seed(3)
    first = graph(y)
    source = torch.Generator().manual_seed(7)
    given = graph_of(lambda a: a + torch.rand(3, generator=source, dtype=a.dtype), y)
    source.manual_seed(7)
    return beside(x, *first, torch.rand(2), given(y), given(y))


def traces_of_writes(x: Tensor) -> Results:
    """Writes to arguments, to what is made inside, by views and ``out=``, and
    through ``functionalize``."""
    y = plain(x)

    def f(a: Tensor) -> Results:
        b = torch.zeros_like(a)
        b[0] = a[1]
        b.t()[1:].add_(a.t()[1:])
        torch.mul(a, 2, out=b[1:] if False else b)
        a[0].add_(1)
        return b, a.sum()

    graph = graph_of(f, y)
    functionalize = own("func.functionalize")
    clean = graph_of(f if functionalize is None else functionalize(f), y.clone())
    given, other = y.clone(), y.clone()
    pure = own("unwrap") is None or all(
        not c.partition(".")[0].endswith("_") or c.startswith("copy_") for c in calls_of(clean)
    )
    return beside(x, *graph(given), given, *clean(other), other, pure)
