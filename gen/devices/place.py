"""Where the target runs: inputs are moved there, and results back.

Samples are made on the CPU and references run there, so that a device is compared with another one
and not with itself. What the device can do is asked: its module may lack seeds, or some dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from gen.devices.device import Device, load_device
from gen.outcomes import Mismatch, Unsuitable
from gen.torch_private.loaded_with_torch import neg_view

__all__ = ["Place", "current_place", "place_of"]

Tensor = torch.Tensor
_ENTERED: list[Place] = []  # the places that a target runs at now; one cell at a time runs


@cache
def place_of(device: str) -> Place | None:
    """Return the place of a device; None for the CPU, where samples are, and for meta.

    Raises DeviceError if the device cannot be used.
    """
    if device in ("cpu", "meta"):
        return None
    known = load_device(device)  # torch knows the name from then on
    return Place(torch.device(device), known)


def current_place() -> Place | None:
    """Return the place that a target runs at now, if that is another one than the CPU."""
    return _ENTERED[-1] if _ENTERED else None


class Place:
    """A device that is no CPU, with what it holds and takes."""

    def __init__(self, device: torch.device, known: Device) -> None:
        self.device = device
        self.known = known
        self.module: object = torch.get_device_module(device)
        self._refusals: dict[torch.dtype, str] = {}

    # --- what the device is asked -----------------------------------------------------------------

    @property
    def takes_seeds(self) -> bool:
        """Return whether the device's module has generators that a program can seed."""
        return hasattr(self.module, "manual_seed_all")

    def refusal_of(self, dtype: torch.dtype) -> str:
        """Return why the device does not hold tensors of a dtype. Empty if it does."""
        if dtype not in self._refusals:
            self._refusals[dtype] = self._ask(dtype)
        return self._refusals[dtype]

    def _ask(self, dtype: torch.dtype) -> str:
        """Move one number to the device and back, and return the error if there is one."""
        number = torch.ones(1, dtype=dtype)
        try:
            number.to(self.device).cpu()
        except (RuntimeError, TypeError, NotImplementedError) as error:
            return (str(error).strip().splitlines() or [type(error).__name__])[0]
        return ""

    def synchronize(self) -> None:
        """Wait for the device, if its module has a function for that.

        An error of what runs there is then an error of the cell that asked for it.
        """
        wait = getattr(self.module, "synchronize", None)
        if wait is not None:
            wait()

    # --- there and back ---------------------------------------------------------------------------

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run a target here: what a program makes without naming a device is made here."""
        _ENTERED.append(self)
        try:
            with self.device:
                yield
        finally:
            _ENTERED.pop()

    def moved(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return copies of tensors of the CPU on the device, with their strides and offsets.

        Those that share memory share memory there.
        """
        addresses = [x.untyped_storage().data_ptr() for x in inputs]
        shared = {address for address in addresses if address and addresses.count(address) > 1}
        blocks: dict[object, Tensor] = {}
        return tuple(
            self._moved_with(blocks, x) if address in shared else self._moved(x)
            for x, address in zip(inputs, addresses, strict=True)
        )

    def _moved_with(self, blocks: dict[object, Tensor], x: Tensor) -> Tensor:
        """Return a tensor in the copy of its whole memory, which is made once for each dtype."""
        if x.is_conj() or x.is_neg():
            return self._moved(x)
        key = (x.untyped_storage().data_ptr(), x.dtype)
        if key not in blocks:
            memory = torch.empty(0, dtype=x.dtype, device="cpu").set_(x.untyped_storage())
            blocks[key] = memory.to(self.device)
        return blocks[key].as_strided(x.shape, x.stride(), x.storage_offset())

    def _moved(self, x: Tensor) -> Tensor:
        """Return a tensor on the device.

        All of its memory is moved, so that gaps and zero strides stay.
        """
        if x.is_conj() or x.is_neg():
            plain = x.conj() if x.is_conj() else neg_view(x)
            there = self._moved(plain)
            return there.conj() if x.is_conj() else neg_view(there)
        if x.layout is not torch.strided or x.is_contiguous():
            return x.to(self.device)
        # from its first element to its last one, as one line
        memory = x.as_strided((_extent(x),), (1,), x.storage_offset())
        return memory.to(self.device).as_strided(x.shape, x.stride(), 0)

    def returned(self, results: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return results on the CPU. Raises Mismatch if one is not on the device."""
        for place, x in enumerate(results):
            if x.device.type != self.device.type:
                raise Mismatch(
                    f"output {place} is on {x.device}, and the inputs are on {self.device}: "
                    "what ran elsewhere says nothing about the device"
                )
        # The copies themselves have to wait for what runs on the device.
        copies = tuple(x.detach().cpu() for x in results)
        self.synchronize()
        return copies

    def argument(self, leaf: Any) -> Any:
        """Return an argument that is no input of a sample, as a call on the device takes it."""
        if isinstance(leaf, torch.Tensor):
            return leaf.to(self.device)
        if leaf in ("cpu", torch.device("cpu")):
            return self.device
        if isinstance(leaf, torch.Generator):
            return self._generator(leaf)
        return leaf

    def _generator(self, of_host: torch.Generator) -> torch.Generator:
        """Return a generator of the device with the seed of another one."""
        try:
            made = torch.Generator(self.device)
        except (RuntimeError, NotImplementedError) as error:
            raise Unsuitable(
                f"device {self.known.name} has no generators ({str(error).splitlines()[0]})"
            ) from None
        return made.manual_seed(of_host.initial_seed())


def _extent(x: Tensor) -> int:
    """Return how many elements of memory lie between the first and the last one of a tensor."""
    if not x.numel():
        return 0
    steps = zip(x.shape, x.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)
