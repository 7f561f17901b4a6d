"""Record the calls of torch that small models make, and write them as rows of a matrix.

    python -m tools.model_samples --out matrix/models.yaml

Each model runs in a process of its own, with timm and transformers. A row has up to four samples,
calls of other kinds before more calls of one kind, and says in which models it was called.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gen.packages.drafts import Given
from gen.packages.project import comment, row_of
from gen.packages.recorded_project import choose
from gen.packages.subprocesses import try_given
from gen.packages.trials import Trial
from gen.recording.command import Recorded, record

from .models import MODELS

COMMAND = f"{sys.executable} -m tools.model_samples.models"
PREFIX = "models."
"""How the names of rows begin, since the matrix has a row for each function already."""
_NO_ROW = (
    r"backward|\._|\.init\.|^torch\.ops\.(?!aten\.)"  # kernels of a backward pass, private ones
    r"|\.(detach|alias)\."  # what names its argument once more
    r"|\.native_"  # a row of the function above has it
    r"|\.(view|as_strided)\."  # what another layout of its argument is no call for
    r"|\.scatter\.src"  # of several writes to one place it is open which one stays
)
_FACTS = ("differentiable", "forward_ad", "gradgrad", "deterministic", "dtypes")
_HEAD = Path(__file__).with_name("head.yaml")
"""The checks of the family, and what stands above its rows. `MODELS` is how many there are."""


@dataclass
class Calls:
    """The calls of one function in all models."""

    kind: str
    name: str
    writes: bool = False
    count: int = 0
    models: list[str] = field(default_factory=list)
    samples: Counter[str] = field(default_factory=Counter)  # JSON text -> models with the call


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.model_samples", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--command", default=COMMAND, help="what trains the model whose name is added to it"
    )
    args = parser.parse_args(arguments)
    calls = _recorded(args.command, args.models)
    rows = list(_rows(calls))
    head = _HEAD.read_text("utf-8").replace("MODELS", f"{len(args.models)} models")
    args.out.write_text(head + "\n".join(rows) + "\n", "utf-8")
    print(f"{args.out}: {len(rows)} rows of {len(args.models)} models")
    return 0


def _recorded(command: str, models: Sequence[str]) -> list[Calls]:
    """Return the calls of all models, those of most models first."""
    merged: dict[str, Calls] = {}
    for model in models:
        for each in record(f"{command} {model}"):
            calls = merged.setdefault(each.name, Calls(each.kind, each.name, each.writes))
            calls.count += each.count
            calls.models.append(model)
            calls.samples.update({json.dumps(sample) for sample in each.samples})
    return sorted(merged.values(), key=lambda each: (-len(each.models), each.name))


def _rows(calls: Sequence[Calls]) -> Iterator[str]:
    """Yield the text of each row."""
    functions = {each.name.rpartition(".")[2] for each in calls if each.kind == "function"}
    wanted = [each for each in calls if _is_wanted(each, functions)]
    choice = choose([_as_recorded(each) for each in wanted])
    by_name = {each.name: each for each in wanted}
    givens = [_with_own_sizes(given) for given in choice.givens]
    for trial in try_given(givens):
        reason = trial.reason_for_no_row or (trial.is_zero_somewhere and "some draws give 0")
        if reason:
            print(f"  no row of {trial.name}: {reason}", file=sys.stderr)
            continue
        yield _row(trial, by_name[trial.name])


def _is_wanted(calls: Calls, functions: set[str]) -> bool:
    """Return whether a call may be a row: it takes a tensor, and is no op below a function that is
    a row itself.
    """
    has_tensors = any('"shape"' in text for text in calls.samples)
    if calls.writes or not has_tensors or re.search(_NO_ROW, calls.name):
        return False
    return calls.kind == "function" or calls.name.split(".")[-2] not in functions


def _as_recorded(calls: Calls) -> Recorded:
    """Return the calls as a recorder gives them, one of each kind first."""
    samples = [json.loads(text) for text, _ in calls.samples.most_common()]
    first: dict[str, Any] = {}
    rest = []
    for sample in samples:
        # a private argument, such as the depth of the stack of a warning, is no part of a call
        options = sample.get("kwargs", {})
        for name in [name for name in options if name.startswith("_")]:
            del options[name]
        kind = json.dumps(_kind(sample))
        if kind in first:
            rest.append(sample)
        else:
            first[kind] = sample
    return Recorded(calls.kind, calls.name, calls.count, [*first.values(), *rest])


def _kind(value: object) -> object:
    """Return what calls of one kind share: ranks, layouts, dtypes, and types of other arguments."""
    if isinstance(value, Mapping):
        if "shape" in value:
            return [len(value["shape"]), value.get("layout"), value["dtype"]]
        return {key: _kind(each) for key, each in value.items()}
    if isinstance(value, list):
        return list(map(_kind, value))
    return type(value).__name__


def _with_own_sizes(given: Given) -> Given:
    """Return calls whose sizes are kept where they are small enough."""
    return dataclasses.replace(given, keeps_sizes=True)


def _row(trial: Trial, calls: Calls) -> str:
    """Return the text of a row."""
    row = row_of(trial, "")
    name = calls.name.removeprefix("torch.").removeprefix("ops.").removesuffix(".default")
    facts = tuple((key, value) for key, value in row.facts if key in _FACTS)
    times = f"{calls.count:,} call{'s' * (calls.count != 1)}, as in {', '.join(calls.models)}"
    remarks = [comment(each) for each in trial.remarks if each.startswith("sizes are smaller")]
    whole = dataclasses.replace(
        row,
        name=PREFIX + name,
        reference=trial.call,
        facts=facts,
        remarks=(times, *remarks),
    )
    # torch takes a list wherever it takes a tuple of sizes or tensors, and editors know no tuple
    return whole.text.replace("!tuple [", "[")


if __name__ == "__main__":
    sys.exit(main())
