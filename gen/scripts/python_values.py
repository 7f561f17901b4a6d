"""Write values as Python text: ``float("nan")``, ``torch.tensor([1.0, 2.0],
dtype=torch.float64)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

Tensor = torch.Tensor


class NoScript(Exception):
    """The cell cannot be written as a program of its own. The text says why."""


def value(x: object) -> str:
    """Return the Python text of an argument that is no tensor."""
    if x is ...:
        return "..."
    if isinstance(x, float) and not math.isfinite(x):
        return f'float("{x}")'
    if isinstance(x, (bool, int, float, complex, str, type(None), slice)):
        return repr(x)
    if isinstance(x, (torch.dtype, torch.layout, torch.memory_format)):
        return str(x)
    if isinstance(x, torch.device):
        return repr(str(x))
    if isinstance(x, torch.Generator):
        return f"torch.Generator().manual_seed({x.initial_seed()})"
    if isinstance(x, torch.Size):
        return repr(tuple(x))
    if isinstance(x, (list, tuple, dict)):
        return _collection(x)
    raise NoScript(f"an argument is a {type(x).__name__}, which has no literal")


def _collection(items: list[object] | tuple[object, ...] | dict[object, object]) -> str:
    """Return the Python text of a list, tuple or dictionary of arguments."""
    if isinstance(items, list):
        return f"[{', '.join(map(value, items))}]"
    if isinstance(items, tuple):
        return arguments(list(map(value, items)))
    pairs = [f"{value(key)}: {value(item)}" for key, item in items.items()]
    return f"{{{', '.join(pairs)}}}"


def tensor(x: Tensor) -> str:
    """Return Python text that makes `x`, with its dtype and its strides."""
    if x.layout is not torch.strided:
        raise NoScript(f"an argument is {x.layout}")
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        if size > 1 and stride == 0:
            return f"{tensor(x.narrow(dim, 0, 1))}.expand({value(tuple(x.shape))})"
    text = _compact(x)
    if x.numel() and not x.is_contiguous():
        return (
            f"torch.empty_strided({value(tuple(x.shape))}, {value(x.stride())}, "
            f"dtype={x.dtype}).copy_({text})"
        )
    return text


def _compact(x: Tensor) -> str:
    """Return Python text that makes a contiguous tensor with the numbers of `x`."""
    if not x.numel():
        return f"torch.empty({value(tuple(x.shape))}, dtype={x.dtype})"
    plain = x.detach().resolve_conj().resolve_neg()
    if plain.is_complex() and not bool(plain.isfinite().all()):
        wide = plain.to(torch.complex128)
        return f"torch.complex({_compact(wide.real)}, {_compact(wide.imag)}).to({x.dtype})"
    return f"torch.tensor({_numbers(plain.tolist())}, dtype={x.dtype})"


def _numbers(x: object) -> str:
    if isinstance(x, list):
        return f"[{', '.join(map(_numbers, x))}]"
    return value(x)


def arguments(given: Sequence[str]) -> str:
    """Return the text of a tuple from those of its parts."""
    return f"({', '.join(given)}{',' * (len(given) == 1)})"


def one_or_tuple(texts: Sequence[str]) -> str:
    """Return the only text, or the text of a tuple of several."""
    if len(texts) == 1:
        return texts[0]
    return arguments(texts)
