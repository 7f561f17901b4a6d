"""More programs with compiled parts: what memory results and arguments share, which results
are used, classes of tensors, and graphs for any size. Each part is called several times, as
in :mod:`programs.boundaries`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.two_tensor import TwoTensor

from gen.targets.parts import compiled, offered
from programs.tools import Results, beside, own, own_refused, plain, refused

F = nn.functional


def _leaf(t: Tensor) -> Tensor:
    """`t` as a leaf, of the session if that runs."""
    wrap = own("wrap")
    return t.clone().requires_grad_() if wrap is None else wrap(t.clone(), True)


def _turns(f: Callable[..., Any], *groups: Any) -> Results:
    """The results of a compiled function for each group of arguments, some of them twice."""
    run, found = compiled(f), list[Any]()
    for group in (*groups, *groups[:2]):
        made = run(*(group if isinstance(group, tuple) else (group,)))
        found += made if isinstance(made, tuple) else [made]
    return tuple(found)


# --- memory ---------------------------------------------------------------------------------------


def results_in_places(x: Tensor) -> Results:
    """Results that are views with other steps, of results and of arguments, detached ones, and
    parts of lists of views."""

    def f(a: Tensor) -> Results:
        b = a.sin()
        first, second = b.split([1, 2])
        low, high = a.unbind(1)[:2]
        return (
            first,
            second,
            low,
            high,
            b.detach(),
            a.detach()[0],
            b.unfold(0, 2, 1),
            torch.view_as_real(torch.complex(b, a))[..., 0],
            a[None].expand(2, 3, 3),
        )

    run, found = compiled(f), list[Any]()
    for factor in (1.0, 2.0, 3.0):
        y = x * factor
        made = run(y)
        found += [t * 1 for t in made]
        found += (
            [t._is_view() for t in made]
            + [t.requires_grad for t in made]
            + [t.stride() for t in made]
            + [made[2]._base is y]
        )
        found += [made[6] * 1, made[8] * 1, y * x]
    return tuple(found)


def copies_of_parts(x: Tensor) -> Results:
    """Views of copies, which begin their memory, of parts, which begin in the middle of that of
    the whole; beside views of the first part."""

    def f(a: Tensor) -> Results:
        whole = torch.stack([a, a.sin(), a.cos()])
        rows = [part.clone()[0] + whole[0][0] for part in whole]
        turned = whole[1].clone().t()[0] * whole[0].t()[0]
        return *rows, turned, whole[2].neg().neg()[1] - whole[0][1]

    run, found = compiled(f), list[Any]()
    for factor in (1.0, 2.0, 0.5):
        found += run(x * factor)
    return tuple(found)


def writes_in_places(x: Tensor) -> Results:
    """Assignments by masks and lists, ``out=``, chains of views of views, and forms of many
    tensors, to arguments and inside."""

    def f(a: Tensor, b: Tensor) -> Results:
        c = b.clone()
        c[b.detach() > 0] = 0.5
        c[:, [0, 2]] = a[:, :2].detach() * 2
        c.t()[1:].view(2, 3)[0].mul_(a[0] * 1)
        d = torch.zeros_like(b)
        torch.add(b.detach(), 1, out=d)
        a[1:][:, 1:].diagonal().fill_(3)
        a.masked_fill_(b.detach() < -1, 2.0).clamp_(max=2)
        torch._foreach_mul_([a, c], 2.0)
        a.index_add_(0, torch.tensor([0, 0]), b[:2])
        return c, d, c.cumsum(0).clamp_(min=0)

    run, found = compiled(f), list[Any]()
    for factor in (1.0, 2.0, 0.5):
        a, b = x * factor, x.cos()
        found += [*run(a, b), a, b, a._version]
    return tuple(found)


def geometry_in_place(x: Tensor) -> Results:
    """Arguments and inner tensors that get other sizes, strides, memory or data."""

    def f(a: Tensor, b: Tensor) -> Results:
        c = a * 1
        c.unsqueeze_(0).transpose_(0, 1).squeeze_(1)
        d = c.detach().clone()
        e = torch.empty(0, dtype=a.dtype)
        e.set_(d.detach())  # type: ignore[call-overload]
        b.mul_(a.detach())
        a.swapaxes_(0, 1)
        return c, d, e, a.sum(0)

    run, found = compiled(f), list[Any]()
    for _ in range(3):
        a, b = x * 1, x.detach().cos()
        made = run(a, b)
        found += [*made, a, b, a.stride()]
    return tuple(found)


# --- gradients of some results --------------------------------------------------------------------


def absent_cotangents(x: Tensor) -> Results:
    """Passes from one result at a time through sums, differences, shared parts, views and writes of
    the backward graph."""

    def f(a: Tensor, b: Tensor) -> Results:
        c = a.sin()
        d, e = c + b, c - b.exp()
        values, _ = torch.stack([c, b]).max(0)
        q, r = torch.linalg.qr(c)
        f, g = c.chunk(2, 1)
        return d * 2, e.t(), values, q.abs(), r.abs(), f, g.sum(), (d * e).cumsum(1), d[0]

    run = compiled(f)
    grad, found = offered("autograd.grad", torch.autograd.grad), list[Any]()
    a, b = _leaf(plain(x)), _leaf(plain(x.cos()))
    for round in range(2):
        for number in range(9):
            made = run(a, b)
            found += grad(
                made[number].sum(),
                [a, b],
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
            if round and number:
                found += grad(
                    [made[number].sum(), made[0].sum()],
                    [a],
                    allow_unused=True,
                    materialize_grads=True,
                )
    return beside(x, *found)


def absent_in_branches(x: Tensor) -> Results:
    """The same through a branch, a map and a scan."""
    cond, scan, mapped = (
        offered(f"aot.{n}", f) for n, f in (("cond", _cond), ("scan", _scan), ("map", _map))
    )

    def f(a: Tensor, b: Tensor) -> Results:
        first, second = cond(
            a.sum() > 0, lambda s, t: (s.sin() * t, t.exp()), lambda s, t: (s * 2, s * t), (a, b)
        )
        carry, rows = scan(lambda c, r: (c * r[0], (c + r[1]).sin()), b[0], (a, b))
        each, other = mapped(lambda r, t: (r.exp() * t, r.sum()), a, b[1])
        return first, second, carry, rows, each, other

    run = compiled(f)
    grad, found = offered("autograd.grad", torch.autograd.grad), list[Any]()
    for sign in (1.0, -1.0):
        a, b = _leaf(plain(x).abs() * sign), _leaf(plain(x.cos()))
        for number in range(6):
            found += grad(
                run(a, b)[number].sum(), [a, b], allow_unused=True, materialize_grads=True
            )
    return beside(x, *found)


def _cond(which: Tensor, yes: Any, no: Any, args: Any) -> Any:
    return yes(*args) if which else no(*args)


def _scan(f: Any, carry: Any, xs: Any) -> Any:
    rows = []
    for i in range(xs[0].shape[0]):
        carry, row = f(carry, tuple(t[i] for t in xs))
        rows.append(row)
    return carry, torch.stack(rows)


def _map(f: Any, xs: Any, *args: Any) -> Any:
    made = [f(row, *args) for row in xs]
    return torch.stack([m[0] for m in made]), torch.stack([m[1] for m in made])


def passes_twice(x: Tensor) -> Results:
    """Second derivatives, a pass through a graph that is kept, hooks on what is saved, and
    arguments that are written in between."""
    run = compiled(lambda a, b: (a.sin() @ b).exp().sum(0))
    grad = offered("autograd.grad", torch.autograd.grad)
    saved_hooks = offered(
        "autograd.graph.saved_tensors_hooks", torch.autograd.graph.saved_tensors_hooks
    )
    found, a, b = list[Any](), _leaf(plain(x / 4)), _leaf(plain(x.cos()))
    for _ in range(3):
        out = run(a, b).sum()
        first = grad(out, [a, b], create_graph=True)
        found += [t.detach() for t in first]
        found += grad(sum(t.square().sum() for t in first), [a, b])
        again = run(a, b).sum()
        found += [*grad(again, a, retain_graph=True), *grad(again, [a, b])]
    seen: list[int] = []
    with saved_hooks(lambda t: (seen.append(1), t * 1)[1], lambda t: t):  # type: ignore[func-returns-value]
        out = run(a, b).sum()
    found += grad(out, [a, b])
    c = _leaf(plain(a))
    out = run(c, b).sum()
    with torch.no_grad():
        c.mul_(2)
    flags = refused(lambda: grad(out, c), lambda: grad(again, a))
    batched = (
        grad(run(a, b), a, torch.eye(3, dtype=x.dtype), is_grads_batched=True)
        if own("unwrap") is None
        else (None,)
    )
    if batched[0] is None:
        batched = (
            torch.stack([grad(run(a, b), a, row)[0] for row in torch.eye(3, dtype=x.dtype)]),
        )
    return beside(x, *found, *flags, bool(seen), *batched)


# --- kinds of tensors -----------------------------------------------------------------------------


def tensors_of_tensors(x: Tensor) -> Results:
    """Tensors that consist of two: with gradients, some of which are unused, written to, nested,
    and as parameters of a module."""
    y = plain(x)

    def f(a: Any, b: Any) -> Results:
        c = a.sin() * b
        return c.sum(0), c.t(), (a + b).exp(), b * 2

    run, found = compiled(f), list[Any]()
    for factor in (0.5, 1.0, 1.5):
        a = TwoTensor(y * factor, y.cos()).requires_grad_()
        made = run(a, TwoTensor(y.sin(), y * factor))
        made[0].sum().backward()
        found += [part for t in made for part in (t.a.detach(), t.b.detach())]
        found += [a.grad.a, a.grad.b, type(made[0]).__name__ == "TwoTensor"]  # type: ignore[union-attr]
    nested = compiled(lambda a: a * 2 + 1)(TwoTensor(TwoTensor(y, y.sin()), TwoTensor(y.cos(), y)))
    return beside(x, *found, nested.a.a, nested.b.a)


def complex_and_narrow(x: Tensor) -> Results:
    """Complex parts, lazy conjugates, half precision, integers, sparse tensors and no tensors at
    all, as arguments and results."""
    z = torch.complex(x, x.cos())

    def f(a: Tensor, b: Tensor) -> Results:
        c = a.conj() * b
        return (
            c.real,
            c.imag * 2,
            c.conj(),
            c.abs(),
            torch.view_as_real(c)[..., 1],
            a.resolve_conj().angle(),
        )

    found: list[Any] = list(_turns(f, (z, z * 2), (z.conj(), z), (z.sin(), z.cos())))
    narrow, whole = x.detach().to(torch.bfloat16), x.detach().long()
    found += _turns(
        lambda a, b: (a * 2 + 1, b // 2, (a > b), a.float().softmax(0), b.argmax(1)),
        (narrow, whole),
        (narrow.half(), whole.int()),
    )
    sparse = x.detach().to_sparse()
    found += [
        t.to_dense() if t.is_sparse else t
        for t in _turns(
            lambda a, b: (a * 2, a @ b, a.to_dense() + b), (sparse, x), (sparse * 2, x.cos())
        )
    ]
    return (
        *found,
        *_turns(lambda k: (k * 2, None is None), 3, 4.0),
        *_turns(lambda a: (a.shape[0], "text", a), x, x[:2]),
    )


def layers_that_fold(x: Tensor) -> Results:
    """Graphs that the replay rewrites: large concatenations, many small sums, poolings of images,
    chains of views, repeated calls."""
    images = torch.arange(2 * 16 * 12 * 12, dtype=torch.float32).reshape(2, 16, 12, 12).sin()
    wide = x.repeat(40, 80)  # (120, 240)

    def cats(a: Tensor) -> Tensor:
        return torch.cat([a.sin(), a.exp() * 2, (a @ a.t())[:, :1] * a])

    def sums(a: Tensor, b: Tensor) -> Tensor:
        out = a
        for k in range(5):
            out = torch.tanh(out * b + k)
        return out

    def repeated(a: Tensor) -> Results:
        b, c = a.sin() + a.cos(), a.sin() - a.cos()
        d = a.t().t().reshape(-1).view(a.shape).unsqueeze(0).squeeze(0) * 1 + 0.0
        return b, c, d, torch.ones(3, dtype=a.dtype).cumsum(0) + a, a.new_zeros(()) + b.sum()

    found = [t.sum(0) for t in _turns(cats, wide, wide * 0.1)]
    found += _turns(sums, (x, x[0]), (x.cos(), x[1]))
    pooled = compiled(lambda a: F.max_pool2d(a, 3, 2, 1))
    leaf = images.clone().requires_grad_()
    for _ in range(3):
        out = pooled(leaf)
        out.square().sum().backward()
    return (
        *found,
        *_turns(repeated, x, x.cos(), x.t()),
        out.detach().sum((2, 3)),
        leaf.grad.sum((2, 3)),  # type: ignore[union-attr]
    )


# --- any size -------------------------------------------------------------------------------------


def composites_of_any_size(x: Tensor) -> Results:
    """Composite calls in graphs with symbols for sizes, at other sizes."""
    y = plain(x)
    functions: list[Callable[[Tensor], Any]] = [
        lambda a: torch.kron(a, a[:1]),
        lambda a: torch.take_along_dim(a, a.argsort(1), 1),
        lambda a: torch.linalg.multi_dot([a, a.t(), a, a.t()[:, 0]]),
        lambda a: F.max_pool1d(a.unsqueeze(0), 2, 1) + a.clone().fill_diagonal_(2.0).sum(),
        lambda a: torch.fft.fftn(a).real + torch.fft.irfft2(torch.fft.rfft2(a), a.shape),
        lambda a: (
            torch.cov(a, fweights=torch.ones(a.shape[1], dtype=torch.int64)) + torch.corrcoef(a)
        ),
    ]
    make, found = own("aot.make_fx"), list[Any]()
    other = torch.cat([y, y.sin()], 1)
    for f in functions:
        graph = f if make is None else make(f, tracing_mode="symbolic")(y)
        found += [graph(y.cos()), graph(other)]
    return beside(x, *found)


def modules_of_any_size(x: Tensor) -> Results:
    """A module that is compiled at once for fake tensors of symbolic sizes, and calls that
    are not like them."""
    y, layer = plain(x), nn.Linear(3, 2).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.linspace(-1, 1, p.numel(), dtype=p.dtype).reshape(p.shape))

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.calls: Tensor

        def forward(self, a: Tensor, k: int) -> Results:
            self.calls += 1
            return self.layer(a).sum(0) * k, a * a.shape[0]

    module, make, nop = Both(), own("aot.aot_module_simplified"), own("aot.nop")
    if make is None:
        run = at_once = fixed = module
        flags = [True] * 9
    else:
        # of as many rows as no other size
        fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.cat([y, y[:2]]))
        run, at_once = make(module, (fake, 2), nop), make(module, (y, 2), nop)
        fixed = make(module, (y, 2), nop, pre_grad_passes=lambda m, args: m, inference_compiler=nop)
        flags = own_refused(
            lambda: at_once(y[:2], 2),
            lambda: at_once(y, 3),
            lambda: at_once(y.float(), 2),
            lambda: at_once(y),
            lambda: at_once(y.clone().requires_grad_(), 2),
            lambda: run(y.float(), 2),
            lambda: run(y, 3),
            lambda: make(nn.Linear(3, 3).double(), (y,), nop),
            lambda: (module.eval(), at_once(y, 2)),
        )
        module.train()
    found: list[Any] = []
    for a in (y, y.cos(), torch.cat([y, y])):
        found += [t.detach() for t in run(a, 2)]
        if len(a) == 3:
            found += [t.detach() for t in (*at_once(a, 2), *fixed(a, 2))]
    layer.zero_grad()
    run(y, 2)[0].sum().backward()
    at_once(y.cos(), 2)[0].sum().backward()
    return beside(
        x,
        *found,
        layer.weight.grad,
        layer.bias.grad,
        module.calls.clone(),
        *flags,
        len(list(run.named_parameters())),
    )


def partitions_from_a_folder(x: Tensor) -> Results:
    """A cache of cuts: what it finds again, for another program, and after it was emptied."""
    y = plain(x).requires_grad_()
    make = own("aot.aot_function")
    f = lambda a: (a.sin() @ a).exp()  # noqa: E731
    if make is None:
        return beside(x, *(f(y).detach() for _ in range(3)), *[True] * 5)  # type: ignore[no-untyped-call]
    from tempfile import TemporaryDirectory

    found, counts = [], []
    with TemporaryDirectory() as folder:
        for turn in range(3):
            cache = own("aot.Cache")(folder)
            found.append(
                make(
                    f,
                    own("aot.nop"),
                    partition_fn=own("aot.min_cut_rematerialization_partition"),
                    cache=cache,
                )(y).detach()
            )
            info = cache.info()
            counts.append((info.hits, bool(info.misses)))
            if turn == 1:
                cache.clear() if hasattr(cache, "clear") else None
        other = own("aot.Cache")(folder)
        make(
            lambda a: a.cos().tanh(),
            own("aot.nop"),
            partition_fn=own("aot.min_cut_rematerialization_partition"),
            cache=other,
        )(y)
        last = other.info()
    return beside(
        x,
        *found,
        counts[0] == (0, True),
        counts[1] == (1, False),
        sum(counts[2]) == 1,
        last.hits == 0,
        bool(last.misses),
    )
