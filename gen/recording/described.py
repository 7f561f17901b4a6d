"""Describe the arguments of a call, as a sample of ``matrix.yaml`` has them.

    describe(torch.zeros(2, 3, dtype=torch.float32))
    # {"shape": [2, 3], "dtype": "float32", "requires_grad": False}
    describe(torch.tensor([4, 7]))
    # {"shape": [2], "dtype": "int64", "low": 4, "high": 8}

No number of a floating tensor is kept. Of an integer tensor only the range is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gen.recording.hook import Sample

__all__ = ["NoDescriptionError", "describe", "describe_call"]


class NoDescriptionError(Exception):
    """A value that a sample has no form for."""


def describe_call(args: Sequence[object], kwargs: Mapping[str, object]) -> Sample:
    """Return the sample of a call. Raises NoDescriptionError."""
    sample: Sample = {"args": list(map(describe, args))}
    keywords = {name: describe(each) for name, each in kwargs.items() if not _is_ordinary(each)}
    if keywords:
        sample["kwargs"] = keywords
    return sample


def _is_ordinary(value: object) -> bool:
    """Return whether a keyword argument says what a call does anyway."""
    return value is torch.preserve_format or value is torch.strided


def describe(value: object) -> Any:
    """Return the description of one argument. Raises NoDescriptionError."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise NoDescriptionError(f"the number {value}")
    # not isinstance: a subclass, as a NumPy float is, would be read back as another class
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return list(map(describe, value))
    if isinstance(value, tuple):
        return {"!tuple": list(map(describe, value))}
    return _tagged(value)


def _tagged(value: object) -> Sample:
    """Return the description of a value that YAML has no form for."""
    if isinstance(value, torch.dtype):
        return {"!dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"!device": "cpu"}  # a cell puts its tensors on a device of its own
    if isinstance(value, complex):
        return {"!complex": str(value).strip("()")}
    if isinstance(value, torch.Generator):
        return {"!generator": 0}
    if isinstance(value, slice):
        bounds = [value.start, value.stop, value.step]
        if all(each is None or type(each) is int for each in bounds):
            return {"!slice": bounds}
    raise NoDescriptionError(f"an argument of class {type(value).__name__}")


def _tensor(x: torch.Tensor) -> Sample:
    """Return the description of a tensor. Raises NoDescriptionError if a sample cannot have it."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        raise NoDescriptionError(f"a tensor of class {type(x).__name__}")
    if x.layout is not torch.strided or x.is_quantized or x.device.type == "meta":
        raise NoDescriptionError(f"a tensor of layout {x.layout} on {x.device.type}")
    described: Sample = {"shape": list(x.shape)}
    described["dtype"] = str(x.dtype).removeprefix("torch.")
    if x.dtype.is_floating_point or x.dtype.is_complex:
        described["requires_grad"] = x.requires_grad
    elif x.dtype is not torch.bool and x.numel():
        # as of torch.randint, whose upper bound is left out
        described["low"] = int(x.min())
        described["high"] = int(x.max()) + 1
    layout = _layout(x)
    if layout != "contiguous":
        described["layout"] = layout
    return described


def _layout(x: torch.Tensor) -> str:
    """Return the layout of a sample that is nearest to the strides of `x`."""
    if x.is_contiguous():
        return "contiguous"
    if x.stride(0) == 0:
        return "expanded"
    if x.ndim > 1 and x.mT.is_contiguous():
        return "transposed"
    if x.stride(-1) == 1:  # such as a view of heads: kernels read its rows as one piece
        return "contiguous"
    return "noncontiguous"
