"""``cond`` in graphs and under transforms is the branch that Python would take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import runtime
from runtime import dropin, tensor
from runtime.aot import aot_function, cond, default_partition, export, make_fx, map, min_cut_rematerialization_partition, nop, scan
from runtime.func import functionalize, grad, hessian, jacfwd, jvp, vmap

X = torch.tensor([0.3, 0.4])
BATCH = torch.tensor([[0.3, 0.4], [-0.3, -0.4], [1.0, -2.0]])
PARTITIONS = (default_partition, min_cut_rematerialization_partition)


def above(x: Any) -> Any:
    return x.sin() * 2


def below(x: Any) -> Any:
    return x.cos() + x * x


def program(x: Any) -> Any:
    return cond(x.sum() > 0, above, below, (x,))


def plain(x: Any) -> Any:
    return above(x) if bool(x.sum() > 0) else below(x)


NESTINGS: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "itself": lambda f: f,
    "grad": lambda f: grad(lambda x: f(x).sum()),
    "hessian": lambda f: hessian(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x.exp(),)),
    "forward over forward": lambda f: jacfwd(jacfwd(f)),
    "functionalize": functionalize,
    "vmap": lambda f: lambda x: vmap(f)(torch.stack([x, -x, x * 2])),
    "vmap of grad": lambda f: lambda x: vmap(grad(lambda x: f(x).sum()))(torch.stack([x, -x])),
    "grad of vmap": lambda f: grad(lambda x: vmap(f)(torch.stack([x, -x])).square().sum()),
}


def loop(nesting: str, x: Any) -> Any:
    """The nesting applied to the program without ``cond``. vmap becomes a loop, because a batch has no one branch."""
    if nesting == "vmap":
        return torch.stack([plain(x), plain(-x), plain(x * 2)])
    each = grad(lambda x: plain(x).sum())
    if nesting == "vmap of grad":
        return torch.stack([each(x), each(-x)])
    if nesting == "grad of vmap":
        return grad(lambda x: plain(x).square().sum() + plain(-x).square().sum())(x)
    return NESTINGS[nesting](plain)(x)


@pytest.mark.parametrize("mode", ["eager", "real", "fake", "symbolic"])
@pytest.mark.parametrize("nesting", NESTINGS)
def test_a_nesting_of_transforms_takes_the_branch_of_the_values(nesting: str, mode: str) -> None:
    f = NESTINGS[nesting](program)
    run = f if mode == "eager" else make_fx(f, tracing_mode=mode)(X)
    for x in (X, -X):
        torch.testing.assert_close(run(x), loop(nesting, x))


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_program_has_first_and_second_derivatives_also_by_what_a_branch_closes_over(dynamic: bool, partition: Any) -> None:
    w = tensor([2.0, 3.0], requires_grad=True)

    def derivatives(branch: Callable[..., Any], sign: float) -> list[Any]:
        x = runtime.wrap(sign * X, True)
        (g,) = runtime.autograd.grad(branch(x).square().sum(), x, create_graph=True)
        return [g.detach(), *(t.detach() for t in runtime.autograd.grad(g.sum(), [x, w]))]

    def f(x: Any) -> Any:
        return cond(x.sum() > 0, lambda x: x * w, lambda x: (x - w).exp(), (x,))

    compiled = aot_function(f, nop, partition_fn=partition, dynamic=dynamic)
    for sign in (1.0, -1.0, 1.0):
        expected = derivatives((lambda x: x * w) if sign > 0 else (lambda x: (x - w).exp()), sign)
        torch.testing.assert_close(derivatives(compiled, sign), expected)


def test_a_condition_inside_a_branch() -> None:
    def inner(x: Any) -> Any:
        return cond(x[0] > 0.5, torch.exp, torch.neg, (x,))

    def f(x: Any) -> Any:
        return cond(x.sum() > 0, inner, torch.cos, (x,))

    def expected(x: Any) -> Any:
        return (torch.exp if bool(x[0] > 0.5) else torch.neg)(x) if bool(x.sum() > 0) else x.cos()

    for nest in (lambda f: f, NESTINGS["grad"], NESTINGS["hessian"]):
        run = make_fx(nest(f))(X)
        for x in (X, -X, X + 1):
            torch.testing.assert_close(run(x), nest(expected)(x))


def test_no_grad_inside_a_branch_cuts_the_history() -> None:
    def f(x: Any) -> Any:
        def halved(x: Any) -> Any:
            with torch.no_grad():
                y = x * x
            return y * x

        return cond(x.sum() > 0, halved, torch.neg, (x,))

    x = runtime.wrap(X.clone(), True)
    aot_function(f, nop)(x).sum().backward()
    torch.testing.assert_close(x.grad, X * X)


def test_the_graph_has_torchs_own_operator_which_torch_runs_and_saves(tmp_path: Path) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return program(x)

    graph = make_fx(program)(X).graph
    assert [n.target for n in graph.nodes if n.target is torch.ops.higher_order.cond]
    exported = export(Module(), (X,))
    torch.export.save(exported, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    for x in (X, -X):
        torch.testing.assert_close(loaded(x), plain(x))


def test_under_the_drop_in_torchs_cond_leads_here() -> None:
    with dropin.installed():
        graph = make_fx(lambda x: torch.cond(x.sum() > 0, above, below, (x,)))(X)
    torch.testing.assert_close(graph(-X), below(-X))


class Doubled(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a write to an operand": (lambda x: cond(x.sum() > 0, lambda x: x.add_(1), torch.sin, (x,)), "writes to a tensor that it is given"),
    "different shapes": (lambda x: cond(x.sum() > 0, lambda x: x[:1], torch.sin, (x,)), "different shapes or dtypes"),
    "different dtypes": (lambda x: cond(x.sum() > 0, lambda x: x.double(), torch.sin, (x,)), "different shapes or dtypes"),
    "a number": (lambda x: cond(x.sum() > 0, lambda x: 1, lambda x: 2, (x,)), "returns something that is no tensor"),
    "a custom Function": (lambda x: cond(x.sum() > 0, Doubled.apply, torch.sin, (x,)), "Doubled.apply inside a branch"),
    "a condition of two elements": (lambda x: cond(x > 0, torch.sin, torch.cos, (x,)), "single-element tensor"),
    "an operand that is no tensor": (lambda x: cond(x.sum() > 0, torch.add, torch.sub, (x, 2)), "must be tensors"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_graph_cannot_hold_is_refused(what: str) -> None:
    f, message = REFUSED[what]
    with pytest.raises(RuntimeError, match=message):
        make_fx(f)(X)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_and_map_are_loops_also_in_a_graph(reverse: bool) -> None:
    def f(xs: Any, start: Any) -> Any:
        carry, ys = scan(lambda c, x: (c * x, {"sum": c + x}), start, xs, reverse=reverse)
        return carry, ys["sum"], map(lambda x, s: x * s, xs, start)

    def expected(xs: Any, start: Any) -> Any:
        carry, sums = start, []
        for x in reversed(xs.unbind()) if reverse else xs.unbind():
            sums.append(carry + x)
            carry = carry * x
        return carry, torch.stack(sums[::-1] if reverse else sums), xs * start

    torch.testing.assert_close(make_fx(f)(BATCH, X)(BATCH, X), expected(BATCH, X))
    with pytest.raises(RuntimeError, match="length of at least 1"):
        f(BATCH[:0], X)


def test_a_graph_with_a_condition_takes_tensors_of_the_session() -> None:
    with dropin.installed():
        graph = make_fx(program, tracing_mode="symbolic")(X)
        for x in (X, -X):
            found = graph(torch.tensor(x.tolist()))
            assert isinstance(found, runtime.Tensor)
            torch.testing.assert_close(runtime.unwrap(found), plain(x))
