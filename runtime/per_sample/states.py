"""Define the states that a :class:`.batch_session.BatchSession` gives to tensors.

The *state* of a tensor says where the samples lie in it (:class:`Place`), that it is their sum or
mean (:class:`Pooled`), that it follows from parameters alone (:data:`PARAMETERS`), or that samples
are mixed in it (:class:`Mixture`). A tensor without a state is the same for all samples.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..rules.samples.places import Mixed, Place, Pooled, fits, place_in_base
from ..tape.values import edge_of
from .batch_means import equal

PARAMETERS = object()


class Mixture(NamedTuple):
    """Samples are mixed in a tensor. ``why``: a sentence for the error."""

    why: str


class Inherited(Mixed):
    """Raised for an argument that is a mixture already."""


def state_of_copy(target: object, former: object, source: object) -> object:
    """Return the state of ``target``, formerly ``former``, after a copy of what has no samples."""
    if isinstance(former, Place):
        return former  # each row is still that of a sample
    if torch.is_grad_enabled():
        return source
    if edge_of(target) is None:
        return None
    return former  # a history that the copy does not enter goes on


def base_after_write(value: object, written: object, of_base: object, size: int) -> object:
    """Return the state of the base of the view ``value`` after a write to the view.

    ``written``: the state of what was written. ``of_base``: the former state of the base. ``Mixed``
    if the two do not fit.
    """
    # a constant changes no state, and a mixture stays one
    if written is None or isinstance(of_base, Mixture):
        return of_base
    if isinstance(written, Mixture):
        return written
    if of_base is not None:
        state = None
        if _agree(value, written, of_base, size):
            state = of_base
    elif isinstance(written, Place) and size > 1:
        state = place_in_base(value, written, size)
    else:
        state = written  # the rest of the base is constant, and changes no gradient
    if state is None:
        raise Mixed(
            "it writes to a part of a tensor what does not fit the samples in the other parts"
        )
    return state


def _agree(value: object, written: object, of_base: object, size: int) -> bool:
    """Return whether the base of the view ``value`` keeps its state ``of_base``."""
    # the base keeps its state if the write puts each sample where its base has it
    if isinstance(written, Place) and isinstance(of_base, Place):
        return size < 2 or fits(value, written, of_base, size)
    if isinstance(written, Pooled) and isinstance(of_base, Pooled):
        return equal(of_base.factor, written.factor)
    return of_base is written
