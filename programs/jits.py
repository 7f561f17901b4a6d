"""Jitted functions, modules and training steps, with what they change in Python's state, and what
is refused or reported.

The reference runs the functions as they are. Each is called several times: captures, generated
code and replays.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from programs.tools import Results, beside, own, own_refused, plain

F = nn.functional


def _jit(f: Any = None, **options: Any) -> Any:
    make = own("jit")
    if make is not None:
        return make(f, **options)
    return f if f is not None else lambda g: g


def _model(*sizes: int) -> Any:
    """A small perceptron with numbers that follow from its sizes."""
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())][:-1]
    return _filled(nn.Sequential(*layers).double())


def _filled(module: Any) -> Any:
    with torch.no_grad():
        for k, p in enumerate(module.parameters()):
            p.copy_(
                torch.sin(torch.arange(p.numel(), dtype=p.dtype) * 0.9 + k).reshape(p.shape) * 0.5
            )
    return module


def _state(module: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in (*module.parameters(), *module.buffers())]


def _batches(x: Tensor) -> list[Tensor]:
    y = plain(x)
    return [y.sin(), y.cos(), y * 0.3, torch.cat([y, y.sin()]), torch.cat([y.cos(), y])]


# --- training steps -------------------------------------------------------------------------------


def steps_by_hand(x: Tensor) -> Results:
    """Steps without an optimizer: gradients by ``backward`` and by ``autograd.grad``, writes to
    ``.data`` and under ``no_grad``."""
    model = _model(3, 4, 2)
    parameters = list(model.parameters())

    def first(a: Tensor) -> Tensor:
        loss = model(a).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in parameters:
                p -= 0.1 * p.grad
                p.grad = None
        return loss.detach()  # type: ignore[no-any-return]

    def second(a: Tensor) -> Tensor:
        loss = model(a).square().sum()
        grads = torch.autograd.grad(loss, parameters)
        norm = torch.stack([g.norm() for g in grads]).norm()
        for p, g in zip(parameters, grads, strict=True):
            p.data.sub_(g / norm, alpha=0.05)
        return loss.detach() + norm  # type: ignore[no-any-return]

    def third(a: Tensor) -> tuple[Tensor, ...]:
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad * 0.5
        (model(a).sum() * 2).backward()
        return tuple(p.grad * 1 for p in parameters)

    found: list[Any] = []
    steps = [_jit(f) for f in (first, second, third)]
    for a in _batches(x):
        for step in steps:
            found += [step(a)] if step is not steps[2] else step(a)
        found += _state(model)
    return beside(x, *found, *(p.grad for p in parameters))


def steps_of_optimizers(x: Tensor) -> Results:
    """Steps with a scheduler outside, another rate and momentum that the program sets, groups,
    clipping and a closure."""
    model = _model(3, 3, 2)
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.2}, {"params": model[2].parameters()}],
        lr=0.1,
        momentum=0.9,
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    other = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=0.1)

    def step(a: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(a), a[:, :2])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    def closure_step(a: Tensor, rate: float) -> Tensor:
        for group in other.param_groups:
            group["lr"] = rate

        def closure() -> Tensor:
            other.zero_grad()
            loss = model(a).cos().sum()
            loss.backward()
            return loss  # type: ignore[no-any-return]

        return other.step(closure).detach()  # type: ignore[no-any-return]

    run, closed = _jit(step), _jit(closure_step)
    found: list[Any] = []
    for k, a in enumerate(_batches(x)):
        found += [run(a).detach(), closed(a, 0.1 / (k + 1))]
        schedule.step()
        found += _state(model)
    rates = [group["lr"] for group in (*optimizer.param_groups, *other.param_groups)]
    state = [
        t for s in other.state_dict()["state"].values() for t in s.values() if isinstance(t, Tensor)
    ]
    return beside(x, *found, *rates, *state, len(optimizer.state))


def steps_that_accumulate(x: Tensor) -> Results:
    """Gradients that add up over calls, steps every second call, and gradients that are set to zero
    or dropped outside."""
    model, seen = _model(3, 2), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def micro(a: Tensor, last: bool) -> Tensor:
        loss = model(a).exp().mean()
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return loss.detach()  # type: ignore[no-any-return]

    run = _jit(micro, static_argnames="last")
    for k, a in enumerate(_batches(x)):
        seen.append(run(a, last=k % 2 == 1))
        seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        if k == 3:
            model.zero_grad()
    return beside(x, *seen, *_state(model))


def steps_with_scaling(x: Tensor) -> Results:
    """A gradient scaler: scaled losses, an infinite gradient, which leaves out a step, and the
    scale afterwards."""
    model = _model(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def step(a: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(a).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.3)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()  # type: ignore[no-any-return]

    run, found = _jit(step), []
    batches = _batches(x)[:3]
    for a in (*batches, batches[0] * torch.inf, *batches):
        found += [torch.nan_to_num(run(a)), *_state(model), scaler.get_scale()]
    return beside(x, *found)


def steps_that_freeze(x: Tensor) -> Results:
    """Flags that a step sets, losses of two models that train against one another, and
    hooks of modules."""
    maker, judge = _model(3, 3), _model(3, 1)
    first = torch.optim.SGD(maker.parameters(), lr=0.1)
    second = torch.optim.SGD(judge.parameters(), lr=0.2, nesterov=True, momentum=0.5)
    judge[0].register_forward_hook(lambda m, args, out: out * 2)
    maker[0].register_full_backward_hook(
        lambda m, gi, go: tuple(None if g is None else g * 3 for g in gi)
    )

    def step(a: Tensor) -> tuple[Tensor, Tensor]:
        for p in judge.parameters():
            p.requires_grad_(False)
        first.zero_grad()
        made = maker(a)
        loss = -judge(made).mean()
        loss.backward()
        first.step()
        for p in judge.parameters():
            p.requires_grad_(True)
        second.zero_grad()
        other = (judge(made.detach()) - judge(a)).square().mean() + made.detach().sum() * 0
        other.backward()
        second.step()
        return loss.detach(), other.detach()

    run, found = _jit(step), []
    for a in _batches(x):
        found += [
            *run(a),
            *_state(maker),
            *_state(judge),
            all(p.requires_grad for p in judge.parameters()),
        ]
    return beside(x, *found)


class Counting(nn.Module):
    """A layer with running statistics, a counter in Python and a moving mean as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.3)
        self.mean = torch.zeros(3, dtype=torch.float64)
        self.history: dict[str, Any] = {"loss": 0.0}

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layer(x))
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return self.drop(y) + self.mean  # type: ignore[no-any-return]


