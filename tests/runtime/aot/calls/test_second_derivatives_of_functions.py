"""Second and third derivatives of compiled programs with custom Functions, whose derivatives no
call of ATen in ``forward`` shows. They are those of torch, or refused with the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import runtime
from runtime import jit
from runtime.aot import aot_function, nop

Program = Callable[[Any], Any]


def three(ctx: Any, g: Any) -> Any:
    return g * 3


def function(forward: Any, backward: Any = three) -> Any:
    """The ``apply`` of a Function with these two methods."""
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made: Any = type("Own", (torch.autograd.Function,), methods)
    return made.apply


def saving_input(ctx: Any, x: Any) -> Any:
    ctx.save_for_backward(x)
    return x**3


def saving_output(ctx: Any, x: Any) -> Any:
    y = x.exp()
    ctx.save_for_backward(y)
    return y


def saving_between(ctx: Any, x: Any) -> Any:
    ctx.between = x.sin()
    return ctx.between.round()


def keeping_attributes(ctx: Any, x: Any) -> Any:
    ctx.x, ctx.y = x, x.round()
    return ctx.y


cube = function(saving_input, lambda ctx, g: g * 3.3 * ctx.saved_tensors[0] ** 2)
step = function(lambda ctx, x: (x > 0).to(x.dtype))


class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def vjp(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        return g * x.cos() + y * g


class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        a, b = x.round(), x.sign() * 2
        ctx.save_for_backward(a, b)
        return a, b

    @staticmethod
    def backward(ctx: Any, ga: Any, gb: Any) -> Any:
        a, b = ctx.saved_tensors
        return ga * b + gb * a


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        return (x * y).round()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        return g * y, g * x * 2


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        whole = x.round()
        ctx.mark_non_differentiable(whole)
        ctx.save_for_backward(whole, x)
        return x * 2, whole

    @staticmethod
    def backward(ctx: Any, g: Any, _: Any) -> Any:
        whole, x = ctx.saved_tensors
        return g * whole * x


class Unmaterialized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(False)
        return x.round(), x.sign()

    @staticmethod
    def backward(ctx: Any, ga: Any, gb: Any) -> Any:
        return (0 if ga is None else ga * 2) + (0 if gb is None else gb * 7)


class DetachedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0].detach()


def under_no_grad(x: Any) -> Any:
    with torch.no_grad():
        y = cube(x)
    return y * x * x


def times_itself(of: Any) -> Program:
    return lambda x: of(x) * x


def inside(of: Any) -> Program:
    return lambda x: of(x * 2) ** 2 * x.sin()


def of_both(of: Any) -> Any:
    def f(x: Any) -> Any:
        a, b = of(x)
        return a * x + b * x * x + a * b

    return f


ONES: dict[str, Any] = {
    "comparison": step,
    "rounding": function(lambda ctx, x: x.round(), lambda ctx, g: g),
    "sign": function(lambda ctx, x: x.sign()),
    "detach": function(lambda ctx, x: x.detach()),
    "data": function(lambda ctx, x: x.data * 2),
    "factory like it": function(lambda ctx, x: torch.ones_like(x) * 2),
    "factory of its sizes": function(lambda ctx, x: torch.full((x.shape[0],), 2.0)),
    "index": function(lambda ctx, x: x.argmax().to(x.dtype).expand_as(x)),
    "integers": function(lambda ctx, x: x.int().to(x.dtype)),
    "region of a clamp": function(lambda ctx, x: x.clamp(-1, 1)),
    "where": function(lambda ctx, x: torch.where(x > 0, 1.0, -1.0)),
    "the input itself": function(lambda ctx, x: x, lambda ctx, g: -g),
    "a view of the input": function(lambda ctx, x: x.view_as(x), lambda ctx, g: -2 * g),
    "the transposed input": function(lambda ctx, x: x[None].t().t()[0]),
    "a saved input": cube,
    "a saved output": function(saving_output, lambda ctx, g: g * ctx.saved_tensors[0] * 1.5),
    "a value between": function(saving_between, lambda ctx, g: g * ctx.between),
    "attributes": function(keeping_attributes, lambda ctx, g: g * ctx.x * ctx.y),
    "not linear": function(lambda ctx, x: x * 1, lambda ctx, g: g * g),
    "a detached factor": DetachedBackward.apply,
    "setup_context, vjp": WithSetup.apply,
}
PROGRAMS: dict[str, Program] = {
    **{name: times_itself(of) for name, of in ONES.items()},
    **{f"{name}, inside": inside(of) for name, of in ONES.items()},
    "nothing else": cube,
    "in a row": lambda x: step(cube(step(x) * x)) * x,
    "of itself": lambda x: cube(cube(x)),
    "two outputs": of_both(Two.apply),
    "one cotangent twice": lambda x: sum(Two.apply(x)) * x,  # type: ignore[no-untyped-call]
    "an output for the caller": of_both(Marked.apply),
    "a missing cotangent": lambda x: Unmaterialized.apply(x)[1] * x,  # type: ignore[no-untyped-call]
    "two inputs": lambda x: Product.apply(x, x.sin()) * x,  # type: ignore[no-untyped-call]
    "one input twice": lambda x: Product.apply(x, x),  # type: ignore[no-untyped-call]
    "a checkpoint": lambda x: checkpoint(lambda x: cube(x) * x.sin(), x, use_reentrant=False),
    "written to afterwards": lambda x: cube(x).add_(x).mul_(x),
    "no_grad around": under_no_grad,
}
COMPILED: dict[str, Callable[[Program], Program]] = {
    "jit": jit,
    "jit of any sizes": lambda f: jit(f, dynamic=True),
    "aot": lambda f: aot_function(f, nop),
}


def derivatives(f: Program, x: Any, grad: Any) -> list[list[float]]:
    """The first three derivatives of the sum of ``f(x)``, up to one that is a constant."""
    found = []
    y = f(x).sum()
    for _ in range(3):
        (g,) = grad(y, x, create_graph=True)
        found.append(g.tolist())
        if not g.requires_grad:
            break
        y = g.sum()
    return found


@pytest.mark.parametrize("how", COMPILED)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_derivatives_are_those_of_torch(name: str, how: str) -> None:
    f = PROGRAMS[name]
    expected = derivatives(f, torch.tensor([0.5, -1.25], requires_grad=True), torch.autograd.grad)
    x = runtime.wrap(torch.tensor([0.5, -1.25]), requires_grad=True)
    found = derivatives(COMPILED[how](f), x, runtime.autograd.grad)
    assert len(found) >= min(2, len(expected))  # a last one may be known to be a constant
    for ours, theirs in zip(found, expected, strict=False):
        assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("which", [0, 1])
def test_a_pass_from_one_of_two_results_gives_the_derivatives_of_torch(which: int) -> None:
    def f(x: Any) -> Any:
        return step(x) * x, cube(x.sin()) * x * x

    def second(f: Any, x: Any, grad: Any) -> Any:
        (g,) = grad(f(x)[which].sum(), x, create_graph=True)
        return grad((g * g).sum(), x)[0].tolist()

    expected = second(f, torch.tensor([0.5, -1.25], requires_grad=True), torch.autograd.grad)
    x = runtime.wrap(torch.tensor([0.5, -1.25]), requires_grad=True)
    assert second(jit(f), x, runtime.autograd.grad) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("of", [step, cube])
def test_a_gradient_penalty_inside_the_program_has_the_derivatives_of_torch(of: Any) -> None:
    def second(wrapped: Any, x: Any, grad: Any) -> Any:
        def f(x: Any) -> Any:
            (g,) = grad((of(x * 2) * x).sum(), x, create_graph=True)
            return (g * g).sum()

        (g,) = grad(wrapped(f)(x), x, create_graph=True)
        return grad((g * g).sum(), x)[0].tolist()

    plain = torch.tensor([0.5, -1.25], requires_grad=True)
    expected = second(lambda f: f, plain, torch.autograd.grad)
    x = runtime.wrap(plain.detach(), requires_grad=True)
    assert second(jit, x, runtime.autograd.grad) == pytest.approx(expected, rel=1e-4)


class Once(DetachedBackward):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0]


class WithoutGrad(DetachedBackward):
    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        with torch.no_grad():
            factor = ctx.saved_tensors[0] * 2
        return g * factor


class Applies(DetachedBackward):
    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * cube(ctx.saved_tensors[0])


class AppliesToCotangent(DetachedBackward):
    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return cube(g)


class Writes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 5


REFUSED = {
    "once_differentiable": (Once, "under no_grad"),
    "no_grad in backward": (WithoutGrad, "under no_grad"),
    "a Function in backward": (Applies, "calls a custom Function"),
    "a Function of the cotangent": (AppliesToCotangent, "calls a custom Function"),
    "a write": (Writes, "what a custom Function returned"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_first_backward_pass_does_not_tell_is_refused_with_the_line(name: str) -> None:
    cls, why = REFUSED[name]

    def f(x: Any) -> Any:
        return cls.apply(x * 1) * x

    x = runtime.wrap(torch.tensor([0.5, -1.25]), requires_grad=True)
    with pytest.raises(RuntimeError, match=f"no second derivative here: .*{why}") as error:
        runtime.autograd.grad(jit(f)(x).sum(), x, create_graph=True)
    assert f"{__file__}:" in str(error.value)
