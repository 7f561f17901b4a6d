"""Write the coverage table: the rules of each recorded op, and the ops with a derivative in torch
that have no record here. ``make docs`` writes it to ``docs/coverage.md``."""

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
    """Return one row per recorded overload, sorted by name."""
    return [_row(func, RECORDS[func]) for func in sorted(RECORDS, key=str)]


def _row(func: OpOverload, record: Record) -> Row:
    """Return the row of one overload."""
    vjp = _vjp(record)
    jvp = _jvp(record, vjp)
    batch = _batch(func, record)
    # the ops of the decomposition have the rules
    if record.decomposition is not None and vjp == "missing":
        vjp = jvp = "decomposition"
    if record.family == "nested":
        jvp = batch = "refused: the result is nested"
    name = str(func).removeprefix("aten.")
    return Row(name, record.family, vjp, jvp, batch, _per_sample(record))


def _vjp(record: Record) -> str:
    """Return the way in which the op gets its gradient."""
    if record.vjp is not None:
        return "own"
    if record.nondiff is True:
        return "none needed"
    return "missing"


def _jvp(record: Record, vjp: str) -> str:
    """Return the way in which the op gets its tangent, for the ``vjp`` of its row."""
    if isinstance(record.jvp, str):
        return record.jvp
    if record.jvp is not None:
        return "own"
    if vjp == "own":
        return "vjp transposed twice"
    return vjp


def _batch(func: OpOverload, record: Record) -> str:
    """Return the way in which the op runs on a batch."""
    if getattr(record.batch, "refuses", False):
        return "refused"
    if record.batch is not None:
        return "own"
    if not any("Tensor" in str(argument.type) for argument in func._schema.arguments):
        return "none needed"
    if record.decomposition is not None or op_of(func).composite:
        return "decomposition"
    return "torch's decomposition table, else a loop that warns"


def _per_sample(record: Record) -> str:
    """Return the way in which the op's parameters get the gradients of each sample."""
    if record.per_sample:
        return f"factors for {', '.join(record.per_sample)}"
    if record.elementwise and record.vjp:
        return "formula of its vjp"
    return "vmap of vjp"


def torch_differentiates() -> Iterator[str]:
    """Yield the overloads in torch's own list of derivatives. Nothing if the installed torch does
    not ship that list."""
    path = Path(torch.__file__).parent.parent / "torchgen/packaged/autograd/derivatives.yaml"
    if path.exists():
        for match in re.finditer(r"^- name: ([\w.]+)\(", path.read_text("utf-8"), re.MULTILINE):
            name = match[1]
            if "." not in name:
                name = f"{name}.default"
            yield name


def missing() -> list[str]:
    """Return the functional overloads that torch differentiates and no record here covers. In-place
    forms follow from the functional op.

    A record that only describes how its op draws covers nothing.
    """
    # without the namespace, as torch's list names them
    recorded = {
        str(func).removeprefix("aten.")
        for func, record in RECORDS.items()
        if record.vjp or record.decomposition or record.nondiff
    }
    return sorted(
        name
        for name in set(torch_differentiates()) - recorded
        if not name.split(".")[0].endswith("_")
    )


def denied(records: Mapping[Any, Record] = RECORDS) -> list[str]:
    """Return the overloads that torch has a formula for, although their record says that they are
    not differentiable.

    Their gradients would be zero, and no error would say so.
    """
    names = {str(f).removeprefix("aten."): record for f, record in records.items()}
    return sorted(
        name
        for name, record in names.items()
        if record.nondiff is True and not record.vjp and has_formula(name)
    )


def markdown() -> str:
    """Return the page ``docs/coverage.md``."""
    table = [
        f"| `{row.name}` | {row.family} | {row.vjp} | {row.jvp} | {row.batch} | {row.per_sample} |"
        for row in rows()
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
