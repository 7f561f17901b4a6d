"""Programs of the eager session that ask its engine, its tensors and its forward mode for what eager code asks torch's for."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gen.targets.parts import offered
from tests.compositions.tools import Results, beside, own, refused

F = nn.functional
graph = torch.autograd.graph


def _grad(*args: Any, **options: Any) -> Any:
    return offered("autograd.grad", torch.autograd.grad)(*args, **options)


def _leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


def _text(value: object) -> int:
    """A number for a text."""
    return zlib.crc32(str(value).encode())


# --- layers that the session records whole ------------------------------------------------------------------------------------------


def _weights(x: Tensor, rows: int, columns: int = 3) -> list[Tensor]:
    many = torch.cat([x, x.sin(), x.cos(), x.exp() / 9, x * x / 20, x.tanh()], 0)
    return [many[:rows, :columns], many.flip(0)[:rows, :columns], many[:rows, 0], many.flip(0)[:rows, 1]]


def recurrent_layers(x: Tensor) -> Results:
    """Recurrent layers of each kind with their last states: with and without biases, the batch in front, and without gradients."""
    steps, h = torch.stack([x.sin(), x.cos()]), torch.stack([x]).tanh()
    found: list[Any] = [*torch.lstm(steps, (h, h * 2), _weights(x, 12), True, 1, 0.0, False, False, False)]
    found += torch.lstm(steps, (h, h * 2), _weights(x, 12)[:2], False, 1, 0.0, False, False, True)[:1] if len(steps) == 3 else []
    found += torch.gru(steps, h, _weights(x, 9), True, 1, 0.0, True, False, False)
    found += torch.gru(torch.stack([x, x, x]), h, _weights(x, 9)[:2], False, 1, 0.0, False, False, True)
    found += torch.rnn_tanh(steps, h, _weights(x, 3), True, 1, 0.0, False, False, False)
    found += torch.rnn_relu(torch.stack([x, x, x]), h, _weights(x, 3), True, 1, 0.0, False, False, True)
    with torch.no_grad():
        found += torch.gru(steps, h, _weights(x, 9), True, 1, 0.0, False, False, False)
    constant = [w.detach() for w in _weights(x, 12)]
    return *found, torch.lstm(steps, (h.detach(), h.detach()), constant, True, 1, 0.0, False, False, False)[0]


def recurrent_stacks(x: Tensor) -> Results:
    """Both directions, two layers, a projection and packed sequences; some states are not used, and second derivatives."""
    steps, h = torch.stack([x.sin(), x.cos()]), torch.stack([x, x.cos(), x.sin(), x * 0.3]).tanh()
    both = [*_weights(x, 9), *(w * 0.5 for w in _weights(x.cos(), 9))]
    upper = [torch.cat([both[0], both[0]], 1), *both[1:4], torch.cat([both[4], both[4]], 1), *both[5:]]
    found: list[Any] = [*torch.gru(steps, h, [*both, *upper], True, 2, 0.0, True, True, False)]
    found.append(torch.rnn_tanh(steps, h[:2], [*_weights(x, 3), *_weights(x.cos(), 3)], True, 2, 0.0, False, False, False)[1])
    w = _weights(x, 12)
    projected = [w[0], w[1][:, :2], *w[2:], x[:2] * 0.5]
    found += torch.lstm(steps, (h[:1, :, :2], h[:1]), projected, True, 1, 0.0, False, False, False)[:2]
    data, sizes = torch.cat([x, x[:2], x[:1]]), torch.tensor([3, 2, 1])
    found += torch.gru(data, sizes, h[:1], _weights(x, 9), True, 1, 0.0, False, False)
    found += torch.lstm(data, sizes, (h[:2], h[2:]), [*w, *(t * 2 for t in w)], True, 1, 0.0, False, True)[1:]
    leaf = _leaf(x)
    out = torch.gru(torch.stack([leaf, leaf]), h[:1].detach(), [t.detach() for t in _weights(x, 9)], True, 1, 0.0, False, False, False)[0]
    (first,) = _grad(out.sum(), leaf, create_graph=True)
    return *found, first.detach(), _grad(first.square().sum(), leaf)[0]


def recurrent_cells(x: Tensor) -> Results:
    """Cells of each kind, of which one is used twice, with and without biases."""
    h = x.tanh()
    first, second = torch.lstm_cell(x, (h, h.sin()), *_weights(x, 12)), torch.lstm_cell(x.cos(), (h, h), *_weights(x, 12)[:2])
    gru = torch.gru_cell(x, h, *_weights(x, 9))
    again = torch.gru_cell(gru, h, *_weights(x, 9)[:2])
    return *first, *second, again, torch.rnn_tanh_cell(x, again, *_weights(x, 3)), torch.rnn_relu_cell(x, h, *_weights(x, 3)[:2])


def layers(x: Tensor) -> Results:
    """Linear layers, products and normalizations of every rank, with gradients for some of the arguments, and writes to results."""
    a, b = torch.stack([x, x.sin()]), torch.stack([x.cos()]).unsqueeze(0)
    found: list[Any] = [
        F.linear(x, x.t(), x[0]),
        F.linear(a, x),
        F.linear(x[0], x, x[1]),
        F.linear(a, x.detach(), x[0]),
        F.linear(a.detach(), x),
    ]
    found += [F.linear(x[0], x[1]), torch.matmul(x[0], x[1]), torch.matmul(x, x[0]), torch.matmul(x[0], x), torch.matmul(a, x)]
    found += [
        torch.matmul(x, a),
        torch.matmul(a, b),
        torch.matmul(b, x[0]),
        torch.matmul(x[0], a),
        torch.matmul(a, a.mT),
        a.detach() @ x,
        x.detach() @ a,
    ]
    for weight, bias in ((None, None), (x[0], None), (x[0], x[1]), (x[0].detach(), x[1])):
        found += [F.layer_norm(a, (3,), weight, bias), F.layer_norm(x.detach(), (3,), weight, bias, eps=0.1)]
    found.append(F.layer_norm(a, (3, 3), x, x.cos()))
    y = F.linear(a, x)
    y.add_(1)
    y[0].mul_(2)
    z = torch.matmul(a, x)
    z.view(-1)[:2].zero_()
    out = torch.empty_like(x.detach())
    torch.matmul(x.detach(), x.detach(), out=out)
    flags = [y._is_view(), z._version, y._version, F.linear(a.detach(), x.detach()).requires_grad, y.is_contiguous()]
    wrong = refused(
        lambda: F.linear(x, x[:, :2]), lambda: torch.matmul(x, x[:2]), lambda: F.layer_norm(x, (2,)), lambda: F.linear(x, x, x[0, :2])
    )
    return *found, y, z, out, *flags, *wrong


# --- the engine -------------------------------------------------------------------------------------------------------------------


def gradients_of_outputs(x: Tensor) -> Results:
    """Gradients of several outputs, by one input and several, of which some are unused, in a batch, twice and by an edge."""
    a, b = _leaf(x), _leaf(x.cos())
    y, z = a.sin() * b, a.exp().sum()
    first = _grad([y, z], [a, b], [x.detach(), None], retain_graph=True)
    single = _grad(z, a, retain_graph=True)
    unused = _grad(z, [a, b], allow_unused=True, retain_graph=True)
    zeros = _grad(z, [a, b], materialize_grads=True, retain_graph=True)
    basis = torch.eye(9, dtype=x.dtype).reshape(9, 3, 3)
    many = _grad(y, [a, b], basis, is_grads_batched=True, retain_graph=True)
    inner = a * 2
    of_inner = _grad((inner.sin() + inner).sum(), [inner, a])
    same = _grad((a * a).sum(), [a, a])
    both = _grad([y, y], b, [x.detach(), x.detach()], retain_graph=True)
    edge = offered("autograd.graph.get_gradient_edge", graph.get_gradient_edge)(y)
    by_edge = _grad([edge], a, [x.detach()])
    flags = [unused[1] is None, a.grad is None, first[0].requires_grad]
    return beside(x, *first, *single, unused[0], *zeros, *many, *of_inner, *same, *both, *by_edge, *flags)


def gradients_refused(x: Tensor) -> Results:
    """Calls of the engine that fit nothing."""
    a, b = _leaf(x), _leaf(x.cos())
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
        lambda: _grad(y, a),
        lambda: _grad(y.sum(), b),
        lambda: _grad(y.sum(), []),
        lambda: _grad(y.sum(), x.detach()),
        lambda: _grad(y, a, x.detach()[0]),
        lambda: _grad(y, a, torch.ones(3, 3, dtype=torch.complex128)),
        lambda: _grad(z, a, x.detach()),
        lambda: _grad(z.sum(), a),
        lambda: _grad(x.detach().sum(), a),
        lambda: _grad([], a),
        lambda: _grad(y, a, 1.0),
        lambda: _grad(y.sum(), a, allow_unused=False, materialize_grads=True),
        lambda: _grad(y, a, x.detach(), is_grads_batched=True),
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
    """Where gradients lie in memory, which are added in place, and what a leaf gets of another dtype or a sparse table."""
    a, t = _leaf(x), x.detach().t().clone(memory_format=torch.preserve_format).requires_grad_()
    a.expand(2, 3, 3).sum().backward()
    (t * 2).sum().backward()
    first, version = a.grad, a.grad._version
    (a * 3).sum().backward()
    table, words = _leaf(x), torch.tensor([0, 2, 2])
    F.embedding(words, table, sparse=True).sin().sum().backward()
    sparse = table.grad
    (table * 2).sum().backward()
    narrow = x.detach().float().requires_grad_()
    (narrow.double() * 2).sum().backward()
    cotangent = x.detach().clone()
    b = _leaf(x)
    (b + 0).backward(cotangent)
    shares = b.grad.data_ptr() == cotangent.data_ptr()
    c = _leaf(x)
    c.backward(cotangent)
    pair = _leaf(x)
    (pair[0] + pair[1]).backward(cotangent[0])
    flags = [a.grad is first, version, a.grad._version, a.grad.stride(), t.grad.stride(), sparse.is_sparse, table.grad.is_sparse]
    return beside(x, a.grad, t.grad, sparse.to_dense(), table.grad.to_dense(), narrow.grad, b.grad, c.grad, pair.grad, *flags, shares)


def hooks_of_passes(x: Tensor) -> Results:
    """Hooks on nodes, on several tensors at once, on what is saved, and passes inside of hooks."""
    saved_hooks, multi = (offered(f"autograd.graph.{n}", getattr(graph, n)) for n in ("saved_tensors_hooks", "register_multi_grad_hook"))
    seen: list[Any] = []
    a, b = _leaf(x), _leaf(x.cos())
    with saved_hooks(lambda t: (seen.append(t.sum().item()), t * 1)[1], lambda t: t + 0):
        y = a.sin() * b.exp()
    node = y.grad_fn
    assert node is not None
    handle = node.register_hook(lambda gi, go: tuple(g * 2 for g in gi))
    node.register_prehook(lambda go: tuple(g + 1 for g in go))
    multi((a, b), lambda grads: seen.append(sum(g.sum().item() for g in grads if g is not None)))
    multi((a, b), lambda g: seen.append(g.sum().item()), mode="any")
    c = _leaf(x)
    a.register_hook(torch.enable_grad()(lambda g: (c.exp() * g.detach()).sum().backward()))
    y.sum().backward(retain_graph=True)
    first = a.grad * 1
    handle.remove()
    y.sum().backward()
    names = [_text(type(y.grad_fn).__name__), _text(node.name()), len(node.next_functions), node.next_functions[0][1]]
    with offered("autograd.graph.disable_saved_tensors_hooks", graph.disable_saved_tensors_hooks)("not here"):
        flags = refused(lambda: saved_hooks(lambda t: t, lambda t: t).__enter__())
    with offered("autograd.graph.save_on_cpu", graph.save_on_cpu)():
        z = (c * c).sum()
    with offered("autograd.graph.allow_mutation_on_saved_tensors", graph.allow_mutation_on_saved_tensors)():
        t = c * 1
        out = t * t
        t.add_(1)
        kept = _grad(out.sum(), c)[0]
    bad = refused(lambda: _packed(saved_hooks, a, lambda t: t.add_(1)), lambda: _unpacked(saved_hooks, a))
    return beside(x, first, a.grad, b.grad, c.grad, *seen, *names, _grad(z, c)[0], kept, *flags, *bad)


def _packed(saved_hooks: Any, a: Tensor, pack: Callable[[Tensor], Any]) -> None:
    with saved_hooks(pack, lambda t: t):
        (a.exp() * a.sin()).sum().backward()


def _unpacked(saved_hooks: Any, a: Tensor) -> None:
    with saved_hooks(lambda t: t, lambda t: 3):
        (a.exp() * a.sin()).sum().backward()


def saved_by_nodes(x: Tensor) -> Results:
    """What nodes have saved, by its name, before and after it is freed, and anomalies with the place of their forward call."""
    a = _leaf(x)
    y = a.exp() * a.sin()
    node: Any = y.grad_fn
    found = [node._saved_self, node._saved_other, node.next_functions[0][0]._saved_result]
    raw = node._raw_saved_self
    raw.register_hooks(lambda t: t * 2, lambda t: t / 2)
    y.sum().backward()
    flags = refused(lambda: node._saved_self, lambda: raw.register_hooks(lambda t: t, lambda t: t))

    def undefined() -> None:
        with offered("autograd.detect_anomaly", torch.autograd.detect_anomaly)(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (a * 0).sqrt().mul(0).sum().backward()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flags += refused(undefined)
    power = (a**3).sum()
    number: Any = a.pow(2.5).grad_fn
    return beside(x, *(t.detach() for t in found), a.grad, number._saved_exponent, *flags, power.detach())


def functional_products(x: Tensor) -> Results:
    """torch.autograd.functional with its options: vectorized, strict, by forward mode, with a graph, and of several arguments."""
    functional = offered("autograd.functional", torch.autograd.functional)
    f = lambda a, b: (a.sin() * b).sum(1)  # noqa: E731
    g = lambda a, b: (a.exp() * b).sum()  # noqa: E731
    a, b = x.detach() / 4, x.detach().cos()
    found: list[Any] = [*functional.jacobian(f, (a, b)), *functional.jacobian(f, (a, b), vectorize=True)]
    found += functional.jacobian(f, (a, b), vectorize=True, strategy="forward-mode")
    found += [part for row in functional.hessian(g, (a, b), vectorize=True) for part in row]
    found += [part for row in functional.hessian(g, (a, b), vectorize=True, outer_jacobian_strategy="forward-mode") for part in row]
    found += [*functional.vjp(f, (a, b), a[0])[1], functional.jvp(f, (a, b), (b, a))[1], *functional.vhp(g, (a, b), (b, a))[1]]
    found += functional.hvp(g, (a, b), (b, a))[1]
    leaf = _leaf(a)
    kept = functional.jacobian(lambda t: t.sin() * t.sum(), leaf, create_graph=True)
    found.append(_grad(kept.square().sum(), leaf)[0])
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


# --- forward mode -----------------------------------------------------------------------------------------------------------------


def dual_tensors(x: Tensor) -> Results:
    """Tangents through views, writes, functions of modules and changes of dtype, and what unpacked pairs say."""
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
            found += [pair.primal, pair.tangent is None, torch.zeros(()) if pair.tangent is None else pair.tangent]
        plain = forward_ad.unpack_dual(a)
        leaf = _leaf(a)
        mixed = forward_ad.unpack_dual(forward_ad.make_dual(leaf, t).sin()).tangent
        found += [_grad(mixed.sum(), leaf)[0], plain.tangent is None, d.is_leaf, _text(type(pair).__name__)]
    return beside(x, *found, forward_ad.unpack_dual(d).tangent is None)


def dual_tensors_refused(x: Tensor) -> Results:
    """Tangents that fit nothing, levels that are not entered, and writes that would lose a tangent."""
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


# --- tensors ----------------------------------------------------------------------------------------------------------------------


def attributes(x: Tensor) -> Results:
    """What tensors show of themselves, as texts, and attributes that are set, read and deleted."""
    a, y = _leaf(x), x.detach() * 1
    z = a * 2
    texts = [
        repr(a),
        repr(z),
        repr(y),
        repr(z.view(-1)),
        repr(nn.Parameter(y)),
        repr(a.exp().sum()),
        repr(y > 0),
        repr(torch.complex(a, a)),
        str(z.grad_fn)[:10],
    ]
    a.grad = y.cos()
    del a.grad
    before = a.grad is None
    a.unit = "kept"  # type: ignore[attr-defined]
    z.retain_grad()
    z.retain_grad()
    (z * z).sum().backward()
    flags = refused(
        lambda: setattr(y, "requires_grad", 1),
        lambda: setattr(z, "requires_grad", True),
        lambda: setattr(torch.arange(3), "requires_grad", True),
        lambda: z.requires_grad_(False),
        lambda: torch.arange(3).requires_grad_(),
        lambda: setattr(a, "grad", 1.0),
        lambda: setattr(a, "grad", a),
        lambda: setattr(y, "grad", y[0]),
        lambda: setattr(_leaf(x), "grad", y.float()),
        lambda: setattr(a, "data", 1.0),
        lambda: setattr(a, "data", torch.arange(3)),
        lambda: delattr(a, "data"),
        lambda: delattr(a, "requires_grad"),
        lambda: y.retain_grad(),
        lambda: y.register_hook(lambda g: g),
        lambda: z.register_post_accumulate_grad_hook(lambda t: None),
        lambda: y.register_post_accumulate_grad_hook(lambda t: None),
        lambda: a.numpy(),
        lambda: z.__deepcopy__({}),
        lambda: z[0].detach_(),
        lambda: setattr(a, "grad_fn", None),
        lambda: y.backward(),
    )
    kinds = [a.requires_grad, z.retains_grad, a.retains_grad, z.output_nr, a.is_leaf, z.is_leaf, z[0]._base is z, a._base is None, before]
    inside = z.detach()
    inside.requires_grad = True
    return beside(x, *map(_text, texts), z.grad, a.grad, *flags, *kinds, inside.is_leaf, copy.copy(a).unit == "kept")  # type: ignore[attr-defined]


def indexed(x: Tensor) -> Results:
    """Every way to index, read and assign: numbers, slices, None, lists, masks, and in a loop."""
    y, mask = x * 1, x.detach() > 0
    found: list[Any] = [
        y[0, 1],
        y[-1],
        y[1:, ::2],
        y[None, 0],
        y[..., 1],
        y[[0, 2]],
        y[mask],
        y[torch.tensor(1)],
        y[:, torch.tensor([0, 0])],
    ]
    found += [
        y[0][1][None],
        y[mask[0]],
        y[(0, slice(None), None)],
        y[True],
        y[1, ...],
        torch.stack([row.sum() for row in y]),
        y[torch.tensor([2, 0]), torch.tensor([1, 1])],
    ]
    z = y.clone()
    z[0] = 2.0
    z[1, 1:] = y[0, :2]
    z[mask] = z[mask] * 3
    z[:, [0]] += 1
    z[..., -1] = y[0].sum()
    z[torch.tensor([0, 0]), torch.tensor([1, 1])] = y[2, 0]
    z[None, 2, 0] = y[1, 1]
    w = x.detach().clone()
    w[0, 0] = 5
    w[1:] = w[:2].clone()
    w[w > 1] = 0
    (first, *_), (low, high, _) = y.unbind(0), y.detach()[0].tolist()
    numbers = [
        y[0, 0].item(),
        float(y[0, 0]),
        int(y[1, 1] * 10),
        bool((y[0, 0] == y[0, 0]).all()),
        len(y),
        (y[0, 0] in y),
        low,
        high,
        y.sum().item() > 1e9,
    ]
    numbers += [
        w[0, 1].item(),
        bool(w[2, 2] == 0),
        hash(y) == hash(y),
        y.dim(),
        (y[0] < 100).all().item(),
        f"{w[0, 0]:.2f}" == f"{w[0, 0].item():.2f}",
    ]
    flags = refused(
        lambda: y[3],
        lambda: y[0, 0, 0],
        lambda: y[::-1],
        lambda: bool(y),
        lambda: y.item(),
        lambda: y["a"],
        lambda: int(y),
        lambda: len(y[0, 0]),
    )
    return *found, z, w, first, *numbers, *flags, [3, 4, 5][torch.tensor(1)], *range(10)[w[0, 0].long() * 0 :][:2]


class Length(torch.Tensor):
    """A class of a program's own, which counts functions that it sees."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Length.seen += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def own_classes(x: Tensor) -> Results:
    """Tensors of a class of the program: what results are, what is recorded, and what is kept of attributes."""
    a = _leaf(x)
    length = (a * 2).as_subclass(Length)
    length.unit = "m"  # type: ignore[attr-defined]
    before = Length.seen
    y = length.sin() + a
    z = length[0] * 2
    counted = Length.seen > before
    y.sum().backward()
    kinds = [isinstance(t, Length) for t in (length, y, z, y.detach(), y.sum(), a * 2, length.clone(), y.as_subclass(torch.Tensor))]
    deep = y.detach().clone()
    flags = [isinstance(deep, Length), y.requires_grad, z.grad_fn is not None, length.unit == "m", "Length" in repr(y.detach()), counted]  # type: ignore[attr-defined]
    return beside(x, a.grad, y.detach().as_subclass(torch.Tensor), z.detach().as_subclass(torch.Tensor), *kinds, *flags)


