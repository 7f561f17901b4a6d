"""Which of the tensors that a call is given is which: arguments, and values at places of Python's
state that have become arguments.

    leaves_by_key(((x, [y]), {}), {place.key: state})     # {0: x, 1: y, (place.key, 0): state}"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..aot.capture import opened
from ..aot.python_state.nodes import Place

Key = object
"""Which tensor: the number of an argument, or the key of a place with a number."""


def leaves_by_key(arguments: object, at_places: Mapping[Any, Any]) -> dict[Key, Any]:
    """Return what is in ``arguments`` by number, and what is ``at_places`` by key and number."""
    found: dict[Key, Any] = dict(enumerate(opened.flatten(arguments)[0]))
    for key, value in at_places.items():
        found |= {(key, index): x for index, x in enumerate(opened.flatten(value)[0])}
    return found


def tensors_by_key(arguments: object, at_places: Mapping[Any, Any]) -> dict[Key, Any]:
    """Return the tensors of :func:`leaves_by_key`. One that is at several keys is at the first of
    them."""
    found = leaves_by_key(arguments, at_places)
    once = {id(x): key for key, x in reversed(found.items()) if isinstance(x, torch.Tensor)}
    return {key: found[key] for key in once.values()}


def owners(leaves: Sequence[Any], args: Any, kwargs: Any, places: Sequence[Place]) -> list[Any]:
    """Return the tensors that ``leaves`` are in a call, in which a key stands for the tensor that
    is there. None where the call has nothing at that key."""
    if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return list(leaves)
    found = leaves_by_key((args, kwargs), {place.key: place.current() for place in places})
    return [x if isinstance(x, torch.Tensor) else found.get(x) for x in leaves]
