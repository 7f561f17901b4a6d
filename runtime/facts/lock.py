"""What each supported torch does, where no signature shows it: a file for each version.

    probe("clamp", "gradient at its bounds")        # "1.0 1.0" on torch 2.13, "0.0 0.0" on 2.14

``python -m gen facts --write`` measures the facts of the installed torch and writes its file. The
runtime only reads them: a record that depends on one names it. A version without a file has the
facts of the nearest older one, and importing the runtime says so."""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

LOCKS = Path(__file__).parent / "locks"


def installed() -> str:
    """Return the version of torch, without that of its build."""
    return torch.__version__.partition("+")[0]


def path_of(version: str) -> Path:
    """Return the path of the file with the facts of a version."""
    return LOCKS / f"torch-{version}.json"


def versions() -> list[str]:
    """Return the versions with facts, from the oldest on."""
    names = (path.stem.removeprefix("torch-") for path in LOCKS.glob("torch-*.json"))
    return sorted(names, key=_order)


def nearest(version: str) -> str:
    """Return the version whose facts stand for ``version``: itself, or the nearest older one."""
    known = versions()
    older = [other for other in known if _order(other) <= _order(version)]
    return older[-1] if older else known[0]


def read(version: str) -> dict[str, Any]:
    """Return all facts of a version that has a file."""
    facts: dict[str, Any] = json.loads(path_of(version).read_text("utf-8"))
    return facts


def probe(op: str, what: str) -> str:
    """Return what the installed torch answers to a question of ``gen/facts/probes.py``.
    ``KeyError`` for one that nobody has asked."""
    return _probes()[f"{op}: {what}"]


@functools.cache
def _probes() -> Mapping[str, str]:
    found: dict[str, str] = read(nearest(installed()))["probes"]
    return found


def check_version() -> None:
    """Refuse a torch that is older than all that are supported; warn of one that nobody has run."""
    version, known = installed(), versions()
    if _order(version)[:2] < _order(known[0])[:2]:
        raise ImportError(f"the runtime supports torch {known[0]} and later, not {version}")
    if _order(version)[:2] > _order(known[-1])[:2]:
        warnings.warn(
            f"nobody has run the runtime on torch {version}: it takes that for {known[-1]}. "
            "`python -m gen facts` names what has changed",
            stacklevel=3,
        )


def _order(version: str) -> tuple[int, ...]:
    """``2.13.0`` -> (2, 13, 0). Of a build in between the number alone counts."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
