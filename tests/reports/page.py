"""docs/findings.md, made of the reports."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from tests.reports.cells import noticed
from tests.reports.report import Report, statements, topics

HEAD = """\
# What is wrong in torch

Target `torch`, torch 2.13.0 on the CPU. `python -m tests.reports page --out docs/findings.md` \
writes this page from the programs in
`tests/reports/programs`. A test runs them, and fails when a version of torch mends one. \
It leaves out those that compile code, which take
minutes: `python -m tests.reports run --compiled` runs all and says the same.

An entry of `matrix/known-torch.yaml` that names F1, F2 and so on refers to the sections of that \
number. Each block computes what torch
gives (`actual`) and what is right (`expected`). `python -m tests.reports show F1.1` prints it \
with its imports, as a program that needs
torch alone. The right value comes from a closed form, from central differences, \
from a loop of single calls, or from a float64 or mpmath
value that is written down.
"""

LIMITATIONS = (Path(__file__).parent / "limitations.md").read_text("utf-8")


def page(entries: Iterable[Report]) -> str:
    """The page in Markdown: a section for each topic, in it one for each report."""
    order = {
        module.__name__.rpartition(".")[2]: (module.__doc__ or "").strip() for module in topics()
    }
    names = list(order)
    parts = [HEAD]
    for topic, group in groupby(
        sorted(entries, key=lambda entry: names.index(entry.topic)), key=lambda entry: entry.topic
    ):
        title, _, text = order[topic].partition("\n\n")
        title = " ".join(title.split())
        parts += [
            f"## {title.removesuffix('.')}\n",
            *([f"{text}\n"] if text else []),
            *map(_section, group),
        ]
    return "\n".join([*parts, LIMITATIONS])


def _section(entry: Report) -> str:
    facts = [", ".join(f"`{link}`" for link in entry.links) or "No report upstream is known"]
    if entry.kernel:
        facts.append("the kernel is wrong")
    if entry.torch:
        facts.append(f"wrong on torch {entry.torch}, right or refused on others")
    if entry.raises:
        facts.append("torch raises an error")
    if cell := noticed().get(entry.number):
        where = "" if cell.target == "torch" else f" on target `{cell.target}`"
        facts.append(f"`{cell.name}`{where} notices it")
    code = "\n".join(f"    {line}".rstrip() for line in statements(entry).splitlines())
    return (
        "\n\n".join(
            [
                f"### {entry.number}. {entry.title.removesuffix('.')}",
                "; ".join(facts) + ".",
                *filter(None, [entry.text]),
                code,
            ]
        )
        + "\n"
    )
