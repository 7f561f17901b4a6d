"""Where the samples lie in the first states of a recurrent layer: always in dimension 1, whatever
``batch_first`` says of its input.

A state that is learned, such as ``h.expand(1, batch, -1)`` of a parameter, becomes
one of the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..rules.samples.places import ALONE, Place, listed
from ..seam.levels import Value
from ..session.tensor import SESSION
from .batch_session import BatchSession

LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions of torch: ``(input, hx, params, …, batch_first)``, and
``(data, batch_sizes, hx, params, …)`` for packed sequences."""


def with_placed_states(session: BatchSession, args: Sequence[Any]) -> list[Any]:
    """The arguments of such a function, with the samples placed in the first states. They are
    tensors of zeros or what the user gives."""
    at = 2 if isinstance(args[3], (list, tuple)) else 1
    packed, x, hx = at == 2, args[0], args[at]
    place = session.state(x) if isinstance(x, Value) and x._level is SESSION else None
    if not isinstance(place, Place):
        return list(args)
    states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    size = session.size
    assert size is not None
    owners = place.owners(size, x.device)[: states[0].shape[1]]
    if place is not ALONE:
        if owners.numel() != states[0].shape[1] or place.dim != (0 if packed or args[-1] else 1):
            return list(args)  # the ops of the layer say what is wrong
        place = listed(1, owners, size, packed)
    for i, h in enumerate(states):
        if session.is_parameter(h):
            ones = SESSION.wrap(torch.ones_like(SESSION.lowered(h)))
            session.put(ones, place)
            states[i] = h * ones  # each sample uses its part of the parameter
        elif not isinstance(h, Value) or session.state(h) is None or id(h) in session.supposed:
            states[i] = h if isinstance(h, Value) else SESSION.wrap(h)
            session.put(states[i], place)
    found = list(args)
    found[at] = states if isinstance(hx, (list, tuple)) else states[0]
    return found
