"""Read, check and restore the global state of torch that the trace of a program depends on.

surroundings(True, False)       # (None, torch.float32, False, None, None, False)
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ...tape.anomaly import STATE as ANOMALY
from ...torch_private.global_settings import autocast_devices, is_autocast_enabled, is_deterministic
from ...torch_private.mode_stacks import (
    DeviceContext,
    current_function_modes,
    number_of_function_modes,
)

_devices = autocast_devices()
_inference, _dtype = torch.is_inference_mode_enabled, torch.get_default_dtype  # by one look-up each
_finds_anomalies, _checks_nan = torch.is_anomaly_enabled, torch.is_anomaly_check_nan_enabled
_warns_only = torch.is_deterministic_algorithms_warn_only_enabled


@contextmanager
def own_casts() -> Iterator[None]:
    """Let autocast cast parameters anew, and forget these casts afterwards. It keeps them until the
    outermost autocast block is left."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


@contextmanager
def without_collection() -> Iterator[None]:
    """Let Python's garbage collector wait. A capture makes many objects that stay, and looking
    through them takes a quarter of its time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def restored_on_error() -> Iterator[None]:
    """Put torch's modes back if an exception leaves the block: the default dtype and device,
    deterministic algorithms, autocast. A program that is refused has not set them."""
    dtype, device, warns = _dtype(), _default_device(), _warns_only()
    deterministic = is_deterministic()
    autocast = [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in _devices
    ]
    try:
        yield
    except BaseException:
        torch.set_default_dtype(dtype)
        # setting a device puts a mode on a stack, even if it is the present one
        if _default_device() != device:
            torch.set_default_device(device)
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)
        for kind, enabled, cast in autocast:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, cast)
        raise


def _default_device() -> torch.device | None:
    """Return the default device, if a mode sets one."""
    return torch.get_default_device() if number_of_function_modes() else None


def surroundings(recording: bool, autocast: bool) -> tuple[object, ...]:
    """Return a key of the state in which a program is traced, given the grad mode and whether
    autocast is on for any device.

    The default device is a mode over torch's functions, and so is looked up only
    where there are some.
    """
    # asked by each call, so without names for the items
    return (
        None if recording else _inference(),
        _dtype(),
        is_deterministic(),
        str(torch.get_default_device()) if number_of_function_modes() else None,
        _autocast_dtypes() if autocast else None,
        (ANOMALY.enabled and ANOMALY.check_nan) or (_finds_anomalies() and _checks_nan()),
    )


def mode_of_caller() -> object | None:
    """Return a mode over torch's functions that may do anything with a call; None if there is none.

    The default device is such a mode, too. The key of a program has it.
    """
    # asked by each call
    if not number_of_function_modes():
        return None
    others = (mode for mode in current_function_modes() if type(mode) is not DeviceContext)
    return next(others, None)


def _autocast_dtypes() -> tuple[torch.dtype | None, ...]:
    """Return for each kind of device to which dtype autocast casts there; None where it is off."""
    return tuple(
        [
            torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
            for device in _devices
        ]
    )


@contextmanager
def same_modes() -> Iterator[None]:
    """Refuse a program that leaves torch's modes changed."""
    before = _modes()
    yield
    if _modes() != before:
        raise RuntimeError(
            "the program leaves grad mode, autocast, the default dtype or device, "
            "deterministic algorithms or anomaly mode changed. A graph would not do that. "
            "Change them in a with statement, or outside of the jitted function."
        )


def _modes() -> tuple[object, ...]:
    anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    around = surroundings(torch.is_grad_enabled(), is_autocast_enabled())
    return torch.is_grad_enabled(), around, anomaly
