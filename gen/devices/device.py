"""A device by its name: what the matrix says of it, and whether it is there.

`devices: {mydevice: {import: my_backend}}` names a device that registers itself with torch when
`my_backend` is imported. Nothing else of it is assumed: seeds, synchronization and dtypes are asked
of its module (:mod:`gen.devices.place`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Device", "DeviceError", "declare", "device_named", "load_backend", "load_device"]


class DeviceError(LookupError):
    """A device cannot be used. The message says where it is named, and why."""


@dataclass(frozen=True)
class Device:
    """A device, as the matrix names it."""

    name: str  # "mydevice", without an index
    backend: str = ""  # the module that registers it, such as "my_backend"; torch's own have none
    # a callable that says whether it is there, such as "torch.cuda.is_available"
    available: str = ""
    reason: str = ""  # why it is not there, in words
    tolerances: Mapping[str, float] = field(default_factory=dict)
    """The least relative tolerance of a dtype: `{"float32": 1e-3}` for matrix units of 10 bits."""
    where: str = ""  # its place in the file, such as "matrix.yaml:35:3"


_DECLARED: dict[str, Device] = {}
_LOADED: set[str] = set()


def declare(devices: Mapping[str, Device]) -> None:
    """Note what the matrix of this process says of devices, by name."""
    _DECLARED.clear()
    _DECLARED.update(devices)


def device_named(device: str) -> Device:
    """Return what is known of a device such as `cuda:1`, which the matrix need not name."""
    name = device.partition(":")[0]
    return _DECLARED.get(name, Device(name))


def load_device(device: str) -> Device:
    """Import what registers a device, and return it. Raises DeviceError if torch has none then."""
    found = device_named(device)
    if found.name in _LOADED:
        return found
    load_backend(device)
    import torch  # not above, since what names a device need not load torch

    # The only question that each backend answers is whether a tensor can be made there.
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        said = str(error).strip().splitlines()[0]
        raise DeviceError(f"{_shown(found)}{_not_registered(found)} ({said})") from error
    _LOADED.add(found.name)
    return found


def load_backend(device: str) -> None:
    """Import the module that registers a device, if it has one.

    Raises DeviceError if that fails.
    """
    found = device_named(device)
    if not found.backend:
        return
    try:
        importlib.import_module(found.backend)
    except Exception as error:  # a backend may fail in any way while it is imported
        raise DeviceError(
            f"{_shown(found)}device {found.name}: cannot import {found.backend} "
            f"({type(error).__name__}: {error}); "
            "it has to be installed, or to lie beside matrix.yaml"
        ) from error


def _shown(device: Device) -> str:
    return f"{device.where}: " if device.where else ""


def _not_registered(device: Device) -> str:
    """Return what to say of a device on which no tensor can be made."""
    if device.backend:
        return (
            f"device {device.name}: {device.backend} is imported, and torch makes no tensor there: "
            f"does it call torch.utils.rename_privateuse1_backend({device.name!r})?"
        )
    return (
        "not present here, nothing was run; a device of another package stands under `devices:` "
        f"of matrix.yaml, as {device.name}: {{import: its_package}}"
    )
