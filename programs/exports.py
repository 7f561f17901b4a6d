"""Modules and functions as graphs to be called elsewhere, and as exported programs, run and
asked what they are.

The reference runs the function itself. What only a graph has is compared with what is written here.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from programs.tools import Results, beside, calls_of, own, own_refused, plain

F = nn.functional
aten = torch.ops.aten


# --- exports --------------------------------------------------------------------------------------


class Model(nn.Module):
    """A normalization, a layer whose weight is used twice, a counter, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.full((3,), 2.0), persistent=False)
        self.calls: Tensor
        self.scale: Tensor

    def forward(self, x: Tensor, shift: Tensor | None = None) -> dict[str, Tensor]:
        self.calls += 1
        y = self.second(self.first(self.norm(x)).tanh()) * self.scale
        return {"y": y if shift is None else y + shift, "loss": y.square().mean()}


def _model(seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Model().double()


def _gradients(loss: Tensor, of: list[Tensor]) -> list[Tensor]:
    return list((own("autograd.grad") or torch.autograd.grad)(loss, of))


def exported_modules(x: Tensor) -> Results:
    """A module with buffers that it writes to: results, new values of buffers, and what
    the signature says."""
    y, model = plain(x), _model()
    export, arguments = own("aot.aot_export_module"), (y, y[0])
    found: list[Any] = []
    if export is None:
        made = model(*arguments)
        buffers = dict(model.named_buffers())
        found = [
            buffers["norm.running_mean"],
            buffers["norm.running_var"],
            buffers["norm.num_batches_tracked"],
            buffers["calls"],
        ]
        return beside(x, *found, made["y"].detach(), made["loss"].detach(), *[True] * 6)
    before = {name: t.clone() for name, t in model.named_buffers()}
    graph, signature = export(model, arguments, trace_joint=False)
    state = [dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())]
    given = [state[0][name] for name in (*signature.parameters, *signature.buffers)]
    results = graph(*given, *arguments)
    by_name = dict(zip([n.name for n in graph.graph.output_node().args[0]], results, strict=True))
    new = {owner: by_name[name] for name, owner in signature.buffers_to_mutate.items()}
    flags = [
        signature.parameters
        == ["norm.weight", "norm.bias", "first.weight", "first.bias", "second.weight"],
        signature.buffers
        == ["calls", "scale", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"],
        [by_name[n].shape for n in signature.user_outputs] == [(3, 3), ()],
        list(signature.inputs_to_parameters.values()) == signature.parameters
        and signature.user_inputs == ["arg10_1", "arg11_1"],
        all(torch.equal(t, before[name]) for name, t in model.named_buffers()),
        not signature.user_inputs_to_mutate
        and not signature.parameters_to_mutate
        and signature.backward_signature is None,
    ]
    found = [
        new[name]
        for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "calls")
    ]
    return beside(x, *found, *(by_name[n].detach() for n in signature.user_outputs), *flags)


def exported_with_gradients(x: Tensor) -> Results:
    """The gradients of one result, of each parameter and input that requires grad, in the graph and
    by its signature."""
    y, model = plain(x), _model(1)
    model.second.weight = nn.Parameter(model.second.weight.detach().clone())
    forward = model.forward
    model.forward = lambda a: tuple(
        t if i else t.detach() for i, t in enumerate(forward(a).values())
    )
    names = ["norm.weight", "norm.bias", "first.weight", "first.bias", "second.weight"]
    export = own("aot.aot_export_module")
    leaf = y.clone().requires_grad_()
    if export is None:
        out, loss = model(leaf)
        found = torch.autograd.grad(
            loss, [*(dict(model.named_parameters())[n] for n in names), leaf]
        )
        return beside(x, out, loss.detach(), *found, True, True)
    graph, signature = export(model, (leaf,), trace_joint=True, output_loss_index=1)
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        results = graph(
            *(state[n].detach() for n in (*signature.parameters, *signature.buffers)), y
        )
    by_name = dict(zip([n.name for n in graph.graph.output_node().args[0]], results, strict=True))
    backward = signature.backward_signature
    of = {owner: by_name[n] for n, owner in backward.gradients_to_parameters.items()}
    (last,) = [by_name[n] for n in backward.gradients_to_user_inputs]
    flags = [backward.loss_output == signature.user_outputs[1], list(of) == names]
    return beside(
        x, *(by_name[n] for n in signature.user_outputs), *(of[n] for n in names), last, *flags
    )