def kept_in_files(x: Tensor) -> Results:
    """Tensors, parameters and modules that are pickled, saved and copied, with what they share."""
    a, buffer = _leaf(x), io.BytesIO()
    a.sin().sum().backward()
    layer = nn.Linear(3, 3).double()
    layer.weight = nn.Parameter(x.detach().clone())
    layer.bias = nn.Parameter(x.detach()[0].clone())
    layer.register_buffer("kept", x.detach()[1].clone())
    state = {"a": a, "view": a.detach()[1], "list": [a.detach(), 3], "layer": layer.state_dict()}
    torch.save(state, buffer)
    buffer.seek(0)
    read = torch.load(buffer, weights_only=True)
    other, pickled = copy.deepcopy(layer), pickle.loads(pickle.dumps({"a": a, "v": a.detach().t()}))
    other.load_state_dict(read["layer"])
    other(x.detach()).sum().backward()
    shares = read["view"].untyped_storage().data_ptr() == read["list"][0].untyped_storage().data_ptr()
    flags = [
        read["a"].requires_grad,
        read["a"].is_leaf,
        read["a"].grad is None,
        shares,
        pickled["a"].requires_grad,
        other.kept is layer.kept,
    ]
    flags += [isinstance(other.weight, nn.Parameter), layer.weight.grad is None, pickled["v"].stride()]
    return beside(x, read["a"].detach(), read["view"], *read["layer"].values(), pickled["v"], other.weight.grad, *flags)


