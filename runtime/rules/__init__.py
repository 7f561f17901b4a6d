"""What is known of each op: one module per family, one record per op."""

import importlib
import pkgutil

from .record import RECORDS, Record, register

_HELPERS = {"record", "ops"}


def _load() -> None:
    """Import every family module of this package: each enters its records as it is imported."""
    for module in pkgutil.iter_modules(__path__):
        if module.name not in _HELPERS and not module.name.startswith("derive"):
            importlib.import_module(f"{__name__}.{module.name}")


_load()

__all__ = ["RECORDS", "Record", "register"]
