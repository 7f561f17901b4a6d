"""Modules in the modes in which they take other paths, and functional calls of shared modules.

    encoder_layer(x, made="without_grad", hidden="padded")      # torch's fast path, or its slow one

``made`` is the mode of the module: evaluated, evaluated without gradients, evaluated in inference
mode, or in training with a dropout of 0. The right result is computed from the parameters by the
formulas of attention, an element of the batch and a head at a time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from programs.families.tools import Results, Row, detached, gradients, leaves_of

WIDTH, HEADS, LENGTH, BATCH = 8, 2, 4, 3
_MODES: dict[str, tuple[bool, Callable[[], AbstractContextManager[Any]]]] = {
    "trained": (True, nullcontext),
    "evaluated": (False, nullcontext),
    "without_grad": (False, torch.no_grad),
    "in_inference": (False, torch.inference_mode),
}
"""By word: whether the module is in training, and the mode around the call."""
HIDDEN = (
    "nothing", "padded", "padded_by_float", "whole_sample", "later", "scores", "both", "a_row",
)  # fmt: skip


def _filled(module: nn.Module) -> nn.Module:
    """Return the module in double precision, with numbers that depend on their places alone."""
    module = module.double()
    with torch.no_grad():
        for place, parameter in enumerate(module.parameters()):
            numbers = torch.arange(parameter.numel(), dtype=torch.float64) * 1.7 + place
            parameter.copy_((numbers.sin() / math.sqrt(WIDTH)).reshape(parameter.shape))
    return module


# --- what is hidden -------------------------------------------------------------------------------


def _padding(hidden: str) -> Tensor | None:
    """Return which places of each sample are padding."""
    if hidden not in ("padded", "padded_by_float", "whole_sample", "both"):
        return None
    lengths = [LENGTH, 2, 1] if hidden != "whole_sample" else [LENGTH, LENGTH, 1]
    return torch.arange(LENGTH) >= torch.tensor(lengths)[:, None]


def _mask(hidden: str) -> Tensor | None:
    """Return what is added to scores, or which of them count for nothing."""
    if hidden in ("later", "both"):
        return torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    if hidden == "a_row":
        return torch.arange(LENGTH)[:, None].eq(1).expand(LENGTH, LENGTH)
    if hidden == "scores":
        return torch.arange(LENGTH * LENGTH, dtype=torch.float64).reshape(LENGTH, LENGTH).cos()
    return None


def _given(hidden: str) -> tuple[Tensor | None, Tensor | None]:
    """Return the padding and the mask as a module takes them."""
    padding, mask = _padding(hidden), _mask(hidden)
    if padding is not None and hidden == "padded_by_float":
        padding = torch.zeros(padding.shape, dtype=torch.float64).masked_fill(padding, -math.inf)
    return padding, mask


def _bias(hidden: str, sample: int) -> Tensor:
    """Return what the formula adds to the scores of a sample."""
    padding, mask = _padding(hidden), _mask(hidden)
    bias = torch.zeros(LENGTH, LENGTH, dtype=torch.float64)
    if mask is not None:
        bias = bias.masked_fill(mask, -math.inf) if mask.dtype is torch.bool else bias + mask
    if padding is not None:
        bias = bias.masked_fill(padding[sample], -math.inf)
    return bias


# --- formulas -------------------------------------------------------------------------------------


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight.t() + bias


def _attention(p: dict[str, Tensor], x: Tensor, hidden: str, sample: int) -> tuple[Tensor, Tensor]:
    """Return the attention of a sample (LENGTH, WIDTH), and its weights by head."""
    size = WIDTH // HEADS
    q, k, v = _affine(x, p["in_proj_weight"], p["in_proj_bias"]).split(WIDTH, 1)
    heads, weights = [], []
    for start in range(0, WIDTH, size):
        part = slice(start, start + size)
        scores = q[:, part] @ k[:, part].t() / math.sqrt(size) + _bias(hidden, sample)
        total = scores.exp().sum(1, keepdim=True)
        shares = scores.exp() / total.masked_fill(total == 0, 1.0)  # who sees nothing gets 0
        heads.append(shares @ v[:, part])
        weights.append(shares)
    joined = torch.cat(heads, 1)
    return _affine(joined, p["out_proj.weight"], p["out_proj.bias"]), torch.stack(weights)


def _norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centered = x - x.mean(1, keepdim=True)
    return centered / (centered.square().mean(1, keepdim=True) + 1e-5).sqrt() * weight + bias


def _part(p: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in p.items() if k.startswith(prefix)}


def _layer(p: dict[str, Tensor], x: Tensor, hidden: str, sample: int, first: bool) -> Tensor:
    """Return a layer of an encoder, with norms first or last."""

    def attended(t: Tensor) -> Tensor:
        return _attention(_part(p, "self_attn."), t, hidden, sample)[0]

    def fed(t: Tensor) -> Tensor:
        inner = _affine(t, p["linear1.weight"], p["linear1.bias"]).clamp_min(0)
        return _affine(inner, p["linear2.weight"], p["linear2.bias"])

    norms = [_part(p, f"norm{i}.") for i in (1, 2)]
    if first:
        x = x + attended(_norm(x, **norms[0]))
        return x + fed(_norm(x, **norms[1]))
    x = _norm(x + attended(x), **norms[0])
    return _norm(x + fed(x), **norms[1])


# --- rows of attention ----------------------------------------------------------------------------


def _shown(y: Tensor, hidden: str) -> Tensor:
    """Return results with zeros where a sample is padding: nothing is said of these."""
    padding = _padding(hidden)
    return y if padding is None else y.masked_fill(padding[..., None], 0.0)


def _module_row(
    make: Callable[[], nn.Module],
    call: Callable[[nn.Module, Tensor, str], Tensor],
    formula: Callable[[dict[str, Tensor], Tensor, str, int], Tensor],
) -> Row:
    def program(x: Tensor, *, made: str, hidden: str) -> Results:
        training, around = _MODES[made]
        module = _filled(make()).train(training)
        (leaf,) = leaves_of(x)
        with around(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nested tensors are a prototype
            result = _shown(call(module, leaf * 1, hidden), hidden)
        if not result.requires_grad:
            return (result.clone(),)
        return *detached([result]), *gradients([result], [leaf, *module.parameters()])

    def definition(x: Tensor, *, made: str, hidden: str) -> Results:
        module = _filled(make())
        parameters: dict[str, Tensor] = dict(module.named_parameters())
        (leaf,) = leaves_of(x)
        samples = [formula(parameters, one, hidden, i) for i, one in enumerate(leaf)]
        result = _shown(torch.stack(samples), hidden)
        if made in ("without_grad", "in_inference"):
            return tuple(detached([result]))
        return *detached([result]), *gradients([result], [leaf, *module.parameters()])

    return Row(program, definition)


def _attend(module: nn.Module, x: Tensor, hidden: str) -> Any:
    padding, mask = _given(hidden)
    return module(x, x, x, key_padding_mask=padding, attn_mask=mask, need_weights=False)[0]


def _attend_time_first(module: nn.Module, x: Tensor, hidden: str) -> Any:
    padding, mask = _given(hidden)
    x = x.transpose(0, 1)
    y = module(x, x, x, key_padding_mask=padding, attn_mask=mask, need_weights=False)[0]
    return y.transpose(0, 1)


def _mean_weights(module: nn.Module, x: Tensor, hidden: str) -> Any:
    padding, mask = _given(hidden)
    return module(x, x, x, key_padding_mask=padding, attn_mask=mask)[1]


def _weights(module: nn.Module, x: Tensor, hidden: str) -> Any:
    padding, mask = _given(hidden)
    found = module(x, x, x, key_padding_mask=padding, attn_mask=mask, average_attn_weights=False)
    return found[1].transpose(1, 2).flatten(2)


def _encode(module: nn.Module, x: Tensor, hidden: str) -> Any:
    padding, mask = _given(hidden)
    return module(x, src_key_padding_mask=padding, src_mask=mask)


def _encode_stack(module: nn.Module, x: Tensor, hidden: str) -> Any:
    padding, mask = _given(hidden)
    return module(x, src_key_padding_mask=padding, mask=mask)


def _new_attention(batch_first: bool) -> nn.Module:
    return nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first)


def _new_layer(first: bool = False, batch_first: bool = True) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(
        WIDTH, HEADS, 6, dropout=0.0, batch_first=batch_first, norm_first=first
    )


def _new_stack(first: bool = False, nested: bool = True) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that layers with norms first take no nested tensors
        return nn.TransformerEncoder(
            _new_layer(first), 2, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=nested
        )


def _stack(p: dict[str, Tensor], x: Tensor, hidden: str, sample: int, first: bool) -> Tensor:
    for place in range(2):
        x = _layer(_part(p, f"layers.{place}."), x, hidden, sample, first)
    return _norm(x, **_part(p, "norm."))


def _flat_weights(p: dict[str, Tensor], x: Tensor, hidden: str, sample: int) -> Tensor:
    return _attention(p, x, hidden, sample)[1].transpose(0, 1).flatten(1)


OF_ATTENTION: dict[str, tuple[Any, Any, Any]] = {
    "attention": (
        lambda: _new_attention(True),
        _attend,
        lambda p, x, hidden, i: _attention(p, x, hidden, i)[0],
    ),
    "attention_time_first": (
        lambda: _new_attention(False),
        _attend_time_first,
        lambda p, x, hidden, i: _attention(p, x, hidden, i)[0],
    ),
    "attention_weights": (lambda: _new_attention(True), _weights, _flat_weights),
    "attention_mean_weights": (
        lambda: _new_attention(True),
        _mean_weights,
        lambda p, x, hidden, i: _attention(p, x, hidden, i)[1].mean(0),
    ),
    "encoder_layer": (
        _new_layer,
        _encode,
        lambda p, x, hidden, i: _layer(p, x, hidden, i, False),
    ),
    "encoder_layer_norm_first": (
        lambda: _new_layer(True),
        _encode,
        lambda p, x, hidden, i: _layer(p, x, hidden, i, True),
    ),
    "encoder": (_new_stack, _encode_stack, lambda p, x, h, i: _stack(p, x, h, i, False)),
    "encoder_norm_first": (
        lambda: _new_stack(True),
        _encode_stack,
        lambda p, x, h, i: _stack(p, x, h, i, True),
    ),
    "encoder_without_nested": (
        lambda: _new_stack(False, False),
        _encode_stack,
        lambda p, x, h, i: _stack(p, x, h, i, False),
    ),
}


def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return a batch of sequences, and what is hidden of it."""
    return [
        {"args": [{"shape": [BATCH, LENGTH, WIDTH]}], "kwargs": {"made": made, "hidden": hidden}}
        for made in _MODES
        for hidden in HIDDEN
    ]


