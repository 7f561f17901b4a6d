"""Nested tensors of layout ``jagged``, and the same as a loop over their dense components.

    sum_1(x, w, made="of_lengths", sizes=[3, 0, 2])      # nested.sum(1), with gradients by x and w

``made`` says how the nested tensor is made of the rows of x (N, 4). Each dimension of an op is one
of the nested tensor: 0 is that of the components, 1 is ragged, or 2 after a transposition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from programs.families.tools import Results, Row, detached, gradients, leaves_of

Components = list[Tensor]
OnNested = Callable[[Any, Tensor], Any]
OnComponent = Callable[[Tensor, Tensor], Tensor | Sequence[Tensor]]

WIDTH = 4
SIZES = ([3, 1, 2], [3, 0, 2, 0], [4], [0, 2], [2, 2, 2], [1, 1, 1], [9, 1, 17])
"""Sizes of components: plain, with empty ones, one alone, all equal, all one, long ones."""


# --- how a nested tensor is made ------------------------------------------------------------------


def _places(sizes: Sequence[int], gap: int) -> list[int]:
    """Return where components begin, and the end, with `gap` rows between them."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size + gap)
    return starts


def _slices(x: Tensor, sizes: Sequence[int], gap: int = 0) -> Components:
    starts = _places(sizes, gap)
    return [x[start : start + size] for start, size in zip(starts, sizes, strict=False)]


def _of_offsets(x: Tensor, sizes: Sequence[int]) -> Any:
    places = _places(sizes, 0)
    return torch.nested.nested_tensor_from_jagged(x[: places[-1]], torch.tensor(places))


def _of_lengths(x: Tensor, sizes: Sequence[int]) -> Any:
    """Return a nested tensor with a hole of one row behind each component."""
    offsets = torch.tensor(_places(sizes, 1))
    lengths = torch.tensor(list(sizes))
    return torch.nested.nested_tensor_from_jagged(x[: int(offsets[-1])], offsets, lengths)


def _padded(parts: Components) -> Tensor:
    """Return components with sevens behind them, and before every other one a row of sevens."""
    longest = max(len(part) for part in parts) + 2
    rows = []
    for place, part in enumerate(parts):
        before = place % 2
        behind = longest - before - len(part)
        rows.append(F.pad(part, (0, 0, before, behind), value=7.0))
    return torch.stack(rows)


def _narrowed(x: Tensor, sizes: Sequence[int]) -> Any:
    starts, lengths = torch.arange(len(sizes)) % 2, torch.tensor(list(sizes))
    padded = _padded(_slices(x, sizes))
    return torch.nested.narrow(padded, 1, starts, lengths, layout=torch.jagged)


def _chunked(x: Tensor, sizes: Sequence[int]) -> Any:
    """Return the second half of a nested tensor with twice as many components."""
    twice = torch.cat([x[: sum(sizes)].cos(), x[: sum(sizes)]])
    return _of_offsets(twice, [*sizes, *sizes]).chunk(2)[1]


def _joined(x: Tensor, sizes: Sequence[int]) -> Any:
    nested = _of_offsets(x, sizes)
    return torch.cat([nested[..., :1], nested[..., 1:]], dim=-1)


MADE: dict[str, Callable[[Tensor, Sequence[int]], Any]] = {
    "of_list": lambda x, sizes: torch.nested.as_nested_tensor(
        _slices(x, sizes), layout=torch.jagged
    ),
    "of_offsets": _of_offsets,
    "of_lengths": _of_lengths,
    "narrowed": _narrowed,
    "transposed": lambda x, sizes: _of_offsets(x, sizes).transpose(1, 2),
    "of_strided": lambda x, sizes: _of_offsets(x.t().contiguous().t(), sizes),
    "chunked": _chunked,
    "joined": _joined,
}


