"""A backward pass that starts from some results of a compiled program does what it does
without the compiler."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime import aot
from runtime.aot import aot_function, default_partition, min_cut_rematerialization_partition, nop
from tests.runtime.aot.capture.boundary_helpers import compiled

POINT = [0.0, 1.0, 2.0, 0.0]  # where log, sqrt and std have derivatives that are not finite


class OneMore(torch.autograd.Function):
    """A derivative that is not linear in its cotangent: one sees whether it has run."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g + 1


class OneMoreHere(runtime.autograd.Function):
    forward = staticmethod(OneMore.forward)
    backward = staticmethod(OneMore.backward)


def programs(one_more: Any) -> dict[str, Callable[[Any], tuple[Any, ...]]]:
    add = one_more.apply
    return {
        "an infinite derivative": lambda x: (x * 2, x.log()),
        "a custom Function": lambda x: (x * 2, add(x)),
        "Functions in a row": lambda x: (add(add(x * 2) * 3), x.sqrt(), x * x),
        "a shared part": lambda x: (lambda y: (y.log(), y * 2, add(y)))(x * x),
        "results of one op": lambda x: tuple((u * u).log() for u in x.unbind()),
        "halves": lambda x: (lambda a, b: (a.log(), b * 3))(*x.split(2)),
        "overlapping parts": lambda x: (x.log()[:2], x[1:] * x[:-1], add(x)[2]),
        "lists": lambda x: tuple(torch._foreach_log([x, x + 1])),
        "a choice": lambda x: (torch.where(x > 0, x, x.log()), x.exp()),
        "a spread that is zero": lambda x: torch.std_mean(x - x.detach()),
        "a degenerate decomposition": lambda x: tuple(
            torch.linalg.svd(torch.diag(x.exp() / x.detach().exp())[:2, :2])
        ),
    }


def gradient(
    f: Callable[[Any], Any], x: Any, results: tuple[int, ...], grad: Callable[..., Any], order: int
) -> list[float]:
    outs = f(x)
    total = sum(outs[i].sum() for i in results)
    g: Any = None
    for _ in range(order):
        g = grad(total, x, create_graph=True, allow_unused=True)[0] if total.requires_grad else None
        if g is None:
            return [0.0] * 4
        total = (g * torch.arange(4.0)).sum()
    found: list[float] = g.tolist()
    return found


def approx(found: list[float]) -> Any:
    return pytest.approx(found, nan_ok=True, rel=1e-5)


def chosen_results(number: int, dynamic: bool) -> Iterator[tuple[int, ...]]:
    """Every choice of some of the results. Of a program for any size each alone and all of them,
    since each choice takes seconds."""
    sizes = {1, number} if dynamic else range(1, number + 1)
    return itertools.chain.from_iterable(
        itertools.combinations(range(number), k) for k in sorted(sizes)
    )


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", programs(OneMore))
def test_any_results_can_be_differentiated(name: str, order: int, dynamic: bool) -> None:
    plain, ours = programs(OneMore)[name], programs(OneMoreHere)[name]
    number = len(plain(torch.tensor(POINT)))
    f = aot_function(ours, nop, dynamic=dynamic)
    for results in chosen_results(number, dynamic):
        expected = gradient(
            plain, torch.tensor(POINT, requires_grad=True), results, torch.autograd.grad, order
        )
        found = gradient(
            f, runtime.tensor(POINT, requires_grad=True), results, runtime.autograd.grad, order
        )
        assert found == approx(expected), results


def mapped(f: Callable[[Any], Any], xs: Any) -> Any:
    each = [f(x) for x in xs]
    return (
        tuple(torch.stack(r) for r in zip(*each, strict=True))
        if isinstance(each[0], tuple)
        else torch.stack(each)
    )


def chosen(
    pred: Any, on_true: Callable[..., Any], on_false: Callable[..., Any], operands: Any
) -> Any:
    return (on_true if pred else on_false)(*operands)


