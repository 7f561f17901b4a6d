"""Write the glossary from its table.

    python -m tools.glossary                            print the page
    python -m tools.glossary --out docs/glossary.md     write it

`docs/glossary.yaml` has the terms: what each means, the class or type that it is, and what JAX and
torch call it.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

TABLE = Path("docs/glossary.yaml")
KEYS = ("term", "means", "code", "jax", "torch")
HEADINGS = {"runtime": "Of the runtime", "generator": "Of the generator"}
PREFACE = """\
# Glossary

Written by `make docs` from `docs/glossary.yaml`; do not edit. The last columns have the names that
JAX and torch give to the same thing, or to what is nearest.
"""
HEAD = "| term | what it is | in the code | JAX | torch |\n|---|---|---|---|---|"

Term = Mapping[str, str]


class GlossaryError(Exception):
    """The table has a mistake. The message names the term and says what to do."""


def read(path: Path) -> dict[str, list[Term]]:
    """Read the table and refuse what is no glossary: other keys, a term that stands twice, a name
    of the code that is not there."""
    sections = yaml.safe_load(path.read_text("utf-8"))
    unknown = sections.keys() - HEADINGS.keys()
    if unknown:
        raise GlossaryError(f"{path}: {sorted(unknown)} is no section. Use {[*HEADINGS]}.")
    known: set[str] = set()
    for term in (term for terms in sections.values() for term in terms):
        _refuse_mistake(path, term, known)
        known.add(term["term"])
    return dict(sections)


def _refuse_mistake(path: Path, term: Term, known: set[str]) -> None:
    name = term.get("term")
    if not name or "means" not in term or not term.keys() <= set(KEYS):
        raise GlossaryError(f"{path}: {dict(term)} needs `term` and `means`, and has of {KEYS}.")
    if name in known:
        raise GlossaryError(f"{path}: {name!r} stands twice. Keep one of them.")
    place = term.get("code")
    if place is not None and not _is_there(place):
        raise GlossaryError(f"{path}: {name!r} is said to be {place}, which is not there.")


def _is_there(place: str) -> bool:
    module, _, name = place.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return False


def page(path: Path) -> str:
    """Write the page: a table for each section, terms by name."""
    lines = [PREFACE]
    for section, terms in read(path).items():
        lines += [f"## {HEADINGS[section]}", "", HEAD]
        lines += [_row(term) for term in sorted(terms, key=lambda term: term["term"])]
        lines.append("")
    return "\n".join(lines)


def _row(term: Term) -> str:
    place = term.get("code")
    named = f"`{place}`" if place else ""
    cells = (f"**{term['term']}**", term["means"], named, term.get("jax"), term.get("torch"))
    return f"| {' | '.join(cell or '' for cell in cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.glossary", description="Write the glossary from its table."
    )
    parser.add_argument("--table", type=Path, default=TABLE, help="docs/glossary.yaml by default")
    parser.add_argument("--out", type=Path, metavar="PAGE", help="write to this file")
    options = parser.parse_args(arguments)
    try:
        text = page(options.table)
    except (GlossaryError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
