"""Bad inputs -> `docs/bad_inputs.md`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tests.bad_inputs.trial import BadInput

PAGE = "docs/bad_inputs.md"
HEAD = """\
# Bad inputs

What the commands say of {count} inputs that are wrong, and their exit codes: 0 for all is well, \
1 for something failed or is stale, 2 for a
wrong input of `python -m gen`, 4 for a wrong option of pytest, and 5 for a selection without \
tests. No input ends in a traceback of the
project or hangs. A refused command writes nothing, and no command writes outside of the \
project's folder.

`tests/bad_inputs/cases.yaml` has the inputs. A test tries each one. `make docs` writes this page.
"""
_LONGEST = 160


def page(inputs: Sequence[BadInput]) -> str:
    """The page: a table for each group."""
    text = HEAD.format(count=len(inputs))
    for group, members in groupby(inputs, key=lambda bad: bad.group):
        text += (
            f"\n## {group[0].upper()}{group[1:]}\n\n"
            "| input | what is said | code |\n|---|---|---|\n"
        )
        for bad in members:
            command = "" if bad.run == ("gen generate",) else f"<br>`{_cell(bad.run[-1])}`"
            said = "<br>".join(f"`{_cell(one)}`" for one in bad.says)
            text += f"| {_cell(bad.what)}{command} | {said} | {bad.code} |\n"
    return text


def _cell(text: str) -> str:
    """`text` for a cell of a table, cut if it is too long to read."""
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return cut.replace("|", "\\|").replace("`", "'").strip()
