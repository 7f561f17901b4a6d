"""Programs about passes of the session: gradients, hooks, what is saved, forward mode,
checkpoints and modes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gen.targets.parts import offered
from programs.tools import Results, beside, grad_of, leaf_of, refused, text_number

F = nn.functional
graph = torch.autograd.graph


# --- the engine -----------------------------------------------------------------------------------


def gradients_of_outputs(x: Tensor) -> Results:
    """Gradients of several outputs, by one input and several, of which some are unused, in a batch,
    twice and by an edge."""
    a, b = leaf_of(x), leaf_of(x.cos())
    y, z = a.sin() * b, a.exp().sum()
    first = grad_of([y, z], [a, b], [x.detach(), None], retain_graph=True)
    single = grad_of(z, a, retain_graph=True)
    unused = grad_of(z, [a, b], allow_unused=True, retain_graph=True)
    zeros = grad_of(z, [a, b], materialize_grads=True, retain_graph=True)
    basis = torch.eye(9, dtype=x.dtype).reshape(9, 3, 3)
    many = grad_of(y, [a, b], basis, is_grads_batched=True, retain_graph=True)
    inner = a * 2
    of_inner = grad_of((inner.sin() + inner).sum(), [inner, a])
    same = grad_of((a * a).sum(), [a, a])
    both = grad_of([y, y], b, [x.detach(), x.detach()], retain_graph=True)
    edge = offered("autograd.graph.get_gradient_edge", graph.get_gradient_edge)(y)
    by_edge = grad_of([edge], a, [x.detach()])
    flags = [unused[1] is None, a.grad is None, first[0].requires_grad]
    return beside(
        x, *first, *single, unused[0], *zeros, *many, *of_inner, *same, *both, *by_edge, *flags
    )


def gradients_refused(x: Tensor) -> Results:
    """Calls of the engine that fit nothing."""
    a, b = leaf_of(x), leaf_of(x.cos())
    y, backward = a * 2, offered("autograd.backward", torch.autograd.backward)
    z = torch.complex(a, a)

    def freed() -> None:
        out = a.sin().exp().sum()
        out.backward()
        out.backward()

    def written() -> None:
        t = a * 1
        out = t.exp().sin()
        t.exp_()
        out.sum().backward()
        c = a.exp()
        c.mul_(2)
        c.sum().backward()

    flags = refused(
        lambda: grad_of(y, a),
        lambda: grad_of(y.sum(), b),
        lambda: grad_of(y.sum(), []),
        lambda: grad_of(y.sum(), x.detach()),
        lambda: grad_of(y, a, x.detach()[0]),
        lambda: grad_of(y, a, torch.ones(3, 3, dtype=torch.complex128)),
        lambda: grad_of(z, a, x.detach()),
        lambda: grad_of(z.sum(), a),
        lambda: grad_of(x.detach().sum(), a),
        lambda: grad_of([], a),
        lambda: grad_of(y, a, 1.0),
        lambda: grad_of(y.sum(), a, allow_unused=False, materialize_grads=True),
        lambda: grad_of(y, a, x.detach(), is_grads_batched=True),
        lambda: backward(y),
        lambda: backward(y, x.detach()[0]),
        lambda: backward(y.sum(), inputs=[]),
        lambda: backward(x.detach().sum()),
        lambda: backward([y.sum(), y], [None, None]),
        lambda: backward(y.sum(), inputs=[x.detach()]),
        lambda: backward(y.argmax()),
        freed,
        written,
    )
    a.grad, y = None, a * 2
    backward([y, (a * b).sum()], [x.detach(), None], retain_graph=True)
    backward(y.sum(), inputs=a)
    return beside(x, a.grad, b.grad, *flags)


def gradients_in_layouts(x: Tensor) -> Results:
    """Where gradients lie in memory, which are added in place, and what a leaf gets of another
    dtype or a sparse table."""
    a, t = leaf_of(x), x.detach().t().clone(memory_format=torch.preserve_format).requires_grad_()
    a.expand(2, 3, 3).sum().backward()
    (t * 2).sum().backward()
    first, version = a.grad, a.grad._version  # type: ignore[union-attr]
    (a * 3).sum().backward()
    table, words = leaf_of(x), torch.tensor([0, 2, 2])
    F.embedding(words, table, sparse=True).sin().sum().backward()
    sparse = table.grad
    (table * 2).sum().backward()
    narrow = x.detach().float().requires_grad_()
    (narrow.double() * 2).sum().backward()
    cotangent = x.detach().clone()
    b = leaf_of(x)
    (b + 0).backward(cotangent)
    shares = b.grad.data_ptr() == cotangent.data_ptr()  # type: ignore[union-attr]
    c = leaf_of(x)
    c.backward(cotangent)
    pair = leaf_of(x)
    (pair[0] + pair[1]).backward(cotangent[0])
    flags = [
        a.grad is first,
        version,
        a.grad._version,  # type: ignore[union-attr]
        a.grad.stride(),  # type: ignore[union-attr]
        t.grad.stride(),  # type: ignore[union-attr]
        sparse.is_sparse,  # type: ignore[union-attr]
        table.grad.is_sparse,  # type: ignore[union-attr]
    ]
    return beside(
        x,
        a.grad,
        t.grad,
        sparse.to_dense(),  # type: ignore[union-attr]
        table.grad.to_dense(),  # type: ignore[union-attr]
        narrow.grad,
        b.grad,
        c.grad,
        pair.grad,
        *flags,
        shares,
    )


def hooks_of_passes(x: Tensor) -> Results:
    """Hooks on nodes, on several tensors at once, on what is saved, and passes inside of hooks."""
    saved_hooks, multi = (
        offered(f"autograd.graph.{n}", getattr(graph, n))
        for n in ("saved_tensors_hooks", "register_multi_grad_hook")
    )
    seen: list[Any] = []
    a, b = leaf_of(x), leaf_of(x.cos())
    with saved_hooks(lambda t: (seen.append(t.sum().item()), t * 1)[1], lambda t: t + 0):  # type: ignore[func-returns-value]
        y = a.sin() * b.exp()
    node = y.grad_fn
    assert node is not None
    handle = node.register_hook(lambda gi, go: tuple(g * 2 for g in gi))
    node.register_prehook(lambda go: tuple(g + 1 for g in go))
    multi((a, b), lambda grads: seen.append(sum(g.sum().item() for g in grads if g is not None)))
    multi((a, b), lambda g: seen.append(g.sum().item()), mode="any")
    c = leaf_of(x)
    a.register_hook(torch.enable_grad()(lambda g: (c.exp() * g.detach()).sum().backward()))
    y.sum().backward(retain_graph=True)
    first = a.grad * 1  # type: ignore[operator]
    handle.remove()
    y.sum().backward()
    names = [
        text_number(type(y.grad_fn).__name__),
        text_number(node.name()),
        len(node.next_functions),
        node.next_functions[0][1],
    ]
    with offered("autograd.graph.disable_saved_tensors_hooks", graph.disable_saved_tensors_hooks)(
        "not here"
    ):
        flags = refused(lambda: saved_hooks(lambda t: t, lambda t: t).__enter__())
    with offered("autograd.graph.save_on_cpu", graph.save_on_cpu)():
        z = (c * c).sum()
    with offered(
        "autograd.graph.allow_mutation_on_saved_tensors", graph.allow_mutation_on_saved_tensors
    )():
        t = c * 1
        out = t * t
        t.add_(1)
        kept = grad_of(out.sum(), c)[0]
    bad = refused(
        lambda: _packed(saved_hooks, a, lambda t: t.add_(1)), lambda: _unpacked(saved_hooks, a)
    )
    return beside(
        x, first, a.grad, b.grad, c.grad, *seen, *names, grad_of(z, c)[0], kept, *flags, *bad
    )


def _packed(saved_hooks: Any, a: Tensor, pack: Callable[[Tensor], Any]) -> None:
    with saved_hooks(pack, lambda t: t):
        (a.exp() * a.sin()).sum().backward()


def _unpacked(saved_hooks: Any, a: Tensor) -> None:
    with saved_hooks(lambda t: t, lambda t: 3):
        (a.exp() * a.sin()).sum().backward()


def saved_by_nodes(x: Tensor) -> Results:
    """What nodes have saved, by its name, before and after it is freed, and anomalies with the
    place of their forward call."""
    a = leaf_of(x)
    y = a.exp() * a.sin()
    node: Any = y.grad_fn
    found = [node._saved_self, node._saved_other, node.next_functions[0][0]._saved_result]
    raw = node._raw_saved_self
    raw.register_hooks(lambda t: t * 2, lambda t: t / 2)
    y.sum().backward()
    flags = refused(lambda: node._saved_self, lambda: raw.register_hooks(lambda t: t, lambda t: t))

    def undefined() -> None:
        with (
            offered("autograd.detect_anomaly", torch.autograd.detect_anomaly)(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            (a * 0).sqrt().mul(0).sum().backward()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flags += refused(undefined)
    power = (a**3).sum()
    number: Any = a.pow(2.5).grad_fn
    return beside(
        x, *(t.detach() for t in found), a.grad, number._saved_exponent, *flags, power.detach()
    )


def functional_products(x: Tensor) -> Results:
    """torch.autograd.functional with its options: vectorized, strict, by forward mode, with a
    graph, and of several arguments."""
    functional = offered("autograd.functional", torch.autograd.functional)
    f = lambda a, b: (a.sin() * b).sum(1)  # noqa: E731
    g = lambda a, b: (a.exp() * b).sum()  # noqa: E731
    a, b = x.detach() / 4, x.detach().cos()
    found: list[Any] = [
        *functional.jacobian(f, (a, b)),
        *functional.jacobian(f, (a, b), vectorize=True),
    ]
    found += functional.jacobian(f, (a, b), vectorize=True, strategy="forward-mode")
    found += [part for row in functional.hessian(g, (a, b), vectorize=True) for part in row]
    found += [
        part
        for row in functional.hessian(
            g, (a, b), vectorize=True, outer_jacobian_strategy="forward-mode"
        )
        for part in row
    ]
    found += [
        *functional.vjp(f, (a, b), a[0])[1],
        functional.jvp(f, (a, b), (b, a))[1],
        *functional.vhp(g, (a, b), (b, a))[1],
    ]
    found += functional.hvp(g, (a, b), (b, a))[1]
    leaf = leaf_of(a)
    kept = functional.jacobian(lambda t: t.sin() * t.sum(), leaf, create_graph=True)
    found.append(grad_of(kept.square().sum(), leaf)[0])
    flags = refused(
        lambda: functional.jacobian(f, (a, b), strict=True, vectorize=True),
        lambda: functional.jacobian(lambda t: b, a, strict=True),
        lambda: functional.jacobian(lambda t: 2.0, a),
        lambda: functional.hessian(f, (a, b)),
        lambda: functional.vjp(f, (a, b)),
        lambda: functional.vjp(f, (a, b), a),
        lambda: functional.jvp(f, (a, b)),
        lambda: functional.jvp(f, (a, b), a),
        lambda: functional.hvp(lambda t: t.sum(), a, a, strict=True),
        lambda: functional.vhp(f, (a, b), (b, a)),
        lambda: functional.jacobian(f, (a, b), strategy="forward-mode"),
        lambda: functional.jacobian(f, [a, 2.0]),
    )
    return beside(x, *found, functional.jacobian(lambda t: b, a), *flags, kept.requires_grad)


# --- forward mode ---------------------------------------------------------------------------------


def dual_tensors(x: Tensor) -> Results:
    """Tangents through views, writes, functions of modules and changes of dtype, and what
    unpacked pairs say."""
    forward_ad = offered("autograd.forward_ad", torch.autograd.forward_ad)
    a, t = x.detach(), x.detach().cos()
    found: list[Any] = []
    with forward_ad.dual_level():
        d = forward_ad.make_dual(a, t)
        e = d.sin() * a
        e[0].mul_(d[1])
        e.t()[1:].add_(d.t()[:2])
        view = e.view(-1)[::2]
        e.add_(1)
        f = a.new_zeros(3, 3)
        f.copy_(d * 2)
        outs = [
            e,
            view,
            f,
            d.to(torch.complex128) * 1j,
            F.layer_norm(d, (3,)),
            d.float().double(),
            torch.stack([d, a]),
            d.detach(),
            d.max(0)[0],
        ]
        for out in outs:
            pair = forward_ad.unpack_dual(out)
            found += [
                pair.primal,
                pair.tangent is None,
                torch.zeros(()) if pair.tangent is None else pair.tangent,
            ]
        plain = forward_ad.unpack_dual(a)
        leaf = leaf_of(a)
        mixed = forward_ad.unpack_dual(forward_ad.make_dual(leaf, t).sin()).tangent
        found += [
            grad_of(mixed.sum(), leaf)[0],
            plain.tangent is None,
            d.is_leaf,
            text_number(type(pair).__name__),
        ]
    return beside(x, *found, forward_ad.unpack_dual(d).tangent is None)


def dual_tensors_refused(x: Tensor) -> Results:
    """Tangents that fit nothing, levels that are not entered, and writes that would lose a
    tangent."""
    forward_ad = offered("autograd.forward_ad", torch.autograd.forward_ad)
    a = x.detach()
    flags = refused(lambda: forward_ad.make_dual(a, a))
    with forward_ad.dual_level():
        d = forward_ad.make_dual(a.clone(), a)
        flags += refused(
            lambda: forward_ad.make_dual(a.clone(), a[0]),
            lambda: forward_ad.make_dual(d, a),
            lambda: forward_ad.make_dual(torch.arange(3), torch.arange(3)),
            lambda: forward_ad.make_dual(2.0, a),
            lambda: torch.sin(d, out=torch.empty_like(a)),
            lambda: forward_ad.dual_level().__enter__(),
            lambda: d.numpy() if False else d.resize_(2),
        )
        kept = forward_ad.unpack_dual(d).tangent
    with forward_ad.dual_level():
        again = forward_ad.unpack_dual(forward_ad.make_dual(a, a.cos()).exp()).tangent
    return beside(x, kept, again, *flags)


def checked_gradients(x: Tensor) -> Results:
    """gradcheck of right and wrong gradients, with its options."""
    check, twice = (
        offered(f"autograd.{n}", getattr(torch.autograd, n)) for n in ("gradcheck", "gradgradcheck")
    )
    a, b = leaf_of(x / 4), leaf_of(x.cos())

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return t.sin()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * ctx.saved_tensors[0].cos() * 1.1  # type: ignore[no-any-return]

    f = lambda s, t: (s.sin() * t).sum(1)  # noqa: E731
    found = [
        check(f, (a, b)),
        check(f, (a, b), fast_mode=True),
        twice(f, (a, b)),
        check(f, (a, b), check_forward_ad=True, check_batched_grad=True),
    ]
    found += [
        check(Wrong.apply, (a,), raise_exception=False),
        twice(f, (a, b), fast_mode=True),
        check(torch.complex, (a, b)),
    ]
    flags = refused(
        lambda: check(Wrong.apply, (a,)),
        lambda: check(Wrong.apply, (a,), fast_mode=True),
        lambda: check(f, (a.detach(), b.detach())),
        lambda: check(lambda t: t.detach(), (a,)),
        lambda: check(lambda t: t * torch.rand_like(t), (a,)),
    )
    return beside(x, *found, *flags)


def checkpoints(x: Tensor) -> Results:
    """Regions that are computed again: nested, in sequence, with draws, keywords, several results,
    policies and early stops."""
    module = offered("checkpoint", torch.utils.checkpoint)
    a, b = x * 1, x.cos()
    f = lambda s, t, *, k=1.0: (s.sin() * t.exp() * k, s.sum())  # noqa: E731
    found: list[Any] = [*module.checkpoint(f, a, b, k=2.0, use_reentrant=False)]
    found.append(
        module.checkpoint(
            lambda s: module.checkpoint(torch.sin, s, use_reentrant=False).exp(),
            a,
            use_reentrant=False,
        )
    )
    found.append(
        module.checkpoint_sequential([torch.sin, torch.exp, torch.tanh], 2, a, use_reentrant=False)
    )
    found.append(module.checkpoint(lambda s: F.dropout(s, 0.5) * s, a, use_reentrant=False))
    found.append(
        module.checkpoint(
            lambda s: F.dropout(s, 0.5), a, use_reentrant=False, preserve_rng_state=False
        ).detach()
        * 0
    )
    with module.set_checkpoint_early_stop(False):
        found.append(module.checkpoint(lambda s: s.exp().sin(), a, use_reentrant=False))
    policy = module.CheckpointPolicy
    contexts = lambda: module.create_selective_checkpoint_contexts([torch.ops.aten.sin.default])  # noqa: E731
    chosen = lambda: module.create_selective_checkpoint_contexts(  # noqa: E731
        lambda ctx, op, *args, **kwargs: (
            policy.MUST_SAVE if op is torch.ops.aten.exp.default else policy.PREFER_RECOMPUTE
        )
    )
    found += [
        module.checkpoint(lambda s: s.sin().exp() * s, a, use_reentrant=False, context_fn=c)
        for c in (contexts, chosen)
    ]
    flags: list[bool] = []
    turn = [0]

    def changing(s: Tensor) -> Tensor:
        turn[0] += 1
        return (s.sin() if turn[0] == 1 else s[:2].exp()).exp()

    leaf = leaf_of(x)
    flags += refused(
        lambda: module.checkpoint(changing, leaf, use_reentrant=False).sum().backward()
    )
    flags += refused(
        lambda: module.checkpoint(torch.sin, leaf, use_reentrant=True, context_fn=contexts)
    )
    return *found, *flags


def modes_of_grad(x: Tensor) -> Results:
    """Recording that is switched by functions, decorators and inference mode, and views
    and writes there."""
    a = leaf_of(x)

    @torch.no_grad()
    def off(t: Tensor) -> Tensor:
        return t * 2

    @torch.enable_grad()
    def on(t: Tensor) -> Tensor:
        return t * 3

    with torch.no_grad():
        view, inside = a[0], on(a)
        inner = a.view(-1)
    with torch.inference_mode():
        frozen = a * 2
        aliased = a.detach()[0]
        both = [
            frozen.is_inference(),
            aliased.is_inference(),
            torch.is_grad_enabled(),
            frozen.requires_grad,
        ]
    torch._C._set_grad_enabled(False)
    off_now = (a * 2).requires_grad
    torch._C._set_grad_enabled(True)
    flags = refused(
        lambda: frozen.requires_grad_(),
        lambda: (a * frozen).sum().backward(),
        lambda: view.mul_(2),
        lambda: frozen.add_(1),
    )
    with torch.no_grad():
        view.mul_(2)
    inside.sum().backward()
    asked = [t.requires_grad for t in (off(a), on(a), view, inner, frozen.clone())]
    return beside(x, a.grad, a.detach(), *both, off_now, *flags, *asked, off(a), frozen.clone())
