"""Wait in a process of a command until torch, and the function that is recorded, are imported."""

from __future__ import annotations

import importlib
import importlib.abc
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

Sample = dict[str, Any]
"""Plain data: the description of a call, or a part of it."""
FOLDER = "MATRIX_GEN_RECORD_FOLDER"
"""The variable that names the folder of the records."""
FUNCTION = "MATRIX_GEN_RECORD_FUNCTION"
"""The variable that names the one function to record. Unset: all calls of torch are recorded."""


def start(root: str) -> None:
    """Begin to wait. ``root``: the end of ``sys.path`` that the recorder is imported from."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    Path(folder, f"{os.getpid()}.started").touch()
    function = os.environ.get(FUNCTION, "")
    parts = function.split(".")
    # Any beginning of the name may be the module that has the function.
    modules = {".".join(parts[:length]) for length in range(1, len(parts))}
    finder = _Finder({"torch", *modules}, lambda name: _imported(name, function))
    # First, since the finder of Python's own path would find these modules before it.
    sys.meta_path.insert(0, finder)


def _imported(name: str, function: str) -> None:
    """Act after the import of a module."""
    recorder = importlib.import_module("gen.recording.call_recorder")
    if name == "torch":
        recorder.begin(every=not function)
    if function:
        recorder.wrap(function)


class _Finder(importlib.abc.MetaPathFinder):
    """Call a function after each of some modules is imported."""

    def __init__(self, names: set[str], after: Callable[[str], None]) -> None:
        self._names = names
        self._after = after

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders have, with a loader that calls the function."""
        if name not in self._names:
            return None
        self._names.discard(name)
        for finder in sys.meta_path:
            spec = None
            if finder is not self:
                spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._extend(spec.loader, name)
                return spec
        return None

    def _extend(self, loader: object, name: str) -> None:
        """Let a loader call the function after it has run the module."""
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._after(name)

        # Each module of a file has a loader of its own, so this concerns no other module.
        loader.exec_module = exec_module  # type: ignore[attr-defined]