# --- modules with statistics and with recurrence --------------------------------------------------


def _plain_row(make: Callable[[], nn.Module], formula: Callable[..., Tensor]) -> Row:
    """Return the row of a module of x (3, 4, 8), whose formula takes parameters, x and the mode."""

    def program(x: Tensor, *, made: str) -> Results:
        training, around = _MODES[made]
        module = _filled(make()).train(training)
        (leaf,) = leaves_of(x)
        with around():
            result = module(leaf * 1)
            result = result[0] if isinstance(result, tuple) else result
        state = [one.clone() for one in module.buffers()]
        if not result.requires_grad:
            return result.clone(), *state
        return result.detach(), *state, *gradients([result], [leaf, *module.parameters()])

    def definition(x: Tensor, *, made: str) -> Results:
        module = _filled(make())
        (leaf,) = leaves_of(x)
        state = {name: one.clone() for name, one in module.named_buffers()}
        result = formula(dict(module.named_parameters()), state, leaf, made == "trained")
        left = list(state.values())
        if made in ("without_grad", "in_inference"):
            return result.detach(), *left
        return result.detach(), *left, *gradients([result], [leaf, *module.parameters()])

    return Row(program, definition)


def _batch_norm(
    p: dict[str, Tensor], state: dict[str, Tensor], x: Tensor, training: bool
) -> Tensor:
    mean, var = state["running_mean"], state["running_var"]
    if training:
        flat = x.transpose(0, 1).flatten(1)
        mean = flat.mean(1)
        var = (flat - mean[:, None]).square().mean(1)
        count = flat.shape[1]
        state["running_mean"] = 0.9 * state["running_mean"] + 0.1 * mean.detach()
        unbiased = var.detach() * count / (count - 1)
        state["running_var"] = 0.9 * state["running_var"] + 0.1 * unbiased
        state["num_batches_tracked"] = state["num_batches_tracked"] + 1
    scaled = (x - mean[:, None]) / (var[:, None] + 1e-5).sqrt()
    return scaled * p["weight"][:, None] + p["bias"][:, None]


