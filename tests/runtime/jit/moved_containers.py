"""Shows the containers of a state, so that two states can be compared."""

from __future__ import annotations

from torch import Tensor


def shown(value: object, seen: dict[int, int]) -> object:
    """Return what is in a state, with one number for each container of it.

    Example:
        >>> x = {"a": 1}
        >>> shown([x, x], {}) == shown([dict(x), dict(x)], {})
        False
    """
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, (bool, int, float)):
        return value
    if id(value) in seen:
        return seen[id(value)]
    if not isinstance(value, tuple):
        seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return [(name, shown(x, seen)) for name, x in value.items()]
    if isinstance(value, (list, tuple)):
        return [shown(x, seen) for x in value]
    return [(name, shown(x, seen)) for name, x in sorted(vars(value).items())]
