"""Load the implementations that a matrix can exercise, by name.

``torch``, ``runtime``, ``dynamo``, ``aot_eager``, ``inductor`` and ``decomposed`` are built in; any
other name is an entry point of the group ``matrix.targets``. ``protocol`` has the methods that a
target needs,
``faults`` what the audit asks of it. The package imports ``language.pipeline``, and ``runtime_*``
import the runtime. Start with ``protocol.py``.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:  # which imports torch
    from gen.targets.protocol import Target

GROUP = "matrix.targets"
_BUILT_IN = {
    "torch": ("gen.targets.torch_target", "TorchTarget", ()),
    "runtime": ("gen.targets.runtime_target", "RuntimeTarget", ()),
    "aot_eager": ("gen.targets.compiled_target", "CompiledTarget", ("aot_eager",)),
    "dynamo": ("gen.targets.compiled_target", "CompiledTarget", ("eager", "dynamo")),
    "inductor": ("gen.targets.compiled_target", "CompiledTarget", ("inductor",)),
    "decomposed": ("gen.targets.decomposed_target", "DecomposedTarget", ()),
}

__all__ = ["GROUP", "built_in", "load", "names"]


def built_in(name: str) -> bool:
    """Return whether the target is of this package."""
    return name in _BUILT_IN


def names() -> list[str]:
    """Return every name that :func:`load` accepts."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


@cache
def load(name: str) -> Target:
    """Return the target called `name`.

    The LookupError for an unknown name lists the known ones and says how to add one.
    """
    if name in _BUILT_IN:
        module, attribute, arguments = _BUILT_IN[name]
        return cast("Target", getattr(importlib.import_module(module), attribute)(*arguments))
    # Other packages may register targets. A mistake of theirs is reported with its entry point.
    points = list(entry_points(group=GROUP, name=name))
    if not points:
        known_names = ", ".join(names())
        raise LookupError(
            f"no target {name!r}; known: {known_names}. "
            f"Others register under the entry point group {GROUP!r}."
        )
    if len(points) > 1:
        raise LookupError(
            f"target {name!r} is registered {len(points)} times: "
            f"{', '.join(point.value for point in points)}"
        )
    point = points[0].value
    try:
        target = points[0].load()()
    except Exception as error:
        raise LookupError(
            f"target {name!r}: "
            f"its entry point {point} does not load ({type(error).__name__}: {error})"
        ) from error
    if lacking := [
        attribute for attribute in ("name", "lacks", "forward") if not hasattr(target, attribute)
    ]:
        kind = type(target).__name__
        raise LookupError(
            f"target {name!r}: its entry point {point} gives a {kind}, which is no target: "
            f"it lacks {', '.join(lacking)}"
        )
    return cast("Target", target)
