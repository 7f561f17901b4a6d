"""The coverage table: the rules of each recorded op, and the ops with a derivative in torch that
have no record here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .facts.derivatives import has_formula
from .rules.ops import op_of
from .rules.record import NESTED, RECORDS, Record
from .torch_private.dispatcher import OpOverload


@dataclass(frozen=True, slots=True)
class Row:
    """The rules of one overload. A rule is ``own``, the way in which it is derived,
    ``none needed``, or ``missing``.

    ``per_sample``: how the gradients of each sample are computed where a parameter is
    used by this op.
    """

    name: str
    family: str
    vjp: str
    jvp: str
    batch: str
    per_sample: str


def rows() -> list[Row]:
    """One row per recorded overload, sorted by name."""
    return [_row(func, RECORDS[func]) for func in sorted(RECORDS, key=str)]


def _row(func: OpOverload, record: Record) -> Row:
    vjp = _vjp(record)
    jvp = _jvp(record, vjp)
    batch = _batch(func, record)
    if record.decomposition is not None and vjp == "missing":
        vjp = jvp = "decomposition"
    if record.family == "nested":
        jvp = batch = "refused: the result is nested"
    name = str(func).removeprefix("aten.")
    return Row(name, record.family, vjp, jvp, batch, _per_sample(record))


def _vjp(record: Record) -> str:
    if record.vjp is not None:
        return "own"
    return "none needed" if record.nondiff is True else "missing"


def _jvp(record: Record, vjp: str) -> str:
    if isinstance(record.jvp, str):
        return record.jvp
    if record.jvp is not None:
        return "own"
    return "vjp transposed twice" if vjp == "own" else vjp


def _batch(func: OpOverload, record: Record) -> str:
    if record.batch is not None:
        return "refused" if getattr(record.batch, "refuses", False) else "own"
    if not any("Tensor" in str(argument.type) for argument in func._schema.arguments):
        return "none needed"
    if record.decomposition is not None or op_of(func).composite:
        return "decomposition"
    return "torch's decomposition table, else a loop that warns"


def _per_sample(record: Record) -> str:
    if record.per_sample:
        return f"factors for {', '.join(record.per_sample)}"
    return "formula of its vjp" if record.elementwise and record.vjp else "vmap of vjp"


def torch_differentiates() -> Iterator[str]:
    """The overloads in torch's own list of derivatives. None if the installed torch does
    not ship that list."""
    path = Path(torch.__file__).parent.parent / "torchgen/packaged/autograd/derivatives.yaml"
    if path.exists():
        for found in re.finditer(r"^- name: ([\w.]+)\(", path.read_text("utf-8"), re.MULTILINE):
            name = found[1]
            yield name if "." in name else f"{name}.default"


def missing() -> list[str]:
    """Return the functional overloads that torch differentiates and no record here covers. In-place
    forms follow from the functional op.

    A record that only describes how its op draws covers nothing.
    """
    recorded = {
        str(func).removeprefix("aten.")
        for func, r in RECORDS.items()
        if r.vjp or r.decomposition or r.nondiff
    }
    return sorted(
        name
        for name in set(torch_differentiates()) - recorded
        if not name.split(".")[0].endswith("_")
    )


def denied(records: Mapping[Any, Record] = RECORDS) -> list[str]:
    """Return the overloads that torch has a formula for, although their record says that they are
    not differentiable: their gradients would be zero without a word."""
    names = {str(f).removeprefix("aten."): r for f, r in records.items()}
    return sorted(
        name for name, r in names.items() if r.nondiff is True and not r.vjp and has_formula(name)
    )


def markdown() -> str:
    """Return the page ``docs/coverage.md``."""
    table = [
        f"| `{r.name}` | {r.family} | {r.vjp} | {r.jvp} | {r.batch} | {r.per_sample} |"
        for r in rows()
    ]
    nested = sorted(f"`{str(func).removeprefix('aten.')}`" for func in NESTED)
    absent = missing()
    lines = [
        "# Coverage",
        "",
        "Written by `make docs` from the records of `runtime/rules/`",
        f"with torch {torch.__version__.partition('+')[0]}; do not edit.",
        "",
        (
            f"{len(table)} overloads have a record. In-place and `out=` forms follow; "
            "composed ops need none."
        ),
        (
            "Of the functional overloads in torch's list of derivatives, "
            f"{len(absent)} have none here; they are named at the end."
        ),
        "",
        "| op | family | vjp | jvp | batch | per sample |",
        "|---|---|---|---|---|---|",
        *table,
        "",
        "## With nested tensors",
        "",
        (
            "What has a vjp of its own for a call with a nested tensor among its arguments "
            "(`runtime/rules/tensors/nested.py`):"
        ),
        "",
        ", ".join(nested),
        "",
        "## Without a derivative",
        "",
        ", ".join(f"`{name}`" for name in absent) or "none",
        "",
    ]
    return "\n".join(lines)
