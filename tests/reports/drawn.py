"""docs/drawn_findings.md, made of the programs that a soak has drawn and made small.

    - title: A write to a tensor without dimensions is lost
      wrong_on: [2.13.0, 2.14.1]
      …                                 # and what ``programs.yaml`` of the soak has

``drawn.yaml`` has them.
"""

from __future__ import annotations

import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gen.grammar import Finding, finding_of

HEAD = """\
# What drawn programs found

Programs of views, writes and calls that `python -m gen soak-programs` has drawn and made small \
([matrix.md](matrix.md#programs-that-are-drawn)),
each of another cause, on the CPU. *Level* says what runs it: `eager` torch without a compiler, \
`dynamo` `torch.compile(backend="eager")`, `aot_eager`
`torch.compile(backend="aot_eager")`, `aot_dynamic` that with `dynamic=True`, `inductor` \
`torch.compile()`, `export` `torch.export`, `functional` \
`torch.func.functionalize`. `python -m tests.reports drawn --out docs/drawn_findings.md` writes this
page from `tests/reports/drawn.yaml`. A test runs each program on torch 2.13 and fails when it \
differs no more, or in another way. `python -m
tests.reports drawn NUMBER` prints a program as a script that needs torch alone and exits with 1 \
if it differs. None was looked for among upstream's reports.

`numbers(2, 3)` is a float64 tensor, `complex_numbers(2, 3)` a complex one, `leaf` calls \
`requires_grad_()`. `same`, `rounded`, `tripled` are Functions
whose backward is not their derivative. `counter` is a module with a buffer. What was expected are \
values and gradients of a model of
tensors, and strides, flags, versions and shared memory of torch without a compiler.
"""
SECTIONS = {
    "crash": "The process dies",
    "wrong": "Wrong without an error",
    "error": "Errors of a compiler's own",
    "refused": "Refused, where torch without a compiler computes",
}


@cache
def drawn() -> dict[str, dict[str, Any]]:
    """Return the entries of ``drawn.yaml`` by their numbers: D1, D2 and so on."""
    text = Path(__file__).with_name("drawn.yaml").read_text("utf-8")
    return {f"D{i}": entry for i, entry in enumerate(yaml.safe_load(text), 1)}


def drawn_page() -> str:
    """Return the page in Markdown, the most severe first."""
    parts = [HEAD]
    for severity, title in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_section(n, one) for n, one in drawn().items() if one["severity"] == severity]
    return "\n".join(parts)


def _section(number: str, entry: dict[str, Any]) -> str:
    finding = finding_of(entry)
    code = f"{finding.program.text()}\n{_calls(finding)}"
    return "\n".join(
        [
            f"### {number}. {entry['title']}\n",
            f"Level `{entry['level']}`, on torch {', '.join(entry['wrong_on'])}. "
            f"{_sentence(entry['message'])}\n",
            textwrap.indent(code, "    "),
        ]
    )


def _sentence(message: str) -> str:
    """Return what differs, as code."""
    return f"`{message.replace('`', chr(39))[:300]}`"


def _calls(finding: Finding) -> str:
    """Return the calls of a program, one after another."""
    names = ", ".join(finding.program.names)
    lines = []
    for call in finding.program.calls:
        run = f"compiled({names})"
        if call.around:
            run = f"with {call.around}: {run}"
        lines += [call.text(), run]
    return "\n".join(lines) + "\n"
