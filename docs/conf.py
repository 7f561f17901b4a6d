"""How Sphinx builds these pages (`make site`)."""

import re
from typing import Any

project = "torch transform matrix"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = project
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
suppress_warnings = ["misc.highlighting_failure"]  # examples with an ellipsis in them

_QUOTED = re.compile(r"(``.*?``)")


def as_text(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Docstrings are prose for readers of the code. Here stars and bars stay what they are, and
    tables keep their columns."""
    found: list[str] = []
    for paragraph in re.split(r"\n{2,}", "\n".join(lines)):
        parts = paragraph.split("\n")
        aligned = any(re.search(r"^\s*\S.* {2,}\S", part) for part in parts) or any(
            part.startswith("    ") for part in parts
        )
        if aligned and not paragraph.startswith((">>>", "- ")):
            found += ["::", "", *("    " + part for part in parts), ""]
        else:
            found += [*map(_escaped, parts), ""]
    lines[:] = found


def _escaped(line: str) -> str:
    pieces = _QUOTED.split(line)
    return "".join(p if p.startswith("``") else re.sub(r"([*|])", r"\\\1", p) for p in pieces)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", as_text)
