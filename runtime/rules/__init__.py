"""One record per op, and one module per family of ops."""

import importlib
import pkgutil

from .record import RECORDS, Record, register

_HELPERS = {"record", "ops"}


def _load() -> None:
    """Import every module of this package. Each module registers its records when it is
    imported."""
    for module in pkgutil.iter_modules(__path__):
        if module.name not in _HELPERS and not module.name.startswith("derive"):
            importlib.import_module(f"{__name__}.{module.name}")


_load()

__all__ = ["RECORDS", "Record", "register"]
