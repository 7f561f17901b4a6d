"""The backward graphs of passes in which some cotangents are absent: which calls are left, and what
stands for an absent value.

``absences.txt`` holds them. A call that need not run changes no gradient, so no
gradient tells of it.

    python -m tests.runtime.aot.partition.absences      # writes the file anew; its diff says
                                                        # what has changed
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

import runtime
from runtime import aot

ABSENCES = Path(__file__).with_name("absences.txt")


def _stack(x: Tensor) -> Any:
    a, b = x.view(2, 2, 3).unbind()
    return a.t().exp(), b.t() * 2, a * b


def _transposed(x: Tensor) -> Any:
    y = x.view(4, 3)
    return y.t() @ y, y.t() * 3, y.sin()


def _difference(x: Tensor) -> Any:
    y, z = x.view(3, 4).t(), x.view(4, 3) * 2
    return y - z, z, y.log()


def _dtypes(x: Tensor) -> Any:
    return x.double().exp(), (x * 2).half(), x.sum()


def _expanded(x: Tensor) -> Any:
    a, b = x.view(2, 6).unbind()
    return a.expand(3, 6).log(), b * 3, a.sum() * b.unsqueeze(1)


def _masked(x: Tensor) -> Any:
    return torch.where(x > 1, x.sin(), x), x.max(0)[0] * 2, x.clone()


def _drawn(x: Tensor) -> Any:
    y = torch.nn.functional.dropout(x.exp(), 0.5)
    return y * 2, torch.nn.functional.dropout(x, 0.5), x.cos()


def _branches(x: Tensor) -> Any:
    def yes(x: Tensor) -> Any:
        return x.sin(), x * 2, x.view(3, 4).t().exp()

    def no(x: Tensor) -> Any:
        return x.cos(), x + 1, x.view(3, 4).t().log()

    return aot.cond(x.sum() > 0, yes, no, (x,))


def _mapped(x: Tensor) -> Any:
    a, b = aot.map(lambda e: (e.sin(), e.sum() * e), x.view(3, 4))
    return a, b, x * 2


def _scanned(x: Tensor) -> Any:
    def step(carry: Any, e: Tensor) -> Any:
        a, b = carry
        return (a * e.sin(), b + e), a + e

    (a, b), out = aot.scan(step, (x[:4], x[4:8] * 2), x.view(3, 4), unroll=False)
    return a, b, out


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    f.__name__[1:]: f
    for f in (
        _stack,
        _transposed,
        _difference,
        _dtypes,
        _expanded,
        _masked,
        _drawn,
        _branches,
        _mapped,
        _scanned,
    )
}


def text_of(module: fx.GraphModule, indent: str = "") -> str:
    lines = [
        (
            f"{indent}{n.name} = {n.target}("
            f"{', '.join([*map(str, n.args), *(f'{k}={a}' for k, a in n.kwargs.items())])})\n"
        )
        for n in module.graph.nodes
    ]
    inner = [
        n
        for n in module.graph.nodes
        if n.op == "get_attr" and isinstance(getattr(module, str(n.target)), fx.GraphModule)
    ]
    return "".join(lines) + "".join(
        f"{indent}{n.name}:\n{text_of(getattr(module, str(n.target)), indent + '    ')}"
        for n in inner
    )


def section(title: str, dynamic: bool = False) -> str:
    """The graphs for each choice of results that a pass starts from, as the bits of a number."""
    text = f"== {title}\n"
    graphs: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(module)
        return aot.nop(module, inputs)

    f = aot.aot_function(PROGRAMS[title], aot.nop, keep, dynamic=dynamic)
    for present in range(1, 8):
        results = f(runtime.wrap(torch.arange(1.0, 13.0), requires_grad=True))
        torch.stack(
            [r.sum().double() for i, r in enumerate(results) if present >> i & 1]
        ).sum().backward()
        text += f"-- {present}\n{text_of(graphs.pop())}"
        assert not graphs
    return text


def stored() -> dict[str, str]:
    """The section of each title in the file."""
    found = ABSENCES.read_text().split("== ")[1:]
    return {text.partition("\n")[0]: f"== {text}" for text in found}


if __name__ == "__main__":
    ABSENCES.write_text("".join(map(section, PROGRAMS)))
