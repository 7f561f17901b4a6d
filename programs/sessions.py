"""Programs of the eager session that ask its engine, its tensors and its forward mode for what
eager code asks torch's for."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from programs.tools import Results, beside, grad_of, leaf_of, own, refused, text_number

F = nn.functional
graph = torch.autograd.graph


# --- layers that the session records whole --------------------------------------------------------


def _weights(x: Tensor, rows: int, columns: int = 3) -> list[Tensor]:
    many = torch.cat([x, x.sin(), x.cos(), x.exp() / 9, x * x / 20, x.tanh()], 0)
    return [
        many[:rows, :columns],
        many.flip(0)[:rows, :columns],
        many[:rows, 0],
        many.flip(0)[:rows, 1],
    ]


def recurrent_layers(x: Tensor) -> Results:
    """Recurrent layers of each kind with their last states: with and without biases, the batch in
    front, and without gradients."""
    steps, h = torch.stack([x.sin(), x.cos()]), torch.stack([x]).tanh()
    found: list[Any] = [
        *torch.lstm(steps, (h, h * 2), _weights(x, 12), True, 1, 0.0, False, False, False)
    ]
    found += (
        torch.lstm(steps, (h, h * 2), _weights(x, 12)[:2], False, 1, 0.0, False, False, True)[:1]
        if len(steps) == 3
        else []
    )
    found += torch.gru(steps, h, _weights(x, 9), True, 1, 0.0, True, False, False)
    found += torch.gru(
        torch.stack([x, x, x]), h, _weights(x, 9)[:2], False, 1, 0.0, False, False, True
    )
    found += torch.rnn_tanh(steps, h, _weights(x, 3), True, 1, 0.0, False, False, False)
    found += torch.rnn_relu(
        torch.stack([x, x, x]), h, _weights(x, 3), True, 1, 0.0, False, False, True
    )
    with torch.no_grad():
        found += torch.gru(steps, h, _weights(x, 9), True, 1, 0.0, False, False, False)
    constant = [w.detach() for w in _weights(x, 12)]
    return *found, torch.lstm(
        steps, (h.detach(), h.detach()), constant, True, 1, 0.0, False, False, False
    )[0]


def recurrent_stacks(x: Tensor) -> Results:
    """Both directions, two layers, a projection and packed sequences; some states are not used, and
    second derivatives."""
    steps, h = torch.stack([x.sin(), x.cos()]), torch.stack([x, x.cos(), x.sin(), x * 0.3]).tanh()
    both = [*_weights(x, 9), *(w * 0.5 for w in _weights(x.cos(), 9))]
    upper = [
        torch.cat([both[0], both[0]], 1),
        *both[1:4],
        torch.cat([both[4], both[4]], 1),
        *both[5:],
    ]
    found: list[Any] = [*torch.gru(steps, h, [*both, *upper], True, 2, 0.0, True, True, False)]
    found.append(
        torch.rnn_tanh(
            steps,
            h[:2],
            [*_weights(x, 3), *_weights(x.cos(), 3)],
            True,
            2,
            0.0,
            False,
            False,
            False,
        )[1]
    )
    w = _weights(x, 12)
    projected = [w[0], w[1][:, :2], *w[2:], x[:2] * 0.5]
    found += torch.lstm(steps, (h[:1, :, :2], h[:1]), projected, True, 1, 0.0, False, False, False)[
        :2
    ]
    data, sizes = torch.cat([x, x[:2], x[:1]]), torch.tensor([3, 2, 1])
    found += torch.gru(data, sizes, h[:1], _weights(x, 9), True, 1, 0.0, False, False)
    found += torch.lstm(
        data, sizes, (h[:2], h[2:]), [*w, *(t * 2 for t in w)], True, 1, 0.0, False, True
    )[1:]
    leaf = leaf_of(x)
    out = torch.gru(
        torch.stack([leaf, leaf]),
        h[:1].detach(),
        [t.detach() for t in _weights(x, 9)],
        True,
        1,
        0.0,
        False,
        False,
        False,
    )[0]
    (first,) = grad_of(out.sum(), leaf, create_graph=True)
    return *found, first.detach(), grad_of(first.square().sum(), leaf)[0]


def recurrent_cells(x: Tensor) -> Results:
    """Cells of each kind, of which one is used twice, with and without biases."""
    h = x.tanh()
    first, second = (
        torch.lstm_cell(x, (h, h.sin()), *_weights(x, 12)),
        torch.lstm_cell(x.cos(), (h, h), *_weights(x, 12)[:2]),
    )
    gru = torch.gru_cell(x, h, *_weights(x, 9))
    again = torch.gru_cell(gru, h, *_weights(x, 9)[:2])
    return (
        *first,
        *second,
        again,
        torch.rnn_tanh_cell(x, again, *_weights(x, 3)),
        torch.rnn_relu_cell(x, h, *_weights(x, 3)[:2]),
    )


def layers(x: Tensor) -> Results:
    """Linear layers, products and normalizations of every rank, with gradients for some of the
    arguments, and writes to results."""
    a, b = torch.stack([x, x.sin()]), torch.stack([x.cos()]).unsqueeze(0)
    found: list[Any] = [
        F.linear(x, x.t(), x[0]),
        F.linear(a, x),
        F.linear(x[0], x, x[1]),
        F.linear(a, x.detach(), x[0]),
        F.linear(a.detach(), x),
    ]
    found += [
        F.linear(x[0], x[1]),
        torch.matmul(x[0], x[1]),
        torch.matmul(x, x[0]),
        torch.matmul(x[0], x),
        torch.matmul(a, x),
    ]
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
        found += [
            F.layer_norm(a, (3,), weight, bias),
            F.layer_norm(x.detach(), (3,), weight, bias, eps=0.1),
        ]
    found.append(F.layer_norm(a, (3, 3), x, x.cos()))
    y = F.linear(a, x)
    y.add_(1)
    y[0].mul_(2)
    z = torch.matmul(a, x)
    z.view(-1)[:2].zero_()
    out = torch.empty_like(x.detach())
    torch.matmul(x.detach(), x.detach(), out=out)
    flags = [
        y._is_view(),
        z._version,
        y._version,
        F.linear(a.detach(), x.detach()).requires_grad,
        y.is_contiguous(),
    ]
    wrong = refused(
        lambda: F.linear(x, x[:, :2]),
        lambda: torch.matmul(x, x[:2]),
        lambda: F.layer_norm(x, (2,)),
        lambda: F.linear(x, x, x[0, :2]),
    )
    return *found, y, z, out, *flags, *wrong


# --- tensors --------------------------------------------------------------------------------------


def attributes(x: Tensor) -> Results:
    """What tensors show of themselves, as texts, and attributes that are set, read and deleted."""
    a, y = leaf_of(x), x.detach() * 1
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
        lambda: setattr(leaf_of(x), "grad", y.float()),
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
    kinds = [
        a.requires_grad,
        z.retains_grad,
        a.retains_grad,
        z.output_nr,
        a.is_leaf,
        z.is_leaf,
        z[0]._base is z,
        a._base is None,
        before,
    ]
    inside = z.detach()
    inside.requires_grad = True
    return beside(
        x,
        *map(text_number, texts),
        z.grad,
        a.grad,
        *flags,
        *kinds,
        inside.is_leaf,
        copy.copy(a).unit == "kept",  # type: ignore[attr-defined]
    )


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
        lambda: y["a"],  # type: ignore[index]
        lambda: int(y),
        lambda: len(y[0, 0]),
    )
    return (
        *found,
        z,
        w,
        first,
        *numbers,
        *flags,
        [3, 4, 5][torch.tensor(1)],
        *range(10)[w[0, 0].long() * 0 :][:2],
    )


class Length(torch.Tensor):
    """A class of a program's own, which counts functions that it sees."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Length.seen += 1
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def own_classes(x: Tensor) -> Results:
    """Tensors of a class of the program: what results are, what is recorded, and what is
    kept of attributes."""
    a = leaf_of(x)
    length = (a * 2).as_subclass(Length)
    length.unit = "m"  # type: ignore[attr-defined]
    before = Length.seen
    y = length.sin() + a
    z = length[0] * 2
    counted = Length.seen > before
    y.sum().backward()
    kinds = [
        isinstance(t, Length)
        for t in (
            length,
            y,
            z,
            y.detach(),
            y.sum(),
            a * 2,
            length.clone(),
            y.as_subclass(torch.Tensor),
        )
    ]
    deep = y.detach().clone()
    flags = [
        isinstance(deep, Length),
        y.requires_grad,
        z.grad_fn is not None,
        length.unit == "m",  # type: ignore[attr-defined]
        "Length" in repr(y.detach()),
        counted,
    ]
    return beside(
        x,
        a.grad,
        y.detach().as_subclass(torch.Tensor),
        z.detach().as_subclass(torch.Tensor),
        *kinds,
        *flags,
    )


