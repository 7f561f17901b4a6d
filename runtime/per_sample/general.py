"""Compute gradients of a parameter for each sample, where there are no factors.

This is so for some ops, for tensors that are computed of parameters, and for tensors of which each
sample uses a part of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..func import jvp, vjp, vmap
from ..rules.samples.factors import Scale, Tensor, Term, flat, real, scaled_by
from ..rules.samples.places import Place


class General(Term):
    """The gradients of argument ``position`` of a call of any op, by derivatives of the op.

    ``op``: takes the tensors of ``args``. ``dims``: 0 for each that has a batch in front,
    else None. ``gs``: the cotangents of the results, with a batch in front; None for a
    result without one.
    """

    def __init__(
        self,
        op: Callable[..., Any],
        args: Sequence[Tensor],
        dims: Sequence[int | None],
        position: int,
        gs: Sequence[torch.Tensor | None],
    ) -> None:
        self.op = op
        self.args = args
        self.dims = dims
        self.position = position
        self.gs = gs
        parameter = args[position]
        self.size = next(cotangent.shape[0] for cotangent in gs if cotangent is not None)
        self.shape, self.dtype = parameter.shape, parameter.dtype

    def _one(self, *args: Tensor) -> tuple[Tensor, ...]:
        """Return the results of one sample that have cotangents."""
        outputs = self.op(*args)
        results = outputs
        if isinstance(outputs, torch.Tensor):
            results = (outputs,)
        pairs = zip(results, self.gs, strict=True)
        return tuple(output for output, cotangent in pairs if cotangent is not None)

    def _cotangents(self) -> tuple[Tensor, ...]:
        return tuple(cotangent for cotangent in self.gs if cotangent is not None)

    def _with(self, args: Sequence[Tensor], parameter: Tensor) -> list[Tensor]:
        """Return ``args`` with ``parameter`` in its position."""
        replaced = list(args)
        replaced[self.position] = parameter
        return replaced

    def dense(self) -> Tensor:
        """Return the gradients, by a ``vmap`` of the op's pullback over the samples."""

        def gradient_of_one(args: Sequence[Tensor], cotangents: tuple[Tensor, ...]) -> Tensor:
            """Return the gradient of one sample."""
            _, pullback = vjp(
                lambda parameter: self._one(*self._with(args, parameter)), args[self.position]
            )
            gradient: Tensor = pullback(cotangents)[0]
            return gradient

        of_all = vmap(gradient_of_one, in_dims=(list(self.dims), 0), randomness="same")
        gradients: Tensor = of_all(list(self.args), self._cotangents())
        return gradients

    def held(self) -> Sequence[Tensor]:
        """Return the arguments and the cotangents."""
        return [*self.args, *self._cotangents()]

    def part(self, start: int, stop: int) -> General:
        """Return the gradients of these samples, from their slices of all batches."""
        args = list(self.args)
        for index, dim in enumerate(self.dims):
            if dim is not None:
                args[index] = args[index][start:stop]
        return self._change(args, lambda g: g[start:stop])

    def scaled(self, scale: Scale) -> General:
        """Return the gradients times a number for each sample, by scaled cotangents."""
        return self._change(self.args, scale)

    def _change(self, args: Sequence[Tensor], change: Callable[[Tensor], Tensor]) -> General:
        """Return the gradients of a call on ``args``, with each cotangent changed."""
        cotangents = [None if g is None else change(g) for g in self.gs]
        return General(self.op, args, self.dims, self.position, cotangents)

    def _run_batch(self, parameter: Tensor) -> tuple[Tensor, ...]:
        """Return the results of all samples, for one ``parameter``."""
        return vmap(self._one, in_dims=tuple(self.dims), randomness="same")(  # type: ignore[no-any-return]
            *self._with(self.args, parameter)
        )

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum of the gradients, by one pullback of the whole batch."""
        _, pullback = vjp(self._run_batch, self.args[self.position])
        # the pullback is linear: the weights of the samples go into their cotangents
        weighted = tuple(
            scaled_by(weights, cotangent).to(cotangent.dtype) for cotangent in self._cotangents()
        )
        total: Tensor = pullback(weighted)[0]
        return total

    def dot(self, v: Tensor) -> Tensor:
        """Return the product of each gradient with ``v``: the cotangent times the pushforward of
        ``v``, which takes no gradients."""
        _, tangents = jvp(self._run_batch, (self.args[self.position],), (v,))
        products = [
            real(flat(cotangent.conj() * tangent).sum(1))
            for cotangent, tangent in zip(self._cotangents(), tangents, strict=True)
        ]
        return functools.reduce(torch.add, products)


class Pulled(Term):
    """The gradients of a parameter from those of a tensor that is computed of parameters alone,
    such as a normalized weight.

    ``pull``: maps a gradient of that tensor to one of the parameter. ``term``: the gradients of
    that tensor, which are scaled already.
    """

    def __init__(self, term: Term, pull: Callable[[Tensor], Tensor], parameter: Tensor) -> None:
        self.term, self.pull, self.parameter = term, pull, parameter
        self.size, self.shape, self.dtype = term.size, parameter.shape, parameter.dtype

    def dense(self) -> Tensor:
        """Return the dense gradients of the computed tensor, each pulled back to the parameter."""
        gradients: Tensor = vmap(self.pull)(self.term.dense())
        return gradients

    def held(self) -> Sequence[Tensor]:
        """Return the tensors from which the gradients of the computed tensor are computed."""
        return self.term.held()

    def part(self, start: int, stop: int) -> Pulled:
        """Return the gradients of these samples."""
        return Pulled(self.term.part(start, stop), self.pull, self.parameter)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum. ``pull`` is linear, so it pulls the sum back once."""
        return self.pull(self.term.weighted_sum(weights))