def _cell(kind: str, p: dict[str, Tensor], end: str, x: Tensor, h: Tensor, c: Tensor) -> Any:
    """Return the next state of a recurrent layer for one sample."""
    given = _affine(x, p[f"weight_ih_{end}"], p[f"bias_ih_{end}"])
    past = _affine(h, p[f"weight_hh_{end}"], p[f"bias_hh_{end}"])
    if kind == "rnn":
        return (given + past).tanh(), c
    if kind == "gru":
        r1, z1, n1 = given.chunk(3)
        r2, z2, n2 = past.chunk(3)
        r, z = (r1 + r2).sigmoid(), (z1 + z2).sigmoid()
        n = (n1 + r * n2).tanh()
        return (1 - z) * n + z * h, c
    i, f, g, o = (given + past).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _run_over(kind: str, p: dict[str, Tensor], end: str, steps: Sequence[Tensor]) -> list[Tensor]:
    h = c = torch.zeros(3, dtype=torch.float64)
    found = []
    for x in steps:
        h, c = _cell(kind, p, end, x, h, c)
        found.append(h)
    return found


def _recurrent(kind: str) -> Callable[..., Tensor]:
    """Return the formula of two layers in both directions."""

    def formula(p: dict[str, Tensor], state: Any, x: Tensor, training: bool) -> Tensor:
        samples = []
        for sample in x:
            steps = list(sample)
            for layer in range(2):
                forth = _run_over(kind, p, f"l{layer}", steps)
                back = _run_over(kind, p, f"l{layer}_reverse", steps[::-1])[::-1]
                steps = [torch.cat(pair) for pair in zip(forth, back, strict=True)]
            samples.append(torch.stack(steps))
        return torch.stack(samples)

    return formula