def scanned(f: Callable[[Any, Any], Any], carry: Any, xs: Any) -> Any:
    ys = []
    for x in xs:
        carry, y = f(carry, x)
        ys.append(y)
    return carry, mapped(lambda y: y, ys)


def controlled(cond: Any, map: Any, scan: Any) -> dict[str, Callable[[Any], tuple[Any, ...]]]:
    return {
        "a branch": lambda x: cond(
            x.sum() > 1, lambda x: (x * 2, x.log()), lambda x: (x.sqrt(), x * 3), (x,)
        ),
        "the other branch": lambda x: cond(
            x.sum() < 1, lambda x: (x * 2, x.log()), lambda x: (x.sqrt(), x * 3), (x,)
        ),
        "a branch and what follows": lambda x: (lambda a, b: (a * 2, b.sum(), a * x))(
            *cond(x.sum() > 1, lambda x: (x * x, x.log()), lambda x: (x * 5, x + 1), (x,))
        ),
        "a branch with a sum": lambda x: cond(
            x.sum() > 1, lambda x: (x + 1, x.sqrt(), x.log()), lambda x: (x + 2, x * 3, x * 2), (x,)
        ),
        "a branch in a branch": lambda x: cond(
            x.sum() > 1,
            lambda x: cond(
                x.prod() < 1, lambda x: (x * 2, x.log()), lambda x: (x * 3, x * 4), (x,)
            ),
            lambda x: (x * 5, x * 6),
            (x,),
        ),
        "a cotangent that a branch computes": lambda x: (
            lambda y: cond(x.sum() > 1, lambda y: (y.sqrt(), y * 2), lambda y: (y * 3, y * 4), (y,))
        )(x * 1),
        "each element": lambda x: map(lambda e: (e * 2, e.log()), x),
        "each element with one": lambda x: (lambda w: map(lambda e: (e * w, (e * w).sqrt()), x))(
            x.sum() * 0.5
        ),
        "steps": lambda x: (lambda c, y: (c, *y))(
            *scan(lambda c, e: (c + e, (e * 3, e.log())), x[1] * 1, x)
        ),
    }


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", controlled(chosen, mapped, scanned))
def test_any_results_of_control_flow_can_be_differentiated(
    name: str, order: int, dynamic: bool
) -> None:
    plain, ours = (
        controlled(chosen, mapped, scanned)[name],
        controlled(aot.cond, aot.map, aot.scan)[name],
    )
    f = aot_function(ours, nop, dynamic=dynamic)
    number = len(plain(torch.tensor(POINT)))
    for results in chosen_results(number, dynamic):
        expected = gradient(
            plain, torch.tensor(POINT, requires_grad=True), results, torch.autograd.grad, order
        )
        found = gradient(
            f, runtime.tensor(POINT, requires_grad=True), results, runtime.autograd.grad, order
        )
        assert found == approx(expected), results


