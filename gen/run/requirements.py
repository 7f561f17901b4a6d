"""Require what must be there before a run begins: a place for its results, its device and its
target.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gen.devices.device import DeviceError, load_backend, load_device
from gen.outcomes import Crashed
from gen.run.isolation import POSSIBLE, Worker
from gen.run.project_defaults import Declared


def require_place(path: Path, option: Path | None) -> None:
    """Raise UsageError unless the results file can be written.

    It can if it is a file or absent, in a folder or where one can be made. `option`: the path of
    the option, for messages.
    """
    shown = f"--results {option}" if option else str(path)
    if path.exists() and not path.is_file():
        raise pytest.UsageError(
            f"{shown}: is {'a folder' if path.is_dir() else 'a device, a pipe or a socket'}"
        )
    above = next(filter(Path.exists, path.parents))
    if not above.is_dir():
        raise pytest.UsageError(f"{shown}: {above.name} is not a folder")


def why_absent(project: Declared, device: str, *, here: bool) -> str:
    """Return why the matrix says that a device is not available.

    The question is asked in a process of its own, which may load a driver.
    """

    def ask(name: str) -> str:
        from gen.samples.samples import resolve

        load_backend(name)
        return project.why_absent(name, resolve)

    # without a question there is no process to start
    known = project.devices.get(device.partition(":")[0])
    if known is None or not known.available:
        return ""
    worker = Worker(ask)
    try:
        if here or not POSSIBLE:
            return ask(device)
        return str(worker.ask(device, None))
    except DeviceError as error:
        raise pytest.UsageError(f"--device {device}: {error}") from error
    finally:
        worker.close()


def require_device(device: str, *, here: bool) -> None:
    """Raise UsageError unless a tensor can be made on the device."""
    worker = Worker(_load)
    try:
        if here or device == "meta" or not POSSIBLE:
            _load(device)
        else:
            worker.ask(device, None)
    except DeviceError as error:
        raise pytest.UsageError(f"--device {device}: {error}") from error
    except Crashed as error:
        raise pytest.UsageError(f"--device {device}: its process died: {error}") from error
    finally:
        worker.close()


def require_target(load: Callable[[], object], name: str, *, here: bool) -> None:
    """Load the target `name` by `load`, and let it raise what it raises.

    One of another package is tried in a process of its own: its library may not bear a fork once it
    is loaded, as jax does not.
    """
    from gen.targets import built_in

    # a target cannot be pickled, so that nothing is sent back
    worker = Worker(lambda _: load() and None)
    try:
        if here or not POSSIBLE or built_in(name):
            load()
        else:
            worker.ask(name, None)
    finally:
        worker.close()


def _load(device: str) -> None:
    """Import what registers a device, and make a tensor there."""
    load_device(device)
