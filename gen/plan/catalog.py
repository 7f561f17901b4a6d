"""Store the facts of each op of torch's OpInfo database that expansion needs.

    catalogs/torch-2.13.0.json      {"torch": "2.13.0", "ops": [{"name": "torch.abs", …}, …]}

Importing that database takes seconds, and each version of torch has another one. So the facts of a
version are a file of this folder, which `gen catalog` writes. A matrix names its version with
`torch: 2.13.0`, and then the generated modules are the same whatever torch is installed. Without
that line the facts are those of the installed torch, and stored under `.cache/` if this folder does
not have them. Reading them needs no torch. A matrix that names only ops of one's own does not read
them at all.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from gen.errors import nearest
from gen.files import replace

if TYPE_CHECKING:
    from gen.torch_private.test_helpers import OpInfo

STORED = Path(__file__).parent / "catalogs"
_SHOWN = 48  # samples that show the kinds of an op's arguments
SCHEMA = 2  # raise it when `Facts` changes


@dataclass(frozen=True)
class Facts:
    """The facts of an op."""

    name: str
    # the name of the op in torch's OpInfo database, with `variant` its entry there
    opinfo: str
    variant: str
    kind: str
    # the dtypes that its forward accepts on the CPU
    dtypes: tuple[str, ...]
    # the dtypes for which torch differentiates it
    differentiable: tuple[str, ...]
    # further facts that checks may require, such as ``forward_ad``
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
    """The ops of a catalogue that is read when the first name of torch's is looked up, or all names
    are asked for.
    """

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
    """Return the installed torch's version, without importing it and without the build (`+cpu`)."""
    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        return "none"


class UnknownTorch(LookupError):
    """There are no facts of the version of torch that a matrix names."""


def load(cache: Path, wanted: str | None = None) -> Catalog:
    """Return the catalogue of torch `wanted`, by default of the installed one.

    It is read when it is needed, and built and written to `cache` if it is nowhere. Raises
    :class:`UnknownTorch` for a version that is neither stored nor installed.
    """
    installed = torch_version()
    torch = wanted or installed
    stored = stored_at(torch)
    if stored.exists():
        return Catalog(torch, Unread(lambda: _read(stored.read_text())))
    if torch != installed:
        stored_versions = versions()
        series = torch.rpartition(".")[0]
        # the same minor version first: 2.13.1 means 2.13.0 rather than 2.14.1
        of_series = (each for each in stored_versions if each.rpartition(".")[0] == series)
        hint = next(of_series, nearest(torch, stored_versions))
        suggestion = f"; did you mean {hint}?" if hint else ""
        raise UnknownTorch(
            f"there is no catalog of torch {torch}, only of {', '.join(stored_versions)}"
            f"{suggestion} To make it, install torch {torch} and run `matrix-gen catalog`."
        )
    path = cache / f"opinfo-{torch}-{SCHEMA}.json"
    return Catalog(torch, Unread(lambda: _read_or_build(path, torch)))


def stored_at(torch: str) -> Path:
    """Return the file of this package with the catalogue of a version, if that is stored."""
    return STORED / f"torch-{torch}.json"


def versions() -> list[str]:
    """Return the versions of torch whose catalogues are stored."""
    return sorted(path.stem.removeprefix("torch-") for path in STORED.glob("torch-*.json"))


def _read_or_build(path: Path, installed: str) -> Catalog:
    """Return the catalogue of a file. If it is not readable, build it and write it there."""
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
    write(catalog, path)
    return catalog


def write(catalog: Catalog, path: Path) -> None:
    """Write `catalog` to a file, one op a line."""
    replace(path, _as_json(catalog))


def build() -> Catalog:
    """Return the catalogue of the installed torch, from the database itself."""
    import torch

    from gen.samples.opinfo import database
    from gen.torch_private.test_helpers import opinfo_classes

    kinds = (
        (opinfo_classes.UnaryUfuncInfo, "unary"),
        (opinfo_classes.BinaryUfuncInfo, "binary"),
        (opinfo_classes.ReductionOpInfo, "reduction"),
        (opinfo_classes.SpectralFuncInfo, "spectral"),
        (opinfo_classes.ShapeFuncInfo, "shape"),
    )

    def words(dtypes: Iterable[torch.dtype]) -> tuple[str, ...]:
        return tuple(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))

    later = _next_version()

    def nondeterministic(name: str, info: opinfo_classes.OpInfo) -> bool:
        # the database of torch 2.12 says it of no op: what the next version says is taken for it
        unsaid = name in later and "deterministic" not in later[name].facts
        return getattr(info, "has_nondeterministic_output", unsaid)

    def facts(name: str, info: opinfo_classes.OpInfo) -> Facts:
        derivatives = info.supported_backward_dtypes("cpu") if info.supports_autograd else ()
        has = {
            "autograd": info.supports_autograd,
            "forward_ad": info.supports_forward_ad,
            "gradgrad": info.supports_autograd and info.supports_gradgrad,
            "out": info.supports_out,
            "inplace": info.get_inplace() is not None,
            "reference": info.ref is not None,
            "errors": info.error_inputs_func is not None,
            "deterministic": not nondeterministic(name, info),
            "opinfo": True,
            **dict.fromkeys(sorted(_kinds_of_arguments(name, info)), True),
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

    return Catalog.of(torch_version(), (facts(name, info) for name, info in database().items()))


def _kinds_of_arguments(name: str, info: OpInfo) -> set[str]:
    """Return which of labels, indices, masks and probabilities the op's first samples have."""
    from gen.samples.argument_points import kinds_of
    from gen.samples.samples import first_samples

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the ops themselves
        return kinds_of(first_samples(name, info, _SHOWN))


def _next_version() -> Mapping[str, Facts]:
    """Return the ops of the oldest stored version that is later than the installed one."""
    installed = Version(torch_version())
    later_versions = [each for each in map(Version, versions()) if each > installed]
    if not later_versions:
        return {}
    return _read(stored_at(str(min(later_versions))).read_text()).ops


def _as_json(catalog: Catalog) -> str:
    ops = [json.dumps(asdict(op), separators=(",", ":")) for op in catalog.ops.values()]
    lines = ",\n".join(ops)
    return f'{{"torch":{json.dumps(catalog.torch)},"ops":[\n{lines}\n]}}\n'


def _read(text: str) -> Catalog:
    """Return the catalogue of a file's text."""
    data = json.loads(text)
    several = ("dtypes", "differentiable", "facts")
    ops = []
    for op in data["ops"]:
        tuples = {key: tuple(op[key]) for key in several}
        ops.append(Facts(**{**op, **tuples}))
    return Catalog.of(data["torch"], ops)
