"""Decide for which versions of torch something of the matrix is: its ``torch:``, a PEP 440
specifier.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from functools import cache
from importlib.metadata import version

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

__all__ = ["is_for_installed", "is_for_version", "release"]


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
