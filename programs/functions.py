"""Custom functions: what their context knows and does, in the session, under transforms and inside
of compiled parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gen.targets.parts import compiled, offered
from programs.tools import Results, beside, grad_of, leaf_of, refused, transform


def _gradient() -> Any:
    return offered("autograd.grad", torch.autograd.grad)


class Scaled(Function):
    """x k and y, where only what is needed is computed; k is a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        ctx.k = k
        ctx.set_materialize_grads(False)
        return x * y * k, y + 1

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> Any:
        x, y = ctx.saved_tensors
        of_x = None if g is None or not ctx.needs_input_grad[0] else g * y * ctx.k
        of_y = h if g is None else g * x * ctx.k if h is None else g * x * ctx.k + h
        return of_x, None, of_y if ctx.needs_input_grad[2] else None


class Written(Function):
    """2 x, written over it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


class Sorted(Function):
    """Values in order and their places, which have no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, places = x.sort(0)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        return values, places

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
        return torch.zeros_like(g).scatter(0, ctx.saved_tensors[0], g)


class Sine(Function):
    """sin x with a context that is set up apart, a rule for batches and one for tangents."""

    @staticmethod
    def forward(x: Tensor, k: int) -> Tensor:
        return (x * k).sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, ctx.k = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * (x * ctx.k).cos() * ctx.k, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: None) -> Tensor:
        (x,) = ctx.saved_tensors
        return t * (x * ctx.k).cos() * ctx.k  # type: ignore[no-any-return]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, k: int) -> Any:
        return Sine.apply(x, k), in_dims[0]  # type: ignore[no-untyped-call]


class Generated(Function):
    """x³ y, whose rule for batches is made of its other parts."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x**3 * y, x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        x, y, square = ctx.saved_tensors
        return g * 3 * square * y + h * 2 * x, g * square * x

    @staticmethod
    def jvp(ctx: Any, s: Tensor, t: Tensor) -> Any:
        return s * 0, s * 0


class Viewing(Function):
    """A view of the argument, and the argument itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.view_as(x), x[0] * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
        out = g.clone()
        out[0] += 2 * h
        return out


class Recorded(Function):
    """exp x, with a gradient by a pass inside of the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.given = x.detach().requires_grad_()
            ctx.out = ctx.given.exp()
            ctx.grad = _gradient()  # the backward may run outside of the stage
        return ctx.out.detach()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return ctx.grad(ctx.out, ctx.given, g)[0]


class Wrong(Function):
    """Gradients of a wrong number, or a wrong shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: int) -> Tensor:
        ctx.way = way
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return [
            g,
            (g, None, None),
            (g[0], None),
            (g, g),
            (1.0, None),
            (g.new_ones(7), None),
            (g * 1, None),
        ][ctx.way]


def contexts(x: Tensor) -> Results:
    """Which inputs need a gradient, outputs that are not used, numbers among the arguments,
    and what is saved."""
    a, b = leaf_of(x), leaf_of(x.cos())
    first, second = Scaled.apply(x, 2.0, x.cos())  # type: ignore[no-untyped-call]
    found = [
        first,
        second,
        Scaled.apply(x, 3.0, b.detach())[0],  # type: ignore[no-untyped-call]
        Scaled.apply(a.detach(), 3.0, x)[1],  # type: ignore[no-untyped-call]
    ]
    y, z = Scaled.apply(a, 2.0, b)  # type: ignore[no-untyped-call]
    found += [
        *grad_of(z.sum(), [b], retain_graph=True),
        *grad_of(y.sum(), [a, b], retain_graph=True),
        *grad_of((y * z).sum(), [a]),
    ]
    node: Any = Scaled.apply(a, 2.0, b)[0].grad_fn  # type: ignore[no-untyped-call]
    flags = [
        len(node.saved_tensors),
        node.k,
        node.needs_input_grad == (True, False, True),
        len(node.next_functions),
        type(node).__name__ == "ScaledBackward",
    ]
    (twice,) = grad_of(Scaled.apply(a, 2.0, b)[0].square().sum(), a, create_graph=True)  # type: ignore[no-untyped-call]
    return *found, *flags, *grad_of(twice.sum(), [a, b])


def writes_and_views(x: Tensor) -> Results:
    """Arguments that are written to, through views as well, outputs that are views, and
    integer outputs."""
    y = x * 1
    out = Written.apply(y)  # type: ignore[no-untyped-call]
    z = x * 1
    part = Written.apply(z[0])  # type: ignore[no-untyped-call]
    values, places = Sorted.apply(x)  # type: ignore[no-untyped-call]
    same, row = Viewing.apply(x * 1)  # type: ignore[no-untyped-call]
    a = leaf_of(x)
    (first,) = grad_of(Sorted.apply(a)[0].square().sum(), a, create_graph=True)  # type: ignore[no-untyped-call]
    flags = [
        out is y,
        y._version,
        part._is_view(),
        places.requires_grad,
        same._is_view(),
        places.dtype == torch.int64,
        first.requires_grad,
    ]
    bad = refused(
        lambda: Written.apply(leaf_of(x)),  # type: ignore[no-untyped-call]
        lambda: grad_of(first.sum(), a),
        lambda: same.mul_(2),
    )
    return y, z, values, places, same, row, *flags, *bad, first.detach()


