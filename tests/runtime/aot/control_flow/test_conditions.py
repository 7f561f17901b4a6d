"""``cond`` in graphs and under transforms is the branch that Python would take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import runtime
from runtime import dropin, tensor
from runtime.aot import (
    aot_function,
    cond,
    default_partition,
    export,
    make_fx,
    min_cut_rematerialization_partition,
    nop,
)
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
    """The nesting applied to the program without ``cond``. vmap becomes a loop, because a batch
    has no one branch."""
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
def test_a_compiled_program_has_first_and_second_derivatives_also_by_what_a_branch_closes_over(
    dynamic: bool, partition: Any
) -> None:
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


def writing(x: Any) -> Any:
    y = x[:1]
    y.add_(1)
    return x.sin()


def twice(x: Any) -> Any:
    y = x.sin()
    return y, y


def written_without_history(x: Any) -> Any:
    y = x.sin()
    with torch.no_grad():
        y.mul_(2)
    return y


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a write under no_grad": (
        lambda x: cond(x.sum() > 0, written_without_history, torch.sin, (x,)),
        r"branch of cond writes under no_grad.*mul_",
    ),
    "a write to an operand": (
        lambda x: cond(x.sum() > 0, writing, torch.sin, (x,)),
        "writes to a tensor that it is given.*y.add_.1.",
    ),
    "different shapes": (
        lambda x: cond(x.sum() > 0, lambda x: x[:1] + 1, torch.sin, (x,)),
        r"float32\[1\] of .*float32\[2\]",
    ),
    "different dtypes": (
        lambda x: cond(x.sum() > 0, lambda x: x.double(), torch.sin, (x,)),
        r"float64\[2\] of .*float32\[2\]",
    ),
    "different numbers": (
        lambda x: cond(x.sum() > 0, lambda x: 1, lambda x: 2, (x,)),
        r"shapes, dtypes or constants: \(1\) and \(2\)",
    ),
    "an operand": (
        lambda x: cond(x.sum() > 0, lambda x: x, torch.sin, (x,)),
        "shares memory.*It happened at .*test_conditions.py",
    ),
    "a view of an operand": (
        lambda x: cond(x.sum() > 0, lambda x: x[:], torch.sin, (x,)),
        "shares memory.*lambda x: x\\[:\\]",
    ),
    "one result twice": (
        lambda x: cond(x.sum() > 0, twice, lambda x: (x + 1, x + 2), (x,)),
        "shares memory with one",
    ),
    "a custom Function": (
        lambda x: cond(x.sum() > 0, Doubled.apply, torch.sin, (x,)),
        "Doubled.apply inside a branch",
    ),
    "a condition of two elements": (
        lambda x: cond(x > 0, torch.sin, torch.cos, (x,)),
        "single-element tensor",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_graph_cannot_hold_is_refused(what: str) -> None:
    f, message = REFUSED[what]
    with pytest.raises(RuntimeError, match=message):
        make_fx(f)(X)


def test_a_graph_with_a_condition_takes_tensors_of_the_session() -> None:
    with dropin.installed():
        graph = make_fx(program, tracing_mode="symbolic")(X)
        for x in (X, -X):
            found = graph(torch.tensor(x.tolist()))
            assert isinstance(found, runtime.Tensor)
            torch.testing.assert_close(runtime.unwrap(found), plain(x))


def test_branches_return_any_structure_with_constants_that_are_equal() -> None:
    def f(x: Any) -> Any:
        return cond(
            x.sum() > 0,
            lambda x: {"y": x.sin(), "n": 3, "z": None},
            lambda x: {"y": x.cos(), "n": 3, "z": None},
            (x,),
        )

    for mode in ("real", "fake", "symbolic"):
        graph = make_fx(f, tracing_mode=mode)(X)
        for x in (X, -X):
            torch.testing.assert_close(
                graph(x), {"y": x.sin() if bool(x.sum() > 0) else x.cos(), "n": 3, "z": None}
            )


def test_operands_that_are_no_tensors_are_constants() -> None:
    graph = make_fx(lambda x: cond(x.sum() > 0, torch.add, torch.sub, (x, 2)))(X)
    for x, expected in ((X, X + 2), (-X, -X - 2)):
        torch.testing.assert_close(graph(x), expected)


def test_results_of_two_layouts_become_contiguous() -> None:
    def f(x: Any) -> Any:
        return cond(x.sum() > 0, lambda x: x.t().sin(), lambda x: x.cos(), (x,)).view(-1)

    x = torch.arange(4.0).view(2, 2) + 1
    graph = make_fx(f)(x)
    for given in (x, -x):
        torch.testing.assert_close(
            graph(given), (given.t().sin() if given is x else given.cos()).reshape(-1)
        )


def test_a_result_of_integers_has_no_derivative() -> None:
    def f(x: Any) -> Any:
        y, n = cond(
            x.sum() > 0, lambda x: (x.sin(), x.argmax()), lambda x: (x.cos(), x.argmin()), (x,)
        )
        return (y * n).sum()

    for transform in (grad, jacfwd):
        graph = make_fx(transform(f))(X)
        torch.testing.assert_close(graph(X), X.cos())
        torch.testing.assert_close(graph(-X), X.sin())  # -sin(-x), and argmin is 1


def test_a_branch_sees_a_size_that_no_operand_has() -> None:
    def f(x: Any, y: Any) -> Any:
        n = x.shape[0]
        return cond(y.sum() > 0, lambda y: y * n, lambda y: y - n, (y,))

    graph = make_fx(f, tracing_mode="symbolic")(torch.ones(3), X)
    for n, y in ((5, X), (7, -X)):
        torch.testing.assert_close(graph(torch.ones(n), y), y * n if bool(y.sum() > 0) else y - n)


def test_a_tangent_that_a_branch_closes_over_is_an_operand() -> None:
    def f(x: Any, t: Any) -> Any:
        return cond(
            x.sum() > 0,
            lambda x: jvp(torch.sin, (x,), (t,))[1],
            lambda x: jvp(torch.exp, (x,), (t,))[1],
            (x,),
        )

    graph = make_fx(f)(X, X)
    torch.testing.assert_close(graph(X, BATCH[2]), X.cos() * BATCH[2])
    torch.testing.assert_close(graph(-X, BATCH[2]), (-X).exp() * BATCH[2])


def test_an_element_of_a_batch_does_not_run_the_other_branch() -> None:
    w = torch.tensor(2.0)

    def f(x: Any, w: Any) -> Any:
        return vmap(lambda x: cond(x > 0, lambda x: (x * w).sqrt(), lambda x: -x, (x,)))(x).sum()

    x = torch.tensor([4.0, -1.0, 0.0])
    for run in (grad(f, (0, 1)), make_fx(grad(f, (0, 1)))(x, w)):
        of_x, of_w = run(x, w)
        torch.testing.assert_close(of_x, torch.tensor([(w / x[0]).sqrt() / 2, -1.0, -1.0]))
        torch.testing.assert_close(of_w, (x[0] / w).sqrt() / 2)


def test_a_graph_with_a_condition_is_traced_and_differentiated_by_session_tensors() -> None:
    graph = make_fx(program)(X)
    again = make_fx(lambda x: graph(x) * 2)(X)
    for x in (X, -X):
        torch.testing.assert_close(again(x), plain(x) * 2)
        leaf = runtime.wrap(x.clone(), True)
        graph(leaf).sum().backward()
        torch.testing.assert_close(leaf.grad, grad(lambda x: plain(x).sum())(x))
        torch.testing.assert_close(
            aot_function(graph, nop)(runtime.wrap(x, True)).detach(), plain(x)
        )


def test_a_trace_of_branches_that_draw_leaves_the_random_numbers_to_its_calls() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    make_fx(
        lambda x: cond(x.sum() > 0, lambda x: x + torch.rand(2), lambda x: x.sin(), (x,)),
        tracing_mode="fake",
    )(X)
    torch.testing.assert_close(torch.rand(2), expected)
