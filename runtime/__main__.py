"""``python -m runtime``: pages about the records, the native part of guards, or a torch program run
on this package.

python -m runtime coverage [--out PAGE]
python -m runtime records [--out PAGE]
python -m runtime native [--force]
python -m runtime script.py ARGS …
python -m runtime -m module ARGS …
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m runtime",
        usage=(
            "%(prog)s coverage|records [--out PAGE] | native [--force] | "
            "script.py ARGS … | -m module ARGS …"
        ),
        description=(
            "Print what the records know of each op, "
            "compile the native part of jit's guards (see docs/jit.md), "
            "or run an unmodified torch program on this package (see runtime.dropin)."
        ),
    )
    parser.add_argument(
        "-m",
        dest="module",
        metavar="module",
        help="run a module as a script, like python -m; the rest is its arguments",
    )
    parser.add_argument(
        "what",
        nargs="?",
        help="`coverage`, `records`, `native`, or the path of a script; the rest is its arguments",
    )
    given = sys.argv[1:] if arguments is None else arguments
    own = _own_arguments(given)
    options = parser.parse_args(given[:own])
    rest = given[own:]
    if options.module is not None:
        return _run(
            lambda: runpy.run_module(options.module, run_name="__main__", alter_sys=True),
            [options.module, *rest],
            os.getcwd(),
        )
    if options.what in ("coverage", "records"):
        return _page(options.what, rest)
    if options.what == "native":
        from .native import build

        return build.main(rest)
    if options.what is None:
        parser.error(
            "say what to do: `coverage`, `records`, `native`, a script, or -m and a module"
        )
    script = Path(options.what)
    if not script.is_file():
        parser.error(
            f"no such script: {options.what} (`coverage` and `records` print tables of the records)"
        )
    return _run(
        lambda: runpy.run_path(str(script), run_name="__main__"),
        [str(script), *rest],
        str(script.resolve().parent),
    )


def _own_arguments(given: list[str]) -> int:
    """Return how many of the arguments are ours: everything after the script or module belongs to
    it."""
    for index, a in enumerate(given):
        if a == "-m":
            return index + 2
        if not a.startswith("-"):
            return index + 1
    return len(given)


def _run(program: Callable[[], Any], argv: list[str], folder: str) -> int:
    """Run ``program`` under the drop-in with the ``sys.argv`` and first import folder that it would
    have had by itself."""
    from . import dropin

    sys.argv = argv
    sys.path.insert(0, folder)
    try:
        with dropin.installed():
            program()
    except Exception as error:
        trace = _from_the_users_frame(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def _from_the_users_frame(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this file and of runpy at its beginning."""
    while trace is not None:
        frame = trace.tb_frame
        if (
            frame.f_code.co_filename not in (__file__, contextlib.__file__)
            and frame.f_globals.get("__name__") != "runpy"
        ):
            break
        trace = trace.tb_next
    return trace


_PAGES = {
    "coverage": (
        "A table of ATen ops against vjp, jvp, batch and per-sample rules, from the records."
    ),
    "records": "The records themselves: formulas, batch rules and the other facts of each op.",
}


def _page(name: str, arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m runtime {name}", description=_PAGES[name])
    parser.add_argument("--out", type=Path, help="write the page there instead of to the terminal")
    options = parser.parse_args(arguments)
    from . import coverage, records_page

    page = (coverage if name == "coverage" else records_page).markdown()
    if options.out is None:
        print(page)
    else:
        options.out.write_text(page, "utf-8")
        print(f"wrote {options.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