def exported_before_dispatch(x: Tensor) -> Results:
    """A graph to differentiate later, with composite calls whole and the grad mode as calls."""
    y, model = plain(x), _model(2).eval()

    class Switching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, a: Tensor, *, k: Tensor) -> Results:
            with torch.no_grad():
                b = self.model(a)["y"] * k
            return b, F.linear(a, b)

    module = Switching()
    export = own("aot.aot_export_module")
    if export is None:
        return beside(x, *module(y, k=y[0]), torch.tensor(1), True, True)
    graph, signature = export(
        module, (y,), kwargs={"k": y[0]}, trace_joint=False, pre_dispatch=True
    )
    state = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    results = graph(
        *(state[n].detach() for n in (*signature.parameters, *signature.buffers)), y, y[0]
    )
    by_name = dict(zip([n.name for n in graph.graph.output_node().args[0]], results, strict=True))
    (new,) = [by_name[n] for n in signature.buffers_to_mutate]
    switches = [n.args[0] for n in graph.graph.nodes if n.target is torch._C._set_grad_enabled]
    return beside(
        x,
        *(by_name[n] for n in signature.user_outputs),
        new,
        switches == [False, True],
        calls_of(graph).count("linear") == 3,
    )


def exported_functions(x: Tensor) -> Results:
    """A function with its backward: (primals, tangents) to (results, gradients), with None
    where there is none."""
    y = plain(x)
    f = lambda a, b, k, c: (a.sin() @ b * k, c.cos().sum())  # noqa: E731
    export = own("aot.aot_export_joint_simple")
    a, b, c = y.clone().requires_grad_(), y.cos(), y[0].clone().requires_grad_()
    tangents = [y.exp(), y[0, 0].clone()]
    if export is None:
        outs = f(a, b, 2, c)  # type: ignore[no-untyped-call]
        found = torch.autograd.grad(outs, [a, c], tangents)
        return beside(
            x,
            *(o.detach() for o in outs),
            *found,
            True,
            *f(b, a.detach(), 2, c.detach()),  # type: ignore[no-untyped-call]
        )
    joint = export(f, (a, b, 2, c), trace_joint=True, num_params_buffers=1)
    with torch.no_grad():
        outs, grads = joint([y, b, 2, y[0]], tangents)
        alone = export(f, (y, b, 2, y[0]), trace_joint=False)(b, y, 2, y[0])
    return beside(x, *outs, grads[0], grads[3], grads[1] is None and grads[2] is None, *alone)


def exports_refused(x: Tensor) -> Results:
    """What graphs without a program around them cannot do."""
    y = plain(x)
    leaf = y.clone().requires_grad_()
    module, simple = own("aot.aot_export_module"), own("aot.aot_export_joint_simple")

    class Calling(nn.Module):
        def __init__(self, f: Callable[..., Any]) -> None:
            super().__init__()
            self.f = f
            self.weight = nn.Parameter(y[0].clone())

        def forward(self, *args: Tensor) -> Any:
            return self.f(self.weight, *args)

    def joint(f: Callable[..., Any], *args: Any, number: int | None = 0, **options: Any) -> Calls:
        return lambda: module(
            Calling(f), args, trace_joint=True, output_loss_index=number, **options
        )

    def inference(f: Callable[..., Any], *args: Any) -> Calls:
        return lambda: module(Calling(f), args, trace_joint=False)

    return beside(
        x,
        *own_refused(
            joint(lambda w, a: (w * a).sum(), y, number=None),
            joint(lambda w, a: (w * a).sum(), y, pre_dispatch=True),
            joint(lambda w, a: ((w * a).sum(), w * a), y),
            joint(lambda w, a: (a.sum(), a), y),
            joint(lambda w, a: (w * a, a), y),
            joint(lambda w, a: ((w * a).sum(),), y, number=1),
            joint(lambda w, a: {"loss": (w * a).sum()}, y),
            joint(lambda w, a: (a.sin().sum(),), leaf),
            joint(lambda w, a: ((w * a.mul_(2)).sum(),), leaf),
            inference(lambda w, a: a.t_(), y.clone()),
            inference(lambda w, a, b: a.add_(b), y, y),
            inference(lambda w, a, b: a.add_(b.sum()), y[:2], y[1:]),
            inference(lambda w, a: (torch.manual_seed(1), torch.rand_like(a))[1], y),
            inference(lambda w, a: a.requires_grad_() * 2, y.clone()),
            inference(lambda w, a: a[a > 0], y),
            lambda: simple(lambda a: (a.add_(1),), (y.clone(),), trace_joint=False),
            lambda: simple(lambda a: (a[0],), (y,), trace_joint=False),
            lambda: simple(lambda a: a.split(2), (y,), trace_joint=False),
            lambda: simple(lambda a: (a,), (y,), trace_joint=False),
            lambda: simple(lambda a: a * 2, (y,), trace_joint=False),
            lambda: simple(lambda a: ([a * 2],), (y,), trace_joint=False),
            lambda: simple(lambda a: (a[0] * 2,), ([y],), trace_joint=False),
        ),
        y.new_ones(())
        if simple is None
        else simple(lambda a: (a.new_ones(()),), (y,), trace_joint=False)(y)[0],
    )


