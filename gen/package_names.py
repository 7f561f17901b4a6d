"""Give the names under which Python knows this package and the runtime.

They are ``gen`` and ``runtime`` in a checkout. An installed wheel has both inside of
``torch_transform_matrix``, so that they collide with no package of another project.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["CHECKOUT", "DISTRIBUTION", "GENERATOR", "RUNTIME", "is_inside"]

DISTRIBUTION = "torch-transform-matrix"
"""What pip calls both packages."""
GENERATOR = __name__.rpartition(".")[0]
"""The name of this package: "gen" in a checkout."""
RUNTIME = f"{GENERATOR.removesuffix('gen')}runtime"
"""The name of the runtime, which lies beside this package."""
CHECKOUT = Path(__file__).parents[1] if GENERATOR == "gen" else None
"""The folder of the checkout. None for an installed wheel, where Python finds the package
itself."""


def is_inside(module: str, package: str) -> bool:
    """Return whether ``module`` is the name of ``package`` or of a module in it.

    >>> is_inside("gen.run.plugin", "gen"), is_inside("genetics", "gen")
    (True, False)
    """
    return module == package or module.startswith(f"{package}.")
