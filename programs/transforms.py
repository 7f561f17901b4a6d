"""Programs of transforms with the arguments, containers and nestings that users write, by the
target's own functions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import functorch.experimental
import torch
from functorch.einops.rearrange import rearrange as torch_rearrange
from torch import Tensor, nn

from gen.targets.parts import offered
from programs.tools import Results, beside, own, refused


def _func(name: str) -> Any:
    return offered(f"func.{name}", _OTHERWISE.get(name) or getattr(torch.func, name))


def _jacobian(of: Callable[..., Any]) -> Callable[..., Any]:
    """torch's, with keywords for the function and pieces of any size, which change no number. Its
    jacfwd by argument -1 is zero (F83)."""

    def transform(
        f: Callable[..., Any], argnums: Any = 0, *, chunk_size: int | None = None, **options: Any
    ) -> Callable[..., Any]:
        torch._assert(chunk_size is None or chunk_size > 0, "no piece")
        return lambda *args, **kwargs: of(
            partial(f, **kwargs), len(args) - 1 if argnums == -1 else argnums, **options
        )(*args)

    return transform


def _linearize_by_jvp(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """By a jvp for each call, so that nothing of the function is kept."""
    return f(*primals), lambda *tangents: torch.func.jvp(f, primals, tangents)[1]


_OTHERWISE: dict[str, Callable[..., Any]] = {
    "jacrev": _jacobian(torch.func.jacrev),
    "jacfwd": _jacobian(torch.func.jacfwd),
    "linearize": _linearize_by_jvp,
    "functionalize": lambda f, remove="": f,
}


# --- Jacobians ------------------------------------------------------------------------------------


def jacobians_by_argument(x: Tensor) -> Results:
    """By one argument, several, the last one and a tuple of one, where the function
    returns a dictionary."""
    jacrev, jacfwd = _func("jacrev"), _func("jacfwd")

    def f(a: Tensor, b: Tensor, *, scale: float = 1.0) -> dict[str, Tensor]:
        return {"sum": (a.sin() * b).sum(1) * scale, "one": (a * a).sum() + b[0, 0]}

    y = x.cos()
    found: list[Any] = []
    for argnums in (0, 1, -1, (1, 0), (0,)):
        for jacobian in (jacrev, jacfwd):
            found.append(jacobian(f, argnums)(x, y))
    return *found, jacrev(f)(x, y, scale=2.0), jacfwd(f, 1)(x, y, scale=3.0)


def jacobians_in_chunks(x: Tensor) -> Results:
    """Some rows or columns at a time, one by one, and more than there are."""
    f = lambda a: (a.sin() @ a, a.sum(0))  # noqa: E731
    found = [_func("jacrev")(f, chunk_size=size)(x) for size in (1, 2, 5, 12, 100)]
    return *found, *(_func("jacfwd")(f, chunk_size=size)(x) for size in (1, 2, 9, 100))


def jacobians_beside_others(x: Tensor) -> Results:
    """Jacobians with further results, which are not differentiated; and of numbers, vectors of one
    element and pairs."""
    jacrev, jacfwd = _func("jacrev"), _func("jacfwd")
    f = lambda a: ((a.sin().sum(), a[0]), {"kept": a * 3, "rows": [a.sum(1)]})  # noqa: E731
    found = [*jacrev(f, has_aux=True)(x), *jacfwd(f, has_aux=True)(x)]
    for g in (lambda a: a.prod(), lambda a: a.sum().reshape(1), lambda a: [a[0], a[0, 0]]):
        found += [
            jacrev(g)(x),
            jacfwd(g)(x),
            jacrev(g)(x[0, :1]) if g(x) is None else jacrev(g)(x[:1]),
        ]
    number = x.sum()
    return (
        *found,
        jacrev(torch.sin)(number),
        jacfwd(torch.cos)(number),
        jacrev(lambda a: a * x[0])(number),
        jacfwd(lambda a: a * x[0])(number),
    )


def jacobians_of_trees(x: Tensor) -> Results:
    """By a dictionary with a list in it: blocks by output and then by leaf."""
    f = lambda p: (p["w"] @ p["rest"][0], p["rest"][1] * p["w"].sum())  # noqa: E731
    p = {"w": x[:2], "rest": [x[0], x[1, :2]]}
    return _func("jacrev")(f)(p), _func("jacfwd")(f)(p)


def hessians(x: Tensor) -> Results:
    """Second derivatives by one argument and by two, and each nesting of both modes."""
    hessian, jacrev, jacfwd = _func("hessian"), _func("jacrev"), _func("jacfwd")
    f = lambda a, b: (a.sin() * b.exp()).sum() * a[0]  # noqa: E731
    a, b = x[0], x[1] / 4
    found = [hessian(f)(a, b), hessian(f, 1)(a, b), *hessian(f, (0, 1))(a, b)]
    return (
        *found,
        jacrev(jacfwd(f))(a, b),
        jacrev(jacrev(f, 1), 0)(a, b),
        jacfwd(jacfwd(f, -1))(a, b),
    )


def jacobians_misused(x: Tensor) -> Results:
    """What none of the Jacobians takes."""
    jacrev, jacfwd, hessian = _func("jacrev"), _func("jacfwd"), _func("hessian")
    z = x.detach().to(torch.complex64)
    flags = refused(
        lambda: jacrev(torch.sin, chunk_size=0),
        lambda: jacrev(torch.sin)(z),
        lambda: jacrev(lambda a: a * 1j)(x),
        lambda: jacfwd(torch.sin)(z),
        lambda: jacfwd(lambda a: a * 1j)(x),
        lambda: jacfwd(torch.sin, chunk_size=0)(x),
        lambda: jacrev(torch.sin, 1)(x),
        lambda: jacrev(torch.mul, (0, 0))(x, x),
        lambda: jacfwd(torch.mul, -3)(x, x),
        lambda: hessian(torch.mul, ())(x, x),
        lambda: jacrev(torch.sin, has_aux=True)(x),
        lambda: jacfwd(lambda a: (a, a, a), has_aux=True)(x),
        lambda: jacrev(torch.sin)(torch.arange(3)),
        lambda: jacfwd(torch.sin)(torch.arange(3)),
        lambda: jacrev(torch.sin, "0")(x),
        lambda: jacrev(torch.sin, (0.0,))(x),
    )
    return beside(x, jacrev(torch.sin, chunk_size=1)(x[0]), *flags)


# --- gradients ------------------------------------------------------------------------------------


def gradients_by_argument(x: Tensor) -> Results:
    """Gradients by a tree, several arguments and the last one, with further results
    and with the value."""
    grad, both = _func("grad"), _func("grad_and_value")

    def f(p: dict[str, Tensor], b: Tensor, *, scale: float = 1.0) -> Tensor:
        return (p["w"] @ b).sin().sum() * scale + p["c"].sum()

    def g(p: dict[str, Tensor], b: Tensor) -> tuple[Tensor, dict[str, Any]]:
        return f(p, b), {"rows": p["w"] * b, "pair": (b, [p["c"]])}

    p, y = {"w": x, "c": x[0]}, x.cos()
    found = [
        grad(f)(p, y),
        grad(f, 1)(p, y, scale=2.0),
        grad(f, (1, 0))(p, y),
        grad(f, -1)(p, y),
        grad(f, (0,))(p, y),
    ]
    return (
        *found,
        both(f)(p, y),
        grad(g, has_aux=True)(p, y),
        both(g, (1,), has_aux=True)(p, y),
        both(f, -2)(p, y),
    )


def pullbacks(x: Tensor) -> Results:
    """Pullbacks that are called several times, of trees, with further results, and where an output
    does not depend on an input."""
    vjp = _func("vjp")
    outputs, pull = vjp(lambda a, b: {"a": a.sin() @ b, "n": [a.sum(), b.new_ones(2)]}, x, x.cos())
    ones = {"a": torch.ones_like(x), "n": [x[0, 0], x[0, :2]]}
    first = pull(ones)
    again = pull({"a": x, "n": [x[1, 1] * 0, x[0, :2]]})
    _, apart, kept = vjp(lambda a, b: (b * 2, (a, b.sum())), x, x[0], has_aux=True)
    return outputs, first, again, apart(x[2]), kept, vjp(torch.sin, x)[1](x, retain_graph=False)


def pullbacks_of_pullbacks(x: Tensor) -> Results:
    """A pullback that is differentiated, by its cotangent and by its point, and one that is
    mapped."""
    vjp, vmap, grad = _func("vjp"), _func("vmap"), _func("grad")

    def f(a: Tensor, c: Tensor) -> Tensor:
        return vjp(lambda t: t.sin() * t.sum(), a)[1](c)[0]  # type: ignore[no-any-return]

    _, pull = vjp(f, x, x.cos())
    _, of_rows = vjp(lambda a: a.sin() * a.sum(), x[0])
    third = grad(lambda a: grad(lambda b: grad(lambda c: (c**4).sum())(b).sum())(a).sum())(x)
    return pull(x), vmap(of_rows)(x), third


def pushed(x: Tensor) -> Results:
    """Tangents of trees, with further results, nested, and of outputs that do not
    depend on an input."""
    jvp = _func("jvp")
    f = lambda p, b: {"out": (p["w"] * b).sin(), "sum": [p["w"].sum(), b * 2]}  # noqa: E731
    found = [*jvp(f, ({"w": x}, x[0]), ({"w": x.cos()}, x[1]))]
    found += jvp(lambda a: (a.exp(), {"kept": a * 2}), (x,), (x,), has_aux=True)
    found += jvp(lambda a: (a.sin(), x[0] * 1), (x,), (x,))
    found += jvp(lambda a: jvp(torch.sin, (a,), (a * a,))[1], (x,), (x.cos(),))
    found += jvp(lambda a: jvp(lambda b: a * b.exp(), (x,), (torch.ones_like(x),))[1], (x,), (x,))
    found += jvp(lambda a: a.t(), (x,), (x.cos(),))
    return *found, jvp(lambda a: a.expand(2, 3, 3), (x,), (x,))[1].contiguous()


def gradients_misused(x: Tensor) -> Results:
    """What the gradients and the pushforward do not take."""
    grad, vjp, jvp, both = _func("grad"), _func("vjp"), _func("jvp"), _func("grad_and_value")
    integers, z = torch.arange(3), x.detach().to(torch.complex64)
    _, pull = vjp(lambda a: (a.sin(), a.cos()), x)
    flags = refused(
        lambda: grad(torch.sin)(x),  # no number
        lambda: grad(lambda a: (a.sum(), a))(x),
        lambda: grad(lambda a: a.sum(), has_aux=True)(x),
        lambda: grad(lambda a: (a.sum(), a, a), has_aux=True)(x),
        lambda: grad(lambda a: a.sum())(integers),
        lambda: grad(lambda a: a.sum())(z),
        lambda: grad(lambda a: a.sum())(1.5),
        lambda: grad(lambda a: a.sum(), 1)(x),
        lambda: grad(lambda a, b: (a * b).sum(), (0, -2))(x, x),
        lambda: grad(lambda a: a.sum(), ())(x),
        lambda: both(lambda a: 2.0)(x),
        lambda: vjp(lambda a: (), x),
        lambda: vjp(lambda a: None, x),
        lambda: vjp(lambda a: (a, 1.0), x),
        lambda: vjp(lambda a: a.argmax(), x),
        lambda: vjp(torch.sin, x, has_aux=True),
        lambda: pull(x),
        lambda: pull((x, x[0])),
        lambda: pull((x, z)),
        lambda: jvp(torch.sin, x, x),
        lambda: jvp(torch.sin, (x,), (x, x)),
        lambda: jvp(torch.sin, (x,), (x[0],)),
        lambda: jvp(torch.sin, (x,), (1.0,)),
        lambda: jvp(torch.sin, (), ()),
        lambda: jvp(lambda a: (), (x,), (x,)),
        lambda: jvp(torch.sin, (integers,), (integers,)),
        lambda: jvp(lambda a: (a, x * 2), (x,), (x,), strict=True),
        lambda: jvp(torch.sin, (x,), (x,), has_aux=True),
    )
    return beside(x, pull((x, x)), *flags)


# --- linearize ------------------------------------------------------------------------------------


def linearized(x: Tensor) -> Results:
    """Pushforwards that are called again, mapped, of trees, and where an output does not
    depend on the input."""
    linearize, vmap = _func("linearize"), _func("vmap")
    output, push = linearize(
        lambda p, b: {"a": (p["w"] @ b).exp(), "b": [b.sin(), x.new_ones(2)]}, {"w": x / 3}, x[0]
    )
    first, again = push({"w": x}, x[1]), push({"w": x.cos()}, x[2] * 0)
    _, of_rows = linearize(lambda a: a.sin() * a.sum(), x[0])
    tangent = x[1] * 1
    same = linearize(lambda a: a * 1, x[0])[1](tangent)
    same.mul_(3)
    return (
        output,
        first,
        again,
        vmap(of_rows)(x),
        tangent,
        same,
        linearize(lambda a: a.expand(2, 3), x[0])[1](tangent).contiguous(),
    )


def linearized_writes(x: Tensor) -> Results:
    """Of programs that write to what their derivatives need, by views and in place."""

    def f(a: Tensor) -> Tensor:
        b = a.sin()
        c = b * b
        b[0].mul_(a[1])
        b.add_(c)
        c.zero_()
        return b * c + b

    output, push = _func("linearize")(f, x.detach())
    return beside(x, output, push(x.detach()), push(x.detach().cos()))


def linearized_misused(x: Tensor) -> Results:
    linearize = offered("func.linearize", torch.func.linearize)
    _, push = linearize(torch.sin, x)
    flags = refused(
        lambda: linearize(torch.sin, 1.0),
        lambda: push(x, x),
        lambda: push(x[0]),
        lambda: push(1.0),
        lambda: push(x.float()),
    )
    return beside(x, push(x).detach(), *flags)


# --- vmap -----------------------------------------------------------------------------------------


def mapped_places(x: Tensor) -> Results:
    """Batches at other dimensions of arguments and results, of trees, and shared ones."""
    vmap = _func("vmap")
    y = torch.stack([x, x.sin(), x.cos(), x.exp()], 1)  # (3, 4, 3)
    f = lambda p, k: {"a": p["w"] * p["rest"][0] + k, "b": [p["w"].sum(), p["rest"][1] * 2]}  # noqa: E731
    p = {"w": y, "rest": [x, x[0]]}
    found = [
        vmap(f, in_dims=({"w": 1, "rest": [None, None]}, None), out_dims={"a": -1, "b": [0, 0]})(
            p, 2
        )
    ]
    found += [
        vmap(f, in_dims=({"w": 0, "rest": [0, 0]}, None), out_dims={"a": 2, "b": [0, 0]})(
            {"w": y, "rest": [x, x[0]]}, 3
        )
    ]
    found += [
        vmap(torch.dot, in_dims=(1, -1))(x, x),
        vmap(torch.mul, in_dims=(-2, None), out_dims=1)(y, x),
    ]
    found += [
        vmap(lambda a: (a, x), out_dims=(1, None))(x),
        vmap(lambda a: a, out_dims=(1,))(x),
        vmap(lambda a: (a.t(),), (1,), (2,))(y),
    ]
    return (
        *found,
        vmap(vmap(torch.dot, (None, 0)), (0, None))(x, x),
        vmap(vmap(torch.sub, 1, -1), 0, 1)(y, y.cos()),
    )


def mapped_in_chunks(x: Tensor) -> Results:
    """In pieces that divide the batch and that do not, of one element, larger than it, and with a
    number of pieces."""
    vmap, chunked = _func("vmap"), offered("func.chunk_vmap", functorch.experimental.chunk_vmap)
    y = torch.cat([x, x.sin(), x.cos()])[:7]  # (7, 3)
    f = lambda a, b: (a.sin() * b, a.sum())  # noqa: E731
    found = [vmap(f, (0, None), (1, 0), chunk_size=size)(y, x[0]) for size in (1, 2, 3, 7, 9)]
    found += [chunked(f, (0, None), (-1, 0), chunks=chunks)(y, x[0]) for chunks in (1, 2, 3)]
    return *found, _func("grad")(lambda a: vmap(f, (0, None), chunk_size=2)(a, a[0])[0].sum())(x)


def mapped_draws(x: Tensor) -> Results:
    """One draw for all elements, another one for each, alone and in pieces, and forms of
    draws that write."""
    vmap = _func("vmap")

    def f(a: Tensor) -> Results:
        return (
            a + torch.rand(3, dtype=a.dtype),
            torch.rand_like(a),
            nn.functional.dropout(a, 0.5),
            torch.randint(9, (2,)),
            torch.randperm(4),
        )

    def g(a: Tensor) -> Results:
        b = a.clone()
        return (
            b.uniform_(),
            torch.bernoulli(torch.full_like(a, 0.5)),
            torch.normal(a, 1.0),
            torch.zeros(2).normal_(),
        )

    same = vmap(f, randomness="same")(x)
    written = vmap(lambda a: a.new_empty(3).exponential_() + a, randomness="same")(x)
    pieces = vmap(lambda a: a + torch.rand(3, dtype=a.dtype), randomness="same", chunk_size=1)(x)
    other = vmap(f, randomness="different")(x)
    inner = vmap(
        lambda a: vmap(lambda b: b + torch.rand((), dtype=b.dtype), randomness="same")(a),
        randomness="different",
    )(x)
    flags = refused(
        lambda: vmap(f)(x),
        lambda: vmap(g)(x),
        lambda: vmap(g, randomness="same")(x),
        lambda: vmap(f, randomness="often"),
    )
    return (
        *same,
        written,
        pieces,
        *(t.shape[0] for t in other),
        (other[0][0] - x[0] == other[0][1] - x[1]).all(),
        inner.shape[0],
        *flags,
    )


def mapped_numbers(x: Tensor) -> Results:
    """Numbers, indices and branches that are the same for all elements, and places that differ."""
    vmap = _func("vmap")
    places = torch.tensor([2, 0, 1])
    found = [
        vmap(lambda a, i: a[i], (0, 0))(x, places),
        vmap(lambda i: x[i])(places),
        vmap(lambda a, i: a.index_select(0, i.reshape(1)), (0, 0))(x, places),
        vmap(lambda a, i: a.index_put((i,), a.sum()), (0, 0))(x, places),
        vmap(lambda a: a * len(a) + a.dim() + a.numel())(x),
        vmap(lambda a: a if a.shape[0] == 3 else -a)(x),
        vmap(lambda a: torch.where(a.sum() > 0, a, -a))(x),
    ]
    flags = refused(
        lambda: vmap(lambda a: a if a.sum() > 0 else -a)(x),
        lambda: vmap(lambda a: a.nonzero())(x),
        lambda: vmap(lambda a: a[a > 0])(x),
        lambda: vmap(lambda a: a.sum().item())(x),
    )
    return *found, *flags


def mapped_writes(x: Tensor) -> Results:
    """Writes to elements, to their views and to what was made inside; and those
    that no batch fits."""
    vmap = _func("vmap")

    def f(a: Tensor, b: Tensor) -> Results:
        c = a.new_zeros(3)
        c[1:] += b
        d = a.clone()
        d[0] = b.sum()
        d[1:].mul_(b)
        e = torch.stack([a, a.sin()])
        e.t()[0].copy_(b)
        return (
            c,
            d,
            e,
            torch.zeros_like(a).index_add_(0, torch.tensor([0, 2]), b),
            a.clone().masked_fill_(a > 0, 2.0),
        )

    y = x * 1
    vmap(lambda a: a.mul_(2))(y)
    shared = x[0] * 1
    flags = refused(
        lambda: vmap(lambda a: shared.add_(a))(x),
        lambda: vmap(lambda a: torch.zeros(3, dtype=a.dtype).add_(a))(x),
    )
    return *vmap(f)(x, x[:, :2]), y, *flags


def mapped_misused(x: Tensor) -> Results:
    """Dimensions and results that fit nothing."""
    vmap, chunked = _func("vmap"), offered("func.chunk_vmap", functorch.experimental.chunk_vmap)
    flags = refused(
        lambda: vmap(torch.sin)(),
        lambda: vmap(torch.sin, None)(x),
        lambda: vmap(torch.sin, [0])(x),
        lambda: vmap(torch.mul, (0,))(x, x),
        lambda: vmap(torch.mul, (None, None))(x, x),
        lambda: vmap(torch.mul, (0, 2))(x, x),
        lambda: vmap(torch.mul, (-3, 0))(x, x),
        lambda: vmap(torch.mul, ("0", 0))(x, x),
        lambda: vmap(torch.mul)(x, 2.0),
        lambda: vmap(torch.mul)(x, x[:2]),
        lambda: vmap(lambda a: 2.0)(x),
        lambda: vmap(lambda a: (a, None))(x),
        lambda: vmap(lambda a: a, out_dims=2)(x),
        lambda: vmap(lambda a: a, out_dims=None)(x),
        lambda: vmap(lambda a: a, out_dims=(0, 0))(x),
        lambda: vmap(lambda a: (a, a), out_dims=("0", 0))(x),
        lambda: vmap(torch.sin, chunk_size=0),
        lambda: chunked(torch.sin, chunks=0)(x),
        lambda: vmap(torch.sin)(x.sum()),
        lambda: vmap(lambda a: a @ a[:2])(x),
    )
    empty = vmap(lambda a: (a.sin(), a.sum()), out_dims=(1, 0))(x[:0])
    return beside(x, *empty, *flags)


# --- others ---------------------------------------------------------------------------------------


def rearranged(x: Tensor) -> Results:
    """Axes that are exchanged, joined, split and dropped."""
    rearrange = offered("func.rearrange", torch_rearrange)
    y = torch.stack([x, x.sin()])
    found = [
        rearrange(y, "a b c -> c (a b)"),
        rearrange(y, "a b c -> b a c"),
        rearrange(y, "a (b c) d -> (d b) a c", b=3),
    ]
    found += [rearrange(y, "... c -> c ..."), rearrange(y, "a ... -> (...) a")]
    flags = refused(
        lambda: rearrange(x, "a b c -> a b c"),
        lambda: rearrange(x, "a b -> a"),
        lambda: rearrange(x, "(a b) c -> a b c", a=2),
        lambda: rearrange(x, "a a -> a"),
        lambda: rearrange(x, "a b"),
    )
    return *found, *flags


def functional_programs(x: Tensor) -> Results:
    """Programs without writes and views: of arguments that are written to, of views of views, and
    inside of other transforms."""
    functionalize, vmap, grad = _func("functionalize"), _func("vmap"), _func("grad")

    def f(a: Tensor) -> Results:
        b = a.clone()
        b[0].add_(1)
        b.t()[1:].mul_(2)
        c = b.view(-1)
        c[::2].zero_()
        b.unsqueeze_(0).transpose_(1, 2)
        return b, c, b[0, 1]

    def g(a: Tensor) -> Tensor:
        a.mul_(2)
        return a.sum()

    y = x * 1
    total = functionalize(g)(y)
    without_views = functionalize(f, remove="mutations_and_views")(x)
    mapped = vmap(functionalize(lambda a: f(a.expand(3, 3))))(x)
    return (
        *functionalize(f)(x),
        *without_views,
        y,
        total,
        *mapped,
        grad(lambda a: functionalize(f)(a)[0].sin().sum())(x),
    )


def different_levels(x: Tensor) -> Results:
    """Functions that close over values of outer transforms, where a derivative of one may not be
    taken for that of the other."""
    grad, jvp, vmap = _func("grad"), _func("jvp"), _func("vmap")
    confused = grad(lambda a: (a * grad(lambda b: (a * b).sum())(a.detach() * 2)).sum())(x)
    inner = vmap(
        lambda row: grad(lambda b: (b * vmap(lambda c: c * row)(x).sum(0)).sin().sum())(row)
    )(x)
    constant = grad(lambda a: jvp(lambda b: a, (x,), (x,))[1].sum() + (a * a).sum())(x)
    kept: list[Tensor] = []
    grad(lambda a: (kept.append(a.detach() * 2), (a * a).sum())[1])(x)  # type: ignore[func-returns-value]
    return (
        confused,
        inner,
        constant,
        kept[0],
        grad(lambda a: (a * a.detach() + a.detach()).sum())(x),
    )


def attention_by_mask(x: Tensor) -> Results:
    """The derivative, by a mask that is added to the scores, of the gradient of
    attention by its query."""
    vjp = _func("vjp")
    query, key, value = x.sin()[None, None], x.cos()[None, None], x[None, None]

    def by_query(mask: Tensor) -> Tensor:
        def attention(query: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

        out, pull = vjp(attention, query)
        found: Tensor = pull(out.cos())[0]
        return found

    # torch's kernel has no second derivative
    with nullcontext() if own("unwrap") else nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        first, pull = vjp(by_query, x * 0.3)
        return first, *pull(first.cos())
