"""Decide for which versions of torch something of the matrix is: its ``torch:``, a PEP 440
specifier. Say what is installed.
"""

from __future__ import annotations

import platform
from argparse import ArgumentTypeError
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from gen.package_names import DISTRIBUTION

__all__ = ["is_for_installed", "is_for_version", "own_version", "release"]


@cache
def is_for_version(specifier: str, torch: str) -> bool:
    """Return whether ``specifier`` holds for a version of torch. The build, such as ``+cpu``, does
    not count.

    >>> is_for_version(">=2.14", "2.14.1+cpu"), is_for_version(">=2.14", "2.13.0")
    (True, False)
    """
    return SpecifierSet(specifier).contains(torch.partition("+")[0], prereleases=True)


def release(text: str) -> str:
    """Return ``text``, if it is a version. It is the type of an argument."""
    try:
        return str(Version(text))
    except InvalidVersion:
        raise ArgumentTypeError(f"{text!r} is no version, such as 2.14.1") from None


def is_for_installed(specifier: str | None) -> bool:
    """Return whether ``specifier`` holds for the installed torch. None always holds."""
    return specifier is None or is_for_version(specifier, version("torch"))


def own_version() -> str:
    """Return the version of this package with those of torch and Python, as `--version` says them:
    "0.1.0, torch 2.13.0+cpu, Python 3.11.7". Nothing is imported.
    """
    return (
        f"{_installed(DISTRIBUTION)}, torch {_installed('torch')}, "
        f"Python {platform.python_version()}"
    )


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
