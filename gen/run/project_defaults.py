"""Read what the file `matrix.yaml` of a project says of a run: its targets, and whether a device is
there.

Only the sections `targets` and `devices` are read, and only from the file itself. `gen generate`
reports its mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gen.devices.device import Device
from gen.targets import declare

if TYPE_CHECKING:
    import yaml

__all__ = ["Declared", "declare_targets_of", "declared", "devices_of"]


@dataclass(frozen=True)
class Declared:
    """The default target, the targets of the project by name, and the devices by name."""

    target: str = "runtime"
    imports: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, Device] = field(default_factory=dict)

    def why_absent(self, device: str, resolve: Callable[[str], Callable[[], object]]) -> str:
        """Return why a device is not available. Empty if it is, or if the file does not say.

        An index, as in `cuda:1`, is no part of the name.
        """
        known = self.devices.get(device.partition(":")[0])
        if known is None or not known.available:
            return ""
        try:
            is_there = bool(resolve(known.available)())
        except Exception as error:
            return (
                f"device {device} is not available: "
                f"{known.available} raised {type(error).__name__}: {error}"
            )
        if is_there:
            return ""
        reason = known.reason or f"{known.available}() is false"
        return f"device {device} is not available: {reason}"


def declared(folder: Path) -> Declared:
    """Return the targets and devices that the matrix in `folder` declares.

    Without a readable one: the target `runtime`, no targets of its own, and no devices.
    """
    path = folder / "matrix.yaml"
    if not path.is_file():
        return Declared()
    import yaml

    try:
        # the parser in C, which not every PyYAML has
        root = yaml.compose(path.read_text("utf-8"), getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except (OSError, ValueError, yaml.YAMLError):
        return Declared()
    sections = _parts(root)
    targets = _parts(sections.get("targets"))
    makers = {name: _text(node) for name, node in _parts(targets.get("import")).items()}
    devices = dict(_devices(sections.get("devices")))
    return Declared(_text(targets.get("default")) or "runtime", makers, devices)


def declare_targets_of(folder: Path) -> None:
    """Note the targets that the matrix in `folder` names, so that this process can load them."""
    declare(declared(folder).imports)


def devices_of(project: Declared, device: str, backend: str | None) -> Mapping[str, Device]:
    """Return what the matrix says of devices, and the command line of the one of this run.

    ``backend``: the module that registers it, if the command line names one.
    """
    if backend is None:
        return project.devices
    name = device.partition(":")[0]
    asked = replace(project.devices.get(name, Device(name)), backend=backend)
    return {**project.devices, name: asked}


def _devices(section: yaml.Node | None) -> Iterator[tuple[str, Device]]:
    """Yield each device by name. The section is a mapping of names, or a list."""
    import yaml

    listed = section.value if isinstance(section, yaml.SequenceNode) else []
    for node in listed:
        name = _text(node) or _text(_parts(node).get("name"))
        if name:
            yield name, _device(name, node)
    for name, node in _parts(section).items():
        yield name, _device(name, node)


def _device(name: str, node: yaml.Node) -> Device:
    """Return what a node says of a device."""
    parts = _parts(node)
    tolerances = {}
    for dtype, bound in _parts(parts.get("tolerances")).items():
        with suppress(ValueError):
            tolerances[dtype] = float(_text(bound))
    mark = node.start_mark
    return Device(
        name,
        backend=_text(parts.get("import")),
        available=_text(parts.get("available")),
        reason=_text(parts.get("reason")),
        tolerances=tolerances,
        where=f"matrix.yaml:{mark.line + 1}:{mark.column + 1}",
    )


def _parts(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """Return the values of a mapping by key; none for any other node."""
    import yaml

    if not isinstance(node, yaml.MappingNode):
        return {}
    return {_text(key): value for key, value in node.value}


def _text(node: yaml.Node | None) -> str:
    """Return the text of a scalar; empty for any other node."""
    import yaml

    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""
