"""Whose code is not followed.

The state that a program depends on is in the user's code and in that of other packages that it
calls. torch, this package and Python's own library are known. So are a few packages that they are
built on: their functions ask for nothing but their arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from types import ModuleType

from ...trace.provenance import is_of_user
from .nodes import qualified_name
from .values import attributes_of, module_of

_PACKAGES = (
    "functorch",
    "mpmath",
    "numpy",
    "opt_einsum",
    "pybind11_builtins",  # the module of what extensions of C++ have in place of classes of C
    "sympy",
    "typing_extensions",
)
RUNNERS = frozenset(("_pytest", "execnet", "hypothesis", "pluggy", "pytest", "xdist"))
"""Packages that run tests: what they have is no state of a program, and leads to all tests."""


def _folder(package: str) -> str | None:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    folder, file = os.path.split(spec.origin)
    return folder + os.sep if file == "__init__.py" else spec.origin


_FOLDERS = tuple(folder for folder in map(_folder, _PACKAGES) if folder is not None)
_files: dict[str, bool] = {}  # answers of `is_followed`, by file
_modules: dict[str, bool] = {}  # of `is_followed_module`, by name


def is_followed(file: str) -> bool:
    """Return whether the functions of a file are looked through for the state that they ask for."""
    found = _files.get(file)
    if found is None:
        found = _files[file] = is_of_user(file) and not file.startswith(_FOLDERS)
    return found


def is_followed_module(name: str) -> bool:
    """Return whether the objects of a module's classes, and its globals, are state of the
    program."""
    found = _modules.get(name)
    if found is None:
        found = _modules[name] = _is_followed_module(name)
    return found


def follows(m: ModuleType) -> bool:
    """Do :func:`is_followed_module` for ``m``, which may be no module of ``sys.modules``: one that
    is loaded by its file may have the name of one of Python's."""
    file = _file_of(m)
    if file is None or sys.modules.get(m.__name__) is m:
        return is_followed_module(m.__name__)
    return is_followed(file)


def _file_of(module: object) -> str | None:
    """Return the file of a module, if it has one. An entry of ``sys.modules`` may be any object,
    which may answer for any attribute."""
    file = (attributes_of(module) or {}).get("__file__")
    return file if type(file) is str else None


def _is_followed_module(name: str) -> bool:
    """Return the answer of :func:`is_followed_module`, which remembers it."""
    if name == "__main__":
        return True
    root = name.partition(".")[0]
    # a part of an extension module, as `torch._C._profiler`, has no file
    files = (_file_of(sys.modules.get(module)) for module in (name, root))
    file = next(filter(None, files), None)
    if file is None:
        return not (root in sys.stdlib_module_names or root in _PACKAGES or root in RUNNERS)
    # the file tells, as a module of the user's may have the name of one of Python's
    return root not in RUNNERS and is_followed(file)


def is_importable(x: type | ModuleType) -> bool:
    """Return whether a class or a module is found by its name, as no program has made it."""
    if isinstance(x, ModuleType):
        return sys.modules.get(x.__name__) is x
    module = sys.modules.get(str(module_of(x)))
    found: Mapping[str, object] = attributes_of(module) or {}
    for name in qualified_name(x).split("."):
        value = found.get(name)
        found = vars(value) if isinstance(value, type) else {}
        if value is x:
            return True
    return False
