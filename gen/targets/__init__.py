"""Load the implementations that a matrix can exercise, by name.

``torch``, ``runtime``, ``dynamo``, ``aot_eager``, ``inductor`` and ``decomposed`` are built in. A
matrix may name further ones under ``targets: import:``. Any other name is an entry point of the
group ``matrix.targets``. ``protocol`` has the methods that a target needs, ``lacking_words`` the
words for what it lacks, ``faults`` what the audit asks of it. The package imports
``language.pipeline``, and ``runtime_*`` import the runtime. Start with ``protocol.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # which imports torch
    from gen.targets.protocol import Target

GROUP = "matrix.targets"
# name -> module, class, arguments of the class. Each module is imported when its target is loaded.
_BUILT_IN = {
    "torch": ("gen.targets.torch_target", "TorchTarget", ()),
    "runtime": ("gen.targets.runtime_target", "RuntimeTarget", ()),
    "aot_eager": ("gen.targets.compiled_target", "CompiledTarget", ("aot_eager",)),
    "dynamo": ("gen.targets.compiled_target", "CompiledTarget", ("eager", "dynamo")),
    "inductor": ("gen.targets.compiled_target", "CompiledTarget", ("inductor",)),
    "decomposed": ("gen.targets.decomposed_target", "DecomposedTarget", ()),
}

_DECLARED: dict[str, str] = {}
"""The targets that the matrix of this process names: name -> what makes one."""

__all__ = ["GROUP", "built_in", "declare", "load", "names"]


def declare(makers: Mapping[str, str]) -> None:
    """Note the targets that a matrix names: `{"mine": "package.target:Mine"}`."""
    if makers == _DECLARED:
        return
    _DECLARED.clear()
    _DECLARED.update(makers)
    # a name may stand for another target now
    load.cache_clear()


def built_in(name: str) -> bool:
    """Return whether the target is of this package."""
    return name in _BUILT_IN


def names() -> list[str]:
    """Return every name that :func:`load` accepts."""
    registered = (point.name for point in entry_points(group=GROUP))
    return sorted({*_BUILT_IN, *_DECLARED, *registered})


@cache
def load(name: str) -> Target:
    """Return the target called `name`.

    The LookupError for an unknown name lists the known ones and says how to add one.
    """
    if name in _BUILT_IN:
        module, attribute, arguments = _BUILT_IN[name]
        return cast("Target", getattr(importlib.import_module(module), attribute)(*arguments))
    # Targets of a project or of other packages. A mistake of theirs is reported with its place.
    if name in _DECLARED:
        maker = _DECLARED[name]
        return _make_target(
            name, f"`targets: import:` names {maker}, which", lambda: _object_at(maker)
        )
    points = list(entry_points(group=GROUP, name=name))
    if not points:
        known_names = ", ".join(names())
        raise LookupError(
            f"no target {name!r}; known: {known_names}. "
            f"Others stand under `targets: import:` of matrix.yaml, "
            f"or register under the entry point group {GROUP!r}."
        )
    if len(points) > 1:
        raise LookupError(
            f"target {name!r} is registered {len(points)} times: "
            f"{', '.join(point.value for point in points)}"
        )
    return _make_target(name, f"its entry point {points[0].value}", points[0].load)


def _object_at(path: str) -> Any:
    """Return the object at `package.module:Class`, or at `package.module.Class`."""
    module, colon, attribute = path.partition(":")
    if not colon:
        module, _, attribute = path.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _make_target(name: str, place: str, maker: Callable[[], Any]) -> Target:
    """Return the target that a class or function of another package makes.

    Raises LookupError if it cannot be made, or is no target. `place` says where it is named.
    """
    try:
        target = maker()()
    except Exception as error:
        raise LookupError(
            f"target {name!r}: {place} does not load ({type(error).__name__}: {error})"
        ) from error
    required = ("name", "lacks", "forward")
    if lacking := [attribute for attribute in required if not hasattr(target, attribute)]:
        raise LookupError(
            f"target {name!r}: {place} gives a {type(target).__name__}, which is no target: "
            f"it lacks {', '.join(lacking)}"
        )
    return cast("Target", target)
