"""Write results for other programs: JUnit XML, which CI systems show, and JSON."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
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
        counts = run.counts()
        suite = Xml.SubElement(
            root,
            "testsuite",
            name=_text(title(run)),
            tests=str(len(run.cells)),
            # JUnit tells failures of a test from errors of what runs it
            failures=str(sum(counts[outcome] for outcome in FAILURES if outcome not in _ERRORS)),
            errors=str(sum(counts[outcome] for outcome in _ERRORS)),
            skipped=str(sum(counts[outcome] for outcome in _SKIPPED)),
            time=f"{sum(cell.seconds for cell in run.cells):.3f}",
        )
        for cell in by_severity(run.cells):
            _case(suite, cell, run.header)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, "unicode") + "\n"


def _case(suite: Xml.Element, cell: CellResult, header: Mapping[str, object]) -> None:
    """Add the test case of a cell to its suite."""
    names = {
        "classname": _text(f"{cell.family}.{cell.check}"),
        "name": _text(cell.id),
        "time": f"{cell.seconds:.5f}",
    }
    case = Xml.SubElement(suite, "testcase", names)
    if cell.outcome in FAILURES:
        kind = "error" if cell.outcome in _ERRORS else "failure"
        failure = Xml.SubElement(case, kind, type=cell.outcome, message=_text(cell.why))
        failure.text = _text(command(cell, header))
        properties = Xml.SubElement(case, "properties")
        Xml.SubElement(properties, "property", name="severity", value=_severity(cell))
    elif cell.outcome in _SKIPPED:
        Xml.SubElement(case, "skipped", message=_text(f"{cell.outcome}: {cell.why}"))


def _severity(cell: CellResult) -> str:
    """Return the word for how severe a failure is."""
    severity = severity_of_row(cell.outcome, cell.severity)
    assert severity is not None, "the cell has failed"
    return severity.word


def _text(text: str) -> str:
    return _NOT_IN_XML.sub("�", text)


def as_json(runs: Sequence[Results]) -> str:
    """Return the counts and failures of each run."""
    return _json({"runs": list(map(_run, runs))})


def changes_as_json(past: History) -> str:
    """Return what the last of several runs changed, and what became of cells in all of them."""
    changes_of_last_run = past.changes
    return _json(
        {
            "runs": list(map(_settings, changes_of_last_run.headers)),
            "notes": list(past.notes),
            "steps": list(map(_step_as_json, past.steps)),
            "common": changes_of_last_run.common,
            **_changes(changes_of_last_run),
            "new_ops": dict(changes_of_last_run.new_ops),
            "vanished_ops": dict(changes_of_last_run.vanished_ops),
            "new_cells": _nodes(changes_of_last_run.new_cells),
            "vanished_cells": _nodes(changes_of_last_run.vanished_cells),
            "new_failing": list(map(_failing, changes_of_last_run.new_failing)),
            "vanished_failing": list(map(_failing, changes_of_last_run.vanished_failing)),
            "without_result": [
                {"run": run, "why": why, "nodes": _nodes(cells)}
                for run, why, cells in changes_of_last_run.without_result
            ],
            "slower": [
                {"node": cell.node, "seconds": cell.seconds, "usual": usual}
                for cell, usual in past.slower
            ],
            "flaky": [
                {"node": cell.node, "outcomes": list(outcomes)} for cell, outcomes in past.flaky
            ],
        }
    )


def _step_as_json(step: Step) -> dict[str, object]:
    return {
        "began": step.began,
        "cells": step.cells,
        "failing": step.failing,
        "seconds": round(step.seconds, 3),
    }


def _nodes(cells: Sequence[CellResult]) -> list[str]:
    return [cell.node for cell in cells]


def _changes(changes_of_run: Changes) -> dict[str, object]:
    """Return the changed cells of each kind, with both results."""
    return {kind: list(map(_change, changes_of_run.of(kind))) for kind in KINDS}


def _change(change: Change) -> dict[str, object]:
    """Return a changed cell with both of its results."""
    return {
        "node": change.now.node,
        "op": change.now.op,
        "before": _differing_facts(change.before, change.now),
        "now": _differing_facts(change.now, change.before),
    }


def _differing_facts(cell: CellResult, other: CellResult) -> dict[str, object]:
    """Return what a run says of a cell, and what else is not as in the other run."""
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


def _failing(cell: CellResult) -> dict[str, object]:
    return {"node": cell.node, "op": cell.op, "outcome": cell.outcome, "why": cell.why}


def _settings(header: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in header.items() if key != "event"}


def _json(data: Mapping[str, object]) -> str:
    return (
        json.dumps(_without_infinities(data), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    )


def _without_infinities(data: object) -> object:
    """Return data with null for numbers that JSON does not have."""
    # json.dumps would write NaN and Infinity, which other readers of JSON refuse
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _without_infinities(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return list(map(_without_infinities, data))
    return data


def _run(run: Results) -> dict[str, object]:
    """Return the settings, counts and failures of a run."""
    counts = run.counts()
    failing = [cell for cell in by_severity(run.cells) if cell.outcome in FAILURES]
    return {
        **_settings(run.header),
        "complete": bool(run.end.get("complete")),
        "cells": len(run.cells),
        "counts": {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]},
        "severities": {
            severity.word: count for severity, count in counts_by_severity(run.cells).items()
        },
        "findings": list(map(_finding, group_failures(run.cells))),
        "failures": [_failure(cell, run) for cell in failing],
    }


def _finding(finding: FailureGroup) -> dict[str, object]:
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


def _failure(cell: CellResult, run: Results) -> dict[str, object]:
    """Return a cell that failed, with the command that runs it again."""
    return {
        "node": cell.node,
        "outcome": cell.outcome,
        "severity": _severity(cell),
        "why": cell.why,
        "sample": cell.failing,
        "expected": cell.expected,
        "actual": cell.actual,
        "program": cell.program,
        "command": command(cell, run.header),
    }
