"""Programs that ask for the gradients of each sample, in a context and of functions. The reference
is a loop over the samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gen.targets.parts import offered
from programs.sample_gradients import (
    Loss,
    Of,
    answers,
    answers_of,
    by_loop_of,
    filled,
    gradients,
    rows_of,
)
from programs.tools import Results, beside, own, own_refused, plain

F = nn.functional


# --- programs -------------------------------------------------------------------------------------


def moved_samples(x: Tensor) -> Results:
    """Samples that move: joined and split dimensions, other orders, joined tensors, rows that a
    mask picks, and loops."""

    def f(m: Any, a: Tensor) -> Tensor:
        b = m.a(a.flatten(0, 1)).unflatten(0, (len(a), -1)).transpose(0, 1)
        c = torch.cat([b, b.roll(1, 0).flip(2)], 2).permute(1, 2, 0)
        d = torch.stack([m.b(part).sum(1) for part in c.unbind(1)], 1)
        e = torch.cat([a[..., 0], a[..., 1]])
        rows = m.a(a)[a[..., 0] > 0]
        return (  # type: ignore[no-any-return]
            d.sum(1)
            + (e * m.s).chunk(2)[1].sum(1)
            + torch.zeros(len(a), dtype=a.dtype).index_add(
                0, (a[..., 0] > 0).nonzero()[:, 0], rows.sum(1)
            )
        )

    module = Of(f, a=nn.Linear(2, 3), b=nn.Linear(2, 2), s=nn.Parameter(torch.zeros(2)))
    return answers_of(x, module, (rows_of(x, 2, 2),), lambda m, a: m(a).square().sum())


def written_samples(x: Tensor) -> Results:
    """Writes: into buffers that are made inside, into parts, through detach, in place, and to a
    moving mean from outside."""
    mean = torch.zeros(3, dtype=torch.float64)

    def f(m: Any, a: Tensor) -> Tensor:
        b = m.a(a)
        c = torch.zeros(len(a), 4, dtype=a.dtype)
        c[:, :3] = b
        c[:, 3:].add_(b.sum(1, keepdim=True))
        c = c.relu_() * m.s
        d = b.detach().clone()
        d[:, 0].fill_(2)
        with torch.no_grad():
            mean.mul_(0.5).add_(b.detach().mean(0), alpha=0.5)
        return c + d.sum(1, keepdim=True) * m.s  # type: ignore[no-any-return]

    module = Of(f, a=nn.Linear(3, 3), s=nn.Parameter(torch.zeros(4)))
    module.a.weight.requires_grad_()  # type: ignore[union-attr]
    return answers_of(x, module, (rows_of(x, 3),))


def losses_of_classes(x: Tensor) -> Results:
    """Means that torch divides by the size of the batch or by weights, and soft targets."""
    classes, soft = torch.tensor([0, 2, 1]), rows_of(x, 3).softmax(1)
    weights = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    losses: list[Loss] = [
        lambda m, a: F.cross_entropy(m(a[:, :3]), a[:, 3].round().long()),
        lambda m, a: F.cross_entropy(m(a[:, :3]), a[:, 3].round().long(), label_smoothing=0.2),
        lambda m, a: F.cross_entropy(m(a[:, :3]), a[:, 4:]),
        lambda m, a: F.cross_entropy(
            m(a[:, :3]), a[:, 4:], weights, label_smoothing=0.1, reduction="sum"
        ),
        lambda m, a: F.kl_div(m(a[:, :3]).log_softmax(1), a[:, 4:], reduction="batchmean"),
        lambda m, a: F.kl_div(
            m(a[:, :3]).log_softmax(1), a[:, 4:].log(), reduction="sum", log_target=True
        ),
        lambda m, a: F.nll_loss(
            m(a[:, :3]).log_softmax(1), a[:, 3].round().long(), weights, reduction="sum"
        ),
        lambda m, a: F.mse_loss(m(a[:, :3]), a[:, 4:]),
        lambda m, a: F.binary_cross_entropy_with_logits(m(a[:, :3]), a[:, 4:], pos_weight=weights),
        lambda m, a: F.smooth_l1_loss(m(a[:, :3]), a[:, 4:], reduction="sum") / 2,
        lambda m, a: m(a[:, :3]).logsumexp(1).mean() * 2.5 + m(a[:, :3]).square().sum(1).mean(),
    ]
    model, y = nn.Linear(3, 3).double(), torch.cat([rows_of(x, 3), classes.unsqueeze(1), soft], 1)
    filled(model)
    return beside(
        x, *(part for loss in losses for part in gradients(model, (y,), loss).materialize())
    )


class Cubed(torch.autograd.Function):
    """x³, by what is saved of the input and of the output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, x * x)
        ctx.set_materialize_grads(False)
        return x * x * x, x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, other: Tensor | None) -> Tensor:
        x, square = ctx.saved_tensors
        found = torch.zeros_like(x) if grad is None else grad * 3 * square
        return found if other is None else found + other * 0