def accumulated_by_modules(x: Tensor) -> Results:
    """A module in the session: hooks of modules, buffers of batch norm, gradients and frozen parts."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.0), nn.Linear(3, 2)).double()
    for part in model:
        for name, p in list(part.named_parameters()):  # as parameters of the session, if x is of the session
            setattr(part, name, nn.Parameter(torch.linspace(-1, 2, p.numel(), dtype=p.dtype).reshape(p.shape) + x.detach().sum() * 0))
    seen: list[Any] = []
    model[0].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].sum()))
    model[3].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
    model[1].register_forward_hook(lambda m, args, out: out + 1)
    model[3].bias.requires_grad_(False)
    out = model(x * 1)
    out.square().sum().backward(retain_graph=True)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    model.zero_grad(set_to_none=False)
    zeros = [p.grad.abs().sum() for p in model.parameters() if p.grad is not None]
    model.eval()
    return (
        out.detach(),
        model(x).sum(),
        *(g.detach() * 1 for g in grads),
        norm,
        *zeros,
        *seen,
        *(b.clone() for b in model.buffers()),
        len(grads),
    )


def checked_gradients(x: Tensor) -> Results:
    """gradcheck of right and wrong gradients, with its options."""
    check, twice = (offered(f"autograd.{n}", getattr(torch.autograd, n)) for n in ("gradcheck", "gradgradcheck"))
    a, b = _leaf(x / 4), _leaf(x.cos())

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return t.sin()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * ctx.saved_tensors[0].cos() * 1.1

    f = lambda s, t: (s.sin() * t).sum(1)  # noqa: E731
    found = [
        check(f, (a, b)),
        check(f, (a, b), fast_mode=True),
        twice(f, (a, b)),
        check(f, (a, b), check_forward_ad=True, check_batched_grad=True),
    ]
    found += [check(Wrong.apply, (a,), raise_exception=False), twice(f, (a, b), fast_mode=True), check(torch.complex, (a, b))]
    flags = refused(
        lambda: check(Wrong.apply, (a,)),
        lambda: check(Wrong.apply, (a,), fast_mode=True),
        lambda: check(f, (a.detach(), b.detach())),
        lambda: check(lambda t: t.detach(), (a,)),
        lambda: check(lambda t: t * torch.rand_like(t), (a,)),
    )
    return beside(x, *found, *flags)


def checkpoints(x: Tensor) -> Results:
    """Regions that are computed again: nested, in sequence, with draws, keywords, several results, policies and early stops."""
    module = offered("checkpoint", torch.utils.checkpoint)
    a, b = x * 1, x.cos()
    f = lambda s, t, *, k=1.0: (s.sin() * t.exp() * k, s.sum())  # noqa: E731
    found: list[Any] = [*module.checkpoint(f, a, b, k=2.0, use_reentrant=False)]
    found.append(module.checkpoint(lambda s: module.checkpoint(torch.sin, s, use_reentrant=False).exp(), a, use_reentrant=False))
    found.append(module.checkpoint_sequential([torch.sin, torch.exp, torch.tanh], 2, a, use_reentrant=False))
    found.append(module.checkpoint(lambda s: F.dropout(s, 0.5) * s, a, use_reentrant=False))
    found.append(module.checkpoint(lambda s: F.dropout(s, 0.5), a, use_reentrant=False, preserve_rng_state=False).detach() * 0)
    with module.set_checkpoint_early_stop(False):
        found.append(module.checkpoint(lambda s: s.exp().sin(), a, use_reentrant=False))
    policy = module.CheckpointPolicy
    contexts = lambda: module.create_selective_checkpoint_contexts([torch.ops.aten.sin.default])  # noqa: E731
    chosen = lambda: module.create_selective_checkpoint_contexts(  # noqa: E731
        lambda ctx, op, *args, **kwargs: policy.MUST_SAVE if op is torch.ops.aten.exp.default else policy.PREFER_RECOMPUTE
    )
    found += [module.checkpoint(lambda s: s.sin().exp() * s, a, use_reentrant=False, context_fn=c) for c in (contexts, chosen)]
    flags: list[bool] = []
    turn = [0]

    def changing(s: Tensor) -> Tensor:
        turn[0] += 1
        return (s.sin() if turn[0] == 1 else s[:2].exp()).exp()

    leaf = _leaf(x)
    flags += refused(lambda: module.checkpoint(changing, leaf, use_reentrant=False).sum().backward())
    flags += refused(lambda: module.checkpoint(torch.sin, leaf, use_reentrant=True, context_fn=contexts))
    return *found, *flags


def modes_of_grad(x: Tensor) -> Results:
    """Recording that is switched by functions, decorators and inference mode, and views and writes there."""
    a = _leaf(x)

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
        both = [frozen.is_inference(), aliased.is_inference(), torch.is_grad_enabled(), frozen.requires_grad]
    torch._C._set_grad_enabled(False)
    off_now = (a * 2).requires_grad
    torch._C._set_grad_enabled(True)
    flags = refused(lambda: frozen.requires_grad_(), lambda: (a * frozen).sum().backward(), lambda: view.mul_(2), lambda: frozen.add_(1))
    with torch.no_grad():
        view.mul_(2)
    inside.sum().backward()
    asked = [t.requires_grad for t in (off(a), on(a), view, inner, frozen.clone())]
    return beside(x, a.grad, a.detach(), *both, off_now, *flags, *asked, off(a), frozen.clone())


def views_with_histories(x: Tensor) -> Results:
    """Chains of writes through views of views, views from before and after a write, splits, and what is no more a view."""
    y = x * 1
    a, b = y[1:], y.t()
    c = a[:, 1:]
    c.mul_(b[0, 0].item())
    b[2].add_(y[0].detach())
    a[0] = c[0].sum()
    d, e = y.split(2, 0)
    f = y.unfold(1, 2, 1)[0]
    y.diagonal().zero_()
    y.as_strided((2, 2), (1, 3)).add_(c.detach())
    g = y.expand(2, 3, 3)[1]
    y.unsqueeze_(0).squeeze_(0).t_()
    h = torch.view_as_real(torch.complex(y, y * 2))[..., 1]
    flags = [t._is_view() for t in (a, b, c, f, g, h, y)]
    bad = refused(
        lambda: y.unbind(0)[0].add_(1),
        lambda: y.expand(2, 3, 3).add_(1),
        lambda: y.split(1)[0].mul_(2),
        lambda: _leaf(x)[0].mul_(2),
        lambda: _leaf(x).t_(),
        lambda: torch.sin(y, out=y.detach()),
    )
    return y, a, b, c, f, g, h, *flags, *bad, *refused(lambda: d.sum(), lambda: e.grad_fn)


def sparse_and_others(x: Tensor) -> Results:
    """Sparse tensors, masks, lists of tensors and in-place forms of many at once."""
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1, 2], [2, 0, 1]]), x[0], (3, 3))
    product, total = torch.sparse.mm(sparse, x), torch.sparse.sum(sparse * 2)
    dense = sparse.to_dense() + (sparse + sparse).to_dense()
    lists = torch._foreach_mul([x, x[0]], [x.cos(), x[1]])
    added = torch._foreach_add([x * 1, x[0] * 1], 2.0)
    written = [x * 1, x[0] * 1]
    torch._foreach_mul_(written, 3.0)
    torch._foreach_addcmul_(written, [x, x[1]], [x, x[2]], value=0.5)
    norms = torch._foreach_norm([x, x[0]])
    masked = x.masked_fill(x.detach() > 1, 0.5).masked_select(x.detach() < 2).sum()
    return product, total, dense, *lists, *added, *written, *norms, masked, torch.block_diag(x, x[:1]), *torch.broadcast_tensors(x, x[0])


def _names(nodes: Sequence[Any]) -> list[int]:
    return [_text(type(n).__name__) for n in nodes]


def graphs_of_nodes(x: Tensor) -> Results:
    """A walk through the graph behind a result: names, edges, leaves and metadata."""
    a = _leaf(x)
    y = (a.sin() * a.t() + a[0]).exp().sum()
    names, stack, leaves = [], [y.grad_fn], 0
    while stack and len(names) < 30:
        node: Any = stack.pop(0)
        names.append(type(node).__name__)
        leaves += getattr(node, "variable", None) is a
        stack += [n for n, _ in node.next_functions if n is not None]
    node = y.grad_fn
    node.metadata["k"] = 3
    kept = node.metadata["k"]
    node.register_hook(lambda gi, go: None)
    order = graph.increment_version if own("unwrap") is None else own("autograd.graph.increment_version")
    z = x.detach().clone()
    order(z)
    return beside(x, *map(_text, names), leaves, kept, z._version, y.grad_fn is node, y.grad_fn == node)
