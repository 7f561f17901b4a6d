"""Draft a row for one function of any package: from samples, from a recorded run, or by guesses.

drafted = draft("entmax.entmax15", samples=["torch.randn(3, 4), 1"])
print(drafted.row.text)
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gen.packages.drafts import Given, attempt_given
from gen.packages.package_scan import Entry, entry_of
from gen.packages.project import Row, row_of
from gen.packages.trials import Trial, attempt, resolve
from gen.recording.command import RecordError, record
from gen.recording.described import NoDescriptionError, describe_call
from gen.recording.hook import Sample

__all__ = ["Draft", "draft", "is_importable"]


@dataclass(frozen=True)
class Draft:
    """A row, and the line of calls.py that it needs, if it needs one."""

    row: Row
    line: str = ""


def is_importable(name: str) -> bool:
    """Return whether a dotted name is something in a module that Python finds."""
    _find_own_modules()
    try:
        resolve(name)
    except Exception:  # whatever an import raises
        return False
    return "." in name


def draft(name: str, samples: Sequence[str] = (), command: str | None = None) -> Draft:
    """Return a row of the function `name`. Raises LookupError with the reason if there is none.

    ``samples``: Python texts of arguments. ``command``: a command that calls the function.
    """
    _find_own_modules()
    entry = _entry(name)
    given = [_sample(name, text) for text in samples]
    remarks: list[str] = []
    if command is not None:
        given, remarks = _recorded(name, command)
    if given:
        trial = attempt_given(
            Given(
                name,
                entry.kind,
                entry.expression,
                given,
                more_shapes=True,
                keeps_sizes=command is None,
                remarks=remarks,
            )
        )
    else:
        trial = attempt(entry)
    if trial.reason:
        hint = "" if given else "; give it a call by --sample or --record"
        raise LookupError(f"{name}: no call works: {trial.reason}{hint}")
    return _drafted(entry, trial)


def _find_own_modules() -> None:
    """Let Python find the modules of this folder, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _entry(name: str) -> Entry:
    """Return the entry of a name. Raises LookupError if it names nothing that can be called."""
    try:
        value = resolve(name)
    except Exception as error:  # whatever an import raises
        raise LookupError(f"{name}: {type(error).__name__}: {error}") from None
    if not callable(value):
        raise LookupError(f"{name} is a {type(value).__name__}, which cannot be called")
    return entry_of(name, value) or Entry(name, "function", (), expression=name)


def _sample(name: str, text: str) -> Sample:
    """Return the sample that Python text of arguments describes."""
    package = name.partition(".")[0]
    known = {"torch": torch, "math": math, package: sys.modules[package]}

    def take(*args: object, **kwargs: object) -> Sample:
        return describe_call(args, kwargs)

    try:
        # the text is what somebody has typed, as code of a call
        sample: Sample = eval(f"take({text})", known | {"take": take})
    except NoDescriptionError as error:
        raise LookupError(f"--sample {text!r}: a sample has no form for {error}") from None
    except Exception as error:  # whatever the text raises
        raise LookupError(f"--sample {text!r}: {type(error).__name__}: {error}") from None
    return sample


def _recorded(name: str, command: str) -> tuple[list[Sample], list[str]]:
    """Return the calls of a function in a run of a command, and what to say of them."""
    calls = [each for each in record(command, name) if each.kind == "named"]
    if not calls:
        raise RecordError(f"`{command}` never called {name}")
    if not calls[0].samples:
        raise RecordError(f"no sample has a form for its calls: {', '.join(calls[0].left_out)}")
    remarks = [f"recorded in `{command}`, calls: {calls[0].count:,}"]
    if calls[0].left_out:
        remarks.append(f"calls left out: {', '.join(calls[0].left_out)}")
    return calls[0].samples, remarks


def _drafted(entry: Entry, trial: Trial) -> Draft:
    """Return the row of a trial, which says how its call is named."""
    last = entry.name.rpartition(".")[2]
    row = row_of(trial, last)
    facts = dict(row.facts)
    facts.setdefault("dtypes", f"[{', '.join(trial.dtypes)}]")
    row = dataclasses.replace(row, facts=tuple(facts.items()))
    if entry.kind == "module":
        return Draft(row, f"{last} = {trial.call}")
    reference = ""
    if entry.expression != entry.name:
        reference = _reference(entry.expression)
    return Draft(dataclasses.replace(row, reference=reference))


def _reference(expression: str) -> str:
    """Return ``package.module:name`` of an expression."""
    parts = expression.split(".")
    # the longest part that is a module: what is behind it are attributes, as of a class
    for cut in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:cut])
        if module in sys.modules:
            return f"{module}:{'.'.join(parts[cut:])}"
    raise LookupError(expression)
