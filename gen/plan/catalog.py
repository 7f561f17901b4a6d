"""The facts of each op of torch's OpInfo database that expansion needs.

Importing that database takes seconds. So its facts are stored as JSON under `.cache/`, in one file
per torch version. Reading them needs no torch, which makes a warm `generate` fast. A matrix that
names only ops of one's own does not read them at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gen.files import replace

SCHEMA = 1  # raise it when `Facts` changes


@dataclass(frozen=True)
class Facts:
    """One op. Its forward accepts `dtypes` on the CPU, and torch differentiates it for the
    dtypes `differentiable`."""

    name: str
    opinfo: str
    variant: str
    kind: str
    dtypes: tuple[str, ...]
    differentiable: tuple[str, ...]
    facts: tuple[str, ...]


@dataclass(frozen=True)
class Catalog:
    """All ops, by dotted name, and the torch version to which the facts belong."""

    torch: str
    ops: Mapping[str, Facts]

    @classmethod
    def of(cls, torch: str, ops: Iterable[Facts]) -> Catalog:
        return cls(torch, {op.name: op for op in sorted(ops, key=lambda op: op.name)})


class Unread(Mapping[str, Facts]):
    """The ops of a catalogue that is read when the first name of torch's is looked up, or all
    names are asked for."""

    def __init__(self, read: Callable[[], Catalog]) -> None:
        self._read = read

    @cached_property
    def _ops(self) -> Mapping[str, Facts]:
        return self._read().ops

    def __getitem__(self, name: str) -> Facts:
        if not name.startswith("torch."):  # as every name of the database does
            raise KeyError(name)
        return self._ops[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)


def torch_version() -> str:
    """The installed torch's version, without importing it."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


def load(cache: Path) -> Catalog:
    """The catalogue of the installed torch, which is read from `cache` when it is needed. If it is
    not there, it is built and written."""
    installed = torch_version()
    return Catalog(
        installed, Unread(lambda: _stored(cache / f"opinfo-{installed}-{SCHEMA}.json", installed))
    )


def _stored(path: Path, installed: str) -> Catalog:
    try:
        return _read(path.read_text())
    except (OSError, ValueError, KeyError, TypeError):
        # absent, or left half-written by an older tool
        pass
    print(
        f"reading the OpInfo database of torch {installed} (once per version, some 8 s)",
        file=sys.stderr,
    )
    catalog = build()
    replace(path, _written(catalog))
    return catalog


def build() -> Catalog:
    """The catalogue of the installed torch, from the database itself."""
    import torch
    from torch.testing._internal.opinfo import core

    from gen.samples.opinfo import database

    kinds = (
        (core.UnaryUfuncInfo, "unary"),
        (core.BinaryUfuncInfo, "binary"),
        (core.ReductionOpInfo, "reduction"),
        (core.SpectralFuncInfo, "spectral"),
        (core.ShapeFuncInfo, "shape"),
    )

    def words(dtypes: Iterable[torch.dtype]) -> tuple[str, ...]:
        return tuple(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))

    def facts(name: str, info: core.OpInfo) -> Facts:
        derivatives = info.supported_backward_dtypes("cpu") if info.supports_autograd else ()
        has = {
            "autograd": info.supports_autograd,
            "forward_ad": info.supports_forward_ad,
            "gradgrad": info.supports_autograd and info.supports_gradgrad,
            "out": info.supports_out,
            "inplace": info.get_inplace() is not None,
            "reference": info.ref is not None,
            "errors": info.error_inputs_func is not None,
            "deterministic": not info.has_nondeterministic_output,
            "opinfo": True,
        }
        kind = next((kind for cls, kind in kinds if isinstance(info, cls)), "other")
        return Facts(
            name=name,
            opinfo=info.name,
            variant=info.variant_test_name,
            kind=kind,
            dtypes=words(info.supported_dtypes("cpu")),
            differentiable=words(
                dtype for dtype in derivatives if dtype.is_floating_point or dtype.is_complex
            ),
            facts=tuple(fact for fact, holds in has.items() if holds),
        )

    return Catalog.of(torch.__version__, (facts(name, info) for name, info in database().items()))


def _written(catalog: Catalog) -> str:
    return json.dumps(
        {"torch": catalog.torch, "ops": [asdict(op) for op in catalog.ops.values()]},
        separators=(",", ":"),
    )


def _read(text: str) -> Catalog:
    data = json.loads(text)
    several = ("dtypes", "differentiable", "facts")
    return Catalog.of(
        data["torch"],
        (Facts(**{**op, **{key: tuple(op[key]) for key in several}}) for op in data["ops"]),
    )