def under_transforms(x: Tensor) -> Results:
    """Batches by a rule and by a generated one, tangents, gradients of gradients and Jacobians."""
    vmap, grad, jvp, jacrev = (transform(n) for n in ("vmap", "grad", "jvp", "jacrev"))
    f = lambda a: Sine.apply(a, 2)  # type: ignore[no-untyped-call]  # noqa: E731
    g = lambda a, b: Generated.apply(a, b)[0] + Generated.apply(a, b)[1]  # type: ignore[no-untyped-call]  # noqa: E731
    found: list[Any] = [
        vmap(f)(x),
        vmap(f, 1, 1)(x),
        vmap(grad(lambda a: f(a).sum()))(x),  # type: ignore[no-untyped-call]
        jacrev(f)(x[0]),
        *jvp(f, (x,), (x.cos(),)),
    ]
    found += [
        vmap(g, (0, None))(x, x[0]),
        vmap(grad(lambda a, b: g(a, b).sum(), (0, 1)))(x, x.sin()),  # type: ignore[no-untyped-call]
        grad(lambda a: grad(lambda b: f(b).sum())(a).sum())(x),  # type: ignore[no-untyped-call]
    ]
    found += [
        vmap(lambda a: jvp(f, (a,), (a,))[1])(x),
        vmap(lambda a: vmap(f)(torch.stack([a, a * 2])))(x),
        jacrev(lambda a: g(a, x[0]))(x[1]),  # type: ignore[no-untyped-call]
    ]
    return *found, f(x), g(x, x.cos())  # type: ignore[no-untyped-call]


def inside_parts(x: Tensor) -> Results:
    """The same functions inside of compiled functions."""
    parts = [
        compiled(lambda a: Scaled.apply(a.sin(), 2.0, a.cos())),  # type: ignore[no-untyped-call]
        compiled(lambda a: Sine.apply(a * 2, 3).exp()),  # type: ignore[no-untyped-call]
        compiled(lambda a: Generated.apply(a, a.sin())),  # type: ignore[no-untyped-call]
        compiled(lambda a: Sorted.apply(a * 2)[0]),  # type: ignore[no-untyped-call]
        compiled(lambda a: Written.apply(a * 3) + 1),  # type: ignore[no-untyped-call]
    ]
    found: list[Any] = []
    for a in (x, x.cos(), x * 0.5):
        for part in parts:
            made = part(a)
            found += made if isinstance(made, tuple) else [made]
    return tuple(found)


def passes_inside(x: Tensor) -> Results:
    """A pass inside of a backward, in a chain of functions, and a function of no tensor
    that requires grad."""
    y = Recorded.apply(Recorded.apply(x / 9) / 9)  # type: ignore[no-untyped-call]
    plainly = Recorded.apply(x.detach())  # type: ignore[no-untyped-call]
    return (
        y,
        plainly,
        plainly.requires_grad,
        Scaled.apply(x.detach(), 2.0, x.detach())[0].grad_fn is None,  # type: ignore[no-untyped-call]
    )


def functions_misused(x: Tensor) -> Results:
    """Gradients of wrong numbers and shapes, calls without a class, and what a context refuses."""
    a = leaf_of(x)

    class Old(Function):
        def forward(self, t: Tensor) -> Tensor:  # type: ignore[override]
            return t

    class Dirty(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.mark_dirty(t)
            return t * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    class Saving(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(3.0)
            return t * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    class Missing(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            return t * 2

    fine = Wrong.apply(a, 6)  # type: ignore[no-untyped-call]
    fine.sum().backward()
    flags = refused(
        *(lambda way=way: Wrong.apply(a, way).sum().backward() for way in range(6)),  # type: ignore[no-untyped-call]
        lambda: Old()(a),  # type: ignore[no-untyped-call]
        lambda: Saving.apply(a),  # type: ignore[no-untyped-call]
        lambda: Missing.apply(a).sum().backward(),  # type: ignore[no-untyped-call]
        lambda: Dirty.apply(a * 1),  # type: ignore[no-untyped-call]
        lambda: transform("vmap")(lambda t: Scaled.apply(t, 2.0, t)[0])(x),  # type: ignore[no-untyped-call]
        lambda: transform("jvp")(lambda t: Scaled.apply(t, 2.0, t)[0], (x,), (x,)),  # type: ignore[no-untyped-call]
    )
    return beside(x, fine.detach(), *flags)
