"""Name the versions and the machine of a run, for the header of its results."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, entry_points, version

from gen.checks.entries import Settings
from gen.targets import GROUP, built_in

__all__ = ["environment"]


def environment(settings: Settings) -> dict[str, str]:
    """Return the versions of torch, NumPy, Python and the package that has the target, and the
    machine, with the instructions for which torch chooses its kernels.

    Of the device the header has the word: to ask for its name would start the driver in the process
    that forks the others.
    """
    words = {
        "torch": settings.torch,
        "numpy": _version("numpy"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {settings.cpu}",
    }
    package = _package(settings.target)
    if package:
        words["package"] = package
    return words


def _version(distribution: str) -> str:
    # from its metadata: an import would take time, and NumPy may be absent
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _package(target: str) -> str:
    """Return the distribution that has a target, with its version. Empty for a target of this
    project.
    """
    if built_in(target):
        return ""
    distributions = [point.dist for point in entry_points(group=GROUP, name=target)]
    return ", ".join(
        f"{distribution.name} {distribution.version}"
        for distribution in distributions
        if distribution is not None
    )