Calls = Callable[[], object]


# --- exported programs ----------------------------------------------------------------------------


def _exported(
    f: Any, args: Results, kwargs: dict[str, Any] | None = None, **options: Any
) -> Callable[..., Any]:
    export = own("aot.export")
    return f if export is None else export(f, args, kwargs, **options).module()  # type: ignore[no-any-return]


def programs_of_any_size(x: Tensor) -> Results:
    """Sizes that are free, equal, computed of one another, bounded and automatic, by position,
    name and in trees."""
    y, n = plain(x), Dim("n", min=2, max=9)
    wide = torch.cat([y, y, y[:1]])  # (7, 3)
    add = lambda a, b: a + b.sum()  # noqa: E731
    free = _exported(lambda a: a.cumsum(0) / a.shape[0], (y,), dynamic_shapes=({0: n},))
    both = _exported(lambda a, b: a * b, (y, y), dynamic_shapes={"a": {0: n}, "b": {0: n}})
    twice = _exported(
        lambda a, b: torch.cat([a, a]) + b,
        (y, torch.cat([y, y])),
        dynamic_shapes=({0: n}, {0: 2 * n}),
    )
    more = _exported(lambda a, b: b[1:] * a, (y, wide[:4]), dynamic_shapes=({0: n}, {0: n + 1}))
    auto = _exported(
        lambda a, b: a @ b, (y, y.cos()), dynamic_shapes=({0: Dim.AUTO, 1: Dim.STATIC}, None)
    )
    trees = _exported(
        lambda p, *, k: p["a"][0] + k,
        ({"a": [y]},),
        {"k": y},
        dynamic_shapes={"p": {"a": [{0: n}]}, "k": {0: n}},
    )
    listed = _exported(add, (y, y.cos()), dynamic_shapes=[(n, None), None])
    rest = _exported(lambda *a: a[0] * a[1], (y, y), dynamic_shapes={"a": ({0: n}, {0: n})})
    any_size = _exported(lambda a: a.reshape(-1).sum() + a.shape[1], (y,), dynamic=True)
    found = [
        free(wide),
        both(wide, wide),
        twice(wide[:2], wide[:4]),
        more(wide[:5], wide[:6]),
        auto(wide, y),
        trees({"a": [wide]}, k=wide),
    ]
    return beside(
        x,
        *found,
        listed(wide, y),
        rest(wide[:5], wide[:5]),
        any_size(wide),
        any_size(torch.cat([wide, wide], 1)),
    )