class Mixing(torch.autograd.Function):
    """The identity, whose gradient is the mean over the samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.mean(0, keepdim=True).expand_as(grad)


def own_functions_of_samples(x: Tensor) -> Results:
    """Custom Functions of what follows from samples, checkpoints of both kinds, and hooks of
    tensors and modules."""
    # torch.autograd.grad takes no reentrant one
    checkpoint, reentrant = torch.utils.checkpoint.checkpoint, own("unwrap") is not None

    def f(m: Any, a: Tensor) -> Tensor:
        b, c = Cubed.apply(m.a(a) / 2)  # type: ignore[no-untyped-call]
        b.register_hook(lambda g: g * 2) if b.requires_grad else None
        return checkpoint(m.b, b, use_reentrant=False) + checkpoint(  # type: ignore[no-any-return]
            lambda t: m.b(t).sin(), b + c, use_reentrant=reentrant
        )

    module = Of(f, a=nn.Linear(3, 3), b=nn.Linear(3, 2))
    module.b.register_full_backward_hook(lambda m, gi, go: tuple(g * 0.5 for g in gi))  # type: ignore[attr-defined, union-attr]
    mixes = Of(lambda m, a: Mixing.apply(m.a(a)), a=nn.Linear(3, 3)).double()  # type: ignore[no-untyped-call]
    of_parameter = Of(
        lambda m, a: a @ Cubed.apply(m.w)[0],  # type: ignore[no-untyped-call]
        w=nn.Parameter(torch.ones(3, 3, dtype=torch.float64)),
    )
    flags = own_refused(
        lambda: gradients(mixes, (rows_of(x, 3),)),
        lambda: gradients(of_parameter, (rows_of(x, 3),)),
    )
    return *answers_of(x, module, (rows_of(x, 3),)), *flags


@dataclass
class Batch:
    """Two tensors with samples and one number."""

    a: Tensor
    b: Tensor
    k: float


def marked_batches(x: Tensor) -> Results:
    """Batches in a data class, by keyword, marked by hand, another dimension, and tensors that are
    no batch although they look so."""
    y, other = rows_of(x, 3), rows_of(x, 3).cos()
    module = Of(
        lambda m, given, *, mask: m.a(given.a * given.k) * (given.b @ mask), a=nn.Linear(3, 3)
    ).double()
    plainly = nn.Linear(3, 3).double()
    filled(module)
    filled(plainly)
    params, mask, context = list(module.parameters()), other.tril(), own("per_sample.per_sample")
    w, b = list(plainly.parameters())
    if context is None:
        first = by_loop_of(
            lambda i: module(Batch(y[i : i + 1], other[i : i + 1], 2.0), mask=mask).square().sum(),
            3,
            params,
        )
        second = by_loop_of(lambda i: (y[i : i + 1].sin() @ w.t() + b).square().sum(), 3, [w, b])
        third = by_loop_of(lambda i: plainly(y.t()[i : i + 1]).square().sum(), 3, [w, b])
    else:
        with context(params) as first:
            module(Batch(y, other, 2.0), mask=first.shared(mask)).square().sum().backward()
        with context({"w": w, "b": b}) as second:
            z = second.batch(y)
            (z.sin() @ w.t() + b).square().sum().backward()
        with context([w, b], batch_dim=1) as third:
            plainly(third.batch(y).t()).square().sum().backward()
    named = second.materialize() if context is None else list(second.materialize().values())
    return beside(
        x,
        *answers(first, params),
        *named,
        *third.materialize(),
        *third.variance(),
        *third.second_moment(),
    )


def several_passes(x: Tensor) -> Results:
    """Two backward passes that add up, weights that free what they use, and gradients in parts of a
    few bytes, in given memory."""
    y, model = rows_of(x, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    filled(model)
    params, weights, context = list(model.parameters()), plain(x)[0], own("per_sample.per_sample")
    losses: list[Loss] = [lambda m, a: m(a).square().sum(), lambda m, a: m(a).sin().sum()]
    if context is None:
        both = gradients(model, (y,), lambda m, a: losses[0](m, a) + losses[1](m, a))
        other = gradients(model, (y.cos(),))
    else:
        with context(params, memory_limit=64) as both:
            for loss in losses:
                loss(model, y).backward()
        other = gradients(model, (y.cos(),), memory_limit=1)
    out = [torch.full((3, *p.shape), 7.0, dtype=p.dtype) for p in params]
    found = [*both.norms("parameter"), both.gram(other), *both.variance(), *both.second_moment()]
    found += [
        *both.materialize(out),
        *other.weighted_sum(weights, keep=False),
        *both.clipped_sum(0.2, keep=False),
    ]
    frozen = nn.Linear(3, 3).double()
    frozen.bias.requires_grad_(False)
    filled(frozen)
    halves = gradients(frozen, (y,), params=[frozen.weight])
    gone = own_refused(lambda: other.norms(), lambda: both.materialize())
    return beside(
        x,
        *found,
        *halves.materialize(),
        *gone,
        all(p.grad is None for p in params),
        len(both.dense) if context is None else 4,
    )


def samples_that_mix(x: Tensor) -> Results:
    """What mixes samples, or would treat one of them alone, is refused where the gradient passes,
    and elsewhere it is fine."""
    y, model = rows_of(x, 3), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).double()
    filled(model)
    fine = gradients(
        model, (y,), lambda m, a: (m(a).softmax(0), m(a).mean(0), m(a).square().sum())[2]
    )
    losses: list[Loss] = [
        lambda m, a: (m(a) - m(a).mean(0)).square().sum(),
        lambda m, a: m(a).softmax(0).square().sum(),
        lambda m, a: m(a)[0].sum(),
        lambda m, a: m(a)[:2].sum(),
        lambda m, a: m(a).sort(0)[0].square().sum(),
        lambda m, a: m(a).norm(),
        lambda m, a: (m(a) @ m(a).t()).sum(),
        lambda m, a: F.batch_norm(m(a), None, None, training=True).square().sum(),
        lambda m, a: m(a).square().sum() + m[0].weight.square().sum(),
        lambda m, a: m(a).square().mean(1).mean().sqrt(),
        lambda m, a: m(a).sum() / 3,
        lambda m, a: m(a).square().mean(1).mean() * 3,
        lambda m, a: m(a).flip(0).mul(m(a)).sum(),
        lambda m, a: m(a).cumsum(0).sum(),
        lambda m, a: m(a).max(0)[0].sum(),
        lambda m, a: m[0].weight.sum(),
        lambda m, a: m(a).std(),
        lambda m, a: (m(a) - m(a).roll(1, 0)).square().sum(),
    ]
    return beside(
        x,
        *fine.materialize(),
        *own_refused(*(lambda loss=loss: gradients(model, (y,), loss) for loss in losses)),
    )


def questions_refused(x: Tensor) -> Results:
    """Arguments that no question takes."""
    y, model = rows_of(x, 3), nn.Linear(3, 2).double()
    filled(model)
    context, params = own("per_sample.per_sample"), list(model.parameters())
    grads = gradients(model, (y,))
    function = own("per_sample.per_sample_grads")
    loss = lambda w, a: (a @ w).square()  # noqa: E731

    def nested() -> None:
        with context(params), context(params):
            pass

    def without_a_pass() -> None:
        with context(params) as empty:
            pass
        empty.norms()

    def inside(f: Callable[..., Any]) -> Calls:
        return lambda: own("func.vmap")(lambda row: f(row))(y)

    return beside(
        x,
        grads.norms(),
        *own_refused(
            lambda: context(params, reduction="max"),
            lambda: context([1.0]),
            nested,
            without_a_pass,
            lambda: grads.norms("layer"),
            lambda: grads.clipped_sum(0.0),
            lambda: grads.clipped_sum(-1.0),
            lambda: grads.weighted_sum(y[0, :2]),
            lambda: grads.dot(params[:1]),
            lambda: grads.dot([params[1], params[0]]),
            lambda: grads.materialize(params),
            lambda: grads.materialize(params[:1]),
            lambda: grads.gram(gradients(nn.Linear(3, 3).double(), (y,))),
            lambda: grads.project(0),
            lambda: grads.project((2, 0)),
            lambda: grads.shared(params[0]),
            lambda: function(loss)(y[0]),
            lambda: function(loss, randomness="often")(y[0], y),
            lambda: function(loss)(torch.arange(3), y),
            lambda: function(loss)(y[0], y[:0]),
            lambda: function(lambda w, a: a * w)(y[0], y),
            lambda: function(lambda w, a: w.sum())(y[0], y),
            lambda: function(lambda w, a: (a @ w.mul_(2)).square())(y[0], y),
            lambda: function(loss, in_dims=3)(y[0], y),
        ),
    )


Calls = Callable[[], object]


# --- functions ------------------------------------------------------------------------------------


def _function(loss: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`per_sample_grads` of a loss of one sample."""
    made = own("per_sample.per_sample_grads")
    if made is not None:
        return made(loss, **options)  # type: ignore[no-any-return]
    places, has_aux = options.get("in_dims", 0), options.get("has_aux", False)

    def of(params: Any, *batch: Any) -> Any:
        dims = places if isinstance(places, tuple) else (places,) * len(batch)
        size = next(x.shape[d] for x, d in zip(batch, dims, strict=True) if d is not None)
        leaves, spec = torch.utils._pytree.tree_flatten(params)
        leaves = [p.detach().requires_grad_() for p in leaves]
        tree = torch.utils._pytree.tree_unflatten(leaves, spec)
        made = [
            loss(
                tree,
                *(x if d is None else x.select(d, i) for x, d in zip(batch, dims, strict=True)),
            )
            for i in range(size)
        ]
        losses = [m[0] for m in made] if has_aux else made
        found = by_loop_of(lambda i: losses[i], size, leaves)
        found.losses = torch.stack(losses).detach()  # type: ignore[attr-defined]
        found.aux = (  # type: ignore[attr-defined]
            torch.utils._pytree.tree_map(lambda *a: torch.stack(a).detach(), *[m[1] for m in made])
            if has_aux
            else None
        )
        return found

    return of


