"""Turn trials into the files of a project: rows for what works, comments for what does not."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gen.language.values import tag_of
from gen.packages.package_scan import MODULES, Entry, Scan
from gen.packages.trials import Trial
from gen.recording.hook import Sample

__all__ = ["Row", "Untested", "comment", "helpers_of", "row_of", "words"]

_COMPILING_SECONDS = 600
"""The time limit of a cell whose function compiles kernels: for each dtype and layout, one."""


_DIFFERENCES = (
    "backward",
    "backward_layout",
    "double_backward",
    "dual",
    "func_vjp",
    "func_jvp",
    "func_vjp_of_vjp",
)
"""The columns that compare with differences of values."""


_DEADLY_SECONDS = 20
"""The time limit of a cell whose function may never return, and may take all memory."""
_HELPERS = {
    "ModuleCall": "arguments: inputs, then parameters",
    "OnCopies": "an op that writes to its arguments",
}
"""What a call may be made with, and what calls.py says of it."""
_BEYOND_BACKWARD = (
    "backward_*",
    "double_backward",
    "checkpoint",
    "dual",
    "autocast",
    "compiled",
    "func_*",
)
"""The columns that a function does not have whose backward pass may end the process."""


@dataclass(frozen=True)
class Row:
    """A row of the matrix, as the template writes it."""

    name: str
    call_name: str  # in calls.py
    call: str  # its Python text
    facts: tuple[tuple[str, str], ...]
    samples: tuple[Sample, ...]  # args and kwargs
    remarks: tuple[str, ...]
    reference: str = ""  # how matrix.yaml names the call; empty: the name of the row is the call

    @property
    def text(self) -> str:
        """Return the lines of the row in a family."""
        lines = [f"      # {remark}" for remark in self.remarks]
        lines.append(f"      - op: {self.name}")
        if self.reference:
            lines.append(f'        call: "{self.reference}"')
        lines += [f"        {key}: {value}" for key, value in self.facts]
        lines.append("        samples:")
        for sample in self.samples:
            lines.append(f"          - args: {_flow(sample['args'])}")
            if sample.get("kwargs"):
                lines.append(f"            kwargs: {_flow(sample['kwargs'])}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Untested:
    """A function without a row, and what a row of it would begin with."""

    name: str
    call_name: str
    expression: str
    reason: str
    arguments: str


def words(scan: Scan, entries: Sequence[Entry], trials: Sequence[Trial]) -> dict[str, Any]:
    """Return what the templates of a project for a package need."""
    names = _call_names(entries)
    rows = [row_of(each, names[each.name]) for each in trials if not each.reason_for_no_row]
    pairs = zip(entries, trials, strict=True)
    return {
        "subject": scan.package,
        "rows": rows,
        "left_out": [],
        "untested": [_untested(*pair, names) for pair in pairs if _is_untested(pair[1])],
        "covered": [trial for trial in trials if trial.covered_by],
        "failed_imports": scan.failed_imports,
        "modules": sorted({scan.package, *map(_module_of, entries)}),
        "helpers": helpers_of(rows),
        "has_hidden": any(MODULES in row.call for row in rows),
        "has_old_style": any(map(_is_old_style, trials)),
    }


def _is_old_style(trial: Trial) -> bool:
    """Return whether torch.func asks for a `setup_context` that the function lacks."""
    return any("setup_context" in remark for remark in trial.remarks)


def _is_untested(trial: Trial) -> bool:
    return bool(trial.reason_for_no_row) and not trial.covered_by


def helpers_of(rows: Sequence[Row]) -> dict[str, str]:
    """Return what calls.py imports to make the calls of the rows."""
    called = [row.call.partition("(")[0] for row in rows]
    return {name: what for name, what in _HELPERS.items() if name in called}


def _call_names(entries: Sequence[Entry]) -> dict[str, str]:
    """Return a name in calls.py for each entry: its last part, or more where this is taken."""
    # how many entries have this last part
    last = Counter(entry.name.rpartition(".")[2] for entry in entries)
    imported = {entry.name.partition(".")[0] for entry in entries}
    # calls.py imports these, and a call of the same name would hide them
    taken = {"warnings", "sys", "torch", *_HELPERS, *imported}
    names = {}
    for entry in entries:
        name = entry.name.rpartition(".")[2]
        if last[name] > 1 or name in taken:
            name = re.sub(r"\W", "_", entry.name)
        names[entry.name] = name
    return names


def _module_of(entry: Entry) -> str:
    """Return the module that has to be imported for an entry."""
    if entry.kind == "library_op":
        return "torch"
    return entry.name.rpartition(".")[0]


def row_of(trial: Trial, call_name: str) -> Row:
    """Return the row of a function that works."""
    return Row(
        trial.name,
        call_name,
        trial.call,
        tuple(_facts(trial).items()),
        tuple(map(_whole, trial.samples)),
        tuple(map(comment, _remarks(trial))),
        f"calls:{call_name}",
    )


def _whole(sample: list[Any] | Sample) -> Sample:
    """Return a sample with args and kwargs. A guess is a list of args."""
    if isinstance(sample, dict):
        return sample
    return {"args": sample}


def _facts(trial: Trial) -> dict[str, str]:
    """Return the keys of a row that say what the function can do and lacks."""
    facts = {"differentiable": _flow(trial.differentiable)}
    if trial.differentiable:
        facts["forward_ad"] = _flow(trial.forward_ad)
        facts["gradgrad"] = _flow(trial.gradgrad)
    if not trial.deterministic:
        facts["deterministic"] = "false"
    if trial.dtypes != ["float64", "float32"]:
        facts["dtypes"] = f"[{', '.join(trial.dtypes)}]"
    if left_out := _columns_left_out(trial):
        facts["not_checks"] = _flow(left_out)
    if trial.compiles:
        facts["timeout"] = str(_COMPILING_SECONDS)
    if trial.is_deadly:
        facts["timeout"] = str(_DEADLY_SECONDS)
    return facts


def _columns_left_out(trial: Trial) -> list[str]:
    """Return globs of the columns that the function refuses by design."""
    if trial.is_deadly:
        return list(_BEYOND_BACKWARD)
    lacks_transforms = trial.differentiable and not trial.takes_transforms
    globs_by_reason: list[tuple[bool, Sequence[str]]] = [
        (lacks_transforms, ["func_*"]),
        (not (lacks_transforms or trial.takes_vmap), ["func_*vmap*"]),
        (not trial.takes_layouts, ["*_layout"]),
        (not trial.takes_capture, ["compiled"]),
        (not trial.takes_autocast, ["autocast"]),
        (trial.is_zero_somewhere, ["forward_layout", "forward_precision"]),
        (trial.is_rounded or trial.is_step, _DIFFERENCES),
    ]
    left_out: list[str] = []
    for is_refused, globs in globs_by_reason:
        if is_refused:
            left_out += globs
    return left_out


def _remarks(trial: Trial) -> list[str]:
    """Return the remarks of a row, without what the file says once of all old-style Functions."""
    return [remark for remark in trial.remarks if "setup_context" not in remark]


def _untested(entry: Entry, trial: Trial, names: Mapping[str, str]) -> Untested:
    """Return the comment of a function that no guess could call."""
    required = [each.name for each in entry.parameters if not each.has_default]
    # a beginning, which a person changes: nothing that was tried worked
    arguments = ", ".join(["{shape: [4, 3]}"] * len(required))
    return Untested(
        entry.name,
        names[entry.name],
        entry.expression,
        comment(f"{trial.reason_for_no_row}. Its parameters: {', '.join(required) or 'none'}"),
        arguments,
    )


def comment(text: str) -> str:
    """Return text as one line that ends no comment."""
    return " ".join(text.split())


def _flow(value: Any) -> str:
    """Return a value in YAML's flow style."""
    if (tag := tag_of(value)) is not None:
        return f"{tag} {_flow(value[tag])}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str) and value.isidentifier():
        return value
    # JSON is YAML too
    return json.dumps(value)
