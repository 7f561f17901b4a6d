"""Optimizers in each of their implementations, and the same by the formula of one element.

    adam(x, y, made="fused", how="reloaded", maximize=True)      # parameters after each step

The parameters are a matrix, a number, an empty tensor, one that never has a gradient, one that has
none in the second step, and a complex one. ``made`` says which implementation steps, ``how`` what
happens between the steps. The formulas are those of the papers and of torch's documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from programs.families.tools import Results, Row, detached, gradients, leaves_of

Options = dict[str, Any]
State = dict[str, Any]
Step = Callable[[State, Tensor, Tensor, int, Options], Tensor]

STEPS = 4
_IMPLEMENTATIONS: dict[str, Options] = {
    "for_loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "differentiable": {"differentiable": True},
}


# --- formulas -------------------------------------------------------------------------------------
#
# Each gives the next parameter, and changes the state: running numbers, which begin at zero.


def _average(state: State, name: str, value: Tensor, rate: float) -> Any:
    old = state.get(name, torch.zeros_like(value))
    state[name] = rate * old + (1 - rate) * value
    return state[name]


def _sgd(state: State, p: Tensor, g: Tensor, t: int, o: Options) -> Any:
    momentum = o.get("momentum", 0.0)
    if momentum:
        first = "buffer" not in state
        state["buffer"] = g if first else momentum * state["buffer"] + (1 - o["dampening"]) * g
        g = g + momentum * state["buffer"] if o["nesterov"] else state["buffer"]
    return p - o["lr"] * g


def _adam(state: State, p: Tensor, g: Tensor, t: int, o: Options) -> Any:
    b1, b2 = o["betas"]
    mean, square = _average(state, "mean", g, b1), _average(state, "square", g * g, b2)
    if o["amsgrad"]:
        square = torch.maximum(state.get("largest", torch.zeros_like(square)), square)
        state["largest"] = square
    root = (square / (1 - b2**t)).sqrt() + o["eps"]
    return p - o["lr"] * (mean / (1 - b1**t)) / root


def _adamax(state: State, p: Tensor, g: Tensor, t: int, o: Options) -> Any:
    b1, b2 = o["betas"]
    mean = _average(state, "mean", g, b1)
    old = state.get("largest", torch.zeros_like(g))
    state["largest"] = torch.maximum(b2 * old, g.abs() + o["eps"])
    return p - o["lr"] / (1 - b1**t) * mean / state["largest"]


def _nadam(state: State, p: Tensor, g: Tensor, t: int, o: Options) -> Any:
    b1, b2 = o["betas"]
    now = b1 * (1 - 0.5 * 0.96 ** (t * o["momentum_decay"]))
    later = b1 * (1 - 0.5 * 0.96 ** ((t + 1) * o["momentum_decay"]))
    state["product"] = state.get("product", 1.0) * now
    mean, square = _average(state, "mean", g, b1), _average(state, "square", g * g, b2)
    ahead = later * mean / (1 - state["product"] * later) + (1 - now) * g / (1 - state["product"])
    return p - o["lr"] * ahead / ((square / (1 - b2**t)).sqrt() + o["eps"])


def _radam(state: State, p: Tensor, g: Tensor, t: int, o: Options) -> Any:
    b1, b2 = o["betas"]
    mean, square = _average(state, "mean", g, b1), _average(state, "square", g * g, b2)
    longest = 2 / (1 - b2) - 1
    length = longest - 2 * t * b2**t / (1 - b2**t)
    mean = mean / (1 - b1**t)
    if length <= 5:
        return p - o["lr"] * mean
    scale = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return p - o["lr"] * mean * scale**0.5 * (1 - b2**t) ** 0.5 / (square.sqrt() + o["eps"])


def _adagrad(state: State, p: Tensor, g: Tensor, t: int, o: Options) -> Any:
    start = torch.full_like(g, o["initial_accumulator_value"])
    state["sum"] = state.get("sum", start) + g * g
    return p - o["lr"] / (1 + (t - 1) * o["lr_decay"]) * g / (state["sum"].sqrt() + o["eps"])


def _adadelta(state: State, p: Tensor, g: Tensor, t: int, o: Options) -> Any:
    square = _average(state, "square", g * g, o["rho"])
    moved = state.get("moved", torch.zeros_like(g))
    delta = (moved + o["eps"]).sqrt() / (square + o["eps"]).sqrt() * g
    _average(state, "moved", delta * delta, o["rho"])
    return p - o["lr"] * delta


def _rmsprop(state: State, p: Tensor, g: Tensor, t: int, o: Options) -> Any:
    square = _average(state, "square", g * g, o["alpha"])
    if o["centered"]:
        mean = _average(state, "mean", g, o["alpha"])
        square = square - mean * mean
    move = g / (square.sqrt() + o["eps"])
    if o["momentum"]:
        move = o["momentum"] * state.get("buffer", torch.zeros_like(g)) + move
        state["buffer"] = move
    return p - o["lr"] * move


def _rprop(state: State, p: Tensor, g: Tensor, t: int, o: Options) -> Any:
    low, high = o["etas"]
    size = state.get("size", torch.full_like(g, o["lr"]))
    agreement = (g * state.get("previous", torch.zeros_like(g))).sign()
    size = torch.where(agreement > 0, size * high, torch.where(agreement < 0, size * low, size))
    state["size"] = size.clamp(*o["step_sizes"])
    state["previous"] = torch.where(agreement < 0, torch.zeros_like(g), g)
    return p - state["previous"].sign() * state["size"]


def _asgd(state: State, p: Tensor, g: Tensor, t: int, o: Options) -> Any:
    rate = o["lr"] if t == 1 else o["lr"] / (1 + o["lambd"] * o["lr"] * (t - 1)) ** o["alpha"]
    return p * (1 - o["lambd"] * rate) - rate * g


_ADAM = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.0}
RULES: dict[str, tuple[Any, Step, Options, Sequence[Options]]] = {
    "sgd": (
        torch.optim.SGD,
        _sgd,
        {"lr": 0.1, "weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0, "nesterov": False},
        (
            {"momentum": 0.9},
            {"momentum": 0.9, "dampening": 0.3},
            {"momentum": 0.9, "nesterov": True},
        ),
    ),
    "adam": (
        torch.optim.Adam,
        _adam,
        _ADAM | {"amsgrad": False},
        ({"betas": (0.0, 0.9)}, {"decoupled_weight_decay": True}),
    ),
    "adam_amsgrad": (torch.optim.Adam, _adam, _ADAM | {"amsgrad": True}, ()),
    "adamw": (torch.optim.AdamW, _adam, _ADAM | {"amsgrad": False}, ()),
    "adamw_amsgrad": (torch.optim.AdamW, _adam, _ADAM | {"amsgrad": True}, ()),
    "adamax": (torch.optim.Adamax, _adamax, _ADAM, ()),
    "nadam": (
        torch.optim.NAdam,
        _nadam,
        _ADAM | {"momentum_decay": 0.004},
        ({"decoupled_weight_decay": True},),
    ),
    "radam": (
        torch.optim.RAdam,
        _radam,
        _ADAM,
        ({"decoupled_weight_decay": True}, {"betas": (0.9, 0.5)}),
    ),
    "adagrad": (
        torch.optim.Adagrad,
        _adagrad,
        {
            "lr": 0.1,
            "lr_decay": 0.1,
            "eps": 1e-3,
            "weight_decay": 0.0,
            "initial_accumulator_value": 0.2,
        },
        (),
    ),
    "adadelta": (
        torch.optim.Adadelta,
        _adadelta,
        {"lr": 0.5, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.0},
        (),
    ),
    "rmsprop": (
        torch.optim.RMSprop,
        _rmsprop,
        {
            "lr": 0.1,
            "alpha": 0.8,
            "eps": 1e-2,
            "weight_decay": 0.0,
            "momentum": 0.0,
            "centered": False,
        },
        ({"momentum": 0.9}, {"centered": True}, {"centered": True, "momentum": 0.9}),
    ),
    "rprop": (
        torch.optim.Rprop,
        _rprop,
        {"lr": 0.1, "etas": (0.5, 1.2), "step_sizes": (0.02, 0.13)},
        (),
    ),
    "asgd": (
        torch.optim.ASGD,
        _asgd,
        {"lr": 0.1, "lambd": 0.1, "alpha": 0.75, "weight_decay": 0.0},
        (),
    ),
}
"""By name: the class, the formula, its options, and other options to try."""
_DECOUPLED = (torch.optim.AdamW,)


# --- parameters and steps -------------------------------------------------------------------------


def _parameters(x: Tensor, y: Tensor, is_complex: bool) -> list[Tensor]:
    """Return the parameters at the start."""
    parameters = [x * 1, y[0] * 1, x[:0] * 1, y * 2, x.sin()]
    if is_complex:
        parameters.append(torch.complex(x.cos(), x[:, :1] * y))
    return parameters


def _gradient(start: Tensor, place: int, step: int) -> Tensor | None:
    """Return the gradient of a parameter in a step. It changes its sign from step to step."""
    if place == 3 or (place == 4 and step == 2):
        return None
    if start.is_complex():
        return torch.complex(_wave(start.real, step), _wave(start.imag, step + 1))
    return _wave(start, step)


def _wave(start: Tensor, step: int) -> Tensor:
    return (start * (step + 0.5) ** 2 + 0.3).sin() + 0.05 * start


def _run(x: Tensor, y: Tensor, kind: Any, made: str, how: str, options: Options) -> list[Tensor]:
    """Return parameters after each step of torch's optimizer."""
    is_complex = how == "complex"
    starts = _parameters(x, y, is_complex)
    parameters = [p * 1 if made == "differentiable" else p.detach().clone() for p in starts]
    options = options | _IMPLEMENTATIONS[made]
    if how == "rate_as_tensor":
        options["lr"] = torch.tensor(options["lr"], dtype=torch.float64)
    optimizer = kind(parameters, **options)
    found = []
    for step in range(1, STEPS + 1):
        if how == "reloaded" and step == 3:
            saved = optimizer.state_dict()
            optimizer = kind(parameters, **options)
            optimizer.load_state_dict(saved)
        if how == "rate_changed" and step == 3:
            optimizer.param_groups[0]["lr"] = options["lr"] * 2
        for place, (p, start) in enumerate(zip(parameters, starts, strict=True)):
            p.grad = _gradient(start, place, step)
            if p.grad is not None and made != "differentiable":
                p.grad = p.grad.detach()
        optimizer.step()
        found += [p * 1 for p in parameters]
    return found