# --- parameters of which each sample uses a part --------------------------------------------------


class OwnRows(Term):
    """The gradients of a tensor of which each sample uses its own part, as of a class token that is
    expanded to the batch.

    ``term``: the gradients of the parts. ``place``: where they lie in the tensor, of shape
    ``shape``.
    """

    def __init__(self, term: Term, place: Place, shape: Sequence[int]) -> None:
        self.term, self.place = term, place
        self.size, self.shape, self.dtype = term.size, torch.Size(shape), term.dtype
        self.first = 0  # the number of the first sample
        self.whole = term.size  # the number of parts; more than `size` after :meth:`part`

    def dense(self) -> Tensor:
        """Return gradients that are zero outside of each sample's part."""
        parts = self.term.dense()
        # for each sample: zeros in the parts of all others
        spread = parts.new_zeros(self.size, self.whole, *parts.shape[1:])
        each = torch.arange(self.size, device=parts.device)
        # `whole` and `first` are of the batch that the parameter was expanded to, also in a part
        spread[each, each + self.first] = parts
        if not self.size:  # there is nothing to stack
            return parts.new_zeros(0, *self.shape)
        return torch.stack(list(map(self.place.merged, spread)))

    def held(self) -> Sequence[Tensor]:
        """Return the tensors from which the gradients of the parts are computed."""
        return self.term.held()

    def part(self, start: int, stop: int) -> OwnRows:
        """Return the gradients of these samples."""
        return self._copy(self.term.part(start, stop), self.first + start)

    def scaled(self, scale: Scale) -> OwnRows:
        """Return the gradients times a number for each sample."""
        return self._copy(self.term.scaled(scale), self.first)

    def _copy(self, term: Term, first: int) -> OwnRows:
        """Return the gradients ``term``, whose first sample has the number ``first``."""
        copy = OwnRows(term, self.place, self.shape)
        copy.first, copy.whole = first, self.whole
        return copy

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum: each weighted part in its place, since parts do not overlap."""
        parts = self.term.dense()
        scaled = parts.new_zeros(self.whole, *parts.shape[1:])
        scaled[self.first : self.first + self.size] = parts * weights.to(parts.dtype).reshape(
            -1, *[1] * (parts.dim() - 1)
        )
        return self.place.merged(scaled)
