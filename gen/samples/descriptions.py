"""Make tensors from descriptions: ``{shape: [4, 8], domain: positive}``.

A sample is ``{args: [...], kwargs: {...}}``. An argument is a description of a tensor, a list of
arguments, a plain value, or one behind a tag (:mod:`gen.language.values`). A source of samples is a
list of these, or a callable that takes ``(dtype, device)`` and returns one. Its leaves may be
tensors already.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from gen.language.values import tag_of
from gen.outcomes import SamplesError
from gen.samples.domains import DOMAINS, Domain, is_inexact

Tensor = torch.Tensor
KEYS = frozenset({"shape", "low", "high", "domain", "size", "dtype", "layout", "requires_grad"})
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
    # texts and mappings can be iterated over too, and give no calls
    if isinstance(source, str | bytes | Mapping) or not isinstance(source, Iterable):
        raise SamplesError(f"{name} returned {source!r:.60}, no list of samples: {wanted}")
    # a generator may yield for ever
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


def _identity(result: object) -> object:
    return result


class Call(NamedTuple):
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    # is applied to the result of the call
    process: Callable[[Any], Any] = _identity
    # calls the op in place of a plain call
    wrap: Callable[..., Any] | None = None
    # the domains of tensors among the arguments, by identity
    domains: Mapping[int, Domain] = MappingProxyType({})


def build(source: Any, dtype: torch.dtype, device: str) -> Iterator[Call]:
    """Yield the call of each sample of `source`, drawn from the global generator."""
    for sample in source:
        maker = _Maker(dtype, device)
        args = tuple(map(maker.value, sample.get("args", ())))
        kwargs = {key: maker.value(arg) for key, arg in sample.get("kwargs", {}).items()}
        yield Call(args, kwargs, domains=maker.domains)


class _Maker:
    """Make the arguments of one sample. `domains`: those of its tensors, by identity."""

    def __init__(self, dtype: torch.dtype, device: str) -> None:
        self.domains: dict[int, Domain] = {}
        self._dtype = dtype
        self._device = device

    def value(self, described: Any) -> Any:
        """Return what an argument of a sample stands for: tensors for descriptions, else the value
        itself.
        """
        tag = tag_of(described)
        if tag == "!tuple":
            return tuple(map(self.value, described[tag]))
        if tag is not None:
            return _placed(_MAKERS[tag](described[tag]), self._device)
        if isinstance(described, Mapping):
            return self._tensor(described)
        if isinstance(described, (list, tuple)) and any(map(_is_tensor, described)):
            return list(map(self.value, described))
        return _placed(_named(described), self._device)

    def _tensor(self, described: Mapping[str, Any]) -> Tensor:
        """Return the tensor of a description.

        Its dtype is that of the samples unless it names another. Floating tensors require grad
        unless it says otherwise. Raises ValueError for an unknown key or domain, and for a domain
        that does not fit the shape or dtype.
        """
        unknown = set(described) - KEYS
        if unknown:
            raise ValueError(
                f"a tensor's description has no key {', '.join(sorted(unknown))}; "
                f"it may have {', '.join(sorted(KEYS))}"
            )
        word = described.get("domain", "any")
        if word not in DOMAINS:
            raise ValueError(f"no domain {word!r}; known: {', '.join(DOMAINS)}")
        domain = DOMAINS[word]
        # the description's own dtype, else the domain's, else that of the samples
        dtype = domain.dtype or self._dtype
        if "dtype" in described:
            dtype = getattr(torch, described["dtype"])
        if dtype is torch.bool:
            domain = DOMAINS["bool"]
        shape = tuple(described.get("shape", ()))
        if len(shape) < domain.dims:
            raise ValueError(f"domain {word} needs {domain.dims} dimensions, not {list(shape)}")
        # drawn on the CPU, so that each device has the same numbers
        drawn = domain.draw(shape, dtype, described).to(self._device)
        wanted = is_inexact(dtype) and bool(described.get("requires_grad", domain.moves))
        made = arrange(drawn, described.get("layout", "contiguous")).requires_grad_(wanted)
        # the call has the tensor too, so that no other one gets its id
        self.domains[id(made)] = domain
        return made


def _placed(value: object, device: str) -> object:
    """Return a tensor that is made already as a leaf on `device`, and anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    wanted = value.detach().to(device)
    return wanted.requires_grad_(value.requires_grad or is_inexact(wanted.dtype))


def _named(described: object) -> object:
    """Return the dtype for its name, such as ``torch.int64``, and anything else as it is."""
    if isinstance(described, str) and described.startswith("torch."):
        named = getattr(torch, described.removeprefix("torch."), None)
        if isinstance(named, torch.dtype):
            return named
    return described


def _is_tensor(described: object) -> bool:
    return isinstance(described, (Mapping, Tensor))


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
        # a view of new memory, in which a zero lies behind each number
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
    # neither way of reading runs code of the file: no pickles, and weights alone
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
