"""A compiled function returns the same results and gradients as the function, for every partition
of its joint graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import runtime
from runtime import aot
from runtime.func import grad

CUTS: list[Any] = [aot.default_partition, aot.min_cut_rematerialization_partition]
aten = torch.ops.aten


def program(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    h = (x @ w + b).tanh()
    return {"loss": (h * h.sin()).sum(0), "label": h.detach().argmax(1)}


def arguments(n: int) -> list[torch.Tensor]:
    return [torch.randn(n, 5), torch.randn(5, 3), torch.randn(3)]


def gradients(
    f: Callable[..., Any], plain: list[torch.Tensor], g: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    inputs = [runtime.wrap(t.clone(), requires_grad=True) for t in plain]
    loss = f(*inputs)["loss"]
    loss.backward(g)
    return runtime.unwrap(loss), [runtime.unwrap(t.grad) for t in inputs]


def torchs(plain: list[torch.Tensor], g: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    inputs = [t.clone().requires_grad_() for t in plain]
    loss = program(*inputs)["loss"]
    return loss.detach(), list(torch.autograd.grad(loss, inputs, g))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_outputs_and_gradients_are_those_of_eager_at_every_size(cut: Any, dynamic: bool) -> None:
    traced: list[fx.GraphModule] = []

    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        traced.append(module)
        return aot.nop(module, inputs)

    compiled = aot.aot_function(program, compiler, aot.nop, cut, dynamic=dynamic)
    for n in (4, 7, 9, 4):
        plain, g = arguments(n), torch.randn(3)
        torch.testing.assert_close(gradients(compiled, plain, g), torchs(plain, g))
    assert len(traced) == (1 if dynamic else 3)


def test_min_cut_keeps_less_than_the_default() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = x.sin().exp()
        return x.sum()

    kept = {}
    for cut in CUTS:

        def count(module: fx.GraphModule, inputs: list[Any], cut: Any = cut) -> Any:
            kept[cut] = len(next(n for n in module.graph.nodes if n.op == "output").args[0]) - 1
            return aot.nop(module, inputs)

        x = runtime.wrap(torch.randn(10), requires_grad=True)
        aot.aot_function(chain, count, aot.nop, cut)(x).backward()
        y = x.detach()._inner.clone().requires_grad_()  # type: ignore[attr-defined]
        torch.testing.assert_close(x.grad._inner, torch.autograd.grad(chain(y), y)[0])
    assert kept[CUTS[1]] == 1 < kept[CUTS[0]]


def test_a_random_call_is_never_run_again() -> None:
    def dropped(x: torch.Tensor) -> torch.Tensor:
        return (x * (torch.rand(1000) > 0.5)).sin().sum()

    x = runtime.wrap(torch.ones(1000), requires_grad=True)
    compiled = aot.aot_function(
        dropped, aot.nop, partition_fn=aot.min_cut_rematerialization_partition
    )
    loss = compiled(x)
    loss.backward()
    kept = (runtime.unwrap(x.grad) != 0).sum()
    torch.testing.assert_close(runtime.unwrap(loss), torch.tensor(1.0).sin() * kept)


def test_a_mutated_argument_is_mutated_for_the_caller() -> None:
    def f(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return x * count

    compiled = aot.aot_function(f, aot.nop)
    x, count = runtime.wrap(torch.ones(3), requires_grad=True), torch.zeros(())
    for i in (1, 2):
        compiled(x, count).sum().backward()
        assert count == i
    torch.testing.assert_close(runtime.unwrap(x.grad), torch.full((3,), 3.0))


def test_a_plain_leaf_gets_its_gradient_where_torch_would_put_it() -> None:
    x = torch.randn(3, requires_grad=True)
    aot.aot_function(torch.sin, aot.nop)(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())


def test_without_gradients_only_a_forward_is_compiled() -> None:
    graphs = []

    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(module)
        return aot.nop(module, inputs)

    out = aot.aot_function(lambda x: x.sin(), compiler)(torch.ones(2))
    torch.testing.assert_close(out, torch.ones(2).sin())
    assert [n.target for n in graphs[0].graph.nodes if n.op == "call_function"] == [
        aten.sin.default
    ]


def test_constants_of_the_program_are_not_baked_values_of_arguments() -> None:
    compiled = aot.aot_function(lambda x, k: x * k, aot.nop)
    x = torch.ones(2)
    torch.testing.assert_close([compiled(x, 2), compiled(x, 3)], [2 * x, 3 * x])


def test_a_backward_pass_frees_what_was_saved() -> None:
    x = runtime.wrap(torch.ones(2), requires_grad=True)
    out = aot.aot_function(lambda x: x.sin().sum(), aot.nop)(x)
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_a_joint_graph_of_one_module_has_a_slot_for_every_input() -> None:
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    module = aot.aot_export_joint_simple(lambda x, y: [x * y], (x, y), trace_joint=True)
    outs, grads = module([x.detach(), y], [torch.ones(3)])
    torch.testing.assert_close(outs, [x.detach() * y])
    torch.testing.assert_close(grads[0], y)
    assert grads[1] is None
    with pytest.raises(RuntimeError, match="does not support input mutations"):
        aot.aot_export_joint_simple(lambda x: [x.add_(1)], (torch.ones(2),), trace_joint=False)


def test_a_boxed_function_empties_its_list() -> None:
    given = [torch.ones(2), torch.ones(2)]
    torch.testing.assert_close(aot.make_boxed_func(torch.add)(given), torch.full((2,), 2.0))
    assert given == []
    compiled = aot.make_boxed_compiler(lambda module, inputs: module.forward)(
        fx.symbolic_trace(lambda x: x.sin()), []
    )
    torch.testing.assert_close(compiled([torch.ones(1)]), torch.ones(1).sin())


def test_a_size_that_the_backward_pass_fixes_is_a_guard() -> None:
    """The gradient of cumprod doubles its reach as often as the size asks, so a graph of size 3 is
    wrong for size 10."""
    compiled = aot.aot_function(
        lambda x: torch.cumprod(x, 0),
        fw_compiler=aot.nop,
        bw_compiler=aot.nop,
        partition_fn=aot.default_partition,
        dynamic=True,
    )
    for size in (3, 10, 5):
        values = torch.linspace(0.5, 1.5, size, dtype=torch.float64)
        x = runtime.wrap(values, True)
        compiled(x).sum().backward()
        leaf = values.clone().requires_grad_()
        torch.cumprod(leaf, 0).sum().backward()
        torch.testing.assert_close(runtime.unwrap(x.grad), leaf.grad)


@pytest.mark.parametrize("first, second", [(1, 1.0), (1, True), (0.0, -0.0)])
def test_equal_numbers_that_programs_tell_apart_are_traced_apart(first: Any, second: Any) -> None:
    def f(x: torch.Tensor, k: Any) -> torch.Tensor:
        return 1 / torch.full_like(x, k, dtype=torch.float64) if k == 0 else x * k

    compiled = aot.aot_function(f, aot.nop)
    x = torch.arange(3)
    for k in (first, second):
        assert torch.equal(compiled(x, k), f(x, k)) and compiled(x, k).dtype is f(x, k).dtype


def test_a_nan_argument_is_traced_once() -> None:
    traces: list[int] = []

    def f(x: torch.Tensor, k: float) -> torch.Tensor:
        traces.append(1)
        return x * k

    compiled = aot.aot_function(f, aot.nop, ignore=[traces])
    assert (
        compiled(torch.ones(2), float("nan")).isnan().all()
        and compiled(torch.ones(2), float("nan")).isnan().all()
    )
    assert len(traces) == 1


@pytest.mark.parametrize("write", ["an argument", "a view of an argument", "a result"])
def test_a_write_to_what_a_compiled_backward_needs_is_an_error(write: str) -> None:
    x = runtime.wrap(torch.randn(3))
    w = runtime.wrap(torch.randn(3), requires_grad=True)
    y = aot.aot_function(lambda x, w: (x.view(3) * w).exp(), aot.nop)(x, w)
    with torch.no_grad():
        {"an argument": x, "a view of an argument": x[:1], "a result": y}[write].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_write_to_what_no_compiled_backward_needs_is_none_of_its_business() -> None:
    x = runtime.wrap(torch.randn(3))
    w = runtime.wrap(torch.full((3,), 2.0), requires_grad=True)
    y = aot.aot_function(lambda x, w: w * 3 + x, aot.nop)(x, w)
    with torch.no_grad():
        for t in (x, w, y):
            t.add_(1)
    y.sum().backward()
    assert w.grad.tolist() == [3.0] * 3


@pytest.mark.parametrize(
    "program",
    [
        torch.nn.functional.linear,
        torch.matmul,
        lambda x, w: torch.matmul(w, x.transpose(1, 2)),
        lambda x, w: torch.matmul(x, w[:, 0].contiguous()),
        lambda x, w: torch.matmul(w[0], x.transpose(1, 2)),
    ],
    ids=["linear", "matrix", "matrix first", "vector", "vector first"],
)
@pytest.mark.parametrize("autocast", [False, True])
def test_a_product_with_what_requires_grad_is_the_one_that_eager_computes(
    program: Callable[..., Any], autocast: bool
) -> None:
    plain = [torch.randn(5, 7, 33).transpose(0, 1), torch.randn(33, 33)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        theirs = [t.clone().requires_grad_() for t in plain]
        expected = program(*theirs)
        ours = [runtime.wrap(t.clone(), requires_grad=True) for t in plain]
        found = aot.aot_function(program, aot.nop)(*ours)
    # a dense one: some processors round products with an expanded vector in another way
    cotangent = torch.randn(expected.shape).to(expected.dtype)
    expected.backward(cotangent)
    found.backward(cotangent)
    assert runtime.unwrap(found).equal(expected.detach())
    assert all(
        runtime.unwrap(t.grad).equal(e.grad)
        for t, e in zip(ours, theirs, strict=True)
        if e.grad is not None
    )


def test_no_gradient_of_a_shared_factor_is_a_stack_of_matrices() -> None:
    x, w = torch.randn(5, 7, 3).transpose(0, 1), torch.randn(4, 3)
    module = aot.make_fx(grad(lambda w: torch.nn.functional.linear(x, w).square().sum()))(w)
    calls = [n.target for n in module.graph.nodes]
    assert calls.count(aten.mm.default) == 2 and aten.bmm.default not in calls
