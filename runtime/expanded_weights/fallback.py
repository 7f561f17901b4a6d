"""Any function, by ``vmap(vjp)`` over the samples: right for whatever works sample by sample, at the price of generality."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..func import vjp, vmap
from ..seam.levels import Value
from ..session.leaf import as_leaf
from ..session.tensor import SESSION
from ..tape.values import edge_of
from .layer import PerSampleBackward
from .utils import plain, set_grad_sample_if_exists
from .weight import ExpandedWeight, UnhandledFunction


def by_sample(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``func(*args, **kwargs)``, whose ExpandedWeights get their gradients in the backward.

    The batch is every tensor among the arguments that is not a weight and whose first dimension is of the batch size.
    """
    flat, spec = pytree.tree_flatten((tuple(args), dict(kwargs)), is_leaf=lambda a: isinstance(a, torch.Tensor))
    weights = [i for i, a in enumerate(flat) if isinstance(a, ExpandedWeight)]
    size = flat[weights[0]].batch_size
    name = getattr(func, "__name__", repr(func))
    batch = [i for i, a in enumerate(flat) if _is_batch(a, size)]
    if not batch:
        raise UnhandledFunction(f"Expanded Weights encountered but cannot handle function {name}: it acts on weights alone")
    held = [plain(a) for a in flat]

    def run(batched: Sequence[Any], chosen: Sequence[Any]) -> Any:
        full = list(held)
        for i, v in zip((*batch, *weights), (*batched, *chosen), strict=True):
            full[i] = v
        a, k = pytree.tree_unflatten(full, spec)
        return func(*a, **k)

    xs, ws = [held[i] for i in batch], [held[i] for i in weights]
    outs, out_spec = pytree.tree_flatten(run(xs, ws))
    _check_by_sample(name, outs, pytree.tree_leaves(run([x[:1] for x in xs], ws)), size)
    if not torch.is_grad_enabled():
        return pytree.tree_unflatten([SESSION.wrap(o, None) for o in outs], out_spec)
    tracked = [i for i, o in enumerate(outs) if o.is_floating_point() or o.is_complex()]

    def differentiable(batched: Sequence[Any], chosen: Sequence[Any]) -> Any:
        leaves = pytree.tree_leaves(run(batched, chosen))
        return tuple(leaves[i] for i in tracked)

    def filled(grads: list[Any]) -> list[torch.Tensor]:
        return [torch.zeros_like(outs[i]) if g is None else g for i, g in zip(tracked, grads, strict=True)]

    def deliver(grads: list[Any]) -> None:
        def one(batched: Any, cotangents: Any) -> Any:
            rows = [x.unsqueeze(0) for x in batched]
            return vjp(lambda *w: differentiable(rows, w), *ws)[1](tuple(g.unsqueeze(0) for g in cotangents))

        found = vmap(one, randomness="different")(xs, filled(grads))
        for i, g in zip(weights, found, strict=True):
            set_grad_sample_if_exists(flat[i], partial(_given, g))

    sources = [as_leaf(flat[i]) if flat[i].requires_grad else flat[i] for i in batch]
    edges = tuple(edge_of(x) if isinstance(x, Value) else None for x in sources)

    def input_grad(grads: list[Any]) -> list[Any]:
        active = [k for k, e in enumerate(edges) if e is not None]

        def of_inputs(*chosen: Any) -> Any:
            full = list(xs)
            for k, x in zip(active, chosen, strict=True):
                full[k] = x
            return differentiable(full, ws)

        found = vjp(of_inputs, *(xs[k] for k in active))[1](tuple(filled(grads)))
        by_place = dict(zip(active, found, strict=True))
        return [by_place.get(k) for k in range(len(edges))]

    node = PerSampleBackward(edges, [outs[i] for i in tracked], deliver, input_grad)
    wrapped = [SESSION.wrap(o, (node, tracked.index(i)) if i in tracked else None) for i, o in enumerate(outs)]
    return pytree.tree_unflatten(wrapped, out_spec)


def _given(g: torch.Tensor, _weight: Any) -> torch.Tensor:
    return g


def _is_batch(a: Any, size: int) -> bool:
    return isinstance(a, torch.Tensor) and not isinstance(a, ExpandedWeight) and a.dim() > 0 and a.shape[0] == size


def _check_by_sample(name: str, outs: Sequence[Any], first: Sequence[Any], size: int) -> None:
    """The first sample alone must give the first rows, or samples mix and per-sample gradients have no meaning. Tensors of the meta
    device have shapes alone to tell by."""
    for o, f in zip(outs, first, strict=True):
        same = o.dim() > 0 and o.shape[0] == size and f.shape == o[:1].shape
        if not same or not (o.is_meta or torch.allclose(f, o[:1], rtol=1e-3, atol=1e-4, equal_nan=True)):
            raise RuntimeError(
                f"Expanded Weights cannot handle {name}: its result for the first sample alone is not the first row of its result for "
                "the batch, so it does not work sample by sample along dimension 0"
            )