def steps_with_state(x: Tensor) -> Results:
    """Attributes, items and variables to which the program assigns tensors and numbers, and modes
    that it leaves switched."""
    model = _filled(Counting().double())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    total = torch.zeros((), dtype=torch.float64)

    def step(a: Tensor) -> Tensor:
        nonlocal total
        model.train()
        optimizer.zero_grad()
        loss = model(a).square().mean()
        loss.backward()
        optimizer.step()
        total = total * 0.5 + loss.detach()
        model.history["loss"] += loss.item()
        model.history["last"] = loss.detach() * 2
        model.eval()
        return model(a).sum().detach()  # type: ignore[no-any-return]

    run, found = _jit(step), []
    torch.manual_seed(2)
    for a in _batches(x):
        found += [
            run(a),
            model.mean.clone(),
            total.clone(),
            model.history["loss"],
            model.history["last"],
            model.training,
        ]
        found += _state(model)
    return beside(x, *found, torch.rand(2))


# --- options --------------------------------------------------------------------------------------


def options_of_calls(x: Tensor) -> Results:
    """Constants by position and name, sizes that are free at once or never, other compilers,
    decorators and methods."""
    y = plain(x)
    seen: list[int] = []

    def compiler(module: Any, examples: list[Any]) -> Callable[..., Any]:
        seen.append(len(examples))
        return module.forward  # type: ignore[no-any-return]

    def f(a: Tensor, kind: str, k: int = 2, *rest: Tensor, scale: float = 1.0) -> Tensor:
        out = getattr(a, kind)() * k + scale
        return out + sum(r.sum() for r in rest)  # type: ignore[no-any-return]

    class Holder:
        factor = 3.0

        @_jit
        def method(self, a: Tensor) -> Tensor:
            return a * self.factor

        @_jit(dynamic=False)  # type: ignore[untyped-decorator]
        def other(self, a: Tensor) -> Tensor:
            return a.sum() + self.factor

    by_number, by_name = _jit(f, static_argnums=(1, 2)), _jit(f, static_argnames=("kind", "scale"))
    free, fixed, compiled = (
        _jit(lambda a: a.cumsum(0) / a.shape[0], **o)
        for o in ({"dynamic": True}, {"dynamic": False}, {"compiler": compiler})
    )
    holder, other = Holder(), Holder()
    other.factor = 5.0
    found: list[Any] = [
        by_number(y, "sin"),
        by_number(y, "cos", 3),
        by_number(y, "sin", 2, y, y),
        by_number(y, "sin", scale=4.0),
    ]
    found += [
        by_name(y, "exp", scale=2.0),
        by_name(y, kind="exp", k=4, scale=2.0),
        by_name(y, "sin", 2, y[0], scale=0.5),
    ]
    for a in (y, y[:2], torch.cat([y, y]), y):
        found += [
            free(a),
            fixed(a),
            compiled(a),
            holder.method(a),
            other.method(a),
            holder.other(a),
        ]
    module = _jit(_model(3, 2))
    found += [
        module(y).detach(),
        module(y.sin()).detach(),
        len(list(module.parameters())),
        module.training,
    ]
    flags = own_refused(
        lambda: _jit(f, dynamic=3),
        lambda: _jit(f, compiler="c"),
        lambda: _jit(f, on_break="stop"),
        lambda: _jit(f, static_argnums=9),
        lambda: _jit(lambda a: a, static_argnames="b"),
        lambda: _jit(lambda a: a, donate=3),
        lambda: _jit(lambda a: a, donate="b"),
        lambda: _jit(3.0),
        lambda: by_number(y, [1]),
        lambda: __import__("pickle").dumps(free),
    )
    return beside(x, *found, *flags, bool(seen) or own("jit") is None)