def _by_formula(
    x: Tensor, y: Tensor, kind: Any, rule: Step, how: str, options: Options
) -> list[Tensor]:
    """Return parameters after each step by the formula, a parameter at a time."""
    starts = _parameters(x, y, how == "complex")
    histories = [_history(p, place, kind, rule, how, options) for place, p in enumerate(starts)]
    return [p for step in zip(*histories, strict=True) for p in step]


def _history(
    start: Tensor, place: int, kind: Any, rule: Step, how: str, options: Options
) -> list[Tensor]:
    state: State = {}
    p, taken, found = start, 0, []
    for step in range(1, STEPS + 1):
        rate = options["lr"] * (2 if how == "rate_changed" and step >= 3 else 1)
        g = _gradient(start, place, step)
        if g is not None:
            taken += 1
            p = _stepped(state, p, g, taken, kind, rule, options | {"lr": rate})
        found.append(p)
    return found


def _stepped(
    state: State, p: Tensor, g: Tensor, t: int, kind: Any, rule: Step, options: Options
) -> Tensor:
    """Return the next parameter: the parts of a complex one are parameters of their own."""
    if p.is_complex():
        p, g = torch.view_as_real(p), torch.view_as_real(g)
        return torch.view_as_complex(_stepped(state, p, g, t, kind, rule, options).contiguous())
    g = -g if options.get("maximize") else g
    decay = options.get("weight_decay", 0.0)
    if decay and (kind in _DECOUPLED or options.get("decoupled_weight_decay")):
        p = p * (1 - options["lr"] * decay)
    elif decay:
        g = g + decay * p
    return rule(state, p, g, t, options)