def test_a_branch_does_not_compute_with_an_absent_cotangent() -> None:
    graphs: list[fx.GraphModule] = []

    def note(module: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(module)
        return nop(module, inputs)

    f = aot_function(
        lambda x: aot.cond(
            x.sum() > 0, lambda x: (x * 2, x.log()), lambda x: (x * 3, x.exp()), (x,)
        ),
        nop,
        note,
    )
    x = runtime.tensor([0.0, 1.0], requires_grad=True)
    f(x)[0].sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    branches = [
        m for m in graphs[0].modules() if isinstance(m, fx.GraphModule) and m is not graphs[0]
    ]
    calls = [{n.target for n in b.graph.nodes if n.op == "call_function"} for b in branches]
    assert calls == [{torch.ops.aten.mul.Tensor, torch.ops.aten.clone.default}] * 2
    assert [sum(n.op == "placeholder" for n in b.graph.nodes) for b in branches] == [2, 2]


def test_the_gradient_of_a_branch_has_its_own_memory() -> None:
    f = compiled(
        lambda x: aot.cond(
            x.sum() > 0, lambda x: (x + 1, x.log()), lambda x: (x + 2, x.exp()), (x,)
        )
    )
    x, cotangent = runtime.tensor([0.0, 1.0], requires_grad=True), torch.ones(2)
    (found,) = runtime.autograd.grad(f(x)[0], x, cotangent)
    cotangent.zero_()
    assert found.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
def test_derivatives_that_take_no_part_are_not_computed(partition: Any) -> None:
    graphs: list[fx.GraphModule] = []

    def note(module: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(module)
        return nop(module, inputs)

    f = aot_function(lambda x: (x.sin(), x.exp().tan().exp()), nop, note, partition_fn=partition)
    for _ in range(2):
        x = runtime.tensor([1.0], requires_grad=True)
        f(x)[0].sum().backward()
        assert x.grad.tolist() == pytest.approx(torch.tensor([1.0]).cos().tolist())
    (graph,) = graphs
    assert [n.target for n in graph.graph.nodes if n.op == "call_function"] == [
        torch.ops.aten.cos.default,
        torch.ops.aten.mul.Tensor,
    ]


def test_a_gradient_that_no_cotangent_leads_to_is_none() -> None:
    f = compiled(lambda x, y: (x * y, y.exp()))
    x, y = runtime.tensor([2.0], requires_grad=True), runtime.tensor([3.0], requires_grad=True)
    f(x, y)[1].backward()
    assert x.grad is None and y.grad.tolist() == pytest.approx([20.0855], rel=1e-4)


def test_a_draw_of_a_derivative_that_does_not_run_is_not_made() -> None:
    class Noise(runtime.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * torch.rand(3)

    f = compiled(lambda x: (x * 2, Noise.apply(x)))
    for result, drawn in ((0, 0), (1, 3)):
        x = runtime.tensor([1.0, 1.0, 1.0], requires_grad=True)
        out = f(x)[result].sum()
        torch.manual_seed(0)
        out.backward()
        state = torch.get_rng_state()
        torch.manual_seed(0)
        torch.rand(drawn)
        assert torch.equal(state, torch.get_rng_state())


def test_parts_of_a_subclass() -> None:
    x = TwoTensor(torch.tensor([0.0, 4.0]), torch.tensor([1.0, 0.0]))
    mine = runtime.wrap(x, requires_grad=True)
    compiled(lambda x: (x * 3, x.log()))(mine)[0].sum().backward()
    assert mine.grad.a.tolist() == [3.0, 3.0] and mine.grad.b.tolist() == [3.0, 3.0]


class TestRefusals:
    """The graph was captured with cotangents for all results, so the program's own code has not
    seen an absent one."""

    class Two(runtime.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(False)
            return x * 1, x * 2

        @staticmethod
        def backward(ctx: Any, a: Any, b: Any) -> Any:
            return a if b is None else b if a is None else a * b

    def test_a_function_that_takes_none(self) -> None:
        f = compiled(lambda x: (*self.Two.apply(x), x.exp()))
        x = runtime.tensor([1.0], requires_grad=True)
        outs = f(x)
        (outs[0] + outs[1]).backward(retain_graph=True)
        assert x.grad.tolist() == [1.0]
        outs[2].backward(retain_graph=True)
        with pytest.raises(
            RuntimeError,
            match=(
                "Function behind TwoBackward, "
                "which is given some of its cotangents and None for others"
            ),
        ):
            outs[0].backward()

    def test_a_backward_that_writes(self) -> None:
        class Writes(runtime.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, count: Any) -> Any:
                ctx.count = count
                return x * 1

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                ctx.count.add_(1)
                return g, None

        f = compiled(lambda x, count: (Writes.apply(x, count), x.exp()))
        x, count = runtime.tensor([1.0], requires_grad=True), torch.zeros(1)
        with pytest.raises(RuntimeError, match="writes to an argument in its backward"):
            f(x, count)[1].backward()
        sum(f(x, count)).backward()
        assert count.tolist() == [1.0]
