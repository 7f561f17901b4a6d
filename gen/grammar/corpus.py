"""Programs as YAML: what a soak has found, and what a matrix replays.

- name: aot_eager_gradient_99
  level: aot_eager
  part: gradient of leaf
  message: "gradient of leaf 2: got [1, 0], expected [2, 0]"
  words: [statement same]
  statements: ["p = same(a)"]
  results: ["p[0]"]
  calls:
  - {kind: first, inputs: {a: "leaf(numbers(2, 3, seed=1))"}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gen.grammar.program import Call, Input, Program, Statement
from gen.grammar.search import Difference, Finding
from gen.run.severity import Severity

Entry = Mapping[str, Any]


def entry_of(finding: Finding) -> dict[str, Any]:
    """Return a finding as YAML and JSON have it."""
    program, difference = finding.program, finding.difference
    return {
        "name": name_of(finding),
        "level": difference.level,
        "part": difference.part,
        "severity": difference.severity.word,
        "message": difference.message,
        "number": finding.number,
        "words": sorted(finding.words),
        "statements": [one.text for one in program.statements],
        "results": [one.text for one in program.results],
        "calls": [_call_entry(call) for call in program.calls],
    }


def name_of(finding: Finding) -> str:
    """Return the level, what differs, and the number of the program."""
    words = "".join(c if c.isalnum() else " " for c in finding.difference.part.lower()).split()
    return "_".join([finding.difference.level.replace("-", "_"), *words[:4], str(finding.number)])


def _call_entry(call: Call) -> dict[str, Any]:
    entry: dict[str, Any] = {"kind": call.kind}
    if not call.repeats:
        entry["inputs"] = {one.name: one.text for one in call.inputs}
    usual = Call("", ())
    for name in ("dtype", "around", "before", "repeats"):
        if getattr(call, name) != getattr(usual, name):
            entry[name] = getattr(call, name)
    return entry


def finding_of(entry: Entry) -> Finding:
    """Return the finding of an entry. ``KeyError`` if it lacks a part."""
    calls: list[Call] = []
    for one in entry["calls"]:
        texts = {key: one[key] for key in ("dtype", "around", "before", "repeats") if key in one}
        inputs = calls[-1].inputs if one.get("repeats") else _inputs(one["inputs"])
        calls.append(Call(one["kind"], inputs, **texts))
    program = Program(
        tuple(Statement("", text) for text in entry["statements"]),
        tuple(Statement("", text) for text in entry["results"]),
        tuple(calls),
    )
    difference = Difference(
        entry["level"],
        entry["part"],
        entry["message"],
        len(calls) - 1,
        Severity.of_word(entry["severity"]),
    )
    return Finding(program, difference, entry["number"], frozenset(entry["words"]))


def _inputs(texts: Mapping[str, str]) -> tuple[Input, ...]:
    return tuple(Input(name, "", "", text) for name, text in texts.items())