def _components(x: Tensor, made: str, sizes: Sequence[int]) -> Components:
    """Return what the nested tensor consists of."""
    parts = _slices(x, sizes, gap=int(made == "of_lengths"))
    if made == "transposed":
        return [part.t() for part in parts]
    return parts


def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return the rows x of components, a matrix, and how a nested tensor is made of them."""
    return _samples(SIZES)


def samples_without_empty(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return the same without empty components, of which no element is the largest one."""
    return _samples([sizes for sizes in SIZES if 0 not in sizes])


def _samples(sizes_of: Sequence[list[int]]) -> list[dict[str, Any]]:
    return [
        {
            "args": [{"shape": [sum(sizes) + len(sizes), WIDTH]}, {"shape": [WIDTH, WIDTH]}],
            "kwargs": {"made": made, "sizes": list(sizes)},
        }
        for made in MADE
        for sizes in sizes_of
    ]


# --- a row ----------------------------------------------------------------------------------------


def _parts_of(result: Any) -> list[Tensor]:
    """Return the components of a nested tensor, or the rows of a dense one."""
    if isinstance(result, (tuple, list)):
        return [part for one in result for part in _parts_in(one)]
    if result.is_nested or not result.ndim:
        return _parts_in(result)
    return list(result)


def _parts_in(one: Any) -> list[Tensor]:
    """Return the components of a nested tensor, and a dense one as it is."""
    return list(one.unbind()) if one.is_nested else [one]


def _row(on_nested: OnNested, on_component: OnComponent, differentiable: bool = True) -> Row:
    """Return the row of an op that works on each component by itself."""

    def program(x: Tensor, w: Tensor, *, made: str, sizes: Sequence[int]) -> Results:
        leaves = leaves_of(x, w) if differentiable else [x.detach(), w.detach()]
        parts = _parts_of(on_nested(MADE[made](leaves[0], sizes), leaves[1]))
        return _results(parts, leaves, differentiable)

    def definition(x: Tensor, w: Tensor, *, made: str, sizes: Sequence[int]) -> Results:
        leaves = leaves_of(x, w) if differentiable else [x.detach(), w.detach()]
        found = [on_component(part, leaves[1]) for part in _components(leaves[0], made, sizes)]
        parts = _in_turn(found)
        return _results(parts, leaves, differentiable)

    return Row(program, definition, may_refuse=True)


def _results(parts: Sequence[Tensor], leaves: Sequence[Tensor], differentiable: bool) -> Results:
    if not differentiable:
        return tuple(detached(parts))
    return *detached(parts), *gradients(parts, leaves)


def _in_turn(found: Sequence[Tensor | Sequence[Tensor]]) -> list[Tensor]:
    """Return first results of all components, then second ones."""
    several = [[one] if isinstance(one, Tensor) else list(one) for one in found]
    return [part for results in zip(*several, strict=True) for part in results]


def _whole_row(
    on_nested: OnNested,
    on_components: Callable[[Components, Tensor], Any],
    differentiable: bool = True,
) -> Row:
    """Return the row of an op that works on all components together."""

    def program(x: Tensor, w: Tensor, *, made: str, sizes: Sequence[int]) -> Results:
        leaves = leaves_of(x, w) if differentiable else [x.detach(), w.detach()]
        parts = _parts_of(on_nested(MADE[made](leaves[0], sizes), leaves[1]))
        return _results(parts, leaves, differentiable)

    def definition(x: Tensor, w: Tensor, *, made: str, sizes: Sequence[int]) -> Results:
        leaves = leaves_of(x, w) if differentiable else [x.detach(), w.detach()]
        result = on_components(_components(leaves[0], made, sizes), leaves[1])
        parts = result if isinstance(result, list) else _parts_of(result)
        return _results(parts, leaves, differentiable)

    return Row(program, definition, may_refuse=True)


def _alone(f: Callable[[Any], Any]) -> Callable[[Any, Tensor], Any]:
    """Return a function of a tensor as one that looks past the matrix."""
    return lambda t, w: f(t)


