"""Programs that write, without writes and in batches: each form of a write by ``functionalize``, in
graphs and under ``vmap``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gen.targets.parts import offered
from programs.tools import Results, beside, own, own_refused, plain, refused

F = torch.nn.functional


def _clean(f: Callable[..., Any], remove: str = "mutations") -> Callable[..., Any]:
    make = own("func.functionalize")
    return f if make is None else make(f, remove=remove)


def _graph(f: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """The graph of `f` without writes."""
    make = own("aot.make_fx")
    return f if make is None else make(_clean(f))(*args)


def _vmap(*args: Any, **options: Any) -> Any:
    return offered("func.vmap", torch.func.vmap)(*args, **options)


def _overlapping(a: Tensor) -> Results:
    b = a.clone()
    b.unfold(0, 2, 1).add_(a.sum())
    c = torch.cat([a, a])
    c.as_strided((3, 2), (1, 1)).mul_(c.as_strided((3, 2), (1, 1), 2).clone())
    return b, c


def _many(a: Tensor) -> Results:
    b, c = a.clone(), a.sin()
    torch._foreach_add_([b[0], b[1]], [b[1], b[2]])
    torch._foreach_mul_([b, c], [c, b])
    torch._foreach_addcdiv_([b, c], [c, c], [b.abs() + 1, b.abs() + 1], 0.5)
    torch._foreach_zero_([c[0]])
    torch._foreach_copy_([c[1]], [b[0]])
    return b, c, *torch._foreach_norm([b, c])


def _forms(a: Tensor) -> Results:
    b = a.abs() + 0.5
    b.polygamma_(1)
    c = torch.empty(0, dtype=a.dtype)
    torch.add(a, b, out=c)
    values, places = torch.empty(3, 3, dtype=a.dtype), torch.empty(3, 3, dtype=torch.int64)
    torch.sort(a, 1, out=(values, places))
    literal = torch.tensor([1.0, 2.0, 3.0], dtype=a.dtype)
    literal[0] = 7.0
    d = a.clone()
    d.resize_(3, 3).detach_()
    d.index_copy_(0, torch.tensor([0, 2]), a[:2]).scatter_(1, places, 2.0, reduce="multiply")
    e = a.clone()
    e.unsqueeze_(0).squeeze_(0).transpose_(0, 1)
    return b, c, values, places, literal * a, d, e, torch.addmm(a, a, a, out=torch.empty_like(a))


def _pieces(a: Tensor) -> Results:
    b = a.clone()
    first, second = torch.unsafe_chunk(b, 2)
    first.mul_(2)
    c = b.sum()
    low, high = b.view(9)[:4], b.t()[1]
    low.fill_(3)
    high.add_(low[:3])
    b.diagonal().copy_(b[:, 0].clone())
    b[:, 1:].triu_()
    torch.sigmoid_(b[0])
    return b, c, second, low, high


def _filling(a: Tensor) -> Results:
    mean, var = torch.zeros(3, dtype=a.dtype), torch.ones(3, dtype=a.dtype)
    out = F.batch_norm(a, mean, var, training=True, momentum=0.3)
    kept = F.batch_norm(a, mean, var, training=False)
    b = (
        F.relu(a.clone(), inplace=True)
        + F.dropout(a.clone(), 0.5, training=False, inplace=True)
        + F.hardswish(a.clone(), inplace=True)
    )
    c = torch.zeros(4, dtype=a.dtype)
    c.index_put_((torch.tensor([0, 0, 3]),), a[0], accumulate=True)
    return (
        out,
        kept,
        mean,
        var,
        b,
        c,
        torch.nn.functional.embedding(torch.tensor([0, 2]), a.clone(), max_norm=1.0),
    )


def writes_left_out(x: Tensor) -> Results:
    """Overlapping parts, lists of tensors, ``out=``, other geometry, pieces and running statistics,
    with and without views."""
    y = plain(x)
    found: list[Any] = []
    for f in (_overlapping, _many, _forms, _pieces, _filling):
        graph = _graph(f, y)
        found += [*_clean(f)(y.sin()), *_clean(f, "mutations_and_views")(y), *graph(y.cos())]
    return beside(x, *found)


def writes_to_what_is_given(x: Tensor) -> Results:
    """Arguments, tensors from outside and their parts, written in turn, with their versions."""
    y, outside = plain(x), plain(x).cos()

    def f(a: Tensor, b: list[Tensor]) -> Tensor:
        a[0].add_(b[0][1])
        b[0].mul_(2)
        outside[:2].copy_(a[1:])
        b[1] += outside.sum()
        return (a + outside) @ b[0]  # type: ignore[no-any-return]

    found: list[Any] = []
    for remove in ("mutations", "mutations_and_views"):
        a, b = y.clone(), [y.sin(), y.exp()]
        found += [_clean(f, remove)(a, b), a, *b, outside.clone()]
    run = _clean(lambda a: (a.mul_(2), a.detach().add_(1), a.data.mul_(2), a * 1)[3])
    c = y.clone()
    found += [run(c), c, c._version > 0]
    return beside(x, *found)


def writes_refused(x: Tensor) -> Results:
    """Writes that no tensor takes, and those that cannot be followed."""
    y = plain(x)
    outside = y.clone()

    def of(f: Callable[[Tensor], object]) -> Callable[[], object]:
        return lambda: _clean(f)(y.clone())

    flags = refused(
        of(lambda a: a.add_(torch.ones(4, 3, 3, dtype=a.dtype))),
        of(lambda a: a.long().add_(1.5)),
        of(lambda a: a.expand(2, 3, 3).add_(1)),
        of(lambda a: torch.cat([a, a], out=a)),
        of(lambda a: a[0].copy_(a)),
        of(lambda a: torch.add(a, 1, out=a.long())),
        of(lambda a: a[0].detach_()) if own("unwrap") is not None else of(lambda a: a[9]),
        of(lambda a: a.view(4)),
    )
    more = own_refused(
        lambda: own("func.functionalize")(torch.sin, remove="all"),
        of(lambda a: a.set_(torch.zeros(2, dtype=a.dtype))),  # type: ignore[call-overload]
        of(lambda a: outside.t_()),
        of(lambda a: a.resize_(1)),
    )
    return beside(x, _clean(lambda a: a.clone().add_(1))(y), *flags, *more)


# --- batches --------------------------------------------------------------------------------------


def written_batches(x: Tensor) -> Results:
    """Every kind of write to elements of a batch: geometry, lists, loops, ``out=``, detached
    and broadcast ones."""
    y = torch.stack([x, x.sin(), x.cos()])

    def h(a: Tensor) -> Results:
        b = a.clone()
        b[0].mul_(a[1]).add_(a[2], alpha=2)
        c = a.clone().unsqueeze_(0).squeeze_(0)
        c.index_fill_(0, torch.tensor([1]), 2.0).clamp_(-1, 1)
        d = torch.zeros_like(a).scatter_(1, a.argsort(1), a).cumsum_(0)
        e = a.clone()
        e.copy_(a[0]).tril_()
        g = a.new_zeros(3)
        g += a[:, 0]
        g.masked_fill_(a[0] > 0, 1.0)
        return (
            b,
            c,
            d,
            e,
            g,
            a.addmm(a, a),
            torch.addcmul(a, a, a, value=0.5),
            a.clone().zero_(),
            a.clone().index_put_((torch.tensor([0]),), a[1]),
        )

    each = [h(row) for row in y]
    by_hand = [torch.stack(column) for column in zip(*each, strict=True)]
    made = _vmap(h)(y) if own("unwrap") is not None else tuple(by_hand)
    return *made, *_vmap(lambda a: a.clone().mul_(x[0]))(y), *by_hand[:1]


def batches_of_nothing(x: Tensor) -> Results:
    """Batches without elements: reductions, products, draws, views, scans, norms and solves."""
    y = plain(x)[:0].reshape(0, 3, 1).expand(0, 3, 3)

    def f(a: Tensor) -> Results:
        kept = (
            a.sum(),
            a.softmax(0),
            a @ a,
            a.max(0)[0],
            a.argmax(),
            a.reshape(9),
            a.view(-1)[2:5],
            F.layer_norm(a, (3,)),
            a.cumsum(1),
            a.flatten(),
        )
        solved = (
            torch.linalg.solve(a + torch.eye(3, dtype=a.dtype), a[:, 0]),
            torch.linalg.inv(torch.eye(3, dtype=a.dtype) + a),
            torch.linalg.qr(a)[0],
        )
        return (
            *kept,
            *solved,
            F.conv1d(a[None], torch.ones(2, 3, 2, dtype=a.dtype)),
            F.max_pool1d(a[None], 2),
            torch.fft.fft(a).real,
            a.clone().mul_(2),
        )

    shapes = [(0, *t.shape) for t in f(plain(x))]
    made = (
        _vmap(f)(y)
        if own("unwrap") is not None
        else [torch.empty(s, dtype=x.dtype) for s in shapes]
    )
    return beside(
        x,
        [tuple(t.shape) == s for t, s in zip(made, shapes, strict=True)],
        _vmap(torch.sum)(y).sum() + 1,
    )


def batches_asked(x: Tensor) -> Results:
    """What elements of a batch answer together: truth, equality, numbers that agree; and what they
    cannot be asked."""
    y, same = plain(x), plain(x)[0].expand(3, 3)
    ask = lambda a: a * 2 if bool((a == a).all()) else a  # noqa: E731
    if own("unwrap") is None:  # torch's vmap asks nothing
        agreed = [y * 2, same * same[0, 0], y, y * 2]
    else:
        agreed = [
            _vmap(ask)(y),
            _vmap(lambda a: a * a[0].item())(same),
            _vmap(lambda a: a if torch.equal(a, a) else -a)(y),
            _vmap(lambda a: a.data * 2)(y),
        ]
    flags = own_refused(
        lambda: _vmap(lambda a: a * a[0].item())(y),
        lambda: _vmap(lambda a: a.tolist())(y),
        lambda: _vmap(lambda a: a.numpy())(y),
        lambda: _vmap(lambda a: a.requires_grad_())(y),
        lambda: _vmap(lambda a: setattr(a, "data", a))(y),
        lambda: _vmap(lambda a: a.resize_(1))(y.clone()),
        lambda: _vmap(lambda a: torch.unique(a))(y),
        lambda: _vmap(lambda a: a if torch.equal(a, y[0]) else -a)(y),
        lambda: _vmap(lambda a: y[0].clone().add_(a))(y),
        lambda: _vmap(lambda a: a.clone().bernoulli_())(y),
        lambda: _vmap(lambda a: a[:2] @ a)(y),
        lambda: _vmap(lambda a: a.expand(2, 4))(y),
        lambda: own("func.batch.set_fallback_policy")("quiet"),
        lambda: _vmap(lambda a: bool(a))(y),
    )
    return beside(x, *agreed, *flags)
