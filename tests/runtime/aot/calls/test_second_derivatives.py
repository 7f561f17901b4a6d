"""A compiled program can be differentiated as often as the program itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import runtime
from runtime import dropin, tensor, unwrap
from runtime.aot import (
    aot_function,
    aot_module,
    default_partition,
    min_cut_rematerialization_partition,
    nop,
)

PARTITIONS = (default_partition, min_cut_rematerialization_partition)


def derivatives(f: Callable[..., Any], make: Callable[[], list[Any]], order: int) -> list[Any]:
    """Gradients of order 1 to ``order``, each of the sum of squares of the one before."""
    args = make()
    torch.manual_seed(0)
    out = f(*args)
    loss = sum((o * o).sum() for o in (out if isinstance(out, tuple) else (out,)))
    found: list[Any] = []
    for k in range(order):
        grads = runtime.autograd.grad(loss, args, create_graph=k < order - 1)
        found += grads
        loss = sum((g * g).sum() for g in grads)
    return found


def matrices() -> list[Any]:
    torch.manual_seed(1)
    return [
        runtime.wrap(torch.randn(3, 4, dtype=torch.float64), True),
        runtime.wrap(torch.randn(4, 2, dtype=torch.float64), True),
    ]


def local_write(x: Any, w: Any) -> Any:
    y = x * 1
    y.mul_(w.sum())
    return y.sin()


PROGRAMS: dict[str, Callable[..., Any]] = {
    "layer": lambda x, w: torch.tanh(x @ w),
    "softmax": lambda x, w: (x @ w).softmax(-1).log(),
    "two results": lambda x, w: ((x @ w).sin(), x.exp()),
    "no value of an argument is saved": lambda x, w: F.softplus(x).sum() * w.sigmoid(),
    "dropout": lambda x, w: F.dropout(torch.tanh(x @ w), 0.5),
    "a write to an intermediate": local_write,
}


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_to_third_order_are_those_of_the_program(name: str, partition: Any) -> None:
    f = PROGRAMS[name]
    expected = derivatives(f, matrices, 3)
    found = derivatives(aot_function(f, nop, partition_fn=partition), matrices, 3)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.detach(), b.detach())


def test_a_gradient_penalty_reaches_the_parameters_of_a_compiled_module() -> None:
    def gradients(model: Any, module: Any) -> list[Any]:
        x = tensor([[0.1, 0.2, 0.3]], requires_grad=True)
        (g,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        (g.norm() - 1).square().backward()
        found = [p.grad.clone() for p in module.parameters()]
        module.zero_grad()
        return found

    with dropin.installed():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 1))
        expected = gradients(module, module)
        for a, b in zip(gradients(aot_module(module, nop), module), expected, strict=True):
            torch.testing.assert_close(a, b)


def test_a_history_before_the_program_takes_part() -> None:
    def second(f: Callable[..., Any]) -> Any:
        x = tensor([0.3, 0.7], requires_grad=True)
        (g,) = runtime.autograd.grad(f(x * x).sum(), x, create_graph=True)
        return runtime.autograd.grad(g.sum(), x)[0]

    def f(y: Any) -> Any:
        return y.sin()

    torch.testing.assert_close(second(aot_function(f, nop)), second(f))


def test_a_changed_argument_is_noticed() -> None:
    x = tensor([0.3, 0.7], requires_grad=True)
    y = x * 1
    # saves results alone; the second derivative needs y
    out = aot_function(lambda y: y.relu().exp(), nop)(y)
    y.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        runtime.autograd.grad(out.sum(), x, create_graph=True)


def test_a_program_may_write_to_what_its_derivative_needs() -> None:
    def f(y: Any) -> Any:
        z = y.exp().sin()
        y.mul_(2)
        return z

    def second(f: Callable[..., Any]) -> Any:
        x = tensor([0.3, 0.7], requires_grad=True)
        y = x * 1
        (g,) = runtime.autograd.grad(f(y).sum() + y.sum(), x, create_graph=True)
        return runtime.autograd.grad(g.sum(), x)[0]

    torch.testing.assert_close(second(aot_function(f, nop)), second(f))


def without_grad(x: Any) -> Any:
    with torch.no_grad():
        scale = x.sin()
    return scale * x.exp()


def buffer_without_grad(x: Any) -> Any:
    buffer = torch.zeros(2)
    with torch.no_grad():
        buffer.copy_(x.sin())
    return buffer * x.exp()


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize(
    "f", [without_grad, buffer_without_grad, lambda x: x.detach().sin() * x.exp()]
)
def test_what_was_computed_without_grad_is_a_constant_of_every_derivative(
    f: Any, partition: Any
) -> None:
    def make() -> list[Any]:
        return [tensor([0.3, 0.7], requires_grad=True)]

    for a, b in zip(
        derivatives(aot_function(f, nop, partition_fn=partition), make, 3),
        derivatives(f, make, 3),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2


def written_by_custom(x: Any) -> Any:
    y = x * 1
    Tripled.apply(y)  # type: ignore[no-untyped-call]
    return y.sin()


def part_written_by_custom(x: Any) -> Any:
    y = x * 1
    Tripled.apply(y[1:])  # type: ignore[no-untyped-call]
    return y.sin()


def hooked(x: Any) -> Any:
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    return y.exp()


def written(x: Any) -> Any:
    y = x * 1
    with torch.no_grad():
        y.sin_()
    return y.exp()


def part_written(x: Any) -> Any:
    y = x * 1
    with torch.no_grad():
        y[1:].sin_()
    return y.exp()


def parts_written(x: Any) -> Any:
    y = x * 1
    with torch.no_grad():
        torch._foreach_mul_(list(y.unbind()), 3.0)
    return y.exp()


def written_as_out(x: Any) -> Any:
    y = x * 1
    with torch.no_grad():
        torch.sin(torch.ones(2), out=y)
    return y.exp()


def older_view_written(x: Any) -> Any:
    y = torch.ones(2)
    with torch.no_grad():
        part = y[1:]
    y.mul_(x)
    with torch.no_grad():
        part.mul_(3)
    return y.exp()


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (written_by_custom, "custom Function"),
        (part_written_by_custom, "custom Function"),
        (hooked, "hook"),
        (written, "under no_grad"),
        (part_written, "under no_grad"),
        (parts_written, "under no_grad"),
        (written_as_out, "under no_grad"),
        (older_view_written, "under no_grad"),
    ],
)
def test_what_only_the_tape_of_the_trace_knew_is_refused(f: Any, why: str) -> None:
    x = tensor([0.3, 0.7], requires_grad=True)
    y = aot_function(f, nop)(x)
    with pytest.raises(RuntimeError, match=f"no second derivative here: .*{why}"):
        runtime.autograd.grad(y.sum(), x, create_graph=True)


def test_without_keep_primals_an_argument_that_is_not_saved_is_free() -> None:
    def after(keep: bool) -> tuple[bool, Any]:
        x = tensor([0.3, 0.7], requires_grad=True)
        y = x * 1
        held = weakref.ref(unwrap(y))
        out = aot_function(lambda y: y.exp(), nop, keep_primals=keep)(y)
        del y
        gc.collect()
        return held() is not None, lambda: runtime.autograd.grad(out.sum(), x, create_graph=True)

    alive, _ = after(True)
    freed, differentiate = after(False)
    assert alive and not freed
    with pytest.raises(RuntimeError, match="compiled with keep_primals=False"):
        differentiate()


def test_the_backward_is_compiled_when_it_first_runs() -> None:
    graphs: list[int] = []

    def compiler(module: Any, _: Any) -> Any:
        graphs.append(len(module.graph.nodes))
        return module

    x = tensor([1.0, 2.0], requires_grad=True)
    f = aot_function(lambda x: x * 2, nop, compiler)
    y = f(x)
    assert not graphs
    y.sum().backward()
    f(x).sum().backward()
    assert len(graphs) == 1 and x.grad.tolist() == [4.0, 4.0]


def test_hooks_on_saved_tensors_inside_the_program_leave_the_first_derivative_alone() -> None:
    def f(x: Any) -> Any:
        with runtime.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
            return x.sin().sum()

    x = runtime.tensor([1.0, 2.0], requires_grad=True)
    assert torch.equal(
        runtime.autograd.grad(aot_function(f, nop)(x), x)[0], torch.tensor([1.0, 2.0]).cos()
    )
    with pytest.raises(RuntimeError, match="it sets hooks on saved tensors"):
        runtime.autograd.grad(aot_function(f, nop)(x), x, create_graph=True)


def test_hooks_on_saved_tensors_around_one_call_leave_other_calls_alone() -> None:
    f = aot_function(lambda x: x.sin(), nop)
    x = runtime.tensor([1.0, 2.0], requires_grad=True)
    packed: list[Any] = []

    def pack(t: Any) -> Any:
        packed.append(t)
        return t * 1

    with runtime.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        first = f(x)
    assert packed, "the hooks see what the call saves"
    for y in (first, f(x)):
        (g,) = runtime.autograd.grad(y.sum(), x, create_graph=True)
        (gg,) = runtime.autograd.grad(g.sum(), x)
        torch.testing.assert_close(gg, -x.detach().sin())


def test_a_write_that_the_derivative_does_not_read_leaves_the_second_one_alone() -> None:
    weight = runtime.tensor([[3.0, 4.0], [0.3, 0.4]], requires_grad=True)
    table = torch.nn.functional.embedding

    def second(f: Any) -> Any:
        y = f(torch.tensor([0, 1, 0]))
        (g,) = runtime.autograd.grad(y.sin().sum(), weight, create_graph=True)
        return runtime.autograd.grad(g.square().sum(), weight)[0]

    with torch.no_grad():
        weight.copy_(torch.tensor([[0.6, 0.8], [0.3, 0.4]]))  # what max_norm makes of them
    expected = second(lambda i: table(i, weight))
    with torch.no_grad():
        weight.copy_(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    torch.testing.assert_close(
        second(aot_function(lambda i: table(i, weight, max_norm=1.0), nop)),
        expected,
        rtol=1e-5,
        atol=1e-5,
    )


def test_the_noise_of_rrelu_is_a_constant_of_the_second_derivative() -> None:
    x = runtime.tensor([-1.0, -2.0, 3.0], requires_grad=True)
    f = aot_function(lambda x: torch.nn.functional.rrelu(x, training=True), nop)
    torch.manual_seed(3)
    slopes = torch.nn.functional.rrelu(
        torch.tensor([-1.0, -2.0, 3.0]), training=True
    ) / torch.tensor([-1.0, -2.0, 3.0])
    torch.manual_seed(3)
    (g,) = runtime.autograd.grad(f(x).square().sum(), x, create_graph=True)
    (gg,) = runtime.autograd.grad(g.sum(), x)
    torch.testing.assert_close(gg, 2 * slopes**2)


def test_arguments_that_share_memory_and_no_history_have_no_second_derivative() -> None:
    def f(x: Any, d: Any) -> Any:
        d.mul_(2)
        return x.sin()

    x = runtime.tensor([1.0, 2.0], requires_grad=True) * 1
    y = aot_function(f, nop)(x, x.detach())
    with pytest.raises(
        RuntimeError,
        match=(
            "no second derivative here: "
            "it writes to memory that an argument which requires grad shares"
        ),
    ):
        runtime.autograd.grad(y.sum(), x, create_graph=True)


def test_a_write_through_overlapping_elements_has_no_second_derivative() -> None:
    def f(x: Any) -> Any:
        x = x * 1
        x.unfold(0, 2, 1).add_(x.sum())
        return x.sin()

    x = tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
    y = aot_function(f, nop)(x)
    (g,) = runtime.autograd.grad(y.sum(), x, retain_graph=True)
    plain = x.detach()
    weights = torch.tensor([1.0, 2.0, 1.0])[:, None]
    cosines = (plain + weights * plain.sum()).cos()
    torch.testing.assert_close(g, cosines + (weights * cosines).sum())
    with pytest.raises(RuntimeError, match="a view that shows an element several times"):
        runtime.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_random_numbers_that_only_a_second_derivative_needs_are_saved(partition: Any) -> None:
    def f(x: Any) -> Any:
        return torch.nn.functional.gumbel_softmax(x, tau=0.7).square().sum()

    def second(f: Any) -> Any:
        x = runtime.tensor([0.3, -0.2, 0.5], requires_grad=True)
        torch.manual_seed(2)
        (g,) = runtime.autograd.grad(f(x), x, create_graph=True)
        return g.detach(), runtime.autograd.grad(g.sin().sum(), x)[0]

    for found, expected in zip(
        second(aot_function(f, nop, partition_fn=partition)), second(f), strict=True
    ):
        torch.testing.assert_close(found, expected)
    with pytest.raises(RuntimeError, match="no second derivative here: it draws random numbers"):
        second(aot_function(f, nop, partition_fn=partition, keep_primals=False))


def test_hooks_inside_that_pack_the_same_elements_leave_the_second_derivative_alone() -> None:
    def f(x: Any) -> Any:
        with runtime.autograd.graph.saved_tensors_hooks(lambda t: [t], lambda packed: packed[0]):
            y = x.sin()
        with runtime.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
            return y + x.clone()

    x = runtime.tensor([1.0, 2.0], requires_grad=True)
    (g,) = runtime.autograd.grad(aot_function(f, nop)(x).sum(), x, create_graph=True)
    torch.testing.assert_close(runtime.autograd.grad(g.sum(), x)[0], -x.detach().sin())


def test_a_view_that_is_first_read_under_no_grad_after_a_write_has_a_second_derivative() -> None:
    def program(x: Any, w: Any) -> Any:
        y = x * 1
        view = y[:2]
        y.mul_(w.sum())
        with torch.no_grad():
            view.abs()
        return view * view * w.sum()

    expected, found = (
        derivatives(program, matrices, 2),
        derivatives(aot_function(program, nop), matrices, 2),
    )
    for a, b in zip(expected, found, strict=True):
        assert torch.allclose(unwrap(a), unwrap(b))


def test_what_is_computed_before_a_write_under_no_grad_has_a_second_derivative() -> None:
    def f(x: Any) -> Any:
        y, z = x.exp(), x * 1
        with torch.no_grad():
            z.mul_(2)
        return y, z.detach()

    def make() -> list[Any]:
        return [tensor([0.3, 0.7], requires_grad=True)]

    for a, b in zip(
        derivatives(aot_function(f, nop), make, 2), derivatives(f, make, 2), strict=True
    ):
        torch.testing.assert_close(a, b)