# --- ops of one component -------------------------------------------------------------------------

ELEMENTWISE: dict[str, Callable[[Any], Any]] = {
    "sine": torch.sin,
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "doubled": lambda t: 2 * t - 1,
    "squared": lambda t: t * t,
    "clamped": lambda t: t.clamp(-1, 1),
    "chosen": lambda t: torch.where(t > 0, t, t * 3),
    "filled": lambda t: t.masked_fill(t > 0, 0.5),
    "added_in_place": lambda t: (t * 1).add_(t).mul_(2),
    "copied": lambda t: t.clone().contiguous() + t.detach(),
    "narrowed_dtype": lambda t: t.to(torch.float32).sin(),
    "like_it": lambda t: torch.ones_like(t) * t + torch.zeros_like(t),
    "compared": lambda t: (t > 0).to(t.dtype) * t,
    "not_a_number": lambda t: torch.nan_to_num(t.log()),
}
"""Functions of a tensor of any shape."""


def _by_dimension(name: str, dim: int, keep: bool) -> Callable[[Any], Any]:
    """Return a reduction as a function, of a nested tensor's dimension or of a component's."""
    options: dict[str, Any] = {"dim": dim, "keepdim": keep}
    if name == "norm":
        return lambda t: torch.linalg.vector_norm(t, **options)
    if name in ("any", "all"):
        return lambda t: getattr(torch, name)(t > 0, **options)
    return lambda t: getattr(torch, name)(t, **options)


_VALUES = ("sum", "mean", "norm", "logsumexp", "var", "any", "argmax")
"""Reductions of which torch lacks the gradient in some layout, or which have none."""
_WITHOUT_SLOPES = ("any", "argmax")
REDUCTIONS = ("sum", "mean", "amax", "amin", "prod", "norm", "logsumexp", "var", "any", "argmax")
DIMENSIONS = ((1, False), (1, True), (2, False), (2, True))


def _reductions() -> dict[str, Row]:
    rows = {}
    for name in REDUCTIONS:
        for dim, keep in DIMENSIONS:
            nested, component = _by_dimension(name, dim, keep), _by_dimension(name, dim - 1, keep)
            row = f"{name}_{dim}{'_kept' * keep}"
            rows[row] = _row(_alone(nested), _alone(component), name not in _VALUES)
            if name in _VALUES and name not in _WITHOUT_SLOPES:
                rows[f"{row}_with_gradient"] = _row(_alone(nested), _alone(component))
    return rows


def _attended(q: Any, **options: Any) -> Any:
    return F.scaled_dot_product_attention(q, q.cos(), q.sin(), **options)


def _heads(t: Any) -> Any:
    """Return two heads, which stand before the rows: (B, 2, j, 2)."""
    return t.unflatten(-1, [2, 2]).transpose(1, 2)


def _attention(t: Tensor, w: Tensor, causal: bool = False) -> Tensor:
    """Return attention by its formula, a head at a time."""
    heads = []
    for head in range(2):
        q = t[:, 2 * head : 2 * head + 2]
        scores = q @ q.cos().t() / math.sqrt(2)
        if causal:
            hidden = torch.ones(len(t), len(t), dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -math.inf)
        heads.append(scores.softmax(-1) @ q.sin())
    return torch.stack(heads)


