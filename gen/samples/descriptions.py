"""Make tensors from descriptions: ``{shape: [4, 8], domain: positive}``.

A sample is ``{args: [...], kwargs: {...}}``. An argument is a description of a tensor, a list of
arguments, a plain value, or one behind a tag (:mod:`gen.language.values`). A source of samples is a
list of these, or a callable that takes ``(dtype, device)`` and returns one. Its leaves may be
tensors already.
"""

from __future__ import annotations

import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gen.language.values import tag_of
from gen.outcomes import SamplesError

Tensor = torch.Tensor
KEYS = frozenset({"shape", "low", "high", "domain", "size", "dtype", "layout", "requires_grad"})
_BOUNDS = {"any": (-2.0, 2.0), "positive": (0.1, 2.0), "unit": (0.05, 0.95)}
_INTEGER_BOUNDS = {"any": (-9, 10), "positive": (1, 10), "unit": (0, 2)}


MOST_SAMPLES = 10_000


def called(name: str, function: object, dtype: torch.dtype, device: str) -> list[Mapping[str, Any]]:
    """Return the samples that the callable `name` returns.

    Raises SamplesError for anything that is no list of calls.
    """
    if not callable(function):
        raise SamplesError(f"{name} is {function!r:.60}, no callable")
    try:
        inspect.signature(function).bind(dtype, device)
    except TypeError as error:
        raise SamplesError(
            f"{name} is called with a dtype and a device: TypeError: {error}"
        ) from None
    except ValueError:  # a builtin without a signature
        pass
    source = function(dtype, device)
    wanted = "expected [{args: [...], kwargs: {...}}, ...]"
    if isinstance(source, str | bytes | Mapping) or not isinstance(source, Iterable):
        raise SamplesError(f"{name} returned {source!r:.60}, no list of samples: {wanted}")
    calls = list(itertools.islice(source, MOST_SAMPLES + 1))
    if not calls:
        raise SamplesError(f"{name} returned no samples: {wanted}")
    if len(calls) > MOST_SAMPLES:
        raise SamplesError(f"{name} gives more than {MOST_SAMPLES:,} samples")
    for index, sample in enumerate(calls):
        _refuse(f"{name}: sample {index}", sample)
    return calls


def _refuse(what: str, sample: object) -> None:
    """Raise SamplesError unless a sample is a mapping of args and kwargs."""
    if not isinstance(sample, Mapping):
        raise SamplesError(f"{what} is {sample!r:.60}, not {{args: [...], kwargs: {{...}}}}")
    if other := [str(key) for key in sample if key not in ("args", "kwargs")]:
        raise SamplesError(f"{what} has the key {', '.join(other)}; expected args and kwargs")
    if not isinstance(sample.get("args", ()), list | tuple):
        raise SamplesError(f"{what} has args {sample['args']!r:.60}, which are no list")
    kwargs = sample.get("kwargs", {})
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise SamplesError(f"{what} has kwargs {kwargs!r:.60}, which are no mapping of names")


def build(
    source: Any, dtype: torch.dtype, device: str
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], Callable[[Any], Any], None]]:
    """Yield ``(args, kwargs, output processing, no wrapper)`` for each sample of `source`, drawn
    from the global generator.
    """
    for sample in source:
        args = tuple(_value(arg, dtype, device) for arg in sample.get("args", ()))
        kwargs = {key: _value(arg, dtype, device) for key, arg in sample.get("kwargs", {}).items()}
        yield args, kwargs, _identity, None


def _identity(result: object) -> object:
    return result


def _value(described: Any, dtype: torch.dtype, device: str) -> Any:
    """Return what an argument of a sample stands for: tensors for descriptions, else the value
    itself.
    """
    tag = tag_of(described)
    if tag == "!tuple":
        return tuple(_value(item, dtype, device) for item in described[tag])
    if tag is not None:
        return _placed(_MAKERS[tag](described[tag]), device)
    if isinstance(described, Mapping):
        return tensor(described, dtype, device)
    if isinstance(described, (list, tuple)) and any(map(_is_tensor, described)):
        return [_value(item, dtype, device) for item in described]
    return _placed(_named(described), device)