def _new_recurrent(kind: Any) -> nn.Module:
    made: nn.Module = kind(WIDTH, 3, num_layers=2, bidirectional=True, batch_first=True)
    return made


OF_STATE: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = {
    "batch_norm": (lambda: nn.BatchNorm1d(LENGTH), _batch_norm),
    "rnn": (lambda: _new_recurrent(nn.RNN), _recurrent("rnn")),
    "gru": (lambda: _new_recurrent(nn.GRU), _recurrent("gru")),
    "lstm": (lambda: _new_recurrent(nn.LSTM), _recurrent("lstm")),
    "dropout": (lambda: nn.Dropout(0.0), lambda p, state, x, training: x * 1),
    "linear_of_slices": (
        lambda: nn.Linear(WIDTH, 3),
        lambda p, state, x, training: _affine(x, p["weight"], p["bias"]),
    ),
}


def samples_of_states(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return a batch for the modules without masks."""
    return [
        {"args": [{"shape": [size, LENGTH, WIDTH]}], "kwargs": {"made": made}}
        for made in _MODES
        for size in (3, 1, 2)
    ]


# --- functional calls of shared modules -----------------------------------------------------------


class _Shared(nn.Module):
    """A module that has a layer under two names, and a weight under three."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.third = nn.Linear(4, 4, bias=False)
        self.third.weight = self.first.weight
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        return self.third(self.second(self.first(x).sin()).cos() * self.scale)


def _shared_formula(one: Tensor, bias: Tensor, three: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    """Return the module's result: of the weight and bias of both layers, and the last weight."""
    hidden = _affine(_affine(x, one, bias).sin(), one, bias)
    return (hidden.cos() * scale) @ three.t()


def _call_shared(given: Sequence[str], tied: bool, a: Tensor, b: Tensor, x: Tensor) -> Any:
    """Return a functional call in which `given` are replaced by `a`, or by `b` for vectors."""
    module = _filled(_Shared())
    values = {name: a if name.endswith("weight") else b for name in given}
    return functional_call(module, values, (x,), tie_weights=tied)


def _shared_row(given: Sequence[str], tied: bool) -> Row:
    def program(a: Tensor, b: Tensor, x: Tensor, *, made: str) -> Results:
        _, around = _MODES[made]
        leaves = leaves_of(a, b, x)
        with around():
            result = _call_shared(given, tied, *leaves)
        if not result.requires_grad:
            return (result.clone(),)
        return result.detach(), *gradients([result], leaves)

    def definition(a: Tensor, b: Tensor, x: Tensor, *, made: str) -> Results:
        leaves = leaves_of(a, b, x)
        module: Any = _filled(_Shared())
        own = {name: one.detach() for name, one in module.state_dict().items()}
        of_layers = {"first.weight", "second.weight"} & set(given)
        of_last = {"third.weight"} & set(given)
        weights = bool(of_layers or (tied and of_last)), bool(of_last or (tied and of_layers))
        one = leaves[0] if weights[0] else own["first.weight"]
        three = leaves[0] if weights[1] else own["third.weight"]
        bias = leaves[1] if {"first.bias", "second.bias"} & set(given) else own["first.bias"]
        scale = leaves[1] if "scale" in given else own["scale"]
        result = _shared_formula(one, bias, three, scale, leaves[2])
        if made in ("without_grad", "in_inference"):
            return (result.detach(),)
        return result.detach(), *gradients([result], leaves)

    return Row(program, definition)


SHARED: dict[str, tuple[Sequence[str], bool]] = {
    "weight_by_first_name": (("first.weight",), True),
    "weight_by_second_name": (("second.weight",), True),
    "weight_by_third_name": (("third.weight",), True),
    "weight_by_all_names": (("first.weight", "second.weight", "third.weight"), True),
    "weight_and_bias": (("second.weight", "first.bias"), True),
    "bias_by_second_name": (("second.bias",), True),
    "buffer_and_weight": (("scale", "third.weight"), True),
    "untied_first": (("first.weight",), False),
    "untied_second": (("second.weight", "second.bias"), False),
    "untied_third": (("third.weight",), False),
    "nothing_given": ((), True),
}


def samples_of_shared(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return a matrix, a vector and a batch for functional calls."""
    return [
        {"args": [{"shape": [4, 4]}, {"shape": [4]}, {"shape": [3, 4]}], "kwargs": {"made": made}}
        for made in _MODES
    ]


globals().update({name: _module_row(*parts) for name, parts in OF_ATTENTION.items()})
globals().update({name: _plain_row(*parts) for name, parts in OF_STATE.items()})
globals().update({name: _shared_row(*parts) for name, parts in SHARED.items()})