OF_COMPONENTS: dict[str, tuple[OnNested, OnComponent]] = {
    "softmax_1": (lambda t, w: t.softmax(1), lambda t, w: t.softmax(0)),
    "softmax_2": (lambda t, w: t.softmax(2), lambda t, w: t.softmax(1)),
    "log_softmax_2": (lambda t, w: t.log_softmax(-1), lambda t, w: t.log_softmax(-1)),
    "times_matrix": (lambda t, w: t @ w, lambda t, w: t @ w),
    "linear": (lambda t, w: F.linear(t, w, w[0]), lambda t, w: t @ w.t() + w[0]),
    "linear_unbiased": (lambda t, w: F.linear(t, w[:2]), lambda t, w: t @ w[:2].t()),
    "times_itself": (lambda t, w: t.transpose(1, 2) @ t, lambda t, w: t.t() @ t),
    "times_row": (lambda t, w: t * w[0], lambda t, w: t * w[0]),
    "plus_row_before": (lambda t, w: w[:1] + t, lambda t, w: w[:1] + t),
    "layer_norm": (
        lambda t, w: F.layer_norm(t, (WIDTH,), w[0], w[1]),
        lambda t, w: _normalized(t) * w[0] + w[1],
    ),
    "layer_norm_plain": (lambda t, w: F.layer_norm(t, (WIDTH,)), lambda t, w: _normalized(t)),
    "rms_norm": (
        lambda t, w: F.rms_norm(t, (WIDTH,), w[0], 1e-3),
        lambda t, w: t / (t.square().mean(-1, keepdim=True) + 1e-3).sqrt() * w[0],
    ),
    "turned": (lambda t, w: t.transpose(1, 2), lambda t, w: t.t()),
    "turned_back": (
        lambda t, w: t.transpose(1, 2).sin().transpose(1, 2) * 2,
        lambda t, w: t.sin() * 2,
    ),
    "split": (lambda t, w: t.split([1, 3], -1), lambda t, w: t.split([1, 3], -1)),
    "chunks": (lambda t, w: t.chunk(2, -1), lambda t, w: t.chunk(2, -1)),
    "column": (lambda t, w: t[..., 1], lambda t, w: t[..., 1]),
    "columns": (lambda t, w: t[..., 1:3], lambda t, w: t[..., 1:3]),
    "unsqueezed": (lambda t, w: t.unsqueeze(-1) * 2, lambda t, w: t.unsqueeze(-1) * 2),
    "unsqueezed_1": (lambda t, w: t.unsqueeze(1) * 2, lambda t, w: t.unsqueeze(0) * 2),
    "squeezed": (
        lambda t, w: t.unsqueeze(-1).squeeze(-1) * 2,
        lambda t, w: t * 2,
    ),
    "unflattened": (lambda t, w: t.unflatten(-1, [2, 2]), lambda t, w: t.unflatten(-1, [2, 2])),
    "flattened": (
        lambda t, w: t.unflatten(-1, [2, 2]).flatten(-2),
        lambda t, w: t * 1,
    ),
    "attention": (lambda t, w: _attended(_heads(t)), _attention),
    "causal_attention": (
        lambda t, w: _attended(_heads(t), is_causal=True),
        lambda t, w: _attention(t, w, True),
    ),
    "joined_to_itself": (
        lambda t, w: torch.cat([t, t.sin()], -1),
        lambda t, w: torch.cat([t, t.sin()], -1),
    ),
    "stacked": (
        lambda t, w: torch.stack([t, t.sin()], -1),
        lambda t, w: torch.stack([t, t.sin()], -1),
    ),
    "normalized_1": (
        lambda t, w: t - t.mean(1, keepdim=True),
        lambda t, w: t - t.mean(0, keepdim=True),
    ),
    "dropped": (lambda t, w: F.dropout(t, 0.0), lambda t, w: t * 1),
    "bilinear_sum": (
        lambda t, w: ((t @ w) * t).sum(-1),
        lambda t, w: ((t @ w) * t).sum(-1),
    ),
}


def _normalized(t: Tensor) -> Tensor:
    centered = t - t.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()


# --- ops of all components ------------------------------------------------------------------------


def _padded_to(parts: Components, fill: float, length: int) -> Tensor:
    """Return components side by side, with `fill` where they end."""
    dims = [max(part.shape[d] for part in parts) for d in range(2)]
    dims[0] = max(dims[0], length)
    rows = []
    for part in parts:
        right, below = dims[1] - part.shape[1], dims[0] - part.shape[0]
        rows.append(F.pad(part, (0, right, 0, below), value=fill))
    return torch.stack(rows)