def sizes_refused(x: Tensor) -> Results:
    """Sizes that the program does not take, sizes of calls that it was not exported for, and
    constants that are others."""
    y, n, m = plain(x), Dim("n", min=2, max=5), Dim("m")
    wide = torch.cat([y, y])  # (6, 3)
    free = _exported(lambda a: a * 2, (y,), dynamic_shapes=({0: n},))
    fixed = _exported(lambda a: a * 2, (y,))
    twice = _exported(lambda a, b: a.sum() + b, (y, wide), dynamic_shapes=({0: n}, {0: 2 * n}))
    number = _exported(lambda a, k: a * k, (y, 1))
    even = _exported(lambda a: a.reshape(2, -1), (wide,), dynamic_shapes=({0: Dim.AUTO},))
    export = own("aot.export")

    def of(f: Callable[..., Any], *shapes: Any, args: Results = (y, y)) -> Calls:
        return lambda: export(f, args[: len(shapes)], dynamic_shapes=shapes)

    return beside(
        x,
        free(y[:2]),
        even(wide[:4]),
        *own_refused(
            lambda: free(wide),
            lambda: free(y[:, :2]),
            lambda: free(y.float()),
            lambda: fixed(wide),
            lambda: fixed(y, y),
            lambda: twice(y, wide[:5]),
            lambda: number(y, 1.0),
            lambda: number(y, True),
            lambda: number(y, 2),
            of(lambda a: a * y, {0: n}),  # the program is for one size
            of(lambda a: a[:4] * wide[:4], {0: m}, args=(wide,)),
            of(torch.add, {0: n}, {0: m}),
            of(torch.sin, {5: n}),
            of(torch.sin, {0: 4}),
            of(torch.sin, {0: n}, args=(y[:1],)),
            of(torch.sin, {0: Dim("k", max=2)}),
            of(lambda a, b: a.sum() + b.sum(), {0: n}, {0: 2 * n}),
            of(lambda b: b.sum(), {0: 2 * n}),
            lambda: export(torch.sin, (y,), dynamic_shapes=({0: n}, None)),
            lambda: export(torch.sin, (y,), dynamic_shapes="n"),
            lambda: export(lambda a: a * 2, (y,), dynamic_shapes={"b": {0: n}}),
            lambda: export(lambda a: a[0] * 2, ([y],), dynamic_shapes=({"x": {0: n}},)),
            lambda: export(lambda a: a.sum(), (y,), output_loss_index=0),
            lambda: export(lambda a: a if a.sum() > 0 else -a, (y,)),
            lambda: export(lambda a: a.t_(), (y.clone(),)),
            lambda: export(lambda a: torch.rand(3, generator=torch.Generator()) + a, (y,)),
        ),
    )


def programs_of_modules(x: Tensor) -> Results:
    """Programs of a module whose buffers change with each call, saved and loaded, and names
    of what they hold."""
    y, model = plain(x), _model(3)
    export = own("aot.export")
    if export is None:
        first, second = model(y), model(y.sin(), y[0])["y"]
        state = model.state_dict()
        return beside(
            x,
            *(t.detach() for t in first.values()),
            second.detach(),
            state["norm.running_var"],
            state["calls"],
            *[True] * 5,
        )
    program = export(model, (y,))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    run = torch.export.load(buffer).module()
    first = run(y)
    shifted = export(model, (y,), {"shift": y[0]}).module()
    shifted.load_state_dict(run.state_dict())
    second = shifted(y.sin(), shift=y[0])["y"]
    state = shifted.state_dict()
    signature = program.graph_signature
    flags = [
        set(signature.parameters)
        == {"norm.weight", "norm.bias", "first.weight", "first.bias", "second.weight"},
        "scale" in signature.non_persistent_buffers and "calls" in signature.buffers,
        set(signature.buffers_to_mutate.values())
        == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "calls"},
        program.state_dict.keys() == model.state_dict().keys()
        and program.state_dict["first.weight"] is program.state_dict["second.weight"],
        int(model.calls) == 2 and list(signature.user_inputs) == ["x"],
    ]
    return beside(
        x,
        *(t.detach() for t in first.values()),
        second.detach(),
        state["norm.running_var"],
        state["calls"],
        *flags,
    )


def programs_of_training(x: Tensor) -> Results:
    """Programs that give gradients by name, of a shared parameter one."""
    y, model = plain(x), _model(4)
    forward = model.forward
    model.forward = lambda x: ((made := forward(x))["y"].detach(), made["loss"])
    export = own("aot.export")
    names = ["norm.weight", "norm.bias", "first.weight", "first.bias"]
    if export is None:
        out, loss = model(y)
        found = torch.autograd.grad(loss, [dict(model.named_parameters())[n] for n in names])
        return beside(x, out, loss.detach(), *found, True)
    (out, loss), gradients = export(model, (y,), output_loss_index=1).module()(y)
    return beside(x, out, loss.detach(), *(gradients[n] for n in names), list(gradients) == names)


def programs_that_write(x: Tensor) -> Results:
    """Writes to arguments, tensors from outside, and draws in an exported program."""
    y = plain(x)
    outside = y.cos()

    def f(a: Tensor, b: Tensor) -> Results:
        a.mul_(2)
        b[0].add_(a[1])
        return a + outside, b.sum(), torch.ones(3, dtype=a.dtype) * outside[0], 3, None

    run = _exported(f, (y.clone(), y.clone()))
    drawing = _exported(lambda a: F.dropout(a, 0.5) + torch.rand_like(a), (y,))
    a, b = y.exp(), y.sin()
    made = run(a, b)
    torch.manual_seed(5)
    return beside(x, *made, a, b, drawing(y), drawing(y))
