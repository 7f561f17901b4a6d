"""Save and restore the state in which both runs of a function must start: random generators of
every device, autocast."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..seam.levels import bottom


class DefaultDeviceType:
    """The device whose random state is saved if all arguments are on the CPU, as
    ``torch.utils.checkpoint.DefaultDeviceType``."""

    _type: str | None = None

    @staticmethod
    def set_device_type(device: str = "cuda") -> None:
        """Choose the device."""
        DefaultDeviceType._type = device

    @staticmethod
    def get_device_type() -> str:
        """Return the device that was chosen, else the accelerator, else the CPU."""
        if DefaultDeviceType._type is None:
            accelerator = torch.accelerator.current_accelerator()
            DefaultDeviceType._type = "cpu" if accelerator is None else accelerator.type
        return DefaultDeviceType._type


def _on_devices(args: Iterable[object]) -> list[torch.Tensor]:
    """List the tensors among ``args`` that are on another device than the CPU."""
    return [
        argument
        for argument in args
        if isinstance(argument, torch.Tensor) and argument.device.type not in ("cpu", "meta")
    ]


def device_type_of(args: Iterable[object]) -> str:
    """Return the device type of the first tensor that is not on the CPU, else the default one."""
    tensors = _on_devices(args)
    if not tensors:
        return DefaultDeviceType.get_device_type()
    return tensors[0].device.type


def _module(device_type: str) -> Any:
    return torch.get_device_module(device_type)


def get_device_states(*args: object) -> tuple[list[int], list[torch.Tensor]]:
    """Return the devices of tensors among ``args``, without the CPU, and the states of their random
    generators, as ``torch.utils.checkpoint.get_device_states``."""
    devices = sorted({argument.get_device() for argument in _on_devices(args)})
    module = _module(device_type_of(args))
    states = []
    for device in devices:
        with module.device(device):
            states.append(module.get_rng_state())
    return devices, states


def set_device_states(
    devices: Sequence[int], states: Sequence[torch.Tensor], *, device_type: str | None = None
) -> None:
    """Set the states that :func:`get_device_states` has returned, as
    ``torch.utils.checkpoint.set_device_states``."""
    device_type = device_type or DefaultDeviceType.get_device_type()
    if device_type in ("cpu", "meta"):
        return
    module = _module(device_type)
    for device, state in zip(devices, states, strict=True):
        with module.device(device):
            module.set_rng_state(state)


def _cpu_state() -> torch.Tensor:
    """Return the state of the CPU's generator, as a plain tensor at any level."""
    state = torch.get_rng_state()
    return bottom(state)  # type: ignore[no-any-return]


class Surroundings:
    """The state in which a function first runs. ``restored()`` is a context with that state.

    At its end the random generators have the state that they had before it.
    """

    def __init__(self, args: Iterable[object], preserve_rng_state: bool) -> None:
        args = tuple(args)
        self.device_type = device_type_of(args)
        # of both devices, since ops on the CPU have switches of their own; the keys of a
        # dictionary name the CPU once if it is the only one
        self.autocast: list[dict[str, Any]] = [
            {
                "device_type": device_type,
                "enabled": torch.is_autocast_enabled(device_type),
                "dtype": torch.get_autocast_dtype(device_type),
                "cache_enabled": torch.is_autocast_cache_enabled(),
            }
            for device_type in dict.fromkeys((self.device_type, "cpu"))
            if torch.amp.is_autocast_available(device_type)
        ]
        # the generators, which both runs must find in the same state
        self.cpu_state: torch.Tensor | None = None
        self.devices: list[int] = []
        self.states: list[torch.Tensor] = []
        if preserve_rng_state:
            self.cpu_state = _cpu_state()
            # a device that is not initialized would be by the question for its state
            is_other = self.device_type != "cpu"
            if is_other and getattr(_module(self.device_type), "_initialized", False):
                self.devices, self.states = get_device_states(*args)

    @contextmanager
    def restored(self) -> Generator[None]:
        """Set the state of the first run in this block."""
        with ExitStack() as stack:
            # fork_rng puts the present states back at the end
            if self.cpu_state is not None:
                stack.enter_context(
                    torch.random.fork_rng(self.devices, device_type=self.device_type)
                )
                torch.set_rng_state(self.cpu_state)
                set_device_states(self.devices, self.states, device_type=self.device_type)
            for options in self.autocast:
                stack.enter_context(torch.autocast(**options))
            yield
