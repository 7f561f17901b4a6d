"""Write results for other programs: JUnit XML, which CI systems show, and JSON."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as Xml

from gen.report.changes import DETAILS, FAILURES, KINDS, Change, Changes
from gen.report.runs import History, Step, title
from gen.run.failure_groups import FailureGroup, by_severity, counts_by_severity, group_failures
from gen.run.results import OUTCOMES, CellResult, Results
from gen.severity import severity_of_row

__all__ = ["as_json", "as_junit", "changes_as_json", "command"]

# XML 1.0 has no form for these characters, not even an escaped one.
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# JUnit tells failures of a test from errors of what runs it, and both from skipped tests.
_ERRORS = ("error", "timed out", "crashed")
_SKIPPED = ("skipped", "lacking", "not covered")


def command(cell: CellResult, header: Mapping[str, Any]) -> str:
    """Return the command that runs a cell again, with the sample that failed."""
    words = ["pytest", shlex.quote(cell.node), "--target", shlex.quote(header["target"])]
    if header["device"] != "cpu":
        words += ["--device", shlex.quote(header["device"])]
    words += ["--tier", "full"]
    if cell.failing is not None:
        words += ["--sample", str(cell.failing)]
    return " ".join(words)


def as_junit(runs: Sequence[Results]) -> str:
    """Return a test suite for each run, and a test case for each cell."""
    root = Xml.Element("testsuites")
    for run in runs:
        _add_suite(root, run)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, "unicode") + "\n"


def _add_suite(root: Xml.Element, run: Results) -> None:
    """Add the test suite of a run, with its totals and its cells."""
    counts = run.counts()
    failures = set(FAILURES).difference(_ERRORS)

    def total(outcomes: Iterable[str]) -> str:
        return str(sum(counts[outcome] for outcome in outcomes))

    suite = Xml.SubElement(
        root,
        "testsuite",
        name=_valid_text(title(run)),
        tests=str(len(run.cells)),
        failures=total(failures),
        errors=total(_ERRORS),
        skipped=total(_SKIPPED),
        time=f"{sum(cell.seconds for cell in run.cells):.3f}",
    )
    for cell in by_severity(run.cells):
        _add_case(suite, cell, run.header)


def _add_case(suite: Xml.Element, cell: CellResult, header: Mapping[str, object]) -> None:
    """Add the test case of a cell to its suite."""
    names = {
        "classname": _valid_text(f"{cell.family}.{cell.check}"),
        "name": _valid_text(cell.id),
        "time": f"{cell.seconds:.5f}",
    }
    case = Xml.SubElement(suite, "testcase", names)
    if cell.outcome in FAILURES:
        kind = "error" if cell.outcome in _ERRORS else "failure"
        failure = Xml.SubElement(case, kind, type=cell.outcome, message=_valid_text(cell.why))
        failure.text = _valid_text(command(cell, header))
        properties = Xml.SubElement(case, "properties")
        Xml.SubElement(properties, "property", name="severity", value=_severity_word(cell))
    elif cell.outcome in _SKIPPED:
        Xml.SubElement(case, "skipped", message=_valid_text(f"{cell.outcome}: {cell.why}"))


def _severity_word(cell: CellResult) -> str:
    """Return the word for the severity of a failed cell."""
    severity = severity_of_row(cell.outcome, cell.severity)
    assert severity is not None, "the cell has failed"
    return severity.word


def _valid_text(text: str) -> str:
    """Replace the characters that XML cannot have."""
    return _NOT_IN_XML.sub("�", text)


def as_json(runs: Sequence[Results]) -> str:
    """Return the counts and failures of each run."""
    return _dump({"runs": list(map(_describe_run, runs))})


def changes_as_json(past: History) -> str:
    """Return the changes in the last of several runs, and the slower and flaky cells of all."""
    last = past.changes
    slower = [
        {"node": cell.node, "seconds": cell.seconds, "usual": usual} for cell, usual in past.slower
    ]
    flaky = [{"node": cell.node, "outcomes": list(outcomes)} for cell, outcomes in past.flaky]
    without_result = [
        {"run": run, "why": why, "nodes": _nodes(cells)} for run, why, cells in last.without_result
    ]
    return _dump(
        {
            "runs": list(map(_settings, last.headers)),
            "notes": list(past.notes),
            "steps": list(map(_describe_step, past.steps)),
            "common": last.common,
            **_changes_by_kind(last),
            "new_ops": dict(last.new_ops),
            "vanished_ops": dict(last.vanished_ops),
            "new_cells": _nodes(last.new_cells),
            "vanished_cells": _nodes(last.vanished_cells),
            "new_failing": list(map(_describe_failing, last.new_failing)),
            "vanished_failing": list(map(_describe_failing, last.vanished_failing)),
            "without_result": without_result,
            "slower": slower,
            "flaky": flaky,
        }
    )


def _describe_step(step: Step) -> dict[str, object]:
    return {
        "began": step.began,
        "cells": step.cells,
        "failing": step.failing,
        "seconds": round(step.seconds, 3),
    }


def _nodes(cells: Sequence[CellResult]) -> list[str]:
    return [cell.node for cell in cells]


def _changes_by_kind(changes_of_run: Changes) -> dict[str, object]:
    """Map each kind to the cells that changed so."""
    return {kind: list(map(_describe_change, changes_of_run.of(kind))) for kind in KINDS}


def _describe_change(change: Change) -> dict[str, object]:
    """Return a changed cell with both of its results."""
    return {
        "node": change.now.node,
        "op": change.now.op,
        "before": _differing_facts(change.before, change.now),
        "now": _differing_facts(change.now, change.before),
    }


def _differing_facts(cell: CellResult, other: CellResult) -> dict[str, object]:
    """Return the outcome of a cell, its reasons, and each detail that differs in the other run."""
    facts: dict[str, object] = {"outcome": cell.outcome}
    if cell.why:
        facts["why"] = cell.why
    if cell.refusal:
        facts["refusal"] = cell.refusal
    for name in DETAILS:
        value = getattr(cell, name)
        if value != getattr(other, name):
            facts[name] = value
    return facts


def _describe_failing(cell: CellResult) -> dict[str, object]:
    return {"node": cell.node, "op": cell.op, "outcome": cell.outcome, "why": cell.why}


def _settings(header: Mapping[str, object]) -> dict[str, object]:
    # The event tells the lines of a results file apart. It is no setting of the run.
    return {key: value for key, value in header.items() if key != "event"}


def _dump(data: Mapping[str, object]) -> str:
    finite = _without_infinities(data)
    return json.dumps(finite, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _without_infinities(data: object) -> object:
    """Replace NaN and infinities by None, which JSON writes as null."""
    # json.dumps would write NaN and Infinity, which other readers of JSON refuse.
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _without_infinities(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return list(map(_without_infinities, data))
    return data


def _describe_run(run: Results) -> dict[str, object]:
    """Return the settings, counts and failures of a run."""
    counts = run.counts()
    by_outcome = {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]}
    severities = counts_by_severity(run.cells)
    failed = [cell for cell in by_severity(run.cells) if cell.outcome in FAILURES]
    return {
        **_settings(run.header),
        "complete": bool(run.end.get("complete")),
        "cells": len(run.cells),
        "counts": by_outcome,
        "severities": {severity.word: count for severity, count in severities.items()},
        "findings": list(map(_describe_finding, group_failures(run.cells))),
        "failures": [_describe_failure(cell, run) for cell in failed],
    }


def _describe_finding(finding: FailureGroup) -> dict[str, object]:
    """Return a cause of failures, with the cells that fail by it."""
    return {
        "severity": finding.severity.word,
        "outcome": finding.outcome,
        "op": finding.op,
        "why": finding.why,
        "frame": finding.frame,
        "count": len(finding.cells),
        "nodes": finding.nodes,
    }


def _describe_failure(cell: CellResult, run: Results) -> dict[str, object]:
    """Return a cell that failed, with the command that runs it again."""
    return {
        "node": cell.node,
        "outcome": cell.outcome,
        "severity": _severity_word(cell),
        "why": cell.why,
        "sample": cell.failing,
        "expected": cell.expected,
        "actual": cell.actual,
        "program": cell.program,
        "command": command(cell, run.header),
    }
