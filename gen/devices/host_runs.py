"""See which ops a device leaves to the CPU.

torch's own fallback for devices, and those that are built on it, copy the arguments of an op by
`aten::_to_cpu`. So this module is the device's kernel of that one op while a target runs, and it
counts. Another run under a mode, which sees each op as it is called, then says which op it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from gen.torch_private.loaded_with_torch import OpOverload, TorchDispatchMode, dispatch_key_of

__all__ = ["HostRuns", "host_runs"]

Tensor = torch.Tensor


class HostRuns:
    """How often an op of a device has been left to the CPU in this process."""

    def __init__(self, device_type: str) -> None:
        self.count = 0
        self._library = torch.library.Library("aten", "IMPL")
        self._library.impl("_to_cpu", self._to_cpu, dispatch_key_of(device_type))

    def _to_cpu(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy tensors, as torch's kernel of this op does, and count."""
        self.count += 1
        return [tensor.cpu() for tensor in tensors]

    def ops_of(self, run: Callable[[], object]) -> list[str]:
        """Return the ops that a run leaves to the CPU, by name."""
        mode = _Naming(self)
        with mode:
            run()
        return list(mode.names)


class _Naming(TorchDispatchMode):
    """Note the ops during which the count of a :class:`HostRuns` grows."""

    supports_higher_order_operators = True

    def __init__(self, runs: HostRuns) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: dict[str, None] = {}
        self._runs = runs

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        before = self._runs.count
        result = func(*args, **(kwargs or {}))
        if self._runs.count > before and isinstance(func, OpOverload):
            self.names[str(func)] = None
        return result


@cache
def host_runs(device_type: str) -> HostRuns:
    """Return the count of a device. It is kept from the first question on."""
    return HostRuns(device_type)