def _placed(value: object, device: str) -> object:
    """Return a tensor that is made already as a leaf on `device`, and anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    wanted = value.detach().to(device)
    return wanted.requires_grad_(value.requires_grad or _is_inexact(wanted.dtype))


def _named(described: object) -> object:
    """Return the dtype for its name, such as ``torch.int64``, and anything else as it is."""
    if isinstance(described, str) and described.startswith("torch."):
        named = getattr(torch, described.removeprefix("torch."), None)
        if isinstance(named, torch.dtype):
            return named
    return described


def _is_tensor(described: object) -> bool:
    return isinstance(described, (Mapping, Tensor))


def tensor(described: Mapping[str, Any], dtype: torch.dtype, device: str) -> Tensor:
    """Return the tensor of a description.

    Its dtype is `dtype` unless it names another. Floating tensors require grad unless it says
    otherwise. Raises ValueError for an unknown key or domain, and for a domain that does not fit
    the shape or dtype.
    """
    unknown = set(described) - KEYS
    if unknown:
        raise ValueError(
            f"a tensor's description has no key {', '.join(sorted(unknown))}; "
            f"it may have {', '.join(sorted(KEYS))}"
        )
    domain = described.get("domain", "any")
    own_dtype = _default_dtype(domain, dtype)
    if "dtype" in described:
        own_dtype = getattr(torch, described["dtype"])
    shape = tuple(described.get("shape", ()))
    drawn = _fill(domain, shape, own_dtype, described).to(device)
    return arrange(drawn, described.get("layout", "contiguous")).requires_grad_(
        _is_inexact(own_dtype) and bool(described.get("requires_grad", True))
    )


def _default_dtype(domain: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a domain, which is `dtype` for numbers."""
    if domain == "bool":
        return torch.bool
    if domain in ("index", "permutation"):
        return torch.int64
    return dtype


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _fill(
    domain: str, shape: tuple[int, ...], dtype: torch.dtype, described: Mapping[str, Any]
) -> Tensor:
    """Draw values of a domain."""
    if domain == "bool" or dtype is torch.bool:
        return torch.rand(shape) < 0.5
    if domain == "index":
        if "size" not in described:
            raise ValueError("domain index needs `size`: indices are drawn from 0 … size − 1")
        return torch.randint(0, described["size"], shape).to(dtype)
    if domain == "permutation":
        rows = [torch.randperm(shape[-1]) for _ in range(math.prod(shape[:-1]))]
        return torch.stack(rows).reshape(shape).to(dtype)
    if domain in ("spd", "symmetric"):
        return _matrix(domain, shape, dtype)
    if domain == "distinct":
        count = math.prod(shape)
        values = torch.randperm(count).to(torch.float64)
        if _is_inexact(dtype):
            values = values * (4.0 / max(count, 1)) - 2.0
        return values.reshape(shape).to(dtype)
    if domain not in ("any", "positive", "unit", "nonzero"):
        domains = "any, positive, unit, nonzero, spd, symmetric, permutation, index, bool, distinct"
        raise ValueError(f"no domain {domain!r}; known: {domains}")
    return _uniform(domain, shape, dtype, described)


def _uniform(
    domain: str, shape: tuple[int, ...], dtype: torch.dtype, described: Mapping[str, Any]
) -> Tensor:
    """Draw values between the bounds of a domain, or those of the description."""
    bounds = "any" if domain == "nonzero" else domain
    if not _is_inexact(dtype):
        lowest, highest = _INTEGER_BOUNDS[bounds]
        if not dtype.is_signed:
            lowest = max(lowest, 0)
        low, high = int(described.get("low", lowest)), int(described.get("high", highest))
        drawn = torch.randint(low, high, shape, dtype=dtype)
        if domain == "nonzero":
            drawn = torch.where(drawn == 0, torch.ones_like(drawn), drawn)
        return drawn
    # bounds of the domain, unless the description has its own
    least, most = _BOUNDS[bounds]
    low, high = described.get("low", least), described.get("high", most)
    real = _real(shape, low, high)
    if dtype.is_complex:
        real = torch.complex(real, _real(shape, low, high))
    if domain == "nonzero":
        real = torch.where(real.abs() < 0.1, real + 0.25, real)
    return real.to(dtype)


