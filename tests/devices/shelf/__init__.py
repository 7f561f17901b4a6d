"""A device in Python, which registers itself as `shelf` when it is imported.

    import tests.devices.shelf
    torch.ones(2, device="shelf")

Its tensors are torch's own, not a subclass: they have torch's dispatch key for devices of other
packages, sizes, strides and a storage. Memory is memory of the host that only this package reads
(`memory.py`). A kernel runs torch's CPU kernel there (`kernels.py`). Results become visible when
the queue of the device has run, as on a GPU (`queue.py`). `module.py` is `torch.shelf`: seeds,
synchronization, memory. `faults.py` has mistakes to plant.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.devices.shelf import kernels
from tests.devices.shelf.memory import device_storage
from tests.devices.shelf.module import ShelfModule

__all__ = ["NAME"]

NAME = "shelf"

_setup_privateuseone_for_python_backend(NAME, ShelfModule())
# as long as the process lives: torch removes the kernels of a library that is deleted
_LIBRARIES = [torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")]
# Ops of other packages come to the fallback. Those of ATen have kernels of their own: while a mode
# is on, torch looks for a kernel in Python by the name of the op.
_LIBRARIES[0].fallback(kernels.call, "PrivateUse1")
for _name, _op in kernels.host_ops():
    _LIBRARIES[1].impl(_name, partial(kernels.call, _op), "PrivateUse1")
for _name, _kernel in kernels.OVERRIDDEN.items():
    _LIBRARIES[1].impl(_name, partial(_kernel, None), "PrivateUse1")
# a copy reads lazy conjugates and negatives itself: to resolve them first would be a copy, too
for _bit in ("Conjugate", "Negative"):
    _LIBRARIES[1].impl("_copy_from", torch.library.fallthrough_kernel, _bit)


def _location(storage: Any) -> str | None:
    """Return what a file says of the place of a storage of this device."""
    return NAME if storage.device.type == NAME else None


def _restored(storage: Any, location: str) -> Any:
    """Return a storage that was read from a file, if it belongs here."""
    return device_storage(storage) if location.partition(":")[0] == NAME else None


torch.serialization.register_package(0, _location, _restored)