def donated(x: Tensor) -> Results:
    """Arguments whose memory a call takes, in a list and by name, and those that it may not
    take."""
    y = plain(x)

    def f(state: list[Tensor], a: Tensor) -> list[Tensor]:
        return [s * 2 + a for s in state]

    step, named, outside = (
        _jit(f, donate=0),
        _jit(lambda a, b: a.exp() * b, donate=("b",)),
        y.clone(),
    )
    state: Any = [y.clone(), y.cos()]
    for a in (y, y.sin(), y.cos(), y):
        given, state = state, step(state, a)
    taken = own("jit") is None or all(t.numel() == 0 for t in given)
    b = y.clone()
    product = [named(y, b), named(y, y.clone())]
    flags = own_refused(
        lambda: step(given, y),
        lambda: named(y, y[0]),
        lambda: named(y, y.clone().requires_grad_()),
        lambda: named(y, y.to_sparse()),
        lambda: _jit(lambda a: a.add_(1), donate=0)(y.clone()),
        lambda: _jit(lambda a: a.t(), donate=0)(y.clone()),
        lambda: _jit(lambda a: a + outside, donate=0)(outside),
    )
    mapped = (own("func.vmap") or torch.func.vmap)(lambda row: named(row, row))(y)
    return beside(x, *state, *product, taken, *flags, mapped, y.numel())


