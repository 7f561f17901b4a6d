"""Find the native part that was built for this torch and this Python, check it, and load it.

    library().describe()        # "in C++", or why not
    library().module            # what batches.cpp defines; None if it is not built

``RUNTIME_NATIVE=0`` in the environment switches the native part off. Another value is the folder in
which it is. Nothing is built or downloaded here.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sysconfig
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Protocol

import torch

VARIABLE = "RUNTIME_NATIVE"
COMMAND = "python -m runtime native"
SOURCE = Path(__file__).with_name("batches.cpp")
MODULE = "batches"  # as the source names its function of initialization
_OTHERS_MAY_WRITE = 0o022  # bits of a mode: the group, and everybody
Seen = tuple[bytes, list[object]]
"""The facts of one look, and the objects whose addresses are among them."""


class NativeBatch(Protocol):
    """An object of the class ``Batch`` of ``batches.cpp``, which says what the methods do."""

    size: int

    def __call__(self) -> bool: ...
    def look(self) -> Seen | None: ...
    def note(self, seen: Seen) -> None: ...


class NativeModule(Protocol):
    """The module that ``batches.cpp`` defines."""

    KEY: str

    def Batch(self, kind: str, objects: Sequence[object]) -> NativeBatch: ...
    def own_dictionary(self, x: object) -> object: ...


@dataclass(frozen=True)
class Library:
    """Hold the native part. ``module``: None where Python compares all, for this ``reason``."""

    module: NativeModule | None
    reason: str = ""

    def describe(self) -> str:
        """Say where guards compare, for a report."""
        return "in C++" if self.module is not None else f"in Python: {self.reason}"


class Foreign(Exception):
    """Say that a file is not what the command has built for this user, torch and Python."""


def library() -> Library:
    """Return the native part of the folder that is in use now.

    It is loaded once. A file that is not ours or does not load is a warning, and Python compares.
    """
    if is_off():
        return Library(None, f"{VARIABLE}=0 in the environment")
    used = folder()
    if used is None:
        return Library(None, f"this user has no cache folder; {VARIABLE} names another")
    return _loaded(used)


def forget() -> None:
    """Look for the file anew at the next question."""
    _loaded.cache_clear()


def is_off() -> bool:
    """Return whether the environment switches the native part off."""
    return os.environ.get(VARIABLE) == "0"


def folder() -> Path | None:
    """Return the folder of the native part, which need not exist.

    None if no folder is chosen, and the user has no cache folder.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen)
    for caches in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(caches):  # anything else depends on where a process runs
            return Path(caches) / "torch-transform-matrix"
    return None


@functools.cache
def key() -> str:
    """Return a digest of all that a built file depends on: the source, torch, Python, the ABI."""
    parts = (
        hashlib.sha256(SOURCE.read_bytes()).hexdigest(),
        torch.__version__,
        torch.version.git_version,
        torch.compiled_with_cxx11_abi(),
        platform.python_version(),
        sysconfig.get_config_var("SOABI"),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def file_in(place: Path) -> Path:
    """Return the path of the file that belongs to this torch and this Python."""
    return place / f"{MODULE}-{key()[:32]}.so"


def digest_beside(file: Path) -> Path:
    """Return the path of the digest of ``file``, which is written last."""
    return file.with_suffix(".sha256")


@functools.cache
def _loaded(place: Path) -> Library:
    """Return the native part in the folder ``place``, loaded the first time."""
    file = file_in(place)
    if not file.exists():
        return Library(None, f"`{COMMAND}` builds the native part")
    try:
        _refuse_foreign(file)
        return Library(load(file))
    except (OSError, ImportError, Foreign) as error:
        warnings.warn(
            f"the native part {file} is not used: {error}. Guards compare in Python, with the "
            f"same answers. `{COMMAND} --force` builds it anew; {VARIABLE}=0 switches it off.",
            UserWarning,
            stacklevel=2,
        )
        return Library(None, f"{file} is not used: {error}")


def _refuse_foreign(file: Path) -> None:
    """Raise :class:`Foreign` unless this user has built ``file``, and it is complete."""
    state = file.stat()
    # whoever may write to the file can run code as this user; root can in any case
    if state.st_uid not in (0, os.getuid()):
        raise Foreign("another user owns it")
    if state.st_mode & _OTHERS_MAY_WRITE:
        raise Foreign("other users may write to it")
    written = digest_beside(file)
    known = written.read_text("ascii", "replace").strip() if written.exists() else ""
    if known != hashlib.sha256(file.read_bytes()).hexdigest():
        raise Foreign("its digest is not that of the file that was built")


def load(file: Path) -> NativeModule:
    """Load a built file as a module. ``ImportError`` if it does not load, ``Foreign`` if it was
    built for something else."""
    spec = spec_from_file_location(MODULE, file, loader=ExtensionFileLoader(MODULE, str(file)))
    assert spec is not None and spec.loader is not None, "a loader is given"
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    if getattr(module, "KEY", None) != key():
        raise Foreign("it was built for another source, torch or Python")
    return module  # type: ignore[no-any-return]