def _row(kind: Any, rule: Step, usual: Options) -> Row:
    def program(x: Tensor, y: Tensor, *, made: str, how: str, **options: Any) -> Results:
        leaves = leaves_of(x, y)
        found = _run(leaves[0], leaves[1], kind, made, how, usual | options)
        if made != "differentiable":
            return tuple(detached(found))
        return *detached(found), *gradients(found, leaves)

    def definition(x: Tensor, y: Tensor, *, made: str, how: str, **options: Any) -> Results:
        leaves = leaves_of(x, y)
        found = _by_formula(leaves[0], leaves[1], kind, rule, how, usual | options)
        if made != "differentiable":
            return tuple(detached(found))
        return *detached(found), *gradients(found, leaves)

    return Row(program, definition, may_refuse=True)


def _choices(name: str) -> list[tuple[str, Options]]:
    """Return what happens between the steps, and other options."""
    _, _, usual, others = RULES[name]
    ways = ["plain", "complex", "reloaded", "rate_changed", "rate_as_tensor"]
    if name == "asgd":  # it computes its next rate at the end of a step
        ways.remove("rate_changed")
    choices: list[tuple[str, Options]] = [(how, {}) for how in ways]
    choices += [(how, {"maximize": True}) for how in ("plain", "complex")]
    choices += [("plain", other) for other in others]
    if "weight_decay" in usual:
        decays = [other | {"weight_decay": 0.2} for other in ({}, {"maximize": True}, *others)]
        choices += [(how, decay) for decay in decays for how in ("plain", "complex")]
    return choices


def _samples_of(name: str) -> Callable[[torch.dtype, str], list[dict[str, Any]]]:
    def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
        return [
            {
                "args": [{"shape": [2, 3]}, {"shape": [3]}],
                "kwargs": {"made": made, "how": how} | options,
            }
            for made in _IMPLEMENTATIONS
            for how, options in _choices(name)
        ]

    return samples


globals().update({name: _row(*rule[:3]) for name, rule in RULES.items()})
globals().update({f"samples_of_{name}": _samples_of(name) for name in RULES})
