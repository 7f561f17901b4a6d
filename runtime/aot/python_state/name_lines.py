"""Find the line on which the program's code names something, for error messages.

    line_naming("'steps' of Trainer", codes)    # ("train.py", 12, "step"): self.steps += 1

It is the first such line. It says where to look, and nothing depends on it."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterable, Iterator
from types import CodeType

from ...trace.provenance import Line
from .program_code import Code

_LABEL = re.compile(r"'([A-Za-z_]\w*)' of ")
_NAME = re.compile(r"[A-Za-z_]\w*")


def line_naming(what: str, code: Iterable[Code]) -> Line | None:
    """Find the first line of ``code`` that names ``what``, a place such as ``'rate' of Trainer`` or
    ``module.config.rate``. The last name of a path is looked for first. None if no line has it."""
    code = list(code)
    for name in (*_LABEL.findall(what), *reversed(_NAME.findall(what))):
        for top, _ in code:
            line = next(_lines_with(top, name), None)
            if line is not None:
                return line
    return None


def _lines_with(code: CodeType, name: str) -> Iterator[Line]:
    """Yield the lines of ``code``, and of code inside, that have ``name``."""
    # MAKE_CELL and COPY_FREE_VARS name variables too, on no line of the text
    for i in dis.get_instructions(code):
        number = None if i.positions is None else i.positions.lineno
        if number is not None and isinstance(i.argval, str) and i.argval == name:
            yield code.co_filename, number, code.co_name
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines_with(constant, name)