def breaks(x: Tensor) -> Results:
    """What cannot be captured: an error with the line, or a call that runs as it is,
    with a warning once."""
    y = plain(x)

    def f(a: Tensor) -> Tensor:
        return a * 2 if a.flatten().tolist()[0] > 0 else -a

    eager = _jit(f, on_break="eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [eager(y), eager(-y), eager(y[:2]), eager(-y[:2])]
    kept: list[Tensor] = []
    flags = own_refused(
        lambda: _jit(f)(y),
        lambda: _jit(lambda a: a[a > 0])(y),
        lambda: _jit(lambda a: a.reshape(int(a.sum().item()) * 0 + 9))(y),
        lambda: _jit(lambda a: kept.append(a * 2))(y),
        lambda: _jit(lambda a: a.numpy())(y),
        lambda: _jit(lambda a: torch.set_grad_enabled(False) and a)(y),
        lambda: _jit(lambda a: a.tolist())(y),
        lambda: _jit(lambda: torch.set_default_dtype(torch.float64) or torch.ones(2))(),  # type: ignore[func-returns-value]
    )
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    numbers = _jit(
        lambda a: (a * (1 - 0.9 ** a[0, 0].item()), a.sum().item() * 2 + 1, a.max().item())
    )
    count = own("jit") is None or sum("cannot be captured" in str(w.message) for w in caught) == 1
    return beside(
        x, *found, *flags, *numbers(y), *numbers(y.cos()), *numbers(y.exp()), count, len(kept) >= 0
    )


def reports(x: Tensor) -> Results:
    """Ask what was captured, why, and as what text."""
    y = plain(x)
    scale = {"k": 2.0}

    def slopes(a: Tensor, b: Any = 1.0) -> Tensor:
        return a.sin() * scale["k"] * b  # type: ignore[no-any-return]

    f = _jit(slopes)
    found = [f(y), f(y[:2]), f(y, 2.0), f(y, y)]
    scale["k"] = 3.0
    found += [f(y), f(y[:1])]
    jit = own("jit")
    if jit is None:
        return beside(x, *found, *[True] * 11)
    report = jit.explain(f)
    refusing = jit(lambda a: a if a.flatten().tolist()[0] > 0 else -a)
    refusals = own_refused(lambda: jit.explain(slopes), lambda: jit.source(3), lambda: refusing(y))
    explained = jit.explain(refusing)
    names_refusal = "refused (float64[3, 3]): " in str(explained) and explained.programs == ()
    return beside(
        x,
        *found,
        *_reason_claims([program.why for program in report.programs]),
        *_table_claims(report),
        _shows_each_program(jit.source(f), len(report.programs)),
        names_refusal,
        *refusals,
    )


def _reason_claims(reasons: list[str]) -> list[bool]:
    """Return whether the captures name the first call, a shape, a number and a variable."""
    return [
        reasons[0] == "the first call",
        "argument 0 is float64[2, 3], was float64[3, 3]" in reasons,
        any("argument 1 is 2.0, was 1.0" in reason or "2.0" in reason for reason in reasons),
        any("'k'" in reason and "3.0" in reason and "2.0" in reason for reason in reasons),
    ]


def _table_claims(report: Any) -> list[bool]:
    """Return whether the text of a report has a line per program, by number and sizes."""
    count = len(report.programs)
    heading, columns, *rows = [line.split() for line in str(report).splitlines()]
    has_title = heading == ["slopes:", str(count), "programs"]
    has_columns = columns[:3] == ["program", "sizes", "ops"]
    numbers = [row[0] for row in rows[:count]]
    return [
        has_title and has_columns and numbers == [*map(str, range(count))],
        [row[1] for row in rows[:2]] == ["fixed", "any"],
    ]


def _shows_each_program(text: str, count: int) -> bool:
    """Return whether the text has the functions, an op and a line of the user."""
    parts = ("torch.ops.aten.sin.default(", "jits.py:")
    has_parts = all(part in text for part in parts)
    return text.startswith("def program_0(") and has_parts and text.count("def program_") == count


# --- state that a program finds -------------------------------------------------------------------


@dataclass
class Config:
    """Numbers of a program."""

    rate: float
    sizes: list[int]
    kind: str = "sin"


CONSTANT = 1.5


def state_that_changes(x: Tensor) -> Results:
    """Numbers, lists, objects, globals, layers and functions that calls find anew, and programs
    that change what they read."""
    y, config, layers = plain(x), Config(0.5, [1, 2]), nn.ModuleList([_model(3, 3), _model(3, 3)])
    table: dict[str, Any] = {"a": y.clone(), "f": torch.sin, "n": {"k": 1}}
    numbers = [1.0, 2.0, 3.0]
    default = lambda a, k=[2.0]: a * k[0]  # noqa: E731

    def f(a: Tensor) -> Tensor:
        out = getattr(a, config.kind)() * config.rate * CONSTANT + len(config.sizes)
        for n in numbers:
            out = out * n
        for layer in layers:
            out = layer(out)
        return default(table["f"](out) + table["a"]) * table["n"]["k"] if "a" in table else out  # type: ignore[no-any-return, no-untyped-call]

    run = _jit(f)
    found = [run(y), run(y)]
    changes: list[Callable[[], object]] = [
        lambda: setattr(config, "rate", 2.0),
        lambda: config.sizes.append(3),
        lambda: setattr(config, "kind", "cos"),
        lambda: numbers.pop(),
        lambda: table.update(f=torch.exp),
        lambda: table["n"].update(k=4),
        lambda: table["a"].mul_(2),
        lambda: table.update(a=y * 5),
        lambda: layers.append(_model(3, 3)),
        lambda: layers[0][0].weight.data.mul_(0.5),  # type: ignore[index]
        lambda: setattr(layers[1][0], "bias", None),  # type: ignore[index]
        lambda: default.__defaults__[0].append(1) or default.__defaults__[0].insert(0, 7.0),  # type: ignore[index]
        lambda: globals().update(CONSTANT=2.5),
        lambda: table.pop("a"),
    ]
    for change in changes:
        change()
        found.append(run(y))
    globals().update(CONSTANT=1.5)
    found.append(run(y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counted = _jit(lambda a: (table.update(calls=table.get("calls", 0) + 1), a * 2)[1])
        found += [counted(y), counted(y)]
    return beside(x, *(t.detach() for t in found))


def jitted_transforms(x: Tensor) -> Results:
    """Transforms inside of jitted functions, jitted functions inside of transforms, and
    derivatives of them."""
    y = plain(x)
    vmap, grad, jvp, jacrev, hessian, linearize = (
        own(f"func.{n}") or getattr(torch.func, n)
        for n in ("vmap", "grad", "jvp", "jacrev", "hessian", "linearize")
    )
    f = lambda a: (a.sin() * a.sum()).sum()  # noqa: E731
    inside = [
        _jit(g)
        for g in (
            vmap(grad(f)),
            grad(lambda a: grad(f)(a).sum()),
            lambda a: jvp(grad(f), (a,), (a.cos(),)),
            jacrev(torch.sin),
        )
    ]
    inside += [
        _jit(hessian(f)),
        _jit(lambda a: linearize(torch.sin, a)[1](a)),
        _jit(lambda a: torch.func.vmap(torch.func.grad(f))(a)),
    ]
    found: list[Any] = []
    for a in (y, y.cos(), y[:2]):
        for g in inside:
            made = g(a)
            found += made if isinstance(made, tuple) else [made]
    jitted = _jit(f)
    found += [
        vmap(grad(jitted))(y),
        grad(lambda a: jitted(a) ** 2)(y),
        jvp(jitted, (y,), (y,))[1],
        _jit(lambda a: jitted(a) * 2)(y),
    ]
    return beside(x, *found)