def _per_component(t: Any) -> Tensor:
    return torch.arange(1.0, t.shape[0] + 1, dtype=torch.float64)


OF_ALL: dict[str, tuple[OnNested, Callable[[Components, Tensor], Any]]] = {
    "padded": (
        lambda t, w: t.to_padded_tensor(-2.0),
        lambda parts, w: _padded_to(parts, -2.0, 0),
    ),
    "padded_after_op": (
        lambda t, w: (t.sin() * 2).to_padded_tensor(0.0),
        lambda parts, w: _padded_to([part.sin() * 2 for part in parts], 0.0, 0),
    ),
    "unbound": (lambda t, w: [p * 2 for p in t.unbind()], lambda parts, w: [p * 2 for p in parts]),
    "batch_chunks": (lambda t, w: list(t.chunk(2)), lambda parts, w: list(parts)),
    "picked": (lambda t, w: t[0] * 2, lambda parts, w: parts[0] * 2),
    "last_picked": (lambda t, w: t[-1] * 2, lambda parts, w: parts[-1] * 2),
    "total": (lambda t, w: t.sum(), lambda parts, w: sum(part.sum() for part in parts)),
    "mean_of_all": (
        lambda t, w: t.mean(),
        lambda parts, w: sum(part.sum() for part in parts) / sum(part.numel() for part in parts),
    ),
    "sum_0_1": (
        lambda t, w: t.sum((0, 1)),
        lambda parts, w: sum(part.sum(0) for part in parts),
    ),
    "mean_0_1": (
        lambda t, w: t.mean((0, 1)),
        lambda parts, w: sum(part.sum(0) for part in parts) / sum(part.shape[0] for part in parts),
    ),
    "amax_0_1": (
        lambda t, w: t.amax((0, 1)),
        lambda parts, w: torch.cat(parts).amax(0),
    ),
    "norm_of_all": (
        lambda t, w: torch.linalg.vector_norm(t),
        lambda parts, w: sum(part.square().sum() for part in parts).sqrt(),  # type: ignore[union-attr]
    ),
    "by_component": (
        lambda t, w: t * _per_component(t).reshape(-1, 1, 1),
        lambda parts, w: [part * (i + 1.0) for i, part in enumerate(parts)],
    ),
    "of_equal_structure": (
        lambda t, w: torch.nested.nested_tensor_from_jagged(
            t.values().sin(), t.offsets(), t.lengths()
        ),
        lambda parts, w: [part.sin() for part in parts],
    ),
}

WITHOUT_GRADIENT = frozenset(
    (
        "column",
        "columns",
        "unsqueezed_1",
        "causal_attention",
        "normalized_1",
        "bilinear_sum",
        "log_softmax_2",
        "sum_0_1",
        "mean_0_1",
        "norm_of_all",
    )
)
"""Rows whose backward pass torch lacks in some layout. Their values are compared without it. A row
``NAME_with_gradient`` compares both."""


def _rows() -> dict[str, Row]:
    rows = {}
    for name, f in ELEMENTWISE.items():
        rows[name] = _row(_alone(f), _alone(f))
    for name, on_one in OF_COMPONENTS.items():
        rows |= _with_gradient(name, _row, on_one)
    for name, on_all in OF_ALL.items():
        rows |= _with_gradient(name, _whole_row, on_all)
    return rows | _reductions()


def _with_gradient(name: str, row: Callable[..., Row], functions: Sequence[Any]) -> dict[str, Row]:
    """Return the row of an op, and that with its gradient where torch lacks some."""
    if name not in WITHOUT_GRADIENT:
        return {name: row(*functions)}
    return {name: row(*functions, False), f"{name}_with_gradient": row(*functions)}


globals().update(_rows())