def _real(shape: tuple[int, ...], low: float, high: float) -> Tensor:
    return torch.rand(shape, dtype=torch.float64) * (high - low) + low


def _matrix(domain: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Draw symmetric or positive definite matrices."""
    if len(shape) < 2 or shape[-1] != shape[-2] or not _is_inexact(dtype):
        raise ValueError(
            f"domain {domain} needs square matrices of a floating or complex dtype, "
            f"not {list(shape)} of {dtype}"
        )
    double = torch.complex128 if dtype.is_complex else torch.float64
    a = torch.randn(shape, dtype=double)
    if domain == "symmetric":
        return ((a + a.mH) / 2).to(dtype)
    return (a @ a.mH / max(shape[-1], 1) + torch.eye(shape[-1], dtype=a.dtype)).to(dtype)


def arrange(x: Tensor, layout: str) -> Tensor:
    """Return `x` in a layout, with the same values. Only ``expanded`` changes them: it repeats the
    first slice along the first dimension.

    ``transposed``: the last two dimensions swapped in memory. ``noncontiguous`` or ``strided``:
    every second element of a larger storage. ``expanded``: stride 0 in the first dimension.
    ``contiguous``: as it says.
    """
    if layout == "contiguous" or (layout == "transposed" and x.ndim < 2):
        return x.contiguous()
    if layout == "transposed":
        return x.mT.contiguous().mT
    if layout in ("noncontiguous", "strided"):
        if not x.ndim:
            return x
        return torch.stack([x, torch.zeros_like(x)], dim=-1).select(-1, 0)
    if layout == "expanded":
        if not x.ndim or not x.shape[0]:
            return x
        return x[:1].clone().expand(x.shape)
    raise ValueError(
        f"no layout {layout!r}; known: contiguous, transposed, noncontiguous, strided, expanded"
    )


def clone_with_strides(x: Tensor) -> Tensor:
    """Return a clone of `x` that keeps gaps in memory and strides of 0, as torch's own does not."""
    return lay_out_like(x, x.clone())


def lay_out_like(x: Tensor, values: Tensor) -> Tensor:
    """Return `values`, a new tensor in the shape of `x`, with the strides of `x`.

    `values` must repeat where elements of `x` share memory.
    """
    if values.stride() == x.stride():
        return values
    # A tensor cannot be written where its elements share memory, so one slice is expanded.
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        if size > 1 and stride == 0:
            first = lay_out_like(x.narrow(dim, 0, 1), values.narrow(dim, 0, 1))
            return first.expand(x.shape)
    # a tensor of the values' own kind, so that their history reaches it
    return values.new_empty_strided(x.shape, x.stride()).copy_(values)


# --- values behind tags ---------------------------------------------------------------------------


def _from_file(name: str) -> torch.Tensor:
    """Return the tensor of a file below the folder of the matrix, which Python's path has for
    the modules of the matrix."""
    for folder in (".", *sys.path):
        path = Path(folder or ".") / name
        if path.is_file():
            return _tensor_of(path)
    raise SamplesError(f"there is no file {name} below a folder of Python's path")


def _tensor_of(path: Path) -> torch.Tensor:
    """Return the tensor of a file. ``SamplesError`` if it has something else."""
    try:
        if path.suffix == ".npy":
            return torch.from_numpy(np.load(path, allow_pickle=False))
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise SamplesError(f"cannot read {path.name}: {type(error).__name__}: {error}") from None
    if not isinstance(found, torch.Tensor):
        raise SamplesError(f"{path.name} has a {type(found).__name__}, no tensor")
    return found


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "!slice": lambda content: slice(*content),
    "!dtype": lambda content: getattr(torch, content),
    "!device": torch.device,
    "!complex": lambda content: complex(str(content).replace(" ", "")),
    "!generator": lambda content: torch.Generator().manual_seed(content),
    "!file": _from_file,
}
