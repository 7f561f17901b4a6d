"""Describe one ATen call of a :class:`.batch_session.BatchSession`, and compute the gradients of
the parameters that it uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..rules.ops import Op
from ..rules.samples.factors import Dense, Term
from ..rules.samples.place_table import rule_of
from ..rules.samples.places import Mixed, Place, Placed, Pooled, Tensor
from ..seam.levels import Value
from ..session.tensor import SESSION
from .general import OwnRows
from .states import PARAMETERS, Mixture
from .uses import Layout, ParameterCall, Use, unflattened


class FollowedCall(NamedTuple):
    """A call with the states of its arguments."""

    op: Op
    args: Sequence[Any]
    kwargs: dict[str, Any]
    # The arguments in one list, as `layout` says.
    flat: list[Any]
    layout: Layout
    # The state of each argument in `flat`, or None.
    states: list[object]

    # These three run for every call, and a generator would take twice the time.

    def has_samples(self) -> bool:
        """Return whether samples lie in an argument."""
        for state in self.states:  # noqa: SIM110
            if isinstance(state, Place):
                return True
        return False

    def has_mixture(self) -> bool:
        """Return whether samples are mixed in an argument."""
        return any(isinstance(state, Mixture) for state in self.states)

    def is_of_parameters(self) -> bool:
        """Return whether the result follows from parameters alone."""
        for state in self.states:  # noqa: SIM110
            if state is not None and state is not PARAMETERS:
                return False
        return True

    def parameters(self) -> list[int]:
        """Return the numbers in ``flat`` of the arguments that follow from parameters alone."""
        return [index for index, state in enumerate(self.states) if state is PARAMETERS]

    def by_name(self, flat: Sequence[object]) -> dict[str, Any]:
        """Return what ``flat`` has for the arguments, by their names. Those that are left to their
        defaults are not there."""
        args, kwargs = unflattened(flat, self.layout)
        return dict(zip(self.op.arg_names, args, strict=False)) | kwargs

    def placed(self, outs: Sequence[object], size: int) -> Placed:
        """Return the call as the rules of places see it."""
        op = self.op
        # rules read sizes and numbers, for which the tensors inside are enough
        plain = [
            argument._inner
            if isinstance(argument, Value) and argument._level is SESSION
            else argument
            for argument in self.flat
        ]
        named = dict(zip(op.arg_names, op.defaults, strict=True)) | self.by_name(plain)
        places = self.by_name(
            [state if isinstance(state, Place) else None for state in self.states]
        )
        results = [output._inner if isinstance(output, Value) else output for output in outs]
        return Placed(op, named, places, results, size)

    def writes_samples_with_parameters(self) -> bool:
        """Return whether a call of samples writes what follows from parameters."""
        # what a copy overwrites has no part in it
        read = self.states[1:] if self.op.base_name == "copy_" else self.states
        return self.has_samples() and any(state is PARAMETERS for state in read)

    def puts_parameters_in_samples(self) -> bool:
        """Return whether parameters are the values, and nothing else, of an ``index_put``."""
        if self.op.base_name not in ("index_put", "_unsafe_index_put"):
            return False
        number_of_values = len(self.args[1]) + 1
        return self.parameters() == [number_of_values]


@dataclass(slots=True)
class UsedParameters:
    """The parameters that a call uses. It gives the session their gradients when a backward pass
    reaches the tap of the results.

    It has no reference to the results, since their histories refer to it.
    """

    session: Any
    call: ParameterCall  # the call, once for each sample
    values: dict[int, Tensor]  # the parameters, by the numbers of the arguments
    rows: dict[int, Place]  # of those whose rows meet single samples, where these lie
    tapped: list[int]  # the numbers of the results that the tap follows
    places: list[object]  # for each result, where the samples lie in it

    def note(self, cotangents: list[Any]) -> None:
        """Note the gradients, by the cotangents of the results that the tap follows."""
        if not self.call.size:
            self._note_no_samples()
            return
        # one per parameter, in order; none at all if no result has a cotangent, hence not strict
        uses = zip(self.values, self.call.uses(self._by_sample(cotangents)), strict=False)
        in_rows = [(edge, self._in_rows(index, term)) for index, (edge, term) in uses]
        self.session.note_uses(in_rows)

    def _note_no_samples(self) -> None:
        """Note gradients of shape (0, *parameter), for a batch without samples."""
        uses: list[Use] = []
        for index, value in self.values.items():
            edge = self.call.edges[index]
            if edge is not None:
                uses.append((edge, Dense(value.new_zeros(0, *value.shape))))
        self.session.uses.add(uses)

    def _by_sample(self, cotangents: list[torch.Tensor | None]) -> list[object]:
        """Return the cotangents of all results with the batch in front, None where there is
        none."""
        by_sample: list[Any] = [None] * len(self.places)
        for index, cotangent in zip(self.tapped, cotangents, strict=True):
            if cotangent is None:
                continue
            place = self.places[index]
            if place is None:
                raise RuntimeError(
                    f"per_sample: result {index} of {self.call.op.func} belongs to no "
                    "sample, and has a gradient"
                )
            # a sum or mean: each sample gets the same cotangent, or its part of it
            if isinstance(place, Pooled):
                self.session.note_pool(place.factor)
                by_sample[index] = cotangent.expand(self.call.size) / place.factor
            else:
                by_sample[index] = self.session.of_samples(cotangent, place)
        return by_sample

    def _in_rows(self, index: int, term: Term) -> Term:
        """Return the gradients of argument ``index``, spread over its rows if each sample uses its
        own."""
        if index not in self.rows:
            return term
        return OwnRows(term, self.rows[index], self.values[index].shape)


def apply_rule(op: Op, placed: Placed, outs: Sequence[object]) -> list[object]:
    """Return the place of the samples in each result, by the op's rule. ``Mixed`` without one."""
    rule = rule_of(op)
    if rule is None:
        raise Mixed("nothing is known of where it leaves the samples")
    places = rule(placed)
    if isinstance(places, list):
        return places
    return [places] * len(outs)


def without_history(argument: object) -> Any:
    """Return an argument as a tensor that the session does not follow."""
    if isinstance(argument, Value) and argument._level is SESSION:
        return argument._inner
    if isinstance(argument, torch.Tensor):
        return argument.detach()
    return argument


def leaves_of(outs: object) -> list[Any]:
    """Return the results of an ATen call in a list."""
    if isinstance(outs, (list, tuple)):
        return list(outs)
    return [outs]