def kept_in_files(x: Tensor) -> Results:
    """Tensors, parameters and modules that are pickled, saved and copied, with what they share."""
    a, buffer = leaf_of(x), io.BytesIO()
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
    shares = (
        read["view"].untyped_storage().data_ptr() == read["list"][0].untyped_storage().data_ptr()
    )
    flags = [
        read["a"].requires_grad,
        read["a"].is_leaf,
        read["a"].grad is None,
        shares,
        pickled["a"].requires_grad,
        other.kept is layer.kept,
    ]
    flags += [
        isinstance(other.weight, nn.Parameter),
        layer.weight.grad is None,
        pickled["v"].stride(),
    ]
    return beside(
        x,
        read["a"].detach(),
        read["view"],
        *read["layer"].values(),
        pickled["v"],
        other.weight.grad,
        *flags,
    )


def accumulated_by_modules(x: Tensor) -> Results:
    """A module in the session: hooks of modules, buffers of batch norm, gradients
    and frozen parts."""
    model = nn.Sequential(
        nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.0), nn.Linear(3, 2)
    ).double()
    for part in model:
        # as parameters of the session, if x is of the session
        for name, p in list(part.named_parameters()):
            setattr(
                part,
                name,
                nn.Parameter(
                    torch.linspace(-1, 2, p.numel(), dtype=p.dtype).reshape(p.shape)
                    + x.detach().sum() * 0
                ),
            )
    seen: list[Any] = []
    model[0].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].sum()))  # type: ignore[index]
    model[3].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))  # type: ignore[index]
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


