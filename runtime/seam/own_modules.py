"""Tell this package's modules from all others, by their names.

    is_own_module("runtime.func.vmap")      # True in a checkout

A wheel has this package under another name, ``torch_transform_matrix.runtime``. The generator lies
beside it there, as a user of this package like any other. So the first part of a name is not
enough, and no name is written down.
"""

from __future__ import annotations

PACKAGE = __name__.rpartition(".seam.")[0]
"""The name of this package: "runtime" in a checkout."""
_INSIDE = f"{PACKAGE}."


def is_own_module(name: str) -> bool:
    """Return whether ``name`` is that of this package or of a module in it.

    Another package of that name, such as ``runtime`` beside an installed wheel, is not this one.
    """
    return name == PACKAGE or name.startswith(_INSIDE)
