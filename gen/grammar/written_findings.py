"""Findings as files: YAML, and scripts that show one with torch alone.

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

import ast
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gen.grammar import observation, prelude
from gen.grammar.drawn_program import Call, Input, Program, Statement, texts_of
from gen.grammar.observation import Observation
from gen.grammar.program_levels import LEVELS
from gen.grammar.program_runs import SEED, Level, by_model, by_torch
from gen.grammar.program_search import Difference, Finding, expected_of, tolerance_of
from gen.severity import Severity

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
        "statements": texts_of(program.statements),
        "results": texts_of(program.results),
        "calls": list(map(_call_entry, program.calls)),
    }


def name_of(finding: Finding) -> str:
    """Return the level, what differs, and the number of the program."""
    words = re.findall(r"[a-z0-9]+", finding.difference.part.lower())
    return "_".join([finding.difference.level.replace("-", "_"), *words[:4], str(finding.number)])


def _call_entry(call: Call) -> dict[str, Any]:
    """Return a call as YAML has it, without what is as usual."""
    entry: dict[str, Any] = {"kind": call.kind}
    if not call.repeats:
        entry["inputs"] = {argument.name: argument.text for argument in call.inputs}
    usual = Call("", ())
    for name in ("dtype", "around", "before", "repeats"):
        if getattr(call, name) != getattr(usual, name):
            entry[name] = getattr(call, name)
    return entry


def finding_of(entry: Entry) -> Finding:
    """Return the finding of an entry. ``KeyError`` if it lacks a part."""
    calls: list[Call] = []
    for written in entry["calls"]:
        keys = [key for key in ("dtype", "around", "before", "repeats") if key in written]
        texts = {key: written[key] for key in keys}
        inputs = _inputs(written.get("inputs", {}))
        # what repeats a call has no inputs of its own in the file
        if written.get("repeats"):
            inputs = calls[-1].inputs
        calls.append(Call(written["kind"], inputs, **texts))
    program = Program(
        tuple(map(partial(Statement, ""), entry["statements"])),
        tuple(map(partial(Statement, ""), entry["results"])),
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


# --- scripts --------------------------------------------------------------------------------------


def script_of(program: Program, difference: Difference) -> str:
    """Return a script that prints what differs and exits with 1, or with 0 if nothing does."""
    level = LEVELS[difference.level]()
    whole = [
        f'"""{difference.level}: {difference.message.replace(chr(34), chr(39))}"""',
        "from __future__ import annotations\n",
        *_sources(),
        program.text(),
        "\nworld = World()\nglobals().update(world.names)",
        # the leaves of modules stay for all calls, and those of inputs go with each call
        "own = len(world.leaves)",
        level.setup,
        f"function = {level.text}",
        f"is_twice_differentiable = {level.is_twice_differentiable}",
        f"SEED = {SEED}\n",
        _CALL,
    ]
    for call in program.calls:
        whole += [f"# {call.kind}", *_lines_of(call, program)]
    tolerance = tolerance_of(program, len(program.calls) - 1)
    expected = by_model(program)[-1]
    if difference.severity is not Severity.CRASH:  # eager mode may be what crashes
        expected = _expected(program, level)
    whole += [f"expected = {expected!r}", _END.format(tolerance=tolerance)]
    return "\n".join(filter(None, whole)) + "\n"


_CALL = """
class Level:
    is_twice_differentiable = is_twice_differentiable

    @staticmethod
    def gradients(loss, leaves):
        return torch.autograd.grad(
            loss, list(leaves), retain_graph=True, create_graph=is_twice_differentiable,
            allow_unused=True,
        )


def call(arguments, around=None):
    versions = {name: version(x) for name, x in arguments.items()}
    torch.manual_seed(SEED)
    with around or torch.enable_grad():
        results = function(*arguments.values())
    seen = of_torch(arguments, versions, results)
    if around is None:
        add_gradients(seen, world.leaves, results, Level)
    return seen

"""
_END = """difference = seen.differs(expected, {tolerance})
print(f"differs: {{difference}}" if difference else "as expected")
raise SystemExit(1 if difference else 0)"""


def _lines_of(call: Call, program: Program) -> list[str]:
    lines = [call.text()]
    if not call.repeats:
        lines = ["del world.leaves[own:]", f"world.set_dtype({call.dtype!r})", *lines]
    arguments = ", ".join(f"{name!r}: {name}" for name in program.names)
    around = f", {call.around}" * bool(call.around)
    return [*lines, f"seen = call({{{arguments}}}{around})"]


def _expected(program: Program, level: Level) -> Observation:
    """Return what the last call has, as a search expects it.

    Where eager mode raises an error there is the model alone.
    """
    truth = by_model(program)[-1]
    eager = by_torch(program, LEVELS["eager"]())[-1]
    if isinstance(eager, Observation):
        return expected_of(level, truth, eager)
    return truth


def _sources() -> list[str]:
    """Return the text of the modules that a script has, without what only a module has."""
    files = [Path(str(module.__file__)) for module in _MODULES]
    return [_without_head(file.read_text(encoding="utf-8")) for file in files]


_MODULES = (prelude, observation)


def _without_head(text: str) -> str:
    """Return a module's text without its docstring and ``from __future__``."""
    # A script has both of its own, and Python takes that import only at the beginning of a file.
    second = ast.parse(text).body[2]
    return "\n".join(text.splitlines()[second.lineno - 1 :]) + "\n"