def views_with_histories(x: Tensor) -> Results:
    """Chains of writes through views of views, views from before and after a write, splits, and
    what is no more a view."""
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
        lambda: leaf_of(x)[0].mul_(2),
        lambda: leaf_of(x).t_(),
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
    return (
        product,
        total,
        dense,
        *lists,
        *added,
        *written,
        *norms,
        masked,
        torch.block_diag(x, x[:1]),
        *torch.broadcast_tensors(x, x[0]),
    )


def ragged(x: Tensor) -> Results:
    """Nested tensors of a padded tensor, of one under a mask, of a list and of a buffer, and
    functions of their components."""
    sizes, strides, offsets = (
        torch.tensor([[2, 3], [1, 3]]),
        torch.tensor([[3, 1], [3, 1]]),
        torch.tensor([0, 6]),
    )
    mask = torch.tensor([[True, True, False], [True, False, False]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        padded = torch._nested_from_padded(torch.stack([x, x.sin()]), sizes)
        masked = torch._nested_tensor_from_mask(torch.stack([x, x.cos()]), mask)
        of_list = torch._nested_tensor_from_tensor_list([x * 2, x[:2]])
        viewed = torch._nested_view_from_buffer(x.flatten(), sizes, strides, offsets)
        return (
            padded.sin().values(),
            masked.to_padded_tensor(0.0),
            *of_list.unbind(),
            (viewed * 2).values(),
        )


def gradients_that_warn(x: Tensor) -> Results:
    """The gradient of an op of ATen that warns when it is computed, and whether it did."""
    leaf = leaf_of(x)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        (found,) = grad_of((torch.ops.aten._test_warn_in_autograd(leaf) * x.detach()).sum(), leaf)
    return beside(x, found, any("Warn from backward" in str(w.message) for w in seen))


def _names(nodes: Sequence[Any]) -> list[int]:
    return [text_number(type(n).__name__) for n in nodes]


def graphs_of_nodes(x: Tensor) -> Results:
    """A walk through the graph behind a result: names, edges, leaves and metadata."""
    a = leaf_of(x)
    y = (a.sin() * a.t() + a[0]).exp().sum()
    names, stack, leaves = [], [y.grad_fn], 0  # type: ignore[var-annotated]
    while stack and len(names) < 30:
        node: Any = stack.pop(0)
        names.append(type(node).__name__)
        leaves += getattr(node, "variable", None) is a
        stack += [n for n, _ in node.next_functions if n is not None]
    node = y.grad_fn
    node.metadata["k"] = 3
    kept = node.metadata["k"]
    node.register_hook(lambda gi, go: None)
    order = (
        graph.increment_version
        if own("unwrap") is None
        else own("autograd.graph.increment_version")
    )
    z = x.detach().clone()
    order(z)
    return beside(
        x, *map(text_number, names), leaves, kept, z._version, y.grad_fn is node, y.grad_fn == node
    )
