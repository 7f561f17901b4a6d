"""Per-sample gradients of any function, by ``vmap(vjp)`` over the samples. It is slower than a rule.

It is right for every function that treats samples independently.
"""

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
    """Run ``func(*args, **kwargs)`` so that the backward pass gives its ExpandedWeights per-sample gradients.

    The batch is every tensor among the arguments that is not a weight and whose dimension 0 has the batch size.
    """
    call = _Call(func, args, kwargs)
    outs, out_spec = pytree.tree_flatten(call.run(call.batch, call.weights))
    _check_by_sample(call.name, outs, pytree.tree_leaves(call.run([x[:1] for x in call.batch], call.weights)), call.size)
    if not torch.is_grad_enabled():
        return pytree.tree_unflatten([SESSION.wrap(o) for o in outs], out_spec)
    tracked = [i for i, o in enumerate(outs) if o.is_floating_point() or o.is_complex()]
    backward = _Backward(call, tracked, [outs[i] for i in tracked])
    node = PerSampleBackward(backward.edges, backward.outs, backward.deliver, backward.input_grad)
    wrapped = [SESSION.wrap(o, (node, tracked.index(i)) if i in tracked else None) for i, o in enumerate(outs)]
    return pytree.tree_unflatten(wrapped, out_spec)


class _Call:
    """A call as a function of its batch and its weights, with plain tensors."""

    def __init__(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.func, self.name = func, getattr(func, "__name__", repr(func))
        self.given, self.spec = pytree.tree_flatten((tuple(args), dict(kwargs)), is_leaf=lambda a: isinstance(a, torch.Tensor))
        self.weights_at = [i for i, a in enumerate(self.given) if isinstance(a, ExpandedWeight)]
        self.size: int = self.given[self.weights_at[0]].batch_size
        self.batch_at = [i for i, a in enumerate(self.given) if _is_batch(a, self.size)]
        if not self.batch_at:
            raise UnhandledFunction(f"Expanded Weights encountered but cannot handle function {self.name}: no argument has a batch")
        self.held = [plain(a) for a in self.given]
        self.batch = [self.held[i] for i in self.batch_at]
        self.weights = [self.held[i] for i in self.weights_at]

    def run(self, batch: Sequence[Any], weights: Sequence[Any]) -> Any:
        """The results of the function for this batch and these weights."""
        full = list(self.held)
        for i, v in zip((*self.batch_at, *self.weights_at), (*batch, *weights), strict=True):
            full[i] = v
        args, kwargs = pytree.tree_unflatten(full, self.spec)
        return self.func(*args, **kwargs)


class _Backward:
    """The derivatives of a call. ``outs``: its results that have a derivative. ``tracked``: their numbers."""

    def __init__(self, call: _Call, tracked: Sequence[int], outs: Sequence[torch.Tensor]) -> None:
        self.call, self.tracked, self.outs = call, tracked, outs
        given = [call.given[i] for i in call.batch_at]
        sources = [as_leaf(x) if x.requires_grad else x for x in given]
        self.edges = tuple(edge_of(x) if isinstance(x, Value) else None for x in sources)

    def _run(self, batch: Sequence[Any], weights: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        leaves = pytree.tree_leaves(self.call.run(batch, weights))
        return tuple(leaves[i] for i in self.tracked)

    def _filled(self, grads: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros_like(o) if g is None else g for o, g in zip(self.outs, grads, strict=True))

    def deliver(self, grads: Sequence[torch.Tensor | None]) -> None:
        """Add the gradients of each sample to ``grad_sample`` of the weights."""

        def one(sample: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]) -> Any:
            rows = [x.unsqueeze(0) for x in sample]
            return vjp(lambda *weights: self._run(rows, weights), *self.call.weights)[1](tuple(g.unsqueeze(0) for g in cotangents))

        found = vmap(one, randomness="different")(self.call.batch, self._filled(grads))
        for i, g in zip(self.call.weights_at, found, strict=True):
            set_grad_sample_if_exists(self.call.given[i], partial(_given, g))

    def input_grad(self, grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradient of each tensor of the batch. None for a tensor without an edge."""
        wanted = [k for k, e in enumerate(self.edges) if e is not None]

        def of_inputs(*chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
            full = list(self.call.batch)
            for k, x in zip(wanted, chosen, strict=True):
                full[k] = x
            return self._run(full, self.call.weights)

        found = vjp(of_inputs, *(self.call.batch[k] for k in wanted))[1](self._filled(grads))
        by_place = dict(zip(wanted, found, strict=True))
        return [by_place.get(k) for k in range(len(self.edges))]


def _given(g: torch.Tensor, _weight: object) -> torch.Tensor:
    return g


def _is_batch(a: object, size: int) -> bool:
    return isinstance(a, torch.Tensor) and not isinstance(a, ExpandedWeight) and a.dim() > 0 and a.shape[0] == size


def _check_by_sample(name: str, outs: Sequence[Any], first: Sequence[Any], size: int) -> None:
    """Raise unless the results for the first sample alone are the first rows of the results for the batch.

    Otherwise samples mix, and per-sample gradients have no meaning. For meta tensors only shapes are compared.
    """
    for o, f in zip(outs, first, strict=True):
        same = o.dim() > 0 and o.shape[0] == size and f.shape == o[:1].shape
        if not same or not (o.is_meta or torch.allclose(f, o[:1], rtol=1e-3, atol=1e-4, equal_nan=True)):
            raise RuntimeError(
                f"Expanded Weights cannot handle {name}: its result for the first sample alone is not the first row of its result for "
                "the batch, so it does not work sample by sample along dimension 0"
            )
