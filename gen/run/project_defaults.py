"""Read what the file `matrix.yaml` of a project says of a run: its default target, and whether a
device is there.

Only the sections `targets` and `devices` are read, and only from the file itself. `gen generate`
reports its mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Declared", "declared"]


@dataclass(frozen=True)
class Declared:
    """The default target, and the devices: name -> (callable that says whether it is there,
    reason if it is not)."""

    target: str = "runtime"
    devices: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def why_absent(self, device: str, resolve: Callable[[str], Callable[[], object]]) -> str:
        """Return why a device is not available. Empty if it is, or if the file does not say.

        An index, as in `cuda:1`, is no part of the name.
        """
        name = device.partition(":")[0]
        if name not in self.devices:
            return ""
        available, reason = self.devices[name]
        try:
            is_there = bool(resolve(available)())
        except Exception as error:
            return (
                f"device {device} is not available: "
                f"{available} raised {type(error).__name__}: {error}"
            )
        if is_there:
            return ""
        return f"device {device} is not available: {reason or f'{available}() is false'}"


def declared(folder: Path) -> Declared:
    """Return what the matrix in `folder` declares.

    Without a readable one: the target `runtime`, and no devices.
    """
    path = folder / "matrix.yaml"
    if not path.is_file():
        return Declared()
    import yaml

    try:
        data = yaml.load(path.read_text("utf-8"), getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except (OSError, ValueError, yaml.YAMLError):
        return Declared()
    targets, devices = _section(data, "targets"), _section(data, "devices")
    default = targets.get("default")
    available_devices = {
        name: (device["available"], str(device.get("reason", "")))
        for name, device in devices.items()
        if isinstance(device, Mapping) and isinstance(device.get("available"), str)
    }
    return Declared(default if isinstance(default, str) else "runtime", available_devices)


def _section(data: object, name: str) -> Mapping[str, object]:
    section = data.get(name) if isinstance(data, Mapping) else None
    return section if isinstance(section, Mapping) else {}
