"""Results for other programs: JUnit XML, which CI systems show, and JSON."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as Xml

from gen.report.runs import FAILURES, History, title
from gen.run.results import OUTCOMES, CellResult, Results

__all__ = ["as_json", "as_junit", "command"]

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ERRORS = ("error", "timed out", "crashed")
_SKIPPED = ("skipped", "lacking")


def command(cell: CellResult, header: Mapping[str, Any]) -> str:
    """The command that runs a cell again, with the sample that failed."""
    words = ["pytest", shlex.quote(cell.node), "--target", shlex.quote(header["target"])]
    words += ["--device", shlex.quote(header["device"])] if header["device"] != "cpu" else []
    words += ["--tier", "full"]
    return " ".join(
        [*words, *(["--sample", str(cell.failing)] if cell.failing is not None else [])]
    )


def as_junit(runs: Sequence[Results]) -> str:
    """A test suite for each run, and a test case for each cell."""
    root = Xml.Element("testsuites")
    for run in runs:
        counts = run.counts()
        suite = Xml.SubElement(
            root,
            "testsuite",
            name=_text(title(run)),
            tests=str(len(run.cells)),
            failures=str(sum(counts[outcome] for outcome in FAILURES if outcome not in _ERRORS)),
            errors=str(sum(counts[outcome] for outcome in _ERRORS)),
            skipped=str(sum(counts[outcome] for outcome in _SKIPPED)),
            time=f"{sum(cell.seconds for cell in run.cells):.3f}",
        )
        for cell in run.cells:
            _case(suite, cell, run.header)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, "unicode") + "\n"


def _case(suite: Xml.Element, cell: CellResult, header: Mapping[str, Any]) -> None:
    names = {
        "classname": _text(f"{cell.family}.{cell.check}"),
        "name": _text(cell.id),
        "time": f"{cell.seconds:.5f}",
    }
    case = Xml.SubElement(suite, "testcase", names)
    if cell.outcome in FAILURES:
        kind = "error" if cell.outcome in _ERRORS else "failure"
        Xml.SubElement(case, kind, type=cell.outcome, message=_text(cell.why)).text = _text(
            command(cell, header)
        )
    elif cell.outcome in _SKIPPED:
        Xml.SubElement(case, "skipped", message=_text(f"{cell.outcome}: {cell.why}"))


def _text(text: str) -> str:
    return _NOT_IN_XML.sub("�", text)


def as_json(runs: Sequence[Results], past: Sequence[History]) -> str:
    """Counts and failures of each run, and what changed since earlier ones."""
    return (
        json.dumps(
            {"runs": [_run(run) for run in runs], "history": [_history(one) for one in past]},
            ensure_ascii=False,
            indent=1,
        )
        + "\n"
    )


def _run(run: Results) -> dict[str, Any]:
    counts = run.counts()
    failures = [
        {
            "node": cell.node,
            "outcome": cell.outcome,
            "why": cell.why,
            "sample": cell.failing,
            "command": command(cell, run.header),
        }
        for cell in run.cells
        if cell.outcome in FAILURES
    ]
    return {
        **{key: value for key, value in run.header.items() if key != "event"},
        "complete": bool(run.end.get("complete")),
        "cells": len(run.cells),
        "counts": {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]},
        "failures": failures,
    }


def _history(past: History) -> dict[str, Any]:
    return {
        "name": past.name,
        "runs": [
            {
                "began": step.began,
                "cells": step.cells,
                "failing": step.failing,
                "seconds": round(step.seconds, 3),
            }
            for step in past.steps
        ],
        "newly_failing": [cell.node for cell in past.newly_failing],
        "newly_passing": [cell.node for cell in past.newly_passing],
        "slower": [
            {"node": cell.node, "seconds": cell.seconds, "usual": usual}
            for cell, usual in past.slower
        ],
        "flaky": [{"node": cell.node, "outcomes": list(outcomes)} for cell, outcomes in past.flaky],
    }