def functions_of_samples(x: Tensor) -> Results:
    """Losses of a dictionary of parameters, with further results, batches at other places, and what
    all samples share."""
    y, table = rows_of(x, 3), rows_of(x, 2)
    p = {"w": y.sin(), "b": [y[0], y[1] * 2]}

    def loss(
        p: dict[str, Any], a: Tensor, b: Tensor, k: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        h = (p["w"] @ a + p["b"][0]).tanh()
        c = F.layer_norm(h, (3,), p["b"][1], p["b"][0]) + F.linear(
            a.unsqueeze(0), p["w"], p["b"][1]
        ).squeeze(0)
        return (c * b.sum() * k).square().sum(), {"h": h, "c": c.sum()}

    grads = _function(loss, in_dims=(0, 1, None), has_aux=True)(p, y, table.t(), y[2])
    told = [*grads.materialize().values()] if own("unwrap") is not None else []
    flat = (told and [told[0], *told[1]]) or grads.materialize()
    return beside(
        x, grads.losses, grads.aux["h"], grads.aux["c"], grads.norms(), *flat, grads.gram()
    )


def functions_of_layers(x: Tensor) -> Results:
    """Losses through modules of one sample: convolutions, norms, recurrent layers and attention,
    without a batch."""
    y = rows_of(x, 2, 4)

    def f(m: Any, a: Tensor) -> Tensor:
        b = m.norm(m.conv(a.unsqueeze(0)))
        c, _ = m.gru(a.unsqueeze(0))
        return (  # type: ignore[no-any-return]
            b.sum()
            + c.sin().sum()
            + m.attention(a, a, a)[0].square().sum()
            + m.table(torch.tensor([0, 1, 1])).sin().sum() * a.sum()
        ) ** 2

    module = Of(
        f,
        conv=nn.Conv1d(2, 4, 2, padding=1),
        norm=nn.GroupNorm(2, 4),
        gru=nn.GRU(4, 2, batch_first=True),
        attention=nn.MultiheadAttention(4, 2),
        table=nn.Embedding(3, 2),
    ).double()
    filled(module)
    names = [name for name, _ in module.named_parameters()]
    params = [p.detach() for _, p in module.named_parameters()]
    call = offered("func.functional_call", torch.func.functional_call)
    grads = _function(lambda given, a: call(module, dict(zip(names, given, strict=True)), (a,)))(
        params, y
    )
    return beside(x, grads.losses, *answers(grads, params))


def answers_with_derivatives(x: Tensor) -> Results:
    """Norms and sums that are differentiated by the batch and by the parameters, mapped, and as one
    captured program."""
    y, w = rows_of(x, 3), plain(x)[0]
    loss = lambda w, a: (a @ w).sin() * w.sum()  # noqa: E731
    function, grad, vmap, jit = (
        own("per_sample.per_sample_grads"),
        own("func.grad"),
        own("func.vmap"),
        own("jit"),
    )

    def by_loop(w: Tensor, a: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.grad(loss), (None, 0))(w, a)  # type: ignore[no-any-return]

    if function is None:
        of_batch = torch.func.grad(lambda a: by_loop(w, a).norm(dim=1).sum())(y)
        of_weights = torch.func.grad(lambda v: (by_loop(v, y) * y).sum())(w)
        several = torch.stack([by_loop(v, y).norm(dim=1) for v in y])
        return beside(
            x,
            of_batch,
            of_weights,
            several,
            by_loop(w, y).norm(dim=1),
            by_loop(w, y.sin()).norm(dim=1),
            by_loop(w, y[:2]).norm(dim=1),
        )
    of_batch = grad(lambda a: function(loss)(w, a).norms().sum())(y)
    of_weights = grad(lambda v: (function(loss)(v, y).materialize() * y).sum())(w)
    several = vmap(lambda v: function(loss)(v, y).norms())(y)
    captured = jit(lambda v, a: function(loss)(v, a).norms())
    return beside(
        x, of_batch, of_weights, several, captured(w, y), captured(w, y.sin()), captured(w, y[:2])
    )


def tables_of_answers(x: Tensor) -> Results:
    """What the table of the uses says: parameters, shapes, uses, forms, the way to the
    norms and bytes."""
    y, module = (
        rows_of(x, 4),
        nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 3, bias=False)).double(),
    )
    filled(module)
    grads = gradients(
        Of(lambda m, a: m.a(a) @ m.a[2].weight, a=module), (y,), params=list(module.parameters())
    )
    if own("unwrap") is None:
        return beside(x, grads.norms(), *[True] * 3)
    text = grads.explain()
    rows = [
        line.replace("[3, ", "[3,").split()
        for line in text.splitlines()
        if line.strip().startswith("[")
    ]
    expected = [
        ["[0]", "[3,4]", "1", "outer", "ghost", "288"],
        ["[1]", "[3]", "1", "dense", "direct", "72"],
        ["[2]", "[3]", "1", "dense", "direct", "72"],
        ["[3]", "[3]", "1", "dense", "direct", "72"],
        ["[4]", "[3,3]", "1", "outer", "direct", "216"],
    ]
    heads = ["parameter", "shape", "uses", "form", "norms", "dense", "bytes"]
    return beside(
        x,
        grads.norms(),
        rows == expected,
        "gradients of 3 samples" in text,
        any(line.split() == heads for line in text.splitlines()),
    )
