"""Build by setuptools, with packages of another name in the wheel. pip and build call it.

A wheel has ``gen`` and ``runtime`` inside of one package, see ``wheel_contents``. A source
distribution and an editable installation have them as the checkout has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

from tools.release.wheel_contents import write_wheel

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
]


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Write the wheel into a folder, and return the name of its file."""
    with tempfile.TemporaryDirectory() as folder:
        name: str = build_meta.build_wheel(folder, config_settings, metadata_directory)
        write_wheel(str(Path(folder, name)), str(Path(wheel_directory, name)))
    return name
