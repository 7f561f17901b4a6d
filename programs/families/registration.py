"""What torch asks a device for before it runs a kernel there, with the answers that are right.

    own_module(x)        # the module of the device of x says that it is there
    seeds(x)             # it takes a seed

The programs look at the device of their argument, wherever that is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from programs.families.tools import Results, Row


def _right(count: int) -> Any:
    """Return the definition of a program whose answers are all yes."""
    return lambda x: (True,) * count


def _module_of(x: Tensor) -> Any:
    return torch.get_device_module(x.device)


def _own_module(x: Tensor) -> Results:
    module = _module_of(x)
    return bool(module.is_available()), module.device_count() >= 1


def _own_name(x: Tensor) -> Results:
    """Ask whether a device is made of its own name, and whether tensors name it."""
    named = torch.device(str(x.device))
    return named == x.device, str(x.device).startswith(x.device.type), x.is_cpu == _is_cpu(x)


def _is_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu"


def _default_device(x: Tensor) -> Results:
    """Ask where a tensor is made inside of the device as a context, and in the argument."""
    with torch.device(x.device):
        inside = torch.empty(2)
    return inside.device == x.device, torch.empty(2, device=x.device).device == x.device


def _seeds(x: Tensor) -> Results:
    """Ask whether a seed of all devices is a seed of this one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        module = _module_of(x)
        if _is_cpu(x):
            return (torch.initial_seed() == 11,)
        return (module.initial_seed() == 11,)


def _waits(x: Tensor) -> Results:
    """Ask whether the device can be waited for."""
    return (_module_of(x).synchronize() is None,)


own_module = Row(_own_module, _right(2))
own_name = Row(_own_name, _right(3))
default_device = Row(_default_device, _right(2))
seeds = Row(_seeds, _right(1))
waits = Row(_waits, _right(1))
