"""Answer questions about the gradients of each sample without computing them.

The gradient of a linear layer's weight for one sample is ``left.T @ right``, with the cotangents of
the outputs and the inputs as factors. Its norm follows from the products of the rows of each
factor, so the gradients of B samples need not be in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from ..func import trees
from ..rules.samples.factors import Grams, Tensor, Term, flat, real
from .projections import Projection, TwoSided, checked
from .uses import refuse_written, versions

LIMIT = 1 << 28
"""The bytes of dense gradients that are computed at a time, if the user does not say."""
_PER = ("total", "parameter")


class Parameter(NamedTuple):
    """One parameter. ``terms``: the gradients of each use of it; their sum is its gradient."""

    name: str
    value: Tensor
    terms: Sequence[Term]


class PerSampleGrads:
    """The gradients of the losses of B samples, in factors.

    ``losses``: (B,). ``aux``: the second result of the loss, with the batch in front. Trees have
    the structure of the parameters. At most ``memory_limit`` bytes of dense gradients are computed
    at a time; only :meth:`materialize` returns all of them.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        spec: trees.Spec,
        losses: Tensor,
        aux: Any,
        memory_limit: int,
    ) -> None:
        self.losses, self.aux = losses, aux
        self.memory_limit = memory_limit
        self._own_parameters: Sequence[Parameter] | None = parameters
        self._spec = spec
        needed: list[Tensor] = []
        for parameter in parameters:
            for term in parameter.terms:
                needed += term.held()
        self._held = versions(needed)  # a write to one of these makes the gradients wrong

    @property
    def _parameters(self) -> Sequence[Parameter]:
        """Return the parameters with their terms. Raise if ``keep=False`` has freed them."""
        if self._own_parameters is None:
            raise RuntimeError(
                "per_sample_grads: the gradients were given up by keep=False. "
                "Ask for what you need before"
            )
        return self._own_parameters

    def _give_up(self) -> None:
        """Drop the factors. Nothing can be asked afterwards."""
        self._own_parameters, self._held = None, []

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self.losses.shape[0])

    def _zeros(self, *shape: int) -> Tensor:
        return self.losses.new_zeros(shape)

    # norms and sums

    def norms(self, per: str = "total") -> Any:
        """Return the 2-norm of the gradient of each sample, of shape (B,). ``per="parameter"``: a
        tree of such norms."""
        squares = self._squared_norms()
        if _check_per(per) == "parameter":
            return trees.unflatten([square.sqrt() for square in squares], self._spec)
        # parameters of one model may lie on several devices
        return _total([square.to(squares[0].device) for square in squares]).sqrt()

    def weighted_sum(self, weights: Tensor, *, keep: bool = True) -> Any:
        """Return the sum of ``weights[b]`` times the gradient of sample ``b``, as a tree.
        ``weights``: (B,).

        ``keep=False``: the factors of a parameter are freed once its sum is there, and nothing else
        can be asked afterwards."""
        if weights.shape != (len(self),):
            raise ValueError(
                f"weighted_sum: expected weights of shape {[len(self)]}, got {list(weights.shape)}"
            )
        return self._sums([weights] * len(self._parameters), keep)

    def clipped_sum(self, max_norm: object, per: str = "total", *, keep: bool = True) -> Any:
        """Return the sum of the gradients, each scaled down to a norm of at most ``max_norm``, as a
        tree.

        ``per="parameter"``: the gradient of each parameter is clipped by itself. Then ``max_norm``
        may be a tree of the parameters, with a norm for each. A gradient that is not finite makes
        the sum NaN. ``keep``: as for :meth:`weighted_sum`.
        """
        bounds = self._bounds(max_norm, _check_per(per))
        norms = self.norms(per)
        if per == "total":
            return self.weighted_sum(_factor(norms, bounds[0]), keep=keep)
        if len(bounds) == 1:
            bounds = bounds * len(self._parameters)
        return self._sums(list(map(_factor, trees.flatten(norms)[0], bounds)), keep)

    def _bounds(self, max_norm: object, per: str) -> list[Any]:
        """Return the largest norms: one, or with a tree one for each parameter."""
        bounds, spec = trees.flatten(max_norm)
        # None is the structure of a single number
        if spec is not None and (per != "parameter" or spec != self._spec):
            raise ValueError(
                'clipped_sum: max_norm must be a number, or with per="parameter" a tree of numbers '
                "with the structure of the parameters"
            )
        if not all(bound > 0 for bound in bounds):
            raise ValueError(f"clipped_sum: max_norm must be positive, got {max_norm}")
        return bounds

    # products

    def dot(self, vector: object) -> Tensor:
        """Return the product of the gradient of each sample with ``vector``, a tree of the
        parameters' shapes. Shape (B,)."""
        leaves, spec = trees.flatten(vector)
        if spec != self._spec:
            raise ValueError("dot: the vector has another structure than the parameters")
        for parameter, leaf in zip(self._parameters, leaves, strict=True):
            if leaf.shape != parameter.value.shape:
                raise ValueError(
                    f"dot: expected shape {list(parameter.value.shape)} for {parameter.name}, "
                    f"got {list(leaf.shape)}"
                )
        self._refuse_written()
        products: list[Tensor] = []
        for parameter, leaf in zip(self._parameters, leaves, strict=True):
            products += [term.dot(leaf) for term in parameter.terms]
        if not products:
            return self._zeros(len(self))
        return _total(products)

    def gram(self, other: PerSampleGrads | None = None) -> Tensor:
        """Return the product of each gradient with each gradient of ``other``: the empirical
        tangent kernel of two batches, of shape (B, B of ``other``). None: of this batch with
        itself."""
        if other is None:
            other = self
        shapes, others = self._shapes(), other._shapes()
        if other._spec != self._spec or shapes != others:
            raise ValueError("gram: the two batches have gradients of other parameters")
        self._refuse_written()
        other._refuse_written()
        products = self._zeros(len(self), len(other))
        for mine, theirs in zip(self._parameters, other._parameters, strict=True):
            for own_term in mine.terms:
                for other_term in theirs.terms:
                    products = products + self._gram_of(own_term, other_term)
        return products

    def project(self, k: int | tuple[int, int], seed: int = 0, per: str = "total") -> Any:
        """Return the gradients times a random matrix with ``k`` columns, of shape (B, k). Products
        of projections are, on average, those of the gradients (Johnson and Lindenstrauss 1984;
        TRAK, Park et al. 2023).

        The entries are ``±1 / sqrt(k)``. They follow from ``seed``, the number of the parameter and
        the place in it, so that two batches are projected alike. Blocks of the gradients are
        computed and projected, so B × P numbers are never in memory.

        ``k=(a, b)``: from both sides, as in LoGra. The gradient of a matrix becomes
        ``left.mT @ gradient @ right`` with ``a`` and ``b`` columns, which its factors give
        without the gradient. It takes less time by far, and products vary more.
        ``per="parameter"``: a tree of the projections of each parameter, of shape (B, k) or (B,
        a, b). Their sum is the projection in total.
        """
        checked(k)
        self._refuse_written()
        for parameter in self._parameters:
            if parameter.value.is_complex():
                raise ValueError(f"project: {parameter.name} is complex")
        # one parameter at a time: projections add up, since a gradient is all of its parts
        of = self._projection(k, seed)
        projections = (
            of(index, parameter.value.shape, parameter.terms)
            for index, parameter in enumerate(self._parameters)
        )
        if _check_per(per) == "parameter":
            return trees.unflatten(list(projections), self._spec)
        sides = k if isinstance(k, tuple) else (k,)
        start = self._zeros(len(self), *sides)
        return functools.reduce(torch.add, projections, start).flatten(1)

    def _projection(self, k: int | tuple[int, int], seed: int) -> Callable[..., Tensor]:
        """Return a function of the number, the shape and the terms of a parameter: its
        projection."""
        if isinstance(k, tuple):
            return TwoSided(len(self), k, seed, self.memory_limit, self._zeros()).of
        return Projection(len(self), k, seed, self.memory_limit, self._zeros()).of

    # gradients

    def materialize(self, out: object = None) -> Any:
        """Return the gradients, as a tree of tensors of shape (B, *parameter). ``out``: such a
        tree, which is written to and returned."""
        self._refuse_written()
        if out is None:
            return self._tree(lambda parameter: self._dense(parameter, 0, len(self)))
        # all of it is checked before any of it is written
        leaves, spec = trees.flatten(out)
        shapes = [(len(self), *shape) for shape in self._shapes()]
        if spec != self._spec or [tuple(leaf.shape) for leaf in leaves] != shapes:
            raise ValueError(f"materialize: out must be a tree of tensors of shapes {shapes}")
        for parameter, tensor in zip(self._parameters, leaves, strict=True):
            for start, stop in self._parts(parameter):
                # a single term writes into the result, without a tensor in between
                if len(parameter.terms) == 1:
                    parameter.terms[0].part(start, stop).write(tensor[start:stop])
                else:
                    tensor[start:stop].copy_(self._dense(parameter, start, stop))
        return out

    def second_moment(self) -> Any:
        """Return the mean over the samples of the squared gradients, entry by entry, as a tree."""

        def mean_square(parameter: Parameter) -> Tensor:
            return self._sum_over_samples(parameter, _squares) / len(self)

        return self._tree(mean_square)

    def variance(self) -> Any:
        """Return the variance over the samples of each entry of the gradients, as a tree. It
        divides by B."""

        def variance_of(parameter: Parameter) -> Tensor:
            """Return the variance of each entry of one parameter's gradients."""
            # two passes: the mean square less the squared mean would cancel digits
            mean = self._sum_over_samples(parameter, lambda gradients: gradients) / len(self)

            def squared_distance(gradients: Tensor) -> Tensor:
                return _squares(gradients - mean)

            return self._sum_over_samples(parameter, squared_distance) / len(self)

        return self._tree(variance_of)

    def explain(self) -> str:
        """Return a table: for each parameter its uses, how the norms are computed, and the bytes of
        its dense gradients."""
        table = Table(
            box=box.SIMPLE_HEAD, title=f"gradients of {len(self)} samples", title_justify="left"
        )
        for column in ("parameter", "shape"):
            table.add_column(column)
        table.add_column("uses", justify="right")
        for column in ("form", "norms"):
            table.add_column(column)
        table.add_column("dense bytes", justify="right")
        for parameter in self._parameters:
            # each kind of term once, in the order of the uses
            forms = ", ".join(
                dict.fromkeys(type(term).__name__.lower() for term in parameter.terms)
            )
            way = "direct"
            if parameter.terms and _in_factors(parameter.terms):
                way = "ghost"
            size = parameter.value.numel() * parameter.value.element_size() * len(self)
            table.add_row(
                parameter.name,
                str(list(parameter.value.shape)),
                str(len(parameter.terms)),
                forms or "unused",
                way,
                f"{size:,}",
            )
        console = Console(width=120)
        with console.capture() as captured:
            console.print(table)
        return captured.get()

    # parts

    def _shapes(self) -> list[torch.Size]:
        return [parameter.value.shape for parameter in self._parameters]

    def _refuse_written(self) -> None:
        refuse_written(self._held, "a tensor that the gradients are computed of")

    def _tree(self, of: Callable[[Parameter], Tensor]) -> object:
        """Return ``of`` of each parameter, as a tree. Raise if what the gradients need was written
        to."""
        self._refuse_written()
        return trees.unflatten(list(map(of, self._parameters)), self._spec)

    def _sums(self, weights: Sequence[Tensor], keep: bool) -> object:
        """Return the weighted sum of each parameter. Those that free most memory come first."""
        self._refuse_written()
        parameters: list[Any] = list(self._parameters)
        sums: list[Any] = [None] * len(parameters)
        # from here on `parameters` alone refers to the factors, so each can be freed when it is
        # used
        if not keep:
            self._give_up()
        order = sorted(range(len(parameters)), key=lambda index: _bytes_of_sum(parameters[index]))
        for index in order:
            sums[index] = self._sum_of(parameters[index], weights[index])
            parameters[index] = None  # the only reference to its factors, if `keep` is false
        return trees.unflatten(sums, self._spec)

    def _sum_of(self, parameter: Parameter, weights: Tensor) -> Tensor:
        """Return the weighted sum of one parameter's gradients, in its dtype."""
        sums = [term.weighted_sum(weights) for term in parameter.terms]
        if not sums:
            return torch.zeros_like(parameter.value)
        return _total(sums).to(parameter.value.dtype)

    def _dense(self, parameter: Parameter, start: int, stop: int) -> Tensor:
        """Return the gradients of samples ``start`` to ``stop`` of one parameter, in its dtype."""
        gradients = [term.part(start, stop).dense() for term in parameter.terms]
        if not gradients:
            return parameter.value.new_zeros(stop - start, *parameter.value.shape)
        return _total(gradients).to(parameter.value.dtype)

    def _parts(self, parameter: Parameter) -> Iterator[tuple[int, int]]:
        """Iterate over ranges of samples whose dense gradients are within the limit. Each range has
        at least one sample."""
        bytes_of_sample = parameter.value.numel() * parameter.value.element_size()
        step = max(1, self.memory_limit // max(1, bytes_of_sample))
        return ((start, min(start + step, len(self))) for start in range(0, len(self), step))

    def _sum_over_samples(
        self, parameter: Parameter, function: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the sum over the samples of ``function`` of the dense gradients, one part at a
        time."""
        parts = [
            function(self._dense(parameter, start, stop)).sum(0)
            for start, stop in self._parts(parameter)
        ]
        if not parts:
            return torch.zeros_like(parameter.value)
        return _total(parts)

    def _squared_norms(self) -> list[Tensor]:
        """Return the squared norms of the gradients of each parameter, each of shape (B,)."""
        self._refuse_written()
        factored = [parameter for parameter in self._parameters if _in_factors(parameter.terms)]
        vectors: list[Tensor] = []
        for parameter in factored:
            for term in parameter.terms:
                vectors += term.vectors()
        grams = Grams(vectors)  # one for all: layers on the same input share a Gram matrix
        return [self._squared_norms_of(parameter, grams) for parameter in self._parameters]

    def _squared_norms_of(self, parameter: Parameter, grams: Grams) -> Tensor:
        """Return the squared norms of the gradients of one parameter.

        The norm of a sum of terms is the norms of the terms and twice their products.
        """
        if not parameter.terms:
            return self._zeros(len(self))
        if _in_factors(parameter.terms):
            summands = [term.squared_norms(grams) for term in parameter.terms]
            for index, term in enumerate(parameter.terms):
                summands += [2 * term.products(other) for other in parameter.terms[:index]]
            # products may be negative, and the sum of a zero gradient may round below zero
            return _total(summands).clamp_min(0)
        # some samples at a time, so that their dense gradients fit into the limit
        dense = (
            flat(self._dense(parameter, start, stop)) for start, stop in self._parts(parameter)
        )
        squares = [real((rows.conj() * rows).sum(1)) for rows in dense]
        return torch.cat(squares or [self._zeros(len(self))])

    def _gram_of(self, term: Term, other: Term) -> Tensor:
        """Return the products of the gradients of two terms, (B, B'). Dense gradients are computed
        in blocks of samples, one of each term, within the limit."""
        if term.gram_by_factors(other):
            return term.gram(other)
        numel = max(1, term.shape.numel() * term.dtype.itemsize)
        # two blocks of dense gradients exist at once, one of each term
        step = max(1, self.memory_limit // (2 * numel))
        rows = []
        for row in range(0, term.size, step):
            blocks = []
            for column in range(0, other.size, step):
                # a part that is kept for all of these would keep its dense gradients
                part = term.part(row, min(row + step, term.size))
                blocks.append(part.gram(other.part(column, min(column + step, other.size))))
            rows.append(torch.cat(blocks, 1))
        return torch.cat(rows)


def _squares(tensor: Tensor) -> Tensor:
    """Return the squared absolute value of each entry."""
    return real(tensor.conj() * tensor)


def _total(tensors: Sequence[Tensor]) -> Tensor:
    return functools.reduce(torch.add, tensors)


def _in_factors(terms: Sequence[Term]) -> bool:
    """Return whether the norms of the sum of ``terms`` follow from factors."""
    if any(term.needs_dense() for term in terms):
        return False
    # the products of two kinds of terms are computed of their dense gradients
    return len(set(map(type, terms))) == 1


def _bytes_of_sum(parameter: Parameter) -> int:
    """Return the bytes of a sum of the gradients, minus those of its factors."""
    bytes_of_factors = 0
    for term in parameter.terms:
        bytes_of_factors += sum(tensor.nbytes for tensor in term.held())
    return parameter.value.nbytes - bytes_of_factors


def _check_per(per: str) -> str:
    if per not in _PER:
        raise ValueError(f"per must be one of {', '.join(map(repr, _PER))}, got {per!r}")
    return per


def _factor(norms: Tensor, max_norm: float) -> Tensor:
    """Return the factors that scale gradients of these norms down to ``max_norm``."""
    return max_norm / norms.clamp_min(max_norm)
